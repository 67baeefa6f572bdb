//! Resource limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes all the descriptors that this process may have, and says how many: the more
/// directories hostfs can hold, the fewer it has to open again.
pub(crate) fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // Without a limit, the kernel's default.
    usize::try_from(current.unwrap_or(1 << 20)).unwrap_or(usize::MAX)
}
