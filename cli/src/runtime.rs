//! Where a mount can be asked how it is: a socket for each in a directory of its user's,
//! named after the mount's device number.
//!
//! | mounted by | directory                                              |
//! |------------|--------------------------------------------------------|
//! | root       | `/run/rcuwalk`                                         |
//! | other users | `rcuwalk` in `$XDG_RUNTIME_DIR`, which is `/run/user/UID` |
//!
//! Servers have one as well, named after their process.
//!
//! Only the user and root may connect, whatever the umask. Root connects to no socket that is
//! not the user's own: where a user puts a link or another user's socket, the mount is
//! `unknown`. Root removes nothing there. And root looks into no directory where the user has mounted something: a lookup
//! there could take for ever.
//!
//! The socket speaks HTTP as `--metrics` does, and serves `/status`, too. It tells whether the
//! process lives without accessing the mount, which could take for ever: while a process
//! listens, a connection succeeds even if that process is stopped; after its end, it is
//! refused.

use std::env;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rcuwalk_fuse::mount_point;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::mountinfo::MountInfo;

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// File systems that answer by themselves. One that asks a process or a server may never do so,
/// and a process that waits for it cannot be killed.
const LOCAL: [&str; 8] = [
    "tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "overlay",
];

/// Longest answer that is read. Ours are shorter; users' processes may send anything.
const LONGEST: usize = 64 << 10;

/// The state of a mount's process.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It answers.
    Alive,
    /// It is there, and does not answer: stopped, or overloaded.
    Silent,
    /// It is gone, and has left its mount.
    Dead,
    /// No process listens at the expected socket, or it does not accept us.
    Unknown,
}

/// The name of a socket, removed on drop, unless another process has taken the name since.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    /// Device and inode number of the socket.
    socket: (u64, u64),
}

impl Drop for Bound {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.socket) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let there = path.symlink_metadata()?;
    Ok((there.dev(), there.ino()))
}

/// Listens at `path`; replaces the socket of a dead process.
///
/// # Errors
/// [`ErrorKind::AddrInUse`] if a process listens there, or it is no socket.
pub(crate) fn bind(path: &Path) -> io::Result<(UnixListener, Bound)> {
    if path.symlink_metadata().is_ok() && !is_refused(path) {
        return Err(ErrorKind::AddrInUse.into());
    }
    bind_over(path, None)
}

/// As [`bind`], for this user alone, whatever the umask.
///
/// # Errors
/// As [`bind`].
pub(crate) fn bind_private(path: &Path) -> io::Result<(UnixListener, Bound)> {
    if path.symlink_metadata().is_ok() && !is_refused(path) {
        return Err(ErrorKind::AddrInUse.into());
    }
    bind_over(path, Some(Mode::RUSR | Mode::WUSR))
}

/// Listens at `path` in place of an earlier listener. `mode` is the mode of the name; without
/// it the umask applies.
fn bind_over(path: &Path, mode: Option<Mode>) -> io::Result<(UnixListener, Bound)> {
    // It gets its name once it listens, so that no process takes it for a dead one before.
    let mut unnamed = path.as_os_str().to_owned();
    unnamed.push(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&unnamed);
    let listener = listen(unnamed.as_ref(), mode)?;
    let socket = identity(unnamed.as_ref())?;
    fs::rename(&unnamed, path)?;
    let path = path.to_owned();
    Ok((listener, Bound { path, socket }))
}

