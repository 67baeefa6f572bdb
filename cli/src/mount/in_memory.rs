//! SOURCE `memfs`: an empty tree in memory, and how large it may grow.
//!
//! Its limits and their defaults are those of tmpfs, so a user with write permission fills the
//! memory neither with contents nor with names.

use rcuwalk::{Budget, Credentials, Error, LookupFlags, Vfs};
use rcuwalk_memfs::{MemFs, limits};
use rustix::process::{getegid, geteuid};

use super::budget::memory;

/// `size=` and `nr_inodes=`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TreeLimits {
    /// In bytes; 0 for no limit.
    size: Option<u64>,
    /// 0 for no limit.
    inodes: Option<u64>,
}

impl TreeLimits {
    /// Reads an option of `-o`. `None` if `name` is another one.
    pub(crate) fn option(name: &str, value: &str) -> Option<Result<TreeLimits, String>> {
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
    pub(crate) fn or(self, others: TreeLimits) -> TreeLimits {
        TreeLimits {
            size: self.size.or(others.size),
            inodes: self.inodes.or(others.inodes),
        }
    }

    pub(crate) fn is_none(self) -> bool {
        self == TreeLimits::default()
    }

    /// Makes an empty tree that belongs to the mounting user: otherwise that user could not
    /// create anything in it.
    pub(crate) fn tree(self, budget: Budget) -> rcuwalk::Result<(Vfs, MemFs)> {
        let mut builder = MemFs::builder().as_tmpfs(memory() as u64);
        if let Some(size) = self.size {
            builder = builder.bytes(size);
        }
        if let Some(inodes) = self.inodes {
            builder = builder.inodes(inodes);
        }
        let fs = builder.build();
        let vfs = Vfs::with_budget(fs.clone(), budget)?;
        let root = vfs.context(Credentials::root());
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        vfs.chown(&root, "/", Some(user), Some(group), LookupFlags::empty())?;
        Ok((vfs, fs))
    }

    /// Limits a tree anew.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn change(self, fs: &MemFs) -> Result<(), String> {
        let changed = fs.set_limits(self.size, self.inodes);
        changed.map_err(|err| match err {
            Error::NoSpace => "more is in use than these limits allow".to_owned(),
            Error::Invalid => "it was mounted without this limit".to_owned(),
            err => err.to_string(),
        })
    }

    /// As the options that were given, for the process that serves the tree. The memory of the
    /// machine has been looked up by then.
    pub(crate) fn query(self) -> String {
        let size = self.size.map(|size| format!("size={size}"));
        let inodes = self.inodes.map(|inodes| format!("nr_inodes={inodes}"));
        let both: Vec<String> = size.into_iter().chain(inodes).collect();
        both.join("&")
    }

    /// Parses a [`query`](Self::query). `None` for anything else.
    pub(crate) fn of_query(query: &str) -> Option<TreeLimits> {
        let mut options = query.split('&');
        options.try_fold(TreeLimits::default(), |limits, option| {
            let (name, value) = option.split_once('=')?;
            Some(TreeLimits::option(name, value)?.ok()?.or(limits))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_arrive_as_they_were_given() {
        for (size, inodes) in [(Some(1 << 20), None), (None, Some(0)), (Some(7), Some(9))] {
            let limits = TreeLimits { size, inodes };
            assert_eq!(TreeLimits::of_query(&limits.query()), Some(limits));
        }
        for other in ["", "size", "size=x", "size=1&colour=2", "size=1&"] {
            assert_eq!(TreeLimits::of_query(other), None, "{other}");
        }
    }
}
