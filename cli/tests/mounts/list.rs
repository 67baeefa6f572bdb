//! `rcuwalk mounts`: its output, and that no mount blocks it. And a mount that cannot be made
//! is explained in one line.

use std::time::{Duration, Instant};

use crate::common::{alone, alone_well, can_mount};

#[test]
fn the_living_the_silent_and_the_dead_are_told_apart() {
    if !can_mount() {
        return;
    }
    let began = Instant::now();
    let ended = alone_well(
        r#"
        mkdir a b c
        "$RCUWALK" mount -d -o fsname=A memfs a; A=$(daemon)
        "$RCUWALK" mount -d -o fsname=B memfs b; B=$(daemon | grep -vx $A)
        "$RCUWALK" mount -d -o fsname=C,ro memfs c; C=$(daemon | grep -vx -e $A -e $B)
        kill -KILL $B
        # A signal is sent before its process has ended.
        until "$RCUWALK" mounts | grep -q ' /run/b .* dead: '; do sleep 0.1; done
        kill -STOP $C
        # Waits in the kernel for an answer of C, and cannot be killed.
        stat c/x 2> said &
        "$RCUWALK" mounts | grep -e ^SOURCE -e ' /run/' | sed "s/ $A / PID-A /; s/ $C / PID-C /; s/  */ /g"
        "$RCUWALK" mounts --json > json
        fails "$RCUWALK" mount memfs b
        fails "$RCUWALK" mount memfs c
        "$RCUWALK" umount b
        ls rcuwalk/*.sock | wc -l
        kill -CONT $C
        wait || true
        umount a c; gone
        ls rcuwalk | wc -l
        cat json
        "#,
    );
    assert!(began.elapsed() < Duration::from_secs(30), "it waited");
    let (text, json) = ended.out.split_once('[').unwrap();
    assert_eq!(
        text,
        "SOURCE MOUNT POINT PID STATE OPTIONS\n\
         A /run/a PID-A alive rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions\n\
         B /run/b - dead: rcuwalk umount /run/b rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions\n\
         C /run/c PID-C silent: stopped or stuck ro,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions\n\
         2\n0\n"
    );
    assert_eq!(
        ended.err,
        "rcuwalk: cannot mount on b: a mount was left there by a process that is gone: \
         rcuwalk umount /run/b\n\
         rcuwalk: cannot mount on c: C is already mounted there: rcuwalk umount /run/c\n"
    );
    let json: serde_json::Value = serde_json::from_str(&format!("[{json}")).unwrap();
    // Beside those of others.
    let json: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .filter(|mount| {
            mount["mountpoint"]
                .as_str()
                .is_some_and(|at| at.starts_with("/run/"))
        })
        .collect();
    let states: Vec<_> = json.iter().map(|mount| &mount["state"]).collect();
    assert_eq!(states, ["alive", "dead", "silent"]);
    assert_eq!(json[0]["mountpoint"], "/run/a");
    assert_eq!(json[0]["pid"], json[0]["status"]["pid"]);
    assert_eq!(json[0]["status"]["nodes"], 1);
    assert!(json[1]["pid"].is_null() && json[2]["status"].is_null());
}

#[test]
fn each_thing_in_the_way_of_a_mount_is_one_clear_line() {
    if !can_mount() {
        return;
    }
    let user = r#"chmod 777 mnt; cp "$RCUWALK" command; user="setpriv --reuid 1000 --clear-groups ./command";"#;
    let open_device =
        "mount -t tmpfs none /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3;";
    for (prepare, call, said) in [
        (
            "mount -t tmpfs none /dev",
            r#""$RCUWALK" mount memfs mnt"#,
            "there is no /dev/fuse: load the kernel's module (modprobe fuse), or give the \
             container the device",
        ),
        (
            // Only root may open it here.
            &*format!(
                "{user} mount -t tmpfs none /dev; mknod -m 600 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3"
            ),
            "$user mount memfs mnt",
            "cannot use /dev/fuse: Permission denied: let this user open it (chmod 666 /dev/fuse), or \
             run as root",
        ),
        (
            // No fusermount3, in none of the places where it could be.
            &*format!(
                "{user} {open_device} export PATH=/none; for dir in /bin /sbin; do /bin/mount --bind mnt $dir/none 2> /run/said || true; done"
            ),
            "/usr/bin/setpriv --reuid 1000 --clear-groups ./command mount memfs mnt",
            "only root may mount by itself: install fusermount3 (package fuse3), or run as root",
        ),
        (
            "",
            r#""$RCUWALK" mount memfs none"#,
            "cannot mount on none: No such file or directory",
        ),
        (
            ": > file",
            r#""$RCUWALK" mount memfs file"#,
            "cannot mount on file: not a directory",
        ),
        (
            ": > mnt/f",
            r#""$RCUWALK" mount memfs mnt"#,
            "cannot mount on mnt: it is not empty (-o nonempty hides what is in it)",
        ),
        (
            "mount -t tmpfs there mnt",
            r#""$RCUWALK" mount memfs mnt"#,
            "cannot mount on mnt: there (tmpfs) is already mounted there (-o nonempty mounts on top of it)",
        ),
        (
            r#""$RCUWALK" mount -d memfs mnt"#,
            r#""$RCUWALK" mount src mnt"#,
            "cannot mount on mnt: memfs is already mounted there: rcuwalk umount /run/mnt",
        ),
        (
            "",
            r#""$RCUWALK" mount /run/none mnt"#,
            "cannot mount /run/none: there is no such file or directory",
        ),
        (
            &*format!("{user} chmod 700 src; {open_device}"),
            "$user mount src mnt",
            "cannot mount src: Permission denied",
        ),
        (
            &*format!("{user} : > image; chmod 600 image; {open_device}"),
            "$user mount image mnt",
            "cannot mount image: Permission denied",
        ),
        (
            "",
            r#""$RCUWALK" mount --metrics unix:/run/none/socket memfs mnt"#,
            "cannot listen at unix:/run/none/socket: No such file or directory",
        ),
        (
            "",
            r#""$RCUWALK" mount --log-file /run/none/log memfs mnt"#,
            "cannot open /run/none/log: No such file or directory",
        ),
        (
            "export RCUWALK_LOG=loud",
            r#""$RCUWALK" mount memfs mnt"#,
            "RCUWALK_LOG: there is no log level \"loud\"",
        ),
    ] {
        let ended = alone(&format!("{prepare}\n{call}"));
        assert_eq!(ended.err, format!("rcuwalk: {said}\n"), "{call}");
        assert_eq!(ended.code, Some(1), "{call}");
    }
}

#[test]
fn one_may_insist_on_a_directory_that_is_not_empty() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        touch mnt/hidden
        "$RCUWALK" mount -d -o nonempty src mnt
        ls mnt; "$RCUWALK" umount mnt; ls mnt
        ln -s mnt link
        rm mnt/hidden
        "$RCUWALK" mount -d src link; "$RCUWALK" umount link
        "#,
    );
    assert_eq!((&*ended.out, &*ended.err), ("hidden\n", ""));
}

#[test]
fn what_is_mounted_on_top_of_a_mount_outlives_it() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        "$RCUWALK" mount memfs mnt 2> log & BELOW=$!
        until grep -q 'is mounted' log; do sleep 0.1; done
        mount -t tmpfs theirs mnt
        touch mnt/theirs
        kill -TERM $BELOW
        wait $BELOW || echo $?
        ls mnt
        umount mnt; "$RCUWALK" umount mnt
        "#,
    );
    assert_eq!(&*ended.out, "1\ntheirs\n", "{ended:?}");
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_request() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        mkfifo pipe
        sleep 60 < pipe &
        "$RCUWALK" mount -v memfs mnt 2> pipe &
        until mountpoint -q mnt; do sleep 0.1; done
        for n in $(seq 500); do echo mnt/none$n mnt/$n; done | timeout 20 xargs stat > /dev/null 2>&1 ||
            echo $?
        "$RCUWALK" umount mnt
        "#,
    );
    assert_eq!(&*ended.out, "123\n", "{ended:?}");
}

/// A mount that gets the device number of one that is just over is answered for by its own
/// process, also while the old one is still there: here it is stopped.
#[test]
fn a_mount_is_not_answered_for_by_the_process_of_the_one_before() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        "$RCUWALK" mount -d -o fsname=OLD memfs mnt; OLD=$(daemon)
        ls rcuwalk > before
        kill -STOP $OLD
        umount mnt
        "$RCUWALK" mount -d -o fsname=NEW memfs mnt; NEW=$(daemon | grep -vx $OLD)
        # Unless another mount on this machine was faster.
        cmp -s before <(ls rcuwalk) || echo 'another number' >&2
        answers() { "$RCUWALK" mounts | grep ' /run/' | sed "s/ $NEW / PID-NEW /; s/  */ /g" | cut -d' ' -f1-4; }
        answers
        kill -CONT $OLD
        while daemon | grep -qx $OLD; do sleep 0.1; done
        answers
        "$RCUWALK" umount mnt
        ls rcuwalk | wc -l
        "#,
    );
    let lines = "NEW /run/mnt PID-NEW alive\nNEW /run/mnt PID-NEW alive\n0\n";
    assert_eq!(ended.out, lines);
}

