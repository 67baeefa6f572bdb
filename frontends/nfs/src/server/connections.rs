//! All open connections, with the limits on their number and on their memory (NFS-4).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::{MOST_OF_ADDRESS, MOST_OF_ALL};
use crate::options::Options;

/// The connections that are open.
pub(crate) struct Connections {
    open: RwLock<HashMap<u64, Arc<Connection>>>,
    shares: Mutex<HashMap<IpAddr, Arc<Share>>>,
    all: Arc<All>,
    next_id: AtomicUsize,
    most: usize,
    most_of_address: usize,
    patience: Duration,
}

/// What connections of one address take.
#[derive(Default)]
struct Share {
    connections: AtomicUsize,
    waiting: AtomicUsize,
}

/// What all connections take.
#[derive(Default)]
struct All {
    waiting: AtomicUsize,
    addresses: AtomicUsize,
}

/// The bytes that wait because of one connection, charged to its address and to all.
pub(super) struct Charge {
    now: usize,
    share: Arc<Share>,
    all: Arc<All>,
}

impl Charge {
    /// Returns false if that is more than the limits allow. When all addresses together have reached
    /// theirs, the limit of each is an equal share: so those that have taken more than that are cut,
    /// and no other one. All together stay below twice the limit.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.now, bytes);
        if bytes <= before {
            self.share.waiting.fetch_sub(before - bytes, Relaxed);
            self.all.waiting.fetch_sub(before - bytes, Relaxed);
            return true;
        }
        let more = bytes - before;
        let of_address = self.share.waiting.fetch_add(more, Relaxed) + more;
        let of_all = self.all.waiting.fetch_add(more, Relaxed) + more;
        let share = MOST_OF_ALL / self.all.addresses.load(Relaxed).max(1);
        of_address <= MOST_OF_ADDRESS && (of_all <= MOST_OF_ALL || of_address <= share)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Connections {
    pub(super) fn new(options: &Options) -> Connections {
        Connections {
            open: RwLock::default(),
            shares: Mutex::default(),
            all: Arc::default(),
            next_id: AtomicUsize::new(0),
            most: options.max_connections,
            most_of_address: options.max_connections_per_address,
            patience: options.patience,
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Connection>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&id).cloned()
    }

    /// Returns the connection to close before one more of `address` is added: `None` while the limits
    /// allow one more.
    pub(super) fn to_close_for(&self, address: IpAddr) -> Option<Arc<Connection>> {
        let of_address = {
            let shares = self.shares();
            let share = shares.get(&address);
            share.map_or(0, |share| share.connections.load(Relaxed))
        };
        if of_address >= self.most_of_address {
            return self.least(|connection| connection.peer().ip() == address);
        }
        match self.len() >= self.most {
            true => self.least(|_| true),
            false => None,
        }
    }

    /// Adds a connection.
    pub(super) fn add(&self, stream: TcpStream, peer: SocketAddr) -> Arc<Connection> {
        let share = {
            let mut shares = self.shares();
            let share = shares.entry(peer.ip()).or_default();
            share.connections.fetch_add(1, Relaxed);
            let share = share.clone();
            self.all.addresses.store(shares.len(), Relaxed);
            share
        };
        let id = self.next_id.fetch_add(1, Relaxed) as u64;
        let charge = Charge {
            now: 0,
            share,
            all: self.all.clone(),
        };
        let connection = Arc::new(Connection::new(id, stream, peer, charge));
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(id, connection.clone());
        connection
    }

    /// Returns the first to close: a connection that has never called, or else the one that was idle
    /// for longest.
    fn least(&self, is_meant: impl Fn(&Connection) -> bool) -> Option<Arc<Connection>> {
        let meant = self.all().into_iter().filter(|one| is_meant(one));
        meant.min_by_key(|one| one.standing())
    }

    /// The connections whose clients are too slow.
    pub(super) fn slow(&self, now: Instant) -> Vec<Arc<Connection>> {
        let mut all = self.all();
        all.retain(|one| one.is_too_slow(now, self.patience));
        all
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().cloned().collect()
    }

    /// Closes a connection. Returns true if its client did not end it.
    pub(super) fn close(&self, connection: &Connection) -> bool {
        if !connection.close() {
            return false;
        }
        let gone = {
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            open.remove(&connection.id())
        };
        drop(gone);
        let address = connection.peer().ip();
        let mut shares = self.shares();
        if let Some(share) = shares.get(&address)
            && share.connections.fetch_sub(1, Relaxed) == 1
        {
            shares.remove(&address);
            self.all.addresses.store(shares.len(), Relaxed);
        }
        !connection.has_ended()
    }

    pub(super) fn close_all(&self) {
        for connection in self.all() {
            self.close(&connection);
        }
    }

    pub(crate) fn len(&self) -> usize {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.len()
    }

    /// Bytes of requests and answers that wait.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.all.waiting.load(Relaxed)
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Share>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NFS-4: two clients that take all they can do not have a third one cut.
    #[test]
    fn the_greedy_are_cut_and_not_the_modest() {
        let all = Arc::<All>::default();
        all.addresses.store(3, Relaxed);
        let charge = || Charge {
            now: 0,
            share: Arc::default(),
            all: all.clone(),
        };
        let (mut one, mut two, mut modest) = (charge(), charge(), charge());
        assert!(one.set(MOST_OF_ADDRESS) && two.set(MOST_OF_ADDRESS - 1));
        assert!(modest.set(2 << 20), "NFS-4");
        assert!(!two.set(MOST_OF_ADDRESS), "NFS-4");
        assert!(!one.set(MOST_OF_ADDRESS + 1), "NFS-4");
        drop((one, two));
        assert!(modest.set(MOST_OF_ADDRESS));
        assert!(!modest.set(MOST_OF_ADDRESS + 1), "NFS-4");
        drop(modest);
        assert_eq!(all.waiting.load(Relaxed), 0);
    }
}
