//! Into the background: this program, started once more.
//!
//! A process with threads cannot fork and go on, so the daemon is a child that executes this
//! program anew, with the same arguments and `--daemonized`. Its standard output is a pipe to
//! the parent. One byte there says that the tree is mounted, and the parent exits with success;
//! if the pipe ends without it, the child has printed the error on standard error, and the
//! parent exits with the child's status. If the parent has ended by then, no process waits for
//! the mount, and it is undone.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, stat, statat};
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_name};

use crate::failure::{Failure, Words};

/// Hidden arguments that this program passes to itself.
#[derive(clap::Args)]
pub(crate) struct InnerArgs {
    /// This is the child
    #[arg(long, hide = true)]
    pub(crate) daemonized: bool,
    /// This is the keeper of a sandboxed mount
    #[arg(long, hide = true)]
    pub(crate) keeper: bool,
    /// Check the options, and mount nothing: mount(8)'s -f
    #[arg(long, hide = true)]
    pub(crate) fake: bool,
    /// Mount in this mount namespace: mount(8)'s -N
    #[arg(long, hide = true, value_name = "FILE")]
    namespace: Option<PathBuf>,
}

/// In the parent: returns when the tree is mounted, or served. `words` are those of the command, as
/// `mount`.
pub(crate) fn start(words: &[&str], argv: &[OsString]) -> Result<(), Failure> {
    let cannot =
        |err: io::Error| Failure::error(format_args!("cannot start a daemon: {}", Words(&err)));
    let mut command = Command::new(own_program().map_err(cannot)?);
    command.arg0("rcuwalk").args(words).arg("--daemonized");
    // Behind the program's name and these words.
    command.args(argv.get(1 + words.len()..).unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    if let Some(mut pipe) = child.stdout.take()
        && pipe.read(&mut [0]).map_err(cannot)? == 1
    {
        return Ok(());
    }
    let ended = child.wait().map_err(cannot)?;
    match (ended.code(), ended.signal()) {
        (Some(code), _) => Err(Failure::Said(u8::try_from(code).unwrap_or(1))),
        (None, signal) => Err(Failure::error(format_args!(
            "the daemon was ended by signal {} before it was ready",
            signal.unwrap_or_default()
        ))),
    }
}

/// A path that leads to the program of this process, also when the file has been replaced
/// meanwhile.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let path = PathBuf::from("/proc/self/exe");
    // From the checked procfs; a mount that covers /proc could name another program.
    let own = statat(rcuwalk_procfs::hold()?, "self/exe", AtFlags::empty())?;
    let there = stat(&path)?;
    match (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino) {
        true => Ok(path),
        false => Err(io::Error::other("/proc is covered: it is not procfs")),
    }
}

impl InnerArgs {
    /// In the child, before anything else: away from the terminal, and where it is wanted.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        if self.daemonized {
            leave_terminal();
        }
        let Some(namespace) = &self.namespace else {
            return Ok(());
        };
        // The owner of the namespace controls its /proc.
        rcuwalk_procfs::hold()
            .map_err(|err| Failure::error(format_args!("cannot use /proc: {}", Words(&err))))?;
        let entered = File::open(namespace).and_then(|file| {
            let kind = Some(LinkNameSpaceType::Mount);
            Ok(move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&file),
                kind,
            )?)
        });
        entered.map_err(|err| {
            Failure::error(format_args!(
                "cannot enter the mount namespace {}: {}",
                namespace.display(),
                Words(&err)
            ))
        })
    }
}

/// In the child, before anything else.
pub(crate) fn leave_terminal() {
    // Fails only for a session leader.
    let _ = setsid();
    // For ps and pkill; by the path that was executed it would be `exe`.
    let _ = set_name(c"rcuwalk");
}

/// In the child: tells the parent that the tree is mounted, and closes the descriptors that the
/// two share. A process that waits for the end of the parent's standard error would else wait
/// for ours.
pub(crate) fn ready() -> Result<(), Failure> {
    let detached = || -> io::Result<()> {
        env::set_current_dir("/")?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stderr(&null)?;
        let mut pipe = io::stdout();
        pipe.write_all(b"+").and_then(|()| pipe.flush())?;
        Ok(dup2_stdout(&null)?)
    };
    detached()
        .map_err(|err| Failure::error(format_args!("cannot become a daemon: {}", Words(&err))))
}
