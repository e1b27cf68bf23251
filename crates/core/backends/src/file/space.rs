//! Space of a file: blocks freed or zeroed, with the best call that works, and which blocks have data.

use std::sync::atomic::Ordering;

use buf::{Cx, Errno, Payload, Sg};
use volume::{DiskKind, Extent, Failure, Fault, IoId, Outcome, Refusal, Span};

use super::File;
use crate::file_op::{Erase, FileOpKind, fault_of, is_transient, is_unsupported};

/// Bytes of zeroes written at a time where a file can zero in no better way.
const FILL_BYTES: u64 = 256 << 10;
/// How many extents one answer names.
const EXTENTS_MAX: usize = 64;

impl File {
    pub(super) fn erase(&mut self, cx: &mut Cx<'_>, id: IoId, span: Span, unmap: bool) {
        if span.blocks == 0 {
            return self.end(id, Ok(Outcome::Complete), Payload::None);
        }
        if self.disk.dirty.has_failed() {
            return self.end(id, Err(Fault::Sync.into()), Payload::None);
        }
        let stable = !self.disk.geometry.write_cache;
        let how = if unmap { Erase::Punch } else { Erase::Zero };
        let slot = self.open(id, Payload::None, FileOpKind::Erase { span, how, stable });
        self.go_on_erasing(cx, slot);
    }

    /// Starts the next disk operation of an erasure, in the best way that has not failed to work.
    #[expect(
        clippy::unreachable,
        reason = "its callers have made it an erasure, which no other work becomes"
    )]
    fn go_on_erasing(&mut self, cx: &mut Cx<'_>, slot: u32) {
        let logical = self.logical();
        let disk = self.disk.clone();
        let FileOpKind::Erase { span, how, .. } = &mut self.file_op(slot).kind else {
            unreachable!("an erasure")
        };
        let (offset, len) = (span.lba * logical, span.blocks * logical);
        if matches!(how, Erase::Punch) && disk.no_punch.load(Ordering::Relaxed) {
            *how = Erase::Zero;
        }
        if matches!(how, Erase::Zero) && disk.no_zero.load(Ordering::Relaxed) {
            *how = Erase::Fill { done: 0, zeroes: Sg::new() };
        }
        let how = how.clone();
        match how {
            Erase::Punch => self.push(slot, DiskKind::Punch { offset, len }),
            Erase::Zero => self.push(slot, DiskKind::Zero { offset, len }),
            Erase::Fill { done, zeroes } => self.fill(cx, slot, offset, len, done, zeroes),
        }
    }

    fn fill(&mut self, cx: &mut Cx<'_>, slot: u32, offset: u64, len: u64, done: u64, mut zeroes: Sg) {
        let align = u64::from(self.disk.geometry.dio_align);
        if !offset.is_multiple_of(align) || !len.is_multiple_of(align) {
            // Neither punching nor zeroing works, and less than a unit cannot be written: the gate merges.
            return self.close(slot, Err(Refusal::Unsupported.into()));
        }
        if zeroes.is_empty() {
            let Some(mut fresh) = self.aligned(cx, len.min(FILL_BYTES) as usize) else {
                return self.close(slot, Err(Refusal::Busy.into()));
            };
            fresh.zero(0..fresh.len());
            zeroes = fresh.freeze();
        }
        let part = zeroes.slice(0..(len - done).min(zeroes.len() as u64) as usize);
        if let FileOpKind::Erase { how, .. } = &mut self.file_op(slot).kind {
            *how = Erase::Fill { done, zeroes };
        }
        self.push(slot, DiskKind::Write { offset: offset + done, from: part, skip: 0, durable: false });
    }

    #[expect(
        clippy::unreachable,
        reason = "its callers have made it an erasure, which no other work becomes"
    )]
    pub(super) fn has_erased(&mut self, cx: &mut Cx<'_>, slot: u32, result: Result<Outcome, Failure>) {
        let logical = self.logical();
        let file_op = self.file_op(slot);
        let FileOpKind::Erase { span, how, stable } = &file_op.kind else { unreachable!("an erasure") };
        let stable = *stable;
        let more = matches!(how, Erase::Fill { done, .. } if *done < span.blocks * logical);
        match result {
            Err(failure) => self.close(slot, Err(failure)),
            Ok(_) if more && file_op.cancelled => self.close(slot, Err(Fault::Aborted.into())),
            Ok(_) if more => self.go_on_erasing(cx, slot),
            Ok(_) if stable => {
                self.file_op(slot).kind = FileOpKind::Sync;
                self.flush(slot);
            }
            Ok(_) => self.close(slot, Ok(Outcome::Complete)),
        }
    }

    /// A file was asked to punch or to zero.
    #[expect(
        clippy::unreachable,
        reason = "its callers have made it an erasure, which no other work becomes"
    )]
    pub(super) fn has_asked(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        kind: DiskKind,
        came: Result<usize, Errno>,
    ) {
        let FileOpKind::Erase { span, .. } = &self.file_op(slot).kind else { unreachable!("an erasure") };
        let lba = span.lba;
        match came {
            Ok(_) => {
                self.disk.dirty.wrote(self.shard);
                self.has_erased(cx, slot, Ok(Outcome::Complete));
            }
            Err(errno) if is_transient(errno) && self.tries_again(slot) => self.push(slot, kind),
            Err(errno) if is_unsupported(errno) => {
                let cannot = match kind {
                    DiskKind::Punch { .. } => &self.disk.no_punch,
                    _ => &self.disk.no_zero,
                };
                cannot.store(true, Ordering::Relaxed);
                self.go_on_erasing(cx, slot);
            }
            Err(errno) => self.close(slot, Err(fault_of(errno, Fault::Unwritable(lba)))),
        }
    }

    pub(super) fn extents(&mut self, id: IoId, span: Span) {
        if span.blocks == 0 || self.disk.no_extents.load(Ordering::Relaxed) {
            let all = vec![Extent { span, mapped: true }];
            return self.end(id, Ok(Outcome::Extents(all)), Payload::None);
        }
        let at = span.lba * self.logical();
        let slot = self.open(id, Payload::None, FileOpKind::Extents { span, at, found: Vec::new() });
        self.push(slot, DiskKind::NextData { offset: at, data: None });
    }

    #[expect(clippy::unreachable, reason = "only a search asks for data")]
    pub(super) fn has_found(
        &mut self,
        slot: u32,
        offset: u64,
        data: Option<(u64, u64)>,
        came: Result<usize, Errno>,
    ) {
        let logical = self.logical();
        let disk = self.disk.clone();
        if came.is_err_and(is_transient) && self.tries_again(slot) {
            return self.push(slot, DiskKind::NextData { offset, data: None });
        }
        let file_op = self.file_op(slot);
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
            return self.push(slot, DiskKind::NextData { offset, data: None });
        }
        let found = std::mem::take(found);
        self.close(slot, Ok(Outcome::Extents(found)));
    }
}
