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
//! It behaves as tmpfs does: contents by the page, with holes; times, sizes and link
//! counts of directories; extended attributes and ACLs; rename with exchange and
//! whiteout; files without a name. It can be kept within bounds, see [`Builder`]; beyond
//! them is [`Error::NoSpace`].
//!
//! | read         | to learn                                            |
//! |--------------|-----------------------------------------------------|
//! | this file    | the builder of trees, and their nodes               |
//! | `fs.rs`      | the [`FileSystem`](rcuwalk::FileSystem) for the VFS |
//! | `change.rs`  | names made, linked, moved and removed               |
//! | `file.rs`    | an open file                                        |
//! | `handle.rs`  | files found again by number                         |
//! | `node.rs`    | a node, its life and its times                      |
//! | `names.rs`   | the names in a directory, and their positions       |
//! | `data.rs`    | the contents of a file                              |
//! | `slabs.rs`   | the memory of contents                              |
//! | `xattrs.rs`  | extended attributes                                 |
//! | `space.rs`   | the budgets, and their use                          |
//! | `limits.rs`  | limits as tmpfs's mount options write them          |

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod change;
mod data;
mod file;
mod fs;
mod handle;
pub mod limits;
mod names;
mod node;
mod slabs;
mod space;
mod xattrs;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock, Weak};

use change::Dir;
use node::{Node, now, recover};
use rcuwalk::{Error, FileType, Name, NewFile, Result, Timestamp};
use space::{PAGE, Space};

/// A file system in memory. Clones are handles to the same tree.
#[derive(Clone)]
pub struct MemFs {
    tree: Arc<Tree>,
}

impl std::fmt::Debug for MemFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemFs").finish_non_exhaustive()
    }
}

struct Tree {
    root: Arc<Node>,
    space: Arc<Space>,
    /// Nodes that a caller may ask for by number, for as long as they have names: those that the
    /// builder has made, and those that have a handle.
    numbered: RwLock<HashMap<u64, Weak<Node>>>,
    /// Of all inode numbers that were given out, none is given out again.
    last_ino: AtomicU64,
    /// Drawn for each tree: since no number is given twice, it only tells trees apart.
    generation: u32,
    /// How many of them stand for nothing, or for something without a name.
    nameless: AtomicU64,
}

/// A node of a [`MemFs`]: its inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(u64);

/// What a [`MemFs`] may take; nothing said, as much as there is.
///
/// ```
/// let fs = rcuwalk_memfs::MemFs::builder().bytes(1 << 20).inodes(1000).build();
/// assert_eq!((fs.bytes(), fs.inodes()), (0, 1));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Builder {
    bytes: u64,
    inodes: u64,
}

impl Builder {
    /// Contents, in whole pages of 4096 bytes, and long link targets: so much, and not
    /// more. 0: no limit.
    #[doc(alias("size=", "nr_blocks="))]
    pub fn bytes(self, bytes: u64) -> Builder {
        Builder { bytes, ..self }
    }

    /// So many inodes, the root among them. Each further name of a file counts as one,
    /// and extended attributes and long ACLs as one for each 1024 bytes. 0: no limit.
    #[doc(alias = "nr_inodes=")]
    pub fn inodes(self, inodes: u64) -> Builder {
        Builder { inodes, ..self }
    }

    /// Sets the limits that tmpfs has by default on a machine with `memory` bytes of memory: half
    /// of the memory for contents, and one inode for each two pages.
    pub fn as_tmpfs(self, memory: u64) -> Builder {
        let bytes = limits::default_size(memory);
        self.bytes(bytes).inodes(limits::default_inodes(memory))
    }

    /// A tree of a root directory, owned by root, mode 0755.
    pub fn build(self) -> MemFs {
        let space = Arc::new(Space::new(self.bytes, self.inodes));
        let root = Node::new(ROOT, &directory(0o755), now(), &space);
        let root = root.expect("there is room for one inode, as there is no limit of none");
        let tree = Tree {
            root: Arc::new(root),
            space,
            numbered: RwLock::default(),
            last_ino: AtomicU64::new(ROOT),
            generation: RandomState::new().hash_one(ROOT) as u32,
            nameless: AtomicU64::new(0),
        };
        MemFs {
            tree: Arc::new(tree),
        }
    }
}

const ROOT: u64 = 1;

impl MemFs {
    /// A tree of a root directory, owned by root, mode 0755, that may grow without limit.
    pub fn new() -> MemFs {
        Self::builder().build()
    }

    /// A tree with limits.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// As [`new`](Self::new), with the limits that [`Builder`] explains.
    pub fn with_limits(bytes: u64, inodes: u64) -> MemFs {
        Self::builder().bytes(bytes).inodes(inodes).build()
    }

