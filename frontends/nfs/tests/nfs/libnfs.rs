//! libnfs's tools: a client that a third party has written, in C.

use std::fs;
use std::process::{Command, Output};

use rcuwalk_testkit::{Rng, skip};

use crate::served::{Served, host};

fn run(served: &Served, tool: &str, args: &[&str]) -> Option<Output> {
    let port = served.address().port();
    let url =
        |path: &str| format!("nfs://127.0.0.1{path}?version=3&nfsport={port}&mountport={port}");
    let args = args.iter().map(|arg| match arg.strip_prefix("nfs:") {
        Some(path) => url(path),
        None => (*arg).to_owned(),
    });
    match Command::new(tool).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            skip("needs libnfs-utils");
            None
        }
    }
}

#[test]
fn the_tools_of_libnfs_read_write_and_list() {
    let dir = tempfile::tempdir().unwrap();
    let served = host(dir.path());
    let mut rng = Rng::new(5);
    let data: Vec<u8> = (0..3_000_000).map(|_| rng.below(256) as u8).collect();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let local = dir.path().join("local");
    fs::write(&local, &data).unwrap();
    let Some(copied) = run(
        &served,
        "nfs-cp",
        &[local.to_str().unwrap(), "nfs:/sub/copy"],
    ) else {
        return;
    };
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(dir.path().join("sub/copy")).unwrap() == data);
    let shown = run(&served, "nfs-cat", &["nfs:/sub/copy"]).unwrap();
    assert!(shown.status.success() && shown.stdout == data);
    let back = dir.path().join("back");
    let copied = run(
        &served,
        "nfs-cp",
        &["nfs:/sub/copy", back.to_str().unwrap()],
    )
    .unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(&back).unwrap() == data);
    for n in 0..2000 {
        fs::write(dir.path().join(format!("sub/file-{n}")), "").unwrap();
    }
    let listed = run(&served, "nfs-ls", &["nfs:/sub"]).unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2001, "{text}");
    let none = run(&served, "nfs-cat", &["nfs:/sub/none"]).unwrap();
    assert!(!none.status.success());
}
