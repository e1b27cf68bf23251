//! `blockwire copy`: a volume to another, or to a file, or a file to a volume.
//!
//! Reads and writes are both in flight; holes are not read, and zeroes are not written but made. Invariant:
//! what the resume file says is done was flushed at the destination before it was written there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buf::{Payload, SgMut};
use clap::Args;
use initiator::{Done, Durability, Initiator, IoId, Op, Settings};
use serde::{Deserialize, Serialize};

use super::ends::{End, Run, is_zero, start};
use super::progress::Progress;
use super::{say, set_up};
use crate::called::Called;
use crate::exit::{Exit, Failure};
use crate::size::human;

/// Stretches in flight.
const AHEAD: usize = 16;
/// How often a copy that can be resumed makes what it did stable.
const SETTLE_EACH: Duration = Duration::from_secs(2);

/// `copy`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire copy iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0 db.img
  blockwire copy db.img nvme+tcp://10.0.0.2/nqn.2026-11.io.blockwire:db/1 --resume db.copy")]
pub struct CopyArgs {
    /// The source: a URL, or a file or device
    pub from: Called,
    /// The destination: a URL, or a file or device; all that it held is lost
    pub to: Called,
    /// Keep in FILE how far it is, and go on from there if it exists
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Read and write every block, holes and zeroes too
    #[arg(long)]
    pub no_sparse: bool,
    /// Compare both ends afterwards
    #[arg(long)]
    pub verify: bool,
    /// Draw no progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// How far a copy is, as its file says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Journal {
    from: String,
    to: String,
    bytes: u64,
    done: u64,
}

impl Journal {
    fn read(path: &Path) -> Result<Option<Journal>, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(Failure::failed(format!("{}: {why}", path.display()))),
        };
        let journal = serde_json::from_str(&text);
        journal.map(Some).map_err(|why| {
            Failure::usage(format!("{} is no copy's record ({why}): remove it to begin anew", path.display()))
        })
    }

    fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |why: std::io::Error| Failure::failed(format!("{}: {why}", path.display()));
        let beside = path.with_extension("new");
        let text = serde_json::to_string(self).unwrap_or_default();
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, path)).map_err(failed)
    }
}

/// What is in flight.
#[derive(Debug)]
enum Flight {
    Read(IoId, u64),
    Write(IoId, u64, u64),
}

struct Copy<'a> {
    initiator: Initiator,
    from: &'a End,
    to: &'a End,
    total: u64,
    /// Bytes of the larger block of both ends.
    block: u64,
    /// Bytes of a transfer: whole blocks that both ends carry by one command.
    stretch: u64,
    /// Everything before it has been started.
    next: u64,
    run: Run,
    sparse: bool,
    flights: Vec<Flight>,
    written: u64,
    zeroed: u64,
}

/// Copies.
pub fn copy(args: &CopyArgs) -> Result<Exit, Failure> {
    let mut initiator = set_up(Settings { memory: 128 << 20, ..Settings::default() })?;
    let from = End::source(&mut initiator, &args.from)?;
    let bytes = from.bytes(&initiator)?;
    let journal = args.resume.as_deref().map(Journal::read).transpose()?.flatten();
    let to = End::destination(&mut initiator, &args.to, bytes, journal.is_some())?;
    let (from_id, to_id) = (from.identity(&initiator), to.identity(&initiator));
    if from_id == to_id && !from_id.is_empty() {
        return Err(Failure::usage("source and destination are the same volume"));
    }
    let block = from.block(&initiator).max(to.block(&initiator));
    let total = bytes.next_multiple_of(block);
    let stretch = from.stretch(&initiator).min(to.stretch(&initiator));
    let stretch = (stretch - stretch % block).max(block);
    let room = to.bytes(&initiator)?;
    if matches!(to, End::Remote(_)) && room < total
        || matches!(to, End::File { is_fresh: false, .. }) && room < bytes
    {
        let why = format!("the destination has {room} bytes, the source {bytes}: make it larger first");
        return Err(Failure::usage(why));
    }
    let done = match journal {
        None => 0,
        Some(old) if (&old.from, &old.to, old.bytes) == (&from_id, &to_id, bytes) => old.done,
        Some(_) => {
            let why = "the resume file is of another copy (other volumes, or another size): name another, or remove it";
            return Err(Failure::usage(why));
        }
    };
    let mut progress = Progress::new(total, done, args.quiet);
    let run = Run { end: done, is_data: false };
    let (sparse, begun) = (!args.no_sparse, Instant::now());
    let mut copy = Copy {
        initiator,
        from: &from,
        to: &to,
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
        progress.at(copy.low_water());
        if let Some(path) = args.resume.as_deref().filter(|_| settled.elapsed() >= SETTLE_EACH) {
            let done = copy.low_water();
            copy.to.settle(&mut copy.initiator)?;
            Journal { from: from_id.clone(), to: to_id.clone(), bytes, done }.write(path)?;
            settled = Instant::now();
        }
    }
    to.settle(&mut copy.initiator)?;
    progress.end();
    let rate = progress.rate(total);
    if args.verify {
        super::verify::compare(&mut copy.initiator, (&from, &to), bytes, args.quiet)?;
    }
    if let Some(path) = &args.resume {
        let _ = fs::remove_file(path);
    }
    let Copy { mut initiator, written, zeroed, .. } = copy;
    from.close(&mut initiator)?;
    to.close(&mut initiator)?;
    say(&told(args, bytes, (written, zeroed), begun.elapsed(), rate))?;
    Ok(Exit::Success)
}

