//! DIR-1, and that names are found or missing as a model says: [`check_listings`], for whatever has
//! directories.
//!
//! Creates, links, unlinks, renames and exchanges in two directories go on beside listings that stop,
//! and go on later from their position or from an earlier one of theirs (seekdir(3)). An entry that is
//! there all through a listing comes exactly once, and one that has gone meanwhile is no error.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rcuwalk::{Context, Credentials, Entries, Error, LookupFlags, OpenFlags, Vfs};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;

use crate::Rng;

/// A tree, asked in some way. Paths are relative to its root. Changes return false for the errors
/// that follow from the state of the names, and panic for all others.
pub trait Names {
    /// Makes a directory.
    fn mkdir(&self, path: &str);
    /// Makes a file; false if the name is taken.
    fn create(&self, path: &str) -> bool;
    /// Removes a file; false if it is missing.
    fn unlink(&self, path: &str) -> bool;
    /// Makes another name of a file; false if that is missing or this taken.
    fn link(&self, file: &str, path: &str) -> bool;
    /// Moves a name, over another one if need be; false if it is missing.
    fn rename(&self, from: &str, to: &str) -> bool;
    /// Exchanges two names; false if one is missing, or the tree cannot do that.
    fn exchange(&self, one: &str, other: &str) -> bool;
    /// The inode number of a file, if it is there.
    fn find(&self, path: &str) -> Option<u64>;
    /// Names in a directory after a position, each with its own: some, or none at the end. `.` and
    /// `..` may be among them. `bytes` is the size of the buffer.
    fn list(&self, dir: &str, position: u64, bytes: usize) -> Vec<(String, u64)>;
    /// Evicts what is cached, if anything is.
    fn drop_caches(&self) {}
}

/// The tree of a [`Vfs`].
#[derive(Debug)]
pub struct InVfs<'v> {
    vfs: &'v Vfs,
    ctx: Context,
}

impl<'v> InVfs<'v> {
    /// As root sees it.
    pub fn new(vfs: &'v Vfs) -> InVfs<'v> {
        let ctx = vfs.context(Credentials::root());
        InVfs { vfs, ctx }
    }
}

fn done<T>(result: rcuwalk::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::Exists | Error::NotFound) => false,
        Err(err) => panic!("{err}"),
    }
}

impl Names for InVfs<'_> {
    fn mkdir(&self, path: &str) {
        self.vfs.mkdir(&self.ctx, path, 0o755).unwrap();
    }
    fn create(&self, path: &str) -> bool {
        done(self.vfs.create(&self.ctx, path, 0o644))
    }
    fn unlink(&self, path: &str) -> bool {
        done(self.vfs.unlink(&self.ctx, path))
    }
    fn link(&self, file: &str, path: &str) -> bool {
        done(self.vfs.link(&self.ctx, file, path))
    }
    fn rename(&self, from: &str, to: &str) -> bool {
        done(self.vfs.rename(&self.ctx, from, to))
    }
    fn exchange(&self, one: &str, other: &str) -> bool {
        let (here, flags) = (self.ctx.cwd(), rcuwalk::RenameFlags::EXCHANGE);
        let exchanged = self
            .vfs
            .renameat2(&self.ctx, (here, one), (here, other), flags);
        done(exchanged)
    }
    fn find(&self, path: &str) -> Option<u64> {
        match self.vfs.stat(&self.ctx, path, LookupFlags::empty()) {
            Ok(attr) => Some(attr.ino),
            Err(Error::NotFound) => None,
            Err(err) => panic!("{path}: {err}"),
        }
    }
    fn list(&self, dir: &str, position: u64, bytes: usize) -> Vec<(String, u64)> {
        let dir = self.vfs.open(&self.ctx, dir, OpenFlags::READ).unwrap();
        let mut buf = vec![0; bytes];
        let used = dir.fill(position, &mut buf).unwrap();
        let entries = Entries::new(&buf[..used]);
        entries
            .map(|entry| (text(entry.name), entry.next))
            .collect()
    }
    fn drop_caches(&self) {
        self.vfs.drop_caches();
    }
}

/// A directory of the host's.
#[derive(Debug)]
pub struct OnHost {
    root: OwnedFd,
    /// Directories that stay open: half of the calls list through them.
    open: Mutex<HashMap<String, Arc<OwnedFd>>>,
}

