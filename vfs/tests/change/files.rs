//! Opening, reading and writing, each beside the running kernel's tmpfs.

use crate::common::beside::{ANN, BOB, EVE, KEEPER, Op, ROOT, Who, With, compare};
use rcuwalk::{OpenFlags as Open, XattrFlags};

const RW: Open = Open::READ.union(Open::WRITE);
const NEW: Open = RW.union(Open::CREATE);

fn open(path: &'static str, flags: Open) -> Op {
    Op::Open(path, flags, 0o644, 0, vec![])
}

fn with(path: &'static str, flags: Open, with: &[With]) -> Op {
    Op::Open(path, flags, 0o644, 0, with.to_vec())
}

/// A little of everything, as root.
fn tree() -> Vec<(Who, Op)> {
    let write = vec![With::Write(0, b"contents")];
    [
        Op::Mkdir("dir", 0o755),
        Op::Mkdir("closed", 0o700),
        Op::Mkdir("open", 0o777),
        Op::Mkdir("sticky", 0o1777),
        Op::Open("file", NEW, 0o644, 0, write.clone()),
        Op::Open("secret", NEW, 0o600, 0, write.clone()),
        Op::Open("theirs", NEW, 0o666, 0, write.clone()),
        Op::Open("open/ann", NEW, 0o640, 0, write),
        Op::Chown("open/ann", Some(1000), Some(1001)),
        Op::Symlink("file", "link"),
        Op::Symlink("open/new", "dangling"),
        Op::Symlink("open/slash/", "slashed"),
        Op::Symlink("loop", "loop"),
        Op::Symlink("dir", "dirlink"),
        Op::Symlink("dangling", "twice"),
        Op::Fifo("fifo"),
    ]
    .map(|op| (ROOT, op))
    .into()
}

