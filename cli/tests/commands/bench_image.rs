//! `rcuwalk bench walktrees --image`: its output, its errors, and the files it leaves behind.

use std::fs;
use std::path::Path;

use crate::common::{Ended, is_root, make_image, names, rcuwalk, run, skip};
use serde_json::Value;

fn bench(keep: &Path, args: &[&str]) -> Ended {
    let mut command = rcuwalk("bench walktrees --image --no-cold --rounds 1".split(' '));
    let small = ["--trees", "2", "--dirs", "2", "--keep"];
    run(command.args(small).arg(keep).args(args))
}

/// The document has all its fields, and the image can be used again.
#[test]
fn an_image_is_made_and_used_again() {
    if !is_root() {
        return skip("needs root");
    }
    let place = tempfile::tempdir().unwrap();
    if make_image(&place.path().join("other")).is_none() {
        return;
    }
    let keep = place.path().join("image");
    let ended = bench(&keep, &["--files", "5", "--json"]);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let json: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(
        (&json["bench"], &json["verified"]),
        (&"walktrees".into(), &true.into())
    );
    // Trees, directories, files and `lost+found`.
    assert_eq!(json["entries"], 2 + 4 + 20 + 1);
    let rows = json["rows"].as_array().unwrap();
    for contender in ["kernel", "vfs", "scan"] {
        assert!(rows.iter().any(|row| row["contender"] == contender));
    }
    assert!(json["eighth_cache_bytes"].is_number());
    check_laps(&json);
    for row in rows {
        let roomy_vfs = row["contender"] == "vfs" && row["cache"] == "all";
        assert_eq!(row["bytes_per_entry"].is_number(), roomy_vfs, "{row}");
        for key in [
            "threads",
            "seconds",
            "entries_per_s",
            "user_s",
            "sys_s",
            "ratio_to_kernel",
            "peak_rss_mb",
        ] {
            assert!(row[key].is_number(), "{key}: {row}");
        }
    }
    let before = fs::metadata(&keep).unwrap().modified().unwrap();
    let ended = bench(&keep, &["--files", "6"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("27 entries, and such trees have 31"));
    assert_eq!(fs::metadata(&keep).unwrap().modified().unwrap(), before);
    assert_eq!(names(place.path()).len(), 2);
}

/// Both contenders walk three laps with a cache of an eighth; without a control group, ours does,
/// and the document says why.
fn check_laps(json: &Value) {
    let limited = json["kernel_limit_bytes"].is_number();
    assert_ne!(limited, json["kernel_not_limited"].is_string(), "{json}");
    let kernel_cache = if limited { "eighth" } else { "all" };
    let rows = json["rows"].as_array().unwrap().iter();
    let laps: Vec<_> = rows.filter(|row| row["cache"] == "eighth").collect();
    assert!(laps.iter().all(|row| row["kernel_cache"] == kernel_cache));
    for (contender, expected) in [("kernel", limited), ("vfs", true)] {
        let laps = laps.iter().filter(|row| row["contender"] == contender);
        let numbers: Vec<_> = laps.map(|row| row["lap"].as_u64().unwrap()).collect();
        assert_eq!(numbers, if expected { vec![1, 2, 3] } else { vec![] });
    }
}

/// A file that is not an image is named and left alone, and so is an unfinished image.
#[test]
fn what_is_there_is_not_overwritten() {
    if !is_root() {
        return skip("needs root");
    }
    let place = tempfile::tempdir().unwrap();
    let keep = place.path().join("image");
    fs::write(&keep, vec![b'x'; 100_000]).unwrap();
    let ended = bench(&keep, &["--files", "5"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("no ext2, ext3 or ext4 file system"));
    assert_eq!(fs::read(&keep).unwrap(), vec![b'x'; 100_000]);
    let ended = bench(place.path(), &["--files", "5"]);
    assert!(ended.err.contains("a directory"), "{}", ended.err);

    fs::rename(&keep, place.path().join("image.part")).unwrap();
    let ended = bench(&keep, &["--files", "5"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("image.part is there"), "{}", ended.err);
    let left = fs::read(place.path().join("image.part")).unwrap();
    assert_eq!(left.len(), 100_000);
}

/// No room, no mkfs.ext4: said before anything is made.
#[test]
fn what_is_missing_is_named_and_nothing_is_left() {
    if !is_root() {
        return skip("needs root");
    }
    let place = tempfile::tempdir().unwrap();
    let keep = place.path().join("image");
    let ended = bench(&keep, &["--files", "1000000000000"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("MiB are needed"), "{}", ended.err);
    let mut command = rcuwalk("bench walktrees --image --files 5 --keep".split(' '));
    let ended = run(command.arg(&keep).env("PATH", place.path()));
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("cannot run mkfs.ext4: it is not inst"),
        "{}",
        ended.err
    );
    assert!(names(place.path()).is_empty());
}
