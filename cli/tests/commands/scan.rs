//! `rcuwalk scan`: its counts, how it ends, and the files it leaves behind.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Ended, interrupt, is_root, make_image, names, rcuwalk, run, skip};
use rcuwalk_testkit::{Unmount, comes_true};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Two directories, two files, a link; one of the files with a second name.
fn tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("d/e")).unwrap();
    fs::write(at("d/f"), vec![0; 1000]).unwrap();
    fs::write(at("d/e/g"), vec![0; 10]).unwrap();
    fs::hard_link(at("d/f"), at("h")).unwrap();
    symlink("d", at("l")).unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    root
}

fn scan(args: &[&str], root: &Path) -> Ended {
    run(rcuwalk(["scan"]).args(args).arg(root))
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap().lines().count()
}

#[test]
fn the_summary_counts_each_entry_and_each_byte_once() {
    let root = tree();
    let ended = scan(&["--json"], root.path());
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let summary: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(summary["entries"], 7);
    assert_eq!(
        summary["types"],
        serde_json::json!({"directory": 3, "file": 3, "symlink": 1})
    );
    assert_eq!(
        (&summary["complete"], &summary["problems"]),
        (&true.into(), &0.into())
    );
    let files = summary["largest_files"].as_array().unwrap();
    assert_eq!((files.len(), &files[0]["size"]), (2, &1000.into()));
    assert_eq!(summary["largest_directories"][0]["entries"], 3);
    let directories =
        ["", "d", "d/e"].map(|path| fs::metadata(root.path().join(path)).unwrap().len());
    let all = directories.iter().sum::<u64>() + 1000 + 10 + 1;
    assert_eq!(summary["bytes"]["apparent"], all);

    let ended = scan(&[], root.path());
    assert!(ended.out.contains("7 entries in"), "{}", ended.out);
    assert!(ended.out.contains("1000 B  "), "{}", ended.out);
}

#[test]
fn threads_and_order_change_nothing() {
    let root = tree();
    for i in 0..3000 {
        fs::write(root.path().join(format!("d/e/{i}")), "").unwrap();
    }
    let rows = |args: &[&str]| {
        let ended = scan(&[&["--format", "csv"], args].concat(), root.path());
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
        // Without the times of access, which listing a directory may change.
        let without_atime = |row: &str| {
            let mut fields: Vec<_> = row.split(',').collect();
            fields.remove(10);
            fields.join(",")
        };
        let mut rows: Vec<_> = ended.out.lines().map(without_atime).collect();
        rows.sort();
        rows
    };
    let expected = rows(&["--threads", "1"]);
    assert_eq!(expected.len(), 3008);
    assert!(rows(&["--threads", "7"]) == expected, "7 threads");
    assert!(rows(&["--order", "inode"]) == expected, "by inode");
}

#[test]
fn a_tree_deeper_than_a_path_may_be_long_is_scanned() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let root = tempfile::tempdir().unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut at = openat(CWD, root.path(), flags, Mode::empty()).unwrap();
    let name = "n".repeat(200);
    for _ in 0..100 {
        mkdirat(&at, &*name, Mode::RWXU).unwrap();
        at = openat(&at, &*name, flags, Mode::empty()).unwrap();
    }
    let ended = scan(&["--format", "jsonl"], root.path());
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let longest = ended.out.lines().map(str::len).max().unwrap();
    assert!(longest > 20_000, "{longest}");
    assert_eq!(ended.out.lines().count(), 101);
}

#[test]
fn links_lead_nowhere() {
    let root = tree();
    symlink(".", root.path().join("d/loop")).unwrap();
    symlink("/", root.path().join("d/out")).unwrap();
    let ended = scan(&["--format", "jsonl"], root.path());
    assert_eq!((ended.code, ended.out.lines().count()), (Some(0), 9));
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_comes() {
    if !is_root() {
        return skip("needs root");
    }
    let root = tree();
    fs::set_permissions(root.path().join("d/e"), Permissions::from_mode(0o700)).unwrap();
    // The test's own binary may lie where the user cannot go.
    let binary = root.path().join("rcuwalk");
    fs::copy(env!("CARGO_BIN_EXE_rcuwalk"), &binary).unwrap();
    let before = scan(&["--format", "jsonl"], root.path());
    let earlier = tempfile::NamedTempFile::new().unwrap();
    fs::write(earlier.path(), before.out).unwrap();
    fs::set_permissions(earlier.path(), Permissions::from_mode(0o644)).unwrap();

    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&binary);
        command
            .arg("scan")
            .args(args)
            .arg(root.path())
            .uid(65534)
            .gid(65534);
        run(&mut command)
    };
    let ended = as_nobody(&["--format", "jsonl"]);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(1), 7));
    assert_eq!(
        ended.err,
        "rcuwalk: d/e: permission denied\nrcuwalk: one thing could not be read\n"
    );
    // The entries below it are not called removed.
    let earlier = earlier.path().to_str().unwrap();
    let ended = as_nobody(&["--json", "--changed-since", earlier]);
    let summary: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        (&summary["changes"]["removed"], &summary["unknown"]),
        (&0.into(), &1.into())
    );
}

