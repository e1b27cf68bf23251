//! From plain data to controllers and queues that go on.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Time};
use nvme::auth::{DhGroup, Hash};
use nvme::log::ReservationNotice;
use nvme::log::ana::{AnaGroup, AnaState};
use nvme::property::{ControllerConfiguration, ControllerStatus};
use nvme::{ControllerInstance, TransferMax};
use volume::{Requester, ShardId, VolumeId};

use super::body::{
    AnaBody, ControllerSnapshot, EventsBody, FeaturesBody, NamespaceBody, NoticesBody, ProofBody,
    ServerQueueSnapshot,
};
use crate::authentication::RequiredAuthentication;
use crate::controller::ana::AnaGroups;
use crate::controller::async_events::{AsyncEvents, CHANGED_MAX, EVENT_KIND_BITS};
use crate::controller::error_log::{ERROR_LOG_ENTRIES, ErrorLog};
use crate::controller::feature_values::{FeatureValues, HOST_BEHAVIOR_LEN};
use crate::controller::reservation_notices::{NOTICES_MAX, PAGE_LEN, ReservationNoticeLog};
use crate::controller::{Controller, JoinedQueue, KNOWN_QUEUES_MAX};
use crate::discovery::ADMIN_ENTRIES_MAX;
use crate::queue_message::FAILURES_MAX;
use crate::server::Server;
use crate::spec::{
    ANA_GROUPS_MAX, ControllerLimits, ControllerSpec, HostIdentity, NAMESPACES_MAX, NamespaceEntry,
    QUEUES_MAX, QueueSpec,
};
use crate::step::QueueKey;

/// The most entries of an I/O queue.
const IO_ENTRIES_MAX: u32 = 1024;

/// Why a controller or a queue cannot go on from what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssociationRestoreError {
    /// It came by a port that has another number now.
    OtherPort,
    /// Its host must prove who it is now, and never did.
    Unproven,
    /// The snapshot contradicts itself, in this.
    Contradiction(&'static str),
}

/// In words.
impl fmt::Display for AssociationRestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AssociationRestoreError::OtherPort => f.write_str("its port has another number now"),
            AssociationRestoreError::Unproven => {
                f.write_str("its host must prove now who it is, and has not")
            }
            AssociationRestoreError::Contradiction(what) => {
                write!(f, "a snapshot that contradicts itself ({what})")
            }
        }
    }
}

impl std::error::Error for AssociationRestoreError {}

type Restored<T> = Result<T, AssociationRestoreError>;

fn check(sound: bool, what: &'static str) -> Restored<()> {
    if sound { Ok(()) } else { Err(AssociationRestoreError::Contradiction(what)) }
}

fn found<T>(value: Option<T>, what: &'static str) -> Restored<T> {
    value.ok_or(AssociationRestoreError::Contradiction(what))
}

impl Server {
    /// Goes on with a controller of another process, and gives the key of its admin queue. `spec` is what the
    /// configuration makes of it now; what was told to its host comes from the snapshot, its namespaces too. A volume
    /// that is not here is away.
    ///
    /// # Errors
    /// Nothing is opened.
    ///
    /// # Panics
    /// If there is a controller of this number here.
    pub fn restore_controller(
        &mut self,
        cx: &mut Cx<'_>,
        spec: ControllerSpec,
        snapshot: &ControllerSnapshot,
    ) -> Restored<QueueKey> {
        self.context.now = cx.now;
        let admin = &snapshot.admin;
        check(admin.qid == 0 && admin.queue_slot == 0 && admin.cntlid == spec.cntlid, "the admin queue")?;
        check((2..=ADMIN_ENTRIES_MAX).contains(&admin.entries), "the admin queue")?;
        check(
            ShardId(admin.home) == self.context.shard && spec.discovery.is_none(),
            "the controller's shard",
        )?;
        if spec.nexus.port.0 != snapshot.port || admin.port != snapshot.port {
            return Err(AssociationRestoreError::OtherPort);
        }
        let limits = controller_limits(snapshot)?;
        check((1..=limits.queues).contains(&snapshot.granted), "the number of queues")?;
        let spec = ControllerSpec {
            kato_ms: snapshot.kato_ms,
            entries: admin.entries,
            flow_control: admin.flow_control,
            individual_deletion: snapshot.individual_deletion,
            limits,
            namespaces: Vec::new(),
            ..spec
        };
        let namespaces = self.namespace_entries(&admin.namespaces)?;
        let (host, auth) = (spec.host.clone(), spec.auth.clone());
        let (uniquifier, random_number) = snapshot.instance;
        let mut controller = Controller {
            association: admin.association,
            instance: ControllerInstance { cntlid: spec.cntlid, uniquifier, random_number },
            admin: QueueKey(u32::MAX),
            namespaces,
            configuration: ControllerConfiguration(snapshot.configuration),
            status: ControllerStatus::parse(snapshot.status.into()),
            granted: snapshot.granted,
            members: members(snapshot)?,
            last_queue_slot: QUEUES_MAX,
            waiting: Vec::new(),
            tickets: 0,
            past: snapshot.past,
            opened: Time(cx.now.0.saturating_sub(snapshot.age_ns)),
            keep_alive_timeout: keep_alive_timeout(snapshot.kato_ms),
            last_heard: cx.now,
            lost: None,
            armed: None,
            ending: None,
            admin_gone: false,
            unanswered: Vec::new(),
            events: events(&snapshot.events)?,
            errors: errors(snapshot, cx.now)?,
            features: features(&snapshot.features, cx.now)?,
            ana: ana(&snapshot.ana)?,
            notices: notices(&snapshot.notices)?,
            snapshot: None,
            spec,
        };
        let requester = controller.spec.nexus.clone();
        let key = self.open_restored_queue(cx, admin, (host, requester), auth)?;
        controller.admin = key;
        let cntlid = controller.spec.cntlid;
        self.controllers.associations = self.controllers.associations.max(controller.association);
        let old = self.controllers.here.insert(cntlid, controller);
        assert!(old.is_none(), "a controller is restored once");
        self.controllers.schedule_deadline(cntlid);
        // What has become of paths meanwhile is news.
        self.controllers.refresh_ana_groups(&mut self.context, cntlid);
        Ok(key)
    }

