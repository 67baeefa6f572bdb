//! [`Ext4`], an open image, and how to open one.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use rcuwalk::{Attr, FileType};

use crate::checksum::Checksums;
use crate::error::{Error, Result};
use crate::link;
use crate::source::{FileSource, Source};
use crate::volume::Volume;
use crate::xattr::{self, Xattr};

/// An ext2, ext3 or ext4 file system in an image or on a device, open for reading.
///
/// Copies of it are the same open image.
#[derive(Clone)]
pub struct Ext4 {
    pub(crate) volume: Arc<Volume>,
}

/// Options for opening an image: see [`Ext4::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    checksums: Checksums,
    cache_bytes: usize,
}

/// What a file system says about itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// Its name, often empty.
    pub label: Vec<u8>,
    /// Its number.
    pub uuid: [u8; 16],
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks_count: u64,
    /// How many of these the image has: fewer if it was cut off.
    pub present_blocks: u64,
    /// Blocks that are free, by the super block's count, which is not always up to date.
    pub free_blocks: u64,
    /// The highest inode number.
    pub inodes_count: u32,
    /// Inodes that are free, likewise.
    pub free_inodes: u32,
    /// The group whose copy of the super block was used: 0 unless that one is bad.
    pub super_block_group: u32,
    /// The names of its features, as dumpe2fs lists them.
    pub features: Vec<String>,
    /// Blocks that read as the journal has them.
    pub journal_blocks: usize,
    /// How many transactions of the journal they are from.
    pub journal_transactions: u32,
}

/// An inode by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InodeInfo {
    /// What stat(2) tells. There is no device number: `dev` is 0.
    pub attr: Attr,
    /// How often the number has been used anew.
    pub generation: u32,
    /// `i_flags`, as `FS_IOC_GETFLAGS` returns them, and those that it hides.
    pub flags: u32,
}

impl Ext4 {
    /// Opens the image or device at `path` with the default options.
    ///
    /// # Errors
    /// If it cannot be opened, is no ext2, ext3 or ext4, or uses something that we cannot
    /// read.
    pub fn open(path: impl AsRef<Path>) -> Result<Ext4> {
        Ext4::options().open(path)
    }

    /// The default options: all checksums verified, 8 MiB of cached metadata.
    pub fn options() -> OpenOptions {
        OpenOptions {
            checksums: Checksums::default(),
            cache_bytes: 8 << 20,
        }
    }

    /// What the file system says about itself.
    pub fn info(&self) -> Info {
        let super_block = self.volume.super_block();
        Info {
            label: super_block.label().to_vec(),
            uuid: *super_block.uuid(),
            block_size: super_block.block_size(),
            blocks_count: super_block.blocks_count(),
            present_blocks: self.volume.present_blocks(),
            free_blocks: super_block.free_blocks_count(),
            inodes_count: super_block.inodes_count(),
            free_inodes: super_block.free_inodes_count(),
            super_block_group: super_block.group(),
            features: super_block.features().names(),
            journal_blocks: self.volume.overlay().len(),
            journal_transactions: self.volume.overlay().transactions(),
        }
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not in use.
    pub fn inode(&self, ino: u32) -> Result<InodeInfo> {
        let inode = self.volume.inode(ino)?;
        Ok(InodeInfo {
            attr: inode.attr(),
            generation: inode.generation,
            flags: inode.flags.bits(),
        })
    }

    /// The extended attributes of an inode.
    ///
    /// # Errors
    /// As for [`inode`](Self::inode).
    pub fn xattrs(&self, ino: u32) -> Result<Vec<Xattr>> {
        xattr::list(&self.volume, &self.volume.inode(ino)?)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`Error::WrongType`] if it is none, [`Error::Unsupported`] if it is encrypted.
    pub fn read_link(&self, ino: u32) -> Result<Vec<u8>> {
        link::read(&self.volume, &self.volume.inode(ino)?)
    }

    /// Reads the contents of a regular file at `offset` into `buf`; 0 means its end.
    ///
    /// # Errors
    /// [`Error::WrongType`] if it is none, [`Error::Unsupported`] if it is encrypted.
    pub fn read(&self, ino: u32, buf: &mut [u8], offset: u64) -> Result<usize> {
        let inode = self.volume.inode(ino)?;
        if inode.kind != FileType::Regular {
            return Err(Error::WrongType {
                wanted: "a regular file",
            });
        }
        self.volume.read_data(&inode, buf, offset)
    }
}

impl OpenOptions {
    /// How much of the metadata is verified.
    pub fn checksums(mut self, checksums: Checksums) -> Self {
        self.checksums = checksums;
        self
    }

