//! `blockwire read` and `blockwire write`: bytes of a volume to a pipe or file, and back.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use initiator::Settings;

use super::ends::known;
use super::{say, set_up, size};
use crate::called::Called;
use crate::exit::{Exit, Failure};

/// Bytes that are moved at a time; a multiple of every block size.
const STRETCH: usize = 4 << 20;

/// `read`
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The volume
    pub url: Called,
    /// Where to begin, in bytes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub offset: u64,
    /// How much; to the end unless given
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub length: Option<u64>,
    /// Whither; to standard output unless given
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print what was read as JSON; the bytes go to --output
    #[arg(long, requires = "output")]
    pub json: bool,
}

/// `write`
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// The volume
    pub url: Called,
    /// Where to begin, in bytes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub offset: u64,
    /// How much; all there is unless given
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub length: Option<u64>,
    /// Whence; from standard input unless given
    #[arg(long, short, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Print what was written as JSON
    #[arg(long)]
    pub json: bool,
}

fn named(path: Option<&Path>, usual: &str, why: &io::Error) -> Failure {
    let name = path.map_or(usual.to_owned(), |path| path.display().to_string());
    Failure::failed(format!("{name}: {why}"))
}

/// What was moved, from the byte at `offset` on; all of it is where it was to go.
fn told(offset: u64, bytes: u64, begun: Instant) -> Result<(), Failure> {
    let seconds = begun.elapsed().as_secs_f64();
    let facts = serde_json::json!({ "offset": offset, "bytes": bytes, "seconds": seconds });
    say(&format!("{facts:#}\n"))
}

/// Reads.
pub fn read(args: &ReadArgs) -> Result<Exit, Failure> {
    let (output, begun) = (args.output.as_deref(), Instant::now());
    let mut to: Box<dyn Write> = match output {
        Some(path) => Box::new(File::create(path).map_err(|why| named(output, "", &why))?),
        None if io::stdout().is_terminal() => {
            return Err(Failure::usage(
                "the bytes would go to the terminal: name a file with --output, or use a pipe",
            ));
        }
        None => Box::new(io::stdout().lock()),
    };
    let mut initiator = set_up(Settings::default())?;
    let volume = initiator.open(&args.url)?;
    let geometry = known(&initiator, volume)?;
    let bytes = geometry.bytes();
    let end = args.length.map_or(Some(bytes), |length| args.offset.checked_add(length));
    let end = end.filter(|end| *end <= bytes && args.offset <= *end).ok_or_else(|| {
        Failure::usage(format!("the volume has {bytes} bytes: offset and length go beyond its end"))
    })?;
    let block = geometry.logical as usize;
    let (mut at, mut buffer) = (args.offset, vec![0; STRETCH]);
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(STRETCH).min(STRETCH);
        // The last block is read whole, and given as far as it was asked for.
        initiator.read_at(volume, at, &mut buffer[..len.next_multiple_of(block)])?;
        to.write_all(&buffer[..len]).map_err(|why| named(output, "standard output", &why))?;
        at += len as u64;
    }
    to.flush().map_err(|why| named(output, "standard output", &why))?;
    initiator.close(volume)?;
    if args.json {
        told(args.offset, at - args.offset, begun)?;
    }
    Ok(Exit::Success)
}

/// Writes, and makes it stable.
pub fn write(args: &WriteArgs) -> Result<Exit, Failure> {
    let (input, begun) = (args.input.as_deref(), Instant::now());
    let from: Box<dyn Read> = match input {
        Some(path) => Box::new(File::open(path).map_err(|why| named(input, "", &why))?),
        None if io::stdin().is_terminal() => {
            return Err(Failure::usage(
                "the bytes would come from the terminal: name a file with --input, or use a pipe",
            ));
        }
        None => Box::new(io::stdin().lock()),
    };
    let mut from = from.take(args.length.unwrap_or(u64::MAX));
    let mut initiator = set_up(Settings::default())?;
    let volume = initiator.open(&args.url)?;
    let block = known(&initiator, volume)?.logical as usize;
    let (mut at, mut buffer) = (args.offset, vec![0; STRETCH]);
    loop {
        let len = fill(&mut from, &mut buffer).map_err(|why| named(input, "standard input", &why))?;
        if len == 0 {
            break;
        }
        // What is less than a block keeps the rest of the block as it was.
        let whole = len.next_multiple_of(block);
        if whole != len {
            let last = whole - block;
            let mut old = vec![0; block];
            initiator.read_at(volume, at + last as u64, &mut old)?;
            buffer[len..whole].copy_from_slice(&old[len - last..]);
        }
        initiator.write_at(volume, at, &buffer[..whole])?;
        at += len as u64;
        if whole != len {
            break;
        }
    }
    initiator.flush(volume)?;
    if args.length.is_some_and(|length| at - args.offset < length) {
        let why = format!("the input ended after {} bytes; they are written", at - args.offset);
        return Err(Failure::failed(why));
    }
    initiator.close(volume)?;
    if args.json {
        told(args.offset, at - args.offset, begun)?;
    }
    Ok(Exit::Success)
}

/// As much as there is, up to the buffer's length.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(len)
}
