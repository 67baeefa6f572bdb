//! What tmpfs does and the VFS does not: contents, budgets, times, sizes and counts.
//! Everything said here was seen in the running kernel first.

use std::sync::{Arc, Mutex};

use rcuwalk::{
    Allocate, At, Attr, Caller, Credentials, Error, FileHandle, FileSystem, FileType, Inode,
    InodeFlags, InodeRef, Name, NewFile, OpenFlags, Rename, RenameFlags, Result, SeekTo, SetAttr,
    SetTime, Timestamp, Vfs, XattrFlags,
};
use rcuwalk_memfs::{MemFs, directory, file, symlink};
use rcuwalk_testkit::{Wrapped, Wrapper};

type Inside = Box<dyn FnOnce(&MemFs, &Caller<'_>, &At<'_>) + Send>;

/// A memfs that runs what it is given at the next chmod: calls of a back end need a
/// mounted one.
struct Door {
    fs: MemFs,
    next: Arc<Mutex<Option<Inside>>>,
}

impl Wrapper for Door {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.fs)
    }
    fn setattr(&self, by: &Caller<'_>, at: &At<'_>, _: &SetAttr) -> Result<()> {
        let next = self.next.lock().unwrap().take();
        next.expect("something to do")(&self.fs, by, at);
        Ok(())
    }
}

/// Runs `test` with a mounted file system, and its root.
fn inside(fs: &MemFs, test: impl FnOnce(&Run<'_>) + Send + 'static) {
    let next: Arc<Mutex<Option<Inside>>> = Arc::default();
    let door = Door {
        fs: fs.clone(),
        next: next.clone(),
    };
    let vfs = Vfs::new(Wrapped::new(door)).unwrap();
    let root = vfs.context(Credentials::root());
    *next.lock().unwrap() = Some(Box::new(|fs, by, at| {
        test(&Run {
            fs,
            by,
            root: at.inode,
        })
    }));
    vfs.chmod(&root, "/", 0).unwrap();
}

struct Run<'a> {
    fs: &'a MemFs,
    by: &'a Caller<'a>,
    root: &'a Inode,
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn at(inode: &Inode) -> At<'_> {
    At::new(inode)
}

impl Run<'_> {
    fn create(&self, dir: &Inode, called: &str, new: NewFile<'_>) -> InodeRef {
        self.fs.create(self.by, dir, name(called), &new).unwrap()
    }

    fn open(&self, inode: &Inode) -> Box<dyn FileHandle> {
        let how = OpenFlags::READ | OpenFlags::WRITE;
        self.fs.open(self.by, &at(inode), how).unwrap()
    }

    fn unlink(&self, dir: &Inode, called: &str, inode: InodeRef) {
        self.fs.unlink(self.by, dir, name(called), &inode).unwrap();
        // As the VFS does with the last name.
        if inode.attr().nlink == 0 {
            self.by.sb.unhash(&inode);
        }
    }

    fn setattr(&self, inode: &Inode, change: SetAttr) {
        self.fs.setattr(self.by, &at(inode), &change).unwrap();
    }

    fn rename(
        &self,
        (from, old, moved): (&Inode, &str, &Inode),
        (to, new, replaced): (&Inode, &str, Option<&Inode>),
        flags: RenameFlags,
    ) -> Result<()> {
        let whiteout = NewFile::new(FileType::CharDevice, 0);
        let how = Rename::new((from, name(old)), (to, name(new)), moved)
            .replaced(replaced)
            .flags(flags)
            .whiteout(flags.contains(RenameFlags::WHITEOUT).then_some(&whiteout));
        self.fs.rename(self.by, &how)
    }

    fn free(&self) -> (u64, u64) {
        let full = self.fs.statfs(self.by.sb).unwrap();
        assert_eq!((full.kind, full.block_size), (0x0102_1994, 4096));
        (full.blocks_free, full.files_free)
    }

    /// Which of the times of `of` are other ones after `op`, and later: of a, m and c.
    fn changed(&self, of: &Inode, op: impl FnOnce()) -> String {
        let times = |attr: Attr| [attr.atime, attr.mtime, attr.ctime];
        let before = of.attr();
        std::thread::sleep(std::time::Duration::from_millis(1));
        op();
        let after = of.attr();
        assert_eq!(before.btime, after.btime, "the time of birth stays");
        let pairs = times(before).into_iter().zip(times(after));
        let letters = ['a', 'm', 'c'].into_iter().zip(pairs);
        letters
            .filter(|(_, (before, after))| before != after)
            .map(|(letter, _)| letter)
            .collect()
    }
}

