//! How much there may be, and how much there is.
//!
//! Counted as tmpfs counts: contents by the page, whether it holds anything or is only
//! promised; a link's target that is too long for an inode takes one too. Inodes in a
//! currency of their own, [`INODE`] each: a further name of a file costs as much as an
//! inode, and an extended attribute what it takes. Unlimited or not, everything is
//! counted, and everything that went is given back.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rcuwalk::{Error, Result};

use crate::slabs::Slabs;

/// What contents are counted in.
pub(crate) const PAGE: usize = 4096;

/// What an inode costs, in bytes of the space for inodes.
#[doc(alias = "BOGO_INODE_SIZE")]
pub(crate) const INODE: u64 = 1024;

/// The budgets of a file system.
pub(crate) struct Space {
    pages: Account,
    inodes: Account,
    /// The memory of the pages that hold bytes.
    pub(crate) slabs: Slabs,
}

/// One budget. A plain count, not one per thread: it is exact at its end.
struct Account {
    /// 0: no limit.
    limit: AtomicU64,
    used: AtomicU64,
}

impl Space {
    /// 0 for either: no limit.
    pub(crate) fn new(bytes: u64, inodes: u64) -> Space {
        Space {
            pages: Account::new(page_limit(bytes)),
            inodes: Account::new(inode_limit(inodes)),
            slabs: Slabs::default(),
        }
    }

    /// Sets new limits, both or neither; `None` leaves one as it is. Another thread that takes
    /// some at the same time may do so by the old limit.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if more than that is used, [`Error::Invalid`] if there was no limit.
    #[doc(alias = "shmem_reconfigure")]
    pub(crate) fn set_limits(&self, bytes: Option<u64>, inodes: Option<u64>) -> Result<()> {
        let limits = [
            (&self.pages, bytes.map(page_limit)),
            (&self.inodes, inodes.map(inode_limit)),
        ];
        let limits = limits.map(|(account, limit)| (account, limit.unwrap_or(account.limit())));
        for (account, limit) in limits {
            account.may_be(limit)?;
        }
        for (account, limit) in limits {
            account.limit.store(limit, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn take_pages(&self, pages: u64) -> Result<()> {
        self.pages.take(pages)
    }

    pub(crate) fn give_pages(&self, pages: u64) {
        self.pages.give(pages);
    }

    /// Bytes of the space for inodes: [`INODE`] for each of those.
    pub(crate) fn take_inode_bytes(&self, bytes: u64) -> Result<()> {
        self.inodes.take(bytes)
    }

    pub(crate) fn give_inode_bytes(&self, bytes: u64) {
        self.inodes.give(bytes);
    }

    /// Pages in all, and those in use; 0 in all where there is no limit.
    pub(crate) fn pages(&self) -> (u64, u64) {
        (self.pages.limit(), self.pages.used.load(Relaxed))
    }

    /// As above for inodes, in bytes.
    pub(crate) fn inode_bytes(&self) -> (u64, u64) {
        (self.inodes.limit(), self.inodes.used.load(Relaxed))
    }
}

fn page_limit(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64)
}

fn inode_limit(inodes: u64) -> u64 {
    inodes.saturating_mul(INODE)
}

impl Account {
    fn new(limit: u64) -> Account {
        Account {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
        }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    fn may_be(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Ok(());
        }
        match self.limit() {
            0 => Err(Error::Invalid),
            _ if self.used.load(Relaxed) > limit => Err(Error::NoSpace),
            _ => Ok(()),
        }
    }

    // Relaxed, all of it: a number that nothing else is read on the strength of.
    fn take(&self, amount: u64) -> Result<()> {
        let limit = self.limit();
        if limit == 0 {
            self.used.fetch_add(amount, Relaxed);
            return Ok(());
        }
        let more = |used: u64| used.checked_add(amount).filter(|all| *all <= limit);
        match self.used.try_update(Relaxed, Relaxed, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::NoSpace),
        }
    }

    fn give(&self, amount: u64) {
        if amount > 0 {
            self.used.fetch_sub(amount, Relaxed);
        }
    }
}
