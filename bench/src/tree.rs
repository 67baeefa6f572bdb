//! The tree that a workload's paths are asked of.
//!
//! A [`TreeSpec`] says which directories, files and symlinks exist and whose they
//! are; files have no contents, because looking a path up never reads them. It is
//! taken from a host ([`capture`](TreeSpec::capture)), kept as text, and built
//! again anywhere ([`materialise`](TreeSpec::materialise), or by a file system of
//! our own from [`entries`](TreeSpec::entries)).
//!
//! # The text form
//!
//! ```text
//! # One entry per line: kind, mode (octal), uid, gid, path; for a link, its target.
//! dir 0755 0 0 usr
//! dir 0755 0 0 usr/lib
//! file 0644 0 0 usr/lib/a\x20file
//! link 0777 0 0 lib -> usr/lib
//! ```
//!
//! - Paths are relative to the root of the tree, which itself has no entry. A
//!   directory stands before what is in it.
//! - A backslash, and every byte that is not a visible ASCII character, is written
//!   `\xHH`. So names hold any byte, and a space always ends a field.
//! - **Link targets are relative, always.** An absolute target would lead out of a
//!   tree that is built somewhere else; `capture` rewrites `/lib/libz.so.1` in
//!   `usr/lib/libz.so` into `../../lib/libz.so.1`.
//! - Blank lines and lines that start with `#` are skipped.

mod capture;
mod materialise;
mod text;

use std::collections::HashMap;

pub use text::ParseError;

/// The longest name of one component, as on every file system of note.
const NAME_MAX: usize = 255;

/// Which directories, files and symlinks a tree consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    /// Each after its directory.
    entries: Vec<Entry>,
}

/// One directory, file or symlink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path relative to the root, without `.`, `..` or empty components.
    pub path: Vec<u8>,
    /// The kind of entry.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// What an [`Entry`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Dir,
    /// A regular file, empty.
    File,
    /// A symlink and its target, which is relative.
    Symlink(Vec<u8>),
}

impl TreeSpec {
    /// The tree of [`PathList::builtin`](crate::paths::PathList::builtin).
    pub fn builtin() -> Self {
        Self::parse(include_str!("../data/gcc-ld/tree.txt"))
            .expect("the built-in tree is parsed by a test")
    }

    /// The entries, each after its directory.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Entry {
    /// The path of the directory it is in; empty for the root.
    pub fn parent(&self) -> &[u8] {
        let slash = self.path.iter().rposition(|&byte| byte == b'/');
        &self.path[..slash.unwrap_or(0)]
    }

    /// Its name in that directory.
    pub fn name(&self) -> &[u8] {
        let slash = self.path.iter().rposition(|&byte| byte == b'/');
        &self.path[slash.map_or(0, |slash| slash + 1)..]
    }
}

/// Sees that entries form a tree, as they are added one by one.
///
/// An accepted entry can be built without following a link and without leaving the directory
/// that it is built in.
#[derive(Default)]
struct Checker<'a> {
    is_dir: HashMap<&'a [u8], bool>,
}

impl<'a> Checker<'a> {
    fn add(&mut self, entry: &'a Entry) -> Result<(), String> {
        let shown = entry.path.escape_ascii();
        for name in entry.path.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." | b".." => {
                    return Err(format!(
                        "`{shown}` is not relative to the root and plain \
                         (no `.`, `..`, double or outer slashes)"
                    ));
                }
                name if name.len() > NAME_MAX => {
                    return Err(format!(
                        "`{shown}` has a name of more than {NAME_MAX} bytes"
                    ));
                }
                name if name.contains(&0) => return Err(format!("`{shown}` has a NUL byte")),
                _ => {}
            }
        }
        if let Kind::Symlink(target) = &entry.kind {
            match target.first() {
                None => return Err(format!("`{shown}` links to nothing")),
                Some(b'/') => return Err(format!("`{shown}` has an absolute link target")),
                Some(_) if target.contains(&0) => {
                    return Err(format!("the target of `{shown}` has a NUL byte"));
                }
                Some(_) => {}
            }
        }
        let parent = entry.parent();
        match self.is_dir.get(parent) {
            Some(true) => {}
            Some(false) => {
                let parent = parent.escape_ascii();
                return Err(format!("`{shown}` is in `{parent}`, which is no directory"));
            }
            None if parent.is_empty() => {}
            None => {
                let parent = parent.escape_ascii();
                return Err(format!("`{shown}` comes before its directory `{parent}`"));
            }
        }
        match self.is_dir.insert(&entry.path, entry.kind == Kind::Dir) {
            None => Ok(()),
            Some(_) => Err(format!("`{shown}` is there twice")),
        }
    }
}
