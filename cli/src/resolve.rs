//! `rcuwalk resolve`: like namei(1), but telling which walk did it.
//!
//! The host's tree is mounted afresh, so the caches are empty: the first path shows the cost of
//! a cold walk, later ones find the components that they share with it cached.

mod owners;
mod table;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rcuwalk::{Budget, Context, FileType, Freshness, LookupFlags, Trace, Vfs, VfsPath};
use rcuwalk_hostfs::{HostFs, process_credentials};

use crate::failure::{Failure, errno_text, print};
use crate::limits::raise_descriptor_limit;
use table::Table;

/// Show how a path is resolved, step by step
///
/// Each component is shown with its type and permissions, its owner and group, where
/// the answer came from, and which walk took the step: the rcu-walk, which needs all
/// of it cached, or the ref-walk, which may ask the file system. The steps of a link
/// are indented below it.
///
/// Nothing is cached at first. A later path finds cached what it has in common with
/// those before it.
#[derive(clap::Args)]
#[command(after_help = "\
COLUMNS:
  looked up   the file system was asked, and the answer is now cached
  cached      the cache knew
  held        no name to look up: the start, `.` and `..`
  mount TYPE  the step crossed a mount point; TYPE is what is mounted there

Links of /proc that the kernel follows without reading them (/proc/PID/fd/N, exe,
cwd, root) are not followed: Permission denied.

EXIT STATUS:
  0 if all paths were resolved, 1 if one was not, 2 for wrong usage.")]
pub(crate) struct Args {
    /// The paths; relative ones start in the current directory
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Do not follow a symbolic link at the end of a path
    #[arg(short = 'l', long)]
    nofollow: bool,
    /// Resolve each path once before, and show the second, cached walk
    #[arg(short, long)]
    warm: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let vfs = host_tree()?;
    let mut ctx = vfs.context(process_credentials());
    // Only if needed: the way there would be cached already when the first path is
    // resolved, and may be closed to us.
    if args
        .paths
        .iter()
        .any(|path| !path.as_bytes().starts_with(b"/"))
    {
        let cwd = current_dir(&vfs, &ctx)?;
        ctx = ctx.with_cwd(cwd);
    }
    let mut flags = LookupFlags::FOLLOW;
    flags.set(LookupFlags::FOLLOW, !args.nofollow);
    let mut failed = Vec::new();
    let table = Table::new(&ctx);
    for path in &args.paths {
        let bytes = path.as_bytes();
        if args.warm {
            // Its outcome is the second walk's to tell.
            drop(vfs.lookup(&ctx, bytes, flags));
        }
        let trace = vfs.trace(&ctx, bytes, flags);
        let target = unfollowed_target(&vfs, &ctx, bytes, &trace);
        print(&table.of(bytes, &trace, target.as_deref()))?;
        if let Err(err) = trace.result {
            let shown = match bytes {
                b"" => "an empty path".to_owned(),
                _ => bytes.escape_ascii().to_string(),
            };
            failed.push(format!("{shown} - {}", errno_text(err.errno())));
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::Errors(failed))
    }
}

/// The host's tree, with nothing cached.
fn host_tree() -> Result<Vfs, Failure> {
    let host = HostFs::new("/").map_err(Failure::error)?;
    // This process is over before anything could get old.
    let host = host.with_freshness(Freshness::Always);
    // The other half is for files that are open for a moment.
    let budget = Budget::default().fds(raise_descriptor_limit() / 2);
    Vfs::with_budget(host, budget).map_err(Failure::error)
}

fn current_dir(vfs: &Vfs, ctx: &Context) -> Result<VfsPath, Failure> {
    let found = env::current_dir()
        .and_then(|cwd| Ok(vfs.lookup(ctx, cwd.as_os_str().as_bytes(), LookupFlags::DIRECTORY)?));
    found.map_err(|err| {
        Failure::error(format_args!(
            "cannot use the current directory: {err}; change to another one, or give absolute paths"
        ))
    })
}

/// Where a link at the end leads that was not followed.
fn unfollowed_target(vfs: &Vfs, ctx: &Context, path: &[u8], trace: &Trace) -> Option<Box<[u8]>> {
    let last = trace.steps.last()?;
    let is_link = last.attr.is_some_and(|attr| attr.kind == FileType::Symlink);
    if is_link && last.link.is_none() && trace.result.is_ok() {
        vfs.read_link(ctx, path).ok()
    } else {
        None
    }
}

/// A name for a terminal: no byte that could mean something else there.
fn shown(name: &[u8]) -> String {
    match OsStr::from_bytes(name).to_str() {
        Some(name) if !name.chars().any(char::is_control) => name.replace('\\', "\\\\"),
        _ => name.escape_ascii().to_string(),
    }
}
