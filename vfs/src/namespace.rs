//! The tree of mounts, and the caches behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk_sync::lock::{Mutex, MutexGuard, Rank};
use rcuwalk_sync::{RcuGuard, RcuPtr, Ref, Shared, lock, rcu};

use crate::caches::Caches;
use crate::context::VfsPath;
use crate::dentry::{Dentry, DentryRef, Flags};
use crate::error::{Error, Result};
use crate::filesystem::FileSystem;
use crate::mount::{MountEntry, MountFlags, MountInfo, MountRef, MountTable, Point};
use crate::super_block::SuperBlock;
use crate::vfs_inode::{InodeRef, LATE_LINK, LinkTarget};

/// Everything that walks share.
#[doc(alias = "mnt_namespace")]
pub(crate) struct Namespace {
    pub(crate) caches: Arc<Caches>,
    mounts: RcuPtr<MountTable>,
    root: Arc<MountEntry>,
    next_mount: AtomicU64,
    /// Held while the mounts change.
    #[doc(alias = "namespace_sem")]
    changing: Mutex<()>,
}

/// Drops the private data of back ends in names and inodes now, as an unmount does: if it were
/// freed with the caches, it would wait as long as nothing else is freed. Data of paths and
/// files that are still held goes with them.
impl Drop for Namespace {
    fn drop(&mut self) {
        if lock::may_sleep() {
            self.caches.drop_unused();
            rcu::barrier();
        }
    }
}

impl Namespace {
    pub(crate) fn new(fs: Box<dyn FileSystem>, caches: Caches) -> Result<Namespace> {
        let caches = Arc::new(caches);
        let (sb, root) = open_super_block(fs, &caches)?;
        Ok(Namespace {
            caches,
            mounts: RcuPtr::new(Some(Ref::new(MountTable::default()))),
            root: Arc::new(MountEntry::new(0, sb, root, None, MountFlags::empty())),
            next_mount: AtomicU64::new(1),
            changing: Mutex::new(Rank::Namespace, ()),
        })
    }

    /// The root of the root mount, with nothing mounted over it considered.
    pub(crate) fn root(&self) -> VfsPath {
        let guard = rcu::read_lock();
        let root = &self.root.info().root;
        // The root mount is never unmounted, so taking a reference cannot fail.
        VfsPath::try_get(self.root.mount(), root)
            .inspect(|_| drop(guard))
            .expect("the root mount stays while the namespace does")
    }

    /// Where its places belong, to be compared with [`VfsPath::home`].
    #[inline]
    pub(crate) fn home(&self) -> usize {
        std::ptr::from_ref(&*self.caches).addr()
    }

