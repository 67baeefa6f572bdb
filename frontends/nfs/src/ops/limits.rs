//! FSSTAT, FSINFO, PATHCONF.

use rcuwalk::VfsPath;

use super::{Asked, answer, read_handle};
use crate::attr::write_after;
use crate::record::MOST_DATA;
use crate::status::Result;
use crate::xdr::{Decoded, Reader, Writer};

/// Links, symbolic links, the same PATHCONF for all files, and times that can be set.
const PROPERTIES: u32 = 1 | 2 | 8 | 16;
/// Preferred bytes of a READDIR.
const PREFERRED_LIST: u32 = 64 * 1024;
/// Names that a file may have, as far as is known: the host says so when there are too many.
const MOST_LINKS: u32 = 32_000;

pub(super) fn fsstat(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    about(asked, reader, out, |path| {
        let export = asked.export;
        let fs = export.vfs.statfs(&export.daemon, path)?;
        let bytes = move |blocks: u64| blocks.saturating_mul(u64::from(fs.block_size));
        Ok(move |out: &mut Writer| {
            for blocks in [fs.blocks, fs.blocks_free, fs.blocks_available] {
                out.u64(bytes(blocks));
            }
            for files in [fs.files, fs.files_free, fs.files_free] {
                out.u64(files);
            }
            // For how long this is true: nothing is promised.
            out.u32(0);
        })
    })
}

pub(super) fn fsinfo(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    about(asked, reader, out, |_| {
        Ok(|out: &mut Writer| {
            let (most, unit) = (MOST_DATA as u32, 4096);
            for number in [most, most, unit, most, most, unit, PREFERRED_LIST] {
                out.u32(number);
            }
            out.u64(i64::MAX as u64);
            // The time between two moments of the file system: not known, and the least.
            out.u32(0);
            out.u32(1);
            out.u32(PROPERTIES);
        })
    })
}

pub(super) fn pathconf(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    about(asked, reader, out, |path| {
        let export = asked.export;
        let name_max = export.vfs.statfs(&export.daemon, path)?.name_max;
        Ok(move |out: &mut Writer| {
            out.u32(MOST_LINKS);
            out.u32(name_max);
            // Long names are refused; only root gives files away; case counts, and stays.
            for is in [true, true, false, true] {
                out.bool(is);
            }
        })
    })
}

/// The frame of all three: a handle, its attributes, and the answer.
fn about<W: FnOnce(&mut Writer)>(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
    answer_of: impl FnOnce(&VfsPath) -> Result<W>,
) -> Decoded<Result<()>> {
    let handle = read_handle(reader)?;
    reader.end()?;
    let mut after = None;
    let found = asked.place(handle).and_then(|path| {
        after = asked.after(&path);
        answer_of(&path)
    });
    let write = |out: &mut Writer, rest: W| {
        write_after(out, after);
        rest(out);
    };
    Ok(answer(out, found, write, |out| write_after(out, after)))
}
