//! Walks in a process that may open few files. A test binary with one test: the limit
//! is the whole process's.

mod common;

use std::fs;

use common::{AN_HOUR, Scratch};
use rcuwalk::{Budget, Credentials, Error, LookupFlags, OpenFlags, Vfs};
use rcuwalk_hostfs::HostFs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DIRECTORIES: usize = 300;
const LIMIT: u64 = 64;

/// MEM-1: directories give their descriptors back when a walk needs some, those in use as
/// well, and only open files can use the descriptors up.
#[test]
fn a_walk_needs_few_descriptors() {
    let tree = Scratch::new(AN_HOUR, |root| {
        for i in 0..DIRECTORIES {
            fs::create_dir(root.join(format!("d{i}"))).unwrap();
            fs::write(root.join(format!("d{i}/file")), b"x").unwrap();
        }
    });
    // A budget that never evicts by itself: the host's limit does.
    let plenty = Budget {
        dentries: 1 << 20,
        inodes: 1 << 20,
        bytes: 1 << 30,
        fds: 1 << 20,
    };
    let vfs = Vfs::with_budget(HostFs::new(tree.host("")).unwrap(), plenty).unwrap();
    let ctx = vfs.context(Credentials::root());
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(LIMIT),
            maximum: hard,
        },
    )
    .unwrap();

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
