//! A tree that is served for a test.

use std::net::SocketAddr;
use std::path::Path;

use rcuwalk::{FileSystem, HandleKey, Vfs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;
use rcuwalk_nfs::{Listener, Options, Server, Squash};

use crate::client::Client;

pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) vfs: Vfs,
}

/// Root is root, and any port is good: tests are not about that.
pub(crate) fn options() -> Options {
    Options::new(HandleKey::new([7; 16]))
        .squash(Squash::None)
        .insecure(true)
        .threads(8)
}

pub(crate) fn serve(fs: impl FileSystem, options: Options) -> Served {
    let vfs = Vfs::new(fs).unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = Server::start(listener, vfs.clone(), options).unwrap();
    Served { server, vfs }
}

pub(crate) fn memfs() -> Served {
    serve(MemFs::new(), options())
}

pub(crate) fn host(dir: &Path) -> Served {
    serve(HostFs::new(dir).unwrap(), options())
}

impl Served {
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address())
    }
}
