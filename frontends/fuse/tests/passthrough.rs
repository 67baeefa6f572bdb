//! Contents that the kernel reads and writes by itself, and how that shows.

mod common;

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::{Mount, can_mount, skip};
use rcuwalk_fuse::Options;

/// One at a time: the answering threads are counted by name.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host mount that is cached for an hour unless it is told otherwise, on both sides; or
/// `None`, where the kernel has no passthrough.
fn mount() -> Option<Mount> {
    if !can_mount() {
        return None;
    }
    let hour = Duration::from_secs(3600);
    let mount = Mount::hostfs_unshared(
        &Options::default()
            .entry_timeout(hour)
            .attr_timeout(hour)
            .allow_other(true)
            .suid(true),
    );
    if !mount.mounted.passes_through() {
        skip("needs a kernel with FUSE passthrough (Linux 6.9)");
        return None;
    }
    Some(mount)
}

/// The same file through the mount and on the host.
fn both(mount: &Mount, name: &str) -> (PathBuf, PathBuf) {
    let backing = mount.backing.as_ref().unwrap().path();
    (mount.path().join(name), backing.join(name))
}

fn opened(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options.truncate(false).open(path).unwrap()
}

/// Bytes that the answering threads have read so far, including requests.
fn read_by_daemon() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let read = threads.map(|thread| {
        let of = |file| fs::read_to_string(thread.as_ref().unwrap().path().join(file));
        let (Ok(name), Ok(io)) = (of("comm"), of("io")) else {
            return 0;
        };
        let rchar = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        let is_daemon = name.starts_with("rcuwalk-fuse");
        rchar
            .filter(|_| is_daemon)
            .map_or(0, |n| n.parse().unwrap())
    });
    read.sum()
}

#[test]
fn the_daemon_sees_no_contents() {
    const SIZE: usize = 4 << 20;
    let _one = one();
    let Some(mount) = mount() else { return };
    let by_request = Mount::hostfs_with(&Options::default().passthrough(false));
    assert!(!by_request.mounted.passes_through());
    let data = vec![7; SIZE];
    let moved = |mount: &Mount| {
        let before = read_by_daemon();
        let file = opened(&mount.path().join("file"));
        for block in 0..SIZE / 4096 {
            let at = block * 4096;
            file.write_all_at(&data[at..at + 4096], at as u64).unwrap();
        }
        let mut read = vec![0; SIZE];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == data);
        read_by_daemon() - before
    };
    let (through, asked) = (moved(&mount), moved(&by_request));
    assert!(through < 10_000, "{through} bytes of requests");
    assert!(asked >= SIZE as u64, "{asked} bytes");
    // Opening the file once more, in another way, does not change that.
    let before = read_by_daemon();
    assert!(fs::read(mount.path().join("file")).unwrap() == data);
    assert!(read_by_daemon() - before < 10_000);
}

#[test]
fn what_is_written_shows_at_once_and_stays() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, host) = both(&mount, "file");
    let (link, _) = both(&mount, "link");
    let mut file = opened(&path);
    fs::hard_link(&path, &link).unwrap();
    let appending = File::options().append(true).open(&path).unwrap();
    let reading = File::open(&link).unwrap();
    let len = |path: &Path| path.metadata().unwrap().len();
    let mut size = 0;
    for _ in 0..20 {
        (&appending).write_all(b"appended").unwrap();
        size += 8;
        assert_eq!((len(&path), len(&link), len(&host)), (size, size, size));
        assert_eq!(reading.metadata().unwrap().len(), size);
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"at the end").unwrap();
        size += 10;
        assert_eq!(file.metadata().unwrap().len(), size);
        // A listing carries attributes as well.
        let listed = fs::read_dir(mount.path()).unwrap();
        for entry in listed {
            assert_eq!(entry.unwrap().metadata().unwrap().len(), size);
        }
        file.write_all_at(b"APPENDED", 0).unwrap();
        let (shown, real) = (path.metadata().unwrap(), host.metadata().unwrap());
        assert_eq!(
            (shown.mtime(), shown.mtime_nsec(), shown.blocks()),
            (real.mtime(), real.mtime_nsec(), real.blocks())
        );
    }
    let mut all = String::new();
    (&reading).read_to_string(&mut all).unwrap();
    assert_eq!(all, fs::read_to_string(&host).unwrap());
    assert_eq!(all.len() as u64, size);
    (&appending).write_all(b"last").unwrap();
    size += 4;
    drop((file, appending, reading));
    for _ in 0..100 {
        assert_eq!((len(&path), len(&link)), (size, size), "after the close");
        thread::sleep(Duration::from_millis(1));
    }
    // By a new open file, and so by the attributes that the VFS has cached.
    assert_eq!(fs::read(&link).unwrap().len() as u64, size);
    assert_eq!(File::open(&path).unwrap().metadata().unwrap().len(), size);
}

