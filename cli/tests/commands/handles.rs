//! `rcuwalk handles`: files of a database, opened by handle.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{is_root, rcuwalk, run, run_json, run_well, skip};

/// A tree and its database.
struct Indexed {
    dir: tempfile::TempDir,
}

impl Indexed {
    fn new() -> Indexed {
        let dir = tempfile::tempdir().unwrap();
        let indexed = Indexed { dir };
        fs::create_dir_all(indexed.at("a/b")).unwrap();
        for n in 0..20 {
            fs::write(indexed.at(&format!("a/f{n}")), format!("{n}")).unwrap();
        }
        symlink("nowhere", indexed.at("a/link")).unwrap();
        fs::hard_link(indexed.at("a/f0"), indexed.at("a/b/hard")).unwrap();
        let odd = OsString::from_vec(b"not \xff text\n".to_vec());
        fs::write(indexed.at("a").join(odd), "odd").unwrap();
        indexed
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("tree").join(path)
    }

    fn db(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    fn command(&self, command: &str, args: &[&str]) -> std::process::Command {
        let mut run = rcuwalk(["handles", command]);
        run.arg("--db").arg(self.db()).args(args);
        run
    }

    fn index(&self) -> Value {
        let tree = self.at("");
        run_json(&mut self.command("index", &["--json", tree.to_str().unwrap()]))
    }

    fn get(&self, path: &str) -> Value {
        run_json(&mut self.command("get", &[path]))
    }
}

/// The root, two directories, 20 files, one of them twice, a link, and one with an odd name.
const ENTRIES: u64 = 26;

/// HANDLE-1: files are found wherever they were moved; what is gone is called so, also if another
/// file has its name; an update brings the database up to date.
#[test]
fn a_database_finds_what_was_moved() {
    if !is_root() {
        return skip("needs root");
    }
    let tree = Indexed::new();
    assert_eq!(tree.index()["entries"], ENTRIES);
    let ino = |path: &str| fs::symlink_metadata(tree.at(path)).unwrap().ino();
    let before = tree.get("a/f7");
    assert_eq!(
        (&before["state"], &before["is_at"]),
        (&"same".into(), &"/a/f7".into())
    );
    assert_eq!(before["now"]["ino"], ino("a/f7"));
    assert_eq!(tree.get("/a/link")["state"], "same");
    for by in ["handle", "path"] {
        let all = run_json(&mut tree.command("stat", &["--all", "--json", "--by", by]));
        assert_eq!(
            (&all["same"], &all["by"]),
            (&ENTRIES.into(), &by.into()),
            "{all}"
        );
    }

    let _known = fs::File::open(tree.at("a/f7")).unwrap();
    fs::rename(tree.at("a/f7"), tree.at("a/b/moved")).unwrap();
    fs::remove_file(tree.at("a/f8")).unwrap();
    fs::write(tree.at("a/f8"), "another").unwrap();
    fs::remove_file(tree.at("a/f9")).unwrap();
    fs::write(tree.at("a/f10"), "longer than before").unwrap();
    assert_eq!(tree.get("a/f7")["is_at"], "/a/b/moved", "HANDLE-1");
    assert_eq!(tree.get("a/f10")["state"], "changed");
    let ended = run(&mut tree.command("verify", &[]));
    assert_eq!(ended.code, Some(1));
    let mut lines: Vec<_> = ended.out.lines().collect();
    lines.sort_unstable();
    let said = lines.split_off(1);
    assert!(lines[0].starts_with("26 files by handle"), "{lines:?}");
    assert_eq!(
        said,
        ["gone: /a/f8", "gone: /a/f9", "moved: /a/f7 -> /a/b/moved"],
        "HANDLE-1"
    );
    assert_eq!(ended.err, "rcuwalk: 2 files could not be found by handle\n");
    let gone = run(&mut tree.command("get", &["a/f9", "never"]));
    assert_eq!(gone.code, Some(1));
    let why =
        "rcuwalk: /a/f9: the file of this handle is gone\nrcuwalk: /never: not in the database\n";
    assert_eq!(gone.err, why);

    let update = run_json(&mut tree.command("update", &["--json"]));
    assert_eq!(update["entries"], ENTRIES - 1, "{update}");
    assert_eq!(
        (&update["added"], &update["removed"]),
        (&1.into(), &2.into()),
        "{update}"
    );
    assert!(run_well(&mut tree.command("verify", &[])).contains("25 as recorded"));
    assert_eq!(tree.get("a/b/moved")["now"]["ino"], ino("a/b/moved"));
    let update = run_json(&mut tree.command("update", &["--json"]));
    let nothing = ["added", "renewed", "removed", "problems"];
    assert!(nothing.iter().all(|count| update[count] == 0), "{update}");
}

/// Errors name the file; a database that could not be made leaves the old one and nothing else.
#[test]
fn what_cannot_be_done_is_said() {
    let tree = Indexed::new();
    tree.index();
    let old = fs::read(tree.db()).unwrap();
    let fails = |command: &mut std::process::Command, what: &str| {
        let ended = run(command);
        assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{what}");
        assert!(ended.err.contains(what), "{what}: {}", ended.err);
    };
    fails(
        &mut tree.command("index", &["/no/such/tree"]),
        "cannot use /no/such/tree as source",
    );
    fails(
        &mut tree.command("index", &["/dev/null"]),
        "neither a directory, nor an image",
    );
    assert_eq!(fs::read(tree.db()).unwrap(), old);
    let elsewhere = |path: &Path| {
        let mut run = rcuwalk(["handles", "stat", "--all", "--db"]);
        run.arg(path);
        run
    };
    fails(&mut elsewhere(&tree.at("a/f1")), "as a database of handles");
    fails(&mut elsewhere(&tree.at("none")), "as a database of handles");
    let broken = tree.dir.path().join("broken");
    fs::write(&broken, &old[..6000]).unwrap();
    fails(&mut elsewhere(&broken), "broken");
    // Whatever else is in the file: a message, or it was not needed.
    let mut rng = rcuwalk_testkit::Rng::new(5);
    for _ in 0..40 {
        let mut changed = old.clone();
        for _ in 0..rng.between(1, 20) {
            let at = rng.below(changed.len());
            changed[at] = rng.next_u64() as u8;
        }
        fs::write(&broken, changed).unwrap();
        let ended = run(&mut elsewhere(&broken));
        assert!([Some(0), Some(1)].contains(&ended.code), "{ended:?}");
        assert!(!ended.err.contains("panicked"), "{ended:?}");
    }
    fs::rename(tree.at(""), tree.dir.path().join("away")).unwrap();
    fails(&mut tree.command("update", &[]), "as source");
    let left = fs::read_dir(tree.dir.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}
