//! Opens an existing file with O_CREAT over a back end that refuses to create it before it
//! checks whether it exists: an NFS client sends an exclusive create without a lookup, and a
//! server with a read-only export, or one that squashes root, returns another error than "it
//! exists".

use std::time::Duration;

use rcuwalk::{
    At, Attr, Caller, Credentials, Emit, Error, FileHandle, FileSystem, FileType, Freshness, Iget,
    Inode, InodeFill, InodeKey, InodeRef, Name, NewFile, OpenFlags, Result, SuperBlock, Vfs,
};

struct Nfs(Freshness);

impl Nfs {
    fn iget(sb: &SuperBlock, ino: u64) -> Result<InodeRef> {
        let attr = match ino {
            1 => Attr::new(ino, FileType::Directory, 0o755),
            _ => Attr::new(ino, FileType::Regular, 0o644),
        };
        Ok(match sb.iget(InodeKey::new(ino))? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => new.init(InodeFill::new(attr)),
        })
    }
}

struct Open;
impl FileHandle for Open {
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        Ok(0)
    }
}

impl FileSystem for Nfs {
    fn name(&self) -> &str {
        "nfs"
    }
    fn freshness(&self) -> Freshness {
        self.0
    }
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        Nfs::iget(sb, 1)
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, _: Name<'_>) -> Result<Option<InodeRef>> {
        Nfs::iget(sb, 2).map(Some)
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
    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }
    fn read_dir(&self, _: &SuperBlock, _: &Inode, _: u64, _: &mut dyn Emit) -> Result<()> {
        Ok(())
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
        let vfs = Vfs::new(Nfs(freshness)).unwrap();
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
