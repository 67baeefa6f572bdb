//! Directories.
pub(crate) mod hash;
