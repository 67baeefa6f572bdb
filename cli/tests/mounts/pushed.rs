//! A mount whose kernel is told of changes on the host.

use crate::common::{alone_well, can_mount, is_root, skip};

/// FRESH-1: a process that is killed in the middle of changes, on the host and through the mount,
/// leaves nothing that hangs, and the next one shows what there is.
#[test]
fn a_killed_daemon_leaves_nothing_stuck_and_nothing_stale() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        return skip("needs root");
    }
    let ended = alone_well(
        r#"
        mkdir src/d
        "$RCUWALK" mount -d src mnt
        change() {
            n=0
            while [ -e busy ]; do
                n=$((n + 1)); echo $n > src/d/$((n % 50)); rm -f src/d/$((n * 7 % 50))
            done
        }
        look() { while [ -e busy ]; do ls -l mnt/d; echo > mnt/d/here; done > /dev/null 2>&1 || :; }
        touch busy; change & look & look &
        for round in 1 2 3; do
            sleep 0.3
            kill -KILL $(daemon); gone
            fails stat mnt 2> /dev/null
            "$RCUWALK" umount mnt
            "$RCUWALK" mount -d src mnt
        done
        rm busy; wait
        same() { (cd src/d; stat -c "%n %s" *) > 1; (cd mnt/d; stat -c "%n %s" *) > 2; cmp -s 1 2; }
        until same; do sleep 0.01; done
        # A change that nobody has asked for shows without a timeout.
        stat mnt/d/here > /dev/null; sleep 1.5; echo 12345 > src/d/here
        until [ $(stat -c %s mnt/d/here) = 6 ]; do sleep 0.01; done
        kill -TERM $(daemon); gone; echo done
        "#,
    );
    assert_eq!(ended.out, "done\n", "{}", ended.err);
}
