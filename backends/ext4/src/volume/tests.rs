//! Whole images, as mke2fs and debugfs make them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::testing::{Image, open};
use rcuwalk::FileType;

/// EDGE-1: contents and attributes of a default image are those it was filled with.
#[test]
fn a_default_image_reads_as_what_it_was_filled_with() {
    let contents: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let Some(image) = Image::make("16M", &[], |tree| {
        fs::write(tree.join("file"), &contents).unwrap();
        std::os::unix::fs::symlink("somewhere", tree.join("fast")).unwrap();
        std::os::unix::fs::symlink("x".repeat(200), tree.join("slow")).unwrap();
    }) else {
        return;
    };
    let volume = open(image.bytes()).unwrap();
    let root = volume.inode(2).unwrap();
    assert_eq!(root.kind, FileType::Directory);

    let file = volume.inode(image.ino("/file")).unwrap();
    let expected = fs::metadata(image.tree().join("file")).unwrap();
    let attr = file.attr();
    assert_eq!(attr.size, expected.len());
    assert_eq!(attr.st_mode(), expected.mode());
    assert_eq!(attr.mtime.sec, expected.mtime());
    let mut read = vec![0; contents.len() + 10];
    assert_eq!(
        volume.read_data(&file, &mut read, 0).unwrap(),
        contents.len()
    );
    assert!(read[..contents.len()] == contents);

    for (name, target) in [
        ("/fast", "somewhere".to_owned()),
        ("/slow", "x".repeat(200)),
    ] {
        let link = volume.inode(image.ino(name)).unwrap();
        assert_eq!(
            crate::link::read(&volume, &link).unwrap(),
            target.as_bytes()
        );
    }
}
