//! Least recently used lists of unused cached objects, in shards.
//!
//! A list holds one counted reference per object, so every object on it is alive. The last user's
//! put ([`Ref`]'s drop) adds an object at the head; [`List::scan`] looks at the tail and asks the
//! caller what to do with each object.
//!
//! LRU-1: an object without a user, on a hash table [with lists](crate::RcuHash::with_lru), is on a
//! list. A scan takes objects in use off the list, so it does not meet them again. A put that would
//! leave only the table's reference gives its own reference to the list instead. The count and the
//! marks HASHED and LISTED are in one word, so an object that another thread takes off the table at
//! that moment is not listed.
//!
//! Each thread normally adds to a shard of its own, so that neither the shard's lock nor its ends
//! travel between cores. A thread that reclaims scans the same shard, or the fullest one if that is
//! much fuller, and every other time one that no thread adds to any more ([`List::victim`]).

use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize as PlainUsize;

use crate::atomic::*;
use crate::lock::{Mutex, Rank};
use crate::{Ref, Shared, rcu};

/// The list fields of an object.
///
/// On a list: its neighbours, guarded by the shard's lock. On no list: a pointer to the lists that
/// it will enter, written before LISTED is cleared or HASHED is set.
pub(crate) struct Links<T> {
    towards_head: AtomicPtr<Shared<T>>,
    towards_tail: AtomicPtr<Shared<T>>,
}

