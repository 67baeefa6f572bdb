//! `rcuwalk umount`.
//!
//! After its process was killed, even a stat of the mount point fails (`ENOTCONN`), so it is
//! found by its directory and name, and by the kernel's list of mounts. Another mount that a
//! user has put there meanwhile, by a link or a rename, is not unmounted.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::UnmountFlags;

use crate::failure::{Failure, errno_text};
use crate::mountinfo;
use crate::runtime;

/// Unmount a mount of `rcuwalk mount`
///
/// Also one that a killed process has left behind. Waits for the end of the process that served
/// it, ten seconds at most, unless --lazy is given.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// If it is in use, take it out of the tree now and end it when it is no longer used
    #[arg(short, long)]
    lazy: bool,
    /// End its connection first, so that all who wait for its process get an error
    ///
    /// For a process that was killed or hangs, and root. What was written and is not stored yet is
    /// lost. Those who wait for a stopped process by io_uring get their error when that goes on or
    /// is killed.
    #[arg(short, long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let given = args.mountpoint.display();
    let cannot = |why: &str| Failure::error(format_args!("cannot unmount {given}: {why}"));
    let (place, mount) = mountinfo::ours(&args.mountpoint).map_err(|why| cannot(&why))?;
    // Looked up first: after the unmount another mount may have its number.
    let process = match args.lazy {
        true => None,
        false => runtime::process(&mount),
    };
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::DETACH, args.lazy);
    flags.set(UnmountFlags::FORCE, args.force);
    let unmount = || place.unmount(Some(mount.id), flags);
    let mut done = unmount();
    // The connection has ended by then, and so will requests.
    for _ in 0..20 {
        if !args.force || done != Err(Errno::BUSY) {
            break;
        }
        thread::sleep(Duration::from_millis(50));
        done = unmount();
    }
    let done = match done {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(cannot("it is in use (--lazy detaches it, --force ends it)")),
        Err(Errno::PERM) => by_helper(&mount.at, args.lazy).map_err(|why| cannot(&why)),
        Err(errno) => Err(cannot(&errno_text(errno.raw_os_error()))),
    };
    done?;
    if let Some(process) = process
        && !ends(&process)
    {
        eprintln!("rcuwalk: {given} is unmounted, and its process has not ended yet");
    }
    runtime::forget(&mount);
    Ok(())
}

/// Waits for the end of the process that served the mount: then its log is written, its names are
/// gone, and all that it held is released. A stopped one is not waited for without end.
fn ends(process: &OwnedFd) -> bool {
    const PATIENCE: Timespec = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    let mut process = [PollFd::new(process, PollFlags::IN)];
    retry_on_intr(|| poll(&mut process, Some(&PATIENCE))).is_ok_and(|ended| ended > 0)
}

pub(super) fn by_helper(at: &Path, lazy: bool) -> Result<(), String> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u");
    if lazy {
        helper.arg("-z");
    }
    let said = match helper.arg("--").arg(at).output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => output.stderr,
        Err(_) => return Err("not permitted, and there is no fusermount3 to ask".to_owned()),
    };
    let said = std::ffi::OsStr::from_bytes(&said);
    Err(said.to_string_lossy().trim().to_owned())
}
