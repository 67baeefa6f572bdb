//! One thread of a scan: a directory listed, its entries read.

use std::ffi::CStr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rcuwalk::scan::{Queue, ScanEntry, Visitor};
use rcuwalk::{Error, FileType};
use rustix::fd::OwnedFd;
use rustix::fs::RawDir;
use rustix::io::Errno;

use super::Order;
use super::dir::{Closed, Dir, Found, Held, Shape};
use crate::host::{as_fd, err};

/// Bytes asked for at a time: about eight thousand entries with short names.
const BUFFER: usize = 256 * 1024;

/// Entries per task: a directory of a million is a thousand such tasks, and a waiting thread
/// gets one.
const PART: usize = 1024;

/// As many names are sorted at once where the order is that of the inodes.
const SORTED: usize = 1 << 20;

/// State shared by all threads of a scan.
pub(super) struct Shared<'a> {
    pub(super) root: &'a OwnedFd,
    pub(super) shape: Shape,
    pub(super) order: Order,
    pub(super) targets: bool,
    pub(super) handles: bool,
    pub(super) stop: &'a AtomicBool,
    pub(super) queue: Queue<Task>,
}

impl Shared<'_> {
    /// True once the scan has been stopped.
    fn is_over(&self) -> bool {
        self.stop.load(Relaxed) || self.queue.is_ended()
    }
}

/// Something to do.
pub(super) enum Task {
    /// List a directory, and read its entries.
    List {
        parent: Option<Arc<Dir>>,
        name: Box<CStr>,
    },
    /// Look at a part of a listed directory.
    Look { open: Arc<Open>, names: Names },
}

impl Task {
    /// The first.
    pub(super) fn root(name: Box<CStr>) -> Task {
        Task::List { parent: None, name }
    }
}

/// A directory that is being listed, or with parts still to be read.
pub(super) struct Open {
    dir: Arc<Dir>,
    fd: Arc<OwnedFd>,
    path: Vec<u8>,
}

/// Names of one directory, packed.
#[derive(Default)]
pub(super) struct Names {
    /// Each ends with a NUL.
    bytes: Vec<u8>,
    /// Inode number, and where the name starts.
    entries: Vec<(u64, usize)>,
}

impl Names {
    fn push(&mut self, ino: u64, name: &CStr) {
        self.entries.push((ino, self.bytes.len()));
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
    }

    fn iter(&self) -> impl Iterator<Item = &CStr> {
        let names = self.entries.iter();
        names.filter_map(|(_, start)| CStr::from_bytes_until_nul(self.bytes.get(*start..)?).ok())
    }

