//! Least recently used lists with a second chance, in shards.
//!
//! A list holds one counted reference per object, so every object on it is alive. An object
//! enters at the head; [`Lru::scan`] looks at the tail and asks what to do with each. There is
//! no list of everything: each thread normally adds to a shard of its own, so that neither the
//! shard's lock nor its ends travel between cores. A thread that reclaims takes from that shard
//! too, or from the fullest if that is much fuller, and by turns from shards that no thread
//! adds to any more ([`Lru::victim`]).

use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize as PlainUsize;

use crate::atomic::*;
use crate::lock::{Mutex, Rank};
use crate::{Flag, Ref, Shared, rcu};

/// Neighbours on the list. Guarded by the shard's lock.
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

/// The next step of [`Lru::scan`] for the object it has just shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "lru_status")]
pub enum Verdict {
    /// Back to the head.
    Rotate,
    /// Off the list and into the caller's hands.
    Take,
    /// As above, and dead, if it still has this number of references; otherwise it is rotated.
    TakeIfCountIs(u32),
    /// It stays where it is, and the scan ends.
    Stop,
}

/// Sharded lists of `T`s, ordered by when they were last scanned.
#[doc(alias = "list_lru")]
pub struct Lru<T> {
    shards: Box<[Shard<T>]>,
    numbers: Numbers,
    look_after: LookAfter,
    weight: fn(&T) -> usize,
    clock: Clock,
}

/// Counts how often it was time to look at the budget. On a line of its own: the rest
/// of the lists' head is only read.
#[repr(align(128))]
#[derive(Default)]
struct Clock(PlainUsize);

/// Padded so that the locks of two shards do not share a cache line.
#[repr(align(128))]
struct Shard<T> {
    list: Mutex<List<T>>,
    /// The list's totals, for readers without its lock.
    len: PlainUsize,
    weight: PlainUsize,
    /// When it last had enough news for a look at the budget.
    last_news: PlainUsize,
}

struct List<T> {
    head: *mut Shared<T>,
    tail: *mut Shared<T>,
    /// An object on the list, at most this many from the tail: up to there, objects have been
    /// prefetched.
    ahead: *mut Shared<T>,
    ahead_by: usize,
    len: usize,
    weight: usize,
    /// The number of objects that have entered since a caller was last told to check the
    /// budget.
    news: usize,
    news_weight: usize,
}

// SAFETY: the pointers are counted references to `Shared<T>`, as `Ref<T>` is.
unsafe impl<T: Send + Sync> Send for List<T> {}

/// How much may enter a shard before [`Lru::insert`] says that it is time to hold the
/// whole against a budget.
#[derive(Clone, Copy, Debug)]
pub struct LookAfter {
    /// This number of objects,
    pub objects: usize,
    /// or this weight.
    pub weight: usize,
}

/// Numbers of the lists of an [`Lru`], different from those of every other live one; each
/// object on a list carries the list's number.
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

impl<T> Drop for Lru<T> {
    fn drop(&mut self) {
        for shard in 0..self.shards.len() {
            self.scan(shard, usize::MAX, |_| Verdict::Take);
        }
        // The lists are empty: no object carries the numbers any more.
        let Numbers { first, count } = self.numbers;
        NUMBERS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .push(Numbers { first, count });
    }
}

/// An object that may enter a list, made by
/// [`BucketGuard::insert_new`](crate::BucketGuard::insert_new) with the list's number in it.
pub struct Unlisted<T>(pub(crate) Ref<T>);

/// The list that objects of this thread enter. See [`Lru::place`].
#[derive(Clone, Copy, Debug)]
pub struct Place(pub(crate) u16);

