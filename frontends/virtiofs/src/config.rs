//! What a guest reads of the device's configuration: the tag by which it mounts, and how many
//! queues there are for requests.

use std::fmt;
use std::str::FromStr;

/// The name by which a guest mounts the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

/// The longest tag, in bytes.
const LONGEST: usize = 36;

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> Result<Tag, String> {
        match text.len() {
            1..=LONGEST if !text.contains('\0') => Ok(Tag(text.to_owned())),
            _ => Err(format!("a tag has 1 to {LONGEST} bytes")),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Tag {
    /// A part of `struct virtio_fs_config`; `None` beyond its end.
    pub(crate) fn config(&self, queues: u32, offset: u32, size: u32) -> Option<Vec<u8>> {
        let mut config = [0; LONGEST + 4];
        config[..self.0.len()].copy_from_slice(self.0.as_bytes());
        config[LONGEST..].copy_from_slice(&queues.to_le_bytes());
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        Some(config.get(start..end)?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_padded_and_bounded() {
        let tag: Tag = "home".parse().unwrap();
        let config = tag.config(3, 0, 40).unwrap();
        assert_eq!(&config[..6], b"home\0\0");
        assert_eq!(config[36..], [3, 0, 0, 0]);
        assert_eq!(tag.config(3, 36, 4).unwrap(), [3, 0, 0, 0]);
        for (offset, size) in [(0, 41), (40, 1), (u32::MAX, u32::MAX)] {
            assert_eq!(tag.config(3, offset, size), None);
        }
        assert!("".parse::<Tag>().is_err() && "x".repeat(37).parse::<Tag>().is_err());
        assert!("a\0b".parse::<Tag>().is_err());
        let longest: Tag = "x".repeat(36).parse().unwrap();
        assert_eq!(longest.config(1, 35, 2).unwrap(), *b"x\x01");
    }
}
