//! IgetOutcome inodes end under the shuttle model checker: the hook, the last reference, the shrinker,
//! and a peer's FORGETs, against threads that look for the inodes meanwhile.
//!
//! Each line was broken once, and this is what failed (with others, mostly):
//!
//! | broken                                             | caught by                                         |
//! |----------------------------------------------------|---------------------------------------------------|
//! | `evict_with` unhashes before the hook              | `a_lookup_waits_for_the_hook`                     |
//! | it does not lock the bucket before the hook        | `a_comparison_under_the_lock_sees_none_that_is_seen_off` |
//! | `find_inode_locked` passes over the dead           | the same, `a_lookup_waits_for_the_hook`           |
//! | `settle` does not wait for Freeing (a busy loop)   | `a_lookup_waits_for_the_hook`                     |
//! | it returns a New inode without waiting             | `of_two_insertions_one_finds_the_other`           |
//! | `try_insert` does not look                         | `of_two_insertions_one_finds_the_other`           |
//! | it looks, then locks anew and inserts              | `of_two_insertions_one_finds_the_other`           |
//! | it calls `set` before it looks                     | `of_two_insertions_one_finds_the_other`           |
//! | `PendingInode::wait` ignores a failed read-in      | `an_insertion_takes_over_from_one_that_fails`     |
//! | `NewInode::drop` wakes before it unhashes          | `an_insertion_takes_over_from_one_that_fails`     |
//! | it does not unhash, or does not clear NEW          | `an_insertion_takes_over_from_one_that_fails`     |
//! | `meet` takes Creating for New                      | `what_is_being_created_is_stale_or_there`         |
//! | `put_unless_last` tests, then counts down          | `the_last_reference_evicts_once`                  |
//! | `iput_final` kills without looking again           | `the_last_reference_evicts_once`                  |
//! | `evict_last` leaves it on the list                 | `the_last_reference_evicts_once`                  |
//! | `is_last` is never true off the table              | `what_is_unhashed_is_seen_off_by_its_last_reference` |
//! | `unhash` drops the table's count before the list's | `what_is_unhashed_is_seen_off_by_its_last_reference` |
//! | `unhash` leaves it on the list                     | `what_is_unhashed_is_seen_off_by_its_last_reference` |
//! | `kill_if_count_is` ignores the count (with a hook) | `an_inode_is_taken_or_pruned`                     |
//! | `kill_listed_if_count_is` does (without)           | `an_inode_is_taken_or_pruned`                     |
//! | `try_get` takes the dead                           | `an_inode_is_taken_or_pruned`                     |
//! | the dead are not buried, or `Ref::bury` wakes no waiter | `an_inode_is_taken_or_pruned`                   |
//! | `forget` counts down, then locks anew and removes  | `a_lookup_survives_the_last_forget`               |
//! | it does not drop the inode at once                 | `an_id_is_found_or_given_back`                    |
//! | `get` ignores that the inode has been dropped      | `an_id_is_found_or_given_back`                    |
//! | an `Entry` that is dropped gives nothing back      | `an_unsent_entry_is_not_the_peers`                |
//! | `entry` reads the count under one lock, raises it under the next | `each_lookup_counts_once`           |
//! | it inserts without a second look                   | `each_lookup_counts_once`                         |
//!
//! One survives: that the `Known` which lost in `entry` holds its inode until RCU frees
//! it. In a model that is soon.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::shuttle_support::{outcomes_are, spawn};
use rcuwalk::inode::{
    Iget, InUse, InodeCache, InodeRef, Key, Match, Node, NodeId, NodeTable, Numbered, Stale,
    Unwaited,
};
use shuttle::thread::yield_now;

/// The one key that all want.
const INO: u64 = 7;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// The part that a read-in fills in.
///
/// The tests take notes in the standard library's atomics: noting is no step of the model.
struct Part {
    /// Which of all read-ins it was, from 0.
    read: u32,
    id: NodeId,
    /// IgetOutcome many have it.
    held: AtomicU32,
    /// IgetOutcome far its hook is.
    hook: AtomicU32,
    notes: Arc<Notes>,
}

const NOT_CALLED: u32 = 0;
const CALLED: u32 = 1;
const RETURNED: u32 = 2;

