//! Two readers of one image, asked the same: the kernel, through a mount, and ours,
//! through the caches of a [`Vfs`], by inode number, and as a scan.
//!
//! | read            | to learn                                                    |
//! |-----------------|-------------------------------------------------------------|
//! | `theirs.rs`     | the system calls that ask the kernel                        |
//! | `attributes.rs` | the results of stat(2), generation, flags                   |
//! | `directory.rs`  | listings, lookups, lookups of missing names                 |
//! | `contents.rs`   | the results of read(2) and readlink(2)                      |
//! | `xattrs.rs`     | names and values of extended attributes                     |
//! | `scanned.rs`    | that a scan delivers the same as the walk                   |
//!
//! The kernel's tree is walked; that ours has nothing more shows in the listings.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Debug, Write as _};
use std::path::Path;

use rcuwalk::{Attr, Context, Credentials, FileType, Timestamp, Vfs};
use rcuwalk_ext4::Ext4;

use rcuwalk_testkit::Rng;

mod attributes;
mod contents;
mod directory;
mod scanned;
mod theirs;
mod xattrs;

pub use theirs::below;

/// What the other side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The same image, mounted: everything must be equal.
    Mounted,
    /// The directory that mke2fs copied: the copies must be equal to it.
    Copied,
    /// Another copy of the same image, mounted no earlier than `at`. The kernel has
    /// finished what its list of orphans said was under way: of files that were being
    /// cut short, it has given space back, and they have changed just now.
    Recovered {
        /// By the clock of the host.
        at: Timestamp,
    },
}

/// Compares what `ext4` says with the kernel's view in the directory `top`.
///
/// # Errors
/// The differences, for a person to read.
pub fn compare(ext4: &Ext4, top: &Path, beside: Beside) -> Result<Coverage, Differences> {
    let mut differences = Differences::default();
    let vfs = match Vfs::new(ext4.clone()) {
        Ok(vfs) => vfs,
        Err(err) => {
            differences.note(b"", "the root directory", &"readable", &err);
            return Err(differences);
        }
    };
    let mut walk = Walk {
        top,
        beside,
        ext4,
        ctx: vfs.context(Credentials::root()),
        vfs,
        rng: Rng::derived(0xd1ff, 0),
        differences,
        coverage: Coverage::default(),
        inodes: HashSet::new(),
        walked: BTreeMap::new(),
    };
    walk.run();
    walk.scans();
    let Walk {
        differences,
        coverage,
        ..
    } = walk;
    if differences.count == 0 {
        Ok(coverage)
    } else {
        Err(differences)
    }
}

/// How much has been compared: a comparison of nothing must not pass for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Names.
    pub entries: usize,
    /// Directories with an index.
    pub indexed: usize,
    /// Inodes whose contents, or entries, are in the inode.
    pub inline: usize,
    /// Extended attributes.
    pub xattrs: usize,
    /// The most bytes in one of their values.
    pub longest_xattr: usize,
    /// Lookups of names that are not there.
    pub missing: usize,
    /// Bytes of contents.
    pub bytes: u64,
    /// Files that reach beyond 4 GiB.
    pub huge: usize,
    /// What neither could read.
    pub unreadable: usize,
}

/// What the two readers do not agree about.
#[derive(Default)]
pub struct Differences {
    text: String,
    count: usize,
    kinds: BTreeMap<String, usize>,
    /// Where ours, and it alone, gave an error.
    failures: usize,
}

impl Differences {
    fn note(&mut self, path: &[u8], what: &str, kernel: &dyn Debug, ours: &dyn Debug) {
        /// Of a kind: more are the same one again.
        const SHOWN: usize = 5;
        self.count += 1;
        let kind: String = what.chars().take_while(|c| !c.is_ascii_digit()).collect();
        let of_this_kind = self.kinds.entry(kind).or_default();
        *of_this_kind += 1;
        if *of_this_kind <= SHOWN {
            let path = path.escape_ascii();
            let _ = writeln!(
                self.text,
                "/{path}: {what}: kernel {kernel:.300?}, ours {ours:.300?}"
            );
        }
    }
}

impl Differences {
    /// True if they are all of one kind: the kernel answered, ours gave an error.
    pub fn are_failures(&self) -> bool {
        self.count == self.failures
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} differences {:?}\n{}",
            self.count, self.kinds, self.text
        )
    }
}

impl Debug for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Walk<'a> {
    /// Where the kernel's view is.
    top: &'a Path,
    beside: Beside,
    ext4: &'a Ext4,
    vfs: Vfs,
    ctx: Context,
    rng: Rng,
    differences: Differences,
    coverage: Coverage,
    /// Those whose contents and xattrs have been compared, under their first name.
    inodes: HashSet<u64>,
    /// What ours said of each path.
    walked: BTreeMap<Vec<u8>, scanned::EntryData>,
}

/// The inode number of the root, in every ext2 there is.
const ROOT: u32 = 2;

impl Walk<'_> {
    fn run(&mut self) {
        let mut directories = Vec::new();
        self.entry(b"", &mut directories);
        while let Some(path) = directories.pop() {
            for name in self.directory(&path) {
                let path = if path.is_empty() {
                    name
                } else {
                    [&path[..], b"/", &name].concat()
                };
                self.entry(&path, &mut directories);
            }
        }
    }

    /// Compares what `path` leads to; directories go onto the pile.
    fn entry(&mut self, path: &[u8], directories: &mut Vec<Vec<u8>>) {
        self.coverage.entries += 1;
        let Some(attr) = self.attributes(path) else {
            return;
        };
        if attr.kind == FileType::Directory {
            directories.push(path.to_vec());
        }
        if !self.inodes.insert(attr.ino) {
            return;
        }
        self.xattrs(path, &attr);
        match attr.kind {
            FileType::Regular => self.contents(path, &attr),
            FileType::Symlink => self.target(path, &attr),
            _ => {}
        }
    }

    /// `kernel` and `ours` should be equal.
    fn same<T: Debug + PartialEq>(&mut self, path: &[u8], what: &str, kernel: &T, ours: &T) {
        if kernel != ours {
            self.differences.note(path, what, kernel, ours);
        }
    }

    /// Both answers; of two errors, the words may differ.
    fn both<K: Debug, O: Debug>(
        &mut self,
        path: &[u8],
        what: &str,
        kernel: Result<K, impl Debug>,
        ours: Result<O, impl fmt::Display>,
    ) -> Option<(K, O)> {
        match (kernel, ours) {
            (Ok(kernel), Ok(ours)) => return Some((kernel, ours)),
            (Ok(_), Err(err)) => self.failed(path, what, &err),
            (Err(err), Ok(ours)) => self.differences.note(path, what, &err, &ours),
            (Err(_), Err(_)) => self.coverage.unreadable += 1,
        }
        None
    }

    /// Something ours could not answer and the kernel could.
    fn failed(&mut self, path: &[u8], what: &str, err: &dyn fmt::Display) {
        self.differences.failures += 1;
        self.differences
            .note(path, what, &"an answer", &err.to_string());
    }

    /// True for what only the image has, because mke2fs makes it.
    fn is_made(&self, path: &[u8]) -> bool {
        self.beside == Beside::Copied && path == b"lost+found"
    }
}

/// As the VFS takes it: from the root.
fn absolute(path: &[u8]) -> Vec<u8> {
    [b"/", path].concat()
}

/// The number as ext4 has it.
fn number(attr: &Attr) -> u32 {
    attr.ino as u32
}
