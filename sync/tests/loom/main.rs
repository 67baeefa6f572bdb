//! Models for loom: see `loom_support`.
#![cfg(loom)]

#[path = "../loom_support/mod.rs"]
mod loom_support;

mod hash;
mod last;
mod rcu;
mod seq;
mod shared;
