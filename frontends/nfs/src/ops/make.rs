//! CREATE, MKDIR, SYMLINK, MKNOD.
//!
//! An EXCLUSIVE create stores its verifier in the times of the new file, where a client that asks
//! again, also after a restart, is recognised by it. The client sets the times next.

use rcuwalk::{Caps, Error, FileType, LookupFlags, SetAttr, SetTime, Timestamp, VfsPath};

use super::names::is_directory;
use super::{Asked, after_change, answer, checked, read_name};
use crate::attr::{Around, Shown, device, read_change, write_after, write_around};
use crate::opened::For;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Garbage, Reader, Writer};

/// The longest target of a link on the wire; longer ones than the file system has are too long, and no
/// garbage.
const MOST_TARGET: usize = 1 << 14;

/// How CREATE treats a file that is there (`createhow3`).
enum How {
    Unchecked(SetAttr),
    Guarded(SetAttr),
    Exclusive([u8; 8]),
}

pub(super) fn create(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (dir, name) = read_name(reader)?;
    let how = match reader.u32()? {
        0 => How::Unchecked(read_change(reader)?),
        1 => How::Guarded(read_change(reader)?),
        2 => How::Exclusive(reader.fixed()?),
        _ => return Err(Garbage),
    };
    reader.end()?;
    Ok(make(asked, (dir, name), out, |dir, name| {
        let attempt = || match how {
            How::Unchecked(attr) => match asked.create(dir, name, &attr) {
                Err(Status::Exist) => asked.open_existing(dir, name, &attr),
                created => created,
            },
            How::Guarded(attr) => asked.create(dir, name, &attr),
            How::Exclusive(verifier) => asked.create_once(dir, name, verifier),
        };
        // Another process of the host may remove the file between the two looks at it.
        for _ in 0..3 {
            match attempt() {
                Err(Status::NoEnt) => {}
                done => return done,
            }
        }
        attempt()
    }))
}

pub(super) fn mkdir(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (dir, name) = read_name(reader)?;
    let attr = read_change(reader)?;
    reader.end()?;
    Ok(make(asked, (dir, name), out, |dir, name| {
        let ctx = asked.context_in(dir);
        let mode = attr.mode.unwrap_or(0o777);
        let made = asked.export.vfs.mkdir(&ctx, name, mode)?;
        asked.finish(made, &attr)
    }))
}

pub(super) fn symlink(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (dir, name) = read_name(reader)?;
    let attr = read_change(reader)?;
    let target = reader.opaque(MOST_TARGET)?;
    reader.end()?;
    Ok(make(asked, (dir, name), out, |dir, name| {
        let ctx = asked.context_in(dir);
        let made = asked.export.vfs.symlink(&ctx, target, name)?;
        asked.finish(made, &attr)
    }))
}

pub(super) fn mknod(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (dir, name) = read_name(reader)?;
    let kind = match reader.u32()? {
        1 | 2 | 5 => None,
        3 => Some(FileType::BlockDevice),
        4 => Some(FileType::CharDevice),
        6 => Some(FileType::Socket),
        7 => Some(FileType::Fifo),
        _ => return Err(Garbage),
    };
    // Files, directories and links have procedures of their own, and no arguments here.
    let attr = kind.map(|_| read_change(reader)).transpose()?;
    let rdev = match kind {
        Some(FileType::BlockDevice | FileType::CharDevice) => device(reader.u32()?, reader.u32()?),
        _ => 0,
    };
    reader.end()?;
    Ok(make(asked, (dir, name), out, |dir, name| {
        let (kind, attr) = kind.zip(attr).ok_or(Status::BadType)?;
        let ctx = asked.context_in(dir);
        let mode = attr.mode.unwrap_or(0o666);
        let made = asked.export.vfs.mknod(&ctx, name, kind, mode, rdev)?;
        asked.finish(made, &attr)
    }))
}

/// A file that was made, or is there as if it had been.
struct Made {
    path: VfsPath,
    /// Its attributes were set after that.
    was_set: bool,
}

