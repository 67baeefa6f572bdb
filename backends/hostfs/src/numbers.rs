//! Inode numbers as users see them: one for each file of all host file systems below the root.
//!
//! NODE-3: two files never have one number, and a file has the same number each time, by
//! whichever of its names it is found.
//!
//! The VFS shows one device for the whole mount, and a host numbers the files of each of its
//! devices from 1 on. Programs take two files of one device and one number for two names of one
//! file: `tar`, `rsync -H` and `cp -a` would make links of files that they should copy. So a
//! file of the root's device keeps its number, and one of another device gets it with an index
//! of the device in the upper bits:
//!
//! ```text
//!  +---+---+--------------+---------------------+
//!  | 0 | 1 | device index | inode number        |
//!  +---+---+--------------+---------------------+
//!   63  62  61          48 47                   0
//! ```
//!
//! A device gets an index when one of its files is first seen, and keeps it as long as the
//! [`HostFs`](crate::HostFs) lives. A number that does not fit (an inode number of more than 48
//! bits, as network file systems and overlays have them; more than 16,383 devices) becomes a
//! hash of device and number in the lower 62 bits: that two of ten million such files share one
//! has a probability of 1 in 90,000.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use rcuwalk::InodeKey;
use rustix::fd::BorrowedFd;

use crate::host::held::statfs;
use crate::identity::host_device;

/// Set in the numbers of files of other devices than the root's. Below the highest bit, which
/// the FUSE front end keeps for itself.
const ELSEWHERE: u64 = 1 << 62;

/// How many bits of an inode number stand beside an index.
const BITS: u32 = 48;

/// Indices that fit beside them; 0 is not given.
const INDICES: u64 = 1 << (62 - BITS);

/// File systems, as statfs(2) calls them, that count up to number their files: tmpfs and btrfs.
/// A number is given again only after 2^32 others (tmpfs with `inode32`), or after the file system
/// was mounted again (the last one on btrfs): never twice within one tick of the clock.
const COUNT_UP: [u64; 2] = [0x0102_1994, 0x9123_683E];

/// File systems that find no names that they do not list: tmpfs, btrfs and ext4. Others may have
/// automounts, `.snapshot`, or names without regard to case; xfs does not tell whether it was made
/// with those.
const LIST_ALL: [u64; 3] = [0x0102_1994, 0x9123_683E, 0xEF53];

/// File systems that give a directory a new ctime with each change of its names: those, and xfs. Not so
/// procfs and its like, and a FUSE server may do as it likes.
const TELL_TIMES: [u64; 4] = [0x0102_1994, 0x9123_683E, 0xEF53, 0x5846_5342];

/// The devices that have been seen, each with its index.
#[derive(Debug)]
pub(crate) struct Numbers {
    root: u64,
    /// The root's file system lists all names that it finds: see [`LIST_ALL`].
    list_all: bool,
    /// The root's file system gives directories ctimes: see [`TELL_TIMES`].
    tell_times: bool,
    /// The root's file system does not reuse numbers.
    count_up: bool,
    others: RwLock<HashMap<u64, u64>>,
}

impl Numbers {
    /// Files of the device of `root`, which `fd` holds, keep their numbers.
    pub(crate) fn of_root(root: InodeKey, fd: BorrowedFd<'_>) -> Numbers {
        let kind = statfs(fd).map(|told| told.kind);
        Numbers {
            root: host_device(root),
            count_up: kind.as_ref().is_ok_and(|kind| COUNT_UP.contains(kind)),
            tell_times: kind.as_ref().is_ok_and(|kind| TELL_TIMES.contains(kind)),
            list_all: kind.is_ok_and(|kind| LIST_ALL.contains(&kind)),
            others: RwLock::default(),
        }
    }

    /// True if the file system of `key` finds no names that it does not list, except in
    /// directories with flags that say otherwise.
    pub(crate) fn list_all(&self, key: InodeKey) -> bool {
        self.list_all && host_device(key) == self.root
    }

    /// True if each change of the names in a directory with that key changes its ctime.
    pub(crate) fn tell_times(&self, key: InodeKey) -> bool {
        self.tell_times && host_device(key) == self.root
    }

    /// True if no other file of the same time of birth ever has the inode number of `key`.
    pub(crate) fn are_given_once(&self, key: InodeKey) -> bool {
        self.count_up && host_device(key) == self.root
    }

    /// The number of the file with the inode number `ino` on the device of `beside`.
    pub(crate) fn number(&self, beside: InodeKey, ino: u64) -> u64 {
        let device = host_device(beside);
        let is_of_root = device == self.root;
        if is_of_root && ino < ELSEWHERE {
            return ino;
        }
        let index = if is_of_root { 0 } else { self.index(device) };
        match (1..INDICES).contains(&index) && ino < 1 << BITS {
            true => ELSEWHERE | index << BITS | ino,
            false => ELSEWHERE | hash(index, ino) & (ELSEWHERE - 1),
        }
    }

    /// Given once; two threads that see a new device at the same moment get the same.
    fn index(&self, device: u64) -> u64 {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(&index) = others.get(&device) {
            return index;
        }
        drop(others);
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        let next = others.len() as u64 + 1;
        *others.entry(device).or_insert(next)
    }
}

/// Every bit of both takes part in every bit of the result (the finisher of splitmix64, twice).
fn hash(index: u64, ino: u64) -> u64 {
    let mix = |word: u64| {
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    mix(mix(ino).wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The number of a file, found by a mount of its device.
    fn number(numbers: &Numbers, mount: u64, device: u64, ino: u64) -> u64 {
        let space = mount << 32 | device;
        numbers.number(InodeKey { ino: 100, space }, ino)
    }

    fn of_root(space: u64) -> Numbers {
        Numbers {
            list_all: false,
            tell_times: false,
            root: host_device(InodeKey { ino: 2, space }),
            count_up: false,
            others: RwLock::default(),
        }
    }

    /// NODE-3: a file of the root's device keeps its number, by whichever mount it is found.
    #[test]
    fn files_of_the_roots_device_keep_their_numbers() {
        let numbers = of_root(1 << 32 | 7);
        for ino in [1, 2, 12, 1 << 40, ELSEWHERE - 1] {
            assert_eq!(number(&numbers, 1, 7, ino), ino);
            assert_eq!(number(&numbers, 9, 7, ino), ino, "a bind mount");
        }
    }

    /// NODE-3: no two devices share a number, and each number is the same the second time.
    #[test]
    fn no_two_files_have_one_number() {
        let numbers = of_root(1 << 32 | 7);
        let inos = [1, 2, 3, (1 << 48) - 1, 1 << 48, ELSEWHERE, u64::MAX];
        let devices = 0..20_000;
        let mut seen = HashSet::new();
        for device in devices.clone() {
            for ino in inos {
                let number = number(&numbers, 1, device, ino);
                assert!(number < 1 << 63, "NODE-3: FUSE keeps the highest bit");
                assert!(seen.insert(number), "NODE-3: {device} {ino}");
            }
        }
        for device in devices {
            assert!(!seen.insert(number(&numbers, 2, device, 1)), "NODE-3");
        }
    }
}
