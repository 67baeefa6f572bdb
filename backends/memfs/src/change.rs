//! Changes of the tree: what the builder and the VFS both do.
//!
//! The VFS holds the locks of the directories and of what loses or gets a name, so two
//! of its changes never meet here; the builder holds nothing, and must not meet any.

use std::sync::Arc;

use rcuwalk::{
    Attr, Caller, Error, FileType, Inode, InodeKey, InodeRef, Name, NewFile, Rename, RenameFlags,
    Result, SuperBlock, Timestamp,
};

use crate::MemFs;
use crate::node::{Node, count_name, now};
use crate::space::INODE;

/// A directory: its node, and its inode if it is the VFS that asks.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) inode: Option<&'a Inode>,
}

impl<'a> Dir<'a> {
    pub(crate) fn of(inode: &'a Inode) -> Result<Dir<'a>> {
        Ok(Dir {
            node: Node::of(inode)?,
            inode: Some(inode),
        })
    }

    /// It has got (+1) or lost (-1) a name, and a directory in it, or neither.
    fn changed(self, now: Timestamp, names: i64, dirs: i64) {
        self.node.change(self.inode, |attr| {
            count_name(attr, names);
            // A directory that is removed itself meanwhile has none already.
            attr.nlink = attr.nlink.saturating_add_signed(dirs as i32);
            (attr.mtime, attr.ctime) = (now, now);
        });
    }
}

impl MemFs {
    #[doc(alias("shmem_mknod", "shmem_mkdir", "shmem_symlink"))]
    pub(crate) fn make(
        &self,
        parent: Dir<'_>,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<Arc<Node>> {
        let mut names = parent.node.names_mut()?;
        if names.removed {
            return Err(Error::NotFound);
        }
        let now = now();
        let node = Arc::new(self.new_node(new, now)?);
        if let Err(taken) = names.insert(name, node.clone()) {
            self.is_nameless();
            return Err(taken);
        }
        is_in(&node, parent.node);
        parent.changed(now, 1, is_dir(&node));
        Ok(node)
    }

    /// A regular file without a name.
    #[doc(alias = "shmem_tmpfile")]
    pub(crate) fn make_nameless(&self, new: &NewFile<'_>) -> Result<Arc<Node>> {
        let node = self.new_node(new, now())?;
        self.is_nameless();
        {
            let mut state = node.state();
            state.attr.nlink = 0;
            state.linkable = true;
        }
        Ok(Arc::new(node))
    }

    #[doc(alias = "shmem_link")]
    pub(crate) fn link_node(
        &self,
        node: &Arc<Node>,
        inode: Option<&Inode>,
        parent: Dir<'_>,
        name: Name<'_>,
    ) -> Result<()> {
        if node.kind == FileType::Directory {
            return Err(Error::NotPermitted);
        }
        let mut names = parent.node.names_mut()?;
        let mut state = node.state();
        let first = state.attr.nlink == 0;
        if names.removed || first && !state.linkable {
            // Its last name went while this one was under way.
            return Err(Error::NotFound);
        }
        let nlink = state.attr.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
        // The inode itself has paid for one name.
        let price = if first { 0 } else { INODE };
        self.tree.space.take_inode_bytes(price)?;
        if let Err(taken) = names.insert(name, node.clone()) {
            self.tree.space.give_inode_bytes(price);
            return Err(taken);
        }
        let now = now();
        state.linkable = false;
        (state.attr.nlink, state.attr.ctime) = (nlink, now);
        if let Some(inode) = inode {
            inode.set_attr(&state.attr);
        }
        let numbered = state.numbered;
        drop(state);
        drop(names);
        if first {
            self.is_named();
            if numbered {
                self.find_by_number(node);
            }
        }
        parent.changed(now, 1, 0);
        Ok(())
    }

    #[doc(alias = "shmem_unlink")]
    pub(crate) fn unlink_node(&self, parent: Dir<'_>, name: Name<'_>, inode: &Inode) -> Result<()> {
        let node = parent.node.names_mut()?.remove(name);
        let node = node.ok_or(Error::NotFound)?;
        let now = now();
        self.lost_a_name(&node, Some(inode), now);
        parent.changed(now, -1, 0);
        Ok(())
    }

    #[doc(alias = "shmem_rmdir")]
    pub(crate) fn remove_dir(&self, parent: Dir<'_>, name: Name<'_>, inode: &Inode) -> Result<()> {
        let node = Node::of(inode)?;
        remove_empty(node)?;
        parent.node.names_mut()?.remove(name);
        let now = now();
        self.lost_a_name(node, Some(inode), now);
        parent.changed(now, -1, -1);
        Ok(())
    }

