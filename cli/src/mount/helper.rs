//! How mount(8) calls us, put into the words of `rcuwalk mount`.
//!
//! | called by                        | as                                                |
//! |----------------------------------|---------------------------------------------------|
//! | mount(8), `-t fuse.rcuwalk`      | `/sbin/mount.fuse.rcuwalk SOURCE DIR [-sfnv] [-N FILE] [-o OPTIONS] [-t TYPE]` |
//! | mount(8), `-t rcuwalk`           | `/sbin/mount.rcuwalk …`                           |
//! | libfuse's mount.fuse3            | `rcuwalk SOURCE DIR -o OPTIONS`                   |
//!
//! All of them want to go on when the tree is mounted, so they get a daemon.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::options::only_known;

/// Translates a call by mount(8) to arguments of `rcuwalk mount`; `None` for any other call.
/// `caller` returns mount(8)'s own arguments, if they can be read.
///
/// # Errors
/// The argument that it does not understand, in one line.
pub(crate) fn translate(
    args: &[OsString],
    is_command: impl Fn(&OsStr) -> bool,
    caller: impl Fn() -> Vec<OsString>,
) -> Option<Result<Vec<OsString>, String>> {
    let (program, rest) = args.split_first()?;
    let name = Path::new(program).file_name()?;
    if name == "mount.fuse.rcuwalk" || name == "mount.rcuwalk" {
        return Some(Call::parse(rest).map(|call| call.into_args(caller)));
    }
    match rest {
        // A tree that has the name of a command needs a path: `./scan`.
        [source, _, option, _]
            if option == "-o" && !source.as_bytes().starts_with(b"-") && !is_command(source) =>
        {
            Some(Call::parse(rest).map(|call| call.into_args(caller)))
        }
        _ => None,
    }
}

#[derive(Default)]
struct Call {
    source_and_dir: Vec<OsString>,
    options: Vec<OsString>,
    namespace: Option<OsString>,
    sloppy: bool,
    fake: bool,
}

impl Call {
    fn parse(args: &[OsString]) -> Result<Call, String> {
        let mut call = Call::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let Some(flags) = arg.as_bytes().strip_prefix(b"-").filter(|f| !f.is_empty()) else {
                call.source_and_dir.push(arg.clone());
                continue;
            };
            for (at, flag) in flags.iter().enumerate() {
                match flag {
                    b's' => call.sloppy = true,
                    b'f' => call.fake = true,
                    // There is no mtab to keep, and nothing more to be said.
                    b'n' | b'v' => {}
                    b'o' | b'N' | b't' => {
                        let value = match &flags[at + 1..] {
                            [] => args.next().cloned(),
                            value => Some(OsString::from_vec(value.to_vec())),
                        };
                        let what = char::from(*flag);
                        let value = value.ok_or_else(|| format!("-{what} needs a value"))?;
                        match flag {
                            b'o' => call.options.push(value),
                            b'N' => call.namespace = Some(value),
                            // There is but one type.
                            _ => {}
                        }
                        break;
                    }
                    _ => return Err(format!("there is no option {}", arg.display())),
                }
            }
        }
        match call.source_and_dir.len() {
            2 => Ok(call),
            _ => Err("usage: mount.fuse.rcuwalk SOURCE DIR [-sfnv] [-o OPTIONS]".to_owned()),
        }
    }

    /// True if one of the options passes `test`.
    fn names(&self, test: impl Fn(&[u8]) -> bool) -> bool {
        let mut each = self
            .options
            .iter()
            .flat_map(|options| options.as_bytes().split(|byte| *byte == b','));
        each.any(test)
    }

    fn into_args(self, caller: impl Fn() -> Vec<OsString>) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["rcuwalk", "mount", "--daemon"].map(Into::into).into();
        let is_remount = self.names(|option| option == b"remount");
        let merged = is_remount && self.names(|option| option.starts_with(b"user_id="));
        if self.fake {
            args.push("--fake".into());
        }
        if let Some(namespace) = self.namespace {
            args.extend(["--namespace".into(), namespace]);
        }
        if merged {
            // mount(8) merged the caller's options with those that the kernel shows, and
            // dropped the flags that the caller turned off: `exec` arrives as no `noexec`.
            // Only the kernel shows `user_id=`. Without it, a missing flag means nothing.
            args.extend(["-o".into(), "suid,dev,exec,atime".into()]);
        } else if is_remount {
            // With a line of fstab it drops them as well, and the rest looks like the line. Its
            // own arguments tell which.
            let named = turned_off(&caller());
            if !named.is_empty() {
                args.extend(["-o".into(), named.join(",").into()]);
            }
        }
        for options in self.options {
            let options = match options.to_str() {
                Some(text) if self.sloppy => only_known(text).into(),
                _ => options,
            };
            args.extend(["-o".into(), options]);
        }
        args.push("--".into());
        args.extend(self.source_and_dir);
        args
    }
}

