//! `rcuwalk mount` and `rcuwalk umount`: a tree as a mounted file system, by FUSE.
//!
//! | read                 | to learn                                          |
//! |----------------------|---------------------------------------------------|
//! | this file            | `mount`: the source, the mount point, the options |
//! | `mount/options.rs`   | `-o`                                              |
//! | `mount/hints.rs`     | options of other programs, and ours instead       |
//! | `mount/helper.rs`    | how mount(8) calls us                             |
//! | `mount/daemon.rs`    | going into the background                         |
//! | `mount/confine.rs`   | rights that the process drops once it is mounted  |
//! | `mount/keeper.rs`    | the process that unmounts a sandboxed mount       |
//! | `mount/budget.rs`    | limits of the caches                              |
//! | `mount/in_memory.rs` | SOURCE `memfs`: a tree in memory, and its limits  |
//! | `mount/place.rs`     | checks of the mount point, and below the source   |
//! | `mount/remount.rs`   | `-o remount`: flags of an existing mount          |
//! | `mount/serve.rs`     | from mounted to unmounted: signals                |
//! | `mount/log.rs`       | the log, and where it goes                        |
//! | `mount/http.rs`      | the HTTP server for metrics and status            |
//! | `mount/metrics.rs`   | statistics as Prometheus metrics                  |
//! | `mount/stats.rs`     | statistics for people                             |
//! | `mount/umount.rs`    | `umount`, also after a killed process             |

pub(crate) mod budget;
pub(crate) mod confine;
pub(crate) mod daemon;
pub(crate) mod helper;
mod hints;
pub(crate) mod http;
mod in_memory;
mod keeper;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod options;
mod place;
mod remount;
pub(crate) mod serve;
pub(crate) mod stats;
mod umount;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;

use rcuwalk::{Budget, Credentials, Freshness, MountFlags, Vfs};
use rcuwalk_ext4::Ext4;
use rcuwalk_fuse::{Mounted, Options};
use rcuwalk_hostfs::{Actor, DEFAULT_FRESHNESS, HostFs, Watcher};
use rcuwalk_memfs::MemFs;
use rustix::fs::StatVfsMountFlags;

use crate::failure::{Failure, Words};
use crate::mountinfo;
use confine::Reach;
use keeper::Keeper;
use options::{MountOptions, Settings};
use serve::Signals;

pub(crate) use umount::{Args as UmountArgs, run as umount};

/// Mount a tree by FUSE
///
/// SOURCE is a directory of the host, an ext2, ext3 or ext4 image or device, which is only
/// read, or `memfs` for a tree in memory that goes when it is unmounted (`./memfs` for a
/// directory of that name).
///
/// Stays in the foreground, unless --daemon is given. Ctrl-C and SIGTERM unmount; a mount that
/// is in use then is detached, and ends with this process. SIGHUP does the same in the
/// foreground, and makes a daemon reopen its log file. SIGUSR1 prints statistics. Needs
/// /dev/fuse, and root or fusermount3.
///
/// For `mount -t fuse.rcuwalk` and /etc/fstab, link /sbin/mount.fuse.rcuwalk to this program;
/// with libfuse's mount.fuse3, having it in /usr/bin is enough. Both make a daemon.
#[derive(clap::Args)]
#[command(after_help = "\
OPTIONS OF -o:
  ro, rw, allow_other, suid, dev, noexec, noatime, and their opposites, as in mount(8)
  fsname=NAME               what mount(8) shows as the source
  entry_timeout=SECONDS     how long the kernel caches a name (1)
  attr_timeout=SECONDS      how long the kernel caches attributes (1); the back end
                            caches those of the host for the shorter of both, a second at most
  negative_timeout=SECONDS  how long the kernel caches that a name is missing (0)
  nowatch                   have the kernel go by these timeouts, and not be told of changes on the
                            host. A directory of the host is watched if this process may (root), the
                            kernel can be told (Linux 6.16), and no timeout is given: names,
                            missing ones too, and attributes are cached for a minute then
  nopassthrough             have the kernel ask for contents even where it need not
  writeback                 have the kernel hold written data back, and write it in larger pieces;
                            for a tree that nothing else changes. Contents go by request then
  idmap                     allow mount -o X-mount.idmap (Linux 6.12); then the kernel alone checks
                            permissions
  noio_uring                read requests from /dev/fuse even where the kernel offers io_uring
  threads=N                 as --threads
  max_inodes=N, max_memory=SIZE, max_fds=N
                            as the long options of these names
  size=SIZE                 SOURCE memfs: most that its files may hold, in bytes, with k, m, g or
                            t, or as a percentage of the memory; 0 for no limit (50%)
  nr_inodes=N               SOURCE memfs: most files, directories and links (one for each two
                            pages of memory)
  acting_as=caller          SOURCE a directory, for root: change it with the user and groups of
                            whoever asks, so that quotas and the reserve of root count, which
                            are those of this process otherwise; contents go by request
  nonempty                  mount also on what is not empty, or on another mount
  remount                   give the flags to what is mounted there already
  daemon, sandbox, stats, metrics=ADDR, log_file=FILE, log_level=LEVEL
                            as the long options of these names; without commas

