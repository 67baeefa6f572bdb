//! Directories: names in, inode numbers out; and all names in turn.
//!
//! | read             | to learn                                                    |
//! |------------------|-------------------------------------------------------------|
//! | `dir.rs`         | which of the shapes a directory has, listing                |
//! | `dir/block.rs`   | the entries of one block                                    |
//! | `dir/htree.rs`   | finding the block of a name by its hash                     |
//! | `dir/hash.rs`    | the hashes                                                  |
//! | `dir/linear.rs`  | going through the blocks one after another                  |
//! | `dir/inline.rs`  | a directory that fits into its inode                        |
//!
//! The unit of everything is the [`Leaf`]: a block of entries. A lookup first finds the leaf
//! and then the name in it, so a caller that wants the neighbours of a name gets them for free.
//!
//! DIR-1 is easy on an image that does not change: an entry's position is the place of
//! its record, in bytes from the start of the directory, and a listing goes through the
//! blocks in that order, with or without an index.
//!
//! # What is refused
//!
//! The names of an encrypted directory are not names without the key. In a casefolded
//! one a name that is there byte for byte is found, since no other name may fold to the
//! same; that a name is missing in every other spelling cannot be told without the
//! tables of the encoding, and is an error.
//!
//! # Bad directories
//!
//! As the kernel does: an index that contradicts itself is not used, and the blocks are
//! gone through one by one; an index block with a wrong checksum is an error, and so is
//! a block that the index leads to and that is not there. A hole elsewhere is passed. A
//! bad block is an error for a listing, too, which then ends, where the kernel's goes on
//! with the next block and tells only its log; [`Directory::leaves`] can go on.

pub(crate) mod block;
mod hash;
mod htree;
mod inline;
mod linear;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use rcuwalk::FileType;

use crate::cache::Block;
use crate::error::{DIRECTORY, Error, Place, Result};
use crate::features::{Compat, Incompat};
use crate::inode::{InodeFlags, RawInode};
use crate::volume::Volume;

use block::{Entries, Entry, Format};
use linear::Blocks;

/// A directory, to be read.
pub(crate) struct Directory<'v> {
    volume: &'v Volume,
    inode: &'v RawInode,
    format: Format,
    /// What the checksums of its blocks begin with.
    checksum_seed: u32,
    /// How many blocks it has.
    blocks: u32,
}

/// A part of a directory that holds entries: a block, or the inline data of the inode.
pub(crate) struct Leaf {
    contents: Contents,
    place: Place,
    format: Format,
    /// Where it begins in the directory.
    position: u64,
    found: Option<Found>,
}

enum Contents {
    Block(Block),
    Inline(Vec<u8>),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ino: u32,
    /// The file's type, if the directory stores it.
    pub(crate) kind: Option<FileType>,
}

