//! From mounted to unmounted: reactions to signals, and answers to status requests.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk_fuse::{Mounted, Observer};
use rcuwalk_memfs::MemFs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::http::{self, Listener};
use super::in_memory::TreeLimits;
use super::log::Log;
use super::options::Settings;
use super::{metrics, stats};
use crate::failure::Failure;
use crate::mountinfo;
use crate::runtime::{self, Bound};
use crate::signals::Stop;

/// Requests made by signals.
pub(crate) struct Signals {
    pub(crate) stop: Stop,
    pub(crate) stats: Arc<AtomicBool>,
    pub(crate) reopen: Arc<AtomicBool>,
}

impl Signals {
    /// From now on, signals are noted here.
    pub(crate) fn catch(is_daemon: bool) -> io::Result<Signals> {
        let signals = Signals {
            stop: match is_daemon {
                true => Stop::on(&[SIGINT, SIGTERM])?,
                false => Stop::on_signals()?,
            },
            stats: Arc::default(),
            reopen: Arc::default(),
        };
        flag::register(SIGUSR1, signals.stats.clone())?;
        if is_daemon {
            // The end of the terminal is nothing to a daemon.
            flag::register(SIGHUP, signals.reopen.clone())?;
        }
        Ok(signals)
    }
}

/// A mount that is served.
pub(crate) struct Server {
    mounted: Mounted,
    signals: Signals,
    log: Log,
    stats_at_end: bool,
    is_daemon: bool,
    since: Instant,
    /// True once the mount has ended. Its id may belong to another mount then.
    is_over: Arc<AtomicBool>,
    /// The tree, if it is in memory.
    in_memory: Option<MemFs>,
    /// Names of sockets that go with us.
    _bound: Vec<Bound>,
}

impl Server {
    pub(crate) fn new(
        (mounted, in_memory): (Mounted, Option<MemFs>),
        signals: Signals,
        log: Log,
        settings: &Settings,
    ) -> Server {
        Server {
            mounted,
            in_memory,
            signals,
            log,
            stats_at_end: settings.stats,
            is_daemon: settings.daemon,
            since: Instant::now(),
            is_over: Arc::default(),
            _bound: Vec::new(),
        }
    }

    /// Reports that the tree is mounted, and starts to answer status requests.
    pub(crate) fn announce(&mut self, source: &Path, listener: Option<(Listener, Option<Bound>)>) {
        let at = self.mounted.mount_point();
        tracing::info!("{} is mounted on {}", source.display(), at.display());
        if self.mounted.is_told_of_changes() {
            tracing::debug!("the kernel caches names until the host reports a change");
        }
        let metrics = listener.as_ref().map(|(at, _)| at.address.to_string());
        let pages = pages(
            self.mounted.observer(),
            self.since,
            metrics,
            self.is_over.clone(),
        );
        match self.register() {
            Ok((listener, bound)) => {
                self._bound.push(bound);
                self.answer(listener, &with_limits(&pages, self.in_memory.clone()));
            }
            Err(err) => tracing::debug!("`rcuwalk mounts` will not know this mount: {err}"),
        }
        if let Some((listener, bound)) = listener {
            self._bound.extend(bound);
            let line = format!("metrics are at {}", listener.address);
            tracing::info!("{line}");
            if self.is_daemon {
                // The command's user needs the address: the kernel may have chosen the port.
                let _ = writeln!(io::stderr(), "rcuwalk: {line}");
            }
            self.answer(listener, &pages);
        }
    }

    fn register(&self) -> io::Result<(Listener, Bound)> {
        let mounts = mountinfo::mounts()?;
        let id = self.mounted.mount_id();
        let ours = mounts.iter().find(|mount| Some(mount.id) == id);
        let ours = ours.filter(|mount| mount.is_ours());
        let registered = runtime::register(ours.ok_or(io::ErrorKind::NotFound)?)?;
        let (listener, bound, path) = registered;
        Ok((Listener::unix(&path, listener), bound))
    }

    fn answer(&self, listener: Listener, pages: &Arc<http::Pages>) {
        if let Err(err) = http::serve(listener, pages.clone()) {
            tracing::warn!("no thread for metrics: {err}");
        }
    }

    /// Serves until the tree is unmounted, or a signal ends it.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        while !self.mounted.is_over() && self.signals.stop.check().is_ok() {
            if self.signals.stats.swap(false, Relaxed) {
                self.show();
            }
            if self.signals.reopen.swap(false, Relaxed) {
                self.log.reopen();
            }
            // Neither a signal nor an unmount by others wakes us.
            thread::sleep(Duration::from_millis(100));
        }
        // Relaxed: nothing is read because of it.
        self.is_over.store(true, Relaxed);
        if self.stats_at_end {
            self.show();
        }
        let done = self.end();
        if let Err(Failure::Error(why)) = &done {
            tracing::error!("{why}");
        }
        done
    }

    /// Statistics, to the log, whatever its level.
    fn show(&self) {
        if let Some(statistics) = self.mounted.observer().statistics() {
            self.log
                .say(&stats::table(&statistics, self.since.elapsed()));
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        let at = self.mounted.mount_point().display().to_string();
        match self.mounted.unmount() {
            Err(err) if err.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                let done = self.mounted.detach();
                done.map_err(|err| Failure::error(format_args!("cannot detach {at}: {err}")))?;
                tracing::warn!("{at} is in use: detached");
                Ok(())
            }
            Err(err) => Err(Failure::error(format_args!("cannot unmount {at}: {err}"))),
            Ok(()) => {
                tracing::info!("{at} is unmounted");
                Ok(())
            }
        }
    }
}

/// The pages that the sockets serve.
fn pages(
    observer: Observer,
    since: Instant,
    metrics: Option<String>,
    is_over: Arc<AtomicBool>,
) -> Arc<http::Pages> {
    Arc::new(move |path, _| match path {
        "/metrics" => Some((metrics::KIND, metrics::text(&observer.statistics()?))),
        "/status" if is_over.load(Relaxed) => None,
        "/status" => {
            let statistics = observer.statistics()?;
            let status = serde_json::json!({
                "pid": std::process::id(),
                "seconds": since.elapsed().as_secs(),
                "nodes": statistics.nodes,
                "open": statistics.open,
                "in_flight": statistics.in_flight,
                "stuck": statistics.stuck.stuck,
                "oldest_seconds": statistics.stuck.oldest.as_secs(),
                "metrics": metrics,
            });
            Some(("application/json", status.to_string()))
        }
        _ => None,
    })
}

/// These pages, and for the user's own socket one that limits a tree in memory anew
/// (`mount -o remount,size=…`).
fn with_limits(pages: &Arc<http::Pages>, fs: Option<MemFs>) -> Arc<http::Pages> {
    let pages = pages.clone();
    Arc::new(move |path, query| {
        if path != "/limits" {
            return pages(path, query);
        }
        let limits = TreeLimits::of_query(query)?;
        let changed = match &fs {
            Some(fs) => limits.change(fs),
            None => Err("it is no tree in memory".to_owned()),
        };
        if changed.is_ok() {
            tracing::info!("limited anew: {}", limits.query());
        }
        let answer = serde_json::json!({ "refused": changed.err() });
        Some(("application/json", answer.to_string()))
    })
}
