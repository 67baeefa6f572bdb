//! Whether the kernel offers io_uring to daemons that are mounted.

use std::fs;
use std::io;
use std::path::PathBuf;

/// `Y` or `N`, for all that is mounted from then on.
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Turns the setting on; dropping this restores the old value.
#[derive(Debug)]
pub(super) struct UringSetting {
    setting: PathBuf,
    /// `None` if nothing was changed.
    before: Option<Vec<u8>>,
}

impl UringSetting {
    /// # Errors
    /// There is no such setting (Linux 6.14 has it, if built so), or it is not ours to change.
    pub(super) fn turn_on() -> io::Result<UringSetting> {
        UringSetting::turn_on_at(SETTING.into())
    }

    fn turn_on_at(setting: PathBuf) -> io::Result<UringSetting> {
        let before = fs::read(&setting)?;
        let is_on = before.first() == Some(&b'Y');
        if !is_on {
            fs::write(&setting, "Y")?;
        }
        Ok(UringSetting {
            setting,
            before: (!is_on).then_some(before),
        })
    }

    /// True if the setting was off before.
    pub(super) fn is_changed(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for UringSetting {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(&self.setting, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_put_back() {
        let setting = tempfile::NamedTempFile::new().unwrap();
        let now = || fs::read_to_string(setting.path()).unwrap();
        for before in ["N\n", "Y\n"] {
            fs::write(setting.path(), before).unwrap();
            let on = UringSetting::turn_on_at(setting.path().to_owned()).unwrap();
            assert!(now().starts_with('Y'));
            assert_eq!(on.is_changed(), before == "N\n");
            drop(on);
            assert_eq!(now(), before);
        }
        assert!(UringSetting::turn_on_at("/no/such/setting".into()).is_err());
    }
}
