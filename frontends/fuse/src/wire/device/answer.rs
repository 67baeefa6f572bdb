//! Maps each request to a call of the tree, and its result to an answer. Decides nothing
//! itself.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rcuwalk::inode::NodeId;
use rcuwalk::{Access, Attr, Error, FileType, Result};

use super::decode::{Header, NewFile, Operation, Piece};
use super::dispatch::{KernelRefs, not_known};
use super::encode::{LONGEST_BODY, Reply, Ttl, listed as listed_in};
use super::ioctl::BackingFile;
use crate::Contents;
use crate::caller::Caller;
use crate::listing::Keeping;
use crate::ops::{AttrReply, Found, NewOpen, Ops};
use crate::pushed;
use crate::through::Backing;
use crate::wire::values::{ioctl, seek, xattr_flags};
use crate::wire::{self, Handler, Opcode, Timeouts};

/// `FOPEN_KEEP_CACHE` and `FOPEN_CACHE_DIR`.
const KEEP_CACHE: u32 = 1 << 1;
/// `FOPEN_DIRECT_IO`.
const DIRECT_IO: u32 = 1;
const CACHE_DIR: u32 = 1 << 3;

/// A request that is being answered.
pub(super) struct Call<'a, 'h> {
    pub(super) handler: &'h Handler,
    pub(super) header: &'a Header,
    /// Registers a file of the host with the kernel.
    pub(super) register: &'a dyn Fn(BorrowedFd<'_>) -> io::Result<Backing>,
}

