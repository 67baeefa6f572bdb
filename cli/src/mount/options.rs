//! `-o`: options as mount(8) takes them.

use std::path::PathBuf;
use std::time::Duration;

use rcuwalk_fuse::Options;
use rcuwalk_hostfs::Actor;
use rustix::mount::MountFlags;

use super::budget::Limits;
use super::hints::hint;
use super::in_memory::TreeLimits;
use super::{http, log};

/// The options of one `-o`.
#[derive(Clone, Debug)]
pub(crate) struct MountOptions(Vec<MountOption>);

#[derive(Clone, Debug, PartialEq)]
enum MountOption {
    Flag(Flag, bool),
    Source(String),
    Timeout(Timeout, Duration),
    Threads(usize),
    Setting(Setting),
    /// For mount(8), fstab or systemd, and nothing to us.
    Ignored,
}

/// Settings of the command itself: each is a long option, too, and can be in an fstab by this.
#[derive(Clone, Debug, PartialEq)]
enum Setting {
    Daemon,
    Sandbox,
    Nonempty,
    Remount,
    Stats,
    LogFile(PathBuf),
    LogLevel(String),
    Metrics(http::Address),
    Limits(Limits),
    Tree(TreeLimits),
    ActingAs(Actor),
}

/// How the command goes about it.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Serve in the background.
    pub(crate) daemon: bool,
    /// Reach nothing but the source.
    pub(crate) sandbox: bool,
    /// Mount also where something is already.
    pub(crate) nonempty: bool,
    /// Change the flags of an existing mount.
    pub(crate) remount: bool,
    /// Print statistics at the end.
    pub(crate) stats: bool,
    pub(crate) log_file: Option<PathBuf>,
    pub(crate) log_level: Option<String>,
    pub(crate) metrics: Option<http::Address>,
    pub(crate) limits: Limits,
    /// How large a tree in memory may grow.
    pub(crate) tree: TreeLimits,
    /// Whose credentials change a directory of the host.
    pub(crate) actor: Actor,
    /// Open no device of a directory of the host, even if one takes a file's place.
    pub(crate) opens_held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flag {
    ReadOnly,
    AllowOther,
    Suid,
    Dev,
    NoExec,
    NoAtime,
    Passthrough,
    WriteBack,
    IoUring,
    Idmap,
    Watch,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Timeout {
    Entry,
    Attr,
    Negative,
}

/// More than the kernel counts to, in seconds.
const LONGEST: f64 = 1e9;

pub(crate) fn parse(text: &str) -> Result<MountOptions, String> {
    let options = text.split(',').filter(|option| !option.is_empty());
    options.map(one).collect::<Result<_, _>>().map(MountOptions)
}

/// mount(8)'s -s: without those that there are not.
pub(crate) fn only_known(text: &str) -> String {
    let is_known = |option: &&str| match one(option) {
        Err(why) => !why.starts_with(NO_SUCH),
        Ok(_) => true,
    };
    let known: Vec<&str> = text.split(',').filter(is_known).collect();
    known.join(",")
}

const NO_SUCH: &str = "there is no option ";

/// The error for an unknown option, with a hint if users are likely to look for it. It begins
/// with [`NO_SUCH`]: mount's `-s` tests for that.
fn no_such(name: &str, shown: &str) -> String {
    match hint(name) {
        Some(hint) => format!("{NO_SUCH}{shown}: {hint}"),
        None => format!("{NO_SUCH}{shown}"),
    }
}

fn one(option: &str) -> Result<MountOption, String> {
    let flag = |flag, on| Ok(MountOption::Flag(flag, on));
    let set = |setting| Ok(MountOption::Setting(setting));
    match option {
        "ro" => return flag(Flag::ReadOnly, true),
        "rw" => return flag(Flag::ReadOnly, false),
        "allow_other" => return flag(Flag::AllowOther, true),
        "suid" => return flag(Flag::Suid, true),
        "nosuid" => return flag(Flag::Suid, false),
        "dev" => return flag(Flag::Dev, true),
        "nodev" => return flag(Flag::Dev, false),
        "noexec" => return flag(Flag::NoExec, true),
        "exec" => return flag(Flag::NoExec, false),
        "noatime" => return flag(Flag::NoAtime, true),
        "passthrough" => return flag(Flag::Passthrough, true),
        "nopassthrough" => return flag(Flag::Passthrough, false),
        "watch" => return flag(Flag::Watch, true),
        "nowatch" => return flag(Flag::Watch, false),
        "writeback" => return flag(Flag::WriteBack, true),
        "nowriteback" => return flag(Flag::WriteBack, false),
        "idmap" => return flag(Flag::Idmap, true),
        "noidmap" => return flag(Flag::Idmap, false),
        "io_uring" => return flag(Flag::IoUring, true),
        "noio_uring" => return flag(Flag::IoUring, false),
        "atime" => return flag(Flag::NoAtime, false),
        "daemon" => return set(Setting::Daemon),
        "sandbox" => return set(Setting::Sandbox),
        "nonempty" => return set(Setting::Nonempty),
        "remount" => return set(Setting::Remount),
        "stats" => return set(Setting::Stats),
        _ if is_for_others(option) => return Ok(MountOption::Ignored),
        _ => {}
    }
    let Some((name, value)) = option.split_once('=') else {
        return Err(no_such(option, option));
    };
    let timeout = |which| {
        let seconds: f64 = value.parse().ok().filter(|s| (0.0..=LONGEST).contains(s))?;
        Some(MountOption::Timeout(
            which,
            Duration::from_secs_f64(seconds),
        ))
    };
    let parsed = match name {
        "fsname" => Some(MountOption::Source(value.to_owned())),
        "entry_timeout" => timeout(Timeout::Entry),
        "attr_timeout" => timeout(Timeout::Attr),
        "negative_timeout" => timeout(Timeout::Negative),
        "threads" => return threads(value).map(MountOption::Threads),
        "log_file" if !value.is_empty() => return set(Setting::LogFile(value.into())),
        "log_file" => None,
        "log_level" => return set(Setting::LogLevel(log::level(value)?)),
        "metrics" => return set(Setting::Metrics(value.parse()?)),
        "acting_as" => match value {
            "daemon" => return set(Setting::ActingAs(Actor::Daemon)),
            "caller" => return set(Setting::ActingAs(Actor::Caller)),
            _ => None,
        },
        _ => {
            let limits = Limits::option(name, value).map(|limits| limits.map(Setting::Limits));
            let tree = || TreeLimits::option(name, value).map(|limits| limits.map(Setting::Tree));
            match limits.or_else(tree) {
                Some(limits) => limits.ok().map(MountOption::Setting),
                None => return Err(no_such(name, &format!("{name}="))),
            }
        }
    };
    parsed.ok_or_else(|| format!("{name} cannot be {value:?}"))
}

/// How many threads answer.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|n| (1..=64).contains(n));
    threads.ok_or_else(|| format!("threads cannot be {text:?}: say 1 to 64"))
}

