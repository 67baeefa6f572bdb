//! `rcuwalk bench`: its output, its errors, and the files it leaves behind.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{
    Ended, can_mount, interrupt, is_root, names, rcuwalk, run, run_json, run_well, skip,
};
use rcuwalk_testkit::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn json_is_one_document_with_a_row_per_contender_and_thread_count() {
    let report = run_json(&mut rcuwalk(
        "bench access --json --rounds 1 --threads 2".split(' '),
    ));
    assert_eq!(report["bench"], "access");
    assert_eq!(report["paths"], 205);
    assert_eq!(report["verified"], true);
    let rows = report["rows"].as_array().unwrap();
    let who = rows.iter().map(|row| {
        for number in [
            "ns_per_path",
            "min",
            "max",
            "loops_per_s",
            "ratio_to_kernel",
        ] {
            assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
        }
        format!("{} {}", row["contender"].as_str().unwrap(), row["threads"])
    });
    assert_eq!(
        who.collect::<Vec<_>>(),
        [
            "kernel 1", "memfs 1", "hostfs 1", "kernel 2", "memfs 2", "hostfs 2"
        ]
    );
    for row in rows.iter().filter(|row| row["contender"] == "kernel") {
        assert_eq!(row["ratio_to_kernel"], 1.0);
    }
    for walks in report["walks"].as_array().unwrap() {
        assert_eq!(walks["ref_walks"], 0, "a hit takes no reference");
    }
}

#[test]
fn the_wide_list_is_verified_and_found() {
    let report = run_json(&mut rcuwalk(
        "bench access --wide --json --rounds 1 --threads 1".split(' '),
    ));
    assert_eq!(
        (&report["paths"], &report["found"]),
        (&45_000.into(), &45_000.into())
    );
    assert_eq!(
        (&report["bench"], &report["verified"]),
        (&"access".into(), &true.into())
    );
    let rows = report["rows"].as_array().unwrap();
    let who: Vec<_> = rows.iter().map(|row| &row["contender"]).collect();
    assert_eq!(who, ["kernel", "memfs", "hostfs"]);
}

#[test]
fn without_a_benchmark_all_of_them_run() {
    let all = run_json(&mut rcuwalk(
        "bench --json --rounds=1 --threads=1 --inodes=10000".split(' '),
    ));
    assert_eq!(all[0]["bench"], "access");
    assert_eq!(all[0]["rows"].as_array().unwrap().len(), 3);
    assert_eq!(all[1]["bench"], "change");
    assert_eq!(all[2]["bench"], "iget");
    assert_eq!(all[3]["bench"], "walktrees");
    assert_eq!(all[3]["rows"].as_array().unwrap().len(), 3);
    assert_eq!(all.as_array().unwrap().len(), 4);
}

/// The document has all its fields; no test checks how fast anything is.
#[test]
fn a_directory_is_served_by_all_and_all_see_the_same() {
    if !can_mount() {
        return;
    }
    let small = ["--rounds=1", "--threads=3", "--less=100", "--json"];
    let report = run_json(rcuwalk(["bench", "fuse"]).args(small));
    assert_eq!(
        (&report["bench"], &report["verified"]),
        (&"fuse".into(), &true.into())
    );
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10 * 5, "of each work, each contender");
    for row in rows {
        for number in [
            "seconds",
            "per_second",
            "ratio_to_baseline",
            "ratio_to_kernel",
        ] {
            assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
        }
    }
    let who: Vec<_> = rows[..5].iter().map(|row| &row["contender"]).collect();
    assert_eq!(
        who,
        [
            "kernel",
            "rcuwalk",
            "rcuwalk, noio_uring",
            "rcuwalk, bare",
            "mutex-hashmap"
        ]
    );
}

/// The document has all its fields; without root, there is no storm.
#[test]
fn directories_are_stormed_and_asked_beside_changes() {
    let small = ["--dirs=2", "--entries=300", "--large=2000", "--rounds=1"];
    let report = run_json(rcuwalk(["bench", "dirstorm", "--json", "--threads=3"]).args(small));
    assert_eq!(
        (&report["bench"], &report["verified"]),
        (&"dirstorm".into(), &true.into())
    );
    assert_eq!(report["entries"], 300);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), if is_root() { 2 * 3 } else { 0 });
    for row in rows {
        for number in ["seconds", "names_per_s", "ratio_to_kernel"] {
            assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
        }
    }
    assert_eq!(report["beside"].as_array().unwrap().len(), 3);
}

/// Three trees of two directories of a hundred files, and a cache of fifty inodes.
const TINY_TREES: [&str; 7] = [
    "bench",
    "walktrees",
    "--trees=3",
    "--dirs=2",
    "--files=100",
    "--inodes=50",
    "--rounds=2",
];

