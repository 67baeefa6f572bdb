//! What the generated walks reach: a differential test that only ever asked for
//! missing names would be green, and worth nothing.
//!
//! Counted by the model's [`Trace`] of each walk, so that a feature counts when the
//! walk got that far, not when the path merely contains it.

use std::collections::BTreeMap;
use std::fmt;

use rcuwalk::{FileType, LookupFlags, NAME_MAX, PATH_MAX};

use crate::answer::{Answer, Which, errno_name};
use crate::model::{Class, Model, Trace};
use crate::tree::{Node, ROOT, Tree};
use crate::walks::{User, Walk};

/// Something that a path walk treats specially.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(
    missing_docs,
    reason = "`features` says exactly what each of them means"
)]
pub enum Feature {
    Absolute,
    FromCwd,
    SubRoot,
    EmptyRefused,
    EmptyAllowed,
    TrailingSlash,
    TrailingSlashes,
    TrailingDot,
    TrailingDotDot,
    SlashAfterFile,
    DoubledSlash,
    Dot,
    DotDot,
    DotDotAtRoot,
    FoundName255,
    Name256,
    Path4095,
    Path4096,
    NotUtf8,
    LinkFollowed,
    LinkLast,
    LinkKept,
    LinkFollowedForSlash,
    LinkAbsolute,
    LinkTargetSlash,
    LinksNested,
    Links39,
    Links40,
    Links41,
    HardLink,
    Fifo,
    Socket,
    Device,
    FileAsDirectory,
    DirectoryFound,
    DirectoryRefused,
    AsRoot,
    AsUser,
    DeniedOwner,
    DeniedGroup,
    DeniedOther,
    SupplementaryGroup,
    SearchCapability,
    OverrideCapability,
    PowerlessRoot,
}

/// How often each outcome and each feature occurred.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Walks counted.
    pub cases: usize,
    /// By errno; 0 is success.
    pub errnos: BTreeMap<i32, usize>,
    /// By feature: all of them, once a walk is counted.
    pub features: BTreeMap<Feature, usize>,
}

impl Coverage {
    /// Counts `walks` over `tree`.
    pub fn count(&mut self, tree: &Tree, walks: &[Walk]) {
        let model = Model::new(tree);
        for walk in walks {
            let (answer, trace) = model.trace(walk);
            self.cases += 1;
            *self.errnos.entry(answer.errno()).or_default() += 1;
            for (feature, is) in features(tree, walk, &answer, &trace) {
                *self.features.entry(feature).or_default() += usize::from(is);
            }
        }
    }
}

/// Each feature, and whether the walk has it.
fn features(
    tree: &Tree,
    walk: &Walk,
    answer: &Answer,
    trace: &Trace,
) -> impl Iterator<Item = (Feature, bool)> {
    use Feature::*;
    let Walk {
        place,
        user,
        path,
        flags,
        order: _,
    } = walk;
    let has = |flag| flags.contains(flag);
    let ends = |end: &[u8]| path.ends_with(end);
    let components = || path.split(|&b| b == b'/');
    let found = match answer {
        Answer::Found(found) => match found.which {
            Which::Node(ix) => Some(tree.node(ix)),
            Which::Stranger(_) => None,
        },
        _ => None,
    };
    let kind = |kinds: &[FileType]| found.is_some_and(|node: &Node| kinds.contains(&node.kind));
    let failed = |errno| *answer == Answer::Errno(errno);
    let links = |n| trace.links == n && found.is_some();
    let nlink = match answer {
        Answer::Found(found) => found.nlink,
        _ => None,
    };
    let denied = |class| trace.denied == Some(class);
    let list = [
        (Absolute, path.starts_with(b"/")),
        (FromCwd, place.cwd != ROOT && !path.starts_with(b"/")),
        (SubRoot, place.root != ROOT),
        (EmptyRefused, path.is_empty() && failed(libc::ENOENT)),
        (EmptyAllowed, path.is_empty() && found.is_some()),
        (TrailingSlash, ends(b"/") && found.is_some()),
        (TrailingSlashes, ends(b"//") && found.is_some()),
        (TrailingDot, ends(b"/.") && found.is_some()),
        (TrailingDotDot, ends(b"/..") && found.is_some()),
        (SlashAfterFile, ends(b"/") && failed(libc::ENOTDIR)),
        (
            DoubledSlash,
            path.windows(2).any(|two| two == b"//") && found.is_some(),
        ),
        (Dot, components().any(|c| c == b".") && found.is_some()),
        (DotDot, components().any(|c| c == b"..") && found.is_some()),
        (DotDotAtRoot, trace.dotdot_at_root),
        (
            FoundName255,
            found.is_some() && components().any(|c| c.len() == NAME_MAX),
        ),
        (Name256, path.len() < PATH_MAX && failed(libc::ENAMETOOLONG)),
        (Path4095, path.len() == PATH_MAX - 1 && found.is_some()),
        (
            Path4096,
            path.len() == PATH_MAX && failed(libc::ENAMETOOLONG),
        ),
        (
            NotUtf8,
            std::str::from_utf8(path).is_err() && found.is_some(),
        ),
        (LinkFollowed, trace.links > 0),
        (LinkLast, trace.last_link && found.is_some()),
        (LinkKept, trace.last_link_kept),
        (
            LinkFollowedForSlash,
            trace.followed_for_slash && trace.last_link,
        ),
        (LinkAbsolute, trace.absolute_link),
        (LinkTargetSlash, trace.slash_in_target),
        (LinksNested, trace.depth >= 3),
        (Links39, links(39)),
        (Links40, links(40)),
        (Links41, failed(libc::ELOOP)),
        (HardLink, nlink.is_some_and(|n| n > 1)),
        (Fifo, kind(&[FileType::Fifo])),
        (Socket, kind(&[FileType::Socket])),
        (Device, kind(&[FileType::CharDevice, FileType::BlockDevice])),
        (FileAsDirectory, failed(libc::ENOTDIR) && !ends(b"/")),
        (
            DirectoryFound,
            has(LookupFlags::DIRECTORY) && found.is_some(),
        ),
        (
            DirectoryRefused,
            has(LookupFlags::DIRECTORY) && failed(libc::ENOTDIR) && !ends(b"/"),
        ),
        (AsRoot, *user == User::Root),
        (AsUser, matches!(user, User::Plain | User::Member)),
        (DeniedOwner, denied(Class::Owner)),
        (DeniedGroup, denied(Class::Group)),
        (DeniedOther, denied(Class::Other)),
        (SupplementaryGroup, trace.by_supplementary_group),
        (
            SearchCapability,
            trace.by_capability && *user == User::Searcher,
        ),
        (
            OverrideCapability,
            trace.by_capability && *user == User::Overrider,
        ),
        (
            PowerlessRoot,
            failed(libc::EACCES) && *user == User::Powerless,
        ),
    ];
    list.into_iter()
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} walks:", self.cases)?;
        for (&errno, count) in &self.errnos {
            write!(f, " {} {count}", errno_name(errno))?;
        }
        for (feature, count) in &self.features {
            write!(f, "\n  {feature:?} {count}")?;
        }
        Ok(())
    }
}
