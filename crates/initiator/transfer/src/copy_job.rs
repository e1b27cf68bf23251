//! The data of a copy: reads and writes in flight, holes, and blocks that are zero.
//!
//! Invariant: everything before [`CopyJob::written_up_to`] has been written, or made zero, at the destination.

use std::time::Duration;

use buf::{Payload, SgMut};
use client::{Durability, Initiator, IoCompletion, IoId, Op};
use process::exit::Failure;

use crate::copy_ends::{CopyEnd, DataRun, is_zero, start_volume_operation};

/// Stretches in flight.
const SEGMENTS_IN_FLIGHT: usize = 16;

/// What is in flight.
#[derive(Debug)]
pub(crate) enum RequestsInFlight {
    Read(IoId, u64),
    Write(IoId, u64, u64),
}

/// A copy that goes on.
pub(crate) struct CopyJob<'a> {
    pub(crate) initiator: Initiator,
    pub(crate) from: &'a CopyEnd,
    pub(crate) to: &'a CopyEnd,
    /// Bytes of the source.
    pub(crate) bytes: u64,
    /// The same, to the end of the last block.
    pub(crate) total: u64,
    /// Bytes of the larger block of both ends.
    pub(crate) block: u64,
    /// Bytes of a transfer: whole blocks that both ends carry by one command.
    pub(crate) stretch: u64,
    /// Everything before it has been started.
    pub(crate) next: u64,
    pub(crate) run: DataRun,
    pub(crate) sparse: bool,
    pub(crate) flights: Vec<RequestsInFlight>,
    pub(crate) written: u64,
    pub(crate) zeroed: u64,
}

