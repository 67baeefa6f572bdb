//! `cargo xtask layers`: no crate uses what its layer may not use.
//!
//! | layer            | of ours, it may use | and it may not                       |
//! |------------------|---------------------|--------------------------------------|
//! | `sync`, `procfs` | nothing             |                                      |
//! | `vfs`            | `sync`              | do I/O, run async, contain `unsafe`  |
//! | `backends/*`     | `vfs`, `procfs`     | use each other, even in their tests  |
//! | `frontends/*`    | `vfs`, `procfs`     | use each other                       |
//! | `frontends/virtiofs` | and `frontends/fuse` |                                 |
//! | `scan`           | `vfs`, `backends/*` | use front ends                       |
//! | the rest         | all                 |                                      |
//!
//! Tests (dev-dependencies) are free, with the exception of the one rule in the table. Cargo
//! says which crate depends on which; the sources of `vfs` are searched for I/O; nightly's
//! compiler refuses a type of `sync` in the public interface of `vfs`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::heavy::{nightly_host, target_dir};
use crate::run::{Cmd, Done, Result};
use crate::source::{Source, rust_sources};

/// Crates that make system calls or bring an async runtime.
const NOT_IN_VFS: [&str; 5] = ["rustix", "nix", "tokio", "async-std", "smol"];

/// Modules of std that make system calls. A group `std::{…}` could hide one.
const NOT_IN_VFS_SOURCE: [&str; 4] = ["std::fs", "std::net", "std::process", "std::{"];

pub(crate) fn run(root: &Path) -> Result<Done> {
    let crates = crates(root)?;
    let mut findings = edge_findings(&crates);
    findings.extend(source_findings(&rust_sources(root, "vfs/src")?));
    if findings.is_empty() {
        println!("layers: {} crates keep to theirs", crates.len());
        return public_interface(root);
    }
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Err(format!("layers: {} found that may not be", findings.len()))
}

/// The lint `exported_private_dependencies`, which `vfs` denies: stable does not know which
/// dependencies are private.
fn public_interface(root: &Path) -> Result<Done> {
    if nightly_host(root).is_none() {
        return Ok(Done::Skipped("the public interface: needs nightly".into()));
    }
    Cmd::nightly_cargo(root)
        .args(["check", "--package", "rcuwalk", "-Zpublic-dependency"])
        .arg("--target-dir", target_dir(root, "layers"))
        .run()
}

/// A member of the workspace.
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Its directory below the root.
    pub(crate) dir: String,
    /// Packages it depends on; true for those of its tests only.
    dependencies: Vec<(String, bool)>,
}

/// All members, as `cargo metadata` lists them.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>> {
    let args = ["metadata", "--no-deps", "--format-version", "1"];
    let output = Command::new("cargo").args(args).current_dir(root).output();
    let output = output.map_err(|err| format!("cargo metadata: {err}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|err| format!("cargo metadata: {err}"))?;
    let root = format!("{}/", text(&metadata["workspace_root"]));
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let dir = manifest
            .trim_start_matches(&root)
            .trim_end_matches("/Cargo.toml");
        let dependencies = list(&package["dependencies"]).into_iter();
        Crate {
            name: text(&package["name"]).into(),
            dir: dir.into(),
            dependencies: dependencies
                .map(|one| (text(&one["name"]).into(), one["kind"] == "dev"))
                .collect(),
        }
    };
    Ok(list(&metadata["packages"]).iter().map(of).collect())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Sync,
    /// /proc, for back ends and front ends.
    Procfs,
    Vfs,
    Backend,
    Frontend,
    /// A front end whose requests are those of another one.
    Carrier,
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
            ["procfs"] => Some(Layer::Procfs),
            ["vfs"] => Some(Layer::Vfs),
            ["backends", _] => Some(Layer::Backend),
            ["frontends", "virtiofs"] => Some(Layer::Carrier),
            ["frontends", _] => Some(Layer::Frontend),
            ["scan"] => Some(Layer::Scan),
            ["cli" | "bench" | "testkit" | "conformance" | "fuzz" | "xtask"]
            | ["bench", "peers"] => Some(Layer::Free),
            _ => None,
        }
    }

    /// The arrows between layers, and no others.
    fn may_use(self, other: Layer, in_tests: bool) -> bool {
        use Layer::*;
        match (self, other) {
            (Backend, Backend) => false,
            (Free, _) | (Vfs, Sync) | (Scan, Vfs | Backend) => true,
            (Backend | Frontend | Carrier, Vfs | Procfs) | (Carrier, Frontend) => true,
            _ => in_tests,
        }
    }
}

fn edge_findings(crates: &[Crate]) -> Vec<String> {
    let mut findings = Vec::new();
    for user in crates {
        let dir = &user.dir;
        let Some(layer) = Layer::of(dir) else {
            findings.push(format!(
                "{dir}: no layer is known for it; add it to `Layer::of`"
            ));
            continue;
        };
        for (used, in_tests) in &user.dependencies {
            let ours = crates.iter().find(|krate| krate.name == *used);
            let allowed = match ours.map(|used| Layer::of(&used.dir)) {
                Some(Some(used)) => layer.may_use(used, *in_tests),
                // A crate without a layer has a finding of its own.
                Some(None) => true,
                None => layer != Layer::Vfs || *in_tests || !NOT_IN_VFS.contains(&&**used),
            };
            if !allowed {
                let even = if *in_tests { ", even in its tests" } else { "" };
                findings.push(format!(
                    "{dir}/Cargo.toml: {} may not use {used}{even}",
                    user.name
                ));
            }
        }
    }
    findings
}

