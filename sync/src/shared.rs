//! Counted objects that RCU readers may look at: a lockref around a value.
//!
//! One atomic word holds an object's reference count, its lock and its marks. The
//! count has one rule that everything else rests on:
//!
//! RCU-3: a reference leaves the guard only through [`Shared::try_get`], which
//! fails once the object is dead or its count is zero. 0 → 1 does not exist.
//!
//! The last [`Ref`] to go hands the object to RCU, so a reader that still borrows it under a
//! guard keeps a valid `&Shared<T>` until the guard ends.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;

use crate::atomic::*;
use crate::lock::{Held, Rank};
use crate::model::MODEL;
use crate::{rcu, slab, wait};

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

const COUNT: u64 = u32::MAX as u64;
/// No more references than this, with as many again as a margin for threads that
/// are past the check.
const MOST: u64 = COUNT / 2;
const DEAD: u64 = 1 << 32;
const LOCKED: u64 = 1 << 33;
const WAITERS: u64 = 1 << 34;

/// A mark in the word of a [`Shared`], for the object's owner to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(u64);

impl Flag {
    /// The flag number `n`, below 8.
    pub const fn new(n: u32) -> Flag {
        assert!(n < 8);
        Flag(1 << (40 + n))
    }

    /// None.
    pub const NONE: Flag = Flag(0);

    /// On the chain of a hash table.
    pub(crate) const HASHED: Flag = Flag(1 << 35);
    /// On an LRU list.
    pub(crate) const LISTED: Flag = Flag(1 << 36);
    const LIST_NUMBER: u64 = 0xffff << 48;
    /// Passed over once by the shrinker, and not used since. An object that starts with it gets
    /// a second chance only after a use.
    #[doc(alias = "I_REFERENCED")]
    pub const AGED: Flag = Flag(1 << 37);
}

/// Several flags at once, where an object is born.
impl std::ops::BitOr for Flag {
    type Output = Flag;
    fn bitor(self, other: Flag) -> Flag {
        Flag(self.0 | other.0)
    }
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
        self.try_get_clearing(Flag::AGED.0)
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
                Ok(_) => return Some(Dying(Ref::counted(self))),
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