impl<T> Lru<T> {
    /// Empty lists. `weight` tells an object's bytes, the same each time it is asked.
    ///
    /// # Panics
    /// If there are more than 65536 shards in all.
    pub fn new(rank: Rank, shards: usize, look_after: LookAfter, weight: fn(&T) -> usize) -> Self {
        let list = || List {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            ahead: ptr::null_mut(),
            ahead_by: 0,
            len: 0,
            weight: 0,
            news: 0,
            news_weight: 0,
        };
        let shards = shards.max(1);
        Lru {
            shards: (0..shards)
                .map(|_| Shard {
                    list: Mutex::new(rank, list()),
                    len: PlainUsize::new(0),
                    weight: PlainUsize::new(0),
                    last_news: PlainUsize::new(0),
                })
                .collect(),
            numbers: Numbers::draw(shards),
            look_after,
            weight,
            clock: Clock::default(),
        }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    fn own_shard(&self) -> usize {
        rcu::thread_index() % self.shards.len()
    }

    /// Where this thread's objects go.
    pub fn place(&self) -> Place {
        Place(self.numbers.first + self.own_shard() as u16)
    }

    fn shard_of(&self, list: u16) -> Option<&Shard<T>> {
        let at = list.checked_sub(self.numbers.first)?;
        self.shards.get(usize::from(at))
    }

    /// Puts an object at the head of this thread's shard, unless it is on a list
    /// already. True if it is time to look at the budget.
    #[doc(alias = "list_lru_add")]
    pub fn insert(&self, object: Ref<T>) -> bool {
        // Before anything changes: it is foreign code, and may panic.
        let weight = (self.weight)(&object);
        let own = self.own_shard();
        let shard = &self.shards[own];
        let mut list = shard.list.lock();
        if !object.set_listed(self.numbers.first + own as u16) {
            return false;
        }
        self.enter_list(shard, &mut list, object, weight)
    }

    /// As [`insert`](Self::insert), for an object that was made for it; clears `flag`,
    /// which is set, in the same step.
    ///
    /// # Panics
    /// If the object was made for another `Lru`.
    pub fn insert_new(&self, object: Unlisted<T>, flag: Flag) -> bool {
        let object = object.0;
        let weight = (self.weight)(&object);
        let number = object.list_number();
        let shard = self
            .shard_of(number)
            .expect("an object enters the lists it was made for");
        let waited_for;
        let look = {
            let mut list = shard.list.lock();
            let (entered, wake) = object.list_and_clear(number, flag);
            waited_for = wake.then(|| object.clone());
            // Or another thread has already listed it, through its other reference.
            entered && self.enter_list(shard, &mut list, object, weight)
        };
        if let Some(object) = waited_for {
            object.wake_waiters();
        }
        look
    }

    fn enter_list(
        &self,
        shard: &Shard<T>,
        list: &mut List<T>,
        object: Ref<T>,
        weight: usize,
    ) -> bool {
        list.push_head(Ref::into_raw(object));
        list.look_ahead();
        list.len += 1;
        list.weight += weight;
        list.news += 1;
        list.news_weight += weight;
        shard.tell(list);
        let look =
            list.news >= self.look_after.objects || list.news_weight >= self.look_after.weight;
        if look {
            (list.news, list.news_weight) = (0, 0);
            let now = self.clock.0.fetch_add(1, Relaxed);
            shard.last_news.store(now, Relaxed);
        }
        look
    }

    /// Takes an object off its shard.
    #[doc(alias = "list_lru_del")]
    pub fn remove(&self, object: &Shared<T>) -> Option<Ref<T>> {
        self.take_if(object, || true)
    }

    /// Takes an object off its shard if it is on one and `look` wants it.
    pub fn take_if(&self, object: &Shared<T>, look: impl FnOnce() -> bool) -> Option<Ref<T>> {
        loop {
            // Not any list: the object's neighbours on another are behind another lock.
            let number = object.listed()?;
            let shard = self.shard_of(number)?;
            let mut list = shard.list.lock();
            match object.listed() {
                Some(now) if now == number => {}
                // Off the list, or on another one by now.
                _ => continue,
            }
            return look().then(|| self.take(shard, &mut list, NonNull::from(object)));
        }
    }

    /// Shows `look` up to `most` objects from the tail of a shard, under the
    /// shard's lock, and returns those it wants to take.
    #[doc(alias = "list_lru_walk")]
    pub fn scan(
        &self,
        shard: usize,
        most: usize,
        look: impl FnMut(&Shared<T>) -> Verdict,
    ) -> Vec<Ref<T>> {
        let mut taken = Vec::new();
        self.scan_into(shard, most, &mut taken, look);
        taken
    }

    /// Like [`scan`](Self::scan), for callers that need the taken objects even if `look`
    /// panics.
    pub fn scan_into(
        &self,
        shard: usize,
        most: usize,
        taken: &mut Vec<Ref<T>>,
        mut look: impl FnMut(&Shared<T>) -> Verdict,
    ) {
        let shard = &self.shards[shard];
        let mut list = shard.list.lock();
        for _ in 0..most.min(list.len) {
            let Some(last) = NonNull::new(list.tail) else {
                break;
            };
            // SAFETY: every listed object is alive: the list holds a reference.
            match look(unsafe { last.as_ref() }) {
                Verdict::Take => taken.push(self.take(shard, &mut list, last)),
                Verdict::TakeIfCountIs(count) => {
                    // SAFETY: as above.
                    let object = unsafe { last.as_ref() };
                    // Asked while it has its mark: it is foreign code, and may panic.
                    let weight = (self.weight)(object);
                    match object.kill_listed_if_count_is(count) {
                        true => taken.push(self.unlink(shard, &mut list, last, weight)),
                        false => list.rotate(last),
                    }
                }
                Verdict::Rotate => list.rotate(last),
                Verdict::Stop => break,
            }
        }
    }

    /// The shard to reclaim from: this thread's, or the fullest one if that is fuller by a
    /// quarter, and every other time one that no thread adds to any more. So a thread that
    /// outlives others reclaims what they have listed.
    pub fn victim(&self) -> usize {
        let now = self.clock.0.load(Relaxed);
        if now.is_multiple_of(2)
            && let Some(idle) = self.idle(now)
        {
            return idle;
        }
        let own = self.own_shard();
        let fullest = (0..self.shards.len()).max_by_key(|shard| self.len_of(*shard));
        match fullest {
            Some(fullest) if self.len_of(fullest) > self.len_of(own) + self.len_of(own) / 4 => {
                fullest
            }
            _ => own,
        }
    }

    /// A shard that has had no news for as long as all together had several times.
    fn idle(&self, now: usize) -> Option<usize> {
        let shards = self.shards.len();
        // By turns: all objects on one of them may be in use.
        let mut order = (0..shards).map(|n| (now / 2 + n) % shards);
        order.find(|shard| {
            let last = self.shards[*shard].last_news.load(Relaxed);
            now.saturating_sub(last) > 8 * shards && self.len_of(*shard) > 0
        })
    }

    /// How many objects are on a shard, at this moment. Takes no lock.
    pub fn len_of(&self, shard: usize) -> usize {
        self.shards[shard].len.load(Relaxed)
    }

    /// A shard's share of `most`, in proportion to its length, and one more: for callers that
    /// go over all shards.
    pub fn part_of(&self, most: usize, shard: usize) -> usize {
        let len = self.len_of(shard) as u128;
        let all = self.size().0.max(1) as u128;
        let part = (most as u128 * len).div_ceil(all);
        usize::try_from(part).unwrap_or(usize::MAX)
    }

    /// An object's bytes, as the lists count them.
    pub fn weight_of(&self, object: &T) -> usize {
        (self.weight)(object)
    }

    /// Objects and bytes on all shards, each as of the moment it was asked. Takes no
    /// lock.
    pub fn size(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |sum, shard| {
            (
                sum.0 + shard.len.load(Relaxed),
                sum.1 + shard.weight.load(Relaxed),
            )
        })
    }

