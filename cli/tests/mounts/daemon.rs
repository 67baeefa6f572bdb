//! `rcuwalk mount --daemon`, and mount(8) calling us.

use crate::common::{alone, alone_well, can_mount};

#[test]
fn a_daemon_is_usable_when_the_command_returns() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        # Read to its end by the test: nobody may keep standard error open.
        "$RCUWALK" mount -d --log-file log src mnt
        echo through > mnt/f; cat src/f
        pid=$(daemon)
        readlink /proc/$pid/cwd /proc/$pid/fd/0 /proc/$pid/fd/1 /proc/$pid/fd/2
        # Its own session, and nothing to the end of a terminal.
        [ $(cut -d" " -f6 /proc/$pid/stat) = $pid ]
        kill -HUP $pid; sleep 0.3; cat mnt/f
        kill -TERM $pid
        gone
        fails mountpoint -q mnt
        grep -v enable_uring log
        "#,
    );
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines[0], "through");
    assert_eq!(lines[1..5], ["/", "/dev/null", "/dev/null", "/dev/null"]);
    assert_eq!(lines[5], "through");
    assert!(
        lines[6].ends_with("src is mounted on /run/mnt"),
        "{ended:?}"
    );
    assert!(lines[7].ends_with("/run/mnt is unmounted"), "{ended:?}");
    assert_eq!((lines.len(), &*ended.err), (8, ""));
}

#[test]
fn a_daemon_that_cannot_mount_says_why_and_fails() {
    if !can_mount() {
        return;
    }
    let ended = alone(r#""$RCUWALK" mount -d none mnt"#);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        "rcuwalk: cannot mount none: there is no such file or directory\n"
    );
}

#[test]
fn a_daemon_nobody_waits_for_does_not_stay() {
    if !can_mount() {
        return;
    }
    // The child's message to its parent goes nowhere.
    let ended = alone_well(
        r#"
        { "$RCUWALK" mount --daemonized memfs mnt || echo "ended with $?" > how; } | true
        while ! [ -e how ]; do sleep 0.1; done
        cat how
        fails mountpoint -q mnt
        "#,
    );
    assert_eq!(ended.out, "ended with 1\n");
}

#[test]
fn the_log_goes_on_in_a_new_file_after_a_hangup() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        RCUWALK_LOG=debug "$RCUWALK" mount -o daemon,log_file=log memfs mnt
        touch mnt/before
        mv log old
        kill -HUP $(daemon)
        while ! [ -e log ]; do sleep 0.1; done
        touch mnt/after; umount mnt
        gone
        grep -q 'request{op=Create node=1 uid=0}: done time=' old
        grep -q 'op=Create' log
        grep -q 'is unmounted' log
        fails grep -q 'is mounted on' log
        "#,
    );
    assert_eq!(ended.err, "");
}

#[test]
fn a_daemon_logs_to_the_system() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        mount -t tmpfs none /dev -o mode=755
        mknod /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3
        perl -MIO::Socket::UNIX -e '
            my $log = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => "/dev/log") or die;
            while (defined $log->recv(my $line, 4096)) { syswrite STDOUT, "$line\n" }
        ' > lines &
        while ! [ -e /dev/log ]; do sleep 0.1; done
        "$RCUWALK" mount -d memfs mnt
        pid=$(daemon)
        "$RCUWALK" umount mnt
        while ! grep -q unmounted lines; do sleep 0.1; done
        sed "s/$pid/PID/; /enable_uring/d" lines
        "#,
    );
    assert_eq!(
        ended.out,
        "<30>rcuwalk[PID]: memfs is mounted on /run/mnt\n\
         <30>rcuwalk[PID]: /run/mnt is unmounted\n"
    );
}

