//! Operations on open files and their contents.

use rustix::fs::{FallocateFlags, OFlags};

use super::choose::Wish;
use super::guess::{Kind, Use};
use super::{Planner, Sticky};
use crate::changes::op::{Op, SLOTS};

impl Planner {
    pub(super) fn open(&mut self) -> Op {
        let mut flags = OFlags::empty();
        for (flag, percent) in [
            (OFlags::CREATE, 35),
            (OFlags::EXCL, 8),
            (OFlags::TRUNC, 12),
            (OFlags::APPEND, 12),
            (OFlags::NOFOLLOW, 8),
            (OFlags::DIRECTORY, 6),
            (OFlags::PATH, 8),
            (OFlags::TMPFILE, 7),
            (OFlags::NOATIME, 5),
        ] {
            if self.rng.chance(percent) {
                flags |= flag;
            }
        }
        let mut ways = vec![OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR];
        let wish = if flags.contains(OFlags::TMPFILE) {
            ways.remove(0);
            Wish::Is(Kind::Dir)
        } else if flags.contains(OFlags::DIRECTORY) {
            ways = vec![OFlags::RDONLY; 3];
            Wish::Is(Kind::Dir)
        } else if flags.contains(OFlags::CREATE) && self.rng.chance(50) {
            match self.shape.sticky {
                Sticky::Protected if self.rng.chance(60) => Wish::NoDir,
                _ => Wish::Free,
            }
        } else if self.rng.chance(85) {
            Wish::Is(Kind::File)
        } else {
            Wish::Any
        };
        if self.rng.chance(5) {
            ways = vec![OFlags::RDONLY, OFlags::RDWR];
        }
        flags |= *self.rng.pick(&ways);
        Op::Open {
            slot: self.rng.below(SLOTS),
            path: self.path(wish),
            flags,
            mode: self.mode(Kind::File),
        }
    }

    pub(super) fn close(&mut self) -> Op {
        let slot = self.slot();
        Op::Close { slot }
    }

    pub(super) fn read(&mut self) -> Op {
        let (slot, at) = (self.slot_for(Use::Read), self.offset());
        let len = self.length();
        Op::Read { slot, at, len }
    }

    pub(super) fn write(&mut self) -> Op {
        let (slot, at) = (self.slot_for(Use::Write), self.near_offset());
        Op::Write {
            slot,
            at,
            len: self.length(),
            fill: self.rng.between(1, 255) as u8,
        }
    }

    pub(super) fn set_len(&mut self) -> Op {
        let (slot, len) = (self.slot_for(Use::Write), self.offset());
        Op::SetLen { slot, len }
    }

    pub(super) fn truncate(&mut self) -> Op {
        Op::Truncate {
            path: self.path(Wish::Is(Kind::File)),
            len: match self.offset() {
                0.. if self.shape.on_host => self.rng.between(1, 50_000) as i64,
                len => len,
            },
        }
    }

    pub(super) fn allocate(&mut self) -> Op {
        use FallocateFlags as Flags;
        let modes = [
            Flags::empty(),
            Flags::empty(),
            Flags::KEEP_SIZE,
            Flags::PUNCH_HOLE | Flags::KEEP_SIZE,
            Flags::PUNCH_HOLE | Flags::KEEP_SIZE,
            Flags::PUNCH_HOLE,
            Flags::ZERO_RANGE,
            Flags::ZERO_RANGE | Flags::KEEP_SIZE,
            Flags::COLLAPSE_RANGE,
            Flags::INSERT_RANGE,
            Flags::UNSHARE_RANGE,
            Flags::from_bits_retain(0x1000),
        ];
        Op::Allocate {
            slot: self.slot_for(Use::Write),
            mode: *self.rng.pick(&modes),
            at: self.near_offset(),
            // Nothing that a small device has no room for.
            len: *self
                .rng
                .pick(&[0, 1, 100, 4096, 4096, 8192, 10_000, 65_536, -1]),
        }
    }

    pub(super) fn seek(&mut self) -> Op {
        // The result of a negative one depends on the file system; here it cannot be asked for.
        let (slot, at) = (self.slot_for(Use::Read), self.offset().max(0));
        if self.rng.chance(50) {
            Op::SeekData { slot, at }
        } else {
            Op::SeekHole { slot, at }
        }
    }

    pub(super) fn sync(&mut self) -> Op {
        Op::Sync {
            slot: self.slot(),
            data_only: self.rng.chance(50),
        }
    }
}
