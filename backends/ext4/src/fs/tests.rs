//! Images through the VFS.

use std::fs;
use std::os::unix::fs::symlink;

use rcuwalk::{Context, Credentials, FileType, Handle, LookupFlags, OpenFlags, OpenHow, Vfs};
use rcuwalk_testkit::acl;

use crate::ext4::Ext4;
use crate::testing::Image;

fn image() -> Option<Image> {
    Image::make("16M", &["-b", "1024"], |tree| {
        fs::create_dir_all(tree.join("dir/below")).unwrap();
        fs::write(tree.join("dir/file"), "contents\n".repeat(1000)).unwrap();
        symlink("dir/file", tree.join("short")).unwrap();
        symlink("./".repeat(100) + "dir/file", tree.join("long")).unwrap();
        for number in 0..1300 {
            fs::write(tree.join(format!("dir/below/{number}")), b"").unwrap();
        }
    })
}

/// EDGE-1: names, links, contents, listings and missing names are the image's.
#[test]
fn the_vfs_shows_what_is_in_the_image() {
    let Some(image) = image() else { return };
    let fs = Ext4::open(image.path()).unwrap();
    let (below, file) = (image.ino("/dir/below"), image.ino("/dir/file"));
    assert_eq!(fs.lookup(below, b"..").unwrap(), Some(image.ino("/dir")));
    assert_eq!(fs.lookup(below, b".").unwrap(), Some(below));
    assert_eq!(fs.lookup(below, b"1300").unwrap(), None);
    assert!(fs.lookup(file, b"x").is_err());

    let vfs = Vfs::new(fs).unwrap();
    let me = vfs.context(Credentials::root());
    for path in ["/dir/file", "/short", "/long", "/dir/below/../file"] {
        let attr = vfs.stat(&me, path, LookupFlags::FOLLOW).unwrap();
        assert_eq!((attr.ino, attr.size), (u64::from(file), 9000), "{path}");
        let open = vfs.open(&me, path, OpenFlags::READ).unwrap();
        let mut buf = [0; 100];
        assert_eq!(open.read_at(&mut buf, 8955).unwrap(), 45, "{path}");
        assert_eq!(&buf[..45], "contents\n".repeat(5).as_bytes(), "{path}");
        assert_eq!(open.read_at(&mut buf, 9000).unwrap(), 0, "{path}");
    }
    let listed: Vec<_> = vfs
        .read_dir(&me, "/dir/below")
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    assert_eq!(listed.len(), 1300, "DIR-1");
    for entry in &listed {
        let name = String::from_utf8_lossy(&entry.name);
        let attr = vfs.stat(&me, format!("/dir/below/{name}"), LookupFlags::FOLLOW);
        assert_eq!(attr.unwrap().ino, entry.ino, "{name}");
        assert_eq!(entry.kind, Some(FileType::Regular), "{name}");
    }
    for missing in ["/x", "/dir/below/1300", "/dir/below/x/y"] {
        let err = vfs.stat(&me, missing, LookupFlags::FOLLOW).unwrap_err();
        assert_eq!(err.errno(), libc::ENOENT, "{missing}");
    }
    let err = vfs
        .stat(&me, "/dir/file/x", LookupFlags::FOLLOW)
        .unwrap_err();
    assert_eq!(err.errno(), libc::ENOTDIR);
    let err = vfs.mkdir(&me, "/new", 0o755).unwrap_err();
    assert_eq!(err.errno(), libc::EROFS);
}

/// EDGE-1: a name whose inode is not in use, or is no file's, is an error and not
/// missing, as on the kernel.
#[test]
fn a_name_that_leads_nowhere_is_no_missing_name() {
    let Some(image) = image() else { return };
    let dir = image.ino("/dir");
    image.debugfs(&[
        "clri /dir/file",
        "ln <7> /dir/reserved",
        &format!("ln <{dir}> /dir/itself"),
        "ln <4000> /dir/unused",
    ]);
    let vfs = Vfs::new(Ext4::open(image.path()).unwrap()).unwrap();
    let me = vfs.context(Credentials::root());
    for name in ["file", "reserved", "itself", "unused"] {
        let path = format!("/dir/{name}");
        let err = vfs.stat(&me, path, LookupFlags::default()).unwrap_err();
        assert_eq!(err.errno(), libc::EUCLEAN, "{name}: {err}");
    }
    assert_eq!(vfs.read_dir(&me, "/dir").unwrap().count(), 5);
}

