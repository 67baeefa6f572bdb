//! Contents: as a model has them, and as safe as was asked for.

use std::fs;

use nfs3_types::nfs3::*;
use rcuwalk_testkit::Rng;

use crate::client::{Client, Fh};
use crate::served::{Served, host, memfs};

/// The file as it should be.
struct Model {
    bytes: Vec<u8>,
}

impl Model {
    fn write(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(data);
    }

    fn read(&self, at: usize, len: usize) -> &[u8] {
        let at = at.min(self.bytes.len());
        &self.bytes[at..(at + len).min(self.bytes.len())]
    }
}

/// As fsx does: random reads, writes and truncations of one file, compared with a model.
fn exercise(client: &mut Client, file: &Fh, seed: u64, rounds: u32) -> Model {
    const MOST: usize = 256 * 1024;
    let mut rng = Rng::new(seed);
    let mut model = Model { bytes: Vec::new() };
    for round in 0..rounds {
        let at = rng.below(MOST);
        let len = rng.below(64 * 1024).min(MOST - at);
        match rng.below(10) {
            0..4 => {
                let data: Vec<u8> = (0..len).map(|n| (n as u32 ^ round) as u8).collect();
                let stable = match rng.below(8) {
                    0 => stable_how::FILE_SYNC,
                    1 => stable_how::DATA_SYNC,
                    _ => stable_how::UNSTABLE,
                };
                let done = client.write(file, at as u64, &data, stable).unwrap();
                assert_eq!(done.count as usize, len);
                assert_eq!(done.committed, stable);
                model.write(at, &data);
            }
            4..8 => {
                let (data, ended) = client.read(file, at as u64, len as u32).unwrap();
                assert_eq!(data, model.read(at, len), "seed {seed}, round {round}");
                assert_eq!(ended, at + data.len() >= model.bytes.len());
            }
            8 => {
                client.resize(file, at as u64).unwrap();
                model.bytes.resize(at, 0);
            }
            _ => _ = client.commit(file).unwrap(),
        }
        let size = client.getattr(file).unwrap().size;
        assert_eq!(size, model.bytes.len() as u64, "seed {seed}, round {round}");
    }
    model
}

#[test]
fn contents_are_as_a_model_has_them() {
    let served = memfs();
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    exercise(&mut client, &file, 1, 300);
    let dir = tempfile::tempdir().unwrap();
    let served = host(dir.path());
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    let model = exercise(&mut client, &file, 2, 300);
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), model.bytes);
}

#[test]
fn reads_end_where_the_file_does() {
    let served = memfs();
    let mut client = served.client();
    let root = client.root.clone();
    let file = client.create(&root, "file").unwrap();
    assert_eq!(client.read(&file, 0, 10).unwrap(), (vec![], true));
    client
        .write(&file, 0, b"0123456789", stable_how::UNSTABLE)
        .unwrap();
    assert_eq!(
        client.read(&file, 0, 10).unwrap(),
        (b"0123456789".to_vec(), true)
    );
    assert_eq!(
        client.read(&file, 0, 9).unwrap(),
        (b"012345678".to_vec(), false)
    );
    assert_eq!(client.read(&file, 9, 0).unwrap(), (vec![], false));
    assert_eq!(client.read(&file, 10, 5).unwrap(), (vec![], true));
    assert_eq!(
        client.read(&file, 1 << 40, u32::MAX).unwrap(),
        (vec![], true)
    );
    let far = client.read(&file, u64::MAX, 5);
    assert!(
        matches!(far, Ok((_, true)) | Err(nfsstat3::NFS3ERR_INVAL)),
        "{far:?}"
    );
    let past = client.write(&file, i64::MAX as u64, b"xy", stable_how::UNSTABLE);
    assert!(
        matches!(past, Err(nfsstat3::NFS3ERR_INVAL | nfsstat3::NFS3ERR_FBIG)),
        "{past:?}"
    );
    let longest = vec![1; 1 << 20];
    let done = client
        .write(&file, 0, &longest, stable_how::UNSTABLE)
        .unwrap();
    assert_eq!(done.count, 1 << 20);
    assert_eq!(client.read(&file, 0, 1 << 20).unwrap(), (longest, true));
    assert_eq!(
        client
            .write(&file, 0, b"", stable_how::UNSTABLE)
            .unwrap()
            .count,
        0
    );
}

/// NFS-2: the verifier is the same until the server ends.
#[test]
fn a_restart_changes_the_verifier() {
    let dir = tempfile::tempdir().unwrap();
    let verifiers = |served: &Served| {
        let mut client = served.client();
        let root = client.root.clone();
        let file = client
            .lookup(&root, "file")
            .or_else(|_| client.create(&root, "file"))
            .unwrap();
        let unstable = client
            .write(&file, 0, b"a", stable_how::UNSTABLE)
            .unwrap()
            .verf;
        let stable = client
            .write(&file, 1, b"b", stable_how::FILE_SYNC)
            .unwrap()
            .verf;
        assert_eq!(unstable, stable);
        assert_eq!(client.commit(&file).unwrap(), unstable);
        unstable
    };
    let served = host(dir.path());
    let first = verifiers(&served);
    assert_eq!(verifiers(&served), first, "NFS-2");
    drop(served);
    assert_ne!(verifiers(&host(dir.path())), first, "NFS-2");
}
