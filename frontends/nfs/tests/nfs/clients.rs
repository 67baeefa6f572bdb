//! Many clients, and calls that come again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use nfs3_types::nfs3::*;
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Hooked, StopOnDrop, wait_until};

use crate::client::mode;
use crate::served::{memfs, options, serve};

#[test]
fn many_clients_work_side_by_side() {
    let served = memfs();
    const CLIENTS: usize = 64;
    let work = |number: usize| {
        let mut client = served.client();
        let root = client.root.clone();
        let name = format!("client-{number}");
        let dir = client.mkdir(&root, &name, mode(0o755)).unwrap();
        for n in 0..10 {
            let file = client.create(&dir, &format!("{n}")).unwrap();
            let data = vec![number as u8; 1000 * (n + 1)];
            client.write(&file, 0, &data, stable_how::UNSTABLE).unwrap();
            client.commit(&file).unwrap();
            assert_eq!(client.lookup(&dir, &format!("{n}")), Ok(file.clone()));
            assert_eq!(client.read(&file, 0, 1 << 20).unwrap(), (data, true));
            // All of them want this name.
            let how = createhow3::UNCHECKED(mode(0o644));
            client.create_how(&root, "shared", how).unwrap();
        }
        client
            .rename((&dir, "0"), (&root, &format!("moved-{number}")))
            .unwrap();
        assert_eq!(client.list(&dir, 4096).len(), 9 + 2);
    };
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || work(number));
        }
    });
    let mut client = served.client();
    let root = client.root.clone();
    assert_eq!(client.list(&root, 8192).len(), 2 * CLIENTS + 1 + 2);
    let now = served.server.observer().statistics().unwrap();
    let create = now
        .operations
        .iter()
        .find(|op| op.name == "create")
        .unwrap();
    assert_eq!(
        (create.count(), create.errors),
        (2 * 10 * CLIENTS as u64, 0)
    );
    assert_eq!(now.repeated, 0);
}

/// The back end is asked nothing about a name, its file and their handle that are known.
#[test]
fn hot_lookups_ask_the_back_end_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let fs = Hooked::new(MemFs::new(), move |_| {
        count.fetch_add(1, Relaxed);
        Ok(())
    });
    let served = serve(fs, options());
    let mut client = served.client();
    let root = client.root.clone();
    let dir = client.mkdir(&root, "dir", mode(0o755)).unwrap();
    let file = client.create(&dir, "file").unwrap();
    let ask = |client: &mut crate::client::Client| {
        assert_eq!(client.lookup(&dir, "file"), Ok(file.clone()));
        client.lookup(&dir, "none").unwrap_err();
        client.getattr(&file).unwrap();
        client.access(&file, 0x3f).unwrap();
    };
    ask(&mut client);
    let before = asked.load(Relaxed);
    assert!(before > 0);
    for _ in 0..100 {
        ask(&mut client);
    }
    let mut other = served.client();
    ask(&mut other);
    assert_eq!(asked.load(Relaxed), before);
}

