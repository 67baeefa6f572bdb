//! A mount and an idmapped one of the same tree: users are mapped, and no user gains by it.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rcuwalk_fuse::Options;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, listxattr, mknodat, setxattr};
use rustix::mount::{UnmountFlags, unmount};

use super::{User, user, wait_until_closed};
use crate::common::{Mount, can_mount, skip};

/// User 0 of the tree is this user on the idmapped mount, and so on.
const SHIFT: u32 = 100_000;

/// Makes an idmapped mount of the first argument on the second, with the users of a namespace
/// that a child creates; exits with 3 if the kernel cannot idmap that mount.
const MOUNT: &str = r#"
import ctypes, errno, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
source, target, shift = sys.argv[1], sys.argv[2], sys.argv[3]
ready, made = os.pipe()
child = os.fork()
if child == 0:
    if libc.unshare(0x10000000):
        os._exit(1)
    os.write(made, b'x')
    signal.pause()
os.close(made)
try:
    assert os.read(ready, 1) == b'x'
    for ids in 'uid', 'gid':
        with open(f'/proc/{child}/{ids}_map', 'w') as map:
            map.write(f'0 {shift} 65536')
    users = os.open(f'/proc/{child}/ns/user', os.O_RDONLY)
    tree = libc.syscall(428, -100, source.encode(), 1 | os.O_CLOEXEC)
    assert tree >= 0, os.strerror(ctypes.get_errno())
    attr = struct.pack('QQQQ', 0x100000, 0, 0, users)
    if libc.syscall(442, tree, b'', 0x1000, attr, len(attr)):
        why = ctypes.get_errno()
        print(os.strerror(why), file=sys.stderr)
        sys.exit(3 if why == errno.EINVAL else 1)
    assert libc.syscall(429, tree, b'', -100, target.encode(), 4) == 0
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"#;

/// An idmapped mount, unmounted when this is dropped.
struct Idmapped(tempfile::TempDir);

