//! A name for another one, or two for each other.

use super::locked::{LastName, Locked};
use super::remove::is_mountpoint;
use super::victim::{Attempt, Victim, with_victim};
use crate::acl::{self, Inherited};
use crate::attr::FileType;
use crate::context::{Context, VfsPath};
use crate::dentry::DentryRef;
use crate::error::{Error, Result};
use crate::filesystem::{NewFile, Rename, RenameFlags};
use crate::mount::Writing;
use crate::permission::Access;
use crate::target::Target;
use crate::vfs::Vfs;
use crate::vfs_inode::{DEAD_DIR, InodeLock, InodeRef};
use crate::walk::{LookupFlags, Parent};

impl Vfs {
    #[doc(alias = "do_renameat2")]
    pub(super) fn rename_names(
        &self,
        ctx: &Context,
        old: (&VfsPath, &[u8]),
        new: (&VfsPath, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let not_in_exchange = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        let contradictory =
            flags.contains(RenameFlags::EXCHANGE) && flags.intersects(not_in_exchange);
        if contradictory || !RenameFlags::all().contains(flags) {
            return Err(Error::Invalid);
        }
        self.retry(ctx, |reval| {
            let from = self.parent_of(ctx, old, reval)?;
            let to = self.parent_of(ctx, new, reval)?;
            self.rename_in(ctx, &from, &to, (flags, reval))
        })
    }

    fn rename_in(
        &self,
        ctx: &Context,
        from: &Parent<'_>,
        to: &Parent<'_>,
        (flags, reval): (RenameFlags, LookupFlags),
    ) -> Result<()> {
        let mnt = from.dir.mnt();
        if !mnt.is(to.dir.mnt()) {
            return Err(Error::CrossDevice);
        }
        let from_name = from.name(Error::Busy)?;
        let to_name = to.name(if flags.contains(RenameFlags::NOREPLACE) {
            Error::Exists
        } else {
            Error::Busy
        })?;
        let _writing = Writing::new(&**mnt)?;
        let names = ((from_name, from.must_be_dir), (to_name, to.must_be_dir));
        if !InodeRef::ptr_eq(from.dir.inode_held(), to.dir.inode_held()) {
            let _one_at_a_time = mnt.sb.rename_mutex.lock();
            let (from_dir, to_dir) = Locked::pair(self, ctx, (&from.dir, &to.dir));
            let renaming = Renaming {
                from_dir: &from_dir,
                to_dir: &to_dir,
                flags,
                reval,
                across: true,
            };
            return renaming.rename(names, Victim::none()).map(drop);
        }
        with_victim(|victim| {
            let Some(dir) = victim.lock_dir(self, ctx, &from.dir) else {
                return Ok(Attempt::Contended(None));
            };
            let renaming = Renaming {
                from_dir: &dir,
                to_dir: &dir,
                flags,
                reval,
                across: false,
            };
            renaming.rename(names, victim)
        })
    }
}

/// A rename whose directories are locked.
struct Renaming<'r, 'a> {
    from_dir: &'r Locked<'a>,
    to_dir: &'r Locked<'a>,
    flags: RenameFlags,
    /// `REVAL` in the second attempt.
    reval: LookupFlags,
    /// Between two directories: the super block's rename mutex is held.
    across: bool,
}

/// The last component of a path, and whether a slash follows it.
type Component<'n> = (&'n [u8], bool);

type Guards<'l> = [Option<InodeLock<'l>>; 2];

/// The file that is moved, and the one that has its new name.
struct Pair<'l> {
    moved: &'l InodeRef,
    moves_dir: bool,
    replaced: Option<&'l InodeRef>,
    replaces_dir: bool,
}

