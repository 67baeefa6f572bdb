//! A machine without a processor: its monitor's side of vhost-user, its memory, and the driver's
//! side of its rings, by the hand of a test.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use rcuwalk::Vfs;
use rcuwalk_fuse::Options;
use rcuwalk_virtiofs::{DeviceOptions, Served, serve};
use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// Two regions of the guest's memory, with a gap between them.
pub(crate) const REGIONS: [(u64, usize); 2] = [(0x10_0000, 4 << 20), (0x1000_0000, 4 << 20)];
/// Where requests and answers are: the end of the first region and the second one.
const BUFFERS: u64 = 0x20_0000;
/// What the monitor adds to the guest's addresses.
const USER: u64 = 0x7f12_0000_0000;
/// Entries of each ring.
pub(crate) const SIZE: u16 = 64;
/// Bytes of memory for each ring.
const RING: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Guest {
    pub(crate) served: Served,
    pub(crate) monitor: Frontend,
    pub(crate) memory: GuestMemoryMmap<()>,
    pub(crate) rings: Vec<DriverRing>,
    file: File,
    /// The next free byte for requests and answers.
    free: u64,
    /// The first byte that ever is.
    first: u64,
    event_idx: bool,
}

/// The driver's side of a ring.
pub(crate) struct DriverRing {
    pub(crate) at: u64,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) err: EventFd,
    /// Index of the next chain that is made available.
    pub(crate) next: u16,
    /// Index of the next chain that comes back.
    seen: u16,
    free: VecDeque<u16>,
    under_way: Vec<UnderWay>,
}

/// A chain that has not come back.
struct UnderWay {
    head: u16,
    /// Where its answer goes: addresses and lengths.
    rooms: Vec<(u64, u32)>,
    descriptors: Vec<u16>,
}

impl Guest {
    /// Boots: with `queues` queues for requests.
    pub(crate) fn new(vfs: Vfs, queues: usize) -> Guest {
        Guest::with(vfs, queues, &Options::default().threads(3), true)
    }

    pub(crate) fn with(vfs: Vfs, queues: usize, options: &Options, event_idx: bool) -> Guest {
        let patience = Duration::from_millis(100);
        Guest::patient(vfs, queues, options, event_idx, patience)
    }

    /// One whose rings wait that long for a request when they stop.
    pub(crate) fn patient(
        vfs: Vfs,
        queues: usize,
        options: &Options,
        event_idx: bool,
        patience: Duration,
    ) -> Guest {
        let device = DeviceOptions::default()
            .queues(queues)
            .tag(Some("home".parse().unwrap()))
            .patience(Some(patience));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = serve(vfs, theirs, &device, options).unwrap();
        let file = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(8 << 20).unwrap();
        let mut offset = 0;
        let regions = REGIONS.map(|(at, len)| {
            let part = FileOffset::new(file.try_clone().unwrap(), offset);
            offset += len as u64;
            (GuestAddress(at), len, Some(part))
        });
        let memory = GuestMemoryMmap::from_ranges_with_files(regions).unwrap();
        let monitor = Frontend::from_stream(ours, 1 + queues as u64);
        let event = || EventFd::new(libc_nonblock()).unwrap();
        let rings = (0..=queues as u64).map(|ring| DriverRing {
            at: REGIONS[0].0 + ring * RING,
            kick: event(),
            call: event(),
            err: event(),
            next: 0,
            seen: 0,
            free: (0..SIZE).collect(),
            under_way: Vec::new(),
        });
        let mut guest = Guest {
            served,
            monitor,
            memory,
            rings: rings.collect(),
            file,
            free: BUFFERS,
            first: BUFFERS,
            event_idx,
        };
        guest.agree();
        guest.share_memory();
        guest.start_rings();
        guest
    }

    fn agree(&mut self) {
        let monitor = &mut self.monitor;
        monitor.set_owner().unwrap();
        let mut features = monitor.get_features().unwrap();
        assert_eq!(
            features >> 28 & 3,
            3,
            "indirect descriptors and event indices"
        );
        if !self.event_idx {
            features &= !(1 << 29);
        }
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert!(monitor.get_protocol_features().unwrap().contains(wanted));
        monitor.set_protocol_features(wanted).unwrap();
        monitor.set_features(features).unwrap();
        monitor.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert_eq!(monitor.get_queue_num().unwrap(), self.rings.len() as u64);
    }

