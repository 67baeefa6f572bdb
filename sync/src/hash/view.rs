//! Lookups: no lock, no store.

use super::*;

/// The array of a table, held still for several lookups.
pub struct View<'g, T> {
    /// The array's own fields, at hand: a walk looks up several names.
    pub(super) heads: &'g [AtomicPtr<Shared<T>>],
    pub(super) mask: usize,
    pub(super) buckets: &'g Shared<Buckets<T>>,
    pub(super) guard: &'g RcuGuard,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'g, T: HashKey> View<'g, T> {
    /// The number of chains. [`find`](Self::find) with each number below that, in place of a
    /// hash, goes along each of them: a caller can so scan the whole table, a piece at a time.
    /// Objects that move meanwhile may be seen twice, or missed.
    pub fn chains(self) -> usize {
        // In the larger array, if they are on their way: the lower bits of a number there
        // are the chain's in the smaller one.
        let next = self.buckets.next.load(self.guard);
        self.mask.max(next.map_or(0, |next| next.mask())) + 1
    }

    /// As [`RcuHash::find`].
    #[inline]
    pub fn find(
        self,
        hash: u64,
        mut wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        let index = grow::index(hash, self.mask);
        match self.look_along(index, &mut wanted) {
            Ok(found) => Some(found),
            Err(end) if end == end_of(index) => None,
            Err(_) => self.find_again(hash, &mut wanted),
        }
    }

    /// As [`find`](Self::find), but tells a miss that proves something from one that
    /// does not: `Err` means that the table is changing its size, and that only the
    /// bucket's lock settles it.
    ///
    /// Finds every object that was inserted before the call and has not been removed since, or
    /// returns `Err`. This relies on objects that stay on their chain until they are removed
    /// for good, as inodes do.
    pub fn find_settled(
        self,
        hash: u64,
        mut wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Result<Option<&'g Shared<T>>, Unsettled> {
        let index = grow::index(hash, self.mask);
        match self.look_along(index, &mut wanted) {
            Ok(found) => Ok(Some(found)),
            // If another thread had begun to move the chain when we loaded its head, or one of
            // its links, that value reached us by the mover's Release, which came after the
            // next array: we see that array. Without a next array, no chain moves, and a miss
            // is a miss.
            Err(end) if end == end_of(index) && self.buckets.next.is_none() => Ok(None),
            Err(_) => match self.find_again(hash, &mut wanted) {
                Some(found) => Ok(Some(found)),
                None => Err(Unsettled),
            },
        }
    }

    /// Like [`find`](Self::find), but gives up at the end of the chain, even if that is another
    /// chain's: for callers with a slow path of their own.
    #[inline(always)]
    pub fn find_at_once(
        self,
        hash: u64,
        wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        self.look_along(grow::index(hash, self.mask), wanted).ok()
    }

    /// The first object wanted on a chain, or the marker that the walk along it ended in.
    #[inline(always)]
    fn look_along(
        self,
        index: usize,
        mut wanted: impl FnMut(&'g Shared<T>) -> bool,
    ) -> Result<&'g Shared<T>, usize> {
        debug_assert!(index < self.heads.len());
        // SAFETY: the array has `mask + 1` heads (`Buckets::new`), and the index is some
        // number under that mask.
        let head = unsafe { self.heads.get_unchecked(index) };
        // Acquire: pairs with the Release of every store that links an object.
        let mut at = head.load(Acquire);
        if at.addr() & MARKS != 0 {
            at = without_marks(at);
        }
        while at.addr() & END == 0 {
            // SAFETY: every linked object was referenced by the table when we loaded the link,
            // and RCU-1 frees it only after a grace period, which `guard` holds open for 'g.
            let object: &'g Shared<T> = unsafe { &*at };
            if wanted(object) {
                return Ok(object);
            }
            // Acquire: as above.
            at = object.hash_next().load(Acquire);
        }
        Err(at.addr())
    }

    /// The chain ended in another bucket's marker: an object we stood on was moved, or
    /// the whole chain was.
    #[cold]
    fn find_again(
        self,
        hash: u64,
        wanted: &mut dyn FnMut(&'g Shared<T>) -> bool,
    ) -> Option<&'g Shared<T>> {
        let mut buckets = self.buckets;
        // A few tries, then a miss: the caller repeats those under the lock anyway.
        for _ in 0..8 {
            let index = buckets.index(hash);
            let head = buckets.head(index).load(Acquire);
            if head.addr() & MOVED != 0 {
                buckets = buckets.next.load(self.guard)?;
                continue;
            }
            let mut at = head.map_addr(|address| address & !MARKS);
            while at.addr() & END == 0 {
                // SAFETY: as in `look_along`.
                let object: &'g Shared<T> = unsafe { &*at };
                if wanted(object) {
                    return Some(object);
                }
                at = object.hash_next().load(Acquire);
            }
            if at.addr() == end_of(index) {
                return None;
            }
        }
        None
    }
}

/// A lookup missed while the table was changing its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled;
