//! `cargo xtask ids`: invariants, their homes, their tests and the code that
//! cites them stay tied together.
//!
//! The table of ARCHITECTURE.md with the columns `id` and `home` is the list.
//!
//! - Every id in it is explained at home: in a `//!` line of that file.
//! - Every id in it is claimed by a test: the first line of the test's `///`
//!   comment, or a `//` comment on the first line of its body, names it.
//! - Every id that code cites is in it.
//!
//! What looks like an id is taken for one if its family (`RCU` of `RCU-1`) is in
//! the table, or if it opens a doc comment the way a claim does: `/// RCU-1: …`.
//! `UTF-8` is neither.

mod claims;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use claims::{Claim, claims};

use crate::run::{Done, Result};
use crate::source::{Source, rust_sources};

const TABLE: &str = "ARCHITECTURE.md";

pub(crate) fn run(root: &Path) -> Result<Done> {
    let page = fs::read_to_string(root.join(TABLE)).map_err(|err| format!("{TABLE}: {err}"))?;
    let mut sources = rust_sources(root, "")?;
    // The checks of this very module use ids as examples.
    sources.retain(|source| !source.path.starts_with("xtask/"));

    let invariants = invariants(&page)?;
    let findings = findings(&invariants, &sources);
    if findings.is_empty() {
        let tests: usize = sources.iter().map(|source| claims(source).len()).sum();
        println!(
            "ids: {} invariants, claimed by {tests} tests",
            invariants.len()
        );
        return Ok(Done::Passed);
    }
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Err(format!("ids: {} loose ends", findings.len()))
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Invariant {
    id: String,
    /// The file whose module doc explains it.
    home: String,
    /// Its line in [`TABLE`].
    line: usize,
}

/// Reads the table out of the page.
fn invariants(page: &str) -> Result<Vec<Invariant>> {
    let mut found: Vec<Invariant> = Vec::new();
    let mut home_column = None;
    for (line, text) in (1..).zip(page.lines()) {
        let Some(cells) = cells(text) else {
            home_column = None;
            continue;
        };
        let is_heading = cells[0].eq_ignore_ascii_case("id");
        if is_heading {
            home_column = cells
                .iter()
                .position(|cell| cell.eq_ignore_ascii_case("home"));
        } else if let (Some(column), Some(id)) = (home_column, whole_id(cells[0])) {
            let home = cells.get(column).copied().unwrap_or_default();
            if let Some(first) = found.iter().find(|known| known.id == id) {
                return Err(format!(
                    "{TABLE}:{line}: {id} is already at line {}",
                    first.line
                ));
            }
            found.push(Invariant {
                id: id.into(),
                home: link_target(home).into(),
                line,
            });
        }
    }
    if found.is_empty() {
        return Err(format!(
            "{TABLE}: no table of invariants with the columns `id` and `home`"
        ));
    }
    Ok(found)
}

/// The cells of a row of a Markdown table, without the marks around their text.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?;
    let row = row.strip_suffix('|').unwrap_or(row);
    Some(row.split('|').map(unmarked).collect())
}

fn unmarked(text: &str) -> &str {
    text.trim().trim_matches(['`', '*'])
}

/// `b` of the link `[a](b)`; text that is no link is the target itself.
fn link_target(text: &str) -> &str {
    let target = text
        .split_once("](")
        .and_then(|(_, rest)| rest.split_once(')'));
    target.map_or(text, |(target, _)| target)
}

fn findings(invariants: &[Invariant], sources: &[Source]) -> Vec<String> {
    let claims: Vec<Claim> = sources.iter().flat_map(claims).collect();
    let mut findings = Vec::new();
    for invariant in invariants {
        let Invariant { id, home, line } = invariant;
        if let Some(problem) = problem_at_home(invariant, sources) {
            findings.push(format!("{TABLE}:{line}: {id}: {problem}"));
        }
        if !claims.iter().any(|claim| claim.names(id)) {
            findings.push(format!(
                "{TABLE}:{line}: {id}: no test claims it (home: {home}); \
                 a test does with `/// {id}: …` above it"
            ));
        }
    }
    findings.extend(unknown_ids(invariants, sources));
    findings
}

fn problem_at_home(Invariant { id, home, .. }: &Invariant, sources: &[Source]) -> Option<String> {
    if home.is_empty() {
        return Some("it has no home".into());
    }
    let Some(source) = sources.iter().find(|source| source.path == *home) else {
        return Some(format!("its home {home} is not a source file here"));
    };
    let explains = |line: &str| line.trim_start().starts_with("//!") && names(line, id);
    let is_explained = source.lines().any(|(_, line)| explains(line));
    (!is_explained).then(|| format!("no `//!` line of {home} names it"))
}

/// Citations of ids that the table does not have.
fn unknown_ids(invariants: &[Invariant], sources: &[Source]) -> Vec<String> {
    let known: BTreeSet<&str> = invariants.iter().map(|one| one.id.as_str()).collect();
    let families: BTreeSet<&str> = known.iter().map(|id| family(id)).collect();
    let mut findings = Vec::new();
    for source in sources {
        for (line, text) in source.lines() {
            for id in ids_in(text) {
                let is_id = families.contains(family(id)) || opens_a_claim(text, id);
                if is_id && !known.contains(id) {
                    let path = &source.path;
                    findings.push(format!(
                        "{path}:{line}: {id} is not in the table of {TABLE}"
                    ));
                }
            }
        }
    }
    findings
}

