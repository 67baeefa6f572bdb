//! Listings that the kernel keeps, and never shows when they are stale.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, SystemTime};

use crate::common::{Mount, Watchdog, can_mount, on_each};
use rcuwalk::{
    At, Attr, Caller, Emit, Error, FileHandle, FileSystem, FileType, Freshness, Iget, Inode,
    InodeFill, InodeKey, InodeRef, Name, OpenFlags, RawEntry, Result, SuperBlock, Timestamp, Vfs,
};
use rcuwalk_fuse::Options;
use rcuwalk_hostfs::HostFs;
use rcuwalk_testkit::{Unmount, wait_until};
use rustix::fs::Dir;
use rustix::mount::mount_bind;

/// Longer than a directory must be unchanged for its listing to be kept.
const REST: Duration = Duration::from_millis(250);

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

/// The number of READDIRPLUS and READDIR requests so far.
fn asked(mount: &Mount) -> u64 {
    let statistics = mount.mounted.observer().statistics().unwrap();
    let operations = statistics.operations.iter();
    let listings = operations.filter(|op| op.name.starts_with("readdir"));
    listings.map(|op| op.count()).sum()
}

#[test]
fn a_listing_of_what_is_left_alone_is_asked_for_once() {
    on_each(|mount| {
        let dir = mount.path().join("d");
        fs::create_dir(&dir).unwrap();
        for n in 0..2000 {
            File::create(dir.join(format!("f{n}"))).unwrap();
        }
        sleep(REST);
        let first = names(&dir);
        assert_eq!(first.len(), 2000);
        let before = asked(mount);
        assert!(before > 0, "the operations are counted by these names");
        for _ in 0..10 {
            // By then the previous handle is closed: one at a time has it for keeping.
            sleep(Duration::from_millis(20));
            assert_eq!(names(&dir), first);
        }
        assert_eq!(asked(mount), before, "the kernel has it");
        // A change of any kind through the mount shows at once.
        fs::rename(dir.join("f1"), dir.join("g1")).unwrap();
        assert!(names(&dir).contains("g1") && !names(&dir).contains("f1"));
        fs::remove_file(dir.join("g1")).unwrap();
        assert_eq!(names(&dir).len(), 1999);
    });
}

/// FRESH-1: without any caching, each change on the host shows in the next listing, however
/// close the changes are to each other and to the listings.
#[test]
fn two_changes_within_a_tick_are_both_seen() {
    if !can_mount() {
        return;
    }
    let backing = tempfile::tempdir().unwrap();
    let behind = backing.path().join("d");
    fs::create_dir(&behind).unwrap();
    let host = HostFs::new(backing.path()).unwrap();
    let vfs = Vfs::new(host.with_freshness(Freshness::EachUse)).unwrap();
    let nothing = Options::default()
        .entry_timeout(Duration::ZERO)
        .attr_timeout(Duration::ZERO);
    let mount = Mount::with(vfs, Some(backing), "hostfs", &nothing);
    let dir = mount.path().join("d");
    let make = |name: &str| drop(File::create(behind.join(name)).unwrap());
    for round in 0..12 {
        sleep(REST);
        // Opened while it is at rest, changed before it is listed and right afterwards.
        let open = File::open(&dir).unwrap();
        make(&format!("before{round}"));
        let listed = Dir::read_from(&open).unwrap().count();
        make(&format!("after{round}"));
        assert_eq!(listed, 2 + 2 * round + 1, "FRESH-1: round {round}");
        assert_eq!(names(&dir), names(&behind), "FRESH-1: round {round}");
        // Then many changes.
        for n in 0..50 {
            make("here and gone");
            assert!(names(&dir).contains("here and gone"), "FRESH-1: {n}");
            fs::remove_file(behind.join("here and gone")).unwrap();
            assert!(!names(&dir).contains("here and gone"), "FRESH-1: {n}");
        }
    }
}

