//! The longest transfer of one command (MDTS, NVMe Base §5.17.2.1).

/// The longest transfer that a controller announces: a power of two from 8 KiB to 1 MiB. MDTS counts powers
/// of two of the least page (4 KiB), and 0 would say that there is no limit: so 4 KiB cannot be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferMax {
    mdts: u8,
}

impl TransferMax {
    /// The least.
    pub const MIN: TransferMax = TransferMax { mdts: 1 };
    /// The most: 1 MiB.
    pub const MAX: TransferMax = TransferMax { mdts: 8 };

    /// The limit of so many bytes; `None`: MDTS cannot say it, or it is more than the most.
    pub const fn from_bytes(bytes: u64) -> Option<TransferMax> {
        let fits = bytes >= TransferMax::MIN.bytes() as u64 && bytes <= TransferMax::MAX.bytes() as u64;
        if fits && bytes.is_power_of_two() {
            Some(TransferMax { mdts: (bytes.trailing_zeros() - 12) as u8 })
        } else {
            None
        }
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        4096 << self.mdts
    }

    /// As Identify Controller shows it.
    pub const fn mdts(self) -> u8 {
        self.mdts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_becomes_mdts_zero_which_would_mean_no_limit() {
        for bytes in [0, 1, 512, 4095, 4096, 8191, 12 << 10, 2 << 20, 1 << 32, u64::MAX] {
            assert_eq!(TransferMax::from_bytes(bytes), None, "{bytes}");
        }
        for mdts in 1..=8 {
            let limit = TransferMax::from_bytes(4096 << mdts).unwrap();
            assert_eq!((limit.mdts(), limit.bytes()), (mdts, 4096 << mdts));
        }
    }
}
