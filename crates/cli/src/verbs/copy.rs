//! `blockwire copy`: a volume to another, or to a file, or a file to a volume.
//!
//! Reads and writes are both in flight. Holes are not read; zeroes are created at the destination instead of
//! written. Invariants:
//! - Progress in the resume file was flushed at the destination before it was recorded.
//! - A refused copy has changed nothing: all checks come before [`UnopenedDestination::open_for_writing`].

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buf::{Payload, SgMut};
use clap::Args;
use client::{Durability, Initiator, IoCompletion, IoId, Op, Settings};

use super::{create_initiator, json_text, print};
use crate::reports::CopyReport;
use config::size::format_human;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use transfer::copy_ends::{CopyEnd, DataRun, UnopenedDestination, is_zero, start_volume_operation};
use transfer::journal::CopyJournal;
use transfer::local_path::FileKey;
use transfer::progress::ProgressBar;

/// Stretches in flight.
const SEGMENTS_IN_FLIGHT: usize = 16;
/// How often a copy that can be resumed makes what it did stable.
const SYNC_INTERVAL: Duration = Duration::from_secs(2);

/// `copy`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire copy iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0 db.img
  blockwire copy db.img nvme+tcp://10.0.0.2/nqn.2026-11.io.blockwire:db/1 \\
      --resume db.copy

Write a new file without a directory as ./NAME, so that the name of a volume is not taken for a file.")]
pub struct CopyArgs {
    /// The source: a URL, or a file or device
    pub from: SecretUrl,
    /// The destination: a URL, or a file or device; its contents are overwritten
    pub to: SecretUrl,
    /// Write even if the destination seems to be in use: a mounted device, a file behind a loop device, a volume that
    /// is attached here or reserved by another host
    #[arg(long)]
    pub force: bool,
    /// Record the progress in FILE, and resume from there if it exists
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Read and write every block, including holes and zeroes
    #[arg(long)]
    pub no_sparse: bool,
    /// Compare both ends afterwards; a file or device is read from its medium, not from this system's page
    /// cache
    #[arg(long)]
    pub verify: bool,
    /// Show no progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// What is in flight.
#[derive(Debug)]
enum RequestsInFlight {
    Read(IoId, u64),
    Write(IoId, u64, u64),
}

struct CopyJob<'a> {
    initiator: Initiator,
    from: &'a CopyEnd,
    to: &'a CopyEnd,
    /// Bytes of the source.
    bytes: u64,
    /// The same, to the end of the last block.
    total: u64,
    /// Bytes of the larger block of both ends.
    block: u64,
    /// Bytes of a transfer: whole blocks that both ends carry by one command.
    stretch: u64,
    /// Everything before it has been started.
    next: u64,
    run: DataRun,
    sparse: bool,
    flights: Vec<RequestsInFlight>,
    written: u64,
    zeroed: u64,
}

/// A copy that nothing refuses any more, and that has changed nothing yet.
struct CopyPlan {
    initiator: Initiator,
    from: CopyEnd,
    to: UnopenedDestination,
    from_id: String,
    bytes: u64,
    block: u64,
    /// How far an earlier copy came; `None`: there was none.
    done: Option<u64>,
    /// The destination is a new file.
    is_new: bool,
}

/// Refuses a new file whose name looks like a volume's.
fn refuse_bare_word(name: &str, to: &UnopenedDestination) -> Result<(), Failure> {
    let is_bare = !name.contains(['/', '.']);
    match to {
        UnopenedDestination::Local(place) if place.is_absent() && is_bare => Err(Failure::usage(format!(
            "\"{name}\" is not a volume's URL (iscsi://... or nvme+tcp://...), and no such file exists; write \
             ./{name} to create one"
        ))),
        UnopenedDestination::Local(_) | UnopenedDestination::Remote { .. } => Ok(()),
    }
}

