//! Each change, beside the same one by system call in a second directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::common::back_end::{
    BackEnd, assert_published, errno, host_errno, name, shape, with_back_end,
};
use crate::common::{is_root, skip};
use rcuwalk::{
    Credentials, Error, FileSystem, FileType, InodeFlags, NewFile, OpenFlags, Rename, RenameFlags,
    SetAttr, SetTime, Timestamp, XattrFlags,
};
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::acl;
use rustix::fs::{AtFlags, CWD, Mode};

/// Two directories that are filled alike: ours is changed by the back end, theirs by the
/// host.
fn beside(
    fill: impl Fn(&Path),
    test: impl FnOnce(&BackEnd<'_>, &dyn Fn(&str) -> PathBuf) + Send + 'static,
) {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for side in [&ours, &theirs] {
        fs::create_dir(side).unwrap();
        fs::set_permissions(side, PermissionsExt::from_mode(0o755)).unwrap();
        fill(side);
    }
    let host = HostFs::new(&ours).unwrap();
    with_back_end(&ours, host, move |t| {
        test(&t, &|path: &str| theirs.join(path));
    });
}

fn owned(kind: FileType, mode: u16) -> NewFile<'static> {
    NewFile::new(kind, mode)
        .uid(rustix::process::geteuid().as_raw())
        .gid(rustix::process::getegid().as_raw())
}

fn set(mode: u16) -> SetAttr {
    SetAttr::default().mode(mode)
}

/// EDGE-1: files of every kind, with the very mode that was asked for.
#[test]
fn files_are_made() {
    beside(
        |_| {},
        |t, theirs| {
            let kinds = [
                ("file", FileType::Regular, 0o666, 0),
                ("set-id", FileType::Regular, 0o6755, 0),
                ("dir", FileType::Directory, 0o1777, 0),
                ("link", FileType::Symlink, 0o777, 0),
                ("fifo", FileType::Fifo, 0o622, 0),
                ("socket", FileType::Socket, 0o606, 0),
                (
                    "null",
                    FileType::CharDevice,
                    0o666,
                    rustix::fs::makedev(1, 3),
                ),
            ];
            for (path, kind, mode, rdev) in kinds {
                if kind == FileType::CharDevice && !is_root() {
                    continue;
                }
                let new = owned(kind, mode).rdev(rdev).target(b"a/target");
                let made = t.fs.create(&t.by, t.root, name(path), &new).unwrap();
                let twin = theirs(path);
                let bits = Mode::from_raw_mode(mode.into());
                use rustix::fs::FileType as Host;
                let node = |kind| rustix::fs::mknodat(CWD, &twin, kind, bits, rdev).unwrap();
                match kind {
                    FileType::Directory => fs::create_dir(&twin).unwrap(),
                    FileType::Symlink => symlink("a/target", &twin).unwrap(),
                    FileType::Fifo => node(Host::Fifo),
                    FileType::Socket => node(Host::Socket),
                    FileType::CharDevice => node(Host::CharacterDevice),
                    _ => node(Host::RegularFile),
                }
                if kind != FileType::Symlink {
                    fs::set_permissions(&twin, PermissionsExt::from_mode(mode.into())).unwrap();
                }
                assert_eq!(shape(&t.host(path)), shape(&twin), "EDGE-1: {path}");
                assert_published(&made, &t.host(path));
                assert_published(t.root, &t.host(""));
                let found = t.find(path);
                assert!(std::ptr::eq(&*found, &*made), "INODE-1: {path}");
                let again = t.fs.create(&t.by, t.root, name(path), &new);
                assert!(matches!(again, Err(Error::Exists)), "EDGE-1: {path}");
            }
        },
    );
}

/// EDGE-1: a new file is open with the requested access, whatever its mode.
#[test]
fn a_new_file_is_open() {
    beside(
        |_| {},
        |t, _| {
            let new = owned(FileType::Regular, 0);
            let flags = OpenFlags::WRITE | OpenFlags::READ;
            let made = t.fs.create_open(&t.by, t.root, name("f"), &new, flags);
            let (inode, file) = made.unwrap();
            assert_eq!(file.write_at(&inode, b"text", 2).unwrap(), 4);
            assert_published(&inode, &t.host("f"));
            let mut buf = [9; 8];
            assert_eq!(file.read_at(&mut buf, 0).unwrap(), 6);
            assert_eq!(&buf[..6], b"\0\0text");
            let again = t.fs.create_open(&t.by, t.root, name("f"), &new, flags);
            assert!(matches!(again, Err(Error::Exists)), "EDGE-1");
        },
    );
}

