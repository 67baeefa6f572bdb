//! Blocks that read differently from what the image holds: those that the journal has
//! newer contents for. Nothing is ever written, so they stay here.

use std::collections::HashMap;

/// What the journal's replay has in place of blocks of the image.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    blocks: HashMap<u64, Box<[u8]>>,
    transactions: u32,
}

impl Overlay {
    /// Returns an empty overlay with room for the blocks of `transactions` journal
    /// transactions.
    pub(crate) fn of_transactions(transactions: u32) -> Overlay {
        Overlay {
            transactions,
            ..Overlay::default()
        }
    }

    /// How many transactions were replayed.
    pub(crate) fn transactions(&self) -> u32 {
        self.transactions
    }

    /// The newer contents of `block`, a whole block, if there are any.
    #[inline]
    pub(crate) fn get(&self, block: u64) -> Option<&[u8]> {
        self.blocks.get(&block).map(|contents| &**contents)
    }

    /// True if the image reads as it is.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Has `block` read as `contents`, a whole block, from now on.
    pub(crate) fn insert(&mut self, block: u64, contents: Box<[u8]>) {
        self.blocks.insert(block, contents);
    }
}
