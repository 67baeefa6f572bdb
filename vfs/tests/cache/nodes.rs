//! Node ids, their lookup counts, and FORGET (NODE-1).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::common::Random;
use crate::common::inodes::{
    Cache as AnyCache, Ino, Log, Node, builder, eventually, ino, is_cached,
};
use rcuwalk::inode::{Iget, InodeRef, NodeId, NodeTable, Numbered, Scheme, Stale, SweepCursor};
use rcuwalk_sync::rcu;

/// The part of an inode in these tests: the id that a peer knows it by.
struct Part(NodeId);

impl Numbered for Part {
    fn node_id(&self) -> NodeId {
        self.0
    }
}

type Cache = AnyCache<Part>;
type Inode = InodeRef<Ino, Part>;
type Nodes = NodeTable<Ino, Part>;

fn cache() -> Cache {
    builder(Scheme::OURS).build()
}

fn read(cache: &Cache, nodes: &Nodes, number: u64) -> Inode {
    match cache.iget(ino(number)).unwrap() {
        Iget::Cached(inode) => inode,
        Iget::New(new) => new.init(Part(nodes.new_id())),
    }
}

/// NODE-1: an id stands for its inode for as long as the peer has LOOKUPs of it, holds
/// it in the cache meanwhile, and is stale before and after.
#[test]
fn an_id_lives_from_the_first_lookup_to_the_last_forget() {
    let (cache, nodes) = (cache(), Nodes::new());
    let inode = read(&cache, &nodes, 7);
    let id = inode.node_id();
    assert_eq!(nodes.get(id).err(), Some(Stale), "NODE-1: nobody was told");
    assert_eq!(nodes.forget(id, 1), Err(Stale), "NODE-1");
    for count in 1..=5 {
        assert_eq!(nodes.entry(inode.clone()).sent(), id, "NODE-1");
        assert_eq!((nodes.lookups(id), nodes.len()), (count, 1), "NODE-1");
    }
    drop(inode);
    assert_eq!(cache.drop_unused(), 0, "NODE-1: in use by the peer");
    assert_eq!(nodes.get(id).unwrap().key().number, 7, "NODE-1");
    assert_eq!(nodes.forget(id, 0), Ok(()), "NODE-1");
    assert_eq!(nodes.forget(id, 2), Ok(()), "NODE-1");
    assert_eq!(nodes.lookups(id), 3, "NODE-1");
    assert_eq!(nodes.forget(id, 3), Ok(()), "NODE-1");
    assert_eq!(nodes.get(id).err(), Some(Stale), "NODE-1");
    assert_eq!((nodes.lookups(id), nodes.len()), (0, 0), "NODE-1");
    assert_eq!(
        nodes.forget(id, 1),
        Err(Stale),
        "NODE-1: a count never goes below"
    );
    assert_eq!(cache.drop_unused(), 1, "NODE-1: nobody uses it any more");
}

/// NODE-1: an entry carries its inode, and gives its count back unless it was sent.
#[test]
fn an_entry_that_was_not_sent_takes_its_lookup_back() {
    let (cache, nodes) = (cache(), Nodes::new());
    let entry = nodes.entry(read(&cache, &nodes, 1));
    let id = entry.id();
    assert_eq!(entry.inode().key().number, 1);
    assert_eq!(nodes.lookups(id), 1, "NODE-1");
    let second = nodes.entry(entry.inode().clone());
    drop(entry);
    assert_eq!(nodes.lookups(id), 1, "NODE-1: one of two");
    assert_eq!(second.sent(), id);
    let third = nodes.entry(nodes.get(id).unwrap());
    assert_eq!(nodes.lookups(id), 2, "NODE-1");
    drop(third);
    assert_eq!(nodes.forget(id, 1), Ok(()), "NODE-1: the peer's own");
    assert_eq!((nodes.len(), cache.drop_unused()), (0, 1), "NODE-1");
}

