//! Raw commands: what a program says in a CDB or a submission queue entry of its own, for what has no operation.
//!
//! A raw command goes to its target once, by one path, and its answer comes back as it is: it is not retried, not
//! cut into pieces and not ordered against operations. What would break the state that a path keeps (its queues, its
//! timers, its events) is refused here, by name.
//!
//! Invariant: a [`RawCommand`] that was made has data of the direction and length that its protocol can say.

use std::fmt;

use buf::Payload;
use iscsi::session::Cdb;
use nvme::feature::FeatureId;
use nvme::{Direction, Opcode, Sqe, admin};
use scsi::Command;
use scsi::cdb::DataTransfer;
use scsi::sense::{DecodedSense, Sense};
use volume::IoId;

/// Longest data of a raw command, in bytes.
pub const RAW_DATA_MAX: usize = 4 << 20;
/// Most raw commands of a volume that wait or are in work.
pub const RAW_COMMANDS_MAX: usize = 32;
/// The longest CDB (RFC 7143 §11.2.2.3).
pub const CDB_LEN_MAX: usize = 260;

/// The fields of a submission queue entry that are the caller's (NVMe Base §3.3.3.1). The identifier and the data
/// pointer are the queue's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeCommand {
    /// Opcode. Its low two bits say which way data goes.
    pub opcode: u8,
    /// FUSE in bits 1:0; the rest is the queue's.
    pub flags: u8,
    /// The namespace. 0 in an I/O command: that of the volume.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub cdw2: [u32; 2],
    /// Command dwords 10 to 15.
    pub cdw10: [u32; 6],
}

/// What is said, in the words of its protocol.
#[derive(Clone, Debug)]
pub(crate) enum RawBody {
    Scsi(Cdb),
    NvmeAdmin(Box<Sqe>),
    NvmeIo(Box<Sqe>),
}

/// A raw command with its memory. See the module.
#[derive(Debug)]
pub struct RawCommand {
    pub(crate) body: RawBody,
    pub(crate) payload: Payload,
    /// It changes nothing.
    pub(crate) only_reads: bool,
    /// It changes registrations or reservations.
    pub(crate) changes_reservations: bool,
}

/// Why a raw command is not sent. The caller's mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawRefusal {
    /// A CDB of so many bytes, of this opcode, which has at least so many.
    CdbLength {
        /// Bytes that were given.
        len: usize,
        /// The opcode, if there is one.
        opcode: u8,
        /// Bytes that it has.
        least: usize,
    },
    /// More data than [`RAW_DATA_MAX`].
    DataLength(usize),
    /// Data goes the other way, or there is none.
    DataDirection {
        /// The opcode.
        opcode: u8,
        /// Which way it goes.
        wanted: Direction,
    },
    /// Data would go both ways at once.
    Bidirectional(u8),
    /// Half of a fused pair.
    Fused,
    /// It would break what the path keeps: its name, and what does it instead.
    Reserved {
        /// In the standard's words.
        command: &'static str,
        /// Whose it is, and what to do.
        instead: &'static str,
    },
}

impl fmt::Display for RawRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawRefusal::CdbLength { len: 0, .. } => f.write_str("a CDB has 6 to 260 bytes, and none was given"),
            RawRefusal::CdbLength { len, .. } if *len > CDB_LEN_MAX => {
                write!(f, "a CDB of {len} bytes: iSCSI carries at most {CDB_LEN_MAX}")
            }
            RawRefusal::CdbLength { len, opcode, least } => {
                write!(f, "a CDB of {len} bytes: one of operation code {opcode:02x}h has {least}")
            }
            RawRefusal::DataLength(len) => {
                write!(f, "{len} bytes of data: a raw command has at most {RAW_DATA_MAX}")
            }
            RawRefusal::DataDirection { opcode, wanted } => {
                let wanted = match wanted {
                    Direction::None => "moves no data",
                    Direction::ToController => "takes data from the host",
                    Direction::ToHost => "gives data to the host",
                    Direction::Both => "moves data both ways",
                };
                write!(f, "operation code {opcode:02x}h {wanted}: what was given does not fit that")
            }
            RawRefusal::Bidirectional(opcode) => {
                write!(f, "operation code {opcode:02x}h moves data both ways, which is not supported")
            }
            RawRefusal::Fused => f.write_str(
                "a fused command: both must stand side by side in one queue; compare and write is an operation of \
                 the volume",
            ),
            RawRefusal::Reserved { command, instead } => write!(f, "{command} is refused: {instead}"),
        }
    }
}

