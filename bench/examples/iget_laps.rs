//! Looks inodes up, as many laps as the second argument says: `hit` (all cached), `miss`
//! (each read in, unused, evicted in the end). For counting instructions, which
//! `docs/tracing.md` tells how to do.

use std::hint::black_box;

use rcuwalk::inode::{Iget, InodeCache, Key, Scheme, Stale};

/// Inodes of a lap.
const INODES: u64 = 1000;

#[derive(Clone, PartialEq, Eq)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

fn main() -> Result<(), Stale> {
    let mut args = std::env::args().skip(1);
    let mix = args.next().unwrap_or_else(|| "hit".into());
    let laps = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    // A scheme that the compiler cannot know.
    let cache = InodeCache::<Ino, u64>::builder()
        .inodes(INODES as usize)
        .scheme(black_box(Scheme::OURS))
        .build();
    for lap in 0..laps {
        let first = if mix == "hit" { 0 } else { lap * INODES };
        for ino in first..first + INODES {
            iget(&cache, ino)?;
        }
    }
    println!("{mix}: {laps} laps, {:?}", cache.statistics());
    Ok(())
}

#[inline(never)]
fn iget(cache: &InodeCache<Ino, u64>, ino: u64) -> Result<(), Stale> {
    match cache.iget(Ino(black_box(ino)))? {
        Iget::Cached(inode) => drop(black_box(inode)),
        Iget::New(new) => drop(new.init(ino)),
    }
    Ok(())
}
