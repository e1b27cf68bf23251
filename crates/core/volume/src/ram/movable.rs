//! A disk whose memory another process can go on with: it lies in a memfd, together with what says which granules are
//! mapped, and what its blocks are like.
//!
//! ```text
//! the disk's bytes, to whole pages | one bit per granule, to whole pages | header, one page
//! ```
//!
//! Invariant: only one of both processes touches it at a time. What the header says is checked against the length of the
//! file before anything is derived from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buf::{Region, RegionHandle, Sg, SharedWords};

use super::{IO_MAX, PREFETCH_MAX, RamBackend, RamDisk};
use crate::shared_gate_state::AllocationGauge;

const PAGE: u64 = 4096;
/// "BWRAM" and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"BWRAM\0\0\x01");
/// Words of the header: the magic, bytes of a block, bytes of a granule, the most blocks, blocks.
const HEADER_WORDS: usize = 5;

/// Why memory is no disk that can be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignMemory;

/// In words.
impl fmt::Display for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory is no RAM volume that this release reads")
    }
}

impl std::error::Error for ForeignMemory {}

/// Where the parts of such a disk are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    capacity: usize,
    bitmap: usize,
    words: usize,
    header: usize,
    len: usize,
}

impl Layout {
    /// `None`: there is no address space for so much, or the sizes are none of a disk.
    fn of(blocks_max: u64, logical: u32, physical: u32) -> Option<Self> {
        if !logical.is_power_of_two() || !physical.is_power_of_two() || logical > physical || blocks_max == 0
        {
            return None;
        }
        let capacity = blocks_max.checked_mul(u64::from(logical))?;
        let bitmap = capacity.checked_next_multiple_of(PAGE)?;
        let words = capacity.div_ceil(u64::from(physical)).div_ceil(64);
        let header = bitmap.checked_add(words.checked_mul(8)?.checked_next_multiple_of(PAGE)?)?;
        let len = usize::try_from(header.checked_add(PAGE)?).ok()?;
        // All others are less.
        Some(Layout {
            capacity: capacity as usize,
            bitmap: bitmap as usize,
            words: words as usize,
            header: header as usize,
            len,
        })
    }
}

/// How long the memfd of a disk is that can move: of at most `blocks_max` blocks of `logical` bytes, mapped by granules
/// of `physical` bytes. `None`: there is no address space for so much.
pub fn movable_ram_len(blocks_max: u64, logical: u32, physical: u32) -> Option<u64> {
    Some(Layout::of(blocks_max, logical, physical)?.len as u64)
}

/// What another process must know of the disk.
#[derive(Debug)]
pub(super) struct RamHeader(SharedWords);

impl RamHeader {
    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.0.get(at)
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, words: [u64; HEADER_WORDS]) {
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
    }

    /// The disk has been resized.
    pub(super) fn set_blocks(&self, blocks: u64) {
        if let Some(word) = self.word(HEADER_WORDS - 1) {
            word.store(blocks, Ordering::Release);
        }
    }
}

impl RamDisk {
    /// A zeroed disk in a memfd's memory, which must be as long as [`movable_ram_len`] says; otherwise as
    /// [`RamDisk::try_new`]. `None`: it is not, or `blocks` are none or more than there may be.
    pub fn movable(
        region: Region,
        (blocks, blocks_max): (u64, u64),
        logical: u32,
        physical: u32,
    ) -> Option<Self> {
        let layout = Layout::of(blocks_max, logical, physical)?;
        if layout.len != region.len() || blocks == 0 || blocks > blocks_max {
            return None;
        }
        let disk = RamDisk::in_memory(Arc::new(region), layout, blocks, (logical, physical));
        if let Some(header) = &disk.header {
            header.store([MAGIC, logical.into(), physical.into(), blocks_max, blocks]);
        }
        Some(disk)
    }

