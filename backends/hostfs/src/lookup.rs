//! From names to inodes, and back to the host when they are used.
//!
//! A lookup costs one statx(2) if the name is missing, or the inode is cached, or
//! needs no descriptor. Only a directory or link that is not cached is pinned:
//!
//! ```text
//!            statx(dir, name)
//!                  |
//!      missing ----+---- iget(key) ---- Cached, the same file ----> update, done
//!        |                  |     \
//!      None               New      Cached, another file
//!                           |           |
//!          file, device ----+           statx again; still another:
//!            |              |           unhash, start again
//!          done     directory, link
//!                           |
//!                  openat2(O_PATH), statx(fd), [readlinkat(fd)]
//!                           |
//!                  the same file: done          another: start again
//! ```
//!
//! A lookup starts again after a race with a change on the host; each round begins with a new
//! statx, and after [`ATTEMPTS`] rounds the answer is [`Error::Stale`].
//!
//! INODE-1 asks for care when the host gives an inode number away again: the cached
//! inode is only declared stale on the word of a statx that was made *after* the inode
//! was seen in the cache. An older answer could be the outdated one of the two.

use std::sync::Arc;

use rcuwalk::{
    At, ByNumber, Caller, Emit, Error, FileHandle, FileSystem, FileType, Freshness, Iget, Inode,
    InodeFill, InodeKey, InodeRef, Name, NewFile, OpenFlags, Rename, Result, SetAttr, StatFs,
    SuperBlock, XattrFlags,
};
use rustix::fd::BorrowedFd;

use crate::HostFs;
use crate::dirs::{Dir, Pin};
use crate::host::{self, as_fd};
use crate::identity::Stat;
use crate::pin::{Directory, found_at, known, pinned};
use crate::watch::{self, Registration, Watch, in_doubt};
use crate::{change, create, file, handles, listing, procfs, setattr, xattr};

/// How often a lookup starts again when the name changes under it.
pub(crate) const ATTEMPTS: usize = 8;

/// Private value of a link whose target cannot be read: the errno of reading it. Links of
/// procfs can be seen by everyone and read by few.
struct Unreadable(i32);

impl FileSystem for HostFs {
    fn name(&self) -> &str {
        "hostfs"
    }

    fn freshness(&self) -> Freshness {
        self.freshness
    }

    fn announces(&self, inode: &Inode) -> bool {
        let watch = self.watch.as_ref();
        watch.is_some_and(|watch| watch.announces(inode.inode_key()))
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        let key = host::stat_fd(self.root.fd())?.key;
        match sb.iget(key)? {
            Iget::Cached(root) => Ok(root),
            Iget::New(new) => {
                let watch = self.register(self.root.fd(), key);
                let stat = host::stat_fd(self.root.fd())?;
                let dir = Dir::root(&self.dirs, sb, &self.root, &stat);
                let root = Directory::new(dir, watch);
                Ok(new.init(root.fill(&self.root, &stat, self.freshness)))
            }
        }
    }

    fn mounted(&self, sb: &Arc<SuperBlock>) -> Result<()> {
        match &self.watch {
            Some(watch) => watch.start(sb),
            None => Ok(()),
        }
    }

    fn number(&self, beside: InodeKey, ino: u64) -> u64 {
        self.numbers.number(beside, ino)
    }

