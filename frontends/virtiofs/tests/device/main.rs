//! The device as a machine monitor and a guest's driver see it, without a guest: vhost-user by a
//! socket, memory in a memfd, and rings that a test fills.
//!
//! | read         | to learn                                             |
//! |--------------|------------------------------------------------------|
//! | this file    | requests that a kernel would send                    |
//! | `hostile.rs` | what no kernel would put into a ring                 |
//! | `guest.rs`   | the machine                                          |
//! | `fuse.rs`    | messages                                             |

mod fuse;
mod guest;
mod hostile;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fuse::{BY_ROOT, ROOT, Who, good, op, parsed, u32_at, u64_at};
use guest::Guest;
use rcuwalk::Vfs;
use rcuwalk_fuse::{Contents, Options};
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Call, Hooked, lacks_root, wait_until};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

fn in_memory() -> Vfs {
    Vfs::new(MemFs::new()).unwrap()
}

/// Begins a session.
fn init(guest: &mut Guest) {
    let answer = guest.ask(1, &fuse::init(2), 80);
    let body = good(&answer, 2);
    assert_eq!((u32_at(body, 0), body.len()), (7, 64));
}

/// Makes a file, and returns its node and its handle.
fn make(guest: &mut Guest, name: &str) -> (u64, u64) {
    let answer = guest.ask(1, &fuse::create(BY_ROOT, 4, name), 16 + 128 + 16);
    let body = good(&answer, 4);
    (u64_at(body, 0), u64_at(body, 128))
}

#[test]
fn a_guest_makes_writes_reads_and_lists() {
    for (queues, event_idx) in [(1, true), (2, false)] {
        let mut guest = Guest::with(in_memory(), queues, &Options::default(), event_idx);
        init(&mut guest);
        let (node, fh) = make(&mut guest, "f");
        // A request and its answer in many parts, and over both regions.
        let data: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        let write = fuse::write(6, node, fh, 10, data.len() as u32);
        let mut parts = vec![&write[..13], &write[13..]];
        parts.extend(data.chunks(9_001));
        guest.send(queues, &parts, &[7, 20], false);
        let (_, answer) = guest.answer(queues);
        assert_eq!(u32_at(good(&answer, 6), 0), 200_000);
        for is_indirect in [false, true] {
            let read = fuse::read(op::READ, 8, node, fh, 0, 250_000);
            let rooms = [16, 100_000, 3, 149_997];
            guest.send(queues, &[&read[..40], &read[40..]], &rooms, is_indirect);
            let (_, answer) = guest.answer(queues);
            let body = good(&answer, 8);
            assert_eq!((&body[..10], &body[10..]), (&[0; 10][..], &data[..]));
        }
        let answer = guest.ask(1, &fuse::name(op::LOOKUP, 10, "none"), 144);
        assert_eq!(parsed(&answer, 10), (2, &[][..]));
        let opened = guest.ask(1, &fuse::message(op::OPENDIR, 12, ROOT, &[0; 8]), 32);
        let dir = u64_at(good(&opened, 12), 0);
        let listed = guest.ask(
            1,
            &fuse::read(op::READDIRPLUS, 14, ROOT, dir, 0, 4096),
            4112,
        );
        let names = good(&listed, 14);
        assert!(names.windows(2).any(|two| two == b"f\0"), "{names:?}");
        let observer = guest.served.observer();
        assert_eq!(observer.statistics().unwrap().open, 2);
        // FORGET has no answer, and comes back all the same. The file was looked up and listed.
        guest.send(0, &[&fuse::forget(node, 2)], &[], false);
        assert_eq!(guest.answer(0).1, []);
        assert_eq!(observer.statistics().unwrap().nodes, 1);
        // INTERRUPT of a request that nobody answers: it is sent again.
        let interrupt = fuse::message(op::INTERRUPT, 16, 0, &8_u64.to_ne_bytes());
        guest.send(0, &[&interrupt], &[16], false);
        assert_eq!(parsed(&guest.answer(0).1, 16).0, 11, "EAGAIN");
        guest.off().unwrap();
        assert!(observer.statistics().is_none_or(|now| now.open == 0));
    }
}

