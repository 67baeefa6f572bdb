//! What fuser decodes, and what it is answered: a method for each request. Nothing is
//! decided here.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rcuwalk::SetAttr;

use super::codec::{access, node, time};
use super::init;
use crate::ops::Change;
use crate::wire::Handler;
use crate::wire::Opcode::{self, *};
use crate::wire::values::{seek, xattr_flags};

/// A handler, to fuser.
pub(super) struct Server(pub(super) Arc<Handler>);

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        init::promise(config);
        if self.0.passthrough && init::offer_passthrough(config) {
            self.0.ops.offer.accepted();
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.ask(Lookup, req, parent, |ops, who, dir| {
            ops.lookup(who, dir, name.as_bytes())
        });
        self.found(found, reply);
    }

    fn destroy(&mut self) {
        self.0.ops.end();
    }

    fn forget(&self, req: &Request, ino: INodeNo, lookups: u64) {
        // There is no answer to that.
        let _ = self.ask(Forget, req, ino, |ops, _, id| {
            ops.forget(id, lookups);
            Ok(())
        });
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(Getattr, req, ino, reply, |ops, _, id| ops.getattr(id));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let what = SetAttr {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
            flags: None,
        };
        let handle = fh.map(u64::from);
        self.attr(Setattr, req, ino, reply, |ops, who, id| {
            ops.setattr(who, id, &Change { what, handle })
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.data(Readlink, req, ino, reply, |ops, _, id| ops.readlink(id));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(Mknod, req, parent, reply, |ops, who, dir| {
            ops.mknod(who, (dir, name.as_bytes()), mode, umask, rdev)
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(Mkdir, req, parent, reply, |ops, who, dir| {
            ops.mkdir(who, (dir, name.as_bytes()), mode, umask)
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(Unlink, req, parent, reply, |ops, who, dir| {
            ops.unlink(who, dir, name.as_bytes())
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(Rmdir, req, parent, reply, |ops, who, dir| {
            ops.rmdir(who, dir, name.as_bytes())
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        self.entry(Symlink, req, parent, reply, |ops, who, dir| {
            ops.symlink(who, (dir, name.as_bytes()), target)
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let new = (node(newparent), newname.as_bytes());
        self.empty(Rename, req, parent, reply, |ops, who, dir| {
            ops.rename(who, (dir, name.as_bytes()), new, flags.bits())
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let new = (node(newparent), newname.as_bytes());
        self.entry(Link, req, ino, reply, |ops, who, id| ops.link(who, id, new));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.opened_file(req, ino, reply, |ops, who, id| {
            ops.open_file(who, id, flags.0)
        });
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.data(Read, req, ino, reply, |ops, who, _| {
            ops.read(who, fh.into(), offset, size)
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.written(Write, req, ino, reply, |ops, who, id| {
            ops.write(who, (id, fh.into()), offset, data, is_cached)
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Nothing is held back. With this, the kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(Release, req, ino, reply, |ops, _, _| ops.release(fh.into()));
    }

    fn fsync(&self, req: &Request, ino: INodeNo, fh: FileHandle, data: bool, reply: ReplyEmpty) {
        self.empty(Fsync, req, ino, reply, |ops, _, _| {
            ops.fsync(fh.into(), data)
        });
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.opened_dir(req, ino, reply);
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.list(req, ino, (fh, offset), reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_plus(req, ino, (fh, offset), reply);
    }

    fn releasedir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.empty(Releasedir, req, ino, reply, |ops, _, _| {
            ops.release(fh.into())
        });
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, data: bool, reply: ReplyEmpty) {
        self.empty(Fsyncdir, req, ino, reply, |ops, _, _| {
            ops.fsyncdir(fh.into(), data)
        });
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.whole(req, ino, reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.empty(Setxattr, req, ino, reply, |ops, who, id| {
            ops.setxattr(who, id, name.as_bytes(), value, xattr_flags(flags)?)
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.sized(Getxattr, req, ino, (size, reply), |ops, who, id| {
            ops.getxattr(who, id, name.as_bytes())
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.sized(Listxattr, req, ino, (size, reply), |ops, who, id| {
            ops.listxattr(who, id)
        });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(Removexattr, req, ino, reply, |ops, who, id| {
            ops.removexattr(who, id, name.as_bytes())
        });
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.empty(Opcode::Access, req, ino, reply, |ops, who, id| {
            ops.access(who, id, access(mask))
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.created(req, parent, reply, |ops, who, dir| {
            ops.create(who, (dir, name.as_bytes()), mode, umask, flags)
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.empty(Fallocate, req, ino, reply, |ops, who, _| {
            ops.fallocate(who, fh.into(), (offset, length), mode)
        });
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.moved(Lseek, req, ino, reply, |ops, _, _| {
            ops.lseek(fh.into(), &seek(offset, whence)?)
        });
    }
    fn copy_file_range(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        _to: INodeNo,
        to_fh: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let to = (to_fh.into(), to_offset);
        self.written(CopyFileRange, req, ino, reply, |ops, who, _| {
            ops.copy_file_range(who, (fh.into(), offset), to, len)
        });
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        cmd: u32,
        data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.controlled(req, ino, (cmd, data, out_size), reply);
    }
}
