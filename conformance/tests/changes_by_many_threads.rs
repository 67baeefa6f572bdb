//! Changes made by eight threads at once, on directories of their own and on shared ones.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rcuwalk::{Budget, Context, Credentials, LookupFlags, Vfs};
use rcuwalk_conformance::changes::answer::Answer;
use rcuwalk_conformance::changes::compare::Comparer;
use rcuwalk_conformance::changes::differ::{self, STEPS};
use rcuwalk_conformance::changes::generate::{Planner, Shape};
use rcuwalk_conformance::changes::host::Host;
use rcuwalk_conformance::changes::linear::{self, Act, Came, NAMES, Names};
use rcuwalk_conformance::changes::op::Step;
use rcuwalk_conformance::changes::sysctls::Sysctls;
use rcuwalk_conformance::changes::{crowd, known, subject};
use rcuwalk_conformance::ext4::workshop::in_workshop;
use rcuwalk_conformance::settings::Settings;
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::Rng;
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags};
use rustix::io::Errno;

const THREADS: usize = 8;

/// Of each thread, in a history: long enough to meet, short enough to be explained.
const ACTS: usize = 13;

/// The path of a name, below a directory for each history.
fn name(top: &str, name: usize) -> String {
    format!("{top}/{}/{}", name / NAMES, ["a", "b", "c"][name % NAMES])
}

/// A name that goes and comes again may be listed twice.
fn names<'a>(entries: impl Iterator<Item = &'a [u8]>) -> u8 {
    entries.fold(0, |all, name| all | 1 << (name[0] - b'a'))
}

/// The kernel's names: the checks that rcuwalk has to pass hold for the kernel.
struct Kernels(PathBuf);

impl Kernels {
    fn path(&self, at: usize) -> PathBuf {
        name(self.0.to_str().expect("a short path"), at).into()
    }

    fn try_act(&self, act: Act) -> Result<Came, Errno> {
        let rename = |old, new, flags| {
            let (old, new) = (self.path(old), self.path(new));
            rustix::fs::renameat_with(CWD, &old, CWD, &new, flags)
        };
        match act {
            Act::Make(at, number) => rustix::fs::mknodat(
                CWD,
                self.path(at),
                FileType::CharacterDevice,
                Mode::RUSR,
                number.into(),
            )?,
            Act::Remove(at) => rustix::fs::unlinkat(CWD, self.path(at), AtFlags::empty())?,
            Act::Move(old, new) => rename(old, new, RenameFlags::empty())?,
            Act::MoveNew(old, new) => rename(old, new, RenameFlags::NOREPLACE)?,
            Act::Swap(old, new) => rename(old, new, RenameFlags::EXCHANGE)?,
            Act::Look(at) => {
                let stat = rustix::fs::statat(CWD, self.path(at), AtFlags::empty())?;
                return Ok(Came::File(stat.st_rdev as u32));
            }
            Act::IsListed(_) => unreachable!("listings are made at once"),
        }
        Ok(Came::Done)
    }
}

impl Names for Kernels {
    fn act(&self, act: Act) -> Came {
        self.try_act(act)
            .unwrap_or_else(|errno| Came::Errno(errno.raw_os_error()))
    }

    fn list(&self, dir: usize) -> u8 {
        let entries = std::fs::read_dir(self.0.join(dir.to_string())).expect("a listing");
        let entries: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().into_encoded_bytes())
            .collect();
        names(entries.iter().map(Vec::as_slice))
    }
}

/// EDGE-1: the checks that rcuwalk has to pass below hold for the kernel.
#[test]
fn names_change_one_at_a_time_in_the_kernel() {
    let test = "names_change_one_at_a_time_in_the_kernel";
    in_workshop(test, |workshop| {
        let mut rng = Rng::new(Settings::of_changes(0).seed);
        for history in 0..100 {
            let top = workshop.path(&history.to_string());
            for dir in ["0", "1"] {
                std::fs::create_dir_all(top.join(dir)).expect("a directory");
            }
            explained(&Kernels(top), &mut rng);
        }
    });
}

