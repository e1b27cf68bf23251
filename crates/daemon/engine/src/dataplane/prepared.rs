//! Another configuration for the shards that run: what it would disturb, what has to be there before, and the switch.
//!
//! Invariants: nothing that is served changes before the switch, and what is bound for a plan that is not switched to
//! is let go; a portal that both plans have keeps its socket. Shards change one after the other, each at once: a
//! connection goes by the old settings or by the new ones, never by a part of them.

use std::{collections::BTreeMap, sync::Arc};

use endpoint::{AcceptedSocket, ListenerId};
use nvme::{Nqn, fabrics::ConnectNames};
use reactor::BoundListener;
use shard::{EndCause, Exports, QueueEntry, SessionStatus};
use volume::VolumeId;

use super::{
    catalog::Catalog,
    exports::{FixedSettings, VolumeExportInfo},
    nvme_queues, reactor_settings,
    shards::Shards,
};
use crate::{
    EngineError,
    state::target_ports::TargetPortNumbers,
    store::{Store, known_uuids},
};
use config::{
    name::VolumeName,
    plan::{ExportPlan, Plan, Protocol},
};
use control::report::plan::DisturbanceReport;
use process::log::area;

/// A plan whose portals are bound and whose ports are numbered.
#[derive(Debug, Default)]
pub struct PreparedPlan(Option<Prepared>);

#[derive(Debug)]
struct Prepared {
    settings: FixedSettings,
    target_ports: TargetPortNumbers,
    sockets: Vec<(ListenerId, BoundListener)>,
    /// Listeners that become others, or take other options.
    changed: Vec<(ListenerId, ListenerId, reactor::TcpOptions)>,
}

/// What a session reaches: the number of each logical unit or namespace, its volume, and whether it is only read.
type Reached = Vec<(u32, VolumeId, bool)>;

impl Shards {
    /// The settings of another plan, for a look at what would be.
    fn settings_for_review(&self, plan: &Plan, catalog: &Catalog) -> Result<FixedSettings, EngineError> {
        let before = self.frame();
        let (mut settings, _) = FixedSettings::after(plan, &before)?;
        settings.number_ports_for_review(&before, catalog.target_ports.highest())?;
        settings.resolve_placement(&plan.placement, &self.cores).map_err(EngineError::Unsupported)?;
        Ok(settings)
    }

    /// Which sessions a plan would disturb.
    pub(super) fn review_plan(&self, plan: &Plan) -> Result<Vec<DisturbanceReport>, EngineError> {
        let listings = self.request_listings()?;
        let catalog = self.lock_catalog();
        let frame = self.frame();
        let now = frame.build_exports(&catalog.ways, &catalog.target_ports, 0, catalog.numbers());
        let settings = self.settings_for_review(plan, &catalog)?;
        let kept = |name: &VolumeName| plan.volumes.iter().any(|volume| volume.name == *name);
        let numbers = |name: &VolumeName| catalog.numbers()(name).filter(|_| kept(name));
        let next = settings.build_exports(&plan.ways, &catalog.target_ports, 0, numbers);
        let name_of = |id: VolumeId| catalog.volumes.get(id).map(|entry| entry.name.to_string());
        let mut all = Vec::new();
        for listing in &listings {
            for session in &listing.sessions {
                let judged = |exports: &Exports| session_reach(exports, session);
                let Some(what) = disturbance(judged(&now), judged(&next), name_of) else { continue };
                all.push(DisturbanceReport {
                    session: session.tsih.into(),
                    protocol: Protocol::Iscsi.as_str().to_owned(),
                    initiator: session.initiator.to_string(),
                    host: self.session_host(session),
                    target: session.target.as_ref().map(ToString::to_string),
                    connections: session.connections.len(),
                    ends: what.0,
                    why: what.1,
                });
            }
        }
        let mut controllers: BTreeMap<u16, Vec<&QueueEntry>> = BTreeMap::new();
        for queue in listings.iter().flat_map(|listing| &listing.queues) {
            controllers.entry(queue.cntlid).or_default().push(queue);
        }
        for queues in controllers.values_mut() {
            queues.sort_by_key(|queue| queue.qid);
            let Some(admin) = queues.first().filter(|queue| queue.qid == 0) else { continue };
            let judged = |exports: &Exports| controller_reach(exports, admin, queues);
            let Some(what) = disturbance(judged(&now), judged(&next), name_of) else { continue };
            all.push(DisturbanceReport {
                session: nvme_queues::session_id(admin.cntlid),
                protocol: Protocol::Nvme.as_str().to_owned(),
                initiator: admin.host.to_string(),
                host: nvme_queues::queue_host(&frame, admin),
                target: nvme_queues::subsystem_name(admin),
                connections: queues.len(),
                ends: what.0,
                why: what.1,
            });
        }
        all.sort_by_key(|one| one.session);
        Ok(all)
    }

