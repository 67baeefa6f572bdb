//! USDT probes: with the feature `usdt` they are in the program and count its events, without
//! it they are absent.
//!
//! The traced program is this one.

mod notes;
mod workload;

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::{Command, Output};

use notes::{Note, notes_of};
use rcuwalk::inode::Scheme;

/// As in `docs/tracing.md`, and the other probes beside it.
const PROGRAM: &str = "
    usdt:PROGRAM:rcuwalk:iget { @[arg3, arg1] = count(); @iget[arg2, arg3, arg1] = count(); }
    usdt:PROGRAM:rcuwalk:iget__insert { @insert[arg1] = count(); @inserted[arg1] = sum(arg0); }
    usdt:PROGRAM:rcuwalk:wait { @wait[arg1] = count(); @waited = sum(arg0); }
    usdt:PROGRAM:rcuwalk:evict { @evict = count(); @evicted = sum(arg0); }
";

const BUILT_IN: bool = cfg!(all(feature = "usdt", target_arch = "x86_64"));

/// The schemes with their numbers, and how many inodes each gets.
const SCHEMES: [(u64, Scheme, u64); 3] = [
    (0, Scheme::STOCK, 100),
    (1, Scheme::PATCH, 200),
    (3, Scheme::OURS, 300),
];

#[test]
fn the_probes_are_in_the_program_with_the_feature_and_only_then() {
    let notes = notes_of(&env::current_exe().unwrap());
    let mut kinds: Vec<&str> = notes.iter().map(|note| &*note.name).collect();
    kinds.sort_unstable();
    kinds.dedup();
    match BUILT_IN {
        true => assert_eq!(kinds, ["evict", "iget", "iget__insert", "wait"]),
        false => assert_eq!(kinds, [""; 0], "without the feature"),
    }
}

#[test]
fn a_probe_is_a_nop_and_a_note_that_says_where_its_arguments_are() {
    for note in notes_of(&env::current_exe().unwrap()) {
        assert_eq!(note.provider, "rcuwalk");
        assert_eq!(note.at, 0x90, "one nop: {note:?}");
        assert_eq!(note.semaphore, 0, "{note:?}");
        let expected: &[&[&str]] = match &*note.name {
            "iget" => &[
                &["8@%", "8@$0", "1@%", "8@$1"],
                &["8@%", "8@$1", "1@%", "8@$1"],
                &["8@%", "8@$0", "1@%", "8@$2"],
                &["8@%", "8@$1", "1@%", "8@$2"],
            ],
            "iget__insert" => &[&["8@%", "1@%"]],
            "wait" => &[&["8@%", "8@$0"], &["8@%", "8@$1"]],
            "evict" => &[&["8@%"]],
            _ => panic!("unknown: {note:?}"),
        };
        assert!(expected.contains(&&*shape(&note)), "{note:?}");
    }
}

/// The arguments, without the names of registers.
fn shape(note: &Note) -> Vec<&str> {
    let arguments = note.arguments.split(' ');
    arguments
        .map(|one| one.find('%').map_or(one, |at| &one[..=at]))
        .collect()
}

#[test]
fn a_tracer_counts_each_look_insertion_wait_and_eviction() {
    if !BUILT_IN {
        return; // Nothing is left out: see the first test.
    }
    if let Err(reason) = can_trace() {
        return rcuwalk_testkit::skip(&reason);
    }
    let this = env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    let traced = bpftrace(
        &PROGRAM.replace("PROGRAM", this),
        &["-c", &format!("{this} --ignored --exact what_is_traced")],
    )
    .unwrap();
    let out = String::from_utf8(traced.stdout).unwrap();
    let err = String::from_utf8(traced.stderr).unwrap();
    assert!(traced.status.success(), "{out}{err}");

    let counted: BTreeMap<String, u64> = out.lines().filter_map(count).collect();
    assert_eq!(counted, expected(), "{out}{err}");
}

/// `@wait[0]: 3`
fn count(line: &str) -> Option<(String, u64)> {
    let (name, count) = line.strip_prefix('@')?.split_once(": ")?;
    Some((name.into(), count.parse().ok()?))
}

/// The output that bpftrace must print: see [`workload::run`].
fn expected() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let mut more = |what: String, count: u64| *all.entry(what).or_default() += count;
    for (scheme, _, n) in SCHEMES {
        let looks = [
            ("1, 0", n + 2),
            ("1, 1", n + 2),
            ("2, 0", n + 3),
            ("2, 1", 1),
        ];
        for (look, count) in looks {
            more(format!("[{look}]"), count);
            more(format!("iget[{scheme}, {look}]"), count);
        }
        let sum_to_n = n * (n + 1) / 2;
        more("insert[0]".into(), n + 2);
        more("inserted[0]".into(), sum_to_n + n);
        more("insert[1]".into(), 1);
        more("inserted[1]".into(), n + 1);
        more("wait[0]".into(), 1);
        more("wait[1]".into(), 1);
        more("waited".into(), 2 * n);
        more("evict".into(), n + 3);
        more("evicted".into(), sum_to_n + n + n + 1);
    }
    all
}

#[test]
#[ignore = "it is for another test, which traces it"]
fn what_is_traced() {
    for (_, scheme, n) in SCHEMES {
        workload::run(scheme, n);
    }
}

fn bpftrace(program: &str, args: &[&str]) -> std::io::Result<Output> {
    Command::new("bpftrace")
        .args(["-e", program])
        .args(args)
        .output()
}

/// The reason if not.
fn can_trace() -> Result<(), String> {
    // Without this file the kernel has no uprobes; other failures are missing rights.
    if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
        return Err("needs a kernel with uprobes".into());
    }
    let Ok(tried) = bpftrace("BEGIN { exit(); }", &[]) else {
        return Err("needs bpftrace".into());
    };
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        let why = said.lines().next().unwrap_or_default();
        return Err(format!("bpftrace cannot trace here, root may: {why}"));
    }
    Ok(())
}