impl<'h> Call<'_, 'h> {
    /// Runs one operation: all of them pass through here.
    pub(super) fn run<T>(
        &self,
        op: Opcode,
        work: impl FnOnce(&'h Ops, Caller, NodeId) -> Result<T>,
    ) -> Result<T> {
        let Header { node, who, .. } = *self.header;
        let request = wire::Request { op, node, who };
        self.handler.answer(&request, |ops| work(ops, who, node))
    }

    /// Runs the operation, and writes the body of its answer to `out`.
    ///
    /// # Errors
    /// Those of the operation: then the answer is the error.
    pub(super) fn fill(&self, operation: Operation<'_>, out: &mut Reply) -> Result<KernelRefs> {
        match operation {
            Operation::Lookup(name) => {
                let found = self.run(Opcode::Lookup, |ops, who, dir| ops.lookup(who, dir, name));
                self.found(found, name, out)
            }
            Operation::Getattr => {
                self.attr(out, self.run(Opcode::Getattr, |ops, _, id| ops.getattr(id)))
            }
            Operation::Statx => {
                let reply = self.run(Opcode::Statx, |ops, _, id| ops.getattr(id))?;
                out.statx(&reply.attr, self.ttl(&reply).attr);
                Ok(KernelRefs::Nothing)
            }
            Operation::Setattr(change, kills_set_ids) => self.attr(
                out,
                self.run(Opcode::Setattr, |ops, who, id| {
                    // With a chown the flag says nothing about the caller: the bits are cleared
                    // in any case.
                    let who = match change.is_truncation() {
                        true => self.handler.agreed.told(who, kills_set_ids),
                        false => who,
                    };
                    ops.setattr(who, id, &change)
                }),
            ),
            Operation::Readlink => data(
                out,
                self.run(Opcode::Readlink, |ops, _, id| ops.readlink(id)),
            ),
            Operation::Symlink(name, target) => self.entry(
                out,
                self.run(Opcode::Symlink, |ops, who, dir| {
                    ops.symlink(who, (dir, name), target)
                }),
            ),
            Operation::Mknod {
                name,
                mode,
                umask,
                rdev,
            } => self.entry(
                out,
                self.run(Opcode::Mknod, |ops, who, dir| {
                    ops.mknod(who, (dir, name), mode, umask, rdev)
                }),
            ),
            Operation::Mkdir { name, mode, umask } => self.entry(
                out,
                self.run(Opcode::Mkdir, |ops, who, dir| {
                    ops.mkdir(who, (dir, name), mode, umask)
                }),
            ),
            Operation::Unlink(name) => {
                nothing(self.run(Opcode::Unlink, |ops, who, dir| ops.unlink(who, dir, name)))
            }
            Operation::Rmdir(name) => {
                nothing(self.run(Opcode::Rmdir, |ops, who, dir| ops.rmdir(who, dir, name)))
            }
            Operation::Rename { name, to, flags } => {
                nothing(self.run(Opcode::Rename, |ops, who, dir| {
                    ops.rename(who, (dir, name), to, flags)
                }))
            }
            // The header names the directory, and the body the file.
            Operation::Link(node, name) => self.entry(
                out,
                self.run(Opcode::Link, |ops, who, dir| {
                    ops.link(who, node, (dir, name))
                }),
            ),
            Operation::Open(flags) => self.open(flags, out),
            Operation::Create(name, new) => self.created(Opcode::Create, out, |ops, who, dir| {
                // The flag is meaningful only if the open truncates an existing file.
                let tells = new.flags & (libc::O_TRUNC | libc::O_EXCL) == libc::O_TRUNC;
                let who = match tells {
                    true => self.handler.agreed.told(who, new.kills_set_ids),
                    false => who,
                };
                ops.create(who, (dir, name), new.mode, new.umask, new.flags)
            }),
            Operation::Tmpfile(NewFile {
                flags, mode, umask, ..
            }) => self.created(Opcode::Tmpfile, out, |ops, who, dir| {
                ops.tmpfile(who, dir, mode, umask, flags)
            }),
            Operation::Read(Piece { fh, offset, size }) => {
                nothing(self.run(Opcode::Read, |ops, who, _| {
                    out.fill(most(size), |room| ops.read_into(who, fh, offset, room))
                }))
            }
            Operation::Write {
                fh,
                offset,
                is_cached,
                kills_set_ids,
                data,
            } => {
                let written = self.run(Opcode::Write, |ops, who, id| {
                    let who = self.handler.agreed.told(who, kills_set_ids);
                    ops.write(who, (id, fh), offset, data, is_cached)
                })?;
                out.u32(written);
                out.u32(0);
                Ok(KernelRefs::Nothing)
            }
            Operation::Statfs if self.handler.watch.is_provoked(self.header.who.pid) => {
                Err(Error::WouldBlock)
            }
            Operation::Statfs => {
                let reply = self.run(Opcode::Statfs, |ops, _, _| ops.statfs())?;
                out.statfs(&reply);
                Ok(KernelRefs::Nothing)
            }
            Operation::Release(fh) => {
                nothing(self.run(Opcode::Release, |ops, _, _| ops.release(fh)))
            }
            Operation::Releasedir(fh) => {
                nothing(self.run(Opcode::Releasedir, |ops, _, _| ops.release(fh)))
            }
            Operation::Fsync(fh, data_only) => {
                nothing(self.run(Opcode::Fsync, |ops, _, _| ops.fsync(fh, data_only)))
            }
            Operation::Fsyncdir(fh, data_only) => {
                nothing(self.run(Opcode::Fsyncdir, |ops, _, _| ops.fsyncdir(fh, data_only)))
            }
            Operation::Setxattr {
                name,
                value,
                flags,
                kills_set_gid,
            } => nothing(self.run(Opcode::Setxattr, |ops, who, id| {
                let who = kills_set_gid.map_or(who, |kills| who.keeping_set_ids(!kills));
                ops.setxattr(who, id, name, value, xattr_flags(flags)?)
            })),
            Operation::Getxattr(name, size) => {
                let value = self.run(Opcode::Getxattr, |ops, who, id| ops.getxattr(who, id, name));
                sized(out, size, value)
            }
            Operation::Listxattr(size) => {
                let names = self.run(Opcode::Listxattr, |ops, who, id| ops.listxattr(who, id));
                sized(out, size, names)
            }
            Operation::Removexattr(name) => {
                nothing(self.run(Opcode::Removexattr, |ops, who, id| {
                    ops.removexattr(who, id, name)
                }))
            }
            Operation::Opendir => {
                let opened = self.run(Opcode::Opendir, |ops, who, id| ops.open_dir(who, id));
                let (handle, Keeping { lists, holds }) = opened?;
                let flag = |set, flag| if set { flag } else { 0 };
                let flags = flag(lists, CACHE_DIR) | flag(holds, KEEP_CACHE);
                out.open(handle, flags, None);
                Ok(KernelRefs::Handle(handle))
            }
            Operation::Readdir(piece) => self.list(&piece, out),
            Operation::Readdirplus(piece) => self.list_plus(&piece, out),
            Operation::Access(mask) => nothing(self.run(Opcode::Access, |ops, who, id| {
                ops.access(who, id, access(mask))
            })),
            Operation::Ioctl {
                cmd,
                data,
                out_size,
            } => {
                let reply = self.run(Opcode::Ioctl, |ops, who, id| {
                    ioctl(ops, who, id, (cmd, data, out_size))
                })?;
                // The ioctl's return value, with nothing more to fetch or put.
                out.extend(&[0; 16]);
                out.extend(&reply);
                Ok(KernelRefs::Nothing)
            }
            Operation::Fallocate {
                fh,
                offset,
                len,
                mode,
            } => nothing(self.run(Opcode::Fallocate, |ops, who, _| {
                ops.fallocate(who, fh, (offset, len), mode)
            })),
            Operation::Lseek { fh, offset, whence } => {
                let found = self.run(Opcode::Lseek, |ops, _, _| {
                    ops.lseek(fh, &seek(offset, whence)?)
                })?;
                out.u64(found);
                Ok(KernelRefs::Nothing)
            }
            Operation::CopyFileRange {
                from,
                to,
                len,
                is_long,
            } => {
                let copied = self.run(Opcode::CopyFileRange, |ops, who, _| {
                    ops.copy_file_range(who, from, to, len)
                })?;
                // A 64-bit count, or one of 32 bits and padding.
                match is_long {
                    true => out.u64(u64::from(copied)),
                    false => {
                        out.u32(copied);
                        out.u32(0);
                    }
                }
                Ok(KernelRefs::Nothing)
            }
            // Among them FLUSH: no data is held back.
            Operation::Unknown => not_known(),
            // The session has begun already.
            Operation::Init(_) => Err(Error::Invalid),
            Operation::Destroy
            | Operation::Nothing
            | Operation::Interrupt(_)
            | Operation::Forget(_)
            | Operation::BatchForget(_) => Ok(KernelRefs::Nothing),
        }
    }

    fn ttl(&self, reply: &AttrReply) -> Ttl {
        let Timeouts { entry, attr, .. } = self.handler.timeouts;
        let is_prompt = self.handler.ops.pushed.is_prompt();
        Ttl {
            entry: match is_prompt && reply.told.name {
                true => entry.max(pushed::TOLD),
                false => entry,
            },
            attr: match reply.lasts {
                true if is_prompt && reply.told.attr => attr.max(pushed::TOLD),
                true => attr,
                false => Duration::ZERO,
            },
        }
    }

    fn attr(&self, out: &mut Reply, reply: Result<AttrReply>) -> Result<KernelRefs> {
        let reply = reply?;
        out.attr(&reply.attr, self.ttl(&reply).attr);
        Ok(KernelRefs::Nothing)
    }

    fn entry(&self, out: &mut Reply, found: Result<Found<'_>>) -> Result<KernelRefs> {
        Ok(KernelRefs::Node(self.send_entry(out, found?)))
    }

    /// The answer to a LOOKUP: the kernel caches a missing name as well.
    fn found(&self, found: Result<Found<'_>>, name: &[u8], out: &mut Reply) -> Result<KernelRefs> {
        let is_missing = matches!(found, Err(Error::NotFound));
        let ttl = match is_missing && self.handler.ops.tells_of_name(self.header.node, name) {
            true => self.handler.timeouts.negative.max(pushed::TOLD),
            false => self.handler.timeouts.negative,
        };
        match found {
            Err(Error::NotFound) if !ttl.is_zero() => {
                let nothing = Attr::new(0, FileType::Regular, 0);
                let ttl = Ttl {
                    entry: ttl,
                    attr: ttl,
                };
                out.entry((NodeId(0), 0), &nothing, ttl);
                Ok(KernelRefs::Nothing)
            }
            found => self.entry(out, found),
        }
    }

    fn send_entry(&self, out: &mut Reply, found: Found<'_>) -> NodeId {
        let id = (found.entry.id(), found.generation);
        out.entry(id, &found.attr_reply.attr, self.ttl(&found.attr_reply));
        // Counted before the reply is sent: after that, the kernel may forget the node.
        found.entry.sent()
    }

    fn open(&self, flags: i32, out: &mut Reply) -> Result<KernelRefs> {
        let (new, way) = self.run(Opcode::Open, |ops, who, id| {
            let new = ops.open_file(who, id, flags)?;
            let way = ops.settle(&new, self.register);
            Ok((new, way))
        })?;
        let backing = way.backing().map(BackingFile::id);
        let flags = match self.handler.contents {
            _ if new.is_direct => DIRECT_IO,
            // The kernel has the contents from the host's file.
            _ if backing.is_some() => 0,
            Contents::Direct => DIRECT_IO,
            Contents::Kept => KEEP_CACHE,
            Contents::Cached => 0,
        };
        out.open(new.handle, flags, backing);
        Ok(KernelRefs::Handle(new.handle))
    }

    fn created(
        &self,
        op: Opcode,
        out: &mut Reply,
        work: impl FnOnce(&'h Ops, Caller, NodeId) -> Result<(Found<'h>, NewOpen)>,
    ) -> Result<KernelRefs> {
        let (found, handle, way) = self.run(op, |ops, who, dir| {
            let (found, new) = work(ops, who, dir)?;
            let way = ops.settle(&new, self.register);
            Ok((found, new.handle, way))
        })?;
        let node = self.send_entry(out, found);
        let backing = way.backing().map(BackingFile::id);
        let flags = match self.handler.contents {
            Contents::Direct if backing.is_none() => DIRECT_IO,
            _ => 0,
        };
        out.open(handle, flags, backing);
        Ok(KernelRefs::Both(node, handle))
    }

    fn list(&self, piece: &Piece, out: &mut Reply) -> Result<KernelRefs> {
        let Piece { fh, offset, size } = *piece;
        let most = most(size);
        nothing(self.run(Opcode::Readdir, |ops, _, _| {
            ops.list(fh, offset, |entry| {
                let fits = out.dirent(most, (entry, entry.ino, entry.kind), |_| ());
                wire::full(!fits)
            })
        }))
    }

    fn list_plus(&self, piece: &Piece, out: &mut Reply) -> Result<KernelRefs> {
        let Piece { fh, offset, size } = *piece;
        let most = most(size);
        let listed = self.run(Opcode::Readdirplus, |ops, _, _| {
            let dot = AttrReply::lasting(ops.dir_attr(fh)?);
            ops.readdirplus(fh, offset, |entry, found| {
                // Node 0 means that the entry carries no LOOKUP: the kernel only lists it.
                let (id, reply, shown) = match found {
                    Some(found) => {
                        let Attr { ino, kind, .. } = found.attr_reply.attr;
                        let id = (found.entry.id(), found.generation);
                        (id, &found.attr_reply, (entry, ino, Some(kind)))
                    }
                    None => ((NodeId(0), 0), &dot, (entry, entry.ino, entry.kind)),
                };
                let ttl = self.ttl(reply);
                let fits = out.dirent(most, shown, |out| out.entry(id, &reply.attr, ttl));
                wire::full(!fits)
            })
        });
        match listed {
            Ok(()) => Ok(KernelRefs::Listed),
            Err(err) => {
                // Takes back the entries of a listing that a panic has cut short.
                listed_in(out.body()).for_each(|node| self.handler.ops.take_back(node));
                Err(err)
            }
        }
    }
}

