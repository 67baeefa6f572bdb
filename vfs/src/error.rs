//! Errors by name. Their POSIX errno is only needed at the edge.
//!
//! Back ends and the walk speak [`Error`]. A front end that must answer with an
//! errno calls [`Error::errno`], and nothing else in the crate knows numbers.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The result of everything that may fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not happen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no such name (`ENOENT`).
    NotFound,
    /// A component used as a directory is something else (`ENOTDIR`).
    NotADirectory,
    /// The operation does not apply to a directory (`EISDIR`).
    IsADirectory,
    /// The name is taken already (`EEXIST`).
    Exists,
    /// The directory still has entries (`ENOTEMPTY`).
    NotEmpty,
    /// More than 40 symbolic links, or a link where none may be (`ELOOP`).
    TooManySymlinks,
    /// A component is longer than [`NAME_MAX`](crate::NAME_MAX) or the path longer
    /// than [`PATH_MAX`](crate::PATH_MAX) allows (`ENAMETOOLONG`).
    NameTooLong,
    /// The caller's credentials do not allow it (`EACCES`).
    PermissionDenied,
    /// These credentials do not allow this operation on this object (`EPERM`).
    NotPermitted,
    /// The request makes no sense: a NUL in a path, a rename below itself (`EINVAL`).
    Invalid,
    /// The object is gone from the back end; a retry with revalidation may help (`ESTALE`).
    Stale,
    /// In use: a mount point, or a mount with open files (`EBUSY`).
    Busy,
    /// The two names live in different mounts, or the walk left its mount or its
    /// contained root (`EXDEV`).
    CrossDevice,
    /// The mount or the back end takes no changes (`EROFS`).
    ReadOnly,
    /// The back end has no such operation (`EOPNOTSUPP`).
    NotSupported,
    /// The answer is not cached and the caller asked not to block (`EAGAIN`).
    WouldBlock,
    /// The back end is full (`ENOSPC`).
    NoSpace,
    /// Too many links to one inode (`EMLINK`).
    TooManyLinks,
    /// Out of descriptors, even after the caches gave theirs back (`EMFILE`).
    TooManyOpenFiles,
    /// Not something this object can do: reading a socket, say (`ENXIO`).
    NoSuchDevice,
    /// There is no such extended attribute (`ENODATA`).
    NoData,
    /// A name of an extended attribute is empty or too long (`ERANGE`).
    OutOfRange,
    /// The value of an extended attribute is too long (`E2BIG`).
    TooBig,
    /// Beyond the size that a file may have (`EFBIG`).
    FileTooBig,
    /// The user has reached a quota (`EDQUOT`).
    OverQuota,
    /// The file was not opened for this (`EBADF`).
    BadDescriptor,
    /// A pipe or the like has no positions (`ESPIPE`).
    IllegalSeek,
    /// The object has no such operation: allocating space in a directory (`ENODEV`).
    NoDevice,
    /// A number does not fit (`EOVERFLOW`).
    Overflow,
    /// The file is being executed, or is swapped to (`ETXTBSY`).
    TextBusy,
    /// An error of the back end's own I/O; [`Error::io`] makes one.
    Io(Arc<io::Error>),
}

impl From<crate::inode::Stale> for Error {
    fn from(_: crate::inode::Stale) -> Error {
        Error::Stale
    }
}

impl From<crate::inode::InUse> for Error {
    fn from(_: crate::inode::InUse) -> Error {
        Error::Busy
    }
}

impl Error {
    /// An error of the back end's own I/O as it is, without a name for its errno.
    pub fn io(err: impl Into<io::Error>) -> Error {
        Error::Io(Arc::new(err.into()))
    }

