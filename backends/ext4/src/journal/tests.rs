//! Journals written by debugfs and by hand, against the replay of debugfs and against
//! what they must say.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::bytes::be32_at;
use crate::checksum::crc32c;
use crate::error::{Error, Place, Result};
use crate::overlay::Overlay;
use crate::testing::{Image, open};
use crate::volume::Volume;

use super::log::{Log, MAGIC, ReadLog, block_type};
use super::replay::replay;

/// The kinds of journals that debugfs writes: features of the image, and its options.
const KINDS: [(&[&str], &str); 7] = [
    (&["-b", "1024", "-O", "^metadata_csum,^64bit"], ""),
    (&["-b", "1024", "-O", "^metadata_csum"], ""),
    (&["-b", "4096", "-O", "^metadata_csum"], "-c"),
    (&["-b", "1024", "-O", "metadata_csum"], "-c -v 2"),
    (&["-b", "1024", "-O", "metadata_csum,^64bit"], "-c -v 2"),
    (&["-b", "1024", "-O", "metadata_csum"], "-c -v 3"),
    (&["-b", "4096", "-O", "metadata_csum,^64bit"], "-c -v 3"),
];

/// An image with a journal that debugfs has written.
struct Dirty {
    image: Image,
    block_size: usize,
}

impl Dirty {
    fn make(options: &[&str], journal: &str, requests: &[String]) -> Option<Dirty> {
        let image = Image::make("16M", options, |tree| {
            fs::create_dir(tree.join("dir")).unwrap();
            fs::write(tree.join("dir/file"), b"contents").unwrap();
        })?;
        let dirty = Dirty {
            block_size: options[1].parse().unwrap(),
            image,
        };
        dirty.write(journal, requests);
        Some(dirty)
    }

