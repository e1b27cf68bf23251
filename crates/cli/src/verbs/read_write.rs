//! `blockwire read` and `blockwire write`: bytes of a volume to a pipe or file, and back.
//!
//! Invariant: a refused command has changed nothing. An output file is checked first and truncated when the
//! first bytes have arrived; `write` first checks that all of the input fits into the volume.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use client::{Geometry, Settings};
use rustix::io::Errno;

use super::{create_initiator, json_text, parse_size, print};
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::MovedReport;
use transfer::copy_ends::refuse_volume_in_use;
use transfer::local_path::{self, FileKey, LocalPath};

/// Bytes that are moved at a time; a multiple of every block size.
const TRANSFER_BYTES: usize = 4 << 20;

/// `read`
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The volume
    pub url: SecretUrl,
    /// Where to begin, in bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub offset: u64,
    /// Number of bytes [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Output file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write even to a mounted device, or a file behind a loop device
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Print the result as JSON; the data goes to --output
    #[arg(long, requires = "output")]
    pub json: bool,
}

/// `write`
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// The volume
    pub url: SecretUrl,
    /// Where to begin, in bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub offset: u64,
    /// Number of bytes [default: all of the input]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Input file [default: standard input]
    #[arg(long, short, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write even if the volume seems to be in use: attached here, or reserved by another host
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

fn file_failure(path: Option<&Path>, usual: &str, why: &io::Error) -> Failure {
    let name = path.map_or(usual.to_owned(), |path| path.display().to_string());
    Failure::failed(format!("{name}: {why}"))
}

/// What was moved, from the byte at `offset` on; all of it is where it was to go.
fn report_transfer(offset: u64, bytes: u64, begun: Instant) -> Result<(), Failure> {
    let seconds = begun.elapsed().as_secs_f64();
    print(&json_text(&MovedReport { offset_bytes: offset, moved_bytes: bytes, seconds }))
}

/// What is read from or written to, in whole blocks.
fn block_aligned_length(geometry: &Geometry, offset: u64, length: u64) -> Result<u64, Failure> {
    let (bytes, block) = (geometry.capacity_bytes(), u64::from(geometry.logical));
    if !offset.is_multiple_of(block) {
        let why = format!("offset {offset} is not a multiple of the volume's block size, {block} bytes");
        return Err(Failure::usage(why));
    }
    let end = offset.checked_add(length).filter(|end| *end <= bytes && offset <= *end);
    end.ok_or_else(|| {
        Failure::usage(format!("the volume has {bytes} bytes: offset and length go beyond its end"))
    })
}

/// Where bytes that are read go to.
enum OutputSink {
    Pipe(io::StdoutLock<'static>),
    /// Nothing of it was changed yet.
    Looked(LocalPath),
    File(File),
    Gone,
}

impl OutputSink {
    /// Takes bytes; a file is emptied before the first.
    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if let OutputSink::Looked(_) = self
            && let OutputSink::Looked(place) = std::mem::replace(self, OutputSink::Gone)
        {
            *self = OutputSink::File(place.open_truncated(0)?.0);
        }
        let wrote = match self {
            OutputSink::Pipe(pipe) => pipe.write_all(bytes).and_then(|()| pipe.flush()),
            OutputSink::File(file) => file.write_all(bytes),
            OutputSink::Looked(_) | OutputSink::Gone => Ok(()),
        };
        wrote.map_err(|why| Failure::failed(format!("output: {why}")))
    }

    /// Makes a file or device stable: some faults of what was written are told of only then.
    fn sync(&self) -> Result<(), Failure> {
        let OutputSink::File(file) = self else { return Ok(()) };
        match file.sync_all() {
            // A stream has nothing to make stable, and says so.
            Err(why) if matches!(Errno::from_io_error(&why), Some(Errno::INVAL | Errno::OPNOTSUPP)) => Ok(()),
            Err(why) => Err(Failure::failed(format!("output: cannot sync, written data may be lost: {why}"))),
            Ok(()) => Ok(()),
        }
    }
}

