//! Images copied while they were being written to: replayed in memory, ours reads what
//! the kernel reads after its own replay, and the image stays as it was.
//!
//! Takes root; without, these tests say so and are skipped. `RCUWALK_SEED` chooses what
//! is written, `RCUWALK_COPIES` how many copies are taken of each kind of journal.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcuwalk::Timestamp;
use rcuwalk_conformance::ext4::busy::{self, Catch, Mode};
use rcuwalk_conformance::ext4::compare::{Beside, compare};
use rcuwalk_conformance::ext4::workshop::{Workshop, in_workshop};
use rcuwalk_conformance::settings::{self, Settings};
use rcuwalk_ext4::Ext4;

/// EDGE-1: a journal with checksums, cut off at any moment, is replayed as the kernel
/// replays it.
#[test]
fn a_journal_cut_off_at_any_moment_is_replayed_as_the_kernel_does() {
    let test = "a_journal_cut_off_at_any_moment_is_replayed_as_the_kernel_does";
    all(test, busy::MODES);
}

/// EDGE-1: so is one of the older formats.
#[test]
fn an_old_journal_cut_off_at_any_moment_is_replayed_as_the_kernel_does() {
    let test = "an_old_journal_cut_off_at_any_moment_is_replayed_as_the_kernel_does";
    all(test, busy::OLD_MODES);
}

fn all(test: &str, modes: &[Mode]) {
    in_workshop(test, |workshop| {
        for mode in modes {
            let outcomes = outcomes(workshop, mode, Catch::Moment);
            assert!(outcomes.len() >= 5, "{}: few copies", mode.name);
            let blocks = outcomes.iter().map(|outcome| match outcome {
                Outcome::Same { replayed } => *replayed,
                // The kernel at times journals a block of its orphan file that does not
                // match its checksum, and would not have it back.
                Outcome::BothRefuse(_) => 0,
                other => panic!("{}: {other:?}", mode.name),
            });
            assert!(
                blocks.sum::<usize>() > 0,
                "{}: nothing to be replayed",
                mode.name
            );
        }
    });
}

/// EDGE-1: a copy taken while the file system is frozen needs no replay.
#[test]
fn a_frozen_file_system_needs_no_replay() {
    in_workshop("a_frozen_file_system_needs_no_replay", |workshop| {
        for mode in &busy::MODES[..2] {
            for outcome in outcomes(workshop, mode, Catch::Tidy) {
                assert_eq!(outcome, Outcome::Same { replayed: 0 }, "{}", mode.name);
            }
        }
    });
}

/// EDGE-1: fast commits are not replayed here, and an image that has some is refused
/// rather than read without them.
#[test]
fn an_image_with_fast_commits_is_refused() {
    in_workshop("an_image_with_fast_commits_is_refused", |workshop| {
        let mut refused = 0;
        for outcome in outcomes(workshop, &busy::FAST_COMMIT, Catch::Moment) {
            match outcome {
                // Caught just after a whole commit.
                Outcome::Same { .. } => {}
                // The kernel's own replay does not always come to an end either.
                Outcome::OursRefuses(why) | Outcome::BothRefuse(why) => {
                    assert!(why.contains("unsupported feature: fast_commit"), "{why}");
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(refused > 0, "there was never a fast commit");
    });
}

/// A copy that is no moment of the image reads without a panic, and with errors that
/// say something. It need not read as the kernel reads it, which repairs while it does.
#[test]
fn a_torn_copy_gives_answers_or_errors() {
    in_workshop("a_torn_copy_gives_answers_or_errors", |workshop| {
        for mode in &busy::MODES[1..3] {
            // The messages are printed; the claim is that there are some.
            assert!(!outcomes(workshop, mode, Catch::Torn).is_empty());
        }
    });
}

/// What became of one copy.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// No difference, after this number of blocks came from the journal.
    Same { replayed: usize },
    /// Where the kernel gave answers, ours gave errors.
    Fails(String),
    /// They gave different answers.
    Differs(String),
    /// The kernel would not mount it, for this reason; ours said something else.
    KernelRefuses(String),
    /// Neither would open it; why ours would not.
    BothRefuse(String),
    /// Ours would not open it, for this reason.
    OursRefuses(String),
}

fn outcomes(workshop: &Workshop, mode: &Mode, catch: Catch) -> Vec<Outcome> {
    let Settings { seed, .. } = Settings::from_env(0);
    let mut outcomes = Vec::new();
    let copies = settings::copies(6);
    busy::catch(workshop, mode, (catch, copies), seed, |copy| {
        outcomes.push(beside_the_kernel(workshop, copy)?);
        Ok(())
    })
    .unwrap_or_else(|why| panic!("{}, {catch:?}, seed {seed:#x}: {why}", mode.name));
    println!("{}, {catch:?}: {outcomes:?}", mode.name);
    outcomes
}

fn beside_the_kernel(workshop: &Workshop, copy: &Path) -> Result<Outcome, String> {
    let [theirs, untouched] = ["theirs", "untouched"].map(|name| workshop.path(name));
    busy::copy_file(copy, &theirs)?;
    busy::copy_file(copy, &untouched)?;
    let at = now();
    // Writable, because the kernel replays onto the disk.
    let mounted = workshop.mount(&theirs, &["noatime"]);
    let ours = Ext4::open(copy);
    let outcome = match (ours, &mounted) {
        (Err(ours), Err(_)) => Outcome::BothRefuse(ours.to_string()),
        (Err(err), Ok(_)) => Outcome::OursRefuses(err.to_string()),
        (Ok(_), Err(why)) => Outcome::KernelRefuses(why.clone()),
        (Ok(ext4), Ok(mounted)) => match compare(&ext4, mounted.at(), Beside::Recovered { at }) {
            Ok(coverage) => {
                assert!(coverage.entries > 20, "too little to compare: {coverage:?}");
                println!("{coverage:?}");
                let replayed = ext4.info().journal_blocks;
                Outcome::Same { replayed }
            }
            Err(differences) if differences.are_failures() => {
                Outcome::Fails(differences.to_string())
            }
            Err(differences) => Outcome::Differs(differences.to_string()),
        },
    };
    let unchanged = busy::are_equal(copy, &untouched).map_err(|err| err.to_string())?;
    assert!(unchanged, "the image was written to");
    drop(mounted);
    for path in [theirs, untouched] {
        fs::remove_file(&path).map_err(|err| format!("{}: {err}", path.display()))?;
    }
    Ok(outcome)
}

/// A little less than it is: the kernel's clock for files is behind by up to a tick.
fn now() -> Timestamp {
    let now = SystemTime::now() - Duration::from_millis(20);
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("the clock is set");
    Timestamp {
        sec: since.as_secs() as i64,
        nsec: since.subsec_nanos(),
    }
}