    /// The mounts as of now.
    #[inline]
    pub(crate) fn mounts<'g>(&self, guard: &'g RcuGuard) -> &'g Shared<MountTable> {
        self.mounts
            .load(guard)
            .expect("a namespace always has a table of mounts")
    }

    /// True if no mount came or went since `table` was the table.
    #[inline]
    pub(crate) fn mounts_are(&self, table: &Shared<MountTable>) -> bool {
        self.mounts.is(table.address())
    }

    /// The file system mounted on this dentry of this mount, held.
    pub(crate) fn mounted_on(
        &self,
        mnt: &MountInfo,
        dentry: &DentryRef,
    ) -> Option<(MountRef, DentryRef)> {
        loop {
            let guard = rcu::read_lock();
            let entry = self.mounts(&guard).lookup(mnt, dentry.address())?;
            let over = entry.mount().try_get();
            drop(guard);
            if let Some(over) = over {
                let root = over.root.clone();
                return Some((over, root));
            }
            // It is being unmounted, or that has just failed: wait for the outcome.
            drop(self.changing.lock());
        }
    }

    /// Where a mount is mounted, held; `None` for the root mount.
    pub(crate) fn mountpoint_of(&self, mnt: &MountInfo) -> Option<VfsPath> {
        let point = mnt.point.as_ref()?;
        let guard = rcu::read_lock();
        // A mount with another one on it is not unmounted.
        let parent = VfsPath::try_get(point.entry.mount(), &point.dentry);
        drop(guard);
        parent
    }

    /// The target of a link: cached, or from the back end and then cached if short.
    pub(crate) fn link_body(&self, sb: &SuperBlock, link: &InodeRef) -> Result<Ref<LinkTarget>> {
        let cached = {
            let guard = rcu::read_lock();
            link.link_target().get(&guard)
        };
        if let Some(body) = cached {
            return Ok(body);
        }
        let body = Ref::new(sb.fs().read_link(sb, link)?);
        if body.len() <= LATE_LINK {
            // Two readers may come here at once; the targets they read are the same.
            drop(link.link_target().swap(Some(body.clone())));
        }
        Ok(body)
    }

    /// Mounts `fs` on a directory, whose contents are hidden until it is unmounted.
    #[doc(alias("do_new_mount", "do_add_mount"))]
    pub(crate) fn mount(
        &self,
        at: &VfsPath,
        fs: Box<dyn FileSystem>,
        flags: MountFlags,
    ) -> Result<()> {
        if at.inode().kind() != crate::FileType::Directory {
            return Err(Error::NotADirectory);
        }
        let (sb, root) = open_super_block(fs, &self.caches)?;
        let (id, held) = (sb.id(), root.clone());
        let attached = self.attach(at, sb, root, flags);
        if attached.is_err() {
            shut_down(&self.caches, id, held);
        }
        attached
    }

    /// Puts the tree of `sb` on a directory. If it fails, `sb` is mounted nowhere.
    #[doc(alias("attach_recursive_mnt", "graft_tree"))]
    fn attach(
        &self,
        at: &VfsPath,
        sb: Arc<SuperBlock>,
        root: DentryRef,
        flags: MountFlags,
    ) -> Result<()> {
        let changing = self.changing.lock();
        // Under the lock: on top of whatever has been mounted there meanwhile.
        let (mut mnt, mut dentry) = (at.mnt().clone(), at.dentry().clone());
        while let Some((over, root)) = self.mounted_under_lock(&mnt, &dentry) {
            (mnt, dentry) = (over, root);
        }
        // Against a removal that has found nothing mounted here, and goes on.
        let covered = dentry.inode_ref().ok_or(Error::NotFound)?;
        let _covered = covered.lock();
        let id = self.next_mount.fetch_add(1, Relaxed);
        let parent = self.entry_of(&mnt).ok_or(Error::Invalid)?;
        // Before the mount: from here on the name stays in the cache. Otherwise it could be
        // dropped, and no path would lead to the mount.
        if !self.caches.dcache.mark_mountpoint(&dentry) {
            return Err(Error::NotFound);
        }
        let point = Point {
            entry: parent,
            dentry: dentry.clone(),
        };
        let table = {
            let guard = rcu::read_lock();
            self.mounts(&guard)
                .with(MountEntry::new(id, sb, root, Some(point), flags))
        };
        self.publish(table, &changing);
        Ok(())
    }

    /// Unmounts what `at` is the root of.
    #[doc(alias = "do_umount")]
    pub(crate) fn umount(&self, at: VfsPath) -> Result<()> {
        if !at.is_mount_root() || at.mnt().point.is_none() {
            // The root mount cannot go, and a path that is no mount's root names none.
            return Err(Error::Invalid);
        }
        let entry = self.entry_of(at.mnt()).ok_or(Error::Invalid)?;
        // Our own reference would make it busy.
        drop(at);
        // So would a path that RCU has not freed yet, with the front end's object that kept it.
        // The barrier runs `Drop` code of back ends, so nothing is locked yet (CALL-1). Tables
        // that other threads replace meanwhile hold no path.
        rcu::barrier();
        let changing = self.changing.lock();
        let info = entry.info();
        let table = {
            let guard = rcu::read_lock();
            self.mounts(&guard).without(info)
        };
        let table = match table {
            Ok(table) => table,
            Err((err, table)) => {
                self.publish(table, &changing);
                return Err(err);
            }
        };
        if let Some(point) = &info.point
            && !table.is_mountpoint(point.dentry.address())
        {
            self.caches
                .dcache
                .change_flags(&point.dentry, |f| f.remove(Flags::MOUNTPOINT));
        }
        self.publish(table, &changing);
        let (sb, root) = (info.sb.id(), info.root.clone());
        drop((changing, entry));
        shut_down(&self.caches, sb, root);
        Ok(())
    }

    /// Gives the mount whose root `at` is other flags.
    #[doc(alias = "do_reconfigure_mnt")]
    pub(crate) fn remount(&self, at: &VfsPath, flags: MountFlags) -> Result<()> {
        if !at.is_mount_root() {
            return Err(Error::Invalid);
        }
        let _changing = self.changing.lock();
        let entry = self.entry_of(at.mnt()).ok_or(Error::Invalid)?;
        entry.set_flags(flags)
    }

    fn publish(&self, table: MountTable, _changing: &MutexGuard<'_, ()>) {
        drop(self.mounts.swap(Some(Ref::new(table))));
    }

    fn mounted_under_lock(
        &self,
        mnt: &MountInfo,
        dentry: &DentryRef,
    ) -> Option<(MountRef, DentryRef)> {
        let guard = rcu::read_lock();
        let over = self
            .mounts(&guard)
            .lookup(mnt, dentry.address())?
            .mount()
            .try_get()?;
        let root = over.root.clone();
        Some((over, root))
    }

    fn entry_of(&self, mnt: &MountInfo) -> Option<Arc<MountEntry>> {
        match &mnt.point {
            None => Some(self.root.clone()),
            Some(point) => {
                let guard = rcu::read_lock();
                let table = self.mounts(&guard);
                table
                    .lookup(point.entry.info(), point.dentry.address())
                    .cloned()
            }
        }
    }
}

fn open_super_block(
    fs: Box<dyn FileSystem>,
    caches: &Arc<Caches>,
) -> Result<(Arc<SuperBlock>, DentryRef)> {
    let sb = Arc::new(SuperBlock::new(fs, caches.clone()));
    // Taken before asking: the answer may be older than its arrival.
    let validity = sb.validity(None);
    let id = sb.id();
    let dentry = match sb.read_root() {
        Ok(root) => Dentry::root(id, root, validity),
        Err(err) => {
            drop(sb);
            // It may have read inodes before it failed.
            evict(caches, id);
            return Err(err);
        }
    };
    let mounted = sb.fs().mounted(&sb);
    if let Err(err) = mounted {
        drop(sb);
        shut_down(caches, id, dentry);
        return Err(err);
    }
    Ok((sb, dentry))
}

/// Drops everything cached of a super block that is mounted nowhere.
///
/// When it returns, the back end has its private parts back: a host's file system is not
/// busy for longer than ours was.
#[doc(alias("generic_shutdown_super", "kill_sb"))]
fn shut_down(caches: &Caches, sb: u32, root: DentryRef) {
    rcu::barrier();
    // RCU frees the mount and its root dentry in stages. The dentry's reference would pin the
    // inode past the eviction below, and no later eviction looks for it.
    root.forget_inode();
    caches.dcache.drop_super_block(sb);
    evict(caches, sb);
}

/// Drops the unused inodes of a super block, and waits until they are freed.
fn evict(caches: &Caches, sb: u32) {
    caches.icache.evict_inodes(|id| id.sb == sb);
    rcu::barrier();
}
