//! Mounted trees, through the kernel.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::common::{Mount, can_mount, on_each, skip};
use rcuwalk_fuse::Options;
use rustix::fs::{FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};

#[test]
fn what_is_written_is_read() {
    on_each(|mount| {
        let file = mount.path().join("file");
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
        fs::write(&file, &data).unwrap();
        assert!(fs::read(&file).unwrap() == data);
        let meta = file.metadata().unwrap();
        assert_eq!((meta.len(), meta.uid(), meta.nlink()), (3_000_000, 0, 1));
        if let Some(backing) = &mount.backing {
            assert!(fs::read(backing.path().join("file")).unwrap() == data);
        }
        let mut open = File::options().append(true).open(&file).unwrap();
        open.write_all(b"more").unwrap();
        open.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3_000_004);
        open.set_len(10).unwrap();
        assert_eq!(fs::read(&file).unwrap(), data[..10]);
        fs::write(&file, b"short").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"short", "truncated when opened");
    });
}

#[test]
fn names_come_move_and_go() {
    on_each(|mount| {
        let at = |name: &str| mount.path().join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::write(at("a/b/c/f"), b"1").unwrap();
        fs::rename(at("a/b"), at("b")).unwrap();
        assert_eq!(fs::read(at("b/c/f")).unwrap(), b"1");
        assert_eq!(
            at("a/b").metadata().unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(
            fs::remove_dir(at("b")).unwrap_err().kind(),
            ErrorKind::DirectoryNotEmpty
        );
        fs::hard_link(at("b/c/f"), at("g")).unwrap();
        let (f, g) = (at("b/c/f").metadata().unwrap(), at("g").metadata().unwrap());
        assert_eq!((f.ino(), f.nlink()), (g.ino(), 2), "one file");
        fs::remove_file(at("b/c/f")).unwrap();
        assert_eq!(fs::read(at("g")).unwrap(), b"1");
        fs::set_permissions(at("g"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(at("g").metadata().unwrap().mode(), 0o100600);
        symlink("g", at("link")).unwrap();
        assert_eq!(fs::read(at("link")).unwrap(), b"1");
        assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("g"));
        let err = rustix::fs::renameat_with(
            rustix::fs::CWD,
            at("g"),
            rustix::fs::CWD,
            at("link"),
            RenameFlags::NOREPLACE,
        );
        assert_eq!(err, Err(rustix::io::Errno::EXIST));
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            at("g"),
            rustix::fs::CWD,
            at("a"),
            RenameFlags::EXCHANGE,
        )
        .unwrap();
        assert!(at("g").is_dir() && at("a").is_file());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from(0o640),
            0,
        )
        .unwrap();
        let long = at(&"x".repeat(256));
        assert_eq!(
            File::create(long).unwrap_err().raw_os_error(),
            Some(36),
            "ENAMETOOLONG"
        );
        assert!(File::create(at(&"x".repeat(255))).is_ok());
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    on_each(|mount| {
        let (old, new) = (mount.path().join("old"), mount.path().join("new"));
        let mut open = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&old)
            .unwrap();
        open.write_all(b"kept").unwrap();
        fs::remove_file(&old).unwrap();
        let kept = |open: &mut File, expected: &[u8]| {
            let mut data = Vec::new();
            open.seek(SeekFrom::Start(0)).unwrap();
            open.read_to_end(&mut data).unwrap();
            assert_eq!(data, expected);
        };
        kept(&mut open, b"kept");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(
            open.metadata().unwrap().nlink(),
            0,
            "its attributes as well"
        );
        open.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert_eq!(open.metadata().unwrap().mode(), 0o100600);
        open.set_len(2).unwrap();
        kept(&mut open, b"ke");
        drop(open);

        fs::write(&old, b"old").unwrap();
        fs::write(&new, b"new").unwrap();
        let mut replaced = File::open(&new).unwrap();
        fs::rename(&old, &new).unwrap();
        kept(&mut replaced, b"new");
        assert_eq!(fs::read(&new).unwrap(), b"old");
        drop(replaced);
        // close(2) does not wait for RELEASE.
        for _ in 0..6000 {
            if mount.mounted.open() == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(mount.mounted.open(), 0, "nothing is left open");
    });
}

#[test]
fn attributes_are_kept() {
    on_each(|mount| {
        let path = mount.path().join("file");
        let file = File::create(&path).unwrap();
        for (sec, nsec) in [(1_000_000_000, 123_456_789), (-1, 500_000_000), (-77, 0)] {
            let time = Timespec {
                tv_sec: sec,
                tv_nsec: nsec,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::futimens(&file, &times).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let meta = path.metadata().unwrap();
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (sec, nsec));
            assert_eq!((meta.atime(), meta.atime_nsec()), (sec, nsec));
        }
        rustix::fs::fsetxattr(&file, "user.colour", b"blue", XattrFlags::CREATE).unwrap();
        let again = rustix::fs::fsetxattr(&file, "user.colour", b"red", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(&path, "user.colour", &mut value).unwrap();
        assert_eq!(&value[..len], b"blue");
        let short = rustix::fs::getxattr(&path, "user.colour", &mut [0; 2]);
        assert_eq!(short, Err(rustix::io::Errno::RANGE));
        let mut names = [0; 64];
        let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        assert!(String::from_utf8_lossy(&names[..len]).contains("user.colour\0"));
        rustix::fs::removexattr(&path, "user.colour").unwrap();
        let gone = rustix::fs::getxattr(&path, "user.colour", &mut value);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
        let full = rustix::fs::statvfs(&path).unwrap();
        assert_eq!(full.f_namemax, 255);
        // A memfs without limits reports no blocks.
        assert_eq!(full.f_blocks > 0, mount.backing.is_some());
    });
}

#[test]
fn holes_stay_holes() {
    on_each(|mount| {
        let path = mount.path().join("sparse");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all_at(b"end", 10 << 20).unwrap();
        let seek = |to| rustix::fs::seek(&file, to);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(10 << 20));
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(0));
        assert_eq!(
            seek(rustix::fs::SeekFrom::Data(11 << 20)),
            Err(rustix::io::Errno::NXIO)
        );
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 4096).unwrap();
        let mut data = [1; 8192];
        file.read_exact_at(&mut data, 0).unwrap();
        assert!(data[..4096].iter().all(|byte| *byte == 0));
        assert!(data[4096..].iter().all(|byte| *byte == 7));
    });
}

