//! `cargo xtask layers`: no crate uses what its layer may not use.
//!
//! | layer         | of ours, it may use | and it may not                       |
//! |---------------|---------------------|--------------------------------------|
//! | `sync`        | nothing             |                                      |
//! | `vfs`         | `sync`              | do I/O, run async, contain `unsafe`  |
//! | `backends/*`  | `vfs`               | use each other, even in their tests  |
//! | `frontends/*` | `vfs`               |                                      |
//! | `scan`        | `vfs`, `backends/*` | use front ends                       |
//! | the rest      | all                 |                                      |
//!
//! The first column is [`Layer::of`], the second [`Layer::may_use`]. Tests (dev-dependencies)
//! are free, with the exception of the one rule in the table.

use std::path::Path;

use crate::run::{Done, Result};
use crate::source::{Source, rust_sources};
use crate::workspace::{Crate, Dependency, Kind, Workspace};

/// Crates that make system calls or bring an async runtime.
const NOT_IN_VFS: [&str; 5] = ["rustix", "nix", "tokio", "async-std", "smol"];

/// Modules of std that do so.
const NOT_IN_VFS_SOURCE: [&str; 3] = ["fs", "net", "process"];

pub(crate) fn run(root: &Path) -> Result<Done> {
    let workspace = Workspace::read(root)?;
    let mut findings = dependency_findings(&workspace);
    findings.extend(source_findings(&rust_sources(root, "vfs/src")?));

    if findings.is_empty() {
        println!("layers: {} crates keep to theirs", workspace.crates.len());
        return Ok(Done::Passed);
    }
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Err(format!("layers: {} found that may not be", findings.len()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Sync,
    Vfs,
    Backend,
    Frontend,
    /// Whole trees, read by the back ends past the caches.
    Scan,
    /// Tools and tests, on top of everything.
    Free,
}

impl Layer {
    /// The layer of the crate in this directory, if the directory has one.
    fn of(dir: &str) -> Option<Layer> {
        match dir.split('/').collect::<Vec<_>>()[..] {
            ["sync"] => Some(Layer::Sync),
            ["vfs"] => Some(Layer::Vfs),
            ["backends", _] => Some(Layer::Backend),
            ["frontends", _] => Some(Layer::Frontend),
            ["scan"] => Some(Layer::Scan),
            ["cli" | "bench" | "conformance" | "fuzz" | "xtask"] | ["bench", "peers"] => {
                Some(Layer::Free)
            }
            _ => None,
        }
    }

    /// The arrows between layers, and no others.
    fn may_use(self, other: Layer, kind: Kind) -> bool {
        use Layer::*;
        match (self, other) {
            (Backend, Backend) => false,
            (Free, _) | (Vfs, Sync) | (Backend | Frontend, Vfs) | (Scan, Vfs | Backend) => true,
            _ => kind == Kind::Dev,
        }
    }
}

fn dependency_findings(workspace: &Workspace) -> Vec<String> {
    let mut findings = Vec::new();
    for user in &workspace.crates {
        let Some(layer) = Layer::of(&user.dir) else {
            findings.push(format!(
                "{}/Cargo.toml: no layer is known for this directory; add it to `Layer::of`",
                user.dir
            ));
            continue;
        };
        for dependency in &user.dependencies {
            if !is_allowed(workspace, layer, dependency) {
                findings.push(forbidden(user, dependency));
            }
        }
    }
    findings
}

fn is_allowed(workspace: &Workspace, layer: Layer, dependency: &Dependency) -> bool {
    let ours = workspace
        .crates
        .iter()
        .find(|krate| krate.name == dependency.package);
    match ours {
        // A crate without a layer has a finding of its own.
        Some(used) => Layer::of(&used.dir).is_none_or(|used| layer.may_use(used, dependency.kind)),
        None => {
            let for_users = dependency.kind == Kind::Normal;
            let does_io = NOT_IN_VFS.contains(&dependency.package.as_str());
            !(layer == Layer::Vfs && for_users && does_io)
        }
    }
}

fn forbidden(user: &Crate, dependency: &Dependency) -> String {
    let even = match dependency.kind {
        Kind::Normal => "",
        Kind::Dev => ", even in its tests",
    };
    let (dir, line) = (&user.dir, dependency.line);
    format!(
        "{dir}/Cargo.toml:{line}: {} may not use {}{even}",
        user.name, dependency.package
    )
}

/// What `vfs/src` itself must and must not say.
fn source_findings(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    let forbids = |source: &Source| {
        let mut lines = source.lines();
        source.path == "vfs/src/lib.rs"
            && lines.any(|(_, line)| line.trim() == "#![forbid(unsafe_code)]")
    };
    if !sources.iter().any(forbids) {
        findings.push("vfs/src/lib.rs:1: must say #![forbid(unsafe_code)]".into());
    }
    for source in sources {
        for (line, module) in std_modules(source) {
            if NOT_IN_VFS_SOURCE.contains(&module.as_str()) {
                let path = &source.path;
                findings.push(format!("{path}:{line}: rcuwalk may not use std::{module}"));
            }
        }
    }
    findings
}

/// The modules of std that a source mentions outside of comments, with lines:
/// `fs` for `std::fs::File` as well as for `use std::{cell, fs::File};`.
fn std_modules(source: &Source) -> Vec<(usize, String)> {
    // Comments are blanked, not removed, so that lines keep their numbers.
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = source
        .text
        .lines()
        .map(|line| Some(line).filter(is_code).unwrap_or(""))
        .collect();
    let code = code.join("\n");

    let mut found = Vec::new();
    for (at, _) in code.match_indices("std::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "std::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let start = code.len() - group.len();
                let names = first_names(group);
                found.extend(names.into_iter().map(|(at, name)| (start + at, name)));
            }
            None => found.push((at, name_at(rest))),
        }
    }
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    found
        .into_iter()
        .map(|(at, name)| (line_of(at), name.into()))
        .collect()
}

