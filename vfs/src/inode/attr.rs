//! Attributes that writers change as one and readers read as one, without a lock.

use rcuwalk_sync::atomic::*;
use rcuwalk_sync::model::{self, Mutex, MutexGuard, spin_loop};
use rcuwalk_sync::{Seq, SeqCount};

use crate::attr::{Attr, FileType, InodeFlags, Timestamp};

/// Owner, group, permission bits and related flags.
#[derive(Clone, Copy)]
pub(crate) struct Protection {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    payload: u32,
}

impl Protection {
    /// Permission bits with set-id and sticky.
    #[inline]
    pub(crate) fn mode(self) -> u16 {
        self.payload as u16 & 0o7777
    }

    /// True if everyone may make names there, and only their owners may remove them.
    pub(crate) fn is_sticky_for_all(self) -> bool {
        const STICKY_FOR_ALL: u16 = 0o1002;
        self.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL
    }

    /// Whether an access ACL applies beside the permission bits.
    #[inline]
    pub(crate) fn may_have_acl(self) -> bool {
        self.payload & MAY_HAVE_ACL != 0
    }

    /// Immutable and append-only.
    #[inline]
    pub(crate) fn flags(self) -> InodeFlags {
        flags_of(self.payload)
    }
}

/// One inode's attributes under a sequence count (SEQ-1).
///
/// Type, permission bits and flags are the count's payload: the walk gets them with
/// one load.
pub struct AttrCell {
    seq: SeqCount,
    nlink: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    /// A device's number. A directory has none, and keeps the version of its names here, or the
    /// time until which it is valid as a path (see `fresh.rs`). That is no attribute: it
    /// changes apart from the count.
    rdev_or_version: AtomicU32,
    size: AtomicU64,
    blocks: AtomicU64,
    seconds: [AtomicU64; 4],
    nanoseconds: [AtomicU32; 4],
}

model::fresh_static! {
    /// Serialise writers. A few locks for all inodes: one in each would cost it 8 bytes.
    static WRITERS: [Writers; SHARDS] = [Writers(Mutex::new(())); SHARDS];
}

const SHARDS: usize = 64;

/// On a cache line of its own.
#[repr(align(128))]
struct Writers(Mutex<()>);

/// Locks all writers out until the guards are dropped. A writer holds one of these locks, and
/// no other below it.
pub(super) fn hold_all() -> Vec<MutexGuard<'static, ()>> {
    let lock = |writers: &'static Writers| writers.0.lock();
    let all = WRITERS.iter().map(lock);
    all.map(|locked| locked.unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect()
}

impl AttrCell {
    /// Holds `attr`, less `ino` and `dev`.
    pub fn new(attr: &Attr) -> AttrCell {
        let cell = AttrCell {
            seq: SeqCount::new(payload(attr)),
            nlink: AtomicU32::new(0),
            uid: AtomicU32::new(0),
            gid: AtomicU32::new(0),
            rdev_or_version: AtomicU32::new(0),
            size: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            seconds: Default::default(),
            nanoseconds: Default::default(),
        };
        cell.write(attr);
        cell
    }

    /// The right to write to it. Nothing panics while it is held, and it guards no data of
    /// its own.
    fn writers(&self) -> MutexGuard<'_, ()> {
        // In a model a schedule must be repeatable, and addresses differ.
        let shard = match cfg!(any(loom, shuttle)) {
            true => 0,
            false => (std::ptr::from_ref(self).addr() >> 6) % SHARDS,
        };
        let writers = WRITERS[shard].0.lock();
        writers.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// All of one moment; `ino` and `dev` are 0.
    pub fn load(&self) -> Attr {
        loop {
            if let Some(begin) = self.seq.read_begin() {
                let attr = self.read(begin.payload());
                if !self.seq.read_retry(begin) {
                    return attr;
                }
            }
            spin_loop();
        }
    }

    /// Replaces all of it; readers see the old or the new.
    pub fn store(&self, attr: &Attr) {
        let _writers = self.writers();
        if self.load() != without_key(attr) {
            // A revalidation that found nothing new leaves readers alone.
            self.replace(attr, self.known());
        }
    }

    /// As above for attributes that a back end has reported, with `forget` as in
    /// [`store_since`](Self::store_since).
    pub(crate) fn store_found(&self, attr: &Attr, forget: impl FnOnce()) {
        let attr = &without_key(attr);
        // Mostly nothing has changed: no reader need wait.
        if self.load() == *attr {
            return;
        }
        let _writers = self.writers();
        let was = self.load();
        if was != *attr {
            let known = self.known_after(was.ctime, attr, forget);
            self.replace(attr, known);
        }
    }

    /// Like [`store_found`](Self::store_found), if nothing has changed since that moment;
    /// otherwise returns false. Even an unchanged answer ends that moment. If the ctime is
    /// another, the access ACL must be read again: `forget` is called under the writers' lock,
    /// before readers see the rest.
    pub(crate) fn store_since(&self, since: Seq, attr: &Attr, forget: impl FnOnce()) -> bool {
        let _writers = self.writers();
        if self.seq.read_retry(since) {
            return false;
        }
        let known = self.known_after(self.load().ctime, attr, forget);
        self.replace(attr, known);
        true
    }

