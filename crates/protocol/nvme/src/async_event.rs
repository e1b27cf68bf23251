//! Asynchronous events (NVMe Base §5.2).

use crate::log::LogPageId;

/// An event, as the completion of an Asynchronous Event Request tells it in dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// Its type: 0 error, 1 SMART, 2 notice, 6 I/O command set specific.
    pub kind: u8,
    /// What happened, by type.
    pub info: u8,
    /// The log that tells more; reading it clears the event.
    pub log: LogPageId,
}

impl AsyncEvent {
    /// A namespace came, went or changed.
    pub const NAMESPACE_ATTRIBUTE: AsyncEvent =
        AsyncEvent { kind: 2, info: 0x00, log: LogPageId::CHANGED_NAMESPACES };
    /// The state of paths changed.
    pub const ANA_CHANGE: AsyncEvent = AsyncEvent { kind: 2, info: 0x03, log: LogPageId::ANA };
    /// There is something else to discover.
    pub const DISCOVERY_CHANGE: AsyncEvent = AsyncEvent { kind: 2, info: 0xf0, log: LogPageId::DISCOVERY };
    /// The reservation notification log has a page.
    pub const RESERVATION: AsyncEvent = AsyncEvent { kind: 6, info: 0x00, log: LogPageId::RESERVATION };

    /// Dword 0.
    pub fn to_dword(&self) -> u32 {
        u32::from(self.kind) | u32::from(self.info) << 8 | u32::from(self.log.0) << 16
    }

    /// Reads dword 0, for a host.
    pub fn parse(dword: u32) -> AsyncEvent {
        AsyncEvent { kind: dword as u8 & 7, info: (dword >> 8) as u8, log: LogPageId((dword >> 16) as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPDK spdk/nvme_spec.h: spdk_nvme_async_event_completion; Linux NVME_AER_NOTICE_*.
    #[test]
    fn dwords_name_type_information_and_log() {
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE.to_dword(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGE.to_dword(), 0x000c_0302);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGE.to_dword(), 0x0070_f002);
        assert_eq!(AsyncEvent::RESERVATION.to_dword(), 0x0080_0006);
        assert_eq!(AsyncEvent::parse(0x000c_0302), AsyncEvent::ANA_CHANGE);
    }
}
