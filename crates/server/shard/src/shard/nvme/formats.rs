//! Formats of namespaces (Format NVM). One continues whatever happens to the controller, the host or the reservation that
//! began it, so it is the shard's own work, as a sanitize of SCSI is its server's: the volume's home closes the volume for
//! everything else and waits until that has ended on every core; every block is made zero; the home opens the volume
//! again, or keeps it closed if that failed.
//!
//! Bound: one for each volume, since the home refuses another one.

use std::sync::Arc;

use buf::{Cx, Payload};
use nvme_server::FormatFailure;
use volume::{
    Epoch, IdSpace, Io, IoCompletion, IoId, Op, Refusal, RequestId, Requester, SanitizeKind, VolumeId,
    VolumeRequest,
};

use crate::shard::SharedParts;

/// The numbers of formats begin here: below are those of the control plane, above those of nexuses that end.
const FORMAT_BASE: u64 = 1 << 60;

/// Formats on their way.
#[derive(Debug, Default)]
pub(in crate::shard) struct PendingFormats {
    list: Vec<Format>,
    made: u64,
}

#[derive(Debug)]
struct Format {
    number: u64,
    volume: VolumeId,
    who: Requester,
    /// The server's number of the command that began it, which may not wait any more.
    asked: u64,
    stage: FormatStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatStage {
    /// The volume is being closed.
    Closing,
    /// Blocks are made zero.
    Running,
    /// The volume is being opened, if all went well.
    Opening { well: bool },
}

/// What becomes of the command of this number.
#[derive(Debug)]
pub(in crate::shard) enum FormatProgress {
    /// The volume is closed, and its blocks are made zero.
    Begun(u64),
    /// It has ended.
    Ended(u64, Result<(), FormatFailure>),
    /// Nothing yet.
    Waits,
}

impl PendingFormats {
    /// None is on its way.
    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Begins to format a volume.
    pub(in crate::shard) fn start(
        &mut self,
        parts: &mut SharedParts,
        asked: u64,
        volume: VolumeId,
        who: Requester,
    ) {
        self.made += 1;
        let number = FORMAT_BASE | self.made;
        let stage = FormatStage::Closing;
        self.list.push(Format { number, volume, who: who.clone(), asked, stage });
        parts.post_request(volume, request_id(number), VolumeRequest::FormatStart { who });
    }

    /// The home has closed the volume, or opened it. `None`: this was no format's answer.
    pub(in crate::shard) fn handle_answer(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: RequestId,
        result: Result<(), Refusal>,
    ) -> Option<FormatProgress> {
        let at = self.list.iter().position(|format| request_id(format.number) == id)?;
        let format = self.list.get_mut(at)?;
        let end = match (format.stage, result) {
            (FormatStage::Closing, Ok(())) => {
                format.restrict_exit(parts);
                format.stage = FormatStage::Running;
                format.submit(cx, parts);
                return Some(FormatProgress::Begun(format.asked));
            }
            // The volume is closed for it, though not everything that was under way has ended: nobody would open it.
            (FormatStage::Closing, Err(Refusal::NotFenced)) => {
                format.restrict_exit(parts);
                format.request_end(parts, false);
                return Some(FormatProgress::Begun(format.asked));
            }
            (FormatStage::Closing, Err(refusal)) => Err(FormatFailure::Refused(refusal)),
            (FormatStage::Opening { well: true }, Ok(())) => Ok(()),
            // That it has ended well cannot be recorded, and what is recorded is that it has not.
            (FormatStage::Opening { well: true }, Err(Refusal::NotDurable)) => {
                format.request_end(parts, false);
                return Some(FormatProgress::Waits);
            }
            // It has ended well and that stands; only a shard is late, or the volume goes.
            (
                FormatStage::Opening { well: true },
                Err(refusal @ (Refusal::NotFenced | Refusal::NotReady(_))),
            ) => Err(FormatFailure::Refused(refusal)),
            (FormatStage::Opening { .. }, _) => Err(FormatFailure::Failed),
            // Nothing is asked while it runs.
            (FormatStage::Running, _) => return Some(FormatProgress::Waits),
        };
        let asked = format.asked;
        self.list.swap_remove(at);
        Some(FormatProgress::Ended(asked, end))
    }

    /// The blocks are zero, or that failed.
    pub(in crate::shard) fn handle_io_done(&mut self, parts: &mut SharedParts, done: &IoCompletion) {
        let is_meant = |format: &&mut Format| IoId::in_space(IdSpace::Shard, format.number) == done.id;
        if let Some(format) = self.list.iter_mut().find(is_meant) {
            format.request_end(parts, done.result.is_ok());
        }
    }
}

fn request_id(number: u64) -> RequestId {
    RequestId::in_space(IdSpace::Shard, number)
}

impl Format {
    /// Only another format or a sanitize heals one that has failed.
    fn restrict_exit(&self, parts: &SharedParts) {
        if let Some(local) = parts.volumes.get(self.volume) {
            local.gate.shared_state().restrict_sanitize_exit(true);
        }
    }

    fn submit(&self, cx: &mut Cx<'_>, parts: &mut SharedParts) {
        let is_thin = parts.volumes.get(self.volume).is_some_and(|local| local.gate.view().geometry.thin);
        // What is not thin keeps its blocks.
        let kind = if is_thin {
            SanitizeKind::BlockErase
        } else {
            SanitizeKind::Overwrite { pattern: Arc::from([0]), passes: 1, invert: false }
        };
        let id = IoId::in_space(IdSpace::Shard, self.number);
        let io = Io { id, epoch: Epoch(0), op: Op::Sanitize(kind), payload: Payload::None };
        parts.volumes.submit(cx, &self.who, self.volume, io);
    }

    /// Asks the home to open the volume, or to say that its format has failed.
    fn request_end(&mut self, parts: &mut SharedParts, well: bool) {
        self.stage = FormatStage::Opening { well };
        parts.post_request(self.volume, request_id(self.number), VolumeRequest::SanitizeEnd { done: well });
    }
}
