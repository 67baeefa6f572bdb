//! The subject of a walk: the VFS, or the inode cache alone; and the totals of a walk.

use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rcuwalk::inode::{Iget, InodeCache, InodeStatistics, Key, Scheme};
use rcuwalk::{Attr, Budget, Context, Credentials, LookupFlags, Vfs};

use super::synth::{Place, Shape, SynthFs, mix};
use crate::measure::Stopped;

/// The number of files after which a walker checks the stop flag.
pub(super) const CHUNK: u64 = 1_000;

/// How much of the library is on the way to an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// A path, the dentries on it, the back end.
    Vfs,
    /// The number, and its inode.
    InodeCache,
}

/// The caches of one turn.
pub(super) enum Subject {
    Vfs(Vfs),
    InodeCache(InodeCache<Ino, Attr>),
}

/// The key of the inode cache without a VFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ino(u64);

impl Key for Ino {
    fn hash(&self) -> u64 {
        self.0
    }
}

impl Subject {
    /// Empty caches of `budget` inodes and as many names.
    pub(super) fn new(
        level: Level,
        scheme: Scheme,
        shape: Shape,
        budget: usize,
    ) -> rcuwalk::Result<Subject> {
        // The numbers of objects alone decide when there are too many.
        let bytes = usize::MAX;
        Ok(match level {
            Level::Vfs => {
                let budget = Budget::default()
                    .dentries(budget)
                    .inodes(budget)
                    .bytes(bytes);
                Subject::Vfs(Vfs::with_scheme(SynthFs::new(shape), budget, scheme)?)
            }
            Level::InodeCache => {
                let cache = InodeCache::builder().inodes(budget).bytes(bytes);
                Subject::InodeCache(cache.scheme(scheme).build())
            }
        })
    }

    pub(super) fn statistics(&self) -> InodeStatistics {
        match self {
            Subject::Vfs(vfs) => vfs.inode_statistics(),
            Subject::InodeCache(cache) => cache.statistics(),
        }
    }

    /// A walker on one thread.
    pub(super) fn walker(&self, shape: Shape) -> Walker<'_> {
        match self {
            Subject::Vfs(vfs) => Walker::Vfs {
                vfs,
                ctx: vfs.context(Credentials::root()),
                path: Vec::new(),
                shape,
            },
            Subject::InodeCache(cache) => Walker::InodeCache { cache, shape },
        }
    }
}

/// One thread's way through the trees.
pub(super) enum Walker<'a> {
    Vfs {
        vfs: &'a Vfs,
        ctx: Context,
        /// The path, in memory that is there already.
        path: Vec<u8>,
        shape: Shape,
    },
    InodeCache {
        cache: &'a InodeCache<Ino, Attr>,
        shape: Shape,
    },
}

impl Walker<'_> {
    /// Asks for the attributes of some files of a directory, one after the other.
    pub(super) fn visit(
        &mut self,
        (tree, dir): (u64, u64),
        files: Range<u64>,
        seen: &mut Digest,
    ) -> Result<(), Lost> {
        match self {
            Walker::Vfs {
                vfs,
                ctx,
                path,
                shape,
            } => {
                path.clear();
                write!(path, "/t{tree}/d{dir}/f").expect("writing to memory");
                let stem = path.len();
                for file in files {
                    path.truncate(stem);
                    write!(path, "{file}").expect("writing to memory");
                    let attr = vfs.stat(ctx, &*path, LookupFlags::FOLLOW);
                    let attr = attr.map_err(|source| Lost {
                        path: String::from_utf8_lossy(path).into_owned(),
                        source,
                    })?;
                    seen.add(shape.entry_number(tree, dir, file), &attr);
                }
            }
            Walker::InodeCache { cache, shape } => {
                for file in files {
                    let place = Place::File(tree, dir, file);
                    let number = shape.entry_number(tree, dir, file);
                    let inode = match cache.iget(Ino(shape.ino(place))) {
                        Ok(Iget::Cached(inode)) => inode,
                        Ok(Iget::New(new)) => new.init(shape.attr(place)),
                        Err(stale) => {
                            return Err(Lost {
                                path: format!("/t{tree}/d{dir}/f{file}"),
                                source: stale.into(),
                            });
                        }
                    };
                    seen.add(number, &inode);
                }
            }
        }
        Ok(())
    }
}

