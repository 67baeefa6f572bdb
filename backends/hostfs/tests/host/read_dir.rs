//! Listings of directories that change meanwhile.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{AN_HOUR, Scratch};
use rcuwalk::{Budget, Credentials, Error, FileType, Freshness, LookupFlags, Vfs};
use rcuwalk_hostfs::{HostFs, Watcher};
use rcuwalk_testkit::{Image, InVfs, OnHost, Rng, check_listings, setting, skip};

/// EDGE-1: names, inode numbers and types are the host's.
#[test]
fn a_listing_is_the_hosts() {
    let tree = Scratch::new(AN_HOUR, |root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("file"), b"").unwrap();
        fs::write(root.join("..."), b"").unwrap();
        std::os::unix::fs::symlink("file", root.join("link")).unwrap();
    });
    let host: HashMap<_, _> = fs::read_dir(tree.host(""))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.ino()))
        .collect();
    let entries = tree.vfs.read_dir(&tree.ctx, "/").unwrap();
    let entries: Vec<_> = entries.map(Result::unwrap).collect();
    assert_eq!(entries.len(), host.len(), "EDGE-1");
    for entry in entries {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        assert_eq!(host.get(&name), Some(&entry.ino), "EDGE-1: {name}");
        let kind = match name.as_str() {
            "dir" => FileType::Directory,
            "link" => FileType::Symlink,
            _ => FileType::Regular,
        };
        // A file system need not tell the type in the listing, only not lie.
        assert!(entry.kind.is_none_or(|told| told == kind), "EDGE-1: {name}");
    }
}

/// EDGE-1: only directories are listed.
#[test]
fn a_file_has_no_entries() {
    let tree = Scratch::new(AN_HOUR, |root| fs::write(root.join("file"), b"").unwrap());
    assert!(
        matches!(tree.names("/file"), Err(Error::NotADirectory)),
        "EDGE-1"
    );
    assert!(
        matches!(tree.names("/none"), Err(Error::NotFound)),
        "EDGE-1"
    );
}

/// DIR-1: of ten thousand entries, those that stay come exactly once, while others
/// are made and removed around them.
#[test]
fn entries_that_stay_come_exactly_once() {
    const STAY: usize = 10_000;
    let tree = Scratch::new(Freshness::EachUse, |root| {
        for i in 0..STAY {
            fs::write(root.join(format!("stays-{i}")), b"").unwrap();
        }
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..2 {
            let (tree, stop) = (&tree, &stop);
            scope.spawn(move || {
                for i in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let path = tree.host(&format!("passes-{worker}-{}", i % 700));
                    if i / 700 % 2 == 0 {
                        fs::write(path, b"").unwrap();
                    } else {
                        fs::remove_file(path).unwrap();
                    }
                }
            });
        }
        let listings: Vec<_> = (0..5).map(|_| tree.names("/")).collect();
        stop.store(true, Ordering::Relaxed);
        for listing in listings {
            let mut times = HashMap::new();
            for name in listing.unwrap() {
                *times.entry(name).or_insert(0) += 1;
            }
            for i in 0..STAY {
                let seen = times.get(&format!("stays-{i}"));
                assert_eq!(seen, Some(&1), "DIR-1: stays-{i}");
            }
        }
    });
}

/// DIR-1 and DIR-2: creates, unlinks, links, renames and exchanges through the back end, beside
/// listings that stop and go on from any of their positions, and lookups of any name; for each kind
/// of freshness, with a cache and next to none, here and on an ext4 of its own. The host keeps DIR-1
/// itself.
#[test]
fn listings_are_exact_beside_changes() {
    let here = tempfile::tempdir().unwrap();
    listed_beside_changes(here.path());
    if let Some(ext4) = Image::mount("ext4", &["-q"], 16) {
        listed_beside_changes(ext4.path());
    }
}

fn listed_beside_changes(at: &Path) {
    let steps = setting("RCUWALK_LISTING_STEPS", 1_500) as usize;
    let below = |name: &str| {
        let path = at.join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    check_listings(&OnHost::new(&below("host")), &mut Rng::new(0), steps);
    let small = Budget::default().dentries(20).inodes(20).listings(4_000);
    for (number, budget) in [Budget::default(), small].into_iter().enumerate() {
        let check = |name: &str, with: &dyn Fn(HostFs) -> Option<HostFs>| {
            let host = HostFs::new(below(&format!("{name}{number}"))).unwrap();
            let Some(host) = with(host) else {
                return skip("needs root (fanotify)");
            };
            let vfs = Vfs::with_budget(host, budget).unwrap();
            check_listings(&InVfs::new(&vfs), &mut Rng::new(number as u64), steps);
            let statistics = vfs.statistics();
            let is_used = statistics.missing_by_listing > 0 && statistics.listed_from_cache > 0;
            let is_cached = name == "always" && number == 0;
            assert!(is_used || !is_cached, "the cache took part: {statistics:?}");
        };
        check("always", &|host| {
            Some(host.with_freshness(Freshness::Always))
        });
        check("each", &|host| {
            Some(host.with_freshness(Freshness::EachUse))
        });
        check("hour", &|host| Some(host.with_freshness(AN_HOUR)));
        check("watched", &|host| host.watched_by(Watcher::Fanotify).ok());
    }
}

/// FRESH-1: the names in an encrypted directory are others once a key is added or removed, and nothing
/// tells of it: its listing is not kept, and names that are not in it are asked for, whatever the
/// freshness. A directory beside it is kept.
#[test]
fn listings_of_encrypted_directories_are_not_kept() {
    let options = ["-q", "-b", "4096", "-O", "encrypt"];
    let Some(ext4) = Image::mount_with("ext4", &options, 16, "loop,test_dummy_encryption") else {
        return;
    };
    // Made by mkfs, and not encrypted.
    let plain = ext4.path().join("lost+found");
    let encrypted = ext4.path().join("encrypted");
    fs::create_dir(&encrypted).unwrap();
    for dir in [&plain, &encrypted] {
        for n in 0..20 {
            fs::write(dir.join(format!("file{n}")), b"").unwrap();
        }
    }
    let watched = |host: HostFs| host.watched_by(Watcher::Fanotify).unwrap();
    let ways: [&dyn Fn(HostFs) -> HostFs; 4] = [
        &|host| host.with_freshness(Freshness::Always),
        &|host| host.with_freshness(Freshness::EachUse),
        &|host| host.with_freshness(AN_HOUR),
        &watched,
    ];
    // Longer than a directory must be left alone.
    thread::sleep(Duration::from_millis(50));
    for way in ways {
        for (dir, is_kept) in [(&plain, true), (&encrypted, false)] {
            let vfs = Vfs::new(way(HostFs::new(dir).unwrap())).unwrap();
            let ctx = vfs.context(Credentials::root());
            for _ in 0..3 {
                assert_eq!(vfs.read_dir(&ctx, "/").unwrap().count(), 20);
                let missing = vfs.stat(&ctx, "/missing", LookupFlags::empty());
                assert!(matches!(missing, Err(Error::NotFound)));
            }
            let statistics = vfs.statistics();
            assert_eq!(statistics.listings.0 == 1, is_kept, "FRESH-1: {dir:?}");
            assert_eq!(statistics.listed_from_cache > 0, is_kept, "FRESH-1");
            assert!(is_kept || statistics.missing_by_listing == 0, "FRESH-1");
        }
    }
}
