//! INIT: the features that the front end promises the kernel.
//!
//! | promised at INIT     | because                                                      |
//! |----------------------|--------------------------------------------------------------|
//! | `ASYNC_READ`, `BIG_WRITES`, `MAX_PAGES` | pieces of a MiB, several at a time        |
//! | `EXPORT_SUPPORT`     | LOOKUP of `.` and `..` finds forgotten nodes (HANDLE-1)      |
//! | `DONT_MASK`          | a default ACL replaces the umask, and the VFS knows it       |
//! | `POSIX_ACL`          | the kernel checks permissions (`default_permissions`), with ACLs |
//! | `HANDLE_KILLPRIV`, `…_V2` | the VFS clears set-id bits at a write or chown; with the second, the kernel remembers that a file has none, and says for which callers they are cleared |
//! | `SETXATTR_EXT`       | the kernel says whether an ACL clears the set-gid bit        |
//! | `AUTO_INVAL_DATA`    | pages are dropped when size or time of the file have changed |
//! | `PARALLEL_DIROPS`    | lookups in one directory need not wait for each other        |
//! | `DO_READDIRPLUS`, `…_AUTO` | a listing answers the lookups that follow it           |
//! | `PASSTHROUGH`        | where it is wanted: contents are the host's, see `through.rs` |
//! | `ALLOW_IDMAP`        | where it is wanted: the kernel maps users for each mount, and checks alone, see `caller.rs`. It ends a connection that promises this without `default_permissions` |
//! | `OVER_IO_URING`      | where it is wanted, and rings can be made: see `uring.rs`    |
//! | `ATOMIC_O_TRUNC`     | is not: an OPEN that truncates would come before the kernel checks whether the file is being executed (`ETXTBSY`); so it truncates by a SETATTR of its own |
//! | `CACHE_SYMLINKS`     | is not: a new link may get an old number                     |
//! | `WRITEBACK_CACHE`    | only where it is wanted: sizes and times are the kernel's then, see `back.rs`; the kernel has either this or `PASSTHROUGH` |
//!
//! `HAS_EXPIRE_ONLY` (6.2) is a statement of the kernel, and needs no promise: a kernel without
//! it does more than requested, see [`Notifier`](crate::Notifier).

use super::abi::init as bits;
use super::abi::{LONG_INIT, MAJOR, MINOR, OLDEST, OUT_HEADER, SHORT_INIT_OUT};
use super::decode::Offered;
use super::encode::Reply;

/// Most bytes that one WRITE carries, and that one READ requests.
pub(super) const MAX_WRITE: u32 = 1 << 20;

/// Background requests (those without a waiting caller) that the kernel has under way at most.
const MAX_BACKGROUND: u16 = 16;

const PROMISED: u64 = bits::ASYNC_READ
    | bits::EXPORT_SUPPORT
    | bits::BIG_WRITES
    | bits::MAX_PAGES
    | bits::DONT_MASK
    | bits::POSIX_ACL
    | bits::HANDLE_KILLPRIV
    | bits::HANDLE_KILLPRIV_V2
    | bits::SETXATTR_EXT
    | bits::AUTO_INVAL_DATA
    | bits::PARALLEL_DIROPS
    | bits::DO_READDIRPLUS
    | bits::READDIRPLUS_AUTO
    | bits::INIT_EXT;

/// Features that are promised if they are wanted and offered.
pub(super) struct Wanted {
    pub(super) passthrough: bool,
    pub(super) writeback: bool,
    pub(super) idmap: bool,
}

/// The features agreed with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The kernel's minor version.
    minor: u32,
    max_readahead: u32,
    flags: u64,
    /// The kernel accepts files of the host.
    pub(super) passes: bool,
    /// Requests come by rings from now on.
    pub(super) rings: bool,
}

impl Terms {
    /// Requests that write or truncate say whether the caller may keep set-id bits.
    pub(super) fn tells_set_ids(&self) -> bool {
        self.flags & bits::HANDLE_KILLPRIV_V2 != 0
    }

    /// The kernel holds written data back.
    pub(super) fn writes_back(&self) -> bool {
        self.flags & bits::WRITEBACK_CACHE != 0
    }

    /// Mounts may be idmapped.
    pub(super) fn has_idmaps(&self) -> bool {
        self.flags & bits::ALLOW_IDMAP != 0
    }

    /// SETXATTR comes in its long form.
    pub(super) fn has_long_setxattr(&self) -> bool {
        self.flags & bits::SETXATTR_EXT != 0
    }
}

/// The answer to INIT.
pub(super) enum Answer {
    Agreed(Terms),
    /// Only our version: a kernel with a newer major version then sends another INIT, with
    /// ours.
    TryOlder,
    /// `EPROTO`.
    TooOld,
}

/// Answers an INIT. Calls `has_rings` only if rings are offered, and promises rings if it
/// returns true.
pub(super) fn answer(
    offered: &Offered,
    wanted: &Wanted,
    has_rings: impl FnOnce() -> bool,
) -> Answer {
    let Offered {
        major,
        minor,
        max_readahead,
        flags,
    } = *offered;
    match major {
        MAJOR if minor >= OLDEST => {}
        0..=MAJOR => return Answer::TooOld,
        _ => return Answer::TryOlder,
    }
    // The upper bits are valid only with this flag.
    let offers = |bit| flags & bits::INIT_EXT != 0 && flags & bit != 0;
    let writes_back = wanted.writeback && flags & bits::WRITEBACK_CACHE != 0;
    let passes = wanted.passthrough && !writes_back && offers(bits::PASSTHROUGH);
    let rings = offers(bits::OVER_IO_URING) && has_rings();
    let bit = |set, bit| if set { bit } else { 0 };
    let promised = PROMISED
        | bit(passes, bits::PASSTHROUGH)
        | bit(writes_back, bits::WRITEBACK_CACHE)
        | bit(wanted.idmap && offers(bits::ALLOW_IDMAP), bits::ALLOW_IDMAP)
        | bit(rings, bits::OVER_IO_URING);
    Answer::Agreed(Terms {
        minor,
        max_readahead,
        // An older kernel does without.
        flags: flags & promised,
        passes,
        rings,
    })
}

impl Answer {
    /// `struct fuse_init_out`.
    pub(super) fn encode(&self, out: &mut Reply) {
        let terms = match self {
            Answer::Agreed(terms) => terms,
            Answer::TryOlder => {
                // Whatever length the kernel expects, the version comes first.
                out.u32(MAJOR);
                out.u32(MINOR);
                return;
            }
            Answer::TooOld => return,
        };
        out.u32(MAJOR);
        out.u32(MINOR);
        out.u32(terms.max_readahead);
        out.u32(terms.flags as u32);
        out.u16(MAX_BACKGROUND);
        out.u16(MAX_BACKGROUND / 4 * 3);
        out.u32(MAX_WRITE);
        if terms.minor < LONG_INIT {
            debug_assert_eq!(out.body().len(), SHORT_INIT_OUT);
            return;
        }
        // Timestamps have nanoseconds.
        out.u32(1);
        // At least one, even with the largest pages.
        out.u16((MAX_WRITE as usize / rustix::param::page_size()).max(1) as u16);
        out.u16(0);
        out.u32((terms.flags >> 32) as u32);
        // Depth 1: the file system of the host's file is not stacked on another one, and one
        // may be stacked on this mount.
        out.u32(u32::from(terms.passes));
        out.extend(&[0; 24]);
        debug_assert_eq!(out.body().len() + OUT_HEADER, 80);
    }
}
