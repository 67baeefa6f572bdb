//! The directory that is served.
//!
//! ```text
//! walked/00/00/f0000 …    empty files, each with a size of its own
//! many/0000/f0000 …       the same, of which there are more
//! made/00 …               a directory for each thread that makes files
//! listed/entry-000000 …
//! data                    read, and overwritten
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Fuse, FuseError};

/// Where memory passes for a directory, on most machines.
const SHM: &str = "/dev/shm";

/// It goes when it is dropped.
pub(super) struct Tree {
    root: TempDir,
    /// Directories that are walked, from the root.
    pub(super) walked: Vec<PathBuf>,
    /// Those that are walked again later.
    pub(super) many: Vec<PathBuf>,
    /// The names in each of them.
    pub(super) names: Vec<String>,
}

impl Tree {
    pub(super) fn make(size: &Fuse) -> Result<Tree, FuseError> {
        Tree::try_make(size).map_err(FuseError::NoTree)
    }

    fn try_make(size: &Fuse) -> io::Result<Tree> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("rcuwalk-bench-fuse-");
        let root = match &size.within {
            Some(within) => builder.tempdir_in(within),
            None => builder.tempdir_in(SHM).or_else(|_| builder.tempdir()),
        }?;
        let tree = Tree {
            root,
            walked: walked(size),
            many: (0..size.many)
                .map(|dir| format!("many/{dir:04}").into())
                .collect(),
            names: (0..size.files).map(|n| format!("f{n:04}")).collect(),
        };
        for (at, dir) in tree.walked.iter().chain(&tree.many).enumerate() {
            let dir = tree.path().join(dir);
            fs::create_dir_all(&dir)?;
            for (n, name) in tree.names.iter().enumerate() {
                let file = File::create(dir.join(name))?;
                // A hole: only the number counts.
                file.set_len((at * 31 + n * 7) as u64 % 9999)?;
            }
        }
        for maker in 0..size.makers {
            fs::create_dir_all(tree.path().join(made_by(maker)))?;
        }
        fs::create_dir(tree.path().join("listed"))?;
        for n in 0..size.listed {
            File::create(tree.path().join(format!("listed/entry-{n:06}")))?;
        }
        let mut data = File::create(tree.path().join("data"))?;
        let block = vec![0x5a; 1 << 20];
        for _ in 0..size.mib {
            data.write_all(&block)?;
        }
        Ok(tree)
    }

    pub(super) fn path(&self) -> &Path {
        self.root.path()
    }

    /// The kind of file system it is on, or where it is if that has no well-known number.
    pub(super) fn file_system(&self) -> String {
        let magic = rustix::fs::statfs(self.path()).map_or(0, |fs| fs.f_type as u64);
        let known = [
            (0x0102_1994, "tmpfs"),
            (0xef53, "ext4"),
            (0x5846_5342, "xfs"),
            (0x9123_683e, "btrfs"),
        ];
        match known.into_iter().find(|(number, _)| *number == magic) {
            Some((_, name)) => name.to_owned(),
            None => self.path().display().to_string(),
        }
    }
}

fn walked(size: &Fuse) -> Vec<PathBuf> {
    let dirs = |tree| (0..size.dirs).map(move |dir| format!("walked/{tree:02}/{dir:02}").into());
    (0..size.trees).flat_map(dirs).collect()
}

/// Where one of the makers works, from the root.
pub(super) fn made_by(maker: usize) -> String {
    format!("made/{maker:02}")
}
