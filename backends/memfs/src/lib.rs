//! A file system in memory.
//!
//! A tree is built through [`MemFs`] itself before or after it is mounted, or
//! changed through [`Vfs`](rcuwalk::Vfs) once it is mounted.
//!
//! ```
//! use rcuwalk::{Credentials, FileType, LookupFlags, Vfs};
//! use rcuwalk_memfs::{MemFs, file, symlink};
//!
//! # fn main() -> rcuwalk::Result<()> {
//! let fs = MemFs::new();
//! let readme = fs.add(fs.root(), b"README", file(0o644))?;
//! fs.write(readme, b"hello")?;
//! fs.add(fs.root(), b"link", symlink(b"README"))?;
//!
//! let vfs = Vfs::new(fs)?;
//! let me = vfs.context(Credentials::user(1000, 1000));
//! let attr = vfs.stat(&me, "/link", LookupFlags::FOLLOW)?;
//! assert_eq!((attr.kind, attr.size), (FileType::Regular, 5));
//! # Ok(())
//! # }
//! ```
//!
//! | read         | to learn                                           |
//! |--------------|----------------------------------------------------|
//! | this file    | the builder, and the table of nodes                |
//! | `node.rs`    | a node, and the names in a directory               |
//! | `fs.rs`      | what the VFS asks for                              |

#![forbid(unsafe_code)]

mod fs;
mod node;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use node::{Node, recover};
use rcuwalk::{Error, FileType, Name, NewFile, Result};

/// A file system in memory. Clones are handles to the same tree.
#[derive(Clone)]
pub struct MemFs {
    tree: Arc<Tree>,
}

struct Tree {
    /// Every node that has a name, by number.
    nodes: RwLock<HashMap<u64, Arc<Node>>>,
    next: AtomicU64,
}

/// A node of a [`MemFs`]: its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u64);

const ROOT: u64 = 1;

impl MemFs {
    /// A tree of a root directory, owned by root, mode 0755.
    pub fn new() -> MemFs {
        let tree = Tree {
            nodes: RwLock::default(),
            next: AtomicU64::new(ROOT),
        };
        let fs = MemFs {
            tree: Arc::new(tree),
        };
        fs.new_node(&directory(0o755));
        fs
    }

    /// The root directory.
    pub fn root(&self) -> NodeId {
        NodeId(ROOT)
    }

    /// Adds a name to a directory. To a mounted tree, add through the
    /// [`Vfs`](rcuwalk::Vfs) instead: it may have cached that there is no such name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotADirectory`], [`Error::Stale`] if `parent` has
    /// been removed, and what [`Name::new`] says.
    pub fn add(&self, parent: NodeId, name: &[u8], new: NewFile<'_>) -> Result<NodeId> {
        let parent = self.node(parent.0)?;
        self.make(&parent, Name::new(name)?, &new)
            .map(|node| NodeId(node.ino))
    }

    /// Adds one more name for an existing node.
    ///
    /// # Errors
    /// As [`add`](Self::add); [`Error::NotPermitted`] for a directory.
    pub fn add_link(&self, parent: NodeId, name: &[u8], existing: NodeId) -> Result<()> {
        let (parent, node) = (self.node(parent.0)?, self.node(existing.0)?);
        self.link_node(&node, &parent, Name::new(name)?)
    }

    /// Replaces a file's contents.
    ///
    /// # Errors
    /// [`Error::Stale`] if it has been removed, [`Error::Invalid`] if it is no file.
    pub fn write(&self, file: NodeId, contents: &[u8]) -> Result<()> {
        self.node(file.0)?.set_contents(contents)
    }

    /// The inode number that `stat` reports.
    pub fn ino(&self, node: NodeId) -> u64 {
        node.0
    }

    /// How many nodes there are, the root included.
    pub fn len(&self) -> usize {
        self.tree.nodes.read().unwrap_or_else(recover).len()
    }

    /// False: there is always a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn node(&self, ino: u64) -> Result<Arc<Node>> {
        let nodes = self.tree.nodes.read().unwrap_or_else(recover);
        nodes.get(&ino).cloned().ok_or(Error::Stale)
    }

    fn new_node(&self, new: &NewFile<'_>) -> Arc<Node> {
        let ino = self.tree.next.fetch_add(1, Relaxed);
        let node = Arc::new(Node::new(ino, new));
        self.tree
            .nodes
            .write()
            .unwrap_or_else(recover)
            .insert(ino, node.clone());
        node
    }

    /// A node without a name is found by nobody any more.
    fn drop_node(&self, node: &Node) {
        self.tree
            .nodes
            .write()
            .unwrap_or_else(recover)
            .remove(&node.ino);
    }
}

impl Default for MemFs {
    fn default() -> Self {
        Self::new()
    }
}

/// A directory with these permissions, owned by root.
pub fn directory(mode: u16) -> NewFile<'static> {
    NewFile {
        kind: FileType::Directory,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: b"",
    }
}

/// An empty file with these permissions, owned by root.
pub fn file(mode: u16) -> NewFile<'static> {
    NewFile {
        kind: FileType::Regular,
        ..directory(mode)
    }
}

/// A symbolic link, owned by root.
pub fn symlink(target: &[u8]) -> NewFile<'_> {
    NewFile {
        kind: FileType::Symlink,
        mode: 0o777,
        uid: 0,
        gid: 0,
        rdev: 0,
        target,
    }
}
