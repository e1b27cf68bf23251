//! What the daemon asks of the data path, as the running shards do it.

use std::{os::fd::OwnedFd, time::Duration};

use endpoint::ShardId;
use shard::{ControlReport, ControlRequest, Message, NvmeMessage, OtherGateway, RateLimits};
use volume::{PortId, Refusal, VolumeId, VolumeRequest};

use super::{
    catalog_volume::{CatalogVolume, limiter_of},
    group::JoinedGroup,
    latency,
    medium::record_name,
    nvme_queues,
    prepared::PreparedPlan,
    refusal,
    shards::{ANSWER_TIMEOUT, CHANGE_TIMEOUT, LINGER_TIMEOUT, Shards, ids_exhausted},
};
use crate::{
    Engine, EngineError, EngineObservation, StopMode,
    state::blocked_hosts::BlockedNames,
    store::Store,
    upgrade::{HandOverError, HandedOver, Successor},
};
use config::{
    name::VolumeName,
    plan::{ExportPlan, Plan},
};
use control::report::{
    ConnectionReport, HostRateLimitReport, LatencyReport, ListenerReport, SessionReport, ShardReport,
    VolumeStateReport, plan::DisturbanceReport,
};
use process::log::area;

/// How long, when all is ended at once, what is out on a disk may take.
const IMMEDIATE_STOP_TIMEOUT: Duration = Duration::from_secs(3);

impl Engine for Shards {
    fn unserved_volumes(&self) -> Vec<(VolumeName, String)> {
        self.unserved.clone()
    }

    fn group(&self) -> Option<&JoinedGroup> {
        self.group.as_deref()
    }

