//! A directory that was listed to its end: what else is asked about it comes from the cache.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{Mount, can_mount, on_each, skip};
use rcuwalk::{FileSystem, Freshness, Inode, Result, SuperBlock, Vfs};
use rcuwalk_fuse::Options;
use rcuwalk_hostfs::{HostFs, Watcher};
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Call, OnHost, Rng, Wrapped, Wrapper, check_listings, setting, wait_until};

/// A back end whose listings are cached, and which notes what it is asked.
struct Noting<F> {
    inner: F,
    asked: Asked,
    /// A memfs, which by itself has no listings cached.
    is_memory: bool,
}

type Asked = Arc<Mutex<Vec<String>>>;

impl<F: FileSystem> Wrapper for Noting<F> {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.inner)
    }
    fn caches_listings(&self) -> bool {
        self.is_memory || self.inner.caches_listings()
    }
    fn lists_all_names(&self, sb: &SuperBlock, dir: &Inode) -> bool {
        self.is_memory || self.inner.lists_all_names(sb, dir)
    }
    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        let asked = format!("{} {}", call.method, call.name());
        self.asked.lock().unwrap().push(asked);
        ask()
    }
}

const FILES: usize = 2_000;

/// DIR-2: a second listing by `readdir(3)` and lookups of missing names by many threads ask the
/// back end nothing, though the kernel asks the daemon each time. So it is for a back end that
/// only the mount changes, and for a host directory that is watched.
#[test]
fn a_directory_that_is_known_is_not_asked_about() {
    if !can_mount() {
        return;
    }
    let asked = Asked::default();
    let memory = Wrapped::new(Noting {
        inner: MemFs::new(),
        asked: asked.clone(),
        is_memory: true,
    });
    let backing = tempfile::tempdir().unwrap();
    let unshared = HostFs::new(backing.path()).unwrap();
    let unshared = Wrapped::new(Noting {
        inner: unshared.with_freshness(Freshness::Always),
        asked: asked.clone(),
        is_memory: false,
    });
    ask_again(Vfs::new(memory).unwrap(), None, &asked, true);
    ask_again(Vfs::new(unshared).unwrap(), Some(backing), &asked, true);

    let backing = tempfile::tempdir().unwrap();
    let watched = HostFs::new(backing.path()).unwrap();
    match watched.watched_by(Watcher::Fanotify) {
        Err(_) => skip("needs root (fanotify)"),
        Ok(inner) => {
            let watched = Wrapped::new(Noting {
                inner,
                asked: asked.clone(),
                is_memory: false,
            });
            ask_again(Vfs::new(watched).unwrap(), Some(backing), &asked, false);
        }
    }
}

/// With `at_once`, from the second listing on. Otherwise once all reports of changes have come: until
/// then, the next listing asks again.
fn ask_again(vfs: Vfs, backing: Option<tempfile::TempDir>, asked: &Asked, at_once: bool) {
    // The kernel keeps no answer.
    let options = Options::default()
        .entry_timeout(Duration::ZERO)
        .attr_timeout(Duration::ZERO);
    let mount = Mount::with(vfs, backing, "noting", &options);
    let dir = mount.path().join("d");
    fs::create_dir(&dir).unwrap();
    for n in 0..FILES {
        File::create(dir.join(format!("f{n}"))).unwrap();
    }
    let requests = |kind: &str| {
        let statistics = mount.mounted.observer().statistics().unwrap();
        let operations = statistics.operations.iter();
        let of_kind = operations.filter(|one| one.name.starts_with(kind));
        of_kind.map(|one| one.count()).sum::<u64>()
    };
    let first = names(&dir);
    assert_eq!(first.len(), FILES);
    wait_until("a directory that is known", || {
        names(&dir);
        assert!(!dir.join("missing").exists());
        asked.lock().unwrap().clear();
        let before = (requests("readdir"), requests("lookup"));
        assert_eq!(names(&dir), first);
        thread::scope(|scope| {
            for thread in 0..4 {
                let dir = &dir;
                scope.spawn(move || {
                    for n in 0..250 {
                        let missing = dir.join(format!("missing {thread} {n}"));
                        assert!(!missing.exists(), "DIR-2");
                    }
                });
            }
        });
        let after = (requests("readdir"), requests("lookup"));
        assert!(after.0 > before.0, "the kernel has asked for the listing");
        assert!(after.1 >= before.1 + 1_000, "and for each name");
        // An open of a directory is for the descriptor, not for names.
        let asked = asked.lock().unwrap();
        let about_names = asked.iter().filter(|asked| !asked.starts_with("open"));
        let about_names: Vec<_> = about_names.take(5).collect();
        assert!(!at_once || about_names.is_empty(), "asked: {about_names:?}");
        about_names.is_empty()
    });
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

/// DIR-1: changes of all kinds beside listings that stop and go on from any of their positions,
/// through the kernel, with its caches and without.
#[test]
fn listings_are_exact_beside_changes() {
    let steps = setting("RCUWALK_LISTING_STEPS", 1_500) as usize;
    on_each(|mount| {
        check_listings(&OnHost::new(mount.path()), &mut Rng::new(1), steps);
    });
    if !can_mount() {
        return;
    }
    let nothing = Options::default()
        .entry_timeout(Duration::ZERO)
        .attr_timeout(Duration::ZERO);
    for mount in [
        Mount::memfs_with(&nothing),
        Mount::hostfs_with(&nothing),
        Mount::hostfs_unshared(&Options::default()),
    ] {
        check_listings(&OnHost::new(mount.path()), &mut Rng::new(2), steps);
    }
}
