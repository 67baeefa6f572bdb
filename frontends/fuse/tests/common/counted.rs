//! A back end in memory that takes notes of what it is asked, for names that are valid for long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcuwalk::{
    At, Caller, Emit, FileHandle, FileSystem, Freshness, Inode, InodeRef, Name, NewFile, OpenFlags,
    Result, SuperBlock,
};
use rcuwalk_memfs::MemFs;

/// What the back end was asked, in the order of the questions.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<&'static str>>>);

impl Notes {
    fn add(&self, question: &'static str) {
        self.0.lock().unwrap().push(question);
    }

    /// The questions since the last call.
    pub(crate) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub(crate) struct Counted(MemFs, Notes);

impl Counted {
    pub(crate) fn new(notes: &Notes) -> Counted {
        Counted(MemFs::new(), notes.clone())
    }
}

impl FileSystem for Counted {
    fn name(&self) -> &str {
        "counted"
    }

    fn freshness(&self) -> Freshness {
        Freshness::Ttl(Duration::from_secs(3600))
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        FileSystem::root(&self.0, sb)
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        self.1.add("lookup");
        self.0.lookup(sb, dir, name)
    }

    fn revalidate(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        self.1.add("revalidate");
        self.0.revalidate(sb, dir, name, inode)
    }

    fn refresh(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        self.1.add("refresh");
        self.0.refresh(sb, inode)
    }

    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        self.1.add("create");
        self.0.create(by, dir, name, new)
    }

    fn link(&self, by: &Caller<'_>, file: &At<'_>, dir: &Inode, name: Name<'_>) -> Result<()> {
        self.1.add("link");
        self.0.link(by, file, dir, name)
    }

    fn get_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        self.1.add("get_xattr");
        self.0.get_xattr(by, at, name)
    }

    fn read_link(&self, sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>> {
        self.1.add("read_link");
        self.0.read_link(sb, inode)
    }

    fn read_dir(&self, sb: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        self.1.add("read_dir");
        self.0.read_dir(sb, dir, from, emit)
    }

    fn open(&self, by: &Caller<'_>, at: &At<'_>, flags: OpenFlags) -> Result<Box<dyn FileHandle>> {
        self.1.add("open");
        self.0.open(by, at, flags)
    }
}
