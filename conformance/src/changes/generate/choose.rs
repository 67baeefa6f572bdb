//! Choosing paths, handles, offsets and modes.

use super::guess::{Kind, Use};
use super::{Planner, Sticky};
use crate::changes::op::{At, Bits, SLOTS};
use rcuwalk_testkit::Rng;

/// The names there are. Few, so that operations meet.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// How many directories there are above one another, at most.
const DEPTH: usize = 3;

/// What a path had better lead to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    /// Anything that exists.
    Any,
    /// Something of this kind.
    Is(Kind),
    /// Something that is no directory.
    NoDir,
    /// A directory with nothing in it.
    EmptyDir,
    /// A name that is not taken, in a directory.
    Free,
}

/// One of `choices`, as likely as its weight.
pub(super) fn weighted<'a, T>(rng: &mut Rng, choices: &'a [(T, usize)]) -> &'a T {
    let total: usize = choices.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.below(total);
    for (choice, weight) in choices {
        if at < *weight {
            return choice;
        }
        at -= weight;
    }
    &choices[0].0
}

impl Planner {
    /// Returns a path that usually leads to the wished kind of file, in one of several
    /// spellings.
    pub(super) fn path(&mut self, wish: Wish) -> String {
        if self.rng.chance(6) {
            return self.nonsense();
        }
        let path = self.wished(wish);
        self.written(&path)
    }

    /// The same, followed or not, or an open file.
    pub(super) fn at(&mut self, wish: Wish) -> At {
        match self.rng.below(10) {
            0..2 => At::Handle(self.slot()),
            2..6 => At::NoFollow(self.path(wish)),
            _ => At::Path(self.path(wish)),
        }
    }

    /// What a link points to: often further down, sometimes nowhere, or in a circle.
    pub(super) fn target(&mut self) -> String {
        match self.rng.below(20) {
            0 => String::new(),
            1 => "t".repeat(*self.rng.pick(&[255, 4095])),
            2..6 => self.rng.pick(&NAMES).to_string(),
            6..8 => format!("../{}", self.rng.pick(&NAMES)),
            8..12 => self.path(Wish::Is(Kind::Dir)),
            12..16 => self.path(Wish::Is(Kind::File)),
            _ => self.path(Wish::Any),
        }
    }

    fn wished(&mut self, wish: Wish) -> String {
        if let Wish::Free = wish {
            return self.free();
        }
        let candidates = self.guess.all(|path, kind, is_empty| match wish {
            Wish::Is(wished) => kind == wished,
            Wish::NoDir => kind != Kind::Dir,
            Wish::EmptyDir => kind == Kind::Dir && is_empty && path != "/",
            // The root can do little that is worth trying more often.
            Wish::Any | Wish::Free => path != "/" || kind != Kind::Dir,
        });
        match candidates.len() {
            0 => self.free(),
            some => candidates[self.rng.below(some)].clone(),
        }
    }

    fn free(&mut self) -> String {
        let dirs = self.guess.all(|path, kind, _| {
            kind == Kind::Dir && path.matches('/').count() < DEPTH + usize::from(path == "/")
        });
        let mut path = String::new();
        for _ in 0..4 {
            let dir = self.rng.pick(&dirs).trim_end_matches('/');
            path = format!("{dir}/{}", self.rng.pick(&NAMES));
            // Now and then one that is taken after all.
            if !self.guess.has(&path) || self.rng.chance(10) {
                break;
            }
        }
        path
    }

    /// Another way to write `path`, which is absolute and without detours.
    fn written(&mut self, path: &str) -> String {
        let relative = match self.guess.cwd() {
            "/" => path.strip_prefix('/'),
            cwd => path
                .strip_prefix(cwd)
                .and_then(|rest| rest.strip_prefix('/')),
        };
        match (self.rng.below(40), relative) {
            (0..12, Some(relative)) if !relative.is_empty() => relative.to_string(),
            (12, Some(relative)) if !relative.is_empty() => format!("./{relative}"),
            (13, _) => format!("{path}/"),
            (14, _) => format!("/.{path}"),
            (15, _) => format!("/..{path}"),
            (16, _) => format!("/{}/..{path}", self.rng.pick(&NAMES)),
            (17, _) => format!("{path}//."),
            (18, _) => format!("{path}/.."),
            (19, Some(_)) => format!("../{}", self.rng.pick(&NAMES)),
            _ => path.to_string(),
        }
    }

    /// A path that nothing is known about.
    fn nonsense(&mut self) -> String {
        match self.rng.below(24) {
            0 => String::new(),
            1 => ".".into(),
            2 => "..".into(),
            3 => "/".into(),
            4 => format!("/{}", "n".repeat(255)),
            5 => format!("/{}", "n".repeat(256)),
            6 => "/a".repeat(2047) + "/a",
            _ => {
                let count = self.rng.between(1, DEPTH);
                let names: Vec<&str> = (0..count).map(|_| *self.rng.pick(&NAMES)).collect();
                let slash = if self.rng.chance(50) { "/" } else { "" };
                format!("{slash}{}", names.join("/"))
            }
        }
    }

    /// A slot that mostly has an open file in it.
    pub(super) fn slot(&mut self) -> usize {
        self.slot_for(Use::Any)
    }

    /// A slot with a file that mostly is good for this use.
    pub(super) fn slot_for(&mut self, wanted: Use) -> usize {
        let open = self.guess.slots(wanted);
        if open.is_empty() || self.rng.chance(6) {
            self.rng.below(SLOTS)
        } else {
            *self.rng.pick(&open)
        }
    }

    /// An offset or a size; the largest are more than a file may have.
    pub(super) fn offset(&mut self) -> i64 {
        let offsets = [
            (0, 12),
            (1, 3),
            (100, 6),
            (4095, 3),
            (4096, 6),
            (5000, 6),
            (8192, 5),
            (12_288, 3),
            (40_000, 3),
            (1 << 40, 1),
            (i64::MAX - 4096, 1),
            (i64::MAX, 1),
            (-1, 1),
            (i64::MIN, 1),
        ];
        *weighted(&mut self.rng, &offsets)
    }

    /// Where to write: not further out than ext4 goes, on hostfs.
    pub(super) fn near_offset(&mut self) -> i64 {
        let offset = self.offset();
        if self.shape.on_host {
            offset.min(1 << 40)
        } else {
            offset
        }
    }

    /// How many bytes to read or write.
    pub(super) fn length(&mut self) -> usize {
        *self.rng.pick(&[0, 1, 10, 100, 511, 4095, 4096, 4097, 9000])
    }

    /// Permission bits: mostly those that let one go on.
    pub(super) fn mode(&mut self, kind: Kind) -> Bits {
        let protected = self.shape.sticky == Sticky::Protected;
        if protected && kind == Kind::Dir && self.rng.chance(50) {
            return Bits(0o1777);
        }
        let usual: &[u16] = match kind {
            Kind::Dir => &[0o777, 0o777, 0o777, 0o755, 0o775, 0o2777, 0o2775, 0o700],
            _ => &[0o666, 0o666, 0o644, 0o664, 0o600, 0o777, 0o6755, 0o2755],
        };
        let mode = match self.rng.below(20) {
            0..14 => *self.rng.pick(usual),
            14 => 0,
            15..17 => *self.rng.pick(&[0o1777, 0o1777, 0o1755]),
            _ => self.rng.below(0o10000) as u16,
        };
        Bits(match self.shape.sticky {
            Sticky::None => mode & !0o1000,
            Sticky::Some | Sticky::Protected => mode,
        })
    }
}