    /// Sets how many bytes of unused metadata stay cached.
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Opens the image or device at `path`.
    ///
    /// # Errors
    /// As for [`Ext4::open`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Ext4> {
        let path = path.as_ref();
        let cannot = |source| Error::Open {
            path: path.into(),
            source,
        };
        // Asked before it is opened: opening a pipe waits for a writer.
        let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Error::NotExt4 {
                found: match kind {
                    kind if kind.is_dir() => "a directory",
                    kind if kind.is_char_device() => "a character device",
                    kind if kind.is_fifo() => "a pipe",
                    _ => "a socket",
                }
                .into(),
            });
        }
        self.open_source(FileSource::open(path).map_err(cannot)?)
    }

    /// Opens an image that is read through `source`.
    ///
    /// # Errors
    /// As for [`Ext4::open`].
    pub fn open_source(self, source: impl Source) -> Result<Ext4> {
        let volume = Volume::open(Box::new(source), self.checksums, self.cache_bytes)?;
        Ok(Ext4 {
            volume: Arc::new(volume),
        })
    }
}

impl fmt::Debug for Ext4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ext4")
            .field("super_block", self.volume.super_block())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::Image;

    fn refusal(path: &Path) -> String {
        Ext4::open(path).unwrap_err().to_string()
    }

    /// A file that is not an ext4 image is refused at once, and the message says what it is.
    #[test]
    fn what_is_no_image_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let none = |found: &str| format!("no ext2, ext3 or ext4 file system: {found}");
        assert_eq!(refusal(temp.path()), none("a directory"));
        assert_eq!(refusal("/dev/null".as_ref()), none("a character device"));
        let socket = temp.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(refusal(&socket), none("a socket"));
        let missing = temp.path().join("missing");
        let expected = format!(
            "{}: No such file or directory (os error 2)",
            missing.display()
        );
        assert_eq!(refusal(&missing), expected);
    }

    /// The image describes itself with the values that mke2fs was given.
    #[test]
    fn it_says_of_itself_what_mke2fs_was_told() {
        let options = [
            "-L",
            "some name",
            "-b",
            "2048",
            "-N",
            "1024",
            "-O",
            "^has_journal,large_dir",
        ];
        let uuid = ["-U", "00112233-4455-6677-8899-aabbccddeeff"];
        let Some(image) = Image::make("8M", &[&options[..], &uuid].concat(), |_| ()) else {
            return;
        };
        let info = Ext4::open(image.path()).unwrap().info();
        assert_eq!(info.label, b"some name");
        assert_eq!(info.uuid[..3], [0x00, 0x11, 0x22]);
        assert_eq!((info.block_size, info.blocks_count), (2048, 4096));
        assert_eq!(info.inodes_count, 1024);
        // Ten that are reserved, and lost+found.
        assert_eq!(info.free_inodes, 1024 - 11);
        assert_eq!(info.super_block_group, 0);
        assert!(info.features.contains(&"large_dir".to_owned()), "{info:?}");
        assert!(
            !info.features.contains(&"has_journal".to_owned()),
            "{info:?}"
        );
    }

    /// Inodes are read as what they are, and as nothing else.
    #[test]
    fn operations_want_the_type_that_they_are_for() {
        let Some(image) = Image::make("4M", &[], |tree| {
            std::fs::write(tree.join("f"), b"contents").unwrap();
        }) else {
            return;
        };
        let ext4 = Ext4::open(image.path()).unwrap();
        let (file, mut buf) = (image.ino("/f"), [0; 8]);
        assert_eq!(ext4.read(file, &mut buf, 0).unwrap(), 8);
        assert_eq!(&buf, b"contents");
        assert_eq!(ext4.read(file, &mut buf, 8).unwrap(), 0);
        assert_eq!(ext4.inode(file).unwrap().attr.kind, FileType::Regular);
        let not = |err: Error| err.to_string();
        assert_eq!(
            not(ext4.read_link(file).unwrap_err()),
            "not a symbolic link"
        );
        assert_eq!(
            not(ext4.read(2, &mut buf, 0).unwrap_err()),
            "not a regular file"
        );
        for ino in [0, 1_000_000, file + 1] {
            assert!(matches!(ext4.inode(ino), Err(Error::NotFound)), "{ino}");
        }
    }
}
