//! What a model checker replaces: atomics, locks, waiting, statics, thread-locals.
//!
//! Whatever blocks, spins for another thread, belongs to one thread or to the whole
//! process comes from here, in this crate and in those above it: a model checker runs
//! all threads of a model on one, and a lock of the standard library, waited for there,
//! is never given back.
//!
//! | built with      | gets      | to find                                             |
//! |-----------------|-----------|-----------------------------------------------------|
//! | nothing         | std's     |                                                     |
//! | `--cfg loom`    | loom's    | wrong orderings: all schedules, and all that a weak |
//! |                 |           | load may answer, of some dozens of operations       |
//! | `--cfg shuttle` | shuttle's | wrong interleavings: random schedules of as much as |
//! |                 |           | a path walk; every atomic is as if SeqCst there     |
//!
//! Code that neither blocks nor is shared between executions may use the standard library's: it
//! is one step of the model then, with no other thread in between.

#[cfg(loom)]
use loom as checker;
#[cfg(shuttle)]
use shuttle as checker;
#[cfg(not(any(loom, shuttle)))]
use std as checker;

pub use checker::hint::spin_loop;
pub use checker::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
};
pub use checker::thread::yield_now;

/// True in a build for a model checker: sizes are small there, so that a handful of
/// operations comes by every corner.
pub const MODEL: bool = cfg!(any(loom, shuttle));

/// A static that each execution of a model finds as new.
///
/// `static NAME: T = value;` or `static NAME: [T; N] = [value; N];`
#[cfg(not(any(loom, shuttle)))]
#[doc(hidden)]
#[macro_export]
macro_rules! __fresh_static {
    ($(#[$meta:meta])* static $name:ident: $type:ty = [$each:expr; $n:expr];) => {
        $(#[$meta])* static $name: $type = [const { $each }; $n];
    };
    ($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;) => {
        $(#[$meta])* static $name: $type = $value;
    };
}

#[cfg(any(loom, shuttle))]
#[doc(hidden)]
#[macro_export]
macro_rules! __fresh_static {
    ($(#[$meta:meta])* static $name:ident: $type:ty = [$each:expr; $n:expr];) => {
        $crate::model::lazy_static! {
            $(#[$meta])* static ref $name: $type = std::array::from_fn(|_| $each);
        }
    };
    ($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;) => {
        $crate::model::lazy_static! { $(#[$meta])* static ref $name: $type = $value; }
    };
}

pub use crate::__fresh_static as fresh_static;
#[cfg(any(loom, shuttle))]
#[doc(hidden)]
pub use checker::lazy_static;

/// `static NAME: T = const { value };`, one for each of the model's threads.
macro_rules! local {
    ($(#[$meta:meta])* static $name:ident: $type:ty = const { $value:expr };) => {
        // Loom knows no const values.
        #[cfg(loom)]
        loom::thread_local! { $(#[$meta])* static $name: $type = $value; }
        #[cfg(shuttle)]
        shuttle::thread_local! { $(#[$meta])* static $name: $type = const { $value }; }
        #[cfg(not(any(loom, shuttle)))]
        std::thread_local! { $(#[$meta])* static $name: $type = const { $value }; }
    };
}
pub(crate) use local;

/// A constructor that is `const`, but not under loom, whose locks and atomics have none.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        #[cfg(not(loom))]
        $(#[$meta])* $vis const fn $($rest)*
        #[cfg(loom)]
        $(#[$meta])* $vis fn $($rest)*
    };
}
pub(crate) use const_unless_loom;
