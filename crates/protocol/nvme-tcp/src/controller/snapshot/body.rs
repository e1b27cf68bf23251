//! The body of a snapshot, version 1: plain numbers. Tasks are named by their place in the list.

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct QueueBody {
    pub(super) parameters: ParametersBody,
    pub(super) entries: u16,
    pub(super) flow_control: bool,
    pub(super) in_capsule_max: u32,
    pub(super) admin: bool,
    /// The last command was refused by the queue itself.
    pub(super) refused: bool,
    /// The last command, if it is the first of a fused pair.
    pub(super) half: Option<u32>,
    pub(super) next_ttag: u16,
    pub(super) sqhd: u16,
    /// Oldest first.
    pub(super) tasks: Vec<TaskBody>,
    pub(super) receive: ReceiveBody,
    /// Bytes that came and are not parsed: part of a header among them.
    pub(super) unparsed: Vec<u8>,
    /// Bytes that the host is owed.
    pub(super) unsent: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ParametersBody {
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    pub(super) host_alignment: u8,
    pub(super) controller_alignment: u8,
    pub(super) r2ts: u32,
    pub(super) max_h2c_data: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TaskBody {
    pub(super) cid: u16,
    pub(super) source: SourceBody,
    pub(super) len: u32,
    pub(super) arriving: bool,
    pub(super) capsule: bool,
    pub(super) event_request: bool,
    pub(super) asked: u32,
    /// Transfer tag, offset of the next byte, end.
    pub(super) r2ts: Vec<(u16, u32, u32)>,
    /// Offset of the first byte, and the bytes.
    pub(super) carried: Vec<(u32, Vec<u8>)>,
    pub(super) state: StateBody,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SourceBody {
    None,
    Capsule,
    Host,
    Server,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StateBody {
    /// With the submission queue entry.
    Withdrawn(Vec<u8>),
    /// It ends with this status, when the data that is owed has come.
    Status(u16),
    /// Result and status.
    Answered(u64, u16),
    Abandoned,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ReceiveBody {
    Header,
    Data(StretchBody),
    Digest(StretchBody),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StretchBody {
    pub(super) lead: u32,
    pub(super) want: u32,
    pub(super) tail: u32,
    pub(super) at: u32,
    /// The digest of what came.
    pub(super) crc: u32,
    pub(super) purpose: PurposeBody,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PurposeBody {
    Capsule(u32),
    /// Task and transfer tag.
    Solicited(u32, u16),
    /// CID and status.
    Refuse(u16, u16),
    /// Nothing, or a task that has ended.
    Skip,
}