/// Looks at everything that could refuse the copy.
fn plan_copy(args: &CopyArgs) -> Result<CopyPlan, Failure> {
    let mut initiator = create_initiator(Settings { memory: 128 << 20, ..Settings::default() })?;
    let from = CopyEnd::open_source(&mut initiator, &args.from)?;
    let bytes = from.len_bytes()?;
    if bytes == 0 {
        return Err(Failure::usage("the source holds nothing"));
    }
    let journal = args.resume.as_deref().map(CopyJournal::read).transpose()?.flatten();
    refuse_same(args, &from)?;
    let to = UnopenedDestination::inspect(&mut initiator, &args.to, args.force)?;
    refuse_bare_word(&args.to, &to)?;
    let (from_id, to_id) = (from.identity(&initiator)?, to.identity(&initiator)?);
    if to_id.as_ref() == Some(&from_id) && !from_id.is_empty() {
        return Err(same_volume_failure());
    }
    let is_new = matches!(&to, UnopenedDestination::Local(place) if place.is_absent());
    if let Some(path) = &args.resume {
        let ends = [(from.file_key()?, Path::new(&*args.from)), (to.file_key()?, Path::new(&*args.to))];
        CopyJournal::refuse_source_or_destination(path, &ends)?;
    }
    if !args.force {
        from.lock_shared()?;
    }
    let block = from.block_size().max(to.block_size());
    let total = bytes.next_multiple_of(block);
    if let Some(room) = to.capacity()?.filter(|room| *room < total) {
        let why = format!("the destination has {room} bytes, the source {bytes}: make it larger first");
        return Err(Failure::usage(why));
    }
    let done = match &journal {
        None => None,
        Some(old) => {
            let is_this = old.from == from_id && Some(&old.to) == to_id.as_ref() && old.bytes == bytes;
            let fits = old.done <= total && (old.done == total || old.done.is_multiple_of(block));
            if !(is_this && fits) {
                let why = "the resume file belongs to another copy (other volumes, recreated files, or another \
                           size): name another, or remove it to start over";
                return Err(Failure::usage(why));
            }
            refuse_changed(&mut initiator, (&from, &to), (bytes, old.done), block)?;
            // One that had not come to do anything may not have come to empty the destination either.
            Some(old.done).filter(|done| *done > 0)
        }
    };
    Ok(CopyPlan { initiator, from, to, from_id, bytes, block, done, is_new })
}

fn same_volume_failure() -> Failure {
    Failure::usage(
        "source and destination are the same volume, or one is stored on the other: nothing was changed",
    )
}

/// Refuses a destination that is the source by another name, before it is locked.
fn refuse_same(args: &CopyArgs, from: &CopyEnd) -> Result<(), Failure> {
    let to = (!client::is_remote_volume_name(&args.to)).then(|| fs::metadata(&*args.to).ok()).flatten();
    match (from.file_key()?, to.map(|meta| FileKey::of_metadata(&meta))) {
        (Some(from), Some(to)) if from.overlaps(to) => Err(same_volume_failure()),
        _ if *args.from == *args.to => Err(same_volume_failure()),
        _ => Ok(()),
    }
}

/// Places at which a copy that is gone on with is compared.
const COMPARED_SAMPLES: u64 = 64;
/// Bytes that are compared there.
const COMPARED_SAMPLE_BYTES: u64 = 64 << 10;

/// Refuses to go on with a copy whose destination does not hold what was copied: names and identities may be
/// those of another file or volume.
fn refuse_changed(
    initiator: &mut Initiator,
    (from, to): (&CopyEnd, &UnopenedDestination),
    (bytes, done): (u64, u64),
    block: u64,
) -> Result<(), Failure> {
    let changed = |why: &str| {
        let why = format!("the destination does not contain what the resume file says was copied ({why})");
        Failure::usage(format!("{why}: remove the resume file to start over"))
    };
    let is_file = to.capacity()?.is_none();
    let Some(to) = to.open_for_comparing()? else { return Err(changed("it is gone")) };
    let done = done.min(bytes);
    let held = to.len_bytes()?;
    if done > 0 && (held < bytes || is_file && held > bytes) {
        return Err(changed(&format!("it has {held} bytes")));
    }
    let compare = |initiator: &mut Initiator, at: u64| {
        let end = (at + COMPARED_SAMPLE_BYTES.next_multiple_of(block)).min(done);
        let same = super::verify::first_difference(initiator, (from, &to), at, end - at)?;
        same.map_or(Ok(()), |differs| Err(changed(&differs)))
    };
    let floor = |at: u64| at - at % block;
    for look in 0..=COMPARED_SAMPLES {
        let at = floor(
            u64::try_from(u128::from(done) * u128::from(look) / u128::from(COMPARED_SAMPLES)).unwrap_or(done),
        );
        let at = at.min(floor(done.saturating_sub(COMPARED_SAMPLE_BYTES)));
        if at >= done {
            continue;
        }
        compare(initiator, at)?;
        // A hole proves little: what comes behind it is looked at too.
        let run = from.data_run_at(initiator, at, done, bytes)?;
        if !run.is_data && floor(run.end) < done {
            compare(initiator, floor(run.end))?;
        }
    }
    Ok(())
}

