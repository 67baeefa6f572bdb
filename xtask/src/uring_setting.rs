//! That the kernel offers FUSE by io_uring, for as long as a step takes.

use std::fs;

const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether anybody may use io_uring: 0 if so.
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Dropped, the setting is what it was.
pub(crate) struct Offer(Vec<u8>);

impl Offer {
    /// `None` where there is no such setting, or it is not ours to change; or where the kernel
    /// would offer what cannot be taken.
    pub(crate) fn make() -> Option<Offer> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let may_be_used = fs::read(DISABLED).ok()?.starts_with(b"0");
        if !may_be_used || version(&release)? < (6, 15) {
            return None;
        }
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

/// Of `6.18.44-whatever`, the first two numbers.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v669\n"), Some((6, 18)));
        assert!(version("6.9.1") < Some((6, 15)) && version("10.0-rc1") > Some((6, 15)));
        assert_eq!(version("unknown"), None);
    }
}
