//! A change of an image as plain data, and as text that a bug report or a test can hold:
//!
//! ```text
//! plain; repaired; Always; Inode 13.0 i_size_lo@4/4=0xffffffff; cut 1000000
//! ```
//!
//! Places are named by their meaning and not by their offset in the image, so that the text
//! means the same where another mke2fs has laid out the image differently.

use std::fmt;
use std::str::FromStr;

use rcuwalk_ext4::Checksums;

use super::layout::{Kind, Layout, Spot};
use super::repair;
use super::seeds::Seed;

/// A seed and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The seed's name.
    pub seed: String,
    /// The changes, in this order.
    pub mutations: Vec<Mutation>,
    /// Whether checksums are put right afterwards.
    pub repaired: bool,
    /// How it is opened.
    pub checksums: Checksums,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A field gets a value.
    Set {
        /// The structure.
        place: Place,
        /// The field's name, for people.
        field: String,
        /// Where it is in the structure.
        at: u32,
        /// Its bytes.
        width: u8,
        /// The new value.
        value: u64,
    },
    /// A structure gets the contents of another one, as far as they fit.
    Copy {
        /// Where the contents are from.
        from: Place,
        /// What gets them.
        to: Place,
    },
    /// The image is cut off after this number of bytes.
    Cut(usize),
}

/// A structure of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of structure.
    pub kind: Kind,
    /// Whose.
    pub number: u32,
    /// Which one of those.
    pub nth: u32,
}

impl Mutant {
    /// The seed's image with the changes made. A change of a structure that the image has
    /// not got is left out.
    pub fn image(&self, seed: &Seed) -> Vec<u8> {
        let mut bytes = seed.bytes.clone();
        let mut end = bytes.len();
        for mutation in &self.mutations {
            match mutation {
                Mutation::Cut(length) => end = end.min(*length),
                other => other.apply(&seed.layout, &mut bytes),
            }
        }
        if self.repaired {
            repair::all(&seed.layout, &mut bytes);
        }
        bytes.truncate(end);
        bytes
    }
}

impl Mutation {
    fn apply(&self, layout: &Layout, bytes: &mut [u8]) {
        let find = |place: &Place| layout.find(*place);
        match self {
            Mutation::Set {
                place,
                at,
                width,
                value,
                ..
            } => {
                let start = match place.kind {
                    Kind::Raw => Some(0),
                    _ => find(place).map(|spot| spot.at),
                };
                let start = start.map(|start| start + *at as usize);
                let width = usize::from(*width).min(8);
                let field = start.and_then(|start| bytes.get_mut(start..start + width));
                let Some(field) = field else { return };
                let value = value.to_le_bytes();
                field.copy_from_slice(&value[..width]);
                if place.kind.is_big_endian() {
                    field.reverse();
                }
            }
            Mutation::Copy { from, to } => {
                let (Some(from), Some(to)) = (find(from), find(to)) else {
                    return;
                };
                let length = from.len.min(to.len);
                bytes.copy_within(from.at..from.at + length, to.at);
            }
            Mutation::Cut(_) => {}
        }
    }

    /// The subject, for counting.
    pub fn about(&self) -> String {
        match self {
            Mutation::Set { place, .. } => format!("{:?}", place.kind),
            Mutation::Copy { .. } => "copy".into(),
            Mutation::Cut(_) => "cut".into(),
        }
    }
}

impl Layout {
    fn find(&self, place: Place) -> Option<&Spot> {
        self.spots.iter().find(|spot| spot.place() == place)
    }
}

impl Spot {
    pub(crate) fn place(&self) -> Place {
        Place {
            kind: self.kind,
            number: self.number,
            nth: self.nth,
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repaired = match self.repaired {
            true => "repaired",
            false => "as it is",
        };
        write!(f, "{}; {repaired}; {:?}", self.seed, self.checksums)?;
        self.mutations
            .iter()
            .try_for_each(|mutation| write!(f, "; {mutation}"))
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutation::Set {
                place,
                field,
                at,
                width,
                value,
            } => write!(f, "{place} {field}@{at}/{width}={value:#x}"),
            Mutation::Copy { from, to } => write!(f, "copy {from} to {to}"),
            Mutation::Cut(length) => write!(f, "cut {length}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}.{}", self.kind, self.number, self.nth)
    }
}

impl FromStr for Mutant {
    type Err = String;

    fn from_str(text: &str) -> Result<Mutant, String> {
        let mut parts = text.split(';').map(str::trim);
        let mut part = |what| parts.next().ok_or(format!("no {what} in: {text}"));
        let seed = part("seed")?.to_owned();
        let repaired = match part("repair")? {
            "repaired" => true,
            "as it is" => false,
            other => return Err(format!("\"{other}\" is neither repaired nor as it is")),
        };
        let checksums = match part("checksums")? {
            "Always" => Checksums::Always,
            "Sample" => Checksums::Sample,
            "Never" => Checksums::Never,
            other => return Err(format!("\"{other}\" says nothing of checksums")),
        };
        Ok(Mutant {
            seed,
            repaired,
            checksums,
            mutations: parts.map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Mutation, String> {
        let bad = || format!("no mutation: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["cut", length] => Ok(Mutation::Cut(length.parse().map_err(|_| bad())?)),
            ["copy", kind, from, "to", other, to] => Ok(Mutation::Copy {
                from: place(kind, from).ok_or_else(bad)?,
                to: place(other, to).ok_or_else(bad)?,
            }),
            [kind, number, field] => set(kind, number, field).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

fn set(kind: &str, number: &str, field: &str) -> Option<Mutation> {
    let (field, rest) = field.split_once('@')?;
    let (at, rest) = rest.split_once('/')?;
    let (width, value) = rest.split_once("=0x")?;
    Some(Mutation::Set {
        place: place(kind, number)?,
        field: field.into(),
        at: at.parse().ok()?,
        width: width.parse().ok()?,
        value: u64::from_str_radix(value, 16).ok()?,
    })
}

fn place(kind: &str, number: &str) -> Option<Place> {
    let (number, nth) = number.split_once('.')?;
    Some(Place {
        kind: Kind::ALL
            .into_iter()
            .find(|known| format!("{known:?}") == kind)?,
        number: number.parse().ok()?,
        nth: nth.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mutation written as text and parsed again is the same.
    #[test]
    fn a_mutant_is_its_text() {
        let text = "plain; repaired; Never; Inode 13.0 i_size_lo@4/4=0xffffffff; \
                    copy ExtentNode 14.2 to Directory 2.0; cut 1000; Raw 0.0 byte@77/1=0x1";
        let mutant: Mutant = text.parse().unwrap();
        assert_eq!(mutant.mutations.len(), 4);
        assert_eq!(mutant.to_string(), text);
        for bad in [
            "",
            "plain; repaired",
            "plain; repaired; Never; Inode 13.0 4=1",
        ] {
            assert!(bad.parse::<Mutant>().is_err(), "{bad}");
        }
    }
}