impl Numbered for Part {
    fn node_id(&self) -> NodeId {
        self.id
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.notes.parts.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
struct Notes {
    reads: AtomicU32,
    /// Inodes read in whose hook has not returned.
    live: AtomicU32,
    /// Parts not freed.
    parts: AtomicU32,
    hooks: AtomicU32,
}

/// The hook: takes its time.
fn see_off(node: &Node<Ino, Part>) {
    let held = node.held.load(Relaxed);
    assert_eq!(held, 0, "INODE-4: what is seen off is in use");
    let before = node.hook.swap(CALLED, Relaxed);
    assert_eq!(before, NOT_CALLED, "INODE-4: seen off twice");
    yield_now();
    node.hook.store(RETURNED, Relaxed);
    node.notes.live.fetch_sub(1, Relaxed);
    node.notes.hooks.fetch_add(1, Relaxed);
}

type Inode = InodeRef<Ino, Part>;

#[derive(Clone)]
struct Inodes {
    cache: Arc<InodeCache<Ino, Part>>,
    nodes: Arc<NodeTable<Ino, Part>>,
    notes: Arc<Notes>,
    has_hook: bool,
}

/// A reference to an inode, which is not evicted before it is dropped.
struct Got(Inode);

impl Got {
    fn new(inode: Inode) -> Got {
        inode.held.fetch_add(1, Relaxed);
        let hook = inode.hook.load(Relaxed);
        assert_eq!(hook, NOT_CALLED, "INODE-4: found what is seen off");
        Got(inode)
    }
}

impl Deref for Got {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.0
    }
}

impl Drop for Got {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Relaxed);
    }
}

impl Inodes {
    fn new() -> Inodes {
        Inodes::with_hook(true)
    }

    fn with_hook(has_hook: bool) -> Inodes {
        let builder = InodeCache::builder().inodes(100);
        let builder = match has_hook {
            true => builder.on_evict(see_off),
            false => builder,
        };
        Inodes {
            cache: Arc::new(builder.build()),
            nodes: Arc::default(),
            notes: Arc::default(),
            has_hook,
        }
    }

    fn part(&self) -> Part {
        let live = self.notes.live.fetch_add(1, Relaxed);
        assert!(
            live == 0 || !self.has_hook,
            "INODE-1: two inodes of one key"
        );
        self.notes.parts.fetch_add(1, Relaxed);
        Part {
            read: self.notes.reads.fetch_add(1, Relaxed),
            id: self.nodes.new_id(),
            held: AtomicU32::new(0),
            hook: AtomicU32::new(NOT_CALLED),
            notes: self.notes.clone(),
        }
    }

    /// Reads the inode in, or gets the one that is there; and which of it.
    fn settle(&self, found: Iget<'_, Ino, Part>) -> (IgetOutcome, Got) {
        match found {
            Iget::Cached(inode) => (IgetOutcome::Found, Got::new(inode)),
            Iget::New(new) => (IgetOutcome::Read, Got::new(new.init(self.part()))),
        }
    }

    fn iget(&self) -> Got {
        let found = self.cache.iget(Ino(INO));
        self.settle(found.expect("none is being created")).1
    }

    fn ilookup(&self) -> Option<Got> {
        let found = self.cache.ilookup(&Ino(INO));
        found.expect("none is being created").map(Got::new)
    }

    /// By `inode_insert5`; and how often it called `set`.
    fn insert5(&self) -> (Iget<'_, Ino, Part>, u32) {
        let mut sets = 0;
        let found = self
            .cache
            .inode_insert5(self.cache.alloc_inode(), INO, is_it, || {
                sets += 1;
                Ok::<_, Stale>(Ino(INO))
            });
        (found.expect("none is being created"), sets)
    }

    fn hooks(&self) -> u32 {
        self.notes.hooks.load(Relaxed)
    }

    /// Runs `f` in a thread of its own.
    fn beside<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Inodes) -> T + Send + 'static,
    ) -> shuttle::thread::JoinHandle<T> {
        let inodes = self.clone();
        spawn(move || f(&inodes))
    }

    /// All references are gone: this number of inodes is in the cache, and there are no others.
    fn is_left_with(&self, cached: u32) {
        rcuwalk_sync::rcu::barrier();
        let (inodes, _) = self.cache.size();
        let parts = self.notes.parts.load(Relaxed);
        assert_eq!((inodes as u32, parts), (cached, cached), "INODE-4");
    }
}

fn is_it(node: &Node<Ino, Part>) -> bool {
    node.key().0 == INO
}

/// IgetOutcome a thread came by its inode, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum IgetOutcome {
    Read,
    Found,
    /// It had to fill it in, and did not.
    Failed,
    Stale,
    InUse,
}

use IgetOutcome::{Failed, Found, Read};

