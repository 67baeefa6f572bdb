//! `rcuwalk serve virtiofs`: a tree as a device of a virtual machine.
//!
//! One process serves one machine: it waits for the machine monitor, and ends when that hangs up.
//! Before it reads a byte that comes from elsewhere, it has given up the rights that it does not need.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rcuwalk::{Budget, Credentials, MountFlags, Vfs};
use rcuwalk_fuse::{Contents, Options};
use rcuwalk_virtiofs::{DeviceOptions, MOST_QUEUES, Served, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;

use super::page;
use crate::failure::{Failure, Words};
use crate::mount::log::{self, Log};
use crate::mount::options::Settings;
use crate::mount::serve::Signals;
use crate::mount::{self, budget, confine, daemon, http, stats};
use crate::runtime::{self, Bound};

/// Serve a tree to a virtual machine, as virtiofsd does
///
/// SOURCE is a directory of the host, an ext2, ext3 or ext4 image or device, which is only
/// read, or `memfs` for a tree in memory. Listens at PATH for one machine monitor (QEMU,
/// cloud-hypervisor, crosvm), serves its guest, and ends when it hangs up.
///
/// Stays in the foreground, unless --daemon is given. Ctrl-C and SIGTERM end it: the guest's
/// requests are answered no more. SIGUSR1 prints statistics, SIGHUP makes a daemon reopen its log
/// file.
#[derive(clap::Args)]
#[command(after_help = "\
WITH QEMU:
  rcuwalk serve virtiofs /srv/tree --socket /run/fs.sock
  qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=mem,size=2G,share=on \\
    -numa node,memdev=mem -chardev socket,id=fs,path=/run/fs.sock \\
    -device vhost-user-fs-pci,chardev=fs,tag=home …
  guest# mount -t virtiofs home /mnt

WHO MAY WHAT:
  The guest's kernel checks permissions, and says to which user a new file belongs: its root may do
  in the tree what this process may. It reaches nothing outside of the tree.

  It may know as many files as --max-inodes and --max-memory say, or else as half of the memory
  holds at a KiB each: beyond that, files that it does not know yet are ENFILE.

EXIT STATUS:
  0 if the machine monitor has hung up, or, with --daemon, once it listens;
  1 if it could not be served, 2 for wrong usage.")]
pub(crate) struct Args {
    /// The tree
    #[arg(required_unless_present = "shared_dir", conflicts_with = "shared_dir")]
    source: Option<PathBuf>,
    /// The tree, as virtiofsd has it
    #[arg(long, value_name = "SOURCE")]
    shared_dir: Option<PathBuf>,
    /// Where to listen for the machine monitor: a socket for this user alone
    #[arg(long, value_name = "PATH", visible_alias = "socket-path")]
    socket: PathBuf,
    /// The tag to mount by, for monitors that ask the device; QEMU has it in its own options, and 7.1 to 8.0 end when a device offers one
    #[arg(long)]
    tag: Option<Tag>,
    /// How many queues for requests the guest may use [default: as many as processors, up to 8]
    #[arg(long, value_name = "N", value_parser = queues)]
    queues: Option<usize>,
    /// How many threads answer, up to 64; 0 for as many as processors, 2 to 8
    #[arg(long, value_name = "N", value_parser = threads, default_value = "0", visible_alias = "thread-pool-size")]
    threads: usize,
    /// What the guest caches
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    cache: Cache,
    /// What the process reaches beside the tree
    #[arg(long, value_name = "HOW", default_value = "namespace")]
    sandbox: Sandbox,
    /// Let nothing be changed by the guest
    #[arg(long, visible_alias = "readonly")]
    read_only: bool,
    /// Have the guest hold written data back, and write it in larger pieces; for a tree that nothing else changes
    #[arg(long)]
    writeback: bool,
    /// Return when it listens, and serve in the background
    #[arg(short, long)]
    daemon: bool,
    /// Write the log to FILE; else it goes to standard error, a daemon's to the system log
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// What to log: error, warn, info, debug (each request) or trace, or as RUST_LOG has it [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = log::level)]
    log_level: Option<String>,
    /// Answer `GET /metrics` for Prometheus, and `/status`, at ADDR: 127.0.0.1:9100, unix:/run/my.sock
    #[arg(long, value_name = "ADDR")]
    metrics: Option<http::Address>,
    /// Print statistics at the end; SIGUSR1 prints them at any time
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    limits: budget::Limits,
    #[command(flatten)]
    always: Always,
    /// This is the daemon
    #[arg(long, hide = true)]
    daemonized: bool,
}

/// Options of virtiofsd that turn on what is always on here.
#[derive(clap::Args)]
struct Always {
    #[arg(long, hide = true)]
    xattr: bool,
    #[arg(long, hide = true, require_equals = true, num_args = 0..=1, value_name = "WHEN")]
    posix_acl: Option<Option<String>>,
    #[arg(long, hide = true)]
    killpriv_v2: bool,
    #[arg(long, hide = true)]
    no_announce_submounts: bool,
}

/// virtiofsd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cache {
    /// Names and attributes for a second; contents while a file is open and unchanged
    Auto,
    /// All for a day: for a tree that nothing else changes
    Always,
    /// Nothing; shared mappings of files do not work
    Never,
    /// Names and attributes for a day, and no contents
    Metadata,
}

