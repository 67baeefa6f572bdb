//! Clients that no honest program would be.

use std::fmt::Debug;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nfs3_types::nfs3::*;
use rcuwalk::{At, Caller, FileHandle, FileSystem, HandleKey, OpenFlags, Vfs};
use rcuwalk_memfs::MemFs;
use rcuwalk_nfs::Options;
use rcuwalk_nfs::rehearse::Rehearsal;
use rcuwalk_testkit::wait::setting;
use rcuwalk_testkit::{Rng, StopOnDrop, Wrapped, Wrapper, lacks_root, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::client::Client;
use crate::clients::{raw_call, raw_name, reply};
use crate::served::{Served, options, serve};

fn with(options: Options) -> Served {
    serve(MemFs::new(), options)
}

/// Records that are right, to be spoiled: each procedure with a file and a directory that exist.
fn good_records(rehearsal: &Rehearsal) -> Vec<Vec<u8>> {
    let strip = |record: Vec<u8>| record[4..].to_vec();
    let mount = strip(raw_call(1, 100_005, 1, &[0, 0, 0, 1, b'/', 0, 0, 0]));
    let mounted = rehearsal.record(&mount).unwrap();
    let len = u32::from_be_bytes(*mounted[32..].first_chunk().unwrap()) as usize;
    let root = mounted[36..36 + len].to_vec();
    let bytes = |bytes: &[u8]| {
        let mut opaque = (bytes.len() as u32).to_be_bytes().to_vec();
        opaque.extend(bytes);
        opaque.resize(opaque.len().next_multiple_of(4), 0);
        opaque
    };
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_be_bytes())
            .collect()
    };
    let name = |name: &str| [bytes(&root), bytes(name.as_bytes())].concat();
    let attr = numbers(&[1, 0o644, 0, 0, 0, 0, 0]);
    let create = [name("file"), numbers(&[0]), attr.clone()].concat();
    let created = rehearsal
        .record(&strip(raw_call(2, 100_003, 8, &create)))
        .unwrap();
    let len = u32::from_be_bytes(*created[36..].first_chunk().unwrap()) as usize;
    let file = bytes(&created[40..40 + len]);
    let root_fh = bytes(&root);
    let calls = [
        (0, vec![]),
        (1, file.clone()),
        (
            2,
            [file.clone(), numbers(&[1, 0o600, 0, 0, 1, 0, 5, 1, 1, 0])].concat(),
        ),
        (3, name("file")),
        (4, [root_fh.clone(), numbers(&[63])].concat()),
        (5, file.clone()),
        (6, [file.clone(), numbers(&[0, 0, 4096])].concat()),
        (
            7,
            [file.clone(), numbers(&[0, 0, 4, 0]), bytes(b"data")].concat(),
        ),
        (8, [name("new"), numbers(&[2, 1, 2])].concat()),
        (9, [name("dir"), attr.clone()].concat()),
        (10, [name("link"), attr.clone(), bytes(b"target")].concat()),
        (
            11,
            [name("node"), numbers(&[4]), attr, numbers(&[1, 2])].concat(),
        ),
        (12, name("new")),
        (13, name("dir")),
        (14, [name("file"), name("moved")].concat()),
        (15, [file.clone(), name("second")].concat()),
        (16, [root_fh.clone(), numbers(&[0, 0, 0, 0, 4096])].concat()),
        (
            17,
            [root_fh.clone(), numbers(&[0, 0, 0, 0, 4096, 4096])].concat(),
        ),
        (18, root_fh.clone()),
        (19, root_fh.clone()),
        (20, root_fh),
        (21, [file, numbers(&[0, 0, 0])].concat()),
    ];
    let mut records: Vec<_> = calls
        .into_iter()
        .map(|(procedure, args)| strip(raw_call(10 + procedure, 100_003, procedure, &args)))
        .collect();
    let others = [0, 2, 4, 5].map(|procedure| raw_call(50, 100_005, procedure, &[]));
    records.extend(others.map(strip));
    records.push(strip(raw_call(51, 100_005, 3, &bytes(b"/"))));
    records.push(mount);
    records
}

