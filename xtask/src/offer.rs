//! That the kernel offers FUSE by io_uring, for as long as a step takes.

use std::fs;

const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Dropped, the setting is what it was.
pub(crate) struct Offer(Vec<u8>);

impl Offer {
    /// `None` where there is no such setting, or it is not ours to change.
    pub(crate) fn make() -> Option<Offer> {
        let before = fs::read(SETTING).ok()?;
        fs::write(SETTING, "Y").ok()?;
        Some(Offer(before))
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = fs::write(SETTING, &self.0);
    }
}
