//! Walks in contained roots, beside others who move directories out of the root and back.
//!
//! `RCUWALK_TORTURE_SECONDS` says for how long; `RCUWALK_SEED` which walks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::{Attr, Context, Credentials, LookupFlags, OpenFlags, RenameFlags, Vfs, VfsPath};
use rcuwalk_conformance::settings::{self, Settings};
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Rng, StopOnDrop};

/// What walkers put into their paths: each of these is inside, outside, or both.
const WORDS: [&str; 14] = [
    "a", "b", "c", "d", "m", "x", "secret", "out", "up", "top", "..", "..", "..", ".",
];

/// Directories that change places, where a renamer finds them and where it puts them.
const MOVES: [(&str, &str); 5] = [
    ("/jail/a/b", "/out/b"),
    ("/jail/a/b/c", "/out/c"),
    ("/jail/a", "/out/a"),
    ("/jail/a/b/c/d", "/d"),
    ("/out/b/c", "/jail/c"),
];

/// Directories, one of them in the root, that are exchanged.
const EXCHANGED: [(&str, &str); 2] = [("/jail/x", "/out/x"), ("/jail/a", "/out/x")];

/// WALK-3: no walk in a contained root ends at what was never in it, and nothing is made
/// outside, whatever is renamed meanwhile.
#[test]
fn no_rename_leads_out_of_a_contained_root() {
    let tree = Tree::new();
    let done = AtomicBool::new(false);
    let inside = AtomicU64::new(0);
    let seconds = settings::torture_seconds(3);
    let seed = Settings::from_env(0).seed;
    thread::scope(|scope| {
        // Also when a walker finds an escape and panics.
        let _done = StopOnDrop(&done);
        for n in 0..2 {
            let (tree, done) = (&tree, &done);
            scope.spawn(move || tree.rename(Rng::new(seed + n), done));
        }
        let walkers: Vec<_> = (0..2)
            .map(|n| {
                let (tree, done, inside) = (&tree, &done, &inside);
                scope.spawn(move || {
                    let _done = StopOnDrop(done);
                    inside.fetch_add(tree.walk(Rng::new(seed + 10 + n), done), Relaxed);
                })
            })
            .collect();
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !done.load(Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        done.store(true, Relaxed);
        for walker in walkers {
            walker.join().expect("WALK-3: an escape");
        }
    });
    assert!(inside.into_inner() > 1000, "walks came to an end inside");
    for outside in ["/", "/out"] {
        let entries = tree.vfs.read_dir(&tree.ctx, outside).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().name);
        assert!(names.all(|name| *name != *b"mark"), "WALK-3: in {outside}");
    }
}

fn object(attr: &Attr) -> (u64, u64) {
    (attr.dev, attr.ino)
}

struct Tree {
    vfs: Vfs,
    ctx: Context,
    /// Inodes that are never in the jail.
    outside: HashSet<(u64, u64)>,
}

impl Tree {
    fn new() -> Tree {
        let vfs = Vfs::new(MemFs::new()).unwrap();
        let ctx = vfs.context(Credentials::root());
        let dirs = [
            "/jail",
            "/jail/a",
            "/jail/a/b",
            "/jail/a/b/c",
            "/jail/a/b/c/d",
            "/jail/m",
            "/jail/x",
            "/out",
            "/out/x",
        ];
        dirs.iter()
            .for_each(|dir| drop(vfs.mkdir(&ctx, dir, 0o755).unwrap()));
        let files = ["/jail/secret", "/jail/a/b/secret", "/out/secret", "/secret"];
        files
            .iter()
            .for_each(|file| drop(vfs.create(&ctx, file, 0o644).unwrap()));
        vfs.mount(&ctx, "/jail/m", MemFs::new()).unwrap();
        vfs.mkdir(&ctx, "/jail/m/b", 0o755).unwrap();
        vfs.symlink(&ctx, "../../..", "/jail/a/b/c/up").unwrap();
        vfs.symlink(&ctx, "../../../secret", "/jail/m/b/up")
            .unwrap();
        vfs.symlink(&ctx, "/a/b", "/jail/top").unwrap();
        let there = |path: &str| object(&vfs.stat(&ctx, path, LookupFlags::FOLLOW).unwrap());
        let outside = ["/", "/out", "/secret", "/out/secret"].map(there).into();
        Tree { vfs, ctx, outside }
    }

    fn hold(&self, path: &str) -> VfsPath {
        self.vfs
            .lookup(&self.ctx, path, LookupFlags::FOLLOW)
            .unwrap()
    }

    /// Moves directories out of the jail and back, until it is done.
    fn rename(&self, mut rng: Rng, done: &AtomicBool) {
        let (vfs, ctx) = (&self.vfs, &self.ctx);
        while !done.load(Relaxed) {
            match rng.below(40) {
                0 => vfs.drop_caches(),
                1..4 => {
                    let (a, b) = EXCHANGED[rng.below(EXCHANGED.len())];
                    let (a, b) = ((ctx.cwd(), a), (ctx.cwd(), b));
                    let _ = vfs.renameat2(ctx, a, b, RenameFlags::EXCHANGE);
                }
                _ => {
                    let (from, to) = MOVES[rng.below(MOVES.len())];
                    // One of them is there, unless it went with a directory above.
                    let _ = vfs.rename(ctx, from, to);
                    thread::yield_now();
                    let _ = vfs.rename(ctx, to, from);
                }
            }
        }
    }

    /// Walks in the jail until it is done; returns how many walks ended in it.
    fn walk(&self, mut rng: Rng, done: &AtomicBool) -> u64 {
        let jail = self.ctx.clone().with_root(self.hold("/jail"));
        let mut ctx = jail.clone().with_cwd(self.hold("/jail"));
        let mut inside = 0;
        while !done.load(Relaxed) {
            let mut path = String::from(["", "/"][rng.below(2)]);
            let words = (0..=rng.below(8)).map(|_| WORDS[rng.below(WORDS.len())]);
            path += &words.collect::<Vec<_>>().join("/");
            let flags = [
                LookupFlags::FOLLOW,
                LookupFlags::FOLLOW | LookupFlags::REF_WALK,
            ];
            match rng.below(20) {
                0 => drop(self.vfs.mkdir(&ctx, path + "/mark", 0o755)),
                1 => {
                    let create = OpenFlags::WRITE | OpenFlags::CREATE;
                    drop(self.vfs.open(&ctx, path + "/mark", create));
                }
                2 => drop(self.vfs.rmdir(&ctx, path + "/mark")),
                3 => drop(self.vfs.unlink(&ctx, path + "/mark")),
                // Goes on from there, wherever that is moved.
                4 => {
                    if let Ok(to) = self.vfs.lookup(&ctx, &path, flags[0]) {
                        assert!(
                            !self.outside.contains(&object(&to.attr())),
                            "WALK-3: to {path}"
                        );
                        ctx = jail.clone().with_cwd(to);
                    }
                }
                5 => ctx = jail.clone().with_cwd(self.hold("/jail")),
                n => {
                    if let Ok(attr) = self.vfs.stat(&ctx, &path, flags[n % 2]) {
                        assert!(!self.outside.contains(&object(&attr)), "WALK-3: {path}");
                        inside += 1;
                    }
                }
            }
        }
        inside
    }
}
