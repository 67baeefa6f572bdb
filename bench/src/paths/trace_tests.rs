use super::*;

fn parse(lines: &[&str]) -> TracedPaths {
    let mut parser = Parser::new(b"/start".to_vec());
    for line in lines {
        parser.line(line.as_bytes());
    }
    parser.asked
}

/// Only the paths, for lines that drop none.
fn paths(lines: &[&str]) -> Vec<String> {
    let asked = parse(lines);
    assert_eq!((asked.relative_dropped, asked.special_dropped), (0, 0));
    let text = |path| String::from_utf8(path).unwrap();
    asked.paths.into_iter().map(text).collect()
}

#[test]
fn escapes_are_undone_in_hex_octal_and_letters() {
    let seen = parse(&[r#"7 access("\x2f\x61\xff\0019\12\n\\\"", R_OK) = 0"#]);
    assert_eq!(seen.paths, [b"/a\xff\x019\n\n\\\""]);
}

#[test]
fn calls_are_taken_in_order_with_repeats_and_whether_they_fail_or_not() {
    let seen = paths(&[
        r#"7  execve("/bin/x", ["/not/a/path"], 0x7f /* 3 vars */) = 0"#,
        r#"7  access("/a", R_OK) = -1 ENOENT (No such file or directory)"#,
        r#"7  openat(AT_FDCWD</start>, "/b", O_RDONLY) = 3</b>"#,
        r#"7  access("/a", R_OK) = -1 ENOENT (No such file or directory)"#,
    ]);
    assert_eq!(seen, ["/bin/x", "/a", "/b", "/a"]);
}

#[test]
fn a_call_split_over_two_lines_counts_once() {
    let seen = paths(&[
        r#"7 openat(AT_FDCWD</start>, "/b", O_RDONLY <unfinished ...>"#,
        r#"8 access("/a", R_OK) = 0"#,
        r#"7 <... openat resumed>) = 3</b>"#,
    ]);
    assert_eq!(seen, ["/b", "/a"]);
}

#[test]
fn lines_without_a_lookup_are_skipped() {
    let seen = paths(&[
        "",
        "7 +++ exited with 0 +++",
        "7 --- SIGCHLD {si_signo=SIGCHLD} ---",
        r#"7 unlink("/gone") = 0"#,
        r#"7 newfstatat(3</x>, "", {st_mode=S_IFREG}, AT_EMPTY_PATH) = 0"#,
        "7 statx(AT_FDCWD, NULL, 0, 0, 0x7ff) = -1 EFAULT (Bad address)",
        r#"7 access("/cut/sho"..., R_OK) = 0"#,
        r#"7 access("/half"#,
    ]);
    assert_eq!(seen, [""; 0]);
}

#[test]
fn relative_paths_start_from_their_descriptor_or_the_current_directory() {
    let seen = paths(&[
        r#"7 access("a", R_OK) = 0"#,
        r#"7 openat(AT_FDCWD</here>, "b", O_RDONLY) = 3"#,
        r#"7 access("c", R_OK) = 0"#,
        r#"7 openat(5</\x65\x74c>, "d", O_RDONLY) = 3"#,
        r#"7 access("../e", R_OK) = 0"#,
    ]);
    assert_eq!(
        seen,
        ["/start/a", "/here/b", "/here/c", "/etc/d", "/here/../e"]
    );
}

#[test]
fn a_process_that_moves_takes_its_relative_paths_along() {
    let seen = paths(&[
        r#"8 access("early", R_OK) = 0"#,
        r#"7 chdir("sub") = 0"#,
        r#"7 access("a", R_OK) = 0"#,
        r#"7 chdir("/nowhere") = -1 ENOENT (No such file or directory)"#,
        r#"7 access("b", R_OK) = 0"#,
        r#"7 fchdir(3</top>) = 0"#,
        r#"7 access("c", R_OK) = 0"#,
        r#"8 access("late", R_OK) = 0"#,
    ]);
    let expected = [
        "/start/early",
        "/start/sub",
        "/start/sub/a",
        "/nowhere",
        "/start/sub/b",
        "/top/c",
        "/start/late",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn relative_paths_of_uncertain_start_are_dropped_and_counted() {
    let seen = parse(&[
        r#"7 chdir("/top") = 0"#,
        // A child of which process? Of one that moved, or of one that did not?
        r#"8 access("a", R_OK) = 0"#,
        r#"7 openat(5<socket:[17]>, "b", O_RDONLY) = -1 ENOTDIR (Not a directory)"#,
        r#"7 openat(5, "c", O_RDONLY) = -1 EBADF (Bad file descriptor)"#,
    ]);
    assert_eq!(seen.paths, [b"/top"]);
    assert_eq!(seen.relative_dropped, 3);
}

#[test]
fn paths_of_kernel_made_trees_are_dropped_and_counted() {
    let seen = parse(&[
        r#"7 access("/proc/self/maps", R_OK) = 0"#,
        r#"7 access("//dev", R_OK) = 0"#,
        r#"7 access("/sys/", R_OK) = 0"#,
        r#"7 access("/devel/x", R_OK) = 0"#,
    ]);
    assert_eq!(seen.paths, [b"/devel/x"]);
    assert_eq!(seen.special_dropped, 3);
}

#[test]
fn an_empty_command_is_refused() {
    assert!(matches!(run(&[]), Err(TraceError::NoCommand)));
}

#[test]
fn a_failing_command_is_traced_and_its_status_reported() {
    let script = "test -e /nowhere/'odd\nname'; cd /usr && test -e lib; exit 3";
    match run(&["sh", "-c", script].map(OsString::from)) {
        Ok(trace) => {
            assert_eq!(trace.status.code(), Some(3));
            let asked = |path: &[u8]| trace.list.as_slice().iter().any(|p| p == path);
            assert!(
                asked(b"/nowhere/odd\nname") && asked(b"/usr/lib"),
                "{trace:?}"
            );
        }
        // Without strace, or where it may not trace, the message must say so.
        Err(err) => assert!(err.to_string().contains("strace"), "{err}"),
    }
}