    /// At most `count` of them, from `start` on.
    fn part(&self, start: usize, count: usize) -> Names {
        let mut part = Names::default();
        for (ino, at) in self.entries.iter().skip(start).take(count) {
            let name = self.bytes.get(*at..).unwrap_or_default();
            if let Ok(name) = CStr::from_bytes_until_nul(name) {
                part.push(*ino, name);
            }
        }
        part
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

/// One thread.
pub(super) struct Worker<'s, 'a, V> {
    shared: &'s Shared<'a>,
    pub(super) visitor: V,
    /// Its tasks, the newest first.
    tasks: Vec<Task>,
    held: Held,
    /// For getdents64, kept from directory to directory.
    buffer: Vec<u8>,
}

impl<'s, 'a, V: Visitor> Worker<'s, 'a, V> {
    pub(super) fn new(shared: &'s Shared<'a>, visitor: V, held: Held) -> Worker<'s, 'a, V> {
        Worker {
            shared,
            visitor,
            tasks: Vec::new(),
            held,
            buffer: Vec::with_capacity(BUFFER),
        }
    }

    /// Works until no thread has any task left.
    pub(super) fn work(mut self) -> V {
        let _ends = self.shared.queue.end_on_panic();
        while let Some(task) = self.shared.queue.next(&mut self.tasks, self.shared.stop) {
            let done = match task {
                Task::List { parent, name } => self.list(parent.as_ref(), name),
                Task::Look { open, names } => self.look(&open, &names),
            };
            if done.is_break() {
                self.shared.queue.end();
                break;
            }
        }
        self.visitor
    }

    /// Lists a directory, and has its entries read part by part.
    fn list(&mut self, parent: Option<&Arc<Dir>>, name: Box<CStr>) -> ControlFlow<()> {
        let entered = Dir::enter(
            self.shared.root,
            parent,
            name.clone(),
            &self.shared.shape,
            &mut self.held,
        );
        let (dir, fd) = match entered {
            Ok(entered) => entered,
            Err(Closed::Gone | Closed::OtherDevice) => return ControlFlow::Continue(()),
            Err(Closed::Unreadable(error)) => {
                let mut path = parent.map_or(Vec::new(), |parent| parent.path());
                join(&mut path, name.to_bytes());
                return self.visitor.problem(&path, &error);
            }
        };
        let path = dir.path();
        let open = Arc::new(Open { dir, fd, path });
        // The thread's own buffer, for as long as this takes: no other listing begins
        // on this thread before.
        let mut buffer = std::mem::take(&mut self.buffer);
        let done = self.list_open(&open, &mut buffer);
        self.buffer = buffer;
        done
    }

    fn list_open(&mut self, open: &Arc<Open>, buffer: &mut Vec<u8>) -> ControlFlow<()> {
        let most = match self.shared.order {
            Order::Listed => PART,
            Order::Inode => SORTED,
        };
        let mut names = Names::default();
        let mut entries = RawDir::new(&*open.fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                // Removed while it was listed: there is no more of it.
                Err(Errno::NOENT) => break,
                Err(errno) => {
                    self.visitor.problem(&open.path, &err(errno))?;
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            names.push(entry.ino(), name);
            if names.entries.len() >= most {
                self.look_at_some(open, &mut names)?;
            }
        }
        self.look_at_some(open, &mut names)
    }

    /// Looks at these names, or gives them, or parts of them, to those without work.
    fn look_at_some(&mut self, open: &Arc<Open>, names: &mut Names) -> ControlFlow<()> {
        if self.shared.order == Order::Inode {
            names.entries.sort_unstable();
        }
        let whole = names.entries.len() >= PART;
        if whole && self.shared.queue.is_wanted() {
            let parts = (0..names.entries.len()).step_by(PART);
            self.shared.queue.give(parts.map(|start| Task::Look {
                open: open.clone(),
                names: names.part(start, PART),
            }));
        } else {
            self.look(open, names)?;
        }
        names.clear();
        ControlFlow::Continue(())
    }

    /// Looks at each entry, and notes the directories among them.
    fn look(&mut self, open: &Arc<Open>, names: &Names) -> ControlFlow<()> {
        let shared = self.shared;
        let before = self.tasks.len();
        for name in names.iter() {
            if shared.is_over() {
                return ControlFlow::Break(());
            }
            match Found::of(as_fd(&open.fd), name, shared.targets, shared.handles) {
                Ok(Some(found)) => self.deliver(open, name, &found)?,
                // Gone since it was listed.
                Ok(None) => {}
                Err(error) => self.unseen(open, name, &error)?,
            }
        }
        if self.tasks.len() > before {
            self.held.hold(&open.fd);
        }
        ControlFlow::Continue(())
    }

    fn deliver(&mut self, open: &Arc<Open>, name: &CStr, found: &Found) -> ControlFlow<()> {
        self.visitor.entry(&ScanEntry {
            dir: &open.path,
            name: name.to_bytes(),
            attr: &found.attr,
            generation: found.generation,
            target: found.target.as_deref(),
            handle: found.handle(),
        })?;
        if found.attr.kind == FileType::Directory && self.shared.shape.covers(found.attr.dev) {
            self.tasks.push(Task::List {
                parent: Some(open.dir.clone()),
                name: name.into(),
            });
        }
        ControlFlow::Continue(())
    }

    #[cold]
    fn unseen(&mut self, open: &Open, name: &CStr, error: &Error) -> ControlFlow<()> {
        let mut path = open.path.clone();
        join(&mut path, name.to_bytes());
        self.visitor.problem(&path, error)
    }
}

fn join(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
