//! A slow file: each byte of it is read and written by itself, and slowly. And names whose
//! lookup blocks for ever.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rcuwalk::{
    At, Attr, Caller, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode, InodeFill,
    InodeKey, InodeRef, Name, OpenFlags, Result, SuperBlock,
};

/// The size of the file.
pub(crate) const SIZE: u64 = 1 << 20;

/// How long a byte takes.
const BYTE: Duration = Duration::from_millis(5);

/// A root that contains only the file `slow`.
#[derive(Default)]
pub(crate) struct Slow {
    /// The number of bytes that have been read or written.
    pub(crate) bytes: Arc<AtomicU64>,
    /// How long it takes to open the file.
    pub(crate) opening: Duration,
    /// Blocks lookups of names that begin with `stuck`.
    pub(crate) gate: Arc<Gate>,
}

/// Closed, until it is opened for good.
#[derive(Default)]
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    /// The number of lookups that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    pub(crate) fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        self.waiting.fetch_add(1, Relaxed);
        let closed = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(closed, |is_open| !*is_open));
        self.waiting.fetch_sub(1, Relaxed);
    }
}

const ROOT: u64 = 2;
const FILE: u64 = 3;

impl Slow {
    fn iget(sb: &SuperBlock, ino: u64) -> Result<InodeRef> {
        Ok(match sb.iget(InodeKey::new(ino))? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                let attr = match ino {
                    ROOT => Attr::new(ino, FileType::Directory, 0o755),
                    _ => Attr::new(ino, FileType::Regular, 0o666).size(SIZE),
                };
                new.init(InodeFill::new(attr))
            }
        })
    }
}

impl FileSystem for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Slow::iget(sb, ROOT)
    }

    fn lookup(&self, sb: &SuperBlock, _: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        if name.as_bytes().starts_with(b"stuck") {
            self.gate.pass();
        }
        let is_it = name.as_bytes() == b"slow";
        is_it.then(|| Slow::iget(sb, FILE)).transpose()
    }

    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }

    fn read_dir(&self, _: &SuperBlock, _: &Inode, _: u64, _: &mut dyn Emit) -> Result<()> {
        Ok(())
    }

    fn open(&self, _: &Caller<'_>, _: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        thread::sleep(self.opening);
        Ok(Box::new(Bytes(self.bytes.clone())))
    }
}

struct Bytes(Arc<AtomicU64>);

impl Bytes {
    fn one(&self) -> usize {
        thread::sleep(BYTE);
        self.0.fetch_add(1, Relaxed);
        1
    }
}

impl FileHandle for Bytes {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if offset >= SIZE {
            return Ok(0);
        }
        buf[0] = b'x';
        Ok(self.one())
    }

    fn write_at(&self, _: &Inode, buf: &[u8], _: u64) -> Result<usize> {
        let before = buf.to_vec();
        let written = self.one();
        // A panic is answered `EIO`.
        assert!(before == buf, "what is written has changed meanwhile");
        Ok(written)
    }
}