impl CopyJob<'_> {
    /// Everything before it is written.
    pub(crate) fn written_up_to(&self) -> u64 {
        let at = |flight: &RequestsInFlight| match flight {
            RequestsInFlight::Read(_, at) | RequestsInFlight::Write(_, at, _) => *at,
        };
        self.flights.iter().map(at).min().unwrap_or(self.next).min(self.next)
    }

    /// Starts what can be started and takes what has ended; false when all is written.
    pub(crate) fn step(&mut self) -> Result<bool, Failure> {
        // Between two ends of this machine nothing is ever in flight: the record and the bar have their turn all the
        // same.
        let mut is_full = false;
        for _ in 0..SEGMENTS_IN_FLIGHT {
            is_full = self.next >= self.total || self.flights.len() >= SEGMENTS_IN_FLIGHT;
            if is_full {
                break;
            }
            if self.next >= self.run.end {
                self.run = if self.sparse {
                    let run =
                        self.from.data_run_at(&mut self.initiator, self.next, self.total, self.bytes)?;
                    self.round_to_blocks(run)
                } else {
                    DataRun { end: self.total, is_data: true }
                };
            }
            let len = (self.run.end - self.next).min(self.stretch);
            let whole =
                if self.run.is_data { self.start_read(len)? } else { self.start_zero(self.next, len)? };
            if !whole {
                is_full = true;
                break;
            }
            self.next += len;
        }
        let mut ended = false;
        for end in [self.from, self.to] {
            let CopyEnd::Remote { volume, .. } = end else { continue };
            while let Some(done) = self.initiator.poll_done(*volume) {
                self.handle_done(done)?;
                ended = true;
            }
        }
        if !ended && !self.flights.is_empty() {
            let wait = if is_full { Duration::from_secs(1) } else { Duration::ZERO };
            self.initiator.turn(Some(wait));
        }
        Ok(self.next < self.total || !self.flights.is_empty())
    }

    /// A run that ends where a block ends: data may be taken too far, a hole may not.
    fn round_to_blocks(&self, run: DataRun) -> DataRun {
        let block = self.block;
        if run.is_data {
            return DataRun { end: run.end.next_multiple_of(block).min(self.total), ..run };
        }
        match run.end - run.end % block {
            end if end > self.next => DataRun { end, ..run },
            _ => DataRun { end: (self.next + block).min(self.total), is_data: true },
        }
    }

    /// Reads a stretch; false if there is no memory now.
    fn start_read(&mut self, len: u64) -> Result<bool, Failure> {
        let Some(mut memory) = self.initiator.alloc_payload(len as usize) else {
            if self.flights.is_empty() {
                return Err(Failure::failed("not enough memory for a single request"));
            }
            return Ok(false);
        };
        match self.from {
            // The last block of the destination may begin in the source and end beyond it.
            CopyEnd::Remote { volume, .. } if self.next + len > self.bytes => {
                let there = (self.bytes - self.next) as usize;
                let mut tail = vec![0; there];
                self.initiator.read_at(*volume, self.next, &mut tail)?;
                tail.resize(len as usize, 0);
                memory.copy_from(0, &tail);
                self.start_write(memory, self.next)?;
            }
            CopyEnd::Remote { volume, .. } => {
                let id = start_volume_operation(
                    &mut self.initiator,
                    *volume,
                    Op::Read,
                    (self.next, len),
                    Payload::In(memory),
                )?;
                self.flights.push(RequestsInFlight::Read(id, self.next));
            }
            CopyEnd::File { .. } => {
                self.from.read_file(&mut memory, self.next, self.bytes)?;
                self.start_write(memory, self.next)?;
            }
        }
        Ok(true)
    }

    fn start_zero(&mut self, at: u64, len: u64) -> Result<bool, Failure> {
        self.zeroed += len;
        match self.to {
            CopyEnd::Remote { volume, .. } => {
                let what = |span| Op::WriteZeroes { span, unmap: true };
                let id =
                    start_volume_operation(&mut self.initiator, *volume, what, (at, len), Payload::None)?;
                self.flights.push(RequestsInFlight::Write(id, at, 0));
            }
            CopyEnd::File { .. } => self.to.zero_file(at, len)?,
        }
        Ok(true)
    }

    fn start_write(&mut self, mut memory: SgMut, at: u64) -> Result<(), Failure> {
        let len = memory.len() as u64;
        if self.sparse && is_zero(&mut memory) {
            return self.start_zero(at, len).map(drop);
        }
        match self.to {
            CopyEnd::Remote { volume, .. } => {
                let what = |span| Op::Write(span, Durability::Cached);
                let payload = Payload::Out(memory.freeze());
                let id = start_volume_operation(&mut self.initiator, *volume, what, (at, len), payload)?;
                self.flights.push(RequestsInFlight::Write(id, at, len));
            }
            CopyEnd::File { .. } => {
                self.to.write_file(&mut memory, at, self.total)?;
                self.written += len;
            }
        }
        Ok(())
    }

    fn handle_done(&mut self, done: IoCompletion) -> Result<(), Failure> {
        let named = |flight: &RequestsInFlight| match flight {
            RequestsInFlight::Read(id, _) | RequestsInFlight::Write(id, ..) => *id == done.id,
        };
        let Some(at) = self.flights.iter().position(named) else { return Ok(()) };
        let flight = self.flights.swap_remove(at);
        let (what, place) = match flight {
            RequestsInFlight::Read(_, at) => ("reading the source", at),
            RequestsInFlight::Write(_, at, _) => ("writing the destination", at),
        };
        if let Err(failure) = done.result {
            let why = client::Error::from_failure(failure, &format!("{what} at byte {place}"));
            return Err(why.into());
        }
        match (flight, done.payload) {
            (RequestsInFlight::Read(_, at), Payload::In(memory)) => self.start_write(memory, at),
            (RequestsInFlight::Write(_, _, len), _) => {
                self.written += len;
                Ok(())
            }
            (RequestsInFlight::Read(..), _) => Err(Failure::failed("a read came back without its memory")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use client::Settings;

    use super::*;

    fn end(path: &Path, bytes: u64) -> CopyEnd {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(bytes).unwrap();
        CopyEnd::File { file, path: path.to_owned(), is_fresh: false }
    }

    /// How far the copy is after each step.
    fn steps(from: &CopyEnd, to: &CopyEnd, bytes: u64, sparse: bool) -> Vec<u64> {
        let run = DataRun { end: 0, is_data: false };
        let mut copy = CopyJob {
            initiator: Initiator::new(Settings::default()).unwrap(),
            from,
            to,
            bytes,
            total: bytes,
            block: 1,
            stretch: 4096,
            next: 0,
            run,
            sparse,
            flights: Vec::new(),
            written: 0,
            zeroed: 0,
        };
        let mut marks = Vec::new();
        while copy.step().unwrap() {
            marks.push(copy.written_up_to());
        }
        marks
    }

    #[test]
    fn a_copy_between_ends_of_here_is_not_done_in_one_step_that_keeps_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = 4096 * 100;
        let (from, to) = (end(&dir.path().join("from"), bytes), end(&dir.path().join("to"), bytes));
        for sparse in [false, true] {
            let marks = steps(&from, &to, bytes, sparse);
            let far = 4096 * SEGMENTS_IN_FLIGHT as u64;
            assert_eq!(marks, (1..=6).map(|step| step * far).collect::<Vec<_>>(), "sparse: {sparse}");
        }
    }
}
