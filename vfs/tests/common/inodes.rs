//! Support for the tests of the inode cache: a key whose hash can be chosen, each way to ask
//! for an inode, and a hook that can be held up.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::inode::{
    Builder, Iget, InUse, InodeCache, InodeRef, InsertLocks, Key, Lookups, Match, Scheme, Stale,
    Unwaited,
};

/// A number, filed under whatever hash the test wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ino {
    pub(crate) number: u64,
    pub(crate) hash: u64,
}

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.hash
    }
}

/// A number with a hash of its own.
pub(crate) fn ino(number: u64) -> Ino {
    Ino {
        number,
        hash: number,
    }
}

/// A number that has the same hash as all others of this kind.
pub(crate) fn colliding(number: u64) -> Ino {
    Ino { number, hash: 7 }
}

pub(crate) type Cache<P = u64> = InodeCache<Ino, P>;
pub(crate) type Inode<P = u64> = InodeRef<Ino, P>;
pub(crate) type Node<P = u64> = rcuwalk::inode::Node<Ino, P>;

/// Both knobs in all positions.
pub(crate) const SCHEMES: [Scheme; 4] = [
    Scheme::STOCK,
    Scheme::PATCH,
    Scheme::OURS,
    Scheme {
        insert_locks: InsertLocks::PerBucket,
        lookups: Lookups::Locked,
    },
];

pub(crate) fn builder<P: Send + Sync + 'static>(scheme: Scheme) -> Builder<Ino, P> {
    InodeCache::builder().bytes(1 << 30).scheme(scheme)
}

/// The inode for `key`, read in if need be: its part is the number.
pub(crate) fn read<P: From<u64> + Send + Sync + 'static>(cache: &Cache<P>, key: Ino) -> Inode<P> {
    match cache.iget(key).unwrap() {
        Iget::Cached(inode) => inode,
        Iget::New(new) => new.init(key.number),
    }
}

/// Whether the inode is cached, without reading it in.
pub(crate) fn is_cached<P: Send + Sync + 'static>(cache: &Cache<P>, key: Ino) -> bool {
    cache.ilookup(&key).unwrap().is_some()
}

/// The result of a lookup of an inode.
#[derive(Debug)]
pub(crate) enum Got {
    Cached(Inode),
    /// It was not cached: it has been filled in with [`FRESH`].
    New(Inode),
    /// Another thread reads it in.
    Pending,
    Nothing,
    Stale,
    InUse,
}

/// The part of an inode that a [`Way`] has read in.
pub(crate) const FRESH: u64 = 1 << 40;

/// One function of the family.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) look: fn(&Cache, Ino) -> Got,
    /// The result if it is not cached.
    pub(crate) on_miss: OnMiss,
    /// Sleeps while another thread reads the inode in.
    pub(crate) waits_for_new: bool,
    /// Sleeps while an inode is on its way out.
    pub(crate) waits_for_freeing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnMiss {
    /// The caller reads it in.
    Reads,
    Nothing,
}

fn iget(got: Result<Iget<'_, Ino, u64>, Stale>) -> Got {
    match got {
        Ok(Iget::Cached(inode)) => Got::Cached(inode),
        Ok(Iget::New(new)) => Got::New(new.init(FRESH)),
        Err(Stale) => Got::Stale,
    }
}

fn looked_up(got: Result<Option<Inode>, Stale>) -> Got {
    match got {
        Ok(Some(inode)) => Got::Cached(inode),
        Ok(None) => Got::Nothing,
        Err(Stale) => Got::Stale,
    }
}

fn unwaited(got: Result<Option<Unwaited<Ino, u64>>, Stale>) -> Got {
    match got {
        Ok(Some(Unwaited::New(_))) => Got::Pending,
        Ok(Some(Unwaited::Inode(inode))) => Got::Cached(inode),
        Ok(None) => Got::Nothing,
        Err(Stale) => Got::Stale,
    }
}

const fn way(
    name: &'static str,
    on_miss: OnMiss,
    waits_for_new: bool,
    waits_for_freeing: bool,
    look: fn(&Cache, Ino) -> Got,
) -> Way {
    Way {
        name,
        look,
        on_miss,
        waits_for_new,
        waits_for_freeing,
    }
}

