//! Less common requests, through the kernel.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::counted::{Counted, Notes};
use crate::common::{Mount, can_mount, on_each};
use rcuwalk::Vfs;
use rcuwalk_fuse::Options;
use rcuwalk_hostfs::{Actor, HostFs};
use rcuwalk_testkit::wait_until;
use rustix::fs::{
    AtFlags, CWD, IFlags, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps,
};
use rustix::io::Errno;

#[test]
fn ranges_are_copied_without_the_kernel_reading_them() {
    on_each(|mount| {
        let at = |name: &str| mount.path().join(name);
        let data: Vec<u8> = (0..300_000_u32).map(|n| (n / 5) as u8).collect();
        fs::write(at("from"), &data).unwrap();
        fs::write(at("to"), b"0123456789").unwrap();
        let from = File::open(at("from")).unwrap();
        let to = File::options()
            .read(true)
            .write(true)
            .open(at("to"))
            .unwrap();
        let copy = |mut offset, mut to_offset, len| {
            let (from, to) = ((&from, Some(&mut offset)), (&to, Some(&mut to_offset)));
            rustix::fs::copy_file_range(from.0, from.1, to.0, to.1, len)
        };
        assert_eq!(copy(1, 5, 1 << 20), Ok(299_999));
        let expected = [b"01234", &data[1..]].concat();
        assert!(fs::read(at("to")).unwrap() == expected);
        assert_eq!(to.metadata().unwrap().len(), expected.len() as u64);
        assert_eq!(copy(300_000, 0, 10), Ok(0), "at the end");
        if let Some(backing) = &mount.backing {
            assert!(fs::read(backing.path().join("to")).unwrap() == expected);
        }
        let (mut offset, mut to_offset) = (10, 12);
        let same =
            rustix::fs::copy_file_range(&to, Some(&mut offset), &to, Some(&mut to_offset), 100);
        assert_eq!(same, Err(Errno::INVAL), "it overlaps");
    });
}

/// A long range is copied in pieces, so that a signal can interrupt the copy; no byte is lost or
/// repeated where two pieces meet.
#[test]
fn a_long_range_is_copied_whole() {
    const LEN: u64 = 40 << 20;
    on_each(|mount| {
        let open = |name: &str| {
            let mut file = File::options();
            let file = file.read(true).write(true).create(true).truncate(true);
            file.open(mount.path().join(name)).unwrap()
        };
        let (from, to) = (open("from"), open("to"));
        from.set_len(LEN).unwrap();
        let marks = [0, 5, (16 << 20) - 2, (16 << 20) + 1, 32 << 20, LEN - 4];
        for (n, at) in marks.into_iter().enumerate() {
            from.write_all_at(&[n as u8 + 1; 3], at).unwrap();
        }
        let (mut at, mut to_at) = (3, 7);
        while at < LEN {
            let (from, to) = ((&from, Some(&mut at)), (&to, Some(&mut to_at)));
            let copied = rustix::fs::copy_file_range(from.0, from.1, to.0, to.1, LEN as usize);
            assert_ne!(copied, Ok(0), "before the end");
            copied.unwrap();
        }
        assert_eq!(to_at, LEN + 4);
        let read = |file: &File, at: u64| {
            let mut data = vec![0; (LEN - 3) as usize];
            file.read_exact_at(&mut data, at).unwrap();
            data
        };
        assert!(read(&from, 3) == read(&to, 7));
        assert_eq!(to.metadata().unwrap().len(), LEN + 4);
    });
}

/// EDGE-1: an open that would truncate a running program is refused, and leaves the file whole.
#[test]
fn what_is_executed_is_not_truncated() {
    on_each(|mount| {
        let path = mount.path().join("sleep");
        fs::copy("/bin/sleep", &path).unwrap();
        let len = path.metadata().unwrap().len();
        let mut running = Command::new(&path).arg("100").spawn().unwrap();
        let cut = rustix::fs::open(&path, OFlags::RDONLY | OFlags::TRUNC, Mode::empty());
        let left = path.metadata().unwrap().len();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(cut.unwrap_err(), Errno::TXTBSY, "EDGE-1");
        assert_eq!(left, len, "EDGE-1");
    });
}

