//! Asking the handler, and answering: one method for each shape of answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{
    BackingId, Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};
use rcuwalk::inode::NodeId;
use rcuwalk::{Attr, Error, FileType, Result};

use super::codec::{caller, encode, errno, kind, node};
use super::filesystem::Server;
use crate::caller::Caller;
use crate::ops::{Found, NewOpen, Ops};
use crate::wire::values::ioctl;
use crate::wire::{self, Opcode, full};

impl Server {
    /// Has one operation done: all of them come by here.
    pub(super) fn ask<'s, T>(
        &'s self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        work: impl FnOnce(&'s Ops, Caller, NodeId) -> Result<T>,
    ) -> Result<T> {
        let (node, who) = (node(ino), caller(req));
        let request = wire::Request { op, node, who };
        self.0.answer(&request, |ops| work(ops, who, node))
    }

    pub(super) fn empty(
        &self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        reply: ReplyEmpty,
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<()>,
    ) {
        match self.ask(op, req, ino, work) {
            Ok(()) => reply.ok(),
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn attr(
        &self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        reply: ReplyAttr,
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<Attr>,
    ) {
        match self.ask(op, req, ino, work) {
            Ok(attr) => reply.attr(&self.0.timeouts.attr, &encode(&attr)),
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn entry<'s>(
        &'s self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        reply: ReplyEntry,
        work: impl FnOnce(&'s Ops, Caller, NodeId) -> Result<Found<'s>>,
    ) {
        match self.ask(op, req, ino, work) {
            Ok(found) => self.send_entry(found, reply),
            Err(err) => reply.error(errno(&err)),
        }
    }

    /// The answer to a LOOKUP: that there is nothing is worth knowing, too.
    pub(super) fn found(&self, found: Result<Found<'_>>, reply: ReplyEntry) {
        let ttl = self.0.timeouts.negative;
        match found {
            Ok(found) => self.send_entry(found, reply),
            Err(Error::NotFound) if !ttl.is_zero() => {
                let nothing = encode(&Attr::new(0, FileType::Regular, 0));
                reply.entry_with_ttls(&ttl, &ttl, &nothing, Generation(0));
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    fn send_entry(&self, found: Found<'_>, reply: ReplyEntry) {
        let (attr, generation) = (encode(&found.attr), Generation(found.generation));
        // Before the reply: with it, the kernel may forget.
        found.entry.sent();
        let ttl = &self.0.timeouts;
        reply.entry_with_ttls(&ttl.attr, &ttl.entry, &attr, generation);
    }

    pub(super) fn created<'s>(
        &'s self,
        req: &Request,
        parent: INodeNo,
        reply: ReplyCreate,
        work: impl FnOnce(&'s Ops, Caller, NodeId) -> Result<(Found<'s>, NewOpen)>,
    ) {
        let made = self.ask(Opcode::Create, req, parent, |ops, who, dir| {
            let (found, new) = work(ops, who, dir)?;
            let way = ops.settle(&new, |host| Ok(Box::new(reply.open_backing(host)?)));
            Ok((found, new.handle, way))
        });
        match made {
            Ok((found, handle, way)) => {
                let (attr, generation) = (encode(&found.attr), Generation(found.generation));
                found.entry.sent();
                // There is one timeout here for both.
                let ttl = self.0.timeouts.entry.min(self.0.timeouts.attr);
                let (handle, flags) = (FileHandle(handle), FopenFlags::empty());
                match way.backing::<BackingId>() {
                    Some(id) => {
                        reply.created_passthrough(&ttl, &attr, generation, handle, flags, id);
                    }
                    None => reply.created(&ttl, &attr, generation, handle, flags),
                }
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn opened_file(
        &self,
        req: &Request,
        ino: INodeNo,
        reply: ReplyOpen,
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<NewOpen>,
    ) {
        let opened = self.ask(Opcode::Open, req, ino, |ops, who, id| {
            let new = work(ops, who, id)?;
            let way = ops.settle(&new, |host| Ok(Box::new(reply.open_backing(host)?)));
            Ok((new.handle, way))
        });
        match opened {
            Ok((handle, way)) => {
                let (handle, flags) = (FileHandle(handle), FopenFlags::empty());
                match way.backing::<BackingId>() {
                    Some(id) => reply.opened_passthrough(handle, flags, id),
                    None => reply.opened(handle, flags),
                }
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn opened_dir(&self, req: &Request, ino: INodeNo, reply: ReplyOpen) {
        let opened = self.ask(Opcode::Opendir, req, ino, |ops, who, id| {
            ops.open_dir(who, id)
        });
        match opened {
            Ok((handle, keeping)) => {
                let mut flags = FopenFlags::empty();
                flags.set(FopenFlags::FOPEN_CACHE_DIR, keeping.lists);
                flags.set(FopenFlags::FOPEN_KEEP_CACHE, keeping.holds);
                reply.opened(FileHandle(handle), flags);
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn data<D: AsRef<[u8]>>(
        &self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        reply: ReplyData,
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<D>,
    ) {
        match self.ask(op, req, ino, work) {
            Ok(data) => reply.data(data.as_ref()),
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn written(
        &self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        reply: ReplyWrite,
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<u32>,
    ) {
        match self.ask(op, req, ino, work) {
            Ok(written) => reply.written(written),
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn moved(
        &self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        reply: ReplyLseek,
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<u64>,
    ) {
        match self.ask(op, req, ino, work) {
            // A file is no longer than that.
            Ok(found) => reply.offset(found as i64),
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn controlled(
        &self,
        req: &Request,
        ino: INodeNo,
        (cmd, data, out_size): (u32, &[u8], u32),
        reply: ReplyIoctl,
    ) {
        let done = self.ask(Opcode::Ioctl, req, ino, |ops, who, id| {
            ioctl(ops, who, id, (cmd, data, out_size))
        });
        match done {
            Ok(data) => reply.ioctl(0, &data),
            Err(err) => reply.error(errno(&err)),
        }
    }

    /// As getxattr(2): how long it is for who has no room, and an error for who has too
    /// little.
    pub(super) fn sized<D: AsRef<[u8]>>(
        &self,
        op: Opcode,
        req: &Request,
        ino: INodeNo,
        (size, reply): (u32, ReplyXattr),
        work: impl FnOnce(&Ops, Caller, NodeId) -> Result<D>,
    ) {
        let value = match self.ask(op, req, ino, work) {
            Ok(value) => value,
            Err(err) => return reply.error(errno(&err)),
        };
        match u32::try_from(value.as_ref().len()) {
            Ok(len) if size == 0 => reply.size(len),
            Ok(len) if len <= size => reply.data(value.as_ref()),
            _ => reply.error(Errno::ERANGE),
        }
    }

    pub(super) fn whole(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.ask(Opcode::Statfs, req, ino, |ops, _, _| ops.statfs()) {
            Ok(fs) => reply.statfs(
                fs.blocks,
                fs.blocks_free,
                fs.blocks_available,
                fs.files,
                fs.files_free,
                fs.block_size,
                fs.name_max,
                fs.block_size,
            ),
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn list(
        &self,
        req: &Request,
        ino: INodeNo,
        (fh, offset): (FileHandle, u64),
        mut reply: ReplyDirectory,
    ) {
        let listed = self.ask(Opcode::Readdir, req, ino, |ops, _, _| {
            ops.readdir(fh.into(), offset, |entry, of_kind| {
                let name = OsStr::from_bytes(entry.name);
                full(reply.add(INodeNo(entry.ino), entry.next, kind(of_kind), name))
            })
        });
        match listed {
            Ok(()) => {
                reply.ok();
                self.0.listed(fh.into());
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    pub(super) fn list_plus(
        &self,
        req: &Request,
        ino: INodeNo,
        (fh, offset): (FileHandle, u64),
        mut reply: ReplyDirectoryPlus,
    ) {
        // There is one timeout here for both.
        let ttl = self.0.timeouts.entry.min(self.0.timeouts.attr);
        let listed = self.ask(Opcode::Readdirplus, req, ino, |ops, _, _| {
            let dot = encode(&ops.dir_attr(fh.into())?);
            ops.readdirplus(fh.into(), offset, |entry, found| {
                let (attr, generation) = match found {
                    Some(found) => (encode(&found.attr), found.generation),
                    None => (dot, 0),
                };
                let name = OsStr::from_bytes(entry.name);
                let generation = Generation(generation);
                full(reply.add(attr.ino, entry.next, name, &ttl, &attr, generation))
            })
        });
        match listed {
            Ok(()) => {
                reply.ok();
                self.0.listed(fh.into());
            }
            Err(err) => reply.error(errno(&err)),
        }
    }
}
