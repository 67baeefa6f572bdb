//! Random trees: every shape of entry that a path walk treats specially.
//!
//! [`Tree::grow`] adds directories first, so that everything after them has
//! somewhere to be and something to point at; then files and nodes, hard links,
//! and symbolic links last. Most directories let everybody in: a tree of closed
//! doors would answer EACCES to everything and test nothing behind them.

use rcuwalk::{FileType, NAME_MAX};

use super::{Node, NodeIx, ROOT, Tree};
use crate::materialise::Powers;
use rcuwalk_testkit::Rng;

/// Modes of directories. The second half are the odd ones: classes that deny what
/// another class allows, search without read, read without search, set-id bits.
const DIR_MODES: [u16; 24] = [
    0o755, 0o755, 0o755, 0o755, 0o755, 0o755, 0o755, 0o775, 0o711, 0o711, 0o750, 0o700, //
    0o000, 0o077, 0o707, 0o770, 0o644, 0o666, 0o100, 0o010, 0o001, 0o2755, 0o4711, 0o070,
];
const FILE_MODES: [u16; 6] = [0o644, 0o600, 0o755, 0o000, 0o4755, 0o2711];

/// The users and groups of [`Who`](crate::walks::Who), and strangers.
const UIDS: [u32; 6] = [0, 0, 1000, 1000, 2000, 4242];
const GIDS: [u32; 6] = [0, 0, 1000, 2000, 3000, 4242];

/// Name lengths around the sizes at which caches change how they store or hash a
/// name: words of 8 bytes, inline names, NAME_MAX.
const LENGTHS: [usize; 16] = [
    7, 8, 9, 15, 16, 17, 31, 32, 33, 39, 40, 41, 254, NAME_MAX, NAME_MAX, NAME_MAX,
];

/// So that the path of every directory stays a path that the host can be given.
const MAX_DIR_PATH: usize = 3000;

/// What the kernel still follows in one walk.
const MAX_LINKS: usize = 40;

impl Tree {
    /// A random tree that the host can be given with these powers.
    pub fn grow(rng: &mut Rng, powers: Powers) -> Tree {
        let mut tree = Grower {
            tree: Tree::new(),
            dirs: vec![ROOT],
            others: vec![],
            rng,
            powers,
        };
        tree.dirs();
        tree.files();
        if tree.rng.chance(50) {
            tree.longest_name();
        }
        tree.hard_links();
        tree.symlinks();
        if tree.rng.chance(40) {
            tree.chain_of_links();
        }
        if tree.rng.chance(25) {
            tree.doubling_links();
        }
        tree.tree
    }
}

struct Grower<'r> {
    tree: Tree,
    dirs: Vec<NodeIx>,
    /// Files, nodes and links: what a hard link may name.
    others: Vec<NodeIx>,
    rng: &'r mut Rng,
    powers: Powers,
}