#[test]
fn sizes_are_set_while_it_is_open() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, host) = both(&mount, "file");
    let mut file = opened(&path);
    file.write_all(&[1; 10_000]).unwrap();
    if !python("import os, sys\nos.truncate(sys.argv[1], 100)", &path) {
        return;
    }
    assert_eq!(file.metadata().unwrap().len(), 100);
    assert_eq!(host.metadata().unwrap().len(), 100);
    file.write_all_at(&[2; 10], 20_000).unwrap();
    file.set_len(30_000).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 30_000);
    let mut data = vec![9; 30_000];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!((data[99], data[100], data[20_000]), (1, 0, 2));
    // A new open that truncates the file shows through the other open files as well.
    File::create(&path).unwrap().write_all(b"new").unwrap();
    assert_eq!(file.read_at(&mut data, 0).unwrap(), 3);
    assert_eq!(file.metadata().unwrap().len(), 3);
    // Holes are searched in the current contents.
    file.write_all_at(b"end", 1 << 20).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(8192)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 3));
    let punch = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, punch, 2 << 20, 4096).unwrap();
    assert_eq!(path.metadata().unwrap().len(), (2 << 20) + 4096);
    file.sync_all().unwrap();
}

#[test]
fn the_host_and_the_mount_see_each_others_contents() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, host) = both(&mount, "file");
    let mut ours = opened(&path);
    ours.write_all(b"from the mount").unwrap();
    let theirs = opened(&host);
    let mut data = [0; 64];
    assert_eq!(theirs.read_at(&mut data, 0).unwrap(), 14);
    assert_eq!(&data[..14], b"from the mount");
    theirs.write_all_at(b"FROM", 0).unwrap();
    theirs.write_all_at(b"more", 14).unwrap();
    assert_eq!(ours.read_at(&mut data, 0).unwrap(), 18);
    assert_eq!(&data[..18], b"FROM the mountmore");
}

#[test]
fn it_lives_on_under_another_name_and_without_one() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, _) = both(&mount, "file");
    let (other, there) = both(&mount, "other");
    let mut file = opened(&path);
    file.write_all(b"1").unwrap();
    fs::rename(&path, &other).unwrap();
    file.write_all(b"2").unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"12");
    assert_eq!(other.metadata().unwrap().len(), 2);
    assert_eq!(fs::read(&there).unwrap(), b"12");
    fs::remove_file(&other).unwrap();
    file.write_all(b"3").unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.nlink()), (3, 0));
    // Another file of the old name is independent of it.
    fs::write(&path, b"another").unwrap();
    let mut data = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut data).unwrap();
    assert_eq!(data, "123");
    assert_eq!(fs::read(&path).unwrap(), b"another");
}

/// Runs a program in Python, because tests are without unsafe code.
fn python(program: &str, path: &Path) -> bool {
    let mut python = Command::new("python3");
    let ran = python.arg("-c").arg(program).arg(path).status();
    let ran = ran.is_ok_and(|status| status.success());
    if !ran {
        skip("needs python3");
    }
    ran
}

#[test]
fn a_mapping_is_the_hosts_file() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, host) = both(&mount, "mapped");
    fs::write(&path, vec![b'.'; 8192]).unwrap();
    let reader = File::open(&path).unwrap();
    // The mapping outlives the descriptor.
    let program = "import mmap, os, sys\nf = open(sys.argv[1], 'a+b')\n\
                   m = mmap.mmap(f.fileno(), 8192)\n\
                   f.write(b'more')\nf.flush()\nf.close()\nm[4096:4100] = b'here'\n\
                   g = open(sys.argv[1], 'rb')\ng.seek(4096)\n\
                   assert g.read(4) == b'here'\n\
                   assert os.stat(sys.argv[1]).st_size == 8196\n";
    if !python(program, &path) {
        return;
    }
    let mut data = [0; 4];
    reader.read_exact_at(&mut data, 4096).unwrap();
    assert_eq!(&data, b"here");
    assert_eq!(fs::read(&host).unwrap().len(), 8196);
    assert_eq!(fs::read(&host).unwrap()[4096..4100], *b"here");
}

/// A write by user 65534, to a file that this user has open while `meanwhile` runs.
fn written_by_other(path: &Path, meanwhile: impl FnOnce()) {
    let mut other = Command::new("sh");
    let script = "exec 3>>\"$0\"; echo; read go; echo more >&3";
    other.args(["-c", script]).arg(path.file_name().unwrap());
    other.current_dir(path.parent().unwrap());
    other.stdin(std::process::Stdio::piped());
    other.stdout(std::process::Stdio::piped());
    let mut other = other.uid(65534).gid(65534).spawn().unwrap();
    let mut ready = [0];
    other.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    meanwhile();
    other.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(other.wait().unwrap().success());
}

