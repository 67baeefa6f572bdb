//! The `rcuwalk` command.
//!
//! | read         | to learn                                                      |
//! |--------------|---------------------------------------------------------------|
//! | this file    | the subcommands, and how each ends                            |
//! | `bench.rs`   | `rcuwalk bench`: the workloads against the kernel             |
//! | `handles.rs` | `rcuwalk handles`: a database of file handles                 |
//! | `manual.rs`  | `rcuwalk completions`, `man`: made from the help texts        |
//! | `mount.rs`   | `rcuwalk mount`, `umount`: a tree as a mounted file system    |
//! | `mounts.rs`  | `rcuwalk mounts`: the mounts, and their state                 |
//! | `resolve.rs` | `rcuwalk resolve`: how a path is resolved, step by step        |
//! | `scan.rs`    | `rcuwalk scan`: every entry of a tree, and changes            |
//! | `serve.rs`   | `rcuwalk serve`: a tree for other machines, or a virtual one   |
//! | `mountinfo.rs` | the kernel's table of mounts                                |
//! | `runtime.rs` | the sockets on which mounts report their state                |
//! | `failure.rs` | errors: one line on standard error, and the exit status       |
//! | `limits.rs`  | descriptors                                                   |
//! | `signals.rs` | Ctrl-C, without anything left behind                          |
//!
//! The rule: standard output holds the result and nothing else; progress, notes and errors go
//! to standard error.

#![forbid(unsafe_code)]

mod bench;
mod failure;
mod handles;
mod limits;
mod manual;
mod mount;
mod mountinfo;
mod mounts;
mod resolve;
mod runtime;
mod scan;
mod serve;
mod signals;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// The Linux VFS's name and inode caches, in user space
///
/// rcuwalk rebuilds the kernel's path walk as a library; this command measures it
/// against the kernel and shows what it does.
#[derive(Parser)]
#[command(name = "rcuwalk", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::Args),
    Completions(manual::CompletionsArgs),
    #[command(subcommand)]
    Handles(handles::Command),
    #[command(hide = true)]
    Man(manual::ManArgs),
    Mount(mount::Args),
    Mounts(mounts::Args),
    Resolve(resolve::Args),
    Scan(scan::Args),
    #[command(subcommand)]
    Serve(serve::Command),
    Umount(mount::UmountArgs),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().collect();
    let is_command = |name: &std::ffi::OsStr| Cli::command().find_subcommand(name).is_some();
    match mount::helper::translate(&args, is_command, mount::helper::caller) {
        Some(translated) => for_mount(translated),
        None => match Cli::try_parse_from(&args) {
            Ok(cli) => run(cli, &args).map_or_else(Failure::report, |()| ExitCode::SUCCESS),
            Err(err) => not_run(&err),
        },
    }
}

/// Prints the help or the version, which are results, or the error in the arguments. clap's own
/// `exit` ignores that standard output is full.
fn not_run(err: &clap::Error) -> ExitCode {
    let done = err.print().and_then(|()| io::stdout().flush());
    match failure::printed(done) {
        Err(failure) if !err.use_stderr() => failure.report(),
        _ => ExitCode::from(u8::try_from(err.exit_code()).unwrap_or(1)),
    }
}

/// Called by mount(8), which has exit statuses of its own, and shows our messages as they are.
fn for_mount(args: Result<Vec<OsString>, String>) -> ExitCode {
    let parsed = args.and_then(|args| match Cli::try_parse_from(&args) {
        Ok(cli) => Ok((cli, args)),
        Err(err) => Err(one_line(&err)),
    });
    match parsed {
        Err(why) => Failure::Error(why).report(),
        Ok((cli, args)) => match run(cli, &args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.report();
                ExitCode::from(MOUNT_FAILED)
            }
        },
    }
}

/// mount(8): "mount failure".
const MOUNT_FAILED: u8 = 32;

fn one_line(err: &clap::Error) -> String {
    let text = err.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// `args` are the arguments that `cli` was parsed from.
fn run(cli: Cli, args: &[OsString]) -> Result<(), Failure> {
    match cli.command {
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => manual::completions(&args, &Cli::command()),
        Command::Handles(command) => handles::run(&command),
        Command::Man(args) => manual::pages(&args, Cli::command()),
        Command::Mount(mount) => mount::run(&mount, args),
        Command::Mounts(args) => mounts::run(&args),
        Command::Resolve(args) => resolve::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Serve(command) => serve::run(&command, args),
        Command::Umount(args) => mount::umount(&args),
    }
}
