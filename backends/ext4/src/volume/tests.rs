//! Whole images, as mke2fs and debugfs make them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rcuwalk::FileType;

use super::Volume;
use crate::checksum::Checksums;
use crate::error::Error;
use crate::inode::InodeFlags;
use crate::source::Source;
use crate::testing::{Image, open};
use crate::{link, xattr};

/// What mke2fs is asked for, and the options that need it to be named.
const KINDS: &[(&str, &[&str])] = &[
    ("the default", &[]),
    ("ext2, small blocks", &["-t", "ext2", "-b", "1024"]),
    ("ext3", &["-t", "ext3", "-b", "1024", "-I", "128"]),
    ("ext2 of old", &["-t", "ext2", "-r", "0", "-b", "2048"]),
    ("small inodes", &["-I", "128", "-O", "^extra_isize"]),
    ("large inodes", &["-I", "1024"]),
    ("old checksums", &["-O", "^metadata_csum,uninit_bg"]),
    (
        "old checksums, 64bit",
        &["-O", "^metadata_csum,uninit_bg,64bit"],
    ),
    ("no checksums", &["-O", "^metadata_csum,^uninit_bg"]),
    ("narrow descriptors", &["-O", "^64bit,^resize_inode"]),
    ("metadata_csum_seed", &["-O", "metadata_csum_seed"]),
    (
        "meta_bg",
        &["-O", "meta_bg,^resize_inode", "-b", "1024", "-g", "1024"],
    ),
    (
        "no flex_bg",
        &["-O", "^flex_bg", "-b", "1024", "-g", "1024"],
    ),
    ("sparse_super2", &["-O", "sparse_super2,^resize_inode"]),
    ("bigalloc", &["-O", "bigalloc", "-C", "16384"]),
    (
        "bigalloc, small blocks",
        &["-O", "bigalloc", "-b", "1024", "-C", "8192"],
    ),
    ("inline_data", &["-O", "inline_data", "-I", "256"]),
    (
        "inline_data, large inodes",
        &["-O", "inline_data", "-I", "1024"],
    ),
    ("ea_inode", &["-O", "ea_inode"]),
    ("large_dir, casefold", &["-O", "large_dir,casefold"]),
    (
        "encrypt, verity, quota, project",
        &["-O", "encrypt,verity,quota,project"],
    ),
    ("large blocks", &["-b", "65536"]),
];

/// Files of all shapes.
fn fill(tree: &Path) {
    let dir = tree.join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(tree.join("empty"), b"").unwrap();
    for size in [1, 59, 60, 61, 100, 200, 800, 1024, 4096, 4097, 70_000] {
        let bytes: Vec<u8> = (0..size).map(|byte| (byte % 251) as u8 + 1).collect();
        fs::write(dir.join(format!("of{size}")), bytes).unwrap();
    }
    for size in [1, 58, 59, 60, 61, 150, 900] {
        symlink("t".repeat(size), dir.join(format!("link{size}"))).unwrap();
    }
    // Every other piece: many extents, or all three levels of block numbers, with holes.
    let pieces = File::create(tree.join("pieces")).unwrap();
    for index in 0..600_u64 {
        let piece = [index as u8 | 1; 4096];
        pieces.write_all_at(&piece, index * 8192).unwrap();
    }
    let sparse = File::create(tree.join("sparse")).unwrap();
    // Whole blocks: with inline_data, mke2fs rounds the size up to the blocks it wrote.
    for block in [0, 5, 250, 20_000, 1_250_000, 1_500_000] {
        let piece = [block as u8 | 1; 4096];
        sparse.write_all_at(&piece, block * 4096).unwrap();
    }
}

/// EDGE-1: with every feature, contents, targets and attributes are those of the files that
/// the image was made from.
#[test]
fn images_of_every_kind_read_as_what_they_were_filled_with() {
    for (kind, options) in KINDS {
        let Some(image) = Image::make("24M", options, fill) else {
            return;
        };
        let volume = open(image.bytes()).unwrap_or_else(|err| panic!("{kind}: {err}"));
        compare(kind, &image, &volume);
    }
}

