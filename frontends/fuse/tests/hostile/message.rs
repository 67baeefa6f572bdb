//! Messages, whole and broken (`include/uapi/linux/fuse.h`).

/// Operations, by their numbers.
#[allow(dead_code, reason = "the list is whole")]
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
}
use op::*;

use rcuwalk_testkit::Rng;

/// `struct fuse_in_header`.
pub(crate) const HEADER: usize = 40;
/// `struct fuse_entry_out`.
const ENTRY: usize = 128;

/// Nodes and handles from earlier answers.
#[derive(Clone, Default)]
pub(crate) struct Known {
    pub(crate) nodes: Vec<u64>,
    pub(crate) handles: Vec<u64>,
}

impl Known {
    pub(crate) fn learn(&mut self, opcode: u32, body: &[u8]) {
        let number = |at: usize| u64::from_ne_bytes(*body[at..].first_chunk().unwrap());
        match opcode {
            LOOKUP | SYMLINK | MKNOD | MKDIR | LINK => self.nodes.push(number(0)),
            CREATE | TMPFILE => {
                self.nodes.push(number(0));
                self.handles.push(number(ENTRY));
            }
            OPEN | OPENDIR => self.handles.push(number(0)),
            READDIRPLUS => {
                let mut at = 0;
                while at + ENTRY + 24 <= body.len() {
                    let len = u32::from_ne_bytes(*body[at + ENTRY + 16..].first_chunk().unwrap());
                    if number(at) != 0 {
                        self.nodes.push(number(at));
                    }
                    at += ENTRY + (24 + len as usize).next_multiple_of(8);
                }
            }
            _ => {}
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The length in the header; the true length unless it is broken.
    pub(crate) len: Option<u32>,
    pub(super) opcode: u32,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(crate) body: Vec<u8>,
    /// The number of bytes that are sent, if not all.
    pub(crate) cut: Option<usize>,
}

/// Operations that may succeed; frequent ones are repeated.
const REAL: [u32; 45] = [
    LOOKUP,
    LOOKUP,
    LOOKUP,
    FORGET,
    GETATTR,
    SETATTR,
    READLINK,
    SYMLINK,
    MKNOD,
    MKDIR,
    UNLINK,
    RMDIR,
    RENAME,
    LINK,
    OPEN,
    OPEN,
    OPEN,
    READ,
    READ,
    WRITE,
    WRITE,
    STATFS,
    RELEASE,
    FSYNC,
    SETXATTR,
    GETXATTR,
    LISTXATTR,
    REMOVEXATTR,
    OPENDIR,
    OPENDIR,
    READDIR,
    READDIRPLUS,
    RELEASEDIR,
    ACCESS,
    CREATE,
    CREATE,
    IOCTL,
    BATCH_FORGET,
    FALLOCATE,
    RENAME2,
    LSEEK,
    COPY_FILE_RANGE,
    TMPFILE,
    STATX,
    COPY_FILE_RANGE_64,
];

/// Operations that do not.
const ODD: [u32; 17] = [
    0,
    7,
    19,
    25,
    INIT,
    30,
    31,
    32,
    33,
    INTERRUPT,
    37,
    40,
    NOTIFY_REPLY,
    48,
    50,
    54,
    4096,
];

impl Message {
    pub(crate) fn new(opcode: u32, node: u64) -> Message {
        Message {
            len: None,
            opcode,
            node,
            uid: 0,
            body: Vec::new(),
            cut: None,
        }
    }

    pub(crate) fn u32s(mut self, numbers: &[u32]) -> Message {
        self.body
            .extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
        self
    }

    pub(crate) fn u64s(mut self, numbers: &[u64]) -> Message {
        self.body
            .extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
        self
    }

    pub(crate) fn name(mut self, name: &[u8]) -> Message {
        self.body.extend(name);
        self.body.push(0);
        self
    }

    pub(super) fn data(mut self, data: &[u8]) -> Message {
        self.body.extend(data);
        self
    }

    pub(crate) fn init() -> Message {
        let message = Message::new(INIT, 0).u32s(&[7, 40, 1 << 17, !0]);
        message.u32s(&[!0]).u32s(&[0; 11])
    }

    pub(crate) fn forget(node: u64, count: u64) -> Message {
        Message::new(FORGET, node).u64s(&[count])
    }

    pub(crate) fn release(handle: u64) -> Message {
        let message = Message::new(RELEASE, 1).u64s(&[handle]);
        message.u32s(&[0, 0]).u64s(&[0])
    }

    /// A whole message with edge values.
    pub(crate) fn random(random: &mut Rng, known: &Known) -> Message {
        let any = random.next_u64() as u32;
        // DESTROY is rare, or no session would get far.
        let opcode = match random.below(1200) {
            0 => DESTROY,
            1..100 => *random.pick(&[ODD.as_slice(), &[any]].concat()),
            _ => *random.pick(&REAL),
        };
        Message::random_of(opcode, random, known)
    }

    /// A whole message of this operation, with edge values.
    pub(crate) fn random_of(opcode: u32, r: &mut Rng, known: &Known) -> Message {
        let any = r.next_u64();
        let pick = |r: &mut Rng, from: &[u64]| match from.is_empty() || r.one_in(16) {
            true => *r.pick(&[0, 1, 2, 77, 1 << 63, u64::MAX]),
            false => *r.pick(from),
        };
        let node = if r.one_in(2) {
            1
        } else {
            pick(r, &known.nodes)
        };
        let (other, fh, fh2) = (
            if r.one_in(2) {
                1
            } else {
                pick(r, &known.nodes)
            },
            pick(r, &known.handles),
            pick(r, &known.handles),
        );
        let long = [b'x'; 5000];
        let names: [&[u8]; 14] = [
            b"a",
            b"b",
            b"c",
            b"dir",
            b"dir",
            b"link",
            b"",
            b".",
            b"..",
            b"a/b",
            b"../canary",
            b"/etc/passwd",
            b"\xff\xfe",
            &long[..256],
        ];
        let some = if r.one_in(4) { names.len() } else { 6 };
        let (name, name2) = (*r.pick(&names[..some]), *r.pick(&names[..some]));
        let target = *r.pick(&[&b"../canary"[..], b"/", b"a", b"", &long]);
        let xattr = *r.pick(&[
            &b"user.x"[..],
            b"user.",
            b"",
            b"trusted.x",
            b"system.posix_acl_access",
            b"security.capability",
            b"x",
            &long[..300],
        ]);
        let offset = *r.pick(&[
            0,
            0,
            1,
            4096,
            1 << 40,
            1 << 62 | 1,
            i64::MAX as u64,
            1 << 63,
            !0,
        ]);
        let size = *r.pick(&[0, 1, 8, 200, 4096, 65_536]);
        let flags = *r.pick(&[0, 1, 2, 0o100, 0o1000, 0o2002, 0o300_000, any as u32]);
        let mode = *r.pick(&[0o100_644, 0o40_755, 0o10_600, 0o120_777, 0o777, any as u32]);
        let data = vec![b'd'; *r.pick(&[0, 1, 100, 4096, 70_000])];
        let read = |op: u32| {
            let message = Message::new(op, node).u64s(&[fh, offset]);
            message.u32s(&[size, 0]).u64s(&[0, 0])
        };
        let new = Message::new(opcode, node);
        let mut message = match opcode {
            LOOKUP | UNLINK | RMDIR => new.name(name),
            FORGET => new.u64s(&[*r.pick(&[0, 1, 2, !0])]),
            GETATTR => new.u32s(&[flags & 1, 0]).u64s(&[fh]),
            SETATTR => {
                let time = *r.pick(&[0, !0, 1 << 63, i64::MAX as u64]);
                let nsec = *r.pick(&[0, 999_999_999, 1_000_000_000, !0]);
                let new = new
                    .u32s(&[any as u32, 0])
                    .u64s(&[fh, offset, 0, time, time, time]);
                new.u32s(&[nsec, nsec, nsec, mode, 0, *r.pick(&[0, 1000, !0]), !0, 0])
            }
            SYMLINK => new.name(name).name(target),
            MKNOD => new.u32s(&[mode, 5, 0o22, 0]).name(name),
            MKDIR => new.u32s(&[mode, 0]).name(name),
            RENAME => new.u64s(&[other]).name(name).name(name2),
            RENAME2 => new
                .u64s(&[other])
                .u32s(&[flags & 15, 0])
                .name(name)
                .name(name2),
            LINK => new.u64s(&[other]).name(name),
            OPEN | OPENDIR => new.u32s(&[flags, 0]),
            READ | READDIR | READDIRPLUS => read(opcode),
            WRITE => {
                let new = new
                    .u64s(&[fh, offset])
                    .u32s(&[data.len() as u32, flags & 7]);
                new.u64s(&[0, 0]).data(&data)
            }
            RELEASE | RELEASEDIR | 25 => new.u64s(&[fh]).u32s(&[0, 0]).u64s(&[0]),
            FSYNC | 30 => new.u64s(&[fh]).u32s(&[flags & 1, 0]),
            SETXATTR => {
                let new = new.u32s(&[data.len() as u32, flags & 3]);
                new.name(xattr).data(&data)
            }
            GETXATTR => new.u32s(&[size, 0]).name(xattr),
            LISTXATTR => new.u32s(&[size, 0]),
            REMOVEXATTR => new.name(xattr),
            INIT => Message::init(),
            31..=33 => new.u64s(&[fh, 1, offset, !0]).u32s(&[flags & 3, 1, 0, 0]),
            ACCESS => new.u32s(&[flags, 0]),
            CREATE | TMPFILE => new.u32s(&[flags, mode, 0, 0]).name(name),
            STATX => new.u32s(&[flags & 1, 0]).u64s(&[fh]).u32s(&[0, any as u32]),
            READLINK | STATFS | DESTROY => new,
            INTERRUPT => new.u64s(&[any]),
            37 => new.u64s(&[offset]).u32s(&[size, 0]),
            IOCTL => {
                let cmd = *r.pick(&[0x8008_6601, 0x4008_6602, 1, !0]);
                let new = new.u64s(&[fh]).u32s(&[flags & 31, cmd]).u64s(&[0]);
                new.u32s(&[4, 4]).u32s(&[*r.pick(&[0, 0x10, 0x20, !0])])
            }
            40 => new.u64s(&[fh, 1]).u32s(&[0, 0]),
            BATCH_FORGET => new.u32s(&[2, 0]).u64s(&[node, 1, other, !0]),
            FALLOCATE => {
                let len = *r.pick(&[0, 1, 1 << 20, 1 << 62, !0]);
                new.u64s(&[fh, offset, len]).u32s(&[flags & 127, 0])
            }
            LSEEK => new.u64s(&[fh, offset]).u32s(&[any as u32 & 7, 0]),
            COPY_FILE_RANGE | COPY_FILE_RANGE_64 => new.u64s(&[
                fh,
                *r.pick(&[0, 1, 1 << 63]),
                other,
                fh2,
                offset,
                1 << 16,
                0,
            ]),
            _ => new.data(&data),
        };
        message.uid = *r.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 1000, !0]);
        message
    }