impl std::error::Error for RawRefusal {}

/// What the target answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawAnswer {
    /// A SCSI command.
    Scsi {
        /// Status (SAM-5 §5.3.1); 0 is GOOD.
        status: u8,
        /// Sense data, for CHECK CONDITION.
        sense: Vec<u8>,
        /// Bytes of data that moved, as the initiator counts them.
        transferred: u32,
        /// Bytes of the memory that the command had no use for.
        underflow: u32,
        /// Bytes that the command had and the memory no room for.
        overflow: u32,
    },
    /// An NVMe command.
    Nvme {
        /// Status field of the completion, without the phase: code in bits 7:0, type in 10:8, retry delay in 12:11,
        /// more in 13, do not retry in 14. 0 is success.
        status: u16,
        /// Dwords 0 (low) and 1 of the completion.
        result: u64,
        /// Bytes of data that came, or that the controller took.
        transferred: u32,
    },
}

impl RawAnswer {
    /// Whether the target says that it has done it.
    pub fn is_success(&self) -> bool {
        match self {
            RawAnswer::Scsi { status, .. } => *status == 0,
            RawAnswer::Nvme { status, .. } => *status == 0,
        }
    }
}

/// The statuses of SAM-5 §5.3.1.
const SCSI_STATUSES: [(u8, &str); 9] = [
    (0x00, "GOOD"),
    (0x02, "CHECK CONDITION"),
    (0x04, "CONDITION MET"),
    (0x08, "BUSY"),
    (0x18, "RESERVATION CONFLICT"),
    (0x28, "TASK SET FULL"),
    (0x30, "ACA ACTIVE"),
    (0x40, "TASK ABORTED"),
    (0x22, "COMMAND TERMINATED"),
];

/// The sense keys of SPC-4 §4.5.6.
const SENSE_KEYS: [&str; 16] = [
    "NO SENSE",
    "RECOVERED ERROR",
    "NOT READY",
    "MEDIUM ERROR",
    "HARDWARE ERROR",
    "ILLEGAL REQUEST",
    "UNIT ATTENTION",
    "DATA PROTECT",
    "BLANK CHECK",
    "VENDOR SPECIFIC",
    "COPY ABORTED",
    "ABORTED COMMAND",
    "reserved sense key",
    "VOLUME OVERFLOW",
    "MISCOMPARE",
    "COMPLETED",
];

/// In the standards' words.
impl fmt::Display for RawAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawAnswer::Scsi { status, sense, overflow, .. } => {
                match SCSI_STATUSES.iter().find(|(code, _)| code == status) {
                    Some((_, name)) => f.write_str(name)?,
                    None => write!(f, "status {status:02x}h")?,
                }
                if let Some(DecodedSense { sense, deferred }) = Sense::decode(sense) {
                    let key =
                        SENSE_KEYS.get(usize::from(sense.key.0)).copied().unwrap_or("unknown sense key");
                    let (code, qualifier) = (sense.code.code(), sense.code.qualifier());
                    write!(f, ": {key}, additional sense {code:02x}h/{qualifier:02x}h")?;
                    if deferred {
                        f.write_str(", of an earlier command")?;
                    }
                }
                match overflow {
                    0 => Ok(()),
                    bytes => write!(f, "; {bytes} bytes more than there was room for"),
                }
            }
            RawAnswer::Nvme { status: 0, result, .. } => write!(f, "success, result {result:#x}"),
            RawAnswer::Nvme { status, result, .. } => {
                let (kind, code) = (status >> 8 & 7, status & 0xff);
                let again = if status & 1 << 14 != 0 { ", do not retry" } else { "" };
                write!(f, "status type {kind:x}h, code {code:02x}h{again}, result {result:#x}")
            }
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawError {
    /// It was not sent: no path of its protocol served in time, or the connection was lost before.
    NotSent,
    /// The target refused the PDU: it was not done.
    Rejected,
    /// The connection was lost after it was sent: whether it was done is not known.
    InDoubt,
    /// It took longer than the time of a command and was aborted: a part may have been done.
    TimedOut,
    /// The caller, or another host, ended it: a part may have been done.
    Aborted,
    /// Its data was damaged on the way, or some is missing: it was done all the same.
    Damaged,
    /// The target ended it without a status: a part may have been done.
    NoStatus,
    /// The volume has no path of its protocol.
    WrongProtocol,
    /// The volume is a stripe or on this machine: there is no target to ask.
    NoTarget,
    /// It may write, and the volume was opened read-only.
    ReadOnly,
    /// It changes reservations, and those of this volume are kept for the caller on all paths.
    ReservationsKept,
}

