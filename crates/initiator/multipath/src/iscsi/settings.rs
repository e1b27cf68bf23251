//! Settings of a path over iSCSI: addresses, names, secrets, parameters, time-outs.

use std::net::SocketAddr;
use std::time::Duration;

use endpoint::DialSource;
use iscsi::initiator::{Credentials, InitiatorLimits, LoginConfig};
use iscsi::negotiate::NegotiationLimits;
use iscsi::wire::{Cid, Isid, Sn, Tsih};

/// Most commands of one path.
pub const PATH_COMMANDS_MAX: u16 = 4096 - INTERNAL_COMMANDS;
/// Commands of the path's own beside those of its owner: a probe, a reservation, and room for retries.
pub(super) const INTERNAL_COMMANDS: u16 = 8;

/// How long a path waits for what. Every wait has an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a TCP connection.
    pub dial: Duration,
    /// For a login, from its first byte to its last.
    pub login: Duration,
    /// For the commands after a login, until the path is up.
    pub start_up: Duration,
    /// For a command's answer. Then the command is aborted. Zero: for ever.
    pub command: Duration,
    /// For the answer to ABORT TASK. Then the logical unit is reset.
    pub abort: Duration,
    /// For the answer to LOGICAL UNIT RESET. Then the session is dropped.
    pub reset: Duration,
    /// How long a command is tried again that the target puts off (BUSY, TASK SET FULL, becoming ready).
    pub retry: Duration,
    /// How long after the loss of a session its commands are taken to live at most, if no login could
    /// end them; as long as Time2Wait and Time2Retain together, if that is longer. It must be more than the time
    /// after which the target ends a session that is silent.
    pub fence: Duration,
    /// Silence after which the target is pinged. Zero: never.
    pub ping: Duration,
    /// For the answer to a ping.
    pub pong: Duration,
    /// How long the target may leave unread what is sent.
    pub stall: Duration,
}

impl Timeouts {
    /// How long a command may take.
    pub(super) fn command_timeout(&self) -> Duration {
        if self.command.is_zero() { Duration::MAX } else { self.command }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Timeouts {
            dial: s(5),
            login: s(15),
            start_up: s(30),
            command: s(30),
            abort: s(10),
            reset: s(15),
            retry: s(30),
            fence: s(100),
            ping: s(5),
            pong: s(5),
            stall: s(20),
        }
    }
}

/// What a path over iSCSI is made from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the target is: at least one address, tried in this order.
    pub portals: Vec<SocketAddr>,
    /// Where connections leave this machine, as far as that is not left to its routes.
    pub source: DialSource,
    /// The target's name.
    pub target: String,
    /// The logical unit's number, below 2^24.
    pub lun: u32,
    /// Our name.
    pub initiator: String,
    /// What we are called besides, for people who read the target's logs.
    pub alias: Option<String>,
    /// Our part of the session's identity: one path at a time may use it with this name and target port
    /// group, for a second one would end the first.
    pub isid: Isid,
    /// How we prove ourselves, and the target itself.
    pub credentials: Option<Credentials>,
    /// What is offered and accepted: digests, immediate data, InitialR2T, bursts, R2Ts, times, level. What
    /// the session cannot do at all is not offered, whatever stands here
    /// ([`InitiatorSession::new`](iscsi::initiator::InitiatorSession::new)).
    pub negotiation: NegotiationLimits,
    /// TCP connections of the session, as far as the target allows: 1 to 16.
    pub links: u16,
    /// Commands of the owner in work at once: 1 to [`PATH_COMMANDS_MAX`].
    pub commands: u16,
    /// How long to wait for what.
    pub timeouts: Timeouts,
}

impl Settings {
    /// Everything as usual: no authentication, no digests unless the target insists, one link, 128 commands.
    #[must_use]
    pub fn new(portals: Vec<SocketAddr>, target: String, lun: u32, initiator: String, isid: Isid) -> Self {
        Settings {
            portals,
            source: DialSource::default(),
            target,
            lun,
            initiator,
            alias: None,
            isid,
            credentials: None,
            negotiation: NegotiationLimits { max_connections: 1, ..NegotiationLimits::default() },
            links: 1,
            commands: 128,
            timeouts: Timeouts::default(),
        }
    }

    pub(super) fn links_max(&self) -> u16 {
        self.links.clamp(1, 16)
    }

    pub(super) fn commands_max(&self) -> u16 {
        self.commands.clamp(1, PATH_COMMANDS_MAX)
    }

    /// The leading login; CmdSN begins anywhere.
    pub(super) fn login_config(&self, cmd_sn: u32) -> LoginConfig {
        LoginConfig {
            initiator_name: self.initiator.clone(),
            alias: self.alias.clone(),
            target_name: Some(self.target.clone()),
            isid: self.isid,
            tsih: Tsih::NONE,
            cid: Cid::new(0),
            cmd_sn: Sn::new(cmd_sn),
            limits: NegotiationLimits {
                max_connections: self.links_max().into(),
                ..self.negotiation.clone()
            },
            credentials: self.credentials.clone(),
        }
    }

    /// The session's limits. The age of commands is watched by the path, which can do more about it than
    /// end the session; what the session's own clock is for is a window that stays closed.
    pub(super) fn session_limits(&self, trace: bool) -> InitiatorLimits {
        let t = &self.timeouts;
        InitiatorLimits {
            commands: self.commands_max() + INTERNAL_COMMANDS,
            login_timeout: t.login,
            nop_interval: (!t.ping.is_zero()).then_some(t.ping),
            nop_timeout: t.pong,
            stall_timeout: t.stall,
            command_timeout: (!t.command.is_zero())
                .then(|| [t.abort, t.reset, t.reset].into_iter().fold(t.command, Duration::saturating_add)),
            trace,
        }
    }
}