    /// Binds what is new of a plan, and numbers its ports durably.
    pub(super) fn prepare_plan(&self, plan: &Plan, new: &[Store]) -> Result<PreparedPlan, EngineError> {
        let before = self.frame();
        let (mut settings, portals) = FixedSettings::after(plan, &before)?;
        settings.resolve_placement(&plan.placement, &self.cores).map_err(EngineError::Unsupported)?;
        let mut sockets = Vec::new();
        for at in portals.new {
            let (Some(portal), Some(listener)) = (plan.portals.get(at), settings.listener(at)) else {
                continue;
            };
            let bound = BoundListener::bind(&reactor_settings::listen_options(portal));
            let bound = bound.map_err(|why| EngineError::Listen { address: portal.address, why })?;
            settings.set_address(at, bound.address());
            sockets.push((listener, bound));
        }
        let mut changed = Vec::new();
        for (from, at) in portals.changed {
            let (Some(portal), Some(to)) = (plan.portals.get(at), settings.listener(at)) else { continue };
            let how = reactor_settings::listen_options(portal);
            let tried = BoundListener::try_options(&how);
            tried.map_err(|why| EngineError::Listen { address: portal.address, why })?;
            changed.push((from, to, how.tcp));
        }
        // Numbers are only ever added: what is recorded here does no harm if the plan is not switched to.
        let target_ports = match &self.group {
            Some(group) => {
                group.check_tags(plan)?;
                settings.number_ports_in_group(group, &plan.ways.targets)?
            }
            None => settings.number_ports(&self.state, &plan.ways.targets)?,
        };
        let known = {
            let (catalog, others) = (self.lock_catalog(), known_uuids(plan, new, &self.state)?);
            let served: BTreeMap<VolumeName, volume::Uuid> =
                catalog.volumes.iter().map(|(_, entry)| (entry.name.clone(), entry.uuid)).collect();
            move |name: &VolumeName| served.get(name).copied().or_else(|| others(name))
        };
        settings.assign_serials(&self.state, &plan.ways.subsystems, known)?;
        Ok(PreparedPlan(Some(Prepared { settings, target_ports, sockets, changed })))
    }

