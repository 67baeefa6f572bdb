//! Names that are being looked up: one thread asks the back end, the others wait for it.
//!
//! DENTRY-2: one in-lookup dentry per (parent, name). The first thread that misses a name gets
//! an [`InLookup`] and asks the back end; threads that come meanwhile sleep until it is done,
//! and look in the cache again.
//!
//! A name that comes [unasked](Dcache::add_unasked) is added under the lock of its shard, if no
//! thread has it in lookup. A lookup that begins later finds it in the cache: it asks the cache
//! under the same lock. One that has begun adds the name itself.

use rcuwalk_sync::lock::{Mutex, Rank};
use rcuwalk_sync::{Flag, HashKey, Ref, rcu};

use super::{Dcache, Dentry, DentryRef, FoundIn, NameHash, NameWords, Unspliced, Validity};
use crate::vfs_inode::InodeRef;

const SHARDS: usize = 64;

/// Set until the lookup is over.
#[doc(alias = "DCACHE_PAR_LOOKUP")]
const PENDING: Flag = Flag::new(0);

/// The names in lookup on one shard, and what their waiters sleep on. There are no more of them
/// than threads that look up, so few on a shard.
struct Pending {
    /// The parent's address. It cannot go away meanwhile: each thread that looks up in it holds
    /// it.
    dir: usize,
    /// All of a short name. A long one is known by its beginning and its hash: if another name has
    /// the same, its lookup waits for this one, and comes next.
    name: NameWords,
    /// Made by the first waiter: mostly there is none.
    over: Option<Ref<()>>,
}

impl Pending {
    fn is(&self, dir: usize, name: &NameWords) -> bool {
        self.dir == dir && self.name == *name
    }
}

pub(super) struct LookupTable {
    shards: Box<[Shard]>,
}

/// On lines of its own: each miss and each name that comes unasked locks one.
#[repr(align(128))]
struct Shard(Mutex<Vec<Pending>>);

impl LookupTable {
    pub(super) fn new() -> LookupTable {
        let shards = (0..SHARDS)
            .map(|_| Shard(Mutex::new(Rank::InLookup, Vec::new())))
            .collect();
        LookupTable { shards }
    }

    fn shard(&self, hash: u64) -> &Mutex<Vec<Pending>> {
        // The lower bits: the upper half is nothing but the parent's address.
        &self.shards[hash as usize % SHARDS].0
    }
}

/// The result of [`Dcache::d_alloc_parallel`].
pub(crate) enum ParallelLookup<'a> {
    /// The name is in the cache, by now.
    Cached(DentryRef),
    /// No thread is looking it up: the caller must.
    Mine(InLookup<'a>),
}

/// The right, and the duty, to ask the back end for a name.
///
/// Dropping it without [`done`](Self::done) is the failure path: the waiters wake,
/// and one of them asks again.
#[must_use = "others wait until it is dropped"]
pub(crate) struct InLookup<'a> {
    dcache: &'a Dcache,
    parent: &'a DentryRef,
    name: NameHash<'a>,
    hash: u64,
}

impl Dcache {
    /// Finds `name` in `parent`, or makes the caller the one to look it up. Sleeps while
    /// another thread does.
    pub(crate) fn d_alloc_parallel<'a>(
        &'a self,
        parent: &'a DentryRef,
        name: NameHash<'a>,
    ) -> ParallelLookup<'a> {
        let hash = name.in_dir(parent.address());
        let dir = parent.address();
        loop {
            let mut shard = self.in_lookup.shard(hash).lock();
            // The cache is asked under the shard's lock: a lookup that is over has added its name
            // before it left the shard. And under the bucket's: the caller has missed the name
            // already, and only there a miss is certain.
            if let Some(dentry) = self.d_lookup_locked(parent, &name) {
                return ParallelLookup::Cached(dentry);
            }
            let others = shard.iter_mut().find(|other| other.is(dir, &name.words));
            let Some(others) = others else {
                let mine = self.begin(&mut shard, parent, (name, hash));
                return ParallelLookup::Mine(mine);
            };
            let new = || Ref::with_flags((), &[PENDING]);
            let over = others.over.get_or_insert_with(new).clone();
            drop(shard);
            over.wait_until_clear(PENDING);
        }
    }

    /// Makes the caller the thread that looks `name` up in `parent`, without waiting. `None` if
    /// another thread does, or the name is in the cache.
    pub(super) fn d_alloc_unless_pending<'a>(
        &'a self,
        parent: &'a DentryRef,
        name: NameHash<'a>,
    ) -> Option<InLookup<'a>> {
        let hash = name.in_dir(parent.address());
        let dir = parent.address();
        let mut shard = self.in_lookup.shard(hash).lock();
        if let Some(dentry) = self.d_lookup(parent, &name) {
            drop(shard);
            self.put(dentry);
            return None;
        }
        let is_pending = shard.iter().any(|other| other.is(dir, &name.words));
        (!is_pending).then(|| self.begin(&mut shard, parent, (name, hash)))
    }

    /// Runs `add` for a new dentry if no thread has its name in lookup; none begins meanwhile.
    pub(super) fn unless_in_lookup<R>(
        &self,
        dentry: &Dentry,
        add: impl FnOnce() -> Option<R>,
    ) -> Option<R> {
        let dir = dentry.parent(&rcu::read_lock())?.address();
        let name = dentry.name_words();
        let shard = self.in_lookup.shard(dentry.hash()).lock();
        let is_pending = shard.iter().any(|other| other.is(dir, &name));
        match is_pending {
            true => None,
            false => add(),
        }
    }

    fn begin<'a>(
        &'a self,
        shard: &mut Vec<Pending>,
        parent: &'a DentryRef,
        (name, hash): (NameHash<'a>, u64),
    ) -> InLookup<'a> {
        shard.push(Pending {
            dir: parent.address(),
            name: name.words,
            over: None,
        });
        InLookup {
            dcache: self,
            parent,
            name,
            hash,
        }
    }
}

impl InLookup<'_> {
    /// Adds the answer of the back end to the cache and wakes the waiters.
    #[doc(alias("d_splice_alias", "d_lookup_done"))]
    pub(crate) fn done(
        self,
        at: &FoundIn<'_>,
        inode: Option<InodeRef>,
        validity: Validity,
    ) -> Result<DentryRef, Unspliced> {
        self.dcache.d_splice(at, &self.name, inode, validity)
    }
}

impl Drop for InLookup<'_> {
    fn drop(&mut self) {
        let (dir, name) = (self.parent.address(), &self.name.words);
        let entry = {
            let mut shard = self.dcache.in_lookup.shard(self.hash).lock();
            let at = shard.iter().position(|pending| pending.is(dir, name));
            at.map(|at| shard.swap_remove(at))
        };
        if let Some(over) = entry.and_then(|entry| entry.over) {
            over.clear(PENDING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    /// DENTRY-2: names that are looked up at once rarely wait for each other.
    #[test]
    fn names_of_a_directory_are_on_many_shards() {
        let dcache = Dcache::new(
            1000,
            1 << 20,
            std::sync::Arc::new(crate::inode::InodeCache::builder().build()),
        );
        let shards: std::collections::HashSet<_> = (0..1000)
            .map(|n| {
                let name = n.to_string();
                let name = dcache.name(Name::new(name.as_bytes()).unwrap());
                std::ptr::from_ref(dcache.in_lookup.shard(name.in_dir(0x7f12_3456_7880))).addr()
            })
            .collect();
        assert!(shards.len() > SHARDS / 2, "{} shards", shards.len());
    }
}
