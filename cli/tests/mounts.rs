//! The commands `mount`, `umount` and `mounts`.

mod common;

mod mounts {
    mod budget;
    mod daemon;
    mod list;
    mod many;
    mod metrics;
    mod mount;
    mod pushed;
    mod users;
}
