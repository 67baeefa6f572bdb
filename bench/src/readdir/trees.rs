//! The directories that are listed, and how they are made.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rcuwalk::{Credentials, Freshness, Vfs};
use rcuwalk_ext4::Ext4;
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;
use tempfile::TempDir;

use super::side::{Side, vfs};
use super::{ReaddirError, check_stop};
use crate::dir::{self, make_image};
use crate::image::mount::{LoopMount, own_mounts};

/// A tmpfs that every Linux has.
const SHM: &str = "/dev/shm";

/// The directory of the entries.
const DIR: &str = "d";

/// The directories, which are gone when this is dropped.
#[derive(Default)]
pub(super) struct Trees {
    memfs: Option<Vfs>,
    /// The kernel's: what it is called, and where.
    kernel: Vec<(String, PathBuf)>,
    /// The image of ext4, which ours reads.
    image: Option<PathBuf>,
    left_out: Vec<String>,
    // Dropped in this order: the mounts before their images.
    mounts: Vec<LoopMount>,
    dirs: Vec<TempDir>,
}

impl Trees {
    /// The caller's directory.
    pub(super) fn of(target: &Path) -> Result<Trees, ReaddirError> {
        if let Err(err) = std::fs::read_dir(target) {
            return Err(ReaddirError::failed(format!("list {}", target.display()))(
                &err,
            ));
        }
        Ok(Trees {
            kernel: vec![("target".into(), target.into())],
            ..Trees::default()
        })
    }

    /// Makes a directory of each kind that this machine has.
    pub(super) fn make(entries: u64, stop: &AtomicBool) -> Result<Trees, ReaddirError> {
        check_stop(stop)?;
        let mut trees = Trees {
            memfs: Some(memfs(entries)?),
            ..Trees::default()
        };
        trees.make_tmpfs(entries, stop)?;
        let no_mounts = own_mounts().err();
        for kind in ["ext4", "xfs"] {
            let made = match &no_mounts {
                Some(err) => Err(format!("no loop mounts: {err}")),
                None => trees.make_loop(kind, entries, stop)?,
            };
            if let Err(why) = made {
                trees.left_out.push(format!("{kind}: {why}"));
            }
        }
        Ok(trees)
    }

    fn make_tmpfs(&mut self, entries: u64, stop: &AtomicBool) -> Result<(), ReaddirError> {
        let failed = |err: &dyn std::fmt::Display| ReaddirError::failed(format!("use {SHM}"))(err);
        let dir = tempfile::Builder::new()
            .prefix("rcuwalk-bench")
            .tempdir_in(SHM);
        let dir = dir.map_err(|err| failed(&err))?;
        let path = dir.path().join(DIR);
        self.dirs.push(dir);
        fill(&path, entries, stop)?;
        self.kernel.push(("tmpfs".into(), path));
        Ok(())
    }

    /// Makes an image, fills its directory, and mounts it again, so that nothing is cached. The
    /// inner error says why this machine cannot.
    fn make_loop(
        &mut self,
        kind: &str,
        entries: u64,
        stop: &AtomicBool,
    ) -> Result<Result<(), String>, ReaddirError> {
        let failed =
            |err: std::io::Error| ReaddirError::failed(format!("make an image of {kind}"))(&err);
        let dir = tempfile::tempdir().map_err(failed)?;
        let image = dir.path().join(kind);
        self.dirs.push(dir);
        let mount = || LoopMount::of(kind, &image, "noatime");
        let first = match make_image(kind, &image, entries).and_then(|()| mount()) {
            Ok(first) => first,
            Err(err) => return Ok(Err(err.to_string())),
        };
        fill(&first.path().join(DIR), entries, stop)?;
        drop(first);
        let again = mount().map_err(failed)?;
        again.make_read_only().map_err(failed)?;
        self.kernel.push((kind.into(), again.path().join(DIR)));
        self.mounts.push(again);
        if kind == "ext4" {
            self.image = Some(image);
        }
        Ok(Ok(()))
    }

    /// The contenders, the kernel's first.
    pub(super) fn sides(&mut self) -> Result<Vec<Side>, ReaddirError> {
        let mut sides = Vec::new();
        for (tree, (name, path)) in self.kernel.iter().enumerate() {
            sides.push(Side::kernel(name.clone(), tree, path));
        }
        for (tree, (name, path)) in self.kernel.iter().enumerate() {
            for cache in [false, true] {
                let fs = HostFs::new(path).map_err(|err| ReaddirError::failed("open")(&err))?;
                let fs = fs.with_freshness(Freshness::Always);
                sides.push(Side::ours(
                    format!("hostfs on {name}"),
                    (tree, cache),
                    vfs(fs, cache)?,
                    "/",
                )?);
            }
        }
        if let Some(image) = &self.image {
            let tree = self.kernel.iter().position(|(name, _)| name == "ext4");
            for cache in [false, true] {
                let fs = Ext4::open(image).map_err(|err| ReaddirError::failed("open")(&err))?;
                let vfs = vfs(fs, cache)?;
                sides.push(Side::ours(
                    "ext4 image",
                    (tree.unwrap_or(0), cache),
                    vfs,
                    DIR,
                )?);
            }
        }
        if let Some(vfs) = self.memfs.take() {
            sides.push(Side::ours("memfs", (usize::MAX, false), vfs, DIR)?);
        }
        Ok(sides)
    }

    /// Which contenders there are not, and why.
    pub(super) fn left_out(&self) -> Vec<String> {
        self.left_out.clone()
    }
}

fn fill(path: &Path, entries: u64, stop: &AtomicBool) -> Result<(), ReaddirError> {
    let filled = dir::fill(path, entries, stop);
    check_stop(stop)?;
    let what = format!("make files in {}", path.display());
    filled.map_err(|err| ReaddirError::failed(what)(&err))
}

fn memfs(entries: u64) -> Result<Vfs, ReaddirError> {
    let failed = |err: rcuwalk::Error| ReaddirError::failed("make a memfs")(&err);
    let vfs = vfs(MemFs::new(), false)?;
    let ctx = vfs.context(Credentials::root());
    let dir = vfs.mkdir(&ctx, DIR, 0o755).map_err(failed)?;
    let inside = ctx.with_cwd(dir);
    for number in 0..entries {
        vfs.create(&inside, dir::name(number), 0o644)
            .map_err(failed)?;
    }
    Ok(vfs)
}
