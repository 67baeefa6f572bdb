//! The key that signs file handles: drawn once, and kept, so that handles outlive a restart.

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcuwalk::HandleKey;

use crate::failure::{Failure, Words};

const BYTES: usize = 16;

/// The key in `file`, which is made if it is not there; in the user's own file if none is given.
pub(super) fn load(file: Option<&Path>) -> Result<HandleKey, Failure> {
    if let Some(path) = file {
        let key = of_file(path);
        return key.map_err(|err| Failure::error(format_args!("{}: {err}", path.display())));
    }
    let own = own_file().ok_or_else(|| io::Error::other("there is no home directory"));
    match own.and_then(|path| of_file(&path)) {
        Ok(key) => Ok(key),
        Err(err) => {
            tracing::warn!(
                "file handles will be stale after a restart: their key cannot be kept: {} (see --key-file)",
                Words(&err)
            );
            let key = draw().map(HandleKey::new);
            key.map_err(|err| Failure::error(format_args!("no random numbers: {}", Words(&err))))
        }
    }
}

fn own_file() -> Option<PathBuf> {
    let name = "rcuwalk/nfs.key";
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/var/lib").join(name));
    }
    let state = env::var_os("XDG_STATE_HOME").filter(|dir| Path::new(dir).is_absolute());
    let of_home = || Some(PathBuf::from(env::var_os("HOME")?).join(".local/state"));
    Some(state.map(PathBuf::from).or_else(of_home)?.join(name))
}

fn of_file(path: &Path) -> io::Result<HandleKey> {
    match read(path) {
        Err(err) if err.kind() == ErrorKind::NotFound => {}
        read => return read,
    }
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
    }
    // It gets its name once it is whole, and only if no other process has made one meanwhile.
    let mut whole = path.as_os_str().to_owned();
    whole.push(format!(".{}", std::process::id()));
    let whole = PathBuf::from(whole);
    let made = make(&whole).and_then(|()| fs::hard_link(&whole, path));
    let _ = fs::remove_file(&whole);
    match made {
        Err(err) if err.kind() != ErrorKind::AlreadyExists => Err(err),
        _ => read(path),
    }
}

fn make(path: &Path) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&draw()?)?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<HandleKey> {
    let file = File::open(path)?;
    let there = file.metadata()?;
    if there.mode() & 0o077 != 0 {
        return Err(io::Error::other(
            "other users may read the key: whoever knows it can make up file handles",
        ));
    }
    let mut bytes = Vec::new();
    file.take(BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let bytes = <[u8; BYTES]>::try_from(bytes);
    let key = bytes.map_err(|_| io::Error::other("a key has 16 bytes, and this has not"))?;
    Ok(HandleKey::new(key))
}

fn draw() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_and_is_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/nfs.key");
        load(Some(&path)).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(
            (bytes.len(), fs::metadata(&path).unwrap().mode() & 0o777),
            (BYTES, 0o600)
        );
        load(Some(&path)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
        fs::write(&path, b"too short").unwrap();
        assert!(load(Some(&path)).is_err());
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        assert!(load(Some(&path)).is_err());
    }
}
