//! Extended attributes: the same names, with the same values.

use rcuwalk::Attr;

use super::{Walk, number, theirs};

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
        self.seen.xattrs += kernel.len();
        let longest = kernel.iter().map(|(_, value)| value.len()).max();
        self.seen.longest_xattr = self.seen.longest_xattr.max(longest.unwrap_or(0));
    }
}
