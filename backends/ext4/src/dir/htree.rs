//! The index of a directory: a tree, keyed by the hash of the name, whose leaves are the
//! directory's blocks.
//!
//! Its root is in block 0, behind records for `.` and `..`, its inner nodes are other
//! blocks of the directory. A node is a table of (hash, block), sorted; the first row's
//! hash is left out, and its place holds how many rows there are and how many would fit.
//! Names of one hash may go on in the next leaf, whose hash in the table then has its
//! lowest bit set.
//!
//! The way down is as long as the root says, at most three tables; on the way along the
//! leaves of one hash, each step goes forward in a table, and there are no more of them
//! than the directory has blocks. So no index leads in a circle.

use crate::bytes::{u16_at, u32_at};
use crate::cache::Block;
use crate::checksum::crc32c;
use crate::error::{Error, Result};
use crate::features::Incompat;

use super::block::may_be_index;
use super::hash::{HashVersion, SIPHASH};
use super::{Directory, Leaf};

/// `.` and `..` before the root's own fields, which are eight bytes.
const ROOT_INFO: usize = 24;
const ROOT_INFO_LENGTH: u8 = 8;

/// The empty record before an inner node's table.
const NODE_HEADER: usize = 8;

/// A row of the table, and the checksum behind the last one that fits.
const ROW: usize = 8;
const TAIL: usize = 8;

/// The upper bits are reserved.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// Why no leaf could be found through the index.
enum Failure {
    /// It contradicts itself, and is not used: see the [parent module](super).
    BadIndex,
    Error(Error),
}

impl From<Error> for Failure {
    fn from(err: Error) -> Failure {
        Failure::Error(err)
    }
}

impl Directory<'_> {
    /// As [`leaf_of`](Self::leaf_of), by the hash of the name. `None` if the directory
    /// has no index that can be used.
    #[doc(alias = "ext4_dx_find_entry")]
    pub(super) fn leaf_by_index(&self, name: &[u8]) -> Result<Option<Leaf>> {
        // A casefolded directory is sorted by names that we cannot make; `.` and `..`
        // are not in the tables.
        if !self.is_indexed()
            || self.is_inline()
            || self.is_casefolded()
            || matches!(name, b"." | b"..")
        {
            return Ok(None);
        }
        match self.find_by_hash(name) {
            Ok(leaf) => Ok(Some(leaf)),
            Err(Failure::BadIndex) => Ok(None),
            Err(Failure::Error(err)) => Err(err),
        }
    }

    fn find_by_hash(&self, name: &[u8]) -> Result<Leaf, Failure> {
        let (root, levels, version) = self.root()?;
        let hash = version.hash(self.volume.super_block().hash_seed(), name);
        let mut path = self.probe(root, levels, hash)?;
        for _ in 0..self.blocks {
            let mut leaf = self.read_indexed(path.leaf())?;
            if leaf.find(name)? || !path.goes_on(self, hash)? {
                return Ok(leaf);
            }
        }
        Err(Failure::BadIndex)
    }

    /// The root of the index, how many levels of nodes are below it, and the hash.
    fn root(&self) -> Result<(Node, u8, HashVersion), Failure> {
        let block = self.read_index(0)?;
        let [hash_version, info_length, levels, flags] = match block.get(ROOT_INFO + 4..) {
            Some([a, b, c, d, ..]) => [*a, *b, *c, *d],
            _ => return Err(Failure::BadIndex),
        };
        if hash_version == SIPHASH {
            return Err(Failure::Error(Error::Unsupported {
                feature: "siphash directory index (casefold and encryption)".into(),
            }));
        }
        let unsigned = self.volume.super_block().hash_unsigned();
        let version = HashVersion::of_index(hash_version, unsigned).ok_or(Failure::BadIndex)?;
        if flags & 1 != 0 || levels > self.max_levels() {
            return Err(Failure::BadIndex);
        }
        let root = self.node(block, ROOT_INFO + usize::from(info_length))?;
        Ok((root, levels, version))
    }

    /// How many levels there may be below the root.
    #[doc(alias = "ext4_dir_htree_level")]
    fn max_levels(&self) -> u8 {
        match self.features().has_incompat(Incompat::LARGE_DIR) {
            true => 2,
            false => 1,
        }
    }

    /// The way from the root to where `hash` belongs.
    #[doc(alias = "dx_probe")]
    fn probe(&self, mut node: Node, levels: u8, hash: u32) -> Result<Path, Failure> {
        let mut nodes = Vec::with_capacity(usize::from(levels) + 1);
        node.seek(hash);
        for _ in 0..levels {
            let mut next = self.inner_node(node.child())?;
            next.seek(hash);
            nodes.push(std::mem::replace(&mut node, next));
        }
        nodes.push(node);
        Ok(Path { nodes })
    }

    fn inner_node(&self, logical: u32) -> Result<Node, Failure> {
        self.node(self.read_index(logical)?, NODE_HEADER)
    }

    /// Checks the table that begins at `start`.
    fn node(&self, block: Block, start: usize) -> Result<Node, Failure> {
        let tail = match self.volume.super_block().has_checksums() {
            true => TAIL,
            false => 0,
        };
        let room = block.len().saturating_sub(start + tail) / ROW;
        let (limit, count) = counts(&block, start);
        if limit != room || count == 0 || count > limit {
            return Err(Failure::BadIndex);
        }
        Ok(Node {
            block,
            start,
            count,
            at: 0,
        })
    }

    /// A leaf that the index leads to.
    pub(super) fn read_indexed(&self, logical: u32) -> Result<Leaf> {
        self.read_leaf(logical, self.indexed(logical)?)
    }

    /// A block of the index itself.
    fn read_index(&self, logical: u32) -> Result<Block> {
        let physical = self.indexed(logical)?;
        let block = self.volume.block(physical)?;
        if logical != 0 && !may_be_index(&block, self.format) {
            return Err(self.bad_index(logical, "is not an index block"));
        }
        if self.volume.verifies(physical) && !block.is_verified() {
            if !checksum_matches(&block, self.checksum_seed) {
                return Err(self.bad_checksum(physical, "directory index block"));
            }
            block.set_verified();
        }
        Ok(block)
    }

    /// Where a block is that the index leads to.
    fn indexed(&self, logical: u32) -> Result<u64> {
        if logical >= self.blocks {
            return Err(self.bad_index(logical, "is past the directory's end"));
        }
        let mapping = self.volume.map(self.inode, u64::from(logical))?;
        match mapping.physical {
            Some(physical) if !mapping.unwritten => Ok(physical),
            _ => Err(self.bad_index(logical, "is a hole")),
        }
    }

    #[cold]
    fn bad_index(&self, logical: u32, why: &str) -> Error {
        self.corrupt(
            "dx_entry",
            format!("block {logical} of the directory {why}"),
        )
    }
}

