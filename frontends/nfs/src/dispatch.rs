//! From a record to its reply: the header, the program and procedure, and calls that come again.
//! Nothing here knows of sockets.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use crate::export::Export;
use crate::metrics::{Kind, Metrics};
use crate::mount;
use crate::ops::PROCEDURES;
use crate::replies::{Begun, Key, Replies};
use crate::rpc::{self, Accepted, Call, Denial, Refused};
use crate::status::Status;
use crate::xdr::{Garbage, Writer};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const VERSION: u32 = 3;

/// Answers records. `C` is a connection.
pub(crate) struct Dispatcher<C> {
    pub(crate) export: Export,
    replies: Replies<C>,
    pub(crate) metrics: Metrics,
}

/// What becomes of a record.
#[derive(Debug)]
pub(crate) enum Outcome<C> {
    /// It is answered by this; to another connection as well if the client has asked again by that
    /// one.
    Reply(Vec<u8>, Option<C>),
    /// It is being answered already.
    Nothing,
    /// The client does not speak this protocol.
    HangUp,
}

impl<C> Dispatcher<C> {
    pub(crate) fn new(export: Export) -> Dispatcher<C> {
        Dispatcher {
            export,
            replies: Replies::default(),
            metrics: Metrics::new(),
        }
    }

    /// Answers a record that `client` has sent.
    pub(crate) fn record(
        &self,
        client: SocketAddr,
        record: &[u8],
        connection: impl FnOnce() -> C,
    ) -> Outcome<C> {
        let refuse = |reply| {
            self.metrics.refused.fetch_add(1, Relaxed);
            Outcome::Reply(rpc::finish(reply), None)
        };
        let call = match Call::read(record) {
            Ok(call) => call,
            Err(Refused::NotACall) => return Outcome::HangUp,
            Err(Refused::Denied { xid, why }) => return refuse(rpc::denied(xid, why)),
        };
        if call.procedure != 0 && !self.export.options.heeds(client) {
            return refuse(rpc::denied(call.xid, Denial::TooWeak));
        }
        let (kind, procedures) = match call.program {
            NFS => (Kind::nfs as fn(usize) -> Kind, PROCEDURES.len()),
            MOUNT => (Kind::mount as fn(usize) -> Kind, mount::PROCEDURES.len()),
            _ => return refuse(rpc::reply(call.xid, Accepted::UnknownProgram)),
        };
        if call.version != VERSION {
            return refuse(rpc::reply(call.xid, Accepted::OtherVersion(VERSION)));
        }
        let procedure = call.procedure as usize;
        if procedure >= procedures {
            return refuse(rpc::reply(call.xid, Accepted::UnknownProcedure));
        }
        let once = call.program == NFS && PROCEDURES[procedure].once;
        let key = once.then(|| self.replies.key(&call));
        if let Some(key) = key {
            match self.replies.begin(client.ip(), key, connection) {
                Begun::New => {}
                Begun::Running => return Outcome::Nothing,
                Begun::Done(reply) => {
                    self.metrics.repeated.fetch_add(1, Relaxed);
                    return Outcome::Reply(reply, None);
                }
            }
        }
        self.execute(client, &call, kind(procedure), key)
    }

    fn execute(
        &self,
        client: SocketAddr,
        call: &Call<'_>,
        kind: Kind,
        key: Option<Key>,
    ) -> Outcome<C> {
        let mut out = rpc::reply(call.xid, Accepted::Success);
        let run = || self.run(client, call, &mut out);
        // A fault of ours costs one call, and not a thread.
        let run = || catch_unwind(AssertUnwindSafe(run));
        let done = self.metrics.measure(kind, || {
            let done = run();
            let is_ok = matches!(done, Ok(Ok(Ok(()))));
            (done, is_ok)
        });
        let (reply, is_kept) = match done {
            Ok(Ok(result)) => {
                tracing::debug!(%client, kind = kind.name(), ?result, "done");
                // A client that is told to try again is to be heard again.
                (out, result != Err(Status::Jukebox))
            }
            Ok(Err(Garbage)) => {
                self.metrics.refused.fetch_add(1, Relaxed);
                (rpc::reply(call.xid, Accepted::Garbage), false)
            }
            Err(_panic) => {
                self.metrics.faults.fetch_add(1, Relaxed);
                tracing::error!(%client, kind = kind.name(), "a call has failed by a fault of the server");
                (rpc::reply(call.xid, Accepted::SystemError), false)
            }
        };
        let reply = rpc::finish(reply);
        let also = match key {
            Some(key) if is_kept => self.replies.finish(client.ip(), key, &reply),
            Some(key) => self.replies.give_up(client.ip(), key),
            None => None,
        };
        Outcome::Reply(reply, also)
    }

    fn run(
        &self,
        client: SocketAddr,
        call: &Call<'_>,
        out: &mut Writer,
    ) -> Result<crate::status::Result<()>, Garbage> {
        let procedure = call.procedure as usize;
        match call.program {
            MOUNT => mount::run(&self.export, client.ip(), procedure, call.args, out),
            _ => PROCEDURES[procedure].run(&self.export, &call.user, call.args, out),
        }
    }
}
