//! Which images there are: one for each choice mke2fs and tune2fs offer that changes
//! what is on the disk.

use std::path::{Path, PathBuf};

use super::fill::{self, Contents};
use super::workshop::{Workshop, mke2fs, run};

/// How an image is made, from an empty file to the compared contents.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// What failures call it.
    pub name: &'static str,
    /// Arguments of mke2fs, parted by spaces.
    pub mke2fs: &'static str,
    /// Size of the file before mke2fs.
    pub size: u64,
    /// Done to the empty file system.
    pub before: &'static [Tool],
    /// Its contents.
    pub contents: Contents,
    /// Done to the full file system.
    pub after: &'static [Tool],
}

/// Something done to a file system that is not mounted.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    /// `tune2fs ARGUMENTS image`.
    Tune(&'static str),
    /// `debugfs -w -R REQUEST image`.
    Debugfs(&'static str),
    /// The file gets this size, the file system is told with resize2fs.
    Resize(u64),
}

use Tool::{Debugfs, Resize, Tune};

const MB: u64 = 1 << 20;

/// An image of 64 MB with the usual contents, to be varied.
const fn recipe(name: &'static str, mke2fs: &'static str) -> Recipe {
    Recipe {
        name,
        mke2fs,
        size: 64 * MB,
        before: &[],
        contents: Contents::USUAL,
        after: &[],
    }
}

/// The three on-disk generations, and old and young block sizes.
pub const GENERATIONS: &[Recipe] = &[
    recipe("ext2, 1 KiB blocks", "-t ext2 -b 1024"),
    recipe("ext2, 4 KiB blocks", "-t ext2 -b 4096"),
    recipe(
        "ext2 without types in directories",
        "-t ext2 -b 1024 -O ^filetype",
    ),
    recipe("ext2 without indexed directories", "-t ext2 -O ^dir_index"),
    recipe("ext2, revision 0", "-t ext2 -r 0 -b 1024"),
    recipe("ext3", "-t ext3 -b 4096"),
    recipe("ext3, 1 KiB blocks", "-t ext3 -b 1024"),
    recipe("ext4", "-t ext4 -b 4096"),
    recipe("ext4, 1 KiB blocks", "-t ext4 -b 1024"),
    recipe("ext4, 2 KiB blocks", "-t ext4 -b 2048"),
    recipe("ext4 without a journal", "-t ext4 -O ^has_journal"),
];

/// Where groups, their descriptors and the backups are.
pub const LAYOUTS: &[Recipe] = &[
    recipe("^64bit", "-t ext4 -O ^64bit"),
    recipe("64bit", "-t ext4 -O 64bit"),
    recipe("^flex_bg", "-t ext4 -O ^flex_bg"),
    recipe("flex_bg of 2 groups", "-t ext4 -b 1024 -G 2"),
    recipe(
        "meta_bg",
        "-t ext4 -b 1024 -g 256 -O meta_bg,^resize_inode,^flex_bg",
    ),
    recipe(
        "meta_bg, ^64bit",
        "-t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode,^64bit",
    ),
    recipe("sparse_super2", "-t ext4 -b 1024 -O sparse_super2"),
    recipe(
        "^sparse_super",
        "-t ext4 -b 1024 -O ^sparse_super,^resize_inode",
    ),
    Recipe {
        size: 512 * MB,
        ..recipe("bigalloc", "-t ext4 -O bigalloc -C 65536")
    },
    recipe(
        "bigalloc, 1 KiB blocks",
        "-t ext4 -b 1024 -O bigalloc -C 8192",
    ),
    recipe("many inodes", "-t ext4 -i 1024"),
    recipe(
        "few inodes for their size",
        "-t ext4 -b 1024 -N 15000 -g 8192",
    ),
    Recipe {
        size: 24 * MB,
        after: &[Resize(80 * MB)],
        ..recipe("grown", "-t ext4 -b 1024")
    },
    Recipe {
        size: 24 * MB,
        after: &[Resize(300 * MB)],
        ..recipe(
            "grown into meta_bg",
            "-t ext4 -b 1024 -g 1024 -O ^resize_inode,64bit",
        )
    },
    Recipe {
        size: 160 * MB,
        after: &[Resize(64 * MB)],
        ..recipe("shrunk", "-t ext4 -b 1024")
    },
];

/// How inodes and blocks are kept, and with which checksums.
pub const INODES: &[Recipe] = &[
    recipe("^extent", "-t ext4 -O ^extent,^64bit"),
    recipe("^extent, 1 KiB blocks", "-t ext4 -b 1024 -O ^extent,^64bit"),
    recipe("^huge_file, ^dir_nlink", "-t ext4 -O ^huge_file,^dir_nlink"),
    recipe("inodes of 128 bytes", "-t ext4 -I 128"),
    recipe("inodes of 512 bytes", "-t ext4 -I 512"),
    recipe(
        "inodes of 1024 bytes, ^extra_isize",
        "-t ext4 -I 1024 -O ^extra_isize",
    ),
    recipe("inline_data", "-t ext4 -O inline_data"),
    recipe(
        "inline_data, 1 KiB blocks",
        "-t ext4 -b 1024 -I 256 -O inline_data",
    ),
    recipe(
        "inline_data in 1024 bytes",
        "-t ext4 -I 1024 -O inline_data",
    ),
    recipe(
        "inline_data, ^metadata_csum",
        "-t ext4 -I 512 -O inline_data,^metadata_csum",
    ),
    recipe("no checksums", "-t ext4 -O ^metadata_csum,^uninit_bg"),
    recipe("uninit_bg", "-t ext4 -O ^metadata_csum,uninit_bg"),
    recipe(
        "uninit_bg, ^64bit",
        "-t ext4 -O ^metadata_csum,uninit_bg,^64bit",
    ),
    recipe(
        "metadata_csum from the uuid",
        "-t ext4 -O metadata_csum,^metadata_csum_seed",
    ),
    Recipe {
        after: &[Tune("-U 6d8b1ffa-3f0e-4d5c-9a52-0d6a37c1c0de")],
        ..recipe(
            "metadata_csum_seed, another uuid since",
            "-t ext4 -O metadata_csum,metadata_csum_seed",
        )
    },
    Recipe {
        after: &[Tune("-O ^metadata_csum")],
        ..recipe("metadata_csum taken off", "-t ext4 -O metadata_csum")
    },
    recipe("ea_inode", "-t ext4 -O ea_inode"),
    recipe(
        "ea_inode, no checksums",
        "-t ext4 -b 1024 -O ea_inode,^metadata_csum",
    ),
];

/// Features that say little about what is on the disk, and must not be in the way.
pub const MARKS: &[Recipe] = &[
    Recipe {
        after: &[Tune("-O quota")],
        ..recipe("quota", "-t ext4")
    },
    Recipe {
        after: &[
            Tune("-O project"),
            Debugfs("sif files/one projid 4711"),
            Tune("-O quota"),
        ],
        ..recipe("project", "-t ext4")
    },
    recipe("verity", "-t ext4 -O verity"),
    recipe("encrypt", "-t ext4 -O encrypt"),
    recipe("stable_inodes", "-t ext4 -O stable_inodes"),
    recipe("orphan_file", "-t ext4 -O orphan_file"),
    recipe("^orphan_file", "-t ext4 -O ^orphan_file"),
    recipe("fast_commit", "-t ext4 -O fast_commit"),
    recipe("mmp", "-t ext4 -O mmp"),
];

/// How names are hashed: each algorithm, with characters that are negative on the
/// machine that made the image and ones that are not.
pub const HASHES: &[Recipe] = &[
    hashed(
        "legacy",
        &[Tune("-E hash_alg=legacy"), Debugfs("ssv flags 1")],
    ),
    hashed(
        "legacy, unsigned",
        &[Tune("-E hash_alg=legacy"), Debugfs("ssv flags 2")],
    ),
    hashed(
        "half_md4",
        &[Tune("-E hash_alg=half_md4"), Debugfs("ssv flags 1")],
    ),
    hashed(
        "half_md4, unsigned",
        &[Tune("-E hash_alg=half_md4"), Debugfs("ssv flags 2")],
    ),
    hashed("tea", &[Tune("-E hash_alg=tea"), Debugfs("ssv flags 1")]),
    hashed(
        "tea, unsigned",
        &[Tune("-E hash_alg=tea"), Debugfs("ssv flags 2")],
    ),
];

const fn hashed(name: &'static str, before: &'static [Tool]) -> Recipe {
    Recipe {
        before,
        contents: Contents::HASHED,
        ..recipe(name, "-t ext4 -b 1024")
    }
}

/// A directory whose index has three levels.
pub const LARGE_DIRECTORY: Recipe = Recipe {
    size: 128 * MB,
    contents: Contents {
        long_names: 45_000,
        ..Contents::LITTLE
    },
    ..recipe("large_dir", "-t ext4 -b 1024 -O large_dir")
};

/// More blocks than 32 bits can count.
pub const HUGE: Recipe = Recipe {
    size: 30 << 40,
    contents: Contents::LITTLE,
    ..recipe("30 TiB", "-t ext4 -O 64bit,sparse_super2 -N 200000")
};

/// What the kernel here does not mount: filled by mke2fs from a directory instead.
pub const UNMOUNTABLE: &[Recipe] = &[
    copied("64 KiB blocks", "-t ext4 -N 9000 -b 65536"),
    Recipe {
        // mke2fs gets the sizes wrong.
        contents: Contents {
            holes: false,
            ..Contents::COPIED
        },
        ..copied(
            "64 KiB blocks, inline_data",
            "-t ext4 -N 9000 -b 65536 -O inline_data",
        )
    },
    copied("ext2, 16 KiB blocks", "-t ext2 -N 9000 -b 16384"),
    copied("casefold", "-t ext4 -N 9000 -O casefold -E encoding=utf8"),
];

/// With a directory whose names have been encrypted, as far as its inode tells.
pub const ENCRYPTED: Recipe = Recipe {
    after: &[Debugfs("sif shapes/holes flags 0x80800")],
    ..recipe("an encrypted directory", "-t ext4 -O encrypt")
};

/// With a directory in which `A` is `a`.
pub const CASEFOLDED: Recipe = Recipe {
    after: &[Debugfs("sif shapes/holes flags 0x40080000")],
    ..copied(
        "a casefolded directory",
        "-t ext4 -N 9000 -O casefold -E encoding=utf8",
    )
};

/// Filled by mke2fs and mounted: its images are not quite the kernel's.
pub const COPIED: &[Recipe] = &[
    copied("ext2, copied", "-t ext2 -N 9000"),
    copied("ext4, copied", "-t ext4 -N 9000"),
    copied("inline_data, copied", "-t ext4 -N 9000 -O inline_data"),
];

const fn copied(name: &'static str, mke2fs: &'static str) -> Recipe {
    Recipe {
        size: 1024 * MB,
        contents: Contents::COPIED,
        ..recipe(name, mke2fs)
    }
}

impl Recipe {
    /// Makes the image, filled through the kernel, in `workshop`.
    ///
    /// # Errors
    /// What the host, mke2fs, the kernel or a step says.
    pub fn make(&self, workshop: &Workshop, seed: u64) -> Result<PathBuf, String> {
        let image = self.make_empty(workshop, &[])?;
        {
            let mounted = workshop.mount(&image, &["user_xattr"])?;
            fill::fill(mounted.at(), &self.contents, seed)?;
        }
        self.run_tools(self.after, &image)?;
        Ok(image)
    }

    /// Makes the image from the directory `from`, copied by mke2fs.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_from(&self, workshop: &Workshop, from: &Path) -> Result<PathBuf, String> {
        let from = from.to_str().ok_or("mke2fs -d takes text")?;
        let image = self.make_empty(workshop, &["-d", from])?;
        self.run_tools(self.after, &image)?;
        Ok(image)
    }

    fn make_empty(&self, workshop: &Workshop, more: &[&str]) -> Result<PathBuf, String> {
        let file: String = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let image = workshop.new_image(&file, self.size)?;
        // Always the same, as far as mke2fs can be told.
        let fixed = ["-U", UUID, "-E", HASH_SEED];
        let own: Vec<&str> = self.mke2fs.split(' ').collect();
        let fixed: &[&str] = if own.contains(&"-E") {
            &fixed[..2]
        } else {
            &fixed
        };
        // What large file systems get by themselves, and these would not.
        let block_size: &[&str] = if own.contains(&"-b") {
            &[]
        } else {
            &["-b", "4096"]
        };
        mke2fs(&image, &[fixed, block_size, &own, more].concat())?;
        self.run_tools(self.before, &image)?;
        Ok(image)
    }

    fn run_tools(&self, tools: &[Tool], image: &Path) -> Result<(), String> {
        tools.iter().try_for_each(|tool| tool.run(image))
    }
}

