//! Raw messages that no kernel would send: each is answered, or ends the connection, and
//! nothing panics or leaves the root.
//!
//! | read          | to learn                                                   |
//! |---------------|------------------------------------------------------------|
//! | this file     | the messages that are sent, and the rules that must hold   |
//! | `message.rs`  | messages, whole and broken                                 |
//! | `session.rs`  | a connection without a kernel                              |
//!
//! The messages follow from a seed. `RCUWALK_HOSTILE` is the number of sessions,
//! `RCUWALK_HOSTILE_SEED` the seed of the first one.

mod message;
mod session;

use std::fs;
use std::path::Path;

use message::{HEADER, Known, Message, op};
use rcuwalk::Vfs;
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Rng, setting};
use rustix::fs::IFlags;
use session::{Ended, Session};

/// Contents that must never be read.
const SECRET: &[u8] = b"what is outside of the root stays there";

/// A directory that is served, with a secret outside of it.
struct Canary {
    outer: tempfile::TempDir,
}

impl Canary {
    fn new() -> Canary {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("canary"), SECRET).unwrap();
        fs::create_dir_all(outer.path().join("root/dir")).unwrap();
        fs::write(outer.path().join("root/a"), "a").unwrap();
        std::os::unix::fs::symlink("../canary", outer.path().join("root/link")).unwrap();
        Canary { outer }
    }

    fn vfs(&self) -> Vfs {
        Vfs::new(HostFs::new(self.outer.path().join("root")).unwrap()).unwrap()
    }

    fn assert_untouched(&self, seed: u64) {
        let names = |at: &Path| {
            let mut names: Vec<_> = fs::read_dir(at)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(self.outer.path()), ["canary", "root"], "seed {seed}");
        let canary = fs::read(self.outer.path().join("canary")).unwrap();
        assert_eq!(canary, SECRET, "seed {seed}");
    }
}

impl Drop for Canary {
    /// Clears the flags that chattr(1) requests have set, which would prevent the removal.
    fn drop(&mut self) {
        clear_flags(&self.outer.path().join("root"));
    }
}

fn clear_flags(at: &Path) {
    let is_plain = fs::symlink_metadata(at).is_ok_and(|meta| meta.is_file() || meta.is_dir());
    if !is_plain {
        return;
    }
    if let Ok(file) = fs::File::open(at) {
        let _ = rustix::fs::ioctl_setflags(&file, IFlags::empty());
    }
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        clear_flags(&entry.path());
    }
}

/// Runs one session: whole messages and broken ones, until one ends it or there have been
/// enough. Then everything is given back, several times over. Returns the number of successful
/// requests.
fn hostile(vfs: Vfs, seed: u64) -> u64 {
    let mut random = Rng::new(seed);
    let mut session = Session::new(vfs);
    for _ in 0..300 {
        let mut message = Message::random(&mut random, &session.known);
        if random.one_in(4) {
            message.break_it(&mut random);
        }
        if message.takes_too_much() {
            continue;
        }
        match session.send(&message) {
            Ok(reply) => assert!(
                !reply.windows(SECRET.len()).any(|part| part == SECRET),
                "seed {seed}: {message:?} read what is outside"
            ),
            Err(Ended) => {
                assert!(message.ends_session(), "seed {seed}: {message:?}");
                let done = session.done;
                session.ended(&format!("seed {seed}"));
                return done;
            }
        }
    }
    let (known, done) = (session.known.clone(), session.done);
    for _ in 0..2 {
        for handle in &known.handles {
            let _ = session.send(&Message::release(*handle));
        }
        for node in &known.nodes {
            session.send(&Message::forget(*node, u64::MAX)).unwrap();
        }
    }
    session.send(&Message::new(op::STATFS, 1)).unwrap();
    assert_eq!(session.served.open(), 0, "seed {seed}: all is released");
    assert_eq!(session.served.nodes(), 1, "seed {seed}: all is forgotten");
    session.hang_up(&format!("seed {seed}"));
    done
}

/// EDGE-1: every message is answered, once, or ends the connection.
#[test]
fn whatever_comes_is_answered_and_stays_inside() {
    let first = setting("RCUWALK_HOSTILE_SEED", 1);
    let sessions = setting("RCUWALK_HOSTILE", 60);
    let mut done = 0;
    for seed in first..first + sessions {
        let memory = MemFs::with_limits(64 << 20, 100_000);
        done += hostile(Vfs::new(memory).unwrap(), seed);
        let canary = Canary::new();
        done += hostile(canary.vfs(), seed);
        canary.assert_untouched(seed);
    }
    eprintln!("{done} requests of {sessions} x 2 sessions did something");
    assert!(done > sessions * 2 * 30, "the others prove little");
}

