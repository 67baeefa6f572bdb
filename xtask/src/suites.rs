//! The suites of others, through mounts: pjdfstest and fsx.
//!
//! pjdfstest checks each system call against POSIX, as root and as two more users. fsx writes a
//! file at random, in every way there is, and compares what it reads. Both run through memfs
//! and a host directory as `rcuwalk mount` shows them. docs/semantics.md lists the excluded
//! cases with reasons; that list is the one read here.
//!
//! | read                  | to learn                                              |
//! |-----------------------|-------------------------------------------------------|
//! | this file             | the suites, and the mounts they run on                |
//! | `suites/tools.rs`     | where they come from                                  |
//! | `suites/pjdfstest.rs` | how pjdfstest is run, and what counts as passed       |
//! | `suites/fsx.rs`       | what fsx does to a file                               |
//! | `suites/excluded.rs`  | the list in docs/semantics.md                         |
//! | `suites/mounted.rs`   | a tree that is mounted meanwhile                      |

mod excluded;
mod fsx;
mod mounted;
mod pjdfstest;
mod tools;

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use crate::run::{Cmd, Done, Result};
use mounted::{Mounted, Scratch};

pub(crate) use tools::install;

/// A mount: its name, and the tree.
const TREES: [(&str, Tree); 2] = [("memfs", Tree::Memory), ("hostfs", Tree::Host)];

/// The mounts on which files are written: their names, trees, timeouts, and further options. Without
/// timeouts the kernel is told of changes on the host.
const FILES: [(&str, Tree, Option<&str>, &str); 6] = [
    ("memfs", Tree::Memory, Some("1"), ""),
    ("hostfs", Tree::Host, Some("1"), ""),
    ("memfs-writeback", Tree::Memory, Some("1"), ",writeback"),
    ("hostfs-writeback", Tree::Host, Some("1"), ",writeback"),
    ("hostfs-told", Tree::Host, None, ""),
    ("hostfs-told-writeback", Tree::Host, None, ",writeback"),
];

/// The timeouts for names and attributes in seconds: none, so that each question reaches the
/// daemon; the default of trees that change unnoticed; one so long that a missing invalidation
/// shows; and the default, where the kernel is told of changes.
const CACHED_FOR: [Option<&str>; 4] = [Some("0"), Some("1"), Some("3600"), None];

#[derive(Clone, Copy)]
enum Tree {
    Memory,
    Host,
}

/// Runs them all; it takes root, /dev/fuse and the suites themselves.
pub(crate) fn run(root: &Path) -> Result<Done> {
    if let Some(reason) = missing(root) {
        return Ok(Done::Skipped(reason));
    }
    Cmd::cargo(root)
        .args(["build", "--package", "rcuwalk-cli"])
        .run()?;
    let excluded = excluded::read(root)?;
    let scratch = Scratch::new()?;
    let setting = Setting {
        rcuwalk: target(root).join("debug/rcuwalk"),
        tools: tools::directory(root),
        scratch: &scratch,
    };
    for (name, tree) in TREES {
        for seconds in CACHED_FOR {
            match seconds {
                Some(seconds) => println!("pjdfstest on {name}, cached for {seconds} s"),
                None => println!("pjdfstest on {name}, cached as by default"),
            }
            let mut mounted = setting.mount(tree, name, seconds)?;
            pjdfstest::run(&setting, &mut mounted, &excluded)?;
            mounted.unmount()?;
        }
    }
    // It waits for answers most of the time, so all at once.
    thread::scope(|scope| {
        let setting = &setting;
        let run = move |(name, tree, seconds, more)| {
            let mut mounted = setting.mount_with(tree, name, seconds, more)?;
            fsx::run(setting, &mut mounted, name)?;
            mounted.unmount()
        };
        let runs = FILES.map(|file| scope.spawn(move || run(file)));
        let ended = runs.map(|run| run.join().unwrap_or(Err("fsx's thread panicked".into())));
        ended.into_iter().collect::<Result<Vec<()>>>()
    })?;
    Ok(Done::Passed)
}

/// Returns the missing tool, if any.
fn missing(root: &Path) -> Option<String> {
    // As in `skips::are_failures`.
    if !fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        return Some("needs root".into());
    }
    let mut device = File::options();
    if device.read(true).write(true).open("/dev/fuse").is_err() {
        return Some("needs /dev/fuse".into());
    }
    tools::missing(root)
}

/// Where everything is.
struct Setting<'s> {
    rcuwalk: PathBuf,
    tools: PathBuf,
    scratch: &'s Scratch,
}

impl Setting<'_> {
    fn mount(&self, tree: Tree, name: &str, seconds: Option<&str>) -> Result<Mounted> {
        self.mount_with(tree, name, seconds, "")
    }

    fn mount_with(
        &self,
        tree: Tree,
        name: &str,
        seconds: Option<&str>,
        more: &str,
    ) -> Result<Mounted> {
        let source = match tree {
            Tree::Memory => "memfs".into(),
            Tree::Host => self.scratch.new_backing()?,
        };
        let at = self.scratch.path().join(name);
        let timeouts = seconds.map_or(String::new(), |seconds| {
            format!(",entry_timeout={seconds},attr_timeout={seconds},negative_timeout={seconds}")
        });
        let options = format!("allow_other,suid,dev{timeouts}{more}");
        Mounted::new(&self.rcuwalk, &source, at, &options)
    }
}

/// Cargo's target directory.
fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from)
}
