//! Listings: every entry that stays is seen once, whatever happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nfs3_types::nfs3::*;
use rcuwalk::{Credentials, Vfs};
use rcuwalk_memfs::MemFs;

use crate::client::{Client, Fh, mode, text};
use crate::served::{host, memfs, options, serve};

/// Makes these files without the protocol, which is not what is tested.
fn fill(vfs: &Vfs, dir: &str, names: impl Iterator<Item = String>) {
    let ctx = vfs.context(Credentials::root());
    for name in names {
        vfs.create(&ctx, format!("{dir}/{name}"), 0o644).unwrap();
    }
}

/// One reply of a listing: the names in it, the cookie after them, and whether it was the last.
type Part = (Vec<String>, u64, bool);

fn plain(client: &mut Client, dir: &Fh, cookie: u64) -> Part {
    let from = (cookie, cookieverf3::default());
    let (entries, _, ended) = client.readdir(dir, from, 16 << 10).unwrap();
    let last = entries.last().map_or(cookie, |(_, cookie)| *cookie);
    (
        entries.into_iter().map(|(name, _)| name).collect(),
        last,
        ended,
    )
}

fn plus(client: &mut Client, dir: &Fh, cookie: u64) -> Part {
    let (entries, ended) = client.readdirplus(dir, cookie, 16 << 10).unwrap();
    let last = entries.last().map_or(cookie, |entry| entry.cookie);
    let names = entries.iter().map(|entry| text(entry.name.as_ref()));
    (names.collect(), last, ended)
}

/// Lists `files` files while others come, go and are renamed after each reply.
fn list_under_change(files: usize, next: fn(&mut Client, &Fh, u64) -> Part) {
    let served = memfs();
    fill(&served.vfs, "/", (0..files).map(|n| format!("stays-{n}")));
    let mut client = served.client();
    let root = client.root.clone();
    let (mut seen, mut cookie, mut round) = (BTreeMap::<String, u32>::new(), 0, 0);
    loop {
        let (names, last, ended) = next(&mut client, &root, cookie);
        for name in names {
            *seen.entry(name).or_default() += 1;
        }
        if ended {
            break;
        }
        assert_ne!(last, cookie);
        cookie = last;
        for n in 0..3 {
            client.create(&root, &format!("comes-{round}-{n}")).unwrap();
        }
        let from = format!("comes-{round}-0");
        client
            .rename((&root, &from), (&root, &format!("moved-{round}")))
            .unwrap();
        client.remove(&root, &format!("comes-{round}-1")).unwrap();
        round += 1;
    }
    assert!(round > 100, "{round} replies");
    let stayed = seen.keys().filter(|name| name.starts_with("stays-"));
    assert_eq!(stayed.count(), files, "DIR-1");
    let twice = seen.iter().find(|(_, times)| **times > 1);
    assert_eq!(twice, None, "DIR-1");
}

/// DIR-1: of 100,000 entries, those that stay are seen once, those that come and go at most once.
#[test]
fn a_listing_under_change_has_each_entry_once() {
    list_under_change(100_000, plain);
}

/// DIR-1: the same with attributes and handles.
#[test]
fn a_listing_with_handles_under_change_has_each_entry_once() {
    list_under_change(15_000, plus);
}

/// DIR-1: a server that is started again goes on where the old one was.
#[test]
fn a_listing_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let names: BTreeSet<String> = (0..3000).map(|n| format!("file-{n}")).collect();
    for name in &names {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let mut served = host(dir.path());
    let mut client = served.client();
    let root = client.root.clone();
    let (mut seen, mut from) = (Vec::new(), (0, cookieverf3::default()));
    loop {
        let (entries, verifier, ended) = client.readdir(&root, from, 8192).unwrap();
        from = (
            entries.last().map_or(from.0, |(_, cookie)| *cookie),
            verifier,
        );
        seen.extend(entries.into_iter().map(|(name, _)| name));
        if ended {
            break;
        }
        drop(served);
        fs::write(dir.path().join(format!("new-{}", seen.len())), "").unwrap();
        served = host(dir.path());
        client = served.client();
    }
    let found: Vec<_> = seen.iter().filter(|name| names.contains(*name)).collect();
    let once: BTreeSet<_> = found.iter().collect();
    assert_eq!((found.len(), once.len()), (3000, 3000), "DIR-1");
}

