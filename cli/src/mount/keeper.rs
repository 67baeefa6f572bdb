//! The keeper of a sandboxed mount: a process that unmounts it.
//!
//! With `--sandbox` the process that serves has given up the right to unmount: Landlock refuses
//! umount2(2), and with no new privileges a user's fusermount3 gets none. So it starts this
//! process before it gives up anything, and asks it by a pipe:
//!
//! ```text
//!   server                          keeper
//!     |--- "unmount ID" ------------->|   the mount with the kernel's id ID
//!     |--- "detach ID"  ------------->|   the same, though it is in use
//!     |<-- "0" or an errno, or words -|
//!     x--- end of the pipe ---------->x   the server has ended
//! ```
//!
//! It unmounts only file systems of this program, and finds the mount by its id, not by a path.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rcuwalk_fuse::mount_point::MountPoint;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::setsid;
use rustix::thread::set_name;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{daemon, umount};
use crate::failure::{Failure, Words};
use crate::mountinfo;

/// The server's end.
pub(super) struct Keeper {
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    /// Not waited for: it ends when the pipe does, after this process.
    _process: Child,
}

impl Keeper {
    /// Starts the keeper.
    pub(super) fn start(source: &Path, mountpoint: &Path) -> Result<Keeper, Failure> {
        let start = || {
            let mut command = Command::new(daemon::own_program()?);
            command.arg0("rcuwalk").args(["mount", "--keeper", "--"]);
            command.arg(source).arg(mountpoint);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            // Otherwise it would keep the server's open.
            command.stderr(Stdio::null());
            command.spawn()
        };
        let cannot = |err: io::Error| {
            Failure::error(format_args!(
                "cannot start a process to unmount with: {}",
                Words(&err)
            ))
        };
        let mut process = start().map_err(cannot)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(cannot(io::ErrorKind::BrokenPipe.into()));
        };
        let pipes = Mutex::new((input, BufReader::new(output)));
        Ok(Keeper {
            pipes,
            _process: process,
        })
    }

    /// Has the keeper unmount the mount `id`.
    ///
    /// # Errors
    /// Those of umount2(2) or fusermount3; the keeper is gone.
    pub(super) fn unmount(&self, id: u64, detach: bool) -> io::Result<()> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let (input, output) = &mut *pipes;
        let what = if detach { "detach" } else { "unmount" };
        writeln!(input, "{what} {id}")?;
        let mut answer = String::new();
        output.read_line(&mut answer)?;
        let answer = answer.trim_end();
        match answer.parse() {
            Ok(0) => Ok(()),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(_) if answer.is_empty() => {
                Err(io::Error::other("the process to unmount with is gone"))
            }
            Err(_) => Err(io::Error::other(answer.to_owned())),
        }
    }
}

/// In the keeper: answers until the server has ended.
pub(super) fn run() -> Result<(), Failure> {
    // In a session of its own: signals to a terminal's or a service's processes reach both, and
    // the server then asks the keeper to unmount.
    let _ = setsid();
    let _ = set_name(c"rcuwalk-keeper");
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).map_err(Failure::error)?;
    }
    std::env::set_current_dir("/").map_err(Failure::error)?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Failure::error)?;
        let answer = match line.split_once(' ').map(|(what, id)| (what, id.parse())) {
            Some(("unmount", Ok(id))) => unmount(id, false),
            Some(("detach", Ok(id))) => unmount(id, true),
            _ => Errno::INVAL.raw_os_error().to_string(),
        };
        // The server has ended if this fails, and so does the loop.
        let _ = writeln!(out, "{answer}").and_then(|()| out.flush());
    }
    Ok(())
}

/// An errno, 0 if it is done, or words.
fn unmount(id: u64, lazy: bool) -> String {
    let code = |errno: Errno| errno.raw_os_error().to_string();
    let Ok(mounts) = mountinfo::mounts() else {
        return code(Errno::IO);
    };
    let Some(mount) = mounts.iter().find(|mount| mount.id == id) else {
        // Not in the tree any more.
        return "0".to_owned();
    };
    if !mount.is_ours() {
        return code(Errno::PERM);
    }
    // Below another mount the path leads to that one.
    let Ok(place) = MountPoint::open(&mount.at) else {
        return code(Errno::BUSY);
    };
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::DETACH, lazy);
    match place.unmount(Some(id), flags) {
        Ok(()) => "0".to_owned(),
        Err(Errno::INVAL) => code(Errno::BUSY),
        Err(Errno::PERM) => match umount::by_helper(&mount.at, lazy) {
            Ok(()) => "0".to_owned(),
            Err(why) => why
                .lines()
                .next()
                .unwrap_or("fusermount3 has failed")
                .to_owned(),
        },
        Err(errno) => code(errno),
    }
}
