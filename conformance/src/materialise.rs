//! The same tree twice: as files of the host, and in memfs.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rcuwalk::{FileType, NewFile};
use rcuwalk_memfs::{MemFs, NodeId};
use rustix::fs::{CWD, Mode};
use tempfile::TempDir;

use crate::answer::Numbers;
use crate::tree::{Entry, NodeIx, ROOT, Tree};

/// What the host lets us make of a tree, and be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Powers {
    /// Files may belong to anybody. Else everything belongs to root, and root (with
    /// and without its capabilities) makes all the walks.
    pub many_ids: bool,
    /// There may be device nodes.
    pub devices: bool,
}

impl Powers {
    /// All of them: for trees that are never materialised.
    pub const ALL: Powers = Powers {
        many_ids: true,
        devices: true,
    };
}

/// A tree materialised in a directory of the host; dropping it removes it.
#[derive(Debug)]
pub struct OnHost {
    top: PathBuf,
    numbers: Numbers,
    _dir: Removed,
}

impl OnHost {
    /// Makes all of `tree` below a new directory in `place`.
    ///
    /// # Errors
    /// Whatever the host says: owners and device nodes take root.
    pub fn new(tree: &Tree, place: &Path) -> io::Result<OnHost> {
        let dir = tempfile::Builder::new()
            .prefix("rcuwalk-conformance-")
            .tempdir_in(place)?;
        let dir = Removed(dir);
        let top = dir.0.path().join("tree");
        fs::create_dir(&top)?;
        let mut paths = vec![None; tree.len()];
        paths[ROOT] = Some(top.clone());
        for Entry { dir, name, node } in tree.entries() {
            let above = paths[dir]
                .as_ref()
                .expect("directories come before their entries");
            let path = above.join(OsStr::from_bytes(name));
            match &paths[node] {
                Some(first) => fs::hard_link(first, &path)?,
                None => {
                    make(tree, node, &path)?;
                    paths[node] = Some(path);
                }
            }
        }
        // Modes and owners last: until then, everything must be writable.
        let mut numbers = Numbers::default();
        for (ix, path) in paths.iter().enumerate().rev() {
            let Some(path) = path else { continue };
            own(tree, ix, path)?;
            numbers.note(fs::symlink_metadata(path)?.ino(), ix);
        }
        Ok(OnHost {
            top,
            numbers,
            _dir: dir,
        })
    }

    /// The directory that is the tree's root.
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// Which host inode is which node.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }
}

fn make(tree: &Tree, ix: NodeIx, path: &Path) -> io::Result<()> {
    let node = tree.node(ix);
    let kind = match node.kind {
        FileType::Directory => return fs::create_dir(path),
        FileType::Regular => return fs::write(path, &node.content),
        FileType::Symlink => return symlink(OsStr::from_bytes(&node.target), path),
        kind => rustix::fs::FileType::from_raw_mode(kind.mode_bits()),
    };
    Ok(rustix::fs::mknodat(
        CWD,
        path,
        kind,
        Mode::RUSR | Mode::WUSR,
        node.rdev,
    )?)
}

fn own(tree: &Tree, ix: NodeIx, path: &Path) -> io::Result<()> {
    let node = tree.node(ix);
    lchown(path, Some(node.uid), Some(node.gid))?;
    if node.is_symlink() {
        return Ok(());
    }
    // After chown, which takes set-id bits away.
    fs::set_permissions(path, Permissions::from_mode(node.mode.into()))
}

/// A temporary directory that also goes away when directories in it are closed to
/// the user who made them.
#[derive(Debug)]
struct Removed(TempDir);

impl Drop for Removed {
    fn drop(&mut self) {
        if !rustix::process::geteuid().is_root() {
            open_up(self.0.path());
        }
    }
}

fn open_up(dir: &Path) {
    // Errors are ignored: they show when the directory is removed.
    let _ = fs::set_permissions(dir, Permissions::from_mode(0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

/// Where there is the least between us and the kernel's caches: a tmpfs.
pub fn on_tmpfs() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    let writable = rustix::fs::access(&shm, rustix::fs::Access::WRITE_OK).is_ok();
    if writable { shm } else { std::env::temp_dir() }
}

/// `tree` in memfs, and which of its inode numbers is which node.
///
/// # Panics
/// If memfs refuses an entry that the host takes.
pub fn in_memory(tree: &Tree) -> (MemFs, Numbers) {
    let fs = MemFs::new();
    let mut ids: Vec<Option<NodeId>> = vec![None; tree.len()];
    ids[ROOT] = Some(fs.root());
    for Entry { dir, name, node } in tree.entries() {
        let above = ids[dir].expect("directories come before their entries");
        if let Some(existing) = ids[node] {
            fs.add_link(above, name, existing)
                .expect("memfs takes a hard link");
            continue;
        }
        let id = fs
            .add(above, name, new_file(tree, node))
            .expect("memfs takes an entry");
        let content = &tree.node(node).content;
        if !content.is_empty() {
            fs.write(id, content).expect("a new file takes contents");
        }
        ids[node] = Some(id);
    }
    let mut numbers = Numbers::default();
    for (ix, id) in ids.into_iter().enumerate() {
        if let Some(id) = id {
            numbers.note(fs.ino(id), ix);
        }
    }
    (fs, numbers)
}

fn new_file(tree: &Tree, ix: NodeIx) -> NewFile<'_> {
    let node = tree.node(ix);
    NewFile::new(node.kind, node.mode)
        .uid(node.uid)
        .gid(node.gid)
        .rdev(node.rdev)
        .target(&node.target)
}
