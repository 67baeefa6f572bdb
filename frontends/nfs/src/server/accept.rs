//! The thread that accepts connections, and cuts those that take too long.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Shared;
use super::worker::close;

/// How often it looks for clients that are too slow.
const TICK: Duration = Duration::from_secs(1);

pub(super) fn run(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut next_tick = Instant::now() + TICK;
    let mut was_busy = false;
    let mut refusals = Refusals::default();
    while !shared.is_over() {
        let now = Instant::now();
        if now >= next_tick {
            tick(shared, now);
            let is_busy = shared.waiting.load(Relaxed) == 0;
            if is_busy && was_busy {
                shared.add_spare();
            }
            was_busy = is_busy;
            next_tick = now + TICK;
        }
        let wait = Timespec::try_from(next_tick.saturating_duration_since(now)).ok();
        let mut ready = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(&shared.end, PollFlags::IN),
        ];
        // An error is an interruption: it looks again.
        if poll(&mut ready, wait.as_ref()).is_ok() && !ready[0].revents().is_empty() {
            accept(shared, listener, &mut refusals);
        }
    }
}

fn tick(shared: &Shared, now: Instant) {
    for slow in shared.connections.slow(now) {
        tracing::info!(client = %slow.peer(), "cut: it takes too long");
        close(shared, &slow);
    }
}

/// Accepts all connections that wait, but looks at the clock in between.
fn accept(shared: &Shared, listener: &TcpListener, refusals: &mut Refusals) {
    for _ in 0..64 {
        match listener.accept() {
            Ok((stream, peer)) => {
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                take_in(shared, stream, peer, refusals);
            }
            Err(err) if is_out_of_resources(&err) => {
                // Descriptors, most likely: not for ever. Open files give theirs back.
                shared.closer.needs_descriptors();
                std::thread::sleep(Duration::from_millis(50));
                return;
            }
            // None is left, or the one that was there is gone.
            Err(_) => return,
        }
    }
}

fn is_out_of_resources(err: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let out = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    out.iter()
        .any(|errno| Some(errno.raw_os_error()) == err.raw_os_error())
}

/// The clients that are not let in. One a second is logged: anyone who reaches the port is among them,
/// and could fill the log.
#[derive(Default)]
struct Refusals {
    logged: Option<Instant>,
}

impl Refusals {
    fn log(&mut self, client: SocketAddr) {
        let now = Instant::now();
        let is_new = |logged| now.saturating_duration_since(logged) >= TICK;
        if self.logged.is_none_or(is_new) {
            self.logged = Some(now);
            tracing::info!(%client, "not let in");
        }
    }
}

fn take_in(shared: &Shared, stream: TcpStream, peer: SocketAddr, refusals: &mut Refusals) {
    let options = &shared.dispatcher.export.options;
    let is_allowed = options
        .allow
        .iter()
        .any(|network| network.contains(peer.ip()));
    // Answers go at once: clients wait for each. Fails only for a connection that is gone.
    let _ = stream.set_nodelay(true);
    // So that a client that has lost its power does not stay for ever.
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    if !is_allowed || stream.set_nonblocking(true).is_err() {
        shared.dispatcher.metrics.cut.fetch_add(1, Relaxed);
        refusals.log(peer);
        return;
    }
    while let Some(other) = shared.connections.to_close_for(peer.ip()) {
        tracing::debug!(client = %other.peer(), "cut: there are too many connections");
        close(shared, &other);
    }
    let connection = shared.connections.add(stream, peer);
    match connection.register(shared) {
        Ok(()) => tracing::debug!(client = %peer, "connected"),
        Err(err) => {
            tracing::warn!(client = %peer, "not let in: {err}");
            close(shared, &connection);
        }
    }
}