    /// Goes on with the disk of another process, which must have come to rest.
    ///
    /// # Errors
    /// It is no such disk.
    pub fn reopen(region: Region) -> Result<Self, ForeignMemory> {
        let header_at = region.len().checked_sub(PAGE as usize).filter(|at| at.is_multiple_of(PAGE as usize));
        let region = Arc::new(region);
        let header = SharedWords::in_region(region.clone(), header_at.ok_or(ForeignMemory)?, HEADER_WORDS);
        let header = RamHeader(header);
        let [magic, logical, physical, blocks_max, blocks] = std::array::from_fn(|at| header.load(at));
        let size = |bytes: u64| u32::try_from(bytes).map_err(|_| ForeignMemory);
        let (logical, physical) = (size(logical)?, size(physical)?);
        let layout = Layout::of(blocks_max, logical, physical).ok_or(ForeignMemory)?;
        if magic != MAGIC || layout.len != region.len() || blocks == 0 || blocks > blocks_max {
            return Err(ForeignMemory);
        }
        let disk = RamDisk::in_memory(region, layout, blocks, (logical, physical));
        let mapped: u64 =
            disk.mapped.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum();
        disk.gauge.set(mapped.saturating_mul(u64::from(physical)));
        Ok(disk)
    }

    fn in_memory(region: Arc<Region>, layout: Layout, blocks: u64, (logical, physical): (u32, u32)) -> Self {
        RamDisk {
            capacity: layout.capacity,
            mapped: SharedWords::in_region(region.clone(), layout.bitmap, layout.words),
            blocks: AtomicU64::new(blocks),
            header: Some(RamHeader(SharedWords::in_region(region.clone(), layout.header, HEADER_WORDS))),
            zeroes: Some(Arc::new(Region::new(IO_MAX as usize))),
            region,
            logical,
            physical,
            gauge: AllocationGauge::default(),
        }
    }

    /// Copies bytes of the disk, which may be mapped or not.
    pub(super) fn copy_out(&self, at: usize, into: &mut [u8]) {
        if self.zeroes.is_none() {
            return self.region.read(at, into);
        }
        let mut rest = into;
        self.for_each_run(at, rest.len(), |at, len, is_mapped| {
            let (run, behind) = std::mem::take(&mut rest).split_at_mut(len);
            if is_mapped {
                self.region.read(at, run)
            } else {
                run.fill(0)
            }
            rest = behind;
        });
    }

    /// Calls `each` with each run of bytes that are mapped, or are not: its offset, its length, and which.
    fn for_each_run(&self, at: usize, len: usize, mut each: impl FnMut(usize, usize, bool)) {
        let physical = self.physical as usize;
        let (mut at, end) = (at, at + len);
        while at < end {
            let granule = (at / physical) as u64;
            let run = self.mapping_run_end(granule, end.div_ceil(physical) as u64) as usize * physical;
            let stop = run.min(end);
            each(at, stop - at, self.is_mapped(granule));
            at = stop;
        }
    }
}

impl RamBackend {
    /// The memory of so many bytes at an offset, with zeroes for what is not mapped.
    pub(super) fn view_mapped_memory(&self, (at, len): (usize, usize), zeroes: &RegionHandle) -> Sg {
        let mut lent = Sg::new();
        self.disk.for_each_run(at, len, |at, len, is_mapped| {
            if is_mapped {
                self.region.region().prefetch(at, len.min(PREFETCH_MAX));
                lent.push(self.region.view(at, len));
            } else {
                lent.push(zeroes.view(0, len));
            }
        });
        lent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};

    use crate::Epoch;
    use crate::backend::Backend;
    use crate::io::{Durability, Io, IoId, Op, Span};

    const BLOCK: usize = 512;

    fn region(blocks_max: u64) -> Region {
        Region::new(movable_ram_len(blocks_max, 512, 4096).unwrap() as usize)
    }

    /// A copy of all that the memory holds, as another process would have it mapped.
    fn again(disk: &RamDisk) -> Region {
        let mut bytes = vec![0; disk.region.len()];
        disk.region.read(0, &mut bytes);
        let copy = Region::new(bytes.len());
        copy.write(0, &bytes);
        copy
    }

    fn run(backend: &mut RamBackend, pool: &Pool, op: Op, payload: Payload) -> Payload {
        let mut entropy = Entropy::new([0; 32]);
        let mut cx = Cx { now: Time(0), pool, entropy: &mut entropy };
        backend.submit(&mut cx, Io { id: IoId(1), epoch: Epoch::default(), op, payload });
        while backend.wants_resume() {
            backend.resume();
        }
        let done = backend.poll_done().unwrap();
        assert!(done.result.is_ok());
        done.payload
    }

    fn write(backend: &mut RamBackend, pool: &Pool, lba: u64, bytes: &[u8]) {
        let mut data = pool.take_sg(MemoryClass::Wire, bytes.len()).unwrap();
        data.copy_from(0, bytes);
        let span = Span { lba, blocks: (bytes.len() / BLOCK) as u64 };
        run(backend, pool, Op::Write(span, Durability::Cached), Payload::Out(data.freeze()));
    }

