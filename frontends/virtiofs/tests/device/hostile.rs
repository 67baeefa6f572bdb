//! What no kernel would put into a ring: nothing panics or hangs, and other rings go on.

use super::*;
use crate::guest::{INDIRECT, NEXT, REGIONS, SIZE, WRITE};
use rcuwalk_testkit::{Rng, setting};
use vm_memory::{Bytes, GuestAddress};

/// Chains that make no sense come back without an answer.
#[test]
fn malformed_chains_come_back() {
    let mut guest = Guest::new(in_memory(), 2);
    init(&mut guest);
    let get = fuse::message(op::GETATTR, 4, ROOT, &[0; 16]);
    let at = guest.room(8192);
    guest.memory.write_slice(&get, GuestAddress(at)).unwrap();
    let len = get.len() as u32;
    let (table, gap) = (guest.rings[1].at, REGIONS[0].0 + REGIONS[0].1 as u64);
    let request = (at, len);
    let answer = (at + 4096, 120);
    type Descriptor = (u16, (u64, u32), u16, u16);
    let chains: [&[Descriptor]; 14] = [
        // A loop of one, and of two.
        &[(0, request, NEXT, 0)],
        &[(0, request, NEXT, 1), (1, answer, WRITE | NEXT, 0)],
        // A loop among the writable descriptors, after a good request.
        &[(0, request, NEXT, 1), (1, answer, WRITE | NEXT, 1)],
        &[(0, request, NEXT, 1), (1, answer, WRITE | NEXT, SIZE)],
        // The next one is out of range.
        &[(0, request, NEXT, SIZE)],
        &[(0, request, NEXT, u16::MAX)],
        // Not mapped: below, in the gap, over an end, at the end of the range.
        &[(0, (0, len), 0, 0)],
        &[(0, (gap - 8, len), 0, 0)],
        &[(0, request, NEXT, 1), (1, (gap, 120), WRITE, 0)],
        &[(0, (u64::MAX - 8, u32::MAX), 0, 0)],
        // To read after what is to be written; nothing to read.
        &[(0, answer, WRITE | NEXT, 1), (1, request, 0, 0)],
        &[(0, answer, WRITE, 0)],
        // An indirect table of half a descriptor, and one that is not mapped.
        &[(0, (at, 24), INDIRECT, 0)],
        &[(0, (gap, 32), INDIRECT, 0)],
    ];
    for (number, chain) in chains.iter().enumerate() {
        for (index, buffer, flags, next) in *chain {
            guest.describe(table, *index, *buffer, *flags, *next);
        }
        guest.offer(1, 0);
        let back = guest.come_back(1, Duration::from_secs(20));
        assert_eq!(back, Some((0, 0)), "chain {number}");
    }
    // A table within a table, one that names itself, and one longer than the ring.
    let long = guest.room(16 * 1000);
    for index in 0..1000 {
        guest.describe(long, index, request, NEXT, index + 1);
    }
    guest.describe(long, 999, request, 0, 0);
    guest.describe(at + 2048, 0, (at + 2048, 16), INDIRECT, 0);
    for buffer in [(at + 2048, 16), (long, 16_000)] {
        guest.describe(table, 0, buffer, INDIRECT, 0);
        guest.offer(1, 0);
        assert_eq!(guest.come_back(1, Duration::from_secs(20)), Some((0, 0)));
    }
    // This ring goes on, and the other one.
    for queue in [1, 2] {
        guest.describe(guest.rings[queue].at, 0, request, NEXT, 1);
        guest.describe(guest.rings[queue].at, 1, answer, WRITE, 0);
        guest.offer(queue, 0);
        assert_eq!(
            guest.come_back(queue, Duration::from_secs(20)),
            Some((0, 120))
        );
    }
    guest.off().unwrap();
}

#[test]
fn a_ring_that_makes_no_sense_is_broken_until_it_is_set_up_anew() {
    for nonsense in 0..3 {
        let mut guest = Guest::new(in_memory(), 2);
        init(&mut guest);
        let get = fuse::message(op::GETATTR, 4, ROOT, &[0; 16]);
        let index = GuestAddress(guest.rings[1].at + 0x1000 + 2);
        match nonsense {
            // An index that is out of range.
            0 => guest.offer(1, SIZE),
            // Backwards, and too far ahead.
            _ => {
                let by: u16 = if nonsense == 1 { u16::MAX } else { SIZE + 1 };
                let next = guest.rings[1].next.wrapping_add(by);
                guest.memory.write_obj(next, index).unwrap();
                guest.rings[1].kick.write(1).unwrap();
            }
        }
        wait_until("the monitor hears of it", || {
            guest.rings[1].err.read().is_ok()
        });
        guest.rings[1].kick.write(1).unwrap();
        good(&guest.ask(2, &get, 120), 4);
        guest.monitor.get_vring_base(1).unwrap();
        guest.start_ring(1);
        good(&guest.ask(1, &get, 120), 4);
        guest.off().unwrap();
    }
}

