//! The image as a [`FileSystem`]: what the VFS asks for.
//!
//! The rule: **an inode is its number.** Nothing changes, so every answer is
//! [`Freshness::Always`]. Only directories keep their parsed inode beside the VFS's, because
//! each lookup in them begins with it. Other inodes are parsed again when needed: a link's
//! target when the link is read, a file's map when the file is opened, from a block that is
//! likely to be cached.
//!
//! # Permissions
//!
//! The VFS's check goes by owner, group, mode and ACL, as the kernel's does on a mount with
//! `acl`. An inode that has any extended attribute is asked for its ACL when it matters.
//!
//! # Names that lead nowhere
//!
//! As on the kernel, a name is an error (`EUCLEAN`) and not missing if its inode number is
//! out of bounds, is one of the file system's own, is the directory itself, or is not in
//! use: something is wrong with the image, and a backup without the file would be as
//! well.

mod handle;

use std::ops::ControlFlow;
use std::sync::Arc;

use rcuwalk::{
    Acl, At, ByNumber, Caller, Emit, FileHandle, FileSystem, FileType, Freshness, Iget, Inode,
    InodeFill, InodeKey, InodeRef, Name, OpenFlags, RawEntry, StatFs, SuperBlock as Sb,
};

use crate::dir::Directory;
use crate::error::{DIRECTORY, Error, Place, Result};
use crate::ext4::Ext4;
use crate::inode::{InodeFlags, RawInode};
use crate::link;
use crate::super_block::SuperBlock;
use crate::volume::{InodeCursor, Volume};
use crate::xattr;

/// The inode of the root directory.
pub(crate) const ROOT: u32 = 2;

/// What statfs(2) says about an ext4.
#[doc(alias = "EXT4_SUPER_MAGIC")]
const MAGIC: u64 = 0xEF53;

/// How many entries ahead the cache is told of an inode.
const AHEAD: usize = 8;

impl Ext4 {
    /// The inode number that `name` stands for in the directory `dir`; `.` and `..` too.
    ///
    /// # Errors
    /// [`Error::WrongType`] if `dir` is no directory; [`Error::Unsupported`] if it is
    /// encrypted, and for a name that is not there as it is spelled in one that is
    /// casefolded.
    pub fn lookup(&self, dir: u32, name: &[u8]) -> Result<Option<u32>> {
        let inode = self.volume.inode(dir)?;
        let directory = Directory::open(&self.volume, &inode)?;
        if let Some(parent) = directory.inline_parent() {
            match name {
                b"." => return Ok(Some(dir)),
                b".." => return Ok(Some(parent)),
                _ => {}
            }
        }
        Ok(directory.lookup(name)?.map(|found| found.ino))
    }

    /// The VFS's inode for `ino`, read in if it is not cached.
    pub(crate) fn iget(
        &self,
        sb: &Sb,
        cursor: &mut InodeCursor,
        ino: u32,
    ) -> rcuwalk::Result<InodeRef> {
        match sb.iget(InodeKey::new(u64::from(ino)))? {
            Iget::Cached(inode) => Ok(inode),
            Iget::New(new) => {
                let inode = self.volume.inode_near(cursor, ino)?;
                let fill = InodeFill::new(inode.attr()).acl(match inode.may_have_xattrs {
                    true if inode.kind != FileType::Symlink => Acl::Unknown,
                    _ => Acl::None,
                });
                Ok(new.init(match inode.kind {
                    FileType::Directory => fill.private(inode),
                    _ => fill,
                }))
            }
        }
    }

    /// As [`iget`](Self::iget), for a name that was found in `dir`.
    pub(crate) fn iget_named(
        &self,
        sb: &Sb,
        cursor: &mut InodeCursor,
        dir: &RawInode,
        ino: u32,
    ) -> rcuwalk::Result<InodeRef> {
        check_named(self.volume.super_block(), dir.ino, ino)?;
        match self.iget(sb, cursor, ino) {
            Err(rcuwalk::Error::NotFound) => Err(named(dir.ino, ino, Error::NotFound).into()),
            found => found,
        }
    }
}

