//! Where an RCU-walk ended: an answer is read there first, and counts if it then is still true.

use rcuwalk_sync::Shared;

use super::Contained;
use super::rcu::RcuWalk;
use crate::context::VfsPath;
use crate::dentry::path::leads_up_to;
use crate::mount::MountInfo;
use crate::stats::Why;
use crate::vfs_inode::Inode;

/// A walk that has ended, for questions about the place it ended at.
pub(crate) struct RcuFound<'w, 'a, 'g>(pub(super) &'w RcuWalk<'a, 'g>);

impl<'g> RcuFound<'_, '_, 'g> {
    /// The inode, to be read before [`is_still_true`](Self::is_still_true).
    #[inline]
    pub(crate) fn inode(&self) -> Option<&'g Shared<Inode>> {
        self.0.at.inode(self.0.guard)
    }

    /// The mount that the walk ended in.
    #[inline]
    pub(crate) fn mnt(&self) -> &'g MountInfo {
        self.0.at.mnt
    }

    /// Symbolic links followed.
    pub(crate) fn links(&self) -> u32 {
        self.0.links
    }

    /// True if, up to now, the path has led to where the walk ended.
    #[inline]
    pub(crate) fn is_still_true(&self) -> bool {
        let RcuWalk {
            at,
            request,
            mounts,
            contained,
            ..
        } = self.0;
        // A count that was odd when it was sampled is not one moment.
        let still = at.seq.is_even()
            && !at.has_changed()
            && request.ns.mounts_are(mounts)
            && contained.as_ref().is_none_or(|walk| self.is_inside(walk));
        if still {
            at.dentry.mark_used();
        }
        still
    }

    /// WALK-3: the walk started below its root and nothing was renamed since: then it never
    /// stood anywhere else, because `..` stops at the root. Or it started at the root, met no
    /// `..` after a rename, and has ended below the root. A caller that asks about the start
    /// itself does not walk.
    #[cold]
    fn is_inside(&self, walk: &Contained) -> bool {
        let RcuWalk {
            request, guard, at, ..
        } = self.0;
        if request.path.is_empty() {
            return true;
        }
        let dcache = &request.ns.caches.dcache;
        let root = request.ctx.root();
        let from_root = request.path[0] == b'/' || request.start.is_same_place(root);
        if !from_root {
            let start = request.start;
            return leads_up_to(root, start.mnt(), start.dentry(), guard)
                && !walk.has_renamed(dcache);
        }
        let is_below = || {
            let now = dcache.renames()?;
            (leads_up_to(root, at.mnt, at.dentry, guard) && !dcache.has_renamed(now)).then_some(())
        };
        !walk.has_renamed(dcache) || is_below().is_some()
    }

    /// The reason for a missing answer: what changed, or else that the dentry or mount is
    /// dying.
    #[cold]
    pub(super) fn why_not(&self) -> Why {
        let RcuWalk {
            at,
            request,
            mounts,
            ..
        } = self.0;
        if !request.ns.mounts_are(mounts) {
            Why::MountsChanged
        } else if !at.seq.is_even() || at.has_changed() {
            Why::Moved
        } else {
            Why::Dying
        }
    }

    /// Takes counted references to the place, if the walk is still valid.
    #[doc(alias = "complete_walk")]
    pub(crate) fn try_get(&self) -> Option<VfsPath> {
        let path = VfsPath::try_get(self.0.at.mnt, self.0.at.dentry)?;
        self.is_still_true().then_some(path)
    }
}