/// Kernels before 5.13 send a request of a MiB in as many parts as it has pages, however short the ring
/// is; and take an answer of no length for a good one.
#[test]
fn a_request_may_have_more_parts_than_its_ring() {
    let mut guest = Guest::new(in_memory(), 1);
    init(&mut guest);
    let (node, fh) = make(&mut guest, "f");
    let page = [7; 4096];
    let write = fuse::write(6, node, fh, 0, 256 * 4096);
    let mut parts = vec![&write[..]];
    parts.extend([&page[..]; 256]);
    guest.send(1, &parts, &[24], true);
    assert_eq!(u32_at(good(&guest.answer(1).1, 6), 0), 256 * 4096);
    let read = fuse::read(op::READ, 8, node, fh, 0, 256 * 4096);
    let mut rooms = vec![16];
    rooms.extend([4096; 256]);
    guest.send(1, &[&read], &rooms, true);
    let (_, answer) = guest.answer(1);
    let body = good(&answer, 8);
    assert!(body.len() == 256 * 4096 && body.iter().all(|byte| *byte == 7));
    guest.off().unwrap();
}

#[test]
fn a_new_file_belongs_to_the_guests_user() {
    if lacks_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("secret"), "s").unwrap();
    let vfs = Vfs::new(HostFs::new(dir.path()).unwrap()).unwrap();
    let mut guest = Guest::new(vfs, 1);
    init(&mut guest);
    // The number of its thread is that of a stranger's here, who is root.
    let who = Who {
        uid: 1234,
        gid: 4321,
        pid: std::process::id(),
    };
    let answer = guest.ask(1, &fuse::create(who, 4, "f"), 160);
    good(&answer, 4);
    let made = fs::metadata(dir.path().join("f")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1234, 4321));
    // Only its own kernel knows all its groups: what that lets through is let through here.
    let found = guest.ask(1, &fuse::name(op::LOOKUP, 6, "secret"), 144);
    let node = u64_at(good(&found, 6), 0);
    fs::set_permissions(
        dir.path().join("secret"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let open = fuse::message_of(who, op::OPEN, 8, node, &[0; 8]);
    good(&guest.ask(1, &open, 32), 8);
    guest.off().unwrap();
}

/// RING-1, WATCH-1: late answers do not get into the memory of a guest that has started anew.
#[test]
fn a_stuck_request_stops_no_other_one_and_not_the_end() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let fs = MemFs::new();
    let hooked = Hooked::new(fs, move |call: &Call<'_>| {
        if call.name() == "stuck" {
            let _ = wait.lock().unwrap().recv();
        }
        Ok(())
    });
    let options = Options::default().threads(2);
    let mut guest = Guest::with(Vfs::new(hooked).unwrap(), 1, &options, true);
    init(&mut guest);
    // As many as there are threads, and one more: that waits for another thread to come.
    for unique in [100, 102, 104] {
        guest.send(
            1,
            &[&fuse::name(op::LOOKUP, unique, "stuck")],
            &[144],
            false,
        );
    }
    let head = guest.send(1, &[&fuse::name(op::LOOKUP, 10, "other")], &[144], false);
    let (answered, answer) = guest.answer(1);
    assert_eq!((answered, parsed(&answer, 10).0), (head, 2));
    // The guest starts anew. The ring stops, and no late answer gets into its memory.
    assert_eq!(guest.monitor.get_vring_base(1).unwrap(), 5);
    let rooms = guest.rooms(1);
    assert_eq!(rooms.len(), 3);
    guest.start_rings();
    for (at, len) in &rooms {
        let mine = vec![0x55; *len as usize];
        guest.memory.write_slice(&mine, GuestAddress(*at)).unwrap();
    }
    // Its new requests go elsewhere.
    guest.leave_out(1 << 20);
    init(&mut guest);
    drop(go);
    let observer = guest.served.observer();
    wait_until("the stuck requests are done", || {
        observer.statistics().unwrap().in_flight == 0
    });
    assert_eq!(guest.come_back(1, Duration::from_millis(50)), None);
    for (at, len) in rooms {
        let mut there = vec![0; len as usize];
        guest
            .memory
            .read_slice(&mut there, GuestAddress(at))
            .unwrap();
        assert!(there.iter().all(|byte| *byte == 0x55), "the guest's own");
    }
    good(
        &guest.ask(1, &fuse::message(op::GETATTR, 12, ROOT, &[0; 16]), 120),
        12,
    );
    guest.off().unwrap();
}

/// A tree whose lookups of this name wait for a word, or for the end of the sender.
fn waits_for(name: &'static str) -> (mpsc::Sender<()>, Vfs) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let hooked = Hooked::new(MemFs::new(), move |call: &Call<'_>| {
        if call.name() == name {
            let _ = wait.lock().unwrap().recv();
        }
        Ok(())
    });
    (go, Vfs::new(hooked).unwrap())
}

