//! An open file on behalf of one of its users: [`FileAs`].

use super::{File, LONGEST, MOST, check_range};
use crate::call::call;
use crate::error::{Error, Result};
use crate::filesystem::SetAttr;
use crate::open::OpenFlags;
use crate::permission::Credentials;
use crate::target::Target;

/// An open file, used on behalf of its opener or of another user: see [`File::as_user`].
///
/// The rights to read and to write are those that it was opened with, as with a descriptor that
/// was passed on. The user decides what the file loses by the change, and whether its attributes
/// may be changed.
#[derive(Clone, Copy, Debug)]
pub struct FileAs<'f> {
    pub(super) file: &'f File,
    pub(super) who: &'f Credentials,
}

impl<'f> FileAs<'f> {
    /// A file that is open, this one or the one that it is copied to, and the user.
    pub(super) fn target<'t>(&self, file: &'t File) -> Target<'t>
    where
        'f: 't,
    {
        Target {
            credentials: self.who,
            ..file.target()
        }
    }

    /// As [`File::write_at`]. The caller's credentials decide whether set-id bits stay.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let file = self.file;
        check_range(offset, 0)?;
        let handle = file.to_write()?;
        check_range(offset, buf.len())?;
        let inode = file.path.inode_held();
        let _exclusive = inode.lock();
        if buf.is_empty() {
            // Some file systems refuse it if the file has become immutable.
            return call(handle).write_at(inode, buf, offset);
        }
        let offset = if file.flags.contains(OpenFlags::APPEND) {
            inode.attr().size
        } else {
            offset
        };
        let room = LONGEST.saturating_sub(offset);
        if room == 0 {
            return Err(Error::FileTooBig);
        }
        let room = usize::try_from(room).unwrap_or(MOST).min(MOST);
        self.target(file).remove_privs()?;
        call(handle).write_at(inode, &buf[..buf.len().min(room)], offset)
    }

    /// Changes attributes with the user's rights. Another size takes the right to write, and not
    /// a file that is open for writing: for a server whose client may only know a file that has
    /// lost its name.
    ///
    /// # Errors
    /// As [`Vfs::setattr`](crate::Vfs::setattr); [`Error::BadDescriptor`] if it was opened as a
    /// path.
    pub fn setattr(&self, change: &SetAttr) -> Result<()> {
        self.file.not_only_place()?;
        self.file.retry(|| self.target(self.file).setattr(change))
    }
}