impl Idmapped {
    /// Makes one, or returns the exit status of the program.
    fn of(mount: &Mount) -> Result<Idmapped, Option<i32>> {
        let at = tempfile::tempdir().unwrap();
        fs::set_permissions(at.path(), Permissions::from_mode(0o755)).unwrap();
        let mut python = Command::new("python3");
        python.args(["-c", MOUNT]).arg(mount.path()).arg(at.path());
        let ran = python.arg(SHIFT.to_string()).status().map_err(|_| None)?;
        match ran.success() {
            true => Ok(Idmapped(at)),
            false => Err(ran.code()),
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Idmapped {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

fn kernel_is_at_least(wanted: (u32, u32)) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= wanted
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = path.symlink_metadata().unwrap();
    (meta.uid(), meta.gid())
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn overflow() -> Option<i32> {
    Some(rustix::io::Errno::OVERFLOW.raw_os_error())
}

fn is_refused<T: std::fmt::Debug>(done: io::Result<T>) {
    let err = done.unwrap_err();
    // An unmapped user can own nothing, wherever.
    let is_unmapped = err.raw_os_error() == overflow();
    let is_denied = err.kind() == ErrorKind::PermissionDenied;
    assert!(is_denied || is_unmapped, "EDGE-1: {err}");
}

/// EDGE-1: an idmapped mount shows the mapped users, makes files for them, and gives them their
/// rights; the mount itself goes on as before.
#[test]
fn an_idmapped_mount_shows_and_makes_files_for_its_users() {
    if !can_mount() {
        return;
    }
    let options = Options::default().idmap(true);
    for mount in [Mount::memfs_with(&options), Mount::hostfs_with(&options)] {
        eprintln!("on {}", mount.kind);
        let mapped = match Idmapped::of(&mount) {
            Ok(mapped) => mapped,
            Err(None) => return skip("needs python3"),
            Err(Some(3)) if !kernel_is_at_least((6, 12)) => return skip("needs Linux 6.12"),
            Err(Some(why)) => panic!("no idmapped mount: {why}"),
        };
        let (plain, mapped) = (mount.path(), mapped.path());
        users_are_mapped(plain, mapped);
        each_user_may_what_is_theirs(plain, mapped);
        protected_things_stay_so(&mount, plain, mapped);
    }
}

fn users_are_mapped(plain: &Path, mapped: &Path) {
    fs::create_dir(plain.join("home")).unwrap();
    chown(plain.join("home"), Some(1000), Some(1001)).unwrap();
    assert_eq!(owner(&mapped.join("home")), (SHIFT + 1000, SHIFT + 1001));
    let at = mapped.join("home");
    let theirs = User {
        groups: &[SHIFT + 1001],
        ..user(SHIFT + 1000)
    };
    theirs.does(|| {
        fs::write(at.join("file"), "theirs").unwrap();
        fs::create_dir(at.join("dir")).unwrap();
        symlink("file", at.join("symlink")).unwrap();
        fs::hard_link(at.join("file"), at.join("link")).unwrap();
        let (fifo, mode) = (FileType::Fifo, Mode::from_raw_mode(0o600));
        mknodat(CWD, at.join("fifo"), fifo, mode, 0).unwrap();
        assert_eq!(fs::read(at.join("link")).unwrap(), b"theirs");
    });
    for made in ["file", "dir", "symlink", "link", "fifo"] {
        assert_eq!(
            owner(&plain.join("home").join(made)),
            (1000, 1001),
            "{made}"
        );
        assert_eq!(
            owner(&at.join(made)),
            (SHIFT + 1000, SHIFT + 1001),
            "{made}"
        );
    }
    // Unmapped users can own nothing there.
    let by_root = fs::write(at.join("roots"), "").unwrap_err();
    assert_eq!(by_root.raw_os_error(), overflow());
    chown(at.join("file"), Some(SHIFT + 1234), Some(SHIFT + 5)).unwrap();
    assert_eq!(owner(&plain.join("home/file")), (1234, 5));
    assert!(
        chown(at.join("file"), Some(1234), None).is_err(),
        "no such user there"
    );
    chown(plain.join("home/file"), Some(1000), Some(1001)).unwrap();
    assert_eq!(owner(&at.join("file")), (SHIFT + 1000, SHIFT + 1001));
}

fn each_user_may_what_is_theirs(plain: &Path, mapped: &Path) {
    let change = |file: &Path, other: &Path| -> io::Result<()> {
        set_mode(file, 0o600)?;
        File::options()
            .append(true)
            .open(file)?
            .write_all(b", too")?;
        File::options().write(true).open(file)?.set_len(3)?;
        fs::rename(file, other)?;
        fs::rename(other, file)
    };
    for (base, uid) in [(plain, 1000), (mapped, SHIFT + 1000)] {
        let (file, other) = (base.join("home/file"), base.join("home/other"));
        set_mode(&file, 0o644).unwrap();
        for stranger in [SHIFT + 1000 - (uid - 1000), uid + 1] {
            user(stranger).does(|| {
                is_refused(set_mode(&file, 0o666));
                is_refused(File::options().write(true).open(&file));
                is_refused(fs::rename(&file, &other));
                is_refused(fs::remove_file(&file));
                is_refused(fs::write(&other, ""));
                is_refused(fs::create_dir(&other));
                assert!(fs::read(&file).is_ok());
            });
        }
        // For a new name, the group must be mapped as well.
        let owner = User {
            groups: &[uid + 4711],
            ..user(uid)
        };
        owner.does(|| change(&file, &other)).unwrap();
        user(uid + 1).does(|| is_refused(fs::read(&file)));
    }
    let removed = mapped.join("home/link");
    user(SHIFT + 1000)
        .does(|| fs::remove_file(removed))
        .unwrap();
    assert!(!plain.join("home/link").exists());
}

fn protected_things_stay_so(mount: &Mount, plain: &Path, mapped: &Path) {
    // Another user's file in a sticky directory.
    fs::create_dir(plain.join("tmp")).unwrap();
    set_mode(&plain.join("tmp"), 0o1777).unwrap();
    user(1000)
        .does(|| fs::write(plain.join("tmp/file"), ""))
        .unwrap();
    let theirs = mapped.join("tmp/file");
    user(SHIFT + 7).does(|| is_refused(fs::remove_file(&theirs)));
    user(7).does(|| is_refused(fs::remove_file(plain.join("tmp/file"))));
    user(SHIFT + 1000)
        .does(|| fs::remove_file(&theirs))
        .unwrap();
    // Set-id bits after writes and chowns by other users.
    let program = plain.join("home/program");
    fs::write(&program, "#!").unwrap();
    for base in [plain, mapped] {
        // While it is open for writing, that chown(2) may be the start of a write.
        wait_until_closed(mount);
        set_mode(&program, 0o6777).unwrap();
        let file = base.join("home/program");
        let uid = SHIFT + 7;
        let _ = user(uid).does(|| chown(&file, None, None));
        assert_eq!(mode(&program), 0o6777, "EDGE-1: a stranger's chown");
        let write = || File::options().append(true).open(&file)?.write_all(b"x");
        user(uid).does(write).unwrap();
        assert_eq!(mode(&program), 0o777, "EDGE-1: a write");
    }
    // Attribute names that only root may see.
    let none = XattrFlags::empty();
    setxattr(&program, "trusted.secret", b"x", none).unwrap();
    for base in [plain, mapped] {
        let list = || listxattr(base.join("home/program"), &mut [0; 100]).unwrap();
        assert_eq!((user(SHIFT + 7).does(list), list()), (0, 15), "EDGE-1");
    }
}

/// EDGE-1: the kernel has checked that the user may make a file. If another process has made it
/// by then, it is opened only if the user may open it.
#[test]
fn a_file_that_came_meanwhile_is_opened_as_the_kernel_lets_it() {
    if !can_mount() {
        return;
    }
    let options = Options::default()
        .idmap(true)
        .negative_timeout(Duration::from_secs(3600));
    let mount = Mount::hostfs_with(&options);
    let host = mount.backing.as_ref().unwrap().path();
    set_mode(mount.path(), 0o777).unwrap();
    for (name, mode, may) in [("secret", 0o600, false), ("shared", 0o666, true)] {
        let path = mount.path().join(name);
        // From now on the kernel has cached that the name is missing.
        assert!(!path.exists());
        fs::write(host.join(name), name).unwrap();
        set_mode(&host.join(name), mode).unwrap();
        let mut create = File::options();
        let create = create.read(true).append(true).create(true);
        let opened = user(1000).does(|| create.open(&path));
        match may {
            true => assert_eq!(io::read_to_string(opened.unwrap()).unwrap(), name),
            false => is_refused(opened),
        }
        let mut anew = File::options();
        let anew = user(1000).does(|| anew.write(true).create_new(true).open(&path));
        assert_eq!(anew.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}
