//! A scan of an ext4 image: rows as JSON lines, a summary, and what changed since.
//!
//! `cargo run -p rcuwalk-scan --example scan_image [IMAGE]` scans an image; without one it
//! makes a small one with mke2fs(8), if that is installed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use rcuwalk_scan::{Format, Options, Rows, Scan, Silent, Since};

fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    let image = match std::env::args_os().nth(1) {
        Some(image) => PathBuf::from(image),
        None => match small_image(place.path())? {
            Some(image) => image,
            None => {
                println!("mke2fs(8) is not installed: name an image");
                return Ok(());
            }
        },
    };
    let stop = AtomicBool::new(false);

    // Every entry as a row, in a file that appears when it is complete.
    let rows = place.path().join("rows.jsonl");
    let mut options = Options::default();
    options.rows = Some(Rows::to_file(Format::Jsonl, &rows));
    let done = Scan::open(&image, options)?.run(&stop, &Silent)?;
    print!("{}", done.report.text());

    // The rows are an earlier scan to compare with: nothing has changed.
    let mut options = Options::default();
    options.since = Some(Since::Scan(rows));
    let done = Scan::open(&image, options)?.run(&stop, &Silent)?;
    print!("{}", done.report.text());
    Ok(())
}

/// A file system with a few files in it, or `None` without mke2fs.
fn small_image(place: &Path) -> Result<Option<PathBuf>, Box<dyn Error>> {
    let contents = place.join("contents");
    std::fs::create_dir(&contents)?;
    std::fs::write(contents.join("file"), "hello")?;
    std::os::unix::fs::symlink("file", contents.join("link"))?;
    let image = place.join("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-d"]).arg(&contents);
    match mke2fs.arg(&image).arg("8M").status() {
        Ok(status) if status.success() => Ok(Some(image)),
        Ok(status) => Err(format!("mke2fs: {status}").into()),
        Err(_) => Ok(None),
    }
}