    /// Has debugfs write transactions.
    fn write(&self, journal: &str, requests: &[String]) {
        let script = self.image.path().with_extension("requests");
        let text = format!("jo {journal}\n{}\njc\n", requests.join("\n"));
        fs::write(&script, text).unwrap();
        let done = std::process::Command::new("debugfs")
            .args(["-w", "-f"])
            .args([&script, &self.image.path()])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// The image after debugfs's replay.
    fn replayed(&self) -> Vec<u8> {
        self.image.debugfs(&["jr"]);
        self.image.bytes()
    }
}

/// A file of blocks, the bytes of each all the same; one that looks like the journal's.
fn contents(at: &Path, block_size: usize, blocks: &[u8]) -> String {
    let mut bytes: Vec<u8> = Vec::new();
    for fill in blocks {
        let start = bytes.len();
        bytes.resize(start + block_size, *fill);
        if *fill == b'M' {
            bytes[start..start + 4].copy_from_slice(&MAGIC.to_be_bytes());
        }
    }
    let path = at.with_extension(format!("{}", blocks[0]));
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

/// A replayed image reads like one that debugfs has replayed: later contents win, revoked ones
/// do not come back, escaped magic numbers do, uncommitted ones do not count.
#[test]
fn replay_is_that_of_debugfs() {
    // debugfs writes over the end of a transaction that revokes, so such a one is the last.
    for (options, journal) in KINDS {
        for last in ["jw -b 3002,3005 -r 3000,3002,3003", "jw -c -b 3002,3005"] {
            if journal == "-c" && last.contains("-r") {
                // Its checksum of such a transaction is not what the kernel wants.
                continue;
            }
            let temp = tempfile::tempdir().unwrap();
            let block_size: usize = options[1].parse().unwrap();
            let file = |blocks: &[u8]| contents(&temp.path().join("data"), block_size, blocks);
            let requests = [
                format!("jw -b 3000,3001,3002,3003 {}", file(b"aMcd")),
                format!("jw -b 3001,3004 {}", file(b"Be")),
                format!("{last} {}", file(b"CM")),
            ];
            let Some(dirty) = Dirty::make(options, journal, &requests) else {
                return;
            };
            let what = format!("{options:?} {journal} {last}");
            let before = dirty.image.bytes();
            let volume = open(before.clone()).unwrap();
            let committed = if last.contains("-c") { 2 } else { 3 };
            assert_eq!(volume.overlay().transactions(), committed, "{what}");
            let after = dirty.replayed();
            assert_ne!(before, after, "{what}");
            for block in 2900..3100 {
                let bytes = block * block_size..(block + 1) * block_size;
                let ours = volume.block(block as u64).unwrap();
                assert!(*ours == after[bytes], "{what}: block {block}");
            }
        }
    }
}

/// Metadata that is only in the journal is what names lead to.
#[test]
fn names_that_are_only_in_the_journal_are_found() {
    for (options, journal) in KINDS {
        let Some(dirty) = Dirty::make(options, journal, &[]) else {
            return;
        };
        // What changes in an image is put into the journal of the one before.
        let before = dirty.image.bytes();
        let requests = [
            "mkdir /dir/new",
            "symlink /dir/new/link target",
            "rm /dir/file",
        ];
        dirty.image.debugfs(&requests);
        let after = dirty.image.bytes();
        fs::write(dirty.image.path(), &before).unwrap();
        let size = dirty.block_size;
        let differ = |block: &usize| {
            let bytes = block * size..(block + 1) * size;
            before[bytes.clone()] != after[bytes]
        };
        let changed: Vec<usize> = (0..before.len() / size).filter(differ).collect();
        let blocks: Vec<u8> = changed
            .iter()
            .flat_map(|block| &after[block * size..(block + 1) * size])
            .copied()
            .collect();
        let file = dirty.image.path().with_extension("changes");
        fs::write(&file, blocks).unwrap();
        let numbers: Vec<_> = changed.iter().map(usize::to_string).collect();
        dirty.write(
            journal,
            &[format!("jw -b {} {}", numbers.join(","), file.display())],
        );
        let volume = open(dirty.image.bytes()).unwrap();
        assert_eq!(volume.overlay().len(), changed.len());
        let find = |path: &[&str]| {
            path.iter().try_fold(2, |dir, name| {
                let inode = volume.inode(dir).unwrap();
                let dir = crate::dir::Directory::open(&volume, &inode).unwrap();
                Some(dir.lookup(name.as_bytes()).unwrap()?.ino)
            })
        };
        let link = find(&["dir", "new", "link"]).unwrap();
        let link = volume.inode(link).unwrap();
        assert_eq!(crate::link::read(&volume, &link).unwrap(), b"target");
        assert_eq!(find(&["dir", "file"]), None, "{options:?} {journal}");
        let clean = open(after).unwrap();
        assert_eq!(
            volume.super_block().free_inodes_count(),
            clean.super_block().free_inodes_count(),
            "the super block is the journal's"
        );
    }
}

/// Where each byte of a journal with checksums matters, another value is noticed; no
/// value anywhere panics.
#[test]
fn damage_in_the_journal_is_an_error_or_ends_it() {
    for (options, journal) in [KINDS[2], KINDS[3], KINDS[5]] {
        let temp = tempfile::tempdir().unwrap();
        let block_size = options[1].parse().unwrap();
        let file = |blocks: &[u8]| contents(&temp.path().join("data"), block_size, blocks);
        let requests = [
            format!("jw -b 3000,3001 {}", file(b"aM")),
            format!("jw -b 3002,3001 {}", file(b"cd")),
        ];
        let Some(dirty) = Dirty::make(options, journal, &requests) else {
            return;
        };
        let good = open_overlay(&dirty.image).unwrap();
        assert_eq!(good.len(), 3);
        let start = journal_start(&dirty.image.bytes(), block_size);
        let image = fs::OpenOptions::new()
            .write(true)
            .open(dirty.image.path())
            .unwrap();
        let bytes = dirty.image.bytes();
        let offsets = (0..10 * block_size)
            .filter(|offset| *offset % block_size < 70 || offset % 97 == 0)
            .filter(|offset| *offset >= block_size || *offset < 0x100);
        for offset in offsets {
            let at = start + offset;
            image.write_all_at(&[bytes[at] ^ 0x81], at as u64).unwrap();
            if let Ok(overlay) = open_overlay(&dirty.image) {
                for block in 3000..3003 {
                    let ours = overlay.get(block);
                    // Older contents, if the log ends earlier; never anything else.
                    let known = [b'a', b'M', b'c', b'd', 0];
                    let first = ours.map_or(0, |ours| ours[block_size - 1]);
                    let whole = ours.is_none_or(|ours| ours[4..].iter().all(|b| *b == first));
                    assert!(
                        known.contains(&first) && whole,
                        "{journal}: byte {offset}, block {block}"
                    );
                }
            }
            image.write_all_at(&[bytes[at]], at as u64).unwrap();
        }
    }
}

fn open_overlay(image: &Image) -> Result<Overlay> {
    let source = crate::source::FileSource::open(image.path()).unwrap();
    let volume = Volume::open(Box::new(source), crate::Checksums::Never, 0)?;
    let mut overlay = Overlay::of_transactions(volume.overlay().transactions());
    for block in 0..volume.super_block().blocks_count() {
        if let Some(contents) = volume.overlay().get(block) {
            overlay.insert(block, contents.into());
        }
    }
    Ok(overlay)
}

/// The journal's first byte in the image.
fn journal_start(bytes: &[u8], block_size: usize) -> usize {
    bytes
        .chunks(block_size)
        .position(|block| {
            be32_at(block, 0) == MAGIC && be32_at(block, 4) == block_type::SUPER_BLOCK_V2
        })
        .unwrap()
        * block_size
}

const BLOCK: usize = 1024;

/// A journal by hand, of 32 blocks, without checksums unless [`sign`](Self::sign) is used.
struct ByHand {
    blocks: Vec<Vec<u8>>,
    next: usize,
    sequence: u32,
}

impl ReadLog for ByHand {
    fn read(&self, block: u32, buf: &mut [u8]) -> Result<()> {
        buf.copy_from_slice(&self.blocks[block as usize]);
        Ok(())
    }
}

impl ByHand {
    const LENGTH: usize = 32;

    /// One whose oldest transaction is at block `start`, with the number `sequence`.
    fn new(start: usize, sequence: u32) -> ByHand {
        let mut journal = ByHand {
            blocks: vec![vec![0; BLOCK]; Self::LENGTH],
            next: start,
            sequence,
        };
        let header = [MAGIC, block_type::SUPER_BLOCK_V2, 0, BLOCK as u32];
        journal.put(0, 0, &header);
        let log = [Self::LENGTH as u32, 1, sequence, start as u32];
        journal.put(0, 0x10, &log);
        journal
    }

    fn put(&mut self, block: usize, at: usize, words: &[u32]) {
        for (word, at) in words.iter().zip((at..).step_by(4)) {
            self.blocks[block][at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
    }

    fn has(mut self, compat: u32, incompat: u32) -> ByHand {
        self.put(0, 0x24, &[compat, incompat]);
        self
    }

    /// The next block of the ring.
    fn advance(&mut self) -> usize {
        let at = self.next;
        self.next = if at + 1 == Self::LENGTH { 1 } else { at + 1 };
        at
    }

    fn header(&mut self, block_type: u32) -> usize {
        let at = self.advance();
        self.blocks[at].fill(0);
        self.put(at, 0, &[MAGIC, block_type, self.sequence]);
        at
    }

    /// A descriptor and the blocks, each filled with a byte.
    fn blocks(&mut self, blocks: &[(u32, u8)]) -> &mut Self {
        let descriptor = self.header(block_type::DESCRIPTOR);
        for (index, (block, fill)) in blocks.iter().enumerate() {
            let last = if index + 1 == blocks.len() { 8 } else { 0 };
            // Each tag says that it has the same UUID, and so has none.
            self.put(descriptor, 12 + 8 * index, &[*block, 2 | last]);
            let at = self.advance();
            self.blocks[at].fill(*fill);
        }
        self
    }

    fn revoke(&mut self, blocks: &[u32]) -> &mut Self {
        let at = self.header(block_type::REVOKE);
        self.put(at, 12, &[16 + 4 * blocks.len() as u32]);
        self.put(at, 16, blocks);
        self
    }

    fn commit(&mut self) -> &mut Self {
        self.header(block_type::COMMIT);
        self.sequence = self.sequence.wrapping_add(1);
        self
    }

    fn replay(&self) -> Result<Overlay> {
        let log = Log::open(self, BLOCK, Self::LENGTH as u32)?;
        replay(&log, 10_000)
    }

    /// What the blocks are filled with after the replay, `-` where the image's stay.
    fn result(&self, blocks: &[u64]) -> String {
        let overlay = self.replay().unwrap();
        let first = |block| overlay.get(block).map_or(b'-', |bytes| bytes[0]);
        blocks.iter().map(|block| first(*block) as char).collect()
    }
}

/// The log goes on at its beginning, and numbers after the largest at zero.
#[test]
fn the_ring_and_the_numbers_wrap_around() {
    let mut journal = ByHand::new(28, u32::MAX);
    journal.blocks(&[(70, b'a'), (71, b'b')]).commit();
    journal.blocks(&[(71, b'B'), (72, b'C')]).commit();
    journal.revoke(&[72]).commit();
    journal.blocks(&[(73, b'D')]);
    assert_eq!(journal.replay().unwrap().transactions(), 3);
    assert_eq!(journal.result(&[70, 71, 72, 73]), "aB--");
}

/// A block that was revoked and then written again has what was written last.
#[test]
fn revoking_holds_for_what_was_before() {
    let mut journal = ByHand::new(1, 7);
    journal.blocks(&[(70, b'a'), (71, b'a')]).commit();
    journal.revoke(&[70, 71]).commit();
    journal.blocks(&[(71, b'c')]).commit();
    assert_eq!(journal.result(&[70, 71]), "-c");
    // In one transaction revoking wins, wherever it stands.
    let mut journal = ByHand::new(1, 7);
    journal.revoke(&[70]).blocks(&[(70, b'a')]).commit();
    assert_eq!(journal.result(&[70]), "-");
}

/// A log that fills the ring ends where it began, and one without an end is an error.
#[test]
fn a_log_does_not_lead_in_a_circle() {
    let mut journal = ByHand::new(1, 7);
    for _ in 1..=10 {
        journal.blocks(&[(70, b'a')]).commit();
    }
    assert_eq!(journal.result(&[70]), "a");
    assert_eq!(journal.replay().unwrap().transactions(), 10);
    let mut journal = ByHand::new(1, 7);
    for _ in 1..ByHand::LENGTH {
        journal.revoke(&[70]);
    }
    match journal.replay() {
        Err(Error::Corrupt { place, .. }) => assert!(matches!(place, Place::Journal(_))),
        other => panic!("{other:?}"),
    }
    // Tags for more blocks than there are.
    let mut journal = ByHand::new(1, 7);
    journal.header(block_type::DESCRIPTOR);
    for tag in 0..40 {
        journal.put(1, 12 + 8 * tag, &[70, 2]);
    }
    assert!(journal.replay().is_err());
}

/// A transaction with a fast commit after it is refused, an old fast commit is not.
#[test]
fn pending_fast_commits_are_refused() {
    let reader = |sequence: u32| {
        let mut journal = ByHand::new(1, 7).has(0, 0x20);
        journal.blocks(&[(70, b'a')]).commit();
        // With an area for fast commits the log must be 1024 blocks long at least.
        journal.blocks.resize(1024 + 20, vec![0; BLOCK]);
        journal.put(0, 0x10, &[1024 + 20]);
        journal.put(0, 0x54, &[20]);
        let head = &mut journal.blocks[1024 + 1];
        head[..4].copy_from_slice(&[0x9, 0, 8, 0]);
        head[8..12].copy_from_slice(&sequence.to_le_bytes());
        let log = Log::open(&journal, BLOCK, 1024 + 20).unwrap();
        replay(&log, 10_000).map(|overlay| overlay.len())
    };
    assert_eq!(
        reader(8).unwrap_err().to_string(),
        "unsupported feature: fast_commit (pending commits)"
    );
    assert_eq!(reader(7).unwrap(), 1);
    assert_eq!(reader(9).unwrap(), 1);
}

/// A super block that cannot be right, or says what we do not know, ends everything.
#[test]
fn a_bad_super_block_is_refused() {
    let with = |at: usize, value: u32| {
        let mut journal = ByHand::new(1, 7);
        journal.put(0, at, &[value]);
        match journal.replay() {
            Err(Error::Corrupt { field, .. }) => field,
            Err(Error::Unsupported { .. }) => "unsupported",
            Err(Error::Checksum { what, .. }) => what,
            other => panic!("{at:#x}: {other:?}"),
        }
    };
    assert_eq!(with(0, 0), "h_magic");
    assert_eq!(with(4, 1), "h_blocktype");
    assert_eq!(with(0xc, 4096), "s_blocksize");
    assert_eq!(with(0x10, 33), "s_maxlen");
    assert_eq!(with(0x14, 0), "s_first");
    assert_eq!(with(0x14, 32), "s_first");
    assert_eq!(with(0x1c, 32), "s_start");
    assert_eq!(with(0x28, 0x40), "unsupported");
    assert_eq!(with(0x2c, 1), "unsupported");
    assert_eq!(with(0x28, 0x18), "s_feature_incompat");
    assert_eq!(with(0x28, 0x10), "s_checksum_type");
    let mut unsigned = ByHand::new(1, 7).has(0, 0x10);
    unsigned.blocks[0][0x50] = 4;
    assert!(matches!(unsigned.replay(), Err(Error::Checksum { .. })));
}

/// Revoked blocks are not read: the kernel mounts an image with such a block.
#[test]
fn what_was_revoked_may_be_anything() {
    let mut journal = ByHand::new(1, 1);
    journal.blocks(&[(u32::MAX, b'a'), (70, b'b')]).commit();
    journal.revoke(&[u32::MAX]).commit();
    assert_eq!(journal.result(&[70]), "b");
}

/// A block of the image that the journal has newer contents for is within the image.
#[test]
fn tags_lead_nowhere_outside() {
    let mut journal = ByHand::new(1, 7);
    journal.blocks(&[(10_000, b'a')]).commit();
    match journal.replay() {
        Err(Error::Corrupt { place, field, .. }) => {
            assert_eq!((place, field), (Place::Journal(1), "t_blocknr"));
        }
        other => panic!("{other:?}"),
    }
}

/// Of a commit block only the first sector may have been written: that is enough. With
/// commits that need not be in order the log ends before one that is damaged, otherwise
/// the journal is corrupt.
#[test]
fn a_damaged_commit_ends_the_log_or_everything() {
    let signed = |incompat: u32, damage: &dyn Fn(&mut [u8])| {
        let mut journal = ByHand::new(1, 7).has(0, incompat | 0x10);
        journal.revoke(&[1]).commit();
        journal.revoke(&[1]).commit();
        journal.blocks[0][0x50] = 4;
        let seed = crc32c(!0, &[0; 16]);
        for (block, at, seed) in [
            (0, 0xfc, !0),
            (1, BLOCK - 4, seed),
            (2, 16, seed),
            (3, BLOCK - 4, seed),
            (4, 16, seed),
        ] {
            let length = if block == 0 { 1024 } else { BLOCK };
            let sum = crc32c(seed, &journal.blocks[block][..length]);
            journal.put(block, at, &[sum]);
        }
        damage(&mut journal.blocks[4]);
        journal.replay().map(|overlay| overlay.transactions())
    };
    assert_eq!(signed(0, &|_| ()).unwrap(), 2);
    assert_eq!(signed(0, &|commit| commit[512..].fill(0x55)).unwrap(), 2);
    assert!(matches!(
        signed(0, &|commit| commit[20] = 1),
        Err(Error::Checksum {
            place: Place::Journal(4),
            ..
        })
    ));
    const ASYNC_COMMIT: u32 = 4;
    assert_eq!(signed(ASYNC_COMMIT, &|commit| commit[20] = 1).unwrap(), 1);
}