impl Grower<'_> {
    fn dirs(&mut self) {
        for _ in 0..self.rng.between(8, 24) {
            let deeper = self.rng.chance(30);
            // Sometimes below the newest, so that trees get deep as well as wide.
            let under = if deeper {
                *self.dirs.last().unwrap()
            } else {
                self.any_dir()
            };
            let name = self.free_name(under);
            let path = self.tree.path_between(ROOT, under).unwrap();
            if path.len() + 1 + name.len() > MAX_DIR_PATH {
                continue;
            }
            let mode = *self.rng.pick(&DIR_MODES);
            let node = self.owned(Node::new(FileType::Directory, mode));
            let dir = self.tree.add(under, &name, node);
            self.dirs.push(dir);
        }
    }

    fn files(&mut self) {
        for _ in 0..self.rng.between(8, 20) {
            let kind = *self.rng.pick(&[
                FileType::Regular,
                FileType::Regular,
                FileType::Regular,
                FileType::Fifo,
                FileType::Socket,
                FileType::CharDevice,
                FileType::BlockDevice,
            ]);
            let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
            let kind = if is_device && !self.powers.devices {
                FileType::Fifo
            } else {
                kind
            };
            let mut node = Node::new(kind, *self.rng.pick(&FILE_MODES));
            if kind == FileType::Regular {
                node.content = vec![b'x'; self.rng.below(100)];
            }
            if is_device && self.powers.devices {
                // /dev/null and /dev/loop0: no test opens them, and opening them would do no
                // harm.
                let (major, minor) = if kind == FileType::CharDevice {
                    (1, 3)
                } else {
                    (7, 0)
                };
                node.rdev = libc::makedev(major, minor);
            }
            let node = self.owned(node);
            self.add_anywhere(node);
        }
    }

    /// In the root, where every other walk comes by.
    fn longest_name(&mut self) {
        let name = vec![*self.rng.pick(b"LM\xff"); NAME_MAX];
        let kind = *self.rng.pick(&[FileType::Directory, FileType::Regular]);
        let node = self.owned(Node::new(kind, 0o755));
        self.tree.add(ROOT, &name, node);
    }

    fn hard_links(&mut self) {
        for _ in 0..self.rng.between(1, 4) {
            self.hard_link();
        }
    }

    fn hard_link(&mut self) {
        let (dir, node) = (self.any_dir(), *self.rng.pick(&self.others));
        let name = self.free_name(dir);
        self.tree.link(dir, &name, node);
    }

    fn symlinks(&mut self) {
        for _ in 0..self.rng.between(10, 24) {
            let dir = self.any_dir();
            let target = self.target(dir);
            let node = self.owned(Node::symlink(target));
            let name = self.free_name(dir);
            let link = self.tree.add(dir, &name, node);
            self.others.push(link);
        }
        self.loops();
        // A second name for a link, elsewhere: its relative target then leads
        // somewhere else.
        self.hard_link();
    }

    /// Links that never arrive: to themselves, to each other, through themselves.
    fn loops(&mut self) {
        let dir = self.any_dir();
        for (name, target) in [
            ("self", "self"),
            ("ping", "pong"),
            ("pong", "./ping"),
            ("in", "in/x"),
        ] {
            if self.rng.chance(60) && !self.tree.node(dir).entries.contains_key(name.as_bytes()) {
                self.tree.add(dir, name.as_bytes(), Node::symlink(target));
            }
        }
    }

    /// `chain1` → something, `chain2` → `chain1`, … one further than may be
    /// followed: walks take 39, 40 and 41 links by where they enter.
    fn chain_of_links(&mut self) {
        let dir = self.any_dir();
        let end = if self.rng.chance(60) {
            self.way_to_dir(dir)
        } else {
            self.target(dir)
        };
        self.tree.add(dir, b"chain1", Node::symlink(end));
        for k in 2..=MAX_LINKS + 2 {
            let before = format!("chain{}", k - 1);
            let target = match self.rng.below(12) {
                0 => format!("./{before}"),
                1 => format!("{before}/"),
                2 => format!(".//{before}"),
                _ => before,
            };
            self.tree
                .add(dir, format!("chain{k}").as_bytes(), Node::symlink(target));
        }
    }

    /// `twice0` → `.`, `twice1` → `twice0/twice0`, …: each doubles the links to be
    /// followed, and nests them one level deeper.
    fn doubling_links(&mut self) {
        let dir = self.any_dir();
        self.tree.add(dir, b"twice0", Node::symlink("."));
        for k in 1..=6 {
            let target = format!("twice{0}/twice{0}", k - 1);
            self.tree
                .add(dir, format!("twice{k}").as_bytes(), Node::symlink(target));
        }
    }

    /// The target of a link in `dir`.
    fn target(&mut self, dir: NodeIx) -> Vec<u8> {
        let mut target = match self.rng.below(20) {
            0 => b".".to_vec(),
            1 => b"..".to_vec(),
            2 => b"/".to_vec(),
            3 => self
                .rng
                .pick(&[
                    "../..",
                    "./",
                    "//",
                    "/.",
                    "/..",
                    "../",
                    "./..",
                    "../../../../..",
                ])
                .as_bytes()
                .to_vec(),
            4 => b"nowhere".to_vec(),
            5 => b"/no/where".to_vec(),
            6 => vec![b'l'; self.rng.between(NAME_MAX, NAME_MAX + 1)],
            7..=11 => self.way_to_dir(dir),
            _ => self.way_to_entry(dir),
        };
        if self.rng.chance(12) {
            target.extend(*self.rng.pick(&[&b"/"[..], b"//", b"/.", b"/.."]));
        }
        if self.rng.chance(10) {
            roughen(&mut target, self.rng);
        }
        if self.rng.chance(2) && !target.starts_with(b"/") {
            // Near the longest target there is, 4095 bytes.
            let dots = (4095 - target.len()) / 2;
            target.splice(0..0, b"./".repeat(dots));
        }
        target
    }

    fn way_to_dir(&mut self, from: NodeIx) -> Vec<u8> {
        let to = self.any_dir();
        let way = self.way(from, to);
        if way.is_empty() { b".".to_vec() } else { way }
    }

    /// To any entry of any directory, links and their loops included.
    fn way_to_entry(&mut self, from: NodeIx) -> Vec<u8> {
        let to = self.any_dir();
        let names: Vec<_> = self.tree.node(to).entries.keys().cloned().collect();
        let mut way = self.way(from, to);
        if let Some(name) = (!names.is_empty()).then(|| self.rng.pick(&names)) {
            if !way.is_empty() && !way.ends_with(b"/") {
                way.push(b'/');
            }
            way.extend(name);
        }
        if way.is_empty() { b".".to_vec() } else { way }
    }

    /// A path from directory `from` to directory `to`, absolute or relative; empty
    /// if they are the same.
    fn way(&mut self, from: NodeIx, to: NodeIx) -> Vec<u8> {
        let from_names = self.tree.names_between(ROOT, from).unwrap();
        let to_names = self.tree.names_between(ROOT, to).unwrap();
        if self.rng.chance(30) {
            return [&b"/"[..], &to_names.join(&b'/')].concat();
        }
        let shared = from_names
            .iter()
            .zip(&to_names)
            .take_while(|(a, b)| a == b)
            .count();
        // Also climb further than needed, now and then: down again by the same names.
        let shared = if self.rng.chance(20) {
            self.rng.below(shared + 1)
        } else {
            shared
        };
        let ups = vec![&b".."[..]; from_names.len() - shared];
        [ups, to_names[shared..].to_vec()].concat().join(&b'/')
    }

    fn add_anywhere(&mut self, node: Node) {
        let dir = self.any_dir();
        let name = self.free_name(dir);
        let ix = self.tree.add(dir, &name, node);
        self.others.push(ix);
    }

    fn any_dir(&mut self) -> NodeIx {
        *self.rng.pick(&self.dirs)
    }

    fn owned(&mut self, node: Node) -> Node {
        let (uid, gid) = (*self.rng.pick(&UIDS), *self.rng.pick(&GIDS));
        if self.powers.many_ids {
            Node { uid, gid, ..node }
        } else {
            node
        }
    }

    /// A name that `dir` does not have yet.
    fn free_name(&mut self, dir: NodeIx) -> Vec<u8> {
        loop {
            let name = random_name(self.rng);
            if !self.tree.node(dir).entries.contains_key(&name) {
                return name;
            }
        }
    }
}