/// The whole family.
pub(crate) const WAYS: [Way; 10] = [
    way("iget", OnMiss::Reads, true, true, |cache, key| {
        iget(cache.iget(key))
    }),
    way("iget5", OnMiss::Reads, true, true, |cache, key| {
        iget(cache.iget5(key.hash, |node| *node.key() == key, || Ok(key)))
    }),
    way("iget5_rcu", OnMiss::Reads, true, true, |cache, key| {
        iget(cache.iget5_rcu(key.hash, |node| *node.key() == key, || Ok(key)))
    }),
    way("inode_insert5", OnMiss::Reads, true, true, |cache, key| {
        let spare = cache.alloc_inode();
        iget(cache.inode_insert5(spare, key.hash, |node| *node.key() == key, || Ok(key)))
    }),
    way(
        "insert_inode",
        OnMiss::Reads,
        true,
        true,
        |cache, key| match cache.insert_inode(key) {
            Ok(new) => Got::New(new.init(FRESH)),
            Err(InUse) => Got::InUse,
        },
    ),
    way("ilookup", OnMiss::Nothing, true, true, |cache, key| {
        looked_up(cache.ilookup(&key))
    }),
    way("ilookup5", OnMiss::Nothing, true, true, |cache, key| {
        looked_up(cache.ilookup5(key.hash, |node| *node.key() == key))
    }),
    way("ilookup5_rcu", OnMiss::Nothing, true, true, |cache, key| {
        looked_up(cache.ilookup5_rcu(key.hash, |node| *node.key() == key))
    }),
    way(
        "ilookup5_nowait",
        OnMiss::Nothing,
        false,
        true,
        |cache, key| unwaited(cache.ilookup5_nowait(key.hash, |node| *node.key() == key)),
    ),
    way(
        "ilookup5_nowait_rcu",
        OnMiss::Nothing,
        false,
        true,
        |cache, key| unwaited(cache.ilookup5_nowait_rcu(key.hash, |node| *node.key() == key)),
    ),
];

/// The lookup that never waits and only sees inodes that are filled in.
pub(crate) fn find_nowait<P: Send + Sync + 'static>(
    cache: &Cache<P>,
    key: Ino,
) -> Option<Inode<P>> {
    cache.find_inode_nowait(key.hash, |node| match *node.key() == key {
        true => Match::Take,
        false => Match::Next,
    })
}

/// Waits for an expected event.
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let since = Instant::now();
    while !happens() {
        assert!(since.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Runs `work` on a thread of its own; a panic here if it does not come back.
pub(crate) fn comes_back<R: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (tell, told) = channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(60))
        .unwrap_or_else(|_| panic!("never came back: {what}"))
}

/// The time given to an event that must not happen.
pub(crate) fn a_while() {
    thread::sleep(Duration::from_millis(10));
}

/// Blocks every thread that calls it.
pub(crate) struct Gate {
    arrived: Receiver<()>,
    open: Sender<()>,
}

impl Gate {
    /// The gate, and the function that waits at it.
    pub(crate) fn new() -> (Gate, impl Fn() + Send + Sync + 'static) {
        let (arrive, arrived) = channel();
        let (open, opened) = channel();
        let ends = Mutex::new((arrive, opened));
        let wait = move || {
            let ends = ends.lock().unwrap();
            // The other end is closed: the gate is gone, and open.
            let _ = ends.0.send(());
            let _ = ends.1.recv();
        };
        (Gate { arrived, open }, wait)
    }

    /// Waits until a thread waits at the gate.
    pub(crate) fn arrived(&self) {
        let patience = Duration::from_secs(60);
        self.arrived
            .recv_timeout(patience)
            .expect("nobody came to the gate");
    }

    /// Lets one through.
    pub(crate) fn open(&self) {
        self.open.send(()).unwrap();
    }
}

/// Which inodes a hook was shown, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    /// A hook that notes the number of each inode.
    pub(crate) fn hook<P>(&self) -> impl Fn(&Node<P>) + Send + Sync + 'static {
        let log = self.clone();
        move |node| log.note(node.key().number)
    }

    pub(crate) fn note(&self, number: u64) {
        self.0.lock().unwrap().push(number);
    }

    /// The entries noted since the last call, sorted.
    pub(crate) fn take(&self) -> Vec<u64> {
        let mut seen = std::mem::take(&mut *self.0.lock().unwrap());
        seen.sort_unstable();
        seen
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}