#[test]
fn a_write_takes_what_room_there_is() {
    inside(&MemFs::with_limits(16 * 4096, 20), |run| {
        assert_eq!(run.free(), (16, 19));
        let inode = run.create(run.root, "f", file(0o644));
        let open = run.open(&inode);
        let blocks = || (inode.attr().size, inode.attr().blocks);
        assert_eq!(open.write_at(&inode, &[7; 100_000], 0).unwrap(), 65536);
        assert_eq!((blocks(), run.free()), ((65536, 128), (0, 18)));
        let times = run.changed(&inode, || {
            let full = open.write_at(&inode, b"more", 65536);
            assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        });
        assert_eq!(times, "mc", "tmpfs sets them before it writes");
        assert_eq!(open.write_at(&inode, b"in place", 6000).unwrap(), 8);
        let punch = Allocate::PUNCH_HOLE | Allocate::KEEP_SIZE;
        open.allocate(&inode, punch, 8192, 8192).unwrap();
        assert_eq!(blocks(), (65536, 112));
        assert_eq!(open.write_at(&inode, &[8; 20_000], 65536).unwrap(), 8192);
        assert_eq!(open.write_at(&inode, &[8; 20_000], 8000).unwrap(), 192);
        assert_eq!(blocks(), (73728, 128));
        assert_eq!(open.write_at(&inode, b"", 1 << 40).unwrap(), 0);
        run.setattr(&inode, SetAttr::default().size(0));
        assert_eq!((blocks(), run.free()), ((0, 0), (16, 18)));
    });
}

#[test]
fn allocations_are_those_of_tmpfs() {
    inside(&MemFs::with_limits(16 * 4096, 0), |run| {
        let inode = run.create(run.root, "f", file(0o644));
        let open = run.open(&inode);
        let blocks = || (inode.attr().size, inode.attr().blocks);
        let keep = Allocate::KEEP_SIZE;
        open.allocate(&inode, keep, 0, 10_000).unwrap();
        assert_eq!(blocks(), (0, 24));
        run.setattr(&inode, SetAttr::default().size(8192));
        // A promised page is a hole, and stays when the file grows.
        assert_eq!(blocks(), (8192, 24));
        assert_eq!(open.seek(0, SeekTo::Data).unwrap(), None);
        open.write_at(&inode, b"x", 5000).unwrap();
        assert_eq!(open.seek(0, SeekTo::Data).unwrap(), Some(4096));
        assert_eq!(open.seek(5000, SeekTo::Hole).unwrap(), Some(8192));
        // The same size once more cuts off what is beyond.
        run.setattr(&inode, SetAttr::default().size(8192));
        assert_eq!(blocks(), (8192, 16));
        open.allocate(&inode, Allocate::empty(), 0, 9000).unwrap();
        assert_eq!(blocks(), (9000, 24));
        assert_eq!(
            open.seek(0, SeekTo::Data).unwrap(),
            Some(0),
            "promised twice"
        );
        for unknown in [Allocate::ZERO_RANGE, Allocate::PUNCH_HOLE] {
            let refused = open.allocate(&inode, unknown, 0, 1);
            assert!(matches!(refused, Err(Error::NotSupported)), "{refused:?}");
        }
        let times = run.changed(&inode, || {
            let full = open.allocate(&inode, keep, 0, 17 * 4096);
            assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        });
        assert_eq!((times.as_str(), blocks()), ("", (9000, 24)));
        let most = i64::MAX as u64;
        open.allocate(&inode, keep, most - 10, 10).unwrap();
        let beyond = open.allocate(&inode, keep, most - 10, 11);
        assert!(matches!(beyond, Err(Error::FileTooBig)), "{beyond:?}");
        let beyond = open.write_at(&inode, b"x", most);
        assert!(matches!(beyond, Err(Error::FileTooBig)), "{beyond:?}");
    });
}

