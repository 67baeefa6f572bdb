//! Finds forgotten nodes again, for file handles that the kernel opens.
//!
//! | request                   | when                                                         |
//! |---------------------------|--------------------------------------------------------------|
//! | LOOKUP of `.` in a node   | a handle holds the node's id, and the kernel has no inode of it |
//! | LOOKUP of `..` in a node  | the node is a directory that the kernel has no name for yet  |
//!
//! The kernel has checked that its caller may open handles, and compares the generation of the
//! answer with that in the handle. It finds the name of a directory itself, by listing the
//! parent.

use rcuwalk::inode::NodeId;
use rcuwalk::{Error, LookupFlags, Result, VfsPath};

use super::{AttrReply, Found, Ops, as_daemon};

/// Greatest depth of a directory: a path of more names is too long for the host.
const DEEPEST: usize = 4096;

impl Ops {
    /// LOOKUP of `.`: the node itself.
    ///
    /// # Errors
    /// [`Error::Stale`] if it has been forgotten, and its file cannot be found.
    pub(super) fn lookup_itself(&self, id: NodeId) -> Result<Found<'_>> {
        if let Ok(node) = self.nodes.get(id) {
            // FORGET is on its way, and the kernel has no inode any more. So the file is not
            // open, and if it has been removed it is gone, though it is still held here
            // (HOLD-1).
            let attr = self.attr_of(&node).map_err(stale_if_gone)?;
            if attr.nlink == 0 {
                return Err(Error::Stale);
            }
            let (generation, attr_reply) = (node.generation, AttrReply::of(attr, &node));
            // Otherwise it has just been forgotten.
            if let Ok(entry) = self.nodes.entry_of(node) {
                return Ok(Found {
                    entry,
                    generation,
                    attr_reply,
                });
            }
        }
        match self.by_whereabouts(id) {
            Err(Error::Stale) => self.found_again(&self.vfs.by_number(id.0)?, id, None),
            found => found,
        }
    }

    /// LOOKUP of `..`: the parent of a directory.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is not below the root any more.
    pub(super) fn lookup_above(&self, id: NodeId) -> Result<Found<'_>> {
        let ctx = as_daemon(self.vfs.root()).with_cwd(self.place(id)?);
        let flags = LookupFlags::REF_WALK | LookupFlags::DIRECTORY;
        let above = self.vfs.lookup(&ctx, "..", flags).map_err(stale_if_gone)?;
        self.found(&above)
    }

    /// Finds the node by its place when the kernel forgot it.
    fn by_whereabouts(&self, id: NodeId) -> Result<Found<'_>> {
        let last = self.nodes.remembered(id).ok_or(Error::Stale)?;
        let dir = self.directory(last.dir)?;
        let path = self.below(dir, &last.name)?;
        if path.number_of(path.attr().ino) != last.ino {
            return Err(Error::Stale);
        }
        self.found_again(&path, id, Some(last.generation))
    }

    /// Finds the directory that has the number `ino`: where it was, or through the back end.
    /// Directories on the way may have changed: only the file at the end has to be the same.
    fn directory(&self, ino: u64) -> Result<VfsPath> {
        match self.remembered_directory(ino) {
            Ok(place) if place.number_of(place.attr().ino) == ino => Ok(place),
            Ok(_) | Err(Error::Stale) => self.vfs.by_number(ino),
            Err(err) => Err(err),
        }
    }

    /// Finds the directory that had the number `ino`: as a node that the kernel knows, or by
    /// its own last place, and so on upwards.
    fn remembered_directory(&self, mut ino: u64) -> Result<VfsPath> {
        let mut names = Vec::new();
        let mut place = loop {
            if let Some(place) = self.nodes.known_directory(ino) {
                break place;
            }
            match self.nodes.remembered(NodeId(ino)) {
                Some(last) if last.ino == ino && names.len() < DEEPEST => {
                    names.push(last.name);
                    ino = last.dir;
                }
                _ => break self.vfs.by_number(ino)?,
            }
        };
        while let Some(name) = names.pop() {
            place = self.below(place, &name)?;
        }
        Ok(place)
    }

    fn below(&self, dir: VfsPath, name: &[u8]) -> Result<VfsPath> {
        let found = self
            .vfs
            .lookup(&as_daemon(dir), super::name(name)?, LookupFlags::REF_WALK);
        found.map_err(stale_if_gone)
    }

    fn found_again(
        &self,
        path: &VfsPath,
        id: NodeId,
        generation: Option<u32>,
    ) -> Result<Found<'_>> {
        let entry = self.nodes.entry_again(path, id, generation)?;
        Ok(Found {
            generation: entry.known().generation,
            attr_reply: AttrReply::of(self.attr_at(entry.known(), path), entry.known()),
            entry,
        })
    }
}

/// Turns a name on the way that is gone, or leads elsewhere, into [`Error::Stale`].
fn stale_if_gone(err: Error) -> Error {
    match err {
        Error::NotFound | Error::NotADirectory | Error::CrossDevice => Error::Stale,
        err => err,
    }
}
