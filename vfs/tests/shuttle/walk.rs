//! The RCU-walk under the shuttle model checker, against threads that change what it walks.
//!
//! Each line was broken once, and this is what failed, with each of six seeds:
//!
//! | broken                                          | caught by                                |
//! |-------------------------------------------------|------------------------------------------|
//! | SEQ-3: the parent not rechecked after the child | `a_path_never_leads_through_two_moments` |
//! | the same in `look_again`                        | `a_path_never_leads_through_two_moments` |
//! | the child's count sampled after its name        | `a_path_never_leads_through_two_moments` |
//! | `is_still_true` does not look at the count      | `half_a_rename_is_not_cached`          |
//! | neither `resolve` nor `may_lookup` rechecks the count for an error | `a_path_is_not_denied_by_two_moments` |
//! | `add_unasked` does not look for the name        | `a_name_that_comes_unasked_is_there_once`|
//! | `add_unasked` does not look for lookups         | `a_name_that_comes_unasked_is_there_once`|
//! | `put` asks whether it is hashed, and then drops | `the_last_to_let_go_of_it_is_its_end`    |
//! | a put looks at the word, and then subtracts      | `no_name_is_lost_to_the_shrinker`        |
//! | `d_lookup_rcu` does not recheck (60,000 schedules) | `half_a_rename_is_not_found_by_reference` |
//! | `follow_dotdot` of either walker does not check that it is below the root | `a_rename_does_not_lead_out_and_back` |
//! | the RCU-walk takes `..` of a contained walk for a simple step | `a_rename_does_not_lead_out_and_back` |
//! | `may_create_in_sticky` asks the file for its directory | `a_file_that_leaves_a_sticky_directory_is_refused` |
//!
//! Three survive. Without the recheck in `try_to_unlazy`: a REF-walk that stands still in the
//! same place reaches the same files. Without the mark of `d_drop` on a dentry that it
//! unhashed: a walk that still stands on it came there when it was hashed. With words that
//! `d_move` changes outside the write section: the walk would have to end between two stores;
//! loom has that (`sync/tests/loom/seq.rs`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::shuttle_support::{outcomes_are, spawn};
use rcuwalk::{
    At, Attr, Budget, Caller, Context, Credentials, Emit, Error, FileType, Iget, Inode, InodeFill,
    InodeKey, InodeRef, LastPut, LookupFlags, MountFlags, Name, NewFile, OpenFlags, RawEntry,
    Rename, RenameFlags, Result, SetAttr, SuperBlock, Vfs,
};
use rcuwalk_sync::rcu;
use rcuwalk_testkit::{Wrapped, Wrapper};

const ROOT: u64 = 1;
/// A number that no inode has.
const NONE: u64 = 0;

type Dirs = BTreeMap<(u64, Box<[u8]>), (u64, FileType)>;

/// Names in a map. Its lock is the standard library's: a call of the back end is one step of
/// the model.
struct Flat {
    names: Mutex<Dirs>,
    last: AtomicU64,
    /// Whether a name comes with all others of its directory.
    around: bool,
    /// Listings are cached.
    caches: bool,
    ended: Arc<AtomicU64>,
}

/// Counts an inode whose last reference is gone.
struct Ending(Arc<AtomicU64>);