/// The frame of all four: the directory around the change, and the new file in the reply.
fn make(
    asked: &Asked<'_>,
    (dir, name): (&[u8], &[u8]),
    out: &mut Writer,
    change: impl FnOnce(&VfsPath, &[u8]) -> Result<Made>,
) -> Result<()> {
    let mut around = Around::default();
    let made = asked.place(dir).and_then(|dir| {
        is_directory(&dir)?;
        let made;
        (made, around) = asked.changing(&dir, || change(&dir, checked(name, Status::Exist)?));
        let Made { path, was_set } = asked.synced(&dir, made)?;
        if was_set {
            let known = after_change(asked.export.files.of(&path))?;
            asked.sync_attr(&known, &path)?;
        }
        Ok(path)
    });
    let write = |out: &mut Writer, made: VfsPath| {
        // A file that has no handle can still be looked up, with an error that says so.
        let known = asked.export.files.of(&made).ok();
        let attr: Option<Shown> = asked.after(&made);
        out.optional(known, |out, known| out.opaque(known.wire()));
        write_after(out, attr);
        write_around(out, around);
    };
    answer(out, made, write, |out| write_around(out, around))
}

impl Asked<'_> {
    fn create(&self, dir: &VfsPath, name: &[u8], attr: &SetAttr) -> Result<Made> {
        let ctx = self.context_in(dir);
        let made = self.export.vfs.create(&ctx, name, attr.mode.unwrap_or(0))?;
        self.finish(made, attr)
    }

    /// Sets the attributes that a new file does not have from the start. The times and the size of a
    /// new file are its maker's to set, who is not its owner where new files belong to the daemon's
    /// user. Only root gives files away.
    fn finish(&self, path: VfsPath, attr: &SetAttr) -> Result<Made> {
        let mut rest = *attr;
        rest.mode = None;
        rest.size = rest.size.filter(|size| *size > 0);
        if !self.who.caps.contains(Caps::CHOWN) {
            (rest.uid, rest.gid) = (None, None);
        }
        let was_set = rest != SetAttr::default();
        if was_set {
            let daemon = self.daemon_in(&path);
            let flags = LookupFlags::empty();
            after_change(self.export.vfs.setattr(&daemon, &path, &rest, flags))?;
        }
        Ok(Made { path, was_set })
    }

    /// An UNCHECKED create of a file that is there only sets its size.
    fn open_existing(&self, dir: &VfsPath, name: &[u8], attr: &SetAttr) -> Result<Made> {
        let there = self.look_up(dir, name)?;
        match there.inode().kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Exist),
        }
        if let Some(size) = attr.size {
            self.may_as_owner(&there, rcuwalk::Access::WRITE)?;
            let known = self.export.files.of(&there)?;
            let open = self.export.opened.get(&known, For::Writing)?;
            let change = SetAttr::default().size(size);
            open.file.as_user(&self.context()).setattr(&change)?;
        }
        Ok(Made {
            path: there,
            was_set: attr.size.is_some(),
        })
    }

    #[doc(alias = "NFS3_CREATE_EXCLUSIVE")]
    fn create_once(&self, dir: &VfsPath, name: &[u8], verifier: [u8; 8]) -> Result<Made> {
        let export = self.export;
        let times = as_times(verifier);
        // Not 0: a daemon that is not root could not open the file. The owner may use it in any case.
        match export.vfs.create(&self.context_in(dir), name, 0o600) {
            Ok(made) => {
                let attr = SetAttr::default()
                    .atime(SetTime::To(times[0]))
                    .mtime(SetTime::To(times[1]));
                self.finish(made, &attr)
            }
            Err(Error::Exists) => {
                let there = self.look_up(dir, name)?;
                let attr = self.stat(&there)?.attr;
                let is_it = attr.kind == FileType::Regular
                    && attr.size == 0
                    && [attr.atime, attr.mtime] == times;
                match is_it {
                    // The first attempt may not have come to its end.
                    true => Ok(Made {
                        path: there,
                        was_set: true,
                    }),
                    false => Err(Status::Exist),
                }
            }
            Err(err) => Err(err.into()),
        }
    }
}

/// A verifier as two moments that every file system can store.
fn as_times(verifier: [u8; 8]) -> [Timestamp; 2] {
    let number = u64::from_be_bytes(verifier);
    [number >> 32, number].map(|half| Timestamp {
        sec: (half & 0x7fff_ffff) as i64,
        nsec: 0,
    })
}
