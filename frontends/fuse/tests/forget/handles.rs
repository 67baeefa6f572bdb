//! File handles of the mount: the files that they open after the kernel has forgotten them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rcuwalk::{Freshness, Vfs};
use rcuwalk_fuse::Options;
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::{Unmount, comes_true};

use super::common::{Mount, can_mount, on_each};
use super::drop_caches;

/// Calls name_to_handle_at(2) and open_by_handle_at(2), in Python, because tests are without
/// unsafe code. Each line is a request, and gets one line as its answer; nothing stays open.
const PROGRAM: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def take(path, flags):
    handle, mount = Handle(128), ctypes.c_ulonglong()
    path, mount = os.fsencode(path), ctypes.byref(mount)
    if libc.name_to_handle_at(-100, path, ctypes.byref(handle), mount, flags):
        return "errno %d" % ctypes.get_errno()
    return bytes(handle)[:8 + handle.bytes].hex()
def show(fd):
    if not os.path.isdir("/proc/self/fd/%d" % fd):
        return os.read(fd, 1000).decode()
    return ",".join(sorted(os.listdir(fd)))
def open_handle(mount, text):
    handle = Handle.from_buffer_copy(bytes.fromhex(text).ljust(136, b"\0"))
    fd = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        return "errno %d" % ctypes.get_errno()
    try:
        return "%d %s %s" % (os.fstat(fd).st_ino, os.readlink("/proc/self/fd/%d" % fd), show(fd))
    finally:
        os.close(fd)
def sizes(mount, text, behind):
    handle = Handle.from_buffer_copy(bytes.fromhex(text).ljust(136, b"\0"))
    fd = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_PATH)
    before = os.fstat(fd).st_size
    with open(behind, "a") as file:
        file.write("more")
    after = os.fstat(fd).st_size
    os.close(fd)
    return [before, after]
for line in sys.stdin:
    how, about, *rest = line.rstrip("\n").split("\t")
    if how == "take":
        answers = [take(path, int(about)) for path in rest]
    else:
        mount = os.open(about, os.O_RDONLY)
        if how == "open":
            answers = [open_handle(mount, text) for text in rest]
        else:
            answers = sizes(mount, *rest)
        os.close(mount)
    print(*answers, sep="\t", flush=True)
"#;

/// A running [`PROGRAM`].
struct Program {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start() -> Program {
        let mut process = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Program { process, answers }
    }

    fn ask(&mut self, words: &[&str]) -> Vec<String> {
        let requests = self.process.stdin.as_mut().unwrap();
        writeln!(requests, "{}", words.join("\t")).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let answers = line.strip_suffix('\n').expect("an answer");
        answers.split('\t').map(str::to_owned).collect()
    }

    /// Returns a handle of each path, or `errno N`.
    fn take(&mut self, flags: &str, paths: &[PathBuf]) -> Vec<Handle> {
        let paths = paths.iter().map(|path| path.to_str().unwrap());
        self.ask(&["take", flags].into_iter().chain(paths).collect::<Vec<_>>())
    }

    /// Returns inode number, path and contents of each handle's file, or `errno N`.
    fn open(&mut self, mount: &Mount, handles: &[Handle]) -> Vec<String> {
        let at = mount.path().to_str().unwrap();
        let handles = handles.iter().map(String::as_str);
        self.ask(&["open", at].into_iter().chain(handles).collect::<Vec<_>>())
    }

