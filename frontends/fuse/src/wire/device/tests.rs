//! Messages that are wrong, and answers that do not arrive.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rcuwalk::inode::NodeId;
use rcuwalk::{Attr, FileType, Vfs};
use rcuwalk_memfs::MemFs;
use rustix::io::Errno;

use super::abi::{self, init as bits, op};
use super::decode::{self, Header, Offered, Operation, Refused};
use super::dispatch::{Channel, Dispatcher, Next};
use super::encode::{Reply, Ttl};
use super::init;
use crate::Options;
use crate::caller::Caller;
use crate::interrupt::{self, Slot};
use crate::listing::Listed;
use crate::through::Backing;
use crate::wire::Handler;

/// Decodes with the short form of SETXATTR.
fn decode(message: &[u8]) -> Result<(Header, Operation<'_>), Refused> {
    decode::decode(message, false)
}

/// A correct message.
fn message(op: u32, node: u64, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let mut message = Vec::new();
    message.extend((abi::IN_HEADER as u32 + body.len() as u32).to_ne_bytes());
    message.extend(op.to_ne_bytes());
    message.extend(77_u64.to_ne_bytes());
    message.extend(node.to_ne_bytes());
    message.extend([0; 16]);
    message.extend(body);
    message
}

/// Each operation with the length of its fixed part, and its names and data.
const WHOLE: [(u32, usize, &[u8]); 38] = [
    (op::LOOKUP, 0, b"a\0"),
    (op::FORGET, 8, b""),
    (op::GETATTR, 16, b""),
    (op::SETATTR, 88, b""),
    (op::READLINK, 0, b""),
    (op::SYMLINK, 0, b"a\0b\0"),
    (op::MKNOD, 16, b"a\0"),
    (op::MKDIR, 8, b"a\0"),
    (op::UNLINK, 0, b"a\0"),
    (op::RMDIR, 0, b"a\0"),
    (op::RENAME, 8, b"a\0b\0"),
    (op::LINK, 8, b"a\0"),
    (op::OPEN, 8, b""),
    (op::READ, 40, b""),
    (op::WRITE, 40, b""),
    (op::STATFS, 0, b""),
    (op::RELEASE, 24, b""),
    (op::FSYNC, 16, b""),
    (op::SETXATTR, 8, b"user.x\0"),
    (op::GETXATTR, 8, b"user.x\0"),
    (op::LISTXATTR, 8, b""),
    (op::REMOVEXATTR, 0, b"user.x\0"),
    (op::OPENDIR, 8, b""),
    (op::READDIR, 40, b""),
    (op::RELEASEDIR, 24, b""),
    (op::FSYNCDIR, 16, b""),
    (op::ACCESS, 8, b""),
    (op::CREATE, 16, b"a\0"),
    (op::INTERRUPT, 8, b""),
    (op::DESTROY, 0, b""),
    (op::IOCTL, 32, b""),
    (op::BATCH_FORGET, 8, b""),
    (op::FALLOCATE, 32, b""),
    (op::READDIRPLUS, 40, b""),
    (op::RENAME2, 16, b"a\0b\0"),
    (op::LSEEK, 24, b""),
    (op::COPY_FILE_RANGE, 56, b""),
    (op::STATX, 24, b""),
];

/// EDGE-1: a message is right at one length and at no other, whatever length it claims.
#[test]
fn what_is_cut_or_too_long_is_no_request() {
    let more = [
        (op::TMPFILE, 16, &b"/\0"[..]),
        (op::COPY_FILE_RANGE_64, 56, b""),
    ];
    for (op, len, names) in WHOLE.into_iter().chain(more) {
        let whole = message(op, 1, &[&vec![0; len], names]);
        assert!(decode(&whole).is_ok(), "{op}: {:?}", decode(&whole).err());
        let is_forget = [op::FORGET, op::BATCH_FORGET].contains(&op);
        let refused = match is_forget {
            true => Refused::Dropped,
            false => Refused::Answered(77),
        };
        for cut in 0..whole.len() {
            let expected = match cut < abi::IN_HEADER {
                true => Refused::Dropped,
                false => refused,
            };
            let mut part = whole[..cut].to_vec();
            assert_eq!(decode(&part).unwrap_err(), expected, "{op} cut at {cut}");
            if let Some(says) = part.first_chunk_mut() {
                *says = (cut as u32).to_ne_bytes();
            }
            assert_eq!(
                decode(&part).unwrap_err(),
                expected,
                "{op} short by itself: {cut}"
            );
        }
        for more in [&b"x"[..], b"\0", b"xxx\0", &[0; 64]] {
            let longer = message(op, 1, &[&vec![0; len], names, more]);
            assert_eq!(decode(&longer).unwrap_err(), refused, "{op} and {more:?}");
        }
    }
}