impl Cache {
    fn apply(self, options: Options) -> Options {
        let (seconds, contents) = match self {
            Cache::Auto => (1, Contents::Cached),
            Cache::Always => (86400, Contents::Kept),
            Cache::Never => (0, Contents::Direct),
            Cache::Metadata => (86400, Contents::Direct),
        };
        let time = Duration::from_secs(seconds);
        options
            .entry_timeout(time)
            .attr_timeout(time)
            .contents(contents)
    }
}

/// virtiofsd's words. The process is in no namespace of its own: Landlock does what both are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sandbox {
    /// No file but those of SOURCE, and no program (Landlock)
    Namespace,
    /// The same
    Chroot,
    /// Any file, as far as the process may; still no program, and no rights that serving does not need
    None,
}

fn queues(text: &str) -> Result<usize, String> {
    let queues = text.parse().ok().filter(|n| (1..=MOST_QUEUES).contains(n));
    queues.ok_or_else(|| format!("say 1 to {MOST_QUEUES}"))
}

fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|n| *n <= 64);
    threads.ok_or_else(|| "say 0 to 64".to_owned())
}

pub(super) fn run(args: &Args, argv: &[OsString]) -> Result<(), Failure> {
    confine::keep_no_descriptors();
    if args.daemon && !args.daemonized {
        return daemon::start(&["serve", "virtiofs"], argv);
    }
    if args.daemonized {
        daemon::leave_terminal();
    }
    let settings = args.settings()?;
    let signals = Signals::catch(args.daemonized).map_err(Failure::error)?;
    let log = log::start(&settings, args.daemonized)?;
    let metrics = args.metrics.as_ref().map(http::Address::bind).transpose()?;
    let (most_nodes, budget) = args.limits.for_a_guest();
    let options = args.options().max_nodes(most_nodes);
    let vfs = args.tree(budget, &options, &settings)?;
    let (listener, bound) = listen(&args.socket)?;
    tracing::info!("waiting for a machine at {}", args.socket.display());
    if args.daemonized {
        daemon::ready()?;
    }
    let Some(monitor) = accept(&listener, &signals)? else {
        return Ok(());
    };
    // This process serves one machine: a second monitor is refused at once.
    drop((listener, bound));
    let reach = (args.sandbox != Sandbox::None).then(|| mount::reach(args.source(), &settings));
    let confined = confine::confine(reach.as_ref());
    confined.map_err(|err| Failure::error(format_args!("{err}: or say --sandbox none")))?;
    let device = DeviceOptions::default()
        .queues(args.queues.unwrap_or(0))
        .tag(args.tag.clone());
    let served = rcuwalk_virtiofs::serve(vfs, monitor, &device, &options);
    let served = served.map_err(Failure::error)?;
    tracing::info!("{} is served", args.source().display());
    let _bound = metrics.and_then(|metrics| args.answer(metrics, &served));
    serve(served, &signals, &log, args.stats)
}

impl Args {
    fn source(&self) -> &Path {
        let source = self.source.as_deref().or(self.shared_dir.as_deref());
        // One of them is given.
        source.unwrap_or(Path::new("."))
    }

