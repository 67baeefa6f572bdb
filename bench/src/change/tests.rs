use super::*;

/// Both sides do the same, and every row and every storm is in the report.
#[test]
fn a_short_run_has_all_rows() {
    let quick = Change {
        threads: vec![1, 2],
        rounds: 1,
    };
    let report = match quick.run(&AtomicBool::new(false), &mut |_| {}) {
        Err(ChangeError::NoTmpfs(why)) => {
            return rcuwalk_testkit::skip(&format!("needs a tmpfs: {why}"));
        }
        report => report.unwrap(),
    };
    assert_eq!(report.rows.len(), 2 * 3 * 2, "threads, steps, sides");
    assert!(report.rows.iter().all(|row| row.mops > 0.0), "{report:?}");
    assert_eq!(report.latency.len(), 2 * 3 + 2, "sides, storms");
    for one in &report.latency {
        assert!(one.p50_ns > 0.0 && one.p50_ns <= one.p99_ns, "{one:?}");
        let renames = matches!(one.storm, Storm::Elsewhere | Storm::SameDirectory);
        assert_eq!(one.renames_mops > 0.0, renames, "{one:?}");
        let evicts = one.storm == Storm::Evicting;
        assert_eq!(one.evictions_mops > 0.0, evicts, "{one:?}");
    }
    let text = report.to_string();
    assert!(
        text.contains("unlink") && text.contains("same directory"),
        "{text}"
    );
}

/// A raised flag means no report.
#[test]
fn a_stopped_run_has_no_report() {
    match Change::new().run(&AtomicBool::new(true), &mut |_| {}) {
        Err(ChangeError::Stopped | ChangeError::NoTmpfs(_)) => {}
        other => panic!("{other:?}"),
    }
}
