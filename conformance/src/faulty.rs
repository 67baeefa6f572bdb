//! A back end that fails, is slow, or lets others run, at a call of choice.
//!
//! [`FaultyFs`] wraps any back end. Every call that can fail has a number, from 1 on, in
//! the order they come; [`Faults`] says which of them is to go wrong, and how. What the
//! caller gets is the error and nothing else: the back end was not asked, or has done it
//! all the same.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcuwalk::{
    Allocate, At, Caller, Emit, Error, FileHandle, FileSystem, Freshness, Inode, InodeRef, Name,
    NewFile, OpenFlags, Rename, Result, SeekTo, SetAttr, StatFs, SuperBlock, XattrFlags,
};

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this errno.
    Fail(i32),
    /// It does what it is to do, and its answer is lost: the caller gets this errno.
    FailAfter(i32),
    /// The call is delayed by this time.
    Delay(Duration),
    /// Other threads run before it.
    Yield,
}

/// Which calls go wrong. Clones are handles to the same.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    calls: AtomicU64,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    /// The number of a call, and what happens at it.
    one: Option<(u64, Fault)>,
    /// What happens at every call.
    each: Option<Fault>,
    /// The name of the call that the fault has met.
    met: Option<&'static str>,
}

impl Faults {
    /// None so far.
    pub fn new() -> Faults {
        Faults::default()
    }

    /// From now on, counting from 1 again, the call with this number meets `fault`.
    pub fn at_call(&self, number: u64, fault: Fault) {
        self.state.calls.store(0, Relaxed);
        *self.plan() = Plan {
            one: Some((number, fault)),
            ..Plan::default()
        };
    }

    /// From now on each call meets `fault`.
    pub fn at_each_call(&self, fault: Fault) {
        *self.plan() = Plan {
            each: Some(fault),
            ..Plan::default()
        };
    }

    /// Nothing goes wrong any more, and calls are counted from 1 again.
    pub fn none(&self) {
        self.state.calls.store(0, Relaxed);
        *self.plan() = Plan::default();
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.state.calls.load(Relaxed)
    }

    /// Which call the fault has met, if its turn has come.
    pub fn met(&self) -> Option<&'static str> {
        self.plan().met
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.state
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, name: &'static str, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = self.state.calls.fetch_add(1, Relaxed) + 1;
        let fault = {
            let mut plan = self.plan();
            let one = plan.one.filter(|(at, _)| *at == number);
            if one.is_some() {
                plan.met = Some(name);
            }
            one.map(|(_, fault)| fault).or(plan.each)
        };
        match fault {
            None => ask(),
            Some(Fault::Fail(errno)) => Err(error(errno)),
            Some(Fault::FailAfter(errno)) => {
                drop(ask());
                Err(error(errno))
            }
            Some(Fault::Delay(time)) => {
                std::thread::sleep(time);
                ask()
            }
            Some(Fault::Yield) => {
                std::thread::yield_now();
                ask()
            }
        }
    }
}

fn error(errno: i32) -> rcuwalk::Error {
    std::io::Error::from_raw_os_error(errno).into()
}

/// A back end with [`Faults`].
pub struct FaultyFs<F> {
    fs: F,
    faults: Faults,
}

impl<F: FileSystem> FaultyFs<F> {
    /// `fs`, as it is while there are no faults.
    pub fn new(fs: F, faults: &Faults) -> FaultyFs<F> {
        FaultyFs {
            fs,
            faults: faults.clone(),
        }
    }
}

/// The back end knows its own open files only.
fn inner<'a>(at: &At<'a>) -> At<'a> {
    let open = at.open.map(|open| {
        let any: &dyn Any = open;
        match any.downcast_ref::<FaultyFile>() {
            Some(file) => &*file.file,
            None => open,
        }
    });
    At { open, ..*at }
}

