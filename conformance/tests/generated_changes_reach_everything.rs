//! The differential tests of changes are only worth what their sequences reach. These
//! check the generator, the comparison and the shrinking, with the kernel on both sides.

use std::io;
use std::path::Path;
use std::thread;

use rcuwalk_conformance::answer::errno_name;
use rcuwalk_conformance::changes::answer::Outcome;
use rcuwalk_conformance::changes::coverage::Coverage;
use rcuwalk_conformance::changes::differ::{self, Subject};
use rcuwalk_conformance::changes::generate::{Shape, Sticky};
use rcuwalk_conformance::changes::host::Host;
use rcuwalk_conformance::changes::known;
use rcuwalk_conformance::changes::op::{At, Op, When};
use rcuwalk_conformance::changes::side::Side;
use rcuwalk_conformance::changes::sysctls::Sysctls;
use rcuwalk_conformance::changes::users::User;
use rcuwalk_conformance::ext4::workshop::{in_workshop, mke2fs};
use rcuwalk_conformance::settings::Settings;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};

/// Not `RCUWALK_SEED`: the counts below are promises about these sequences.
const SETTINGS: Settings = Settings {
    seed: 0x5eed_0000_0001,
    cases: 40_000,
};

const SHAPE: Shape = Shape {
    sticky: Sticky::Some,
    on_host: false,
    tree_every: 40,
    watch: 40,
};

/// The kernel in rcuwalk's place, asked what a mistake makes of each operation.
struct Mistaken(fn(Op) -> Op);

impl Subject for Mistaken {
    fn with_side(&self, host: &mut Host, work: &mut dyn FnMut(&mut dyn Side)) -> io::Result<()> {
        host.in_new_dir("again", |host| {
            work(&mut Changed {
                host,
                change: self.0,
            })
        })
    }
}

struct Changed<'h> {
    host: &'h mut Host,
    change: fn(Op) -> Op,
}

impl Side for Changed<'_> {
    fn run(&mut self, user: User, op: &Op) -> Outcome {
        self.host.run(user, &(self.change)(op.clone()))
    }
}

fn same(op: Op) -> Op {
    op
}

/// EDGE-1: run twice, a sequence has the same results: the comparison does not depend on
/// timing. And each operation has every result that it should be able to have.
#[test]
fn the_kernel_agrees_with_itself_on_tmpfs() {
    let test = "the_kernel_agrees_with_itself_on_tmpfs";
    in_workshop(test, |workshop| {
        let coverage = agree(&workshop.path(""));
        let missing: Vec<String> = FLOOR
            .iter()
            .flat_map(|(kind, errnos)| errnos.iter().map(move |errno| (*kind, *errno)))
            .filter(|(kind, errno)| coverage.of(kind, *errno) == 0)
            .map(|(kind, errno)| format!("{kind}: {}", errno_name(errno)))
            .collect();
        assert!(missing.is_empty(), "EDGE-1: never reached: {missing:?}");
        assert!(coverage.successes() >= 40, "EDGE-1: most operations fail");
    });
}

/// EDGE-1: nor does it on ext4.
#[test]
fn the_kernel_agrees_with_itself_on_ext4() {
    let test = "the_kernel_agrees_with_itself_on_ext4";
    in_workshop(test, |workshop| {
        let image = workshop.new_image("ext4", 256 << 20).expect("an image");
        mke2fs(&image, &["-t", "ext4"]).expect("an ext4");
        let mounted = workshop.mount(&image, &[]).expect("mounted");
        agree(mounted.at());
    });
}

fn agree(top: &Path) -> Coverage {
    let _machine = Sysctls::as_they_are().expect("sysctls");
    let coverage = differ::run(&Mistaken(same), top, SHAPE, SETTINGS, 1)
        .agreed()
        .unwrap_or_else(|difference| panic!("EDGE-1: {difference}"));
    println!("{coverage}");
    coverage
}

