//! Mounted trees, through the kernel: what programs do with files, and which requests come of
//! it.

mod common;

mod mounts {
    mod again;
    mod devices;
    mod fair;
    mod io_uring;
    mod known;
    mod mounted;
    mod privileges;
    mod removed;
    mod requests;
    mod writeback;
}
