//! Every call of a back end fails once, in turn: the caller gets the error, the caches
//! say afterwards what the back end says, and nothing leaks.
//!
//! EDGE-1, MEM-1.

use std::collections::BTreeMap;

use rcuwalk::{
    Access, Allocate, Attr, Context, Credentials, Error, File, FileSystem, FileType, Freshness,
    InodeFlags, LookupFlags, MountFlags, OpenFlags, RenameFlags, Result, SetTime, Timestamp, Vfs,
    XattrFlags,
};
use rcuwalk_conformance::faulty::{Fault, Faults, FaultyFs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;

const FOLLOW: LookupFlags = LookupFlags::FOLLOW;

/// What the steps share: the tree, and files that they leave open.
struct World {
    vfs: Vfs,
    ctx: Context,
    open: Option<File>,
    nameless: Option<File>,
}

impl World {
    fn new(fs: impl FileSystem) -> World {
        let vfs = Vfs::new(fs).unwrap();
        let ctx = vfs.context(Credentials::root()).with_umask(0o022);
        // So that looking changes nothing.
        vfs.remount(&ctx, "/", MountFlags::NO_ATIME).unwrap();
        World {
            vfs,
            ctx,
            open: None,
            nameless: None,
        }
    }

    fn open(&self, path: &str, flags: OpenFlags) -> Result<File> {
        self.vfs.open(&self.ctx, path, flags.mode(0o644))
    }
}

type Step = fn(&mut World) -> Result<()>;

/// One of everything; each step works on what those before it have left, and may be done
/// again if it failed.
const STEPS: &[(&str, Step)] = &[
    ("mkdir", |w| w.vfs.mkdir(&w.ctx, "/d", 0o777).map(drop)),
    ("mkdir below", |w| {
        w.vfs.mkdir(&w.ctx, "/d/e", 0o777).map(drop)
    }),
    ("mkdir to go", |w| {
        w.vfs.mkdir(&w.ctx, "/d/e/gone", 0o777).map(drop)
    }),
    ("default ACL", |w| {
        w.vfs.set_xattr(
            &w.ctx,
            "/d/e",
            "system.posix_acl_default",
            &acl(0o7),
            XattrFlags::empty(),
            FOLLOW,
        )
    }),
    ("create", |w| {
        w.vfs.create(&w.ctx, "/d/file", 0o666).map(drop)
    }),
    ("create where an ACL is handed down", |w| {
        w.vfs.create(&w.ctx, "/d/e/heir", 0o666).map(drop)
    }),
    ("open to write", |w| {
        w.open = Some(w.open(
            "/d/open",
            OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
        )?);
        Ok(())
    }),
    ("write", |w| {
        write(w, &[7; 10_000], 100)?;
        write(w, b"far away", 100_000)
    }),
    ("read", |w| {
        let mut buf = [0; 64];
        file(w)?.read_at(&mut buf, 100).map(drop)
    }),
    ("seek", |w| file(w)?.seek_data(0).map(drop)),
    ("punch", |w| {
        let hole = Allocate::PUNCH_HOLE | Allocate::KEEP_SIZE;
        file(w)?.allocate(hole, 4096, 4096)
    }),
    ("sync", |w| file(w)?.sync(false)),
    ("truncate", |w| file(w)?.set_len(50_000)),
    ("truncate by name", |w| {
        w.vfs.truncate(&w.ctx, "/d/open", 40_000)
    }),
    ("symlink", |w| {
        w.vfs.symlink(&w.ctx, "d/file", "/link").map(drop)
    }),
    ("follow", |w| w.vfs.stat(&w.ctx, "/link", FOLLOW).map(drop)),
    ("readlink", |w| w.vfs.read_link(&w.ctx, "/link").map(drop)),
    ("mknod", |w| {
        w.vfs
            .mknod(&w.ctx, "/d/fifo", FileType::Fifo, 0o600, 0)
            .map(drop)
    }),
    ("link", |w| {
        w.vfs.link(&w.ctx, "/d/file", "/d/second").map(drop)
    }),
    ("chmod", |w| w.vfs.chmod(&w.ctx, "/d/file", 0o4750)),
    ("chown", |w| {
        w.vfs.chown(&w.ctx, "/d/file", Some(5), Some(6), FOLLOW)
    }),
    ("times", |w| {
        let then = SetTime::To(Timestamp { sec: 1, nsec: 2 });
        w.vfs
            .utimens(&w.ctx, "/d/file", Some(then), Some(then), FOLLOW)
    }),
    ("set an attribute", |w| {
        let how = XattrFlags::empty();
        w.vfs
            .set_xattr(&w.ctx, "/d/file", "user.a", b"value", how, FOLLOW)
    }),
    ("set an ACL", |w| {
        let (name, how) = ("system.posix_acl_access", XattrFlags::empty());
        w.vfs
            .set_xattr(&w.ctx, "/d/second", name, &acl(0o5), how, FOLLOW)
    }),
    ("access by ACL", |w| {
        let other = w.ctx.clone().with_credentials(Credentials::user(77, 77));
        w.vfs.access(&other, "/d/file", Access::READ, FOLLOW)
    }),
    ("list attributes", |w| {
        w.vfs.list_xattrs(&w.ctx, "/d/file", FOLLOW).map(drop)
    }),
    ("get an attribute", |w| {
        w.vfs
            .get_xattr(&w.ctx, "/d/file", "user.a", FOLLOW)
            .map(drop)
    }),
    ("remove an attribute", |w| {
        w.vfs.remove_xattr(&w.ctx, "/d/file", "user.a", FOLLOW)
    }),
    ("rename", |w| w.vfs.rename(&w.ctx, "/d/second", "/d/moved")),
    ("rename over", |w| {
        w.vfs.rename(&w.ctx, "/d/e/heir", "/d/moved")
    }),
    ("rename a directory", |w| {
        w.vfs.rename(&w.ctx, "/d/e", "/elsewhere")
    }),
    ("exchange", |w| {
        let root = w.vfs.root();
        let flags = RenameFlags::EXCHANGE;
        w.vfs
            .renameat2(&w.ctx, (&root, "link"), (&root, "elsewhere/gone"), flags)
    }),
    ("exchange back", |w| {
        let root = w.vfs.root();
        let flags = RenameFlags::EXCHANGE;
        w.vfs
            .renameat2(&w.ctx, (&root, "link"), (&root, "elsewhere/gone"), flags)
    }),
    ("rmdir", |w| w.vfs.rmdir(&w.ctx, "/elsewhere/gone")),
    ("a file without a name", |w| {
        w.nameless = Some(w.open("/d", OpenFlags::TMPFILE | OpenFlags::WRITE)?);
        Ok(())
    }),
    ("a name for it", |w| {
        let place = w
            .nameless
            .as_ref()
            .ok_or(Error::BadDescriptor)?
            .path()
            .clone();
        let root = w.vfs.root();
        w.vfs
            .linkat(
                &w.ctx,
                (&place, ""),
                (&root, "named"),
                LookupFlags::EMPTY_PATH,
            )
            .map(drop)
    }),
    ("truncate by opening", |w| {
        w.open("/d/open", OpenFlags::WRITE | OpenFlags::TRUNC)
            .map(drop)
    }),
    ("list", |w| {
        w.vfs
            .read_dir(&w.ctx, "/d")?
            .try_for_each(|entry| entry.map(drop))
    }),
    ("immutable", |w| {
        w.vfs.set_flags(&w.ctx, "/named", InodeFlags::IMMUTABLE)?;
        w.vfs.set_flags(&w.ctx, "/named", InodeFlags::empty())
    }),
    ("statfs", |w| w.vfs.statfs(&w.ctx, "/").map(drop)),
    ("unlink", |w| w.vfs.unlink(&w.ctx, "/d/open")),
    ("unlinked and written", |w| write(w, b"still here", 0)),
];

/// Every name that a step may have made, anywhere.
const NAMES: [&str; 14] = [
    "d",
    "e",
    "gone",
    "file",
    "heir",
    "open",
    "link",
    "fifo",
    "second",
    "moved",
    "elsewhere",
    "named",
    "none",
    "x",
];

fn file(w: &World) -> Result<&File> {
    w.open.as_ref().ok_or(Error::BadDescriptor)
}

fn write(w: &World, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = file(w)?.write_at(bytes, offset)?;
        assert!(written > 0, "a write that does nothing");
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// An ACL that gives user 77 read access, and the mask `mask`.
fn acl(mask: u16) -> Vec<u8> {
    rcuwalk_testkit::acl(&format!("u::6 u:77:4 g::4 m::{mask} o::0"))
}

/// All attributes of a name.
#[derive(Debug, PartialEq)]
struct Snapshot {
    attr: Attr,
    target: Option<Box<[u8]>>,
    contents: Option<Vec<u8>>,
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

/// The whole tree, by listing and by name.
fn tree(vfs: &Vfs) -> BTreeMap<String, Snapshot> {
    let ctx = vfs.context(Credentials::root());
    vfs.remount(&ctx, "/", MountFlags::NO_ATIME).unwrap();
    let mut tree = BTreeMap::new();
    look(vfs, &ctx, String::new(), &mut tree);
    tree
}

fn look(vfs: &Vfs, ctx: &Context, dir: String, tree: &mut BTreeMap<String, Snapshot>) {
    let listing = vfs.read_dir(ctx, format!("{dir}/")).unwrap();
    let mut listed: Vec<_> = listing
        .map(|entry| String::from_utf8(entry.unwrap().name.into_vec()).unwrap())
        .collect();
    listed.sort();
    for name in NAMES {
        let found = vfs.stat(ctx, format!("{dir}/{name}"), LookupFlags::empty());
        let is_listed = listed.iter().any(|listed| listed == name);
        assert_eq!(
            found.is_ok(),
            is_listed,
            "{dir}/{name}: {found:?}, but listed: {is_listed}"
        );
    }
    for name in listed {
        let path = format!("{dir}/{name}");
        let attr = vfs.stat(ctx, &path, LookupFlags::empty()).unwrap();
        let is = |kind| attr.kind == kind;
        let snapshot = Snapshot {
            attr: attr.dev(0),
            target: is(FileType::Symlink).then(|| vfs.read_link(ctx, &path).unwrap()),
            contents: is(FileType::Regular).then(|| {
                let file = vfs.open(ctx, &path, OpenFlags::READ).unwrap();
                let mut contents = vec![0; attr.size as usize + 1];
                let read = file.read_at(&mut contents, 0).unwrap();
                contents.truncate(read);
                contents
            }),
            xattrs: (vfs.list_xattrs(ctx, &path, LookupFlags::empty()).unwrap())
                .into_iter()
                .map(|name| {
                    let value = vfs.get_xattr(ctx, &path, &name, LookupFlags::empty());
                    (name, value.unwrap())
                })
                .collect(),
        };
        tree.insert(path.clone(), snapshot);
        if is(FileType::Directory) {
            look(vfs, ctx, path, tree);
        }
    }
}

/// Runs all steps; the call with the number `at` meets `fault`. Returns the name of the
/// call, or `None` if there were fewer.
fn run<F: FileSystem>(fs: impl Fn() -> F, at: u64, fault: Fault) -> Option<&'static str> {
    let (errno, is_done) = match fault {
        Fault::Fail(errno) => (errno, false),
        Fault::FailAfter(errno) => (errno, true),
        Fault::Delay(_) | Fault::Yield => panic!("{fault:?} is no failure"),
    };
    let faults = Faults::new();
    let mut world = World::new(FaultyFs::new(fs(), &faults));
    faults.at_call(at, fault);
    let mut met = None;
    for (name, step) in STEPS {
        let done = step(&mut world);
        let hit = met.is_none() && faults.met().is_some();
        if hit {
            met = faults.met();
            let call = met.unwrap_or_default();
            faults.none();
            let when = format!("{name}, where {call} (call {at}) meets {fault:?}");
            match done {
                Err(err) => assert_eq!(err.errno(), errno, "EDGE-1: {when}"),
                Ok(()) => panic!("EDGE-1: it succeeds: {when}"),
            }
            compare(&world, &fs, &when);
            if is_done && call == "rename" && name.starts_with("exchange") {
                // Once more would be once too often.
                continue;
            }
            match step(&mut world) {
                // What came before the call that failed had been done.
                Ok(()) | Err(Error::Exists) => {}
                // As had what the call was to do.
                Err(Error::NotFound | Error::NoData) if is_done => {}
                Err(err) => panic!("again: {err}: {when}"),
            }
        } else if let Err(err) = done {
            panic!("{name}, with call {at} failing ({met:?}): {err}");
        }
    }
    faults.none();
    let when = format!("the end, where call {at} met {fault:?}");
    compare(&world, &fs, &when);
    clean_up(world);
    met
}

fn compare<F: FileSystem>(world: &World, fs: &impl Fn() -> F, when: &str) {
    let fs = fs();
    let is_hosts = fs.name() == "hostfs";
    let fresh = Vfs::new(fs).unwrap();
    let (mut warm, mut cold) = (tree(&world.vfs), tree(&fresh));
    if is_hosts {
        // Access times are the host's affair, and blocks it may allocate later.
        for snapshot in warm.values_mut().chain(cold.values_mut()) {
            (snapshot.attr.atime, snapshot.attr.blocks) = Default::default();
        }
    }
    for path in warm.keys().chain(cold.keys()) {
        assert_eq!(
            warm.get(path),
            cold.get(path),
            "MEM-1: {path} in the caches and in the back end, after {when}"
        );
    }
}

fn clean_up(world: World) {
    let World {
        vfs,
        ctx,
        open,
        nameless,
    } = world;
    drop((open, nameless));
    let mut paths: Vec<_> = tree(&vfs).into_iter().collect();
    // Children first.
    paths.reverse();
    for (path, snapshot) in paths {
        match snapshot.attr.kind {
            FileType::Directory => vfs.rmdir(&ctx, path).unwrap(),
            _ => vfs.unlink(&ctx, path).unwrap(),
        }
    }
    drop(ctx);
    let mut left = (0, 0);
    until_freed(|| {
        vfs.drop_caches();
        let statistics = vfs.statistics();
        left = (statistics.inodes.0, statistics.dentries.0);
        left == (1, 0)
    });
    assert_eq!(left, (1, 0), "MEM-1: the root is left, and no name");
}

/// Names keep inodes until they are freed, and another test's thread may be the one that
/// frees a name.
fn until_freed(mut is_freed: impl FnMut() -> bool) {
    for _ in 0..1000 {
        rcuwalk_sync::rcu::barrier();
        if is_freed() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// How many nodes and bytes, once what has been let go of is freed.
fn left_in(fs: &MemFs) -> (usize, u64) {
    until_freed(|| (fs.len(), fs.bytes()) == (1, 0));
    (fs.len(), fs.bytes())
}

/// Calls that the steps make of every back end.
const CALLS: [&str; 22] = [
    "lookup",
    "create",
    "create_open",
    "open",
    "write_at",
    "read_at",
    "seek",
    "allocate",
    "sync",
    "setattr",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "tmpfile",
    "set_xattr",
    "get_xattr",
    "default_acl",
    "list_xattrs",
    "remove_xattr",
    "read_dir",
    "statfs",
];

/// Each call in turn, until there is none that `run` does not get past.
fn in_turn(mut run: impl FnMut(u64) -> Option<&'static str>) {
    let mut met = BTreeMap::new();
    for at in 1.. {
        match run(at) {
            Some(call) => *met.entry(call).or_insert(0) += 1,
            None => break,
        }
    }
    for call in CALLS {
        assert!(met.contains_key(call), "no {call} among {met:?}");
    }
}

/// One of several.
fn errno(at: u64) -> i32 {
    [libc::EIO, libc::ENOSPC, libc::EDQUOT][at as usize % 3]
}

fn on_memfs(fault: fn(i32) -> Fault) {
    in_turn(|at| {
        let fs = MemFs::new();
        let call = run(|| fs.clone(), at, fault(errno(at)));
        assert_eq!(left_in(&fs), (1, 0), "MEM-1: call {at}: {call:?}");
        call
    });
}

fn on_hostfs(fault: fn(i32) -> Fault) {
    in_turn(|at| {
        let dir = tempfile::tempdir().unwrap();
        let fs = || HostFs::new(dir.path()).unwrap();
        let fs = || fs().with_freshness(Freshness::Always);
        let call = run(fs, at, fault(errno(at)));
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "MEM-1: call {at}: {call:?}");
        call
    });
}

/// EDGE-1, MEM-1: on memfs, whichever call fails; nothing of it is left in the end.
#[test]
fn each_call_of_memfs_fails_in_turn() {
    on_memfs(Fault::Fail);
}

/// EDGE-1, MEM-1: and whichever call has done its work when it fails.
#[test]
fn each_answer_of_memfs_is_lost_in_turn() {
    on_memfs(Fault::FailAfter);
}

/// EDGE-1, MEM-1: on hostfs, with names that are cached for ever.
#[test]
fn each_call_of_hostfs_fails_in_turn() {
    if rcuwalk_testkit::lacks_root() {
        return;
    }
    on_hostfs(Fault::Fail);
}

/// EDGE-1, MEM-1: and when the host has done what was asked.
#[test]
fn each_answer_of_hostfs_is_lost_in_turn() {
    if rcuwalk_testkit::lacks_root() {
        return;
    }
    on_hostfs(Fault::FailAfter);
}

/// MEM-1: a full file system returns ENOSPC from every operation that needs space; files
/// written before are intact, and all space comes back.
#[test]
fn whatever_the_budget_it_is_kept() {
    let plenty = 64 * 4096;
    let bytes = (1..30).map(|pages| (pages * 4096, 64));
    let inodes = (1..14).map(|inodes| (plenty, inodes));
    let mut full = 0;
    for (bytes, inodes) in bytes.chain(inodes) {
        let fs = MemFs::with_limits(bytes, inodes);
        let mut world = World::new(fs.clone());
        for (name, step) in STEPS {
            match step(&mut world) {
                Err(Error::NoSpace) => full += 1,
                // The file that it works on could not be made.
                Err(Error::NotFound | Error::BadDescriptor | Error::NoData) | Ok(()) => {}
                // No ACL was set, so none lets them in.
                Err(Error::PermissionDenied) if *name == "access by ACL" => {}
                Err(err) => panic!("{name}, with {bytes} bytes and {inodes} inodes: {err}"),
            }
            assert!(fs.bytes() <= bytes, "MEM-1: {name}");
            assert!(fs.len() as u64 <= inodes, "MEM-1: {name}");
        }
        compare(&world, &|| fs.clone(), "all steps in a small file system");
        clean_up(world);
        assert_eq!(left_in(&fs), (1, 0), "MEM-1");
    }
    assert!(full > 40, "only {full} steps met a full file system");
}
