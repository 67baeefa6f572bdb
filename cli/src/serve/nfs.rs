//! `rcuwalk serve nfs`: a tree served by NFSv3.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::{Credentials, MountFlags};
use rcuwalk_nfs::{Listener, Network, Observer, Options, Server, Squash};

use super::{figures, key};
use crate::failure::{Failure, Words};
use crate::mount::budget::{self, Limits};
use crate::mount::options::Settings;
use crate::mount::serve::Signals;
use crate::mount::{self, confine, daemon, http, log};
use crate::runtime::{self, Bound};

/// NFS's own port.
const PORT: u16 = 2049;

/// Serve a tree by NFSv3, over TCP
///
/// SOURCE is a directory of the host, an ext2, ext3 or ext4 image or device, which is only read, or
/// `memfs` for a tree in memory that goes with this process (`./memfs` for a directory of that
/// name).
///
/// The tree is exported as `/`. NFS and MOUNT are at the same port, and there is no portmapper:
/// `mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049 HOST:/ /mnt`.
///
/// Stays in the foreground, unless --daemon is given. Ctrl-C and SIGTERM end it, when the calls
/// under way are answered. SIGUSR1 prints statistics. SIGHUP ends it in the foreground, and makes a
/// daemon reopen its log file.
#[derive(clap::Args)]
#[command(after_help = "\
WHO MAY CONNECT, AND AS WHOM:
  Clients of this machine, unless --allow names others. The protocol has no passwords: the server
  cannot verify the user that a client names. So it refuses calls from ports above 1023, which any
  user's program may use, unless --insecure is given; and root acts as nobody (65534), unless
  --no-root-squash is given. Nothing is encrypted.

WHAT IS SAFE:
  Data of a WRITE with FILE_SYNC or DATA_SYNC, and of all before a COMMIT, is on the host's disk when
  the client is told so. So are changes of names and attributes, unless --async is given.

EXIT STATUS:
  0 if it was ended by a signal, or, with --daemon, once it serves; 1 if it could not serve, 2 for
  wrong usage.

More: docs/nfs.md.")]
pub(crate) struct Args {
    /// The tree
    source: PathBuf,
    /// Listen at ADDR; port 0 takes a free one, which the log says
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2049", value_parser = address)]
    listen: SocketAddr,
    /// Let clients of this network connect: 192.0.2.0/24, 192.0.2.7, fd00::/8; may be given more than once [default: this machine]
    #[arg(long, value_name = "CIDR")]
    allow: Vec<Network>,
    /// Accept calls from ports above 1023: any user of a client can be any other user then
    #[arg(long)]
    insecure: bool,
    /// Let root be root
    #[arg(long)]
    no_root_squash: bool,
    /// Map every user to nobody
    #[arg(long, conflicts_with = "no_root_squash")]
    all_squash: bool,
    /// Let nothing be changed
    #[arg(long)]
    read_only: bool,
    /// Answer changes of names and attributes before they are on disk
    #[arg(long = "async")]
    not_sync: bool,
    /// Where the key is kept that signs file handles: 16 bytes, drawn if there is no such file [default: /var/lib/rcuwalk/nfs.key for root, rcuwalk/nfs.key in $XDG_STATE_HOME]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Connections in all; a quarter of them for each address
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_connections: u32,
    /// Files held for clients [default: as many as --max-memory holds]
    #[arg(long, value_name = "N", value_parser = budget::count)]
    max_files: Option<usize>,
    /// Memory for caches, a KiB for each file: 512M, 2G [default: an eighth of the RAM, or of the control group's limit]
    #[arg(long, value_name = "SIZE", value_parser = budget::size)]
    max_memory: Option<usize>,
    /// Descriptors that stay open for cached directories [default: half of what the process may have]
    #[arg(long, value_name = "N", value_parser = budget::count)]
    max_fds: Option<usize>,
    /// How many threads answer [default: four for each processor, 8 to 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Return when the tree is served, and serve it in the background
    #[arg(short, long)]
    daemon: bool,
    /// Write the log to FILE; else it goes to standard error, a daemon's to the system log
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// What to log: error, warn, info, debug (each call) or trace, or as RUST_LOG has it [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = log::level)]
    log_level: Option<String>,
    /// Log more: -v each call, -vv all there is
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "log_level")]
    verbose: u8,
    /// Answer `GET /metrics` for Prometheus, and `GET /status`, at ADDR: 127.0.0.1:9100, [::1]:0, unix:/run/my.sock
    ///
    /// Port 0 takes a free one; the log says which. Anyone who can connect may read: there is
    /// no password.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<http::Address>,
    /// Print statistics at the end; SIGUSR1 prints them at any time
    #[arg(long)]
    stats: bool,
    /// This is the daemon
    #[arg(long, hide = true)]
    daemonized: bool,
}

