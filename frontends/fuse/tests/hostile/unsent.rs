//! Messages that are not sent: fuser panics at them, or they only fill a disk.

use crate::message::op::*;
use crate::message::{HEADER, Message};

impl Message {
    /// The list in `docs/fuse.md`.
    pub(crate) fn fuser_panics(&self) -> bool {
        let at_32 = |body: &[u8], at: usize| {
            let bytes = body.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map(|bytes| u32::from_ne_bytes(*bytes))
        };
        if self.len.is_some_and(|len| (len as usize) < HEADER) {
            return self.cut.is_none_or(|cut| cut >= HEADER);
        }
        let Some(body) = self.seen() else {
            return false;
        };
        let past_name = |from: usize| {
            let end = body.get(from..)?.iter().position(|byte| *byte == 0)?;
            Some(from + end + 1)
        };
        let past_struct = match self.opcode {
            WRITE if body.len() >= 40 => Some((40, 16)),
            SETXATTR => past_name(8).map(|at| (at, 0)),
            _ => None,
        };
        if let Some((start, size_at)) = past_struct {
            return at_32(&body, size_at) != u32::try_from(body.len() - start).ok();
        }
        match self.opcode {
            IOCTL => at_32(&body, 24)
                .is_some_and(|size| body.len() >= 32 && body.len() - 32 < size as usize),
            SETATTR if body.len() >= 88 => [(32, 56, 1 << 4), (40, 60, 1 << 5), (48, 64, 1 << 10)]
                .into_iter()
                .any(|(sec, nsec, valid)| {
                    let is_set = at_32(&body, 0).unwrap() & valid != 0;
                    let sec = i64::from_ne_bytes(*body[sec..].first_chunk().unwrap());
                    let nsec = at_32(&body, nsec).unwrap();
                    is_set && !(i64::MIN + 9..i64::MAX - 9).contains(&sec) && nsec > 0
                }),
            _ => false,
        }
    }

    /// One of each kind.
    pub(crate) fn known_panics() -> Vec<Message> {
        let short = Message {
            len: Some(39),
            ..Message::new(STATFS, 1)
        };
        let write = Message::new(WRITE, 1).u64s(&[1, 0]).u32s(&[2, 0]);
        let times = Message::new(SETATTR, 1).u32s(&[1 << 4, 0]);
        let times = times.u64s(&[0, 0, 0, 1 << 63, 0, 0]);
        vec![
            short,
            write.u64s(&[0, 0]).data(b"x"),
            Message::new(SETXATTR, 1)
                .u32s(&[2, 0])
                .name(b"user.x")
                .data(b"x"),
            Message::new(IOCTL, 1)
                .u64s(&[1])
                .u32s(&[0, 1])
                .u64s(&[0])
                .u32s(&[8, 0]),
            times.u32s(&[1, 0, 0, 0, 0, 0, 0, 0]),
        ]
    }

    /// What would only fill the disk of who tests, or a socket.
    pub(crate) fn takes_too_much(&self) -> bool {
        let Some(body) = self.seen() else {
            return false;
        };
        let number = |at: usize| {
            let bytes = body.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        match self.opcode {
            FALLOCATE => (1 << 22..1 << 60).contains(&number(16)),
            COPY_FILE_RANGE => number(40) > 1 << 20,
            READ | READDIR | READDIRPLUS => number(16) as u32 > 1 << 17,
            _ => false,
        }
    }
}
