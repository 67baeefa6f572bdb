//! Attributes on the wire: `fattr3`, `sattr3`, and what is said of them before and after a change.

use rcuwalk::{Attr, FileType, SetAttr, SetTime, Timestamp};
use rustix::fs::{major, makedev, minor};

use crate::xdr::{Decoded, Garbage, Reader, Writer};

/// Attributes as clients see them: with the number that no other file of the export has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) attr: Attr,
    pub(crate) fileid: u64,
    pub(crate) fsid: u64,
}

/// What a client compares to learn whether only its own change has happened (`wcc_attr`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

/// Attributes of one file before and after a change (`wcc_data`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around {
    pub(crate) before: Option<Before>,
    pub(crate) after: Option<Shown>,
}

impl From<&Attr> for Before {
    fn from(attr: &Attr) -> Before {
        Before {
            size: attr.size,
            mtime: attr.mtime,
            ctime: attr.ctime,
        }
    }
}

fn kind_number(kind: FileType) -> u32 {
    match kind {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::BlockDevice => 3,
        FileType::CharDevice => 4,
        FileType::Symlink => 5,
        FileType::Socket => 6,
        FileType::Fifo => 7,
    }
}

fn write_time(out: &mut Writer, time: Timestamp) {
    // The wire has neither 1969 nor 2107.
    out.u32(time.sec.clamp(0, i64::from(u32::MAX)) as u32);
    out.u32(time.nsec);
}

/// A moment on the wire.
pub(crate) fn read_time(reader: &mut Reader<'_>) -> Decoded<Timestamp> {
    Ok(Timestamp {
        sec: i64::from(reader.u32()?),
        nsec: reader.u32()?,
    })
}

/// True if both are the same moment on the wire.
pub(crate) fn is_same_time(a: Timestamp, b: Timestamp) -> bool {
    a.nsec == b.nsec && a.sec.clamp(0, i64::from(u32::MAX)) == b.sec
}

/// `fattr3`.
pub(crate) fn write_attr(out: &mut Writer, shown: Shown) {
    let Shown { attr, fileid, fsid } = shown;
    let numbers = [
        kind_number(attr.kind),
        u32::from(attr.mode),
        attr.nlink,
        attr.uid,
        attr.gid,
    ];
    numbers.iter().for_each(|number| out.u32(*number));
    out.u64(attr.size);
    out.u64(attr.blocks.saturating_mul(512));
    out.u32(major(attr.rdev));
    out.u32(minor(attr.rdev));
    out.u64(fsid);
    out.u64(fileid);
    for time in [attr.atime, attr.mtime, attr.ctime] {
        write_time(out, time);
    }
}

/// `post_op_attr`.
pub(crate) fn write_after(out: &mut Writer, shown: Option<Shown>) {
    out.optional(shown, write_attr);
}

/// `wcc_data`.
pub(crate) fn write_around(out: &mut Writer, around: Around) {
    out.optional(around.before, |out, before| {
        out.u64(before.size);
        write_time(out, before.mtime);
        write_time(out, before.ctime);
    });
    write_after(out, around.after);
}

/// `sattr3`.
pub(crate) fn read_change(reader: &mut Reader<'_>) -> Decoded<SetAttr> {
    let mut change = SetAttr::default();
    // More bits than there are in a mode are ignored, as Linux does.
    change.mode = reader
        .optional(Reader::u32)?
        .map(|mode| (mode & 0o7777) as u16);
    change.uid = reader.optional(Reader::u32)?;
    change.gid = reader.optional(Reader::u32)?;
    change.size = reader.optional(Reader::u64)?;
    change.atime = read_set_time(reader)?;
    change.mtime = read_set_time(reader)?;
    Ok(change)
}

fn read_set_time(reader: &mut Reader<'_>) -> Decoded<Option<SetTime>> {
    match reader.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => Ok(Some(SetTime::To(read_time(reader)?))),
        _ => Err(Garbage),
    }
}

/// A device's number from its two parts on the wire.
pub(crate) fn device(major: u32, minor: u32) -> u64 {
    makedev(major, minor)
}