impl<'v> Directory<'v> {
    /// # Errors
    /// [`Error::WrongType`] if `inode` is not a directory, [`Error::Unsupported`] if it is
    /// encrypted.
    pub(crate) fn open(volume: &'v Volume, inode: &'v RawInode) -> Result<Directory<'v>> {
        if inode.kind != FileType::Directory {
            return Err(Error::WrongType { wanted: DIRECTORY });
        }
        inode.check_readable()?;
        let super_block = volume.super_block();
        let format = Format {
            inodes_count: super_block.inodes_count(),
            filetype: super_block.features().has_incompat(Incompat::FILETYPE),
            large_blocks: super_block.block_size() >= 1 << 16,
        };
        let mut directory = Directory {
            volume,
            inode,
            format,
            checksum_seed: 0,
            blocks: 0,
        };
        if !directory.is_inline() {
            directory.blocks = directory.count_blocks()?;
            if super_block.has_checksums() {
                directory.checksum_seed = inode.checksum_seed(super_block);
            }
        }
        Ok(directory)
    }

    /// The inode number that `name` stands for.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Option<Found>> {
        Ok(self.leaf_of(name)?.and_then(|leaf| leaf.found()))
    }

    /// The leaf that has `name`, or the last one that was looked into for it. `None` only
    /// for a directory that has none at all.
    pub(crate) fn leaf_of(&self, name: &[u8]) -> Result<Option<Leaf>> {
        let leaf = match self.leaf_by_index(name)? {
            Some(leaf) => Some(leaf),
            None => self.leaf_by_scan(name)?,
        };
        let is_missing = leaf.as_ref().is_none_or(|leaf| leaf.found.is_none());
        if is_missing && self.is_casefolded() {
            return Err(Error::Unsupported {
                feature: "casefold".into(),
            });
        }
        Ok(leaf)
    }

    /// Hands out the entries after `position` (0: from the start), each with the position
    /// after it, `.` and `..` too, until `take` breaks.
    pub(crate) fn list(
        &self,
        position: u64,
        take: &mut dyn FnMut(&Entry<'_>, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        for leaf in self.leaves(position) {
            let leaf = leaf?;
            for entry in leaf.entries() {
                let entry = entry?;
                // The records before it are parsed again, so a position that this code did not
                // hand out is harmless.
                if leaf.position + (entry.start as u64) < position {
                    continue;
                }
                if take(&entry, leaf.position + entry.end as u64).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The leaves from the one at `position` on. After one that could not be read come
    /// the others, unless it is not known where they are.
    pub(crate) fn leaves(&self, position: u64) -> impl Iterator<Item = Result<Leaf>> {
        let (inline, blocks) = match self.is_inline() {
            true => (Some(self.inline_leaves()), None),
            false => (None, Some(Blocks::from(self, position))),
        };
        inline
            .into_iter()
            .flatten()
            .chain(blocks.into_iter().flatten())
    }

    fn is_inline(&self) -> bool {
        self.has_flag(InodeFlags::INLINE_DATA, Incompat::INLINE_DATA)
    }

    fn is_casefolded(&self) -> bool {
        self.has_flag(InodeFlags::CASEFOLD, Incompat::CASEFOLD)
    }

    fn has_flag(&self, flag: InodeFlags, feature: Incompat) -> bool {
        self.inode.flags.contains(flag) && self.features().has_incompat(feature)
    }

    #[doc(alias = "is_dx")]
    fn is_indexed(&self) -> bool {
        self.inode.flags.contains(InodeFlags::INDEX)
            && self.features().has_compat(Compat::DIR_INDEX)
    }

    fn features(&self) -> crate::features::Features {
        self.volume.super_block().features()
    }

    /// No directory has more blocks than the image. This bounds the work that a forged size, or
    /// a map that leads to the same few blocks again and again, can cause.
    fn count_blocks(&self) -> Result<u32> {
        let block_size = u64::from(self.volume.super_block().block_size());
        let size = self.inode.size;
        match u32::try_from(size / block_size) {
            Ok(blocks)
                if u64::from(blocks) <= self.volume.present_blocks()
                    && size.is_multiple_of(block_size) =>
            {
                Ok(blocks)
            }
            _ => Err(self.corrupt("i_size", format!("{size} bytes, of a directory"))),
        }
    }

    /// The block `physical` of the directory, as a leaf.
    fn leaf(&self, logical: u32, physical: u64, block: Block) -> Leaf {
        Leaf {
            contents: Contents::Block(block),
            place: self.place(physical),
            format: self.format,
            position: u64::from(logical) * u64::from(self.volume.super_block().block_size()),
            found: None,
        }
    }

    /// Reads a block of entries, and verifies its checksum if that is wanted.
    fn read_leaf(&self, logical: u32, physical: u64) -> Result<Leaf> {
        let block = self.volume.block(physical)?;
        // Below the root, an index block says what it is by looking like no entries.
        let is_index =
            self.is_indexed() && (logical == 0 || block::may_be_index(&block, self.format));
        if !is_index && self.volume.verifies(physical) && !block.is_verified() {
            if !block::checksum_matches(&block, self.checksum_seed) {
                return Err(self.bad_checksum(physical, "directory block"));
            }
            block.set_verified();
        }
        Ok(self.leaf(logical, physical, block))
    }

    fn place(&self, physical: u64) -> Place {
        Place::BlockOf {
            ino: self.inode.ino,
            block: physical,
        }
    }

    #[cold]
    fn bad_checksum(&self, physical: u64, what: &'static str) -> Error {
        Error::Checksum {
            place: self.place(physical),
            what,
        }
    }

    /// Something is wrong with the directory's inode.
    #[cold]
    fn corrupt(&self, field: &'static str, why: String) -> Error {
        Error::Corrupt {
            place: Place::Inode(self.inode.ino),
            field,
            why,
        }
    }
}

impl Leaf {
    /// What the name that was looked up stands for.
    pub(crate) fn found(&self) -> Option<Found> {
        self.found
    }

    /// All of its entries, also `.` and `..`.
    pub(crate) fn entries(&self) -> Entries<'_> {
        Entries::of(self.bytes(), self.format, self.place)
    }

    /// Looks for `name`, and remembers what it stands for.
    fn find(&mut self, name: &[u8]) -> Result<bool> {
        self.found = self.entries().find(name)?.map(|entry| Found {
            ino: entry.ino,
            kind: entry.kind,
        });
        Ok(self.found.is_some())
    }

    fn bytes(&self) -> &[u8] {
        match &self.contents {
            Contents::Block(block) => block,
            Contents::Inline(bytes) => bytes,
        }
    }
}
