//! What the VFS asks for.
//!
//! The VFS holds a directory's lock over each call, so two changes of one directory
//! never meet here; the locks inside guard against the builder, which has no such
//! lock, and are taken one at a time or parent before child.

use std::sync::Arc;

use rcuwalk::{
    At, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode, InodeFill, InodeKey, InodeRef,
    Name, NewFile, RawEntry, Result, SuperBlock,
};

use crate::node::{Node, recover};
use crate::{MemFs, ROOT};

impl FileSystem for MemFs {
    fn name(&self) -> &str {
        "memfs"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, &self.node(ROOT)?)
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let dir = Node::of(dir)?;
        let node = dir.names.read().unwrap_or_else(recover).get(name).cloned();
        node.map(|node| iget(sb, &node)).transpose()
    }

    fn read_link(&self, _sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>> {
        Ok(Node::of(inode)?.target.clone())
    }

    fn read_dir(
        &self,
        _sb: &SuperBlock,
        dir: &Inode,
        from: u64,
        emit: &mut dyn Emit,
    ) -> Result<()> {
        let names = Node::of(dir)?.names.read().unwrap_or_else(recover);
        for (position, name, node) in names.after(from) {
            let kind = Some(node.kind);
            if emit
                .entry(RawEntry {
                    name,
                    ino: node.ino,
                    kind,
                    next: position,
                })
                .is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, _sb: &SuperBlock, at: &At<'_>) -> Result<Box<dyn FileHandle>> {
        Ok(Box::new(Open(Node::of(at.inode)?.clone())))
    }

    fn create(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        let parent = Node::of(dir)?;
        let node = self.make(parent, name, new)?;
        dir.set_attr(&parent.attr());
        iget(sb, &node)
    }

    fn link(&self, inode: &Inode, dir: &Inode, name: Name<'_>) -> Result<()> {
        let node = Node::of(inode)?;
        self.link_node(node, Node::of(dir)?, name)?;
        inode.set_attr(&node.attr());
        Ok(())
    }

    fn unlink(&self, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let node = Node::of(dir)?
            .names
            .write()
            .unwrap_or_else(recover)
            .remove(name);
        let node = node.ok_or(Error::NotFound)?;
        self.lost_a_name(&node);
        inode.set_attr(&node.attr());
        Ok(())
    }

    fn rmdir(&self, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        let (parent, node) = (Node::of(dir)?, Node::of(inode)?);
        remove_empty(node)?;
        parent.names.write().unwrap_or_else(recover).remove(name);
        self.lost_a_name(node);
        parent.change_attr(|attr| attr.nlink -= 1);
        inode.set_attr(&node.attr());
        dir.set_attr(&parent.attr());
        Ok(())
    }

    fn rename(
        &self,
        sb: &SuperBlock,
        from: (&Inode, Name<'_>),
        to: (&Inode, Name<'_>),
    ) -> Result<()> {
        let (from_dir, to_dir) = (Node::of(from.0)?, Node::of(to.0)?);
        let replaced = to_dir
            .names
            .read()
            .unwrap_or_else(recover)
            .get(to.1)
            .cloned();
        if let Some(old) = &replaced
            && old.kind == FileType::Directory
        {
            remove_empty(old)?;
            to_dir.change_attr(|attr| attr.nlink -= 1);
        }
        let moved = from_dir
            .names
            .write()
            .unwrap_or_else(recover)
            .remove(from.1);
        let moved = moved.ok_or(Error::NotFound)?;
        {
            let mut names = to_dir.names.write().unwrap_or_else(recover);
            names.remove(to.1);
            names.insert(to.1, moved.clone());
        }
        if let Some(old) = replaced {
            self.lost_a_name(&old);
            publish(sb, &old);
        }
        if moved.kind == FileType::Directory {
            from_dir.change_attr(|attr| attr.nlink -= 1);
            to_dir.change_attr(|attr| attr.nlink += 1);
        }
        from.0.set_attr(&from_dir.attr());
        to.0.set_attr(&to_dir.attr());
        Ok(())
    }

    fn set_mode(&self, inode: &Inode, mode: u16) -> Result<()> {
        let attr = Node::of(inode)?.change_attr(|attr| attr.mode = mode);
        inode.set_attr(&attr);
        Ok(())
    }
}

impl MemFs {
    pub(crate) fn make(
        &self,
        parent: &Arc<Node>,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<Arc<Node>> {
        let mut names = may_add(parent, name)?;
        let node = self.new_node(new);
        names.insert(name, node.clone());
        drop(names);
        if new.kind == FileType::Directory {
            parent.change_attr(|attr| attr.nlink += 1);
        }
        Ok(node)
    }

    pub(crate) fn link_node(
        &self,
        node: &Arc<Node>,
        parent: &Arc<Node>,
        name: Name<'_>,
    ) -> Result<()> {
        if node.kind == FileType::Directory {
            return Err(Error::NotPermitted);
        }
        let mut names = may_add(parent, name)?;
        if node.attr().nlink == 0 {
            // Its last name went while this one was under way.
            return Err(Error::NotFound);
        }
        node.change_attr(|attr| attr.nlink += 1);
        names.insert(name, node.clone());
        Ok(())
    }

    fn lost_a_name(&self, node: &Node) {
        let attr = node.change_attr(|attr| {
            let gone = if node.kind == FileType::Directory {
                attr.nlink
            } else {
                1
            };
            attr.nlink = attr.nlink.saturating_sub(gone);
        });
        if attr.nlink == 0 {
            self.drop_node(node);
        }
    }
}

/// The names of a directory that takes new ones, locked.
fn may_add<'a>(
    parent: &'a Node,
    name: Name<'_>,
) -> Result<std::sync::RwLockWriteGuard<'a, crate::node::Names>> {
    if parent.kind != FileType::Directory {
        return Err(Error::NotADirectory);
    }
    let names = parent.names.write().unwrap_or_else(recover);
    if names.removed {
        return Err(Error::NotFound);
    }
    if names.get(name).is_some() {
        return Err(Error::Exists);
    }
    Ok(names)
}

fn remove_empty(node: &Node) -> Result<()> {
    let mut names = node.names.write().unwrap_or_else(recover);
    if !names.is_empty() {
        return Err(Error::NotEmpty);
    }
    names.removed = true;
    Ok(())
}

/// The VFS's inode for a node.
fn iget(sb: &SuperBlock, node: &Arc<Node>) -> Result<InodeRef> {
    Ok(match sb.iget(InodeKey::new(node.ino))? {
        Iget::Cached(inode) => inode,
        Iget::New(new) => {
            let fill = InodeFill::new(node.attr()).private(node.clone());
            match node.kind {
                FileType::Symlink => new.init(fill.link(node.target.clone())),
                _ => new.init(fill),
            }
        }
    })
}

/// Brings a cached inode's attributes up to date.
fn publish(sb: &SuperBlock, node: &Node) {
    if let Ok(Some(inode)) = sb.ilookup(InodeKey::new(node.ino)) {
        inode.set_attr(&node.attr());
    }
}

struct Open(Arc<Node>);

impl FileHandle for Open {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.0.read_at(buf, offset))
    }
}
