//! The body of a snapshot, version 1: plain numbers. Tasks are named by their place in the list, links by their
//! slot in the session.

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionBody {
    pub(super) params: ParamsBody,
    /// Most commands in work, and immediate ones, as the session was told when it began.
    pub(super) commands: u16,
    pub(super) immediate: u16,
    pub(super) window: WindowBody,
    pub(super) tasks: Vec<TaskBody>,
    /// Functions that wait for the commands before them.
    pub(super) functions: Vec<FunctionBody>,
    /// Task tag and link of writes whose data is skipped, oldest first.
    pub(super) abandoned: Vec<(u32, u16)>,
    pub(super) next_ttt: u32,
    pub(super) cleared: Vec<[u8; 8]>,
    pub(super) fences: Vec<FenceBody>,
    /// By slot; `None`: free.
    pub(super) links: Vec<Option<LinkBody>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ParamsBody {
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
    pub(super) max_connections: u16,
    pub(super) initial_r2t: bool,
    pub(super) immediate_data: bool,
    pub(super) max_burst: u32,
    pub(super) first_burst: u32,
    pub(super) segment_max: u32,
    pub(super) max_outstanding_r2t: u16,
    pub(super) time2wait: u16,
    pub(super) time2retain: u16,
    pub(super) protocol_level: u8,
    pub(super) cmd_sn: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WindowBody {
    pub(super) exp: u32,
    pub(super) max: u32,
    pub(super) told: u32,
    pub(super) offered: u32,
    pub(super) limit: u32,
    pub(super) peak: u32,
    pub(super) skips_next: bool,
    pub(super) opened: bool,
    /// Units of memory that were set aside.
    pub(super) units: u32,
    /// What came early; the first place is that of `exp + 1`.
    pub(super) held: Vec<Option<HeldBody>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum HeldBody {
    Scsi { task: u32, command: CommandBody },
    Other { link: u16, bhs: Vec<u8>, data: Vec<u8> },
    Skipped,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandBody {
    pub(super) lun: [u8; 8],
    /// 16 bytes; more with an additional header segment.
    pub(super) cdb: Vec<u8>,
    pub(super) attr: u8,
    pub(super) priority: u8,
    pub(super) immediate_delivery: bool,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) edtl: u32,
    pub(super) bidi_read_len: u32,
    pub(super) link: u16,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TaskBody {
    pub(super) itt: u32,
    pub(super) lun: [u8; 8],
    pub(super) cmd_sn: u32,
    pub(super) link: u16,
    pub(super) immediate: bool,
    pub(super) counted: bool,
    pub(super) kind: KindBody,
    pub(super) state: StateBody,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum KindBody {
    Scsi(TransferBody),
    /// A function that names no task.
    Function(u8),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum StateBody {
    Held,
    Invalid(u8, u8),
    Withdrawn(CommandBody),
    /// It ends with this sense, when the data that is owed has come.
    Sense(u8, u8),
    Answered(AnswerBody),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum AnswerBody {
    Result { status: u8, qualifier: u16, sense: Vec<u8>, transferred: u64, fence: bool },
    Failure,
    Function(u8),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TransferBody {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) edtl: u32,
    pub(super) bidi_read_len: u32,
    pub(super) data_sn: u32,
    pub(super) sent: u32,
    pub(super) got: u32,
    pub(super) whole: u32,
    pub(super) unsolicited: u32,
    pub(super) unsolicited_open: bool,
    pub(super) sequence_sn: u32,
    /// Transfer tag, offset, end.
    pub(super) r2ts: Vec<(u32, u32, u32)>,
    pub(super) asked: u32,
    pub(super) last_ttt: Option<u32>,
    /// Offset of the first byte, and the bytes that came.
    pub(super) carried: Option<(u32, Vec<u8>)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FunctionBody {
    pub(super) task: u32,
    pub(super) function: u8,
    pub(super) lun: [u8; 8],
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FenceBody {
    /// `None`: its response is sent.
    pub(super) task: Option<u32>,
    pub(super) lun: Option<[u8; 8]>,
    pub(super) state: FenceStateBody,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FenceStateBody {
    Waiting,
    /// Link and ExpStatSN.
    Before(Vec<(u16, u32)>),
    After(u16, u32),
    Over,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkBody {
    pub(super) cid: u16,
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    pub(super) peer_mrdsl: u32,
    pub(super) own_mrdsl: u32,
    pub(super) stat_sn: u32,
    pub(super) acked: u32,
    /// Transfer tags of our pings that are unanswered, oldest first; whether some were given up; whether the
    /// last is unanswered.
    pub(super) pings: Vec<u32>,
    pub(super) pings_forgot: bool,
    pub(super) pings_awaited: bool,
    pub(super) receive: ReceiveBody,
    /// Bytes that came and are not parsed: part of a header among them.
    pub(super) unparsed: Vec<u8>,
    /// Bytes that the initiator is owed.
    pub(super) unsent: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ReceiveBody {
    Header,
    /// `left` bytes of a data segment are to come; `crc` is the digest of those that came.
    Data {
        bhs: Vec<u8>,
        left: u32,
        crc: u32,
        purpose: PurposeBody,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PurposeBody {
    /// `None`: of a task that has ended.
    Write {
        task: Option<u32>,
        sequence: bool,
    },
    /// The bytes that came of the first `want`.
    Collect {
        want: u32,
        filled: Vec<u8>,
    },
    Skip,
}