/// EDGE-1: SETXATTR in its long form says whether an ACL clears the set-gid bit; each form is
/// wrong where the other one was agreed on.
#[test]
fn setxattr_comes_in_the_form_that_was_agreed_on() {
    let set = |more: &[u8]| {
        let numbers = [5_u32, 2].map(u32::to_ne_bytes).concat();
        message(op::SETXATTR, 1, &[&numbers, more, b"user.x\0value"])
    };
    let kills = |message: &[u8], is_long| match decode::decode(message, is_long) {
        Ok((_, Operation::Setxattr { kills_set_gid, .. })) => Some(kills_set_gid),
        other => other.map(|_| panic!()).ok(),
    };
    let (short, stays) = (set(b""), set(&[0; 8]));
    let goes = set(&[1_u32, 0].map(u32::to_ne_bytes).concat());
    assert_eq!(kills(&short, false), Some(None), "EDGE-1");
    assert_eq!(kills(&stays, true), Some(Some(false)), "EDGE-1");
    assert_eq!(kills(&goes, true), Some(Some(true)), "EDGE-1");
    for wrong in [(&short, true), (&stays, false), (&goes, false)] {
        assert_eq!(kills(wrong.0, wrong.1), None, "EDGE-1");
    }
}

#[test]
fn announced_lengths_are_those_of_what_comes() {
    let announce = |op, before: usize, size: u32, after: usize, data: &[u8]| {
        let body = [
            &vec![0; before],
            &size.to_ne_bytes()[..],
            &vec![0; after],
            data,
        ];
        decode(&message(op, 1, &body)).map(drop).ok()
    };
    for (op, before, after, name) in [
        (op::WRITE, 16, 20, &b""[..]),
        (op::SETXATTR, 0, 4, b"user.x\0"),
        (op::IOCTL, 24, 4, b""),
    ] {
        let data = |len: usize| [name, &vec![b'd'; len]].concat();
        assert_eq!(announce(op, before, 5, after, &data(5)), Some(()), "{op}");
        for size in [0, 4, 6, 1 << 31, u32::MAX] {
            assert_eq!(
                announce(op, before, size, after, &data(5)),
                None,
                "{op}: {size}"
            );
        }
    }
    for (count, is_right) in [(2, true), (1, false), (3, false), (u32::MAX, false)] {
        let told = announce(op::BATCH_FORGET, 0, count, 4, &[0; 32]);
        assert_eq!(told.is_some(), is_right, "{count}");
    }
}

#[test]
fn who_has_no_number_is_told_nothing() {
    let mut lookup = message(op::LOOKUP, 1, &[b"a"]);
    assert_eq!(decode(&lookup).unwrap_err(), Refused::Answered(77));
    lookup[8..16].fill(0);
    assert_eq!(decode(&lookup).unwrap_err(), Refused::Dropped);
    let mut whole = message(op::LOOKUP, 1, &[b"a\0"]);
    whole[8..16].fill(0);
    assert_eq!(decode(&whole).unwrap_err(), Refused::Dropped);
    // Operations that are never answered need no number.
    let mut forget = message(op::FORGET, 9, &[&[0; 8]]);
    forget[8..16].fill(0);
    assert!(matches!(decode(&forget), Ok((_, Operation::Forget(0)))));
}

/// Extensions, whose length counts in eights, are cut off; a length beyond the message is
/// wrong.
#[test]
fn extensions_are_passed_over() {
    let mut lookup = message(op::LOOKUP, 1, &[b"a\0", &[1; 8]]);
    assert!(decode(&lookup).is_err());
    lookup[36..38].copy_from_slice(&1_u16.to_ne_bytes());
    assert!(matches!(decode(&lookup), Ok((_, Operation::Lookup(b"a")))));
    lookup[36..38].copy_from_slice(&2_u16.to_ne_bytes());
    assert_eq!(decode(&lookup).unwrap_err(), Refused::Answered(77));
}