impl LastPut for Ending {
    fn last_put(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Flat {
    fn iget(&self, sb: &SuperBlock, ino: u64, kind: FileType) -> InodeRef {
        match sb.iget(InodeKey::new(ino)).expect("none is being created") {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                let fill = InodeFill::new(Attr::new(ino, kind, 0o755));
                new.init(fill.private_last_put(Ending(self.ended.clone())))
            }
        }
    }

    fn all_in(&self, dir: &Inode) -> Vec<(Box<[u8]>, (u64, FileType))> {
        let dir = dir.attr().ino;
        let names = self.names.lock().unwrap();
        let names = names.iter().filter(|((parent, _), _)| *parent == dir);
        names.map(|((_, name), to)| (name.clone(), *to)).collect()
    }

    fn remove(&self, dir: u64, name: Name<'_>) -> (u64, FileType) {
        let key = (dir, Box::from(name.as_bytes()));
        let gone = self.names.lock().unwrap().remove(&key);
        gone.expect("the VFS has looked")
    }
}

impl Wrapper for Flat {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Ok(self.iget(sb, ROOT, FileType::Directory))
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let key = (dir.attr().ino, Box::from(name.as_bytes()));
        let found = self.names.lock().unwrap().get(&key).copied();
        Ok(found.map(|(ino, kind)| self.iget(sb, ino, kind)))
    }
    fn looks_around(&self) -> bool {
        self.around
    }
    fn caches_listings(&self) -> bool {
        self.caches
    }
    fn lists_all_names(&self, _: &SuperBlock, _: &Inode) -> bool {
        true
    }
    fn lookup_around(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>,
    ) -> Result<Option<InodeRef>> {
        for (name, (ino, kind)) in self.all_in(dir) {
            if around(Name::new(&name)?, self.iget(sb, ino, kind)).is_break() {
                break;
            }
        }
        self.lookup(sb, dir, name)
    }
    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let ino = self.last.fetch_add(1, Relaxed) + 1;
        let inode = self.iget(by.sb, ino, new.kind);
        let key = (dir.attr().ino, Box::from(name.as_bytes()));
        self.names.lock().unwrap().insert(key, (ino, new.kind));
        Ok(inode)
    }
    fn unlink(&self, _: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        self.remove(dir.attr().ino, name);
        lost_its_name(inode);
        Ok(())
    }
    fn rename(&self, _: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        let key = |(dir, name): (&Inode, Name<'_>)| (dir.attr().ino, name.as_bytes().into());
        let (from, to) = (key(how.from), key(how.to));
        let mut names = self.names.lock().unwrap();
        let moved = names.remove(&from).expect("the VFS has looked");
        let before = names.insert(to, moved);
        if how.flags.contains(RenameFlags::EXCHANGE) {
            names.insert(from, before.expect("the VFS has looked"));
        } else if let Some(replaced) = how.replaced {
            lost_its_name(replaced);
        }
        Ok(())
    }
    fn setattr(&self, _: &Caller<'_>, at: &At<'_>, change: &SetAttr) -> Result<()> {
        let attr = at.inode.attr();
        let mode = change.mode.expect("only modes are changed");
        at.inode.set_attr(&attr.mode(mode));
        Ok(())
    }
    fn read_dir(&self, _: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        for (at, (name, (ino, kind))) in (1..).zip(self.all_in(dir)).skip(from as usize) {
            let entry = RawEntry {
                name: &name,
                ino,
                kind: Some(kind),
                next: at,
            };
            if emit.entry(entry).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn lost_its_name(inode: &Inode) {
    let attr = inode.attr();
    inode.set_attr(&attr.nlink(0));
}

/// A mounted [`Flat`], all of its names cached.
#[derive(Clone)]
struct Tree {
    vfs: Vfs,
    ctx: Context,
    /// How many inodes have come to their end.
    ended: Arc<AtomicU64>,
}

impl Tree {
    /// One entry per word, numbered from 2 on: `dir/`, `dir/file`.
    fn new(entries: &str) -> Tree {
        Tree::of(entries, false, false, 100)
    }

    /// As [`new`](Self::new); nothing below `/a` is cached, and `/a` has been listed.
    fn listed(entries: &str) -> Tree {
        let tree = Tree::of(entries, true, false, 100);
        let list = || tree.vfs.read_dir(&tree.ctx, "/a").unwrap().count();
        assert!(list() > 0);
        tree.vfs.drop_caches();
        assert!(list() > 0);
        assert_eq!(tree.cached("/a/b"), None);
        tree
    }

    /// As [`new`](Self::new), with a cache that keeps listings and next to no names.
    fn with_listings(entries: &str) -> Tree {
        Tree::of(entries, false, true, 1)
    }

    fn of(entries: &str, around: bool, caches: bool, room: usize) -> Tree {
        let ended = Arc::default();
        let fs = Flat {
            names: Mutex::default(),
            last: AtomicU64::new(ROOT),
            around,
            caches,
            ended: Arc::clone(&ended),
        };
        let budget = Budget::default().dentries(room).inodes(room);
        let vfs = Vfs::with_budget(Wrapped::new(fs), budget).unwrap();
        let ctx = vfs.context(Credentials::root());
        let tree = Tree { vfs, ctx, ended };
        for entry in entries.split_whitespace() {
            match entry.strip_suffix('/') {
                Some(dir) => drop(tree.vfs.mkdir(&tree.ctx, dir, 0o755).unwrap()),
                None => tree.create(entry),
            }
            assert_ne!(tree.ino(entry), NONE);
        }
        tree
    }

    fn create(&self, path: &str) {
        self.vfs.create(&self.ctx, path, 0o644).unwrap();
    }

    fn rename(&self, old: &str, new: &str) {
        self.vfs.rename(&self.ctx, old, new).unwrap();
    }

    fn exchange(&self, a: &str, b: &str) {
        let cwd = self.ctx.cwd();
        let flags = RenameFlags::EXCHANGE;
        let exchanged = self.vfs.renameat2(&self.ctx, (cwd, a), (cwd, b), flags);
        exchanged.unwrap();
    }

    fn unlink(&self, path: &str) {
        self.vfs.unlink(&self.ctx, path).unwrap();
    }

    /// The inode that a path leads to.
    fn ino(&self, path: &str) -> u64 {
        match self.vfs.stat(&self.ctx, path, LookupFlags::FOLLOW) {
            Ok(attr) => attr.ino,
            Err(Error::NotFound) => NONE,
            Err(err) => panic!("{path}: {err}"),
        }
    }

    /// As [`ino`](Self::ino), for a caller whose root is `/jail`.
    fn ino_in_jail(&self, path: String, walk: LookupFlags) -> u64 {
        let jail = self.vfs.lookup(&self.ctx, "/jail", LookupFlags::empty());
        let ctx = Context::within(jail.unwrap(), Credentials::root());
        match self.vfs.stat(&ctx, &path, walk) {
            Ok(attr) => attr.ino,
            // Moved out of the root each time: seldom, so no outcome of its own.
            Err(Error::NotFound | Error::CrossDevice) => NONE,
            Err(err) => panic!("{path}: {err}"),
        }
    }

    /// As [`ino`](Self::ino), if the RCU-walk can tell.
    fn cached(&self, path: &str) -> Option<u64> {
        match self.vfs.stat(&self.ctx, path, LookupFlags::CACHED) {
            Ok(attr) => Some(attr.ino),
            Err(Error::NotFound) => Some(NONE),
            Err(Error::WouldBlock) => None,
            Err(err) => panic!("{path}: {err}"),
        }
    }

    /// Runs `change` in a thread beside `walk`.
    fn beside<T>(self, change: fn(&Tree), walk: impl FnOnce(&Tree) -> T) -> T {
        let tree = self.clone();
        let changer = spawn(move || change(&tree));
        let walked = walk(&self);
        changer.join().unwrap();
        walked
    }
}

/// SEQ-3: a file that is made in a directory after a rename of the directory is never found
/// under the old name.
#[test]
fn a_path_never_leads_through_two_moments() {
    // With two names the table grows meanwhile, and a walk that stands still while it does
    // looks again; with a third it has grown before.
    for entries in ["/a/ /a/b", "/a/ /a/b /c"] {
        outcomes_are("SEQ-3", [0, 1, 2, 3], move || {
            Tree::new(entries).beside(replace_below_another_name, |tree| {
                // More than once: each walk is one more that may stand still half-way.
                let seen = [(); 3].map(|()| tree.cached("/a/b"));
                // The old name of `a` stands for nothing in the cache afterwards.
                let known: Vec<u64> = seen.iter().flatten().copied().collect();
                assert!(
                    known.is_sorted_by(|a, b| a >= b)
                        && known.iter().all(|ino| [3, NONE].contains(ino)),
                    "SEQ-3: {seen:?}"
                );
                known.iter().filter(|ino| **ino == 3).count()
            })
        });
    }
}

/// WALK-1: a directory that is closed once it has another name is never refused under the old
/// one: no caller was denied that path at any moment.
#[test]
fn a_path_is_not_denied_by_two_moments() {
    outcomes_are("WALK-1", [0, 1, 2, 3], || {
        let tree = Tree::new("/a/ /a/b");
        // Not for everyone: walks ask the inode.
        tree.vfs.chmod(&tree.ctx, "/a", 0o710).unwrap();
        let member = tree.vfs.context(Credentials::user(1, 0));
        tree.beside(
            |tree| {
                tree.rename("/a", "/x");
                tree.vfs.chmod(&tree.ctx, "/x", 0o700).unwrap();
            },
            |tree| {
                let seen = [(); 3].map(|()| {
                    match tree.vfs.stat(&member, "/a/b", LookupFlags::CACHED) {
                        Ok(attr) => assert_eq!(attr.ino, 3, "WALK-1"),
                        Err(err) => {
                            let gone = matches!(err, Error::NotFound | Error::WouldBlock);
                            assert!(gone, "WALK-1: {err}");
                            return 0;
                        }
                    }
                    1
                });
                seen.iter().sum()
            },
        )
    });
}

/// EDGE-1: as in Linux, a REF-walk goes on from the directory that it holds, whatever
/// that is called by then: to what never had the path that was asked for.
#[test]
fn a_ref_walk_goes_on_from_where_it_is() {
    outcomes_are("EDGE-1", [3, NONE, 4], || {
        let by_reference = |tree: &Tree| {
            let stat = tree.vfs.stat(&tree.ctx, "/a/b", LookupFlags::REF_WALK);
            stat.map_or(NONE, |attr| attr.ino)
        };
        Tree::new("/a/ /a/b").beside(replace_below_another_name, by_reference)
    });
}

fn replace_below_another_name(tree: &Tree) {
    tree.rename("/a", "/x");
    tree.unlink("/x/b");
    tree.create("/x/b");
}

/// WALK-1: a name that is half the old one and half the new one is never found.
#[test]
fn half_a_rename_is_not_cached() {
    // Each half in its turn; by the cache alone, as asking the back end would take longer.
    outcomes_are("WALK-1", [[None; 2]], || {
        half_a_rename(|tree, path| tree.cached(path))
    });
}

/// WALK-1: nor by a walk with references.
#[test]
fn half_a_rename_is_not_found_by_reference() {
    outcomes_are("WALK-1", [[None; 2]], || {
        half_a_rename(|tree, path| {
            let stat = tree.vfs.stat(&tree.ctx, path, LookupFlags::REF_WALK);
            stat.ok().map(|attr| attr.ino)
        })
    });
}

/// The inodes seen under two names that were never made, each half of an old one and half of a
/// new.
fn half_a_rename(see: impl Fn(&Tree, &str) -> Option<u64>) -> [Option<u64>; 2] {
    Tree::new("/a/ /a/11111111-old").beside(
        |tree| {
            for _ in 0..2 {
                tree.rename("/a/11111111-old", "/a/22222222-new");
                tree.rename("/a/22222222-new", "/a/11111111-old");
            }
        },
        |tree| {
            let both = [(); 4]
                .map(|()| ["/a/22222222-old", "/a/11111111-new"].map(|path| see(tree, path)));
            both.into_iter()
                .reduce(|a, b| [a[0].or(b[0]), a[1].or(b[1])])
                .unwrap()
        },
    )
}

/// DENTRY-3: during a rename a file below is found under the old or the new name.
#[test]
fn a_renamed_directory_is_found_old_or_new() {
    outcomes_are("DENTRY-3", [(3, NONE), (3, 3), (NONE, 3)], || {
        Tree::new("/a/ /a/b").beside(
            |tree| tree.rename("/a", "/x"),
            |tree| (tree.ino("/a/b"), tree.ino("/x/b")),
        )
    });
}

/// WALK-1: a name that is removed and made again stands for the old, nothing, or the
/// new, in this order.
#[test]
fn a_name_made_again_is_old_nothing_or_new() {
    let expected = [(3, 3), (3, NONE), (3, 4), (NONE, NONE), (NONE, 4), (4, 4)];
    outcomes_are("WALK-1", expected, || {
        Tree::new("/a/ /a/b").beside(
            |tree| {
                tree.unlink("/a/b");
                tree.create("/a/b");
            },
            |tree| (tree.ino("/a/b"), tree.ino("/a/b")),
        )
    });
}

/// WALK-1: one thread removes a name and another makes it, beside a walk, which finds the old
/// file, the new one, or none, and never a file that was not made.
#[test]
fn a_name_made_and_removed_at_once_is_one_of_them() {
    let made = [(3, true), (NONE, true), (4, true)];
    let too_early = [(3, false), (NONE, false)];
    outcomes_are("WALK-1", made.into_iter().chain(too_early), || {
        let tree = Tree::new("/a/ /a/b");
        let (remover, maker) = (tree.clone(), tree.clone());
        let remover = spawn(move || remover.unlink("/a/b"));
        let maker = spawn(move || maker.vfs.create(&maker.ctx, "/a/b", 0o644).is_ok());
        let seen = tree.ino("/a/b");
        remover.join().unwrap();
        let made = maker.join().unwrap();
        assert_eq!(tree.ino("/a/b"), if made { 4 } else { NONE }, "WALK-1");
        (seen, made)
    });
}

/// DENTRY-3: a file that is renamed over another is found under the old name or the new one,
/// and the new one is never missing meanwhile.
#[test]
fn a_file_renamed_over_another_is_found_old_or_new() {
    for (old, new) in [("/a/b", "/a/c"), ("/a/b", "/x/c")] {
        outcomes_are("DENTRY-3", [(3, 4), (3, 3), (NONE, 3)], move || {
            let tree = Tree::new("/a/ /a/b");
            // The numbers are the same in both.
            if new.starts_with("/a") {
                tree.create(new);
            } else {
                tree.vfs.mkdir(&tree.ctx, "/x", 0o755).unwrap();
                tree.create(new);
            }
            let replaced = tree.ino(new);
            let rename = match new {
                "/a/c" => |tree: &Tree| tree.rename("/a/b", "/a/c"),
                _ => |tree: &Tree| tree.rename("/a/b", "/x/c"),
            };
            tree.beside(rename, |tree| {
                let seen = (tree.ino(old), tree.ino(new));
                // As if it were the fourth inode in both.
                (seen.0, if seen.1 == replaced { 4 } else { seen.1 })
            })
        });
    }
}

/// INODE-4: a file without a name goes with its last reference, at once: the thread that
/// removes the name may drop that, or another holder.
#[test]
fn the_last_to_let_go_of_it_is_its_end() {
    outcomes_are("INODE-4", [1], || {
        let tree = Tree::new("/a/ /a/b");
        let held = [(); 2].map(|()| tree.vfs.lookup(&tree.ctx, "/a/b", LookupFlags::FOLLOW));
        // Nothing is freed meanwhile: it does not go because of that.
        let guard = rcu::read_lock();
        let holders = held.map(|held| spawn(move || drop(held.unwrap())));
        let remover = tree.clone();
        spawn(move || remover.unlink("/a/b")).join().unwrap();
        for holder in holders {
            holder.join().unwrap();
        }
        let ended = tree.ended.load(Relaxed);
        drop(guard);
        ended
    });
}

/// LRU-1: names that one thread drops, another renames, and a third holds for a moment are on a
/// list afterwards, or gone: when all is dropped, nothing is left, and nothing is counted.
#[test]
fn no_name_is_lost_to_the_shrinker() {
    // Whether the holder found the file under its old name.
    outcomes_are("LRU-1", [true, false], || {
        let tree = Tree::new("/a/ /a/b /c");
        let (dropper, renamer) = (tree.clone(), tree.clone());
        let dropper = spawn(move || dropper.vfs.drop_caches());
        let renamer = spawn(move || renamer.rename("/a/b", "/c"));
        let held = tree.vfs.lookup(&tree.ctx, "/a/b", LookupFlags::FOLLOW);
        let is_found = held.is_ok();
        drop(held);
        dropper.join().unwrap();
        renamer.join().unwrap();
        // A dentry that a walk let go in a read section has its directory until it is freed.
        rcu::barrier();
        tree.vfs.drop_caches();
        let left = tree.vfs.statistics();
        assert_eq!((left.dentries, left.inodes.0), ((0, 0), 1), "LRU-1");
        is_found
    });
}

/// DENTRY-3: of two names that are exchanged, each is found: old or new.
#[test]
fn exchanged_names_are_always_there() {
    outcomes_are("DENTRY-3", [(3, 4), (3, 3), (4, 3)], || {
        Tree::new("/a/ /a/b /a/c").beside(
            |tree| tree.exchange("/a/b", "/a/c"),
            |tree| (tree.ino("/a/b"), tree.ino("/a/c")),
        )
    });
}

/// DENTRY-3: files below two directories that are exchanged are found under the old or the new
/// path; the two are in different directories.
#[test]
fn what_is_below_exchanged_directories_is_always_there() {
    outcomes_are("DENTRY-3", [(4, NONE), (4, 4), (NONE, 4)], || {
        Tree::new("/a/ /a/b/ /a/b/f /x/ /x/a-name-of-another-length-than-b/").beside(
            |tree| tree.exchange("/a/b", "/x/a-name-of-another-length-than-b"),
            |tree| {
                let below = ["/a/b/f", "/x/a-name-of-another-length-than-b/f"];
                (tree.ino(below[0]), tree.ino(below[1]))
            },
        )
    });
}

/// LOCK-1: two directories are never moved below each other, however the two renames meet: the
/// second is refused, or no longer finds its source.
#[test]
fn renames_below_each_other_make_no_loop() {
    const EINVAL: i32 = libc::EINVAL;
    const ENOENT: i32 = libc::ENOENT;
    let expected = [(0, EINVAL), (0, ENOENT), (EINVAL, 0), (ENOENT, 0)];
    outcomes_are("LOCK-1", expected, || {
        let tree = Tree::new("/a/ /a/b/ /c/");
        let other = tree.clone();
        let rename = |tree: &Tree, old: &str, new: &str| {
            let renamed = tree.vfs.rename(&tree.ctx, old, new);
            renamed.err().map_or(0, |err| err.errno())
        };
        let second = spawn(move || rename(&other, "/c", "/a/b/y"));
        let first = rename(&tree, "/a", "/c/x");
        let outcome = (first, second.join().unwrap());
        let deepest = match outcome {
            (0, _) => "/c/x/b",
            _ => "/a/b/y",
        };
        let deepest = tree.vfs.lookup(&tree.ctx, deepest, LookupFlags::empty());
        let path = tree.vfs.path_of(&tree.ctx, &deepest.unwrap()).unwrap();
        assert_eq!(path.len(), 6, "LOCK-1: it ends at the root");
        outcome
    });
}

/// EDGE-1: what another user has put into a sticky directory is not opened by a caller that
/// wants to make it, also if it leaves that directory meanwhile: it is refused, or not there
/// any more.
#[test]
fn a_file_that_leaves_a_sticky_directory_is_refused() {
    const EACCES: i32 = libc::EACCES;
    // This back end makes files, and opens none.
    const EOPNOTSUPP: i32 = libc::EOPNOTSUPP;
    outcomes_are("EDGE-1", [(EACCES, NONE), (EOPNOTSUPP, 5)], || {
        let tree = Tree::new("/tmp/ /tmp/file /out/");
        let set = |path: &str, mode, uid| {
            let place = tree.vfs.lookup(&tree.ctx, path, LookupFlags::empty());
            let inode = place.unwrap().inode_ref();
            let attr = inode.attr();
            inode.set_attr(&attr.mode(mode).uid(uid));
        };
        set("/tmp", 0o1777, 0);
        set("/tmp/file", 0o666, 1);
        let flags = MountFlags::PROTECTED_LINKS;
        tree.vfs.remount(&tree.ctx, "/", flags).unwrap();
        let after = tree.clone();
        let opened = tree.beside(
            |tree| tree.rename("/tmp/file", "/out/file"),
            |tree| {
                let how = (OpenFlags::READ | OpenFlags::CREATE).mode(0o600);
                let opened = tree.vfs.open(&tree.ctx, "/tmp/file", how);
                opened.err().map_or(0, |err| err.errno())
            },
        );
        (opened, after.ino("/tmp/file"))
    });
}

/// A path that leads to `/b` by `..` several times. Below `/b`, a walk does not see that `/b` is
/// moved: each time is one more at which that may happen.
const IN_AND_OUT: &str = "/b/c/../c/../c/../c/../c/../c/../";

/// WALK-3: `..` in a contained root does not lead out of it while a directory above the walk is
/// moved out: the walk sees the file inside, or finds that the directory is gone.
#[test]
fn a_rename_does_not_lead_out_of_a_root() {
    const INSIDE: u64 = 5;
    for walk in [LookupFlags::empty(), LookupFlags::REF_WALK] {
        outcomes_are("WALK-3", [INSIDE, NONE], move || {
            let tree = Tree::new("/jail/ /jail/b/ /jail/b/c/ /jail/secret /out/ /out/secret");
            tree.beside(
                |tree| tree.rename("/jail/b", "/out/b"),
                |tree| tree.ino_in_jail(IN_AND_OUT.to_string() + "../secret", walk),
            )
        });
    }
}

/// WALK-3: nor does a walk pass through directories outside to end inside: from the moved
/// directory, this path would lead to the top and back into the root, where it has no meaning.
#[test]
fn a_rename_does_not_lead_out_and_back() {
    for walk in [LookupFlags::empty(), LookupFlags::REF_WALK] {
        outcomes_are("WALK-3", [NONE], move || {
            let tree = Tree::new("/jail/ /jail/b/ /jail/b/c/ /jail/secret /out/");
            tree.beside(
                |tree| {
                    for _ in 0..2 {
                        tree.rename("/jail/b", "/out/b");
                        tree.rename("/out/b", "/jail/b");
                    }
                },
                |tree| tree.ino_in_jail(IN_AND_OUT.to_string() + "../../jail/secret", walk),
            )
        });
    }
}

/// SEQ-1: the path of a place is one that it had.
#[test]
fn a_path_is_of_one_moment() {
    let paths = ["/a/b/f", "/x/y/f"].map(|path| path.as_bytes().to_vec());
    outcomes_are("SEQ-1", paths, || {
        let tree = Tree::new("/a/ /a/b/ /a/b/f /x/");
        let place = tree.vfs.lookup(&tree.ctx, "/a/b/f", LookupFlags::empty());
        let place = place.unwrap();
        tree.beside(
            |tree| tree.rename("/a/b", "/x/y"),
            |tree| tree.vfs.path_of(&tree.ctx, &place).unwrap().into_vec(),
        )
    });
}

/// DENTRY-2: a name that comes unasked with another one is in the cache once, also when another
/// thread looks it up at the same time.
#[test]
fn a_name_that_comes_unasked_is_there_once() {
    for names in ["/a/ /a/b /a/c", "/a/ /a/b /a/c/"] {
        outcomes_are("DENTRY-2", [(3, 4, NONE, 4)], move || {
            let tree = Tree::listed(names);
            let (second, third) = (tree.clone(), tree.clone());
            let second = spawn(move || second.ino("/a/c"));
            let third = spawn(move || third.ino("/a/missing"));
            let b = tree.ino("/a/b");
            assert_eq!(tree.ino("/a/missing"), NONE);
            let (c, missing) = (second.join().unwrap(), third.join().unwrap());
            // `a`, and the three in it.
            (b, c, missing, tree.vfs.statistics().dentries.0)
        });
    }
}

/// DENTRY-3: a name that comes unasked while names change refers to the right file afterwards.
#[test]
fn what_comes_unasked_is_not_outdated() {
    let after = [(4, NONE, 3, NONE), (NONE, NONE, 3, NONE)];
    outcomes_are("DENTRY-3", after, || {
        let tree = Tree::listed("/a/ /a/b /a/c");
        let others = tree.clone();
        let dropper = tree.clone();
        let dropper = spawn(move || dropper.vfs.drop_caches());
        let walker = spawn(move || others.ino("/a/c"));
        tree.rename("/a/b", "/a/d");
        tree.unlink("/a/c");
        let seen = walker.join().unwrap();
        dropper.join().unwrap();
        (seen, tree.ino("/a/b"), tree.ino("/a/d"), tree.ino("/a/c"))
    });
}

/// DIR-2: a name that has been made is not missing by a listing that was built before, after or
/// meanwhile; once it was found it stays.
#[test]
fn a_listing_does_not_hide_a_name_that_is_made() {
    outcomes_are("DIR-2", [false, true], || {
        let tree = Tree::with_listings("/a/ /a/b");
        let list = |tree: &Tree| {
            let entries = tree.vfs.read_dir(&tree.ctx, "/a").unwrap();
            let names: Vec<_> = entries.map(|entry| entry.unwrap().name).collect();
            assert!(names.contains(&Box::from(*b"b")), "DIR-1");
            names.contains(&Box::from(*b"c"))
        };
        let lister = spawn({
            let tree = tree.clone();
            move || {
                list(&tree);
            }
        });
        let (listed, found) = tree.clone().beside(
            |tree| {
                tree.create("/a/c");
                // The name leaves the small cache.
                tree.ino("/x");
                assert_ne!(tree.ino("/a/c"), NONE, "DIR-2");
            },
            |tree| {
                let listed = list(tree);
                (listed, [(); 2].map(|()| tree.ino("/a/c") != NONE))
            },
        );
        lister.join().unwrap();
        assert!(
            listed <= found[0] && found[0] <= found[1],
            "DIR-2: {listed} {found:?}"
        );
        assert!(list(&tree), "DIR-1");
        tree.vfs.statistics().missing_by_listing > 0
    });
}

/// DIR-2 and DENTRY-3: during a rename in a directory with a cached listing, a name is found old
/// or new, never neither.
#[test]
fn a_listing_hides_no_name_that_moves() {
    outcomes_are(
        "DIR-2",
        [(false, true), (true, false), (true, true)],
        || {
            let tree = Tree::with_listings("/a/ /a/b");
            assert_eq!(tree.vfs.read_dir(&tree.ctx, "/a").unwrap().count(), 1);
            assert_eq!(tree.ino("/a/d"), NONE);
            tree.beside(
                |tree| tree.rename("/a/b", "/a/c"),
                |tree| {
                    let old = tree.ino("/a/b") != NONE;
                    let new = tree.ino("/a/c") != NONE;
                    assert!(old || new, "DENTRY-3");
                    (old, new)
                },
            )
        },
    );
}