    /// As [`kill_if_count_is`](Self::kill_if_count_is), for an object that is on a hash table:
    /// both are read from one word. An object that another thread takes off the table at this
    /// moment may have as many references, and none of them is the table's.
    pub fn kill_hashed_if_count_is(&self, count: u32) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & (DEAD | Flag::HASHED.0) == Flag::HASHED.0 && word & COUNT == u64::from(count) {
            // AcqRel: as in `kill_if_count_is`.
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

    /// As [`kill_if_count_is`](Self::kill_if_count_is), and takes the mark of the list
    /// off in the same step.
    pub(crate) fn kill_listed_if_count_is(&self, count: u32) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & DEAD == 0 && word & COUNT == u64::from(count) {
            let dead = (word | DEAD) & !Flag::LISTED.0;
            match self
                .word()
                .compare_exchange_weak(word, dead, AcqRel, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Marks the object dead if the caller's reference is the last one, as
    /// [`Ref::put_unless_last`] reports it: the count and the flags it depends on are read from
    /// one word.
    ///
    /// True if this call killed it.
    pub fn kill_if_last(&self, rest: u32, flag: Flag) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & DEAD == 0 && is_last(word, rest, flag) {
            // AcqRel: as in `kill_if_count_is`.
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

    /// Runs `change` with exclusive access to the object, if exactly `count` references exist
    /// and the caller knows their holders: the object is dead for that long, so
    /// [`try_get`](Self::try_get) fails, and lives on afterwards. Readers that borrow it under
    /// a guard may still look.
    ///
    /// The caller keeps all threads away that would bury an object they find dead.
    ///
    /// True if `change` ran.
    pub fn while_unshared(&self, count: u32, change: impl FnOnce()) -> bool {
        if !self.kill_if_count_is(count) {
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
        self.word().load(Acquire) & flag.0 != 0
    }

    /// Count and marks, all of one moment.
    pub fn snapshot(&self) -> Snapshot {
        // Acquire: as in `is_dead` and `has`.
        Snapshot(self.word().load(Acquire))
    }

    /// Sets `flag`; true if it was not set before.
    pub fn set(&self, flag: Flag) -> bool {
        self.word().fetch_or(flag.0, AcqRel) & flag.0 == 0
    }

    /// Clears `flag` and wakes the threads that wait for that; true if it was set before.
    pub fn clear(&self, flag: Flag) -> bool {
        let before = self.word().fetch_and(!(flag.0 | WAITERS), AcqRel);
        if before & WAITERS != 0 {
            wait::wake_all(self.address());
        }
        before & flag.0 != 0
    }

    /// Marks an object as on the list number `list`, unless it is on one, and clears `flag`:
    /// one step instead of two. Returns whether it was on none, and whether a thread waits for
    /// the flag.
    pub(crate) fn list_and_clear(&self, list: u16, flag: Flag) -> (bool, bool) {
        let mut word = self.word().load(Relaxed);
        loop {
            let entered = word & Flag::LISTED.0 == 0;
            let listed = match entered {
                true => word & !Flag::LIST_NUMBER | Flag::LISTED.0 | u64::from(list) << 48,
                false => word,
            };
            match self
                .word()
                .compare_exchange_weak(word, listed & !flag.0, AcqRel, Relaxed)
            {
                Ok(_) => return (entered, word & WAITERS != 0),
                Err(now) => word = now,
            }
        }
    }

    /// Wakes the waiters that [`list_and_clear`](Self::list_and_clear) reported.
    #[cold]
    pub(crate) fn wake_waiters(&self) {
        self.clear(Flag::NONE);
    }

    /// The number of the list that the object is on, was on, or is about to enter.
    pub(crate) fn list_number(&self) -> u16 {
        (self.word().load(Relaxed) >> 48) as u16
    }

    /// The number of the list that the object is on.
    pub(crate) fn listed(&self) -> Option<u16> {
        let word = self.word().load(Acquire);
        (word & Flag::LISTED.0 != 0).then_some((word >> 48) as u16)
    }

    /// Marks the object as on the list number `list`, unless it is on one.
    pub(crate) fn set_listed(&self, list: u16) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & Flag::LISTED.0 == 0 {
            let listed = word & !Flag::LIST_NUMBER | Flag::LISTED.0 | u64::from(list) << 48;
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

    pub(crate) fn clear_listed(&self) {
        self.clear(Flag::LISTED);
    }

    /// Sleeps until `flag` is clear.
    #[doc(alias("wait_on_inode", "d_wait_lookup"))]
    pub fn wait_until_clear(&self, flag: Flag) {
        if self.has(flag) {
            wait::wait_until(self.address(), || self.unset_or_marked(flag.0));
        }
    }

    /// Marks the object as used, if the shrinker has marked it as next to go.
    ///
    /// A store only in that case: an object that no shrinker has scanned since its last use is
    /// not written to (WALK-2).
    #[inline]
    pub fn mark_used(&self) {
        if self.word().load(Relaxed) & Flag::AGED.0 != 0 {
            self.word().fetch_and(!Flag::AGED.0, Relaxed);
        }
    }

    /// Marks the object as next to go. True if it was marked before and not used
    /// since: its second chance is over.
    pub fn age(&self) -> bool {
        self.word().load(Relaxed) & Flag::AGED.0 != 0
            || self.word().fetch_or(Flag::AGED.0, Relaxed) & Flag::AGED.0 != 0
    }

    /// Takes the object's lock, which sleeps in the same word.
    #[doc(alias("d_lock", "i_lock"))]
    pub fn lock(&self, rank: Rank) -> LockedShared<'_, T> {
        self.lock_ranked(rank, false)
    }

    /// Like `lock`, for the second and later of several objects of one rank.
    ///
    /// The caller keeps LOCK-1's tie-break: ancestor first, else by address.
    #[doc(alias = "spin_lock_nested")]
    pub fn lock_nested(&self, rank: Rank) -> LockedShared<'_, T> {
        self.lock_ranked(rank, true)
    }

    fn lock_ranked(&self, rank: Rank, nested: bool) -> LockedShared<'_, T> {
        crate::lock::assert_may_sleep();
        let held = Held::new(rank, nested);
        if !self.try_lock_word() {
            self.lock_slow();
        }
        LockedShared {
            object: self,
            _held: held,
        }
    }

    #[cold]
    fn lock_slow(&self) {
        // In a model no other thread makes progress meanwhile.
        if !MODEL {
            for _ in 0..64 {
                std::hint::spin_loop();
                if self.try_lock_word() {
                    return;
                }
            }
        }
        wait::wait_until(self.address(), || {
            loop {
                if self.try_lock_word() {
                    return true;
                }
                // Only with the mark set may we sleep: a lock that was free for a moment and is
                // now held by another thread carries no mark of ours.
                if !self.unset_or_marked(LOCKED) {
                    return false;
                }
            }
        });
    }

    fn try_lock_word(&self) -> bool {
        let mut word = self.word().load(Relaxed);
        while word & LOCKED == 0 {
            // Acquire: pairs with the Release in `LockedShared::drop`.
            match self
                .word()
                .compare_exchange_weak(word, word | LOCKED, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
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

/// An object's word at one moment.
#[derive(Clone, Copy)]
pub struct Snapshot(u64);

impl Snapshot {
    /// How many references there were.
    pub fn count(self) -> u32 {
        self.0 as u32
    }

    /// Whether it had been killed.
    pub fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// Whether `flag` was set.
    pub fn has(self, flag: Flag) -> bool {
        self.0 & flag.0 != 0
    }

    /// Whether it was on a hash table.
    pub fn is_hashed(self) -> bool {
        self.has(Flag::HASHED)
    }
}

/// An object whose lock is held. A guard belongs to its thread:
///
/// ```compile_fail
/// let object = rcuwalk_sync::Ref::new(());
/// let locked = object.lock(rcuwalk_sync::lock::Rank::Dentry);
/// std::thread::scope(|scope| scope.spawn(|| drop(locked)));
/// ```
pub struct LockedShared<'a, T> {
    object: &'a Shared<T>,
    _held: Held,
}

impl<T> Deref for LockedShared<'_, T> {
    type Target = Shared<T>;
    fn deref(&self) -> &Shared<T> {
        self.object
    }
}

impl<T> Drop for LockedShared<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `try_lock_word`.
        let before = self.object.word().fetch_and(!(LOCKED | WAITERS), Release);
        if before & WAITERS != 0 {
            wait::wake_all(self.object.address());
        }
    }
}

/// A counted reference to a [`Shared`] object.
pub struct Ref<T> {
    object: NonNull<Shared<T>>,
    /// For drop check: dropping the last one drops a `T`.
    _owns: PhantomData<T>,
}

// SAFETY: a `Ref` gives `&T` to any thread and may drop the `T` on any thread.
unsafe impl<T: Send + Sync> Send for Ref<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Ref<T> {}

impl<T: Send + Sync + 'static> Ref<T> {
    /// Allocates an object with one reference: the one returned.
    pub fn new(value: T) -> Ref<T> {
        Self::with_flags(value, &[])
    }

    /// Like `new`, with `flags` set from the start.
    pub fn with_flags(value: T, flags: &[Flag]) -> Ref<T> {
        let flags = flags.iter().fold(Flag::NONE, |all, flag| all | *flag);
        let word = newborn(1, flags, 0);
        // SAFETY: the word says one reference, and here it is.
        unsafe { Ref::from_raw(Spare::new().fill(value, word)) }
    }
}

/// Memory for an object, allocated before the locks are taken under which it is filled: no
/// thread waits for the allocator.
pub struct Spare<T> {
    object: NonNull<Shared<T>>,
    _owns: PhantomData<T>,
}

// SAFETY: memory without a `T` in it.
unsafe impl<T> Send for Spare<T> {}

impl<T> Spare<T> {
    /// Allocates it.
    pub fn new() -> Spare<T> {
        Spare {
            object: slab::allocate(Layout::new::<Shared<T>>()).cast(),
            _owns: PhantomData,
        }
    }

    /// Makes it an object whose word is `word`, which tells how many references the
    /// caller makes of the pointer.
    pub(crate) fn fill(self, value: T, word: u64) -> NonNull<Shared<T>> {
        let object = self.object;
        std::mem::forget(self);
        // SAFETY: allocated with the layout of `Shared<T>`, and known to no other code.
        unsafe {
            object.write(Shared(UnsafeCell::new(Inner {
                hash_next: AtomicPtr::new(std::ptr::null_mut()),
                word: AtomicU64::new(word),
                value,
                lru: crate::lru::Links::default(),
            })));
        }
        object
    }
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Spare<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and never filled.
        unsafe { slab::free(self.object.cast(), Layout::new::<Shared<T>>()) }
    }
}

/// The word of a newborn object: its marks, and the number of references.
pub(crate) fn newborn(references: u32, marks: Flag, list: u16) -> u64 {
    u64::from(references) | marks.0 | u64::from(list) << 48
}

/// Whether a reference is the last one that matters. Off the table it is one among others,
/// however many: up to `rest` of those may be held by other threads.
fn is_last(word: u64, rest: u32, flag: Flag) -> bool {
    let wanted = flag.0 | Flag::HASHED.0;
    match (word & COUNT) as u32 {
        1 => true,
        count => count == rest + 1 && word & wanted == wanted,
    }
}

/// An object that is being freed, for threads that wait until it is gone.
pub struct Dying<T>(Ref<T>);

impl<T> Dying<T> {
    /// Sleeps until the object is on no hash chain any more.
    #[doc(alias = "__wait_on_freeing_inode")]
    pub fn wait_until_unhashed(self) {
        self.0.wait_until_clear(Flag::HASHED);
    }
}

impl<T> Deref for Dying<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Ref<T> {
    /// Gives up the reference without counting it down: a container keeps it.
    pub(crate) fn into_raw(this: Ref<T>) -> NonNull<Shared<T>> {
        let object = this.object;
        std::mem::forget(this);
        object
    }