fn compare(kind: &str, image: &Image, volume: &Volume) {
    let mut paths = Vec::new();
    for dir in ["", "/dir"] {
        for entry in fs::read_dir(image.tree().join(dir.trim_start_matches('/'))).unwrap() {
            let name = entry.unwrap().file_name();
            paths.push(format!("{dir}/{}", name.display()));
        }
    }
    for (path, ino) in paths.iter().zip(image.inos(&paths)) {
        let what = format!("{kind}: {path}");
        let original = image.tree().join(path.trim_start_matches('/'));
        let expected = fs::symlink_metadata(&original).unwrap();
        let inode = volume
            .inode(ino)
            .unwrap_or_else(|err| panic!("{what}: {err}"));
        let attr = inode.attr();
        assert_eq!(attr.st_mode(), expected.mode(), "{what}");
        assert_eq!(
            (attr.uid, attr.gid),
            (expected.uid(), expected.gid()),
            "{what}"
        );
        assert_eq!(attr.mtime.sec, expected.mtime(), "{what}");
        match attr.kind {
            FileType::Directory => assert_eq!(path, "/dir", "{what}"),
            FileType::Symlink => {
                let target = link::read(volume, &inode).unwrap_or_else(|e| panic!("{what}: {e}"));
                let expected = fs::read_link(&original).unwrap();
                assert_eq!(target, expected.as_os_str().as_encoded_bytes(), "{what}");
            }
            _ => {
                assert_eq!(attr.size, expected.len(), "{what}");
                compare_contents(&what, volume, ino, &File::open(&original).unwrap());
            }
        }
    }
}

/// Both ends of large files, and small ones completely.
fn compare_contents(what: &str, volume: &Volume, ino: u32, expected: &File) {
    let inode = volume.inode(ino).unwrap();
    let mut ours = vec![1; 600_007];
    let mut theirs = vec![2; ours.len()];
    for start in [
        0,
        600_000,
        1_200_000,
        4_500_000,
        81_900_000,
        5_119_900_000,
        6_143_900_000,
    ] {
        let read = volume
            .read_data(&inode, &mut ours, start)
            .unwrap_or_else(|err| panic!("{what} at {start}: {err}"));
        let want = expected.read_at(&mut theirs, start).unwrap();
        assert_eq!(read, want, "{what} at {start}");
        assert!(ours[..read] == theirs[..want], "{what} at {start}");
    }
}

/// What debugfs can set and no file of the host has: times beyond 2038 and before 1970,
/// with nanoseconds; 32-bit owners; a generation; device numbers of both encodings.
#[test]
fn fields_in_two_places_are_put_together() {
    let Some(image) = Image::make("4M", &[], |tree| fs::write(tree.join("f"), b"x").unwrap())
    else {
        return;
    };
    image.debugfs(&[
        "sif /f uid 4000000001",
        "sif /f gid 70000",
        "sif /f mtime 0x10",
        "sif /f mtime_extra 3",
        "sif /f atime 0x80000000",
        "sif /f atime_extra 0",
        "sif /f ctime 0xffffffff",
        "sif /f ctime_extra 0xee6b27fd",
        "sif /f generation 77",
        "mknod old b 8 17",
        "mknod new c 300 60000",
    ]);
    let volume = open(image.bytes()).unwrap();
    let inode = volume.inode(image.ino("/f")).unwrap();
    let attr = inode.attr();
    assert_eq!((attr.uid, attr.gid), (4_000_000_001, 70_000));
    assert_eq!((attr.mtime.sec, attr.mtime.nsec), ((3 << 32) + 0x10, 0));
    assert_eq!(attr.atime.sec, -0x8000_0000);
    assert_eq!(
        (attr.ctime.sec, attr.ctime.nsec),
        ((1 << 32) - 1, 999_999_999)
    );
    assert_eq!(inode.generation, 77);
    let device = |path| volume.inode(image.ino(path)).unwrap().attr().rdev;
    assert_eq!(device("/old"), libc::makedev(8, 17));
    assert_eq!(device("/new"), libc::makedev(300, 60_000));
}

