//! A minimal iSCSI session for a load: one connection, its numbers, and the commands that it carries.

use iscsi::wire::{CommandFlags, Itt, Lun, Pdu, ScsiCommand, Sn};

use super::{LoadOp, WireRequest};

/// A session that is logged in, and its one connection.
#[derive(Clone, Debug)]
pub struct IscsiSession {
    pub(super) lun: [u8; 8],
    pub(super) block: u32,
    pub(super) blocks: u64,
    pub(super) immediate: bool,
    pub(super) first_burst: u32,
    /// The longest segment that the target takes.
    pub(super) segment_max: u32,
    pub(super) cmd_sn: Sn,
    pub(super) exp_stat_sn: Sn,
    pub(super) max_cmd_sn: Sn,
}

impl IscsiSession {
    /// Before anything was agreed on.
    pub(super) fn new(lun: u8, first_burst: u32) -> Self {
        IscsiSession {
            lun: [0, lun, 0, 0, 0, 0, 0, 0],
            block: 512,
            blocks: 0,
            immediate: true,
            first_burst,
            segment_max: 8192,
            cmd_sn: Sn::new(1),
            exp_stat_sn: Sn::new(0),
            max_cmd_sn: Sn::new(1),
        }
    }

    /// Size of the unit in bytes.
    pub fn unit_bytes(&self) -> u64 {
        self.blocks * u64::from(self.block)
    }

    /// Takes in the numbers of a response.
    pub(super) fn acknowledge(&mut self, stat_sn: Sn, max_cmd_sn: Sn) {
        self.exp_stat_sn = stat_sn.next();
        self.open_window(max_cmd_sn);
    }

    pub(super) fn open_window(&mut self, max_cmd_sn: Sn) {
        if self.max_cmd_sn.lt(max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// READ (10) or WRITE (10).
    pub(super) fn read_write_command(&mut self, request: WireRequest) -> ScsiCommand {
        let direction = match request.op {
            LoadOp::Read => CommandFlags::READ,
            LoadOp::Write => CommandFlags::WRITE,
        };
        let mut command = ScsiCommand::new();
        // A simple task (RFC 7143 §11.3.1).
        command.flags = CommandFlags(CommandFlags::FINAL.0 | direction.0 | 1);
        command.lun = Lun(self.lun);
        command.itt = Itt::new(request.tag);
        command.expected_data_len = request.len.into();
        command.cmd_sn = self.cmd_sn.take();
        command.exp_stat_sn = self.exp_stat_sn;
        command.cdb[0] = match request.op {
            LoadOp::Read => 0x28,
            LoadOp::Write => 0x2a,
        };
        let lba = (request.offset / u64::from(self.block)) as u32;
        command.cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        command.cdb[7..9].copy_from_slice(&((request.len / self.block) as u16).to_be_bytes());
        command
    }
}
