//! tshark as a second opinion on a capture of iSCSI or NVMe/TCP traffic.
//!
//! tshark dissects the capture. For each direction of each TCP connection, this check adds up the lengths of
//! the PDUs (48 bytes, additional header segments, data padded to four bytes, digests: RFC 7143 §11.2; over
//! NVMe/TCP PLEN includes all of it, NVMe-TCP §3.6.2) and compares the sum with the bytes that TCP carried.
//! One byte outside of a dissected PDU makes them differ. Malformed packets and expert errors are findings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Report;

const USAGE: &str = "capture --pcap FILE --port PORT [--protocol iscsi|nvme]";
const BASIC_HEADER_SEGMENT: u64 = 48;
/// Task Management Function Response: tshark shows no lengths for it, it has no further segments.
const TASK_MANAGEMENT_RESPONSE: u64 = 0x22;

/// What is spoken in a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Dialect {
    #[default]
    Iscsi,
    Nvme,
}

impl Dialect {
    fn fields(self) -> impl Iterator<Item = &'static &'static str> {
        TCP_FIELDS.iter().chain(match self {
            Dialect::Iscsi => ISCSI_FIELDS,
            Dialect::Nvme => NVME_FIELDS,
        })
    }

    /// tshark's name for it, and how it is to dissect it.
    fn dissector(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Dialect::Iscsi => {
                ("iscsi", &["iscsi.desegment_iscsi_messages:TRUE", "iscsi.bogus_pdu_max_data_len:16777216"])
            }
            Dialect::Nvme => ("nvme-tcp", &["nvme-tcp.check_hdgst:TRUE", "nvme-tcp.check_ddgst:TRUE"]),
        }
    }
}

/// PDUs of NVMe/TCP: their lengths, digests included, and what tshark thinks of the digests.
const NVME_FIELDS: &[&str] = &["nvme-tcp.plen", "nvme-tcp.hdgst.status", "nvme-tcp.ddgst.status"];
/// Of the status fields: the digest is what it should be.
const DIGEST_GOOD: u64 = 1;

const TCP_FIELDS: &[&str] = &[
    "frame.number",
    "tcp.stream",
    "tcp.srcport",
    "tcp.seq",
    "tcp.len",
    "tcp.flags.syn",
    "tcp.flags.reset",
    "tcp.analysis.lost_segment",
];
const ISCSI_FIELDS: &[&str] = &[
    "iscsi.opcode",
    "iscsi.totalahslength",
    "iscsi.datasegmentlength",
    "iscsi.headerdigest32",
    "iscsi.datadigest32",
];

