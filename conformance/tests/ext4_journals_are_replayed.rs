//! Images copied while they were being written to: replayed in memory, ours reads what
//! the kernel reads after its own replay, and the image stays as it was.
//!
//! Takes root; without, these tests say so and are skipped. `RCUWALK_SEED` chooses what
//! is written, `RCUWALK_CASES` how many copies are taken of each kind of journal.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcuwalk::Timestamp;
use rcuwalk_conformance::ext4::busy::{self, Catch, Mode};
use rcuwalk_conformance::ext4::compare::{Beside, compare};
use rcuwalk_conformance::ext4::workshop::{Workshop, in_workshop};
use rcuwalk_conformance::settings::Settings;
use rcuwalk_ext4::Ext4;

/// EDGE-1: a journal cut off at any moment is replayed as the kernel replays it.
#[test]
fn a_journal_cut_off_at_any_moment_is_replayed_as_the_kernel_does() {
    let test = "a_journal_cut_off_at_any_moment_is_replayed_as_the_kernel_does";
    in_workshop(test, |workshop| {
        for mode in busy::MODES {
            let replayed = agree(workshop, mode, Catch::Moment);
            assert!(replayed.len() >= 5, "{}: {replayed:?}", mode.name);
            let blocks: usize = replayed.iter().sum();
            assert!(blocks > 0, "{}: nothing was there to be replayed", mode.name);
        }
    });
}

/// EDGE-1: a copy taken while the file system is frozen needs no replay.
#[test]
fn a_frozen_file_system_needs_no_replay() {
    in_workshop("a_frozen_file_system_needs_no_replay", |workshop| {
        for mode in &busy::MODES[..2] {
            let replayed = agree(workshop, mode, Catch::Tidy);
            assert!(replayed.iter().all(|&blocks| blocks == 0), "{}: {replayed:?}", mode.name);
        }
    });
}

/// Fails with the first copy that the two do not agree about; returns how many blocks
/// of each came from the journal.
fn agree(workshop: &Workshop, mode: &Mode, catch: Catch) -> Vec<usize> {
    let Settings { seed, cases } = Settings::from_env(6);
    let mut replayed = Vec::new();
    busy::catch(workshop, mode, (catch, cases), seed, |copy| {
        replayed.push(same_as_the_kernel(workshop, copy)?);
        Ok(())
    })
    .unwrap_or_else(|why| panic!("{}, {catch:?}, seed {seed:#x}: {why}", mode.name));
    println!("{}: blocks replayed {replayed:?}", mode.name);
    replayed
}

fn same_as_the_kernel(workshop: &Workshop, copy: &Path) -> Result<usize, String> {
    let [theirs, untouched] = ["theirs", "untouched"].map(|name| workshop.path(name));
    busy::copy_file(copy, &theirs)?;
    busy::copy_file(copy, &untouched)?;
    let at = now();
    // Writable, because the kernel replays onto the disk.
    let mounted = workshop.mount(&theirs, &["noatime"])?;

    let ext4 = Ext4::open(copy).map_err(|err| format!("cannot open: {err}"))?;
    let seen = compare(&ext4, mounted.at(), Beside::Recovered { at });
    let seen = seen.map_err(|err| err.to_string())?;
    assert!(seen.entries > 20, "too little to compare: {seen:?}");

    let unchanged = busy::are_equal(copy, &untouched).map_err(|err| err.to_string())?;
    assert!(unchanged, "the image was written to");
    drop(mounted);
    for path in [theirs, untouched] {
        fs::remove_file(&path).map_err(|err| format!("{}: {err}", path.display()))?;
    }
    Ok(ext4.info().journal_blocks)
}

/// A little less than it is: the kernel's clock for files is behind by up to a tick.
fn now() -> Timestamp {
    let now = SystemTime::now() - Duration::from_millis(20);
    let since = now.duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
    Timestamp {
        sec: since.as_secs() as i64,
        nsec: since.subsec_nanos(),
    }
}
