//! Descriptors that changes leave open: none. A test binary with one test: it counts those
//! of the whole process.

mod common;

use std::fs;
use std::path::Path;

use common::back_end::{BackEnd, name, with_back_end};
use rcuwalk::{
    At, Credentials, Error, FileSystem, FileType, NewFile, OpenFlags, Rename, SetAttr, SetTime,
    XattrFlags,
};
use rcuwalk_hostfs::{Actor, HostFs};

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Each operation once; some of them fail.
fn everything(t: &BackEnd<'_>) {
    let me = Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Credentials::root()
    };
    let new = |kind| {
        NewFile::new(kind, 0o755)
            .uid(me.uid)
            .gid(me.gid)
            .target(b"t")
    };
    let (by, root) = (&t.by, t.root);
    for (path, kind) in [
        ("file", FileType::Regular),
        ("dir", FileType::Directory),
        ("link", FileType::Symlink),
        ("fifo", FileType::Fifo),
    ] {
        let inode = t.fs.create(by, root, name(path), &new(kind)).unwrap();
        let taken = t.fs.create(by, root, name(path), &new(kind));
        assert!(matches!(taken, Err(Error::Exists)), "MEM-1");
        let at = t.at(path, &inode);
        let mut change = SetAttr::default().uid(me.uid).atime(SetTime::Now);
        change.mode = (kind != FileType::Symlink).then_some(0o700);
        t.fs.setattr(by, &at, &change).unwrap();
        let _ =
            t.fs.set_xattr(by, &at, b"user.a", b"1", XattrFlags::empty());
        let _ = t.fs.get_xattr(by, &at, b"user.a");
        let _ = t.fs.get_xattr(by, &at, b"nowhere.a");
        let _ = t.fs.list_xattrs(by, &at);
        let _ = t.fs.remove_xattr(by, &at, b"user.a");
        let _ = t.fs.link(by, &at, root, name("second"));
        if kind == FileType::Regular {
            let file = t.open(path, &inode, OpenFlags::WRITE).0;
            file.write_at(&inode, b"x", 0).unwrap();
        } else {
            assert!(t.fs.open(by, &at, OpenFlags::READ).is_err());
        }
        let how = Rename::new((root, name(path)), (root, name("moved")), &inode);
        t.fs.rename(by, &how).unwrap();
        // Not there any more.
        assert!(t.fs.setattr(by, &at, &change).is_err() || kind == FileType::Directory);
        assert!(t.fs.unlink(by, root, name(path), &inode).is_err());
        if kind == FileType::Directory {
            t.fs.rmdir(by, root, name("moved"), &inode).unwrap();
        } else {
            t.fs.unlink(by, root, name("moved"), &inode).unwrap();
            t.fs.unlink(by, root, name("second"), &inode).unwrap();
        }
        t.by.sb.unhash(&inode);
    }
    let inode = t.fs.tmpfile(by, root, &new(FileType::Regular)).unwrap();
    let at = At::new(&inode);
    let file =
        t.fs.open(by, &at, OpenFlags::READ | OpenFlags::WRITE)
            .unwrap();
    file.write_at(&inode, b"x", 0).unwrap();
    t.fs.link(by, &at, root, name("named")).unwrap();
    t.fs.unlink(by, root, name("named"), &inode).unwrap();
    t.by.sb.unhash(&inode);
}

/// MEM-1: no change leaves a descriptor behind, done or refused.
#[test]
fn changes_keep_no_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = dir.path();
    let mut actors = vec![Actor::Daemon];
    if common::is_root() {
        actors.push(Actor::Caller);
    }
    for actor in actors {
        let fs = || HostFs::new(path).unwrap().acting_as(actor).unwrap();
        // Counted when the `Vfs` that asks is gone, and all that it has cached.
        with_back_end(path, fs(), |t| everything(&t));
        let before = open_descriptors();
        for _ in 0..20 {
            with_back_end(path, fs(), |t| everything(&t));
        }
        assert_eq!(open_descriptors(), before, "MEM-1: {actor:?}");
    }
}