/// `IP:PORT`, or an address at NFS's own port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse();
    let or_alone = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    with_port.or_else(|_| or_alone()).map_err(|_| {
        match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            Ok(port) => format!(
                "{text:?} is no address: say {}",
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
            ),
            Err(_) => format!("{text:?} is no address: say 127.0.0.1:{PORT}, or [::1]:{PORT}"),
        }
    })
}

/// `argv` are the process's arguments, to start a daemon with.
pub(super) fn run(args: &Args, argv: &[OsString]) -> Result<(), Failure> {
    confine::keep_no_descriptors();
    if args.daemon && !args.daemonized {
        return daemon::start(&["serve", "nfs"], argv);
    }
    if args.daemonized {
        daemon::leave_terminal();
    }
    let settings = args.settings()?;
    let signals = Signals::catch(args.daemonized).map_err(Failure::error)?;
    let log = log::start(&settings, args.daemonized)?;
    let listener = settings.metrics.as_ref().map(http::Address::bind);
    let listener = listener.transpose()?;
    let serving = Serving {
        server: args.serve(&settings)?,
        signals,
        log,
        since: Instant::now(),
        bound: Vec::new(),
    };
    let serving = serving.announce(args, listener);
    if args.daemonized {
        daemon::ready()?;
    }
    serving.run(args.stats);
    Ok(())
}

impl Args {
    /// The settings that `rcuwalk mount` has as well.
    fn settings(&self) -> Result<Settings, Failure> {
        let absolute = |path: &PathBuf| std::path::absolute(path).map_err(Failure::error);
        let verbose = match self.verbose {
            0 => None,
            1 => Some("debug".to_owned()),
            _ => Some("trace".to_owned()),
        };
        Ok(Settings {
            daemon: self.daemonized,
            stats: self.stats,
            // With --no-root-squash a client's root makes device nodes, and moves them.
            opens_held: true,
            log_file: self.log_file.as_ref().map(absolute).transpose()?,
            log_level: self.log_level.clone().or(verbose),
            metrics: self.metrics.clone(),
            limits: Limits {
                max_inodes: self.max_files,
                max_memory: self.max_memory,
                max_fds: self.max_fds,
            },
            ..Settings::default()
        })
    }
}

impl Args {
    fn serve(&self, settings: &Settings) -> Result<Server, Failure> {
        // What the user can mend comes first: an address that is taken is better known at once.
        let listener = Listener::bind(self.listen).map_err(|err| {
            let why: &dyn std::fmt::Display = match err.kind() {
                ErrorKind::AddrInUse => &"another server has this address (see --listen)",
                _ => &Words(&err),
            };
            Failure::error(format_args!("cannot listen at {}: {why}", self.listen))
        })?;
        let (files, budget) = settings.limits.on_this_machine();
        let as_mounted = rcuwalk_fuse::Options::default();
        let (vfs, _) = mount::tree("serve", &self.source, budget, &as_mounted, settings)?;
        if self.read_only {
            let root = vfs.context(Credentials::root());
            let done = vfs.remount(&root, "/", MountFlags::READ_ONLY);
            done.map_err(Failure::error)?;
        }
        let options = self.options(files)?;
        confine::confine(None).map_err(Failure::error)?;
        Server::start(listener, vfs, options).map_err(|err| {
            let shown = self.source.display();
            match err.raw_os_error() {
                Some(errno) if errno == rustix::io::Errno::OPNOTSUPP.raw_os_error() => {
                    Failure::error(format_args!(
                        "cannot serve {shown}: its file system has no file handles"
                    ))
                }
                _ => Failure::error(format_args!("cannot serve {shown}: {}", Words(&err))),
            }
        })
    }

