//! Attributes that writers change as one and readers read as one, without a lock.

use once_cell::race::OnceBox;
use rcuwalk_sync::atomic::*;
use rcuwalk_sync::model::{self, Mutex, MutexGuard, spin_loop};
use rcuwalk_sync::{Seq, SeqCount};

use super::extra::{Extra, Wide};
use super::packed::{self, Packed};
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
/// one load. What decides about permissions comes first: it is in the inode's first cache line.
///
/// The other attributes of nearly all files fit into five words; [`Packed`] says which. Where
/// they do not fit, WIDE in the payload says that all of them are in [`Wide`].
#[repr(C)]
pub(super) struct AttrCell {
    seq: SeqCount,
    uid: AtomicU32,
    gid: AtomicU32,
    /// Of [`Packed::counts`], the number of names is right also where the rest is not.
    counts: AtomicU64,
    times: [AtomicU64; 4],
    extra: OnceBox<Extra>,
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
pub(crate) fn hold_writers() -> Vec<MutexGuard<'static, ()>> {
    let lock = |writers: &'static Writers| writers.0.lock();
    let all = WRITERS.iter().map(lock);
    all.map(|locked| locked.unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect()
}

impl AttrCell {
    /// Holds `attr`, less `ino` and `dev`.
    pub(super) fn new(attr: &Attr, extra: Option<Box<Extra>>) -> AttrCell {
        let packed = Packed::of(attr);
        let wide = if packed.is_none() { WIDE } else { 0 };
        let cell = AttrCell {
            seq: SeqCount::new(payload(attr) | wide),
            uid: AtomicU32::new(0),
            gid: AtomicU32::new(0),
            counts: AtomicU64::new(0),
            times: Default::default(),
            extra: extra.map_or_else(OnceBox::new, OnceBox::with_value),
        };
        cell.write(attr, packed);
        cell
    }

    /// What the inode has beside this, if anything.
    #[inline]
    pub(super) fn extra(&self) -> Option<&Extra> {
        self.extra.get()
    }

    /// As above. It gets one if it has none.
    pub(super) fn or_extra(&self) -> &Extra {
        self.extra.get_or_init(Box::default)
    }

