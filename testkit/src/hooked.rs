//! [`Hooked`]: a back end that runs a closure before each call.

use rcuwalk::{FileSystem, Result};

use crate::wrapper::{Call, Wrapped, Wrapper};

type Before = dyn Fn(&Call<'_>) -> Result<()> + Send + Sync;

/// Runs a closure before each call to the back end within. The closure may count the call,
/// block until the test lets it go on, or return an error in place of the answer.
pub struct Hooked<F> {
    inner: F,
    before: Box<Before>,
}

impl<F: FileSystem> Hooked<F> {
    /// Wraps `inner`.
    pub fn new(
        inner: F,
        before: impl Fn(&Call<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Wrapped<Hooked<F>> {
        let before = Box::new(before);
        Wrapped::new(Hooked { inner, before })
    }
}

impl<F: FileSystem> Wrapper for Hooked<F> {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.inner)
    }

    fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        (self.before)(call)?;
        ask()
    }
}
