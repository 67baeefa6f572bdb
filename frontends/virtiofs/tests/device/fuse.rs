//! Messages of FUSE, as a guest's kernel sends them.

/// Operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const READDIRPLUS: u32 = 44;
}

pub(crate) const ROOT: u64 = 1;

/// The user and the process that send a request.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

pub(crate) const BY_ROOT: Who = Who {
    uid: 0,
    gid: 0,
    pid: 77,
};

pub(crate) fn message(op: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    message_of(BY_ROOT, op, unique, node, body)
}

pub(crate) fn message_of(who: Who, op: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend((40 + body.len() as u32).to_ne_bytes());
    message.extend(op.to_ne_bytes());
    message.extend(unique.to_ne_bytes());
    message.extend(node.to_ne_bytes());
    for number in [who.uid, who.gid, who.pid, 0] {
        message.extend(number.to_ne_bytes());
    }
    message.extend(body);
    message
}

pub(crate) fn init(unique: u64) -> Vec<u8> {
    // 7.38; what 6.1 offers, and the upper half.
    let flags: u32 = 0x73ff_ffff;
    let mut body = [0; 64];
    for (at, number) in [7, 38, 1 << 17, flags].into_iter().enumerate() {
        body[at * 4..][..4].copy_from_slice(&u32::to_ne_bytes(number));
    }
    message(op::INIT, unique, 0, &body)
}

pub(crate) fn create(who: Who, unique: u64, name: &str) -> Vec<u8> {
    let mut body = Vec::new();
    // O_RDWR | O_CREAT
    for number in [0o102_u32, 0o100_644, 0o22, 0] {
        body.extend(number.to_ne_bytes());
    }
    body.extend(name.as_bytes());
    body.push(0);
    message_of(who, op::CREATE, unique, ROOT, &body)
}

/// The message of a WRITE, without its data.
pub(crate) fn write(unique: u64, node: u64, fh: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(fh.to_ne_bytes());
    body.extend(offset.to_ne_bytes());
    body.extend(len.to_ne_bytes());
    body.extend([0; 20]);
    let mut message = message(op::WRITE, unique, node, &body);
    let all = message.len() as u32 + len;
    message[..4].copy_from_slice(&all.to_ne_bytes());
    message
}

pub(crate) fn read(op: u32, unique: u64, node: u64, fh: u64, offset: u64, size: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(fh.to_ne_bytes());
    body.extend(offset.to_ne_bytes());
    body.extend(size.to_ne_bytes());
    body.extend([0; 20]);
    message(op, unique, node, &body)
}

pub(crate) fn name(op: u32, unique: u64, name: &str) -> Vec<u8> {
    message(op, unique, ROOT, &[name.as_bytes(), b"\0"].concat())
}

pub(crate) fn forget(node: u64, count: u64) -> Vec<u8> {
    message(op::FORGET, 0, node, &count.to_ne_bytes())
}

/// Checks the header of an answer, and returns its error and its body.
pub(crate) fn parsed(answer: &[u8], unique: u64) -> (i32, &[u8]) {
    assert!(answer.len() >= 16, "{answer:?}");
    assert_eq!(u32_at(answer, 0) as usize, answer.len());
    assert_eq!(u64_at(answer, 8), unique);
    (-u32_at(answer, 4).cast_signed(), &answer[16..])
}

/// The body of an answer that is no error.
pub(crate) fn good(answer: &[u8], unique: u64) -> &[u8] {
    let (error, body) = parsed(answer, unique);
    assert_eq!(error, 0);
    body
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}
