//! A budget through the [`Vfs`]: removed files free their part at once.

use std::sync::Barrier;
use std::thread;

use rcuwalk::{Budget, Credentials, Error, LookupFlags, OpenFlags, RenameFlags, Vfs};
use rcuwalk_memfs::{MemFs, file, limits};

#[test]
fn a_removed_file_makes_room_at_once() {
    let fs = MemFs::with_limits(16 * 4096, 8);
    let vfs = Vfs::new(fs.clone()).unwrap();
    let root = vfs.context(Credentials::root());
    for round in 0..3000 {
        // Another name each time: names cached as missing stay so.
        let name = format!("f{round}");
        let id = fs.add(fs.root(), name.as_bytes(), file(0o644)).unwrap();
        fs.write(id, &[1; 16 * 4096]).unwrap();
        vfs.stat(&root, &name, LookupFlags::empty()).unwrap();
        vfs.unlink(&root, &name).unwrap();
    }
    assert_eq!((fs.bytes(), fs.inodes(), fs.len()), (0, 1, 1));
}

#[test]
fn an_open_file_keeps_what_it_has_until_it_is_closed() {
    let fs = MemFs::with_limits(16 * 4096, 8);
    let vfs = Vfs::new(fs.clone()).unwrap();
    let root = vfs.context(Credentials::root());
    let how = OpenFlags::READ | OpenFlags::WRITE;
    let empty = (0, 1, 1);
    let counts = || (fs.bytes(), fs.inodes(), fs.len());
    for _ in 0..100 {
        let file = vfs.open(&root, "f", (how | OpenFlags::CREATE).mode(0o600));
        let file = file.unwrap();
        assert_eq!(file.write_at(&[1; 100_000], 0).unwrap(), 16 * 4096);
        vfs.unlink(&root, "f").unwrap();
        assert_eq!(counts(), (16 * 4096, 2, 1));
        let mut byte = [0];
        assert_eq!(file.read_at(&mut byte, 65_535).unwrap(), 1);
        drop(file);
        assert_eq!(counts(), empty, "closed");

        let nameless = vfs.open(&root, "/", (how | OpenFlags::TMPFILE).mode(0o600));
        let nameless = nameless.unwrap();
        nameless.write_at(b"some", 0).unwrap();
        assert_eq!(counts(), (4096, 2, 1));
        drop(nameless);
        assert_eq!(counts(), empty, "without a name");

        vfs.create(&root, "a", 0o600).unwrap();
        vfs.symlink(&root, [b'x'; 200], "b").unwrap();
        vfs.rename(&root, "a", "b").unwrap();
        assert_eq!(counts(), (0, 2, 2), "replaced");
        vfs.unlink(&root, "b").unwrap();
        vfs.mkdir(&root, "d", 0o700).unwrap();
        vfs.rmdir(&root, "d").unwrap();
        assert_eq!(counts(), empty, "removed");
    }
}

#[test]
fn a_directory_that_was_not_replaced_takes_names() {
    let fs = MemFs::with_limits(0, 4);
    let vfs = Vfs::new(fs.clone()).unwrap();
    let root = vfs.context(Credentials::root());
    vfs.mkdir(&root, "a", 0o700).unwrap();
    vfs.mkdir(&root, "b", 0o700).unwrap();
    vfs.create(&root, "last", 0o600).unwrap();
    let (at, whiteout) = (root.root(), RenameFlags::WHITEOUT);
    let refused = vfs.renameat2(&root, (at, "a"), (at, "b"), whiteout);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    vfs.unlink(&root, "last").unwrap();
    vfs.create(&root, "b/x", 0o600).unwrap();
}

#[test]
fn of_two_who_close_a_file_at_once_one_is_the_last() {
    let fs = MemFs::with_limits(4096, 2);
    let vfs = Vfs::new(fs.clone()).unwrap();
    let root = vfs.context(Credentials::root());
    let how = OpenFlags::READ | OpenFlags::WRITE;
    for round in 0..1000 {
        let first = vfs.open(&root, "f", (how | OpenFlags::CREATE).mode(0o600));
        let first = first.unwrap();
        let second = vfs.open(&root, "f", how).unwrap();
        first.write_at(b"all there is", 0).unwrap();
        let both = Barrier::new(3);
        thread::scope(|scope| {
            for file in [first, second] {
                let both = &both;
                scope.spawn(move || {
                    both.wait();
                    drop(file);
                });
            }
            both.wait();
            vfs.unlink(&root, "f").unwrap();
        });
        assert_eq!((fs.bytes(), fs.inodes()), (0, 1), "round {round}");
    }
}