#[test]
fn versions_are_agreed_on_or_not() {
    let (asked_for_rings, has_rings) = (Cell::new(0), Cell::new(true));
    let wanted = init::Wanted {
        passthrough: true,
        writeback: false,
        idmap: true,
    };
    let offer = |major, minor, flags| {
        let offered = Offered {
            major,
            minor,
            max_readahead: 1 << 17,
            flags,
        };
        let answer = init::answer(&offered, &wanted, || {
            asked_for_rings.set(asked_for_rings.get() + 1);
            has_rings.get()
        });
        let mut out = Reply::new();
        out.begin();
        answer.encode(&mut out);
        (answer, out.body().to_vec())
    };
    let all = !0;
    for (major, minor) in [(6, 99), (0, 0), (7, 11)] {
        assert!(matches!(offer(major, minor, all).0, init::Answer::TooOld));
    }
    let (newer, body) = offer(8, 0, all);
    assert!(matches!(newer, init::Answer::TryOlder));
    assert_eq!(body[..4], 7_u32.to_ne_bytes());
    assert_eq!(offer(7, 12, all).1.len(), abi::SHORT_INIT_OUT);
    let (agreed, body) = offer(7, 99, all);
    assert_eq!(body.len(), 64);
    let init::Answer::Agreed(terms) = agreed else {
        panic!("7.99 is not agreed on");
    };
    assert!(terms.passes && terms.rings && terms.has_idmaps());
    let upper = |body: &[u8]| u32::from_ne_bytes(*body[32..].first_chunk().unwrap());
    let rings = (bits::OVER_IO_URING >> 32) as u32;
    assert_ne!(upper(&body) & rings, 0);
    has_rings.set(false);
    let (agreed, body) = offer(7, 99, all);
    assert!(matches!(agreed, init::Answer::Agreed(terms) if !terms.rings));
    assert_eq!(upper(&body) & rings, 0, "there are none");
    asked_for_rings.set(0);
    // Features that are not offered are not promised, and upper bits need the one that says so.
    let (agreed, body) = offer(7, 40, all & !bits::INIT_EXT & !bits::POSIX_ACL);
    let flags = u32::from_ne_bytes(*body[12..].first_chunk().unwrap());
    assert_eq!(u64::from(flags) & bits::POSIX_ACL, 0);
    assert_ne!(u64::from(flags) & bits::DONT_MASK, 0);
    let promises_upper = |terms: init::Terms| terms.passes || terms.rings || terms.has_idmaps();
    assert!(matches!(agreed, init::Answer::Agreed(terms) if !promises_upper(terms)));
    assert_eq!(asked_for_rings.get(), 0, "none are offered");
}

/// A kernel accepts either: data that it holds back, or files of the host.
#[test]
fn what_is_held_back_does_not_pass_through() {
    let agreed = |writeback, flags| {
        let wanted = init::Wanted {
            passthrough: true,
            writeback,
            idmap: false,
        };
        let offered = Offered {
            major: 7,
            minor: 45,
            max_readahead: 1 << 17,
            flags,
        };
        match init::answer(&offered, &wanted, || false) {
            init::Answer::Agreed(terms) => (terms.writes_back(), terms.passes),
            _ => panic!("7.45 is not agreed on"),
        }
    };
    assert_eq!(agreed(false, !0), (false, true));
    assert_eq!(agreed(true, !0), (true, false));
    let without = !bits::WRITEBACK_CACHE;
    assert_eq!(agreed(true, without), (false, true), "not offered");
}

/// A kernel that refuses answers while the test says so.
#[derive(Default)]
struct Recorder {
    is_deaf: Cell<Option<Errno>>,
    heard: RefCell<Vec<Vec<u8>>>,
}

impl Channel for &Recorder {
    fn send(&self, answer: &[u8]) -> rustix::io::Result<()> {
        if let Some(errno) = self.is_deaf.take() {
            return Err(errno);
        }
        self.heard.borrow_mut().push(answer.to_vec());
        Ok(())
    }

    fn register(&self, _: BorrowedFd<'_>) -> io::Result<Backing> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn interrupt(&self, _: u64) -> bool {
        false
    }

