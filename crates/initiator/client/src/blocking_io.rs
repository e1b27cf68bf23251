//! Blocking calls: bytes at offsets, as in a file.
//!
//! Invariant: a call either completes or says what failed; a write that failed may have been done in part,
//! block by block.

use buf::Payload;
use multipath::VolumeHandle;
use volume::{Durability, Epoch, Extent, Io, IoCompletion, IoId, Op, Outcome, Span};

use crate::error::{Error, ErrorKind};
use crate::initiator::Initiator;

/// Most bytes of one operation.
const OPERATION_BYTES_MAX: usize = 1 << 20;
/// Operations of one call in flight.
const OPERATIONS_AHEAD_MAX: usize = 8;

/// What a call does with each piece.
enum TransferBuffer<'a> {
    Into(&'a mut [u8]),
    From(&'a [u8], Durability),
}

impl TransferBuffer<'_> {
    fn len(&self) -> usize {
        match self {
            TransferBuffer::Into(into) => into.len(),
            TransferBuffer::From(from, _) => from.len(),
        }
    }
}

impl Initiator {
    /// Reads bytes. Offset and length are multiples of the volume's blocks.
    ///
    /// # Errors
    /// What the target said; no answer in time.
    pub fn read_at(&mut self, volume: VolumeHandle, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.transfer_bytes(volume, offset, TransferBuffer::Into(into))
    }

    /// Writes bytes. If the volume has a volatile cache, they are stable after [`Initiator::flush`].
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn write_at(&mut self, volume: VolumeHandle, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.transfer_bytes(volume, offset, TransferBuffer::From(from, Durability::Cached))
    }

    /// Writes bytes to stable storage (FUA).
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn write_through(&mut self, volume: VolumeHandle, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.transfer_bytes(volume, offset, TransferBuffer::From(from, Durability::Stable))
    }

    /// Makes all completed writes stable.
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn flush(&mut self, volume: VolumeHandle) -> Result<(), Error> {
        self.run_operation(volume, Op::Flush, "flush").map(drop)
    }

    /// Frees the space of a range. It then reads as zeroes if the geometry says so.
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn discard(&mut self, volume: VolumeHandle, offset: u64, len: u64) -> Result<(), Error> {
        let span = self.check_span(volume, offset, len)?;
        self.run_operation(volume, Op::Unmap(vec![span]), "discard").map(drop)
    }

    /// Writes zeroes, and frees the space if the target can.
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn write_zeroes(&mut self, volume: VolumeHandle, offset: u64, len: u64) -> Result<(), Error> {
        let span = self.check_span(volume, offset, len)?;
        self.run_operation(volume, Op::WriteZeroes { span, unmap: true }, "write zeroes").map(drop)
    }

    /// Which blocks are mapped, from `offset` on; empty if the target cannot report it.
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn mapped_extents(
        &mut self,
        volume: VolumeHandle,
        offset: u64,
        len: u64,
    ) -> Result<Vec<Extent>, Error> {
        let span = self.check_span(volume, offset, len)?;
        match self.run_operation(volume, Op::Extents(span), "extents") {
            Ok(Outcome::Extents(extents)) => Ok(extents),
            Ok(Outcome::Complete) => Ok(Vec::new()),
            Err(Error { failure: Some(volume::Failure::Refused(volume::Refusal::Unsupported)), .. }) => {
                Ok(Vec::new())
            }
            Err(why) => Err(why),
        }
    }

    /// Executes one operation without payload, and waits for its end.
    ///
    /// # Errors
    /// As [`Initiator::read_at`].
    pub fn run_operation(&mut self, volume: VolumeHandle, op: Op, what: &str) -> Result<Outcome, Error> {
        let id = self.next_io_id();
        self.submit_waiting(volume, Io { id, epoch: Epoch(0), op, payload: Payload::None })?;
        let done = self.wait_for_done(volume, &mut |done| done.id == id)?;
        done.result.map_err(|failure| self.operation_error(volume, failure, what))
    }

