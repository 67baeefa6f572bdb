//! The contents of a file: pages, and nothing where nothing was written.

use std::collections::BTreeMap;

use rcuwalk::{Error, Result, SeekTo};

use crate::space::{PAGE, Space};

/// The largest file.
#[doc(alias("MAX_LFS_FILESIZE", "s_maxbytes"))]
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

/// So many pages are not there, limit or no limit: one call that asks for them is
/// refused before it has taken all there is.
const BEYOND_REASON: u64 = 1 << 28;

/// The contents of a file.
#[derive(Default)]
pub(crate) struct Data {
    size: u64,
    /// Pages that are accounted for.
    taken: u64,
    pages: Pages,
}

/// A page of a file.
#[derive(Default)]
enum Page {
    /// Not there; reads as zeros.
    #[default]
    Hole,
    /// Promised by an allocation: accounted for, but still a hole to who seeks one.
    Promised,
    /// All zeros, without memory: what was promised twice.
    Zeros,
    Bytes(Box<[u8; PAGE]>),
}

/// Pages by number: those of a file written from its start in a row, those far out in a
/// tree.
#[derive(Default)]
struct Pages {
    row: Vec<Page>,
    /// Beyond the row. In a box, as few files have it.
    #[expect(clippy::box_collection, reason = "most files have none, and are small")]
    tree: Option<Box<BTreeMap<u64, Page>>>,
}

