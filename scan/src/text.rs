//! Names, times and modes as text, without loss.
//!
//! A path that is UTF-8 is written as it is. One that is not is *escaped*: each byte that
//! is no part of UTF-8 becomes `\xNN`, each backslash becomes two, and the field
//! `path_encoding` beside it says `escaped`. Without that field nothing is escaped.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use rcuwalk::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What an `…_encoding` field says where there is something to say.
pub(crate) const ESCAPED: &str = "escaped";

/// A name as text.
pub(crate) struct Escaped<'a> {
    pub(crate) text: Cow<'a, str>,
    /// `None` if the text is the name.
    pub(crate) encoding: Option<&'static str>,
}

impl<'a> Escaped<'a> {
    pub(crate) fn of(name: &'a [u8]) -> Escaped<'a> {
        match std::str::from_utf8(name) {
            Ok(text) => Escaped {
                text: Cow::Borrowed(text),
                encoding: None,
            },
            Err(_) => Escaped {
                text: Cow::Owned(escape(name)),
                encoding: Some(ESCAPED),
            },
        }
    }
}

fn escape(name: &[u8]) -> String {
    use fmt::Write;
    let mut text = String::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        text += &chunk.valid().replace('\\', r"\\");
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, r"\x{byte:02x}");
        }
    }
    text
}

/// The name behind a text; `None` if the text or its encoding is none of ours.
pub(crate) fn unescape(text: &str, encoding: Option<&str>) -> Option<Vec<u8>> {
    match encoding {
        None | Some("") => return Some(text.as_bytes().to_vec()),
        Some(ESCAPED) => {}
        Some(_) => return None,
    }
    let mut name = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            name.push(byte);
            continue;
        }
        match bytes.next()? {
            b'\\' => name.push(b'\\'),
            b'x' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let value = digit(bytes.next()?)? * 16 + digit(bytes.next()?)?;
                name.push(u8::try_from(value).ok()?);
            }
            _ => return None,
        }
    }
    Some(name)
}

/// A moment as seconds since 1970 with nine decimals, `-0.500000000` half a second before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timestamp { sec, nsec } = self.0;
        if sec < 0 && nsec > 0 {
            // The stored fraction counts upwards from the second before.
            write!(f, "-{}.{:09}", -(sec + 1), 1_000_000_000 - nsec)
        } else {
            write!(f, "{sec}.{nsec:09}")
        }
    }
}

impl FromStr for Time {
    type Err = ();

    fn from_str(text: &str) -> Result<Time, ()> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let decimal = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !decimal(whole) || !decimal(fraction) || fraction.len() > 9 {
            return Err(());
        }
        // Only i64::MIN has no positive counterpart.
        let whole: i128 = whole.parse().map_err(|_| ())?;
        let nsec: u32 = format!("{fraction:0<9}").parse().map_err(|_| ())?;
        let (sec, nsec) = match (negative, nsec) {
            (false, nsec) => (whole, nsec),
            (true, 0) => (-whole, 0),
            (true, nsec) => (-whole - 1, 1_000_000_000 - nsec),
        };
        let sec = i64::try_from(sec).map_err(|_| ())?;
        Ok(Time(Timestamp { sec, nsec }))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse()
            .map_err(|()| de::Error::custom("not a time in seconds"))
    }
}

/// Permission bits in octal, `0644`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u16);

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let mode = u16::from_str_radix(&text, 8);
        mode.map(Mode)
            .map_err(|_| de::Error::custom("not an octal mode"))
    }
}

/// A time for people; in seconds where the calendar ends.
pub(crate) fn date(at: Timestamp) -> String {
    let nsec = i32::try_from(at.nsec).unwrap_or(0);
    match jiff::Timestamp::new(at.sec, nsec) {
        Ok(at) => format!("{at:.0}"),
        Err(_) => format!("@{}", Time(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_as_text() {
        let names: [&[u8]; 6] = [
            b"plain",
            b"a\\x41",
            b"caf\xe9\\x",
            b"\xff\xfe",
            b"",
            b"\xc3\n\"",
        ];
        for name in names {
            let escaped = Escaped::of(name);
            let back = unescape(&escaped.text, escaped.encoding);
            assert_eq!(back.as_deref(), Some(name), "{}", escaped.text);
        }
        assert_eq!(Escaped::of(b"caf\xe9\\").text, r"caf\xe9\\");
        for bad in [r"\x4", r"\q", r"\", r"\xgg"] {
            assert_eq!(unescape(bad, Some(ESCAPED)), None, "{bad}");
        }
    }

    #[test]
    fn every_time_survives_as_text() {
        for (sec, nsec, text) in [
            (0, 0, "0.000000000"),
            (-1, 500_000_000, "-0.500000000"),
            (-2, 1, "-1.999999999"),
            (1_700_000_000, 123_456_789, "1700000000.123456789"),
            (i64::MIN, 0, "-9223372036854775808.000000000"),
            (i64::MAX, 999_999_999, "9223372036854775807.999999999"),
        ] {
            let time = Time(Timestamp { sec, nsec });
            assert_eq!(time.to_string(), text);
            assert_eq!(text.parse(), Ok(time), "{text}");
        }
        for bad in [
            "",
            "-",
            "1.",
            ".5",
            "1.0000000000",
            "x",
            "99999999999999999999",
            "+1",
        ] {
            assert_eq!(bad.parse::<Time>(), Err(()), "{bad}");
        }
    }
}
