//! Written data that the kernel holds back (`Options::writeback`).

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::common::counted::{Counted, Notes};
use crate::common::{Mount, can_mount, skip};
use rcuwalk::Vfs;
use rcuwalk_fuse::Options;
use rcuwalk_testkit::Rng;

fn options() -> Options {
    Options::default().writeback(true)
}

/// A hundred small writes are one or two requests, and fsync(2) has them written.
#[test]
fn small_writes_are_put_together() {
    if !can_mount() {
        return;
    }
    let notes = Notes::default();
    let vfs = Vfs::new(Counted::new(&notes)).unwrap();
    let mount = Mount::with(vfs, None, "memfs", &options());
    let mut file = File::create(mount.path().join("file")).unwrap();
    notes.take();
    for _ in 0..100 {
        file.write_all(b"0123456789").unwrap();
    }
    file.sync_all().unwrap();
    let writes = notes.take();
    let writes = writes.iter().filter(|method| **method == "write_at");
    let writes = writes.count();
    assert!((1..=4).contains(&writes), "{writes}");
    assert_eq!(file.metadata().unwrap().len(), 1000);
    let contents = fs::read(mount.path().join("file")).unwrap();
    assert_eq!(contents, b"0123456789".repeat(100));
}

/// One file, open in every way, is written, appended to, cut and read at random: each read is as
/// by a plain file, and in the end the back end has the same.
#[test]
fn a_file_open_in_every_way_is_as_written() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs_with(&options());
    let path = mount.path().join("file");
    let mut random = Rng::new(1);
    let open = |path: &std::path::Path| {
        let to_append = File::options().append(true).create(true).open(path);
        let to_write = File::options().write(true).open(path);
        let both = File::options().read(true).write(true).open(path);
        (to_append.unwrap(), to_write.unwrap(), both.unwrap())
    };
    let (mut to_append, mut to_write, mut both) = open(&path);
    let mut expected: Vec<u8> = Vec::new();
    for step in 0..3000_u32 {
        let at = random.below(20_000);
        let data = vec![step as u8; 1 + random.below(3000)];
        match random.below(8) {
            0 | 1 => {
                to_append.write_all(&data).unwrap();
                expected.extend(&data);
            }
            2 | 3 => {
                to_write.write_all_at(&data, at as u64).unwrap();
                expected.resize(expected.len().max(at + data.len()), 0);
                expected[at..at + data.len()].copy_from_slice(&data);
            }
            4 => {
                both.set_len(at as u64).unwrap();
                expected.resize(at, 0);
            }
            5 if random.below(10) == 0 => {
                (to_append, to_write, both) = open(&path);
            }
            _ => {
                let mut read = vec![0; data.len()];
                let len = both.read_at(&mut read, at as u64).unwrap();
                let rest = expected.get(at..).unwrap_or_default();
                let rest = &rest[..rest.len().min(read.len())];
                assert_eq!(&read[..len], rest, "step {step}");
            }
        }
        let len = both.metadata().unwrap().len();
        assert_eq!(len, expected.len() as u64, "step {step}");
    }
    both.sync_all().unwrap();
    let backing = mount.backing.as_ref().unwrap().path().join("file");
    assert!(fs::read(&backing).unwrap() == expected, "on the host");
    drop((to_append, to_write, both));
    assert!(fs::read(&path).unwrap() == expected, "by the mount");
}

/// Times are the kernel's, and reach the host when the file is closed; one that a program has set
/// stays.
#[test]
fn times_reach_the_host() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs_with(&options());
    let path = mount.path().join("file");
    let backing = mount.backing.as_ref().unwrap().path().join("file");
    let mut file = File::create(&path).unwrap();
    // In another tick of the kernel's clock: only a time that has changed is written.
    thread::sleep(Duration::from_millis(20));
    file.write_all(b"contents").unwrap();
    let by_mount = file.metadata().unwrap().modified().unwrap();
    file.sync_all().unwrap();
    assert_eq!(
        fs::metadata(&backing).unwrap().modified().unwrap(),
        by_mount
    );
    let set = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(set).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&backing).unwrap().modified().unwrap(), set);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), set);
}

/// A user writes a part of a page of a file that they may not read, and that is another user's:
/// the kernel reads the rest, and sets the time.
#[test]
fn a_file_that_its_writer_may_not_read_is_written() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("needs root");
    }
    for make in [Mount::memfs_with, Mount::hostfs_with] {
        let mount = make(&options());
        let path = mount.path().join("file");
        fs::write(&path, b"0123456789").unwrap();
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(before)
            .unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o602)).unwrap();
        let at = path.display();
        let script = format!(
            "! cat {at} 2>/dev/null && printf ab | dd of={at} bs=1 seek=3 conv=notrunc 2>/dev/null"
        );
        let mut user = Command::new("sh");
        std::os::unix::process::CommandExt::uid(&mut user, 1000);
        std::os::unix::process::CommandExt::gid(&mut user, 1000);
        assert!(user.args(["-c", &script]).status().unwrap().success());
        assert_eq!(fs::read(&path).unwrap(), b"012ab56789", "{}", mount.kind);
        let now = fs::metadata(&path).unwrap();
        assert!(now.mtime() > 1_000_000_000, "{}", mount.kind);
        assert_eq!((now.len(), now.uid()), (10, 0));
    }
}

/// What is held back of a file stays with it when it is removed.
#[test]
fn a_removed_file_is_written_while_it_is_open() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs_with(&options());
    let path = mount.path().join("file");
    let how = File::options().read(true).write(true).create(true).clone();
    let mut file = how.open(&path).unwrap();
    file.write_all(b"held back").unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b", and more").unwrap();
    file.sync_all().unwrap();
    let mut again = Vec::new();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_end(&mut again).unwrap();
    assert_eq!(again, b"held back, and more");
}