/// EDGE-1: the first and the last representable second can be set, and read.
#[test]
fn the_ends_of_time_can_be_set() {
    on_each(|mount| {
        let file = mount.path().join("file");
        fs::write(&file, "").unwrap();
        let times = [
            i64::MIN,
            i64::MIN + 1,
            i64::MAX,
            i64::MAX - 1,
            -1,
            0,
            1 << 33,
        ];
        // Repeated, so that each answering thread gets its turn.
        for round in 0..20 {
            for sec in times {
                let time = Timespec {
                    tv_sec: sec,
                    tv_nsec: 500_000_000,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
                let meta = file.metadata().unwrap();
                if mount.backing.is_none() {
                    assert_eq!((meta.mtime(), meta.atime()), (sec, sec), "EDGE-1, {round}");
                }
            }
        }
    });
}

/// EDGE-1: lsattr and chattr show and set the flags that the VFS enforces.
#[test]
fn flags_are_shown_and_set() {
    on_each(|mount| {
        let path = mount.path().join("file");
        fs::write(&path, "").unwrap();
        let file = File::open(&path).unwrap();
        match rustix::fs::ioctl_setflags(&file, IFlags::IMMUTABLE) {
            // The host's file system may have no flags.
            Err(Errno::OPNOTSUPP | Errno::NOTTY) if mount.backing.is_some() => return,
            done => done.unwrap(),
        }
        assert_eq!(
            rustix::fs::ioctl_getflags(&file).unwrap(),
            IFlags::IMMUTABLE
        );
        let refused = fs::write(&path, "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "EDGE-1");
        rustix::fs::ioctl_setflags(&file, IFlags::empty()).unwrap();
        fs::write(&path, "x").unwrap();
        let unknown = rustix::fs::ioctl_setflags(&file, IFlags::NODUMP);
        assert_eq!(unknown, Err(Errno::OPNOTSUPP));
        let dir = File::open(mount.path()).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&dir).unwrap(), IFlags::empty());
    });
}

/// EDGE-1: a file without a name exists as long as it is open, and stays once it has a name.
#[test]
fn a_file_without_a_name_can_get_one() {
    on_each(|mount| {
        let open = |more| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | more;
            rustix::fs::open(mount.path(), flags, Mode::from_raw_mode(0o640))
        };
        let mut file = match open(OFlags::empty()) {
            // The host's file system may not support this.
            Err(Errno::OPNOTSUPP) if mount.backing.is_some() => return,
            file => File::from(file.unwrap()),
        };
        file.write_all(b"contents").unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.len()), (0, 8), "EDGE-1");
        assert_eq!(meta.mode() & 0o7777, 0o640, "EDGE-1");
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0, "EDGE-1");
        let (name, again) = (mount.path().join("name"), mount.path().join("again"));
        rustix::fs::linkat(&file, "", CWD, &name, AtFlags::EMPTY_PATH).unwrap();
        let by_proc = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, by_proc, CWD, &again, AtFlags::SYMLINK_FOLLOW).unwrap();
        file.write_all(b" and more").unwrap();
        for path in [&name, &again] {
            assert_eq!(fs::read(path).unwrap(), b"contents and more", "EDGE-1");
            let found = path.metadata().unwrap();
            assert_eq!((found.ino(), found.nlink()), (meta.ino(), 2), "EDGE-1");
        }
        if let Some(backing) = &mount.backing {
            let there = fs::read(backing.path().join("name")).unwrap();
            assert_eq!(there, b"contents and more");
        }
        drop(file);
        assert_eq!(fs::read(&again).unwrap(), b"contents and more");

        let exclusive = open(OFlags::EXCL).unwrap();
        let third = mount.path().join("third");
        let refused = rustix::fs::linkat(&exclusive, "", CWD, &third, AtFlags::EMPTY_PATH);
        assert_eq!(refused, Err(Errno::NOENT), "EDGE-1");
        drop(exclusive);
        wait_until("what is closed is released", || mount.mounted.open() == 0);
    });
}

/// EDGE-1: statx(2) reports the birth time, if the back end knows it, and is otherwise
/// unchanged.
#[test]
fn birth_times_are_the_back_ends() {
    on_each(|mount| {
        let path = mount.path().join("file");
        fs::write(&path, "12345").unwrap();
        let look = |path: &Path| {
            let mask = StatxFlags::ALL;
            // Read from the daemon, not from the kernel's cache.
            rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, mask).unwrap()
        };
        let told = look(&path);
        assert_eq!(
            (told.stx_size, told.stx_mode & 0o7777),
            (5, 0o644),
            "EDGE-1"
        );
        let has_birth = |told: &Statx| told.stx_mask & StatxFlags::BTIME.bits() != 0;
        let time = |time: StatxTimestamp| (time.tv_sec, time.tv_nsec);
        match &mount.backing {
            Some(backing) => {
                let there = look(&backing.path().join("file"));
                assert_eq!(has_birth(&told), has_birth(&there), "EDGE-1");
                assert_eq!(time(told.stx_btime), time(there.stx_btime), "EDGE-1");
                assert_eq!(time(told.stx_mtime), time(there.stx_mtime), "EDGE-1");
                assert_eq!(told.stx_ino, there.stx_ino, "EDGE-1");
            }
            None => {
                assert!(has_birth(&told), "EDGE-1");
                let (born, changed) = (time(told.stx_btime), time(told.stx_mtime));
                assert!(born.0 > 1_600_000_000 && born <= changed, "EDGE-1");
            }
        }
    });
}