/// The tables from the root to the one that names the leaf.
struct Path {
    nodes: Vec<Node>,
}

impl Path {
    /// The leaf that the last table is at.
    fn leaf(&self) -> u32 {
        self.nodes.last().map_or(0, Node::child)
    }

    /// Moves to the next leaf, if names with this hash may go on there.
    #[doc(alias = "ext4_htree_next_block")]
    fn goes_on(&mut self, directory: &Directory<'_>, hash: u32) -> Result<bool, Failure> {
        // The lowest table that has one more row: those below it begin anew.
        let Some(level) = self.nodes.iter().rposition(Node::has_next) else {
            return Ok(false);
        };
        let depth = self.nodes.len();
        self.nodes.truncate(level + 1);
        let Some(node) = self.nodes.last_mut() else {
            return Ok(false);
        };
        node.at += 1;
        if node.hash(node.at) & !1 != hash {
            return Ok(false);
        }
        while self.nodes.len() < depth {
            let child = self.leaf();
            self.nodes.push(directory.inner_node(child)?);
        }
        Ok(true)
    }
}

/// A table, and a row of it.
struct Node {
    block: Block,
    start: usize,
    /// At least 1, and no more than there is room for.
    count: usize,
    at: usize,
}

impl Node {
    /// Goes to the last row that does not begin after `hash`.
    fn seek(&mut self, hash: u32) {
        // The first row begins with 0, though that is not what is stored there.
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.hash(middle) > hash {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.at = low - 1;
    }

    fn has_next(&self) -> bool {
        self.at + 1 < self.count
    }

    fn hash(&self, row: usize) -> u32 {
        u32_at(&self.block, self.start + row * ROW)
    }

    /// The block that the row leads to.
    fn child(&self) -> u32 {
        u32_at(&self.block, self.start + self.at * ROW + 4) & BLOCK_MASK
    }
}

/// How many rows the table at `start` has room for, and how many it has.
#[doc(alias = "dx_countlimit")]
fn counts(block: &[u8], start: usize) -> (usize, usize) {
    (
        usize::from(u16_at(block, start)),
        usize::from(u16_at(block, start + 2)),
    )
}

/// True if the checksum behind the table of an index block is right.
#[doc(alias = "ext4_dx_csum_verify")]
fn checksum_matches(block: &[u8], seed: u32) -> bool {
    const DOT: u16 = 12;
    let start = match u16_at(block, 4) {
        DOT if block.get(ROOT_INFO + 5) == Some(&ROOT_INFO_LENGTH) => {
            ROOT_INFO + usize::from(ROOT_INFO_LENGTH)
        }
        DOT => return false,
        _ => NODE_HEADER,
    };
    let (limit, count) = counts(block, start);
    let tail = start + limit * ROW;
    let (Some(table), Some(tail)) = (
        block.get(..start + count * ROW),
        block.get(tail..tail + TAIL),
    ) else {
        return false;
    };
    // The checksum field counts as zeros; the reserved field before it counts as it is.
    let sum = crc32c(crc32c(seed, table), &tail[..4]);
    crc32c(sum, &[0; 4]) == u32_at(tail, 4)
}
