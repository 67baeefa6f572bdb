//! A client: the crate nfs3_client, without a runtime, and calls that return the status.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::{MountClient, Nfs3Client};
use nfs3_types::mount::dirpath;
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_types::xdr_codec::Opaque;

pub(crate) type Fh = nfs_fh3;
pub(crate) type Result<T, E = nfsstat3> = std::result::Result<T, E>;

/// A name, and the cookie after it.
pub(crate) type Entry = (String, u64);

/// A socket that blocks: its futures are ready at once.
pub(crate) struct Blocking(TcpStream);

impl AsyncRead for Blocking {
    async fn async_read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf)? {
            0 if !buf.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            len => Ok(len),
        }
    }
}

impl AsyncWrite for Blocking {
    async fn async_write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write(buf)
    }
}

pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a blocking socket"),
    }
}

pub(crate) fn user(uid: u32, gid: u32, gids: &[u32]) -> opaque_auth<'static> {
    opaque_auth::auth_unix(&auth_unix {
        uid,
        gid,
        gids: gids.to_vec(),
        ..auth_unix::default()
    })
}

pub(crate) struct Client {
    pub(crate) nfs: Nfs3Client<Blocking>,
    pub(crate) mount: MountClient<Blocking>,
    pub(crate) root: Fh,
}

fn status<T, E>(done: Nfs3Result<T, E>) -> Result<T> {
    match done {
        Nfs3Result::Ok(done) => Ok(done),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub(crate) fn fh(bytes: &[u8]) -> Fh {
    nfs_fh3 {
        data: Opaque::owned(bytes.to_vec()),
    }
}

fn at<'n>(dir: &Fh, name: &'n str) -> diropargs3<'n> {
    diropargs3 {
        dir: dir.clone(),
        name: name.as_bytes().into(),
    }
}

/// A mode, and nothing else.
pub(crate) fn mode(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..sattr3::default()
    }
}

macro_rules! ask {
    ($client:ident.$call:ident($($args:tt)*)) => {
        status(now($client.nfs.$call(&$($args)*)).unwrap())
    };
}

impl Client {
    /// Connects as root, and mounts the export.
    pub(crate) fn new(address: SocketAddr) -> Client {
        Client::of(address, user(0, 0, &[]))
    }

    pub(crate) fn of(address: SocketAddr, credential: opaque_auth<'static>) -> Client {
        let socket = TcpStream::connect(address).unwrap();
        let io = || Blocking(socket.try_clone().unwrap());
        let none = opaque_auth::default;
        let mut client = Client {
            nfs: Nfs3Client::new_with_auth(io(), credential.clone(), none()),
            mount: MountClient::new_with_auth(io(), credential, none()),
            root: Fh::default(),
        };
        client.root = client.mnt("/").unwrap();
        client
    }

    pub(crate) fn mnt(&mut self, path: &str) -> Option<Fh> {
        let path = dirpath(Opaque::borrowed(path.as_bytes()));
        let mounted = now(self.mount.mnt(path)).ok()?;
        Some(fh(&mounted.fhandle.0))
    }

    pub(crate) fn getattr(&mut self, object: &Fh) -> Result<fattr3> {
        let object = object.clone();
        Ok(ask!(self.getattr(GETATTR3args { object }))?.obj_attributes)
    }

    pub(crate) fn setattr(&mut self, object: &Fh, new: sattr3) -> Result<wcc_data> {
        self.setattr_guarded(object, new, Nfs3Option::None)
    }

    pub(crate) fn setattr_guarded(
        &mut self,
        object: &Fh,
        new_attributes: sattr3,
        guard: sattrguard3,
    ) -> Result<wcc_data> {
        let object = object.clone();
        let args = SETATTR3args {
            object,
            new_attributes,
            guard,
        };
        Ok(ask!(self.setattr(args))?.obj_wcc)
    }

    pub(crate) fn resize(&mut self, object: &Fh, size: u64) -> Result<wcc_data> {
        let size = Nfs3Option::Some(size);
        self.setattr(
            object,
            sattr3 {
                size,
                ..sattr3::default()
            },
        )
    }

    pub(crate) fn lookup(&mut self, dir: &Fh, name: &str) -> Result<Fh> {
        let what = at(dir, name);
        Ok(ask!(self.lookup(LOOKUP3args { what }))?.object)
    }

    pub(crate) fn access(&mut self, object: &Fh, access: u32) -> Result<u32> {
        let object = object.clone();
        Ok(ask!(self.access(ACCESS3args { object, access }))?.access)
    }

    pub(crate) fn readlink(&mut self, symlink: &Fh) -> Result<Vec<u8>> {
        let symlink = symlink.clone();
        Ok(ask!(self.readlink(READLINK3args { symlink }))?
            .data
            .as_ref()
            .to_vec())
    }

    pub(crate) fn read(&mut self, file: &Fh, offset: u64, count: u32) -> Result<(Vec<u8>, bool)> {
        let file = file.clone();
        let read = ask!(self.read(READ3args {
            file,
            offset,
            count
        }))?;
        assert_eq!(read.count as usize, read.data.len());
        Ok((read.data.to_vec(), read.eof))
    }

