//! Images of every kind mke2fs makes: ours reads what the kernel reads.
//!
//! Making and mounting them takes root; without, these tests say so and are skipped.
//! `RCUWALK_SEED` chooses what is in the images.

use std::fs;
use std::path::{Path, PathBuf};

use rcuwalk_conformance::ext4::compare::{Beside, Coverage, compare};
use rcuwalk_conformance::ext4::fill::{self, Contents};
use rcuwalk_conformance::ext4::recipe::{self, Recipe};
use rcuwalk_conformance::ext4::workshop::{Workshop, in_workshop, run};
use rcuwalk_conformance::settings::Settings;
use rcuwalk_ext4::{Error, Ext4};

/// EDGE-1: ext2, ext3 and ext4, of each block size the kernel mounts, read as it does.
#[test]
fn each_generation_reads_as_the_kernel_does() {
    let coverage = all(
        "each_generation_reads_as_the_kernel_does",
        recipe::GENERATIONS,
    );
    if let Some(coverage) = coverage {
        assert!(
            coverage.iter().any(|coverage| coverage.indexed > 2),
            "no indexed directory"
        );
        assert!(
            coverage.iter().all(|coverage| coverage.xattrs > 50),
            "few xattrs"
        );
        assert!(
            coverage.iter().any(|coverage| coverage.huge > 0),
            "no file beyond 4 GiB"
        );
    }
}

/// EDGE-1: wherever groups and their descriptors are, before and after resizing.
#[test]
fn each_layout_reads_as_the_kernel_does() {
    all("each_layout_reads_as_the_kernel_does", recipe::LAYOUTS);
}

/// EDGE-1: all kinds of inodes, block maps and checksums.
#[test]
fn each_shape_of_inode_reads_as_the_kernel_does() {
    let coverage = all(
        "each_shape_of_inode_reads_as_the_kernel_does",
        recipe::INODES,
    );
    if let Some(coverage) = coverage {
        assert!(
            coverage.iter().any(|coverage| coverage.inline > 20),
            "nothing inline"
        );
        assert!(
            coverage
                .iter()
                .any(|coverage| coverage.longest_xattr == 1 << 16),
            "no ea_inode"
        );
    }
}

/// EDGE-1: features that are not about reading are not in its way.
#[test]
fn features_that_do_not_matter_do_not_matter() {
    all("features_that_do_not_matter_do_not_matter", recipe::MARKS);
}

/// EDGE-1: names are found, and not found, by each hash, signed and unsigned.
#[test]
fn names_are_found_by_each_hash() {
    let coverage = all("names_are_found_by_each_hash", recipe::HASHES);
    for coverage in coverage.into_iter().flatten() {
        assert!(coverage.indexed >= 4, "{coverage:?}");
        assert!(coverage.missing > 100, "{coverage:?}");
    }
}

/// The images of the test above have the hashes that they are for.
#[test]
fn images_have_the_hash_that_they_are_named_after() {
    in_workshop(
        "images_have_the_hash_that_they_are_named_after",
        |workshop| {
            for recipe in recipe::HASHES {
                let contents = Contents::LITTLE;
                let image = Recipe {
                    contents,
                    ..*recipe
                }
                .make(workshop, seed())
                .unwrap();
                let said = run("dumpe2fs", ["-h", image.to_str().unwrap()]).unwrap();
                let (hash, unsigned) = match recipe.name.split_once(", ") {
                    Some((hash, _)) => (hash, true),
                    None => (recipe.name, false),
                };
                let is = |line: &str| {
                    said.lines()
                        .any(|said| said.split_whitespace().eq(line.split_whitespace()))
                };
                assert!(
                    is(&format!("Default directory hash: {hash}")),
                    "{hash}\n{said}"
                );
                let sign = if unsigned { "unsigned" } else { "signed" };
                assert!(
                    is(&format!("Filesystem flags: {sign}_directory_hash")),
                    "{said}"
                );
            }
        },
    );
}

/// EDGE-1: a directory whose index has three levels, as large_dir allows.
#[test]
fn a_large_directory_reads_as_the_kernel_does() {
    let test = "a_large_directory_reads_as_the_kernel_does";
    in_workshop(test, |workshop| {
        let image = recipe::LARGE_DIRECTORY.make(workshop, seed()).unwrap();
        let index = run(
            "debugfs",
            ["-R", "htree_dump /long", image.to_str().unwrap()],
        )
        .unwrap();
        assert!(
            index.contains("Indirect levels: 2"),
            "not deep: {:.500}",
            index
        );
        beside_mounted(workshop, &image).unwrap();
    });
}

/// EDGE-1: blocks whose numbers take more than 32 bits.
#[test]
fn a_huge_file_system_reads_as_the_kernel_does() {
    let test = "a_huge_file_system_reads_as_the_kernel_does";
    in_workshop(test, |workshop| {
        let image = recipe::HUGE.make(workshop, seed()).unwrap();
        let image_text = image.to_str().unwrap();
        let is_far = |index: usize| {
            let request = format!("blocks /shapes/wide/{index}");
            let blocks = run("debugfs", ["-R", &request, image_text]).unwrap();
            let block = blocks.split_whitespace().next().map(str::parse::<u64>);
            matches!(block, Some(Ok(block)) if block > u64::from(u32::MAX))
        };
        assert!((0..80).any(is_far), "no directory beyond 16 TiB");
        beside_mounted(workshop, &image).unwrap();
    });
}

