//! The image that all contenders share, and the contenders on it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rcuwalk::{Budget, Credentials, FileSystem, Freshness, Vfs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;
use tempfile::TempDir;

use super::beside::Prepared;
use super::{Dirstorm, DirstormError};
use crate::dir::{self, fill, make_image};
use crate::image::mount::{LoopMount, own_mounts};

/// A tmpfs that every Linux has.
const SHM: &str = "/dev/shm";

/// The directory in which lookups run beside changes.
const LARGE: &str = "large";

/// The directories, which are gone when this is dropped.
pub(super) struct Place {
    /// Without root, no image can be mounted.
    image: Option<(PathBuf, LoopMount)>,
    /// Where `LARGE` is, and what the kernel's file system there is called.
    large: (PathBuf, &'static str),
    left_out: Vec<String>,
    // Dropped after the mount.
    _dir: TempDir,
}

/// A contender of the second measurement.
pub(super) enum Beside {
    Kernel(PathBuf, &'static str),
    Hostfs(PathBuf, &'static str),
    Memfs,
}

/// The name of a directory of the storm.
pub(super) fn dir_name(number: u64) -> String {
    format!("d{number}")
}

impl Place {
    pub(super) fn make(bench: &Dirstorm, stop: &AtomicBool) -> Result<Place, DirstormError> {
        let (dir, image, left_out) = match own_mounts() {
            Ok(()) => {
                let failed = DirstormError::failed("make the image");
                let (dir, image) = make_ext4(bench, stop).map_err(failed)?;
                (dir, Some(image), Vec::new())
            }
            Err(err) => {
                let made = tempfile::tempdir_in(SHM).and_then(|dir| {
                    fill(&dir.path().join(LARGE), bench.large, stop)?;
                    Ok(dir)
                });
                let dir = made.map_err(DirstormError::failed(format_args!("use {SHM}")))?;
                (dir, None, vec![format!("the storm: no loop mounts: {err}")])
            }
        };
        let large = match &image {
            Some((_, mount)) => (mount.path().join(LARGE), "ext4"),
            None => (dir.path().join(LARGE), "tmpfs"),
        };
        Ok(Place {
            image,
            large,
            left_out,
            _dir: dir,
        })
    }

    pub(super) fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// The image, and where it is mounted.
    pub(super) fn image(&self) -> io::Result<(&Path, &Path)> {
        match &self.image {
            Some((image, mount)) => Ok((image, mount.path())),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// After the storm, which found the image as it was mounted.
    pub(super) fn make_writable(&mut self) -> Result<(), DirstormError> {
        match &self.image {
            Some((_, mount)) => mount
                .make_writable()
                .map_err(DirstormError::failed("make the mount writable")),
            None => Ok(()),
        }
    }

    /// The contenders of the second measurement, the kernel first.
    pub(super) fn besides(&self) -> Vec<Beside> {
        let (path, kind) = &self.large;
        vec![
            Beside::Kernel(path.clone(), kind),
            Beside::Hostfs(path.clone(), kind),
            Beside::Memfs,
        ]
    }

    /// What this machine cannot measure, and why.
    pub(super) fn left_out(&self) -> Vec<String> {
        self.left_out.clone()
    }
}

/// Makes an image with all directories, and mounts it again, read-only.
fn make_ext4(bench: &Dirstorm, stop: &AtomicBool) -> io::Result<(TempDir, (PathBuf, LoopMount))> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    make_image("ext4", &image, bench.dirs * bench.entries + bench.large)?;
    let mount = LoopMount::of("ext4", &image, "noatime")?;
    for number in 0..bench.dirs {
        fill(&mount.path().join(dir_name(number)), bench.entries, stop)?;
    }
    fill(&mount.path().join(LARGE), bench.large, stop)?;
    drop(mount);
    let mount = LoopMount::of("ext4", &image, "noatime")?;
    mount.make_read_only()?;
    Ok((dir, (image, mount)))
}

impl Beside {
    /// Opens it, and caches the names that will be looked up.
    pub(super) fn prepare(&self, bench: &Dirstorm) -> Result<Prepared, DirstormError> {
        match self {
            Beside::Kernel(path, kind) => Prepared::of_kernel(*kind, path, bench),
            Beside::Hostfs(path, kind) => {
                let vfs = HostFs::new(path)
                    .map_err(io::Error::other)
                    .and_then(|fs| mounted(fs.with_freshness(Freshness::Always)));
                Prepared::of_ours(format!("hostfs on {kind}"), vfs, "/", bench)
            }
            Beside::Memfs => Prepared::of_ours("memfs", memfs(bench.large), LARGE, bench),
        }
    }
}

fn mounted(fs: impl FileSystem) -> io::Result<Vfs> {
    let budget = Budget::default().listings(1 << 30);
    Vfs::with_budget(fs, budget).map_err(io::Error::other)
}

fn memfs(entries: u64) -> io::Result<Vfs> {
    let vfs = mounted(MemFs::new())?;
    let ctx = vfs.context(Credentials::root());
    let dir = vfs.mkdir(&ctx, LARGE, 0o755).map_err(io::Error::other)?;
    let inside = ctx.with_cwd(dir);
    for number in 0..entries {
        let made = vfs.create(&inside, dir::name(number), 0o644);
        made.map_err(io::Error::other)?;
    }
    Ok(vfs)
}
