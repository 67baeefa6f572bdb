//! The log of a mount: its events, and with `debug` each request.
//!
//! In the foreground it goes to standard error, with systemd's level prefixes if the journal
//! reads that. A daemon has no standard error: its log goes to the system log (/dev/log, which
//! the journal reads as well), and nowhere if there is none. `--log-file` is for both.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::options::Settings;
use crate::failure::{Failure, Words};

/// Checks the value of `--log-level`: a level, or `target=level` for parts of the program.
pub(crate) fn level(text: &str) -> Result<String, String> {
    // A word that is no level would else be taken for a part of that name.
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let is_one = |part: &str| part.contains('=') || is_level(part);
    match EnvFilter::builder().parse(text) {
        Ok(_) if text.split(',').all(is_one) => Ok(text.to_owned()),
        _ => Err(format!("there is no log level {text:?}")),
    }
}

/// The log of this process, from now on.
pub(crate) enum Log {
    File(Arc<LogFile>),
    System(System),
    StandardError,
}

impl Log {
    /// Writes to a new file of the same name, if the old one was moved away.
    pub(crate) fn reopen(&self) {
        if let Log::File(file) = self
            && let Err(err) = file.reopen()
        {
            // Into the old one.
            tracing::warn!("the log file cannot be opened anew: {err}");
        }
    }

    /// Prints text that the user asked for: at any level, and without a time before each line.
    pub(crate) fn say(&self, text: &str) {
        // The reader has gone, or the disk is full: there is nowhere to report it.
        let _ = match self {
            Log::File(file) => ToFile(file.clone()).write_all(text.as_bytes()),
            Log::System(system) => {
                let mut lines = text.lines();
                lines.try_for_each(|line| system.make_writer().write_all(line.as_bytes()))
            }
            Log::StandardError => {
                let mut lines = text.split_inclusive('\n');
                lines.try_for_each(|line| StandardError.write_all(line.as_bytes()))
            }
        };
    }
}

pub(crate) fn start(settings: &Settings, is_daemon: bool) -> Result<Log, Failure> {
    let wanted = settings.log_level.clone();
    let wanted = wanted.or_else(|| env::var("RCUWALK_LOG").ok().filter(|text| !text.is_empty()));
    let wanted = wanted.unwrap_or_else(|| "info".to_owned());
    let wrong = || {
        Failure::error(format_args!(
            "RCUWALK_LOG: there is no log level {wanted:?}"
        ))
    };
    let wanted = level(&wanted).map_err(|_| wrong())?;
    let filter = EnvFilter::builder().parse(&wanted).map_err(|_| wrong())?;
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false);
    let (log, done) = match &settings.log_file {
        Some(path) => {
            let file = LogFile::open(path.clone()).map_err(|err| {
                Failure::error(format_args!(
                    "cannot open {}: {}",
                    path.display(),
                    Words(&err)
                ))
            })?;
            let file = Arc::new(file);
            let format = format.with_writer(ToFile(file.clone()));
            (Log::File(file), format.try_init())
        }
        None if is_daemon => {
            let system = System::new();
            let format = format.with_writer(system.clone()).without_time();
            (Log::System(system), format.with_level(false).try_init())
        }
        // Its reader has a clock, and reads the level from the line's beginning.
        None if env::var_os("JOURNAL_STREAM").is_some() => {
            let format = format.with_writer(Journal).without_time();
            (Log::StandardError, format.with_level(false).try_init())
        }
        None => (
            Log::StandardError,
            format.with_writer(|| StandardError).try_init(),
        ),
    };
    done.map_err(Failure::error)?;
    Ok(log)
}

pub(crate) struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<LogFile> {
        let file = Mutex::new(append_to(&path)?);
        Ok(LogFile { path, file })
    }

    fn reopen(&self) -> io::Result<()> {
        let file = append_to(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

fn append_to(path: &std::path::Path) -> io::Result<File> {
    // With `debug` it names every file that is asked for.
    let mut options = File::options();
    options.create(true).append(true).mode(0o600).open(path)
}

#[derive(Clone)]
struct ToFile(Arc<LogFile>);

impl<'w> MakeWriter<'w> for ToFile {
    type Writer = ToFile;

    fn make_writer(&'w self) -> ToFile {
        self.clone()
    }
}

impl Write for ToFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let file = self.0.file.lock();
        file.unwrap_or_else(PoisonError::into_inner).write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// syslog(3)'s number of a level.
fn severity(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Of the facilities, "daemon".
const FACILITY: u8 = 3 << 3;

/// The system's log, by one datagram for each line.
#[derive(Clone)]
pub(crate) struct System {
    socket: Option<Arc<UnixDatagram>>,
}

impl System {
    fn new() -> System {
        // A full log loses lines: requests do not wait for its reader.
        let socket = UnixDatagram::unbound()
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        System {
            socket: socket.ok().map(Arc::new),
        }
    }
}

impl<'w> MakeWriter<'w> for System {
    type Writer = SystemLine<'w>;

    fn make_writer(&'w self) -> SystemLine<'w> {
        SystemLine {
            socket: self.socket.as_deref(),
            severity: severity(&Level::INFO),
        }
    }

    fn make_writer_for(&'w self, meta: &Metadata<'_>) -> SystemLine<'w> {
        SystemLine {
            severity: severity(meta.level()),
            ..self.make_writer()
        }
    }
}

pub(crate) struct SystemLine<'w> {
    socket: Option<&'w UnixDatagram>,
    severity: u8,
}

impl Write for SystemLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let head = format!(
            "<{}>rcuwalk[{}]: ",
            FACILITY | self.severity,
            std::process::id()
        );
        let message = [head.as_bytes(), line.trim_ascii()].concat();
        if let Some(socket) = self.socket {
            // To its name each time: it may have been started anew.
            let _ = socket.send_to(&message, "/dev/log");
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error. A full pipe loses lines: requests do not wait for its reader.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // One at a time, or two would find the room for one.
        let mut stderr = io::stderr().lock();
        let has_room = {
            let mut out = [PollFd::new(&stderr, PollFlags::OUT)];
            poll(&mut out, Some(&Timespec::default())).is_ok()
                && out[0].revents().contains(PollFlags::OUT)
        };
        if has_room {
            // A pipe with room has some for 4 KiB at once: more could wait.
            stderr.write_all(&line[..line.len().min(4096)])?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error, read by the journal: sd-daemon(3).
struct Journal;

impl<'w> MakeWriter<'w> for Journal {
    type Writer = JournalLine;

    fn make_writer(&'w self) -> JournalLine {
        JournalLine(severity(&Level::INFO))
    }

    fn make_writer_for(&'w self, meta: &Metadata<'_>) -> JournalLine {
        JournalLine(severity(meta.level()))
    }
}

struct JournalLine(u8);

impl Write for JournalLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let message = [format!("<{}>", self.0).as_bytes(), line].concat();
        StandardError.write_all(&message)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_one_that_there_is() {
        for right in ["warn", "DEBUG", "off", "info,rcuwalk_fuse=debug"] {
            assert!(level(right).is_ok(), "{right}");
        }
        for wrong in ["", "verbose", "info,", "rcuwalk_fuse=loud", "a=b=c"] {
            assert!(level(wrong).is_err(), "{wrong}");
        }
    }
}
