//! One contender's turn, and how it is checked.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::daemon::{Daemon, Mounting, Served};
use super::tree::Tree;
use super::work::{self, Done, Work};
use super::{Fuse, FuseError};
use crate::usage::CpuTime;

/// A contender.
pub(super) enum Contender<'a> {
    /// The directory itself.
    Kernel,
    /// The directory through a daemon.
    Daemon(&'a dyn Daemon),
}

/// What a turn took.
#[derive(Clone)]
pub(super) struct Turn {
    pub(super) contender: &'static str,
    /// In the order of [`Work::ALL`].
    pub(super) done: [Done; Work::ALL.len()],
    pub(super) passes_through: bool,
    pub(super) is_by_io_uring: bool,
}

impl Contender<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Contender::Kernel => "kernel",
            Contender::Daemon(daemon) => daemon.name(),
        }
    }

    /// Does one round of all work. Files are filled with `stamp`.
    pub(super) fn turn(&self, size: &Fuse, tree: &Tree, stamp: u64) -> Result<Turn, FuseError> {
        let mut turn = Turn {
            contender: self.name(),
            done: Default::default(),
            passes_through: false,
            is_by_io_uring: false,
        };
        let at = tempfile::tempdir().map_err(|why| turn.failed("make a directory", why))?;
        let before = self.contents(tree)?;
        // One mount for each cold phase, and one for contents: removed files are still being
        // freed for a while.
        for works in [
            &[Work::ColdWalk, Work::HotWalk][..],
            &[Work::ManyCold, Work::ManyAgain][..],
            &[Work::ColdNames][..],
            &[Work::Read, Work::Write][..],
            &[Work::Create, Work::Unlink, Work::List][..],
        ] {
            let mounted = self.mounted(size, tree, at.path())?;
            let root = mounted.as_ref().map_or(tree.path(), |_| at.path());
            for &work in works {
                let done = timed(work, root, size, tree, stamp);
                turn.done[work as usize] = done.map_err(|why| turn.failed(work.words(), why))?;
            }
            if let Some(mounted) = mounted {
                turn.passes_through = mounted.passes_through();
                turn.is_by_io_uring = mounted.is_by_io_uring();
            }
        }
        turn.must_have_read(before)?;
        turn.must_have_written(self.contents(tree)?)?;
        Ok(turn)
    }

    /// A daemon, mounted at `at`.
    fn mounted(
        &self,
        size: &Fuse,
        tree: &Tree,
        at: &Path,
    ) -> Result<Option<Box<dyn Served>>, FuseError> {
        let Contender::Daemon(daemon) = self else {
            return Ok(None);
        };
        let mounted = daemon.mount(&Mounting {
            backing: tree.path(),
            mount_point: at,
            threads: size.servers,
            timeout: size.timeout,
        });
        mounted.map(Some).map_err(|why| FuseError::CannotMount {
            daemon: daemon.name(),
            why,
        })
    }

    /// The contents of the file, as the kernel sees them.
    fn contents(&self, tree: &Tree) -> Result<Done, FuseError> {
        work::read(tree.path()).map_err(|why| FuseError::Failed {
            what: "be checked",
            contender: self.name(),
            why,
        })
    }
}

/// How often contents are read, and written.
const PASSES: u32 = 4;

/// What the stamps of passes on the directory itself differ by: no turn has one so high.
const DIRECT: u64 = 1 << 15;

/// One phase, with its processor time. For contents, the mean of several passes, each after one
/// pass on the directory itself: the speed of memory varies from one moment to the next by more
/// than the difference between contenders.
pub(super) fn timed(
    work: Work,
    root: &Path,
    size: &Fuse,
    tree: &Tree,
    stamp: u64,
) -> io::Result<Done> {
    let is_contents = matches!(work, Work::Read | Work::Write);
    let passes = if is_contents { PASSES } else { 1 };
    let mut done = Done::default();
    let (mut time, mut cpu, mut direct) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for _ in 0..passes {
        if is_contents {
            // With other contents, so that the final contents prove which contender wrote them.
            direct += one(work, tree.path(), size, tree, stamp ^ DIRECT)?.time;
        }
        let before = CpuTime::now();
        done = one(work, root, size, tree, stamp)?;
        let used = CpuTime::now().since(before);
        time += done.time;
        cpu += used.user + used.sys;
    }
    Ok(Done {
        time: time / passes,
        cpu: cpu / passes,
        direct: is_contents.then_some(direct / passes),
        ..done
    })
}

fn one(work: Work, root: &Path, size: &Fuse, tree: &Tree, stamp: u64) -> io::Result<Done> {
    match work {
        Work::ColdWalk | Work::HotWalk => work::walk(root, &tree.walked, size.walkers),
        Work::ManyCold => work::walk(root, &tree.many, size.walkers),
        Work::ManyAgain => {
            thread::sleep(size.timeout * 2);
            work::walk(root, &tree.many, size.walkers)
        }
        Work::ColdNames => work::by_name(root, tree, size.walkers),
        Work::Create => work::create(root, size),
        Work::Unlink => work::unlink(root, size),
        Work::List => work::list(root),
        Work::Read => work::read(root),
        Work::Write => work::write(root, size, stamp),
    }
}

impl Turn {
    fn failed(&self, what: &'static str, why: io::Error) -> FuseError {
        FuseError::Failed {
            what,
            contender: self.contender,
            why,
        }
    }

    /// All but the contents, which each turn changes, is what `other` has seen.
    pub(super) fn must_have_seen_what(&self, other: &Turn) -> Result<(), FuseError> {
        for (work, (ours, theirs)) in Work::ALL.into_iter().zip(self.done.iter().zip(&other.done)) {
            let same_sums = ours.sum == theirs.sum || matches!(work, Work::Read | Work::Write);
            if ours.count != theirs.count || !same_sums {
                return Err(FuseError::Differ(format!(
                    "{}: {} and {} see {} and {}, or otherwise different things",
                    work.words(),
                    self.contender,
                    other.contender,
                    ours.count,
                    theirs.count
                )));
            }
        }
        Ok(())
    }

    fn must_have_read(&self, there: Done) -> Result<(), FuseError> {
        self.same_contents(Work::Read, there)
    }

    fn must_have_written(&self, there: Done) -> Result<(), FuseError> {
        self.same_contents(Work::Write, there)
    }

    fn same_contents(&self, work: Work, there: Done) -> Result<(), FuseError> {
        let done = self.done[work as usize];
        if (there.count, there.sum) == (done.count, done.sum) {
            return Ok(());
        }
        Err(FuseError::Differ(format!(
            "{}: {} has something else than the kernel",
            work.words(),
            self.contender
        )))
    }
}
