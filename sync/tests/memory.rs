//! The numbers of [`memory::statistics`], alone in their process.
#![cfg(not(any(loom, miri, rcuwalk_system_alloc)))]

use rcuwalk_sync::lock::Rank;
use rcuwalk_sync::{HashKey, RcuHash, Ref, Shared, memory, rcu};

const OBJECTS: usize = 300_000;

struct Number(u64);

impl HashKey for Number {
    fn hash(&self) -> u64 {
        self.0
    }
}

/// MEM-2: mapped memory is little more than the memory in use, and goes with it.
#[test]
fn the_numbers_add_up() {
    let table = RcuHash::new(Rank::DentryBucket);
    let few = memory::statistics();
    for number in 0..OBJECTS as u64 {
        table.lock(number).insert(Ref::new(Number(number)));
    }
    rcu::barrier();

    let many = memory::statistics();
    let bytes = OBJECTS * Shared::<Number>::BYTES;
    assert!(many.objects - few.objects >= bytes, "{many:?}");
    assert!(many.objects <= many.pages, "{many:?}");
    assert!(many.pages + many.heads <= many.resident, "{many:?}");
    assert!(many.resident <= many.mapped, "{many:?}");
    // One array is left, of two to four heads per object.
    assert!((2 * 8 * OBJECTS..=4 * 8 * OBJECTS).contains(&many.heads));
    let idle = many.resident - many.heads - many.pages;
    assert!(idle <= many.pages / 4 + (512 << 10), "MEM-2: {many:?}");

    drop(table);
    rcu::barrier();
    let none = memory::statistics();
    assert!(none.objects <= few.objects + (64 << 10), "{none:?}");
    assert!(none.resident <= few.resident + (1 << 20), "MEM-2: {none:?}");
    assert_eq!(none.heads, 0, "{none:?}");
}
