//! The back end called directly, with the directory and the caller of the test's choice.
//!
//! Through the `Vfs` nothing can happen on the host between the lookup of a file and its
//! change. Here it can: a test looks the file up, changes the host, and then runs the
//! operation.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rcuwalk::{
    At, Attr, Caller, Credentials, Emit, FileHandle, FileSystem, Freshness, Inode, InodeRef, Name,
    OpenFlags, Result, SetAttr, SuperBlock, Vfs,
};
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::{Wrapped, Wrapper};

/// The back end, the mounted root, and the caller, for the time of one call.
pub(crate) struct BackEnd<'a> {
    pub(crate) fs: &'a HostFs,
    pub(crate) by: Caller<'a>,
    pub(crate) root: &'a Inode,
    host: PathBuf,
}

impl BackEnd<'_> {
    /// A path below the mounted root, as the host sees it.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.host.join(path)
    }

    /// The inode of a name in the root.
    pub(crate) fn find(&self, path: &str) -> InodeRef {
        let found = self.fs.lookup(self.by.sb, self.root, name(path));
        found
            .unwrap()
            .unwrap_or_else(|| panic!("{path} is missing"))
    }

    /// Where an inode was found.
    pub(crate) fn at<'b>(&'b self, path: &'b str, inode: &'b Inode) -> At<'b> {
        At::new(inode).below(self.root, name(path))
    }

    pub(crate) fn open(&self, path: &str, inode: &Inode, flags: OpenFlags) -> Opened {
        self.fs
            .open(&self.by, &self.at(path, inode), flags)
            .map(Opened)
            .unwrap()
    }

    /// A caller with other credentials.
    pub(crate) fn by<'b>(&'b self, credentials: &'b Credentials) -> Caller<'b> {
        Caller::new(self.by.sb, credentials)
    }
}

pub(crate) struct Opened(pub(crate) Box<dyn FileHandle>);

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Calls `test` with a back end whose root is `host`; returns its result.
pub(crate) fn with_back_end<T: Send + 'static>(
    host: &Path,
    fs: HostFs,
    test: impl FnOnce(BackEnd<'_>) -> T + Send + 'static,
) -> T {
    let result = Arc::new(Mutex::new(None));
    let hook = Hook {
        fs,
        test: Mutex::new(Some(Box::new({
            let (result, host) = (result.clone(), host.to_owned());
            move |fs: &HostFs, by: &Caller<'_>, root: &Inode| {
                let back_end = BackEnd {
                    fs,
                    by: *by,
                    root,
                    host,
                };
                *result.lock().unwrap() = Some(test(back_end));
            }
        }))),
    };
    let vfs = Vfs::new(Wrapped::new(hook)).unwrap();
    let ctx = vfs.context(Credentials::root());
    vfs.chmod(&ctx, "/", 0o755).unwrap();
    result.lock().unwrap().take().unwrap()
}

type Test = Box<dyn FnOnce(&HostFs, &Caller<'_>, &Inode) + Send>;

/// A back end that runs a test against the one within in a chmod of its root: there, it knows
/// the super block.
struct Hook {
    fs: HostFs,
    test: Mutex<Option<Test>>,
}

impl Wrapper for Hook {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.fs)
    }

    fn freshness(&self) -> Freshness {
        Freshness::EachUse
    }

    fn setattr(&self, by: &Caller<'_>, at: &At<'_>, _: &SetAttr) -> Result<()> {
        let test = self.test.lock().unwrap().take().unwrap();
        test(&self.fs, by, at.inode);
        Ok(())
    }
}

/// Asserts that the inode has the host's attributes of `path`; except for the time of the last
/// access, which this test's own reading changes.
pub(crate) fn assert_published(inode: &Inode, path: &Path) {
    let host = fs::symlink_metadata(path).unwrap();
    let attr = inode.attr();
    let ours = (
        (attr.ino, attr.st_mode(), attr.nlink, attr.uid, attr.gid),
        (attr.size, attr.blocks, attr.rdev),
        [attr.mtime, attr.ctime].map(|t| (t.sec, i64::from(t.nsec))),
    );
    let hosts = (
        (
            host.ino(),
            host.mode(),
            host.nlink() as u32,
            host.uid(),
            host.gid(),
        ),
        (host.size(), host.blocks(), host.rdev()),
        [
            (host.mtime(), host.mtime_nsec()),
            (host.ctime(), host.ctime_nsec()),
        ],
    );
    assert_eq!(ours, hosts, "EDGE-1: {}", path.display());
}

/// Mode, names, owner, group, size, device number and contents.
type Shape = (u32, u64, u32, u32, u64, u64, Vec<u8>);

/// Attributes that two files with the same history have in common.
pub(crate) fn shape(path: &Path) -> Option<Shape> {
    let meta = fs::symlink_metadata(path).ok()?;
    let contents = if meta.is_file() {
        fs::read(path).unwrap()
    } else if meta.is_symlink() {
        fs::read_link(path)
            .unwrap()
            .into_os_string()
            .into_encoded_bytes()
    } else {
        Vec::new()
    };
    let size = if meta.is_dir() { 0 } else { meta.size() };
    Some((
        meta.mode(),
        meta.nlink(),
        meta.uid(),
        meta.gid(),
        size,
        meta.rdev(),
        contents,
    ))
}

pub(crate) fn errno<T>(done: Result<T>) -> i32 {
    done.map_or_else(|err| err.errno(), |_| 0)
}

pub(crate) fn host_errno<T>(done: rustix::io::Result<T>) -> i32 {
    done.map_or_else(|err| err.raw_os_error(), |_| 0)
}

/// All attributes of this moment.
pub(crate) fn attr(inode: &Inode) -> Attr {
    inode.attr()
}
