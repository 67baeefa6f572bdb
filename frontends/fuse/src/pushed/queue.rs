//! The notices that wait to be sent.
//!
//! Names wait by directory, and one thread at a time tells of the names of a directory: the kernel
//! takes the directory's lock for each, and a second thread would wait for the same request.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rcuwalk::inode::NodeId;

/// Most names that wait for their notices. If there are more, everything is invalidated.
pub(super) const MOST: usize = 1 << 16;

/// A notice of a name that takes longer than this waits for a stuck request.
pub(super) const STUCK: Duration = Duration::from_millis(100);

/// What the kernel does with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum How {
    /// Asks at the next use; mounts on it stay.
    Expire,
    /// Drops it, and unmounts what is mounted on it or below.
    Invalidate,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) names: Names,
    pub(super) nodes: HashSet<NodeId>,
    /// Nodes with changes through the mount, and when the first of these was made.
    pub(super) changed: HashSet<NodeId>,
    pub(super) changed_since: Option<Instant>,
    /// The back end may have missed changes.
    pub(super) lost: bool,
    /// Notices were dropped that the kernel needs.
    pub(super) dropped: bool,
    /// Notices are sent.
    pub(super) is_open: bool,
    /// The teller waits until names have been told of.
    pub(super) is_awaited: bool,
    pub(super) is_over: bool,
}

/// Names of one directory.
pub(super) type InDir = HashMap<Box<[u8]>, How>;

#[derive(Debug, Default)]
pub(super) struct Names {
    waiting: HashMap<NodeId, InDir>,
    /// How many these are.
    count: usize,
    /// The directories of `waiting`, first come first.
    order: VecDeque<NodeId>,
    /// Directories of which a thread is telling, and since when its notice is under way.
    telling: HashMap<NodeId, Instant>,
    /// Names in directories with a stuck notice were left out.
    skipped: bool,
    /// The threads that tell of names, and those of them that wait for work.
    pub(super) threads: usize,
    pub(super) idle: usize,
}

impl Queue {
    /// Adds the notice of a name; or drops them all, if there are too many.
    pub(super) fn add(&mut self, dir: NodeId, name: &[u8], how: How) {
        if self.names.count < MOST {
            self.names.add(dir, name, how);
        } else {
            self.names.clear();
            self.dropped = true;
        }
    }

    /// A thread has told of names in `dir`, except for `left`.
    pub(super) fn told(&mut self, dir: NodeId, left: InDir) {
        let names = &mut self.names;
        names.telling.remove(&dir);
        for (name, how) in left {
            names.add(dir, &name, how);
        }
        if names.skipped && !names.telling.values().any(is_stuck) {
            names.skipped = false;
            self.dropped = true;
        }
    }
}

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, dir: NodeId, name: &[u8], how: How) {
        let order = &mut self.order;
        let names = self.waiting.entry(dir).or_insert_with(|| {
            order.push_back(dir);
            InDir::new()
        });
        match names.get_mut(name) {
            Some(known) => *known = how.max(*known),
            None => {
                names.insert(Box::from(name), how);
                self.count += 1;
            }
        }
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.order.clear();
        self.count = 0;
    }

    /// Adds a name that expires with all others, unless that would wait for a stuck notice.
    pub(super) fn expire(&mut self, dir: NodeId, name: &[u8]) {
        match self.telling.get(&dir).is_some_and(is_stuck) {
            true => self.skipped = true,
            false => self.add(dir, name, How::Expire),
        }
    }

    /// Takes the names of the directory that has waited longest, of those that no other thread is
    /// telling of.
    pub(super) fn take(&mut self) -> Option<(NodeId, InDir)> {
        let mut order = self.order.iter();
        let at = order.position(|dir| !self.telling.contains_key(dir))?;
        let dir = self.order.remove(at)?;
        let names = self.waiting.remove(&dir)?;
        self.count -= names.len();
        self.telling.insert(dir, Instant::now());
        Some((dir, names))
    }

    /// The next notice of `dir` is under way.
    pub(super) fn begin(&mut self, dir: NodeId) {
        self.telling.insert(dir, Instant::now());
    }

    /// The number of names that wait for a thread, and for nothing else.
    pub(super) fn ready(&self) -> usize {
        let behind = self.telling.keys().filter_map(|dir| self.waiting.get(dir));
        self.count - behind.map(InDir::len).sum::<usize>()
    }

    /// True if names wait for a thread, and all threads are stuck.
    pub(super) fn need_help(&self) -> bool {
        self.idle == 0
            && self.threads == self.telling.len()
            && self.telling.values().all(is_stuck)
            && self.ready() > 0
    }
}

fn is_stuck(since: &Instant) -> bool {
    since.elapsed() >= STUCK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FRESH-1: what does not fit is not forgotten.
    #[test]
    fn more_names_than_fit_invalidate_everything() {
        let mut queue = Queue::default();
        for n in 0..MOST {
            queue.add(NodeId(7), n.to_string().as_bytes(), How::Invalidate);
        }
        assert!(!queue.dropped);
        queue.add(NodeId(7), b"one more", How::Invalidate);
        assert!(queue.dropped, "FRESH-1");
        assert!(queue.names.is_empty() && queue.names.take().is_none());
    }

    /// WATCH-1: one thread tells of a directory, and the others of other directories.
    #[test]
    fn names_behind_a_stuck_notice_hold_up_no_others() {
        let mut queue = Queue::default();
        queue.names.threads = 1;
        queue.add(NodeId(7), b"a", How::Expire);
        queue.add(NodeId(7), b"a", How::Invalidate);
        let (dir, names) = queue.names.take().unwrap();
        assert_eq!((dir, names[&b"a"[..]]), (NodeId(7), How::Invalidate));
        queue.add(NodeId(7), b"b", How::Expire);
        assert!(queue.names.take().is_none(), "another thread tells of it");
        std::thread::sleep(STUCK);
        assert!(!queue.names.need_help(), "of what waits behind it");
        queue.add(NodeId(8), b"c", How::Expire);
        assert!(queue.names.need_help(), "WATCH-1");
        queue.names.threads = 2;
        assert!(!queue.names.need_help(), "another thread is there");
        assert_eq!(queue.names.take().unwrap().0, NodeId(8));
        queue.names.expire(NodeId(7), b"d");
        queue.told(NodeId(8), InDir::new());
        assert!(!queue.dropped);
        queue.told(NodeId(7), names);
        assert!(queue.dropped, "FRESH-1: `d` was left out");
        assert_eq!(queue.names.take().unwrap().1.len(), 2, "what was left");
    }
}