/// A lookup that waits for the back end keeps no other one of its connection.
#[test]
fn calls_of_one_connection_are_answered_in_parallel() {
    let (waits, goes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let fs = {
        let (waits, goes) = (waits.clone(), goes.clone());
        Hooked::new(MemFs::new(), move |call| {
            if call.method == "lookup" && call.name() == "slow" {
                waits.store(true, Relaxed);
                wait_until("the test lets it go on", || goes.load(Relaxed));
            }
            Ok(())
        })
    };
    let served = serve(fs, options());
    let client = served.client();
    let root = client.root.data.to_vec();
    let mut socket = TcpStream::connect(served.address()).unwrap();
    let release = StopOnDrop(&goes);
    socket.write_all(&raw_lookup(1, &root, "slow")).unwrap();
    wait_until("the back end is asked", || waits.load(Relaxed));
    socket.write_all(&raw_lookup(2, &root, "fast")).unwrap();
    assert_eq!(reply_xid(&mut socket), 2);
    drop(release);
    assert_eq!(reply_xid(&mut socket), 1);
}

/// NFS-4: clients that make every thread wait for the back end do not keep others from being answered.
#[test]
fn a_back_end_that_hangs_does_not_hold_up_the_rest() {
    let (waiting, goes) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let fs = {
        let (waiting, goes) = (waiting.clone(), goes.clone());
        Hooked::new(MemFs::new(), move |call| {
            if call.method == "lookup" && call.name().starts_with("slow") {
                waiting.fetch_add(1, Relaxed);
                wait_until("the test lets it go on", || goes.load(Relaxed));
            }
            Ok(())
        })
    };
    let served = serve(fs, options().threads(4));
    let mut client = served.client();
    let root = client.root.clone();
    let release = StopOnDrop(&goes);
    let connect = || TcpStream::connect(served.address()).unwrap();
    let mut slow: Vec<_> = (0..3).map(|_| connect()).collect();
    for n in 0..12 {
        let call = raw_lookup(n, &root.data, &format!("slow-{n}"));
        slow[n as usize % 3].write_all(&call).unwrap();
    }
    wait_until("all threads wait", || waiting.load(Relaxed) >= 4);
    client.getattr(&root).unwrap();
    assert!(waiting.load(Relaxed) <= 6, "NFS-4: two of each connection");
    drop(release);
    for socket in &mut slow {
        (0..4).for_each(|_| _ = reply(socket));
    }
}

/// NFS-3: a call that comes again by another connection is not executed again.
#[test]
fn a_call_that_comes_again_has_its_first_reply() {
    let served = memfs();
    let mut client = served.client();
    let root = client.root.clone();
    client.create(&root, "file").unwrap();
    let remove = raw_name(77, 12, &root.data, "file");
    let send = || {
        let mut socket = TcpStream::connect(served.address()).unwrap();
        socket.write_all(&remove).unwrap();
        let reply = reply(&mut socket);
        // Behind the header of the reply: the status.
        (reply[..4].to_vec(), reply[24..28].to_vec())
    };
    let first = send();
    assert_eq!(first.1, [0; 4]);
    client.create(&root, "file").unwrap();
    assert_eq!(send(), first, "NFS-3");
    assert!(client.lookup(&root, "file").is_ok(), "NFS-3");
    assert_eq!(served.server.observer().statistics().unwrap().repeated, 1);
}

/// NFS-1: among changes of one directory, no two begin with the same attributes, and each begins
/// with those that another one has left.
#[test]
fn changes_of_one_directory_form_a_chain() {
    let served = memfs();
    let dir = {
        let mut client = served.client();
        let root = client.root.clone();
        client.mkdir(&root, "dir", mode(0o755)).unwrap()
    };
    let changes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..8 {
            let (served, dir, changes) = (&served, &dir, &changes);
            scope.spawn(move || {
                let mut client = served.client();
                for n in 0..40 {
                    let how = createhow3::GUARDED(mode(0o644));
                    let made = client
                        .create_how(dir, &format!("{number}-{n}"), how)
                        .unwrap();
                    let (before, after) =
                        (made.dir_wcc.before.unwrap(), made.dir_wcc.after.unwrap());
                    let state = |mtime: nfstime3, ctime: nfstime3, size| {
                        (mtime.seconds, mtime.nseconds, ctime.nseconds, size)
                    };
                    let before = state(before.mtime, before.ctime, before.size);
                    let after = state(after.mtime, after.ctime, after.size);
                    changes.lock().unwrap().push((before, after));
                }
            });
        }
    });
    let mut changes = changes.into_inner().unwrap();
    changes.sort();
    for (one, next) in changes.iter().zip(&changes[1..]) {
        assert_eq!(one.1, next.0, "NFS-1");
    }
}

/// A record with a call of `procedure`, whose arguments are a directory and a name.
pub(crate) fn raw_name(xid: u32, procedure: u32, dir: &[u8], name: &str) -> Vec<u8> {
    let mut args = Vec::new();
    for bytes in [dir, name.as_bytes()] {
        args.extend((bytes.len() as u32).to_be_bytes());
        args.extend(bytes);
        args.resize(args.len().next_multiple_of(4), 0);
    }
    raw_call(xid, 100_003, procedure, &args)
}

fn raw_lookup(xid: u32, dir: &[u8], name: &str) -> Vec<u8> {
    raw_name(xid, 3, dir, name)
}

/// A record with a call of root's.
pub(crate) fn raw_call(xid: u32, program: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    let header = [xid, 0, 2, program, 3, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0];
    let len = 4 * header.len() + args.len();
    let mut record = (1 << 31 | len as u32).to_be_bytes().to_vec();
    record.extend(header.iter().flat_map(|number: &u32| number.to_be_bytes()));
    record.extend(args);
    record
}

/// The next record, without its mark.
pub(crate) fn reply(socket: &mut TcpStream) -> Vec<u8> {
    let mut mark = [0; 4];
    socket.read_exact(&mut mark).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    socket.read_exact(&mut record).unwrap();
    record
}

fn reply_xid(socket: &mut TcpStream) -> u32 {
    u32::from_be_bytes(*reply(socket).first_chunk().unwrap())
}