/// EDGE-1: names come and go, and the inodes know how many they have.
#[test]
fn names_are_linked_and_removed() {
    let fill = |dir: &Path| {
        fs::write(dir.join("file"), b"x").unwrap();
        symlink("nowhere", dir.join("link")).unwrap();
        fs::create_dir(dir.join("full")).unwrap();
        fs::write(dir.join("full/file"), b"").unwrap();
        fs::create_dir(dir.join("empty")).unwrap();
    };
    beside(fill, |t, theirs| {
        for path in ["file", "link"] {
            let inode = t.find(path);
            let more = format!("{path}2");
            t.fs.link(&t.by, &t.at(path, &inode), t.root, name(&more))
                .unwrap();
            assert_eq!(inode.attr().nlink, 2, "EDGE-1: {path}");
            assert_published(&inode, &t.host(&more));
            assert_published(t.root, &t.host(""));
            let twice = t.fs.link(&t.by, &t.at(path, &inode), t.root, name(&more));
            assert!(matches!(twice, Err(Error::Exists)), "EDGE-1: {path}");

            t.fs.unlink(&t.by, t.root, name(path), &inode).unwrap();
            assert_published(&inode, &t.host(&more));
            let gone = t.fs.unlink(&t.by, t.root, name(path), &inode);
            assert!(matches!(gone, Err(Error::NotFound)), "EDGE-1: {path}");
            t.fs.unlink(&t.by, t.root, name(&more), &inode).unwrap();
            assert_eq!(inode.attr().nlink, 0, "EDGE-1: {path}");
            assert!(fs::symlink_metadata(t.host(&more)).is_err());
        }
        for path in ["full", "empty"] {
            let dir = t.find(path);
            let linked = t.fs.link(&t.by, &t.at(path, &dir), t.root, name("no"));
            let host = rustix::fs::link(theirs(path), theirs("no"));
            assert_eq!(errno(linked), host_errno(host), "EDGE-1: link {path}");
            let ours = t.fs.rmdir(&t.by, t.root, name(path), &dir);
            let host = rustix::fs::rmdir(theirs(path));
            assert_eq!(errno(ours), host_errno(host), "EDGE-1: rmdir {path}");
            let left = if path == "empty" { 0 } else { 2 };
            assert_eq!(dir.attr().nlink, left, "EDGE-1: {path}");
            assert_published(t.root, &t.host(""));
            assert_eq!(shape(&t.host(path)), shape(&theirs(path)));
        }
        let dir = t.find("full");
        fs::remove_dir_all(t.host("full")).unwrap();
        let made =
            t.fs.create(&t.by, &dir, name("x"), &owned(FileType::Fifo, 0o600));
        assert!(
            matches!(made, Err(Error::NotFound)),
            "EDGE-1: nothing is made in a directory that is gone"
        );
    });
}

