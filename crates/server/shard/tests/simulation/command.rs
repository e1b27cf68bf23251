//! SCSI commands of the hosts in a history.

use crate::model::{COPIED, Moment, Value, fill};
use crate::plan::SPAN;
use testkit::target::VOLUME_UUID;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
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
    /// EXTENDED COPY of as many blocks of a page, by this write.
    Copy {
        by: Value,
        page: Value,
    },
    /// UNMAP, by this write: zeroes are read afterwards.
    Unmap {
        by: Value,
    },
    Flush,
    /// TEST UNIT READY: it only takes what the unit has to say.
    Ready,
}

impl CommandKind {
    /// The write that it is, and what stands in its blocks afterwards.
    pub fn writes(self) -> Option<(Value, Value)> {
        match self {
            CommandKind::Write { value, .. }
            | CommandKind::Swap { value, .. }
            | CommandKind::Same { value } => Some((value, value)),
            CommandKind::Copy { by, page } => Some((by, COPIED | page)),
            CommandKind::Unmap { by } => Some((by, 0)),
            CommandKind::Read | CommandKind::Flush | CommandKind::Ready => None,
        }
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub host: usize,
    pub kind: CommandKind,
    pub lba: usize,
    pub blocks: usize,
    pub began: Moment,
}

/// A command's CDB, its data, and how many bytes it reads.
pub fn request(flight: Flight) -> (Vec<u8>, Vec<u8>, usize) {
    let Flight { kind, lba, blocks, .. } = flight;
    let ten = |opcode, flags| vec![opcode, flags, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0];
    match kind {
        CommandKind::Write { value, fua } => {
            let data = (lba..lba + blocks).flat_map(|lba| fill(lba, value)).collect();
            (ten(0x2a, u8::from(fua) << 3), data, 0)
        }
        CommandKind::Read => (ten(0x28, 0), vec![], blocks * 512),
        CommandKind::Flush => (vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![], 0),
        CommandKind::Ready => (vec![0; 6], vec![], 0),
        CommandKind::Same { value } => (ten(0x41, 0), fill(lba, value).to_vec(), 0),
        CommandKind::Swap { expected, value } => {
            let mut cdb = vec![0; 16];
            (cdb[0], cdb[9], cdb[13]) = (0x89, lba as u8, 1);
            (cdb, [fill(lba, expected), fill(lba, value)].concat(), 0)
        }
        CommandKind::Copy { page, .. } => {
            let list = copy_list(page, lba, blocks);
            let mut cdb = vec![0; 16];
            (cdb[0], cdb[13]) = (0x83, list.len() as u8);
            (cdb, list, 0)
        }
        CommandKind::Unmap { .. } => {
            let mut list = vec![0; 24];
            (list[1], list[3], list[15], list[19]) = (22, 16, lba as u8, blocks as u8);
            (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list, 0)
        }
    }
}

/// The list of an EXTENDED COPY(LID1) within the unit, in two segments: one counts blocks, the other bytes.
fn copy_list(page: Value, lba: usize, blocks: usize) -> Vec<u8> {
    let first = blocks / 2;
    let segments = [(0x02, lba, first), (0x0a, lba + first, blocks - first)].map(|(kind, lba, blocks)| {
        let mut segment = vec![0; if kind == 0x02 { 28 } else { 32 }];
        (segment[0], segment[3]) = (kind, segment.len() as u8 - 4);
        let count = if kind == 0x02 { blocks } else { blocks * 512 };
        segment[8..12].copy_from_slice(&(count as u32).to_be_bytes());
        let source = SPAN * (1 + page as usize) + lba;
        segment[12..20].copy_from_slice(&(source as u64).to_be_bytes());
        segment[20..28].copy_from_slice(&(lba as u64).to_be_bytes());
        segment
    });
    let segments = segments.concat();
    // LIST ID USAGE 11b: nobody asks for results.
    let mut list = vec![0; 16];
    (list[1], list[3], list[11]) = (0x18, 32, segments.len() as u8);
    // The unit by its UUID (designator Ah).
    let mut target = vec![0; 32];
    (target[0], target[4], target[5], target[7]) = (0xe4, 1, 0x0a, 18);
    target[8] = 0x10;
    target[10..26].copy_from_slice(&VOLUME_UUID.0);
    target[30] = 2;
    [list, target, segments].concat()
}