/// The arguments of the process that has called this one, if it is mount(8).
pub(crate) fn caller() -> Vec<OsString> {
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    let line = rcuwalk_procfs::read(format!("{parent}/cmdline")).unwrap_or_default();
    let args = line.split(|byte| *byte == 0);
    let args: Vec<OsString> = args.map(|arg| OsString::from_vec(arg.to_vec())).collect();
    let program = args
        .first()
        .and_then(|program| Path::new(program).file_name());
    match program == Some(OsStr::new("mount")) {
        true => args,
        false => Vec::new(),
    }
}

/// The flags that the arguments of mount(8) turn off by name. (A later `noexec` comes with the
/// list that it hands on.)
fn turned_off(args: &[OsString]) -> Vec<String> {
    /// Options of mount(8) that have a value.
    const WITH_VALUE: &[u8] = b"LNOTUopt";
    let mut lists = Vec::new();
    let mut args = args.iter().skip(1).map(|arg| arg.as_bytes());
    while let Some(arg) = args.next() {
        match arg {
            b"--options" => lists.extend(args.next()),
            [b'-', b'-', ..] => lists.extend(arg.strip_prefix(b"--options=")),
            [b'-', flags @ ..] => {
                let Some(at) = flags.iter().position(|flag| WITH_VALUE.contains(flag)) else {
                    continue;
                };
                let value = match &flags[at + 1..] {
                    [] => args.next(),
                    value => Some(value),
                };
                lists.extend(value.filter(|_| flags[at] == b'o'));
            }
            _ => {}
        }
    }
    let options = lists
        .iter()
        .flat_map(|list| list.split(|byte| *byte == b','));
    let flags = options.filter_map(|option| str::from_utf8(option).ok());
    let flags = flags.filter(|option| ["suid", "dev", "exec", "atime"].contains(option));
    flags.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(args: &str) -> Option<Result<String, String>> {
        let args: Vec<OsString> = args.split(' ').map(Into::into).collect();
        let done = translate(&args, |name| name == "scan", Vec::new)?;
        Some(done.map(|args| args.join(OsStr::new(" ")).into_string().unwrap()))
    }

    #[test]
    fn the_calls_of_mount_are_understood() {
        for (given, wanted) in [
            (
                "/sbin/mount.fuse.rcuwalk memfs /mnt -o rw,noexec",
                "rcuwalk mount --daemon -o rw,noexec -- memfs /mnt",
            ),
            (
                "mount.rcuwalk -sfn -N /proc/7/fd/4 memfs /mnt -v -oro,colour=blue -t fuse.rcuwalk",
                "rcuwalk mount --daemon --fake --namespace /proc/7/fd/4 -o ro -- memfs /mnt",
            ),
            (
                "mount.fuse.rcuwalk memfs /mnt -o rw,nosuid,user_id=0,remount,ro",
                "rcuwalk mount --daemon -o suid,dev,exec,atime \
                 -o rw,nosuid,user_id=0,remount,ro -- memfs /mnt",
            ),
            (
                "mount.fuse.rcuwalk memfs /mnt -o rw,allow_other,remount,ro",
                "rcuwalk mount --daemon -o rw,allow_other,remount,ro -- memfs /mnt",
            ),
            (
                "rcuwalk /srv /mnt -o rw,dev,suid",
                "rcuwalk mount --daemon -o rw,dev,suid -- /srv /mnt",
            ),
        ] {
            assert_eq!(translated(given), Some(Ok(wanted.to_owned())));
        }
    }

    #[test]
    fn a_flag_that_was_turned_off_is_found_in_the_call_of_mount() {
        for (call, off) in [
            ("mount -o remount,exec /mnt", "exec"),
            ("mount -T tab -oremount,suid,dev /mnt", "suid,dev"),
            ("mount -vo remount,ro,atime /mnt", "atime"),
            (
                "mount --options remount,exec --options=suid /mnt",
                "exec,suid",
            ),
            ("mount -t fuse.o -o remount,noexec exec", ""),
            ("mount -to exec -L dev -o", ""),
            ("mount", ""),
        ] {
            let args: Vec<OsString> = call.split(' ').map(Into::into).collect();
            assert_eq!(turned_off(&args).join(","), off, "{call}");
        }
        let call = || ["mount", "-o", "remount,exec"].map(OsString::from).into();
        let helper = "mount.fuse.rcuwalk memfs /mnt -o rw,remount".split(' ');
        let helper: Vec<OsString> = helper.map(Into::into).collect();
        let args = translate(&helper, |_| false, call).unwrap().unwrap();
        let args = args.join(OsStr::new(" "));
        assert_eq!(
            args,
            "rcuwalk mount --daemon -o exec -o rw,remount -- memfs /mnt"
        );
    }

    #[test]
    fn other_calls_are_left_alone() {
        for given in [
            "rcuwalk scan /mnt -o x",
            "rcuwalk mount memfs /mnt",
            "rcuwalk",
        ] {
            assert_eq!(translated(given), None);
        }
        for (given, said) in [
            ("mount.rcuwalk memfs", "usage: "),
            ("mount.rcuwalk memfs /mnt -x", "there is no option -x"),
            ("mount.rcuwalk memfs /mnt -o", "-o needs a value"),
        ] {
            assert!(translated(given).unwrap().unwrap_err().starts_with(said));
        }
    }
}
