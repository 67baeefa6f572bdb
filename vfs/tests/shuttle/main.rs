//! Models for shuttle: see `shuttle_support`.
#![cfg(shuttle)]

#[path = "../shuttle_support/mod.rs"]
mod shuttle_support;
#[path = "../watched_support/mod.rs"]
mod watched_support;

mod inode;
mod known;
mod lifetimes;
mod walk;
mod watched;
