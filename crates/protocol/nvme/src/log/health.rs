//! SMART and health (LID 02h; NVMe Base §5.16.1.3).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A number of 16 bytes; 8 of them are enough.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct U128 {
    /// The lower half.
    pub low: U64,
    /// The upper half.
    pub high: U64,
}

impl From<u64> for U128 {
    fn from(value: u64) -> Self {
        U128 { low: U64::new(value), high: U64::ZERO }
    }
}

/// The page as it is on the wire: 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartHealthLog {
    /// Bit 0 spare is low, 1 temperature, 2 reliability, 3 media are read only, 4 backup, 5 memory region.
    pub critical: u8,
    /// The composite temperature in kelvins.
    pub temperature: U16,
    /// Spare in percent.
    pub spare: u8,
    /// Its threshold.
    pub spare_threshold: u8,
    /// Percent of the expected life that is used up.
    pub used: u8,
    /// Endurance groups.
    pub endurance: u8,
    /// Reserved.
    pub reserved_7: [u8; 25],
    /// Thousands of 512 bytes that hosts read, rounded up.
    pub units_read: U128,
    /// Thousands of 512 bytes that hosts wrote, rounded up.
    pub units_written: U128,
    /// Read commands (and their like).
    pub reads: U128,
    /// Write commands (and their like).
    pub writes: U128,
    /// Minutes in which commands were under way.
    pub busy: U128,
    /// Power cycles.
    pub power_cycles: U128,
    /// Hours.
    pub power_on: U128,
    /// Unsafe shutdowns.
    pub unsafe_shutdowns: U128,
    /// Unrecovered errors of the media.
    pub media_errors: U128,
    /// Entries that the error log ever had.
    pub error_entries: U128,
    /// Minutes of warning temperature.
    pub warning_minutes: U32,
    /// Minutes of critical temperature.
    pub critical_minutes: U32,
    /// Sensors, transitions and what is reserved.
    pub reserved_200: [u8; 312],
}

const _: () = assert!(size_of::<SmartHealthLog>() == 512);

/// Bytes in the unit of the page: thousands of 512, rounded up.
pub fn to_data_units(bytes: u64) -> U128 {
    bytes.div_ceil(512 * 1000).into()
}
