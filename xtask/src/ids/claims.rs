//! The tests and the ids they claim: read line by line, which is enough for sources that went
//! through rustfmt.

use super::names;
use crate::source::Source;

/// What one test says it proves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The first line of its doc comment, then that of its body.
    lines: [String; 2],
}

impl Claim {
    pub(super) fn names(&self, id: &str) -> bool {
        self.lines.iter().any(|line| names(line, id))
    }
}

/// The claims of every test in `source` that has made one.
pub(super) fn claims(source: &Source) -> Vec<Claim> {
    let mut found = Vec::new();
    let mut above = Above::default();
    let mut lines = source.text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        if above.in_attribute() || line.starts_with("#[") {
            above.attribute.push_str(line);
            above.close_attribute();
        } else if let Some(doc) = line.strip_prefix("///") {
            above.doc.get_or_insert(doc);
        } else if line.starts_with("//") {
            // An ordinary comment between the doc comment and the function.
        } else {
            if above.is_test && is_function(line) {
                let body = lines.peek().filter(|body| body.starts_with("//")).copied();
                let lines = [above.doc.unwrap_or(""), body.unwrap_or("")].map(String::from);
                found.extend((lines != ["", ""]).then_some(Claim { lines }));
            }
            above = Above::default();
        }
    }
    found
}

/// What stands directly above the line that is being read.
#[derive(Default)]
struct Above<'s> {
    doc: Option<&'s str>,
    /// An attribute whose closing bracket has not come yet.
    attribute: String,
    is_test: bool,
}

impl Above<'_> {
    fn in_attribute(&self) -> bool {
        !self.attribute.is_empty()
    }

    fn close_attribute(&mut self) {
        let count = |bracket: char| self.attribute.matches(bracket).count();
        if count('[') == count(']') {
            self.is_test |= makes_a_test(&self.attribute);
            self.attribute.clear();
        }
    }
}

/// `#[test]`, `#[some::test]`, `#[cfg_attr(not(loom), test)]`; not `#[cfg(test)]`.
fn makes_a_test(attribute: &str) -> bool {
    let inner = attribute.trim_start_matches("#[");
    if let Some(conditional) = inner.strip_prefix("cfg_attr(") {
        let attributes = conditional.split([',', ')', ']']).skip(1);
        return attributes
            .map(str::trim)
            .any(|name| name == "test" || name.ends_with("::test"));
    }
    let path = inner.split([']', '(']).next().unwrap_or_default().trim();
    path == "test" || path.ends_with("::test")
}

fn is_function(line: &str) -> bool {
    let before = line.split_once("fn ").map(|(before, _)| before);
    before.is_some_and(|before| before.split_whitespace().all(is_qualifier))
}

fn is_qualifier(word: &str) -> bool {
    matches!(word, "async" | "const" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim_of(text: &str) -> Vec<[String; 2]> {
        let source = Source {
            path: "a.rs".into(),
            text: text.into(),
        };
        claims(&source)
            .into_iter()
            .map(|claim| claim.lines)
            .collect()
    }

    #[test]
    fn a_claim_is_the_first_line_above_or_inside_a_test() {
        let text = "
    /// SEQ-1: one moment.
    ///
    /// More about RCU-1.
    #[test]
    #[cfg_attr(
        miri,
        ignore
    )]
    // As in the kernel.
    fn first() {
        // SEQ-2: inside.
    }

    #[test]
    fn second() {
        // SEQ-3: inside only.
    }

    #[test]
    fn silent() {
        body();
    }
";
        let expected = [
            [" SEQ-1: one moment.", "// SEQ-2: inside."],
            ["", "// SEQ-3: inside only."],
        ];
        assert_eq!(
            claim_of(text),
            expected.map(|claim| claim.map(String::from))
        );
    }

    #[test]
    fn only_tests_claim() {
        for text in [
            "/// SEQ-1\nfn helper() {}",
            "/// SEQ-1\n#[cfg(test)]\nfn helper() {}",
            "/// SEQ-1\n#[test]\nstruct NotAFunction;",
            "/// SEQ-1\nstruct Between;\n#[test]\nfn far_away() {}",
        ] {
            assert_eq!(claim_of(text).len(), 0, "{text}");
        }
    }

    #[test]
    fn tests_of_other_harnesses_claim_too() {
        for attribute in [
            "#[tokio::test]",
            "#[cfg_attr(not(loom), test)]",
            "#[test_log::test(x)]",
        ] {
            let text = format!("/// SEQ-1\n{attribute}\npub async fn t() {{}}");
            assert_eq!(claim_of(&text).len(), 1, "{attribute}");
        }
    }
}
