//! `blockwire scsi` and `blockwire nvme`: commands of the caller's own, as sg_raw and `nvme admin-passthru` send them.
//!
//! Invariant: data that came is printed or written, and no byte beyond it; an output file is touched only after the
//! target's answer.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use client::{NvmeCommand, RAW_DATA_MAX, RawAnswer, RawData, Settings, VolumeHandle};

use super::{create_initiator, json_text, print};
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::RawAnswerReport;
use transfer::local_path::LocalPath;

/// What holds for every raw command.
const RAW_HELP: &str = "\
The command is sent once, by one path, and is not retried; its answer is shown as it is. It takes at most \
command_timeout of the URL (30s), is then aborted, and exits with 33. A status that is not success exits with 1.";

/// `scsi`
#[derive(Debug, Args)]
#[command(after_help = format!("{RAW_HELP}
A unit attention is an answer too: the command was not done.

Examples, INQUIRY, and MODE SELECT of a list in a file:
  blockwire scsi iscsi://10.0.0.1/iqn.2026-11.x:db/0 -r 96 12 00 00 00 60 00
  blockwire scsi iscsi://10.0.0.1/iqn.2026-11.x:db/0 -s 24 -i list \\
    15 10 00 00 18 00"))]
pub struct ScsiArgs {
    /// The volume, over iSCSI
    pub url: SecretUrl,
    /// The CDB: 6 to 260 bytes in hexadecimal
    #[arg(required = true, value_name = "CDB", value_parser = parse_hex_byte)]
    pub cdb: Vec<u8>,
    /// Bytes to receive from the target
    #[arg(long, short = 'r', value_name = "LENGTH", value_parser = parse_data_len, conflicts_with = "send")]
    pub request: Option<usize>,
    /// Bytes to send to the target
    #[arg(long, short = 's', value_name = "LENGTH", value_parser = parse_data_len)]
    pub send: Option<usize>,
    /// File with the bytes to send [default: standard input]
    #[arg(long, short = 'i', value_name = "FILE", requires = "send")]
    pub infile: Option<PathBuf>,
    /// File for the bytes received
    #[arg(long, short = 'o', value_name = "FILE", requires = "request")]
    pub outfile: Option<PathBuf>,
    /// Write the bytes received to standard output, and nothing else
    #[arg(long, short = 'b', requires = "request", conflicts_with_all = ["outfile", "json"])]
    pub binary: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Verbs of `nvme`.
#[derive(Debug, Subcommand)]
pub enum NvmeVerb {
    /// Send a command by the admin queue
    #[command(after_help = format!("{RAW_HELP}
What the path itself needs is refused: Fabrics commands, queues, Keep Alive, events, Abort.

Example, Identify Controller:
  blockwire nvme admin-passthru nvme+tcp://10.0.0.1/nqn.2026-11.x:db/1 \\
    --opcode 0x06 --cdw10 1 --data-len 4096 --read"))]
    AdminPassthru(PassthruArgs),
    /// Send a command by an I/O queue
    #[command(after_help = format!("{RAW_HELP}
Without --namespace-id it is for the namespace of the URL.

Example, Read of the first block of 512 bytes:
  blockwire nvme io-passthru nvme+tcp://10.0.0.1/nqn.2026-11.x:db/1 \\
    --opcode 0x02 --data-len 512 --read"))]
    IoPassthru(PassthruArgs),
}

/// `nvme admin-passthru` and `nvme io-passthru`
#[derive(Debug, Args)]
pub struct PassthruArgs {
    /// The volume, over NVMe/TCP
    pub url: SecretUrl,
    /// The opcode; numbers are decimal, or 0x and hexadecimal
    #[arg(long, short = 'o', value_parser = parse_number::<u8>)]
    pub opcode: u8,
    /// Command flags: FUSE, which must be 0
    #[arg(long, short = 'f', value_parser = parse_number::<u8>, default_value = "0")]
    pub flags: u8,
    /// The namespace
    #[arg(long, short = 'n', value_parser = parse_number::<u32>, default_value = "0")]
    pub namespace_id: u32,
    /// Bytes of data
    #[arg(long, short = 'l', value_name = "LENGTH", value_parser = parse_data_len, default_value = "0")]
    pub data_len: usize,
    /// Command dword 2
    #[arg(long, short = '2', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw2: u32,
    /// Command dword 3
    #[arg(long, short = '3', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw3: u32,
    /// Command dword 10
    #[arg(long, short = '4', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw10: u32,
    /// Command dword 11
    #[arg(long, short = '5', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw11: u32,
    /// Command dword 12
    #[arg(long, short = '6', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw12: u32,
    /// Command dword 13
    #[arg(long, short = '7', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw13: u32,
    /// Command dword 14
    #[arg(long, short = '8', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw14: u32,
    /// Command dword 15
    #[arg(long, short = '9', value_parser = parse_number::<u32>, default_value = "0")]
    pub cdw15: u32,
    /// File with the bytes to send [default: standard input]
    #[arg(long, short = 'i', value_name = "FILE")]
    pub input_file: Option<PathBuf>,
    /// Data comes from the controller
    #[arg(long, short = 'r', conflicts_with_all = ["write", "input_file"])]
    pub read: bool,
    /// Data goes to the controller
    #[arg(long, short = 'w')]
    pub write: bool,
    /// Write the bytes received to standard output, and nothing else
    #[arg(long, short = 'b', conflicts_with = "json")]
    pub raw_binary: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_hex_byte(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let byte = u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() <= 2 && !digits.starts_with('+'));
    byte.ok_or_else(|| "a byte of a CDB is one or two hexadecimal digits, for example 12 or a0".to_owned())
}

fn parse_number<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.map_err(|_| "a number is decimal, or 0x and hexadecimal".to_owned())?;
    N::try_from(number).map_err(|_| format!("{text} does not fit its field"))
}

