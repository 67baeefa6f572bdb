//! Feature flags, by the names that mke2fs and dumpe2fs know them under.
//!
//! A flag that we do not know matters only among the incompatible ones: the others are
//! promises to those who write.

use bitflags::bitflags;

use crate::error::{Error, Result};

bitflags! {
    /// Features that a reader or writer may ignore if it does not know them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Compat: u32 {
        const DIR_PREALLOC = 1 << 0;
        const IMAGIC_INODES = 1 << 1;
        const HAS_JOURNAL = 1 << 2;
        const EXT_ATTR = 1 << 3;
        const RESIZE_INODE = 1 << 4;
        const DIR_INDEX = 1 << 5;
        const LAZY_BG = 1 << 6;
        const EXCLUDE_BITMAP = 1 << 8;
        const SPARSE_SUPER2 = 1 << 9;
        const FAST_COMMIT = 1 << 10;
        const STABLE_INODES = 1 << 11;
        const ORPHAN_FILE = 1 << 12;
        const _ = !0;
    }

    /// A reader that does not know one of these must refuse the image.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Incompat: u32 {
        const COMPRESSION = 1 << 0;
        const FILETYPE = 1 << 1;
        const NEEDS_RECOVERY = 1 << 2;
        const JOURNAL_DEV = 1 << 3;
        const META_BG = 1 << 4;
        const EXTENT = 1 << 6;
        const SIXTY_FOUR_BIT = 1 << 7;
        const MMP = 1 << 8;
        const FLEX_BG = 1 << 9;
        const EA_INODE = 1 << 10;
        const DIRDATA = 1 << 12;
        const METADATA_CSUM_SEED = 1 << 13;
        const LARGE_DIR = 1 << 14;
        const INLINE_DATA = 1 << 15;
        const ENCRYPT = 1 << 16;
        const CASEFOLD = 1 << 17;
        const _ = !0;
    }

    /// A writer that does not know one of these must refuse to write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct RoCompat: u32 {
        const SPARSE_SUPER = 1 << 0;
        const LARGE_FILE = 1 << 1;
        const BTREE_DIR = 1 << 2;
        const HUGE_FILE = 1 << 3;
        const UNINIT_BG = 1 << 4;
        const DIR_NLINK = 1 << 5;
        const EXTRA_ISIZE = 1 << 6;
        const SNAPSHOT = 1 << 7;
        const QUOTA = 1 << 8;
        const BIGALLOC = 1 << 9;
        const METADATA_CSUM = 1 << 10;
        const REPLICA = 1 << 11;
        const READ_ONLY = 1 << 12;
        const PROJECT = 1 << 13;
        const SHARED_BLOCKS = 1 << 14;
        const VERITY = 1 << 15;
        const ORPHAN_PRESENT = 1 << 16;
        const _ = !0;
    }
}

/// All three kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) compat: Compat,
    pub(crate) incompat: Incompat,
    pub(crate) ro_compat: RoCompat,
}

/// What would make us read wrongly is not among these.
const READ: Incompat = Incompat::FILETYPE
    .union(Incompat::NEEDS_RECOVERY)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENT)
    .union(Incompat::SIXTY_FOUR_BIT)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::METADATA_CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);

impl Features {
    pub(crate) fn new(compat: u32, incompat: u32, ro_compat: u32) -> Features {
        Features {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    /// # Errors
    /// [`Error::Unsupported`] for the first that we cannot read.
    pub(crate) fn check_readable(self) -> Result<()> {
        let strange = self.incompat.bits() & !READ.bits();
        match strange {
            0 => Ok(()),
            _ => Err(Error::Unsupported {
                feature: incompat_name(strange.trailing_zeros()),
            }),
        }
    }

    pub(crate) fn has_compat(self, feature: Compat) -> bool {
        self.compat.contains(feature)
    }

    pub(crate) fn has_incompat(self, feature: Incompat) -> bool {
        self.incompat.contains(feature)
    }

    pub(crate) fn has_ro_compat(self, feature: RoCompat) -> bool {
        self.ro_compat.contains(feature)
    }

    /// The names of all, in the order dumpe2fs lists them.
    pub(crate) fn names(self) -> Vec<String> {
        let bits = |set: u32| (0..32).filter(move |bit| set & 1 << bit != 0);
        let compat = bits(self.compat.bits()).map(compat_name);
        let incompat = bits(self.incompat.bits()).map(incompat_name);
        let ro_compat = bits(self.ro_compat.bits()).map(ro_compat_name);
        compat.chain(incompat).chain(ro_compat).collect()
    }
}

fn compat_name(bit: u32) -> String {
    let flag = Compat::from_bits_retain(1 << bit);
    name(flag.iter_names().next(), bit, 'C')
}

fn incompat_name(bit: u32) -> String {
    let flag = Incompat::from_bits_retain(1 << bit);
    if flag == Incompat::SIXTY_FOUR_BIT {
        return "64bit".into();
    }
    name(flag.iter_names().next(), bit, 'I')
}

fn ro_compat_name(bit: u32) -> String {
    let flag = RoCompat::from_bits_retain(1 << bit);
    if flag == RoCompat::READ_ONLY {
        return "read-only".into();
    }
    name(flag.iter_names().next(), bit, 'R')
}

/// The constant's name in small letters is the feature's, and one that has none goes by its
/// number, as with dumpe2fs.
fn name<F>(known: Option<(&str, F)>, bit: u32, kind: char) -> String {
    match known {
        Some((name, _)) => name.to_lowercase(),
        None => format!("FEATURE_{kind}{bit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the names of dumpe2fs, and its notation for bits without a name.
    #[test]
    fn features_have_the_names_of_dumpe2fs() {
        let all = Features::new(
            1 << 5 | 1 << 31,
            1 << 7 | 1 << 13 | 1 << 20,
            1 << 12 | 1 << 4,
        );
        assert_eq!(
            all.names(),
            [
                "dir_index",
                "FEATURE_C31",
                "64bit",
                "metadata_csum_seed",
                "FEATURE_I20",
                "uninit_bg",
                "read-only"
            ]
        );
    }

    /// Unknown incompatible features are refused by name, others are harmless.
    #[test]
    fn only_incompatible_strangers_are_refused() {
        assert!(Features::new(!0, READ.bits(), !0).check_readable().is_ok());
        for (bit, name) in [(0, "compression"), (12, "dirdata"), (18, "FEATURE_I18")] {
            let err = Features::new(0, READ.bits() | 1 << bit, 0).check_readable();
            let text = err.unwrap_err().to_string();
            assert_eq!(text, format!("unsupported feature: {name}"));
        }
    }
}
