//! Taking a tree from a host: all that a list of paths needs, and no more.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Entry, Kind, TreeSpec};

/// As many links as Linux follows in one path.
const MAX_LINKS: usize = 40;

impl TreeSpec {
    /// Takes from `host_root` what `paths` meet on their way.
    ///
    /// That is every directory, file and symlink that a path leads through, those
    /// that its links lead through, and for a missing name the directories before
    /// it. On the tree, the paths then have the same outcome as on the host: found,
    /// missing, or lost in a loop of links.
    ///
    /// Paths are absolute and start at `host_root`, as do absolute links. Whatever
    /// is neither directory nor symlink becomes a regular file. Set-user-id and
    /// set-group-id bits are dropped; they change no lookup, and are not to be
    /// spread around.
    ///
    /// # Errors
    ///
    /// A path that goes up from the root with `..` is refused: on the host it stays
    /// at the root, on a tree built in some directory it would leave it.
    pub fn capture(paths: &[Vec<u8>], host_root: &Path) -> io::Result<Self> {
        let mut walker = Walker {
            host_root,
            met: BTreeMap::new(),
        };
        for path in paths {
            walker.walk(path).map_err(|err| {
                let path = path.escape_ascii();
                io::Error::new(err.kind(), format!("{path}: {err}"))
            })?;
        }
        // A directory's path is a prefix of the paths in it, so it sorts before them.
        Ok(Self {
            entries: walker.met.into_values().collect(),
        })
    }
}

struct Walker<'a> {
    host_root: &'a Path,
    /// By path relative to the root. Its directories are never symlinks.
    met: BTreeMap<Vec<u8>, Entry>,
}

