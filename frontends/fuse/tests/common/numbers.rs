//! A generated tree: directories of files, all numbered, which take no memory. A file contains
//! its own name.

use rcuwalk::{
    At, Attr, Caller, Emit, Error, FileHandle, FileSystem, FileType, Iget, Inode, InodeFill,
    InodeKey, InodeRef, Name, OpenFlags, RawEntry, Result, SuperBlock,
};

/// A tree of `dirs` directories with `files` files each.
pub(crate) struct Numbers {
    pub(crate) dirs: u64,
    pub(crate) files: u64,
}

/// Inode number of the root; 1 is the front end's own.
const ROOT: u64 = 2;

/// The meaning of an inode number.
#[derive(Clone, Copy)]
enum What {
    Root,
    Dir(u64),
    File(u64),
}

impl Numbers {
    pub(crate) fn dir_name(dir: u64) -> String {
        format!("d{dir:06}")
    }

    pub(crate) fn file_name(file: u64) -> String {
        format!("f{file:06}")
    }

    fn what(&self, ino: u64) -> What {
        match ino - ROOT {
            0 => What::Root,
            n if n <= self.dirs => What::Dir(n - 1),
            n => What::File(n - 1 - self.dirs),
        }
    }

    fn ino(&self, what: What) -> u64 {
        ROOT + match what {
            What::Root => 0,
            What::Dir(dir) => 1 + dir,
            What::File(file) => 1 + self.dirs + file,
        }
    }

    fn number(name: Name<'_>, prefix: &str, below: u64) -> Option<u64> {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        let number = text.strip_prefix(prefix)?.parse().ok()?;
        (number < below).then_some(number)
    }

    fn child(&self, dir: u64, name: Name<'_>) -> Option<What> {
        match self.what(dir) {
            What::Root => Numbers::number(name, "d", self.dirs).map(What::Dir),
            What::Dir(dir) => {
                let file = Numbers::number(name, "f", self.files)?;
                Some(What::File(dir * self.files + file))
            }
            What::File(_) => None,
        }
    }

    fn iget(&self, sb: &SuperBlock, what: What) -> Result<InodeRef> {
        let ino = self.ino(what);
        Ok(match sb.iget(InodeKey::new(ino))? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => {
                let (kind, mode) = match what {
                    What::File(_) => (FileType::Regular, 0o644),
                    What::Root | What::Dir(_) => (FileType::Directory, 0o755),
                };
                let size = Numbers::file_name(0).len() as u64;
                let attr = Attr::new(ino, kind, mode);
                new.init(InodeFill::new(attr.size(size)))
            }
        })
    }
}

impl FileSystem for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        self.iget(sb, What::Root)
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let found = self.child(dir.attr().ino, name);
        found.map(|what| self.iget(sb, what)).transpose()
    }

    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }

    fn read_dir(&self, _: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        let dir = self.what(dir.attr().ino);
        let entries = match dir {
            What::Root => self.dirs,
            What::Dir(_) => self.files,
            What::File(_) => return Err(Error::NotADirectory),
        };
        for n in from..entries {
            let (name, what, kind) = match dir {
                What::Dir(dir) => {
                    let file = What::File(dir * self.files + n);
                    (Numbers::file_name(n), file, FileType::Regular)
                }
                _ => (Numbers::dir_name(n), What::Dir(n), FileType::Directory),
            };
            let entry = RawEntry {
                name: name.as_bytes(),
                ino: self.ino(what),
                kind: Some(kind),
                next: n + 1,
            };
            if emit.entry(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, _: &Caller<'_>, at: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        let name = match self.what(at.inode.attr().ino) {
            What::File(n) => Numbers::file_name(n % self.files),
            What::Root | What::Dir(_) => String::new(),
        };
        Ok(Box::new(NameFile(name)))
    }
}

struct NameFile(String);

impl FileHandle for NameFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let offset = usize::try_from(offset).map_err(|_| Error::Invalid)?;
        let rest = self.0.as_bytes().get(offset..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}
