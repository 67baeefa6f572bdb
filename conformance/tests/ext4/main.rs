//! Images of ext4, beside the kernel's mounts of them.

mod bad_images;
mod images_match_the_kernel;
mod journals_are_replayed;
