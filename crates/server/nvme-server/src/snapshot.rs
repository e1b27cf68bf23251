//! What controllers and queues are for another process that goes on with them. Volumes are named by their UUIDs.
//!
//! A controller is saved with its admin queue, on its shard; an I/O queue on the shard where it lives. Requests for
//! events that wait are given back first ([`Server::withdraw_event_requests`]): they are announced again in the new
//! process.
//!
//! Invariant: nothing of a queue that is saved is in work, and its host has proved who it is, if it must. The new
//! process makes what is configured from its own configuration. What was told to the host stays.

mod body;
mod restore;

use std::fmt;

use nvme::{Opcode, Sqe};
use volume::{Time, VolumeId};
use zerocopy::FromZeros;
use zerocopy::little_endian::U16;

pub use body::{ControllerSnapshot, ServerQueueSnapshot};
pub use restore::AssociationRestoreError;

use crate::authentication::QueueAuthentication;
use crate::controller::{AdminWait, Controller, WaitingCommand};
use crate::queue::Queue;
use crate::server::Server;
use crate::spec::NamespaceEntry;
use crate::step::{CommandKey, QueueKey};
use body::{
    AnaBody, AnaGroupBody, ErrorBody, EventsBody, FailureBody, FeaturesBody, LimitsBody, MemberBody,
    NamespaceBody, NoticesBody, ProofBody,
};
use nvme::auth::AuthState;

/// Why a controller or a queue cannot be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssociationSaveRefusal {
    /// Not yet: commands are in work.
    Busy,
    /// Never: it is a discovery controller, which hosts open again.
    Discovery,
    /// Never: it is ending, or a queue of it is lost.
    Ending,
    /// Never: a queue joins it just now.
    Joining,
    /// Never: the host has still to prove who it is.
    Authenticating,
}

/// In words.
impl fmt::Display for AssociationSaveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AssociationSaveRefusal::Busy => "commands are being executed",
            AssociationSaveRefusal::Discovery => "it is a discovery controller",
            AssociationSaveRefusal::Ending => "it is ending",
            AssociationSaveRefusal::Joining => "a queue is being connected",
            AssociationSaveRefusal::Authenticating => "its host is authenticating",
        })
    }
}

impl Server {
    /// How many commands are in work, apart from requests for events.
    pub fn work_count(&self) -> usize {
        let waits = |waiting: &&WaitingCommand| !matches!(waiting.on, AdminWait::Event);
        let admin = self.controllers.iter().map(|controller| controller.waiting.iter().filter(waits).count());
        let others = self.computing.len() + usize::from(!self.context.steps.is_empty());
        self.context.tasks.iter().count() + admin.sum::<usize>() + others
    }

    /// Whether a queue's next command must be the second half of a fused pair.
    pub fn awaits_second_half(&self, key: QueueKey) -> bool {
        self.context.queues.find(key).is_some_and(|queue| queue.half.is_some())
    }

    /// Takes the requests for events that wait at a controller, as its host sent them.
    pub fn withdraw_event_requests(&mut self, cntlid: u16) -> Vec<(CommandKey, Sqe)> {
        let Some(controller) = self.controllers.find_mut(cntlid) else { return Vec::new() };
        let waits = |waiting: &mut WaitingCommand| matches!(waiting.on, AdminWait::Event);
        let withdrawn = controller.waiting.extract_if(.., waits);
        withdrawn
            .map(|waiting| {
                let mut sqe = Sqe::new_zeroed();
                (sqe.opcode, sqe.cid) = (Opcode::ASYNC_EVENT_REQUEST, U16::new(waiting.cid));
                (waiting.key, sqe)
            })
            .collect()
    }

    /// A controller of this shard with its admin queue, for another process. Its requests for events are withdrawn.
    ///
    /// # Errors
    /// It cannot be saved, now or at all.
    pub fn save_controller(
        &self,
        now: Time,
        cntlid: u16,
    ) -> Result<ControllerSnapshot, AssociationSaveRefusal> {
        let controller = self.controllers.find(cntlid).ok_or(AssociationSaveRefusal::Ending)?;
        if controller.is_discovery() {
            return Err(AssociationSaveRefusal::Discovery);
        }
        if controller.ending.is_some() || controller.admin_gone || controller.lost.is_some() {
            return Err(AssociationSaveRefusal::Ending);
        }
        if controller.members.iter().any(|member| !member.open || !member.proven) {
            return Err(AssociationSaveRefusal::Joining);
        }
        if !controller.waiting.is_empty() || !controller.unanswered.is_empty() {
            return Err(AssociationSaveRefusal::Busy);
        }
        let admin = self.save_queue(controller.admin)?;
        Ok(self.controller_snapshot(now, controller, admin))
    }