/// INODE-4: a lookup of an inode that is being freed goes on after the hook has returned and
/// the inode is off the table; so of one key there is never more than one.
#[test]
fn a_lookup_waits_for_the_hook() {
    // Which read-in each of two got, and how many inodes went.
    let expected = [
        (0, Some(0), 0),
        (1, Some(0), 1),
        (1, None, 1),
        (1, Some(1), 1),
    ];
    for by_insertion in [false, true] {
        outcomes_are("INODE-4", expected, move || {
            let inodes = Inodes::new();
            drop(inodes.iget());
            let evictor = inodes.beside(|inodes| inodes.cache.evict_inodes(|key| key.0 == INO));
            let looker = inodes.beside(|inodes| {
                let found = inodes.ilookup();
                let waited = found.is_some() || inodes.hooks() == 1;
                assert!(waited, "INODE-4: gone before its hook has returned");
                found.map(|got| got.read)
            });
            // Held to the end.
            let mine = match by_insertion {
                true => inodes.settle(inodes.insert5().0).1,
                false => inodes.iget(),
            };
            let found = looker.join().unwrap();
            let gone = evictor.join().unwrap();
            assert_eq!(inodes.hooks(), gone as u32, "INODE-4");
            let read = mine.read;
            drop(mine);
            inodes.is_left_with(1);
            (read, found, gone)
        });
    }
}

/// INODE-4: under the lock, no `test` sees the hook's work.
#[test]
fn a_comparison_under_the_lock_sees_none_that_is_seen_off() {
    let expected = [(Some(0), 0), (Some(0), 1), (None, 1)];
    outcomes_are("INODE-4", expected, || {
        let inodes = Inodes::new();
        drop(inodes.iget());
        let evictor = inodes.beside(|inodes| inodes.cache.drop_unused());
        let found = inodes.cache.ilookup5(INO, |node| {
            yield_now();
            let hook = node.hook.load(Relaxed);
            assert_eq!(hook, NOT_CALLED, "INODE-4: `test` sees what the hook does");
            is_it(node)
        });
        let found = found.expect("none is being created").map(Got::new);
        let waited = found.is_some() || inodes.hooks() == 1;
        assert!(waited, "INODE-4: gone before its hook has returned");
        let read = found.map(|got| got.read);
        (read, evictor.join().unwrap())
    });
}

/// INODE-1: of several threads that insert, one does; the others get its inode, and their own
/// `set` is not called.
#[test]
fn of_two_insertions_one_finds_the_other() {
    let one = [
        [Read, Found, Found],
        [Found, Read, Found],
        [Found, Found, Read],
    ];
    outcomes_are("INODE-1", one, || {
        let inodes = Inodes::new();
        let insert = |inodes: &Inodes| {
            let (found, sets) = inodes.insert5();
            let (how, got) = inodes.settle(found);
            assert_eq!(sets, u32::from(how == Read), "INODE-1: the loser's `set`");
            (how, got)
        };
        let other = inodes.beside(insert);
        let getter = inodes.beside(|inodes| {
            let found = inodes.cache.iget(Ino(INO));
            inodes.settle(found.expect("none is being created"))
        });
        let all = [
            insert(&inodes),
            other.join().unwrap(),
            getter.join().unwrap(),
        ];
        let is_one = all.iter().all(|(_, got)| Inode::ptr_eq(got, &all[0].1));
        assert!(is_one, "INODE-1");
        all.map(|(how, _)| how)
    });
}

/// INODE-3: an insertion that found another one's inode inserts its own when that one
/// fails.
#[test]
fn an_insertion_takes_over_from_one_that_fails() {
    outcomes_are("INODE-3", [[Failed, Read], [Read, Failed]], || {
        let inodes = Inodes::new();
        let fails = Arc::new(AtomicU32::new(0));
        let insert = move |inodes: &Inodes| {
            let (found, sets) = inodes.insert5();
            assert_eq!(sets, 1, "INODE-1");
            if fails.fetch_add(1, Relaxed) == 0 {
                drop(found);
                return Failed;
            }
            inodes.settle(found).0
        };
        let other = inodes.beside(insert.clone());
        let how = [insert(&inodes), other.join().unwrap()];
        inodes.is_left_with(1);
        how
    });
}