/// Reads.
pub fn read_volume(args: &ReadArgs) -> Result<Exit, Failure> {
    let (output, begun) = (args.output.as_deref(), Instant::now());
    let mut to = match output {
        Some(path) => OutputSink::Looked(LocalPath::inspect(path, args.force)?),
        None if io::stdout().is_terminal() => {
            return Err(Failure::usage(
                "the bytes would go to the terminal: name a file with --output, or use a pipe",
            ));
        }
        None => OutputSink::Pipe(io::stdout().lock()),
    };
    let mut initiator = create_initiator(Settings::default())?;
    let volume = initiator.open(&args.url)?;
    let geometry = initiator.known_geometry(volume)?;
    let length = args.length.unwrap_or(geometry.capacity_bytes().saturating_sub(args.offset));
    let end = block_aligned_length(&geometry, args.offset, length)?;
    if let OutputSink::Looked(place) = &to
        && let Some(room) = place.capacity()?.filter(|room| *room < length)
    {
        let why = format!("{} has {room} bytes, but {length} are to be read", place.path().display());
        return Err(Failure::usage(why));
    }
    let block = geometry.logical as usize;
    let (mut at, mut buffer) = (args.offset, vec![0; TRANSFER_BYTES]);
    if at == end {
        to.write_bytes(&[])?;
    }
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(TRANSFER_BYTES).min(TRANSFER_BYTES);
        // The last block is read whole, and given as far as it was asked for.
        initiator.read_at(volume, at, &mut buffer[..len.next_multiple_of(block)])?;
        to.write_bytes(&buffer[..len])?;
        at += len as u64;
    }
    to.sync()?;
    initiator.close(volume)?;
    if args.json {
        report_transfer(args.offset, at - args.offset, begun)?;
    }
    Ok(Exit::Success)
}

/// How many bytes the input has, where that can be known before it is read.
fn input_bytes(file: &File) -> io::Result<Option<u64>> {
    let meta = file.metadata()?;
    match FileKey::of_metadata(&meta) {
        FileKey::Device(_) => local_path::device_size(file).map(Some),
        FileKey::File(..) => Ok(meta.is_file().then_some(meta.len())),
    }
}

/// Opens what is written from; how long it is, if that is known.
fn open_input(args: &WriteArgs) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    let Some(path) = args.input.as_deref() else {
        if io::stdin().is_terminal() {
            return Err(Failure::usage(
                "the bytes would come from the terminal: name a file with --input, or use a pipe",
            ));
        }
        return Ok((Box::new(io::stdin().lock()), None));
    };
    let failed = |why: io::Error| file_failure(Some(path), "", &why);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(Failure::usage(format!("{}: it is a directory", path.display())));
    }
    let bytes = input_bytes(&file).map_err(failed)?;
    Ok((Box::new(file), bytes))
}

/// Writes, and makes it stable.
pub fn write_volume(args: &WriteArgs) -> Result<Exit, Failure> {
    let (input, begun) = (args.input.as_deref(), Instant::now());
    let (from, there) = open_input(args)?;
    if let (Some(there), Some(length)) = (there, args.length)
        && there < length
    {
        return Err(Failure::usage(format!("the input has {there} bytes, but {length} are to be written")));
    }
    let mut from = from.take(args.length.unwrap_or(u64::MAX));
    let mut initiator = create_initiator(Settings::default())?;
    let volume = initiator.open(&args.url)?;
    let geometry = initiator.known_geometry(volume)?;
    if initiator.is_read_only(volume) {
        return Err(Failure::usage("the volume is read-only for this host"));
    }
    if !args.force {
        refuse_volume_in_use(&mut initiator, volume, &args.url)?;
    }
    // Before the first byte is written, as far as it can be known.
    let room = geometry.capacity_bytes().saturating_sub(args.offset);
    block_aligned_length(&geometry, args.offset, args.length.or(there).unwrap_or(0))?;
    let block = geometry.logical as usize;
    let (mut at, mut buffer) = (args.offset, vec![0; TRANSFER_BYTES]);
    loop {
        let len =
            fill_buffer(&mut from, &mut buffer).map_err(|why| file_failure(input, "standard input", &why))?;
        if len == 0 {
            break;
        }
        let written = at - args.offset;
        if written + len as u64 > room {
            let why =
                format!("the volume has {} bytes: the input goes beyond its end", geometry.capacity_bytes());
            if written == 0 {
                return Err(Failure::usage(why));
            }
            initiator.flush(volume)?;
            return Err(Failure::failed(format!("{why}; its first {written} bytes are written")));
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
        report_transfer(args.offset, at - args.offset, begun)?;
    }
    Ok(Exit::Success)
}

/// As much as there is, up to the buffer's length.
fn fill_buffer(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
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

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};

    use super::*;

    #[test]
    fn what_cannot_be_made_stable_was_not_read_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, "x").unwrap();
        assert!(OutputSink::File(File::open(&path).unwrap()).sync().is_ok());
        // A descriptor that cannot sync stands for a disk that cannot.
        let dead = File::from(open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap());
        let why = OutputSink::File(dead).sync().unwrap_err();
        assert!(why.message.contains("cannot sync"), "{why}");
        // A stream has nothing to make stable.
        let stream = File::options().write(true).open("/dev/null").unwrap();
        assert!(OutputSink::File(stream).sync().is_ok());
    }
}