/// Extended attributes come back whole, from the inode, from a block and from inodes of
/// their own, under their full names.
#[test]
fn extended_attributes_come_from_all_three_places() {
    let Some(image) = Image::make("8M", &["-b", "1024", "-O", "ea_inode"], |tree| {
        fs::write(tree.join("f"), b"x").unwrap();
        fs::write(tree.join("large"), b"v".repeat(1024)).unwrap();
        fs::write(tree.join("middle"), b"m".repeat(700)).unwrap();
    }) else {
        return;
    };
    let from = |name: &str| image.tree().join(name).display().to_string();
    image.debugfs(&[
        "ea_set /f user.small value",
        &format!("ea_set -f {} /f user.middle", from("middle")),
        &format!("ea_set -f {} /f trusted.large", from("large")),
        "ea_set /f security.empty \"\"",
    ]);
    let volume = open(image.bytes()).unwrap();
    let mut all = xattr::list(&volume, &volume.inode(image.ino("/f")).unwrap()).unwrap();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let all: Vec<_> = all
        .iter()
        .map(|xattr| {
            (
                xattr.name.as_slice(),
                xattr.value.len(),
                xattr.value.first(),
            )
        })
        .collect();
    assert_eq!(
        all,
        [
            (&b"security.empty"[..], 0, None),
            (b"trusted.large", 1024, Some(&b'v')),
            (b"user.middle", 700, Some(&b'm')),
            (b"user.small", 5, Some(&b'v')),
        ]
    );
}

/// A cursor gives what looking up each inode anew gives, whichever way it goes.
#[test]
fn a_cursor_finds_the_same_inodes() {
    for options in [
        &["-b", "1024", "-g", "1024", "-N", "3000"][..],
        &["-I", "512"],
    ] {
        let Some(image) = Image::make("8M", options, |tree| {
            for index in 0..300 {
                fs::write(tree.join(index.to_string()), b"").unwrap();
            }
        }) else {
            return;
        };
        let volume = open(image.bytes()).unwrap();
        let count = volume.super_block().inodes_count();
        let (mut up, mut down) = Default::default();
        let show = |inode: crate::Result<_>| format!("{inode:?}");
        let mut used = 0;
        for ino in 0..=count + 1 {
            let alone = show(volume.inode(ino));
            used += usize::from(alone.starts_with("Ok"));
            assert_eq!(show(volume.inode_near(&mut up, ino)), alone, "{ino}");
            let ino = count + 1 - ino;
            let alone = show(volume.inode(ino));
            assert_eq!(show(volume.inode_near(&mut down, ino)), alone, "{ino}");
        }
        assert!(used > 300, "{used}");
    }
}

/// A bad byte in an inode is an error of that inode, unless verification is off.
#[test]
fn a_bad_inode_is_found_by_its_checksum() {
    let Some(image) = Image::make("4M", &[], |tree| fs::write(tree.join("f"), b"x").unwrap())
    else {
        return;
    };
    let ino = image.ino("/f");
    let mut bytes = image.bytes();
    let volume = open(bytes.clone()).unwrap();
    let table = volume.groups().inode_table(&volume, 0).unwrap() as usize;
    let size = volume.super_block().block_size() as usize;
    bytes[table * size + (ino as usize - 1) * 256 + 4] ^= 1;
    let volume = open(bytes.clone()).unwrap();
    let err = volume.inode(ino).unwrap_err();
    assert_eq!(
        err.to_string(),
        format!("inode {ino}: the checksum of this inode does not match")
    );
    let volume = Volume::open(Box::new(bytes), Checksums::Never, 0).unwrap();
    assert_eq!(volume.inode(ino).unwrap().size, 0);
}

/// With the primary super block gone, a backup does, and says which it was.
#[test]
fn a_backup_of_the_super_block_is_used_and_named() {
    for options in [
        &["-b", "1024"][..],
        &["-b", "1024", "-O", "meta_bg,^resize_inode"],
        &["-b", "1024", "-O", "sparse_super2,^resize_inode"],
        &["-b", "1024", "-O", "bigalloc", "-C", "16384"],
    ] {
        let size = if options.contains(&"bigalloc") {
            "300M"
        } else {
            "24M"
        };
        let Some(image) = Image::make(size, options, |tree| {
            fs::write(tree.join("f"), b"contents").unwrap();
        }) else {
            return;
        };
        for damage in [0..1024, 56..57, 4..5] {
            let mut bytes = image.bytes();
            for at in damage.clone() {
                bytes[1024 + at] ^= 0x55;
            }
            let volume = open(bytes).unwrap_or_else(|err| panic!("{options:?} {damage:?}: {err}"));
            assert_ne!(volume.super_block().group(), 0, "{options:?} {damage:?}");
            let mut read = [0; 8];
            let inode = volume.inode(image.ino("/f")).unwrap();
            volume.read_data(&inode, &mut read, 0).unwrap();
            assert_eq!(&read, b"contents");
        }
    }
}