/// Everything shaped like an id, `RCU-1`, that is not part of a longer word.
fn ids_in(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.split(move |c| !is_part(c))
        .filter(|word| whole_id(word).is_some())
}

/// `word` itself if it is an id from end to end.
fn whole_id(word: &str) -> Option<&str> {
    let (family, number) = word.split_once('-')?;
    let is_family = family.starts_with(|c: char| c.is_ascii_uppercase())
        && family.len() > 1
        && family
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
    (is_family && is_number).then_some(word)
}

fn names(text: &str, id: &str) -> bool {
    ids_in(text).any(|found| found == id)
}

fn family(id: &str) -> &str {
    id.split_once('-').map_or(id, |(family, _)| family)
}

/// True of `/// RCU-1: …` and of `//! RCU-1: …`.
fn opens_a_claim(line: &str, id: &str) -> bool {
    let line = line.trim_start();
    let doc = line.strip_prefix("///").or(line.strip_prefix("//!"));
    let rest = doc.and_then(|doc| doc.trim_start().strip_prefix(id));
    rest.is_some_and(|rest| rest.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Architecture

| crate | home |
|-------|------|
| sync  | none |

| id    | claim      | home                          |
|-------|------------|-------------------------------|
| RCU-1 | it waits   | `sync/src/rcu.rs`             |
| **SEQ-3** | in order | [walk](vfs/src/walk.rs)     |
";

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    fn findings_with(walk: &str, tests: &str) -> Vec<String> {
        let rcu = "//! RCU-1: frees wait.\n/// RCU-1: it waits\n#[test]\nfn t() {}\n";
        let sources = [
            source("sync/src/rcu.rs", rcu),
            source("vfs/src/walk.rs", walk),
            source("vfs/tests/walk.rs", tests),
        ];
        findings(&invariants(PAGE).unwrap(), &sources)
    }

    #[test]
    fn the_table_is_read() {
        let row = |id: &str, home: &str, line| Invariant {
            id: id.into(),
            home: home.into(),
            line,
        };
        let expected = [
            row("RCU-1", "sync/src/rcu.rs", 9),
            row("SEQ-3", "vfs/src/walk.rs", 10),
        ];
        assert_eq!(invariants(PAGE).unwrap(), expected);
    }

    #[test]
    fn a_page_without_the_table_or_with_an_id_twice_is_refused() {
        let error = invariants("# Architecture\n| id | claim |\n| RCU-1 | it waits |\n");
        assert!(error.unwrap_err().contains("no table"));
        let error = invariants(&format!("{PAGE}| RCU-1 | again | x.rs |\n")).unwrap_err();
        assert_eq!(error, "ARCHITECTURE.md:11: RCU-1 is already at line 9");
    }

    #[test]
    fn a_tied_table_has_no_findings() {
        let found = findings_with(
            "//! The walk keeps SEQ-3.\n// RCU-1, SEQ-3; UTF-8 is no id\n",
            "/// SEQ-3: in order.\n#[test]\nfn t() {}\n",
        );
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_missing_home_is_found() {
        let test = "/// SEQ-3: in order.\n#[test]\nfn t() {}\n";
        let found = findings_with("// SEQ-3 only in passing\n", test);
        assert_eq!(
            found,
            ["ARCHITECTURE.md:10: SEQ-3: no `//!` line of vfs/src/walk.rs names it"]
        );

        let page = "| id | home |\n|--|--|\n| RCU-1 | gone.rs |\n| RCU-2 | |\n";
        let sources = [source("a.rs", "/// RCU-1, RCU-2\n#[test]\nfn t() {}\n")];
        let found = findings(&invariants(page).unwrap(), &sources);
        let expected = [
            "ARCHITECTURE.md:3: RCU-1: its home gone.rs is not a source file here",
            "ARCHITECTURE.md:4: RCU-2: it has no home",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_missing_test_is_found() {
        let found = findings_with("//! SEQ-3\n", "/// SEQ-3: but no test\nfn t() {}\n");
        let expected = "ARCHITECTURE.md:10: SEQ-3: no test claims it (home: vfs/src/walk.rs); \
                        a test does with `/// SEQ-3: …` above it";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn an_unknown_id_is_found_where_it_is_cited() {
        let found = findings_with(
            "//! SEQ-3\n\n    // SAFETY: RCU-9 holds.\n/// NAME-1: a new family.\n",
            "/// SEQ-3: in order.\n#[test]\nfn t() {}\n",
        );
        let expected = [
            "vfs/src/walk.rs:3: RCU-9 is not in the table of ARCHITECTURE.md",
            "vfs/src/walk.rs:4: NAME-1 is not in the table of ARCHITECTURE.md",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn ids_are_told_from_other_words() {
        let text = "RCU-1, (SEQ-3) RCU-walk I_NEW-2 N-1 RCU-12.";
        assert_eq!(
            ids_in(text).collect::<Vec<_>>(),
            ["RCU-1", "SEQ-3", "RCU-12"]
        );
    }
}
