//! [`Wrapper`]: a back end around another one. A test replaces the methods it is about; all
//! others, also those that [`FileSystem`] gets later, go to the back end within.
//!
//! ```
//! use rcuwalk::{Credentials, FileSystem, Freshness, LookupFlags, Vfs};
//! use rcuwalk_memfs::MemFs;
//! use rcuwalk_testkit::{Wrapped, Wrapper};
//!
//! /// Everything that is found in it may have changed since.
//! struct Changeable(MemFs);
//!
//! impl Wrapper for Changeable {
//!     fn inner(&self) -> Option<&dyn FileSystem> {
//!         Some(&self.0)
//!     }
//!     fn freshness(&self) -> Freshness {
//!         Freshness::EachUse
//!     }
//! }
//!
//! let vfs = Vfs::new(Wrapped::new(Changeable(MemFs::new())))?;
//! let ctx = vfs.context(Credentials::root());
//! vfs.stat(&ctx, "/", LookupFlags::empty())?;
//! # Ok::<(), rcuwalk::Error>(())
//! ```
//!
//! A back end that computes its tree has nothing within: without [`Wrapper::inner`] it needs
//! only [`root`](Wrapper::root) and what the test asks for.
//!
//! Around another one, a wrapper that replaces `create` or `open` sees no
//! [`create_open`](Wrapper::create_open), and one that replaces `lookup` no
//! [`lookup_around`](Wrapper::lookup_around), unless it replaces these, too.
//!
//! [`Wrapper::around`] surrounds every call that can fail, those of open files included.

use std::any::Any;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rcuwalk::{
    Allocate, At, ByNumber, Caller, Emit, Error, FileHandle, FileSystem, Freshness, Inode,
    InodeKey, InodeRef, Name, NewFile, OpenFlags, Rename, Result, SeekTo, SetAttr, StatFs,
    SuperBlock, XattrFlags,
};

/// A call to a back end or to one of its open files.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Call<'a> {
    /// The method of [`FileSystem`] or [`FileHandle`].
    pub method: &'static str,
    /// The directory or file that the call is about, if it is given an inode.
    pub inode: Option<&'a Inode>,
    /// The name in that directory, if it is given one.
    pub name: Option<Name<'a>>,
}

impl Call<'_> {
    /// The name in the call, as text; empty if there is none.
    pub fn name(&self) -> &str {
        let bytes = self.name.map_or(&b""[..], |name| name.as_bytes());
        str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Within wrappers that compute their trees: it has nothing in it, not even a root.
struct Empty;

impl FileSystem for Empty {
    fn name(&self) -> &str {
        "test"
    }
    fn root(&self, _: &SuperBlock) -> Result<InodeRef> {
        Err(Error::NotSupported)
    }
    fn lookup(&self, _: &SuperBlock, _: &Inode, _: Name<'_>) -> Result<Option<InodeRef>> {
        Ok(None)
    }
    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }
    fn read_dir(&self, _: &SuperBlock, _: &Inode, _: u64, _: &mut dyn Emit) -> Result<()> {
        Ok(())
    }
    fn open(&self, _: &Caller<'_>, _: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        Err(Error::NotSupported)
    }
}

