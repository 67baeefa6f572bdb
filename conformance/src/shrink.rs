//! From a difference to one that fits on a screen.
//!
//! Greedy: leave something out, and keep it out while the two sides still
//! disagree. First other walks, then entries of the tree, then pieces of the
//! path. What remains is printed with everything needed to run it again.

use std::fmt;

use crate::answer::Answer;
use crate::differ::{Difference, Setup, WALKS_PER_TREE, compare};
use crate::frame::leave_out;
use crate::tree::{ROOT, Tree};
use crate::walks::{Place, User, Walk};

/// Each try materialises a tree; this many take a few seconds.
const MAX_TRIES: usize = 600;

/// A difference with all that leads to it.
#[derive(Debug)]
pub struct Failure {
    seed: u64,
    number: u64,
    tree: Tree,
    walks: Vec<Walk>,
    setup: Setup,
    difference: Difference,
    tries: usize,
}

impl Failure {
    /// How many entries, walks and bytes of path are left.
    pub fn size(&self) -> usize {
        let paths: usize = self.walks.iter().map(|walk| walk.path.len()).sum();
        self.tree.entries().len() + self.walks.len() + paths
    }

    /// Notes which tree of which seed it was.
    pub(crate) fn of(self, seed: u64, number: u64) -> Failure {
        Failure {
            seed,
            number,
            ..self
        }
    }
}

/// Leaves out of tree and walks whatever the difference does not need.
pub fn shrink(tree: Tree, walks: Vec<Walk>, setup: Setup, difference: Difference) -> Failure {
    let mut failure = Failure {
        seed: 0,
        number: 0,
        tree,
        walks,
        setup,
        difference,
        tries: 0,
    };
    failure.walks.truncate(failure.difference.index + 1);
    // Most differences need no other walk before them.
    let only = failure.walks.last().cloned().into_iter().collect();
    failure.tries_walks(only);
    failure.plain_callers();
    loop {
        let before = failure.weight();
        failure.drop_walks();
        failure.drop_entries();
        failure.drop_path_pieces();
        failure.drop_flags();
        if failure.weight() == before || !failure.may_try() {
            return failure;
        }
    }
}

impl Failure {
    /// Root, in the root, needs no explanation.
    fn plain_callers(&mut self) {
        for which in 0..self.walks.len() {
            let Place { root, cwd } = self.walks[which].place;
            for place in [
                Place {
                    root: ROOT,
                    cwd: ROOT,
                },
                Place { root: ROOT, cwd },
                Place { root, cwd: root },
            ] {
                if place != self.walks[which].place && self.tries_walk(which, |w| w.place = place) {
                    break;
                }
            }
            if self.walks[which].user != User::Root {
                self.tries_walk(which, |walk| walk.user = User::Root);
            }
        }
    }

    /// Goes down with everything that is left out.
    fn weight(&self) -> usize {
        let paths: usize = self
            .walks
            .iter()
            .map(|w| w.path.len() + w.flags.iter().count())
            .sum();
        paths + self.walks.len() + self.tree.entries().len()
    }

    fn drop_walks(&mut self) {
        // The last walk is the one that differs; it stays.
        let others = |failure: &Failure| failure.walks.len() - 1;
        leave_out(self, 1, others, |failure, run| {
            let mut fewer = failure.walks.clone();
            fewer.drain(run);
            failure.tries_walks(fewer)
        });
    }

    fn drop_entries(&mut self) {
        let entries = |failure: &Failure| failure.tree.entries().len();
        leave_out(self, 1, entries, |failure, run| {
            let mut smaller = failure.tree.clone();
            let gone = failure.tree.entries().into_iter();
            gone.skip(run.start)
                .take(run.len())
                .for_each(|entry| smaller.remove(entry.dir, entry.name));
            failure.tries_tree(smaller)
        });
    }

    fn drop_path_pieces(&mut self) {
        for which in 0..self.walks.len() {
            let path = |failure: &Failure| match failure.walks.get(which) {
                Some(walk) => pieces(&walk.path),
                None => Vec::new(),
            };
            // Small runs slide: a component and its slash may start anywhere.
            leave_out(
                self,
                4,
                |failure| path(failure).len(),
                |failure, run| {
                    let mut left = path(failure);
                    left.drain(run);
                    let path = left.concat();
                    failure.tries_walk(which, |walk| walk.path = path)
                },
            );
        }
    }

    fn drop_flags(&mut self) {
        for which in 0..self.walks.len() {
            for flag in self.walks[which].flags.iter() {
                self.tries_walk(which, |walk| walk.flags.remove(flag));
            }
        }
    }

    fn may_try(&self) -> bool {
        self.tries < MAX_TRIES
    }

    fn tries_walk(&mut self, which: usize, change: impl FnOnce(&mut Walk)) -> bool {
        let mut walks = self.walks.clone();
        change(&mut walks[which]);
        self.tries_walks(walks)
    }

    fn tries_walks(&mut self, walks: Vec<Walk>) -> bool {
        let tree = self.tree.clone();
        self.tries(tree, walks)
    }

    fn tries_tree(&mut self, tree: Tree) -> bool {
        let walks = self.walks.clone();
        self.tries(tree, walks)
    }

    /// Takes the smaller case over if it still differs.
    fn tries(&mut self, tree: Tree, mut walks: Vec<Walk>) -> bool {
        let in_tree = |walk: &Walk| {
            let between = |top, dir| tree.names_between(top, dir).is_some();
            between(ROOT, walk.place.root) && between(walk.place.root, walk.place.cwd)
        };
        if !self.may_try() || !walks.iter().all(in_tree) {
            return false;
        }
        self.tries += 1;
        let Some(difference) = compare(&tree, &walks, &self.setup) else {
            return false;
        };
        // A panic must stay one: a missing entry is easily another difference.
        let panicked = |d: &Difference| matches!(d.got, Answer::Panicked(_));
        if panicked(&difference) != panicked(&self.difference) {
            return false;
        }
        walks.truncate(difference.index + 1);
        self.tree = tree;
        self.walks = walks;
        self.difference = difference;
        true
    }
}

/// A path in pieces that can be left out: its components, and each slash.
fn pieces(path: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut before = b'/';
    for &byte in path {
        match pieces.last_mut() {
            Some(component) if before != b'/' && byte != b'/' => component.push(byte),
            _ => pieces.push(vec![byte]),
        }
        before = byte;
    }
    pieces
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            seed,
            number,
            tree,
            walks,
            setup,
            difference,
            tries,
        } = self;
        let Difference {
            query,
            expected,
            got,
            ..
        } = difference;
        writeln!(f, "EDGE-1: rcuwalk and {:?} disagree", setup.oracle)?;
        let cases = (number + 1) * WALKS_PER_TREE as u64;
        writeln!(f, "again: RCUWALK_SEED={seed:#x} RCUWALK_CASES={cases}")?;
        writeln!(f, "tree {number}, after {tries} tries to make it smaller:")?;
        write!(f, "{setup:?}\n{tree}")?;
        let (last, before) = walks.split_last().expect("a difference has a walk");
        for walk in before {
            writeln!(f, "first: {walk}")?;
        }
        writeln!(f, "walk:  {last}")?;
        writeln!(f, "expected ({:?}): {expected}", setup.oracle)?;
        write!(f, "got ({query:?}): {got}")
    }
}
