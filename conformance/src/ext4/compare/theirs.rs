//! The kernel's answers.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rcuwalk::{FileType, Timestamp};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, opcode};

/// The host's path of `path`, which is counted from `top`.
pub fn below(top: &Path, path: &[u8]) -> PathBuf {
    // Joining nothing would add a slash, and the root is no file.
    if path.is_empty() {
        top.into()
    } else {
        top.join(OsStr::from_bytes(path))
    }
}

/// Returns the file at this path, without following it.
pub(super) fn statx(path: &Path) -> Result<Statx, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)
}

pub(super) fn exists(path: &Path) -> bool {
    !matches!(
        rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW),
        Err(Errno::NOENT)
    )
}

pub(super) fn moment(time: StatxTimestamp) -> Timestamp {
    Timestamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }
}

/// An entry of a directory: name, inode number, type as [`type_bits`] has it.
pub(super) type Entry = (Vec<u8>, u64, u32);

/// `S_IFMT` bits; 0 where the directory does not tell.
pub(super) fn type_bits(kind: Option<FileType>) -> u32 {
    kind.map_or(0, FileType::mode_bits)
}

/// The entries but `.` and `..`, sorted.
pub(super) fn listing(path: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in Dir::new(open(path, OFlags::DIRECTORY)?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            let kind = FileType::from_mode(entry.file_type().as_raw_mode());
            entries.push((name.to_vec(), entry.ino(), type_bits(kind)));
        }
    }
    entries.sort();
    Ok(entries)
}

/// Opens a file or directory without changing when it was last read.
pub(super) fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map(File::from)
}

/// The number that tells inodes of one number apart, for NFS.
pub(super) fn generation(file: &File) -> Result<u32, Errno> {
    /// FS_IOC_GETVERSION: declared for a long, answered with an int.
    const GET_VERSION: Opcode = opcode::read::<libc::c_long>(b'v', 1);
    // SAFETY: the file systems that know this number store an int where it points.
    let generation = unsafe { Getter::<GET_VERSION, u32>::new() };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(file, generation) }
}

/// The flags that lsattr(1) shows, as the inode has them.
pub(super) fn flags(file: &File) -> Result<u32, Errno> {
    Ok(rustix::fs::ioctl_getflags(file)?.bits())
}

/// A name and a value.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// All of them, sorted.
pub(super) fn xattrs(path: &Path) -> Result<Vec<Xattr>, Errno> {
    // XATTR_LIST_MAX, XATTR_SIZE_MAX.
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut value = vec![0; 1 << 16];
    let mut xattrs = Vec::new();
    for name in names[..length].split(|&byte| byte == 0) {
        if !name.is_empty() {
            let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
            xattrs.push((name.to_vec(), value[..length].to_vec()));
        }
    }
    xattrs.sort();
    Ok(xattrs)
}
