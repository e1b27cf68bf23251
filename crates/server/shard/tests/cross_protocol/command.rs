//! Commands of the hosts in a history, in either protocol.

use nvme::io::{BlockTransfer, Copy, CopyRange, DatasetManagement, DatasetRange};
use nvme::{Opcode, Sqe};
use sim::linearizability::{OperationKind, Stamp};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::ledger::{BAD, Moment, ZERO, fill_all, pattern};
use crate::plan::SPAN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read,
    Write {
        stamp: Stamp,
        fua: bool,
    },
    /// UNMAP; Write Zeroes (0 and 1, which deallocates; these two may be stable) or Dataset Management.
    Zero {
        how: u8,
        fua: bool,
    },
    /// Write Uncorrectable.
    Spoil,
    /// COMPARE AND WRITE, or a fused pair.
    Swap {
        expected: Stamp,
        stamp: Stamp,
        fua: bool,
    },
    /// Copy, of two runs of patterns: `cut` blocks from `first` on, and the rest from `second` on.
    Copy {
        first: usize,
        second: usize,
        cut: usize,
        fua: bool,
    },
    /// Verify, or VERIFY without data.
    Verify,
    /// Compare, by itself.
    Compare {
        expected: Stamp,
    },
    /// Half of a pair that another command parts from its mate: neither does anything.
    Half {
        first: bool,
        stamp: Stamp,
    },
    /// `all`: of every namespace, which SCSI has not.
    Flush {
        all: bool,
    },
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub host: usize,
    pub action: Action,
    pub volume: usize,
    pub lba: usize,
    pub blocks: usize,
    pub began: Moment,
}

impl Flight {
    /// What its block of this number is afterwards, if it changes them.
    pub fn puts(&self, number: usize) -> Option<Stamp> {
        match self.action {
            Action::Write { stamp, .. } | Action::Swap { stamp, .. } => Some(stamp),
            Action::Zero { .. } => Some(ZERO),
            Action::Spoil => Some(BAD),
            Action::Copy { first, cut, .. } if number < cut => Some(pattern(self.volume, first + number)),
            Action::Copy { second, cut, .. } => Some(pattern(self.volume, second + number - cut)),
            Action::Read
            | Action::Verify
            | Action::Compare { .. }
            | Action::Half { .. }
            | Action::Flush { .. } => None,
        }
    }

    /// What it does to its block of this number, if it changes them.
    pub fn what(&self, number: usize, swapped: bool) -> Option<OperationKind> {
        match self.action {
            Action::Swap { expected, stamp, .. } => {
                Some(OperationKind::CompareAndWrite { expected, new: stamp, swapped })
            }
            _ => self.puts(number).map(OperationKind::Write),
        }
    }

    /// Whether what it writes is stable when it has succeeded.
    pub fn is_stable(&self, scsi: bool) -> bool {
        match self.action {
            Action::Write { fua, .. } | Action::Swap { fua, .. } | Action::Copy { fua, .. } => fua,
            Action::Zero { how, fua } => fua && how < 2 && !scsi,
            // The record of what is bad is stable before it is told.
            Action::Spoil => true,
            _ => false,
        }
    }

    /// A SCSI command's CDB, its data, and how many bytes it reads. `None`: SCSI has no such command.
    pub fn cdb(&self, block: usize) -> Option<(Vec<u8>, Vec<u8>, usize)> {
        let (lba, blocks) = (self.lba, self.blocks);
        let ten = |opcode, flags| vec![opcode, flags, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0];
        let data = |stamp| fill_all(lba, blocks, stamp, block);
        Some(match self.action {
            Action::Read => (ten(0x28, 0), vec![], blocks * block),
            Action::Verify => (ten(0x2f, 0), vec![], 0),
            Action::Write { stamp, fua } => (ten(0x2a, u8::from(fua) << 3), data(stamp), 0),
            Action::Zero { .. } => {
                let mut list = vec![0; 24];
                (list[1], list[3], list[15], list[19]) = (22, 16, lba as u8, blocks as u8);
                (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list, 0)
            }
            Action::Swap { expected, stamp, fua } => {
                let mut cdb = vec![0; 16];
                (cdb[0], cdb[1], cdb[9], cdb[13]) = (0x89, u8::from(fua) << 3, lba as u8, blocks as u8);
                (cdb, [data(expected), data(stamp)].concat(), 0)
            }
            Action::Flush { .. } => (vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![], 0),
            Action::Spoil | Action::Compare { .. } | Action::Half { .. } | Action::Copy { .. } => {
                return None;
            }
        })
    }