/// NODE-1: while the peer knows one inode by an id, no other gets it; whose turn it is
/// afterwards is for the next LOOKUP to say.
#[test]
fn an_id_that_is_taken_is_not_given_to_another() {
    let (cache, nodes) = (cache(), Nodes::new());
    let named = |number, id| match cache.iget(ino(number)).unwrap() {
        Iget::New(new) => new.init(Part(NodeId(id))),
        Iget::Cached(_) => panic!("there is none yet"),
    };
    let (first, second) = (named(1, 77), named(2, 77));
    let id = nodes.try_entry(first.clone()).unwrap().sent();
    assert_eq!(id, NodeId(77));
    assert!(nodes.try_entry(second.clone()).is_err(), "NODE-1");
    assert_eq!(nodes.lookups(id), 1, "NODE-1: not counted for the other");
    assert_eq!(nodes.try_entry(first).unwrap().sent(), id, "NODE-1");
    assert_eq!(nodes.get(id).unwrap().key().number, 1, "NODE-1");
    assert_eq!(nodes.forget(id, 2), Ok(()));
    assert_eq!(nodes.try_entry(second).unwrap().sent(), id, "NODE-1");
    assert_eq!(nodes.get(id).unwrap().key().number, 2, "NODE-1");
    assert_eq!(nodes.forget(id, 1), Ok(()));
    assert!(nodes.is_empty(), "NODE-1");
}

/// NODE-1: a peer that gives back more than it had has given back all, in one FORGET or in
/// many.
#[test]
fn more_than_was_given_counts_as_all() {
    let (cache, nodes) = (cache(), Nodes::new());
    let ids: Vec<NodeId> = (0..10)
        .map(|n| nodes.entry(read(&cache, &nodes, n)).sent())
        .collect();
    assert_eq!(nodes.forget(ids[0], u64::MAX), Ok(()), "NODE-1");
    assert_eq!(nodes.get(ids[0]).err(), Some(Stale), "NODE-1");
    let unknown = NodeId(1 << 60);
    let all = ids.iter().chain([&unknown, &NodeId(0)]);
    let stale = nodes.batch_forget(all.map(|id| (*id, 5)));
    assert_eq!(stale, 3, "NODE-1: one was given back, two were never given");
    assert!(nodes.is_empty(), "NODE-1");
    assert_eq!(cache.drop_unused(), 10, "NODE-1");
}

/// NODE-1: all names of an inode have one id, for every caller; it is the id that the inode has
/// again when it is looked up after the last FORGET, and a new one when it has been read in
/// anew.
#[test]
fn hard_links_share_an_id() {
    let (cache, nodes) = (cache(), Nodes::new());
    let ids: HashSet<NodeId> = thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| nodes.entry(read(&cache, &nodes, 1)).sent()))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let id = *ids.iter().next().unwrap();
    assert_eq!(
        (ids.len(), nodes.lookups(id), nodes.len()),
        (1, 4, 1),
        "NODE-1"
    );
    nodes.forget(id, 4).unwrap();
    let again = nodes.entry(read(&cache, &nodes, 1)).sent();
    assert_eq!(again, id, "NODE-1: it is still cached");
    nodes.forget(id, 1).unwrap();
    assert_eq!(cache.drop_unused(), 1);
    let anew = nodes.entry(read(&cache, &nodes, 1)).sent();
    assert_ne!(anew, id, "NODE-1: never used for a second inode");
    assert_eq!(nodes.get(id).err(), Some(Stale), "NODE-1");
}

/// NODE-1: no id is drawn twice, by whichever thread, also where one thread ends and
/// another one takes its place; the first one is the root's.
#[test]
fn ids_are_never_drawn_twice() {
    let nodes = Nodes::new();
    assert_eq!(nodes.new_id(), NodeId::ROOT, "NODE-1");
    let mut seen = HashSet::from([NodeId::ROOT, NodeId(0)]);
    for _ in 0..4 {
        let drawn: Vec<Vec<NodeId>> = thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..1500).map(|_| nodes.new_id()).collect()))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for id in drawn.into_iter().flatten() {
            assert!(seen.insert(id), "NODE-1: {id:?}");
        }
    }
}

