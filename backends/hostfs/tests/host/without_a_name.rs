//! Files that have lost their name, reached by a path that a caller has open.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{AN_HOUR, EVERY_FRESHNESS, Scratch};
use rcuwalk::{
    Context, Credentials, Error, File, Freshness, LookupFlags, OpenFlags, SetTime, Timestamp, Vfs,
    XattrFlags,
};

const EMPTY: LookupFlags = LookupFlags::EMPTY_PATH;
const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn one_file(freshness: Freshness) -> Scratch {
    Scratch::new(freshness, |root| {
        fs::write(root.join("file"), b"0123456789").unwrap();
    })
}

/// All operations by the path of an open file, except for a new name.
fn use_place(vfs: &Vfs, ctx: &Context, file: &File) {
    let at = ctx.clone().with_cwd(file.path().clone());
    vfs.setattr(&at, "", &rcuwalk::SetAttr::default().mode(0o640), EMPTY)
        .unwrap();
    assert_eq!(file.attr().mode, 0o640, "EDGE-1");
    let then = Timestamp { sec: 5, nsec: 6 };
    vfs.utimens(&at, "", None, Some(SetTime::To(then)), EMPTY)
        .unwrap();
    assert_eq!(file.attr().mtime, then, "EDGE-1");
    vfs.chown(&at, "", None, None, EMPTY).unwrap();
    let set = XattrFlags::empty();
    vfs.set_xattr(&at, "", "user.a", b"value", set, EMPTY)
        .unwrap();
    let value = vfs.get_xattr(&at, "", "user.a", EMPTY).unwrap();
    assert_eq!(&*value, b"value", "EDGE-1");
    assert!(!vfs.list_xattrs(&at, "", EMPTY).unwrap().is_empty());
    vfs.remove_xattr(&at, "", "user.a", EMPTY).unwrap();
    let how = rcuwalk::OpenHow::from(BOTH).resolve(EMPTY);
    let again = vfs.open(&at, "", how).unwrap();
    again.write_at(b"again", 0).unwrap();
    let mut buf = [0; 8];
    assert_eq!(again.read_at(&mut buf, 0).unwrap(), 8, "EDGE-1");
    assert_eq!(&buf[..5], b"again", "EDGE-1");
    let cut = rcuwalk::SetAttr::default().size(3);
    vfs.setattr(&at, "", &cut, EMPTY).unwrap();
    assert_eq!(again.attr().size, 3, "EDGE-1");
    again.set_len(10).unwrap();
}

/// EDGE-1: an open or held file lives on without its name, whichever process removed that.
#[test]
fn an_open_file_needs_no_name() {
    for freshness in EVERY_FRESHNESS {
        for flags in [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::PATH] {
            let tree = one_file(freshness);
            let (vfs, ctx) = (&tree.vfs, &tree.ctx);
            let file = vfs.open(ctx, "/file", flags).unwrap();
            vfs.unlink(ctx, "/file").unwrap();
            use_place(vfs, ctx, &file);
            // Another file with its name changes nothing.
            fs::write(tree.host("file"), b"another").unwrap();
            use_place(vfs, ctx, &file);
            assert_eq!(fs::read(tree.host("file")).unwrap(), b"another", "EDGE-1");
            let linked = vfs.linkat(ctx, (file.path(), ""), (ctx.root(), "new"), EMPTY);
            assert!(matches!(linked, Err(Error::NotFound)), "EDGE-1: {linked:?}");
        }
    }
}

/// EDGE-1: the same behind the back of the cache.
#[test]
fn the_host_may_remove_what_is_open() {
    for freshness in EVERY_FRESHNESS {
        for flags in [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::PATH] {
            let tree = one_file(freshness);
            let (vfs, ctx) = (&tree.vfs, &tree.ctx);
            let file = vfs.open(ctx, "/file", flags).unwrap();
            fs::remove_file(tree.host("file")).unwrap();
            fs::write(tree.host("file"), b"another").unwrap();
            use_place(vfs, ctx, &file);
            assert_eq!(fs::read(tree.host("file")).unwrap(), b"another", "EDGE-1");
            // By path it is the other one that is meant.
            vfs.chmod(ctx, "/file", 0o600).unwrap();
            assert_eq!(file.attr().mode, 0o640, "EDGE-1");
        }
    }
}

