//! The node table of a FUSE daemon, in place of a `RwLock<HashMap>` and a lookup count by hand.
//!
//! `cargo run -p rcuwalk --example fuse_node_table` looks up the files of a directory
//! from several threads, as a kernel would ask for them, and forgets them again.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use rcuwalk::inode::{Entry, Iget, InodeCache, InodeRef, Key, NodeId, NodeTable, Numbered};

/// The device and inode number of a file: two names with the same ones are hard links.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HostId(u64, u64);

impl Key for HostId {
    fn hash(&self) -> u64 {
        self.1 ^ self.0.rotate_left(32)
    }
}

/// A file that the daemon knows. A real daemon has an `O_PATH` descriptor instead of a path.
struct Node {
    id: NodeId,
    path: PathBuf,
}

impl Numbered for Node {
    fn node_id(&self) -> NodeId {
        self.id
    }
}

type NodeRef = InodeRef<HostId, Node>;
struct Daemon {
    cache: InodeCache<HostId, Node>,
    known: NodeTable<HostId, Node>,
}

impl Daemon {
    fn new(root: &Path) -> io::Result<Daemon> {
        let daemon = Daemon {
            // Nodes that the kernel has forgotten stay cached, up to these many.
            cache: InodeCache::builder().inodes(100_000).build(),
            known: NodeTable::new(),
        };
        let root = daemon.known.entry(daemon.node(root.to_owned())?);
        assert_eq!(root.sent(), NodeId::ROOT);
        Ok(daemon)
    }

    /// The node of a file: cached, or read in by one thread while others wait.
    fn node(&self, path: PathBuf) -> io::Result<NodeRef> {
        let meta = path.symlink_metadata()?;
        match self.cache.iget(HostId(meta.dev(), meta.ino()))? {
            Iget::Cached(node) => Ok(node),
            // An early return here would wake the waiters.
            Iget::New(new) => {
                let id = self.known.new_id();
                Ok(new.init(Node { id, path }))
            }
        }
    }

    /// FUSE_LOOKUP: the entry carries the node's reference and one count. Once it is
    /// `sent`, the kernel has the count; dropped, it is taken back.
    fn lookup(&self, parent: NodeId, name: &OsStr) -> io::Result<Entry<'_, HostId, Node>> {
        let dir = self.known.get(parent)?;
        let node = self.node(dir.path.join(name))?;
        Ok(self.known.entry(node))
    }

    /// FUSE_GETATTR: an id that was given back is ESTALE, and never another file.
    fn size(&self, id: NodeId) -> io::Result<u64> {
        let node = self.known.get(id)?;
        Ok(node.path.symlink_metadata()?.len())
    }

    /// FUSE_FORGET.
    fn forget(&self, id: NodeId, lookups: u64) {
        // An error means that the kernel forgets more than it has looked up.
        let _ = self.known.forget(id, lookups);
    }
}

fn main() -> io::Result<()> {
    let place = tempfile::tempdir()?;
    let dir = place.path();
    for n in 0..100 {
        std::fs::write(dir.join(n.to_string()), "x".repeat(n))?;
    }
    std::fs::hard_link(dir.join("7"), dir.join("seven"))?;
    let daemon = Daemon::new(dir)?;

    // Eight threads look everything up, and give most of it back while others still ask.
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for n in (0..100u64).cycle().take(10_000) {
                    let name = n.to_string();
                    let entry = daemon.lookup(NodeId::ROOT, name.as_ref());
                    let id = entry.expect("it is there").sent();
                    assert_eq!(daemon.size(id).expect("known"), n);
                    daemon.forget(id, 1);
                }
            });
        }
    });
    assert_eq!(daemon.known.len(), 1, "all but the root are forgotten");
    let seven = daemon.lookup(NodeId::ROOT, "7".as_ref())?.sent();
    let alias = daemon.lookup(NodeId::ROOT, "seven".as_ref())?.sent();
    assert_eq!(seven, alias, "hard links share a node");
    daemon.forget(seven, 2);
    let gone = daemon.size(seven).expect_err("given back");
    println!("80,000 lookups; {seven:?}: {gone}");
    Ok(())
}