    fn options(&self) -> Options {
        let options = Options::default()
            .threads(self.threads)
            .writeback(self.writeback)
            // There is no way to tell a guest.
            .watch(false);
        self.cache.apply(options)
    }

    fn settings(&self) -> Result<Settings, Failure> {
        let log_file = self.log_file.as_ref().map(std::path::absolute);
        Ok(Settings {
            daemon: self.daemonized,
            sandbox: self.sandbox != Sandbox::None,
            // A guest's root makes device nodes, and moves them.
            opens_held: true,
            log_file: log_file.transpose().map_err(Failure::error)?,
            log_level: self.log_level.clone(),
            ..Settings::default()
        })
    }

    fn tree(&self, budget: Budget, options: &Options, settings: &Settings) -> Result<Vfs, Failure> {
        let (vfs, _) = mount::tree("serve", self.source(), budget, options, settings)?;
        if self.read_only {
            let root = vfs.context(Credentials::root());
            let done = vfs.remount(&root, "/", MountFlags::READ_ONLY);
            done.map_err(Failure::error)?;
        }
        Ok(vfs)
    }

    /// Answers at the socket for metrics.
    fn answer(
        &self,
        (listener, bound): (http::Listener, Option<Bound>),
        served: &Served,
    ) -> Option<Bound> {
        let line = format!("metrics are at {}", listener.address);
        tracing::info!("{line}");
        if self.daemonized {
            // The command's user needs the address: the kernel may have chosen the port.
            let _ = writeln!(io::stderr(), "rcuwalk: {line}");
        }
        let what = serde_json::json!({
            "source": self.source().display().to_string(),
            "socket": self.socket.display().to_string(),
        });
        if let Err(err) = http::serve(listener, page::pages(served.observer(), what)) {
            tracing::warn!("no thread for metrics: {err}");
        }
        bound
    }
}

fn listen(socket: &Path) -> Result<(UnixListener, Bound), Failure> {
    runtime::bind_private(socket).map_err(|err| {
        Failure::error(format_args!(
            "cannot listen at {}: {}",
            socket.display(),
            Words(&err)
        ))
    })
}

/// Waits for a machine monitor. `None` if a signal ends the waiting.
///
/// Who connects and hangs up without a word is none: a second server that looks whether the socket
/// is in use, for one.
fn accept(listener: &UnixListener, signals: &Signals) -> Result<Option<UnixStream>, Failure> {
    while comes(listener.as_fd(), signals) {
        let (monitor, _) = listener.accept().map_err(Failure::error)?;
        if comes(monitor.as_fd(), signals) {
            match rustix::net::recv(&monitor, &mut [0; 1], RecvFlags::PEEK) {
                Ok((1, _)) => return Ok(Some(monitor)),
                _ => tracing::debug!("a connection without a word"),
            }
        }
    }
    Ok(None)
}

/// True when there is something to read, false if a signal has come.
fn comes(from: BorrowedFd<'_>, signals: &Signals) -> bool {
    let patience = Timespec::try_from(TICK).ok();
    while signals.stop.check().is_ok() {
        let mut ready = [PollFd::new(&from, PollFlags::IN)];
        if poll(&mut ready, patience.as_ref()).unwrap_or(0) > 0 {
            return true;
        }
    }
    false
}

/// How often signals are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Serves until the monitor hangs up, or a signal ends it.
fn serve(served: Served, signals: &Signals, log: &Log, stats_at_end: bool) -> Result<(), Failure> {
    let (observer, since) = (served.observer(), Instant::now());
    let show = || {
        if let Some(statistics) = observer.statistics() {
            log.say(&stats::table(&statistics, since.elapsed()));
        }
    };
    while !served.is_over() && signals.stop.check().is_ok() {
        if signals.stats.swap(false, Relaxed) {
            show();
        }
        if signals.reopen.swap(false, Relaxed) {
            log.reopen();
        }
        thread::sleep(TICK);
    }
    if stats_at_end {
        show();
    }
    served.end();
    let done = served.join().map_err(Failure::error);
    match &done {
        Ok(()) => tracing::info!("the machine has gone"),
        Err(Failure::Error(why)) => tracing::error!("{why}"),
        Err(_) => {}
    }
    done
}