/// NFS-4: no bytes make the server panic, and each record has one reply or ends the connection.
#[test]
fn spoiled_records_are_answered_or_hung_up_on() {
    let rehearsal = || {
        let options = Options::new(HandleKey::new([7; 16])).squash(rcuwalk_nfs::Squash::None);
        Rehearsal::new(Vfs::new(MemFs::new()).unwrap(), options.max_files(64)).unwrap()
    };
    let first = rehearsal();
    let good = good_records(&first);
    for record in &good {
        let reply = first.record(record).unwrap();
        assert_eq!(reply[24..28], [0; 4], "accepted: {record:?}");
    }
    // Each of them cut after each byte, and with a byte more.
    for record in &good {
        for len in 0..record.len() {
            first.record(&record[..len]);
        }
        first.record(&[&record[..], &[0]].concat());
    }
    // At a tenth of a millisecond each.
    let rounds = setting("RCUWALK_HOSTILE_RECORDS", 20_000);
    let mut rng = Rng::new(setting("RCUWALK_HOSTILE_SEED", 1));
    let interesting = [
        0,
        1,
        2,
        3,
        4,
        0xff,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
        1 << 20,
    ];
    let mut now = rehearsal();
    for round in 0..rounds {
        if round % 1000 == 0 {
            // A tree that was filled by all this is no surprise any more.
            now = rehearsal();
            good_records(&now);
        }
        let mut record = good[rng.below(good.len())].clone();
        // Another number, or it would be the same call again.
        record[..4].copy_from_slice(&(round as u32).to_be_bytes());
        for _ in 0..=rng.below(4) {
            let at = rng.below(record.len() / 4) * 4;
            match rng.below(5) {
                0 => record.truncate(at.max(4)),
                1 => record[at] ^= 1 << rng.below(8),
                2 => {
                    let number: u32 = interesting[rng.below(interesting.len())];
                    record[at..at + 4].copy_from_slice(&number.to_be_bytes());
                }
                3 => record.extend(std::iter::repeat_n(rng.below(256) as u8, rng.below(64))),
                _ => {
                    let from = rng.below(record.len());
                    let part = record[from..].to_vec();
                    record.splice(at..at, part.into_iter().take(64));
                }
            }
            record.truncate(4096);
        }
        if let Some(reply) = now.record(&record) {
            let mark = u32::from_be_bytes(*reply.first_chunk().unwrap());
            assert_eq!(mark, 1 << 31 | (reply.len() - 4) as u32, "{record:?}");
            assert_eq!(reply[4..8], record[..4], "{record:?}");
        }
        assert_eq!(now.faults(), 0, "NFS-4: {record:?}");
    }
    assert_eq!(first.faults(), 0);
}

