//! Prints the tree that the paths of a list need, taken from this machine:
//!
//! `cargo run -p rcuwalk-bench --example capture_tree -- paths.txt > tree.txt`

use std::error::Error;
use std::path::{Path, PathBuf};

use rcuwalk_bench::paths::PathList;
use rcuwalk_bench::tree::TreeSpec;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os()
        .nth(1)
        .ok_or("usage: capture_tree PATHS-FILE")?;
    let paths = PathList::from_file(&PathBuf::from(file))?;
    let tree = TreeSpec::capture(paths.as_slice(), Path::new("/"))?;
    print!("{}", tree.to_text());
    Ok(())
}