impl<T> Default for Links<T> {
    fn default() -> Self {
        Links {
            towards_head: AtomicPtr::new(ptr::null_mut()),
            towards_tail: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl<T> Links<T> {
    /// Where the object enters, if it is on no list. Null if it belongs to none.
    pub(crate) fn lists(&self) -> *const Lists<T> {
        self.towards_head.load(Relaxed).cast_const().cast()
    }

    /// The caller publishes this with the object's word.
    pub(crate) fn set_lists(&self, lists: *const Lists<T>) {
        self.towards_head.store(lists.cast_mut().cast(), Relaxed);
    }
}

/// What a scan of a list does with the object that it has just shown: the callback's answer to
/// [`List::scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "lru_status")]
pub enum LruStatus {
    /// Back to the head.
    Rotate,
    /// Killed, off the list and into the caller's hands, if it still has no user.
    Kill,
    /// It stays where it is, and the scan ends.
    Stop,
}

/// Sharded lists of the `T`s on a hash table that have no user, ordered by when they were last
/// dropped or scanned. There may be several kinds of them.
#[doc(alias = "list_lru")]
pub struct Lru<T>(NonNull<Lists<T>>);

// SAFETY: it owns the lists, which are `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for Lru<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Lru<T> {}

/// The lists themselves, where objects that are on none find them.
pub(crate) struct Lists<T> {
    /// Those of one kind after those of the other.
    shards: Box<[Shard<T>]>,
    per_kind: usize,
    numbers: Numbers,
    kind_of: fn(&T) -> usize,
    /// How often a victim was chosen. On a line of its own: the rest is only read.
    victims: Victims,
}

#[repr(align(128))]
#[derive(Default)]
struct Victims(PlainUsize);

/// Padded so that the locks of two shards do not share a cache line.
#[repr(align(128))]
struct Shard<T> {
    list: Mutex<Chain<T>>,
    /// The list's length, for readers without its lock.
    len: PlainUsize,
    /// The count of victims when an object last entered, give or take a few objects.
    last_entry: PlainUsize,
    /// How many objects scans have looked at.
    scanned: PlainUsize,
}

struct Chain<T> {
    head: *mut Shared<T>,
    tail: *mut Shared<T>,
    /// An object on the list, at most this many from the tail: up to there, objects have been
    /// prefetched.
    ahead: *mut Shared<T>,
    ahead_by: usize,
    len: usize,
    /// How many have entered.
    entered: usize,
}

// SAFETY: the pointers are counted references to `Shared<T>`, as `Ref<T>` is.
unsafe impl<T: Send + Sync> Send for Chain<T> {}

/// Numbers of the lists of an [`Lru`], different from those of every other live one; each
/// object on a list carries the list's number.
#[derive(Clone, Copy)]
struct Numbers {
    first: u16,
    count: u16,
}

/// The next number never drawn, and the ranges given back.
static NUMBERS: std::sync::Mutex<(u32, Vec<Numbers>)> = std::sync::Mutex::new((0, Vec::new()));

/// For [`fork`](crate::fork).
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) fn before_fork() -> Box<dyn std::any::Any> {
    Box::new(NUMBERS.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Numbers {
    /// No object carries them any more.
    fn give_back(self) {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.1.push(self);
    }

    fn draw(count: usize) -> Numbers {
        let count = u16::try_from(count).expect("at most 65536 lists at a time");
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        // A range of that length, or a piece of a longer one.
        if let Some(at) = numbers.1.iter().position(|free| free.count >= count) {
            let free = &mut numbers.1[at];
            let first = free.first;
            free.first = free.first.wrapping_add(count);
            free.count -= count;
            if free.count == 0 {
                numbers.1.swap_remove(at);
            }
            return Numbers { first, count };
        }
        let first = u16::try_from(numbers.0).ok();
        let end = numbers.0 + u32::from(count);
        assert!(end <= 1 << 16, "at most 65536 lists at a time");
        numbers.0 = end;
        Numbers {
            first: first.expect("below the end"),
            count,
        }
    }
}

impl<T> Lru<T> {
    /// Empty lists: `shards` of each of `kinds` kinds. `kind_of` tells an object's kind when it
    /// enters.
    ///
    /// # Panics
    /// If there are more than 65536 shards in all.
    pub fn new(rank: Rank, shards: usize, kinds: usize, kind_of: fn(&T) -> usize) -> Self {
        let chain = || Chain {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            ahead: ptr::null_mut(),
            ahead_by: 0,
            len: 0,
            entered: 0,
        };
        let per_kind = shards.max(1);
        let shards = per_kind * kinds;
        let lists = Lists {
            shards: (0..shards)
                .map(|_| Shard {
                    list: Mutex::new(rank, chain()),
                    len: PlainUsize::new(0),
                    last_entry: PlainUsize::new(0),
                    scanned: PlainUsize::new(0),
                })
                .collect(),
            per_kind,
            numbers: Numbers::draw(shards),
            kind_of,
            victims: Victims::default(),
        };
        Lru(NonNull::from(Box::leak(Box::new(lists))))
    }

    pub(crate) fn lists(&self) -> &Lists<T> {
        // SAFETY: freed after `drop` only.
        unsafe { self.0.as_ref() }
    }

    /// The lists of one kind.
    pub fn kind(&self, kind: usize) -> List<'_, T> {
        let lists = self.lists();
        let first = kind * lists.per_kind;
        List {
            lists,
            shards: &lists.shards[first..first + lists.per_kind],
        }
    }

    /// Takes an object off its list.
    #[doc(alias = "list_lru_del")]
    pub fn remove(&self, object: &Shared<T>) -> Option<Ref<T>> {
        loop {
            // Not any list: the object's neighbours on another are behind another lock.
            let number = object.listed()?;
            let shard = self.lists().shard_of(number)?;
            let mut list = shard.list.lock();
            match object.listed() {
                Some(now) if now == number => {}
                // Off the list, or on another one by now.
                _ => continue,
            }
            let object = NonNull::from(object);
            list.unlink(object);
            shard.is_shorter(&mut list);
            // SAFETY: the list's reference, which is taken back here alone: the object was on
            // the list under its lock.
            let object = unsafe { Ref::from_raw(object) };
            object.lru().set_lists(self.lists());
            object.clear_listed();
            return Some(object);
        }
    }

    /// How many objects scans have looked at so far.
    pub fn scanned(&self) -> usize {
        let shards = self.lists().shards.iter();
        shards.map(|shard| shard.scanned.load(Relaxed)).sum()
    }
}

impl<T> Drop for Lru<T> {
    /// The table has been emptied: no object enters any more.
    fn drop(&mut self) {
        let lists = self.lists();
        lists.drain();
        // Now, and not only when the lists are freed: other lists may be waiting for numbers. A
        // thread that still looks at these lists marks no object with them (`list_if_unused`).
        lists.numbers.give_back();
        let bytes = size_of::<Lists<T>>() + size_of_val(&*lists.shards);
        // SAFETY: made by `Box::leak`. A thread that found an object on the table before it was
        // emptied may still look at the lists, in its read section (`Shared::enter_list`).
        unsafe { rcu::retire(self.0.as_ptr().cast(), bytes, free::<T>) }
    }
}

/// # Safety
/// `lists` came from `Box::leak`, and no thread looks at it any more.
unsafe fn free<T>(lists: *mut ()) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(lists.cast::<Lists<T>>()) });
}

impl<T> Lists<T> {
    fn shard_of(&self, list: u16) -> Option<&Shard<T>> {
        let at = list.checked_sub(self.numbers.first)?;
        self.shards.get(usize::from(at))
    }

    /// True if `list` is the number of one of these.
    pub(crate) fn has(&self, list: u16) -> bool {
        self.shard_of(list).is_some()
    }

