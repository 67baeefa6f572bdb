//! Calls of the VFS into a back end.
//!
//! CALL-1 says what holds during a call; see [`filesystem`](crate::filesystem). It does not
//! apply to methods that return constants (a name, a numbering).

use std::ops::Deref;

use rcuwalk_sync::lock::Call;

/// A back end, or a file of it that is open, during a call: until the end of the statement,
/// as a rule.
pub(crate) struct Called<'a, T: ?Sized> {
    back_end: &'a T,
    _call: Call,
}

/// Calls a back end.
#[inline]
pub(crate) fn call<T: ?Sized>(back_end: &T) -> Called<'_, T> {
    Called {
        back_end,
        _call: Call::new(),
    }
}

impl<T: ?Sized> Deref for Called<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.back_end
    }
}