/// Runs a shell command as another user.
fn as_user(uid: u32, script: &str, at: &Path) -> bool {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).current_dir("/").env("M", at);
    command.uid(uid).gid(uid);
    let output = command.output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

#[test]
fn others_may_what_they_may() {
    on_each(|mount| {
        let at = |name: &str| mount.path().join(name);
        // The mount point is in a directory of root's own: start inside.
        let user = |script: &str| {
            let script = format!("cd \"$M\" && {script}");
            as_user(65534, &script, mount.path())
        };
        let parent = mount.path().parent().unwrap();
        assert!(parent.metadata().unwrap().mode() & 1 != 0);
        fs::set_permissions(mount.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(at("closed")).unwrap();
        fs::write(at("closed/f"), b"secret").unwrap();
        fs::set_permissions(at("closed"), Permissions::from_mode(0o700)).unwrap();
        fs::write(at("mine"), b"root's").unwrap();
        fs::set_permissions(at("mine"), Permissions::from_mode(0o600)).unwrap();
        assert!(at("closed/f").exists(), "cached by the kernel now");
        assert!(!user("stat closed/f"), "not past a closed directory");
        assert!(!user("cat mine"));
        assert!(!user("touch new"));
        assert!(!user("chmod 777 mine"));
        assert!(!user("mv mine other"));
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), Permissions::from_mode(0o1777)).unwrap();
        assert!(user(
            "umask 027; echo hello > open/f && mkdir open/d && ln open/f open/g"
        ));
        let meta = at("open/f").metadata().unwrap();
        assert_eq!(
            (meta.uid(), meta.gid(), meta.mode()),
            (65534, 65534, 0o100640)
        );
        assert_eq!(at("open/d").metadata().unwrap().mode(), 0o040750);
        fs::write(at("open/roots"), b"").unwrap();
        assert!(!user("rm -f open/roots"), "sticky");
        assert!(user("rm open/g && chmod 4755 open/f"));
        fs::set_permissions(at("open/f"), Permissions::from_mode(0o4777)).unwrap();
        // A write by another user clears the set-id bit.
        assert!(as_user(
            65533,
            "cd \"$M\" && echo more >> open/f",
            mount.path()
        ));
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(at("open/f").metadata().unwrap().mode(), 0o100777);
        // A supplementary group counts.
        fs::write(at("group"), b"x").unwrap();
        std::os::unix::fs::chown(at("group"), Some(0), Some(4242)).unwrap();
        fs::set_permissions(at("group"), Permissions::from_mode(0o640)).unwrap();
        let member = |groups: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534"]);
            command.args(["--groups", groups, "cat"]).arg(at("group"));
            command.output().map(|output| output.status.success())
        };
        match (member("4242"), member("4243")) {
            (Ok(member), Ok(stranger)) => assert_eq!((member, stranger), (true, false)),
            _ => skip("needs setpriv"),
        }
    });
}