    fn controller_snapshot(
        &self,
        now: Time,
        controller: &Controller,
        admin: ServerQueueSnapshot,
    ) -> ControllerSnapshot {
        let Controller { spec, features, events, errors, notices, ana, .. } = controller;
        let members = controller.members.iter().map(|member| MemberBody {
            qid: member.qid,
            queue_slot: member.queue_slot,
            shard: member.shard.0,
            counters: member.counters,
        });
        let errors_of = errors.entries.iter().map(|(number, qid, failure)| ErrorBody {
            number: *number,
            qid: *qid,
            failure: FailureBody::of(failure),
        });
        let groups = ana.groups.iter().map(|group| AnaGroupBody {
            id: group.id,
            changes: group.changes,
            state: group.state as u8,
            nsids: group.nsids.clone(),
        });
        ControllerSnapshot {
            port: spec.nexus.port.0,
            kato_ms: spec.kato_ms,
            individual_deletion: spec.individual_deletion,
            limits: LimitsBody {
                queues: spec.limits.queues,
                entries: spec.limits.entries,
                transfer: spec.limits.transfer.bytes(),
                in_capsule: spec.limits.in_capsule,
            },
            configuration: controller.configuration.0,
            status: controller.status.to_u32(),
            granted: controller.granted,
            members: members.collect(),
            past: controller.past,
            age_ns: now.since(controller.opened).as_nanos() as u64,
            events: EventsBody {
                configuration: events.configuration,
                pending: events.pending,
                masked: events.masked,
                changed: events.changed.clone(),
            },
            errors: errors_of.collect(),
            errors_count: errors.count,
            features: FeaturesBody {
                arbitration: features.arbitration,
                power: features.power,
                thresholds: features.thresholds,
                error_recovery: features.error_recovery,
                atomicity: features.atomicity,
                timestamp: features
                    .timestamp
                    .map(|(base, at)| base.wrapping_add(now.since(at).as_millis() as u64)),
                behavior: features.behavior.clone(),
                masks: features.masks.clone(),
            },
            ana: AnaBody { changes: ana.changes, groups: groups.collect() },
            notices: NoticesBody {
                queue: notices.queue.iter().map(|(count, what, nsid)| (*count, *what as u8, *nsid)).collect(),
                count: notices.count,
                shown: notices.shown.to_vec(),
            },
            instance: (controller.instance.uniquifier, controller.instance.random_number),
            admin,
        }
    }

    /// A queue of this shard for another process: an I/O queue; an admin queue goes with its controller.
    ///
    /// # Errors
    /// It cannot be saved, now or at all.
    pub fn save_queue(&self, key: QueueKey) -> Result<ServerQueueSnapshot, AssociationSaveRefusal> {
        let queue = self.context.queues.find(key).ok_or(AssociationSaveRefusal::Ending)?;
        if queue.closing || queue.ended || queue.end_requested {
            return Err(AssociationSaveRefusal::Ending);
        }
        if queue.half.is_some() || queue.live > 0 || !queue.aborting.is_empty() {
            return Err(AssociationSaveRefusal::Busy);
        }
        let proof = queue.guard.as_ref().map(proof_of).transpose()?;
        Ok(self.queue_snapshot(queue, proof))
    }

    fn queue_snapshot(&self, queue: &Queue, proof: Option<ProofBody>) -> ServerQueueSnapshot {
        let spec = &queue.spec;
        ServerQueueSnapshot {
            cntlid: spec.cntlid,
            association: spec.association,
            qid: spec.qid,
            queue_slot: spec.queue_slot,
            entries: spec.entries,
            flow_control: spec.flow_control,
            in_capsule: spec.in_capsule,
            home: spec.home.0,
            port: spec.nexus.port.0,
            transfer_max: spec.transfer_max,
            traffic_ms: spec.traffic_ms,
            delays_retries: spec.delays_retries,
            namespaces: spec.namespaces.iter().map(|entry| self.namespace_body(entry)).collect(),
            counters: queue.counters,
            failures: queue.failures.iter().map(FailureBody::of).collect(),
            failed: queue.failed,
            proof,
        }
    }

    fn namespace_body(&self, entry: &NamespaceEntry) -> NamespaceBody {
        let volume = match entry.volume {
            VolumeId::UNAVAILABLE => None,
            volume => self.volume_info(volume).map(|info| info.facts.uuid.0),
        };
        NamespaceBody { nsid: entry.nsid, volume, read_only: entry.read_only, ana_group: entry.ana_group }
    }
}

/// How the host of a queue has proved who it is.
fn proof_of(guard: &QueueAuthentication) -> Result<ProofBody, AssociationSaveRefusal> {
    if guard.machine.state() != AuthState::Authenticated
        || guard.machine.awaits_tls()
        || guard.waiting.is_some()
    {
        return Err(AssociationSaveRefusal::Authenticating);
    }
    let method = guard.machine.negotiated_method();
    Ok(ProofBody { method: method.map(|(hash, group)| (hash.id(), group.id())) })
}
