//! The differential tests are only worth what their walks reach. These check the
//! generators, the comparison and the shrinking, with the model on both sides:
//! quick, without privileges, and without rcuwalk.

use rcuwalk::LookupFlags;
use rcuwalk_conformance::answer::errno_name;
use rcuwalk_conformance::coverage::{Coverage, Feature};
use rcuwalk_conformance::differ::{self, Oracle, Subject};
use rcuwalk_conformance::materialise::Powers;
use rcuwalk_conformance::settings::Settings;
use rcuwalk_conformance::shrink::Failure;
use rcuwalk_conformance::tree::{ROOT, Tree};
use rcuwalk_conformance::walks::{Planner, User, Walk};
use rcuwalk_testkit::Rng;

/// The seeds of the differential tests' 20,000 walks; not `RCUWALK_SEED`, because
/// the counts below are promises about these.
const SETTINGS: Settings = Settings {
    seed: 0x5eed_0000_0001,
    cases: 20_000,
};

/// A mistake, told as the walk that a mistaken resolver takes it for.
type Mistake = fn(&Walk) -> Walk;

fn compare_models(change: Mistake) -> Result<Coverage, Box<Failure>> {
    differ::run(
        Subject::Model(change),
        (Oracle::Model, Powers::ALL),
        SETTINGS,
    )
}

/// EDGE-1: each errno that a walk can end with occurs often among the 20,000.
#[test]
fn every_errno_occurs() {
    let coverage = compare_models(Clone::clone).expect("the model agrees with itself");
    assert_eq!(coverage.cases, SETTINGS.cases);
    let at_least = [
        (0, 5_000),
        (libc::ENOENT, 2_000),
        (libc::ENOTDIR, 1_000),
        (libc::EACCES, 1_000),
        (libc::ENAMETOOLONG, 500),
        (libc::ELOOP, 300),
    ];
    for (errno, least) in at_least {
        let count = coverage.errnos.get(&errno).copied().unwrap_or(0);
        assert!(
            count >= least,
            "EDGE-1: {} only {count} times",
            errno_name(errno)
        );
    }
    let known = at_least.map(|(errno, _)| errno);
    assert!(
        coverage.errnos.keys().all(|errno| known.contains(errno)),
        "EDGE-1: {coverage}"
    );
}

/// EDGE-1: each thing that a walk treats specially occurs among the 20,000.
#[test]
fn every_feature_occurs() {
    let coverage = compare_models(Clone::clone).expect("the model agrees with itself");
    assert!(!coverage.features.is_empty());
    for (feature, count) in &coverage.features {
        // Walks that end after exactly this number of links are rare.
        let least = if matches!(feature, Feature::Links39 | Feature::Links40) {
            5
        } else {
            50
        };
        assert!(
            *count >= least,
            "EDGE-1: {feature:?} only {count} times\n{coverage}"
        );
    }
}

/// EDGE-1: the comparison sees each of these mistakes, and shrinks it to a few
/// lines.
#[test]
fn known_mistakes_are_found_and_shrunk() {
    let mistakes: [(&str, Mistake); 11] = [
        ("trailing slashes are ignored", |walk| {
            let end = walk
                .path
                .iter()
                .rposition(|&b| b != b'/')
                .map_or(0, |at| at + 1);
            Walk {
                path: walk.path[..end.max(1).min(walk.path.len())].to_vec(),
                ..walk.clone()
            }
        }),
        ("a/.. is folded by its letters", |walk| Walk {
            path: folded(&walk.path),
            ..walk.clone()
        }),
        ("the last link is always followed", |walk| {
            with(walk, LookupFlags::FOLLOW)
        }),
        ("the last link is never followed", |walk| {
            without(walk, LookupFlags::FOLLOW)
        }),
        ("no directory is required", |walk| {
            without(walk, LookupFlags::DIRECTORY)
        }),
        ("the empty path is the current directory", |walk| {
            with(walk, LookupFlags::EMPTY_PATH)
        }),
        ("the empty path is never anything", |walk| {
            without(walk, LookupFlags::EMPTY_PATH)
        }),
        ("a chroot is forgotten", |walk| {
            let mut walk = walk.clone();
            walk.place.root = ROOT;
            walk
        }),
        ("everybody may search", |walk| Walk {
            user: User::Root,
            ..walk.clone()
        }),
        ("uid 0 is all-powerful without capabilities", |walk| {
            let user = if walk.user == User::Powerless {
                User::Root
            } else {
                walk.user
            };
            Walk {
                user,
                ..walk.clone()
            }
        }),
        ("paths may have 4096 bytes", |walk| {
            let slashed = walk.path.len() == rcuwalk::PATH_MAX && walk.path.starts_with(b"//");
            Walk {
                path: walk.path[usize::from(slashed)..].to_vec(),
                ..walk.clone()
            }
        }),
    ];
    for (mistake, change) in mistakes {
        let Err(failure) = compare_models(change) else {
            panic!("EDGE-1: not found: {mistake}")
        };
        let long = mistake.contains("4096");
        assert!(
            long || failure.size() <= 40,
            "EDGE-1: {mistake} is still large:\n{failure}"
        );
        println!("{mistake}:\n{failure}\n");
    }
}

/// EDGE-1: a seed names the same walks for ever, within one version at least.
#[test]
fn a_seed_names_its_walks() {
    let walks = |seed| -> Vec<String> {
        let mut rng = Rng::new(seed);
        let tree = Tree::grow(&mut rng, Powers::ALL);
        let planner = Planner::new(&tree, &mut rng, Powers::ALL);
        (0..100)
            .map(|_| format!("{:?}", planner.plan(&mut rng)))
            .collect()
    };
    assert_eq!(walks(7), walks(7), "EDGE-1");
    assert_ne!(walks(7), walks(8), "EDGE-1");
}

fn with(walk: &Walk, flag: LookupFlags) -> Walk {
    Walk {
        flags: walk.flags | flag,
        ..walk.clone()
    }
}

fn without(walk: &Walk, flag: LookupFlags) -> Walk {
    Walk {
        flags: walk.flags - flag,
        ..walk.clone()
    }
}

/// What many path libraries do, and Linux does not: `link/..` is not where the
/// link is.
fn folded(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for component in path.split(|&b| b == b'/') {
        let foldable = kept
            .last()
            .is_some_and(|last| !matches!(*last, b"" | b"." | b".."));
        if component == b".." && foldable {
            kept.pop();
        } else {
            kept.push(component);
        }
    }
    let joined = kept.join(&b'/');
    if joined.is_empty() && !path.is_empty() {
        b".".to_vec()
    } else {
        joined
    }
}
