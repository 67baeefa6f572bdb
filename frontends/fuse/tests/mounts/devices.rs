//! A source with further file systems mounted in it: each file keeps its own inode number, and
//! programs that copy hard links by number copy the source as it is.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcuwalk_fuse::Options;
use rcuwalk_testkit::has;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::common::{Mount, can_mount, skip};

/// Enough for the mount to forget most of them: it may hold 64 nodes.
const FILES: usize = 600;

fn few_nodes() -> Options {
    Options::default().max_nodes(64)
}

/// A directory with other file systems mounted in it, which are unmounted with it.
struct Source {
    mounted: Vec<PathBuf>,
    top: tempfile::TempDir,
}

impl Drop for Source {
    fn drop(&mut self) {
        for at in self.mounted.iter().rev() {
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}

impl Source {
    fn new() -> Source {
        Source {
            mounted: Vec::new(),
            top: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> &Path {
        self.top.path()
    }

    /// Mounts a new file system at `name`.
    fn add(&mut self, kind: &str, name: &str, options: &str) -> PathBuf {
        let at = self.path().join(name);
        fs::create_dir_all(&at).unwrap();
        let done = Command::new("mount")
            .args(["-t", kind, "-o", options, kind])
            .arg(&at)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        self.mounted.push(at.clone());
        at
    }

    fn add_tmpfs(&mut self, name: &str) -> PathBuf {
        self.add("tmpfs", name, "size=64m")
    }

    /// Bind-mounts the directory `from` at `name`.
    fn bind(&mut self, from: &Path, name: &str) {
        let at = self.path().join(name);
        fs::create_dir_all(&at).unwrap();
        rustix::mount::mount(from, &at, "", MountFlags::BIND, None).unwrap();
        self.mounted.push(at);
    }
}

/// The number of each file below `top`, by stat and by listing.
fn numbers(top: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let attr = fs::symlink_metadata(entry.path()).unwrap();
            if attr.is_dir() {
                dirs.push(entry.path());
            } else {
                let ino = std::os::unix::fs::DirEntryExt::ino(&entry);
                assert_eq!(ino, attr.ino(), "NODE-3: {entry:?} as listed");
            }
            found.insert(
                entry.path().strip_prefix(top).unwrap().to_owned(),
                attr.ino(),
            );
        }
    }
    found
}

fn assert_unique(numbers: &BTreeMap<PathBuf, u64>) {
    let mut paths = HashMap::new();
    for (path, ino) in numbers {
        if let Some(other) = paths.insert(ino, path) {
            panic!("NODE-3: {path:?} and {other:?} are both {ino}");
        }
    }
}

/// NODE-3: files of two mounts below the source have numbers of their own, before the kernel
/// has forgotten them and after.
#[test]
fn files_of_two_devices_never_share_a_number() {
    if !can_mount() {
        return;
    }
    let mut source = Source::new();
    let dirs = ["one", "two"].map(|name| source.add_tmpfs(name));
    for dir in dirs.iter().map(PathBuf::as_path).chain([source.path()]) {
        (0..FILES).for_each(|n| fs::write(dir.join(format!("f{n}")), "").unwrap());
    }
    let mount = Mount::host_dir(source.path(), &few_nodes());
    let first = numbers(mount.path());
    assert_unique(&first);
    assert_eq!(numbers(mount.path()), first, "NODE-3: asked again");
    let own = first.get(Path::new("f7")).unwrap();
    let there = fs::metadata(source.path().join("f7")).unwrap().ino();
    assert_eq!(
        *own, there,
        "NODE-3: the source's own device keeps its numbers"
    );
}

/// NODE-3: one file of the host is one file here.
#[test]
fn a_file_by_two_mounts_of_its_device_has_one_number() {
    if !can_mount() {
        return;
    }
    let mut source = Source::new();
    let dir = source.add_tmpfs("one");
    fs::write(dir.join("file"), "").unwrap();
    fs::hard_link(dir.join("file"), dir.join("other")).unwrap();
    source.bind(&dir, "again");
    let mount = Mount::host_dir(source.path(), &Options::default());
    let numbers = numbers(mount.path());
    let of = |path: &str| numbers[Path::new(path)];
    assert_eq!(of("one/file"), of("one/other"), "NODE-3");
    assert_eq!(of("one/file"), of("again/file"), "NODE-3");
    assert_ne!(of("one"), of("one/file"), "NODE-3");
}

/// NODE-3: an overlay shows files of several devices side by side.
#[test]
fn the_layers_of_an_overlay_are_told_apart() {
    if !can_mount() {
        return;
    }
    let mut source = Source::new();
    let [lower, upper] = ["lower", "upper"].map(|name| source.add_tmpfs(name));
    let [top, work] = ["top", "work"].map(|name| upper.join(name));
    fs::create_dir(&top).unwrap();
    fs::create_dir(&work).unwrap();
    for n in 0..20 {
        fs::write(lower.join(format!("low{n}")), "").unwrap();
        fs::write(top.join(format!("high{n}")), "").unwrap();
    }
    let [lower, top, work] = [&lower, &top, &work].map(|path| path.to_str().unwrap());
    let layers = format!("xino=off,lowerdir={lower},upperdir={top},workdir={work}");
    source.add("overlay", "merged", &layers);
    let mount = Mount::host_dir(source.path(), &Options::default());
    let merged = mount.path().join("merged");
    let numbers = fs::read_dir(&merged).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let ino = fs::metadata(&path).unwrap().ino();
        (path, ino)
    });
    assert_unique(&numbers.collect());
}

/// NODE-3: programs that copy hard links by number copy the source as it is: 600 pairs on each
/// of two mounts, while the kernel forgets most of the nodes.
#[test]
fn tar_cp_and_rsync_copy_a_source_of_several_mounts_as_it_is() {
    if !can_mount() {
        return;
    }
    let mut source = Source::new();
    for name in ["one", "two"] {
        let dir = source.add_tmpfs(name);
        for n in 0..FILES {
            let file = dir.join(format!("f{n}"));
            fs::write(&file, format!("{name} {n}")).unwrap();
            fs::hard_link(&file, dir.join(format!("g{n}"))).unwrap();
        }
    }
    let mount = Mount::host_dir(source.path(), &few_nodes());
    for copy in [
        "tar -C $FROM -cf - . | tar -C $TO -xf -",
        "cp -a $FROM/. $TO",
        "rsync -aH $FROM/ $TO",
    ] {
        let program = copy.split(' ').next().unwrap();
        if !has(program) {
            skip(&format!("needs {program}"));
            continue;
        }
        let to = tempfile::tempdir().unwrap();
        let done = Command::new("sh")
            .args(["-ec", copy])
            .env("FROM", mount.path())
            .env("TO", to.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{copy}: {done:?}");
        for (name, n) in ["one", "two"]
            .iter()
            .flat_map(|name| (0..FILES).map(move |n| (name, n)))
        {
            let [file, link] =
                ["f", "g"].map(|kind| to.path().join(name).join(format!("{kind}{n}")));
            let text = fs::read_to_string(&file).unwrap();
            assert_eq!(text, format!("{name} {n}"), "NODE-3: by {program}");
            let [file, link] = [file, link].map(|path| fs::metadata(path).unwrap());
            assert_eq!(file.nlink(), 2, "NODE-3: {name}/f{n} by {program}");
            assert_eq!(file.ino(), link.ino(), "NODE-3: {name}/f{n} by {program}");
        }
    }
}
