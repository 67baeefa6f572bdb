//! What the tests of several crates share.
//!
//! | module      | what is in it                                                          |
//! |-------------|------------------------------------------------------------------------|
//! | [`skip`](mod@skip) | a test that cannot run here reports that                        |
//! | [`wrapper`] | a back end around another one, of which a test replaces single methods |
//! | [`acl`](mod@acl) | POSIX ACLs as extended attributes                                |
//! | [`hooked`]  | the same with one closure, called before each call                     |
//! | [`iget`](mod@iget) | inodes for back ends that compute their trees                   |
//! | [`image`]   | a file system of its own for a test, on a loop device                  |
//! | [`listings`] | DIR-1 as a property of whatever has directories                       |
//! | [`rng`]     | random numbers that follow from a seed                                 |
//! | [`unmount`] | what a test has mounted is unmounted, however the test ends            |
//! | [`wait`]    | waiting for an event, for a minute at most                             |
//!
//! Dependents name this crate by its path alone, among their dev-dependencies: it depends on
//! `rcuwalk` and is never published.

#![forbid(unsafe_code)]

pub mod acl;
pub mod hooked;
pub mod iget;
pub mod image;
pub mod listings;
pub mod rng;
pub mod skip;
pub mod unmount;
pub mod wait;
pub mod wrapper;

pub use acl::acl;
pub use hooked::Hooked;
pub use iget::iget;
pub use image::Image;
pub use listings::{InVfs, Names, OnHost, check_listings};
pub use rng::Rng;
pub use skip::{has, is_root, lacks_fuse, lacks_root, skip};
pub use unmount::Unmount;
pub use wait::{StopOnDrop, comes_true, setting, wait_until};
pub use wrapper::{Call, Wrapped, Wrapper};