/// Copies.
pub fn copy(args: &CopyArgs) -> Result<Exit, Failure> {
    let CopyPlan { initiator, from, mut to, from_id, bytes, block, done, is_new } = plan_copy(args)?;
    let total = bytes.next_multiple_of(block);
    to.create_file()?;
    let journal = |done: u64, to: String| CopyJournal { from: from_id.clone(), to, bytes, done };
    let to_id = to.identity(&initiator)?.unwrap_or_default();
    // Before anything of the destination is changed: who cannot keep a record need not begin.
    if let Some(path) = args.resume.as_deref()
        && let Err(why) = journal(done.unwrap_or(0), to_id.clone()).write(path)
    {
        to.remove_created();
        return Err(why);
    }
    let to = to.open_for_writing(bytes, done.is_some())?;
    let stretch = from.chunk_bytes().min(to.chunk_bytes());
    let stretch = (stretch - stretch % block).max(block);
    let done = done.unwrap_or(0);
    let mut progress = ProgressBar::new(total, done, args.quiet);
    let run = DataRun { end: done, is_data: false };
    let (sparse, begun) = (!args.no_sparse, Instant::now());
    let mut copy = CopyJob {
        initiator,
        from: &from,
        to: &to,
        bytes,
        total,
        block,
        stretch,
        next: done,
        run,
        sparse,
        flights: Vec::new(),
        written: 0,
        zeroed: 0,
    };
    let mut settled = Instant::now();
    while copy.step()? {
        progress.update(copy.written_up_to());
        if let Some(path) = args.resume.as_deref().filter(|_| settled.elapsed() >= SYNC_INTERVAL) {
            let done = copy.written_up_to();
            copy.to.sync(&mut copy.initiator)?;
            journal(done, to_id.clone()).write(path)?;
            settled = Instant::now();
        }
    }
    from.refuse_truncated(bytes)?;
    to.sync(&mut copy.initiator)?;
    progress.clear();
    let rate = progress.bytes_per_second(total);
    if args.verify {
        // What was just written is in this system's memory: what lies on the medium is what is to be compared.
        to.drop_page_cache()?;
        super::verify::compare_ends(&mut copy.initiator, (&from, &to), bytes, args.quiet)?;
    }
    if let Some(path) = &args.resume {
        let _ = fs::remove_file(path);
    }
    let CopyJob { mut initiator, written, zeroed, .. } = copy;
    from.close_end(&mut initiator)?;
    to.close_end(&mut initiator)?;
    print(&report_copied(args, bytes, (written, zeroed), is_new, (begun.elapsed(), rate)))?;
    Ok(Exit::Success)
}

fn report_copied(
    args: &CopyArgs,
    bytes: u64,
    (written, zeroed): (u64, u64),
    is_new: bool,
    (time, rate): (Duration, f64),
) -> String {
    if args.json {
        let seconds = time.as_secs_f64();
        return json_text(&CopyReport {
            size_bytes: bytes,
            written_bytes: written,
            zeroed_bytes: zeroed,
            seconds,
            verified: args.verify,
            new_file: is_new,
        });
    }
    let verified = if args.verify { ", compared and alike" } else { "" };
    let destination = if is_new { format!(" to the new file {}", &*args.to) } else { String::new() };
    // A rate over so short a time is one of caches.
    let took = match time.as_secs_f64() {
        seconds if seconds < 0.1 => format!("{:.0} ms", seconds * 1000.0),
        seconds => format!("{seconds:.1} s ({}/s)", format_human(rate as u64)),
    };
    format!(
        "{} copied{destination} in {took}: {} written, {} left or made zero{verified}\n",
        format_human(bytes),
        format_human(written),
        format_human(zeroed)
    )
}

impl CopyJob<'_> {
    /// Everything before it is written.
    fn written_up_to(&self) -> u64 {
        let at = |flight: &RequestsInFlight| match flight {
            RequestsInFlight::Read(_, at) | RequestsInFlight::Write(_, at, _) => *at,
        };
        self.flights.iter().map(at).min().unwrap_or(self.next).min(self.next)
    }

    /// Starts what can be started and takes what has ended; false when all is written.
    fn step(&mut self) -> Result<bool, Failure> {
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
                let mut tail = vec![0; len as usize];
                self.initiator.read_at(*volume, self.next, &mut tail[..there])?;
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
            initiator: create_initiator(Settings::default()).unwrap(),
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