fn explained(names: &impl Names, rng: &mut Rng) {
    let events = linear::history(names, THREADS, ACTS, rng);
    if let Err(longest) = linear::explain(&events) {
        panic!(
            "DENTRY-3: no order explains this history:\n{}",
            linear::tell(&events, &longest)
        );
    }
}

/// rcuwalk's names, in a directory of a tree that others use as well.
struct Ours<'v> {
    vfs: &'v Vfs,
    ctx: Context,
    top: String,
}

impl Ours<'_> {
    fn path(&self, at: usize) -> String {
        name(&self.top, at)
    }

    fn try_act(&self, act: Act) -> rcuwalk::Result<Came> {
        let (vfs, ctx) = (self.vfs, &self.ctx);
        let rename = |old, new, flags| {
            let (old, new) = (self.path(old), self.path(new));
            vfs.renameat2(ctx, (ctx.cwd(), old), (ctx.cwd(), new), flags)
        };
        match act {
            Act::Make(at, number) => {
                let kind = rcuwalk::FileType::CharDevice;
                vfs.mknod(ctx, self.path(at), kind, 0o400, number.into())?;
            }
            Act::Remove(at) => vfs.unlink(ctx, self.path(at))?,
            Act::Move(old, new) => rename(old, new, rcuwalk::RenameFlags::empty())?,
            Act::MoveNew(old, new) => rename(old, new, rcuwalk::RenameFlags::NOREPLACE)?,
            Act::Swap(old, new) => rename(old, new, rcuwalk::RenameFlags::EXCHANGE)?,
            Act::Look(at) => {
                let attr = vfs.stat(ctx, self.path(at), LookupFlags::empty())?;
                return Ok(Came::File(attr.rdev as u32));
            }
            Act::IsListed(_) => unreachable!("listings are made at once"),
        }
        Ok(Came::Done)
    }
}

impl Names for Ours<'_> {
    fn act(&self, act: Act) -> Came {
        self.try_act(act)
            .unwrap_or_else(|err| Came::Errno(err.errno()))
    }

    fn list(&self, dir: usize) -> u8 {
        let path = format!("{}/{dir}", self.top);
        let listing = self.vfs.read_dir(&self.ctx, path).expect("a listing");
        let entries: Vec<_> = listing.map(|entry| entry.expect("an entry")).collect();
        names(entries.iter().map(|entry| &entry.name[..]))
    }
}

/// DENTRY-3: what eight threads do to the names of two directories, one of which may be
/// renamed into the other, happens in some order, one after another.
#[test]
fn names_change_one_at_a_time() {
    let Settings { seed, cases } = Settings::of_changes(40_000);
    let vfs = Vfs::new(MemFs::new()).expect("a mounted memfs");
    let ctx = vfs.context(Credentials::root());
    let mut rng = Rng::new(seed);
    for history in 0..cases / (THREADS * ACTS) {
        let top = format!("/{history}");
        vfs.mkdir(&ctx, &top, 0o755).expect("a directory");
        for dir in 0..2 {
            vfs.mkdir(&ctx, format!("{top}/{dir}"), 0o755)
                .expect("a directory");
        }
        let (vfs, ctx) = (&vfs, ctx.clone());
        explained(&Ours { vfs, ctx, top }, &mut rng);
    }
}

/// LOCK-1: debug builds check each lock's rank. A deadlock that they cannot see ends here,
/// before the whole run times out.
fn without_deadlock(work: impl FnOnce()) {
    let (ended, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("LOCK-1: no end after {PATIENCE:?}");
            std::process::abort();
        }
    });
    work();
    drop(ended);
}

/// Many times what the longest test takes; the deep run has more to do.
const PATIENCE: Duration = Duration::from_secs(3600);