/// Declares [`Wrapper`], and forwards each method twice: from [`Wrapped`] to the wrapper, by
/// [`Wrapper::around`], and from there to the back end within.
macro_rules! forward {
    (
        // Methods that cannot fail.
        plain { $(fn $plain:ident(&self $(, $parg:ident: $pty:ty)*) $(-> $pret:ty)?;)* }
        // Methods that can, the inode and name in their calls, and a default of their own
        // where no back end is within.
        asked { $(fn $asked:ident(&self $(, $aarg:ident: $aty:ty)*) -> $aret:ty, $inode:expr, $name:expr $(, or |$this:ident| $own:expr)?;)* }
        // Of these, the ones that are told where a file is, and maybe by which open file.
        at { $(fn $placed:ident(&self, $at:ident $(, $larg:ident: $lty:ty)*) -> $lret:ty;)* }
    ) => {
        /// A back end around another one: see the [module](self).
        pub trait Wrapper: Send + Sync + 'static {
            /// The back end within, if there is one.
            fn inner(&self) -> Option<&dyn FileSystem> {
                None
            }

            /// Surrounds every call that can fail: `ask` makes it.
            ///
            /// # Errors
            /// Those of `ask`, or others in its place.
            fn around<T>(&self, call: &Call<'_>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
                let _ = call;
                ask()
            }

            $(
                #[doc = concat!("By default [`FileSystem::", stringify!($plain), "`] of the back end within.")]
                fn $plain(&self $(, $parg: $pty)*) $(-> $pret)? {
                    self.inner().unwrap_or(&Empty).$plain($($parg),*)
                }
            )*
            $(
                #[doc = concat!("By default [`FileSystem::", stringify!($asked), "`] of the back end within.")]
                fn $asked(&self $(, $aarg: $aty)*) -> $aret {
                    $(
                        let $this = self;
                        if $this.inner().is_none() {
                            return $own;
                        }
                    )?
                    self.inner().unwrap_or(&Empty).$asked($($aarg),*)
                }
            )*
            $(
                #[doc = concat!("By default [`FileSystem::", stringify!($placed), "`] of the back end within.")]
                fn $placed(&self, by: &Caller<'_>, $at: &At<'_> $(, $larg: $lty)*) -> $lret {
                    self.inner().unwrap_or(&Empty).$placed(by, $at $(, $larg)*)
                }
            )*
        }

        impl<W: Wrapper> FileSystem for Wrapped<W> {
            $(
                fn $plain(&self $(, $parg: $pty)*) $(-> $pret)? {
                    self.0.$plain($($parg),*)
                }
            )*
            $(
                fn $asked(&self $(, $aarg: $aty)*) -> $aret {
                    let call = Call { method: stringify!($asked), inode: $inode, name: $name };
                    let answer = self.0.around(&call, || self.0.$asked($($aarg),*))?;
                    Ok(answer.wrapped(&self.0))
                }
            )*
            $(
                fn $placed(&self, by: &Caller<'_>, $at: &At<'_> $(, $larg: $lty)*) -> $lret {
                    let name = $at.parent.map(|(_, name)| name);
                    let call = Call { method: stringify!($placed), inode: Some($at.inode), name };
                    let at = self.within($at);
                    let answer = self.0.around(&call, || self.0.$placed(by, &at $(, $larg)*))?;
                    Ok(answer.wrapped(&self.0))
                }
            )*
        }
    };
}

