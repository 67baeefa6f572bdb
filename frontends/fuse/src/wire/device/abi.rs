//! The protocol's numbers, as Linux defines them (`include/uapi/linux/fuse.h`), as far as they
//! are used here. `decode.rs` parses structures, and `encode.rs` builds them.

/// The protocol version of this implementation. Minor versions since [`OLDEST`] are supported.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 45;

/// The version (Linux 2.6.31) in which requests got their present form.
pub(super) const OLDEST: u32 = 12;
/// The version in which the answer to INIT got its present length.
pub(super) const LONG_INIT: u32 = 23;

/// `struct fuse_in_header`: before each request.
pub(super) const IN_HEADER: usize = 40;
/// `struct fuse_out_header`: before each answer.
pub(super) const OUT_HEADER: usize = 16;
/// `struct fuse_entry_out`.
pub(super) const ENTRY_OUT: usize = 128;
/// `struct fuse_dirent`, without its name.
pub(super) const DIRENT: usize = 24;
/// `struct fuse_init_out`, before [`LONG_INIT`].
pub(super) const SHORT_INIT_OUT: usize = 24;

/// Operations. Any other is answered `ENOSYS`, after which the kernel does without.
pub(super) mod op {
    pub(in super::super) const LOOKUP: u32 = 1;
    pub(in super::super) const FORGET: u32 = 2;
    pub(in super::super) const GETATTR: u32 = 3;
    pub(in super::super) const SETATTR: u32 = 4;
    pub(in super::super) const READLINK: u32 = 5;
    pub(in super::super) const SYMLINK: u32 = 6;
    pub(in super::super) const MKNOD: u32 = 8;
    pub(in super::super) const MKDIR: u32 = 9;
    pub(in super::super) const UNLINK: u32 = 10;
    pub(in super::super) const RMDIR: u32 = 11;
    pub(in super::super) const RENAME: u32 = 12;
    pub(in super::super) const LINK: u32 = 13;
    pub(in super::super) const OPEN: u32 = 14;
    pub(in super::super) const READ: u32 = 15;
    pub(in super::super) const WRITE: u32 = 16;
    pub(in super::super) const STATFS: u32 = 17;
    pub(in super::super) const RELEASE: u32 = 18;
    pub(in super::super) const FSYNC: u32 = 20;
    pub(in super::super) const SETXATTR: u32 = 21;
    pub(in super::super) const GETXATTR: u32 = 22;
    pub(in super::super) const LISTXATTR: u32 = 23;
    pub(in super::super) const REMOVEXATTR: u32 = 24;
    pub(in super::super) const INIT: u32 = 26;
    pub(in super::super) const OPENDIR: u32 = 27;
    pub(in super::super) const READDIR: u32 = 28;
    pub(in super::super) const RELEASEDIR: u32 = 29;
    pub(in super::super) const FSYNCDIR: u32 = 30;
    pub(in super::super) const ACCESS: u32 = 34;
    pub(in super::super) const CREATE: u32 = 35;
    pub(in super::super) const INTERRUPT: u32 = 36;
    pub(in super::super) const DESTROY: u32 = 38;
    pub(in super::super) const IOCTL: u32 = 39;
    /// An answer to a notice of a kind that this front end never sends.
    pub(in super::super) const NOTIFY_REPLY: u32 = 41;
    pub(in super::super) const BATCH_FORGET: u32 = 42;
    pub(in super::super) const FALLOCATE: u32 = 43;
    pub(in super::super) const READDIRPLUS: u32 = 44;
    pub(in super::super) const RENAME2: u32 = 45;
    pub(in super::super) const LSEEK: u32 = 46;
    pub(in super::super) const COPY_FILE_RANGE: u32 = 47;
    pub(in super::super) const TMPFILE: u32 = 51;
    pub(in super::super) const STATX: u32 = 52;
    pub(in super::super) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Features offered and promised at INIT.
pub(super) mod init {
    pub(in super::super) const ASYNC_READ: u64 = 1;
    pub(in super::super) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(in super::super) const BIG_WRITES: u64 = 1 << 5;
    pub(in super::super) const DONT_MASK: u64 = 1 << 6;
    pub(in super::super) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(in super::super) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(in super::super) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(in super::super) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(in super::super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(in super::super) const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub(in super::super) const POSIX_ACL: u64 = 1 << 20;
    pub(in super::super) const MAX_PAGES: u64 = 1 << 22;
    pub(in super::super) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(in super::super) const SETXATTR_EXT: u64 = 1 << 29;
    /// The upper 32 bits of these are valid as well.
    pub(in super::super) const INIT_EXT: u64 = 1 << 30;
    pub(in super::super) const PASSTHROUGH: u64 = 1 << 37;
    pub(in super::super) const ALLOW_IDMAP: u64 = 1 << 40;
    pub(in super::super) const OVER_IO_URING: u64 = 1 << 41;
}

/// Valid fields of a SETATTR (`FATTR_*`).
pub(super) mod set {
    pub(in super::super) const MODE: u32 = 1;
    pub(in super::super) const UID: u32 = 1 << 1;
    pub(in super::super) const GID: u32 = 1 << 2;
    pub(in super::super) const SIZE: u32 = 1 << 3;
    pub(in super::super) const ATIME: u32 = 1 << 4;
    pub(in super::super) const MTIME: u32 = 1 << 5;
    pub(in super::super) const FH: u32 = 1 << 6;
    pub(in super::super) const ATIME_NOW: u32 = 1 << 7;
    pub(in super::super) const MTIME_NOW: u32 = 1 << 8;
    pub(in super::super) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `FUSE_WRITE_CACHE`: data that the kernel has held back, or a mapped page.
pub(super) const WRITE_CACHE: u32 = 1;
/// `FUSE_WRITE_KILL_SUIDGID`: the caller lacks CAP_FSETID.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_OPEN_KILL_SUIDGID`: a caller without CAP_FSETID truncates the file.
pub(super) const OPEN_KILL_SUIDGID: u32 = 1;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: the caller is not in the file's group, and lacks CAP_FSETID.
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `FUSE_FSYNC_FDATASYNC`.
pub(super) const FSYNC_DATA: u32 = 1;

/// `FOPEN_PASSTHROUGH`: the answer names a file of the host.
pub(super) const OPEN_PASSTHROUGH: u32 = 1 << 7;

/// `STATX_BASIC_STATS` and `STATX_BTIME`.
pub(super) const STATX_BASIC: u32 = 0x7ff;
pub(super) const STATX_BTIME: u32 = 0x800;