/// NODE-1: a file that has lost its last known name is found by its other name, at once.
#[test]
fn one_of_two_names_is_enough() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs_with(&Options::default().entry_timeout(Duration::from_secs(3600)));
    let (one, other) = (mount.path().join("one"), mount.path().join("other"));
    fs::write(&one, "x").unwrap();
    fs::hard_link(&one, &other).unwrap();
    fs::remove_file(&other).unwrap();
    fs::set_permissions(&one, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&one, &other).unwrap();
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::read(&other).unwrap(), b"x");
    let statistics = mount.mounted.observer().statistics().unwrap();
    for op in statistics.operations {
        let may_fail = ["lookup", "getxattr", "flush"].contains(&&*op.name);
        assert!(may_fail || op.errors == 0, "NODE-1: {}", op.name);
    }
}

/// EDGE-1: the right to execute a program is enough to start it, whichever user the host sees.
#[test]
fn a_program_that_may_only_be_executed_starts() {
    if !can_mount() {
        return;
    }
    let by_daemon = Mount::hostfs();
    let backing = tempfile::tempdir().unwrap();
    fs::set_permissions(backing.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let host = HostFs::new(backing.path()).unwrap();
    let host = host.acting_as(Actor::Caller).unwrap();
    let vfs = Vfs::new(host).unwrap();
    let by_caller = Mount::with(
        vfs,
        Some(backing),
        "hostfs as the caller",
        &Options::default(),
    );
    for mount in [Mount::memfs(), by_daemon, by_caller] {
        let program = mount.path().join("true");
        fs::copy("/bin/true", &program).unwrap();
        let start = |mode| {
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
            loop {
                // Another test may have forked while it had it open for writing.
                match Command::new(&program).uid(65_534).gid(65_534).status() {
                    Err(err) if err.kind() == ErrorKind::ExecutableFileBusy => {}
                    done => return done.map(|status| status.success()),
                }
            }
        };
        assert!(start(0o711).unwrap(), "EDGE-1: {}", mount.kind);
        let refused = start(0o744).unwrap_err().kind();
        assert_eq!(
            refused,
            ErrorKind::PermissionDenied,
            "EDGE-1: {}",
            mount.kind
        );
        let mut nobody = Command::new("cat");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o711)).unwrap();
        let read = nobody
            .arg(&program)
            .uid(65_534)
            .gid(65_534)
            .output()
            .unwrap();
        assert!(!read.status.success(), "EDGE-1: {}", mount.kind);
    }
}

/// The kernel sends a LOOKUP before the request that makes the name. That request asks the back
/// end about the name once, and its answer describes the file that the back end has made.
#[test]
fn what_is_made_is_not_looked_up() {
    if !can_mount() {
        return;
    }
    let notes = Notes::default();
    let vfs = Vfs::new(Counted::new(&notes)).unwrap();
    let mount = Mount::with(vfs, None, "counted", &Options::default());
    let at = |name: &str| mount.path().join(name);
    let fifo = |name: &str| rustix::fs::mkfifoat(CWD, at(name), Mode::RUSR).unwrap();
    type Make<'a> = &'a dyn Fn();
    let makes: [(&str, Make<'_>); 5] = [
        ("dir", &|| fs::create_dir(at("dir")).unwrap()),
        ("fifo", &|| fifo("fifo")),
        ("symlink", &|| {
            std::os::unix::fs::symlink("x", at("symlink")).unwrap()
        }),
        ("file", &|| drop(File::create(at("file")).unwrap())),
        ("link", &|| fs::hard_link(at("fifo"), at("link")).unwrap()),
    ];
    for (name, make) in makes {
        // Does not ask for the name: asks for the directory, if the kernel wants to know.
        fs::symlink_metadata(mount.path()).unwrap();
        notes.take();
        make();
        let asked = notes.take();
        // Beside the name: which ACL the new file gets, and its generation for the node.
        let about_it = ["default_acl", "generation", "open"];
        let asked: Vec<_> = asked
            .iter()
            .filter(|asked| !about_it.contains(asked))
            .collect();
        let made_by = match name {
            "link" => "link",
            "file" => "create_open",
            _ => "create",
        };
        let expected = ["lookup", made_by];
        assert!(asked.iter().copied().eq(&expected), "{name}: {asked:?}");
        fs::symlink_metadata(at(name)).unwrap();
        assert_eq!(notes.take(), [""; 0], "{name} is cached");
        let again = fs::create_dir(at(name)).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{name}");
    }
}
