//! Extended attributes of a node.
//!
//! ACLs are among them, under their names. A short ACL costs nothing, as in tmpfs: the price of
//! the inode covers it. A longer one costs its length, or a user could fill the memory with ACLs.

use rcuwalk::{Error, NewFile, Result, XattrFlags};

use crate::space::Space;

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// What one costs beside its name and value.
#[doc(alias = "simple_xattr_space")]
const OVERHEAD: usize = 40;

/// An ACL of this length, seven entries, lies in the inode.
const SHORT_ACL: usize = 64;

type Bytes = Box<[u8]>;

/// Extended attributes, by name.
#[derive(Default)]
pub(crate) struct Xattrs {
    sorted: Vec<(Bytes, Bytes)>,
    /// Their cost.
    bytes: u64,
}

impl Xattrs {
    /// What a new file starts with; `None` for nothing.
    pub(crate) fn of(new: &NewFile<'_>) -> Option<Box<Xattrs>> {
        let acls = [(ACCESS, new.acl), (DEFAULT, new.default_acl)];
        let sorted: Vec<(Bytes, Bytes)> = acls
            .into_iter()
            .filter_map(|(name, acl)| Some((name.into(), acl?.into())))
            .collect();
        let bytes = sorted.iter().map(|(name, acl)| price(name, acl)).sum();
        let some = !sorted.is_empty();
        some.then(|| Box::new(Xattrs { sorted, bytes }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        Some(&self.sorted[self.find(name).ok()?].1)
    }

    /// ACLs first.
    pub(crate) fn names(&self) -> Vec<Bytes> {
        let (acls, others): (Vec<_>, Vec<_>) = self
            .sorted
            .iter()
            .map(|(name, _)| name.clone())
            .partition(|name| is_acl(name));
        [acls, others].concat()
    }

    /// A new value is paid for before the old one's price is given back.
    #[doc(alias = "simple_xattr_set")]
    pub(crate) fn set(
        &mut self,
        space: &Space,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let price = price(name, value);
        space.take_inode_bytes(price)?;
        let given_back = match self.find(name) {
            Ok(_) if flags.contains(XattrFlags::CREATE) => Err(Error::Exists),
            Err(_) if flags.contains(XattrFlags::REPLACE) => Err(Error::NoData),
            Ok(at) => {
                let old = std::mem::replace(&mut self.sorted[at].1, value.into());
                Ok(self::price(name, &old))
            }
            Err(at) => {
                self.sorted.insert(at, (name.into(), value.into()));
                Ok(0)
            }
        };
        match given_back {
            Ok(old) => {
                space.give_inode_bytes(old);
                self.bytes = self.bytes + price - old;
                Ok(())
            }
            Err(err) => {
                space.give_inode_bytes(price);
                Err(err)
            }
        }
    }

    pub(crate) fn remove(&mut self, space: &Space, name: &[u8]) -> Result<()> {
        let at = self.find(name).map_err(|_| Error::NoData)?;
        let (name, value) = self.sorted.remove(at);
        let price = price(&name, &value);
        self.bytes -= price;
        space.give_inode_bytes(price);
        Ok(())
    }

    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.sorted.binary_search_by(|(have, _)| (**have).cmp(name))
    }
}

/// Whether attributes of this name are kept here at all.
///
/// # Errors
/// [`Error::NotSupported`].
#[doc(alias = "shmem_xattr_handlers")]
pub(crate) fn may_have(name: &[u8]) -> Result<()> {
    let kept = [&b"user."[..], b"trusted.", b"security."];
    match is_acl(name) || kept.iter().any(|prefix| name.starts_with(prefix)) {
        true => Ok(()),
        false => Err(Error::NotSupported),
    }
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

fn price(name: &[u8], value: &[u8]) -> u64 {
    let price = match is_acl(name) {
        true => value.len().saturating_sub(SHORT_ACL),
        false => OVERHEAD + name.len() + value.len(),
    };
    price as u64
}