/// Any name a directory may have. Short ones mostly, from few, so that the same
/// name stands in many directories.
pub(crate) fn random_name(rng: &mut Rng) -> Vec<u8> {
    match rng.below(20) {
        0 => vec![*rng.pick(b"abcxyz"); *rng.pick(&LENGTHS)],
        1 => {
            let length = rng.between(1, 12);
            // Bytes that are no UTF-8, control characters, blanks, the lot.
            let byte = |_| {
                *rng.pick(&[
                    0xff, 0xc3, 0x80, b'\n', b' ', b'\\', b'*', 1, 0x7f, b'%', b'a',
                ])
            };
            (0..length).map(byte).collect()
        }
        2 => rng
            .pick(&["...", "..a", ".a", "a.", "a..", ". ", ".. ", "-", "~"])
            .as_bytes()
            .to_vec(),
        _ => {
            let length = rng.between(1, 3);
            (0..length).map(|_| *rng.pick(b"abcdefgh")).collect()
        }
    }
}

/// Doubles slashes and puts `./` behind them, which changes nothing.
pub(crate) fn roughen(path: &mut Vec<u8>, rng: &mut Rng) {
    let mut rough = Vec::with_capacity(path.len() * 2);
    for &byte in path.iter() {
        rough.push(byte);
        if byte == b'/' && rng.chance(60) {
            rough.extend(*rng.pick(&[&b"/"[..], b"./", b".//", b"//./"]));
        }
    }
    *path = rough;
}
