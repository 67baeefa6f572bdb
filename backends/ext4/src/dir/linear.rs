//! A directory's blocks one after another: how a directory without an index is looked up,
//! and how all are listed.

use crate::error::Result;
use crate::map::Mapping;

use super::{Directory, Leaf};

impl Directory<'_> {
    /// As [`leaf_of`](Self::leaf_of), by looking into all leaves.
    pub(super) fn leaf_by_scan(&self, name: &[u8]) -> Result<Option<Leaf>> {
        let mut last = None;
        for leaf in self.leaves(0) {
            let mut leaf = leaf?;
            let found = leaf.find(name)?;
            last = Some(leaf);
            if found {
                break;
            }
        }
        Ok(last)
    }
}

/// The leaves of a directory that is not inline, holes left out.
pub(super) struct Blocks<'d, 'v> {
    directory: &'d Directory<'v>,
    next: u32,
    /// The run of blocks that `next` is in, and where that begins.
    run: Option<(u32, Mapping)>,
}

impl<'d, 'v> Blocks<'d, 'v> {
    /// Those from the one that has `position` on.
    pub(super) fn from(directory: &'d Directory<'v>, position: u64) -> Self {
        let block_size = u64::from(directory.volume.super_block().block_size());
        let next = u32::try_from(position / block_size).unwrap_or(u32::MAX);
        Blocks {
            directory,
            next,
            run: None,
        }
    }

    /// Where the next block is; passes holes. `None` at the end.
    fn next_block(&mut self) -> Result<Option<(u32, u64)>> {
        while self.next < self.directory.blocks {
            let logical = self.next;
            let (first, mapping) = self.run_with(logical)?;
            let into = logical - first;
            match mapping.physical.filter(|_| !mapping.unwritten) {
                Some(physical) => {
                    self.next = logical + 1;
                    return Ok(Some((logical, physical.saturating_add(u64::from(into)))));
                }
                None => self.next = first.saturating_add(mapping.length.max(into + 1)),
            }
        }
        Ok(None)
    }

    fn run_with(&mut self, logical: u32) -> Result<(u32, Mapping)> {
        if let Some((first, mapping)) = self.run
            && logical
                .checked_sub(first)
                .is_some_and(|into| into < mapping.length)
        {
            return Ok((first, mapping));
        }
        let directory = self.directory;
        let mapping = directory.volume.map(directory.inode, u64::from(logical))?;
        self.run = Some((logical, mapping));
        Ok((logical, mapping))
    }
}

impl Iterator for Blocks<'_, '_> {
    type Item = Result<Leaf>;

    fn next(&mut self) -> Option<Result<Leaf>> {
        match self.next_block() {
            Ok(found) => {
                found.map(|(logical, physical)| self.directory.read_leaf(logical, physical))
            }
            Err(err) => {
                // Where the others are is not known either.
                self.next = u32::MAX;
                Some(Err(err))
            }
        }
    }
}