impl fmt::Display for RawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RawError::NotSent => "it was not sent: no path served in time",
            RawError::Rejected => "the target refused the PDU; it was not done",
            RawError::InDoubt => "the connection was lost: whether it was done is not known",
            RawError::TimedOut => {
                "it took longer than command_timeout and was aborted; a part of it may have been done"
            }
            RawError::Aborted => "it was aborted; a part of it may have been done",
            RawError::Damaged => "its data was damaged on the way, or some of it is missing",
            RawError::NoStatus => "the target ended it without a status; a part of it may have been done",
            RawError::WrongProtocol => {
                "the volume has no path of this protocol: SCSI commands go over iSCSI, NVMe commands over NVMe/TCP"
            }
            RawError::NoTarget => "only a volume with a URL has a target to ask; of a stripe, each leg by its own",
            RawError::ReadOnly => "it may write, and the volume is opened read-only (ro=yes)",
            RawError::ReservationsKept => {
                "this volume's registration is kept by the initiator on all paths: change it as a reservation, not raw"
            }
        })
    }
}

impl std::error::Error for RawError {}

/// How a raw command ended.
#[derive(Debug)]
pub struct RawCompletion {
    /// Its name.
    pub id: IoId,
    /// How.
    pub how: Result<RawAnswer, RawError>,
    /// Its memory. What was to be filled is cut to what came.
    pub payload: Payload,
}

impl RawCompletion {
    /// Nothing of its memory is data.
    pub(crate) fn without_answer(id: IoId, why: RawError, mut payload: Payload) -> RawCompletion {
        if let Payload::In(data) = &mut payload {
            data.truncate(0);
        }
        RawCompletion { id, how: Err(why), payload }
    }
}

/// The bytes of a CDB with this operation code, of groups that have a fixed length (SPC-4 §4.2.5.1).
fn cdb_len_of_group(opcode: u8) -> usize {
    match opcode >> 5 {
        1 | 2 => 10,
        4 => 16,
        5 => 12,
        // Group 3 has variable lengths; 6 and 7 are of vendors.
        _ => 6,
    }
}

fn check_data_len(payload: &Payload) -> Result<(), RawRefusal> {
    if payload.len() > RAW_DATA_MAX { Err(RawRefusal::DataLength(payload.len())) } else { Ok(()) }
}

fn direction_of(payload: &Payload) -> Direction {
    match payload {
        _ if payload.is_empty() => Direction::None,
        Payload::None => Direction::None,
        Payload::In(_) => Direction::ToHost,
        Payload::Out(_) => Direction::ToController,
    }
}

/// What the sizes of blocks have no part in.
const ANY_BLOCK_LEN: u32 = 512;

impl RawCommand {
    /// A SCSI command for the volume's logical unit: a CDB of 6 to 260 bytes. Its data goes the way that `payload`
    /// says; for commands that this crate knows that is checked. How much moves is between the CDB and the target,
    /// and what is too much or too little is told with the answer.
    ///
    /// # Errors
    /// What is not sent, with the payload.
    pub fn scsi(cdb: &[u8], payload: Payload) -> Result<RawCommand, (RawRefusal, Payload)> {
        match scsi_effect(cdb, &payload) {
            Ok((only_reads, changes_reservations)) => {
                let mut short = [0; 16];
                let body = match short.get_mut(..cdb.len()) {
                    Some(bytes) => {
                        bytes.copy_from_slice(cdb);
                        Cdb::Short(short)
                    }
                    None => Cdb::Long(cdb.into()),
                };
                Ok(RawCommand { body: RawBody::Scsi(body), payload, only_reads, changes_reservations })
            }
            Err(why) => Err((why, payload)),
        }
    }

