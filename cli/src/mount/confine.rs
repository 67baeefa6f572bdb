//! Rights that the process of a mount drops, once it is mounted.
//!
//! | dropped                     | for                          | by                            |
//! |-----------------------------|------------------------------|-------------------------------|
//! | inherited descriptors       | a daemon                     | [`keep_no_descriptors`]       |
//! | capabilities                | a process that may mount     | capset(2), the bounding set   |
//! | gaining any by a program    | a process that may mount, `--sandbox` | `PR_SET_NO_NEW_PRIVS` |
//! | calls that reach other processes, or make namespaces | the same | seccomp(2): [`refused`]   |
//! | files outside of the source | `--sandbox`                  | Landlock: [`only_source`]     |
//!
//! Threads inherit all of it from the one that starts them, so it is done between the mounting and
//! the start of the first thread.
//!
//! **Why a list of refused calls.** A list of allowed ones would have to name every call that
//! the standard library, the C library and the kernel's next version need, and would break a
//! running mount. No version of this process has a use for the refused calls: reaching into
//! other processes, changing the kernel or the machine, mounting, executing. The kernel
//! remembers which call numbers are always allowed (5.11 and later), so that each call costs a
//! tenth of a microsecond more, where a request takes ten and more. Landlock costs microseconds
//! at each open: so it is an option.
//!
//! **Why not all of it for everybody.** A user's process mounts and unmounts by fusermount3, which
//! is set-id: with no new privileges it could not unmount. Landlock refuses umount2(2) to root, too.
//! With `--sandbox` another process does it ([`super::keeper`]); that one costs memory, so it is not
//! there unless it is asked for.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Where a sandboxed process may go.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// The directory that is shown.
    pub(crate) source: Option<PathBuf>,
    /// The log's directory: a new log file is made there after a SIGHUP.
    pub(crate) log: Option<PathBuf>,
    /// Where the status socket is made, and removed at the end.
    pub(crate) runtime: Option<PathBuf>,
}

/// Has the programs that this process starts inherit no descriptor but the first three: a daemon
/// is such a program.
pub(crate) fn keep_no_descriptors() {
    // Before Linux 5.11 they stay.
    let _ = rcuwalk_hostfs::close_on_exec_from(3);
}

/// Drops all rights that serving does not need. `reach` is for `--sandbox`.
///
/// # Errors
/// If the kernel refuses; if it has no Landlock, and `reach` asks for it.
pub(crate) fn confine(reach: Option<&Reach>) -> io::Result<()> {
    let may_mount = capabilities(None)?
        .effective
        .contains(CapabilitySet::SYS_ADMIN);
    drop_capabilities()?;
    if may_mount || reach.is_some() {
        set_no_new_privs(true)?;
    }
    if let Some(reach) = reach {
        only_source(reach)?;
    }
    match may_mount || reach.is_some() {
        true => refuse_calls(),
        false => Ok(()),
    }
}

/// Capabilities that root needs to serve a mount: to act on other users' files, as other users,
/// and by handles; to have the kernel read and write contents, to watch, and to unmount
/// (`SYS_ADMIN`); to use the space and the quota that are root's (`SYS_RESOURCE`); to see in
/// which user namespace a caller is (`SYS_PTRACE`: ptrace(2) itself is refused).
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::MAC_ADMIN);

fn drop_capabilities() -> io::Result<()> {
    let held = capabilities(None)?;
    // Without it the bounding set stays; a capability that is not held cannot be gained by a
    // descriptor, either.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..64 {
            let one = CapabilitySet::from_bits_retain(1 << number);
            // The kernel may not know it.
            if !NEEDED.contains(one) && remove_capability_from_bounding_set(one).is_err() {
                break;
            }
        }
    }
    let left = CapabilitySets {
        effective: held.effective & NEEDED,
        permitted: held.permitted & NEEDED,
        inheritable: held.inheritable & NEEDED,
    };
    Ok(set_capabilities(None, left)?)
}

