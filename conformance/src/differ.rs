//! The comparison: the same walks, asked of an oracle and of rcuwalk.
//!
//! [`run`] grows tree after tree. For each it plans a batch of walks, has the
//! oracle answer all of them, and then asks one `Vfs`, whose caches fill up as it
//! goes, every walk in each [`Query`]. WALK-1 is the reason for the ways: an
//! RCU-walk may only ever say what a REF-walk would have said.

use std::path::PathBuf;

use rcuwalk::{Attr, Budget, Context, Credentials, LookupFlags, Vfs};

use crate::answer::{Answer, Found, Numbers, Raw};
use crate::coverage::Coverage;
use crate::frame;
use crate::kernel;
use crate::materialise::{self, OnHost, Powers};
use crate::model::Model;
use crate::settings::Settings;
use crate::shrink::{self, Failure};
use crate::tree::{NodeIx, ROOT, Tree};
use crate::walks::{Place, Planner, Walk};
use rcuwalk_testkit::Rng;

/// Walks per tree: enough to fill its caches, few enough for many trees.
pub const WALKS_PER_TREE: usize = 100;

/// The side that decides which answer is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oracle {
    /// The running kernel, on the materialised tree.
    Kernel,
    /// The model; it needs no privileges.
    Model,
}

/// The file system that rcuwalk walks.
#[derive(Clone, Debug)]
pub enum Subject {
    /// None: the model in rcuwalk's place, asked what this function makes of the
    /// walk. Unchanged, it checks the model against the kernel; changed, it is a
    /// known mistake that the comparison has to find.
    Model(fn(&Walk) -> Walk),
    /// The tree built in memfs.
    MemFs,
    /// hostfs over the tree materialised in this directory.
    HostFs(PathBuf),
}

/// How rcuwalk is asked; all must give the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// stat with default flags: RCU-walk first. MountedTree twice, so that the second
    /// time the caches know the path.
    RcuFirst,
    /// stat with [`LookupFlags::REF_WALK`].
    RefWalk,
    /// lookup, and the inode of the file it returns.
    Lookup,
}

/// The orders in which the queries are made: the first one meets the
/// caches cold and fills them for the others.
pub const ORDERS: [[Query; 4]; 3] = [
    [
        Query::RcuFirst,
        Query::RcuFirst,
        Query::RefWalk,
        Query::Lookup,
    ],
    [
        Query::RefWalk,
        Query::RcuFirst,
        Query::RcuFirst,
        Query::Lookup,
    ],
    [
        Query::Lookup,
        Query::RefWalk,
        Query::RcuFirst,
        Query::RcuFirst,
    ],
];

/// A walk on which the two sides disagree.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Which of the batch.
    pub index: usize,
    /// How rcuwalk was asked.
    pub query: Query,
    /// What the oracle says.
    pub expected: Answer,
    /// What rcuwalk says.
    pub got: Answer,
}

/// Everything that makes a batch's answers what they are, apart from the tree and
/// the walks: the two that shrinking changes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The side under test.
    pub subject: Subject,
    /// The side that decides which answer is right.
    pub oracle: Oracle,
    /// The contents of the tree, and the users that walk it.
    pub powers: Powers,
    /// With so small a budget that entries are evicted while the batch runs.
    pub tight: bool,
}

/// Compares `settings.cases` generated walks.
///
/// # Errors
/// The first difference, shrunk.
pub fn run(
    subject: Subject,
    (oracle, powers): (Oracle, Powers),
    settings: Settings,
) -> Result<Coverage, Box<Failure>> {
    let mut coverage = Coverage::default();
    for number in 0..settings.cases.div_ceil(WALKS_PER_TREE) as u64 {
        let mut rng = Rng::derived(settings.seed, number);
        let tree = Tree::grow(&mut rng, powers);
        let planner = Planner::new(&tree, &mut rng, powers);
        let left = settings.cases - number as usize * WALKS_PER_TREE;
        let walks: Vec<Walk> = (0..left.min(WALKS_PER_TREE))
            .map(|_| planner.plan(&mut rng))
            .collect();
        let setup = Setup {
            subject: subject.clone(),
            oracle,
            powers,
            tight: rng.chance(25),
        };
        if let Some(difference) = compare(&tree, &walks, &setup) {
            let failure = shrink::shrink(tree, walks, setup, difference);
            return Err(Box::new(failure.of(settings.seed, number)));
        }
        coverage.count(&tree, &walks);
    }
    Ok(coverage)
}