    fn or_wide(&self) -> &Wide {
        self.or_extra().wide.get_or_init(Box::default)
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
    pub(super) fn load(&self) -> Attr {
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
    pub(super) fn store(&self, attr: &Attr) {
        let packed = Packed::of(attr);
        let _writers = self.writers();
        if !self.holds(attr, &packed) {
            // A revalidation that found nothing new leaves readers alone.
            self.replace(attr, packed, self.known());
        }
    }

    /// As above for attributes that a back end has reported, with `forget` as in
    /// [`store_since`](Self::store_since).
    pub(crate) fn store_found(&self, attr: &Attr, forget: impl FnOnce()) {
        let packed = Packed::of(attr);
        // Mostly nothing has changed: no reader need wait.
        if self.holds(attr, &packed) {
            return;
        }
        let _writers = self.writers();
        if !self.holds(attr, &packed) {
            let known = self.known_after(self.load().ctime, attr, forget);
            self.replace(attr, packed, known);
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
        self.replace(attr, Packed::of(attr), known);
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

    /// True if these are its attributes, at one moment.
    fn holds(&self, attr: &Attr, packed: &Option<Packed>) -> bool {
        let Some(packed) = packed else {
            return self.load() == without_key(attr);
        };
        loop {
            if let Some(begin) = self.seq.read_begin() {
                let has_time = |(cell, time): (&AtomicU64, &u64)| cell.load(Relaxed) == *time;
                let same = begin.payload() & (ATTRIBUTES | WIDE) == payload(attr)
                    && self.uid.load(Relaxed) == attr.uid
                    && self.gid.load(Relaxed) == attr.gid
                    && self.counts.load(Relaxed) == packed.counts
                    && self.times.iter().zip(&packed.times).all(has_time);
                if !self.seq.read_retry(begin) {
                    return same;
                }
            }
            spin_loop();
        }
    }

    /// With the writers' lock held.
    fn replace(&self, attr: &Attr, packed: Option<Packed>, known: u32) {
        let wide = if packed.is_none() {
            // Allocated before readers must wait.
            self.or_wide();
            WIDE
        } else {
            0
        };
        let mut writer = self.seq.write();
        let kind = self.seq.payload() & KIND;
        writer.set_payload(payload(attr) & !KIND | kind | known | wide);
        self.write(attr, packed);
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
        // Acquire: pairs with the Release in `write`; many names are written down elsewhere first.
        match packed::nlink(self.counts.load(Acquire)) {
            Some(nlink) => nlink,
            None => self.or_wide().nlink.load(Relaxed),
        }
    }

    /// The version of a directory's names; 0 while it is not watched.
    pub(crate) fn names_version(&self) -> u32 {
        debug_assert_eq!(self.kind(), FileType::Directory, "no other has names");
        // Acquire: pairs with the Release in `invalidate_names` (FRESH-1).
        self.extra()
            .map_or(0, |extra| extra.names_version.load(Acquire))
    }

    /// From now on, changes of this directory are reported.
    pub(crate) fn set_watched(&self) {
        debug_assert_eq!(self.kind(), FileType::Directory, "no other is watched");
        self.or_extra().names_version.store(1, Relaxed);
    }

    /// The value of [`set_path_valid_until`](Self::set_path_valid_until), or 0.
    pub(crate) fn path_valid_until(&self) -> u32 {
        self.extra()
            .map_or(0, |extra| extra.path_valid_until.load(Relaxed))
    }

    pub(crate) fn set_path_valid_until(&self, until: u32) {
        self.or_extra().path_valid_until.store(until, Relaxed);
    }

    /// The next version, if it is watched.
    pub(crate) fn invalidate_names(&self) {
        let Some(Extra {
            names_version: version,
            ..
        }) = self.extra()
        else {
            return;
        };
        // Relaxed: watched or not is settled before anyone else sees the inode (INODE-2).
        if version.load(Relaxed) == 0 {
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
        let packed = Packed {
            counts: self.counts.load(Relaxed),
            times: [
                self.times[0].load(Relaxed),
                self.times[1].load(Relaxed),
                self.times[2].load(Relaxed),
                self.times[3].load(Relaxed),
            ],
        };
        let packed = packed.onto(Attr {
            uid: self.uid.load(Relaxed),
            gid: self.gid.load(Relaxed),
            flags: flags_of(payload),
            ..Attr::new(0, kind_of(payload), payload as u16 & 0o7777)
        });
        match payload & WIDE {
            0 => packed,
            _ => self.or_wide().read(packed),
        }
    }

    fn write(&self, attr: &Attr, packed: Option<Packed>) {
        self.uid.store(attr.uid, Relaxed);
        self.gid.store(attr.gid, Relaxed);
        let packed = packed.unwrap_or_else(|| {
            self.or_wide().write(attr);
            Packed::wide(attr)
        });
        // Release: pairs with the Acquire in `nlink`.
        self.counts.store(packed.counts, Release);
        for (cell, time) in self.times.iter().zip(packed.times) {
            cell.store(time, Relaxed);
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
///   bit 0        16     20      24                25              26            27
///   | permission | type | flags | may have an ACL | no capability | ACL changes | wide |
/// ```
fn payload(attr: &Attr) -> u32 {
    u32::from(attr.mode & 0o7777) | (attr.kind as u32) << 16 | u32::from(attr.flags.bits()) << 20
}

/// In the payload: the type, which does not change.
const KIND: u32 = 0xF << 16;

/// In the payload: all that [`payload`] puts there.
const ATTRIBUTES: u32 = (1 << 24) - 1;

/// In the payload: an access ACL is cached, or must be read from the back end.
const MAY_HAVE_ACL: u32 = 1 << 24;

/// In the payload: there is no attribute `security.capability`.
#[doc(alias = "S_NOSEC")]
const NO_CAPS: u32 = 1 << 25;

/// In the payload: the access ACL is being changed, and no answer about it lasts.
const ACL_CHANGES: u32 = 1 << 26;

/// In the payload: all attributes but owner and group are in [`Wide`].
const WIDE: u32 = 1 << 27;

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

#[cfg(test)]
mod tests {
    use super::packed::FIRST_SECOND;
    use super::*;
    use crate::inode::InodeCache;
    use crate::vfs_inode::{Iget, InodeFill, InodeId, InodeKey, VfsInode};
    use std::sync::atomic::AtomicBool;

    /// Attributes that follow from `n`. Some of them fit into few bits, some do not.
    fn attr(n: u32) -> Attr {
        let (rdev, year) = match n % 3 {
            0 => (0, 0),
            1 => (libc::makedev(8, n), 0),
            _ => (0, i64::MAX / 2),
        };
        Attr {
            nlink: n,
            uid: n,
            gid: n,
            size: n.into(),
            rdev,
            mtime: Timestamp {
                sec: -1 - i64::from(n) - year,
                nsec: n,
            },
            ..Attr::new(0, FileType::BlockDevice, n as u16)
        }
    }

    /// A permission check reads one cache line of the inode.
    #[test]
    fn what_decides_about_permissions_is_in_the_first_line() {
        let id = InodeId {
            key: InodeKey::new(1),
            sb: 1,
        };
        let cache = InodeCache::<InodeId, VfsInode>::builder().build();
        let Ok(Iget::New(new)) = cache.iget(id) else {
            panic!("it is the first");
        };
        let inode = new.init(InodeFill::new(attr(0)));
        let rest = std::ptr::from_ref(&inode.attr.counts).addr();
        assert!(rest - inode.shared().address() <= 64);
    }

    /// SEQ-1: what was stored is what is read, whatever it takes to keep it.
    #[test]
    fn attributes_come_back_exactly() {
        let plain = Attr::new(0, FileType::Regular, 0o644);
        let times = [i64::MIN, FIRST_SECOND - 1, FIRST_SECOND, -1, 0, 1 << 31]
            .into_iter()
            .chain([
                (1 << 34) + FIRST_SECOND - 1,
                (1 << 34) + FIRST_SECOND,
                i64::MAX,
            ])
            .flat_map(|sec| [0, 1, 999_999_999, u32::MAX].map(|nsec| Timestamp { sec, nsec }));
        let mut all: Vec<Attr> = times
            .flat_map(|time| {
                let (atime, mtime, ctime, btime) = (time, time, time, time);
                [
                    Attr { atime, ..plain },
                    Attr { mtime, ..plain },
                    Attr { ctime, ..plain },
                    Attr { btime, ..plain },
                ]
            })
            .collect();
        for n in [0, 1, 254, 255, 256, (1 << 24) - 1, 1 << 24, u32::MAX] {
            all.push(Attr { nlink: n, ..plain });
            all.push(Attr {
                blocks: n.into(),
                ..plain
            });
            all.push(Attr {
                size: n.into(),
                ..plain
            });
            all.push(Attr {
                uid: n,
                gid: n ^ 5,
                ..plain
            });
        }
        all.extend([1 << 32, (1 << 56) - 1, u64::MAX].map(|size| Attr { size, ..plain }));
        all.extend([1 << 32, (1 << 56) - 1, u64::MAX].map(|blocks| Attr { blocks, ..plain }));
        let rdev = libc::makedev(0xFFF, 0xF_FFFF);
        all.push(Attr { rdev, ..plain });

        let one = AttrCell::new(&plain, None);
        for attr in &all {
            assert_eq!(AttrCell::new(attr, None).load(), *attr, "SEQ-1: at first");
            one.store(attr);
            assert_eq!(
                (one.load(), one.nlink()),
                (*attr, attr.nlink),
                "SEQ-1: later"
            );
        }
        one.store(&plain);
        assert_eq!(one.load(), plain, "SEQ-1");
        let kept = AttrCell::new(&plain, None);
        kept.store(&Attr { size: 7, ..plain });
        assert!(kept.extra().is_none(), "few bits are enough");
    }

    /// SEQ-1: attributes are all old or all new.
    #[test]
    fn a_change_is_seen_whole() {
        let cell = AttrCell::new(&attr(0), None);
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
                assert!(cell.nlink() >= seen.nlink, "SEQ-1");
                let one = cell.protection();
                let mode = one.mode().into();
                assert_eq!((one.uid, one.gid), (mode, mode), "SEQ-1");
            }
        });
    }
}
