//! Contents: written, appended, allocated, sought, and kept when the last name goes.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::back_end::{BackEnd, assert_published, errno, host_errno, name, with_back_end};
use rcuwalk::{
    Allocate, At, Error, FileSystem, FileType, Inode, InodeRef, NewFile, OpenFlags, SeekTo, SetAttr,
};
use rcuwalk_hostfs::HostFs;
use rustix::fs::{FallocateFlags, SeekFrom};

fn in_scratch(fill: impl Fn(&Path), test: impl FnOnce(&BackEnd<'_>) + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let fs = HostFs::new(dir.path()).unwrap();
    with_back_end(dir.path(), fs, move |t| test(&t));
}

fn one_file(dir: &Path) {
    fs::write(dir.join("file"), b"0123456789").unwrap();
}

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// EDGE-1: written data is on the host, and the inode knows its size and times.
#[test]
fn writes_are_published() {
    in_scratch(one_file, |t| {
        let inode = t.find("file");
        let file = t.open("file", &inode, BOTH).0;
        let before = inode.attr();
        assert_eq!(file.write_at(&inode, b"abc", 3).unwrap(), 3);
        assert_eq!(fs::read(t.host("file")).unwrap(), b"012abc6789");
        assert!(inode.attr().mtime > before.mtime, "EDGE-1");
        assert_published(&inode, &t.host("file"));
        assert_eq!(file.write_at(&inode, b"far", 1 << 20).unwrap(), 3);
        assert_eq!(inode.attr().size, (1 << 20) + 3, "EDGE-1: a hole before it");
        assert_published(&inode, &t.host("file"));
        assert_eq!(file.write_at(&inode, b"", 5).unwrap(), 0);

        let read_only = t.open("file", &inode, OpenFlags::READ).0;
        let refused = read_only.write_at(&inode, b"x", 0);
        assert!(matches!(refused, Err(Error::BadDescriptor)), "EDGE-1");
        let write_only = t.open("file", &inode, OpenFlags::WRITE).0;
        let refused = write_only.read_at(&mut [0], 0);
        assert!(matches!(refused, Err(Error::BadDescriptor)), "EDGE-1");
        let too_far = file.write_at(&inode, b"x", u64::MAX >> 1);
        let host = OpenOptions::new().write(true).open(t.host("file")).unwrap();
        let hosts = rustix::io::pwrite(&host, b"x", u64::MAX >> 1);
        assert_eq!(errno(too_far), host_errno(hosts), "EDGE-1");
    });
}

/// EDGE-1: an append goes to the end of the host's file, even where the VFS has another size.
#[test]
fn appending_overwrites_nothing() {
    in_scratch(one_file, |t| {
        let inode = t.find("file");
        for sync in [OpenFlags::empty(), OpenFlags::SYNC, OpenFlags::DSYNC] {
            let flags = OpenFlags::WRITE | OpenFlags::APPEND | sync;
            let file = t.open("file", &inode, flags).0;
            let end = inode.attr().size;
            let host = OpenOptions::new().append(true).open(t.host("file"));
            std::io::Write::write_all(&mut host.unwrap(), b"host").unwrap();
            assert_eq!(file.write_at(&inode, b"ours", end).unwrap(), 4);
            assert!(fs::read(t.host("file")).unwrap().ends_with(b"hostours"));
            assert_published(&inode, &t.host("file"));
            file.sync(false).unwrap();
            file.sync(true).unwrap();
        }
    });
}

/// EDGE-1: ranges are allocated, zeroed and punched as on the host, and holes are found.
#[test]
fn space_is_allocated_and_found() {
    const PAGE: u64 = 4096;
    let fill = |dir: &Path| {
        for file in ["file", "twin"] {
            let file = fs::File::create(dir.join(file)).unwrap();
            file.write_all_at(&[7; 16 * PAGE as usize], 0).unwrap();
            file.set_len(32 * PAGE).unwrap();
        }
    };
    in_scratch(fill, |t| {
        let inode = t.find("file");
        let file = t.open("file", &inode, BOTH).0;
        let twin = OpenOptions::new()
            .read(true)
            .write(true)
            .open(t.host("twin"))
            .unwrap();
        for (how, offset, len) in [
            (Allocate::PUNCH_HOLE | Allocate::KEEP_SIZE, 2 * PAGE, PAGE),
            (Allocate::ZERO_RANGE, 5 * PAGE, PAGE),
            (Allocate::ZERO_RANGE | Allocate::KEEP_SIZE, 40 * PAGE, PAGE),
            (Allocate::empty(), 33 * PAGE, PAGE),
            (Allocate::KEEP_SIZE, 50 * PAGE, PAGE),
            (Allocate::empty(), u64::MAX >> 1, 2),
            (Allocate::PUNCH_HOLE, 0, PAGE),
        ] {
            let ours = file.allocate(&inode, how, offset, len);
            let flags = FallocateFlags::from_bits_retain(how.bits());
            let host = rustix::fs::fallocate(&twin, flags, offset, len);
            assert_eq!(errno(ours), host_errno(host), "EDGE-1: {how:?}");
            assert_eq!(
                inode.attr().size,
                twin.metadata().unwrap().len(),
                "EDGE-1: {how:?}"
            );
            assert_published(&inode, &t.host("file"));
        }
        for page in 0..35 {
            let offset = page * PAGE;
            for (to, seek) in [
                (SeekTo::Data, SeekFrom::Data(offset)),
                (SeekTo::Hole, SeekFrom::Hole(offset)),
            ] {
                let ours = file.seek(offset, to).unwrap();
                let host = rustix::fs::seek(&twin, seek).ok();
                assert_eq!(ours, host, "EDGE-1: {to:?} from page {page}");
            }
        }
    });
}

/// INODE-1: a file whose last name has gone is written, read and changed on.
#[test]
fn an_unlinked_file_lives_on() {
    in_scratch(one_file, |t| {
        let inode = t.find("file");
        let file = t.open("file", &inode, BOTH).0;
        t.fs.unlink(&t.by, t.root, name("file"), &inode).unwrap();
        assert_eq!(inode.attr().nlink, 0);
        file.write_at(&inode, b"more", 10).unwrap();
        assert_eq!(inode.attr().size, 14, "INODE-1");
        // The name is another file's by now, and so the path leads to that one.
        fs::write(t.host("file"), b"another").unwrap();
        let at = t.at("file", &inode).open(&*file);
        let change = SetAttr::default().mode(0o600).size(2);
        t.fs.setattr(&t.by, &at, &change).unwrap();
        assert_eq!((inode.attr().size, inode.attr().mode), (2, 0o600));
        assert_eq!(fs::read(t.host("file")).unwrap(), b"another", "INODE-1");
        let again = t.fs.open(&t.by, &at, OpenFlags::READ).unwrap();
        let mut buf = [0; 8];
        assert_eq!(again.read_at(&mut buf, 0).unwrap(), 2, "INODE-1");
        let link = t.fs.link(&t.by, &at, t.root, name("no"));
        assert!(matches!(link, Err(Error::NotFound)), "EDGE-1: {link:?}");
    });
}

/// WATCH-1: a truncation does not wait until another process gives up its lease on the file,
/// whatever the size.
#[test]
fn a_truncation_does_not_wait_for_a_lease() {
    in_scratch(one_file, |t| {
        // F_SETLEASE, F_RDLCK; kept until stdin ends.
        let take = "$SIG{IO} = 'IGNORE'; open(F, '<', $ARGV[0]) && fcntl(F, 1024, 0) || exit 1;
            syswrite(STDOUT, 'x'); sysread(STDIN, $_, 1)";
        let mut holder = Command::new("perl");
        let holder = holder.args(["-e", take]).arg(t.host("file"));
        let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut holder) = holder else {
            eprintln!("no perl: skipped");
            return;
        };
        let mut told = [0];
        if holder.stdout.take().unwrap().read(&mut told).unwrap() == 0 {
            holder.wait().unwrap();
            eprintln!("no leases: skipped");
            return;
        }
        let inode = t.find("file");
        for size in [10, 3] {
            let change = SetAttr::default().size(size);
            let done = t.fs.setattr(&t.by, &t.at("file", &inode), &change);
            assert!(matches!(done, Err(Error::Busy)), "WATCH-1: {done:?}");
        }
        drop(holder.stdin.take());
        holder.wait().unwrap();
        let change = SetAttr::default().size(10);
        let at = t.at("file", &inode);
        t.fs.setattr(&t.by, &at, &change).unwrap();
    });
}

