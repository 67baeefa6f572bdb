//! A locked bucket: objects put on its chain and taken off.

use super::*;
use crate::Spare;
use crate::shared::Flag;

/// A locked bucket: the only way to change a chain.
pub struct BucketGuard<'a, T: HashKey + Send + Sync + 'static> {
    /// This thread's share in the table's counts.
    pub(super) mine: &'a grow::Counts,
    pub(super) buckets: NonNull<Shared<Buckets<T>>>,
    pub(super) index: usize,
    /// Where its objects go while they have no user; null if nowhere.
    pub(super) lists: *const Lists<T>,
    /// The head's lock has been given back already.
    pub(super) unlocked: bool,
    pub(super) _table: PhantomData<&'a RcuHash<T>>,
    /// Given back after the chain is: fields drop last.
    pub(super) _held: Held,
}

impl<T: HashKey + Send + Sync + 'static> BucketGuard<'_, T> {
    /// The first object that `wanted` accepts. Nothing joins or leaves the chain
    /// while the guard lives, so here a miss is a miss.
    pub fn find(&self, mut wanted: impl FnMut(&Shared<T>) -> bool) -> Option<&Shared<T>> {
        let mut at = self.first();
        while at.addr() & END == 0 {
            // SAFETY: the chain holds references to its objects, and the lock keeps
            // it as it is for as long as the guard is borrowed.
            let object = unsafe { &*at };
            if wanted(object) {
                return Some(object);
            }
            at = object.hash_next().load(Relaxed);
        }
        None
    }

    /// Puts an object at the head of the chain: new objects are looked up again soon.
    ///
    /// # Panics
    /// If it is on a table already.
    #[doc(alias = "hlist_bl_add_head_rcu")]
    pub fn insert(&mut self, object: Ref<T>) {
        match object.listed() {
            Some(list) => {
                // SAFETY: the guard borrows the table, which owns its lists.
                let lists = unsafe { self.lists.as_ref() };
                assert!(
                    lists.is_some_and(|lists| lists.has(list)),
                    "an object is in one cache at a time"
                );
            }
            // Before the mark, and published by it: an object enters a list only with that.
            None => object.lru().set_lists(self.lists),
        }
        assert!(
            object.set(Flag::HASHED),
            "an object is on one chain at a time"
        );
        debug_assert_eq!(
            self.buckets().index(object.hash()),
            self.index,
            "inserted elsewhere"
        );
        let object = Ref::into_raw(object);
        // SAFETY: the table's reference keeps it alive.
        let next = unsafe { object.as_ref() }.hash_next();
        // Release, both: pair with the Acquires in `find`. A reader that stands on the object
        // since it was on another chain follows the link, every other reader the head; both
        // find initialised objects.
        next.store(self.first(), Release);
        self.buckets()
            .set_first(self.index, object.as_ptr(), Release);
        self.mine.count(1);
    }

    /// Makes a new object, puts it at the head of the chain, and unlocks the bucket.
    ///
    /// The object starts with `marks`. All this takes one step where making, counting, marking,
    /// linking and unlocking one after the other takes seven.
    #[doc(alias = "__insert_inode_hash")]
    pub fn insert_new(mut self, spare: Spare<T>, value: T, marks: Flag) -> Ref<T> {
        debug_assert_eq!(
            self.buckets().index(value.hash()),
            self.index,
            "inserted elsewhere"
        );
        // Two: the table's and the one that we return.
        let object = spare.fill(value, 2, marks | Flag::HASHED);
        // SAFETY: just filled, and the table's reference keeps it alive.
        let shared = unsafe { object.as_ref() };
        shared.lru().set_lists(self.lists);
        // Relaxed: no reader can stand on an object that has never been published.
        shared.hash_next().store(self.first(), Relaxed);
        self.mine.count(1);
        self.publish(object.as_ptr());
        // SAFETY: the other one of the two that the word counts.
        unsafe { Ref::from_raw(object) }
    }

    /// Takes `object` off the chain and unlocks the bucket. False if it is not on it. Its
    /// mark and the chain's reference are left to the caller.
    pub(super) fn unlink_and_unlock(mut self, object: &Shared<T>) -> bool {
        let next = object.hash_next().load(Relaxed);
        if ptr::eq(self.first(), object) {
            self.mine.count(-1);
            self.publish(next);
            return true;
        }
        let mut at = self.first();
        while at.addr() & END == 0 {
            // SAFETY: as in `look_along`.
            let link = unsafe { &*at }.hash_next();
            at = link.load(Relaxed);
            if ptr::eq(at, object) {
                // Release: as in `remove_where`.
                link.store(next, Release);
                self.mine.count(-1);
                return true;
            }
        }
        false
    }

    /// Makes `object` the first of the chain and gives the lock back.
    fn publish(&mut self, object: *mut Shared<T>) {
        self.unlocked = true;
        let head = ptr::from_ref(self.buckets().head(self.index));
        // Release: pairs with the Acquire in `find`, as in `insert`, and with that in `try_lock`,
        // as in `unlock`.
        // SAFETY: ours, and locked by us.
        unsafe { grow::unlock_with(head, |_| object) };
    }

    /// Takes an object off the chain. Readers that stand on it go on from there.
    #[doc(alias = "hlist_bl_del_rcu")]
    pub fn remove(&mut self, object: &Shared<T>) -> Option<Ref<T>> {
        self.remove_where(|current| ptr::eq(current, object))
    }

    /// Takes the first object that `wanted` accepts off the chain.
    pub fn remove_where(&mut self, mut wanted: impl FnMut(&Shared<T>) -> bool) -> Option<Ref<T>> {
        let mut before: Option<&AtomicPtr<Shared<T>>> = None;
        let mut at = self.first();
        while at.addr() & END == 0 {
            // SAFETY: as in `look_along`.
            let current = unsafe { &*at };
            if !wanted(current) {
                before = Some(current.hash_next());
                at = current.hash_next().load(Relaxed);
                continue;
            }
            let next = current.hash_next().load(Relaxed);
            // Release: pairs with the Acquire in `find`; the thread that inserted the next
            // object published it, and we pass that on.
            match before {
                Some(link) => link.store(next, Release),
                None => self.buckets().set_first(self.index, next, Release),
            }
            current.clear(Flag::HASHED);
            self.mine.count(-1);
            // SAFETY: `insert` made it with `into_raw`; unlinked under the lock, it
            // is taken back only here.
            return NonNull::new(at).map(|object| unsafe { Ref::from_raw(object) });
        }
        None
    }

    fn buckets(&self) -> &Buckets<T> {
        // SAFETY: our locked chain keeps the array from being retired (`lock_head`).
        unsafe { self.buckets.as_ref() }
    }

    fn first(&self) -> *mut Shared<T> {
        self.buckets()
            .head(self.index)
            .load(Relaxed)
            .map_addr(|address| address & !MARKS)
    }
}

impl<T: HashKey + Send + Sync + 'static> Drop for BucketGuard<'_, T> {
    fn drop(&mut self) {
        if self.unlocked {
            return;
        }
        let head = ptr::from_ref(self.buckets().head(self.index));
        // SAFETY: ours, and locked by us.
        unsafe { grow::unlock_with(head, grow::unmarked) };
    }
}
