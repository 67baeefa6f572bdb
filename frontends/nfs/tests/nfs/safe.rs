//! What clients are told is safe: after the back end has said so, and not before.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::*;
use rcuwalk::Error;
use rcuwalk_memfs::MemFs;
use rcuwalk_testkit::{Hooked, StopOnDrop, wait_until};

use crate::client::{Client, Fh, mode};
use crate::served::{Served, options, serve};

/// A tree that counts how often it is to make something safe.
struct Counted {
    served: Served,
    files: Arc<AtomicUsize>,
    dirs: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
}

fn counted(options: rcuwalk_nfs::Options) -> Counted {
    let (files, dirs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let fails = Arc::new(AtomicBool::new(false));
    let fs = {
        let (files, dirs, fails) = (files.clone(), dirs.clone(), fails.clone());
        Hooked::new(MemFs::new(), move |call| {
            match call.method {
                "sync" => files.fetch_add(1, Relaxed),
                "sync_dir" => dirs.fetch_add(1, Relaxed),
                _ => return Ok(()),
            };
            match fails.load(Relaxed) {
                true => Err(Error::NoSpace),
                false => Ok(()),
            }
        })
    };
    let served = serve(fs, options);
    Counted {
        served,
        files,
        dirs,
        fails,
    }
}

impl Counted {
    /// How many files and directories were made safe by `work`.
    fn by(&self, work: impl FnOnce()) -> (usize, usize) {
        let now = || (self.files.load(Relaxed), self.dirs.load(Relaxed));
        let before = now();
        work();
        (now().0 - before.0, now().1 - before.1)
    }
}

/// Each change, with the number of files and directories that it makes safe.
fn changes(tree: &Counted, client: &mut Client) -> Vec<(usize, usize)> {
    let root = client.root.clone();
    let mut file: Fh = root.clone();
    let size = Nfs3Option::Some(5);
    let with_size = createhow3::GUARDED(sattr3 {
        size,
        ..mode(0o644)
    });
    let again = createhow3::UNCHECKED(sattr3 {
        size,
        ..mode(0o644)
    });
    vec![
        tree.by(|| file = client.create(&root, "file").unwrap()),
        tree.by(|| _ = client.create_how(&root, "sized", with_size).unwrap()),
        tree.by(|| _ = client.create_how(&root, "sized", again).unwrap()),
        tree.by(|| _ = client.mkdir(&root, "dir", mode(0o755)).unwrap()),
        tree.by(|| _ = client.symlink(&root, "link", "file").unwrap()),
        tree.by(|| client.link(&file, &root, "second").unwrap()),
        tree.by(|| client.rename((&root, "second"), (&root, "third")).unwrap()),
        tree.by(|| _ = client.remove(&root, "third").unwrap()),
        tree.by(|| _ = client.rmdir(&root, "dir").unwrap()),
        tree.by(|| _ = client.setattr(&file, mode(0o600)).unwrap()),
        tree.by(|| _ = client.resize(&file, 9).unwrap()),
        tree.by(|| _ = client.setattr(&root, mode(0o700)).unwrap()),
    ]
}

/// NFS-2: a change is on disk when it is answered.
#[test]
fn changes_are_safe_unless_that_is_given_up() {
    let tree = counted(options());
    let mut client = tree.served.client();
    let (file, dir, both) = ((1, 0), (0, 1), (1, 1));
    let expected = [
        dir, both, both, dir, dir, dir, dir, dir, dir, file, file, dir,
    ];
    assert_eq!(changes(&tree, &mut client), expected, "NFS-2");
    let root = client.root.clone();
    let sub = client.mkdir(&root, "sub", mode(0o755)).unwrap();
    let moved = tree.by(|| client.rename((&root, "file"), (&sub, "file")).unwrap());
    assert_eq!(moved, (0, 2), "NFS-2: both directories");

    let tree = counted(options().sync(false));
    let mut client = tree.served.client();
    assert_eq!(changes(&tree, &mut client), [(0, 0); 12]);
    // Not so data.
    let root = client.root.clone();
    let file = client.lookup(&root, "file").unwrap();
    let write = |client: &mut Client, stable| _ = client.write(&file, 0, b"x", stable).unwrap();
    assert_eq!(tree.by(|| write(&mut client, stable_how::UNSTABLE)), (0, 0));
    assert_eq!(
        tree.by(|| write(&mut client, stable_how::DATA_SYNC)),
        (1, 0),
        "NFS-2"
    );
    assert_eq!(
        tree.by(|| write(&mut client, stable_how::FILE_SYNC)),
        (1, 0),
        "NFS-2"
    );
    assert_eq!(
        tree.by(|| _ = client.commit(&file).unwrap()),
        (1, 0),
        "NFS-2"
    );
}

/// NFS-2: while the back end makes data safe, its client waits.
#[test]
fn a_commit_is_answered_after_it_was_made() {
    let (asked, goes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(true)),
    );
    let fs = {
        let (asked, goes) = (asked.clone(), goes.clone());
        Hooked::new(MemFs::new(), move |call| {
            if call.method == "sync" {
                asked.store(true, Relaxed);
                wait_until("the test lets it go on", || goes.load(Relaxed));
            }
            Ok(())
        })
    };
    let served = serve(fs, options());
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    let work: [&(dyn Fn(&mut Client) + Sync); 2] =
        [&|client| _ = client.commit(&file).unwrap(), &|client| {
            _ = client.write(&file, 0, b"x", stable_how::FILE_SYNC).unwrap()
        }];
    for work in work {
        let is_answered = AtomicBool::new(false);
        asked.store(false, Relaxed);
        goes.store(false, Relaxed);
        thread::scope(|scope| {
            let release = StopOnDrop(&goes);
            scope.spawn(|| {
                work(&mut served.client());
                is_answered.store(true, Relaxed);
            });
            wait_until("the back end is asked", || asked.load(Relaxed));
            // Other calls are answered meanwhile.
            client.getattr(&file).unwrap();
            assert!(!is_answered.load(Relaxed), "NFS-2");
            drop(release);
        });
        assert!(is_answered.load(Relaxed));
    }
}