/// What each kind of operation comes to on tmpfs; `Kind+flags`, `Kind attribute`.
const FLOOR: [(&str, &[i32]); 57] = {
    use libc::*;
    [
        ("Access", &[0, ENOENT, EBADF, EACCES, ENOTDIR, ENAMETOOLONG]),
        ("Allocate", &[0, EBADF, EINVAL, EFBIG]),
        ("Allocate+0x1", &[0, EBADF, EINVAL]),
        ("Allocate+0x10", &[EBADF, EINVAL, EOPNOTSUPP]),
        ("Allocate+0x2", &[EBADF, EINVAL, EOPNOTSUPP]),
        ("Allocate+0x20", &[EBADF, EINVAL, EOPNOTSUPP]),
        ("Allocate+0x3", &[0, EBADF, EINVAL]),
        ("Allocate+0x8", &[EBADF, EINVAL, EOPNOTSUPP]),
        ("Chdir", &[0, ENOENT, EBADF, EACCES, ENOTDIR]),
        (
            "Chmod",
            &[0, EPERM, ENOENT, EBADF, EACCES, ENOTDIR, EOPNOTSUPP, ELOOP],
        ),
        ("Chown", &[0, EPERM, ENOENT, EBADF, EACCES, ENOTDIR]),
        ("Close", &[0, EBADF]),
        (
            "Create",
            &[
                0,
                EPERM,
                ENOENT,
                EACCES,
                EEXIST,
                ENOTDIR,
                EISDIR,
                ENAMETOOLONG,
            ],
        ),
        ("GetXattr ", &[ERANGE]),
        ("GetXattr bogus.", &[EOPNOTSUPP]),
        ("GetXattr security.", &[0, ENODATA]),
        (
            "GetXattr system.posix_acl_access",
            &[0, ENOENT, EACCES, ENODATA, EOPNOTSUPP],
        ),
        (
            "GetXattr system.posix_acl_default",
            &[0, ENOENT, EACCES, ENODATA, EOPNOTSUPP],
        ),
        ("GetXattr trusted.", &[0, ENODATA]),
        (
            "GetXattr user.",
            &[0, ENOENT, EACCES, ENODATA, EINVAL, ERANGE, EBADF],
        ),
        (
            "Link",
            &[
                0,
                EPERM,
                ENOENT,
                EBADF,
                EACCES,
                EEXIST,
                ENOTDIR,
                ENAMETOOLONG,
            ],
        ),
        ("List", &[0, ENOENT, EBADF, EACCES, ENOTDIR]),
        ("ListXattr", &[0, ENOENT, EBADF, EACCES, ENOTDIR]),
        ("Mkdir", &[0, ENOENT, EACCES, EEXIST, ENOTDIR, ENAMETOOLONG]),
        (
            "Mknod",
            &[0, EPERM, ENOENT, EACCES, EEXIST, ENOTDIR, ENAMETOOLONG],
        ),
        (
            "Open",
            &[
                0,
                EPERM,
                ENOENT,
                ENXIO,
                EACCES,
                EEXIST,
                ENOTDIR,
                EISDIR,
                EINVAL,
                ELOOP,
                ENAMETOOLONG,
            ],
        ),
        ("Read", &[0, EBADF, EISDIR, EINVAL]),
        ("ReadLink", &[0, ENOENT, EACCES, ENOTDIR, EINVAL]),
        ("RemoveXattr security.", &[0, EPERM, ENODATA]),
        (
            "RemoveXattr system.posix_acl_access",
            &[0, EPERM, ENOENT, EOPNOTSUPP],
        ),
        (
            "RemoveXattr system.posix_acl_default",
            &[0, EPERM, ENOENT, EOPNOTSUPP],
        ),
        ("RemoveXattr trusted.", &[0, EPERM, ENODATA]),
        (
            "RemoveXattr user.",
            &[0, EPERM, ENOENT, EBADF, EACCES, EINVAL, ENODATA],
        ),
        (
            "Rename",
            &[
                0,
                EPERM,
                ENOENT,
                EACCES,
                EBUSY,
                ENOTDIR,
                EISDIR,
                EINVAL,
                ENOTEMPTY,
                ENAMETOOLONG,
            ],
        ),
        (
            "Rename+0x1",
            &[0, EPERM, ENOENT, EACCES, EBUSY, EEXIST, ENOTDIR, EINVAL],
        ),
        (
            "Rename+0x2",
            &[0, EPERM, ENOENT, EACCES, EBUSY, ENOTDIR, EINVAL],
        ),
        ("Rename+0x3", &[EINVAL]),
        (
            "Rename+0x4",
            &[0, EPERM, ENOENT, EACCES, EBUSY, ENOTDIR, EINVAL],
        ),
        ("Rename+0x5", &[0, ENOENT, EACCES, EEXIST]),
        ("Rename+0x6", &[EINVAL]),
        ("Rename+0x8", &[EINVAL]),
        (
            "Rmdir",
            &[0, EPERM, ENOENT, EACCES, EBUSY, ENOTDIR, EINVAL, ENOTEMPTY],
        ),
        ("SeekData", &[0, ENXIO, EBADF]),
        ("SeekHole", &[0, ENXIO, EBADF]),
        ("SetFlags", &[0, EPERM, ENOENT, EACCES, ENOTDIR]),
        ("SetLen", &[0, EBADF, EINVAL]),
        (
            "SetXattr security.",
            &[0, EPERM, E2BIG, EEXIST, EINVAL, ENODATA],
        ),
        (
            "SetXattr system.posix_acl_access",
            &[0, EPERM, ENOENT, EACCES, EINVAL, EOPNOTSUPP],
        ),
        (
            "SetXattr system.posix_acl_default",
            &[0, EPERM, ENOENT, EACCES, EINVAL, EOPNOTSUPP],
        ),
        ("SetXattr trusted.", &[0, EPERM, E2BIG, EEXIST, ENODATA]),
        (
            "SetXattr user.",
            &[0, EPERM, ENOENT, EBADF, E2BIG, EEXIST, EACCES, ENODATA],
        ),
        ("StatFs", &[0, ENOENT, EBADF, EACCES]),
        (
            "Symlink",
            &[0, ENOENT, EACCES, EEXIST, ENOTDIR, ENAMETOOLONG],
        ),
        ("Truncate", &[0, ENOENT, EACCES, ENOTDIR, EISDIR, EINVAL]),
        (
            "Unlink",
            &[0, EPERM, ENOENT, EACCES, ENOTDIR, EISDIR, ENAMETOOLONG],
        ),
        (
            "Utimes",
            &[0, EPERM, ENOENT, EBADF, EACCES, ENOTDIR, EINVAL],
        ),
        ("Write", &[0, EBADF, EINVAL]),
    ]
};

