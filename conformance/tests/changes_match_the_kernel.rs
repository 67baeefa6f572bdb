//! rcuwalk's changes against the running kernel's: generated sequences of operations.
//!
//! `RCUWALK_CHANGES` and `RCUWALK_SEED` choose how many and which, `RCUWALK_FINDS` how
//! many differences to collect; see `rcuwalk_conformance::settings`. It takes root, and
//! a kernel with multigrain timestamps and file_setattr(2): Linux 6.17.

use std::path::Path;

use rcuwalk::LookupFlags;
use rcuwalk_conformance::changes::differ::{self, Subject};
use rcuwalk_conformance::changes::generate::Shape;
use rcuwalk_conformance::changes::host::Clock;
use rcuwalk_conformance::changes::known;
use rcuwalk_conformance::changes::subject::{OverHostFs, OverMemFs};
use rcuwalk_conformance::ext4::workshop::{in_workshop, mke2fs};
use rcuwalk_conformance::settings::{self, Settings};
use rcuwalk_hostfs::Actor;

/// EDGE-1: changes of memfs have the same results as on tmpfs.
#[test]
fn changes_over_memfs_match_the_kernel() {
    in_workshop("changes_over_memfs_match_the_kernel", |workshop| {
        let memfs = OverMemFs {
            walk: LookupFlags::empty(),
        };
        agree(&memfs, &workshop.path(""), 150_000);
    });
}

/// WALK-1: and so it does if no path is walked under RCU.
#[test]
fn changes_over_memfs_by_ref_walk_match_the_kernel() {
    let test = "changes_over_memfs_by_ref_walk_match_the_kernel";
    in_workshop(test, |workshop| {
        let memfs = OverMemFs {
            walk: LookupFlags::REF_WALK,
        };
        agree(&memfs, &workshop.path(""), 50_000);
    });
}

/// EDGE-1: changes of a directory of ext4 through hostfs have the same results as in another
/// directory of the same ext4.
#[test]
fn changes_over_hostfs_match_the_kernel() {
    agree_on_ext4(
        "changes_over_hostfs_match_the_kernel",
        Actor::Daemon,
        60_000,
    );
}

/// EDGE-1: the same holds if hostfs acts with the caller's credentials.
#[test]
fn changes_over_hostfs_as_the_caller_match_the_kernel() {
    let test = "changes_over_hostfs_as_the_caller_match_the_kernel";
    agree_on_ext4(test, Actor::Caller, 40_000);
}

fn agree_on_ext4(test: &str, actor: Actor, operations: usize) {
    in_workshop(test, |workshop| {
        let image = workshop.new_image("ext4", 256 << 20).expect("an image");
        mke2fs(&image, &["-t", "ext4"]).expect("an ext4");
        let mounted = workshop.mount(&image, &[]).expect("a mounted ext4");
        let clock = Clock::new(mounted.at()).expect("a file on ext4");
        let hostfs = OverHostFs {
            dir: mounted.at(),
            clock: &clock,
            actor,
            walk: LookupFlags::empty(),
        };
        agree(&hostfs, mounted.at(), operations);
    });
}

/// Fails with what differs, shrunk.
fn agree(subject: &impl Subject, top: &Path, operations: usize) {
    let settings = Settings::of_changes(operations);
    let Settings { seed, cases } = settings;
    println!("{cases} operations from seed {seed:#x}");
    let shape = Shape {
        sticky: known::sticky_directories(),
        on_host: subject.is_on_host(),
        tree_every: 40,
        watch: 40,
    };
    let findings = differ::run(subject, top, shape, settings, settings::finds());
    match findings.agreed() {
        Ok(coverage) => println!("{coverage}"),
        Err(differences) => panic!("EDGE-1: {differences}"),
    }
}