/// HANDLE-1: of many changed handles, none leads to a file.
#[test]
fn changed_handles_are_stale_however_many_are_tried() {
    let options = || {
        let options = Options::new(HandleKey::new([7; 16])).max_files(64);
        options.squash(rcuwalk_nfs::Squash::None)
    };
    let memory = Vfs::new(MemFs::new()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let host = Vfs::new(rcuwalk_hostfs::HostFs::new(dir.path()).unwrap()).unwrap();
    let tries = setting("RCUWALK_FORGED", 20_000);
    for vfs in [memory, host] {
        let server = Rehearsal::new(vfs, options()).unwrap();
        let getattr = good_records(&server).swap_remove(1);
        // Behind the header: the length, and the handle.
        let handle = 64..60 + 4 + getattr[63] as usize;
        let mut rng = Rng::new(11);
        for _ in 0..tries {
            let mut record = getattr.clone();
            for _ in 0..1 + rng.below(3) {
                record[handle.start + rng.below(handle.len())] ^= 1 << rng.below(8);
            }
            if record == getattr {
                continue;
            }
            let reply = server.record(&record).unwrap();
            assert_eq!(reply[28..32], [0, 0, 0, 70], "HANDLE-1: {record:?}");
        }
        assert_eq!(server.record(&getattr).unwrap()[28..32], [0; 4]);
    }
}

/// NFS-4: a stream of anything ends the connection that it comes by.
#[test]
fn garbage_ends_its_connection_and_no_other() {
    let served = with(options());
    let mut honest = served.client();
    let root = honest.root.clone();
    let mut rng = Rng::new(3);
    for round in 0..200 {
        let mut socket = TcpStream::connect(served.address()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut garbage: Vec<u8> = (0..1 + rng.below(300))
            .map(|_| rng.below(256) as u8)
            .collect();
        if round % 2 == 0 {
            // A whole record.
            let len = garbage.len() as u32;
            garbage.splice(0..0, (1 << 31 | len).to_be_bytes());
        }
        // The server may have hung up in the middle of it.
        let _ = socket.write_all(&garbage);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
        honest.getattr(&root).unwrap();
    }
    wait_until("all but one are gone", || connections(&served) == 1);
    assert_eq!(served.server.observer().statistics().unwrap().faults, 0);
}

fn connections(served: &Served) -> usize {
    served.server.observer().statistics().unwrap().connections
}

fn waiting(served: &Served) -> usize {
    served.server.observer().statistics().unwrap().waiting_bytes
}

/// NFS-4: connections that say nothing, or half a request, make way for others.
#[test]
fn half_open_connections_are_few_and_do_not_last() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, most).unwrap();
    let many = setting("RCUWALK_CONNECTIONS", 500) as usize;
    let served = with(
        options()
            .max_connections(128, 64)
            .patience(Duration::from_secs(1)),
    );
    let mut honest = served.client();
    let root = honest.root.clone();
    let mut open = Vec::new();
    for n in 0..many {
        let mut socket = TcpStream::connect(served.address()).unwrap();
        if n % 2 == 0 {
            // It announces a megabyte, and sends four bytes of it.
            let _ = socket.write_all(&[0x80, 0x10, 0, 0, 1, 2, 3, 4]);
        }
        open.push(socket);
        if n % 50 == 0 {
            honest.getattr(&root).unwrap();
            assert!(connections(&served) <= 64, "NFS-4");
        }
    }
    assert!(waiting(&served) < 64 << 10, "NFS-4: {}", waiting(&served));
    wait_until("half requests are cut", || waiting(&served) == 0);
    honest.getattr(&root).unwrap();
    Client::new(served.address()).getattr(&root).unwrap();
}

/// NFS-4: a client that does not take its answers has few of them waiting, and is cut.
#[test]
fn answers_that_are_not_taken_do_not_pile_up() {
    let served = with(options().patience(Duration::from_secs(1)));
    let mut honest = served.client();
    let root = honest.root.clone();
    let file = honest.create(&root, "file").unwrap();
    honest
        .write(&file, 0, &vec![1; 1 << 20], stable_how::UNSTABLE)
        .unwrap();
    let mut args = (file.data.len() as u32).to_be_bytes().to_vec();
    args.extend(&file.data[..]);
    args.resize(args.len().next_multiple_of(4), 0);
    args.extend([0; 8]);
    args.extend((1_u32 << 20).to_be_bytes());
    let mut socket = TcpStream::connect(served.address()).unwrap();
    socket
        .set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    for xid in 0..2000 {
        match socket.write_all(&raw_call(xid, 100_003, 6, &args)) {
            Ok(()) => {}
            Err(err) if err.kind() == ErrorKind::WouldBlock => break,
            Err(_) => break,
        }
        // One for each thread, beyond what was allowed to wait.
        assert!(waiting(&served) <= 10 << 20, "NFS-4: {}", waiting(&served));
    }
    honest.getattr(&root).unwrap();
    wait_until("it is cut", || {
        waiting(&served) == 0 && connections(&served) == 1
    });
}

/// Requests that are sent ahead are all answered.
#[test]
fn requests_may_be_sent_ahead() {
    let served = with(options());
    let root = served.client().root.data.to_vec();
    let mut socket = TcpStream::connect(served.address()).unwrap();
    let ahead: Vec<u8> = (0..500)
        .flat_map(|xid| raw_name(xid, 3, &root, "none"))
        .collect();
    let mut writer = socket.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&ahead).unwrap());
    let mut seen: Vec<u32> = (0..500)
        .map(|_| u32::from_be_bytes(*reply(&mut socket).first_chunk().unwrap()))
        .collect();
    writing.join().unwrap();
    seen.sort();
    assert!(seen.into_iter().eq(0..500));
    // A client that has said all that it has to say is still answered.
    socket.write_all(&raw_name(7, 3, &root, "none")).unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(reply(&mut socket)[..4], 7_u32.to_be_bytes());
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
}

