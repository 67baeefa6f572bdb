//! [`SynthFs`]: a file system whose inodes are computed, not stored.
//!
//! Trees of directories of files, `/t3/d17/f425`, as many as [`Shape`] says. An inode's
//! number says where it is, its attributes are computed from its number, and names are
//! parsed: whatever is allocated per inode is what the caches allocate. So a tree may
//! have more inodes than memory has bytes, and anybody can say what each `stat` has to
//! answer ([`Shape::attr`]).

use rcuwalk::{
    At, Attr, Caller, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode, InodeFill,
    InodeKey, InodeRef, Name, OpenFlags, RawEntry, Result, SuperBlock, Timestamp,
};

/// How many trees, directories in each, and files in each of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Trees, below the root.
    pub trees: u64,
    /// Directories in each tree.
    pub dirs: u64,
    /// Files in each directory.
    pub files: u64,
}

/// An inode of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `/`
    Root,
    /// `/t0`
    Tree(u64),
    /// `/t0/d0`: the tree and the directory.
    Dir(u64, u64),
    /// `/t0/d0/f0`: the tree, the directory and the file.
    File(u64, u64, u64),
}

const ROOT_INO: u64 = 1;
const FIRST_TREE_INO: u64 = 2;

impl Shape {
    /// Files in all trees; `None` if there are too many to be numbered.
    pub fn entries(&self) -> Option<u64> {
        // With all trees numbered there must be room left for computing with numbers.
        self.inodes().filter(|&inodes| inodes < 1 << 48)?;
        Some(self.trees * self.dirs * self.files)
    }

    /// Inodes below the root: trees, directories and files.
    pub fn inodes(&self) -> Option<u64> {
        let per_tree = self.files.checked_add(1)?.checked_mul(self.dirs)?;
        per_tree.checked_add(1)?.checked_mul(self.trees)
    }

    /// The number of an inode.
    pub fn ino(&self, place: Place) -> u64 {
        let of_dir = |tree, dir| FIRST_TREE_INO + tree * self.per_tree() + 1 + dir * self.per_dir();
        match place {
            Place::Root => ROOT_INO,
            Place::Tree(tree) => FIRST_TREE_INO + tree * self.per_tree(),
            Place::Dir(tree, dir) => of_dir(tree, dir),
            Place::File(tree, dir, file) => of_dir(tree, dir) + 1 + file,
        }
    }

    /// The inode with this number. Numbers that [`ino`](Self::ino) never returns are
    /// places beyond the last tree.
    pub fn place(&self, ino: u64) -> Place {
        let Some(number) = ino.checked_sub(FIRST_TREE_INO) else {
            return Place::Root;
        };
        let (tree, below) = (number / self.per_tree(), number % self.per_tree());
        let Some(below) = below.checked_sub(1) else {
            return Place::Tree(tree);
        };
        let (dir, below) = (below / self.per_dir(), below % self.per_dir());
        match below.checked_sub(1) {
            None => Place::Dir(tree, dir),
            Some(file) => Place::File(tree, dir, file),
        }
    }

    /// The answer of `stat`, without the device.
    pub fn attr(&self, place: Place) -> Attr {
        let ino = self.ino(place);
        if let Place::File(..) = place {
            let random = mix(ino);
            let mode = [0o644, 0o600, 0o755, 0o440][(random & 3) as usize];
            let mtime = Timestamp {
                sec: 1_500_000_000 + (random >> 36) as i64,
                nsec: (random >> 2) as u32 % 1_000_000_000,
            };
            return Attr::new(ino, FileType::Regular, mode)
                .size(random >> 40)
                .blocks((random >> 40).div_ceil(512))
                .mtime(mtime)
                .ctime(mtime);
        }
        Attr::new(ino, FileType::Directory, 0o755)
            .nlink(match place {
                Place::Dir(..) => 2,
                _ => u32::try_from(self.below(place) + 2).unwrap_or(u32::MAX),
            })
            .size(32 * self.below(place))
    }