#[test]
fn in_the_foreground_the_journal_gets_lines_as_it_reads_them() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        touch log # before the shell in the background opens it
        JOURNAL_STREAM=8:1 "$RCUWALK" mount -v memfs mnt 2> log &
        while ! grep -q mounted log; do sleep 0.1; done
        touch mnt/f; umount mnt; wait
        grep -q '^<7>request{op=Create node=1 uid=0}: done ' log
        grep '^<6>' log | grep -v enable_uring
        RCUWALK_LOG=debug "$RCUWALK" mount --log-level warn memfs mnt &
        while ! grep -q ' /run/mnt ' /proc/mounts; do sleep 0.1; done
        umount mnt; wait
        "#,
    );
    assert_eq!(
        ended.out,
        "<6>memfs is mounted on /run/mnt\n<6>/run/mnt is unmounted\n"
    );
    assert_eq!(ended.err, "", "a flag counts for more than the environment");
}

/// Where the kernel has io_uring and does not offer it, each mount that would use it says once what
/// turns it on.
#[test]
fn a_mount_says_what_turns_io_uring_on() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        for options in io_uring noio_uring; do
            "$RCUWALK" mount -o $options memfs mnt 2> log &
            while ! grep -q ' /run/mnt ' /proc/mounts; do sleep 0.1; done
            umount mnt; wait
            grep -c 'echo Y > /sys/module/fuse/parameters/enable_uring' log || true
        done
        "#,
    );
    let setting = std::fs::read("/sys/module/fuse/parameters/enable_uring");
    let is_off = setting.is_ok_and(|setting| setting.starts_with(b"N"));
    let said = if is_off { "1\n0\n" } else { "0\n0\n" };
    assert_eq!(ended.out, said);
}

/// /sbin holds nothing but us: mount(8) itself is in /bin.
const HELPERS: &str = r#"
    mkdir sbin
    ln -s "$RCUWALK" sbin/mount.fuse.rcuwalk
    ln -s "$RCUWALK" sbin/mount.rcuwalk
    mount --bind sbin /sbin/
    PATH=/bin:/usr/bin
"#;

#[test]
fn mount_mounts_us_by_type_and_by_fstab() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(&format!(
        r#"{HELPERS}
        mount -t fuse.rcuwalk /run/src mnt -o ro,allow_other,attr_timeout=9
        grep /run/mnt /proc/mounts
        "$RCUWALK" umount mnt; gone
        mount -v -n -t rcuwalk memfs mnt
        grep /run/mnt /proc/mounts
        umount mnt; gone
        echo '/run/src /run/mnt fuse.rcuwalk defaults,nofail,user,x-y,comment=c,noatime,log_file=/run/log 0 0' > fstab
        mount --fstab fstab /run/mnt
        echo there > src/f; cat mnt/f; touch mnt/new
        # What is mounted already, is known by its source and place.
        mount -a --fstab fstab
        grep -c mounted log
        umount mnt; gone
        mount -f -t fuse.rcuwalk memfs mnt; fails mountpoint -q mnt
        mount -s -t fuse.rcuwalk memfs mnt -o colour=blue,ro
        fails touch mnt/new 2> said
        umount mnt; gone
        # As libfuse's mount.fuse3 does it.
        ln -s "$RCUWALK" sbin/rcuwalk
        sbin/rcuwalk /run/src mnt -o rw,dev,suid
        grep /run/mnt /proc/mounts
        umount mnt
        "#
    ));
    let lines: Vec<&str> = ended.out.lines().filter(|l| !l.is_empty()).collect();
    assert!(
        lines[0].starts_with("/run/src /run/mnt fuse.rcuwalk ro,nosuid"),
        "{ended:?}"
    );
    assert!(lines[0].contains("allow_other"), "{ended:?}");
    assert!(
        lines[1].starts_with("memfs /run/mnt fuse.rcuwalk rw,"),
        "{ended:?}"
    );
    assert_eq!(lines[2..4], ["there", "1"]);
    assert!(
        lines[4].starts_with("/run/src /run/mnt fuse.rcuwalk rw,relatime"),
        "{ended:?}"
    );
}

#[test]
fn mount_is_told_in_its_own_way_that_it_failed() {
    if !can_mount() {
        return;
    }
    for (call, code, said) in [
        (
            "mount -t fuse.rcuwalk /run/none mnt",
            32,
            "rcuwalk: cannot mount /run/none: there is no such file or directory\n",
        ),
        (
            "mount -t fuse.rcuwalk memfs mnt -o colour=blue",
            1,
            "rcuwalk: invalid value 'rw,colour=blue' for '-o <OPTIONS>': there is no option colour=\n",
        ),
    ] {
        let ended = alone(&format!("{HELPERS} {call}"));
        assert_eq!((ended.code, &*ended.err), (Some(code), said));
    }
}