    /// Goes on with an I/O queue of another process; its controller does so on its own shard. `nexus` is who sends by
    /// it, `auth` what its host must prove.
    ///
    /// # Errors
    /// Nothing is opened.
    pub fn restore_io_queue(
        &mut self,
        cx: &mut Cx<'_>,
        snapshot: &ServerQueueSnapshot,
        (host, nexus): (HostIdentity, Requester),
        auth: Option<Arc<RequiredAuthentication>>,
    ) -> Restored<QueueKey> {
        self.context.now = cx.now;
        check((1..=QUEUES_MAX).contains(&snapshot.qid) && snapshot.queue_slot != 0, "a queue's number")?;
        check((2..=IO_ENTRIES_MAX).contains(&snapshot.entries), "a queue's size")?;
        if nexus.port.0 != snapshot.port {
            return Err(AssociationRestoreError::OtherPort);
        }
        let key = self.open_restored_queue(cx, snapshot, (host, nexus), auth)?;
        self.context.queues.register_io_queue((snapshot.cntlid, snapshot.queue_slot), key);
        Ok(key)
    }

    fn open_restored_queue(
        &mut self,
        cx: &Cx<'_>,
        snapshot: &ServerQueueSnapshot,
        (host, nexus): (HostIdentity, Requester),
        auth: Option<Arc<RequiredAuthentication>>,
    ) -> Restored<QueueKey> {
        let transfer = TransferMax::from_bytes(snapshot.transfer_max.into());
        check(transfer.is_some() && snapshot.cntlid != 0, "a queue")?;
        check(snapshot.failures.len() <= FAILURES_MAX, "failures")?;
        let proof = snapshot.proof.map(proof).transpose()?;
        if proof.is_none() && auth.as_ref().is_some_and(|auth| auth.is_required()) {
            return Err(AssociationRestoreError::Unproven);
        }
        let spec = QueueSpec {
            cntlid: snapshot.cntlid,
            association: snapshot.association,
            qid: snapshot.qid,
            queue_slot: snapshot.queue_slot,
            entries: snapshot.entries,
            flow_control: snapshot.flow_control,
            in_capsule: snapshot.in_capsule,
            home: ShardId(snapshot.home),
            host,
            nexus,
            namespaces: self.namespace_entries(&snapshot.namespaces)?,
            transfer_max: snapshot.transfer_max,
            traffic_ms: snapshot.traffic_ms,
            delays_retries: snapshot.delays_retries,
            auth,
        };
        let key = self.context.insert_queue(cx.pool, spec);
        let queue = self.context.queues.get_mut(key);
        queue.counters = snapshot.counters;
        queue.failures = snapshot.failures.iter().map(|failure| failure.to_failure(cx.now)).collect();
        queue.failed = snapshot.failed;
        if let (Some(guard), Some(method)) = (&mut queue.guard, proof) {
            guard.set_authenticated(method);
        }
        Ok(key)
    }

    fn namespace_entries(&self, bodies: &[NamespaceBody]) -> Restored<Arc<[NamespaceEntry]>> {
        check(bodies.len() <= NAMESPACES_MAX as usize, "namespaces")?;
        check(bodies.is_sorted_by(|one, next| one.nsid < next.nsid), "namespaces")?;
        let sound = |body: &NamespaceBody| {
            (1..=NAMESPACES_MAX).contains(&body.nsid) && (1..=ANA_GROUPS_MAX).contains(&body.ana_group)
        };
        check(bodies.iter().all(sound), "namespaces")?;
        let entry = |body: &NamespaceBody| {
            let is_it = |uuid: &[u8; 16]| {
                let mut all = self.context.volumes.iter();
                all.find(|(_, known)| known.info.facts.uuid.0 == *uuid).map(|(volume, _)| volume)
            };
            NamespaceEntry {
                nsid: body.nsid,
                volume: body.volume.as_ref().and_then(is_it).unwrap_or(VolumeId::UNAVAILABLE),
                read_only: body.read_only,
                ana_group: body.ana_group,
            }
        };
        Ok(bodies.iter().map(entry).collect())
    }
}