#[test]
fn set_id_bits_are_lost_to_whoever_writes_without_the_right_to_keep_them() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, host) = both(&mount, "file");
    fs::set_permissions(mount.path(), Permissions::from_mode(0o777)).unwrap();
    fs::write(&path, b"#!").unwrap();
    let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    // The bits are set before the file is opened, and while it is open.
    set(0o6777);
    written_by_other(&path, || ());
    assert_eq!(mode(&host), 0o777);
    set(0o777);
    written_by_other(&path, || set(0o6777));
    assert_eq!(mode(&host), 0o777);
    // The kernel does not check a file that is open again, once the open has been allowed.
    let early = File::options().append(true).open(&path).unwrap();
    set(0o6777);
    (&early).write_all(b"early").unwrap();
    assert_eq!(mode(&host), 0o777);
    drop(early);
    // The kernel tells of a close after close(2), and sometimes after the next request: until
    // then the file is open here.
    while mount.mounted.open() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // Root's writes leave them, as they do on the host.
    set(0o6777);
    let mut roots = File::options().append(true).open(&path).unwrap();
    roots.write_all(b"root's").unwrap();
    assert_eq!(mode(&host), 0o6777);
    // The file was opened by request, and stays so for later opens.
    set(0o777);
    written_by_other(&path, || ());
    roots.write_all(b"again").unwrap();
    let data = fs::read(&path).unwrap();
    assert!(data.ends_with(b"more\nagain"));
    assert_eq!(fs::read(&host).unwrap(), data);
}

#[test]
fn many_may_open_and_close_it_at_once() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (path, host) = both(&mount, "file");
    fs::write(&path, b"0123456789").unwrap();
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..300 {
                    let file = match thread % 3 {
                        0 => File::open(path),
                        1 => File::options().write(true).open(path),
                        _ => File::options().read(true).append(true).open(path),
                    };
                    // The kernel returns EIO for a mixture of ways.
                    let file = file.unwrap();
                    if thread % 3 == 1 {
                        file.write_all_at(b"X", thread).unwrap();
                    } else {
                        let mut data = [0; 10];
                        file.read_exact_at(&mut data, 0).unwrap();
                    }
                }
            });
        }
        // The mode decides the way of the next open.
        scope.spawn(|| {
            for mode in [0o4755, 0o755].into_iter().cycle().take(200) {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
    });
    assert_eq!(fs::read(&path).unwrap(), fs::read(&host).unwrap());
    // close(2) does not wait for RELEASE.
    for _ in 0..6000 {
        if mount.mounted.open() == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(mount.mounted.open(), 0, "nothing is left open");
}

#[test]
fn where_it_is_not_to_be_had_it_goes_by_request() {
    if !can_mount() {
        return;
    }
    let _one = one();
    // A tree in memory has no files of the host.
    let memfs = Mount::memfs();
    let path = memfs.path().join("file");
    fs::write(&path, b"data").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"data");
    // overlayfs is stacked on another file system.
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let place = place.unwrap();
    let dir = |name: &str| {
        let dir = place.path().join(name);
        fs::create_dir(&dir).unwrap();
        dir
    };
    let (lower, upper, work, merged) = (dir("lower"), dir("upper"), dir("work"), dir("merged"));
    let mut mounting = Command::new("mount");
    mounting
        .args(["-t", "overlay", "overlay", "-o"])
        .arg(format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        ));
    if !mounting
        .arg(&merged)
        .status()
        .is_ok_and(|done| done.success())
    {
        return skip("needs overlayfs");
    }
    let seen = std::panic::catch_unwind(|| {
        let mount = Mount::host_dir(&merged, &Options::default());
        let path = mount.path().join("file");
        let file = opened(&path);
        file.write_all_at(b"data", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"data");
        assert_eq!(fs::read(merged.join("file")).unwrap(), b"data");
        drop(file);
    });
    // The caches may hold it a moment longer.
    let _ = Command::new("umount").arg("-l").arg(&merged).status();
    seen.unwrap();
}

#[test]
fn a_copy_takes_what_has_just_been_written() {
    let _one = one();
    let Some(mount) = mount() else { return };
    let (from, to) = (mount.path().join("from"), mount.path().join("to"));
    let (from, to) = (opened(&from), opened(&to));
    from.write_all_at(b"written by the kernel", 0).unwrap();
    to.write_all_at(b"here as well", 0).unwrap();
    let mut at = (11, 3);
    let copied =
        rustix::fs::copy_file_range(&from, Some(&mut at.0), &to, Some(&mut at.1), 100).unwrap();
    assert_eq!((copied, at), (10, (21, 13)));
    let mut read = [0; 13];
    to.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"herthe kernel");
    assert_eq!(to.metadata().unwrap().len(), 13);
}
