//! Alone in its process: other tests would grow it meanwhile.

use rcuwalk_bench::scan;

/// MEM-1: memory follows what is cached, not what was once seen.
#[test]
fn memory_is_flat_once_the_budget_is_reached() {
    const BUDGET: u64 = 10_000;
    let mut kib = Vec::with_capacity(64);
    scan::stream(25 * BUDGET, BUDGET, BUDGET, |sample| kib.push(sample.kib)).unwrap();
    // The budget itself, and retired memory that is not yet freed, come first.
    let (warm_up, rest) = kib.split_at(10);
    let settled = warm_up.iter().max().unwrap() - kib[0];
    let most = rest.iter().max().unwrap() - kib[0];
    assert!(settled > 0, "the cache takes some memory: {kib:?}");
    // 24 budgets' worth have come and gone; growth by a tenth of one is noise.
    assert!(most < settled + settled / 10, "MEM-1: {kib:?}");
}
