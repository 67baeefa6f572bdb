//! Opening with `CREATE`, and files without a name.

use super::may::{do_open, may_open, to_write};
use super::{OpenFlags, OpenHow};
use crate::acl;
use crate::attr::FileType;
use crate::change::{LastName, Locked, Make, may_exist};
use crate::context::{Context, Start, VfsPath};
use crate::dentry::{Dentry, DentryRef};
use crate::error::{Error, Result};
use crate::file::File;
use crate::filesystem::{FileHandle, NewFile};
use crate::mount::Writing;
use crate::name::Name;
use crate::permission::Access;
use crate::target::Target;
use crate::vfs::Vfs;
use crate::vfs_inode::{InodeRef, LINKABLE};
use crate::walk::{LookupFlags, Parent, path_parentat};

/// The outcome for a last component that was not in the cache.
enum LookupOpen {
    Created(File),
    /// It exists after all.
    Found(DentryRef),
}

/// A file that has just been made.
struct Made {
    dentry: DentryRef,
    inode: InodeRef,
    handle: Box<dyn FileHandle>,
}

impl Made {
    /// Creates the file without a lookup, where that is as good; `None` if a lookup must come
    /// first.
    fn presumed(dir: &Locked<'_>, name: Name<'_>, how: &OpenHow) -> Result<Option<Made>> {
        if dir.may_create().is_err() {
            return Ok(None);
        }
        let Some(last) = dir.presume_missing(name.as_bytes())? else {
            return Ok(None);
        };
        match Made::new(dir, &last, how) {
            Ok(made) => Ok(Some(made)),
            Err(refusal) if may_exist(&refusal) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// # Errors
    /// [`Error::Exists`] if the back end has one of that name after all.
    fn new(dir: &Locked<'_>, last: &LastName<'_>, how: &OpenHow) -> Result<Made> {
        let flags = how.flags & OpenFlags::OF_BACK_END;
        let file = Make::new(FileType::Regular, how.mode);
        let (dentry, (inode, handle)) = dir.make(last, &file, |by, new| {
            let name = last.name.name;
            let (inode, handle) = by.sb.fs().create_open(by, dir.inode, name, new, flags)?;
            Ok((inode.clone(), (inode, handle)))
        })?;
        Ok(Made {
            dentry,
            inode,
            handle,
        })
    }

    /// Opens the new file. Its creator may use it as requested, whatever its mode.
    fn open(self, ctx: &Context, parent: &Parent<'_>, how: &OpenHow) -> Result<File> {
        let at = VfsPath::new(parent.dir.mnt().clone(), self.dentry, self.inode);
        let who = ctx.credentials();
        let flags = how.flags - OpenFlags::TRUNC;
        may_open(&Target::new(&at, who), Access::empty(), flags)?;
        let writing = to_write(&at, how.flags)?;
        Ok(File::new(at, how.flags, who, Some(self.handle), writing))
    }
}

impl Vfs {
    /// Opens the last component, or makes it. A link in the last place leads on to the
    /// last component of its target, which may be the one that is made.
    #[doc(alias("open_last_lookups", "O_CREAT"))]
    pub(super) fn open_or_create(
        &self,
        ctx: &Context,
        start: Start<'_>,
        how: &OpenHow,
    ) -> Result<File> {
        let request = self.request_at(
            ctx,
            start.place,
            start.path,
            how.lookup - LookupFlags::DIRECTORY,
        );
        let exclusive = how.flags.contains(OpenFlags::EXCL);
        let mut parent = path_parentat(&request)?;
        if how.lookup.contains(LookupFlags::REVAL) {
            parent.revalidate(&request);
        }
        loop {
            let name = parent.name(match exclusive {
                true => Error::Exists,
                false => Error::IsADirectory,
            })?;
            if parent.must_be_dir {
                return Err(Error::IsADirectory);
            }
            let name = Name::new(name)?;
            // A missing name is looked up with its directory locked; so is one that must not
            // exist.
            let cached = match exclusive {
                true => None,
                false => parent.cached(&request, name)?,
            };
            let last = match cached.filter(|dentry| dentry.inode_ref().is_some()) {
                Some(dentry) => LookupOpen::Found(dentry),
                None => self.lookup_open(ctx, &parent, name, how)?,
            };
            let at = match last {
                LookupOpen::Created(file) => return Ok(file),
                LookupOpen::Found(dentry) => parent.place(&request, dentry)?,
            };
            let is_link = at.inode().kind() == FileType::Symlink;
            if is_link && how.lookup.contains(LookupFlags::FOLLOW) {
                parent = parent.follow(&request, &at)?;
                continue;
            }
            if exclusive {
                return Err(Error::Exists);
            }
            return do_open(ctx, at, how.flags, Some(parent.protection));
        }
    }

    /// Looks at the last component with its directory locked, and makes it if it is
    /// missing. That it may not be made matters only then.
    #[doc(alias = "may_o_create")]
    fn lookup_open(
        &self,
        ctx: &Context,
        parent: &Parent<'_>,
        name: Name<'_>,
        how: &OpenHow,
    ) -> Result<LookupOpen> {
        let writing = Writing::new(&**parent.dir.mnt());
        let dir = Locked::new(self, ctx, &parent.dir);
        // After Stale, the back end must be asked.
        if writing.is_ok()
            && !how.lookup.contains(LookupFlags::REVAL)
            && let Some(made) = Made::presumed(&dir, name, how)?
        {
            drop(dir);
            return Ok(LookupOpen::Created(made.open(ctx, parent, how)?));
        }
        let last = dir.find(name.as_bytes(), how.lookup)?;
        if let Ok((dentry, _)) = last.found() {
            return Ok(LookupOpen::Found(dentry.clone()));
        }
        let _writing = writing?;
        dir.may_create()?;
        let made = match Made::new(&dir, &last, how) {
            // Another process has created it behind our back: open it.
            Err(Error::Exists) if !how.flags.contains(OpenFlags::EXCL) => Err(Error::Stale),
            made => made,
        }?;
        drop(dir);
        Ok(LookupOpen::Created(made.open(ctx, parent, how)?))
    }

    /// Makes a file without a name in the directory that `start` leads to, and opens it.
    #[doc(alias("do_tmpfile", "vfs_tmpfile", "O_TMPFILE"))]
    pub(super) fn open_tmpfile(
        &self,
        ctx: &Context,
        start: Start<'_>,
        how: &OpenHow,
    ) -> Result<File> {
        let dir = self.lookup_within(ctx, start, how.lookup)?;
        let target = Target::new(&dir, ctx.credentials());
        let _writing = target.want_write()?;
        target.may(Access::WRITE | Access::EXEC)?;
        let from = acl::inherit(&target, FileType::Regular, how.mode, ctx.umask())?;
        let new = NewFile {
            uid: ctx.credentials().uid,
            gid: from.gid,
            acl: from.acl.as_deref(),
            ..NewFile::new(FileType::Regular, from.mode)
        };
        let sb = target.sb();
        let inode = sb.fs().tmpfile(&target.caller(), dir.inode(), &new)?;
        // It goes when it is closed, unless it gets a name.
        inode.dont_cache();
        // No other thread can find it yet, so none links it before this flag is set.
        if !how.flags.contains(OpenFlags::EXCL) {
            inode.shared().set(LINKABLE);
        }
        let dentry = Dentry::nameless(sb.id(), inode.clone());
        let at = VfsPath::new(dir.mnt().clone(), dentry, inode);
        let target = Target::new(&at, ctx.credentials());
        may_open(&target, Access::empty(), how.flags - OpenFlags::TRUNC)?;
        let flags = how.flags & OpenFlags::OF_BACK_END;
        let handle = target.with_at(|at| sb.fs().open(&target.caller(), at, flags))?;
        let who = ctx.credentials();
        let writing = to_write(&at, how.flags)?;
        Ok(File::new(at.clone(), how.flags, who, Some(handle), writing))
    }
}
