//! `rcuwalk mount` and `umount`: the mounted tree, exit statuses, refusals.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{can_mount, interrupt, make_image, rcuwalk, run, run_well, skip};
use rcuwalk_testkit::{Unmount, comes_true};
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, kill_process};

/// A mount by the command; unmounted whatever becomes of the test.
pub(super) struct Mount {
    pub(super) command: Child,
    at: tempfile::TempDir,
}

impl Mount {
    fn new(source: &Path, options: &[&str]) -> Mount {
        let at = tempfile::tempdir().unwrap();
        let mut command = rcuwalk(["mount"]);
        command.args(options).arg(source).arg(at.path());
        Mount::started(command, at)
    }

    /// By `command`, on `at`.
    pub(super) fn started(mut command: std::process::Command, at: tempfile::TempDir) -> Mount {
        let before = fs::metadata(at.path()).unwrap().dev();
        let command = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut mount = Mount { command, at };
        for _ in 0..6000 {
            if fs::metadata(mount.path()).is_ok_and(|meta| meta.dev() != before) {
                return mount;
            }
            assert!(mount.command.try_wait().unwrap().is_none(), "has ended");
            thread::sleep(Duration::from_millis(10));
        }
        panic!("not mounted after a minute");
    }

    pub(super) fn path(&self) -> &Path {
        self.at.path()
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.contains(self.path().to_str().unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.command);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(Unmount(self.path().into()));
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

#[test]
fn a_directory_is_shown_changed_and_unmounted_by_a_signal() {
    if !can_mount() {
        return;
    }
    let backing = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, interrupt().0] {
        let mut mount = Mount::new(backing.path(), &["-o", "attr_timeout=0.1"]);
        fs::write(mount.path().join("f"), "through").unwrap();
        assert_eq!(fs::read(backing.path().join("f")).unwrap(), b"through");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts
            .lines()
            .find(|line| line.contains(mount.path().to_str().unwrap()))
            .unwrap();
        assert!(line.contains(" fuse.rcuwalk rw,"), "{line}");
        assert!(line.starts_with(backing.path().to_str().unwrap()), "{line}");
        mount.signal(signal);
        assert_eq!(mount.command.wait().unwrap().code(), Some(0));
        assert!(!mount.is_mounted());
    }
}

#[test]
fn a_busy_mount_is_detached() {
    if !can_mount() {
        return;
    }
    let mut mount = Mount::new(Path::new("memfs"), &[]);
    let open = fs::File::create(mount.path().join("f")).unwrap();
    let refused = run(rcuwalk(["umount"]).arg(mount.path()));
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .err
            .ends_with("it is in use (--lazy detaches it, --force ends it)\n"),
        "{refused:?}"
    );
    mount.signal(Signal::TERM);
    assert_eq!(mount.command.wait().unwrap().code(), Some(0));
    assert!(!mount.is_mounted());
    drop(open);
}

/// WATCH-1: processes that wait for a daemon which does not answer get an error. Not where
/// requests come by io_uring: the kernel has the stopped process itself end what it was given.
#[test]
fn a_mount_without_an_answer_is_ended() {
    if !can_mount() {
        return;
    }
    let mut mount = Mount::new(Path::new("memfs"), &["-o", "noio_uring"]);
    mount.signal(Signal::STOP);
    let path = mount.path().join("f");
    let client = thread::spawn(move || path.metadata().map(drop));
    thread::sleep(Duration::from_millis(100));
    assert!(!client.is_finished());
    // Lazy, for the process, which cannot end yet.
    run_well(rcuwalk(["umount", "--force", "--lazy"]).arg(mount.path()));
    client.join().unwrap().unwrap_err();
    assert!(!mount.is_mounted());
    mount.signal(Signal::CONT);
    mount.command.wait().unwrap();
}

#[test]
fn a_killed_mount_is_cleaned_up() {
    if !can_mount() {
        return;
    }
    let backing = tempfile::tempdir().unwrap();
    let mut mount = Mount::new(backing.path(), &[]);
    let file = fs::File::create(mount.path().join("safe")).unwrap();
    std::io::Write::write_all(&mut &file, b"data").unwrap();
    file.sync_all().unwrap();
    mount.signal(Signal::KILL);
    mount.command.wait().unwrap();
    drop(file);
    // A request that the kernel still has for the daemon's rings is ECONNABORTED.
    let errno = || fs::read_dir(mount.path()).unwrap_err().raw_os_error();
    comes_true(|| errno() != Some(103));
    assert_eq!(errno(), Some(107), "ENOTCONN");
    let again = run(rcuwalk(["mount", "memfs"]).arg(mount.path()));
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("rcuwalk umount"), "{again:?}");
    run_well(rcuwalk(["umount"]).arg(mount.path()));
    assert!(!mount.is_mounted());
    assert_eq!(fs::read(backing.path().join("safe")).unwrap(), b"data");
    let mount = Mount::new(backing.path(), &[]);
    assert_eq!(fs::read(mount.path().join("safe")).unwrap(), b"data");
}