/// Runs tshark over the capture and checks what it says.
pub fn check(args: &[String]) -> Result<Report, String> {
    let mut pcap = None;
    let mut port = None;
    let mut dialect = Dialect::Iscsi;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--pcap" => pcap = args.next().map(PathBuf::from),
            "--port" => port = args.next().and_then(|text| text.parse::<u16>().ok()),
            "--protocol" => {
                dialect = match args.next().map(String::as_str) {
                    Some("iscsi") => Dialect::Iscsi,
                    Some("nvme") => Dialect::Nvme,
                    _ => return Err(USAGE.to_owned()),
                }
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    let (pcap, port) = (pcap.ok_or(USAGE)?, port.ok_or(USAGE)?);
    let fields: Vec<&str> = dialect.fields().copied().collect();
    let frames = tshark(&pcap, port, dialect, None, &fields)?;
    let mut streams = Streams { dialect, ..Streams::default() };
    for line in frames.lines() {
        streams.take(line).map_err(|problem| format!("{problem} in tshark's line: {line}"))?;
    }
    let suspects = "_ws.malformed || _ws.expert.severity == \"Error\"";
    let suspects = tshark(&pcap, port, dialect, Some(suspects), SUSPECT_FIELDS)?;
    let mut findings = streams.findings();
    findings.extend(suspects.lines().filter_map(suspicion));
    if streams.pdus == 0 {
        findings.push("no PDU in the capture".to_owned());
    }
    let summary = format!(
        "{} PDUs, {} digests, {} bytes, {} connections",
        streams.pdus,
        streams.digests,
        streams.ways.values().map(|way| way.end.saturating_sub(1)).sum::<u64>(),
        streams.ways.len().div_ceil(2)
    );
    Ok(Report { findings, notes: streams.notes(), summary })
}

fn tshark(
    pcap: &Path,
    port: u16,
    dialect: Dialect,
    filter: Option<&str>,
    fields: &[&str],
) -> Result<String, String> {
    let (protocol, preferences) = dialect.dissector();
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(pcap);
    command.args(["-d", &format!("tcp.port=={port},{protocol}")]);
    let common = [
        "tcp.desegment_tcp_streams:TRUE",
        "tcp.relative_sequence_numbers:TRUE",
        "tcp.reassemble_out_of_order:TRUE",
    ];
    for preference in common.iter().chain(preferences) {
        command.args(["-o", preference]);
    }
    let ours = format!("tcp.port == {port}");
    let filter = filter.map_or(ours.clone(), |filter| format!("{ours} && ({filter})"));
    command.args(["-Y", &filter, "-T", "fields", "-E", "occurrence=a"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().map_err(|error| format!("tshark: {error}"))?;
    if !output.status.success() {
        return Err(format!("tshark: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const SUSPECT_FIELDS: &[&str] =
    &["frame.number", "_ws.malformed", "_ws.expert.message", "iscsi.scsidata.U", "iscsi.scsiresponse.U"];

/// What is wrong with a frame that tshark complains of.
///
/// Parameter data that the allocation length cut short looks malformed to the SCSI dissector; then
/// the reply filled what was asked for, and no residual underflow is shown.
fn suspicion(line: &str) -> Option<String> {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[frame, malformed, message, data_in, response] = columns.as_slice() else {
        return Some(format!("tshark's line: {line}"));
    };
    let underflow = [data_in, response].iter().any(|flags| flags.contains('1'));
    let cut_short = malformed.contains("SCSI") && !malformed.contains("iSCSI") && !underflow;
    (!cut_short).then(|| format!("frame {frame}: {malformed} {message}"))
}

/// One direction of one TCP connection.
#[derive(Debug, Default)]
struct Way {
    /// Relative sequence number behind the last byte; the first byte has number 1.
    end: u64,
    /// Bytes of all PDUs that were dissected.
    dissected: u64,
    syn_seen: bool,
}

#[derive(Debug, Default)]
struct Streams {
    ways: BTreeMap<(u64, u64), Way>,
    /// Connections that ended by a reset, from whichever side.
    reset: BTreeSet<u64>,
    lost: u64,
    pdus: u64,
    dialect: Dialect,
    digests: u64,
    wrong_digests: Vec<String>,
}

impl Streams {
    /// Takes one line of tshark's table: the columns are `FIELDS`.
    fn take(&mut self, line: &str) -> Result<(), String> {
        let columns: Vec<&str> = line.split('\t').collect();
        let fields: Vec<&str> = self.dialect.fields().copied().collect();
        if columns.len() != fields.len() {
            return Err(format!("{} columns", columns.len()));
        }
        let numbers = |index: usize| -> Result<Vec<u64>, String> {
            columns[index].split(',').filter(|text| !text.is_empty()).map(number).collect()
        };
        let one = |index: usize| -> Result<u64, String> {
            numbers(index)?.first().copied().ok_or(format!("no {}", fields[index]))
        };
        let way = self.ways.entry((one(1)?, one(2)?)).or_default();
        if one(4)? > 0 {
            way.end = way.end.max(one(3)? + one(4)?);
        }
        way.syn_seen |= one(5)? != 0;
        if one(6)? != 0 {
            self.reset.insert(one(1)?);
        }
        self.lost += u64::from(!columns[7].is_empty());
        match self.dialect {
            Dialect::Iscsi => {
                let opcodes = numbers(8)?;
                let lengths = pdu_bytes(&opcodes, &numbers(9)?, &numbers(10)?)?;
                let digests = (numbers(11)?.len() + numbers(12)?.len()) as u64;
                way.dissected += lengths + 4 * digests;
                self.digests += digests;
                self.pdus += opcodes.len() as u64;
            }
            Dialect::Nvme => {
                let lengths = numbers(8)?;
                way.dissected += lengths.iter().sum::<u64>();
                self.pdus += lengths.len() as u64;
                let statuses = [numbers(9)?, numbers(10)?].concat();
                self.digests += statuses.len() as u64;
                if statuses.iter().any(|status| *status != DIGEST_GOOD) {
                    self.wrong_digests.push(format!("frame {}: a digest is wrong", columns[0]));
                }
            }
        }
        Ok(())
    }

    fn findings(&self) -> Vec<String> {
        let mut findings = self.wrong_digests.clone();
        for ((stream, port), way) in &self.ways {
            let carried = way.end.saturating_sub(1);
            if !way.syn_seen {
                findings.push(format!("connection {stream} from port {port}: no start captured"));
            } else if way.dissected > carried || (way.dissected < carried && !self.reset.contains(stream)) {
                findings.push(format!(
                    "connection {stream} from port {port}: {carried} bytes, {} of them in PDUs",
                    way.dissected
                ));
            }
        }
        if !findings.is_empty() && self.lost > 0 {
            findings.push(format!("tshark misses {} segments of the capture", self.lost));
        }
        findings
    }

    fn notes(&self) -> Vec<String> {
        self.ways
            .iter()
            .filter(|((stream, _), way)| self.reset.contains(stream) && way.dissected + 1 < way.end)
            .map(|((stream, port), way)| {
                format!(
                    "connection {stream} from port {port} was reset {} bytes into a PDU",
                    way.end - 1 - way.dissected
                )
            })
            .collect()
    }
}

/// Bytes of the PDUs of one frame, without digests. `ahs` counts four-byte words.
fn pdu_bytes(opcodes: &[u64], ahs: &[u64], data: &[u64]) -> Result<u64, String> {
    let with_lengths = opcodes.iter().filter(|opcode| **opcode != TASK_MANAGEMENT_RESPONSE).count();
    if ahs.len() != data.len() || (data.len() != with_lengths && data.len() != opcodes.len()) {
        return Err(format!("{} opcodes, {} lengths", opcodes.len(), data.len()));
    }
    let headers = BASIC_HEADER_SEGMENT * opcodes.len() as u64;
    let additional: u64 = ahs.iter().map(|words| 4 * words).sum();
    let payload: u64 = data.iter().map(|length| length.next_multiple_of(4)).sum();
    Ok(headers + additional + payload)
}

fn number(text: &str) -> Result<u64, String> {
    match (text, text.strip_prefix("0x")) {
        ("True", _) => Ok(1),
        ("False", _) => Ok(0),
        (_, Some(hex)) => u64::from_str_radix(hex, 16).map_err(|error| format!("{text}: {error}")),
        (_, None) => text.parse().map_err(|error| format!("{text}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(lines: &[&str]) -> Vec<String> {
        let mut streams = Streams::default();
        for line in lines {
            streams.take(line).unwrap();
        }
        streams.findings()
    }

    #[test]
    fn whole_pdus_pass() {
        // A SYN, a frame with two PDUs (5 bytes of data padded to 8), one with digests.
        let found = findings(&[
            "1\t0\t50000\t0\t0\t1\t0\t\t\t\t\t\t",
            "2\t0\t50000\t1\t104\t0\t0\t\t0x01,0x00\t0,0\t5,0\t\t",
            "3\t0\t50000\t105\t60\t0\t0\t\t0x01\t0\t3\t0x1\t0x2",
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn nvme_pdus_count_by_their_length_and_wrong_digests_are_found() {
        let mut streams = Streams { dialect: Dialect::Nvme, ..Streams::default() };
        for line in [
            "1\t0\t50000\t0\t0\t1\t0\t\t\t\t",
            "2\t0\t50000\t1\t204\t0\t0\t\t128,76\t1\t",
            "3\t0\t50000\t205\t104\t0\t0\t\t104\t1\t0",
        ] {
            streams.take(line).unwrap();
        }
        assert_eq!(streams.findings(), ["frame 3: a digest is wrong"]);
        assert_eq!((streams.pdus, streams.digests), (3, 3));
        streams.take("4\t0\t50000\t309\t9\t0\t0\t\t8\t\t").unwrap();
        assert_eq!(streams.findings()[1], "connection 0 from port 50000: 317 bytes, 316 of them in PDUs");
    }

    #[test]
    fn the_number_that_a_fin_takes_is_no_byte() {
        let found = findings(&[
            "1\t0\t50000\t0\t0\t1\t0\t\t\t\t\t\t",
            "2\t0\t50000\t1\t48\t0\t0\t\t0x00\t0\t0\t\t",
            "3\t0\t50000\t50\t0\t0\t0\t\t\t\t\t\t",
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_byte_outside_of_pdus_is_found() {
        let found =
            findings(&["1\t0\t50000\t0\t0\t1\t0\t\t\t\t\t\t", "2\t0\t50000\t1\t49\t0\t0\t\t0x00\t0\t0\t\t"]);
        assert_eq!(found, ["connection 0 from port 50000: 49 bytes, 48 of them in PDUs"]);
    }

    #[test]
    fn a_reset_may_cut_a_pdu_but_nothing_else_may() {
        let cut = [
            "1\t0\t50000\t0\t0\t1\t0\t\t\t\t\t\t",
            "2\t0\t50000\t1\t20\t0\t0\t\t\t\t\t\t",
            "3\t0\t3260\t1\t0\t1\t1\t\t\t\t\t\t",
        ];
        assert!(findings(&cut).is_empty());
        assert_eq!(findings(&cut[..2]).len(), 1);
    }

    #[test]
    fn a_lost_segment_explains_a_finding() {
        let found = findings(&[
            "1\t0\t50000\t0\t0\t1\t0\t\t\t\t\t\t",
            "2\t0\t50000\t49\t48\t0\t0\t1\t0x00\t0\t0\t\t",
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn parameter_data_cut_by_the_allocation_length_is_no_finding() {
        assert_eq!(suspicion("7\tMalformed Packet: SCSI\texception\t0\t"), None);
        assert!(suspicion("7\tMalformed Packet: SCSI\texception\t1\t").is_some());
        assert!(suspicion("7\tMalformed Packet: iSCSI\texception\t\t").is_some());
        assert!(suspicion("7\t\tsomething else\t\t").is_some());
    }

    #[test]
    fn a_task_management_response_has_no_lengths() {
        assert_eq!(pdu_bytes(&[0x22, 0x21], &[0], &[10]), Ok(108));
        assert!(pdu_bytes(&[0x21], &[], &[]).is_err());
    }
}
