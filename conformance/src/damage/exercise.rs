//! Everything that can be done with an image: reading it by number, by name and by scanning.
//! The answers do not matter here, as there is no right answer for a damaged image. The calls
//! have to return, and two ways to the same answer have to agree.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use rcuwalk::scan::{Ended, ScanEntry, Visitor};
use rcuwalk::{Budget, Context, Credentials, FileType, LookupFlags, OpenFlags, Vfs};
use rcuwalk_ext4::{Checksums, Ext4, Order};

use super::limits::CACHE;

/// As many inodes are asked for by number, directories visited by name, and files read.
const INODES: u32 = 400;
const DIRECTORIES: usize = 60;
const ENTRIES: usize = 2000;
const FILES: usize = 60;

/// How far the exercise got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The image could be opened.
    pub opened: bool,
    /// Inodes found by number.
    pub inodes: usize,
    /// Names found by walking.
    pub names: usize,
    /// Entries that a scan delivered.
    pub entries: usize,
    /// Problems that a scan reported.
    pub problems: usize,
}

/// Opens the image and reads what there is.
///
/// # Errors
/// Where two answers differ that must be the same.
pub fn exercise(image: Vec<u8>, checksums: Checksums) -> Result<Coverage, String> {
    let mut coverage = Coverage::default();
    let opened = Ext4::options()
        .checksums(checksums)
        .cache_bytes(CACHE)
        .open_source(image);
    let Ok(ext4) = opened else {
        return Ok(coverage);
    };
    coverage.opened = true;
    by_number(&ext4, &mut coverage);
    by_name(&ext4, &mut coverage);
    by_scan(&ext4, &mut coverage)?;
    Ok(coverage)
}

fn by_number(ext4: &Ext4, coverage: &mut Coverage) {
    let info = ext4.info();
    let last = info.inodes_count;
    let mut buf = vec![0; 6000];
    for ino in (0..=last.min(INODES)).chain([last, last.saturating_add(1), u32::MAX]) {
        let Ok(inode) = ext4.inode(ino) else {
            continue;
        };
        coverage.inodes += 1;
        let _ = ext4.xattrs(ino);
        let _ = ext4.read_link(ino);
        for name in [&b"small"[..], b".", "x".repeat(255).as_bytes()] {
            let _ = ext4.lookup(ino, name);
        }
        let _ = ext4.lookup(ino, format!("{ino:0>250}").as_bytes());
        if inode.attr.kind != FileType::Regular {
            continue;
        }
        let size = inode.attr.size;
        for offset in [0, 5000, size / 2, size.saturating_sub(1), size, 1 << 33, !0] {
            let _ = ext4.read(ino, &mut buf, offset);
        }
    }
}

fn by_name(ext4: &Ext4, coverage: &mut Coverage) {
    let budget = Budget::default()
        .dentries(1000)
        .inodes(1000)
        .bytes(1 << 20)
        .fds(16);
    let Ok(vfs) = Vfs::with_budget(ext4.clone(), budget) else {
        return;
    };
    let me = vfs.context(Credentials::root());
    let mut directories = vec![(b"/".to_vec(), 0)];
    let mut visited = 0;
    let mut files = 0;
    while let Some((dir, depth)) = directories.pop().filter(|_| visited < DIRECTORIES) {
        visited += 1;
        let Ok(listing) = vfs.read_dir(&me, &dir) else {
            continue;
        };
        for missing in ["missing", "../missing", "../.."] {
            let path = [&dir, missing.as_bytes()].concat();
            let _ = vfs.stat(&me, path, LookupFlags::FOLLOW);
        }
        // One that cannot be read ends the listing or does not: both end.
        for entry in listing.take(ENTRIES).flatten() {
            coverage.names += 1;
            let path = [&dir, &*entry.name].concat();
            let Ok(attr) = vfs.stat(&me, &path, LookupFlags::default()) else {
                continue;
            };
            match attr.kind {
                FileType::Directory if depth < 12 => {
                    directories.push(([&path, &b"/"[..]].concat(), depth + 1));
                }
                FileType::Symlink => {
                    let _ = vfs.read_link(&me, &path);
                    let _ = vfs.stat(&me, &path, LookupFlags::FOLLOW);
                }
                FileType::Regular if files < FILES => {
                    files += 1;
                    read(&vfs, &me, &path);
                }
                _ => {}
            }
        }
    }
}

fn read(vfs: &Vfs, me: &Context, path: &[u8]) {
    let Ok(file) = vfs.open(me, path, OpenFlags::READ | OpenFlags::NOFOLLOW) else {
        return;
    };
    let mut buf = [0; 3000];
    for offset in [0, 2500, file.attr().size.saturating_sub(10), 1 << 40] {
        let _ = file.read_at(&mut buf, offset);
    }
}

/// An entry's path, then what a scan says of it.
type Delivered = (Vec<u8>, String);

#[derive(Default)]
struct Collect {
    entries: Vec<Delivered>,
    problems: usize,
}

impl Visitor for Collect {
    fn entry(&mut self, entry: &ScanEntry<'_>) -> ControlFlow<()> {
        let mut path = Vec::new();
        entry.path_into(&mut path);
        let said = format!("{:?}", (entry.attr, entry.generation, entry.target));
        self.entries.push((path, said));
        ControlFlow::Continue(())
    }

    fn problem(&mut self, _path: &[u8], _error: &dyn std::error::Error) -> ControlFlow<()> {
        self.problems += 1;
        ControlFlow::Continue(())
    }
}

fn by_scan(ext4: &Ext4, coverage: &mut Coverage) -> Result<(), String> {
    let [tree, inode] = [Order::Tree, Order::Inode].map(|order| {
        let visitors = vec![Collect::default(), Collect::default()];
        let (visitors, ended) = ext4
            .scan()
            .order(order)
            .run(&AtomicBool::new(false), visitors);
        let problems: usize = visitors.iter().map(|visitor| visitor.problems).sum();
        let entries = visitors.into_iter().flat_map(|visitor| visitor.entries);
        let mut entries: Vec<Delivered> = entries.collect();
        entries.sort_unstable();
        (entries, problems, ended)
    });
    if tree.2 != Ended::Complete || inode.2 != Ended::Complete {
        return Err("a scan that nobody stopped ended early".into());
    }
    coverage.entries = tree.0.len();
    coverage.problems = tree.1;
    // Which of a directory's two names is the second one is left to chance.
    if tree.1 == 0 && inode.1 == 0 && tree.0 != inode.0 {
        let differ = tree
            .0
            .iter()
            .zip(&inode.0)
            .find(|(tree, inode)| tree != inode);
        return Err(format!(
            "the orders of a scan differ: {} and {} entries; {differ:?}",
            tree.0.len(),
            inode.0.len()
        ));
    }
    Ok(())
}