impl Renaming<'_, '_> {
    fn rename(
        &self,
        (from, to): (Component<'_>, Component<'_>),
        victim: Victim<'_>,
    ) -> Result<Attempt> {
        let source = self.from_dir.find(from.0, self.reval)?;
        let (from_dentry, moved) = source.found()?;
        let target = self.to_dir.find_or_add(to.0, self.reval)?;
        let to_dentry = target.dentry.as_ref().ok_or(Error::NotFound)?;
        let replaced = target.inode.as_ref();
        let pair = Pair {
            moved,
            moves_dir: is_dir(moved),
            replaced,
            replaces_dir: replaced.is_some_and(is_dir),
        };
        self.check_names(&pair, from.1, to.1)?;
        if replaced.is_some_and(|inode| InodeRef::ptr_eq(inode, moved)) {
            // Two names of one file: there is nothing to do.
            return Ok(Attempt::Done);
        }
        self.check_rights(&pair, &source, &target)?;
        let Some(_locked) = self.lock_both(&pair, victim) else {
            return Ok(Attempt::Contended(replaced.cloned()));
        };
        if is_mountpoint(from_dentry) || is_mountpoint(to_dentry) {
            return Err(Error::Busy);
        }
        let left = self.whiteout()?;
        let whiteout = left.as_ref().map(|left| NewFile {
            uid: self.from_dir.caller().credentials.uid,
            gid: left.gid,
            acl: left.acl.as_deref(),
            ..NewFile::new(FileType::CharDevice, left.mode)
        });
        let how = Rename {
            from: (self.from_dir.inode, source.name.name),
            to: (self.to_dir.inode, target.name.name),
            moved,
            replaced: replaced.map(|inode| &**inode),
            flags: self.flags,
            whiteout: whiteout.as_ref(),
        };
        let lived = replaced.is_some_and(|inode| inode.nlink() > 0);
        let by = self.from_dir.caller();
        let done = self.from_dir.fs().rename(&by, &how);
        done.inspect_err(|_| {
            self.from_dir.invalidate(&source);
            self.to_dir.invalidate(&target);
            if let Some(inode) = replaced {
                self.to_dir.not_removed(&target, inode, lived);
            }
        })?;
        self.renamed(&pair, &source, &target, (from_dentry, to_dentry));
        Ok(Attempt::Done)
    }

    /// The attributes that a whiteout inherits from its directory, as every new file does.
    #[doc(alias("shmem_whiteout", "ext4_whiteout_for_rename"))]
    fn whiteout(&self) -> Result<Option<Inherited>> {
        if !self.flags.contains(RenameFlags::WHITEOUT) {
            return Ok(None);
        }
        let (dir, umask) = (self.from_dir.target(), self.from_dir.ctx.umask());
        acl::inherit(&dir, FileType::CharDevice, 0, umask).map(Some)
    }

    fn is_exchange(&self) -> bool {
        self.flags.contains(RenameFlags::EXCHANGE)
    }

