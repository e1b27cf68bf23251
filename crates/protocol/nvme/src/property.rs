//! The values of a controller's properties (NVMe Base §3.1.3).

/// Controller Capabilities, of a controller on fabrics: contiguous queues, pages of 4 KiB, round
/// robin, ready only when its media are (CRWMS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerCapabilities {
    /// The most entries of an I/O queue: 2 to 65536.
    pub entries_max: u32,
    /// How long CSTS.RDY may take to follow CC.EN, in units of 500 ms; at least 1.
    pub timeout: u8,
    /// Whether there are I/O command sets to choose from: CC.CSS may be 6.
    pub command_sets: bool,
}

impl ControllerCapabilities {
    /// The property.
    pub fn to_u64(&self) -> u64 {
        let entries = u64::from(self.entries_max.clamp(2, 65_536) - 1);
        let css = 1 | u64::from(self.command_sets) << 6;
        entries | 1 << 16 | u64::from(self.timeout) << 24 | css << 37 | 1 << 59
    }

    /// Reads the property, for a host.
    pub fn parse(word: u64) -> ControllerCapabilities {
        ControllerCapabilities {
            entries_max: (word & 0xffff) as u32 + 1,
            timeout: (word >> 24) as u8,
            command_sets: word & 1 << 43 != 0,
        }
    }

    /// Controller Ready Timeouts: the same time, for media that are always ready with it.
    pub fn to_crto(&self) -> u32 {
        u32::from(self.timeout)
    }
}

/// The version that is spoken: 2.0.
pub const VERSION: u32 = 0x0002_0000;

/// Controller Configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerConfiguration(pub u32);

impl ControllerConfiguration {
    /// What a host writes to enable a controller of the NVM command set.
    pub const ENABLE: ControllerConfiguration = ControllerConfiguration(1 | 6 << 16 | 4 << 20);

    /// EN.
    pub fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSS: the I/O command sets chosen.
    pub fn command_sets(self) -> u8 {
        (self.0 >> 4) as u8 & 7
    }

    /// MPS: the page size is 2^(12 + this).
    pub fn page_size(self) -> u8 {
        (self.0 >> 7) as u8 & 15
    }

    /// AMS: the arbitration mechanism.
    pub fn arbitration(self) -> u8 {
        (self.0 >> 11) as u8 & 7
    }

    /// SHN: 0 none, 1 normal, 2 abrupt.
    pub fn shutdown(self) -> u8 {
        (self.0 >> 14) as u8 & 3
    }

    /// IOSQES: a submission queue entry has 2^this bytes.
    pub fn iosqes(self) -> u8 {
        (self.0 >> 16) as u8 & 15
    }

    /// IOCQES: a completion queue entry has 2^this bytes.
    pub fn iocqes(self) -> u8 {
        (self.0 >> 20) as u8 & 15
    }

    /// CRIME: ready before the media are.
    pub fn independent_of_media(self) -> bool {
        self.0 & 1 << 24 != 0
    }

    /// The same with EN clear: what stops the controller.
    pub fn disabled(self) -> ControllerConfiguration {
        ControllerConfiguration(self.0 & !1)
    }

    /// The same with this SHN.
    pub fn with_shutdown(self, kind: u8) -> ControllerConfiguration {
        ControllerConfiguration(self.0 & !(3 << 14) | u32::from(kind & 3) << 14)
    }
}

/// How far a shutdown is (CSTS.SHST).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// None was asked for.
    #[default]
    No,
    /// It goes on.
    Occurring,
    /// It is done.
    Complete,
}

/// Controller Status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus {
    /// RDY.
    pub ready: bool,
    /// CFS: fatal; only a reset helps.
    pub fatal: bool,
    /// SHST.
    pub shutdown: ShutdownStatus,
}

impl ControllerStatus {
    /// Reads the property, for a host. A reserved SHST counts as no shutdown.
    pub fn parse(word: u64) -> ControllerStatus {
        let shutdown = match word >> 2 & 3 {
            1 => ShutdownStatus::Occurring,
            2 => ShutdownStatus::Complete,
            _ => ShutdownStatus::No,
        };
        ControllerStatus { ready: word & 1 != 0, fatal: word & 2 != 0, shutdown }
    }

    /// The property.
    pub fn to_u32(&self) -> u32 {
        u32::from(self.ready) | u32::from(self.fatal) << 1 | (self.shutdown as u32) << 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Bits: Linux include/linux/nvme.h (NVME_CAP_*, NVME_CC_*, NVME_CSTS_*), SPDK spdk/nvme_spec.h
    // (spdk_nvme_cap_register, spdk_nvme_cc_register, spdk_nvme_csts_register).
    #[test]
    fn capabilities_stand_at_their_bits() {
        let cap = ControllerCapabilities { entries_max: 1024, timeout: 30, command_sets: true };
        assert_eq!(cap.to_u64(), 0x0800_0820_1e01_03ff);
        assert_eq!(ControllerCapabilities::parse(cap.to_u64()), cap);
        let plain = ControllerCapabilities { command_sets: false, ..cap };
        assert_eq!(plain.to_u64(), 0x0800_0020_1e01_03ff);
        assert_eq!(cap.to_crto(), 30);
    }

    #[test]
    fn the_configuration_is_cut_at_its_bits() {
        // What Linux 6.1 writes to enable a controller.
        let cc = ControllerConfiguration(0x0046_0001);
        assert_eq!(cc, ControllerConfiguration::ENABLE);
        assert!(cc.is_enabled());
        assert_eq!((cc.iosqes(), cc.iocqes()), (6, 4));
        let all = ControllerConfiguration(0x0196_9ae0);
        assert_eq!((all.command_sets(), all.page_size(), all.arbitration()), (6, 5, 3));
        assert_eq!((all.shutdown(), all.iosqes(), all.iocqes()), (2, 6, 9));
        assert!(all.independent_of_media() && !all.is_enabled());
        assert_eq!((cc.with_shutdown(1).0, cc.disabled().0), (0x0046_4001, 0x0046_0000));
    }

    #[test]
    fn the_status_stands_at_its_bits() {
        let status = ControllerStatus { ready: true, fatal: true, shutdown: ShutdownStatus::Complete };
        assert_eq!(status.to_u32(), 0b1011);
        assert_eq!(ControllerStatus::parse(0b1011), status);
        let status = ControllerStatus { shutdown: ShutdownStatus::Occurring, ..ControllerStatus::default() };
        assert_eq!(status.to_u32(), 0b0100);
    }
}
