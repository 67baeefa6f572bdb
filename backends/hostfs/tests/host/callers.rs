//! Whose credentials the host sees, and whose the new files are.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::common::back_end::{BackEnd, attr, name, with_back_end};
use crate::common::{is_root, skip};
use rcuwalk::{
    Allocate, Caller, Context, Credentials, Error, File, FileSystem, FileType, Freshness, NewFile,
    OpenFlags, Rename, Result, SetAttr, Vfs, XattrFlags,
};
use rcuwalk_hostfs::{Actor, HostFs};
use rcuwalk_testkit::wait_until;
use rustix::fs::{Gid, Uid};

/// A root that everyone may write to, with a directory and a file of root's.
fn in_scratch(actor: Actor, test: impl FnOnce(&BackEnd<'_>) + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(dir.path(), 0o777);
    fs::create_dir(dir.path().join("roots")).unwrap();
    mode(&dir.path().join("roots"), 0o755);
    fs::write(dir.path().join("secret"), b"secret").unwrap();
    mode(&dir.path().join("secret"), 0o600);
    let fs = HostFs::new(dir.path()).unwrap().acting_as(actor).unwrap();
    with_back_end(dir.path(), fs, move |t| {
        test(&t);
        assert!(rustix::process::geteuid().is_root(), "EDGE-1: root again");
    });
}

fn user() -> Credentials {
    Credentials {
        groups: [2000].into(),
        ..Credentials::user(1000, 1003)
    }
}

fn new_of(who: &Credentials, kind: FileType, mode: u16) -> NewFile<'static> {
    NewFile::new(kind, mode)
        .uid(who.uid)
        .gid(who.gid)
        .target(if kind == FileType::Symlink { b"t" } else { b"" })
}

const KINDS: [(&str, FileType, u16); 5] = [
    ("file", FileType::Regular, 0o666),
    ("set-id", FileType::Regular, 0o4755),
    ("dir", FileType::Directory, 0o777),
    ("link", FileType::Symlink, 0o777),
    ("fifo", FileType::Fifo, 0o622),
];

/// EDGE-1: a new file belongs to its maker and has the requested mode, whichever credentials
/// the host sees.
#[test]
fn a_new_file_is_the_callers() {
    if !is_root() {
        return skip("needs root");
    }
    for actor in [Actor::Daemon, Actor::Caller] {
        in_scratch(actor, move |t| {
            let who = user();
            let by = t.by(&who);
            for (path, kind, mode) in KINDS {
                let new = new_of(&who, kind, mode);
                let made = t.fs.create(&by, t.root, name(path), &new).unwrap();
                let host = fs::symlink_metadata(t.host(path)).unwrap();
                assert_eq!((host.uid(), host.gid()), (1000, 1003), "EDGE-1: {path}");
                assert_eq!(host.mode(), attr(&made).st_mode(), "EDGE-1: {path}");
                assert_eq!(attr(&made).mode, mode, "EDGE-1: {actor:?} {path}");
            }
            let new = new_of(&who, FileType::Regular, 0o600);
            let made = t.fs.tmpfile(&by, t.root, &new).unwrap();
            let owner = (attr(&made).uid, attr(&made).gid, attr(&made).mode);
            assert_eq!(owner, (1000, 1003, 0o600), "EDGE-1: {actor:?}");
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            let opened = t.fs.create_open(&by, t.root, name("open"), &new, flags);
            let (made, file) = opened.unwrap();
            assert_eq!(attr(&made).uid, 1000, "EDGE-1: {actor:?}");
            assert_eq!(file.write_at(&made, b"x", 0).unwrap(), 1);
        });
    }
}

type ChangeOpen = fn(&Vfs, &Context, &File) -> Result<()>;
type ChangeNamed = fn(&Vfs, &Context, &str) -> Result<()>;

