//! `rcuwalk mount` of a tree with more directories than the process may open, by one that may
//! not open them by file handle.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::mount::Mount;
use crate::common::{is_root, run, skip};
use rcuwalk_testkit::{has, lacks_fuse};

/// In each directory, beside the directories.
const FILES: usize = 9;
/// In each directory that has any.
const SUBDIRS: usize = 50;

/// Entries in the tree: the deep run's number, or few enough for some seconds.
fn entries() -> usize {
    match std::env::var_os("RCUWALK_STRESS_OPS") {
        Some(_) => 600_000,
        None => 30_000,
    }
}

/// A mount by root without any capability but that to mount: as an unprivileged user's, but
/// that this needs no fusermount3.
struct Confined(Mount);

impl Confined {
    fn new(source: &Path, descriptors: u32) -> Confined {
        let at = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -n {descriptors}; exec \"$@\""),
            "sh",
            "setpriv",
            "--bounding-set=-all,+sys_admin",
            env!("CARGO_BIN_EXE_rcuwalk"),
            "mount",
        ]);
        command.arg(source).arg(at.path());
        Confined(Mount::started(command, at))
    }

    /// How many descriptors the process has.
    fn descriptors(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.0.command.id()));
        open.unwrap().count()
    }

    /// The capabilities it may ever have, as in capabilities(7).
    fn capabilities(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.command.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }
}

/// Arguments of find(1) that print path, type, number, and the size of all but directories.
const PRINT: [&str; 11] = [
    "-mindepth",
    "1",
    "(",
    "-type",
    "d",
    "-printf",
    "%P d %i\\n",
    ")",
    "-o",
    "-printf",
    "%P %y %i %s\\n",
];

/// The lines that find(1) prints, in order.
fn find(root: &Path) -> Vec<String> {
    let mut find = Command::new("timeout");
    find.args(["1800", "find"]).arg(root).args(PRINT);
    lines_of(&mut find)
}

fn lines_of(find: &mut Command) -> Vec<String> {
    let found = run(find);
    assert_eq!((found.code, &*found.err), (Some(0), ""), "of {find:?}");
    let mut lines: Vec<_> = found.out.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// A tree of `entries` entries, with a file in each directory that says where it is.
fn fill(root: &Path, entries: usize) -> usize {
    let (mut made, mut top) = (0, 0);
    while made < entries {
        for sub in 0..SUBDIRS {
            let dir = root.join(format!("{top}/{sub}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("where"), format!("{top}/{sub}")).unwrap();
            for file in 1..FILES {
                fs::File::create(dir.join(format!("file-{file}"))).unwrap();
            }
        }
        made += SUBDIRS * (FILES + 1) + 1;
        top += 1;
    }
    top
}

/// Mounts `source` with fusermount3 as an unprivileged user that may have `descriptors`
/// descriptors, and runs find(1) on the mount. A namespace of its own has a /dev/fuse for all
/// users.
const AS_USER: &str = r#"
    set -e
    dir=$1 source=$2 rcuwalk=$3 descriptors=$4; shift 4
    mount -t tmpfs -o mode=755 none "$dir"
    mknod -m 666 "$dir/fuse" c 10 229
    mount --bind "$dir/fuse" /dev/fuse
    mkdir "$dir/at"
    chown 1000:1000 "$dir/at"
    # Where the user may get at it.
    cp "$rcuwalk" "$dir/rcuwalk"
    ulimit -S -n "$descriptors"
    ulimit -H -n "$descriptors"
    exec setpriv --reuid=1000 --regid=1000 --clear-groups sh -c '
        dir=$1 source=$2; shift 2
        "$dir/rcuwalk" mount "$source" "$dir/at" 2> /dev/null &
        tries=0
        until mountpoint -q "$dir/at"; do
            tries=$((tries + 1))
            test $tries -lt 1000 && kill -0 $! || exit 3
            sleep 0.01
        done
        timeout 1800 find "$dir/at" "$@"
        found=$?
        "$dir/rcuwalk" umount "$dir/at" && wait $! && exit $found
    ' sh "$dir" "$source" "$@"
"#;

/// MEM-1: a user sees the same through a mount of that user's own.
#[test]
fn a_user_sees_more_directories_than_may_be_open() {
    if !is_root() {
        return skip("needs root");
    }
    for program in ["fusermount3", "setpriv", "unshare"] {
        if !has(program) {
            return skip(&format!("needs {program}"));
        }
    }
    let limit = if entries() > 100_000 { "1024" } else { "256" };
    let backing = tempfile::tempdir().unwrap();
    fill(backing.path(), entries());
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(backing.path(), everybody).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut user = Command::new("unshare");
    user.args([
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        AS_USER,
        "sh",
    ]);
    user.arg(dir.path()).arg(backing.path());
    user.args([env!("CARGO_BIN_EXE_rcuwalk"), limit])
        .args(PRINT);
    let through = lines_of(&mut user);
    let host = find(backing.path());
    assert!(host.len() >= entries());
    assert!(
        through == host,
        "MEM-1: {} of {}",
        through.len(),
        host.len()
    );
}

/// MEM-1: find(1) sees a tree of many thousands of directories through a mount whose process
/// may open a thousand files, and none by handle; all names, no other file, also after
/// directories have been moved and replaced on the host.
#[test]
fn more_directories_are_shown_than_may_be_open() {
    if lacks_fuse() {
        return;
    }
    if !has("setpriv") {
        return skip("needs setpriv");
    }
    let limit = if entries() > 100_000 { 1024 } else { 256 };
    let backing = tempfile::tempdir().unwrap();
    let top = fill(backing.path(), entries());
    let mount = Confined::new(backing.path(), limit);
    assert_eq!(mount.capabilities(), 1 << 21, "CAP_SYS_ADMIN and no other");
    let host = find(backing.path());
    assert!(host.len() >= entries());
    // Once cold, and once with the places held that the kernel knows.
    for round in ["cold", "known"] {
        let through = find(mount.0.path());
        let first = through
            .iter()
            .zip(&host)
            .find(|(through, host)| through != host);
        assert!(
            through == host,
            "MEM-1: {round}: {} of {}, {first:?}",
            through.len(),
            host.len()
        );
        assert!(mount.descriptors() < limit as usize);
    }
    let read = |dir: &str| {
        let file = mount.0.path().join(dir).join("where");
        fs::read_to_string(&file).unwrap_or_else(|err| panic!("{}: {err}", file.display()))
    };
    for n in (0..top * SUBDIRS).step_by(7) {
        let dir = format!("{}/{}", n / SUBDIRS, n % SUBDIRS);
        assert_eq!(read(&dir), dir, "MEM-1: the right file");
    }

    // The first of each ten moves, and another replaces it.
    for n in (0..top).step_by(10) {
        let (was, is) = (
            backing.path().join(format!("{n}/3")),
            format!("{n}/4/moved"),
        );
        fs::rename(&was, backing.path().join(&is)).unwrap();
        fs::create_dir(&was).unwrap();
        fs::write(was.join("where"), "another").unwrap();
    }
    // Until the cached entries of the kernel and the back end have expired.
    thread::sleep(Duration::from_millis(2500));
    for n in (0..top).step_by(10) {
        assert_eq!(read(&format!("{n}/4/moved")), format!("{n}/3"), "MEM-1");
        assert_eq!(read(&format!("{n}/3")), "another", "MEM-1");
    }
    let host = find(backing.path());
    assert!(find(mount.0.path()) == host, "MEM-1: after the changes");
}
