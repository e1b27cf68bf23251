//! Requests of a session to the server above it, and the server's answers.

use crate::discovery::SendTargets;
use crate::wire::{ScsiStatus, TaskAttribute, TmfFunction, TmfResponseCode};
use smallvec::SmallVec;
use stream::{LinkNumber, Tag};

/// A CDB as it came: 16 bytes, or up to 260 with an extended header segment (RFC 7143 §11.2.2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cdb {
    /// The 16 bytes of the header; shorter CDBs are padded.
    Short([u8; 16]),
    /// 17 to 260 bytes.
    Long(Box<[u8]>),
}

impl Cdb {
    /// The bytes: at least 16.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Cdb::Short(bytes) => bytes,
            Cdb::Long(bytes) => bytes,
        }
    }
}

/// A SCSI Command (RFC 7143 §11.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Logical unit number in the form of SAM-5 §4.7.
    pub lun: [u8; 8],
    /// The CDB, never looked into by the session.
    pub cdb: Cdb,
    /// Task attribute.
    pub attr: TaskAttribute,
    /// Task priority 0 to 15; 0 means none, and always where iSCSIProtocolLevel is below 2.
    pub priority: u8,
    /// Delivered ahead of the order of commands.
    pub immediate_delivery: bool,
    /// The initiator expects to receive data.
    pub read: bool,
    /// The initiator expects to send data.
    pub write: bool,
    /// Expected Data Transfer Length in bytes; of the write, where both are set.
    pub edtl: u32,
    /// Expected read length in bytes of a bidirectional command (`read` and `write` both set). Such
    /// a command moves no data here: it is to be refused.
    pub bidi_read_len: u32,
    /// The link that the command came by, and stays allegiant to.
    pub link: LinkNumber,
}

/// A task management function (RFC 7143 §11.5, RFC 7144).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// What is asked. On the target's side functions that the session cannot carry out at
    /// ErrorRecoveryLevel 0, or that the protocol level excludes, never come up.
    pub function: TmfFunction,
    /// Logical unit number, where the function has one.
    pub lun: [u8; 8],
    /// The task that the function names, for ABORT TASK and QUERY TASK; on the target's side only if the task is
    /// with the server.
    pub referenced: Option<Tag>,
}

/// All that needs an answer from above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A SCSI command.
    Scsi(ScsiCommand),
    /// A task management function. It is answered when every task that it affects is retired or
    /// answered.
    Task(TaskManagement),
    /// A list of targets.
    SendTargets(SendTargets),
}

/// Sense data: up to 252 bytes (SPC-4 §4.5), the usual forms inline.
pub type SenseBytes = SmallVec<[u8; 32]>;

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To a SCSI command: command completed at target.
    Scsi(ScsiResult),
    /// To a SCSI command: target failure (iSCSI response 01h). There is no status.
    TargetFailure,
    /// To a task management function.
    Task(TmfResponseCode),
    /// To SendTargets: the text of a [`TargetList`](crate::discovery::TargetList).
    Targets(Box<[u8]>),
}

/// How a SCSI command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiResult {
    /// SCSI status.
    pub status: ScsiStatus,
    /// Status qualifier; sent where iSCSIProtocolLevel is 2 or more.
    pub qualifier: u16,
    /// Sense data, for CHECK CONDITION.
    pub sense: SenseBytes,
    /// How many bytes the command moved as the SCSI layer sees it, whatever the initiator expected
    /// (SPDTL, RFC 7143 §11.4.5): the residual follows from it.
    pub transferred: u64,
    /// Whether it is ordered among the responses of all links of the session (response fence, RFC 7143
    /// §4.2.2.3.4): a unit attention that tells of ended tasks, and the end of PREEMPT AND ABORT.
    pub fence: bool,
}

impl ScsiResult {
    /// GOOD after so many bytes.
    #[must_use]
    pub fn good(transferred: u64) -> Self {
        let (status, sense) = (ScsiStatus::GOOD, SenseBytes::new());
        ScsiResult { status, qualifier: 0, sense, transferred, fence: false }
    }

    /// CHECK CONDITION with sense data, after so many bytes.
    #[must_use]
    pub fn check_condition(sense: &[u8], transferred: u64) -> Self {
        let (status, sense) = (ScsiStatus::CHECK_CONDITION, SenseBytes::from_slice(sense));
        ScsiResult { status, qualifier: 0, sense, transferred, fence: false }
    }
}

/// How the length of SCSI's data compares with what the initiator expected (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// As long as expected.
    None,
    /// So many bytes of what was expected were not moved.
    Underflow(u32),
    /// So many bytes more would have been moved.
    Overflow(u32),
}

impl Residual {
    pub(super) fn from_lengths(edtl: u32, transferred: u64) -> Self {
        match u64::from(edtl).checked_sub(transferred) {
            Some(0) => Residual::None,
            Some(less) => Residual::Underflow(less as u32),
            None => Residual::Overflow(u32::try_from(transferred - u64::from(edtl)).unwrap_or(u32::MAX)),
        }
    }

    pub(super) fn count(self) -> u32 {
        match self {
            Residual::None => 0,
            Residual::Underflow(n) | Residual::Overflow(n) => n,
        }
    }
}

/// What a peer did that ends a link or the session. Each is told once, for the log and the counters;
/// the session itself does what follows from it.
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
    /// The header digest is wrong, so no length can be trusted (RFC 7143 §7.8): the link ends.
    HeaderDigest,
    /// A data segment longer than we declared to receive: the link ends.
    SegmentTooLong(u32),
    /// AdditionalSense header segments where none may be (RFC 7143 §7.7): the session ends.
    UnexpectedAhs,
    /// The peer leaves its answers unread, or does not send data it was asked for: the link ends.
    Stalled,
    /// No answer to our NOP-In: the link ends.
    PingUnanswered,
    /// Commands wait for one before them (CmdSN) that does not come: the session ends.
    CommandMissing,
    /// No acknowledgment (ExpStatSN) of what was sent, though it was asked for: the link ends.
    Unacknowledged,
}

/// In words.
impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Fault::HeaderDigest => "a header digest is wrong: look for what damages data on the way",
            Fault::SegmentTooLong(len) => {
                return write!(f, "a data segment of {len} bytes is longer than was agreed");
            }
            Fault::UnexpectedAhs => "an additional header segment is not allowed here",
            Fault::Stalled => {
                "it leaves its answers unread, or does not send the data that it was asked for: see whether the \
                 initiator hangs"
            }
            Fault::PingUnanswered => "no answer to a ping in time: see whether the initiator or the network is down",
            Fault::CommandMissing => {
                "a command is missing whose number comes before others': see whether the initiator hangs"
            }
            Fault::Unacknowledged => "no acknowledgment in time of what was sent: see whether the initiator hangs",
        })
    }
}