    fn interrupt_again(&self, answer: &[u8]) {
        self.heard.borrow_mut().push(answer.to_vec());
    }
}

/// NODE-1: an answer that is not taken leaves no count and no handle behind; one that is taken
/// leaves its own.
#[test]
fn what_the_kernel_has_not_heard_of_is_taken_back() {
    let handler = Handler::new(Vfs::new(MemFs::new()).unwrap(), &Options::default()).unwrap();
    let channel = Recorder::default();
    let mut dispatcher = Dispatcher::new(&handler, &channel, Arc::<Slot>::default());
    let mut out = Reply::new();
    let mut ask = |message: &[u8], is_deaf: Option<Errno>| {
        channel.is_deaf.set(is_deaf);
        assert_ne!(dispatcher.message(message, &mut out), Next::Over);
        channel.heard.borrow_mut().pop()
    };
    let number =
        |answer: &[u8], at: usize| u64::from_ne_bytes(*answer[at..].first_chunk().unwrap());
    let rw = libc::O_RDWR.to_ne_bytes();
    let new = [&rw[..], &0o100_644_u32.to_ne_bytes(), &[0; 8]].concat();
    let create = message(op::CREATE, 1, &[&new, b"a\0"]);
    assert_eq!(ask(&create, Some(Errno::NOENT)), None, "nobody waits");
    assert_eq!((handler.ops.nodes(), handler.ops.open()), (1, 0), "NODE-1");

    let heard = ask(&create, None).unwrap();
    assert_eq!((handler.ops.nodes(), handler.ops.open()), (2, 1));
    let (node, handle) = (number(&heard, 16), number(&heard, 16 + abi::ENTRY_OUT));
    let lookup = message(op::LOOKUP, 1, &[b"a\0"]);
    let open = message(op::OPEN, node, &[&[0; 8]]);
    let tmpfile = message(op::TMPFILE, 1, &[&new, b"/\0"]);
    let mkdir = message(op::MKDIR, 1, &[&[0xff, 1, 0, 0, 0, 0, 0, 0], b"dir\0"]);
    let opendir = message(op::OPENDIR, 1, &[&[0; 8]]);
    assert_eq!(ask(&mkdir, Some(Errno::NOENT)), None);
    for message in [&lookup, &open, &create, &tmpfile, &opendir] {
        for errno in [Errno::NOENT, Errno::NODEV, Errno::INVAL, Errno::MSGSIZE] {
            let told = ask(message, Some(errno));
            let expects = matches!(errno, Errno::INVAL | Errno::MSGSIZE);
            assert_eq!(told.is_some(), expects, "{errno:?}");
            if let Some(told) = told {
                assert_eq!(told[4..8], (-libc::EIO).to_ne_bytes());
            }
            assert_eq!((handler.ops.nodes(), handler.ops.open()), (2, 1), "NODE-1");
        }
    }

    let dir = number(&ask(&opendir, None).unwrap(), 16);
    let piece = [
        &dir.to_ne_bytes()[..],
        &[0; 8],
        &4096_u32.to_ne_bytes(),
        &[0; 20],
    ]
    .concat();
    let list = message(op::READDIRPLUS, 1, &[&piece]);
    ask(&list, Some(Errno::NOENT));
    assert_eq!(handler.ops.nodes(), 2, "NODE-1: neither of the two in it");
    ask(&list, None).unwrap();
    assert_eq!(handler.ops.nodes(), 3);
    // The kernel has been told of the file exactly twice.
    let forget = |count: u64| message(op::FORGET, node, &[&count.to_ne_bytes()]);
    ask(&forget(1), None);
    assert_eq!(handler.ops.nodes(), 3, "NODE-1");
    let close = [&handle.to_ne_bytes()[..], &[0; 16]].concat();
    ask(&message(op::RELEASE, node, &[&close]), None);
    ask(&forget(1), None);
    assert_eq!(handler.ops.nodes(), 2, "NODE-1");
    assert!(handler.ops.getattr(NodeId(node)).is_err());
}

