//! `rcuwalk resolve`: its output for a tree made for it.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Ended, is_root, rcuwalk, run, skip};
use tempfile::TempDir;

/// `d/f`, a directory `d/closed`, links `l` to `d`, `loop` to itself, `none` to
/// nothing.
fn tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("d/closed")).unwrap();
    fs::write(at("d/f"), "").unwrap();
    fs::write(at("d/closed/f"), "").unwrap();
    for (link, target) in [("l", "d"), ("loop", "loop"), ("none", "no/where")] {
        symlink(target, at(link)).unwrap();
    }
    for (path, mode) in [
        ("", 0o755),
        ("d", 0o755),
        ("d/f", 0o640),
        ("d/closed", 0o700),
    ] {
        fs::set_permissions(at(path), Permissions::from_mode(mode)).unwrap();
    }
    dir
}

fn resolve(dir: &TempDir, args: &[&str]) -> Ended {
    run(rcuwalk(["resolve"]).args(args).current_dir(dir.path()))
}

/// The lines of the first path, without owners and with single spaces.
fn lines(ended: &Ended) -> Vec<String> {
    let steps = ended
        .out
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty());
    steps
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            // Mode, owner and group, but where nothing was found.
            if line.starts_with(' ') {
                words.join(" ")
            } else {
                [&words[..1], &words[3..]].concat().join(" ")
            }
        })
        .collect()
}

#[test]
fn each_step_is_shown_with_its_permissions_and_who_took_it() {
    let ended = resolve(&tree(), &["l/f"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    assert_eq!(ended.out.lines().next(), Some("l/f"));
    let expected = [
        "lrwxrwxrwx l -> d looked up ref-walk (name not cached)",
        "drwxr-xr-x d looked up ref-walk",
        "-rw-r----- f looked up ref-walk",
    ];
    assert_eq!(lines(&ended), expected);
}

#[test]
fn a_warm_walk_is_an_rcu_walk_all_the_way() {
    let ended = resolve(&tree(), &["--warm", "l/./f"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let expected = [
        "lrwxrwxrwx l -> d cached rcu-walk",
        "drwxr-xr-x d cached rcu-walk",
        "drwxr-xr-x . held rcu-walk",
        "-rw-r----- f cached rcu-walk",
    ];
    assert_eq!(lines(&ended), expected);
}

#[test]
fn a_later_path_finds_cached_what_it_shares() {
    let ended = resolve(&tree(), &["d/f", "d/closed/f"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let second: Vec<_> = ended.out.split("\n\n").nth(1).unwrap().lines().collect();
    assert_eq!(second[0], "d/closed/f");
    assert!(second[1].ends_with("cached     rcu-walk"), "{second:?}");
    assert!(second[2].ends_with("looked up  ref-walk (name not cached)"));
}

#[test]
fn a_link_at_the_end_is_not_followed_if_so_wished() {
    let ended = resolve(&tree(), &["-l", "l"]);
    assert_eq!((ended.code, lines(&ended).len()), (Some(0), 1));
    assert!(lines(&ended)[0].starts_with("lrwxrwxrwx l -> d looked up"));
    let ended = resolve(&tree(), &["--nofollow", "none"]);
    assert_eq!(ended.code, Some(0));
}

#[test]
fn errors_are_shown_where_they_happen_and_as_namei_words_them() {
    let cases = [
        ("d/nope/x", "nope - No such file or directory"),
        ("none", "no - No such file or directory"),
        ("d/f/x", "x - Not a directory"),
        ("d/f/", "f - Not a directory"),
        ("loop", "loop - Too many levels of symbolic links"),
    ];
    for (path, message) in cases {
        let ended = resolve(&tree(), &[path]);
        let (_, text) = message.split_once(" - ").unwrap();
        assert_eq!(ended.code, Some(1), "{path}");
        assert_eq!(ended.err, format!("rcuwalk: {path} - {text}\n"));
        let lines = lines(&ended);
        assert!(lines.last().unwrap().contains(message), "{lines:?}");
    }
}

#[test]
fn one_bad_path_does_not_keep_the_others_from_being_shown() {
    let ended = resolve(&tree(), &["nope", "d/f", "", "neither"]);
    assert_eq!(ended.code, Some(1));
    let expected = "rcuwalk: nope - No such file or directory\n\
                    rcuwalk: an empty path - No such file or directory\n\
                    rcuwalk: neither - No such file or directory\n";
    assert_eq!(ended.err, expected);
    assert!(ended.out.contains("\nd/f\n"));
}

#[test]
fn names_that_a_terminal_should_not_see_are_escaped() {
    let dir = tree();
    let name = OsStr::from_bytes(b"caf\xe9\x1b");
    fs::write(dir.path().join(name), "").unwrap();
    let ended = run(rcuwalk(["resolve"]).arg(name).current_dir(dir.path()));
    assert_eq!(ended.code, Some(0));
    assert!(lines(&ended)[0].contains(r"caf\xe9\x1b"), "{}", ended.out);
}

#[test]
fn mounts_of_the_host_are_named() {
    let ended = run(&mut rcuwalk(["resolve", "/proc/version"]));
    assert_eq!(ended.code, Some(0));
    assert!(
        lines(&ended)[1].contains("proc looked up, mount proc"),
        "{}",
        ended.out
    );
}

#[test]
fn nobody_sees_more_than_the_kernel_shows_him() {
    if !is_root() {
        return skip("needs root");
    }
    let dir = tree();
    // The test's own binary may lie where the user cannot go.
    let binary = dir.path().join("rcuwalk");
    fs::copy(env!("CARGO_BIN_EXE_rcuwalk"), &binary).unwrap();
    let closed = dir.path().join("d/closed/f");
    let mut command = Command::new(&binary);
    command.arg("resolve").arg(&closed).uid(65534).gid(65534);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        format!("rcuwalk: {} - Permission denied\n", closed.display())
    );
    assert!(
        lines(&ended)
            .last()
            .unwrap()
            .contains("f - Permission denied not looked up")
    );
}

#[test]
fn a_path_is_wanted() {
    assert_eq!(run(&mut rcuwalk(["resolve"])).code, Some(2));
}
