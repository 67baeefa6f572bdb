//! Names changed by many threads at once: is there a sequential order of the operations that
//! explains each result and respects real time (an operation that ended before another began
//! comes first)?
//!
//! [`explain`] looks for it as Wing and Gong do: it takes one operation after another
//! that no other had to come before, as long as results agree, and goes back where it is
//! stuck. Which operations are taken and what the names stand for then is all that
//! matters for what remains, so a pair of the two is tried only once (Lowe).
//!
//! The state is the names of two directories. What a name stands for is told by a number
//! that its maker gave it, so that one file is never taken for another. There is no
//! link(2) here: it looks for one name and makes another, in two steps on Linux too.

use std::collections::HashSet;
use std::fmt;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use rcuwalk_testkit::Rng;

/// Names in each of the two directories.
pub const NAMES: usize = 3;

/// All names: the first [`NAMES`] are in one directory.
pub const SLOTS: usize = 2 * NAMES;

/// Operations that one history may have.
pub const MOST: usize = u128::BITS as usize;

/// Something done to names, or asked about them. Each is one of [`SLOTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Makes a file with this number.
    Make(usize, u32),
    /// unlink(2).
    Remove(usize),
    /// rename(2), replacing.
    Move(usize, usize),
    /// renameat2(2) with RENAME_NOREPLACE.
    MoveNew(usize, usize),
    /// renameat2(2) with RENAME_EXCHANGE.
    Swap(usize, usize),
    /// Which file a name stands for.
    Look(usize),
    /// Whether a listing of its directory has the name. A listing is no single moment:
    /// each of its names is an event of its own.
    IsListed(usize),
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// It was done.
    Done,
    /// It was not.
    Errno(i32),
    /// The file with this number.
    File(u32),
    /// Whether it is.
    Is(bool),
}

impl fmt::Debug for Came {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Came::Done => f.write_str("done"),
            Came::Errno(errno) => f.write_str(&crate::answer::errno_name(*errno)),
            Came::File(number) => write!(f, "file {number}"),
            Came::Is(is) => write!(f, "{is}"),
        }
    }
}

/// An operation of a history. Moments are numbers that only grow.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// By whom.
    pub thread: usize,
    /// What.
    pub act: Act,
    /// What came of it.
    pub came: Came,
    /// Before it was begun.
    pub start: u64,
    /// After it had come back.
    pub end: u64,
}

/// What each name stands for; 0 is nothing.
type State = [u32; SLOTS];

impl Act {
    /// A random one; `number` has not been used before.
    pub fn random(rng: &mut Rng, number: u32) -> Act {
        let (a, b) = (rng.below(SLOTS), rng.below(SLOTS));
        match rng.below(15) {
            0..5 => Act::Make(a, number),
            5..7 => Act::Remove(a),
            7..9 => Act::Move(a, b),
            9 => Act::MoveNew(a, b),
            10 => Act::Swap(a, b),
            _ => Act::Look(a),
        }
    }

    /// Returns the expected result in this state, and applies the operation to it.
    fn apply(self, state: &mut State) -> Came {
        const NOENT: Came = Came::Errno(libc::ENOENT);
        const EXIST: Came = Came::Errno(libc::EEXIST);
        match self {
            Act::Make(name, number) if state[name] == 0 => state[name] = number,
            Act::Make(..) => return EXIST,
            Act::Remove(name) | Act::Look(name) if state[name] == 0 => return NOENT,
            Act::Remove(name) => state[name] = 0,
            Act::Look(name) => return Came::File(state[name]),
            Act::IsListed(name) => return Came::Is(state[name] != 0),
            Act::MoveNew(old, _) | Act::Move(old, _) | Act::Swap(old, _) if state[old] == 0 => {
                return NOENT;
            }
            Act::MoveNew(_, new) if state[new] != 0 => return EXIST,
            Act::Swap(_, new) if state[new] == 0 => return NOENT,
            Act::Swap(old, new) => state.swap(old, new),
            Act::Move(old, new) if old == new => {}
            Act::Move(old, new) | Act::MoveNew(old, new) => {
                state[new] = std::mem::take(&mut state[old]);
            }
        }
        Came::Done
    }
}

/// Where acts are done.
pub trait Names: Sync {
    /// Does it, whatever it is but a listing.
    fn act(&self, act: Act) -> Came;

    /// Lists one of the two directories: a bit for each name.
    fn list(&self, dir: usize) -> u8;
}

