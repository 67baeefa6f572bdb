//! The REF-walk: one component after the other, holding a reference to each.
//!
//! It may sleep and may ask the back end. It defines the meaning of a path here; the RCU-walk
//! is the same with fewer rights.

use rcuwalk_sync::{Ref, rcu};

use super::component::{long_component, short_component};
use super::record::{Recorder, crossed};
use super::text::{LinkStack, Saved};
use super::{LookupFlags, MAX_LINKS, Request, may_follow_link};
use crate::attr::FileType;
use crate::context::VfsPath;
use crate::dentry::{
    Ask, CachedName, Checked, DentryRef, Flags, FoundIn, NameHash, ParallelLookup, Unspliced,
};
use crate::error::{Error, Result};
use crate::mount::{MountFlags, MountRef};
use crate::name::Name;
use crate::permission::Access;
use crate::target::Target;
use crate::trace::Origin;
use crate::vfs_inode::{DEAD_DIR, Inode, InodeRef, LinkTarget, Listed};

/// A text of a REF-walk: the caller's path, or a link's target, held.
#[derive(Clone)]
pub(super) enum Pathname<'a> {
    Path(&'a [u8]),
    Link(Ref<LinkTarget>),
}

impl Pathname<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Pathname::Path(path) => path,
            Pathname::Link(body) => body,
        }
    }
}

/// A walk in progress.
#[doc(alias = "struct nameidata")]
pub(crate) struct RefWalk<'a> {
    pub(super) request: Request<'a>,
    pub(super) at: VfsPath,
    text: Pathname<'a>,
    pub(super) pos: usize,
    pub(super) stack: LinkStack<Pathname<'a>>,
    pub(super) links: u32,
    /// The last component had a slash behind it, here or in the link that led here.
    must_be_dir: bool,
    /// Ask the back end about every cached name.
    reval: bool,
    /// Takes notes for [`Vfs::trace`](crate::Vfs::trace); does nothing otherwise.
    pub(super) record: Recorder<'a>,
}

/// A component: the bytes of the text from where the walk is up to `end`.
#[derive(Clone, Copy)]
struct Component {
    end: usize,
    last: bool,
}

