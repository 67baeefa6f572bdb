//! What the kernel keeps, and what it takes back: names, attributes and listings that it caches,
//! and requests whose callers get a signal. These tests measure time, so the busy ones of
//! `mounts` run in another program.

mod common;

mod kernel {
    mod interrupt;
    mod listings;
    mod notice;
}
