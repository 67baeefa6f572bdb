//! Attributes that writers change as one and readers read as one, without a lock.

use rcuwalk_sync::SeqCount;
use rcuwalk_sync::atomic::*;
use rcuwalk_sync::model::{self, Mutex, spin_loop};

use crate::attr::{Attr, FileType, Timestamp};

/// One inode's attributes under a sequence count (SEQ-1).
///
/// Type and permission bits are the count's payload: the walk gets them with one
/// load.
pub struct AttrCell {
    seq: SeqCount,
    nlink: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    rdev: AtomicU32,
    size: AtomicU64,
    blocks: AtomicU64,
    seconds: [AtomicU64; 4],
    nanoseconds: [AtomicU32; 4],
}

model::fresh_static! {
    /// Serialises writers. One lock for all inodes: attributes change far less often
    /// than they are read, and a lock per inode would cost each of them 8 bytes.
    static WRITERS: Mutex<()> = Mutex::new(());
}

impl AttrCell {
    /// Holds `attr`, less `ino` and `dev`.
    pub fn new(attr: &Attr) -> AttrCell {
        let cell = AttrCell {
            seq: SeqCount::new(payload(attr)),
            nlink: AtomicU32::new(0),
            uid: AtomicU32::new(0),
            gid: AtomicU32::new(0),
            rdev: AtomicU32::new(0),
            size: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            seconds: Default::default(),
            nanoseconds: Default::default(),
        };
        cell.write(attr);
        cell
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
        // Nothing panics under it, and it guards no data of its own.
        let _writers = WRITERS
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.load()
            == (Attr {
                ino: 0,
                dev: 0,
                ..*attr
            })
        {
            // A revalidation that found nothing new leaves readers alone.
            return;
        }
        let mut writer = self.seq.write();
        writer.set_payload(payload(&Attr {
            kind: self.kind(),
            ..*attr
        }));
        self.write(attr);
    }

    /// Owner, group and permission bits of one moment.
    #[inline]
    pub(crate) fn owner_and_mode(&self) -> (u32, u32, u16) {
        loop {
            if let Some(begin) = self.seq.read_begin() {
                let owner = (self.uid.load(Relaxed), self.gid.load(Relaxed));
                if !self.seq.read_retry(begin) {
                    return (owner.0, owner.1, begin.payload() as u16 & 0o7777);
                }
            }
            spin_loop();
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
            nlink: self.nlink.load(Relaxed),
            uid: self.uid.load(Relaxed),
            gid: self.gid.load(Relaxed),
            rdev: decode_dev(self.rdev.load(Relaxed)),
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
        self.rdev.store(encode_dev(attr.rdev), Relaxed);
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

/// Permission bits below, type above.
fn payload(attr: &Attr) -> u32 {
    u32::from(attr.mode & 0o7777) | (attr.kind as u32) << 16
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
    kinds[(payload >> 16) as usize - Regular as usize]
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
                let (uid, gid, mode) = cell.owner_and_mode();
                assert_eq!((uid, gid), (mode.into(), mode.into()), "SEQ-1");
            }
        });
    }
}
