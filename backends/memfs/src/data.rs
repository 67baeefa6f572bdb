//! The contents of a file: pages, and nothing where nothing was written.

mod pages;

use rcuwalk::{Error, Result, SeekTo};

use pages::{Page, Pages};

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

impl Data {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Pages accounted for.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// As many bytes as there are from `offset` on, and as fit.
    pub(crate) fn read_at(&self, space: &Space, buf: &mut [u8], offset: u64) -> usize {
        let left = self.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        for piece in pieces(offset, len) {
            let buf = &mut buf[piece.done..piece.done + piece.len];
            match self.pages.get(piece.page) {
                Some(Page::Bytes(id)) => space.slabs.with(id, |bytes| {
                    buf.copy_from_slice(&bytes[piece.start..piece.start + piece.len]);
                }),
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
        if let Some(Page::Bytes(id)) = self.pages.get(page) {
            space.slabs.with_mut(id, |page| {
                page[start..start + bytes.len()].copy_from_slice(bytes);
            });
            return Ok(());
        }
        let new = u64::from(!self.pages.get(page).is_some_and(Page::is_taken));
        space.take_pages(new)?;
        match space.slabs.add(start, bytes) {
            Ok(id) => *self.pages.get_or_hole(page) = Page::Bytes(id),
            Err(err) => {
                space.give_pages(new);
                return Err(err);
            }
        }
        self.taken += new;
        Ok(())
    }

    /// Sets the size. Contents and promises beyond it are gone, and read as zeros if the file
    /// grows later.
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
        if self.taken == 0 {
            return;
        }
        let first_whole = from.div_ceil(PAGE as u64);
        let end_whole = to / PAGE as u64;
        let (head, tail) = (from / PAGE as u64, to / PAGE as u64);
        let (at, end) = ((from % PAGE as u64) as usize, (to % PAGE as u64) as usize);
        if head == tail {
            self.zero(space, head, at..end);
        } else {
            if at > 0 {
                self.zero(space, head, at..PAGE);
            }
            self.zero(space, tail, 0..end);
        }
        if first_whole < end_whole {
            // To the end of everything: the last page is not whole, and goes too.
            let end = if to == u64::MAX { u64::MAX } else { end_whole };
            let (gone, ids) = self.pages.remove(first_whole, end);
            // Freed before they are given back: the next user of the budget finds the memory.
            space.slabs.free(ids);
            self.taken -= gone;
            space.give_pages(gone);
        }
    }

    /// Writes zeros over a part of a page that is there.
    fn zero(&self, space: &Space, page: u64, part: std::ops::Range<usize>) {
        if let Some(Page::Bytes(id)) = self.pages.get(page) {
            space.slabs.with_mut(id, |bytes| bytes[part].fill(0));
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
