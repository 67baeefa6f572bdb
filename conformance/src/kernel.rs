//! The running kernel's answers, walked in the materialised tree.
//!
//! Each combination of place and caller gets a thread of its own: it leaves the
//! process's `fs_struct`, enters the tree by chroot (so that absolute links and
//! `..` at the root stay inside), then drops what the caller does not have. Linux
//! keeps root, current directory, ids and capabilities per thread; it is the C
//! library that spreads ids over all of them, and rustix does not go through it.
//! The thread ends with the group, so nothing has to be taken back.
//!
//! chroot and other users' ids take privileges: [`powers`] says which this process has. In a
//! user namespace with a single id there is a root, but no other user.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;

use rcuwalk::{Caps, LookupFlags};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use crate::answer::{Answer, Found, Numbers, Raw};
use crate::materialise::{OnHost, Powers};
use crate::tree::{ROOT, Tree};
use crate::walks::{Place, User, Walk};

/// What this process may do, found out by trying.
///
/// # Errors
/// Why the kernel cannot be asked at all.
pub fn powers() -> Result<Powers, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".into());
    }
    let scratch = tempfile::tempdir().map_err(|err| format!("no temporary directory: {err}"))?;
    // In a thread that ends with the attempt, like those that answer.
    let attempt = thread::scope(|scope| {
        let probe = scope.spawn(|| {
            enter(scratch.path(), Path::new("."))?;
            std::fs::write("file", "")?;
            let powers = Powers {
                many_ids: User::ALL.into_iter().all(|user| may_become(user, "file")),
                devices: make_device("device").is_ok(),
            };
            let callers: &[User] = if powers.many_ids {
                &User::ALL
            } else {
                &[User::Powerless]
            };
            callers.iter().try_for_each(|&user| {
                thread::scope(|scope| {
                    scope
                        .spawn(|| become_caller(user, powers))
                        .join()
                        .expect("no panic")
                })
            })?;
            Ok(powers)
        });
        probe.join().expect("the probe does not panic")
    });
    attempt.map_err(|err: io::Error| format!("needs root with its capabilities ({err})"))
}

fn may_become(user: User, file: &str) -> bool {
    std::os::unix::fs::chown(file, Some(user.uid()), Some(user.gid())).is_ok()
}

fn make_device(name: &str) -> Result<(), Errno> {
    rustix::fs::mknodat(
        CWD,
        name,
        FileType::CharacterDevice,
        Mode::RUSR,
        libc::makedev(1, 3),
    )
}

/// What the kernel says to each of `walks`, in the same order.
///
/// # Panics
/// If the kernel refuses to let a thread become a caller: see [`powers`].
pub fn answers(tree: &Tree, host: &OnHost, walks: &[Walk], powers: Powers) -> Vec<Answer> {
    let mut groups: BTreeMap<(Place, User), Vec<usize>> = BTreeMap::new();
    for (index, walk) in walks.iter().enumerate() {
        groups
            .entry((walk.place, walk.user))
            .or_default()
            .push(index);
    }
    let mut answers = vec![Answer::Errno(libc::EINVAL); walks.len()];
    for ((place, user), indices) in groups {
        let group: Vec<&Walk> = indices.iter().map(|&index| &walks[index]).collect();
        let said = as_caller(tree, host, (place, user), &group, powers);
        for (index, answer) in indices.into_iter().zip(said) {
            answers[index] = answer;
        }
    }
    answers
}

fn as_caller(
    tree: &Tree,
    host: &OnHost,
    (place, user): (Place, User),
    walks: &[&Walk],
    powers: Powers,
) -> Vec<Answer> {
    let between = |top, dir| tree.path_between(top, dir).expect("a place is in the tree");
    let root = host
        .top()
        .join(OsStr::from_bytes(&between(ROOT, place.root)));
    let cwd = [&b"./"[..], &between(place.root, place.cwd)].concat();
    thread::scope(|scope| {
        let caller = scope.spawn(|| -> io::Result<Vec<Answer>> {
            enter(&root, Path::new(OsStr::from_bytes(&cwd)))?;
            become_caller(user, powers)?;
            Ok(walks.iter().map(|walk| ask(walk, host.numbers())).collect())
        });
        let answers = caller.join().expect("the kernel's thread does not panic");
        answers.unwrap_or_else(|err| panic!("cannot become {user:?} at {place:?}: {err}"))
    })
}

/// Makes `root` this thread's root and `cwd`, below it, its current directory.
fn enter(root: &Path, cwd: &Path) -> io::Result<()> {
    // SAFETY: CLONE_FS gives this thread its own root, current directory and umask
    // and touches no memory; nothing in this process shares work with the thread
    // that depends on them.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
    rustix::process::chroot(root)?;
    rustix::process::chdir("/")?;
    Ok(rustix::process::chdir(cwd)?)
}

/// Takes on `user`'s ids and only those capabilities.
fn become_caller(user: User, powers: Powers) -> io::Result<()> {
    let groups: Vec<Gid> = user
        .groups()
        .iter()
        .map(|&gid| Gid::from_raw(gid))
        .collect();
    // Forbidden where there is one id only, and without consequence: everything in
    // the tree belongs to the caller's own group then.
    if powers.many_ids {
        rustix::thread::set_thread_groups(&groups)?;
    }
    let (uid, gid) = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    // Else the change of uid would drop the capabilities that some callers keep.
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    let mut kept = CapabilitySet::empty();
    kept.set(
        CapabilitySet::DAC_OVERRIDE,
        user.caps().contains(Caps::DAC_OVERRIDE),
    );
    kept.set(
        CapabilitySet::DAC_READ_SEARCH,
        user.caps().contains(Caps::DAC_READ_SEARCH),
    );
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn ask(walk: &Walk, numbers: &Numbers) -> Answer {
    match stat(walk) {
        Ok(stat) => {
            let raw = Raw {
                st_mode: stat.st_mode,
                uid: stat.st_uid,
                gid: stat.st_gid,
                nlink: stat.st_nlink as u32,
                rdev: stat.st_rdev,
                size: stat.st_size as u64,
            };
            Answer::Found(Found::new(numbers.which(stat.st_ino), raw))
        }
        Err(errno) => Answer::Errno(errno.raw_os_error()),
    }
}

/// fstatat(2), or open(2) with O_PATH where a directory is required, which
/// fstatat has no flag for.
fn stat(walk: &Walk) -> Result<rustix::fs::Stat, Errno> {
    let follow = walk.flags.contains(LookupFlags::FOLLOW);
    if walk.flags.contains(LookupFlags::DIRECTORY) {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        flags.set(OFlags::NOFOLLOW, !follow);
        let file: File = rustix::fs::openat(CWD, &walk.path[..], flags, Mode::empty())?.into();
        return rustix::fs::fstat(&file);
    }
    let mut flags = AtFlags::empty();
    flags.set(AtFlags::SYMLINK_NOFOLLOW, !follow);
    flags.set(
        AtFlags::EMPTY_PATH,
        walk.flags.contains(LookupFlags::EMPTY_PATH),
    );
    rustix::fs::statat(CWD, &walk.path[..], flags)
}