    /// Puts an object that the caller has the last reference to at the head of this thread's
    /// shard, and takes over that reference. False if it has left the table, or another thread
    /// uses it by now.
    ///
    /// May be called in a read section: the lock is held for moments only, and never while its
    /// holder waits for readers.
    #[doc(alias = "list_lru_add")]
    pub(crate) fn enter(&self, object: &Shared<T>) -> bool {
        let kind = (self.kind_of)(object);
        let at = kind * self.per_kind + rcu::thread_index() % self.per_kind;
        let shard = &self.shards[at];
        let mut list = shard.list.lock_in_read_section();
        if !object.list_if_unused(self.numbers.first + at as u16) {
            return false;
        }
        list.push_head(NonNull::from(object));
        list.look_ahead();
        list.len += 1;
        shard.len.store(list.len, Relaxed);
        // Seldom: the count is on a line that all threads write to.
        if list.entered.is_multiple_of(8) {
            shard
                .last_entry
                .store(self.victims.0.load(Relaxed), Relaxed);
        }
        list.entered = list.entered.wrapping_add(1);
        true
    }

    fn drain(&self) {
        for shard in &self.shards {
            loop {
                let object = {
                    let mut list = shard.list.lock();
                    let Some(object) = NonNull::new(list.tail) else {
                        break;
                    };
                    list.unlink(object);
                    shard.is_shorter(&mut list);
                    // SAFETY: as in `remove`.
                    unsafe { Ref::from_raw(object) }
                };
                object.clear_listed();
            }
        }
    }
}

/// The lists of one kind of an [`Lru`].
pub struct List<'a, T> {
    lists: &'a Lists<T>,
    shards: &'a [Shard<T>],
}

impl<T> List<'_, T> {
    /// Scans up to `most` objects from the tail of a shard, under the shard's lock. Those in use
    /// leave the list. Shows `look` the others, and adds those that it has killed to `killed`:
    /// the list's reference to each. Returns how many were scanned.
    #[doc(alias("list_lru_walk", "list_lru_isolate"))]
    pub fn scan(
        &self,
        shard: usize,
        most: usize,
        killed: &mut Vec<Ref<T>>,
        mut look: impl FnMut(&Shared<T>) -> LruStatus,
    ) -> usize {
        let shard = &self.shards[shard];
        let mut list = shard.list.lock();
        let most = most.min(list.len);
        let mut scanned = 0;
        while scanned < most {
            let Some(last) = NonNull::new(list.tail) else {
                break;
            };
            // SAFETY: every listed object is alive: the list holds a reference.
            let object = unsafe { last.as_ref() };
            scanned += 1;
            if object.users() > 0 && self.let_go(&mut list, object) {
                shard.is_shorter(&mut list);
                continue;
            }
            // First, while the object is on the list: it is foreign code, and may panic.
            match look(object) {
                LruStatus::Rotate => {
                    list.unlink(last);
                    list.push_head(last);
                }
                LruStatus::Kill => {
                    list.unlink(last);
                    object.lru().set_lists(self.lists);
                    if object.kill_listed_if_unused() {
                        shard.is_shorter(&mut list);
                        // SAFETY: the list's reference, taken back here alone.
                        killed.push(unsafe { Ref::from_raw(last) });
                    } else {
                        list.push_head(last);
                    }
                }
                LruStatus::Stop => {
                    scanned -= 1;
                    break;
                }
            }
        }
        shard.scanned.fetch_add(scanned, Relaxed);
        scanned
    }

    /// Takes an object in use off the list: its last user brings it back. False if it has no
    /// user any more.
    #[doc(alias("LRU_REMOVED", "d_lru_isolate"))]
    fn let_go(&self, list: &mut Chain<T>, object: &Shared<T>) -> bool {
        let pointer = NonNull::from(object);
        list.unlink(pointer);
        // Before the mark goes: from then on the last user may look for the lists.
        object.lru().set_lists(self.lists);
        let is_off = object.unlist_if_used();
        if !is_off {
            list.push_tail(pointer);
        }
        is_off
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The shard to reclaim from: this thread's, or the fullest one if that is fuller by a
    /// quarter, and every other time one that no thread adds to any more, if there is one. So a
    /// thread that outlives others reclaims what they have listed. `None` if all are empty.
    pub fn victim(&self) -> Option<usize> {
        let shards = self.shards.len();
        let victims = self.lists.victims.0.fetch_add(1, Relaxed);
        if victims.is_multiple_of(2)
            && let Some(idle) = self.idle(victims)
        {
            return Some(idle);
        }
        let own = rcu::thread_index() % shards;
        let fullest = (0..shards).max_by_key(|shard| self.len_of(*shard))?;
        let victim = match self.len_of(fullest) > self.len_of(own) + self.len_of(own) / 4 {
            true => fullest,
            false => own,
        };
        (self.len_of(victim) > 0).then_some(victim)
    }

    /// A shard that no object has entered while several victims per shard were chosen.
    fn idle(&self, victims: usize) -> Option<usize> {
        let shards = self.shards.len();
        // One after the other: all objects on the first may be used again and again.
        let mut order = (0..shards).map(|n| (victims / 2 + n) % shards);
        order.find(|shard| {
            let last = self.shards[*shard].last_entry.load(Relaxed);
            victims.saturating_sub(last) > 8 * shards && self.len_of(*shard) > 0
        })
    }

    /// The number of objects on a shard, at this moment. Takes no lock.
    pub fn len_of(&self, shard: usize) -> usize {
        self.shards[shard].len.load(Relaxed)
    }

    /// The number of objects on all shards, of each at the moment it was asked. Takes no lock.
    pub fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.len_of(shard)).sum()
    }

    /// True if no object is on a list.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A shard's share of `most`, in proportion to its length, and one more: for callers that
    /// go over all shards.
    pub fn part_of(&self, most: usize, shard: usize) -> usize {
        let len = self.len_of(shard) as u128;
        let part = (most as u128 * len).div_ceil(self.len().max(1) as u128);
        usize::try_from(part).unwrap_or(usize::MAX)
    }
}