impl<'a> RefWalk<'a> {
    pub(crate) fn start(request: Request<'a>, reval: bool) -> RefWalk<'a> {
        let absolute = request.path.first() == Some(&b'/');
        let start = if absolute {
            request.ctx.root()
        } else {
            request.start
        };
        let text = Pathname::Path(request.path);
        let stack = LinkStack::new();
        RefWalk {
            reval,
            ..Self::resume(request, start.clone(), text, 0, stack, request.links)
        }
    }

    /// A walk that stands at `at`, to look at one name there.
    pub(super) fn standing_at(request: Request<'a>, at: VfsPath) -> RefWalk<'a> {
        let reval = request.flags.contains(LookupFlags::REVAL);
        let stack = LinkStack::new();
        RefWalk {
            reval,
            ..Self::resume(request, at, Pathname::Path(b""), 0, stack, 0)
        }
    }

    /// Goes on where an RCU-walk stopped.
    pub(super) fn resume(
        request: Request<'a>,
        at: VfsPath,
        text: Pathname<'a>,
        pos: usize,
        stack: LinkStack<Pathname<'a>>,
        links: u32,
    ) -> RefWalk<'a> {
        let must_be_dir = request.flags.contains(LookupFlags::DIRECTORY);
        RefWalk {
            request,
            at,
            text,
            pos,
            stack,
            links,
            must_be_dir,
            reval: false,
            record: Recorder::default(),
        }
    }

    /// True if the back end is asked about every name.
    pub(super) fn revalidates(&self) -> bool {
        self.reval
    }

    /// Walks to the end. Returns the path, and how many symbolic links were followed.
    pub(crate) fn lookup(mut self) -> Result<(VfsPath, u32)> {
        self.link_path_walk()?;
        self.check_contained()?;
        if self.must_be_dir && self.at.inode().kind() != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        Ok((self.at, self.links))
    }

    /// Resolves every component.
    #[doc(alias = "path_lookupat")]
    fn link_path_walk(&mut self) -> Result<()> {
        // The start may be outside by now, or the RCU-walk that this one goes on from.
        self.check_contained()?;
        self.refresh_place()?;
        while let Some(step) = self.next_component() {
            self.record.component(self.bytes_of(step), self.position());
            self.may_lookup()?;
            match self.bytes_of(step) {
                b"." => {
                    self.refresh_place()?;
                    self.record_held(self.at.mnt());
                    self.pos = step.end;
                }
                b".." => {
                    self.follow_dotdot()?;
                    self.refresh_place()?;
                    self.pos = step.end;
                }
                _ => self.walk_component(step)?,
            }
        }
        Ok(())
    }

    fn next_component(&mut self) -> Option<Component> {
        loop {
            let text = self.text.bytes();
            let slashes = text[self.pos..]
                .iter()
                .take_while(|byte| **byte == b'/')
                .count();
            let start = self.pos + slashes;
            if start < text.len() {
                let end = match short_component(text, start) {
                    Some(short) => short.end,
                    None => long_component(text, start),
                };
                let last = end == text.len() && self.stack.is_empty();
                self.pos = start;
                self.must_be_dir = self.request.flags.contains(LookupFlags::DIRECTORY);
                return Some(Component { end, last });
            }
            self.must_be_dir |= text.last() == Some(&b'/');
            match self.stack.pop() {
                Some(saved) => (self.text, self.pos) = (saved.text, saved.pos),
                None => return None,
            }
        }
    }

    /// The bytes of the component that the walk stands before.
    fn bytes_of(&self, step: Component) -> &[u8] {
        &self.text.bytes()[self.pos..step.end]
    }

    /// Checks that the walk stands in a directory that the caller may search.
    fn may_lookup(&self) -> Result<()> {
        if self.at.inode().kind() != FileType::Directory {
            return Err(Error::NotADirectory);
        }
        Target::new(&self.at, self.request.ctx.credentials()).may(Access::EXEC)
    }

    fn walk_component(&mut self, step: Component) -> Result<()> {
        let name = Name::new(self.bytes_of(step))?;
        let name = self.request.ns.caches.dcache.name(name);
        let dentry = match self.lookup_fast(&name)? {
            Some(dentry) => dentry,
            None => self.lookup_slow(&name)?,
        };
        self.step_into(dentry, step)
    }

    /// The cached dentry, if it is valid.
    pub(super) fn lookup_fast(&self, name: &NameHash<'_>) -> Result<Option<DentryRef>> {
        let dcache = &self.request.ns.caches.dcache;
        let Some(dentry) = dcache.d_lookup_rcu(self.at.dentry(), name) else {
            return Ok(None);
        };
        self.record.how(Origin::Cached);
        let cached = self.cached(self.at.inode_held(), &dentry, *name);
        let checked = cached.check(self.ask());
        self.valid(dentry, checked)
    }

    /// The dentry if it is valid; without a reference to it otherwise.
    fn valid(&self, dentry: DentryRef, checked: Result<Checked>) -> Result<Option<DentryRef>> {
        if let Ok(Checked::Valid) = checked {
            return Ok(Some(dentry));
        }
        self.request.ns.caches.dcache.put(dentry);
        checked.map(|_| None)
    }

    /// A dentry found in the directory where the walk stands.
    fn cached<'n>(
        &'n self,
        dir_inode: &'n InodeRef,
        dentry: &'n DentryRef,
        name: NameHash<'n>,
    ) -> CachedName<'n> {
        let cached = CachedName {
            sb: &self.at.mnt().sb,
            dir: self.at.dentry(),
            dir_inode,
            name,
            dentry,
        };
        if cached.is_stale(self.ask()) {
            self.record.how(Origin::Revalidated);
        }
        cached
    }

    fn ask(&self) -> Ask {
        match self.reval {
            true => Ask::Always,
            false => Ask::IfStale,
        }
    }

    /// Asks the back end, unless another thread is doing so already.
    #[cold]
    #[doc(alias = "__lookup_slow")]
    pub(super) fn lookup_slow(&self, name: &NameHash<'_>) -> Result<DentryRef> {
        let caches = &self.request.ns.caches;
        let sb = &self.at.mnt().sb;
        let dir = self.at.inode_held();
        if !self.reval
            && let Some(listing) = dir.listing()
            && listing.says_missing(sb, dir, name.name.as_bytes())
        {
            caches.counters.get().missing_by_listing();
            self.record.how(Origin::Cached);
            return Err(Error::NotFound);
        }
        let place = (self.at.dentry(), dir);
        let mut has_asked_above = false;
        loop {
            let found = {
                // Shared: lookups and listings go on side by side, changes wait for them.
                let shared = dir.rwsem().read();
                self.lookup_in(&FoundIn::only(sb, place), name, &shared)
            };
            let dentry = match found? {
                Ok(dentry) => Some(dentry),
                // A directory must move here.
                Err(Unspliced::Busy(busy)) => busy.splice(sb, place, name),
                Err(Unspliced::Loop) if has_asked_above => return Err(Error::TooManySymlinks),
                Err(Unspliced::Loop) => {
                    sb.ask_names_above(self.at.dentry());
                    has_asked_above = true;
                    None
                }
            };
            if let Some(dentry) = dentry {
                caches.make_room();
                return Ok(dentry);
            }
        }
    }

    /// Looks a name up in a directory that is locked shared, and together with its neighbours if
    /// it has been `listed`.
    fn lookup_in(
        &self,
        at: &FoundIn<'_>,
        name: &NameHash<'_>,
        listed: &Listed,
    ) -> Result<std::result::Result<DentryRef, Unspliced>> {
        let (caches, dir, sb) = (&self.request.ns.caches, at.dir_inode, at.sb);
        loop {
            match caches.dcache.d_alloc_parallel(at.dir, *name) {
                ParallelLookup::Cached(dentry) => {
                    self.record.how(Origin::Cached);
                    let checked = self.cached(dir, &dentry, *name).check_locked(self.ask());
                    if let Some(dentry) = self.valid(dentry, checked)? {
                        return Ok(Ok(dentry));
                    }
                }
                ParallelLookup::Mine(in_lookup) => {
                    if dir.shared().has(DEAD_DIR) {
                        return Err(Error::NotFound);
                    }
                    let so_many = caches.counters.get().slow_lookup();
                    self.record.how(Origin::LookedUp);
                    // Taken before asking: the answer may be older than its arrival.
                    let validity = sb.validity(Some(dir));
                    let around = match sb.looks_around {
                        true => listed.begin(so_many),
                        false => None,
                    };
                    let inode = match around {
                        Some(allowance) => self.ask_around(at, name, validity, allowance)?,
                        None => sb.fs().lookup(sb, dir, name.name)?,
                    };
                    if inode.is_some()
                        && let Some(listing) = dir.listing()
                    {
                        listing.found(name.name.as_bytes());
                    }
                    return Ok(in_lookup.done(at, inode, validity));
                }
            }
        }
    }

    /// Crosses a mount on the dentry, follows it if it is a link, and goes there.
    #[doc(alias("handle_mounts", "traverse_mounts"))]
    fn step_into(&mut self, dentry: DentryRef, step: Component) -> Result<()> {
        let (over, dentry) = self.mounts_on(self.at.mnt(), dentry);
        let Some(inode) = dentry.inode_ref() else {
            self.request.ns.caches.dcache.put(dentry);
            return Err(Error::NotFound);
        };
        let to = over.as_ref().unwrap_or(self.at.mnt());
        self.record.found(&inode, crossed(self.at.mnt(), to));
        let follow = !step.last || self.request.flags.contains(LookupFlags::FOLLOW);
        if inode.kind() == FileType::Symlink && follow {
            self.request.ns.caches.dcache.put(dentry);
            return self.pick_link(inode, step.end);
        }
        match over {
            Some(mnt) => self.at = VfsPath::new(mnt, dentry, inode),
            None => self.at.step_to(dentry, inode),
        }
        self.pos = step.end;
        if self.at.is_mount_root() {
            self.refresh_place()?;
        }
        Ok(())
    }

    /// Follows the mounts on a dentry to the topmost one. `None` if it is negative.
    pub(super) fn traverse_mounts(&self, mnt: MountRef, dentry: DentryRef) -> Option<VfsPath> {
        let (over, dentry) = self.mounts_on(&mnt, dentry);
        let inode = dentry.inode_ref()?;
        Some(VfsPath::new(over.unwrap_or(mnt), dentry, inode))
    }

    /// The root of the topmost mount on a dentry, with the mount; or the dentry itself.
    fn mounts_on(&self, mnt: &MountRef, mut dentry: DentryRef) -> (Option<MountRef>, DentryRef) {
        let mut over = None;
        while dentry.flags().contains(Flags::MOUNTPOINT) {
            let below = over.as_ref().unwrap_or(mnt);
            let Some((mount, root)) = self.request.ns.mounted_on(below, &dentry) else {
                break;
            };
            over = Some(mount);
            dentry = root;
        }
        (over, dentry)
    }

    /// Refuses, on a mount with [`MountFlags::PROTECTED_LINKS`], a link in the last place of
    /// the path that another user has put into a sticky directory which everyone may write.
    fn may_follow_link(&self, link: &Inode, end: usize) -> Result<()> {
        let protects = self.at.mnt().flags().contains(MountFlags::PROTECTED_LINKS);
        if !protects || self.request.is_head {
            return Ok(());
        }
        let is_slashes = |text: &[u8]| text.iter().all(|byte| *byte == b'/');
        let trailing = is_slashes(&self.text.bytes()[end..])
            && self
                .stack
                .all(|saved| is_slashes(&saved.text.bytes()[saved.pos..]));
        let who = self.request.ctx.credentials();
        if trailing && !may_follow_link(who, self.at.inode().protection(), link) {
            return Err(Error::PermissionDenied);
        }
        Ok(())
    }

    #[cold]
    #[doc(alias = "get_link")]
    fn pick_link(&mut self, link: InodeRef, end: usize) -> Result<()> {
        if self.links == MAX_LINKS {
            return Err(Error::TooManySymlinks);
        }
        self.links += 1;
        self.may_follow_link(&link, end)?;
        let body = self.request.ns.link_body(&self.at.mnt().sb, &link)?;
        if body.is_empty() {
            return Err(Error::NotFound);
        }
        self.record.link(&body);
        let from_root = body.first() == Some(&b'/');
        if from_root {
            self.at = self.request.ctx.root().clone();
            self.refresh_place()?;
        }
        let rest = std::mem::replace(&mut self.text, Pathname::Link(body));
        if end < rest.bytes().len() {
            self.stack.push(Saved {
                text: rest,
                pos: end,
            });
        }
        self.pos = 0;
        if from_root {
            self.record_root();
        }
        Ok(())
    }

    /// WALK-3: `..` stops at the walk's own root, and at the root of a mount goes on
    /// from where that is mounted.
    #[doc(alias = "choose_mountpoint")]
    fn follow_dotdot(&mut self) -> Result<()> {
        let mut at = self.at.clone();
        let up = loop {
            if at.is_same_place(self.request.ctx.root()) {
                break at.clone();
            }
            if at.is_mount_root() {
                match self.request.ns.mountpoint_of(at.mnt()) {
                    Some(point) => at = point,
                    None => break at.clone(),
                }
                continue;
            }
            // A detached directory (removed, or dropped from the cache) still has its parent as
            // long as it is held.
            let Some(parent) = at.dentry().parent_ref() else {
                return Err(Error::Stale);
            };
            let inode = parent.inode_ref().ok_or(Error::Stale)?;
            break VfsPath::new(at.mnt().clone(), parent, inode);
        };
        let up = self.traverse_mounts(up.mnt().clone(), up.dentry().clone());
        let from = self.at.mnt().clone();
        self.at = up.ok_or(Error::Stale)?;
        self.record_held(&from);
        self.check_contained()
    }

    /// WALK-3: refuses a place that is not below the walk's own root. Stopping at the root is
    /// not enough: the directory that the walk stood in may have been moved out of it.
    ///
    /// An empty path is no walk: the caller holds the file, which may have no name at all.
    #[doc(alias = "LOOKUP_IS_SCOPED")]
    fn check_contained(&self) -> Result<()> {
        let Request { ns, ctx, path, .. } = self.request;
        let walks = ctx.is_contained() && !path.is_empty();
        match walks && !ns.caches.dcache.is_below(ctx.root(), &self.at) {
            true => Err(Error::CrossDevice),
            false => Ok(()),
        }
    }

    /// A place that was not reached by a name just now (the start, `.`, `..`, the root of
    /// a mount) has not been revalidated with one: asks for its attributes instead.
    fn refresh_place(&self) -> Result<()> {
        let dentry = self.at.dentry();
        let sb = &self.at.mnt().sb;
        let is_stale = self.reval || !sb.is_place_fresh(dentry, &rcu::read_lock());
        let is_stale = is_stale && dentry.flags().contains(Flags::REVALIDATE);
        if is_stale {
            let validity = sb.validity(None);
            let inode = self.at.inode();
            match inode.kind() {
                FileType::Directory => sb.fs().refresh(sb, inode)?,
                _ if dentry.has_no_parent() => sb.fs().refresh_by_number(sb, inode)?,
                _ => sb.fs().refresh(sb, inode)?,
            }
            sb.place_is_fresh(dentry, self.at.inode(), validity);
        }
        if is_stale || self.reval && dentry.flags().contains(Flags::INVALIDATED) {
            self.check_own_name()?;
        }
        Ok(())
    }

    /// An open file is held by its path, and the back end may know it by name only: so its
    /// attributes are asked for by name as well. If that is gone, the file has no name from now
    /// on.
    #[doc(alias = "d_weak_revalidate")]
    fn check_own_name(&self) -> Result<()> {
        let (dentry, sb) = (self.at.dentry(), &self.at.mnt().sb);
        if self.at.inode().kind() == FileType::Directory {
            return Ok(());
        }
        let Some((parent, name)) = dentry.place() else {
            return Ok(());
        };
        if let Some(dir_inode) = parent.inode_ref() {
            let own = CachedName {
                sb,
                dir: &parent,
                dir_inode: &dir_inode,
                name: sb.caches.dcache.name(Name::new(&name)?),
                dentry,
            };
            // Dropped or gone, the walk stands where it is.
            own.check(Ask::Always)?;
        }
        Ok(())
    }
}
