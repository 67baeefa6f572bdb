//! Directories.
pub(crate) mod block;
pub(crate) mod hash;
