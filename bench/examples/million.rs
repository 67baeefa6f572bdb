//! A million cached inodes, or files: bytes of each, and the time of a hit at random.
//!
//! `docs/performance.md` has the commands and what came out.
//!
//! ```text
//! million inodes [COUNT]   an inode cache alone, keys and values of eight bytes
//! million files  [COUNT]   a whole tree: a name, an inode and nothing of a back end
//! million stream [COUNT]   inodes that come and go, ten times the budget of COUNT
//! ```

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rcuwalk::inode::{self, InodeCache, Key};
use rcuwalk::{
    At, Attr, Budget, Caller, Credentials, Emit, FileHandle, FileSystem, FileType, Iget, Inode,
    InodeFill, InodeKey, InodeRef, LookupFlags, Name, OpenFlags, SuperBlock, Vfs,
};
use rcuwalk_sync::rcu;

const ROUNDS: usize = 9;
const HITS: usize = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "inodes".into());
    let count = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    match &*what {
        "inodes" => inodes(count),
        "files" => files(count),
        "stream" => stream(count),
        _ => Err("inodes, files or stream?".into()),
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

fn inodes(count: u64) -> Result<(), Box<dyn Error>> {
    let before = resident()?;
    let cache: InodeCache<Ino, u64> = InodeCache::builder()
        .inodes((2 * count) as usize)
        .bytes(1 << 40)
        .build();
    let began = Instant::now();
    for ino in 0..count {
        if let inode::Iget::New(new) = cache.iget(Ino(ino))? {
            new.init(ino);
        }
    }
    each("filling", began.elapsed(), count);
    memory(before, count)?;
    at_random("hits", |random| {
        let ino = random % count;
        match cache.iget(Ino(ino)).expect("nobody creates") {
            inode::Iget::Cached(inode) => **inode,
            inode::Iget::New(_) => unreachable!("all of them are cached"),
        }
    });
    Ok(())
}

fn stream(budget: u64) -> Result<(), Box<dyn Error>> {
    let before = resident()?;
    let cache: InodeCache<Ino, u64> = InodeCache::builder()
        .inodes((budget) as usize)
        .bytes(1 << 40)
        .build();
    for lap in 0..10 {
        let began = Instant::now();
        for ino in lap * budget..(lap + 1) * budget {
            if let inode::Iget::New(new) = cache.iget(Ino(ino))? {
                new.init(ino);
            }
        }
        each("streaming", began.elapsed(), budget);
        memory(before, cache.size().0 as u64)?;
    }
    Ok(())
}

fn files(count: u64) -> Result<(), Box<dyn Error>> {
    let before = resident()?;
    let budget = Budget::default()
        .dentries(2 * count as usize)
        .inodes(2 * count as usize)
        .bytes(1 << 40);
    let vfs = Vfs::with_budget(MadeUp, budget)?;
    let ctx = vfs.context(Credentials::root());
    let began = Instant::now();
    for n in 0..count {
        vfs.stat(&ctx, format!("/f{n}"), LookupFlags::FOLLOW)?;
        if n % 4096 == 0 {
            rcu::barrier();
        }
    }
    each("filling", began.elapsed(), count);
    memory(before, count)?;
    at_random("stat", |random| {
        let path = format!("/f{}", random % count);
        let attr = vfs.stat(&ctx, path, LookupFlags::FOLLOW);
        attr.expect("every name has a file").ino
    });
    Ok(())
}

/// A file for every name, and nothing of its own with it.
struct MadeUp;

impl FileSystem for MadeUp {
    fn name(&self) -> &str {
        "made up"
    }

    fn root(&self, sb: &SuperBlock) -> rcuwalk::Result<InodeRef> {
        Ok(inode(sb, 1, FileType::Directory))
    }

    fn lookup(
        &self,
        sb: &SuperBlock,
        _: &Inode,
        name: Name<'_>,
    ) -> rcuwalk::Result<Option<InodeRef>> {
        let number = std::str::from_utf8(&name.as_bytes()[1..]).ok();
        let number = number.and_then(|digits| digits.parse::<u64>().ok());
        Ok(number.map(|number| inode(sb, number + 2, FileType::Regular)))
    }

    fn read_link(&self, _: &SuperBlock, _: &Inode) -> rcuwalk::Result<Box<[u8]>> {
        Err(rcuwalk::Error::Invalid)
    }

    fn read_dir(&self, _: &SuperBlock, _: &Inode, _: u64, _: &mut dyn Emit) -> rcuwalk::Result<()> {
        Ok(())
    }

    fn open(
        &self,
        _: &Caller<'_>,
        _: &At<'_>,
        _: OpenFlags,
    ) -> rcuwalk::Result<Box<dyn FileHandle>> {
        Err(rcuwalk::Error::Invalid)
    }
}

fn inode(sb: &SuperBlock, ino: u64, kind: FileType) -> InodeRef {
    match sb.iget(InodeKey::new(ino)).expect("nobody creates") {
        Iget::Cached(inode) => inode,
        Iget::New(new) => new.init(InodeFill::new(Attr::new(ino, kind, 0o755))),
    }
}

fn each(what: &str, time: Duration, count: u64) {
    let each = time.as_nanos() as f64 / count as f64;
    println!("{what}: {each:.1} ns each");
}

/// The median of some rounds.
fn at_random(what: &str, mut hit: impl FnMut(u64) -> u64) {
    let mut random = 88_172_645_463_325_252_u64;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..HITS {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                black_box(hit(random));
            }
            began.elapsed().as_nanos() as f64 / HITS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what}: {:.1} ns each", rounds[ROUNDS / 2]);
}

fn memory(before: usize, count: u64) -> Result<(), Box<dyn Error>> {
    rcu::barrier();
    let resident = resident()?.saturating_sub(before);
    println!("resident: {:.1} bytes each", resident as f64 / count as f64);
    let own = rcuwalk_sync::memory::statistics();
    println!(
        "pages: {:.1}, objects: {:.1}, heads: {:.1} bytes each; {} calls",
        own.pages as f64 / count as f64,
        own.objects as f64 / count as f64,
        own.heads as f64 / count as f64,
        own.calls
    );
    Ok(())
}

/// This process's, in bytes.
fn resident() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| {
        let kib = line.strip_prefix("VmRSS:")?.strip_suffix("kB")?;
        kib.trim().parse::<usize>().ok()
    });
    Ok(resident.ok_or("no VmRSS in /proc/self/status")? << 10)
}
