//! A directory of the host, mounted: what its users find and change, and what other processes
//! change meanwhile.

mod common;

mod host {
    mod callers;
    mod change;
    mod files;
    mod found_again;
    mod found_again_stress;
    mod handles;
    mod held_directories;
    mod limits;
    mod operations;
    mod races;
    mod read_dir;
    mod searching;
    mod stale_cache;
    mod through_the_vfs;
    mod walk;
    mod without_a_name;
}
