//! Mounting: by mount(2), or with the help of fusermount3 for users without the privilege.
//!
//! The process that mounts keeps the connection, and goes by that when the session ends, never
//! by the path: after an unmount from outside, another file system may be mounted there.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getgid, getuid};

use crate::Options;

const HELPER: &str = "fusermount3";

/// Mounts on `at` and returns the connection.
///
/// # Errors
/// Those of the kernel or fusermount3; [`io::ErrorKind::NotFound`] if the latter is needed and
/// not installed.
pub(super) fn mount(at: &Path, options: &Options) -> io::Result<OwnedFd> {
    match by_kernel(at, options) {
        Err(err) if err.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            by_helper(at, options)
        }
        done => done,
    }
}

/// Detaches the mount at `at` through fusermount3, for users without the privilege.
///
/// # Errors
/// Those of fusermount3.
pub(super) fn unmount(at: &Path) -> io::Result<()> {
    let mut helper = Command::new(HELPER);
    let said = helper.args(["-u", "-z", "--"]).arg(at).output()?;
    match said.status.success() {
        true => Ok(()),
        false => Err(complaint(&said.stderr)),
    }
}

fn by_kernel(at: &Path, options: &Options) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (options.noexec, MountFlags::NOEXEC),
        (options.noatime, MountFlags::NOATIME),
    ] {
        flags.set(flag, wanted);
    }
    rustix::mount::mount(&*options.source, at, "fuse.rcuwalk", flags, &*data)?;
    Ok(device.into())
}

fn by_helper(at: &Path, options: &Options) -> io::Result<OwnedFd> {
    let (ours, its) = UnixStream::pair()?;
    let mut helper = Command::new(HELPER);
    helper.args(["-o", &helper_options(options), "--"]).arg(at);
    // The helper's standard input is the socket by which it sends the descriptor.
    helper.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(its));
    helper.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = helper.spawn()?;
    // Closes our copy of the helper's end of the socket; the helper has its own.
    drop(helper);
    let received = receive(&ours);
    let said = child.wait_with_output()?;
    match received? {
        Some(connection) if said.status.success() => Ok(connection),
        _ => Err(complaint(&said.stderr)),
    }
}

fn helper_options(options: &Options) -> String {
    // In these two options, the value ends at a comma that is not escaped.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={source},subtype=rcuwalk,default_permissions");
    for (wanted, option) in [
        (options.allow_other, ",allow_other"),
        (options.read_only, ",ro"),
        (options.suid, ",suid"),
        (options.dev, ",dev"),
        (options.noexec, ",noexec"),
        (options.noatime, ",noatime"),
    ] {
        if wanted {
            list.push_str(option);
        }
    }
    list
}

/// Receives the descriptor from the socket; `None` if its other end is closed without one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut messages = control.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// The error message of fusermount3, in one line.
fn complaint(said: &[u8]) -> io::Error {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().next().unwrap_or("fusermount3 has failed");
    io::Error::other(line.trim_start_matches("fusermount3: ").to_owned())
}
