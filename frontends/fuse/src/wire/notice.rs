//! Notices to the kernel: that a cached name, attribute or page is stale, or that it should
//! give nodes back.
//!
//! Each is a short structure (`include/uapi/linux/fuse.h`).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rcuwalk::inode::NodeId;
use rcuwalk::{Name, Result};

use super::device;

/// Codes of notices.
const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
const INC_EPOCH: u32 = 8;
const PRUNE: u32 = 9;

/// `FUSE_EXPIRE_ONLY`.
const EXPIRE_ONLY: u32 = 1;

/// `struct fuse_out_header`.
const HEADER: usize = 16;

/// Tells the kernel that its cached data is stale. Nodes go by their ids, which are the inode
/// numbers that the mount shows.
///
/// A notice waits for locks that requests hold while they wait for their answers: never send
/// one from a thread that answers, nor with anything locked.
#[derive(Clone)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new(connection: OwnedFd) -> Notifier {
        Notifier(Arc::new(connection))
    }

    /// Gives the calling thread descriptors of its own: of the connection, and no other. After that
    /// it may do nothing but send notices by the result, or by this one if there is none.
    ///
    /// A notice of a name waits for requests, and no signal interrupts it. If the process is killed
    /// meanwhile, the thread keeps its descriptors open until the notice is over: with those of all
    /// threads, the kernel would believe that the requests are still being answered.
    pub(crate) fn alone(&self) -> Option<Notifier> {
        device::alone(&*self.0).ok().map(Notifier::new)
    }

    /// A name may stand for something else by now: the kernel removes it from its cache, with
    /// everything below it, and unmounts mounts there. It then forgets the nodes that it does
    /// not use otherwise.
    ///
    /// # Errors
    /// Those of the kernel, `ENODEV` if it is not mounted any more; an unknown name or node is
    /// no error.
    #[doc(alias("FUSE_NOTIFY_INVAL_ENTRY", "fuse_reverse_inval_entry", "d_invalidate"))]
    pub fn invalidate_entry(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.entry(parent, name, 0).map(drop)
    }

    /// Like [`invalidate_entry`](Self::invalidate_entry). False if the kernel does not know
    /// that name, or not any more.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn invalidate_known_entry(&self, parent: NodeId, name: &[u8]) -> Result<bool> {
        self.entry(parent, name, 0)
    }

    /// A name may stand for something else by now: the kernel revalidates it at the next use.
    /// The file there stays, and mounts stay as well. Kernels before 6.2 do as with
    /// [`invalidate_entry`](Self::invalidate_entry).
    ///
    /// # Errors
    /// Those of [`invalidate_entry`](Self::invalidate_entry).
    #[doc(alias("FUSE_EXPIRE_ONLY", "fuse_invalidate_entry_cache"))]
    pub fn expire_entry(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.entry(parent, name, EXPIRE_ONLY).map(drop)
    }

    /// Attributes may have changed; and, unless `data` is `None`, the contents: from `offset`
    /// on, for `len` bytes or, if that is 0, to the end.
    ///
    /// # Errors
    /// Those of the kernel; an unknown node is no error.
    #[doc(alias("FUSE_NOTIFY_INVAL_INODE", "fuse_reverse_inval_inode"))]
    pub fn invalidate_inode(&self, node: NodeId, data: Option<(u64, u64)>) -> Result<()> {
        self.inode(node, data).map(drop)
    }

    /// Like [`invalidate_inode`](Self::invalidate_inode), of attributes alone. False if the kernel
    /// does not have that inode, not yet or not any more.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn invalidate_known_inode(&self, node: NodeId) -> Result<bool> {
        self.inode(node, None)
    }

    /// Each name may stand for something else by now, and missing ones may be there: the kernel
    /// removes each from its cache when it is next used, as
    /// [`invalidate_entry`](Self::invalidate_entry) does. Waits for no lock. From Linux 6.16 on.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not know this; otherwise as for the others.
    #[doc(alias = "FUSE_NOTIFY_INC_EPOCH")]
    pub fn begin_epoch(&self) -> Result<()> {
        self.send(notice(INC_EPOCH)).map(drop)
    }

    fn inode(&self, node: NodeId, data: Option<(u64, u64)>) -> Result<bool> {
        // A negative offset leaves contents alone.
        let (offset, len) = match data {
            Some((offset, len)) => (signed(offset), signed(len)),
            None => (-1, 0),
        };
        let mut notice = notice(INVAL_INODE);
        notice.extend(node.0.to_ne_bytes());
        notice.extend(offset.to_ne_bytes());
        notice.extend(len.to_ne_bytes());
        self.send(notice)
    }

    /// The kernel drops the unused names of these nodes, and then forgets the nodes without
    /// other users: open files, current directories and mount points stay. From Linux 6.18 on.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not know this; otherwise as for the others.
    #[doc(alias("FUSE_NOTIFY_PRUNE", "d_prune_aliases"))]
    pub fn prune(&self, nodes: &[NodeId]) -> Result<()> {
        // A little less than one write may carry.
        for nodes in nodes.chunks(256) {
            let mut notice = notice(PRUNE);
            notice.extend((nodes.len() as u32).to_ne_bytes());
            notice.extend([0; 12]);
            notice.extend(nodes.iter().flat_map(|node| node.0.to_ne_bytes()));
            self.send(notice)?;
        }
        Ok(())
    }

    fn entry(&self, parent: NodeId, name: &[u8], flags: u32) -> Result<bool> {
        let name = Name::new(name)?.as_bytes();
        let mut notice = notice(INVAL_ENTRY);
        notice.extend(parent.0.to_ne_bytes());
        // A name is short.
        notice.extend((name.len() as u32).to_ne_bytes());
        notice.extend(flags.to_ne_bytes());
        notice.extend(name);
        notice.push(0);
        self.send(notice)
    }

    /// False if the kernel does not know that node or name, or not any more: it caches nothing
    /// of it.
    fn send(&self, mut notice: Vec<u8>) -> Result<bool> {
        let len = notice.len() as u32;
        notice[..4].copy_from_slice(&len.to_ne_bytes());
        match rustix::io::write(&*self.0, &notice) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notifier")
    }
}

/// Begins a notice: its length, filled in later, its code, and no request's number.
fn notice(code: u32) -> Vec<u8> {
    let mut notice = vec![0; HEADER];
    notice[4..8].copy_from_slice(&code.to_ne_bytes());
    notice
}

/// Offsets in files are signed: a larger one becomes the largest.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
