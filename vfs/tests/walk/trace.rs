//! [`Vfs::trace`]: the steps of a walk, and which walk took them.

use rcuwalk::{Credentials, Error, LookupFlags, Origin, Trace, Vfs, Walk, Why};
use rcuwalk_memfs::{MemFs, directory, file, symlink};

const FOLLOW: LookupFlags = LookupFlags::FOLLOW;

/// `/d/f`, `/d/closed` (0700, root's), and links: `/l` to `d`, `/abs` to `/l`,
/// `/loop` to itself, `/d/up` to `../l/.`.
fn tree() -> MemFs {
    let fs = MemFs::new();
    let d = fs.add(fs.root(), b"d", directory(0o755)).unwrap();
    fs.add(d, b"f", file(0o644)).unwrap();
    fs.add(d, b"closed", directory(0o700)).unwrap();
    fs.add(d, b"up", symlink(b"../l/.")).unwrap();
    for (name, target) in [("l", "d"), ("abs", "/l"), ("loop", "loop")] {
        fs.add(fs.root(), name.as_bytes(), symlink(target.as_bytes()))
            .unwrap();
    }
    fs
}

fn vfs() -> Vfs {
    Vfs::new(tree()).unwrap()
}

/// `rcu` or `ref`, level, name, and how: `h`eld, `c`ached, `l`ooked up or `-`.
fn steps(trace: &Trace) -> Vec<String> {
    let step = |step: &rcuwalk::TraceStep| {
        let walk = match step.walk {
            Walk::Rcu => "rcu",
            Walk::Ref => "ref",
        };
        let how = match step.how {
            Some(Origin::Held) => "h",
            Some(Origin::Cached) => "c",
            Some(Origin::LookedUp) => "l",
            Some(Origin::Revalidated) => "r",
            None => "-",
        };
        let name = step.name.escape_ascii();
        format!("{walk} {} {name} {how}", step.level)
    };
    trace.steps.iter().map(step).collect()
}

#[test]
fn a_cold_walk_stops_under_rcu_at_the_first_name_and_a_warm_one_goes_all_the_way() {
    let vfs = vfs();
    let ctx = vfs.context(Credentials::root());
    let cold = vfs.trace(&ctx, "/d/f", FOLLOW);
    assert_eq!(steps(&cold), ["rcu 0 / h", "ref 0 d l", "ref 0 f l"]);
    assert_eq!(cold.stopped, Some(Why::NotCached));
    let warm = vfs.trace(&ctx, "/d/f", FOLLOW);
    assert_eq!(steps(&warm), ["rcu 0 / h", "rcu 0 d c", "rcu 0 f c"]);
    assert_eq!(warm.stopped, None);
    let found = vfs.lookup(&ctx, "/d/f", FOLLOW).unwrap();
    assert!(warm.result.unwrap().is_same_place(&found));
}

#[test]
fn the_walks_change_in_the_middle_of_a_link_where_the_cache_ends() {
    let vfs = vfs();
    let ctx = vfs.context(Credentials::root());
    vfs.stat(&ctx, "/abs", FOLLOW).unwrap();
    let trace = vfs.trace(&ctx, "/abs/up/f", FOLLOW);
    let expected = [
        "rcu 0 / h",
        "rcu 0 abs c",
        "rcu 1 / h",
        "rcu 1 l c",
        "rcu 2 d c",
        "ref 0 up l",
        "ref 1 .. h",
        "ref 1 l c",
        "ref 2 d c",
        "ref 1 . h",
        "ref 0 f l",
    ];
    assert_eq!(steps(&trace), expected);
    let targets = trace.steps.iter().filter_map(|step| step.link.as_deref());
    let expected: [&[u8]; 4] = [b"/l", b"d", b"../l/.", b"d"];
    assert_eq!(targets.collect::<Vec<_>>(), expected);
    let warm = vfs.trace(&ctx, "/abs/up/f", FOLLOW);
    assert!(warm.steps.iter().all(|step| step.walk == Walk::Rcu));
}

#[test]
fn an_error_is_at_the_last_step() {
    let vfs = vfs();
    let root = vfs.context(Credentials::root());
    let user = vfs.context(Credentials::user(1000, 1000));
    let missing = vfs.trace(&root, "d/none/x", FOLLOW);
    assert_eq!(steps(&missing), ["ref 0 d l", "ref 0 none l"]);
    assert!(matches!(missing.result, Err(Error::NotFound)));
    assert!(missing.steps[1].attr.is_none());
    // Known to be missing: an answer of the RCU-walk.
    let missing = vfs.trace(&root, "d/none/x", FOLLOW);
    assert_eq!(steps(&missing), ["rcu 0 d c", "rcu 0 none c"]);

    let denied = vfs.trace(&user, "d/closed/x", FOLLOW);
    assert_eq!(steps(&denied).last().unwrap(), "ref 0 x -");
    assert!(matches!(denied.result, Err(Error::PermissionDenied)));

    let no_dir = vfs.trace(&root, "d/f/x", FOLLOW);
    assert_eq!(steps(&no_dir).last().unwrap(), "ref 0 x -");
    assert!(matches!(no_dir.result, Err(Error::NotADirectory)));

    let lost = vfs.trace(&root, "loop", FOLLOW);
    assert!(matches!(lost.result, Err(Error::TooManySymlinks)));
    assert_eq!(lost.steps.len(), 41);
    assert_eq!(lost.steps[40].level, 40);

    assert!(vfs.trace(&root, "", FOLLOW).steps.is_empty());
    assert!(vfs.trace(&root, vec![b'x'; 5000], FOLLOW).steps.is_empty());
}

#[test]
fn a_mount_that_is_crossed_is_named_in_both_directions() {
    let vfs = vfs();
    let ctx = vfs.context(Credentials::root());
    vfs.mount(&ctx, "/d", tree()).unwrap();
    let trace = vfs.trace(&ctx, "/d/../d/d", FOLLOW);
    let mounts = trace.steps.iter().map(|step| step.mount.as_deref());
    let memfs = Some("memfs");
    assert_eq!(
        mounts.collect::<Vec<_>>(),
        [None, memfs, memfs, memfs, None]
    );
}

#[test]
fn flags_are_obeyed() {
    let vfs = vfs();
    let ctx = vfs.context(Credentials::root());
    let cached = vfs.trace(&ctx, "/d", LookupFlags::CACHED);
    assert!(matches!(cached.result, Err(Error::WouldBlock)));
    assert_eq!(vfs.statistics().slow_lookups, 0);

    let link = vfs.trace(&ctx, "/l", LookupFlags::empty());
    assert_eq!(steps(&link), ["rcu 0 / h", "ref 0 l l"]);
    assert_eq!(link.steps[1].link, None);

    let by_ref = vfs.trace(&ctx, "/l", FOLLOW | LookupFlags::REF_WALK);
    assert!(by_ref.steps.iter().all(|step| step.walk == Walk::Ref));
    assert_eq!(by_ref.stopped, None);
}