impl Walker<'_> {
    /// Walks as the kernel does, one component after the other, and keeps what it
    /// meets. Stops where the kernel would.
    fn walk(&mut self, path: &[u8]) -> io::Result<()> {
        let mut at = Vec::new();
        let mut links = 0;
        let mut ahead = Vec::new();
        push_components(&mut ahead, path);

        while let Some(name) = ahead.pop() {
            if name == b"." {
                continue;
            }
            if name == b".." {
                go_up(&mut at)?;
                continue;
            }
            let child = join(&at, &name);
            match self.meet(&child)? {
                Some(Kind::Dir) => at = child,
                Some(Kind::Symlink(_)) if links == MAX_LINKS => return Ok(()),
                Some(Kind::Symlink(target)) => {
                    links += 1;
                    push_components(&mut ahead, &target);
                }
                Some(Kind::File) | None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns the entry at `path`, whose directories are known; `None` if it does not exist.
    fn meet(&mut self, path: &[u8]) -> io::Result<Option<Kind>> {
        if let Some(entry) = self.met.get(path) {
            return Ok(Some(entry.kind.clone()));
        }
        let host_path = self.host_root.join(OsStr::from_bytes(path));
        let meta = match fs::symlink_metadata(&host_path) {
            Ok(meta) => meta,
            Err(err) if is_an_answer(&err) => return Ok(None),
            Err(err) => return Err(err),
        };
        let kind = kind_of(path, host_path, &meta)?;
        let entry = Entry {
            path: path.to_owned(),
            kind: kind.clone(),
            mode: meta.mode() & 0o1777,
            uid: meta.uid(),
            gid: meta.gid(),
        };
        self.met.insert(path.to_owned(), entry);
        Ok(Some(kind))
    }
}

/// Errors that the path itself would get, so that the tree need not hold more.
fn is_an_answer(err: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        err.kind(),
        NotFound | NotADirectory | PermissionDenied | InvalidFilename
    )
}

fn kind_of(path: &[u8], host_path: PathBuf, meta: &Metadata) -> io::Result<Kind> {
    if meta.is_dir() {
        return Ok(Kind::Dir);
    }
    if !meta.is_symlink() {
        return Ok(Kind::File);
    }
    let target = fs::read_link(host_path)?.into_os_string().into_vec();
    let dirs = path.iter().filter(|&&byte| byte == b'/').count();
    Ok(Kind::Symlink(relative_target(target, dirs)))
}

/// The target as seen from a link that is `dirs` directories below the root.
fn relative_target(target: Vec<u8>, dirs: usize) -> Vec<u8> {
    if !target.starts_with(b"/") {
        return target;
    }
    let mut relative = b"../".repeat(dirs);
    relative.extend(target.iter().skip_while(|&&byte| byte == b'/'));
    if relative.is_empty() {
        relative.push(b'.');
    }
    relative
}

/// Puts the components of `path` on top, the first uppermost.
fn push_components(ahead: &mut Vec<Vec<u8>>, path: &[u8]) {
    let names = path.rsplit(|&byte| byte == b'/');
    ahead.extend(names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
}

fn go_up(at: &mut Vec<u8>) -> io::Result<()> {
    if at.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "goes up from the root, which would lead out of a tree built elsewhere",
        ));
    }
    let parent = at.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    at.truncate(parent);
    Ok(())
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"" => name.to_owned(),
        dir => [dir, b"/", name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::paths::PathList;

    /// The lines of the tree that `paths` need, without owner.
    fn captured(root: &Path, paths: &[&str]) -> io::Result<Vec<String>> {
        let paths: Vec<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let text = TreeSpec::capture(&paths, root)?.to_text();
        let without_owner = |line: &str| {
            let fields: Vec<_> = line.split(' ').collect();
            [&fields[..1], &fields[4..]].concat().join(" ")
        };
        Ok(text.lines().map(without_owner).collect())
    }

    fn host() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("usr/lib/gcc/12")).unwrap();
        fs::create_dir(root.join("usr/unused")).unwrap();
        fs::write(root.join("usr/lib/libz.so.1"), "contents").unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("/lib/libz.so.1", root.join("usr/lib/libz.so")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("/", root.join("root")).unwrap();
        symlink("../..", root.join("usr/out")).unwrap();
        dir
    }

    #[test]
    fn a_missing_name_needs_the_directories_before_it() {
        let host = host();
        let tree = captured(host.path(), &["/usr/lib/none/x"]).unwrap();
        assert_eq!(tree, ["dir usr", "dir usr/lib"]);
    }

    #[test]
    fn links_are_kept_with_all_they_lead_through_and_made_relative() {
        let host = host();
        let tree = captured(host.path(), &["/usr/lib/gcc/12/../../libz.so"]).unwrap();
        let expected = [
            "link lib -> usr/lib",
            "dir usr",
            "dir usr/lib",
            "dir usr/lib/gcc",
            "dir usr/lib/gcc/12",
            "link usr/lib/libz.so -> ../../lib/libz.so.1",
            "file usr/lib/libz.so.1",
        ];
        assert_eq!(tree, expected);
    }

    #[test]
    fn a_link_to_the_root_leads_to_the_root_of_the_tree() {
        let host = host();
        let tree = captured(host.path(), &["/root/usr"]).unwrap();
        assert_eq!(tree, ["link root -> .", "dir usr"]);
        assert_eq!(relative_target(b"/".to_vec(), 2), b"../../");
    }

    #[test]
    fn a_loop_of_links_ends_the_walk() {
        let host = host();
        let tree = captured(host.path(), &["/loop/x"]).unwrap();
        assert_eq!(tree, ["link loop -> loop"]);
    }

    #[test]
    fn nothing_is_behind_a_file() {
        let host = host();
        let tree = captured(host.path(), &["/usr/lib/libz.so.1/../gcc"]).unwrap();
        assert_eq!(tree, ["dir usr", "dir usr/lib", "file usr/lib/libz.so.1"]);
    }

    #[test]
    fn going_up_from_the_root_is_refused_also_through_a_link() {
        let host = host();
        for path in ["/usr/../../etc", "/usr/out/etc"] {
            let err = captured(host.path(), &[path]).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
            assert!(err.to_string().starts_with(path), "{err}");
        }
    }

    #[test]
    fn set_id_bits_are_not_captured_but_the_sticky_bit_is() {
        let host = host();
        let dir = host.path().join("usr/lib");
        fs::set_permissions(dir, PermissionsExt::from_mode(0o7755)).unwrap();
        let tree = TreeSpec::capture(&[b"/usr/lib".to_vec()], host.path()).unwrap();
        assert_eq!(tree.entries()[1].mode, 0o1755);
    }

    /// The built-in tree holds all that its paths need, and no more.
    #[test]
    fn what_is_captured_of_the_materialised_builtin_tree_is_the_builtin_tree() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = TreeSpec::builtin();
        tree.materialise(dir.path()).unwrap();
        let paths = PathList::builtin();
        let mut again = TreeSpec::capture(paths.as_slice(), dir.path()).unwrap();
        // Only root can give files away.
        if !rustix::process::geteuid().is_root() {
            for entry in tree.entries.iter_mut().chain(&mut again.entries) {
                (entry.uid, entry.gid) = (0, 0);
            }
        }
        assert_eq!(again.to_text(), tree.to_text());
    }
}