/// NFS-2: a failure is told to the client that asked, and to the others by the verifier.
#[test]
fn a_failure_to_make_data_safe_changes_the_verifier() {
    let tree = counted(options().sync(false));
    let mut client = tree.served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    let first = client
        .write(&file, 0, b"x", stable_how::UNSTABLE)
        .unwrap()
        .verf;
    tree.fails.store(true, Relaxed);
    assert_eq!(client.commit(&file), Err(nfsstat3::NFS3ERR_NOSPC), "NFS-2");
    tree.fails.store(false, Relaxed);
    let second = tree.served.client().commit(&file).unwrap();
    assert_ne!(first, second, "NFS-2");
    tree.fails.store(true, Relaxed);
    let written = client.write(&file, 0, b"x", stable_how::FILE_SYNC);
    assert_eq!(written.map(drop), Err(nfsstat3::NFS3ERR_NOSPC), "NFS-2");
    tree.fails.store(false, Relaxed);
    assert_ne!(client.commit(&file).unwrap(), second, "NFS-2");
}

/// NFS-2: the host tells of a failure once. A client that asks while another one is being told learns
/// of it, too: it has written before.
#[test]
fn a_failure_that_another_client_is_told_of_counts() {
    let (fails, is_told, is_answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let fs = {
        let (fails, is_told, is_answered) = (fails.clone(), is_told.clone(), is_answered.clone());
        Hooked::new(MemFs::new(), move |call| {
            if call.method != "sync" || !fails.swap(false, Relaxed) {
                return Ok(());
            }
            is_told.store(true, Relaxed);
            // The other client may have to wait for this one, so this one does not wait for ever.
            let begin = Instant::now();
            while !is_answered.load(Relaxed) && begin.elapsed() < Duration::from_millis(300) {
                thread::yield_now();
            }
            Err(Error::NoSpace)
        })
    };
    let served = serve(fs, options());
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    let mut while_another_is_told = |work: &dyn Fn(&mut Client)| {
        is_told.store(false, Relaxed);
        is_answered.store(false, Relaxed);
        fails.store(true, Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                let done = served.client().commit(&file);
                assert_eq!(done, Err(nfsstat3::NFS3ERR_NOSPC));
            });
            wait_until("the other one is told", || is_told.load(Relaxed));
            work(&mut client);
            is_answered.store(true, Relaxed);
        });
    };
    let write = |client: &mut Client, stable| client.write(&file, 0, b"x", stable);
    let written = write(&mut served.client(), stable_how::UNSTABLE).unwrap();
    while_another_is_told(&|client| {
        assert_ne!(client.commit(&file), Ok(written.verf), "NFS-2");
    });
    while_another_is_told(&|client| {
        let done = write(client, stable_how::FILE_SYNC).map(drop);
        assert_eq!(done, Err(nfsstat3::NFS3ERR_IO), "NFS-2");
    });
    write(&mut client, stable_how::FILE_SYNC).unwrap();
}

