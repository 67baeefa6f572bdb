//! Random sequences of operations that collide.
//!
//! There are five names and directories three deep, so that operations meet. To make about half
//! of them succeed, a [`Planner`] keeps a rough idea of the tree so far. It is told the result
//! of each step on the kernel's side; a sequence depends on its random numbers and on those
//! results alone.
//!
//! | read                 | to learn                                              |
//! |----------------------|-------------------------------------------------------|
//! | this file            | what there is, how often, and by whom                 |
//! | `generate/files.rs`  | operations on open files                              |
//! | `generate/names.rs`  | on names; `attributes.rs`: on attributes              |
//! | `generate/choose.rs` | paths, handles, offsets and modes                     |
//! | `generate/values.rs` | moments, extended attributes, access control lists    |
//! | `generate/guess.rs`  | what there is by now                                  |

mod attributes;
mod choose;
mod files;
mod guess;
mod names;
mod values;

use crate::changes::answer::Outcome;
use crate::changes::op::{At, Bits, Op, Step};
use crate::changes::users::User;
use choose::weighted;
use guess::Guess;
use rcuwalk_testkit::Rng;

/// Sticky directories in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sticky {
    /// None: the machine protects what is in them
    /// ([`known::sticky_directories`](super::known::sticky_directories)).
    None,
    /// Some, which protect nothing but names.
    Some,
    /// Many, on a machine that protects what is in them ([`Sysctls::on`](super::sysctls::Sysctls::on)).
    Protected,
}

/// What a sequence may contain.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sticky directories.
    pub sticky: Sticky,
    /// Without what is known to differ on hostfs: no file is truncated by path to the size
    /// that it has (as good as never), and no write is too far out.
    pub on_host: bool,
    /// Steps from one look at the whole tree to the next.
    pub tree_every: usize,
    /// In how many of a hundred steps the files that it names are looked at.
    pub watch: usize,
}

/// Thinks up one step after another, in view of what the last one came to.
pub struct Planner {
    rng: Rng,
    shape: Shape,
    /// Steps that are still to come.
    left: usize,
    made: usize,
    guess: Guess,
    user: User,
    /// Paths that earlier steps may have made immutable or append-only; later steps fail there.
    flagged: Vec<String>,
    /// Extended attributes that earlier steps may have set.
    attributes: Vec<(At, String)>,
}

impl Planner {
    /// For `length` steps, the last of them a look at everything.
    pub fn new(rng: Rng, length: usize, shape: Shape) -> Planner {
        Planner {
            rng,
            shape,
            left: length,
            made: 0,
            guess: Guess::default(),
            user: User::Root,
            flagged: Vec::new(),
            attributes: Vec::new(),
        }
    }

    /// The next step, if there is one more.
    pub fn plan(&mut self) -> Option<Step> {
        self.left = self.left.checked_sub(1)?;
        let index = self.made;
        self.made += 1;
        let every = self.shape.tree_every;
        Some(if self.left == 0 || index % every == every - 1 {
            Step {
                user: User::Root,
                op: Op::Tree,
                watch: false,
            }
        } else {
            self.step(index)
        })
    }

    /// What the step came to: the next ones are chosen accordingly.
    pub fn learn(&mut self, step: &Step, outcome: &Outcome) {
        match outcome {
            Outcome::Tree(found) => self.guess.see(found),
            outcome if outcome.errno() == 0 => {
                self.guess.note(&step.op);
                if let Op::SetXattr { at, name, .. } = &step.op {
                    self.attributes.insert(0, (at.clone(), name.clone()));
                    self.attributes.truncate(5);
                }
            }
            _ => {}
        }
    }
}

/// What kinds of operations there are, and how often.
const WEIGHTS: [(Make, usize); 35] = [
    (Planner::open, 90),
    (Planner::close, 12),
    (Planner::read, 25),
    (Planner::write, 45),
    (Planner::set_len, 20),
    (Planner::truncate, 14),
    (Planner::allocate, 25),
    (Planner::seek, 20),
    (Planner::sync, 2),
    (Planner::create, 30),
    (Planner::mkdir, 45),
    (Planner::mknod, 25),
    (Planner::symlink, 25),
    (Planner::link, 35),
    (Planner::unlink, 40),
    (Planner::rmdir, 18),
    (Planner::rename, 60),
    (Planner::rename_oddly, 45),
    (Planner::chmod, 35),
    (Planner::chown, 35),
    (Planner::utimes, 30),
    (Planner::access, 20),
    (Planner::stat, 40),
    (Planner::read_link, 12),
    (Planner::list, 20),
    (Planner::get_xattr, 28),
    (Planner::set_xattr, 30),
    (Planner::set_acl, 35),
    (Planner::list_xattr, 12),
    (Planner::remove_xattr, 20),
    (Planner::stat_fs, 4),
    (Planner::umask, 8),
    (Planner::chdir, 14),
    (Planner::set_flags, 12),
    (Planner::link_handle, 12),
];

type Make = fn(&mut Planner) -> Op;

impl Planner {
    fn step(&mut self, index: usize) -> Step {
        // A few directories to begin with, open to all.
        if index < 5 {
            self.user = User::Root;
            let op = if index == 0 {
                Op::Umask { mask: Bits(0) }
            } else {
                self.mkdir()
            };
            return self.finish(op);
        }
        if !self.flagged.is_empty() && self.rng.chance(20) {
            self.user = User::Root;
            let path = self.flagged.remove(0);
            return self.finish(Op::SetFlags {
                at: At::NoFollow(path),
                immutable: false,
                append: false,
            });
        }
        if self.shape.sticky == Sticky::Protected && self.rng.chance(40) {
            self.user = *self.rng.pick(&User::ALL);
        } else if self.rng.chance(25) {
            self.user = *self.rng.pick(&[
                User::Root,
                User::Root,
                User::Root,
                User::Root,
                User::Root,
                User::Alice,
                User::Alice,
                User::Bob,
                User::Bob,
                User::Bare,
            ]);
        }
        let make = *weighted(&mut self.rng, &WEIGHTS);
        let op = make(self);
        self.finish(op)
    }

    fn finish(&mut self, op: Op) -> Step {
        Step {
            user: self.user,
            op,
            watch: self.rng.chance(self.shape.watch),
        }
    }
}
