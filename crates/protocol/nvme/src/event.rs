//! Asynchronous events (NVMe Base §5.2).

use crate::log::Lid;

/// An event, as the completion of an Asynchronous Event Request tells it in dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Its type: 0 error, 1 SMART, 2 notice, 6 I/O command set specific.
    pub kind: u8,
    /// What happened, by type.
    pub info: u8,
    /// The log that tells more; reading it clears the event.
    pub log: Lid,
}

impl Event {
    /// A namespace came, went or changed.
    pub const NAMESPACE_ATTRIBUTE: Event = Event { kind: 2, info: 0x00, log: Lid::CHANGED_NAMESPACES };
    /// The state of paths changed.
    pub const ANA_CHANGE: Event = Event { kind: 2, info: 0x03, log: Lid::ANA };
    /// There is something else to discover.
    pub const DISCOVERY_CHANGE: Event = Event { kind: 2, info: 0xf0, log: Lid::DISCOVERY };
    /// The reservation notification log has a page.
    pub const RESERVATION: Event = Event { kind: 6, info: 0x00, log: Lid::RESERVATION };

    /// Dword 0.
    pub fn dword(&self) -> u32 {
        u32::from(self.kind) | u32::from(self.info) << 8 | u32::from(self.log.0) << 16
    }

    /// Reads dword 0, for a host.
    pub fn parse(dword: u32) -> Event {
        Event { kind: dword as u8 & 7, info: (dword >> 8) as u8, log: Lid((dword >> 16) as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SPDK spdk/nvme_spec.h: spdk_nvme_async_event_completion; Linux NVME_AER_NOTICE_*.
    #[test]
    fn dwords_name_type_information_and_log() {
        assert_eq!(Event::NAMESPACE_ATTRIBUTE.dword(), 0x0004_0002);
        assert_eq!(Event::ANA_CHANGE.dword(), 0x000c_0302);
        assert_eq!(Event::DISCOVERY_CHANGE.dword(), 0x0070_f002);
        assert_eq!(Event::RESERVATION.dword(), 0x0080_0006);
        assert_eq!(Event::parse(0x000c_0302), Event::ANA_CHANGE);
    }
}