/// When `rcuwalk umount` has ended, the process that served the mount has, too.
#[test]
fn umount_waits_for_the_end_of_the_daemon() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        for n in 1 2 3 4 5; do
            "$RCUWALK" mount -d --stats --log-file log memfs mnt
            "$RCUWALK" umount mnt
            daemon | wc -l
        done
        grep -c unmounted log
        "#,
    );
    assert_eq!(ended.out, "0\n0\n0\n0\n0\n5\n");
}

/// A mount that covers /proc can tell neither the daemon which groups a caller is in, nor the
/// daemon or the command what is mounted.
#[test]
fn a_covered_proc_deceives_neither_daemon_nor_command() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        chmod 755 src mnt
        mkdir -m 750 src/d; echo secret > src/d/f; chgrp 4000 src/d; chmod 640 src/d/f; chgrp 4000 src/d/f
        "$RCUWALK" mount -d -o allow_other,attr_timeout=0 src mnt; DAEMON=$(daemon)
        caller() { setpriv --reuid 1000 --regid 1000 "$@" bash -c '
            echo $BASHPID > pid; until [ -e go ]; do sleep 0.1; done; exec cat mnt/d/f'; }
        : > pid; chmod 666 pid
        # In the group by the word of what covers /proc, and not by the kernel's.
        caller --clear-groups 2> refused & until [ -s pid ]; do sleep 0.1; done
        mkdir -p fake/$(cat pid) fake/self
        printf 'Uid:\t1000\t1000\t1000\t1000\nGroups:\t4000 \nCapEff:\t0000000000000002\n' > fake/$(cat pid)/status
        chmod -R a+rX fake
        printf '9 1 0:99 / /run/src rw - fuse.rcuwalk planted rw,user_id=0\n' > fake/self/mountinfo
        mount --bind fake /proc
        touch go
        wait $! || grep -c denied refused
        rm go
        # By the kernel's, and not by the other's.
        touch go; caller --groups 4000
        for args in mounts "umount mnt" "mount -d memfs src"; do "$RCUWALK" $args || true; done
        # Ended by a signal, it finds its mount all the same.
        kill -TERM $DAEMON
        umount /proc; gone
        ! mountpoint -q mnt || echo still mounted
        "#,
    );
    assert_eq!(ended.out, "1\nsecret\n", "{ended:?}");
    let covered = "/proc is covered: it is not procfs";
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert!(
        lines.iter().all(|line| line.ends_with(covered)),
        "{ended:?}"
    );
}

