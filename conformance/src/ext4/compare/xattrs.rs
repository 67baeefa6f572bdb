//! Extended attributes: the same names, with the same values.

use rcuwalk::{Attr, LookupFlags};

use super::{Walk, absolute, number, theirs};

impl Walk<'_> {
    pub(super) fn xattrs(&mut self, path: &[u8], attr: &Attr) {
        let kernel = match theirs::xattrs(&theirs::below(self.top, path)) {
            // None of them on this file system.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(Vec::new()),
            kernel => kernel,
        };
        let ours = self.ext4.xattrs(number(attr));
        let Some((kernel, ours)) = self.both(path, "xattrs", kernel, ours) else {
            return;
        };
        let mut ours: Vec<theirs::Xattr> = ours
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect();
        ours.sort();
        let names = |xattrs: &[theirs::Xattr]| -> Vec<String> {
            xattrs
                .iter()
                .map(|(name, _)| name.escape_ascii().to_string())
                .collect()
        };
        self.same(path, "names of xattrs", &names(&kernel), &names(&ours));
        for ((name, kernel), (_, ours)) in kernel.iter().zip(&ours) {
            self.same(
                path,
                &format!("xattr {}", name.escape_ascii()),
                kernel,
                ours,
            );
        }
        self.through_the_vfs(path, &kernel);
        self.coverage.xattrs += kernel.len();
        let longest = kernel.iter().map(|(_, value)| value.len()).max();
        self.coverage.longest_xattr = self.coverage.longest_xattr.max(longest.unwrap_or(0));
    }

    fn through_the_vfs(&mut self, path: &[u8], kernel: &[theirs::Xattr]) {
        let (vfs, link) = (&self.vfs, LookupFlags::empty());
        let ours = vfs.list_xattrs(&self.ctx, absolute(path), link);
        let ours = ours.and_then(|names| {
            let mut ours = Vec::new();
            for name in names {
                let value = vfs.get_xattr(&self.ctx, absolute(path), &name, link)?;
                ours.push((name.into_vec(), value.into_vec()));
            }
            ours.sort();
            Ok(ours)
        });
        let ours = ours.map_err(|err| err.to_string());
        self.same(path, "xattrs through the VFS", &Ok(kernel.to_vec()), &ours);
    }
}