impl<T> Shard<T> {
    /// One has left. Called under the list's lock.
    fn is_shorter(&self, list: &mut Chain<T>) {
        list.len -= 1;
        self.len.store(list.len, Relaxed);
    }
}

/// How far ahead of the scan the tail is brought into the cache.
const AHEAD: usize = 64;

impl<T> Chain<T> {
    /// Prefetches one more object from the tail. Called with each object that enters, so that a
    /// later scan does not wait for memory at each object: the address of the next one is in
    /// the one before.
    fn look_ahead(&mut self) {
        if self.ahead.is_null() {
            (self.ahead, self.ahead_by) = (self.tail, 0);
        } else if self.ahead_by < AHEAD {
            // SAFETY: it is on the list, `unlink` sees to that, hence alive.
            let links = unsafe { &*self.ahead }.lru();
            let next = links.towards_head.load(Relaxed);
            if next.is_null() {
                return;
            }
            (self.ahead, self.ahead_by) = (next, self.ahead_by + 1);
        } else {
            return;
        }
        crate::hint::prefetch(self.ahead);
    }

    /// To where it has just been.
    fn push_tail(&mut self, object: NonNull<Shared<T>>) {
        // SAFETY: the list's reference keeps it alive.
        let links = unsafe { object.as_ref() }.lru();
        links.towards_tail.store(ptr::null_mut(), Relaxed);
        links.towards_head.store(self.tail, Relaxed);
        match NonNull::new(self.tail) {
            // SAFETY: on the list, hence alive.
            Some(tail) => unsafe { tail.as_ref() }
                .lru()
                .towards_tail
                .store(object.as_ptr(), Relaxed),
            None => self.head = object.as_ptr(),
        }
        self.tail = object.as_ptr();
        (self.ahead, self.ahead_by) = (ptr::null_mut(), 0);
    }

    fn push_head(&mut self, object: NonNull<Shared<T>>) {
        // SAFETY: the caller hands over an object that it or the list keeps alive.
        let links = unsafe { object.as_ref() }.lru();
        links.towards_head.store(ptr::null_mut(), Relaxed);
        links.towards_tail.store(self.head, Relaxed);
        match NonNull::new(self.head) {
            // SAFETY: on the list, hence alive.
            Some(head) => unsafe { head.as_ref() }
                .lru()
                .towards_head
                .store(object.as_ptr(), Relaxed),
            None => self.tail = object.as_ptr(),
        }
        self.head = object.as_ptr();
    }

    fn unlink(&mut self, object: NonNull<Shared<T>>) {
        // SAFETY: on the list, hence alive.
        let links = unsafe { object.as_ref() }.lru();
        let headward = links.towards_head.load(Relaxed);
        let tailward = links.towards_tail.load(Relaxed);
        self.ahead_by = self.ahead_by.saturating_sub(1);
        if self.ahead == object.as_ptr() {
            self.ahead = headward;
        }
        match NonNull::new(headward) {
            // SAFETY: on the list, hence alive.
            Some(other) => unsafe { other.as_ref() }
                .lru()
                .towards_tail
                .store(tailward, Relaxed),
            None => self.head = tailward,
        }
        match NonNull::new(tailward) {
            // SAFETY: on the list, hence alive.
            Some(other) => unsafe { other.as_ref() }
                .lru()
                .towards_head
                .store(headward, Relaxed),
            None => self.tail = headward,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