/// NFS-3: a change that was made is made once, whatever follows it.
#[test]
fn what_follows_a_change_does_not_repeat_it() {
    let failure = Arc::new(Mutex::new((0, Error::Stale)));
    let fs = {
        let failure = failure.clone();
        Hooked::new(MemFs::new(), move |call| {
            let (times, error) = &mut *failure.lock().unwrap();
            if call.method != "sync_dir" || *times == 0 {
                return Ok(());
            }
            *times -= 1;
            Err(error.clone())
        })
    };
    let served = serve(fs, options());
    let mut client = served.client();
    let root = client.root.clone();
    let mut changes = |times: usize, error: &Error| {
        let fail = || *failure.lock().unwrap() = (times, error.clone());
        fail();
        let how = createhow3::GUARDED(mode(0o644));
        let created = client.create_how(&root, "file", how).map(drop);
        fail();
        let removed = client.remove(&root, "file").map(drop);
        *failure.lock().unwrap() = (0, Error::Stale);
        assert_eq!(client.list(&root, 4096), [".", ".."], "NFS-3: {error}");
        (created, removed)
    };
    for error in [Error::Stale, Error::TooManyOpenFiles] {
        assert_eq!(changes(1, &error), (Ok(()), Ok(())), "NFS-3: {error}");
        let io = || Err(nfsstat3::NFS3ERR_IO);
        assert_eq!(changes(9, &error), (io(), io()), "NFS-3: {error}");
    }
    let nothing_to_sync = Error::Invalid;
    assert_eq!(changes(9, &nothing_to_sync), (Ok(()), Ok(())));
}

/// A daemon that is not root may not open each file: changes of attributes succeed all the same.
#[test]
fn attributes_are_set_where_the_daemon_may_not_open_the_file() {
    let fs = Hooked::new(MemFs::new(), |call| {
        let mode = call.inode.map(|inode| inode.attr().mode);
        match (call.method, mode) {
            ("open", Some(mode)) if mode & 0o600 == 0 => Err(Error::PermissionDenied),
            _ => Ok(()),
        }
    });
    let served = serve(fs, options());
    let mut client = served.client();
    let root = client.root.clone();
    let how = || createhow3::EXCLUSIVE(createverf3([7; 8]));
    for _ in 0..2 {
        let made = client.create_how(&root, "once", how()).unwrap();
        assert!(made.obj.is_some());
    }
    let file = client.create(&root, "file").unwrap();
    client.setattr(&file, mode(0)).unwrap();
    assert_eq!(client.getattr(&file).unwrap().mode & 0o777, 0);
}
