//! The paths that a command asks for, as strace saw them.
//!
//! strace runs with `-xx`, so that names are plain hexadecimal and never hold a
//! quote, a newline or a bracket of their own; and with `-y`, so that a directory
//! descriptor comes with its path and `AT_FDCWD` with the current directory.
//!
//! Old calls such as access(2) do not say where they start. For these the parser
//! keeps the current directory of each process. Where that is not certain, a
//! relative path is dropped and counted rather than guessed.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, ExitStatus, Stdio};
use std::{env, fmt, fs, io};

use super::{PATH_MAX, PathList};

/// What a command asked of the file system.
#[derive(Debug)]
pub struct Trace {
    /// The paths, in order, repeats included.
    pub list: PathList,
    /// How the command ended; a failed one may still have asked for paths.
    pub status: ExitStatus,
    /// Relative paths left out, because it was not certain where they start.
    pub relative_dropped: usize,
    /// Paths of /proc, /dev and /sys left out.
    pub special_dropped: usize,
}

pub(super) fn run(command: &[OsString]) -> Result<Trace, TraceError> {
    if command.is_empty() {
        return Err(TraceError::NoCommand);
    }
    let output = tempfile::NamedTempFile::new()?;
    let status = Command::new("strace")
        .args(["-f", "-y", "-xx", "-e", "trace=%file,fchdir", "-o"])
        .arg(output.path())
        .arg("--")
        .args(command)
        // Standard output belongs to the report of the command that asked for the trace.
        .stdout(Stdio::from(io::stderr()))
        .status()
        .map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => TraceError::NoStrace,
            _ => TraceError::Io(err),
        })?;

    let mut parser = Parser::new(env::current_dir()?.into_os_string().into_vec());
    let trace = fs::read(output.path())?;
    for line in trace.split(|&byte| byte == b'\n') {
        parser.line(line);
    }
    let Parser { asked, .. } = parser;
    let list = PathList::from_paths(asked.paths).map_err(|_| TraceError::NoPaths(status))?;
    Ok(Trace {
        list,
        status,
        relative_dropped: asked.relative_dropped,
        special_dropped: asked.special_dropped,
    })
}

#[derive(Default)]
struct TracedPaths {
    paths: Vec<Vec<u8>>,
    relative_dropped: usize,
    special_dropped: usize,
}

/// Reads strace's output line by line.
struct Parser {
    asked: TracedPaths,
    /// Where each process is; `None` when that is no longer certain.
    cwd: HashMap<u32, Option<Vec<u8>>>,
    /// Where a process starts that was not seen before: the command's own current
    /// directory, until the first chdir makes it uncertain what a child inherits.
    start: Option<Vec<u8>>,
}

impl Parser {
    fn new(start: Vec<u8>) -> Self {
        Self {
            asked: TracedPaths::default(),
            cwd: HashMap::new(),
            start: Some(start),
        }
    }

    /// Takes one line; lines that are no system call with a path are skipped.
    fn line(&mut self, line: &[u8]) {
        let (pid, line) = split_pid(line);
        let Some(open) = line.iter().position(|&byte| byte == b'(') else {
            return;
        };
        let (call, args) = (&line[..open], &line[open + 1..]);
        self.cwd.entry(pid).or_insert_with(|| self.start.clone());

        match shape_of(call) {
            Some(Shape::Path) => self.path(pid, args, None),
            Some(Shape::DirAndPath) => self.at(pid, args),
            Some(Shape::Chdir) => self.chdir(pid, args),
            Some(Shape::Fchdir) => self.fchdir(pid, args),
            None => {}
        }
    }

    /// `AT_FDCWD<dir>, "path"` or `3<dir>, "path"`.
    fn at(&mut self, pid: u32, args: &[u8]) {
        let (dir, rest) = split_fd(args);
        if let (Some(dir), true) = (&dir, args.starts_with(b"AT_FDCWD")) {
            self.cwd.insert(pid, Some(dir.clone()));
        }
        let Some(path) = rest.strip_prefix(b", ") else {
            return;
        };
        self.path(pid, path, Some(dir));
    }

    fn chdir(&mut self, pid: u32, args: &[u8]) {
        self.path(pid, args, None);
        if !failed(args) {
            let to = quoted(args).and_then(|path| self.absolute(pid, path, None));
            self.moved(pid, to);
        }
    }

    fn fchdir(&mut self, pid: u32, args: &[u8]) {
        if !failed(args) {
            self.moved(pid, split_fd(args).0);
        }
    }

    fn moved(&mut self, pid: u32, to: Option<Vec<u8>>) {
        self.cwd.insert(pid, to);
        self.start = None;
    }

    /// A quoted path, which starts from `dir` or, without one, from the current
    /// directory. `Some(None)` is a directory that is not known.
    fn path(&mut self, pid: u32, args: &[u8], dir: Option<Option<Vec<u8>>>) {
        // The empty path is no path: AT_EMPTY_PATH asks about the descriptor.
        let Some(path) = quoted(args).filter(|path| !path.is_empty()) else {
            return;
        };
        match self.absolute(pid, path, dir) {
            None => self.asked.relative_dropped += 1,
            Some(path) if is_special(&path) => self.asked.special_dropped += 1,
            Some(path) => self.asked.paths.push(path),
        }
    }

