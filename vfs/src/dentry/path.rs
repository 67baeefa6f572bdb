//! From a dentry up: the directories above it, and its path.
//!
//! This reads several dentries, and any of them may be moved meanwhile: `rename_lock` tells
//! whether one was. It takes no references and no dentry locks on the way.

use rcuwalk_sync::atomic::Relaxed;
use rcuwalk_sync::{RcuGuard, Seq, Shared, rcu};

use super::{Dcache, Dentry, DentryRef, NameWords};
use crate::context::VfsPath;
use crate::mount::MountInfo;
use crate::vfs_inode::InodeRef;

impl Dcache {
    /// True if `above` is the directory at `below` or one of those above it in its file
    /// system. By inode: beside the dentry that is in the cache (DENTRY-5) a removed directory
    /// may have one that is not.
    ///
    /// The answer stays true while the super block's rename mutex is held.
    #[doc(alias = "d_ancestor")]
    pub(crate) fn is_subdir(&self, below: &DentryRef, above: &InodeRef) -> bool {
        let above = above.shared().address();
        self.rename_lock.read(|| {
            let guard = rcu::read_lock();
            let mut at: Option<&Shared<Dentry>> = Some(below);
            while let Some(dentry) = at {
                if dentry.inode.is(above) {
                    return true;
                }
                at = dentry.parent.load(&guard);
            }
            false
        })
    }

    /// True if `place` is `root` or below it, through all mounts between them, at one moment.
    #[doc(alias("path_is_under", "is_path_reachable"))]
    pub(crate) fn is_below(&self, root: &VfsPath, place: &VfsPath) -> bool {
        self.rename_lock
            .read(|| leads_up_to(root, place.mnt(), place.dentry(), &rcu::read_lock()))
    }

    /// Samples the count of renames, for [`has_renamed`](Self::has_renamed); `None` while a
    /// rename is under way.
    #[inline]
    pub(crate) fn renames(&self) -> Option<Seq> {
        self.rename_lock.read_begin()
    }

    /// True if a directory or a file was renamed since `begin`.
    #[inline]
    pub(crate) fn has_renamed(&self, begin: Seq) -> bool {
        self.rename_lock.read_retry(begin)
    }

    /// The path from `root` to `place`, through all mounts between them; `None` if `root`
    /// is not above it.
    #[doc(alias("prepend_path", "d_path"))]
    pub(crate) fn path_between(&self, root: &VfsPath, place: &VfsPath) -> Option<Box<[u8]>> {
        // Backwards, byte by byte.
        let reversed = self.rename_lock.read(|| reversed_path(root, place));
        let mut path = reversed?;
        if path.is_empty() {
            path.push(b'/');
        }
        path.reverse();
        Some(path.into())
    }
}

/// True if the way up from a place comes by `root`. The caller makes sure that nothing was
/// renamed meanwhile.
///
/// By inode, as [`Dcache::is_subdir`]: `root` may have been dropped from the cache and found
/// again by its name.
pub(crate) fn leads_up_to<'g>(
    root: &VfsPath,
    mut mnt: &'g MountInfo,
    mut at: &'g Shared<Dentry>,
    guard: &'g RcuGuard,
) -> bool {
    let root = root.inode_held().shared().address();
    loop {
        if at.inode.is(root) {
            return true;
        }
        let above = if std::ptr::eq(at, &*mnt.root) {
            mnt.point.as_ref().map(|point| {
                mnt = point.entry.info();
                &*point.dentry
            })
        } else {
            at.parent.load(guard)
        };
        match above {
            Some(above) => at = above,
            None => return false,
        }
    }
}

fn reversed_path(root: &VfsPath, place: &VfsPath) -> Option<Vec<u8>> {
    let guard = rcu::read_lock();
    let mut path = Vec::new();
    let mut mnt: &MountInfo = place.mnt();
    let mut at: &Shared<Dentry> = place.dentry();
    loop {
        if std::ptr::eq(at, &**root.dentry()) && mnt.is(root.mnt()) {
            return Some(path);
        }
        if std::ptr::eq(at, &*mnt.root) {
            let point = mnt.point.as_ref()?;
            (mnt, at) = (point.entry.info(), &point.dentry);
            continue;
        }
        match at.long_name.load(&guard) {
            Some(long) => path.extend(long.iter().rev()),
            None => {
                let words = at.words.each_ref().map(|word| word.load(Relaxed));
                let name = NameWords::from_words(words).to_bytes();
                path.extend(name.iter().rev());
            }
        }
        path.push(b'/');
        at = at.parent.load(&guard)?;
    }
}