    /// Serves by a plan that was prepared.
    pub(super) fn switch_plan(&self, prepared: PreparedPlan, ways: &ExportPlan) -> Result<(), EngineError> {
        let Some(Prepared { settings, target_ports, sockets, changed }) = prepared.0 else {
            return Err(EngineError::Unsupported("nothing is prepared".to_owned()));
        };
        let mut catalog = self.lock_catalog();
        let settings = Arc::new(settings);
        let before = self.replace_frame(settings.clone());
        let ways_before = catalog.ways.clone();
        catalog.set_exports(ways.clone());
        let ports_before = std::mem::replace(&mut catalog.target_ports, target_ports);
        if let Err(why) = self.publish_exports(&mut catalog) {
            self.replace_frame(before);
            catalog.set_exports(ways_before);
            catalog.target_ports = ports_before;
            if let Err(why) = self.publish_exports(&mut catalog) {
                tracing::error!(target: area::CONFIG, %why, "not every shard has heard that the configuration is the old one again");
            }
            return Err(why);
        }
        // Until now shards proved hosts by the old secrets; every PSK from that has been noted before their answers.
        settings.void_psks_of_other_secrets(&before);
        // Only now: a connection by a portal that shards do not know would be refused.
        for listener in before.listeners() {
            let stays = settings.listeners().contains(listener);
            if !stays && !changed.iter().any(|(from, _, _)| from == listener) {
                self.running.remove_listener(*listener);
            }
        }
        for (from, to, tcp) in changed {
            self.running.change_listener(from, to, tcp);
        }
        for (listener, socket) in sockets {
            if !self.running.add_listener(listener, socket) {
                return Err(EngineError::Stopped);
            }
        }
        Ok(())
    }
}

impl Catalog {
    /// What the exports say of each volume.
    fn numbers(&self) -> impl Fn(&VolumeName) -> Option<VolumeExportInfo> + use<'_> {
        |name| self.known(name)
    }
}

/// What is disturbed of a session: whether it ends, and why or how. `None`: nothing is, or it is ending already.
fn disturbance(
    now: Result<Reached, EndCause>,
    next: Result<Reached, EndCause>,
    name_of: impl Fn(VolumeId) -> Option<String>,
) -> Option<(bool, String)> {
    let now = now.ok()?;
    let next = match next {
        Ok(next) => next,
        Err(why) => return Some((true, words(why).to_owned())),
    };
    let mut lost = Vec::new();
    for (number, volume, read_only) in now.iter().filter(|(_, volume, _)| *volume != VolumeId::UNAVAILABLE) {
        let name = || name_of(*volume).unwrap_or_else(|| number.to_string());
        match next.iter().find(|(other, of, _)| other == number && of == volume) {
            None => lost.push(format!("volume {} is no longer its number {number}", name())),
            Some((_, _, true)) if !read_only => lost.push(format!("volume {} becomes read-only", name())),
            Some(_) => {}
        }
    }
    (!lost.is_empty()).then(|| (false, lost.join("; ")))
}

fn words(why: EndCause) -> &'static str {
    match why {
        EndCause::NoPortal => "the portal that it came by is removed, or has another tag",
        EndCause::NoTarget => "its target is removed, or not reached by its portal any more",
        EndCause::NotGranted => "no host with a grant matches it any more",
        EndCause::Blocked => "its host is blocked",
        EndCause::Unproved => "it has to authenticate now, and has not",
        EndCause::Divided => "its connections come from addresses that may not reach the same any more",
    }
}

fn session_reach(exports: &Exports, session: &SessionStatus) -> Result<Reached, EndCause> {
    let links: Vec<AcceptedSocket> = session.connections.iter().map(|link| link.accepted).collect();
    let proved = session.user.is_some();
    let luns = exports.keep_session(session.target.as_deref(), &session.initiator, proved, &links)?;
    Ok(luns.iter().map(|lun| (lun.lun.into(), lun.volume, lun.read_only)).collect())
}

fn controller_reach(
    exports: &Exports,
    admin: &QueueEntry,
    queues: &[&QueueEntry],
) -> Result<Reached, EndCause> {
    let subsystem = Nqn::parse(&admin.subsystem).map_err(|_| EndCause::NoTarget)?;
    let names =
        ConnectNames { host_id: admin.host_id, cntlid: admin.cntlid, subsystem, host: admin.host.clone() };
    let proved = (admin.authentication, admin.tls.as_ref());
    let links: Vec<AcceptedSocket> = queues.iter().map(|queue| queue.accepted).collect();
    let seen = exports.keep_controller(&names, proved, &links)?;
    Ok(seen.iter().map(|one| (one.nsid, one.volume, one.read_only)).collect())
}
