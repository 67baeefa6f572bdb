//! Memory for [`Shared`](crate::Shared) objects: whole cache lines, given back.
//!
//! Objects are a few cache lines each, by the million, allocated and freed by different
//! threads. The system allocator spends a header per object and a slow path on every aligned
//! request; this one cuts [pages](crate::memory) of 64 KiB into slots of one size, keeps a
//! small stack of free slots per thread, and returns a page when its last slot comes back.
//! Memory follows the objects in use, not their maximum in the past.
//!
//! Miri, loom, shuttle and builds with `--cfg rcuwalk_system_alloc` (for the address
//! sanitizer) use the system allocator, which lets the tools see every object.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The unit of sizes, and the alignment of every object.
pub(crate) const LINE: usize = 64;

/// Allocates memory for `layout`, aligned to a cache line at least.
pub(crate) fn allocate(layout: Layout) -> NonNull<u8> {
    #[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
    if let Some(class) = pages::class_of(layout) {
        return pages::allocate(class);
    }
    allocate_system(layout)
}

/// Frees what [`allocate`] gave for the same `layout`.
///
/// # Safety
/// `object` came from `allocate(layout)` and is no longer used.
pub(crate) unsafe fn free(object: NonNull<u8>, layout: Layout) {
    #[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
    if let Some(class) = pages::class_of(layout) {
        // SAFETY: passed on; the layout names the same class as at allocation.
        return unsafe { pages::free(class, object) };
    }
    // SAFETY: passed on; objects without a class came from `allocate_system`.
    unsafe { dealloc(object.as_ptr(), lines(layout)) }
}

