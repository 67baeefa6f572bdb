//! The sources, and their engines.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rcuwalk::scan::{Ended, Visitor};
use rcuwalk_ext4::{Ext4, ImageScan};
use rcuwalk_hostfs::HostScan;

use crate::error::{Error, Result};
use crate::scan::Options;
use crate::since::Since;

/// The order in which entries are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As the directories list them.
    #[default]
    Tree,
    /// By inode number: within each directory of the host; of an image, all inode tables
    /// first, names after.
    Inode,
}

/// A tree that can be scanned.
pub(crate) enum Source {
    /// A directory of the host.
    Host(HostScan),
    /// An ext4 image or device.
    Image {
        image: Ext4,
        path: PathBuf,
        order: rcuwalk_ext4::Order,
        targets: bool,
    },
}

impl Source {
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Source> {
        let cannot = |err: &dyn std::fmt::Display| Error::source(path, err);
        // Only rows and comparisons need the targets of links.
        let targets = options.rows.is_some() || options.since.is_some();
        let there = fs::metadata(path).map_err(|err| cannot(&err))?.file_type();
        if there.is_dir() {
            let order = match options.order {
                Order::Tree => rcuwalk_hostfs::Order::Listed,
                Order::Inode => rcuwalk_hostfs::Order::Inode,
            };
            let scan = HostScan::new(path).map_err(|err| Error::Source(err.to_string()))?;
            // A comparison needs them: where there are no times of birth, only a generation
            // tells a renamed file from a new one with the same inode number.
            let handles = options.handles || matches!(options.since, Some(Since::Scan(_)));
            let scan = scan
                .order(order)
                .one_file_system(!options.cross_file_systems)
                .handles(handles)
                .targets(targets);
            return Ok(Source::Host(scan));
        }
        if there.is_file() || there.is_block_device() {
            let image = Ext4::options().checksums(options.checksums);
            return Ok(Source::Image {
                image: image.open(path).map_err(|err| match err {
                    // It has the path, too.
                    rcuwalk_ext4::Error::Open { source, .. } => cannot(&source),
                    err => cannot(&err),
                })?,
                path: path.to_owned(),
                order: match options.order {
                    Order::Tree => rcuwalk_ext4::Order::Tree,
                    Order::Inode => rcuwalk_ext4::Order::Inode,
                },
                targets,
            });
        }
        Err(cannot(
            &"neither a directory, nor an image, nor a block device",
        ))
    }

    /// Describes the missing part of the image, if the rest can be scanned.
    pub(crate) fn missing(&self) -> Option<String> {
        let Source::Image { image, path, .. } = self else {
            return None;
        };
        let info = image.info();
        let bytes = |blocks: u64| blocks.saturating_mul(info.block_size.into());
        let wanted = bytes(info.blocks_count);
        let mut end = bytes(info.present_blocks);
        // It may have shrunk since it was opened; of a device, metadata tell no length.
        if let Ok(there) = fs::metadata(path)
            && there.is_file()
        {
            end = end.min(there.len());
        }
        (end < wanted).then(|| {
            format!("truncated: the file system has {wanted} bytes, and the image ends at {end}")
        })
    }

    /// How many threads it is scanned with unless the user says.
    pub(crate) fn usual_threads(&self) -> usize {
        match self {
            Source::Host(_) => HostScan::usual_threads(),
            Source::Image { .. } => ImageScan::usual_threads(),
        }
    }

    /// How many entries there will be, about, if that is known.
    pub(crate) fn total_hint(&self) -> Option<u64> {
        match self {
            Source::Host(_) => None,
            Source::Image { image, .. } => Some(image.scan().inodes_used()),
        }
    }

    /// The device that the root is on; 0 for an image.
    pub(crate) fn device(&self) -> u64 {
        match self {
            Source::Host(scan) => scan.device(),
            Source::Image { .. } => 0,
        }
    }

    /// Scans with a thread for each of `visitors`.
    pub(crate) fn run<V: Visitor>(&self, stop: &AtomicBool, visitors: Vec<V>) -> (Vec<V>, Ended) {
        match self {
            Source::Host(scan) => scan.run(stop, visitors),
            Source::Image {
                image,
                order,
                targets,
                ..
            } => {
                let scan = image.scan().order(*order).targets(*targets);
                scan.run(stop, visitors)
            }
        }
    }
}
