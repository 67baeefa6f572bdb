//! chmod, chown, truncate, utimens and access by several users, beside the running kernel's
//! tmpfs.

use crate::common::beside::{ANN, BOB, EVE, GIVER, KEEPER, NOW, OMIT, Op, ROOT, Who, compare};
use rcuwalk::{
    Allocate, Context, Credentials, Error, File, InodeFlags, LookupFlags, MountFlags, OpenFlags,
    Result, SetAttr, SetTime, Timestamp, Vfs, XattrFlags,
};
use rcuwalk_memfs::MemFs;

const EVERYBODY: [Who; 6] = [ROOT, ANN, BOB, EVE, GIVER, KEEPER];
const NEW: OpenFlags = OpenFlags::READ
    .union(OpenFlags::WRITE)
    .union(OpenFlags::CREATE);

/// Ann's file and directory, in a group that she and Bob are in.
fn theirs() -> Vec<(Who, Op)> {
    [
        Op::Open("file", NEW, 0o644, 0, vec![]),
        Op::Mkdir("dir", 0o755),
        Op::Symlink("file", "link"),
        Op::Symlink("nowhere", "dangling"),
        Op::Fifo("fifo"),
        Op::Lchown("file", Some(1000), Some(1001)),
        Op::Lchown("dir", Some(1000), Some(1001)),
        Op::Lchown("link", Some(1000), Some(1001)),
        Op::Lchown("fifo", Some(1000), Some(1001)),
    ]
    .map(|op| (ROOT, op))
    .into()
}

