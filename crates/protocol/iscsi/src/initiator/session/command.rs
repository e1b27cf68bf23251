//! The state of one request between its submission and its end.

use super::discovered_targets::DiscoveredTargetsReader;
use super::request::{Fault, NoAnswer, ScsiCommand};
use crate::discovery::SendTargets;
use crate::links::LinkIndex;
use crate::session::Residual;
use crate::wire::{DataInFlags, Itt, Lun, Sn, TmfFunction, Ttt};
use buf::{Sg, SgMut, Time};
use stream::Tag;

#[derive(Debug)]
pub(super) struct Command {
    pub(super) itt: Itt,
    /// The link that it is allegiant to.
    pub(super) link: LinkIndex,
    pub(super) kind: RequestKind,
    pub(super) data: CommandData,
    /// Bytes of its data.
    pub(super) len: u32,
    /// Offset of the next data of a read, or of the next byte of a write that must be asked for.
    pub(super) next: u32,
    /// DataSN or R2TSN that comes next.
    pub(super) sn: u32,
    /// Stretches that were asked for and are not in batches yet.
    pub(super) r2ts: u32,
    /// Of a write: bytes below `next`, behind the command's own, that are not in batches yet.
    pub(super) unsent: u32,
    /// It is in a batch, with this number.
    pub(super) sent: Option<Sn>,
    pub(super) since: Time,
    /// A data digest was wrong.
    pub(super) digest_failed: bool,
    /// It has ended, but its memory is still out with a receive.
    pub(super) lost: Option<NoAnswer>,
}

#[derive(Debug)]
pub(super) enum RequestKind {
    Scsi(ScsiCommand),
    Task {
        function: TmfFunction,
        lun: Lun,
        /// The command that is named.
        referenced: Option<Tag>,
    },
    Text {
        question: SendTargets,
        reader: Box<DiscoveredTargetsReader>,
        /// The transfer tag that the next piece is asked for with.
        ttt: Ttt,
    },
}

/// A command's memory.
#[derive(Debug)]
pub(super) enum CommandData {
    None,
    /// To be filled; `None` while it is out with a receive.
    In(Option<SgMut>),
    /// To be sent; so many bytes of it go with the command.
    Out {
        data: Sg,
        immediate: u32,
    },
}

/// O and U of a Data-In.
pub(super) fn data_in_residual_flags(flags: DataInFlags) -> (bool, bool) {
    (flags.contains(DataInFlags::OVERFLOW), flags.contains(DataInFlags::UNDERFLOW))
}

/// The residual of a command of `len` bytes.
pub(super) fn parse_residual((over, under): (bool, bool), count: u32, len: u32) -> Result<Residual, Fault> {
    match (over, under) {
        (true, true) => Err(Fault::Residual),
        (false, true) if count > len => Err(Fault::Residual),
        (false, true) => Ok(Residual::Underflow(count)),
        (true, false) => Ok(Residual::Overflow(count)),
        (false, false) => Ok(Residual::None),
    }
}
