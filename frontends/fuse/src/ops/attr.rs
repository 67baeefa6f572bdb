//! Attributes, extended ones, access.

use std::sync::Arc;

use rcuwalk::inode::NodeId;
use rcuwalk::{
    Access, Attr, Caps, Context, Credentials, Error, InodeFlags, LookupFlags, Result, SetAttr,
    StatFs, VfsPath, XattrFlags,
};

use super::{AttrReply, Ops, SET_IDS, as_daemon, at_place};
use crate::caller::Caller;
use crate::handles::OpenFile;
use crate::nodes::NodeRef;

/// No flags: the calls here act on a file that is held, so there is no path to resolve.
const HELD: LookupFlags = LookupFlags::empty();

/// The change of a SETATTR.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) what: SetAttr,
    /// The open file of the request, if the kernel names one.
    pub(crate) handle: Option<u64>,
}

impl Change {
    /// True for the change that truncate(2) and open(2) make, without a chown(2).
    pub(crate) fn is_truncation(&self) -> bool {
        self.what.size.is_some() && self.what.uid.is_none() && self.what.gid.is_none()
    }
}

impl Ops {
    /// GETATTR.
    pub(crate) fn getattr(&self, id: NodeId) -> Result<AttrReply> {
        let node = self.nodes.get(id)?;
        let mut reply = AttrReply::of(self.attr_of(&node)?, &node);
        reply.told.attr = !node.is_through() && node.is_announced();
        Ok(reply)
    }

    /// Returns the cached attributes of the inode just found at `path`; or the host's, while
    /// the file is open for passthrough.
    pub(super) fn attr_at(&self, node: &NodeRef, path: &VfsPath) -> Attr {
        let passing = passing(node).and_then(|open| open.file.stat().ok());
        passing.unwrap_or_else(|| path.attr())
    }

    /// Returns the attributes of a node, revalidated if it has a name to ask for.
    pub(super) fn attr_of(&self, node: &NodeRef) -> Result<Attr> {
        if let Some(open) = passing(node) {
            return open.file.stat();
        }
        if let Some(attr) = node.valid_attr() {
            return Ok(attr);
        }
        let ctx = as_daemon(node.place());
        match self.vfs.stat(&ctx, ctx.cwd(), HELD) {
            // It has lost that name, but still exists while it is open.
            Err(err @ (Error::Stale | Error::NotFound)) => match node.open_file() {
                Some(open) => Ok(open.file.attr()),
                None => Err(err),
            },
            done => done,
        }
    }

    /// SETATTR.
    pub(crate) fn setattr(&self, who: Caller, id: NodeId, change: &Change) -> Result<AttrReply> {
        let node = self.nodes.get(id)?;
        let mut what = change.what;
        if let (Some(handle), Some(size)) = (change.handle, what.size) {
            // As ftruncate(2): the permission was checked when the file was opened.
            let open = self.handles.file(handle)?;
            match self.user(who, &open.file) {
                Some(ctx) => open.file.as_user(&ctx).set_len(size)?,
                None => open.file.set_len(size)?,
            }
            what.size = None;
        }
        if what != SetAttr::default() {
            self.change(who, &node, &what)?;
        } else if change.what == what {
            self.take_set_ids(who, &node);
        }
        if what.mode.is_some() {
            node.show_set_ids();
        }
        Ok(AttrReply::of(self.attr_of(&node)?, &node))
    }

    /// An empty change: either the kernel's chown(2) without an owner, or a write about to
    /// follow. Both clear set-id bits, and the message does not say which it is. An owner may
    /// clear them in either case. For any other caller that would be too much if it is a
    /// chown(2), and not enough if it is a write, after which the kernel would go on using the
    /// old mode. So the kernel is told that the bits are clear while that write may follow, and
    /// is told the truth later.
    ///
    /// The kernel holds the inode's lock from this request to the end of the write. After this
    /// answer it discards attributes that another request has read before.
    #[doc(alias("file_remove_privs", "FUSE_HANDLE_KILLPRIV_V2"))]
    fn take_set_ids(&self, who: Caller, node: &NodeRef) {
        let ask = |ctx: &Context| self.vfs.chown(ctx, ctx.cwd(), None, None, HELD);
        // A checked caller need not be the owner: the kernel lets any caller make an empty
        // change.
        if who.is_checked || self.ask(who, node.place(), 0, ask).is_err() {
            node.hide_set_ids();
        }
    }