/// The first difference in a batch of walks over `tree`, if there is one.
///
/// # Panics
/// If the tree cannot be materialised.
pub fn compare(tree: &Tree, walks: &[Walk], setup: &Setup) -> Option<Difference> {
    let host = needs_host(setup).map(|place| {
        OnHost::new(tree, &place).unwrap_or_else(|err| panic!("cannot materialise: {err}"))
    });
    let expected = match (setup.oracle, &host) {
        (Oracle::Kernel, Some(host)) => kernel::answers(tree, host, walks, setup.powers),
        _ => model_answers(tree, walks),
    };
    if let Subject::Model(change) = setup.subject {
        let walks: Vec<Walk> = walks.iter().map(change).collect();
        let got = model_answers(tree, &walks);
        let mut pairs = expected.into_iter().zip(got).enumerate();
        let (index, (expected, got)) = pairs.find(|(_, (expected, got))| expected != got)?;
        return Some(Difference {
            index,
            query: Query::RefWalk,
            expected,
            got,
        });
    }
    let mut mounted = match MountedTree::new(tree, setup, host.as_ref()) {
        Ok(mounted) => mounted,
        Err(got) => {
            let expected = expected.into_iter().next()?;
            return Some(Difference {
                index: 0,
                query: Query::RcuFirst,
                expected,
                got,
            });
        }
    };
    for (index, (walk, expected)) in walks.iter().zip(expected).enumerate() {
        for query in ORDERS[walk.order] {
            let got = mounted.ask(walk, query);
            if got != expected {
                return Some(Difference {
                    index,
                    query,
                    expected,
                    got,
                });
            }
        }
    }
    None
}

fn needs_host(setup: &Setup) -> Option<PathBuf> {
    match &setup.subject {
        Subject::HostFs(place) => Some(place.clone()),
        _ => (setup.oracle == Oracle::Kernel).then(materialise::on_tmpfs),
    }
}

fn model_answers(tree: &Tree, walks: &[Walk]) -> Vec<Answer> {
    let model = Model::new(tree);
    walks.iter().map(|walk| model.answer(walk)).collect()
}

/// rcuwalk over one materialised tree.
struct MountedTree<'t> {
    tree: &'t Tree,
    vfs: Vfs,
    numbers: Numbers,
}

impl<'t> MountedTree<'t> {
    /// The `Err` is how rcuwalk failed to mount.
    fn new(
        tree: &'t Tree,
        setup: &Setup,
        host: Option<&OnHost>,
    ) -> Result<MountedTree<'t>, Answer> {
        let mounted = ask(|| match (&setup.subject, host) {
            (Subject::HostFs(_), Some(host)) => {
                let fs = rcuwalk_hostfs::HostFs::new(host.top())?;
                Ok((mount(fs, setup.tight)?, host.numbers().clone()))
            }
            _ => {
                let (fs, numbers) = materialise::in_memory(tree);
                Ok((mount(fs, setup.tight)?, numbers))
            }
        })?;
        let (vfs, numbers) = mounted;
        Ok(MountedTree { tree, vfs, numbers })
    }

    fn ask(&mut self, walk: &Walk, query: Query) -> Answer {
        let attr = ask(|| {
            let context = self.context(walk)?;
            let path = &walk.path[..];
            match query {
                Query::RcuFirst => self.vfs.stat(&context, path, walk.flags),
                Query::RefWalk => self
                    .vfs
                    .stat(&context, path, walk.flags | LookupFlags::REF_WALK),
                Query::Lookup => {
                    let found = self.vfs.lookup(&context, path, walk.flags)?;
                    Ok(found.inode().attr())
                }
            }
        });
        match attr {
            Ok(attr) => Answer::Found(self.found(attr)),
            Err(answer) => answer,
        }
    }

    fn context(&self, walk: &Walk) -> rcuwalk::Result<Context> {
        let Place { root, cwd } = walk.place;
        let mut context = self.vfs.context(Credentials::root());
        if root != ROOT {
            let root = self.dir(&context, root)?;
            context = context.with_root(root);
        }
        // The context starts in the tree's root, which need not be its own any more.
        if (root, cwd) != (ROOT, ROOT) {
            let cwd = self.dir(&self.vfs.context(Credentials::root()), cwd)?;
            context = context.with_cwd(cwd);
        }
        Ok(context.with_credentials(walk.user.credentials()))
    }

    fn dir(&self, context: &Context, dir: NodeIx) -> rcuwalk::Result<rcuwalk::VfsPath> {
        let below = self
            .tree
            .path_between(ROOT, dir)
            .expect("a place is in the tree");
        let path = [&b"/"[..], &below].concat();
        self.vfs
            .lookup(context, path, LookupFlags::FOLLOW | LookupFlags::DIRECTORY)
    }

    fn found(&self, attr: Attr) -> Found {
        Found::new(self.numbers.which(attr.ino), Raw::from(attr))
    }
}

fn mount(fs: impl rcuwalk::FileSystem, tight: bool) -> rcuwalk::Result<Vfs> {
    if tight {
        Vfs::with_budget(
            fs,
            Budget::default()
                .dentries(8)
                .inodes(8)
                .bytes(16 << 10)
                .fds(16),
        )
    } else {
        Vfs::new(fs)
    }
}

/// Calls rcuwalk; an error or a panic of it is an answer.
fn ask<T>(call: impl FnOnce() -> rcuwalk::Result<T>) -> Result<T, Answer> {
    match frame::without_panic(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(err)) => Err(Answer::Errno(err.errno())),
        Err(panic) => Err(Answer::Panicked(panic)),
    }
}
