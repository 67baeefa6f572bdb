//! The text form of a tree; its grammar is in the parent module's documentation.

use std::error::Error;
use std::fmt;

use super::{Checker, Entry, Kind, TreeSpec};

impl TreeSpec {
    /// Reads the [text form](crate::tree#the-text-form).
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut entries = Vec::new();
        let mut numbers = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = parse_entry(line).map_err(|what| ParseError { line: number, what })?;
            entries.push(entry);
            numbers.push(number);
        }
        let mut checker = Checker::default();
        for (entry, &line) in entries.iter().zip(&numbers) {
            checker
                .add(entry)
                .map_err(|what| ParseError { line, what })?;
        }
        Ok(Self { entries })
    }

    /// The [text form](crate::tree#the-text-form), without comments.
    pub fn to_text(&self) -> String {
        self.entries
            .iter()
            .map(|entry| format!("{entry}\n"))
            .collect()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, uid, gid, .. } = self;
        let kind = match self.kind {
            Kind::Dir => "dir",
            Kind::File => "file",
            Kind::Symlink(_) => "link",
        };
        write!(f, "{kind} {mode:04o} {uid} {gid} {}", escape(&self.path))?;
        match &self.kind {
            Kind::Symlink(target) => write!(f, " -> {}", escape(target)),
            _ => Ok(()),
        }
    }
}

fn parse_entry(line: &str) -> Result<Entry, String> {
    let mut fields = line.split_ascii_whitespace();
    let mut field = |what: &str| {
        fields
            .next()
            .ok_or_else(|| format!("the {what} is missing"))
    };

    let kind = field("kind")?;
    let mode = parse_mode(field("mode")?)?;
    let uid = parse_id("uid", field("uid")?)?;
    let gid = parse_id("gid", field("gid")?)?;
    let path = unescape(field("path")?)?;
    let kind = match kind {
        "dir" => Kind::Dir,
        "file" => Kind::File,
        "link" => match field("`->` and the link target")? {
            "->" => Kind::Symlink(unescape(field("link target")?)?),
            other => return Err(format!("`->` expected, not `{other}`")),
        },
        other => return Err(format!("`{other}` is not one of dir, file, link")),
    };
    if let Some(extra) = fields.next() {
        return Err(format!(
            "`{extra}` is one field too many (a space is `\\x20`)"
        ));
    }
    Ok(Entry {
        path,
        kind,
        mode,
        uid,
        gid,
    })
}

fn parse_mode(field: &str) -> Result<u32, String> {
    u32::from_str_radix(field, 8)
        .ok()
        .filter(|&mode| mode <= 0o7777)
        .ok_or_else(|| format!("mode `{field}` is not octal, 0000 to 7777"))
}

fn parse_id(what: &str, field: &str) -> Result<u32, String> {
    field
        .parse()
        .map_err(|_| format!("{what} `{field}` is not a number from 0 to {}", u32::MAX))
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text += r"\x5c",
            b'!'..=b'~' => text.push(byte.into()),
            _ => text += &format!("\\x{byte:02x}"),
        }
    }
    text
}

fn unescape(field: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'\\' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let escaped = after.strip_prefix(b"x").and_then(|hex| hex.get(..2));
        let value = escaped
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))
            .and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok())
            .ok_or_else(|| format!("a backslash without `xHH` after it in `{field}`"))?;
        bytes.push(value);
        rest = &after[3..];
    }
    Ok(bytes)
}

/// Where the text form of a tree is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// The reason.
    pub what: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_round_trips_and_comments_are_skipped() {
        let text = "dir 0755 0 0 usr\nfile 4711 7 4294967295 usr/a\\x20\\x5c\\xff\n\
                    link 0777 0 0 lib -> usr/x->y\n";
        let tree = TreeSpec::parse(&format!("# a tree\n\n{text}")).unwrap();
        assert_eq!(tree.entries()[1].path, b"usr/a \\\xff");
        assert_eq!(tree.entries()[1].name(), b"a \\\xff");
        assert_eq!(tree.entries()[2].kind, Kind::Symlink(b"usr/x->y".to_vec()));
        assert_eq!(tree.to_text(), text);
    }

    #[test]
    fn the_builtin_tree_round_trips() {
        let tree = TreeSpec::builtin();
        assert_eq!(TreeSpec::parse(&tree.to_text()), Ok(tree));
    }

    /// Each of these is wrong in the line that it ends with.
    #[test]
    fn errors_say_the_line_and_what_is_wrong_with_it() {
        let wrong = [
            ("pipe 0644 0 0 a", "`pipe` is not one of dir, file, link"),
            ("file", "the mode is missing"),
            ("file 0644 0 0", "the path is missing"),
            ("file 0888 0 0 a", "mode `0888` is not octal, 0000 to 7777"),
            (
                "file 10000 0 0 a",
                "mode `10000` is not octal, 0000 to 7777",
            ),
            (
                "file 0644 -1 0 a",
                "uid `-1` is not a number from 0 to 4294967295",
            ),
            (
                "file 0644 0 root a",
                "gid `root` is not a number from 0 to 4294967295",
            ),
            (
                "file 0644 0 0 a b",
                "`b` is one field too many (a space is `\\x20`)",
            ),
            (
                r"file 0644 0 0 a\n",
                r"a backslash without `xHH` after it in `a\n`",
            ),
            (
                r"file 0644 0 0 a\x+f",
                r"a backslash without `xHH` after it in `a\x+f`",
            ),
            (
                r"file 0644 0 0 a\x2",
                r"a backslash without `xHH` after it in `a\x2`",
            ),
            ("link 0777 0 0 a", "the `->` and the link target is missing"),
            ("link 0777 0 0 a b", "`->` expected, not `b`"),
            ("link 0777 0 0 a ->", "the link target is missing"),
            ("link 0777 0 0 a -> /b", "`a` has an absolute link target"),
            (r"file 0644 0 0 a\x00", r"`a\x00` has a NUL byte"),
            ("file 0644 0 0 d/f", "`d/f` comes before its directory `d`"),
            ("file 0644 0 0 f\nfile 0644 0 0 f", "`f` is there twice"),
            (
                "file 0644 0 0 f\nfile 0644 0 0 f/g",
                "`f/g` is in `f`, which is no directory",
            ),
            (
                "link 0777 0 0 l -> .\nfile 0644 0 0 l/g",
                "`l/g` is in `l`, which is no directory",
            ),
        ];
        for (text, what) in wrong {
            let line = 1 + text.lines().count();
            let what = what.to_owned();
            let parsed = TreeSpec::parse(&format!("# comment\n{text}"));
            assert_eq!(parsed, Err(ParseError { line, what }), "{text}");
        }
    }

    #[test]
    fn no_entry_may_leave_the_root() {
        for path in ["/etc", "..", "a/../..", ".", "a//b", "a/"] {
            let text = format!("dir 0755 0 0 a\nfile 0644 0 0 {path}");
            let wrong = TreeSpec::parse(&text).unwrap_err();
            assert!(
                wrong.what.contains("is not relative to the root"),
                "{wrong}"
            );
        }
    }
}