fn nameless<'a>(inode: &'a Inode) -> At<'a> {
    At::new(inode)
}

fn make_nameless(t: &BackEnd<'_>, mode: u16) -> InodeRef {
    let new = NewFile::new(FileType::Regular, mode)
        .uid(rustix::process::geteuid().as_raw())
        .gid(rustix::process::getegid().as_raw());
    t.fs.tmpfile(&t.by, t.root, &new).unwrap()
}

/// EDGE-1: a file without a name is opened, written and given one, whatever its mode.
#[test]
fn a_nameless_file_gets_a_name() {
    in_scratch(one_file, |t| {
        for mode in [0, 0o666] {
            let inode = make_nameless(t, mode);
            assert_eq!((inode.attr().mode, inode.attr().nlink), (mode, 0), "EDGE-1");
            let at = nameless(&inode);
            let file = t.fs.open(&t.by, &at, BOTH).unwrap();
            file.write_at(&inode, b"text", 0).unwrap();
            assert_eq!(fs::read_dir(t.host("")).unwrap().count(), 1, "EDGE-1");
            let taken = t.fs.link(&t.by, &at, t.root, name("file"));
            assert!(matches!(taken, Err(Error::Exists)), "EDGE-1");
            t.fs.link(&t.by, &at, t.root, name("new")).unwrap();
            assert_published(&inode, &t.host("new"));
            fs::set_permissions(t.host("new"), PermissionsExt::from_mode(0o600)).unwrap();
            assert_eq!(fs::read(t.host("new")).unwrap(), b"text", "EDGE-1");
            assert!(std::ptr::eq(&*t.find("new"), &*inode), "INODE-1");
            t.fs.unlink(&t.by, t.root, name("new"), &inode).unwrap();
            t.by.sb.unhash(&inode);
        }
    });
}

/// EDGE-1: how full the host is.
#[test]
fn statfs_is_the_hosts() {
    in_scratch(one_file, |t| {
        let ours = t.fs.statfs(t.by.sb).unwrap();
        let host = rustix::fs::statfs(t.host("")).unwrap();
        assert_eq!(ours.kind, host.f_type as u64, "EDGE-1");
        assert_eq!((ours.blocks, ours.files), (host.f_blocks, host.f_files));
        assert_eq!(u64::from(ours.block_size), host.f_bsize as u64);
        assert_eq!(u64::from(ours.name_max), host.f_namelen as u64);
    });
}