    /// The sizes of the file of `handle`, which a process holds, before and after four bytes
    /// are appended to it at the path `behind`.
    fn sizes(&mut self, mount: &Mount, handle: &Handle, behind: &Path) -> Vec<String> {
        let at = mount.path().to_str().unwrap();
        self.ask(&["sizes", at, handle, behind.to_str().unwrap()])
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Since Linux 6.13: with the directory, so that the open file has a path.
const CONNECTABLE: &str = "2";
/// Since Linux 6.12: identifies the mount by a number that is never used again.
const MNT_ID_UNIQUE: &str = "1";

/// In hexadecimal.
type Handle = String;

/// The answer of [`Program::open`] about the file at `path`, if it opens it by that path.
fn named(path: &Path, contents: &str) -> String {
    let ino = fs::symlink_metadata(path).unwrap().ino();
    format!("{ino} {} {contents}", path.display())
}

/// Like `named`, without the path, for a file that the kernel has no name of: only directories
/// are sure to have one.
fn without_path(line: &str) -> (String, String) {
    let mut parts = line.splitn(3, ' ');
    let ino = parts.next().unwrap().to_owned();
    (ino, parts.nth(1).unwrap_or_default().to_owned())
}

/// Makes the kernel forget all nodes but the root.
fn forget_all(mount: &Mount) {
    let forgotten = comes_true(|| {
        drop_caches();
        mount.mounted.nodes() == 1
    });
    assert!(forgotten, "{:?}", mount.mounted.node_statistics());
}

const STALE: &str = "errno 116";

/// A mount of `source` without caching: the kernel asks each time, and so does the back end.
fn mount_without_caching(source: &Path) -> Mount {
    let host = HostFs::new(source).unwrap();
    let vfs = Vfs::new(host.with_freshness(Freshness::EachUse)).unwrap();
    let options = Options::default()
        .entry_timeout(Duration::ZERO)
        .attr_timeout(Duration::ZERO);
    Mount::with(vfs, None, "hostfs", &options)
}

/// True if the host finds a file of the directory by its number.
fn finds_by_number(source: &Path) -> bool {
    const EXT4: i64 = 0xEF53;
    let found = rustix::fs::statfs(source).unwrap().f_type == EXT4;
    if !found {
        eprintln!(
            "{} is on no ext4: the host finds no file by number",
            source.display()
        );
    }
    found
}

/// HANDLE-1: handles open the files and directories that they were taken from, after the kernel
/// has forgotten them, wherever they have been moved through the mount.
#[test]
fn handles_open_forgotten_files() {
    on_each(|mount| {
        let mut program = Program::start();
        let top = mount.path();
        fs::create_dir_all(top.join("d/sub/deep")).unwrap();
        let files: Vec<_> = (0..20).map(|n| top.join(format!("d/f{n}"))).collect();
        for (n, file) in files.iter().enumerate() {
            fs::write(file, format!("contents of {n}")).unwrap();
        }
        fs::write(top.join("d/sub/deep/g"), "below").unwrap();
        let dirs = ["d", "d/sub", "d/sub/deep", "d/sub/deep/g"].map(|path| top.join(path));
        let (of_files, of_dirs) = (program.take("0", &files), program.take("0", &dirs));
        forget_all(mount);
        for (n, line) in program.open(mount, &of_files).iter().enumerate() {
            let expected = named(&files[n], &format!("contents of {n}"));
            assert_eq!(without_path(line), without_path(&expected), "HANDLE-1");
        }
        // From the deepest one, which is then the only known node.
        for n in (0..3).rev() {
            forget_all(mount);
            let inside = [(0..20).map(|n| format!("f{n}")).chain(["sub".to_owned()])];
            let mut names: Vec<_> = inside.into_iter().flatten().collect();
            names.sort();
            let contents = [names.join(","), "deep".to_owned(), "g".to_owned()][n].clone();
            let line = program.open(mount, &of_dirs[n..=n]).remove(0);
            assert_eq!(line, named(&dirs[n], &contents), "HANDLE-1: {}", mount.kind);
        }
        fs::rename(&files[3], top.join("d/sub/moved")).unwrap();
        fs::rename(top.join("d/sub"), top.join("other")).unwrap();
        forget_all(mount);
        let lines = program.open(mount, &[&of_files[3..4], &of_dirs[1..]].concat());
        let moved = ["other/moved", "other", "other/deep", "other/deep/g"];
        let contents = ["contents of 3", "deep,moved", "g", "below"];
        for (line, (path, contents)) in lines.iter().zip(moved.iter().zip(contents)) {
            let expected = named(&top.join(path), contents);
            assert_eq!(
                without_path(line),
                without_path(&expected),
                "HANDLE-1: {path}"
            );
        }
    });
}

/// HANDLE-1: a file that has lost the name by which its handle was taken can be opened as long
/// as it has another name that the kernel has looked up.
#[test]
fn handles_open_files_by_their_other_names() {
    on_each(|mount| {
        let mut program = Program::start();
        for forgets in [false, true] {
            let [old, new] = ["old", "new"].map(|name| mount.path().join(name));
            fs::write(&old, "contents").unwrap();
            let handle = program.take("0", std::slice::from_ref(&old));
            fs::hard_link(&old, &new).unwrap();
            if forgets {
                forget_all(mount);
            }
            fs::remove_file(&old).unwrap();
            forget_all(mount);
            let line = program.open(mount, &handle).remove(0);
            assert!(
                line.ends_with("contents"),
                "HANDLE-1: {} {line}",
                mount.kind
            );
            fs::remove_file(&new).unwrap();
            assert!(comes_true(|| program.open(mount, &handle) == [STALE]));
        }
    });
}

/// HANDLE-1: while four threads make, move and remove files and the kernel forgets as many
/// nodes as it can, each handle opens the file that it was taken from, and is stale once that
/// has been removed.
#[test]
fn handles_open_no_other_file_while_names_change() {
    on_each(|mount| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let movers: Vec<_> = (0..4)
                .map(|n| scope.spawn(move || move_files(mount, n)))
                .collect();
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop_caches();
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            let results: Vec<_> = movers.into_iter().map(|mover| mover.join()).collect();
            is_over.store(true, Relaxed);
            assert!(
                results.iter().all(Result::is_ok),
                "HANDLE-1: {}",
                mount.kind
            );
        });
    });
}