fn parse_data_len(text: &str) -> Result<usize, String> {
    match parse_number::<u64>(text)? {
        len if len <= RAW_DATA_MAX as u64 => Ok(len as usize),
        _ => Err(format!("a raw command has at most {RAW_DATA_MAX} bytes of data")),
    }
}

/// As many bytes as are sent.
fn read_input(path: Option<&Path>, len: usize) -> Result<Vec<u8>, Failure> {
    let name = path.map_or("standard input".to_owned(), |path| path.display().to_string());
    let failed = |why: io::Error| Failure::failed(format!("{name}: {why}"));
    let mut data = Vec::new();
    let mut input: Box<dyn Read> = match path {
        Some(path) => Box::new(File::open(path).map_err(failed)?),
        None if io::stdin().is_terminal() => {
            return Err(Failure::usage("the bytes would come from the terminal: name a file, or use a pipe"));
        }
        None => Box::new(io::stdin().lock()),
    };
    input.by_ref().take(len as u64).read_to_end(&mut data).map_err(failed)?;
    match data.len() == len {
        true => Ok(data),
        false => Err(Failure::usage(format!("{name} has {} bytes, and {len} are to be sent", data.len()))),
    }
}

/// The bytes as people read them: offset, hexadecimal, characters.
fn hex_dump(data: &[u8]) -> String {
    let mut text = String::new();
    for (row, bytes) in data.chunks(16).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown =
            |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let characters: String = bytes.iter().map(shown).collect();
        let _ = writeln!(text, "{:06x}  {:<47}  {characters}", row * 16, hex.join(" "));
    }
    text
}

fn answer_json(answer: &RawAnswer, data: Option<&[u8]>) -> String {
    match RawAnswerReport::of(answer, data) {
        RawAnswerReport::Scsi(report) => json_text(&report),
        RawAnswerReport::Nvme(report) => json_text(&report),
    }
}

/// Where data that came goes to.
enum Output<'a> {
    /// It is shown.
    Text,
    Json,
    Binary,
    /// Looked at, and not touched yet; whether the answer beside it is JSON.
    File {
        place: LocalPath,
        path: &'a Path,
        json: bool,
    },
}

/// Shows an answer, with as much of `data` as came.
fn show(answer: &RawAnswer, data: Option<&[u8]>, output: Output<'_>) -> Result<Exit, Failure> {
    let came = match answer {
        RawAnswer::Scsi { transferred, .. } | RawAnswer::Nvme { transferred, .. } => *transferred as usize,
    };
    let data = data.map(|data| &data[..came.min(data.len())]);
    let bytes = data.unwrap_or_default();
    match output {
        Output::Text => print(&format!("{answer}\n{}", hex_dump(bytes)))?,
        Output::Json => print(&answer_json(answer, data))?,
        Output::Binary => {
            let wrote = io::stdout().write_all(bytes).and_then(|()| io::stdout().flush());
            wrote.map_err(|why| Failure::failed(format!("output: {why}")))?;
            eprint_answer(answer);
        }
        Output::File { place, path, json } => {
            // Without an answer of success there is nothing to keep, and what was there stays.
            if answer.is_success() {
                let (mut file, _) = place.open_truncated(0)?;
                file.write_all(bytes).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
            }
            print(&if json { answer_json(answer, None) } else { format!("{answer}\n") })?;
        }
    }
    Ok(if answer.is_success() { Exit::Success } else { Exit::Failure })
}

