//! Asks an NFS server, ours or another, and says how fast it answers.
//!
//! `cargo run --release -p rcuwalk-nfs --example ask -- NFS_PORT MOUNT_PORT PATH [FILES] [CLIENTS]`
//!
//! Each client makes a directory with FILES files by CREATE, looks all of them up, lists them by
//! READDIRPLUS, and removes them.

use std::env;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::{MountClient, Nfs3Client};
use nfs3_types::mount::dirpath;
use nfs3_types::nfs3::*;
use nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_types::xdr_codec::Opaque;

struct Blocking(TcpStream);

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

/// A socket that blocks is never pending.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a blocking socket"),
    }
}

/// Root may use ports below 1024, which servers ask for.
fn connect(port: u16) -> Blocking {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let server = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    for own in (300..1024).rev() {
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let own = std::net::SocketAddr::from(([127, 0, 0, 1], own));
        if bind(&stream, &own).is_ok() && connect(&stream, &server).is_ok() {
            let stream = TcpStream::from(stream);
            stream.set_nodelay(true).expect("a socket");
            return Blocking(stream);
        }
    }
    panic!("no server at port {port}, or no free port below 1024");
}

fn root() -> opaque_auth<'static> {
    opaque_auth::auth_unix(&auth_unix::default())
}

fn at<'n>(dir: &nfs_fh3, name: &'n str) -> diropargs3<'n> {
    diropargs3 {
        dir: dir.clone(),
        name: name.as_bytes().into(),
    }
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let [nfs, mount, path, rest @ ..] = &args[..] else {
        panic!("NFS_PORT MOUNT_PORT PATH [FILES] [CLIENTS]");
    };
    let number = |at: usize, or: usize| rest.get(at).map_or(or, |n| n.parse().expect("a number"));
    let (files, clients) = (number(0, 2000), number(1, 1));
    let (nfs, mount): (u16, u16) = (nfs.parse().expect("a port"), mount.parse().expect("a port"));
    let mut mounted = MountClient::new_with_auth(connect(mount), root(), opaque_auth::default());
    let path = dirpath(Opaque::borrowed(path.as_bytes()));
    let top = now(mounted.mnt(path)).expect("a mount").fhandle.0.to_vec();
    let top = nfs_fh3 {
        data: Opaque::owned(top),
    };
    let steps = ["create", "lookup", "lookup again", "readdirplus", "remove"];
    let barrier = Barrier::new(clients);
    let times: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let (top, barrier) = (&top, &barrier);
        let work = move |number| work(nfs, top, &format!("ask-{number}"), files, barrier);
        let started: Vec<_> = (0..clients).map(|n| scope.spawn(move || work(n))).collect();
        let done = started
            .into_iter()
            .map(|client| client.join().expect("a client"));
        done.collect()
    });
    for (at, step) in steps.iter().enumerate() {
        let begin = times.iter().map(|client| client[at].0).min();
        let end = times.iter().map(|client| client[at].1).max();
        let time = end
            .zip(begin)
            .map_or(0.0, |(end, begin)| (end - begin).as_secs_f64());
        let each = time / (files * clients) as f64;
        println!(
            "{step:<14}{:>10.1} us each{:>12.0} per second",
            each * 1e6,
            1.0 / each
        );
    }
}

/// The step's begin and end, for each.
fn work(
    port: u16,
    top: &nfs_fh3,
    name: &str,
    files: usize,
    barrier: &Barrier,
) -> Vec<(Instant, Instant)> {
    let mut times = Vec::new();
    let mut step = |work: &mut dyn FnMut()| {
        barrier.wait();
        let begin = Instant::now();
        work();
        times.push((begin, Instant::now()));
    };
    let mut nfs = Nfs3Client::new_with_auth(connect(port), root(), opaque_auth::default());
    let attributes = sattr3::default();
    let made = now(nfs.mkdir(&MKDIR3args {
        where_: at(top, name),
        attributes,
    }))
    .expect("a reply");
    let dir = made.unwrap().obj.unwrap();
    let names: Vec<String> = (0..files).map(|n| format!("file-{n}")).collect();
    step(&mut || {
        for name in &names {
            let how = createhow3::UNCHECKED(sattr3 {
                mode: Nfs3Option::Some(0o644),
                ..sattr3::default()
            });
            let where_ = at(&dir, name);
            now(nfs.create(&CREATE3args { where_, how }))
                .expect("a reply")
                .unwrap();
        }
    });
    for _ in 0..2 {
        step(&mut || {
            for name in &names {
                let what = at(&dir, name);
                now(nfs.lookup(&LOOKUP3args { what }))
                    .expect("a reply")
                    .unwrap();
            }
        });
    }
    step(&mut || assert_eq!(list(&mut nfs, &dir), files));
    step(&mut || {
        for name in &names {
            let object = at(&dir, name);
            now(nfs.remove(&REMOVE3args { object }))
                .expect("a reply")
                .unwrap();
        }
    });
    let object = at(top, name);
    now(nfs.rmdir(&RMDIR3args { object })).expect("a reply");
    times
}

/// The number of files that have a handle in a listing.
fn list(nfs: &mut Nfs3Client<Blocking>, dir: &nfs_fh3) -> usize {
    let (mut listed, mut cookie, mut cookieverf) = (0, 0, cookieverf3::default());
    loop {
        let args = READDIRPLUS3args {
            dir: dir.clone(),
            cookie,
            cookieverf,
            dircount: 8192,
            maxcount: 65536,
        };
        let read = now(nfs.readdirplus(&args)).expect("a reply").unwrap();
        cookieverf = read.cookieverf;
        let entries = read.reply.entries.into_inner();
        cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        let is_file = |entry: &&entryplus3<'_>| entry.name.as_ref().starts_with(b"file-");
        let files = entries.iter().filter(is_file);
        listed += files.filter(|entry| entry.name_handle.is_some()).count();
        if read.reply.eof {
            return listed;
        }
    }
}