impl OnHost {
    /// The tree below `root`.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn new(root: &Path) -> OnHost {
        OnHost {
            root: rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty()).unwrap(),
            open: Mutex::default(),
        }
    }

    fn dir(&self, path: &str, is_new: bool) -> Arc<OwnedFd> {
        let open = || {
            let dir = rustix::fs::openat(&self.root, path, DIRECTORY, Mode::empty());
            Arc::new(dir.unwrap())
        };
        if is_new {
            return open();
        }
        let mut all = self.open.lock().unwrap();
        all.entry(path.to_owned()).or_insert_with(open).clone()
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

fn made<T>(result: rustix::io::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(Errno::EXIST | Errno::NOENT) => false,
        Err(err) => panic!("{err}"),
    }
}

impl Names for OnHost {
    fn mkdir(&self, path: &str) {
        rustix::fs::mkdirat(&self.root, path, Mode::from(0o755)).unwrap();
    }
    fn create(&self, path: &str) -> bool {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        made(rustix::fs::openat(
            &self.root,
            path,
            flags,
            Mode::from(0o644),
        ))
    }
    fn unlink(&self, path: &str) -> bool {
        made(rustix::fs::unlinkat(&self.root, path, AtFlags::empty()))
    }
    fn link(&self, file: &str, path: &str) -> bool {
        let root = &self.root;
        made(rustix::fs::linkat(root, file, root, path, AtFlags::empty()))
    }
    fn rename(&self, from: &str, to: &str) -> bool {
        made(rustix::fs::renameat(&self.root, from, &self.root, to))
    }
    fn exchange(&self, one: &str, other: &str) -> bool {
        let root = &self.root;
        match rustix::fs::renameat_with(root, one, root, other, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS) => false,
            result => made(result),
        }
    }
    fn find(&self, path: &str) -> Option<u64> {
        match rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat.st_ino),
            Err(Errno::NOENT) => None,
            Err(err) => panic!("{path}: {err}"),
        }
    }
    fn list(&self, dir: &str, position: u64, bytes: usize) -> Vec<(String, u64)> {
        let dir = self.dir(dir, bytes.is_multiple_of(2));
        rustix::fs::seek(&dir, rustix::fs::SeekFrom::Start(position)).unwrap();
        let mut buf = vec![MaybeUninit::uninit(); bytes];
        let mut entries = RawDir::new(dir.as_fd(), &mut buf);
        let mut listed = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            let name = text(entry.file_name().to_bytes());
            listed.push((name, entry.next_entry_cookie()));
            if entries.is_buffer_empty() {
                break;
            }
        }
        listed
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

/// A listing in progress.
struct Listing {
    dir: usize,
    position: u64,
    /// Names that have been there, of one entry, since it began.
    stayed: BTreeSet<String>,
    /// What has come, with the number of entries before it.
    seen: HashMap<String, usize>,
    /// Entries that have come.
    count: usize,
    /// Positions that it has had, each with the number of entries before it.
    earlier: Vec<(u64, usize)>,
}

/// Changes a tree in `steps` steps, beside listings; see the [module](self).
///
/// # Panics
/// If a listing or a lookup is wrong.
pub fn check_listings(tree: &impl Names, random: &mut Rng, steps: usize) {
    let mut checked = Checked {
        tree,
        names: Default::default(),
        listings: Vec::new(),
        ended: 0,
        went_back: 0,
    };
    for dir in ["0", "1"] {
        tree.mkdir(dir);
    }
    for _ in 0..steps {
        checked.step(random);
    }
    let enough = steps / 200;
    let Checked {
        ended, went_back, ..
    } = checked;
    assert!(
        ended >= enough && went_back >= enough / 2,
        "{ended} listings ended, {went_back} went back"
    );
}

struct Checked<'t, T> {
    tree: &'t T,
    /// What each directory has: each name with its inode's number.
    names: [BTreeMap<String, u64>; 2],
    listings: Vec<Listing>,
    ended: usize,
    went_back: usize,
}

/// Names of each directory, of which about half are there.
const NAMES: usize = 100;

