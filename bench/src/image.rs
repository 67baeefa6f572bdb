//! `rcuwalk bench walktrees --image`: a backup's walk over an ext4 image.
//!
//! The image is made by mkfs.ext4 and filled through the kernel. Then it is walked in turn: by
//! the kernel, on a read-only loop mount; by ours through the VFS, with every name and inode
//! instantiated and one `stat` each; and by ours as a scan. No contender has an inode cached
//! when a walk begins, except in the later of three laps with a cache for an eighth of the
//! entries: of the kernel in a control group of limited memory, and of ours. Blocks are cached for
//! all of them; a second series runs without cached blocks.
//!
//! [`ImageWalk::run`] is the whole benchmark. **No figure is printed unless all saw the
//! same**: a checksum over path, inode, type, permissions, owner, group, size, time and
//! links of every entry ([`digest`]).
//!
//! | read              | to learn                                                     |
//! |-------------------|--------------------------------------------------------------|
//! | this file         | the run, its settings and its errors                         |
//! | `image/make.rs`   | making the image                                             |
//! | `image/mount.rs`  | mounts that go with the thread that made them                |
//! | `image/kernel.rs` | the kernel's walk                                            |
//! | `image/ours.rs`   | ours: through the VFS, and as a scan                         |
//! | `image/turn.rs`   | one contender's turn, measured                               |
//! | `image/eighth.rs` | laps with a cache of an eighth                               |
//! | `image/group.rs`  | the control group of limited memory                          |
//! | `image/digest.rs` | how many entries a walk saw, and their checksum              |
//! | `image/report.rs` | the numbers, as table and as JSON                            |

pub mod digest;
mod eighth;
mod group;
pub(crate) mod kernel;
mod make;
pub mod mount;
mod ours;
mod report;
mod turn;

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

pub use crate::progress::Progress;
pub use report::{Details, Report, Row};

use crate::measure::{Stopped, TakeTurns};
use crate::progress::Steps;
use crate::walktrees::Shape;
use digest::Digest;
use eighth::Eighth;
use mount::LoopMount;
use turn::{Blocks, CONTENDERS, Contender, Turn};

/// The benchmark: the trees, the contenders, and their threads.
#[derive(Clone, Debug)]
pub struct ImageWalk {
    /// The trees that the image is filled with.
    pub shape: Shape,
    /// Threads of the kernel's walk and of ours through the VFS.
    pub threads: u64,
    /// Threads of a scan.
    pub scan_threads: u64,
    /// How many bytes the VFS's caches may take.
    pub cache_bytes: usize,
    /// The image: made if it is not there, and left there. Without one, it is made in a
    /// temporary directory.
    pub keep: Option<PathBuf>,
    /// How many rounds count.
    pub rounds: usize,
    /// Whether everything is measured without cached blocks, too.
    pub cold: bool,
}

impl ImageWalk {
    /// Enough for a median; each takes as long as the kernel's walk and a bit.
    pub const ROUNDS: usize = 3;

    /// As many threads as the patch was measured with; two million files.
    pub const SHAPE: Shape = Shape {
        trees: 20,
        dirs: 100,
        files: 1000,
    };

    /// What names and inodes of ten million files take.
    pub const CACHE_BYTES: usize = 4 << 30;

