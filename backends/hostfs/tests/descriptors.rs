//! Calls in a process that may open few files. A test binary of its own: the limit is the whole
//! process's.

mod common;

use std::fs::{self, File};
use std::sync::{Mutex, MutexGuard};

use common::birthless::Birthless;
use common::{AN_HOUR, Scratch};
use rcuwalk::{Budget, Credentials, Error, LookupFlags, OpenFlags, Vfs};
use rcuwalk_hostfs::{Actor, HostFs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DIRECTORIES: usize = 300;
const LIMIT: u64 = 64;

/// Lets this process open few files. One test at a time.
fn limited() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(LIMIT);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    alone
}

/// MEM-1: directories give their descriptors back when a walk needs some, those in use as
/// well, and only open files can use the descriptors up.
#[test]
fn a_walk_needs_few_descriptors() {
    let _alone = limited();
    let tree = Scratch::new(AN_HOUR, |root| {
        for i in 0..DIRECTORIES {
            fs::create_dir(root.join(format!("d{i}"))).unwrap();
            fs::write(root.join(format!("d{i}/file")), b"x").unwrap();
        }
    });
    // A budget that never evicts by itself: the host's limit does.
    let plenty = Budget::default()
        .dentries(1 << 20)
        .inodes(1 << 20)
        .bytes(1 << 30)
        .fds(1 << 20);
    let vfs = Vfs::with_budget(HostFs::new(tree.host("")).unwrap(), plenty).unwrap();
    let ctx = vfs.context(Credentials::root());

    let mut buf = [0; 1];
    for round in 0..2 {
        for i in 0..DIRECTORIES {
            let file = vfs
                .open(&ctx, format!("/d{i}/file"), OpenFlags::READ)
                .unwrap_or_else(|err| panic!("MEM-1: round {round}, directory {i}: {err}"));
            assert_eq!(file.read_at(&mut buf, 0).unwrap(), 1);
            assert_eq!(vfs.read_dir(&ctx, format!("/d{i}")).unwrap().count(), 1);
        }
    }

    let find = |i| vfs.lookup(&ctx, format!("/d{i}"), LookupFlags::DIRECTORY);
    let held: Vec<_> = (0..DIRECTORIES)
        .map(|i| find(i).unwrap_or_else(|err| panic!("MEM-1: directory {i} is held: {err}")))
        .collect();
    for dir in held {
        let ctx = vfs.context(Credentials::root()).with_cwd(dir);
        let file = vfs.open(&ctx, "file", OpenFlags::READ);
        let file = file.unwrap_or_else(|err| panic!("MEM-1: {err}"));
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 1);
    }

    let open = |i| vfs.open(&ctx, format!("/d{i}/file"), OpenFlags::READ);
    let mut files = Vec::new();
    let refused = (0..DIRECTORIES).find_map(|i| open(i).map(|file| files.push(file)).err());
    assert!(
        matches!(refused, Some(Error::TooManyOpenFiles)),
        "MEM-1: {refused:?}"
    );
    assert!(
        files.len() as u64 > LIMIT / 2,
        "MEM-1: only {} fitted",
        files.len()
    );
    drop(files);
    assert!(
        open(DIRECTORIES - 1).is_ok(),
        "MEM-1: what is let go can be used again"
    );
}

/// MEM-1: a directory that cannot be held for want of descriptors is not made, also where a new one
/// cannot be told from others, and is left where it is.
#[test]
fn nothing_is_made_without_a_descriptor_for_it() {
    let _alone = limited();
    let Some(host) = Birthless::mount() else {
        return;
    };
    for actor in [Actor::Daemon, Actor::Caller] {
        let vfs = host.vfs(actor);
        let ctx = vfs.context(Credentials::root());
        let path = format!("/{actor:?}");
        let mut files = Vec::new();
        let refused = loop {
            files.extend(std::iter::from_fn(|| File::open("/").ok()));
            match vfs.mkdir(&ctx, &path, 0o700) {
                // Those of a `Vfs` that has been dropped may come free meanwhile.
                Ok(_) => vfs.rmdir(&ctx, &path).unwrap(),
                Err(refused) => break refused,
            }
        };
        let is_there = host.shared().join(&path[1..]).exists();
        assert!(
            matches!(refused, Error::TooManyOpenFiles),
            "MEM-1: {refused}"
        );
        assert!(!is_there, "MEM-1: half made");
        files.pop();
        let made = vfs.mkdir(&ctx, &path, 0o700);
        drop(files);
        assert!(made.is_ok(), "MEM-1: {made:?}");
    }
}