/// The check that a name in `dir` may lead to `ino` at all.
#[doc(alias = "ext4_valid_inum")]
#[inline]
pub(crate) fn check_named(super_block: &SuperBlock, dir: u32, ino: u32) -> Result<()> {
    if ino == dir {
        return Err(leads_nowhere(dir, ino, "the directory itself"));
    }
    if ino != ROOT && ino < super_block.first_inode() || ino > super_block.inodes_count() {
        return Err(leads_nowhere(dir, ino, "no file's"));
    }
    Ok(())
}

/// What an error means for the name in `dir` that led to `ino`.
#[cold]
pub(crate) fn named(dir: u32, ino: u32, err: Error) -> Error {
    match err {
        Error::NotFound => leads_nowhere(dir, ino, "not in use"),
        err => err,
    }
}

impl FileSystem for Ext4 {
    fn name(&self) -> &str {
        "ext4"
    }

    fn read_only(&self) -> bool {
        true
    }

    fn root(&self, sb: &Sb) -> rcuwalk::Result<InodeRef> {
        match self.iget(sb, &mut InodeCursor::default(), ROOT) {
            Err(rcuwalk::Error::NotFound) => Err(Error::Corrupt {
                place: Place::Inode(ROOT),
                field: "i_links_count",
                why: "the root directory is not in use".into(),
            }
            .into()),
            root => root,
        }
    }

    fn generation(&self, _: &Caller<'_>, at: &At<'_>) -> rcuwalk::Result<Option<u32>> {
        Ok(Some(self.read_again(at.inode)?.generation))
    }

    fn by_number(&self, sb: &Sb, number: u64) -> rcuwalk::Result<ByNumber> {
        self.find_number(sb, number)
    }

    fn encode_handle(&self, _: &Caller<'_>, at: &At<'_>) -> rcuwalk::Result<Box<[u8]>> {
        let inode = self.read_again(at.inode)?;
        Ok(self.handle_of(inode.ino, inode.generation))
    }

    fn open_handle(&self, sb: &Sb, id: &[u8]) -> rcuwalk::Result<ByNumber> {
        self.find_handle(sb, id)
    }

    fn lookup(&self, sb: &Sb, dir: &Inode, name: Name<'_>) -> rcuwalk::Result<Option<InodeRef>> {
        let dir = private(dir)?;
        match Directory::open(&self.volume, dir)?.lookup(name.as_bytes())? {
            None => Ok(None),
            Some(found) => self
                .iget_named(sb, &mut InodeCursor::default(), dir, found.ino)
                .map(Some),
        }
    }

    fn caches_listings(&self) -> bool {
        true
    }

    /// Names are found by hash and listed by block; an image that is damaged may differ. Names
    /// without regard to case, and encrypted ones, are found in another way.
    fn lists_all_names(&self, _sb: &Sb, dir: &Inode) -> bool {
        let dir = self.read_again(dir);
        dir.is_ok_and(|dir| {
            let other = InodeFlags::CASEFOLD | InodeFlags::ENCRYPT;
            !dir.flags.intersects(other)
        })
    }

    fn looks_around(&self) -> bool {
        true
    }

    fn lookup_around(
        &self,
        sb: &Sb,
        dir: &Inode,
        name: Name<'_>,
        around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>,
    ) -> rcuwalk::Result<Option<InodeRef>> {
        let dir = private(dir)?;
        let directory = Directory::open(&self.volume, dir)?;
        let Some(leaf) = directory.leaf_of(name.as_bytes())? else {
            return Ok(None);
        };
        let mut cursor = InodeCursor::default();
        // The wanted name comes first: the limit on neighbours does not apply to it.
        let found = leaf
            .found()
            .map(|found| self.iget_named(sb, &mut cursor, dir, found.ino))
            .transpose()?;
        let entries: Vec<_> = leaf
            .entries()
            .map_while(Result::ok)
            .filter(|entry| !entry.is_dot())
            .collect();
        for (index, entry) in entries.iter().enumerate() {
            if let Some(later) = entries.get(index + 2 * AHEAD) {
                sb.prefetch(InodeKey::new(u64::from(later.ino)));
            }
            if let Some(later) = entries.get(index + AHEAD) {
                sb.prefetch_chain(InodeKey::new(u64::from(later.ino)));
            }
            let Ok(name) = Name::new(entry.name) else {
                continue;
            };
            let Ok(inode) = self.iget_named(sb, &mut cursor, dir, entry.ino) else {
                continue;
            };
            if around(name, inode).is_break() {
                break;
            }
        }
        Ok(found)
    }