const UUID: &str = "0b6ff1d5-9d0c-4a93-8f6a-5b1f0e1c2d3e";
const HASH_SEED: &str = "hash_seed=7c3a5e10-2f4b-4d86-9b1e-a1b2c3d4e5f6";

impl Tool {
    fn run(self, image: &Path) -> Result<(), String> {
        let image_text = image.to_str().ok_or("the workshop's paths are text")?;
        match self {
            Tune(arguments) => {
                // Some changes want to be told first that all is well, and it is.
                e2fsck(image_text)?;
                let arguments = arguments.split(' ').chain([image_text]);
                run("tune2fs", ["-f"].into_iter().chain(arguments)).map(drop)
            }
            Debugfs(request) => run("debugfs", ["-w", "-R", request, image_text]).map(drop),
            Resize(size) => {
                e2fsck(image_text)?;
                let kib = format!("{}K", size / 1024);
                let set_size = || {
                    let file = std::fs::File::options().write(true).open(image)?;
                    file.set_len(size)
                };
                let grows = std::fs::metadata(image).is_ok_and(|now| now.len() < size);
                if grows {
                    set_size().map_err(|err| format!("{image_text}: {err}"))?;
                }
                run("resize2fs", [image_text, &kib])?;
                set_size().map_err(|err| format!("{image_text}: {err}"))
            }
        }
    }
}

fn e2fsck(image: &str) -> Result<(), String> {
    match run("e2fsck", ["-fy", image]) {
        // It has made directories and extent trees smaller.
        Err(said) if said.contains("exit status: 1;") => Ok(()),
        said => said.map(drop),
    }
}
