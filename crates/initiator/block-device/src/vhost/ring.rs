//! A split virtqueue (virtio 1.2 §2.7) in memory that the guest may change at any time.
//!
//! Invariants: a number from the ring is used as an index only after it was found smaller than the queue's
//! size. A chain has at most [`CHAIN_LEN_MAX`] descriptors, so a cycle ends. A head in use is not taken again.
//! While chains are in use, the ring keeps its size, its address and its count, so that each of them is
//! returned to where it came from.

use buf::RegionHandle;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::memory::{GuestMemory, GuestPieces, UnmappedAddress};
use super::message::RingLayout;

/// The largest queue.
pub(super) const RING_SIZE_MAX: u16 = 1024;
/// The longest chain, indirect or not.
const CHAIN_LEN_MAX: usize = 1024;

const NEXT_FLAG: u16 = 1;
const WRITE_FLAG: u16 = 2;
const INDIRECT_FLAG: u16 = 4;
/// Of the available ring: the driver wants no interrupts.
const NO_INTERRUPT_FLAG: u16 = 1;

const DESCRIPTOR_LEN: usize = 16;

/// struct virtq_desc.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Descriptor {
    address: U64,
    len: U32,
    flags: U16,
    next: U16,
}

/// struct virtq_used_elem.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct UsedElement {
    id: U32,
    len: U32,
}

/// The guest's driver broke the rules: the queue is of no use until it is set up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokenQueue;

impl From<UnmappedAddress> for BrokenQueue {
    fn from(_: UnmappedAddress) -> Self {
        BrokenQueue
    }
}

/// One request's memory: what the device reads, and what it writes.
#[derive(Clone, Debug, Default)]
pub(super) struct DescriptorChain {
    pub(super) readable: GuestPieces,
    pub(super) writable: GuestPieces,
    /// Whether the device has it.
    out: bool,
}

/// Where the three parts are.
#[derive(Debug)]
struct RingMemory {
    descriptors: (RegionHandle, usize),
    available: (RegionHandle, usize),
    used: (RegionHandle, usize),
}

#[derive(Debug, Default)]
pub(super) struct SplitRing {
    size: u16,
    at: RingLayout,
    places: Option<RingMemory>,
    /// Where in the available ring the next is, counted without end.
    pub(super) next_available: u16,
    next_used: u16,
    /// What the driver was last told of.
    signalled: Option<u16>,
    pub(super) event_index: bool,
    pub(super) indirect: bool,
    chains: Vec<DescriptorChain>,
    out: usize,
}

