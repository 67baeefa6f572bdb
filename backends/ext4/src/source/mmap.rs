//! An image that is mapped into memory: a read is a copy, and no system call.
//!
//! # The danger
//!
//! Reading from a mapping cannot report an error. If the file is truncated meanwhile, or its
//! disk or server cannot deliver a page, the kernel sends `SIGBUS`, which ends the process
//! without an error or a partial result. A file that is written to meanwhile is memory that
//! changes behind the compiler's back, which Rust does not allow. So use this only for images
//! that no process changes, on disks that you trust; use [`FileSource`](super::FileSource) for
//! all others.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Advice, Mmap};

use super::{Source, copy_at};

/// An image file, mapped into memory. See the [module](self) for what the caller promises.
#[derive(Debug)]
pub struct MmapSource(Mmap);

impl MmapSource {
    /// Maps it.
    ///
    /// # Safety
    /// As long as the source lives, no process writes to the file or truncates it.
    #[allow(unsafe_code)]
    pub unsafe fn open(path: impl AsRef<Path>) -> io::Result<MmapSource> {
        let file = File::open(path)?;
        // SAFETY: the caller's promise is the one that `map` asks for.
        let map = unsafe { Mmap::map(&file) }?;
        // The cache of windows reads ahead as it needs to; more would be read for nothing.
        map.advise(Advice::Random)?;
        Ok(MmapSource(map))
    }
}

impl Source for MmapSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(copy_at(&self.0, buf, offset))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ext4;
    use crate::testing::Image;

    /// A mapped image reads as the file does.
    #[test]
    #[allow(unsafe_code)]
    fn a_mapped_image_reads_as_the_file() {
        let Some(image) = Image::make("4M", &[], |tree| {
            std::fs::write(tree.join("f"), b"contents").unwrap();
        }) else {
            return;
        };
        // SAFETY: only this test knows of the image.
        let source = unsafe { MmapSource::open(image.path()) }.unwrap();
        let mapped = Ext4::options().open_source(source).unwrap();
        let mut buf = [0; 10];
        assert_eq!(mapped.read(image.ino("/f"), &mut buf, 0).unwrap(), 8);
        assert_eq!(&buf, b"contents\0\0");
    }
}
