//! The flags of a mount, and the writers through it.
//!
//! Every change announces itself first ([`Writing`]), and so does a file that is open for
//! writing. A mount becomes read-only only while there are none. The writers are counted in the
//! mount's replicas, so a thread writes a cache line that few others write.

use std::ops::Deref;

use rcuwalk_sync::Shared;
use rcuwalk_sync::atomic::{AtomicU32, SeqCst};
use rcuwalk_sync::model::spin_loop;

use super::{Mount, MountEntry, MountInfo};
use crate::error::{Error, Result};

bitflags::bitflags! {
    /// Options of a mount.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct MountFlags: u32 {
        /// Nothing is changed through it.
        #[doc(alias("MNT_READONLY", "MS_RDONLY", "ro"))]
        const READ_ONLY = 1;
        /// Protects from other users' files in sticky directories, and refuses further names
        /// for other users' files: like Linux with its four sysctls set to 1.
        #[doc(alias(
            "protected_symlinks",
            "protected_hardlinks",
            "protected_regular",
            "protected_fifos"
        ))]
        const PROTECTED_LINKS = 2;
        /// Reading leaves the time of the last access alone.
        #[doc(alias("MNT_NOATIME", "MS_NOATIME", "noatime"))]
        const NO_ATIME = 4;
    }
}

/// A mount is about to become read-only: writers wait for the outcome.
#[doc(alias = "MNT_WRITE_HOLD")]
const HOLD: u32 = 1 << 31;

/// A mount's flags.
pub(super) struct FlagWord(AtomicU32);

impl FlagWord {
    pub(super) fn new(flags: MountFlags) -> FlagWord {
        FlagWord(AtomicU32::new(flags.bits()))
    }
}

/// The right to change something through a mount, for as long as it lives; `M` is
/// whatever holds on to the mount meanwhile.
#[doc(alias("mnt_want_write", "mnt_drop_write"))]
#[must_use = "the mount may become read-only once it is dropped"]
pub(crate) struct Writing<M: Deref<Target = Shared<Mount>>>(M);

impl<M: Deref<Target = Shared<Mount>>> Writing<M> {
    /// Waits while another thread tries to make the mount read-only, which takes no time.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub(crate) fn new(mnt: M) -> Result<Writing<M>> {
        // SeqCst, here and in `set_flags`: this counts first and reads the flags second, and
        // `set_flags` does it the other way round, so that one of the two sees the other.
        mnt.writers.fetch_add(1, SeqCst);
        let writing = Writing(mnt);
        let mut flags = writing.0.flags.0.load(SeqCst);
        while flags & HOLD != 0 {
            spin_loop();
            flags = writing.0.flags.0.load(SeqCst);
        }
        if flags & MountFlags::READ_ONLY.bits() != 0 || writing.0.sb.read_only {
            return Err(Error::ReadOnly);
        }
        Ok(writing)
    }
}

impl<M: Deref<Target = Shared<Mount>>> Drop for Writing<M> {
    fn drop(&mut self) {
        self.0.writers.fetch_sub(1, SeqCst);
    }
}

impl MountInfo {
    /// The current flags.
    #[inline]
    pub(crate) fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.0.load(SeqCst))
    }

    /// True if nothing is changed through it, or in its file system.
    #[doc(alias = "mnt_is_readonly")]
    pub(crate) fn is_read_only(&self) -> bool {
        self.flags().contains(MountFlags::READ_ONLY) || self.sb.read_only
    }
}

impl MountEntry {
    /// Gives the mount other flags. The caller holds the namespace's lock.
    ///
    /// # Errors
    /// [`Error::Busy`] if it would become read-only and there are writers.
    #[doc(alias("mnt_make_readonly", "mnt_hold_writers"))]
    pub(crate) fn set_flags(&self, flags: MountFlags) -> Result<()> {
        let word = &self.info.flags.0;
        if !flags.contains(MountFlags::READ_ONLY) {
            word.store(flags.bits(), SeqCst);
            return Ok(());
        }
        let before = self.info.flags();
        word.store(before.bits() | HOLD, SeqCst);
        // Each writer takes itself off the replica that it counted itself on, so the sum
        // is zero only if there is none.
        let (now, outcome) = if self.is_written() {
            (before, Err(Error::Busy))
        } else {
            (flags, Ok(()))
        };
        word.store(now.bits(), SeqCst);
        outcome
    }

    fn is_written(&self) -> bool {
        let written = |mount: &super::MountRef| mount.writers.load(SeqCst) != 0;
        self.replicas.iter().any(written)
            || self
                .before
                .as_ref()
                .is_some_and(|before| before.is_written())
    }
}
