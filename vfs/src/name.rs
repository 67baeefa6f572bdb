//! One component of a path, checked once and then trusted.
//!
//! The type is the check: a [`Name`] cannot hold `/`, NUL, `.` or `..`, is not
//! empty and not longer than [`NAME_MAX`]. A back end that is handed a `Name`
//! can pass it to a system call without looking at it again.

use std::fmt;

use crate::error::{Error, Result};

/// The longest component, in bytes.
pub const NAME_MAX: usize = 255;

/// The longest path, in bytes, with the NUL a C caller would add.
pub const PATH_MAX: usize = 4096;

/// One component of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks `bytes` and wraps them.
    ///
    /// # Errors
    /// [`Error::NameTooLong`] past [`NAME_MAX`]; [`Error::Invalid`] for anything but one
    /// component: empty, `.`, `..`, or with a `/` or NUL inside.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>> {
        if bytes.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(Error::Invalid);
        }
        Ok(Name(bytes))
    }

    /// The bytes, without any terminator.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WALK-3: only a single component becomes a `Name`.
    #[test]
    fn a_name_is_one_component() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", b"\0"] {
            assert!(
                matches!(Name::new(bad), Err(Error::Invalid)),
                "WALK-3: {bad:?}"
            );
        }
        assert!(matches!(Name::new(&[b'x'; 256]), Err(Error::NameTooLong)));
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert!(Name::new(b"...").is_ok() && Name::new(b"..a").is_ok());
    }
}
