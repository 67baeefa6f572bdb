//! The entries that a scan of a whole tree delivers, for every back end.
//!
//! A scan does not go through the caches: it reads each entry once, in an order that
//! suits the back end, on several threads.

mod queue;

use std::ops::ControlFlow;

pub use queue::{EndOnPanic, Queue};

use crate::attr::Attr;

/// One name of a scanned tree, and its inode.
#[derive(Clone, Copy, Debug)]
pub struct ScanEntry<'a> {
    /// The path of the directory it is in, from the scanned root, without a slash at
    /// either end; empty in the root.
    pub dir: &'a [u8],
    /// Its name; empty for the root itself, which comes as an entry too.
    pub name: &'a [u8],
    /// Its attributes. `dev` is the host's, 0 for an image.
    pub attr: &'a Attr,
    /// The generation of its inode number, where the back end knows it.
    pub generation: Option<u32>,
    /// The target of a symbolic link.
    pub target: Option<&'a [u8]>,
    /// A file handle as name_to_handle_at(2) gives it: its type, then its bytes.
    pub handle: Option<(i32, &'a [u8])>,
}

impl ScanEntry<'_> {
    /// Puts its path, from the scanned root, in place of what `path` held.
    pub fn path_into(&self, path: &mut Vec<u8>) {
        path.clear();
        path.extend_from_slice(self.dir);
        if !self.dir.is_empty() && !self.name.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(self.name);
    }
}

/// Receives what one thread of a scan finds.
pub trait Visitor: Send {
    /// An entry; `Break` ends the scan on all threads, soon.
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()>;

    /// Something could not be read, so entries may be missing below `path`. The scan
    /// goes on with the rest unless this returns `Break`.
    fn problem(&mut self, path: &[u8], error: &dyn std::error::Error) -> ControlFlow<()>;
}

/// How a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every entry that could be read was delivered.
    Complete,
    /// Early: a visitor returned `Break`, or the scan was told to stop.
    Early,
}