/// INODE-2: a lookup of an inode that is being created gets Stale or the finished inode; a
/// thread that reads it in keeps it from being created.
#[test]
fn what_is_being_created_is_stale_or_there() {
    let created = [
        (Read, IgetOutcome::Stale),
        (Read, Found),
        (IgetOutcome::InUse, Read),
    ];
    let failed = [
        (Failed, IgetOutcome::Stale),
        (Failed, Read),
        (IgetOutcome::InUse, Read),
    ];
    for (fails, expected) in [(false, created), (true, failed)] {
        outcomes_are("INODE-2", expected, move || {
            let inodes = Inodes::new();
            let getter = inodes.beside(|inodes| match inodes.cache.iget(Ino(INO)) {
                Ok(found) => inodes.settle(found).0,
                Err(Stale) => IgetOutcome::Stale,
            });
            let mine = match inodes.cache.insert_inode(Ino(INO)) {
                Ok(new) if fails => {
                    drop(new);
                    Failed
                }
                Ok(new) => {
                    yield_now();
                    Got::new(new.init(inodes.part()));
                    Read
                }
                Err(InUse) => IgetOutcome::InUse,
            };
            let other = getter.join().unwrap();
            inodes.is_left_with(u32::from((mine, other) != (Failed, IgetOutcome::Stale)));
            (mine, other)
        });
    }
}

/// INODE-1: of two threads that create an inode, one does.
#[test]
fn a_key_is_created_once() {
    let expected = [[Read, IgetOutcome::InUse], [IgetOutcome::InUse, Read]];
    outcomes_are("INODE-1", expected, || {
        let inodes = Inodes::new();
        let create = |inodes: &Inodes| match inodes.cache.insert_inode(Ino(INO)) {
            Ok(new) => {
                Got::new(new.init(inodes.part()));
                Read
            }
            Err(InUse) => IgetOutcome::InUse,
        };
        let other = inodes.beside(create);
        let both = [create(&inodes), other.join().unwrap()];
        inodes.is_left_with(1);
        both
    });
}

/// INODE-4: of two last references to an inode that is not to be cached one is the last, and
/// evicts it; or another thread takes it again, and evicts it later.
#[test]
fn the_last_reference_evicts_once() {
    // Which read-in the third got, and how many are left.
    outcomes_are("INODE-4", [(0, 0), (1, 1)], || {
        let inodes = Inodes::new();
        let first = inodes.iget();
        first.dont_cache();
        let second = Got::new(first.0.clone());
        let other = inodes.beside(|_| drop(second));
        let getter = inodes.beside(|inodes| {
            let got = inodes.iget();
            yield_now();
            got.read
        });
        drop(first);
        other.join().unwrap();
        let read = getter.join().unwrap();
        assert_eq!(inodes.hooks(), 1, "INODE-4: evicted once");
        inodes.is_left_with(read);
        (read, inodes.cache.size().0)
    });
}

/// INODE-4: an unhashed inode is passed to the hook once, after its last reference, also if
/// another thread reclaims meanwhile.
#[test]
fn what_is_unhashed_is_seen_off_by_its_last_reference() {
    outcomes_are("INODE-4", [(0, 1)], || {
        let inodes = Inodes::new();
        let first = inodes.iget();
        let second = Got::new(first.0.clone());
        let other = inodes.beside(|_| drop(second));
        let pruner = inodes.beside(|inodes| inodes.cache.drop_unused());
        inodes.cache.unhash(&first);
        drop(first);
        other.join().unwrap();
        let pruned = pruner.join().unwrap();
        inodes.is_left_with(0);
        (pruned, inodes.hooks())
    });
}

/// MEM-1: of the shrinker and threads that take the inode without waiting, one wins.
#[test]
fn an_inode_is_taken_or_pruned() {
    for has_hook in [true, false] {
        outcomes_are("MEM-1", [([true; 3], 0), ([false; 3], 1)], move || {
            let inodes = Inodes::with_hook(has_hook);
            drop(inodes.iget());
            let pruner = inodes.beside(|inodes| inodes.cache.prune_now(10));
            let nowait = inodes.beside(|inodes| {
                let found = inodes.cache.ilookup5_nowait(INO, is_it);
                found.unwrap().map(|found| match found {
                    Unwaited::Inode(inode) => Got::new(inode),
                    Unwaited::New(_) => panic!("INODE-2: it has been read in"),
                })
            });
            let grabber = inodes.beside(|inodes| {
                let found = inodes.cache.find_inode_nowait(INO, |_| Match::Take);
                found.map(Got::new)
            });
            // Held to the end, all of them.
            let all = [
                inodes.ilookup(),
                nowait.join().unwrap(),
                grabber.join().unwrap(),
            ];
            let gone = pruner.join().unwrap();
            let found = all.map(|got| got.is_some());
            inodes.is_left_with(1 - gone as u32);
            (found, gone)
        });
    }
}

