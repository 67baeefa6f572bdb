//! The side of the tree that a transport uses.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rcuwalk::inode::NodeId;
use rcuwalk::{Error, Result, Vfs};

use crate::caller::Caller;
use crate::metrics::Metrics;
use crate::ops::Ops;
use crate::own::OwnThreads;
use crate::pressure::Pressure;
use crate::watch::Watch;
use crate::{Contents, FEWEST_NODES, Options};

/// A tree that is served.
pub(crate) struct Handler {
    pub(crate) ops: Ops,
    pub(crate) timeouts: Timeouts,
    pub(crate) metrics: Arc<Metrics>,
    /// The threads that answer.
    pub(crate) own: Arc<OwnThreads>,
    /// Which requests are stuck.
    pub(crate) watch: Arc<Watch>,
    /// Requests come from another machine's kernel.
    pub(crate) is_for_guest: bool,
    /// What the kernel may do with the contents that it has read.
    pub(crate) contents: Contents,
    /// Passthrough is wanted, where it is possible.
    pub(crate) passthrough: bool,
    /// The kernel may hold written data back.
    pub(crate) writeback: bool,
    /// Idmapped mounts are wanted, where the kernel has them.
    pub(crate) idmap: bool,
    pub(crate) agreed: Agreed,
}

/// Terms of the connection that affect later requests. Set before any thread answers, so
/// relaxed.
#[derive(Default)]
pub(crate) struct Agreed {
    tells_set_ids: AtomicBool,
    long_setxattr: AtomicBool,
    idmaps: AtomicBool,
}

impl Agreed {
    pub(crate) fn set(&self, tells_set_ids: bool, long_setxattr: bool, idmaps: bool) {
        self.tells_set_ids.store(tells_set_ids, Relaxed);
        self.long_setxattr.store(long_setxattr, Relaxed);
        self.idmaps.store(idmaps, Relaxed);
    }

    /// The kernel may map users for a mount, and checks permissions alone.
    pub(crate) fn has_idmaps(&self) -> bool {
        self.idmaps.load(Relaxed)
    }

    /// SETXATTR comes in its long form.
    pub(crate) fn has_long_setxattr(&self) -> bool {
        self.long_setxattr.load(Relaxed)
    }

    /// Returns `who` with the flag of a request to change contents: whether it `loses` set-id
    /// bits.
    pub(crate) fn told(&self, who: Caller, loses: bool) -> Caller {
        match self.tells_set_ids.load(Relaxed) {
            true => who.keeping_set_ids(!loses),
            false => who,
        }
    }
}

/// How long the kernel may cache an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    pub(crate) negative: Duration,
}

/// The fields common to all requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: Opcode,
    /// The node of the request; of two directories, the first.
    pub(crate) node: NodeId,
    pub(crate) who: Caller,
}

impl Handler {
    /// Returns a handler for the next session of the same threads, in which nothing is open or
    /// known. It goes on with the counts.
    ///
    /// # Errors
    /// The tree has no root to show.
    pub(crate) fn next(&self, vfs: Vfs, options: &Options) -> Result<Handler> {
        Ok(Handler {
            metrics: self.metrics.clone(),
            own: self.own.clone(),
            watch: self.watch.clone(),
            ..Handler::for_guest(vfs, options)?
        })
    }

    /// # Errors
    /// The tree has no root to show.
    pub(crate) fn new(vfs: Vfs, options: &Options) -> Result<Handler> {
        let pressure = Pressure::new(options.max_nodes.max(FEWEST_NODES), options.handlers());
        Handler::with(vfs, options, pressure)
    }

    /// For another machine's kernel, which cannot be asked for nodes back: there are `max_nodes`
    /// at most.
    ///
    /// # Errors
    /// The tree has no root to show.
    pub(crate) fn for_guest(vfs: Vfs, options: &Options) -> Result<Handler> {
        let bound = options.max_nodes.max(FEWEST_NODES);
        // Far more, and not near the end of the type's range.
        let pressure = Pressure::new(usize::MAX >> 8, options.handlers()).bounded(bound);
        let mut handler = Handler::with(vfs, options, pressure)?;
        handler.is_for_guest = true;
        handler.ops.limits_all_files = true;
        Ok(handler)
    }

    fn with(vfs: Vfs, options: &Options, pressure: Pressure) -> Result<Handler> {
        Ok(Handler {
            ops: Ops::new(vfs, pressure)?,
            timeouts: Timeouts {
                entry: options.entry_timeout,
                attr: options.attr_timeout,
                negative: options.negative_timeout,
            },
            metrics: Arc::new(Metrics::new()),
            own: Arc::default(),
            watch: Arc::new(Watch::new()),
            is_for_guest: false,
            contents: options.contents,
            passthrough: options.passthrough,
            writeback: options.writeback,
            idmap: options.idmap,
            agreed: Agreed::default(),
        })
    }

    /// Runs one operation, for any transport. Code that counts or times operations belongs
    /// here.
    ///
    /// A panic costs the operation, not the answering thread.
    ///
    /// # Errors
    /// Those of the operation; `EIO` if it panicked.
    pub(crate) fn answer<'h, T>(
        &'h self,
        request: &Request,
        work: impl FnOnce(&'h Ops) -> Result<T>,
    ) -> Result<T> {
        let Request { op, node, who } = *request;
        // With debug logging off, this costs one check of the level.
        let _span = tracing::debug_span!("request", ?op, node = node.0, uid = who.uid).entered();
        self.metrics.measure(op, || {
            // State that a panic may leave half changed is behind locks that say so, or behind
            // guards.
            let done = catch_unwind(AssertUnwindSafe(|| work(&self.ops)));
            done.unwrap_or_else(|_| {
                let why = request.panicked();
                tracing::error!("{why}");
                Err(Error::io(io::Error::other(why)))
            })
        })
    }
}

impl Handler {
    /// Reads the next entries ahead, after the answer to a listing has been sent.
    pub(crate) fn listed(&self, handle: u64) {
        // As in `answer`. No caller waits for the result.
        let _ = catch_unwind(AssertUnwindSafe(|| self.ops.read_ahead(handle)));
    }
}

impl Request {
    fn panicked(&self) -> String {
        let Request { op, node, who } = self;
        format!("{op:?} of node {} for user {} panicked", node.0, who.uid)
    }
}

/// Defines the operations, and the list of them that counters use.
macro_rules! opcodes {
    ($($op:ident,)*) => {
        /// The operation of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Opcode {
            $($op,)*
        }

        impl Opcode {
            pub(crate) const ALL: &[Opcode] = &[$(Opcode::$op,)*];
        }
    };
}

opcodes! {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Symlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Rename,
    Link,
    Open,
    Read,
    Write,
    Statfs,
    Release,
    Fsync,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Opendir,
    Readdir,
    Readdirplus,
    Releasedir,
    Fsyncdir,
    Access,
    Create,
    Fallocate,
    Lseek,
    CopyFileRange,
    Ioctl,
    Tmpfile,
    Statx,
    Interrupt,
}
