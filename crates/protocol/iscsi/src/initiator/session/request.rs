//! Requests of an owner to its session, and the session's events.

use super::discovered_targets::DiscoveredTargets;
use crate::discovery::SendTargets;
use crate::initiator::LoginFailure;
use crate::session::{Cdb, Residual, SenseBytes, TaskManagement};
use crate::wire::{
    AsyncEvent, Cid, LoginFlags, LoginStatus, LogoutResponseCode, Opcode, RejectReason, ScsiStatus,
    TaskAttribute, TmfResponseCode,
};
use std::time::Duration;
use stream::LinkNumber;

/// What can be submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A SCSI command. Its payload says direction and length.
    Scsi(ScsiCommand),
    /// A task management function, without payload. It overtakes the order of commands.
    Task(TaskManagement),
    /// A question for targets, without payload; [`SendTargets::All`] in discovery sessions only.
    SendTargets(SendTargets),
}

/// A SCSI Command (RFC 7143 §11.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Logical unit number in the form of SAM-5 §4.7.
    pub lun: [u8; 8],
    /// The CDB: at most 260 bytes.
    pub cdb: Cdb,
    /// Task attribute.
    pub attr: TaskAttribute,
    /// Task priority 0 to 15; sent where iSCSIProtocolLevel 2 was agreed.
    pub priority: u8,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A SCSI command that the target completed.
    Scsi(ScsiAnswer),
    /// A SCSI command that the target could not complete (iSCSI response 01h and above).
    TargetFailure,
    /// A task management function. The commands that it ended are completed before it, as
    /// [`NoAnswer::Aborted`]; one whose memory is being received into by another link, as soon as that is
    /// back.
    Task(TmfResponseCode),
    /// The targets.
    Targets(DiscoveredTargets),
    /// There is no answer.
    Lost(NoAnswer),
}

/// A SCSI command's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiAnswer {
    /// SCSI status.
    pub status: ScsiStatus,
    /// Sense data, for CHECK CONDITION.
    pub sense: SenseBytes,
    /// How the length that was expected compares with the command's own.
    pub residual: Residual,
    /// Bytes of the payload that are good: of a read, what came; of a write, what the target took. What
    /// follows in a read's buffer is zero.
    pub transferred: u32,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The session ended before any of it was sent: it has not been done.
    NotSent,
    /// The session ended, or the target forgot it: it may have been done, or be done later still.
    Unknown,
    /// A task management function ended it; some of it may have been done.
    Aborted,
    /// The target refused the PDU; it has not been done.
    Rejected(RejectReason),
    /// Data of a read was damaged on the way (data digest).
    DataDigest,
    /// A read was answered GOOD, but not all of its data came.
    Short,
}

/// What happened beside the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A link that was added is in use.
    LinkReady(LinkNumber),
    /// The login of a link failed; of the leading one: the session ends. Redirection is
    /// [`LoginFailure::Moved`]; how often it is followed is the caller's choice.
    LoginFailed(LinkNumber, LoginFailure),
    /// The target wants us to log out, or to negotiate again: the session drains and logs out within this
    /// time, and may be begun again.
    LogoutRequested {
        /// What is left until the target closes.
        within: Duration,
    },
    /// The target drops the link or the session, which ends now.
    Dropped {
        /// Least time before a reconnect.
        wait: Duration,
    },
    /// Asynchronous event data of a logical unit (SAM-5 §6.6).
    Scsi {
        /// Logical unit number.
        lun: [u8; 8],
        /// Sense data.
        sense: SenseBytes,
    },
    /// An event that no document names, or of a vendor; nothing follows from it.
    Unknown(AsyncEvent),
    /// The target refused a PDU that carries no request: a ping, or data.
    Rejected(Opcode, RejectReason),
    /// The answer to our logout was not "closed".
    LogoutRefused(LogoutResponseCode),
}

/// One PDU of a login. Its text holds challenges and responses: who shows it leaves them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginStep {
    /// The link.
    pub link: LinkNumber,
    /// Its connection ID.
    pub cid: Cid,
    /// The target's answer, or our request.
    pub is_answer: bool,
    /// Current stage, next stage, and whether the text goes on in the next PDU.
    pub flags: LoginFlags,
    /// What the target says of the login.
    pub status: LoginStatus,
    /// The data segment.
    pub text: Vec<u8>,
}

