//! A server that is killed, and the one after it.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use nfs3_types::nfs3::*;

use rcuwalk_nfs::NOBODY;
use rcuwalk_testkit::lacks_root;

use crate::client::{Client, mode, user};
use crate::served::host;

const TREE: &str = "RCUWALK_NFS_TREE";

/// A server in a process of its own, which is killed with this.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(tree: &Path) -> Process {
        Process::run(Command::new(env::current_exe().unwrap()), tree)
    }

    fn run(mut command: Command, tree: &Path) -> Process {
        command.args(["--ignored", "--exact", "--nocapture"]);
        command.arg("restart::serves_for_another_process");
        command.env(TREE, tree).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.unwrap());
        let address =
            lines.find_map(|line| Some(line.split_once("serves at ")?.1.parse().unwrap()));
        let address = address.expect("an address");
        Process { child, address }
    }

    fn client(&self) -> Client {
        Client::new(self.address)
    }
}

impl Drop for Process {
    /// By SIGKILL.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "other tests run it, in a process of its own"]
fn serves_for_another_process() {
    let Some(tree) = env::var_os(TREE) else {
        return;
    };
    let served = host(tree.as_ref());
    // Behind the words of the test harness, on their line.
    println!("serves at {}", served.address());
    std::io::stdout().flush().unwrap();
    loop {
        thread::park();
    }
}

/// NFS-2: what was committed is there, and the client knows that the rest may not be.
#[test]
fn a_client_goes_on_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(dir.path());
    let mut client = server.client();
    let root = client.root.clone();
    let sub = client.mkdir(&root, "sub", mode(0o755)).unwrap();
    let file = client.create(&sub, "file").unwrap();
    let block = |n: u8| vec![n; 10_000];
    let mut verifier = None;
    for n in 0..100 {
        let at = u64::from(n) * 10_000;
        let stable = if n < 50 {
            stable_how::UNSTABLE
        } else {
            stable_how::FILE_SYNC
        };
        verifier = Some(client.write(&file, at, &block(n), stable).unwrap().verf);
        if n == 49 {
            assert_eq!(client.commit(&file).ok(), verifier);
        }
    }
    let how = || createhow3::EXCLUSIVE(createverf3([0xa5; 8]));
    let once = client.create_how(&sub, "once", how()).unwrap().obj.unwrap();
    let late = client
        .write(&file, 1_000_000, b"late", stable_how::UNSTABLE)
        .unwrap();
    assert_eq!(Some(late.verf), verifier);
    drop(server);
    let data: Vec<u8> = (0..100).flat_map(block).collect();
    assert!(
        fs::read(dir.path().join("sub/file")).unwrap()[..1_000_000] == data,
        "NFS-2"
    );

    let server = Process::start(dir.path());
    let mut client = server.client();
    assert_eq!(client.root, root);
    // The reply to the create was lost, say.
    assert_eq!(
        client.create_how(&sub, "once", how()).unwrap().obj.unwrap(),
        once
    );
    assert_ne!(Some(client.commit(&file).unwrap()), verifier, "NFS-2");
    let again = client
        .write(&file, 1_000_000, b"late", stable_how::UNSTABLE)
        .unwrap()
        .verf;
    assert_eq!(client.commit(&file).unwrap(), again);
    let read = client.read(&file, 999_990, 100).unwrap();
    assert_eq!(read, ([&[99; 10][..], b"late"].concat(), true));
}

/// A process that is not root finds files by their paths alone, and opens what its user may.
#[test]
fn a_process_of_a_user_serves_the_users_files() {
    if lacks_root() {
        return;
    }
    let (tree, program) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    chown(tree.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // Where users may execute it.
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(program.path(), all).unwrap();
    let program = program.path().join("server");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let start = || {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        Process::run(command, tree.path())
    };
    let connect = |server: &Process| Client::of(server.address, user(NOBODY, NOBODY, &[]));

    let server = start();
    let mut client = connect(&server);
    let root = client.root.clone();
    let how = || createhow3::EXCLUSIVE(createverf3([7; 8]));
    let file = client.create_how(&root, "once", how()).unwrap().obj;
    let file = file.unwrap();
    let again = client.create_how(&root, "once", how()).unwrap().obj;
    assert_eq!(again.unwrap(), file);
    client.setattr(&file, mode(0o644)).unwrap();
    client
        .write(&file, 0, b"text", stable_how::FILE_SYNC)
        .unwrap();
    let sub = client.mkdir(&root, "sub", mode(0o755)).unwrap();
    client.rename((&root, "once"), (&sub, "moved")).unwrap();
    assert_eq!(client.read(&file, 0, 10).unwrap(), (b"text".to_vec(), true));
    client.setattr(&file, mode(0)).unwrap();
    assert_eq!(client.getattr(&file).unwrap().mode & 0o777, 0);
    client.setattr(&file, mode(0o600)).unwrap();
    drop(server);

    let server = start();
    let mut client = connect(&server);
    assert_eq!(client.root, root);
    let sub = client.lookup(&root, "sub").unwrap();
    assert_eq!(client.lookup(&sub, "moved").unwrap(), file);
    assert_eq!(client.read(&file, 0, 10).unwrap(), (b"text".to_vec(), true));
}
