//! File handles: a file found again when neither a cache nor the caller has a path.
//!
//! A server (FUSE, NFS) gives its clients an identity for each file, and a client may come back with
//! it long after the file has left all caches. There are two:
//!
//! | the client keeps        | made by                  | opened by                 | so it works for |
//! |-------------------------|--------------------------|---------------------------|-----------------|
//! | a [`Handle`]            | [`Vfs::encode_handle`]   | [`Vfs::open_by_handle`]   | every back end  |
//! | a number and generation | [`VfsPath::generation`]  | [`Vfs::by_number`]        | those that find files by number |
//!
//! HANDLE-1: either leads to the file that it was made for, or to nothing ([`Error::Stale`]); never
//! to another file, and never to one outside of the root. What a walk found is asked for its own
//! handle, and the two are compared: so a wrong hint costs time and nothing else.
//!
//! If the back end knows a path, the VFS walks that like any other, which stays below the root
//! (WALK-3). So a directory always has a name and a directory above it. Another file may have no
//! name here: the back end says then that it is below the root, no walk leads to it or from it, and
//! a later lookup of one of its names finds the same inode.
//!
//! `handle/key.rs` signs handles for clients that must not make up their own.

mod key;

pub use key::HandleKey;

use crate::attr::FileType;
use crate::context::{Context, VfsPath};
use crate::dentry::{Dentry, Flags, Validity};
use crate::error::{Error, Result};
use crate::filesystem::{At, ByNumber};
use crate::name::PATH_MAX;
use crate::permission::Credentials;
use crate::target::Target;
use crate::vfs::Vfs;
use crate::walk::LookupFlags;

/// The identity of a file of one file system, which outlives caches, renames and restarts: as long
/// as the file exists. See [`Vfs::encode_handle`].
///
/// Its bytes ([`to_bytes`](Self::to_bytes)) can be kept anywhere. Whoever can change them can name
/// other files of the same file system below the root, so [sign](HandleKey) them before they leave
/// the process.
#[doc(alias("struct file_handle", "struct fid", "nfs_fh3"))]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// What the back end made ([`FileSystem::encode_handle`](crate::FileSystem::encode_handle)).
    id: Box<[u8]>,
    /// Where the file was, from the root; empty if no name was known. Only a hint.
    path: Box<[u8]>,
}

/// The first byte of a handle.
const VERSION: u8 = 1;

impl Handle {
    /// The most bytes that a back end may use to identify a file.
    #[doc(alias = "MAX_HANDLE_SZ")]
    pub const MOST_ID_BYTES: usize = 160;

    /// The path that the file had when the handle was made, from the root; `None` if it had none.
    pub fn path(&self) -> Option<&[u8]> {
        (!self.path.is_empty()).then_some(&*self.path)
    }

    /// The same without the path: of a length that depends on the back end alone (24 to 40 bytes, as
    /// a rule). Such a handle opens only where the back end finds files without a path.
    pub fn without_path(self) -> Handle {
        Handle {
            path: Box::default(),
            ..self
        }
    }

    /// The same file, looked for at `path` from the root if the back end does not find it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a path that is not absolute, or is too long.
    pub fn with_path(self, path: &[u8]) -> Result<Handle> {
        is_absolute(path).then_some(()).ok_or(Error::Invalid)?;
        let path = path.into();
        Ok(Handle { path, ..self })
    }

    /// As bytes, which [`from_bytes`](Self::from_bytes) reads on any machine.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 + self.id.len() + self.path.len());
        bytes.extend([VERSION, self.id.len() as u8]);
        bytes.extend(&self.id);
        bytes.extend(&self.path);
        bytes
    }

    /// The handle that `bytes` were made from.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Handle> {
        let [VERSION, len, rest @ ..] = bytes else {
            return Err(Error::Invalid);
        };
        let (id, path) = rest
            .split_at_checked(usize::from(*len))
            .ok_or(Error::Invalid)?;
        let is_path = path.is_empty() || is_absolute(path);
        if id.is_empty() || id.len() > Self::MOST_ID_BYTES || !is_path {
            return Err(Error::Invalid);
        }
        Ok(Handle {
            id: id.into(),
            path: path.into(),
        })
    }
}

fn is_absolute(path: &[u8]) -> bool {
    path.starts_with(b"/") && path.len() < PATH_MAX
}

impl Vfs {
    /// Makes the handle of a file, by which [`open_by_handle`](Self::open_by_handle) finds it again:
    /// after it left the caches, was moved, or after a restart. May ask the back end.
    ///
    /// ```
    /// use rcuwalk::{Credentials, Handle, LookupFlags, Vfs};
    /// use rcuwalk_memfs::{MemFs, file};
    ///
    /// # fn main() -> rcuwalk::Result<()> {
    /// let fs = MemFs::new();
    /// fs.add(fs.root(), b"old", file(0o644))?;
    /// let vfs = Vfs::new(fs)?;
    /// let root = vfs.context(Credentials::root());
    /// let place = vfs.lookup(&root, "/old", LookupFlags::default())?;
    /// let bytes = vfs.encode_handle(&place)?.to_bytes();
    ///
    /// vfs.rename(&root, "/old", "/new")?;
    /// let again = vfs.open_by_handle(&Handle::from_bytes(&bytes)?)?;
    /// assert_eq!(again.attr().ino, place.attr().ino);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::CrossDevice`] if the file is not in the file system at the root, [`Error::NotSupported`]
    /// if the back end has no handle for it, and what the back end reports.
    #[doc(alias("name_to_handle_at(2)", "exportfs_encode_fh"))]
    pub fn encode_handle(&self, place: &VfsPath) -> Result<Handle> {
        let root = self.root();
        if place.mnt().sb.id() != root.mnt().sb.id() {
            return Err(Error::CrossDevice);
        }
        let has_name = !place.dentry().flags().contains(Flags::UNHASHED);
        let path = self.ns().caches.dcache.path_between(&root, place);
        let path = path.filter(|path| has_name && path.len() < PATH_MAX);
        Ok(Handle {
            id: place.handle_id()?,
            path: path.unwrap_or_default(),
        })
    }

