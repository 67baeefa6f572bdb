//! All of a path but its last component: the directory in which to make or remove a name.
//!
//! [`path_parentat`] is the only resolver for that. It cuts the path before its last
//! component and walks what comes before, as a path of its own to a directory that the caller
//! may search: under RCU first, like every walk. The caller then looks at the last name with
//! the directory locked. `open` may find a link there; [`Parent::follow`] goes on to the
//! last component of the link's target.
//!
//! A link before the last component is in the middle of the path, even if the part that is
//! walked ends in it, so `protected_symlinks` does not apply to it ([`Request::is_head`]).
//!
//! The owner and mode of the directory are read when the walk arrives there. What a sticky
//! directory protects is decided by these: another process may rename the file out of the
//! directory before the caller looks at it.

use std::borrow::Cow;

use rcuwalk_sync::rcu;

use super::{
    Contained, LookupFlags, MAX_LINKS, RefWalk, Request, check_path, may_follow_link, resolve,
};
use crate::attr::FileType;
use crate::context::VfsPath;
use crate::dentry::{DentryRef, Flags};
use crate::error::{Error, Result};
use crate::mount::MountFlags;
use crate::name::Name;
use crate::permission::Access;
use crate::target::Target;
use crate::vfs_inode::Protection;

/// Where the last component of a path is, or would be.
#[doc(alias("struct nameidata", "LOOKUP_PARENT"))]
pub(crate) struct Parent<'a> {
    /// A directory that the caller may search.
    pub(crate) dir: VfsPath,
    /// The owner, mode and ACL of the directory, as the walk found it.
    #[doc(alias("dir_mode", "dir_vfsuid"))]
    pub(crate) protection: Protection,
    pub(crate) last: LastType<'a>,
    /// A slash follows the last component.
    pub(crate) must_be_dir: bool,
    /// Symbolic links followed so far.
    links: u32,
}

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "last_type")]
pub(crate) enum LastType<'a> {
    /// A name. Its length has not been checked.
    #[doc(alias = "LAST_NORM")]
    Norm(Cow<'a, [u8]>),
    #[doc(alias = "LAST_DOT")]
    Dot,
    #[doc(alias = "LAST_DOTDOT")]
    DotDot,
    /// None: the path consists of slashes.
    #[doc(alias = "LAST_ROOT")]
    Root,
}

/// Resolves all but the last component of a path.
#[doc(alias("filename_parentat", "link_path_walk"))]
pub(crate) fn path_parentat<'a>(request: &Request<'a>) -> Result<Parent<'a>> {
    check_path(request)?;
    let Cut {
        head,
        last,
        must_be_dir,
    } = cut(request.path);
    let above = Request {
        path: head,
        flags: request.flags | LookupFlags::FOLLOW | LookupFlags::DIRECTORY,
        is_head: true,
        ..*request
    };
    if head == b"."
        && let Some(dir) = start(&above)?
    {
        let protection = dir.inode().protection();
        return Parent::new(request, dir, protection, (last, must_be_dir), above.links);
    }
    let (dir, protection, links) = resolve(
        &above,
        |found| {
            // Read before `try_get` finds that the directory is still where the walk found it.
            let protection = found.inode()?.protection();
            Some((found.try_get()?, protection, found.links()))
        },
        |dir, links| {
            let protection = dir.inode().protection();
            Ok((dir, protection, links))
        },
    )?;
    Parent::new(request, dir, protection, (last, must_be_dir), links)
}

/// The start of a path of one name, if it is a directory that needs no walk: nothing is above
/// the root that it could have left for (WALK-3), and its attributes are fresh.
fn start(request: &Request<'_>) -> Result<Option<VfsPath>> {
    let walks = LookupFlags::REF_WALK.union(LookupFlags::REVAL);
    if Contained::of(request)?.is_some() || request.flags.intersects(walks) {
        return Ok(None);
    }
    let (start, guard) = (request.start, rcu::read_lock());
    let is_fresh = !start.dentry().flags().contains(Flags::REVALIDATE)
        || start.mnt().sb.is_place_fresh(start.dentry(), &guard);
    let is_there = is_fresh && start.inode().kind() == FileType::Directory;
    Ok(is_there.then(|| {
        request.ns.caches.counters.get_with(&guard).hit();
        start.clone()
    }))
}

impl<'a> Parent<'a> {
    fn new(
        request: &Request<'_>,
        dir: VfsPath,
        protection: Protection,
        (last, must_be_dir): (LastType<'a>, bool),
        links: u32,
    ) -> Result<Parent<'a>> {
        // The root is not searched for itself.
        if last != LastType::Root {
            Target::new(&dir, request.ctx.credentials()).may(Access::EXEC)?;
        }
        Ok(Parent {
            dir,
            protection,
            last,
            must_be_dir,
            links,
        })
    }
}

