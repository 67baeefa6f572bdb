//! Where the suites come from: the registry of crates, one version each, into a directory of our own.

use std::fs;
use std::path::{Path, PathBuf};

use super::target;
use crate::run::{Cmd, Done, Result};

/// The installed tools.
const TOOLS: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Installs what is not there in this version yet.
pub(crate) fn install(root: &Path) -> Result<Done> {
    for (name, version) in TOOLS {
        // Otherwise cargo would look at the index first, and wait for its lock.
        if is_installed(root, name, version) {
            continue;
        }
        Cmd::cargo(root)
            // Fast to build; the time goes into the kernel and into us.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .args(["install", name, "--version", version, "--locked", "--debug"])
            .arg("--root", directory(root))
            .arg("--target-dir", directory(root).join("build"))
            .run()?;
    }
    Ok(Done::Passed)
}

/// Where they are.
pub(super) fn directory(root: &Path) -> PathBuf {
    target(root).join("tools")
}

/// The first that is not there.
pub(super) fn missing(root: &Path) -> Option<String> {
    let mut tools = TOOLS.iter();
    let (name, version) = tools.find(|(name, version)| !is_installed(root, name, version))?;
    let how = "cargo xtask suites --install";
    Some(format!("needs {name} {version}: {how}"))
}

/// By what cargo has written down.
fn is_installed(root: &Path, name: &str, version: &str) -> bool {
    let list = fs::read_to_string(directory(root).join(".crates.toml"));
    list.is_ok_and(|list| list.contains(&format!("\"{name} {version} (")))
}