    fn generation(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<u32>> {
        handles::generation(self, by, at)
    }

    fn by_number(&self, sb: &SuperBlock, number: u64) -> Result<ByNumber> {
        handles::by_number(self, sb, number)
    }

    fn encode_handle(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Box<[u8]>> {
        handles::kernel::encode(self, by, at)
    }

    fn open_handle(&self, sb: &SuperBlock, id: &[u8]) -> Result<ByNumber> {
        handles::kernel::open(self, sb, id)
    }

    fn refresh_by_number(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        let held = match self.opened.find(inode) {
            Some(held) => held,
            None => handles::hold(self, sb, inode)?,
        };
        self.publish(inode, || host::stat_fd(held.fd()).map(Some))?;
        Ok(())
    }

    fn shown(&self, device: u64, is_shown: bool) {
        self.own_mounts.set(device, is_shown);
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        for _ in 0..ATTEMPTS {
            match self.lookup_once(sb, dir, name)? {
                Round::Answer(found) => return Ok(found),
                Round::Again => {}
            }
        }
        Err(Error::Stale)
    }

    fn revalidate(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        let pin = pinned(sb, dir)?;
        let Some(inode) = inode else {
            return Ok(self.own_mounts.stat_at(pin.fd(), name)?.is_none());
        };
        let is_still = self.publish(inode, || {
            let stat = self.own_mounts.stat_at(pin.fd(), name)?;
            Ok(stat.filter(|stat| stat.is_still(inode) && !is_replaced(inode)))
        })?;
        if is_still {
            found_at(inode, dir, name);
        }
        Ok(is_still)
    }

    fn refresh(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        // Other files can only be revalidated by name, by `revalidate`.
        if let Some(dir) = known(inode) {
            let pin = dir.pin(sb)?;
            self.publish(inode, || host::stat_fd(pin.fd()).map(Some))?;
        }
        Ok(())
    }

    fn read_link(&self, _sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>> {
        // A link whose target could be read was given it then, and is not asked for.
        Err(match inode.private() {
            Some(Unreadable(errno)) => std::io::Error::from_raw_os_error(*errno).into(),
            None => Error::Invalid,
        })
    }

    fn read_dir(&self, sb: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        let pin = pinned(sb, dir)?;
        let open = self.dirs.open(|| host::open_dir(pin.fd()))?;
        listing::read(&open, from, emit)
    }

    fn caches_listings(&self) -> bool {
        true
    }

    fn listing_version(&self, sb: &SuperBlock, dir: &Inode) -> Option<u64> {
        let pin = pinned(sb, dir).ok()?;
        let is_told = matches!(self.freshness, Freshness::Always | Freshness::Watched);
        let has_times = self.numbers.tell_times(dir.inode_key());
        listing::version(pin.fd(), is_told, has_times)
    }

    fn lists_all_names(&self, sb: &SuperBlock, dir: &Inode) -> bool {
        let flags = || {
            let pin = pinned(sb, dir)?;
            let open = self.dirs.open(|| host::open_dir(pin.fd()))?;
            listing::has_other_names(&open)
        };
        self.numbers.list_all(dir.inode_key()) && flags().is_ok_and(|other| !other)
    }

    fn open(&self, by: &Caller<'_>, at: &At<'_>, flags: OpenFlags) -> Result<Box<dyn FileHandle>> {
        file::open(self, by, at, flags)
    }

    fn open_place(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<Box<dyn FileHandle>>> {
        file::open_place(self, by, at)
    }

    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        in_doubt(by.sb, &[dir], create::create(self, by, dir, name, new))
    }

    fn create_open(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
        flags: OpenFlags,
    ) -> Result<(InodeRef, Box<dyn FileHandle>)> {
        let made = create::create_open(self, by, dir, name, new, flags);
        in_doubt(by.sb, &[dir], made)
    }

    fn tmpfile(&self, by: &Caller<'_>, dir: &Inode, new: &NewFile<'_>) -> Result<InodeRef> {
        create::tmpfile(self, by, dir, new)
    }

    fn link(&self, by: &Caller<'_>, file: &At<'_>, dir: &Inode, name: Name<'_>) -> Result<()> {
        in_doubt(by.sb, &[dir], change::link(self, by, file, dir, name))
    }

    fn unlink(&self, by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        in_doubt(by.sb, &[dir], change::remove(self, by, dir, name, inode))
    }

    fn unlink_open(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        inode: &Inode,
        held: &mut Option<Box<dyn FileHandle>>,
    ) -> Result<()> {
        let removed = change::remove_held(self, by, (dir, name), inode, held);
        in_doubt(by.sb, &[dir], removed)
    }

    fn rmdir(&self, by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        in_doubt(by.sb, &[dir], change::remove(self, by, dir, name, inode))
    }

    fn rename(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        in_doubt(
            by.sb,
            &[how.from.0, how.to.0],
            change::rename(self, by, how),
        )
    }

    fn setattr(&self, by: &Caller<'_>, at: &At<'_>, change: &SetAttr) -> Result<()> {
        setattr::setattr(self, by, at, change)
    }

    fn get_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        xattr::get(self, by, at, name)
    }

    fn default_acl(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<Box<[u8]>>> {
        xattr::default_acl(self, by, at)
    }

    fn list_xattrs(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Vec<Box<[u8]>>> {
        xattr::list(self, by, at)
    }

    fn set_xattr(
        &self,
        by: &Caller<'_>,
        at: &At<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        xattr::set(self, by, at, name, value, flags)
    }

    fn remove_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<()> {
        xattr::remove(self, by, at, name)
    }

    fn sync_dir(&self, by: &Caller<'_>, at: &At<'_>) -> Result<()> {
        let pin = pinned(by.sb, at.inode)?;
        let dir = self.dirs.open(|| host::open_dir(pin.fd()))?;
        host::held::sync(as_fd(&dir), false)
    }

    fn posix_acl(&self) -> bool {
        true
    }

    fn statfs(&self, _sb: &SuperBlock) -> Result<StatFs> {
        host::held::statfs(self.root.fd())
    }
}

/// How one round of a lookup ended.
enum Round {
    Answer(Option<InodeRef>),
    /// The host changed under it.
    Again,
}

impl HostFs {
    fn lookup_once(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Round> {
        let pin = pinned(sb, dir)?;
        let before = self.watch.as_ref().map_or(0, Watch::unplaced);
        let ask = || self.own_mounts.stat_at(pin.fd(), name);
        let Some(stat) = ask()? else {
            return Ok(Round::Answer(None));
        };
        match sb.iget(stat.key)? {
            Iget::Cached(inode) if is_replaced(&inode) => {
                sb.unhash(&inode);
                Ok(Round::Again)
            }
            Iget::Cached(inode) if stat.is_still(&inode) => {
                Ok(match self.publish_stat(&inode, stat, before, ask)? {
                    true => {
                        found_at(&inode, dir, name);
                        Round::Answer(Some(inode))
                    }
                    false => Round::Again,
                })
            }
            Iget::Cached(inode) => {
                retire_if_replaced(sb, pin.fd(), name, &inode)?;
                Ok(Round::Again)
            }
            Iget::New(new) => Ok(match self.read_in(sb, (dir, &pin), name, stat)? {
                Some(fill) => {
                    let inode = new.init(fill);
                    if let Some(watch) = &self.watch {
                        watch.settle(sb, &inode, before, ask)?;
                    }
                    Round::Answer(Some(inode))
                }
                // Dropping `new` sends its waiters to look for themselves (INODE-3).
                None => Round::Again,
            }),
        }
    }

    /// The initial contents of a new inode, or `None` if the name was given to another file.
    fn read_in(
        &self,
        sb: &SuperBlock,
        (dir, pin): (&Inode, &Pin),
        name: Name<'_>,
        stat: Stat,
    ) -> Result<Option<InodeFill>> {
        match stat.attr.kind {
            FileType::Directory => self.read_in_directory(sb, (dir, pin), name, &stat),
            FileType::Symlink => self.read_in_link((dir, pin), name, &stat),
            _ => Ok(Some(stat.fill())),
        }
    }

    fn read_in_directory(
        &self,
        sb: &SuperBlock,
        (dir, pin): (&Inode, &Pin),
        name: Name<'_>,
        stat: &Stat,
    ) -> Result<Option<InodeFill>> {
        let opened = match self.open_directory(sb, pin, name) {
            Err(Error::NotFound) => return Ok(None),
            opened => opened?,
        };
        // From here on the descriptor is the truth, and the name may change as it likes.
        let watch = self.register(opened.fd(), stat.key);
        let held = host::stat_fd(opened.fd())?;
        if held.key != stat.key || held.attr.kind != FileType::Directory {
            return Ok(None);
        }
        let fill = self.fill_directory(sb, (dir, name), &opened, watch, &held)?;
        Ok(Some(fill))
    }

    fn read_in_link(
        &self,
        (dir, pin): (&Inode, &Pin),
        name: Name<'_>,
        stat: &Stat,
    ) -> Result<Option<InodeFill>> {
        let fd = match self.dirs.open(|| host::pin_at(pin.fd(), name)) {
            Err(Error::NotFound) => return Ok(None),
            fd => fd?,
        };
        let held = host::stat_fd(as_fd(&fd))?;
        if held.key != stat.key || held.attr.kind != FileType::Symlink {
            return Ok(None);
        }
        let is_top = dir.inode_key().ino == rcuwalk_procfs::ROOT_INO;
        let is_guarded = !is_top && procfs::is_on_procfs(held.key, as_fd(&fd));
        fill_link(as_fd(&fd), &held, is_guarded).map(Some)
    }

    /// Opens a directory about to be cached, counted.
    pub(crate) fn open_directory(&self, sb: &SuperBlock, pin: &Pin, name: Name<'_>) -> Result<Pin> {
        let counted = self.dirs.hold_descriptor(sb);
        let fd = self.dirs.open(|| host::pin_at(pin.fd(), name))?;
        Ok(Pin::counted(fd, counted))
    }

    /// The initial contents of a directory's inode: found as `name` in `dir`, with `held` the
    /// attributes of `opened`.
    pub(crate) fn fill_directory(
        &self,
        sb: &SuperBlock,
        (dir, name): (&Inode, Name<'_>),
        opened: &Pin,
        watch: Option<Registration>,
        held: &Stat,
    ) -> Result<InodeFill> {
        let above = known(dir).ok_or(Error::NotADirectory)?;
        let new = Dir::below(above, name.as_bytes(), sb, opened, held);
        let new = Directory::new(new, watch);
        Ok(new.fill(opened, held, self.freshness))
    }

    /// Watches a directory about to be cached as `key`, if changes are watched.
    pub(crate) fn register(&self, dir: BorrowedFd<'_>, key: InodeKey) -> Option<Registration> {
        self.watch.as_ref()?.register(dir, key)
    }

    /// Asks for attributes and brings them up to date; false if there is no answer about
    /// this inode. Where an old one would not be noticed for long (the next question comes
    /// soon), one answer has to do.
    pub(crate) fn publish(
        &self,
        inode: &Inode,
        mut ask: impl FnMut() -> Result<Option<Stat>>,
    ) -> Result<bool> {
        if self.watch.is_some() {
            return watch::publish_latest(inode, ask);
        }
        let stat = ask()?;
        if let Some(stat) = &stat {
            stat.publish(inode);
        }
        Ok(stat.is_some())
    }

    /// Like `publish`, with an answer at hand: to a question asked after `before` (see
    /// [`Watch::unplaced`]) and before the inode was found.
    pub(crate) fn publish_stat(
        &self,
        inode: &Inode,
        stat: Stat,
        before: u64,
        ask: impl Fn() -> Result<Option<Stat>>,
    ) -> Result<bool> {
        match &self.watch {
            // An answer that differs from the cached attributes may be older: only another
            // answer tells.
            Some(watch) if stat.is_news(inode) || watch.has_heard(before) => {
                watch::publish_latest(inode, || Ok(ask()?.filter(|now| now.is_still(inode))))
            }
            Some(_) => Ok(true),
            None => {
                stat.publish(inode);
                Ok(true)
            }
        }
    }
}

/// The initial contents of the inode of the link that `fd` holds. If it `is_guarded`, not every
/// caller may read its target.
pub(crate) fn fill_link(fd: BorrowedFd<'_>, held: &Stat, is_guarded: bool) -> Result<InodeFill> {
    let fill = held.fill();
    match host::read_link(fd) {
        Ok(_) if is_guarded => Ok(fill.private(Unreadable(Error::PermissionDenied.errno()))),
        Ok(target) => Ok(fill.link(target)),
        // Its attributes can be read all the same, as with lstat(2).
        Err(err @ (Error::PermissionDenied | Error::NotFound)) => {
            Ok(fill.private(Unreadable(err.errno())))
        }
        Err(err) => Err(err),
    }
}

/// True for a directory of which only the file handle has told that another one has its
/// number and time of birth by now.
fn is_replaced(inode: &Inode) -> bool {
    known(inode).is_some_and(|dir| dir.is_replaced())
}

/// Takes `inode` out of the cache if the host now uses its number for another file.
#[cold]
pub(crate) fn retire_if_replaced(
    sb: &SuperBlock,
    dir: BorrowedFd<'_>,
    name: Name<'_>,
    inode: &InodeRef,
) -> Result<()> {
    // The first statx may be older than the cached inode, and the inode right. Of one
    // made now, with the inode at hand, only the newer file can be the result.
    if let Some(now) = host::stat_at(dir, name)?
        && now.key == inode.inode_key()
        && !now.is_still(inode)
    {
        sb.unhash(inode);
    }
    Ok(())
}