/// By request: `passthrough.rs` tests the kernel's own writes.
#[test]
fn set_id_bits_go_by_who_writes() {
    if !can_mount() {
        return;
    }
    let by_request = Options::default().passthrough(false);
    for mount in [Mount::memfs(), Mount::hostfs_with(&by_request)] {
        let path = mount.path().join("tool");
        let tool = File::create(&path).unwrap();
        let mode = || tool.metadata().unwrap().mode() & 0o7777;
        // Without execution by the group, members of the group keep the set-gid bit.
        for (set, left) in [(0o6755, 0o755), (0o2745, 0o745)] {
            tool.set_permissions(Permissions::from_mode(set)).unwrap();
            std::io::Write::write_all(&mut &tool, b"by root, who may").unwrap();
            assert_eq!(mode(), set);
            let mut echo = Command::new("echo");
            echo.uid(65534).gid(65534).stdout(tool.try_clone().unwrap());
            assert!(echo.status().unwrap().success());
            assert_eq!(mode(), left, "root has opened it, another writes");
        }
        // chown(2) without an owner clears them for root as well.
        tool.set_permissions(Permissions::from_mode(0o6755))
            .unwrap();
        std::os::unix::fs::chown(&path, None, None).unwrap();
        assert_eq!(mode(), 0o755);
    }
}

#[test]
fn a_long_directory_is_listed_once_each() {
    on_each(|mount| {
        let dir = mount.path().join("dir");
        fs::create_dir(&dir).unwrap();
        let expected: BTreeSet<OsString> =
            (0..10_000).map(|n| format!("file-{n}").into()).collect();
        for name in &expected {
            File::create(dir.join(name)).unwrap();
        }
        let list = || {
            let entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap());
            let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            assert_eq!(names.len(), 10_000, "each once");
            names.into_iter().collect::<BTreeSet<_>>()
        };
        assert_eq!(list(), expected);
        assert_eq!(list(), expected);
        for entry in fs::read_dir(&dir).unwrap().take(2_000) {
            let entry = entry.unwrap();
            assert_eq!(entry.ino(), entry.metadata().unwrap().ino(), "one number");
        }

        // In small pieces, and from the start again.
        let fd = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut small = [std::mem::MaybeUninit::uninit(); 700];
        let mut names = Vec::new();
        let mut middle = None;
        let mut read = rustix::fs::RawDir::new(&fd, &mut small);
        while let Some(entry) = read.next() {
            let entry = entry.unwrap();
            names.push(entry.file_name().to_owned());
            if names.len() == 5_000 {
                middle = Some(entry.next_entry_cookie());
            }
        }
        assert_eq!(names.len(), 10_002, "with . and ..");
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(middle.unwrap())).unwrap();
        let mut read = rustix::fs::RawDir::new(&fd, &mut small);
        let mut rest = Vec::new();
        while let Some(entry) = read.next() {
            rest.push(entry.unwrap().file_name().to_owned());
        }
        assert_eq!(rest, names[5_000..], "seekdir");
        File::create(dir.join("late")).unwrap();
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).unwrap();
        let mut read = rustix::fs::RawDir::new(&fd, &mut small);
        let mut again = BTreeSet::new();
        while let Some(entry) = read.next() {
            again.insert(entry.unwrap().file_name().to_owned());
        }
        assert!(again.contains(c"late"), "rewinddir");
        assert_eq!(again.len(), 10_003);
    });
}

#[test]
fn a_mapping_is_written_back_where_it_was() {
    // In Python, because tests are without unsafe code.
    on_each(|mount| {
        let path = mount.path().join("mapped");
        fs::write(&path, vec![b'.'; 8192]).unwrap();
        let script = "import mmap, sys\nf = open(sys.argv[1], 'a+b')\n\
                      m = mmap.mmap(f.fileno(), 8192)\nm[4096:4100] = b'here'\nm.flush()\n";
        let ran = Command::new("python3")
            .arg("-c")
            .arg(script)
            .arg(&path)
            .status();
        if !ran.is_ok_and(|status| status.success()) {
            return skip("needs python3");
        }
        let data = fs::read(&path).unwrap();
        assert_eq!((data.len(), &data[4096..4100]), (8192, &b"here"[..]));
    });
}

