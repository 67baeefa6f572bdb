//! Images for tests, made by mke2fs out of a directory: no mount, and no rights needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::checksum::Checksums;
use crate::volume::Volume;

/// An image and the directory it was made from, both gone with it.
pub(crate) struct Image {
    temp: TempDir,
}

impl Image {
    /// One of `size` (as `8M`), with what `fill` puts into the directory. None, and a line
    /// that says so, if there is no mke2fs.
    pub(crate) fn make(size: &str, options: &[&str], fill: impl FnOnce(&Path)) -> Option<Image> {
        let temp = tempfile::tempdir().unwrap();
        let image = Image { temp };
        fs::create_dir(image.tree()).unwrap();
        fill(&image.tree());
        let made = Command::new(tool("mkfs.ext4")?)
            .args(["-q", "-F", "-E", "root_owner=0:0"])
            .args(options)
            .arg("-d")
            .args([image.tree(), image.path()])
            .arg(size)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "mkfs.ext4 {options:?}: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        Some(image)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.temp.path().join("image")
    }

    /// What the image was filled with.
    pub(crate) fn tree(&self) -> PathBuf {
        self.temp.path().join("tree")
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    /// Has debugfs change it.
    pub(crate) fn debugfs(&self, commands: &[&str]) {
        for command in commands {
            self.debugfs_says(&["-w"], command);
        }
    }

    /// The number that debugfs finds a path under.
    pub(crate) fn ino(&self, path: &str) -> u32 {
        let said = self.debugfs_says(&[], &format!("stat {path}"));
        said.split_once("Inode: ")
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("no inode of {path}: {said}"))
    }

    pub(crate) fn debugfs_says(&self, options: &[&str], command: &str) -> String {
        let said = Command::new(tool("debugfs").expect("it comes with mkfs.ext4"))
            .args(options)
            .args(["-R", command])
            .arg(self.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}

/// The image as it is now.
pub(crate) fn open(bytes: Vec<u8>) -> crate::Result<Volume> {
    Volume::open(Box::new(bytes), Checksums::Always, 1 << 20)
}

fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where they are, and an ordinary user's PATH does not lead.
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: needs {name}");
    }
    found
}