#[test]
fn images_and_read_only_mounts_take_no_changes() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "1").unwrap();
    let mount = Mount::new(dir.path(), &["--read-only"]);
    assert_eq!(fs::read(mount.path().join("f")).unwrap(), b"1");
    let refused = fs::write(mount.path().join("f"), "2").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
    let file = dir.path().join("image");
    if make_image(&file).is_none() {
        return;
    }
    let mount = Mount::new(&file, &[]);
    assert_eq!(fs::read(mount.path().join("d/f")).unwrap(), b"contents");
    let refused = fs::write(mount.path().join("d/g"), "2").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("file"), "no image").unwrap();
    fs::create_dir(at("mnt")).unwrap();
    let here = dir.path().to_str().unwrap();
    for (args, said) in [
        (
            vec!["mount", "/no/such/source", &at("mnt")],
            "there is no such file or directory",
        ),
        (
            vec!["mount", "memfs", &at("none")],
            "No such file or directory",
        ),
        (vec!["mount", "memfs", &at("file")], "not a directory"),
        (vec!["mount", &at("file"), &at("mnt")], "file"),
        (vec!["mount", here, &at("mnt")], "which is inside of it"),
        (
            vec!["mount", "/dev/null", &at("mnt")],
            "neither a directory",
        ),
        (vec!["umount", &at("mnt")], "nothing is mounted there"),
        (vec!["umount", &at("none/x")], "No such file or directory"),
        (vec!["umount", "/proc"], "something else is mounted there"),
    ] {
        let ended = run(&mut rcuwalk(&args));
        assert_eq!(ended.code, Some(1), "{args:?}");
        assert_eq!(ended.err.lines().count(), 1, "{args:?}: {ended:?}");
        assert!(ended.err.contains(said), "{args:?}: {ended:?}");
    }
    let wrong = run(&mut rcuwalk([
        "mount",
        "-o",
        "colour=blue",
        "memfs",
        &at("mnt"),
    ]));
    assert_eq!(wrong.code, Some(2));
    assert!(
        wrong.err.contains("there is no option colour="),
        "{wrong:?}"
    );
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    for (args, said) in [
        (
            &["-o", "uid=1000"][..],
            "there is no option uid=: files keep their owners",
        ),
        (
            &["-o", "allow_root"],
            "there is no option allow_root: allow_other lets all users in",
        ),
        (&["--metrics", "localhost:9100"], "say 127.0.0.1:9100"),
        (&["-o", "metrics=localhost:9100"], "say 127.0.0.1:9100"),
        (&["--threads", "0"], "threads cannot be \"0\": say 1 to 64"),
        (
            &["-o", "threads=many"],
            "threads cannot be \"many\": say 1 to 64",
        ),
    ] {
        let ended = run(rcuwalk(["mount", "memfs", "/none"]).args(args));
        assert_eq!(ended.code, Some(2), "{args:?}");
        // Behind it clap names --help.
        let line = ended.err.lines().next().unwrap();
        assert!(line.contains(said), "{args:?}: {line}");
    }
}

#[test]
fn the_help_says_what_an_admin_must_know() {
    let help = run(&mut rcuwalk(["mount", "--help"]));
    assert_eq!(help.code, Some(0));
    let words = help.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "A new file belongs to the user who makes it",
        "quotas of other users do not stop them",
        "uses the space that is kept for root",
        "What is mounted below SOURCE is shown, too",
        "A mount point inside of SOURCE is refused",
        "--threads <N>",
        "While requests are stuck there",
        "--sandbox",
    ] {
        assert!(words.contains(said), "{said}");
    }
}

/// `--threads` counts as `-o threads=` does: the daemon has as many that answer.
#[test]
fn as_many_threads_answer_as_were_asked_for() {
    if !can_mount() {
        return;
    }
    for (options, threads) in [
        (&["--threads", "3"][..], 3),
        (&["-o", "threads=5"], 5),
        (&["-o", "threads=5", "--threads", "2"], 2),
    ] {
        let options = [options, &["-o", "noio_uring"]].concat();
        let mount = Mount::new(Path::new("memfs"), &options);
        // A name has 15 letters at most: those that answer are `rcuwalk-fuse-N`.
        let answering = || {
            let tasks = fs::read_dir(format!("/proc/{}/task", mount.command.id())).unwrap();
            let names = tasks
                .flatten()
                .map(|task| fs::read_to_string(task.path().join("comm")));
            let ours = names
                .flatten()
                .filter(|name| name.starts_with("rcuwalk-fuse-"));
            ours.count()
        };
        // A thread gives itself its name, once it runs.
        comes_true(|| answering() == threads);
        let answering = answering();
        assert_eq!(answering, threads, "{options:?}");
    }
}

#[test]
fn without_privilege_it_says_so() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // For a user who may not mount: the command is where all can execute it.
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = dir.path().join("rcuwalk");
    fs::copy(env!("CARGO_BIN_EXE_rcuwalk"), &program).unwrap();
    let mut command = std::process::Command::new(program);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    command.args(["mount", "memfs"]).arg(dir.path());
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    assert!(ended.err.starts_with("rcuwalk: "), "{ended:?}");
}