/// NODE-1: nodes forgotten more often than looked up, handles released twice or made up: each
/// is an error or has no effect, and other nodes and handles are not touched.
#[test]
fn what_is_given_back_twice_is_given_back_once() {
    let canary = Canary::new();
    let mut session = Session::new(canary.vfs());
    let errno = |reply: Vec<u8>| -i32::from_ne_bytes(*reply[4..].first_chunk().unwrap());
    let look = Message::new(op::LOOKUP, 1).name(b"a");
    let node = session::u64_at(&session.send(&look).unwrap(), 16);
    assert_eq!(session.served.nodes(), 2);
    let open = Message::new(op::OPEN, node).u32s(&[0, 0]);
    let handle = session::u64_at(&session.send(&open).unwrap(), 16);
    assert_eq!(errno(session.send(&Message::release(handle)).unwrap()), 0);
    let twice = session.send(&Message::release(handle)).unwrap();
    assert_eq!(errno(twice), libc::EBADF);
    for _ in 0..3 {
        session.send(&Message::forget(node, 5)).unwrap();
    }
    session.send(&Message::forget(1, u64::MAX)).unwrap();
    let gone = session.send(&open).unwrap();
    assert_eq!(errno(gone), libc::ESTALE, "NODE-1");
    let mut look = |id, name: &[u8]| session.send(&Message::new(op::LOOKUP, id).name(name));
    for name in [&b"."[..], b".."] {
        let root = look(1, name).unwrap();
        assert_eq!(
            session::u64_at(&root, 16),
            1,
            "WALK-3: {name:?} of the root"
        );
        for id in [0, 2, 1 << 63, u64::MAX] {
            let unknown = look(id, name).unwrap();
            assert_eq!(errno(unknown), libc::ESTALE, "HANDLE-1: {name:?} of {id}");
        }
    }
    // It has been forgotten, and a file handle finds it again.
    let again = look(node, b".").unwrap();
    assert_eq!(session::u64_at(&again, 16), node, "HANDLE-1");
    session.send(&Message::forget(node, 1)).unwrap();
    for name in [&b""[..], b"../canary", b"/etc/passwd", &[b'x'; 256]] {
        let reply = session
            .send(&Message::new(op::LOOKUP, 1).name(name))
            .unwrap();
        assert!(errno(reply) > 0, "{name:?}");
    }
    assert_eq!(session.served.nodes(), 1);
    session.hang_up("twice");
}

/// Sizes from the wire are not trusted: the request is for 4 GiB, and there is one byte.
#[test]
fn sizes_are_bounded() {
    let canary = Canary::new();
    let mut session = Session::new(canary.vfs());
    let look = Message::new(op::LOOKUP, 1).name(b"a");
    let node = session::u64_at(&session.send(&look).unwrap(), 16);
    let open = Message::new(op::OPEN, node).u32s(&[0, 0]);
    let handle = session::u64_at(&session.send(&open).unwrap(), 16);
    let read = Message::new(op::READ, node).u64s(&[handle, 0]);
    let read = read.u32s(&[u32::MAX, 0]).u64s(&[0, 0]);
    assert_eq!(session.send(&read).unwrap()[16..], *b"a");
    let get = Message::new(op::GETXATTR, node).u32s(&[u32::MAX, 0]);
    session.send(&get.name(b"user.none")).unwrap();
    session.hang_up("sizes");
}

/// An INTERRUPT about a request that no thread is answering must come again; one that makes no
/// sense is refused.
#[test]
fn an_interrupt_that_comes_early_is_to_come_again() {
    let mut session = Session::new(Vfs::new(MemFs::new()).unwrap());
    let errno = |reply: Vec<u8>| -i32::from_ne_bytes(*reply[4..].first_chunk().unwrap());
    let interrupt = Message::new(op::INTERRUPT, 0);
    let early = session.send(&interrupt.clone().u64s(&[77])).unwrap();
    assert_eq!(errno(early), libc::EAGAIN);
    let none = session.send(&interrupt.clone().u64s(&[0])).unwrap();
    assert_eq!(errno(none), libc::EAGAIN, "0 is no request's number");
    assert_eq!(errno(session.send(&interrupt).unwrap()), libc::EINVAL);
    session.hang_up("interrupt");
}

