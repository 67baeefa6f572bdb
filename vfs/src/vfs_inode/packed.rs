//! Attributes in few bits, and those that do not fit.

use std::sync::atomic::Ordering::Relaxed;

use super::extra::Wide;
use crate::attr::{Attr, FileType, Timestamp};

/// Attributes in few bits, if they fit.
pub(super) struct Packed {
    /// ```text
    ///   bit 0    32       56      64
    ///   | size   | blocks | nlink |
    /// ```
    pub(super) counts: u64,
    pub(super) times: [u64; 4],
}

const BLOCKS: u32 = 32;
const NLINK: u32 = 56;
/// This many names, or more: see [`Wide`].
const MANY_NAMES: u32 = 255;

/// The times that fit begin here, in seconds: in 1901. They end in 2446. It is the range of
/// ext4, which has as many bits.
pub(super) const FIRST_SECOND: i64 = -(1 << 31);
const SECOND_BITS: u32 = 34;
const NANOSECOND_BITS: u32 = 30;

/// True if these attributes fit into few bits.
pub(super) fn fits(attr: &Attr) -> bool {
    Packed::of(attr).is_some()
}

impl Packed {
    #[inline]
    pub(super) fn of(attr: &Attr) -> Option<Packed> {
        let has_number = attr.rdev != 0 && attr.kind != FileType::Directory;
        let [a, m, c, b] = times_of(attr);
        let fits = attr.size < 1 << BLOCKS
            && attr.blocks < 1 << (NLINK - BLOCKS)
            && attr.nlink < MANY_NAMES
            && !has_number
            && fits_packed(a)
            && fits_packed(m)
            && fits_packed(c)
            && fits_packed(b);
        fits.then(|| Packed {
            counts: attr.size | attr.blocks << BLOCKS | u64::from(attr.nlink) << NLINK,
            times: [pack_time(a), pack_time(m), pack_time(c), pack_time(b)],
        })
    }

    /// What is kept here of attributes that do not fit.
    pub(super) fn wide(attr: &Attr) -> Packed {
        Packed {
            counts: u64::from(attr.nlink.min(MANY_NAMES)) << NLINK,
            times: [0; 4],
        }
    }

    /// `attr` with what is here.
    #[inline]
    pub(super) fn onto(&self, attr: Attr) -> Attr {
        let [a, m, c, b] = self.times;
        Attr {
            nlink: (self.counts >> NLINK) as u32,
            size: self.counts & ((1 << BLOCKS) - 1),
            blocks: self.counts >> BLOCKS & ((1 << (NLINK - BLOCKS)) - 1),
            atime: unpack_time(a),
            mtime: unpack_time(m),
            ctime: unpack_time(c),
            btime: unpack_time(b),
            ..attr
        }
    }
}

/// The number of names in [`Packed::counts`]; `None` if it is too large for it.
#[inline]
pub(super) fn nlink(counts: u64) -> Option<u32> {
    let nlink = (counts >> NLINK) as u32;
    (nlink < MANY_NAMES).then_some(nlink)
}

#[inline]
fn times_of(attr: &Attr) -> [Timestamp; 4] {
    [attr.atime, attr.mtime, attr.ctime, attr.btime]
}

#[inline]
fn fits_packed(time: Timestamp) -> bool {
    let since = time.sec.wrapping_sub(FIRST_SECOND).cast_unsigned();
    since < 1 << SECOND_BITS && time.nsec < 1 << NANOSECOND_BITS
}

#[inline]
fn pack_time(time: Timestamp) -> u64 {
    let since = time.sec.wrapping_sub(FIRST_SECOND).cast_unsigned();
    since << NANOSECOND_BITS | u64::from(time.nsec)
}

#[inline]
fn unpack_time(packed: u64) -> Timestamp {
    Timestamp {
        sec: (packed >> NANOSECOND_BITS) as i64 + FIRST_SECOND,
        nsec: (packed & ((1 << NANOSECOND_BITS) - 1)) as u32,
    }
}

impl Wide {
    /// `attr` with what is here.
    #[cold]
    pub(super) fn read(&self, attr: Attr) -> Attr {
        let time = |n: usize| Timestamp {
            sec: self.seconds[n].load(Relaxed) as i64,
            nsec: self.nanoseconds[n].load(Relaxed),
        };
        Attr {
            nlink: self.nlink.load(Relaxed),
            rdev: decode_dev(self.rdev.load(Relaxed)),
            size: self.size.load(Relaxed),
            blocks: self.blocks.load(Relaxed),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
            ..attr
        }
    }

    #[cold]
    pub(super) fn write(&self, attr: &Attr) {
        self.nlink.store(attr.nlink, Relaxed);
        let rdev = match attr.kind {
            FileType::Directory => 0,
            _ => attr.rdev,
        };
        self.rdev.store(encode_dev(rdev), Relaxed);
        self.size.store(attr.size, Relaxed);
        self.blocks.store(attr.blocks, Relaxed);
        for (n, time) in times_of(attr).iter().enumerate() {
            self.seconds[n].store(time.sec as u64, Relaxed);
            self.nanoseconds[n].store(time.nsec, Relaxed);
        }
    }
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
