//! Commands of an admin queue, as a host builds them (NVMe Base §5). The transport fills in identifiers and
//! data pointers.

use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use crate::feature::{GetFeatures, SetFeatures};
use crate::identify::Identify;
use crate::log::GetLogPage;
use crate::sqe::{Opcode, Sqe};

#[allow(missing_docs)] // The names are the standard's.
impl Opcode {
    pub const GET_LOG_PAGE: Opcode = Opcode(0x02);
    pub const IDENTIFY: Opcode = Opcode(0x06);
    pub const ABORT: Opcode = Opcode(0x08);
    pub const SET_FEATURES: Opcode = Opcode(0x09);
    pub const GET_FEATURES: Opcode = Opcode(0x0a);
    pub const ASYNC_EVENT_REQUEST: Opcode = Opcode(0x0c);
    pub const KEEP_ALIVE: Opcode = Opcode(0x18);
    pub const CROSS_CONTROLLER_RESET: Opcode = Opcode(0x38);
    pub const FORMAT_NVM: Opcode = Opcode(0x80);
}

fn admin_sqe(opcode: Opcode, nsid: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = opcode;
    sqe.nsid = U32::new(nsid);
    sqe
}

/// Abort (§5.1): the command with this identifier on this queue.
pub fn abort_sqe(qid: u16, cid: u16) -> Sqe {
    let mut sqe = admin_sqe(Opcode::ABORT, 0);
    sqe.cdw10[0] = U32::new(u32::from(qid) | u32::from(cid) << 16);
    sqe
}

/// Asynchronous Event Request (§5.2).
pub fn async_event_request_sqe() -> Sqe {
    admin_sqe(Opcode::ASYNC_EVENT_REQUEST, 0)
}

/// Keep Alive (§5.18).
pub fn keep_alive_sqe() -> Sqe {
    admin_sqe(Opcode::KEEP_ALIVE, 0)
}

impl Identify {
    /// The command, for a host to send.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = admin_sqe(Opcode::IDENTIFY, self.nsid);
        sqe.cdw10[0] = U32::new(u32::from(self.cns.0) | u32::from(self.controller) << 16);
        sqe.cdw10[1] = U32::new(u32::from(self.command_set) << 24);
        sqe
    }
}

impl GetLogPage {
    /// The command, for a host to send. `len` is a multiple of 4 and not 0.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = admin_sqe(Opcode::GET_LOG_PAGE, self.nsid);
        let dwords = (self.len / 4).saturating_sub(1);
        let first = u32::from(self.lid.0) | u32::from(self.specific & 0x7f) << 8;
        sqe.cdw10[0] = U32::new(first | u32::from(self.retain) << 15 | (dwords as u32 & 0xffff) << 16);
        sqe.cdw10[1] = U32::new((dwords >> 16) as u32 & 0xffff);
        sqe.cdw10[2] = U32::new(self.offset as u32);
        sqe.cdw10[3] = U32::new((self.offset >> 32) as u32);
        sqe.cdw10[4] = U32::new(u32::from(self.by_index) << 23 | u32::from(self.command_set) << 24);
        sqe
    }
}

impl GetFeatures {
    /// The command, for a host to send.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = admin_sqe(Opcode::GET_FEATURES, self.nsid);
        sqe.cdw10[0] = U32::new(u32::from(self.fid.0) | (self.select as u32) << 8);
        sqe.cdw10[1] = U32::new(self.argument);
        sqe
    }
}

impl SetFeatures {
    /// The command, for a host to send.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = admin_sqe(Opcode::SET_FEATURES, self.nsid);
        sqe.cdw10[0] = U32::new(u32::from(self.fid.0) | u32::from(self.save) << 31);
        sqe.cdw10[1] = U32::new(self.value);
        sqe
    }
}

/// A Format NVM command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatNvm {
    /// NSID.
    pub nsid: u32,
    /// LBAFU and LBAFL: the index of the format.
    pub lba_format: u8,
    /// MSET: metadata stands behind each block's data.
    pub metadata_in_line: bool,
    /// PI: the type of protection information; 0 is none.
    pub protection: u8,
    /// SES: 0 no erase, 1 of user data, 2 of a key.
    pub secure_erase: u8,
}

impl FormatNvm {
    /// Reads the command.
    pub fn parse(sqe: &Sqe) -> FormatNvm {
        let dword = sqe.cdw(10);
        FormatNvm {
            nsid: sqe.nsid.get(),
            lba_format: (dword & 15) as u8 | ((dword >> 12 & 3) as u8 * 16),
            metadata_in_line: dword & 1 << 4 != 0,
            protection: (dword >> 5 & 7) as u8,
            secure_erase: (dword >> 9 & 7) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::{FeatureId, FeatureSelect};
    use crate::identify::Cns;
    use crate::log::LogPageId;
    use zerocopy::IntoBytes;

    /// What is written is what the other side's parsers, which are held to fixed bytes, read.
    #[test]
    fn commands_are_read_as_they_were_made() {
        let identify = Identify { cns: Cns::COMMAND_SETS, controller: 0x1234, nsid: 7, command_set: 2 };
        assert_eq!(Identify::parse(&identify.to_sqe()), identify);
        let log = GetLogPage {
            lid: LogPageId::ANA,
            specific: 0x41,
            retain: true,
            len: 0x0012_3450_0000 / 16,
            offset: 0x1_0000_0004,
            by_index: false,
            command_set: 3,
            nsid: 9,
        };
        assert_eq!(GetLogPage::parse(&log.to_sqe()), log);
        let get =
            GetFeatures { fid: FeatureId::HOST_BEHAVIOR, select: FeatureSelect::Saved, argument: 5, nsid: 1 };
        assert_eq!(GetFeatures::parse(&get.to_sqe()), Some(get));
        let set = SetFeatures { fid: FeatureId::NUMBER_OF_QUEUES, save: true, value: 0x0003_0003, nsid: 2 };
        assert_eq!(SetFeatures::parse(&set.to_sqe()), set);
    }

    // Linux struct nvme_abort_cmd: sqid at 40, cid at 42.
    #[test]
    fn an_abort_names_queue_and_command() {
        let sqe = abort_sqe(3, 0x0102);
        assert_eq!(sqe.as_bytes()[40..44], [3, 0, 2, 1]);
        assert_eq!((keep_alive_sqe().opcode.0, async_event_request_sqe().opcode.0), (0x18, 0x0c));
    }

    // NVMe Base 2.1 figure "Format NVM – Command Dword 10".
    #[test]
    fn a_format_is_cut_at_its_bits() {
        let format = |dword| {
            let mut sqe = admin_sqe(Opcode::FORMAT_NVM, 7);
            sqe.cdw10[0] = U32::new(dword);
            FormatNvm::parse(&sqe)
        };
        let none =
            FormatNvm { nsid: 7, lba_format: 0, metadata_in_line: false, protection: 0, secure_erase: 0 };
        assert_eq!(format(0), none);
        assert_eq!(format(0xf), FormatNvm { lba_format: 15, ..none });
        assert_eq!(format(1 << 12 | 1), FormatNvm { lba_format: 17, ..none });
        assert_eq!(format(1 << 4), FormatNvm { metadata_in_line: true, ..none });
        assert_eq!(format(3 << 5), FormatNvm { protection: 3, ..none });
        assert_eq!(format(1 << 9), FormatNvm { secure_erase: 1, ..none });
    }
}
