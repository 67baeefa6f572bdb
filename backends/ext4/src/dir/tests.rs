//! Directories of images that mke2fs filled and e2fsck indexed.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::OnceLock;

use crate::bytes::{u16_at, u32_at};
use crate::checksum::Checksums;
use crate::error::{Error, Place, Result};
use crate::inode::{InodeFlags, RawInode};
use crate::testing::{Image, open};
use crate::volume::Volume;

use super::Directory;

const FILES: usize = 1500;

/// Names of very different lengths, the longest as long as one can be.
fn name(number: usize) -> String {
    let mut name = format!("{number}-");
    let length = [1, 9, 30, 255][number % 4].max(name.len());
    name.extend(std::iter::repeat_n('é', (length - name.len()) / 2));
    name
}

/// An image with the directory `/d` full of files, and an index made by e2fsck.
fn indexed(options: &[&str], tuning: &[&str]) -> Option<Image> {
    let image = Image::make("24M", options, |tree| {
        fs::create_dir(tree.join("d")).unwrap();
        for number in 0..FILES {
            fs::write(tree.join("d").join(name(number)), b"").unwrap();
        }
    })?;
    for tuning in tuning {
        run("tune2fs", &["-E", tuning], &image, &[0]);
    }
    run("e2fsck", &["-fyD"], &image, &[0, 1]);
    Some(image)
}

/// The bytes of one with blocks of 1 KiB, made once for all tests that do not change it.
fn small_blocks(checksums: bool) -> Option<Vec<u8>> {
    static IMAGES: [OnceLock<Option<Vec<u8>>>; 2] = [const { OnceLock::new() }; 2];
    let features = match checksums {
        true => "metadata_csum",
        false => "^metadata_csum",
    };
    IMAGES[usize::from(checksums)]
        .get_or_init(|| Some(indexed(&["-b", "1024", "-O", features], &[])?.bytes()))
        .clone()
}

fn run(tool: &str, options: &[&str], image: &Image, good: &[i32]) {
    let done = Command::new(tool)
        .args(options)
        .arg(image.path())
        .output()
        .unwrap();
    let code = done.status.code().unwrap();
    assert!(good.contains(&code), "{tool} {options:?}: {done:?}");
}

fn inode(volume: &Volume, path: &[&str]) -> RawInode {
    let mut inode = volume.inode(2).unwrap();
    for name in path {
        let found = Directory::open(volume, &inode)
            .unwrap()
            .lookup(name.as_bytes())
            .unwrap();
        inode = volume.inode(found.unwrap().ino).unwrap();
    }
    inode
}

/// Everything in a directory in its order, `step` entries at a time.
fn list(directory: &Directory<'_>, step: usize) -> Result<Vec<(Vec<u8>, u32)>> {
    let mut all = Vec::new();
    let mut position = 0;
    loop {
        let mut left = step;
        directory.list(position, &mut |entry, next| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            assert!(next > position, "DIR-1: positions grow");
            all.push((entry.name.to_vec(), entry.ino));
            (left, position) = (left - 1, next);
            ControlFlow::Continue(())
        })?;
        if left > 0 {
            return Ok(all);
        }
    }
}

fn expect_all(directory: &Directory<'_>, what: &str) {
    let listed = list(directory, usize::MAX).unwrap();
    assert_eq!(list(directory, 7).unwrap(), listed, "DIR-1: {what}");
    assert_eq!(listed.len(), FILES + 2, "DIR-1: {what}");
    let listed: BTreeMap<_, _> = listed.into_iter().collect();
    assert_eq!(listed.len(), FILES + 2, "DIR-1: {what}");
    for number in 0..FILES {
        let name = name(number);
        let found = directory.lookup(name.as_bytes()).unwrap();
        let listed = listed.get(name.as_bytes()).copied();
        assert_eq!(found.map(|found| found.ino), listed, "{what}: {name}");
        assert!(found.is_some(), "{what}: {name}");
        let missing = format!("{name}x");
        assert_eq!(
            directory.lookup(missing.as_bytes()).unwrap(),
            None,
            "{what}"
        );
    }
    for dot in [&b"."[..], b".."] {
        assert!(directory.lookup(dot).unwrap().is_some(), "{what}");
    }
}

