//! A thread that changes files, directories and attributes at random.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, lsetxattr};

use super::Changes;
use rcuwalk_testkit::Rng;

/// One of several writers; they meet in one directory.
pub(super) struct Writer {
    rng: Rng,
    /// Its own directory, and the common one.
    dirs: [PathBuf; 2],
    /// Files removed while open are on the list of orphans until they are closed.
    open: Vec<File>,
}

/// What a journal's blocks begin with: in contents, it must be escaped.
const JOURNAL_MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

impl Writer {
    pub(super) fn new(top: PathBuf, number: u64, rng: Rng) -> Writer {
        let dirs = [top.join(format!("writer-{number}")), top.join("common")];
        for dir in &dirs {
            // Another writer may have made the common one.
            let _ = fs::create_dir(dir);
        }
        Writer {
            rng,
            dirs,
            open: Vec::new(),
        }
    }

    /// Makes one change. Names that are taken, gone or in use meanwhile, and a full file
    /// system, are part of it.
    pub(super) fn step(&mut self, changes: Changes) {
        let _ = match changes {
            Changes::All => self.change_anything(),
            Changes::Simple => self.change_and_sync(),
        };
    }

    fn change_and_sync(&mut self) -> io::Result<()> {
        let path = self.any();
        match self.rng.below(10) {
            0..=1 => fs::remove_file(&path),
            _ => {
                self.write(&path)?;
                File::open(&path)?.sync_all()
            }
        }
    }

    fn change_anything(&mut self) -> io::Result<()> {
        let path = self.any();
        match self.rng.below(20) {
            0..=3 => self.write(&path),
            4 => self.grow_or_cut(&path),
            5..=6 => fs::rename(&path, self.any()),
            7..=8 => fs::remove_file(&path),
            9 => fs::hard_link(&path, self.any()),
            10 => {
                let length = *self.rng.pick(&[5, 59, 60, 300, 1000]);
                symlink("t".repeat(length), &path)
            }
            11 => self.make_directory(&path),
            12 => fs::remove_dir_all(&path),
            13..=14 => self.set_xattr(&path),
            15 => self.remove_while_open(&path),
            16 => self.punch(&path),
            17 => self.owner_and_time(&path),
            18 => File::open(&path)?.sync_all(),
            _ => self.sync_some(),
        }
    }

    fn any(&mut self) -> PathBuf {
        let name = format!("{}", self.rng.below(60));
        self.rng.pick(&self.dirs).join(name)
    }

    fn write(&mut self, path: &PathBuf) -> io::Result<()> {
        let length = *self.rng.pick(&[0, 10, 50, 100, 1000, 5000, 20_000]);
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            if bytes.len().is_multiple_of(1024) && self.rng.chance(70) {
                bytes.extend_from_slice(&JOURNAL_MAGIC);
                bytes.extend_from_slice(&[0, 0, 0, 1]);
            }
            bytes.extend_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        bytes.truncate(length);
        fs::write(path, bytes)
    }

    fn grow_or_cut(&mut self, path: &PathBuf) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        if self.rng.chance(50) {
            let offset = self.rng.below(200_000) as u64;
            file.write_all_at(b"further on", offset)
        } else {
            file.set_len(self.rng.below(30_000) as u64)
        }
    }

    /// Its blocks are metadata; removed, they may be used for contents, which the
    /// journal must not replay over: it revokes them.
    fn make_directory(&mut self, path: &PathBuf) -> io::Result<()> {
        fs::create_dir(path)?;
        for index in 0..self.rng.below(60) {
            let name = format!("{index}-{}", "d".repeat(self.rng.below(100)));
            File::create(path.join(name))?;
        }
        Ok(())
    }

    fn set_xattr(&mut self, path: &PathBuf) -> io::Result<()> {
        let name = format!("user.{}", self.rng.below(4));
        if self.rng.chance(20) {
            return Ok(rustix::fs::lremovexattr(path, name)?);
        }
        let length = *self.rng.pick(&[0, 4, 30, 200, 900, 2000]);
        let value = vec![self.rng.next_u64() as u8; length];
        Ok(lsetxattr(path, name, &value, XattrFlags::empty())?)
    }

    fn remove_while_open(&mut self, path: &PathBuf) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        fs::remove_file(path)?;
        self.open.push(file);
        if self.open.len() > 5 {
            self.open.remove(0);
        }
        Ok(())
    }

    fn punch(&mut self, path: &PathBuf) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let how = *self
            .rng
            .pick(&[hole, FallocateFlags::empty(), FallocateFlags::KEEP_SIZE]);
        let offset = self.rng.below(30_000) as u64;
        Ok(fallocate(&file, how, offset, 8192)?)
    }

    fn owner_and_time(&mut self, path: &PathBuf) -> io::Result<()> {
        let id = self.rng.below(1 << 20) as u32;
        std::os::unix::fs::lchown(path, Some(id), Some(id / 2))
    }

    fn sync_some(&mut self) -> io::Result<()> {
        if self.rng.chance(90) {
            let dir = self.rng.pick(&self.dirs);
            return File::open(dir)?.sync_all();
        }
        Ok(rustix::fs::syncfs(File::open(&self.dirs[0])?)?)
    }
}
