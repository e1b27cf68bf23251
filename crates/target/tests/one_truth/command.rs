//! What hosts do in a history, as commands of either protocol.

use nvme::io::{DatasetManagement, DatasetRange, Transfer};
use nvme::{Opcode, Sqe};
use sim::linear::{Stamp, What};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::ledger::{BAD, Moment, ZERO, fill_all};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read,
    Write {
        stamp: Stamp,
        fua: bool,
    },
    /// UNMAP; Write Zeroes (0 and 1, which deallocates) or Dataset Management.
    Zero {
        how: u8,
    },
    /// Write Uncorrectable.
    Spoil,
    /// COMPARE AND WRITE, or a fused pair.
    Swap {
        expected: Stamp,
        stamp: Stamp,
    },
    /// Compare, by itself.
    Compare {
        expected: Stamp,
    },
    /// Half of a pair that another command parts from its mate: neither does anything.
    Half {
        first: bool,
        stamp: Stamp,
    },
    Flush,
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub host: usize,
    pub action: Action,
    pub lba: usize,
    pub blocks: usize,
    pub began: Moment,
}

impl Flight {
    /// What the blocks are afterwards, if it changes them.
    pub fn puts(&self) -> Option<Stamp> {
        match self.action {
            Action::Write { stamp, .. } | Action::Swap { stamp, .. } => Some(stamp),
            Action::Zero { .. } => Some(ZERO),
            Action::Spoil => Some(BAD),
            Action::Read | Action::Compare { .. } | Action::Half { .. } | Action::Flush => None,
        }
    }

    /// What it does to each of its blocks, if it changes them.
    pub fn what(&self, swapped: bool) -> Option<What> {
        match self.action {
            Action::Swap { expected, stamp } => Some(What::CompareAndWrite { expected, new: stamp, swapped }),
            _ => self.puts().map(What::Write),
        }
    }

    /// A SCSI command's CDB, its data, and how many bytes it reads. `None`: SCSI has no such command.
    pub fn cdb(&self) -> Option<(Vec<u8>, Vec<u8>, usize)> {
        let (lba, blocks) = (self.lba, self.blocks);
        let ten = |opcode, flags| vec![opcode, flags, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0];
        Some(match self.action {
            Action::Read => (ten(0x28, 0), vec![], blocks * 512),
            Action::Write { stamp, fua } => (ten(0x2a, u8::from(fua) << 3), fill_all(lba, blocks, stamp), 0),
            Action::Zero { .. } => {
                let mut list = vec![0; 24];
                (list[1], list[3], list[15], list[19]) = (22, 16, lba as u8, blocks as u8);
                (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list, 0)
            }
            Action::Swap { expected, stamp } => {
                let mut cdb = vec![0; 16];
                (cdb[0], cdb[9], cdb[13]) = (0x89, lba as u8, blocks as u8);
                (cdb, [fill_all(lba, blocks, expected), fill_all(lba, blocks, stamp)].concat(), 0)
            }
            Action::Flush => (vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![], 0),
            Action::Spoil | Action::Compare { .. } | Action::Half { .. } => return None,
        })
    }

    /// The NVMe commands that it is, in order: command, data out, bytes read.
    pub fn sqes(&self) -> Vec<(Sqe, Vec<u8>, usize)> {
        let (lba, blocks) = (self.lba, self.blocks);
        let transfer = |opcode: Opcode, fuse: u8, flags: u32| {
            let mut sqe = sqe(opcode);
            sqe.flags = fuse;
            sqe.nsid = U32::new(1);
            Transfer { lba: lba as u64, blocks: blocks as u32, flags }.put(&mut sqe);
            sqe
        };
        let data = |stamp| fill_all(lba, blocks, stamp);
        match self.action {
            Action::Read => vec![(transfer(Opcode::READ, 0, 0), vec![], blocks * 512)],
            Action::Write { stamp, fua } => {
                let flags = if fua { Transfer::FUA } else { 0 };
                vec![(transfer(Opcode::WRITE, 0, flags), data(stamp), 0)]
            }
            Action::Zero { how: 0 } => vec![(transfer(Opcode::WRITE_ZEROES, 0, 0), vec![], 0)],
            Action::Zero { how: 1 } => {
                vec![(transfer(Opcode::WRITE_ZEROES, 0, Transfer::DEALLOCATE), vec![], 0)]
            }
            Action::Zero { .. } => {
                let mut sqe = sqe(Opcode::DATASET_MANAGEMENT);
                sqe.nsid = U32::new(1);
                DatasetManagement { ranges: 1, deallocate: true }.put(&mut sqe);
                let range = DatasetRange {
                    attributes: U32::ZERO,
                    blocks: U32::new(blocks as u32),
                    lba: U64::new(lba as u64),
                };
                vec![(sqe, range.as_bytes().to_vec(), 0)]
            }
            Action::Spoil => vec![(transfer(Opcode::WRITE_UNCORRECTABLE, 0, 0), vec![], 0)],
            Action::Compare { expected } => vec![(transfer(Opcode::COMPARE, 0, 0), data(expected), 0)],
            Action::Swap { expected, stamp } => vec![
                (transfer(Opcode::COMPARE, 1, 0), data(expected), 0),
                (transfer(Opcode::WRITE, 2, 0), data(stamp), 0),
            ],
            Action::Half { first: true, stamp } => vec![(transfer(Opcode::COMPARE, 1, 0), data(stamp), 0)],
            Action::Half { first: false, stamp } => vec![(transfer(Opcode::WRITE, 2, 0), data(stamp), 0)],
            Action::Flush => {
                let mut sqe = sqe(Opcode::FLUSH);
                sqe.nsid = U32::new(1);
                vec![(sqe, vec![], 0)]
            }
        }
    }
}

/// A command with nothing but its opcode.
pub fn sqe(opcode: Opcode) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = opcode;
    sqe
}