/// What a target did that ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFault {
    /// Where it came.
    pub link: LinkNumber,
    /// What it was.
    pub fault: Fault,
}

/// The kinds of [`LinkFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The header digest is wrong.
    HeaderDigest,
    /// The data digest of something else than a read's data is wrong.
    DataDigest(Opcode),
    /// A data segment longer than we declared to receive.
    SegmentTooLong(u32),
    /// Additional header segments, which no target's PDU has.
    UnexpectedAhs,
    /// A PDU that is none of a target's, or that does not belong to this phase.
    Unexpected(Opcode),
    /// A task tag that names nothing.
    UnknownTask(Opcode),
    /// A task tag that names a request of another kind.
    WrongTask(Opcode),
    /// Data beyond the command's length.
    DataBeyond,
    /// Data that does not follow on what came before, by its offset or its DataSN.
    DataOrder,
    /// An R2T that does not follow on what was asked before, by its offset or its R2TSN.
    R2tOrder,
    /// An R2T for nothing, for more than the command has, or for more than MaxBurstLength.
    R2tRange,
    /// More R2Ts than were agreed.
    R2tTooMany,
    /// GOOD to a write, of whose data some was not asked for or has not left, and which no residual names.
    WriteShort,
    /// StatSN far beyond what comes next.
    StatSn,
    /// A NOP-In that is not final, or a ping of the target's that carries data.
    Ping,
    /// Status with a Data-In that is not final, or that needs sense data.
    Status,
    /// Residual flags or counts that contradict each other, or the command.
    Residual,
    /// Sense data that is missing, or longer than what carries it.
    Sense,
    /// What we send is left unread.
    Stalled,
    /// No answer to our ping.
    PingUnanswered,
    /// A command took too long.
    CommandTimeout,
    /// The window stayed closed too long.
    WindowClosed,
}

/// In words.
impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let of = |opcode: &Opcode| opcode.0;
        match self {
            Fault::HeaderDigest => f.write_str("a header digest is wrong"),
            Fault::DataDigest(opcode) => {
                write!(f, "the data digest of a PDU of opcode {:02x}h is wrong", of(opcode))
            }
            Fault::SegmentTooLong(len) => {
                write!(f, "a data segment of {len} bytes is longer than was agreed")
            }
            Fault::UnexpectedAhs => f.write_str("an additional header segment is not allowed here"),
            Fault::Unexpected(opcode) => write!(f, "a PDU of opcode {:02x}h may not come there", of(opcode)),
            Fault::UnknownTask(opcode) => {
                write!(f, "a PDU of opcode {:02x}h names a task that there is not", of(opcode))
            }
            Fault::WrongTask(opcode) => {
                write!(f, "a PDU of opcode {:02x}h names a task of another kind", of(opcode))
            }
            Fault::DataBeyond => f.write_str("it sent data beyond a command's length"),
            Fault::DataOrder => f.write_str("it sent data out of order"),
            Fault::R2tOrder => f.write_str("it asked for data out of order"),
            Fault::R2tRange => f.write_str("it asked for data that the command has not"),
            Fault::R2tTooMany => f.write_str("it asked for more at once than was agreed"),
            Fault::WriteShort => f.write_str("it called a write good without having taken all of its data"),
            Fault::StatSn => f.write_str("it jumped over numbers of its answers (StatSN)"),
            Fault::Ping => f.write_str("it sent a NOP-In with data, or without F"),
            Fault::Status => f.write_str("it sent a status where none may be"),
            Fault::Residual => f.write_str("its residual counts contradict the command"),
            Fault::Sense => f.write_str("its sense data is missing or too long"),
            Fault::Stalled => f.write_str("it leaves unread what is sent"),
            Fault::PingUnanswered => f.write_str("it did not answer a ping in time"),
            Fault::CommandTimeout => f.write_str("a command took too long"),
            Fault::WindowClosed => f.write_str("its command window stayed closed too long"),
        }
    }
}