impl<T: Names> Checked<'_, T> {
    fn step(&mut self, random: &mut Rng) {
        let tree = self.tree;
        let (a, b) = (random.below(2), random.below(2));
        // Of different lengths: a record's place is seldom that of another one.
        let long = "x".repeat(random.below(2) * 30);
        let from = format!("{}{long}", random.below(NAMES));
        let to = random.below(NAMES).to_string();
        let (old, new) = (format!("{a}/{from}"), format!("{b}/{to}"));
        let there = self.names[a].get(&from).copied();
        let taken = self.names[b].get(&to).copied();
        match random.below(12) {
            0 | 1 => {
                assert_eq!(tree.create(&old), there.is_none(), "{old} is made");
                if there.is_none() {
                    let ino = tree.find(&old).expect("it has been made");
                    self.names[a].insert(from, ino);
                }
            }
            2 => {
                assert_eq!(tree.unlink(&old), there.is_some(), "{old} is removed");
                self.goes(a, &from);
            }
            3 => {
                let linked = tree.link(&old, &new);
                assert_eq!(linked, there.is_some() && taken.is_none(), "{old} {new}");
                if linked && let Some(ino) = there {
                    self.names[b].insert(to, ino);
                }
            }
            4 if random.one_in(4) => {
                if tree.exchange(&old, &new)
                    && let (Some(one), Some(other)) = (there, taken)
                {
                    self.names[a].insert(from.clone(), other);
                    self.names[b].insert(to.clone(), one);
                    // Each is another entry's name now.
                    self.ends(a, &from);
                    self.ends(b, &to);
                }
            }
            4 => {
                assert_eq!(tree.rename(&old, &new), there.is_some(), "{old} {new}");
                // Two names of one file stay.
                if let Some(ino) = there.filter(|ino| Some(*ino) != taken) {
                    self.goes(a, &from);
                    self.ends(b, &to);
                    self.names[b].insert(to, ino);
                }
            }
            5 if self.listings.len() < 4 => self.listings.push(Listing {
                dir: a,
                position: 0,
                stayed: self.names[a].keys().cloned().collect(),
                seen: HashMap::new(),
                count: 0,
                earlier: vec![(0, 0)],
            }),
            5..8 if !self.listings.is_empty() => self.go_on(random),
            8 if random.one_in(200) => tree.drop_caches(),
            9 if random.one_in(20) => self.list_all(a),
            _ => {}
        }
        let (dir, name) = (random.below(2), random.below(NAMES).to_string());
        let found = tree.find(&format!("{dir}/{name}"));
        assert_eq!(
            found,
            self.names[dir].get(&name).copied(),
            "DIR-2: {dir}/{name}"
        );
    }

    /// A name is gone.
    fn goes(&mut self, dir: usize, name: &str) {
        self.names[dir].remove(name);
        self.ends(dir, name);
    }

    /// An entry is gone, or is another file's.
    fn ends(&mut self, dir: usize, name: &str) {
        for listing in &mut self.listings {
            if listing.dir == dir {
                listing.stayed.remove(name);
            }
        }
    }

    fn go_on(&mut self, random: &mut Rng) {
        let at = random.below(self.listings.len());
        let listing = &mut self.listings[at];
        if random.one_in(8) {
            // Back to a position that it has had.
            let (position, before) = *random.pick(&listing.earlier);
            (listing.position, listing.count) = (position, before);
            listing.earlier.retain(|earlier| earlier.1 <= before);
            listing.seen.retain(|_, number| *number < before);
            if position == 0 {
                // From the start again: what was made meanwhile counts as well.
                listing.stayed = self.names[listing.dir].keys().cloned().collect();
            }
            self.went_back += 1;
        }
        let bytes = random.between(128, 2_500);
        let dir = listing.dir.to_string();
        let listed = self.tree.list(&dir, listing.position, bytes);
        let is_at_end = listed.is_empty();
        for (name, next) in listed {
            listing.position = next;
            if name == "." || name == ".." {
                continue;
            }
            let before = listing.seen.insert(name.clone(), listing.count);
            let is_twice = before.is_some() && listing.stayed.contains(&name);
            assert!(!is_twice, "DIR-1: {name} comes twice");
            listing.count += 1;
            listing.earlier.push((next, listing.count));
        }
        if is_at_end {
            for name in &listing.stayed {
                assert!(listing.seen.contains_key(name), "DIR-1: {name} is left out");
            }
            self.listings.swap_remove(at);
            self.ended += 1;
        }
    }

    /// A listing beside which nothing changes is the directory.
    fn list_all(&self, dir: usize) {
        let (mut position, mut all) = (0, Vec::new());
        loop {
            let listed = self.tree.list(&dir.to_string(), position, 4096);
            let Some((_, last)) = listed.last() else {
                break;
            };
            position = *last;
            all.extend(listed.into_iter().map(|(name, _)| name));
        }
        all.retain(|name| name != "." && name != "..");
        all.sort();
        assert!(all.iter().eq(self.names[dir].keys()), "DIR-1: all of {dir}");
    }
}
