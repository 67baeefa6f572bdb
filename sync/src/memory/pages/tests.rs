use super::*;

fn take(pool: &mut Pool, count: usize) -> Vec<NonNull<u8>> {
    (0..count).map(|_| pool.take()).collect()
}

fn give_back(pool: &mut Pool, pages: Vec<NonNull<u8>>) {
    for page in pages {
        // SAFETY: taken from this pool, and unused.
        unsafe { pool.give_back(page) };
    }
}

fn resident(pool: &Pool) -> usize {
    let resident = |chunk: &Chunk| chunk.resident.count_ones() as usize;
    pool.chunks.values().map(resident).sum()
}

fn assert_adds_up(pool: &Pool) {
    let free = |chunk: &Chunk| chunk.free.count_ones() as usize;
    let free: usize = pool.chunks.values().map(free).sum();
    let small = pool.chunks.values().filter(|chunk| !chunk.huge).count();
    let room: Vec<usize> = pool
        .chunks
        .iter()
        .filter(|(_, chunk)| chunk.free != 0)
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(pool.used + free, pool.chunks.len() * 32);
    assert_eq!(pool.used + pool.idle, resident(pool));
    assert_eq!(pool.small, small);
    assert!(pool.with_room.iter().eq(&room));
    assert!(
        pool.idle <= pool.used / 4 + FEW,
        "MEM-2: {} idle, {} used",
        pool.idle,
        pool.used
    );
}

#[test]
fn pages_are_aligned_and_apart() {
    let mut pool = Pool::new();
    let mut pages = take(&mut pool, 3 * MANY);
    pages.sort_unstable();
    assert!(
        pages
            .iter()
            .all(|page| page.addr().get().is_multiple_of(PAGE))
    );
    assert!(
        pages
            .windows(2)
            .all(|two| two[1].addr().get() - two[0].addr().get() >= PAGE)
    );
    assert_adds_up(&pool);
    give_back(&mut pool, pages);
    assert_adds_up(&pool);
}

/// MEM-2: few pages are few resident pages, and the chunks go when the pages do.
#[test]
fn a_few_pages_are_no_huge_page() {
    let mut pool = Pool::new();
    let pages = take(&mut pool, 3);
    assert_eq!((pool.chunks.len(), resident(&pool)), (1, 3));
    give_back(&mut pool, pages);
    assert_adds_up(&pool);
    let pages = take(&mut pool, MANY - 1);
    assert!(pool.chunks.values().all(|chunk| !chunk.huge));
    assert_eq!(pool.idle, 0, "MEM-2: only what was touched");
    give_back(&mut pool, pages);
    assert!(pool.chunks.len() <= 1 && resident(&pool) <= FEW, "MEM-2");
}

/// MEM-2: many pages are huge pages, the first ones as well.
#[test]
fn many_pages_are_huge_pages() {
    let mut pool = Pool::new();
    let mut pages = take(&mut pool, MANY);
    for small in (0..MANY / 32).rev() {
        pages.extend(take(&mut pool, 32));
        assert_eq!(pool.small, small);
    }
    assert!(pool.chunks.values().all(|chunk| chunk.huge));
    assert_adds_up(&pool);
    give_back(&mut pool, pages);
}

/// MEM-2: memory follows the number of pages in use, in whatever order pages come back.
#[test]
fn what_is_idle_is_bounded() {
    let mut pool = Pool::new();
    let mut random = 1_u64;
    let mut pages = take(&mut pool, 20 * MANY);
    for target in [5 * MANY, 19 * MANY, 100, 7 * MANY, 0, 2 * MANY, 0] {
        while pages.len() != target {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if pages.len() > target {
                let page = pages.swap_remove((random >> 33) as usize % pages.len());
                give_back(&mut pool, vec![page]);
            } else {
                pages.push(pool.take());
            }
            assert_adds_up(&pool);
        }
    }
    // Each has an idle page, or it would have gone with the last of them.
    assert!(
        pool.chunks.len() <= FEW,
        "{} chunks left",
        pool.chunks.len()
    );
}

/// MEM-2: while as many pages come as go, the kernel is not asked for anything.
#[test]
fn a_steady_number_of_pages_costs_no_calls() {
    let mut pool = Pool::new();
    let mut random = 1_u64;
    let mut pages = take(&mut pool, 10 * MANY);
    // The kernel's view of a chunk changes with each call and with nothing else.
    let view = |pool: &Pool| -> Vec<(usize, u32, bool)> {
        let chunks = pool.chunks.iter();
        chunks
            .map(|(at, chunk)| (*at, chunk.resident, chunk.huge))
            .collect()
    };
    let before = view(&pool);
    for _ in 0..10_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let some = (random >> 40) as usize % MANY;
        let gone = pages.drain(..some).collect();
        give_back(&mut pool, gone);
        pages.extend(take(&mut pool, some));
        pages.rotate_right((random >> 33) as usize % MANY);
    }
    assert_eq!(view(&pool), before);
    give_back(&mut pool, pages);
}
