//! The worker that asks the kernel for nodes back when it holds too many.
//!
//! NODE-2: the kernel holds no more nodes than [`Options::max_nodes`](crate::Options) and a
//! tenth, plus those that it uses: open files, current directories, mount points, and the
//! directories above them, which are not touched. **Only this worker asks for nodes, and it
//! holds no lock while it does.** Why there is no deadlock:
//!
//! | waiter                       | waits for                                                 |
//! |------------------------------|-----------------------------------------------------------|
//! | a request, in the kernel     | the thread that answers it                                |
//! | a thread that answers        | the VFS and its back end; for nodes, half a millisecond ([`Pressure`]) |
//! | the worker, in a notification | the kernel; by names also for a directory's lock, so for requests in there |
//! | the worker, otherwise        | a bell, for a bounded time, or until it is called or over |
//! | unmounting                   | the notification under way, and then the threads; they end the worker |
//!
//! No arrow leads from a thread that answers to the worker.
//!
//! **Which ones go**: a cursor goes round the table of nodes. It skips nodes that have been
//! looked up since it last passed, and asks the kernel for the rest. The kernel keeps the nodes
//! that it uses, and a directory for as long as it keeps a name in it: leaves go first. Dropped
//! nodes come back as FORGETs, and with them the table shrinks. A name that has only expired
//! keeps its node until the next lookup of that name, so expiring would free nothing.
//!
//! **When little comes back**, because the kernel uses the nodes that it holds, the worker
//! rests: ten milliseconds, then twice as long each time, up to a second, and at least ten
//! times as long as it took to find that out; or until there are a sixteenth of the budget
//! more, which may not be in use.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rcuwalk::inode::{NodeId, SweepCursor};

use crate::ops::Ops;
use crate::pressure::Pressure;
use crate::wire::Notifier;

/// How the worker asks the kernel to drop nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// By node id: nodes in use stay as they are.
    Id,
    /// By name, for kernels before 6.18. Only files that are not open: a directory would lose
    /// the processes that have it as current directory, and the mounts below.
    Name,
}

/// Most nodes that one step of the cursor passes, and that one notification names.
const STEP: usize = 2048;
/// How long the worker waits for the FORGETs of a step: `PATIENCE` times a `MOMENT`.
const PATIENCE: u32 = 20;
const MOMENT: Duration = Duration::from_millis(1);
/// Moments without a FORGET after which the worker stops waiting.
const SILENCE: u32 = 3;
const SHORTEST_REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(1);

pub(crate) struct Worker<'o> {
    ops: &'o Ops,
    notifier: Notifier,
    mount_point: &'o Path,
    by: By,
    cursor: SweepCursor,
}

/// The result of two rounds.
enum Brought {
    Enough,
    /// Not enough yet, but the worker may go on at this rate.
    Some,
    /// Next to nothing.
    Nothing,
    /// The session is over.
    TheEnd,
}

impl<'o> Worker<'o> {
    pub(crate) fn new(ops: &'o Ops, notifier: Notifier, mount_point: &'o Path) -> Self {
        Worker {
            ops,
            notifier,
            mount_point,
            by: By::Id,
            cursor: SweepCursor::default(),
        }
    }

    /// Works until the session is over.
    pub(crate) fn run(mut self) {
        while self.pressure().wait_for_call() {
            self.relieve();
            self.pressure().relieved();
        }
    }

