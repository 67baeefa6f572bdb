//! A user replaces a new file before the daemon's first statx(2) of it. The daemon leaves the
//! replacement alone, whether or not the host records birth times.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rcuwalk::{Context, Credentials, Error, FileType, Freshness, LookupFlags, Vfs};
use rcuwalk_hostfs::{Actor, HostFs};
use rcuwalk_testkit::acl;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, XattrFlags, renameat_with, setxattr};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::common::birthless::Birthless;
use crate::common::{is_root, skip};

/// A file that the exchanging user has no rights on. Held, so that its inode number stays its own.
struct Theirs {
    path: PathBuf,
    held: OwnedFd,
    owner: u32,
}

impl Theirs {
    /// Files that their owner alone may use.
    fn made_by(shared: &Path, make: impl Fn(&Path)) -> Vec<Theirs> {
        let one = |n: u32| {
            let path = shared.join(format!("theirs {n}"));
            make(&path);
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            let held = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
            let owner = rustix::fs::fstat(&held).unwrap().st_uid;
            Theirs { path, held, owner }
        };
        (0..32).map(one).collect()
    }

    fn assert_untouched(&self) {
        let now = rustix::fs::fstat(&self.held).unwrap();
        let (uid, mode) = (now.st_uid, now.st_mode & 0o7777);
        assert_eq!(
            (uid, mode),
            (self.owner, 0o700),
            "INODE-1: {}",
            self.path.display()
        );
    }
}

/// Names made in a race.
const ROUNDS: usize = 500;

/// Has `make` make the name that it is given again and again, while another thread exchanges the
/// new file for one of `theirs` at once, and back. Each round ends with both threads' part.
fn while_exchanged(shared: &Path, theirs: &[Theirs], rounds: usize, make: impl Fn(&str)) {
    let place = shared.join("new");
    let exchange = |path: &Path| renameat_with(CWD, path, CWD, &place, RenameFlags::EXCHANGE);
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    let (made, mut exchanged) = (AtomicUsize::new(0), 0);
    thread::scope(|scope| {
        let meddler = scope.spawn(|| {
            let mut exchanged = 0;
            for (round, Theirs { path, .. }) in (1..=rounds).zip(theirs.iter().cycle()) {
                start.wait();
                // Waits for the directory's lock while the name is made.
                let done = loop {
                    let is_made = made.load(SeqCst) >= round;
                    match exchange(path) {
                        Ok(()) => break true,
                        // Nothing has been made.
                        Err(_) if is_made => break false,
                        Err(_) => {}
                    }
                };
                exchanged += usize::from(done);
                if done {
                    let _ = exchange(path);
                }
                end.wait();
            }
            exchanged
        });
        for round in 1..=rounds {
            start.wait();
            make("/new");
            made.store(round, SeqCst);
            end.wait();
            // Mostly the new one; a directory of theirs is not empty, and stays.
            let _ = fs::remove_dir(&place).or_else(|_| fs::remove_file(&place));
        }
        exchanged = meddler.join().unwrap();
    });
    assert!(exchanged > 0, "nothing was exchanged in {rounds} rounds");
    theirs.iter().for_each(Theirs::assert_untouched);
}

fn full_directory(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("secret"), b"").unwrap();
}

fn user(vfs: &Vfs, uid: u32) -> Context {
    vfs.context(Credentials::user(uid, uid))
}

/// INODE-1: a mount that takes the place of an unmounted one is another, though the kernel gives
/// it the same number in mountinfo: a file of the first is not taken for one of the second.
#[test]
fn a_file_of_a_later_mount_is_another() {
    let Some(host) = Birthless::mount() else {
        return;
    };
    let [source, at] = [host.root().join("source"), host.shared().join("f")];
    fs::write(&at, b"").unwrap();
    let fs = HostFs::new(host.shared()).unwrap();
    let vfs = Vfs::new(fs.with_freshness(Freshness::EachUse)).unwrap();
    let ctx = vfs.context(Credentials::root());
    let look = || {
        fs::write(&source, b"").unwrap();
        mount_bind(&source, &at).unwrap();
        let path = vfs.lookup(&ctx, "/f", LookupFlags::empty()).unwrap();
        unmount(&at, UnmountFlags::empty()).unwrap();
        fs::remove_file(&source).unwrap();
        path
    };
    let (first, second) = (look(), look());
    let (first, second) = (first.inode(), second.inode());
    assert_eq!(first.attr().ino, second.attr().ino, "the number is reused");
    assert!(!std::ptr::eq(&**first, &**second), "INODE-1");
}

/// INODE-1: a directory of root's that takes the place of a new one is not given to the new
/// one's maker.
#[test]
fn a_directory_that_takes_the_place_of_a_new_one_is_not_given_away() {
    let Some(host) = Birthless::mount() else {
        return;
    };
    let theirs = Theirs::made_by(&host.shared(), full_directory);
    let vfs = host.vfs(Actor::Daemon);
    let ctx = user(&vfs, 1000);
    while_exchanged(&host.shared(), &theirs, ROUNDS, |name| {
        let _ = vfs.mkdir(&ctx, name, 0o755);
    });
}

