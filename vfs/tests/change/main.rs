//! Changes of names, attributes and contents; several beside tmpfs.

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod changes;
mod copy;
mod create_presumed;
mod files;
mod made;
mod setattr;
mod sticky;
mod xattrs;
