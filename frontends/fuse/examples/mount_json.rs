//! A FUSE mount of a custom back end: the JSON document of rcuwalk's example `json_tree`.
//!
//! `cargo run -p rcuwalk-fuse --example mount_json DOCUMENT.json DIRECTORY` serves until the
//! directory is unmounted (`umount`, `fusermount3 -u`).

use std::error::Error;
use std::thread;
use std::time::Duration;

use rcuwalk::Vfs;
use rcuwalk_fuse::{Options, mount};

#[path = "../../../vfs/examples/json_tree.rs"]
mod json_tree;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(document), Some(directory)) = (args.next(), args.next()) else {
        return Err("usage: mount_json DOCUMENT.json DIRECTORY".into());
    };
    let document = serde_json::from_slice(&std::fs::read(document)?)?;
    let vfs = Vfs::new(json_tree::JsonTree::new(&document))?;
    let mounted = mount(vfs, &directory, &Options::default())?;
    while !mounted.is_over() {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
