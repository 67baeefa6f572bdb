//! POSIX ACLs: the rights they give, their effect on the permission bits, and their
//! inheritance, compared with the running kernel's tmpfs; and how they are cached.

use crate::common::beside::{ANN, BOB, EVE, KEEPER, Op, ROOT, Who, With, compare};
use crate::common::{FOLLOW, REF, Tree, grow};
use rcuwalk::{Credentials, Error, LookupFlags, OpenFlags, Vfs, XattrFlags};
use rcuwalk_testkit::acl;

const NEW: OpenFlags = OpenFlags::READ
    .union(OpenFlags::WRITE)
    .union(OpenFlags::CREATE);
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// ACLs that are allowed.
const GOOD: [&str; 9] = [
    "u::6 g::4 o::0",
    "u::7 g::5 o::5",
    "u::6 g::4 m::6 o::4",
    "u::6 u:2000:6 g::0 m::6 o::0",
    "u::6 u:2000:7 u:3000:4 g::7 m::4 o::0",
    "u::0 u:1000:7 g::7 g:1001:2 m::7 o::7",
    "u::7 g::1 g:1001:4 g:2000:2 m::7 o::1",
    "u::7 u:2000:7 g::7 m::0 o::5",
    "u::4 u:3000:1 g::2 g:3000:6 m::5 o::2",
];

/// ACLs that are not.
const BAD: [&str; 12] = [
    "u::6",
    "u::6 g::4",
    "g::4 u::6 o::0",
    "u::6 u:1000:6 g::4 o::0",
    "u::6 g::4 o::0 m::7",
    "u::6 g::4 o::8",
    "u::6 u::6 g::4 o::0",
    "u::6 g::4 g::4 o::0",
    "u::6 g::4 m::7 m::7 o::0",
    "u::6 g::4 o::0 o::0",
    "x::6 g::4 o::0",
    "u::6 g::4 g:5:4 u:5:4 m::7 o::0",
];

fn set(path: &'static str, name: &'static str, text: &str) -> Op {
    Op::SetXattr(path, name, acl(text), 0)
}

/// Of Ann's: a file and a directory.
fn theirs() -> Vec<(Who, Op)> {
    [
        Op::Open("file", NEW, 0o644, 0, vec![]),
        Op::Mkdir("dir", 0o755),
        Op::Open("dir/in", NEW, 0o644, 0, vec![]),
        Op::Symlink("file", "link"),
        Op::Fifo("fifo"),
        Op::Lchown("file", Some(1000), Some(1001)),
        Op::Lchown("dir", Some(1000), Some(1001)),
        Op::Lchown("fifo", Some(1000), Some(1001)),
    ]
    .map(|op| (ROOT, op))
    .into()
}

fn seen(path: &'static str) -> [(Who, Op); 4] {
    [
        (EVE, Op::Stat(path)),
        (EVE, Op::GetXattr(path, ACCESS)),
        (EVE, Op::GetXattr(path, DEFAULT)),
        (EVE, Op::ListXattrs(path)),
    ]
}

