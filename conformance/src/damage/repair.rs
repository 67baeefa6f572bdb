//! Checksums put right: of every structure of the layout, whatever its contents are now.
//!
//! The seed of a checksum (the super block's number, an inode's generation) and its place
//! (behind a table whose length may have been changed) are taken from the damaged image, as a
//! reader would take them.

use super::layout::{Kind, Layout, Spot, be32_at, u16_at, u32_at};

/// crc32c as the format has it: not inverted, neither before nor after.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Puts all of them right that the image has.
pub(crate) fn all(layout: &Layout, bytes: &mut [u8]) {
    let sb = &bytes[1024..2048];
    let ro_compat = u32_at(sb, 0x64);
    let has_checksums = ro_compat & 0x400 != 0;
    let seed = match u32_at(sb, 0x60) & 0x2000 {
        0 => crc32c(!0, &sb[0x68..0x78]),
        _ => u32_at(sb, 0x270),
    };
    let owners = Owners::of(layout, bytes, seed);
    if has_checksums {
        for spot in &layout.spots {
            let place = &mut bytes[spot.at..spot.at + spot.len];
            let number = (spot.at / layout.block_size) as u64;
            repair(spot, place, seed, owners.seed(spot.number), number);
        }
    } else if ro_compat & 0x10 != 0 {
        old_groups(layout, bytes);
    }
    journal(layout, bytes);
}

/// The checksums' seeds of inodes.
struct Owners(Vec<(u32, u32)>);

impl Owners {
    fn of(layout: &Layout, bytes: &[u8], seed: u32) -> Owners {
        let inodes = layout.spots_of(Kind::Inode).map(|spot| {
            let crc = crc32c(seed, &spot.number.to_le_bytes());
            let generation = &bytes[spot.at + 0x64..spot.at + 0x68];
            (spot.number, crc32c(crc, generation))
        });
        Owners(inodes.collect())
    }

    fn seed(&self, ino: u32) -> u32 {
        let place = self.0.binary_search_by_key(&ino, |owner| owner.0);
        place.map_or(0, |place| self.0[place].1)
    }
}

fn repair(spot: &Spot, bytes: &mut [u8], seed: u32, owner: u32, block: u64) {
    let length = bytes.len();
    match spot.kind {
        Kind::SuperBlock => put(bytes, 0x3fc, 4, |bytes| crc32c(!0, &bytes[..0x3fc])),
        Kind::Group => put(bytes, 0x1e, 2, |bytes| {
            crc32c(crc32c(seed, &spot.number.to_le_bytes()), bytes)
        }),
        Kind::Inode => inode(bytes, owner),
        Kind::ExtentNode => {
            let tail = 12 + 12 * usize::from(u16_at(bytes, 4));
            put(bytes, tail, 4, |bytes| crc32c(owner, &bytes[..tail]));
        }
        Kind::Directory => put(bytes, length - 4, 4, |bytes| {
            crc32c(owner, &bytes[..length - 12])
        }),
        Kind::IndexRoot => index(bytes, 24 + 8, owner),
        Kind::IndexNode => index(bytes, 8, owner),
        Kind::AttributeBlock => put(bytes, 16, 4, |bytes| {
            crc32c(crc32c(seed, &block.to_le_bytes()), bytes)
        }),
        _ => {}
    }
}

/// Computes a checksum with zeros in its own place, and puts it there, if there is room.
fn put(bytes: &mut [u8], at: usize, width: usize, sum: impl FnOnce(&[u8]) -> u32) {
    match bytes.get_mut(at..at + width) {
        Some(field) => field.fill(0),
        None => return,
    }
    let sum = sum(bytes).to_le_bytes();
    bytes[at..at + width].copy_from_slice(&sum[..width]);
}

fn inode(bytes: &mut [u8], owner: u32) {
    let wide = bytes.len() > 128 && u16_at(bytes, 0x80) >= 4;
    bytes[0x7c..0x7e].fill(0);
    if wide {
        bytes[0x82..0x84].fill(0);
    }
    let sum = crc32c(owner, bytes).to_le_bytes();
    bytes[0x7c..0x7e].copy_from_slice(&sum[..2]);
    if wide {
        bytes[0x82..0x84].copy_from_slice(&sum[2..]);
    }
}