    /// An NVMe command for the admin queue.
    ///
    /// # Errors
    /// What is not sent, with the payload.
    pub fn nvme_admin(command: NvmeCommand, payload: Payload) -> Result<RawCommand, (RawRefusal, Payload)> {
        match check_nvme(command, &payload).and_then(|()| check_admin(command)) {
            Ok(()) => Ok(RawCommand {
                body: RawBody::NvmeAdmin(Box::new(command.to_sqe())),
                payload,
                only_reads: command.opcode < 0xc0 && command.opcode & 3 == 2,
                changes_reservations: false,
            }),
            Err(why) => Err((why, payload)),
        }
    }

    /// An NVMe command for an I/O queue.
    ///
    /// # Errors
    /// What is not sent, with the payload.
    pub fn nvme_io(command: NvmeCommand, payload: Payload) -> Result<RawCommand, (RawRefusal, Payload)> {
        let opcode = Opcode(command.opcode);
        match check_nvme(command, &payload) {
            Ok(()) => Ok(RawCommand {
                body: RawBody::NvmeIo(Box::new(command.to_sqe())),
                payload,
                only_reads: opcode.0 < 0x80 && opcode.0 & 3 == 2
                    || matches!(opcode, Opcode::FLUSH | Opcode::COMPARE | Opcode::VERIFY),
                changes_reservations: matches!(
                    opcode,
                    Opcode::RESERVATION_REGISTER | Opcode::RESERVATION_ACQUIRE | Opcode::RESERVATION_RELEASE
                ),
            }),
            Err(why) => Err((why, payload)),
        }
    }

    /// Whether a path of the protocol can say it.
    pub(crate) fn is_for(&self, protocol: crate::Protocol) -> bool {
        matches!(self.body, RawBody::Scsi(_)) == (protocol == crate::Protocol::Iscsi)
    }
}

/// Whether a CDB only reads, and whether it changes reservations; what is wrong with it.
fn scsi_effect(cdb: &[u8], payload: &Payload) -> Result<(bool, bool), RawRefusal> {
    let opcode = cdb.first().copied().unwrap_or(0);
    let least = cdb_len_of_group(opcode);
    if cdb.len() < least || cdb.len() > CDB_LEN_MAX {
        return Err(RawRefusal::CdbLength { len: cdb.len(), opcode, least });
    }
    check_data_len(payload)?;
    // PERSISTENT RESERVE OUT, RESERVE, RELEASE. What is not known here is the target's to judge.
    let reserves = matches!(opcode, 0x5f | 0x16 | 0x17 | 0x56 | 0x57);
    let Ok(command) = Command::parse(cdb) else { return Ok((false, reserves)) };
    let given = direction_of(payload);
    let wanted = match command.data_transfer(ANY_BLOCK_LEN) {
        DataTransfer::None | DataTransfer::In(0) | DataTransfer::Out(0) => Direction::None,
        DataTransfer::In(_) => Direction::ToHost,
        DataTransfer::Out(_) => Direction::ToController,
    };
    // Of what the target would send, all may be left to it.
    if given != wanted && !(wanted == Direction::ToHost && given == Direction::None) {
        return Err(RawRefusal::DataDirection { opcode, wanted });
    }
    let only_reads = matches!(command.data_transfer(ANY_BLOCK_LEN), DataTransfer::In(_))
        || matches!(
            command,
            Command::TestUnitReady | Command::PreFetch(_) | Command::SynchronizeCache(_) | Command::Verify(_)
        );
    Ok((only_reads, reserves))
}

impl NvmeCommand {
    fn to_sqe(self) -> Sqe {
        // All of its other fields are zero.
        let mut sqe = admin::keep_alive_sqe();
        sqe.opcode = Opcode(self.opcode);
        sqe.nsid = self.nsid.into();
        sqe.cdw2 = self.cdw2.map(Into::into);
        sqe.cdw10 = self.cdw10.map(Into::into);
        sqe
    }
}

