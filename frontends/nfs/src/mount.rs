//! The MOUNT protocol, version 3 (RFC 1813, appendix I): from a path to the first handle.
//!
//! The tree is exported as `/`. Any directory in it can be mounted; links lead no further than its
//! root (WALK-3). The list of mounts (DUMP) is what clients have said, and nothing depends on it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rcuwalk::LookupFlags;

use crate::export::Export;
use crate::status::{Result, Status};
use crate::xdr::{Decoded, Reader, Writer};

/// The longest path.
const MOST_PATH: usize = 1024;
/// Mounts that are listed; the oldest go.
const MOST_MOUNTS: usize = 256;

const AUTH_SYS: u32 = 1;

/// The mounts that clients have told of.
#[derive(Default)]
pub(crate) struct Mounts(Mutex<VecDeque<(IpAddr, Box<[u8]>)>>);

impl Mounts {
    fn all(&self) -> MutexGuard<'_, VecDeque<(IpAddr, Box<[u8]>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut all = self.all();
        all.retain(|(other, at)| *other != client || **at != *path);
        all.push_back((client, path.into()));
        while all.len() > MOST_MOUNTS {
            all.pop_front();
        }
    }
}

pub(crate) const PROCEDURES: [&str; 6] = ["null", "mnt", "dump", "umnt", "umntall", "export"];

/// Runs a procedure, and writes its result.
///
/// # Errors
/// [`crate::xdr::Garbage`] if the arguments are malformed. The status that the reply has.
pub(crate) fn run(
    export: &Export,
    client: IpAddr,
    procedure: usize,
    args: &[u8],
    out: &mut Writer,
) -> Decoded<Result<()>> {
    let mut reader = Reader::new(args);
    match PROCEDURES[procedure] {
        "mnt" => {
            let path = reader.opaque(MOST_PATH)?;
            reader.end()?;
            return Ok(mnt(export, client, path, out));
        }
        "umnt" => {
            let path = reader.opaque(MOST_PATH)?;
            let mut all = export.mounts.all();
            all.retain(|(other, at)| *other != client || **at != *path);
        }
        "umntall" => export.mounts.all().retain(|(other, _)| *other != client),
        "dump" => {
            for (client, path) in export.mounts.all().iter() {
                out.bool(true);
                out.opaque(client.to_string().as_bytes());
                out.opaque(path);
            }
            out.bool(false);
        }
        "export" => {
            out.bool(true);
            out.opaque(b"/");
            for network in &export.options.allow {
                out.bool(true);
                out.opaque(network.to_string().as_bytes());
            }
            out.bool(false);
            out.bool(false);
        }
        _ => {}
    }
    Ok(Ok(()))
}

fn mnt(export: &Export, client: IpAddr, path: &[u8], out: &mut Writer) -> Result<()> {
    let found = || {
        // The daemon, as rpc.mountd(8) does: who may use a directory is decided when it is used.
        let flags = LookupFlags::FOLLOW | LookupFlags::DIRECTORY;
        let path = match path {
            b"" => b"/",
            path => path,
        };
        let dir = export.vfs.lookup(&export.daemon, path, flags)?;
        export.files.of(&dir)
    };
    match found() {
        Ok(known) => {
            export.mounts.add(client, path);
            out.u32(0);
            out.opaque(known.wire());
            out.u32(1);
            out.u32(AUTH_SYS);
            Ok(())
        }
        Err(err) => {
            let status = as_mount(Status::from(err));
            out.u32(status as u32);
            Err(status)
        }
    }
}

/// The status in `mountstat3`, which has fewer.
fn as_mount(status: Status) -> Status {
    use Status::*;
    match status {
        Perm | NoEnt | Io | Acces | NotDir | Inval | NameTooLong | NotSupp => status,
        Stale => NoEnt,
        _ => ServerFault,
    }
}
