//! `cargo xtask ids`: invariants, their homes, their tests and the code that cites them stay
//! tied together.
//!
//! The table of ARCHITECTURE.md with the columns `id`, `claim` and `home` is the list.
//!
//! - A `//!` line of an id's home explains it.
//! - A test claims it: the first line of its `///` comment, or a `//` comment on the first line
//!   of its body, names it.
//! - Code cites no id that is not in the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::run::{Done, Result};
use crate::source::{Source, rust_sources};

const TABLE: &str = "ARCHITECTURE.md";

pub(crate) fn run(root: &Path) -> Result<Done> {
    let page = fs::read_to_string(root.join(TABLE)).map_err(|err| format!("{TABLE}: {err}"))?;
    let mut sources = rust_sources(root, "")?;
    // The tests of this module use ids as examples.
    sources.retain(|source| !source.path.starts_with("xtask/"));
    let homes = homes(&page)?;
    let findings = findings(&homes, &sources);
    if findings.is_empty() {
        let tests: usize = sources.iter().map(|source| claims(source).len()).sum();
        println!(
            "ids: {} invariants, claimed {tests} times by tests",
            homes.len()
        );
        return Ok(Done::Passed);
    }
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Err(format!("ids: {} loose ends", findings.len()))
}

/// The rows of the table: `| RCU-1 | claim | [file](file) |`.
fn homes(page: &str) -> Result<BTreeMap<&str, &str>> {
    let mut homes = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", id, _, home, ""] = cells[..] else {
            continue;
        };
        if !is_id(id) {
            continue;
        }
        let link = home
            .split_once("](")
            .and_then(|(_, rest)| rest.strip_suffix(')'));
        if homes.insert(id, link.unwrap_or(home)).is_some() {
            return Err(format!("{TABLE}: {id} is there twice"));
        }
    }
    match homes.is_empty() {
        true => Err(format!("{TABLE}: no table of invariants with their homes")),
        false => Ok(homes),
    }
}

fn findings(homes: &BTreeMap<&str, &str>, sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    let claimed: BTreeSet<&str> = sources.iter().flat_map(claims).collect();
    for (id, home) in homes {
        let source = sources.iter().find(|source| source.path == *home);
        let explains =
            |line: &str| line.trim().starts_with("//!") && ids_in(line).any(|one| one == *id);
        if !source.is_some_and(|source| source.lines().any(|(_, line)| explains(line))) {
            findings.push(format!(
                "{TABLE}: {id}: no `//!` line of its home {home} names it"
            ));
        }
        if !claimed.contains(id) {
            findings.push(format!(
                "{TABLE}: {id}: no test claims it by `/// {id}: …` above it"
            ));
        }
    }
    let families: BTreeSet<&str> = homes.keys().map(|id| family(id)).collect();
    for source in sources {
        for (number, line) in source.lines() {
            let unknown = |id: &&str| families.contains(family(id)) && !homes.contains_key(id);
            for id in ids_in(line).filter(unknown) {
                findings.push(format!("{}:{number}: {id} is not in {TABLE}", source.path));
            }
        }
    }
    findings
}

/// The ids that tests claim. Read line by line, which is enough after rustfmt.
fn claims(source: &Source) -> Vec<&str> {
    let mut claims = Vec::new();
    let (mut doc, mut is_test) = (None, false);
    let mut lines = source.text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("///") {
            doc = doc.or(Some(text));
        } else if line.starts_with("#[") {
            is_test |= line.ends_with("test]") || line.ends_with("test)]");
        } else if line.contains("fn ") && is_test {
            let body = lines.peek().filter(|line| line.starts_with("//"));
            claims.extend(doc.into_iter().chain(body.copied()).flat_map(ids_in));
            (doc, is_test) = (None, false);
        } else if !line.starts_with("//") && !is_test {
            doc = None;
        }
    }
    claims
}

/// Everything shaped like an id that is not part of a longer word.
fn ids_in(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.split(move |c| !is_part(c)).filter(|word| is_id(word))
}

/// True of `RCU-1`: capitals, a hyphen, digits.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(family, number)| {
        family.len() > 1
            && family.chars().all(|c| c.is_ascii_uppercase())
            && !number.is_empty()
            && number.chars().all(|c| c.is_ascii_digit())
    })
}

fn family(id: &str) -> &str {
    id.split_once('-').map_or(id, |(family, _)| family)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
| file  | what it is |
|-------|------------|
| a.rs  | nothing    |

| id | claim | home |
|----|-------|------|
| RCU-1 | it waits | sync/src/rcu.rs |
| SEQ-3 | in order | [walk](vfs/src/walk.rs) |
";

    fn findings_with(walk: &str, tests: &str) -> Vec<String> {
        let rcu = "//! RCU-1: frees wait.\n/// RCU-1: it waits\n#[test]\nfn t() {}\n";
        let sources = [
            ("sync/src/rcu.rs", rcu),
            ("vfs/src/walk.rs", walk),
            ("vfs/tests/walk.rs", tests),
        ];
        let sources = sources.map(|(path, text)| Source {
            path: path.into(),
            text: text.into(),
        });
        findings(&homes(PAGE).unwrap(), &sources)
    }

    const TEST: &str = "/// SEQ-3: in order.\n#[test]\nfn t() {}\n";

    #[test]
    fn a_tied_table_has_no_findings() {
        let walk = "//! The walk keeps SEQ-3.\n// RCU-1, SEQ-3; UTF-8 is no id\n";
        assert_eq!(findings_with(walk, TEST), [""; 0]);
        let inside = "#[cfg_attr(not(loom), test)]\npub async fn t() {\n    // SEQ-3: inside.\n}\n";
        assert_eq!(findings_with(walk, inside), [""; 0]);
    }

    #[test]
    fn a_page_without_the_table_or_with_an_id_twice_is_refused() {
        assert!(homes("| id | claim |\n").unwrap_err().contains("no table"));
        let twice = format!("{PAGE}| RCU-1 | again | x.rs |\n");
        assert!(homes(&twice).unwrap_err().contains("RCU-1 is there twice"));
    }

    #[test]
    fn a_missing_home_or_test_is_found() {
        let found = findings_with("// SEQ-3 only in passing\n", TEST);
        let home = "ARCHITECTURE.md: SEQ-3: no `//!` line of its home vfs/src/walk.rs names it";
        assert_eq!(found, [home]);
        for no_test in [
            "/// SEQ-3\nfn helper() {}\n",
            "/// SEQ-3\n#[cfg(test)]\nmod tests {}\n",
            "/// SEQ-3\nstruct Between;\n#[test]\nfn far_away() {}\n",
        ] {
            let found = findings_with("//! SEQ-3\n", no_test);
            let expected = "ARCHITECTURE.md: SEQ-3: no test claims it by `/// SEQ-3: …` above it";
            assert_eq!(found, [expected], "{no_test}");
        }
    }

    #[test]
    fn an_unknown_id_is_found_where_it_is_cited() {
        let found = findings_with("//! SEQ-3\n\n    // SAFETY: RCU-9 holds.\n", TEST);
        assert_eq!(
            found,
            ["vfs/src/walk.rs:3: RCU-9 is not in ARCHITECTURE.md"]
        );
    }
}
