//! Directories: names that exist, and names that do not.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rcuwalk::{Error, LookupFlags};

use super::{Beside, ROOT, Walk, absolute, number, theirs};
use crate::ext4::collisions;

impl Walk<'_> {
    /// Compares the entries, and returns the kernel's.
    pub(super) fn directory(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        let kernel = theirs::listing(&theirs::below(self.top, path));
        let ours = self.listing(path);
        let Some((kernel, ours)) = self.both(path, "listing", kernel, ours) else {
            return Vec::new();
        };
        self.same_entries(path, &kernel, &ours);
        let names: Vec<Vec<u8>> = kernel.into_iter().map(|(name, ..)| name).collect();
        self.lookups(path, &names);
        names
    }

    fn listing(&self, path: &[u8]) -> Result<Vec<theirs::Entry>, Error> {
        let mut ours = Vec::new();
        for entry in self.vfs.read_dir(&self.ctx, absolute(path))? {
            let entry = entry?;
            ours.push((
                entry.name.into_vec(),
                entry.ino,
                theirs::type_bits(entry.kind),
            ));
        }
        ours.retain(|(name, ..)| !(path.is_empty() && self.is_made(name)));
        ours.sort();
        Ok(ours)
    }

    fn same_entries(&mut self, path: &[u8], kernel: &[theirs::Entry], ours: &[theirs::Entry]) {
        let copied = self.beside == Beside::Copied;
        let comparable = |entries: &[theirs::Entry]| -> Vec<theirs::Entry> {
            let entries = entries.iter().cloned();
            entries
                .map(|(name, ino, kind)| {
                    // tmpfs numbers its inodes otherwise, and old directories tell no types.
                    if copied {
                        (name, 0, 0)
                    } else {
                        (name, ino, kind)
                    }
                })
                .collect()
        };
        let (kernel, ours) = (comparable(kernel), comparable(ours));
        if kernel != ours {
            let lacks = |all: &[theirs::Entry], some: &[theirs::Entry]| -> Vec<String> {
                let lacking = all
                    .iter()
                    .filter(|entry| some.binary_search(entry).is_err());
                lacking
                    .take(5)
                    .map(|(name, ino, kind)| format!("{} {ino} {kind:o}", name.escape_ascii()))
                    .collect()
            };
            let (only_kernel, only_ours) = (lacks(&kernel, &ours), lacks(&ours, &kernel));
            self.differences
                .note(path, "entries only one has", &only_kernel, &only_ours);
            self.same(path, "number of entries", &kernel.len(), &ours.len());
        }
    }

    /// Looks every name up by the number of the directory, and some that are not there.
    fn lookups(&mut self, path: &[u8], names: &[Vec<u8>]) {
        let dir = match self
            .vfs
            .stat(&self.ctx, absolute(path), LookupFlags::empty())
        {
            Ok(attr) => number(&attr),
            Err(_) => ROOT,
        };
        for name in names {
            let there = [&absolute(path)[..], b"/", name].concat();
            // That this is the kernel's, too, is compared with its attributes.
            let by_path = self.vfs.stat(&self.ctx, &there, LookupFlags::empty());
            let by_path = match by_path {
                Ok(attr) => Some(number(&attr)),
                Err(Error::NotFound) => None,
                // Perhaps the kernel cannot read it either.
                Err(_) => continue,
            };
            match self.ext4.lookup(dir, name) {
                Ok(found) => self.same(&there[1..], "lookup by number", &by_path, &found),
                Err(err) => self.failed(&there[1..], "lookup by number", &err),
            }
        }
        for name in self.near_misses(names) {
            let host = theirs::below(self.top, path).join(OsStr::from_bytes(&name));
            let known = path.is_empty() && self.is_made(&name);
            if theirs::exists(&host) || known {
                continue;
            }
            self.coverage.missing += 1;
            let there = [&absolute(path)[..], b"/", &name].concat();
            match self.vfs.stat(&self.ctx, &there, LookupFlags::empty()) {
                Err(Error::NotFound) => {}
                found => self
                    .differences
                    .note(&there[1..], "stat", &"no such file", &found),
            }
            match self.ext4.lookup(dir, &name) {
                Ok(None) => {}
                found => self
                    .differences
                    .note(&there[1..], "lookup", &"no such file", &found),
            }
        }
    }

    /// Names that are probably not there, but for a bug might be found.
    fn near_misses(&mut self, names: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let fixed: [&[u8]; 6] = [
            b"missing",
            b"x",
            b"\xff",
            &[b'x'; 255],
            &[0xe9; 254],
            b"...",
        ];
        let mut misses: Vec<Vec<u8>> = fixed.map(<[u8]>::to_vec).into();
        for _ in 0..names.len().min(40) {
            let mut name = self.rng.pick(names).clone();
            let last = name.len() - 1;
            match self.rng.below(5) {
                0 => name.push(b'x'),
                1 => name.truncate(last),
                2 => name[last] ^= 0x20,
                3 => name[0] ^= 0x80,
                _ => name.reverse(),
            }
            let is_name = (1..=255).contains(&name.len())
                && !name.contains(&0)
                && !name.contains(&b'/')
                && !matches!(&name[..], b"." | b"..");
            if is_name {
                misses.push(name);
            }
        }
        if names.iter().any(|name| name.starts_with(b"cccccccc")) {
            misses.extend(
                collisions::pairs()
                    .into_iter()
                    .flatten()
                    .map(String::into_bytes),
            );
        }
        misses
    }
}