#[test]
fn other_file_systems_are_left_out_unless_wanted() {
    let root = tree();
    let point = root.path().join("d/e");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&point)
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        return skip("needs to mount a tmpfs");
    }
    let mounted = Unmount(point);
    fs::write(mounted.0.join("inside"), "").unwrap();
    let count = |args: &[&str]| {
        let ended = scan(&[&["--format", "jsonl"], args].concat(), root.path());
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
        ended.out.lines().count()
    };
    // The mount point is reported, and the file that it hides is not.
    assert_eq!(count(&[]), 6);
    assert_eq!(count(&["-x"]), 6);
    assert_eq!(count(&["--cross-file-systems"]), 7);
}

#[test]
fn a_directory_that_is_mounted_below_itself_is_told_and_left() {
    let root = tree();
    let point = root.path().join("d/e");
    let mount = Command::new("mount")
        .arg("--bind")
        .args([root.path(), &point])
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        return skip("needs to bind-mount");
    }
    let _mounted = Unmount(point);
    let ended = scan(&["--format", "jsonl"], root.path());
    assert_eq!((ended.code, ended.out.lines().count()), (Some(1), 6));
    assert!(ended.err.contains("d/e: file system loop"), "{}", ended.err);
}

/// A scan that does not end by itself soon: of all there is.
fn endless(file: &Path, args: &[&str]) -> std::process::Child {
    let mut command = rcuwalk(["scan", "--threads", "2", "--format"]);
    command.args(args).arg("-o").arg(file).arg("/");
    command.arg("--cross-file-systems");
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn an_interrupted_scan_leaves_a_marked_part() {
    for format in ["jsonl", "csv", "parquet", "sqlite"] {
        if cfg!(not(all(feature = "parquet", feature = "sqlite"))) && format.len() > 5 {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("scan");
        fs::write(&file, "an older one").unwrap();
        let child = endless(&file, &[format]);
        // Once the second file is there, it catches signals.
        comes_true(|| names(place.path()).len() == 2);
        std::thread::sleep(Duration::from_millis(100));
        let (signal, code) = interrupt();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = Ended::from(child.wait_with_output().unwrap());
        if ended.code != Some(code) {
            return skip("needs more files than can be scanned in a moment");
        }
        let mut left = names(place.path());
        left.sort();
        assert_eq!(left, ["scan", "scan.partial"], "{format}");
        assert_eq!(fs::read(&file).unwrap(), b"an older one", "{format}");
        assert!(
            ended.err.contains("scan.partial"),
            "{format}: {}",
            ended.err
        );
        assert!(ended.out.contains("(partial)"), "{format}: {}", ended.out);
        let part = place.path().join("scan.partial");
        let ended = scan(&["--changed-since", part.to_str().unwrap()], place.path());
        assert_eq!(ended.code, Some(1), "{format}");
        let marked = ["partial result", "not the output"]
            .iter()
            .any(|why| ended.err.contains(why));
        assert!(marked, "{format}: {}", ended.err);
    }
}

#[test]
fn a_full_device_is_an_error_with_its_name() {
    let root = tree();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = rcuwalk(["scan", "--format", "jsonl"]);
    let ended = Ended::from(command.arg(root.path()).stdout(full).output().unwrap());
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("standard output: No space left"),
        "{}",
        ended.err
    );
    let ended = scan(&["--format", "csv", "-o", "/dev/full"], root.path());
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("/dev/full: No space left"),
        "{}",
        ended.err
    );
}