/// DIR-1: with all hashes and sizes of blocks, a name is found by its hash if and only
/// if a listing has it, and a listing in small pieces is the listing.
#[test]
fn names_are_found_by_hash_where_the_listing_has_them() {
    let layouts: [(&[&str], &[&str]); 7] = [
        (&["-b", "1024"], &[]),
        (
            &["-b", "1024", "-O", "^metadata_csum"],
            &["hash_alg=legacy"],
        ),
        (&["-b", "1024"], &["hash_alg=tea"]),
        (&["-b", "2048", "-O", "^metadata_csum,^filetype"], &[]),
        (&["-b", "4096", "-O", "^extents,^64bit"], &["hash_alg=tea"]),
        (&["-b", "1024", "-O", "large_dir,metadata_csum_seed"], &[]),
        (&["-b", "65536", "-O", "^has_journal", "-N", "4000"], &[]),
    ];
    for (options, tuning) in layouts {
        let Some(image) = indexed(options, tuning) else {
            return;
        };
        let volume = open(image.bytes()).unwrap();
        let inode = inode(&volume, &["d"]);
        let directory = Directory::open(&volume, &inode).unwrap();
        if directory.blocks > 1 {
            assert!(inode.flags.contains(InodeFlags::INDEX), "{options:?}");
            for number in 0..FILES {
                let name = name(number);
                let by_index = directory.leaf_by_index(name.as_bytes()).unwrap();
                assert!(by_index.unwrap().found().is_some(), "{options:?}: {name}");
            }
        }
        expect_all(&directory, &format!("{options:?} {tuning:?}"));
    }
}

/// Bytes above 127 hash as the super block says: signed or unsigned.
#[test]
fn an_unsigned_file_system_hashes_unsigned() {
    let Some(image) = indexed(&["-b", "1024"], &[]) else {
        return;
    };
    image.debugfs(&["ssv flags 2"]);
    run("e2fsck", &["-fyD"], &image, &[0, 1]);
    let volume = open(image.bytes()).unwrap();
    assert!(volume.super_block().hash_unsigned());
    let inode = inode(&volume, &["d"]);
    let directory = Directory::open(&volume, &inode).unwrap();
    let by_index = |number| {
        let leaf = directory.leaf_by_index(name(number).as_bytes()).unwrap();
        leaf.unwrap().found().is_some()
    };
    assert!((0..FILES).all(by_index));
}

/// Where a block of the directory `/d` is in the image, in bytes.
fn place_of(volume: &Volume, logical: u64) -> usize {
    let mapping = volume.map(&inode(volume, &["d"]), logical).unwrap();
    mapping.physical.unwrap() as usize * volume.super_block().block_size() as usize
}

/// An index that cannot be right is left alone, as the kernel does, and all names are
/// found without it.
#[test]
fn a_bad_index_is_not_used() {
    let Some(good) = small_blocks(false) else {
        return;
    };
    let root = place_of(&open(good.clone()).unwrap(), 0);
    let broken: [(usize, &[u8]); 6] = [
        (28, &[9]),
        (29, &[16]),
        (30, &[2]),
        (31, &[1]),
        (32, &[1, 0]),
        (34, &[0, 0]),
    ];
    for (at, with) in broken {
        let mut bytes = good.clone();
        bytes[root + at..root + at + with.len()].copy_from_slice(with);
        let volume = open(bytes).unwrap();
        let inode = inode(&volume, &["d"]);
        let directory = Directory::open(&volume, &inode).unwrap();
        let by_index = directory.leaf_by_index(name(1).as_bytes()).unwrap();
        assert!(by_index.is_none(), "byte {at} of the root");
        let found = directory.lookup(name(FILES - 1).as_bytes()).unwrap();
        assert!(found.is_some(), "byte {at} of the root");
    }
}

