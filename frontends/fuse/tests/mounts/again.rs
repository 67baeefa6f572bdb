//! A mount that has ended leaves alone what is mounted in its place.

use std::fs;

use crate::common::can_mount;
use rcuwalk::Vfs;
use rcuwalk_fuse::{Options, mount};
use rcuwalk_memfs::MemFs;
use rustix::mount::{UnmountFlags, unmount};

#[test]
fn the_end_of_one_mount_is_not_the_end_of_the_next() {
    if !can_mount() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let options = Options::default();
    let mount = || mount(Vfs::new(MemFs::new()).unwrap(), at.path(), &options).unwrap();
    let first = mount();
    unmount(at.path(), UnmountFlags::NOFOLLOW).unwrap();
    let mut second = mount();
    drop(first);
    fs::write(at.path().join("f"), "here").unwrap();
    second.unmount().unwrap();
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
}
