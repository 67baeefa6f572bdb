//! Record marking (RFC 5531, section 11): a stream of bytes as records.
//!
//! A record is one fragment or several, each behind four bytes with its length, and a bit that says
//! whether it is the last. [`Records`] holds bytes that have arrived, and nothing for bytes that are
//! only announced (NFS-4).

use std::ops::Range;

/// The longest data of a READ or WRITE.
pub(crate) const MOST_DATA: usize = 1 << 20;
/// The longest record: a WRITE with its headers.
pub(crate) const LONGEST: usize = MOST_DATA + 4096;
/// More fragments than this are no way to send a record.
const MOST_FRAGMENTS: usize = 1024;

const LAST: u32 = 1 << 31;

/// A record is longer than the longest request, or comes in too many pieces. The stream has no
/// next record then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// A whole record.
#[derive(Debug)]
pub(crate) struct Record {
    buf: Vec<u8>,
    range: Range<usize>,
}

impl Record {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.range.clone()]
    }
}

/// The bytes of a stream that are no whole record yet.
#[derive(Debug, Default)]
pub(crate) struct Records {
    buf: Vec<u8>,
    /// Where in `buf` the next fragment begins.
    at: usize,
    /// The fragments of the next record so far.
    assembled: Vec<u8>,
    fragments: usize,
}

impl Records {
    /// Adds bytes that have arrived.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.buf.drain(..self.at);
            self.at = 0;
        }
        self.buf.extend_from_slice(bytes);
    }

    /// Takes the next record, if it is complete.
    ///
    /// # Errors
    /// [`TooLong`], from then on.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, TooLong> {
        loop {
            let Some((mark, body)) = self.buf[self.at..].split_first_chunk() else {
                return Ok(None);
            };
            let mark = u32::from_be_bytes(*mark);
            let len = (mark & !LAST) as usize;
            if self.assembled.len() + len > LONGEST || self.fragments == MOST_FRAGMENTS {
                return Err(TooLong);
            }
            if body.len() < len {
                return Ok(None);
            }
            let start = self.at + 4;
            let range = start..start + len;
            let is_last = mark & LAST != 0;
            if is_last && self.fragments == 0 {
                return Ok(Some(self.whole(range)));
            }
            self.assembled.extend_from_slice(&self.buf[range.clone()]);
            self.fragments += 1;
            self.skip_to(range.end);
            if is_last {
                self.fragments = 0;
                let buf = std::mem::take(&mut self.assembled);
                let range = 0..buf.len();
                return Ok(Some(Record { buf, range }));
            }
        }
    }

    /// A record of one fragment: without a copy if there is nothing behind it.
    fn whole(&mut self, range: Range<usize>) -> Record {
        if range.end == self.buf.len() {
            self.at = 0;
            let buf = std::mem::take(&mut self.buf);
            return Record { buf, range };
        }
        let buf = self.buf[range.clone()].to_vec();
        self.skip_to(range.end);
        let range = 0..buf.len();
        Record { buf, range }
    }

    fn skip_to(&mut self, at: usize) {
        self.at = at;
        if at == self.buf.len() {
            // Not kept for a client that may never send anything again.
            (self.buf, self.at) = (Vec::new(), 0);
        }
    }

    /// True if part of a record has arrived.
    pub(crate) fn is_partial(&self) -> bool {
        self.at < self.buf.len() || self.fragments > 0
    }

    /// Bytes of memory that are held.
    pub(crate) fn held(&self) -> usize {
        self.buf.capacity() + self.assembled.capacity()
    }

    /// True if [`next`](Self::next) has something to say without further bytes.
    pub(crate) fn has_next(&self) -> bool {
        match self.buf[self.at..].split_first_chunk() {
            Some((mark, body)) => {
                let len = (u32::from_be_bytes(*mark) & !LAST) as usize;
                body.len() >= len || len > LONGEST
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(bytes: &[u8], is_last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if is_last { LAST } else { 0 };
        [&mark.to_be_bytes()[..], bytes].concat()
    }

    #[test]
    fn records_come_whole_however_the_stream_is_cut() {
        let stream = [
            fragment(b"one", true),
            fragment(b"t", false),
            fragment(b"", false),
            fragment(b"wo", true),
            fragment(b"", true),
            fragment(b"three", true),
        ]
        .concat();
        for step in 1..=stream.len() {
            let (mut records, mut seen) = (Records::default(), Vec::new());
            for bytes in stream.chunks(step) {
                records.extend(bytes);
                while let Some(record) = records.next().unwrap() {
                    seen.push(record.bytes().to_vec());
                }
                assert!(!records.has_next());
            }
            assert_eq!(seen, [&b"one"[..], b"two", b"", b"three"], "cut at {step}");
            assert!(!records.is_partial());
            assert_eq!(records.buf.capacity() + records.assembled.capacity(), 0);
        }
    }

    /// NFS-4: neither a long record nor one of many pieces is waited for.
    #[test]
    fn records_that_are_too_long_are_refused() {
        let mut records = Records::default();
        records.extend(&(LONGEST as u32 + 1).to_be_bytes());
        assert!(records.has_next());
        assert_eq!(records.next().unwrap_err(), TooLong, "NFS-4");
        let mut records = Records::default();
        for _ in 0..3 {
            records.extend(&fragment(&vec![0; LONGEST / 2], false));
        }
        assert_eq!(records.next().unwrap_err(), TooLong, "NFS-4");
        let mut records = Records::default();
        records.extend(&[0; 4].repeat(MOST_FRAGMENTS + 1));
        assert_eq!(records.next().unwrap_err(), TooLong, "NFS-4");
    }
}
