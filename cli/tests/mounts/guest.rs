//! A Linux guest mounts what `rcuwalk serve virtiofs` serves, and runs a script of file operations:
//! its output is the same as on the host.
//!
//! The guest is Debian's kernel in QEMU, without KVM, from an initramfs that is made here: busybox,
//! the modules and the script. `.ci/guest` fetches the kernel. It takes ten seconds, of which the
//! boot is half.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rcuwalk_testkit::lacks_root;

use super::serve::Server;
use crate::common::skip;

const SCRIPT: &str = include_str!("guest/script.sh");

/// Loaded in this order.
const MODULES: [&str; 7] = [
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "fs/fuse/fuse.ko",
    "fs/fuse/virtiofs.ko",
];

/// The first process of the guest: runs the script twice, each in a session of its own, and the
/// second one finds what the first has left.
const INIT: &str = r"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin TZ=UTC
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
mount -t virtiofs home /mnt && (cd /mnt/tree && sh /script >/output 2>&1)
mv /output /mnt/output
umount /mnt
mount -t virtiofs home /mnt && (cd /mnt/tree && rm -r * && ls -a | wc -l >/mnt/left) 
umount /mnt && echo UNMOUNTED
poweroff -f
";

const PATIENCE: Duration = Duration::from_secs(300);

/// A kernel, with its modules.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The one that `.ci/guest` has fetched.
    fn fetched() -> Option<Kernel> {
        let target = Path::new(env!("CARGO_BIN_EXE_rcuwalk"))
            .ancestors()
            .nth(2)?;
        let root = target.join("guest");
        let one = |of: &Path| {
            fs::read_dir(of)
                .ok()?
                .flatten()
                .next()
                .map(|one| one.path())
        };
        let images = fs::read_dir(root.join("boot")).ok()?.flatten();
        let mut images = images.map(|one| one.path());
        Some(Kernel {
            image: images.find(|path| path.to_string_lossy().contains("vmlinuz"))?,
            modules: one(&root.join("lib/modules"))?.join("kernel"),
        })
    }
}

#[test]
fn a_guest_sees_what_the_host_does() {
    let (Some(kernel), true) = (
        Kernel::fetched(),
        rcuwalk_testkit::has("qemu-system-x86_64"),
    ) else {
        return skip("needs qemu, and a guest's kernel: .ci/guest");
    };
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() {
        return skip("needs busybox (busybox-static)");
    }
    if lacks_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, socket) = (dir.path().join("source"), dir.path().join("sock"));
    let initrd = dir.path().join("initrd");
    fs::create_dir_all(source.join("tree")).unwrap();
    fs::write(&initrd, archive(&kernel, busybox)).unwrap();
    let server = Server::start(&source, &socket, &["--queues", "2", "--stats"]);
    let said = boot(&kernel, &initrd, &socket);
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(said.contains("UNMOUNTED"), "{said}\n{}", ended.err);
    let in_guest = fs::read_to_string(source.join("output")).unwrap();
    let on_host = on_host(dir.path(), busybox);
    for (guest, host) in in_guest.lines().zip(on_host.lines()) {
        assert_eq!(guest, host, "in the guest, and on the host");
    }
    assert_eq!(in_guest.lines().count(), on_host.lines().count());
    // What the script ran through, lest both have failed in the same way.
    assert!(
        on_host
            .lines()
            .filter(|line| line.starts_with("== "))
            .count()
            == 8
    );
    assert_eq!(fs::read_to_string(source.join("left")).unwrap().trim(), "2");
    assert_eq!(fs::read_dir(source.join("tree")).unwrap().count(), 0);
}

/// The script's output in a directory of the host.
fn on_host(dir: &Path, busybox: &Path) -> String {
    let (tree, bin) = (dir.join("tree"), dir.join("bin"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&bin).unwrap();
    let applets = Command::new(busybox).arg("--list").output().unwrap();
    for applet in String::from_utf8(applets.stdout).unwrap().lines() {
        symlink(busybox, bin.join(applet)).unwrap();
    }
    let script = dir.join("script");
    fs::write(&script, SCRIPT).unwrap();
    // Users of the script get through.
    let may_pass = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir, may_pass).unwrap();
    let mut shell = Command::new(bin.join("sh"));
    shell.arg(&script).current_dir(&tree);
    shell.env_clear().env("PATH", &bin).env("TZ", "UTC");
    let ended = shell.stdin(Stdio::null()).output().unwrap();
    // As `2>&1` where the script itself writes no error.
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
    String::from_utf8(ended.stdout).unwrap()
}

/// Runs the guest until it has switched itself off, and returns what it has said.
fn boot(kernel: &Kernel, initrd: &Path, socket: &Path) -> String {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-accel",
        "tcg",
        "-m",
        "192M",
        "-smp",
        "2",
        "-nographic",
        "-no-reboot",
    ]);
    qemu.args([
        "-nic",
        "none",
        "-append",
        "console=ttyS0 quiet loglevel=1 panic=-1",
    ]);
    qemu.args(["-object", "memory-backend-memfd,id=mem,size=192M,share=on"]);
    qemu.args(["-numa", "node,memdev=mem"]);
    qemu.args([
        "-device",
        "vhost-user-fs-pci,chardev=fs,tag=home,num-request-queues=2",
    ]);
    qemu.arg("-chardev");
    qemu.arg(format!("socket,id=fs,path={}", socket.display()));
    qemu.arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initrd);
    qemu.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = qemu.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = out.read_to_end(&mut said);
        said
    });
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut errors = String::new();
    let _ = child.stderr.take().unwrap().read_to_string(&mut errors);
    let said = reader.join().unwrap();
    format!("{}{errors}", String::from_utf8_lossy(&said))
}

/// The guest's first files, as cpio(5) has them (`newc`).
fn archive(kernel: &Kernel, busybox: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut add = |name: &str, mode: u32, contents: &[u8]| {
        let fields = [1, mode, 0, 0, 1, 0, contents.len() as u32, 0, 0, 0, 0];
        let fields = fields.map(|field| format!("{field:08x}")).concat();
        archive.extend(format!("070701{fields}{:08x}00000000{name}\0", name.len() + 1).bytes());
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(contents);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    for dir in ["bin", "dev", "etc", "mnt", "modules", "proc"] {
        add(dir, 0o040_755, &[]);
    }
    add("bin/busybox", 0o100_755, &fs::read(busybox).unwrap());
    for (at, module) in MODULES.iter().enumerate() {
        let name = format!("modules/{at}.ko");
        add(
            &name,
            0o100_644,
            &fs::read(kernel.modules.join(module)).unwrap(),
        );
    }
    let users = "root:x:0:0::/:/bin/sh\ndaemon:x:1:1::/:/bin/sh\nbin:x:2:2::/:/bin/sh\n";
    add("etc/passwd", 0o100_644, users.as_bytes());
    add("script", 0o100_644, SCRIPT.as_bytes());
    add("init", 0o100_755, INIT.as_bytes());
    add("TRAILER!!!", 0, &[]);
    archive
}
