//! Handles one message after the other: decodes it, answers it, and sends the answer. Takes
//! back the effects of answers that do not arrive.
//!
//! With its answer the kernel gets a count of a node, or a handle, and owes us a FORGET or a
//! RELEASE. That may arrive as soon as the answer is sent, so it is recorded before. If
//! an answer is not taken (the connection was aborted, the answer makes no sense to the
//! kernel), the kernel owes nothing for it and would never give anything back: so the
//! [`KernelRefs`] of that answer are dropped here.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rcuwalk::inode::NodeId;
use rcuwalk::{Error, Result};
use rustix::io::Errno;

use super::answer::Call;
use super::decode::{Header, Operation, Refused, decode};
use super::encode::{Reply, listed};
use super::init::{self, Terms};
use crate::caller::Caller;
use crate::interrupt::Slot;
use crate::through::Backing;
use crate::wire::{Handler, Opcode};

/// A way for answers to the kernel, and for files of the host.
pub(super) trait Channel {
    /// Sends an answer, whole.
    ///
    /// # Errors
    /// The other end has not taken it.
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()>;

    /// Registers a file of the host for passthrough.
    ///
    /// # Errors
    /// Those of the kernel.
    fn register(&self, host: BorrowedFd<'_>) -> std::io::Result<Backing>;

    /// Interrupts the request of that number. True if a thread of this connection is answering
    /// it.
    fn interrupt(&self, unique: u64) -> bool;

    /// Makes the kernel send the INTERRUPT of that number again, by the way that the request
    /// itself has come.
    fn interrupt_again(&self, answer: &[u8]);
}

/// What the kernel holds once it has the answer, and how it gives that back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelRefs {
    Nothing,
    /// A FORGET.
    Node(NodeId),
    /// A RELEASE or RELEASEDIR.
    Handle(u64),
    Both(NodeId, u64),
    /// A FORGET for each node in the answer to this READDIRPLUS.
    Listed,
}

/// What the thread does after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Reads the next message.
    Comes,
    /// Reads ahead in the directory that is open by this handle, and then the next message.
    Listed(u64),
    /// Uses these terms from now on: INIT is answered.
    Agreed(Terms),
    /// INIT had another major version; its sender may try once more.
    Disagreed(i32),
    /// Ends: that was the last message.
    Over,
}

/// The state of one thread that answers messages.
pub(super) struct Dispatcher<'h, L> {
    handler: &'h Handler,
    channel: L,
    slot: Arc<Slot>,
}

impl<'h, L: Channel> Dispatcher<'h, L> {
    pub(super) fn new(handler: &'h Handler, channel: L, slot: Arc<Slot>) -> Self {
        Dispatcher {
            handler,
            channel,
            slot,
        }
    }

    /// Answers the first message, and others until there is an INIT that we support. Calls
    /// `has_rings` only if the kernel offers to put requests in rings.
    pub(super) fn first_message(
        &mut self,
        message: &[u8],
        out: &mut Reply,
        has_rings: impl FnOnce() -> bool,
    ) -> Next {
        match decode(message, false) {
            Ok((header, Operation::Init(offered))) => {
                let wanted = init::Wanted {
                    passthrough: self.handler.passthrough,
                    writeback: self.handler.writeback,
                    idmap: self.handler.idmap,
                };
                let answer = init::answer(&offered, &wanted, has_rings);
                out.begin();
                let next = match &answer {
                    init::Answer::Agreed(terms) => Next::Agreed(*terms),
                    init::Answer::TryOlder => Next::Comes,
                    init::Answer::TooOld => Next::Disagreed(libc::EPROTO),
                };
                answer.encode(out);
                if let Next::Agreed(terms) = next {
                    let (tells, long) = (terms.tells_set_ids(), terms.has_long_setxattr());
                    self.handler.agreed.set(tells, long, terms.has_idmaps());
                    if terms.has_idmaps() {
                        self.handler.watch.knows_threads_only();
                    }
                    if terms.passes {
                        self.handler.ops.offer.accepted();
                    }
                    if terms.writes_back() {
                        self.handler.ops.back.accepted();
                    }
                }
                let errno = if let Next::Disagreed(errno) = next {
                    errno
                } else {
                    0
                };
                self.send(header.unique, errno, out);
                next
            }
            Ok((header, _)) => {
                self.refuse(header.unique, libc::EIO, out);
                Next::Disagreed(libc::EIO)
            }
            Err(refused) => {
                self.refused(refused, out);
                Next::Disagreed(libc::EINVAL)
            }
        }
    }

    /// Answers one message of any kind, with `out` as the buffer.
    pub(super) fn message(&mut self, message: &[u8], out: &mut Reply) -> Next {
        match decode(message, self.handler.agreed.has_long_setxattr()) {
            Ok((mut header, operation)) => {
                header.who = match self.handler.is_for_guest {
                    true => header.who.of_guest(),
                    false => Caller {
                        is_checked: self.handler.agreed.has_idmaps(),
                        ..header.who
                    },
                };
                self.answer(&header, operation, out)
            }
            Err(refused) => {
                tracing::debug!(?refused, len = message.len(), "no request");
                self.refused(refused, out);
                Next::Comes
            }
        }
    }

