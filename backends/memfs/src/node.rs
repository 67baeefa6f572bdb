//! A node, and the names in a directory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rcuwalk::{Attr, Error, FileType, Inode, Name, NewFile, Result};

/// A file, directory, link or device of the tree.
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    pub(crate) target: Box<[u8]>,
    attr: Mutex<Attr>,
    contents: RwLock<Vec<u8>>,
    pub(crate) names: RwLock<Names>,
}

/// The names in a directory, by name and in the order they came.
///
/// Each has a position of its own that is never given to another name, so that a
/// listing can go on from any of them (DIR-1).
#[derive(Default)]
pub(crate) struct Names {
    by_name: HashMap<Box<[u8]>, (u64, Arc<Node>)>,
    by_position: BTreeMap<u64, Box<[u8]>>,
    last_position: u64,
    /// Set when the directory is removed.
    pub(crate) removed: bool,
}

/// Nothing panics half-way through a change here, so what a poisoned lock guards is whole.
pub(crate) fn recover<T>(poisoned: PoisonError<T>) -> T {
    poisoned.into_inner()
}

impl Node {
    pub(crate) fn new(ino: u64, new: &NewFile<'_>) -> Node {
        Node {
            ino,
            kind: new.kind,
            target: new.target.into(),
            attr: Mutex::new(new.attr(ino)),
            contents: RwLock::default(),
            names: RwLock::default(),
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        *self.attr.lock().unwrap_or_else(recover)
    }

    pub(crate) fn change_attr(&self, change: impl FnOnce(&mut Attr)) -> Attr {
        let mut attr: MutexGuard<'_, Attr> = self.attr.lock().unwrap_or_else(recover);
        change(&mut attr);
        *attr
    }

    pub(crate) fn set_contents(&self, contents: &[u8]) -> Result<()> {
        if self.kind != FileType::Regular {
            return Err(Error::Invalid);
        }
        *self.contents.write().unwrap_or_else(recover) = contents.to_vec();
        let size = contents.len() as u64;
        self.change_attr(|attr| (attr.size, attr.blocks) = (size, size.div_ceil(512)));
        Ok(())
    }

    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let contents = self.contents.read().unwrap_or_else(recover);
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(contents.len());
        let len = buf.len().min(contents.len() - start);
        buf[..len].copy_from_slice(&contents[start..start + len]);
        len
    }

    /// The node behind an inode of the VFS.
    pub(crate) fn of(inode: &Inode) -> Result<&Arc<Node>> {
        inode.private::<Arc<Node>>().ok_or(Error::Invalid)
    }
}

impl Names {
    pub(crate) fn get(&self, name: Name<'_>) -> Option<&Arc<Node>> {
        self.by_name.get(name.as_bytes()).map(|(_, node)| node)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The caller has checked that the name is free.
    pub(crate) fn insert(&mut self, name: Name<'_>, node: Arc<Node>) {
        self.last_position += 1;
        let name: Box<[u8]> = name.as_bytes().into();
        self.by_position.insert(self.last_position, name.clone());
        self.by_name.insert(name, (self.last_position, node));
    }

    pub(crate) fn remove(&mut self, name: Name<'_>) -> Option<Arc<Node>> {
        let (position, node) = self.by_name.remove(name.as_bytes())?;
        self.by_position.remove(&position);
        Some(node)
    }

    /// The names after a position, with their own.
    pub(crate) fn after(&self, from: u64) -> impl Iterator<Item = (u64, &[u8], &Arc<Node>)> {
        self.by_position
            .range(from.saturating_add(1)..)
            .filter_map(|(position, name)| Some((*position, &**name, &self.by_name.get(name)?.1)))
    }
}
