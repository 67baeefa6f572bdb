//! Permission bits: only the caller's own class decides.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::thread::CapabilitySet;

use super::User;
use crate::common::on_each;

const OWNER: u32 = 1099;
const GROUP: u32 = 2099;

/// The owner, a member of the group, and a user of neither class.
const CALLERS: [User<'_>; 3] = [
    caller(OWNER, &[500]),
    caller(1200, &[GROUP]),
    caller(1012, &[100]),
];

const fn caller(uid: u32, groups: &[u32]) -> User<'_> {
    User {
        uid,
        groups,
        caps: CapabilitySet::empty(),
    }
}

/// The uses that the three bits of a class allow, the lowest bit first.
const USES: [fn(&Path) -> bool; 3] = [
    |path| Command::new(path).status().is_ok_and(|done| done.success()),
    |path| File::options().append(true).open(path).is_ok(),
    |path| File::open(path).is_ok(),
];

/// EDGE-1: each permission bit lets its own class read, write or execute a file, and no other
/// class.
#[test]
fn a_permission_bit_is_for_its_class() {
    on_each(|mount| {
        let path = mount.path().join("program");
        // Copied by another process: if this one had it open for writing, a fork could inherit
        // the descriptor and keep other threads from executing the file.
        let copied = Command::new("sh")
            .args(["-c", "cp -L /bin/true \"$0\""])
            .arg(&path)
            .status();
        assert!(copied.unwrap().success());
        chown(&path, Some(OWNER), Some(GROUP)).unwrap();
        for bit in (0..9).map(Some).chain([None]) {
            let mode = bit.map_or(0, |bit| 1 << bit);
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for (class, caller) in CALLERS.iter().enumerate() {
                for (kind, uses) in USES.iter().enumerate() {
                    let may = bit == Some((2 - class) * 3 + kind);
                    let done = caller.does(|| uses(&path));
                    let on = mount.kind;
                    assert_eq!(
                        done, may,
                        "EDGE-1: {on} {mode:03o} class {class} use {kind}"
                    );
                }
            }
        }
    });
}