/// Landlock: files below the source, and the few that serving needs beside them. No connections, no
/// signals to other processes.
fn only_source(reach: &Reach) -> io::Result<()> {
    let abi = ABI::V6;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::ReadFile | AccessFs::WriteFile;
    let sockets = AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile;
    let all = AccessFs::from_all(abi);
    let paths: [(Option<&Path>, BitFlags<AccessFs>); 6] = [
        (reach.source.as_deref(), all),
        (reach.log.as_deref(), write | AccessFs::MakeReg),
        (reach.runtime.as_deref(), sockets),
        // Once more for each thread.
        (Some(Path::new("/dev/fuse")), write | AccessFs::IoctlDev),
        (Some(Path::new("/dev/null")), write),
        // Which processors there are.
        (Some(Path::new("/sys/devices/system/cpu")), read),
    ];
    let ask = || -> Result<RulesetStatus, Box<dyn std::error::Error + Send + Sync>> {
        let mut rules = Ruleset::default()
            .handle_access(all)?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            // Credentials of callers. Files that ptrace(2)'s rules protect stay protected.
            .add_rule(PathBeneath::new(rcuwalk_procfs::hold()?, read))?;
        for (path, access) in paths {
            // Missing files need no rule.
            if let Some(path) = path.and_then(|path| PathFd::new(path).ok()) {
                rules = rules.add_rule(PathBeneath::new(path, access))?;
            }
        }
        Ok(rules.restrict_self()?.ruleset)
    };
    match ask().map_err(io::Error::other)? {
        RulesetStatus::NotEnforced => Err(io::Error::other(
            "--sandbox needs Landlock, which this kernel does not have or use (lsm=…,landlock)",
        )),
        _ => Ok(()),
    }
}

fn refuse_calls() -> io::Result<()> {
    refuse(refused().map_err(io::Error::other)?)
}

