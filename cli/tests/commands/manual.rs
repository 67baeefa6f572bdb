//! Man pages and completions.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Ended, names, rcuwalk, run, run_well, skip};

fn pages() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    run_well(rcuwalk(["man"]).arg(dir.path()));
    dir
}

/// The long options in a text, without their dashes.
fn options(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let options = words.filter_map(|word| word.strip_prefix("--"));
    options
        .filter(|name| !name.is_empty())
        .map(String::from)
        .collect()
}

#[test]
fn each_command_has_a_page_with_each_of_its_options() {
    let dir = pages();
    for command in [
        "bench",
        "completions",
        "mount",
        "mounts",
        "resolve",
        "scan",
        "umount",
    ] {
        let page = fs::read_to_string(dir.path().join(format!("rcuwalk-{command}.1"))).unwrap();
        let page = page.replace('\\', "");
        assert!(
            page.contains(&format!(".TH RCUWALK-{}", command.to_uppercase())),
            "{page}"
        );
        assert!(
            page.contains(&format!("rcuwalk {command}"))
                || page.contains(&format!("rcuwalk-{command}"))
        );
        let help = run(&mut rcuwalk([command, "--help"]));
        assert_eq!(help.code, Some(0));
        for option in options(&help.out) {
            assert!(
                page.contains(&format!("--{option}")),
                "{command} --{option}"
            );
        }
    }
    assert!(dir.path().join("rcuwalk.1").exists());
}

#[test]
fn pages_show_without_a_complaint() {
    let dir = pages();
    for name in names(dir.path()) {
        let mut man = Command::new("man");
        man.args(["--warnings=all", "-l"])
            .arg(dir.path().join(&name));
        man.env("LC_ALL", "C.UTF-8").env("MANPAGER", "cat");
        let Ok(shown) = man.output() else {
            return skip("needs man");
        };
        let said = String::from_utf8_lossy(&shown.stderr);
        assert!(
            shown.status.success() && said.is_empty(),
            "{name:?}: {said}"
        );
    }
}

#[test]
fn a_page_that_cannot_be_written_is_named() {
    let ended = run(&mut rcuwalk(["man", "/none"]));
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    assert!(
        ended.err.starts_with("rcuwalk: cannot write /none/"),
        "{ended:?}"
    );
}

#[test]
fn shells_take_the_completions() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let ended = run(&mut rcuwalk(["completions", shell]));
        assert_eq!(ended.code, Some(0));
        assert!(
            ended.out.contains("allow-other") && !ended.out.contains("daemonized"),
            "{shell}"
        );
        let file = dir.path().join(shell);
        fs::write(&file, ended.out).unwrap();
        if has(shell) {
            let checked = run(Command::new(shell).arg("-n").arg(&file));
            assert_eq!((checked.code, &*checked.err), (Some(0), ""), "{shell}");
        }
    }
    let script = format!(
        "source {}; COMP_WORDS=(rcuwalk mo); COMP_CWORD=1; _rcuwalk rcuwalk mo rcuwalk; echo ${{COMPREPLY[@]}}",
        dir.path().join("bash").display()
    );
    let completed = run(Command::new("bash").args(["-c", &script]));
    assert_eq!(completed.out, "mount mounts\n", "{completed:?}");
}

fn has(program: &str) -> bool {
    Path::new("/bin").join(program).exists() || Path::new("/usr/bin").join(program).exists()
}

#[test]
fn help_that_cannot_be_printed_is_an_error() {
    for args in [&["--help"][..], &["--version"], &["scan", "--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = Ended::from(rcuwalk(args).stdout(full).output().unwrap());
        assert_eq!(ended.code, Some(1), "{args:?}");
        let err = ended.err;
        assert!(err.contains("standard output: No space left"), "{err}");
    }
    assert_eq!(run(&mut rcuwalk(["--nonsense"])).code, Some(2));
}