    /// The export's options, in the words of exports(5).
    fn shown(&self) -> String {
        let words = [
            if self.read_only { "ro" } else { "rw" },
            if self.not_sync { "async" } else { "sync" },
            match (self.no_root_squash, self.all_squash) {
                (true, _) => "no_root_squash",
                (_, true) => "all_squash",
                _ => "root_squash",
            },
            if self.insecure { "insecure" } else { "secure" },
        ];
        words.join(",")
    }

    fn options(&self, files: usize) -> Result<Options, Failure> {
        let squash = match (self.no_root_squash, self.all_squash) {
            (true, _) => Squash::None,
            (_, true) => Squash::All,
            _ => Squash::Root,
        };
        let connections = self.max_connections as usize;
        let mut options = Options::new(key::load(self.key_file.as_deref())?)
            .squash(squash)
            .insecure(self.insecure)
            .sync(!self.not_sync)
            .max_files(files)
            .max_connections(connections, connections.div_ceil(4));
        if !self.allow.is_empty() {
            options = options.allow(self.allow.iter().copied());
        }
        if let Some(threads) = self.threads {
            options = options.threads(threads.into());
        }
        Ok(options)
    }
}

/// A tree that is served.
struct Serving {
    server: Server,
    signals: Signals,
    log: log::Log,
    since: Instant,
    /// Names of sockets that go with us.
    bound: Vec<Bound>,
}

type Metrics = Option<(http::Listener, Option<Bound>)>;

impl Serving {
    /// Reports that the tree is served, and starts to answer status requests.
    fn announce(mut self, args: &Args, metrics: Metrics) -> Serving {
        let address = self.server.address();
        let line = format!("{} is served by NFS at {address}", args.source.display());
        tracing::info!("{line}");
        let mut lines = Vec::new();
        if args.listen.port() == 0 {
            lines.push(line);
        }
        if let Some((listener, bound)) = metrics {
            self.bound.extend(bound);
            let line = format!("metrics are at {}", listener.address);
            tracing::info!("{line}");
            lines.push(line);
            self.answer(listener, args);
        }
        match runtime::register_server() {
            Ok((listener, bound, path)) => {
                self.bound.push(bound);
                self.answer(http::Listener::unix(&path, listener), args);
            }
            Err(err) => tracing::debug!("`rcuwalk mounts` will not know this server: {err}"),
        }
        if args.daemonized {
            // The command's user needs the addresses: the kernel may have chosen the ports.
            for line in lines {
                let _ = writeln!(io::stderr(), "rcuwalk: {line}");
            }
        }
        self
    }

    fn answer(&self, listener: http::Listener, args: &Args) {
        let what = serde_json::json!({
            "source": args.source.display().to_string(),
            "address": self.server.address().to_string(),
            "options": args.shown(),
        });
        let pages = pages(self.server.observer(), self.since, what);
        if let Err(err) = http::serve(listener, pages) {
            tracing::warn!("no thread for status requests: {err}");
        }
    }

    /// Serves until a signal ends it.
    fn run(mut self, stats_at_end: bool) {
        while self.signals.stop.check().is_ok() {
            if self.signals.stats.swap(false, Relaxed) {
                self.show();
            }
            if self.signals.reopen.swap(false, Relaxed) {
                self.log.reopen();
            }
            // A signal does not wake us.
            thread::sleep(Duration::from_millis(100));
        }
        if stats_at_end {
            self.show();
        }
        self.server.stop();
        tracing::info!("the server has ended");
    }

    /// Statistics, to the log, whatever its level.
    fn show(&self) {
        if let Some(statistics) = self.server.observer().statistics() {
            self.log
                .say(&figures::table(&statistics, self.since.elapsed()));
        }
    }
}

/// The pages that the sockets serve.
fn pages(observer: Observer, since: Instant, what: serde_json::Value) -> Arc<http::Pages> {
    Arc::new(move |path, _| {
        let now = observer.statistics()?;
        match path {
            "/metrics" => Some((mount::metrics::KIND, figures::text(&now))),
            "/status" => {
                let mut status = serde_json::json!({
                    "pid": std::process::id(),
                    "seconds": since.elapsed().as_secs(),
                    "connections": now.connections,
                    "files": now.files,
                    "open": now.open,
                    "in_flight": now.in_flight,
                });
                if let (Some(status), Some(what)) = (status.as_object_mut(), what.as_object()) {
                    status.extend(what.clone());
                }
                Some(("application/json", status.to_string()))
            }
            _ => None,
        }
    })
}
