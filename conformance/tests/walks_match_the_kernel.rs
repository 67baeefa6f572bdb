//! rcuwalk's walks against the running kernel's, on generated trees.
//!
//! `RCUWALK_CASES` and `RCUWALK_SEED` choose how many and which; see
//! `rcuwalk_conformance::settings`. Asking the kernel takes root: without, each of
//! these tests runs itself again in a user namespace, where everything belongs to
//! root; if that is not to be had either, it says so and is skipped.

use std::path::PathBuf;

use rcuwalk_conformance::coverage::Coverage;
use rcuwalk_conformance::differ::{self, Oracle, Subject};
use rcuwalk_conformance::kernel;
use rcuwalk_conformance::materialise::Powers;
use rcuwalk_conformance::settings::{self, Settings};

/// EDGE-1: the plain model of path resolution gives the kernel's answers, so that it may
/// replace the kernel where chroot(2) is not allowed.
#[test]
fn the_model_walks_as_the_kernel_does() {
    if let Some(powers) = powers("the_model_walks_as_the_kernel_does") {
        let coverage = agree(
            Subject::Model(Clone::clone),
            (Oracle::Kernel, powers),
            20_000,
        );
        println!("{coverage}");
    }
}

/// EDGE-1: every walk over memfs ends at the same inode or with the same errno as
/// the kernel's over the same tree.
#[test]
fn walks_over_memfs_match_the_kernel() {
    if let Some(powers) = powers("walks_over_memfs_match_the_kernel") {
        agree(Subject::MemFs, (Oracle::Kernel, powers), 20_000);
    }
}

/// WALK-1: RCU-walk, REF-walk and lookup all come to what the model of path
/// resolution comes to. Needs no privileges.
#[test]
fn walks_over_memfs_match_the_model() {
    agree(Subject::MemFs, (Oracle::Model, Powers::ALL), 20_000);
}

/// EDGE-1: every walk over hostfs ends at the same inode or with the same errno as
/// the kernel's over the same directory.
#[test]
fn walks_over_hostfs_match_the_kernel() {
    if let Some(powers) = powers("walks_over_hostfs_match_the_kernel") {
        agree(
            Subject::HostFs(std::env::temp_dir()),
            (Oracle::Kernel, powers),
            5_000,
        );
    }
}

/// EDGE-1: nor does it matter to hostfs which file system of the host it is over.
#[test]
fn walks_over_hostfs_on_tmpfs_match_the_kernel() {
    let test = "walks_over_hostfs_on_tmpfs_match_the_kernel";
    let shm = PathBuf::from("/dev/shm");
    if !shm.is_dir() {
        settings::skipped(test, "no /dev/shm");
    } else if let Some(powers) = powers(test) {
        agree(Subject::HostFs(shm), (Oracle::Kernel, powers), 5_000);
    }
}

/// Fails with the first difference, shrunk.
fn agree(subject: Subject, oracle: (Oracle, Powers), cases: usize) -> Coverage {
    let settings = Settings::from_env(cases);
    let Settings { seed, cases } = settings;
    println!("{subject:?} against {oracle:?}: {cases} walks from seed {seed:#x}");
    match differ::run(subject, oracle, settings) {
        Ok(coverage) => coverage,
        Err(failure) => panic!("{failure}"),
    }
}

/// What this process may do to ask the kernel; `None` if it may not, in which case
/// the test has been run elsewhere, or is on record as skipped.
fn powers(test: &str) -> Option<Powers> {
    match kernel::powers() {
        Ok(powers) => {
            if !powers.many_ids {
                settings::skipped(test, "the walks of other users need root");
            } else if !powers.devices {
                settings::skipped(test, "device nodes need CAP_MKNOD");
            }
            Some(powers)
        }
        Err(why) => {
            match settings::rerun_as_root_of_a_namespace(test) {
                Some(status) => assert!(status.success(), "{test} failed in a user namespace"),
                None => settings::skipped(test, &why),
            }
            None
        }
    }
}