#[test]
fn limits_and_their_defaults_are_those_of_tmpfs() {
    let memory = 1 << 30;
    let of = |fs: &MemFs| {
        let vfs = Vfs::new(fs.clone()).unwrap();
        let statfs = vfs.statfs(&vfs.context(Credentials::root()), "/").unwrap();
        (statfs.blocks, statfs.files)
    };
    let fs = MemFs::builder().as_tmpfs(memory).build();
    assert_eq!(of(&fs), ((512 << 20) / 4096, 128 << 10), "the defaults");
    for (size, inodes) in [("4097", "11"), ("3m", "2k"), ("0", "0"), ("7%", "1")] {
        let bytes = limits::size(size, memory).unwrap();
        let nodes = limits::inodes(inodes).unwrap();
        let fs = MemFs::with_limits(bytes, nodes);
        assert_eq!(of(&fs), (bytes.div_ceil(4096), nodes), "{size}, {inodes}");
    }
}

#[test]
fn statfs_follows_the_usage() {
    let fs = MemFs::with_limits(100 * 4096, 10);
    let vfs = Vfs::new(fs).unwrap();
    let root = vfs.context(Credentials::root());
    let free = || {
        let statfs = vfs.statfs(&root, "/").unwrap();
        assert_eq!(statfs.blocks_free, statfs.blocks_available);
        assert_eq!(
            (statfs.block_size, statfs.blocks, statfs.files),
            (4096, 100, 10)
        );
        (statfs.blocks_free, statfs.files_free)
    };
    assert_eq!(free(), (100, 9));
    let how = OpenFlags::WRITE | OpenFlags::CREATE;
    let open = vfs.open(&root, "f", how.mode(0o600)).unwrap();
    assert_eq!(free(), (100, 8), "an empty file");
    open.write_at(&[1; 40 * 4096], 0).unwrap();
    assert_eq!(free(), (60, 8), "40 pages");
    let more = open.write_at(&[1; 80 * 4096], 40 * 4096).unwrap();
    assert_eq!((more, free()), (60 * 4096, (0, 8)), "all there is");
    let refused = open.write_at(b"more", 100 * 4096);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    vfs.unlink(&root, "f").unwrap();
    assert_eq!(free(), (0, 8), "open");
    drop(open);
    assert_eq!(free(), (100, 9), "gone");
}

/// An inode that has left a small cache, and waits for those who may still be looking, keeps
/// nothing: its file is removed by another one.
#[test]
fn a_small_cache_does_not_keep_a_tree_full() {
    let fs = MemFs::with_limits(16 * 4096, 100);
    let small = Budget::default().inodes(8).dentries(8);
    let vfs = Vfs::with_budget(fs.clone(), small).unwrap();
    let root = vfs.context(Credentials::root());
    for n in 0..50 {
        vfs.create(&root, format!("other{n}"), 0o600).unwrap();
    }
    for round in 0..20 {
        let how = OpenFlags::WRITE | OpenFlags::CREATE;
        let file = vfs.open(&root, "f", how.mode(0o600)).unwrap();
        assert_eq!(
            file.write_at(&[1; 16 * 4096], 0).unwrap(),
            16 * 4096,
            "{round}"
        );
        drop(file);
        for n in 0..50 {
            vfs.stat(&root, format!("other{n}"), LookupFlags::empty())
                .unwrap();
        }
        vfs.unlink(&root, "f").unwrap();
        assert_eq!((fs.bytes(), fs.inodes()), (0, 51), "round {round}");
    }
}

#[test]
fn limits_change_as_those_of_tmpfs() {
    let fs = MemFs::with_limits(10 * 4096, 10);
    let big = fs.add(fs.root(), b"big", file(0o600)).unwrap();
    fs.write(big, &[1; 5 * 4096]).unwrap();
    let set = |pages: Option<u64>, inodes| {
        let set = fs.set_limits(pages.map(|pages| pages * 4096), inodes);
        set.map_err(|err| err.errno())
    };
    let in_use = Err(Error::NoSpace.errno());
    assert_eq!(set(Some(4), Some(5)), in_use);
    assert_eq!(set(Some(20), Some(1)), in_use, "both or neither");
    assert!(fs.write(big, &[1; 11 * 4096]).is_err(), "the old limit");
    fs.write(big, &[1; 5 * 4096]).unwrap();
    assert_eq!(set(Some(5), Some(2)), Ok(()), "what is in use fits");
    assert!(fs.write(big, &[1; 6 * 4096]).is_err());
    assert!(fs.add(fs.root(), b"more", file(0o600)).is_err());
    assert_eq!(set(None, Some(3)), Ok(()));
    fs.add(fs.root(), b"more", file(0o600)).unwrap();
    assert_eq!(set(Some(0), None), Ok(()), "no limit");
    fs.write(big, &[1; 30 * 4096]).unwrap();
    assert_eq!(
        set(Some(99), Some(9)),
        Err(Error::Invalid.errno()),
        "too late"
    );
}