#[test]
fn trees_are_walked_without_a_hit_and_with_2_1_and_1_locks_per_inode() {
    let report = run_json(rcuwalk(TINY_TREES).args(["--threads=1", "--json"]));
    assert_eq!(report["bench"], "walktrees");
    assert_eq!(report["entries"], 600);
    assert_eq!(report["verified"], true);
    // By path, the directories and the trees' own are read in as well.
    for (rows, inodes) in [("rows", 600 + 6 + 3), ("inode_cache", 600)] {
        let rows = report[rows].as_array().unwrap();
        let who: Vec<_> = rows.iter().map(|row| &row["contender"]).collect();
        assert_eq!(who, ["stock", "patch", "ours"]);
        for (row, locks) in rows.iter().zip([2.0, 1.0, 1.0]) {
            assert_eq!(row["first_lookups_failed"], inodes, "{row}");
            assert_eq!(row["second_lookups_failed"], inodes, "{row}");
            assert_eq!(row["inserted"], inodes, "{row}");
            assert_eq!((&row["hits"], &row["hit_rate"]), (&0.into(), &0.0.into()));
            assert_eq!(row["locks_per_inode"], locks, "{row}");
            assert_eq!(row["threads"], 1);
            for number in ["seconds", "min", "max", "entries_per_s", "peak_rss_mib"] {
                assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
            }
            for number in ["user_s", "sys_s", "cpu_percent", "lock_wait_s", "spread"] {
                assert!(row[number].as_f64().unwrap() >= 0.0, "{number} of {row}");
            }
        }
        assert_eq!(rows[0]["ratio_to_stock"], 1.0);
    }
}

#[test]
fn the_table_of_walked_trees_has_times_and_counters_for_each_way_of_locking() {
    let out = run_well(&mut rcuwalk(TINY_TREES));
    let says = |text: &str| assert!(out.contains(text), "no `{text}` in\n{out}");
    says("3 trees of 2 directories of 100 files: 600 entries");
    says("50 inodes and as many names");
    says("stat by path, 3 threads");
    says("the inode cache alone, by number, 3 threads");
    for contender in ["stock", "patch", "ours"] {
        let lines = out.lines();
        let lines = lines.filter(|line| line.starts_with(contender));
        assert_eq!(lines.count(), 2 + 2, "{contender}");
    }
}

#[test]
fn the_table_has_a_line_per_row_and_says_what_was_measured_where() {
    let out = run_well(&mut rcuwalk(
        "bench access --rounds=1 --threads=1".split(' '),
    ));
    let says = |text: &str| assert!(out.contains(text), "no `{text}` in\n{out}");
    says("access: 205 paths, 87 found, 118 missing");
    says("Linux ");
    says("system call itself");
    for contender in ["kernel", "memfs", "hostfs"] {
        assert!(out.lines().any(|line| line.starts_with(contender)));
    }
}

#[test]
fn the_users_own_paths_are_asked_of_his_own_tree() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let text = format!("# mine\n{}\n/no/such/path\n/etc/passwd\n", list.display());
    fs::write(&list, text).unwrap();
    let list = list.to_str().unwrap();
    let args = [
        "bench",
        "access",
        "--json",
        "--rounds=1",
        "--threads=1",
        "--paths",
        list,
    ];
    let report = run_json(&mut rcuwalk(args));
    assert_eq!((&report["paths"], &report["found"]), (&3.into(), &2.into()));
}

#[test]
fn the_paths_of_a_traced_command_are_taken_and_its_output_is_not_mixed_in() {
    if std::process::Command::new("strace")
        .arg("-V")
        .output()
        .is_err()
    {
        return skip("needs strace");
    }
    let args = [
        "bench",
        "access",
        "--json",
        "--rounds=1",
        "--threads=1",
        "--trace",
        "--",
    ];
    let ended = run(rcuwalk(args).args(["cat", "/etc/passwd"]));
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert!(report["paths"].as_u64().unwrap() > 1);
    assert!(
        ended.err.contains("rcuwalk: cat asked for "),
        "{}",
        ended.err
    );
}

fn refused(args: &[&str], code: i32, message: &str) {
    let Ended {
        code: got,
        out,
        err,
    } = run(&mut rcuwalk(args));
    assert_eq!((got, &*out), (Some(code), ""), "{args:?}: {err}");
    assert!(err.contains(message), "{args:?}: no `{message}` in\n{err}");
}

#[test]
fn bad_lists_are_refused_with_their_name_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let empty = file("empty", "# nothing\n\n");
    let relative = file("relative", "/a\nb\n");
    let up = file("up", "/../etc\n");
    let list = |file: &str, message: &str| {
        refused(&["bench", "access", "--paths", file], 1, message);
    };
    list(
        "/no/such/list",
        "rcuwalk: cannot read /no/such/list: No such file or directory; ",
    );
    list("/no/such/list", "--paths takes a file of absolute paths");
    list(&empty, "empty: no paths");
    list(
        &relative,
        "relative: line 2: `b` does not start with a slash",
    );
    list(&up, "goes up from the root");
    list("/", "cannot read /: ");
}

#[test]
fn a_missing_strace_and_a_missing_command_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = rcuwalk("bench access --trace -- ls".split(' '));
    let ended = run(command.env("PATH", dir.path()));
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("strace is not installed"),
        "{}",
        ended.err
    );
    refused(&["bench", "access", "--trace"], 2, "COMMAND");
}