    /// Breaks the message: wrong lengths, wrong bytes, or an operation that does not match the
    /// body.
    pub(crate) fn break_it(&mut self, random: &mut Rng) {
        let len = self.body.len();
        match random.below(8) {
            0 => self.len = Some(*random.pick(&[0, 1, 16, 39, 40, 41, 48, 1000, 1 << 31, !0])),
            1 => {
                // At least one byte: an empty message would end the session.
                self.cut = Some(random.below(HEADER + len).max(1));
                if random.one_in(2) {
                    self.len = self.cut.map(|cut| cut as u32);
                }
            }
            2 => self.body.truncate(random.below(len.max(1))),
            3 => self.body.extend([random.next_u64() as u8; 9]),
            4 => self.opcode = *random.pick(&[LOOKUP, OPEN, READ, CREATE, RENAME2, LISTXATTR]),
            5 => self.node = random.next_u64(),
            _ => {
                for _ in 0..random.below(6) + 1 {
                    let at = random.below(len.max(1));
                    if let Some(byte) = self.body.get_mut(at) {
                        *byte = *random.pick(&[0, 1, b'/', 0x7f, 0x80, 0xff]);
                    }
                }
            }
        }
    }

    pub(crate) fn opcode(&self) -> u32 {
        self.opcode
    }