    fn follow_group(&self, gateways: Vec<OtherGateway>) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        if catalog.gateways.as_ref() == Some(&gateways) {
            return Ok(());
        }
        let before = catalog.gateways.replace(gateways);
        // Some shards may have heard; it is tried again.
        self.publish_exports(&mut catalog).inspect_err(|_| catalog.gateways = before)
    }

    fn listeners(&self) -> Vec<ListenerReport> {
        let report = |portal: &config::plan::Portal| ListenerReport {
            protocol: portal.protocol.as_str().to_owned(),
            address: portal.address,
            tag: portal.tag,
        };
        self.frame().portals().iter().map(report).collect()
    }

    fn sessions(&self) -> Result<Vec<SessionReport>, EngineError> {
        Ok(self.session_reports(&self.request_listings()?, false))
    }

    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError> {
        Ok(self.connection_reports(&self.request_listings()?))
    }

    fn observe(&self) -> Result<EngineObservation, EngineError> {
        self.observation()
    }

    fn volume_latency(&self, name: &str) -> Result<Vec<LatencyReport>, EngineError> {
        let id = self.volume_id(name)?;
        let listings = self.request_listings()?;
        let entries = listings.iter().flat_map(|listing| &listing.volumes).filter(|one| one.id == id);
        Ok(latency::latency_reports(entries.map(|entry| &entry.latency)))
    }

    fn connection_latency(&self, id: u64) -> Result<Vec<LatencyReport>, EngineError> {
        let listings = self.request_listings()?;
        let queues = listings.iter().flat_map(|listing| &listing.queues);
        let queues =
            queues.filter(|queue| nvme_queues::connection_id(queue) == id).map(|queue| &queue.latency);
        let sessions = listings.iter().flat_map(|listing| &listing.sessions);
        let sessions = sessions.filter(|session| u64::from(session.tsih) == id >> 16);
        Ok(latency::latency_reports(queues.chain(sessions.map(|session| &session.latency))))
    }

    fn volume_states(&self) -> Result<Vec<VolumeStateReport>, EngineError> {
        Ok(self.volume_state_reports(&self.request_listings()?))
    }

    fn set_preferred_paths(&self, name: &str, ports: &[u16], on: bool) -> Result<(), EngineError> {
        let ports = ports.iter().map(|port| PortId(*port)).collect();
        self.request_change((name, self.volume_id(name)?), VolumeRequest::SetPreferred { ports, on })
    }

    fn set_path_access(&self, name: &str, ports: &[u16], to: volume::PathAccess) -> Result<(), EngineError> {
        let ports = ports.iter().map(|port| PortId(*port)).collect();
        self.request_change((name, self.volume_id(name)?), VolumeRequest::SetAccess { ports, to, by: None })
    }

    fn set_write_protection(&self, name: &str, on: bool) -> Result<(), EngineError> {
        self.request_change((name, self.volume_id(name)?), VolumeRequest::WriteProtect(on))
    }

    fn shards(&self) -> Result<Vec<ShardReport>, EngineError> {
        Ok(self.shard_reports(&self.request_listings()?))
    }

    fn add_volume(&self, store: &Store, ways: &ExportPlan) -> Result<(), EngineError> {
        self.collect_removed();
        let mut catalog = self.lock_catalog();
        let id = catalog.places.allocate_id().ok_or_else(ids_exhausted)?;
        let made = self.make_volume(store, id, &catalog);
        let (entry, specs) = made.inspect_err(|_| catalog.places.release(id))?;
        if let Err(why) = self.announce_volume(id, specs) {
            // Some shards may know it: all forget it.
            catalog.leaving.insert(id, entry);
            self.revert_add(catalog, id, store);
            return Err(why);
        }
        catalog.volumes.insert(id, entry);
        let before = catalog.ways.clone();
        catalog.ways.extend(ways);
        let told = self.publish_exports(&mut catalog);
        if told.is_err() {
            // Some shards may lead there. What led to it before it came stays, for when it comes again.
            catalog.ways = before;
            catalog.leave(id);
            self.revert_add(catalog, id, store);
        }
        told
    }

    fn remove_volume(&self, name: &str, force: bool) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        if let Some((id, _)) = catalog.find(name) {
            let using = self.sessions()?.into_iter();
            let using = using.filter(|session| {
                session.target.as_ref().is_some_and(|target| catalog.ways.exports_volume(target, name))
            });
            let sessions = using.count();
            if sessions > 0 && !force {
                return Err(EngineError::InUse { sessions });
            }
            catalog.ways.remove_volume(name);
            catalog.leave(id);
        }
        // One that could not be served has what leads to it; the next one of that name is another.
        if catalog.leaving_volume(name).is_none() {
            catalog.ways.remove_volume(name);
        }
        // Also if this is not the first try: a shard may not have heard it.
        self.publish_exports(&mut catalog)
    }

    fn drain_volume(&self, name: &str) -> Result<(), EngineError> {
        // Its disk may be waited for: nothing is locked meanwhile.
        let Some(id) = self.lock_catalog().leaving_volume(name) else { return Ok(()) };
        // Whatever comes of it: hosts are told, and nothing new begins. What counts is that all shards let it go.
        if let Err(why) = self.request_change((name, id), VolumeRequest::Remove) {
            tracing::warn!(target: area::SERVE, %why, volume = name, "operations of a deleted volume do not complete");
        }
        self.remove_from_shards(id, ANSWER_TIMEOUT)
    }

    fn discard_old_records(&self, store: &Store) -> Result<(), EngineError> {
        self.records.remove_record(record_name(store), ANSWER_TIMEOUT)
    }

    fn set_exports(&self, ways: &ExportPlan) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        let before = catalog.ways.clone();
        catalog.set_exports(ways.clone());
        self.publish_exports(&mut catalog).inspect_err(|_| catalog.set_exports(before))
    }

    fn volume_limits(&self, name: &str) -> RateLimits {
        let catalog = self.lock_catalog();
        let limiter = catalog.find(name).and_then(|(_, entry)| entry.limiter.clone());
        limiter.map_or(RateLimits::NONE, |limiter| limiter.limits())
    }

    fn set_volume_limits(&self, name: &str, limits: RateLimits) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        let entry = catalog.volumes.find_mut(name).ok_or(EngineError::Lingers)?;
        let before = std::mem::replace(&mut entry.limiter, limiter_of(limits));
        self.publish_exports(&mut catalog).inspect_err(|_| {
            if let Some(entry) = catalog.volumes.find_mut(name) {
                entry.limiter = before;
            }
            // Some shards may have heard.
            if let Err(why) = self.publish_exports(&mut catalog) {
                tracing::error!(target: area::SERVE, %why, volume = name, "not every shard has heard that the limits are as before");
            }
        })
    }

    fn host_limits(&self) -> Vec<HostRateLimitReport> {
        self.frame().host_limit_reports()
    }

    fn blocked_names(&self) -> BlockedNames {
        self.frame().operator_blocks()
    }

    fn set_blocked_names(&self, names: BlockedNames) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        let before = self.frame().replace_operator_blocks(names);
        self.publish_exports(&mut catalog).inspect_err(|_| {
            self.frame().replace_operator_blocks(before);
            // Some shards may have heard.
            if let Err(why) = self.publish_exports(&mut catalog) {
                tracing::error!(target: area::SERVE, %why, "not every shard has heard that hosts are blocked as before");
            }
        })
    }

    fn review(&self, plan: &Plan) -> Result<Vec<DisturbanceReport>, EngineError> {
        self.review_plan(plan)
    }

    fn prepare(&self, plan: &Plan, new: &[Store]) -> Result<PreparedPlan, EngineError> {
        self.prepare_plan(plan, new)
    }

    fn switch(&self, prepared: PreparedPlan, ways: &ExportPlan) -> Result<(), EngineError> {
        self.switch_plan(prepared, ways)
    }

    fn end_session(&self, id: u64, shard: usize) -> Result<(), EngineError> {
        let (shard, message) = match (u16::try_from(id), nvme_queues::cntlid(id), u16::try_from(shard)) {
            (Ok(tsih), _, Ok(shard)) => (shard, Message::EndSession(iscsi::wire::Tsih::new(tsih))),
            // A controller lives where its number says.
            (Err(_), Some(cntlid), _) => {
                (cntlid % self.running.shard_count(), Message::Nvme(NvmeMessage::EndController(cntlid)))
            }
            (Ok(_), _, Err(_)) | (Err(_), None, _) => return Ok(()),
        };
        match self.running.post(ShardId(shard), message) {
            true => Ok(()),
            false => Err(EngineError::Stopped),
        }
    }

    fn resize_volume(&self, name: &str, bytes: u64) -> Result<(), EngineError> {
        let of = |(id, entry): (VolumeId, &CatalogVolume)| (id, entry.medium.clone());
        let (id, medium) = self.lock_catalog().find(name).map(of).ok_or(EngineError::Lingers)?;
        let before = medium.geometry();
        let bytes_before = before.blocks * u64::from(before.logical);
        // As the medium will have it: direct I/O moves no part of a unit.
        let unit = u64::from(before.dio_unit_blocks());
        let blocks = bytes / u64::from(before.logical) / unit * unit;
        if blocks == 0 {
            let why = format!("the size must be {} bytes at least", unit * u64::from(before.logical));
            return Err(EngineError::Unsupported(why));
        }
        if blocks < before.blocks {
            // Nobody may be promised blocks that are gone: first the promise, then the medium.
            self.request_change((name, id), VolumeRequest::Resize(volume::Geometry { blocks, ..before }))?;
            return medium.resize(bytes).map(drop);
        }
        let after = medium.resize(bytes)?;
        let home = shard::home_of(id, self.running.shard_count());
        match self.request(
            home,
            ControlRequest::VolumeRequest(id, VolumeRequest::Resize(after)),
            CHANGE_TIMEOUT,
        ) {
            Ok(ControlReport::Done) => Ok(()),
            // It was not begun, so nobody was told.
            Ok(ControlReport::Refused(refusal)) if refusal != Refusal::NotFenced => {
                let _ = medium.resize(bytes_before);
                Err(EngineError::Unsupported(refusal::refusal_text(name, &refusal)))
            }
            // What hosts may have been told never shrinks by itself.
            Ok(ControlReport::Refused(refusal)) => {
                Err(EngineError::Unsettled(refusal::refusal_text(name, &refusal)))
            }
            Ok(
                ControlReport::NoVolume
                | ControlReport::Listing(_)
                | ControlReport::Saved(_)
                | ControlReport::NotQuiesced(_),
            ) => Err(EngineError::Lingers),
            Err(why) => Err(EngineError::Unsettled(why.to_string())),
        }
    }

    fn note_sync_failure(&self, name: &str) {
        if let Some((_, entry)) = self.lock_catalog().find(name) {
            entry.medium.note_sync_failure();
        }
    }

    fn has_sync_failure(&self, name: &str) -> bool {
        let is = |(_, entry): (VolumeId, &CatalogVolume)| {
            entry.shared.has_sync_failed() || entry.medium.has_sync_failure()
        };
        self.lock_catalog().find(name).is_some_and(is)
    }

    fn acknowledge_sync_failure(&self, store: &Store) -> Result<(), EngineError> {
        let name = store.volume.name.as_str();
        let of = |(_, entry): (VolumeId, &CatalogVolume)| (entry.medium.clone(), entry.shared.clone());
        let (medium, shared) = self.lock_catalog().find(name).map(of).ok_or(EngineError::Lingers)?;
        // Counted before the sync: what fails from then on is another failure.
        let failures = medium.sync_failure_counts();
        let failed = |what: &str, why: std::io::Error| {
            EngineError::Unsupported(format!("{what}, so writes are still refused: {why}"))
        };
        // By the shards' own descriptors, so that none is told of it later what was told here.
        let mut files = store.legs_or_self().iter().filter_map(|part| part.file.as_ref());
        files.try_for_each(std::fs::File::sync_data).map_err(|why| failed("it cannot be synced yet", why))?;
        self.notes.remove_notes(store).map_err(|why| failed("its record cannot be removed", why))?;
        medium.acknowledge_sync_failures(&failures);
        shared.acknowledge_sync_failure();
        Ok(())
    }

    fn duplicate_listeners(&self) -> Result<Vec<(u16, ListenerReport, OwnedFd)>, EngineError> {
        self.duplicate_open_listeners()
    }

    fn hand_over(&self, to: &mut Successor, within: Duration) -> Result<HandedOver, HandOverError> {
        self.hand_over_to(to, within)
    }

    fn stop(&self, how: StopMode) -> bool {
        if let (Some(group), StopMode::Clean) = (&self.group, how) {
            group.leave();
        }
        let well = match how {
            StopMode::Clean => self.stop_cleanly(),
            StopMode::Now => {
                self.running.stop(Duration::ZERO);
                true
            }
        };
        let patience = if how == StopMode::Now {
            IMMEDIATE_STOP_TIMEOUT
        } else {
            LINGER_TIMEOUT + IMMEDIATE_STOP_TIMEOUT
        };
        match self.running.join_within(patience) {
            Ok(true) => {}
            Ok(false) => tracing::error!(
                target: area::SERVE,
                "stopped without waiting for a disk that does not respond; recent writes may still reach it, or \
                 be lost"
            ),
            Err(_) => {
                tracing::error!(target: area::SERVE, "a shard has panicked");
                return false;
            }
        }
        well
    }
}