forward! {
    plain {
        fn name(&self) -> &str;
        fn number(&self, beside: InodeKey, ino: u64) -> u64;
        fn shown(&self, device: u64, is_shown: bool);
        fn looks_around(&self) -> bool;
        fn announces(&self, inode: &Inode) -> bool;
        fn caches_listings(&self) -> bool;
        fn listing_version(&self, sb: &SuperBlock, dir: &Inode) -> Option<u64>;
        fn lists_all_names(&self, sb: &SuperBlock, dir: &Inode) -> bool;
        fn read_only(&self) -> bool;
        fn freshness(&self) -> Freshness;
        fn touch_atime(&self, inode: &Inode);
        fn posix_acl(&self) -> bool;
    }
    asked {
        fn root(&self, sb: &SuperBlock) -> Result<InodeRef>, None, None;
        fn mounted(&self, sb: &Arc<SuperBlock>) -> Result<()>, None, None;
        fn by_number(&self, sb: &SuperBlock, number: u64) -> Result<ByNumber>, None, None;
        fn open_handle(&self, sb: &SuperBlock, id: &[u8]) -> Result<ByNumber>, None, None;
        fn refresh_by_number(
            &self,
            sb: &SuperBlock,
            inode: &Inode
        ) -> Result<()>, Some(inode), None;
        fn lookup(
            &self,
            sb: &SuperBlock,
            dir: &Inode,
            name: Name<'_>
        ) -> Result<Option<InodeRef>>, Some(dir), Some(name);
        fn lookup_around(
            &self,
            sb: &SuperBlock,
            dir: &Inode,
            name: Name<'_>,
            around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>
        ) -> Result<Option<InodeRef>>, Some(dir), Some(name), or |this| {
            let _ = around;
            this.lookup(sb, dir, name)
        };
        fn read_link(&self, sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>>, Some(inode), None;
        fn read_dir(
            &self,
            sb: &SuperBlock,
            dir: &Inode,
            from: u64,
            emit: &mut dyn Emit
        ) -> Result<()>, Some(dir), None;
        fn revalidate(
            &self,
            sb: &SuperBlock,
            dir: &Inode,
            name: Name<'_>,
            inode: Option<&Inode>
        ) -> Result<bool>, Some(dir), Some(name);
        fn refresh(&self, sb: &SuperBlock, inode: &Inode) -> Result<()>, Some(inode), None;
        fn create(
            &self,
            by: &Caller<'_>,
            dir: &Inode,
            name: Name<'_>,
            new: &NewFile<'_>
        ) -> Result<InodeRef>, Some(dir), Some(name);
        fn create_open(
            &self,
            by: &Caller<'_>,
            dir: &Inode,
            name: Name<'_>,
            new: &NewFile<'_>,
            flags: OpenFlags
        ) -> Result<(InodeRef, Box<dyn FileHandle>)>, Some(dir), Some(name), or |this| {
            let inode = this.create(by, dir, name, new)?;
            let at = At::new(&inode).below(dir, name);
            let open = this.open(by, &at, flags)?;
            Ok((inode, open))
        };
        fn tmpfile(
            &self,
            by: &Caller<'_>,
            dir: &Inode,
            new: &NewFile<'_>
        ) -> Result<InodeRef>, Some(dir), None;
        fn unlink(
            &self,
            by: &Caller<'_>,
            dir: &Inode,
            name: Name<'_>,
            inode: &Inode
        ) -> Result<()>, Some(inode), Some(name);
        fn rmdir(
            &self,
            by: &Caller<'_>,
            dir: &Inode,
            name: Name<'_>,
            inode: &Inode
        ) -> Result<()>, Some(inode), Some(name);
        fn rename(
            &self,
            by: &Caller<'_>,
            how: &Rename<'_>
        ) -> Result<()>, Some(how.from.0), Some(how.from.1);
        fn statfs(&self, sb: &SuperBlock) -> Result<StatFs>, None, None;
    }
    at {
        fn generation(&self, at) -> Result<Option<u32>>;
        fn encode_handle(&self, at) -> Result<Box<[u8]>>;
        fn open(&self, at, flags: OpenFlags) -> Result<Box<dyn FileHandle>>;
        fn open_place(&self, at) -> Result<Option<Box<dyn FileHandle>>>;
        fn link(&self, file, dir: &Inode, name: Name<'_>) -> Result<()>;
        fn setattr(&self, at, change: &SetAttr) -> Result<()>;
        fn get_xattr(&self, at, name: &[u8]) -> Result<Box<[u8]>>;
        fn default_acl(&self, at) -> Result<Option<Box<[u8]>>>;
        fn list_xattrs(&self, at) -> Result<Vec<Box<[u8]>>>;
        fn set_xattr(&self, at, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()>;
        fn remove_xattr(&self, at, name: &[u8]) -> Result<()>;
        fn sync_dir(&self, at) -> Result<()>;
    }
}

/// The mountable back end that a [`Wrapper`] becomes.
pub struct Wrapped<W>(Arc<W>);

impl<W: Wrapper> Wrapped<W> {
    /// To be mounted.
    pub fn new(wrapper: W) -> Wrapped<W> {
        Wrapped(Arc::new(wrapper))
    }

    /// To be mounted, while the test keeps the wrapper as well.
    pub fn shared(wrapper: &Arc<W>) -> Wrapped<W> {
        Wrapped(wrapper.clone())
    }

    /// The back end within knows its own open files only.
    fn within<'a>(&self, at: &At<'a>) -> At<'a> {
        let mut within = *at;
        within.open = at.open.map(|open| WrappedFile::<W>::within(open));
        within
    }
}

/// An open file of the back end within.
struct WrappedFile<W> {
    file: Box<dyn FileHandle>,
    wrapper: Arc<W>,
}

impl<W: Wrapper> WrappedFile<W> {
    fn within(open: &dyn FileHandle) -> &dyn FileHandle {
        let any: &dyn Any = open;
        match any.downcast_ref::<WrappedFile<W>>() {
            Some(wrapped) => &*wrapped.file,
            None => open,
        }
    }

    fn ask<T>(
        &self,
        method: &'static str,
        inode: Option<&Inode>,
        ask: impl FnOnce(&dyn FileHandle) -> Result<T>,
    ) -> Result<T> {
        let name = None;
        let call = Call {
            method,
            inode,
            name,
        };
        self.wrapper.around(&call, || ask(&*self.file))
    }
}

impl<W: Wrapper> FileHandle for WrappedFile<W> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.ask("read_at", None, |file| file.read_at(buf, offset))
    }

    fn write_at(&self, inode: &Inode, buf: &[u8], offset: u64) -> Result<usize> {
        self.ask("write_at", Some(inode), |file| {
            file.write_at(inode, buf, offset)
        })
    }

    fn copy_range(
        &self,
        inode: &Inode,
        offset: u64,
        from: &dyn FileHandle,
        from_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let from = WrappedFile::<W>::within(from);
        self.ask("copy_range", Some(inode), |file| {
            file.copy_range(inode, offset, from, from_offset, len)
        })
    }

    fn allocate(&self, inode: &Inode, how: Allocate, offset: u64, len: u64) -> Result<()> {
        self.ask("allocate", Some(inode), |file| {
            file.allocate(inode, how, offset, len)
        })
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        self.ask("seek", None, |file| file.seek(offset, to))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.ask("sync", None, |file| file.sync(data_only))
    }

    fn backing(&self) -> Option<BorrowedFd<'_>> {
        self.file.backing()
    }

    fn holds_descriptor(&self) -> bool {
        self.file.holds_descriptor()
    }

    fn refresh(&self, inode: &Inode) -> Result<()> {
        self.ask("refresh", Some(inode), |file| file.refresh(inode))
    }
}

/// The answer to a call; open files in it get wrapped.
trait Answer: Sized {
    fn wrapped<W: Wrapper>(self, _: &Arc<W>) -> Self {
        self
    }
}

impl Answer for () {}
impl Answer for bool {}
impl Answer for InodeRef {}
impl Answer for Option<InodeRef> {}
impl Answer for ByNumber {}
impl Answer for Option<u32> {}
impl Answer for Box<[u8]> {}
impl Answer for Option<Box<[u8]>> {}
impl Answer for Vec<Box<[u8]>> {}
impl Answer for StatFs {}

impl Answer for Box<dyn FileHandle> {
    fn wrapped<W: Wrapper>(self, wrapper: &Arc<W>) -> Self {
        Box::new(WrappedFile {
            file: self,
            wrapper: wrapper.clone(),
        })
    }
}

impl Answer for Option<Box<dyn FileHandle>> {
    fn wrapped<W: Wrapper>(self, wrapper: &Arc<W>) -> Self {
        self.map(|file| file.wrapped(wrapper))
    }
}

impl Answer for (InodeRef, Box<dyn FileHandle>) {
    fn wrapped<W: Wrapper>(self, wrapper: &Arc<W>) -> Self {
        (self.0, self.1.wrapped(wrapper))
    }
}