/// EDGE-1: what the kernel does not mount here reads as what mke2fs was given.
#[test]
fn what_the_kernel_does_not_mount_reads_as_what_was_copied() {
    let test = "what_the_kernel_does_not_mount_reads_as_what_was_copied";
    in_workshop(test, |workshop| {
        each(recipe::UNMOUNTABLE, |recipe| {
            let from = copied_from(workshop, recipe)?;
            let image = recipe.make_from(workshop, &from)?;
            let ext4 = Ext4::open(&image).map_err(|err| err.to_string())?;
            compare(&ext4, &from, Beside::Copied).map_err(|err| err.to_string())
        });
    });
}

/// EDGE-1: what mke2fs has put into an image reads as the kernel reads that.
#[test]
fn what_mke2fs_copies_reads_as_the_kernel_does() {
    let test = "what_mke2fs_copies_reads_as_the_kernel_does";
    in_workshop(test, |workshop| {
        each(recipe::COPIED, |recipe| {
            let from = copied_from(workshop, recipe)?;
            beside_mounted(workshop, &recipe.make_from(workshop, &from)?)
        });
    });
}

/// EDGE-1: names that cannot be told without a key or without tables of characters are
/// refused by name, and nothing else is.
#[test]
fn what_cannot_be_told_is_refused() {
    in_workshop("what_cannot_be_told_is_refused", |workshop| {
        let refuses = |found: Result<Option<u32>, Error>, feature: &str| {
            let said = found.unwrap_err().to_string();
            assert_eq!(said.find("unsupported feature: "), Some(0), "{said}");
            assert!(said.contains(feature), "{said}");
        };
        let image = recipe::ENCRYPTED.make(workshop, seed()).unwrap();
        let ext4 = Ext4::open(&image).unwrap();
        let dir = at(&ext4, &["shapes", "holes"]);
        refuses(ext4.lookup(dir, b"entry-0001"), "encrypt");
        refuses(ext4.lookup(dir, b"missing"), "encrypt");
        at(&ext4, &["shapes", "wide", "1"]);

        let from = copied_from(workshop, &recipe::CASEFOLDED).unwrap();
        let image = recipe::CASEFOLDED.make_from(workshop, &from).unwrap();
        let ext4 = Ext4::open(&image).unwrap();
        let dir = at(&ext4, &["shapes", "holes"]);
        assert!(ext4.lookup(dir, b"entry-0001").unwrap().is_some());
        refuses(ext4.lookup(dir, b"ENTRY-0001"), "casefold");
        refuses(ext4.lookup(dir, b"missing"), "casefold");
        let other = at(&ext4, &["shapes"]);
        assert_eq!(ext4.lookup(other, b"HOLES").unwrap(), None);
    });
}

/// The inode that these names, from the root on, lead to.
fn at(ext4: &Ext4, path: &[&str]) -> u32 {
    path.iter().fold(2, |dir, name| {
        let found = ext4.lookup(dir, name.as_bytes()).unwrap();
        found.unwrap_or_else(|| panic!("{name} is not there"))
    })
}

/// A directory with the contents that `recipe` wants.
fn copied_from(workshop: &Workshop, recipe: &Recipe) -> Result<PathBuf, String> {
    // Each its own: files that are immutable cannot be removed again.
    let from = workshop.path(&format!("from {}", recipe.name));
    fs::create_dir(&from).map_err(|err| err.to_string())?;
    fill::fill(&from, &recipe.contents, seed())?;
    Ok(from)
}

/// EDGE-1: more of everything: two levels of index and three of extents with 4 KiB
/// blocks, and the same without extents.
#[test]
#[ignore = "takes minutes; part of the deep run"]
fn large_contents_read_as_the_kernel_does() {
    let much = |recipe: &Recipe| Recipe {
        size: 1 << 30,
        contents: Contents::MUCH,
        ..*recipe
    };
    let recipes: Vec<Recipe> = recipe::GENERATIONS
        .iter()
        .chain(recipe::INODES)
        .map(much)
        .collect();
    all("large_contents_read_as_the_kernel_does", &recipes);
}

/// Compares every one of them, and fails with the differences of all.
fn all(test: &str, recipes: &[Recipe]) -> Option<Vec<Coverage>> {
    in_workshop(test, |workshop| {
        each(recipes, |recipe| {
            let image = recipe.make(workshop, seed())?;
            let coverage = beside_mounted(workshop, &image)?;
            fs::remove_file(&image).map_err(|err| err.to_string())?;
            Ok(coverage)
        })
    })
}

fn each(
    recipes: &[Recipe],
    mut read: impl FnMut(&Recipe) -> Result<Coverage, String>,
) -> Vec<Coverage> {
    let mut wrong = String::new();
    let mut all = Vec::new();
    for recipe in recipes {
        match read(recipe) {
            Ok(coverage) => {
                println!("{}: {coverage:?}", recipe.name);
                assert!(
                    coverage.entries > 500,
                    "{}: too little to compare",
                    recipe.name
                );
                all.push(coverage);
            }
            Err(why) => {
                wrong += &format!("=== {} (mke2fs {}): {why}\n", recipe.name, recipe.mke2fs)
            }
        }
    }
    assert!(wrong.is_empty(), "seed {:#x}\n{wrong}", seed());
    all
}

fn beside_mounted(workshop: &Workshop, image: &Path) -> Result<Coverage, String> {
    let ext4 = Ext4::open(image).map_err(|err| format!("cannot open: {err}"))?;
    let mounted = workshop.mount(image, &["ro"])?;
    compare(&ext4, mounted.at(), Beside::Mounted).map_err(|err| err.to_string())
}

fn seed() -> u64 {
    Settings::from_env(0).seed
}
