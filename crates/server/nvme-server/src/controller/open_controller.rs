//! Opening of controllers, Connects of I/O queues (NVMe Base §6.3), and requests of the composition to both.

use std::sync::Arc;

use buf::Cx;
use nvme::Completion;
use nvme::fabrics::ConnectRefusal;
use nvme::property::{ControllerConfiguration, ControllerStatus, ShutdownStatus};
use volume::ShardId;

use super::ana::AnaGroups;
use super::async_events::{AsyncEventKind, AsyncEvents};
use super::error_log::ErrorLog;
use super::feature_values::FeatureValues;
use super::{AdminWait, Controller, JoinedQueue, WaitingCommand, ana, reservation_notices, reset};
use crate::authentication::RequiredAuthentication;
use crate::discovery::DiscoveryEntries;
use crate::queue_message::QueueCounters;
use crate::server::Server;
use crate::spec::{ControllerSpec, IoQueueConnect, QUEUES_MAX, QueueSpec, sort_and_dedup_by_nsid};
use crate::step::{ControllerEnd, QueueKey};

impl Server {
    /// Opens a controller on this shard, with its admin queue, whose Connect [`Server::connect_completion`]
    /// answers.
    ///
    /// # Panics
    /// If there is a controller of this number here: a number is given again only after
    /// [`ControllerStep::ControllerGone`](crate::ControllerStep::ControllerGone). If the keep-alive timeout is none that is
    /// granted ([`KeepAliveLimits::granted_timeout_ms`](crate::KeepAliveLimits::granted_timeout_ms)).
    pub fn open_controller(&mut self, cx: &mut Cx<'_>, spec: ControllerSpec) -> QueueKey {
        self.controllers.associations += 1;
        let association = self.controllers.associations;
        let namespaces = sort_and_dedup_by_nsid(spec.namespaces.clone());
        let mut controller = Controller {
            association,
            instance: reset::new_instance(cx.entropy, spec.cntlid, association),
            admin: QueueKey(u32::MAX),
            namespaces,
            configuration: ControllerConfiguration::default(),
            status: ControllerStatus::default(),
            granted: spec.limits.queues,
            members: Vec::new(),
            last_queue_slot: QUEUES_MAX,
            waiting: Vec::new(),
            tickets: 0,
            past: QueueCounters::default(),
            opened: cx.now,
            keep_alive_timeout: None,
            last_heard: cx.now,
            lost: None,
            armed: None,
            ending: None,
            admin_gone: false,
            unanswered: Vec::new(),
            events: AsyncEvents::default(),
            errors: ErrorLog::default(),
            features: FeatureValues::default(),
            ana: AnaGroups::default(),
            notices: reservation_notices::ReservationNoticeLog::default(),
            snapshot: None,
            spec,
        };
        let fits = controller.set_kato(cx.now, controller.spec.kato_ms);
        assert!(fits, "a Connect was refused whose keep-alive timeout is not granted");
        let cntlid = controller.spec.cntlid;
        let admin = self.open_queue(
            cx,
            controller.queue_spec(
                self.context.shard,
                0,
                controller.spec.entries,
                controller.spec.flow_control,
            ),
        );
        controller.admin = admin;
        let states = ana::ana_groups(&self.context, &controller.namespaces, controller.spec.nexus.port);
        controller.ana.update(states);
        let old = self.controllers.here.insert(cntlid, controller);
        assert!(old.is_none(), "a controller's number is given again only after it is gone");
        self.controllers.schedule_deadline(cntlid);
        admin
    }