    fn take(&self, shard: &Shard<T>, list: &mut List<T>, object: NonNull<Shared<T>>) -> Ref<T> {
        // SAFETY: on the list, hence alive. Asked first: it is foreign code, and may panic.
        let weight = (self.weight)(unsafe { object.as_ref() });
        let object = self.unlink(shard, list, object, weight);
        object.clear_listed();
        object
    }

    fn unlink(
        &self,
        shard: &Shard<T>,
        list: &mut List<T>,
        object: NonNull<Shared<T>>,
        weight: usize,
    ) -> Ref<T> {
        list.unlink(object);
        list.len -= 1;
        list.weight = list.weight.saturating_sub(weight);
        shard.tell(list);
        // SAFETY: the list put the reference there with `into_raw`, and unlinking it
        // under the lock makes this the only time that it is taken back.
        unsafe { Ref::from_raw(object) }
    }
}

impl<T> Shard<T> {
    /// Called under the list's lock.
    fn tell(&self, list: &List<T>) {
        self.len.store(list.len, Relaxed);
        self.weight.store(list.weight, Relaxed);
    }
}

/// How far ahead of the scan the tail is brought into the cache.
const AHEAD: usize = 64;

impl<T> List<T> {
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

    fn rotate(&mut self, object: NonNull<Shared<T>>) {
        self.unlink(object);
        self.push_head(object);
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
mod tests {
    use super::*;

    const LOOK_AFTER: LookAfter = LookAfter {
        objects: 1,
        weight: usize::MAX,
    };

    #[test]
    fn the_tail_goes_first_and_the_used_get_a_second_chance() {
        let lru = Lru::new(Rank::Lru, 1, LOOK_AFTER, |_: &u32| 10);
        let objects: Vec<_> = (0..4).map(Ref::new).collect();
        for object in &objects {
            lru.insert(object.clone());
            lru.insert(object.clone());
        }
        assert_eq!(lru.size(), (4, 40), "each is on the list once");

        let age = |object: &Shared<u32>| {
            if object.age() {
                Verdict::Take
            } else {
                Verdict::Rotate
            }
        };
        assert!(lru.scan(0, 4, age).is_empty(), "first chance");
        objects[0].mark_used();
        let gone: Vec<u32> = lru.scan(0, 3, age).iter().map(|o| ***o).collect();
        assert_eq!(gone, [1, 2], "0 was used, 1 and 2 were not");
        assert_eq!(**lru.remove(&objects[3]).unwrap(), 3);
        assert!(lru.remove(&objects[3]).is_none());
        assert_eq!(lru.size(), (1, 10));
        assert_eq!(objects[3].count(), 1, "the list gave its reference back");
        drop(lru);
        assert_eq!(objects[0].count(), 1);
    }

    /// RCU-3: a list gives back the references that it holds, and no other list's.
    #[test]
    fn an_object_is_taken_from_the_list_it_is_on() {
        let [a, b] = [(); 2].map(|()| Lru::new(Rank::Lru, 1, LOOK_AFTER, |_: &u32| 10));
        let objects: Vec<_> = (0..3).map(Ref::new).collect();
        for object in &objects {
            a.insert(object.clone());
        }
        b.insert(objects[1].clone());
        assert!(
            b.remove(&objects[1]).is_none(),
            "RCU-3: it is on the other list"
        );
        assert_eq!((a.size(), b.size()), ((3, 30), (0, 0)));
        assert!(a.remove(&objects[1]).is_some());
        assert_eq!(objects[1].count(), 1);
    }

    /// RCU-3: an object that was made for a list and has been put on one by its other
    /// reference enters once.
    #[test]
    fn what_is_listed_already_enters_once() {
        use crate::{HashKey, RcuHash, Spare};
        struct Five;
        impl HashKey for Five {
            fn hash(&self) -> u64 {
                5
            }
        }
        const NEW: Flag = Flag::new(0);
        let table = RcuHash::new(Rank::InodeBucket);
        let lru = Lru::new(Rank::Lru, 1, LOOK_AFTER, |_: &Five| 10);
        let bucket = table.lock(5);
        let (object, unlisted) = bucket.insert_new(Spare::new(), Five, NEW, lru.place());
        lru.insert(object.clone());
        lru.insert_new(unlisted, NEW);
        assert!(!object.has(NEW));
        assert_eq!(
            (lru.size(), object.count()),
            ((1, 10), 3),
            "RCU-3: the table's, the list's, ours"
        );
        assert!(lru.remove(&object).is_some());
        assert_eq!(lru.size(), (0, 0));
        drop(table.lock(5).remove(&object));
        assert_eq!(object.count(), 1, "RCU-3: no list has it");
    }

    /// RCU-3: a weight that cannot be told leaves an object off the list, and on it.
    #[test]
    fn a_panic_in_weight_changes_nothing() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        use std::sync::atomic::AtomicBool;

        let lru = Lru::new(Rank::Lru, 1, LOOK_AFTER, |heavy: &AtomicBool| {
            assert!(!heavy.load(Relaxed), "too heavy");
            10
        });
        let object = Ref::new(AtomicBool::new(true));
        assert!(catch_unwind(AssertUnwindSafe(|| lru.insert(object.clone()))).is_err());
        assert!(
            lru.remove(&object).is_none(),
            "RCU-3: it never was on the list"
        );
        object.store(false, Relaxed);
        lru.insert(object.clone());
        object.store(true, Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| lru.remove(&object))).is_err());
        let kill = || lru.scan(0, 1, |_| Verdict::TakeIfCountIs(2));
        assert!(catch_unwind(AssertUnwindSafe(kill)).is_err());
        assert!(!object.is_dead(), "RCU-3: it is not half way off");
        assert_eq!(
            (lru.size(), object.count()),
            ((1, 10), 2),
            "RCU-3: it still is"
        );
        object.store(false, Relaxed);
        assert!(lru.remove(&object).is_some());
    }
}