    fn read_link(&self, _sb: &Sb, inode: &Inode) -> rcuwalk::Result<Box<[u8]>> {
        let inode = self.read_again(inode)?;
        Ok(link::read(&self.volume, &inode)?.into())
    }

    fn read_dir(
        &self,
        _sb: &Sb,
        dir: &Inode,
        from: u64,
        emit: &mut dyn Emit,
    ) -> rcuwalk::Result<()> {
        let directory = Directory::open(&self.volume, private(dir)?)?;
        directory.list(from, &mut |entry, next| {
            if entry.is_dot() {
                return ControlFlow::Continue(());
            }
            emit.entry(RawEntry {
                name: entry.name,
                ino: u64::from(entry.ino),
                kind: entry.kind,
                next,
            })
        })?;
        Ok(())
    }

    fn open(
        &self,
        _: &Caller<'_>,
        at: &At<'_>,
        _: OpenFlags,
    ) -> rcuwalk::Result<Box<dyn FileHandle>> {
        let inode = self.read_again(at.inode)?;
        inode.check_readable()?;
        Ok(Box::new(Open {
            volume: Arc::clone(&self.volume),
            inode,
        }))
    }

    fn freshness(&self) -> Freshness {
        Freshness::Always
    }

    fn get_xattr(&self, _: &Caller<'_>, at: &At<'_>, name: &[u8]) -> rcuwalk::Result<Box<[u8]>> {
        let all = xattr::list(&self.volume, &self.read_again(at.inode)?)?;
        let found = all.into_iter().find(|xattr| xattr.name == name);
        let found = found.ok_or(rcuwalk::Error::NoData)?;
        Ok(found.value.into())
    }

    fn list_xattrs(&self, _: &Caller<'_>, at: &At<'_>) -> rcuwalk::Result<Vec<Box<[u8]>>> {
        let all = xattr::list(&self.volume, &self.read_again(at.inode)?)?;
        Ok(all.into_iter().map(|xattr| xattr.name.into()).collect())
    }

    fn posix_acl(&self) -> bool {
        true
    }

    /// As the super block counts, the file system's own blocks among them: `minixdf`.
    fn statfs(&self, _: &Sb) -> rcuwalk::Result<StatFs> {
        let super_block = self.volume.super_block();
        let mut told = StatFs::default();
        told.kind = MAGIC;
        told.block_size = super_block.block_size();
        told.blocks = super_block.blocks_count();
        told.blocks_free = super_block.free_blocks_count();
        told.blocks_available = super_block.free_blocks_count();
        told.files = u64::from(super_block.inodes_count());
        told.files_free = u64::from(super_block.free_inodes_count());
        Ok(told)
    }
}

impl Ext4 {
    /// The image's inode of one that is cached.
    fn read_again(&self, inode: &Inode) -> Result<RawInode> {
        let ino = u32::try_from(inode.inode_key().ino).map_err(|_| Error::NotFound)?;
        let again = self.volume.inode(ino)?;
        match again.kind == inode.kind() {
            true => Ok(again),
            // Another process writes to the image, which the contract of the source forbids.
            false => Err(Error::WrongType {
                wanted: "of the type it had",
            }),
        }
    }
}

/// A file that is open: its inode, which has the way to its contents.
struct Open {
    volume: Arc<Volume>,
    inode: RawInode,
}

impl FileHandle for Open {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> rcuwalk::Result<usize> {
        Ok(self.volume.read_data(&self.inode, buf, offset)?)
    }
}

/// The image's inode of a cached directory.
fn private(dir: &Inode) -> Result<&RawInode> {
    dir.private().ok_or(Error::WrongType { wanted: DIRECTORY })
}

#[cold]
fn leads_nowhere(dir: u32, ino: u32, what: &str) -> Error {
    Error::Corrupt {
        place: Place::Inode(dir),
        field: "inode",
        why: format!("an entry for inode {ino}, which is {what}"),
    }
}

#[cfg(test)]
mod tests;