#[test]
fn entries_come_with_attributes_and_handles() {
    let served = memfs();
    let mut client = served.client();
    let root = client.root.clone();
    let dir = client.mkdir(&root, "dir", mode(0o755)).unwrap();
    let file = client.create(&dir, "file").unwrap();
    client
        .write(&file, 0, b"12345", stable_how::UNSTABLE)
        .unwrap();
    let sub = client.mkdir(&dir, "sub", mode(0o700)).unwrap();
    let (entries, ended) = client.readdirplus(&dir, 0, 4096).unwrap();
    assert!(ended);
    let shown: BTreeMap<String, _> = entries
        .into_iter()
        .map(|entry| (text(entry.name.as_ref()), entry))
        .collect();
    let names: Vec<_> = shown.keys().map(String::as_str).collect();
    assert_eq!(names, [".", "..", "file", "sub"]);
    for (name, handle) in [(".", &dir), ("..", &root), ("file", &file), ("sub", &sub)] {
        let entry = &shown[name];
        let (Nfs3Option::Some(attr), Nfs3Option::Some(told)) =
            (&entry.name_attributes, &entry.name_handle)
        else {
            panic!("{entry:?}");
        };
        assert_eq!(told, handle, "{name}");
        let asked = client.getattr(handle).unwrap();
        assert_eq!(
            (attr.fileid, attr.size, attr.mode),
            (asked.fileid, asked.size, asked.mode)
        );
        assert_eq!(entry.fileid, asked.fileid, "{name}");
    }
    // By READDIR the numbers are the same.
    let args = READDIR3args {
        dir: dir.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        count: 4096,
    };
    let read = crate::client::now(client.nfs.readdir(&args))
        .unwrap()
        .unwrap();
    for entry in read.reply.entries.into_inner() {
        assert_eq!(entry.fileid, shown[&text(entry.name.as_ref())].fileid);
    }
}

#[test]
fn replies_are_as_long_as_was_asked() {
    let served = memfs();
    let mut client = served.client();
    let root = client.root.clone();
    let long = |n: usize| format!("{n:0>255}");
    fill(&served.vfs, "/", (0..20).map(long));
    let zero = cookieverf3::default();
    assert_eq!(
        client.readdir(&root, (0, zero), 60).map(drop),
        Err(nfsstat3::NFS3ERR_TOOSMALL)
    );
    assert_eq!(
        client.readdirplus(&root, 0, 100).map(drop),
        Err(nfsstat3::NFS3ERR_TOOSMALL)
    );
    for count in [400, 512, 1000, 4096, 1 << 20, u32::MAX] {
        assert_eq!(client.list(&root, count).len(), 22, "{count}");
    }
    // Any cookie is a place to go on from, those of the dots as well.
    let all = client.list(&root, 4096);
    let (entries, _, _) = client.readdir(&root, (0, zero), 1 << 20).unwrap();
    for (n, (_, cookie)) in entries.iter().enumerate() {
        let (rest, _, _) = client.readdir(&root, (*cookie, zero), 1 << 20).unwrap();
        let rest: Vec<_> = rest.into_iter().map(|(name, _)| name).collect();
        assert_eq!(rest, all[n + 1..], "DIR-1");
    }
    let wrong = client.readdir(&root, (entries[3].1, cookieverf3([1; 8])), 4096);
    assert_eq!(wrong.map(drop), Err(nfsstat3::NFS3ERR_BAD_COOKIE));
    let file = client.lookup(&root, &long(1)).unwrap();
    assert_eq!(
        client.readdir(&file, (0, zero), 4096).map(drop),
        Err(nfsstat3::NFS3ERR_NOTDIR)
    );
}

/// A caller that may list a directory and not search it gets its names, and no more.
#[test]
fn names_alone_for_callers_that_may_not_search() {
    let served = serve(MemFs::new(), options());
    let mut root = served.client();
    let top = root.root.clone();
    let dir = root.mkdir(&top, "dir", mode(0o744)).unwrap();
    root.create(&dir, "file").unwrap();
    let mut user = Client::of(served.address(), crate::client::user(1000, 1000, &[]));
    let (entries, _) = user.readdirplus(&dir, 0, 4096).unwrap();
    let file = entries
        .iter()
        .find(|entry| text(entry.name.as_ref()) == "file")
        .unwrap();
    assert!(file.name_attributes.is_none() && file.name_handle.is_none());
    root.setattr(&dir, mode(0o711)).unwrap();
    assert_eq!(
        user.readdirplus(&dir, 0, 4096).map(drop),
        Err(nfsstat3::NFS3ERR_ACCES)
    );
}