fn keep_alive_timeout(kato_ms: u32) -> Option<Duration> {
    (kato_ms != 0).then(|| Duration::from_millis(kato_ms.into()))
}

fn proof(body: ProofBody) -> Restored<Option<(Hash, DhGroup)>> {
    let Some((hash, group)) = body.method else { return Ok(None) };
    let method = Hash::from_id(hash).zip(DhGroup::from_id(group));
    Ok(Some(found(method, "how a host proved who it is")?))
}

fn controller_limits(snapshot: &ControllerSnapshot) -> Restored<ControllerLimits> {
    let limits = &snapshot.limits;
    check((1..=QUEUES_MAX).contains(&limits.queues), "limits")?;
    check((2..=IO_ENTRIES_MAX).contains(&limits.entries), "limits")?;
    Ok(ControllerLimits {
        queues: limits.queues,
        entries: limits.entries,
        transfer: found(TransferMax::from_bytes(limits.transfer.into()), "limits")?,
        in_capsule: limits.in_capsule,
    })
}

fn members(snapshot: &ControllerSnapshot) -> Restored<Vec<JoinedQueue>> {
    check(snapshot.members.len() <= KNOWN_QUEUES_MAX, "queues")?;
    let (mut slots, mut qids) = (HashSet::new(), HashSet::new());
    let member = |body: &super::body::MemberBody| {
        let fresh = slots.insert(body.queue_slot) && qids.insert(body.qid);
        check(fresh && body.queue_slot != 0 && (1..=QUEUES_MAX).contains(&body.qid), "queues")?;
        Ok(JoinedQueue {
            qid: body.qid,
            queue_slot: body.queue_slot,
            proven: true,
            shard: ShardId(body.shard),
            open: true,
            counters: body.counters,
        })
    };
    snapshot.members.iter().map(member).collect()
}

fn events(body: &EventsBody) -> Restored<AsyncEvents> {
    check((body.pending | body.masked) & !EVENT_KIND_BITS == 0, "events")?;
    check(body.changed.len() <= CHANGED_MAX, "changed namespaces")?;
    check(body.changed.is_sorted_by(|one, next| one < next), "changed namespaces")?;
    Ok(AsyncEvents {
        configuration: body.configuration,
        pending: body.pending,
        masked: body.masked,
        changed: body.changed.clone(),
    })
}

fn errors(snapshot: &ControllerSnapshot, now: Time) -> Restored<ErrorLog> {
    check(snapshot.errors.len() <= ERROR_LOG_ENTRIES, "the error log")?;
    let entries: VecDeque<_> =
        snapshot.errors.iter().map(|one| (one.number, one.qid, one.failure.to_failure(now))).collect();
    Ok(ErrorLog { entries, count: snapshot.errors_count })
}

fn features(body: &FeaturesBody, now: Time) -> Restored<FeatureValues> {
    check(body.behavior.len() == HOST_BEHAVIOR_LEN, "features")?;
    check(body.masks.len() <= NAMESPACES_MAX as usize, "features")?;
    check(body.masks.is_sorted_by(|one, next| one.0 < next.0), "features")?;
    Ok(FeatureValues {
        arbitration: body.arbitration,
        power: body.power,
        thresholds: body.thresholds,
        error_recovery: body.error_recovery,
        atomicity: body.atomicity,
        timestamp: body.timestamp.map(|ms| (ms, now)),
        behavior: body.behavior.clone(),
        masks: body.masks.clone(),
    })
}

fn ana(body: &AnaBody) -> Restored<AnaGroups> {
    check(body.groups.len() <= ANA_GROUPS_MAX as usize, "ANA groups")?;
    check(body.groups.is_sorted_by(|one, next| one.id < next.id), "ANA groups")?;
    let group = |group: &super::body::AnaGroupBody| {
        let state = found(AnaState::from_code(group.state), "ANA groups")?;
        check(group.nsids.len() <= NAMESPACES_MAX as usize, "ANA groups")?;
        Ok(AnaGroup { id: group.id, changes: group.changes, state, nsids: group.nsids.clone() })
    };
    let groups = body.groups.iter().map(group).collect::<Restored<_>>()?;
    Ok(AnaGroups { changes: body.changes, groups })
}

fn notices(body: &NoticesBody) -> Restored<ReservationNoticeLog> {
    check(body.queue.len() <= NOTICES_MAX, "reservation notices")?;
    let shown: [u8; PAGE_LEN] = found(body.shown.as_slice().try_into().ok(), "reservation notices")?;
    let notice = |(count, what, nsid): &(u64, u8, u32)| {
        let what = match what {
            1 => ReservationNotice::RegistrationPreempted,
            2 => ReservationNotice::ReservationReleased,
            3 => ReservationNotice::ReservationPreempted,
            _ => return Err(AssociationRestoreError::Contradiction("reservation notices")),
        };
        Ok((*count, what, *nsid))
    };
    let queue = body.queue.iter().map(notice).collect::<Restored<_>>()?;
    Ok(ReservationNoticeLog { queue, count: body.count, shown })
}
