//! Whether the kernel offers io_uring to daemons that are mounted.

use std::fs;
use std::io;
use std::path::PathBuf;

/// `Y` or `N`, for all that is mounted from then on.
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Has the kernel offer it, until this is dropped: then the setting is what it was.
#[derive(Debug)]
pub(super) struct Offer {
    setting: PathBuf,
    /// `None` if nothing was changed.
    before: Option<Vec<u8>>,
}

impl Offer {
    /// # Errors
    /// There is no such setting (Linux 6.14 has it, if built so), or it is not ours to change.
    pub(super) fn make() -> io::Result<Offer> {
        Offer::by(SETTING.into())
    }

    fn by(setting: PathBuf) -> io::Result<Offer> {
        let before = fs::read(&setting)?;
        let is_on = before.first() == Some(&b'Y');
        if !is_on {
            fs::write(&setting, "Y")?;
        }
        Ok(Offer {
            setting,
            before: (!is_on).then_some(before),
        })
    }

    /// Whether it is made for as long as this lives, and was not before.
    pub(super) fn is_ours(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for Offer {
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
            let offer = Offer::by(setting.path().to_owned()).unwrap();
            assert!(now().starts_with('Y'));
            assert_eq!(offer.is_ours(), before == "N\n");
            drop(offer);
            assert_eq!(now(), before);
        }
        assert!(Offer::by("/no/such/setting".into()).is_err());
    }
}