    fn answer(&mut self, header: &Header, operation: Operation<'_>, out: &mut Reply) -> Next {
        let Header { unique, who, .. } = *header;
        if is_refusable(&operation) {
            if self.handler.own.contain(who.pid) {
                self.refuse(unique, libc::ELOOP, out);
                return Next::Comes;
            }
            let watch = &self.handler.watch;
            // Finding the user may cost a read of /proc: only if needed.
            if watch.is_strained() && !watch.admits(who.user(), self.slot.group) {
                self.refuse(unique, libc::EAGAIN, out);
                return Next::Comes;
            }
        }
        self.slot.work.begin(match who.is_checked && !who.is_guest {
            true => who.pid,
            false => who.uid,
        });
        match operation {
            Operation::Nothing => return Next::Comes,
            Operation::Interrupt(which) => {
                self.interrupt(header, which, out);
                return Next::Comes;
            }
            Operation::Forget(count) => {
                self.forget(header, header.node, count);
                return Next::Comes;
            }
            Operation::BatchForget(forgets) => {
                for (node, count) in forgets.each() {
                    self.forget(header, node, count);
                }
                return Next::Comes;
            }
            Operation::Destroy => {
                out.begin();
                self.done(unique, KernelRefs::Nothing, out);
                return Next::Over;
            }
            _ => {}
        }
        let lists = match &operation {
            Operation::Readdir(piece) | Operation::Readdirplus(piece) => Some(piece.fh),
            _ => None,
        };
        out.begin();
        let answering = self.slot.answering(unique);
        let call = Call {
            handler: self.handler,
            header,
            register: &|host| self.channel.register(host),
        };
        let filled = call.fill(operation, out);
        // Before the answer: after it, the number belongs to no request.
        drop(answering);
        match filled {
            Ok(refs) => {
                self.done(unique, refs, out);
                lists.map_or(Next::Comes, Next::Listed)
            }
            Err(err) => {
                self.refuse(unique, err.errno(), out);
                Next::Comes
            }
        }
    }

    fn done(&self, unique: u64, refs: KernelRefs, out: &mut Reply) {
        match out
            .finish(unique, 0)
            .and_then(|told| self.channel.send(told))
        {
            Ok(()) => {}
            Err(errno) => {
                tracing::debug!(%errno, "an answer was not taken");
                self.take_back(refs, out);
                if !matches!(errno, Errno::NOENT | Errno::NODEV) {
                    // The caller must get some answer.
                    self.refuse(unique, libc::EIO, out);
                }
            }
        }
    }

    /// Sends an error number as the answer; ignores errors of the send.
    fn send(&self, unique: u64, errno: i32, out: &mut Reply) {
        let _ = out
            .finish(unique, errno)
            .and_then(|told| self.channel.send(told));
    }

    fn take_back(&self, refs: KernelRefs, out: &Reply) {
        let ops = &self.handler.ops;
        let (node, handle) = match refs {
            KernelRefs::Nothing => (None, None),
            KernelRefs::Node(node) => (Some(node), None),
            KernelRefs::Handle(handle) => (None, Some(handle)),
            KernelRefs::Both(node, handle) => (Some(node), Some(handle)),
            KernelRefs::Listed => {
                listed(out.body()).for_each(|node| ops.take_back(node));
                (None, None)
            }
        };
        if let Some(handle) = handle {
            // Cannot fail: the handle exists, and no other thread has been told of it.
            let _ = ops.release(handle);
        }
        if let Some(node) = node {
            ops.take_back(node);
        }
    }

    fn refused(&self, refused: Refused, out: &mut Reply) {
        match refused {
            Refused::Dropped => {}
            Refused::Answered(unique) => self.refuse(unique, libc::EINVAL, out),
        }
    }

    fn refuse(&self, unique: u64, errno: i32, out: &mut Reply) {
        if unique == 0 {
            // The answer would be a notice.
            return;
        }
        // The kernel accepts only these numbers in an answer.
        let errno = if (1..512).contains(&errno) {
            errno
        } else {
            libc::EIO
        };
        out.begin();
        self.send(unique, errno, out);
    }

    /// Handles INTERRUPT. Answers it only if the kernel must send it again: a thread may read
    /// it before another has begun to answer the request that it names.
    #[doc(alias = "FUSE_INTERRUPT")]
    fn interrupt(&self, header: &Header, which: u64, out: &mut Reply) {
        let heard = self
            .without_files(header)
            .run(Opcode::Interrupt, |_, _, _| {
                match self.channel.interrupt(which) {
                    true => Ok(()),
                    false => Err(Error::WouldBlock),
                }
            });
        if let Err(early) = heard {
            out.begin();
            if let Ok(again) = out.finish(header.unique, early.errno()) {
                self.channel.interrupt_again(again);
            }
        }
    }

    fn forget(&self, header: &Header, node: NodeId, count: u64) {
        // FORGET has no answer.
        let header = Header { node, ..*header };
        let _ = self
            .without_files(&header)
            .run(Opcode::Forget, |ops, _, id| {
                ops.forget(id, count);
                Ok(())
            });
    }

    fn without_files<'a>(&self, header: &'a Header) -> Call<'a, 'h> {
        Call {
            handler: self.handler,
            header,
            register: &|_| Err(std::io::ErrorKind::Unsupported.into()),
        }
    }
}

/// True if the request may be refused, for lack of threads (WATCH-1) or because it is a loop:
/// it may block, and the kernel does not rely on its success.
fn is_refusable(operation: &Operation<'_>) -> bool {
    !matches!(
        operation,
        Operation::Nothing
            | Operation::Interrupt(_)
            | Operation::Forget(_)
            | Operation::BatchForget(_)
            | Operation::Destroy
            | Operation::Release(_)
            | Operation::Releasedir(_)
            | Operation::Write {
                is_cached: true,
                ..
            }
    )
}

/// `ENOSYS`: from now on the kernel does without the operation.
pub(super) fn not_known<T>() -> Result<T> {
    Err(Error::io(std::io::Error::from_raw_os_error(libc::ENOSYS)))
}
