//! Turns FUSE by io_uring on for the time of one step.

use std::fs;

const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// 0 if every process may use io_uring.
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// The old value of the setting, which dropping this restores.
pub(crate) struct UringSetting(Vec<u8>);

impl UringSetting {
    /// Returns `None` if the setting does not exist or cannot be changed, or if this process
    /// could not use io_uring anyway.
    pub(crate) fn turn_on() -> Option<UringSetting> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let may_be_used = fs::read(DISABLED).ok()?.starts_with(b"0");
        if !may_be_used || version(&release)? < (6, 15) {
            return None;
        }
        let before = fs::read(SETTING).ok()?;
        fs::write(SETTING, "Y").ok()?;
        Some(UringSetting(before))
    }
}

impl Drop for UringSetting {
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