    fn change(&self, who: Caller, node: &NodeRef, what: &SetAttr) -> Result<()> {
        // Groups and CAP_FSETID decide not only whether the change is allowed, but also whether
        // set-id bits stay.
        let by_group = match who.uid {
            _ if who.is_checked && what.mode.is_some() => false,
            uid if uid == 0 || who.is_checked => {
                what.gid.is_some() && node.place().attr().mode & SET_IDS != 0
            }
            _ => what.mode.is_some() || what.gid.is_some(),
        };
        let full = match self.back.is_kernels(what) {
            true => Some(Credentials::root()),
            false => by_group.then(|| who.for_set_ids()),
        };
        let ask = |ctx: &Context| match self.vfs.setattr(ctx, ctx.cwd(), what, HELD) {
            Err(err @ (Error::Stale | Error::NotFound)) => match node.open_file() {
                Some(open) => open.file.as_user(ctx).setattr(what),
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
        let what = SetAttr::default().flags(flags);
        self.change(who, &self.nodes.get(id)?, &what)
    }

    /// READLINK.
    pub(crate) fn readlink(&self, id: NodeId) -> Result<Box<[u8]>> {
        self.vfs.read_link_at(&self.place(id)?)
    }

    /// STATFS. The tree is one file system, whichever node is named.
    pub(crate) fn statfs(&self) -> Result<StatFs> {
        self.vfs.statfs(&as_daemon(self.vfs.root()), "/")
    }

    /// ACCESS.
    pub(crate) fn access(&self, who: Caller, id: NodeId, wanted: Access) -> Result<()> {
        let as_all_others = LookupFlags::EACCESS;
        self.ask_of(who, id, |ctx| {
            self.vfs.access(ctx, ctx.cwd(), wanted, as_all_others)
        })
    }

    /// GETXATTR.
    pub(crate) fn getxattr(&self, who: Caller, id: NodeId, name: &[u8]) -> Result<Box<[u8]>> {
        match self.ask_of(who, id, |ctx| {
            self.vfs.get_xattr(ctx, ctx.cwd(), name, HELD)
        }) {
            // The kernel reads ACLs before it lets users in, and treats any other error as a
            // refusal: a back end without ACLs has none.
            Err(Error::NotSupported) if name.starts_with(b"system.posix_acl_") => {
                Err(Error::NoData)
            }
            told => told,
        }
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
        let set = |ctx: &Context| self.vfs.set_xattr(ctx, ctx.cwd(), name, value, how, HELD);
        match name {
            CAPABILITY => self.ask_as(with_setfcap(who), id, set),
            // The caller's groups decide whether the set-gid bit stays.
            ACCESS_ACL => self.ask_as(who.for_set_ids(), id, set),
            _ => self.ask_of(who, id, set),
        }?;
        self.pushed.changed(id);
        Ok(())
    }

    /// LISTXATTR: the names, each followed by a NUL. The kernel leaves it to a file system to
    /// hide some of them.
    pub(crate) fn listxattr(&self, who: Caller, id: NodeId) -> Result<Vec<u8>> {
        let mut credentials = who.credentials();
        credentials.caps |= Caps::SYS_ADMIN;
        let list = |ctx: &Context| self.vfs.list_xattrs(ctx, ctx.cwd(), HELD);
        let mut names = self.ask_as(credentials, id, list)?;
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        if names.iter().any(|name| is_trusted(name)) && !who.has(Caps::SYS_ADMIN) {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names
            .iter()
            .flat_map(|name| name.iter().copied().chain([0]))
            .collect())
    }

    /// REMOVEXATTR.
    pub(crate) fn removexattr(&self, who: Caller, id: NodeId, name: &[u8]) -> Result<()> {
        self.remove_xattr(who, id, name)?;
        self.pushed.changed(id);
        Ok(())
    }

    fn remove_xattr(&self, who: Caller, id: NodeId, name: &[u8]) -> Result<()> {
        let remove = |ctx: &Context| self.vfs.remove_xattr(ctx, ctx.cwd(), name, HELD);
        if name != CAPABILITY {
            return self.ask_of(who, id, remove);
        }
        match self.ask_as(with_setfcap(who), id, remove) {
            // A daemon without privileges. Before a write, that must not stop the caller: if
            // the host does not let us remove the capabilities, the host itself removes them at
            // the write.
            Err(Error::NotPermitted) if !who.has(Caps::SETFCAP) => Ok(()),
            done => done,
        }
    }

    /// Calls `ask` with exactly these credentials, and without a second try.
    fn ask_as<T>(
        &self,
        credentials: Credentials,
        id: NodeId,
        ask: impl Fn(&Context) -> Result<T>,
    ) -> Result<T> {
        let node = self.nodes.get(id)?;
        at_place(&node, |place| {
            let ctx = Context::within(place.clone(), credentials.clone());
            self.room.ask(|| ask(&ctx))
        })
    }

    fn ask_of<T>(&self, who: Caller, id: NodeId, ask: impl Fn(&Context) -> Result<T>) -> Result<T> {
        let node = self.nodes.get(id)?;
        at_place(&node, |place| self.ask(who, place.clone(), 0, &ask))
    }
}

/// The attribute that holds a file's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// Credentials for [`CAPABILITY`]. The kernel decides about that attribute, and has done so:
/// before setxattr(2) and removexattr(2) it requires CAP_SETFCAP in the user namespace of the
/// caller, which must know the file's owner (a value of version 2 becomes one of version 3
/// there, with the user to whom it applies); and before any write it removes the attribute by
/// itself.
#[doc(alias("cap_convert_nscap", "cap_inode_removexattr", "cap_inode_killpriv"))]
fn with_setfcap(who: Caller) -> Credentials {
    let mut credentials = who.credentials();
    credentials.caps |= Caps::SETFCAP;
    credentials
}

/// Returns an open file of `node`, if its contents go by passthrough.
fn passing(node: &NodeRef) -> Option<Arc<OpenFile>> {
    node.is_through().then(|| node.open_file())?
}