impl SplitRing {
    /// A ring of `size` descriptors, which must be a power of two up to [`RING_SIZE_MAX`]. Refused while chains are
    /// out (vhost-user has rings change only while they are stopped), as is each change of what they depend on.
    pub(super) fn set_size(&mut self, size: u32) -> Result<(), BrokenQueue> {
        self.check_no_chains_in_flight()?;
        let size = u16::try_from(size).ok().filter(|size| size.is_power_of_two() && *size <= RING_SIZE_MAX);
        self.size = size.ok_or(BrokenQueue)?;
        self.places = None;
        self.chains.clear();
        self.out = 0;
        self.chains.resize_with(self.size.into(), DescriptorChain::default);
        Ok(())
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    fn check_no_chains_in_flight(&self) -> Result<(), BrokenQueue> {
        if self.out == 0 { Ok(()) } else { Err(BrokenQueue) }
    }

    /// Where in the available ring to begin.
    pub(super) fn set_available_base(&mut self, base: u32) -> Result<(), BrokenQueue> {
        self.check_no_chains_in_flight()?;
        self.next_available = u16::try_from(base).map_err(|_| BrokenQueue)?;
        Ok(())
    }

    pub(super) fn set_addresses(&mut self, at: RingLayout, memory: &GuestMemory) -> Result<(), BrokenQueue> {
        self.check_no_chains_in_flight()?;
        self.at = at;
        self.map_ring(memory)?;
        let (region, base) = &self.places.as_ref().ok_or(BrokenQueue)?.used;
        self.next_used = u16::from_le(region.region().load_u16(base + 2));
        self.signalled = None;
        Ok(())
    }

    /// Finds the ring in memory that has changed.
    pub(super) fn map_ring(&mut self, memory: &GuestMemory) -> Result<(), BrokenQueue> {
        self.places = None;
        let size = usize::from(self.size);
        let RingLayout { descriptors, used, available } = self.at;
        if size == 0 || descriptors % 16 != 0 || available % 2 != 0 || used % 4 != 0 {
            return Err(BrokenQueue);
        }
        let places = RingMemory {
            descriptors: memory.resolve_user_address(descriptors, DESCRIPTOR_LEN * size)?,
            available: memory.resolve_user_address(available, 6 + 2 * size)?,
            used: memory.resolve_user_address(used, 6 + 8 * size)?,
        };
        // The file's offset may be odd where the address is even.
        let is_even = [&places.available, &places.used].iter().all(|(_, at)| at % 2 == 0);
        self.places = is_even.then_some(places);
        self.places.as_ref().map(|_| ()).ok_or(BrokenQueue)
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.places.is_some()
    }

    pub(super) fn unmap_ring(&mut self) {
        self.places = None;
    }

    fn mapped_memory(&self) -> Result<&RingMemory, BrokenQueue> {
        self.places.as_ref().ok_or(BrokenQueue)
    }

    /// How many chains the device has.
    pub(super) fn chains_in_flight(&self) -> usize {
        self.out
    }

    /// The device has this chain no more.
    pub(super) fn mark_returned(&mut self, head: u16) {
        if let Some(chain) = self.chains.get_mut(usize::from(head)) {
            // cannot fail: `chains_in_flight` counts the chains that are marked, and each mark is taken once.
            self.out -= usize::from(std::mem::take(&mut chain.out));
        }
    }

    /// A chain that was taken.
    pub(super) fn taken_chain(&self, head: u16) -> Result<&DescriptorChain, BrokenQueue> {
        self.chains.get(usize::from(head)).ok_or(BrokenQueue)
    }

    /// Takes what the driver made available: its head, the chain being in [`SplitRing::taken_chain`].
    pub(super) fn pop_available(&mut self, memory: &GuestMemory) -> Result<Option<u16>, BrokenQueue> {
        let (region, base) = &self.mapped_memory()?.available;
        let available = u16::from_le(region.region().load_u16(base + 2));
        let waiting = available.wrapping_sub(self.next_available);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.size {
            return Err(BrokenQueue);
        }
        // cannot fail: a ring that has a place has a size, which is a power of two.
        let slot = usize::from(self.next_available & (self.size - 1));
        let head = u16::from_le(region.region().load_u16(base + 4 + 2 * slot));
        self.take_chain(memory, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Takes the chain that begins with this descriptor.
    pub(super) fn take_chain(&mut self, memory: &GuestMemory, head: u16) -> Result<(), BrokenQueue> {
        let place = self.chains.get_mut(usize::from(head)).filter(|chain| !chain.out).ok_or(BrokenQueue)?;
        let mut chain = std::mem::take(place);
        let walked = self.read_chain(memory, head, &mut chain);
        chain.out = walked.is_ok();
        self.out += usize::from(chain.out);
        // cannot fail: it was there three lines above, and a walk changes no ring.
        self.chains[usize::from(head)] = chain;
        walked
    }

    fn read_chain(
        &self,
        memory: &GuestMemory,
        head: u16,
        chain: &mut DescriptorChain,
    ) -> Result<(), BrokenQueue> {
        chain.readable.clear();
        chain.writable.clear();
        let (region, base) = &self.mapped_memory()?.descriptors;
        let mut index = head;
        for _ in 0..self.size {
            let mut bytes = [0; DESCRIPTOR_LEN];
            region.region().read(base + DESCRIPTOR_LEN * usize::from(index), &mut bytes);
            let descriptor: Descriptor = zerocopy::transmute!(bytes);
            let flags = descriptor.flags.get();
            if flags & INDIRECT_FLAG != 0 {
                // A table ends the chain, and lies within no other.
                if !self.indirect || flags & NEXT_FLAG != 0 {
                    return Err(BrokenQueue);
                }
                return read_indirect_table(memory, &descriptor, chain);
            }
            append_descriptor(chain, &descriptor)?;
            if flags & NEXT_FLAG == 0 {
                return Ok(());
            }
            index = descriptor.next.get();
            if index >= self.size {
                return Err(BrokenQueue);
            }
        }
        Err(BrokenQueue)
    }

    /// Gives a chain back, with so many bytes written.
    pub(super) fn push_used(&mut self, head: u16, written: u32) -> Result<(), BrokenQueue> {
        self.mark_returned(head);
        let (region, base) = &self.mapped_memory()?.used;
        // cannot fail: as in `pop_available`.
        let slot = usize::from(self.next_used & (self.size - 1));
        let element = UsedElement { id: u32::from(head).into(), len: written.into() };
        region.region().write(base + 4 + 8 * slot, element.as_bytes());
        let next = self.next_used.wrapping_add(1);
        region.region().store_u16(base + 2, next.to_le());
        self.next_used = next;
        Ok(())
    }

    pub(super) fn next_used_index(&self) -> u16 {
        self.next_used
    }

    /// Says up to where we have seen, so that the driver tells of more. Then look once more.
    pub(super) fn enable_kicks(&mut self) -> Result<(), BrokenQueue> {
        if self.event_index {
            let (region, base) = &self.mapped_memory()?.used;
            let event = base + 4 + 8 * usize::from(self.size);
            region.region().store_u16(event, self.next_available.to_le());
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// Whether the driver wants to be told of what was pushed since this was last asked.
    pub(super) fn needs_call(&mut self) -> Result<bool, BrokenQueue> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let (region, base) = &self.mapped_memory()?.available;
        let now = self.next_used;
        if !self.event_index {
            return Ok(u16::from_le(region.region().load_u16(*base)) & NO_INTERRUPT_FLAG == 0);
        }
        let event = u16::from_le(region.region().load_u16(base + 4 + 2 * usize::from(self.size)));
        let before = self.signalled.replace(now);
        // vring_need_event: the driver's number lies between what it knew and now.
        Ok(before.is_none_or(|before| now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)))
    }
}

fn read_indirect_table(
    memory: &GuestMemory,
    table: &Descriptor,
    chain: &mut DescriptorChain,
) -> Result<(), BrokenQueue> {
    let len = table.len.get() as usize;
    let count = len / DESCRIPTOR_LEN;
    if len == 0 || !len.is_multiple_of(DESCRIPTOR_LEN) || count > CHAIN_LEN_MAX {
        return Err(BrokenQueue);
    }
    let mut index = 0;
    for _ in 0..count {
        let mut bytes = [0; DESCRIPTOR_LEN];
        let at = table.address.get().checked_add((DESCRIPTOR_LEN * index) as u64).ok_or(BrokenQueue)?;
        memory.read(at, &mut bytes)?;
        let descriptor: Descriptor = zerocopy::transmute!(bytes);
        let flags = descriptor.flags.get();
        if flags & INDIRECT_FLAG != 0 {
            return Err(BrokenQueue);
        }
        append_descriptor(chain, &descriptor)?;
        if flags & NEXT_FLAG == 0 {
            return Ok(());
        }
        index = usize::from(descriptor.next.get());
        if index >= count {
            return Err(BrokenQueue);
        }
    }
    Err(BrokenQueue)
}

/// What the device writes stands behind what it reads.
fn append_descriptor(chain: &mut DescriptorChain, descriptor: &Descriptor) -> Result<(), BrokenQueue> {
    let (address, len) = (descriptor.address.get(), descriptor.len.get());
    if descriptor.flags.get() & WRITE_FLAG != 0 {
        chain.writable.push(address, len);
    } else if chain.writable.len_bytes() == 0 {
        chain.readable.push(address, len);
    } else {
        return Err(BrokenQueue);
    }
    Ok(())
}
