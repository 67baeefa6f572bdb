//! Walks: what a path leads to, listings, and mounts.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod cached_listing;
mod large_dirs;
mod listing;
mod lookup_around;
mod mount;
mod rcu_walk;
mod trace;
