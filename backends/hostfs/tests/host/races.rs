//! The host changes between the moment when a file is found and the one when it is changed.
//! The answer is `Stale` or the right errno, and the file that is there now is left alone.

mod exchanged;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::back_end::{BackEnd, errno, name, with_back_end};
use crate::common::{AN_HOUR, Scratch};
use rcuwalk::{
    Error, FileSystem, FileType, Inode, NewFile, OpenFlags, Rename, RenameFlags, Result, SetAttr,
    SetTime, Timestamp, XattrFlags,
};
use rcuwalk_hostfs::HostFs;
use rustix::fs::{CWD, Mode};

/// A root with `file`, `dir` and `link` in it, and a `canary` beside the root.
fn in_scratch(test: impl FnOnce(&BackEnd<'_>) + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(dir.path().join("canary"), b"canary").unwrap();
    fs::write(root.join("file"), b"old").unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    symlink("nowhere", root.join("link")).unwrap();
    with_back_end(&root, HostFs::new(&root).unwrap(), move |t| test(&t));
}

/// A file that replaces another on the host.
#[derive(Clone, Copy, Debug)]
enum Another {
    File,
    HardLink,
    Directory,
    LinkOut,
    Fifo,
    Nothing,
}

const ALL: [Another; 6] = [
    Another::File,
    Another::HardLink,
    Another::Directory,
    Another::LinkOut,
    Another::Fifo,
    Another::Nothing,
];

impl Another {
    fn take_the_place_of(self, t: &BackEnd<'_>, path: &str) {
        let at = t.host(path);
        // Moved away, not removed: its number is not free for the new file.
        fs::rename(&at, t.host("../moved away")).unwrap();
        match self {
            Another::File => fs::write(&at, b"another").unwrap(),
            Another::HardLink => fs::hard_link(t.host("../canary"), &at).unwrap(),
            Another::Directory => fs::create_dir(&at).unwrap(),
            Another::LinkOut => symlink("../canary", &at).unwrap(),
            Another::Fifo => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(CWD, &at, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
            }
            Another::Nothing => {}
        }
    }
}

/// Inode number, mode, names, size, mtime and ctime.
type Look = (u64, u32, u64, u64, (i64, i64), (i64, i64));

/// All that an operation on the wrong file would change.
fn look(path: &Path) -> Option<Look> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((
        meta.ino(),
        meta.mode(),
        meta.nlink(),
        meta.size(),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ))
}