impl Parent<'_> {
    /// The last component, if it is a name; `dots` otherwise.
    pub(crate) fn name(&self, dots: Error) -> Result<&[u8]> {
        match &self.last {
            LastType::Norm(name) => Ok(name),
            LastType::Dot | LastType::DotDot | LastType::Root => Err(dots),
        }
    }

    /// The cached dentry of the last component, if it is valid.
    #[doc(alias = "lookup_fast_for_open")]
    pub(crate) fn cached(
        &self,
        request: &Request<'_>,
        name: Name<'_>,
    ) -> Result<Option<DentryRef>> {
        let name = request.ns.caches.dcache.name(name);
        self.walk(request).lookup_fast(&name)
    }

    /// For the second attempt of a change, which reports what is wrong here. An outdated name
    /// above may have looked like a loop. And a directory that another process has moved here
    /// may need locks that the change could not wait for (DENTRY-5), but a walk can.
    pub(crate) fn revalidate(&self, request: &Request<'_>) {
        self.dir.mnt().sb.ask_names_above(self.dir.dentry());
        let LastType::Norm(name) = &self.last else {
            return;
        };
        let dcache = &request.ns.caches.dcache;
        let name = Name::new(name).map(|name| dcache.name(name));
        let found = name.and_then(|name| self.walk(request).lookup_slow(&name));
        if let Ok(dentry) = found {
            dcache.put(dentry);
        }
    }

    /// Where the last component leads, of which `dentry` is the dentry: across mounts on it.
    pub(crate) fn place(&self, request: &Request<'_>, dentry: DentryRef) -> Result<VfsPath> {
        let mnt = self.dir.mnt().clone();
        let place = self.walk(request).traverse_mounts(mnt, dentry);
        place.ok_or(Error::NotFound)
    }

    /// Goes on to the last component of the target of `link`, which is the last component
    /// here, with no slash behind it.
    #[doc(alias("pick_link", "WALK_TRAILING"))]
    pub(crate) fn follow(&self, request: &Request<'_>, link: &VfsPath) -> Result<Parent<'static>> {
        if self.links == MAX_LINKS {
            return Err(Error::TooManySymlinks);
        }
        let mnt = self.dir.mnt();
        let protects = mnt.flags().contains(MountFlags::PROTECTED_LINKS);
        let who = request.ctx.credentials();
        if protects && !may_follow_link(who, self.protection, link.inode()) {
            return Err(Error::PermissionDenied);
        }
        let body = request.ns.link_body(&mnt.sb, link.inode_held())?;
        let parent = path_parentat(&Request {
            start: &self.dir,
            path: &body,
            flags: request.flags - LookupFlags::EMPTY_PATH,
            links: self.links + 1,
            ..*request
        })?;
        let last = match parent.last {
            LastType::Norm(name) => LastType::Norm(Cow::Owned(name.into_owned())),
            LastType::Dot => LastType::Dot,
            LastType::DotDot => LastType::DotDot,
            LastType::Root => LastType::Root,
        };
        Ok(Parent { last, ..parent })
    }

    /// A walk that stands in the directory.
    fn walk<'a>(&self, request: &Request<'a>) -> RefWalk<'a> {
        RefWalk::standing_at(*request, self.dir.clone())
    }
}

/// A path, cut before its last component.
struct Cut<'a> {
    /// The part that leads to the directory: all of the path if that consists of slashes.
    head: &'a [u8],
    last: LastType<'a>,
    must_be_dir: bool,
}

fn cut(path: &[u8]) -> Cut<'_> {
    let behind_last = |bytes: &[u8], is: fn(&u8) -> bool| {
        let last = bytes.iter().rposition(is);
        last.map_or(0, |last| last + 1)
    };
    let end = behind_last(path, |byte| *byte != b'/');
    let start = behind_last(&path[..end], |byte| *byte == b'/');
    let last = match &path[start..end] {
        b"" => LastType::Root,
        b"." => LastType::Dot,
        b".." => LastType::DotDot,
        name => LastType::Norm(Cow::Borrowed(name)),
    };
    let head = match start {
        _ if end == 0 => path,
        // The start itself, searched as a directory on the way.
        0 => b".",
        _ => &path[..start],
    };
    Cut {
        head,
        last,
        must_be_dir: end < path.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-1: a path is cut before its last component, as link_path_walk() in fs/namei.c
    /// stops before it.
    #[test]
    fn a_path_is_cut_before_its_last_component() {
        let name = |name: &'static str| LastType::Norm(Cow::Borrowed(name.as_bytes()));
        let cases = [
            ("a", ".", name("a"), false),
            ("a/", ".", name("a"), true),
            ("a//", ".", name("a"), true),
            ("/a", "/", name("a"), false),
            ("//a", "//", name("a"), false),
            ("a/b", "a/", name("b"), false),
            ("a//b//", "a//", name("b"), true),
            ("/a/../b", "/a/../", name("b"), false),
            ("a/./", "a/", LastType::Dot, true),
            ("a/..", "a/", LastType::DotDot, false),
            ("a/...", "a/", name("..."), false),
            ("..", ".", LastType::DotDot, false),
            (".", ".", LastType::Dot, false),
            ("./", ".", LastType::Dot, true),
            ("/.", "/", LastType::Dot, false),
            ("/..//", "/", LastType::DotDot, true),
            ("/", "/", LastType::Root, true),
            ("///", "///", LastType::Root, true),
            ("", "", LastType::Root, false),
        ];
        for (path, head, last, must_be_dir) in cases {
            let cut = cut(path.as_bytes());
            let expected = (head.as_bytes(), last, must_be_dir);
            let got = (cut.head, cut.last, cut.must_be_dir);
            assert_eq!(got, expected, "EDGE-1: {path:?}");
        }
    }
}