    pub(crate) fn bytes(&self, unique: u64) -> Vec<u8> {
        let whole = (HEADER + self.body.len()) as u32;
        let mut bytes = Vec::new();
        bytes.extend(self.len.unwrap_or(whole).to_ne_bytes());
        bytes.extend(self.opcode.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(self.node.to_ne_bytes());
        for number in [self.uid, self.uid, 0, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(&self.body);
        bytes.truncate(self.cut.unwrap_or(usize::MAX));
        bytes
    }

    fn sent(&self) -> usize {
        let whole = HEADER + self.body.len();
        self.cut.map_or(whole, |cut| cut.min(whole))
    }

    /// True if it is as long as its header says.
    fn is_whole(&self) -> bool {
        let whole = HEADER + self.body.len();
        let says = self.len.map_or(whole, |len| len as usize);
        says == self.sent()
    }

    /// True for DESTROY, and for an empty message, which is what a closed connection reads as.
    pub(crate) fn ends_session(&self) -> bool {
        let is_header = self.sent() == HEADER && self.body.is_empty();
        let is_last = self.opcode == DESTROY && is_header && self.is_whole();
        self.sent() == 0 || is_last
    }

    /// Every message of a header's length or more is answered, except the operations without an
    /// answer.
    pub(crate) fn is_answered(&self) -> bool {
        let never = [FORGET, BATCH_FORGET, NOTIFY_REPLY];
        self.sent() >= HEADER && !never.contains(&self.opcode)
    }

    /// True for requests that would only fill the disk of the machine.
    pub(crate) fn takes_too_much(&self) -> bool {
        let number = |at: usize| {
            let bytes = self.body.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        match self.opcode {
            FALLOCATE => (1 << 22..1 << 60).contains(&number(16)),
            COPY_FILE_RANGE | COPY_FILE_RANGE_64 => number(40) > 1 << 20,
            _ => false,
        }
    }
}
