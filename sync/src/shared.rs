//! Counted objects that RCU readers may look at: a lockref around a value.
//!
//! One atomic word holds an object's reference count, its lock and its marks. The
//! count has one rule that everything else rests on:
//!
//! RCU-3: a reference leaves the guard only through [`Shared::try_get`], which
//! fails once the object is dead or its count is zero. 0 → 1 does not exist.
//!
//! | read                  | to learn                                                |
//! |-----------------------|---------------------------------------------------------|
//! | this file             | the object: references taken, marks, lists, its end     |
//! | `shared/word.rs`      | the bits of the word                                    |
//! | `shared/reference.rs` | `Ref`: references given back, and the object retired    |
//! | `shared/lock.rs`      | the lock in the word                                    |
//! | `shared/spare.rs`     | memory for an object, allocated ahead                   |
//!
//! The last [`Ref`] to go hands the object to RCU, so a reader that still borrows it under a
//! guard keeps a valid `&Shared<T>` until the guard ends.

mod lock;
mod reference;
mod spare;
mod word;

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::panic::RefUnwindSafe;

use crate::atomic::*;
use crate::{rcu, wait};

pub use lock::LockedShared;
pub use reference::{Dying, Ref};
pub use spare::Spare;
pub use word::{Flag, Snapshot};

use word::{COUNT, DEAD, MOST, WAITERS, is_last, leaves_for_list, users};

/// A value with a count, a lock and marks in one word, freed by RCU.
///
/// The hash link and the word lead, so that a value whose first 48 bytes are the
/// hot ones fills one cache line with them.
///
/// The cell is for the end: a reference made from `&Shared` may be the last one, and
/// then frees through a pointer that came from a shared borrow.
#[doc(alias("lockref", "kref"))]
#[repr(transparent)]
pub struct Shared<T>(UnsafeCell<Inner<T>>);

#[repr(C, align(64))]
struct Inner<T> {
    hash_next: AtomicPtr<Shared<T>>,
    word: AtomicU64,
    value: T,
    lru: crate::lru::Links<T>,
}