/// EDGE-1: renames, with each flag, over everything that may be there.
#[test]
fn names_are_moved() {
    let fill = |dir: &Path| {
        fs::write(dir.join("file"), b"1").unwrap();
        fs::write(dir.join("file2"), b"22").unwrap();
        symlink("here", dir.join("link")).unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        fs::create_dir_all(dir.join("full/sub")).unwrap();
    };
    let names = ["file", "file2", "link", "dir", "full", "none"];
    let flags = [
        RenameFlags::empty(),
        RenameFlags::NOREPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::WHITEOUT,
    ];
    for (from, to) in names.iter().flat_map(|a| names.map(|b| (*a, b))) {
        for flags in flags {
            // Decided by the VFS alone.
            let missing = from == "none" || from == to;
            let no_partner = flags == RenameFlags::EXCHANGE && to == "none";
            if missing || no_partner || flags == RenameFlags::WHITEOUT && !is_root() {
                continue;
            }
            beside(fill, move |t, theirs| {
                let moved = t.find(from);
                let replaced = (to != "none").then(|| t.find(to));
                let whiteout = NewFile::new(FileType::CharDevice, 0);
                let how = Rename::new((t.root, name(from)), (t.root, name(to)), &moved)
                    .replaced(replaced.as_deref())
                    .flags(flags)
                    .whiteout(flags.contains(RenameFlags::WHITEOUT).then_some(&whiteout));
                let ours = t.fs.rename(&t.by, &how);
                let host_flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
                let host =
                    rustix::fs::renameat_with(CWD, theirs(from), CWD, theirs(to), host_flags);
                let what = format!("EDGE-1: {from} to {to}, {flags:?}");
                let done = host.is_ok();
                assert_eq!(errno(ours), host_errno(host), "{what}");
                for path in names {
                    assert_eq!(shape(&t.host(path)), shape(&theirs(path)), "{what}");
                }
                let here = if done { to } else { from };
                assert_published(&moved, &t.host(here));
                assert_published(t.root, &t.host(""));
                if let Some(replaced) = &replaced {
                    if !done || flags == RenameFlags::EXCHANGE {
                        assert_published(replaced, &t.host(if done { from } else { to }));
                    } else {
                        assert_eq!(replaced.attr().nlink, 0, "{what}");
                    }
                }
            });
        }
    }
}

/// EDGE-1: a directory is moved to another one, and not below itself.
#[test]
fn directories_are_moved() {
    let fill = |dir: &Path| {
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir(dir.join("c")).unwrap();
    };
    beside(fill, |t, _| {
        let (a, c) = (t.find("a"), t.find("c"));
        let b = t.fs.lookup(t.by.sb, &a, name("b")).unwrap().unwrap();
        let below_itself = Rename::new((t.root, name("a")), (&b, name("x")), &a);
        let moved = t.fs.rename(&t.by, &below_itself);
        assert!(matches!(moved, Err(Error::Invalid)), "EDGE-1: {moved:?}");
        let across = Rename::new((&a, name("b")), (&c, name("d")), &b);
        t.fs.rename(&t.by, &across).unwrap();
        for (inode, path) in [(&a, "a"), (&b, "c/d"), (&c, "c")] {
            assert_published(inode, &t.host(path));
        }
    });
}

