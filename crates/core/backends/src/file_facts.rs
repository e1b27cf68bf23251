//! Computes a volume's geometry from what the system reports about a file or device.

use std::fmt;

use volume::Geometry;

/// The longest operation, in bytes: what VPD B0 and MDTS promise.
pub(crate) const IO_MAX: u32 = 1 << 20;
/// Physical blocks of files, in bytes, if nothing larger is known.
const PHYSICAL_BLOCK_DEFAULT: u32 = 4096;

/// What the world found out of an open file or device, and what the configuration wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it is a block device.
    pub device: bool,
    /// Bytes per logical block that hosts shall see: 512 or 4096.
    pub logical: u32,
    /// Bytes per physical block that hosts shall see, if the configuration says.
    pub physical: Option<u32>,
    /// A device's own physical block size (BLKPBSZGET), a file's preferred block size (st_blksize);
    /// 0 if not known.
    pub preferred: u32,
    /// Whether it is open with O_DIRECT.
    pub direct: bool,
    /// Alignment of memory for O_DIRECT (stx_dio_mem_align; a device's logical block size).
    pub memory_align: u32,
    /// Alignment of offsets and lengths for O_DIRECT (stx_dio_offset_align; a device's logical block
    /// size).
    pub offset_align: u32,
    /// Whether space can be given back (FALLOC_FL_PUNCH_HOLE works).
    pub punch: bool,
    /// Whether the configuration lets hosts see a volatile write cache. Else every write is stable
    /// before it is answered.
    pub write_cache: bool,
    /// Whether what the world has written is stable, without a sync and without a cache that could lose it: nothing
    /// fails afterwards.
    pub write_through: bool,
}

/// Why a file cannot be a volume as the configuration wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsuitableFile {
    /// Not a whole block long.
    Empty,
    /// Block sizes that no host knows, or that contradict each other.
    BlockSize(u32),
    /// The system names no alignment with which O_DIRECT would work.
    NoDirect,
}

impl fmt::Display for UnsuitableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnsuitableFile::Empty => write!(f, "it is shorter than a block"),
            UnsuitableFile::BlockSize(size) => write!(f, "blocks of {size} bytes are not possible"),
            UnsuitableFile::NoDirect => write!(f, "its file system does not support O_DIRECT"),
        }
    }
}

impl std::error::Error for UnsuitableFile {}

impl FileFacts {
    /// A file of so many bytes: blocks of 512, open with O_DIRECT for any multiple of them, with space that can be
    /// given back and a write cache.
    pub const fn new(bytes: u64) -> FileFacts {
        FileFacts {
            bytes,
            device: false,
            logical: 512,
            physical: None,
            preferred: 4096,
            direct: true,
            memory_align: 512,
            offset_align: 512,
            punch: true,
            write_cache: true,
            write_through: false,
        }
    }

    /// What the volume's blocks are like. A rest that fills no block (for O_DIRECT: no aligned unit)
    /// is left out.
    pub fn geometry(&self) -> Result<Geometry, UnsuitableFile> {
        let logical = self.logical;
        if logical != 512 && logical != 4096 {
            return Err(UnsuitableFile::BlockSize(logical));
        }
        let dio_align = self.dio_align()?;
        let physical = self.physical.unwrap_or_else(|| self.physical_default(dio_align));
        if !physical.is_power_of_two() || physical < logical || physical > IO_MAX {
            return Err(UnsuitableFile::BlockSize(physical));
        }
        let unit = u64::from(logical.max(dio_align));
        let blocks = self.bytes / unit * (unit / u64::from(logical));
        if blocks == 0 {
            return Err(UnsuitableFile::Empty);
        }
        Ok(Geometry {
            blocks,
            logical,
            physical,
            dio_align,
            max_io: IO_MAX,
            thin: self.punch,
            write_cache: self.write_cache,
            atomic: IO_MAX / logical,
            // The kernel promises no more, and not even this where a disk tears sectors.
            atomic_powerfail: 1,
            caw_max: 255.min(IO_MAX / logical),
            // The world punches with FALLOC_FL_PUNCH_HOLE, on devices too, which zeroes.
            dealloc_reads_zero: self.punch,
            lends: false,
        })
    }

    fn dio_align(&self) -> Result<u32, UnsuitableFile> {
        if !self.direct {
            return Ok(self.logical);
        }
        let aligned = self.offset_align.is_power_of_two() && self.memory_align.is_power_of_two();
        if !aligned || self.offset_align > IO_MAX / 4 {
            return Err(UnsuitableFile::NoDirect);
        }
        Ok(self.offset_align.max(self.logical))
    }

    fn physical_default(&self, dio_align: u32) -> u32 {
        let known = if self.preferred.is_power_of_two() { self.preferred.min(64 << 10) } else { 0 };
        let least = if self.device { self.logical } else { PHYSICAL_BLOCK_DEFAULT };
        // A preferred size of a file beyond a page is about throughput, not about blocks.
        let known = if self.device { known } else { known.min(PHYSICAL_BLOCK_DEFAULT) };
        least.max(known).max(dio_align)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileFacts = FileFacts::new(1 << 20);

    #[test]
    fn geometry_follows_the_file() {
        let file = FILE.geometry().unwrap();
        assert_eq!((file.blocks, file.logical, file.physical, file.dio_align), (2048, 512, 4096, 512));
        assert_eq!(file.dio_unit_blocks(), 1);
        let native = FileFacts { offset_align: 4096, bytes: (1 << 20) + 4095, ..FILE };
        let native = native.geometry().unwrap();
        assert_eq!((native.blocks, native.dio_unit_blocks()), (2048, 8));
        let cached = FileFacts { direct: false, offset_align: 0, memory_align: 0, ..FILE };
        assert_eq!(cached.geometry().unwrap().dio_align, 512);
        let device = FileFacts { device: true, preferred: 512, ..FILE };
        assert_eq!(device.geometry().unwrap().physical, 512);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        assert_eq!(FileFacts { bytes: 511, ..FILE }.geometry(), Err(UnsuitableFile::Empty));
        assert_eq!(FileFacts { logical: 520, ..FILE }.geometry(), Err(UnsuitableFile::BlockSize(520)));
        assert_eq!(FileFacts { physical: Some(256), ..FILE }.geometry(), Err(UnsuitableFile::BlockSize(256)));
        assert_eq!(FileFacts { offset_align: 0, ..FILE }.geometry(), Err(UnsuitableFile::NoDirect));
    }
}
