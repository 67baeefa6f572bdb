//! Mounts of the host that come and go below the root, which neither fanotify nor inotify reports:
//! the name that is mounted on stands for another file, though nothing happens in its directory.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::host;

/// The table of mounts, and the root whose part of it counts.
pub(super) struct Mounts {
    table: File,
    root: OwnedFd,
    /// The state when the watch began: a name may have been cached before its thread runs.
    pub(super) first: u64,
}

impl Mounts {
    /// `None` without procfs: then a mount is noticed when its name is asked for again.
    pub(super) fn new(root: BorrowedFd<'_>) -> Option<Mounts> {
        let mut mounts = Mounts {
            table: rcuwalk_procfs::open("thread-self/mountinfo").ok()?,
            root: host::duplicate(root).ok()?,
            first: 0,
        };
        mounts.first = mounts.state();
        Some(mounts)
    }

    /// Has an exceptional condition when the table has changed since the last poll(2).
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// A hash of the mounts below the root, and on it.
    pub(super) fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let table = self.read().unwrap_or_default();
        let root = self.path();
        for line in table.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b' ');
            let (Some(id), Some(point)) = (fields.next(), fields.nth(3)) else {
                continue;
            };
            let point = PathBuf::from(OsString::from_vec(unescape(point)));
            // Where the root's path is not known, all of them count.
            if root.as_ref().is_none_or(|root| point.starts_with(root)) {
                (id, point).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    fn path(&self) -> Option<PathBuf> {
        let (_, link) = rcuwalk_procfs::magic_link(self.root.as_fd()).ok()?;
        let path = rcuwalk_procfs::read_link(link).ok()?;
        // Of one that has been removed, or is out of reach, it is no path.
        let is_path = path.is_absolute() && !path.as_os_str().as_bytes().ends_with(b" (deleted)");
        is_path.then_some(path)
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut table = Vec::new();
        let mut piece = vec![0; 64 << 10];
        loop {
            match self.table.read_at(&mut piece, table.len() as u64)? {
                0 => return Ok(table),
                len => table.extend(&piece[..len]),
            }
        }
    }
}

/// Blanks and the like are octal there: `\040`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| first == b'\\');
        let code = digits.and_then(|digits| str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &behind[3..];
            }
            None => {
                out.push(first);
                rest = behind;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_may_have_any_name() {
        assert_eq!(unescape(br"/a\040b\134c\011"), b"/a b\\c\t");
        assert_eq!(unescape(br"/a\04"), br"/a\04");
        assert_eq!(unescape(br"\999"), br"\999");
    }
}
