//! What a test has mounted is unmounted, however the test ends.

use std::path::PathBuf;

use rustix::mount::{UnmountFlags, unmount};

/// Detaches what is mounted at a path when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Unmount(pub PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // Not a plain unmount: a file in it may still be open.
        let _ = unmount(&self.0, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
    }
}
