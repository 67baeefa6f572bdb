//! READ, WRITE, COMMIT.
//!
//! NFS-2: what a client was told is safe is on the host's disk: the reply to a WRITE that asks for
//! it, and to a COMMIT, is written after fsync(2). Other data is the host's, so it outlives this
//! process; but only the verifier says so to a client, which is another one after each start and
//! after each failure to write. The client sends such data again. A failure counts for all clients of
//! the file, whichever of them is told (`opened.rs`).

use std::sync::Arc;

use rcuwalk::{Access, FileType, VfsPath};

use super::{Asked, answer, read_handle};
use crate::attr::{Around, Shown, write_after, write_around};
use crate::files::Known;
use crate::opened::{For, OpenFile};
use crate::record::MOST_DATA;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Garbage, Reader, Writer};

/// How safe a WRITE asks its data to be (`stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stable {
    Not = 0,
    Data = 1,
    All = 2,
}

pub(super) fn read(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (handle, offset, count) = (read_handle(reader)?, reader.u64()?, reader.u32()?);
    reader.end()?;
    let start = out.len();
    let known = asked.file(handle);
    let done = match &known {
        Ok(known) => asked.read_to(known, (offset, count), out),
        Err(status) => Err(*status),
    };
    if let Err(status) = done {
        out.truncate(start);
        let after = known.ok().and_then(|known| asked.after(&known.path()));
        return Ok(answer(
            out,
            Err::<(), _>(status),
            |_, ()| {},
            |out| {
                write_after(out, after);
            },
        ));
    }
    Ok(Ok(()))
}

impl Asked<'_> {
    /// Writes the whole reply to a READ that succeeds. The data is read to its place in it, behind
    /// a header of known length.
    fn read_to(
        &self,
        known: &Arc<Known>,
        (offset, count): (u64, u32),
        out: &mut Writer,
    ) -> Result<()> {
        let path = known.path();
        self.may_read(&path)?;
        let open = self.export.opened.get(known, For::Reading)?;
        let start = out.len();
        let mut shown = self.stat(&path)?;
        write_read_header(out, shown, 0, false);
        let data = out.len();
        // Not more than there is, or a short file would cost the memory of a long one.
        let left = shown.attr.size.saturating_sub(offset);
        let wanted = u64::from(count)
            .min(left.max(LEAST_READ))
            .min(MOST_DATA as u64) as usize;
        out.bytes.resize(data + wanted, 0);
        let mut read = 0;
        let mut at_end = wanted == 0 && left == 0;
        while read < wanted {
            match open
                .file
                .read_at(&mut out.bytes[data + read..], offset + read as u64)?
            {
                0 => {
                    at_end = true;
                    break;
                }
                more => read += more,
            }
        }
        shown = self.stat(&path)?;
        at_end |= offset.saturating_add(read as u64) >= shown.attr.size;
        out.truncate(data + read);
        out.pad(read);
        let mut header = Writer::default();
        write_read_header(&mut header, shown, read as u32, at_end);
        out.bytes[start..data].copy_from_slice(&header.bytes);
        Ok(())
    }

    /// A program is read to be executed: by a caller that may only do that.
    #[doc(alias = "NFSD_MAY_READ_IF_EXEC")]
    fn may_read(&self, path: &VfsPath) -> Result<()> {
        is_file(path)?;
        match self.may_as_owner(path, Access::READ) {
            Err(Status::Acces) => self.may(path, Access::EXEC),
            decided => decided,
        }
    }
}

/// A file that shows no size (of procfs, say) has contents all the same.
const LEAST_READ: u64 = 4096;

fn write_read_header(out: &mut Writer, shown: Shown, count: u32, at_end: bool) {
    out.u32(0);
    write_after(out, Some(shown));
    out.u32(count);
    out.bool(at_end);
    out.u32(count);
}

fn is_file(path: &VfsPath) -> Result<()> {
    match path.inode().kind() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Status::IsDir),
        _ => Err(Status::Inval),
    }
}

pub(super) fn write(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (handle, offset, count) = (read_handle(reader)?, reader.u64()?, reader.u32()?);
    let stable = match reader.u32()? {
        0 => Stable::Not,
        1 => Stable::Data,
        2 => Stable::All,
        _ => return Err(Garbage),
    };
    let data = reader.opaque(MOST_DATA)?;
    reader.end()?;
    let data = data.get(..count as usize).ok_or(Garbage)?;
    let mut around = Around::default();
    // Before the data is written: if a failure changes it meanwhile, the client has the old one, and
    // sends the data again.
    let verifier = asked.export.verifier();
    let done = asked.file(handle).and_then(|known| {
        let path = known.path();
        is_file(&path)?;
        asked.may_as_owner(&path, Access::WRITE)?;
        let open = asked.export.opened.get(&known, For::Writing)?;
        let failures = known.opened.failures();
        let written;
        (written, around) = asked.changing(&path, || {
            let ctx = asked.context();
            let file = open.file.as_user(&ctx);
            let mut written = 0;
            while written < data.len() {
                match file.write_at(&data[written..], offset.saturating_add(written as u64)) {
                    Ok(0) => break,
                    Ok(more) => written += more,
                    Err(_) if written > 0 => break,
                    Err(err) => return Err(err.into()),
                }
            }
            Ok(written as u32)
        });
        let written = written?;
        match stable {
            Stable::Not => open.is_written(),
            // What this client has not asked to be safe is told by the verifier, but it keeps none for
            // this data.
            _ => asked.safe(&known, &open, stable == Stable::Data, Some(failures))?,
        }
        Ok(written)
    });
    let write = |out: &mut Writer, written| {
        write_around(out, around);
        out.u32(written);
        out.u32(stable as u32);
        out.fixed(&verifier);
    };
    Ok(answer(out, done, write, |out| write_around(out, around)))
}

pub(super) fn commit(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let handle = read_handle(reader)?;
    // Which part of the file does not matter: fsync(2) is for all of it.
    let _range = (reader.u64()?, reader.u32()?);
    reader.end()?;
    let mut around = Around::default();
    let done = asked.file(handle).and_then(|known| {
        let path = known.path();
        is_file(&path)?;
        asked.may_as_owner(&path, Access::WRITE)?;
        let open = asked.export.opened.get(&known, For::Writing)?;
        around.before = asked.before(&path);
        // Before: what is written meanwhile may not be among it.
        open.is_safe();
        let done = asked.safe(&known, &open, false, None);
        around.after = asked.after(&path);
        done?;
        // After: what a failure of before has lost was written under another one.
        Ok(asked.export.verifier())
    });
    let write = |out: &mut Writer, verifier: [u8; 8]| {
        write_around(out, around);
        out.fixed(&verifier);
    };
    Ok(answer(out, done, write, |out| write_around(out, around)))
}

impl Asked<'_> {
    /// Returns when what was written to the file is on disk. The host reports a failure once, to one of
    /// the clients that have written to the file: the others learn by the verifier that they have to
    /// send their data again.
    ///
    /// # Errors
    /// See [`Opened::sync`](crate::opened::Opened::sync).
    #[doc(alias = "nfsd_reset_write_verifier")]
    pub(super) fn safe(
        &self,
        known: &Known,
        open: &OpenFile,
        data_only: bool,
        since: Option<u64>,
    ) -> rcuwalk::Result<()> {
        let failed = || self.export.renew_verifier();
        known.opened.sync(open, data_only, since, failed)
    }
}