/// RING-1: a guest that is paused and goes on hears the answer to each request.
#[test]
fn a_pause_loses_no_request() {
    let (go, vfs) = waits_for("slow");
    let options = Options::default().threads(2);
    let mut guest = Guest::patient(vfs, 1, &options, true, Duration::from_secs(300));
    init(&mut guest);
    let slow = guest.send(1, &[&fuse::name(op::LOOKUP, 4, "slow")], &[144], false);
    let observer = guest.served.observer();
    wait_until("it is under way", || {
        observer.statistics().unwrap().in_flight == 1
    });
    let goes = thread::spawn(move || {
        // Most likely the ring stops by then; if not, nothing is tested.
        thread::sleep(Duration::from_millis(100));
        drop(go);
    });
    let base = guest.monitor.get_vring_base(1).unwrap();
    assert_eq!(base, 2);
    goes.join().unwrap();
    guest.go_on(1, base as u16);
    let (head, answer) = guest.answer(1);
    assert_eq!((head, parsed(&answer, 4).0), (slow, 2));
    // What the guest sends meanwhile is seen afterwards.
    guest.monitor.get_vring_base(1).unwrap();
    let get = fuse::message(op::GETATTR, 6, ROOT, &[0; 16]);
    guest.send(1, &[&get], &[120], false);
    guest.go_on(1, 2);
    good(&guest.answer(1).1, 6);
    guest.off().unwrap();
}

/// RING-1, WATCH-1: what is stuck when the guest is paused is `EIO`, once.
#[test]
fn a_pause_does_not_wait_for_a_stuck_request() {
    let (go, vfs) = waits_for("stuck");
    let options = Options::default().threads(2);
    let mut guest = Guest::with(vfs, 1, &options, true);
    init(&mut guest);
    let stuck = [100, 102].map(|unique| {
        let lookup = fuse::name(op::LOOKUP, unique, "stuck");
        (guest.send(1, &[&lookup], &[100, 44], false), unique)
    });
    let observer = guest.served.observer();
    wait_until("they are under way", || {
        observer.statistics().unwrap().in_flight == 2
    });
    assert_eq!(guest.monitor.get_vring_base(1).unwrap(), 3);
    for _ in stuck {
        let (head, answer) = guest.answer(1);
        let of = stuck.iter().find(|one| one.0 == head).unwrap();
        assert_eq!(parsed(&answer, of.1), (5, &[][..]), "EIO");
    }
    guest.go_on(1, 3);
    drop(go);
    wait_until("they are done", || {
        observer.statistics().unwrap().in_flight == 0
    });
    assert_eq!(guest.come_back(1, Duration::from_millis(50)), None);
    let get = fuse::message(op::GETATTR, 6, ROOT, &[0; 16]);
    good(&guest.ask(1, &get, 120), 6);
    guest.off().unwrap();
}

#[test]
fn each_init_begins_a_session_of_its_own() {
    let mut guest = Guest::new(in_memory(), 1);
    let get = |guest: &mut Guest, unique| {
        let answer = guest.ask(1, &fuse::message(op::GETATTR, unique, ROOT, &[0; 16]), 120);
        parsed(&answer, unique).0
    };
    assert_eq!(get(&mut guest, 2), 5, "EIO before INIT");
    init(&mut guest);
    let (node, fh) = make(&mut guest, "f");
    assert_eq!(get(&mut guest, 4), 0);
    let observer = guest.served.observer();
    let counts = || observer.statistics().map(|now| (now.nodes, now.open));
    assert_eq!(counts(), Some((2, 1)));
    good(&guest.ask(1, &fuse::message(op::DESTROY, 6, 0, &[]), 16), 6);
    wait_until("all is given back", || counts() == Some((1, 0)));
    assert_eq!(get(&mut guest, 8), 5, "EIO after DESTROY");
    init(&mut guest);
    let read = fuse::read(op::READ, 10, node, fh, 0, 10);
    assert_ne!(parsed(&guest.ask(1, &read, 26), 10).0, 0, "the old handle");
    // Anew without a DESTROY: the machine was reset.
    make(&mut guest, "g");
    init(&mut guest);
    wait_until("all is given back", || counts() == Some((1, 0)));
    // With another version there is none.
    let mut old = fuse::init(12);
    old[40..44].copy_from_slice(&6_u32.to_ne_bytes());
    assert_eq!(parsed(&guest.ask(1, &old, 80), 12).0, 71, "EPROTO");
    assert_eq!(get(&mut guest, 14), 0, "the session goes on");
    guest.off().unwrap();
}

