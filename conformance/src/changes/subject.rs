//! rcuwalk's side: each operation as calls of a `Vfs`, with what lies between them and a
//! system call: descriptors, and numbers that have a sign.

mod over;

pub use over::{OverHostFs, OverMemFs};

use rcuwalk::{
    Access, Allocate, Attr, Caps, Context, Credentials, Error, File, FileType, InodeFlags,
    LookupFlags, OpenFlags, Result, SetAttr, SetTime, Timestamp, Vfs, VfsPath, XattrFlags,
};
use rustix::fs::OFlags;

use crate::changes::answer::{Entry, Moment, Outcome, Stat};
use crate::changes::op::{At, Bytes, Node, Op, SLOTS, When};
use crate::changes::side::Side;
use crate::changes::users::User;

/// A tree of rcuwalk's, or a part of one, with what a process has besides.
pub struct Ours<'v> {
    vfs: &'v Vfs,
    /// As root.
    ctx: Context,
    walk: LookupFlags,
    umask: u16,
    /// What everybody may besides in link(2).
    link_caps: Caps,
    slots: [Option<Slot>; SLOTS + 1],
}

struct Slot {
    file: File,
    /// An O_PATH descriptor is no file to most system calls.
    is_path: bool,
}

impl Side for Ours<'_> {
    fn run(&mut self, user: User, op: &Op) -> Outcome {
        self.call(user, op)
            .unwrap_or_else(|err| Outcome::Errno(err.errno()))
    }
}

impl<'v> Ours<'v> {
    /// With `root` as the root that paths start at.
    pub fn new(vfs: &'v Vfs, root: VfsPath, walk: LookupFlags) -> Ours<'v> {
        let umask = 0o022;
        let ctx = vfs.context(Credentials::root()).with_umask(umask);
        Ours {
            vfs,
            ctx: ctx.with_root(root.clone()).with_cwd(root),
            walk,
            umask,
            link_caps: Caps::empty(),
            slots: Default::default(),
        }
    }

    /// As the kernel's side does it, where the host sees the callers
    /// (`known::caps_for_link`).
    pub(super) fn without_protected_hardlinks(self) -> Ours<'v> {
        Ours {
            link_caps: Caps::FOWNER,
            ..self
        }
    }

