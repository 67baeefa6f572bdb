//! The same operations on memfs and by system call on tmpfs, by the same callers.
//!
//! A test lists operations and their callers, and gets the results of each side as lines of
//! text. Where the kernel cannot be asked, there is only one side.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rcuwalk::{
    Access, Allocate, Caps, Context, Credentials, File, LookupFlags, OpenFlags, SetAttr, SetTime,
    Timestamp, Vfs, XattrFlags,
};
use rcuwalk_memfs::MemFs;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::FOLLOW;

/// The user that makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) uid: u32,
    pub(crate) groups: &'static [u32],
    pub(crate) caps: Caps,
}

const fn who(uid: u32, groups: &'static [u32], caps: Caps) -> Who {
    Who { uid, groups, caps }
}

pub(crate) const ROOT: Who = who(0, &[], Caps::all());
/// User 1000 in group 1000, and in 1001.
pub(crate) const ANN: Who = who(1000, &[1001], Caps::empty());
/// User 2000 in group 2000, and in 1001.
pub(crate) const BOB: Who = who(2000, &[1001], Caps::empty());
/// In no group of theirs.
pub(crate) const EVE: Who = who(3000, &[], Caps::empty());
/// May give files away, and nothing else.
pub(crate) const GIVER: Who = who(3000, &[], Caps::CHOWN);
/// Has the rights of every owner.
pub(crate) const KEEPER: Who = who(3000, &[], Caps::FOWNER);