/// EDGE-1: a stranger's write clears set-id bits that the file has got on the host while the
/// cache shows none.
#[test]
fn set_id_bits_do_not_survive_a_strangers_write() {
    if !is_root() {
        return skip("needs root");
    }
    for actor in [Actor::Daemon, Actor::Caller] {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("tool");
        let host_mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(&path, b"true").unwrap();
        host_mode(0o777);
        let host = HostFs::new(dir.path()).unwrap().acting_as(actor).unwrap();
        let vfs = Vfs::new(host.with_freshness(Freshness::Always)).unwrap();
        let stranger = vfs.context(user());
        let root = vfs.context(Credentials::root());
        let changes: [ChangeOpen; 3] = [
            |_, _, file| file.write_at(b"evil", 0).map(drop),
            |_, _, file| file.allocate(Allocate::empty(), 0, 4096),
            |vfs, ctx, _| vfs.truncate(ctx, "/tool", 3),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            for (ctx, left) in [(&stranger, 0o777), (&root, 0o6777)] {
                let file = vfs.open(ctx, "/tool", OpenFlags::WRITE).unwrap();
                let size = file.attr().size;
                file.set_len(size + 9).expect("who may write may truncate");
                host_mode(0o6777);
                change(&vfs, ctx, &file).unwrap();
                let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
                assert_eq!(mode, left, "EDGE-1: {actor:?}, change {n}");
                host_mode(0o777);
            }
        }
    }
}

/// EDGE-1: a chmod(2) by the owner on the host stands while strangers' writes clear set-id bits.
#[test]
fn clearing_set_id_bits_undoes_no_chmod() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("tool");
    fs::write(&path, b"true").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let vfs = Vfs::new(HostFs::new(dir.path()).unwrap()).unwrap();
    let stranger = vfs.context(user());
    let file = vfs.open(&stranger, "/tool", OpenFlags::WRITE).unwrap();
    let host_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let undone = (0..2000).map(|_| {
                host_mode(0o4777);
                host_mode(0o770);
                thread::yield_now();
                fs::metadata(&path).unwrap().mode() & 0o7777 != 0o770
            });
            let undone = undone.filter(|undone| *undone).count();
            is_over.store(true, Relaxed);
            undone
        });
        while !is_over.load(Relaxed) {
            // `Stale` if the mode has changed again and again.
            let written = file.write_at(b"evil", 0);
            assert!(matches!(written, Ok(_) | Err(Error::Stale)), "{written:?}");
        }
        assert_eq!(owner.join().unwrap(), 0, "EDGE-1");
    });
    // A mode that the VFS does not know yet: where it does, it decides.
    let path = dir.path().join("other");
    fs::write(&path, b"true").unwrap();
    let host_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    host_mode(0o777);
    let file = vfs.open(&stranger, "/other", OpenFlags::WRITE).unwrap();
    host_mode(0o6745);
    file.write_at(b"evil", 0).unwrap();
    let left = fs::metadata(&path).unwrap().mode() & 0o7777;
    assert_eq!(
        left, 0o2745,
        "EDGE-1: set-gid without execution by the group stays"
    );
}

/// EDGE-1: the writer's privileges decide whether set-id bits survive a write, not those of the
/// user that opened the file.
#[test]
fn set_id_bits_survive_a_write_by_root() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tool");
    fs::write(&path, b"true").unwrap();
    chown(&path, Some(1000), Some(1003)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let vfs = Vfs::new(HostFs::new(dir.path()).unwrap()).unwrap();
    let owner = vfs.context(user());
    let root = vfs.context(Credentials::root());
    let file = vfs.open(&owner, "/tool", OpenFlags::WRITE).unwrap();
    let host_mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    file.as_user(&root).write_at(b"more", 0).unwrap();
    assert_eq!(host_mode(), 0o4755, "EDGE-1");
    file.write_at(b"less", 0).unwrap();
    assert_eq!(host_mode(), 0o755, "EDGE-1");
}