type Operation = fn(&BackEnd<'_>, &Inode) -> Result<()>;

fn all_of_it() -> SetAttr {
    let time = SetTime::To(Timestamp { sec: 1, nsec: 1 });
    SetAttr::default()
        .mode(0o4777)
        .uid(1234)
        .gid(1234)
        .atime(time)
        .mtime(time)
}

const OPERATIONS: [(&str, Operation); 10] = [
    ("open", |t, inode| {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        t.fs.open(&t.by, &t.at("file", inode), flags).map(drop)
    }),
    ("setattr", |t, inode| {
        t.fs.setattr(&t.by, &t.at("file", inode), &all_of_it())
    }),
    ("truncate", |t, inode| {
        let change = SetAttr::default().size(0);
        t.fs.setattr(&t.by, &t.at("file", inode), &change)
    }),
    ("set_xattr", |t, inode| {
        let (at, flags) = (t.at("file", inode), XattrFlags::empty());
        t.fs.set_xattr(&t.by, &at, b"user.a", b"1", flags)
    }),
    ("get_xattr", |t, inode| {
        let at = t.at("file", inode);
        t.fs.get_xattr(&t.by, &at, b"user.a").map(drop)
    }),
    ("remove_xattr", |t, inode| {
        t.fs.remove_xattr(&t.by, &t.at("file", inode), b"user.a")
    }),
    ("link", |t, inode| {
        let at = t.at("file", inode);
        t.fs.link(&t.by, &at, t.root, name("second"))
    }),
    ("unlink", |t, inode| {
        t.fs.unlink(&t.by, t.root, name("file"), inode)
    }),
    ("unlink_open", |t, inode| {
        t.fs.unlink_open(&t.by, t.root, name("file"), inode, &mut None)
    }),
    ("rename", |t, inode| {
        let how = Rename::new((t.root, name("file")), (t.root, name("second")), inode);
        t.fs.rename(&t.by, &how)
    }),
];

/// EDGE-1: no operation reaches a file that has replaced the one that it was for.
#[test]
fn a_replaced_file_is_left_alone() {
    for (what, operation) in OPERATIONS {
        for another in ALL {
            in_scratch(move |t| {
                let inode = t.find("file");
                another.take_the_place_of(t, "file");
                let (place, canary) = (t.host("file"), t.host("../canary"));
                let before = (look(&place), look(&canary));
                let done = operation(t, &inode);
                let what = format!("EDGE-1: {what}, {another:?}");
                let by_name = what.contains("unlink") || what.contains("rename");
                match (another, done) {
                    (Another::Nothing, Err(Error::NotFound)) if by_name => {}
                    (_, Err(Error::Stale)) => {}
                    (_, done) => panic!("{what}: {done:?}"),
                }
                assert_eq!((look(&place), look(&canary)), before, "{what}");
                assert!(look(&t.host("second")).is_none(), "{what}");
            });
        }
    }
}

/// EDGE-1: a directory goes on being the one that was found; its name is checked.
#[test]
fn a_replaced_directory_is_not_removed() {
    for another in ALL {
        in_scratch(move |t| {
            let dir = t.find("dir");
            another.take_the_place_of(t, "dir");
            let before = look(&t.host("dir"));
            let done = t.fs.rmdir(&t.by, t.root, name("dir"), &dir);
            let wanted = match another {
                Another::Nothing => Error::NotFound,
                _ => Error::Stale,
            };
            assert_eq!(errno(done), wanted.errno(), "EDGE-1: {another:?}");
            assert_eq!(look(&t.host("dir")), before, "EDGE-1: {another:?}");
            // Changes in it go to its new place, as in a bind mount.
            let new = NewFile::new(FileType::Regular, 0o600);
            t.fs.create(&t.by, &dir, name("in it"), &new).unwrap();
            assert!(t.host("../moved away/in it").exists(), "EDGE-1");
        });
    }
}

/// EDGE-1: a rename replaces only the file that the caller was allowed to replace, or nothing.
#[test]
fn a_rename_replaces_what_was_meant() {
    for another in ALL {
        in_scratch(move |t| {
            fs::write(t.host("from"), b"from").unwrap();
            let (from, file) = (t.find("from"), t.find("file"));
            another.take_the_place_of(t, "file");
            let canary = look(&t.host("../canary"));
            let before = look(&t.host("file"));
            let mut how = Rename::new((t.root, name("from")), (t.root, name("file")), &from)
                .replaced(Some(&file));
            let done = t.fs.rename(&t.by, &how);
            let known = matches!(done, Err(Error::Stale | Error::NotFound));
            assert!(known, "EDGE-1: {another:?}: {done:?}");
            assert_eq!(look(&t.host("file")), before, "EDGE-1: {another:?}");

            // The VFS has found the name free: nothing is replaced either.
            how.replaced = None;
            let done = t.fs.rename(&t.by, &how);
            if matches!(another, Another::Nothing) {
                done.unwrap();
            } else {
                assert!(matches!(done, Err(Error::Stale)), "EDGE-1: {another:?}");
                assert_eq!(look(&t.host("file")), before, "EDGE-1: {another:?}");
            }
            how.flags = RenameFlags::NOREPLACE;
            if !matches!(another, Another::Nothing) {
                let done = t.fs.rename(&t.by, &how);
                assert!(matches!(done, Err(Error::Exists)), "EDGE-1: {another:?}");
            }
            assert_eq!(look(&t.host("../canary")), canary, "EDGE-1: {another:?}");
        });
    }
}

/// EDGE-1: a name that has appeared is taken, whatever has it.
#[test]
fn nothing_is_made_over_what_has_appeared() {
    for another in ALL {
        if matches!(another, Another::Nothing) {
            continue;
        }
        in_scratch(move |t| {
            another.take_the_place_of(t, "file");
            let before = (look(&t.host("file")), look(&t.host("../canary")));
            for kind in [
                FileType::Regular,
                FileType::Directory,
                FileType::Symlink,
                FileType::Fifo,
            ] {
                let new = NewFile::new(kind, 0o777).target(b"target").uid(1234);
                let made = t.fs.create(&t.by, t.root, name("file"), &new);
                assert!(matches!(made, Err(Error::Exists)), "EDGE-1: {another:?}");
            }
            let file = t.find("dir");
            let linked = t.fs.link(&t.by, &t.at("dir", &file), t.root, name("file"));
            assert!(linked.is_err());
            let after = (look(&t.host("file")), look(&t.host("../canary")));
            assert_eq!(after, before, "EDGE-1: {another:?}");
        });
    }
}

/// EDGE-1: a link that was replaced by another link is not taken for it.
#[test]
fn a_replaced_link_is_left_alone() {
    in_scratch(|t| {
        let link = t.find("link");
        Another::LinkOut.take_the_place_of(t, "link");
        let before = look(&t.host("link"));
        let owner = SetAttr::default().uid(1234);
        let done = t.fs.setattr(&t.by, &t.at("link", &link), &owner);
        assert!(matches!(done, Err(Error::Stale)), "EDGE-1");
        let done = t.fs.unlink(&t.by, t.root, name("link"), &link);
        assert!(matches!(done, Err(Error::Stale)), "EDGE-1");
        assert_eq!(look(&t.host("link")), before, "EDGE-1");
    });
}

/// INODE-1: an open file is changed through its descriptor, whichever file has its name.
#[test]
fn an_open_file_is_the_one_that_is_changed() {
    in_scratch(|t| {
        let inode = t.find("file");
        let file = t.open("file", &inode, OpenFlags::READ).0;
        Another::File.take_the_place_of(t, "file");
        let before = look(&t.host("file"));
        let at = t.at("file", &inode).open(&*file);
        let mode = SetAttr::default().mode(0o600);
        t.fs.setattr(&t.by, &at, &mode).unwrap();
        t.fs.set_xattr(&t.by, &at, b"user.a", b"1", XattrFlags::empty())
            .unwrap();
        t.fs.link(&t.by, &at, t.root, name("second")).unwrap();
        let moved = fs::metadata(t.host("../moved away")).unwrap();
        assert_eq!(moved.mode() & 0o7777, 0o600, "INODE-1");
        assert_eq!(moved.ino(), fs::metadata(t.host("second")).unwrap().ino());
        assert_eq!(look(&t.host("file")), before, "INODE-1");
    });
}

/// EDGE-1: while the host exchanges a stranger's file and ours all the time, a change reaches
/// ours or nothing.
#[test]
fn a_storm_of_replacements_never_reaches_the_canary() {
    in_scratch(|t| {
        let (place, kept, next) = (t.host("file"), t.host("kept"), t.host("next"));
        let canary = t.host("../canary");
        fs::set_permissions(&canary, PermissionsExt::from_mode(0o644)).unwrap();
        fs::hard_link(&place, &kept).unwrap();
        let (done, ours) = (AtomicBool::new(false), t.find("kept"));
        let mut reached = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..4000 {
                    match turn % 3 {
                        0 => fs::hard_link(&canary, &next).unwrap(),
                        1 => symlink(&canary, &next).unwrap(),
                        _ => fs::hard_link(&kept, &next).unwrap(),
                    }
                    fs::rename(&next, &place).unwrap();
                    // A rename between two names of one file does nothing.
                    let _ = fs::remove_file(&next);
                }
                done.store(true, Relaxed);
            });
            let mode = SetAttr::default().mode(0o600);
            let at = t.at("file", &ours);
            while !done.load(Relaxed) {
                let changes = [
                    t.fs.setattr(&t.by, &at, &mode),
                    t.fs.open(&t.by, &at, OpenFlags::WRITE)
                        .and_then(|file| file.write_at(&ours, b"changed", 0))
                        .map(drop),
                    t.fs.set_xattr(&t.by, &at, b"user.a", b"1", XattrFlags::empty()),
                ];
                for done in changes {
                    match done {
                        Ok(()) => reached += 1,
                        Err(Error::Stale) => {}
                        Err(other) => panic!("EDGE-1: {other}"),
                    }
                }
            }
        });
        assert!(reached > 0, "the race was never won");
        assert_eq!(fs::metadata(&canary).unwrap().mode() & 0o7777, 0o644);
        assert_eq!(fs::read(&canary).unwrap(), b"canary", "EDGE-1");
        let attribute = rustix::fs::getxattr(&canary, "user.a", &mut [0; 8]);
        assert_eq!(attribute, Err(rustix::io::Errno::NODATA), "EDGE-1");
    });
}