/// NODE-1: the last FORGET of an inode that is not to be cached is its end, on the spot;
/// the ids of one table mean nothing to another.
#[test]
fn the_last_forget_is_an_iput() {
    let log = Log::default();
    let cache: Cache = builder(Scheme::OURS).on_evict(log.hook()).build();
    let [nodes, others] = [(); 2].map(|()| Nodes::new());
    let inode = read(&cache, &nodes, 1);
    inode.dont_cache();
    let id = nodes.entry(inode.clone()).sent();
    assert_eq!(others.get(id).err(), Some(Stale), "NODE-1");
    drop(inode);
    assert_eq!(log.take(), [], "NODE-1: the peer has it");
    nodes.forget(id, 1).unwrap();
    assert_eq!(log.take(), [1], "NODE-1");
    assert!(!is_cached(&cache, ino(1)));
    // A table that is dropped drops all its inodes.
    let left: Vec<_> = (2..5).map(|n| read(&cache, &nodes, n)).collect();
    for inode in left {
        nodes.entry(inode).sent();
    }
    drop(nodes);
    rcu::barrier();
    assert_eq!(cache.drop_unused(), 3, "NODE-1");
}

/// NODE-1: two that make an id known at once leave no more than its counts behind: the
/// last FORGET ends the inode on the spot, not after a grace period.
#[test]
fn a_lookup_that_loses_holds_nothing() {
    let log = Log::default();
    let cache: Cache = builder(Scheme::OURS).on_evict(log.hook()).build();
    let nodes = Nodes::new();
    // Keeps retired objects from being freed.
    let guard = rcu::read_lock();
    for round in 0..200 {
        let start = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let inode = read(&cache, &nodes, round);
                    start.wait();
                    nodes.entry(inode).sent()
                });
            }
        });
        thread::scope(|scope| {
            let last = scope.spawn(|| {
                let inode = read(&cache, &nodes, round);
                inode.dont_cache();
                let id = inode.node_id();
                assert_eq!(nodes.lookups(id), 2, "NODE-1");
                drop(inode);
                nodes.forget(id, 2).unwrap();
            });
            last.join().unwrap();
        });
        assert_eq!(log.take(), [round], "NODE-1");
    }
    drop(guard);
}

/// NODE-1: LOOKUP and FORGET that meet at the last count, over and over: an id that was
/// sent stands for its inode until it is given back, and in the end nothing is left.
#[test]
fn forget_meets_lookup_at_the_last_count() {
    const THREADS: u64 = 4;
    let (cache, nodes) = (cache(), Nodes::new());
    let rounds = crate::common::stress_ops(3_000, 30_000);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (cache, nodes) = (&cache, &nodes);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..rounds {
                    let number = random.below(2) as u64;
                    let inode = read(cache, nodes, number);
                    if random.below(8) == 0 {
                        inode.dont_cache();
                    }
                    let entry = nodes.entry(inode);
                    if random.below(8) == 0 {
                        continue;
                    }
                    let id = entry.sent();
                    let found = nodes.get(id).expect("NODE-1: we have a count");
                    assert_eq!(found.node_id(), id, "NODE-1");
                    assert_eq!(found.key().number, number, "NODE-1");
                    drop(found);
                    nodes.forget(id, 1).expect("NODE-1: our count");
                }
            });
        }
    });
    assert!(nodes.is_empty(), "NODE-1: every count is zero");
    let cached = cache.size().0;
    assert_eq!(cache.drop_unused(), cached, "NODE-1: nobody uses any");
}

/// NODE-1: a count is the LOOKUPs sent less those returned, by whichever threads: a forgetting
/// thread returns in batches the LOOKUPs of other threads.
#[test]
fn counts_agree_with_a_model() {
    const KEYS: usize = 40;
    let (cache, nodes) = (cache(), Nodes::new());
    // Held, so that each keeps its id.
    let held: Vec<Inode> = (0..KEYS).map(|n| read(&cache, &nodes, n as u64)).collect();
    let owed: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let lookups: Vec<_> = (0..3)
            .map(|seed| {
                let (nodes, owed, held) = (&nodes, &owed, &held);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..2000 {
                        let n = random.below(KEYS);
                        let entry = nodes.entry(held[n].clone());
                        if random.below(5) > 0 {
                            entry.sent();
                            owed[n].fetch_add(1, SeqCst);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = Random::new(9);
            while !done.load(SeqCst) {
                let some = (0..8).map(|_| {
                    let n = random.below(KEYS);
                    let most = owed[n].load(SeqCst) as usize;
                    let back = random.below(most + 1) as u64;
                    owed[n].fetch_sub(back, SeqCst);
                    (held[n].node_id(), back)
                });
                let some: Vec<_> = some.filter(|(_, back)| *back > 0).collect();
                assert_eq!(nodes.batch_forget(some), 0, "NODE-1: it had them all");
            }
        });
        for one in lookups {
            one.join().unwrap();
        }
        done.store(true, SeqCst);
    });
    for (inode, owed) in held.iter().zip(&owed) {
        let id = inode.node_id();
        assert_eq!(nodes.lookups(id), owed.load(SeqCst), "NODE-1: {id:?}");
        assert_eq!(nodes.get(id).is_ok(), owed.load(SeqCst) > 0, "NODE-1");
        let _ = nodes.forget(id, owed.load(SeqCst));
    }
    assert!(nodes.is_empty(), "NODE-1");
    drop(held);
    assert_eq!(cache.drop_unused(), KEYS, "NODE-1");
}

