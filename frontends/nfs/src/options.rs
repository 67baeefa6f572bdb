//! What a server lets its clients do, and how much of each it has.

use std::net::SocketAddr;
use std::time::Duration;

use rcuwalk::HandleKey;

use crate::Network;

/// The user that a client acts as if it may not act as the one it names.
pub const NOBODY: u32 = 65534;

/// Ports from here on may be used by anyone.
const FIRST_OPEN_PORT: u16 = 1024;

/// Which of the users that clients name count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Every user but root; user 0 and group 0 become nobody.
    #[default]
    #[doc(alias = "root_squash")]
    Root,
    /// No user counts: every client acts as nobody.
    #[doc(alias = "all_squash")]
    All,
    /// Every user counts, root as well.
    #[doc(alias = "no_root_squash")]
    None,
}

/// How a tree is served.
///
/// ```
/// use rcuwalk::HandleKey;
/// use rcuwalk_nfs::{Options, Squash};
///
/// let options = Options::new(HandleKey::new([7; 16]))
///     .squash(Squash::All)
///     .allow(["192.0.2.0/24".parse().unwrap()]);
/// assert_eq!(options.threads, Options::new(HandleKey::new([0; 16])).threads);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Signs file handles. Handles of before a restart are valid if the key is the same.
    pub key: HandleKey,
    /// The clients that may connect.
    pub allow: Vec<Network>,
    /// Accept calls from ports that any user may use. A user of an allowed machine can then say to
    /// be any other user.
    pub insecure: bool,
    /// Users that count.
    pub squash: Squash,
    /// Changes of names and attributes are answered when they are on disk. Without it they are when
    /// the host has them. WRITE and COMMIT keep what they promise in either case.
    pub sync: bool,
    /// Threads that answer.
    pub threads: usize,
    /// Files that are held for clients, so that their handles need not be looked up.
    pub max_files: usize,
    /// Files that stay open for later reads and writes.
    pub max_open: usize,
    /// Connections in all.
    pub max_connections: usize,
    /// Connections of one address.
    pub max_connections_per_address: usize,
    /// Time that a client has for the rest of a request, and to take an answer.
    pub patience: Duration,
}

impl Options {
    /// The defaults: clients of this machine, at ports below 1024, root squashed, everything on disk
    /// before the answer.
    pub fn new(key: HandleKey) -> Options {
        let processors = std::thread::available_parallelism().map_or(2, |n| n.get());
        Options {
            key,
            allow: Network::LOOPBACK.to_vec(),
            insecure: false,
            squash: Squash::Root,
            sync: true,
            threads: (4 * processors).clamp(8, 64),
            max_files: 1 << 16,
            max_open: 256,
            max_connections: 1024,
            max_connections_per_address: 256,
            patience: Duration::from_secs(30),
        }
    }

    /// Sets the clients that may connect.
    pub fn allow(mut self, networks: impl IntoIterator<Item = Network>) -> Options {
        self.allow = networks.into_iter().collect();
        self
    }

    /// Sets the users that count.
    pub fn squash(mut self, squash: Squash) -> Options {
        self.squash = squash;
        self
    }

    /// See [`insecure`](Self::insecure).
    pub fn insecure(mut self, insecure: bool) -> Options {
        self.insecure = insecure;
        self
    }

    /// Whether calls of this client are answered, other than those for nothing.
    pub(crate) fn heeds(&self, client: SocketAddr) -> bool {
        self.insecure || client.port() < FIRST_OPEN_PORT
    }

    /// See [`sync`](Self::sync).
    pub fn sync(mut self, sync: bool) -> Options {
        self.sync = sync;
        self
    }

    /// Sets how many threads answer.
    pub fn threads(mut self, threads: usize) -> Options {
        self.threads = threads.max(1);
        self
    }

    /// Sets how many files are held for clients.
    pub fn max_files(mut self, files: usize) -> Options {
        self.max_files = files.max(64);
        self
    }

    /// Sets how many files stay open.
    pub fn max_open(mut self, files: usize) -> Options {
        self.max_open = files.max(1);
        self
    }

    /// Sets how many connections there may be, in all and of one address.
    pub fn max_connections(mut self, all: usize, per_address: usize) -> Options {
        self.max_connections = all.max(1);
        self.max_connections_per_address = per_address.clamp(1, self.max_connections);
        self
    }

    /// Sets the time that a client has for the rest of a request, and to take an answer.
    pub fn patience(mut self, patience: Duration) -> Options {
        self.patience = patience;
        self
    }
}
