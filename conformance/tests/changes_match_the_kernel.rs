//! rcuwalk's changes against the running kernel's: generated sequences of operations.
//!
//! `RCUWALK_CHANGES` and `RCUWALK_SEED` choose how many and which, `RCUWALK_FINDS` how
//! many differences to collect; see `rcuwalk_conformance::settings`. It takes root, and
//! a kernel with multigrain timestamps and file_setattr(2): Linux 6.17.

use std::collections::BTreeSet;
use std::path::Path;

use rcuwalk::{LookupFlags, MountFlags};
use rcuwalk_conformance::changes::differ::{self, Comparison, Subject};
use rcuwalk_conformance::changes::endings;
use rcuwalk_conformance::changes::generate::{Planner, Shape, Sticky};
use rcuwalk_conformance::changes::host::{Clock, Host};
use rcuwalk_conformance::changes::known;
use rcuwalk_conformance::changes::op::Op;
use rcuwalk_conformance::changes::subject::{OverHostFs, OverMemFs};
use rcuwalk_conformance::changes::sysctls::Sysctls;
use rcuwalk_conformance::ext4::workshop::{in_workshop, mke2fs};
use rcuwalk_conformance::settings::{self, Settings};
use rcuwalk_hostfs::Actor;
use rcuwalk_testkit::Rng;
use rustix::fs::OFlags;

/// EDGE-1: changes of memfs have the same results as on tmpfs.
#[test]
fn changes_over_memfs_match_the_kernel() {
    in_workshop("changes_over_memfs_match_the_kernel", |workshop| {
        let memfs = OverMemFs {
            walk: LookupFlags::empty(),
            flags: MountFlags::empty(),
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
            flags: MountFlags::empty(),
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
            flags: MountFlags::empty(),
        };
        agree(&hostfs, mounted.at(), operations);
    });
}

/// EDGE-1: with the sysctls `fs.protected_*` on, changes of memfs on a mount that protects links
/// have the same results as on tmpfs, in sticky directories and by other users' links in them.
#[test]
fn changes_in_sticky_directories_match_a_kernel_that_protects_them() {
    let test = "changes_in_sticky_directories_match_a_kernel_that_protects_them";
    let values = || {
        let machine = Sysctls::as_they_are();
        machine.and_then(|machine| machine.values()).ok()
    };
    let before = values();
    with_sysctls_on(test, |top| {
        for (walk, operations) in [
            (LookupFlags::empty(), 15_000),
            (LookupFlags::REF_WALK, 10_000),
        ] {
            let memfs = OverMemFs {
                walk,
                flags: MountFlags::PROTECTED_LINKS,
            };
            agree_in(Sticky::Protected, &memfs, top, operations);
        }
    });
    assert_eq!(before, values(), "put back");
}

/// EDGE-1: and each of the four sysctls makes a difference to a mount without the flag.
#[test]
fn a_mount_that_protects_nothing_is_found_out() {
    with_sysctls_on("a_mount_that_protects_nothing_is_found_out", |top| {
        let memfs = OverMemFs {
            walk: LookupFlags::empty(),
            flags: MountFlags::empty(),
        };
        let host = Host::new(top).expect("root's powers");
        let mut host = host.with_protected_hardlinks(true);
        let shape = shape(Sticky::Protected, &memfs);
        let mut missing = vec!["symlinks", "hardlinks", "regular", "fifos"];
        for number in 0..500 {
            let rng = Rng::derived(Settings::of_changes(0).seed, number);
            let mut planner = Planner::new(rng, differ::STEPS, shape);
            let (steps, _) = differ::record(&mut host, &mut planner);
            if let Comparison::Different(found) = differ::compare(&mut host, &memfs, &steps) {
                let (kernel, ours) = (found.kernel.outcome.errno(), found.ours.outcome.errno());
                let which = match (&steps[found.index].op, kernel, ours) {
                    (Op::Link { .. }, libc::EPERM, 0) => "hardlinks",
                    (Op::Open { .. }, libc::EACCES, libc::ENXIO) => "fifos",
                    (Op::Open { flags, .. }, libc::EACCES, 0)
                        if flags.contains(OFlags::CREATE | OFlags::NOFOLLOW) =>
                    {
                        "regular"
                    }
                    (Op::Stat { .. } | Op::Chmod { .. } | Op::Chdir { .. }, libc::EACCES, 0) => {
                        "symlinks"
                    }
                    _ => continue,
                };
                missing.retain(|missing| *missing != which);
            }
            if missing.is_empty() {
                return;
            }
        }
        panic!("EDGE-1: no difference made by {missing:?}");
    });
}

/// EDGE-1: each call that takes a path has the same result as on tmpfs, however the path ends:
/// in slashes, in dots, in links to such paths, in names and paths of the greatest length, in the
/// longest chain of links that a walk follows, and in a longer one.
#[test]
fn every_way_to_end_a_path_matches_the_kernel() {
    let test = "every_way_to_end_a_path_matches_the_kernel";
    in_workshop(test, |workshop| {
        let mut host = Host::new(&workshop.path("")).expect("root's powers");
        let mut seen = BTreeSet::new();
        for walk in [LookupFlags::empty(), LookupFlags::REF_WALK] {
            let memfs = OverMemFs {
                walk,
                flags: MountFlags::empty(),
            };
            for path in endings::paths() {
                let steps = endings::steps(&path);
                match differ::compare(&mut host, &memfs, &steps) {
                    Comparison::Same(answers) => {
                        seen.extend(answers.iter().map(|answer| answer.outcome.errno()));
                    }
                    Comparison::Stopped(_) => unreachable!("nothing here differs on purpose"),
                    Comparison::Different(found) => {
                        let step = &steps[found.index];
                        panic!("EDGE-1: {walk:?} {path:?}: {step:?}: {found:?}");
                    }
                }
            }
        }
        for errno in [
            libc::EBUSY,
            libc::EEXIST,
            libc::EINVAL,
            libc::EISDIR,
            libc::ELOOP,
            libc::ENAMETOOLONG,
            libc::ENOENT,
            libc::ENOTDIR,
            libc::ENOTEMPTY,
        ] {
            assert!(seen.contains(&errno), "EDGE-1: never reached: {errno}");
        }
    });
}

/// Runs `work` in a directory of a tmpfs, with all four sysctls at 1.
fn with_sysctls_on(test: &str, work: impl FnOnce(&Path) + Send) {
    let machine = match Sysctls::on() {
        Ok(machine) => machine,
        Err(err) => return settings::skipped(test, &format!("needs fs.protected_*: {err}")),
    };
    in_workshop(test, |workshop| work(&workshop.path("")));
    drop(machine);
}

/// Fails with what differs, shrunk.
fn agree(subject: &impl Subject, top: &Path, operations: usize) {
    let machine = Sysctls::as_they_are().expect("sysctls");
    let sticky = known::sticky_directories(&machine);
    agree_in(sticky, subject, top, operations);
}

fn agree_in(sticky: Sticky, subject: &impl Subject, top: &Path, operations: usize) {
    let settings = Settings::of_changes(operations);
    let Settings { seed, cases } = settings;
    println!("{cases} operations from seed {seed:#x}");
    let shape = shape(sticky, subject);
    let findings = differ::run(subject, top, shape, settings, settings::finds());
    match findings.agreed() {
        Ok(coverage) => println!("{coverage}"),
        Err(differences) => panic!("EDGE-1: {differences}"),
    }
}

fn shape(sticky: Sticky, subject: &impl Subject) -> Shape {
    Shape {
        sticky,
        on_host: subject.is_on_host(),
        tree_every: 40,
        watch: 40,
    }
}
