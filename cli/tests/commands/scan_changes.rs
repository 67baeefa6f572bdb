//! `rcuwalk scan --changed-since`: changes are reported, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, rcuwalk, run, run_well, skip};
use serde_json::Value;
use tempfile::TempDir;

/// A tree, and a directory for its scans.
struct Tree {
    root: TempDir,
    scans: TempDir,
}

impl Tree {
    fn new() -> Tree {
        let tree = Tree {
            root: tempfile::tempdir().unwrap(),
            scans: tempfile::tempdir().unwrap(),
        };
        for path in ["d/a", "d/b", "d/c", "e/f", "e/g/h"] {
            let path = tree.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "contents").unwrap();
        }
        tree
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn scan(&self, format: &str) -> PathBuf {
        let file = self.scans.path().join(format!("before.{format}"));
        let mut command = rcuwalk(["scan", "--handles", "--format", format, "-o"]);
        run_well(command.arg(&file).arg(self.root.path()));
        file
    }

    fn since(&self, since: impl AsRef<Path>, more: &[&str]) -> Ended {
        let mut command = rcuwalk(["scan", "--changed-since"]);
        command.arg(since.as_ref()).args(more).arg(self.root.path());
        run(&mut command)
    }

    /// `kind path what [from]` of each change except those of directories that only gained or
    /// lost an entry.
    fn changes(&self, since: &Path) -> Vec<String> {
        let ended = self.since(since, &["--format", "jsonl"]);
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
        let mut changes: Vec<_> = ended
            .out
            .lines()
            .filter_map(|line| {
                let row: Value = serde_json::from_str(line).unwrap();
                let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                if text("change") == "changed" && text("type") == "directory" {
                    return None;
                }
                let what = row["what"].as_array().into_iter().flatten();
                let what: Vec<_> = what.map(|what| what.as_str().unwrap()).collect();
                let line = [text("change"), text("path"), what.join(","), text("from")].join(" ");
                Some(line.trim_end().to_owned())
            })
            .collect();
        changes.sort();
        changes
    }

    /// True if something besides the number tells inodes apart here.
    fn has_identity(&self) -> bool {
        let rows = fs::read_to_string(self.scan("jsonl")).unwrap();
        let row: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
        !row["btime"].is_null() || !row["generation"].is_null()
    }
}

#[test]
fn nothing_happened() {
    let tree = Tree::new();
    for format in ["jsonl", "csv"] {
        assert_eq!(tree.changes(&tree.scan(format)), [""; 0], "{format}");
    }
}

#[test]
fn each_kind_of_change_is_told_as_such() {
    let tree = Tree::new();
    if !tree.has_identity() {
        return skip("needs times of birth or file handles");
    }
    for format in ["jsonl", "csv", "parquet", "sqlite"] {
        if cfg!(not(all(feature = "parquet", feature = "sqlite"))) && format.len() > 5 {
            continue;
        }
        let tree = Tree::new();
        let before = tree.scan(format);
        fs::write(tree.at("new"), "").unwrap();
        fs::write(tree.at("d/a"), "other contents").unwrap();
        fs::remove_file(tree.at("d/b")).unwrap();
        fs::rename(tree.at("d/c"), tree.at("e/moved")).unwrap();
        fs::hard_link(tree.at("e/f"), tree.at("e/linked")).unwrap();
        fs::rename(tree.at("e/g"), tree.at("e/dir")).unwrap();
        let expected = [
            "changed d/a size,mtime,ctime",
            "changed e/f ctime,links",
            "new e/linked link",
            "new new",
            "removed d/b",
            "renamed e/dir  e/g",
            "renamed e/dir/h  e/g/h",
            "renamed e/moved  d/c",
        ];
        assert_eq!(tree.changes(&before), expected, "{format}");
        let ended = tree.since(&before, &["--json"]);
        let summary: Value = serde_json::from_str(&ended.out).unwrap();
        let counts = &summary["changes"];
        assert_eq!((&counts["new"], &counts["renamed"]), (&2.into(), &3.into()));
        assert_eq!(
            (&counts["removed"], &summary["unknown"]),
            (&1.into(), &0.into())
        );
    }
}

#[test]
fn of_two_names_one_is_renamed() {
    let tree = Tree::new();
    if !tree.has_identity() {
        return skip("needs times of birth or file handles");
    }
    fs::hard_link(tree.at("d/a"), tree.at("d/z")).unwrap();
    let before = tree.scan("jsonl");
    fs::rename(tree.at("d/z"), tree.at("d/y")).unwrap();
    // The other name shows that the inode was touched.
    let expected = ["changed d/a ctime", "renamed d/y  d/z"];
    assert_eq!(tree.changes(&before), expected);

    let before = tree.scan("jsonl");
    fs::remove_file(tree.at("d/y")).unwrap();
    assert_eq!(
        tree.changes(&before),
        ["changed d/a ctime,links", "removed d/y"]
    );
}

#[test]
fn a_file_in_the_place_of_another_is_new() {
    let tree = Tree::new();
    if !tree.has_identity() {
        return skip("needs times of birth or file handles");
    }
    let before = tree.scan("jsonl");
    // As editors save: the old one stays open here, so its number is not used again.
    let _old = fs::File::open(tree.at("d/a")).unwrap();
    fs::write(tree.at("d/tmp"), "new contents").unwrap();
    fs::rename(tree.at("d/tmp"), tree.at("d/a")).unwrap();
    fs::rename(tree.at("e/f"), tree.at("d/b")).unwrap();
    assert_eq!(
        tree.changes(&before),
        ["new d/a replaced", "renamed d/b replaced e/f"]
    );
}