    #[doc(alias = "shmem_rename2")]
    pub(crate) fn move_name(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
        if !known.contains(how.flags) {
            return Err(Error::Invalid);
        }
        if how.flags.contains(RenameFlags::EXCHANGE) {
            return exchange(how);
        }
        let (from, to) = (Dir::of(how.from.0)?, Dir::of(how.to.0)?);
        let moved = Node::of(how.moved)?;
        let old = to.node.names()?.get(how.to.1).cloned();
        let old_dir = old.clone().filter(|old| old.kind == FileType::Directory);
        if let Some(dir) = &old_dir
            && !dir.names()?.is_empty()
        {
            return Err(Error::NotEmpty);
        }
        let now = now();
        let (came, dirs) = (
            i64::from(old.is_none()),
            is_dir(moved) - old.as_deref().map_or(0, is_dir),
        );
        if let Some(new) = how.whiteout {
            self.white_out(new, from, how.from.1, now)?;
        } else {
            let gone = from.node.names_mut()?.remove(how.from.1);
            gone.ok_or(Error::NotFound)?;
        }
        // Not before all else has been done that can fail.
        if let Some(dir) = &old_dir {
            remove_empty(dir)?;
        }
        put(to, how.to.1, moved)?;
        let went = i64::from(how.whiteout.is_none());
        if Arc::ptr_eq(from.node, to.node) {
            to.changed(now, came - went, dirs - is_dir(moved));
        } else {
            from.changed(now, -went, -is_dir(moved));
            to.changed(now, came, dirs);
        }
        moved.change(Some(how.moved), |attr| attr.ctime = now);
        if let Some(old) = old {
            let inode = how.replaced.filter(|inode| is_of(inode, &old));
            match inode {
                Some(inode) => self.lost_a_name(&old, Some(inode), now),
                None => {
                    let cached = cached(by.sb, &old);
                    self.lost_a_name(&old, cached.as_deref(), now);
                }
            }
        }
        Ok(())
    }

    /// Leaves in place of a name what says to an overlay that there is nothing.
    #[doc(alias = "shmem_whiteout")]
    fn white_out(
        &self,
        new: &NewFile<'_>,
        dir: Dir<'_>,
        name: Name<'_>,
        now: Timestamp,
    ) -> Result<()> {
        let node = Arc::new(self.new_node(new, now)?);
        let replaced = dir.node.names_mut()?.replace(name, node);
        replaced.map(drop).map_err(|_| {
            self.is_nameless();
            Error::NotFound
        })
    }

    fn lost_a_name(&self, node: &Node, inode: Option<&Inode>, now: Timestamp) {
        let is_dir = node.kind == FileType::Directory;
        let mut state = node.state();
        let attr = &mut state.attr;
        let gone = if is_dir { attr.nlink } else { 1 };
        attr.nlink = attr.nlink.saturating_sub(gone);
        attr.ctime = now;
        if let Some(inode) = inode {
            inode.set_attr(attr);
        }
        if attr.nlink > 0 {
            return self.tree.space.give_inode_bytes(INODE);
        }
        let numbered = state.numbered;
        drop(state);
        self.is_nameless();
        if numbered {
            self.forget_number(node.ino);
        }
    }
}

/// Both names change places; each keeps its position.
#[doc(alias = "simple_rename_exchange")]
fn exchange(how: &Rename<'_>) -> Result<()> {
    let (from, to) = (Dir::of(how.from.0)?, Dir::of(how.to.0)?);
    let other = how.replaced.ok_or(Error::NotFound)?;
    let (moved, replaced) = (Node::of(how.moved)?, Node::of(other)?);
    // A reader in between finds both names, and one file twice.
    let swapped = from.node.names_mut()?.replace(how.from.1, replaced.clone());
    swapped.map_err(|_| Error::NotFound)?;
    let swapped = to.node.names_mut()?.replace(how.to.1, moved.clone());
    if swapped.is_err() {
        let _ = from.node.names_mut()?.replace(how.from.1, moved.clone());
        return Err(Error::NotFound);
    }
    is_in(replaced, from.node);
    is_in(moved, to.node);
    let now = now();
    // Of two directories; in one and the same, the second call takes back the first's.
    let dirs = is_dir(replaced) - is_dir(moved);
    from.changed(now, 0, dirs);
    to.changed(now, 0, -dirs);
    let touch = |attr: &mut Attr| attr.ctime = now;
    moved.change(Some(how.moved), touch);
    replaced.change(Some(other), touch);
    Ok(())
}

/// Gives a node a name, which may be another's: that is at the same place in a listing.
fn put(dir: Dir<'_>, name: Name<'_>, node: &Arc<Node>) -> Result<()> {
    let mut names = dir.node.names_mut()?;
    match names.replace(name, node.clone()) {
        Ok(_) => {}
        Err(node) => names.insert(name, node)?,
    }
    is_in(node, dir.node);
    Ok(())
}

/// A directory has got a name in `above`, whose names the caller has locked.
fn is_in(dir: &Node, above: &Arc<Node>) {
    // Only a directory has names.
    if let Ok(mut names) = dir.names_mut() {
        names.above = Arc::downgrade(above);
    }
}

fn remove_empty(node: &Node) -> Result<()> {
    let mut names = node.names_mut()?;
    if !names.is_empty() {
        return Err(Error::NotEmpty);
    }
    names.removed = true;
    Ok(())
}

fn is_dir(node: &Node) -> i64 {
    i64::from(node.kind == FileType::Directory)
}

fn is_of(inode: &Inode, node: &Arc<Node>) -> bool {
    Node::of(inode).is_ok_and(|of| Arc::ptr_eq(of, node))
}

fn cached(sb: &SuperBlock, node: &Node) -> Option<InodeRef> {
    sb.ilookup(InodeKey::new(node.ino)).ok().flatten()
}
