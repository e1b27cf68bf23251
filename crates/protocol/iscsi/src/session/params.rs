//! The parameters of a session: the outcome of its logins and the operator's limits, as plain data.

use crate::framing::Framing;
use crate::negotiate::{Digest, Params, SessionType};
use crate::wire::{Cid, Isid, Sn, Tsih};
use std::time::Duration;

/// What the leading login settled for all links of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionParams {
    /// The initiator's half of the session's name.
    pub isid: Isid,
    /// The target's half.
    pub tsih: Tsih,
    /// Whether only SendTargets is served.
    pub discovery: bool,
    /// Most links: 1 and more.
    pub max_connections: u16,
    /// No unsolicited Data-Out PDUs.
    pub initial_r2t: bool,
    /// Commands may carry data.
    pub immediate_data: bool,
    /// Bytes of one Data-In or solicited Data-Out sequence: 512 to 2^24-1.
    pub max_burst: u32,
    /// Bytes of unsolicited data per command: 512 to `max_burst`.
    pub first_burst: u32,
    /// Bytes that may ride on one command at most: the data segment that we declared to receive.
    pub segment_max: u32,
    /// R2Ts per task: 1 and more; no more than [`R2T_MAX`](super::R2T_MAX) are used.
    pub max_outstanding_r2t: u16,
    /// Seconds before a reconnect.
    pub time2wait: u16,
    /// Seconds that tasks survive after that.
    pub time2retain: u16,
    /// iSCSIProtocolLevel: 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u8,
    /// The first CmdSN of the full feature phase: that of the leading login.
    pub cmd_sn: Sn,
}

impl SessionParams {
    /// What the leading login negotiated, and the identity that it was given. `cmd_sn` is that of the
    /// login.
    #[must_use]
    pub fn from_negotiated(params: &Params, isid: Isid, tsih: Tsih, cmd_sn: Sn) -> Self {
        let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        SessionParams {
            isid,
            tsih,
            discovery: params.session_type == SessionType::Discovery,
            max_connections: short(params.max_connections),
            initial_r2t: params.initial_r2t,
            immediate_data: params.immediate_data,
            max_burst: params.max_burst,
            first_burst: params.first_burst.min(params.max_burst),
            segment_max: params.target_mrdsl,
            max_outstanding_r2t: short(params.max_outstanding_r2t),
            time2wait: short(params.time2wait),
            time2retain: short(params.time2retain),
            protocol_level: u8::try_from(params.protocol_level).unwrap_or(u8::MAX),
            cmd_sn,
        }
    }

    /// Bytes of one whole unsolicited burst, as the initiator may send it; 0 if it may send none. Where
    /// every Data-Out is asked for, it is what rides on the command: one data segment.
    #[must_use]
    pub fn unsolicited_burst_len(&self) -> u32 {
        match (self.initial_r2t, self.immediate_data) {
            _ if self.discovery => 0,
            (true, false) => 0,
            (true, true) => self.first_burst.min(self.segment_max),
            (false, _) => self.first_burst,
        }
    }
}

/// What one login settled for its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkParams {
    /// Connection ID, chosen by the initiator.
    pub cid: Cid,
    /// CRC32C behind headers.
    pub header_digest: bool,
    /// CRC32C behind data segments.
    pub data_digest: bool,
    /// Largest data segment that the initiator receives: 512 to 2^24-1.
    pub initiator_mrdsl: u32,
    /// Largest data segment that we declared to receive.
    pub target_mrdsl: u32,
    /// StatSN of the first response of the full feature phase.
    pub stat_sn: Sn,
}

impl LinkParams {
    /// What the login of this link negotiated. `stat_sn` is that of the next response.
    #[must_use]
    pub fn from_negotiated(params: &Params, cid: Cid, stat_sn: Sn) -> Self {
        LinkParams {
            cid,
            header_digest: params.header_digest == Digest::Crc32c,
            data_digest: params.data_digest == Digest::Crc32c,
            initiator_mrdsl: params.initiator_mrdsl,
            target_mrdsl: params.target_mrdsl,
            stat_sn,
        }
    }

    pub(super) fn framing(&self) -> Framing {
        Framing {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            peer_mrdsl: self.initiator_mrdsl,
            own_mrdsl: self.target_mrdsl,
        }
    }
}

/// What the operator allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Most commands in work, immediate ones apart: 1 to 4096. Fewer are taken while memory for
    /// their unsolicited data cannot be set aside.
    pub commands: u16,
    /// Most immediate commands in work: 2 to 256 (RFC 7143 §4.2.2.1 asks for two per connection).
    pub immediate: u16,
    /// Silence after which the initiator is pinged; `None`: never.
    pub nop_interval: Option<Duration>,
    /// How long a ping may stay unanswered.
    pub nop_timeout: Duration,
    /// How long a peer may leave what we send unread.
    pub stall_timeout: Duration,
    /// How long a peer may take to send a whole sequence of data that it owes, or a command that others wait for.
    pub data_out_timeout: Duration,
    /// Most bytes per link that are being read or wait to be sent; one I/O is always allowed.
    pub read_bytes: u32,
    /// Most bytes per link that are asked for and have not come; one I/O is always allowed.
    pub write_bytes: u32,
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits {
            commands: 64,
            immediate: 16,
            nop_interval: Some(Duration::from_secs(15)),
            nop_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            data_out_timeout: Duration::from_secs(60),
            read_bytes: 8 << 20,
            write_bytes: 8 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_unasked() {
        let params = |initial_r2t, immediate_data, first_burst, segment_max| SessionParams {
            isid: Isid([0; 6]),
            tsih: Tsih::new(1),
            discovery: false,
            max_connections: 1,
            initial_r2t,
            immediate_data,
            max_burst: 262_144,
            first_burst,
            segment_max,
            max_outstanding_r2t: 1,
            time2wait: 2,
            time2retain: 20,
            protocol_level: 1,
            cmd_sn: Sn::new(1),
        };
        assert_eq!(params(true, false, 65_536, 8192).unsolicited_burst_len(), 0);
        assert_eq!(
            params(true, true, 65_536, 8192).unsolicited_burst_len(),
            8192,
            "one segment with the command"
        );
        assert_eq!(params(true, true, 4096, 8192).unsolicited_burst_len(), 4096);
        assert_eq!(params(false, true, 65_536, 8192).unsolicited_burst_len(), 65_536, "Data-Outs follow");
        assert_eq!(params(false, false, 65_536, 8192).unsolicited_burst_len(), 65_536);
        let looking = SessionParams { discovery: true, ..params(false, true, 65_536, 8192) };
        assert_eq!(looking.unsolicited_burst_len(), 0);
    }
}
