//! A back end in memory that notes what it is asked. Its names are valid for long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcuwalk::{FileSystem, Freshness, Result};
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Call, Wrapped, Wrapper};

/// What the back end was asked, in the order of the questions.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<&'static str>>>);

impl Notes {
    /// The questions since the last call.
    pub(crate) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub(crate) struct Counted(MemFs, Notes);

impl Counted {
    pub(crate) fn new(notes: &Notes) -> Wrapped<Counted> {
        Wrapped::new(Counted(MemFs::new(), notes.clone()))
    }
}

impl Wrapper for Counted {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.0)
    }

    fn freshness(&self) -> Freshness {
        Freshness::Ttl(Duration::from_secs(3600))
    }

    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        self.1.0.lock().unwrap().push(call.method);
        ask()
    }
}
