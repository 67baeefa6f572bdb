//! The two sides: memfs in this process, and tmpfs behind system calls.

use std::ffi::CString;

use rcuwalk::{Budget, Context, Credentials, FileType, LookupFlags, Vfs};
use rcuwalk_memfs::MemFs;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use tempfile::TempDir;

use super::ChangeError;

/// Where tmpfs is on most machines.
const SHM: &str = "/dev/shm";
/// What statfs(2) says about a tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// One of the two that are compared.
pub(super) trait Side: Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;

    /// Makes the directory at `path` and those above it, from the side's root, where they
    /// are missing, and holds it.
    fn dir(&self, path: &str) -> Result<Box<dyn Dir + '_>, ChangeError>;

    /// The number of walks that have left RCU so far; `None` for a side that does not count
    /// them.
    fn slow_walks(&self) -> Option<u64> {
        None
    }

    /// The number of inodes that have been evicted so far, if the side counts them.
    fn evictions(&self) -> Option<u64> {
        None
    }
}

/// A directory that is held. Names are components, or paths from here, with a NUL behind.
pub(super) trait Dir: Send {
    /// Makes an empty file.
    fn create(&self, name: &CString) -> Result<(), String>;
    /// Gives it another name.
    fn rename(&self, old: &CString, new: &CString) -> Result<(), String>;
    /// Removes it.
    fn unlink(&self, name: &CString) -> Result<(), String>;
    /// Whether there is something at `path`.
    fn stat(&self, path: &CString) -> Result<bool, String>;
    /// The names in it, in order.
    fn list(&self) -> Result<Vec<Vec<u8>>, String>;
}

/// memfs, through a `Vfs`.
pub(super) struct Memfs {
    name: &'static str,
    vfs: Vfs,
}

impl Memfs {
    pub(super) fn new() -> Result<Memfs, ChangeError> {
        Self::with_budget("memfs", Budget::default())
    }

    /// One that caches this many names and inodes only.
    pub(super) fn small(most: usize) -> Result<Memfs, ChangeError> {
        let budget = Budget::default().dentries(most).inodes(most);
        Self::with_budget("memfs, small cache", budget)
    }

    fn with_budget(name: &'static str, budget: Budget) -> Result<Memfs, ChangeError> {
        let vfs = Vfs::with_budget(MemFs::new(), budget);
        let vfs = vfs.map_err(|err| failed(name, "be mounted", &err))?;
        Ok(Memfs { name, vfs })
    }
}

impl Side for Memfs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn dir(&self, path: &str) -> Result<Box<dyn Dir + '_>, ChangeError> {
        let failed = |err| failed(self.name, "make a directory", &err);
        let ctx = self.vfs.context(Credentials::root());
        for path in all_above(path).filter(|path| !path.is_empty()) {
            match self.vfs.mkdir(&ctx, path, 0o755) {
                Ok(_) | Err(rcuwalk::Error::Exists) => {}
                Err(err) => return Err(failed(err)),
            }
        }
        let dir = self
            .vfs
            .lookup(&ctx, format!("/{path}"), LookupFlags::DIRECTORY);
        let ctx = ctx.with_cwd(dir.map_err(failed)?);
        Ok(Box::new(MemDir {
            vfs: &self.vfs,
            ctx,
        }))
    }

    fn slow_walks(&self) -> Option<u64> {
        let statistics = self.vfs.statistics();
        let given_up = statistics.unlazied.iter().chain(&statistics.restarts);
        Some(given_up.sum())
    }

    fn evictions(&self) -> Option<u64> {
        Some(self.vfs.statistics().inodes_evicted)
    }
}

struct MemDir<'a> {
    vfs: &'a Vfs,
    ctx: Context,
}

