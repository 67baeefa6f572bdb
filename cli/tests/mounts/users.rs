//! Mounting without being root, by fusermount3, and by libfuse's helper for mount(8).

use std::path::Path;

use crate::common::{alone_well, can_mount, make_image, rcuwalk, run, skip};

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

/// Callers' writes have the callers' rights: a user gets none of the space that a file system
/// keeps for root, and root does.
#[test]
fn as_the_caller_the_reserve_of_root_is_kept_from_users() {
    if !can_mount() || !has_mkfs() {
        return;
    }
    let ended = alone_well(
        r#"
        export PATH="$PATH:/sbin:/usr/sbin"
        # Half of it is root's.
        mkfs.ext4 -q -m 50 image 8M > /dev/null
        mount -o loop image src; mkdir -m 777 src/all
        fill() { setpriv --reuid 1000 --regid 1000 --clear-groups dd if=/dev/zero of=$1 bs=64k 2> said; }
        left() { sync -f src; stat -f -c %f src; }
        for how in caller daemon; do
            "$RCUWALK" mount -d -o allow_other,acting_as=$how src mnt
            if fill mnt/all/user-$how; then echo "it is endless"; fi
            grep -c 'No space left' said
            stat -c %u:%g src/all/user-$how
            [ $(left) -gt 500 ] && echo "the reserve is left" || echo "nothing is left"
            if [ $how = caller ]; then dd if=/dev/zero of=mnt/all/root bs=64k count=8 2> said; fi
            # Also by a copy, and by space that is asked for.
            if [ $how = caller ]; then
                user="setpriv --reuid 1000 --regid 1000 --clear-groups"
                if $user cp mnt/all/root mnt/all/copy 2> said; then echo "copied"; fi
                if $user fallocate -l 1M mnt/all/wanted 2> said; then echo "allocated"; fi
                [ $(left) -gt 300 ] && echo "it still is"
            fi
            rm mnt/all/*
            "$RCUWALK" umount mnt; gone
        done
        umount src
        "#,
    );
    let caller = "1\n1000:1000\nthe reserve is left\nit still is\n";
    let daemon = "1\n1000:1000\nnothing is left\n";
    assert_eq!(ended.out, format!("{caller}{daemon}"), "{}", ended.err);
}

/// A tree that no host has cannot be changed as one of its users.
#[test]
fn what_no_host_sees_nobody_acts_in() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mountpoint = at("mnt");
    std::fs::create_dir(&mountpoint).unwrap();
    let refused = |source: &Path, options: &str| {
        let mut mount = rcuwalk(["mount", "-o", options]);
        let ended = run(mount.arg(source).arg(&mountpoint));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        ended.err
    };
    let said = "acting_as=caller is for a directory of the host, and";
    assert_eq!(
        refused(Path::new("memfs"), "acting_as=caller"),
        format!("rcuwalk: {said} memfs is none\n")
    );
    let ext4 = at("image");
    if make_image(&ext4).is_some() {
        let err = refused(&ext4, "acting_as=caller");
        assert_eq!(err, format!("rcuwalk: {said} {} is none\n", ext4.display()));
    }
    let source = at("src");
    std::fs::create_dir(&source).unwrap();
    let err = refused(&source, "acting_as=caller,idmap");
    assert!(err.contains("exclude each other"), "{err}");
}

/// On a host without birth times, too, a user's new directory is the user's and has the mode that
/// was asked for, whatever the umask of the daemon.
#[test]
fn a_new_directory_is_as_asked_where_there_are_no_birth_times() {
    if !can_mount() || !has_mkfs() {
        return;
    }
    let ended = alone_well(
        r#"
        export PATH="$PATH:/sbin:/usr/sbin"
        mkfs.ext4 -q -I 128 image 8M > /dev/null
        mount -o loop image src; chmod 777 src
        for how in caller daemon; do
            (umask 077; "$RCUWALK" mount -d -o allow_other,acting_as=$how src mnt)
            user="setpriv --reuid 1000 --regid 1001 --clear-groups"
            $user sh -c "umask 0; mkdir mnt/$how; mkfifo -m 666 mnt/pipe-$how"
            stat -c '%u:%g %a' src/$how src/pipe-$how
            "$RCUWALK" umount mnt; gone
        done
        umount src
        "#,
    );
    let made = "1000:1001 777\n1000:1001 666\n";
    assert_eq!(ended.out, made.repeat(2), "{}", ended.err);
}

fn has_mkfs() -> bool {
    let places = ["/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4"];
    let there = places.iter().any(|mkfs| Path::new(mkfs).exists());
    if !there {
        skip("needs mkfs.ext4");
    }
    there
}

/// A path through a user's directories may lead anywhere when root goes by it: root leaves the socket
/// of a user's dead process, which the user's next mount removes.
#[test]
fn root_removes_no_socket_of_another_user() {
    if !can_mount() || !has_fuse3() {
        return;
    }
    let ended = alone_well(
        r#"
        unset XDG_RUNTIME_DIR
        mkdir bin; cp "$RCUWALK" bin/rcuwalk
        mkdir -m 700 -p user/1000; chown 1000 user/1000 mnt
        mount -t tmpfs none /dev -o mode=755
        mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
        user="setpriv --reuid 1000 --clear-groups bin/rcuwalk"
        sockets() { ls user/1000/rcuwalk | wc -l; }
        $user mount -d memfs mnt
        kill -KILL $(daemon); gone
        bin/rcuwalk umount mnt; sockets
        $user mount -d memfs mnt; sockets
        $user umount mnt; gone; sockets
        # Its own, a user forgets.
        $user mount -d memfs mnt
        kill -KILL $(daemon); gone
        $user umount mnt; sockets
        "#,
    );
    assert_eq!(ended.out, "1\n1\n0\n0\n", "{}", ended.err);
}
