//! `rcuwalk mount --max-inodes`, and its effect.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::process::Stdio;

use rcuwalk_testkit::wait_until;

use crate::common::{alone_well, can_mount, rcuwalk, run, run_well};

/// NODE-2: the kernel is asked for nodes back when it holds more than it may.
#[test]
fn the_kernel_holds_no_more_than_it_may() {
    if !can_mount() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let mut command = rcuwalk(["mount", "--stats", "--max-inodes", "200", "memfs"]);
    let mut mount = command
        .arg(at.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(mount.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("is mounted") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "has ended");
    }
    for n in 0..2000 {
        fs::write(at.path().join(n.to_string()), "x").unwrap();
    }
    run_well(rcuwalk(["umount"]).arg(at.path()));
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert!(mount.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("its budget    200 nodes"), "{rest}");
    let before = |words: &str| {
        let (text, _) = rest.split_once(words).unwrap();
        let figure = text.trim_end().rsplit(' ').next().unwrap();
        figure.parse::<u64>().unwrap()
    };
    assert!(before("forgets") > 1000, "NODE-2: {rest}");
    // How soon the worker gets its turn is the machine's affair.
    assert!(before("the most that") < 600, "NODE-2: {rest}");
}

#[test]
fn what_is_no_limit_is_refused() {
    for (option, said) in [
        ("--max-inodes=0", "is no number above 0"),
        ("--max-memory=lots", "is no size, such as 512M"),
        ("-omax_fds=few", "max_fds cannot be \"few\""),
        ("-osize=much", "size cannot be \"much\""),
        ("-osize=", "size cannot be \"\""),
        ("-osize=-1", "size cannot be \"-1\""),
        ("-onr_inodes=1%", "nr_inodes cannot be \"1%\""),
    ] {
        let ended = run(&mut rcuwalk(["mount", option, "memfs", "/nowhere"]));
        assert_eq!(ended.code, Some(2), "{option}");
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}

#[test]
fn a_tree_in_memory_is_as_large_as_it_is_said_to_be() {
    if !can_mount() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let at = at.path();
    let mount = |options: &str| {
        let mounted = run(rcuwalk(["mount", "--daemon", options, "memfs"]).arg(at));
        assert_eq!((mounted.code, &*mounted.err), (Some(0), ""), "{options}");
    };
    let umount = || {
        run_well(rcuwalk(["umount"]).arg(at));
    };
    let statfs = || rustix::fs::statvfs(at).unwrap();
    let full = |done: std::io::Result<()>| done.unwrap_err().kind() == ErrorKind::StorageFull;

    mount("-oentry_timeout=1");
    let defaults = statfs();
    let memory = defaults.f_blocks * 2;
    assert!(memory > 0, "half of the memory, not without limit");
    assert!(
        defaults.f_files.abs_diff(memory / 2) <= 1,
        "an inode for each two pages: {} and {memory}",
        defaults.f_files,
    );
    umount();

    mount("-osize=1m,nr_inodes=20");
    let is = statfs();
    assert_eq!((is.f_blocks, is.f_bfree), (256, 256));
    assert_eq!((is.f_files, is.f_ffree), (20, 19));
    fs::write(at.join("half"), vec![1; 512 << 10]).unwrap();
    assert_eq!(statfs().f_bfree, 128);
    assert!(full(fs::write(at.join("more"), vec![1; 1 << 20])));
    assert_eq!(fs::metadata(at.join("more")).unwrap().len(), 512 << 10);
    fs::remove_file(at.join("half")).unwrap();
    fs::remove_file(at.join("more")).unwrap();
    wait_until("all is free again", || {
        (statfs().f_bfree, statfs().f_ffree) == (256, 19)
    });
    // Limited anew, as it is.
    let remount = |options: &str| run(rcuwalk(["mount", options, "memfs"]).arg(at));
    let done = remount("-oremount,size=2m,nr_inodes=30");
    assert_eq!((done.code, &*done.err), (Some(0), ""));
    assert_eq!((statfs().f_blocks, statfs().f_files), (512, 30));
    fs::write(at.join("large"), vec![1; 2 << 20]).unwrap();
    let refused = remount("-oremount,size=1m,nr_inodes=20,noexec");
    let why = "more is in use than these limits allow";
    assert!(refused.err.contains(why), "{}", refused.err);
    assert_eq!((statfs().f_blocks, statfs().f_files), (512, 30));
    let noexec = rustix::fs::StatVfsMountFlags::NOEXEC;
    assert!(!statfs().f_flag.contains(noexec), "nothing is changed");
    fs::remove_file(at.join("large")).unwrap();
    wait_until("the file is gone", || statfs().f_bfree == 512);
    let done = remount("-oremount,size=1m,nr_inodes=20");
    assert_eq!((done.code, &*done.err), (Some(0), ""));
    assert_eq!((statfs().f_blocks, statfs().f_files), (256, 20));
    // Neither by names alone, nor by the other parts of an inode.
    for n in 0..19 {
        fs::create_dir(at.join(n.to_string())).unwrap();
    }
    assert!(full(fs::create_dir(at.join("20"))));
    assert!(full(std::os::unix::fs::symlink("x", at.join("20"))));
    for n in 1..19 {
        fs::remove_dir(at.join(n.to_string())).unwrap();
    }
    wait_until("the directories are gone", || statfs().f_ffree == 18);
    let one = at.join("0");
    let set = |name: &str| {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&one, name, &[1; 10 << 10], none).map_err(Into::into)
    };
    set("user.one").unwrap();
    assert!(full(set("user.two")), "18 inodes' worth are 18 KiB");
    umount();

    let refused = run(rcuwalk(["mount", "-osize=1m", "/proc"]).arg(at));
    assert_eq!(refused.code, Some(1));
    let why = "size= and nr_inodes= limit a tree in memory, and /proc is none";
    assert!(refused.err.contains(why), "{}", refused.err);
}