fn listen(path: &Path, mode: Option<Mode>) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if let Some(mode) = mode {
        // The name gets it from the socket, so that it never has another one.
        rustix::fs::fchmod(&socket, mode)?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// The directory of this user's sockets, made if it is not there.
pub(crate) fn own_directory() -> io::Result<PathBuf> {
    let dir = directory(rustix::process::getuid().as_raw());
    let dir = dir.ok_or(ErrorKind::NotFound)?;
    let mut made = fs::DirBuilder::new();
    made.recursive(true).mode(0o755).create(&dir)?;
    Ok(dir)
}

/// Listens for status requests about this process's mount.
pub(crate) fn register(mount: &MountInfo) -> io::Result<(UnixListener, Bound, PathBuf)> {
    let path = socket(mount).ok_or(ErrorKind::NotFound)?;
    sweep(&own_directory()?);
    // A process that still listens there served a mount that had this device number before and
    // is over.
    let private = Mode::RUSR | Mode::WUSR;
    let (listener, bound) = bind_over(&path, Some(private))?;
    Ok((listener, bound, path))
}

/// The beginning of the names of servers' sockets; the process id follows.
const SERVER: &str = "nfs-";

/// Listens for status requests about this process's server, for this user alone.
pub(crate) fn register_server() -> io::Result<(UnixListener, Bound, PathBuf)> {
    let dir = own_directory()?;
    sweep(&dir);
    let path = dir.join(format!("{SERVER}{}.sock", std::process::id()));
    let (listener, bound) = bind_private(&path)?;
    Ok((listener, bound, path))
}

/// The sockets of this user's servers, in order.
pub(crate) fn servers() -> Vec<PathBuf> {
    let dir = directory(rustix::process::getuid().as_raw());
    let entries = dir.and_then(|dir| fs::read_dir(dir).ok());
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let is_server = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(SERVER) && name.ends_with(".sock")
    };
    let mut servers: Vec<PathBuf> = paths.filter(is_server).collect();
    servers.sort();
    servers
}

/// The state of the server that listens at `path`, one of this user's; its process id and status.
pub(crate) fn ask_server(path: &Path) -> (State, Option<u32>, Option<serde_json::Value>) {
    ask_by(connect(path))
}

/// Forgets a mount whose process is gone. Another user's socket stays: its path leads through that
/// user's directories, elsewhere at any moment, and root could remove any file by it. The user's next
/// mount removes it ([`sweep`]).
pub(crate) fn forget(mount: &MountInfo) {
    if !is_own(mount) {
        return;
    }
    let is_over = connect_to(mount).is_err_and(|err| err.kind() == ErrorKind::ConnectionRefused);
    if let Some(path) = socket(mount).filter(|_| is_over) {
        let _ = fs::remove_file(path);
    }
}

/// The state of the process of `mount`.
pub(crate) fn state(mount: &MountInfo) -> State {
    ask(mount).0
}

/// A handle of the process that serves `mount`, to wait for its end with; `None` if it is not there,
/// or not to be seen from here.
pub(crate) fn process(mount: &MountInfo) -> Option<OwnedFd> {
    let stream = connect_to(mount).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty()).ok()
}

/// The state of the process of `mount`, its id, and its status.
pub(crate) fn ask(mount: &MountInfo) -> (State, Option<u32>, Option<serde_json::Value>) {
    ask_by(connect_to(mount))
}

fn ask_by(connected: io::Result<UnixStream>) -> (State, Option<u32>, Option<serde_json::Value>) {
    let stream = match connected {
        Ok(stream) => stream,
        Err(err) if err.kind() == ErrorKind::ConnectionRefused => return (State::Dead, None, None),
        // More ask than it answers.
        Err(err) if err.kind() == ErrorKind::WouldBlock => return (State::Silent, None, None),
        Err(_) => return (State::Unknown, None, None),
    };
    let pid = rustix::net::sockopt::socket_peercred(&stream).ok();
    let pid = pid.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
    match status(stream) {
        Ok(status) => (State::Alive, pid, Some(status)),
        Err(_) => (State::Silent, pid, None),
    }
}

/// The answer of the process of `mount` for `target`.
///
/// # Errors
/// It does not answer, or not in JSON.
pub(crate) fn get(mount: &MountInfo, target: &str) -> io::Result<serde_json::Value> {
    get_from(connect_to(mount)?, target)
}

fn status(stream: UnixStream) -> io::Result<serde_json::Value> {
    get_from(stream, "/status")
}

fn get_from(mut stream: UnixStream, target: &str) -> io::Result<serde_json::Value> {
    let deadline = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: rcuwalk\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 4 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            len => answer.extend_from_slice(&part[..len]),
        }
        if answer.len() > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
    }
    let end = b"\r\n\r\n";
    let body = answer.windows(end.len()).position(|window| window == end);
    let body = body.ok_or(ErrorKind::InvalidData)? + end.len();
    Ok(serde_json::from_slice(&answer[body..])?)
}

fn is_own(mount: &MountInfo) -> bool {
    mount.owner() == Some(rustix::process::getuid().as_raw())
}

