//! The access ACL that is kept with an inode.
//!
//! The state of the ACL has two parts: the bit "may have an ACL" beside the permission bits,
//! and the value itself. They change under one lock, and are read without:
//!
//! | bit | value | means                                                    |
//! |-----|-------|----------------------------------------------------------|
//! | 0   | any   | there is none: the permission bits decide alone          |
//! | 1   | some  | this one                                                 |
//! | 1   | none  | not known: ask the back end                              |
//!
//! A reader that loads the two at different moments sees a row that was true in between, or the
//! last row, which is always safe. The essential point: permission bits that only mean
//! something together with an ACL (its mask, in place of the group's) are never seen without
//! the bit. The bit is in the same word as they are, and no thread clears it from before the
//! first change in the back end until after the last ([`AclChange`]).
//!
//! An answer of the back end may be old by the time it arrives. It counts only if the
//! inode's sequence count is still what it was before the question, and is kept only if no
//! change was under way then.

use rcuwalk_sync::{Ref, Seq, rcu};

use super::attr::{AclState, AttrCell};
use super::{Acl, Inode};
use crate::attr::{Attr, FileType};

/// The longest ACL that is kept, in bytes: with sixteen entries. An inode's weight may not
/// change while it is on the list, so this much is not counted; longer ones, which are
/// rare, are asked for each time.
const LONGEST: usize = 4 + 16 * 8;

/// When a back end was asked about an inode; see [`Inode::before_asking`].
#[derive(Clone, Copy, Debug)]
pub struct Asked(Seq);

impl Inode {
    /// Drops the cached access ACL: it may have changed in the back end, which is asked when a
    /// check next needs it. Publish permission bits that may depend on it after this.
    #[doc(alias = "forget_cached_acl")]
    pub fn forget_acl(&self) {
        if self.kind() != FileType::Symlink {
            self.store_acl(None, AclState::Forgotten, None);
        }
    }

    /// Publishes attributes as [`set_attr`](Self::set_attr) does, but only if none have been
    /// published since the back end was asked for them; otherwise returns false, and the caller
    /// asks again. With another ctime, the access ACL is forgotten.
    ///
    /// Of two threads that ask at the same time and get different answers, the one with the
    /// older answer may be the later one to publish it: the newer answer would be lost until
    /// the next question. That cannot happen if both publish like this, because even an
    /// unchanged answer makes earlier questions void.
    pub fn set_attr_since(&self, asked: Asked, attr: &Attr) -> bool {
        let mut old = None;
        let forget = || old = self.take_acl();
        let done = self.attr.store_since(asked.0, attr, forget);
        // Freed without the lock.
        drop(old);
        done
    }

    /// Publishes attributes as [`set_attr`](Self::set_attr) does, of which the back end has
    /// been asked: with another ctime, the access ACL is forgotten, and where they are no news,
    /// nothing is written that walks read.
    pub fn set_attr_found(&self, attr: &Attr) {
        let mut old = None;
        self.attr.store_found(attr, || old = self.take_acl());
        // Freed without the lock.
        drop(old);
    }

    /// The moment of a question to the back end, about attributes or the access ACL: to be
    /// called before it is asked. Takes no lock.
    #[doc(alias = "ACL_NOT_CACHED")]
    pub fn before_asking(&self) -> Asked {
        Asked(self.attr.now())
    }

    /// The access ACL as permission checks know it at this moment. [`Acl::Unknown`] if they
    /// ask the back end.
    #[doc(alias = "get_cached_acl")]
    pub fn cached_acl(&self) -> Acl {
        if !self.protection().may_have_acl() {
            return Acl::None;
        }
        self.with_acl(|acl| Acl::Known(acl.into()))
            .unwrap_or(Acl::Unknown)
    }

    /// Calls `read` with the cached access ACL; `None` if none is cached, and the back end must
    /// be asked.
    pub(crate) fn with_acl<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let guard = rcu::read_lock();
        let acl = self.attr.extra()?.acl.load(&guard)?;
        Some(read(acl))
    }

    /// True if nothing has changed since the back end was asked.
    pub(crate) fn is_as_asked(&self, asked: Asked) -> bool {
        self.attr.is_still(asked.0)
    }

    /// Keeps the back end's answer, unless something has changed since it was asked, or
    /// was about to.
    pub(crate) fn keep_answer(&self, asked: Asked, acl: Option<&[u8]>) {
        if !AttrCell::acl_changed_at(asked.0) {
            self.store_acl(acl, state_of(acl), Some(asked.0));
        }
    }

    /// Begins a change of the access ACL in the back end. The caller holds the inode
    /// exclusively. Meanwhile all permission checks ask the back end.
    pub(crate) fn change_acl(&self) -> AclChange<'_> {
        self.store_acl(None, AclState::Changes, None);
        AclChange(self)
    }

    fn store_acl(&self, acl: Option<&[u8]>, state: AclState, since: Option<Seq>) {
        let fits = acl.filter(|acl| is_kept(acl));
        let mut new = fits.map(|acl| Ref::new(Box::from(acl)));
        if new.is_some() {
            // Allocated without the lock.
            self.attr.or_extra();
        }
        let mut old = None;
        self.attr.change_acl(since, || {
            old = match new.take() {
                Some(new) => self.attr.or_extra().acl.swap(Some(new)),
                None => self.take_acl(),
            };
            state
        });
        // Freed without the lock.
        drop((old, new));
    }

    fn take_acl(&self) -> Option<Ref<Box<[u8]>>> {
        self.attr.extra()?.acl.swap(None)
    }

    /// Whether it is known that the file has no `security.capability`.
    #[doc(alias = "IS_NOSEC")]
    pub(crate) fn has_no_caps(&self) -> bool {
        self.attr.no_caps()
    }

    pub(crate) fn set_no_caps(&self, none: bool) {
        self.attr.set_no_caps(none);
    }
}

/// Whether an ACL is kept with its inode, and not asked for each time.
pub(super) fn is_kept(acl: &[u8]) -> bool {
    acl.len() <= LONGEST
}

fn state_of(acl: Option<&[u8]>) -> AclState {
    match acl {
        Some(_) => AclState::Some,
        None => AclState::None,
    }
}

/// A change of an access ACL under way. If it is dropped half-way, the next check asks the back
/// end for the outcome.
#[must_use = "dropping it forgets the ACL"]
pub(crate) struct AclChange<'a>(&'a Inode);

impl AclChange<'_> {
    /// This is the ACL now.
    #[doc(alias = "set_cached_acl")]
    pub(crate) fn done(self, acl: Option<&[u8]>) {
        self.0.store_acl(acl, state_of(acl), None);
        std::mem::forget(self);
    }
}

impl Drop for AclChange<'_> {
    fn drop(&mut self) {
        self.0.store_acl(None, AclState::Some, None);
    }
}