/// Errors that the kernel would not accept in an answer become `EIO`.
#[test]
fn what_is_unknown_is_refused_and_nothing_hangs() {
    let handler = Handler::new(Vfs::new(MemFs::new()).unwrap(), &Options::default()).unwrap();
    let channel = Recorder::default();
    let mut dispatcher = Dispatcher::new(&handler, &channel, Arc::<Slot>::default());
    let mut out = Reply::new();
    let flush = 25;
    for op in [flush, 37, 40, 50, 1000] {
        dispatcher.message(&message(op, 1, &[&[0; 24]]), &mut out);
        let heard = channel.heard.borrow_mut().pop().unwrap();
        assert_eq!(heard[4..8], (-libc::ENOSYS).to_ne_bytes(), "{op}");
    }
    dispatcher.message(&message(op::INIT, 1, &[&[0; 64]]), &mut out);
    let again = channel.heard.borrow_mut().pop().unwrap();
    assert_eq!(again[4..8], (-libc::EINVAL).to_ne_bytes());
    dispatcher.message(&message(op::NOTIFY_REPLY, 1, &[&[0; 24]]), &mut out);
    assert!(channel.heard.borrow().is_empty());
    assert_eq!(
        dispatcher.message(&message(op::DESTROY, 0, &[]), &mut out),
        Next::Over
    );
}

/// A message before INIT is refused, if it can be answered; and the session ends.
#[test]
fn the_first_message_is_init() {
    let handler = Handler::new(Vfs::new(MemFs::new()).unwrap(), &Options::default()).unwrap();
    let channel = Recorder::default();
    let mut dispatcher = Dispatcher::new(&handler, &channel, Arc::<Slot>::default());
    let mut out = Reply::new();
    let mut forget = message(op::FORGET, 9, &[&[0; 8]]);
    forget[8..16].fill(0);
    for (first, errno) in [
        (message(op::LOOKUP, 1, &[b"a\0"]), Some(libc::EIO)),
        (message(op::LOOKUP, 1, &[b"a"]), Some(libc::EINVAL)),
        (message(op::INIT, 0, &[&[0; 7]]), Some(libc::EINVAL)),
        (message(op::INIT, 0, &[&[0; 16]]), Some(libc::EPROTO)),
        (forget, None),
        (vec![0; 39], None),
    ] {
        assert!(matches!(
            dispatcher.first_message(&first, &mut out, || false),
            Next::Disagreed(_)
        ));
        let told = channel.heard.borrow_mut().pop();
        let told = told.map(|told| -i32::from_ne_bytes(*told[4..].first_chunk().unwrap()));
        assert_eq!(told, errno);
    }
    let version = |major: u32| [major, 40, 1 << 17, 0].map(u32::to_ne_bytes).concat();
    let newer = dispatcher.first_message(&message(op::INIT, 0, &[&version(8)]), &mut out, || false);
    assert_eq!(newer, Next::Comes, "it may begin once more");
    let ours = dispatcher.first_message(&message(op::INIT, 0, &[&version(7)]), &mut out, || false);
    assert!(matches!(ours, Next::Agreed(_)));
    let heard = channel.heard.borrow();
    let lens: Vec<_> = heard.iter().map(Vec::len).collect();
    assert_eq!(lens, [16 + 8, 16 + 64]);
}

/// EDGE-1: if a caller of user 0 creates a file, finds a set-id file there instead, and
/// truncates it, the file keeps its bits only if the caller has CAP_FSETID.
#[test]
fn a_create_that_truncates_takes_set_id_bits_as_it_tells() {
    let handler = Handler::new(Vfs::new(MemFs::new()).unwrap(), &Options::default()).unwrap();
    handler.agreed.set(true, false, false);
    let channel = Recorder::default();
    let mut dispatcher = Dispatcher::new(&handler, &channel, Arc::<Slot>::default());
    let mut out = Reply::new();
    let mut create = |flags: i32, kills: u32| {
        let numbers = [flags.cast_unsigned(), 0o6777, 0, kills].map(u32::to_ne_bytes);
        dispatcher.message(
            &message(op::CREATE, 1, &[&numbers.concat(), b"tool\0"]),
            &mut out,
        );
        let told = channel.heard.borrow_mut().pop().unwrap();
        // The mode, after other fields of the attributes.
        let at = abi::OUT_HEADER + 40 + 60;
        u32::from_ne_bytes(*told[at..].first_chunk().unwrap()) & 0o7777
    };
    let truncates = libc::O_WRONLY | libc::O_TRUNC;
    assert_eq!(create(libc::O_WRONLY | libc::O_EXCL, 0), 0o6777);
    assert_eq!(create(truncates, 0), 0o6777, "EDGE-1: with CAP_FSETID");
    assert_eq!(create(libc::O_WRONLY, 0), 0o6777, "EDGE-1: opened");
    assert_eq!(create(truncates, 1), 0o777, "EDGE-1: without");
}

