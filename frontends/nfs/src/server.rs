//! The server: a thread that accepts connections, and threads that answer.
//!
//! | read                    | to learn                                             |
//! |-------------------------|------------------------------------------------------|
//! | this file               | starting and stopping                                |
//! | `server/accept.rs`      | which clients may connect, and which are cut         |
//! | `server/closer.rs`      | the thread that closes files                         |
//! | `server/worker.rs`      | the threads that answer                              |
//! | `server/connection.rs`  | one connection: what has arrived, what is to be sent |
//! | `server/connections.rs` | all of them, and their limits                        |
//!
//! All threads wait at one epoll. The one that a connection wakes reads from it, takes one request,
//! lets the next thread have the connection, and executes the request. So requests of one
//! connection are answered in parallel, a request waits in no queue of ours, and no more of them are
//! in memory than there are threads.
//!
//! While all threads are busy for a second or more (a back end that hangs, most likely), spare ones
//! are added, [`SPARES`] times as many as there were; they end when they have had nothing to do for a
//! while.
//!
//! NFS-4: clients cannot take more than was set aside for them. Each of these has a limit, after
//! which the client, and no other, waits or is cut off:
//!
//! | what                                       | limit                                     |
//! |--------------------------------------------|-------------------------------------------|
//! | connections, in all and of one address     | [`Options`](crate::Options)               |
//! | a request's length, its number of pieces   | a WRITE of the longest data, with headers |
//! | memory for a request                       | the bytes that have arrived               |
//! | time for the rest of a request             | [`Options::patience`](crate::Options::patience) |
//! | time to take an answer                     | the same                                  |
//! | requests of a connection under way         | half of the threads; [`MOST_AT_ONCE`]     |
//! | answers waiting for a client               | [`MOST_WAITING`], then no more of its requests |
//! | all that waits, of one address             | [`MOST_OF_ADDRESS`]                       |
//! | all that waits, beyond [`MOST_OF_ALL`]     | an equal share of that for each address   |
//! | files held and open, replies kept          | tables that drop the oldest               |

mod accept;
mod closer;
mod connection;
mod connections;
mod worker;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rcuwalk::Vfs;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::dispatch::Dispatcher;
use crate::export::Export;
use crate::metrics::Observer;
use crate::options::Options;
use closer::Closer;
use connection::Connection;
use connections::Connections;

/// Requests of one connection that are answered at a time.
const MOST_AT_ONCE: usize = 32;
/// Spare threads for each thread.
const SPARES: usize = 3;
/// Bytes of answers that wait for one client before no more of its requests are read.
const MOST_WAITING: usize = 1 << 20;
/// Bytes of requests and answers that wait for clients of one address.
const MOST_OF_ADDRESS: usize = 256 << 20;
/// Bytes of requests and answers that wait for clients of all addresses.
const MOST_OF_ALL: usize = 512 << 20;

/// The event of the descriptor that ends all threads.
const END: u64 = u64::MAX;

/// A socket that listens, and serves nothing yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// Those of bind(2): the port is in use, or needs privileges.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let socket = TcpListener::bind(address)?;
        // The standard library has 128 connections wait at most: fewer than clients may have.
        rustix::net::listen(&socket, 4096)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    }

    /// Where it listens, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A tree that is served by NFS, until this is dropped.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) dispatcher: Dispatcher<Arc<Connection>>,
    pub(crate) connections: Connections,
    epoll: OwnedFd,
    /// Wakes all threads for their end.
    end: OwnedFd,
    closer: Closer,
    is_over: AtomicBool,
    /// All that were started, the spare ones among them.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Threads that wait for a connection.
    waiting: AtomicUsize,
    /// Spare threads that there are.
    spares: AtomicUsize,
    /// Requests of one connection that are answered at a time.
    most_at_once: usize,
}

impl Server {
    /// Serves `vfs` from now on, to the clients of `listener`.
    ///
    /// # Errors
    /// An error of the back end as an [`io::Error`]; `EOPNOTSUPP` if it has no file handles. Out of
    /// threads or descriptors.
    pub fn start(listener: Listener, vfs: Vfs, options: Options) -> io::Result<Server> {
        let threads = options.threads;
        let connections = Connections::new(&options);
        let export = Export::new(vfs, options)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(
            &epoll,
            &end,
            epoll::EventData::new_u64(END),
            epoll::EventFlags::IN,
        )?;
        let shared = Arc::new(Shared {
            dispatcher: Dispatcher::new(export),
            connections,
            epoll,
            end,
            closer: Closer::default(),
            is_over: AtomicBool::new(false),
            threads: Mutex::default(),
            waiting: AtomicUsize::new(0),
            spares: AtomicUsize::new(0),
            most_at_once: (threads / 2).clamp(1, MOST_AT_ONCE),
        });
        let server = Server {
            shared: shared.clone(),
            address: listener.address,
        };
        // An error drops the server, which ends the threads that there are.
        for number in 0..threads {
            let answering = shared.clone();
            let run = move || worker::run(&answering, false);
            shared.start(format!("rcuwalk-nfs-{number}"), run)?;
        }
        let closing = shared.clone();
        shared.start("rcuwalk-close".to_owned(), move || closer::run(&closing))?;
        let accepting = shared.clone();
        let run = move || accept::run(&accepting, &listener.socket);
        shared.start("rcuwalk-accept".to_owned(), run)?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For statistics.
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.shared))
    }

    /// Ends the server: no new requests; those under way are answered. Waits for them.
    pub fn stop(&mut self) {
        // Relaxed: the event wakes each thread after it.
        self.shared.is_over.store(true, Relaxed);
        let _ = rustix::io::write(&self.shared.end, &1_u64.to_ne_bytes());
        self.shared.closer.wake();
        // The thread that adds spare ones is among them: when none is left, no more come.
        loop {
            let next = self.shared.threads().pop();
            let Some(thread) = next else { break };
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
        self.shared.connections.close_all();
        self.shared.dispatcher.export.opened.close_all();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn start(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name).spawn(run)?;
        let mut threads = self.threads();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Adds a thread to those that answer, unless there are enough spare ones.
    fn add_spare(self: &Arc<Self>) {
        let most = SPARES * self.dispatcher.export.options.threads;
        if self.spares.load(Relaxed) >= most {
            return;
        }
        self.spares.fetch_add(1, Relaxed);
        let shared = self.clone();
        let run = move || worker::run(&shared, true);
        if let Err(err) = self.start("rcuwalk-spare".to_owned(), run) {
            self.spares.fetch_sub(1, Relaxed);
            tracing::warn!("no thread in place of those that are busy: {err}");
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