/// EDGE-1: each operation, cut after each byte, or with a few bytes too many, with the right
/// length in the header and with the old one: it is answered, and the session goes on.
#[test]
fn whatever_is_cut_is_answered() {
    let mut session = Session::new(Vfs::new(MemFs::with_limits(64 << 20, 1000)).unwrap());
    let known = Known::default();
    for opcode in (0..60).chain([4096, u32::MAX]) {
        let mut random = Rng::new(u64::from(opcode));
        let message = loop {
            let message = Message::random_of(opcode, &mut random, &known);
            if !message.takes_too_much() && message.body.len() < 1000 {
                break message;
            }
        };
        let len = HEADER + message.body.len();
        for cut in 1..len {
            for says in [None, Some(cut as u32)] {
                let message = Message {
                    cut: Some(cut),
                    len: says,
                    ..message.clone()
                };
                // DESTROY without its body is still DESTROY.
                if !message.ends_session() {
                    let _ = session.send(&message).expect("an answer, or none due");
                }
            }
        }
        for more in 1..20 {
            let mut message = message.clone();
            message.body.extend([0xff].repeat(more));
            let _ = session.send(&message).expect("an answer, or none due");
        }
        session.send(&Message::new(op::STATFS, 1)).unwrap();
        session.assert_quiet(&format!("{opcode}"));
    }
    session.hang_up("cut");
}

/// Writes messages into the directory `RCUWALK_HOSTILE_SEEDS`, in the format of the fuzz target
/// `fuse`.
#[test]
#[ignore = "makes seeds for a fuzzer"]
fn seeds_for_the_fuzzer() {
    let dir = std::env::var("RCUWALK_HOSTILE_SEEDS").expect("a directory");
    // Node numbers and handles as a new tree in memory gives them out.
    let known = Known {
        nodes: (2..8).collect(),
        handles: (1..8).collect(),
    };
    for seed in 0..500 {
        let mut random = Rng::new(seed);
        let mut bytes = Vec::new();
        if random.one_in(4) {
            let init = Message::init().bytes(1);
            bytes.extend((init.len() as u16).to_le_bytes());
            bytes.extend(init);
        }
        for _ in 0..20 {
            let mut message = Message::random(&mut random, &known);
            let is_broken = random.one_in(8);
            if is_broken {
                message.break_it(&mut random);
            }
            message.body.truncate(600);
            let message = message.bytes(7);
            let mark = u16::from(is_broken) << 15;
            bytes.extend((message.len() as u16 | mark).to_le_bytes());
            bytes.extend(message);
        }
        fs::write(format!("{dir}/hostile-{seed}"), bytes).unwrap();
    }
}

/// After DESTROY, and after an empty message, the session is over.
#[test]
fn the_end_is_the_end() {
    for last in [
        Message::new(op::DESTROY, 0),
        Message {
            cut: Some(0),
            ..Message::new(op::STATFS, 1)
        },
    ] {
        let mut session = Session::new(Vfs::new(MemFs::new()).unwrap());
        session
            .send(&Message::new(op::LOOKUP, 1).name(b"a"))
            .unwrap();
        let Err(Ended) = session.send(&last) else {
            panic!("{last:?} is not the end");
        };
        assert!(session.served.is_over());
        session.ended(&format!("{last:?}"));
    }
}

/// With DESTROY all threads end, though the other end keeps the connection open.
#[test]
fn the_end_is_heard_by_all() {
    let mut session = Session::with_threads(Vfs::new(MemFs::new()).unwrap(), 4);
    session
        .send(&Message::new(op::DESTROY, 0))
        .expect_err("the end");
    let (served, _connection) = session.into_parts();
    served.join().unwrap();
}

/// An empty message ends the session, on all threads: that is how a socket reports its end.
#[test]
fn nothing_at_all_is_the_end_of_the_session() {
    let session = Session::with_threads(Vfs::new(MemFs::new()).unwrap(), 3);
    session.send_nothing();
    let (served, _connection) = session.into_parts();
    served.join().unwrap();
}

/// An answer waits for room, also if the socket is non-blocking.
#[test]
fn an_answer_waits_for_room() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let kind = SocketType::SEQPACKET;
    let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (socket, theirs) = pair.unwrap();
    rustix::io::write(&socket, &Message::init().bytes(2)).unwrap();
    rustix::io::ioctl_fionbio(&theirs, true).unwrap();
    let options = rcuwalk_fuse::Options::default().threads(1);
    let served = rcuwalk_fuse::serve(Vfs::new(MemFs::new()).unwrap(), theirs, &options).unwrap();
    let mut reply = vec![0; 1 << 18];
    rustix::io::read(&socket, &mut reply).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..2000_u64 {
                let message = Message::new(op::GETATTR, 1).u32s(&[0, 0]).u64s(&[0]);
                rustix::io::write(&socket, &message.bytes(4 + 2 * n)).unwrap();
            }
        });
        // By now, there is no room.
        std::thread::sleep(std::time::Duration::from_millis(300));
        for n in 0..2000 {
            let len = rustix::io::read(&socket, &mut reply).unwrap();
            assert!(len > 16, "answer {n}");
        }
    });
    drop(socket);
    served.join().unwrap();
}