/// What no queue takes from a caller.
fn check_nvme(command: NvmeCommand, payload: &Payload) -> Result<(), RawRefusal> {
    check_data_len(payload)?;
    if Opcode(command.opcode) == Opcode::FABRICS {
        return Err(RawRefusal::Reserved {
            command: "a Fabrics command (7Fh: Connect, Property Set, Authentication, Disconnect)",
            instead: "connections and their controller belong to the path; the URL's options set them up",
        });
    }
    if command.flags & 3 != 0 {
        return Err(RawRefusal::Fused);
    }
    let wanted = match command.opcode & 3 {
        0 => Direction::None,
        1 => Direction::ToController,
        2 => Direction::ToHost,
        _ => return Err(RawRefusal::Bidirectional(command.opcode)),
    };
    // A command of either direction may have no data at all.
    let given = direction_of(payload);
    if given != wanted && given != Direction::None {
        return Err(RawRefusal::DataDirection { opcode: command.opcode, wanted });
    }
    Ok(())
}

/// Admin commands that are the path's own.
fn check_admin(command: NvmeCommand) -> Result<(), RawRefusal> {
    const QUEUES: &str = "I/O queues belong to the path; the URL's option queues= says how many";
    const EVENTS: &str = "events belong to the path, which says what has changed";
    let [cdw10, ..] = command.cdw10;
    let (command, instead) = match Opcode(command.opcode) {
        Opcode(0x00) => ("Delete I/O Submission Queue (00h)", QUEUES),
        Opcode(0x01) => ("Create I/O Submission Queue (01h)", QUEUES),
        Opcode(0x04) => ("Delete I/O Completion Queue (04h)", QUEUES),
        Opcode(0x05) => ("Create I/O Completion Queue (05h)", QUEUES),
        Opcode(0x7c) => ("Doorbell Buffer Config (7Ch)", QUEUES),
        Opcode::ABORT => (
            "Abort (08h)",
            "it could name a command that is not the caller's; a command that takes too long is aborted by itself",
        ),
        Opcode::ASYNC_EVENT_REQUEST => ("Asynchronous Event Request (0Ch)", EVENTS),
        Opcode::KEEP_ALIVE => {
            ("Keep Alive (18h)", "the path sends it; the URL's option keep_alive= says how often")
        }
        Opcode::SET_FEATURES => match FeatureId(cdw10 as u8) {
            FeatureId::NUMBER_OF_QUEUES => ("Set Features of Number of Queues (07h)", QUEUES),
            FeatureId::ASYNC_EVENT_CONFIGURATION => {
                ("Set Features of Asynchronous Event Configuration (0Bh)", EVENTS)
            }
            FeatureId::KEEP_ALIVE_TIMER => (
                "Set Features of Keep Alive Timer (0Fh)",
                "fencing counts by it; the URL's option keep_alive= sets it",
            ),
            FeatureId::HOST_BEHAVIOR => (
                "Set Features of Host Behavior Support (16h)",
                "the path reads retry delays and statuses by it",
            ),
            FeatureId::HOST_IDENTIFIER => (
                "Set Features of Host Identifier (81h)",
                "reservations go by it; the URL's option host_id= sets it",
            ),
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    Err(RawRefusal::Reserved { command, instead })
}

#[cfg(test)]
mod tests {
    use buf::{MemoryClass, Pool};

    use super::*;

    fn room(pool: &Pool, len: usize) -> Payload {
        Payload::In(pool.take_sg(MemoryClass::Wire, len).unwrap())
    }

    fn out(pool: &Pool, len: usize) -> Payload {
        Payload::Out(pool.take_sg(MemoryClass::Wire, len).unwrap().freeze())
    }

    fn scsi(cdb: &[u8], payload: Payload) -> Result<RawCommand, RawRefusal> {
        RawCommand::scsi(cdb, payload).map_err(|(why, _)| why)
    }

    #[test]
    fn cdbs_have_the_length_of_their_group_and_data_the_direction_of_their_command() {
        let pool = Pool::new(1 << 20);
        let inquiry = [0x12, 0, 0, 0, 96, 0];
        assert!(scsi(&inquiry, room(&pool, 96)).unwrap().only_reads);
        assert!(scsi(&inquiry, Payload::None).is_ok(), "what it sends may be left to it");
        let wrong = RawRefusal::DataDirection { opcode: 0x12, wanted: Direction::ToHost };
        assert_eq!(scsi(&inquiry, out(&pool, 96)).unwrap_err(), wrong);
        for cdb in [&[][..], &[0x12, 0, 0, 0, 96], &[0x28, 0, 0, 0, 0, 0], &[0x9e; 15], &[0; 261]] {
            assert!(matches!(scsi(cdb, Payload::None), Err(RawRefusal::CdbLength { .. })), "{cdb:?}");
        }
        let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let write = |payload| scsi(&write, payload);
        assert!(write(Payload::None).is_err() && write(room(&pool, 512)).is_err());
        assert!(!write(out(&pool, 512)).unwrap().only_reads);
        // TEST UNIT READY moves nothing. A vendor's command moves what it likes, and is taken for one that writes.
        assert!(scsi(&[0; 6], room(&pool, 8)).is_err());
        assert!(!scsi(&[0xc1, 0, 0, 0, 0, 0], room(&pool, 8)).unwrap().only_reads);
        let long = scsi(&[0x7f; 260], Payload::None).unwrap();
        assert!(matches!(long.body, RawBody::Scsi(Cdb::Long(cdb)) if cdb.len() == 260));
        let reserve = |action| scsi(&[0x5f, action, 0, 0, 0, 0, 0, 0, 24, 0], out(&pool, 24)).unwrap();
        assert!([0, 8].into_iter().all(|action| reserve(action).changes_reservations), "8 is not known here");
    }

    #[test]
    fn nvme_commands_that_are_the_paths_own_are_refused_by_name() {
        let admin = |opcode, cdw10| {
            let command = NvmeCommand { opcode, cdw10: [cdw10, 0, 0, 0, 0, 0], ..NvmeCommand::default() };
            RawCommand::nvme_admin(command, Payload::None).map_err(|(why, _)| why.to_string())
        };
        for (opcode, cdw10, name) in [
            (0x00, 0, "Delete I/O Submission Queue"),
            (0x01, 0, "Create I/O Submission Queue"),
            (0x04, 0, "Delete I/O Completion Queue"),
            (0x05, 0, "Create I/O Completion Queue"),
            (0x08, 0, "Abort"),
            (0x0c, 0, "Asynchronous Event Request"),
            (0x18, 0, "Keep Alive"),
            (0x7c, 0, "Doorbell Buffer Config"),
            (0x7f, 0, "Fabrics command"),
            (0x09, 0x07, "Number of Queues"),
            (0x09, 0x8000_0007, "Number of Queues"),
            (0x09, 0x0b, "Asynchronous Event Configuration"),
            (0x09, 0x0f, "Keep Alive Timer"),
            (0x09, 0x16, "Host Behavior Support"),
            (0x09, 0x81, "Host Identifier"),
        ] {
            let said = admin(opcode, cdw10).unwrap_err();
            assert!(said.contains(name), "{opcode:02x}: {said}");
        }
        for (opcode, cdw10) in [(0x02, 0), (0x06, 1), (0x09, 0x06), (0x0a, 7), (0x80, 0), (0xc0, 0)] {
            assert!(admin(opcode, cdw10).is_ok(), "{opcode:02x}");
        }
        // The opcode says which way data goes, and a pair is not torn.
        let pool = Pool::new(1 << 20);
        let io = |opcode, flags, payload| {
            let command = NvmeCommand { opcode, flags, ..NvmeCommand::default() };
            RawCommand::nvme_io(command, payload).map_err(|(why, _)| why)
        };
        assert!(io(0x02, 0, room(&pool, 512)).unwrap().only_reads);
        assert!(!io(0x01, 0, out(&pool, 512)).unwrap().only_reads);
        assert!(io(0x0d, 0, out(&pool, 16)).unwrap().changes_reservations);
        assert!(matches!(io(0x01, 0, room(&pool, 512)), Err(RawRefusal::DataDirection { .. })));
        assert!(matches!(io(0x83, 0, Payload::None), Err(RawRefusal::Bidirectional(0x83))));
        assert!(matches!(io(0x05, 1, out(&pool, 512)), Err(RawRefusal::Fused)));
        assert!(matches!(io(0x7f, 0, Payload::None), Err(RawRefusal::Reserved { .. })));
    }
}