/// Rewrites the rows of a scan.
fn edited(file: &Path, edit: impl Fn(&mut Value)) -> PathBuf {
    let rows = fs::read_to_string(file).unwrap();
    let rows: String = rows
        .lines()
        .map(|line| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            edit(&mut row);
            row.to_string() + "\n"
        })
        .collect();
    let to = file.with_extension("edited");
    fs::write(&to, rows).unwrap();
    to
}

#[test]
fn an_inode_number_that_is_used_again_is_another_file() {
    let tree = Tree::new();
    let before = edited(&tree.scan("jsonl"), |row| {
        let path = row["path"].as_str().unwrap().to_owned();
        if path == "d/a" || path == "d/b" {
            // The file of then had the number that another has now.
            row["generation"] = Value::Null;
            row["btime"] = "12345.000000000".into();
        }
        if path == "d/a" {
            row["path"] = "d/gone".into();
        }
    });
    let told = tree.changes(&before);
    if told.iter().any(|line| line.starts_with("changed d/b")) {
        return skip("needs times of birth");
    }
    assert_eq!(told, ["new d/a", "new d/b replaced", "removed d/gone"]);

    let before = edited(&tree.scan("jsonl"), |row| {
        if row["path"] == "d/a" && row["generation"].is_u64() {
            row["path"] = "d/gone".into();
            row["generation"] = 4_000_000_000_u64.into();
        }
    });
    let told = tree.changes(&before);
    if !told.is_empty() {
        assert_eq!(told, ["new d/a", "removed d/gone"]);
    }
}

#[test]
fn a_host_that_numbers_its_devices_anew_changes_nothing() {
    let tree = Tree::new();
    let before = edited(&tree.scan("jsonl"), |row| row["device"] = 987_654.into());
    assert_eq!(tree.changes(&before), [""; 0]);
}

#[test]
fn what_is_not_whole_is_not_compared_with() {
    let tree = Tree::new();
    let whole = tree.scan("jsonl");
    let rows = fs::read_to_string(&whole).unwrap();
    let (all_but_last, _) = rows.trim_end().rsplit_once('\n').unwrap();
    let part = tree.scans.path().join("part");
    for cut in [all_but_last.len() + 1, all_but_last.len() - 10] {
        fs::write(&part, &rows[..cut]).unwrap();
        let ended = tree.since(&part, &[]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.contains("is the partial result"), "{}", ended.err);
    }
    let ended = tree.since("@0", &["--format", "csv"]);
    fs::write(&part, ended.out).unwrap();
    let ended = tree.since(&part, &[]);
    assert!(ended.err.contains("it lists changes"), "{}", ended.err);
    for (contents, why) in [
        ("", "is not the output"),
        ("{\"x\":1}\n", "line 1: missing field"),
    ] {
        fs::write(&part, contents).unwrap();
        let ended = tree.since(&part, &[]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.contains(why), "{}", ended.err);
    }
}

/// Whatever is in the file: an error that names it, or a result.
#[test]
fn a_damaged_scan_is_an_error() {
    let tree = Tree::new();
    for format in ["jsonl", "csv", "parquet", "sqlite"] {
        if cfg!(not(all(feature = "parquet", feature = "sqlite"))) && format.len() > 5 {
            continue;
        }
        let whole = fs::read(tree.scan(format)).unwrap();
        let damaged = tree.scans.path().join("damaged");
        for i in 0..40 {
            let mut bytes = whole.clone();
            // Spread over the file, and the end of it, where Parquet keeps its map.
            let at = if i % 2 == 0 {
                4 + (whole.len() - 5) * i / 40
            } else {
                whole.len() - 1 - i * 37 % (whole.len() / 2)
            };
            bytes[at] ^= 0x81;
            fs::write(&damaged, bytes).unwrap();
            let ended = tree.since(&damaged, &["-q"]);
            assert!(
                matches!(ended.code, Some(0 | 1)),
                "{format} {at}: {:?}",
                ended.code
            );
            assert!(
                !ended.err.contains("panicked"),
                "{format} {at}: {}",
                ended.err
            );
            if ended.code == Some(1) {
                assert!(
                    ended.err.contains("damaged"),
                    "{format} {at}: {}",
                    ended.err
                );
            }
        }
    }
}

#[test]
fn times_select_what_was_touched_since() {
    let tree = Tree::new();
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let file = fs::File::options()
        .write(true)
        .open(tree.at("d/a"))
        .unwrap();
    file.set_modified(past).unwrap();
    // Its ctime is now, as of all of them.
    let ended = tree.since("1h", &["--json"]);
    let summary: Value = serde_json::from_str(&ended.out).unwrap();
    let told = ["new", "changed"].map(|kind| summary["changes"][kind].as_u64().unwrap());
    assert_eq!(told.iter().sum::<u64>(), 9, "{summary}");
    let ended = tree.since("2999-01-01T00:00:00Z", &["--format", "jsonl"]);
    assert_eq!((ended.code, &*ended.out), (Some(0), ""));
    for bad in ["yesterday", "2026-01-01", "-7d", "7x"] {
        let ended = run(rcuwalk(["scan"])
            .arg(format!("--changed-since={bad}"))
            .arg(tree.root.path()));
        assert_eq!(ended.code, Some(1), "{bad}");
        assert!(ended.err.contains("neither a time"), "{}", ended.err);
    }
}
