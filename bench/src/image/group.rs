//! A control group of limited memory: the kernel's walk with a cache of an eighth.
//!
//! The kernel charges dentries and inodes to the group of the task whose lookup made them, and
//! reclaims them when the group is at its limit. So the thread that walks enters the group, and
//! the threads that it starts are in it from the start. Memory that was charged before stays where
//! it was; the image's blocks are among it, as they are cached before.
//!
//! A group at its limit must not bring the OOM killer: freed inodes count until a grace period has
//! ended, so reclaim may find nothing. Of version 1, allocations fail with `ENOMEM`, and the walk
//! [tries again](super::kernel); page faults are charged to the process, which is not in the group.
//! Version 2 knows processes only: the whole process enters, and `memory.high` slows it down.
//!
//! The group lies below the root of the hierarchy, and [`Group`] removes it when dropped. A killed
//! process leaves an empty group behind, which rmdir(1) removes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A control group of our own.
pub(super) struct Group {
    dir: PathBuf,
    /// The group that the process came from.
    home: PathBuf,
    files: Files,
}

/// The names of the controller's files.
struct Files {
    /// A task that writes a zero enters.
    members: &'static str,
    /// Where a one turns the OOM killer off.
    oom: Option<&'static str>,
    limit: &'static str,
    peak: &'static str,
}

const V1: Files = Files {
    members: "tasks",
    oom: Some("memory.oom_control"),
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
};

const V2: Files = Files {
    members: "cgroup.procs",
    oom: None,
    limit: "memory.high",
    peak: "memory.peak",
};

impl Group {
    /// The smallest limit: the threads' stacks, and the process itself of version 2, need some.
    const LEAST: u64 = 32 << 20;

    /// Makes a group without a limit.
    ///
    /// # Errors
    ///
    /// Says which step failed: the caller shows it in place of figures.
    pub(super) fn new() -> io::Result<Group> {
        let groups = fs::read_to_string("/proc/thread-self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let Some((root, group, files)) = memory_hierarchy(&groups, &mounts) else {
            return Err(io::Error::other(
                "no hierarchy of control groups is mounted",
            ));
        };
        let home = Some(root.join(group)).filter(|home| home.is_dir());
        let dir = root.join(format!("rcuwalk-bench-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|err| said("make", &dir, err))?;
        let group = Group {
            home: home.unwrap_or(root),
            dir,
            files,
        };
        // Of version 2, where the parent does not give the controller to its children.
        match group.dir.join(group.files.peak).exists() {
            true => Ok(group),
            false => Err(io::Error::other(format!(
                "{} has no {}",
                group.dir.display(),
                group.files.peak
            ))),
        }
    }

    /// Moves this thread into the group until the result is dropped.
    pub(super) fn enter(&self) -> io::Result<Inside<'_>> {
        self.move_to(&self.dir)
            .map_err(|err| said("enter", &self.dir, err))?;
        Ok(Inside { group: self })
    }

    /// The most bytes that were charged at once.
    pub(super) fn peak(&self) -> io::Result<u64> {
        let file = self.dir.join(self.files.peak);
        let bytes = fs::read_to_string(&file).map_err(|err| said("read", &file, err))?;
        let bytes = bytes.trim().parse();
        bytes.map_err(|_| io::Error::other(format!("{} is no number", file.display())))
    }

    /// Limits the group's memory to `bytes` or [`LEAST`](Self::LEAST). Returns the limit.
    pub(super) fn limit(&self, bytes: u64) -> io::Result<u64> {
        let write = |name, value: &str| {
            let file = self.dir.join(name);
            fs::write(&file, value).map_err(|err| said("write", &file, err))
        };
        if let Some(oom) = self.files.oom {
            write(oom, "1")?;
        }
        let bytes = bytes.max(Self::LEAST);
        write(self.files.limit, &bytes.to_string())?;
        Ok(bytes)
    }

    fn move_to(&self, group: &Path) -> io::Result<()> {
        fs::write(group.join(self.files.members), "0")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A thread that has just ended may be in the group for another moment.
        for _ in 0..5000 {
            match fs::remove_dir(&self.dir) {
                Err(err) if err.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(1));
                }
                _ => return,
            }
        }
    }
}

/// This thread is in the group; dropping this takes it back.
pub(super) struct Inside<'a> {
    group: &'a Group,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // If it fails, the group stays until this thread ends.
        let _ = self.group.move_to(&self.group.home);
    }
}

fn said(what: &str, file: &Path, err: io::Error) -> io::Error {
    io::Error::new(
        err.kind(),
        format!("cannot {what} {}: {err}", file.display()),
    )
}

/// Finds the root of the hierarchy that has the memory controller, this thread's group in it,
/// relative to the root, and the names of the controller's files. `groups` and `mounts` are
/// `/proc/thread-self/cgroup` and `/proc/self/mountinfo`.
fn memory_hierarchy<'a>(groups: &'a str, mounts: &str) -> Option<(PathBuf, &'a str, Files)> {
    // `4:memory:/path` and `0::/path`
    let groups = groups.lines().map(|line| line.splitn(3, ':'));
    let mut groups = groups.filter_map(|mut line| {
        let (_, controllers, group) = (line.next()?, line.next()?, line.next()?);
        Some((controllers, group.trim_start_matches('/')))
    });
    let memory = |of: &str| of.split(',').any(|controller| controller == "memory");
    let v1 = groups.clone().find(|(controllers, _)| memory(controllers));
    if let Some((_, group)) = v1 {
        let root = mount_point(mounts, |kind, options| kind == "cgroup" && memory(options))?;
        return Some((root, group, V1));
    }
    let (_, group) = groups.find(|(controllers, _)| controllers.is_empty())?;
    let root = mount_point(mounts, |kind, _| kind == "cgroup2")?;
    Some((root, group, V2))
}

/// Returns where the file system is mounted whose type and options `wanted` accepts.
fn mount_point(mounts: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    // `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`
    mounts.lines().find_map(|line| {
        let (mount, of) = line.split_once(" - ")?;
        let mut of = of.split(' ');
        let (kind, _source, options) = (of.next()?, of.next()?, of.next()?);
        wanted(kind, options).then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_returns_from_the_group_and_the_group_goes() {
        if rcuwalk_testkit::lacks_root() {
            return;
        }
        let Ok(group) = Group::new() else {
            return rcuwalk_testkit::skip("needs control groups with a memory controller");
        };
        let here = || fs::read_to_string("/proc/thread-self/cgroup").unwrap();
        let (before, dir) = (here(), group.dir.clone());
        let name = dir.file_name().unwrap().to_str().unwrap();
        let inside = group.enter().unwrap();
        assert!(here().contains(name));
        drop(inside);
        assert_eq!(here(), before);
        assert_eq!(group.limit(1).unwrap(), Group::LEAST);
        assert!(group.peak().is_ok());
        drop(group);
        assert!(!dir.exists());
    }

    #[test]
    fn the_memory_controller_is_found_in_both_versions() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let found = |groups| {
            let (root, group, files) = memory_hierarchy(groups, mounts)?;
            Some((root.to_str().unwrap().to_owned(), group, files.limit))
        };
        let v1 = "5:cpu:/\n4:memory:/user/me\n0::/\n";
        let at = "/sys/fs/cgroup/memory".to_owned();
        assert_eq!(found(v1), Some((at, "user/me", "memory.limit_in_bytes")));
        let at = "/sys/fs/cgroup/unified".to_owned();
        assert_eq!(
            found("0::/me.scope\n"),
            Some((at, "me.scope", "memory.high"))
        );
        assert_eq!(found("5:cpu:/\n"), None);
    }
}
