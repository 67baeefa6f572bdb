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
/// Threads wait for a mark to go.
const WAITERS: u64 = 1 << 34;
/// Threads may wait for the lock.
const LOCK_WAITERS: u64 = 1 << 38;

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

    /// Marks the object dead if it is on a hash table and has `mine` users: those that the caller
    /// knows. The references of its containers do not count; all is read from one word.
    ///
    /// True if this call killed it.
    pub fn kill_if_users_are(&self, mine: u32) -> bool {
        self.kill_where(0, |word| {
            word & Flag::HASHED.0 != 0 && users(word) == u64::from(mine)
        })
    }

    /// As above for an object without a user, and takes the mark of the list off in the same
    /// step.
    pub(crate) fn kill_listed_if_unused(&self) -> bool {
        self.kill_where(Flag::LISTED.0, |word| {
            word & Flag::HASHED.0 != 0 && users(word) == 0
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

    /// The number of the list that the object is on.
    pub(crate) fn listed(&self) -> Option<u16> {
        let word = self.word().load(Acquire);
        (word & Flag::LISTED.0 != 0).then_some((word >> 48) as u16)
    }

    /// Marks the object as on the list number `list`, if its last user is the caller, and it is on
    /// a table and on no list. The caller's reference is the list's then.
    pub(crate) fn list_if_unused(&self, list: u16) -> bool {
        let mut word = self.word().load(Relaxed);
        while leaves_for_list(word) {
            let listed = word & !Flag::LIST_NUMBER | Flag::LISTED.0 | u64::from(list) << 48;
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
            let off = (word & !Flag::LISTED.0) - 1;
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

    /// The lock, if no thread holds it, whatever this thread holds: see
    /// [`Mutex::try_lock_out_of_order`](crate::lock::Mutex::try_lock_out_of_order).
    #[doc(alias = "spin_trylock")]
    pub fn try_lock_out_of_order(&self, rank: Rank) -> Option<LockedShared<'_, T>> {
        crate::lock::assert_may_sleep();
        let held = Held::unchecked(rank);
        self.try_lock_word().then(|| LockedShared {
            object: self,
            _held: held,
        })
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
        loop {
            let word = self.word().load(Relaxed);
            let marked = word | LOCK_WAITERS;
            if word & LOCKED == 0 {
                // With the mark: other threads may be asleep, and one is woken at a time.
                // Acquire: as in `try_lock_word`.
                let took =
                    self.word()
                        .compare_exchange_weak(word, marked | LOCKED, Acquire, Relaxed);
                if took.is_ok() {
                    return;
                }
            } else if word == marked
                || self
                    .word()
                    .compare_exchange_weak(word, marked, Relaxed, Relaxed)
                    .is_ok()
            {
                wait::sleep(self.word(), marked);
            }
        }
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
    /// Whether it had references beside those of its containers.
    pub fn is_used(self) -> bool {
        users(self.0) > 0
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
        let word = self.object.word();
        let at = std::ptr::from_ref(word);
        let before = word.fetch_and(!(LOCKED | LOCK_WAITERS), Release);
        if before & LOCK_WAITERS != 0 {
            wait::wake_one(at);
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
        // SAFETY: the word says one reference, and here it is.
        unsafe { Ref::from_raw(Spare::new().fill(value, 1, flags)) }
    }
}

/// What an object takes of its last cache line is told as well: see `slab.rs`.
fn layout<T>() -> Layout {
    let used = std::mem::offset_of!(Inner<T>, lru) + size_of::<crate::lru::Links<T>>();
    let whole = Layout::new::<Shared<T>>();
    Layout::from_size_align(used, whole.align()).unwrap_or(whole)
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
            object: slab::allocate(layout::<T>()).cast(),
            _owns: PhantomData,
        }
    }

    /// Makes it an object with these marks and this count. The caller makes that many references
    /// from the pointer.
    pub(crate) fn fill(self, value: T, references: u32, marks: Flag) -> NonNull<Shared<T>> {
        let object = self.object;
        std::mem::forget(self);
        // SAFETY: allocated with the layout of `Shared<T>`, and known to no other code.
        unsafe {
            object.write(Shared(UnsafeCell::new(Inner {
                hash_next: AtomicPtr::new(std::ptr::null_mut()),
                word: AtomicU64::new(u64::from(references) | marks.0),
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
        unsafe { slab::free(self.object.cast(), layout::<T>()) }
    }
}

/// The references beside those of the object's containers.
#[inline]
fn users(word: u64) -> u64 {
    let own = u64::from(word & Flag::HASHED.0 != 0) + u64::from(word & Flag::LISTED.0 != 0);
    (word & COUNT).saturating_sub(own)
}

/// Whether a reference is the last one that matters: there is no other, or no user but its
/// holder has the object, which is on a hash table, and has `flag`.
#[inline]
fn is_last(word: u64, flag: Flag) -> bool {
    word & COUNT == 1 || word & flag.0 != 0 && word & Flag::HASHED.0 != 0 && users(word) == 1
}

/// Whether the last user of an object, if it is one that belongs to lists, hands its reference
/// to a list (LRU-1).
#[inline]
fn leaves_for_list(word: u64) -> bool {
    word & (DEAD | Flag::HASHED.0 | Flag::LISTED.0) == Flag::HASHED.0 && word & COUNT == 2
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

    /// Drops the reference, unless it is the last one that matters: then the caller has it back
    /// and decides.
    ///
    /// It is the last one where none is left beside it; and, for an object on a hash table that
    /// has `flag`, where only containers have others. A dead object's fate is decided already.
    #[doc(alias("iput_final", "lockref_put_or_lock"))]
    #[inline]
    pub fn put_unless_last(this: Ref<T>, flag: Flag) -> Option<Ref<T>> {
        match this.count_down(|word| is_last(word, flag)) {
            CountedDown::Kept => Some(this),
            CountedDown::Yes => {
                std::mem::forget(this);
                None
            }
            CountedDown::ToZero => {
                // SAFETY: counted down to zero, and not dropped again.
                unsafe { std::mem::ManuallyDrop::new(this).retire() };
                None
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
        if let CountedDown::ToZero = self.count_down(|_| false) {
            // SAFETY: counted down to zero.
            unsafe { self.retire() }
        }
    }
}

/// What became of a reference.
enum CountedDown {
    /// It is gone, or a list's now.
    Yes,
    /// It was the last one: the caller retires the object.
    ToZero,
    /// The caller has it still.
    Kept,
}

impl<T> Ref<T> {
    /// Drops the reference, unless `keep` says otherwise of the word. Where the object then would
    /// be unused, on a table, and on no list, it goes to a list (LRU-1).
    ///
    /// Each case is one compare-and-swap. With a plain subtraction, a scan could take the object off
    /// its list after this thread has read the word, and no thread would list it again.
    #[inline]
    fn count_down(&self, keep: impl Fn(u64) -> bool) -> CountedDown {
        let mut word = self.word().load(Relaxed);
        loop {
            if word & DEAD == 0 && keep(word) {
                return CountedDown::Kept;
            }
            if leaves_for_list(word) && self.has_lists() {
                if self.enter_list() {
                    return CountedDown::Yes;
                }
                word = self.word().load(Relaxed);
                // It was as before if another thread has come and gone meanwhile.
                continue;
            }
            // Release: pairs with the Acquire fence in `retire`; our use of the object happened
            // before it is freed, or killed and evicted.
            match self
                .word()
                .compare_exchange_weak(word, word - 1, Release, Relaxed)
            {
                Ok(_) if word & COUNT == 1 => return CountedDown::ToZero,
                Ok(_) => return CountedDown::Yes,
                Err(now) => word = now,
            }
        }
    }

    /// True if it is one that lists hold while it has no user. Asked while it is hashed.
    #[cold]
    fn has_lists(&self) -> bool {
        // Acquire: pairs with the Release in `insert`.
        fence(Acquire);
        !self.inner().lru.lists().is_null()
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

    /// Hands the object to RCU.
    ///
    /// # Safety
    /// The reference has been counted down to zero, and is not dropped again.
    #[cold]
    unsafe fn retire(&self) {
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
        slab::free(memory, layout::<T>());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