/// A mistake, told as the operation that a mistaken library takes it for.
type Mistake = fn(Op) -> Op;

/// EDGE-1: the comparison sees each of these mistakes, and shrinks it to a few lines.
#[test]
fn known_mistakes_are_found_and_shrunk() {
    let mistakes: [(&str, Mistake); 12] = [
        ("RENAME_NOREPLACE replaces", |op| match op {
            Op::Rename { old, new, flags } => Op::Rename {
                old,
                new,
                flags: flags - RenameFlags::NOREPLACE,
            },
            op => op,
        }),
        ("RENAME_EXCHANGE moves", |op| match op {
            Op::Rename { old, new, flags } => Op::Rename {
                old,
                new,
                flags: flags - RenameFlags::EXCHANGE,
            },
            op => op,
        }),
        ("lchown follows", |op| match op {
            Op::Chown {
                at: At::NoFollow(path),
                uid,
                gid,
            } => Op::Chown {
                at: At::Path(path),
                uid,
                gid,
            },
            op => op,
        }),
        ("UTIME_OMIT is now", |op| match op {
            Op::Utimes { at, atime, mtime } => Op::Utimes {
                at,
                atime,
                mtime: if mtime == When::Omit {
                    When::Now
                } else {
                    mtime
                },
            },
            op => op,
        }),
        ("O_EXCL is ignored", |op| without(op, OFlags::EXCL)),
        ("O_TRUNC is ignored", |op| without(op, OFlags::TRUNC)),
        ("O_APPEND is ignored", |op| without(op, OFlags::APPEND)),
        ("O_NOATIME is ignored", |op| without(op, OFlags::NOATIME)),
        ("XATTR_CREATE is ignored", |op| match op {
            Op::SetXattr {
                at,
                name,
                value,
                flags,
            } => Op::SetXattr {
                at,
                name,
                value,
                flags: flags & !1,
            },
            op => op,
        }),
        ("a hole is not punched", |op| match op {
            Op::Allocate {
                slot,
                mode,
                at,
                len,
            } => Op::Allocate {
                slot,
                mode: mode - FallocateFlags::PUNCH_HOLE,
                at,
                len,
            },
            op => op,
        }),
        ("the last byte is not written", |op| match op {
            Op::Write {
                slot,
                at,
                len,
                fill,
            } => Op::Write {
                slot,
                at,
                len: len.saturating_sub(1),
                fill,
            },
            op => op,
        }),
        ("a default list is no list", |op| match op {
            Op::SetXattr { at, name, .. } if name == "system.posix_acl_default" => {
                Op::RemoveXattr { at, name }
            }
            op => op,
        }),
    ];
    in_workshop("known_mistakes_are_found_and_shrunk", |workshop| {
        let _machine = Sysctls::as_they_are().expect("sysctls");
        for (mistake, change) in mistakes {
            let found = thread::scope(|scope| {
                let run = || differ::run(&Mistaken(change), &workshop.path(""), SHAPE, SETTINGS, 1);
                scope.spawn(run).join().expect("no panic")
            });
            let [failure] = &found.failures[..] else {
                panic!("EDGE-1: not found: {mistake}")
            };
            println!("{mistake}: {failure}");
            let steps = failure.steps().len();
            assert!(steps <= 12, "EDGE-1: {mistake} is still large:\n{failure}");
        }
    });
}

fn without(op: Op, flag: OFlags) -> Op {
    match op {
        Op::Open {
            slot,
            path,
            flags,
            mode,
        } => Op::Open {
            slot,
            path,
            flags: flags - flag,
            mode,
        },
        op => op,
    }
}

/// EDGE-1: each difference that is meant is a line of docs/semantics.md.
#[test]
fn every_known_difference_is_written_down() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/semantics.md");
    let page = std::fs::read_to_string(page).expect("docs/semantics.md");
    for known in &known::ALL {
        let section = page
            .split("\n## ")
            .find(|section| section.lines().next() == Some(known.section));
        assert!(
            section.is_some_and(|section| section.lines().any(|line| line.starts_with(known.line))),
            "EDGE-1: docs/semantics.md has no line {:?} in section {:?}",
            known.line,
            known.section
        );
    }
}