    /// The number Linux gives this error.
    ///
    /// ```
    /// assert_eq!(rcuwalk::Error::Stale.errno(), libc::ESTALE);
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::NotADirectory => libc::ENOTDIR,
            Error::IsADirectory => libc::EISDIR,
            Error::Exists => libc::EEXIST,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::TooManySymlinks => libc::ELOOP,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::PermissionDenied => libc::EACCES,
            Error::NotPermitted => libc::EPERM,
            Error::Invalid => libc::EINVAL,
            Error::Stale => libc::ESTALE,
            Error::Busy => libc::EBUSY,
            Error::CrossDevice => libc::EXDEV,
            Error::ReadOnly => libc::EROFS,
            Error::NotSupported => libc::EOPNOTSUPP,
            Error::WouldBlock => libc::EAGAIN,
            Error::NoSpace => libc::ENOSPC,
            Error::TooManyLinks => libc::EMLINK,
            Error::TooManyOpenFiles => libc::EMFILE,
            Error::NoSuchDevice => libc::ENXIO,
            Error::NoData => libc::ENODATA,
            Error::OutOfRange => libc::ERANGE,
            Error::TooBig => libc::E2BIG,
            Error::FileTooBig => libc::EFBIG,
            Error::OverQuota => libc::EDQUOT,
            Error::BadDescriptor => libc::EBADF,
            Error::IllegalSeek => libc::ESPIPE,
            Error::NoDevice => libc::ENODEV,
            Error::Overflow => libc::EOVERFLOW,
            Error::TextBusy => libc::ETXTBSY,
            Error::Io(err) => err.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The other direction, for back ends: the errno of a system call, by name.
impl From<io::Error> for Error {
    fn from(err: io::Error) -> Self {
        match err.raw_os_error() {
            Some(libc::ENOENT) => Error::NotFound,
            Some(libc::ENOTDIR) => Error::NotADirectory,
            Some(libc::EISDIR) => Error::IsADirectory,
            Some(libc::EEXIST) => Error::Exists,
            Some(libc::ENOTEMPTY) => Error::NotEmpty,
            Some(libc::ELOOP) => Error::TooManySymlinks,
            Some(libc::ENAMETOOLONG) => Error::NameTooLong,
            Some(libc::EACCES) => Error::PermissionDenied,
            Some(libc::EPERM) => Error::NotPermitted,
            Some(libc::EINVAL) => Error::Invalid,
            Some(libc::ESTALE) => Error::Stale,
            Some(libc::EBUSY) => Error::Busy,
            Some(libc::EXDEV) => Error::CrossDevice,
            Some(libc::EROFS) => Error::ReadOnly,
            Some(libc::EOPNOTSUPP) => Error::NotSupported,
            Some(libc::EAGAIN) => Error::WouldBlock,
            Some(libc::ENOSPC) => Error::NoSpace,
            Some(libc::EMLINK) => Error::TooManyLinks,
            Some(libc::EMFILE | libc::ENFILE) => Error::TooManyOpenFiles,
            Some(libc::ENXIO) => Error::NoSuchDevice,
            Some(libc::ENODATA) => Error::NoData,
            Some(libc::ERANGE) => Error::OutOfRange,
            Some(libc::E2BIG) => Error::TooBig,
            Some(libc::EFBIG) => Error::FileTooBig,
            Some(libc::EDQUOT) => Error::OverQuota,
            Some(libc::EBADF) => Error::BadDescriptor,
            Some(libc::ESPIPE) => Error::IllegalSeek,
            Some(libc::ENODEV) => Error::NoDevice,
            Some(libc::EOVERFLOW) => Error::Overflow,
            Some(libc::ETXTBSY) => Error::TextBusy,
            _ => Error::io(err),
        }
    }
}

/// For callers that speak `io::Error`: the errno, and the text where there is no errno.
///
/// ```
/// let err = std::io::Error::from(rcuwalk::Error::NotFound);
/// assert_eq!(err.kind(), std::io::ErrorKind::NotFound);
/// ```
impl From<Error> for io::Error {
    fn from(err: Error) -> Self {
        match &err {
            Error::Io(inner) if inner.raw_os_error().is_none() => io::Error::new(inner.kind(), err),
            named => io::Error::from_raw_os_error(named.errno()),
        }
    }
}

/// Two errors are equal if a caller cannot tell them apart; of I/O errors the errno counts, and
/// the text where there is none.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        match (self, other) {
            (Error::Io(a), Error::Io(b)) => match (a.raw_os_error(), b.raw_os_error()) {
                (None, None) => a.kind() == b.kind() && a.to_string() == b.to_string(),
                (a, b) => a == b,
            },
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NotFound => "no such file or directory",
            Error::NotADirectory => "not a directory",
            Error::IsADirectory => "is a directory",
            Error::Exists => "file exists",
            Error::NotEmpty => "directory not empty",
            Error::TooManySymlinks => "too many levels of symbolic links",
            Error::NameTooLong => "file name too long",
            Error::PermissionDenied => "permission denied",
            Error::NotPermitted => "operation not permitted",
            Error::Invalid => "invalid argument",
            Error::Stale => "stale file handle",
            Error::Busy => "device or resource busy",
            Error::CrossDevice => "invalid cross-device link",
            Error::ReadOnly => "read-only file system",
            Error::NotSupported => "operation not supported",
            Error::WouldBlock => "would block",
            Error::NoSpace => "no space left on device",
            Error::TooManyLinks => "too many links",
            Error::TooManyOpenFiles => "too many open files",
            Error::NoSuchDevice => "no such device or address",
            Error::NoData => "no data available",
            Error::OutOfRange => "numerical result out of range",
            Error::TooBig => "argument list too long",
            Error::FileTooBig => "file too large",
            Error::OverQuota => "disk quota exceeded",
            Error::BadDescriptor => "bad file descriptor",
            Error::IllegalSeek => "illegal seek",
            Error::NoDevice => "no such device",
            Error::Overflow => "value too large for defined data type",
            Error::TextBusy => "text file busy",
            Error::Io(err) => return err.fmt(f),
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(err) => Some(err),
            _ => None,
        }
    }
}

/// Traits that callers need of an error, and of types shared among threads.
const _: () = {
    const fn crosses_threads<T: Send + Sync + 'static>() {}
    crosses_threads::<Error>();
    crosses_threads::<crate::Vfs>();
    crosses_threads::<crate::VfsPath>();
    crosses_threads::<crate::Context>();
    crosses_threads::<crate::File>();
    crosses_threads::<crate::ReadDir>();
};

#[cfg(test)]
mod tests {
    use super::*;

    /// An error keeps its name and its errno on the way to `io::Error` and back.
    #[test]
    fn an_error_survives_the_way_to_io_error_and_back() {
        for errno in 1..=133 {
            let err = Error::from(io::Error::from_raw_os_error(errno));
            let back = io::Error::from(err.clone());
            assert_eq!(back.raw_os_error(), Some(err.errno()));
            assert_eq!(Error::from(back), err);
        }
        let text = Error::io(io::Error::other("the disk is gone"));
        let back = io::Error::from(text.clone());
        assert_eq!(back.to_string(), "the disk is gone");
        assert_eq!(text.errno(), libc::EIO);
        assert_ne!(text, Error::io(io::Error::other("another")));
        assert_ne!(text, Error::NotFound);
    }
}