    fn call(&mut self, user: User, op: &Op) -> Result<Outcome> {
        let vfs = self.vfs;
        let ctx = &self.ctx.clone().with_credentials(credentials(user));
        match op {
            Op::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                let how = open_flags(*flags).mode(mode.0).resolve(self.walk);
                let file = vfs.open(ctx, path, how)?;
                let is_path = flags.contains(OFlags::PATH);
                self.slots[*slot] = Some(Slot { file, is_path });
                Ok(Outcome::Done)
            }
            Op::Close { slot } => {
                let closed = self.slots[*slot].take();
                closed.map(|_| Outcome::Done).ok_or(Error::BadDescriptor)
            }
            Op::Read { slot, at, len } => {
                let (file, at) = self.file_and(*slot, *at)?;
                let mut data = vec![0; *len];
                let read = file.read_at(&mut data, at)?;
                data.truncate(read);
                Ok(Outcome::Data(Bytes(data)))
            }
            Op::Write {
                slot,
                at,
                len,
                fill,
            } => {
                let (file, at) = self.file_and(*slot, *at)?;
                let written = file.write_at(&vec![*fill; *len], at)?;
                Ok(Outcome::Number(written as i64))
            }
            Op::SetLen { slot, len } => {
                let (file, len) = self.file_and(*slot, *len)?;
                done(file.set_len(len))
            }
            Op::Truncate { path, len } => done(vfs.truncate(ctx, path, unsigned(*len)?)),
            Op::Allocate {
                slot,
                mode,
                at,
                len,
            } => {
                let file = self.file(*slot)?;
                let mode = Allocate::from_bits_retain(mode.bits());
                done(file.allocate(mode, unsigned(*at)?, unsigned(*len)?))
            }
            Op::SeekData { slot, at } => {
                let found = self.file(*slot)?.seek_data(unsigned(*at)?)?;
                Ok(Outcome::Number(found as i64))
            }
            Op::SeekHole { slot, at } => {
                let found = self.file(*slot)?.seek_hole(unsigned(*at)?)?;
                Ok(Outcome::Number(found as i64))
            }
            Op::Sync { slot, data_only } => done(self.file(*slot)?.sync(*data_only)),
            Op::Create { path, mode } => made(vfs, (ctx, path), vfs.create(ctx, path, mode.0)),
            Op::Mkdir { path, mode } => made(vfs, (ctx, path), vfs.mkdir(ctx, path, mode.0)),
            Op::Mknod { path, kind, mode } => {
                let (kind, rdev) = node(*kind);
                let node = vfs.mknod(ctx, path, kind, mode.0, rdev);
                made(vfs, (ctx, path), node)
            }
            Op::Symlink { target, path } => made(vfs, (ctx, path), vfs.symlink(ctx, target, path)),
            Op::Link { old, new } => {
                let mut user = credentials(user);
                user.caps |= self.link_caps;
                let ctx = &ctx.clone().with_credentials(user);
                let (from, path, flags) = self.at(ctx, old)?;
                let linked = vfs.linkat(ctx, (from.cwd(), path), (ctx.cwd(), new), flags);
                made(vfs, (ctx, new), linked)
            }
            Op::Unlink { path } => done(vfs.unlink(ctx, path)),
            Op::Rmdir { path } => done(vfs.rmdir(ctx, path)),
            Op::Rename { old, new, flags } => {
                let flags = rcuwalk::RenameFlags::from_bits_retain(flags.bits());
                done(vfs.renameat2(ctx, (ctx.cwd(), old), (ctx.cwd(), new), flags))
            }
            Op::Chmod { at, mode } => self.set(ctx, at, |change| change.mode = Some(mode.0)),
            Op::Chown { at, uid, gid } => {
                let (ctx, path, flags) = self.at(ctx, at)?;
                done(vfs.chown(&ctx, path, *uid, *gid, flags))
            }
            Op::Utimes { at, atime, mtime } => {
                let (ctx, path, flags) = self.at(ctx, at)?;
                done(vfs.utimens(&ctx, path, set_time(*atime), set_time(*mtime), flags))
            }
            Op::Access { at, mode, .. } => {
                let (ctx, path, flags) = self.at(ctx, at)?;
                let mode = Access::from_bits_truncate((*mode).into());
                done(vfs.access(&ctx, path, mode, flags))
            }
            Op::Stat { at } => {
                let (ctx, path, flags) = self.at(ctx, at)?;
                Ok(Outcome::Stat(stat(&vfs.stat(&ctx, path, flags)?)))
            }
            Op::ReadLink { at } => {
                let (ctx, path, _) = self.at(ctx, at)?;
                Ok(Outcome::Data(Bytes(vfs.read_link(&ctx, path)?.into_vec())))
            }
            Op::List { at } => self.list(ctx, at),
            Op::GetXattr { at, name } => {
                if let Some(file) = self.place_only(at) {
                    return Ok(Outcome::Data(Bytes(file.get_xattr(name)?.into_vec())));
                }
                let (ctx, path, flags) = self.at(ctx, at)?;
                let value = vfs.get_xattr(&ctx, path, name, flags)?;
                Ok(Outcome::Data(Bytes(value.into_vec())))
            }
            Op::SetXattr {
                at,
                name,
                value,
                flags: how,
            } => {
                let how = XattrFlags::from_bits_retain(*how);
                if let Some(file) = self.place_only(at) {
                    return done(file.set_xattr(name, &value.0, how));
                }
                let (ctx, path, flags) = self.at(ctx, at)?;
                done(vfs.set_xattr(&ctx, path, name, &value.0, how, flags))
            }
            Op::ListXattr { at } => {
                let names = match self.place_only(at) {
                    Some(file) => file.list_xattrs()?,
                    None => {
                        let (ctx, path, flags) = self.at(ctx, at)?;
                        vfs.list_xattrs(&ctx, path, flags)?
                    }
                };
                let mut names: Vec<String> = names.iter().map(|name| text(name)).collect();
                names.sort_unstable();
                Ok(Outcome::Names(names))
            }
            Op::RemoveXattr { at, name } => {
                if let Some(file) = self.place_only(at) {
                    return done(file.remove_xattr(name));
                }
                let (ctx, path, flags) = self.at(ctx, at)?;
                done(vfs.remove_xattr(&ctx, path, name, flags))
            }
            Op::StatFs { at } => {
                let fs = match at {
                    At::Path(path) => vfs.statfs(ctx, path)?,
                    At::NoFollow(path) => {
                        let how = OpenFlags::PATH | OpenFlags::NOFOLLOW;
                        vfs.open(ctx, path, how)?.statfs()?
                    }
                    At::Handle(slot) => {
                        let open = self.slots[*slot].as_ref().ok_or(Error::BadDescriptor)?;
                        open.file.statfs()?
                    }
                };
                Ok(Outcome::Number(fs.name_max.into()))
            }
            Op::Umask { mask } => {
                let before = std::mem::replace(&mut self.umask, mask.0);
                self.ctx = self.ctx.clone().with_umask(mask.0);
                Ok(Outcome::Number(before.into()))
            }
            Op::Chdir { at } => {
                let (from, path, flags) = self.at(ctx, at)?;
                let flags = flags | LookupFlags::DIRECTORY;
                let dir = vfs.lookup(&from, path, flags)?;
                let there = from.with_cwd(dir.clone());
                vfs.access(&there, "", Access::EXEC, LookupFlags::EMPTY_PATH)?;
                self.ctx = self.ctx.clone().with_cwd(dir);
                Ok(Outcome::Done)
            }
            Op::SetFlags {
                at,
                immutable,
                append,
            } => self.set(ctx, at, |change| {
                let mut flags = InodeFlags::empty();
                flags.set(InodeFlags::IMMUTABLE, *immutable);
                flags.set(InodeFlags::APPEND, *append);
                change.flags = Some(flags);
            }),
            // Made of the others.
            Op::Tree => Ok(Outcome::Done),
        }
    }

    /// The open file in `slot`.
    fn file(&self, slot: usize) -> Result<&File> {
        match &self.slots[slot] {
            Some(slot) if !slot.is_path => Ok(&slot.file),
            _ => Err(Error::BadDescriptor),
        }
    }

    /// The same, for a call that looks at the number before it looks at the file.
    fn file_and(&self, slot: usize, number: i64) -> Result<(&File, u64)> {
        if self.slots[slot].is_none() {
            return Err(Error::BadDescriptor);
        }
        let number = unsigned(number)?;
        Ok((self.file(slot)?, number))
    }

    /// Where to start, which path to go, and how.
    fn at<'a>(&self, ctx: &Context, at: &'a At) -> Result<(Context, &'a str, LookupFlags)> {
        let (ctx, walk) = (ctx.clone(), self.walk);
        Ok(match at {
            At::Path(path) => (ctx, path, LookupFlags::FOLLOW | walk),
            At::NoFollow(path) => (ctx, path, walk),
            At::Handle(slot) => {
                let open = self.slots[*slot].as_ref().ok_or(Error::BadDescriptor)?;
                let place = open.file.path().clone();
                (ctx.with_cwd(place), "", LookupFlags::EMPTY_PATH | walk)
            }
        })
    }

    /// An O_PATH handle, which is not enough for extended attributes. Other handles are asked
    /// by path, so that the caller's credentials count.
    fn place_only(&self, at: &At) -> Option<&File> {
        match at {
            At::Handle(slot) => self.slots[*slot]
                .as_ref()
                .filter(|slot| slot.is_path)
                .map(|slot| &slot.file),
            _ => None,
        }
    }

    fn set(&self, ctx: &Context, at: &At, what: impl FnOnce(&mut SetAttr)) -> Result<Outcome> {
        let (ctx, path, flags) = self.at(ctx, at)?;
        let mut change = SetAttr::default();
        what(&mut change);
        done(self.vfs.setattr(&ctx, path, &change, flags))
    }

    fn list(&self, ctx: &Context, at: &At) -> Result<Outcome> {
        let opened;
        let file = match at {
            At::Handle(slot) => self.file(*slot)?,
            At::Path(path) | At::NoFollow(path) => {
                let mut flags = OpenFlags::READ | OpenFlags::DIRECTORY;
                flags.set(OpenFlags::NOFOLLOW, matches!(at, At::NoFollow(_)));
                opened = self.vfs.open(ctx, path, flags.mode(0).resolve(self.walk))?;
                &opened
            }
        };
        let mut entries = Vec::new();
        for entry in file.read_dir()? {
            let entry = entry?;
            entries.push(Entry {
                name: text(&entry.name),
                kind: entry.kind.map_or(0, FileType::mode_bits),
                ino: entry.ino,
            });
        }
        entries.sort_unstable();
        Ok(Outcome::Entries(entries))
    }
}

