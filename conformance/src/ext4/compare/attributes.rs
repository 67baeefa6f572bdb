//! What stat(2) tells, by path and by number; and what only ioctls do.

use rcuwalk::{Attr, FileType, LookupFlags, Timestamp};
use rustix::fs::{OFlags, Statx, StatxFlags};

use super::{Beside, Walk, absolute, number, theirs};

impl Walk<'_> {
    /// Compares and returns ours; `None` if there is none.
    pub(super) fn attributes(&mut self, path: &[u8]) -> Option<Attr> {
        let kernel = theirs::statx(&theirs::below(self.top, path));
        let ours = self
            .vfs
            .stat(&self.ctx, absolute(path), LookupFlags::empty());
        let (kernel, ours) = self.both(path, "stat", kernel, ours)?;
        self.same_attributes(path, &kernel, &ours);
        self.by_number(path, &ours);
        Some(ours)
    }

    fn same_attributes(&mut self, path: &[u8], kernel: &Statx, ours: &Attr) {
        self.same(path, "mode", &u32::from(kernel.stx_mode), &ours.st_mode());
        self.same(path, "uid", &kernel.stx_uid, &ours.uid);
        self.same(path, "gid", &kernel.stx_gid, &ours.gid);
        let device = libc::makedev(kernel.stx_rdev_major, kernel.stx_rdev_minor);
        self.same(path, "rdev", &device, &ours.rdev);
        let mtime = theirs::moment(kernel.stx_mtime);
        if self.beside == Beside::Copied {
            if ours.kind != FileType::Directory {
                self.same(path, "size", &kernel.stx_size, &ours.size);
                self.same(path, "nlink", &kernel.stx_nlink, &ours.nlink);
                self.same(path, "mtime, seconds", &copied(mtime), &copied(ours.mtime));
            }
            return;
        }
        self.same(path, "ino", &kernel.stx_ino, &ours.ino);
        self.same(path, "nlink", &kernel.stx_nlink, &ours.nlink);
        self.same(path, "size", &kernel.stx_size, &ours.size);
        let ctime = theirs::moment(kernel.stx_ctime);
        let cut_short = match self.beside {
            Beside::Recovered { at } => ctime >= at && mtime == ctime,
            _ => false,
        };
        if cut_short {
            let less = kernel.stx_blocks <= ours.blocks;
            self.same(path, "less space where cut short", &true, &less);
        } else {
            self.same(path, "blocks", &kernel.stx_blocks, &ours.blocks);
            self.same(path, "mtime", &mtime, &ours.mtime);
            self.same(path, "ctime", &ctime, &ours.ctime);
        }
        self.same(
            path,
            "atime",
            &theirs::moment(kernel.stx_atime),
            &ours.atime,
        );
        let known = StatxFlags::from_bits_retain(kernel.stx_mask).contains(StatxFlags::BTIME);
        let btime = if known {
            theirs::moment(kernel.stx_btime)
        } else {
            Timestamp::default()
        };
        self.same(path, "btime", &btime, &ours.btime);
    }

    fn by_number(&mut self, path: &[u8], attr: &Attr) {
        let info = match self.ext4.inode(number(attr)) {
            Ok(info) => info,
            Err(err) => return self.failed(path, "inode by number", &err),
        };
        // The number of the file system is the VFS's.
        let by_path = (*attr).dev(info.attr.dev);
        let target = match attr.kind {
            FileType::Symlink => self.ext4.read_link(number(attr)).ok(),
            _ => None,
        };
        let said = (info.attr, Some(info.generation), target);
        self.walked.insert(path.to_vec(), said);
        self.same(
            path,
            "attributes by path and by number",
            &by_path,
            &info.attr,
        );

        // Others cannot be opened without consequences.
        let opens = matches!(attr.kind, FileType::Regular | FileType::Directory);
        if !opens || self.beside == Beside::Copied {
            return;
        }
        let host = theirs::below(self.top, path);
        // Why not is compared with what ours says to reading it.
        let Ok(file) = theirs::open(&host, OFlags::empty()) else {
            return;
        };
        match theirs::generation(&file) {
            Ok(generation) => self.same(path, "generation", &generation, &info.generation),
            Err(err) => self
                .differences
                .note(path, "generation", &err, &info.generation),
        }
        match theirs::flags(&file) {
            Ok(flags) => {
                self.same(path, "flags", &flags, &(info.flags & SHOWN_FLAGS));
                self.coverage.indexed += usize::from(flags & INDEXED != 0);
                self.coverage.inline += usize::from(flags & INLINE != 0);
            }
            Err(err) => self.differences.note(path, "flags", &err, &info.flags),
        }
    }
}

/// What FS_IOC_GETFLAGS lets through.
const SHOWN_FLAGS: u32 = 0x725b_dfff;
const INDEXED: u32 = 0x1000;
const INLINE: u32 = 0x1000_0000;

/// mke2fs copies seconds, those that 32 bits hold.
fn copied(time: Timestamp) -> i64 {
    i64::from(time.sec as i32)
}
