//! Operations on names.

use rustix::fs::RenameFlags;

use super::Planner;
use super::choose::{Wish, weighted};
use super::guess::{Kind, Use};
use crate::changes::op::{At, Bits, Node, Op};

impl Planner {
    pub(super) fn create(&mut self) -> Op {
        Op::Create {
            path: self.path(Wish::Free),
            mode: self.mode(Kind::File),
        }
    }

    pub(super) fn mkdir(&mut self) -> Op {
        Op::Mkdir {
            path: self.path(Wish::Free),
            mode: self.mode(Kind::Dir),
        }
    }

    pub(super) fn mknod(&mut self) -> Op {
        let kinds = [
            (Node::Regular, 4),
            (Node::Fifo, 4),
            (Node::Socket, 3),
            (Node::Char(0, 0), 3),
            (Node::Char(240, 1), 2),
            (Node::Block(240, 300), 2),
            (Node::Directory, 1),
        ];
        Op::Mknod {
            kind: *weighted(&mut self.rng, &kinds),
            path: self.path(Wish::Free),
            mode: self.mode(Kind::File),
        }
    }

    pub(super) fn symlink(&mut self) -> Op {
        Op::Symlink {
            target: self.target(),
            path: self.path(Wish::Free),
        }
    }

    pub(super) fn link(&mut self) -> Op {
        let wish = if self.rng.chance(85) {
            Wish::NoDir
        } else {
            Wish::Any
        };
        let old = self.path(wish);
        let old = if self.rng.chance(30) {
            At::Path(old)
        } else {
            At::NoFollow(old)
        };
        Op::Link {
            old,
            new: self.path(Wish::Free),
        }
    }

    pub(super) fn link_handle(&mut self) -> Op {
        Op::Link {
            old: At::Handle(self.slot()),
            new: self.path(Wish::Free),
        }
    }

    pub(super) fn unlink(&mut self) -> Op {
        let wish = if self.rng.chance(85) {
            Wish::NoDir
        } else {
            Wish::Any
        };
        Op::Unlink {
            path: self.path(wish),
        }
    }

    pub(super) fn rmdir(&mut self) -> Op {
        let wish = if self.rng.chance(60) {
            Wish::EmptyDir
        } else {
            Wish::Is(Kind::Dir)
        };
        Op::Rmdir {
            path: self.path(wish),
        }
    }

    pub(super) fn rename(&mut self) -> Op {
        let wishes = [
            Wish::Free,
            Wish::Free,
            Wish::NoDir,
            Wish::EmptyDir,
            Wish::Any,
        ];
        let wish = *self.rng.pick(&wishes);
        Op::Rename {
            old: self.path(Wish::Any),
            new: self.path(wish),
            flags: RenameFlags::empty(),
        }
    }

    pub(super) fn rename_oddly(&mut self) -> Op {
        use RenameFlags as Flags;
        let flags = [
            (Flags::NOREPLACE, 6),
            (Flags::EXCHANGE, 8),
            (Flags::WHITEOUT, 5),
            (Flags::NOREPLACE | Flags::WHITEOUT, 2),
            (Flags::NOREPLACE | Flags::EXCHANGE, 1),
            (Flags::EXCHANGE | Flags::WHITEOUT, 1),
            (Flags::from_bits_retain(8), 1),
        ];
        let flags = *weighted(&mut self.rng, &flags);
        let wish = match flags {
            Flags::NOREPLACE => Wish::Free,
            Flags::EXCHANGE => Wish::Any,
            _ => *self.rng.pick(&[Wish::Free, Wish::NoDir]),
        };
        Op::Rename {
            old: self.path(Wish::Any),
            new: self.path(wish),
            flags,
        }
    }

    pub(super) fn read_link(&mut self) -> Op {
        let wish = if self.rng.chance(75) {
            Wish::Is(Kind::Link)
        } else {
            Wish::Any
        };
        Op::ReadLink {
            at: At::NoFollow(self.path(wish)),
        }
    }

    pub(super) fn list(&mut self) -> Op {
        let at = match self.at(Wish::Is(Kind::Dir)) {
            At::Handle(_) => At::Handle(self.slot_for(Use::List)),
            at => at,
        };
        Op::List { at }
    }

    pub(super) fn umask(&mut self) -> Op {
        let masks = [0, 0, 0o022, 0o027, 0o077, 0o007];
        Op::Umask {
            mask: Bits(*self.rng.pick(&masks)),
        }
    }

    pub(super) fn chdir(&mut self) -> Op {
        let wish = if self.rng.chance(85) {
            Wish::Is(Kind::Dir)
        } else {
            Wish::Any
        };
        Op::Chdir {
            at: match self.at(wish) {
                At::NoFollow(path) => At::Path(path),
                at => at,
            },
        }
    }
}
