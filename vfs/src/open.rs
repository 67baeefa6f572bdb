//! Opening: what for, and how a path becomes an open file.
//!
//! | read              | to learn                                             |
//! |-------------------|------------------------------------------------------|
//! | this file         | the flags, which go together, and [`Vfs::open`]      |
//! | `open/create.rs`  | a last component that may not exist yet              |
//! | `open/may.rs`     | an existing file: permission checks                  |

mod create;
mod may;

use crate::context::{AsPath, Context, Start};
use crate::error::{Error, Result};
use crate::file::File;
use crate::permission::Access;
use crate::vfs::Vfs;
use crate::walk::LookupFlags;

bitflags::bitflags! {
    /// How a file is opened; the names are those of open(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// For reading.
        #[doc(alias("O_RDONLY", "FMODE_READ"))]
        const READ = 1;
        /// For writing.
        #[doc(alias("O_WRONLY", "FMODE_WRITE"))]
        const WRITE = 2;
        /// Every write goes to the end.
        #[doc(alias = "O_APPEND")]
        const APPEND = 4;
        /// Make it if it is missing.
        #[doc(alias = "O_CREAT")]
        const CREATE = 8;
        /// With `CREATE`: fail if it is there.
        #[doc(alias = "O_EXCL")]
        const EXCL = 16;
        /// Drop its contents.
        #[doc(alias = "O_TRUNC")]
        const TRUNC = 32;
        /// Fail if the last component is a symbolic link.
        #[doc(alias = "O_NOFOLLOW")]
        const NOFOLLOW = 64;
        /// Fail unless it is a directory.
        #[doc(alias = "O_DIRECTORY")]
        const DIRECTORY = 128;
        /// Only hold the path: nothing can be read or written, and no permission on the file is
        /// needed.
        #[doc(alias = "O_PATH")]
        const PATH = 256;
        /// Make a file without a name in the directory that the path leads to.
        #[doc(alias = "O_TMPFILE")]
        const TMPFILE = 512;
        /// Reading leaves the time of the last access alone; for owners.
        #[doc(alias = "O_NOATIME")]
        const NOATIME = 1024;
        /// A write returns when it is safe.
        #[doc(alias = "O_SYNC")]
        const SYNC = 2048;
        /// A write returns when its data are safe.
        #[doc(alias = "O_DSYNC")]
        const DSYNC = 4096;
        /// With `READ`: to be executed. That takes the right to execute the file, and not the
        /// one to read it.
        #[doc(alias = "FMODE_EXEC")]
        const EXEC = 8192;
    }
}

impl OpenFlags {
    /// The flags that apply to opening as a path.
    const OF_PLACE: OpenFlags = OpenFlags::PATH
        .union(OpenFlags::DIRECTORY)
        .union(OpenFlags::NOFOLLOW);

    /// The flags that a back end gets.
    const OF_BACK_END: OpenFlags = OpenFlags::READ
        .union(OpenFlags::WRITE)
        .union(OpenFlags::APPEND)
        .union(OpenFlags::SYNC)
        .union(OpenFlags::DSYNC)
        .union(OpenFlags::EXEC);

    /// The flags that change something before the file is open.
    const CHANGES: OpenFlags = OpenFlags::CREATE
        .union(OpenFlags::TRUNC)
        .union(OpenFlags::TMPFILE);

    /// The rights it takes on a file that is there.
    #[doc(alias = "ACC_MODE")]
    fn access(self) -> Access {
        let mut access = Access::empty();
        let executes = self.contains(OpenFlags::EXEC);
        access.set(Access::READ, self.contains(OpenFlags::READ) && !executes);
        access.set(Access::EXEC, executes);
        access.set(
            Access::WRITE,
            self.intersects(OpenFlags::WRITE | OpenFlags::TRUNC),
        );
        access
    }

    /// With the permission bits that a new file gets; the context's umask is taken off.
    pub fn mode(self, mode: u16) -> OpenHow {
        OpenHow {
            mode,
            ..self.into()
        }
    }
}

/// How to open a file: flags, mode, and how its path is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "struct open_how")]
pub struct OpenHow {
    /// Access mode, creation and the like.
    pub flags: OpenFlags,
    /// Permission bits of a new file.
    pub mode: u16,
    /// How the path is resolved. A link in the last place is followed unless `flags` say
    /// otherwise.
    pub lookup: LookupFlags,
}

impl OpenHow {
    /// With the path resolved in this way besides.
    pub fn resolve(self, lookup: LookupFlags) -> OpenHow {
        OpenHow {
            lookup: self.lookup | lookup,
            ..self
        }
    }