    /// The other way round.
    ///
    /// # Safety
    /// `object` came from `into_raw`, and each such pointer is taken back once.
    pub(crate) unsafe fn from_raw(object: NonNull<Shared<T>>) -> Ref<T> {
        Ref {
            object,
            _owns: PhantomData,
        }
    }

    /// One that has been counted already.
    fn counted(object: &Shared<T>) -> Ref<T> {
        Ref {
            object: NonNull::from(object),
            _owns: PhantomData,
        }
    }

    /// Drops the reference, unless it is the last one that matters: then the caller has
    /// it back and decides.
    ///
    /// It is the last one where none is left beside it, and where `rest` are and the
    /// object has `flag`: those of the containers that it is in, while it is on a hash
    /// table. A dead object's fate is decided already.
    #[doc(alias("iput_final", "lockref_put_or_lock"))]
    #[inline]
    pub fn put_unless_last(this: Ref<T>, rest: u32, flag: Flag) -> Option<Ref<T>> {
        let mut word = this.word().load(Relaxed);
        loop {
            if word & DEAD == 0 && is_last(word, rest, flag) {
                return Some(this);
            }
            if word & COUNT == 1 {
                return None; // By `this`, which is dropped here.
            }
            // Release: as in `Ref`'s drop; pairs with the Acquire of the thread that frees it,
            // or kills and evicts it.
            match this
                .word()
                .compare_exchange_weak(word, word - 1, Release, Relaxed)
            {
                Ok(_) => {
                    std::mem::forget(this);
                    return None;
                }
                Err(now) => word = now,
            }
        }
    }

