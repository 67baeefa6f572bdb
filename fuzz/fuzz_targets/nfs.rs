//! NFS calls over a tree in memory: whatever comes is answered in good form or hung up on, and
//! nothing panics. The bytes are calls, each behind its length (two bytes), its procedure and a byte
//! that says what comes before its arguments: nothing, the root's handle, or the handle of a file.
//! With the highest bit of the length the bytes are a whole record instead.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcuwalk::{HandleKey, Vfs};
use rcuwalk_memfs::MemFs;
use rcuwalk_nfs::rehearse::Rehearsal;
use rcuwalk_nfs::{Options, Squash};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;

fuzz_target!(|bytes: &[u8]| {
    // Small, so that what fills it is soon over.
    let vfs = Vfs::new(MemFs::with_limits(1 << 20, 200)).expect("a tree");
    let options = Options::new(HandleKey::new([7; 16])).squash(Squash::None).max_files(64);
    let server = Rehearsal::new(vfs, options).expect("a server");
    let mounted = server.record(&call(1, MOUNT, 1, &opaque(b"/"))).expect("an answer");
    let root = opaque(field(&mounted[32..]));
    let create = [&root[..], &opaque(b"file"), &[0; 28]].concat();
    let created = server.record(&call(2, NFS, 8, &create)).expect("an answer");
    let file = opaque(field(&created[36..]));
    let (mut rest, mut number) = (bytes, 3);
    while let Some(([low, high, procedure, kind], more)) = rest.split_first_chunk() {
        let len = u16::from_le_bytes([*low, *high]);
        let (args, more) = more.split_at(more.len().min(usize::from(len & 0x7fff)));
        rest = more;
        let before: &[u8] = match kind % 3 {
            0 => &[],
            1 => &root,
            _ => &file,
        };
        let program = if kind & 0x80 == 0 { NFS } else { MOUNT };
        let record = match len & 1 << 15 {
            0 => call(number, program, u32::from(*procedure), &[before, args].concat()),
            _ => args.to_vec(),
        };
        number += 1;
        if let Some(reply) = server.record(&record) {
            let mark = u32::from_be_bytes(*reply.first_chunk().expect("a mark"));
            assert_eq!(mark, 1 << 31 | (reply.len() - 4) as u32);
            assert_eq!(reply[4..8], record[..4], "another's answer");
        }
        assert_eq!(server.faults(), 0);
    }
    server.stream(bytes);
    assert_eq!(server.faults(), 0);
});

/// A call of root's.
fn call(xid: u32, program: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    let header = [xid, 0, 2, program, 3, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0];
    let header = header.iter().flat_map(|number: &u32| number.to_be_bytes());
    header.chain(args.iter().copied()).collect()
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut opaque = (bytes.len() as u32).to_be_bytes().to_vec();
    opaque.extend(bytes);
    opaque.resize(opaque.len().next_multiple_of(4), 0);
    opaque
}

/// The bytes behind their length.
fn field(bytes: &[u8]) -> &[u8] {
    let len = u32::from_be_bytes(*bytes.first_chunk().expect("a length"));
    &bytes[4..4 + len as usize]
}