/// EDGE-1: for every pair of flags, on a file of every kind and on a missing one, each user
/// gets the result of open(2).
#[test]
fn flags_mean_what_they_mean_to_open() {
    let flags = [
        Open::READ,
        Open::WRITE,
        RW | Open::CREATE,
        Open::READ | Open::CREATE,
        NEW | Open::EXCL,
        RW | Open::TRUNC,
        Open::READ | Open::TRUNC,
        Open::WRITE | Open::APPEND,
        RW | Open::NOFOLLOW,
        NEW | Open::NOFOLLOW,
        Open::READ | Open::DIRECTORY,
        Open::READ | Open::DIRECTORY | Open::NOFOLLOW,
        RW | Open::DIRECTORY,
        NEW | Open::DIRECTORY,
        Open::PATH,
        Open::PATH | Open::NOFOLLOW,
        Open::PATH | Open::DIRECTORY,
        Open::PATH | Open::CREATE,
        Open::READ | Open::NOATIME,
        RW | Open::TMPFILE,
        RW | Open::TMPFILE | Open::EXCL,
        RW | Open::TMPFILE | Open::NOFOLLOW,
        Open::READ | Open::TMPFILE,
        NEW | Open::TMPFILE,
        Open::WRITE | Open::SYNC,
    ];
    let paths = [
        "dir",
        "dir/",
        "dir/.",
        "dir/..",
        "closed",
        "open",
        "sticky",
        "file",
        "file/",
        "file/x",
        "secret",
        "theirs",
        "open/ann",
        "link",
        "link/",
        "dangling",
        "dangling/",
        "slashed",
        "loop",
        "loop/x",
        "dirlink",
        "dirlink/",
        "twice",
        "dir/new",
        "dir/new/",
        "closed/new",
        "open/made",
        "missing/new",
        ".",
    ];
    let mut script = tree();
    for who in [ANN, ROOT, KEEPER] {
        for flags in flags {
            for path in paths {
                // A fifo has no other end here.
                script.push((who, open(path, flags)));
            }
        }
        script.extend(
            ["file", "theirs", "open/ann", "open/new", "open/made"]
                .map(|path| (who, Op::Stat(path))),
        );
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: a new file is open as its creator requested, whatever its permission bits; they are
/// the requested ones, less the umask.
#[test]
fn a_new_file_is_open_whatever_its_mode() {
    let written = vec![With::Write(0, b"x"), With::Read(0, 9)];
    let mut script = tree();
    for (path, mode, umask) in [
        ("open/a", 0o000, 0),
        ("open/b", 0o444, 0),
        ("open/c", 0o777, 0o022),
        ("open/d", 0o7777, 0o077),
        ("open/e", 0o6755, 0o777),
    ] {
        script.push((ANN, Op::Open(path, NEW, mode, umask, written.clone())));
        script.push((ANN, Op::Stat(path)));
        script.push((ANN, open(path, RW)));
    }
    script.push((ROOT, Op::Chown("open", None, Some(4000))));
    script.push((ROOT, Op::Chmod("open", 0o2777)));
    for (who, path) in [(ANN, "open/f"), (ROOT, "open/g")] {
        script.push((who, Op::Open(path, NEW, 0o6755, 0, vec![])));
        script.push((who, Op::Stat(path)));
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: the rights of an open file were decided when it was opened.
#[test]
fn files_are_read_and_written_as_they_were_opened() {
    let all = [
        With::Read(0, 4),
        With::Read(4, 100),
        With::Read(8, 4),
        With::Read(1 << 40, 4),
        With::Read(i64::MAX as u64, 0),
        With::Read(i64::MAX as u64, 1),
        With::Read(u64::MAX, 4),
        With::Write(2, b"XY"),
        With::Write(3, b""),
        With::Write(i64::MAX as u64, b"x"),
        With::Write(u64::MAX, b"x"),
        With::Read(0, 100),
        With::SetLen(3),
        With::SetLen(6),
        With::SetLen(u64::MAX),
        With::Read(0, 100),
        With::Sync,
        With::Chmod(0o640),
        With::List,
        With::GetXattr("user.none"),
        With::SetXattr("user.some", b"1".to_vec()),
        With::GetXattr("user.some"),
        With::GetXattr(""),
        With::SeekData(0),
        With::Allocate(0, 0, 10),
    ];
    let mut script = tree();
    for who in [ROOT, ANN] {
        for path in ["file", "theirs", "open/ann", "dir", "open"] {
            for flags in [
                Open::READ,
                Open::WRITE,
                RW,
                RW | Open::APPEND,
                RW | Open::TRUNC,
                Open::PATH,
            ] {
                script.push((who, with(path, flags, &all)));
                script.push((who, Op::Stat(path)));
            }
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: combinations of fallocate(2)'s modes, and of ranges.
#[test]
fn space_is_allocated_as_asked() {
    const MAX: u64 = i64::MAX as u64;
    let mut all = vec![With::Write(0, b"some contents")];
    for how in [0, 1, 2, 3, 18, 19, 1 << 20] {
        for (offset, len) in [(2, 3), (0, 0), (5, 0), (4096, 4096), (MAX, 1), (MAX - 4, 4)] {
            // tmpfs would try to take 8 EiB.
            if offset != MAX - 4 || how & 2 != 0 {
                all.push(With::Allocate(how, offset, len));
            }
        }
        all.push(With::Read(0, 20));
    }
    let mut script = tree();
    for (path, flags) in [
        ("file", RW),
        ("file", Open::READ),
        ("file", RW | Open::APPEND),
        ("dir", Open::READ),
        ("file", Open::PATH),
    ] {
        script.push((ROOT, with(path, flags, &all)));
        script.push((ROOT, Op::Stat(path)));
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: data and holes.
#[test]
fn holes_are_found() {
    const FAR: u64 = 1 << 20;
    let mut all = vec![With::Write(0, b"start"), With::Write(FAR, b"end")];
    for at in [0, 4, 5, 4096, FAR - 1, FAR, FAR + 2, FAR + 3, 1 << 40] {
        all.extend([With::SeekData(at), With::SeekHole(at)]);
    }
    let tail = [
        With::SetLen(2 * FAR),
        With::SeekData(FAR + 4096),
        With::SeekHole(FAR),
    ];
    all.extend(tail);
    let mut script = tree();
    for (path, flags) in [
        ("theirs", RW),
        ("theirs", Open::READ),
        ("theirs", Open::WRITE),
        ("theirs", Open::PATH),
    ] {
        script.push((ANN, with(path, flags, &all)));
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: a write or truncation clears the set-id bits if the caller has no right to keep
/// them, and always removes file capabilities.
#[test]
fn privileges_are_lost_by_writing() {
    const CAPABILITY: &str = "security.capability";
    let mut value = vec![0; 20];
    value[3] = 2;
    let create = XattrFlags::empty().bits();
    let mut script = tree();
    for who in [ROOT, ANN, BOB, EVE] {
        for mode in [0o6777, 0o4666, 0o2666, 0o2676, 0o6776] {
            for what in [
                with("theirs", RW, &[With::Write(0, b"x")]),
                with("theirs", RW, &[With::Write(0, b"")]),
                with("theirs", RW, &[With::SetLen(1)]),
                with("theirs", RW, &[With::Read(0, 1)]),
                with("theirs", RW | Open::TRUNC, &[]),
                Op::Truncate("theirs", 3),
            ] {
                let chown = Op::Chown("theirs", Some(1000), Some(1001));
                script.push((ROOT, chown));
                script.push((ROOT, Op::Chmod("theirs", mode)));
                let set = Op::SetXattr("theirs", CAPABILITY, value.clone(), create);
                script.push((ROOT, set));
                script.push((who, what));
                script.push((ROOT, Op::Stat("theirs")));
                script.push((ROOT, Op::ListXattrs("theirs")));
            }
        }
    }
    compare("EDGE-1", &script);
}