/// INODE-1: neither is another user's new one, on a host with birth times: it has been born as
/// lately as the one whose place it takes.
#[test]
fn a_new_directory_of_another_user_is_not_given_away() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let vfs = Vfs::new(HostFs::new(dir.path()).unwrap()).unwrap();
    let ctx = user(&vfs, 1000);
    for _ in 0..30 {
        let theirs = Theirs::made_by(dir.path(), |path| {
            full_directory(path);
            chown(path, Some(4711), Some(4711)).unwrap();
        });
        while_exchanged(dir.path(), &theirs, theirs.len(), |name| {
            let _ = vfs.mkdir(&ctx, name, 0o755);
        });
        for entry in fs::read_dir(dir.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }
}

/// INODE-1: neither is a pipe.
#[test]
fn a_pipe_that_takes_the_place_of_a_new_one_is_not_given_away() {
    let Some(host) = Birthless::mount() else {
        return;
    };
    let theirs = Theirs::made_by(&host.shared(), |path| {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, path, kind, Mode::RWXU, 0).unwrap();
    });
    let vfs = host.vfs(Actor::Daemon);
    let ctx = user(&vfs, 1000);
    while_exchanged(&host.shared(), &theirs, ROUNDS, |name| {
        let _ = vfs.mknod(&ctx, name, FileType::Fifo, 0o644, 0);
    });
}

/// INODE-1: a directory of the same owner is taken for the new one, and not opened to others.
#[test]
fn a_directory_of_the_same_owner_keeps_its_mode() {
    let Some(host) = Birthless::mount() else {
        return;
    };
    let theirs = Theirs::made_by(&host.shared(), full_directory);
    let vfs = host.vfs(Actor::Daemon);
    let ctx = vfs.context(Credentials::root()).with_umask(0);
    while_exchanged(&host.shared(), &theirs, ROUNDS, |name| {
        let _ = vfs.mkdir(&ctx, name, 0o777);
    });
}

/// EDGE-1: new files get their owner, mode and ACL without birth times, too; the umask of this
/// process has no effect.
#[test]
fn new_files_are_as_asked_where_there_are_no_birth_times() {
    let Some(host) = Birthless::mount() else {
        return;
    };
    let at = |path: &str| host.shared().join(path);
    // A directory that hands its group down, and one with a default ACL.
    fs::create_dir(at("group")).unwrap();
    chown(at("group"), Some(1000), Some(4242)).unwrap();
    fs::set_permissions(at("group"), Permissions::from_mode(0o2777)).unwrap();
    fs::create_dir(at("acl")).unwrap();
    fs::set_permissions(at("acl"), Permissions::from_mode(0o777)).unwrap();
    let acl = acl("u::7 u:4711:5 g::5 m::7 o::5");
    let default = "system.posix_acl_default";
    setxattr(at("acl"), default, &acl, XattrFlags::empty()).unwrap();
    for (actor, round) in [(Actor::Daemon, "daemon"), (Actor::Caller, "caller")] {
        let vfs = host.vfs(actor);
        let ctx = user(&vfs, 1000).with_umask(0);
        let look = |path: &str| {
            let host = fs::symlink_metadata(at(path)).unwrap();
            let shown = vfs.stat(&ctx, format!("/{path}"), LookupFlags::empty());
            let shown = shown.unwrap();
            assert_eq!(
                shown.btime,
                Default::default(),
                "a host without birth times"
            );
            assert_eq!((shown.uid, shown.gid), (host.uid(), host.gid()), "EDGE-1");
            assert_eq!(shown.st_mode(), host.mode(), "EDGE-1: {path}");
            (host.uid(), host.gid(), host.mode() & 0o7777)
        };
        let dir = |path: &str, mode| {
            let path = format!("{path}{round}");
            vfs.mkdir(&ctx, format!("/{path}"), mode).unwrap();
            look(&path)
        };
        assert_eq!(dir("", 0o777), (1000, 1000, 0o777), "EDGE-1: {round}");
        assert_eq!(dir("t", 0o1770), (1000, 1000, 0o1770), "EDGE-1: {round}");
        assert_eq!(dir("group/", 0o770), (1000, 4242, 0o2770), "EDGE-1");
        assert_eq!(dir("acl/", 0o777), (1000, 1000, 0o775), "EDGE-1: {round}");
        let mut inherited = vec![0; 256];
        let made = at(&format!("acl/{round}"));
        let len = rustix::fs::getxattr(&made, default, &mut inherited).unwrap();
        assert_eq!(inherited[..len], acl, "EDGE-1: {round}");
        let pipe = format!("pipe-{round}");
        vfs.mknod(&ctx, format!("/{pipe}"), FileType::Fifo, 0o666, 0)
            .unwrap();
        assert_eq!(look(&pipe), (1000, 1000, 0o666), "EDGE-1: {round}");
        let link = format!("link-{round}");
        vfs.symlink(&ctx, "target", format!("/{link}")).unwrap();
        assert_eq!(look(&link).0, 1000, "EDGE-1: {round}");
        let again = vfs.mkdir(&ctx, format!("/{round}"), 0o700);
        assert!(matches!(again, Err(Error::Exists)), "EDGE-1: {again:?}");
    }
}
