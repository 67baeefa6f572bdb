//! A scratch directory of the host, mounted.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

pub(crate) mod back_end;
pub(crate) mod birthless;
pub(crate) mod levels;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcuwalk::{Context, Credentials, Freshness, LookupFlags, OpenFlags, Result, Vfs};
use rcuwalk_hostfs::HostFs;
pub(crate) use rcuwalk_testkit::{is_root, skip};

/// Long enough not to run out during a test.
pub(crate) const AN_HOUR: Freshness = Freshness::Ttl(Duration::from_secs(3600));

/// Each way to keep cached names up to date.
pub(crate) const EVERY_FRESHNESS: [Freshness; 4] = [
    Freshness::Always,
    AN_HOUR,
    Freshness::EachUse,
    Freshness::Watched,
];

/// A scratch directory with `root` and `outside` in it, `root` being mounted.
/// Removed when dropped.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    pub(crate) vfs: Vfs,
    pub(crate) ctx: Context,
}

impl Scratch {
    /// Filled by `fill`, which gets the root's path on the host, before it is mounted.
    pub(crate) fn new(freshness: Freshness, fill: impl FnOnce(&Path)) -> Scratch {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        fill(&root);
        let vfs = Vfs::new(HostFs::new(&root).unwrap().with_freshness(freshness)).unwrap();
        let ctx = vfs.context(Credentials::root());
        Scratch { dir, vfs, ctx }
    }

    /// A path below the mounted root, as the host sees it.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    /// A path beside the mounted root.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.dir.path().join("outside").join(path)
    }

    pub(crate) fn stat(&self, path: &str) -> Result<rcuwalk::Attr> {
        self.vfs.stat(&self.ctx, path, LookupFlags::FOLLOW)
    }

    pub(crate) fn lstat(&self, path: &str) -> Result<rcuwalk::Attr> {
        self.vfs.stat(&self.ctx, path, LookupFlags::empty())
    }

    /// The contents of a file, read through the VFS.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.vfs.open(&self.ctx, path, OpenFlags::READ)?;
        let mut contents = Vec::new();
        let mut buf = [0; 512];
        loop {
            match file.read_at(&mut buf, contents.len() as u64)? {
                0 => return Ok(contents),
                n => contents.extend_from_slice(&buf[..n]),
            }
        }
    }

    /// The names in a directory, in order, duplicates kept.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>> {
        let entries = self.vfs.read_dir(&self.ctx, path)?;
        let mut names = entries
            .map(|entry| Ok(String::from_utf8(entry?.name.into_vec()).unwrap()))
            .collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }
}
