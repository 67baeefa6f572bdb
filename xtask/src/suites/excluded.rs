//! The excluded cases: the section "Suites of others" of docs/semantics.md, one line for each
//! case, so that an exclusion always has a public reason.

use std::path::Path;

use crate::run::Result;
use crate::source::Source;

const FILE: &str = "docs/semantics.md";
const SECTION: &str = "## Suites of others";

/// The cases of pjdfstest that need not pass, on any mount.
pub(super) fn read(root: &Path) -> Result<Vec<String>> {
    cases(&Source::read(root, FILE)?)
}

fn cases(source: &Source) -> Result<Vec<String>> {
    let lines = source.lines().skip_while(|(_, line)| *line != SECTION);
    let section = lines
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "));
    let mut cases = Vec::new();
    for (number, line) in section {
        let Some(item) = line.strip_prefix("- pjdfstest ") else {
            continue;
        };
        let case = item
            .strip_prefix('`')
            .and_then(|item| item.split_once("`:"));
        match case {
            Some((case, reason)) if !reason.trim().is_empty() => cases.push(case.into()),
            _ => {
                let path = &source.path;
                return Err(format!("{path}:{number}: is not \"`case`: reason\""));
            }
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases_of(text: &str) -> Result<Vec<String>> {
        cases(&Source {
            path: FILE.into(),
            text: text.into(),
        })
    }

    #[test]
    fn a_case_is_a_line_of_its_section_with_a_reason() {
        let text = "- pjdfstest `a::b`: elsewhere\n## Suites of others\n\nWords.\n\
                    - pjdfstest `c::d`: there is none.\n  More.\n- fsx does not.\n\
                    ## Next\n- pjdfstest `e`: x\n";
        assert_eq!(cases_of(text), Ok(vec!["c::d".into()]));
        for wrong in ["`a::b`:", "`a::b`", "a::b: why"] {
            let text = format!("{SECTION}\n- pjdfstest {wrong}\n");
            let message = cases_of(&text).unwrap_err();
            assert!(message.starts_with("docs/semantics.md:2: "), "{message}");
        }
    }

    #[test]
    fn the_list_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert!(!read(root).unwrap().is_empty());
    }
}
