//! What hosts do in a history, as commands of SCSI.

use crate::model::{Moment, Value, fill};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write {
        value: Value,
        fua: bool,
    },
    /// COMPARE AND WRITE of one block.
    Swap {
        expected: Value,
        value: Value,
    },
    /// WRITE SAME.
    Same {
        value: Value,
    },
    /// UNMAP, by this write: zeroes are read afterwards.
    Unmap {
        by: Value,
    },
    Flush,
    /// TEST UNIT READY: it only takes what the unit has to say.
    Ready,
}

impl Kind {
    /// The write that it is, and what stands in its blocks afterwards.
    pub fn writes(self) -> Option<(Value, Value)> {
        match self {
            Kind::Write { value, .. } | Kind::Swap { value, .. } | Kind::Same { value } => {
                Some((value, value))
            }
            Kind::Unmap { by } => Some((by, 0)),
            Kind::Read | Kind::Flush | Kind::Ready => None,
        }
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub host: usize,
    pub kind: Kind,
    pub lba: usize,
    pub blocks: usize,
    pub began: Moment,
}

/// A command's CDB, its data, and how many bytes it reads.
pub fn request(flight: Flight) -> (Vec<u8>, Vec<u8>, usize) {
    let Flight { kind, lba, blocks, .. } = flight;
    let ten = |opcode, flags| vec![opcode, flags, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0];
    match kind {
        Kind::Write { value, fua } => {
            let data = (lba..lba + blocks).flat_map(|lba| fill(lba, value)).collect();
            (ten(0x2a, u8::from(fua) << 3), data, 0)
        }
        Kind::Read => (ten(0x28, 0), vec![], blocks * 512),
        Kind::Flush => (vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![], 0),
        Kind::Ready => (vec![0; 6], vec![], 0),
        Kind::Same { value } => (ten(0x41, 0), fill(lba, value).to_vec(), 0),
        Kind::Swap { expected, value } => {
            let mut cdb = vec![0; 16];
            (cdb[0], cdb[9], cdb[13]) = (0x89, lba as u8, 1);
            (cdb, [fill(lba, expected), fill(lba, value)].concat(), 0)
        }
        Kind::Unmap { .. } => {
            let mut list = vec![0; 24];
            (list[1], list[3], list[15], list[19]) = (22, 16, lba as u8, blocks as u8);
            (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list, 0)
        }
    }
}
