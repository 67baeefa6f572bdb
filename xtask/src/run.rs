//! Running commands: echoed as they could be typed, and an error that says
//! which one failed and how.

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A chore's result; the error is what its last line of output says.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// How a chore ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// It looked, and found nothing wrong.
    Passed,
    /// It could not look here, for this reason.
    Skipped(String),
}

/// A command line, run from the workspace's root.
pub(crate) struct Cmd {
    command: Command,
    shown: String,
}

impl Cmd {
    pub(crate) fn new(root: &Path, program: impl AsRef<OsStr>) -> Cmd {
        let mut command = Command::new(&program);
        // Nothing here asks questions; a tool that does shall fail, not wait.
        command.current_dir(root).stdin(Stdio::null());
        Cmd {
            command,
            shown: program.as_ref().to_string_lossy().into_owned(),
        }
    }

    /// The cargo that runs this program.
    pub(crate) fn cargo(root: &Path) -> Cmd {
        let mut cmd = Cmd::new(root, env::var_os("CARGO").unwrap_or("cargo".into()));
        cmd.shown = "cargo".into();
        cmd
    }

    /// Nightly's cargo, by way of rustup: `cargo +nightly` is understood only
    /// by rustup's own proxy, which `$CARGO` is not.
    pub(crate) fn nightly_cargo(root: &Path) -> Cmd {
        Cmd::new(root, "rustup").args(["run", "nightly", "cargo"])
    }

    pub(crate) fn args<I>(mut self, args: I) -> Cmd
    where
        I: IntoIterator<Item: AsRef<OsStr>>,
    {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(&quoted(arg.as_ref()));
            self.command.arg(arg);
        }
        self
    }

    /// An option and its value.
    pub(crate) fn arg(self, name: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.args([OsStr::new(name), value.as_ref()])
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.shown = format!("{name}={} {}", quoted(value.as_ref()), self.shown);
        self.command.env(name, value);
        self
    }

    /// Sets RUSTFLAGS and drops the variable that would override them.
    pub(crate) fn rustflags(mut self, flags: &str) -> Cmd {
        self.command.env_remove("CARGO_ENCODED_RUSTFLAGS");
        self.env("RUSTFLAGS", flags)
    }

    /// Runs it with its output shown.
    pub(crate) fn run(mut self) -> Result<Done> {
        println!("$ {}", self.shown);
        match self.command.status() {
            Ok(status) if status.success() => Ok(Done::Passed),
            Ok(status) => Err(format!("`{}` failed: {status}", self.shown)),
            Err(err) => Err(format!("`{}` did not start: {err}", self.shown)),
        }
    }

    /// Runs it silently; its standard output, if it could be run and succeeded.
    pub(crate) fn probe(mut self) -> Option<String> {
        let output = self.command.stderr(Stdio::null()).output().ok()?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(stdout)
    }
}

/// As a shell wants it: in quotes if it holds more than plain characters.
fn quoted(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_=./:".contains(c);
    if text.chars().all(is_plain) {
        text.into_owned()
    } else {
        format!("'{text}'")
    }
}

/// `4.2 s`, or `3 min 4 s` when tenths no longer matter.
pub(crate) fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let failed = Cmd::new(Path::new("/"), "false")
            .args(["--test", "loom*"])
            .env("A", "1")
            .run();
        assert_eq!(
            failed,
            Err("`A=1 false --test 'loom*'` failed: exit status: 1".into())
        );
        let missing = Cmd::new(Path::new("/"), "no-such-program")
            .run()
            .unwrap_err();
        assert!(
            missing.contains("`no-such-program` did not start"),
            "{missing}"
        );
    }

    #[test]
    fn a_probe_tells_present_from_absent() {
        assert_eq!(
            Cmd::new(Path::new("/"), "echo").args(["hi"]).probe(),
            Some("hi\n".into())
        );
        assert_eq!(Cmd::new(Path::new("/"), "false").probe(), None);
        assert_eq!(Cmd::new(Path::new("/"), "no-such-program").probe(), None);
    }

    #[test]
    fn times_read_well() {
        assert_eq!(elapsed(Duration::from_millis(4230)), "4.2 s");
        assert_eq!(elapsed(Duration::from_secs(184)), "3 min 4 s");
    }
}