/// An operation on an open file.
#[derive(Clone, Debug)]
pub(crate) enum With {
    Read(u64, usize),
    Write(u64, &'static [u8]),
    SetLen(u64),
    Allocate(u32, u64, u64),
    SeekData(u64),
    SeekHole(u64),
    Chmod(u16),
    Sync,
    GetXattr(&'static str),
    SetXattr(&'static str, Vec<u8>),
    List,
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Mkdir(&'static str, u16),
    Symlink(&'static str, &'static str),
    Fifo(&'static str),
    /// With these permission bits, this umask, and then this done to it.
    Open(&'static str, OpenFlags, u16, u16, Vec<With>),
    Chmod(&'static str, u16),
    Chown(&'static str, Option<u32>, Option<u32>),
    Lchown(&'static str, Option<u32>, Option<u32>),
    Truncate(&'static str, u64),
    /// Seconds to set each time to, or `NOW`, or `OMIT`.
    Utimens(&'static str, i64, i64),
    GetXattr(&'static str, &'static str),
    SetXattr(&'static str, &'static str, Vec<u8>, u32),
    ListXattrs(&'static str),
    RemoveXattr(&'static str, &'static str),
    /// `R_OK`, `W_OK`, `X_OK` together, and whether by effective ids.
    Access(&'static str, u32, bool),
    /// Type, permission bits, owner, group, size; links are not followed.
    Stat(&'static str),
}

pub(crate) const NOW: i64 = i64::MAX;
pub(crate) const OMIT: i64 = i64::MIN;

/// The answers, one per line.
type Said = Vec<String>;

/// Does all of it on both sides and compares line by line.
pub(crate) fn compare(claim: &str, script: &[(Who, Op)]) {
    let ours = Ours::new();
    let said = script.iter().map(|(who, op)| ours.apply(*who, op));
    let ours: Said = said.collect();
    let Some(kernel) = Kernel::new() else {
        return rcuwalk_testkit::skip("needs root and tmpfs with attributes and ACLs");
    };
    for ((who, op), ours) in script.iter().zip(ours) {
        let theirs = kernel.apply(*who, op);
        if let Op::Open(path, flags, _, _, with) = op {
            let each = ours.split("; ").zip(theirs.split("; "));
            for (with, (ours, theirs)) in with.iter().zip(each) {
                let what = format!("{with:?} of {path}, {flags:?}, as {who:?}");
                assert_eq!(ours, theirs, "{claim}: {what}; left is ours");
            }
        }
        assert_eq!(ours, theirs, "{claim}: {op:?} as {who:?}; left is ours");
    }
}

fn said(result: Result<String, i32>) -> String {
    match result {
        Ok(value) => value,
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

struct Ours {
    vfs: Vfs,
    root: Context,
}

impl Ours {
    fn new() -> Ours {
        let vfs = Vfs::new(MemFs::new()).unwrap();
        let root = vfs.context(Credentials::root());
        vfs.chmod(&root, "/", 0o777).unwrap();
        Ours { vfs, root }
    }

    fn apply(&self, who: Who, op: &Op) -> String {
        let credentials = Credentials {
            groups: who.groups.into(),
            caps: who.caps,
            ..Credentials::user(who.uid, who.uid)
        };
        let ctx = self.root.clone().with_credentials(credentials);
        said(self.done(&ctx, op).map_err(|err| err.errno()))
    }

    fn done(&self, ctx: &Context, op: &Op) -> rcuwalk::Result<String> {
        let vfs = &self.vfs;
        let nofollow = LookupFlags::empty();
        match op.clone() {
            Op::Mkdir(path, mode) => drop(vfs.mkdir(ctx, path, mode)?),
            Op::Symlink(target, path) => drop(vfs.symlink(ctx, target, path)?),
            Op::Fifo(path) => drop(vfs.mknod(ctx, path, rcuwalk::FileType::Fifo, 0o666, 0)?),
            Op::Open(path, flags, mode, umask, with) => {
                let ctx = ctx.clone().with_umask(umask);
                let file = vfs.open(&ctx, path, flags.mode(mode))?;
                let with = with.iter().map(|with| {
                    let done = Self::with(&file, with);
                    said(done.map_err(|err| err.errno()))
                });
                return Ok(with.collect::<Vec<_>>().join("; "));
            }
            Op::Chmod(path, mode) => vfs.chmod(ctx, path, mode)?,
            Op::Chown(path, uid, gid) => vfs.chown(ctx, path, uid, gid, FOLLOW)?,
            Op::Lchown(path, uid, gid) => vfs.chown(ctx, path, uid, gid, nofollow)?,
            Op::Truncate(path, size) => vfs.truncate(ctx, path, size)?,
            Op::Utimens(path, atime, mtime) => {
                let time = |sec| match sec {
                    OMIT => None,
                    NOW => Some(SetTime::Now),
                    sec => Some(SetTime::To(Timestamp { sec, nsec: 0 })),
                };
                vfs.utimens(ctx, path, time(atime), time(mtime), FOLLOW)?;
            }
            Op::GetXattr(path, name) => {
                return vfs.get_xattr(ctx, path, name, FOLLOW).map(hex);
            }
            Op::SetXattr(path, name, value, flags) => {
                let flags = XattrFlags::from_bits_retain(flags);
                vfs.set_xattr(ctx, path, name, &value, flags, FOLLOW)?;
            }
            Op::ListXattrs(path) => return Ok(names(vfs.list_xattrs(ctx, path, FOLLOW)?)),
            Op::RemoveXattr(path, name) => vfs.remove_xattr(ctx, path, name, FOLLOW)?,
            Op::Access(path, mode, effective) => {
                let mut flags = FOLLOW;
                flags.set(LookupFlags::EACCESS, effective);
                vfs.access(ctx, path, Access::from_bits_retain(mode), flags)?;
            }
            Op::Stat(path) => {
                let attr = vfs.stat(ctx, path, nofollow)?;
                let size = match attr.kind {
                    rcuwalk::FileType::Regular => attr.size,
                    _ => 0,
                };
                return Ok(stat(attr.st_mode(), attr.uid, attr.gid, size));
            }
        }
        Ok(String::new())
    }

    fn with(file: &File, with: &With) -> rcuwalk::Result<String> {
        let mut said = String::new();
        match with.clone() {
            With::Read(offset, len) => {
                let mut buf = vec![0; len];
                let read = file.read_at(&mut buf, offset)?;
                said = format!("{:?}", &buf[..read]);
            }
            With::Write(offset, bytes) => said = file.write_at(bytes, offset)?.to_string(),
            With::SetLen(size) => file.set_len(size)?,
            With::Allocate(how, offset, len) => {
                file.allocate(Allocate::from_bits_retain(how), offset, len)?;
            }
            With::SeekData(offset) => said = file.seek_data(offset)?.to_string(),
            With::SeekHole(offset) => said = file.seek_hole(offset)?.to_string(),
            With::Chmod(mode) => file.setattr(&SetAttr::default().mode(mode))?,
            With::Sync => file.sync(false)?,
            With::GetXattr(name) => said = hex(file.get_xattr(name)?),
            With::SetXattr(name, value) => file.set_xattr(name, &value, XattrFlags::empty())?,
            With::List => {
                let entries = file.read_dir()?;
                said = entries
                    .map(|entry| entry.map(|_| 1))
                    .sum::<Result<i32, _>>()?
                    .to_string();
            }
        }
        Ok(said)
    }
}

fn hex(value: impl AsRef<[u8]>) -> String {
    format!("{:02x?}", value.as_ref())
}

fn stat(mode: u32, uid: u32, gid: u32, size: u64) -> String {
    format!("{mode:o} {uid}:{gid} {size}")
}

fn names(mut names: Vec<Box<[u8]>>) -> String {
    // The host may label new files.
    names.retain(|name| !name.starts_with(b"security.selinux"));
    names.sort();
    let names = names.iter().map(|name| name.escape_ascii().to_string());
    names.collect::<Vec<_>>().join(" ")
}

/// A directory on tmpfs.
struct Kernel(tempfile::TempDir);

type Done<T> = rustix::io::Result<T>;

impl Kernel {
    /// `None` if this process cannot change its user, or the kernel's tmpfs has no attributes.
    fn new() -> Option<Kernel> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let root = rcuwalk_testkit::is_root();
        let shm = Path::new("/dev/shm");
        let is_tmpfs = rustix::fs::statfs(shm).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC);
        if !root || !is_tmpfs {
            return None;
        }
        let dir = tempfile::tempdir_in(shm).ok()?;
        let open = Mode::from_raw_mode(0o777);
        rustix::fs::chmod(dir.path(), open).ok()?;
        let create = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(dir.path(), "user.probe", b"", create).ok()?;
        rustix::fs::removexattr(dir.path(), "user.probe").ok()?;
        let probed = rustix::fs::removexattr(dir.path(), "system.posix_acl_default");
        (probed != Err(rustix::io::Errno::OPNOTSUPP)).then_some(Kernel(dir))
    }

    /// On a thread of its own, which has these ids and capabilities: the kernel keeps them
    /// per thread. It leaves the process's umask alone.
    fn apply(&self, who: Who, op: &Op) -> String {
        let apply = || {
            // SAFETY: CLONE_FS gives this thread its own umask and touches no memory.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)? };
            rustix::process::umask(Mode::empty());
            become_caller(who)?;
            Ok(said(self.done(op).map_err(|err| err.raw_os_error())))
        };
        let said: Done<String> = std::thread::scope(|scope| scope.spawn(apply).join().unwrap());
        said.unwrap_or_else(|err| panic!("cannot become {who:?}: {err}"))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn done(&self, op: &Op) -> Done<String> {
        use rustix::fs;
        let at = |path: &str| self.at(path);
        let chown = |path: &str, uid: Option<u32>, gid: Option<u32>, flags| {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            fs::chownat(CWD, at(path), uid, gid, flags)
        };
        match op.clone() {
            Op::Mkdir(path, mode) => fs::mkdir(at(path), Mode::from_raw_mode(mode.into()))?,
            Op::Symlink(target, path) => fs::symlink(target, at(path))?,
            Op::Fifo(path) => {
                let mode = Mode::from_raw_mode(0o666);
                fs::mknodat(CWD, at(path), fs::FileType::Fifo, mode, 0)?;
            }
            Op::Open(path, flags, mode, umask, with) => {
                rustix::process::umask(Mode::from_raw_mode(umask.into()));
                let mode = Mode::from_raw_mode(mode.into());
                let file = fs::open(at(path), o_flags(flags), mode)?;
                let with = with.iter().map(|with| {
                    let done = Self::with(&file, with);
                    said(done.map_err(|err| err.raw_os_error()))
                });
                return Ok(with.collect::<Vec<_>>().join("; "));
            }
            Op::Chmod(path, mode) => fs::chmod(at(path), Mode::from_raw_mode(mode.into()))?,
            Op::Chown(path, uid, gid) => chown(path, uid, gid, AtFlags::empty())?,
            Op::Lchown(path, uid, gid) => chown(path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?,
            Op::Truncate(path, size) => {
                // rustix has none by path.
                let path = std::ffi::CString::new(at(path).into_os_string().into_encoded_bytes());
                // SAFETY: the path is a string that ends in NUL, and lives until it returns.
                let done = unsafe { libc::truncate(path.unwrap().as_ptr(), size as i64) };
                if done != 0 {
                    let err = std::io::Error::last_os_error();
                    return Err(rustix::io::Errno::from_io_error(&err).unwrap());
                }
            }
            Op::Utimens(path, atime, mtime) => {
                let time = |sec| Timespec {
                    tv_sec: if matches!(sec, OMIT | NOW) { 0 } else { sec },
                    tv_nsec: match sec {
                        OMIT => fs::UTIME_OMIT,
                        NOW => fs::UTIME_NOW,
                        _ => 0,
                    },
                };
                let times = Timestamps {
                    last_access: time(atime),
                    last_modification: time(mtime),
                };
                fs::utimensat(CWD, at(path), &times, AtFlags::empty())?;
            }
            Op::GetXattr(path, name) => {
                let mut buf = vec![0; 65536];
                let len = fs::getxattr(at(path), name, &mut buf[..])?;
                return Ok(hex(&buf[..len]));
            }
            Op::SetXattr(path, name, value, flags) => {
                let flags = fs::XattrFlags::from_bits_retain(flags);
                fs::setxattr(at(path), name, &value, flags)?;
            }
            Op::ListXattrs(path) => {
                let mut buf = vec![0; 65536];
                let len = fs::listxattr(at(path), &mut buf[..])?;
                let list = buf[..len].split(|byte| *byte == 0);
                let list = list.filter(|name| !name.is_empty()).map(Box::from);
                return Ok(names(list.collect()));
            }
            Op::RemoveXattr(path, name) => fs::removexattr(at(path), name)?,
            Op::Access(path, mode, effective) => {
                let mode = fs::Access::from_bits_retain(mode);
                let mut flags = AtFlags::empty();
                flags.set(AtFlags::EACCESS, effective);
                fs::accessat(CWD, at(path), mode, flags)?;
            }
            Op::Stat(path) => {
                let is = fs::lstat(at(path))?;
                let regular = fs::FileType::from_raw_mode(is.st_mode).is_file();
                let size = if regular { is.st_size as u64 } else { 0 };
                return Ok(stat(is.st_mode, is.st_uid, is.st_gid, size));
            }
        }
        Ok(String::new())
    }

    fn with(file: &OwnedFd, with: &With) -> Done<String> {
        use rustix::fs;
        let mut said = String::new();
        match with.clone() {
            With::Read(offset, len) => {
                let mut buf = vec![0; len];
                let read = rustix::io::pread(file, &mut buf[..], offset)?;
                said = format!("{:?}", &buf[..read]);
            }
            With::Write(offset, bytes) => {
                said = rustix::io::pwrite(file, bytes, offset)?.to_string();
            }
            With::SetLen(size) => fs::ftruncate(file, size)?,
            With::Allocate(how, offset, len) => {
                fs::fallocate(file, FallocateFlags::from_bits_retain(how), offset, len)?;
            }
            With::SeekData(offset) => {
                said = fs::seek(file, fs::SeekFrom::Data(offset))?.to_string();
            }
            With::SeekHole(offset) => {
                said = fs::seek(file, fs::SeekFrom::Hole(offset))?.to_string();
            }
            With::Chmod(mode) => fs::fchmod(file, Mode::from_raw_mode(mode.into()))?,
            With::Sync => fs::fsync(file)?,
            With::GetXattr(name) => {
                let mut buf = vec![0; 65536];
                let len = fs::fgetxattr(file, name, &mut buf[..])?;
                said = hex(&buf[..len]);
            }
            With::SetXattr(name, value) => {
                fs::fsetxattr(file, name, &value, fs::XattrFlags::empty())?;
            }
            With::List => {
                let mut buf = [std::mem::MaybeUninit::uninit(); 8192];
                let mut dir = fs::RawDir::new(file, &mut buf);
                let mut entries = 0;
                while let Some(entry) = dir.next() {
                    entries += usize::from(!matches!(entry?.file_name().to_bytes(), b"." | b".."));
                }
                said = entries.to_string();
            }
        }
        Ok(said)
    }
}

fn o_flags(flags: OpenFlags) -> OFlags {
    let mut all = match (
        flags.contains(OpenFlags::READ),
        flags.contains(OpenFlags::WRITE),
    ) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    for (ours, theirs) in [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCL, OFlags::EXCL),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::NOFOLLOW, OFlags::NOFOLLOW),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::PATH, OFlags::PATH),
        (OpenFlags::TMPFILE, OFlags::TMPFILE),
        (OpenFlags::NOATIME, OFlags::NOATIME),
        (OpenFlags::SYNC, OFlags::SYNC),
        (OpenFlags::DSYNC, OFlags::DSYNC),
    ] {
        if flags.contains(ours) {
            all |= theirs;
        }
    }
    all
}

/// Takes on a user's ids and only those capabilities.
fn become_caller(who: Who) -> Done<()> {
    let groups: Vec<Gid> = who.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(who.uid), Gid::from_raw(who.uid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    // Else the change of uid would drop the capabilities that some callers keep.
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let kept = [
        (Caps::DAC_OVERRIDE, CapabilitySet::DAC_OVERRIDE),
        (Caps::DAC_READ_SEARCH, CapabilitySet::DAC_READ_SEARCH),
        (Caps::FOWNER, CapabilitySet::FOWNER),
        (Caps::CHOWN, CapabilitySet::CHOWN),
        (Caps::FSETID, CapabilitySet::FSETID),
        (Caps::MKNOD, CapabilitySet::MKNOD),
        (Caps::LINUX_IMMUTABLE, CapabilitySet::LINUX_IMMUTABLE),
        (Caps::SYS_ADMIN, CapabilitySet::SYS_ADMIN),
        (Caps::SETFCAP, CapabilitySet::SETFCAP),
    ];
    let kept = kept.iter().filter(|(ours, _)| who.caps.contains(*ours));
    let kept: CapabilitySet = kept.map(|(_, theirs)| *theirs).collect();
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
}