impl<F: FileSystem> FileSystem for FaultyFs<F> {
    fn name(&self) -> &str {
        self.fs.name()
    }

    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        self.faults.call("root", || self.fs.root(sb))
    }

    fn lookup(&self, sb: &SuperBlock, dir: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        self.faults.call("lookup", || self.fs.lookup(sb, dir, name))
    }

    fn looks_around(&self) -> bool {
        self.fs.looks_around()
    }

    fn lookup_around(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        around: &mut dyn FnMut(Name<'_>, InodeRef) -> ControlFlow<()>,
    ) -> Result<Option<InodeRef>> {
        self.faults.call("lookup_around", || {
            self.fs.lookup_around(sb, dir, name, around)
        })
    }

    fn read_link(&self, sb: &SuperBlock, inode: &Inode) -> Result<Box<[u8]>> {
        self.faults
            .call("read_link", || self.fs.read_link(sb, inode))
    }

    fn read_dir(&self, sb: &SuperBlock, dir: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        self.faults
            .call("read_dir", || self.fs.read_dir(sb, dir, from, emit))
    }

    fn open(&self, by: &Caller<'_>, at: &At<'_>, flags: OpenFlags) -> Result<Box<dyn FileHandle>> {
        let file = self
            .faults
            .call("open", || self.fs.open(by, &inner(at), flags))?;
        Ok(self.faulty(file))
    }

    fn open_place(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Option<Box<dyn FileHandle>>> {
        let held = self
            .faults
            .call("open_place", || self.fs.open_place(by, &inner(at)))?;
        Ok(held.map(|held| self.faulty(held)))
    }

    fn sync_dir(&self, by: &Caller<'_>, at: &At<'_>) -> Result<()> {
        self.faults
            .call("sync_dir", || self.fs.sync_dir(by, &inner(at)))
    }

    fn freshness(&self) -> Freshness {
        self.fs.freshness()
    }

    fn revalidate(
        &self,
        sb: &SuperBlock,
        dir: &Inode,
        name: Name<'_>,
        inode: Option<&Inode>,
    ) -> Result<bool> {
        self.faults
            .call("revalidate", || self.fs.revalidate(sb, dir, name, inode))
    }

    fn refresh(&self, sb: &SuperBlock, inode: &Inode) -> Result<()> {
        self.faults.call("refresh", || self.fs.refresh(sb, inode))
    }

    fn create(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
    ) -> Result<InodeRef> {
        self.faults
            .call("create", || self.fs.create(by, dir, name, new))
    }

    fn create_open(
        &self,
        by: &Caller<'_>,
        dir: &Inode,
        name: Name<'_>,
        new: &NewFile<'_>,
        flags: OpenFlags,
    ) -> Result<(InodeRef, Box<dyn FileHandle>)> {
        let (inode, file) = self.faults.call("create_open", || {
            self.fs.create_open(by, dir, name, new, flags)
        })?;
        Ok((inode, self.faulty(file)))
    }

    fn tmpfile(&self, by: &Caller<'_>, dir: &Inode, new: &NewFile<'_>) -> Result<InodeRef> {
        self.faults
            .call("tmpfile", || self.fs.tmpfile(by, dir, new))
    }

    fn link(&self, by: &Caller<'_>, file: &At<'_>, dir: &Inode, name: Name<'_>) -> Result<()> {
        self.faults
            .call("link", || self.fs.link(by, &inner(file), dir, name))
    }

    fn unlink(&self, by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        self.faults
            .call("unlink", || self.fs.unlink(by, dir, name, inode))
    }

    fn rmdir(&self, by: &Caller<'_>, dir: &Inode, name: Name<'_>, inode: &Inode) -> Result<()> {
        self.faults
            .call("rmdir", || self.fs.rmdir(by, dir, name, inode))
    }

    fn rename(&self, by: &Caller<'_>, how: &Rename<'_>) -> Result<()> {
        self.faults.call("rename", || self.fs.rename(by, how))
    }

    fn setattr(&self, by: &Caller<'_>, at: &At<'_>, change: &SetAttr) -> Result<()> {
        self.faults
            .call("setattr", || self.fs.setattr(by, &inner(at), change))
    }

    fn touch_atime(&self, inode: &Inode) {
        self.fs.touch_atime(inode);
    }

    fn get_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<Box<[u8]>> {
        self.faults
            .call("get_xattr", || self.fs.get_xattr(by, &inner(at), name))
    }

    fn list_xattrs(&self, by: &Caller<'_>, at: &At<'_>) -> Result<Vec<Box<[u8]>>> {
        self.faults
            .call("list_xattrs", || self.fs.list_xattrs(by, &inner(at)))
    }

    fn set_xattr(
        &self,
        by: &Caller<'_>,
        at: &At<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.faults.call("set_xattr", || {
            self.fs.set_xattr(by, &inner(at), name, value, flags)
        })
    }

    fn remove_xattr(&self, by: &Caller<'_>, at: &At<'_>, name: &[u8]) -> Result<()> {
        self.faults.call("remove_xattr", || {
            self.fs.remove_xattr(by, &inner(at), name)
        })
    }

    fn posix_acl(&self) -> bool {
        self.fs.posix_acl()
    }

    fn statfs(&self, sb: &SuperBlock) -> Result<StatFs> {
        self.faults.call("statfs", || self.fs.statfs(sb))
    }
}

impl<F> FaultyFs<F> {
    fn faulty(&self, file: Box<dyn FileHandle>) -> Box<dyn FileHandle> {
        Box::new(FaultyFile {
            file,
            faults: self.faults.clone(),
        })
    }
}

/// An open file of a back end with faults.
struct FaultyFile {
    file: Box<dyn FileHandle>,
    faults: Faults,
}

impl FileHandle for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.faults
            .call("read_at", || self.file.read_at(buf, offset))
    }

    fn write_at(&self, inode: &Inode, buf: &[u8], offset: u64) -> Result<usize> {
        self.faults
            .call("write_at", || self.file.write_at(inode, buf, offset))
    }

    fn copy_range(
        &self,
        inode: &Inode,
        offset: u64,
        from: &dyn FileHandle,
        from_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let from: &dyn Any = from;
        // The back end beneath knows its own files only.
        let from = match from.downcast_ref::<FaultyFile>() {
            Some(from) => from.file.as_ref(),
            None => return Err(Error::NotSupported),
        };
        self.faults.call("copy_range", || {
            self.file.copy_range(inode, offset, from, from_offset, len)
        })
    }

    fn allocate(&self, inode: &Inode, how: Allocate, offset: u64, len: u64) -> Result<()> {
        self.faults
            .call("allocate", || self.file.allocate(inode, how, offset, len))
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        self.faults.call("seek", || self.file.seek(offset, to))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.faults.call("sync", || self.file.sync(data_only))
    }
}