    /// A thread per tree, and for a scan one per core.
    pub fn of(shape: Shape) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            shape,
            threads: shape.trees,
            scan_threads: cores as u64,
            cache_bytes: Self::CACHE_BYTES,
            keep: None,
            rounds: Self::ROUNDS,
            cold: true,
        }
    }

    /// Runs the benchmark. Needs root, for the mounts, and mkfs.ext4. The kernel drops
    /// the caches of the whole machine many times meanwhile.
    ///
    /// # Errors
    ///
    /// [`ImageError::Different`] if two did not see the same, [`ImageError::Stopped`] once
    /// `stop` is raised, and whatever keeps the image from being made, mounted or read.
    pub fn run(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, ImageError> {
        let Shape { trees, dirs, files } = self.shape;
        if [trees, dirs, files, self.threads, self.scan_threads].contains(&0) || self.rounds == 0 {
            return Err(ImageError::Nothing);
        }
        // The mounts belong to a thread of their own, and go with it.
        thread::scope(|scope| {
            let work = move || {
                mount::own_mounts().map_err(ImageError::Mounts)?;
                self.run_with_mounts(stop, progress)
            };
            let thread = thread::Builder::new().spawn_scoped(scope, work);
            let thread = thread.map_err(ImageError::Thread)?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .map_err(|err| match stop.load(Relaxed) {
            true => ImageError::Stopped,
            false => err,
        })
    }

    fn run_with_mounts(
        &self,
        stop: &AtomicBool,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Report, ImageError> {
        let rounds = self.rounds + usize::from(self.cold);
        // Making the image and walking it for the first time are a step each.
        let mut steps = Steps::new(2 + rounds * CONTENDERS.len() + 2 * self.rounds, progress);
        let scratch;
        let image = match &self.keep {
            Some(keep) => keep.clone(),
            None => {
                scratch = tempfile::tempdir().map_err(ImageError::Scratch)?;
                scratch.path().join("trees.img")
            }
        };
        let made = self.make_unless_there(&image, stop)?;
        steps.one_done();

        let mount = LoopMount::new(&image, "ro,noatime")
            .map_err(|source| ImageError::image("mount", &image, source))?;
        // Reads all blocks, and says what everybody has to see.
        let expected = kernel::walk(mount.path(), self.threads, stop)
            .map_err(|source| ImageError::image("walk", &image, source))?;
        self.check_entries(&image, expected)?;
        ours::scan(&image, Contender::SCAN, self, stop)
            .map_err(|source| ImageError::image("scan", &image, source))?;
        steps.one_done();

        let place = Place {
            image: &image,
            mount: &mount,
            expected,
            stop,
        };
        let mut turns = |rounds, blocks| {
            let turns = TakeTurns {
                contenders: CONTENDERS.len(),
                rounds,
                warm_up: false,
                stop,
            };
            turns.run(
                |next| {
                    let contender = CONTENDERS[next];
                    Turn::run(self, contender, blocks, &place)
                        .map_err(|source| ImageError::image(contender.name, &image, source))
                },
                |next, turn| place.verify(CONTENDERS[next], turn),
                || steps.one_done(),
            )
        };
        let cached = turns(self.rounds, Blocks::Cached)?;
        let cold = turns(usize::from(self.cold), Blocks::Cold)?;
        let with_room = CONTENDERS.iter().zip(&cached);
        let with_room = with_room.filter(|(contender, _)| **contender == Contender::VFS);
        let with_room = with_room.flat_map(|(_, turns)| turns);
        let eighth = Eighth::run(self, with_room, &place, &mut steps)?;
        Ok(Report::new(
            self, &image, made, expected, &cached, &cold, &eighth,
        ))
    }

    /// How long making it took, if it had to be made.
    fn make_unless_there(
        &self,
        image: &Path,
        stop: &AtomicBool,
    ) -> Result<Option<f64>, ImageError> {
        if image.exists() {
            // Says what it is instead, which mount(8) does not.
            return ours::is_image(image)
                .map_err(|source| ImageError::image("reuse", image, source))
                .map(|()| None);
        }
        let start = std::time::Instant::now();
        // Written under another name until it is complete, so that an unfinished image is not
        // taken for a complete one next time.
        let mut begun = image.as_os_str().to_owned();
        begun.push(".part");
        let begun = PathBuf::from(begun);
        make::make(&begun, self.shape, stop)
            .and_then(|()| std::fs::rename(&begun, image))
            .map_err(|source| ImageError::image("make", image, source))?;
        Ok(Some(start.elapsed().as_secs_f64()))
    }

    /// A kept image may be of other trees.
    fn check_entries(&self, image: &Path, seen: Digest) -> Result<(), ImageError> {
        // And `lost+found`.
        let wanted = self.shape.inodes().map(|inodes| inodes + 1);
        match wanted {
            Some(wanted) if wanted != seen.entries => Err(ImageError::OtherTrees {
                image: image.to_owned(),
                entries: seen.entries,
                wanted,
            }),
            _ => Ok(()),
        }
    }
}

/// Where everybody walks.
struct Place<'a> {
    image: &'a Path,
    mount: &'a LoopMount,
    expected: Digest,
    stop: &'a AtomicBool,
}

impl Place<'_> {
    /// A walk that was stopped has not seen all.
    fn verify(&self, contender: Contender, turn: &Turn) -> Result<(), ImageError> {
        match turn.seen == self.expected {
            true => Ok(()),
            false if self.stop.load(Relaxed) => Err(ImageError::Stopped),
            false => Err(ImageError::Different {
                contender: contender.name,
                seen: turn.seen,
                expected: self.expected,
            }),
        }
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImageError {
    /// The stop flag was raised.
    Stopped,
    /// No trees, directories, files, threads or rounds.
    Nothing,
    /// There can be no mounts of our own.
    Mounts(io::Error),
    /// No temporary directory can be made.
    Scratch(io::Error),
    /// A thread cannot be started.
    Thread(io::Error),
    /// Something about the image did not work.
    Image {
        /// The step, or the contender, that failed.
        what: &'static str,
        /// Which image.
        image: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The image that was to be reused holds something else.
    OtherTrees {
        /// Which image.
        image: PathBuf,
        /// The expected totals.
        entries: u64,
        /// What should be.
        wanted: u64,
    },
    /// A walk did not see what the first one saw.
    Different {
        /// Whose walk.
        contender: &'static str,
        /// The totals it saw.
        seen: Digest,
        /// What the first one saw.
        expected: Digest,
    },
}

impl ImageError {
    fn image(what: &'static str, image: &Path, source: io::Error) -> Self {
        Self::Image {
            what,
            image: image.to_owned(),
            source,
        }
    }
}

impl From<Stopped> for ImageError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => crate::measure::Stopped.fmt(f),
            Self::Nothing => write!(
                f,
                "trees, directories, files, threads and rounds: at least one of each"
            ),
            Self::Mounts(err) => write!(f, "--image needs root, for its mounts: {err}"),
            Self::Scratch(err) => write!(
                f,
                "no temporary directory: {err}; set TMPDIR to one with room for an image"
            ),
            Self::Thread(err) => write!(f, "cannot start a thread: {err}"),
            Self::Image {
                what,
                image,
                source,
            } => write!(f, "{what} {}: {source}", image.display()),
            Self::OtherTrees {
                image,
                entries,
                wanted,
            } => write!(
                f,
                "{} has {entries} entries, and such trees have {wanted}: say which trees it \
                 was made of, or remove it",
                image.display()
            ),
            Self::Different {
                contender,
                seen,
                expected,
            } if seen.entries == expected.entries => write!(
                f,
                "{contender} was told other attributes than the kernel; no figures"
            ),
            Self::Different {
                contender,
                seen,
                expected,
            } => write!(
                f,
                "{contender} saw {} entries, the kernel {}; no figures",
                seen.entries, expected.entries
            ),
        }
    }
}

// No `source`: the message already says it all.
impl Error for ImageError {}
