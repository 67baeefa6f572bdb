//! `rcuwalk mounts`: lists mounts and servers, and their states.
//!
//! The kernel lists the mounts; the process of each one reports its state. The mount itself is
//! not accessed: one whose process is stuck would block us for ever.

use crate::failure::{Failure, print};
use crate::mountinfo::{self, MountInfo};
use crate::runtime::{self, State};

/// List the mounts of `rcuwalk mount`, and what `rcuwalk serve nfs` serves
///
/// Asks the process of each mount how it is. One that is dead has left a mount behind, which
/// `rcuwalk umount` takes away; one that is silent is stopped or stuck. A request is stuck if the
/// source (a dead NFS server below it, say) has not answered for five seconds. Those of other users
/// are told from the dead by root only. Of servers, those of this user are listed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// A mount of ours.
#[derive(serde::Serialize)]
struct Found {
    source: String,
    mountpoint: String,
    state: State,
    pid: Option<u32>,
    options: Vec<String>,
    /// The status of its process: nodes, open files, requests under way.
    status: Option<serde_json::Value>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mounts = mountinfo::mounts().map_err(Failure::error)?;
    let ours: Vec<&MountInfo> = mounts.iter().filter(|mount| mount.is_ours()).collect();
    // All at once: a second for the silent ones, however many.
    let found: Vec<Found> = std::thread::scope(|scope| {
        let asked = ours.iter().map(|mount| scope.spawn(|| Found::ask(mount)));
        let servers = runtime::servers().into_iter();
        let servers = servers.map(|socket| scope.spawn(move || Found::ask_server(&socket)));
        // All are started before the first is waited for.
        let asked: Vec<_> = asked.collect();
        let servers: Vec<_> = servers.collect();
        let servers = servers.into_iter().filter_map(|asked| asked.join().ok());
        let servers: Vec<Found> = servers.flatten().collect();
        let found = asked.into_iter().filter_map(|asked| asked.join().ok());
        found.chain(servers).collect()
    });
    match args.json {
        true => {
            let text = serde_json::to_string_pretty(&found).map_err(Failure::error)?;
            print(&format!("{text}\n"))
        }
        false => print(&table(&found)),
    }
}

impl Found {
    fn ask(mount: &MountInfo) -> Found {
        let (state, pid, status) = runtime::ask(mount);
        Found {
            source: mount.source.to_string_lossy().into_owned(),
            mountpoint: mount.at.to_string_lossy().into_owned(),
            state,
            pid,
            options: mount.options.clone(),
            status,
        }
    }

    /// `None` for what a killed process has left: there is nothing to be taken away.
    fn ask_server(socket: &std::path::Path) -> Option<Found> {
        let (state, pid, status) = runtime::ask_server(socket);
        if state == State::Dead {
            return None;
        }
        let told = |name: &str| {
            let told = status.as_ref().and_then(|status| status.get(name));
            told.and_then(serde_json::Value::as_str).unwrap_or("?")
        };
        let options = told("options").split(',').map(str::to_owned).collect();
        Some(Found {
            source: told("source").to_owned(),
            mountpoint: format!("nfs://{}/", told("address")),
            state,
            pid,
            options,
            status,
        })
    }

    /// One that the process has told.
    fn number(&self, name: &str) -> u64 {
        let told = self.status.as_ref().and_then(|status| status.get(name));
        told.and_then(serde_json::Value::as_u64).unwrap_or_default()
    }

    fn how_it_is(&self) -> String {
        match self.state {
            State::Alive => match self.number("stuck") {
                0 => "alive".to_owned(),
                stuck => format!(
                    "alive, {stuck} requests stuck for up to {} s",
                    self.number("oldest_seconds")
                ),
            },
            State::Silent => "silent: stopped or stuck".to_owned(),
            State::Dead => format!("dead: rcuwalk umount {}", self.mountpoint),
            State::Unknown => "unknown".to_owned(),
        }
    }
}

fn table(found: &[Found]) -> String {
    let mut rows = vec![["SOURCE", "MOUNT POINT", "PID", "STATE", "OPTIONS"].map(String::from)];
    rows.extend(found.iter().map(|mount| {
        [
            mount.source.clone(),
            mount.mountpoint.clone(),
            mount.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            mount.how_it_is(),
            mount.options.join(","),
        ]
    }));
    if found.is_empty() {
        return String::new();
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..4).filter_map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (cell, width) in row.iter().zip(&widths) {
            // A line is a mount, whatever its name has in it.
            let cell: String = cell
                .chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect();
            text.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(&row[4]);
        text.push('\n');
    }
    text
}
