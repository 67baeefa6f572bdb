//! Extended attributes by several users, beside the running kernel's tmpfs.

use crate::common::beside::{ANN, BOB, EVE, KEEPER, Op, ROOT, Who, compare};
use rcuwalk::{Caps, OpenFlags};
use std::sync::LazyLock;

const NEW: OpenFlags = OpenFlags::READ
    .union(OpenFlags::WRITE)
    .union(OpenFlags::CREATE);

/// May give capabilities to files, and nothing else.
const SETTER: Who = Who {
    uid: 3000,
    groups: &[],
    caps: Caps::SETFCAP,
};
/// May administer, and nothing else.
const ADMIN: Who = Who {
    uid: 3000,
    groups: &[],
    caps: Caps::SYS_ADMIN,
};

/// Ann's: a file, one that others may write, directories, links, a pipe.
fn theirs() -> Vec<(Who, Op)> {
    let mut script = vec![
        Op::Open("file", NEW, 0o644, 0, vec![]),
        Op::Open("shared", NEW, 0o666, 0, vec![]),
        Op::Mkdir("dir", 0o755),
        Op::Mkdir("sticky", 0o777),
        Op::Symlink("file", "link"),
        Op::Fifo("fifo"),
    ];
    let all = ["file", "shared", "dir", "sticky", "link", "fifo"];
    script.extend(all.map(|path| Op::Lchown(path, Some(1000), Some(1001))));
    script.push(Op::Chmod("sticky", 0o1777));
    script.into_iter().map(|op| (ROOT, op)).collect()
}

/// EDGE-1: permission to read, set, list and remove attributes, in every namespace.
#[test]
fn each_namespace_has_its_rights() {
    let names = [
        "user.a",
        "user.",
        "user",
        "trusted.a",
        "trusted.",
        "security.a",
        "security.",
        "security.capability",
        "system.a",
        "system.posix_acl_accesss",
        "other.a",
        "a",
        "",
        ".",
    ];
    let paths = ["file", "shared", "dir", "sticky", "link", "fifo", "missing"];
    let mut script = theirs();
    for who in [ROOT, ANN, BOB, EVE, KEEPER, SETTER, ADMIN] {
        for path in paths {
            for name in names {
                script.extend([
                    (who, Op::GetXattr(path, name)),
                    (who, Op::SetXattr(path, name, b"value".to_vec(), 0)),
                    (ROOT, Op::SetXattr(path, name, b"theirs".to_vec(), 0)),
                    (who, Op::GetXattr(path, name)),
                    (who, Op::ListXattrs(path)),
                    (who, Op::RemoveXattr(path, name)),
                    (who, Op::RemoveXattr(path, name)),
                ]);
            }
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: names and values have their limits, and flags their meaning.
#[test]
fn sizes_and_flags_are_checked_first() {
    static LONG: LazyLock<String> = LazyLock::new(|| format!("user.{}", "x".repeat(250)));
    static TOO_LONG: LazyLock<String> = LazyLock::new(|| format!("user.{}", "x".repeat(251)));
    let mut script = theirs();
    for path in ["file", "missing"] {
        for name in [&LONG, &TOO_LONG, "user.b", ""] {
            for size in [0, 1, 65536, 65537] {
                for flags in [0, 1, 2, 3, 4] {
                    let set = Op::SetXattr(path, name, vec![7; size], flags);
                    script.push((ANN, set));
                    script.push((ANN, Op::ListXattrs(path)));
                }
                script.push((ANN, Op::GetXattr(path, name)));
                script.push((ANN, Op::RemoveXattr(path, name)));
            }
        }
    }
    compare("EDGE-1", &script);
}

/// EDGE-1: file capabilities: the format of a value, and permission to set one.
#[test]
fn file_capabilities_are_checked() {
    let mut script = theirs();
    for who in [ROOT, ANN, SETTER, ADMIN] {
        for (size, header) in [
            (20, 0x0200_0000_u32),
            (20, 0x0200_0001),
            (20, 0x0200_0002),
            (24, 0x0300_0000),
            (20, 0x0300_0000),
            (24, 0x0200_0000),
            (20, 0x0100_0000),
            (3, 0),
            (0, 0),
        ] {
            let mut value = vec![0; size];
            for (to, from) in value.iter_mut().zip(header.to_le_bytes()) {
                *to = from;
            }
            // tmpfs answers version 3 with the version that the reader's namespace has.
            let name = "security.capability";
            script.push((who, Op::SetXattr("file", name, value, 0)));
            script.push((who, Op::ListXattrs("file")));
            script.push((who, Op::RemoveXattr("file", name)));
            script.push((ROOT, Op::RemoveXattr("file", name)));
        }
    }
    compare("EDGE-1", &script);
}