    fn pressure(&self) -> &'o Pressure {
        self.ops.pressure()
    }

    /// Asks for nodes until few enough are left.
    fn relieve(&mut self) {
        let mut rest = SHORTEST_REST;
        loop {
            let since = Instant::now();
            match self.go_round() {
                Brought::Some => rest = SHORTEST_REST,
                Brought::Nothing => {
                    self.pressure().set_in_use(true);
                    let time = rest.max(10 * since.elapsed());
                    if !self.pressure().rest_in_use(self.ops.nodes(), time) {
                        return;
                    }
                    rest = LONGEST_REST.min(2 * rest);
                    continue;
                }
                Brought::Enough | Brought::TheEnd => {
                    self.pressure().set_in_use(false);
                    return;
                }
            }
            self.pressure().set_in_use(false);
        }
    }

    /// Goes round the table twice, or less if that is enough: nodes that were looked up lately
    /// get their second chance on the way.
    fn go_round(&mut self) -> Brought {
        let target = self.pressure().target();
        let all = self.ops.nodes();
        let forgets = self.forgets();
        let mut passed = 0;
        let mut ids = Vec::new();
        while passed <= 2 * all {
            let excess = self.ops.nodes().saturating_sub(target);
            if excess == 0 {
                return Brought::Enough;
            }
            let step = STEP.min(4 * excess + 16);
            ids.clear();
            let looked = self
                .ops
                .unused_nodes(&mut self.cursor, step, excess, &mut ids);
            // Empty chains count as well, as an eighth of a step.
            passed += looked.max(step / 8);
            let before = self.forgets();
            self.ask(&ids);
            if !self.await_forgets(before + ids.len() as u64 / 2) {
                return Brought::TheEnd;
            }
        }
        let wanted = all.saturating_sub(target) as u64;
        match self.forgets() - forgets {
            came if came >= wanted / 2 => Brought::Some,
            _ => Brought::Nothing,
        }
    }

    fn forgets(&self) -> u64 {
        self.pressure().counts.forgets.load(Relaxed)
    }

    /// Waits a while for the FORGETs, until there have been `enough`. False when the session is
    /// over.
    fn await_forgets(&self, enough: u64) -> bool {
        let (mut last, mut silence) = (self.forgets(), 0);
        for _ in 0..PATIENCE {
            if last >= enough || silence == SILENCE {
                break;
            }
            if !self.pressure().rest(MOMENT) {
                return false;
            }
            let now = self.forgets();
            silence = if now == last { silence + 1 } else { 0 };
            last = now;
        }
        true
    }

    fn ask(&mut self, ids: &[NodeId]) {
        if ids.is_empty() {
            return;
        }
        let counts = &self.pressure().counts;
        if self.by == By::Id {
            match self.notifier.prune(ids) {
                Ok(()) => {
                    counts.asked.fetch_add(ids.len() as u64, Relaxed);
                    return;
                }
                Err(err) if err.errno() == libc::EINVAL => self.by = By::Name,
                Err(_) => {
                    counts.failed.fetch_add(ids.len() as u64, Relaxed);
                    return;
                }
            }
        }
        self.ask_by_name(ids);
    }

    fn ask_by_name(&self, ids: &[NodeId]) {
        let counts = &self.pressure().counts;
        let mounts = mount_points_in(self.mount_point);
        for id in ids {
            let Some(name) = self.ops.droppable_name(*id) else {
                continue;
            };
            if mounts.contains(&name.path) {
                continue;
            }
            counts.asked.fetch_add(1, Relaxed);
            let known = self
                .notifier
                .invalidate_known_entry(name.parent, name.name());
            match known {
                Ok(true) => {}
                // It was renamed, or forgotten, meanwhile.
                Ok(false) => _ = counts.unknown.fetch_add(1, Relaxed),
                Err(_) => _ = counts.failed.fetch_add(1, Relaxed),
            }
        }
    }
}

/// Returns the mount points in the file system that is mounted at `top`, as paths from its root that
/// begin with `/`; also those in its copies (bind mounts). Covers this process's mount namespace
/// only: others are not visible.
fn mount_points_in(top: &Path) -> HashSet<Box<[u8]>> {
    let table = rcuwalk_procfs::read("thread-self/mountinfo").unwrap_or_default();
    mount_points_of(&table, top.as_os_str().as_bytes())
}

/// A line of /proc/PID/mountinfo.
struct MountLine<'t> {
    id: &'t [u8],
    /// The mount that it is mounted in.
    parent: &'t [u8],
    device: &'t [u8],
    /// What it shows of its file system.
    root: Vec<u8>,
    at: Vec<u8>,
}

fn mount_points_of(table: &[u8], top: &[u8]) -> HashSet<Box<[u8]>> {
    let lines = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        Some(MountLine {
            id: fields.next()?,
            parent: fields.next()?,
            device: fields.next()?,
            root: unescape(fields.next()?),
            at: unescape(fields.next()?),
        })
    });
    let lines: Vec<_> = lines.collect();
    // The last one there is on top.
    let ours = lines.iter().rev().find(|line| line.at == top);
    let is_ours = |line: &MountLine<'_>| ours.is_some_and(|ours| ours.device == line.device);
    let by_id: HashMap<_, _> = lines.iter().map(|line| (line.id, line)).collect();
    let points = lines.iter().filter_map(|line| {
        let parent = by_id.get(line.parent).filter(|parent| is_ours(parent))?;
        let below = line.at.strip_prefix(&*parent.at)?;
        let root = parent.root.strip_suffix(b"/").unwrap_or(&parent.root);
        below
            .starts_with(b"/")
            .then(|| [root, below].concat().into())
    });
    points.collect()
}

/// Blanks and the like are octal there: `\040`.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        rest = behind;
        match (first, behind) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    behind @ ..,
                ],
            ) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = behind;
            }
            _ => out.push(*first),
        }
    }
    out
}
