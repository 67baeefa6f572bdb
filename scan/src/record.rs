//! One row of a scan's output, as it is written and as it is read again.

use rcuwalk::scan::ScanEntry;
use rcuwalk::{Attr, FileType, Timestamp};

/// The row of one path.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Only with `--changed-since`.
    pub(crate) change: Option<Change>,
    /// From the scanned root; `.` for the root itself.
    pub(crate) path: Vec<u8>,
    pub(crate) attr: Attr,
    pub(crate) generation: Option<u32>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) handle: Option<(i32, Vec<u8>)>,
}

/// Receives the records of an earlier scan; an error ends the reading.
pub(crate) type Each<'a> = dyn FnMut(Record) -> Result<(), String> + 'a;

/// The path of the root.
pub(crate) const ROOT: &[u8] = b".";

/// What happened to a path since.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    /// In which respects, by name.
    pub(crate) what: Vec<&'static str>,
    /// The path it had before, if it was renamed.
    pub(crate) from: Option<Vec<u8>>,
}

/// See `docs/scan.md` for what each of them claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    New,
    Changed,
    Renamed,
    Removed,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] = [Kind::New, Kind::Changed, Kind::Renamed, Kind::Removed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::New => "new",
            Kind::Changed => "changed",
            Kind::Renamed => "renamed",
            Kind::Removed => "removed",
        }
    }
}

impl Record {
    /// One to be filled in.
    pub(crate) fn blank() -> Record {
        Record {
            change: None,
            path: Vec::new(),
            attr: Attr::new(0, FileType::Regular, 0),
            generation: None,
            target: None,
            handle: None,
        }
    }

    /// Takes over what a scan delivers, into the memory it has already.
    pub(crate) fn fill(&mut self, entry: &ScanEntry<'_>) {
        self.change = None;
        entry.path_into(&mut self.path);
        if self.path.is_empty() {
            self.path.extend_from_slice(ROOT);
        }
        self.attr = *entry.attr;
        self.generation = entry.generation;
        self.target = entry.target.map(<[u8]>::to_vec);
        self.handle = entry.handle.map(|(kind, bytes)| (kind, bytes.to_vec()));
    }

    pub(crate) fn is_root(&self) -> bool {
        self.path == ROOT
    }

    /// The time of birth, where the file system keeps one.
    pub(crate) fn btime(&self) -> Option<Timestamp> {
        Some(self.attr.btime).filter(|btime| *btime != Timestamp::default())
    }

    /// The device number, where it is a device.
    pub(crate) fn rdev(&self) -> Option<u64> {
        let device = [FileType::BlockDevice, FileType::CharDevice].contains(&self.attr.kind);
        device.then_some(self.attr.rdev)
    }

    /// The handle's type and its bytes in hexadecimal digits, `1:0c0000009a2b3c4d`.
    pub(crate) fn handle_text(&self) -> Option<String> {
        use std::fmt::Write;
        let (kind, bytes) = self.handle.as_ref()?;
        let mut text = format!("{kind}:");
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }

    /// About how much memory it takes.
    #[cfg(any(feature = "parquet", feature = "sqlite"))]
    pub(crate) fn weight(&self) -> usize {
        size_of::<Record>() + self.path.len() + self.target.as_ref().map_or(0, Vec::len)
    }
}

/// The names of the types, as all formats have them.
const TYPES: [(FileType, &str); 7] = [
    (FileType::Regular, "file"),
    (FileType::Directory, "directory"),
    (FileType::Symlink, "symlink"),
    (FileType::BlockDevice, "block device"),
    (FileType::CharDevice, "character device"),
    (FileType::Fifo, "fifo"),
    (FileType::Socket, "socket"),
];

pub(crate) fn type_name(kind: FileType) -> &'static str {
    let found = TYPES.iter().find(|(known, _)| *known == kind);
    found.map_or("unknown", |(_, name)| name)
}

pub(crate) fn type_named(name: &str) -> Option<FileType> {
    let found = TYPES.iter().find(|(_, known)| *known == name);
    found.map(|(kind, _)| *kind)
}
