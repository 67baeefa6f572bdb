//! The sound images that damage starts from.
//!
//! All by mke2fs and debugfs alone, with fixed numbers in place of random ones and of the
//! clock, so that an inode's number in a mutation that was written down stays what it is.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::layout::{Kind, Layout};

/// A sound image and where its structures are.
#[derive(Debug)]
pub struct Seed {
    /// The recipe's name.
    pub name: &'static str,
    /// The image.
    pub bytes: Vec<u8>,
    /// Its structures.
    pub layout: Layout,
}

/// How an image is made.
struct Recipe {
    name: &'static str,
    options: &'static [&'static str],
    /// What debugfs does besides filling it.
    more: &'static [&'static str],
    /// Transactions that wait in the journal, by debugfs with these options.
    journal: Option<&'static str>,
}

const fn recipe(name: &'static str, options: &'static [&'static str]) -> Recipe {
    Recipe {
        name,
        options,
        more: &[],
        journal: None,
    }
}

const RECIPES: &[Recipe] = &[
    recipe("plain", &["-b", "1024", "-O", "^has_journal"]),
    recipe(
        "no checksums",
        &["-b", "1024", "-O", "^has_journal,^metadata_csum,^uninit_bg"],
    ),
    recipe(
        "old checksums",
        &["-b", "1024", "-O", "^has_journal,^metadata_csum,uninit_bg"],
    ),
    recipe("ext2", &["-t", "ext2", "-b", "1024", "-I", "128"]),
    recipe("ext3", &["-t", "ext3", "-b", "1024", "-O", "^has_journal"]),
    recipe("blocks of 4 KiB", &["-b", "4096", "-O", "^has_journal"]),
    recipe(
        "blocks of 2 KiB, csum_seed",
        &["-b", "2048", "-O", "^has_journal,metadata_csum_seed,^64bit"],
    ),
    recipe(
        "inline_data",
        &["-b", "1024", "-O", "^has_journal,inline_data"],
    ),
    recipe(
        "inline_data, large inodes, no checksums",
        &[
            "-b",
            "1024",
            "-I",
            "512",
            "-O",
            "^has_journal,inline_data,^metadata_csum",
        ],
    ),
    recipe(
        "ea_inode, large_dir",
        &["-b", "1024", "-O", "^has_journal,ea_inode,large_dir"],
    ),
    recipe(
        "bigalloc",
        &[
            "-b",
            "1024",
            "-C",
            "4096",
            "-O",
            "^has_journal,bigalloc,^resize_inode",
        ],
    ),
    recipe(
        "meta_bg, small groups",
        &[
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "^has_journal,meta_bg,^resize_inode,^flex_bg",
        ],
    ),
    recipe(
        "sparse_super2",
        &[
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "^has_journal,sparse_super2,^resize_inode",
        ],
    ),
    Recipe {
        more: &[
            "sif case flags 0x40080000",
            "sif dir flags 0x80800",
            "sif crypt flags 0x80800",
            "sif far flags 0x800",
        ],
        ..recipe(
            "casefold, encrypt",
            &["-b", "1024", "-O", "^has_journal,casefold,encrypt"],
        )
    },
    Recipe {
        journal: Some(""),
        ..recipe(
            "journal",
            &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"],
        )
    },
    Recipe {
        journal: Some("-c -v 2"),
        ..recipe("journal, checksums v2", &["-b", "1024", "-J", "size=1"])
    },
    Recipe {
        journal: Some("-c -v 3"),
        ..recipe("journal, checksums v3", &["-b", "1024", "-J", "size=1"])
    },
];

const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// Makes all of them, or returns the reason why they cannot be made here.
///
/// # Panics
/// If a tool is there and does not do what it is asked for.
pub fn seeds() -> Result<Vec<Seed>, String> {
    let tools = Tools::find()?;
    let temp = tempfile::tempdir().expect("a temporary directory");
    Ok(RECIPES
        .iter()
        .map(|recipe| make(recipe, &tools, &temp))
        .collect())
}

struct Tools {
    mke2fs: PathBuf,
    debugfs: PathBuf,
    e2fsck: PathBuf,
}

impl Tools {
    fn find() -> Result<Tools, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Where they are, and an ordinary user's PATH does not lead.
        let dirs: Vec<PathBuf> = std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .collect();
        let find = |name: &str| {
            let mut places = dirs.iter().map(|dir| dir.join(name));
            places
                .find(|path| path.is_file())
                .ok_or(format!("needs {name}"))
        };
        Ok(Tools {
            mke2fs: find("mke2fs")?,
            debugfs: find("debugfs")?,
            e2fsck: find("e2fsck")?,
        })
    }
}

fn make(recipe: &Recipe, tools: &Tools, temp: &TempDir) -> Seed {
    let image = temp.path().join("image");
    let _ = fs::remove_file(&image);
    let kind = match recipe.options {
        ["-t", ..] => &[][..],
        _ => &["-t", "ext4"],
    };
    let mut mke2fs = Command::new(&tools.mke2fs);
    mke2fs
        .args(["-q", "-F", "-N", "128", "-U", UUID])
        .arg("-E")
        .arg(format!("root_owner=0:0,hash_seed={UUID}"))
        .args(kind)
        .args(recipe.options)
        .arg(&image)
        .arg("3M");
    run(&mut mke2fs, &[0]);
    debugfs(tools, &image, temp.path(), &fill(temp.path()));
    // Links are counted and directories indexed; oddities that remain are intended.
    run(Command::new(&tools.e2fsck).arg("-fyD").arg(&image), &[0, 1]);
    debugfs(tools, &image, temp.path(), &recipe.more.join("\n"));
    if let Some(options) = recipe.journal {
        let requests = transactions(options, &image, temp.path());
        debugfs(tools, &image, temp.path(), &requests);
    }
    let mut bytes = fs::read(&image).expect("it was made");
    let mut layout = Layout::of(&bytes);
    if recipe.journal.is_some() {
        leave_to_the_journal(&mut layout, &mut bytes);
    }
    Seed {
        name: recipe.name,
        layout,
        bytes,
    }
}