/// A mount that has been moved is found at its new path; the mount that is at the old one
/// stays.
#[test]
fn a_daemon_unmounts_no_other_mount_in_its_place() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        mount --make-rprivate /
        # Moved, with another one in its place.
        "$RCUWALK" mount -d memfs mnt
        mkdir elsewhere; mount --move mnt elsewhere
        mount -t tmpfs theirs mnt
        kill -TERM $(daemon); gone
        grep -c ' /run/elsewhere ' /proc/mounts || true
        grep ' /run/mnt ' /proc/mounts | cut -d' ' -f1
        umount mnt
        # Detached while it is in use, likewise.
        "$RCUWALK" mount -d --log-file log memfs mnt
        touch mnt/used; exec 5< mnt/used
        umount -l mnt
        mount -t tmpfs theirs mnt
        kill -TERM $(daemon); gone
        exec 5<&-
        grep ' /run/mnt ' /proc/mounts | cut -d' ' -f1
        umount mnt
        # Its directory renamed, and a link to another mount in the place of that.
        mkdir -p above/mnt other/mnt
        "$RCUWALK" mount -d memfs above/mnt; FIRST=$(daemon)
        "$RCUWALK" mount -d memfs other/mnt
        mv above moved 2> /dev/null && ln -s other above
        kill -TERM $FIRST
        while daemon | grep -qx $FIRST; do sleep 0.1; done
        grep -o ' /run/[a-z]*/mnt ' /proc/mounts
        "$RCUWALK" umount other/mnt; gone
        "#,
    );
    assert_eq!(
        ended.out, "0\ntheirs\ntheirs\n /run/other/mnt \n",
        "{ended:?}"
    );
}

