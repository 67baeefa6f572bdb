//! A FUSE daemon as one is written first: fuser, a table of paths, one lock around it.
//!
//! The shape of fuser's own examples and of most that follow them. A node is an inode
//! number with the path that it was found by; LOOKUP is an lstat(2) of that path, a
//! directory is read when it is opened, contents are read and written with pread(2) and
//! pwrite(2). It does what `rcuwalk bench fuse` asks for, and no more.
//!
//! What its author would have found in the documentation it has: a thread per processor
//! with a device of its own, large writes, lookups in parallel, and the kernel's own check
//! of permissions.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    Session, WriteFlags,
};
use rcuwalk_bench::fuse::{Daemon, Mounting, Served};

/// The daemon.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainFuse;

impl Daemon for PlainFuse {
    fn name(&self) -> &'static str {
        "mutex-hashmap"
    }

    fn mount(&self, how: &Mounting<'_>) -> io::Result<Box<dyn Served>> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::DefaultPermissions,
            MountOption::FSName("bench".to_owned()),
        ];
        config.n_threads = Some(how.threads);
        config.clone_fd = true;
        let plain = Plain::new(how.backing, how.timeout);
        let session = Session::new(plain, how.mount_point, &config)?.spawn()?;
        Ok(Box::new(Mounted(Some(session))))
    }
}

struct Mounted(Option<BackgroundSession>);

impl Served for Mounted {}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let _ = session.umount_and_join();
        }
    }
}

struct Plain {
    nodes: Mutex<HashMap<u64, Node>>,
    open: Mutex<Open>,
    timeout: Duration,
}

struct Node {
    path: PathBuf,
    lookups: u64,
}

#[derive(Default)]
struct Open {
    files: HashMap<u64, Arc<File>>,
    dirs: HashMap<u64, Arc<Vec<Listed>>>,
    last: u64,
}

struct Listed {
    ino: u64,
    kind: FileType,
    name: std::ffi::OsString,
}

impl Plain {
    fn new(backing: &Path, timeout: Duration) -> Plain {
        let root = Node {
            path: backing.to_owned(),
            lookups: 1,
        };
        Plain {
            nodes: Mutex::new(HashMap::from([(INodeNo::ROOT.0, root)])),
            open: Mutex::default(),
            timeout,
        }
    }

    fn path(&self, ino: INodeNo) -> Result<PathBuf, Errno> {
        let nodes = lock(&self.nodes);
        let node = nodes.get(&ino.0).ok_or(Errno::ESTALE)?;
        Ok(node.path.clone())
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> Result<PathBuf, Errno> {
        Ok(self.path(parent)?.join(name))
    }

    /// Returns the node for `path`, with one more lookup counted.
    fn found(&self, path: PathBuf, meta: &Metadata) -> FileAttr {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry(meta.ino()).or_insert_with(|| Node {
            path: PathBuf::new(),
            lookups: 0,
        });
        node.path = path;
        node.lookups += 1;
        attr(meta, INodeNo(meta.ino()))
    }

    fn lookup_at(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.child(parent, name)?;
        let meta = fs::symlink_metadata(&path)?;
        Ok(self.found(path, &meta))
    }

    fn keep(&self, file: File) -> FileHandle {
        let mut open = lock(&self.open);
        open.last += 1;
        let handle = open.last;
        open.files.insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        let open = lock(&self.open);
        open.files.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn open_at(&self, ino: INodeNo, flags: OpenFlags) -> Result<FileHandle, Errno> {
        let file = options(flags.0).open(self.path(ino)?)?;
        Ok(self.keep(file))
    }

    fn list(&self, ino: INodeNo) -> Result<FileHandle, Errno> {
        let mut listed = vec![];
        for (name, kind) in [(".", FileType::Directory), ("..", FileType::Directory)] {
            let (ino, name) = (ino.0, name.into());
            listed.push(Listed { ino, kind, name });
        }
        for entry in fs::read_dir(self.path(ino)?)? {
            let entry = entry?;
            listed.push(Listed {
                ino: entry.ino(),
                kind: kind(entry.file_type()?),
                name: entry.file_name(),
            });
        }
        let mut open = lock(&self.open);
        open.last += 1;
        let handle = open.last;
        open.dirs.insert(handle, Arc::new(listed));
        Ok(FileHandle(handle))
    }
}

impl Filesystem for Plain {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.lookup_at(parent, name) {
            Ok(attr) => reply.entry(&self.timeout, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(node) = nodes.get_mut(&ino.0) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && ino != INodeNo::ROOT {
                nodes.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let meta = self.path(ino);
        let meta = meta.and_then(|path| Ok(fs::symlink_metadata(path)?));
        match meta {
            Ok(meta) => reply.attr(&self.timeout, &attr(&meta, ino)),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.child(parent, name);
        match path.and_then(|path| Ok(fs::remove_file(path)?)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.child(parent, name).and_then(|path| {
            let file = options(flags)
                .create_new(true)
                .mode(mode & !umask)
                .open(&path)?;
            let attr = self.found(path, &file.metadata()?);
            Ok((attr, self.keep(file)))
        });
        match made {
            Ok((attr, handle)) => {
                let flags = FopenFlags::empty();
                reply.created(&self.timeout, &attr, Generation(0), handle, flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_at(ino, flags) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; size as usize];
        let read = self
            .file(fh)
            .and_then(|file| Ok(file.read_at(&mut data, offset)?));
        match read {
            Ok(read) => reply.data(&data[..read]),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self
            .file(fh)
            .and_then(|file| Ok(file.write_at(data, offset)?));
        match written {
            // Never more than was sent, which is less than 2^32.
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let closed = lock(&self.open).files.remove(&fh.0);
        drop(closed);
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.list(ino) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(dir) = lock(&self.open).dirs.get(&fh.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let mut next = offset;
        for entry in dir.iter().skip(offset as usize) {
            next += 1;
            if reply.add(INodeNo(entry.ino), next, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let closed = lock(&self.open).dirs.remove(&fh.0);
        drop(closed);
        reply.ok();
    }
}

/// Flags that the kernel has already handled, or that the caller sets itself.
fn options(flags: i32) -> fs::OpenOptions {
    let access = flags & libc::O_ACCMODE;
    let mut options = fs::OpenOptions::new();
    options
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY);
    options
}

fn kind(kind: fs::FileType) -> FileType {
    if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else if kind.is_fifo() {
        FileType::NamedPipe
    } else {
        FileType::RegularFile
    }
}

fn attr(meta: &Metadata, ino: INodeNo) -> FileAttr {
    let time = |sec: i64, nsec: i64| {
        UNIX_EPOCH + Duration::new(sec.max(0).unsigned_abs(), nsec.clamp(0, 999_999_999) as u32)
    };
    FileAttr {
        ino,
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: kind(meta.file_type()),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
