//! The device: what the machine monitor says by its socket (vhost-user), and what it is answered.
//!
//! The monitor says where the guest's memory and the rings are, and starts and stops these. It is
//! the one whose guest is served, and is trusted with no more than that: what it says is checked,
//! and an error ends the connection.
//!
//! `vhost` reads and writes the messages. `vhost-user-backend` would do all of this, but takes each
//! request on a thread of its own and hands it over to those that answer: one more thread to wake
//! for each. And it asks a device to wait for all requests that are under way when a ring stops,
//! of which one may be stuck for ever ([`Ring::stop`]).

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use crate::config::Tag;
use crate::memory::{MOST_REGIONS, Memory};
use crate::queues::Queues;
use crate::ring::Ring;

/// Features of virtio: rings with indirect descriptors and with numbers at which to ring, in the
/// layout of version 1.
const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

const FEATURES: u64 = INDIRECT_DESCRIPTORS | EVENT_IDX | VERSION_1 | PROTOCOL_FEATURES;

pub(crate) struct Device {
    queues: Arc<Queues>,
    memory: Memory,
    /// `None`: the monitor knows the tag by itself.
    tag: Option<Tag>,
    /// How old a request gets before a ring stops without it.
    patience: Duration,
    acked: u64,
}

impl Device {
    pub(crate) fn new(queues: Arc<Queues>, tag: Option<Tag>, patience: Duration) -> Device {
        Device {
            queues,
            memory: Memory::default(),
            tag,
            patience,
            acked: 0,
        }
    }

    fn ring(&self, index: u32) -> Result<&Arc<Ring>> {
        let rings = self.queues.rings();
        let index = usize::try_from(index).map_err(|_| Error::InvalidParam)?;
        rings.get(index).ok_or(Error::InvalidParam)
    }

    fn use_memory(&mut self, memory: Memory) {
        self.memory = memory;
        for ring in self.queues.rings() {
            ring.set_memory(self.memory.mapped());
        }
    }

    fn stop_all(&self) {
        for ring in self.queues.rings() {
            ring.abandon();
            ring.enable(false);
        }
    }
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not supported"))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all();
        self.acked = 0;
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        self.acked = 0;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(Error::InvalidParam);
        }
        self.acked = features;
        for ring in self.queues.rings() {
            ring.set_event_idx(features & EVENT_IDX != 0);
            // A monitor without the protocol's features enables no ring: all are.
            if features & PROTOCOL_FEATURES == 0 {
                ring.enable(true);
            }
        }
        self.queues.wake();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        if postcopy.is_some() {
            return unsupported();
        }
        self.use_memory(Memory::of(regions, files)?);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.ring(index)?
            .set_size(num)
            .map_err(|_| Error::InvalidParam)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let guest = |user| self.memory.guest_address(user).ok_or(Error::InvalidParam);
        let (descriptor, used, available) = (guest(descriptor)?, guest(used)?, guest(available)?);
        self.ring(index)?
            .set_addresses(descriptor, used, available)
            .map_err(|_| Error::InvalidParam)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.ring(index)?.set_next(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let next = self.ring(index)?.stop(self.patience);
        self.queues
            .watch(index as usize, None)
            .map_err(Error::ReqHandlerError)?;
        Ok(VhostUserVringState::new(index, next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let ring = self.ring(index.into())?;
        // Without one the ring would have to be polled.
        let kick = kick.ok_or(Error::InvalidParam)?;
        self.queues
            .watch(index.into(), Some(kick))
            .map_err(Error::ReqHandlerError)?;
        ring.start();
        self.queues.wake();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        self.ring(index.into())?.set_call(call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, err: Option<File>) -> Result<()> {
        self.ring(index.into())?.set_err(err);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE;
        Ok(match self.tag {
            Some(_) => features | VhostUserProtocolFeatures::CONFIG,
            None => features,
        })
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.rings().len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        if self.acked & PROTOCOL_FEATURES == 0 {
            return Err(Error::InvalidParam);
        }
        self.ring(index)?.enable(enable);
        self.queues.wake();
        Ok(())
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let tag = self.tag.as_ref().ok_or(Error::InvalidParam)?;
        let queues = self.queues.rings().len() - 1;
        tag.config(queues as u32, offset, size)
            .ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MOST_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if postcopy.is_some() {
            return unsupported();
        }
        let mut memory = std::mem::take(&mut self.memory);
        let added = memory.add(region, file);
        self.use_memory(memory);
        added.map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut memory = std::mem::take(&mut self.memory);
        let removed = memory.remove(region);
        self.use_memory(memory);
        removed
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::ReqHandlerError(io::ErrorKind::Unsupported.into()))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unsupported()
    }
}