/// EDGE-1: chmod(2): owners only, and the set-gid bit for members only.
#[test]
fn permission_bits_are_the_owners() {
    let mut script = theirs();
    for gid in [1000, 1001, 4000] {
        for who in EVERYBODY {
            for path in [
                "file", "dir", "link", "fifo", "dangling", "missing", "file/",
            ] {
                for mode in [0o7777, 0o2644, 0o600] {
                    script.push((who, Op::Chmod(path, mode)));
                    script.push((ROOT, Op::Stat(path)));
                }
            }
        }
        script.push((ROOT, Op::Chown("file", None, Some(gid))));
        script.push((ROOT, Op::Chown("dir", None, Some(gid))));
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: chown(2): groups one is in; all else takes a capability. Set-id bits are lost
/// where Linux loses them.
#[test]
fn owners_change_groups_and_others_nothing() {
    let ids = [
        (None, None),
        (Some(1000), None),
        (Some(2000), None),
        (None, Some(1000)),
        (None, Some(1001)),
        (None, Some(4000)),
        (Some(1000), Some(1001)),
        (Some(0), Some(0)),
    ];
    let mut script = theirs();
    for who in EVERYBODY {
        for mode in [0o6755, 0o2644, 0o4600, 0o755] {
            for (uid, gid) in ids {
                for path in ["file", "dir", "link", "fifo"] {
                    script.push((ROOT, Op::Lchown("link", Some(1000), Some(1001))));
                    script.push((ROOT, Op::Chown(path, Some(1000), Some(1001))));
                    script.push((ROOT, Op::Chmod(path, mode)));
                    script.push((who, Op::Chown(path, uid, gid)));
                    script.push((who, Op::Lchown(path, uid, gid)));
                    script.push((ROOT, Op::Stat(path)));
                    script.push((ROOT, Op::Stat("file")));
                }
            }
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: truncate(2) and utimensat(2): permissions and effects.
#[test]
fn sizes_and_times_have_their_rights() {
    let mut script = theirs();
    script.push((ROOT, Op::Chmod("file", 0o664)));
    let times = [
        (NOW, NOW),
        (5, NOW),
        (NOW, OMIT),
        (OMIT, NOW),
        (OMIT, OMIT),
        (5, 6),
        (OMIT, 7),
    ];
    for who in EVERYBODY {
        for path in [
            "file", "dir", "link", "fifo", "dangling", "missing", "file/",
        ] {
            for (atime, mtime) in times {
                script.push((who, Op::Utimens(path, atime, mtime)));
            }
            for size in [0, 10, 4096, 5, i64::MAX as u64 + 1] {
                script.push((who, Op::Truncate(path, size)));
            }
            script.push((ROOT, Op::Stat(path)));
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: access(2) goes by real ids and has only root's capabilities; faccessat2(2) with
/// AT_EACCESS has those that are effective.
#[test]
fn access_says_what_would_be_allowed() {
    let mut script = theirs();
    script.push((ROOT, Op::Mkdir("dir/sub", 0o700)));
    for mode in [0o000, 0o640, 0o711, 0o070, 0o007, 0o444] {
        for path in ["file", "dir", "fifo"] {
            script.push((ROOT, Op::Chmod(path, mode)));
        }
        for who in EVERYBODY {
            for path in ["file", "dir", "fifo", "link", "dangling", "dir/sub"] {
                for wanted in 0..8 {
                    script.push((who, Op::Access(path, wanted, false)));
                    script.push((who, Op::Access(path, wanted, true)));
                }
            }
        }
    }
    compare("EDGE-1", &script);
}

fn ours() -> (Vfs, Context) {
    let vfs = Vfs::new(MemFs::new()).unwrap();
    let root = vfs.context(Credentials::root());
    vfs.create(&root, "file", 0o666).unwrap();
    vfs.mkdir(&root, "dir", 0o777).unwrap();
    (vfs, root)
}

/// EDGE-1: immutable files stay as they are, and append-only files grow, for every user.
#[test]
fn flags_bind_root_as_well() {
    let (vfs, root) = ours();
    let follow = LookupFlags::FOLLOW;
    let all = |path: &str| -> Vec<i32> {
        let errno = |result: rcuwalk::Result<()>| result.err().map_or(0, |err| err.errno());
        let open = |flags: OpenFlags| vfs.open(&root, path, flags).map(drop);
        let flags = XattrFlags::empty();
        vec![
            errno(vfs.chmod(&root, path, 0o644)),
            errno(vfs.chown(&root, path, Some(0), None, follow)),
            errno(vfs.utimens(&root, path, Some(SetTime::Now), Some(SetTime::Now), follow)),
            errno(vfs.utimens(&root, path, Some(SetTime::Now), None, follow)),
            errno(vfs.set_xattr(&root, path, "user.x", b"", flags, follow)),
            errno(vfs.truncate(&root, path, 3)),
            errno(open(OpenFlags::READ)),
            errno(open(OpenFlags::WRITE)),
            errno(open(OpenFlags::WRITE | OpenFlags::APPEND)),
            errno(open(
                OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::TRUNC,
            )),
            errno(vfs.access(&root, path, rcuwalk::Access::WRITE, follow)),
        ]
    };
    let p = libc::EPERM;
    assert_eq!(all("file"), [0; 11], "EDGE-1");
    vfs.set_flags(&root, "file", InodeFlags::APPEND).unwrap();
    assert_eq!(
        all("file"),
        [p, p, 0, p, p, p, 0, p, 0, p, 0],
        "EDGE-1: append"
    );
    vfs.set_flags(&root, "file", InodeFlags::IMMUTABLE).unwrap();
    assert_eq!(
        all("file"),
        [p, p, p, p, p, p, 0, p, p, p, p],
        "EDGE-1: immutable"
    );
    let mut who = Credentials::root();
    who.caps.remove(rcuwalk::Caps::LINUX_IMMUTABLE);
    let tied = root.clone().with_credentials(who);
    let changed = vfs.set_flags(&tied, "file", InodeFlags::empty());
    assert!(matches!(changed, Err(Error::NotPermitted)), "EDGE-1");
    vfs.set_flags(&tied, "file", InodeFlags::IMMUTABLE).unwrap();
    vfs.set_flags(&root, "file", InodeFlags::empty()).unwrap();
    assert_eq!(all("file"), [0; 11], "EDGE-1");
}

/// EDGE-1: nothing changes on a read-only mount, and access(2) says so.
#[test]
fn a_read_only_mount_takes_no_changes() {
    let (vfs, root) = ours();
    let open = vfs.open(&root, "file", OpenFlags::WRITE).unwrap();
    assert!(matches!(
        vfs.remount(&root, "/", MountFlags::READ_ONLY),
        Err(Error::Busy)
    ));
    drop(open);
    vfs.remount(&root, "/", MountFlags::READ_ONLY).unwrap();
    let follow = LookupFlags::FOLLOW;
    let flags = XattrFlags::empty();
    for path in ["file", "dir"] {
        let refused = [
            vfs.chmod(&root, path, 0o600),
            vfs.chown(&root, path, Some(1), None, follow),
            vfs.utimens(&root, path, Some(SetTime::Now), None, follow),
            vfs.set_xattr(&root, path, "user.x", b"", flags, follow),
            vfs.remove_xattr(&root, path, "user.x", follow),
            vfs.set_flags(&root, path, InodeFlags::APPEND),
            vfs.access(&root, path, rcuwalk::Access::WRITE, follow),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            assert!(
                matches!(refused, Err(Error::ReadOnly)),
                "EDGE-1: {path} {number}"
            );
        }
    }
    let open = |flags: OpenFlags| vfs.open(&root, "file", flags).map(drop);
    assert!(
        open(OpenFlags::READ).is_ok() && open(OpenFlags::PATH).is_ok(),
        "EDGE-1"
    );
    assert!(
        open(OpenFlags::READ | OpenFlags::CREATE).is_ok(),
        "EDGE-1: it is there"
    );
    for flags in [OpenFlags::WRITE, OpenFlags::READ | OpenFlags::TRUNC] {
        assert!(
            matches!(open(flags), Err(Error::ReadOnly)),
            "EDGE-1: {flags:?}"
        );
    }
    let made = vfs.open(&root, "new", NEW.mode(0o644));
    assert!(matches!(made, Err(Error::ReadOnly)), "EDGE-1");
    assert!(
        matches!(vfs.truncate(&root, "file", 0), Err(Error::ReadOnly)),
        "EDGE-1"
    );
}

/// EDGE-1: several changes at once are checked one by one, and made together.
#[test]
fn several_attributes_change_at_once() {
    let (vfs, root) = ours();
    let follow = LookupFlags::FOLLOW;
    let time = SetTime::To(Timestamp { sec: 5, nsec: 6 });
    let change = SetAttr::default()
        .mode(0o6755)
        .uid(1000)
        .gid(1001)
        .size(10)
        .mtime(time);
    vfs.setattr(&root, "file", &change, follow).unwrap();
    let attr = vfs.stat(&root, "file", follow).unwrap();
    // A file that changes hands loses the set-id bits, whether they are asked for at once or
    // not.
    assert_eq!(
        (attr.mode, attr.uid, attr.gid),
        (0o755, 1000, 1001),
        "EDGE-1"
    );
    assert_eq!((attr.size, attr.mtime.sec), (10, 5), "EDGE-1");
    let eve = root.clone().with_credentials(Credentials::user(3000, 3000));
    let refused = vfs.setattr(&eve, "file", &change, follow);
    assert!(
        matches!(refused, Err(Error::PermissionDenied)),
        "EDGE-1: the size"
    );
    let times_only = SetAttr::default().mtime(time);
    let refused = vfs.setattr(&eve, "file", &times_only, follow);
    assert!(
        matches!(refused, Err(Error::NotPermitted)),
        "EDGE-1: the time"
    );
    let nonsense = SetTime::To(Timestamp {
        sec: 0,
        nsec: 1_000_000_000,
    });
    let refused = vfs.utimens(&root, "file", Some(nonsense), None, follow);
    assert!(matches!(refused, Err(Error::Invalid)), "EDGE-1");
}

/// EDGE-1: the writer's credentials decide whether set-id bits go, and not the opener's.
#[test]
fn set_id_bits_go_by_who_uses_a_file() {
    let (vfs, root) = ours();
    let owner = vfs.context(Credentials::user(1000, 1000));
    vfs.create(&root, "/tool", 0o755).unwrap();
    let none = LookupFlags::empty();
    vfs.chown(&root, "/tool", Some(1000), Some(1000), none)
        .unwrap();
    type Use = fn(&File, &Context) -> Result<()>;
    let uses: [Use; 4] = [
        |file, who| file.as_user(who).write_at(b"x", 0).map(drop),
        |file, who| file.as_user(who).allocate(Allocate::empty(), 0, 9),
        |file, who| file.as_user(who).set_len(3),
        |file, who| file.as_user(who).copy_file_range(0, file, 9, 1).map(drop),
    ];
    for opener in [&root, &owner] {
        for (user, left) in [(&root, 0o6755), (&owner, 0o755)] {
            for (n, change) in uses.into_iter().enumerate() {
                vfs.chmod(&root, "/tool", 0o6755).unwrap();
                let flags = OpenFlags::READ | OpenFlags::WRITE;
                let file = vfs.open(opener, "/tool", flags).unwrap();
                change(&file, user).unwrap();
                assert_eq!(file.attr().mode, left, "EDGE-1: use {n}");
            }
        }
    }
}
