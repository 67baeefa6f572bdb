//! SOURCE `memfs`: an empty tree in memory, and how large it may grow.
//!
//! Its limits and their defaults are those of tmpfs, so a user who may write to it fills neither
//! the memory with contents nor with names.

use rcuwalk::{Budget, Credentials, LookupFlags, Vfs};
use rcuwalk_memfs::{MemFs, limits};
use rustix::process::{getegid, geteuid};

use super::budget::memory;

/// `size=` and `nr_inodes=`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TreeLimits {
    /// In bytes; 0 for no limit.
    size: Option<u64>,
    /// 0 for no limit.
    inodes: Option<u64>,
}

impl TreeLimits {
    /// Reads an option of `-o`. `None` if `name` is another one.
    pub(super) fn option(name: &str, value: &str) -> Option<Result<TreeLimits, String>> {
        let none = TreeLimits::default();
        let limits = match name {
            "size" => limits::size(value, memory() as u64).map(|size| TreeLimits {
                size: Some(size),
                ..none
            }),
            "nr_inodes" => limits::inodes(value).map(|inodes| TreeLimits {
                inodes: Some(inodes),
                ..none
            }),
            _ => return None,
        };
        Some(limits.ok_or_else(|| format!("{value:?} is no limit of tmpfs")))
    }

    /// These, and `others` where they say nothing.
    pub(super) fn or(self, others: TreeLimits) -> TreeLimits {
        TreeLimits {
            size: self.size.or(others.size),
            inodes: self.inodes.or(others.inodes),
        }
    }

    pub(super) fn is_none(self) -> bool {
        self == TreeLimits::default()
    }

    /// Makes an empty tree that belongs to the user who mounts it: nobody else could make
    /// anything in it.
    pub(super) fn tree(self, budget: Budget) -> rcuwalk::Result<Vfs> {
        let mut builder = MemFs::builder().as_tmpfs(memory() as u64);
        if let Some(size) = self.size {
            builder = builder.bytes(size);
        }
        if let Some(inodes) = self.inodes {
            builder = builder.inodes(inodes);
        }
        let vfs = Vfs::with_budget(builder.build(), budget)?;
        let root = vfs.context(Credentials::root());
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        vfs.chown(&root, "/", Some(user), Some(group), LookupFlags::empty())?;
        Ok(vfs)
    }
}
