//! The list of mounts, from /proc/self/mountinfo: the kernel answers without asking any file
//! system, so that a mount whose process is gone or stuck cannot keep us waiting.
//!
//! A mount to change is found by the kernel's id of the mount ([`ours`]), not by its path: that
//! leads elsewhere once a user renames a directory or puts a link there.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rcuwalk_fuse::mount_point::MountPoint;

use crate::failure::Words;

/// The kernel's name of our file system type.
pub(crate) const OURS: &str = "fuse.rcuwalk";

/// One mount.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MountInfo {
    /// The kernel's number for the mount, which no other one has while it is there.
    pub(crate) id: u64,
    /// Major and minor number, `0:59`: no other mounted file system has it.
    pub(crate) device: String,
    pub(crate) at: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: OsString,
    /// Those of the mount and of the file system, each once.
    pub(crate) options: Vec<String>,
}

impl MountInfo {
    pub(crate) fn is_ours(&self) -> bool {
        self.kind == OURS
    }

    /// The user who mounted it, by FUSE's option.
    pub(crate) fn owner(&self) -> Option<u32> {
        let id = |option: &String| option.strip_prefix("user_id=")?.parse().ok();
        self.options.iter().find_map(id)
    }
}

/// All mounts of this process's namespace; of several on one directory, the last is on top.
pub(crate) fn mounts() -> io::Result<Vec<MountInfo>> {
    let text = rcuwalk_procfs::read("self/mountinfo").map_err(|err| {
        let why = format!("cannot read /proc/self/mountinfo: {}", Words(&err));
        io::Error::new(err.kind(), why)
    })?;
    Ok(parse(&text))
}

/// The mount visible at `at`, a path as [`resolve`] makes it.
pub(crate) fn uppermost<'m>(mounts: &'m [MountInfo], at: &Path) -> Option<&'m MountInfo> {
    mounts.iter().rev().find(|mount| mount.at == at)
}

/// The mount of ours that is seen at `path`, with its mount point held.
///
/// # Errors
/// A message for the user: another mount is there, or none.
pub(crate) fn ours(path: &Path) -> Result<(MountPoint, MountInfo), String> {
    let words = |err: io::Error| Words(&err).to_string();
    let at = resolve(path).map_err(words)?;
    let place = MountPoint::open(&at).map_err(words)?;
    let mounts = mounts().map_err(words)?;
    let id = place.id().map_err(words)?;
    let there = match mounts.into_iter().find(|mount| Some(mount.id) == id) {
        // A directory of a mount that is seen elsewhere has that one's id, too.
        Some(mount) if mount.at == at => mount,
        _ => return Err("nothing is mounted there".to_owned()),
    };
    match there.is_ours() {
        true => Ok((place, there)),
        false => Err("something else is mounted there".to_owned()),
    }
}

/// Resolves the path of a mount point: without links, and without asking the file system
/// mounted there.
pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    // As many as the kernel follows.
    for _ in 0..40 {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            // `/`, or it ends in `..`.
            return path.canonicalize();
        };
        let parent = parent.canonicalize()?;
        let found = parent.join(name);
        // Asks no file system: the root of a mount on it is a directory.
        match fs::read_link(&found) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(found),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

fn parse(text: &[u8]) -> Vec<MountInfo> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(one).collect()
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/root rw,errors=continue`.
fn one(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = text(fields.nth(1)?);
    let at = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let of_mount = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let kind = text(fields.next()?);
    let source = OsString::from_vec(unescape(fields.next()?));
    let mut options: Vec<String> = Vec::new();
    for list in [of_mount, fields.next().unwrap_or_default()] {
        for option in list.split(|byte| *byte == b',') {
            let option = text(option);
            // Both begin with `ro` or `rw`: the mount's own counts.
            if !option.is_empty() && !["ro", "rw"].contains(&&*option) || options.is_empty() {
                options.push(option);
            }
        }
    }
    Some(MountInfo {
        id,
        device,
        at,
        kind,
        source,
        options,
    })
}

/// Blanks and the like are octal there: `\040`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        let code = match (first, behind) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                rest = after;
                (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')
            }
            _ => *first,
        };
        out.push(code);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_mount_of_that_name_counts() {
        let mounts = parse(
            b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
              2 1 0:5 / /a\\040b rw shared:3 - tmpfs t rw\n\
              3 2 0:6 / /a\\040b ro,nosuid - fuse.rcuwalk my\\040src rw,user_id=7,group_id=0\n",
        );
        let kind = |at: &str| uppermost(&mounts, Path::new(at)).map(|mount| &*mount.kind);
        assert_eq!(kind("/a b"), Some(OURS));
        assert_eq!(kind("/"), Some("ext4"));
        assert_eq!(kind("/a"), None);
        let ours = &mounts[2];
        assert_eq!((&*ours.device, ours.owner()), ("0:6", Some(7)));
        assert_eq!(ours.source, "my src");
        assert_eq!(ours.options.join(","), "ro,nosuid,user_id=7,group_id=0");
        assert_eq!(unescape(b"\\\\ \\9 \\134"), b"\\\\ \\9 \\");
    }

    #[test]
    fn a_mount_point_is_found_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("b", here.join("a")).unwrap();
        std::os::unix::fs::symlink(&here, here.join("b")).unwrap();
        std::os::unix::fs::symlink("round", here.join("round")).unwrap();
        assert_eq!(resolve(&here.join("a")).unwrap(), here);
        assert_eq!(resolve(&here.join("none")).unwrap(), here.join("none"));
        assert!(resolve(&here.join("round")).is_err());
    }

    #[test]
    fn a_mount_point_is_reached_by_no_link_and_taken_for_no_other() {
        use rustix::mount::UnmountFlags;
        let all = mounts().unwrap();
        let proc = uppermost(&all, Path::new("/proc")).unwrap();
        let place = MountPoint::open(Path::new("/proc")).unwrap();
        assert_eq!(place.id().unwrap(), Some(proc.id));
        // Another mount's id: nothing is unmounted, and no flags are changed.
        for flags in [UnmountFlags::empty(), UnmountFlags::DETACH] {
            let refused = place.unmount(Some(proc.id + 1), flags);
            assert_eq!(refused, Err(rustix::io::Errno::INVAL));
        }
        let refused = place.remount(Some(proc.id + 1), |_| unreachable!());
        assert_eq!(refused, Err(rustix::io::Errno::INVAL));
        assert_eq!(mounts().unwrap().len(), all.len());
        // Not by a link in the middle, and not by one at the end.
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/", here.join("root")).unwrap();
        std::os::unix::fs::symlink("/proc", here.join("proc")).unwrap();
        assert!(MountPoint::open(&here.join("root/proc")).is_err());
        assert!(MountPoint::open(&here.join("proc")).unwrap().id().is_err());
        // A directory that is not a mount point has the id of the mount that it lies in.
        assert_eq!(ours(&here).unwrap_err(), "nothing is mounted there");
        assert_eq!(
            ours(Path::new("/proc")).unwrap_err(),
            "something else is mounted there"
        );
        // It is held: renamed, the directory above is still the same one.
        std::fs::create_dir_all(here.join("a/b")).unwrap();
        let held = MountPoint::open(&here.join("a/b")).unwrap();
        std::fs::rename(here.join("a"), here.join("c")).unwrap();
        assert!(held.id().is_ok());
    }
}