    fn read(backend: &mut RamBackend, pool: &Pool, lba: u64, blocks: u64, lent: bool) -> Vec<u8> {
        let (op, len) = (Op::Read(Span { lba, blocks }), blocks as usize * BLOCK);
        let payload = if lent {
            Payload::None
        } else {
            let mut into = pool.take_sg(MemoryClass::Wire, len).unwrap();
            into.copy_from(0, &vec![0xee; len]);
            Payload::In(into)
        };
        let got = match run(backend, pool, op, payload) {
            Payload::Out(lent) => lent,
            Payload::In(filled) => filled.freeze(),
            Payload::None => panic!("nothing was read"),
        };
        let mut bytes = vec![0; len];
        got.copy_to(0, &mut bytes);
        bytes
    }

    #[test]
    fn another_process_goes_on_with_all_of_it() {
        let pool = Pool::new(4 << 20);
        let disk = Arc::new(RamDisk::movable(region(4096), (1024, 4096), 512, 4096).unwrap());
        let mut backend = RamBackend::new(disk.clone());
        write(&mut backend, &pool, 3, &[7; 5 * BLOCK]);
        write(&mut backend, &pool, 800, &[8; BLOCK]);
        assert!(disk.resize(2048));
        let other = Arc::new(RamDisk::reopen(again(&disk)).unwrap());
        assert_eq!(other.geometry(), disk.geometry());
        assert_eq!((other.gauge.get(), other.gauge.get()), (disk.gauge.get(), 2 * 4096));
        let mut backend = RamBackend::new(other.clone());
        for lent in [false, true] {
            let bytes = read(&mut backend, &pool, 0, 2048, lent);
            let expected = |block: usize| match block {
                3..8 => 7,
                800 => 8,
                _ => 0,
            };
            let wrong = bytes.chunks(BLOCK).enumerate().find(|(at, block)| **block != [expected(*at); BLOCK]);
            assert!(wrong.is_none(), "block {:?}, lent: {lent}", wrong.map(|(at, _)| at));
        }
        assert!(other.resize(4096) && !other.resize(4097));
    }

    /// A page of a memfd takes memory when it is read.
    #[test]
    fn reads_of_what_is_not_mapped_do_not_touch_it() {
        let pool = Pool::new(4 << 20);
        let disk = Arc::new(RamDisk::movable(region(1024), (1024, 1024), 512, 4096).unwrap());
        // As nothing ever writes: what is not mapped reads as zeroes whatever lies there.
        disk.region.write(0, &[9; 64 * BLOCK]);
        let mut backend = RamBackend::new(disk.clone());
        write(&mut backend, &pool, 16, &[5; 8 * BLOCK]);
        for lent in [false, true] {
            let bytes = read(&mut backend, &pool, 1, 62, lent);
            let mapped = 15 * BLOCK..23 * BLOCK;
            assert!(bytes[mapped.clone()].iter().all(|byte| *byte == 5));
            assert!(bytes[..mapped.start].iter().chain(&bytes[mapped.end..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn memory_that_is_no_disk_is_refused() {
        let sound = || RamDisk::movable(region(1024), (1024, 1024), 512, 4096).unwrap();
        assert!(RamDisk::reopen(again(&sound())).is_ok());
        assert_eq!(RamDisk::reopen(Region::new(4096)).err(), Some(ForeignMemory));
        assert_eq!(RamDisk::reopen(Region::new(100)).err(), Some(ForeignMemory));
        assert!(RamDisk::movable(Region::new(4096), (1, 1024), 512, 4096).is_none());
        assert!(RamDisk::movable(region(1024), (1025, 1024), 512, 4096).is_none());
        for word in 0..HEADER_WORDS {
            for wrong in [0, 1, 3, 700, 1 << 33, u64::MAX] {
                let disk = sound();
                let header = disk.header.as_ref().unwrap();
                header.word(word).unwrap().store(wrong, Ordering::Release);
                // Fewer blocks are a disk that was smaller.
                let is_sound = word == HEADER_WORDS - 1 && (1..=1024).contains(&wrong);
                assert_eq!(RamDisk::reopen(again(&disk)).is_ok(), is_sound, "word {word}: {wrong}");
            }
        }
    }
}