/// An index that leads out of the directory is an error that says so.
#[test]
fn an_index_leads_nowhere_else() {
    let Some(mut bytes) = small_blocks(false) else {
        return;
    };
    let root = place_of(&open(bytes.clone()).unwrap(), 0);
    for row in 0..usize::from(u16_at(&bytes, root + 34)) {
        let child = root + 32 + row * 8 + 4;
        bytes[child..child + 4].copy_from_slice(&0x00ff_ffff_u32.to_le_bytes());
    }
    let volume = open(bytes).unwrap();
    let inode = inode(&volume, &["d"]);
    let directory = Directory::open(&volume, &inode).unwrap();
    match directory.lookup(name(1).as_bytes()) {
        Err(Error::Corrupt { place, field, .. }) => {
            assert_eq!(place, Place::Inode(inode.ino));
            assert_eq!(field, "dx_entry");
        }
        other => panic!("{other:?}"),
    }
}

/// A hash that goes on in the next leaf is followed there, also into the next table.
#[test]
fn names_of_one_hash_are_followed_into_the_next_leaf() {
    let Some(mut bytes) = small_blocks(false) else {
        return;
    };
    let volume = open(bytes.clone()).unwrap();
    let directory_inode = inode(&volume, &["d"]);
    let directory = Directory::open(&volume, &directory_inode).unwrap();
    let root = place_of(&volume, 0);
    assert_eq!(bytes[root + 30], 1, "a level of tables below the root");
    // Each row of each table, but the first of a table, which has no hash; and for the
    // root's rows the leaf is the first one of the table below.
    let mut rows = Vec::new();
    for row in 0..usize::from(u16_at(&bytes, root + 34)) {
        let at = root + 32 + row * 8;
        let node = place_of(&volume, u64::from(u32_at(&bytes, at + 4)));
        if row > 0 {
            rows.push((at, u32_at(&bytes, node + 8 + 4)));
        }
        for row in 1..usize::from(u16_at(&bytes, node + 10)) {
            let at = node + 8 + row * 8;
            rows.push((at, u32_at(&bytes, at + 4)));
        }
    }
    let version = super::hash::HashVersion::of_index(1, false).unwrap();
    let mut continued = Vec::new();
    for (at, leaf) in rows {
        let first = u32_at(&bytes, at);
        let leaf = directory.read_indexed(leaf).unwrap();
        let seed = volume.super_block().hash_seed();
        let with_first_hash = leaf
            .entries()
            .map(|entry| entry.unwrap().name.to_vec())
            .find(|name| version.hash(seed, name) == first);
        if let Some(name) = with_first_hash {
            bytes[at] |= 1;
            continued.push(name);
        }
    }
    assert!(continued.len() > 100, "{}", continued.len());
    let volume = open(bytes).unwrap();
    let directory = Directory::open(&volume, &directory_inode).unwrap();
    for name in continued {
        let by_index = directory.leaf_by_index(&name).unwrap();
        assert!(
            by_index.unwrap().found().is_some(),
            "{}",
            name.escape_ascii()
        );
    }
}

