//! Each procedure, on a tree in memory and on a directory of the host.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use nfs3_types::nfs3::*;
use rcuwalk::Error;
use rcuwalk_memfs::MemFs;
use rcuwalk_nfs::{Listener, NOBODY, Server, Squash};
use rcuwalk_testkit::{Hooked, lacks_root};

use crate::client::{Client, Fh, fh, mode, user};
use crate::clients::{raw_call, reply};
use crate::served::{Served, host, memfs, options, serve};

/// Runs a test on both back ends.
fn on_both(test: impl Fn(&Served, Client)) {
    let served = memfs();
    test(&served, served.client());
    let dir = tempfile::tempdir().unwrap();
    let served = host(dir.path());
    test(&served, served.client());
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[test]
fn files_are_made_found_and_removed() {
    on_both(|_, mut client| {
        let root = client.root.clone();
        client.null();
        let dir = client.mkdir(&root, "dir", mode(0o750)).unwrap();
        let file = client.create(&dir, "file").unwrap();
        assert_eq!(client.lookup(&dir, "file").unwrap(), file);
        assert_eq!(client.create(&dir, "file"), Err(nfsstat3::NFS3ERR_EXIST));
        assert_eq!(client.lookup(&dir, "none"), Err(nfsstat3::NFS3ERR_NOENT));
        assert_eq!(client.lookup(&file, "x"), Err(nfsstat3::NFS3ERR_NOTDIR));
        let attr = client.getattr(&dir).unwrap();
        assert_eq!(
            (attr.type_, attr.mode, attr.nlink),
            (ftype3::NF3DIR, 0o750, 2)
        );
        let link = client.symlink(&root, "link", "dir/file").unwrap();
        assert_eq!(client.readlink(&link).unwrap(), b"dir/file");
        assert_eq!(client.readlink(&file), Err(nfsstat3::NFS3ERR_INVAL));
        client.link(&file, &root, "second").unwrap();
        assert_eq!(client.lookup(&root, "second").unwrap(), file);
        assert_eq!(client.getattr(&file).unwrap().nlink, 2);
        client.rename((&dir, "file"), (&root, "moved")).unwrap();
        assert_eq!(client.lookup(&root, "moved").unwrap(), file);
        assert_eq!(client.lookup(&dir, "file"), Err(nfsstat3::NFS3ERR_NOENT));
        assert_eq!(
            client.rmdir(&root, "moved").map(drop),
            Err(nfsstat3::NFS3ERR_NOTDIR)
        );
        assert_eq!(
            client.remove(&root, "dir").map(drop),
            Err(nfsstat3::NFS3ERR_ISDIR)
        );
        client.create(&dir, "inside").unwrap();
        assert_eq!(
            client.rmdir(&root, "dir").map(drop),
            Err(nfsstat3::NFS3ERR_NOTEMPTY)
        );
        client.remove(&dir, "inside").unwrap();
        client.rmdir(&root, "dir").unwrap();
        assert_eq!(client.getattr(&dir).map(drop), Err(nfsstat3::NFS3ERR_STALE));
        client.remove(&root, "moved").unwrap();
        assert_eq!(
            client.getattr(&file).unwrap().nlink,
            1,
            "by its second name"
        );
        client.remove(&root, "second").unwrap();
        assert_eq!(
            client.getattr(&file).map(drop),
            Err(nfsstat3::NFS3ERR_STALE)
        );
        let fifo = mknoddata3::NF3FIFO(mode(0o600));
        let fifo = client.mknod(&root, "fifo", fifo).unwrap();
        assert_eq!(client.getattr(&fifo).unwrap().type_, ftype3::NF3FIFO);
        assert_eq!(client.read(&fifo, 0, 1), Err(nfsstat3::NFS3ERR_INVAL));
        assert_eq!(
            sorted(client.list(&root, 4096)),
            [".", "..", "fifo", "link"]
        );
    });
}

/// WALK-3: no name leads out of the export.
#[test]
fn names_do_not_lead_out_of_the_export() {
    on_both(|_, mut client| {
        let root = client.root.clone();
        let dir = client.mkdir(&root, "dir", mode(0o755)).unwrap();
        client.symlink(&root, "out", "/..").unwrap();
        assert_eq!(client.lookup(&root, "..").unwrap(), root, "WALK-3");
        assert_eq!(client.lookup(&root, ".").unwrap(), root);
        assert_eq!(client.lookup(&dir, "..").unwrap(), root);
        for path in ["/..", "/dir/../..", "out", "/out/.."] {
            assert_eq!(client.mnt(path), Some(root.clone()), "WALK-3: {path}");
        }
        assert_eq!(client.mnt("/dir"), Some(dir.clone()));
        assert_eq!(client.mnt("/none"), None);
        for name in ["../..", "dir/..", "", "a\0b", "/"] {
            assert_eq!(
                client.lookup(&dir, name),
                Err(nfsstat3::NFS3ERR_INVAL),
                "{name:?}"
            );
            assert_eq!(
                client.create(&dir, name),
                Err(nfsstat3::NFS3ERR_INVAL),
                "{name:?}"
            );
        }
        let long = "x".repeat(256);
        assert_eq!(
            client.lookup(&dir, &long),
            Err(nfsstat3::NFS3ERR_NAMETOOLONG)
        );
        for name in [".", ".."] {
            assert_eq!(client.create(&dir, name), Err(nfsstat3::NFS3ERR_EXIST));
            assert_eq!(
                client.rmdir(&dir, name).map(drop),
                Err(nfsstat3::NFS3ERR_INVAL)
            );
            let moved = client.rename((&root, "out"), (&dir, name));
            assert_eq!(moved, Err(nfsstat3::NFS3ERR_INVAL));
        }
    });
}

#[test]
fn attributes_are_set_and_guarded() {
    on_both(|_, mut client| {
        let root = client.root.clone();
        let file = client.create(&root, "file").unwrap();
        let before = client.getattr(&file).unwrap();
        let time = nfstime3 {
            seconds: 1_000_000,
            nseconds: 5000,
        };
        let new = sattr3 {
            mode: Nfs3Option::Some(0o640),
            uid: Nfs3Option::Some(1),
            gid: Nfs3Option::Some(2),
            size: Nfs3Option::Some(9),
            atime: set_atime::SET_TO_CLIENT_TIME(time),
            mtime: set_mtime::SET_TO_CLIENT_TIME(time),
        };
        let wrong = Nfs3Option::Some(nfstime3 {
            seconds: 1,
            nseconds: 0,
        });
        let refused = client.setattr_guarded(&file, new.clone(), wrong);
        assert_eq!(refused.map(drop), Err(nfsstat3::NFS3ERR_NOT_SYNC));
        let right = Nfs3Option::Some(before.ctime);
        let around = client.setattr_guarded(&file, new, right).unwrap();
        let told = around.before.unwrap();
        assert_eq!(
            (told.size, told.mtime, told.ctime),
            (0, before.mtime, before.ctime)
        );
        let attr = client.getattr(&file).unwrap();
        let has = (
            attr.mode, attr.uid, attr.gid, attr.size, attr.atime, attr.mtime,
        );
        assert_eq!(has, (0o640, 1, 2, 9, time, time));
        let told = around.after.unwrap();
        assert_eq!((told.size, told.ctime), (9, attr.ctime));
    });
}

/// NFS-1: a change's attributes before it are those that the last change has left.
#[test]
fn a_change_names_the_attributes_before_it() {
    on_both(|_, mut client| {
        let root = client.root.clone();
        let how = |_| createhow3::GUARDED(mode(0o644));
        let mut last = None;
        for name in ["a", "b", "c"] {
            let made = client.create_how(&root, name, how(())).unwrap().dir_wcc;
            let before = made.before.unwrap();
            let is = (before.mtime, before.ctime);
            assert!(last.is_none_or(|last| last == is), "NFS-1");
            let after = made.after.unwrap();
            last = Some((after.mtime, after.ctime));
        }
        let gone = client.remove(&root, "a").unwrap();
        let before = gone.before.unwrap();
        assert_eq!(last, Some((before.mtime, before.ctime)), "NFS-1");
    });
}

#[test]
fn an_exclusive_create_is_known_again() {
    on_both(|_, mut client| {
        let root = client.root.clone();
        let how = |n: u8| createhow3::EXCLUSIVE(createverf3([n; 8]));
        let made = client
            .create_how(&root, "once", how(0xf7))
            .unwrap()
            .obj
            .unwrap();
        let again = client
            .create_how(&root, "once", how(0xf7))
            .unwrap()
            .obj
            .unwrap();
        assert_eq!(made, again);
        let other = client.create_how(&root, "once", how(0xf6));
        assert_eq!(other.map(drop), Err(nfsstat3::NFS3ERR_EXIST));
        client.setattr(&made, mode(0o600)).unwrap();
        client.write(&made, 0, b"x", stable_how::UNSTABLE).unwrap();
        let late = client.create_how(&root, "once", how(0xf7));
        assert_eq!(
            late.map(drop),
            Err(nfsstat3::NFS3ERR_EXIST),
            "it has contents"
        );
    });
}

#[test]
fn an_unchecked_create_takes_what_is_there() {
    on_both(|_, mut client| {
        let root = client.root.clone();
        let file = client.create(&root, "file").unwrap();
        client
            .write(&file, 0, b"hello", stable_how::FILE_SYNC)
            .unwrap();
        let how = |size| {
            createhow3::UNCHECKED(sattr3 {
                size,
                ..mode(0o600)
            })
        };
        let there = client
            .create_how(&root, "file", how(Nfs3Option::None))
            .unwrap();
        assert_eq!(there.obj.unwrap(), file);
        let attr = there.obj_attributes.unwrap();
        assert_eq!((attr.size, attr.mode), (5, 0o644));
        let cut = client
            .create_how(&root, "file", how(Nfs3Option::Some(0)))
            .unwrap();
        assert_eq!(cut.obj_attributes.unwrap().size, 0);
        client.mkdir(&root, "dir", mode(0o755)).unwrap();
        let dir = client.create_how(&root, "dir", how(Nfs3Option::None));
        assert_eq!(dir.map(drop), Err(nfsstat3::NFS3ERR_ISDIR));
    });
}

#[test]
fn callers_have_the_rights_of_their_users() {
    if lacks_root() {
        return;
    }
    on_both(|served, mut root| {
        let top = root.root.clone();
        root.setattr(&top, mode(0o777)).unwrap();
        let user_of = |uid, gid, gids: &[u32]| Client::of(served.address(), user(uid, gid, gids));
        let (mut anna, mut berta) = (user_of(1000, 1000, &[77]), user_of(2000, 2000, &[]));
        let dir = anna.mkdir(&top, "hers", mode(0o700)).unwrap();
        let file = anna.create(&dir, "file").unwrap();
        let attr = anna.getattr(&file).unwrap();
        assert_eq!((attr.uid, attr.gid), (1000, 1000));
        // A handle is no search permission for names below it, and needs none above it.
        assert_eq!(berta.lookup(&dir, "file"), Err(nfsstat3::NFS3ERR_ACCES));
        assert!(berta.read(&file, 0, 9).unwrap().1);
        let written = berta.write(&file, 0, b"x", stable_how::UNSTABLE);
        assert_eq!(written.map(drop), Err(nfsstat3::NFS3ERR_ACCES));
        assert_eq!(
            berta.setattr(&file, mode(0o666)).map(drop),
            Err(nfsstat3::NFS3ERR_PERM)
        );
        assert_eq!(
            berta.resize(&file, 5).map(drop),
            Err(nfsstat3::NFS3ERR_ACCES)
        );
        assert_eq!(berta.access(&file, 0x3f), Ok(ACCESS3_READ));
        assert_eq!(
            anna.access(&file, 0x3f),
            Ok(ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND)
        );
        assert_eq!(anna.access(&dir, 0x3f), Ok(0x1f));
        assert_eq!(berta.access(&dir, 0x3f), Ok(0));
        assert_eq!(berta.link(&file, &dir, "x"), Err(nfsstat3::NFS3ERR_ACCES));
        // To write to a directory takes to search it, for links as for other names.
        let open = anna.mkdir(&top, "open", mode(0o776)).unwrap();
        assert_eq!(berta.link(&file, &open, "x"), Err(nfsstat3::NFS3ERR_ACCES));
        assert_eq!(berta.create(&open, "x"), Err(nfsstat3::NFS3ERR_ACCES));
        anna.setattr(&open, mode(0o777)).unwrap();
        berta.link(&file, &open, "x").unwrap();
        // By a further group.
        let group = sattr3 {
            gid: Nfs3Option::Some(77),
            ..mode(0o640)
        };
        anna.setattr(&file, group).unwrap();
        let mut clara = user_of(3000, 3000, &[5, 77]);
        assert!(clara.read(&file, 0, 9).is_ok());
        assert_eq!(berta.read(&file, 0, 9), Err(nfsstat3::NFS3ERR_ACCES));
        // Owners read and write their files whatever the mode says.
        anna.setattr(&file, mode(0)).unwrap();
        anna.write(&file, 0, b"mine", stable_how::UNSTABLE).unwrap();
        anna.resize(&file, 2).unwrap();
        assert_eq!(anna.read(&file, 0, 9).unwrap().0, b"mi");
        // Programs are read to be executed.
        anna.setattr(&file, mode(0o711)).unwrap();
        assert_eq!(berta.read(&file, 0, 9).unwrap().0, b"mi");
        // The set-id bits go when another user than root writes.
        root.setattr(&file, mode(0o4777)).unwrap();
        berta.write(&file, 0, b"x", stable_how::UNSTABLE).unwrap();
        assert_eq!(root.getattr(&file).unwrap().mode, 0o777);
    });
}

#[test]
fn root_is_nobody_by_default() {
    if lacks_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let fs = rcuwalk_hostfs::HostFs::new(dir.path()).unwrap();
    let served = serve(fs, options().squash(Squash::Root));
    let mut root = served.client();
    let top = root.root.clone();
    let file = root.create(&top, "file").unwrap();
    let attr = root.getattr(&file).unwrap();
    assert_eq!((attr.uid, attr.gid), (NOBODY, NOBODY));
    let chown = sattr3 {
        uid: Nfs3Option::Some(0),
        ..sattr3::default()
    };
    assert_eq!(
        root.setattr(&file, chown).map(drop),
        Err(nfsstat3::NFS3ERR_PERM)
    );
    fs::write(dir.path().join("roots"), "x").unwrap();
    fs::set_permissions(
        dir.path().join("roots"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let roots = root.lookup(&top, "roots").unwrap();
    assert_eq!(root.read(&roots, 0, 1), Err(nfsstat3::NFS3ERR_ACCES));
    // uid 4294967295 is no user: as an owner it would leave the file root's.
    let mut none = Client::of(served.address(), user(u32::MAX, u32::MAX, &[]));
    let file = none.create(&top, "none").unwrap();
    assert_eq!(none.getattr(&file).unwrap().uid, NOBODY);
}

#[test]
fn a_read_only_export_takes_no_changes() {
    use rcuwalk::{Credentials, MountFlags};
    let served = memfs();
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    client
        .write(&file, 0, b"text", stable_how::FILE_SYNC)
        .unwrap();
    // The open file would keep the tree from becoming read-only.
    drop(served.server);
    let ctx = served.vfs.context(Credentials::root());
    served
        .vfs
        .remount(&ctx, "/", MountFlags::READ_ONLY)
        .unwrap();
    let listener = rcuwalk_nfs::Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = rcuwalk_nfs::Server::start(listener, served.vfs.clone(), options()).unwrap();
    let mut client = Client::new(server.address());
    assert_eq!(client.read(&file, 0, 9).unwrap(), (b"text".to_vec(), true));
    let rofs = nfsstat3::NFS3ERR_ROFS;
    assert_eq!(
        client.write(&file, 0, b"x", stable_how::UNSTABLE).map(drop),
        Err(rofs)
    );
    assert_eq!(client.create(&root, "new"), Err(rofs));
    assert_eq!(client.remove(&root, "file").map(drop), Err(rofs));
    assert_eq!(client.setattr(&file, mode(0o600)).map(drop), Err(rofs));
    assert_eq!(client.rename((&root, "file"), (&root, "x")), Err(rofs));
    assert_eq!(client.access(&file, 0x3f), Ok(ACCESS3_READ));
}

/// HANDLE-1: a handle that was not given out leads nowhere, and costs no file.
#[test]
fn forged_handles_are_stale() {
    let tries = rcuwalk_testkit::wait::setting("RCUWALK_HANDLE_TRIES", 5_000);
    on_both(|_, mut client| {
        let root = client.root.clone();
        let file = client.create(&root, "file").unwrap();
        let good = file.data.to_vec();
        let mut rng = rcuwalk_testkit::Rng::new(1);
        for _ in 0..tries {
            let mut bytes = good.clone();
            match rng.below(4) {
                0 => bytes.truncate(rng.below(good.len())),
                1 => bytes
                    .iter_mut()
                    .for_each(|byte| *byte = rng.below(256) as u8),
                2 => bytes.extend(std::iter::repeat_n(7, 1 + rng.below(64 - good.len()))),
                _ => bytes[rng.below(good.len())] ^= 1 << rng.below(8),
            }
            if bytes == good {
                continue;
            }
            let got = client.getattr(&fh(&bytes)).map(drop);
            assert_eq!(got, Err(nfsstat3::NFS3ERR_STALE), "HANDLE-1: {bytes:?}");
        }
        assert!(client.getattr(&file).is_ok());
    });
}

#[test]
fn limits_are_told() {
    on_both(|_, mut client| {
        let info = client.fsinfo();
        assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
        assert_eq!(
            info.properties,
            FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME
        );
        let stat = client.fsstat();
        assert!(stat.tbytes >= stat.fbytes && stat.fbytes >= stat.abytes);
        let conf = client.pathconf();
        assert_eq!(
            (conf.name_max, conf.no_trunc, conf.case_insensitive),
            (255, true, false)
        );
    });
}

/// HANDLE-1: a handle is good after a restart, and says nothing to a server with another key.
#[test]
fn handles_outlive_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let of = |options| serve(rcuwalk_hostfs::HostFs::new(dir.path()).unwrap(), options);
    let served = host(dir.path());
    let mut client = served.client();
    let root = client.root.clone();
    let sub = client.mkdir(&root, "sub", mode(0o755)).unwrap();
    let file: Fh = client.create(&sub, "file").unwrap();
    drop(served);
    fs::rename(dir.path().join("sub"), dir.path().join("elsewhere")).unwrap();
    let again = of(options());
    let mut client = again.client();
    assert!(client.getattr(&sub).is_ok() && client.lookup(&sub, "file") == Ok(file.clone()));
    drop(again);
    fs::remove_file(dir.path().join("elsewhere/file")).unwrap();
    fs::write(dir.path().join("elsewhere/file"), "another").unwrap();
    let again = of(options());
    let mut client = again.client();
    assert_eq!(
        client.getattr(&file).map(drop),
        Err(nfsstat3::NFS3ERR_STALE),
        "HANDLE-1"
    );
    drop(again);
    let mut other = options();
    other.key = rcuwalk::HandleKey::new([8; 16]);
    let other = of(other);
    let mut client = other.client();
    assert_eq!(
        client.getattr(&sub).map(drop),
        Err(nfsstat3::NFS3ERR_STALE),
        "HANDLE-1"
    );
}

/// A back end that finds files by their paths alone: the root's handle is good all the same, when it
/// has left the table, and after a restart.
#[test]
fn the_root_is_always_found() {
    let fs = Hooked::new(MemFs::new(), |call| match call.method {
        "open_handle" => Err(Error::Stale),
        _ => Ok(()),
    });
    let mut served = serve(fs, options().max_files(64));
    let mut client = served.client();
    let root = client.root.clone();
    let mut files = Vec::new();
    for n in 0..300 {
        files.push(client.create(&root, &n.to_string()).expect("the root"));
    }
    served.server.stop();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let again = Server::start(listener, served.vfs.clone(), options()).unwrap();
    // It does not mount again.
    let mut socket = TcpStream::connect(again.address()).unwrap();
    let mut getattr = |file: &Fh| {
        let len = file.data.len() as u32;
        let mut args = [&len.to_be_bytes()[..], &file.data].concat();
        args.resize(args.len().next_multiple_of(4), 0);
        socket.write_all(&raw_call(1, 100_003, 1, &args)).unwrap();
        let reply = reply(&mut socket);
        u32::from_be_bytes(*reply[24..].first_chunk().unwrap())
    };
    assert_eq!(getattr(&files[0]), nfsstat3::NFS3ERR_STALE as u32);
    assert_eq!(getattr(&root), 0, "the root");
    let found = Client::new(again.address()).lookup(&root, "0");
    assert_eq!(found.as_ref(), Ok(&files[0]));
    assert_eq!(getattr(&files[0]), 0);
}
