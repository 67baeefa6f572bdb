//! Many threads that change shared directories at random, and the invariants that hold then.
//!
//! Their results depend on timing, so they are only checked for absurd ones. Afterwards
//! [`census`] reads the tree in every way there is, and checks that it is a tree whose counts
//! are right.

use std::collections::HashMap;

use rcuwalk::{
    Attr, Context, Credentials, Error, FileType, LookupFlags, OpenFlags, RenameFlags, Vfs, VfsPath,
};

use rcuwalk_testkit::Rng;

/// The names there are, at each of three levels.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Changes made by one thread; some places are held on to meanwhile.
///
/// # Panics
/// If an operation comes to what no change of others explains, or a place that is held
/// becomes another.
pub fn member(vfs: &Vfs, rng: &mut Rng, operations: usize) {
    let ctx = vfs.context(Credentials::root());
    let mut held: Vec<(VfsPath, Attr)> = Vec::new();
    for _ in 0..operations {
        if let Err(err) = operate(vfs, &ctx, rng, &mut held) {
            assert!(
                is_explained(&err),
                "EDGE-1: {err} is not what others' changes explain"
            );
        }
        for (place, before) in &held {
            let now = place.attr();
            assert_eq!(
                (now.ino, now.kind),
                (before.ino, before.kind),
                "INODE-1: a place that is held became another"
            );
        }
    }
}

fn operate(
    vfs: &Vfs,
    ctx: &Context,
    rng: &mut Rng,
    held: &mut Vec<(VfsPath, Attr)>,
) -> rcuwalk::Result<()> {
    let (path, other) = (path(rng), path(rng));
    let way = *rng.pick(&[LookupFlags::empty(), LookupFlags::REF_WALK]);
    match rng.below(24) {
        0..4 => vfs.mkdir(ctx, path, 0o755).map(drop),
        4..6 => vfs.create(ctx, path, 0o644).map(drop),
        6 => {
            let how = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::APPEND;
            let file = vfs.open(ctx, path, how.mode(0o644))?;
            file.write_at(b"line\n", 0).map(drop)
        }
        7 => vfs.symlink(ctx, other, path).map(drop),
        8..10 => vfs.link(ctx, path, other).map(drop),
        10..12 => vfs.unlink(ctx, path),
        12..14 => vfs.rmdir(ctx, path),
        14..18 => {
            let flags = *rng.pick(&[
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::EXCHANGE,
                RenameFlags::NOREPLACE,
            ]);
            vfs.renameat2(ctx, (ctx.cwd(), path), (ctx.cwd(), other), flags)
        }
        18..20 => vfs.stat(ctx, path, way).map(drop),
        20..22 => {
            let place = vfs.lookup(ctx, path, way)?;
            held.insert(0, (place.clone(), place.attr()));
            held.truncate(3);
            Ok(())
        }
        _ => {
            for entry in vfs.read_dir(ctx, path)? {
                entry?;
            }
            Ok(())
        }
    }
}

fn path(rng: &mut Rng) -> String {
    let depth = rng.between(1, 3);
    (0..depth)
        .map(|_| format!("/{}", rng.pick(&NAMES)))
        .collect()
}

fn is_explained(err: &Error) -> bool {
    matches!(
        err.errno(),
        libc::ENOENT
            | libc::EEXIST
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::ENOTEMPTY
            | libc::EINVAL
            | libc::ELOOP
            | libc::EPERM
    )
}

/// Counts everything below the root, which no thread is changing, and returns the number of
/// inodes.
///
/// # Errors
/// What is not as it must be.
pub fn census(vfs: &Vfs) -> Result<usize, String> {
    let ctx = vfs.context(Credentials::root());
    let mut counted = HashMap::new();
    count(vfs, &ctx, "/", &mut counted)?;
    for (ino, (attr, names)) in &counted {
        if attr.kind != FileType::Directory && attr.nlink as usize != *names {
            return Err(format!("inode {ino} has {names} names: {attr:?}"));
        }
    }
    Ok(counted.len())
}

/// What an inode number was found to be, and by how many names.
type Counted = HashMap<u64, (Attr, usize)>;

fn count(vfs: &Vfs, ctx: &Context, path: &str, counted: &mut Counted) -> Result<(), String> {
    let attr = both_ways(vfs, ctx, path)?.ok_or_else(|| format!("{path} is listed, not found"))?;
    let seen = counted.entry(attr.ino).or_insert((attr, 0));
    seen.1 += 1;
    if attr.kind != FileType::Directory {
        return Ok(());
    }
    if seen.1 > 1 {
        return Err(format!("{path} is a directory that was found before"));
    }
    let listing = vfs
        .read_dir(ctx, path)
        .map_err(|err| format!("{path}: {err}"))?;
    let mut listed = HashMap::new();
    for entry in listing {
        let entry = entry.map_err(|err| format!("{path}: {err}"))?;
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if let Some(ino) = listed.insert(name, entry.ino) {
            return Err(format!(
                "DIR-1: {path} has two entries of a name, one is {ino}"
            ));
        }
    }
    let mut directories = 0;
    for name in NAMES {
        let below = format!("{}/{name}", path.trim_end_matches('/'));
        let found = both_ways(vfs, ctx, &below)?;
        if found.map(|attr| attr.ino) != listed.get(name).copied() {
            let listed = listed.get(name);
            return Err(format!("{below}: listed {listed:?}, found {found:?}"));
        }
        if let Some(found) = found {
            directories += u32::from(found.kind == FileType::Directory);
            count(vfs, ctx, &below, counted)?;
        }
    }
    if listed.len() > NAMES.len() || attr.nlink != 2 + directories {
        let entries = listed.len();
        return Err(format!(
            "{path} with {entries} entries, {directories} of them directories: {attr:?}"
        ));
    }
    Ok(())
}

/// What both walkers, and a lookup, say of `path`, if they agree.
fn both_ways(vfs: &Vfs, ctx: &Context, path: &str) -> Result<Option<Attr>, String> {
    let refs = vfs.stat(ctx, path, LookupFlags::REF_WALK);
    let rcu = vfs.stat(ctx, path, LookupFlags::empty());
    let looked = vfs
        .lookup(ctx, path, LookupFlags::empty())
        .map(|place| place.attr());
    let told = |outcome: rcuwalk::Result<Attr>| match outcome {
        Ok(attr) => Ok(Some(attr)),
        Err(err) if err.errno() == libc::ENOENT => Ok(None),
        Err(err) => Err(format!("{path}: {err}")),
    };
    let (refs, rcu, looked) = (told(refs)?, told(rcu)?, told(looked)?);
    if refs != rcu || rcu != looked {
        return Err(format!(
            "WALK-1: {path}: REF-walk {refs:?}, RCU-walk {rcu:?}, lookup {looked:?}"
        ));
    }
    Ok(rcu)
}