    /// Lets an I/O queue in, or says why not (NVMe Base §6.3, in the order of its checks). The queue
    /// counts from now on: it is to be opened on `join.shard`, or given up there.
    pub fn admit_io_queue(
        &mut self,
        cntlid: u16,
        join: &IoQueueConnect,
    ) -> Result<QueueSpec, ConnectRefusal> {
        let shard = self.context.shard;
        let controller = self.controllers.find_mut(cntlid).ok_or(ConnectRefusal::CNTLID)?;
        if controller.ending.is_some() || controller.is_discovery() {
            return Err(ConnectRefusal::CNTLID);
        }
        if controller.spec.subsystem.nqn != join.subsystem {
            return Err(ConnectRefusal::SUBNQN);
        }
        if controller.spec.host.nqn != join.host.nqn {
            return Err(ConnectRefusal::HOSTNQN);
        }
        if controller.spec.host.id != join.host.id {
            return Err(ConnectRefusal::HOSTID);
        }
        let status = &controller.status;
        if !controller.configuration.is_enabled() || !status.ready || status.shutdown != ShutdownStatus::No {
            return Err(ConnectRefusal::Sequence);
        }
        // What is behind a secure channel is not served in front of it.
        if self.context.queues.find(controller.admin).is_some_and(|admin| admin.awaits_tls()) {
            return Err(ConnectRefusal::Host);
        }
        if join.qid == 0 || join.qid > controller.granted {
            return Err(ConnectRefusal::QID);
        }
        // A queue that has proved nothing keeps nobody out: who proves first has the identifier.
        if controller.members.iter().any(|member| member.qid == join.qid && member.proven) {
            return Err(ConnectRefusal::Sequence);
        }
        if join.entries < 2 || join.entries > controller.spec.limits.entries {
            return Err(ConnectRefusal::SQSIZE);
        }
        let proven = !controller.spec.must_authenticate();
        let queue_slot = if proven { Some(join.qid) } else { controller.free_queue_slot() };
        let queue_slot = queue_slot.ok_or(ConnectRefusal::Busy)?;
        controller.members.push(JoinedQueue {
            qid: join.qid,
            queue_slot,
            proven,
            shard: join.shard,
            open: false,
            counters: QueueCounters::default(),
        });
        let spec = controller.queue_spec(shard, join.qid, join.entries, join.flow_control);
        Ok(QueueSpec { queue_slot, ..spec })
    }

    /// The shard of each I/O queue that a controller has, or has let in.
    pub fn queue_shards(&self, cntlid: u16) -> impl Iterator<Item = ShardId> + '_ {
        let controller = self.controllers.find(cntlid);
        controller.into_iter().flat_map(|controller| controller.members.iter().map(|member| member.shard))
    }

    /// Whether the controller has a queue of this number that has proved what it must.
    pub fn has_proven_queue(&self, cntlid: u16, qid: u16) -> bool {
        let controller = self.controllers.find(cntlid).filter(|controller| controller.ending.is_none());
        controller.is_some_and(|it| it.members.iter().any(|member| member.qid == qid && member.proven))
    }

    /// How the Connect that made this queue is answered, once it is open.
    pub fn connect_completion(&self, key: QueueKey) -> Completion {
        self.context.queues.get(key).spec.connect_completion()
    }

    /// Whether a controller has neither I/O queues nor anything to do but to wait for events, and is not
    /// ending.
    pub fn is_idle(&self, cntlid: u16) -> bool {
        self.controllers.find(cntlid).is_some_and(|controller| {
            let waits = |waiting: &WaitingCommand| matches!(waiting.on, AdminWait::Event);
            let stays = controller.ending.is_none() && !controller.admin_gone;
            stays && controller.members.is_empty() && controller.waiting.iter().all(waits)
        })
    }

    /// What a controller's host must prove changes, for queues that connect from now on; what is served
    /// goes on. False, and the controller is to be ended: the host has not proved who it is, and has to.
    #[must_use]
    pub fn change_authentication(&mut self, cntlid: u16, auth: &Option<Arc<RequiredAuthentication>>) -> bool {
        let Some(controller) = self.controllers.find(cntlid) else { return true };
        let admin = controller.admin;
        let unproven = !controller.admin_gone && self.must_authenticate(admin);
        let Some(controller) = self.controllers.find_mut(cntlid) else { return true };
        let is_required = auth.as_ref().is_some_and(|auth| auth.is_required());
        if unproven || (is_required && !controller.spec.must_authenticate()) {
            return false;
        }
        controller.spec.auth.clone_from(auth);
        true
    }
    /// What the host of a discovery controller can discover has changed: it is told if it sees another log.
    pub fn change_discovery(&mut self, cntlid: u16, entries: &Arc<DiscoveryEntries>) {
        let Some(controller) = self.controllers.find_mut(cntlid) else { return };
        let Some(discovery) = &mut controller.spec.discovery else { return };
        let host = &controller.spec.host.nqn;
        let same = discovery.entries.is_same_for_host(entries, host, discovery.local);
        discovery.entries = entries.clone();
        if !same {
            controller.events.raise(AsyncEventKind::Discovery);
            self.controllers.complete_event_requests(&mut self.context.steps, cntlid);
        }
    }
    /// Ends a controller, with all its queues: its subsystem, its host's leave, or its port is gone.
    /// [`ControllerStep::EndQueue`](crate::ControllerStep::EndQueue)s and, in the end, [`ControllerStep::ControllerGone`](crate::ControllerStep::ControllerGone) follow.
    pub fn end_controller(&mut self, cntlid: u16) {
        self.controllers.end_association(&mut self.context.steps, cntlid, ControllerEnd::Removed);
    }
}
