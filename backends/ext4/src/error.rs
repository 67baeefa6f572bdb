//! Errors found in an image. Each says where in the image the damage is.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result of everything that reads an image.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no ext2, ext3 or ext4 here, and this is what there is instead.
    NotExt4 {
        /// The format found instead: `an xfs file system`, `a directory`, `no known magic
        /// number`.
        found: String,
    },
    /// It could not be opened.
    Open {
        /// The path or name given.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A feature that would make what we return wrong.
    Unsupported {
        /// Its name as mke2fs and dumpe2fs write it.
        feature: String,
    },
    /// A structure that cannot be what it claims.
    Corrupt {
        /// Where it is.
        place: Place,
        /// The field that is wrong, as the format's documentation names it.
        field: &'static str,
        /// The reason, with the value.
        why: String,
    },
    /// A structure whose checksum does not match its contents.
    Checksum {
        /// Where it is.
        place: Place,
        /// The kind of structure: `inode`, `directory block`, …
        what: &'static str,
    },
    /// The image ends before what was to be read: it was cut off, or shrank.
    Truncated {
        /// Where reading began, in bytes.
        offset: u64,
        /// How many bytes were wanted there.
        wanted: u64,
        /// Where the image ends.
        end: u64,
    },
    /// The name or number stands for nothing.
    NotFound,
    /// Not what the operation is for: a directory read as a file, …
    WrongType {
        /// The type that was expected.
        wanted: &'static str,
    },
    /// The host could not read.
    Io {
        /// Where, in bytes.
        offset: u64,
        /// What the host said.
        source: io::Error,
    },
}

/// A place in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The super block, in this block group.
    SuperBlock(u32),
    /// The descriptor of this block group.
    Group(u32),
    /// An inode.
    Inode(u32),
    /// A block of the image.
    Block(u64),
    /// A block of the image that belongs to this inode.
    BlockOf {
        /// The inode.
        ino: u32,
        /// The block, counted from the start of the image.
        block: u64,
    },
    /// A block of the journal, counted from the start of the journal.
    Journal(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotExt4 { found } => write!(f, "no ext2, ext3 or ext4 file system: {found}"),
            Error::Open { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Unsupported { feature } => write!(f, "unsupported feature: {feature}"),
            Error::Corrupt { place, field, why } => write!(f, "{place}: bad {field}: {why}"),
            Error::Checksum { place, what } => {
                write!(f, "{place}: the checksum of this {what} does not match")
            }
            Error::Truncated {
                offset,
                wanted,
                end,
            } => write!(
                f,
                "truncated: {wanted} bytes wanted at {offset}, and the image ends at {end}"
            ),
            Error::NotFound => f.write_str("no such file or inode"),
            Error::WrongType { wanted } => write!(f, "not {wanted}"),
            Error::Io { offset, source } => write!(f, "reading at {offset}: {source}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::SuperBlock(0) => write!(f, "super block"),
            Place::SuperBlock(group) => write!(f, "backup super block of group {group}"),
            Place::Group(number) => write!(f, "group {number}"),
            Place::Inode(ino) => write!(f, "inode {ino}"),
            Place::Block(block) => write!(f, "block {block}"),
            Place::BlockOf { ino, block } => write!(f, "inode {ino}, block {block}"),
            Place::Journal(block) => write!(f, "journal block {block}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Open { source, .. } | Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What the kernel's ext4 would say. The text gets lost, so whoever can shows ours.
impl From<Error> for rcuwalk::Error {
    fn from(err: Error) -> rcuwalk::Error {
        let number = |errno| rcuwalk::Error::io(io::Error::from_raw_os_error(errno));
        match err {
            Error::NotExt4 { .. } => rcuwalk::Error::Invalid,
            Error::Open { source, .. } => source.into(),
            Error::Unsupported { .. } => rcuwalk::Error::NotSupported,
            Error::Corrupt { .. } => number(libc::EUCLEAN),
            Error::Checksum { .. } => number(libc::EBADMSG),
            Error::Truncated { .. } => number(libc::EIO),
            Error::NotFound => rcuwalk::Error::NotFound,
            Error::WrongType { wanted: DIRECTORY } => rcuwalk::Error::NotADirectory,
            Error::WrongType { .. } => rcuwalk::Error::Invalid,
            // As it is: an ENOENT of the host's is not about a name of ours.
            Error::Io { source, .. } => rcuwalk::Error::io(source),
        }
    }
}

/// What [`Error::WrongType`] wanted where it wanted a directory.
pub(crate) const DIRECTORY: &str = "a directory";

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(err: Error) -> i32 {
        rcuwalk::Error::from(err).errno()
    }

    /// EDGE-1: damage has the numbers that the kernel's ext4 gives it.
    #[test]
    fn damage_has_the_kernels_numbers() {
        let place = Place::Inode(12);
        let bad = Error::Corrupt {
            place,
            field: "i_mode",
            why: String::new(),
        };
        assert_eq!(errno(bad), libc::EUCLEAN);
        let what = "inode";
        assert_eq!(errno(Error::Checksum { place, what }), libc::EBADMSG);
        assert_eq!(errno(Error::NotFound), libc::ENOENT);
        assert_eq!(errno(Error::WrongType { wanted: DIRECTORY }), libc::ENOTDIR);
        let cut = Error::Truncated {
            offset: 4096,
            wanted: 100,
            end: 4000,
        };
        assert_eq!(
            cut.to_string(),
            "truncated: 100 bytes wanted at 4096, and the image ends at 4000"
        );
        assert_eq!(errno(cut), libc::EIO);
    }

    /// An error of the host's keeps its number, and does not turn into one about a name.
    #[test]
    fn the_hosts_numbers_stay_what_they_are() {
        for number in [libc::ENOENT, libc::EIO, libc::ENXIO] {
            let err = rcuwalk::Error::from(Error::Io {
                offset: 0,
                source: io::Error::from_raw_os_error(number),
            });
            assert!(matches!(err, rcuwalk::Error::Io(_)), "{err:?}");
            assert_eq!(err.errno(), number);
        }
    }
}