/// EDGE-1: a write to another user's file clears set-id bits and capabilities; changes of the
/// mode on the host meanwhile are kept.
#[test]
fn a_write_takes_privileges_off_others_files() {
    if !is_root() {
        return skip("needs root");
    }
    let caps = [[1, 0, 0, 2], [0, 4, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    for actor in [Actor::Daemon, Actor::Caller] {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let host = HostFs::new(dir.path()).unwrap().acting_as(actor).unwrap();
        let vfs = Vfs::new(host.with_freshness(Freshness::Always)).unwrap();
        let stranger = vfs.context(user());
        let changes: [ChangeNamed; 3] = [
            |vfs, ctx, path| {
                let file = vfs.open(ctx, path, OpenFlags::WRITE)?;
                file.write_at(b"evil", 0).map(drop)
            },
            |vfs, ctx, path| vfs.truncate(ctx, path, 3),
            |vfs, ctx, path| {
                let file = vfs.open(ctx, path, OpenFlags::WRITE)?;
                file.allocate(Allocate::empty(), 0, 9)
            },
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let path = dir.path().join(n.to_string());
            let mode = |mode| {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            };
            fs::write(&path, b"true").unwrap();
            mode(0o6777);
            let xattr = "security.capability";
            rustix::fs::setxattr(&path, xattr, &caps, rustix::fs::XattrFlags::empty()).unwrap();
            change(&vfs, &stranger, &format!("/{n}")).unwrap();
            let left = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(left, 0o777, "EDGE-1: {actor:?}, change {n}");
            let left = rustix::fs::getxattr(&path, xattr, &mut [0u8; 64][..]);
            assert_eq!(
                left,
                Err(rustix::io::Errno::NODATA),
                "EDGE-1: {actor:?}, change {n}"
            );
        }

        let path = dir.path().join("revoked");
        fs::write(&path, b"true").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        let file = vfs.open(&stranger, "/revoked", OpenFlags::WRITE).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4700)).unwrap();
        file.write_at(b"evil", 0).unwrap();
        let left = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(left, 0o700, "EDGE-1: {actor:?}");
    }
}

type Forbidden = fn(&BackEnd<'_>, &Caller<'_>) -> Result<()>;

/// Operations that user 1000 may not do in that root, though no VFS checks it here.
const FORBIDDEN: [(&str, Error, Forbidden); 10] = [
    ("create", Error::PermissionDenied, |t, by| {
        let new = new_of(by.credentials, FileType::Regular, 0o600);
        let dir = t.find("roots");
        t.fs.create(by, &dir, name("file"), &new).map(drop)
    }),
    ("mkdir", Error::PermissionDenied, |t, by| {
        let new = new_of(by.credentials, FileType::Directory, 0o700);
        let dir = t.find("roots");
        t.fs.create(by, &dir, name("file"), &new).map(drop)
    }),
    ("mknod", Error::NotPermitted, |t, by| {
        let new =
            new_of(by.credentials, FileType::CharDevice, 0o600).rdev(rustix::fs::makedev(1, 3));
        t.fs.create(by, t.root, name("null"), &new).map(drop)
    }),
    ("open", Error::PermissionDenied, |t, by| {
        let file = t.find("secret");
        t.fs.open(by, &t.at("secret", &file), OpenFlags::READ)
            .map(drop)
    }),
    ("truncate", Error::PermissionDenied, |t, by| {
        let (file, change) = (t.find("secret"), size(0));
        t.fs.setattr(by, &t.at("secret", &file), &change)
    }),
    ("chmod", Error::NotPermitted, |t, by| {
        let change = SetAttr::default().mode(0o777);
        let file = t.find("secret");
        t.fs.setattr(by, &t.at("secret", &file), &change)
    }),
    ("chown", Error::NotPermitted, |t, by| {
        let change = SetAttr::default().uid(1000);
        let file = t.find("secret");
        t.fs.setattr(by, &t.at("secret", &file), &change)
    }),
    ("setxattr", Error::PermissionDenied, |t, by| {
        let (file, flags) = (t.find("secret"), XattrFlags::empty());
        t.fs.set_xattr(by, &t.at("secret", &file), b"user.a", b"1", flags)
    }),
    ("trusted", Error::NotPermitted, |t, by| {
        let (file, flags) = (t.find("secret"), XattrFlags::empty());
        t.fs.set_xattr(by, &t.at("secret", &file), b"trusted.a", b"1", flags)
    }),
    ("rename", Error::PermissionDenied, |t, by| {
        let (dir, file) = (t.find("roots"), t.find("secret"));
        let how = Rename::new((t.root, name("secret")), (&dir, name("secret")), &file);
        t.fs.rename(by, &how)
    }),
];

