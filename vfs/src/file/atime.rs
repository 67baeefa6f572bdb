//! When a file counts as read: once a day, and after each change, as `relatime` has it.

use std::time::{Duration, SystemTime};

use super::File;
use crate::attr::{Attr, Timestamp};
use crate::mount::MountFlags;
use crate::open::OpenFlags;

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl File {
    /// Updates the access time after a read, if it is outdated.
    #[doc(alias("file_accessed", "touch_atime", "atime_needs_update"))]
    pub(super) fn accessed(&self) {
        let mnt = self.path.mnt();
        let unwanted = self.flags.contains(OpenFlags::NOATIME)
            || mnt.flags().contains(MountFlags::NO_ATIME)
            || mnt.is_read_only();
        if unwanted || !is_outdated(&self.attr(), SystemTime::now()) {
            return;
        }
        if let Ok(_writing) = self.target().want_write() {
            mnt.sb.fs().touch_atime(self.path.inode());
        }
    }
}

/// Whether the access time must be updated: it is older than the last change, or a day old.
#[doc(alias = "relatime_need_update")]
fn is_outdated(attr: &Attr, now: SystemTime) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || is_a_day_ago(attr.atime, now)
}

fn is_a_day_ago(time: Timestamp, now: SystemTime) -> bool {
    let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH) else {
        // Before 1970: the clock is not set, and nothing is a day ago.
        return false;
    };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    now.saturating_sub(time.sec) >= A_DAY.as_secs() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::FileType;

    fn at(sec: i64) -> Timestamp {
        Timestamp { sec, nsec: 0 }
    }

    /// EDGE-1: relatime as in fs/inode.c.
    #[test]
    fn a_time_is_kept_while_it_says_enough() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let attr = |atime, mtime, ctime| Attr {
            atime: at(atime),
            mtime: at(mtime),
            ctime: at(ctime),
            ..Attr::new(1, FileType::Regular, 0o644)
        };
        assert!(!is_outdated(&attr(999_999, 5, 5), now), "EDGE-1");
        assert!(is_outdated(&attr(999_999, 999_999, 5), now), "EDGE-1");
        assert!(is_outdated(&attr(999_999, 5, 1_000_000), now), "EDGE-1");
        assert!(is_outdated(&attr(1_000_000 - 86_400, 5, 5), now), "EDGE-1");
        assert!(!is_outdated(&attr(1_000_001 - 86_400, 5, 5), now), "EDGE-1");
    }
}
