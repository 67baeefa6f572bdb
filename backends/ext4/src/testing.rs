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
            self.debugfs_run(&["-w", "-R", command]);
        }
    }

    /// Has debugfs do what is written in a file.
    pub(crate) fn debugfs_script(&self, requests: &Path) {
        self.debugfs_run(&["-w", "-f", &requests.display().to_string()]);
    }

    /// The number that debugfs finds a path under.
    pub(crate) fn ino(&self, path: &str) -> u32 {
        self.inos(&[path.to_owned()])[0]
    }

    /// As [`ino`](Self::ino), for many in one go.
    pub(crate) fn inos(&self, paths: &[String]) -> Vec<u32> {
        let commands = self.temp.path().join("commands");
        let stats: Vec<_> = paths.iter().map(|path| format!("stat {path}\n")).collect();
        fs::write(&commands, stats.concat()).unwrap();
        let said = self.debugfs_run(&["-f", &commands.display().to_string()]);
        let inos: Vec<u32> = said
            .split("Inode: ")
            .skip(1)
            .filter_map(|rest| rest.split_whitespace().next()?.parse().ok())
            .collect();
        assert_eq!(inos.len(), paths.len(), "{paths:?}: {said}");
        inos
    }

    fn debugfs_run(&self, options: &[&str]) -> String {
        let said = Command::new(tool("debugfs").expect("it comes with mkfs.ext4"))
            .args(options)
            .arg(self.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}

/// An image made by hand, without any feature: one group of 1 KiB blocks with an inode
/// table of 16 inodes. What a test is about goes into it by [`put`](HandMade::put).
pub(crate) struct HandMade(pub(crate) Vec<u8>);

impl HandMade {
    const INODE_TABLE: usize = 5;
    pub(crate) const BLOCKS: u32 = 200;

    pub(crate) fn new() -> HandMade {
        let mut image = HandMade(vec![0; Self::BLOCKS as usize * 1024]);
        image
            .put(1024, &16_u32.to_le_bytes())
            .put(1024 + 0x04, &Self::BLOCKS.to_le_bytes())
            .put(1024 + 0x14, &1_u32.to_le_bytes())
            .put(1024 + 0x20, &8192_u32.to_le_bytes())
            .put(1024 + 0x28, &16_u32.to_le_bytes())
            .put(1024 + 0x38, &0xef53_u16.to_le_bytes())
            .put(1024 + 0x4c, &1_u32.to_le_bytes())
            .put(1024 + 0x54, &11_u32.to_le_bytes())
            .put(1024 + 0x58, &128_u16.to_le_bytes())
            .put(2 * 1024 + 8, &(Self::INODE_TABLE as u32).to_le_bytes());
        image
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) -> &mut HandMade {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// A regular file of `size` bytes as inode 12, with these flags and this `i_block`.
    pub(crate) fn file(&mut self, size: u32, flags: u32, block: &[u8]) -> &mut HandMade {
        let at = Self::INODE_TABLE * 1024 + 11 * 128;
        self.put(at, &0o100_644_u16.to_le_bytes())
            .put(at + 0x04, &size.to_le_bytes())
            .put(at + 0x1a, &1_u16.to_le_bytes())
            .put(at + 0x20, &flags.to_le_bytes())
            .put(at + 0x28, block)
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
        rcuwalk_testkit::skip(&format!("needs {name}"));
    }
    found
}
