//! `rcuwalk serve nfs`.

use std::net::TcpListener;

use crate::common::{alone, alone_well, can_mount, rcuwalk, run, skip};

/// A tree that is served in the background, and its port; `nfs TOOL PATH` asks libnfs's tools.
const SERVED: &str = r#"
    serve() { "$RCUWALK" serve nfs "$@" --listen 127.0.0.1:0 -d --log-file log --key-file key 2> said
        port=$(grep -o '[0-9]*$' said); }
    nfs() { "$1" "nfs://127.0.0.1/$2?version=3&nfsport=$port&mountport=$port"; }
    mkdir src/d; echo contents > src/d/f
"#;

fn lacks_libnfs() -> bool {
    let lacks = std::process::Command::new("nfs-cat").output().is_err();
    if lacks {
        skip("needs libnfs-utils");
    }
    lacks
}

#[test]
fn a_daemon_serves_until_it_is_told_to_end() {
    if !can_mount() || lacks_libnfs() {
        return;
    }
    let ended = alone_well(&format!(
        r#"{SERVED}
        serve src --stats --metrics unix:/run/m.sock
        cat said; nfs nfs-cat d/f
        nfs nfs-ls d | awk '{{ print $NF }}'
        stat -c %a key
        "$RCUWALK" mounts | grep nfs:// | sed 's/  */ /g' | cut -d' ' -f1,2,4-
        kill -USR1 $(daemon); until grep -q '^read ' log; do sleep 0.1; done
        kill -TERM $(daemon); gone
        ls /run/m.sock 2>&1 || true; ls rcuwalk | wc -l
        grep -c '^read ' log; tail -1 log
        "#
    ));
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(
        lines[0].starts_with("rcuwalk: src is served by NFS at 127.0.0.1:"),
        "{ended:?}"
    );
    assert_eq!(lines[1], "rcuwalk: metrics are at unix:/run/m.sock");
    assert_eq!(lines[2..5], ["contents", "f", "600"], "{ended:?}");
    let port = lines[0].rsplit(':').next().unwrap();
    let shown = format!("src nfs://127.0.0.1:{port}/ alive rw,sync,root_squash,secure");
    assert_eq!(lines[5], shown, "{ended:?}");
    assert!(lines[6].contains("No such file"), "{ended:?}");
    assert_eq!(lines[7], "0", "no socket is left");
    assert_eq!(lines[8], "2", "statistics, twice");
    assert!(lines[9].ends_with("the server has ended"), "{ended:?}");
}

#[test]
fn images_are_served_and_not_changed() {
    if !can_mount() || lacks_libnfs() {
        return;
    }
    let ended = alone(&format!(
        r#"{SERVED}
        mke2fs -q -d src image 8M > mkfs || exit 77
        sum=$(sha256sum image)
        serve image
        nfs nfs-cat d/f
        fails nfs-cp src/d/f "nfs://127.0.0.1/d/new?version=3&nfsport=$port&mountport=$port" 2> why
        kill -TERM $(daemon); gone
        [ "$sum" = "$(sha256sum image)" ]
        "#
    ));
    match ended.code {
        Some(77) => skip("needs mke2fs"),
        code => assert_eq!((code, &*ended.out), (Some(0), "contents\n"), "{ended:?}"),
    }
}

#[test]
fn what_cannot_be_served_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    let serve = |args: &[&str]| {
        let mut command = rcuwalk(["serve", "nfs"]);
        command.args(args).arg("--key-file").arg(&key);
        let ended = run(&mut command);
        (ended.code, ended.err)
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = format!(
        "rcuwalk: cannot listen at {address}: another server has this address (see --listen)\n"
    );
    assert_eq!(serve(&["memfs", "--listen", &address]), (Some(1), said));
    let free = ["--listen", "127.0.0.1:0"];
    let (code, said) = serve(&["/none", free[0], free[1]]);
    assert_eq!(code, Some(1));
    assert_eq!(
        said,
        "rcuwalk: cannot serve /none: there is no such file or directory\n"
    );
    // /proc has no file handles.
    if rcuwalk_testkit::is_root() {
        let (code, said) = serve(&["/proc", free[0], free[1]]);
        assert_eq!(
            (code, &*said),
            (
                Some(1),
                "rcuwalk: cannot serve /proc: its file system has no file handles\n"
            )
        );
    }
    std::fs::write(&key, "short").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (code, said) = serve(&["memfs", free[0], free[1]]);
    assert_eq!(code, Some(1));
    assert!(
        said.ends_with("a key has 16 bytes, and this has not\n"),
        "{said}"
    );
    for (wrong, words) in [
        ("2049", "say 127.0.0.1:2049"),
        ("localhost", "is no address"),
    ] {
        let (code, said) = serve(&["memfs", "--listen", wrong]);
        assert!(code == Some(2) && said.contains(words), "{said}");
    }
    let (code, said) = serve(&["memfs", "--allow", "10.0.0.0/99"]);
    assert!(code == Some(2) && said.contains("is no network"), "{said}");
}
