//! How a command fails: one line on standard error, and an exit status.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// One line that names the thing and, if there is one, the remedy.
    Error(String),
    /// Several of these.
    Errors(Vec<String>),
    /// A process that was started for it has said why, and ended with this status.
    Said(u8),
    /// By this signal, on the user's wish: nothing needs to be said.
    Signal(u8),
}

impl Failure {
    /// An error that says it all.
    pub(crate) fn error(message: impl Display) -> Failure {
        Failure::Error(message.to_string())
    }

    /// Tells the user; returns the exit status.
    pub(crate) fn report(self) -> ExitCode {
        let messages = match self {
            Failure::Error(message) => vec![message],
            Failure::Errors(messages) => messages,
            Failure::Said(status) => return ExitCode::from(status),
            Failure::Signal(signal) => return ExitCode::from(128 + signal),
        };
        for message in messages {
            // Errors are ignored: with standard error closed, the exit status has to do.
            let _ = writeln!(io::stderr(), "rcuwalk: {}", without_numbers(&message));
        }
        ExitCode::FAILURE
    }
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// As [`print`], after another printer: `done` is its result.
pub(crate) fn printed(done: io::Result<()>) -> Result<(), Failure> {
    match done {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(Failure::error(format_args!(
            "cannot write to standard output: {err}"
        ))),
        _ => Ok(()),
    }
}

/// An error of the operating system, without its number.
pub(crate) struct Words<'e>(pub(crate) &'e io::Error);

impl Display for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.raw_os_error() {
            Some(errno) => f.write_str(&errno_text(errno)),
            None => self.0.fmt(f),
        }
    }
}

/// The C library's words for an error: those that users know from other programs.
pub(crate) fn errno_text(errno: i32) -> String {
    without_numbers(&io::Error::from_raw_os_error(errno).to_string())
}

/// Removes the errno that the standard library puts behind the words: ` (os error 2)`. Errors of
/// the libraries have it, too, inside of messages of their own.
pub(crate) fn without_numbers(message: &str) -> String {
    let mut parts = message.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_digit());
        plain.push_str(rest.strip_prefix(')').unwrap_or(rest));
    }
    plain
}