/// Connects to the process of `mount`. One of another user must listen at a socket of that user's,
/// which no link leads to.
fn connect_to(mount: &MountInfo) -> io::Result<UnixStream> {
    let path = socket(mount).ok_or(ErrorKind::NotFound)?;
    if is_own(mount) {
        return connect(&path);
    }
    let owner = mount.owner().ok_or(ErrorKind::NotFound)?;
    // `/run/user/UID`: opening it queries the file system of the mount point, not the one
    // mounted on it.
    let top = path.ancestors().nth(2).ok_or(ErrorKind::NotFound)?;
    let below = path.strip_prefix(top).map_err(|_| ErrorKind::NotFound)?;
    let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat2(CWD, top, flags, Mode::empty(), links)?;
    let id = mount_point::id_of(&top);
    let mounts = crate::mountinfo::mounts()?;
    let kind = mounts.iter().find(|mount| Some(mount.id) == id);
    if !kind.is_some_and(|mount| LOCAL.contains(&&*mount.kind)) {
        return Err(ErrorKind::Unsupported.into());
    }
    let within = links | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
    let held = rustix::fs::openat2(&top, below, flags, Mode::empty(), within)?;
    let there = rustix::fs::fstat(&held)?;
    let is_socket = rustix::fs::FileType::from_raw_mode(there.st_mode).is_socket();
    if !is_socket || there.st_uid != owner {
        return Err(ErrorKind::PermissionDenied.into());
    }
    // By its descriptor: another file may have taken the name since the check.
    let path = rcuwalk_procfs::path_of(held.as_fd()).ok_or(ErrorKind::Unsupported)?;
    let stream = connect(&path)?;
    match rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw() == owner {
        true => Ok(stream),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}

/// Does not wait for one that does not accept.
fn connect(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns whether `path` is a socket without a listener. Any other file refuses connections
/// with the same error, and must not be removed for that.
fn is_refused(path: &Path) -> bool {
    let there = path.symlink_metadata();
    there.is_ok_and(|there| there.file_type().is_socket())
        && connect(path).is_err_and(|err| err.kind() == ErrorKind::ConnectionRefused)
}

fn socket(mount: &MountInfo) -> Option<PathBuf> {
    let device = mount.device.replace(':', "-");
    Some(directory(mount.owner()?)?.join(format!("{device}.sock")))
}

fn directory(owner: u32) -> Option<PathBuf> {
    let me = rustix::process::getuid().as_raw();
    Some(match owner {
        0 => PathBuf::from("/run/rcuwalk"),
        uid if uid == me && env::var_os("XDG_RUNTIME_DIR").is_some() => {
            PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?).join("rcuwalk")
        }
        uid => PathBuf::from(format!("/run/user/{uid}/rcuwalk")),
    })
}

/// Removes the sockets of killed processes.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_socket = path
            .extension()
            .is_some_and(|extension| extension == "sock");
        if is_socket && is_refused(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_nobody_listens_at_makes_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let refused = || bind(&path).map(drop).unwrap_err().kind();
        fs::write(&path, "somebody's").unwrap();
        assert_eq!(refused(), ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("file"), &path).unwrap();
        fs::write(dir.path().join("file"), "somebody's").unwrap();
        assert_eq!(refused(), ErrorKind::AddrInUse, "a link to a file");
        fs::remove_file(&path).unwrap();
        let living = UnixListener::bind(&path).unwrap();
        assert_eq!(refused(), ErrorKind::AddrInUse);
        drop(living);
        let (_listener, bound) = bind(&path).unwrap();
        drop(bound);
        assert!(path.symlink_metadata().is_err());
    }

    #[test]
    fn a_name_that_another_process_has_taken_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (_first, old) = bind(&path).unwrap();
        let (_second, new) = bind_over(&path, None).unwrap();
        drop(old);
        assert!(connect(&path).is_ok(), "the second one's");
        drop(new);
        assert!(path.symlink_metadata().is_err());
    }

    #[test]
    fn who_says_too_much_of_himself_is_not_heard_out() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let talker = std::thread::spawn(move || {
            let mut said = 0;
            while theirs.write_all(&[b'x'; 4 << 10]).is_ok() {
                said += 4 << 10;
            }
            said
        });
        assert_eq!(status(ours).unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(talker.join().unwrap() < 16 << 20);
    }
}
