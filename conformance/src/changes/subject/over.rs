//! What rcuwalk runs over: memfs, or hostfs in a directory that is emptied each time.

use std::io;
use std::path::Path;

use rcuwalk::{Credentials, FileSystem, LookupFlags, MountFlags, Vfs};
use rcuwalk_hostfs::{Actor, HostFs};
use rcuwalk_memfs::MemFs;
use rustix::fs::Mode;

use super::Ours;
use crate::changes::answer::Outcome;
use crate::changes::differ::Subject;
use crate::changes::host::{self, Clock, Host};
use crate::changes::op::Op;
use crate::changes::side::Side;
use crate::changes::users::User;

/// rcuwalk over memfs.
#[derive(Clone, Copy, Debug)]
pub struct OverMemFs {
    /// [`LookupFlags::REF_WALK`], or nothing.
    pub walk: LookupFlags,
    /// Of its mount.
    pub flags: MountFlags,
}

impl Subject for OverMemFs {
    fn with_side(&self, _: &mut Host, work: &mut dyn FnMut(&mut dyn Side)) -> io::Result<()> {
        let vfs = mounted(MemFs::new(), self.flags)?;
        work(&mut Ours::new(&vfs, vfs.root(), self.walk));
        Ok(())
    }
}

/// rcuwalk over hostfs, in a directory that is emptied each time.
pub struct OverHostFs<'d> {
    /// The directory.
    pub dir: &'d Path,
    /// For a directory on a file system with multigrain timestamps.
    pub clock: &'d Clock,
    /// As whom the host is asked.
    pub actor: Actor,
    /// As above.
    pub walk: LookupFlags,
    /// As above.
    pub flags: MountFlags,
}

impl Subject for OverHostFs<'_> {
    fn is_on_host(&self) -> bool {
        true
    }

    fn with_side(&self, _: &mut Host, work: &mut dyn FnMut(&mut dyn Side)) -> io::Result<()> {
        let dir = self.dir.join("ours");
        rustix::fs::mkdir(&dir, Mode::from_raw_mode(0o755))?;
        {
            let fs = HostFs::new(&dir).map_err(io::Error::other)?;
            let fs = fs.acting_as(self.actor).map_err(io::Error::other)?;
            let vfs = mounted(fs, self.flags)?;
            let ours = Ours::new(&vfs, vfs.root(), self.walk);
            let ours = match self.actor {
                Actor::Caller if !self.flags.contains(MountFlags::PROTECTED_LINKS) => {
                    ours.without_protected_hardlinks()
                }
                Actor::Caller | Actor::Daemon => ours,
            };
            let mut ticking = Ticking {
                ours,
                clock: self.clock,
            };
            work(&mut ticking);
        }
        host::remove_all(&dir)
    }
}

fn mounted(fs: impl FileSystem, flags: MountFlags) -> io::Result<Vfs> {
    let vfs = Vfs::new(fs)?;
    vfs.remount(&vfs.context(Credentials::root()), "/", flags)?;
    Ok(vfs)
}

/// Over a back end that takes its times from the kernel.
struct Ticking<'d, 'v> {
    ours: Ours<'v>,
    clock: &'d Clock,
}

impl Side for Ticking<'_, '_> {
    fn run(&mut self, user: User, op: &Op) -> Outcome {
        self.clock
            .tick()
            .unwrap_or_else(|err| panic!("no clock: {err}"));
        self.ours.run(user, op)
    }
}
