//! `rcuwalk bench iget`: its output, its errors, and how it ends early.

use std::process::Stdio;
use std::time::Duration;

use crate::common::{Ended, interrupt, rcuwalk, run, run_json, run_well};
use rustix::process::{Pid, Signal, kill_process};

const MIXES: [&str; 3] = ["hit", "mixed", "stream"];
const ALWAYS: [&str; 6] = [
    "ours",
    "patch",
    "stock",
    "mutex-hashmap",
    "rwlock-hashmap",
    "btreemap",
];

#[test]
fn json_has_a_row_per_contender_load_and_thread_count() {
    let report = run_json(&mut rcuwalk(
        "bench iget --json --rounds=1 --threads=2 --inodes=10000".split(' '),
    ));
    assert_eq!(
        (&report["bench"], &report["inodes"]),
        (&"iget".into(), &10000.into())
    );
    assert_eq!(report["verified"], true);
    let rows = report["rows"].as_array().unwrap();
    let row = |contender: &str, mix: &str, threads: u64| {
        let mut rows = rows.iter();
        let row = rows.find(|row| {
            (&row["contender"], &row["mix"], &row["threads"])
                == (&contender.into(), &mix.into(), &threads.into())
        });
        row.unwrap_or_else(|| panic!("no row for {contender}, {mix}, {threads}"))
    };
    let peers: &[&str] = if cfg!(feature = "peers") {
        &["dashmap", "papaya", "scc-hashmap", "scc-hashindex"]
    } else {
        &[]
    };
    for contender in ALWAYS.iter().chain(peers) {
        for (mix, threads) in MIXES.into_iter().flat_map(|mix| [(mix, 1), (mix, 2)]) {
            let row = row(contender, mix, threads);
            for number in ["mops", "min", "max", "ratio_to_btreemap"] {
                assert!(row[number].as_f64().unwrap() > 0.0, "{number} of {row}");
            }
        }
        assert!(
            report["memory"]["bytes_per_inode"][contender]
                .as_f64()
                .unwrap()
                > 0.0
        );
    }
    assert!(report["memory"]["ours_from_allocator"].as_f64().unwrap() > 16.0);
    // And the machine's limit, for hits.
    let array = [1, 2].map(|threads| row("array", "hit", threads));
    assert!(array.iter().all(|row| row["mops"].as_f64() > Some(0.0)));
    let tables = ALWAYS.len() + peers.len();
    assert_eq!(rows.len(), tables * MIXES.len() * 2 + array.len());
    assert!(report["memory"]["bytes_per_inode"].get("array").is_none());
    // The difference between the schemes: locks of a hit, and of a miss.
    let locks = |contender, mix| row(contender, mix, 1)["locks_per_op"].as_f64().unwrap();
    assert_eq!(
        (
            locks("stock", "hit"),
            locks("patch", "hit"),
            locks("ours", "hit")
        ),
        (1.0, 0.0, 0.0)
    );
    assert!(locks("stock", "stream") > locks("ours", "stream"));
    assert_eq!(locks("btreemap", "stream"), 3.0);
}

#[test]
fn the_tables_name_the_loads_and_what_an_inode_takes() {
    let out = run_well(
        rcuwalk("bench iget --rounds=1 --threads=1 --inodes=10000 --fast-hash".split(' '))
            .args(["--only=ours,btreemap,rwlock-hashmap", "--mix=hit,stream"]),
    );
    let says = |text: &str| assert!(out.contains(text), "no `{text}` in\n{out}");
    says("10,000 cached");
    says("hash tables of others have our hash");
    says("hit: random cached inodes");
    says("stream: all new");
    says("Resident bytes per cached inode, of 10,000:");
    assert!(!out.contains("mixed:"), "{}", out);
    let ours = out.lines().filter(|line| line.starts_with("ours "));
    assert_eq!(ours.count(), 2);
}

fn refused(args: &[&str], code: i32, message: &str) {
    let ended = run(&mut rcuwalk(args));
    let got = (ended.code, &*ended.out);
    assert_eq!(got, (Some(code), ""), "{args:?}: {}", ended.err);
    let err = &ended.err;
    assert!(err.contains(message), "{args:?}: no `{message}` in\n{err}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_way_out() {
    let iget = |arg: &str, code, message: &str| refused(&["bench", "iget", arg], code, message);
    iget(
        "--only=theirs",
        1,
        "there is no contender `theirs`; there are ours, patch",
    );
    iget("--only=", 1, "there is no contender ``");
    iget("--mix=all", 2, "possible values: hit, mixed, stream");
    iget("--inodes=9", 1, "9 inodes are too few");
    iget("--inodes=many", 2, "invalid");
    iget("--threads=0", 2, "0 is not in 1..");
    iget("--rounds=0", 2, "0 is not in 1..");
    let few = ["bench", "iget", "--inodes=10000", "--threads=1024"];
    refused(
        &few,
        1,
        "10000 inodes are too few for 1024 threads; take at least 131072",
    );
    let wrong = ["bench", "access", "--inodes=10000"];
    refused(
        &wrong,
        1,
        "access: there are no --inodes; they are for iget",
    );
}

#[test]
fn a_signal_ends_the_run_without_a_table() {
    for (signal, code) in [interrupt(), (Signal::TERM, 143)] {
        let child = rcuwalk("bench iget --inodes=10000 --rounds=1000".split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = Ended::from(child.wait_with_output().unwrap());
        assert_eq!((ended.code, &*ended.out, &*ended.err), (Some(code), "", ""));
    }
}
