//! Writes to set-id programs: as soon as the write is done they run as their caller, however
//! long the kernel caches attributes.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::thread::CapabilitySet;

use super::{User, on_unshared, user, wait_until_closed};
use crate::common::Mount;

/// Makes a copy of id(1) on the mount, owned by user 0. Another process makes it: if this one
/// had it open for writing, programs started by other tests would inherit the descriptor, and
/// it could not be executed.
fn program(mount: &Mount, mode: u32) -> PathBuf {
    let path = mount.path().join("program");
    let copied = Command::new("cp").arg("/usr/bin/id").arg(&path).status();
    assert!(copied.unwrap().success());
    set_mode(&path, mode);
    path
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The user that `program` runs as if user 65533 starts it.
fn runs_as(program: &Path) -> String {
    let mut id = Command::new(program);
    let ran = id.arg("-u").uid(65533).gid(65533).output().unwrap();
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

/// A process of user 65534 that has a file open to append, and writes on request.
struct Writer(std::process::Child);

impl Writer {
    fn of(path: &Path) -> Writer {
        let mut sh = Command::new("sh");
        sh.args(["-c", "exec 3>>\"$0\"; echo; read go; echo more >&3"]);
        sh.arg(path.file_name().unwrap());
        sh.current_dir(path.parent().unwrap());
        sh.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sh = sh.uid(65534).gid(65534).spawn().unwrap();
        let mut ready = [0];
        let out = sh.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut ready).unwrap();
        Writer(sh)
    }

    fn writes(mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// EDGE-1: after a write by another user a set-id program runs as its caller.
#[test]
fn a_set_id_program_that_another_writes_to_runs_as_who_starts_it() {
    on_unshared(|mount| {
        let path = program(mount, 0o4777);
        assert_eq!(runs_as(&path), "0", "before");
        Writer::of(&path).writes();
        assert_eq!(runs_as(&path), "65533", "EDGE-1: by another user");
        // By a file that root has opened.
        set_mode(&path, 0o4755);
        assert_eq!(runs_as(&path), "0");
        let mut echo = Command::new("sh");
        echo.args(["-c", "setpriv --reuid 65534 --clear-groups echo >> \"$0\""]);
        assert!(echo.arg(&path).status().unwrap().success());
        assert_eq!(runs_as(&path), "65533", "EDGE-1: by a file of root's");
        // A chown(2) without an owner is not a write.
        wait_until_closed(mount);
        set_mode(&path, 0o4755);
        let chown = || std::os::unix::fs::chown(&path, None, None);
        let _ = user(65534).does(chown);
        assert_eq!(runs_as(&path), "0", "EDGE-1: a stranger's chown");
        // Also while it is open for writing.
        let open = File::options().append(true).open(&path).unwrap();
        let _ = user(65534).does(chown);
        drop(open);
        wait_until_closed(mount);
        assert_eq!(runs_as(&path), "0", "EDGE-1: a stranger's chown");
    });
}

/// EDGE-1: a program loses the set-id bits that are set while another user has it open for
/// writing.
#[test]
fn a_program_that_is_given_set_id_bits_while_another_writes_loses_them_at_once() {
    on_unshared(|mount| {
        let path = program(mount, 0o777);
        let writer = Writer::of(&path);
        set_mode(&path, 0o4777);
        let mode = || path.metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(), 0o4777, "shown");
        writer.writes();
        assert_eq!(runs_as(&path), "65533", "EDGE-1: by another user");
        assert_eq!(mode(), 0o777, "EDGE-1");
        // Where the kernel writes by itself, root's writes clear the bits too, which they leave
        // elsewhere.
        let roots = File::options().append(true).open(&path).unwrap();
        set_mode(&path, 0o4777);
        roots.write_all_at(b"", 0).unwrap();
        (&roots).write_all(b"root's").unwrap();
        drop(roots);
        wait_until_closed(mount);
        let host = mount
            .backing
            .as_ref()
            .map(|host| host.path().join("program"));
        let is_kept = host.unwrap_or(path.clone()).metadata().unwrap().mode() & 0o4000 != 0;
        let expected = if is_kept { "0" } else { "65533" };
        assert_eq!(runs_as(&path), expected, "EDGE-1: as the host has it");
    });
}

/// EDGE-1: a file without a name is no exception.
#[test]
fn a_set_id_program_without_a_name_loses_its_bits_as_well() {
    on_unshared(|mount| {
        let path = program(mount, 0o777);
        let writer = Writer::of(&path);
        let open = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let by_user = |uid, script| {
            let mut sh = Command::new("sh");
            sh.args(["-c", script]).stdin(open.try_clone().unwrap());
            let ran = sh.uid(uid).gid(uid).output().unwrap();
            assert!(ran.status.success(), "{ran:?}");
            String::from_utf8(ran.stdout).unwrap().trim().to_owned()
        };
        let run = || by_user(65533, "exec /proc/self/fd/0 -u");
        let give = || {
            open.set_permissions(Permissions::from_mode(0o4777))
                .unwrap()
        };
        give();
        writer.writes();
        assert_eq!(
            run(),
            "65533",
            "EDGE-1: given while another user has it open"
        );
        assert_eq!(open.metadata().unwrap().mode() & 0o7777, 0o777, "EDGE-1");
        give();
        assert_eq!(run(), "0", "before");
        by_user(65534, "echo more >> /proc/self/fd/0");
        assert_eq!(run(), "65533", "EDGE-1: by another user");
    });
}

/// EDGE-1: user 0 without CAP_FSETID loses set-id bits as other users do, and a user with it
/// keeps them.
#[test]
fn set_id_bits_go_by_cap_fsetid_whatever_the_user() {
    on_unshared(|mount| {
        let path = mount.path().join("file");
        fs::write(&path, b"12345").unwrap();
        let mode = || path.metadata().unwrap().mode() & 0o7777;
        let without = User {
            uid: 0,
            groups: &[0],
            caps: CapabilitySet::all() - CapabilitySet::FSETID,
        };
        let with = User {
            caps: CapabilitySet::FSETID,
            ..user(65534)
        };
        let write = || {
            let file = File::options().append(true).open(&path).unwrap();
            (&file).write_all(b"more").unwrap();
        };
        let cut = || {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(3).unwrap();
        };
        let empty = || drop(File::create(&path).unwrap());
        let allocate = || {
            let file = File::options().write(true).open(&path).unwrap();
            let how = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, how, 0, 9999).unwrap();
        };
        let changes: [(&str, &(dyn Fn() + Sync)); 4] = [
            ("write", &write),
            ("cut", &cut),
            ("empty", &empty),
            ("allocate", &allocate),
        ];
        for (what, change) in changes {
            for (who, left) in [(&without, 0o777), (&with, 0o6777)] {
                wait_until_closed(mount);
                set_mode(&path, 0o6777);
                who.does(change);
                assert_eq!(mode(), left, "EDGE-1: {what} by {}", who.uid);
            }
        }
    });
}
