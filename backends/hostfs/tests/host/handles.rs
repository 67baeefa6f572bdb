//! Handles of a directory of the host, which outlive this process's caches, and restarts.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::common::{Scratch, is_root, skip};
use rcuwalk::{Credentials, Error, Freshness, Handle, HandleKey, LookupFlags, Vfs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::{Rng, Unmount, setting};
use rustix::fd::OwnedFd;
use rustix::fs::{Gid, Mode, OFlags, Uid};

fn mounted(root: &Path) -> Vfs {
    let fs = HostFs::new(root).unwrap();
    Vfs::new(fs.with_freshness(Freshness::EachUse)).unwrap()
}

fn handle(vfs: &Vfs, path: &str) -> Handle {
    let ctx = vfs.context(Credentials::root());
    let place = vfs.lookup(&ctx, path, LookupFlags::default()).unwrap();
    let handle = vfs.encode_handle(&place).unwrap();
    Handle::from_bytes(&handle.to_bytes()).unwrap()
}

/// The inode number of what the handle finds.
fn ino(vfs: &Vfs, handle: &Handle) -> Result<u64, Error> {
    vfs.open_by_handle(handle).map(|found| found.attr().ino)
}

fn is_stale(vfs: &Vfs, handle: &Handle) -> bool {
    matches!(vfs.open_by_handle(handle), Err(Error::Stale))
}

/// Has the host keep the name in its cache.
fn held(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).unwrap()
}

fn fill(root: &Path) {
    fs::create_dir_all(root.join("dir/below")).unwrap();
    fs::write(root.join("file"), "file").unwrap();
    fs::write(root.join("dir/below/deep"), "deep").unwrap();
    symlink("nowhere", root.join("dir/link")).unwrap();
}

const PATHS: [&str; 6] = [
    "/",
    "/file",
    "/dir",
    "/dir/below",
    "/dir/below/deep",
    "/dir/link",
];

/// A file system of its own for a test, whole: `None`, and the test is skipped, where it cannot be
/// mounted.
fn whole(kind: &str, at: &Path) -> Option<(PathBuf, Unmount)> {
    let (top, image) = (at.join("top"), at.join("image"));
    fs::create_dir(&top).unwrap();
    let done = |command: &mut Command| {
        let ended = command.output();
        ended.is_ok_and(|ended| ended.status.success())
    };
    let mut mount = Command::new("mount");
    let made = match kind {
        "tmpfs" => done(mount.args(["-t", "tmpfs", "none"]).arg(&top)),
        _ => {
            let mut mkfs = Command::new("mkfs.ext4");
            done(mkfs.arg("-q").arg(&image).arg("16M"))
                && done(mount.args(["-o", "loop"]).arg(&image).arg(&top))
        }
    };
    if !made {
        skip("needs mkfs.ext4 and loop devices");
        return None;
    }
    let unmount = Unmount(top.clone());
    Some((top, unmount))
}

/// HANDLE-1: handles find their files after a restart, wherever the host has moved them to, in a
/// whole file system of the host and in a directory of one.
#[test]
fn handles_outlive_a_restart() {
    if !is_root() {
        return skip("needs root");
    }
    for kind in ["tmpfs", "ext4", "a directory"] {
        let dir = tempfile::tempdir().unwrap();
        let (root, _mounted) = match kind {
            "a directory" => (dir.path().to_owned(), None),
            kind => match whole(kind, dir.path()) {
                Some((root, mounted)) => (root, Some(mounted)),
                None => return,
            },
        };
        fill(&root);
        let before = mounted(&root);
        let handles = PATHS.map(|path| handle(&before, path));
        let of = |path: &str| fs::symlink_metadata(root.join(&path[1..])).unwrap().ino();
        let numbers = PATHS.map(of);
        drop(before);
        for (handle, path) in handles.iter().zip(PATHS) {
            let after = mounted(&root);
            assert_eq!(
                ino(&after, handle).unwrap(),
                of(path),
                "HANDLE-1: {kind} {path}"
            );
        }
        fs::rename(root.join("dir/below"), root.join("moved")).unwrap();
        fs::rename(root.join("file"), root.join("moved/other")).unwrap();
        fs::rename(root.join("dir/link"), root.join("dir/other")).unwrap();
        // In a directory of a file system, the host has to know a name of what is not one.
        let _known = ["moved/other", "moved/deep", "dir/other"].map(|path| held(&root.join(path)));
        let after = mounted(&root);
        for ((handle, number), path) in handles.iter().zip(numbers).zip(PATHS) {
            assert_eq!(
                ino(&after, handle).unwrap(),
                number,
                "HANDLE-1: {kind} {path}"
            );
        }
        let ctx = after.context(Credentials::root());
        let moved = after.open_by_handle(&handles[3]).unwrap();
        assert_eq!(
            &*after.path_of(&ctx, &moved).unwrap(),
            b"/moved",
            "HANDLE-1: {kind}"
        );
    }
}

/// HANDLE-1: a handle of a file that was removed is stale, also when another file has its place, or
/// its inode number.
#[test]
fn a_handle_is_of_one_file() {
    let host = Scratch::new(Freshness::EachUse, fill);
    let old = handle(&host.vfs, "/file");
    let number = fs::metadata(host.host("file")).unwrap().ino();
    fs::remove_file(host.host("file")).unwrap();
    assert!(is_stale(&host.vfs, &old), "HANDLE-1: removed");
    let mut again = 0;
    for n in 0..200 {
        let name = host.host(&format!("new{n}"));
        fs::write(&name, "new").unwrap();
        again += u32::from(fs::metadata(&name).unwrap().ino() == number);
        fs::rename(&name, host.host("file")).unwrap();
        assert!(is_stale(&host.vfs, &old), "HANDLE-1: another file is there");
        assert!(is_stale(&mounted(&host.host("")), &old), "HANDLE-1");
    }
    eprintln!("the inode number was given again {again} times");
}