#[test]
fn all_is_given_back_in_the_end() {
    let fs = MemFs::with_limits(64 * 4096, 50);
    let still_open: Arc<Mutex<Option<Box<dyn FileHandle>>>> = Arc::default();
    let kept = still_open.clone();
    inside(&fs, move |run| {
        let start = run.fs.len();
        let long = [b'x'; 128];
        let link = run.create(run.root, "long", symlink(&long));
        assert_eq!((link.attr().size, link.attr().blocks), (128, 8));
        let short = run.create(run.root, "short", symlink(&long[1..]));
        assert_eq!((short.attr().blocks, run.free()), (0, (63, 47)));
        let dir = run.create(run.root, "dir", directory(0o755));
        let inode = run.create(&dir, "f", file(0o644));
        let open = run.open(&inode);
        open.write_at(&inode, &[1; 10_000], 0).unwrap();
        run.fs
            .link(run.by, &at(&inode), run.root, name("g"))
            .unwrap();
        assert_eq!(run.free(), (60, 44), "a further name costs an inode");
        let set = |attribute: &[u8], len: usize, flags| {
            let value = vec![0; len];
            let place = at(&inode);
            run.fs
                .set_xattr(run.by, &place, attribute, &value, flags)
                .map_err(|err| err.errno())
        };
        let none = XattrFlags::empty();
        assert_eq!(set(b"user.a", 2000, none), Ok(()));
        assert_eq!(run.free(), (60, 42));
        assert_eq!(set(b"trusted.a", 43_000, none), Err(Error::NoSpace.errno()));
        assert_eq!(
            set(b"user.a", 1, XattrFlags::CREATE),
            Err(Error::Exists.errno())
        );
        assert_eq!(
            set(b"user.b", 1, XattrFlags::REPLACE),
            Err(Error::NoData.errno())
        );
        assert_eq!(set(b"other.b", 1, none), Err(Error::NotSupported.errno()));
        assert_eq!(set(b"user.a", 10, none), Ok(()));
        assert_eq!(run.free(), (60, 43));
        for inodes in 0.. {
            let new = run
                .fs
                .create(run.by, run.root, name(&format!("{inodes}")), &file(0));
            if let Err(full) = new {
                assert!(matches!(full, Error::NoSpace) && inodes == 43, "{full:?}");
                break;
            }
        }
        for n in 0..43 {
            let called = format!("{n}");
            let found = run.fs.lookup(run.by.sb, run.root, name(&called)).unwrap();
            run.unlink(run.root, &called, found.unwrap());
        }
        run.unlink(run.root, "g", inode.clone());
        assert_eq!(inode.attr().nlink, 1);
        run.unlink(&dir, "f", inode.clone());
        run.fs.rmdir(run.by, run.root, name("dir"), &dir).unwrap();
        run.by.sb.unhash(&dir);
        run.unlink(run.root, "long", link);
        run.unlink(run.root, "short", short);
        assert_eq!(run.fs.len(), start);
        *kept.lock().unwrap() = Some(open);
    });
    // It is open, and is all there.
    assert_eq!((fs.bytes(), fs.inodes()), (3 * 4096, 3));
    let open = still_open.lock().unwrap().take().unwrap();
    let mut byte = [0];
    assert_eq!(open.read_at(&mut byte, 9999).unwrap(), 1);
    assert_eq!(byte, [1]);
    drop(open);
    assert_eq!((fs.bytes(), fs.inodes(), fs.len()), (0, 1, 1));
}