/// EDGE-1: a signal makes no read or write of a file fail or fall short, unless it is deadly;
/// `tests/kernel/interrupt.rs` shows that case.
#[test]
fn a_signal_alone_leaves_files_to_be_read_and_written() {
    let handler = Handler::new(Vfs::new(MemFs::new()).unwrap(), &Options::default()).unwrap();
    let ops = &handler.ops;
    let who = Caller {
        uid: 0,
        gid: 0,
        pid: 0,
        keeps_set_ids: None,
        is_checked: false,
        is_guest: false,
    };
    let file = |name: &[u8]| {
        let made = ops.create(who, (NodeId::ROOT, name), 0o644, 0, libc::O_RDWR);
        let (found, new) = made.unwrap();
        (found.entry.sent(), new.handle)
    };
    let ((one, handle), (_, other)) = (file(b"one"), file(b"other"));
    assert_eq!(
        ops.write(who, (one, handle), 0, b"12345", false).unwrap(),
        5
    );
    let slot = Arc::<Slot>::default();
    interrupt::this_thread_is(&slot);
    let mut data = [0; 5];
    let mut all = || {
        let read = ops.read_into(who, handle, 0, &mut data);
        let written = ops.write(who, (one, handle), 0, b"x", false);
        let copied = ops.copy_file_range(who, (handle, 0), (other, 0), 5);
        [read.map(|n| n as u32), written, copied].map(|done| done.map_err(|err| err.errno()))
    };
    let _answering = slot.answering(4);
    assert_eq!(all(), [Ok(5), Ok(1), Ok(5)]);
    assert!(slot.interrupt(4));
    assert_eq!(all(), [Ok(5), Ok(1), Ok(5)], "EDGE-1");
    let _next = slot.answering(6);
    assert_eq!(all(), [Ok(5), Ok(1), Ok(5)]);
}

/// A file type that the directory does not tell is left open, and entries that do not fit are
/// left out.
#[test]
fn entries_of_a_listing_are_whole_and_fit() {
    let entry = |name| Listed {
        name,
        ino: 5,
        kind: None,
        is_dot: false,
        next: 9,
    };
    let mut out = Reply::new();
    out.begin();
    assert!(out.dirent(64, (&entry(b"abc"), 5, None), |_| ()));
    assert!(out.dirent(
        64,
        (&entry(b"12345678"), 6, Some(FileType::Symlink)),
        |_| ()
    ));
    assert!(!out.dirent(64, (&entry(b"x"), 7, None), |_| ()), "72 bytes");
    let numbers = |ino: u64, len: u32, kind: u32| {
        let (ino, next) = (ino.to_ne_bytes(), 9_u64.to_ne_bytes());
        [&ino[..], &next, &len.to_ne_bytes(), &kind.to_ne_bytes()].concat()
    };
    let unknown = u32::from(libc::DT_UNKNOWN);
    let expected = [
        &numbers(5, 3, unknown)[..],
        b"abc\0\0\0\0\0",
        &numbers(6, 8, u32::from(libc::DT_LNK)),
        b"12345678",
    ];
    assert_eq!(out.body(), expected.concat());
}

/// Names and attributes have timeouts of their own.
#[test]
fn names_and_attributes_have_their_own_times() {
    let mut out = Reply::new();
    out.begin();
    let ttl = Ttl {
        entry: Duration::new(7, 8),
        attr: Duration::new(9, 10),
    };
    let attr = Attr::new(3, FileType::Regular, 0o644);
    out.entry((NodeId(3), 4), &attr, ttl);
    assert_eq!(out.body().len(), abi::ENTRY_OUT);
    let seconds = [3_u64, 4, 7, 9].map(u64::to_ne_bytes).concat();
    let nanos = [8_u32, 10].map(u32::to_ne_bytes).concat();
    assert_eq!(out.body()[..40], [seconds, nanos].concat());
}
