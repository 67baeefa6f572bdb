//! A directory that is being changed: [`Locked`].

use crate::attr::{FileType, InodeFlags};
use crate::call::Called;
use crate::context::{Context, VfsPath};
use crate::dentry::{
    Ask, CachedName, Checked, Dcache, Dentry, DentryRef, Flags, FoundIn, NameHash, Unspliced,
    Validity,
};
use crate::error::{Error, Result};
use crate::filesystem::{Caller, FileSystem, Freshness};
use crate::name::Name;
use crate::permission::{Access, Caps};
use crate::super_block::SuperBlock;
use crate::target::Target;
use crate::vfs::Vfs;
use crate::vfs_inode::{DEAD_DIR, Inode, InodeLock, InodeRef};
use crate::walk::LookupFlags;

/// A directory locked exclusively, for a change.
pub(crate) struct Locked<'a> {
    pub(super) vfs: &'a Vfs,
    pub(super) ctx: &'a Context,
    pub(super) path: &'a VfsPath,
    pub(crate) inode: &'a InodeRef,
    /// The other directory, which is locked as well. Then the caller holds the rename mutex.
    beside: Option<&'a InodeRef>,
    _exclusive: InodeLock<'a>,
}

/// A name in a locked directory, and the inode it refers to.
pub(crate) struct LastName<'n> {
    pub(crate) name: NameHash<'n>,
    /// `None` only if the name is missing.
    pub(super) dentry: Option<DentryRef>,
    pub(crate) inode: Option<InodeRef>,
    /// Taken before the back end was asked: its answer may be older than its arrival.
    pub(super) validity: Validity,
    dcache: &'n Dcache,
}

impl Drop for LastName<'_> {
    fn drop(&mut self) {
        if let Some(dentry) = self.dentry.take() {
            self.dcache.put(dentry);
        }
    }
}

/// True for an error by which a back end may refuse to make a name because it exists. After any
/// other one the name is not looked up: it may be what the call has made half-way.
pub(crate) fn may_exist(refusal: &Error) -> bool {
    use Error::{Exists, NotPermitted, NotSupported, PermissionDenied, ReadOnly};
    matches!(
        refusal,
        Exists | NotPermitted | PermissionDenied | ReadOnly | NotSupported
    )
}

impl Unspliced {
    /// For a change, which can only begin again; `reval`, if it has.
    fn error(self, reval: bool) -> Error {
        match self {
            Unspliced::Loop if reval => Error::TooManySymlinks,
            Unspliced::Loop | Unspliced::Busy(_) => Error::Stale,
        }
    }
}

impl<'a> Locked<'a> {
    pub(crate) fn new(vfs: &'a Vfs, ctx: &'a Context, path: &'a VfsPath) -> Locked<'a> {
        Self::lock(vfs, ctx, path, false)
    }

    /// Like [`new`](Self::new), for a caller that has locked a directory: does not wait. `None`
    /// if another thread has this one locked.
    pub(super) fn try_new(vfs: &'a Vfs, ctx: &'a Context, path: &'a VfsPath) -> Option<Locked<'a>> {
        let inode = path.inode_held();
        let guard = inode.try_lock_out_of_order()?;
        Some(Self::with(vfs, ctx, path, guard))
    }

    /// Locks both directories of a rename between two, for a caller that holds the rename mutex.
    #[doc(alias = "lock_rename")]
    pub(super) fn pair(
        vfs: &'a Vfs,
        ctx: &'a Context,
        (a, b): (&'a VfsPath, &'a VfsPath),
    ) -> (Locked<'a>, Locked<'a>) {
        // By inode: two names of a directory, of which one was dropped from the cache,
        // have the same lock.
        let (a_inode, b_inode) = (a.inode_held(), b.inode_held());
        let dcache = &vfs.ns().caches.dcache;
        let a_first = if dcache.is_subdir(b.dentry(), a_inode) {
            true
        } else if dcache.is_subdir(a.dentry(), b_inode) {
            false
        } else {
            a_inode.shared().address() < b_inode.shared().address()
        };
        let (mut a, mut b) = if a_first {
            let a = Self::lock(vfs, ctx, a, false);
            (a, Self::lock(vfs, ctx, b, true))
        } else {
            let b = Self::lock(vfs, ctx, b, false);
            (Self::lock(vfs, ctx, a, true), b)
        };
        (a.beside, b.beside) = (Some(b_inode), Some(a_inode));
        (a, b)
    }

    fn lock(vfs: &'a Vfs, ctx: &'a Context, path: &'a VfsPath, nested: bool) -> Locked<'a> {
        let inode = path.inode_held();
        let guard = if nested {
            inode.lock_nested()
        } else {
            inode.lock()
        };
        Self::with(vfs, ctx, path, guard)
    }

    fn with(vfs: &'a Vfs, ctx: &'a Context, path: &'a VfsPath, guard: InodeLock<'a>) -> Locked<'a> {
        Locked {
            vfs,
            ctx,
            path,
            inode: path.inode_held(),
            beside: None,
            _exclusive: guard,
        }
    }

    pub(super) fn sb(&self) -> &'a SuperBlock {
        &self.path.mnt().sb
    }

    pub(super) fn fs(&self) -> Called<'a, dyn FileSystem> {
        self.sb().fs()
    }

