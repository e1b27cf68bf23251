//! Fixed newstyle negotiation: the server's greeting, NBD_OPT_GO with the export's name and a question for block sizes,
//! and the answers. No TLS, no structured replies, no metadata contexts.
//!
//! Invariant: an export is known only if its size and its block sizes make sense.

use std::fmt;
use std::io::{self, Read, Write};

use nbd::{flag, info, option, reply};
use zerocopy::{FromBytes, IntoBytes};

/// Longest name of an export (doc/proto.md, "Values"), in bytes.
pub const EXPORT_NAME_BYTES_MAX: usize = 4096;
/// Longest answer to an option that is read.
const ANSWER_BYTES_MAX: u32 = 8192;
/// Answers to one option at most.
const ANSWERS_MAX: usize = 64;
/// Characters of a server's text that are passed on.
const TEXT_CHARS_MAX: usize = 200;
/// Largest minimum block size that the protocol allows.
const BLOCK_MIN_MAX: u32 = 64 << 10;
/// What a client should keep to if the server tells no sizes (doc/proto.md, "Block size constraints").
const BLOCK_MIN_UNTOLD: u32 = 512;
const PAYLOAD_MAX_UNTOLD: u32 = 32 << 20;
/// The greeting of servers before fixed newstyle.
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its size in bytes: not 0, and at most `i64::MAX`.
    pub bytes: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Offsets and lengths are multiples of this: a power of two up to 64 KiB.
    pub block_min: u32,
    /// Longest payload of a read or write, in bytes.
    pub payload_max: u32,
}

impl ExportInfo {
    /// Whether this flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it may only be read.
    pub fn is_read_only(&self) -> bool {
        self.has(flag::READ_ONLY)
    }

    /// Whether it can be told to write zeroes, and to give space back by that.
    pub fn can_write_zeroes(&self) -> bool {
        self.has(flag::SEND_WRITE_ZEROES)
    }

    /// Whether a volume that was opened as `self` can go on with `now`: nothing has gone that it uses.
    pub(crate) fn is_still(&self, now: &ExportInfo) -> bool {
        let used = flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_WRITE_ZEROES;
        now.bytes >= self.bytes
            && now.block_min <= self.block_min
            && now.payload_max >= self.payload_max
            && self.flags & used & !now.flags == 0
            && (self.is_read_only() || !now.is_read_only())
    }
}

/// Why there is no export.
#[derive(Debug)]
pub enum HandshakeError {
    /// The connection failed, or the server took too long.
    Io(io::Error),
    /// It does not speak NBD, or breaks the protocol: in which way.
    Protocol(&'static str),
    /// It has no export of that name.
    NoExport(String),
    /// It wants TLS.
    Tls,
    /// It is shutting down.
    ShuttingDown,
    /// It refuses: its text, or the number of its answer.
    Refused(String),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Io(why) if why.kind() == io::ErrorKind::TimedOut => {
                f.write_str("the server accepts connections and does not answer in time")
            }
            HandshakeError::Io(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the server has closed the connection during the handshake; see its log")
            }
            HandshakeError::Io(why) => write!(f, "the connection failed during the handshake: {why}"),
            HandshakeError::Protocol(what) => write!(f, "what answers is no NBD server that can be used: {what}"),
            HandshakeError::NoExport(text) => {
                write!(f, "the server has no such export{}; `nbdinfo --list` shows which it has", in_brackets(text))
            }
            HandshakeError::Tls => f.write_str(
                "the server demands TLS, which is not supported for NBD: use a UNIX socket, or a tunnel to the server",
            ),
            HandshakeError::ShuttingDown => f.write_str("the server is shutting down"),
            HandshakeError::Refused(text) => write!(f, "the server refuses{}", in_brackets(text)),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<io::Error> for HandshakeError {
    fn from(why: io::Error) -> Self {
        HandshakeError::Io(why)
    }
}

impl HandshakeError {
    /// Whether it may pass without anybody changing a configuration.
    pub fn may_pass(&self) -> bool {
        match self {
            HandshakeError::Io(_) | HandshakeError::ShuttingDown => true,
            // Exports come and go while a server runs.
            HandshakeError::NoExport(_) | HandshakeError::Refused(_) => true,
            HandshakeError::Protocol(_) | HandshakeError::Tls => false,
        }
    }
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" (\"{text}\")") }
}

/// Negotiates an export.
///
/// # Errors
/// There is none that can be used.
pub fn negotiate(stream: &mut (impl Read + Write), export: &str) -> Result<ExportInfo, HandshakeError> {
    let greeting: nbd::Greeting = read_as(stream)?;
    if greeting.magic.get() != nbd::NBDMAGIC {
        return Err(HandshakeError::Protocol("it greets otherwise"));
    }
    if greeting.newstyle.get() == OLDSTYLE_MAGIC {
        return Err(HandshakeError::Protocol("it knows oldstyle negotiation only"));
    }
    let offered = greeting.flags.get();
    if greeting.newstyle.get() != nbd::IHAVEOPT || offered & nbd::FLAG_FIXED_NEWSTYLE == 0 {
        return Err(HandshakeError::Protocol("it does not know fixed newstyle negotiation"));
    }
    let flags = offered & (nbd::FLAG_FIXED_NEWSTYLE | nbd::FLAG_NO_ZEROES);
    stream.write_all(&u32::from(flags).to_be_bytes())?;
    stream.write_all(&go_option(export))?;
    read_answers(stream)
}

