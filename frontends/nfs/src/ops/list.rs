//! READDIR, READDIRPLUS.
//!
//! A cookie is the back end's position after an entry, which no other entry gets, and which stays
//! valid over changes and restarts (DIR-1). So there is nothing that a cookie verifier could tell:
//! it is always zero. Any other one was not given by this server.
//!
//! | cookie         | next entry                                                            |
//! |----------------|-----------------------------------------------------------------------|
//! | 0              | `.`                                                                   |
//! | [`AFTER_DOT`]  | `..`                                                                  |
//! | [`AFTER_DOTS`] | the first entry                                                       |
//! | any other      | the one after the entry with that position                            |

use rcuwalk::{Context, Entries, LookupFlags, OpenFlags, RawEntry, VfsPath};

use super::names::is_directory;
use super::{Asked, answer, read_handle};
use crate::attr::write_after;
use crate::record::MOST_DATA;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Reader, Writer};

/// Too high for a back end that counts entries, and equal to a hash only once in 2^62; not
/// negative, for clients whose positions are signed.
const AFTER_DOT: u64 = 1 << 62 | 1;
const AFTER_DOTS: u64 = 1 << 62 | 2;

const VERIFIER: u64 = 0;

/// Bytes of entries fetched at a time.
const BATCH: usize = 32 * 1024;

/// Behind the last entry: that there is no further one, and whether the directory ends.
const TRAILER: usize = 8;

/// Room for entries in a reply.
struct Room {
    /// The longest that the reply may get.
    end: usize,
    /// How many bytes of names, numbers and cookies it may have.
    names: usize,
    /// With attributes and handles.
    plus: bool,
    entries: usize,
}

pub(super) fn readdir(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (handle, cookie, verifier) = (read_handle(reader)?, reader.u64()?, reader.u64()?);
    let count = reader.u32()?;
    reader.end()?;
    let room = Room {
        end: count as usize,
        names: usize::MAX,
        plus: false,
        entries: 0,
    };
    Ok(list(asked, handle, (cookie, verifier), room, out))
}

pub(super) fn readdirplus(
    asked: &Asked<'_>,
    reader: &mut Reader<'_>,
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let (handle, cookie, verifier) = (read_handle(reader)?, reader.u64()?, reader.u64()?);
    let (names, count) = (reader.u32()?, reader.u32()?);
    reader.end()?;
    let room = Room {
        end: count as usize,
        names: names as usize,
        plus: true,
        entries: 0,
    };
    Ok(list(asked, handle, (cookie, verifier), room, out))
}

fn list(
    asked: &Asked<'_>,
    handle: &[u8],
    from: (u64, u64),
    mut room: Room,
    out: &mut Writer,
) -> Result<()> {
    let start = out.len();
    let dir = asked.place(handle);
    let done = dir.as_ref().map_err(|status| *status).and_then(|dir| {
        is_directory(dir)?;
        // The reply without its status.
        room.end = start + 4 + room.end.min(MOST_DATA);
        out.u32(0);
        write_after(out, asked.after(dir));
        out.u64(VERIFIER);
        let ended = asked.list_to(dir, from, &mut room, out)?;
        out.bool(false);
        out.bool(ended);
        Ok(())
    });
    if let Err(status) = done {
        out.truncate(start);
        let after = dir.ok().and_then(|dir| asked.after(&dir));
        return answer(
            out,
            Err::<(), _>(status),
            |_, ()| {},
            |out| write_after(out, after),
        );
    }
    Ok(())
}

impl Asked<'_> {
    /// Writes entries until there is no room or no entry. Returns whether the directory has ended.
    fn list_to(
        &self,
        dir: &VfsPath,
        (cookie, verifier): (u64, u64),
        room: &mut Room,
        out: &mut Writer,
    ) -> Result<bool> {
        if cookie != 0 && verifier != VERIFIER {
            return Err(Status::BadCookie);
        }
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let ctx = self.context_in(dir);
        let file = self.export.vfs.open(&ctx, dir, flags)?;
        let dots: &[(&[u8], u64)] = match cookie {
            0 => &[(b".", AFTER_DOT), (b"..", AFTER_DOTS)],
            AFTER_DOT => &[(b"..", AFTER_DOTS)],
            _ => &[],
        };
        for (name, next) in dots {
            if !self.put_dot(dir, name, *next, room, out)? {
                return room.full();
            }
        }
        let mut position = match cookie {
            AFTER_DOT | AFTER_DOTS => 0,
            position => position,
        };
        let mut batch = vec![0; BATCH];
        loop {
            let filled = file.fill(position, &mut batch)?;
            if filled == 0 {
                return Ok(true);
            }
            for entry in Entries::new(&batch[..filled]) {
                if !self.put(&ctx, entry, room, out) {
                    return room.full();
                }
                position = entry.next;
            }
        }
    }

    fn put_dot(
        &self,
        dir: &VfsPath,
        name: &[u8],
        next: u64,
        room: &mut Room,
        out: &mut Writer,
    ) -> Result<bool> {
        // The daemon: that there is a directory above is no secret.
        let ctx = self.daemon_in(dir);
        let path = self.export.vfs.lookup(&ctx, name, LookupFlags::empty())?;
        let shown = self.export.shown(&path, path.attr());
        Ok(room.put(out, (shown.fileid, name, next), |out| {
            write_after(out, Some(shown));
            let known = self.export.files.of(&path).ok();
            out.optional(known, |out, known| out.opaque(known.wire()));
        }))
    }

    /// `ctx` is the caller in the directory.
    fn put(&self, ctx: &Context, entry: RawEntry<'_>, room: &mut Room, out: &mut Writer) -> bool {
        let (export, dir) = (self.export, ctx.cwd());
        let head = |fileid| (fileid, entry.name, entry.next);
        if !room.plus {
            return room.put(out, head(dir.number_of(entry.ino)), |_| {});
        }
        // A caller that may not search the directory gets the names alone.
        let found = export.vfs.lookup(ctx, entry.name, LookupFlags::empty());
        let Ok(path) = found else {
            return room.put(out, head(dir.number_of(entry.ino)), |out| {
                write_after(out, None);
                out.bool(false);
            });
        };
        // As fresh as the name that was just looked up.
        let shown = export.shown(&path, path.attr());
        room.put(out, head(shown.fileid), |out| {
            write_after(out, Some(shown));
            let known = export.files.of(&path).ok();
            out.optional(known, |out, known| out.opaque(known.wire()));
        })
    }
}

impl Room {
    /// Writes an entry if there is room for it.
    fn put(
        &mut self,
        out: &mut Writer,
        (fileid, name, cookie): (u64, &[u8], u64),
        plus: impl FnOnce(&mut Writer),
    ) -> bool {
        let start = out.len();
        out.bool(true);
        out.u64(fileid);
        out.opaque(name);
        out.u64(cookie);
        let names = out.len() - start;
        if self.plus {
            plus(out);
        }
        let is_first = self.entries == 0;
        if out.len() + TRAILER > self.end || names > self.names && !is_first {
            out.truncate(start);
            return false;
        }
        self.names = self.names.saturating_sub(names);
        self.entries += 1;
        true
    }

    /// Not even one entry fits, or there are more.
    fn full(&self) -> Result<bool> {
        match self.entries {
            0 => Err(Status::TooSmall),
            _ => Ok(false),
        }
    }
}