/// Moves files between two directories. No other thread changes them.
fn move_files(mount: &Mount, n: usize) {
    let mut program = Program::start();
    let dirs = ["a", "b"].map(|name| mount.path().join(format!("{n}{name}")));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    // By name: the file of that name, and its handle.
    let mut files: [Option<(String, Handle)>; 6] = Default::default();
    let mut removed: Vec<Handle> = Vec::new();
    let path = |k: usize| dirs[k % 2].join(format!("f{k}"));
    for round in 0..200 {
        let (from, to) = (round * 7 % 6, round * 5 % 4 + round / 3 % 3);
        match round % 3 {
            0 => {
                let contents = format!("{n}-{round}");
                let new = mount.path().join(format!("{n}new"));
                fs::write(&new, &contents).unwrap();
                let handle = program.take("0", std::slice::from_ref(&new)).remove(0);
                fs::rename(&new, path(to)).unwrap();
                let replaced = files[to].replace((contents, handle));
                removed.extend(replaced.map(|(_, handle)| handle));
            }
            1 if files[from].is_some() && from != to => {
                fs::rename(path(from), path(to)).unwrap();
                let moved = files[from].take();
                let replaced = std::mem::replace(&mut files[to], moved);
                removed.extend(replaced.map(|(_, handle)| handle));
            }
            2 if round % 9 == 2 && files[from].is_some() => {
                fs::remove_file(path(from)).unwrap();
                removed.extend(files[from].take().map(|(_, handle)| handle));
            }
            _ => {}
        }
        for (contents, handle) in files.iter().flatten() {
            let line = program.open(mount, std::slice::from_ref(handle)).remove(0);
            assert_eq!(without_path(&line).1, *contents, "HANDLE-1: {line}");
        }
        removed.drain(..removed.len().saturating_sub(8));
        for line in program.open(mount, &removed) {
            // FORGET of the file may be on its way: then the handle still opens it.
            let is_another = files
                .iter()
                .flatten()
                .any(|(contents, _)| line.ends_with(contents));
            assert!(!is_another, "HANDLE-1: {line}");
        }
    }
    assert!(comes_true(|| {
        let lines = program.open(mount, &removed);
        lines.iter().all(|line| line == STALE)
    }));
}

