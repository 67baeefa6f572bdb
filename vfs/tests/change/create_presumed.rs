//! Opens an existing file with O_CREAT over a back end that refuses to create it before it
//! checks whether it exists: an NFS client sends an exclusive create without a lookup, and a
//! server with a read-only export, or one that squashes root, returns another error than "it
//! exists".

use std::time::Duration;

use rcuwalk::{
    At, Caller, Credentials, Error, FileHandle, FileType, Freshness, Inode, InodeRef, Name,
    NewFile, OpenFlags, Result, SuperBlock, Vfs,
};
use rcuwalk_testkit::{Wrapped, Wrapper, iget};

struct Nfs(Freshness);

struct Open;
impl FileHandle for Open {
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        Ok(0)
    }
}

impl Wrapper for Nfs {
    fn freshness(&self) -> Freshness {
        self.0
    }
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        iget(sb, 1, FileType::Directory)
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, _: Name<'_>) -> Result<Option<InodeRef>> {
        iget(sb, 2, FileType::Regular).map(Some)
    }
    fn create_open(
        &self,
        _: &Caller<'_>,
        _: &Inode,
        _: Name<'_>,
        _: &NewFile<'_>,
        _: OpenFlags,
    ) -> Result<(InodeRef, Box<dyn FileHandle>)> {
        Err(Error::ReadOnly)
    }
    fn open(&self, _: &Caller<'_>, _: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        Ok(Box::new(Open))
    }
}

/// EDGE-1: that it is there comes first, whatever else is wrong.
#[test]
fn what_is_there_is_opened_though_it_could_not_be_made() {
    let ttl = Freshness::Ttl(Duration::from_secs(1));
    for freshness in [Freshness::Always, ttl, Freshness::EachUse] {
        let vfs = Vfs::new(Wrapped::new(Nfs(freshness))).unwrap();
        let root = vfs.context(Credentials::root());
        let flags = OpenFlags::READ | OpenFlags::CREATE;
        let opened = vfs.open(&root, "f", flags.mode(0o644));
        assert!(opened.is_ok(), "EDGE-1: {freshness:?}: {:?}", opened.err());
        let exclusive = (flags | OpenFlags::EXCL).mode(0o644);
        let refused = vfs.open(&root, "g", exclusive).err();
        assert!(
            matches!(refused, Some(Error::Exists)),
            "EDGE-1: {freshness:?}: {refused:?}"
        );
    }
}
