//! Path resolution in its plainest form: what `fs/namei.c` does, without caches,
//! locks, mounts or speed.
//!
//! [`Model::answer`] stands in for the kernel where the kernel cannot be asked
//! (chroot takes privileges), and leads the planner of walks through the tree. A
//! test keeps it equal to the kernel, so that either may judge rcuwalk.
//!
//! Function names are the kernel's: read `link_path_walk` beside its namesake.

use rcuwalk::{Caps, LookupFlags, NAME_MAX, PATH_MAX};

use crate::answer::{Answer, Found, Raw, Which};
use crate::tree::{NodeIx, Tree};
use crate::walks::{Place, User, Walk};

/// How many links a walk may follow.
const MAXSYMLINKS: u32 = 40;

/// The model over one tree.
#[derive(Debug)]
pub struct Model<'t> {
    tree: &'t Tree,
    names: Vec<u32>,
}

/// What happened on the way; the coverage counters read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Links followed.
    pub links: u32,
    /// The deepest nesting of links within links.
    pub depth: usize,
    /// A `..` at the root, which stays there.
    pub dotdot_at_root: bool,
    /// A link with an absolute target.
    pub absolute_link: bool,
    /// A link followed as the last component.
    pub last_link: bool,
    /// A link found as the last component and not followed.
    pub last_link_kept: bool,
    /// A link followed although the flags said not to: a slash came after it.
    pub followed_for_slash: bool,
    /// A link in the middle of the path whose target ends in a slash.
    pub slash_in_target: bool,
    /// The class whose bits denied search.
    pub denied: Option<Class>,
    /// Search allowed by the group class, through a supplementary group.
    pub by_supplementary_group: bool,
    /// Search allowed by a capability alone.
    pub by_capability: bool,
}

/// Whose permission bits decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the three classes of chmod(1)")]
pub enum Class {
    Owner,
    Group,
    Other,
}

impl<'t> Model<'t> {
    /// The model of `tree`, which does not change any more.
    pub fn new(tree: &'t Tree) -> Model<'t> {
        Model {
            tree,
            names: tree.names_per_node(),
        }
    }

    /// What `walk` comes to.
    pub fn answer(&self, walk: &Walk) -> Answer {
        self.trace(walk).0
    }

    /// What `walk` comes to, and what happened on the way.
    pub fn trace(&self, walk: &Walk) -> (Answer, Trace) {
        let Walk {
            place,
            user,
            ref path,
            flags,
            order: _,
        } = *walk;
        if path.len() >= PATH_MAX {
            return (Answer::Errno(libc::ENAMETOOLONG), Trace::default());
        }
        if path.is_empty() && !flags.contains(LookupFlags::EMPTY_PATH) {
            return (Answer::Errno(libc::ENOENT), Trace::default());
        }
        let trace = Trace::default();
        let mut walk = Resolution {
            tree: self.tree,
            place,
            user,
            flags,
            at: place.cwd,
            trace,
        };
        let answer = match walk.path_lookupat(path) {
            Ok(()) => Answer::Found(self.found(walk.at)),
            Err(errno) => Answer::Errno(errno),
        };
        (answer, walk.trace)
    }

    fn found(&self, ix: NodeIx) -> Found {
        let node = self.tree.node(ix);
        let raw = Raw {
            st_mode: node.kind.mode_bits() | u32::from(node.mode),
            uid: node.uid,
            gid: node.gid,
            nlink: self.names[ix],
            rdev: node.rdev,
            size: node.size(),
        };
        Found::new(Which::Node(ix), raw)
    }
}

/// One walk under way: the kernel's `nameidata`.
struct Resolution<'t> {
    tree: &'t Tree,
    place: Place,
    user: User,
    flags: LookupFlags,
    at: NodeIx,
    trace: Trace,
}

/// A component is the last of the whole path (and of all links it went through),
/// or it is not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Trailing,
    Inside,
}

impl<'t> Resolution<'t> {
    fn path_lookupat(&mut self, path: &[u8]) -> Result<(), i32> {
        if path.starts_with(b"/") {
            self.at = self.place.root;
        }
        let mut rest = path.to_vec();
        while let Some(last) = self.link_path_walk(&rest)? {
            let Some(target) = self.lookup_last(&last)? else {
                break;
            };
            rest = target;
        }
        if self.flags.contains(LookupFlags::DIRECTORY) && !self.tree.node(self.at).is_dir() {
            return Err(libc::ENOTDIR);
        }
        Ok(())
    }