    fn absolute(&self, pid: u32, path: Vec<u8>, dir: Option<Option<Vec<u8>>>) -> Option<Vec<u8>> {
        let path = if path.starts_with(b"/") {
            path
        } else {
            let dir = dir.unwrap_or_else(|| self.cwd.get(&pid).cloned().flatten())?;
            let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
            [&dir, slash, &path].concat()
        };
        (path.len() < PATH_MAX).then_some(path)
    }
}

/// Where a system call has its path.
enum Shape {
    Path,
    DirAndPath,
    Chdir,
    Fchdir,
}

/// Only calls that look a path up. Those that create, rename or remove names leave
/// a tree behind in which their own paths answer differently.
fn shape_of(call: &[u8]) -> Option<Shape> {
    match call {
        b"access" | b"execve" | b"lstat" | b"lstat64" | b"open" | b"readlink" | b"stat"
        | b"stat64" | b"statfs" | b"statfs64" => Some(Shape::Path),
        b"execveat" | b"faccessat" | b"faccessat2" | b"fstatat64" | b"newfstatat" | b"openat"
        | b"openat2" | b"readlinkat" | b"statx" => Some(Shape::DirAndPath),
        b"chdir" => Some(Shape::Chdir),
        b"fchdir" => Some(Shape::Fchdir),
        _ => None,
    }
}

fn is_special(path: &[u8]) -> bool {
    let first = path
        .split(|&byte| byte == b'/')
        .find(|name| !name.is_empty());
    matches!(first, Some(b"proc" | b"dev" | b"sys"))
}

/// A call that is known to have changed nothing. One cut short by another process's
/// line (`<unfinished ...>`) may have.
fn failed(args: &[u8]) -> bool {
    args.windows(6).any(|part| part == b") = -1")
}

fn split_pid(line: &[u8]) -> (u32, &[u8]) {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let pid = str::from_utf8(&line[..digits])
        .ok()
        .and_then(|pid| pid.parse().ok());
    (pid.unwrap_or(0), line[digits..].trim_ascii_start())
}

/// Splits `3<dir>` from what follows it. The directory is `None` if strace did not
/// know it, or if the descriptor is a socket or the like.
fn split_fd(args: &[u8]) -> (Option<Vec<u8>>, &[u8]) {
    let end = args.iter().position(|byte| b",<)".contains(byte));
    let (_, rest) = args.split_at(end.unwrap_or(args.len()));
    if let Some(rest) = rest.strip_prefix(b"<")
        && let Some((dir, rest)) = unescape(rest, b'>')
    {
        return (Some(dir).filter(|dir| dir.starts_with(b"/")), rest);
    }
    (None, rest)
}

/// The bytes of `"..."` at the start of `args`. `None` for NULL, for an address,
/// and for a string that strace cut short.
fn quoted(args: &[u8]) -> Option<Vec<u8>> {
    let (path, rest) = unescape(args.strip_prefix(b"\"")?, b'"')?;
    (!rest.starts_with(b"...")).then_some(path)
}

/// Undoes strace's escapes up to `end`; returns the bytes and what follows `end`.
fn unescape(text: &[u8], end: u8) -> Option<(Vec<u8>, &[u8])> {
    let mut bytes = Vec::new();
    let mut rest = text;
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte == end {
            return Some((bytes, rest));
        }
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (byte, len) = match rest.first()? {
            b'x' => (number(rest.get(1..3)?, 16)?, 3),
            b'0'..=b'7' => {
                let octal = |byte: &&u8| (b'0'..=b'7').contains(*byte);
                let len = rest.iter().take(3).take_while(octal).count();
                (number(&rest[..len], 8)?, len)
            }
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            b'r' => (b'\r', 1),
            b'f' => (0x0c, 1),
            b'v' => (0x0b, 1),
            &byte => (byte, 1),
        };
        bytes.push(byte);
        rest = &rest[len..];
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u8> {
    u8::from_str_radix(str::from_utf8(digits).ok()?, radix).ok()
}

/// Why a command could not be traced.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// There is no command.
    NoCommand,
    /// strace is not installed.
    NoStrace,
    /// The command, which ended so, asked for no path that can be used.
    NoPaths(ExitStatus),
    /// strace could not be run or its output not be read.
    Io(io::Error),
}

impl From<io::Error> for TraceError {
    fn from(err: io::Error) -> Self {
        Self::Io(err)
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => write!(f, "no command to trace"),
            Self::NoStrace => write!(
                f,
                "strace is not installed: install your system's `strace` package, \
                 or give the paths in a file"
            ),
            Self::NoPaths(status) => write!(
                f,
                "the traced command asked for no usable path ({status}); \
                 if strace was not allowed to trace, give the paths in a file"
            ),
            Self::Io(err) => write!(f, "cannot trace the command: {err}"),
        }
    }
}

// No `source`: the message already says it all.
impl Error for TraceError {}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
