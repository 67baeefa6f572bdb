//! The workloads of `rcuwalk bench`, and the machinery to measure them fairly.
//!
//! For `access`, a workload is a list of paths and the tree they are asked of. The
//! kernel and rcuwalk get the same tree and the same bytes, take turns in one run, and
//! are compared by the ratio of their medians. `iget` does the same with tables of
//! inodes; tables other than ours are in `rcuwalk-bench-peers`. `walktrees` compares our
//! locking schemes with each other, on trees that are computed.
//!
//! | read         | to learn                                                        |
//! |--------------|-----------------------------------------------------------------|
//! | `paths.rs`   | which paths: built in, from a file, or traced from a command    |
//! | `tree.rs`    | which tree: its text form, taking it from a host, building it   |
//! | `kernel.rs`  | the kernel as a contender: access(2) on a materialised tree     |
//! | `measure.rs` | contenders in turn, round by round; and many threads at once    |
//! | `report.rs`  | a result: its frame, its text table, its JSON document           |
//! | `machine.rs` | what it was measured on                                         |
//! | `access.rs`  | all of it put together: access(2), the kernel against ours      |
//! | `iget.rs`    | the inode cache alone, against the node tables of daemons       |
//! | `change.rs`  | names made, renamed and removed: memfs beside tmpfs             |
//! | `fuse.rs`    | a directory directly, through our daemon, and through a plain one |
//! | `scan.rs`    | memory while a scan streams through a small cache               |
//! | `walktrees.rs` | trees larger than the cache, walked with three locking schemes |
//! | `readdir.rs` | one large directory listed: getdents64(2) against ours           |
//! | `dirstorm.rs` | many threads list a few large directories and look up every name |
//! | `dir.rs`     | large directories: made, listed and looked up in, by either side |
//! | `image.rs`   | an ext4 image, walked by the kernel and by ours                 |
//! | `usage.rs`   | processor time and memory of this process                       |
//!
//! The rule of this crate: nothing is prepared inside the measured time that a
//! user of the measured call would have prepared before it.

pub mod access;
pub mod change;
mod dir;
pub mod dirstorm;
pub mod fuse;
pub mod iget;
pub mod image;
pub mod kernel;
pub mod machine;
pub mod measure;
pub mod paths;
mod progress;
mod random;
pub mod readdir;
pub mod report;
pub mod scan;
pub mod tree;
mod usage;
pub mod walktrees;
