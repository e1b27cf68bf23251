//! Negotiated parameters of a session and its connections (RFC 7143 §13), and the limits of one side. The
//! negotiation is in [`negotiate`](crate::negotiate), by the rules of [`keys`](crate::keys).

/// What protects a header or a data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// Nothing.
    None,
    /// CRC32C.
    Crc32c,
}

impl Digest {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Digest::None => "None",
            Digest::Crc32c => "CRC32C",
        }
    }
}

/// How completed and aborted tasks are reported (RFC 7143 §13.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskReporting {
    /// As RFC 3720 has it.
    Rfc3720,
    /// Responses are fenced across connections.
    ResponseFence,
    /// Tasks are aborted without waiting for the initiators' acknowledgments.
    FastAbort,
}

impl TaskReporting {
    /// Its word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TaskReporting::Rfc3720 => "RFC3720",
            TaskReporting::ResponseFence => "ResponseFence",
            TaskReporting::FastAbort => "FastAbort",
        }
    }
}

/// Type of a session (RFC 7143 §13.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionType {
    /// Access to a target.
    Normal,
    /// SendTargets only.
    Discovery,
}

/// The parameters in force when a login ends. Lengths in bytes, times in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Type of the session.
    pub session_type: SessionType,
    /// Digest of headers.
    pub header_digest: Digest,
    /// Digest of data segments.
    pub data_digest: Digest,
    /// Largest data segment that the initiator receives.
    pub initiator_mrdsl: u32,
    /// Largest data segment that the target receives.
    pub target_mrdsl: u32,
    /// Connections of the session: 1 to 65535.
    pub max_connections: u32,
    /// No unsolicited Data-Out PDUs.
    pub initial_r2t: bool,
    /// Commands may carry data.
    pub immediate_data: bool,
    /// Bytes of one Data-In or solicited Data-Out sequence.
    pub max_burst: u32,
    /// Bytes of unsolicited data per command, immediate data included.
    pub first_burst: u32,
    /// Least time before a reconnect.
    pub time2wait: u32,
    /// How long tasks survive after that.
    pub time2retain: u32,
    /// R2Ts per task.
    pub max_outstanding_r2t: u32,
    /// Data PDUs of a sequence come in order.
    pub data_pdu_in_order: bool,
    /// Sequences come in order.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel.
    pub erl: u32,
    /// How tasks are reported.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel: 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u32,
}

impl Params {
    /// The values that hold when nothing is said (RFC 7143 §13).
    #[must_use]
    pub const fn defaults(session_type: SessionType) -> Self {
        Self {
            session_type,
            header_digest: Digest::None,
            data_digest: Digest::None,
            initiator_mrdsl: 8192,
            target_mrdsl: 8192,
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst: 262_144,
            first_burst: 65_536,
            time2wait: 2,
            time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            erl: 0,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
        }
    }
}

/// What this end can accept; from the configuration of the target and the memory that is reserved for the
/// connection. Units as in [`Params`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiationLimits {
    /// Digests allowed for headers, best first for our own proposals.
    pub header_digest: Vec<Digest>,
    /// Digests allowed for data, best first for our own proposals.
    pub data_digest: Vec<Digest>,
    /// Largest data segment that this end receives: 512 to 2^24-1.
    pub mrdsl: u32,
    /// Most connections of a session: 1 to 65535.
    pub max_connections: u32,
    /// Yes forbids unsolicited Data-Out.
    pub initial_r2t: bool,
    /// No forbids immediate data.
    pub immediate_data: bool,
    /// Largest MaxBurstLength: 512 to 2^24-1.
    pub max_burst: u32,
    /// Largest FirstBurstLength: 512 to 2^24-1.
    pub first_burst: u32,
    /// Least DefaultTime2Wait: 0 to 3600.
    pub time2wait: u32,
    /// Largest DefaultTime2Retain: 0 to 3600.
    pub time2retain: u32,
    /// Largest MaxOutstandingR2T: 1 to 65535.
    pub max_outstanding_r2t: u32,
    /// Yes demands order within sequences.
    pub data_pdu_in_order: bool,
    /// Yes demands order of sequences.
    pub data_sequence_in_order: bool,
    /// Highest ErrorRecoveryLevel: 0 to 2.
    pub erl: u32,
    /// Task reporting allowed, best first for our own proposals.
    pub task_reporting: Vec<TaskReporting>,
    /// Highest iSCSIProtocolLevel.
    pub protocol_level: u32,
}

impl Default for NegotiationLimits {
    fn default() -> Self {
        Self {
            header_digest: vec![Digest::None, Digest::Crc32c],
            data_digest: vec![Digest::None, Digest::Crc32c],
            mrdsl: 262_144,
            max_connections: 4,
            initial_r2t: false,
            immediate_data: true,
            max_burst: 1 << 20,
            first_burst: 65_536,
            time2wait: 2,
            // At ErrorRecoveryLevel 0 no task outlives its session.
            time2retain: 0,
            max_outstanding_r2t: 8,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            erl: 0,
            task_reporting: vec![TaskReporting::ResponseFence, TaskReporting::Rfc3720],
            protocol_level: 2,
        }
    }
}