fn refuse(refused: Rules) -> io::Result<()> {
    // Another architecture than those that the library knows has no filter.
    let Ok(arch) = std::env::consts::ARCH.try_into() else {
        return Ok(());
    };
    // Its flags are in memory, where a filter cannot read them. Without it the C library makes
    // threads by clone(2), whose flags are an argument.
    let unknown = [(libc::SYS_clone3, Vec::new())].into();
    for (rules, errno) in [(refused, libc::EPERM), (unknown, libc::ENOSYS)] {
        let errno = SeccompAction::Errno(errno as u32);
        let rules = by_all_numbers(rules);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, arch);
        let program = filter.and_then(BpfProgram::try_from);
        apply_filter(&program.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Calls that are refused, by number; without rules, whatever their arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The calls that are refused (`EPERM`), by number.
fn refused() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    // abort(3) signals its own process.
    let own = u64::from(std::process::id());
    let other_than = |what| {
        let (first, word) = (0, SeccompCmpArgLen::Dword);
        SeccompRule::new(vec![SeccompCondition::new(
            first,
            word,
            SeccompCmpOp::Ne,
            what,
        )?])
    };
    rules.insert(libc::SYS_tgkill, vec![other_than(own)?]);
    // hostfs gives a thread a umask of its own; that is no namespace.
    rules.insert(libc::SYS_unshare, vec![other_than(libc::CLONE_FS as u64)?]);
    // New threads, but none in namespaces of their own. The flags are the first argument on all
    // architectures that have a filter.
    let new = NAMESPACES.map(|flag| {
        let flag = flag as u64;
        let (word, is_set) = (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(flag));
        SeccompRule::new(vec![SeccompCondition::new(0, word, is_set, flag)?])
    });
    rules.insert(libc::SYS_clone, new.into_iter().collect::<Result<_, _>>()?);
    // Calls that have numbers of their own as x32 calls: execve(2), ptrace(2), process_vm_readv(2)
    // and the like. This is no x32 program, and makes none of them.
    #[cfg(target_arch = "x86_64")]
    rules.extend((512..=547).map(|call| (call | X32, Vec::new())));
    Ok(rules)
}

/// Set in the numbers of system calls as x32 programs make them.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// The same calls, by their x32 numbers as well.
#[cfg(target_arch = "x86_64")]
fn by_all_numbers(mut rules: Rules) -> Rules {
    let again: Vec<_> = rules
        .iter()
        .map(|(call, rules)| (call | X32, rules.clone()))
        .collect();
    rules.extend(again);
    rules
}

#[cfg(not(target_arch = "x86_64"))]
fn by_all_numbers(rules: Rules) -> Rules {
    rules
}

/// Flags of clone(2).
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// open_tree_attr(2), by its number on all architectures: the library does not name it.
const OPEN_TREE_ATTR: i64 = 467;

const REFUSED: &[i64] = &[
    // Other processes: their memory, descriptors, signals.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_userfaultfd,
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // The tree of mounts, except for umount2; other namespaces and roots.
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    // The kernel.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_syslog,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    // Keys of the session that it was started in.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs `ask` in a confined thread of its own: the other tests keep their rights.
    fn confined<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
        let asked = std::thread::spawn(|| {
            set_no_new_privs(true).unwrap();
            refuse_calls().unwrap();
            ask()
        });
        asked.join().unwrap()
    }

    #[test]
    fn calls_by_which_a_process_reaches_others_are_refused() {
        use rustix::io::Errno;
        use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, getppid};
        let parent = getppid().unwrap();
        // Allowed here: the refusal is the filter's.
        assert!(rustix::process::test_kill_process(getpid()).is_ok());
        confined(move || {
            assert_eq!(
                rustix::process::test_kill_process(getpid()),
                Err(Errno::PERM)
            );
            assert_eq!(rustix::process::test_kill_process(parent), Err(Errno::PERM));
            let own = rustix::process::pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
            let stolen = rustix::process::pidfd_getfd(own, 0, PidfdGetfdFlags::empty());
            assert_eq!(stolen.unwrap_err(), Errno::PERM);
            let started = Command::new("/bin/true").status();
            assert_eq!(started.unwrap_err().raw_os_error(), Some(libc::EPERM));
            let loaded = rustix::system::delete_module(c"none", 0);
            assert_eq!(loaded, Err(Errno::PERM));
            let mounted =
                rustix::mount::mount_change("/none", rustix::mount::MountPropagationFlags::PRIVATE);
            assert_eq!(mounted, Err(Errno::PERM));
            // Calls that serving needs are allowed.
            assert!(std::fs::read_dir("/").is_ok());
            let nothing = rustix::mount::unmount("/none", rustix::mount::UnmountFlags::empty());
            assert_ne!(nothing, Ok(()));
            assert!(std::thread::spawn(|| ()).join().is_ok());
        });
    }

    /// By each number that a call has, and by each way to make a process in new namespaces. Another
    /// program asks, since safe code cannot: so this thread may execute one.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn no_number_and_no_flag_leads_around_the_filter() {
        let script = r#"
            sub ask { $! = 0; my $said = syscall(shift, @_, (0) x (6 - @_)); exit if $said == 0; $! + 0 }
            my $x32 = 0x40000000;
            print join(" ", map { ask($x32 | $_) } 512, 520, 521, 524, 528, 536, 539, 540, 545, 547), "\n";
            my @new = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000);
            print join(" ", map { ask(56, $_ | 17) } @new), "\n";
            print join(" ", ask(467, -1), ask($x32 | 467, -1), ask($x32 | 56, 0x10000011)), "\n";
            print join(" ", ask(435), ask($x32 | 435)), "\n";
        "#;
        let asked = std::thread::spawn(move || {
            let mut rules = refused().unwrap();
            rules.remove(&libc::SYS_execve);
            set_no_new_privs(true).unwrap();
            refuse(rules).unwrap();
            let perl = Command::new("perl").args(["-e", script]).output().unwrap();
            String::from_utf8(perl.stdout).unwrap()
        });
        let (not_permitted, unknown) = (libc::EPERM.to_string(), libc::ENOSYS.to_string());
        let lines = [
            (10, &not_permitted),
            (7, &not_permitted),
            (3, &not_permitted),
            (2, &unknown),
        ];
        let said = lines.map(|(times, errno)| vec![errno.as_str(); times].join(" ") + "\n");
        assert_eq!(asked.join().unwrap(), said.concat());
    }

    #[test]
    fn a_sandboxed_thread_reaches_nothing_but_its_source() {
        use std::fs;
        let dir = tempfile::tempdir().unwrap();
        let (source, beside) = (dir.path().join("source"), dir.path().join("beside"));
        for at in [&source, &beside] {
            fs::create_dir(at).unwrap();
            fs::write(at.join("f"), "x").unwrap();
        }
        let asked = std::thread::spawn(move || {
            let reach = Reach {
                source: Some(source.clone()),
                ..Reach::default()
            };
            set_no_new_privs(true).unwrap();
            if let Err(err) = only_source(&reach) {
                eprintln!("skipped: {err}");
                return;
            }
            fs::write(source.join("g"), fs::read(source.join("f")).unwrap()).unwrap();
            let refused = |done: io::Result<()>| {
                assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EACCES));
            };
            refused(fs::read(beside.join("f")).map(drop));
            refused(fs::write(beside.join("g"), "x"));
            refused(fs::remove_file(beside.join("f")));
            refused(fs::read_dir("/etc").map(drop));
            assert!(fs::rename(source.join("f"), beside.join("h")).is_err());
            assert!(std::net::TcpListener::bind("127.0.0.1:0").is_err());
            assert!(rcuwalk_procfs::read("self/status").is_ok());
        });
        asked.join().unwrap();
    }
}
