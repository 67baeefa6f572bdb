//! Least recently used lists with a second chance, in shards.
//!
//! A list holds one counted reference per object, so what is on it is alive. An
//! object enters at the head; [`Lru::scan`] looks at the tail and asks what to do
//! with each. There is no list of everything: an object's shard follows from its
//! address, and shards share nothing.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use crate::atomic::*;
use crate::lock::{Mutex, Rank};
use crate::{Ref, Shared};

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

/// What [`Lru::scan`] does with the object it has just shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "lru_status")]
pub enum Verdict {
    /// Back to the head.
    Rotate,
    /// Off the list and into the caller's hands.
    Take,
}

/// Sharded lists of `T`s, ordered by when they were last looked over.
#[doc(alias = "list_lru")]
pub struct Lru<T> {
    shards: Box<[Shard<T>]>,
    number: Number,
    weight: fn(&T) -> usize,
}

/// Padded so that the locks of two shards do not share a cache line.
#[repr(align(128))]
struct Shard<T>(Mutex<List<T>>);

struct List<T> {
    head: *mut Shared<T>,
    tail: *mut Shared<T>,
    len: usize,
    weight: usize,
}

// SAFETY: the pointers are counted references to `Shared<T>`, as `Ref<T>` is.
unsafe impl<T: Send + Sync> Send for List<T> {}

/// What tells an [`Lru`] from every other live one; each object on it carries it.
struct Number(u16);

/// The next number never drawn, and those given back.
static NUMBERS: std::sync::Mutex<(u32, Vec<u16>)> = std::sync::Mutex::new((0, Vec::new()));

impl Number {
    fn draw() -> Number {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        Number(numbers.1.pop().unwrap_or_else(|| {
            let fresh = u16::try_from(numbers.0).expect("at most 65536 LRUs at a time");
            numbers.0 += 1;
            fresh
        }))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // The lists have been emptied: no object carries the number any more.
        NUMBERS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .push(self.0);
    }
}

impl<T> Lru<T> {
    /// Empty lists. `weight` tells an object's bytes, the same each time it is asked.
    ///
    /// # Panics
    /// If there are 65536 already.
    pub fn new(rank: Rank, shards: usize, weight: fn(&T) -> usize) -> Lru<T> {
        let list = || List {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            len: 0,
            weight: 0,
        };
        Lru {
            shards: (0..shards.max(1))
                .map(|_| Shard(Mutex::new(rank, list())))
                .collect(),
            number: Number::draw(),
            weight,
        }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The shard that an object is on or would go to.
    pub fn shard_of(&self, object: &Shared<T>) -> usize {
        // Fibonacci hashing: addresses are multiples of 64 and often consecutive.
        let spread = (object.address() as u64 >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (spread >> 40) as usize % self.shards.len()
    }

    /// Puts an object at the head of its shard, unless it is on a list already.
    /// Returns the shard's length and weight, to hold against a budget.
    #[doc(alias = "list_lru_add")]
    pub fn insert(&self, object: Ref<T>) -> (usize, usize) {
        // Before anything changes: it is foreign code, and may panic.
        let weight = (self.weight)(&object);
        let mut list = self.shards[self.shard_of(&object)].0.lock();
        if object.set_listed(self.number.0) {
            list.len += 1;
            list.weight += weight;
            list.push_head(Ref::into_raw(object));
        }
        (list.len, list.weight)
    }

    /// Takes an object off its shard.
    #[doc(alias = "list_lru_del")]
    pub fn remove(&self, object: &Shared<T>) -> Option<Ref<T>> {
        let mut list = self.shards[self.shard_of(object)].0.lock();
        // Not any list: the object's neighbours on another are behind another lock.
        if !object.is_listed(self.number.0) {
            return None;
        }
        Some(self.take(&mut list, NonNull::from(object)))
    }

    /// Takes an object off its shard if it is on it and `look`, which is told the
    /// shard's length and weight, wants it.
    pub fn take_if(
        &self,
        object: &Shared<T>,
        look: impl FnOnce(usize, usize) -> bool,
    ) -> Option<Ref<T>> {
        let mut list = self.shards[self.shard_of(object)].0.lock();
        if object.is_listed(self.number.0) && look(list.len, list.weight) {
            Some(self.take(&mut list, NonNull::from(object)))
        } else {
            None
        }
    }

    /// Shows `look` up to `most` objects from the tail of a shard, under the
    /// shard's lock, and returns those it wants to take.
    #[doc(alias = "list_lru_walk")]
    pub fn scan(
        &self,
        shard: usize,
        most: usize,
        mut look: impl FnMut(&Shared<T>) -> Verdict,
    ) -> Vec<Ref<T>> {
        let mut taken = Vec::new();
        let mut list = self.shards[shard].0.lock();
        for _ in 0..most.min(list.len) {
            let Some(last) = NonNull::new(list.tail) else {
                break;
            };
            // SAFETY: what is on the list is alive: the list holds a reference.
            match look(unsafe { last.as_ref() }) {
                Verdict::Take => taken.push(self.take(&mut list, last)),
                Verdict::Rotate => {
                    list.unlink(last);
                    list.push_head(last);
                }
            }
        }
        taken
    }

    /// An object's bytes, as the lists count them.
    pub fn weight_of(&self, object: &T) -> usize {
        (self.weight)(object)
    }

    /// Objects and bytes on one shard.
    pub fn shard_size(&self, shard: usize) -> (usize, usize) {
        let list = self.shards[shard].0.lock();
        (list.len, list.weight)
    }

    /// Objects and bytes on all shards, each as of the moment it was asked.
    pub fn size(&self) -> (usize, usize) {
        (0..self.shards.len())
            .map(|shard| self.shard_size(shard))
            .fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1))
    }

    fn take(&self, list: &mut List<T>, object: NonNull<Shared<T>>) -> Ref<T> {
        // SAFETY: on the list, hence alive. Asked first: it is foreign code, and may panic.
        let weight = (self.weight)(unsafe { object.as_ref() });
        list.unlink(object);
        // SAFETY: the list put the reference there with `into_raw`, and unlinking it
        // under the lock makes this the only time that it is taken back.
        let object = unsafe { Ref::from_raw(object) };
        list.len -= 1;
        list.weight = list.weight.saturating_sub(weight);
        object.clear_listed();
        object
    }
}

impl<T> List<T> {
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

impl<T> Drop for Lru<T> {
    fn drop(&mut self) {
        for shard in 0..self.shards.len() {
            self.scan(shard, usize::MAX, |_| Verdict::Take);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_tail_goes_first_and_the_used_get_a_second_chance() {
        let lru = Lru::new(Rank::Lru, 1, |_: &u32| 10);
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
        let [a, b] = [(); 2].map(|()| Lru::new(Rank::Lru, 1, |_: &u32| 10));
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

    /// RCU-3: a weight that cannot be told leaves an object off the list, and on it.
    #[test]
    fn a_panic_in_weight_changes_nothing() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        use std::sync::atomic::AtomicBool;

        let lru = Lru::new(Rank::Lru, 1, |heavy: &AtomicBool| {
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
        assert_eq!(
            (lru.size(), object.count()),
            ((1, 10), 2),
            "RCU-3: it still is"
        );
        object.store(false, Relaxed);
        assert!(lru.remove(&object).is_some());
    }
}
