//! The workspace's manifests, read: which crates there are, and what each
//! depends on.

use std::fs;
use std::path::Path;

use toml::{Table, Value};

use crate::run::Result;
use crate::source::names_in;

/// The members of the workspace.
pub(crate) struct Workspace {
    pub(crate) crates: Vec<Crate>,
}

/// One member.
pub(crate) struct Crate {
    /// The package's name.
    pub(crate) name: String,
    /// Its directory below the root.
    pub(crate) dir: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a dependency table.
pub(crate) struct Dependency {
    /// The package's own name, whatever the manifest renames it to.
    pub(crate) package: String,
    pub(crate) kind: Kind,
    /// Its line in the manifest.
    pub(crate) line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `[dependencies]` and `[build-dependencies]`: part of what users build.
    Normal,
    /// `[dev-dependencies]`
    Dev,
}

impl Workspace {
    pub(crate) fn read(root: &Path) -> Result<Workspace> {
        let read = |path: &str| {
            fs::read_to_string(root.join(path)).map_err(|err| format!("{path}: {err}"))
        };
        let top = read("Cargo.toml")?;
        let mut members = Vec::new();
        for pattern in member_patterns(&parse("Cargo.toml", &top)?) {
            for dir in expand(root, &pattern)? {
                let manifest = read(&format!("{dir}/Cargo.toml"))?;
                members.push((dir, manifest));
            }
        }
        Workspace::parse(&top, &members)
    }

    /// From the text of the top manifest and of each member's, by directory.
    pub(crate) fn parse<S: AsRef<str>>(top: &str, members: &[(S, S)]) -> Result<Workspace> {
        let top = parse("Cargo.toml", top)?;
        let shared = table(&top, &["workspace", "dependencies"]);
        let crates = members.iter().map(|(dir, manifest)| {
            let (dir, manifest) = (dir.as_ref(), manifest.as_ref());
            Crate::parse(dir, manifest, shared)
        });
        Ok(Workspace {
            crates: crates.collect::<Result<_>>()?,
        })
    }
}

fn member_patterns(top: &Table) -> Vec<String> {
    let members = table(top, &["workspace"]).and_then(|workspace| workspace.get("members"));
    let members = members.and_then(Value::as_array).into_iter().flatten();
    members
        .filter_map(Value::as_str)
        .map(String::from)
        .collect()
}

/// `backends/*` to the crates in it; anything else stands for itself.
fn expand(root: &Path, pattern: &str) -> Result<Vec<String>> {
    let Some(parent) = pattern.strip_suffix("/*") else {
        return Ok(vec![pattern.into()]);
    };
    let names = names_in(&root.join(parent))?.into_iter();
    let dirs = names.map(|name| format!("{parent}/{name}"));
    Ok(dirs
        .filter(|dir| root.join(dir).join("Cargo.toml").exists())
        .collect())
}

impl Crate {
    fn parse(dir: &str, manifest: &str, shared: Option<&Table>) -> Result<Crate> {
        let path = format!("{dir}/Cargo.toml");
        let parsed = parse(&path, manifest)?;
        let name = table(&parsed, &["package"]).and_then(|package| package.get("name"));
        let name = name
            .and_then(Value::as_str)
            .ok_or(format!("{path}: no package name"))?;

        let mut dependencies = Vec::new();
        for (kind, entries) in dependency_tables(&parsed) {
            for (key, value) in entries {
                let package = package_name(key, value, shared);
                dependencies.push(Dependency {
                    package,
                    kind,
                    line: line_of(manifest, key),
                });
            }
        }
        Ok(Crate {
            name: name.into(),
            dir: dir.into(),
            dependencies,
        })
    }
}

/// The manifest's dependency tables, those for some targets only included.
fn dependency_tables(manifest: &Table) -> Vec<(Kind, &Table)> {
    let targets = table(manifest, &["target"]).into_iter().flatten();
    let targets = targets.filter_map(|(_, target)| target.as_table());
    let mut found = Vec::new();
    for scope in [manifest].into_iter().chain(targets) {
        for (name, kind) in [
            ("dependencies", Kind::Normal),
            ("build-dependencies", Kind::Normal),
            ("dev-dependencies", Kind::Dev),
        ] {
            found.extend(table(scope, &[name]).map(|entries| (kind, entries)));
        }
    }
    found
}

/// Sees through `alias = { package = "name" }`, here or in the workspace's table.
fn package_name(key: &str, value: &Value, shared: Option<&Table>) -> String {
    let renamed = |value: &Value| value.get("package")?.as_str().map(String::from);
    let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
    let value = if inherited {
        shared.and_then(|shared| shared.get(key))
    } else {
        Some(value)
    };
    value.and_then(renamed).unwrap_or(key.into())
}

/// The line where `key` is first given a value; the parser does not say.
fn line_of(manifest: &str, key: &str) -> usize {
    let is_it = |line: &str| {
        let line = line.trim_start().trim_start_matches('"');
        let rest = line
            .strip_prefix(key)
            .map(|rest| rest.trim_start_matches('"').trim_start());
        let heading = line.starts_with('[') && line.trim_end().ends_with(&format!(".{key}]"));
        heading || rest.is_some_and(|rest| rest.starts_with(['=', '.']))
    };
    manifest.lines().position(is_it).map_or(1, |at| at + 1)
}

fn parse(path: &str, text: &str) -> Result<Table> {
    text.parse().map_err(|err| format!("{path}: {err}"))
}

fn table<'t>(mut from: &'t Table, path: &[&str]) -> Option<&'t Table> {
    for name in path {
        from = from.get(*name)?.as_table()?;
    }
    Some(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_dependency_is_seen() {
        let top = r#"
            [workspace.dependencies]
            shared = { path = "shared" }
            alias = { package = "behind-shared-alias", path = "x" }
        "#;
        let member = r#"
[package]
name = "us"
[dependencies]
plain = "1"
shared.workspace = true
alias = { workspace = true }
[dependencies.headed]
version = "1"
[build-dependencies]
builder = { package = "behind-alias", version = "1" }
[dev-dependencies]
tester = "1"
[target.'cfg(loom)'.dependencies]
loom = "0.7"
"#;
        let workspace = Workspace::parse(top, &[("us", member)]).unwrap();
        let us = &workspace.crates[0];
        let mut seen: Vec<_> = us
            .dependencies
            .iter()
            .map(|dep| (dep.line, dep.package.as_str(), dep.kind == Kind::Dev))
            .collect();
        seen.sort();
        let expected = [
            (5, "plain", false),
            (6, "shared", false),
            (7, "behind-shared-alias", false),
            (8, "headed", false),
            (11, "behind-alias", false),
            (13, "tester", true),
            (15, "loom", false),
        ];
        assert_eq!((us.name.as_str(), seen), ("us", expected.to_vec()));
    }

    #[test]
    fn a_broken_manifest_is_named() {
        let error = Workspace::parse("", &[("vfs", "[package")]).err().unwrap();
        assert!(error.starts_with("vfs/Cargo.toml: "), "{error}");
        let error = Workspace::parse("", &[("vfs", "[package]")]).err().unwrap();
        assert_eq!(error, "vfs/Cargo.toml: no package name");
    }
}