fn eprint_answer(answer: &RawAnswer) {
    if !answer.is_success() {
        process::log::write_stderr(&format!("blockwire: {answer}\n"));
    }
}

/// Opens the volume, sends one command, and ends the session.
fn run_once(
    url: &str,
    command: impl FnOnce(&mut client::Initiator, VolumeHandle) -> Result<RawAnswer, client::Error>,
) -> Result<RawAnswer, Failure> {
    let mut initiator = create_initiator(Settings::default())?;
    let volume = initiator.open(url)?;
    let answer = command(&mut initiator, volume);
    // What was answered was done, however the session ends.
    let closed = initiator.close(volume);
    let answer = answer?;
    closed?;
    Ok(answer)
}

/// Sends a CDB.
pub fn scsi(args: &ScsiArgs) -> Result<Exit, Failure> {
    let output = match &args.outfile {
        Some(path) => Output::File { place: LocalPath::inspect(path, false)?, path, json: args.json },
        None if args.binary => Output::Binary,
        None if args.json => Output::Json,
        None => Output::Text,
    };
    let sent = args.send.map(|len| read_input(args.infile.as_deref(), len)).transpose()?;
    let mut room = args.request.map(|len| vec![0; len]);
    let answer = run_once(&args.url, |initiator, volume| {
        let data = match (&sent, &mut room) {
            (Some(sent), _) => RawData::Out(sent),
            (None, Some(room)) => RawData::In(room),
            (None, None) => RawData::None,
        };
        initiator.scsi(volume, &args.cdb, data)
    })?;
    show(&answer, room.as_deref(), output)
}

/// Sends an NVMe command.
pub fn nvme(verb: &NvmeVerb) -> Result<Exit, Failure> {
    let (args, is_admin) = match verb {
        NvmeVerb::AdminPassthru(args) => (args, true),
        NvmeVerb::IoPassthru(args) => (args, false),
    };
    let to_controller = args.opcode & 3 == 1;
    if args.data_len > 0 && (args.read && to_controller || args.write && !to_controller) {
        let way = if to_controller { "to the controller (--write)" } else { "from the controller (--read)" };
        return Err(Failure::usage(format!("data of opcode {:#04x} goes {way}", args.opcode)));
    }
    if args.data_len > 0 && !args.read && !args.write {
        return Err(Failure::usage("with --data-len, say --read or --write"));
    }
    let command = NvmeCommand {
        opcode: args.opcode,
        flags: args.flags,
        nsid: args.namespace_id,
        cdw2: [args.cdw2, args.cdw3],
        cdw10: [args.cdw10, args.cdw11, args.cdw12, args.cdw13, args.cdw14, args.cdw15],
    };
    let sent = match args.write && args.data_len > 0 {
        true => Some(read_input(args.input_file.as_deref(), args.data_len)?),
        false => None,
    };
    let mut room = (args.read && args.data_len > 0).then(|| vec![0; args.data_len]);
    let answer = run_once(&args.url, |initiator, volume| {
        let data = match (&sent, &mut room) {
            (Some(sent), _) => RawData::Out(sent),
            (None, Some(room)) => RawData::In(room),
            (None, None) => RawData::None,
        };
        match is_admin {
            true => initiator.nvme_admin(volume, command, data),
            false => initiator.nvme_io(volume, command, data),
        }
    })?;
    let output = match (args.raw_binary, args.json) {
        (true, _) => Output::Binary,
        (false, true) => Output::Json,
        (false, false) => Output::Text,
    };
    show(&answer, room.as_deref(), output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_cdb_are_hexadecimal_and_numbers_of_nvme_are_not() {
        assert_eq!(parse_hex_byte("12"), Ok(0x12));
        assert_eq!(parse_hex_byte("0xfF"), Ok(0xff));
        assert!(["", "100", "0x", "g1", "+1", "-1"].iter().all(|text| parse_hex_byte(text).is_err()));
        assert_eq!(parse_number::<u8>("0x06"), Ok(6));
        assert_eq!(parse_number::<u32>("12"), Ok(12));
        assert!(parse_number::<u8>("256").is_err() && parse_number::<u32>("ff").is_err());
        assert!(parse_data_len("4194305").is_err() && parse_data_len("0x1000") == Ok(4096));
    }

    #[test]
    fn a_dump_shows_offset_bytes_and_characters() {
        let bytes: Vec<u8> = (0x30..0x41).collect();
        let lines = "000000  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f  0123456789:;<=>?\n\
                     000010  40                                               @\n";
        assert_eq!(hex_dump(&bytes), lines);
        assert_eq!(hex_dump(&[]), "");
    }
}
