//! The journal, replayed into memory.
//!
//! A file system that was not unmounted has its newest metadata only in its journal.
//! [`recover`] finds what the kernel would write back when mounting, and keeps it as an
//! [`Overlay`] over the image; the image is never written.
//!
//! | read                     | to learn                                            |
//! |--------------------------|-----------------------------------------------------|
//! | `journal/log.rs`         | the journal's super block, and the ring of blocks   |
//! | `journal/descriptor.rs`  | what the blocks in it say: tags and revocations     |
//! | `journal/replay.rs`      | the three passes                                    |
//!
//! Replay follows the kernel's, not e2fsck's, where the two differ: a journal that the
//! kernel refuses to mount is an error here too, since anything else would be a guess.
//!
//! Not done, as it changes nothing that a name leads to: cleaning up orphans. An
//! unlinked but open file has no name; one whose truncation was under way has its
//! new size already, but may count more blocks than after the kernel's cleanup.

mod descriptor;
mod log;
mod replay;

use crate::error::{Error, Place, Result};
use crate::features::Compat;
use crate::inode::RawInode;
use crate::overlay::Overlay;
use crate::volume::Volume;

use log::{Log, ReadLog};

/// What the journal of `volume` has that the image itself does not yet.
///
/// `volume` is the image as it is; afterwards its super block and its group descriptors
/// are to be read again through the overlay, which may have newer ones.
///
/// # Errors
/// [`Error::Unsupported`] for an external journal and for journal features that we do
/// not know, and what reading the journal reports.
#[doc(alias("ext4_load_journal", "jbd2_journal_recover"))]
pub(crate) fn recover(volume: &Volume) -> Result<Overlay> {
    let super_block = volume.super_block();
    // Without the flag the kernel does not look into the journal either.
    if !super_block.features().has_compat(Compat::HAS_JOURNAL) || !super_block.may_need_recovery() {
        return Ok(Overlay::default());
    }
    if super_block.journal_inode() == 0 {
        return Err(Error::Unsupported {
            feature: "journal_dev (an external journal that needs recovery)".into(),
        });
    }
    let file = JournalFile::open(volume, super_block.journal_inode())?;
    let log = Log::open(&file, super_block.block_size() as usize, file.blocks)?;
    replay::replay(&log, super_block.blocks_count())
}

/// The journal's inode.
struct JournalFile<'v> {
    volume: &'v Volume,
    inode: RawInode,
    blocks: u32,
}

impl<'v> JournalFile<'v> {
    fn open(volume: &'v Volume, ino: u32) -> Result<JournalFile<'v>> {
        let inode = volume.inode(ino)?;
        let block_size = volume.super_block().block_size();
        let blocks = u32::try_from(inode.size / u64::from(block_size)).unwrap_or(u32::MAX);
        let file = JournalFile {
            volume,
            inode,
            blocks,
        };
        file.check()?;
        Ok(file)
    }

    /// A journal has no holes: what reads as zeros there would be taken for contents.
    fn check(&self) -> Result<()> {
        let corrupt = |field, why: &str| {
            Err(Error::Corrupt {
                place: Place::Inode(self.inode.ino),
                field,
                why: format!("{why}, in the journal"),
            })
        };
        if self.inode.kind != rcuwalk::FileType::Regular {
            return corrupt("i_mode", "no regular file");
        }
        if self.inode.links == 0 {
            return corrupt("i_links_count", "no links");
        }
        if u64::from(self.blocks) > self.volume.present_blocks() {
            return corrupt("i_size", "more blocks than the image has");
        }
        let mut logical = 0;
        while logical < self.blocks {
            let mapping = self.volume.map(&self.inode, u64::from(logical))?;
            if mapping.physical.is_none() || mapping.unwritten {
                return corrupt("i_block", "a hole");
            }
            logical = logical.saturating_add(mapping.length.max(1));
        }
        Ok(())
    }
}

impl ReadLog for JournalFile<'_> {
    fn read(&self, block: u32, buf: &mut [u8]) -> Result<()> {
        let offset = u64::from(block) * buf.len() as u64;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match self.volume.read_data(&self.inode, &mut buf[done..], at)? {
                0 => {
                    return Err(Error::Corrupt {
                        place: Place::Journal(block),
                        field: "i_size",
                        why: "the journal's inode ends before it".into(),
                    });
                }
                read => done += read,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
