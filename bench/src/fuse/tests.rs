use std::fs;

use super::*;

fn small() -> Fuse {
    Fuse {
        walkers: 3,
        makers: 2,
        servers: 2,
        trees: 2,
        dirs: 2,
        files: 7,
        many: 6,
        made: 10,
        listed: 100,
        mib: 1,
        rounds: 1,
        ..Fuse::new()
    }
}

#[test]
fn what_is_walked_is_there_and_nothing_else() {
    let size = small();
    let tree = Tree::make(&size).unwrap();
    let walked = work::walk(tree.path(), &tree.walked, 3).unwrap();
    assert_eq!(walked.count, 28);
    let by_name = work::by_name(tree.path(), &tree, 2).unwrap();
    assert_eq!((by_name.count, by_name.sum), (walked.count, walked.sum));
    fs::write(tree.path().join("walked/01/01/f0003"), b"other").unwrap();
    let changed = work::walk(tree.path(), &tree.walked, 3).unwrap();
    assert_eq!(changed.count, 28);
    assert_ne!(changed.sum, walked.sum, "its size and time are seen");
}

#[test]
fn what_is_written_is_what_is_read() {
    let size = small();
    let tree = Tree::make(&size).unwrap();
    let written = work::write(tree.path(), &size, 7).unwrap();
    let read = work::read(tree.path()).unwrap();
    assert_eq!((read.count, read.sum), (1 << 20, written.sum));
    let again = work::write(tree.path(), &size, 8).unwrap();
    assert_ne!(again.sum, written.sum, "each time something else");
}

/// The passes on the directory itself leave other contents than those that are to be there.
#[test]
fn what_is_written_elsewhere_is_missed() {
    let size = small();
    let (tree, elsewhere) = (Tree::make(&size).unwrap(), Tree::make(&size).unwrap());
    for (root, is_there) in [(tree.path(), true), (elsewhere.path(), false)] {
        let done = turn::timed(Work::Write, root, &size, &tree, 7).unwrap();
        let there = work::read(tree.path()).unwrap();
        assert_eq!(there.sum == done.sum, is_there);
    }
}

/// Ours once more, in the place of the plain daemon, which is in a crate above.
struct Another;

impl Daemon for Another {
    fn name(&self) -> &'static str {
        "another"
    }

    fn mount(&self, how: &Mounting<'_>) -> io::Result<Box<dyn Served>> {
        Ours::ALL[2].mount(how)
    }
}

/// A daemon that shows something else than it was told to.
struct Elsewhere(tempfile::TempDir);

impl Daemon for Elsewhere {
    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn mount(&self, how: &Mounting<'_>) -> io::Result<Box<dyn Served>> {
        Ours::ALL[2].mount(&Mounting {
            backing: self.0.path(),
            ..*how
        })
    }
}

#[test]
fn there_is_no_report_of_contenders_that_differ() {
    if rcuwalk_testkit::lacks_fuse() {
        return;
    }
    let size = small();
    let other = tempfile::tempdir().unwrap();
    for name in ["walked", "made", "listed"] {
        fs::create_dir(other.path().join(name)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let ended = size.run(&Elsewhere(other), &stop, &mut |_| {});
    assert!(
        matches!(ended, Err(FuseError::Failed { .. } | FuseError::Differ(_))),
        "{ended:?}"
    );
}

#[test]
fn each_contender_does_each_work() {
    if rcuwalk_testkit::lacks_fuse() {
        return;
    }
    let stop = AtomicBool::new(false);
    let report = small().run(&Another, &stop, &mut |_| {}).unwrap();
    assert!(report.verified);
    assert!(
        report
            .rows
            .iter()
            .all(|row| row.seconds > 0.0 && row.count > 0)
    );
    assert!(report.to_string().contains("cold walk"));
}
