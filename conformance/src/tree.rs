//! A directory tree as plain data, to be materialised, walked and shrunk.
//!
//! Nodes are inodes; a directory's entries name them, so that a hard link is an
//! entry like any other. Node 0 is the root. Removing an entry (shrinking) leaves
//! its node in place, unreachable: the numbers of the others stay what they were.

mod grow;

use std::collections::BTreeMap;
use std::fmt;

use rcuwalk::FileType;

/// The number of a node in its tree.
pub type NodeIx = usize;

/// The root's number.
pub const ROOT: NodeIx = 0;

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// The kind of file.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Contents of a regular file.
    pub content: Vec<u8>,
    /// Entries of a directory.
    pub entries: BTreeMap<Vec<u8>, NodeIx>,
    /// The directory a directory is in; the root is in itself.
    pub parent: NodeIx,
}

impl Node {
    /// A node that belongs to root, with nothing in it.
    pub fn new(kind: FileType, mode: u16) -> Node {
        Node {
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            content: Vec::new(),
            entries: BTreeMap::new(),
            parent: ROOT,
        }
    }

    /// A symbolic link; Linux gives all of them mode 0777.
    pub fn symlink(target: impl Into<Vec<u8>>) -> Node {
        Node {
            target: target.into(),
            ..Node::new(FileType::Symlink, 0o777)
        }
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }

    /// Length of the contents or of the target.
    pub fn size(&self) -> u64 {
        (self.content.len() + self.target.len()) as u64
    }
}

/// A name in a directory, and its node.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'t> {
    /// The directory.
    pub dir: NodeIx,
    /// The name in it.
    pub name: &'t [u8],
    /// The node.
    pub node: NodeIx,
}

/// A directory tree.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

impl Tree {
    /// Only the root directory, 0755. The root is never anything else: back ends
    /// differ in how one would set it, and a chroot into the tree shows the rest.
    pub fn new() -> Tree {
        Tree {
            nodes: vec![Node::new(FileType::Directory, 0o755)],
        }
    }

    /// The node with this number.
    pub fn node(&self, ix: NodeIx) -> &Node {
        &self.nodes[ix]
    }

    /// How many nodes were ever added.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there is nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.nodes[ROOT].entries.is_empty()
    }

    /// Adds `node` to `dir` under a name that is free there.
    pub fn add(&mut self, dir: NodeIx, name: &[u8], node: Node) -> NodeIx {
        let ix = self.nodes.len();
        self.nodes.push(Node {
            parent: dir,
            ..node
        });
        self.link(dir, name, ix);
        ix
    }

    /// Gives `node` one more name.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn link(&mut self, dir: NodeIx, name: &[u8], node: NodeIx) {
        let before = self.nodes[dir].entries.insert(name.to_vec(), node);
        assert!(
            before.is_none(),
            "{} is taken in node {dir}",
            name.escape_ascii()
        );
    }

    /// Removes an entry, and with it everything below.
    pub fn remove(&mut self, dir: NodeIx, name: &[u8]) {
        self.nodes[dir].entries.remove(name);
    }

    /// All entries that a walk from the root meets, directories before what is in
    /// them.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let mut found = Vec::new();
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            for (name, &node) in &self.nodes[dir].entries {
                found.push(Entry { dir, name, node });
                if self.nodes[node].is_dir() {
                    dirs.push(node);
                }
            }
        }
        found
    }

    /// How many entries name each node.
    pub fn names_per_node(&self) -> Vec<u32> {
        let mut names = vec![0; self.nodes.len()];
        for entry in self.entries() {
            names[entry.node] += 1;
        }
        names
    }

    /// All directories, the root first.
    pub fn dirs(&self) -> Vec<NodeIx> {
        let below = self.entries().into_iter().map(|entry| entry.node);
        [ROOT]
            .into_iter()
            .chain(below.filter(|&ix| self.nodes[ix].is_dir()))
            .collect()
    }

    /// The names that lead from directory `top` down to directory `dir`; `None` if
    /// none do (any more).
    pub fn names_between(&self, top: NodeIx, mut dir: NodeIx) -> Option<Vec<&[u8]>> {
        let mut names = Vec::new();
        while dir != top {
            let parent = self.nodes[dir].parent;
            let mut entries = self.nodes[parent].entries.iter();
            names.push(entries.find(|(_, ix)| **ix == dir)?.0.as_slice());
            dir = parent;
        }
        names.reverse();
        Some(names)
    }

    /// The path of directory `dir` below directory `top`, without a slash in front:
    /// empty for `top` itself.
    pub fn path_between(&self, top: NodeIx, dir: NodeIx) -> Option<Vec<u8>> {
        self.names_between(top, dir).map(|names| names.join(&b'/'))
    }
}

/// One line per entry, as `ls -lR` would, with the node numbers that answers use.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {ROOT:>3} drwx 0755 0:0 /")?;
        for Entry { dir, name, node } in self.entries() {
            let at = self.path_between(ROOT, dir).unwrap_or_default();
            let slash = if at.is_empty() { "" } else { "/" };
            let Node {
                kind,
                mode,
                uid,
                gid,
                ..
            } = self.nodes[node];
            write!(f, "  {node:>3} {kind:?} {mode:04o} {uid}:{gid} ")?;
            write!(f, "/{}{slash}{}", Short(&at), Short(name))?;
            if kind == FileType::Symlink {
                write!(f, " -> {}", Short(&self.nodes[node].target))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Bytes for people: escaped, and cut in the middle when there are too many.
#[derive(Clone, Copy, Debug)]
pub struct Short<'a>(pub &'a [u8]);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ENDS: usize = 60;
        let bytes = self.0;
        if bytes.len() <= 3 * ENDS {
            return bytes.escape_ascii().fmt(f);
        }
        let (head, tail) = (&bytes[..ENDS], &bytes[bytes.len() - ENDS..]);
        let cut = bytes.len() - 2 * ENDS;
        write!(
            f,
            "{}<{cut} bytes>{}",
            head.escape_ascii(),
            tail.escape_ascii()
        )
    }
}
