//! XDR (RFC 4506), as far as NFS needs it: numbers, and bytes with a length.
//!
//! The reader lends parts of the record, and compares each length with the bytes that are there. It
//! allocates nothing, so a number from the wire costs no memory.

/// The arguments do not have the form that the protocol gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbage;

pub(crate) type Decoded<T> = Result<T, Garbage>;

/// Reads the fields of a record one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// # Errors
    /// There are bytes behind the last field.
    pub(crate) fn end(&self) -> Decoded<()> {
        match self.rest {
            [] => Ok(()),
            _ => Err(Garbage),
        }
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Garbage)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Decoded<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// A field that may be missing.
    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Decoded<T>,
    ) -> Decoded<Option<T>> {
        match self.bool()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    /// Bytes with their length before them, `most` at most, and padding behind.
    pub(crate) fn opaque(&mut self, most: usize) -> Decoded<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Garbage);
        }
        let padded = len.next_multiple_of(4);
        let (bytes, rest) = self.rest.split_at_checked(padded).ok_or(Garbage)?;
        self.rest = rest;
        Ok(&bytes[..len])
    }
}

/// A reply that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u32(&mut self, number: u32) {
        self.bytes.extend(number.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.bytes.extend(number.to_be_bytes());
    }

    pub(crate) fn bool(&mut self, is: bool) {
        self.u32(u32::from(is));
    }

    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes.extend(bytes);
        self.pad(bytes.len());
    }

    /// The zeros behind bytes of this length.
    pub(crate) fn pad(&mut self, len: usize) {
        let padding = len.next_multiple_of(4) - len;
        self.bytes.extend(&[0; 3][..padding]);
    }

    /// A field that may be missing.
    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Replaces a number that was written at `at`.
    pub(crate) fn put_u32(&mut self, at: usize, number: u32) {
        self.bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Drops all that was written after `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_as_they_were_written() {
        let mut writer = Writer::default();
        writer.u32(7);
        writer.u64(1 << 40);
        writer.opaque(b"hello");
        writer.optional(Some(3), Writer::u32);
        writer.optional(None::<u32>, Writer::u32);
        let mut reader = Reader::new(&writer.bytes);
        assert_eq!(reader.u32(), Ok(7));
        assert_eq!(reader.u64(), Ok(1 << 40));
        assert_eq!(reader.opaque(5), Ok(&b"hello"[..]));
        assert_eq!(reader.optional(Reader::u32), Ok(Some(3)));
        assert_eq!(reader.optional(Reader::u32), Ok(None));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn lengths_that_are_too_large_are_refused() {
        for (len, most) in [(u32::MAX, usize::MAX), (9, usize::MAX), (5, 4), (8, 7)] {
            let bytes = [&len.to_be_bytes()[..], &[0; 8]].concat();
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.opaque(most), Err(Garbage), "{len} of {most}");
        }
        // The padding is missing.
        let mut reader = Reader::new(&[0, 0, 0, 1, b'x']);
        assert_eq!(reader.opaque(8), Err(Garbage));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).bool(), Err(Garbage));
        assert_eq!(Reader::new(&[0; 3]).u32(), Err(Garbage));
    }
}
