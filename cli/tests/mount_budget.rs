//! `rcuwalk mount --max-inodes`, and what it comes to.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use common::{can_mount, rcuwalk, run};

/// NODE-2: the kernel is asked for nodes back when it holds more than it may.
#[test]
fn the_kernel_holds_no_more_than_it_may() {
    if !can_mount() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let mut command = rcuwalk(["mount", "--stats", "--max-inodes", "200", "memfs"]);
    let mut mount = command
        .arg(at.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(mount.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("is mounted") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "has ended");
    }
    for n in 0..2000 {
        fs::write(at.path().join(n.to_string()), "x").unwrap();
    }
    let ended = run(rcuwalk(["umount"]).arg(at.path()));
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert!(mount.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("its budget    200 nodes"), "{rest}");
    let before = |words: &str| {
        let (text, _) = rest.split_once(words).unwrap();
        let figure = text.trim_end().rsplit(' ').next().unwrap();
        figure.parse::<u64>().unwrap()
    };
    assert!(before("forgets") > 1000, "NODE-2: {rest}");
    // How soon the worker gets its turn is the machine's affair.
    assert!(before("the most that") < 600, "NODE-2: {rest}");
}

#[test]
fn what_is_no_limit_is_refused() {
    for (option, said) in [
        ("--max-inodes=0", "is no number above 0"),
        ("--max-memory=lots", "is no size, such as 512M"),
        ("-omax_fds=few", "max_fds cannot be \"few\""),
    ] {
        let ended = run(&mut rcuwalk(["mount", option, "memfs", "/nowhere"]));
        assert_eq!(ended.code, Some(2), "{option}");
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}
