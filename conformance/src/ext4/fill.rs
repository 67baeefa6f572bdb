//! The contents of an image: every kind of thing a file system keeps, near every limit of the
//! format.
//!
//! Each part gets a directory of its own. What a file system cannot hold (a file too
//! big for ext2, an xattr too big without ea_inode) is left out: see `unless`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use rcuwalk_testkit::Rng;

mod directories;
mod files;
mod inodes;
mod xattrs;

/// The amount of contents.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Entries of the directory with many entries.
    pub entries: usize,
    /// Entries of the directory with names of 250 bytes, which fill an index fast.
    pub long_names: usize,
    /// Extents of the file with many extents.
    pub extents: usize,
    /// Pairs of names that the legacy hash gives one value.
    pub collisions: usize,
    /// Values that need an inode of their own, where there are such.
    pub big_xattrs: bool,
    /// Sparse files.
    pub holes: bool,
}

impl Contents {
    /// Everything once.
    pub const LITTLE: Contents = Contents {
        entries: 50,
        long_names: 30,
        extents: 20,
        collisions: 0,
        big_xattrs: true,
        holes: true,
    };
    /// Enough for an index with 1 KiB blocks and for extents in two levels.
    pub const USUAL: Contents = Contents {
        entries: 1_500,
        long_names: 450,
        extents: 400,
        collisions: 0,
        big_xattrs: true,
        holes: true,
    };
    /// For directories, looked up by hash.
    pub const HASHED: Contents = Contents {
        entries: 10_000,
        long_names: 1_000,
        extents: 20,
        collisions: 200,
        big_xattrs: true,
        holes: true,
    };
    /// What mke2fs can copy from a directory.
    pub const COPIED: Contents = Contents {
        big_xattrs: false,
        ..Contents::USUAL
    };
    /// Enough for two levels of index, and for three of extents, with 4 KiB blocks.
    pub const MUCH: Contents = Contents {
        entries: 10_000,
        long_names: 8_000,
        extents: 1_500,
        collisions: 0,
        big_xattrs: true,
        holes: true,
    };
}

/// Fills the empty file system mounted at `top`.
///
/// # Errors
/// What the kernel refuses and should not.
pub fn fill(top: &Path, contents: &Contents, seed: u64) -> Result<(), String> {
    type Part = fn(&Place<'_>) -> io::Result<()>;
    let parts: [(&str, Part); 12] = [
        ("names", directories::names),
        ("large", directories::large),
        ("long", directories::long),
        ("shapes", directories::shapes),
        ("collisions", directories::collisions),
        ("files", files::sizes),
        ("sparse", files::sparse),
        ("extents", files::extents),
        ("links", inodes::links),
        ("nodes", inodes::nodes),
        ("attributes", inodes::attributes),
        ("xattrs", xattrs::xattrs),
    ];
    for (index, (name, part)) in parts.into_iter().enumerate() {
        let place = Place {
            top: top.join(name),
            contents,
            rng: Rng::derived(seed, index as u64),
            block_size: rustix::fs::statvfs(top).map_or(4096, |fs| fs.f_bsize),
        };
        fs::create_dir(&place.top)
            .and_then(|()| part(&place))
            .map_err(|err| format!("filling {}: {err}", place.top.display()))?;
    }
    Ok(())
}

/// The directory of a part, and its settings.
struct Place<'a> {
    top: PathBuf,
    contents: &'a Contents,
    rng: Rng,
    /// Of the file system, in bytes.
    block_size: u64,
}

impl Place<'_> {
    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.top.join(name)
    }
}

/// `done`, unless the file system cannot do it for one of these reasons.
fn unless(done: Result<(), Errno>, reasons: &[Errno]) -> io::Result<()> {
    match done {
        Err(errno) if !reasons.contains(&errno) => Err(errno.into()),
        _ => Ok(()),
    }
}

/// Bytes that do not compress into anything, and differ from file to file.
fn noise(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
