//! What the tests of several crates share.
//!
//! | module      | what is in it                                                          |
//! |-------------|------------------------------------------------------------------------|
//! | [`skip`](mod@skip) | a test that cannot run here reports that                        |
//! | [`wrapper`] | a back end around another one, of which a test replaces single methods |
//! | [`hooked`]  | the same with one closure, called before each call                     |
//! | [`iget`](mod@iget) | inodes for back ends that compute their trees                   |
//!
//! Dependents name this crate by its path alone, among their dev-dependencies: it depends on
//! `rcuwalk` and is never published.

#![forbid(unsafe_code)]

pub mod hooked;
pub mod iget;
pub mod skip;
pub mod wrapper;

pub use hooked::Hooked;
pub use iget::iget;
pub use skip::{is_root, lacks_fuse, lacks_root, skip};
pub use wrapper::{Call, Wrapped, Wrapper};
