//! Names that change behind the caches, and back ends that are asked about them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../watched_support/mod.rs"]
mod watched_support;

mod changing;
mod meddling;
mod spliced;
mod ttl;
mod watched;