/// The first name of each path in `a::b, c::{d, e}, f}`, with where it starts.
fn first_names(group: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut depth = 1;
    let mut expected = true;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => expected = true,
            _ if expected && !c.is_whitespace() => {
                names.push((at, name_at(&group[at..])));
                expected = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn name_at(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace in which `dir` has these lines below its package name; the
    /// other crates depend on nothing.
    fn findings_with(dir: &str, lines: &str) -> Vec<String> {
        let crates = [
            ("sync", "rcuwalk-sync"),
            ("vfs", "rcuwalk"),
            ("backends/memfs", "rcuwalk-memfs"),
            ("backends/hostfs", "rcuwalk-hostfs"),
            ("frontends/fuse", "rcuwalk-fuse"),
            ("cli", "rcuwalk-cli"),
            ("conformance", "rcuwalk-conformance"),
        ];
        let members: Vec<(String, String)> = crates
            .iter()
            .map(|(its_dir, name)| {
                let lines = if *its_dir == dir { lines } else { "" };
                (
                    its_dir.to_string(),
                    format!("[package]\nname = \"{name}\"\n{lines}"),
                )
            })
            .collect();
        dependency_findings(&Workspace::parse("", &members).unwrap())
    }

    #[test]
    fn each_forbidden_edge_is_found() {
        for (dir, user, used) in [
            ("sync", "rcuwalk-sync", "rcuwalk"),
            ("sync", "rcuwalk-sync", "rcuwalk-memfs"),
            ("sync", "rcuwalk-sync", "rcuwalk-conformance"),
            ("vfs", "rcuwalk", "rcuwalk-memfs"),
            ("vfs", "rcuwalk", "rcuwalk-fuse"),
            ("vfs", "rcuwalk", "rcuwalk-cli"),
            ("vfs", "rcuwalk", "rustix"),
            ("vfs", "rcuwalk", "tokio"),
            ("vfs", "rcuwalk", "async-std"),
            ("backends/memfs", "rcuwalk-memfs", "rcuwalk-sync"),
            ("backends/memfs", "rcuwalk-memfs", "rcuwalk-hostfs"),
            ("backends/memfs", "rcuwalk-memfs", "rcuwalk-fuse"),
            ("frontends/fuse", "rcuwalk-fuse", "rcuwalk-sync"),
            ("frontends/fuse", "rcuwalk-fuse", "rcuwalk-memfs"),
        ] {
            for table in [
                "dependencies",
                "build-dependencies",
                "target.'cfg(unix)'.dependencies",
            ] {
                let found = findings_with(dir, &format!("[{table}]\n{used} = \"1\"\n"));
                let expected = format!("{dir}/Cargo.toml:4: {user} may not use {used}");
                assert_eq!(found, [expected], "[{table}]");
            }
        }
    }

    #[test]
    fn tests_are_free_except_between_back_ends() {
        let found = findings_with(
            "vfs",
            "[dev-dependencies]\nrcuwalk-memfs = \"1\"\ntokio = \"1\"",
        );
        assert_eq!(found, [""; 0]);
        let found = findings_with(
            "backends/hostfs",
            "[dev-dependencies]\nrcuwalk-memfs = \"1\"",
        );
        let expected = "backends/hostfs/Cargo.toml:4: \
                        rcuwalk-hostfs may not use rcuwalk-memfs, even in its tests";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn the_allowed_edges_are_allowed() {
        for (dir, used) in [
            ("sync", "libc"),
            ("vfs", "rcuwalk-sync"),
            ("vfs", "bitflags"),
            ("backends/hostfs", "rcuwalk"),
            ("backends/hostfs", "rustix"),
            ("frontends/fuse", "rcuwalk"),
            ("cli", "rcuwalk-sync"),
            ("conformance", "rcuwalk-memfs"),
        ] {
            let found = findings_with(dir, &format!("[dependencies]\n{used} = \"1\"\n"));
            assert_eq!(found, [""; 0], "{dir} uses {used}");
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let workspace = Workspace::parse("", &[("extras/x", "package.name = \"x\"")]).unwrap();
        let found = dependency_findings(&workspace);
        assert!(
            found[0].starts_with("extras/x/Cargo.toml: no layer"),
            "{found:?}"
        );
    }

    #[test]
    fn vfs_must_forbid_unsafe_code() {
        let lib = |text: &str| {
            [Source {
                path: "vfs/src/lib.rs".into(),
                text: text.into(),
            }]
        };
        assert_eq!(source_findings(&lib("#![forbid(unsafe_code)]\n")), [""; 0]);
        let found = source_findings(&lib("// #![forbid(unsafe_code)]\n"));
        assert_eq!(
            found,
            ["vfs/src/lib.rs:1: must say #![forbid(unsafe_code)]"]
        );
    }

    #[test]
    fn io_in_vfs_is_found_however_it_is_imported() {
        let text = "\
/// Unlike `std::fs`.
use std::{cell, fs::{self, File},
    sync::{net, Arc},
    process};
let x = ::std::net::connect();
use std::os::unix::fs::FileExt;
use my_std::fs;
";
        let source = Source {
            path: "vfs/src/a.rs".into(),
            text: text.into(),
        };
        let found: Vec<_> = std_modules(&source)
            .into_iter()
            .filter(|(_, module)| NOT_IN_VFS_SOURCE.contains(&module.as_str()))
            .collect();
        assert_eq!(
            found,
            [(2, "fs".into()), (4, "process".into()), (5, "net".into())]
        );
    }
}