    pub(crate) fn region(&self, index: usize) -> VhostUserMemoryRegionInfo {
        let (at, len) = REGIONS[index];
        VhostUserMemoryRegionInfo {
            guest_phys_addr: at,
            memory_size: len as u64,
            userspace_addr: USER + at,
            mmap_offset: REGIONS[..index].iter().map(|(_, len)| *len as u64).sum(),
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    pub(crate) fn share_memory(&self) {
        let regions = [self.region(0), self.region(1)];
        self.monitor.set_mem_table(&regions).unwrap();
    }

    /// Sets all rings up anew.
    pub(crate) fn start_rings(&mut self) {
        for index in 0..self.rings.len() {
            self.start_ring(index);
        }
    }

    pub(crate) fn start_ring(&mut self, index: usize) {
        let ring = &mut self.rings[index];
        (ring.next, ring.seen) = (0, 0);
        ring.free = (0..SIZE).collect();
        ring.under_way.clear();
        let zeros = vec![0; RING as usize];
        self.memory
            .write_slice(&zeros, GuestAddress(ring.at))
            .unwrap();
        self.go_on(index, 0);
    }

    /// Starts a ring as it is: its next chain has this number.
    pub(crate) fn go_on(&mut self, index: usize, base: u16) {
        let (ring, monitor) = (&self.rings[index], &mut self.monitor);
        monitor.set_vring_num(index, SIZE).unwrap();
        monitor.set_vring_base(index, base).unwrap();
        let addresses = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + ring.at,
            used_ring_addr: USER + ring.at + USED,
            avail_ring_addr: USER + ring.at + AVAILABLE,
            log_addr: None,
        };
        monitor.set_vring_addr(index, &addresses).unwrap();
        monitor.set_vring_call(index, &ring.call).unwrap();
        monitor.set_vring_err(index, &ring.err).unwrap();
        monitor.set_vring_kick(index, &ring.kick).unwrap();
        monitor.set_vring_enable(index, true).unwrap();
    }

    /// Memory for a request or an answer. All of it is free again when the next request is sent
    /// and nothing is under way.
    pub(crate) fn room(&mut self, len: u64) -> u64 {
        let end = |at: u64| {
            REGIONS
                .map(|(start, size)| start + size as u64)
                .into_iter()
                .find(|end| at < *end)
        };
        if self.free + len > end(self.free).unwrap() {
            assert!(self.free < REGIONS[1].0, "too much is under way");
            self.free = REGIONS[1].0;
        }
        let at = self.free;
        self.free += len.next_multiple_of(8);
        at
    }

    /// Uses no memory within `len` bytes of the first for requests any more.
    pub(crate) fn leave_out(&mut self, len: u64) {
        self.first = BUFFERS + len;
        self.free = self.first;
    }

    /// Where answers of a queue go that have not come: addresses and lengths.
    pub(crate) fn rooms(&self, queue: usize) -> Vec<(u64, u32)> {
        let under_way = self.rings[queue].under_way.iter();
        under_way
            .flat_map(|one| one.rooms.iter().copied())
            .collect()
    }

    /// Writes a descriptor into a table.
    pub(crate) fn describe(
        &self,
        table: u64,
        index: u16,
        (at, len): (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        let to = GuestAddress(table + u64::from(index) * 16);
        self.memory.write_slice(&bytes, to).unwrap();
    }

    /// Makes a chain available, whatever it is.
    pub(crate) fn offer(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let entry = ring.at + AVAILABLE + 4 + u64::from(ring.next % SIZE) * 2;
        self.memory
            .write_obj(head.to_le(), GuestAddress(entry))
            .unwrap();
        let before = ring.next;
        ring.next = before.wrapping_add(1);
        let index = GuestAddress(ring.at + AVAILABLE + 2);
        self.memory
            .store(ring.next.to_le(), index, Ordering::Release)
            .unwrap();
        fence(Ordering::SeqCst);
        let wants = match self.event_idx {
            true => {
                let at = GuestAddress(ring.at + USED + 4 + u64::from(SIZE) * 8);
                let wanted: u16 = self.memory.load(at, Ordering::Relaxed).unwrap();
                wanted == before
            }
            false => true,
        };
        if wants {
            ring.kick.write(1).unwrap();
        }
    }

    /// Sends a request in these parts, with room for an answer in parts of these lengths; by an
    /// indirect table if `is_indirect`.
    pub(crate) fn send(
        &mut self,
        queue: usize,
        parts: &[&[u8]],
        rooms: &[u32],
        is_indirect: bool,
    ) -> u16 {
        if self.rings.iter().all(|ring| ring.under_way.is_empty()) {
            self.free = self.first;
        }
        let mut buffers: Vec<((u64, u32), u16)> = Vec::new();
        for part in parts {
            let at = self.room(part.len() as u64);
            self.memory.write_slice(part, GuestAddress(at)).unwrap();
            buffers.push(((at, part.len() as u32), 0));
        }
        let mut places = Vec::new();
        for len in rooms {
            let at = self.room((*len).into());
            places.push((at, *len));
            buffers.push(((at, *len), WRITE));
        }
        let table = match is_indirect {
            true => self.room(buffers.len() as u64 * 16),
            false => self.rings[queue].at,
        };
        let taken: Vec<u16> = match is_indirect {
            true => (0..buffers.len() as u16).collect(),
            false => self.rings[queue].free.drain(..buffers.len()).collect(),
        };
        for (count, (buffer, flags)) in buffers.iter().enumerate() {
            let next = taken.get(count + 1);
            let flags = flags | next.map_or(0, |_| NEXT);
            self.describe(
                table,
                taken[count],
                *buffer,
                flags,
                next.copied().unwrap_or(0),
            );
        }
        let (head, descriptors) = match is_indirect {
            true => {
                let head = self.rings[queue].free.pop_front().unwrap();
                let len = buffers.len() as u32 * 16;
                self.describe(self.rings[queue].at, head, (table, len), INDIRECT, 0);
                (head, vec![head])
            }
            false => (taken[0], taken),
        };
        self.rings[queue].under_way.push(UnderWay {
            head,
            rooms: places,
            descriptors,
        });
        self.offer(queue, head);
        head
    }

    /// Waits for the next chain that comes back, and returns its head and its answer.
    pub(crate) fn answer(&mut self, queue: usize) -> (u16, Vec<u8>) {
        let (head, len) = self.come_back(queue, PATIENCE).expect("an answer in time");
        let ring = &mut self.rings[queue];
        let which = ring.under_way.iter().position(|one| one.head == head);
        let UnderWay {
            rooms, descriptors, ..
        } = ring.under_way.remove(which.expect("a chain that was sent"));
        ring.free.extend(descriptors);
        let mut bytes = Vec::new();
        for (at, room) in rooms {
            let left = len as usize - bytes.len();
            let mut part = vec![0; left.min(room as usize)];
            self.memory.read_slice(&mut part, GuestAddress(at)).unwrap();
            bytes.extend(part);
        }
        assert_eq!(bytes.len(), len as usize, "no more than there is room for");
        (head, bytes)
    }

    /// The next chain that comes back in time: its head and the length of its answer.
    pub(crate) fn come_back(&mut self, queue: usize, patience: Duration) -> Option<(u16, u32)> {
        let until = Instant::now() + patience;
        loop {
            let ring = &mut self.rings[queue];
            let index = GuestAddress(ring.at + USED + 2);
            let used: u16 = self.memory.load(index, Ordering::Acquire).unwrap();
            if used != ring.seen {
                let entry = ring.at + USED + 4 + u64::from(ring.seen % SIZE) * 8;
                let head: u32 = self.memory.read_obj(GuestAddress(entry)).unwrap();
                let len: u32 = self.memory.read_obj(GuestAddress(entry + 4)).unwrap();
                ring.seen = ring.seen.wrapping_add(1);
                return Some((head as u16, len));
            }
            // Wants to hear of the next one; then looks once more.
            let wanted = GuestAddress(ring.at + AVAILABLE + 4 + u64::from(SIZE) * 2);
            self.memory
                .store(ring.seen, wanted, Ordering::Relaxed)
                .unwrap();
            fence(Ordering::SeqCst);
            let used: u16 = self.memory.load(index, Ordering::Acquire).unwrap();
            if used != ring.seen {
                continue;
            }
            // Sleeps until the device rings: nothing else leads on.
            while ring.call.read().is_err() {
                if Instant::now() > until {
                    return None;
                }
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Sends a request and returns its answer.
    pub(crate) fn ask(&mut self, queue: usize, message: &[u8], room: u32) -> Vec<u8> {
        let head = self.send(queue, &[message], &[room], false);
        let (answered, answer) = self.answer(queue);
        assert_eq!(answered, head);
        answer
    }

    /// The machine is switched off.
    pub(crate) fn off(self) -> std::io::Result<()> {
        drop(self.monitor);
        self.served.join()
    }
}

/// `EFD_NONBLOCK`.
fn libc_nonblock() -> i32 {
    rustix::event::EventfdFlags::NONBLOCK.bits() as i32
}
