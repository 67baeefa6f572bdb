//! Names, attributes and listings in the kernel's caches, and requests that a signal interrupts.
//! These tests depend on time more than others, so `mounts`, which keeps the machine busy, is a
//! program of its own.

mod common;

mod kernel {
    mod interrupt;
    mod listings;
    mod notice;
}