/// What `MSG_DENIED` says: the reject status, and the reason.
fn denial(socket: &mut TcpStream) -> Option<[u32; 2]> {
    let record = reply(socket);
    let number = |at: usize| u32::from_be_bytes(*record[at..].first_chunk().unwrap());
    (number(8) == 1).then(|| [number(12), number(16)])
}

#[test]
fn ports_of_users_count_only_if_they_are_asked_for() {
    if lacks_root() {
        return;
    }
    let served = with(options().insecure(false));
    let getattr = raw_call(1, 100_003, 1, &[0; 4]);
    let mut user = TcpStream::connect(served.address()).unwrap();
    user.write_all(&getattr).unwrap();
    assert_eq!(denial(&mut user), Some([1, 5]), "AUTH_TOOWEAK");
    user.write_all(&raw_call(2, 100_003, 0, &[])).unwrap();
    assert_eq!(denial(&mut user), None, "NULL is for all");
    let mut root = from_low_port(served.address());
    root.write_all(&getattr).unwrap();
    assert_eq!(denial(&mut root), None);
}

/// NFS-4: a user's program, whose calls are refused, takes no client's place.
#[test]
fn ports_of_users_take_no_client_its_connection() {
    if lacks_root() {
        return;
    }
    let served = with(options().insecure(false).max_connections(4, 4));
    let null = raw_call(1, 100_003, 0, &[]);
    let ask = |socket: &mut TcpStream| {
        socket.write_all(&null)?;
        socket.read_exact(&mut [0; 28])
    };
    let mut client = from_low_port(served.address());
    ask(&mut client).unwrap();
    let mut users: Vec<_> = Vec::new();
    for _ in 0..20 {
        let mut user = TcpStream::connect(served.address()).unwrap();
        ask(&mut user).unwrap();
        users.push(user);
    }
    assert!(connections(&served) <= 4, "NFS-4");
    ask(&mut client).expect("NFS-4: the client has its connection");
}

/// A tree whose files take long to close, as those of a dead server do.
struct SlowToClose {
    tree: MemFs,
    closing: Arc<AtomicBool>,
    goes: Arc<AtomicBool>,
}

struct OpenFile(Arc<AtomicBool>, Arc<AtomicBool>);

impl Wrapper for SlowToClose {
    fn inner(&self) -> Option<&dyn FileSystem> {
        Some(&self.tree)
    }

    fn open(
        &self,
        _: &Caller<'_>,
        _: &At<'_>,
        _: OpenFlags,
    ) -> rcuwalk::Result<Box<dyn FileHandle>> {
        Ok(Box::new(OpenFile(self.closing.clone(), self.goes.clone())))
    }
}

impl FileHandle for OpenFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> rcuwalk::Result<usize> {
        Ok(0)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        wait_until("the test lets it go on", || self.1.load(Relaxed));
    }
}

/// NFS-4: a file that takes long to close keeps no client out. It takes the seconds after which a file
/// is closed.
#[test]
fn clients_are_let_in_while_a_file_is_being_closed() {
    let (closing, goes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let fs = SlowToClose {
        tree: MemFs::new(),
        closing: closing.clone(),
        goes: goes.clone(),
    };
    let served = serve(Wrapped::new(fs), options().sync(false));
    let _release = StopOnDrop(&goes);
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    client.read(&file, 0, 10).unwrap();
    wait_until("the file is being closed", || closing.load(Relaxed));
    let mut other = TcpStream::connect(served.address()).unwrap();
    let patience = Some(Duration::from_secs(20));
    other.set_read_timeout(patience).unwrap();
    other.write_all(&raw_call(1, 100_003, 0, &[])).unwrap();
    let answered = other.read_exact(&mut [0; 28]);
    answered.expect("NFS-4: the client is let in");
}

fn from_low_port(address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    for port in (600..1024).rev() {
        let own = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], port));
        if bind(&own, &local).is_ok() && connect(&own, &address).is_ok() {
            return own.into();
        }
    }
    panic!("no free port below 1024");
}