/// EDGE-1: an ACL decides as posix_acl_permission() does, mask and all.
#[test]
fn an_acl_decides_who_may_do_what() {
    let mut script = theirs();
    for text in GOOD {
        for path in ["file", "dir"] {
            script.push((ANN, set(path, ACCESS, text)));
            script.extend(seen(path));
            for who in [ROOT, ANN, BOB, EVE, KEEPER] {
                for wanted in 1..8 {
                    script.push((who, Op::Access(path, wanted, true)));
                }
                script.push((who, Op::Open(path, OpenFlags::READ, 0, 0, vec![])));
                script.push((who, Op::Stat("dir/in")));
                script.push((who, Op::Open("dir/in", OpenFlags::READ, 0, 0, vec![])));
            }
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: which caller may set which ACL, and which values are not ACLs.
#[test]
fn only_owners_set_what_is_an_acl() {
    let mut script = theirs();
    let mut values: Vec<Vec<u8>> = BAD.iter().map(|text| acl(text)).collect();
    let other_version = [3_u32.to_le_bytes().to_vec(), acl(GOOD[0])[4..].to_vec()].concat();
    let cut = acl(GOOD[3])[..20].to_vec();
    let nobody = acl("u::6 u:4294967295:6 g::4 m::7 o::0");
    values.extend([vec![], vec![2, 0, 0], acl(""), other_version, cut, nobody]);
    values.push(acl(GOOD[3]));
    for who in [ANN, BOB, ROOT, KEEPER] {
        for path in ["file", "dir", "link", "fifo", "missing"] {
            for name in [ACCESS, DEFAULT] {
                for value in &values {
                    script.push((who, Op::SetXattr(path, name, value.clone(), 0)));
                    script.extend(seen(path));
                }
                script.push((who, Op::RemoveXattr(path, name)));
                script.push((who, Op::RemoveXattr(path, name)));
                script.extend(seen(path));
            }
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: the group's permission bits are the mask, both ways; one without anything more
/// is only permission bits.
#[test]
fn mask_and_mode_are_one() {
    let mut script = theirs();
    for gid in [1001, 4000] {
        script.push((ROOT, Op::Chown("file", None, Some(gid))));
        for text in GOOD {
            for mode in [0o777, 0o640, 0o007, 0o2755] {
                script.push((ROOT, Op::Chmod("file", 0o6777)));
                script.push((ANN, set("file", ACCESS, text)));
                script.extend(seen("file"));
                script.push((ANN, Op::Chmod("file", mode)));
                script.extend(seen("file"));
                script.push((BOB, Op::Access("file", 4, true)));
                script.push((BOB, Op::Access("file", 2, true)));
                script.push((ANN, Op::RemoveXattr("file", ACCESS)));
                script.extend(seen("file"));
                script.push((BOB, Op::Access("file", 4, true)));
            }
        }
    }
    // A change that clears set-id bits is a change of the permission bits as well.
    script.push((ROOT, Op::Chmod("file", 0o6777)));
    script.push((ANN, set("file", ACCESS, GOOD[3])));
    let write = vec![With::Write(0, b"x")];
    script.push((BOB, Op::Open("file", OpenFlags::WRITE, 0, 0, write)));
    script.extend(seen("file"));
    compare("EDGE-1", &script);
}

/// EDGE-1: a default ACL is handed down in place of the umask.
#[test]
fn directories_hand_their_default_acl_down() {
    let mut script = theirs();
    script.push((ROOT, Op::Chmod("dir", 0o777)));
    let names = [
        ("dir/f0", "dir/d0", "dir/d0/f"),
        ("dir/f1", "dir/d1", "dir/d1/f"),
        ("dir/f2", "dir/d2", "dir/d2/f"),
        ("dir/f3", "dir/d3", "dir/d3/f"),
        ("dir/f4", "dir/d4", "dir/d4/f"),
        ("dir/f5", "dir/d5", "dir/d5/f"),
        ("dir/f6", "dir/d6", "dir/d6/f"),
        ("dir/f7", "dir/d7", "dir/d7/f"),
        ("dir/f8", "dir/d8", "dir/d8/f"),
    ];
    for (text, (file, dir, below)) in GOOD.into_iter().zip(names) {
        script.push((ROOT, set("dir", DEFAULT, text)));
        let make = |path, mode| Op::Open(path, NEW, mode, 0o077, vec![]);
        script.push((ANN, make(file, 0o666)));
        script.extend(seen(file));
        script.push((ANN, Op::Mkdir(dir, 0o750)));
        script.extend(seen(dir));
        script.push((ROOT, make(below, 0o640)));
        script.extend(seen(below));
        for who in [ANN, BOB, EVE] {
            script.push((who, Op::Access(file, 4, true)));
            script.push((who, Op::Access(dir, 1, true)));
        }
    }
    script.push((ROOT, Op::Symlink("x", "dir/link")));
    script.push((EVE, Op::Stat("dir/link")));
    compare("EDGE-1", &script);
}

/// WALK-1: a directory that an ACL closes or opens is closed or open for the very next
/// walk, in each kind of walk, and changes back without it.
#[test]
fn walks_see_an_acl_as_soon_as_it_is_set() {
    let tree = Tree::new("dir/ dir/file");
    let eve = tree
        .ctx
        .clone()
        .with_credentials(Credentials::user(3000, 3000));
    let bob = tree
        .ctx
        .clone()
        .with_credentials(Credentials::user(2000, 2000));
    let stat = |who, flags| tree.vfs.stat(who, "/dir/file", flags).map(drop);
    let set = |text: &str| {
        let none = XattrFlags::empty();
        tree.vfs
            .set_xattr(&tree.ctx, "dir", ACCESS, &acl(text), none, FOLLOW)
    };
    let denied = |result: rcuwalk::Result<()>| matches!(result, Err(Error::PermissionDenied));
    for _ in 0..3 {
        for flags in [FOLLOW, REF, FOLLOW | LookupFlags::REVAL] {
            assert!(
                stat(&eve, flags).is_ok() && stat(&bob, flags).is_ok(),
                "WALK-1"
            );
        }
        set("u::7 u:2000:0 g::5 m::5 o::5").unwrap();
        for flags in [FOLLOW, REF, FOLLOW | LookupFlags::REVAL] {
            assert!(
                stat(&eve, flags).is_ok() && denied(stat(&bob, flags)),
                "WALK-1"
            );
        }
        set("u::7 u:2000:5 g::5 m::5 o::0").unwrap();
        for flags in [FOLLOW, REF, FOLLOW | LookupFlags::REVAL] {
            assert!(
                denied(stat(&eve, flags)) && stat(&bob, flags).is_ok(),
                "WALK-1"
            );
        }
        tree.vfs
            .remove_xattr(&tree.ctx, "dir", ACCESS, FOLLOW)
            .unwrap();
        tree.vfs.chmod(&tree.ctx, "dir", 0o755).unwrap();
    }
}

/// WALK-1: a forgotten ACL is asked for once, by a walk that may block, and is cached from then
/// on.
#[test]
fn a_forgotten_acl_is_asked_for() {
    let tree = Tree::new("dir/ dir/file");
    let bob = tree
        .ctx
        .clone()
        .with_credentials(Credentials::user(2000, 2000));
    let set = acl("u::7 u:2000:5 g::5 m::5 o::0");
    let none = XattrFlags::empty();
    tree.vfs
        .set_xattr(&tree.ctx, "dir", ACCESS, &set, none, FOLLOW)
        .unwrap();
    let cached = || {
        tree.vfs
            .stat(&bob, "/dir/file", FOLLOW | LookupFlags::CACHED)
    };
    assert!(tree.vfs.stat(&bob, "/dir/file", FOLLOW).is_ok());
    assert!(cached().is_ok(), "WALK-1: it is known from when it was set");
    tree.hold("dir").inode().forget_acl();
    assert!(matches!(cached(), Err(Error::WouldBlock)), "WALK-1");
    assert!(tree.vfs.stat(&bob, "/dir/file", FOLLOW).is_ok(), "WALK-1");
    assert!(cached().is_ok(), "WALK-1: kept");
    // Attributes that come from elsewhere leave it alone, unless the ctime is another.
    let (dir, mut attr) = (tree.hold("dir"), tree.hold("dir").inode().attr());
    for (nsec, keeps) in [(attr.ctime.nsec, true), (attr.ctime.nsec ^ 1, false)] {
        attr.ctime.nsec = nsec;
        let inode = dir.inode();
        assert!(inode.set_attr_since(inode.before_asking(), &attr));
        assert_eq!(cached().is_ok(), keeps, "WALK-1");
        assert!(tree.vfs.stat(&bob, "/dir/file", FOLLOW).is_ok(), "WALK-1");
    }
}

/// WALK-1: while an ACL comes and goes, only users that the permission bits or the ACL let
/// through get through.
#[test]
fn nobody_slips_through_while_an_acl_changes() {
    let tree = Tree::new("dir/ dir/file");
    // In the directory's group, whose rights the mask would seem to be.
    let group = tree
        .ctx
        .clone()
        .with_credentials(Credentials::user(3000, 0));
    tree.vfs.chmod(&tree.ctx, "dir", 0o705).unwrap();
    let rounds = crate::common::stress_ops(2_000, 50_000);
    std::thread::scope(|scope| {
        let walker = scope.spawn(|| {
            for _ in 0..rounds {
                for flags in [FOLLOW, REF] {
                    let seen = tree.vfs.stat(&group, "/dir/file", flags);
                    assert!(
                        matches!(seen, Err(Error::PermissionDenied)),
                        "WALK-1: {seen:?}"
                    );
                }
            }
        });
        let none = XattrFlags::empty();
        let more = acl("u::7 u:2000:7 g::0 m::7 o::5");
        while !walker.is_finished() {
            tree.vfs
                .set_xattr(&tree.ctx, "dir", ACCESS, &more, none, FOLLOW)
                .unwrap();
            // As setfacl(1) does it: permission bits first, in place of the mask.
            let less = acl("u::7 g::0 o::5");
            tree.vfs
                .set_xattr(&tree.ctx, "dir", ACCESS, &less, none, FOLLOW)
                .unwrap();
        }
    });
}

/// MEM-1: the cache counts with an ACL of no more than sixteen entries; a longer one is not
/// kept, also if the back end comes up with it unasked.
#[test]
fn a_long_acl_is_asked_for_each_time() {
    let fs = grow("short/ short/file long/ long/file");
    let tree = Vfs::new(fs.clone()).unwrap();
    let root = tree.context(Credentials::root());
    for (path, others) in [("short", 12), ("long", 13)] {
        let users: String = (0..others).map(|n| format!("u:{}:5 ", 2000 + n)).collect();
        let value = acl(&format!("u::7 {users}g::5 m::5 o::0"));
        let none = XattrFlags::empty();
        tree.set_xattr(&root, path, ACCESS, &value, none, FOLLOW)
            .unwrap();
    }
    let fresh = Vfs::new(fs).unwrap();
    let bob = fresh.context(Credentials::user(2000, 2000));
    for (path, kept) in [("/short/file", true), ("/long/file", false)] {
        for _ in 0..2 {
            assert!(fresh.stat(&bob, path, FOLLOW).is_ok(), "MEM-1: {path}");
            let cached = fresh.stat(&bob, path, FOLLOW | LookupFlags::CACHED);
            assert_eq!(cached.is_ok(), kept, "MEM-1: {path}: {cached:?}");
        }
    }
}