fn nothing(done: Result<()>) -> Result<KernelRefs> {
    done.map(|()| KernelRefs::Nothing)
}

fn data(out: &mut Reply, data: Result<impl AsRef<[u8]>>) -> Result<KernelRefs> {
    out.extend(data?.as_ref());
    Ok(KernelRefs::Nothing)
}

/// As getxattr(2): the length if the caller has no room, and an error if it has too little.
fn sized(out: &mut Reply, size: u32, value: Result<impl AsRef<[u8]>>) -> Result<KernelRefs> {
    let value = value?;
    match u32::try_from(value.as_ref().len()) {
        Ok(len) if size == 0 => {
            out.u32(len);
            out.u32(0);
        }
        Ok(len) if len <= size => out.extend(value.as_ref()),
        _ => return Err(Error::OutOfRange),
    }
    Ok(KernelRefs::Nothing)
}

fn access(mask: u32) -> Access {
    let mask = mask.cast_signed();
    let mut wanted = Access::empty();
    wanted.set(Access::READ, mask & libc::R_OK != 0);
    wanted.set(Access::WRITE, mask & libc::W_OK != 0);
    wanted.set(Access::EXEC, mask & libc::X_OK != 0);
    wanted
}

fn most(size: u32) -> usize {
    usize::try_from(size)
        .unwrap_or(LONGEST_BODY)
        .min(LONGEST_BODY)
}
