//! The wide list: so many paths that each lookup waits for memory.
//!
//! Tree and list are computed from a fixed seed, so that every machine asks for the same paths.
//! The tree has the proportions of a system's `/usr`: some nine files to a directory, most of
//! them four to eight directories deep. All paths exist.

use std::fmt::Write;

use crate::paths::PathList;
use crate::random::Random;
use crate::tree::TreeSpec;

/// How many paths the list has, each once.
const PATHS: usize = 45_000;
/// How many directories they are in.
const DIRS: usize = 5_000;
/// How many directories lie above one another at most.
const DEEPEST: usize = 8;
const SEED: u64 = 17;

/// Computes the list, and the tree it belongs to.
pub(super) fn wide() -> (PathList, TreeSpec) {
    let mut random = Random::new(SEED);
    // Each directory's path and depth; the first one is the root.
    let mut dirs = vec![(String::new(), 0)];
    let mut tree = String::new();
    let mut list = String::new();
    while dirs.len() <= DIRS {
        let (parent, depth) = &dirs[random.below(dirs.len() as u64) as usize];
        if *depth == DEEPEST {
            continue;
        }
        let name = format!("{parent}/{}{}", word(&mut random), dirs.len());
        let depth = depth + 1;
        line(&mut tree, "dir 0755", &name);
        dirs.push((name, depth));
    }
    for number in 0..PATHS {
        let (parent, _) = &dirs[random.below(dirs.len() as u64) as usize];
        let name = format!("{parent}/{}{number}", word(&mut random));
        line(&mut tree, "file 0644", &name);
        // Directories are drawn at random, so neighbours of the list are none in the tree.
        list.push_str(&name);
        list.push('\n');
    }
    let list = PathList::parse(list.as_bytes()).expect("absolute paths without NUL");
    let tree = TreeSpec::parse(&tree).expect("each entry after its directory");
    (list, tree)
}

fn line(tree: &mut String, kind: &str, path: &str) {
    let path = path.trim_start_matches('/');
    writeln!(tree, "{kind} 0 0 {path}").expect("a string takes everything");
}

/// Three to 16 letters; a number after them makes the name unique.
fn word(random: &mut Random) -> String {
    let letters = 3 + random.below(14);
    let letter = |_| char::from(b'a' + random.below(26) as u8);
    (0..letters).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_list_is_the_same_in_each_run_and_all_its_paths_are_files_of_the_tree() {
        let (list, tree) = wide();
        assert_eq!((list.clone(), tree.clone()), wide());
        assert_eq!(list.len(), PATHS);
        let files = &tree.entries()[DIRS..];
        let listed = list.as_slice().iter().map(|path| &path[1..]);
        assert!(listed.eq(files.iter().map(|file| &file.path[..])));
    }
}
