//! What the kernel is promised when it connects.
//!
//! | promised at INIT     | because                                                      |
//! |----------------------|--------------------------------------------------------------|
//! | `DONT_MASK`          | a default ACL stands in for the umask, and the VFS knows it  |
//! | `POSIX_ACL`          | the kernel checks permissions (`default_permissions`), with ACLs |
//! | `HANDLE_KILLPRIV`, `…_V2` | the VFS takes set-id bits off what is written and chowned; with the second, the kernel remembers that a file has none |
//! | `AUTO_INVAL_DATA`    | pages go when size or time of the file have changed          |
//! | `PARALLEL_DIROPS`    | lookups in one directory need not wait for each other        |
//! | `DO_READDIRPLUS`, `…_AUTO` | a listing answers the lookups that follow it           |
//! | `PASSTHROUGH`        | where it is wanted: contents are the host's, see `through.rs` |
//! | `ATOMIC_O_TRUNC`     | is not: the kernel looks whether a file is being executed after the OPEN |
//! | `CACHE_SYMLINKS`     | is not: a link that is made anew under an old number         |
//! | `WRITEBACK_CACHE`    | is not: sizes and times are the VFS's                        |

use fuser::{InitFlags, KernelConfig};

/// Bytes that one WRITE brings at most.
const MAX_WRITE: u32 = 1 << 20;

const PROMISED: [InitFlags; 8] = [
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_HANDLE_KILLPRIV,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
];

/// Whether the kernel takes files of the host, if that is wanted.
pub(super) fn offer_passthrough(config: &mut KernelConfig) -> bool {
    // At depth 1, what the host's file is on lies upon no other file system, and one may
    // lie upon this mount.
    let offered = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH);
    offered.is_ok() && config.set_max_stack_depth(1).is_ok()
}

pub(super) fn promise(config: &mut KernelConfig) {
    for flag in PROMISED {
        // An older kernel does without.
        let _ = config.add_capabilities(flag);
    }
    let _ = config.set_max_write(MAX_WRITE);
}