WHOSE FILES, AND WHO WRITES THEM:
  A new file belongs to the user who makes it, if this process is root's; else to the user whose
  process this is. What is read and written on the host is read and written by this process: quotas
  of other users do not stop them, and root's process uses the space that is kept for root, unless
  -o acting_as=caller is given. Permissions are those of the caller. Without --allow-other the user
  who mounts is the only one.

SUBMOUNTS:
  What is mounted below SOURCE is shown, too, and each file has an inode number of its own; all have
  the device number of the mount. A mount point inside of SOURCE is refused.
  The flags of the mount are those for all of it: noexec of a mount below SOURCE does not count
  (give -o noexec). -o suid and -o dev are refused while a mount below SOURCE is nosuid or nodev;
  a mount that comes there later is not seen.

THREADS:
  A request waits for a thread, and a thread for the host. While requests are stuck there (a dead
  server below SOURCE), more threads answer the others; `rcuwalk mounts` says how many are stuck.

ENVIRONMENT:
  RCUWALK_LOG               the log's level, where no option gives one

EXIT STATUS:
  0 if it was unmounted, or, with --daemon, once it is mounted;
  1 if it could not be mounted or unmounted, 2 for wrong usage.
  Called by mount(8): 32 if it could not be mounted, 1 for wrong usage.")]
pub(crate) struct Args {
    /// The tree
    source: PathBuf,
    /// The directory to mount it on
    mountpoint: PathBuf,
    /// Options, separated by commas
    #[arg(short, value_name = "OPTIONS", value_parser = options::parse)]
    options: Vec<MountOptions>,
    /// Let nothing be changed through the mount
    #[arg(long)]
    read_only: bool,
    /// Let other users in, as far as permissions allow
    #[arg(long)]
    allow_other: bool,
    /// Return when the tree is mounted, and serve it in the background
    #[arg(short, long)]
    daemon: bool,
    /// How many threads answer, 1 to 64 [default: as many as processors, 2 to 8; by io_uring two for each]
    #[arg(long, value_name = "N", value_parser = options::threads)]
    threads: Option<usize>,
    /// Let the process reach no file but those of SOURCE, and start no program
    ///
    /// Uses Landlock, which the kernel must have. Beside SOURCE it reads /proc and the list of
    /// processors, and writes to the directory of --log-file. Capabilities of callers do not
    /// count. A second process unmounts. Without this option, root's process drops unused
    /// rights at no cost: capabilities that it does not need, and system calls that reach other
    /// processes and the kernel.
    #[arg(long)]
    sandbox: bool,
    /// Write the log to FILE; else it goes to standard error, a daemon's to the system log
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// What to log: error, warn, info, debug (each request) or trace, or as RUST_LOG has it [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = log::level)]
    log_level: Option<String>,
    /// Log more: -v each request, -vv all there is
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "log_level")]
    verbose: u8,
    /// Answer `GET /metrics` for Prometheus at ADDR: 127.0.0.1:9100, [::1]:0, unix:/run/my.sock
    ///
    /// Port 0 takes a free one; the log says which. Anyone who can connect may read: there is
    /// no password.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<http::Address>,
    /// Print statistics at the end; SIGUSR1 prints them at any time
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    limits: budget::Limits,
    #[command(flatten)]
    inner: daemon::InnerArgs,
}

