//! The rest of the path to walk: the caller's path, and the links it led into.
//!
//! An explicit stack instead of recursion: at each symbolic link the rest of the
//! current text is put aside and the link's target becomes the current text. Two
//! levels are embedded, as nearly all walks need no more; 40 links in all are
//! followed, so the stack never holds more.

/// A text and how far it has been walked.
#[derive(Clone, Copy)]
pub(super) struct Saved<T> {
    pub(super) text: T,
    pub(super) pos: usize,
}

/// Texts put aside, the outermost first.
#[doc(alias = "struct saved")]
pub(super) struct LinkStack<T> {
    embedded: [Option<Saved<T>>; 2],
    depth: usize,
    spilled: Vec<Saved<T>>,
}

impl<T> LinkStack<T> {
    pub(super) fn new() -> LinkStack<T> {
        LinkStack {
            embedded: [None, None],
            depth: 0,
            spilled: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.depth == 0
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// True if it is of all texts that were put aside.
    pub(super) fn all(&self, is: impl Fn(&Saved<T>) -> bool) -> bool {
        let embedded = self.embedded.iter().flatten();
        embedded.chain(&self.spilled).all(is)
    }

    pub(super) fn push(&mut self, saved: Saved<T>) {
        match self.embedded.get_mut(self.depth) {
            Some(place) => *place = Some(saved),
            None => self.spilled.push(saved),
        }
        self.depth += 1;
    }

    pub(super) fn pop(&mut self) -> Option<Saved<T>> {
        self.depth = self.depth.checked_sub(1)?;
        match self.embedded.get_mut(self.depth) {
            Some(place) => place.take(),
            None => self.spilled.pop(),
        }
    }

    /// Maps each text on the stack with `change`; `None` if it fails for one.
    pub(super) fn try_map<U>(self, mut change: impl FnMut(T) -> Option<U>) -> Option<LinkStack<U>> {
        let mut mapped = LinkStack::new();
        let embedded = self.embedded.into_iter().flatten();
        for Saved { text, pos } in embedded.chain(self.spilled) {
            mapped.push(Saved {
                text: change(text)?,
                pos,
            });
        }
        Some(mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_in_reverse() {
        let mut stack = LinkStack::new();
        for text in 0..40 {
            stack.push(Saved {
                text,
                pos: text * 2,
            });
        }
        let mut stack = stack.try_map(|text| Some(text + 100)).unwrap();
        for text in (0..40).rev() {
            let saved = stack.pop().unwrap();
            assert_eq!((saved.text, saved.pos), (text + 100, text * 2));
        }
        assert!(stack.is_empty() && stack.pop().is_none());
    }
}
