//! Lists a directory and asks for the attributes of each entry, with nothing cached by the kernel: one
//! after the other, by inode number, by several threads, and by io_uring. As root, on a directory
//! that nothing else uses: `cold_stats DIR ROUNDS`. Prints the medians.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags};

/// Names that a thread takes at a time.
const BATCH: usize = 64;

/// An entry, and its inode number.
type Named = (u64, CString);

#[derive(Clone, Copy)]
enum By {
    Threads(usize),
    /// With this number of requests in flight.
    Uring(usize),
}

const WAYS: [(&str, bool, By); 8] = [
    ("one after the other", false, By::Threads(1)),
    ("by inode number", true, By::Threads(1)),
    ("2 threads", false, By::Threads(2)),
    ("4 threads", false, By::Threads(4)),
    ("8 threads", false, By::Threads(8)),
    ("4 threads, by inode number", true, By::Threads(4)),
    ("io_uring, 8", false, By::Uring(8)),
    ("io_uring, 32", false, By::Uring(32)),
];

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, rounds] = &args[..] else {
        return Err(io::Error::other("DIR ROUNDS"));
    };
    let rounds = rounds.parse().map_err(io::Error::other)?;
    let mut taken = vec![Vec::new(); WAYS.len()];
    let mut entries = 0;
    for _ in 0..rounds {
        for ((_, is_sorted, by), taken) in WAYS.iter().zip(&mut taken) {
            rustix::fs::sync();
            std::fs::write("/proc/sys/vm/drop_caches", "3")?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(CWD, path.as_str(), flags, Mode::empty())?;
            let began = Instant::now();
            let mut names = list(&dir)?;
            if *is_sorted {
                names.sort_unstable();
            }
            match by {
                By::Threads(threads) => by_threads(&dir, &names, *threads)?,
                By::Uring(deep) => by_uring(&dir, &names, *deep)?,
            }
            taken.push(began.elapsed());
            entries = names.len();
        }
    }
    for ((name, ..), taken) in WAYS.iter().zip(&mut taken) {
        taken.sort_unstable();
        let of = |at: Option<&Duration>| at.map_or(0.0, Duration::as_secs_f64);
        println!(
            "{name:28} {:.3} s ({:.3} to {:.3}) for {entries} entries",
            of(taken.get(taken.len() / 2)),
            of(taken.first()),
            of(taken.last())
        );
    }
    Ok(())
}

fn list(dir: &OwnedFd) -> io::Result<Vec<Named>> {
    let mut buf = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(dir.as_fd(), buf.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push((entry.ino(), name.to_owned()));
        }
    }
    Ok(names)
}

fn by_threads(dir: &OwnedFd, names: &[Named], threads: usize) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        loop {
            let from = next.fetch_add(BATCH, Relaxed);
            let Some(rest) = names.get(from..).filter(|rest| !rest.is_empty()) else {
                return Ok(());
            };
            for (_, name) in &rest[..BATCH.min(rest.len())] {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)?;
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().try_for_each(join)
    })
}

fn by_uring(dir: &OwnedFd, names: &[Named], deep: usize) -> io::Result<()> {
    let mut ring = IoUring::new(64)?;
    // SAFETY: all zeros are a `statx`.
    let mut answers: Vec<libc::statx> = vec![unsafe { std::mem::zeroed() }; names.len()];
    let (mut begun, mut done) = (0, 0);
    while done < names.len() {
        while begun < names.len() && begun - done < deep {
            let (name, answer) = (&names[begun].1, &raw mut answers[begun]);
            let ask = opcode::Statx::new(types::Fd(dir.as_raw_fd()), name.as_ptr(), answer.cast())
                .flags(libc::AT_SYMLINK_NOFOLLOW)
                .mask(libc::STATX_BASIC_STATS)
                .build();
            // SAFETY: name and answer stay where they are until all requests are done; an error on the
            // way ends the program.
            unsafe { ring.submission().push(&ask) }.map_err(io::Error::other)?;
            begun += 1;
        }
        ring.submit_and_wait(1)?;
        for answer in ring.completion() {
            assert_eq!(answer.result(), 0, "statx");
            done += 1;
        }
    }
    Ok(())
}