/// FRESH-1: as with rsync -t, tar -x or cp -a, the mtime of a directory is set back after a
/// change in it.
#[test]
fn a_change_that_is_hidden_from_the_mtime_is_seen() {
    if !can_mount() {
        return;
    }
    let mount = Mount::hostfs();
    let behind = mount.backing.as_ref().unwrap().path().join("d");
    fs::create_dir(&behind).unwrap();
    File::create(behind.join("a")).unwrap();
    let then = SystemTime::now() - Duration::from_millis(10_123);
    let put_back = || File::open(&behind).unwrap().set_modified(then).unwrap();
    put_back();
    let dir = mount.path().join("d");
    for _ in 0..3 {
        assert_eq!(names(&dir).len(), 1);
    }
    File::create(behind.join("b")).unwrap();
    put_back();
    // Longer than the timeouts of the kernel and the back end.
    sleep(Duration::from_millis(2500));
    assert_eq!(names(&dir), names(&behind), "FRESH-1");
}

/// A root with `slow`, whose lookup takes a while; and later with `new` before it.
struct Late(Arc<Mutex<State>>);

struct State {
    has_new: bool,
    mtime: Timestamp,
    delay: Duration,
    /// The first listing has come to `slow`.
    has_listed: bool,
}

fn now() -> Timestamp {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    Timestamp {
        sec: now.as_secs().cast_signed(),
        nsec: now.subsec_nanos().max(1),
    }
}

impl Late {
    fn attr(&self, ino: u64) -> Attr {
        match ino {
            2 => Attr::new(ino, FileType::Directory, 0o755).mtime(self.0.lock().unwrap().mtime),
            _ => Attr::new(ino, FileType::Regular, 0o666),
        }
    }

    fn iget(&self, sb: &SuperBlock, ino: u64) -> Result<InodeRef> {
        Ok(match sb.iget(InodeKey::new(ino))? {
            Iget::Cached(inode) => inode,
            Iget::New(new) => new.init(InodeFill::new(self.attr(ino))),
        })
    }
}