/// `argv` are the process's arguments, to start a daemon with.
pub(crate) fn run(args: &Args, argv: &[OsString]) -> Result<(), Failure> {
    let (options, settings) = args.options()?;
    if args.inner.fake {
        return Ok(());
    }
    if args.inner.keeper {
        return keeper::run();
    }
    confine::keep_no_descriptors();
    if settings.remount {
        return remount::remount(&args.mountpoint, &args.options, settings.tree);
    }
    if settings.daemon && !args.inner.daemonized {
        return daemon::start(&["mount"], argv);
    }
    args.inner.enter()?;
    let signals = Signals::catch(args.inner.daemonized).map_err(Failure::error)?;
    let log = log::start(&settings, args.inner.daemonized)?;
    // An address that is taken is better known before anything is mounted.
    let listener = settings.metrics.as_ref().map(http::Address::bind);
    let listener = listener.transpose()?;
    let mounted = mount(&args.source, &args.mountpoint, &options, &settings)?;
    let mut server = serve::Server::new(mounted, signals, log, &settings);
    server.announce(&args.source, listener);
    if args.inner.daemonized {
        daemon::ready()?;
    }
    server.run()
}

impl Args {
    /// Merges all options; the long ones win.
    fn options(&self) -> Result<(Options, Settings), Failure> {
        let mut options = Options::default().source(source_name(&self.source));
        // The mount is `noexec` if the source's own mount is, unless an option lifts that.
        // (Set-id programs and devices are forbidden by default.)
        if let Ok(flags) = rustix::fs::statvfs(&self.source).map(|source| source.f_flag) {
            options.noexec = flags.contains(StatVfsMountFlags::NOEXEC);
        }
        let mut settings = Settings::default();
        for given in &self.options {
            given.apply(&mut options);
            given.set(&mut settings);
        }
        options.read_only |= self.read_only;
        options.allow_other |= self.allow_other;
        options.threads = self.threads.unwrap_or(options.threads);
        settings.limits = self.limits.or(settings.limits);
        settings.daemon |= self.daemon || self.inner.daemonized;
        settings.sandbox |= self.sandbox;
        settings.stats |= self.stats;
        let absolute = |path| std::path::absolute(path).map_err(Failure::error);
        if let Some(file) = self.log_file.as_ref().or(settings.log_file.as_ref()) {
            // Still there when a daemon has left for `/`.
            settings.log_file = Some(absolute(file)?);
        }
        let verbose = match self.verbose {
            0 => None,
            1 => Some("debug".to_owned()),
            _ => Some("trace".to_owned()),
        };
        let level = self.log_level.clone().or(verbose);
        settings.log_level = level.or(settings.log_level);
        settings.metrics = self.metrics.clone().or(settings.metrics);
        Ok((options, settings))
    }
}

fn mount(
    source: &Path,
    mountpoint: &Path,
    options: &Options,
    settings: &Settings,
) -> Result<(Mounted, Option<MemFs>), Failure> {
    let at = place::mount_point(mountpoint, settings.nonempty)?;
    place::refuse_inside(source, &at)?;
    if source.as_os_str() != "memfs" {
        let allowed = place::refuse_more_than_below(source, options.suid, options.dev);
        let shown = source.display();
        allowed.map_err(|why| Failure::error(format_args!("cannot mount {shown}: {why}")))?;
    }
    if source.as_os_str() != "memfs" && !settings.tree.is_none() {
        return Err(Failure::error(format_args!(
            "size= and nr_inodes= limit a tree in memory, and {} is none",
            source.display(),
        )));
    }
    if options.idmap && settings.actor == Actor::Caller {
        return Err(Failure::error(
            "acting_as=caller and idmap exclude each other: with idmap the kernel does not tell \
             who the caller is",
        ));
    }
    let (max_nodes, budget) = settings.limits.on_this_machine();
    let options = &options.clone().max_nodes(max_nodes);
    let (vfs, in_memory) = tree("mount", source, budget, options, settings)?;
    if options.read_only {
        let root = vfs.context(Credentials::root());
        let done = vfs.remount(&root, "/", MountFlags::READ_ONLY);
        done.map_err(Failure::error)?;
    }
    if !settings.sandbox {
        let confine = || confine::confine(None);
        let mounted = rcuwalk_fuse::mount_confined(vfs, &at, options, confine);
        return Ok((mounted.map_err(Failure::error)?, in_memory));
    }
    let keeper = Keeper::start(source, &at)?;
    let reach = reach(source, settings);
    let confine = || confine::confine(Some(&reach));
    let mounted = rcuwalk_fuse::mount_confined(vfs, &at, options, confine);
    let mut mounted = mounted.map_err(|err| {
        // Confined already, this process could not unmount it.
        if let Ok((_, left)) = mountinfo::ours(&at)
            && left.source == OsStr::new(&options.source)
        {
            let _ = keeper.unmount(left.id, true);
        }
        Failure::error(err)
    })?;
    let id = mounted.mount_id();
    mounted.unmount_by(move |detach| match id {
        Some(id) => keeper.unmount(id, detach),
        None => Err(std::io::ErrorKind::NotFound.into()),
    });
    Ok((mounted, in_memory))
}