#[test]
fn an_answer_without_room_is_an_error_or_nothing() {
    let mut guest = Guest::new(in_memory(), 1);
    init(&mut guest);
    make(&mut guest, "f");
    let observer = guest.served.observer();
    let nodes = || observer.statistics().unwrap().nodes;
    guest.send(0, &[&fuse::forget(2, 0)], &[], false);
    guest.answer(0);
    let before = nodes();
    // Room for the error, which is EIO; too little even for that; none.
    for (rooms, len) in [(&[16][..], 16), (&[15], 0), (&[], 0)] {
        for message in [
            fuse::name(op::LOOKUP, 8, "f"),
            fuse::create(BY_ROOT, 8, "g"),
        ] {
            guest.send(1, &[&message], rooms, false);
            let (_, answer) = guest.answer(1);
            assert_eq!(answer.len(), len);
            if len > 0 {
                assert_eq!(parsed(&answer, 8).0, 5);
            }
        }
    }
    // What the guest has not heard of is not counted.
    assert_eq!(nodes(), before);
    assert_eq!(observer.statistics().unwrap().open, 1);
    // Longer than any message, shorter than a header, shorter than it says.
    let long = vec![0; 1_100_000];
    let mut message = fuse::name(op::LOOKUP, 10, "f");
    message[..4].copy_from_slice(&1_100_042_u32.to_ne_bytes());
    guest.send(1, &[&message, &long], &[144], false);
    assert_eq!(parsed(&guest.answer(1).1, 10).0, 22);
    assert_eq!(guest.ask(1, &message[..39], 144), []);
    assert_eq!(parsed(&guest.ask(1, &message, 144), 10).0, 22);
    guest.off().unwrap();
}

/// A guest that forgets nothing gets no more nodes than there may be, and no more open files than
/// descriptors.
#[test]
fn a_guest_holds_what_it_may_and_no_more() {
    let options = Options::default().max_nodes(64);
    let mut guest = Guest::with(in_memory(), 1, &options, true);
    init(&mut guest);
    let create = |guest: &mut Guest, at: usize| {
        let answer = guest.ask(1, &fuse::create(BY_ROOT, 4, &format!("f{at}")), 160);
        let (error, body) = parsed(&answer, 4);
        (
            error,
            body.first_chunk().map(|node| u64::from_ne_bytes(*node)),
        )
    };
    let made: Vec<_> = (0..70).map(|at| create(&mut guest, at)).collect();
    let good_ones = made.iter().take_while(|one| one.0 == 0).count();
    assert_eq!(good_ones, 63, "with the root 64");
    assert!(made[63..].iter().all(|one| one.0 == 23), "ENFILE");
    // What it knows it may look up; and there is room when it forgets.
    let found = guest.ask(1, &fuse::name(op::LOOKUP, 6, "f0"), 144);
    good(&found, 6);
    guest.send(0, &[&fuse::forget(made[0].1.unwrap(), 2)], &[], false);
    guest.answer(0);
    let (error, node) = create(&mut guest, 70);
    assert_eq!(error, 0);
    // A listing goes on without nodes.
    let gone = fuse::forget(node.unwrap(), 1);
    let opened = guest.ask(1, &fuse::message(op::OPENDIR, 8, ROOT, &[0; 8]), 32);
    let dir = u64_at(good(&opened, 8), 0);
    let mut names = 0;
    let mut at = 0;
    loop {
        let read = fuse::read(op::READDIRPLUS, 10, ROOT, dir, at, 8192);
        let answer = guest.ask(1, &read, 8208);
        let mut entries = good(&answer, 10);
        if entries.is_empty() {
            break;
        }
        while !entries.is_empty() {
            let len = 128 + (24 + u32_at(entries, 144) as usize).next_multiple_of(8);
            at = u64_at(entries, 136);
            names += 1;
            entries = &entries[len..];
        }
    }
    assert_eq!(names, 2 + 64);
    guest.send(0, &[&gone], &[], false);
    guest.answer(0);
    guest.off().unwrap();
}