    /// How many names a directory has.
    fn below(&self, place: Place) -> u64 {
        match place {
            Place::Root => self.trees,
            Place::Tree(_) => self.dirs,
            Place::Dir(..) => self.files,
            Place::File(..) => 0,
        }
    }

    /// What the name number `number` in a directory stands for.
    fn child(&self, dir: Place, number: u64) -> Option<Place> {
        let child = match dir {
            Place::Root => Place::Tree(number),
            Place::Tree(tree) => Place::Dir(tree, number),
            Place::Dir(tree, dir) => Place::File(tree, dir, number),
            Place::File(..) => return None,
        };
        (number < self.below(dir)).then_some(child)
    }

    fn per_dir(&self) -> u64 {
        1 + self.files
    }

    fn per_tree(&self) -> u64 {
        1 + self.dirs * self.per_dir()
    }
}

/// The letter that names of this directory start with.
fn letter(dir: Place) -> u8 {
    match dir {
        Place::Root => b't',
        Place::Tree(_) => b'd',
        Place::Dir(..) | Place::File(..) => b'f',
    }
}

/// The number in a name such as `f12`. One spelling each: no sign, no leading zero.
fn number_in(name: &[u8], letter: u8) -> Option<u64> {
    let (&first, digits) = name.split_first()?;
    let canonical = digits == b"0" || digits.first().is_some_and(|digit| *digit != b'0');
    if first != letter || !canonical {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Numbers that look random, one for each number (splitmix64).
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The file system, to be mounted. Read-only, and its files have no contents to read.
#[derive(Clone, Copy, Debug)]
pub struct SynthFs {
    shape: Shape,
}

impl SynthFs {
    /// Trees of this shape.
    ///
    /// # Panics
    ///
    /// If they have too many [`entries`](Shape::entries) to be numbered.
    pub fn new(shape: Shape) -> SynthFs {
        assert!(shape.entries().is_some(), "too many inodes: {shape:?}");
        SynthFs { shape }
    }

    fn iget(&self, sb: &SuperBlock, place: Place) -> Result<InodeRef> {
        let key = InodeKey::new(self.shape.ino(place));
        Ok(match sb.iget(key)? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => new.init(InodeFill::new(self.shape.attr(place))),
        })
    }
}

impl FileSystem for SynthFs {
    fn name(&self) -> &str {
        "synthfs"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        self.iget(sb, Place::Root)
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let dir = self.shape.place(dir.inode_key().ino);
        let number = number_in(name.as_bytes(), letter(dir));
        let place = number.and_then(|number| self.shape.child(dir, number));
        place.map(|place| self.iget(sb, place)).transpose()
    }

    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }

    fn read_dir(&self, _: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        let dir = self.shape.place(dir.inode_key().ino);
        let children = (from..).map_while(|number| Some((number, self.shape.child(dir, number)?)));
        for (number, child) in children {
            let name = format!("{}{number}", letter(dir) as char);
            let entry = RawEntry {
                name: name.as_bytes(),
                ino: self.shape.ino(child),
                kind: Some(self.shape.attr(child).kind),
                next: number + 1,
            };
            if emit.entry(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, _: &Caller<'_>, _: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        Err(Error::NotSupported)
    }
}

#[cfg(test)]
mod tests {
    use rcuwalk::{Budget, Credentials, LookupFlags, Vfs};

    use super::*;

    const SHAPE: Shape = Shape {
        trees: 3,
        dirs: 4,
        files: 5,
    };

    /// Every inode and its path.
    fn all() -> Vec<(Place, String)> {
        let mut all = vec![(Place::Root, "/".to_owned())];
        for tree in 0..SHAPE.trees {
            all.push((Place::Tree(tree), format!("/t{tree}")));
            for dir in 0..SHAPE.dirs {
                all.push((Place::Dir(tree, dir), format!("/t{tree}/d{dir}")));
                for file in 0..SHAPE.files {
                    let path = format!("/t{tree}/d{dir}/f{file}");
                    all.push((Place::File(tree, dir, file), path));
                }
            }
        }
        all
    }

    #[test]
    fn numbers_are_dense_and_say_where_an_inode_is() {
        let places = all();
        for (number, (place, _)) in places.iter().enumerate() {
            assert_eq!(
                SHAPE.ino(*place),
                1 + number as u64,
                "in the order of a walk"
            );
            assert_eq!(SHAPE.place(SHAPE.ino(*place)), *place);
        }
        assert_eq!(SHAPE.inodes(), Some(places.len() as u64 - 1));
        assert_eq!(SHAPE.entries(), Some(60));
    }

    #[test]
    fn a_path_leads_to_the_same_inode_also_after_it_was_dropped() {
        let vfs = Vfs::with_budget(SynthFs::new(SHAPE), Budget::default()).unwrap();
        let ctx = vfs.context(Credentials::user(1, 1));
        for walk in 1..=2 {
            for (place, path) in all() {
                let attr = vfs.stat(&ctx, &path, LookupFlags::FOLLOW).unwrap();
                let expected = SHAPE.attr(place).dev(attr.dev);
                assert_eq!(attr, expected, "{path}");
            }
            let stats = vfs.inode_statistics();
            // The root is read once, at mount, and stays.
            assert_eq!(stats.inserted, 1 + walk * SHAPE.inodes().unwrap());
            assert_eq!(stats.hits, 0, "{stats:?}");
            vfs.drop_caches();
            assert_eq!(vfs.inode_statistics().inodes, 1);
        }
    }

    #[test]
    fn what_is_no_name_of_the_tree_is_missing() {
        let vfs = Vfs::new(SynthFs::new(SHAPE)).unwrap();
        let ctx = vfs.context(Credentials::root());
        for path in [
            "/t3",
            "/t",
            "/d0",
            "/t00",
            "/t01",
            "/t-1",
            "/t+1",
            "/t0x",
            "/t0/t0",
            "/t0/d4",
            "/t0/d0/f5",
            "/t0/d0/f18446744073709551616",
        ] {
            let missing = vfs.stat(&ctx, path, LookupFlags::FOLLOW);
            assert!(
                matches!(missing, Err(Error::NotFound)),
                "{path}: {missing:?}"
            );
        }
        let below = vfs.stat(&ctx, "/t0/d0/f0/f0", LookupFlags::FOLLOW);
        assert!(matches!(below, Err(Error::NotADirectory)), "{below:?}");
    }

    #[test]
    fn a_directory_lists_the_names_that_it_has() {
        let vfs = Vfs::new(SynthFs::new(SHAPE)).unwrap();
        let ctx = vfs.context(Credentials::root());
        let mut listed = vec!["/".to_owned()];
        let mut next = 0;
        while let Some(path) = listed.get(next).cloned() {
            next += 1;
            let attr = vfs.stat(&ctx, &path, LookupFlags::FOLLOW).unwrap();
            if attr.kind == FileType::Directory {
                for entry in vfs.read_dir(&ctx, &path).unwrap() {
                    let name = String::from_utf8(entry.unwrap().name.to_vec()).unwrap();
                    listed.push(format!("{}/{name}", path.trim_end_matches('/')));
                }
            }
        }
        let mut expected: Vec<_> = all().into_iter().map(|(_, path)| path).collect();
        expected.sort();
        listed.sort();
        assert_eq!(listed, expected);
    }

    #[test]
    fn shapes_too_large_to_be_numbered_are_known_as_such() {
        let large = |trees, dirs, files| Shape { trees, dirs, files }.entries();
        assert_eq!(large(20, 1000, 1000), Some(20_000_000));
        assert_eq!(large(1 << 20, 1 << 20, 1 << 20), None);
        assert_eq!(large(u64::MAX, u64::MAX, u64::MAX), None);
        assert_eq!(large(1, 1, u64::MAX), None);
    }
}
