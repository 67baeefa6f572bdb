//! Trees with more directories than descriptors, at both levels of privilege.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use rcuwalk::{Budget, Context, Credentials, Freshness, LookupFlags, OpenFlags, Result, Vfs};
use rcuwalk::{File, VfsPath};
use rcuwalk_hostfs::{DescriptorCounts, HostFs};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::{is_root, skip};

/// How a directory is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Handle,
    Name,
}

/// Runs `test` with the privilege to open by handle, and without it, each in a thread of its
/// own.
pub(crate) fn on_each_level(test: impl Fn(Level) + Sync) {
    let in_thread = |level| {
        thread::scope(|scope| {
            let run = scope.spawn(|| {
                if level == Level::Name {
                    drop_capabilities();
                }
                eprintln!("by {level:?}");
                test(level);
            });
            if let Err(panic) = run.join() {
                std::panic::resume_unwind(panic);
            }
        });
    };
    in_thread(Level::Name);
    if is_root() {
        in_thread(Level::Handle);
    } else {
        skip("needs root");
    }
}

/// This thread, and those that it starts, have none any more.
fn drop_capabilities() {
    let held = capabilities(None).unwrap();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        ..held
    };
    set_capabilities(None, none).unwrap();
}

/// A mounted scratch directory.
pub(crate) struct Crowded {
    dir: tempfile::TempDir,
    pub(crate) vfs: Vfs,
    pub(crate) ctx: Context,
    pub(crate) counts: DescriptorCounts,
}

impl Crowded {
    /// A tree with a budget of `fds` descriptors. It has a hundred directories that make others
    /// give back theirs.
    pub(crate) fn new(fds: usize, freshness: Freshness, fill: impl FnOnce(&Path)) -> Crowded {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        for i in 0..100 {
            fs::create_dir_all(root.join(format!("crowd/{i}"))).unwrap();
        }
        fill(&root);
        let host = HostFs::new(&root).unwrap().with_freshness(freshness);
        let counts = host.descriptors();
        let budget = Budget::default().fds(fds);
        let vfs = Vfs::with_budget(host, budget).unwrap();
        let ctx = vfs.context(Credentials::root());
        Crowded {
            dir,
            vfs,
            ctx,
            counts,
        }
    }

    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    pub(crate) fn find(&self, path: &str) -> VfsPath {
        let found = self.vfs.lookup(&self.ctx, path, LookupFlags::DIRECTORY);
        found.unwrap_or_else(|err| panic!("{path}: {err}"))
    }

    /// Uses other directories, until those that were used before have no descriptor.
    pub(crate) fn crowd(&self) {
        self.crowd_in(&self.ctx);
    }

    pub(crate) fn crowd_in(&self, ctx: &Context) {
        for _ in 0..2 {
            for i in 0..100 {
                let path = format!("/crowd/{i}/missing");
                assert!(self.vfs.stat(ctx, path, LookupFlags::empty()).is_err());
                assert_eq!(
                    self.vfs
                        .read_dir(ctx, format!("/crowd/{i}"))
                        .unwrap()
                        .count(),
                    0
                );
            }
        }
    }

    /// The contents of `name` in a directory that is held.
    pub(crate) fn read_in(&self, dir: &VfsPath, name: &str) -> Result<String> {
        let ctx = self.ctx.clone().with_cwd(dir.clone());
        contents(&self.vfs.open(&ctx, name, OpenFlags::READ)?)
    }
}

pub(crate) fn contents(file: &File) -> Result<String> {
    let mut buf = [0; 64];
    let read = file.read_at(&mut buf, 0)?;
    Ok(String::from_utf8(buf[..read].to_vec()).unwrap())
}