    /// True if both refer to the same object.
    pub fn ptr_eq(a: &Ref<T>, b: &Ref<T>) -> bool {
        a.object == b.object
    }
}

impl<T> Deref for Ref<T> {
    type Target = Shared<T>;
    #[inline]
    fn deref(&self) -> &Shared<T> {
        // SAFETY: we hold a reference, and the object lives as long as one is held.
        unsafe { self.object.as_ref() }
    }
}

impl<T> Clone for Ref<T> {
    #[doc(alias("ihold", "dget"))]
    fn clone(&self) -> Ref<T> {
        // Relaxed: we hold a reference, so the object is there, and making one more
        // orders nothing.
        let before = self.word().fetch_add(1, Relaxed);
        if before & COUNT >= MOST {
            // Taken back before the panic: a caller that catches it again and again must not
            // get the count past its margin.
            self.word().fetch_sub(1, Relaxed);
            panic!("RCU-3: over 2^31 references to one object");
        }
        Ref {
            object: self.object,
            _owns: PhantomData,
        }
    }
}

impl<T> Drop for Ref<T> {
    #[doc(alias("iput", "dput"))]
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire fence below; our use of the object happened before it
        // is freed.
        if self.word().fetch_sub(1, Release) & COUNT == 1 {
            self.drop_slow();
        }
    }
}