    /// For the back end.
    pub(crate) fn caller(&self) -> Caller<'a> {
        self.target().caller()
    }

    /// The directory, and the credentials of the caller.
    pub(crate) fn target(&self) -> Target<'a> {
        Target::new(self.path, self.ctx.credentials())
    }

    /// The locks that a splice may rely on.
    fn found_in(&self) -> FoundIn<'a> {
        FoundIn {
            sb: self.sb(),
            dir: self.path.dentry(),
            dir_inode: self.inode,
            beside: self.beside,
            alone: self.beside.is_some(),
        }
    }

    /// Finds a name in the directory, with its inode. With the directory locked no lookup of
    /// the name is in progress, and its inode does not change. A missing name is not cached: as
    /// a rule the caller is about to create it. A removed directory has no names.
    #[doc(alias = "lookup_one_qstr_excl")]
    pub(crate) fn find<'n>(&self, name: &'n [u8], flags: LookupFlags) -> Result<LastName<'n>>
    where
        'a: 'n,
    {
        self.find_if(name, false)?.map_err(|unspliced| {
            let reval = flags.contains(LookupFlags::REVAL);
            unspliced.error(reval)
        })
    }

    /// Like [`find`](Self::find), for a name that the caller makes.
    ///
    /// # Errors
    /// [`Error::Exists`] if it is there.
    fn find_missing<'n>(&self, name: &'n [u8], flags: LookupFlags) -> Result<LastName<'n>>
    where
        'a: 'n,
    {
        match self.find_if(name, false)? {
            Ok(last) if last.inode.is_none() => Ok(last),
            Err(Unspliced::Loop) => Err(Unspliced::Loop.error(flags.contains(LookupFlags::REVAL))),
            Ok(_) | Err(Unspliced::Busy(_)) => Err(Error::Exists),
        }
    }

    /// Like [`find`](Self::find), for a name that the caller removes. The back end checks the
    /// name itself on removal, so a fresh one is not revalidated first, except after
    /// [`Error::Stale`] (`REVAL`).
    pub(super) fn find_victim<'n>(&self, name: &'n [u8], flags: LookupFlags) -> Result<LastName<'n>>
    where
        'a: 'n,
    {
        let reval = flags.contains(LookupFlags::REVAL);
        let found = self.find_if(name, !reval)?;
        found.map_err(|unspliced| unspliced.error(reval))
    }

    fn find_if<'n>(
        &self,
        name: &'n [u8],
        accepts_fresh: bool,
    ) -> Result<std::result::Result<LastName<'n>, Unspliced>>
    where
        'a: 'n,
    {
        // Here and not in `lock`: of two directories, errors about the first one's name come
        // first.
        if self.inode.shared().has(DEAD_DIR) {
            return Err(Error::NotFound);
        }
        let name = Name::new(name)?;
        let dcache = &self.vfs.ns().caches.dcache;
        let hash = dcache.name(name);
        let validity = self.sb().validity(Some(self.inode));
        if let Some(dentry) = dcache.d_lookup(self.path.dentry(), &hash) {
            let last = LastName {
                name: hash,
                inode: dentry.inode_ref(),
                dentry: Some(dentry),
                validity,
                dcache,
            };
            if self.is_valid(&last, accepts_fresh)? {
                return Ok(Ok(last));
            }
        }
        let inode = self.fs().lookup(self.sb(), self.inode, name)?;
        if inode.is_some()
            && let Some(listing) = self.inode.listing()
        {
            listing.found(name.as_bytes());
        }
        let dentry = match &inode {
            Some(found) => {
                match dcache.d_splice(&self.found_in(), &hash, Some(found.clone()), validity) {
                    Ok(dentry) => Some(dentry),
                    Err(unspliced) => return Ok(Err(unspliced)),
                }
            }
            None => None,
        };
        Ok(Ok(LastName {
            name: hash,
            dentry,
            inode,
            validity,
            dcache,
        }))
    }

    /// Makes a name that is missing. `may` is the caller's right to, with all errors that a name
    /// which exists takes precedence over.
    ///
    /// The back end is asked once if the cache knows no file of that name: it refuses if there is
    /// one. It [is looked up](may_exist) then: the cache learns of it, and a server may refuse for
    /// want of rights before it looks for the name itself.
    ///
    /// # Errors
    /// [`Error::Exists`]; those of `may` and `make`.
    #[doc(alias("filename_create", "LOOKUP_EXCL"))]
    pub(super) fn with_missing<W, R>(
        &self,
        (name, flags): (&[u8], LookupFlags),
        may: impl FnOnce() -> Result<W>,
        make: impl FnOnce(&LastName<'_>) -> Result<R>,
    ) -> Result<R> {
        let may = may();
        let presumes = may.is_ok() && !flags.contains(LookupFlags::REVAL);
        if presumes && let Some(last) = self.presume_missing(name)? {
            let made = make(&last);
            if made.as_ref().is_err_and(may_exist) {
                self.find_missing(name, flags)?;
            }
            return made;
        }
        let last = self.find_missing(name, flags)?;
        let _may = may?;
        make(&last)
    }

    /// Like [`find`](Self::find), for a name that the caller creates: presumes that the name is
    /// missing, if only the back end knows. `None` if the cache knows or has an existing name.
    /// The back end is asked to create it and refuses if it exists ([`Error::Exists`]), so one
    /// call settles both.
    #[doc(alias("nfs_lookup", "LOOKUP_EXCL"))]
    pub(crate) fn presume_missing<'n>(&self, name: &'n [u8]) -> Result<Option<LastName<'n>>>
    where
        'a: 'n,
    {
        if self.sb().freshness == Freshness::Always || self.inode.shared().has(DEAD_DIR) {
            return Ok(None);
        }
        let dcache = &self.vfs.ns().caches.dcache;
        let name = dcache.name(Name::new(name)?);
        let validity = self.sb().validity(Some(self.inode));
        let last = LastName {
            name,
            dentry: dcache.d_lookup(self.path.dentry(), &name),
            inode: None,
            validity,
            dcache,
        };
        let is_open_question = last.dentry.as_ref().is_none_or(|dentry| {
            dentry.inode_ref().is_none() && !dentry.flags().contains(Flags::INVALIDATED)
        });
        Ok(is_open_question.then_some(last))
    }

    /// Whether a cached name is valid for a change. A change needs a new answer of the back end.
    /// With `accepts_fresh`, an existing name need only be as fresh as for a walk.
    fn is_valid(&self, last: &LastName<'_>, accepts_fresh: bool) -> Result<bool> {
        let Some(dentry) = &last.dentry else {
            return Ok(false);
        };
        let is_there = last.inode.as_ref().is_some_and(InodeRef::is_hashed);
        let ask = match accepts_fresh && is_there {
            true => Ask::IfStale,
            false => Ask::Always,
        };
        let cached = CachedName {
            sb: self.sb(),
            dir: self.path.dentry(),
            dir_inode: self.inode,
            name: last.name,
            dentry,
        };
        Ok(cached.check_locked(ask)? == Checked::Valid)
    }

    /// Like [`find`](Self::find), with a negative dentry for a name that is missing.
    pub(super) fn find_or_add<'n>(&self, name: &'n [u8], flags: LookupFlags) -> Result<LastName<'n>>
    where
        'a: 'n,
    {
        let mut last = self.find(name, flags)?;
        if last.dentry.is_none() {
            let (dcache, dir) = (&self.vfs.ns().caches.dcache, self.path.dentry());
            last.dentry = Some(dcache.d_add(dir, &last.name, None, last.validity));
        }
        Ok(last)
    }

    /// Invalidates a name whose change has failed in the back end: the cache may be wrong about
    /// it, the change may be halfway, or the answer was lost. The next walk asks.
    #[doc(alias = "d_invalidate")]
    pub(super) fn invalidate(&self, last: &LastName<'_>) {
        if let Some(listing) = self.inode.listing() {
            listing.forget();
        }
        if let Some(dentry) = &last.dentry {
            self.vfs.ns().caches.dcache.d_invalidate(dentry);
        }
    }

    /// Makes a missing name refer to `inode`, which has just been created or linked.
    pub(crate) fn instantiate(&self, last: &LastName<'_>, inode: InodeRef) -> DentryRef {
        if let Some(listing) = self.inode.listing() {
            listing.added(last.name.name.as_bytes(), inode.inode_key().ino);
        }
        let caches = &self.vfs.ns().caches;
        let (dcache, at) = (&caches.dcache, self.found_in());
        let is_dir = inode.kind() == FileType::Directory;
        let dentry = match &last.dentry {
            Some(dentry) if is_dir => {
                dcache.instantiate_dir(&at, (dentry, &last.name), &inode, last.validity)
            }
            Some(dentry) => {
                dcache.d_instantiate(dentry, inode.clone(), last.validity);
                Ok(dentry.clone())
            }
            None => dcache.d_splice(&at, &last.name, Some(inode.clone()), last.validity),
        };
        caches.make_room();
        // If another process has moved the new directory and a walk has found it there already,
        // and it cannot move here at once, its dentry stays there (DENTRY-5): the next lookup
        // asks where it is.
        let elsewhere = || dcache.dentry_of_dir(&inode);
        let dentry = dentry.ok().or_else(elsewhere);
        dentry.unwrap_or_else(|| Dentry::uncached(at.dir.clone(), &last.name, inode))
    }

    /// Checks that the caller may create names in the directory: that takes write permission.
    #[doc(alias("may_o_create", "IS_DEADDIR"))]
    pub(crate) fn may_create(&self) -> Result<()> {
        self.target().may(Access::WRITE | Access::EXEC)
    }

    /// Checks that the caller may remove the name of `victim`: that takes write permission for
    /// the directory, and in a sticky one ownership.
    pub(super) fn may_delete(&self, victim: &Inode, as_dir: bool) -> Result<()> {
        self.may_create()?;
        let kept = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
        if self.inode.flags().contains(InodeFlags::APPEND)
            || self.is_sticky_for(victim)
            || victim.flags().intersects(kept)
        {
            return Err(Error::NotPermitted);
        }
        match (as_dir, victim.kind() == FileType::Directory) {
            (true, false) => Err(Error::NotADirectory),
            (false, true) => Err(Error::IsADirectory),
            _ => Ok(()),
        }
    }

    /// The error for a removal that a check refused, when the name may be outdated
    /// ([`find_victim`](Self::find_victim)): `Stale`, so that the operation revalidates and
    /// tries again.
    pub(super) fn refusal(&self, flags: LookupFlags, refusal: Error) -> Error {
        match self.sb().freshness {
            Freshness::Ttl(_) | Freshness::Watched if !flags.contains(LookupFlags::REVAL) => {
                Error::Stale
            }
            _ => refusal,
        }
    }

    #[doc(alias = "check_sticky")]
    fn is_sticky_for(&self, victim: &Inode) -> bool {
        let is = self.inode.protection();
        let who = self.ctx.credentials();
        is.mode() & 0o1000 != 0
            && who.uid != victim.protection().uid
            && who.uid != is.uid
            && !who.caps.contains(Caps::FOWNER)
    }
}
