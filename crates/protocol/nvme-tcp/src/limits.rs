//! The operator's limits for a queue, the results of its Connect, and the state that moves with it to another
//! shard: plain data.

use std::time::Duration;

use crate::wire::ConnectionParameters;
use nvme::Sqe;

/// Most entries of a queue that is served.
pub const QUEUE_ENTRIES_MAX: u16 = 4096;

/// Whether a digest is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DigestPolicy {
    /// If the host asks for it.
    #[default]
    IfAsked,
    /// Not even then.
    Never,
    /// A host that does not ask for it is refused.
    Required,
}

/// What the operator allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// CRC32C behind headers.
    pub header_digest: DigestPolicy,
    /// CRC32C behind data.
    pub data_digest: DigestPolicy,
    /// CPDA: data of the host begins at a multiple of (CPDA + 1) × 4 bytes; 0 to 31. Linux hosts
    /// refuse anything but 0.
    pub cpda: u8,
    /// MAXH2CDATA: longest data of one H2CData, in bytes; made a multiple of 4, 4096 at least.
    pub max_h2c_data: u32,
    /// Longest stretch that one R2T asks for, in bytes; 4096 at least. Some hosts send all of it in
    /// one H2CData, whatever MAXH2CDATA says, so it should not be more than that.
    pub r2t_len_max: u32,
    /// How long a host may take for ICReq, and then for Connect.
    pub handshake_timeout: Duration,
    /// How long a host may take to end a PDU that it began.
    pub pdu_timeout: Duration,
    /// How long a host may take to send all of a stretch that one R2T asked for.
    pub data_out_timeout: Duration,
    /// How long a host may leave what we send unread.
    pub stall_timeout: Duration,
    /// How long a host may take to close after a C2HTermReq; 30 s at most (NVMe-TCP §3.5).
    pub term_timeout: Duration,
    /// Most bytes that are being read or wait to be sent; one I/O is always allowed.
    pub read_bytes: u32,
    /// Most bytes that are asked for and have not come; one I/O is always allowed.
    pub write_bytes: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits {
            header_digest: DigestPolicy::IfAsked,
            data_digest: DigestPolicy::IfAsked,
            cpda: 0,
            max_h2c_data: 1 << 20,
            r2t_len_max: 1 << 20,
            handshake_timeout: Duration::from_secs(15),
            pdu_timeout: Duration::from_secs(60),
            data_out_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            term_timeout: Duration::from_secs(30),
            read_bytes: 8 << 20,
            write_bytes: 8 << 20,
        }
    }
}

/// What Connect settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedQueueSize {
    /// Entries: SQSIZE + 1; 2 to [`QUEUE_ENTRIES_MAX`]. So many commands may be in work.
    pub entries: u16,
    /// Whether SQHD counts (the host did not disable SQ flow control). If not, a read that succeeds
    /// needs no CapsuleResp.
    pub flow_control: bool,
    /// Most bytes of in-capsule data: 8192 for an admin queue, IOCCSZ × 16 − 64 for an I/O queue.
    /// Fabrics commands may carry 8192 on any queue.
    pub in_capsule_max: u32,
}

/// A queue on its way to another shard, its Connect unanswered.
#[derive(Debug)]
pub struct QueueHandoff {
    pub(crate) parameters: ConnectionParameters,
    pub(crate) connect: Sqe,
    /// What came behind the Connect.
    pub(crate) left: Box<[u8]>,
    pub(crate) tls: Option<tls::Channel>,
}

impl QueueHandoff {
    /// The Connect that waits for its answer.
    pub fn connect_command(&self) -> &Sqe {
        &self.connect
    }
}