/// A flipped bit in any block of a directory is a checksum error that names the block; a reader
/// that has turned verification off does not get it.
#[test]
fn checksums_are_verified_if_that_is_wanted() {
    let Some(image) = small_blocks(true) else {
        return;
    };
    let good = open(image.clone()).unwrap();
    for (logical, offset) in [(0, 40), (1, 12), (5, 12)] {
        let mut bytes = image.clone();
        let place = place_of(&good, logical);
        bytes[place + offset] ^= 0x10;
        let volume = open(bytes.clone()).unwrap();
        let inode = inode(&volume, &["d"]);
        let directory = Directory::open(&volume, &inode).unwrap();
        let errors: Vec<_> = (0..FILES)
            .filter_map(|number| directory.lookup(name(number).as_bytes()).err())
            .collect();
        let physical = (place / 1024) as u64;
        assert!(!errors.is_empty(), "block {logical}");
        for err in errors {
            match err {
                Error::Checksum { place, .. } => {
                    let ino = inode.ino;
                    assert_eq!(
                        place,
                        Place::BlockOf {
                            ino,
                            block: physical
                        }
                    );
                }
                other => panic!("{other}"),
            }
        }
        let volume = Volume::open(Box::new(bytes), Checksums::Never, 1 << 20).unwrap();
        let directory = Directory::open(&volume, &inode).unwrap();
        for number in 0..FILES {
            let looked_up = directory.lookup(name(number).as_bytes());
            assert!(!matches!(looked_up, Err(Error::Checksum { .. })));
        }
    }
}

/// A listing can continue behind a bad block if the caller wants that.
#[test]
fn the_leaves_behind_a_bad_one_can_be_read() {
    let Some(mut bytes) = small_blocks(true) else {
        return;
    };
    let volume = open(bytes.clone()).unwrap();
    let inode = inode(&volume, &["d"]);
    let whole = Directory::open(&volume, &inode).unwrap();
    bytes[place_of(&volume, 7)] ^= 1;
    let volume = open(bytes).unwrap();
    let directory = Directory::open(&volume, &inode).unwrap();
    assert!(list(&directory, 100).is_err());
    let bad = directory.leaves(0).filter(Result::is_err).count();
    let good = directory.leaves(0).filter(Result::is_ok).count();
    assert_eq!((bad, good + 1), (1, whole.leaves(0).count()));
}

/// Inline directories have all their names, in the inode's block and behind it.
#[test]
fn inline_directories_are_read() {
    let options = ["-O", "inline_data", "-I", "1024"];
    let made = Image::make("8M", &options, |tree| {
        fs::create_dir_all(tree.join("empty")).unwrap();
        fs::create_dir_all(tree.join("small/below")).unwrap();
        fs::create_dir(tree.join("spilled")).unwrap();
        fs::write(tree.join("spilled/first"), b"").unwrap();
    });
    let Some(image) = made else { return };
    // The tools fill no more than the inode's block, so what is behind it is put there.
    let records: Vec<_> = (12..32).map(|ino| (ino, format!("name-{ino}"))).collect();
    let records: Vec<_> = records
        .iter()
        .map(|(ino, name)| (*ino, name.as_bytes(), 1))
        .collect();
    let value = image.path().with_extension("data");
    fs::write(&value, super::block::tests::block_of(400, &records)).unwrap();
    let set = format!("ea_set -f {} /spilled system.data", value.display());
    image.debugfs(&[&set]);
    let volume = open(image.bytes()).unwrap();
    for (path, entries) in [("empty", 0), ("small", 1), ("spilled", 21)] {
        let inode = inode(&volume, &[path]);
        assert!(inode.flags.contains(InodeFlags::INLINE_DATA), "{path}");
        let directory = Directory::open(&volume, &inode).unwrap();
        let all = list(&directory, usize::MAX).unwrap();
        assert_eq!(all.len(), entries, "{path}: {all:?}");
        assert_eq!(list(&directory, 1).unwrap(), all, "DIR-1");
        for (name, ino) in all {
            let found = directory.lookup(&name).unwrap();
            assert_eq!(found.map(|found| found.ino), Some(ino));
        }
        assert_eq!(directory.lookup(b"missing").unwrap(), None);
        assert_eq!(directory.inline_parent(), Some(2));
    }
}