/// EDGE-1: mode, times and size, of files that are open and that are not, of directories
/// and links.
#[test]
fn attributes_are_set() {
    let fill = |dir: &Path| {
        fs::write(dir.join("file"), b"0123456789").unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        symlink("nowhere", dir.join("link")).unwrap();
        rustix::fs::mknodat(
            CWD,
            dir.join("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
    };
    beside(fill, |t, theirs| {
        let moment = Timestamp { sec: -3, nsec: 7 };
        let times = SetAttr::default()
            .atime(SetTime::To(moment))
            .mtime(SetTime::Now);
        let only_mtime = SetAttr::default().mtime(SetTime::To(moment));
        for path in ["file", "dir", "link", "fifo"] {
            let inode = t.find(path);
            let file = (path == "file").then(|| t.open(path, &inode, OpenFlags::READ));
            for open in [None, file.as_ref()] {
                let mut at = t.at(path, &inode);
                at.open = open.map(|open| &*open.0);
                let ours = t.fs.setattr(&t.by, &at, &set(0o4750));
                let host = rustix::fs::chmodat(
                    CWD,
                    theirs(path),
                    Mode::from_raw_mode(0o4750),
                    AtFlags::empty(),
                );
                if path == "link" {
                    assert!(matches!(ours, Err(Error::NotSupported)), "EDGE-1");
                } else {
                    assert_eq!(errno(ours), host_errno(host), "EDGE-1: {path}");
                }
                assert_eq!(shape(&t.host(path)), shape(&theirs(path)), "EDGE-1: {path}");
                assert_published(&inode, &t.host(path));

                let before = inode.attr();
                t.fs.setattr(&t.by, &at, &times).unwrap();
                assert_eq!(inode.attr().atime, moment, "EDGE-1: {path}");
                assert!(inode.attr().mtime >= before.mtime, "EDGE-1: {path}");
                t.fs.setattr(&t.by, &at, &only_mtime).unwrap();
                let now = inode.attr();
                assert_eq!((now.atime, now.mtime), (moment, moment), "EDGE-1: {path}");
                assert_published(&inode, &t.host(path));
            }
        }
    });
}

/// Returns whether truncate(2) to a file's present size changes its times on this file system.
fn host_changes_times_by_truncate(path: &Path) -> bool {
    const SAME_SIZE: &str = "
import os, sys
before = os.stat(sys.argv[1])
os.truncate(sys.argv[1], before.st_size)
after = os.stat(sys.argv[1])
print(before.st_mtime_ns != after.st_mtime_ns, before.st_ctime_ns != after.st_ctime_ns)
";
    let mut python = std::process::Command::new("python3");
    let said = python.args(["-c", SAME_SIZE]).arg(path).output().unwrap();
    match &*said.stdout {
        b"True True\n" => true,
        b"False False\n" => false,
        other => panic!("{}", String::from_utf8_lossy(other)),
    }
}

/// EDGE-1: a file is cut and extended; to the same size, times are as the host has it.
#[test]
fn files_are_truncated() {
    let fill = |dir: &Path| fs::write(dir.join("file"), b"0123456789").unwrap();
    beside(fill, |t, theirs| {
        let size = |size| SetAttr::default().size(size);
        let inode = t.find("file");
        for (to, opened) in [
            (3, None),
            (9000, Some(OpenFlags::WRITE)),
            (5, Some(OpenFlags::READ)),
        ] {
            let open = opened.map(|flags| t.open("file", &inode, flags));
            let mut at = t.at("file", &inode);
            at.open = open.as_ref().map(|open| &*open.0);
            t.fs.setattr(&t.by, &at, &size(to)).unwrap();
            fs::OpenOptions::new()
                .write(true)
                .open(theirs("file"))
                .unwrap()
                .set_len(to)
                .unwrap();
            assert_eq!(
                shape(&t.host("file")),
                shape(&theirs("file")),
                "EDGE-1: {to}"
            );
            assert_published(&inode, &t.host("file"));
        }
        let before = inode.attr();
        t.fs.setattr(&t.by, &t.at("file", &inode), &size(5))
            .unwrap();
        let (then, now) = (before, inode.attr());
        let changes = host_changes_times_by_truncate(&theirs("file"));
        assert_eq!(
            (now.mtime != then.mtime, now.ctime != then.ctime),
            (changes, changes),
            "EDGE-1: to the same size"
        );
        assert_published(&inode, &t.host("file"));
        let too_large =
            t.fs.setattr(&t.by, &t.at("file", &inode), &size(u64::MAX >> 1));
        assert!(too_large.is_err());
        assert_published(&inode, &t.host("file"));
    });
}

/// EDGE-1: owners, the set-id bits that go with a change of them, and flags.
#[test]
fn owners_and_flags_are_set() {
    if !is_root() {
        return skip("needs root");
    }
    let fill = |dir: &Path| {
        fs::write(dir.join("file"), b"").unwrap();
        fs::set_permissions(dir.join("file"), PermissionsExt::from_mode(0o6755)).unwrap();
        symlink("nowhere", dir.join("link")).unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
    };
    beside(fill, |t, theirs| {
        let to = |uid, gid, mode| {
            let mut change = SetAttr::default();
            (change.uid, change.gid, change.mode) = (uid, gid, mode);
            change
        };
        for path in ["file", "link", "dir"] {
            let inode = t.find(path);
            for (uid, gid) in [(Some(7), None), (None, Some(8)), (Some(9), Some(10))] {
                t.fs.setattr(&t.by, &t.at(path, &inode), &to(uid, gid, None))
                    .unwrap();
                std::os::unix::fs::lchown(theirs(path), uid, gid).unwrap();
                assert_eq!(shape(&t.host(path)), shape(&theirs(path)), "EDGE-1: {path}");
                assert_published(&inode, &t.host(path));
            }
        }
        // Bits of the mode that the VFS keeps stay, though the host clears others.
        let file = t.find("file");
        t.fs.setattr(
            &t.by,
            &t.at("file", &file),
            &to(Some(1), None, Some(0o4711)),
        )
        .unwrap();
        assert_eq!((file.attr().uid, file.attr().mode), (1, 0o4711), "EDGE-1");
        assert_published(&file, &t.host("file"));
        chown(theirs("file"), Some(1), None).unwrap();

        let flags = |flags| SetAttr::default().flags(flags);
        for path in ["file", "dir"] {
            let inode = t.find(path);
            for set in [
                InodeFlags::IMMUTABLE,
                InodeFlags::APPEND,
                InodeFlags::empty(),
            ] {
                let done = t.fs.setattr(&t.by, &t.at(path, &inode), &flags(set));
                if matches!(done, Err(Error::NotSupported)) {
                    return skip(
                        "needs a file system with flags in the directory for temporary files",
                    );
                }
                done.unwrap();
                assert_eq!(inode.attr().flags, set, "EDGE-1: {path}");
                let chmod =
                    t.fs.setattr(&t.by, &t.at(path, &inode), &set_mode_of(&inode));
                let wanted = if set.is_empty() {
                    0
                } else {
                    Error::NotPermitted.errno()
                };
                assert_eq!(errno(chmod), wanted, "EDGE-1: {path}: {set:?}");
            }
        }
        let link = t.find("link");
        let done =
            t.fs.setattr(&t.by, &t.at("link", &link), &flags(InodeFlags::IMMUTABLE));
        assert!(matches!(done, Err(Error::NotSupported)), "EDGE-1");
    });
}

fn set_mode_of(inode: &rcuwalk::Inode) -> SetAttr {
    set(inode.attr().mode)
}

/// EDGE-1: extended attributes of files, directories and links.
#[test]
fn extended_attributes_are_kept() {
    let fill = |dir: &Path| {
        fs::write(dir.join("file"), b"").unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        symlink("nowhere", dir.join("link")).unwrap();
    };
    beside(fill, |t, theirs| {
        for path in ["file", "dir", "link"] {
            let inode = t.find(path);
            let open = (path == "file").then(|| t.open(path, &inode, OpenFlags::READ));
            for open in [None, open.as_ref()] {
                let mut at = t.at(path, &inode);
                at.open = open.map(|open| &*open.0);
                let long = vec![b'v'; 3000];
                for (attribute, value, flags) in [
                    ("user.a", &b"1"[..], XattrFlags::REPLACE),
                    ("user.a", b"1", XattrFlags::CREATE),
                    ("user.a", b"2", XattrFlags::CREATE),
                    ("user.a", b"3", XattrFlags::REPLACE),
                    ("user.b", b"", XattrFlags::empty()),
                    ("user.c", &long, XattrFlags::empty()),
                    ("nowhere.a", b"", XattrFlags::empty()),
                    ("user.", b"", XattrFlags::empty()),
                ] {
                    let ours =
                        t.fs.set_xattr(&t.by, &at, attribute.as_bytes(), value, flags);
                    let host_flags = rustix::fs::XattrFlags::from_bits_retain(flags.bits());
                    let host = rustix::fs::lsetxattr(theirs(path), attribute, value, host_flags);
                    let what = format!("EDGE-1: {path} {attribute} {flags:?}");
                    assert_eq!(errno(ours), host_errno(host), "{what}");
                    assert_published(&inode, &t.host(path));

                    let ours = t.fs.get_xattr(&t.by, &at, attribute.as_bytes());
                    let mut buf = vec![0; 70000];
                    let host = rustix::fs::lgetxattr(theirs(path), attribute, &mut *buf);
                    if let (Ok(ours), Ok(host)) = (&ours, host) {
                        assert_eq!(**ours, buf[..host], "{what}");
                    }
                    assert_eq!(errno(ours), host_errno(host), "{what}");
                }
                let mut ours = t.fs.list_xattrs(&t.by, &at).unwrap();
                ours.retain(|name| name.starts_with(b"user."));
                ours.sort();
                let expected: &[&[u8]] = if path == "link" {
                    &[]
                } else {
                    &[b"user.a", b"user.b", b"user.c"]
                };
                assert_eq!(
                    ours.iter().map(|name| &**name).collect::<Vec<_>>(),
                    expected
                );
                for attribute in ["user.a", "user.a", "user.b", "user.c"] {
                    let ours = t.fs.remove_xattr(&t.by, &at, attribute.as_bytes());
                    let host = rustix::fs::lremovexattr(theirs(path), attribute);
                    assert_eq!(errno(ours), host_errno(host), "EDGE-1: {path}");
                    assert_published(&inode, &t.host(path));
                }
            }
        }
    });
}

/// EDGE-1: `trusted.*` is shown to the privileged alone, whichever user this process runs as.
#[test]
fn trusted_attributes_are_listed_for_the_trusted() {
    if !is_root() {
        return skip("needs root");
    }
    let fill = |dir: &Path| fs::write(dir.join("file"), b"").unwrap();
    beside(fill, |t, _| {
        let inode = t.find("file");
        let at = t.at("file", &inode);
        t.fs.set_xattr(&t.by, &at, b"trusted.t", b"1", XattrFlags::empty())
            .unwrap();
        let sees = |who: &Credentials| {
            let names = t.fs.list_xattrs(&t.by(who), &at).unwrap();
            names.iter().any(|name| **name == *b"trusted.t")
        };
        assert!(sees(&Credentials::root()), "EDGE-1");
        assert!(!sees(&Credentials::user(1000, 1000)), "EDGE-1");
    });
}

/// EDGE-1: an ACL and the mode are one: each shows in the other.
#[test]
fn an_acl_changes_the_mode() {
    let fill = |dir: &Path| fs::create_dir(dir.join("dir")).unwrap();
    beside(fill, |t, _| {
        let acl = &*acl("u::6 u:12:4 g::6 m::4 o::0");
        let access = b"system.posix_acl_access";
        let new = owned(FileType::Regular, 0o640).acl(Some(acl));
        let made = match t.fs.create(&t.by, t.root, name("file"), &new) {
            Err(Error::NotSupported) => {
                return skip("needs ACLs in the directory for temporary files");
            }
            made => made.unwrap(),
        };
        assert_eq!(made.attr().mode, 0o640, "EDGE-1");
        let at = t.at("file", &made);
        assert_eq!(&*t.fs.get_xattr(&t.by, &at, access).unwrap(), acl, "EDGE-1");

        t.fs.setattr(&t.by, &at, &set(0o604)).unwrap();
        let masked = t.fs.get_xattr(&t.by, &at, access).unwrap();
        assert_eq!(
            masked[4 + 3 * 8 + 2],
            0,
            "EDGE-1: the mask is the group's bits"
        );

        let new = owned(FileType::Directory, 0o640)
            .acl(Some(acl))
            .default_acl(Some(acl));
        let dir = t.fs.create(&t.by, t.root, name("d2"), &new).unwrap();
        let at = t.at("d2", &dir);
        let default = t.fs.get_xattr(&t.by, &at, b"system.posix_acl_default");
        assert_eq!(&*default.unwrap(), acl, "EDGE-1");
        t.fs.remove_xattr(&t.by, &at, access).unwrap();
        let gone = t.fs.get_xattr(&t.by, &at, access);
        assert!(matches!(gone, Err(Error::NoData)), "EDGE-1");
        assert_published(&dir, &t.host("d2"));
    });
}

/// EDGE-1: a set-gid directory hands its group down on the host as well.
#[test]
fn a_set_gid_directory_is_obeyed() {
    if !is_root() {
        return skip("needs root");
    }
    let fill = |dir: &Path| {
        fs::create_dir(dir.join("dir")).unwrap();
        chown(dir.join("dir"), None, Some(33)).unwrap();
        fs::set_permissions(dir.join("dir"), PermissionsExt::from_mode(0o2777)).unwrap();
    };
    beside(fill, |t, _| {
        let dir = t.find("dir");
        for (path, kind, mode) in [
            ("file", FileType::Regular, 0o664),
            ("sub", FileType::Directory, 0o2775),
        ] {
            let new = NewFile::new(kind, mode).uid(1000).gid(33);
            let made = t.fs.create(&t.by, &dir, name(path), &new).unwrap();
            let attr = made.attr();
            assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 33, mode), "EDGE-1");
            assert_published(&made, &t.host("dir").join(path));
        }
    });
}
