//! Space of a file: blocks freed or zeroed, with the best call that works, and which blocks have data.

use std::sync::atomic::Ordering;

use buf::{Cx, Errno, Payload, Sg};
use volume::{DiskKind, Extent, Failure, Fault, IoId, Outcome, Refusal, Span};

use super::FileBackend;
use crate::file_op::{EraseMethod, FileOpKind, failure_from_errno, is_transient, is_unsupported};

/// Bytes of zeroes written at a time where a file can zero in no better way.
const ZERO_FILL_BYTES: u64 = 256 << 10;
/// How many extents one answer names.
const EXTENTS_MAX: usize = 64;

impl FileBackend {
    pub(super) fn start_erase(&mut self, cx: &mut Cx<'_>, id: IoId, span: Span, unmap: bool) {
        if span.blocks == 0 {
            return self.push_completion(id, Ok(Outcome::Complete), Payload::None);
        }
        if self.disk.dirty.has_sync_failed() {
            return self.push_completion(id, Err(Fault::Sync.into()), Payload::None);
        }
        let stable = !self.disk.geometry.write_cache && !self.disk.write_through;
        let how = if unmap { EraseMethod::Punch } else { EraseMethod::Zero };
        let slot = self.insert_op(id, Payload::None, FileOpKind::Erase { span, how, stable });
        self.continue_erase(cx, slot);
    }

