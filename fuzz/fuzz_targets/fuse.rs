//! Raw FUSE messages over a tree in memory: whatever comes is answered, at most once and in
//! good form, and nothing panics. The bytes are messages, each behind its length; without the
//! highest bit there, the length and the number in the header are made right first, so that
//! most get past that.
//!
//! Seeds are what tests/hostile of the front end would send:
//! `RCUWALK_HOSTILE_SEEDS=DIR cargo test -p rcuwalk-fuse --test hostile seeds`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcuwalk::Vfs;
use rcuwalk_fuse::rehearse;
use rcuwalk_memfs::MemFs;

/// `struct fuse_in_header`, and where in it the number is.
const HEADER: usize = 40;
const UNIQUE: std::ops::Range<usize> = 8..16;

fuzz_target!(|bytes: &[u8]| {
    let messages = messages(bytes);
    // Small, so that what fills it is soon over.
    let tree = MemFs::with_limits(1 << 20, 200);
    let vfs = Vfs::new(tree).expect("a tree");
    let mut last = None;
    let answered = |number: usize, answer: &[u8]| {
        assert_ne!(last.replace(number), Some(number), "answered twice");
        let len = u32::from_ne_bytes(*answer.first_chunk().expect("a length"));
        assert_eq!(len as usize, answer.len());
        let error = i32::from_ne_bytes(*answer[4..].first_chunk().expect("an error"));
        assert!((-511..=0).contains(&error), "{error}");
        assert_eq!(answer[UNIQUE], messages[number][UNIQUE], "another's answer");
    };
    let messages = messages.iter().map(Vec::as_slice);
    rehearse(vfs, messages, answered).expect("a root");
});

fn messages(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let len = u16::from_le_bytes(*len);
        let is_as_it_is = len & 1 << 15 != 0;
        let (message, rest) = rest.split_at(rest.len().min(usize::from(len & 0x7fff)));
        let mut message = message.to_vec();
        if !is_as_it_is && message.len() >= HEADER {
            let number = messages.len() as u64 + 2;
            let len = message.len() as u32;
            message[..4].copy_from_slice(&len.to_ne_bytes());
            message[UNIQUE].copy_from_slice(&number.to_ne_bytes());
            // Extensions are none.
            message[36..HEADER].fill(0);
        }
        messages.push(message);
        bytes = rest;
    }
    messages
}
