//! A contender: one directory, and a way to list it.

use std::fmt;
use std::hash::Hasher;
use std::path::{Path, PathBuf};

use rcuwalk::{Credentials, File, FileSystem, LookupFlags, OpenFlags, Vfs};

use super::ReaddirError;
use crate::dir;

/// One contender.
pub(super) struct Side {
    pub(super) contender: String,
    /// Whether listings are cached; `None` for the kernel.
    pub(super) cache: Option<bool>,
    /// Sides with the same number list the same files.
    pub(super) tree: usize,
    how: How,
}

enum How {
    Kernel(PathBuf),
    Ours { dir: File, vfs: Vfs },
}

/// What a listing contained, whatever the order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checksum {
    pub(super) entries: u64,
    /// Bytes of getdents64(2)'s records.
    pub(super) bytes: u64,
    pub(super) names: u64,
    pub(super) inodes: u64,
}

impl Side {
    pub(super) fn kernel(contender: impl Into<String>, tree: usize, dir: &Path) -> Side {
        Side {
            contender: contender.into(),
            cache: None,
            tree,
            how: How::Kernel(dir.into()),
        }
    }

    /// The directory `path` of a back end, with a cache that has room for its listing, or for
    /// none.
    pub(super) fn ours(
        contender: impl Into<String>,
        (tree, cache): (usize, bool),
        vfs: Vfs,
        path: &str,
    ) -> Result<Side, ReaddirError> {
        let contender = contender.into();
        let ctx = vfs.context(Credentials::root());
        let dir = vfs.open(&ctx, path, OpenFlags::READ);
        let dir = dir.map_err(|err| ReaddirError::failed(format!("open {contender}"))(&err))?;
        Ok(Side {
            contender,
            cache: Some(cache),
            tree,
            how: How::Ours { dir, vfs },
        })
    }

    /// Bytes of the cached listing with its index of names, for each of so many entries; `None` where
    /// none is cached. Has the index made, and shows in no time.
    pub(super) fn cached_bytes(&self, entries: u64) -> Option<f64> {
        let How::Ours { dir, vfs } = &self.how else {
            return None;
        };
        let here = vfs
            .context(Credentials::root())
            .with_cwd(dir.path().clone());
        // An error is the answer: there is no such name.
        let _ = vfs.stat(&here, "missing", LookupFlags::empty());
        let (_, bytes) = vfs.statistics().listings;
        (bytes > 0).then(|| bytes as f64 / entries.max(1) as f64)
    }

    /// Lists all, and returns how many entries there were.
    pub(super) fn list(&self) -> Result<u64, ReaddirError> {
        let (mut entries, mut inodes) = (0, 0_u64);
        self.each(|_, ino| {
            entries += 1;
            inodes ^= ino;
        })?;
        std::hint::black_box(inodes);
        Ok(entries)
    }

    pub(super) fn checksum(&self) -> Result<Checksum, ReaddirError> {
        let mut sum = Checksum::default();
        self.each(|name, ino| {
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(name);
            let of_name = hasher.finish();
            hasher.write_u64(ino);
            sum.entries += 1;
            sum.bytes += (name.len() as u64 + 20).next_multiple_of(8);
            // Whatever the order.
            sum.names = sum.names.wrapping_add(of_name);
            sum.inodes = sum.inodes.wrapping_add(hasher.finish());
        })?;
        Ok(sum)
    }

    #[inline]
    fn each(&self, mut entry: impl FnMut(&[u8], u64)) -> Result<(), ReaddirError> {
        let listed = match &self.how {
            How::Kernel(path) => dir::open(path).and_then(|dir| {
                dir::list_kernel(&dir, |name, ino| {
                    entry(name.to_bytes(), ino);
                    Ok(())
                })
            }),
            How::Ours { dir, .. } => dir::list_ours(dir, |name, ino| {
                entry(name, ino);
                Ok(())
            }),
        };
        listed.map_err(|err| ReaddirError::failed(format!("list {self}"))(&err))
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.contender)?;
        match self.cache {
            Some(true) => f.write_str(", cached"),
            Some(false) | None => Ok(()),
        }
    }
}

/// A mounted back end, with a cache of listings or without.
pub(super) fn vfs(fs: impl FileSystem, cache: bool) -> Result<Vfs, ReaddirError> {
    let room = if cache { 1 << 30 } else { 0 };
    let budget = rcuwalk::Budget::default().listings(room);
    Vfs::with_budget(fs, budget).map_err(|err| ReaddirError::failed("mount")(&err))
}