impl<T> Ref<T> {
    /// For a dead object that has just been unlinked from its chain: takes off the mark, and
    /// counts down the chain's reference and this one, all in one step. If those were the last,
    /// returns the object for the caller to retire.
    pub(crate) fn bury(this: Ref<T>) -> Option<NonNull<Shared<T>>> {
        let object = Ref::into_raw(this);
        // SAFETY: we hold a reference.
        let shared = unsafe { object.as_ref() };
        let address = shared.address();
        // AcqRel: Release pairs with the Acquire fence below, as in `drop`, and with the
        // Acquire of threads that wait for the mark to go.
        let before = shared.word().fetch_sub(Flag::HASHED.0 + 2, AcqRel);
        debug_assert!(before & DEAD != 0 && before & Flag::HASHED.0 != 0);
        if before & WAITERS != 0 {
            // By address: the waiters keep the object, but we do not any more.
            wait::wake_all(address);
        }
        (before & COUNT == 2).then_some(object)
    }

    /// Retires objects that [`bury`](Self::bury) has returned as unreferenced.
    ///
    /// # Safety
    /// It said so, and each is passed once.
    pub(crate) unsafe fn retire_buried(objects: impl Iterator<Item = NonNull<Shared<T>>>) {
        let objects = objects.map(|object| object.as_ptr().cast());
        // SAFETY: as in `drop_slow`.
        unsafe { rcu::retire_all(objects, size_of::<Shared<T>>(), free::<T>) }
    }

    #[cold]
    fn drop_slow(&mut self) {
        // Acquire: pairs with the Release of every other reference's drop.
        fence(Acquire);
        debug_assert!(
            !self.has(Flag::HASHED) && !self.has(Flag::LISTED),
            "containers hold a Ref"
        );
        // SAFETY: RCU-3: the count is zero and stays zero, and containers hold counted
        // references, so only readers whose guard is older than this call can reach the object;
        // `free` runs after they have ended.
        unsafe {
            rcu::retire(
                self.object.as_ptr().cast(),
                size_of::<Shared<T>>(),
                free::<T>,
            )
        }
    }
}

/// Drops the value and gives back the memory.
///
/// # Safety
/// `object` is a `Shared<T>` from `Ref::new`, and unreachable for other threads.
unsafe fn free<T>(object: *mut ()) {
    let object = object.cast::<Shared<T>>();
    // SAFETY: the caller's promise.
    unsafe {
        object.drop_in_place();
        let memory = NonNull::new_unchecked(object.cast());
        slab::free(memory, Layout::new::<Shared<T>>());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