fn size(size: u64) -> SetAttr {
    SetAttr::default().size(size)
}

/// EDGE-1: as the caller, the host refuses the operations that the caller may not do; as the
/// daemon, only the VFS does.
#[test]
fn the_host_refuses_the_caller() {
    if !is_root() {
        return skip("needs root");
    }
    for (what, error, operation) in FORBIDDEN {
        let wanted = error.errno();
        in_scratch(Actor::Caller, move |t| {
            let who = user();
            let done = operation(t, &t.by(&who));
            let errno = done.map_or_else(|err| err.errno(), |()| 0);
            assert_eq!(errno, wanted, "EDGE-1: {what} as the caller");
            assert_eq!(fs::read(t.host("secret")).unwrap(), b"secret");
            // Root's call succeeds.
            operation(t, &t.by).unwrap_or_else(|err| panic!("EDGE-1: {what}: {err}"));
        });
        in_scratch(Actor::Daemon, move |t| {
            let who = user();
            operation(t, &t.by(&who)).unwrap_or_else(|err| panic!("EDGE-1: {what}: {err}"));
        });
    }
}

/// EDGE-1: further groups count, and so do the capabilities that a caller has.
#[test]
fn groups_and_capabilities_are_the_callers() {
    if !is_root() {
        return skip("needs root");
    }
    in_scratch(Actor::Caller, |t| {
        chown(t.host("secret"), None, Some(2000)).unwrap();
        fs::set_permissions(t.host("secret"), PermissionsExt::from_mode(0o640)).unwrap();
        let file = t.find("secret");
        let at = t.at("secret", &file);
        let who = user();
        assert!(t.fs.open(&t.by(&who), &at, OpenFlags::READ).is_ok());
        assert!(t.fs.open(&t.by(&who), &at, OpenFlags::WRITE).is_err());
        let stranger = Credentials::user(1000, 1003);
        assert!(t.fs.open(&t.by(&stranger), &at, OpenFlags::READ).is_err());
        let overrides = Credentials {
            caps: rcuwalk::Caps::DAC_OVERRIDE,
            ..stranger
        };
        assert!(t.fs.open(&t.by(&overrides), &at, OpenFlags::WRITE).is_ok());
    });
}

/// EDGE-1: threads act as different callers at the same time.
#[test]
fn each_thread_has_its_own_caller() {
    if !is_root() {
        return skip("needs root");
    }
    in_scratch(Actor::Caller, |t| {
        thread::scope(|scope| {
            for thread in 0..4_u32 {
                scope.spawn(move || {
                    for i in 0..100 {
                        let who = Credentials::user(1000 + thread, 3000 + thread);
                        let path = format!("{thread}-{i}");
                        let new = new_of(&who, FileType::Regular, 0o600);
                        t.fs.create(&t.by(&who), t.root, name(&path), &new).unwrap();
                        let host = fs::metadata(t.host(&path)).unwrap();
                        assert_eq!((host.uid(), host.gid()), (who.uid, who.gid), "EDGE-1");
                    }
                });
            }
        });
    });
}

/// EDGE-1: without the privilege to give files away, they stay the daemon's, and no set-id
/// file of the daemon's is made for others. Acting as others is refused by name.
#[test]
fn an_unprivileged_daemon_keeps_what_it_makes() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let path = dir.path().to_owned();
    // Credentials are a thread's own: the tests beside this one stay root.
    let unprivileged = thread::spawn(move || {
        let (uid, gid) = (Uid::from_raw(1500), Gid::from_raw(1500));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let refused = HostFs::new(&path).unwrap().acting_as(Actor::Caller);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("run as root"), "EDGE-1: {message}");
        (HostFs::new(&path).unwrap(), path)
    });
    let (_, path) = unprivileged.join().unwrap();
    let worker = thread::spawn(move || {
        // As above, but the test changes the root's mode first.
        let fs = HostFs::new(&path).unwrap();
        with_back_end(&path, fs, |t| {
            let (uid, gid) = (Uid::from_raw(1500), Gid::from_raw(1500));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            for who in [user(), Credentials::user(1500, 1500)] {
                for (path, kind, mode) in KINDS {
                    let path = format!("{path} for {}", who.uid);
                    let new = new_of(&who, kind, mode);
                    let made = t.fs.create(&t.by(&who), t.root, name(&path), &new).unwrap();
                    let made = attr(&made);
                    assert_eq!((made.uid, made.gid), (1500, 1500), "EDGE-1: {path}");
                    let kept = if who.uid == 1500 || kind == FileType::Directory {
                        mode
                    } else {
                        mode & 0o777
                    };
                    assert_eq!(made.mode, kept, "EDGE-1: {path}");
                }
            }
        });
    });
    worker.join().unwrap();
}

