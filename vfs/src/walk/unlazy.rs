//! From an RCU-walk to a REF-walk, in the middle of a path.

use super::RefWalk;
use super::rcu::{Pathname, RcuWalk};
use super::refs;
use crate::context::VfsPath;

impl<'a: 'g, 'g> RcuWalk<'a, 'g> {
    /// Takes references to all that the rest of the walk needs, and checks that nothing has
    /// changed since the RCU-walk read it. `None`: it has, start again.
    ///
    /// RCU-3: each reference comes from `try_get`, and the counts are rechecked
    /// after that; from then on nothing can go away.
    #[doc(alias("legitimize_path", "legitimize_links"))]
    pub(super) fn try_to_unlazy(self) -> Option<RefWalk<'a>> {
        let at = VfsPath::try_get(self.at.mnt, self.at.dentry)?;
        if !self.at.seq.is_even() || self.at.has_changed() {
            return None;
        }
        // The walk may have crossed, or passed by, a mount that has changed by now.
        if !self.request.ns.mounts_are(self.mounts) {
            return None;
        }
        let owned = |text: Pathname<'a, 'g>| {
            Some(match text {
                Pathname::Path(path) => refs::Pathname::Path(path),
                Pathname::Link(body) => refs::Pathname::Link(body.try_get()?),
            })
        };
        let text = owned(self.text)?;
        let stack = self.stack.try_map(owned)?;
        Some(RefWalk::resume(
            *self.request,
            at,
            text,
            self.pos,
            stack,
            self.links,
        ))
    }
}