    /// Finds the file that a handle was made for, without search permission for the directories
    /// above it: the back end does, or else a walk along the path that the handle has. A file that
    /// lost the name that it was found by is found as long as the back end finds it.
    ///
    /// # Errors
    /// [`Error::Stale`] if the file no longer exists below the root, or can no longer be found.
    #[doc(alias("open_by_handle_at(2)", "exportfs_decode_fh", "reconnect_path"))]
    pub fn open_by_handle(&self, handle: &Handle) -> Result<VfsPath> {
        let root = self.root();
        let sb = &root.mnt().sb;
        // Before the back end is asked (FRESH-1).
        let validity = sb.validity(None);
        let walk = |path: &[u8]| {
            let place = self.walk_from(&root, path)?;
            // A mount on the way leads to a file of another file system.
            let is_it = place.mnt().sb.id() == sb.id() && place.handle_id()? == handle.id;
            if is_it { Ok(place) } else { Err(Error::Stale) }
        };
        let found = sb.caches.retry_held(|| sb.fs().open_handle(sb, &handle.id));
        let found = found.and_then(|found| match found {
            ByNumber::Path(path) => walk(&path),
            found => self.place_of(&root, found, validity),
        });
        match (found, handle.path()) {
            (Err(Error::Stale | Error::NotSupported), Some(path)) => walk(path),
            (Err(Error::NotSupported), None) => Err(Error::Stale),
            (found, _) => found,
        }
    }

    /// Finds the file that the file system at the root shows as `number`
    /// ([`VfsPath::number_of`]), without search permission for the directories above it.
    /// Compare its [`generation`](VfsPath::generation) with the one that belongs to the number.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such file, or the back end cannot find files by number.
    #[doc(alias("open_by_handle_at(2)", "exportfs_decode_fh", "fh_to_dentry"))]
    pub fn by_number(&self, number: u64) -> Result<VfsPath> {
        let root = self.root();
        let sb = &root.mnt().sb;
        // Before the back end is asked (FRESH-1).
        let validity = sb.validity(None);
        let found = sb.caches.retry_held(|| sb.fs().by_number(sb, number))?;
        let found = self.place_of(&root, found, validity)?;
        // Another file may have taken the path meanwhile.
        let attr = found.attr();
        match attr.dev == u64::from(sb.id()) && found.number_of(attr.ino) == number {
            true => Ok(found),
            false => Err(Error::Stale),
        }
    }

    /// The place of a file that the back end found without a walk.
    fn place_of(&self, root: &VfsPath, found: ByNumber, validity: Validity) -> Result<VfsPath> {
        match found {
            ByNumber::Path(path) => self.walk_from(root, &path),
            ByNumber::Inode(inode) if inode.kind() == FileType::Directory => Err(Error::Stale),
            ByNumber::Inode(inode) => {
                let sb = &root.mnt().sb;
                let dentry = Dentry::found_without_name(sb.id(), inode.clone(), validity);
                Ok(VfsPath::new(root.mnt().clone(), dentry, inode))
            }
        }
    }

    /// Walks a path that is only a hint.
    fn walk_from(&self, root: &VfsPath, path: &[u8]) -> Result<VfsPath> {
        let ctx = Context::within(root.clone(), Credentials::root());
        // The root's own path is empty.
        let path = if path.is_empty() { b"/" } else { path };
        match self.lookup(&ctx, path, LookupFlags::REF_WALK) {
            Err(
                Error::NotFound
                | Error::NotADirectory
                | Error::NameTooLong
                | Error::TooManySymlinks
                | Error::Invalid,
            ) => Err(Error::Stale),
            found => found,
        }
    }
}

impl VfsPath {
    /// The part of a handle that tells this file from all others of its file system.
    fn handle_id(&self) -> Result<Box<[u8]>> {
        let daemon = Credentials::root();
        let target = Target::new(self, &daemon);
        let encode = |at: &At<'_>| target.sb().fs().encode_handle(&target.caller(), at);
        let id = (target.sb().caches).retry_held(|| target.with_at(encode))?;
        match (1..=Handle::MOST_ID_BYTES).contains(&id.len()) {
            true => Ok(id),
            false => Err(Error::NotSupported),
        }
    }

    /// Asks the back end for the generation of this file: of the files that have the same number
    /// one after the other, each has another one. `None` if the back end has none.
    ///
    /// # Errors
    /// Those of the back end.
    #[doc(alias = "i_generation")]
    pub fn generation(&self) -> Result<Option<u32>> {
        let daemon = Credentials::root();
        let target = Target::new(self, &daemon);
        let caches = &target.sb().caches;
        caches.retry_held(|| target.with_at(|at| target.sb().fs().generation(&target.caller(), at)))
    }

    /// The [number](Self::number_of) of the directory that this place is in, and its name there, of
    /// one moment. `None` for the root of a mount, and for a place that has lost its name.
    #[doc(alias = "dget_parent")]
    pub fn number_above(&self) -> Option<(u64, Box<[u8]>)> {
        if !self.is_named() {
            return None;
        }
        let (dir, name) = self.dentry().place()?;
        let dir = dir.inode_ref()?;
        let number = self.mnt().sb.fs().number(dir.inode_key(), dir.attr().ino);
        Some((number, name))
    }
}