/// An encrypted inode has attributes, and neither contents nor a target.
#[test]
fn what_is_encrypted_is_refused_by_name() {
    let Some(image) = Image::make("4M", &["-O", "encrypt"], |tree| {
        fs::write(tree.join("f"), b"x").unwrap();
        symlink("target", tree.join("l")).unwrap();
    }) else {
        return;
    };
    image.debugfs(&["sif /f flags 0x80800", "sif /l flags 0x800"]);
    let volume = open(image.bytes()).unwrap();
    let file = volume.inode(image.ino("/f")).unwrap();
    assert!(file.flags.contains(InodeFlags::ENCRYPT));
    assert_eq!(file.attr().size, 1);
    let refused = "unsupported feature: encryption";
    let err = volume.read_data(&file, &mut [0; 1], 0).unwrap_err();
    assert_eq!(err.to_string(), refused);
    let inode = volume.inode(image.ino("/l")).unwrap();
    assert_eq!(
        link::read(&volume, &inode).unwrap_err().to_string(),
        refused
    );
}

/// An image that was cut off opens, reads what it has, and says where the rest ends.
#[test]
fn a_cut_off_image_reads_as_far_as_it_goes() {
    let Some(image) = Image::make("8M", &["-b", "4096"], |tree| {
        fs::write(tree.join("f"), vec![7; 2 << 20]).unwrap();
    }) else {
        return;
    };
    let ino = image.ino("/f");
    let whole = open(image.bytes()).unwrap();
    let inode = whole.inode(ino).unwrap();
    let last = whole.map(&inode, 511).unwrap().physical.unwrap();
    let mut bytes = image.bytes();
    bytes.truncate(last as usize * 4096 + 100);
    let volume = open(bytes.clone()).unwrap();
    let inode = volume.inode(ino).unwrap();
    let mut buf = vec![0; 4096];
    assert_eq!(volume.read_data(&inode, &mut buf, 0).unwrap(), 4096);
    // The last block has a hundred bytes left.
    assert_eq!(volume.read_data(&inode, &mut buf, 511 * 4096).unwrap(), 100);
    let err = volume
        .read_data(&inode, &mut buf, 511 * 4096 + 100)
        .unwrap_err();
    let Error::Truncated { end, .. } = err else {
        panic!("{err}");
    };
    assert_eq!(end, bytes.len() as u64);
    for length in (0..bytes.len()).step_by(10_007) {
        if let Ok(volume) = open(bytes[..length].to_vec()) {
            read_everything(&volume);
        }
    }
}

/// As far as it goes, in every way. More of that, and more damage, is in `conformance`.
fn read_everything(volume: &Volume) {
    let mut buf = vec![0; 1 << 16];
    let mut cursor = Default::default();
    for ino in 0..=volume.super_block().inodes_count().min(5000) {
        let Ok(inode) = volume.inode_near(&mut cursor, ino) else {
            continue;
        };
        let _ = link::read(volume, &inode);
        let _ = xattr::list(volume, &inode);
        let _ = inode.attr();
        for offset in [0, 1 << 16, 1_000_000, inode.size.saturating_sub(100)] {
            let _ = volume.read_data(&inode, &mut buf, offset);
        }
        let mut logical = 0;
        for _ in 0..1000 {
            let Ok(mapping) = volume.map(&inode, logical) else {
                break;
            };
            assert!(mapping.length > 0, "progress");
            logical += u64::from(mapping.length);
        }
    }
}

