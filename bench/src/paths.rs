//! The paths of a workload: built in, from a file, or traced from a command.
//!
//! A [`PathList`] holds absolute paths, in order, duplicates included: that is
//! what programs ask for. Paths are bytes; nothing here expects UTF-8.
//!
//! Contenders get them [relative](PathList::relative) to the root of their tree, so that none
//! needs chroot(2) and all resolve the same bytes.

mod trace;

use std::error::Error;
use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

pub use trace::{Trace, TraceError};

/// The kernel's PATH_MAX: the bytes of the longest path, its closing NUL included.
pub const PATH_MAX: usize = 4096;

/// Absolute paths, in the order in which they are to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathList {
    paths: Vec<Vec<u8>>,
}

impl PathList {
    /// The 205 paths of a g++ compile and link, 118 of which do not exist.
    ///
    /// They belong to [`TreeSpec::builtin`](crate::tree::TreeSpec::builtin).
    pub fn builtin() -> Self {
        Self::parse(include_bytes!("../data/gcc-ld/paths.txt"))
            .expect("the built-in list is parsed by a test")
    }

    /// Reads one absolute path per line.
    ///
    /// Blank lines and lines that start with `#` are skipped. Everything else is
    /// taken as it is, spaces included.
    pub fn parse(text: &[u8]) -> Result<Self, PathListError> {
        let lines = text.split(|&byte| byte == b'\n').zip(1..);
        let paths = lines
            .filter(|(line, _)| !line.is_empty() && !line.starts_with(b"#"))
            .map(|(line, number)| check(line, number))
            .collect::<Result<Vec<_>, _>>()?;
        Self::from_paths(paths)
    }

    /// Reads a file of one absolute path per line. See [`parse`](Self::parse).
    pub fn from_file(file: &Path) -> Result<Self, PathListError> {
        let text = fs::read(file).map_err(|source| PathListError::Read {
            file: file.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|wrong| PathListError::InFile {
            file: file.to_owned(),
            wrong: Box::new(wrong),
        })
    }

    /// Runs `command` under strace and takes the paths that it asks for.
    ///
    /// Paths of /proc, /dev and /sys are left out and counted: they cannot be built
    /// anew elsewhere. What the command prints goes to standard error.
    pub fn from_trace(command: &[OsString]) -> Result<Trace, TraceError> {
        trace::run(command)
    }

    fn from_paths(paths: Vec<Vec<u8>>) -> Result<Self, PathListError> {
        if paths.is_empty() {
            return Err(PathListError::Empty);
        }
        Ok(Self { paths })
    }

    /// The absolute paths.
    pub fn as_slice(&self) -> &[Vec<u8>] {
        &self.paths
    }

    /// How many paths there are; never zero.
    #[expect(clippy::len_without_is_empty, reason = "a list is never empty")]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// The paths without their leading slashes, ready for system calls.
    pub fn relative(&self) -> Vec<CString> {
        let relative = self.paths.iter().map(|path| relative(path));
        relative
            .map(|path| CString::new(path).expect("no constructor lets a NUL in"))
            .collect()
    }
}

/// `path` without its leading slashes; the root itself becomes `.`.
pub fn relative(path: &[u8]) -> &[u8] {
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    match &path[slashes..] {
        // Not the empty path: Linux answers that one with ENOENT.
        b"" => b".",
        rest => rest,
    }
}

fn check(path: &[u8], line: usize) -> Result<Vec<u8>, PathListError> {
    if path.contains(&0) {
        return Err(PathListError::Nul { line });
    }
    if !path.starts_with(b"/") {
        let path = String::from_utf8_lossy(path).into_owned();
        return Err(PathListError::Relative { line, path });
    }
    if path.len() >= PATH_MAX {
        let len = path.len();
        return Err(PathListError::TooLong { line, len });
    }
    Ok(path.to_owned())
}

/// An error in a list of paths.
#[derive(Debug)]
#[non_exhaustive]
pub enum PathListError {
    /// There is no path in it.
    Empty,
    /// A path does not start with a slash.
    Relative {
        /// The line, counted from 1.
        line: usize,
        /// The path.
        path: String,
    },
    /// A line holds a NUL byte.
    Nul {
        /// The line, counted from 1.
        line: usize,
    },
    /// A path is longer than the kernel takes.
    TooLong {
        /// The line, counted from 1.
        line: usize,
        /// The bytes of the path.
        len: usize,
    },
    /// The file cannot be read.
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file was read, and something in it is wrong.
    InFile {
        /// The file.
        file: PathBuf,
        /// The reason.
        wrong: Box<PathListError>,
    },
}

impl fmt::Display for PathListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "no paths (blank lines and # comments do not count)"),
            Self::Relative { line, path } => {
                write!(f, "line {line}: `{path}` does not start with a slash")
            }
            Self::Nul { line } => write!(f, "line {line}: a path cannot hold a NUL byte"),
            Self::TooLong { line, len } => write!(
                f,
                "line {line}: a path of {len} bytes, and {} is the most that Linux takes",
                PATH_MAX - 1
            ),
            Self::Read { file, source } => {
                write!(f, "cannot read {}: {source}", file.display())
            }
            Self::InFile { file, wrong } => write!(f, "{}: {wrong}", file.display()),
        }
    }
}

