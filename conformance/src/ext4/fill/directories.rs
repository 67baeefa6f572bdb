//! Directories: every length of name, many entries, holes, depth.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Place;
use crate::ext4::collisions;

/// Every length, and every byte a name can have.
pub(super) fn names(place: &Place<'_>) -> io::Result<()> {
    for length in 1..=255 {
        File::create(place.path("x".repeat(length)))?;
    }
    // 0x80 and up are negative where characters are signed, and hash differently.
    for byte in (1..=255).filter(|&byte| byte != b'/' && byte != b'.') {
        File::create(place.path(OsStr::from_bytes(&[b'b', byte, byte])))?;
    }
    for name in [
        "...",
        "..x",
        " ",
        "\u{e9}t\u{e9}",
        "e\u{301}te\u{301}",
        "UPPER",
        "upper",
    ] {
        File::create(place.path(name))?;
    }
    Ok(())
}

/// Many entries of all kinds; some removed, so that blocks have holes.
pub(super) fn large(place: &Place<'_>) -> io::Result<()> {
    let mut rng = place.rng.clone();
    let shared = place.path("shared");
    File::create(&shared)?;
    let names: Vec<Vec<u8>> = (0..place.contents.entries)
        .map(|index| {
            let mut name = format!("{index}-").into_bytes();
            for _ in 0..rng.below(30) {
                // Anything but NUL and slash.
                name.push(match rng.below(254) as u8 + 1 {
                    b'/' => 0xff,
                    byte => byte,
                });
            }
            name
        })
        .collect();
    for name in &names {
        let path = place.path(OsStr::from_bytes(name));
        match rng.below(20) {
            0 => fs::create_dir(path)?,
            1 => std::os::unix::fs::symlink("shared", path)?,
            2..8 => drop(File::create(path)?),
            // Entries take no inode each this way, of which there may be few.
            _ => fs::hard_link(&shared, path)?,
        }
    }
    for name in &names {
        let path = place.path(OsStr::from_bytes(name));
        if rng.chance(15) && !path.is_dir() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Names so long that few fit into a block: an index of several levels.
pub(super) fn long(place: &Place<'_>) -> io::Result<()> {
    let shared = place.path("shared");
    File::create(&shared)?;
    for index in 0..place.contents.long_names {
        let name = format!("{index:08}{}", "n".repeat(242));
        fs::hard_link(&shared, place.path(name))?;
    }
    Ok(())
}

/// Empty, deep, once full and emptied again, with a block of holes in the middle.
pub(super) fn shapes(place: &Place<'_>) -> io::Result<()> {
    fs::create_dir(place.path("empty"))?;

    let mut deep = place.path("deep");
    for depth in 0..60 {
        fs::create_dir(&deep)?;
        File::create(deep.join("file"))?;
        deep.push(format!("d{depth}"));
    }

    let emptied = place.path("emptied");
    fs::create_dir(&emptied)?;
    create(&emptied, 0..300)?;
    remove(&emptied, 0..300)?;

    let holes = place.path("holes");
    fs::create_dir(&holes)?;
    create(&holes, 0..300)?;
    remove(&holes, 50..250)?;
    create(&holes, 100..110)?;

    let wide = place.path("wide");
    fs::create_dir(&wide)?;
    (0..80).try_for_each(|index| fs::create_dir(wide.join(format!("{index}"))))?;

    // Small enough to stay in the inode where directories can be inline, and grown
    // out of it.
    for count in [1, 2, 3, 5, 10] {
        let small = place.path(format!("of-{count}"));
        fs::create_dir(&small)?;
        (0..count).try_for_each(|index| File::create(small.join(format!("{index}"))).map(drop))?;
        fs::create_dir(small.join("sub"))?;
    }
    Ok(())
}

fn create(dir: &Path, mut names: std::ops::Range<u32>) -> io::Result<()> {
    names.try_for_each(|index| File::create(dir.join(format!("entry-{index:04}"))).map(drop))
}

fn remove(dir: &Path, mut names: std::ops::Range<u32>) -> io::Result<()> {
    names.try_for_each(|index| fs::remove_file(dir.join(format!("entry-{index:04}"))))
}

/// Names with the same hash, which may end up on both sides of a block's border. Of each tenth
/// pair only one name exists, so that the lookup of the other one fails in the right place.
pub(super) fn collisions(place: &Place<'_>) -> io::Result<()> {
    if place.contents.collisions == 0 {
        return Ok(());
    }
    let shared = place.path("shared");
    File::create(&shared)?;
    let pairs = collisions::pairs();
    for (index, [one, other]) in pairs.iter().take(place.contents.collisions).enumerate() {
        fs::hard_link(&shared, place.path(one))?;
        if index % 10 != 0 {
            fs::hard_link(&shared, place.path(other))?;
        }
    }
    Ok(())
}
