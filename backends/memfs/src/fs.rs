//! What the VFS asks for.

use std::sync::Arc;

use rcuwalk::{
    Acl, At, ByNumber, Caller, Caps, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode,
    InodeFill, InodeKey, InodeRef, LastPut, Name, NewFile, OpenFlags, RawEntry, Rename, Result,
    SetAttr, SetTime, StatFs, SuperBlock, XattrFlags,
};

use crate::MemFs;
use crate::change::Dir;
use crate::data::MAX_SIZE;
use crate::file::{Open, size_of};
use crate::node::{InodeOf, Node, now};
use crate::space::{INODE, PAGE};
use crate::xattrs::{self, Xattrs};

/// What statfs(2) calls this: it counts as tmpfs does.
#[doc(alias = "TMPFS_MAGIC")]
const KIND: u64 = 0x0102_1994;

impl FileSystem for MemFs {
    fn name(&self) -> &str {
        "memfs"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, &self.tree.root)
    }

    fn generation(&self, _by: &Caller<'_>, _at: &At<'_>) -> Result<Option<u32>> {
        Ok(Some(self.tree.generation))
    }

    fn encode_handle(&self, _by: &Caller<'_>, at: &At<'_>) -> Result<Box<[u8]>> {
        self.encode(Node::of(at.inode)?)
    }

    fn by_number(&self, sb: &SuperBlock, number: u64) -> Result<ByNumber> {
        self.find(number, |node| iget(sb, node))
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let node = Node::of(dir)?.names()?.get(name).cloned();
        node.map(|node| iget(sb, &node)).transpose()
    }

    fn read_link(&self, _sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>> {
        Ok(Node::of(inode)?.target()?.into())
    }

    fn read_dir(
        &self,
        _sb: &SuperBlock,
        dir: &Inode,
        from: u64,
        emit: &mut dyn Emit,
    ) -> Result<()> {
        let names = Node::of(dir)?.names()?;
        for listed in names.after(from) {
            let entry = RawEntry {
                name: listed.name,
                ino: listed.ino,
                kind: listed.kind,
                next: listed.position,
            };
            if emit.entry(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn open(
        &self,
        _by: &Caller<'_>,
        at: &At<'_>,
        _flags: OpenFlags,
    ) -> Result<Box<dyn FileHandle>> {
        Ok(Box::new(Open::new(Node::of(at.inode)?)))
    }

    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        iget(by.sb, &self.make(Dir::of(dir)?, name, new)?)
    }

    fn tmpfile(&self, by: &Caller<'_>, _dir: &Inode, new: &NewFile<'_>) -> Result<InodeRef> {
        iget(by.sb, &self.make_nameless(new)?)
    }

    fn link(&self, _by: &Caller<'_>, file: &At<'_>, dir: &Inode, name: Name<'_>) -> Result<()> {
        let node = Node::of(file.inode)?;
        self.link_node(node, Some(file.inode), Dir::of(dir)?, name)
    }

    fn unlink(&self, _by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        self.unlink_node(Dir::of(dir)?, name, inode)
    }

    fn rmdir(&self, _by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        self.remove_dir(Dir::of(dir)?, name, inode)
    }

    fn rename(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        self.move_name(by, how)
    }

    #[doc(alias = "shmem_setattr")]
    fn setattr(&self, _by: &Caller<'_>, at: &At<'_>, change: &SetAttr) -> Result<()> {
        let node = Node::of(at.inode)?;
        let now = now();
        if let Some(size) = change.size {
            if size > MAX_SIZE {
                return Err(Error::FileTooBig);
            }
            node.data_mut()?.truncate(&node.space, size);
        }
        let data = match change.size {
            Some(_) => Some(node.data()?),
            None => None,
        };
        // An access ACL is set anew with each mode, also where only set-id bits go.
        let sets_acl = change.mode.is_some() && node.has_acl();
        node.change(Some(at.inode), |attr| {
            let mut changed = change.mtime.is_some() || sets_acl;
            if let Some(data) = &data {
                // Also when it is the size it had: the kernel cuts off what is beyond.
                // That is a change, if there is anything.
                let (before, had_any) = (attr.size, attr.blocks > 0);
                size_of(data, attr);
                if attr.size != before || had_any {
                    attr.mtime = now;
                    changed = true;
                }
            } else {
                changed = true;
            }
            attr.mode = change.mode.map_or(attr.mode, |mode| mode & 0o7777);
            attr.uid = change.uid.unwrap_or(attr.uid);
            attr.gid = change.gid.unwrap_or(attr.gid);
            attr.flags = change.flags.unwrap_or(attr.flags);
            let time = |set| match set {
                SetTime::Now => now,
                SetTime::To(time) => time,
            };
            attr.atime = change.atime.map_or(attr.atime, time);
            attr.mtime = change.mtime.map_or(attr.mtime, time);
            if changed {
                attr.ctime = now;
            }
        });
        Ok(())
    }

    fn touch_atime(&self, inode: &Inode) {
        if let Ok(node) = Node::of(inode) {
            let now = now();
            node.change(Some(inode), |attr| attr.atime = now);
        }
    }

    fn get_xattr(&self, _by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        xattrs::may_have(name)?;
        let state = Node::of(at.inode)?.state();
        let value = state.xattrs.as_ref().and_then(|xattrs| xattrs.get(name));
        Ok(value.ok_or(Error::NoData)?.into())
    }

    fn list_xattrs(&self, _by: &Caller<'_>, at: &At<'_>) -> Result<Vec<Box<[u8]>>> {
        let state = Node::of(at.inode)?.state();
        Ok(state.xattrs.as_ref().map_or(Vec::new(), |all| all.names()))
    }

    fn set_xattr(
        &self,
        _by: &Caller<'_>,
        at: &At<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        xattrs::may_have(name)?;
        change_xattrs(at.inode, |node, xattrs| {
            xattrs.set(&node.space, name, value, flags)
        })
    }

    fn remove_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<()> {
        xattrs::may_have(name)?;
        if name == xattrs::ACCESS {
            update_mode(by, at.inode)?;
        }
        change_xattrs(at.inode, |node, xattrs| {
            match xattrs.remove(&node.space, name) {
                // The kernel counts it as a change all the same.
                Err(Error::NoData) if xattrs::is_acl(name) => Ok(()),
                removed => removed,
            }
        })
    }

    fn posix_acl(&self) -> bool {
        true
    }

    #[doc(alias = "shmem_statfs")]
    fn statfs(&self, _sb: &SuperBlock) -> Result<StatFs> {
        let (blocks, used) = self.tree.space.pages();
        let (inode_bytes, inodes_used) = self.tree.space.inode_bytes();
        let free = blocks.saturating_sub(used);
        let mut told = StatFs::default();
        told.kind = KIND;
        told.block_size = PAGE as u32;
        told.blocks = blocks;
        told.blocks_free = free;
        told.blocks_available = free;
        told.files = inode_bytes / INODE;
        told.files_free = inode_bytes.saturating_sub(inodes_used) / INODE;
        Ok(told)
    }
}

/// Without an access ACL, too, only the file's group keeps its set-gid bit.
#[doc(alias("posix_acl_update_mode", "simple_set_acl"))]
fn update_mode(by: &Caller<'_>, inode: &Inode) -> Result<()> {
    let who = by.credentials;
    Node::of(inode)?.change(Some(inode), |attr| {
        let in_group = who.gid == attr.gid || who.groups.contains(&attr.gid);
        if !in_group && !who.caps.contains(Caps::FSETID) {
            attr.mode &= !0o2000;
        }
    });
    Ok(())
}

fn change_xattrs(
    inode: &Inode,
    change: impl FnOnce(&Node, &mut Xattrs) -> Result<()>,
) -> Result<()> {
    let node = Node::of(inode)?;
    let mut state = node.state();
    let mut xattrs = state.xattrs.take().unwrap_or_default();
    let changed = change(node, &mut xattrs);
    // Most files have none, and keep no room for them.
    state.xattrs = (!xattrs.is_empty()).then_some(xattrs);
    if changed.is_ok() {
        state.attr.ctime = now();
        inode.set_attr(&state.attr);
    }
    changed
}

/// The private part of an inode: its node.
#[doc(alias = "i_private")]
pub(crate) struct InodePrivate {
    pub(crate) node: Arc<Node>,
    inode: InodeOf,
}

impl InodePrivate {
    fn new(node: &Arc<Node>, sb: &SuperBlock) -> InodePrivate {
        InodePrivate {
            node: node.clone(),
            inode: node.state().inodes.add(sb),
        }
    }
}

impl LastPut for InodePrivate {
    fn last_put(&self) {
        self.node.users(|state| state.inodes.remove(self.inode));
    }
}

impl Drop for InodePrivate {
    /// For an inode that went to make room, or with its caches.
    fn drop(&mut self) {
        self.last_put();
    }
}

/// The VFS's inode for a node.
fn iget(sb: &SuperBlock, node: &Arc<Node>) -> Result<InodeRef> {
    let new = match sb.iget(InodeKey::new(node.ino))? {
        Iget::Cached(inode) => return Ok(inode),
        Iget::New(new) => new,
    };
    let private = InodePrivate::new(node, sb);
    let state = node.state();
    let fill = InodeFill::new(state.attr).private_last_put(private);
    let acl = state
        .xattrs
        .as_ref()
        .and_then(|all| all.get(xattrs::ACCESS));
    let fill = match (node.kind, acl) {
        (FileType::Symlink, _) => fill.link(node.target()?),
        (_, Some(acl)) => fill.acl(Acl::Known(acl.into())),
        (_, None) => fill,
    };
    drop(state);
    Ok(new.init(fill))
}