    /// The flags beside the attributes. With the writers' lock held.
    fn known(&self) -> u32 {
        self.seq.payload() & (MAY_HAVE_ACL | ACL_CHANGES | NO_CAPS)
    }

    /// Those flags once the attributes are `attr`.
    fn known_after(&self, ctime: Timestamp, attr: &Attr, forget: impl FnOnce()) -> u32 {
        if ctime == attr.ctime || self.kind() == FileType::Symlink {
            return self.known();
        }
        forget();
        self.known() | MAY_HAVE_ACL
    }

    /// With the writers' lock held.
    fn replace(&self, attr: &Attr, known: u32) {
        let mut writer = self.seq.write();
        let now = payload(&Attr {
            kind: self.kind(),
            ..*attr
        });
        writer.set_payload(now | known);
        self.write(attr);
    }

    /// Replaces the cached state of the access ACL: `change` is called under the writers' lock,
    /// and returns the new state. With `since`, only if none of the attributes has changed
    /// after that moment.
    pub(crate) fn change_acl(&self, since: Option<Seq>, change: impl FnOnce() -> AclState) {
        let _writers = self.writers();
        if since.is_some_and(|since| self.seq.read_retry(since)) {
            return;
        }
        let was = self.seq.payload();
        let rest = was & !(MAY_HAVE_ACL | ACL_CHANGES);
        let mut writer = self.seq.write();
        let acl = match change() {
            AclState::None => 0,
            AclState::Some => MAY_HAVE_ACL,
            AclState::Forgotten => MAY_HAVE_ACL | was & ACL_CHANGES,
            AclState::Changes => MAY_HAVE_ACL | ACL_CHANGES,
        };
        writer.set_payload(rest | acl);
    }

    /// The moment that a question asked now belongs to, and all that is asked about.
    pub(crate) fn now(&self) -> Seq {
        loop {
            if let Some(now) = self.seq.read_begin() {
                return now;
            }
            spin_loop();
        }
    }

    /// True if nothing has changed since.
    pub(crate) fn is_still(&self, then: Seq) -> bool {
        !self.seq.read_retry(then)
    }

    /// Whether the ACL was being changed at that moment.
    pub(crate) fn acl_changed_at(then: Seq) -> bool {
        then.payload() & ACL_CHANGES != 0
    }

    /// Remembers whether it is known that there is no `security.capability`.
    pub(crate) fn set_no_caps(&self, none: bool) {
        let _writers = self.writers();
        let was = self.seq.payload();
        let now = if none { was | NO_CAPS } else { was & !NO_CAPS };
        if now != was {
            self.seq.write().set_payload(now);
        }
    }

    /// See [`set_no_caps`](Self::set_no_caps).
    pub(crate) fn no_caps(&self) -> bool {
        self.seq.payload() & NO_CAPS != 0
    }

    /// Immutable and append-only.
    pub(crate) fn flags(&self) -> InodeFlags {
        flags_of(self.seq.payload())
    }

    /// The attributes that decide about permissions, as of one moment.
    #[inline]
    pub(crate) fn protection(&self) -> Protection {
        loop {
            if let Some(begin) = self.seq.read_begin() {
                let (uid, gid) = (self.uid.load(Relaxed), self.gid.load(Relaxed));
                if !self.seq.read_retry(begin) {
                    return Protection {
                        uid,
                        gid,
                        payload: begin.payload(),
                    };
                }
            }
            spin_loop();
        }
    }

    /// How many names it has: one look, not tied to the other attributes.
    pub(crate) fn nlink(&self) -> u32 {
        self.nlink.load(Relaxed)
    }

    /// The version of a directory's names; 0 while it is not watched.
    pub(crate) fn names_version(&self) -> u32 {
        debug_assert_eq!(self.kind(), FileType::Directory, "no other has names");
        // Acquire: pairs with the Release in `invalidate_names` (FRESH-1).
        self.rdev_or_version.load(Acquire)
    }

    /// From now on, changes of this directory are reported.
    pub(crate) fn set_watched(&self) {
        debug_assert_eq!(self.kind(), FileType::Directory, "no other is watched");
        self.rdev_or_version.store(1, Relaxed);
    }

    /// For a directory whose names have no versions: the value of
    /// [`set_path_valid_until`](Self::set_path_valid_until), or 0.
    pub(crate) fn path_valid_until(&self) -> u32 {
        self.rdev_or_version.load(Relaxed)
    }

    pub(crate) fn set_path_valid_until(&self, until: u32) {
        self.rdev_or_version.store(until, Relaxed);
    }

    /// The next version, if it is watched.
    pub(crate) fn invalidate_names(&self) {
        let version = &self.rdev_or_version;
        // Relaxed: watched or not is settled before anyone else sees the inode (INODE-2).
        if self.kind() != FileType::Directory || version.load(Relaxed) == 0 {
            return;
        }
        // Release: pairs with the Acquire in `names_version`; a thread that sees this version
        // asks the back end after the change that led to it (FRESH-1).
        if version.fetch_add(1, Release) == u32::MAX {
            // 0 is for directories that are not watched. No name was fresh meanwhile.
            version.fetch_add(1, Release);
        }
    }