/// A casefolded directory never answers wrongly: a name that is there as it is spelled
/// is found, and whether another one is missing is not decided.
#[test]
fn a_casefolded_directory_does_not_guess() {
    let Some(image) = Image::make("8M", &["-O", "casefold"], |tree| {
        fs::create_dir(tree.join("d")).unwrap();
        fs::write(tree.join("d/Name"), b"").unwrap();
    }) else {
        return;
    };
    image.debugfs(&["set_inode_field /d flags 0x40080000"]);
    let volume = open(image.bytes()).unwrap();
    let inode = inode(&volume, &["d"]);
    let directory = Directory::open(&volume, &inode).unwrap();
    assert!(directory.lookup(b"Name").unwrap().is_some());
    let missing = directory.lookup(b"name").unwrap_err();
    assert_eq!(missing.to_string(), "unsupported feature: casefold");
    assert_eq!(list(&directory, 10).unwrap().len(), 3);
}

/// The names of an encrypted directory are not shown as if they were names.
#[test]
fn an_encrypted_directory_is_refused() {
    let Some(image) = Image::make("8M", &["-O", "encrypt"], |tree| {
        fs::create_dir(tree.join("d")).unwrap();
    }) else {
        return;
    };
    image.debugfs(&["set_inode_field /d flags 0x80800"]);
    let volume = open(image.bytes()).unwrap();
    let inode = inode(&volume, &["d"]);
    let refused = Directory::open(&volume, &inode).err().unwrap();
    assert_eq!(refused.to_string(), "unsupported feature: encryption");
}

/// A size that nothing is behind does not keep anybody busy, and holes are passed.
#[test]
fn a_size_cannot_be_larger_than_the_file_system() {
    let Some(image) = Image::make("8M", &["-b", "1024", "-O", "large_dir"], |tree| {
        fs::create_dir(tree.join("d")).unwrap();
        fs::write(tree.join("d/file"), b"").unwrap();
    }) else {
        return;
    };
    let sized = |size: u64| {
        image.debugfs(&[&format!("set_inode_field /d size {size}")]);
        let volume = open(image.bytes()).unwrap();
        let inode = inode(&volume, &["d"]);
        let directory = Directory::open(&volume, &inode)?;
        assert_eq!(directory.lookup(b"missing").unwrap(), None);
        list(&directory, 100).map(|all| all.len())
    };
    assert_eq!(sized(1 << 20).unwrap(), 3);
    for size in [1 << 40, 1 << 33, 1000] {
        match sized(size) {
            Err(Error::Corrupt { field, .. }) => assert_eq!(field, "i_size"),
            other => panic!("{size}: {other:?}"),
        }
    }
}

/// Whatever the blocks of a directory hold, looking up and listing ends, soon, and
/// without a panic.
#[test]
fn no_block_of_a_directory_keeps_anybody_busy() {
    let Some(good) = small_blocks(false) else {
        return;
    };
    let volume = open(good.clone()).unwrap();
    let inode = inode(&volume, &["d"]);
    let blocks = Directory::open(&volume, &inode).unwrap().blocks;
    let places: Vec<usize> = (0..blocks).map(|b| place_of(&volume, b.into())).collect();
    // A generator that is good enough, and the same each time.
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut failed = 0;
    for round in 0..150 {
        let mut bytes = good.clone();
        for _ in 0..1 + round % 20 {
            // Flips bits in the root and at the start of blocks more often than elsewhere.
            let place = places[[0, random(places.len())][random(2)]];
            let offset = [random(48), random(1024)][random(2)];
            bytes[place + offset] = [0, 0xff, 1, random(256) as u8][random(4)];
        }
        let volume = open(bytes).unwrap();
        let directory = Directory::open(&volume, &inode).unwrap();
        failed += usize::from(list(&directory, 50).is_err());
        for number in (0..FILES).step_by(17) {
            failed += usize::from(directory.lookup(name(number).as_bytes()).is_err());
        }
    }
    assert!(failed > 0, "nothing was damaged");
}
