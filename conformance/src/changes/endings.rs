//! Every way to end a path: slashes, dots, links to all of that, long names and paths, and
//! chains of as many links as a walk follows, and of one more.

use rustix::fs::{OFlags, RenameFlags};

use crate::changes::op::{At, Bits, Node, Op, Step};
use crate::changes::users::User;

/// Paths below [`steps`]' tree, and out of it.
pub fn paths() -> Vec<String> {
    let places = [
        "file",
        "dir",
        "full",
        "new",
        "missing/x",
        "to-file",
        "to-dir",
        "to-new",
        "to-nowhere",
        "to-slash",
        "to-dot",
        "to-up",
        "to-root",
        "to-dir-dot",
        "to-new-slash",
        "to-long",
        "loop",
        "dir/to-up-new",
        "dir/../to-full",
        "file/x",
    ];
    let ends = [
        "", "/", "//", "/.", "/./", "/..", "/../", "/../.", "/x", "/x/", "/x/.", "/x/..",
    ];
    let mut paths = vec![String::new()];
    for place in places {
        paths.extend(ends.map(|end| format!("{place}{end}")));
    }
    for whole in [
        ".", "..", "./", "../", "/", "//", "/.", "/..", "/./", "/../new", "./new/",
    ] {
        paths.push(whole.into());
    }
    for links in [2, 40, 41] {
        for chain in ["to-file", "to-dir", "to-new"] {
            let ends = ["", "/", "/x", "/.."];
            paths.extend(ends.map(|end| format!("{chain}-{links}{end}")));
        }
    }
    for length in [255, 256] {
        let ends = ["", "/", "/x", "/.."];
        paths.extend(ends.map(|end| "n".repeat(length) + end));
        paths.push("dir/".to_string() + &"n".repeat(length));
    }
    for length in [4094, 4095, 4096] {
        paths.push("/".repeat(length - 3) + "new");
        paths.push("/".repeat(length % 2) + &"./".repeat((length - 4) / 2) + "/new");
        paths.push("new".to_string() + &"/".repeat(length - 3));
    }
    paths
}

/// All calls on `path`, on what each of them has left of the tree.
pub fn steps(path: &str) -> Vec<Step> {
    let path = || path.to_string();
    let link = |target: String, at: &str| Op::Symlink {
        target,
        path: at.into(),
    };
    let mkdir = |path: &str| Op::Mkdir {
        path: path.into(),
        mode: Bits(0o755),
    };
    let create = |path: &str| Op::Create {
        path: path.into(),
        mode: Bits(0o644),
    };
    let mut ops = vec![
        create("file"),
        mkdir("dir"),
        mkdir("full"),
        create("full/x"),
    ];
    for (name, target) in [
        ("to-file", "file"),
        ("to-dir", "dir"),
        ("to-full", "full"),
        ("to-new", "new-one"),
        ("to-nowhere", "missing/x"),
        ("to-slash", "dir/"),
        ("to-dot", "."),
        ("to-up", ".."),
        ("to-root", "/"),
        ("to-dir-dot", "dir/."),
        ("to-new-slash", "new-two/"),
        ("loop", "loop"),
        ("dir/to-up-new", "../new-three"),
    ] {
        ops.push(link(target.into(), name));
    }
    ops.push(link("./".repeat(2045) + "new-4", "to-long"));
    // Only where they are walked: they are many.
    for chain in ["to-file", "to-dir", "to-new"] {
        if path().starts_with(&format!("{chain}-")) {
            ops.push(link(chain.into(), &format!("{chain}-2")));
            for n in 3..=41 {
                ops.push(link(format!("{chain}-{}", n - 1), &format!("{chain}-{n}")));
            }
        }
    }
    let open = |flags| Op::Open {
        slot: 0,
        path: path(),
        flags,
        mode: Bits(0o644),
    };
    let rename = |old: String, new: String, flags| Op::Rename { old, new, flags };
    let old = |path: &str| path.to_string();
    ops.extend([
        Op::Stat {
            at: At::Path(path()),
        },
        Op::Stat {
            at: At::NoFollow(path()),
        },
        Op::ReadLink {
            at: At::NoFollow(path()),
        },
        open(OFlags::RDONLY),
        open(OFlags::RDWR | OFlags::NOFOLLOW),
        open(OFlags::RDONLY | OFlags::DIRECTORY),
        open(OFlags::RDWR | OFlags::TMPFILE),
        open(OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL),
        open(OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW),
        open(OFlags::RDWR | OFlags::CREATE),
        Op::Link {
            old: At::NoFollow(path()),
            new: old("linked"),
        },
        Op::Link {
            old: At::Path(path()),
            new: old("followed"),
        },
        Op::Link {
            old: At::Path(old("file")),
            new: path(),
        },
        link(old("x"), &path()),
        Op::Mknod {
            path: path(),
            kind: Node::Fifo,
            mode: Bits(0o644),
        },
        rename(path(), old("moved"), RenameFlags::NOREPLACE),
        rename(old("moved"), path(), RenameFlags::NOREPLACE),
        rename(path(), old("file"), RenameFlags::EXCHANGE),
        rename(old("full"), path(), RenameFlags::empty()),
        rename(path(), path(), RenameFlags::empty()),
        Op::Tree,
        Op::Unlink { path: path() },
        Op::Rmdir { path: path() },
        Op::Mkdir {
            path: path(),
            mode: Bits(0o755),
        },
        Op::Create {
            path: path(),
            mode: Bits(0o644),
        },
        rename(old("file"), path(), RenameFlags::empty()),
        Op::Rmdir { path: path() },
        Op::Truncate {
            path: path(),
            len: 1,
        },
        Op::Chdir {
            at: At::Path(path()),
        },
        Op::Tree,
    ]);
    let step = |op| Step {
        user: User::Root,
        op,
        watch: false,
    };
    ops.into_iter().map(step).collect()
}
