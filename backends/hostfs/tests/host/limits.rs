//! Full and read-only file systems of the host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::back_end::{BackEnd, assert_published, name, with_back_end};
use crate::common::{is_root, skip};
use rcuwalk::{
    Allocate, Credentials, Error, FileSystem, FileType, NewFile, OpenFlags, Rename, SetAttr,
    XattrFlags,
};
use rcuwalk_hostfs::{Actor, HostFs};
use rcuwalk_testkit::Unmount;
use rustix::mount::MountFlags;

/// A new mount point, with something mounted there.
struct Mounted(Unmount, #[expect(dead_code)] tempfile::TempDir);

impl Mounted {
    fn path(&self) -> &Path {
        &self.0.0
    }

    fn new(mount: impl FnOnce(&Path)) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("at");
        fs::create_dir(&at).unwrap();
        mount(&at);
        Mounted(Unmount(at), dir)
    }

    fn tmpfs(options: &'static str) -> Mounted {
        Mounted::new(|at| {
            let options = std::ffi::CString::new(options).unwrap();
            rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), &*options).unwrap();
        })
    }
}

fn on(host: &Mounted, actor: Actor, test: impl FnOnce(&BackEnd<'_>) + Send + 'static) {
    let fs = HostFs::new(host.path()).unwrap().acting_as(actor).unwrap();
    with_back_end(host.path(), fs, move |t| test(&t));
}

fn new(kind: FileType) -> NewFile<'static> {
    NewFile::new(kind, 0o666)
}

/// EDGE-1: a write to a full file system fails, and the inode shows the part that did fit.
#[test]
fn a_full_host_says_enospc() {
    if !is_root() {
        return skip("needs root");
    }
    let full = Mounted::tmpfs("size=64k,mode=755");
    on(&full, Actor::Daemon, |t| {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made =
            t.fs.create_open(&t.by, t.root, name("f"), &new(FileType::Regular), flags);
        let (inode, file) = made.unwrap();
        let mut offset = 0;
        let end = loop {
            match file.write_at(&inode, &[7; 10_000], offset) {
                Ok(written) => offset += written as u64,
                Err(err) => break err,
            }
        };
        assert!(matches!(end, Error::NoSpace), "EDGE-1: {end}");
        assert_eq!(inode.attr().size, offset, "EDGE-1");
        assert_published(&inode, &t.host("f"));
        let more = file.allocate(&inode, Allocate::KEEP_SIZE, 1 << 20, 1 << 20);
        assert!(matches!(more, Err(Error::NoSpace)), "EDGE-1: {more:?}");
        assert_eq!(t.fs.statfs(t.by.sb).unwrap().blocks_free, 0, "EDGE-1");
    });
}

/// EDGE-1: without inodes nothing is made, and nothing of it is left.
#[test]
fn a_host_without_inodes_says_enospc() {
    if !is_root() {
        return skip("needs root");
    }
    let full = Mounted::tmpfs("nr_inodes=3,mode=755");
    on(&full, Actor::Daemon, |t| {
        let kinds = [
            FileType::Regular,
            FileType::Directory,
            FileType::Fifo,
            FileType::Symlink,
        ];
        let mut refused = 0;
        for (i, kind) in kinds.into_iter().cycle().take(12).enumerate() {
            let new = new(kind).target(b"t");
            match t.fs.create(&t.by, t.root, name(&i.to_string()), &new) {
                Ok(_) => {}
                Err(Error::NoSpace) => refused += 1,
                Err(other) => panic!("EDGE-1: {other}"),
            }
        }
        assert!(refused >= 9, "EDGE-1: {refused}");
        let left = fs::read_dir(t.host("")).unwrap().count();
        assert_eq!(left, 12 - refused, "EDGE-1");
        let more = t.fs.tmpfile(&t.by, t.root, &new(FileType::Regular));
        assert!(matches!(more, Err(Error::NoSpace)), "EDGE-1");
    });
}

