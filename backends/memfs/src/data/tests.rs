use std::collections::BTreeMap;

use rcuwalk_testkit::Rng;

use super::*;

/// A plain model of a file: its bytes, and the state of each page.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    /// By number: true if it is data to SEEK_DATA.
    pages: BTreeMap<u64, bool>,
}

const PAGE_LEN: u64 = PAGE as u64;

impl Model {
    fn write(&mut self, buf: &[u8], offset: u64, room: u64) -> Option<usize> {
        let end = offset + buf.len() as u64;
        let mut room = room;
        let mut written = 0;
        for page in offset / PAGE_LEN..end.div_ceil(PAGE_LEN) {
            if !self.pages.contains_key(&page) {
                if room == 0 {
                    break;
                }
                room -= 1;
            }
            self.pages.insert(page, true);
            written = ((page + 1) * PAGE_LEN).min(end) - offset;
        }
        let (offset, written) = (offset as usize, written as usize);
        if written > 0 && self.bytes.len() < offset + written {
            self.bytes.resize(offset + written, 0);
        }
        if written > 0 {
            self.bytes[offset..offset + written].copy_from_slice(&buf[..written]);
        }
        (written > 0).then_some(written)
    }

    fn truncate(&mut self, size: u64) {
        if size <= self.bytes.len() as u64 {
            self.pages.retain(|page, _| page * PAGE_LEN < size);
        }
        self.bytes.resize(size as usize, 0);
    }

    fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let whole = |page: u64| page * PAGE_LEN >= offset && (page + 1) * PAGE_LEN <= end;
        self.pages.retain(|page, _| !whole(*page));
        let size = self.bytes.len();
        self.bytes[size.min(offset as usize)..size.min(end as usize)].fill(0);
    }

    fn allocate(&mut self, offset: u64, len: u64, keep: bool, room: u64) -> bool {
        let end = offset + len;
        let range = offset / PAGE_LEN..end.div_ceil(PAGE_LEN);
        let missing = range.clone().filter(|page| !self.pages.contains_key(page));
        if missing.count() as u64 > room {
            return false;
        }
        for page in range {
            let again = self.pages.contains_key(&page);
            self.pages.insert(page, again);
        }
        if !keep && self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
        }
        true
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Option<u64> {
        let size = self.bytes.len() as u64;
        let is_data = |at: u64| self.pages.get(&(at / PAGE_LEN)) == Some(&true);
        let starts = std::iter::successors(Some(offset), |at| Some((at / PAGE_LEN + 1) * PAGE_LEN));
        let mut starts = starts.take_while(|at| *at < size);
        match to {
            SeekTo::Data => starts.find(|at| is_data(*at)),
            SeekTo::Hole => Some(starts.find(|at| !is_data(*at)).unwrap_or(size)),
        }
    }
}

fn check(data: &Data, model: &Model, space: &Space, taken_by_others: u64, what: &str) {
    assert_eq!(data.size(), model.bytes.len() as u64, "{what}: size");
    assert_eq!(data.taken(), model.pages.len() as u64, "{what}: pages");
    let taken = data.taken() + taken_by_others;
    assert_eq!(space.pages().1, taken, "{what}: the budget");
    let mut all = vec![0xAA; model.bytes.len() + 10];
    assert_eq!(
        data.read_at(space, &mut all, 0),
        model.bytes.len(),
        "{what}"
    );
    assert!(all[..model.bytes.len()] == model.bytes, "{what}: contents");
}

fn run(seed: u64, far: u64, ops: usize) {
    let limit = 24;
    let space = Space::new(limit * PAGE_LEN, 0);
    let (mut data, mut model) = (Data::default(), Model::default());
    let mut rng = Rng::new(seed);
    let mut below = |end: u64| rng.below(end as usize) as u64;
    for op in 0..ops {
        let offset = below(far);
        let len = 1 + below(3 * PAGE_LEN);
        let room = limit - data.taken();
        let what = format!("seed {seed}, operation {op}");
        match below(10) {
            0..=3 => {
                let buf = vec![1 + op as u8 % 255; len as usize];
                let written = data.write_at(&space, &buf, offset).ok();
                assert_eq!(written, model.write(&buf, offset, room), "{what}");
            }
            4 => {
                data.truncate(&space, offset);
                model.truncate(offset);
            }
            5..=6 => {
                data.punch(&space, offset, len);
                model.punch(offset, len);
            }
            7 => {
                let keep = below(2) == 0;
                let done = data.allocate(&space, offset, len, keep).is_ok();
                let may = model.allocate(offset, len, keep, room);
                assert_eq!(done, may, "{what}");
            }
            _ => {
                let offset = offset.min(data.size().saturating_sub(1));
                if offset < data.size() {
                    for to in [SeekTo::Data, SeekTo::Hole] {
                        let found = data.seek(offset, to);
                        assert_eq!(found, model.seek(offset, to), "{what}: {to:?}");
                    }
                }
            }
        }
        check(&data, &model, &space, 0, &what);
    }
    data.truncate(&space, 0);
    assert_eq!((data.taken(), space.pages().1), (0, 0), "all is given back");
}