/// HANDLE-1: a removed file can be opened by its handle as long as it is open, and its handle
/// opens no later file with the same number.
#[test]
fn handles_of_removed_files_are_stale() {
    on_each(|mount| {
        let mut program = Program::start();
        let path = mount.path().join("f");
        let mut again = 0;
        for n in 0..12 {
            fs::write(&path, "the first").unwrap();
            let ino = fs::metadata(&path).unwrap().ino();
            let handle = program.take("0", std::slice::from_ref(&path));
            if n % 2 == 0 {
                let held = File::open(&path).unwrap();
                fs::remove_file(&path).unwrap();
                let line = program.open(mount, &handle).remove(0);
                assert!(line.ends_with("the first"), "HANDLE-1: {line}");
                drop(held);
                // The kernel tells that it is closed a moment after close(2).
                assert!(comes_true(|| mount.mounted.open() == 0));
            } else {
                fs::remove_file(&path).unwrap();
            }
            assert!(
                comes_true(|| program.open(mount, &handle) == [STALE]),
                "HANDLE-1"
            );
            fs::write(&path, "the second").unwrap();
            again += u32::from(fs::metadata(&path).unwrap().ino() == ino);
            assert_eq!(
                program.open(mount, &handle),
                [STALE],
                "HANDLE-1: {}",
                mount.kind
            );
            if n % 3 == 0 {
                forget_all(mount);
                assert_eq!(
                    program.open(mount, &handle),
                    [STALE],
                    "HANDLE-1: {}",
                    mount.kind
                );
            }
            fs::remove_file(&path).unwrap();
        }
        eprintln!("{}: {again} of 12 numbers were used again", mount.kind);
        let dir = mount.path().join("d");
        fs::create_dir(&dir).unwrap();
        let handle = program.take("0", std::slice::from_ref(&dir));
        fs::remove_dir(&dir).unwrap();
        forget_all(mount);
        assert_eq!(
            program.open(mount, &handle),
            [STALE],
            "HANDLE-1: a directory"
        );
    });
}

/// HANDLE-1: on tmpfs, whose files are told apart by their birth, handles open forgotten files as
/// well, and are stale once these have been replaced.
#[test]
fn handles_open_forgotten_files_of_a_tmpfs() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir_in("/dev/shm").unwrap();
    let mount = mount_without_caching(source.path());
    let mut program = Program::start();
    let path = mount.path().join("f");
    for round in 0..10 {
        fs::write(&path, "the first").unwrap();
        let handle = program.take("0", std::slice::from_ref(&path));
        forget_all(&mount);
        let line = program.open(&mount, &handle).remove(0);
        assert!(line.ends_with("the first"), "HANDLE-1: {line}");
        if round % 2 == 0 {
            forget_all(&mount);
        }
        let on_host = source.path().join("f");
        fs::remove_file(&on_host).unwrap();
        fs::write(&on_host, "the second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"the second");
        assert!(
            comes_true(|| program.open(&mount, &handle) == [STALE]),
            "HANDLE-1"
        );
        fs::remove_file(&path).unwrap();
    }
}

