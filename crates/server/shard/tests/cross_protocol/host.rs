//! The hosts of a history: sessions of iSCSI, and controllers of NVMe/TCP with their queues.

use std::collections::{BTreeMap, BTreeSet};

use buf::Time;
use nvme::Status;

use crate::command::Flight;
use crate::queue::{Ended, Queue};
use testkit::iscsi_initiator::{self, TestInitiator};

pub struct Host {
    pub flights: BTreeMap<u64, Flight>,
    pub side: Side,
}

pub enum Side {
    Scsi(Box<Session>),
    Nvme(Controller),
}

/// A session of iSCSI.
pub struct Session {
    pub isid: u16,
    pub initiator: TestInitiator,
    /// Task management under way, with the task that it is for; `None`: a reset of the unit.
    pub managing: BTreeMap<u32, Option<u32>>,
    /// How commands ended that are no part of the history.
    pub answers: Vec<iscsi_initiator::CommandResult>,
    /// Unit attentions: codes and qualifiers.
    pub told: Vec<[u8; 2]>,
}

/// A controller, from the host's side. The admin queue is the first.
#[derive(Default)]
pub struct Controller {
    /// Tells hosts apart.
    pub host_id: u8,
    pub cntlid: u16,
    pub queues: Vec<Queue>,
    /// How commands ended that are no part of the history.
    pub answers: Vec<Ended>,
    /// Aborts under way.
    pub aborts: BTreeSet<u64>,
    /// First halves of pairs under way, by their second halves, and how those ended that have.
    pub pairs: BTreeMap<u64, Pair>,
    /// Writes that were given up while the controller might still carry them out.
    pub orphans: Vec<Flight>,
    /// Whether it is ready and all its queues are connected.
    pub enabled: bool,
    /// Requests for events under way.
    pub requests: BTreeSet<u64>,
    /// Logs that are being read, and Keep Alives.
    pub chores: BTreeMap<u64, Option<u8>>,
    /// Logs that events have named, or that were read; with the namespaces that such a log told of.
    pub told: Vec<(u8, u32)>,
    /// When it last sent a Keep Alive.
    pub kept: Time,
}

/// A fused pair under way.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub first: u64,
    pub of_first: Option<Status>,
    pub of_second: Option<Status>,
}

impl Controller {
    /// Notes the end of half of a pair; gives the pair's second half and both ends when both are known.
    pub fn half_ended(&mut self, id: u64, status: Status) -> Option<(u64, Status, Status)> {
        let (&second, pair) =
            self.pairs.iter_mut().find(|(second, pair)| pair.first == id || **second == id)?;
        let place = if second == id { &mut pair.of_second } else { &mut pair.of_first };
        assert!(place.replace(status).is_none(), "a command ends once");
        let (of_first, of_second) = (pair.of_first?, pair.of_second?);
        self.pairs.remove(&second);
        Some((second, of_first, of_second))
    }

    pub fn is_in_pair(&self, id: u64) -> bool {
        self.pairs.iter().any(|(second, pair)| pair.first == id || *second == id)
    }
}

impl Host {
    pub fn is_idle(&self) -> bool {
        let side = match &self.side {
            Side::Scsi(session) => session.managing.is_empty(),
            Side::Nvme(controller) => controller.aborts.is_empty() && controller.pairs.is_empty(),
        };
        self.flights.is_empty() && side
    }

    pub fn controller(&mut self) -> &mut Controller {
        match &mut self.side {
            Side::Nvme(controller) => controller,
            Side::Scsi(_) => unreachable!("this host speaks iSCSI"),
        }
    }

    pub fn session(&mut self) -> &mut Session {
        match &mut self.side {
            Side::Scsi(session) => session,
            Side::Nvme(_) => unreachable!("this host speaks NVMe"),
        }
    }
}