/// As a user, opens all that is named, as files or as directories of which one entry is read, until that is
/// refused; says how many there are and why there are no more; and holds them until it is told to
/// end.
const HOLD: &str = r#"
import errno, os, sys
user, how, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
os.setgroups([])
os.setuid(user)
held, why = [], 'all'
for name in names:
    try:
        if how == 'files':
            held.append(os.open(name, os.O_RDONLY))
        else:
            held.append(os.scandir(name))
            next(held[-1])
    except OSError as err:
        why = errno.errorcode[err.errno]
        break
print(len(held), why, flush=True)
sys.stdin.read()
"#;

/// MEM-1: users who open as many files as they can leave descriptors to root and to lookups.
#[test]
fn root_lists_while_users_hold_all_descriptors() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(&format!(
        r#"
        cat > hold.py <<'END'
{HOLD}
END
        chmod 755 src mnt; mkdir src/d; for n in $(seq 200); do : > src/$n; done
        (ulimit -n 256; "$RCUWALK" mount -d -o allow_other src mnt)
        mkfifo end; exec 5<> end
        for user in 1001 1002 1003; do
            python3 hold.py $user files $(seq -f mnt/%.0f 200) < end > said-$user &
            until [ -s said-$user ]; do sleep 0.1; done
            cat said-$user
        done
        # What is open counts, not what is looked up.
        setpriv --reuid 1003 --clear-groups stat -c %F mnt/150
        setpriv --reuid 1003 --clear-groups ls mnt/d 2>&1 | grep -c 'Too many open files in system'
        ls mnt | wc -l; cat mnt/150 mnt/151; ls mnt/d | wc -l
        exec 5>&-; kill $(jobs -p); wait || true
        until setpriv --reuid 1003 --clear-groups cat mnt/150; do sleep 0.1; done 2> /dev/null
        umount mnt; gone
        "#
    ));
    let lines = "96 ENFILE\n96 ENFILE\n0 ENFILE\nregular empty file\n1\n201\n0\n";
    assert_eq!(ended.out, lines, "MEM-1: {}", ended.err);
}

/// MEM-1: a daemon's memory is `--max-memory`, and the extra that docs/fuse.md lists: the test
/// walks a far larger tree, with many open files and directories of several users, listed in
/// part.
#[test]
fn open_directories_take_little_memory() {
    if !can_mount() {
        return;
    }
    let ended = alone_well(&format!(
        r#"
        cat > hold.py <<'END'
{HOLD}
END
        chmod 755 src mnt; ulimit -n 8192
        name=$(printf 'x%.0s' $(seq 60))
        for dir in $(seq 6); do mkdir src/$dir; (cd src/$dir; seq -f $name-%.0f 1200 | xargs touch); done
        "$RCUWALK" mount -d -o allow_other --max-memory 4M src mnt
        resident() {{ grep VmRSS /proc/$(daemon)/status | tr -dc 0-9; }}
        before=$(resident)
        find mnt -type f -size +1 | wc -l
        mkfifo end; exec 5<> end
        for user in 1001 1002; do
            for how in files dirs; do
                names=$(for dir in $(seq 6); do for n in $(seq 50); do
                    [ $how = dirs ] && echo mnt/$dir || echo mnt/$dir/$name-$n
                done; done)
                python3 hold.py $user $how $names < end > said &
                until [ -s said ]; do sleep 0.1; done
                cat said; : > said
            done
        done
        echo $(($(resident) - before))
        exec 5>&-; kill $(jobs -p); wait || true
        umount mnt; gone
        "#
    ));
    let (said, grown) = ended.out.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(said, "0\n300 all\n300 all\n300 all\n300 all", "{ended:?}");
    let grown: u64 = grown.parse().unwrap();
    println!("{grown} KiB more are resident");
    // 4 MiB of nodes; 1,200 files and directories of 2 KiB; 128 listings of 200 KiB; buffers.
    assert!(grown < (4 + 3 + 26 + 14) << 10, "MEM-1: {grown} KiB");
}
