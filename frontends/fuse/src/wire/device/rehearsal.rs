//! A session without a connection, for a fuzzer.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rcuwalk::{Result, Vfs};

use super::dispatch::{Channel, Dispatcher, Next};
use super::encode::Reply;
use crate::Options;
use crate::interrupt::{self, Slot};
use crate::through::Backing;
use crate::wire::Handler;

/// Answers messages as if they came by /dev/fuse, one after the other on this thread, until one
/// of them is the last. Passes each answer to `heard`, with the number of the message before
/// it.
///
/// # Errors
/// The tree has no root to show.
#[doc(hidden)]
pub fn rehearse<'m>(
    vfs: Vfs,
    messages: impl IntoIterator<Item = &'m [u8]>,
    heard: impl FnMut(usize, &[u8]),
) -> Result<()> {
    let handler = Handler::new(vfs, &Options::default())?;
    let slot = Arc::new(Slot::default());
    interrupt::this_thread_is(&slot);
    let channel = Listener {
        heard: RefCell::new((0, heard)),
        slot: slot.clone(),
    };
    let mut dispatcher = Dispatcher::new(&handler, &channel, slot);
    let mut out = Reply::new();
    for (number, message) in messages.into_iter().enumerate() {
        channel.heard.borrow_mut().0 = number;
        let is_init = number == 0 && message.get(4..8) == Some(&26_u32.to_ne_bytes());
        let next = match is_init {
            true => dispatcher.first_message(message, &mut out, || false),
            false => dispatcher.message(message, &mut out),
        };
        match next {
            Next::Listed(handle) => handler.listed(handle),
            Next::Over => break,
            _ => {}
        }
    }
    handler.ops.end();
    assert_eq!(handler.ops.nodes(), 1, "all is forgotten with the end");
    Ok(())
}

struct Listener<F> {
    heard: RefCell<(usize, F)>,
    slot: Arc<Slot>,
}

impl<F: FnMut(usize, &[u8])> Channel for &Listener<F> {
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()> {
        let (number, heard) = &mut *self.heard.borrow_mut();
        heard(*number, answer);
        Ok(())
    }

    fn register(&self, _: BorrowedFd<'_>) -> io::Result<Backing> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.slot.interrupt(unique)
    }

    fn interrupt_again(&self, answer: &[u8]) {
        let _ = self.send(answer);
    }
}
