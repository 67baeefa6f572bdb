//! An image caught in the middle of changes, with a journal to be replayed.
//!
//! ```text
//!   writers --> mounted image --loop device--> its file, in a lower file system
//!                                                  |
//!                         lower one frozen, file copied, lower one thawed
//! ```
//!
//! A copy of a file that is being written to is no moment of it. Freezing the file
//! system that the file is in makes it one: the loop device's writes wait, as if the
//! power had failed between two of them. [`Catch::Tidy`] freezes the image's own file
//! system instead, which empties the journal first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::workshop::{Frozen, Mounted, Workshop, mke2fs, run};
use rcuwalk_testkit::{Rng, StopOnDrop};

mod writer;

/// A kind of journal.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// What failures call it.
    pub name: &'static str,
    /// Arguments of mke2fs, parted by spaces.
    pub mke2fs: &'static str,
    /// Options of the mount under which changes are made.
    pub options: &'static [&'static str],
    /// The directory that is changed.
    pub changes: Changes,
}

/// What writers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Everything.
    All,
    /// What a fast commit can say, and fsync(2) after it, which makes one.
    Simple,
}

const fn mode(name: &'static str, mke2fs: &'static str, options: &'static [&'static str]) -> Mode {
    Mode {
        name,
        mke2fs,
        options,
        changes: Changes::All,
    }
}

/// Journals of today.
pub const MODES: &[Mode] = &[
    mode("checksums of version 3", "-t ext4", &["data=ordered"]),
    mode("data in the journal", "-t ext4", &["data=journal"]),
    mode("1 KiB blocks", "-t ext4 -b 1024", &["data=journal"]),
    mode(
        "commits not waited for",
        "-t ext4",
        &["journal_async_commit", "data=writeback"],
    ),
    mode("^64bit", "-t ext4 -O ^64bit", &["data=ordered"]),
    // Not inline_data: with that, Linux 6.18 waits for itself when a commit in ordered
    // mode has to write contents out of inodes and the journal is full, for ever.
    mode(
        "ea_inode, orphan_file",
        "-t ext4 -O ea_inode,orphan_file",
        &["data=ordered"],
    ),
];

/// Journals with older checksums, or none.
pub const OLD_MODES: &[Mode] = &[
    mode(
        "64bit, no checksums",
        "-t ext4 -O 64bit,^metadata_csum",
        &["data=ordered"],
    ),
    mode("ext3", "-t ext3", &["data=journal"]),
    mode(
        "checksums of version 1",
        "-t ext4 -O ^metadata_csum,^64bit",
        &["journal_checksum"],
    ),
    mode(
        "version 1, not waited for",
        "-t ext4 -O ^metadata_csum",
        &["journal_async_commit", "data=writeback"],
    ),
];

/// Whose replay takes more than blocks.
pub const FAST_COMMIT: Mode = Mode {
    changes: Changes::Simple,
    ..mode("fast_commit", "-t ext4 -O fast_commit", &["data=ordered"])
};

/// How a copy is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Catch {
    /// With the image's file system frozen: nothing is left to replay.
    Tidy,
    /// At one moment, whatever is going on.
    Moment,
    /// Without stopping anything: a part of the copy is older than the rest.
    Torn,
}

/// Takes `count` copies of an image while it is being changed, and hands over each.
///
/// # Errors
/// What the host, the kernel or `each` says.
pub fn catch(
    workshop: &Workshop,
    mode: &Mode,
    (catch, count): (Catch, usize),
    seed: u64,
    mut each: impl FnMut(&Path) -> Result<(), String>,
) -> Result<(), String> {
    let below = workshop.new_image("below", 256 << 20)?;
    mke2fs(&below, &["-t", "ext4", "-b", "4096", "-O", "^has_journal"])?;
    let below = workshop.mount(&below, &["noatime"])?;
    let image = below.at().join("image");
    File::create(&image)
        .and_then(|file| file.set_len(48 << 20))
        .map_err(|err| format!("{}: {err}", image.display()))?;
    let arguments: Vec<&str> = mode.mke2fs.split(' ').collect();
    let block_size: &[&str] = if arguments.contains(&"-b") {
        &[]
    } else {
        &["-b", "4096"]
    };
    mke2fs(
        &image,
        &[block_size, &["-J", "size=4"], &arguments].concat(),
    )?;
    let mounted = workshop.mount(&image, mode.options)?;

    let mut copies = Vec::new();
    while_busy(&mounted, (mode.changes, seed), || {
        for index in 0..count {
            thread::sleep(Duration::from_millis(120));
            let copy = workshop.path(&format!("copy-{index}"));
            match catch {
                Catch::Tidy => copy_while(&Frozen::new(&mounted)?, &image, &copy)?,
                Catch::Moment => copy_while(&Frozen::new(&below)?, &image, &copy)?,
                Catch::Torn => copy_file(&image, &copy)?,
            }
            copies.push(copy);
        }
        Ok(())
    })?;
    copies.iter().try_for_each(|copy| {
        each(copy)?;
        fs::remove_file(copy).map_err(|err| format!("{}: {err}", copy.display()))
    })
}

fn copy_while(_frozen: &Frozen<'_>, from: &Path, to: &Path) -> Result<(), String> {
    copy_file(from, to)
}

/// Copies a file, holes as holes.
///
/// # Errors
/// What cp(1) says.
pub fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let sparse = std::ffi::OsStr::new("--sparse=always");
    run("cp", [sparse, from.as_os_str(), to.as_os_str()]).map(drop)
}

/// Runs `meanwhile` while several writers change what is in `mounted`.
fn while_busy(
    mounted: &Mounted,
    (changes, seed): (Changes, u64),
    meanwhile: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    const WRITERS: u64 = 3;
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = StopOnDrop(&stopped);
        for number in 0..WRITERS {
            let rng = Rng::derived(seed, number);
            let top: PathBuf = mounted.at().to_path_buf();
            let stopped = &stopped;
            scope.spawn(move || {
                let mut writer = writer::Writer::new(top, number, rng);
                while !stopped.load(Relaxed) {
                    writer.step(changes);
                }
            });
        }
        let outcome = meanwhile();
        drop(stop);
        outcome
    })
}

/// True if the two files have the same bytes.
///
/// # Errors
/// What cmp(1) says, unless it is that they differ.
pub fn are_equal(one: &Path, other: &Path) -> io::Result<bool> {
    let status = std::process::Command::new("cmp")
        .arg("-s")
        .args([one, other])
        .status()?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(io::Error::other(format!("cmp: {status}"))),
    }
}