/// EDGE-1: after eight threads have changed shared directories, names, listings and link counts
/// fit together on each side, and no file without a name is left.
#[test]
fn shared_directories_stay_a_tree() {
    let Settings { seed, cases } = Settings::of_changes(60_000);
    for (round, budget) in [Budget::default(), tight()].into_iter().enumerate() {
        let fs = MemFs::new();
        let vfs = Vfs::with_budget(fs.clone(), budget).expect("a mounted memfs");
        for rest in 0..8 {
            without_deadlock(|| {
                thread::scope(|scope| {
                    for member in 0..THREADS {
                        let vfs = &vfs;
                        let stream = (round * 100 + rest * THREADS + member) as u64;
                        let mut rng = Rng::derived(seed, stream);
                        scope.spawn(move || crowd::member(vfs, &mut rng, cases / 16 / THREADS));
                    }
                });
            });
            let inodes = count(&vfs);
            vfs.drop_caches();
            assert_eq!(count(&vfs), inodes, "EDGE-1: with and without caches");
            assert_eq!(
                fs.len(),
                inodes,
                "EDGE-1: what memfs has, and what has a name"
            );
        }
    }
}

/// So few entries that they are evicted while others change them.
fn tight() -> Budget {
    Budget::default()
        .dentries(8)
        .inodes(8)
        .bytes(16 << 10)
        .fds(16)
}

fn count(vfs: &Vfs) -> usize {
    crowd::census(vfs).unwrap_or_else(|what| panic!("EDGE-1: {what}"))
}

/// EDGE-1: eight threads in directories of their own, of one tree and through one set of
/// caches, each get what they would get alone: what the kernel says.
#[test]
fn disjoint_directories_do_not_meet() {
    in_workshop("disjoint_directories_do_not_meet", |workshop| {
        let Settings { seed, cases } = Settings::of_changes(24_000);
        let mut host = Host::new(&workshop.path("")).expect("root's powers");
        let machine = Sysctls::as_they_are().expect("sysctls");
        let shape = Shape {
            sticky: known::sticky_directories(&machine),
            on_host: false,
            tree_every: 50,
            watch: 30,
        };
        for round in 0..cases.div_ceil(THREADS * STEPS) {
            let sequences: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let stream = (round * THREADS + thread) as u64 + 1_000_000;
                    let mut planner = Planner::new(Rng::derived(seed, stream), STEPS, shape);
                    differ::record(&mut host, &mut planner)
                })
                .collect();
            let budget = if round % 2 == 0 {
                tight()
            } else {
                Budget::default()
            };
            let vfs = Vfs::with_budget(MemFs::new(), budget).expect("a mounted memfs");
            without_deadlock(|| {
                thread::scope(|scope| {
                    for (at, sequence) in sequences.iter().enumerate() {
                        let vfs = &vfs;
                        scope.spawn(move || follow(vfs, at, sequence));
                    }
                });
            });
        }
    });
}

/// Does in `/at` what was done in the kernel.
fn follow(vfs: &Vfs, at: usize, (steps, kernel): &(Vec<Step>, Vec<Answer>)) {
    let (ctx, dir) = (vfs.context(Credentials::root()), format!("/{at}"));
    vfs.mkdir(&ctx, &dir, 0o755).expect("a directory");
    let root = vfs
        .lookup(&ctx, &dir, LookupFlags::empty())
        .expect("the same");
    let walk = *[LookupFlags::empty(), LookupFlags::REF_WALK]
        .get(at % 2)
        .expect("one of two");
    let mut side = subject::Ours::new(vfs, root, walk);
    let comparer = Comparer::new(false);
    if let Some(Err(difference)) = differ::first_difference(&mut side, steps, kernel, comparer) {
        let before = &steps[difference.index.saturating_sub(20)..=difference.index];
        panic!("EDGE-1: {difference:?}\nafter {before:#?}");
    }
}
