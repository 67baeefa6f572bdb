//! Mounting without being root, by fusermount3, and by libfuse's helper for mount(8).

mod common;

use std::path::Path;

use common::{alone_well, can_mount, skip};

fn has_fuse3() -> bool {
    let there = Path::new("/bin/fusermount3").exists() && Path::new("/sbin/mount.fuse3").exists();
    if !there {
        skip("needs fusermount3 and mount.fuse3 (package fuse3)");
    }
    there
}

#[test]
fn a_user_mounts_and_unmounts_with_the_help_of_fusermount3() {
    if !can_mount() || !has_fuse3() {
        return;
    }
    let ended = alone_well(
        r#"
        # Where everybody can execute it.
        mkdir bin; cp "$RCUWALK" bin/rcuwalk
        mkdir -m 700 -p user/1000; chown 1000 user/1000 src mnt; mkdir roots
        mount -t tmpfs none /dev -o mode=755
        mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
        user="setpriv --reuid 1000 --clear-groups bin/rcuwalk"
        $user mount -d -o "fsname=a b\\c" src mnt
        grep -c '^a.040b.134c /run/mnt fuse.rcuwalk .*user_id=1000' /proc/mounts
        for who in "$user" bin/rcuwalk; do
            $who mounts | grep ' /run/mnt' | grep -c " $(daemon)  *alive "
        done
        # Not even root gets in, unless others may.
        fails ls mnt 2> said
        $user umount mnt; gone
        fails $user mount memfs roots
        $user mount memfs mnt 2> log &
        while ! grep -q ' /run/mnt fuse' /proc/mounts; do sleep 0.1; done
        kill -TERM $(daemon); wait
        fails grep ' /run/mnt fuse' /proc/mounts
        # In a sandbox it may not ask fusermount3: another process does.
        for ending in "$user umount mnt" 'kill -TERM $(daemon)'; do
            $user mount -d --sandbox src mnt 2> said || { grep Landlock said || exit 98; break; }
            $user mounts | grep -c alive > alive
            setpriv --reuid 1000 --clear-groups touch mnt/f; rm src/f
            eval "$ending"; gone
            fails grep ' /run/mnt fuse' /proc/mounts
        done
        "#,
    );
    assert_eq!(ended.out, "1\n1\n1\n");
    assert_eq!(
        ended.err,
        "rcuwalk: cannot mount: user has no write access to mountpoint /run/roots\n"
    );
}

#[test]
fn the_helper_of_libfuse_mounts_us() {
    if !can_mount() || !has_fuse3() {
        return;
    }
    let ended = alone_well(
        r#"
        # Theirs alone, by the name that mount looks for.
        mkdir sbin; cp /sbin/mount.fuse3 sbin/mount.fuse; mount --bind sbin /sbin/
        ln -s "$RCUWALK" sbin/rcuwalk
        mount -t fuse.rcuwalk /run/src mnt -o ro,attr_timeout=9
        grep ' /run/mnt' /proc/mounts
        umount mnt; gone
        mount -t fuse.rcuwalk /run/none mnt || echo "ended with $?"
        "#,
    );
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(
        lines[0].starts_with("/run/src /run/mnt fuse.rcuwalk ro,"),
        "{ended:?}"
    );
    assert_eq!(lines[1], "ended with 32");
    assert!(
        ended.err.starts_with("rcuwalk: cannot mount /run/none: "),
        "{ended:?}"
    );
}
