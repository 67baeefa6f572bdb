//! Walks the built-in paths over memfs, as often as the first argument says: for
//! counting instructions, which `docs/performance.md` tells how to do.

use std::collections::HashMap;
use std::hint::black_box;

use rcuwalk::{Access, Credentials, LookupFlags, Result, Vfs};
use rcuwalk_bench::paths::PathList;
use rcuwalk_bench::tree::{Kind, TreeSpec};
use rcuwalk_memfs::{MemFs, directory, file, symlink};

fn main() -> Result<()> {
    let laps = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000);
    let vfs = Vfs::new(memfs(&TreeSpec::builtin())?)?;
    let ctx = vfs.context(Credentials::root());
    let paths = PathList::builtin().relative();
    let mut found = 0;
    for _ in 0..laps {
        for path in &paths {
            let answer = vfs.access(
                &ctx,
                black_box(path.to_bytes()),
                Access::empty(),
                LookupFlags::FOLLOW,
            );
            found += usize::from(black_box(answer).is_ok());
        }
    }
    println!("{laps} laps over {} paths, {found} found", paths.len());
    Ok(())
}

/// The tree in memory. Entries come after their directories.
fn memfs(tree: &TreeSpec) -> Result<MemFs> {
    let fs = MemFs::new();
    let mut nodes = HashMap::from([(Vec::new(), fs.root())]);
    for entry in tree.entries() {
        let new = match &entry.kind {
            Kind::Dir => directory(entry.mode as u16),
            Kind::File => file(entry.mode as u16),
            Kind::Symlink(target) => symlink(target),
        };
        let (uid, gid) = (entry.uid, entry.gid);
        let node = fs.add(nodes[entry.parent()], entry.name(), new.uid(uid).gid(gid))?;
        nodes.insert(entry.path.clone(), node);
    }
    Ok(fs)
}
