//! One node for each inode, whatever its id is.

use std::collections::HashSet;
use std::thread;

use rcuwalk::{Credentials, LookupFlags, Vfs};
use rcuwalk_memfs::MemFs;

use super::*;

/// A tree with the file `a` in the root's file system, with the second name `b`, and the same
/// in another file system, at `/other`.
fn tree() -> (Vfs, Nodes) {
    let vfs = Vfs::new(MemFs::new()).unwrap();
    let ctx = vfs.context(Credentials::root());
    vfs.mkdir(&ctx, "/other", 0o755).unwrap();
    vfs.mount(&ctx, "/other", MemFs::new()).unwrap();
    for top in ["", "/other"] {
        vfs.mknod(
            &ctx,
            format!("{top}/a"),
            rcuwalk::FileType::Regular,
            0o644,
            0,
        )
        .unwrap();
        vfs.link(&ctx, format!("{top}/a"), format!("{top}/b"))
            .unwrap();
    }
    let nodes = Nodes::new(&vfs.root(), Pressure::new(1000, 2)).unwrap();
    (vfs, nodes)
}

fn at(vfs: &Vfs, path: &str) -> VfsPath {
    let ctx = vfs.context(Credentials::root());
    vfs.lookup(&ctx, path, LookupFlags::default()).unwrap()
}

/// NODE-5: a file has its number as id where it can, and one id by all its names.
#[test]
fn all_names_of_a_file_share_a_node() {
    let (vfs, nodes) = tree();
    let entry = |path: &str| nodes.entry(&at(&vfs, path)).unwrap().0;
    let a = entry("/a");
    assert_eq!(a.id().0, at(&vfs, "/a").attr().ino, "NODE-5: its number");
    assert_eq!(a.id(), entry("/b").id(), "NODE-5");
    let other = entry("/other/a");
    assert_ne!(other.id().0 & DRAWN, 0, "NODE-5: no number of the root's");
    assert_eq!(other.id(), entry("/other/b").id(), "NODE-5");
    assert_eq!(nodes.id_of(&at(&vfs, "/other/b")), Some(other.id()));
    assert_eq!(entry("/").id(), NodeId::ROOT, "NODE-5");
    assert_eq!(nodes.len(), 3, "NODE-5: two files and the root");
    let id = other.sent();
    nodes.forget(id, 1);
    assert_ne!(entry("/other/a").id(), id, "NODE-5: drawn again");
    drop(a);
    assert_eq!(nodes.len(), 1, "NODE-4: unsent, or forgotten");
}

/// NODE-5: a file whose number another node has gets a drawn id, and keeps it for as long as it
/// is known, also when the number is free again.
#[test]
fn a_number_that_is_taken_is_not_given_to_another() {
    let (vfs, nodes) = tree();
    let (a, other) = (at(&vfs, "/a"), at(&vfs, "/other/a"));
    let number = NodeId(a.attr().ino);
    // As for a deleted file of that number.
    let taken = nodes.new_entry(&other, Some(number)).unwrap().sent();
    assert_eq!(taken, number);
    assert_eq!(nodes.entry(&other).unwrap().0.sent(), number, "NODE-5");
    let drawn = nodes.entry(&a).unwrap().0.sent();
    assert_ne!(drawn.0 & DRAWN, 0, "NODE-5");
    nodes.forget(number, 2);
    assert_eq!(
        nodes.get(number).err().map(|err| err.errno()),
        Some(libc::ESTALE)
    );
    let again = nodes.entry(&at(&vfs, "/b")).unwrap().0.sent();
    assert_eq!(again, drawn, "NODE-5: one node");
    nodes.forget(drawn, 2);
    assert_eq!(
        nodes.entry(&a).unwrap().0.id(),
        number,
        "NODE-5: free again"
    );
    assert_eq!(nodes.len(), 1);
}

/// NODE-5: of threads that look a file up at once, and forget it again, all that have a count at
/// one time have it by one id, which leads to that file.
#[test]
fn threads_share_a_node() {
    let (vfs, nodes) = tree();
    let (vfs, nodes) = (&vfs, &nodes);
    for top in ["", "/other"] {
        // Held by one thread all the time in the second half.
        for is_held in [false, true] {
            let path = at(vfs, &format!("{top}/a"));
            let held = is_held.then(|| nodes.entry(&path).unwrap().0.sent());
            let ids: HashSet<NodeId> = thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|n| {
                        let name = if n % 2 == 0 { "a" } else { "b" };
                        let path = at(vfs, &format!("{top}/{name}"));
                        scope.spawn(move || {
                            let mut ids = HashSet::new();
                            for _ in 0..2000 {
                                let entry = nodes.entry(&path).unwrap().0;
                                let id = entry.sent();
                                let node = nodes.get(id).expect("NODE-4: known");
                                assert!(node.stands_for(path.inode()), "NODE-5: {id:?}");
                                assert_eq!(nodes.id_of(&path), Some(id), "NODE-5: two nodes");
                                nodes.forget(id, 1);
                                ids.insert(id);
                            }
                            ids
                        })
                    })
                    .collect();
                let ids = all.into_iter().map(|one| one.join().unwrap());
                ids.flatten().collect()
            });
            if let Some(held) = held {
                assert_eq!(ids, HashSet::from([held]), "NODE-5: one node");
                nodes.forget(held, 1);
            }
            assert_eq!(nodes.len(), 1, "NODE-4: all is given back");
        }
    }
    assert!(nodes.drawn.is_empty(), "MEM-1");
}
