//! File capabilities, ACLs and trusted attributes.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcuwalk_testkit::acl;
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::{User, on_unshared, user};
use crate::common::{Mount, skip};

const CAPABILITY: &str = "security.capability";

/// CAP_NET_RAW, effective at once, in version 2.
const NET_RAW: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn capabilities_of(path: &Path) -> Result<Vec<u8>, Errno> {
    let mut value = [0; 64];
    let len = getxattr(path, CAPABILITY, &mut value)?;
    Ok(value[..len].to_vec())
}

fn give_capabilities(path: &Path) -> Result<(), Errno> {
    setxattr(path, CAPABILITY, &NET_RAW, XattrFlags::empty())
}

/// A file of user 65534.
fn file_of_user(mount: &Mount, name: &str, mode: u32) -> PathBuf {
    let path = mount.path().join(name);
    fs::write(&path, b"contents").unwrap();
    chown(&path, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// EDGE-1: a write to a file with capabilities succeeds, and removes them.
#[test]
fn a_file_with_capabilities_is_written_by_others_and_loses_them() {
    on_unshared(|mount| {
        let path = mount.path().join("tool");
        fs::write(&path, b"tool").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let append = || {
            let file = File::options().append(true).open(&path)?;
            (&file).write_all(b"more")
        };
        let cut = || File::options().write(true).open(&path)?.set_len(3);
        let empty = || File::create(&path).map(drop);
        let changes: [(&str, &(dyn Fn() -> std::io::Result<()> + Sync)); 3] =
            [("append", &append), ("cut", &cut), ("empty", &empty)];
        for (what, change) in changes {
            for uid in [65534, 0] {
                give_capabilities(&path).unwrap();
                assert_eq!(capabilities_of(&path).unwrap(), NET_RAW, "before");
                let done = match uid {
                    0 => change(),
                    uid => user(uid).does(change),
                };
                assert!(done.is_ok(), "EDGE-1: {what} by {uid}: {done:?}");
                let left = capabilities_of(&path);
                assert_eq!(left, Err(Errno::NODATA), "EDGE-1: {what} by {uid}");
            }
        }
        assert_eq!(fs::read(&path).unwrap(), b"");
        append().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"more");
    });
}

/// EDGE-1: an owner can neither set nor remove capabilities.
#[test]
fn capabilities_are_removed_and_set_by_the_privileged_only() {
    on_unshared(|mount| {
        let path = file_of_user(mount, "tool", 0o666);
        let take = || removexattr(&path, CAPABILITY);
        let (owner, stranger) = (user(65534), user(65533));
        for other in [&owner, &stranger] {
            let given = other.does(|| give_capabilities(&path));
            assert_eq!(given, Err(Errno::PERM), "EDGE-1: by {}", other.uid);
            give_capabilities(&path).unwrap();
            assert_eq!(other.does(take), Err(Errno::PERM), "EDGE-1");
            assert_eq!(capabilities_of(&path).unwrap(), NET_RAW, "EDGE-1");
            take().unwrap();
        }
        let privileged = User {
            caps: CapabilitySet::SETFCAP,
            ..user(65533)
        };
        privileged.does(|| give_capabilities(&path)).unwrap();
        assert_eq!(capabilities_of(&path).unwrap(), NET_RAW, "EDGE-1");
        privileged.does(take).unwrap();
        assert_eq!(capabilities_of(&path), Err(Errno::NODATA), "EDGE-1");
        assert_eq!(take(), Err(Errno::NODATA), "EDGE-1: there are none");
    });
}

/// EDGE-1: root of a user namespace sets capabilities of files of its users, and they count
/// there alone.
#[test]
fn an_owner_gives_capabilities_away_in_a_user_namespace() {
    let setcap = |args: &[&str], path: &Path| {
        let mut unshare = Command::new("unshare");
        unshare.args(["-Ur", "setcap"]).args(args);
        unshare.arg(path.file_name().unwrap());
        unshare.current_dir(path.parent().unwrap());
        unshare.uid(65534).gid(65534).output().unwrap()
    };
    let has = |program: &[&str]| {
        let mut run = Command::new(program[0]);
        let ran = run.args(&program[1..]).uid(65534).gid(65534).output();
        ran.is_ok_and(|ran| ran.status.success())
    };
    if !has(&["unshare", "-Ur", "true"]) || !has(&["sh", "-c", "command -v setcap"]) {
        return skip("needs unshare, setcap, and user namespaces for users");
    }
    on_unshared(|mount| {
        let path = file_of_user(mount, "tool", 0o755);
        let given = setcap(&["cap_net_raw+ep"], &path);
        assert!(given.status.success(), "EDGE-1: {given:?}");
        // Version 3, with the user id of root in that namespace.
        let mut expected = NET_RAW.to_vec();
        expected[3] = 3;
        expected.extend(65534_u32.to_le_bytes());
        assert_eq!(capabilities_of(&path).unwrap(), expected, "EDGE-1");
        let taken = setcap(&["-r"], &path);
        assert!(taken.status.success(), "EDGE-1: {taken:?}");
        assert_eq!(capabilities_of(&path), Err(Errno::NODATA), "EDGE-1");
        // Not on a file whose owner the namespace does not know.
        chown(&path, Some(0), Some(0)).unwrap();
        assert!(!setcap(&["cap_net_raw+ep"], &path).status.success());
        give_capabilities(&path).unwrap();
        assert!(!setcap(&["-r"], &path).status.success());
        assert_eq!(capabilities_of(&path).unwrap(), NET_RAW, "EDGE-1");
    });
}

/// EDGE-1: setting an ACL clears the set-gid bit if the caller is not in the group, whichever
/// of the caller's groups that is.
#[test]
fn an_acl_takes_the_set_gid_bit_from_strangers_to_the_group_only() {
    // The owner, user 65533 and a group have all rights, others have none.
    let acl = |mask: u16| acl(&format!("u::7 u:65533:7 g::7 m::{mask} o::0"));
    // More than NFS would pass on.
    let many: Vec<u32> = (5000..5040).chain([4242]).collect();
    on_unshared(|mount| {
        for is_dir in [true, false] {
            let path = mount.path().join(if is_dir { "dir" } else { "file" });
            match is_dir {
                true => fs::create_dir(&path).unwrap(),
                false => fs::write(&path, b"").unwrap(),
            }
            chown(&path, Some(65534), Some(4242)).unwrap();
            let member = User {
                groups: &many,
                ..user(65534)
            };
            let stranger = User {
                groups: &many[..40],
                ..user(65534)
            };
            let privileged = User {
                caps: CapabilitySet::FSETID,
                ..user(65534)
            };
            let without = User {
                uid: 0,
                groups: &[0],
                caps: CapabilitySet::all() - CapabilitySet::FSETID,
            };
            for (who, left) in [
                (&member, 0o2770),
                (&stranger, 0o770),
                (&privileged, 0o2770),
                (&without, 0o770),
            ] {
                fs::set_permissions(&path, Permissions::from_mode(0o2770)).unwrap();
                let set = |mask| {
                    let name = "system.posix_acl_access";
                    setxattr(&path, name, &acl(mask), XattrFlags::empty())
                };
                who.does(|| set(5)).unwrap();
                who.does(|| set(7)).unwrap();
                let mode = path.metadata().unwrap().mode() & 0o7777;
                assert_eq!(mode, left, "EDGE-1: by {}, {:?}", who.uid, who.groups);
            }
        }
    });
}

/// EDGE-1: callers without CAP_SYS_ADMIN, user 0 among them, do not see `trusted.*`.
#[test]
fn trusted_attributes_are_listed_for_cap_sys_admin_alone() {
    on_unshared(|mount| {
        let path = mount.path().join("file");
        fs::write(&path, b"").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        for name in ["trusted.secret", "user.colour"] {
            setxattr(&path, name, b"value", XattrFlags::empty()).unwrap();
        }
        let list = || {
            let mut names = [0; 256];
            let len = listxattr(&path, &mut names).unwrap();
            let mut names: Vec<_> = names[..len].split_inclusive(|byte| *byte == 0).collect();
            names.sort_unstable();
            names.concat()
        };
        let all = b"trusted.secret\0user.colour\0";
        assert_eq!(list(), all, "EDGE-1: by root");
        let root = User {
            uid: 0,
            groups: &[0],
            caps: CapabilitySet::all() - CapabilitySet::SYS_ADMIN,
        };
        let admin = User {
            caps: CapabilitySet::SYS_ADMIN,
            ..user(65534)
        };
        assert_eq!(root.does(list), b"user.colour\0", "EDGE-1: root without");
        assert_eq!(user(65534).does(list), b"user.colour\0", "EDGE-1: a user");
        assert_eq!(admin.does(list), all, "EDGE-1: a user with");
    });
}