#[test]
fn a_tree_in_memory_belongs_to_who_mounts_it() {
    if !can_mount() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    // Not root, and may mount nevertheless: no helper is needed for that.
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1001", "--clear-groups"]);
    let capabilities = "+sys_admin,+dac_override";
    command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities]);
    command.args([env!("CARGO_BIN_EXE_rcuwalk"), "mount", "--allow-other"]);
    command.arg("memfs").arg(at.path());
    let mount = Mount::started(command, at);
    let root = fs::metadata(mount.path()).unwrap();
    assert_eq!((root.uid(), root.gid()), (1000, 1001));
}

#[test]
fn the_daemon_caches_no_longer_than_the_kernel() {
    if !can_mount() {
        return;
    }
    let backing = tempfile::tempdir().unwrap();
    let options = ["-o", "entry_timeout=0,attr_timeout=0"];
    let mount = Mount::new(backing.path(), &options);
    for n in 0..5 {
        let [there, here] = [backing.path(), mount.path()].map(|dir| dir.join(n.to_string()));
        assert!(!here.exists());
        fs::write(&there, "by the host").unwrap();
        assert_eq!(fs::metadata(&here).unwrap().len(), 11, "a new name");
        fs::write(&there, "").unwrap();
        assert_eq!(fs::metadata(&here).unwrap().len(), 0, "new attributes");
        fs::remove_file(&there).unwrap();
        assert!(!here.exists(), "a name that is gone");
    }
}

#[test]
fn what_the_source_forbids_the_mount_forbids() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let flags = MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("none", source.path(), "tmpfs", flags, None).unwrap();
    let _source = Unmount(source.path().into());
    let flags_of = |options: &[&str]| {
        let mount = Mount::new(source.path(), options);
        rustix::fs::statvfs(mount.path()).unwrap().f_flag
    };
    let (inherited, given) = (flags_of(&[]), flags_of(&["-o", "exec"]));
    use rustix::fs::StatVfsMountFlags as Flags;
    assert!(inherited.contains(Flags::NOEXEC | Flags::NOSUID | Flags::NODEV));
    assert!(!given.contains(Flags::NOEXEC), "somebody said otherwise");
}

/// One mount shows all that is mounted below its source, and must not allow more than that does.
#[test]
fn what_a_mount_below_the_source_forbids_is_not_allowed() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let stick = source.path().join("usb");
    fs::create_dir(&stick).unwrap();
    let at = tempfile::tempdir().unwrap();
    for (flag, option, said) in [
        (MountFlags::NOSUID, "suid", "/usb, mounted below "),
        (MountFlags::NODEV, "dev", ", is nodev: leave dev out, or "),
    ] {
        rustix::mount::mount("none", &stick, "tmpfs", flag, None).unwrap();
        let below = Unmount(stick.clone());
        // As a daemon: it returns also if it is not refused.
        let mut command = rcuwalk(["mount", "--daemon", "-o", option]);
        let refused = run(command.arg(source.path()).arg(at.path()));
        let _at = Unmount(at.path().into());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert_eq!(refused.err.lines().count(), 1, "{refused:?}");
        assert!(refused.err.contains(said), "{refused:?}");
        // Nor later, by a remount; one that allows nothing more is done.
        let mount = Mount::new(source.path(), &[]);
        let remount = |options: &str| {
            let options = format!("remount,{options}");
            run(rcuwalk(["mount", "-o", &options])
                .arg(source.path())
                .arg(mount.path()))
        };
        let refused = remount(option);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains(said), "{refused:?}");
        assert_eq!(remount("noatime").code, Some(0));
        let flags = || rustix::fs::statvfs(mount.path()).unwrap().f_flag;
        use rustix::fs::StatVfsMountFlags as Flags;
        assert!(flags().contains(Flags::NOSUID | Flags::NODEV | Flags::NOATIME));
        drop(mount);
        // The same mount beside the source forbids nothing.
        drop(below);
        drop(Mount::new(source.path(), &["-o", option]));
    }
}

/// A remount that does not name `nosymfollow` leaves it, as every flag.
#[test]
fn a_remount_keeps_nosymfollow() {
    if !can_mount() {
        return;
    }
    // MS_NOSYMFOLLOW, and ST_NOSYMFOLLOW.
    let given = MountFlags::from_bits_retain(0x100) | MountFlags::NOSUID | MountFlags::NODEV;
    let mount = Mount::new(Path::new("memfs"), &[]);
    let flags = || rustix::fs::statvfs(mount.path()).unwrap().f_flag;
    rustix::mount::mount_remount(mount.path(), given, c"").unwrap();
    if flags().bits() & 0x2000 == 0 {
        return skip("needs nosymfollow (Linux 5.10)");
    }
    let done = run(rcuwalk(["mount", "-oremount,noexec", "memfs"]).arg(mount.path()));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(flags().contains(rustix::fs::StatVfsMountFlags::NOEXEC));
    assert_eq!(flags().bits() & 0x2000, 0x2000, "it is gone");
}
