//! One lookup and one insertion: the table, its locks, and the inode that they meet.

use rcuwalk_sync::lock::{self, Rank};
use rcuwalk_sync::probe::{self, Look, Wait};
use rcuwalk_sync::rcu;
use rcuwalk_sync::{BucketGuard, Dying, Flag, Ref, Shared, Spare, Unsettled};

use super::{PendingInode, Stale};
use crate::inode::cache::Inner;
use crate::inode::life::{CREATING, NEW};
use crate::inode::node::{InodeRef, Key, Node, spread};
use crate::inode::scheme::Lookups;
use crate::inode::stats::Event;

/// The state of an inode that a lookup has found, with a reference.
pub(super) enum Met<K: Key, P: Send + Sync + 'static> {
    Inode(InodeRef<K, P>),
    New(PendingInode<K, P>),
    Creating(InodeRef<K, P>),
    Freeing(Dying<Node<K, P>>),
    /// It left while we looked.
    Gone,
}

/// The inode that a lookup wants.
pub(super) trait Wanted<K, P> {
    /// Whether this is it.
    fn test(&self, node: &Node<K, P>) -> bool;

    /// Whether this one, which is Freeing, may have been it.
    fn may_be(&self, node: &Node<K, P>, hash: u64) -> bool;
}

/// By the built-in comparison. It also works on inodes that are Freeing, and so tells the
/// wanted one from others with the same hash: a hook that looks for one of those would wait for
/// itself.
pub(super) struct ByKey<'k, K>(pub(super) &'k K);

impl<K: Key, P> Wanted<K, P> for ByKey<'_, K> {
    #[inline]
    fn test(&self, node: &Node<K, P>) -> bool {
        node.key() == self.0
    }

    fn may_be(&self, node: &Node<K, P>, _: u64) -> bool {
        node.key() == self.0
    }
}

/// By the caller's comparison. Under the lock it does not see inodes that are Freeing: if one
/// is another inode with the same hash, we wait for the wrong one, for a moment.
pub(super) struct ByTest<T>(pub(super) T);

impl<K: Key, P, T: Fn(&Node<K, P>) -> bool> Wanted<K, P> for ByTest<T> {
    #[inline]
    fn test(&self, node: &Node<K, P>) -> bool {
        self.0(node)
    }

    fn may_be(&self, node: &Node<K, P>, hash: u64) -> bool {
        node.filed_under() == hash
    }
}

/// The result of an attempt to insert.
pub(super) enum Tried<K: Key, P: Send + Sync + 'static> {
    Inserted(Ref<Node<K, P>>),
    /// Another thread was first. The memory is for the next attempt.
    Met(Spare<Node<K, P>>, Met<K, P>),
}