    pub(crate) fn write(
        &mut self,
        file: &Fh,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Result<WRITE3resok> {
        let (file, count) = (file.clone(), data.len() as u32);
        let data = Opaque::borrowed(data);
        let args = WRITE3args {
            file,
            offset,
            count,
            stable,
            data,
        };
        ask!(self.write(args))
    }

    pub(crate) fn commit(&mut self, file: &Fh) -> Result<writeverf3> {
        let file = file.clone();
        let args = COMMIT3args {
            file,
            offset: 0,
            count: 0,
        };
        Ok(ask!(self.commit(args))?.verf)
    }

    pub(crate) fn create_how(
        &mut self,
        dir: &Fh,
        name: &str,
        how: createhow3,
    ) -> Result<CREATE3resok> {
        let where_ = at(dir, name);
        ask!(self.create(CREATE3args { where_, how }))
    }

    pub(crate) fn create(&mut self, dir: &Fh, name: &str) -> Result<Fh> {
        let how = createhow3::GUARDED(mode(0o644));
        Ok(self.create_how(dir, name, how)?.obj.unwrap())
    }

    pub(crate) fn mkdir(&mut self, dir: &Fh, name: &str, attributes: sattr3) -> Result<Fh> {
        let where_ = at(dir, name);
        Ok(ask!(self.mkdir(MKDIR3args { where_, attributes }))?
            .obj
            .unwrap())
    }

    pub(crate) fn symlink(&mut self, dir: &Fh, name: &str, target: &str) -> Result<Fh> {
        let symlink = symlinkdata3 {
            symlink_attributes: sattr3::default(),
            symlink_data: target.as_bytes().into(),
        };
        let where_ = at(dir, name);
        Ok(ask!(self.symlink(SYMLINK3args { where_, symlink }))?
            .obj
            .unwrap())
    }

    pub(crate) fn mknod(&mut self, dir: &Fh, name: &str, what: mknoddata3) -> Result<Fh> {
        let where_ = at(dir, name);
        Ok(ask!(self.mknod(MKNOD3args { where_, what }))?.obj.unwrap())
    }

    pub(crate) fn remove(&mut self, dir: &Fh, name: &str) -> Result<wcc_data> {
        let object = at(dir, name);
        Ok(ask!(self.remove(REMOVE3args { object }))?.dir_wcc)
    }

    pub(crate) fn rmdir(&mut self, dir: &Fh, name: &str) -> Result<wcc_data> {
        let object = at(dir, name);
        Ok(ask!(self.rmdir(RMDIR3args { object }))?.dir_wcc)
    }

    pub(crate) fn rename(&mut self, from: (&Fh, &str), to: (&Fh, &str)) -> Result<()> {
        let (from, to) = (at(from.0, from.1), at(to.0, to.1));
        ask!(self.rename(RENAME3args { from, to })).map(drop)
    }

    pub(crate) fn link(&mut self, file: &Fh, dir: &Fh, name: &str) -> Result<()> {
        let (file, link) = (file.clone(), at(dir, name));
        ask!(self.link(LINK3args { file, link })).map(drop)
    }

    /// One reply of READDIR: names with cookies, and whether the directory ends.
    pub(crate) fn readdir(
        &mut self,
        dir: &Fh,
        (cookie, cookieverf): (u64, cookieverf3),
        count: u32,
    ) -> Result<(Vec<Entry>, cookieverf3, bool)> {
        let dir = dir.clone();
        let args = READDIR3args {
            dir,
            cookie,
            cookieverf,
            count,
        };
        let read = ask!(self.readdir(args))?;
        let entries = read.reply.entries.into_inner().into_iter();
        let entries = entries.map(|entry| (text(entry.name.as_ref()), entry.cookie));
        Ok((entries.collect(), read.cookieverf, read.reply.eof))
    }

    /// One reply of READDIRPLUS.
    pub(crate) fn readdirplus(
        &mut self,
        dir: &Fh,
        cookie: u64,
        count: u32,
    ) -> Result<(Vec<entryplus3<'static>>, bool)> {
        let dir = dir.clone();
        let args = READDIRPLUS3args {
            dir,
            cookie,
            cookieverf: cookieverf3::default(),
            dircount: count,
            maxcount: count,
        };
        let read = ask!(self.readdirplus(args))?;
        Ok((read.reply.entries.into_inner(), read.reply.eof))
    }

    /// All names of a directory, in order.
    pub(crate) fn list(&mut self, dir: &Fh, count: u32) -> Vec<String> {
        let (mut names, mut from) = (Vec::new(), (0, cookieverf3::default()));
        loop {
            let (entries, verifier, ended) = self.readdir(dir, from, count).unwrap();
            let last = entries.last().map_or(from.0, |(_, cookie)| *cookie);
            names.extend(entries.into_iter().map(|(name, _)| name));
            if ended {
                return names;
            }
            from = (last, verifier);
        }
    }

    pub(crate) fn fsinfo(&mut self) -> FSINFO3resok {
        let fsroot = self.root.clone();
        ask!(self.fsinfo(FSINFO3args { fsroot })).unwrap()
    }

    pub(crate) fn fsstat(&mut self) -> FSSTAT3resok {
        let fsroot = self.root.clone();
        ask!(self.fsstat(FSSTAT3args { fsroot })).unwrap()
    }

    pub(crate) fn pathconf(&mut self) -> PATHCONF3resok {
        let object = self.root.clone();
        ask!(self.pathconf(PATHCONF3args { object })).unwrap()
    }

    pub(crate) fn null(&mut self) {
        now(self.nfs.null()).unwrap();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
