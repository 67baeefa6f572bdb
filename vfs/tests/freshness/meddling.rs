//! Back ends where something happens in the middle of a question, or that are broken.

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::FOLLOW;
use rcuwalk::{
    At, Caller, Context, Credentials, Error, FileSystem, FileType, Freshness, Inode, InodeRef,
    LookupFlags, MountFlags, Name, OpenFlags, Rename, Result, SuperBlock, Vfs, XattrFlags,
};
use rcuwalk_memfs::{MemFs, directory, file};
use rcuwalk_testkit::{Wrapped, Wrapper, iget};

const CAPABILITY: &[u8] = b"security.capability";

/// Says whether a name that is being asked about is still valid.
type Once = Arc<Mutex<Option<Box<dyn FnOnce() -> bool + Send>>>>;

/// A name that stays valid, whatever happens while the back end is asked about it.
const STAYS: &[u8] = b"stays";

/// A memfs that does something once: after it has been asked for a capability, before it says
/// whether a name is valid, or while it renames.
struct Meddled {
    fs: MemFs,
    freshness: Freshness,
    now: Once,
    in_rename: Once,
}

/// By another thread: this one is in a call (CALL-1).
fn meddle(once: &Once) -> bool {
    let next = once.lock().unwrap().take();
    next.is_none_or(|next| thread::spawn(next).join().unwrap())
}

impl Wrapper for Meddled {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.fs)
    }
    fn freshness(&self) -> Freshness {
        self.freshness
    }
    fn revalidate(
        &self,
        _: &SuperBlock,
        _: &Inode,
        name: Name<'_>,
        _: Option<&Inode>,
    ) -> Result<bool> {
        Ok(meddle(&self.now) || name.as_bytes() == STAYS)
    }
    fn rename(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        self.fs.rename(by, how)?;
        meddle(&self.in_rename);
        Ok(())
    }
    fn get_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        let value = self.fs.get_xattr(by, at, name);
        if name == CAPABILITY {
            meddle(&self.now);
        }
        value
    }
}

/// A file and a directory, and what to do when.
fn meddled(freshness: Freshness) -> (Arc<Vfs>, Context, Once) {
    let (vfs, ctx, now, _) = meddled_in_renames(freshness);
    (vfs, ctx, now)
}

/// Like `meddled`, with an action during a rename.
fn meddled_in_renames(freshness: Freshness) -> (Arc<Vfs>, Context, Once, Once) {
    let fs = MemFs::new();
    fs.add(fs.root(), b"file", file(0o666)).unwrap();
    fs.add(fs.root(), b"dir", directory(0o755)).unwrap();
    let (now, in_rename) = (Once::default(), Once::default());
    let meddled = Meddled {
        fs,
        freshness,
        now: now.clone(),
        in_rename: in_rename.clone(),
    };
    let vfs = Arc::new(Vfs::new(Wrapped::new(meddled)).unwrap());
    let ctx = vfs.context(Credentials::root());
    (vfs, ctx, now, in_rename)
}