#[test]
fn a_full_disk_leaves_nothing_that_looks_whole() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..4000 {
        fs::write(root.path().join(format!("a name of some length {i}")), "").unwrap();
    }
    let place = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(place.path())
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        return skip("needs to mount a tmpfs");
    }
    let mounted = Unmount(place.path().to_owned());
    for format in ["jsonl", "parquet", "sqlite"] {
        if cfg!(not(all(feature = "parquet", feature = "sqlite"))) && format.len() > 5 {
            continue;
        }
        let file = mounted.0.join("scan");
        let args = ["--format", format, "-o", file.to_str().unwrap()];
        let ended = scan(&args, root.path());
        assert_eq!(ended.code, Some(1), "{format}: {}", ended.err);
        assert!(
            ended.err.contains("cannot write to "),
            "{format}: {}",
            ended.err
        );
        let left = names(&mounted.0);
        let expected: &[&str] = if format == "jsonl" {
            &["scan.partial"]
        } else {
            &[]
        };
        assert_eq!(left, expected, "{format}");
        let _ = fs::remove_file(mounted.0.join("scan.partial"));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let binary = env!("CARGO_BIN_EXE_rcuwalk");
    let script = format!("{binary} scan --format jsonl /usr | head -1; echo ${{PIPESTATUS[0]}}");
    let ended = run(Command::new("bash").args(["-c", &script]));
    assert_eq!(ended.err, "");
    assert!(ended.out.ends_with("\n0\n"), "{}", ended.out);
}

#[test]
fn an_older_file_is_replaced_through_links() {
    let root = tree();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("scan");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let link = place.path().join("link");
    symlink("scan", &link).unwrap();
    let ended = scan(
        &["--format", "jsonl", "-o", link.to_str().unwrap()],
        root.path(),
    );
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    assert!(link.is_symlink() && lines(&file) == 7);
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(
        ended.out.contains("7 entries"),
        "the rows went elsewhere: {}",
        ended.out
    );
    assert_eq!(names(place.path()).len(), 2);
}

/// The source is never written to, by whatever name.
#[test]
fn the_source_is_not_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("scan.partial");
    let Some(made) = make_image(&image) else {
        return;
    };
    symlink("scan.partial", place.path().join("link")).unwrap();
    fs::hard_link(&image, place.path().join("hard")).unwrap();
    for (file, why) in [
        ("scan.partial", "scan.partial is the source"),
        ("link", "scan.partial is the source"),
        ("hard", "hard is the source"),
        // The name of the partial file of a scan that ends early.
        ("scan", "scan.partial is the source"),
    ] {
        let file = place.path().join(file);
        let ended = scan(&["--format", "jsonl", "-o", file.to_str().unwrap()], &image);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.err.contains(why), "{}", ended.err);
    }
    let append = File::options().append(true).open(&image).unwrap();
    let mut command = rcuwalk(["scan", "--format", "jsonl"]);
    let ended = Ended::from(command.arg(&image).stdout(append).output().unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("it is the source"), "{}", ended.err);
    assert!(fs::read(&image).unwrap() == made, "it was written to");
    let mut left = names(place.path());
    left.sort();
    assert_eq!(left, ["hard", "link", "scan.partial"]);
}

/// An image that was cut off is reported as such, even if all entries are in the rest.
#[test]
fn a_truncated_image_is_told() {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("image");
    let Some(made) = make_image(&image) else {
        return;
    };
    let whole = scan(&["--json"], &image);
    assert_eq!((whole.code, &*whole.err), (Some(0), ""));
    fs::write(&image, &made[..made.len() - 4096]).unwrap();
    let ended = scan(&["--json"], &image);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let told = format!("the image ends at {}", made.len() - 4096);
    assert!(ended.err.contains(&told), "{}", ended.err);
    let summary: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(summary["problems"], 1);
    assert_eq!(summary["complete"], false, "a part is marked as one");

    let rows = place.path().join("rows.csv");
    let ended = scan(
        &["--format", "csv", "--output", rows.to_str().unwrap()],
        &image,
    );
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("the image is cut off"), "{}", ended.err);
    assert!(!rows.exists() && place.path().join("rows.csv.partial").exists());
}

#[test]
fn wrong_use_is_told_before_anything_is_made() {
    let root = tree();
    let cases: [(&[&str], &str); 6] = [
        (
            &["/nowhere"],
            "cannot scan /nowhere: No such file or directory\n",
        ),
        (&["/dev/null"], "cannot scan /dev/null: neither a directory"),
        (&["--json", "--format", "csv", "/etc"], "--output FILE"),
        (
            &["--format", "csv", "-o", "/etc", "/etc"],
            "cannot write to /etc",
        ),
        (
            &["--format", "csv", "-o", "/no/where", "/etc"],
            "cannot write to /no/where",
        ),
        (
            &["--changed-since", "/nowhere", "/etc"],
            "/nowhere is neither",
        ),
    ];
    for (args, why) in cases {
        let ended = run(rcuwalk(["scan"]).args(args));
        assert_eq!(ended.code, Some(1), "{args:?}");
        assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
    for args in [&["-o", "x"][..], &["--format", "xml"], &["--threads", "0"]] {
        let ended = scan(args, root.path());
        assert_eq!(ended.code, Some(2), "{args:?}");
    }
}