/// HANDLE-1: a file that is moved on the host is found below the source, and nowhere else.
#[test]
fn handles_do_not_lead_out_of_the_source() {
    if !can_mount() {
        return;
    }
    let mut program = Program::start();
    let host = tempfile::tempdir().unwrap();
    let [source, outside] = ["source", "outside"].map(|name| host.path().join(name));
    fs::create_dir_all(source.join("d/sub")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(source.join("f"), "file").unwrap();
    fs::write(source.join("d/sub/g"), "below").unwrap();
    let mount = mount_without_caching(&source);
    let paths = ["f", "d", "d/sub", "d/sub/g"].map(|path| mount.path().join(path));
    let handles = program.take("0", &paths);
    let before = program.open(&mount, &handles);
    assert!(
        before.iter().all(|line| !line.starts_with("errno")),
        "{before:?}"
    );
    forget_all(&mount);
    for name in ["f", "d"] {
        fs::rename(source.join(name), outside.join(name)).unwrap();
    }
    // The host keeps their names in its cache, and knows where they are.
    let _held = ["f", "d", "d/sub/g"].map(|path| File::open(outside.join(path)).unwrap());
    assert_eq!(
        program.open(&mount, &handles),
        [STALE; 4],
        "HANDLE-1: outside"
    );
    fs::create_dir(source.join("e")).unwrap();
    fs::rename(outside.join("f"), source.join("e/f2")).unwrap();
    fs::rename(outside.join("d"), source.join("e/d2")).unwrap();
    if !finds_by_number(&source) {
        return;
    }
    let moved = ["e/f2", "e/d2", "e/d2/sub", "e/d2/sub/g"];
    let contents = ["file", "sub", "g", "below"];
    let lines = program.open(&mount, &handles);
    for (line, (path, contents)) in lines.iter().zip(moved.iter().zip(contents)) {
        let expected = named(&mount.path().join(path), contents);
        assert_eq!(
            without_path(line),
            without_path(&expected),
            "HANDLE-1: {path}"
        );
    }
}

/// HANDLE-1: handles are good with the next daemon if the host finds a file by its number, and
/// stale elsewhere.
#[test]
fn handles_outlast_the_daemon() {
    if !can_mount() {
        return;
    }
    let mut program = Program::start();
    let source = tempfile::tempdir().unwrap();
    fs::create_dir_all(source.path().join("d/sub")).unwrap();
    fs::write(source.path().join("d/f"), "file").unwrap();
    fs::write(source.path().join("d/gone"), "gone").unwrap();
    let first = mount_without_caching(source.path());
    let paths = ["d", "d/sub", "d/f", "d/gone"].map(|path| first.path().join(path));
    let handles = program.take("0", &paths);
    drop(first);
    fs::remove_file(source.path().join("d/gone")).unwrap();
    fs::rename(source.path().join("d"), source.path().join("e")).unwrap();
    // The host's own cache is dropped by other tests: this keeps the name.
    let _held = File::open(source.path().join("e/f")).unwrap();
    let second = mount_without_caching(source.path());
    let lines = program.open(&second, &handles);
    assert_eq!(lines[3], STALE, "HANDLE-1: removed meanwhile");
    if !finds_by_number(source.path()) {
        assert_eq!(lines, [STALE; 4], "HANDLE-1");
        return;
    }
    let contents = ["f,sub", "", "file"];
    for (line, (path, contents)) in lines.iter().zip(["e", "e/sub", "e/f"].iter().zip(contents)) {
        let expected = named(&second.path().join(path), contents);
        assert_eq!(
            without_path(line),
            without_path(&expected),
            "HANDLE-1: {path}"
        );
    }
    drop(second);
    fs::write(source.path().join("e/f"), "written since").unwrap();
    let other = tempfile::tempdir().unwrap();
    let elsewhere = mount_without_caching(other.path());
    assert_eq!(
        program.open(&elsewhere, &handles),
        [STALE; 4],
        "HANDLE-1: another source"
    );
}

/// A mounted ext4 image, which is unmounted with this.
struct Disk {
    // Declared first, so that it is unmounted before its directory is removed.
    _mounted: Unmount,
    at: tempfile::TempDir,
    _image: tempfile::NamedTempFile,
}

impl Disk {
    fn new() -> Disk {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        let made = Command::new("mkfs.ext4")
            .arg("-q")
            .arg(image.path())
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let at = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(image.path()).arg(at.path());
        let done = mount.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        Disk {
            _mounted: Unmount(at.path().into()),
            at,
            _image: image,
        }
    }
}

/// HANDLE-1: where the source is a whole file system, files are found without a name in any
/// cache, and their attributes are the host's from then on.
#[test]
fn handles_find_files_of_a_whole_file_system() {
    if !can_mount() {
        return;
    }
    let mut program = Program::start();
    let disk = Disk::new();
    let source = disk.at.path();
    fs::create_dir_all(source.join("d/sub")).unwrap();
    for name in ["f", "moved", "removed"] {
        fs::write(source.join("d").join(name), name).unwrap();
    }
    let first = mount_without_caching(source);
    let names = ["d/f", "d/moved", "d/removed", "d/sub"];
    let handles = program.take("0", &names.map(|name| first.path().join(name)));
    let connectable = program.take(CONNECTABLE, &[first.path().join("d/f")]);
    drop(first);
    fs::rename(source.join("d/moved"), source.join("d/sub/other")).unwrap();
    fs::remove_file(source.join("d/removed")).unwrap();
    // The host no longer has the names in its cache, either.
    (0..3).for_each(|_| drop_caches());
    let second = mount_without_caching(source);
    // First, while no directory has been listed: nothing has a name.
    let sizes = program.sizes(&second, &handles[0], &source.join("d/f"));
    assert_eq!(
        sizes,
        ["1", "5"],
        "HANDLE-1: changed on the host while it is held"
    );
    let lines = program.open(&second, &handles);
    let contents = lines.iter().map(|line| without_path(line).1);
    let expected = ["fmore", "moved", "", "other"];
    assert_eq!(
        contents.collect::<Vec<_>>(),
        expected,
        "HANDLE-1: {lines:?}"
    );
    assert_eq!(lines[2], STALE, "HANDLE-1: removed");
    let path = second.path().join("d/f");
    let (ino, _) = without_path(&lines[0]);
    assert_eq!(
        fs::metadata(&path).unwrap().ino().to_string(),
        ino,
        "HANDLE-1"
    );
    fs::write(&path, "by its name").unwrap();
    let line = program.open(&second, &handles[..1]).remove(0);
    let expected = named(&path, "by its name");
    assert_eq!(without_path(&line), without_path(&expected), "HANDLE-1");
    drop(second);
    if connectable == ["errno 22"] {
        return;
    }
    fs::rename(source.join("d"), source.join("e")).unwrap();
    (0..3).for_each(|_| drop_caches());
    let third = mount_without_caching(source);
    let line = program.open(&third, &connectable).remove(0);
    let expected = named(&third.path().join("e/f"), "by its name");
    assert_eq!(line, expected, "HANDLE-1: connectable");
}

/// HANDLE-1: handles that include the directory open the file by a path.
#[test]
fn connectable_handles_lead_to_a_path() {
    on_each(|mount| {
        let mut program = Program::start();
        let dir = mount.path().join("d");
        fs::create_dir(&dir).unwrap();
        let paths = [dir.join("f"), dir.clone()];
        fs::write(&paths[0], "file").unwrap();
        let handles = program.take(CONNECTABLE, &paths);
        if handles[0] == "errno 22" {
            eprintln!("the kernel knows no connectable handles");
            return;
        }
        assert_eq!(
            program.take(MNT_ID_UNIQUE, &paths),
            program.take("0", &paths),
            "HANDLE-1: another mount id"
        );
        forget_all(mount);
        let file = program.open(mount, &handles[..1]).remove(0);
        assert_eq!(file, named(&paths[0], "file"), "HANDLE-1: {}", mount.kind);
        forget_all(mount);
        let at = mount.path().join("e");
        fs::rename(&dir, &at).unwrap();
        fs::rename(at.join("f"), at.join("g")).unwrap();
        forget_all(mount);
        let lines = program.open(mount, &handles);
        assert_eq!(
            lines[0],
            named(&at.join("g"), "file"),
            "HANDLE-1: {}",
            mount.kind
        );
        assert_eq!(lines[1], named(&at, "g"), "HANDLE-1: {}", mount.kind);
    });
}