impl Data {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Pages accounted for.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// As many bytes as there are from `offset` on, and as fit.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let left = self.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        for piece in pieces(offset, len) {
            let buf = &mut buf[piece.done..piece.done + piece.len];
            match self.pages.get(piece.page) {
                Some(Page::Bytes(bytes)) => {
                    buf.copy_from_slice(&bytes[piece.start..piece.start + piece.len]);
                }
                _ => buf.fill(0),
            }
        }
        len
    }

    /// Writes as much as there is room for; the end is not beyond [`MAX_SIZE`].
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no room for any of it.
    pub(crate) fn write_at(&mut self, space: &Space, buf: &[u8], offset: u64) -> Result<usize> {
        let mut written = 0;
        for piece in pieces(offset, buf.len()) {
            let bytes = &buf[piece.done..piece.done + piece.len];
            match self.write_page(space, piece.page, piece.start, bytes) {
                Ok(()) => written += piece.len,
                Err(err) if written == 0 => return Err(err),
                Err(_) => break,
            }
        }
        if written > 0 {
            self.size = self.size.max(offset + written as u64);
        }
        Ok(written)
    }

    fn write_page(&mut self, space: &Space, page: u64, start: usize, bytes: &[u8]) -> Result<()> {
        if !self.pages.get(page).is_some_and(Page::is_taken) {
            space.take_pages(1)?;
            self.taken += 1;
        }
        let page = self.pages.get_or_hole(page);
        if let Page::Bytes(page) = page {
            page[start..start + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        *page = Page::Bytes(match <Box<[u8]>>::from(bytes).try_into() {
            Ok(whole) => whole,
            Err(part) => {
                let mut page = Box::new([0; PAGE]);
                page[start..start + part.len()].copy_from_slice(&part);
                page
            }
        });
        Ok(())
    }

    /// Sets the size. What is beyond is gone, also what was only promised, and what
    /// comes to be there later reads as zeros.
    #[doc(alias = "shmem_truncate_range")]
    pub(crate) fn truncate(&mut self, space: &Space, size: u64) {
        if size <= self.size {
            self.clear(space, size, u64::MAX);
        }
        self.size = size;
    }

    /// Makes a range a hole: whole pages go, parts of pages become zeros.
    pub(crate) fn punch(&mut self, space: &Space, offset: u64, len: u64) {
        self.clear(space, offset, offset.saturating_add(len));
    }

    fn clear(&mut self, space: &Space, from: u64, to: u64) {
        let first_whole = from.div_ceil(PAGE as u64);
        let end_whole = to / PAGE as u64;
        let (head, tail) = (from / PAGE as u64, to / PAGE as u64);
        let (at, end) = ((from % PAGE as u64) as usize, (to % PAGE as u64) as usize);
        if head == tail {
            self.pages.zero(head, at..end);
        } else {
            if at > 0 {
                self.pages.zero(head, at..PAGE);
            }
            self.pages.zero(tail, 0..end);
        }
        if first_whole < end_whole {
            // To the end of everything: the last page is not whole, and goes too.
            let end = if to == u64::MAX { u64::MAX } else { end_whole };
            let gone = self.pages.remove(first_whole, end);
            self.taken -= gone;
            space.give_pages(gone);
        }
    }

    /// Accounts for a range, all or nothing, whose end is not beyond [`MAX_SIZE`].
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    #[doc(alias = "shmem_fallocate")]
    pub(crate) fn allocate(
        &mut self,
        space: &Space,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = offset + len;
        let first = offset / PAGE as u64;
        let pages = end.div_ceil(PAGE as u64) - first;
        let limit = space.pages().0;
        if limit > 0 && pages > limit || pages >= BEYOND_REASON {
            return Err(Error::NoSpace);
        }
        let all = first..first + pages;
        let missing = pages - self.pages.count(&all);
        space.take_pages(missing)?;
        self.taken += missing;
        for number in all {
            let page = self.pages.get_or_hole(number);
            match page {
                Page::Hole => *page = Page::Promised,
                // As tmpfs has it, which could not tell the two apart otherwise if it had
                // to take the second promise back.
                Page::Promised => *page = Page::Zeros,
                Page::Zeros | Page::Bytes(_) => {}
            }
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    /// The next data or hole from `offset` on, which lies in the file.
    #[doc(alias = "mapping_seek_hole_data")]
    pub(crate) fn seek(&self, offset: u64, to: SeekTo) -> Option<u64> {
        let first = offset / PAGE as u64;
        let found = match to {
            SeekTo::Data => self.pages.next_data(first)?,
            SeekTo::Hole => self.pages.next_hole(first),
        };
        let found = found.saturating_mul(PAGE as u64).max(offset);
        match to {
            SeekTo::Data => (found < self.size).then_some(found),
            SeekTo::Hole => Some(found.min(self.size)),
        }
    }
}

impl Page {
    fn is_taken(&self) -> bool {
        !matches!(self, Page::Hole)
    }

    fn is_data(&self) -> bool {
        matches!(self, Page::Zeros | Page::Bytes(_))
    }
}

impl Pages {
    fn get(&self, number: u64) -> Option<&Page> {
        match usize::try_from(number) {
            Ok(at) if at < self.row.len() => self.row.get(at),
            _ => self.tree.as_ref()?.get(&number),
        }
    }

    /// The page of that number, to be filled in if it is not there yet.
    fn get_or_hole(&mut self, number: u64) -> &mut Page {
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

    /// Writes zeros over a part of a page that is there.
    fn zero(&mut self, number: u64, part: std::ops::Range<usize>) {
        let page = match usize::try_from(number) {
            Ok(at) if at < self.row.len() => self.row.get_mut(at),
            _ => self.tree.as_mut().and_then(|tree| tree.get_mut(&number)),
        };
        if let Some(Page::Bytes(bytes)) = page {
            bytes[part].fill(0);
        }
    }

    /// Removes pages, and says how many were there.
    fn remove(&mut self, first: u64, end: u64) -> u64 {
        let mut gone = 0;
        let row = self.row.len();
        let within = |number: u64| usize::try_from(number).unwrap_or(row).min(row);
        for page in &mut self.row[within(first)..within(end)] {
            gone += u64::from(std::mem::take(page).is_taken());
        }
        while self.row.pop_if(|last| !last.is_taken()).is_some() {}
        // What a long file took goes back with it.
        if self.row.len() < self.row.capacity() / 4 {
            self.row.shrink_to(2 * self.row.len());
        }
        if let Some(tree) = &mut self.tree {
            let mut cut = tree.split_off(&first);
            tree.append(&mut cut.split_off(&end));
            gone += cut.values().filter(|page| page.is_taken()).count() as u64;
            if tree.is_empty() {
                self.tree = None;
            }
        }
        gone
    }

    /// How many of a range are there.
    fn count(&self, range: &std::ops::Range<u64>) -> u64 {
        let row = self.row.len();
        let within = |number: u64| usize::try_from(number).unwrap_or(row).min(row);
        let in_row = self.row[within(range.start)..within(range.end)].iter();
        let in_tree = self.tree.iter().flat_map(|tree| tree.range(range.clone()));
        in_row
            .chain(in_tree.map(|(_, page)| page))
            .filter(|page| page.is_taken())
            .count() as u64
    }

    fn next_data(&self, first: u64) -> Option<u64> {
        let row = usize::try_from(first).unwrap_or(usize::MAX);
        let in_row = self.row.iter().skip(row).position(Page::is_data);
        if let Some(at) = in_row {
            return Some(first + at as u64);
        }
        let mut in_tree = self.tree.as_ref()?.range(first..);
        in_tree.find(|(_, page)| page.is_data()).map(|(at, _)| *at)
    }

    fn next_hole(&self, first: u64) -> u64 {
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

/// A part of a range that lies in one page.
struct Piece {
    page: u64,
    /// Where in that page.
    start: usize,
    len: usize,
    /// Bytes of the range before it.
    done: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % PAGE as u64) as usize;
        let piece = Piece {
            page: at / PAGE as u64,
            start,
            len: (PAGE - start).min(len - done),
            done,
        };
        done += piece.len;
        (piece.len > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests;
