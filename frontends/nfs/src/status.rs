//! The status of a reply, and the one table from [`Error`] to it.

use rcuwalk::Error;
use rustix::io::Errno;

/// `nfsstat3`, without `NFS3_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NoDev = 19,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    /// Try again later.
    Jukebox = 10008,
}

pub(crate) type Result<T, E = Status> = std::result::Result<T, E>;

impl From<Error> for Status {
    fn from(err: Error) -> Status {
        Status::from(&err)
    }
}

impl From<&Error> for Status {
    fn from(err: &Error) -> Status {
        match err {
            Error::NotFound => Status::NoEnt,
            Error::NotADirectory => Status::NotDir,
            Error::IsADirectory => Status::IsDir,
            Error::Exists => Status::Exist,
            Error::NotEmpty => Status::NotEmpty,
            Error::NameTooLong => Status::NameTooLong,
            Error::NotPermitted => Status::Perm,
            // The protocol has no "busy": of its words, this one makes a client neither retry nor
            // give the file up.
            Error::PermissionDenied | Error::Busy => Status::Acces,
            Error::Stale => Status::Stale,
            Error::CrossDevice => Status::XDev,
            Error::ReadOnly => Status::RoFs,
            Error::NotSupported => Status::NotSupp,
            Error::NoSpace => Status::NoSpc,
            Error::TooManyLinks => Status::MLink,
            Error::WouldBlock | Error::TooManyOpenFiles => Status::Jukebox,
            Error::NoSuchDevice => Status::NxIo,
            Error::NoDevice => Status::NoDev,
            Error::FileTooBig => Status::FBig,
            Error::OverQuota => Status::DQuot,
            Error::TooManySymlinks
            | Error::Invalid
            | Error::NoData
            | Error::OutOfRange
            | Error::TooBig
            | Error::IllegalSeek
            | Error::Overflow => Status::Inval,
            Error::BadDescriptor => Status::ServerFault,
            Error::Io(err) if err.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => {
                Status::Jukebox
            }
            _ => Status::Io,
        }
    }
}
