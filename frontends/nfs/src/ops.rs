//! The procedures of NFSv3 (RFC 1813): each reads its arguments, makes its calls of the
//! [`Vfs`](rcuwalk::Vfs) on behalf of the caller, and writes its reply.
//!
//! | read            | to learn                                                  |
//! |-----------------|-----------------------------------------------------------|
//! | this file       | the table of procedures, and what they have in common     |
//! | `ops/attr.rs`   | GETATTR, SETATTR, ACCESS, READLINK                        |
//! | `ops/names.rs`  | LOOKUP, REMOVE, RMDIR, RENAME, LINK                       |
//! | `ops/make.rs`   | CREATE, MKDIR, SYMLINK, MKNOD                             |
//! | `ops/data.rs`   | READ, WRITE, COMMIT                                       |
//! | `ops/list.rs`   | READDIR, READDIRPLUS                                      |
//! | `ops/limits.rs` | FSSTAT, FSINFO, PATHCONF                                  |

mod attr;
mod data;
mod limits;
mod list;
mod make;
mod names;

use std::sync::Arc;

use rcuwalk::{Access, Context, Credentials, Error, LookupFlags, Name, VfsPath};

use crate::attr::{Around, Before, Shown};
use crate::caller::credentials;
use crate::export::Export;
use crate::files::{Known, MOST_BYTES};
use crate::rpc::User;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Reader, Writer};

/// The longest name on the wire; longer ones than the file system has are too long, and no garbage.
const MOST_NAME: usize = 4096;

/// A procedure: its name, and whether a second execution would have another effect.
pub(crate) struct Procedure {
    pub(crate) name: &'static str,
    /// Its reply is kept for a while (NFS-3).
    pub(crate) once: bool,
    run: fn(&Asked<'_>, &mut Reader<'_>, &mut Writer) -> Decoded<Result<()>>,
}

const fn again(
    name: &'static str,
    run: fn(&Asked<'_>, &mut Reader<'_>, &mut Writer) -> Decoded<Result<()>>,
) -> Procedure {
    Procedure {
        name,
        once: false,
        run,
    }
}

const fn once(
    name: &'static str,
    run: fn(&Asked<'_>, &mut Reader<'_>, &mut Writer) -> Decoded<Result<()>>,
) -> Procedure {
    Procedure {
        name,
        once: true,
        run,
    }
}

/// By number.
pub(crate) const PROCEDURES: [Procedure; 22] = [
    again("null", |_, _, _| Ok(Ok(()))),
    again("getattr", attr::getattr),
    once("setattr", attr::setattr),
    again("lookup", names::lookup),
    again("access", attr::access),
    again("readlink", attr::readlink),
    again("read", data::read),
    once("write", data::write),
    once("create", make::create),
    once("mkdir", make::mkdir),
    once("symlink", make::symlink),
    once("mknod", make::mknod),
    once("remove", names::remove),
    once("rmdir", names::rmdir),
    once("rename", names::rename),
    once("link", names::link),
    again("readdir", list::readdir),
    again("readdirplus", list::readdirplus),
    again("fsstat", limits::fsstat),
    again("fsinfo", limits::fsinfo),
    again("pathconf", limits::pathconf),
    again("commit", data::commit),
];

impl Procedure {
    /// Runs the procedure, and writes its result behind the header in `out`.
    ///
    /// # Errors
    /// [`crate::xdr::Garbage`] if the arguments are malformed; nothing was done then. The status
    /// that the reply has.
    pub(crate) fn run(
        &self,
        export: &Export,
        user: &User,
        args: &[u8],
        out: &mut Writer,
    ) -> Decoded<Result<()>> {
        let mut asked = Asked {
            export,
            who: credentials(user, export.options.squash),
            reopens: false,
        };
        let start = out.len();
        let done = (self.run)(&asked, &mut Reader::new(args), out)?;
        if done != Err(Status::Stale) {
            return Ok(done);
        }
        // Something that is held may be outdated: the host has another file of that name by now.
        // The handle itself says whether the file is still there. The VFS has changed nothing: it
        // says "stale" before the change, and what follows one does not (`after_change`).
        asked.reopens = true;
        out.truncate(start);
        (self.run)(&asked, &mut Reader::new(args), out)
    }
}

/// A request: on whose behalf, and of what.
pub(crate) struct Asked<'e> {
    export: &'e Export,
    who: Credentials,
    /// Each file is opened by its handle anew: the second attempt, after a stale answer.
    reopens: bool,
}