/// What `threads` threads come to that do `each` random acts each, all beginning at once.
pub fn history(names: &impl Names, threads: usize, each: usize, rng: &mut Rng) -> Vec<Event> {
    let moment = AtomicU64::new(0);
    let start = Barrier::new(threads);
    let seed = rng.next_u64();
    let one = |thread: usize| -> Vec<Event> {
        let mut rng = Rng::derived(seed, thread as u64);
        let listing = rng.below(each);
        let mut events = Vec::new();
        let mut timed = |acts: &mut dyn FnMut() -> Vec<(Act, Came)>| {
            // SeqCst: pairs with the others' of these two; one order of all moments,
            // which the acts between them keep to.
            let start = moment.fetch_add(1, SeqCst);
            let came = acts();
            let end = moment.fetch_add(1, SeqCst);
            events.extend(came.into_iter().map(|(act, came)| Event {
                thread,
                act,
                came,
                start,
                end,
            }));
        };
        start.wait();
        for index in 0..each {
            if index == listing {
                let dir = rng.below(2);
                timed(&mut || {
                    let listed = names.list(dir);
                    let is = |at| Came::Is(listed >> at & 1 == 1);
                    (0..NAMES)
                        .map(|at| (Act::IsListed(dir * NAMES + at), is(at)))
                        .collect()
                });
            } else {
                let act = Act::random(&mut rng, (thread * each + index + 1) as u32);
                timed(&mut || vec![(act, names.act(act))]);
            }
            if rng.chance(30) {
                thread::yield_now();
            }
        }
        events
    };
    thread::scope(|scope| {
        let one = &one;
        let workers: Vec<_> = (0..threads)
            .map(|at| scope.spawn(move || one(at)))
            .collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"));
        ended.flatten().collect()
    })
}

/// A history that nothing explains, as text.
pub fn tell(events: &[Event], longest: &[usize]) -> String {
    let line = |index: &usize| {
        let Event {
            thread,
            act,
            came,
            start,
            end,
        } = events[*index];
        format!("  {start:4}-{end:<4} thread {thread}: {act:?}: {came:?}\n")
    };
    let mut rest: Vec<usize> = (0..events.len())
        .filter(|at| !longest.contains(at))
        .collect();
    rest.sort_by_key(|at| events[*at].start);
    let explained: String = longest.iter().map(line).collect();
    let rest: String = rest.iter().map(line).collect();
    format!("explained, in this order:\n{explained}and not explained after that:\n{rest}")
}

/// An order of the events that explains them, as indices; or, if there is none, the most
/// that could be explained.
///
/// # Errors
/// The longest beginning of an order.
///
/// # Panics
/// If there are more than [`MOST`] events.
pub fn explain(events: &[Event]) -> Result<Vec<usize>, Vec<usize>> {
    assert!(events.len() <= MOST, "a history of {}", events.len());
    let mut search = Search {
        events,
        tried: HashSet::new(),
        order: Vec::new(),
        longest: Vec::new(),
    };
    if search.go_on(0, [0; SLOTS]) {
        Ok(search.order)
    } else {
        Err(search.longest)
    }
}

struct Search<'e> {
    events: &'e [Event],
    tried: HashSet<(u128, State)>,
    order: Vec<usize>,
    longest: Vec<usize>,
}

impl Search<'_> {
    /// True if what is not in `taken` can be explained from `state` on.
    fn go_on(&mut self, taken: u128, state: State) -> bool {
        if self.order.len() > self.longest.len() {
            self.longest.clone_from(&self.order);
        }
        if self.order.len() == self.events.len() {
            return true;
        }
        if !self.tried.insert((taken, state)) {
            return false;
        }
        let left = |index: &usize| taken >> index & 1 == 0;
        let ends = (0..self.events.len())
            .filter(left)
            .map(|at| self.events[at].end);
        let first_end = ends.min().unwrap_or(u64::MAX);
        for index in (0..self.events.len()).filter(left) {
            let event = self.events[index];
            // Something else was over before it began.
            if event.start > first_end {
                continue;
            }
            let mut next = state;
            if event.act.apply(&mut next) == event.came {
                self.order.push(index);
                if self.go_on(taken | 1 << index, next) {
                    return true;
                }
                self.order.pop();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(act: Act, came: Came, start: u64, end: u64) -> Event {
        Event {
            thread: 0,
            act,
            came,
            start,
            end,
        }
    }

    /// EDGE-1: what overlaps may have happened in either order.
    #[test]
    fn overlapping_events_are_put_in_order() {
        let history = [
            event(Act::Look(1), Came::File(7), 0, 9),
            event(Act::Make(0, 7), Came::Done, 1, 8),
            event(Act::Move(0, 1), Came::Done, 2, 7),
        ];
        assert_eq!(explain(&history), Ok(vec![1, 2, 0]), "EDGE-1");
    }

    /// DENTRY-3: a name that is found neither old nor new is no history.
    #[test]
    fn a_name_that_is_lost_for_a_while_is_noticed() {
        let history = [
            event(Act::Make(0, 7), Came::Done, 0, 1),
            event(Act::Move(0, 1), Came::Done, 2, 9),
            event(Act::Look(0), Came::Errno(libc::ENOENT), 3, 4),
            event(Act::Look(1), Came::Errno(libc::ENOENT), 5, 6),
        ];
        assert!(explain(&history).is_err(), "DENTRY-3");
    }

    /// EDGE-1: a file that is seen after it was replaced is no history.
    #[test]
    fn a_stale_answer_is_noticed() {
        let history = [
            event(Act::Make(0, 7), Came::Done, 0, 1),
            event(Act::Make(1, 8), Came::Done, 2, 3),
            event(Act::Move(0, 1), Came::Done, 4, 5),
            event(Act::Look(1), Came::File(8), 6, 7),
        ];
        assert_eq!(explain(&history), Err(vec![0, 1, 2]), "EDGE-1");
    }
}