/// RING-1: no request is forgotten, whether the guest rings for each or only when it is asked to.
#[test]
fn many_requests_at_once_all_come_back() {
    for event_idx in [true, false] {
        let options = Options::default().threads(4);
        let mut guest = Guest::with(in_memory(), 3, &options, event_idx);
        init(&mut guest);
        for round in 0..200_u64 {
            let mut sent = Vec::new();
            for queue in 1..=3 {
                for at in 0..(1 + (round as usize + queue) % 20) {
                    let unique = 2 * (round * 1000 + (queue * 100 + at) as u64) + 100;
                    let get = fuse::message(op::GETATTR, unique, ROOT, &[0; 16]);
                    sent.push((
                        queue,
                        guest.send(queue, &[&get], &[120], at % 2 == 0),
                        unique,
                    ));
                }
            }
            for queue in 1..=3 {
                for _ in sent.iter().filter(|one| one.0 == queue) {
                    let (head, answer) = guest.answer(queue);
                    let of = sent
                        .iter()
                        .find(|one| (one.0, one.1) == (queue, head))
                        .unwrap();
                    good(&answer, of.2);
                }
            }
        }
        guest.off().unwrap();
    }
}

#[test]
fn what_the_monitor_says_is_checked() {
    let mut guest = Guest::new(in_memory(), 2);
    let size = |guest: &mut Guest, offset, size| {
        let flags = VhostUserConfigFlags::empty();
        let room = vec![0; size as usize];
        guest.monitor.get_config(offset, size, flags, &room)
    };
    let (_, config) = size(&mut guest, 0, 40).unwrap();
    assert_eq!(
        (&config[..5], &config[36..]),
        (&b"home\0"[..], &[2, 0, 0, 0][..])
    );
    init(&mut guest);
    // Memory comes and goes.
    let second = guest.region(1);
    guest.monitor.remove_mem_region(&second).unwrap();
    good(
        &guest.ask(1, &fuse::message(op::GETATTR, 4, ROOT, &[0; 16]), 120),
        4,
    );
    guest.monitor.add_mem_region(&second).unwrap();
    good(
        &guest.ask(1, &fuse::message(op::GETATTR, 6, ROOT, &[0; 16]), 120),
        6,
    );
    // A disabled ring is not looked at; what is in it then is, when it is enabled.
    guest.monitor.set_vring_enable(1, false).unwrap();
    guest.send(
        1,
        &[&fuse::message(op::GETATTR, 8, ROOT, &[0; 16])],
        &[120],
        false,
    );
    assert_eq!(guest.come_back(1, Duration::from_millis(50)), None);
    guest.monitor.set_vring_enable(1, true).unwrap();
    good(&guest.answer(1).1, 8);
    // An error ends the connection.
    assert!(guest.monitor.set_vring_num(1, 3).is_err());
    let ended = guest.off().unwrap_err();
    assert!(ended.to_string().contains("monitor"), "{ended}");
    for nonsense in 0..4 {
        let guest = Guest::new(in_memory(), 1);
        let answer = match nonsense {
            0 => guest.monitor.set_vring_num(1, 2048),
            1 => {
                let far = vhost::VringConfigData {
                    queue_max_size: 64,
                    queue_size: 64,
                    flags: 0,
                    desc_table_addr: u64::MAX,
                    used_ring_addr: 0,
                    avail_ring_addr: 4,
                    log_addr: None,
                };
                guest.monitor.set_vring_addr(1, &far)
            }
            2 => {
                let twice = [guest.region(0), guest.region(0)];
                guest.monitor.set_mem_table(&twice).map(drop)
            }
            _ => {
                let mut long = guest.region(0);
                long.memory_size = 1 << 40;
                guest.monitor.set_mem_table(&[long]).map(drop)
            }
        };
        assert!(answer.is_err(), "{nonsense}");
        assert!(guest.off().is_err());
    }
}

/// RING-1: an answer may have been given before the monitor says how the guest is rung.
#[test]
fn the_guest_is_rung_when_the_monitor_says_by_what() {
    let mut guest = Guest::new(in_memory(), 1);
    init(&mut guest);
    let call = EventFd::new(0).unwrap();
    guest.monitor.set_vring_call(1, &call).unwrap();
    assert_eq!(call.read().unwrap(), 1);
    guest.off().unwrap();
}

#[test]
fn contents_are_cached_as_is_wanted() {
    for (contents, flags) in [
        (Contents::Cached, 0),
        (Contents::Kept, 2),
        (Contents::Direct, 1),
    ] {
        let options = Options::default().contents(contents);
        let mut guest = Guest::with(in_memory(), 1, &options, true);
        init(&mut guest);
        let (node, _) = make(&mut guest, "f");
        let opened = guest.ask(1, &fuse::message(op::OPEN, 6, node, &[0; 8]), 32);
        assert_eq!(u32_at(good(&opened, 6), 8), flags);
        guest.off().unwrap();
    }
}
