//! A virtual machine's memory, as shared by the front end.
//!
//! Addresses come from the guest: each is looked up with its length, and a range outside the shared memory is
//! refused. The result is a [`Region`](buf::Region), which the guest may change at any time; nothing here is
//! read twice.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use buf::{Region, RegionHandle, Sg};

use super::message::MemoryRegion;

/// Regions that may be there at a time.
pub(super) const REGIONS_MAX: usize = 64;

/// An address that is nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnmappedAddress;

#[derive(Debug)]
struct MappedRegion {
    at: MemoryRegion,
    memory: RegionHandle,
}

/// The memory that was shared.
#[derive(Debug, Default)]
pub(super) struct GuestMemory {
    regions: Vec<MappedRegion>,
}

/// A stretch of one region.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestSlice<'a> {
    pub(super) memory: &'a RegionHandle,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl GuestMemory {
    /// Maps one more region.
    pub(super) fn map_region(&mut self, at: MemoryRegion, file: OwnedFd) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let ends = [at.guest, at.user, at.offset].map(|start| start.checked_add(at.size));
        if at.size == 0 || ends.contains(&None) || self.regions.len() >= REGIONS_MAX {
            return Err(invalid());
        }
        // cannot fail, here and below: no region is taken whose ends are no 64-bit numbers.
        let clashes = |other: &MappedRegion| {
            at.guest < other.at.guest + other.at.size && other.at.guest < at.guest + at.size
        };
        if self.regions.iter().any(clashes) {
            return Err(invalid());
        }
        // From the file's start: its pages may be larger than an offset is aligned.
        let len = usize::try_from(at.offset + at.size).map_err(|_| invalid())?;
        let memory = RegionHandle::new(Arc::new(Region::map_file(file.as_fd(), len)?));
        self.regions.push(MappedRegion { at, memory });
        Ok(())
    }

    /// Forgets a region; operations that use it keep it mapped until they have ended.
    pub(super) fn remove_region(&mut self, at: MemoryRegion) -> bool {
        let before = self.regions.len();
        self.regions.retain(|region| {
            (region.at.guest, region.at.user, region.at.size) != (at.guest, at.user, at.size)
        });
        self.regions.len() < before
    }

    pub(super) fn clear(&mut self) {
        self.regions.clear();
    }

    /// The first stretch of guest memory from `address` on, at most `len_bytes` bytes.
    fn first_slice(&self, address: u64, len: usize) -> Result<GuestSlice<'_>, UnmappedAddress> {
        let holds =
            |region: &&MappedRegion| (region.at.guest..region.at.guest + region.at.size).contains(&address);
        let region = self.regions.iter().find(holds).ok_or(UnmappedAddress)?;
        let within = address - region.at.guest;
        let left = usize::try_from(region.at.size - within).unwrap_or(usize::MAX);
        Ok(GuestSlice {
            memory: &region.memory,
            at: (region.at.offset + within) as usize,
            len: len.min(left),
        })
    }

    /// All stretches that make up `len_bytes` bytes from `address` on.
    pub(super) fn for_each_slice<'a>(
        &'a self,
        mut address: u64,
        mut len: usize,
        mut each: impl FnMut(GuestSlice<'a>),
    ) -> Result<(), UnmappedAddress> {
        while len > 0 {
            let stretch = self.first_slice(address, len)?;
            len -= stretch.len;
            if len > 0 {
                address = address.checked_add(stretch.len as u64).ok_or(UnmappedAddress)?;
            }
            each(stretch);
        }
        Ok(())
    }

    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), UnmappedAddress> {
        let mut done = 0;
        self.for_each_slice(address, into.len(), |stretch| {
            // cannot fail: the stretches together are as long as `into`, and each lies in its region.
            stretch.memory.region().read(stretch.at, &mut into[done..done + stretch.len]);
            done += stretch.len;
        })
    }

    /// Where `len_bytes` bytes are that the front end calls `address`: in one region, or nowhere.
    pub(super) fn resolve_user_address(
        &self,
        address: u64,
        len: usize,
    ) -> Result<(RegionHandle, usize), UnmappedAddress> {
        let holds =
            |region: &&MappedRegion| (region.at.user..region.at.user + region.at.size).contains(&address);
        let region = self.regions.iter().find(holds).ok_or(UnmappedAddress)?;
        let within = address - region.at.user;
        if region.at.size - within < len as u64 {
            return Err(UnmappedAddress);
        }
        Ok((region.memory.clone(), (region.at.offset + within) as usize))
    }
}

/// Pieces of guest memory, one behind the other: one direction of a chain of descriptors.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestPieces {
    pieces: Vec<(u64, u32)>,
    len: usize,
}

impl GuestPieces {
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }

    pub(super) fn push(&mut self, address: u64, len: u32) {
        self.pieces.push((address, len));
        self.len += len as usize;
    }

    /// Length in bytes.
    pub(super) fn len_bytes(&self) -> usize {
        self.len
    }

    /// The stretches of memory that hold `len_bytes` bytes from byte `from` on.
    pub(super) fn for_each_slice<'a>(
        &self,
        memory: &'a GuestMemory,
        from: usize,
        len: usize,
        mut each: impl FnMut(GuestSlice<'a>),
    ) -> Result<(), UnmappedAddress> {
        let (mut base, mut left) = (0, len);
        for &(address, piece) in &self.pieces {
            let piece = piece as usize;
            let skip = (from + (len - left)).saturating_sub(base);
            if left > 0 && skip < piece {
                let now = (piece - skip).min(left);
                let address = address.checked_add(skip as u64).ok_or(UnmappedAddress)?;
                memory.for_each_slice(address, now, &mut each)?;
                left -= now;
            }
            base += piece;
        }
        if left == 0 { Ok(()) } else { Err(UnmappedAddress) }
    }

    pub(super) fn read(
        &self,
        memory: &GuestMemory,
        from: usize,
        into: &mut [u8],
    ) -> Result<(), UnmappedAddress> {
        let mut done = 0;
        self.for_each_slice(memory, from, into.len(), |stretch| {
            stretch.memory.region().read(stretch.at, &mut into[done..done + stretch.len]);
            done += stretch.len;
        })
    }

    pub(super) fn write(&self, memory: &GuestMemory, at: usize, from: &[u8]) -> Result<(), UnmappedAddress> {
        let mut done = 0;
        self.for_each_slice(memory, at, from.len(), |stretch| {
            stretch.memory.region().write(stretch.at, &from[done..done + stretch.len]);
            done += stretch.len;
        })
    }

    /// Copies a payload there.
    pub(super) fn write_sg(&self, memory: &GuestMemory, at: usize, from: &Sg) -> Result<(), UnmappedAddress> {
        let mut done = 0;
        self.for_each_slice(memory, at, from.len(), |stretch| {
            let mut to = stretch.at;
            from.for_each_piece(done..done + stretch.len, |piece, within| {
                let len = within.len();
                stretch.memory.region().write_buf(to, &piece.slice(within));
                to += len;
            });
            done += stretch.len;
        })
    }
}
