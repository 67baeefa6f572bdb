//! Records of directories without a file system around them.

use super::*;
use std::path::Path;

fn open(path: &Path) -> (Pin, Stat) {
    let pin = Pin::uncounted(host::open_root(path).unwrap());
    let stat = host::stat_fd(pin.fd()).unwrap();
    (pin, stat)
}

/// A directory below no other, in the queue of `among`.
fn dir(among: &Arc<Dirs>, path: &Path, mut stat: Stat) -> Arc<Dir> {
    let pin = open(path).0;
    // As a file system tells it that records no times of birth.
    stat.attr.btime = Timestamp::default();
    let mount = Arc::new(HostMount {
        id: host_mount(stat.key),
        within: open(Path::new("/")).0,
        opens_handles: false,
    });
    let dir = Arc::new(Dir::new(among, &pin, &stat, None, mount));
    let mut slot = dir.slot_mut();
    slot.turn = among.enqueue(&dir);
    drop(slot);
    dir
}

/// HOST-1: where times of birth do not tell, the file handle does.
#[test]
fn a_number_that_is_used_again_is_told_apart_by_the_handle() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("d");
    let among = Arc::default();
    let mut told_apart = 0;
    for _ in 0..50 {
        std::fs::create_dir(&path).unwrap();
        let (pin, stat) = open(&path);
        let known = dir(&among, &path, stat);
        let turn = known.slot().turn;
        assert!(known.give_back(turn, false));
        assert!(known.compare(pin.fd()).is_ok(), "HOST-1: it is itself");
        drop(pin);
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let (pin, now) = open(&path);
        let has_handle = matches!(known.slot().handle, Handle::Is(_));
        if now.key == stat.key && has_handle {
            assert!(known.is(&now), "by its number and birth it could be");
            assert!(known.compare(pin.fd()).is_err(), "HOST-1: another one");
            assert!(known.is_replaced(), "HOST-1: and the inode is to go");
            told_apart += 1;
        }
        drop(pin);
        std::fs::remove_dir(&path).unwrap();
    }
    // Not every file system reuses inode numbers.
    eprintln!("{told_apart} numbers were used again");
}

/// MEM-1: a long chain of directories is dropped without recursion, and the queue does
/// not keep it.
#[test]
fn a_deep_chain_is_dropped() {
    let scratch = tempfile::tempdir().unwrap();
    let (pin, stat) = open(scratch.path());
    let among = Arc::default();
    let mut deepest = dir(&among, scratch.path(), stat);
    let mount = deepest.mount.clone();
    for _ in 0..200_000 {
        let above = Above {
            dir: deepest,
            name: b"d"[..].into(),
        };
        let new = Dir::new(&among, &pin, &stat, Some(above), mount.clone());
        deepest = Arc::new(new);
    }
    drop(deepest);
    assert_eq!(DescriptorCounts(among).kept(), 0, "MEM-1");
}
