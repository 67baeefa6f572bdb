//! An inode cache: one inode per key, however many threads look for it.
//!
//! | read                | to learn                                                |
//! |---------------------|---------------------------------------------------------|
//! | `inode/life.rs`     | an inode's states, drawn                                |
//! | `inode/iget.rs`     | the iget family: find, wait, or become the reader       |
//! | `inode/new.rs`      | [`NewInode`]: an inode that is still being read in      |
//! | `inode/node.rs`     | the inode, the counted reference, the last one          |
//! | `inode/evict.rs`    | how an inode leaves, and how the budget is kept         |
//! | `inode/worker.rs`   | a thread that reclaims ahead of need                    |
//! | `inode/cache.rs`    | [`InodeCache`]: its parts, and its construction         |
//! | `inode/nodes.rs`    | [`NodeTable`]: the ids that a peer has been told        |
//! | `inode/known.rs`    | [`KnownTable`]: the same for parts that are in no cache |
//! | `inode/registry.rs` | which cache an inode belongs to                         |
//! | `inode/scheme.rs`   | the kernel's locking, to measure ours beside it         |
//! | `inode/stats.rs`    | counters                                                |
//!
//! It is generic: a daemon with a node table of its own can use `InodeCache<K, P>` and nothing
//! else of this crate. The VFS uses it with [`InodeId`](crate::InodeId) as key and
//! [`VfsInode`](crate::VfsInode) as the part that is filled in; `vfs_inode.rs` has those, and
//! the crate's root has the types here under the same names, with that key and that part.

mod cache;
mod debug;
mod evict;
mod iget;
mod known;
mod life;
mod new;
mod node;
mod nodes;
mod registry;
mod scheme;
mod stats;
mod worker;

pub use cache::{Builder, InodeCache};
pub use iget::{Iget, InUse, Match, PendingInode, SpareInode, Stale, Unwaited};
pub use known::{Known, KnownEntry, KnownPart, KnownRef, KnownTable};
pub use life::Life;
pub use new::NewInode;
pub use node::{InodeRef, Key, Node};
pub use nodes::{Entry, NodeId, NodeTable, Numbered, SweepCursor};
pub use scheme::{InsertLocks, Lookups, Scheme};
pub use stats::InodeStatistics;
