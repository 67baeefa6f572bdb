//! What a walk of a file system has seen: how many entries, and a checksum over them.
//!
//! Over path, inode number, type, permissions, owner, group, size, time of the last
//! change, and links. The checksum is a sum over the entries, so that it does not matter
//! who saw an entry, and when; a directory's path is hashed once for all its entries.

/// The attributes of an entry that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Last change of the contents: seconds and nanoseconds.
    pub mtime: (i64, u32),
}

impl From<&rcuwalk::Attr> for Facts {
    fn from(attr: &rcuwalk::Attr) -> Self {
        Self {
            ino: attr.ino,
            mode: attr.st_mode(),
            uid: attr.uid,
            gid: attr.gid,
            links: attr.nlink,
            size: attr.size,
            mtime: (attr.mtime.sec, attr.mtime.nsec),
        }
    }
}

/// Entries and their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// How many.
    pub entries: u64,
    /// A sum of hashes.
    pub checksum: u64,
}

impl Digest {
    /// An entry `name` of `dir`.
    #[inline]
    pub fn add(&mut self, dir: DirHash, name: &[u8], facts: &Facts) {
        let words = [
            facts.ino,
            u64::from(facts.mode) | u64::from(facts.links) << 32,
            u64::from(facts.uid) | u64::from(facts.gid) << 32,
            facts.size,
            facts.mtime.0 as u64,
            u64::from(facts.mtime.1),
        ];
        let mut hash = dir.child(name).0;
        for pair in words.chunks_exact(2) {
            hash = fold(hash ^ pair[0], pair[1].wrapping_add(ODD));
        }
        self.entries += 1;
        self.checksum = self.checksum.wrapping_add(hash);
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Digest) -> Digest {
        Digest {
            entries: self.entries + other.entries,
            checksum: self.checksum.wrapping_add(other.checksum),
        }
    }
}

/// The hash of a directory's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirHash(u64);

impl DirHash {
    /// That of the root.
    pub const ROOT: DirHash = DirHash(ODD);

    /// That of the directory with this path from the root, without a slash at its ends.
    pub fn of(path: &[u8]) -> DirHash {
        let names = path.split(|&byte| byte == b'/');
        names
            .filter(|name| !name.is_empty())
            .fold(DirHash::ROOT, DirHash::child)
    }

    /// That of `name` in this directory.
    #[inline]
    #[must_use]
    pub fn child(self, name: &[u8]) -> DirHash {
        let mut hash = self.0 ^ (name.len() as u64).wrapping_mul(ODD);
        let mut chunks = name.chunks_exact(8);
        for chunk in &mut chunks {
            let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            hash = fold(hash ^ word, ODD);
        }
        let mut last = [0; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        DirHash(fold(hash ^ u64::from_le_bytes(last), EVEN_ODDER))
    }
}

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
const EVEN_ODDER: u64 = 0xD6E8_FEB8_6659_FD93;

/// Both halves of the product.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        ino: 12,
        mode: 0o100_644,
        uid: 1000,
        gid: 100,
        links: 1,
        size: 4096,
        mtime: (1_700_000_000, 5),
    };

    fn of(path: &[u8], name: &[u8], facts: Facts) -> u64 {
        let mut seen = Digest::default();
        seen.add(DirHash::of(path), name, &facts);
        seen.checksum
    }

    #[test]
    fn whatever_differs_changes_the_checksum() {
        let all = [
            of(b"a/b", b"name", FACTS),
            of(b"a/c", b"name", FACTS),
            of(b"ab", b"name", FACTS),
            of(b"a/b", b"name\0", FACTS),
            of(b"a/b", b"a rather long name", FACTS),
            of(b"a/b", b"name", Facts { ino: 13, ..FACTS }),
            of(
                b"a/b",
                b"name",
                Facts {
                    mode: 0o100_645,
                    ..FACTS
                },
            ),
            of(
                b"a/b",
                b"name",
                Facts {
                    uid: 100,
                    gid: 1000,
                    ..FACTS
                },
            ),
            of(b"a/b", b"name", Facts { links: 2, ..FACTS }),
            of(
                b"a/b",
                b"name",
                Facts {
                    size: 4097,
                    ..FACTS
                },
            ),
            of(
                b"a/b",
                b"name",
                Facts {
                    mtime: (1_700_000_001, 5),
                    ..FACTS
                },
            ),
            of(
                b"a/b",
                b"name",
                Facts {
                    mtime: (1_700_000_000, 4),
                    ..FACTS
                },
            ),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_directory_is_hashed_alike_by_path_and_step_by_step() {
        let stepwise = DirHash::ROOT.child(b"usr").child(b"lib");
        assert_eq!(DirHash::of(b"usr/lib"), stepwise);
        assert_eq!(DirHash::of(b""), DirHash::ROOT);
    }
}