/// HANDLE-1: files that are not below the root are not found, though the host could open them.
#[test]
fn a_handle_leads_nowhere_outside() {
    if !is_root() {
        return skip("needs root");
    }
    let host = Scratch::new(Freshness::EachUse, fill);
    fs::create_dir(host.outside("dir")).unwrap();
    fs::write(host.outside("dir/secret"), "secret").unwrap();
    fs::rename(host.host("file"), host.outside("file")).unwrap();
    let above = mounted(host.host("").parent().unwrap());
    let inside = mounted(&host.host(""));
    for path in [
        "/",
        "/outside",
        "/outside/dir",
        "/outside/dir/secret",
        "/outside/file",
    ] {
        let outside = handle(&above, path);
        assert!(ino(&above, &outside).is_ok(), "{path}");
        assert!(is_stale(&inside, &outside), "HANDLE-1: {path}");
        assert!(
            is_stale(&inside, &outside.without_path()),
            "HANDLE-1: {path}"
        );
    }
    // One that moves out and in again.
    let moves = handle(&inside, "/dir/below/deep");
    assert!(ino(&inside, &moves).is_ok());
    fs::rename(host.host("dir/below"), host.outside("below")).unwrap();
    assert!(is_stale(&inside, &moves), "HANDLE-1");
    fs::rename(host.outside("below"), host.host("back")).unwrap();
    let _known = held(&host.host("back/deep"));
    assert!(ino(&inside, &moves).is_ok(), "HANDLE-1");
}

/// HANDLE-1: a file of another file system below the root is found by its path, while it is there.
#[test]
fn a_handle_of_another_file_system_needs_its_path() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let Some((top, unmount)) = whole("tmpfs", dir.path()) else {
        return;
    };
    fill(&top);
    let vfs = mounted(dir.path());
    for path in PATHS {
        let path = format!("/top{}", path.trim_end_matches('/'));
        let there = handle(&vfs, &path);
        assert!(ino(&vfs, &there).is_ok(), "HANDLE-1: {path}");
        assert!(is_stale(&vfs, &there.without_path()), "HANDLE-1: {path}");
    }
    let deep = handle(&vfs, "/top/dir/below/deep");
    drop((vfs, unmount));
    let vfs = mounted(dir.path());
    assert!(is_stale(&vfs, &deep), "HANDLE-1: unmounted");
}

/// HANDLE-1: without CAP_DAC_READ_SEARCH a file is found at its place, and nowhere else.
#[test]
fn without_the_capability_the_place_counts() {
    if !is_root() {
        return skip("needs root");
    }
    let host = Scratch::new(Freshness::EachUse, |root| {
        fill(root);
        let open = fs::Permissions::from_mode(0o777);
        for path in [".", "dir", "dir/below", "file", "dir/below/deep"] {
            fs::set_permissions(root.join(path), open.clone()).unwrap();
        }
        let above = root.parent().unwrap();
        fs::set_permissions(above, open).unwrap();
    });
    let handles = PATHS.map(|path| handle(&host.vfs, path));
    let root = host.host("");
    let worker = thread::spawn(move || {
        let (uid, gid) = (Uid::from_raw(1500), Gid::from_raw(1500));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let vfs = mounted(&root);
        for handle in &handles {
            assert!(ino(&vfs, handle).is_ok(), "HANDLE-1: {handle:?}");
        }
        fs::rename(root.join("file"), root.join("moved")).unwrap();
        assert!(is_stale(&vfs, &handles[1]), "HANDLE-1");
        fs::write(root.join("file"), "another").unwrap();
        assert!(is_stale(&vfs, &handles[1]), "HANDLE-1");
        fs::rename(root.join("moved"), root.join("file")).unwrap();
        assert!(ino(&vfs, &handles[1]).is_ok(), "HANDLE-1");
    });
    worker.join().unwrap();
}

/// HANDLE-1: a handle with changed bytes finds its own file or none below the root's; a signed one
/// is refused.
#[test]
fn changed_handles_find_nothing_else() {
    let host = Scratch::new(Freshness::EachUse, fill);
    let key = HandleKey::new([3; 16]);
    let mut rng = Rng::new(setting("RCUWALK_SEED", 11));
    let right: Vec<_> = PATHS.map(|path| handle(&host.vfs, path)).into();
    for n in 0..setting("RCUWALK_HANDLE_TRIES", 5000) {
        let handle = rng.pick(&right);
        let mut bytes = key.sign(handle);
        let signed = bytes.len() - HandleKey::SIGNATURE_BYTES;
        for _ in 0..rng.between(1, 3) {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        if bytes == key.sign(handle) {
            continue;
        }
        assert!(key.verify(&bytes).is_err(), "HANDLE-1: {n}");
        let Ok(changed) = Handle::from_bytes(&bytes[..signed]) else {
            continue;
        };
        if let Ok(found) = host.vfs.open_by_handle(&changed) {
            let ctx = host.vfs.context(Credentials::root());
            let path = host.vfs.path_of(&ctx, &found).unwrap();
            assert!(
                PATHS.iter().any(|known| known.as_bytes() == &*path),
                "HANDLE-1: {n}"
            );
            let found = host.vfs.encode_handle(&found).unwrap().without_path();
            assert_eq!(found, changed.without_path(), "HANDLE-1: {n}");
        }
    }
}