impl FileSystem for Late {
    fn name(&self) -> &str {
        "late"
    }
    fn freshness(&self) -> Freshness {
        Freshness::EachUse
    }
    fn root(&self, sb: &SuperBlock) -> Result<InodeRef> {
        self.iget(sb, 2)
    }
    fn refresh(&self, _: &SuperBlock, inode: &Inode) -> Result<()> {
        inode.set_attr(&self.attr(inode.attr().ino));
        Ok(())
    }
    fn lookup(&self, sb: &SuperBlock, _: &Inode, name: Name<'_>) -> Result<Option<InodeRef>> {
        let ino = match name.as_bytes() {
            b"new" if self.0.lock().unwrap().has_new => {
                let delay = self.0.lock().unwrap().delay;
                thread::sleep(delay);
                3
            }
            b"slow" => {
                let delay = {
                    let mut state = self.0.lock().unwrap();
                    state.has_listed = true;
                    state.delay
                };
                thread::sleep(delay);
                4
            }
            _ => return Ok(None),
        };
        self.iget(sb, ino).map(Some)
    }
    fn read_link(&self, _: &SuperBlock, _: &Inode) -> Result<Box<[u8]>> {
        Err(Error::Invalid)
    }
    fn read_dir(&self, _: &SuperBlock, _: &Inode, from: u64, emit: &mut dyn Emit) -> Result<()> {
        let has_new = self.0.lock().unwrap().has_new;
        for (name, ino, next) in [(&b"new"[..], 3, 10), (b"slow", 4, 20)] {
            if next > from && (has_new || next != 10) {
                let entry = RawEntry {
                    name,
                    ino,
                    kind: Some(FileType::Regular),
                    next,
                };
                if emit.entry(entry).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
    fn open(&self, _: &Caller<'_>, _: &At<'_>, _: OpenFlags) -> Result<Box<dyn FileHandle>> {
        Err(Error::NotSupported)
    }
}

/// FRESH-1: two threads list at once, and an entry is added behind the mount: the kernel would
/// record the new mtime for the second listing, and keep the first one, which is older.
#[test]
fn two_who_list_at_once() {
    if !can_mount() {
        return;
    }
    let old = now();
    let state = Arc::new(Mutex::new(State {
        has_new: false,
        mtime: Timestamp {
            sec: old.sec - 100,
            nsec: 5,
        },
        delay: Duration::from_millis(900),
        has_listed: false,
    }));
    let options = Options::default()
        .entry_timeout(Duration::ZERO)
        .attr_timeout(Duration::ZERO)
        .threads(4);
    let vfs = Vfs::new(Late(state.clone())).unwrap();
    let mount = Mount::with(vfs, None, "late", &options);
    let at = mount.path().to_owned();
    let first = thread::spawn({
        let at = at.clone();
        move || names(&at)
    });
    wait_until("the first listing", || state.lock().unwrap().has_listed);
    {
        let mut state = state.lock().unwrap();
        state.has_new = true;
        state.mtime = now();
    }
    thread::sleep(Duration::from_millis(400));
    // Long after the change: the next open is told that the directory is at rest.
    let both = BTreeSet::from(["new".to_owned(), "slow".to_owned()]);
    assert_eq!(names(&at), both, "FRESH-1: the second");
    assert_eq!(first.join().unwrap().len(), 1, "it began before");
    state.lock().unwrap().delay = Duration::ZERO;
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(names(&at), both, "FRESH-1: whoever lists it later");
}

/// DIR-1: a directory that cannot be looked up (another user's FUSE mount, one whose server is
/// gone) is listed, and so are the entries after it.
#[test]
fn a_broken_entry_is_listed_and_ends_no_listing() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let at = |name: &str| source.path().join(name);
    for n in 0..50 {
        fs::write(at(&format!("file-{n}")), "").unwrap();
    }
    let (dead, private) = (at("dead"), at("private"));
    let mut servers = Vec::new();
    let mut mounted = Vec::new();
    for (dir, user) in [(&dead, 0), (&private, 12_345)] {
        fs::create_dir(dir).unwrap();
        let server = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .unwrap();
        let fd = server.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id={user},group_id=0");
        let options = CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("test", dir, "fuse", flags, Some(&*options)).unwrap();
        mounted.push(Unmount(dir.clone()));
        servers.push(server);
    }
    drop(servers.remove(0));
    let errno = |path| fs::metadata(path).unwrap_err().raw_os_error();
    assert_eq!((errno(&dead), errno(&private)), (Some(107), Some(13)));
    let mount = Mount::host_dir(source.path(), &Options::default());
    let listed = names(mount.path());
    assert!(
        listed.contains("dead") && listed.contains("private"),
        "DIR-1: {listed:?}"
    );
    assert_eq!(listed, names(source.path()), "DIR-1");
    for broken in ["dead", "private"] {
        assert!(fs::metadata(mount.path().join(broken)).is_err());
    }
    drop(mount);
    drop(mounted);
}

/// If the source shows the mount, it is listed, its lookup is `ELOOP`, and however many threads
/// look it up at once, the other names are answered.
#[test]
fn a_mount_that_its_source_shows_is_a_loop_and_holds_up_nothing() {
    if !can_mount() {
        return;
    }
    for told in [true, false] {
        let source = tempfile::tempdir().unwrap();
        let own = source.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::write(source.path().join("file"), "x").unwrap();
        let host = HostFs::new(source.path()).unwrap();
        let host = host.with_freshness(Freshness::EachUse);
        let vfs = Vfs::new(host).unwrap();
        if !told {
            // Fills the table of known devices: only the front end knows of the mount then.
            (1..=4).for_each(|device| vfs.shown(device, true));
        }
        let mount = Mount::with(vfs, None, "hostfs", &Options::default());
        let _watchdog = Watchdog::over(&mount, Duration::from_secs(120));
        mount_bind(mount.path(), &own).unwrap();
        // Unmounted before its source.
        let _bound = Unmount(own.clone());
        thread::scope(|scope| {
            for asker in 0..8 {
                let at = mount.path();
                scope.spawn(move || {
                    for round in 0..5 {
                        let seen = names(at);
                        assert!(seen.contains("own") && seen.contains("file"), "{seen:?}");
                        for path in ["own", "own/file", "own/own/own"] {
                            let refused = fs::symlink_metadata(at.join(path)).unwrap_err();
                            assert_eq!(refused.raw_os_error(), Some(libc::ELOOP), "{path}");
                        }
                        let other = at.join(format!("{asker}-{round}"));
                        fs::write(&other, "x").unwrap();
                        fs::remove_file(&other).unwrap();
                    }
                });
            }
        });
    }
}
