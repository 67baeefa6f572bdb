//! Random walks over a tree, most of which arrive.
//!
//! A [`Planner`] strolls through the tree: after each component it asks the model where that
//! led, and picks the next one from the names there, or a missing one on purpose. Random bytes
//! would almost always be ENOENT at the first component.

use rcuwalk::{LookupFlags, NAME_MAX, PATH_MAX};

use super::{Place, User, Walk};
use crate::answer::{Answer, Which};
use crate::differ::ORDERS;
use crate::materialise::Powers;
use crate::model::Model;
use crate::tree::{NodeIx, ROOT, Tree};
use rcuwalk_testkit::Rng;

/// Root and one user make most of the walks; the rest are there for their edges.
const CALLERS: [User; 10] = [
    User::Root,
    User::Root,
    User::Root,
    User::Plain,
    User::Plain,
    User::Plain,
    User::Member,
    User::Searcher,
    User::Overrider,
    User::Powerless,
];

/// Thinks up walks over one tree.
#[derive(Debug)]
pub struct Planner<'t> {
    tree: &'t Tree,
    model: Model<'t>,
    places: Vec<Place>,
    powers: Powers,
}

impl<'t> Planner<'t> {
    /// Picks a few places to walk from. Few, because the kernel needs a thread for
    /// each.
    pub fn new(tree: &'t Tree, rng: &mut Rng, powers: Powers) -> Planner<'t> {
        let dirs = tree.dirs();
        let below = |top: NodeIx| -> Vec<NodeIx> {
            dirs.iter()
                .copied()
                .filter(|&d| tree.names_between(top, d).is_some())
                .collect()
        };
        let mut places = vec![
            Place {
                root: ROOT,
                cwd: ROOT,
            },
            Place {
                root: ROOT,
                cwd: *rng.pick(&dirs),
            },
            Place {
                root: ROOT,
                cwd: *rng.pick(&dirs),
            },
        ];
        let root = *rng.pick(&dirs);
        places.push(Place {
            root,
            cwd: *rng.pick(&below(root)),
        });
        Planner {
            tree,
            model: Model::new(tree),
            places,
            powers,
        }
    }

    /// The next walk.
    pub fn plan(&self, rng: &mut Rng) -> Walk {
        let place = *rng.pick(&self.places);
        let user = match *rng.pick(&CALLERS) {
            user if self.powers.many_ids || user == User::Root => user,
            _ => User::Powerless,
        };
        let path = match rng.below(100) {
            0..10 => self.special(place, rng),
            10..16 => self.many_links(place, rng),
            _ => {
                let mut path = self.stroll(place, rng);
                self.finish(&mut path, rng);
                path
            }
        };
        Walk {
            place,
            user,
            flags: flags(&path, rng),
            path,
            order: rng.below(ORDERS.len()),
        }
    }

    /// A path of a few components, each chosen by where the ones before it led.
    fn stroll(&self, place: Place, rng: &mut Rng) -> Vec<u8> {
        let mut path = if rng.chance(45) {
            b"/".to_vec()
        } else {
            Vec::new()
        };
        for _ in 0..rng.between(1, 7) {
            let Some(here) = self.whereabouts(place, &path) else {
                break;
            };
            let is_dir = self.tree.node(here).is_dir();
            // Past a file or device now and then, else a walk ends there.
            if !is_dir && !rng.chance(12) {
                break;
            }
            let component = self.component(here, rng);
            if !path.is_empty() && !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend(component);
            if rng.chance(5) {
                path.extend(*rng.pick(&[&b"//"[..], b"///", b"/./", b"/.//./"]));
            }
        }
        path
    }

    fn component(&self, here: NodeIx, rng: &mut Rng) -> Vec<u8> {
        let names: Vec<&Vec<u8>> = self.tree.node(here).entries.keys().collect();
        match rng.below(100) {
            0..6 => b".".to_vec(),
            6..18 => b"..".to_vec(),
            18..21 => b"missing".to_vec(),
            21..23 => vec![b'n'; NAME_MAX],
            23..25 => vec![b'n'; rng.between(NAME_MAX + 1, NAME_MAX + 50)],
            25..27 => vec![*rng.pick(&[0xff, 0xfe, b'\t']); rng.between(1, 5)],
            _ if names.is_empty() => b"..".to_vec(),
            // The longest there is: names of 255 bytes are few.
            27..30 => names.iter().max_by_key(|name| name.len()).unwrap().to_vec(),
            30..33 => {
                let mut near = rng.pick(&names).to_vec();
                // One byte off a name that exists: a sloppy comparison would find it.
                match rng.below(3) {
                    0 => near.push(b'.'),
                    1 if near.len() > 1 => drop(near.pop()),
                    _ => *near.last_mut().unwrap() ^= 0x20,
                }
                if near.contains(&b'/') || near.contains(&0) {
                    b"near".to_vec()
                } else {
                    near
                }
            }
            _ => rng.pick(&names).to_vec(),
        }
    }

    /// Trailing slashes and dots.
    fn finish(&self, path: &mut Vec<u8>, rng: &mut Rng) {
        if !rng.chance(30) || path.is_empty() {
            return;
        }
        path.extend(*rng.pick(&[
            &b"/"[..],
            b"/",
            b"//",
            b"////",
            b"/.",
            b"/..",
            b"/./",
            b"/../",
            b"/./..",
        ]));
    }

    /// Paths that are an edge by themselves.
    fn special(&self, place: Place, rng: &mut Rng) -> Vec<u8> {
        match rng.below(12) {
            0 | 1 => Vec::new(),
            2 => rng
                .pick(&["/", "//", "/.", "/..", "/../..", "///..//"])
                .as_bytes()
                .to_vec(),
            3 => rng
                .pick(&[".", "..", "./", "../", "./.", "../..", "./.."])
                .as_bytes()
                .to_vec(),
            4..7 => self.padded(place, PATH_MAX - 1, rng),
            7..9 => self.padded(place, PATH_MAX, rng),
            9 => self.padded(place, PATH_MAX + rng.between(1, 600), rng),
            10 => vec![b'p'; rng.between(PATH_MAX - 2, PATH_MAX + 1)],
            // The longest component that is none, in the middle of a path.
            _ => [
                self.stroll(place, rng),
                vec![b'/'],
                vec![b'q'; 256],
                b"/..".to_vec(),
            ]
            .concat(),
        }
    }

    /// A path that leads somewhere, brought to exactly `length` bytes by what
    /// changes nothing.
    fn padded(&self, place: Place, length: usize, rng: &mut Rng) -> Vec<u8> {
        let mut path = self.stroll(place, rng);
        let Some(more) = length.checked_sub(path.len()) else {
            return path;
        };
        let absolute = path.starts_with(b"/");
        match path.iter().position(|&b| b == b'/') {
            // Slashes can be many where there is one.
            Some(at) if rng.chance(50) => {
                path.splice(at..at, vec![b'/'; more]);
            }
            _ => {
                let dots = if absolute { b"/." } else { b"./" };
                let mut padding = dots.repeat(more / 2);
                // The odd byte stays inside: in front of a relative path, a slash
                // would make it absolute.
                if more % 2 == 1 {
                    padding.insert(if absolute { 0 } else { padding.len() }, b'/');
                }
                path.splice(0..0, padding);
            }
        }
        path
    }

    /// About 40 links in all, at which the kernel gives up: far into a chain, if the
    /// tree has one, else one link over and over.
    fn many_links(&self, place: Place, rng: &mut Rng) -> Vec<u8> {
        let dirs = self.tree.dirs().into_iter();
        let chained = |&dir: &NodeIx| self.tree.node(dir).entries.contains_key(&b"chain1"[..]);
        let way = dirs
            .filter(chained)
            .find_map(|dir| self.tree.path_between(place.root, dir));
        match way {
            Some(way) if rng.chance(60) => {
                let link = format!("/chain{}", rng.between(38, 42));
                [&b"/"[..], &way, link.as_bytes()].concat()
            }
            _ => self.repeated_link(place, rng),
        }
    }

    fn repeated_link(&self, place: Place, rng: &mut Rng) -> Vec<u8> {
        let base = self.stroll(place, rng);
        let Some(here) = self.whereabouts(place, &base) else {
            return base;
        };
        let mut path = base;
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        let leads_back = |name: &&Vec<u8>| {
            self.whereabouts(place, &[&path[..], name.as_slice()].concat()) == Some(here)
        };
        let entries = self.tree.node(here).entries.iter();
        let links: Vec<_> = entries
            .filter(|(_, ix)| self.tree.node(**ix).is_symlink())
            .map(|(name, _)| name)
            .collect();
        // A link back to its own directory can be followed again and again; other
        // links mostly lead to where there is no such name.
        let back: Vec<_> = links.iter().copied().filter(leads_back).collect();
        let links = if back.is_empty() { links } else { back };
        if links.is_empty() {
            return path;
        }
        let link = vec![rng.pick(&links).as_slice(); rng.between(38, 42)];
        path.extend(link.join(&b'/'));
        path
    }

    /// Where `path` leads with all permissions; `None` if nowhere.
    fn whereabouts(&self, place: Place, path: &[u8]) -> Option<NodeIx> {
        let flags = LookupFlags::FOLLOW | LookupFlags::EMPTY_PATH;
        let walk = Walk {
            place,
            user: User::Root,
            path: path.to_vec(),
            flags,
            order: 0,
        };
        match self.model.answer(&walk) {
            Answer::Found(found) => match found.which {
                Which::Node(ix) => Some(ix),
                Which::Stranger(_) => None,
            },
            _ => None,
        }
    }
}

fn flags(path: &[u8], rng: &mut Rng) -> LookupFlags {
    let mut flags = LookupFlags::empty();
    flags.set(LookupFlags::FOLLOW, rng.chance(65));
    flags.set(LookupFlags::DIRECTORY, rng.chance(15));
    // No system call that tells the inode takes both; and without a path there is
    // nothing for DIRECTORY to check but a directory.
    let empty_path = if path.is_empty() {
        rng.chance(60)
    } else {
        rng.chance(10)
    };
    if empty_path {
        flags.remove(LookupFlags::DIRECTORY);
        flags |= LookupFlags::EMPTY_PATH;
    }
    flags
}
