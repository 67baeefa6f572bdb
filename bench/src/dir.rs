//! Large directories of empty files: how they are made, listed, and asked for names, through the
//! kernel and through ours.

use std::ffi::CStr;
use std::fs::File as HostFile;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rcuwalk::{Context, Credentials, Entries, File, LookupFlags, OpenFlags, Vfs};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir};

use crate::image::mount::run;

/// Bytes for the entries of one call, for all contenders: as glibc's readdir(3) takes.
pub(crate) const BUFFER: usize = 32 * 1024;

/// A directory that one thread has opened.
#[expect(clippy::large_enum_variant, reason = "there is one for each thread")]
pub(crate) enum Dir<'v> {
    /// Through system calls.
    Kernel(OwnedFd),
    /// Through a VFS of ours.
    Ours {
        vfs: &'v Vfs,
        file: File,
        /// Its current directory is this one.
        here: Context,
    },
}

impl<'v> Dir<'v> {
    pub(crate) fn of_kernel(path: &Path) -> io::Result<Dir<'v>> {
        Ok(Dir::Kernel(open(path)?))
    }

    pub(crate) fn of_ours(vfs: &'v Vfs, path: &str) -> io::Result<Dir<'v>> {
        let root = vfs.context(Credentials::root());
        let file = vfs.open(&root, path, OpenFlags::READ);
        let place = vfs.lookup(&root, path, LookupFlags::default());
        Ok(Dir::Ours {
            vfs,
            file: file.map_err(io::Error::other)?,
            here: root.with_cwd(place.map_err(io::Error::other)?),
        })
    }

    /// Lists all entries from the start, with their inode numbers.
    pub(crate) fn list(&self, mut entry: impl FnMut(&[u8], u64)) -> io::Result<()> {
        match self {
            Dir::Kernel(dir) => list_kernel(dir, |name, ino| {
                entry(name.to_bytes(), ino);
                Ok(())
            }),
            Dir::Ours { file, .. } => list_ours(file, |name, ino| {
                entry(name, ino);
                Ok(())
            }),
        }
    }

    /// Lists all entries from the start, and looks each of them up: `entry` is told the name, the
    /// inode number in the listing, and the one that the lookup found.
    pub(crate) fn list_and_look_up(
        &self,
        mut entry: impl FnMut(&[u8], u64, u64),
    ) -> io::Result<()> {
        match self {
            Dir::Kernel(dir) => list_kernel(dir, |name, ino| {
                let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                entry(name.to_bytes(), ino, stat.st_ino);
                Ok(())
            }),
            Dir::Ours { vfs, file, here } => list_ours(file, |name, ino| {
                let attr = vfs.stat(here, name, LookupFlags::empty());
                entry(name, ino, attr.map_err(io::Error::other)?.ino);
                Ok(())
            }),
        }
    }

    /// The inode number of a name.
    #[inline]
    pub(crate) fn look_up(&self, name: &CStr) -> io::Result<u64> {
        match self {
            Dir::Kernel(dir) => {
                let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(stat.st_ino)
            }
            Dir::Ours { vfs, here, .. } => {
                let attr = vfs.stat(here, name.to_bytes(), LookupFlags::empty());
                Ok(attr.map_err(io::Error::other)?.ino)
            }
        }
    }

    /// Makes an empty file.
    pub(crate) fn create(&self, name: &str) -> io::Result<()> {
        match self {
            Dir::Kernel(dir) => make_file(dir, name),
            Dir::Ours { vfs, here, .. } => {
                let made = vfs.create(here, name, 0o644);
                made.map(drop).map_err(io::Error::other)
            }
        }
    }

    /// Removes a file.
    pub(crate) fn unlink(&self, name: &str) -> io::Result<()> {
        match self {
            Dir::Kernel(dir) => Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?),
            Dir::Ours { vfs, here, .. } => vfs.unlink(here, name).map_err(io::Error::other),
        }
    }
}

/// Opens a directory of the kernel's.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Lists a directory by getdents64(2), from the start, without `.` and `..`.
#[inline]
pub(crate) fn list_kernel(
    dir: &OwnedFd,
    mut entry: impl FnMut(&CStr, u64) -> io::Result<()>,
) -> io::Result<()> {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0))?;
    let mut buf = vec![MaybeUninit::uninit(); BUFFER];
    let mut entries = RawDir::new(dir.as_fd(), &mut buf);
    while let Some(next) = entries.next() {
        let next = next?;
        let name = next.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            entry(name, next.ino())?;
        }
    }
    Ok(())
}

/// Lists a directory by [`File::fill`], from the start.
#[inline]
pub(crate) fn list_ours(
    dir: &File,
    mut entry: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let (mut buf, mut position) = (vec![0; BUFFER], 0);
    loop {
        let filled = dir.fill(position, &mut buf).map_err(io::Error::other)?;
        if filled == 0 {
            return Ok(());
        }
        for next in Entries::new(&buf[..filled]) {
            position = next.next;
            entry(next.name, next.ino)?;
        }
    }
}

/// The name of a file of a large directory.
pub(crate) fn name(number: u64) -> String {
    format!("f{number:07}")
}

/// Makes a directory of so many empty files.
///
/// # Errors
///
/// The host's, and `Interrupted` once `stop` is raised.
pub(crate) fn fill(path: &Path, entries: u64, stop: &AtomicBool) -> io::Result<()> {
    std::fs::create_dir(path)?;
    let dir = open(path)?;
    for number in 0..entries {
        if number % 1024 == 0 && stop.load(Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        make_file(&dir, &name(number))?;
    }
    Ok(())
}

fn make_file(dir: &OwnedFd, name: &str) -> io::Result<()> {
    let mode = Mode::from(0o644);
    Ok(rustix::fs::mknodat(
        dir,
        name,
        FileType::RegularFile,
        mode,
        0,
    )?)
}

/// Makes an image of a file system with room for so many empty files, all in few directories. The
/// file has holes.
///
/// # Errors
///
/// The host's, and what mkfs said.
pub(crate) fn make_image(kind: &str, image: &Path, entries: u64) -> io::Result<()> {
    let file = HostFile::create_new(image)?;
    // Inodes of 512 bytes, names, and a journal.
    file.set_len((1 << 30) + entries * 700)?;
    let mut mkfs = Command::new(format!("mkfs.{kind}"));
    match kind {
        "ext4" => {
            let inodes = entries + entries / 10 + 10_000;
            mkfs.args(["-q", "-F", "-m", "0", "-N", &inodes.to_string()])
        }
        _ => mkfs.args(["-q", "-f", "-i", "maxpct=90"]),
    };
    run(mkfs.arg(image))
}
