//! Loop mounts that are gone when they are dropped, even if the process is killed.
//!
//! They are made in a mount namespace of their own, which belongs to the thread that
//! made it and the threads that it starts; with the last of these the namespace goes,
//! and the mounts in it, and their loop devices.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

/// Gives the calling thread, and those it will start, mounts of their own. There is no
/// way back: call it on a thread that is made for this.
///
/// # Errors
///
/// `EPERM` without root.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: only `UnshareFlags::FILES` can break Rust's rules; no memory safety rests
    // on mounts and current directories.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS)? };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    Ok(())
}

/// An image, mounted.
#[derive(Debug)]
pub struct LoopMount {
    at: TempDir,
}

impl LoopMount {
    /// Mounts `image` with `options` (as for mount(8), `loop` comes with it). The caller
    /// has [mounts of his own](own_mounts).
    ///
    /// # Errors
    ///
    /// What mount(8) said.
    pub fn new(image: &Path, options: &str) -> io::Result<Self> {
        Self::of("ext4", image, options)
    }

    /// As [`new`](Self::new), for an image of that type of file system.
    ///
    /// # Errors
    ///
    /// What mount(8) said.
    pub fn of(kind: &str, image: &Path, options: &str) -> io::Result<Self> {
        let at = tempfile::tempdir()?;
        let mut mount = Command::new("mount");
        mount
            .args(["-t", kind, "-o"])
            .arg(format!("loop,{options}"));
        run(mount.arg(image).arg(at.path()))?;
        Ok(Self { at })
    }

    /// Where.
    pub fn path(&self) -> &Path {
        self.at.path()
    }

    /// Changes the options of the mount.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn make_read_only(&self) -> io::Result<()> {
        rustix::mount::mount_remount(self.path(), MountFlags::RDONLY, "")?;
        Ok(())
    }

    /// Undoes [`make_read_only`](Self::make_read_only).
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn make_writable(&self) -> io::Result<()> {
        rustix::mount::mount_remount(self.path(), MountFlags::NOATIME, "")?;
        Ok(())
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let detach = rustix::mount::UnmountFlags::empty();
        if rustix::mount::unmount(self.path(), detach).is_err() {
            // The mount is in use: it goes away with its last user.
            let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Runs a program to its end; its standard error becomes the error message.
///
/// # Errors
///
/// If it cannot be run, or failed.
pub(crate) fn run(command: &mut Command) -> io::Result<()> {
    let name = PathBuf::from(command.get_program());
    let output = command.output().map_err(|err| {
        let why = match err.kind() {
            io::ErrorKind::NotFound => "it is not installed, or not in PATH".to_owned(),
            _ => err.to_string(),
        };
        io::Error::new(err.kind(), format!("cannot run {}: {why}", name.display()))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    Err(io::Error::other(format!(
        "{} ended with {}: {said}",
        name.display(),
        output.status
    )))
}
