//! A rough idea of the tree after the operations so far.

use std::collections::BTreeMap;

use rustix::fs::{OFlags, RenameFlags};

use crate::changes::answer::{Found, Outcome};
use crate::changes::op::{At, Node, Op, SLOTS};

/// What a name stands for, as far as choosing operations goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Dir,
    File,
    Link,
    Other,
}

/// What an open file is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Any,
    Read,
    Write,
    List,
}

/// Absolute paths without detours. Links in the middle of a path are not seen through,
/// which the next look at the whole tree puts right.
pub(super) struct Guess {
    nodes: BTreeMap<String, Kind>,
    /// With which flags.
    open: [Option<OFlags>; SLOTS],
    cwd: String,
}

impl Default for Guess {
    fn default() -> Guess {
        Guess {
            nodes: BTreeMap::from([("/".to_string(), Kind::Dir)]),
            open: [None; SLOTS],
            cwd: "/".into(),
        }
    }
}

impl Guess {
    /// The paths that `wanted` says yes to, given their kind and whether nothing is
    /// below.
    pub(super) fn all(&self, wanted: impl Fn(&str, Kind, bool) -> bool) -> Vec<String> {
        self.nodes
            .iter()
            .filter(|(path, kind)| wanted(path, **kind, self.is_empty(path)))
            .map(|(path, _)| path.clone())
            .collect()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    pub(super) fn cwd(&self) -> &str {
        &self.cwd
    }

    /// The slots whose files are good for this use.
    pub(super) fn slots(&self, wanted: Use) -> Vec<usize> {
        let suits = |flags: OFlags| {
            let dir = flags.contains(OFlags::DIRECTORY) && !flags.contains(OFlags::TMPFILE);
            let way = flags & OFlags::RWMODE;
            let path = flags.contains(OFlags::PATH);
            match wanted {
                Use::Any => true,
                Use::Read => !path && !dir && way != OFlags::WRONLY,
                Use::Write => !path && !dir && way != OFlags::RDONLY,
                Use::List => !path && dir,
            }
        };
        (0..SLOTS)
            .filter(|&slot| self.open[slot].is_some_and(suits))
            .collect()
    }

    /// Takes over what a look at the whole tree has found.
    pub(super) fn see(&mut self, found: &[Found]) {
        let node = |found: &Found| match (&found.place, &found.stat) {
            (At::NoFollow(path), Outcome::Stat(stat)) => Some((path.clone(), kind(stat.kind()))),
            _ => None,
        };
        self.nodes = found.iter().filter_map(node).collect();
        self.nodes.insert("/".into(), Kind::Dir);
    }

    /// `op` has succeeded.
    pub(super) fn note(&mut self, op: &Op) {
        match op {
            Op::Open {
                slot, path, flags, ..
            } => {
                if flags.contains(OFlags::CREATE) && !flags.contains(OFlags::PATH) {
                    self.add(&self.absolute(path), Kind::File);
                }
                self.open[*slot] = Some(*flags);
            }
            Op::Close { slot } => self.open[*slot] = None,
            Op::Create { path, .. } => self.add(&self.absolute(path), Kind::File),
            Op::Mkdir { path, .. } => self.add(&self.absolute(path), Kind::Dir),
            Op::Mknod { path, kind, .. } => {
                let kind = match kind {
                    Node::Regular => Kind::File,
                    Node::Directory => return,
                    _ => Kind::Other,
                };
                self.add(&self.absolute(path), kind);
            }
            Op::Symlink { path, .. } => {
                self.add(&self.absolute(path), Kind::Link);
            }
            Op::Link { old, new } => {
                let kind = match old.path() {
                    Some(old) => self.nodes.get(&self.absolute(old)).copied(),
                    None => Some(Kind::File),
                };
                if let Some(kind) = kind.filter(|kind| *kind != Kind::Dir) {
                    self.add(&self.absolute(new), kind);
                }
            }
            Op::Unlink { path } => {
                let path = self.absolute(path);
                if self.nodes.get(&path).is_some_and(|kind| *kind != Kind::Dir) {
                    self.nodes.remove(&path);
                }
            }
            Op::Rmdir { path } => {
                let path = self.absolute(path);
                if path != "/" {
                    self.nodes.remove(&path);
                }
            }
            Op::Rename { old, new, flags } => {
                self.rename(&self.absolute(old), &self.absolute(new), *flags);
            }
            Op::Chdir {
                at: At::Path(path) | At::NoFollow(path),
            } => {
                let path = self.absolute(path);
                if self.nodes.get(&path) == Some(&Kind::Dir) {
                    self.cwd = path;
                }
            }
            _ => {}
        }
    }

    fn is_empty(&self, path: &str) -> bool {
        let below = below(path);
        let mut after = self.nodes.range(below.clone()..);
        after
            .next()
            .is_none_or(|(path, _)| !path.starts_with(&below))
    }

    fn add(&mut self, path: &str, kind: Kind) {
        let parent = match path.rfind('/') {
            Some(0) => "/",
            Some(at) => &path[..at],
            None => return,
        };
        if path.len() < 100 && self.nodes.get(parent) == Some(&Kind::Dir) {
            self.nodes.entry(path.to_string()).or_insert(kind);
        }
    }

    fn rename(&mut self, old: &str, new: &str, flags: RenameFlags) {
        let inside = below(old);
        let known = self.has(old) && old != "/" && new != "/";
        if !known || old == new || new.starts_with(&inside) {
            return;
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let moved = self.take(old);
        let replaced = self.take(new);
        for (to, taken, keep) in [(new, moved, true), (old, replaced, exchange)] {
            if keep {
                for (path, kind) in taken {
                    self.add(&format!("{to}{path}"), kind);
                }
            }
        }
        if flags == RenameFlags::WHITEOUT {
            self.add(old, Kind::Other);
        }
        if let Some(rest) = self.cwd.strip_prefix(old)
            && (rest.is_empty() || rest.starts_with('/'))
        {
            self.cwd = format!("{new}{rest}");
        }
    }

    /// Removes `top` and everything below it; the returned paths begin after it.
    fn take(&mut self, top: &str) -> Vec<(String, Kind)> {
        let inside = below(top);
        let taken: Vec<(String, Kind)> = self
            .nodes
            .iter()
            .filter(|(path, _)| *path == top || path.starts_with(&inside))
            .map(|(path, kind)| (path.clone(), *kind))
            .collect();
        for (path, _) in &taken {
            self.nodes.remove(path);
        }
        taken
            .into_iter()
            .map(|(path, kind)| (path[top.len()..].to_string(), kind))
            .collect()
    }

    fn absolute(&self, path: &str) -> String {
        let whole = if path.starts_with('/') {
            path.to_string()
        } else {
            format!("{}/{path}", self.cwd.trim_end_matches('/'))
        };
        let mut names: Vec<&str> = Vec::new();
        for name in whole.split('/') {
            match name {
                "" | "." => {}
                ".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        format!("/{}", names.join("/"))
    }
}

fn kind(st_mode: u32) -> Kind {
    match st_mode {
        libc::S_IFDIR => Kind::Dir,
        libc::S_IFREG => Kind::File,
        libc::S_IFLNK => Kind::Link,
        _ => Kind::Other,
    }
}

fn below(path: &str) -> String {
    format!("{}/", path.trim_end_matches('/'))
}