/// Returns whether an option is for mount(8), systemd or another reader of fstab, or always in
/// effect.
fn is_for_others(option: &str) -> bool {
    let (name, _) = option.split_once('=').unwrap_or((option, ""));
    let in_fstab = [
        "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers",
        "owner", "noowner", "group", "nogroup", "comment", "helper", "uhelper",
    ];
    // Options that the kernel shows of a mount, and that mount(8) passes back to mount it anew.
    let shown = ["user_id", "group_id", "max_read", "blksize"];
    let as_it_is = [
        "default_permissions",
        "async",
        "relatime",
        "norelatime",
        "nolazytime",
        "silent",
        "loud",
    ];
    let is_extra = name.starts_with("x-") || name.starts_with("X-");
    is_extra || in_fstab.contains(&name) || shown.contains(&name) || as_it_is.contains(&option)
}

impl MountOptions {
    /// Later ones win.
    pub(crate) fn set(&self, settings: &mut Settings) {
        for option in &self.0 {
            let MountOption::Setting(setting) = option else {
                continue;
            };
            match setting {
                Setting::Daemon => settings.daemon = true,
                Setting::Sandbox => settings.sandbox = true,
                Setting::Nonempty => settings.nonempty = true,
                Setting::Remount => settings.remount = true,
                Setting::Stats => settings.stats = true,
                Setting::LogFile(file) => settings.log_file = Some(file.clone()),
                Setting::LogLevel(level) => settings.log_level = Some(level.clone()),
                Setting::Metrics(address) => settings.metrics = Some(address.clone()),
                Setting::ActingAs(actor) => settings.actor = *actor,
                Setting::Limits(limits) => settings.limits = limits.or(settings.limits),
                Setting::Tree(limits) => settings.tree = limits.or(settings.tree),
            }
        }
    }

    /// Applies the flags that the kernel keeps: later ones win, and unnamed flags stay.
    pub(crate) fn change(&self, flags: &mut MountFlags) {
        for option in &self.0 {
            let MountOption::Flag(flag, on) = option else {
                continue;
            };
            match flag {
                Flag::ReadOnly => flags.set(MountFlags::RDONLY, *on),
                Flag::Suid => flags.set(MountFlags::NOSUID, !on),
                Flag::Dev => flags.set(MountFlags::NODEV, !on),
                Flag::NoExec => flags.set(MountFlags::NOEXEC, *on),
                Flag::NoAtime => flags.set(MountFlags::NOATIME, *on),
                Flag::AllowOther
                | Flag::Passthrough
                | Flag::WriteBack
                | Flag::IoUring
                | Flag::Idmap
                | Flag::Watch => {}
            }
        }
    }