// SAFETY: `&Shared<T>` gives `&T`, and a `Ref<T>` that may drop the `T` on any thread.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T: RefUnwindSafe> RefUnwindSafe for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: initialised by `Ref::new`; not changed through `&mut` before `free`, which no
        // `&Shared` outlives (RCU-1, RCU-3).
        unsafe { &*self.0.get() }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        &self.inner().word
    }

    /// The chain of [`RcuHash`](crate::RcuHash) this object is on.
    #[inline]
    pub(crate) fn hash_next(&self) -> &AtomicPtr<Shared<T>> {
        &self.inner().hash_next
    }

    /// The list of [`Lru`](crate::Lru) this object is on.
    pub(crate) fn lru(&self) -> &crate::lru::Links<T> {
        &self.inner().lru
    }

    /// Takes a reference, unless the object is dead or unreferenced.
    #[inline]
    #[doc(alias("lockref_get_not_dead", "igrab", "legitimize_path"))]
    pub fn try_get(&self) -> Option<Ref<T>> {
        self.try_get_clearing(0)
    }

    /// As [`try_get`](Self::try_get), and marks the object as used in the same step.
    #[inline]
    pub fn try_get_used(&self) -> Option<Ref<T>> {
        self.try_get_clearing(Flag::AGED.bits())
    }

    #[inline]
    fn try_get_clearing(&self, marks: u64) -> Option<Ref<T>> {
        let mut word = self.word().load(Relaxed);
        loop {
            // A full count fails too: many more would run into the marks.
            if word & DEAD != 0 || word & COUNT == 0 || word & COUNT >= MOST {
                return None;
            }
            // Acquire: pairs with the Release in `kill_if_count_is` and in `Ref`'s drop; a
            // thread that gets a reference sees the object as its last owner left it.
            match self
                .word()
                .compare_exchange_weak(word, (word & !marks) + 1, Acquire, Relaxed)
            {
                Ok(_) => return Some(Ref::counted(self)),
                Err(now) => word = now,
            }
        }
    }

    /// For a thread that met the object dead on a chain and waits until it is gone.
    ///
    /// It counts, so that there is a word to wait for, but gives no reference: RCU-3
    /// stands. `None` if the object is alive, or gone already.
    #[doc(alias = "__wait_on_freeing_inode")]
    pub fn dying(&self) -> Option<Dying<T>> {
        let mut word = self.word().load(Relaxed);
        loop {
            if word & DEAD == 0 || word & COUNT == 0 || word & COUNT >= MOST {
                return None;
            }
            match self
                .word()
                .compare_exchange_weak(word, word + 1, Acquire, Relaxed)
            {
                Ok(_) => return Some(Dying::new(Ref::counted(self))),
                Err(now) => word = now,
            }
        }
    }

    /// How many references there are, at this moment.
    pub fn count(&self) -> u32 {
        self.word().load(Relaxed) as u32
    }

    /// Marks the object dead if exactly `count` references exist. From then on
    /// [`try_get`](Self::try_get) fails; the existing references stay valid.
    ///
    /// True if this call killed it.
    #[inline]
    #[doc(alias = "lockref_mark_dead")]
    pub fn kill_if_count_is(&self, count: u32) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & DEAD == 0 && word & COUNT == u64::from(count) {
            // AcqRel: Release pairs with the Acquire in `is_dead`; Acquire with the
            // Release of `Ref`'s drop: the killer sees what the references that are
            // gone have done.
            match self
                .word()
                .compare_exchange_weak(word, word | DEAD, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Marks the object dead if it is on a hash table and has `mine` users: those that the caller
    /// knows. The references of its containers do not count; all is read from one word.
    ///
    /// True if this call killed it.
    pub fn kill_if_users_are(&self, mine: u32) -> bool {
        self.kill_where(0, |word| {
            word & Flag::HASHED.bits() != 0 && users(word) == u64::from(mine)
        })
    }

    /// As above for an object without a user, and takes the mark of the list off in the same
    /// step.
    pub(crate) fn kill_listed_if_unused(&self) -> bool {
        self.kill_where(Flag::LISTED.bits(), |word| {
            word & Flag::HASHED.bits() != 0 && users(word) == 0
        })
    }

    /// Marks the object dead if the caller's reference is the last one, as
    /// [`Ref::put_unless_last`] reports it.
    ///
    /// True if this call killed it.
    pub fn kill_if_last(&self, flag: Flag) -> bool {
        self.kill_where(0, |word| is_last(word, flag))
    }

    fn kill_where(&self, clear: u64, may: impl Fn(u64) -> bool) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & DEAD == 0 && may(word) {
            // AcqRel: as in `kill_if_count_is`.
            match self
                .word()
                .compare_exchange_weak(word, (word | DEAD) & !clear, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Runs `change` with exclusive access to the object, if it is on a hash table and the caller
    /// has the only reference beside those of its containers: the object is dead for that long, so
    /// [`try_get`](Self::try_get) fails, and lives on afterwards. Readers that borrow it under
    /// a guard may still look.
    ///
    /// The caller keeps all threads away that would bury an object they find dead.
    ///
    /// True if `change` ran.
    pub fn while_unshared(&self, change: impl FnOnce()) -> bool {
        if !self.kill_if_users_are(1) {
            return false;
        }
        let _revived = Revive(self);
        change();
        true
    }

    /// Marks the object dead, however many references there are.
    pub fn kill(&self) {
        // AcqRel: as in `kill_if_count_is`.
        self.word().fetch_or(DEAD, AcqRel);
    }

    /// True once it has been killed.
    #[inline]
    pub fn is_dead(&self) -> bool {
        // Acquire: pairs with the Release in `kill_if_count_is`.
        self.word().load(Acquire) & DEAD != 0
    }

    /// Whether `flag` is set.
    #[inline]
    pub fn has(&self, flag: Flag) -> bool {
        // Acquire: pairs with the Release in `set` and `clear`.
        self.word().load(Acquire) & flag.bits() != 0
    }

    /// Count and marks, all of one moment.
    pub fn snapshot(&self) -> Snapshot {
        // Acquire: as in `is_dead` and `has`.
        Snapshot::of(self.word().load(Acquire))
    }

    /// Sets `flag`; true if it was not set before.
    pub fn set(&self, flag: Flag) -> bool {
        self.word().fetch_or(flag.bits(), AcqRel) & flag.bits() == 0
    }

    /// Clears `flag` and wakes the threads that wait for that; true if it was set before.
    pub fn clear(&self, flag: Flag) -> bool {
        let before = self.word().fetch_and(!(flag.bits() | WAITERS), AcqRel);
        if before & WAITERS != 0 {
            wait::wake_all(self.address());
        }
        before & flag.bits() != 0
    }

    /// The number of the list that the object is on.
    pub(crate) fn listed(&self) -> Option<u16> {
        let word = self.word().load(Acquire);
        (word & Flag::LISTED.bits() != 0).then_some((word >> 48) as u16)
    }

    /// Marks the object as on the list number `list`, if its last user is the caller, and it is on
    /// a table and on no list. The caller's reference is the list's then.
    pub(crate) fn list_if_unused(&self, list: u16) -> bool {
        let mut word = self.word().load(Relaxed);
        while leaves_for_list(word) {
            let listed = word & !Flag::LIST_NUMBER | Flag::LISTED.bits() | u64::from(list) << 48;
            // Release: the next user's Acquire in `try_get` sees what the last one has done.
            // Acquire: pairs with the Release in `insert`, and in `Ref`'s drop.
            match self
                .word()
                .compare_exchange_weak(word, listed, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes the mark of the list off, and the list's reference, if the object has a user. The
    /// caller holds the list's lock and has taken the object off.
    pub(crate) fn unlist_if_used(&self) -> bool {
        let mut word = self.word().load(Relaxed);
        while users(word) > 0 {
            let off = (word & !Flag::LISTED.bits()) - 1;
            // Release: pairs with the Acquire in `count_down`; the last user finds the lists.
            match self
                .word()
                .compare_exchange_weak(word, off, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// How many references there are beside those of its containers, at this moment.
    #[inline]
    pub fn users(&self) -> u32 {
        users(self.word().load(Relaxed)) as u32
    }

    /// Tries to put the object on a list, which takes over the caller's reference, the last one.
    #[cold]
    fn enter_list(&self) -> bool {
        // The lists are freed a grace period after the table was emptied: an object that is on the
        // table now, in the read section, leads to lists that are there.
        let guard = rcu::read_lock();
        // Acquire: pairs with the Release in `insert` and in `unlist_if_used`.
        if !leaves_for_list(self.word().load(Acquire)) {
            return false;
        }
        let lists = self.inner().lru.lists();
        // SAFETY: not null (`count_down`), and alive as argued above (LRU-1).
        let entered = unsafe { &*lists }.enter(self);
        drop(guard);
        entered
    }

    pub(crate) fn clear_listed(&self) {
        self.clear(Flag::LISTED);
    }

    /// Sleeps until `flag` is clear.
    #[doc(alias("wait_on_inode", "d_wait_lookup"))]
    pub fn wait_until_clear(&self, flag: Flag) {
        if self.has(flag) {
            wait::wait_until(self.address(), || self.unset_or_marked(flag.bits()));
        }
    }

    /// Marks the object as used, if the shrinker has marked it as next to go.
    ///
    /// A store only in that case: an object that no shrinker has scanned since its last use is
    /// not written to (WALK-2).
    #[inline]
    pub fn mark_used(&self) {
        if self.word().load(Relaxed) & Flag::AGED.bits() != 0 {
            self.word().fetch_and(!Flag::AGED.bits(), Relaxed);
        }
    }

    /// Marks the object as next to go. True if it was marked before and not used
    /// since: its second chance is over.
    pub fn age(&self) -> bool {
        self.word().load(Relaxed) & Flag::AGED.bits() != 0
            || self.word().fetch_or(Flag::AGED.bits(), Relaxed) & Flag::AGED.bits() != 0
    }

    /// True if none of `bits` is set; otherwise marks the word as waited for.
    fn unset_or_marked(&self, bits: u64) -> bool {
        let mut word = self.word().load(Acquire);
        while word & bits != 0 {
            match self
                .word()
                .compare_exchange_weak(word, word | WAITERS, Relaxed, Acquire)
            {
                Ok(_) => return false,
                Err(now) => word = now,
            }
        }
        true
    }

    /// True while it is on a hash table.
    #[doc(alias("inode_unhashed", "d_unhashed"))]
    pub fn is_hashed(&self) -> bool {
        self.has(Flag::HASHED)
    }

    /// Identifies this object among all live ones.
    #[inline]
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The place of the word, the links and the value: for tests of the layout.
    #[doc(hidden)]
    pub const VALUE_OFFSET: usize = std::mem::offset_of!(Inner<T>, value);

    /// Bytes an object takes from the allocator.
    pub const BYTES: usize = size_of::<Shared<T>>();
}

impl<T> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

/// Brings an object back to life, also when a panic comes by.
struct Revive<'a, T>(&'a Shared<T>);

impl<T> Drop for Revive<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_get`; a thread that gets a reference from
        // here on sees all changes made to the object.
        self.0.word().fetch_and(!DEAD, Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