#[test]
fn each_change_sets_the_times_that_tmpfs_sets() {
    inside(&MemFs::new(), |run| {
        let (fs, by) = (run.fs, run.by);
        let dir = run.create(run.root, "d", directory(0o755));
        let other = run.create(run.root, "e", directory(0o755));
        let inode = run.create(&dir, "f", file(0o644));
        let times = [inode.attr().atime, inode.attr().mtime, inode.attr().ctime];
        assert_eq!(times, [inode.attr().btime; 3]);
        assert!(inode.attr().btime.sec > 1_600_000_000);
        let both = |dir: &Inode, file: &Inode, op: &mut dyn FnMut()| {
            let mut file_times = String::new();
            let dir_times = run.changed(dir, || file_times = run.changed(file, op));
            (dir_times, file_times)
        };
        let is = |dir: &str, file: &str| (dir.to_owned(), file.to_owned());
        let open = run.open(&inode);
        let got = both(&dir, &inode, &mut || {
            open.write_at(&inode, b"hi", 0).unwrap();
        });
        assert_eq!(got, is("", "mc"), "write");
        for size in [2, 5000, 0] {
            let got = run.changed(&inode, || {
                run.setattr(&inode, SetAttr::default().size(size))
            });
            assert_eq!(got, "mc", "truncate");
        }
        let got = run.changed(&inode, || run.setattr(&inode, SetAttr::default()));
        assert_eq!(got, "c", "chown of nothing");
        let flags = InodeFlags::APPEND;
        let got = run.changed(&inode, || {
            run.setattr(
                &inode,
                SetAttr::default().mode(0o4600).uid(3).gid(4).flags(flags),
            );
        });
        let attr = inode.attr();
        assert_eq!(
            (got.as_str(), attr.mode, attr.uid, attr.gid),
            ("c", 0o4600, 3, 4)
        );
        assert_eq!(attr.flags, InodeFlags::APPEND);
        let then = Timestamp { sec: -5, nsec: 7 };
        let got = run.changed(&inode, || {
            run.setattr(
                &inode,
                SetAttr::default()
                    .atime(SetTime::To(then))
                    .mtime(SetTime::Now),
            );
        });
        assert_eq!((got.as_str(), inode.attr().atime), ("amc", then));
        assert_eq!(inode.attr().mtime, inode.attr().ctime);
        let got = run.changed(&inode, || fs.touch_atime(&inode));
        assert_eq!(got, "a", "read");
        let place = at(&inode);
        let got = run.changed(&inode, || {
            fs.set_xattr(by, &place, b"user.a", b"", XattrFlags::empty())
                .unwrap();
        });
        assert_eq!(got, "c", "setxattr");
        let got = run.changed(&inode, || fs.remove_xattr(by, &place, b"user.a").unwrap());
        assert_eq!(got, "c", "removexattr");
        let got = run.changed(&inode, || {
            assert!(fs.remove_xattr(by, &place, b"user.a").is_err())
        });
        assert_eq!(got, "", "removexattr of nothing");
        let loses_set_id = SetAttr::default().size(0).mode(0o600);
        let got = run.changed(&inode, || run.setattr(&inode, loses_set_id));
        assert_eq!(got, "", "a size that it has, and set-id bits that go");
        let acl = b"system.posix_acl_access";
        let none = XattrFlags::empty();
        fs.set_xattr(by, &place, acl, b"any", none).unwrap();
        let got = run.changed(&inode, || run.setattr(&inode, loses_set_id));
        assert_eq!(got, "c", "the same with an ACL");
        fs.remove_xattr(by, &place, acl).unwrap();
        let got = both(&other, &inode, &mut || {
            fs.link(by, &place, &other, name("g")).unwrap();
        });
        assert_eq!(got, is("mc", "c"), "link");
        let none = RenameFlags::empty();
        let got = both(&dir, &inode, &mut || {
            run.rename((&dir, "f", &inode), (&dir, "h", None), none)
                .unwrap();
        });
        assert_eq!(got, is("mc", "c"), "rename");
        let second = run.create(&other, "i", file(0o644));
        let got = both(&other, &second, &mut || {
            run.rename((&dir, "h", &inode), (&other, "i", Some(&second)), none)
                .unwrap();
        });
        assert_eq!(
            (got, second.attr().nlink),
            (is("mc", "c"), 0),
            "rename over"
        );
        let got = both(&other, &inode, &mut || {
            run.unlink(&other, "g", inode.clone())
        });
        assert_eq!(got, is("mc", "c"), "unlink");
        let got = both(run.root, &dir, &mut || {
            fs.rmdir(by, run.root, name("d"), &dir).unwrap();
        });
        assert_eq!((got, dir.attr().nlink), (is("mc", "c"), 0), "rmdir");
    });
}

#[test]
fn directories_count_names_and_directories() {
    inside(&MemFs::new(), |run| {
        let counts = |inode: &Inode| (inode.attr().size, inode.attr().nlink, inode.attr().blocks);
        assert_eq!(counts(run.root), (40, 2, 0));
        let a = run.create(run.root, "a", directory(0o755));
        let b = run.create(run.root, "b", directory(0o755));
        let sub = run.create(&a, "sub", directory(0o755));
        let f = run.create(&b, "f", file(0));
        assert_eq!(
            (counts(run.root), counts(&a), counts(&b)),
            ((80, 4, 0), (60, 3, 0), (60, 2, 0))
        );
        let exchange = RenameFlags::EXCHANGE;
        run.rename((&a, "sub", &sub), (&b, "f", Some(&f)), exchange)
            .unwrap();
        assert_eq!((counts(&a), counts(&b)), ((60, 2, 0), (60, 3, 0)));
        let whiteout = RenameFlags::WHITEOUT;
        run.rename((&a, "sub", &f), (&b, "f2", None), whiteout)
            .unwrap();
        assert_eq!((counts(&a), counts(&b)), ((60, 2, 0), (80, 3, 0)));
        let left = run.fs.lookup(run.by.sb, &a, name("sub")).unwrap().unwrap();
        let attr = left.attr();
        assert_eq!(
            (attr.kind, attr.rdev, attr.mode, attr.nlink),
            (FileType::CharDevice, 0, 0, 1)
        );
        // A directory over a directory.
        let none = RenameFlags::empty();
        run.rename((&b, "f", &sub), (run.root, "a", Some(&a)), none)
            .unwrap_err();
        run.unlink(&a, "sub", left);
        run.rename((&b, "f", &sub), (run.root, "a", Some(&a)), none)
            .unwrap();
        assert_eq!(
            (counts(run.root), counts(&b), a.attr().nlink),
            ((80, 4, 0), (60, 2, 0), 0)
        );
        let dead = run.fs.create(run.by, &a, name("new"), &file(0));
        assert!(matches!(dead, Err(Error::NotFound)));
        assert_eq!(run.fs.len(), 4);
    });
}

