//! A host file system without birth times.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use rcuwalk::Vfs;
use rcuwalk_hostfs::{Actor, HostFs};

use super::{is_root, skip};

/// An ext4 whose inodes have no room for birth times, mounted by a loop device.
pub(crate) struct Birthless {
    dir: tempfile::TempDir,
    mounted: bool,
}

impl Birthless {
    /// `None`, and the test is skipped, where it cannot be mounted.
    pub(crate) fn mount() -> Option<Birthless> {
        if !is_root() {
            skip("needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut host = Birthless {
            dir,
            mounted: false,
        };
        fs::create_dir(host.root()).unwrap();
        let image = host.dir.path().join("image");
        let done = |command: &mut Command| {
            let ended = command.output();
            ended.is_ok_and(|ended| ended.status.success())
        };
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-I", "128"]).arg(&image).arg("8M");
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop,acl"]).arg(&image).arg(host.root());
        host.mounted = done(&mut mkfs) && done(&mut mount);
        if !host.mounted {
            skip("needs mkfs.ext4 and loop devices");
            return None;
        }
        // In which every user may exchange names.
        fs::create_dir(host.shared()).unwrap();
        fs::set_permissions(host.shared(), Permissions::from_mode(0o777)).unwrap();
        Some(host)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn shared(&self) -> PathBuf {
        self.root().join("shared")
    }

    pub(crate) fn vfs(&self, actor: Actor) -> Vfs {
        let fs = HostFs::new(self.shared()).unwrap();
        Vfs::new(fs.acting_as(actor).unwrap()).unwrap()
    }
}

impl Drop for Birthless {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(self.root()).status();
        }
    }
}
