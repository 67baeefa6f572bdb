//! The commands `mount`, `umount`, `mounts` and `serve`.

mod common;

mod mounts {
    mod budget;
    mod daemon;
    mod guest;
    mod list;
    mod many;
    mod metrics;
    mod mount;
    mod nfs;
    mod pushed;
    mod serve;
    mod users;
}