#[test]
fn a_file_without_a_name_gets_one() {
    inside(&MemFs::with_limits(0, 10), |run| {
        let (fs, by) = (run.fs, run.by);
        let inode = fs.tmpfile(by, run.root, &file(0o600)).unwrap();
        assert_eq!((inode.attr().nlink, run.free().1, fs.len()), (0, 8, 1));
        let open = run.open(&inode);
        open.write_at(&inode, b"data", 0).unwrap();
        fs.link(by, &at(&inode), run.root, name("f")).unwrap();
        assert_eq!((inode.attr().nlink, run.free().1, fs.len()), (1, 8, 2));
        run.unlink(run.root, "f", inode.clone());
        let again = fs.link(by, &at(&inode), run.root, name("f"));
        assert!(matches!(again, Err(Error::NotFound)), "only once");
        assert_eq!((run.fs.bytes(), fs.len()), (4096, 1));
    });
}

#[test]
fn acls_are_kept_and_come_with_the_inode() {
    inside(&MemFs::with_limits(0, 2), |run| {
        let (fs, by) = (run.fs, run.by);
        let new = directory(0o750)
            .acl(Some(b"access"))
            .default_acl(Some(b"default"));
        let inode = run.create(run.root, "d", new);
        let place = at(&inode);
        let got = fs
            .get_xattr(by, &place, b"system.posix_acl_default")
            .unwrap();
        assert_eq!(&*got, b"default");
        let names = fs.list_xattrs(by, &place).unwrap();
        let names: Vec<_> = names.iter().map(|name| &**name).collect();
        assert_eq!(
            names,
            [&b"system.posix_acl_access"[..], b"system.posix_acl_default"]
        );
        let set = |len: usize| {
            let (acl, none) = (b"system.posix_acl_access", XattrFlags::empty());
            fs.set_xattr(by, &place, acl, &vec![0; len], none)
        };
        set(60).expect("a short ACL costs nothing");
        // Those of tmpfs never do, but their memory is not a process's.
        assert!(matches!(set(10_000), Err(Error::NoSpace)));
        assert!(matches!(
            fs.get_xattr(by, &place, b"user.none"),
            Err(Error::NoData)
        ));
        assert!(matches!(
            fs.get_xattr(by, &place, b"none"),
            Err(Error::NotSupported)
        ));
    });
}

/// A tree that is deeper than a stack could be goes without one.
#[test]
fn a_deep_tree_can_be_dropped() {
    let fs = MemFs::new();
    let mut at = fs.root();
    for _ in 0..200_000 {
        at = fs.add(at, b"d", directory(0o755)).unwrap();
    }
    assert_eq!(fs.len(), 200_001);
}

#[test]
fn long_acls_count_wherever_they_come_from() {
    let fs = MemFs::with_limits(0, 12);
    let counted = fs.clone();
    inside(&fs, move |run| {
        let long = [0; 4000];
        let new = directory(0o750).acl(Some(&long)).default_acl(Some(&long));
        let inode = run.create(run.root, "d", new);
        assert_eq!(counted.inodes(), 2 + 8);
        let again = run.fs.create(run.by, run.root, name("e"), &new);
        assert!(matches!(again, Err(Error::NoSpace)));
        run.fs.rmdir(run.by, run.root, name("d"), &inode).unwrap();
        run.by.sb.unhash(&inode);
    });
    assert_eq!(fs.inodes(), 1);
}
