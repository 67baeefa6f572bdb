//! The caches of inodes and names, also by many threads at once.

#[path = "../common/mod.rs"]
mod common;

mod cold;
mod evict;
mod hooks;
mod iget;
mod iget_races;
mod known;
mod nodes;
mod races;
