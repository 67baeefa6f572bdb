//! The pages of a file, by their numbers.

use std::collections::BTreeMap;

use crate::slabs::PageId;

/// A page of a file.
#[derive(Default)]
pub(super) enum Page {
    /// Not there; reads as zeros.
    #[default]
    Hole,
    /// Promised by an allocation: accounted for, but still a hole to SEEK_HOLE.
    Promised,
    /// All zeros, without memory: a page promised twice.
    Zeros,
    Bytes(PageId),
}

/// Pages by number: those of a file written from its start in a row, those far out in a
/// tree.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) row: Vec<Page>,
    /// Beyond the row. In a box, as few files have it.
    #[expect(clippy::box_collection, reason = "most files have none, and are small")]
    pub(super) tree: Option<Box<BTreeMap<u64, Page>>>,
    /// Holes in the row, or more.
    holes: usize,
}

impl Page {
    pub(super) fn is_taken(&self) -> bool {
        !matches!(self, Page::Hole)
    }

    pub(super) fn is_data(&self) -> bool {
        matches!(self, Page::Zeros | Page::Bytes(_))
    }
}

impl Pages {
    pub(super) fn get(&self, number: u64) -> Option<&Page> {
        match usize::try_from(number) {
            Ok(at) if at < self.row.len() => self.row.get(at),
            _ => self.tree.as_ref()?.get(&number),
        }
    }

    /// The page of that number, to be filled in if it is not there yet.
    pub(super) fn get_or_hole(&mut self, number: u64) -> &mut Page {
        if number == self.row.len() as u64 {
            self.lengthen_row();
        }
        if number < self.row.len() as u64 {
            &mut self.row[number as usize]
        } else {
            let tree = self.tree.get_or_insert_default();
            tree.entry(number).or_default()
        }
    }

    /// By one page, and those of the tree that follow on it.
    fn lengthen_row(&mut self) {
        let next = self.row.len() as u64;
        let Some(tree) = &mut self.tree else {
            return self.row.push(Page::Hole);
        };
        self.row.push(tree.remove(&next).unwrap_or_default());
        while let Some(page) = tree.remove(&(self.row.len() as u64)) {
            self.row.push(page);
        }
        if tree.is_empty() {
            self.tree = None;
        }
    }

    /// Removes pages: how many were there, and those that held bytes, for the caller to free.
    pub(super) fn remove(&mut self, first: u64, end: u64) -> (u64, Vec<PageId>) {
        let (mut gone, mut ids) = (0, Vec::new());
        let mut take = |page: Page| {
            gone += u64::from(page.is_taken());
            if let Page::Bytes(id) = page {
                ids.push(id);
            }
        };
        let row = self.row.len();
        let within = |number: u64| usize::try_from(number).unwrap_or(row).min(row);
        let range = within(first)..within(end);
        self.holes += range.len();
        for page in &mut self.row[range] {
            take(std::mem::take(page));
        }
        if let Some(tree) = &mut self.tree {
            let cut = tree.extract_if(first..end, |_, _| true);
            cut.for_each(|(_, page)| take(page));
            if tree.is_empty() {
                self.tree = None;
            }
        }
        while self.row.pop_if(|last| !last.is_taken()).is_some() {}
        if self.holes > self.row.len() / 4 * 3 {
            self.thin_out();
        }
        // What a long file took goes back with it.
        if self.row.len() < self.row.capacity() / 4 {
            self.row.shrink_to(2 * self.row.len());
        }
        (gone, ids)
    }

    /// Moves the remaining pages of a row of holes into the tree. Holes are not accounted for,
    /// so a row of them must not stay: its memory would have no limit. It takes as many steps
    /// as pages went since the last time, and a third more.
    #[cold]
    fn thin_out(&mut self) {
        self.holes = self.row.iter().filter(|page| !page.is_taken()).count();
        if self.holes <= self.row.len() / 4 * 3 {
            return;
        }
        let row = std::mem::take(&mut self.row).into_iter().zip(0..);
        let left = row.filter(|(page, _)| page.is_taken());
        let tree = self.tree.get_or_insert_default();
        tree.extend(left.map(|(page, number)| (number, page)));
        self.holes = 0;
    }

    /// How many of a range are there.
    pub(super) fn count(&self, range: &std::ops::Range<u64>) -> u64 {
        let row = self.row.len();
        let within = |number: u64| usize::try_from(number).unwrap_or(row).min(row);
        let in_row = self.row[within(range.start)..within(range.end)].iter();
        let in_tree = self.tree.iter().flat_map(|tree| tree.range(range.clone()));
        in_row
            .chain(in_tree.map(|(_, page)| page))
            .filter(|page| page.is_taken())
            .count() as u64
    }

    pub(super) fn next_data(&self, first: u64) -> Option<u64> {
        let row = usize::try_from(first).unwrap_or(usize::MAX);
        let in_row = self.row.iter().skip(row).position(Page::is_data);
        if let Some(at) = in_row {
            return Some(first + at as u64);
        }
        let mut in_tree = self.tree.as_ref()?.range(first..);
        in_tree.find(|(_, page)| page.is_data()).map(|(at, _)| *at)
    }

    pub(super) fn next_hole(&self, first: u64) -> u64 {
        let mut at = first;
        while let Some(page) = usize::try_from(at).ok().and_then(|at| self.row.get(at)) {
            if !page.is_data() {
                return at;
            }
            at += 1;
        }
        let beyond = self.tree.iter().flat_map(move |tree| tree.range(at..));
        for (number, page) in beyond {
            if *number != at || !page.is_data() {
                break;
            }
            at += 1;
        }
        at
    }
}
