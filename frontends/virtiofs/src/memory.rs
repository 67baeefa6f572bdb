//! The memory that the guest shares: which regions there are, by guest addresses and by those of
//! the machine monitor.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// The mapped regions. Accesses outside of them are errors.
pub(crate) type Mapped = GuestMemoryMmap<()>;

/// Most regions: as many as kernels' vhost has.
pub(crate) const MOST_REGIONS: usize = 509;

/// The regions as of the last message about them.
#[derive(Default)]
pub(crate) struct Memory {
    mapped: Option<Arc<Mapped>>,
    regions: Vec<Region>,
}

/// A region, by the addresses that the monitor's messages use.
#[derive(Clone, Copy)]
struct Region {
    guest: u64,
    user: u64,
    size: u64,
}

impl Memory {
    /// Maps these regions, and no others from now on.
    ///
    /// # Errors
    /// A file is shorter than its region; regions overlap; there is none; those of mmap(2).
    pub(crate) fn of(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<Memory> {
        if regions.len() != files.len() || regions.len() > MOST_REGIONS {
            return Err(Error::InvalidParam);
        }
        let mut mapped = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            mapped.push(Arc::new(map(region, file)?));
        }
        mapped.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(&**region));
        let mapped = Mapped::from_arc_regions(mapped).map_err(refused)?;
        Ok(Memory {
            mapped: Some(Arc::new(mapped)),
            regions: regions.iter().map(Region::of).collect(),
        })
    }

    /// Maps one more region.
    ///
    /// # Errors
    /// As [`Memory::of`]; there are too many.
    pub(crate) fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<()> {
        if self.regions.len() >= MOST_REGIONS {
            return Err(Error::InvalidParam);
        }
        let one = Arc::new(map(region, file)?);
        let mapped = match &self.mapped {
            Some(others) => others.insert_region(one),
            None => Mapped::from_arc_regions(vec![one]),
        };
        self.mapped = Some(Arc::new(mapped.map_err(refused)?));
        self.regions.push(Region::of(region));
        Ok(())
    }

    /// Takes one region away. It stays mapped while a request uses it.
    ///
    /// # Errors
    /// There is no such region.
    pub(crate) fn remove(&mut self, region: &VhostUserMemoryRegion) -> Result<()> {
        let mapped = self.mapped.as_ref().ok_or(Error::InvalidParam)?;
        let at = self
            .regions
            .iter()
            .position(|one| (one.guest, one.size) == (region.guest_phys_addr, region.memory_size))
            .ok_or(Error::InvalidParam)?;
        if self.regions.len() == 1 {
            self.mapped = None;
        } else {
            let at = GuestAddress(region.guest_phys_addr);
            let (left, _) = mapped
                .remove_region(at, region.memory_size)
                .map_err(refused)?;
            self.mapped = Some(Arc::new(left));
        }
        self.regions.remove(at);
        Ok(())
    }

    /// `None` if there is no region.
    pub(crate) fn mapped(&self) -> Option<Arc<Mapped>> {
        self.mapped.clone()
    }

    /// Returns the guest's address for one of the monitor's.
    pub(crate) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = user.checked_sub(region.user)?;
            // The end of a valid region is no more than the type's range.
            (offset < region.size).then(|| GuestAddress(region.guest + offset))
        })
    }
}

impl Region {
    fn of(region: &VhostUserMemoryRegion) -> Region {
        Region {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            size: region.memory_size,
        }
    }
}

fn map(region: &VhostUserMemoryRegion, file: File) -> Result<GuestRegionMmap<()>> {
    // An access beyond the end of a file would end this process.
    let there = file.metadata().map_err(Error::ReqHandlerError)?;
    let end = region.mmap_offset.checked_add(region.memory_size);
    if there.is_file() && end.is_none_or(|end| end > there.len()) {
        return Err(Error::InvalidParam);
    }
    let mapped = region.mmap_region(file)?;
    let at = GuestAddress(region.guest_phys_addr);
    GuestRegionMmap::new(mapped, at).ok_or(Error::InvalidParam)
}

fn refused(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(why))
}