    /// Later ones win.
    pub(crate) fn apply(&self, options: &mut Options) {
        for option in &self.0 {
            match option {
                MountOption::Flag(flag, on) => {
                    *match flag {
                        Flag::ReadOnly => &mut options.read_only,
                        Flag::AllowOther => &mut options.allow_other,
                        Flag::Suid => &mut options.suid,
                        Flag::Dev => &mut options.dev,
                        Flag::NoExec => &mut options.noexec,
                        Flag::NoAtime => &mut options.noatime,
                        Flag::Passthrough => &mut options.passthrough,
                        Flag::WriteBack => &mut options.writeback,
                        Flag::IoUring => &mut options.io_uring,
                        Flag::Idmap => &mut options.idmap,
                        Flag::Watch => &mut options.watch,
                    } = *on;
                }
                MountOption::Source(source) => options.source.clone_from(source),
                MountOption::Timeout(which, time) => {
                    *match which {
                        Timeout::Entry => &mut options.entry_timeout,
                        Timeout::Attr => &mut options.attr_timeout,
                        Timeout::Negative => &mut options.negative_timeout,
                    } = *time;
                    // That is how long then, and no longer.
                    options.watch = false;
                }
                MountOption::Threads(threads) => options.threads = *threads,
                MountOption::Setting(_) | MountOption::Ignored => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_mount() {
        let mut options = Options::default();
        let given = "ro,allow_other,attr_timeout=0.5,nofail,x-systemd.automount,rw,threads=3,idmap";
        parse(given).unwrap().apply(&mut options);
        assert!(options.allow_other && !options.read_only, "the last wins");
        assert!(options.idmap && !Options::default().idmap);
        assert_eq!(options.attr_timeout, Duration::from_millis(500));
        assert!(!options.watch, "a given timeout counts");
        for (given, watch) in [("watch", true), ("watch,nowatch", false)] {
            parse(given).unwrap().apply(&mut options);
            assert_eq!(options.watch, watch, "{given}");
        }
        assert_eq!(options.threads, 3);
    }

    #[test]
    fn the_command_is_told_by_fstab_too() {
        let mut settings = Settings::default();
        let given = "daemon,user,comment=mine,nonempty,log_file=/var/log/r,metrics=[::1]:9100";
        parse(given).unwrap().set(&mut settings);
        assert!(settings.daemon && settings.nonempty && !settings.stats);
        assert_eq!(settings.log_file, Some("/var/log/r".into()));
        assert_eq!(settings.metrics, Some("[::1]:9100".parse().unwrap()));
        assert_eq!(settings.actor, Actor::Daemon);
        parse("acting_as=caller").unwrap().set(&mut settings);
        assert_eq!(settings.actor, Actor::Caller);
        assert_eq!(only_known("ro,sync,colour=blue,threads=0"), "ro,threads=0");
    }

    #[test]
    fn a_remount_changes_what_it_names() {
        let mut flags = MountFlags::NOSUID | MountFlags::RELATIME | MountFlags::NOEXEC;
        let given = "rw,nosuid,noexec,user_id=0,group_id=0,allow_other,remount,ro,exec";
        let given = parse(given).unwrap();
        given.change(&mut flags);
        let left = MountFlags::NOSUID | MountFlags::RELATIME | MountFlags::RDONLY;
        assert_eq!(flags, left);
        let mut settings = Settings::default();
        given.set(&mut settings);
        assert!(settings.remount);
    }

    #[test]
    fn an_option_of_another_file_system_is_answered_with_what_there_is_instead() {
        for (given, hint) in [
            ("uid=1000", "option uid=: files keep their owners"),
            (
                "force-user=me",
                "option force-user=: files keep their owners",
            ),
            (
                "allow_root",
                "option allow_root: allow_other lets all users in",
            ),
            (
                "auto_unmount",
                "option auto_unmount: `rcuwalk umount` takes away",
            ),
            (
                "kernel_cache",
                "option kernel_cache: the kernel's caches go by entry_timeout=",
            ),
            (
                "cache=always",
                "option cache=: the kernel's caches go by entry_timeout=",
            ),
            (
                "thread-pool-size=4",
                "option thread-pool-size=: say threads=N",
            ),
            ("umask=022", "option umask=: files keep their modes"),
            ("debug", "option debug: say --log-level debug"),
        ] {
            let said = parse(given).unwrap_err();
            assert!(said.contains(hint), "{said}");
            assert_eq!(said.lines().count(), 1);
            // mount's -s drops it, as any that there is not.
            assert_eq!(only_known(&format!("ro,{given}")), "ro", "{said}");
        }
    }

    #[test]
    fn what_is_none_is_named() {
        for (given, said) in [
            ("ro,colour", "there is no option colour"),
            ("colour=blue", "there is no option colour="),
            ("max_memory=some", "max_memory cannot be \"some\""),
            ("threads=0", "threads cannot be \"0\": say 1 to 64"),
            ("acting_as=me", "acting_as cannot be \"me\""),
            ("attr_timeout=-1", "attr_timeout cannot be \"-1\""),
            ("entry_timeout=NaN", "entry_timeout cannot be \"NaN\""),
        ] {
            assert_eq!(parse(given).unwrap_err(), said);
        }
    }
}