#[test]
fn clients_that_are_not_allowed_are_not_heard() {
    let served = with(options().allow(["192.0.2.0/24".parse().unwrap()]));
    let mut socket = TcpStream::connect(served.address()).unwrap();
    let _ = socket.write_all(&raw_call(1, 100_003, 0, &[]));
    let heard = socket.read(&mut [0; 4]);
    assert!(matches!(heard, Ok(0) | Err(_)), "{heard:?}");
    wait_until("it is counted", || {
        served.server.observer().statistics().unwrap().cut == 1
    });
}

/// Counts lines of the log that say of a client that it was not let in.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && about.target().ends_with("::accept") && *about.level() == Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut count = |_: &Field, value: &dyn Debug| {
            let is_one = format!("{value:?}") == "not let in";
            self.0.fetch_add(usize::from(is_one), Relaxed);
        };
        event.record(&mut count);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// NFS-4: whoever reaches the port does not fill the log.
#[test]
fn clients_that_are_not_allowed_are_few_lines() {
    let lines = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Lines(lines.clone())).unwrap();
    let served = with(options().allow(["192.0.2.0/24".parse().unwrap()]));
    let begin = Instant::now();
    for _ in 0..200 {
        drop(TcpStream::connect(served.address()).unwrap());
    }
    wait_until("all are counted", || {
        served.server.observer().statistics().unwrap().cut == 200
    });
    // Other tests' clients are among them.
    let lines = lines.load(Relaxed) as u64;
    let most = begin.elapsed().as_secs() + 50;
    assert!((1..=most).contains(&lines), "NFS-4: {lines} lines");
}

#[test]
fn other_programs_versions_and_credentials_are_refused() {
    let served = with(options());
    let mut socket = TcpStream::connect(served.address()).unwrap();
    let mut ask = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut record = raw_call(1, 100_003, 1, &[0; 4]);
        change(&mut record);
        let len = record.len() as u32 - 4;
        record[..4].copy_from_slice(&(1 << 31 | len).to_be_bytes());
        socket.write_all(&record).unwrap();
        let reply = reply(&mut socket);
        let numbers = reply
            .chunks(4)
            .map(|bytes| u32::from_be_bytes(*bytes.first_chunk().unwrap()));
        numbers.skip(2).collect::<Vec<_>>()
    };
    fn put(record: &mut [u8], word: usize, number: u32) {
        record[4 + 4 * word..8 + 4 * word].copy_from_slice(&number.to_be_bytes());
    }
    assert_eq!(
        ask(&|record| put(record, 2, 3)),
        [1, 0, 2, 2],
        "RPC_MISMATCH"
    );
    assert_eq!(
        ask(&|record| put(record, 3, 100_227)),
        [0, 0, 0, 1],
        "PROG_UNAVAIL"
    );
    assert_eq!(
        ask(&|record| put(record, 4, 4)),
        [0, 0, 0, 2, 3, 3],
        "PROG_MISMATCH"
    );
    assert_eq!(
        ask(&|record| put(record, 5, 22)),
        [0, 0, 0, 3],
        "PROC_UNAVAIL"
    );
    assert_eq!(
        ask(&|record| record.truncate(record.len() - 1)),
        [0, 0, 0, 4],
        "GARBAGE_ARGS"
    );
    assert_eq!(
        ask(&|record| put(record, 6, 6)),
        [1, 1, 2],
        "AUTH_REJECTEDCRED"
    );
    assert_eq!(
        ask(&|record| put(record, 12, 17)),
        [1, 1, 1],
        "AUTH_BADCRED"
    );
    assert_eq!(
        ask(&|record| put(record, 7, 401)),
        [1, 1, 1],
        "AUTH_BADCRED"
    );
    assert_eq!(ask(&|_| {}), [0, 0, 0, 0, nfsstat3::NFS3ERR_STALE as u32]);
}
