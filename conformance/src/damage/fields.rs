//! The fields of the format's structures, by the names that its documentation has.

use super::layout::{Kind, be32_at, u16_at, u32_at};

/// A field: its name, where it is in its structure, and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) at: u32,
    pub(crate) width: u8,
}

type Table = &'static [(&'static str, u32, u8)];

/// Those that the structure of this kind has with these contents.
pub(crate) fn of(kind: Kind, bytes: &[u8]) -> Vec<Field> {
    match kind {
        Kind::SuperBlock => fixed(SUPER_BLOCK),
        Kind::Group => fixed(GROUP).filtered(bytes.len()),
        Kind::Inode => fixed(INODE).filtered(bytes.len()),
        Kind::ExtentRoot | Kind::ExtentNode => extents(bytes),
        Kind::Indirect => repeated(&[("block", 0, 4)], 0, 4, bytes.len() / 4),
        Kind::Directory | Kind::InlineDirectory => records(bytes),
        Kind::IndexRoot => index(bytes, 32, INDEX_ROOT),
        Kind::IndexNode => index(bytes, 8, INDEX_NODE),
        Kind::InodeAttributes => attributes(bytes, 4, &[("h_magic", 0, 4)]),
        Kind::AttributeBlock => attributes(bytes, 32, ATTRIBUTE_BLOCK),
        Kind::JournalSuper => fixed(JOURNAL_SUPER),
        Kind::JournalDescriptor => {
            let words = bytes.len().min(160) / 4 - 3;
            let mut fields = fixed(JOURNAL_HEADER);
            fields.extend(repeated(&[("tag", 0, 4)], 12, 4, words));
            fields
        }
        Kind::JournalCommit => fixed(JOURNAL_COMMIT),
        Kind::JournalRevoke => {
            let used = (be32_at(bytes, 12) as usize).clamp(16, bytes.len());
            let mut fields = fixed(JOURNAL_HEADER);
            fields.push(field(("r_count", 12, 4), 0));
            fields.extend(repeated(&[("blocknr", 0, 4)], 16, 4, (used - 16) / 4 + 1));
            fields
        }
        Kind::JournalData => {
            let word = |at: &u32| u32_at(bytes, *at as usize) != 0;
            let used = (0..bytes.len() as u32).step_by(4).filter(word);
            used.map(|at| field(("word", at, 4), 0)).collect()
        }
        Kind::Raw => Vec::new(),
    }
}

