//! The inode cache under the shuttle model checker: reading in, failing to, and
//! evicting, all at once.
//!
//! Each line was broken once, and this is what failed (with others, mostly):
//!
//! | broken                                              | caught by                             |
//! |-----------------------------------------------------|---------------------------------------|
//! | `try_insert` does not look                          | `one_reads_in_and_all_get_it`         |
//! | it looks, then locks anew and inserts               | `one_reads_in_and_all_get_it`         |
//! | it calls `set` before it looks                      | `a_failed_read_in_passes_to_a_waiter` |
//! | `NewInode::init` wakes before it fills in           | `one_reads_in_and_all_get_it`         |
//! | `NewInode::drop` wakes before it unhashes           | `a_failed_read_in_passes_to_a_waiter` |
//! | it does not unhash, or does not clear NEW           | `a_failed_read_in_passes_to_a_waiter` |
//! | `settle` does not wait for New                      | `one_reads_in_and_all_get_it`         |
//! | it does not wait for Freeing (a busy loop)          | `an_inode_is_used_or_evicted`         |
//! | `PendingInode::wait` ignores a failed read-in       | `a_failed_read_in_passes_to_a_waiter` |
//! | `find_inode_rcu` returns an inode that has left the table | `a_failed_read_in_passes_to_a_waiter` |
//! | `look` trusts a miss without the lock               | `one_reads_in_while_the_table_grows`  |
//! | `unhash` leaves it on the list                      | `an_unhashed_inode_is_on_no_list`     |
//! | the dead stay hashed, or `Ref::bury` wakes no waiter | `an_inode_is_used_or_evicted`        |
//! | `kill_listed_if_count_is` ignores the count         | `an_inode_is_used_or_evicted`         |
//! | `try_get` takes the dead                            | `an_inode_is_used_or_evicted`         |
//! | `try_get` takes those of count 0 (a double free)    | `one_reads_in_while_the_table_grows`  |
//! | `Shared::clear`, or `insert_new`, wakes no waiter   | `one_reads_in_and_all_get_it`         |
//!
//! Hooks and last references, off the default path, have models of their own:
//! `shuttle_lifetimes.rs`.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::shuttle_support::{Census, Held, outcomes_are, spawn};
use rcuwalk::inode::{Iget, InodeCache, InodeRef, Key};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// The part that a read-in fills in.
struct Part {
    ino: u64,
    /// Which of all read-ins it was, from 0.
    read: u32,
    alive: Arc<AtomicU32>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Relaxed);
    }
}

type Inode = InodeRef<Ino, Part>;

/// A cache, and its state as known without asking it.
///
/// The tests take notes in the standard library's atomics: noting is no step of the model.
#[derive(Clone)]
struct Inodes {
    cache: Arc<InodeCache<Ino, Part>>,
    census: Census,
    reads: Arc<AtomicU32>,
    alive: Arc<AtomicU32>,
}

/// A reference to an inode, in the census.
struct Got {
    _held: Held,
    inode: Inode,
    /// Whether this thread read it in.
    is_mine: bool,
}

impl Deref for Got {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Inodes {
    fn new() -> Inodes {
        Inodes {
            // A budget so small that there is one list.
            cache: Arc::new(InodeCache::builder().inodes(100).build()),
            census: Census::default(),
            reads: Arc::default(),
            alive: Arc::default(),
        }
    }

    /// Reads the inode in, or gets the one that is there.
    fn iget(&self, ino: u64) -> Got {
        match self.cache.iget(Ino(ino)).expect("none is being created") {
            Iget::Cached(inode) => self.got(ino, inode, false),
            Iget::New(new) => self.got(ino, new.init(self.part(ino)), true),
        }
    }

    /// The number of the read-in that `iget` gets. A held inode is found, until it is released.
    fn use_for_a_while(&self, ino: u64) -> u32 {
        let got = self.iget(ino);
        let again = self.ilookup(ino).expect("INODE-4: what is held is found");
        assert!(Inode::ptr_eq(&got, &again), "INODE-1");
        got.read
    }

    fn ilookup(&self, ino: u64) -> Option<Got> {
        let found = self.cache.ilookup(&Ino(ino));
        let inode = found.expect("none is being created")?;
        Some(self.got(ino, inode, false))
    }

    fn part(&self, ino: u64) -> Part {
        self.alive.fetch_add(1, Relaxed);
        Part {
            ino,
            read: self.reads.fetch_add(1, Relaxed),
            alive: self.alive.clone(),
        }
    }

    /// All references are gone: this number of inodes is in the cache, and there are no others.
    fn is_left_with(&self, cached: u32) {
        rcuwalk_sync::rcu::barrier();
        let (inodes, _) = self.cache.size();
        let alive = self.alive.load(Relaxed);
        assert_eq!((inodes as u32, alive), (cached, cached), "INODE-4");
    }

    fn got(&self, ino: u64, inode: Inode, is_mine: bool) -> Got {
        assert_eq!((inode.key(), inode.ino), (&Ino(ino), ino), "INODE-2");
        let address = std::ptr::from_ref(&*inode).addr();
        Got {
            _held: self.census.hold(ino, address),
            inode,
            is_mine,
        }
    }
}

/// IgetOutcome a thread came by its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum IgetOutcome {
    /// It had to read it in, and failed.
    Failed,
    Read,
    Found,
}

