//! One thread of a scan: a directory's names, joined with their inodes.

use std::ops::ControlFlow;

use rcuwalk::FileType;

use super::inodes::Inodes;
use super::tasks::{Task, Tasks};
use super::*;
use crate::dir::Directory;
use crate::dir::block::Entry;
use crate::error::{Error, Place, Result};
use crate::fs::{check_named, named};
use crate::link;

/// The longest path of a directory whose entries are delivered: sixteen times what the
/// kernel takes in one piece. Without a limit an image of directories within
/// directories could make paths longer than itself.
const MAX_PATH: usize = 16 * rcuwalk::PATH_MAX;

/// One thread and its visitor.
pub(super) struct Worker<'s, V> {
    shared: &'s Shared<'s>,
    inodes: Inodes<'s>,
    visitor: V,
    /// Directories that no other worker has been given.
    tasks: Tasks,
}

impl<'s, V: Visitor> Worker<'s, V> {
    pub(super) fn new(shared: &'s Shared<'s>, inodes: Inodes<'s>, visitor: V) -> Self {
        Worker {
            shared,
            inodes,
            visitor,
            tasks: Tasks::default(),
        }
    }

    /// Delivers the root, and puts it where the threads will find it.
    pub(super) fn begin(&mut self) {
        let told = match self.inodes.get(ROOT) {
            Ok((attr, generation)) => {
                self.shared.visited.first(ROOT);
                self.tasks.push_root(Task {
                    ino: ROOT,
                    path: Box::default(),
                    size: attr.size,
                });
                self.visitor.entry(&ScanEntry {
                    dir: b"",
                    name: b"",
                    attr: &attr,
                    generation: Some(generation),
                    target: None,
                    handle: None,
                })
            }
            Err(err) => self.visitor.problem(b"", &err),
        };
        if told.is_break() {
            self.shared.queue.end();
        }
    }

    /// Works until there is nothing left for anybody.
    pub(super) fn work(mut self) -> V {
        let shared = self.shared;
        let _ends = shared.queue.end_on_panic();
        while let Some(task) = self.tasks.next(&shared.queue, shared.stop) {
            if self.directory(&task).is_break() {
                shared.queue.end();
            }
        }
        self.visitor
    }

    fn directory(&mut self, task: &Task) -> ControlFlow<()> {
        let volume = self.shared.volume;
        let inode = match self.inodes.read(task.ino) {
            Ok(inode) => inode,
            Err(err) => return self.visitor.problem(&task.path, &err),
        };
        let directory = match Directory::open(volume, &inode) {
            Ok(directory) => directory,
            Err(err) => return self.visitor.problem(&task.path, &err),
        };
        for leaf in directory.leaves(0) {
            if self.shared.queue.is_ended() || self.shared.stop.load(Relaxed) {
                return ControlFlow::Break(());
            }
            let leaf = match leaf {
                Ok(leaf) => leaf,
                // The others may be whole.
                Err(err) => {
                    self.visitor.problem(&task.path, &err)?;
                    continue;
                }
            };
            for entry in leaf.entries() {
                match entry {
                    Ok(entry) if entry.is_dot() => {}
                    Ok(entry) => self.entry(task, &entry)?,
                    Err(err) => self.visitor.problem(&task.path, &err)?,
                }
            }
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn entry(&mut self, task: &Task, entry: &Entry<'_>) -> ControlFlow<()> {
        let super_block = self.shared.volume.super_block();
        let found = check_named(super_block, task.ino, entry.ino)
            .and_then(|()| self.inodes.get(entry.ino))
            .map_err(|err| named(task.ino, entry.ino, err));
        let (attr, generation) = match found {
            Ok(found) => found,
            Err(err) => return self.problem_at(task, entry, &err),
        };
        let mut target = None;
        if attr.kind == FileType::Symlink && self.shared.targets {
            match self.read_target(entry.ino) {
                Ok(bytes) => target = Some(bytes),
                Err(err) => self.problem_at(task, entry, &err)?,
            }
        }
        self.visitor.entry(&ScanEntry {
            dir: &task.path,
            name: entry.name,
            attr: &attr,
            generation: Some(generation),
            target: target.as_deref(),
            handle: None,
        })?;
        match attr.kind {
            FileType::Directory => self.go_down(task, entry, attr.size),
            _ => ControlFlow::Continue(()),
        }
    }

    fn go_down(&mut self, task: &Task, entry: &Entry<'_>, size: u64) -> ControlFlow<()> {
        if !self.shared.visited.first(entry.ino) {
            let err = bad_entry(
                task,
                "inode",
                format!("a second name for directory {}", entry.ino),
            );
            return self.problem_at(task, entry, &err);
        }
        let path = path_of(task, entry);
        if path.len() > MAX_PATH {
            let err = bad_entry(
                task,
                "name",
                format!("a path of more than {MAX_PATH} bytes"),
            );
            return self.visitor.problem(&path, &err);
        }
        self.tasks.push(Task {
            ino: entry.ino,
            path: path.into(),
            size,
        });
        ControlFlow::Continue(())
    }

    fn read_target(&mut self, ino: u32) -> Result<Vec<u8>> {
        let inode = self.inodes.read(ino)?;
        link::read(self.shared.volume, &inode)
    }

    #[cold]
    fn problem_at(&mut self, task: &Task, entry: &Entry<'_>, err: &Error) -> ControlFlow<()> {
        self.visitor.problem(&path_of(task, entry), err)
    }
}

fn path_of(task: &Task, entry: &Entry<'_>) -> Vec<u8> {
    let mut path = Vec::with_capacity(task.path.len() + 1 + entry.name.len());
    path.extend_from_slice(&task.path);
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(entry.name);
    path
}

#[cold]
fn bad_entry(task: &Task, field: &'static str, why: String) -> Error {
    Error::Corrupt {
        place: Place::Inode(task.ino),
        field,
        why,
    }
}