fn done(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Done)
}

/// The place that was made is the one that the path leads to.
fn made(vfs: &Vfs, (ctx, path): (&Context, &str), made: Result<VfsPath>) -> Result<Outcome> {
    let made = made?;
    let found = vfs.lookup(ctx, path, LookupFlags::empty())?;
    assert!(made.is_same_place(&found), "{path} leads elsewhere");
    Ok(Outcome::Done)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Negative offsets and sizes never reach a file system.
fn unsigned(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| Error::Invalid)
}

fn credentials(user: User) -> Credentials {
    let mut credentials = Credentials::user(user.uid(), user.gid());
    credentials.groups = user.groups().into();
    if user == User::Root {
        credentials.caps = Caps::all();
    }
    credentials
}

fn open_flags(flags: OFlags) -> OpenFlags {
    let mut open = match flags & OFlags::RWMODE {
        OFlags::WRONLY => OpenFlags::WRITE,
        OFlags::RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    for (flag, ours) in [
        (OFlags::APPEND, OpenFlags::APPEND),
        (OFlags::CREATE, OpenFlags::CREATE),
        (OFlags::EXCL, OpenFlags::EXCL),
        (OFlags::TRUNC, OpenFlags::TRUNC),
        (OFlags::NOFOLLOW, OpenFlags::NOFOLLOW),
        // A part of O_TMPFILE.
        (OFlags::DIRECTORY, OpenFlags::DIRECTORY),
        (OFlags::PATH, OpenFlags::PATH),
        (OFlags::TMPFILE, OpenFlags::TMPFILE),
        (OFlags::NOATIME, OpenFlags::NOATIME),
    ] {
        open.set(ours, flags.contains(flag));
    }
    open
}

fn node(kind: Node) -> (FileType, u64) {
    match kind {
        Node::Regular => (FileType::Regular, 0),
        Node::Fifo => (FileType::Fifo, 0),
        Node::Socket => (FileType::Socket, 0),
        Node::Directory => (FileType::Directory, 0),
        Node::Char(major, minor) => (FileType::CharDevice, libc::makedev(major, minor)),
        Node::Block(major, minor) => (FileType::BlockDevice, libc::makedev(major, minor)),
    }
}

fn set_time(when: When) -> Option<SetTime> {
    match when {
        When::Omit => None,
        When::Now => Some(SetTime::Now),
        When::At(sec, nsec) => Some(SetTime::To(Timestamp {
            sec,
            nsec: nsec as u32,
        })),
    }
}

fn stat(attr: &Attr) -> Stat {
    let moment = |time: Timestamp| -> Moment { (time.sec, time.nsec) };
    Stat {
        ino: attr.ino,
        st_mode: attr.st_mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        times: [attr.atime, attr.mtime, attr.ctime].map(moment),
        btime: (attr.btime != Timestamp::default()).then(|| moment(attr.btime)),
        immutable: attr.flags.contains(InodeFlags::IMMUTABLE),
        append: attr.flags.contains(InodeFlags::APPEND),
    }
}