impl<K: Key, P: Send + Sync + 'static> Inner<K, P> {
    /// The first look. Under RCU a miss may prove nothing: the table is changing its size. Then
    /// it is not counted here, but by the second look, if there is one.
    #[inline]
    pub(super) fn find_inode(
        &self,
        hash: u64,
        lookups: Lookups,
        wanted: &impl Wanted<K, P>,
    ) -> Result<Option<Met<K, P>>, Unsettled> {
        let filed_under = spread(hash);
        let found = match lookups {
            Lookups::Rcu => self.find_inode_rcu(filed_under, wanted),
            Lookups::Locked => {
                let locked = self.lock(filed_under, Event::LookupLock);
                let met = Self::find_inode_locked(&locked.bucket, filed_under, wanted);
                drop(locked);
                self.counters.get().count(match met {
                    Some(_) => Event::Hit,
                    None => Event::FirstMiss,
                });
                Ok(met)
            }
        };
        if let Ok(met) = &found {
            probe::iget(hash, met.is_some(), self.scheme.number(), Look::First);
        }
        found
    }

    #[inline]
    #[doc(alias = "__find_inode_rcu")]
    fn find_inode_rcu(
        &self,
        hash: u64,
        wanted: &impl Wanted<K, P>,
    ) -> Result<Option<Met<K, P>>, Unsettled> {
        lock::assert_not_held(Rank::InodeBucket);
        let met = {
            let guard = rcu::read_lock();
            let view = self.table.view(&guard);
            let found = view.find_settled(hash, |node| wanted.test(node));
            let counters = self.counters.get_with(&guard);
            match found {
                Ok(Some(node)) => {
                    counters.count(Event::Hit);
                    Self::meet(node)
                }
                Ok(None) => {
                    counters.count(Event::FirstMiss);
                    return Ok(None);
                }
                // The second look, under the lock, counts that.
                Err(Unsettled) => return Err(Unsettled),
            }
        };
        Ok(Some(met.unless_unhashed()))
    }

    fn find_inode_locked(
        bucket: &BucketGuard<'_, Node<K, P>>,
        hash: u64,
        wanted: &impl Wanted<K, P>,
    ) -> Option<Met<K, P>> {
        lock::assert_held(Rank::InodeBucket);
        let node = bucket.find(|node| match node.is_dead() {
            true => wanted.may_be(node, hash),
            false => wanted.test(node),
        })?;
        Some(Self::meet(node))
    }

    /// Takes a reference to the inode, and returns its state.
    #[inline]
    fn meet(node: &Shared<Node<K, P>>) -> Met<K, P> {
        match node.try_get_used() {
            Some(held) if !held.has(NEW) => Met::Inode(InodeRef::new(held)),
            Some(held) if held.has(CREATING) => Met::Creating(InodeRef::new(held)),
            Some(held) => Met::New(PendingInode(InodeRef::new(held))),
            None => node.dying().map_or(Met::Gone, Met::Freeing),
        }
    }

    /// Waits for the inode that was met. `None` means: look again.
    pub(super) fn settle(&self, met: Met<K, P>) -> Result<Option<InodeRef<K, P>>, Stale> {
        let counters = self.counters.get();
        match met {
            Met::Inode(inode) => Ok(Some(inode)),
            Met::New(pending) => {
                counters.count(Event::WaitedForNew);
                probe::wait(|| pending.0.key().hash(), Wait::New);
                Ok(pending.wait())
            }
            Met::Creating(inode) => {
                drop(inode);
                counters.count(Event::Stale);
                Err(Stale)
            }
            Met::Freeing(dying) => {
                counters.count(Event::WaitedForFreeing);
                probe::wait(|| dying.key().hash(), Wait::Freeing);
                dying.wait_until_unhashed();
                Ok(None)
            }
            Met::Gone => Ok(None),
        }
    }

    /// The second look, and the insertion if it finds nothing. INODE-1: both under one
    /// lock.
    pub(super) fn try_insert<E>(
        &self,
        spare: Spare<Node<K, P>>,
        hash: u64,
        wanted: &impl Wanted<K, P>,
        set: &mut Option<impl FnOnce() -> Result<K, E>>,
        marks: Flag,
    ) -> Result<Tried<K, P>, E> {
        let filed_under = spread(hash);
        let counters = self.counters.get();
        let locked = self.lock(filed_under, Event::InsertLock);
        if let Some(met) = Self::find_inode_locked(&locked.bucket, filed_under, wanted) {
            drop(locked);
            counters.count(Event::SecondHit);
            probe::iget(hash, true, self.scheme.number(), Look::Second);
            return Ok(Tried::Met(spare, met));
        }
        probe::iget(hash, false, self.scheme.number(), Look::Second);
        let set = set.take().expect("one insertion per call");
        let key = set()?;
        assert_eq!(
            spread(key.hash()),
            filed_under,
            "INODE-1: a key is filed under the hash that it is looked for by"
        );
        let node = Node::new(key, self.number.get());
        let creating = marks == CREATING;
        // Aged: inodes that are not used again go first.
        let marks = marks | NEW | Flag::AGED;
        let node = locked.bucket.insert_new(spare, node, marks);
        counters.count(Event::Inserted);
        probe::iget_insert(hash, creating);
        Ok(Tried::Inserted(node))
    }
}

impl<K: Key, P: Send + Sync + 'static> Met<K, P> {
    /// The inode may have left the table after RCU showed it to us and before we counted it.
    /// Call this outside of the read section: our reference may be the last.
    #[inline]
    pub(super) fn unless_unhashed(self) -> Self {
        match self {
            Met::Inode(inode) if !inode.is_hashed() => Met::Gone,
            met => met,
        }
    }
}
