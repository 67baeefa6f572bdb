//! Memfs as a user sees it: it behaves as tmpfs does.

mod as_tmpfs;
mod budget;
mod changes_match_the_kernel;
mod handles;
