//! Options of other file systems, and the equivalent ones here.

/// The hint for an option of bindfs, virtiofsd, libfuse or mount(8), by its name.
pub(super) fn hint(name: &str) -> Option<&'static str> {
    const OWNERS: &str = "files keep their owners; an idmapped mount shows others (-o idmap)";
    const MODES: &str = "files keep their modes";
    const BELIEF: &str =
        "the kernel's caches go by entry_timeout=, attr_timeout= and negative_timeout=";
    const THREADS: &str = "say threads=N";
    const ALWAYS: &str = "that is always so";
    Some(match name {
        "uid" | "gid" | "user" | "group" | "force-user" | "force-group" | "map" | "map-passwd"
        | "mirror" | "mirror-only" | "uid-offset" | "gid-offset" | "create-for-user"
        | "create-for-group" | "create-as-user" | "create-as-mounter" | "chown-normal"
        | "chown-ignore" | "chown-deny" | "idmap-uid" | "uid-map" | "gid-map" | "translate-uid"
        | "translate-gid" | "uidfile" | "gidfile" => OWNERS,
        "umask" | "fmask" | "dmask" | "mode" | "perms" | "create-with-perms" | "chmod-filter" => {
            MODES
        }
        "allow_root" => "allow_other lets all users in, as far as permissions go",
        "auto_unmount" => "`rcuwalk umount` takes away what a killed process has left",
        "kernel_cache" | "auto_cache" | "ac_attr_timeout" | "cache" | "noforget" | "remember"
        | "timeout" | "acregmin" | "acregmax" | "acdirmin" | "acdirmax" | "actimeo" => BELIEF,
        "direct_io" => "contents are cached; nopassthrough has each read and write asked for",
        "writeback" | "writeback_cache" | "sync" | "dirsync" | "async_dio" => {
            "a write has reached the source when write(2) returns"
        }
        "thread-pool-size" | "max_threads" | "max_idle_threads" | "multithreaded"
        | "thread_pool_size" => THREADS,
        "s" | "singlethread" => "say threads=1",
        "d" | "debug" | "debug_fuse" => "say --log-level debug, or -v",
        "f" | "foreground" => "it stays in the foreground unless --daemon is given",
        "xattr" | "posix_acl" | "acl" | "big_writes" | "large_read" | "splice_read"
        | "splice_write" | "splice_move" | "async_read" | "clone_fd" | "use_ino"
        | "readdir_ino" | "hard_remove" | "hide-hard-links" | "announce-submounts"
        | "announce_submounts" | "readdirplus" | "killpriv_v2" | "intr" => ALWAYS,
        "no_xattr" | "noxattr" | "noacl" | "no-allow-other" | "no_allow_other" => {
            "leave out what turns it on; extended attributes and ACLs are always there"
        }
        "subtype" => "the type is always fuse.rcuwalk",
        "source" | "shared-dir" => {
            "the source is the first argument; fsname=NAME is what mount(8) shows"
        }
        "fd" | "rootmode" => "the process opens /dev/fuse by itself",
        "max_write" | "max_readahead" | "max_background" | "congestion_threshold" => {
            "it is as large as the kernel allows"
        }
        "flock" | "posix_lock" | "no_flock" | "no_posix_lock" => {
            "locks hold between users of the mount"
        }
        "modcaps" => "--sandbox, and what docs/fuse.md lists, is given up in any case",
        "bind" | "rbind" => "a bind mount is one of the kernel's: mount --bind",
        _ => return None,
    })
}
