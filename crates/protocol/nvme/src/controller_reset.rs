//! Cross-Controller Reset (NVMe Base 2.3 §5.4.3, TP8028): the command, its result, and its log page (1Eh).
//!
//! A host that has lost a controller has another one of the subsystem reset it. The lost one is named by its CNTLID, and
//! by two numbers of that life of it, which Identify Controller tells (CIU, CIRN): one that came later is not meant.

use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use crate::sqe::{Opcode, Sqe};

/// One life of a controller, as Cross-Controller Reset names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControllerInstance {
    /// CNTLID (ICID in the command).
    pub cntlid: u16,
    /// CIU: the Controller Instance Uniquifier.
    pub uniquifier: u8,
    /// CIRN: the Controller Instance Random Number.
    pub random_number: u64,
}

impl ControllerInstance {
    /// Reads the command (CDW10, CDW12 and CDW13).
    pub fn parse(sqe: &Sqe) -> ControllerInstance {
        ControllerInstance {
            cntlid: sqe.cdw(10) as u16,
            uniquifier: (sqe.cdw(10) >> 16) as u8,
            random_number: sqe.cdw_pair(12),
        }
    }

    /// The command that resets it, for a host to send.
    pub fn to_reset_sqe(&self) -> Sqe {
        let mut sqe = Sqe::new_zeroed();
        sqe.opcode = Opcode::CROSS_CONTROLLER_RESET;
        sqe.cdw10[0] = U32::new(u32::from(self.cntlid) | u32::from(self.uniquifier) << 16);
        sqe.cdw10[2] = U32::new(self.random_number as u32);
        sqe.cdw10[3] = U32::new((self.random_number >> 32) as u32);
        sqe
    }
}

/// Dword 0 of a completion that succeeded: whether the reset is complete already (IRS). If not, the log page tells
/// when it is.
pub const IMMEDIATE_RESET_SUCCESSFUL: u32 = 1;

/// How far the reset of a controller is (CCRS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetStatus {
    /// It is under way.
    InProgress,
    /// Nothing of the controller can run any more.
    Successful,
    /// It was not reset.
    Failed,
}

/// Bytes of the head of the log page.
const LOG_HEADER_LEN: usize = 8;

/// Bytes of an entry of the log page.
const LOG_ENTRY_LEN: usize = 8;

/// Bytes of the longest log page: 511 entries.
pub const LOG_LEN_MAX: usize = LOG_HEADER_LEN + 511 * LOG_ENTRY_LEN;

/// A log page (1Eh) without entries: that of a controller each of whose resets is complete when its command is.
pub const EMPTY_LOG: [u8; LOG_HEADER_LEN] = [0; LOG_HEADER_LEN];

/// What a log page says of the reset of a controller; `None`: nothing. The log has no CIRN: a number is not given
/// again while a reset of it is in the log.
pub fn find_reset_status(log: &[u8], instance: &ControllerInstance) -> Option<ResetStatus> {
    let (header, entries) = log.split_at_checked(LOG_HEADER_LEN)?;
    let count = usize::from(u16::from_le_bytes([*header.first()?, *header.get(1)?]));
    let (entries, _) = entries.as_chunks::<LOG_ENTRY_LEN>();
    let [low, high] = instance.cntlid.to_le_bytes();
    let entry = entries
        .iter()
        .take(count)
        .find(|entry| (entry[0], entry[1], entry[2]) == (low, high, instance.uniquifier))?;
    match entry[6] {
        0 => Some(ResetStatus::InProgress),
        1 => Some(ResetStatus::Successful),
        _ => Some(ResetStatus::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const INSTANCE: ControllerInstance =
        ControllerInstance { cntlid: 0x1234, uniquifier: 0x56, random_number: 0x1122_3344_5566_7788 };

    // NVMe Base 2.3 figure 522; libnvme 3.2 nvme_init_cross_ctrl_reset.
    #[test]
    fn the_command_names_a_life_of_a_controller() {
        let sqe = INSTANCE.to_reset_sqe();
        assert_eq!(sqe.opcode.0, 0x38);
        assert_eq!(sqe.as_bytes()[40..44], [0x34, 0x12, 0x56, 0]);
        assert_eq!(sqe.as_bytes()[48..56], 0x1122_3344_5566_7788_u64.to_le_bytes());
        assert_eq!(ControllerInstance::parse(&sqe), INSTANCE);
    }

    // NVMe Base 2.3 figures 304 and 305.
    #[test]
    fn the_log_tells_of_one_reset_among_others() {
        let mut log = vec![3, 0, 0, 0, 0, 0, 0, 0];
        log.extend([0x34, 0x12, 0x55, 0, 1, 0, 1, 3]);
        log.extend([0x34, 0x12, 0x56, 0, 1, 0, 0, 3]);
        log.extend([0x35, 0x12, 0x56, 0, 1, 0, 1, 3]);
        assert_eq!(find_reset_status(&log, &INSTANCE), Some(ResetStatus::InProgress));
        log[22] = 1;
        assert_eq!(find_reset_status(&log, &INSTANCE), Some(ResetStatus::Successful));
        log[22] = 2;
        assert_eq!(find_reset_status(&log, &INSTANCE), Some(ResetStatus::Failed));
        log[0] = 1;
        assert_eq!(find_reset_status(&log, &INSTANCE), None, "only entries that are counted are read");
        for len in 0..log.len() {
            let _ = find_reset_status(&log[..len], &INSTANCE);
        }
        assert_eq!(find_reset_status(&EMPTY_LOG, &INSTANCE), None);
    }
}
