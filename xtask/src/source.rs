//! The workspace's Rust sources, read.

use std::fs;
use std::path::Path;

use crate::run::Result;

/// One file: its path below the root, and its text.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn read(root: &Path, path: &str) -> Result<Source> {
        let text = fs::read_to_string(root.join(path)).map_err(|err| format!("{path}: {err}"))?;
        Ok(Source {
            path: path.into(),
            text,
        })
    }

    /// Lines with their numbers, as editors count them.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Every `.rs` file below `root/under`, in order of its path. An absent
/// directory holds no files.
pub(crate) fn rust_sources(root: &Path, under: &str) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut to_visit = vec![under.to_string()];
    while let Some(dir) = to_visit.pop() {
        for name in names_in(&root.join(&dir))? {
            let path = if dir.is_empty() {
                name.clone()
            } else {
                format!("{dir}/{name}")
            };
            if root.join(&path).is_dir() {
                if name != "target" && !name.starts_with('.') {
                    to_visit.push(path);
                }
            } else if name.ends_with(".rs") {
                found.push(Source::read(root, &path)?);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The names in a directory, sorted; none if there is no such directory.
pub(crate) fn names_in(dir: &Path) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|err| format!("{}: {err}", dir.display()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