/// EDGE-1: files of a procfs in the tree show a caller what the kernel lets that caller see,
/// and its links lead nowhere: read with the daemon's rights, a target would be visible to
/// everybody.
#[test]
fn procfs_below_the_root_is_protected_as_on_the_host() {
    if !is_root() {
        return skip("needs root");
    }
    let vfs = Vfs::new(HostFs::new("/").unwrap()).unwrap();
    let (root, user) = (vfs.context(Credentials::root()), vfs.context(user()));
    let child = Sleeper::start();
    let it = child.0.id();
    // Everybody may open it, and only root sees the addresses.
    let addresses = |ctx: &Context| {
        let file = vfs.open(ctx, "/proc/kallsyms", OpenFlags::READ)?;
        let mut line = [0; 16];
        file.read_at(&mut line, 0)?;
        Ok::<_, Error>(line)
    };
    if addresses(&root).is_ok_and(|line| line != *b"0000000000000000") {
        assert_eq!(&addresses(&user).unwrap(), b"0000000000000000", "EDGE-1");
    }
    // Its mode is 0444, and the kernel checks the credentials at open.
    let maps = format!("/proc/{it}/maps");
    assert!(vfs.open(&root, &maps, OpenFlags::READ).is_ok(), "EDGE-1");
    let refused = vfs.open(&user, &maps, OpenFlags::READ).map(drop);
    assert!(
        matches!(refused, Err(Error::PermissionDenied)),
        "EDGE-1: {refused:?}"
    );
    // Each thread may see its own process, as whomever it asks.
    for own in [
        format!("/proc/{}/maps", std::process::id()),
        "/proc/self/maps".to_owned(),
    ] {
        let refused = vfs.open(&user, &own, OpenFlags::READ).map(drop);
        assert!(
            matches!(refused, Err(Error::PermissionDenied)),
            "EDGE-1: {refused:?}"
        );
        assert!(vfs.open(&root, &own, OpenFlags::READ).is_ok(), "EDGE-1");
    }
    // Checked at the read: the start of the stack, the 28th field.
    let stack = |ctx: &Context| {
        let file = vfs.open(ctx, format!("/proc/{it}/stat"), OpenFlags::READ);
        let mut text = vec![0; 4096];
        let len = file.unwrap().read_at(&mut text, 0).unwrap();
        let text = String::from_utf8_lossy(&text[..len]).into_owned();
        let behind = text.rsplit(") ").next().unwrap().to_owned();
        behind.split(' ').nth(25).unwrap().to_owned()
    };
    // `spawn` returns when the kernel has given up the old memory, which is before the new
    // stack has its start.
    wait_until("root sees the stack", || stack(&root) != "0");
    assert_eq!(stack(&user), "0", "EDGE-1");
    for link in ["cwd", "root", "exe", "fd/0"] {
        let link = format!("/proc/{it}/{link}");
        let read = vfs.read_link(&root, &link);
        assert!(
            matches!(read, Err(Error::PermissionDenied)),
            "EDGE-1: {link}"
        );
        assert!(vfs.open(&root, &link, OpenFlags::READ).is_err(), "EDGE-1");
    }
    assert_eq!(
        *vfs.read_link(&root, "/proc/mounts").unwrap(),
        *b"self/mounts"
    );
}

/// A process that does nothing, and ends with the test.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start() -> Sleeper {
        let mut command = std::process::Command::new("sleep");
        Sleeper(command.arg("60").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
