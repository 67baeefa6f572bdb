//! Several back ends in one tree: a directory of the host inside a tree in memory, walked by an
//! unprivileged user.
//!
//! `cargo run -p rcuwalk --example several_back_ends`

use rcuwalk::{Access, Credentials, Error, LookupFlags, MountFlags, OpenFlags, Vfs};
use rcuwalk_hostfs::HostFs;
use rcuwalk_memfs::MemFs;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = tempfile::tempdir()?;
    std::fs::write(host.path().join("motd"), "hello\n")?;

    // A tree in memory, with the directory of the host in it, read-only.
    let vfs = Vfs::new(MemFs::new())?;
    let root = vfs.context(Credentials::root());
    vfs.mkdir(&root, "/host", 0o755)?;
    vfs.mkdir(&root, "/private", 0o700)?;
    vfs.symlink(&root, "/host/motd", "/motd")?;
    vfs.mount_with(
        &root,
        "/host",
        HostFs::new(host.path())?,
        MountFlags::READ_ONLY,
    )?;

    // A user follows a link from one back end into the other. The VFS checks permissions in
    // both, as that user and not as the owner of this process.
    let user = vfs.context(Credentials::user(1000, 1000));
    let denied = vfs.access(&user, "/private", Access::READ, LookupFlags::FOLLOW);
    assert!(matches!(denied, Err(Error::PermissionDenied)));
    let refused = vfs.create(&root, "/host/new", 0o644);
    assert!(matches!(refused, Err(Error::ReadOnly)));

    let file = vfs.open(&root, "/motd", OpenFlags::READ)?;
    let mut contents = [0; 16];
    let len = file.read_at(&mut contents, 0)?;
    assert_eq!(&contents[..len], b"hello\n");

    // A context within a directory never leaves it, by `..` or by a link.
    let within = vfs.lookup(&root, "/host", LookupFlags::FOLLOW)?;
    let jailed = rcuwalk::Context::within(within, Credentials::root());
    assert_eq!(
        vfs.stat(&jailed, "/../../motd", LookupFlags::FOLLOW)?.size,
        6
    );
    println!("{}", String::from_utf8_lossy(&contents[..len]).trim());
    Ok(())
}