impl Asked<'_> {
    /// The file of a handle.
    fn file(&self, wire: &[u8]) -> Result<Arc<Known>> {
        let files = &self.export.files;
        let found = match self.reopens {
            true => files.find_again(wire),
            false => files.find(wire),
        };
        Ok(found?)
    }

    /// Where the file of a handle is.
    fn place(&self, wire: &[u8]) -> Result<VfsPath> {
        Ok(self.file(wire)?.path())
    }

    /// The caller, at the root.
    fn context(&self) -> Context {
        Context::within(self.export.root.clone(), self.who.clone())
    }

    /// The caller, in a directory.
    fn context_in(&self, dir: &VfsPath) -> Context {
        self.context().with_cwd(dir.clone())
    }

    /// The daemon, in a directory: for the parts of a change that the caller has the right to by
    /// having the right to the change.
    fn daemon_in(&self, dir: &VfsPath) -> Context {
        self.export.daemon.clone().with_cwd(dir.clone())
    }

    fn stat(&self, path: &VfsPath) -> Result<Shown> {
        let export = self.export;
        let attr = export
            .vfs
            .stat(&export.daemon, path, LookupFlags::empty())?;
        Ok(export.shown(path, attr))
    }

    /// Attributes that a reply has if they are known.
    fn after(&self, path: &VfsPath) -> Option<Shown> {
        self.stat(path).ok()
    }

    fn may(&self, path: &VfsPath, wanted: Access) -> Result<()> {
        let flags = LookupFlags::EACCESS;
        Ok(self
            .export
            .vfs
            .access(&self.context(), path, wanted, flags)?)
    }

    /// Like [`may`](Self::may); the owner of a file may read and write it whatever its mode says.
    /// There is no "open" in the protocol that it could have succeeded at before a chmod.
    #[doc(alias = "NFSD_MAY_OWNER_OVERRIDE")]
    fn may_as_owner(&self, path: &VfsPath, wanted: Access) -> Result<()> {
        match self.may(path, wanted) {
            Err(Status::Acces) if self.who.uid == path.attr().uid => Ok(()),
            decided => decided,
        }
    }

    /// Runs a change of a directory or file, in its turn (NFS-1).
    fn changing<T>(
        &self,
        path: &VfsPath,
        change: impl FnOnce() -> Result<T>,
    ) -> (Result<T>, Around) {
        let _turn = self.export.turns.of(path.inode());
        let before = self.before(path);
        let done = change();
        let after = self.after(path);
        (done, Around { before, after })
    }

    fn before(&self, path: &VfsPath) -> Option<Before> {
        let shown = self.stat(path).ok()?;
        Some(Before::from(&shown.attr))
    }

    /// Returns when a change of names in `dir` is on disk, if it was made.
    fn synced<T>(&self, dir: &VfsPath, done: Result<T>) -> Result<T> {
        let done = done?;
        after_change(self.export.sync_dir(dir))?;
        Ok(done)
    }
}

/// The result of what follows a change that was made. It must not have the change made again: by us,
/// as [`Procedure::run`] does if something is stale, or by the client, which is asked to by "try again
/// later" (NFS-3).
fn after_change<T>(done: rcuwalk::Result<T>) -> Result<T> {
    done.map_err(|err| match Status::from(err) {
        Status::Stale | Status::Jukebox => Status::Io,
        status => status,
    })
}

/// Writes status and body of a reply.
fn answer<T>(
    out: &mut Writer,
    done: Result<T>,
    success: impl FnOnce(&mut Writer, T),
    failure: impl FnOnce(&mut Writer),
) -> Result<()> {
    match done {
        Ok(result) => {
            out.u32(0);
            success(out, result);
            Ok(())
        }
        Err(status) => {
            out.u32(status as u32);
            failure(out);
            Err(status)
        }
    }
}

/// `nfs_fh3`.
fn read_handle<'a>(reader: &mut Reader<'a>) -> Decoded<&'a [u8]> {
    reader.opaque(MOST_BYTES)
}

/// `diropargs3`: the handle of a directory, and a name in it.
fn read_name<'a>(reader: &mut Reader<'a>) -> Decoded<(&'a [u8], &'a [u8])> {
    Ok((read_handle(reader)?, reader.opaque(MOST_NAME)?))
}

/// The name of a file that is made, moved or removed; `dots` is the error for `.` and `..`.
fn checked(name: &[u8], dots: Status) -> Result<&[u8]> {
    match Name::new(name) {
        Ok(_) => Ok(name),
        Err(Error::Invalid) if matches!(name, b"." | b"..") => Err(dots),
        Err(err) => Err(err.into()),
    }
}
