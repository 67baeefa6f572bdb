//! Contents: of small files all, of sparse ones what is around data, borders and end.

use std::fs::File as HostFile;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use rcuwalk::{Attr, File, OpenFlags};
use rustix::fs::{OFlags, SeekFrom};

use super::{Walk, absolute, number, theirs};

/// Files up to this size are read from one end to the other.
const WHOLE: u64 = 2 << 20;
/// Read at a time: no divisor of anything.
const STRIDE: usize = 30_011;

impl Walk<'_> {
    pub(super) fn target(&mut self, path: &[u8], attr: &Attr) {
        let host = theirs::below(self.top, path);
        let kernel = || std::fs::read_link(&host).map(|to| to.into_os_string().into_vec());
        let ours = self.vfs.read_link(&self.ctx, absolute(path));
        if let Some((kernel, ours)) = self.both(path, "target", kernel(), ours) {
            self.same(path, "target", &kernel, &ours.into_vec());
        }
        let by_number = self.ext4.read_link(number(attr));
        if let Some((kernel, ours)) = self.both(path, "target by number", kernel(), by_number) {
            self.same(path, "target by number", &kernel, &ours);
        }
    }

    pub(super) fn contents(&mut self, path: &[u8], attr: &Attr) {
        let host = theirs::open(&theirs::below(self.top, path), OFlags::empty());
        let ours = self.vfs.open(
            &self.ctx,
            absolute(path),
            OpenFlags::READ | OpenFlags::NOFOLLOW,
        );
        let ours = ours
            .map_err(|err| err.to_string())
            .and_then(|ours| match &host {
                // The kernel looks at more when a file is opened.
                Err(_) => ours
                    .read_at(&mut [0; 1], 0)
                    .map(|_| ours)
                    .map_err(|err| err.to_string()),
                Ok(_) => Ok(ours),
            });
        let Some((host, ours)) = self.both(path, "open", host, ours) else {
            return;
        };
        self.coverage.huge += usize::from(attr.size > 1 << 32);
        let two = Two {
            host,
            ours,
            ino: number(attr),
        };
        for (offset, length) in self.ranges(&two.host, attr.size) {
            let at = format!("contents at {offset}, {length} bytes");
            match two.compare(self, offset, length) {
                Ok(()) => self.coverage.bytes += length as u64,
                Err(Unequal::Failed(err)) => return self.failed(path, &at, &err),
                Err(Unequal::Other(kernel, ours)) => {
                    return self.differences.note(path, &at, &kernel, &ours);
                }
            }
        }
    }

    /// What to read of a file of `size` bytes.
    fn ranges(&mut self, host: &HostFile, size: u64) -> Vec<(u64, usize)> {
        let mut ranges = Vec::new();
        if size <= WHOLE {
            // One more, which begins behind the end.
            let strides = size.div_ceil(STRIDE as u64) + 1;
            ranges.extend((0..strides).map(|index| (index * STRIDE as u64, STRIDE)));
        } else {
            for border in borders(host) {
                ranges.push((border.saturating_sub(5_000), 10_007));
            }
            ranges.push((size.saturating_sub(5_000), 10_007));
            for _ in 0..10 {
                ranges.push((self.rng.next_u64() % size, 4_099));
            }
        }
        for _ in 0..3 {
            let offset = self.rng.next_u64() % (size + 2);
            ranges.push((offset, self.rng.between(1, 5_000)));
        }
        // As far behind the end as pread(2) lets one ask.
        ranges.push((i64::MAX as u64 - 10, 10));
        ranges
    }
}

/// Where data begins and where holes do, as the kernel tells.
fn borders(file: &HostFile) -> Vec<u64> {
    /// Of a file with many extents, the first ones.
    const MANY: usize = 400;
    let mut borders = Vec::new();
    let mut from = 0;
    while borders.len() < MANY {
        let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(from)) else {
            break;
        };
        let Ok(hole) = rustix::fs::seek(file, SeekFrom::Hole(data)) else {
            break;
        };
        borders.extend([data, hole]);
        from = hole;
    }
    borders
}

/// A file, opened by both.
struct Two {
    host: HostFile,
    ours: File,
    ino: u32,
}

impl Two {
    fn compare(&self, walk: &Walk<'_>, offset: u64, length: usize) -> Result<(), Unequal> {
        let kernel = all(length, offset, |buf, at| {
            self.host.read_at(buf, at).map_err(|err| err.to_string())
        });
        let ours = all(length, offset, |buf, at| {
            self.ours.read_at(buf, at).map_err(|err| err.to_string())
        });
        equal("through the VFS", &kernel, &ours)?;
        let by_number = all(length, offset, |buf, at| {
            walk.ext4
                .read(self.ino, buf, at)
                .map_err(|err| err.to_string())
        });
        equal("by number", &kernel, &by_number)
    }
}

type Bytes = Result<Vec<u8>, String>;

/// As much as there is, however little comes at a time.
fn all(
    length: usize,
    offset: u64,
    read: impl Fn(&mut [u8], u64) -> Result<usize, String>,
) -> Bytes {
    // Unwritten ranges must not look like zeros that were read.
    let mut bytes = vec![0xa5; length];
    let mut done = 0;
    while done < length {
        match read(&mut bytes[done..], offset + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// How two reads differ.
enum Unequal {
    /// Ours failed, and the kernel's did not.
    Failed(String),
    /// What the kernel says, and what ours says.
    Other(String, String),
}

fn equal(how: &str, kernel: &Bytes, ours: &Bytes) -> Result<(), Unequal> {
    match (kernel, ours) {
        (Ok(kernel), Ok(ours)) if kernel == ours => Ok(()),
        // Both sides must refuse a bad offset, but not with the same errno.
        (Err(_), Err(_)) => Ok(()),
        (Ok(kernel), Ok(ours)) => {
            let pairs = kernel.iter().zip(ours);
            let at = pairs.take_while(|(kernel, ours)| kernel == ours).count();
            let said = |bytes: &[u8]| {
                let some = bytes.iter().skip(at).take(8).collect::<Vec<_>>();
                format!("{how}: {some:?} after {at} of {}", bytes.len())
            };
            Err(Unequal::Other(said(kernel), said(ours)))
        }
        (Ok(_), Err(err)) => Err(Unequal::Failed(format!("{how}: {err}"))),
        (Err(err), Ok(ours)) => {
            let ours = format!("{how}: {} bytes", ours.len());
            Err(Unequal::Other(err.clone(), ours))
        }
    }
}