fn index(bytes: &mut [u8], start: usize, owner: u32) {
    let (limit, count) = (u16_at(bytes, start), u16_at(bytes, start + 2));
    let (end, tail) = (
        start + usize::from(count) * 8,
        start + usize::from(limit) * 8,
    );
    if end <= bytes.len() && tail + 8 <= bytes.len() {
        put(bytes, tail + 4, 4, |bytes| {
            let crc = crc32c(crc32c(owner, &bytes[..end]), &bytes[tail..tail + 4]);
            crc32c(crc, &[0; 4])
        });
    }
}

/// crc16 of group descriptors, from before metadata_csum.
fn old_groups(layout: &Layout, bytes: &mut [u8]) {
    let crc16 = |seed: u16, bytes: &[u8]| {
        bytes.iter().fold(seed, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte), |crc, _| match crc & 1 {
                1 => crc >> 1 ^ 0xa001,
                _ => crc >> 1,
            })
        })
    };
    let uuid = crc16(!0, &bytes[1024 + 0x68..1024 + 0x78]);
    for spot in layout.spots_of(Kind::Group) {
        let group = &mut bytes[spot.at..spot.at + spot.len];
        let crc = crc16(uuid, &spot.number.to_le_bytes());
        let crc = crc16(crc16(crc, &group[..0x1e]), &group[0x20..]);
        group[0x1e..0x20].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The journal's, if it has the second or the third kind.
fn journal(layout: &Layout, bytes: &mut [u8]) {
    let Some(sb) = layout.spots_of(Kind::JournalSuper).next() else {
        return;
    };
    let incompat = be32_at(bytes, sb.at + 0x28);
    if incompat & 0x18 == 0 {
        return;
    }
    let put_be = |bytes: &mut [u8], at: usize, sum: fn(u32, &[u8]) -> u32, seed: u32| {
        bytes[at..at + 4].fill(0);
        let sum = sum(seed, bytes).to_be_bytes();
        bytes[at..at + 4].copy_from_slice(&sum);
    };
    put_be(&mut bytes[sb.at..sb.at + 1024], 0xfc, crc32c, !0);
    let seed = crc32c(!0, &bytes[sb.at + 0x30..sb.at + 0x40]);
    for spot in layout.spots_of(Kind::JournalDescriptor) {
        tags(layout, spot, bytes, incompat, seed);
    }
    for spot in &layout.spots {
        let block = &mut bytes[spot.at..spot.at + spot.len];
        match spot.kind {
            Kind::JournalDescriptor | Kind::JournalRevoke => {
                let tail = spot.len - 4;
                put_be(block, tail, crc32c, seed);
            }
            Kind::JournalCommit => put_be(block, 16, crc32c, seed),
            _ => {}
        }
    }
}

/// The checksums that a descriptor block has of the blocks behind it.
fn tags(layout: &Layout, descriptor: &Spot, bytes: &mut [u8], incompat: u32, seed: u32) {
    let v3 = incompat & 0x10 != 0;
    let size = match (v3, incompat & 2 != 0) {
        (true, _) => 16,
        (false, true) => 14,
        (false, false) => 10,
    };
    let sequence = bytes[descriptor.at + 8..descriptor.at + 12].to_vec();
    let mut at = descriptor.at + 12;
    let end = descriptor.at + descriptor.len - 4;
    for number in descriptor.number + 1.. {
        let data = layout
            .spots
            .iter()
            .find(|spot| spot.kind == Kind::JournalData && spot.number == number);
        let Some(data) = data.filter(|_| at + size <= end) else {
            return;
        };
        let contents = &bytes[data.at..data.at + data.len];
        let sum = crc32c(crc32c(seed, &sequence), contents).to_be_bytes();
        let flags = match v3 {
            true => {
                bytes[at + 12..at + 16].copy_from_slice(&sum);
                be32_at(bytes, at + 4)
            }
            false => {
                bytes[at + 4..at + 6].copy_from_slice(&sum[2..]);
                u32::from(bytes[at + 7])
            }
        };
        at += size;
        if flags & 2 == 0 {
            at += 16;
        }
        if flags & 8 != 0 {
            return;
        }
    }
}