/// Wipes the root directory and its inode, which are also in the journal and not needed to find
/// it: a reader that does not replay the journal finds nothing.
fn leave_to_the_journal(layout: &mut Layout, bytes: &mut [u8]) {
    let size = layout.block_size;
    let wiped = [Kind::Inode, Kind::Directory].map(|kind| {
        let first = layout.spots_of(kind).next();
        first.expect("every image has a root").at / size
    });
    for block in wiped {
        bytes[block * size..][..size].fill(0);
    }
    layout
        .spots
        .retain(|spot| !wiped.contains(&(spot.at / size)));
}

/// What debugfs is to put into an image: of everything something, and not much.
fn fill(temp: &Path) -> String {
    let from = |name: &str, bytes: &[u8]| {
        let path = temp.join(name);
        fs::write(&path, bytes).expect("room for a few files");
        path.display().to_string()
    };
    let pieces = temp.join("pieces");
    let file = File::create(&pieces).expect("room for a few files");
    // As many extents as make a tree of two levels; or double indirect blocks.
    for index in 0..350_u64 {
        file.write_all_at(&[7; 1024], index * 2048).expect("room");
    }
    let pieces = pieces.display();
    let small = from("small", b"contents of a small file");
    let middle = from("middle", &[b'm'; 5000]);
    let value = from("value", &[b'v'; 600]);
    let large = from("large", &[b'l'; 3000]);
    let none = from("none", b"");

    let mut script = format!(
        "mkdir dir\nmkdir dir/sub\nmkdir dir/sub/deeper\nmkdir case\nmkdir big\n\
         write {small} small\nwrite {middle} middle\nwrite {pieces} pieces\nwrite {none} none\n\
         write {small} crypt\nwrite {small} dir/one\nwrite {middle} dir/sub/two\n\
         write {small} case/Name\nln small dir/sub/deeper/again\n\
         symlink near target\nsymlink far {}\nsymlink dir/up ../small\n\
         mknod block b 8 17\nmknod char c 300 60000\nmknod pipe p\n\
         ea_set small user.small value\nea_set -f {value} small user.middle\n\
         ea_set dir user.dir of-a-directory\nea_set -f {large} middle user.large\n\
         ea_set -f {value} pieces trusted.pieces\nea_set near user.near x\n",
        "far/".repeat(50)
    );
    // Three names to a block of 1 KiB, so that the index has two levels there.
    for _ in 0..150 {
        script.push_str("expand_dir big\n");
    }
    for number in 0..400 {
        let _ = writeln!(script, "ln small big/{number:0>250}");
    }
    for number in 0..60 {
        let _ = writeln!(script, "ln none case/name{number:0>20}");
    }
    script
}

/// Two transactions with blocks of metadata as they are, and one that revokes. The blocks
/// of [`leave_to_the_journal`] are among them.
fn transactions(options: &str, image: &Path, temp: &Path) -> String {
    let bytes = fs::read(image).expect("it was made");
    let layout = Layout::of(&bytes);
    let size = layout.block_size;
    let mut blocks: Vec<usize> = [Kind::SuperBlock, Kind::Group, Kind::Inode, Kind::Directory]
        .into_iter()
        .filter_map(|kind| Some(layout.spots_of(kind).next()?.at / size))
        .collect();
    blocks.dedup();
    let write = |name: &str, blocks: &[usize]| {
        let contents = blocks
            .iter()
            .flat_map(|block| &bytes[block * size..][..size]);
        let path = temp.join(name);
        fs::write(&path, contents.copied().collect::<Vec<u8>>()).expect("room");
        let numbers: Vec<_> = blocks.iter().map(usize::to_string).collect();
        format!("jw -b {} {}", numbers.join(","), path.display())
    };
    let last = blocks.len() - 1;
    let revoke = match options {
        "" => "jw -r 2500,2501\n",
        _ => "",
    };
    format!(
        "jo {options}\n{}\n{}\n{revoke}jc\n",
        write("all", &blocks),
        write("last", &blocks[last..]),
    )
}

fn debugfs(tools: &Tools, image: &Path, temp: &Path, script: &str) {
    let requests = temp.join("requests");
    fs::write(&requests, script).expect("room for a few files");
    let mut debugfs = Command::new(&tools.debugfs);
    debugfs.args(["-w", "-f"]).args([&requests, image]);
    run(&mut debugfs, &[0]);
}

fn run(command: &mut Command, good: &[i32]) {
    let done = command
        .env("E2FSPROGS_FAKE_TIME", "1700000000")
        // They must not ask questions, and their messages are parsed, so they run in the C
        // locale.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|err| panic!("{command:?}: {err}"));
    let code = done.status.code();
    assert!(
        code.is_some_and(|code| good.contains(&code)),
        "{command:?}: {done:?}"
    );
}