/// A rename of a type must not change what its options say.
#[test]
fn the_help_says_what_each_number_means() {
    for (args, wanted) in [
        (
            &["bench", "--help"][..],
            ["How many rounds", "How many inodes"],
        ),
        (
            &["bench", "walktrees", "--help"],
            ["How many trees", "How many MiB"],
        ),
    ] {
        let help = run(&mut rcuwalk(args)).out;
        for words in wanted {
            assert!(help.contains(words), "no `{words}` in\n{help}");
        }
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    refused(&["bench", "access", "--threads", "0"], 2, "0 is not in 1..");
    refused(&["bench", "access", "--rounds", "0"], 2, "0 is not in 1..");
    refused(&["bench", "access", "--rounds", "many"], 2, "invalid");
    refused(&["bench", "access", "--", "ls"], 2, "--trace");
    let both = ["bench", "access", "--wide", "--paths", "list"];
    refused(&both, 2, "cannot be used with");
    refused(&["bench", "nothing"], 2, "nothing");
    refused(
        &["bench", "walktrees", "--trees", "0"],
        2,
        "0 is not in 1..",
    );
    refused(&["bench", "walktrees", "--files", "x"], 2, "invalid");
    let both = ["bench", "access", "--paths", "/x", "--trace", "--", "ls"];
    refused(&both, 2, "cannot be used with");
}

#[test]
fn trees_that_make_no_sense_are_refused_with_the_way_out() {
    let refused = |more: &[&str], message: &str| {
        let args = [&["bench", "walktrees"], more].concat();
        self::refused(&args, 1, message);
    };
    refused(
        &["--trees=2", "--threads=3"],
        "rcuwalk: walktrees: each tree is walked by one thread, and 3 threads are more than \
         2 trees; take fewer threads or more trees",
    );
    refused(
        &["--trees=1", "--dirs=1", "--files=8", "--inodes=10"],
        "a cache of 10 inodes holds all 10 of the trees",
    );
    refused(&["--files=18446744073709551615"], "than can be numbered");
}

#[test]
fn a_signal_ends_a_walk_of_trees_without_a_table() {
    for (size, patience) in [
        // While the expected result is computed, and while trees are walked.
        (
            &["--dirs=1", "--files=1000000000"][..],
            Duration::from_millis(500),
        ),
        (&["--dirs=5", "--rounds=100000"], Duration::from_secs(2)),
    ] {
        let mut command = rcuwalk(["bench", "walktrees", "--trees=2"]);
        let child = command
            .args(size)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(patience);
        let (signal, code) = interrupt();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(code), "", ""));
    }
}

#[test]
fn a_temporary_directory_that_cannot_be_used_is_no_end() {
    // /var/tmp and the current directory are tried after it.
    let mut command = rcuwalk("bench access --json --rounds=1 --threads=1".split(' '));
    assert_eq!(run(command.env("TMPDIR", "/no/such/dir")).code, Some(0));
}

#[test]
fn a_signal_ends_the_run_without_a_table_and_nothing_stays_behind() {
    for (signal, code) in [interrupt(), (Signal::TERM, 143)] {
        // Not in /tmp, which may be a tmpfs: then the tree is built elsewhere.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut command = rcuwalk(["bench", "access", "--rounds=1000"]);
        let child = command
            .env("TMPDIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let is_built = || {
            names(dir.path())
                .iter()
                .any(|name| dir.path().join(name).join("usr").exists())
        };
        wait_until("there is a tree", is_built);
        std::thread::sleep(Duration::from_millis(50));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(code), "", ""));
        assert_eq!(names(dir.path()).len(), 0, "left behind");
    }
}

/// Directories whose owner may not remove entries.
#[test]
fn closed_directories_are_measured_and_removed_by_an_ordinary_user() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return skip("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let tmp = dir.path().join("tmp");
    let closed = dir.path().join("closed/inner");
    fs::create_dir_all(&closed).unwrap();
    fs::create_dir(&tmp).unwrap();
    fs::write(closed.join("file"), "").unwrap();
    let list = dir.path().join("list");
    fs::write(&list, format!("{}/file\n", closed.display())).unwrap();
    for (path, mode) in [
        (dir.path(), 0o755),
        (&closed, 0o555),
        (closed.parent().unwrap(), 0o555),
        (&tmp, 0o777),
        (&list, 0o644),
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The test's own binary may lie where the user cannot go.
    let binary = dir.path().join("rcuwalk");
    fs::copy(env!("CARGO_BIN_EXE_rcuwalk"), &binary).unwrap();
    chown(&tmp, Some(65534), Some(65534)).unwrap();
    let mut command = std::process::Command::new(&binary);
    command
        .args([
            "bench",
            "access",
            "--json",
            "--rounds=1",
            "--threads=1",
            "--paths",
        ])
        .arg(&list)
        .current_dir("/")
        .env("TMPDIR", &tmp)
        .uid(65534)
        .gid(65534);
    let report = run_json(&mut command);
    assert_eq!(report["found"], 1);
    assert_eq!(names(&tmp).len(), 0, "left behind");
}