/// INODE-1: a link that replaces one that was just made is not shown with the old one's target.
#[test]
fn a_new_link_is_shown_with_its_own_target() {
    let tree = Scratch::new(AN_HOUR, |_| {});
    let (ready, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let place = |n: usize| tree.host(&n.to_string());
    let (mut made, mut failed) = (0, None);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                let next = tree.host("next");
                symlink("theirs", &next).unwrap();
                ready.store(n, SeqCst);
                // Waits for the directory's lock while a name is made in it.
                let (swap, place) = (rustix::fs::RenameFlags::EXCHANGE, place(n));
                while rustix::fs::renameat_with(CWD, &next, CWD, &place, swap).is_err() {
                    if done.load(SeqCst) {
                        return;
                    }
                }
                fs::remove_file(next).unwrap();
            }
        });
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end && failed.is_none() {
            if ready.load(SeqCst) == made {
                thread::yield_now();
                continue;
            }
            made += 1;
            match tree.vfs.symlink(&tree.ctx, "ours", format!("/{made}")) {
                // Theirs was there before the first statx(2) of ours.
                Ok(_) | Err(Error::Stale | Error::Exists) => {}
                Err(other) => failed = Some(other),
            }
        }
        done.store(true, SeqCst);
    });
    assert!(failed.is_none(), "INODE-1: {failed:?}");
    let mut theirs = 0;
    for n in 1..=made {
        let (path, host) = (format!("/{n}"), fs::symlink_metadata(place(n)).unwrap());
        if tree.lstat(&path).unwrap().ino == host.ino() {
            let target = tree.vfs.read_link(&tree.ctx, &path).unwrap();
            let host = fs::read_link(place(n)).unwrap();
            assert_eq!(*target, *host.as_os_str().as_bytes(), "INODE-1: {n}");
            theirs += usize::from(*target == *b"theirs");
        }
    }
    println!("{theirs} of {made} links were replaced before they were seen");
}