fn allocate_system(layout: Layout) -> NonNull<u8> {
    let layout = lines(layout);
    // SAFETY: an object has at least its header, so the size is not zero.
    let memory = unsafe { alloc(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}

fn lines(layout: Layout) -> Layout {
    layout
        .align_to(LINE)
        .expect("object sizes are far below isize::MAX")
        .pad_to_align()
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
pub(crate) use pages::pages_and_objects;

/// For [`fork`](crate::fork): there is nothing to hold.
#[cfg(all(unix, rcuwalk_system_alloc, not(any(miri, loom, shuttle))))]
pub(crate) fn before_fork() -> impl Iterator<Item = Box<dyn std::any::Any>> {
    std::iter::empty()
}

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
#[cfg(unix)]
pub(crate) use pages::before_fork;

#[cfg(not(any(miri, loom, shuttle, rcuwalk_system_alloc)))]
mod pages {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;
    use crate::memory::pages::{self, PAGE};

    /// Slots of 1 to 8 cache lines; two classes of each. Objects that fill their last line are in
    /// one, objects that do not in the other: so dentries (112 bytes) and inodes (128) lie apart, and
    /// slots are used again in the order of their addresses, though both come back in batches.
    const CLASSES: usize = 16;
    /// Free slots a thread keeps per class.
    const MAGAZINE: usize = 64;
    /// The slots that move at a time: from thread to thread in one piece, as a rule, without
    /// reading the slots or their pages.
    const CHUNK: usize = MAGAZINE / 2;
    /// No more bytes of slots than this are between threads, per class...
    const DEPOT_BYTES: usize = 128 << 10;
    /// ...and at most one slot in this number of slots in use: slots in magazines hold pages.
    const DEPOT_SHARE: usize = 16;
    /// Empty pages a class keeps, against a page going back and forth.
    const SPARE: usize = 1;

    /// The first line of a page. Guarded by its class's lock.
    #[repr(C, align(64))]
    struct Page {
        /// Slots that came back, linked through their first word.
        free: *mut FreeSlot,
        /// The place of the first slot that was never handed out. From there on the
        /// page has not been touched.
        fresh: usize,
        /// Slots that are not in `free`: with users or in magazines.
        out: usize,
        /// Where this page stands in `Class::partial`, if it does.
        partial_at: usize,
    }

    const NOT_PARTIAL: usize = usize::MAX;

    impl Page {
        /// A slot of `size`, if there is one.
        fn take(&mut self, size: usize) -> Option<NonNull<u8>> {
            if let Some(slot) = NonNull::new(self.free) {
                // SAFETY: a slot on the free list is ours and holds a `FreeSlot`.
                self.free = unsafe { slot.as_ref().next };
                self.out += 1;
                return Some(slot.cast());
            }
            if self.fresh + size > PAGE {
                return None;
            }
            let slot = NonNull::from_mut(self).cast::<u8>();
            // SAFETY: the slot ends within the page that this head begins.
            let slot = unsafe { slot.add(self.fresh) };
            self.fresh += size;
            self.out += 1;
            Some(slot)
        }

        fn is_full(&self, size: usize) -> bool {
            self.free.is_null() && self.fresh + size > PAGE
        }
    }

    struct FreeSlot {
        next: *mut FreeSlot,
    }

    /// The pages of one size that have free slots. Full pages are on no list:
    /// a slot that comes back finds its page by address.
    struct Class {
        partial: Vec<NonNull<Page>>,
        empty: usize,
        /// All pages, and the slots of them that are out.
        pages: usize,
        out: usize,
        /// Slots between threads, which are out as well. The oldest first.
        depot: VecDeque<[NonNull<u8>; CHUNK]>,
    }

    // SAFETY: the pages are reached only under the lock around their class.
    unsafe impl Send for Class {}

    static CLASS: [Mutex<Class>; CLASSES] = [const {
        Mutex::new(Class {
            partial: Vec::new(),
            empty: 0,
            pages: 0,
            out: 0,
            depot: VecDeque::new(),
        })
    }; CLASSES];

    /// Locks all classes, and the pages below them, for [`fork`](crate::fork). No other code
    /// holds two classes at once.
    #[cfg(unix)]
    pub(crate) fn before_fork() -> impl Iterator<Item = Box<dyn std::any::Any>> {
        let classes = (0..CLASSES).map(|class| -> Box<dyn std::any::Any> { Box::new(lock(class)) });
        classes.chain(std::iter::once_with(pages::before_fork))
    }

    #[derive(Default)]
    struct Magazines([Vec<NonNull<u8>>; CLASSES]);

    thread_local! {
        static MAGAZINES: RefCell<Magazines> = RefCell::default();
    }

    impl Drop for Magazines {
        fn drop(&mut self) {
            for (class, slots) in self.0.iter_mut().enumerate() {
                give_back(class, slots, 0);
            }
        }
    }

    #[inline]
    pub(super) fn class_of(layout: Layout) -> Option<usize> {
        let lines = layout.size().div_ceil(LINE);
        let class = 2 * (lines - 1) + usize::from(!layout.size().is_multiple_of(LINE));
        (class < CLASSES && layout.align() <= LINE).then_some(class)
    }

    pub(super) fn allocate(class: usize) -> NonNull<u8> {
        let from_magazine = MAGAZINES.try_with(|magazines| {
            let slots = &mut magazines.borrow_mut().0[class];
            if slots.is_empty() {
                refill(class, slots, CHUNK);
            }
            slots.pop()
        });
        match from_magazine {
            Ok(Some(slot)) => slot,
            // The thread is being torn down, its magazines are gone.
            _ => {
                let mut one = Vec::with_capacity(1);
                refill(class, &mut one, 1);
                one.pop().expect("refill hands out what it is asked for")
            }
        }
    }

    /// # Safety
    /// `slot` came from `allocate(class)` and is no longer used.
    pub(super) unsafe fn free(class: usize, slot: NonNull<u8>) {
        let kept = MAGAZINES.try_with(|magazines| {
            let slots = &mut magazines.borrow_mut().0[class];
            slots.push(slot);
            if slots.len() >= MAGAZINE {
                pass_on(class, slots);
            }
        });
        if kept.is_err() {
            give_back(class, &mut vec![slot], 0);
        }
    }

    fn lock(class: usize) -> MutexGuard<'static, Class> {
        CLASS[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size_of_class(class: usize) -> usize {
        (class / 2 + 1) * LINE
    }

    /// Bytes in pages, and in slots of them that are objects or in magazines.
    pub(crate) fn pages_and_objects() -> (usize, usize) {
        (0..CLASSES).fold((0, 0), |(pages, objects), class| {
            let state = lock(class);
            let out = state.out * size_of_class(class);
            (pages + state.pages * PAGE, objects + out)
        })
    }

    fn refill(class: usize, slots: &mut Vec<NonNull<u8>>, wanted: usize) {
        let size = size_of_class(class);
        let mut state = lock(class);
        if wanted == CHUNK
            && let Some(chunk) = state.depot.pop_back()
        {
            slots.extend(chunk);
            return;
        }
        while slots.len() < wanted {
            let page = match state.partial.last() {
                Some(page) => *page,
                None => new_page(&mut state),
            };
            // SAFETY: a page on the list is allocated, and the class lock is held.
            let head = unsafe { &mut *page.as_ptr() };
            if head.out == 0 {
                state.empty -= 1;
            }
            let before = slots.len();
            while slots.len() < wanted
                && let Some(slot) = head.take(size)
            {
                slots.push(slot);
            }
            state.out += slots.len() - before;
            if head.is_full(size) {
                head.partial_at = NOT_PARTIAL;
                state.partial.pop();
            }
        }
    }

    fn new_page(state: &mut Class) -> NonNull<Page> {
        let page = pages::take().cast::<Page>();
        let head = Page {
            free: std::ptr::null_mut(),
            fresh: LINE,
            out: 0,
            partial_at: state.partial.len(),
        };
        // SAFETY: the first line of the page is its head; no slot overlaps it.
        unsafe { page.write(head) };
        state.partial.push(page);
        state.empty += 1;
        state.pages += 1;
        page
    }

    /// Leaves the older half of a full magazine to other threads, and returns slots that were
    /// left for too long to their pages.
    fn pass_on(class: usize, slots: &mut Vec<NonNull<u8>>) {
        let mut chunk = [NonNull::dangling(); CHUNK];
        for (place, slot) in chunk.iter_mut().zip(slots.drain(..CHUNK)) {
            *place = slot;
        }
        let mut state = lock(class);
        state.depot.push_back(chunk);
        let most = DEPOT_BYTES / (CHUNK * size_of_class(class));
        while state.depot.len() > most.min(state.out / (CHUNK * DEPOT_SHARE))
            && let Some(oldest) = state.depot.pop_front()
        {
            state.put_back(oldest);
        }
    }

    /// Returns slots to their pages until `keep` are left.
    fn give_back(class: usize, slots: &mut Vec<NonNull<u8>>, keep: usize) {
        if slots.len() > keep {
            lock(class).put_back(slots.drain(keep..));
        }
    }

    impl Class {
        fn put_back(&mut self, slots: impl IntoIterator<Item = NonNull<u8>>) {
            for slot in slots {
                self.put_one_back(slot);
            }
        }

        fn put_one_back(&mut self, slot: NonNull<u8>) {
            self.out -= 1;
            let page = slot
                .as_ptr()
                .map_addr(|address| address & !(PAGE - 1))
                .cast::<Page>();
            // SAFETY: pages are aligned to their size, so the slot's page begins at
            // the address rounded down; the class lock is held.
            let head = unsafe { &mut *page };
            let free = slot.as_ptr().cast::<FreeSlot>();
            // SAFETY: the slot is back with us and large enough for a link.
            unsafe { free.write(FreeSlot { next: head.free }) };
            head.free = free;
            head.out -= 1;
            if head.partial_at == NOT_PARTIAL {
                head.partial_at = self.partial.len();
                self.partial.extend(NonNull::new(page));
            }
            if head.out == 0 {
                if self.empty < SPARE {
                    self.empty += 1;
                } else {
                    let at = head.partial_at;
                    self.partial.swap_remove(at);
                    if let Some(moved) = self.partial.get(at) {
                        // SAFETY: as above: on the list, under the lock.
                        unsafe { (*moved.as_ptr()).partial_at = at };
                    }
                    self.pages -= 1;
                    let page = NonNull::from_mut(head).cast();
                    // SAFETY: no slot of it is out, and it is on no list any more.
                    unsafe { pages::give_back(page) };
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn pages_come_back_when_their_slots_do() {
            let layout = Layout::from_size_align(8 * LINE, LINE).unwrap();
            let class = class_of(layout).unwrap();
            let objects: Vec<_> = (0..10_000)
                .map(|_| super::super::allocate(layout))
                .collect();
            let mut addresses: Vec<_> = objects.iter().map(|o| o.as_ptr().addr()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(
                addresses.len(),
                objects.len(),
                "every object has a place of its own"
            );
            assert!(
                addresses
                    .windows(2)
                    .all(|pair| pair[1] - pair[0] >= 8 * LINE)
            );
            for object in objects {
                // SAFETY: allocated above with this layout, and unused.
                unsafe { super::super::free(object, layout) };
            }
            let state = lock(class);
            assert!(
                state.partial.len() <= 3,
                "{} pages kept",
                state.partial.len()
            );
        }

        #[test]
        fn objects_of_two_sizes_lie_apart_though_they_take_as_many_lines() {
            let layouts = [7 * LINE - 16, 7 * LINE].map(|size| {
                let layout = Layout::from_size_align(size, LINE);
                layout.unwrap()
            });
            let both: Vec<_> = (0..1000)
                .map(|_| layouts.map(super::super::allocate))
                .collect();
            let pages_of = |which: usize| {
                let page = |pair: &[NonNull<u8>; 2]| pair[which].as_ptr().addr() / PAGE;
                both.iter()
                    .map(page)
                    .collect::<std::collections::HashSet<_>>()
            };
            assert!(pages_of(0).is_disjoint(&pages_of(1)));
            for (object, layout) in both
                .into_iter()
                .flat_map(|pair| pair.into_iter().zip(layouts))
            {
                // SAFETY: allocated above with this layout, and unused.
                unsafe { super::super::free(object, layout) };
            }
        }

        #[test]
        fn wider_alignments_are_kept() {
            let layout = Layout::from_size_align(LINE, 4 * LINE).unwrap();
            for object in [(); 8].map(|()| super::super::allocate(layout)) {
                assert!(object.as_ptr().addr().is_multiple_of(4 * LINE));
                // SAFETY: allocated above with this layout, and unused.
                unsafe { super::super::free(object, layout) };
            }
        }

        #[test]
        fn slots_travel_between_threads() {
            let layout = Layout::from_size_align(3 * LINE, LINE).unwrap();
            struct Objects(Vec<NonNull<u8>>);
            // SAFETY: plain memory.
            unsafe impl Send for Objects {}
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let objects =
                        Objects((0..1000).map(|_| super::super::allocate(layout)).collect());
                    scope.spawn(move || {
                        let objects = objects;
                        for object in objects.0 {
                            // SAFETY: allocated above with this layout.
                            unsafe { super::super::free(object, layout) };
                        }
                    });
                }
            });
        }
    }
}