    fn check_span(&self, volume: VolumeHandle, offset: u64, len: u64) -> Result<Span, Error> {
        let geometry = self.geometry(volume).ok_or_else(|| Error::usage("there is no such volume"))?;
        let block = u64::from(geometry.logical);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            let why = format!(
                "offset {offset} and length {len} are not multiples of the volume's blocks of {block} bytes"
            );
            return Err(Error::usage(why));
        }
        let end = offset.checked_add(len).filter(|end| *end <= geometry.capacity_bytes());
        end.ok_or_else(|| {
            Error::usage(format!(
                "{len} bytes at {offset} go beyond the volume's {} bytes",
                geometry.capacity_bytes()
            ))
        })?;
        Ok(Span { lba: offset / block, blocks: len / block })
    }

    /// Starts an operation, making room first if there is none.
    fn submit_waiting(&mut self, volume: VolumeHandle, mut io: Io) -> Result<(), Error> {
        loop {
            match self.submit(volume, io) {
                Ok(()) => return Ok(()),
                Err(back) if self.geometry(volume).is_some() => {
                    io = back;
                    self.turn(None);
                    self.stash_completions(volume);
                }
                Err(_) => return Err(Error::usage("there is no such volume")),
            }
        }
    }

    /// What ended and is not asked for now is kept.
    fn stash_completions(&mut self, volume: VolumeHandle) {
        while let Some(done) = self.with_client(|client, _| client.poll_done(volume)) {
            self.ended.push((volume, done));
        }
    }

    fn wait_for_done(
        &mut self,
        volume: VolumeHandle,
        wanted: &mut dyn FnMut(&IoCompletion) -> bool,
    ) -> Result<IoCompletion, Error> {
        loop {
            if let Some(at) = self.ended.iter().position(|(of, done)| *of == volume && wanted(done)) {
                return Ok(self.ended.swap_remove(at).1);
            }
            match self.with_client(|client, _| client.poll_done(volume)) {
                Some(done) if wanted(&done) => return Ok(done),
                Some(done) => self.ended.push((volume, done)),
                None if self.geometry(volume).is_none() => {
                    return Err(Error::usage("there is no such volume"));
                }
                None => self.turn(None),
            }
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "each piece begins and ends within the caller's bytes: it is cut to what is left of them"
    )]
    #[expect(clippy::expect_used, reason = "wait_for returns what its closure found in the same list")]
    fn transfer_bytes(
        &mut self,
        volume: VolumeHandle,
        offset: u64,
        mut bytes: TransferBuffer<'_>,
    ) -> Result<(), Error> {
        let len = bytes.len();
        let span = self.check_span(volume, offset, len as u64)?;
        if len == 0 {
            return Ok(());
        }
        let geometry = self.geometry(volume).ok_or_else(|| Error::usage("there is no such volume"))?;
        let block = geometry.logical as usize;
        let most = (geometry.max_io as usize).clamp(block, OPERATION_BYTES_MAX.max(block)) / block * block;
        // Pieces in flight: name and where in the caller's bytes they belong.
        let mut out: Vec<(IoId, usize, usize)> = Vec::with_capacity(OPERATIONS_AHEAD_MAX);
        let (mut at, mut failed) = (0, None);
        while at < len || !out.is_empty() {
            while at < len && out.len() < OPERATIONS_AHEAD_MAX && failed.is_none() {
                let piece = most.min(len - at);
                let Some(memory) = self.alloc_payload(piece) else { break };
                let (id, lba) = (self.next_io_id(), span.lba + (at / block) as u64);
                let of = Span { lba, blocks: (piece / block) as u64 };
                let (op, payload) = match &mut bytes {
                    TransferBuffer::Into(_) => (Op::Read(of), Payload::In(memory)),
                    TransferBuffer::From(from, durability) => {
                        let mut memory = memory;
                        memory.copy_from(0, &from[at..at + piece]);
                        (Op::Write(of, *durability), Payload::Out(memory.freeze()))
                    }
                };
                self.submit_waiting(volume, Io { id, epoch: Epoch(0), op, payload })?;
                out.push((id, at, piece));
                at += piece;
            }
            if out.is_empty() {
                if let Some(why) = failed {
                    return Err(why);
                }
                return Err(Error::new(
                    ErrorKind::Failed,
                    "no memory is left for payloads: give the initiator more",
                ));
            }
            let done = self.wait_for_done(volume, &mut |done| out.iter().any(|(id, ..)| *id == done.id))?;
            let place = out.iter().position(|(id, ..)| *id == done.id).expect("it is one of ours");
            let (_, begin, piece) = out.swap_remove(place);
            match (done.result, done.payload, &mut bytes) {
                (Ok(_), Payload::In(mut memory), TransferBuffer::Into(into)) => {
                    let mut to = begin;
                    for part in memory.slices_mut(0..piece) {
                        into[to..to + part.len()].copy_from_slice(part);
                        to += part.len();
                    }
                }
                (Ok(_), ..) => {}
                (Err(failure), ..) => {
                    let what = if let TransferBuffer::Into(_) = bytes { "read" } else { "write" };
                    let place = offset + begin as u64;
                    let what = format!("{what} of {piece} bytes at {place}");
                    failed.get_or_insert_with(|| self.operation_error(volume, failure, &what));
                    at = len;
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