/// EDGE-1: root's reserve is not for callers, though root opened the directory: a write goes to
/// the host with the credentials of the file's opener.
#[test]
fn the_reserve_is_roots() {
    if !is_root() {
        return skip("needs root");
    }
    let images = tempfile::tempdir().unwrap();
    let image = images.path().join("image");
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "40"])
        .arg(&image)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return skip("needs mkfs.ext4");
    }
    let mut mounted = false;
    let host = Mounted::new(|at| {
        let mount = Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(at)
            .status();
        mounted = mount.is_ok_and(|status| status.success());
    });
    if !mounted {
        return skip("needs loop mounts of ext4");
    }
    fs::set_permissions(host.path(), PermissionsExt::from_mode(0o777)).unwrap();
    on(&host, Actor::Caller, |t| {
        let who = Credentials::user(1000, 1000);
        let made = new(FileType::Regular).uid(1000).gid(1000);
        let flags = OpenFlags::WRITE;
        let opened =
            t.fs.create_open(&t.by(&who), t.root, name("f"), &made, flags);
        let (inode, file) = opened.unwrap();
        let fill = |file: &dyn rcuwalk::FileHandle| {
            loop {
                match file.write_at(&inode, &[7; 1 << 16], inode.attr().size) {
                    Ok(_) => {}
                    Err(err) => break err.errno(),
                }
            }
        };
        assert_eq!(fill(&*file), Error::NoSpace.errno(), "EDGE-1");
        let free = t.fs.statfs(t.by.sb).unwrap();
        assert!(
            free.blocks_free > free.blocks_available + 300,
            "EDGE-1: {free:?}"
        );
        let roots = t.open("f", &inode, flags).0;
        let before = inode.attr().size;
        assert_eq!(fill(&*roots), Error::NoSpace.errno(), "EDGE-1");
        assert!(inode.attr().size > before + 400_000, "EDGE-1");
    });
}

/// EDGE-1: a host that is mounted read-only takes no change.
#[test]
fn a_read_only_host_says_erofs() {
    if !is_root() {
        return skip("needs root");
    }
    let real = Mounted::tmpfs("size=1m,mode=755");
    fs::write(real.path().join("file"), b"contents").unwrap();
    fs::create_dir(real.path().join("dir")).unwrap();
    let from = real.path().to_owned();
    let bound = Mounted::new(|at| {
        rustix::mount::mount_bind(&from, at).unwrap();
        let flags = MountFlags::RDONLY | MountFlags::BIND;
        rustix::mount::mount_remount(at, flags, "").unwrap();
    });
    for actor in [Actor::Daemon, Actor::Caller] {
        on(&bound, actor, |t| {
            let (file, dir) = (t.find("file"), t.find("dir"));
            let at = t.at("file", &file);
            let how = Rename::new((t.root, name("file")), (t.root, name("new")), &file);
            let mode = SetAttr::default().mode(0o600);
            let size = SetAttr::default().size(1);
            let (by, root) = (&t.by, t.root);
            let make = |kind| {
                let new = new(kind).target(b"t");
                t.fs.create(by, root, name("new"), &new).map(drop)
            };
            let all = [
                ("create", make(FileType::Regular)),
                ("mkdir", make(FileType::Directory)),
                ("symlink", make(FileType::Symlink)),
                ("mknod", make(FileType::Fifo)),
                (
                    "tmpfile",
                    t.fs.tmpfile(by, root, &new(FileType::Regular)).map(drop),
                ),
                ("link", t.fs.link(by, &at, root, name("new"))),
                ("unlink", t.fs.unlink(by, root, name("file"), &file)),
                (
                    "unlink_open",
                    t.fs.unlink_open(by, root, name("file"), &file, &mut None),
                ),
                ("rmdir", t.fs.rmdir(by, root, name("dir"), &dir)),
                ("rename", t.fs.rename(by, &how)),
                ("chmod", t.fs.setattr(by, &at, &mode)),
                ("truncate", t.fs.setattr(by, &at, &size)),
                ("open", t.fs.open(by, &at, OpenFlags::WRITE).map(drop)),
                (
                    "setxattr",
                    t.fs.set_xattr(by, &at, b"user.a", b"", XattrFlags::empty()),
                ),
                ("removexattr", t.fs.remove_xattr(by, &at, b"user.a")),
            ];
            for (what, done) in all {
                assert!(
                    matches!(done, Err(Error::ReadOnly)),
                    "EDGE-1: {what}: {done:?}"
                );
            }
            assert!(t.fs.open(by, &at, OpenFlags::READ).is_ok());
        });
    }
}