/// Rings, tables and messages of random bytes that are nearly right, as a seed says:
/// `RCUWALK_GUEST_SEED`, `RCUWALK_GUESTS` of them.
#[test]
fn random_rings_stop_nothing() {
    let first = setting("RCUWALK_GUEST_SEED", 1);
    for seed in first..first + setting("RCUWALK_GUESTS", 6) {
        let mut rng = Rng::new(seed);
        let options = Options::default().threads(2);
        let vfs = Vfs::new(MemFs::with_limits(1 << 20, 200)).unwrap();
        let mut guest = Guest::with(vfs, 2, &options, rng.chance(50));
        init(&mut guest);
        make(&mut guest, "f");
        for _ in 0..setting("RCUWALK_GUEST_STEPS", 400) {
            one_step(&mut guest, &mut rng);
            if rng.one_in(50) {
                let queue = rng.between(0, 1);
                guest.monitor.get_vring_base(queue).unwrap();
                guest.start_ring(queue);
            }
        }
        // The queue that was left alone. A DESTROY that was under way may end the session once more.
        for queue in [0, 1] {
            guest.monitor.get_vring_base(queue).unwrap();
        }
        wait_until("the device is as before", || {
            init_by(&mut guest, 2);
            let get = fuse::message(op::GETATTR, 4, ROOT, &[0; 16]);
            parsed(&guest.ask(2, &get, 120), 4).0 == 0
        });
        guest.off().unwrap();
    }
}

fn init_by(guest: &mut Guest, queue: usize) {
    good(&guest.ask(queue, &fuse::init(2), 80), 2);
}

fn one_step(guest: &mut Guest, rng: &mut Rng) {
    let queue = rng.between(0, 1);
    let ring = guest.rings[queue].at;
    let somewhere = |rng: &mut Rng| match rng.below(8) {
        0 => rng.next_u64(),
        1 => REGIONS[0].0 + REGIONS[0].1 as u64 - rng.below(64) as u64,
        // A ring itself.
        2 => ring + rng.below(0x3000) as u64,
        _ => REGIONS[1].0 + rng.below(0x10_0000) as u64,
    };
    let count = rng.between(1, 6) as u16;
    let base = rng.below(SIZE.into()) as u16;
    let at = |index: u16| (base + index) % SIZE;
    let message = random_message(rng);
    let place = REGIONS[1].0 + rng.below(0x10_0000) as u64;
    let to = GuestAddress(place);
    guest.memory.write_slice(&message, to).unwrap();
    for index in 0..count {
        let is_first = index == 0 && !rng.one_in(8);
        let buffer = match is_first {
            true => (place, message.len() as u32),
            false if rng.one_in(10) => (somewhere(rng), rng.next_u64() as u32),
            false => (somewhere(rng), rng.below(5000) as u32),
        };
        let mut flags = if is_first { 0 } else { WRITE };
        if index + 1 < count {
            flags |= NEXT;
        }
        if rng.one_in(12) {
            flags ^= 1 << rng.below(4);
        }
        let next = match rng.one_in(12) {
            true => rng.next_u64() as u16 % (2 * SIZE),
            false => at(index + 1),
        };
        guest.describe(ring, at(index), buffer, flags, next);
    }
    let head = match rng.one_in(60) {
        true => rng.next_u64() as u16,
        false => base,
    };
    guest.offer(queue, head);
    if rng.one_in(60) {
        let index = GuestAddress(ring + 0x1000 + 2);
        guest
            .memory
            .write_obj(rng.next_u64() as u16, index)
            .unwrap();
        guest.rings[queue].kick.write(1).unwrap();
    }
}

/// Mostly whole messages of mostly known operations.
fn random_message(rng: &mut Rng) -> Vec<u8> {
    let mut body: Vec<u8> = (0..rng.below(80)).map(|_| rng.next_u64() as u8).collect();
    if rng.chance(50) {
        // Small numbers, such as handles and lengths.
        body.iter_mut()
            .for_each(|byte| *byte &= 3 * u8::from(rng.one_in(4)));
    }
    if rng.chance(40) {
        body.extend(b"f\0");
    }
    let op = rng.below(54) as u32;
    let mut message = fuse::message(op, rng.next_u64() & !1, rng.below(4) as u64, &body);
    if rng.one_in(6) {
        let at = rng.below(message.len());
        message[at] ^= 1 << rng.below(8);
    }
    message
}