fn field((name, at, width): (&'static str, u32, u8), base: usize) -> Field {
    Field {
        name,
        at: at + base as u32,
        width,
    }
}

fn fixed(table: Table) -> Vec<Field> {
    table.iter().map(|row| field(*row, 0)).collect()
}

trait Filtered {
    /// Without those that are behind the structure's end.
    fn filtered(self, length: usize) -> Self;
}

impl Filtered for Vec<Field> {
    fn filtered(mut self, length: usize) -> Self {
        self.retain(|field| field.at as usize + usize::from(field.width) <= length);
        self
    }
}

fn repeated(table: Table, start: usize, stride: usize, count: usize) -> Vec<Field> {
    (0..count)
        .flat_map(|index| {
            table
                .iter()
                .map(move |row| field(*row, start + index * stride))
        })
        .collect()
}

/// The header, the entries in use, and one behind them.
fn extents(bytes: &[u8]) -> Vec<Field> {
    let room = bytes.len() / 12 - 1;
    let count = (usize::from(u16_at(bytes, 2)) + 1).min(room);
    let mut fields = fixed(EXTENT_HEADER);
    let entry = match u16_at(bytes, 6) {
        0 => EXTENT,
        _ => EXTENT_INDEX,
    };
    fields.extend(repeated(entry, 12, 12, count));
    fields
}

fn records(bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at + 8 <= bytes.len() {
        fields.extend(repeated(RECORD, at, 0, 1));
        let name = usize::from(bytes[at + 6]);
        fields.extend((0..name.min(2)).map(|byte| field(("name", 8 + byte as u32, 1), at)));
        at += usize::from(u16_at(bytes, at + 4)).max(12);
    }
    fields.filtered(bytes.len())
}

fn index(bytes: &[u8], start: usize, table: Table) -> Vec<Field> {
    let count = usize::from(u16_at(bytes, start + 2));
    let mut fields = fixed(table);
    fields.extend(repeated(INDEX_ROW, start + 8, 8, count.saturating_sub(1)));
    fields.filtered(bytes.len())
}

fn attributes(bytes: &[u8], start: usize, table: Table) -> Vec<Field> {
    let mut fields = fixed(table);
    let mut at = start;
    while at + 16 <= bytes.len() && u32_at(bytes, at) != 0 {
        fields.extend(repeated(ATTRIBUTE, at, 0, 1));
        at += (16 + usize::from(bytes[at])).next_multiple_of(4);
    }
    // The zeros that end them.
    fields.push(field(("e_name_len", 0, 1), at));
    fields.filtered(bytes.len())
}

const SUPER_BLOCK: Table = &[
    ("s_inodes_count", 0x00, 4),
    ("s_blocks_count_lo", 0x04, 4),
    ("s_free_blocks_count_lo", 0x0c, 4),
    ("s_free_inodes_count", 0x10, 4),
    ("s_first_data_block", 0x14, 4),
    ("s_log_block_size", 0x18, 4),
    ("s_log_cluster_size", 0x1c, 4),
    ("s_blocks_per_group", 0x20, 4),
    ("s_clusters_per_group", 0x24, 4),
    ("s_inodes_per_group", 0x28, 4),
    ("s_magic", 0x38, 2),
    ("s_state", 0x3a, 2),
    ("s_creator_os", 0x48, 4),
    ("s_rev_level", 0x4c, 4),
    ("s_first_ino", 0x54, 4),
    ("s_inode_size", 0x58, 2),
    ("s_block_group_nr", 0x5a, 2),
    ("s_feature_compat", 0x5c, 4),
    ("s_feature_incompat", 0x60, 4),
    ("s_feature_ro_compat", 0x64, 4),
    ("s_uuid", 0x68, 4),
    ("s_reserved_gdt_blocks", 0xce, 2),
    ("s_journal_uuid", 0xd0, 4),
    ("s_journal_inum", 0xe0, 4),
    ("s_journal_dev", 0xe4, 4),
    ("s_last_orphan", 0xe8, 4),
    ("s_hash_seed", 0xec, 4),
    ("s_def_hash_version", 0xfc, 1),
    ("s_desc_size", 0xfe, 2),
    ("s_first_meta_bg", 0x104, 4),
    ("s_jnl_blocks", 0x10c, 4),
    ("s_blocks_count_hi", 0x150, 4),
    ("s_free_blocks_count_hi", 0x158, 4),
    ("s_min_extra_isize", 0x15c, 2),
    ("s_want_extra_isize", 0x15e, 2),
    ("s_flags", 0x160, 4),
    ("s_log_groups_per_flex", 0x174, 1),
    ("s_checksum_type", 0x175, 1),
    ("s_backup_bgs", 0x24c, 4),
    ("s_checksum_seed", 0x270, 4),
    ("s_encoding", 0x27c, 2),
    ("s_checksum", 0x3fc, 4),
];

const GROUP: Table = &[
    ("bg_block_bitmap_lo", 0x00, 4),
    ("bg_inode_bitmap_lo", 0x04, 4),
    ("bg_inode_table_lo", 0x08, 4),
    ("bg_free_inodes_count_lo", 0x0e, 2),
    ("bg_flags", 0x12, 2),
    ("bg_itable_unused_lo", 0x1c, 2),
    ("bg_checksum", 0x1e, 2),
    ("bg_inode_table_hi", 0x28, 4),
    ("bg_itable_unused_hi", 0x32, 2),
];

const INODE: Table = &[
    ("i_mode", 0x00, 2),
    ("i_uid", 0x02, 2),
    ("i_size_lo", 0x04, 4),
    ("i_atime", 0x08, 4),
    ("i_mtime", 0x10, 4),
    ("i_links_count", 0x1a, 2),
    ("i_blocks_lo", 0x1c, 4),
    ("i_flags", 0x20, 4),
    ("i_block[0]", 0x28, 4),
    ("i_block[1]", 0x2c, 4),
    ("i_block[2]", 0x30, 4),
    ("i_block[3]", 0x34, 4),
    ("i_block[5]", 0x3c, 4),
    ("i_block[11]", 0x54, 4),
    ("i_block[12]", 0x58, 4),
    ("i_block[13]", 0x5c, 4),
    ("i_block[14]", 0x60, 4),
    ("i_generation", 0x64, 4),
    ("i_file_acl_lo", 0x68, 4),
    ("i_size_high", 0x6c, 4),
    ("l_i_blocks_high", 0x74, 2),
    ("l_i_file_acl_high", 0x76, 2),
    ("l_i_checksum_lo", 0x7c, 2),
    ("i_extra_isize", 0x80, 2),
    ("i_checksum_hi", 0x82, 2),
    ("i_mtime_extra", 0x88, 4),
    ("i_crtime", 0x90, 4),
];

const EXTENT_HEADER: Table = &[
    ("eh_magic", 0, 2),
    ("eh_entries", 2, 2),
    ("eh_max", 4, 2),
    ("eh_depth", 6, 2),
];
const EXTENT: Table = &[
    ("ee_block", 0, 4),
    ("ee_len", 4, 2),
    ("ee_start_hi", 6, 2),
    ("ee_start_lo", 8, 4),
];
const EXTENT_INDEX: Table = &[
    ("ei_block", 0, 4),
    ("ei_leaf_lo", 4, 4),
    ("ei_leaf_hi", 8, 2),
];

const RECORD: Table = &[
    ("inode", 0, 4),
    ("rec_len", 4, 2),
    ("name_len", 6, 1),
    ("file_type", 7, 1),
];

const INDEX_ROOT: Table = &[
    ("dot.inode", 0, 4),
    ("dot.rec_len", 4, 2),
    ("dotdot.inode", 12, 4),
    ("dotdot.rec_len", 16, 2),
    ("hash_version", 28, 1),
    ("info_length", 29, 1),
    ("indirect_levels", 30, 1),
    ("unused_flags", 31, 1),
    ("limit", 32, 2),
    ("count", 34, 2),
    ("block", 36, 4),
];
const INDEX_NODE: Table = &[
    ("fake.inode", 0, 4),
    ("fake.rec_len", 4, 2),
    ("limit", 8, 2),
    ("count", 10, 2),
    ("block", 12, 4),
];
const INDEX_ROW: Table = &[("hash", 0, 4), ("block", 4, 4)];

const ATTRIBUTE_BLOCK: Table = &[
    ("h_magic", 0, 4),
    ("h_refcount", 4, 4),
    ("h_blocks", 8, 4),
    ("h_hash", 12, 4),
    ("h_checksum", 16, 4),
];
const ATTRIBUTE: Table = &[
    ("e_name_len", 0, 1),
    ("e_name_index", 1, 1),
    ("e_value_offs", 2, 2),
    ("e_value_inum", 4, 4),
    ("e_value_size", 8, 4),
    ("e_hash", 12, 4),
    ("e_name", 16, 1),
];

const JOURNAL_HEADER: Table = &[
    ("h_magic", 0, 4),
    ("h_blocktype", 4, 4),
    ("h_sequence", 8, 4),
];
const JOURNAL_COMMIT: Table = &[
    ("h_magic", 0, 4),
    ("h_blocktype", 4, 4),
    ("h_sequence", 8, 4),
    ("h_chksum_type", 12, 1),
    ("h_chksum_size", 13, 1),
    ("h_chksum", 16, 4),
    ("h_commit_sec", 52, 4),
];
const JOURNAL_SUPER: Table = &[
    ("h_magic", 0x00, 4),
    ("h_blocktype", 0x04, 4),
    ("s_blocksize", 0x0c, 4),
    ("s_maxlen", 0x10, 4),
    ("s_first", 0x14, 4),
    ("s_sequence", 0x18, 4),
    ("s_start", 0x1c, 4),
    ("s_feature_compat", 0x24, 4),
    ("s_feature_incompat", 0x28, 4),
    ("s_feature_ro_compat", 0x2c, 4),
    ("s_uuid", 0x30, 4),
    ("s_checksum_type", 0x50, 1),
    ("s_num_fc_blks", 0x54, 4),
    ("s_checksum", 0xfc, 4),
];