#[test]
fn mount_mounts_us_in_another_namespace() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(&format!(
        r#"{HELPERS}
        unshare -m --propagation private sleep 50 & other=$!
        while [ "$(readlink /proc/$other/ns/mnt)" = "$(readlink /proc/self/ns/mnt)" ]; do sleep 0.1; done
        mount -N /proc/$other/ns/mnt -t fuse.rcuwalk memfs /run/mnt
        fails mountpoint -q mnt
        grep /run/mnt /proc/$other/mounts
        "#
    ));
    assert!(
        ended.out.starts_with("memfs /run/mnt fuse.rcuwalk"),
        "{ended:?}"
    );
}

#[test]
fn a_remount_changes_flags_and_leaves_the_rest() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(&format!(
        r#"{HELPERS}
        mount -t fuse.rcuwalk memfs mnt -o allow_other,noexec
        touch mnt/new
        mount -o remount,ro mnt
        grep -o ' ro,[^ ]*' /proc/mounts | grep noexec
        fails touch mnt/more 2> said; grep -o 'Read-only.*' said
        mount -o remount,rw,exec /run/mnt
        grep '^memfs /run/mnt' /proc/mounts
        touch mnt/more; ls mnt
        "$RCUWALK" mount -o remount,noexec memfs mnt
        grep /run/mnt /proc/mounts | grep -o ' rw,nosuid,nodev,noexec'
        umount mnt; gone
        fails mount -o remount,ro -t fuse.rcuwalk memfs mnt 2> said; cat said
        "#
    ));
    let lines: Vec<&str> = ended.out.lines().filter(|l| !l.is_empty()).collect();
    assert!(
        lines[0].starts_with(" ro,nosuid,nodev,noexec,relatime"),
        "{ended:?}"
    );
    assert_eq!(lines[1], "Read-only file system");
    assert!(
        lines[2].starts_with("memfs /run/mnt fuse.rcuwalk rw,nosuid,nodev,relatime"),
        "{ended:?}"
    );
    assert_eq!(lines[3..5], ["more", "new"]);
    assert_eq!(lines[5], " rw,nosuid,nodev,noexec");
    assert!(lines[6].contains("nothing is mounted there"), "{ended:?}");
}

/// Neither a line of fstab nor `mount -o remount SOURCE DIR` shows the flags that the mount
/// has; a remount keeps those flags.
#[test]
fn a_remount_keeps_the_flags_that_it_does_not_name() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(&format!(
        r#"{HELPERS}
        echo 'memfs /run/mnt fuse.rcuwalk allow_other 0 0' > tab
        mount -T tab /run/mnt
        mount -T tab -o remount,ro /run/mnt
        grep -o '/run/mnt fuse.rcuwalk [^ ]*' /proc/mounts
        mount -t fuse.rcuwalk -o remount,noexec memfs /run/mnt
        grep -o '/run/mnt fuse.rcuwalk [^ ]*' /proc/mounts
        # One that is turned off by name goes, whether the line has it or not.
        mount -T tab -o remount,exec /run/mnt
        grep -o '/run/mnt fuse.rcuwalk [^ ]*' /proc/mounts
        echo 'memfs /run/mnt fuse.rcuwalk noexec 0 0' > tab
        mount -T tab -o remount,noatime /run/mnt
        mount -T tab -o remount,exec /run/mnt
        grep -o '/run/mnt fuse.rcuwalk [^ ]*' /proc/mounts
        umount /run/mnt; gone
        "#
    ));
    let lines: Vec<&str> = ended.out.lines().filter(|l| !l.is_empty()).collect();
    assert!(lines[0].contains(" ro,nosuid,nodev,"), "{ended:?}");
    assert!(lines[1].contains(",nosuid,nodev,noexec,"), "{ended:?}");
    assert!(lines[2].contains(" rw,nosuid,nodev,relatime,"), "{ended:?}");
    assert!(lines[3].contains(" rw,nosuid,nodev,noatime,"), "{ended:?}");
}

