//! Each operation as its system calls.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, StatxAttributes, StatxFlags, Timespec, Timestamps,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;

use super::{Host, raw};
use crate::changes::answer::{Entry, Outcome, Stat};
use crate::changes::known;
use crate::changes::op::{At, Bits, Bytes, Node, Op, When};
use crate::changes::users::User;

const FS_XFLAG_IMMUTABLE: u64 = 0x8;
const FS_XFLAG_APPEND: u64 = 0x10;

type Done = Result<Outcome, Errno>;

impl Host {
    pub(super) fn call(&mut self, op: &Op) -> Done {
        match op {
            Op::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                let (flags, mode) = (*flags | OFlags::NONBLOCK | OFlags::CLOEXEC, bits(*mode));
                let file = rustix::fs::openat(CWD, path.as_str(), flags, mode)?;
                if !flags.contains(OFlags::PATH) {
                    known::opens(rustix::fs::fstat(&file)?.st_mode)?;
                }
                self.slots[*slot] = Some(file);
                self.openers[*slot] = self.user;
                Ok(Outcome::Done)
            }
            Op::Close { slot } => self.slots[*slot]
                .take()
                .map(|_closed| Outcome::Done)
                .ok_or(Errno::BADF),
            Op::Read { slot, at, len } => {
                if known::sets_no_atime(*len) {
                    self.read_without_atime(*slot, *at)?;
                    return Ok(Outcome::Data(Bytes(Vec::new())));
                }
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = self
                    .file(*slot)
                    .and_then(|file| raw::pread(file, &mut buffer[..*len], *at));
                let outcome = read.map(|read| Outcome::Data(Bytes(buffer[..read].to_vec())));
                self.buffer = buffer;
                outcome
            }
            Op::Write {
                slot,
                at,
                len,
                fill,
            } => {
                let data = vec![*fill; *len];
                let written = raw::pwrite(self.file(*slot)?, &data, *at)?;
                Ok(Outcome::Number(written as i64))
            }
            Op::SetLen { slot, len } => done(raw::ftruncate(self.file(*slot)?, *len)),
            Op::Truncate { path, len } => done(raw::truncate(&text(path), *len)),
            Op::Allocate {
                slot,
                mode,
                at,
                len,
            } => {
                let mode = known::allocates(*mode).bits();
                done(raw::fallocate(self.file(*slot)?, mode, *at, *len))
            }
            Op::SeekData { slot, at } => self.seek(*slot, *at, libc::SEEK_DATA),
            Op::SeekHole { slot, at } => self.seek(*slot, *at, libc::SEEK_HOLE),
            Op::Sync { slot, data_only } => {
                let file = self.file(*slot)?;
                done(if *data_only {
                    rustix::fs::fdatasync(file)
                } else {
                    rustix::fs::fsync(file)
                })
            }
            Op::Create { path, mode } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                done(rustix::fs::openat(CWD, path.as_str(), flags, bits(*mode)).map(drop))
            }
            Op::Mkdir { path, mode } => done(rustix::fs::mkdirat(CWD, path.as_str(), bits(*mode))),
            Op::Mknod { path, kind, mode } => {
                let (kind, device) = node(*kind);
                let path = path.as_str();
                done(rustix::fs::mknodat(CWD, path, kind, bits(*mode), device))
            }
            Op::Symlink { target, path } => {
                done(rustix::fs::symlinkat(target.as_str(), CWD, path.as_str()))
            }
            Op::Link { old, new } => self.link(old, new),
            Op::Unlink { path } => done(rustix::fs::unlinkat(CWD, path.as_str(), AtFlags::empty())),
            Op::Rmdir { path } => {
                done(rustix::fs::unlinkat(CWD, path.as_str(), AtFlags::REMOVEDIR))
            }
            Op::Rename { old, new, flags } => done(rustix::fs::renameat_with(
                CWD,
                old.as_str(),
                CWD,
                new.as_str(),
                *flags,
            )),
            Op::Chmod { at, mode } => {
                let (dir, path, flags) = self.at(at)?;
                done(raw::fchmodat2(dir, &path, mode.0, flags))
            }
            Op::Chown { at, uid, gid } => {
                let (dir, path, flags) = self.at(at)?;
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                done(rustix::fs::chownat(dir, path, uid, gid, flags))
            }
            Op::Utimes { at, atime, mtime } => {
                let (dir, path, flags) = self.at(at)?;
                let times = Timestamps {
                    last_access: timespec(*atime),
                    last_modification: timespec(*mtime),
                };
                done(rustix::fs::utimensat(dir, path, &times, flags))
            }
            Op::Access { at, mode, real } => {
                let (dir, path, mut flags) = self.at(at)?;
                flags.set(AtFlags::EACCESS, !real);
                done(raw::faccessat2(dir, &path, *mode, flags))
            }
            Op::Stat { at } => self.stat(at).map(Outcome::Stat),
            Op::ReadLink { at } => {
                let (dir, path, _) = self.at(at)?;
                let target = rustix::fs::readlinkat(dir, path, Vec::new())?;
                Ok(Outcome::Data(Bytes(target.into_bytes())))
            }
            Op::List { at } => self.list(at),
            Op::GetXattr { at, name } => {
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = self.at(at).and_then(|(dir, path, flags)| {
                    raw::getxattrat((dir, &path, flags), &text(name), &mut buffer)
                });
                let outcome = read.map(|read| Outcome::Data(Bytes(buffer[..read].to_vec())));
                self.buffer = buffer;
                outcome
            }
            Op::SetXattr {
                at,
                name,
                value,
                flags,
            } => {
                let (dir, path, at) = self.at(at)?;
                let name = text(name);
                done(raw::setxattrat((dir, &path, at), &name, &value.0, *flags))
            }
            Op::ListXattr { at } => {
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = self.at(at).and_then(|(dir, path, flags)| {
                    raw::listxattrat((dir, &path, flags), &mut buffer)
                });
                let outcome = read.map(|read| Outcome::Names(names(&buffer[..read])));
                self.buffer = buffer;
                outcome
            }
            Op::RemoveXattr { at, name } => {
                let (dir, path, flags) = self.at(at)?;
                done(raw::removexattrat((dir, &path, flags), &text(name)))
            }
            Op::StatFs { at } => {
                let fs = match at {
                    At::Path(path) => rustix::fs::statfs(path.as_str())?,
                    At::NoFollow(path) => {
                        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let file = rustix::fs::openat(CWD, path.as_str(), flags, Mode::empty())?;
                        rustix::fs::fstatfs(file)?
                    }
                    At::Handle(slot) => rustix::fs::fstatfs(self.file(*slot)?)?,
                };
                Ok(Outcome::Number(fs.f_namelen as i64))
            }
            Op::Umask { mask } => {
                let before = rustix::process::umask(bits(*mask));
                Ok(Outcome::Number(before.as_raw_mode().into()))
            }
            Op::Chdir { at } => done(match at {
                At::Path(path) | At::NoFollow(path) => rustix::process::chdir(path.as_str()),
                At::Handle(slot) => rustix::process::fchdir(self.file(*slot)?),
            }),
            Op::SetFlags {
                at,
                immutable,
                append,
            } => {
                let (dir, path, flags) = self.at(at)?;
                let xflags = [(immutable, FS_XFLAG_IMMUTABLE), (append, FS_XFLAG_APPEND)]
                    .iter()
                    .filter(|(set, _)| **set)
                    .fold(0, |all, (_, flag)| all | flag);
                done(raw::file_setattr(dir, &path, flags, xflags))
            }
            // Made of the others.
            Op::Tree => Ok(Outcome::Done),
        }
    }

    fn file(&self, slot: usize) -> Result<BorrowedFd<'_>, Errno> {
        self.slots[slot]
            .as_ref()
            .map(|file| file.as_fd())
            .ok_or(Errno::BADF)
    }

    /// The three arguments that say which file.
    fn at(&self, at: &At) -> Result<(BorrowedFd<'_>, CString, AtFlags), Errno> {
        Ok(match at {
            At::Path(path) => (CWD, text(path), AtFlags::empty()),
            At::NoFollow(path) => (CWD, text(path), AtFlags::SYMLINK_NOFOLLOW),
            At::Handle(slot) => (self.file(*slot)?, CString::default(), AtFlags::EMPTY_PATH),
        })
    }

    /// Reads nothing, with O_NOATIME, which root may set for anybody.
    fn read_without_atime(&mut self, slot: usize, at: i64) -> Result<usize, Errno> {
        let opener = self.user;
        self.become_user(User::Root).map_err(|_| Errno::IO)?;
        let file = self.file(slot)?;
        let read = match rustix::fs::fcntl_getfl(file) {
            // Of O_PATH: it says so below.
            Ok(flags) if flags.contains(OFlags::PATH) => None,
            flags => flags.ok(),
        };
        let _ = read.map(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME));
        self.become_user(opener).map_err(|_| Errno::IO)?;
        let file = self.file(slot)?;
        let outcome = raw::pread(file, &mut [], at);
        let _ = read.map(|flags| rustix::fs::fcntl_setfl(file, flags));
        outcome
    }

    fn seek(&self, slot: usize, at: i64, whence: i32) -> Done {
        let file = self.file(slot)?;
        let found = raw::lseek(file, at, whence);
        known::sought(rustix::fs::fstat(file)?.st_mode, found).map(Outcome::Number)
    }

    fn link(&mut self, old: &At, new: &str) -> Done {
        let (dir, path, flags) = self.at(old)?;
        // linkat's own: to follow is what it has to be told.
        let flags = match old {
            At::Path(_) => AtFlags::SYMLINK_FOLLOW,
            At::NoFollow(_) => AtFlags::empty(),
            At::Handle(_) => flags,
        };
        if self.user == User::Root {
            return done(rustix::fs::linkat(dir, path, CWD, new, flags));
        }
        // rcuwalk has neither of two rules of the kernel. One is protected_hardlinks, which
        // CAP_FOWNER turns off without another effect on link(2). The other lets the opener of
        // a file link it, and recognises the opener by the credentials object: this thread has
        // a new one.
        let effective = |caps| self.make_effective(caps).map_err(|_| Errno::IO);
        let none = CapabilitySet::empty();
        effective(match self.protected_hardlinks {
            true => none,
            false => known::caps_for_link(none),
        })?;
        let linked = rustix::fs::linkat(dir, path, CWD, new, flags);
        effective(none)?;
        done(linked)
    }

    fn stat(&self, at: &At) -> Result<Stat, Errno> {
        let (dir, path, flags) = self.at(at)?;
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(dir, path, flags, mask)?;
        let moment = |time: rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
        Ok(Stat {
            ino: stat.stx_ino,
            st_mode: stat.stx_mode.into(),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: libc::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            times: [stat.stx_atime, stat.stx_mtime, stat.stx_ctime].map(moment),
            btime: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| moment(stat.stx_btime)),
            immutable: stat.stx_attributes.contains(StatxAttributes::IMMUTABLE),
            append: stat.stx_attributes.contains(StatxAttributes::APPEND),
        })
    }

    fn list(&mut self, at: &At) -> Done {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened;
        let mut buffer = Vec::with_capacity(32 << 10);
        let dir = match at {
            At::Path(path) => {
                opened = rustix::fs::openat(CWD, path.as_str(), flags, Mode::empty())?;
                opened.as_fd()
            }
            At::NoFollow(path) => {
                let flags = flags | OFlags::NOFOLLOW;
                opened = rustix::fs::openat(CWD, path.as_str(), flags, Mode::empty())?;
                opened.as_fd()
            }
            At::Handle(slot) => {
                let dir = self.file(*slot)?;
                raw::lseek(dir, 0, libc::SEEK_SET)?;
                dir
            }
        };
        let mut entries = Vec::new();
        let mut listing = RawDir::new(dir, buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let name = String::from_utf8_lossy(entry.file_name().to_bytes()).into_owned();
            if name != "." && name != ".." {
                entries.push(Entry {
                    name,
                    kind: entry.file_type().as_raw_mode(),
                    ino: entry.ino(),
                });
            }
        }
        entries.sort_unstable();
        Ok(Outcome::Entries(entries))
    }
}

fn done(result: Result<(), Errno>) -> Done {
    result.map(|()| Outcome::Done)
}

/// Generated names have no NUL.
fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn bits(Bits(bits): Bits) -> Mode {
    Mode::from_raw_mode(bits.into())
}

fn node(kind: Node) -> (FileType, u64) {
    match kind {
        Node::Regular => (FileType::RegularFile, 0),
        Node::Fifo => (FileType::Fifo, 0),
        Node::Socket => (FileType::Socket, 0),
        Node::Directory => (FileType::Directory, 0),
        Node::Char(major, minor) => (FileType::CharacterDevice, libc::makedev(major, minor)),
        Node::Block(major, minor) => (FileType::BlockDevice, libc::makedev(major, minor)),
    }
}

fn timespec(when: When) -> Timespec {
    let (tv_sec, tv_nsec) = match when {
        When::Now => (0, rustix::fs::UTIME_NOW),
        When::Omit => (0, rustix::fs::UTIME_OMIT),
        When::At(sec, nsec) => (sec, nsec),
    };
    Timespec { tv_sec, tv_nsec }
}

fn names(list: &[u8]) -> Vec<String> {
    let mut names: Vec<String> = list
        .split_inclusive(|&byte| byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}