/// A file is a row of bytes, whatever it is kept in: near its start, and far out.
#[test]
fn contents_are_those_of_a_plain_row_of_bytes() {
    for seed in 1..60 {
        run(seed, 10 * PAGE_LEN, 120);
        run(seed, 120 * PAGE_LEN, 60);
    }
}

#[test]
fn the_largest_file_has_a_last_byte() {
    let space = Space::new(0, 0);
    let mut data = Data::default();
    assert_eq!(data.write_at(&space, b"x", MAX_SIZE - 1).unwrap(), 1);
    assert_eq!((data.size(), data.taken()), (MAX_SIZE, 1));
    let mut byte = [0];
    assert_eq!(data.read_at(&space, &mut byte, MAX_SIZE - 1), 1);
    assert_eq!(byte, *b"x");
    assert_eq!(data.read_at(&space, &mut byte, MAX_SIZE), 0);
    assert_eq!(data.read_at(&space, &mut byte, u64::MAX), 0);
    let last = (MAX_SIZE - 1) / PAGE_LEN * PAGE_LEN;
    assert_eq!(data.seek(0, SeekTo::Data), Some(last));
    assert_eq!(data.seek(last, SeekTo::Hole), Some(MAX_SIZE));
    assert!(data.allocate(&space, 0, MAX_SIZE, true).is_err());
    data.punch(&space, 0, u64::MAX);
    assert_eq!((data.size(), data.taken()), (MAX_SIZE, 0));
    assert_eq!(data.seek(0, SeekTo::Data), None);
}

/// A file written backwards ends in one row.
#[test]
fn pages_far_out_join_the_row() {
    let space = Space::new(0, 0);
    let mut data = Data::default();
    for page in (0..50).rev() {
        let bytes = [page as u8; PAGE];
        data.write_at(&space, &bytes, page * PAGE_LEN).unwrap();
    }
    assert!(data.pages.tree.is_none());
    assert_eq!(data.pages.row.len(), 50);
    assert_eq!(data.seek(5, SeekTo::Hole), Some(50 * PAGE_LEN));
    // What could not be written leaves nothing behind.
    let full = Space::new(PAGE_LEN, 0);
    let mut data = Data::default();
    data.write_at(&full, b"x", 0).unwrap();
    for page in 1..100 {
        assert!(data.write_at(&full, b"x", page * PAGE_LEN).is_err());
    }
    assert_eq!(data.pages.row.len(), 1);
    assert!(data.pages.tree.is_none());
}

/// Holes are not accounted for, so they take no memory.
#[test]
fn a_row_of_holes_is_not_kept() {
    let space = Space::new(0, 0);
    let mut data = Data::default();
    let pages = 3000;
    let bytes = vec![7; pages * PAGE];
    data.write_at(&space, &bytes, 0).unwrap();
    for page in 0..pages as u64 - 1 {
        data.punch(&space, page * PAGE_LEN, PAGE_LEN);
        let kept = data.pages.row.len() as u64;
        assert!(kept <= 4 * data.taken() + 4, "{kept} for {}", data.taken());
    }
    assert!(data.pages.row.capacity() < 64);
    let mut all = vec![1; bytes.len()];
    data.read_at(&space, &mut all, 0);
    let last = bytes.len() - PAGE;
    assert!(all[..last].iter().all(|byte| *byte == 0) && all[last..] == bytes[last..]);
    data.write_at(&space, &bytes, 0).unwrap();
    assert_eq!(data.pages.row.len(), pages, "one row again");
    data.truncate(&space, 0);
    assert_eq!(space.pages().1, 0);
}
