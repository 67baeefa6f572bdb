//! Write-back: the kernel holds written data back, and writes it in larger pieces later.
//!
//! With the kernel's agreement (`FUSE_WRITEBACK_CACHE`), size, mtime and ctime of a regular file
//! are the kernel's as long as it knows the file. It sends WRITEs of its own accord, by any
//! handle that is open for writing and without a caller, and then SETATTRs with the times. Three
//! things follow for files opened for writing:
//!
//! | the kernel                                | so the file                             |
//! |-------------------------------------------|-----------------------------------------|
//! | reads the rest of a page that is written in part | is opened for reading as well      |
//! | says where each WRITE goes, also of those that append | is not opened to append       |
//! | has checked the right to set times        | gets the times as the daemon            |
//!
//! An append-only file can only be opened to append: there the kernel is told to hold nothing
//! back (`FOPEN_DIRECT_IO`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rcuwalk::{OpenFlags, SetAttr};

/// Whether the kernel holds written data back. Set before any thread answers, so relaxed.
#[derive(Default)]
pub(crate) struct WriteBack(AtomicBool);

impl WriteBack {
    /// Records that the kernel has agreed.
    pub(crate) fn accepted(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Returns the flags to open a file by that a caller opens with `flags`.
    pub(crate) fn flags(&self, flags: OpenFlags) -> OpenFlags {
        match self.is_on() && flags.contains(OpenFlags::WRITE) {
            true => (flags | OpenFlags::READ) - OpenFlags::APPEND,
            false => flags,
        }
    }

    /// True if the kernel itself has decided on this change: of times alone, which it may send
    /// without the user who has caused it.
    pub(crate) fn is_kernels(&self, what: &SetAttr) -> bool {
        let mut others = *what;
        (others.atime, others.mtime) = (None, None);
        self.is_on() && others == SetAttr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuwalk::SetTime;

    #[test]
    fn only_files_open_for_writing_are_opened_for_more() {
        let (read, write) = (OpenFlags::READ, OpenFlags::WRITE);
        let back = WriteBack::default();
        assert_eq!(
            back.flags(write | OpenFlags::APPEND),
            write | OpenFlags::APPEND
        );
        back.accepted();
        assert_eq!(back.flags(write | OpenFlags::APPEND), read | write);
        assert_eq!(back.flags(read), read);
    }

    #[test]
    fn only_times_are_set_as_the_daemon() {
        let times = SetAttr::default().mtime(SetTime::Now);
        let back = WriteBack::default();
        assert!(!back.is_kernels(&times), "the caller's");
        back.accepted();
        assert!(back.is_kernels(&times));
        assert!(!back.is_kernels(&times.mode(0o600)));
        assert!(!back.is_kernels(&times.size(0)));
    }
}
