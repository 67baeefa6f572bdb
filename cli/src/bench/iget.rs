//! `rcuwalk bench iget`: the inode cache against the node tables of daemons.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use rcuwalk_bench::iget::{Entrant, Iget, IgetError, InodeBytes, Memory, Mix};

use super::{Options, with_bar};
use crate::failure::Failure;
use crate::signals::Stop;

/// Get an inode by number, and put it: our cache against node tables of daemons
///
/// Ours with three locking schemes, HashMaps behind one lock, three BTreeMaps as
/// virtiofsd keeps them, concurrent maps, and an array that looks nothing up, which is as
/// fast as the machine allows: random cached inodes, nine of ten cached, and a stream of
/// new ones. What each inode takes in memory is measured in a
/// process of its own. Takes some 1.5 KiB of memory per inode in all.
#[derive(clap::Args, Default)]
pub(super) struct Args {
    /// Measure only these contenders, by name; with commas between
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only these loads; with commas between
    #[arg(long, value_name = "MIXES", value_delimiter = ',')]
    mix: Vec<MixArg>,
    /// Give all hash tables our fast hash, instead of the hasher that each has by default
    #[arg(long)]
    fast_hash: bool,
    /// Fill this contender's table, print the bytes that each inode takes, and end:
    /// the command starts itself with this.
    #[arg(long, hide = true, value_name = "NAME")]
    bytes_per_inode_of: Option<String>,
}

/// Fewer inodes than this fit into a processor's first caches.
const LEAST_INODES: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MixArg {
    Hit,
    Mixed,
    Stream,
}

impl From<MixArg> for Mix {
    fn from(mix: MixArg) -> Mix {
        match mix {
            MixArg::Hit => Mix::Hit,
            MixArg::Mixed => Mix::Mixed,
            MixArg::Stream => Mix::Stream,
        }
    }
}

pub(super) fn run(args: &Args, options: &Options, stop: &Stop) -> Result<String, Failure> {
    let iget = benchmark(args, options)?;
    if let Some(name) = &args.bytes_per_inode_of {
        let entrant = iget.entrants.iter().find(|one| one.name() == name);
        let entrant = entrant.ok_or_else(|| unknown(name, &iget.entrants))?;
        let bytes = entrant.bytes_per_inode(iget.inodes);
        let bytes = bytes.map_err(Failure::error)?;
        return Ok(match bytes.allocated {
            Some(allocated) => format!("{} {allocated}\n", bytes.resident),
            None => format!("{}\n", bytes.resident),
        });
    }

    let report = with_bar("iget", stop, |progress| iget.run(stop.flag(), progress))?;
    let error = |err: IgetError| Failure::error(format_args!("iget: {err}"));
    let mut report = report.map_err(error)?;
    report.memory = Some(memory(&iget, stop)?);
    options.form(&report)
}

fn benchmark(args: &Args, options: &Options) -> Result<Iget, Failure> {
    let peers = if args.fast_hash {
        rcuwalk_bench_peers::all_with_fast_hash()
    } else {
        rcuwalk_bench_peers::all()
    };
    let mut iget = Iget::new(peers);
    iget.fast_hash = args.fast_hash;
    for name in &args.only {
        if !iget.entrants.iter().any(|one| one.name() == name) {
            return Err(unknown(name, &iget.entrants));
        }
    }
    if !args.only.is_empty() {
        iget.entrants
            .retain(|one| args.only.iter().any(|name| name == one.name()));
    }
    if !args.mix.is_empty() {
        let wanted = |mix: &Mix| args.mix.iter().any(|&one| Mix::from(one) == *mix);
        iget.mixes.retain(wanted);
    }
    iget.rounds = options.rounds_or(Iget::ROUNDS);
    if let Some(threads) = options.threads {
        iget.threads = Iget::threads_up_to(threads.into());
    }
    if let Some(inodes) = options.inodes {
        iget.inodes = inodes;
    }
    let least = Iget::least_inodes(&iget.threads).max(LEAST_INODES);
    if iget.inodes < least {
        return Err(Failure::error(format_args!(
            "iget: {} inodes are too few for {} threads; take at least {least}",
            iget.inodes,
            iget.threads[iget.threads.len() - 1]
        )));
    }
    Ok(iget)
}

fn unknown(name: &str, entrants: &[Entrant]) -> Failure {
    let names: Vec<_> = entrants.iter().map(Entrant::name).collect();
    Failure::error(format_args!(
        "iget: there is no contender `{name}`; there are {}",
        names.join(", ")
    ))
}

/// Bytes per inode of each contender: in a fresh process for each, as memory that was freed
/// before would be used again.
fn memory(iget: &Iget, stop: &Stop) -> Result<Memory, Failure> {
    let mut memory = Memory {
        inodes: iget.inodes,
        ..Memory::default()
    };
    // A table without a limit of inodes is not a contender.
    let tables = iget.entrants.iter();
    for entrant in tables.filter(|one| one.takes_part(Mix::Stream)) {
        let bytes = bytes_per_inode(entrant.name(), iget.inodes, stop);
        stop.check()?;
        let bytes = bytes
            .map_err(|err| Failure::error(format_args!("iget: cannot measure memory: {err}")))?;
        let resident = hundredths(bytes.resident);
        memory.bytes_per_inode.insert(entrant.name(), resident);
        // The schemes are one code.
        let allocated = bytes.allocated.map(hundredths);
        memory.ours_from_allocator = memory.ours_from_allocator.or(allocated);
    }
    Ok(memory)
}

fn bytes_per_inode(name: &str, inodes: u64, stop: &Stop) -> io::Result<InodeBytes> {
    let child = Command::new(std::env::current_exe()?)
        .args(["bench", "iget", "--bytes-per-inode-of", name])
        .arg(format!("--inodes={inodes}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = unless_stopped(child, stop)?.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    match (numbers.next(), numbers.next().transpose()) {
        (Some(Ok(resident)), Ok(allocated)) => Ok(InodeBytes {
            resident,
            allocated,
        }),
        _ => {
            let how = output.status;
            Err(io::Error::other(format!(
                "the process for {name} ended with {how}"
            )))
        }
    }
}

/// More digits would only look precise.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Waits for the process, or ends it when we are to stop ourselves.
fn unless_stopped(mut child: Child, stop: &Stop) -> io::Result<Child> {
    while child.try_wait()?.is_none() {
        if stop.check().is_err() {
            child.kill()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}