/// EDGE-1: a path means the file that has the name, even if its former file is open.
#[test]
fn a_path_is_not_led_to_what_is_open() {
    for freshness in EVERY_FRESHNESS {
        let tree = one_file(freshness);
        let (vfs, ctx) = (&tree.vfs, &tree.ctx);
        let file = vfs.open(ctx, "/file", BOTH).unwrap();
        fs::write(tree.host("new"), b"new").unwrap();
        fs::rename(tree.host("new"), tree.host("file")).unwrap();
        let before = file.attr();
        vfs.chmod(ctx, "/file", 0o604).unwrap();
        assert_eq!(tree.stat("/file").unwrap().size, 3, "EDGE-1");
        assert_eq!(tree.stat("/file").unwrap().mode, 0o604, "EDGE-1");
        assert_eq!(file.attr().mode, before.mode, "EDGE-1");
        let opened = vfs.open(ctx, "/file", OpenFlags::READ).unwrap();
        assert_eq!(opened.attr().size, 3, "EDGE-1");
    }
}

/// EDGE-1: one of two names may be removed, even the one by which the file is open.
#[test]
fn a_file_that_has_lost_one_name_gets_another() {
    for flags in [OpenFlags::READ, OpenFlags::PATH] {
        let tree = one_file(Freshness::Always);
        let (vfs, ctx) = (&tree.vfs, &tree.ctx);
        vfs.link(ctx, "/file", "/second").unwrap();
        let file = vfs.open(ctx, "/file", flags).unwrap();
        vfs.unlink(ctx, "/file").unwrap();
        use_place(vfs, ctx, &file);
        vfs.linkat(ctx, (file.path(), ""), (ctx.root(), "third"), EMPTY)
            .unwrap();
        assert_eq!(file.attr().nlink, 2, "EDGE-1");
        assert_eq!(
            tree.stat("/third").unwrap().ino,
            tree.stat("/second").unwrap().ino,
            "EDGE-1"
        );
    }
}

/// INODE-1: a held file keeps its inode number from later files, and stays the same file.
#[test]
fn what_is_held_is_not_another_file() {
    let tree = Scratch::new(Freshness::EachUse, |root| {
        symlink("target", root.join("link")).unwrap();
    });
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    let how = OpenFlags::PATH | OpenFlags::NOFOLLOW;
    let link = vfs.open(ctx, "/link", how).unwrap();
    let ino = link.attr().ino;
    vfs.unlink(ctx, "/link").unwrap();
    vfs.drop_caches();
    for n in 0..64 {
        let name = format!("/new{n}");
        vfs.symlink(ctx, "elsewhere", &name).unwrap();
        assert_ne!(tree.lstat(&name).unwrap().ino, ino, "INODE-1");
    }
    let at = ctx.clone().with_cwd(link.path().clone());
    let then = Timestamp { sec: 5, nsec: 6 };
    vfs.utimens(&at, "", None, Some(SetTime::To(then)), EMPTY)
        .unwrap();
    assert_eq!(link.attr().mtime, then, "EDGE-1");
}

/// MEM-1: a descriptor is held for as long as the file is open with `PATH`, and no longer.
#[test]
fn nothing_stays_held() {
    let tree = one_file(AN_HOUR);
    let (vfs, ctx) = (&tree.vfs, &tree.ctx);
    let other = vfs.context(Credentials::root());
    for flags in [OpenFlags::READ, OpenFlags::PATH] {
        let file = vfs.open(ctx, "/file", flags).unwrap();
        let second = vfs.open(&other, "/file", flags).unwrap();
        drop(file);
        assert!(is_held(&tree), "MEM-1: the second has it open");
        drop(second);
        assert!(!is_held(&tree), "MEM-1: nobody has it open");
    }
}

/// Returns whether this process has a descriptor of the file.
fn is_held(tree: &Scratch) -> bool {
    let file = tree.host("file").canonicalize().unwrap();
    fs::read_dir("/proc/self/fd").unwrap().any(|fd| {
        let leads_to = fs::read_link(fd.unwrap().path());
        leads_to.is_ok_and(|to| to == file)
    })
}