// No `source`: the message already says it all.
impl Error for PathListError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &[u8]) -> String {
        PathList::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_builtin_list_has_205_distinct_absolute_paths() {
        let list = PathList::builtin();
        let distinct: std::collections::HashSet<_> = list.as_slice().iter().collect();
        assert_eq!((list.len(), distinct.len()), (205, 205));
    }

    #[test]
    fn the_builtin_list_names_nothing_of_the_machine_it_was_recorded_on() {
        for path in PathList::builtin().as_slice() {
            let first = path.split(|&byte| byte == b'/').nth(1).unwrap();
            let usual: [&[u8]; 5] = [b"bin", b"etc", b"lib", b"sbin", b"usr"];
            assert!(usual.contains(&first), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn blank_lines_and_comments_are_skipped_and_order_and_repeats_kept() {
        let list = PathList::parse(b"# two\n/b\n\n/a\n/b").unwrap();
        assert_eq!(list.as_slice(), [b"/b", b"/a", b"/b"]);
    }

    #[test]
    fn a_path_is_bytes_and_may_end_in_a_space() {
        let list = PathList::parse(b"/caf\xe9/# \n").unwrap();
        assert_eq!(list.as_slice(), [b"/caf\xe9/# "]);
    }

    #[test]
    fn a_list_without_paths_is_refused() {
        assert_eq!(
            wrong(b"# nothing\n\n"),
            "no paths (blank lines and # comments do not count)"
        );
    }

    #[test]
    fn a_relative_path_is_refused_with_its_line() {
        assert_eq!(
            wrong(b"/a\n\nb/c\n"),
            "line 3: `b/c` does not start with a slash"
        );
    }

    #[test]
    fn a_nul_is_refused_with_its_line() {
        assert_eq!(wrong(b"/a\n/b\0c"), "line 2: a path cannot hold a NUL byte");
    }

    #[test]
    fn a_path_may_be_as_long_as_the_kernel_takes_and_no_longer() {
        let mut path = vec![b'/'; PATH_MAX - 1];
        assert!(PathList::parse(&path).is_ok());
        path.push(b'/');
        assert_eq!(
            wrong(&path),
            "line 1: a path of 4096 bytes, and 4095 is the most that Linux takes"
        );
    }

    #[test]
    fn errors_of_a_file_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        let message = || PathList::from_file(&file).unwrap_err().to_string();
        assert!(message().starts_with(&format!("cannot read {}: ", file.display())));
        fs::write(&file, "a\n").unwrap();
        assert!(message().starts_with(&format!("{}: line 1: ", file.display())));
        fs::write(&file, "/a\n").unwrap();
        assert_eq!(PathList::from_file(&file).unwrap().len(), 1);
    }

    #[test]
    fn relative_paths_lose_all_leading_slashes_and_the_root_is_dot() {
        let list = PathList::parse(b"/usr/lib\n//a/\n/\n///").unwrap();
        let expected = [c"usr/lib", c"a/", c".", c"."];
        assert_eq!(list.relative(), expected.map(CString::from));
    }
}
