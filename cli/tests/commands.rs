//! All commands but those that mount.

mod common;

mod commands {
    mod bench;
    mod bench_iget;
    mod bench_image;
    mod handles;
    mod manual;
    mod resolve;
    mod scan;
    mod scan_changes;
    mod scan_formats;
}
