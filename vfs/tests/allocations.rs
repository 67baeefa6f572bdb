//! A walk that misses takes no memory from the allocator beside that of the objects that it
//! caches.
//!
//! Counted by thread, so that the test harness does not disturb. Not where the objects themselves
//! come from the allocator, as under the address sanitizer.

#![cfg(not(rcuwalk_system_alloc))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rcuwalk::{
    Attr, Context, Credentials, FileType, Iget, Inode, InodeFill, InodeKey, InodeRef, LookupFlags,
    Name, Result, SuperBlock, Vfs,
};
use rcuwalk_testkit::{Wrapped, Wrapper};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may have no count any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the one that the system allocator wants.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Every name exists. Those that begin with `f` are files, the others directories; inode numbers
/// are computed, and nothing is allocated.
struct Everything;

impl Wrapper for Everything {
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, 1, FileType::Directory)
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let bytes = name.as_bytes();
        let kind = match bytes[0] {
            b'f' => FileType::Regular,
            _ => FileType::Directory,
        };
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        iget(sb, bytes.iter().fold(dir.attr().ino, mix), kind).map(Some)
    }
}

fn iget(sb: &SuperBlock, ino: u64, kind: FileType) -> Result<InodeRef> {
    Ok(match sb.iget(InodeKey::new(ino))? {
        Iget::Cached(inode) => inode,
        Iget::New(new) => new.init(InodeFill::new(Attr::new(ino, kind, 0o755))),
    })
}

/// Components of each path: directories, and a file at the end.
const DEPTH: usize = 40;

fn path(branch: &str, dir: &str) -> String {
    let dirs = format!("{dir}/").repeat(DEPTH - 2);
    format!("/{branch}/{dirs}file")
}

fn allocations_of(vfs: &Vfs, ctx: &Context, path: &str, flags: LookupFlags) -> usize {
    let before = ALLOCATIONS.get();
    vfs.stat(ctx, path, flags | LookupFlags::FOLLOW).unwrap();
    ALLOCATIONS.get() - before
}

/// MEM-1: a walk allocates what it caches, and nothing to find it: the part of an inode that only
/// directories have, and a name that is too long for its dentry. Dentries and inodes themselves
/// come from the slab.
#[test]
fn a_walk_that_misses_allocates_only_what_it_caches() {
    let vfs = Vfs::new(Wrapped::new(Everything)).unwrap();
    let ctx = vfs.context(Credentials::root());
    let long = "a directory with a name of more than 24 bytes";
    // The first walk of a thread makes its counters, and the lists of names in lookup.
    for branch in 0..4 {
        let first = path(&format!("branch-{branch}"), long);
        allocations_of(&vfs, &ctx, &first, LookupFlags::empty());
    }
    const DIRS: usize = DEPTH - 1;
    let walks = [LookupFlags::empty(), LookupFlags::REF_WALK];
    for (branch, walk) in ["one", "two"].into_iter().zip(walks) {
        let short = path(branch, "directory");
        let cold = allocations_of(&vfs, &ctx, &short, walk);
        assert_eq!(cold, DIRS, "MEM-1: {walk:?}, short names");
        for walk in walks {
            let cached = allocations_of(&vfs, &ctx, &short, walk);
            assert_eq!(cached, 0, "MEM-1: {walk:?}, cached");
        }
        let cold = allocations_of(&vfs, &ctx, &path(branch, long), walk);
        assert_eq!(cold, 2 * (DIRS - 1), "MEM-1: {walk:?}, long names");
    }
}
