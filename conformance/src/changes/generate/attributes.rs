//! Operations on attributes: plain ones, extended ones, access control lists.

use super::choose::Wish;
use super::guess::Kind;
use super::{Planner, values};
use crate::changes::op::{At, Op};
use crate::changes::users::User;

impl Planner {
    pub(super) fn chmod(&mut self) -> Op {
        let at = self.at(Wish::Any);
        let kind = *self.rng.pick(&[Kind::Dir, Kind::File]);
        Op::Chmod {
            at,
            mode: self.mode(kind),
        }
    }

    pub(super) fn chown(&mut self) -> Op {
        let ids = [None, Some(0), Some(1000), Some(1001)];
        Op::Chown {
            at: self.at(Wish::Any),
            uid: *self.rng.pick(&ids),
            gid: *self.rng.pick(&ids),
        }
    }

    pub(super) fn utimes(&mut self) -> Op {
        Op::Utimes {
            at: self.at(Wish::Any),
            atime: values::when(&mut self.rng),
            mtime: values::when(&mut self.rng),
        }
    }

    pub(super) fn access(&mut self) -> Op {
        Op::Access {
            at: self.at(Wish::Any),
            mode: self.rng.below(8) as u8,
            real: self.rng.chance(50),
        }
    }

    pub(super) fn stat(&mut self) -> Op {
        Op::Stat {
            at: self.at(Wish::Any),
        }
    }

    /// A file and the name of an attribute, often one that is there.
    fn xattr(&mut self) -> (At, String) {
        if !self.attributes.is_empty() && self.rng.chance(60) {
            return self.rng.pick(&self.attributes).clone();
        }
        let acl = values::acl_name(self.rng.chance(50));
        let name = values::xattr_name(&mut self.rng);
        let name = if self.rng.chance(25) {
            acl.into()
        } else {
            name
        };
        (self.at(Wish::Any), name)
    }

    pub(super) fn get_xattr(&mut self) -> Op {
        let (at, name) = self.xattr();
        Op::GetXattr { at, name }
    }

    pub(super) fn set_xattr(&mut self) -> Op {
        let (at, mut name) = self.xattr();
        if name.contains("posix_acl") {
            name = "user.a".into();
        }
        Op::SetXattr {
            at,
            name,
            value: values::xattr_value(&mut self.rng),
            flags: values::xattr_flags(&mut self.rng),
        }
    }

    pub(super) fn set_acl(&mut self) -> Op {
        let default = self.rng.chance(45);
        let wish = if default && self.rng.chance(80) {
            Wish::Is(Kind::Dir)
        } else {
            Wish::Any
        };
        Op::SetXattr {
            at: self.at(wish),
            name: values::acl_name(default).into(),
            value: values::acl(&mut self.rng),
            flags: values::xattr_flags(&mut self.rng),
        }
    }

    pub(super) fn list_xattr(&mut self) -> Op {
        Op::ListXattr {
            at: self.at(Wish::Any),
        }
    }

    pub(super) fn remove_xattr(&mut self) -> Op {
        let (at, name) = self.xattr();
        Op::RemoveXattr { at, name }
    }

    pub(super) fn stat_fs(&mut self) -> Op {
        Op::StatFs {
            at: self.at(Wish::Any),
        }
    }

    pub(super) fn set_flags(&mut self) -> Op {
        let path = self.path(Wish::Any);
        if self.user == User::Root {
            self.flagged.push(path.clone());
        }
        let immutable = self.rng.chance(50);
        Op::SetFlags {
            at: At::NoFollow(path),
            immutable,
            append: !immutable || self.rng.chance(10),
        }
    }
}