/// Violations in `vfs/src` itself.
fn source_findings(sources: &[Source]) -> Vec<String> {
    let forbids = |source: &Source| {
        source.path == "vfs/src/lib.rs"
            && source
                .lines()
                .any(|(_, line)| line == "#![forbid(unsafe_code)]")
    };
    let mut findings = Vec::new();
    if !sources.iter().any(forbids) {
        findings.push("vfs/src/lib.rs: must say #![forbid(unsafe_code)]".into());
    }
    for source in sources {
        for (number, line) in source
            .lines()
            .filter(|(_, line)| !line.trim().starts_with("//"))
        {
            for module in NOT_IN_VFS_SOURCE
                .iter()
                .filter(|module| line.contains(**module))
            {
                findings.push(format!(
                    "{}:{number}: vfs may not use {module}",
                    source.path
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings if the crate in `dir` depends on `used`, and the others on nothing.
    fn findings_with(dir: &str, used: &str, in_tests: bool) -> Vec<String> {
        let of = |its_dir: &str| Crate {
            name: its_dir.into(),
            dir: its_dir.into(),
            dependencies: match its_dir == dir {
                true => vec![(used.into(), in_tests)],
                false => Vec::new(),
            },
        };
        let dirs = [
            "sync",
            "procfs",
            "vfs",
            "backends/a",
            "backends/b",
            "frontends/f",
            "frontends/virtiofs",
            "scan",
            "cli",
        ];
        edge_findings(&dirs.map(of))
    }

    #[test]
    fn each_forbidden_edge_is_found() {
        for (user, used) in [
            ("sync", "vfs"),
            ("sync", "backends/a"),
            ("procfs", "vfs"),
            ("vfs", "procfs"),
            ("vfs", "backends/a"),
            ("vfs", "frontends/f"),
            ("vfs", "scan"),
            ("vfs", "cli"),
            ("vfs", "rustix"),
            ("vfs", "tokio"),
            ("backends/a", "sync"),
            ("backends/a", "backends/b"),
            ("backends/a", "frontends/f"),
            ("backends/a", "scan"),
            ("frontends/f", "sync"),
            ("frontends/f", "backends/a"),
            ("frontends/f", "frontends/virtiofs"),
            ("frontends/virtiofs", "backends/a"),
            ("scan", "frontends/f"),
            ("scan", "sync"),
        ] {
            let expected = format!("{user}/Cargo.toml: {user} may not use {used}");
            assert_eq!(findings_with(user, used, false), [expected]);
        }
    }

    #[test]
    fn tests_are_free_except_between_back_ends() {
        for (user, used) in [("vfs", "backends/a"), ("vfs", "tokio"), ("sync", "vfs")] {
            assert_eq!(
                findings_with(user, used, true),
                [""; 0],
                "{user} uses {used}"
            );
        }
        let expected =
            "backends/a/Cargo.toml: backends/a may not use backends/b, even in its tests";
        assert_eq!(findings_with("backends/a", "backends/b", true), [expected]);
    }

    #[test]
    fn the_allowed_edges_are_allowed() {
        for (user, used) in [
            ("sync", "libc"),
            ("vfs", "sync"),
            ("vfs", "bitflags"),
            ("backends/a", "vfs"),
            ("backends/a", "rustix"),
            ("backends/a", "procfs"),
            ("frontends/f", "vfs"),
            ("frontends/f", "procfs"),
            ("frontends/virtiofs", "frontends/f"),
            ("scan", "backends/a"),
            ("cli", "sync"),
        ] {
            assert_eq!(
                findings_with(user, used, false),
                [""; 0],
                "{user} uses {used}"
            );
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let (name, dir) = ("x".into(), "extras/x".into());
        let found = edge_findings(&[Crate {
            name,
            dir,
            dependencies: Vec::new(),
        }]);
        assert!(found[0].starts_with("extras/x: no layer"), "{found:?}");
    }

    #[test]
    fn unsafe_code_and_io_in_vfs_are_found() {
        let source = |path: &str, text: &str| Source {
            path: path.into(),
            text: text.into(),
        };
        let lib = source(
            "vfs/src/lib.rs",
            "#![forbid(unsafe_code)]\n/// Unlike `std::fs`.\n",
        );
        let io = "use std::fs::File;\nlet x = ::std::net::connect();\nuse std::os::unix::fs;\n";
        let found = source_findings(&[lib, source("vfs/src/a.rs", io)]);
        let expected = [
            "vfs/src/a.rs:1: vfs may not use std::fs",
            "vfs/src/a.rs:2: vfs may not use std::net",
        ];
        assert_eq!(found, expected);
        let found = source_findings(&[source("vfs/src/lib.rs", "// #![forbid(unsafe_code)]\n")]);
        assert_eq!(found, ["vfs/src/lib.rs: must say #![forbid(unsafe_code)]"]);
    }
}
