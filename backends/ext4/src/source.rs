//! Where the bytes of an image come from.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

#[cfg(feature = "mmap")]
pub mod mmap;

/// Positional reads from an image, by many threads at once.
pub trait Source: Send + Sync + 'static {
    /// Reads at `offset` into `buf`, as pread(2) does: fewer bytes than wanted only
    /// at the end, 0 behind it.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// How many bytes there are now.
    fn len(&self) -> io::Result<u64>;

    /// True if there are none.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// An image file, or a block device.
#[derive(Debug)]
pub struct FileSource(File);

impl FileSource {
    /// Opens it for reading.
    pub fn open(path: impl AsRef<Path>) -> io::Result<FileSource> {
        File::open(path).map(FileSource)
    }
}

impl Source for FileSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        // Not the metadata's size, which is 0 for a block device.
        (&self.0).seek(SeekFrom::End(0))
    }
}

/// An image in memory.
impl Source for Vec<u8> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(copy_at(self, buf, offset))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(Vec::len(self) as u64)
    }
}

/// Copies what `bytes` has at `offset`, and returns how much that was.
fn copy_at(bytes: &[u8], buf: &mut [u8], offset: u64) -> usize {
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|offset| bytes.get(offset..))
        .unwrap_or_default();
    let length = rest.len().min(buf.len());
    buf[..length].copy_from_slice(&rest[..length]);
    length
}