/// HANDLE-1: an inode number finds its file in the image, with the generation; a number that no
/// file has finds none.
#[test]
fn files_are_found_by_number() {
    let Some(image) = image() else { return };
    image.debugfs(&["sif /dir/file generation 77"]);
    let vfs = Vfs::new(Ext4::open(image.path()).unwrap()).unwrap();
    let me = vfs.context(Credentials::root());
    for path in ["/dir/file", "/dir", "/dir/below", "/dir/below/77", "/short"] {
        let ino = u64::from(image.ino(path));
        let found = vfs.by_number(ino).unwrap();
        assert_eq!(found.attr().ino, ino, "HANDLE-1: {path}");
        let named = vfs.lookup(&me, path, LookupFlags::default()).unwrap();
        let generations = [found.generation(), named.generation()].map(Result::unwrap);
        assert_eq!(generations[0], generations[1], "HANDLE-1: {path}");
        assert_eq!(found.inode().key(), named.inode().key(), "HANDLE-1: {path}");
        if found.attr().kind == FileType::Directory {
            assert_eq!(&*vfs.path_of(&me, &found).unwrap(), path.as_bytes());
        }
    }
    // So does a handle, which another image does not know.
    let other = Image::make("8M", &[], |_| ()).unwrap();
    let other = Vfs::new(Ext4::open(other.path()).unwrap()).unwrap();
    let foreign = other.encode_handle(&other.root()).unwrap();
    for path in [
        "/",
        "/dir/file",
        "/dir",
        "/dir/below",
        "/dir/below/77",
        "/short",
    ] {
        let named = vfs.lookup(&me, path, LookupFlags::default()).unwrap();
        let handle = vfs.encode_handle(&named).unwrap().without_path();
        let found = vfs.open_by_handle(&handle).unwrap();
        assert_eq!(found.inode().key(), named.inode().key(), "HANDLE-1: {path}");
        let mut bytes = handle.to_bytes();
        *bytes.last_mut().unwrap() ^= 1;
        for handle in [
            &Handle::from_bytes(&bytes).unwrap(),
            &foreign.clone().without_path(),
        ] {
            let err = vfs.open_by_handle(handle).unwrap_err();
            assert_eq!(err.errno(), libc::ESTALE, "HANDLE-1: {path}");
        }
    }
    let file = vfs.by_number(image.ino("/dir/file").into()).unwrap();
    assert_eq!(file.generation().unwrap(), Some(77), "HANDLE-1");
    let how = OpenHow::from(OpenFlags::READ);
    let within = Context::within(file, Credentials::root());
    let open = vfs.open(&within, "", how.resolve(LookupFlags::EMPTY_PATH));
    let mut buf = [0; 8];
    assert_eq!(open.unwrap().read_at(&mut buf, 9).unwrap(), 8);
    assert_eq!(&buf, b"contents", "HANDLE-1");
    for nobodys in [0, 1, 7, 8, 4000, 1 << 31, 1 << 32, u64::MAX] {
        let err = vfs.by_number(nobodys).unwrap_err();
        assert_eq!(err.errno(), libc::ESTALE, "HANDLE-1: {nobodys}");
    }
}

/// EDGE-1: an ACL in the image counts, and is shown.
#[test]
fn acls_of_the_image_count() {
    let user = 77;
    let acl = acl("u::6 u:77:4 g::0 m::4 o::0");
    let mut refused = None;
    let image = Image::make("16M", &["-b", "1024"], |tree| {
        let (path, flags) = (tree.join("file"), rustix::fs::XattrFlags::empty());
        fs::write(&path, b"contents").unwrap();
        refused = rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, flags).err();
    });
    let Some(image) = image else { return };
    if let Some(why) = refused {
        return rcuwalk_testkit::skip(&format!("needs a temporary directory with ACLs: {why}"));
    }
    let vfs = Vfs::new(Ext4::open(image.path()).unwrap()).unwrap();
    let ask = |user: u32| {
        let who = vfs.context(Credentials::user(user, user));
        let asked = vfs.access(&who, "/file", rcuwalk::Access::READ, LookupFlags::FOLLOW);
        asked.map_err(|err| err.errno())
    };
    // From the image, and from the cache.
    for _ in 0..2 {
        assert_eq!(ask(user), Ok(()), "EDGE-1: named in the ACL");
        assert_eq!(ask(user + 1), Err(libc::EACCES), "EDGE-1: not named");
    }
    let me = vfs.context(Credentials::root());
    let shown = vfs.get_xattr(&me, "/file", "system.posix_acl_access", LookupFlags::FOLLOW);
    assert_eq!(*shown.unwrap(), *acl);
    let full = vfs.statfs(&me, "/").unwrap();
    assert_eq!(
        (full.kind, full.block_size, full.blocks),
        (0xEF53, 1024, 16384)
    );
    assert!(full.blocks_free > 0 && full.blocks_free < full.blocks);
}
