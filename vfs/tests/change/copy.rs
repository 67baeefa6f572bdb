//! Copying from one open file to another, beside copy_file_range(2) on tmpfs.

use std::fs::{self, File};
use std::path::Path;

use rcuwalk::{Credentials, LookupFlags, OpenFlags, Result, SetAttr, Vfs};
use rcuwalk_memfs::MemFs;
use rustix::fs::OFlags;

const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;
const BOTH: OpenFlags = READ.union(WRITE);

/// So long that a part of it overlaps with another in every way.
fn bytes() -> Vec<u8> {
    (0..4_000_u32).map(|n| (n / 3) as u8).collect()
}

fn vfs() -> Vfs {
    let vfs = Vfs::new(MemFs::new()).unwrap();
    let root = vfs.context(Credentials::root());
    let new = (WRITE | OpenFlags::CREATE).mode(0o644);
    for (name, contents) in [("a", bytes()), ("b", b"0123456789".into())] {
        let file = vfs.open(&root, name, new).unwrap();
        assert_eq!(file.write_at(&contents, 0).unwrap(), contents.len());
    }
    vfs.mkdir(&root, "dir", 0o755).unwrap();
    vfs
}

/// A fresh copy of the same tree on a tmpfs, if there is one.
fn host() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    fs::write(dir.path().join("a"), bytes()).unwrap();
    fs::write(dir.path().join("b"), "0123456789").unwrap();
    fs::create_dir(dir.path().join("dir")).unwrap();
    dir
}

/// The file to open, and how; one name twice opens one file twice.
type Side = (&'static str, OpenFlags);

fn by_vfs(vfs: &Vfs, from: Side, to: Side, (at, to_at, len): (u64, u64, u64)) -> Result<u64> {
    let ctx = vfs.context(Credentials::root());
    let open = |(name, flags): Side| vfs.open(&ctx, name, flags.mode(0)).unwrap();
    open(from).copy_file_range(at, &open(to), to_at, len)
}

fn by_host(dir: &Path, from: Side, to: Side, (at, to_at, len): (u64, u64, u64)) -> i64 {
    let open = |(name, flags): Side| {
        let mut how = match (flags.contains(READ), flags.contains(WRITE)) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        how.set(OFlags::APPEND, flags.contains(OpenFlags::APPEND));
        how.set(OFlags::PATH, flags.contains(OpenFlags::PATH));
        File::from(rustix::fs::open(dir.join(name), how, 0.into()).unwrap())
    };
    let (from, to) = (open(from), open(to));
    let (mut at, mut to_at) = (at, to_at);
    let len = usize::try_from(len).unwrap();
    match rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), len) {
        Ok(copied) => copied as i64,
        Err(errno) => -i64::from(errno.raw_os_error()),
    }
}

fn contents(vfs: &Vfs, name: &str) -> Vec<u8> {
    let ctx = vfs.context(Credentials::root());
    let open = vfs.open(&ctx, name, READ.mode(0)).unwrap();
    let mut all = vec![0; usize::try_from(open.attr().size).unwrap()];
    let mut read = 0;
    while read < all.len() {
        read += open.read_at(&mut all[read..], read as u64).unwrap();
    }
    all
}

/// EDGE-1: every pair of files, ways of opening and ranges has the result of the kernel.
#[test]
fn copies_are_those_of_the_kernel() {
    let sides: [Side; 8] = [
        ("a", BOTH),
        ("a", READ),
        ("b", BOTH),
        ("b", WRITE),
        ("b", WRITE | OpenFlags::APPEND),
        ("a", OpenFlags::PATH),
        ("dir", READ),
        ("b", READ),
    ];
    let end = i64::MAX as u64;
    let ranges = [
        (0, 0, 10),
        (0, 0, 0),
        (5, 0, 100),
        (0, 5, 5),
        (0, 5, 6),
        (3, 4_100, 3_000),
        (0, 2_000, 2_000),
        (0, 2_000, 2_001),
        (3_999, 0, 1000),
        (4_000, 0, 1000),
        (5_000, 3, 1000),
        (0, 20_000, 400_000),
        (0, end, 1),
        (0, end - 1, 0),
        (end, 0, 5),
        (end + 1, 0, 5),
        (0, end + 1, 5),
        (u64::MAX, 0, 0),
        (u64::MAX, 0, 5),
        (0, u64::MAX - 3, 5),
    ];
    for from in sides {
        for to in sides {
            for range in ranges {
                let (vfs, dir) = (vfs(), host());
                let ours = match by_vfs(&vfs, from, to, range) {
                    Ok(copied) => copied as i64,
                    Err(err) => -i64::from(err.errno()),
                };
                let hosts = by_host(dir.path(), from, to, range);
                assert_eq!(ours, hosts, "EDGE-1: {from:?} to {to:?}, {range:?}");
                for name in ["a", "b"] {
                    let same = contents(&vfs, name) == fs::read(dir.path().join(name)).unwrap();
                    assert!(same, "EDGE-1: {name} after {from:?} to {to:?}, {range:?}");
                }
            }
        }
    }
}

/// More than is read and written at a time, with a hole in front of it.
#[test]
fn a_long_copy_is_whole() {
    let vfs = vfs();
    let root = vfs.context(Credentials::root());
    let open = |name: &str| {
        let flags = BOTH | OpenFlags::CREATE;
        vfs.open(&root, name, flags.mode(0o644)).unwrap()
    };
    let (from, to) = (open("long"), open("copy"));
    let data: Vec<u8> = (0..400_000_u32).map(|n| (n / 3) as u8).collect();
    from.write_at(&data, 0).unwrap();
    assert_eq!(
        from.copy_file_range(1, &to, 10_000, u64::MAX >> 2).unwrap(),
        399_999
    );
    let copy = contents(&vfs, "copy");
    assert!(copy[..10_000].iter().all(|byte| *byte == 0) && copy[10_000..] == data[1..]);
}

/// Like write(2), a copy clears set-id bits of the file it changes.
#[test]
fn a_copy_takes_set_id_bits_away() {
    let vfs = vfs();
    let root = vfs.context(Credentials::root());
    let change = SetAttr::default().mode(0o4777);
    vfs.setattr(&root, "b", &change, LookupFlags::default())
        .unwrap();
    let other = root.with_credentials(Credentials::user(1000, 1000));
    let from = vfs.open(&other, "a", READ.mode(0)).unwrap();
    let to = vfs.open(&other, "b", WRITE.mode(0)).unwrap();
    assert_eq!(from.copy_file_range(0, &to, 0, 4).unwrap(), 4);
    assert_eq!(to.attr().mode, 0o777);
}

/// EDGE-1: another file system is none to copy to.
#[test]
fn a_copy_stays_in_its_file_system() {
    let (one, other) = (vfs(), vfs());
    let open = |vfs: &Vfs, flags: OpenFlags| {
        let ctx = vfs.context(Credentials::root());
        vfs.open(&ctx, "b", flags.mode(0)).unwrap()
    };
    let refused = open(&one, READ).copy_file_range(0, &open(&other, WRITE), 0, 4);
    assert_eq!(refused.unwrap_err().errno(), libc_exdev(), "EDGE-1");
}

fn libc_exdev() -> i32 {
    rustix::io::Errno::XDEV.raw_os_error()
}
