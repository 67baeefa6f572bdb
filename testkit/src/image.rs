//! A file system of its own for a test, on a loop device.

use std::path::Path;
use std::process::Command;

use crate::{Unmount, lacks_root, skip};

/// A mounted image, which is unmounted and removed with this.
#[derive(Debug)]
pub struct Image {
    // Declared first, so that it is unmounted before its directory is removed.
    _mounted: Unmount,
    at: tempfile::TempDir,
    _file: tempfile::NamedTempFile,
}

impl Image {
    /// Makes a file system of that kind, `mib` large, by `mkfs` with these options. `None`, and the
    /// test is skipped, without root, mkfs or loop devices.
    ///
    /// # Panics
    /// If there is no room for the image.
    pub fn mount(kind: &str, options: &[&str], mib: u64) -> Option<Image> {
        Self::mount_with(kind, options, mib, "loop")
    }

    /// As [`mount`](Self::mount), with mount options of which one is `loop`.
    ///
    /// # Panics
    /// If there is no room for the image.
    pub fn mount_with(
        kind: &str,
        options: &[&str],
        mib: u64,
        mount_options: &str,
    ) -> Option<Image> {
        if lacks_root() {
            return None;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(mib << 20).unwrap();
        let at = tempfile::tempdir().unwrap();
        let done = |command: &mut Command| {
            let ended = command.output();
            ended.is_ok_and(|ended| ended.status.success())
        };
        let mut mkfs = Command::new(format!("mkfs.{kind}"));
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", mount_options]);
        let is_mounted = done(mkfs.args(options).arg(file.path()))
            && done(mount.arg(file.path()).arg(at.path()));
        if !is_mounted {
            skip(&format!(
                "needs mkfs.{kind} {options:?}, and mounts with {mount_options}"
            ));
            return None;
        }
        Some(Image {
            _mounted: Unmount(at.path().into()),
            at,
            _file: file,
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.at.path()
    }
}