fn told(args: &CopyArgs, bytes: u64, (written, zeroed): (u64, u64), time: Duration, rate: f64) -> String {
    if args.json {
        let seconds = time.as_secs_f64();
        let facts = serde_json::json!({
            "bytes": bytes, "written": written, "zeroed": zeroed, "seconds": seconds, "verified": args.verify,
        });
        return format!("{facts:#}\n");
    }
    let verified = if args.verify { ", compared and alike" } else { "" };
    format!(
        "{} copied in {:.1} s ({}/s): {} written, {} left or made zero{verified}\n",
        human(bytes),
        time.as_secs_f64(),
        human(rate as u64),
        human(written),
        human(zeroed)
    )
}

impl Copy<'_> {
    /// Everything before it is written.
    fn low_water(&self) -> u64 {
        let at = |flight: &Flight| match flight {
            Flight::Read(_, at) | Flight::Write(_, at, _) => *at,
        };
        self.flights.iter().map(at).min().unwrap_or(self.next).min(self.next)
    }

    /// Starts what can be started and takes what has ended; false when all is written.
    fn step(&mut self) -> Result<bool, Failure> {
        while self.next < self.total && self.flights.len() < AHEAD {
            if self.next >= self.run.end {
                self.run = if self.sparse {
                    let run = self.from.run(&mut self.initiator, self.next, self.total)?;
                    self.whole_blocks(run)
                } else {
                    Run { end: self.total, is_data: true }
                };
            }
            let len = (self.run.end - self.next).min(self.stretch);
            let whole = if self.run.is_data { self.begin_stretch(len)? } else { self.zero(self.next, len)? };
            if !whole {
                break;
            }
            self.next += len;
        }
        let mut ended = false;
        for end in [self.from, self.to] {
            let End::Remote(volume) = end else { continue };
            while let Some(done) = self.initiator.poll_done(*volume) {
                self.ended(done)?;
                ended = true;
            }
        }
        if !ended && !self.flights.is_empty() {
            self.initiator.turn(Some(Duration::from_secs(1)));
        }
        Ok(self.next < self.total || !self.flights.is_empty())
    }

    /// A run that ends where a block ends: data may be taken too far, a hole may not.
    fn whole_blocks(&self, run: Run) -> Run {
        let block = self.block;
        if run.is_data {
            return Run { end: run.end.next_multiple_of(block).min(self.total), ..run };
        }
        match run.end - run.end % block {
            end if end > self.next => Run { end, ..run },
            _ => Run { end: (self.next + block).min(self.total), is_data: true },
        }
    }

    /// Reads a stretch; false if there is no memory now.
    fn begin_stretch(&mut self, len: u64) -> Result<bool, Failure> {
        let Some(mut memory) = self.initiator.memory(len as usize) else {
            if self.flights.is_empty() {
                return Err(Failure::failed("there is no memory for a single stretch"));
            }
            return Ok(false);
        };
        match self.from {
            End::Remote(volume) => {
                let id =
                    start(&mut self.initiator, *volume, Op::Read, (self.next, len), Payload::In(memory))?;
                self.flights.push(Flight::Read(id, self.next));
            }
            End::File { .. } => {
                self.from.read_file(&mut memory, self.next)?;
                self.write(memory, self.next)?;
            }
        }
        Ok(true)
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<bool, Failure> {
        self.zeroed += len;
        match self.to {
            End::Remote(volume) => {
                let what = |span| Op::WriteZeroes { span, unmap: true };
                let id = start(&mut self.initiator, *volume, what, (at, len), Payload::None)?;
                self.flights.push(Flight::Write(id, at, 0));
            }
            End::File { .. } => self.to.zero_file(at, len)?,
        }
        Ok(true)
    }

    fn write(&mut self, mut memory: SgMut, at: u64) -> Result<(), Failure> {
        let len = memory.len() as u64;
        if self.sparse && is_zero(&mut memory) {
            return self.zero(at, len).map(drop);
        }
        match self.to {
            End::Remote(volume) => {
                let what = |span| Op::Write(span, Durability::Cached);
                let payload = Payload::Out(memory.freeze());
                let id = start(&mut self.initiator, *volume, what, (at, len), payload)?;
                self.flights.push(Flight::Write(id, at, len));
            }
            End::File { .. } => {
                self.to.write_file(&mut memory, at, self.total)?;
                self.written += len;
            }
        }
        Ok(())
    }

    fn ended(&mut self, done: Done) -> Result<(), Failure> {
        let named = |flight: &Flight| match flight {
            Flight::Read(id, _) | Flight::Write(id, ..) => *id == done.id,
        };
        let Some(at) = self.flights.iter().position(named) else { return Ok(()) };
        let flight = self.flights.swap_remove(at);
        let (what, place) = match flight {
            Flight::Read(_, at) => ("reading the source", at),
            Flight::Write(_, at, _) => ("writing the destination", at),
        };
        if let Err(failure) = done.result {
            let why = initiator::Error::of(failure, &format!("{what} at byte {place}"));
            return Err(why.into());
        }
        match (flight, done.payload) {
            (Flight::Read(_, at), Payload::In(memory)) => self.write(memory, at),
            (Flight::Write(_, _, len), _) => {
                self.written += len;
                Ok(())
            }
            (Flight::Read(..), _) => Err(Failure::failed("a read came back without its memory")),
        }
    }
}
