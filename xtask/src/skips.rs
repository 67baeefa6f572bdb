//! How a skipped test is noticed.
//!
//! The test harness knows no third outcome: a test that cannot run here returns
//! as if it had passed, and its output is captured. So it also appends its
//! reason, one line, to the file named by `RCUWALK_SKIPS`; [`Skips`] makes that
//! file and reads it. Where everything is expected to run, a skip is a failure.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{env, process};

use crate::run::Result;

/// The variable that tells tests where to report a skip.
pub(crate) const SKIPS_VAR: &str = "RCUWALK_SKIPS";

/// The file that tests report to; removed on drop.
pub(crate) struct Skips {
    file: PathBuf,
}

impl Skips {
    pub(crate) fn new() -> Skips {
        // One for each run, of which this program's own tests have several.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "rcuwalk-skips-{}-{}",
            process::id(),
            COUNT.fetch_add(1, Relaxed)
        );
        let file = env::temp_dir().join(name);
        // Left over from a killed run that had the same process id.
        let _ = fs::remove_file(&file);
        Skips { file }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Takes the reasons reported since the last call, each once.
    pub(crate) fn take(&self) -> Result<Vec<String>> {
        let text = match fs::read_to_string(&self.file) {
            Ok(text) => text,
            // The first report creates the file.
            Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(err) => return Err(format!("{}: {err}", self.file.display())),
        };
        fs::remove_file(&self.file).map_err(|err| format!("{}: {err}", self.file.display()))?;

        let mut reasons: Vec<String> = Vec::new();
        for line in text.lines().map(reason).filter(|reason| !reason.is_empty()) {
            if !reasons.iter().any(|known| known == line) {
                reasons.push(line.into());
            }
        }
        Ok(reasons)
    }
}

impl Drop for Skips {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// The same words may go to the terminal and to the file.
fn reason(line: &str) -> &str {
    let line = line.trim();
    line.strip_prefix("skipped:").unwrap_or(line).trim()
}

/// True where nothing may be skipped: in CI, as root.
pub(crate) fn are_failures() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    root && env::var("CI").is_ok_and(|ci| ci == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_once() {
        let skips = Skips::new();
        assert_eq!(skips.take(), Ok(vec![]), "nobody reported");

        fs::write(
            &skips.file,
            "skipped: needs root\n\nneeds /dev/fuse\nneeds root\n",
        )
        .unwrap();
        assert_eq!(
            skips.take(),
            Ok(vec!["needs root".into(), "needs /dev/fuse".into()])
        );
        assert_eq!(skips.take(), Ok(vec![]), "taken");
    }
}