    /// Sets new limits, both or neither; `None` leaves one as it is. As a remount of tmpfs.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if more is in use than the new limits allow; [`Error::Invalid`] for a
    /// limit where there was none so far.
    pub fn set_limits(&self, bytes: Option<u64>, inodes: Option<u64>) -> Result<()> {
        self.tree.space.set_limits(bytes, inodes)
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
    /// been removed, [`Error::NoSpace`], and what [`Name::new`] says.
    pub fn add(&self, parent: NodeId, name: &[u8], new: NewFile<'_>) -> Result<NodeId> {
        let parent = self.node(parent)?;
        let node = self.make(dir(&parent), Name::new(name)?, &new)?;
        self.number(&node);
        Ok(NodeId(node.ino))
    }

    /// Adds one more name for an existing node.
    ///
    /// # Errors
    /// As [`add`](Self::add); [`Error::NotPermitted`] for a directory.
    pub fn add_link(&self, parent: NodeId, name: &[u8], existing: NodeId) -> Result<()> {
        let (parent, node) = (self.node(parent)?, self.node(existing)?);
        self.link_node(&node, None, dir(&parent), Name::new(name)?)
    }

    /// Replaces a file's contents. Those of a file in a mounted tree, replace through
    /// the [`Vfs`](rcuwalk::Vfs): it may have cached the size.
    ///
    /// # Errors
    /// [`Error::Stale`] if it has been removed, [`Error::Invalid`] if it is no file,
    /// [`Error::NoSpace`] after as much as there is room for.
    pub fn write(&self, file: NodeId, contents: &[u8]) -> Result<()> {
        self.node(file)?.set_contents(contents)
    }

    /// The inode number that `stat` reports.
    pub fn ino(&self, node: NodeId) -> u64 {
        node.0
    }

    /// How many nodes with a name there are, the root included.
    pub fn len(&self) -> usize {
        // Relaxed, both: exact while there are no changes.
        let (all, nameless) = (&self.tree.last_ino, &self.tree.nameless);
        all.load(Relaxed).saturating_sub(nameless.load(Relaxed)) as usize
    }

    /// False: there is always a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes used of [`Builder::bytes`], limited or not.
    pub fn bytes(&self) -> u64 {
        self.tree.space.pages().1 * PAGE as u64
    }

    /// Inodes used of [`Builder::inodes`], limited or not: also by open files without a name.
    pub fn inodes(&self) -> u64 {
        self.tree.space.inode_bytes().1.div_ceil(space::INODE)
    }

    fn node(&self, node: NodeId) -> Result<Arc<Node>> {
        if node.0 == ROOT {
            return Ok(self.tree.root.clone());
        }
        let numbered = self.tree.numbered.read().unwrap_or_else(recover);
        let node = numbered.get(&node.0).and_then(Weak::upgrade);
        node.ok_or(Error::Stale)
    }

    /// Has a node found by its number for as long as it has names: one that never had any, from
    /// its first on.
    fn number(&self, node: &Arc<Node>) {
        let mut numbered = self.tree.numbered.write().unwrap_or_else(recover);
        let mut state = node.state();
        if state.attr.nlink > 0 && !state.numbered {
            numbered.insert(node.ino, Arc::downgrade(node));
        }
        state.numbered |= state.attr.nlink > 0 || state.linkable;
    }

    /// A node whose number has been given away has got its first name.
    #[cold]
    fn find_by_number(&self, node: &Arc<Node>) {
        let mut numbered = self.tree.numbered.write().unwrap_or_else(recover);
        if node.state().attr.nlink > 0 {
            numbered.insert(node.ino, Arc::downgrade(node));
        }
    }

    #[cold]
    fn forget_number(&self, ino: u64) {
        let mut numbered = self.tree.numbered.write().unwrap_or_else(recover);
        numbered.remove(&ino);
    }

    fn new_node(&self, new: &NewFile<'_>, now: Timestamp) -> Result<Node> {
        let ino = self.tree.last_ino.fetch_add(1, Relaxed) + 1;
        let node = Node::new(ino, new, now, &self.tree.space);
        if node.is_err() {
            self.is_nameless();
        }
        node
    }

    /// A number was not used after all, or a node has lost its last name.
    fn is_nameless(&self) {
        self.tree.nameless.fetch_add(1, Relaxed);
    }

    /// A file without a name has got one.
    fn is_named(&self) {
        self.tree.nameless.fetch_sub(1, Relaxed);
    }
}

/// For the builder, which knows no inodes.
fn dir(node: &Arc<Node>) -> Dir<'_> {
    Dir { node, inode: None }
}

impl Default for MemFs {
    fn default() -> Self {
        Self::new()
    }
}

/// A directory with these permissions, owned by root.
pub fn directory(mode: u16) -> NewFile<'static> {
    NewFile::new(FileType::Directory, mode)
}

/// An empty file with these permissions, owned by root.
pub fn file(mode: u16) -> NewFile<'static> {
    NewFile::new(FileType::Regular, mode)
}

/// A symbolic link, owned by root.
pub fn symlink(target: &[u8]) -> NewFile<'_> {
    NewFile::new(FileType::Symlink, 0o777).target(target)
}

/// The examples of README.md are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
