//! pjdfstest: each system call, each errno, each time stamp; as root, and in root's place
//! as two other users.
//!
//! It goes over a mount twice: its cases for read-only file systems remount it, and do not
//! get that far if an earlier case has a file open, as some leave one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Setting;
use super::mounted::Mounted;
use crate::run::Result;

/// All features that Linux has. The users exist on every Debian.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = REMOUNT

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The name of every case that remounts has it.
const REMOUNTING: &str = "erofs";

/// It takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(setting: &Setting<'_>, mounted: &mut Mounted, excluded: &[String]) -> Result<()> {
    let mut cases = once(setting, mounted, false)?;
    cases.retain(|case| !case.name.contains(REMOUNTING));
    cases.extend(once(setting, mounted, true)?);
    println!("{} cases", cases.len());
    judge(&cases, excluded)
}

/// One case, and what became of it: `ok`, `skipped`, `FAILED`.
#[derive(Debug, PartialEq)]
struct Case {
    name: String,
    verdict: String,
    /// Its output about the case.
    words: String,
}

fn once(setting: &Setting<'_>, mounted: &mut Mounted, remount: bool) -> Result<Vec<Case>> {
    let scratch = setting.scratch.path();
    let config = scratch.join("pjdfstest.toml");
    let text = CONFIG.replace("REMOUNT", &remount.to_string());
    fs::write(&config, text).map_err(|err| format!("{}: {err}", config.display()))?;
    let program = setting.tools.join("bin/pjdfstest");
    let mut command = match remount {
        true => with_our_helper(setting, &program)?,
        false => Command::new(program),
    };
    command.arg("--configuration-file").arg(config);
    command.arg("--path").arg(mounted.path());
    command.arg("--secondary-fs").arg(setting.scratch.host());
    if remount {
        command.arg(REMOUNTING);
    }
    command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    let (_, output) = mounted.run(&mut command, LIMIT, &scratch.join("pjdfstest.out"))?;
    read(&output).ok_or(format!("pjdfstest did not get to its end:\n{output}"))
}

/// For remounts, mount(8) runs the helper for the type from /sbin. It has to find this build
/// there, and no other program on the machine should.
fn with_our_helper(setting: &Setting<'_>, program: &Path) -> Result<Command> {
    let sbin = setting.scratch.path().join("sbin");
    let helper = sbin.join("mount.fuse.rcuwalk");
    if !helper.exists() {
        fs::create_dir_all(&sbin)
            .and_then(|()| symlink(&setting.rcuwalk, &helper))
            .map_err(|err| format!("{}: {err}", helper.display()))?;
    }
    let mut command = Command::new("unshare");
    let in_its_own = r#"mount --bind "$0" /sbin/ && exec "$@""#;
    command.args(["--mount", "--", "/bin/sh", "-c", in_its_own]);
    command.arg(sbin).arg(program);
    Ok(command)
}

/// What the output says, if it is whole.
fn read(output: &str) -> Option<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    for line in output.lines() {
        if let Some(counts) = line.strip_prefix("Summary: ") {
            let total = counts.strip_suffix(" total")?.rsplit(' ').next()?;
            return (total == cases.len().to_string()).then_some(cases);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, verdict @ ("ok" | "skipped" | "FAILED")] => cases.push(Case {
                name: name.into(),
                verdict: verdict.into(),
                words: String::new(),
            }),
            _ => {
                if let Some(case) = cases.last_mut() {
                    case.words += line;
                    case.words.push('\n');
                }
            }
        }
    }
    None
}

/// Every case passes or is excluded, and no case is both.
fn judge(cases: &[Case], excluded: &[String]) -> Result<()> {
    let mut wrong = String::new();
    for case in cases {
        let Case {
            name,
            verdict,
            words,
        } = case;
        match (verdict == "ok", excluded.contains(name)) {
            (false, false) => wrong += &format!("{name}: {verdict}\n{words}"),
            (true, true) => wrong += &format!("{name}: passes, and need not be excluded\n"),
            _ => {}
        }
    }
    for name in excluded {
        if !cases.iter().any(|case| case.name == *name) {
            wrong += &format!("{name}: is excluded, and there is no such case\n");
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("pjdfstest:\n{wrong}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "chmod::a      ok\nlink::max     skipped\n\tno limit\n\
                          open::b       FAILED\n\tassertion\n  left: 1\n\n\
                          Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\n";

    #[test]
    fn what_is_neither_passed_nor_excluded_is_reported() {
        let cases = read(OUTPUT).unwrap();
        let message = judge(&cases, &["link::max".into()]).unwrap_err();
        assert_eq!(
            message,
            "pjdfstest:\nopen::b: FAILED\n\tassertion\n  left: 1\n\n"
        );
        let excluded = ["link::max".into(), "open::b".into()];
        assert_eq!(judge(&cases, &excluded), Ok(()));
    }

    #[test]
    fn an_exclusion_that_is_not_needed_is_reported() {
        let cases = read(OUTPUT).unwrap();
        let excluded = ["link::max", "open::b", "chmod::a", "gone"].map(String::from);
        let message = judge(&cases, &excluded).unwrap_err();
        assert!(message.contains("chmod::a: passes"), "{message}");
        assert!(message.contains("gone: is excluded"), "{message}");
    }

    #[test]
    fn output_that_breaks_off_is_no_result() {
        assert_eq!(read("chmod::a ok\n"), None);
        assert_eq!(read(&OUTPUT.replace("3 total", "4 total")), None);
    }
}