    /// Starts the next disk operation of an erasure, in the best way that has not failed to work.
    #[expect(
        clippy::unreachable,
        reason = "its callers have made it an erasure, which no other work becomes"
    )]
    fn continue_erase(&mut self, cx: &mut Cx<'_>, slot: u32) {
        let logical = self.logical_block_bytes();
        let disk = self.disk.clone();
        let FileOpKind::Erase { span, how, .. } = &mut self.file_op_mut(slot).kind else {
            unreachable!("an erasure")
        };
        let (offset, len) = (span.lba * logical, span.blocks * logical);
        if matches!(how, EraseMethod::Punch) && disk.no_punch.load(Ordering::Relaxed) {
            *how = EraseMethod::Zero;
        }
        if matches!(how, EraseMethod::Zero) && disk.no_zero.load(Ordering::Relaxed) {
            *how = EraseMethod::Fill { done: 0, zeroes: Sg::new() };
        }
        let how = how.clone();
        match how {
            EraseMethod::Punch => self.push_disk_op(slot, DiskKind::Punch { offset, len }),
            EraseMethod::Zero => self.push_disk_op(slot, DiskKind::Zero { offset, len }),
            EraseMethod::Fill { done, zeroes } => self.write_next_zeroes(cx, slot, offset, len, done, zeroes),
        }
    }

    fn write_next_zeroes(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        offset: u64,
        len: u64,
        done: u64,
        mut zeroes: Sg,
    ) {
        let align = u64::from(self.disk.geometry.dio_align);
        if !offset.is_multiple_of(align) || !len.is_multiple_of(align) {
            // Neither punching nor zeroing works, and less than a unit cannot be written: the gate merges.
            return self.complete_op(slot, Err(Refusal::Unsupported.into()));
        }
        if zeroes.is_empty() {
            let Some(mut fresh) = self.allocate_aligned(cx, len.min(ZERO_FILL_BYTES) as usize) else {
                return self.complete_op(slot, Err(Refusal::Busy.into()));
            };
            fresh.zero(0..fresh.len());
            zeroes = fresh.freeze();
        }
        let part = zeroes.slice(0..(len - done).min(zeroes.len() as u64) as usize);
        if let FileOpKind::Erase { how, .. } = &mut self.file_op_mut(slot).kind {
            *how = EraseMethod::Fill { done, zeroes };
        }
        self.push_disk_op(
            slot,
            DiskKind::Write { offset: offset + done, from: part, skip: 0, durable: false },
        );
    }

    #[expect(
        clippy::unreachable,
        reason = "its callers have made it an erasure, which no other work becomes"
    )]
    pub(super) fn handle_erase_done(&mut self, cx: &mut Cx<'_>, slot: u32, result: Result<Outcome, Failure>) {
        let logical = self.logical_block_bytes();
        let file_op = self.file_op_mut(slot);
        let FileOpKind::Erase { span, how, stable } = &file_op.kind else { unreachable!("an erasure") };
        let stable = *stable;
        let more = matches!(how, EraseMethod::Fill { done, .. } if *done < span.blocks * logical);
        match result {
            Err(failure) => self.complete_op(slot, Err(failure)),
            Ok(_) if more && file_op.cancelled => self.complete_op(slot, Err(Fault::Aborted.into())),
            Ok(_) if more => self.continue_erase(cx, slot),
            Ok(_) if stable => {
                self.file_op_mut(slot).kind = FileOpKind::Sync;
                self.flush(slot);
            }
            Ok(_) => self.complete_op(slot, Ok(Outcome::Complete)),
        }
    }

    /// A file was asked to punch or to zero.
    #[expect(
        clippy::unreachable,
        reason = "its callers have made it an erasure, which no other work becomes"
    )]
    pub(super) fn handle_punch_or_zero_done(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        kind: DiskKind,
        came: Result<usize, Errno>,
    ) {
        let FileOpKind::Erase { span, .. } = &self.file_op_mut(slot).kind else { unreachable!("an erasure") };
        let lba = span.lba;
        match came {
            Ok(_) => {
                self.disk.note_write(self.shard);
                self.handle_erase_done(cx, slot, Ok(Outcome::Complete));
            }
            Err(errno) if is_transient(errno) && self.count_retry(slot) => self.push_disk_op(slot, kind),
            Err(errno) if is_unsupported(errno) => {
                let cannot = match kind {
                    DiskKind::Punch { .. } => &self.disk.no_punch,
                    _ => &self.disk.no_zero,
                };
                cannot.store(true, Ordering::Relaxed);
                if self.is_cancelled(slot) {
                    return self.complete_op(slot, Err(Fault::Aborted.into()));
                }
                self.continue_erase(cx, slot);
            }
            Err(errno) => self.complete_op(slot, Err(failure_from_errno(errno, Fault::Unwritable(lba)))),
        }
    }

    pub(super) fn start_extents(&mut self, id: IoId, span: Span) {
        if span.blocks == 0 || self.disk.no_extents.load(Ordering::Relaxed) {
            let all = vec![Extent { span, mapped: true }];
            return self.push_completion(id, Ok(Outcome::Extents(all)), Payload::None);
        }
        let at = span.lba * self.logical_block_bytes();
        let slot = self.insert_op(id, Payload::None, FileOpKind::Extents { span, at, found: Vec::new() });
        self.push_disk_op(slot, DiskKind::NextData { offset: at, data: None });
    }

    #[expect(clippy::unreachable, reason = "only a search asks for data")]
    pub(super) fn handle_next_data(
        &mut self,
        slot: u32,
        offset: u64,
        data: Option<(u64, u64)>,
        came: Result<usize, Errno>,
    ) {
        let logical = self.logical_block_bytes();
        let disk = self.disk.clone();
        if came.is_err_and(is_transient) && self.count_retry(slot) {
            return self.push_disk_op(slot, DiskKind::NextData { offset, data: None });
        }
        let file_op = self.file_op_mut(slot);
        file_op.tries = 0;
        let FileOpKind::Extents { span, at, found } = &mut file_op.kind else { unreachable!("a search") };
        let end = (span.lba + span.blocks) * logical;
        // A block with any data is mapped.
        let data = match (came, data) {
            (Err(errno), _) => {
                let lasts = !is_transient(errno);
                disk.no_extents.fetch_or(lasts, Ordering::Relaxed);
                Some((*at, end))
            }
            (Ok(_), data) => data,
        };
        let (from, to) = data.unwrap_or((end, end));
        let from = (from / logical * logical).clamp(*at, end);
        let to = to.div_ceil(logical).saturating_mul(logical).clamp(from, end);
        let mut add = |start: u64, stop: u64, mapped: bool| {
            if start < stop {
                let span = Span { lba: start / logical, blocks: (stop - start) / logical };
                found.push(Extent { span, mapped });
            }
        };
        add(*at, from, false);
        add(from, to, true);
        // No progress would be an answer that contradicts itself: the rest counts as mapped.
        if to == *at {
            add(*at, end, true);
            *at = end;
        } else {
            *at = to;
        }
        if *at < end && found.len() < EXTENTS_MAX {
            let offset = *at;
            return self.push_disk_op(slot, DiskKind::NextData { offset, data: None });
        }
        let found = std::mem::take(found);
        self.complete_op(slot, Ok(Outcome::Extents(found)));
    }
}