/// NBD_OPT_GO for this export, with the question for its block sizes.
fn go_option(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1_u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    let header = nbd::OptionHeader {
        magic: nbd::IHAVEOPT.into(),
        option: option::GO.into(),
        len: (data.len() as u32).into(),
    };
    [header.as_bytes(), &data].concat()
}

fn read_answers(stream: &mut impl Read) -> Result<ExportInfo, HandshakeError> {
    let (mut export, mut sizes) = (None, None);
    for _ in 0..ANSWERS_MAX {
        let head: nbd::OptionReply = read_as(stream)?;
        if head.magic.get() != nbd::OPTION_REPLY_MAGIC || head.option.get() != option::GO {
            return Err(HandshakeError::Protocol("its answer belongs to no option that it was given"));
        }
        if head.len.get() > ANSWER_BYTES_MAX {
            return Err(HandshakeError::Protocol("an answer of it is too long"));
        }
        let mut data = vec![0; head.len.get() as usize];
        stream.read_exact(&mut data)?;
        match head.kind.get() {
            reply::ACK => {
                let (bytes, flags) =
                    export.ok_or(HandshakeError::Protocol("it does not tell the export's size"))?;
                return checked(bytes, flags, sizes);
            }
            reply::INFO => read_info(&data, &mut export, &mut sizes)?,
            kind => return Err(refusal(kind, &data)),
        }
    }
    Err(HandshakeError::Protocol("it answers one option without end"))
}

/// Size and flags.
type SizeAndFlags = Option<(u64, u16)>;
/// Smallest, preferred and largest block.
type BlockSizes = Option<(u32, u32, u32)>;

fn read_info(data: &[u8], export: &mut SizeAndFlags, sizes: &mut BlockSizes) -> Result<(), HandshakeError> {
    let wrong_length = HandshakeError::Protocol("an answer of it has a wrong length");
    let Some(kind) = data.first_chunk().map(|kind| u16::from_be_bytes(*kind)) else {
        return Err(wrong_length);
    };
    match kind {
        info::EXPORT => {
            let Ok(told) = nbd::InfoExport::read_from_bytes(data) else { return Err(wrong_length) };
            *export = Some((told.size.get(), told.flags.get()));
        }
        info::BLOCK_SIZE => {
            let Ok(told) = nbd::InfoBlockSize::read_from_bytes(data) else { return Err(wrong_length) };
            *sizes = Some((told.minimum.get(), told.preferred.get(), told.payload_max.get()));
        }
        // A name, a description, or what a later version of the protocol tells.
        _ => {}
    }
    Ok(())
}

fn refusal(kind: u32, data: &[u8]) -> HandshakeError {
    let text = String::from_utf8_lossy(data);
    let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect();
    match kind {
        reply::ERR_UNKNOWN => HandshakeError::NoExport(text),
        reply::ERR_TLS_REQD => HandshakeError::Tls,
        reply::ERR_SHUTDOWN => HandshakeError::ShuttingDown,
        reply::ERR_UNSUP => HandshakeError::Protocol("it does not know NBD_OPT_GO"),
        _ if text.is_empty() => HandshakeError::Refused(format!("answer {kind:#x}")),
        _ => HandshakeError::Refused(text),
    }
}

fn checked(bytes: u64, flags: u16, sizes: BlockSizes) -> Result<ExportInfo, HandshakeError> {
    if flags & flag::HAS_FLAGS == 0 {
        return Err(HandshakeError::Protocol("it does not tell what the export can do"));
    }
    if i64::try_from(bytes).is_err() {
        return Err(HandshakeError::Protocol("it tells an impossible size of the export"));
    }
    let (block_min, preferred, payload_max) =
        sizes.unwrap_or((BLOCK_MIN_UNTOLD, BLOCK_MIN_UNTOLD, PAYLOAD_MAX_UNTOLD));
    let is_possible = block_min.is_power_of_two()
        && block_min <= BLOCK_MIN_MAX
        && preferred.is_power_of_two()
        && preferred >= block_min
        && payload_max >= preferred;
    if !is_possible {
        return Err(HandshakeError::Protocol("it tells impossible block sizes"));
    }
    Ok(ExportInfo { bytes, flags, block_min, payload_max })
}

fn read_as<T: FromBytes + IntoBytes>(stream: &mut impl Read) -> io::Result<T> {
    let mut value = T::new_zeroed();
    stream.read_exact(value.as_mut_bytes())?;
    Ok(value)
}