/// The daemon drops everything that it does not need: descriptors of the process that started
/// it, capabilities, and, as root's, the way to new ones and calls that reach other processes.
#[test]
fn a_daemon_keeps_nothing_that_it_inherits_or_does_not_need() {
    if !can_mount() {
        return;
    }
    for options in ["", ",noio_uring", ",sandbox"] {
        if options == ",sandbox" && !has_landlock() {
            continue;
        }
        let ended = alone_well(&format!(
            r#"
            echo secret > inherited; exec 7< inherited 9<> inherited
            "$RCUWALK" mount -d -o allow_other{options} src mnt; pid=$(daemon)
            exec 7<&- 9<&-
            ls -l /proc/$pid/fd > fds; fails grep inherited fds
            # All threads, those that were started last, too.
            cat /proc/$pid/task/*/status | grep -e NoNewPrivs -e Seccomp: | sort -u
            cat /proc/$pid/task/*/status | grep -e CapBnd -e CapPrm | cut -f2 | sort -u > caps; wc -l < caps
            # Neither modules, nor raw devices, nor the clock; but files of others.
            echo $((0x$(cat caps) & (1 << 16 | 1 << 17 | 1 << 25))) $((0x$(cat caps) & 2))
            # And it serves.
            touch mnt/f; chown 7:8 mnt/f; ln -s f mnt/l; mknod mnt/n p; mv mnt/f mnt/g; mkdir mnt/d
            rm mnt/l
            stat -c '%u %g %n' src/g; ls mnt
            setpriv --reuid 1000 --clear-groups touch mnt/x 2> said || grep -c denied said
            kill -TERM $pid; gone
            fails grep ' /run/mnt ' /proc/mounts
            "#
        ));
        let lines = "NoNewPrivs:\t1\nSeccomp:\t2\n1\n0 2\n7 8 src/g\nd\ng\nn\n1\n";
        assert_eq!(ended.out, lines, "{options}: {ended:?}");
    }
}

fn has_landlock() -> bool {
    let lsm = std::fs::read_to_string("/sys/kernel/security/lsm");
    // Where securityfs is not mounted, the command says it.
    lsm.map_or(true, |lsm| lsm.contains("landlock"))
}

/// With `--sandbox` the process reaches neither the files beside the source nor new programs,
/// as root and as a user, and it can still be unmounted.
#[test]
fn a_sandboxed_daemon_reaches_nothing_but_its_source() {
    if !can_mount() || !has_landlock() {
        return;
    }
    let ended = alone_well(
        r#"
        echo outside > outside; mkdir src/d; echo inside > src/d/f
        "$RCUWALK" mount -d --sandbox --metrics unix:/run/metrics --log-file /run/log -o allow_other,entry_timeout=0,attr_timeout=0 src mnt
        pid=$(daemon)
        cat mnt/d/f; echo more >> mnt/d/f; mv mnt/d/f mnt/f; cat src/f
        ls mnt/d; ls mnt
        # Logs go on in a new file, and it is found by others.
        mv log old; kill -HUP $pid
        while ! [ -e log ]; do sleep 0.1; done
        "$RCUWALK" mounts | grep ' /run/mnt ' | grep -c alive
        # In use, it is detached; both by the other process.
        exec 5< mnt/f; kill -TERM $pid; gone; exec 5<&-
        fails grep ' /run/mnt ' /proc/mounts
        grep -c detached log
        "$RCUWALK" mount -d -o sandbox memfs mnt; echo x > mnt/f; "$RCUWALK" umount mnt; gone
        fails grep ' /run/mnt ' /proc/mounts
        "$RCUWALK" mount --sandbox src mnt 2> foreground & until grep -q 'is mounted' foreground; do sleep 0.1; done
        kill -INT $(daemon); wait
        fails grep ' /run/mnt ' /proc/mounts
        while [ -n "$(grep -lxs rcuwalk-keeper /proc/[0-9]*/comm)" ]; do sleep 0.1; done
        "#,
    );
    let lines = "inside\ninside\nmore\nd\nf\n1\n1\n";
    assert_eq!(ended.out, lines, "{ended:?}");
}
