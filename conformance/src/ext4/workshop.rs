//! Where images are made: a mount namespace of its own with a tmpfs in it.
//!
//! Everything a test leaves behind is in there: mounted images, their loop devices
//! (which go with their mounts), the image files. Guards undo it in order, after a
//! panic too; and when the whole process is killed, the namespace goes with it and
//! takes everything along but one empty temporary directory.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use crate::settings;

/// Runs `work` in a workshop of its own, on a thread of its own.
///
/// `None`, and `test` on record as skipped, where there cannot be one.
///
/// # Panics
/// With what `work` panicked with.
pub fn in_workshop<T: Send>(test: &str, work: impl FnOnce(&Workshop) -> T + Send) -> Option<T> {
    let outcome = thread::scope(|scope| {
        let worker = scope.spawn(|| Workshop::open().map(|workshop| work(&workshop)));
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    outcome.map_err(|why| settings::skipped(test, &why)).ok()
}

/// A place for images and mounts that only the thread that opened it, threads it
/// starts and programs it runs can see.
#[derive(Debug)]
pub struct Workshop {
    // Unmounted before its directory is removed.
    tmpfs: Mounted,
    _dir: TempDir,
}

impl Workshop {
    fn open() -> Result<Workshop, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".into());
        }
        for (program, package) in [("mke2fs", "e2fsprogs"), ("mount", "mount")] {
            run(program, ["-V"]).map_err(|_| format!("needs {program} (package {package})"))?;
        }
        // SAFETY: this thread leaves the process's mounts, root and current directory
        // and no memory changes hands; it was made for the workshop and ends with it.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
            .map_err(|err| format!("needs a mount namespace: {err}"))?;
        run("mount", ["--make-rprivate", "/"])?;
        let dir = tempfile::Builder::new()
            .prefix("rcuwalk-images-")
            .tempdir()
            .map_err(|err| format!("no temporary directory: {err}"))?;
        let tmpfs = Mounted::new("tmpfs", dir.path(), &["-t", "tmpfs"])?;
        let workshop = Workshop { tmpfs, _dir: dir };
        workshop.probe()?;
        Ok(workshop)
    }

    /// Can an image be mounted here at all? Containers often have no loop devices.
    fn probe(&self) -> Result<(), String> {
        let image = self.new_image("probe", 1 << 20)?;
        mke2fs(&image, &["-t", "ext2"])?;
        self.mount(&image, &["ro"])
            .map(drop)
            .map_err(|err| format!("needs loop mounts of ext4: {err}"))?;
        std::fs::remove_file(&image).map_err(|err| format!("{}: {err}", image.display()))
    }

    /// The path that `name` has in here.
    pub fn path(&self, name: &str) -> PathBuf {
        self.tmpfs.at.join(name)
    }

    /// A file of `size` bytes without a block of its own.
    ///
    /// # Errors
    /// What the host says.
    pub fn new_image(&self, name: &str, size: u64) -> Result<PathBuf, String> {
        let path = self.path(name);
        std::fs::File::create(&path)
            .and_then(|file| file.set_len(size))
            .map_err(|err| format!("{}: {err}", path.display()))?;
        Ok(path)
    }

    /// Mounts an image on a new directory, with `options` as for `mount -o`.
    ///
    /// # Errors
    /// What mount(8) says.
    pub fn mount(&self, image: &Path, options: &[&str]) -> Result<Mounted, String> {
        let mut at = image.as_os_str().to_owned();
        at.push(".mnt");
        let at = PathBuf::from(at);
        if !at.is_dir() {
            std::fs::create_dir(&at).map_err(|err| format!("{}: {err}", at.display()))?;
        }
        // A loop device made this way goes away with the mount.
        let options = [&["loop"], options].concat().join(",");
        Mounted::new(image, &at, &["-t", "ext4", "-o", &options])
    }
}

/// Something mounted; dropping it unmounts it.
#[derive(Debug)]
#[must_use]
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn new(what: impl AsRef<OsStr>, at: &Path, options: &[&str]) -> Result<Mounted, String> {
        let options = options.iter().map(OsStr::new);
        run("mount", options.chain([what.as_ref(), at.as_os_str()]))?;
        Ok(Mounted { at: at.into() })
    }

    /// Where.
    pub fn at(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if run("umount", [&self.at]).is_err() {
            // Something in it is still open, after a panic: it goes when that does.
            let _ = run("umount", [OsStr::new("--lazy"), self.at.as_os_str()]);
        }
    }
}

/// A mounted file system that takes no changes; dropping it lets them go on.
#[derive(Debug)]
#[must_use]
pub struct Frozen<'a>(&'a Mounted);

impl<'a> Frozen<'a> {
    /// Waits for changes under way, writes everything out, and holds all further ones.
    ///
    /// # Errors
    /// What fsfreeze(8) says.
    pub fn new(mounted: &'a Mounted) -> Result<Frozen<'a>, String> {
        run("fsfreeze", [OsStr::new("--freeze"), mounted.at.as_os_str()])?;
        Ok(Frozen(mounted))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = run(
            "fsfreeze",
            [OsStr::new("--unfreeze"), self.0.at.as_os_str()],
        );
    }
}

/// Makes a file system in `image`, without questions asked.
///
/// # Errors
/// What mke2fs says.
pub fn mke2fs(image: &Path, arguments: &[&str]) -> Result<(), String> {
    let arguments = ["-q", "-F"].iter().chain(arguments).map(OsStr::new);
    run("mke2fs", arguments.chain([image.as_os_str()])).map(drop)
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// What it complained about, with its name and arguments.
pub fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = command
        .output()
        .map_err(|err| format!("{program}: {err}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut said = format!("{command:?}: {}", output.status);
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let _ = write!(said, "; {}", line.trim());
    }
    Err(said)
}