/// Where a sandboxed process may go. An image is open by then.
pub(crate) fn reach(source: &Path, settings: &Settings) -> Reach {
    let log = settings.log_file.as_deref().and_then(Path::parent);
    Reach {
        source: (source.as_os_str() != "memfs" && source.is_dir()).then(|| source.to_owned()),
        log: log.map(Path::to_owned),
        runtime: crate::runtime::own_directory().ok(),
    }
}

/// The source as mount(8) shows it: absolute, since our working directory means nothing to
/// others.
fn source_name(source: &Path) -> String {
    let path = match source.as_os_str() == "memfs" {
        true => source.to_owned(),
        false => std::path::absolute(source).unwrap_or_else(|_| source.to_owned()),
    };
    path.display().to_string()
}

/// The tree to be shown; once more, if it is in memory. `verb` says for errors what is done with it.
pub(crate) fn tree(
    verb: &str,
    source: &Path,
    budget: Budget,
    options: &Options,
    settings: &Settings,
) -> Result<(Vfs, Option<MemFs>), Failure> {
    let is_in_memory = source.as_os_str() == "memfs";
    if settings.actor == Actor::Caller && (is_in_memory || !source.is_dir()) {
        return Err(Failure::error(format_args!(
            "acting_as=caller is for a directory of the host, and {} is none",
            source.display(),
        )));
    }
    if is_in_memory {
        let (vfs, fs) = settings.tree.tree(budget).map_err(Failure::error)?;
        return Ok((vfs, Some(fs)));
    }
    let cannot = |err: &dyn std::fmt::Display| {
        Failure::error(format_args!("cannot {verb} {}: {err}", source.display()))
    };
    let there = fs::metadata(source).map_err(|err| match err.kind() {
        std::io::ErrorKind::NotFound => cannot(&"there is no such file or directory"),
        _ => cannot(&Words(&err)),
    })?;
    let there = there.file_type();
    let vfs = if there.is_dir() {
        // Its own words are for a tree's root; a root user is not meant.
        fs::read_dir(source).map_err(|err| cannot(&Words(&err)))?;
        let open = || {
            let host = HostFs::new(source).map_err(Failure::error)?;
            let host = match settings.opens_held {
                true => host.opening_held_files(),
                false => host,
            };
            let host = host.acting_as(settings.actor);
            host.map_err(|_| cannot(&"acting_as=caller needs root (CAP_SETUID and CAP_SETGID)"))
        };
        let watched = options.watch.then(|| {
            open()?
                .watched_by(Watcher::Fanotify)
                .map_err(|err| cannot(&err))
        });
        match watched {
            Some(Ok(host)) if host.announces_changes() => {
                let reach = settings.sandbox.then(|| reach(source, settings));
                confined(reach.as_ref(), || Vfs::with_budget(host, budget))?
            }
            _ => Vfs::with_budget(open()?.with_freshness(freshness(options)), budget),
        }
    } else if there.is_file() || there.is_block_device() {
        let image = Ext4::open(source).map_err(|err| match err {
            // It has the path, too.
            rcuwalk_ext4::Error::Open { source, .. } => cannot(&Words(&source)),
            err => cannot(&err),
        })?;
        Vfs::with_budget(image, budget)
    } else {
        return Err(cannot(
            &"neither a directory, nor an image, nor a block device",
        ));
    };
    Ok((vfs.map_err(|err| cannot(&err))?, None))
}

/// Calls `make` with the rights that serving needs: the thread that watches the host inherits
/// them.
fn confined<T: Send>(reach: Option<&Reach>, make: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let made = thread::scope(|scope| {
        let thread = scope.spawn(|| confine::confine(reach).map(|()| make()));
        thread.join()
    });
    match made {
        Ok(made) => made.map_err(Failure::error),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// How long the back end caches the host's names and attributes: no longer than the kernel may.
fn freshness(options: &Options) -> Freshness {
    let kernel = options.entry_timeout.min(options.attr_timeout);
    match DEFAULT_FRESHNESS {
        _ if kernel.is_zero() => Freshness::EachUse,
        Freshness::Ttl(ttl) => Freshness::Ttl(ttl.min(kernel)),
        other => other,
    }
}