/// WATCH-1: a mount below the source whose server is stopped holds up no request for anything else,
/// is told of, and does not keep the process from its end.
#[test]
fn a_stopped_server_below_the_source_stops_nothing_else() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        mkdir src/nested
        "$RCUWALK" mount -d memfs src/nested; NESTED=$(daemon)
        # Nothing of it is in any cache.
        for n in $(seq 6); do mkdir src/nested/$n; done
        "$RCUWALK" mount -d --log-file log src mnt; OURS=$(daemon | grep -vx $NESTED)
        ls mnt > /dev/null
        kill -STOP $NESTED
        # Each of its threads stops a moment later, and could still answer.
        while grep -L 'T (stopped)' /proc/$NESTED/task/*/status | grep -q .; do sleep 0.1; done
        for n in $(seq 6); do stat mnt/nested/$n > /dev/null 2>&1 & done
        until "$RCUWALK" mounts | grep -q 'alive, 6 requests stuck for up to [0-9]* s '; do sleep 0.1; done
        for n in $(seq 20); do touch src/$n; stat -c %n mnt/$n; done | wc -l
        grep -c -m1 'requests are stuck in the source' log
        "$RCUWALK" mounts --json | grep -c '"stuck": 6'
        kill -TERM $OURS
        while [ -d /proc/$OURS ]; do sleep 0.1; done
        grep -o 'is in use: detached' log
        kill -CONT $NESTED
        wait || true
        umount src/nested; gone
        "#,
    );
    let lines = "20\n1\n1\nis in use: detached\n";
    assert_eq!(ended.out, lines, "WATCH-1: {}", ended.err);
}

/// The sockets and the log show what users do in the mount, and are for the mount's user and
/// root.
#[test]
fn what_says_how_a_mount_is_is_private_whatever_the_umask() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        umask 0
        "$RCUWALK" mount -d --log-file log memfs mnt
        stat -c %a log rcuwalk rcuwalk/*.sock
        setpriv --reuid 1000 --clear-groups perl -MIO::Socket::UNIX -e '
            print IO::Socket::UNIX->new(Peer => (glob "rcuwalk/*.sock")[0]) ? "in\n" : "out\n"'
        "$RCUWALK" mounts | grep -c ' /run/mnt .* alive '
        # Anew after a hangup, it is private again.
        mv log old; kill -HUP $(daemon)
        until [ -e log ]; do sleep 0.1; done
        stat -c %a log
        "$RCUWALK" umount mnt
        "#,
    );
    assert_eq!(ended.out, "600\n755\n600\nout\n1\n600\n");
}

/// Where a user has put a link, another user's socket or a file system that never answers in
/// the place of the socket, root reports nothing to anyone, and does not wait for it.
#[test]
fn root_connects_to_no_socket_that_a_user_has_planted() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(
        r#"
        # A mount of user 1000's, without a process that says how it is.
        mkdir -p user/1000/rcuwalk; chown -R 1000 user/1000
        exec 8<> /dev/fuse
        mount -i -t fuse.rcuwalk -o fd=8,rootmode=40000,user_id=1000,group_id=0 theirs mnt
        sock=user/1000/rcuwalk/$(grep ' /run/mnt ' /proc/self/mountinfo | cut -d' ' -f3 | tr : -).sock
        # Root's service notes who connects.
        perl -MIO::Socket::UNIX -e '
            my $root = IO::Socket::UNIX->new(Local => "/run/service", Listen => 9) or die;
            while ($root->accept) { syswrite STDOUT, "somebody was here\n" }
        ' > noted &
        while ! [ -e service ]; do sleep 0.1; done
        says() { "$RCUWALK" mounts | grep ' /run/mnt ' | grep -o 'unknown\|alive\|silent\|dead'; }
        ln -s /run/service $sock; says; rm $sock
        ln service $sock; says; rm $sock
        rmdir user/1000/rcuwalk; ln -s /run user/1000/rcuwalk; says; rm user/1000/rcuwalk
        cat noted
        # The user's own, and nobody there.
        setpriv --reuid 1000 --clear-groups perl -MIO::Socket::UNIX -e '
            mkdir "user/1000/rcuwalk"; IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 9) or die' $sock
        says
        # A directory whose file system never answers.
        rm -r user/1000/rcuwalk; mkdir user/1000/rcuwalk
        "$RCUWALK" mount -d -o nonempty memfs user/1000/rcuwalk
        kill -STOP $(daemon)
        says
        "#,
    );
    assert_eq!(
        ended.out, "unknown\nunknown\nunknown\ndead\nunknown\n",
        "{ended:?}"
    );
}