impl Dir for MemDir<'_> {
    fn create(&self, name: &CString) -> Result<(), String> {
        let made = self.vfs.create(&self.ctx, name.as_bytes(), 0o644);
        made.map(drop).map_err(|err| err.to_string())
    }

    fn rename(&self, old: &CString, new: &CString) -> Result<(), String> {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        let renamed = self.vfs.rename(&self.ctx, old, new);
        renamed.map_err(|err| err.to_string())
    }

    fn unlink(&self, name: &CString) -> Result<(), String> {
        let removed = self.vfs.unlink(&self.ctx, name.as_bytes());
        removed.map_err(|err| err.to_string())
    }

    fn stat(&self, path: &CString) -> Result<bool, String> {
        match self
            .vfs
            .stat(&self.ctx, path.as_bytes(), LookupFlags::FOLLOW)
        {
            Ok(attr) => Ok(attr.kind == FileType::Regular),
            Err(rcuwalk::Error::NotFound) => Ok(false),
            Err(err) => Err(err.to_string()),
        }
    }

    fn list(&self) -> Result<Vec<Vec<u8>>, String> {
        let listing = self.vfs.read_dir(&self.ctx, ".");
        let listing = listing.map_err(|err| err.to_string())?;
        let names = listing.map(|entry| entry.map(|entry| entry.name.into_vec()));
        let names: Result<Vec<_>, _> = names.collect();
        let mut names = names.map_err(|err| err.to_string())?;
        names.sort();
        Ok(names)
    }
}

/// A directory of a tmpfs, gone when it is dropped.
pub(super) struct Tmpfs {
    root: TempDir,
}

impl Tmpfs {
    pub(super) fn new() -> Result<Tmpfs, ChangeError> {
        let no_tmpfs = |why: &dyn ToString| ChangeError::NoTmpfs(why.to_string());
        let stat = rustix::fs::statfs(SHM).map_err(|err| no_tmpfs(&format!("{SHM}: {err}")))?;
        if stat.f_type as u64 != TMPFS_MAGIC {
            return Err(no_tmpfs(&format!("{SHM} is none")));
        }
        let root = tempfile::Builder::new()
            .prefix("rcuwalk-bench")
            .tempdir_in(SHM);
        let root = root.map_err(|err| no_tmpfs(&format!("{SHM}: {err}")))?;
        Ok(Tmpfs { root })
    }
}

impl Side for Tmpfs {
    fn name(&self) -> &'static str {
        "tmpfs"
    }

    fn dir(&self, path: &str) -> Result<Box<dyn Dir + '_>, ChangeError> {
        let failed = |err: &dyn ToString| ChangeError::Failed {
            side: "tmpfs",
            what: "make a directory",
            why: err.to_string(),
        };
        let path = self.root.path().join(path);
        std::fs::create_dir_all(&path).map_err(|err| failed(&err))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty());
        Ok(Box::new(TmpDir(fd.map_err(|err| failed(&err))?)))
    }
}

struct TmpDir(OwnedFd);

impl Dir for TmpDir {
    fn create(&self, name: &CString) -> Result<(), String> {
        let kind = rustix::fs::FileType::RegularFile;
        let made = rustix::fs::mknodat(&self.0, name, kind, Mode::from(0o644), 0);
        made.map_err(|err| err.to_string())
    }

    fn rename(&self, old: &CString, new: &CString) -> Result<(), String> {
        rustix::fs::renameat(&self.0, old, &self.0, new).map_err(|err| err.to_string())
    }

    fn unlink(&self, name: &CString) -> Result<(), String> {
        let removed = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
        removed.map_err(|err| err.to_string())
    }

    fn stat(&self, path: &CString) -> Result<bool, String> {
        match rustix::fs::statat(&self.0, path, AtFlags::empty()) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(err) => Err(err.to_string()),
        }
    }

    fn list(&self) -> Result<Vec<Vec<u8>>, String> {
        let dir = rustix::fs::Dir::read_from(&self.0).map_err(|err| err.to_string())?;
        let mut names = Vec::new();
        for entry in dir {
            let entry = entry.map_err(|err| err.to_string())?;
            let name = entry.file_name().to_bytes();
            if ![&b"."[..], b".."].contains(&name) {
                names.push(name.to_vec());
            }
        }
        names.sort();
        Ok(names)
    }
}

fn failed(side: &'static str, what: &'static str, why: &rcuwalk::Error) -> ChangeError {
    let why = why.to_string();
    ChangeError::Failed { side, what, why }
}

/// `a`, `a/b`, `a/b/c`.
fn all_above(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at);
    ends.chain([path.len()]).map(|end| &path[..end])
}
