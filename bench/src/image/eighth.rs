//! Three laps with a cache of an eighth of the entries, of ours and of the kernel.
//!
//! Ours has a budget: an eighth of what resident memory grew by in the walks with room. The
//! kernel has a [control group](super::group): an eighth of what a walk with room charged to it.

use std::io;

use super::group::Group;
use super::kernel::{self, Forget};
use super::turn::{Contender, Turn};
use super::{ImageError, ImageWalk, Place};
use crate::progress::Steps;

/// Walks with small caches.
pub(super) struct Eighth {
    /// Bytes that the VFS's caches may take.
    pub(super) cache_bytes: usize,
    /// Through the VFS: by lap, and then by round.
    pub(super) vfs: Laps,
    /// Or why there was no limited kernel.
    pub(super) kernel: Result<LimitedKernel, String>,
}

pub(super) type Laps = Vec<Vec<Turn>>;

/// The kernel, in a control group of limited memory.
pub(super) struct LimitedKernel {
    /// The most that a walk with room charged to the group.
    pub(super) charged_bytes: u64,
    /// The group's limit.
    pub(super) limit_bytes: u64,
    pub(super) laps: Laps,
}

/// Laps with a cache of an eighth: later laps show what eviction leaves behind.
const LAPS: usize = 3;

/// The least that a cache of an eighth is given, for tiny trees.
const LEAST_CACHE: usize = 1 << 20;

/// A dentry and an inode of the kernel take several times as many bytes.
const LEAST_CHARGED_PER_ENTRY: u64 = 512;

impl Eighth {
    /// Takes turns; `with_room` are the turns of the VFS with room.
    pub(super) fn run<'a>(
        bench: &ImageWalk,
        with_room: impl Iterator<Item = &'a Turn>,
        place: &Place<'_>,
        steps: &mut Steps<'_>,
    ) -> Result<Eighth, ImageError> {
        let grown = with_room.map(|turn| turn.grown).max().unwrap_or(0);
        let laps = || (0..LAPS).map(|_| Vec::new()).collect();
        // Only what keeps us from making a group is a reason to go on without one.
        let group = match Group::new() {
            Err(err) => Err(err.to_string()),
            Ok(group) => charge_and_limit(bench, &group, place)?.map(|limited| (group, limited)),
        };
        let (group, kernel) = match group {
            Ok((group, (charged_bytes, limit_bytes))) => {
                let kernel = LimitedKernel {
                    charged_bytes,
                    limit_bytes,
                    laps: laps(),
                };
                (Some(group), Ok(kernel))
            }
            Err(why) => (None, Err(why)),
        };
        let mut eighth = Eighth {
            cache_bytes: ((grown / 8) as usize).max(LEAST_CACHE),
            vfs: laps(),
            kernel,
        };
        for _ in 0..bench.rounds {
            let of = Contender::VFS;
            forget(of, place)?;
            let turns = Turn::laps(bench, of, eighth.cache_bytes, LAPS, place);
            keep(of, &mut eighth.vfs, turns, place)?;
            steps.one_done();

            if let (Some(group), Ok(kernel)) = (&group, &mut eighth.kernel) {
                let of = Contender::KERNEL;
                forget(of, place)?;
                let inside = group.enter().map_err(|err| failed(of, place, err))?;
                let turns = (0..LAPS).map(|_| Turn::of_kernel(bench, place)).collect();
                drop(inside);
                keep(of, &mut kernel.laps, turns, place)?;
            }
            steps.one_done();
        }
        Ok(eighth)
    }
}

/// Walks once in the group, which has room, and limits it to an eighth of what was charged.
/// Returns both figures, or why the group is of no use.
fn charge_and_limit(
    bench: &ImageWalk,
    group: &Group,
    place: &Place<'_>,
) -> Result<Result<(u64, u64), String>, ImageError> {
    let of = Contender::KERNEL;
    forget(of, place)?;
    let inside = match group.enter() {
        Err(err) => return Ok(Err(err.to_string())),
        Ok(inside) => inside,
    };
    let turn = Turn::of_kernel(bench, place).map_err(|err| failed(of, place, err))?;
    drop(inside);
    place.verify(of, &turn)?;
    // Otherwise the limit would be for what was charged before.
    forget(of, place)?;
    let limited = || {
        let charged = group.peak()?;
        if charged < turn.seen.entries * LEAST_CHARGED_PER_ENTRY {
            let why = "this kernel does not charge names and inodes to control groups";
            return Err(io::Error::other(why));
        }
        Ok((charged, group.limit(charged / 8)?))
    };
    Ok(limited().map_err(|err| err.to_string()))
}

fn forget(of: Contender, place: &Place<'_>) -> Result<(), ImageError> {
    let done = kernel::drop_caches(Forget::Inodes, place.image);
    done.map_err(|err| failed(of, place, err))
}

/// Adds one round's laps to `all`, once they are verified.
fn keep(
    of: Contender,
    all: &mut Laps,
    turns: io::Result<Vec<Turn>>,
    place: &Place<'_>,
) -> Result<(), ImageError> {
    let turns = turns.map_err(|err| failed(of, place, err))?;
    for (all, turn) in all.iter_mut().zip(turns) {
        place.verify(of, &turn)?;
        all.push(turn);
    }
    Ok(())
}

fn failed(of: Contender, place: &Place<'_>, err: io::Error) -> ImageError {
    ImageError::image(of.name, place.image, err)
}