    pub(crate) fn kind(&self) -> FileType {
        kind_of(self.seq.payload())
    }

    fn read(&self, payload: u32) -> Attr {
        let time = |n: usize| Timestamp {
            sec: self.seconds[n].load(Relaxed) as i64,
            nsec: self.nanoseconds[n].load(Relaxed),
        };
        Attr {
            dev: 0,
            ino: 0,
            kind: kind_of(payload),
            mode: payload as u16 & 0o7777,
            flags: flags_of(payload),
            nlink: self.nlink.load(Relaxed),
            uid: self.uid.load(Relaxed),
            gid: self.gid.load(Relaxed),
            rdev: match kind_of(payload) {
                FileType::Directory => 0,
                _ => decode_dev(self.rdev_or_version.load(Relaxed)),
            },
            size: self.size.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
        }
    }

    fn write(&self, attr: &Attr) {
        self.nlink.store(attr.nlink, Relaxed);
        self.uid.store(attr.uid, Relaxed);
        self.gid.store(attr.gid, Relaxed);
        if self.kind() != FileType::Directory {
            let rdev = encode_dev(attr.rdev);
            self.rdev_or_version.store(rdev, Relaxed);
        }
        self.size.store(attr.size, Relaxed);
        self.blocks.store(attr.blocks, Relaxed);
        for (n, time) in [attr.atime, attr.mtime, attr.ctime, attr.btime]
            .iter()
            .enumerate()
        {
            self.seconds[n].store(time.sec as u64, Relaxed);
            self.nanoseconds[n].store(time.nsec, Relaxed);
        }
    }
}

/// As they are kept: the key has the rest.
fn without_key(attr: &Attr) -> Attr {
    Attr {
        ino: 0,
        dev: 0,
        ..*attr
    }
}

/// ```text
///   bit 0        16     20      24                25              26
///   | permission | type | flags | may have an ACL | no capability | ACL changes |
/// ```
fn payload(attr: &Attr) -> u32 {
    u32::from(attr.mode & 0o7777) | (attr.kind as u32) << 16 | u32::from(attr.flags.bits()) << 20
}

/// In the payload: an access ACL is cached, or must be read from the back end.
const MAY_HAVE_ACL: u32 = 1 << 24;

/// In the payload: there is no attribute `security.capability`.
#[doc(alias = "S_NOSEC")]
const NO_CAPS: u32 = 1 << 25;

/// In the payload: the access ACL is being changed, and no answer about it lasts.
const ACL_CHANGES: u32 = 1 << 26;

/// The cache's knowledge of the access ACL.
#[derive(Clone, Copy)]
pub(crate) enum AclState {
    /// There is none.
    None,
    /// There is one, or the back end must be asked for it.
    Some,
    /// The back end must be asked for it; while it is being changed, for each use.
    Forgotten,
    /// It is being changed: ask for it, and do not cache the answer.
    Changes,
}

fn flags_of(payload: u32) -> InodeFlags {
    InodeFlags::from_bits_truncate((payload >> 20) as u8 & 0xF)
}

fn kind_of(payload: u32) -> FileType {
    use FileType::*;
    let kinds = [
        Regular,
        Directory,
        Symlink,
        BlockDevice,
        CharDevice,
        Fifo,
        Socket,
    ];
    kinds[(payload >> 16 & 0xF) as usize - Regular as usize]
}

/// The kernel's own 32 bits of a device number: 12 of major, 20 of minor.
#[doc(alias = "new_encode_dev")]
fn encode_dev(dev: u64) -> u32 {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    major << 20 | minor & 0xF_FFFF
}

fn decode_dev(dev: u32) -> u64 {
    libc::makedev(dev >> 20, dev & 0xF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn attr(n: u32) -> Attr {
        Attr {
            nlink: n,
            uid: n,
            gid: n,
            size: n.into(),
            rdev: libc::makedev(8, 1),
            mtime: Timestamp {
                sec: -1 - i64::from(n),
                nsec: n,
            },
            ..Attr::new(0, FileType::BlockDevice, n as u16)
        }
    }

    /// SEQ-1: attributes are all old or all new.
    #[test]
    fn a_change_is_seen_whole() {
        let cell = AttrCell::new(&attr(0));
        assert_eq!(cell.load(), attr(0));
        let rounds = if cfg!(miri) { 50 } else { 0o7777 };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..rounds).for_each(|n| cell.store(&attr(n)));
                done.store(true, Relaxed);
            });
            while !done.load(Relaxed) {
                let seen = cell.load();
                assert_eq!(seen, attr(seen.nlink), "SEQ-1");
                let one = cell.protection();
                let mode = one.mode().into();
                assert_eq!((one.uid, one.gid), (mode, mode), "SEQ-1");
            }
        });
    }
}