/// INODE-1: of all threads that want an inode, one reads it in and all get that one.
#[test]
fn one_reads_in_and_all_get_it() {
    outcomes_are("INODE-1", one_of_three(true, false), || {
        let inodes = Inodes::new();
        let others = [(); 2].map(|()| {
            let inodes = inodes.clone();
            spawn(move || inodes.iget(7))
        });
        let mine = inodes.iget(7);
        let [a, b] = others.map(|other| other.join().unwrap());
        assert_eq!((mine.read, a.read, b.read), (0, 0, 0), "INODE-1");
        [mine, a, b].map(|got| got.is_mine)
    });
}

/// INODE-1: as above while the table grows, and existing inodes stay found.
#[test]
fn one_reads_in_while_the_table_grows() {
    outcomes_are("INODE-1", [[true, false], [false, true]], || {
        let inodes = Inodes::new();
        // As many as there are heads: each further one makes it grow.
        let old = [1, 2].map(|ino| inodes.iget(ino).read);
        let grower = {
            let inodes = inodes.clone();
            spawn(move || {
                inodes.iget(3);
                inodes.iget(4);
            })
        };
        let other = {
            let inodes = inodes.clone();
            spawn(move || inodes.iget(7))
        };
        let mine = inodes.iget(7);
        assert_eq!(
            inodes.ilookup(1).map(|got| got.read),
            Some(old[0]),
            "INODE-1"
        );
        let other = other.join().unwrap();
        grower.join().unwrap();
        assert_eq!(inodes.iget(2).read, old[1], "INODE-1");
        assert!(Inode::ptr_eq(&mine, &other), "INODE-1");
        [mine.is_mine, other.is_mine]
    });
}

/// INODE-3: when the read-in fails, one waiter becomes the new reader, and the others wait for
/// that one.
#[test]
fn a_failed_read_in_passes_to_a_waiter() {
    use IgetOutcome::*;
    let expected = [
        [Failed, Read, Found],
        [Failed, Found, Read],
        [Read, Failed, Found],
        [Read, Found, Failed],
        [Found, Failed, Read],
        [Found, Read, Failed],
    ];
    outcomes_are("INODE-3", expected, || {
        let inodes = Inodes::new();
        let has_failed = Arc::new(AtomicBool::new(false));
        let get = move |inodes: &Inodes| match inodes.cache.iget(Ino(7)).unwrap() {
            Iget::Cached(inode) => (Found, Some(inodes.got(7, inode, false))),
            Iget::New(_) if !has_failed.swap(true, Relaxed) => (Failed, None),
            Iget::New(new) => {
                let inode = new.init(inodes.part(7));
                (Read, Some(inodes.got(7, inode, true)))
            }
        };
        let others = [(); 2].map(|()| {
            let (inodes, get) = (inodes.clone(), get.clone());
            spawn(move || get(&inodes))
        });
        let mine = get(&inodes);
        let [a, b] = others.map(|other| other.join().unwrap());
        let got = [mine, a, b];
        assert_eq!(inodes.reads.load(Relaxed), 1, "INODE-3");
        got.map(|(how, _)| how)
    });
}

/// INODE-4: an inode is used or evicted, and a lookup after the eviction reads a new one in.
#[test]
fn an_inode_is_used_or_evicted() {
    // Which read-in the two threads got, and how many inodes went.
    let expected = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)];
    outcomes_are("INODE-4", expected, || {
        let inodes = Inodes::new();
        inodes.iget(7);
        let user = {
            let inodes = inodes.clone();
            spawn(move || inodes.use_for_a_while(7))
        };
        let pruner = {
            let cache = inodes.cache.clone();
            spawn(move || cache.drop_unused())
        };
        let mine = inodes.use_for_a_while(7);
        let other = user.join().unwrap();
        let gone = pruner.join().unwrap();
        inodes.is_left_with(inodes.reads.load(Relaxed) - gone as u32);
        (mine, other, gone)
    });
}

/// INODE-4: a held inode stays, and other threads find that one.
#[test]
fn what_is_held_is_not_evicted() {
    // The read-in that the other thread found after the holder had dropped it, or before.
    let expected = [(Some(0), 0), (Some(0), 1), (None, 1)];
    outcomes_are("INODE-4", expected, || {
        let inodes = Inodes::new();
        let first = inodes.iget(7);
        let pruner = {
            let cache = inodes.cache.clone();
            spawn(move || cache.prune_now(10))
        };
        let other = {
            let inodes = inodes.clone();
            spawn(move || inodes.ilookup(7).map(|got| got.read))
        };
        // Another reference, then without the first: never without any.
        let second = inodes.got(7, first.inode.clone(), false);
        drop(first);
        let third = inodes.ilookup(7);
        let third = third.expect("INODE-4: what is held is found");
        assert!(Inode::ptr_eq(&second, &third), "INODE-1");
        drop((second, third));
        let found = other.join().unwrap();
        let gone = pruner.join().unwrap();
        inodes.is_left_with(1 - gone as u32);
        (found, gone)
    });
}

/// INODE-4: an inode unhashed while its reader puts it on the list leaves both the
/// table and the list.
#[test]
fn an_unhashed_inode_is_on_no_list() {
    outcomes_are("INODE-4", [true, false], || {
        let inodes = Inodes::new();
        let unlinker = {
            let inodes = inodes.clone();
            spawn(move || match inodes.ilookup(7) {
                Some(got) => {
                    inodes.cache.unhash(&got);
                    true
                }
                None => false,
            })
        };
        inodes.iget(7);
        let unhashed = unlinker.join().unwrap();
        inodes.is_left_with(u32::from(!unhashed));
        unhashed
    });
}

fn one_of_three<T: Copy>(it: T, others: T) -> [[T; 3]; 3] {
    [0, 1, 2].map(|at| {
        let mut all = [others; 3];
        all[at] = it;
        all
    })
}