/// NODE-1: an id that the peer has is found, whatever the table is doing.
#[test]
fn a_growing_table_hides_no_id() {
    let (cache, nodes) = (cache(), Nodes::new());
    let known: Vec<NodeId> = (0..200)
        .map(|n| nodes.entry(read(&cache, &nodes, n)).sent())
        .collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..3 {
                let more: Vec<_> = (1000..5000)
                    .map(|n| (nodes.entry(read(&cache, &nodes, n)).sent(), 1))
                    .collect();
                assert_eq!(nodes.batch_forget(more), 0, "NODE-1: {round}");
            }
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            for (n, id) in (0..).zip(&known) {
                let found = nodes.get(*id).expect("NODE-1: the peer has it");
                assert_eq!(found.key().number, n, "NODE-1");
            }
        }
    });
    assert_eq!(nodes.len(), known.len(), "NODE-1");
}

/// NODE-1: an id keeps its inode in use, so it is not evicted under the peer.
#[test]
fn a_known_inode_is_never_evicted() {
    let known: Arc<AtomicU64> = Arc::default();
    let cache: Cache = builder(Scheme::OURS)
        .inodes(10)
        .worker()
        .on_evict({
            let known = known.clone();
            move |node: &Node<Part>| _ = known.fetch_add((node.key().number < 100).into(), SeqCst)
        })
        .build();
    let nodes = Nodes::new();
    let ids: Vec<NodeId> = (0..100)
        .map(|n| nodes.entry(read(&cache, &nodes, n)).sent())
        .collect();
    (1000..2000).for_each(|n| drop(read(&cache, &nodes, n)));
    cache.drop_unused();
    assert_eq!((known.load(SeqCst), cache.size().0), (0, 100), "NODE-1");
    nodes.batch_forget(ids.iter().map(|id| (*id, 1)));
    cache.drop_unused();
    eventually("NODE-1: then they go", || known.load(SeqCst) == 100);
}

/// NODE-1: a sweep visits all known ids, each once while the table keeps its size, in steps of
/// the requested length; and it counts for no LOOKUP.
#[test]
fn a_sweep_goes_round_the_table() {
    let (cache, nodes) = (cache(), Nodes::new());
    let mut cursor = SweepCursor::default();
    let mut found = Vec::new();
    assert_eq!(
        nodes.sweep(&mut cursor, 100, &mut found, |_| true),
        0,
        "none"
    );
    let ids: HashSet<NodeId> = (0..1000)
        .map(|n| nodes.entry(read(&cache, &nodes, n)).sent())
        .collect();
    // From the first chain on, wherever it stood. The last step may end in the next round.
    cursor = SweepCursor::default();
    let mut looked = 0;
    while looked < ids.len() {
        let step = nodes.sweep(&mut cursor, 10, &mut found, |_| true);
        assert!(step < 40, "a step of {step}");
        looked += step;
    }
    assert_eq!(found.len(), looked);
    let again = found.split_off(ids.len());
    assert_eq!(found.iter().copied().collect::<HashSet<_>>(), ids, "NODE-1");
    assert_eq!(again, found[..again.len()], "the same way round");
    found.clear();
    let even = |part: &Part| part.0.0.is_multiple_of(2);
    while nodes.sweep(&mut cursor, 100, &mut found, even) == 0 || found.len() < 500 {}
    assert!(found.iter().all(|id| id.0.is_multiple_of(2)));
    nodes.batch_forget(ids.into_iter().map(|id| (id, 1)));
    found.clear();
    nodes.sweep(&mut cursor, 100_000, &mut found, |_| true);
    assert_eq!((found.len(), nodes.len()), (0, 0), "NODE-1: all given back");
}
