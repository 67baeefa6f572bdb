//! Attributes, extended ones, access.

use std::sync::Arc;

use rcuwalk::inode::NodeId;
use rcuwalk::{
    Access, Attr, Context, Error, InodeFlags, LookupFlags, Result, SetAttr, StatFs, VfsPath,
    XattrFlags,
};

use super::{Ops, as_daemon, at_place, shown};
use crate::caller::Caller;
use crate::handles::OpenFile;
use crate::nodes::NodeRef;

/// The place itself.
const ITSELF: LookupFlags = LookupFlags::EMPTY_PATH;

/// What SETATTR asks for.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) what: SetAttr,
    /// The open file that it is asked of, if the kernel tells.
    pub(crate) handle: Option<u64>,
}

impl Ops {
    /// GETATTR.
    pub(crate) fn getattr(&self, id: NodeId) -> Result<Attr> {
        let node = self.nodes.get(id)?;
        Ok(shown(self.attr_of(&node)?, &node))
    }

    /// What is cached of what was just found at `path`; or as the host has it, where
    /// contents pass by.
    pub(super) fn attr_at(&self, node: &NodeRef, path: &VfsPath) -> Attr {
        let passing = passing(node).and_then(|open| open.file.stat().ok());
        passing.unwrap_or_else(|| path.attr())
    }

    /// What is cached, brought up to date if it has a name to ask for.
    fn attr_of(&self, node: &NodeRef) -> Result<Attr> {
        if let Some(open) = passing(node) {
            return open.file.stat();
        }
        if let Some(attr) = node.believed_attr() {
            return Ok(attr);
        }
        match self.vfs.stat(&as_daemon(node.place()), "", ITSELF) {
            // It has lost that name, and lives on as long as it is open.
            Err(err @ (Error::Stale | Error::NotFound)) => match node.open_file() {
                Some(open) => Ok(open.file.attr()),
                None => Err(err),
            },
            done => done,
        }
    }

    /// SETATTR.
    pub(crate) fn setattr(&self, who: Caller, id: NodeId, change: &Change) -> Result<Attr> {
        let node = self.nodes.get(id)?;
        let mut what = change.what;
        if let (Some(handle), Some(size)) = (change.handle, what.size) {
            // As ftruncate(2): that it may was decided when it was opened.
            let open = self.handles.file(handle)?;
            match self.user(who, &open.file) {
                Some(ctx) => open.file.set_len_as(&ctx, size)?,
                None => open.file.set_len(size)?,
            }
            what.size = None;
        }
        if what != SetAttr::default() {
            self.change(who, &node, &what)?;
        } else if change.what == what {
            self.take_set_id(who, &node);
        }
        Ok(shown(self.attr_of(&node)?, &node))
    }

    /// A change of nothing: the kernel's chown(2) to nobody in particular, or a write that is
    /// to come. What both do is take set-id bits away. A writer need not be the owner, and is
    /// not refused for that.
    fn take_set_id(&self, who: Caller, node: &NodeRef) {
        let ask = |ctx: &Context| self.vfs.chown(ctx, "", None, None, ITSELF);
        let _ = self.ask(who, node.place(), 0, ask);
    }

    fn change(&self, who: Caller, node: &NodeRef, what: &SetAttr) -> Result<()> {
        // Being in a group or not decides more than whether: it takes set-id bits away.
        let by_group = what.mode.is_some() || what.gid.is_some();
        let full = by_group.then(|| who.in_full()).flatten();
        let ask = |ctx: &Context| match self.vfs.setattr(ctx, "", what, ITSELF) {
            Err(err @ (Error::Stale | Error::NotFound)) => match node.open_file() {
                Some(open) => open.file.setattr_as(ctx, what),
                None => Err(err),
            },
            done => done,
        };
        at_place(node, |place| match &full {
            Some(full) => ask(&Context::within(place.clone(), full.clone())),
            None => self.ask(who, place.clone(), 0, ask),
        })
    }

    /// IOCTL with FS_IOC_GETFLAGS.
    pub(crate) fn flags(&self, id: NodeId) -> Result<InodeFlags> {
        Ok(self.attr_of(&self.nodes.get(id)?)?.flags)
    }

    /// IOCTL with FS_IOC_SETFLAGS.
    pub(crate) fn set_flags(&self, who: Caller, id: NodeId, flags: InodeFlags) -> Result<()> {
        let what = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        self.change(who, &self.nodes.get(id)?, &what)
    }

    /// READLINK.
    pub(crate) fn readlink(&self, id: NodeId) -> Result<Box<[u8]>> {
        self.vfs.read_link_at(&self.place(id)?)
    }

    /// STATFS. The tree is one file system, whatever it is asked of.
    pub(crate) fn statfs(&self) -> Result<StatFs> {
        self.vfs.statfs(&as_daemon(self.vfs.root()), "/")
    }

    /// ACCESS.
    pub(crate) fn access(&self, who: Caller, id: NodeId, wanted: Access) -> Result<()> {
        let as_all_others = ITSELF | LookupFlags::EACCESS;
        self.ask_of(who, id, |ctx| {
            self.vfs.access(ctx, "", wanted, as_all_others)
        })
    }

    /// GETXATTR.
    pub(crate) fn getxattr(&self, who: Caller, id: NodeId, name: &[u8]) -> Result<Box<[u8]>> {
        self.ask_of(who, id, |ctx| self.vfs.get_xattr(ctx, "", name, ITSELF))
    }

    /// SETXATTR.
    pub(crate) fn setxattr(
        &self,
        who: Caller,
        id: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrFlags,
    ) -> Result<()> {
        self.ask_of(who, id, |ctx| {
            self.vfs.set_xattr(ctx, "", name, value, how, ITSELF)
        })
    }

    /// LISTXATTR: the names, each with a NUL behind it.
    pub(crate) fn listxattr(&self, who: Caller, id: NodeId) -> Result<Vec<u8>> {
        let names = self.ask_of(who, id, |ctx| self.vfs.list_xattrs(ctx, "", ITSELF))?;
        Ok(names
            .iter()
            .flat_map(|name| name.iter().copied().chain([0]))
            .collect())
    }

    /// REMOVEXATTR.
    pub(crate) fn removexattr(&self, who: Caller, id: NodeId, name: &[u8]) -> Result<()> {
        self.ask_of(who, id, |ctx| self.vfs.remove_xattr(ctx, "", name, ITSELF))
    }

    fn ask_of<T>(&self, who: Caller, id: NodeId, ask: impl Fn(&Context) -> Result<T>) -> Result<T> {
        let node = self.nodes.get(id)?;
        at_place(&node, |place| self.ask(who, place.clone(), 0, &ask))
    }
}

/// A file that `node` is open as, if its contents pass by.
fn passing(node: &NodeRef) -> Option<Arc<OpenFile>> {
    node.ways.are_through().then(|| node.open_file())?
}
