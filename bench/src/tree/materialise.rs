//! Building a tree in some directory.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{self as unix, DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Entry, Kind, TreeSpec};

impl TreeSpec {
    /// Builds the tree in `dir`, which exists and has none of the names in it.
    ///
    /// Owners are set only if we are root. The mode of `dir` itself stays.
    ///
    /// Follows no link and overwrites nothing: each entry is new, in directories made just
    /// before. On an error, the caller, who owns `dir`, removes the partial tree.
    pub fn materialise(&self, dir: &Path) -> io::Result<()> {
        let host_path = |entry: &Entry| dir.join(OsStr::from_bytes(&entry.path));
        let is_root = rustix::process::geteuid().is_root();

        for entry in &self.entries {
            let path = host_path(entry);
            create(entry, &path, is_root).map_err(|err| about(&path, err))?;
        }
        // Deepest first, and after all is there: a mode may forbid us to go on.
        for entry in self.entries.iter().rev() {
            let path = host_path(entry);
            set_mode(entry, &path).map_err(|err| about(&path, err))?;
        }
        Ok(())
    }
}

fn create(entry: &Entry, path: &PathBuf, is_root: bool) -> io::Result<()> {
    match &entry.kind {
        Kind::Dir => DirBuilder::new().mode(0o700).create(path)?,
        Kind::File => {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
        }
        Kind::Symlink(target) => unix::symlink(OsStr::from_bytes(target), path)?,
    }
    if is_root {
        unix::lchown(path, Some(entry.uid), Some(entry.gid))?;
    }
    Ok(())
}

fn set_mode(entry: &Entry, path: &PathBuf) -> io::Result<()> {
    match entry.kind {
        // A symlink's mode is always 0777; chmod would reach for its target.
        Kind::Symlink(_) => Ok(()),
        Kind::Dir | Kind::File => fs::set_permissions(path, Permissions::from_mode(entry.mode)),
    }
}

fn about(path: &Path, err: io::Error) -> io::Error {
    io::Error::new(err.kind(), format!("{}: {err}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_set_even_where_they_forbid_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let text = "dir 0555 0 0 a\ndir 0500 0 0 a/b\nfile 0400 0 0 a/b/c\n";
        TreeSpec::parse(text)
            .unwrap()
            .materialise(dir.path())
            .unwrap();
        let mode = |path: &str| {
            let meta = fs::symlink_metadata(dir.path().join(path)).unwrap();
            meta.permissions().mode() & 0o7777
        };
        let modes = ["a", "a/b", "a/b/c"].map(mode);
        // First, so that a user other than root can remove the directory as well.
        for path in ["a", "a/b"] {
            fs::set_permissions(dir.path().join(path), Permissions::from_mode(0o700)).unwrap();
        }
        assert_eq!(modes, [0o555, 0o500, 0o400]);
    }

    #[test]
    fn what_is_there_already_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let tree = TreeSpec::parse("file 0644 0 0 a").unwrap();
        fs::write(dir.path().join("a"), "mine").unwrap();
        let err = tree.materialise(dir.path()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::AlreadyExists);
        assert!(err.to_string().contains("/a: "), "{err}");
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"mine");
    }
}