    /// The NVMe commands that it is, in order: command, data out, bytes read.
    pub fn sqes(&self, block: usize) -> Vec<(Sqe, Vec<u8>, usize)> {
        let (lba, blocks) = (self.lba, self.blocks);
        let nsid = U32::new(self.volume as u32 + 1);
        let transfer = |opcode: Opcode, fuse: u8, flags: u32| {
            let mut sqe = sqe(opcode);
            (sqe.flags, sqe.nsid) = (fuse, nsid);
            BlockTransfer { lba: lba as u64, blocks: blocks as u32, flags }.write_to_sqe(&mut sqe);
            sqe
        };
        let stable = |fua| if fua { BlockTransfer::FUA } else { 0 };
        let data = |stamp| fill_all(lba, blocks, stamp, block);
        let half = |first, stamp| {
            let (opcode, fuse) = if first { (Opcode::COMPARE, 1) } else { (Opcode::WRITE, 2) };
            vec![(transfer(opcode, fuse, 0), data(stamp), 0)]
        };
        match self.action {
            Action::Read => vec![(transfer(Opcode::READ, 0, 0), vec![], blocks * block)],
            Action::Verify => vec![(transfer(Opcode::VERIFY, 0, 0), vec![], 0)],
            Action::Write { stamp, fua } => vec![(transfer(Opcode::WRITE, 0, stable(fua)), data(stamp), 0)],
            Action::Zero { how: 0, fua } => {
                vec![(transfer(Opcode::WRITE_ZEROES, 0, stable(fua)), vec![], 0)]
            }
            Action::Zero { how: 1, fua } => {
                vec![(transfer(Opcode::WRITE_ZEROES, 0, BlockTransfer::DEALLOCATE | stable(fua)), vec![], 0)]
            }
            Action::Zero { .. } => {
                let mut sqe = sqe(Opcode::DATASET_MANAGEMENT);
                sqe.nsid = nsid;
                DatasetManagement { ranges: 1, deallocate: true }.write_to_sqe(&mut sqe);
                let range = DatasetRange {
                    attributes: U32::ZERO,
                    blocks: U32::new(blocks as u32),
                    lba: U64::new(lba as u64),
                };
                vec![(sqe, range.as_bytes().to_vec(), 0)]
            }
            Action::Copy { first, second, cut, fua } => {
                let runs = [(first, cut), (second, blocks - cut)];
                let ranges: Vec<CopyRange> = runs
                    .iter()
                    .filter(|(_, len)| *len > 0)
                    .map(|(from, len)| CopyRange::new((SPAN + from) as u64, *len as u32))
                    .collect();
                let mut sqe = sqe(Opcode::COPY);
                sqe.nsid = nsid;
                let copy =
                    Copy { lba: lba as u64, ranges: ranges.len() as u16, format: 0, fua, protects: false };
                copy.write_to_sqe(&mut sqe);
                vec![(sqe, ranges.as_bytes().to_vec(), 0)]
            }
            Action::Spoil => vec![(transfer(Opcode::WRITE_UNCORRECTABLE, 0, 0), vec![], 0)],
            Action::Compare { expected } => vec![(transfer(Opcode::COMPARE, 0, 0), data(expected), 0)],
            Action::Swap { expected, stamp, fua } => vec![
                (transfer(Opcode::COMPARE, 1, 0), data(expected), 0),
                (transfer(Opcode::WRITE, 2, stable(fua)), data(stamp), 0),
            ],
            Action::Half { first, stamp } => half(first, stamp),
            Action::Flush { all } => {
                let mut sqe = sqe(Opcode::FLUSH);
                sqe.nsid = if all { U32::new(u32::MAX) } else { nsid };
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