    /// Walks everything but the last component, and returns that one with the
    /// slashes after it; `None` if there is none, as in `/`.
    fn link_path_walk(&mut self, path: &[u8]) -> Result<Option<Vec<u8>>, i32> {
        // What remains to be walked after the links we are in, innermost last.
        let mut stack: Vec<Vec<u8>> = Vec::new();
        let mut rest = skip_slashes(path).to_vec();
        if rest.is_empty() {
            return Ok(None);
        }
        loop {
            self.may_lookup()?;
            let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let after = skip_slashes(&rest[end..]).to_vec();
            if after.is_empty() && stack.is_empty() {
                return Ok(Some(rest));
            }
            self.trace.slash_in_target |= after.is_empty() && end < rest.len();
            let name = rest[..end].to_vec();
            // The last component of a link goes on behind the link.
            let after = if after.is_empty() {
                stack.pop().unwrap_or_default()
            } else {
                after
            };
            match self.walk_component(&name, Position::Inside)? {
                Some(target) => {
                    stack.push(after);
                    self.trace.depth = self.trace.depth.max(stack.len());
                    rest = target;
                }
                None if self.tree.node(self.at).is_dir() => rest = after,
                None => return Err(libc::ENOTDIR),
            }
        }
    }

    fn lookup_last(&mut self, last: &[u8]) -> Result<Option<Vec<u8>>, i32> {
        let end = last.iter().position(|&b| b == b'/').unwrap_or(last.len());
        let name = &last[..end];
        let slash_after = end < last.len();
        if slash_after && name != b"." && name != b".." {
            self.trace.followed_for_slash |= !self.flags.contains(LookupFlags::FOLLOW);
            self.flags |= LookupFlags::FOLLOW | LookupFlags::DIRECTORY;
        }
        self.walk_component(name, Position::Trailing)
    }

    /// Steps to `name`; returns the rest of the target if it is a link to follow.
    fn walk_component(&mut self, name: &[u8], position: Position) -> Result<Option<Vec<u8>>, i32> {
        match name {
            b"." => return Ok(None),
            b".." => {
                self.follow_dotdot();
                return Ok(None);
            }
            _ if name.len() > NAME_MAX => return Err(libc::ENAMETOOLONG),
            _ => {}
        }
        let next = *self
            .tree
            .node(self.at)
            .entries
            .get(name)
            .ok_or(libc::ENOENT)?;
        if !self.tree.node(next).is_symlink() {
            self.at = next;
            return Ok(None);
        }
        let trailing = position == Position::Trailing;
        if trailing && !self.flags.contains(LookupFlags::FOLLOW) {
            self.trace.last_link_kept = true;
            self.at = next;
            return Ok(None);
        }
        self.trace.last_link |= trailing;
        self.pick_link(next)
    }

    fn follow_dotdot(&mut self) {
        if self.at == self.place.root {
            self.trace.dotdot_at_root = true;
        } else {
            self.at = self.tree.node(self.at).parent;
        }
    }

    fn pick_link(&mut self, link: NodeIx) -> Result<Option<Vec<u8>>, i32> {
        if self.trace.links == MAXSYMLINKS {
            return Err(libc::ELOOP);
        }
        self.trace.links += 1;
        let target = self.tree.node(link).target.as_slice();
        if !target.starts_with(b"/") {
            return Ok(Some(target.to_vec()));
        }
        self.trace.absolute_link = true;
        self.at = self.place.root;
        let rest = skip_slashes(target);
        // A pure jump to the root leaves nothing to walk.
        Ok((!rest.is_empty()).then(|| rest.to_vec()))
    }

    /// May the caller search the directory we are in?
    fn may_lookup(&mut self) -> Result<(), i32> {
        let dir = self.tree.node(self.at);
        let user = self.user;
        let supplementary = user.gid() != dir.gid && user.groups().contains(&dir.gid);
        // The first class that fits decides alone, even if the next would allow.
        let class = if user.uid() == dir.uid {
            Class::Owner
        } else if user.gid() == dir.gid || supplementary {
            Class::Group
        } else {
            Class::Other
        };
        let execute = match class {
            Class::Owner => 0o100,
            Class::Group => 0o010,
            Class::Other => 0o001,
        };
        if dir.mode & execute != 0 {
            self.trace.by_supplementary_group |= class == Class::Group && supplementary;
            return Ok(());
        }
        if user
            .caps()
            .intersects(Caps::DAC_OVERRIDE | Caps::DAC_READ_SEARCH)
        {
            self.trace.by_capability = true;
            return Ok(());
        }
        self.trace.denied = Some(class);
        Err(libc::EACCES)
    }
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().take_while(|&&b| b == b'/').count();
    &path[slashes..]
}