    /// Checks the two names and their slashes, before any permission.
    fn check_names(&self, pair: &Pair<'_>, from_slash: bool, to_slash: bool) -> Result<()> {
        let exchange = self.is_exchange();
        match pair.replaced {
            None if exchange => return Err(Error::NotFound),
            Some(_) if self.flags.contains(RenameFlags::NOREPLACE) => return Err(Error::Exists),
            _ => {}
        }
        let slash_behind_file = match exchange {
            true => !pair.replaces_dir && to_slash || !pair.moves_dir && from_slash,
            false => !pair.moves_dir && (from_slash || to_slash),
        };
        if slash_behind_file {
            return Err(Error::NotADirectory);
        }
        // The source must not be above its new parent, nor the target above its old one. In one
        // directory neither can be, and the rename mutex that keeps the directories above in
        // place is not held.
        if !self.across {
            return Ok(());
        }
        let dcache = &self.from_dir.vfs.ns().caches.dcache;
        if pair.moves_dir && dcache.is_subdir(self.to_dir.path.dentry(), pair.moved) {
            return Err(Error::Invalid);
        }
        let above = |target| dcache.is_subdir(self.from_dir.path.dentry(), target);
        match pair.replaced {
            Some(target) if pair.replaces_dir && above(target) && exchange => Err(Error::Invalid),
            Some(target) if pair.replaces_dir && above(target) => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    #[doc(alias = "vfs_rename")]
    fn check_rights(
        &self,
        pair: &Pair<'_>,
        source: &LastName<'_>,
        target: &LastName<'_>,
    ) -> Result<()> {
        self.from_dir.may_delete(pair.moved, pair.moves_dir)?;
        match pair.replaced {
            None => self.to_dir.may_create()?,
            Some(inode) => {
                let as_dir = match self.is_exchange() {
                    true => pair.replaces_dir,
                    false => pair.moves_dir,
                };
                self.to_dir.may_delete(inode, as_dir)?;
            }
        }
        // A directory whose parent changes gets a new `..`.
        if self.across && pair.moves_dir {
            self.may_write(source)?;
        }
        if self.across && pair.replaces_dir && self.is_exchange() {
            self.may_write(target)?;
        }
        Ok(())
    }

    fn may_write(&self, dir: &LastName<'_>) -> Result<()> {
        let (dentry, inode) = dir.found()?;
        let mnt = self.from_dir.path.mnt().clone();
        let dir = VfsPath::new(mnt, dentry.clone(), inode.clone());
        Target::new(&dir, self.from_dir.ctx.credentials()).may(Access::WRITE)
    }

    fn locks_target_dir(&self, pair: &Pair<'_>) -> bool {
        pair.replaces_dir && (self.across || !self.is_exchange())
    }

    /// Locks the file that is moved and the one that is replaced: directories first, two others
    /// by address. A directory that stays in its parent and is not removed is not locked. `None`
    /// if another thread has a directory locked that this one must not wait for.
    #[doc(alias = "lock_two_nondirectories")]
    fn lock_both<'l>(&self, pair: &Pair<'l>, victim: Victim<'l>) -> Option<Guards<'l>> {
        let source = (!pair.moves_dir || self.across).then_some(pair.moved);
        let target = pair
            .replaced
            .filter(|_| !pair.replaces_dir || self.locks_target_dir(pair));
        // In one directory: a directory that is replaced, or a file that one is exchanged with.
        if let (None, Some(only)) = (source, target) {
            return Some([victim.lock(only), None]).filter(|locked| locked[0].is_some());
        }
        let lock = |inode: Option<&'l InodeRef>| inode.map(|inode| inode.lock_nested());
        let target_first = match (source, target) {
            (Some(a), Some(b)) if pair.moves_dir == pair.replaces_dir => {
                b.shared().address() < a.shared().address()
            }
            _ => pair.replaces_dir,
        };
        if target_first {
            let target = lock(target);
            Some([target, lock(source)])
        } else {
            let source = lock(source);
            Some([source, lock(target)])
        }
    }

    /// Brings the cache in line.
    fn renamed(
        &self,
        pair: &Pair<'_>,
        source: &LastName<'_>,
        target: &LastName<'_>,
        (from, to): (&DentryRef, &DentryRef),
    ) {
        let dcache = &self.from_dir.vfs.ns().caches.dcache;
        // DENTRY-3: a cached listing has the new name before the old one goes.
        let (from_names, to_names) = (self.from_dir.inode.listing(), self.to_dir.inode.listing());
        if let Some(names) = to_names {
            // Also in place of another file: the listing may not have heard of that one.
            names.added(target.name.name.as_bytes(), pair.moved.inode_key().ino);
        }
        if self.is_exchange() {
            if let Some(names) = from_names {
                names.replaced();
            }
            return dcache.d_exchange(from, to);
        }
        if let Some(inode) = pair.replaced
            && pair.replaces_dir
        {
            inode.shared().set(DEAD_DIR);
        }
        let whiteout = self.flags.contains(RenameFlags::WHITEOUT);
        let nothing_left = (!whiteout).then_some(source.validity);
        let place = (self.to_dir.path.dentry(), &target.name);
        dcache.d_move(from, to, place, nothing_left);
        if let Some(names) = from_names {
            match whiteout {
                true => names.replaced(),
                false => names.removed(source.name.name.as_bytes()),
            }
        }
        if let Some(inode) = pair.replaced {
            self.to_dir.lost_a_name(inode);
        }
    }
}

fn is_dir(inode: &InodeRef) -> bool {
    inode.kind() == FileType::Directory
}
