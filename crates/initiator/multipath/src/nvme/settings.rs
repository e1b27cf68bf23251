//! Settings of a path over NVMe/TCP: addresses, names, secrets, time-outs.

use std::net::SocketAddr;
use std::time::Duration;

use endpoint::DialSource;
use nvme::auth::{DhchapPolicy, DhchapSecret};
use nvme::{HostId, Nqn};
use nvme_tcp::HostQueueSettings;

/// Most I/O queues of one path: its tables are walked, and a path lives on one core.
pub const IO_QUEUES_MAX: u16 = 64;
/// The longest Keep Alive Timeout that is asked for, or believed.
pub(super) const KEEP_ALIVE_MAX: Duration = Duration::from_secs(3600);
/// Most commands in work per queue.
pub const QUEUE_DEPTH_MAX: u32 = 1023;

/// A namespace at a controller, and how to reach it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the controller is: tried in this order until one answers.
    pub addresses: Vec<SocketAddr>,
    /// Where connections leave this machine, as far as that is not left to its routes.
    pub source: DialSource,
    /// The subsystem (SUBNQN).
    pub subsystem: Nqn,
    /// The namespace, 1 and more.
    pub nsid: u32,
    /// Our name (HOSTNQN).
    pub host: Nqn,
    /// Our identifier (HOSTID): the same on every path of this machine, and on no other machine, for
    /// reservations go by it.
    pub host_id: HostId,
    /// Our secret, with which we prove who we are where the controller asks for it.
    pub secret: Option<DhchapSecret>,
    /// The controller's secret: if there is one, the controller must prove that it has it.
    pub controller_secret: Option<DhchapSecret>,
    /// Our key for TLS, and the identity that it is offered under; `None`: no TLS.
    pub tls: Option<tls::ClientContext>,
    /// Secure channel concatenation: our secret generates a key for TLS with the controller, another one for each association.
    /// Then `tls` is `None`.
    pub concatenation: bool,
    /// Hashes and groups that may be used for authentication.
    pub policy: DhchapPolicy,
    /// CRC32C behind headers. A controller that does without is refused.
    pub header_digest: bool,
    /// CRC32C behind data. A controller that does without is refused.
    pub data_digest: bool,
    /// I/O queues, each on a connection of its own; 1 to [`IO_QUEUES_MAX`].
    pub queues: u16,
    /// Commands in work per I/O queue; 1 to [`QUEUE_DEPTH_MAX`], and what the controller allows.
    pub depth: u32,
    /// R2Ts of one command that the controller may have outstanding; 1 to 16.
    pub r2ts: u32,
    /// HPDA: data comes at multiples of (HPDA + 1) × 4 bytes; 0 to 31. Some controllers refuse anything
    /// but 0.
    pub hpda: u8,
    /// Whether SQHD counts. Without it the end of a read rides on its data, which every controller that
    /// is known here can do.
    pub flow_control: bool,
    /// The longest command that is offered to those above, in bytes; MDTS may lower it.
    pub transfer_max: u32,
    /// How long things may take.
    pub times: Timeouts,
}

impl Settings {
    /// One I/O queue of 128 commands, no digests, no secret, the default times.
    pub fn new(addresses: Vec<SocketAddr>, subsystem: Nqn, nsid: u32, host: Nqn, host_id: HostId) -> Self {
        Settings {
            addresses,
            source: DialSource::default(),
            subsystem,
            nsid,
            host,
            host_id,
            secret: None,
            controller_secret: None,
            tls: None,
            concatenation: false,
            policy: DhchapPolicy::default(),
            header_digest: false,
            data_digest: false,
            queues: 1,
            depth: 128,
            r2ts: 1,
            hpda: 0,
            flow_control: false,
            transfer_max: 1 << 20,
            times: Timeouts::default(),
        }
    }

    /// The same with numbers brought into their ranges.
    pub(super) fn clamped(mut self) -> Self {
        self.queues = self.queues.clamp(1, IO_QUEUES_MAX);
        self.depth = self.depth.clamp(1, QUEUE_DEPTH_MAX);
        self.transfer_max = self.transfer_max.max(4096);
        (self.r2ts, self.hpda) = (self.r2ts.clamp(1, 16), self.hpda.min(31));
        let second = Duration::from_secs(1);
        self.times.keep_alive = self.times.keep_alive.clamp(second, KEEP_ALIVE_MAX);
        self
    }

    /// What a connection's transport is told.
    pub(super) fn host_queue_settings(&self) -> HostQueueSettings {
        HostQueueSettings {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            r2ts: self.r2ts,
            hpda: self.hpda,
            handshake_timeout: self.times.join,
            pdu_timeout: self.times.command,
            stall_timeout: self.times.command,
            ..HostQueueSettings::default()
        }
    }
}

/// How long things may take. Each wait of a path ends by one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For one address, until TCP stands.
    pub dial: Duration,
    /// For one queue, from TCP until it may be used: ICReq, Connect, authentication.
    pub join: Duration,
    /// For a command of the admin queue.
    pub command: Duration,
    /// For the controller to become ready, or to stop: what it says (CAP.TO), but no longer than this.
    pub ready_max: Duration,
    /// For a command of an operation, until it is aborted. An operation may take several, one after another.
    pub operation: Duration,
    /// For an operation that was asked to abort, until the controller is reset.
    pub abort: Duration,
    /// Keep Alive Timeout (KATO), at least a second: as long may either side be silent.
    pub keep_alive: Duration,
    /// How long at least a controller is taken to carry commands out after its connection was lost, if it
    /// cannot be asked. Else it is counted as NVMe Base 2.1 §9.6 does: twice the KATO that the controller says
    /// that it has, thrice if any traffic keeps it alive, and the Command Quiesce Time that it reports; once the
    /// KATO, and that time, where the connection of the admin queue was closed in good order.
    pub lost_least: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            dial: Duration::from_secs(5),
            join: Duration::from_secs(10),
            command: Duration::from_secs(10),
            ready_max: Duration::from_secs(30),
            operation: Duration::from_secs(30),
            abort: Duration::from_secs(5),
            keep_alive: Duration::from_secs(5),
            lost_least: Duration::ZERO,
        }
    }
}
