//! Notices to the kernel, and their effect.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::common::{Mount, can_mount, skip};
use rcuwalk::inode::NodeId;
use rcuwalk_fuse::Options;
use rcuwalk_testkit::comes_true;

/// A host mount that the kernel caches for an hour, with one file of one byte.
fn caching() -> Option<Mount> {
    if !can_mount() {
        return None;
    }
    let hour = Duration::from_secs(3600);
    let mount = Mount::hostfs_with(&Options::default().entry_timeout(hour).attr_timeout(hour));
    fs::write(mount.path().join("file"), "1").unwrap();
    Some(mount)
}

/// Changes the file behind the mount, and waits until the back end has noticed.
fn change_behind(mount: &Mount) {
    let behind = mount.backing.as_ref().unwrap().path().join("file");
    fs::write(behind, "12345").unwrap();
    std::thread::sleep(Duration::from_millis(1100));
}

#[test]
fn attributes_are_cached_until_the_kernel_is_told() {
    let Some(mount) = caching() else { return };
    let file = mount.path().join("file");
    let node = NodeId(file.metadata().unwrap().ino());
    change_behind(&mount);
    assert_eq!(file.metadata().unwrap().len(), 1, "cached");
    let notifier = mount.mounted.notifier().unwrap();
    notifier.invalidate_inode(node, Some((0, 0))).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    assert_eq!(fs::read(&file).unwrap(), b"12345");
}

#[test]
fn a_name_is_cached_until_the_kernel_is_told() {
    for expire in [false, true] {
        let Some(mount) = caching() else { return };
        let file = mount.path().join("file");
        let before = file.metadata().unwrap().ino();
        let behind = mount.backing.as_ref().unwrap().path().join("file");
        fs::remove_file(&behind).unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(file.metadata().unwrap().ino(), before, "cached");
        let notifier = mount.mounted.notifier().unwrap();
        // The root is node 1 to the kernel, whatever inode number it shows.
        let done = match expire {
            false => notifier.invalidate_entry(NodeId::ROOT, b"file"),
            true => notifier.expire_entry(NodeId::ROOT, b"file"),
        };
        done.unwrap();
        assert!(!file.exists(), "expire: {expire}");
    }
}

#[test]
fn what_the_kernel_does_not_know_is_no_error() {
    let Some(mount) = caching() else { return };
    let notifier = mount.mounted.notifier().unwrap();
    notifier.invalidate_entry(NodeId::ROOT, b"no such").unwrap();
    notifier.expire_entry(NodeId(12345), b"file").unwrap();
    notifier.invalidate_inode(NodeId(12345), None).unwrap();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(notifier.invalidate_entry(NodeId::ROOT, name).is_err());
    }
}

/// NODE-1: after a prune the kernel forgets unused nodes, and open files stay.
#[test]
fn what_is_pruned_is_forgotten_unless_it_is_open() {
    let Some(mount) = caching() else { return };
    for n in 0..600 {
        fs::write(mount.path().join(format!("f{n}")), "x").unwrap();
    }
    let open = File::open(mount.path().join("file")).unwrap();
    let nodes: Vec<_> = fs::read_dir(mount.path())
        .unwrap()
        .map(|entry| NodeId(entry.unwrap().metadata().unwrap().ino()))
        .collect();
    assert!(mount.mounted.nodes() > 600);
    let notifier = mount.mounted.notifier().unwrap();
    match notifier.prune(&nodes) {
        Err(err) if err.errno() == libc::EINVAL => {
            return skip("needs Linux 6.18 (FUSE_NOTIFY_PRUNE)");
        }
        done => done.unwrap(),
    }
    comes_true(|| mount.mounted.nodes() == 2);
    assert_eq!(
        mount.mounted.nodes(),
        2,
        "NODE-1: the root and the open file"
    );
    assert_eq!(open.metadata().unwrap().len(), 1);
}
