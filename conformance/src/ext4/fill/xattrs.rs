//! Extended attributes: in the inode, in a block, in a shared block, in an inode of
//! their own; access control lists.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{XattrFlags, lsetxattr};
use rustix::io::Errno;

use super::{Place, noise, unless};
use rcuwalk_testkit::{Rng, acl};

/// One file or directory for each way of keeping them.
pub(super) fn xattrs(place: &Place<'_>) -> io::Result<()> {
    let mut rng = place.rng.clone();
    let file = |name: &str| {
        let path = place.path(name);
        File::create(&path).map(|_| path)
    };

    let small = file("small")?;
    set(&small, "user.a", b"1")?;
    set(&small, "user.empty", b"")?;
    set(&small, "trusted.t", b"only root sees this")?;
    set(&small, "security.s", &[0, 255, 0])?;

    let sizes = [1, 3, 4, 40, 60, 80, 100, 200, 500, 900, 1500, 3000, 3900];
    for size in sizes {
        set(
            &file(&format!("value-{size}"))?,
            "user.v",
            &noise(&mut rng, size),
        )?;
    }
    if place.contents.big_xattrs {
        big(place, &mut rng)?;
    }

    many(&file("many")?, &mut rng)?;
    // Equal sets share one block.
    for index in 0..5 {
        let path = file(&format!("shared-{index}"))?;
        set(&path, "user.one", &[b'o'; 200])?;
        set(&path, "user.two", &[b't'; 300])?;
    }
    set(
        &file("long-name")?,
        &format!("user.{}", "n".repeat(250)),
        b"v",
    )?;

    let dir = place.path("dir");
    fs::create_dir(&dir)?;
    set(&dir, "user.of-a-directory", b"yes")?;
    let link = place.path("link");
    symlink("nowhere", &link)?;
    set(&link, "trusted.of-a-link", b"yes")?;
    // Both want the room behind the inode.
    let inline = place.path("inline");
    fs::write(&inline, "short contents")?;
    set(&inline, "user.beside", b"short contents")?;
    let inline = place.path("inline-pushed");
    fs::write(&inline, noise(&mut rng, 100))?;
    set(&inline, "user.pushes", &noise(&mut rng, 60))?;

    removed(&file("removed")?, &mut rng)?;
    capability(&file("capability")?)?;
    acls(place)
}

/// Only in an inode of their own.
fn big(place: &Place<'_>, rng: &mut Rng) -> io::Result<()> {
    for size in [4096, 5000, 20_000, 65_536] {
        let path = place.path(format!("big-{size}"));
        File::create(&path)?;
        set(&path, "user.big", &noise(rng, size))?;
        set(&path, "user.beside", b"small")?;
    }
    // Values of one content may share that inode.
    let common = noise(rng, 9000);
    for index in 0..3 {
        let path = place.path(format!("common-{index}"));
        File::create(&path)?;
        set(&path, "user.common", &common)?;
    }
    // The attribute block counts among the link's blocks, while its target is still in the
    // inode.
    let link = place.path("link-with-much");
    symlink("nowhere", &link)?;
    set(&link, "trusted.much", &noise(rng, 8000))
}

fn many(path: &Path, rng: &mut Rng) -> io::Result<()> {
    for index in 0..25 {
        let value = noise(rng, index * 3);
        set(path, &format!("user.{index}"), &value)?;
        set(
            path,
            &format!("trusted.{}", "m".repeat(index + 1)),
            &value[..index],
        )?;
    }
    Ok(())
}

/// Set, replaced by longer and shorter ones, removed.
fn removed(path: &Path, rng: &mut Rng) -> io::Result<()> {
    for index in 0..10 {
        set(path, &format!("user.{index}"), &noise(rng, 10 + index))?;
    }
    for index in [1, 3, 9] {
        let gone = rustix::fs::lremovexattr(path, format!("user.{index}"));
        unless(gone, &[Errno::NODATA, Errno::OPNOTSUPP])?;
    }
    set(path, "user.2", &noise(rng, 90))?;
    set(path, "user.4", b"")
}

/// File capabilities, revision 2: CAP_NET_RAW permitted and effective.
fn capability(path: &Path) -> io::Result<()> {
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    set(
        path,
        "security.capability",
        &words.map(u32::to_le_bytes).concat(),
    )
}

fn acls(place: &Place<'_>) -> io::Result<()> {
    let plain = acl("u::6 g::4 o::0");
    let named = acl("u::7 u:1000:5 u:70000:0 g::1 g:4000000000:7 m::5 o::1");
    let file = place.path("acl");
    File::create(&file)?;
    set(&file, ACCESS, &named)?;
    // Says no more than the mode: not kept.
    let file = place.path("acl-plain");
    File::create(&file)?;
    set(&file, ACCESS, &plain)?;

    let dir = place.path("acl-dir");
    fs::create_dir(&dir)?;
    set(&dir, DEFAULT, &named)?;
    set(&dir, ACCESS, &named)?;
    // These inherit.
    File::create(dir.join("file"))?;
    fs::create_dir(dir.join("sub"))?;
    let dir = place.path("acl-default-plain");
    fs::create_dir(&dir)?;
    set(&dir, DEFAULT, &plain)
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Sets it where there is room for it, and where there are such attributes at all.
fn set(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let refusals = [Errno::NOSPC, Errno::OPNOTSUPP, Errno::TOOBIG, Errno::RANGE];
    unless(lsetxattr(path, name, value, XattrFlags::empty()), &refusals)
}
