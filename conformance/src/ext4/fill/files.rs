//! Contents: sizes around every border, holes, reserved space, many extents.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{Place, noise, unless};

/// One file for each size at which something changes: inline, one block, several.
pub(super) fn sizes(place: &Place<'_>) -> io::Result<()> {
    let mut rng = place.rng.clone();
    let block = place.block_size as usize;
    let sizes = [
        0, 1, 59, 60, 61, 95, 96, 97, 130, 131, 132, 133, 160, 161, 300, 700, 900, 1000, 1023,
        4095, 4096, 4097, 65_536, 65_537, 300_001,
    ];
    let near_block = [
        block - 1,
        block,
        block + 1,
        12 * block,
        12 * block + 1,
        13 * block - 1,
    ];
    for size in sizes.into_iter().chain(near_block) {
        fs::write(place.path(format!("{size}")), noise(&mut rng, size))?;
    }
    fs::write(place.path("one"), "x")?;

    // Grown in steps, so that what was inline moves out; and cut short again.
    let grown = File::create(place.path("grown"))?;
    for (index, step) in [10, 100, 1000, 10_000].into_iter().enumerate() {
        grown.write_all_at(&noise(&mut rng, step), index as u64 * 50)?;
        grown.sync_data()?;
    }
    let cut = File::create(place.path("cut"))?;
    cut.write_all_at(&noise(&mut rng, 50_000), 0)?;
    cut.set_len(70)?;
    Ok(())
}

/// Mostly holes: at every border of the indirect blocks, beyond 4 GiB, to the end.
pub(super) fn sparse(place: &Place<'_>) -> io::Result<()> {
    if !place.contents.holes {
        return Ok(());
    }
    let mut rng = place.rng.clone();
    let block = place.block_size;
    let per_block = block / 4;
    let borders = [
        0,
        12,
        12 + per_block,
        12 + 2 * per_block,
        12 + per_block + per_block * per_block,
        12 + per_block + 2 * per_block * per_block,
    ];
    let far = File::create(place.path("far"))?;
    let far_places = borders.map(|blocks| blocks * block);
    for offset in far_places
        .into_iter()
        .chain([4 << 30, (4 << 30) + 123, 9 << 30])
    {
        let at = offset.saturating_sub(7);
        write_if_it_may_be(&far, &noise(&mut rng, 20), at)?;
    }

    let ends_in_a_hole = File::create(place.path("ends-in-a-hole"))?;
    ends_in_a_hole.write_all_at(b"start", 3)?;
    unless_too_big(ends_in_a_hole.set_len(3 * (1 << 30) + 77))?;

    let nothing = File::create(place.path("only-a-hole"))?;
    nothing.set_len(10 * block + 1)?;

    // Reserved but never written: reads as zeros, whatever is on the disk there.
    let reserved = File::create(place.path("reserved"))?;
    allocate(&reserved, FallocateFlags::empty(), 0, 40 * block)?;
    reserved.write_all_at(&noise(&mut rng, 100), 7 * block + 5)?;
    reserved.write_all_at(&noise(&mut rng, 3 * block as usize), 20 * block - 9)?;

    let behind_the_end = File::create(place.path("reserved-behind-the-end"))?;
    behind_the_end.write_all_at(&noise(&mut rng, 100), 0)?;
    allocate(&behind_the_end, FallocateFlags::KEEP_SIZE, 0, 40 * block)?;
    Ok(())
}

/// Every second block, and a file with holes punched into it.
pub(super) fn extents(place: &Place<'_>) -> io::Result<()> {
    let mut rng = place.rng.clone();
    let block = place.block_size;
    let many = File::create(place.path("many"))?;
    for index in 0..place.contents.extents as u64 {
        many.write_all_at(&noise(&mut rng, 30), index * 2 * block)?;
    }

    let punched = File::create(place.path("punched"))?;
    punched.write_all_at(&noise(&mut rng, 200 * block as usize), 0)?;
    punched.sync_data()?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for index in 0..60 {
        allocate(&punched, punch, index * 3 * block + 1, block + block / 2)?;
    }

    let shifted = File::create(place.path("shifted"))?;
    shifted.write_all_at(&noise(&mut rng, 64 * block as usize), 0)?;
    allocate(&shifted, FallocateFlags::ZERO_RANGE, 16 * block, 16 * block)?;
    allocate(
        &shifted,
        FallocateFlags::COLLAPSE_RANGE,
        8 * block,
        4 * block,
    )
}

/// fallocate(2) where the file system has it: ext4 with extents.
fn allocate(file: &File, how: FallocateFlags, offset: u64, length: u64) -> io::Result<()> {
    let refusals = [Errno::OPNOTSUPP, Errno::INVAL];
    unless(fallocate(file, how, offset, length), &refusals)
}

fn write_if_it_may_be(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    unless_too_big(file.write_all_at(bytes, offset))
}

fn unless_too_big(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(err) if err.raw_os_error() == Some(libc::EFBIG) => Ok(()),
        done => done,
    }
}
