//! A tree that is mounted while a suite runs, and a run that has a time limit.
//!
//! A process that waits for a FUSE mount that does not answer cannot be killed. So a suite that
//! takes too long is stopped by ending the mount's process: then every request fails.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::Result;

/// How often it is looked whether something has ended.
const TICK: Duration = Duration::from_millis(20);

/// A directory that all users may walk through; with a tmpfs in it for host directories, so
/// that they are the same on every machine.
pub(super) struct Scratch {
    path: PathBuf,
    backings: AtomicUsize,
}

impl Scratch {
    pub(super) fn new() -> Result<Scratch> {
        // Not in $TMPDIR: there are lengths of a path, from 9 on every 127, at which
        // pjdfstest computes names of -1 bytes. None of ours is.
        let path = PathBuf::from(format!("/tmp/rcuwalk-suites-{}", process::id()));
        directory(&path)?;
        let scratch = Scratch {
            path,
            backings: AtomicUsize::new(0),
        };
        directory(&scratch.host())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "rcuwalk-suites"]);
        succeed(mount.arg(scratch.host()))?;
        Ok(scratch)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A tmpfs.
    pub(super) fn host(&self) -> PathBuf {
        self.path.join("host")
    }

    /// A new directory in it, to be shown by a mount.
    pub(super) fn new_backing(&self) -> Result<PathBuf> {
        let number = self.backings.fetch_add(1, Relaxed);
        let path = self.host().join(format!("backing{number}"));
        directory(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = succeed(Command::new("umount").arg("-l").arg(self.host()));
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn directory(path: &Path) -> Result<()> {
    let made = fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    made.map_err(|err| format!("{}: {err}", path.display()))
}

fn succeed(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown} failed: {status}")),
        Err(err) => Err(format!("{shown} did not start: {err}")),
    }
}

/// A tree that `rcuwalk mount` shows; detached on drop.
pub(super) struct Mounted {
    process: Child,
    at: PathBuf,
}

impl Mounted {
    pub(super) fn new(
        rcuwalk: &Path,
        source: &Path,
        at: PathBuf,
        options: &str,
    ) -> Result<Mounted> {
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        directory(&at)?;
        let before = device(&at).ok();
        let mut command = Command::new(rcuwalk);
        command.args(["mount", "-o", options]).arg(source).arg(&at);
        let started = command.stdin(Stdio::null()).spawn();
        let process = started.map_err(|err| format!("{command:?} did not start: {err}"))?;
        let mut mounted = Mounted { process, at };
        let begin = Instant::now();
        while device(&mounted.at).ok() == before {
            if let Ok(Some(status)) = mounted.process.try_wait() {
                return Err(format!("{command:?} has ended: {status}"));
            }
            if begin.elapsed() > Duration::from_secs(10) {
                return Err(format!("{command:?} does not mount"));
            }
            thread::sleep(TICK);
        }
        Ok(mounted)
    }

    pub(super) fn path(&self) -> &Path {
        &self.at
    }

    /// Runs `command` with its output going to a file; returns that.
    pub(super) fn run(
        &mut self,
        command: &mut Command,
        limit: Duration,
        output: &Path,
    ) -> Result<(ExitStatus, String)> {
        let shown = format!("{command:?}");
        let failed = |err| format!("{shown}: {err}");
        let file = File::create(output).map_err(failed)?;
        command.stdin(Stdio::null());
        command
            .stderr(file.try_clone().map_err(failed)?)
            .stdout(file);
        let mut child = command.spawn().map_err(failed)?;
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if begin.elapsed() > limit {
                let _ = self.process.kill();
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{shown} had not ended after {limit:?}"));
            }
            thread::sleep(TICK);
        };
        let text = fs::read(output).map_err(failed)?;
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Unmounts it; its process has to end well.
    pub(super) fn unmount(mut self) -> Result<()> {
        succeed(Command::new("umount").arg(&self.at))?;
        let status = self.process.wait().map_err(|err| err.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("rcuwalk mount has ended: {status}")),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let _ = succeed(Command::new("umount").arg("-l").arg(&self.at));
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        let _ = fs::remove_dir(&self.at);
    }
}
