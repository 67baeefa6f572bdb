//! The same changes through rcuwalk on memfs and by system call in a scratch
//! directory: same errno, same tree afterwards.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rcuwalk::{Context, Credentials, FileType, LookupFlags, Vfs};
use rcuwalk_memfs::{MemFs, directory, file, symlink};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};

/// What both sides start from: a path and `/`, nothing or a link's target.
const TREE: [(&str, &str); 9] = [
    ("dir", "/"),
    ("dir/in", ""),
    ("empty", "/"),
    ("file", ""),
    ("link", "file"),
    ("dirlink", "empty"),
    ("dangling", "nowhere"),
    ("loop", "loop"),
    ("dir/sub", "/"),
];

#[derive(Clone, Copy, Debug)]
enum Change<'a> {
    Create(&'a str),
    Mkdir(&'a str),
    Symlink(&'a str, &'a str),
    Unlink(&'a str),
    Rmdir(&'a str),
    Link(&'a str, &'a str),
    Rename(&'a str, &'a str),
    NoReplace(&'a str, &'a str),
    Exchange(&'a str, &'a str),
    /// Links at the old name are followed.
    LinkFollow(&'a str, &'a str),
    Mknod(&'a str),
}
use Change::*;

/// 0 or an errno.
type Outcome = i32;

/// Each path: `d`, `f` or `l` with the link's target, and how many names it has.
type Contents = BTreeMap<String, (char, String, u64)>;

struct Kernel {
    dir: tempfile::TempDir,
}

impl Kernel {
    fn new() -> Kernel {
        let dir = tempfile::tempdir().unwrap();
        for (path, what) in TREE {
            let path = dir.path().join(path);
            match what {
                "/" => std::fs::create_dir(path),
                "" => std::fs::write(path, b""),
                target => std::os::unix::fs::symlink(target, path),
            }
            .unwrap();
        }
        Kernel { dir }
    }

    /// By paths relative to the scratch directory, each on a descriptor of it.
    fn apply(&self, change: Change<'_>) -> Outcome {
        let open = OFlags::PATH | OFlags::DIRECTORY;
        let at = rustix::fs::openat(CWD, self.dir.path(), open, Mode::empty()).unwrap();
        let result = match change {
            Create(path) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                rustix::fs::openat(&at, path, flags, Mode::from(0o644)).map(drop)
            }
            Mkdir(path) => rustix::fs::mkdirat(&at, path, Mode::from(0o755)),
            Symlink(target, path) => rustix::fs::symlinkat(target, &at, path),
            Unlink(path) => rustix::fs::unlinkat(&at, path, AtFlags::empty()),
            Rmdir(path) => rustix::fs::unlinkat(&at, path, AtFlags::REMOVEDIR),
            Link(old, new) => rustix::fs::linkat(&at, old, &at, new, AtFlags::empty()),
            Rename(old, new) => rustix::fs::renameat(&at, old, &at, new),
            NoReplace(old, new) => {
                rustix::fs::renameat_with(&at, old, &at, new, RenameFlags::NOREPLACE)
            }
            Exchange(old, new) => {
                rustix::fs::renameat_with(&at, old, &at, new, RenameFlags::EXCHANGE)
            }
            LinkFollow(old, new) => rustix::fs::linkat(&at, old, &at, new, AtFlags::SYMLINK_FOLLOW),
            Mknod(path) => {
                let file = rustix::fs::FileType::RegularFile;
                rustix::fs::mknodat(&at, path, file, Mode::from(0o644), 0)
            }
        };
        result.err().map_or(0, |err| err.raw_os_error())
    }

    fn contents(&self) -> Contents {
        let mut contents = Contents::new();
        self.list(Path::new(""), &mut contents);
        contents
    }

    fn list(&self, dir: &Path, contents: &mut Contents) {
        use std::os::unix::fs::MetadataExt;
        for entry in std::fs::read_dir(self.dir.path().join(dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            let meta = entry.metadata().unwrap();
            let (kind, target) = match meta.file_type() {
                kind if kind.is_dir() => ('d', String::new()),
                kind if kind.is_symlink() => {
                    let target = std::fs::read_link(entry.path()).unwrap();
                    ('l', target.to_str().unwrap().to_owned())
                }
                _ => ('f', String::new()),
            };
            // Directories count their links as their file system likes.
            let nlink = if kind == 'd' { 0 } else { meta.nlink() };
            let key = String::from_utf8(path.as_os_str().as_bytes().to_vec()).unwrap();
            contents.insert(key, (kind, target, nlink));
            if kind == 'd' {
                self.list(&path, contents);
            }
        }
    }
}

struct Ours {
    vfs: Vfs,
    ctx: Context,
}

impl Ours {
    /// In a directory of the tree, as the kernel's is: `..` does not meet a root.
    fn new(warm: bool) -> Ours {
        let fs = MemFs::new();
        let scratch = fs.add(fs.root(), b"scratch", directory(0o755)).unwrap();
        let mut dirs = BTreeMap::from([("", scratch)]);
        for (path, what) in TREE {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            let new = match what {
                "/" => directory(0o755),
                "" => file(0o644),
                target => symlink(target.as_bytes()),
            };
            let node = fs.add(dirs[dir], name.as_bytes(), new).unwrap();
            dirs.insert(path, node);
        }
        let vfs = Vfs::new(fs).unwrap();
        let ctx = vfs.context(Credentials::root());
        let scratch = vfs.lookup(&ctx, "/scratch", LookupFlags::FOLLOW).unwrap();
        let ctx = ctx.with_cwd(scratch);
        if warm {
            for path in ["missing", "missing/below"]
                .iter()
                .chain(TREE.map(|(path, _)| path).iter())
            {
                let _ = vfs.stat(&ctx, path, LookupFlags::empty());
            }
        }
        Ours { vfs, ctx }
    }

    fn apply(&self, change: Change<'_>) -> Outcome {
        let (vfs, ctx) = (&self.vfs, &self.ctx);
        let at = ctx.cwd();
        let rename = |old, new, flags| vfs.renameat2(ctx, (at, old), (at, new), flags);
        let result = match change {
            Create(path) => vfs.create(ctx, path, 0o644).map(drop),
            Mkdir(path) => vfs.mkdir(ctx, path, 0o755).map(drop),
            Symlink(target, path) => vfs.symlink(ctx, target, path).map(drop),
            Unlink(path) => vfs.unlink(ctx, path),
            Rmdir(path) => vfs.rmdir(ctx, path),
            Link(old, new) => vfs.link(ctx, old, new).map(drop),
            Rename(old, new) => vfs.rename(ctx, old, new),
            NoReplace(old, new) => rename(old, new, rcuwalk::RenameFlags::NOREPLACE),
            Exchange(old, new) => rename(old, new, rcuwalk::RenameFlags::EXCHANGE),
            LinkFollow(old, new) => vfs
                .linkat(ctx, (at, old), (at, new), LookupFlags::FOLLOW)
                .map(drop),
            Mknod(path) => vfs.mknod(ctx, path, FileType::Regular, 0o644, 0).map(drop),
        };
        result.err().map_or(0, |err| err.errno())
    }

    fn contents(&self) -> Contents {
        let mut contents = Contents::new();
        self.list(".", &mut contents);
        contents
    }

    fn list(&self, dir: &str, contents: &mut Contents) {
        for entry in self.vfs.read_dir(&self.ctx, dir).unwrap() {
            let name = String::from_utf8(entry.unwrap().name.into_vec()).unwrap();
            let path = format!("{dir}/{name}");
            let stat = |flags| self.vfs.stat(&self.ctx, &path, flags).unwrap();
            let attr = stat(LookupFlags::empty());
            assert_eq!(attr, stat(LookupFlags::REF_WALK), "WALK-1: {path}");
            let (kind, target, nlink) = match attr.kind {
                FileType::Directory => ('d', String::new(), 0),
                FileType::Symlink => {
                    let target = self.vfs.read_link(&self.ctx, &path).unwrap();
                    let target = String::from_utf8(target.into_vec()).unwrap();
                    ('l', target, attr.nlink.into())
                }
                _ => ('f', String::new(), attr.nlink.into()),
            };
            contents.insert(path[2..].to_owned(), (kind, target, nlink));
            if kind == 'd' {
                self.list(&path, contents);
            }
        }
    }
}

/// EDGE-1: every change on every combination of existing files ends as it does in the kernel:
/// same errno, same tree, with the names cached before or not.
#[test]
fn changes_end_as_in_the_kernel() {
    let longest = "n".repeat(255);
    let too_long = "n".repeat(256);
    let longest_path = format!("{}x", "./".repeat(2047));
    let too_long_path = format!("{}xx", "./".repeat(2047));
    assert_eq!((longest_path.len(), too_long_path.len()), (4095, 4096));
    let mut paths: Vec<String> = [
        "",
        "/",
        "//",
        ".",
        "..",
        "./",
        "../",
        "/..",
        "dir/.",
        "dir/..",
        "file/.",
        "file/..",
        "missing",
        "missing/",
        "missing//",
        "missing/below",
        "missing/.",
        "missing/..",
        "dir",
        "dir/",
        "dir//",
        "dir/in",
        "dir/in/",
        "dir/sub",
        "dir/sub/",
        "dir/sub/new",
        "dir/new",
        "dir/new/",
        "empty",
        "empty/",
        "empty/.",
        "empty/new",
        "empty/..",
        "file",
        "file/",
        "file/below",
        "link",
        "link/",
        "link/below",
        "dirlink",
        "dirlink/",
        "dirlink/new",
        "dirlink/.",
        "dangling",
        "dangling/",
        "dangling/x",
        "loop",
        "loop/",
        "loop/x",
        "dir/../file",
    ]
    .map(str::to_owned)
    .into();
    paths.extend([
        longest.clone(),
        too_long.clone(),
        longest_path,
        too_long_path,
    ]);
    paths.extend([
        format!("{too_long}/x"),
        format!("missing/{too_long}"),
        format!("{too_long}/"),
    ]);
    paths.extend([format!("dir/{longest}/"), format!("file/{too_long}")]);

    let mut changes = Vec::new();
    for path in &paths {
        changes.extend([Create(path), Mkdir(path), Unlink(path), Rmdir(path)]);
        changes.extend([Symlink("target", path), Symlink("", path), Mknod(path)]);
    }
    for old in &paths {
        for new in &paths {
            changes.extend([Link(old, new), Rename(old, new), NoReplace(old, new)]);
            changes.extend([Exchange(old, new), LinkFollow(old, new)]);
        }
    }
    let mut differ = Vec::new();
    let fresh = || (Kernel::new(), [Ours::new(false), Ours::new(true)]);
    let mut sides = fresh();
    for change in &changes {
        let (kernel, ours) = &sides;
        let theirs = kernel.apply(*change);
        let mut changed = theirs == 0;
        for (side, warm) in ours.iter().zip([false, true]) {
            let here = side.apply(*change);
            changed |= here == 0;
            if here != theirs {
                let text: String = format!("{change:?}").chars().take(90).collect();
                differ.push(format!("{text}: kernel {theirs}, ours {here}, warm {warm}"));
            } else if here == 0 && side.contents() != kernel.contents() {
                differ.push(format!("{change:?}: another tree, warm {warm}"));
            }
        }
        if changed {
            sides = fresh();
        }
    }
    assert!(
        differ.is_empty(),
        "EDGE-1: {} of {}:\n{}",
        differ.len(),
        changes.len(),
        differ.join("\n")
    );
}