#[test]
fn changes_on_the_host_show_after_a_while() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs();
    let backing = mount.backing.as_ref().unwrap().path().to_owned();
    fs::write(backing.join("f"), b"1").unwrap();
    assert_eq!(fs::read(mount.path().join("f")).unwrap(), b"1");
    fs::write(backing.join("f"), b"22").unwrap();
    fs::remove_file(backing.join("f")).unwrap();
    fs::write(backing.join("f"), b"333").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2200));
    assert_eq!(fs::read(mount.path().join("f")).unwrap(), b"333");
}

/// A change of a host file shows by its open descriptor, too: `tail -f` relies on that.
#[test]
fn a_file_that_grows_on_the_host_grows_where_it_is_open() {
    on_each(|mount| {
        let Some(backing) = &mount.backing else {
            return;
        };
        fs::write(mount.path().join("file"), "1").unwrap();
        let open = File::open(mount.path().join("file")).unwrap();
        fs::write(backing.path().join("file"), "12345").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2100));
        assert_eq!(open.metadata().unwrap().len(), 5);
    });
}

/// A user in a user namespace of their own has all capabilities there, and none here.
#[test]
fn capabilities_over_other_users_count_for_nothing() {
    if !can_mount() {
        return;
    }
    // The kernel has cached the old mode: only the tree knows the new one.
    let long = std::time::Duration::from_secs(60);
    let mount = Mount::hostfs_with(
        &Options::default()
            .attr_timeout(long)
            .entry_timeout(long)
            .passthrough(false),
    );
    let host = mount.backing.as_ref().unwrap().path().join("f");
    fs::write(&host, b"x").unwrap();
    fs::set_permissions(&host, Permissions::from_mode(0o644)).unwrap();
    assert!(as_user(65534, "cat $M/f", mount.path()));
    if !as_user(65534, "unshare -Ur cat $M/f", mount.path()) {
        skip("needs unshare, and user namespaces for users");
        return;
    }
    fs::set_permissions(&host, Permissions::from_mode(0o600)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(!as_user(65534, "cat $M/f", mount.path()));
    assert!(!as_user(65534, "unshare -Ur cat $M/f", mount.path()));
}

#[test]
fn what_others_have_mounted_on_top_stays() {
    if !can_mount() {
        return;
    }
    let mut below = Mount::memfs();
    fs::write(below.path().join("below"), b"").unwrap();
    let above = rcuwalk::Vfs::new(rcuwalk_memfs::MemFs::new()).unwrap();
    let mut above = rcuwalk_fuse::mount(above, below.path(), &Options::default()).unwrap();
    fs::write(below.path().join("above"), b"").unwrap();
    for refused in [below.mounted.unmount(), below.mounted.detach()] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ResourceBusy);
    }
    assert!(below.path().join("above").exists());
    above.unmount().unwrap();
    assert!(below.path().join("below").exists());
    below.mounted.unmount().unwrap();
}

#[test]
fn what_is_mounted_elsewhere_as_well_is_served_on_there() {
    if !can_mount() {
        return;
    }
    let mut mount = Mount::memfs();
    let elsewhere = tempfile::tempdir().unwrap();
    rustix::mount::mount_bind(mount.path(), elsewhere.path()).unwrap();
    let file = elsewhere.path().join("f");
    fs::write(&file, "here").unwrap();
    let unmounted = mount.mounted.unmount();
    let there = fs::read_to_string(&file);
    rustix::mount::unmount(elsewhere.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    unmounted.unwrap();
    assert_eq!(there.unwrap(), "here");
    assert!(!mount.path().join("f").exists());
}

#[test]
fn a_program_that_starts_meanwhile_does_not_keep_a_mount_in_use() {
    if !can_mount() {
        return;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                // With a user to change to, the child is forked: it has all descriptors until it
                // executes the program.
                let mut program = Command::new("true");
                program.uid(0).status().unwrap();
            }
        });
        let unmounted: Vec<_> = (0..40).map(|_| Mount::memfs().mounted.unmount()).collect();
        stop.store(true, Relaxed);
        assert!(unmounted.iter().all(Result::is_ok), "{unmounted:?}");
    });
}