/// A source that shrinks while it is read returns errors from the new end on, and everything
/// before it can still be read.
#[test]
fn an_image_that_shrinks_is_read_as_far_as_it_still_goes() {
    struct Shrinking(Arc<Mutex<Vec<u8>>>);
    impl Source for Shrinking {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.lock().unwrap().read_at(buf, offset)
        }
        fn len(&self) -> io::Result<u64> {
            Source::len(&*self.0.lock().unwrap())
        }
    }
    let Some(image) = Image::make("8M", &["-b", "4096"], |tree| {
        fs::write(tree.join("f"), vec![7; 2 << 20]).unwrap();
    }) else {
        return;
    };
    let bytes = Arc::new(Mutex::new(image.bytes()));
    let source = Box::new(Shrinking(bytes.clone()));
    let volume = Volume::open(source, Checksums::Always, 0).unwrap();
    let inode = volume.inode(image.ino("/f")).unwrap();
    let last = volume.map(&inode, 511).unwrap().physical.unwrap();
    bytes.lock().unwrap().truncate(last as usize * 4096);
    let mut buf = vec![0; 2 << 20];
    let read = volume.read_data(&inode, &mut buf, 0).unwrap();
    assert!(read < buf.len() && buf[..read].iter().all(|byte| *byte == 7));
    let err = volume.read_data(&inode, &mut buf, 511 * 4096).unwrap_err();
    assert!(matches!(err, Error::Truncated { .. }), "{err}");
    // Metadata as well, and in the same window what is left.
    assert!(matches!(volume.block(last), Err(Error::Truncated { .. })));
    assert!(volume.block(last - 1).is_ok());
    bytes.lock().unwrap().clear();
    read_everything(&volume);
}

/// A bad byte in a block of a tree, of attributes or of descriptors is an error for reads that
/// need that block, and for no others.
#[test]
fn bad_blocks_are_found_by_their_checksums() {
    let Some(image) = Image::make("24M", &["-b", "1024", "-g", "4096"], |tree| {
        fs::write(tree.join("good"), b"x").unwrap();
        fs::write(tree.join("f"), b"x").unwrap();
        fs::write(tree.join("large"), vec![1; 900]).unwrap();
        let pieces = File::create(tree.join("pieces")).unwrap();
        for index in 0..100_u64 {
            pieces.write_all_at(&[1; 1024], index * 2048).unwrap();
        }
    }) else {
        return;
    };
    let large = image.tree().join("large").display().to_string();
    image.debugfs(&[&format!("ea_set -f {large} /f user.large")]);
    let [good, f, pieces] = ["/good", "/f", "/pieces"].map(|path| image.ino(path));
    let sound = open(image.bytes()).unwrap();
    let inode = |ino| sound.inode(ino).unwrap();
    let leaf = u32::from_le_bytes(inode(pieces).block[16..20].try_into().unwrap());
    let descriptors = sound.super_block().descriptor_block(0);
    let damaged = |block: u64, byte: usize| {
        let mut bytes = image.bytes();
        bytes[block as usize * 1024 + byte] ^= 1;
        let volume = open(bytes).unwrap();
        assert_eq!(
            volume
                .read_data(&volume.inode(good).unwrap(), &mut [0; 1], 0)
                .unwrap(),
            1
        );
        volume
    };

    // The last byte before the checksum, where nothing else would be noticed.
    let volume = damaged(leaf.into(), 1019);
    let err = volume.map(&inode(pieces), 0).unwrap_err();
    let expected = "the checksum of this extent block does not match";
    assert_eq!(
        err.to_string(),
        format!("inode {pieces}, block {leaf}: {expected}")
    );

    let block = inode(f).file_acl;
    let volume = damaged(block, 1000);
    let err = xattr::list(&volume, &inode(f)).unwrap_err();
    let expected = "the checksum of this block of extended attributes does not match";
    assert_eq!(
        err.to_string(),
        format!("inode {f}, block {block}: {expected}")
    );

    // The third group's, and an inode of that group.
    let volume = damaged(descriptors, 2 * sound.super_block().descriptor_size() + 4);
    let ino = 2 * volume.super_block().inodes_per_group() + 1;
    let err = volume.inode(ino).unwrap_err();
    let expected = "group 2: the checksum of this group descriptor does not match";
    assert_eq!(err.to_string(), expected);
}
