//! The lockless building blocks of rcuwalk, and all the unsafe code of its core.
//!
//! | read             | to learn                                                |
//! |------------------|---------------------------------------------------------|
//! | [`rcu`]          | read sections, and when retired objects are freed       |
//! | [`Shared`]       | a counted object: count, lock and dead mark in one word |
//! | [`RcuPtr`]       | a pointer readers follow while writers replace it       |
//! | [`SeqCount`]     | several words read as of one moment                     |
//! | [`RcuHash`]      | the hash table: lockless readers, a lock per bucket     |
//! | [`Lru`]          | the order of eviction when the budget is full           |
//! | [`lock`]         | ranked locks, checked in debug builds                   |
//! | [`PerThread`]    | counters that only their own thread writes              |
//! | [`model`]        | replacements for loom and shuttle                       |
//! | [`probe`]        | probes for tracers                                      |
//! | [`memory`]       | how much memory objects and tables take                 |
//! | [`fork`]         | what the child finds after fork(2)                      |
//!
//! The rule that holds it together: a reference crosses from RCU protection to a
//! count only through [`Shared::try_get`], and memory is given back only by
//! [`rcu`], after a grace period. Every `SAFETY:` comment below leans on one of
//! the invariants that the modules state by id.

pub mod atomic;
pub mod bytes;
pub mod clock;
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub mod fork;
/// Models do not fork.
#[cfg(not(all(unix, not(any(miri, loom, shuttle)))))]
pub mod fork {
    /// Does nothing.
    pub fn also(_: fn() -> Box<dyn std::any::Any>) {}
}
mod hash;
mod hint;
mod late;
pub mod lock;
mod lru;
pub mod memory;
pub mod model;
mod per_thread;
pub mod probe;
pub mod rcu;
mod rcu_ptr;
mod seq;
mod shared;
mod slab;
mod thin_box;
mod wait;

pub use hash::{BucketGuard, HashKey, LockStatistics, RcuHash, Unsettled, View};
pub use late::Late;
pub use lru::{List, Lru, LruStatus};
pub use per_thread::PerThread;
pub use rcu::RcuGuard;
pub use rcu_ptr::RcuPtr;
pub use seq::{Seq, SeqCount, SeqLock, SeqWriter};
pub use shared::{Dying, Flag, LockedShared, Ref, Shared, Snapshot, Spare};
pub use thin_box::{AsDyn, ThinBox};

/// The examples of README.md are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