/// NODE-1: a LOOKUP that meets the last FORGET leaves an id that is known, once.
#[test]
fn a_lookup_survives_the_last_forget() {
    // Which read-in the LOOKUP got, and how many inodes went.
    outcomes_are("NODE-1", [(0, 0), (1, 1)], || {
        let inodes = Inodes::new();
        let id = known(&inodes, 1);
        let forgetter = inodes.beside(move |inodes| {
            let known = inodes.nodes.forget(id, 1);
            known.expect("NODE-1: the peer had it");
            inodes.cache.drop_unused()
        });
        let got = inodes.iget();
        let again = inodes.nodes.entry(got.0.clone()).sent();
        let found = inodes.nodes.get(again);
        let found = found.expect("NODE-1: the peer has been told of it");
        assert!(Inode::ptr_eq(&found, &got), "NODE-1");
        let read = got.read;
        drop((found, got));
        let gone = forgetter.join().unwrap();
        assert_eq!(inodes.nodes.lookups(again), 1, "NODE-1");
        inodes.nodes.get(again).expect("NODE-1: it is known");
        is_forgotten_with(&inodes, again, 1);
        (read, gone)
    });
}

/// NODE-1: a reply that could not be sent takes its own LOOKUP back and no other, and its inode
/// is released.
#[test]
fn an_unsent_entry_is_not_the_peers() {
    outcomes_are("NODE-1", [(true, 0), (false, 1)], || {
        let inodes = Inodes::new();
        let id = known(&inodes, 1);
        let unsent = inodes.beside(|inodes| {
            if let Some(got) = inodes.ilookup() {
                drop(inodes.nodes.entry(got.0.clone()));
            }
        });
        let getter = inodes.beside(move |inodes| inodes.nodes.get(id).map(Got::new).ok());
        inodes.nodes.forget(id, 1).expect("NODE-1: the peer had it");
        unsent.join().unwrap();
        // Held, so that it does not go.
        let found = getter.join().unwrap();
        assert_eq!(inodes.nodes.lookups(id), 0, "NODE-1");
        assert!(inodes.nodes.is_empty() && inodes.nodes.get(id).is_err());
        let gone = inodes.cache.drop_unused();
        (found.is_some(), gone)
    });
}

/// NODE-1: `get` returns an inode that stays, or finds the id given back.
#[test]
fn an_id_is_found_or_given_back() {
    outcomes_are("NODE-1", [(true, 0), (false, 1)], || {
        let inodes = Inodes::new();
        let id = known(&inodes, 1);
        let forgetter = inodes.beside(move |inodes| {
            inodes.nodes.forget(id, 1).expect("NODE-1: the peer had it");
            inodes.cache.drop_unused()
        });
        // Held to the end.
        let found = inodes.nodes.get(id).map(Got::new);
        let gone = forgetter.join().unwrap();
        (found.is_ok(), gone)
    });
}

/// NODE-1: no LOOKUP is lost or counted twice, however many there are at a time.
#[test]
fn each_lookup_counts_once() {
    // The number of LOOKUPs that the peer had before two more, and the result: whether it had
    // any to give two back of, and the rest.
    let known_before = [(true, 2)].as_slice();
    let unknown_before = [(false, 2), (true, 1), (true, 0)].as_slice();
    for (before, expected) in [(2, known_before), (0, unknown_before)] {
        outcomes_are("NODE-1", expected.iter().copied(), move || {
            let inodes = Inodes::new();
            let id = known(&inodes, before);
            let others = [(); 2].map(|()| {
                inodes.beside(|inodes| inodes.nodes.entry(inodes.iget().0.clone()).sent())
            });
            let had_any = inodes.nodes.forget(id, 2).is_ok();
            for other in others {
                assert_eq!(other.join().unwrap(), id, "NODE-1");
            }
            let left = inodes.nodes.lookups(id);
            assert_eq!(inodes.nodes.get(id).is_ok(), left > 0, "NODE-1");
            is_forgotten_with(&inodes, id, left);
            (had_any, left)
        });
    }
}

/// An inode that the peer has been told of this many times.
fn known(inodes: &Inodes, times: u64) -> NodeId {
    let got = inodes.iget();
    for _ in 0..times {
        let _ = inodes.nodes.entry(got.0.clone()).sent();
    }
    got.node_id()
}

/// The peer gives the rest back: the inode is unused, and can go.
fn is_forgotten_with(inodes: &Inodes, id: NodeId, left: u64) {
    let had_any = inodes.nodes.forget(id, left).is_ok();
    assert_eq!(had_any, left > 0, "NODE-1");
    assert!(inodes.nodes.is_empty(), "NODE-1");
    assert_eq!(inodes.cache.drop_unused(), 1, "NODE-1: nobody has it");
    inodes.is_left_with(0);
}
