//! Search permission on a directory that is cached without expiry.

use std::os::unix::fs::PermissionsExt;

use rcuwalk::{Credentials, Error, Freshness, LookupFlags, Vfs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::{acl, skip};
use rustix::fs::XattrFlags;

/// EDGE-1: an ACL is seen although the mode says that everybody may search; and a
/// directory without one is gone through unasked, as all of a whole tree are.
#[test]
fn an_acl_counts_where_names_never_expire() {
    let dir = tempfile::tempdir().unwrap();
    for (name, mode) in [("open", 0o755), ("with-acl", 0o755)] {
        let sub = dir.path().join(name);
        std::fs::create_dir(&sub).unwrap();
        std::fs::set_permissions(&sub, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(sub.join("file"), b"").unwrap();
    }
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // All may search but user 77.
    let (acl, flags) = (acl("u::7 u:77:0 g::5 m::5 o::5"), XattrFlags::empty());
    let path = dir.path().join("with-acl");
    match rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, flags) {
        Err(rustix::io::Errno::NOTSUP) => {
            return skip("needs ACLs in the directory for temporary files");
        }
        set => set.unwrap(),
    }
    let fs = HostFs::new(dir.path()).unwrap();
    let vfs = Vfs::new(fs.with_freshness(Freshness::Always)).unwrap();
    for user in [77, 78] {
        let ctx = vfs.context(Credentials::user(user, user));
        // Once from the host, and twice from the cache.
        for _ in 0..3 {
            let stat = |path: &str| vfs.stat(&ctx, path, LookupFlags::FOLLOW);
            assert!(stat("/open/file").is_ok(), "EDGE-1: {user}");
            match stat("/with-acl/file") {
                Err(Error::PermissionDenied) if user == 77 => {}
                Ok(_) if user == 78 => {}
                other => panic!("EDGE-1: {user}: {other:?}"),
            }
        }
    }
}