    /// Checks that the flags go together, and removes those without effect.
    #[doc(alias("build_open_how", "build_open_flags"))]
    fn build(mut self) -> Result<OpenHow> {
        use OpenFlags as Open;
        self.mode &= 0o7777;
        if self.lookup.contains(LookupFlags::DIRECTORY) {
            self.flags |= Open::DIRECTORY;
        }
        if self.flags.contains(Open::PATH) {
            self.flags &= Open::OF_PLACE;
        } else if !self.flags.intersects(Open::READ | Open::WRITE) {
            return Err(Error::Invalid);
        }
        if self.flags.contains(Open::TMPFILE) {
            self.flags |= Open::DIRECTORY;
            if !self.flags.contains(Open::WRITE) {
                return Err(Error::Invalid);
            }
        }
        if self.flags.contains(Open::CREATE | Open::DIRECTORY) {
            return Err(Error::Invalid);
        }
        if self.flags.contains(Open::SYNC) {
            self.flags |= Open::DSYNC;
        }
        if self.flags.contains(Open::CREATE | Open::EXCL) {
            self.flags |= Open::NOFOLLOW;
        }
        if self.flags.intersects(Open::CHANGES) && self.lookup.contains(LookupFlags::CACHED) {
            return Err(Error::WouldBlock);
        }
        let (follow, directory) = (
            !self.flags.contains(Open::NOFOLLOW),
            self.flags.contains(Open::DIRECTORY),
        );
        self.lookup.set(LookupFlags::FOLLOW, follow);
        self.lookup.set(LookupFlags::DIRECTORY, directory);
        Ok(self)
    }
}

impl From<OpenFlags> for OpenHow {
    fn from(flags: OpenFlags) -> OpenHow {
        OpenHow {
            flags,
            mode: 0,
            lookup: LookupFlags::default(),
        }
    }
}

impl Vfs {
    /// Opens what `path` leads to: a file, or a directory to be listed; with
    /// [`OpenFlags::CREATE`] it is made if it is missing.
    ///
    /// With [`LookupFlags::CACHED`] the walk does not block; opening may. Pipes, sockets and
    /// devices can only be opened as a path ([`OpenFlags::PATH`]): there is no driver or peer
    /// behind them.
    ///
    /// # Errors
    /// See [`Vfs`]. [`Error::Invalid`] for flags that do not go together: neither reading nor
    /// writing, `CREATE` of a directory, `TMPFILE` without writing. [`Error::Exists`],
    /// [`Error::IsADirectory`] for writing or making one, [`Error::TooManySymlinks`] for a link
    /// with `NOFOLLOW`, [`Error::NoSuchDevice`] for a pipe, socket or device,
    /// [`Error::NotPermitted`] for an append-only file without `APPEND`, and for `NOATIME` by a
    /// caller other than the owner; [`Error::ReadOnly`].
    #[doc(alias("openat2(2)", "do_filp_open", "path_openat"))]
    pub fn open(&self, ctx: &Context, path: impl AsPath, how: impl Into<OpenHow>) -> Result<File> {
        let how = how.into().build()?;
        let start = self.start(ctx, &path)?;
        // If the name refers to another file by now, the back end is asked.
        self.retry(ctx, |reval| self.open_once(ctx, start, &how.resolve(reval)))
    }

    fn open_once(&self, ctx: &Context, start: Start<'_>, how: &OpenHow) -> Result<File> {
        if how.flags.contains(OpenFlags::TMPFILE) {
            return self.open_tmpfile(ctx, start, how);
        }
        if how.flags.contains(OpenFlags::CREATE) {
            return self.open_or_create(ctx, start, how);
        }
        let at = self.lookup_within(ctx, start, how.lookup)?;
        may::do_open(ctx, at, how.flags, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-1: flags as build_open_flags() in fs/open.c has them.
    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        use OpenFlags as Open;
        let build = |flags: OpenFlags| OpenHow::from(flags).build().map(|how| how.flags);
        for flags in [
            Open::empty(),
            Open::CREATE,
            Open::READ | Open::CREATE | Open::DIRECTORY,
            Open::READ | Open::TMPFILE,
            Open::WRITE | Open::TMPFILE | Open::CREATE,
        ] {
            let built = build(flags);
            assert!(matches!(built, Err(Error::Invalid)), "EDGE-1: {flags:?}");
        }
        let all = build(Open::all()).unwrap();
        assert_eq!(all, Open::OF_PLACE, "EDGE-1: O_PATH masks the others");
        let sync = build(Open::WRITE | Open::SYNC).unwrap();
        assert!(sync.contains(Open::DSYNC), "EDGE-1");
        for flags in [Open::CREATE, Open::TRUNC, Open::TMPFILE] {
            let how = OpenHow::from(Open::WRITE | flags).resolve(LookupFlags::CACHED);
            let built = how.build();
            assert!(matches!(built, Err(Error::WouldBlock)), "EDGE-1: {flags:?}");
        }
    }
}