/// A truncation that is told that a file has no capability, just before it gets one, does
/// not keep that from later writes.
#[test]
fn a_capability_that_comes_late_is_lost_by_the_next_write() {
    let (vfs, ctx, now) = meddled(Freshness::Always);
    let mut capability = [0; 20];
    capability[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    let (done, is_done) = mpsc::channel();
    let (setter_vfs, setter_ctx) = (vfs.clone(), ctx.clone());
    *now.lock().unwrap() = Some(Box::new(move || {
        let setter = thread::spawn(move || {
            let how = XattrFlags::empty();
            let set =
                setter_vfs.set_xattr(&setter_ctx, "file", CAPABILITY, &capability, how, FOLLOW);
            done.send(set).unwrap();
        });
        // The setter gets through now, or when the truncation is done.
        thread::sleep(Duration::from_millis(50));
        drop(setter);
        true
    }));
    vfs.truncate(&ctx, "file", 0).unwrap();
    is_done.recv().unwrap().unwrap();
    let get = || vfs.get_xattr(&ctx, "file", CAPABILITY, FOLLOW);
    assert_eq!(get().unwrap().len(), 20);
    let eve = vfs.context(Credentials::user(3000, 3000));
    let file = vfs.open(&eve, "file", OpenFlags::WRITE).unwrap();
    file.write_at(b"evil", 0).unwrap();
    assert!(matches!(get(), Err(Error::NoData)), "{:?}", get());
}

/// FRESH-2: the back end reports a name as outdated because another thread renames it just
/// then. The dentry has the new name, and keeps it.
#[test]
fn a_walk_of_an_old_name_does_not_drop_the_new_one() {
    let (vfs, ctx, now) = meddled(Freshness::EachUse);
    for (old, new) in [("/file", "/new file"), ("/dir", "/new dir")] {
        let held = vfs.lookup(&ctx, old, FOLLOW).unwrap();
        let (renamer, renamer_ctx): (Weak<Vfs>, _) = (Arc::downgrade(&vfs), ctx.clone());
        *now.lock().unwrap() = Some(Box::new(move || {
            let vfs = renamer.upgrade().unwrap();
            vfs.rename(&renamer_ctx, old, new).unwrap();
            false
        }));
        let seen = vfs.stat(&ctx, old, FOLLOW);
        assert!(matches!(seen, Err(Error::NotFound)), "{old}: {seen:?}");
        assert!(held.is_named(), "FRESH-2: {old}");
        assert_eq!(&*vfs.path_of(&ctx, &held).unwrap(), new.as_bytes());
        let found = vfs.lookup(&ctx, new, FOLLOW).unwrap();
        assert!(found.is_same_place(&held), "FRESH-2: a second dentry");
    }
}

/// EDGE-1: a caller that opens with `CREATE` neither opens nor follows another user's file in a
/// sticky directory, even if the directory is no longer sticky a moment later: the state that
/// the walk found decides.
#[test]
fn a_sticky_directory_protects_as_the_walk_found_it() {
    let nofollow = LookupFlags::empty();
    for kind in [FileType::Regular, FileType::Symlink] {
        let (vfs, ctx, now) = meddled(Freshness::EachUse);
        let (root, path) = (&ctx.clone().with_umask(0), "/stays");
        match kind {
            FileType::Symlink => vfs.symlink(root, "file", path).unwrap(),
            _ => vfs.create(root, path, 0o666).unwrap(),
        };
        vfs.chown(&ctx, path, Some(1), Some(1), nofollow).unwrap();
        vfs.remount(&ctx, "/", MountFlags::PROTECTED_LINKS).unwrap();
        let user = vfs.context(Credentials::user(2, 2));
        let open = || {
            let how = (OpenFlags::READ | OpenFlags::CREATE).mode(0o600);
            vfs.open(&user, path, how).map(drop)
        };
        vfs.chmod(&ctx, "/", 0o777).unwrap();
        open().unwrap();
        vfs.chmod(&ctx, "/", 0o1777).unwrap();
        let (changer, changer_ctx): (Weak<Vfs>, _) = (Arc::downgrade(&vfs), ctx.clone());
        *now.lock().unwrap() = Some(Box::new(move || {
            let vfs = changer.upgrade().unwrap();
            vfs.chmod(&changer_ctx, "/", 0o777).unwrap();
            true
        }));
        let opened = open();
        assert!(now.lock().unwrap().is_none(), "the back end was asked");
        let refused = matches!(opened, Err(Error::PermissionDenied));
        assert!(refused, "EDGE-1: {kind:?}: {opened:?}");
        open().unwrap();
    }
}

/// FRESH-2: another thread finds that the old name is gone, in the middle of its rename. The
/// dentry has the new name afterwards.
#[test]
fn a_dentry_dropped_in_the_middle_of_its_rename_has_the_new_name() {
    let (vfs, ctx, now, in_rename) = meddled_in_renames(Freshness::EachUse);
    for (old, new) in [("/file", "/new file"), ("/dir", "/new dir")] {
        let held = vfs.lookup(&ctx, old, FOLLOW).unwrap();
        let (asker, asker_ctx): (Weak<Vfs>, _) = (Arc::downgrade(&vfs), ctx.clone());
        let (done, is_done) = mpsc::channel();
        let now = now.clone();
        *in_rename.lock().unwrap() = Some(Box::new(move || {
            let (asked, is_asked) = mpsc::channel();
            *now.lock().unwrap() = Some(Box::new(move || {
                asked.send(()).unwrap();
                false
            }));
            thread::spawn(move || {
                let vfs = asker.upgrade().unwrap();
                done.send(vfs.stat(&asker_ctx, old, FOLLOW)).unwrap();
            });
            // With that answer it waits for the rename.
            is_asked.recv_timeout(Duration::from_secs(60)).is_ok()
        }));
        vfs.rename(&ctx, old, new).unwrap();
        let seen = is_done.recv().unwrap();
        assert!(matches!(seen, Err(Error::NotFound)), "{old}: {seen:?}");
        assert_eq!(&*vfs.path_of(&ctx, &held).unwrap(), new.as_bytes());
        let found = vfs.lookup(&ctx, new, FOLLOW).unwrap();
        assert!(found.is_same_place(&held), "FRESH-2: a second dentry");
    }
}

/// FRESH-2: a missing name is given a file while the back end is asked about it. The walk finds
/// the file, and the dentry stays.
#[test]
fn a_walk_finds_the_names_new_inode() {
    let (vfs, ctx, now) = meddled(Freshness::EachUse);
    let missing = vfs.stat(&ctx, "/made", FOLLOW);
    assert!(matches!(missing, Err(Error::NotFound)), "{missing:?}");
    let (maker, maker_ctx): (Weak<Vfs>, _) = (Arc::downgrade(&vfs), ctx.clone());
    let (made, is_made) = mpsc::channel();
    *now.lock().unwrap() = Some(Box::new(move || {
        let vfs = maker.upgrade().unwrap();
        vfs.mkdir(&maker_ctx, "/made", 0o755).unwrap();
        made.send(vfs.lookup(&maker_ctx, "/made", FOLLOW).unwrap())
            .unwrap();
        false
    }));
    let found = vfs.lookup(&ctx, "/made", FOLLOW).unwrap();
    let made = is_made.recv().unwrap();
    assert!(found.is_same_place(&made), "FRESH-2: a second dentry");
    assert!(made.is_named(), "FRESH-2: dropped");
}

/// FRESH-2: a name is invalidated while the back end is asked about it. The answer may be older
/// than what the caller has heard: the next walk asks again.
#[test]
fn an_older_answer_does_not_undo_an_invalidation() {
    let (vfs, ctx, now) = meddled(Freshness::EachUse);
    vfs.stat(&ctx, "/file", FOLLOW).unwrap();
    let (invalidator, invalidator_ctx): (Weak<Vfs>, _) = (Arc::downgrade(&vfs), ctx.clone());
    *now.lock().unwrap() = Some(Box::new(move || {
        let vfs = invalidator.upgrade().unwrap();
        vfs.invalidate(&invalidator_ctx, "/file").unwrap();
        true
    }));
    let looked_up = || vfs.statistics().slow_lookups;
    vfs.stat(&ctx, "/file", FOLLOW).unwrap();
    let before = looked_up();
    vfs.stat(&ctx, "/file", FOLLOW).unwrap();
    assert_eq!(looked_up(), before + 1, "FRESH-2: it is not asked for");
    vfs.stat(&ctx, "/file", FOLLOW).unwrap();
    assert_eq!(looked_up(), before + 1, "FRESH-2: it is valid now");
}

/// EDGE-1: a file system mounted on a name while the back end reports that name as outdated can
/// be reached, and unmounted.
#[test]
fn a_name_that_is_mounted_on_while_it_is_asked_for_stays() {
    let (vfs, ctx, now) = meddled(Freshness::EachUse);
    vfs.stat(&ctx, "/dir", FOLLOW).unwrap();
    let (mounter, mounter_ctx): (Weak<Vfs>, _) = (Arc::downgrade(&vfs), ctx.clone());
    *now.lock().unwrap() = Some(Box::new(move || {
        let inner = MemFs::new();
        inner.add(inner.root(), b"inner", file(0o644)).unwrap();
        let vfs = mounter.upgrade().unwrap();
        vfs.mount(&mounter_ctx, "/dir", inner).unwrap();
        false
    }));
    vfs.stat(&ctx, "/dir", FOLLOW).unwrap();
    vfs.stat(&ctx, "/dir/inner", FOLLOW).unwrap();
    vfs.umount(&ctx, "/dir").unwrap();
    let inner = vfs.stat(&ctx, "/dir/inner", FOLLOW);
    assert!(matches!(inner, Err(Error::NotFound)), "EDGE-1: {inner:?}");
}

/// Directories in which `self` is the directory itself, and any other name one below.
struct Loops;

impl Wrapper for Loops {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, 1, FileType::Directory)
    }
    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let below = u64::from(name.as_bytes()[0]);
        match name.as_bytes() {
            b"new" => Ok(None),
            b"self" => iget(sb, dir.attr().ino, FileType::Directory).map(Some),
            _ => iget(sb, dir.attr().ino * 256 + below, FileType::Directory).map(Some),
        }
    }
    fn rmdir(&self, _: &Caller<'_>, _: &Inode, _: Name<'_>, _: &Inode) -> Result<()> {
        Ok(())
    }
    fn rename(&self, _: &Caller<'_>, _: &Rename<'_>) -> Result<()> {
        Ok(())
    }
}

/// LOCK-1, DENTRY-5: a directory that is said to be in itself is neither found there nor changed.
#[test]
fn a_directory_in_itself_is_not_changed() {
    let vfs = Vfs::new(Wrapped::new(Loops)).unwrap();
    let ctx = vfs.context(Credentials::root());
    for cached in [false, true] {
        if cached {
            for path in ["/self", "/a/self", "/a/self/b"] {
                let found = vfs.stat(&ctx, path, FOLLOW);
                assert!(
                    matches!(found, Err(Error::TooManySymlinks)),
                    "DENTRY-5: {found:?}"
                );
            }
        }
        for changed in [
            vfs.rmdir(&ctx, "/self"),
            vfs.rmdir(&ctx, "/a/self"),
            vfs.rename(&ctx, "/a/self", "/b/new"),
            vfs.rename(&ctx, "/b/c", "/a/self"),
        ] {
            let refused = matches!(changed, Err(Error::TooManySymlinks));
            assert!(refused, "LOCK-1: cached: {cached}: {changed:?}");
        }
    }
}