/// An entry that should be there and could not be found.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) path: String,
    pub(super) source: rcuwalk::Error,
}

/// How many entries a walk has seen, and a checksum over what it was told of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) entries: u64,
    /// A sum, so that it does not matter who saw an entry, and when.
    pub(super) checksum: u64,
}

impl Digest {
    /// Entry `number` of the walk has these attributes.
    pub(super) fn add(&mut self, number: u64, attr: &Attr) {
        let words = [
            attr.ino,
            u64::from(attr.st_mode()),
            attr.size,
            attr.mtime.sec as u64,
            u64::from(attr.mtime.nsec),
        ];
        let hash = words.iter().fold(number, |hash, word| mix(hash ^ word));
        self.entries += 1;
        self.checksum = self.checksum.wrapping_add(hash);
    }

    pub(super) fn and(self, other: Digest) -> Digest {
        Digest {
            entries: self.entries + other.entries,
            checksum: self.checksum.wrapping_add(other.checksum),
        }
    }

    /// What a walk of all trees has to see: computed, without any cache.
    pub(super) fn expected(shape: Shape, stop: &AtomicBool) -> Result<Digest, Stopped> {
        let mut seen = Digest::default();
        for tree in 0..shape.trees {
            for dir in 0..shape.dirs {
                for file in 0..shape.files {
                    if file % CHUNK == 0 && stop.load(Relaxed) {
                        return Err(Stopped);
                    }
                    let attr = shape.attr(Place::File(tree, dir, file));
                    seen.add(shape.entry_number(tree, dir, file), &attr);
                }
            }
        }
        Ok(seen)
    }
}

impl Shape {
    /// Which of all files this is, in the order of a walk.
    fn entry_number(&self, tree: u64, dir: u64, file: u64) -> u64 {
        (tree * self.dirs + dir) * self.files + file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        trees: 2,
        dirs: 2,
        files: 3,
    };

    #[test]
    fn both_levels_see_what_was_computed() {
        for level in [Level::Vfs, Level::InodeCache] {
            let subject = Subject::new(level, Scheme::OURS, SHAPE, 100).unwrap();
            let mut walker = subject.walker(SHAPE);
            let mut seen = Digest::default();
            for tree in [1, 0] {
                for dir in [0, 1] {
                    walker.visit((tree, dir), 0..3, &mut seen).unwrap();
                }
            }
            let expected = Digest::expected(SHAPE, &AtomicBool::new(false));
            assert_eq!(Ok(seen), expected, "{level:?}");
        }
    }

    #[test]
    fn whatever_differs_changes_the_checksum() {
        let attr = SHAPE.attr(Place::File(0, 1, 2));
        let of = |number, change: &dyn Fn(&mut Attr)| {
            let mut attr = attr;
            change(&mut attr);
            let mut seen = Digest::default();
            seen.add(number, &attr);
            seen.checksum
        };
        let all = [
            of(5, &|_| {}),
            of(6, &|_| {}),
            of(5, &|attr| attr.ino += 1),
            of(5, &|attr| attr.kind = rcuwalk::FileType::Fifo),
            of(5, &|attr| attr.mode ^= 1),
            of(5, &|attr| attr.size += 1),
            of(5, &|attr| attr.mtime.sec += 1),
            of(5, &|attr| attr.mtime.nsec ^= 1),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_file_that_is_not_there_is_lost_with_its_path() {
        let subject = Subject::new(Level::Vfs, Scheme::OURS, SHAPE, 100).unwrap();
        let mut seen = Digest::default();
        let lost = subject.walker(SHAPE).visit((0, 1), 2..5, &mut seen);
        assert_eq!(
            (lost.unwrap_err().path.as_str(), seen.entries),
            ("/t0/d1/f3", 1)
        );
    }
}
