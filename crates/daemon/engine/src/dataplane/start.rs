//! From a plan and open volumes to running shards.
//!
//! Invariant: a shard knows every volume and its file before it takes its first connection, so a reconnecting
//! initiator finds either all volumes or no listener.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock, mpsc::channel},
    thread,
};

use ::group::RestartCause;
use endpoint::{Endpoint, ListenerId, ShardId};
use reactor::{IoKind, Reactor, SpawnError};
use shard::{ControlRequest, Message, Shard, VolumeSpec};
use volume::DiskId;

use super::{
    allocation_watcher::AllocationWatcher,
    catalog::Catalog,
    catalog_volume::CatalogVolume,
    exports::FixedSettings,
    group::{GroupVolume, JoinedGroup},
    inbox::{self, PendingRequests},
    log_lines::{self, DownPaths, LoggedShard},
    medium::{Medium, disk_sources},
    reactor_settings,
    shards::{Shards, ids_exhausted},
    sync_failures::{self, SyncFailureNotes},
    taken_over::TakenOver,
};
use crate::{
    Engine, EngineError, EngineParams, StopMode,
    daemon::StopSignal,
    state::{StateDir, blocked_hosts},
    store::{Store, known_uuids},
};
use config::plan::{Plan, VolumeOrigin};
use process::log::area;

/// Starts the shards.
pub fn start_shards(start: EngineParams<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    let EngineParams { plan, volumes, state, flight, stopping, predecessor } = start;
    let mut config = reactor_settings::reactor_config(plan);
    let shards = reactor_settings::shard_count(plan);
    let taken = predecessor.map(|predecessor| TakenOver::begin(predecessor, plan, shards)).transpose()?;
    if taken.is_some() {
        // Nothing is accepted before the old process has let go.
        config.listeners.clear();
    }
    let target = taken.as_ref().map(|taken| taken.target.clone());
    let mut frame = FixedSettings::of(plan);
    frame.replace_operator_blocks(
        blocked_hosts::load(&state).map_err(|why| EngineError::Start(why.to_string()))?,
    );
    let group = join_group(plan, (&state, volumes), stopping)?;
    let target_ports = match &group {
        Some(group) => frame.number_ports_in_group(group, &plan.ways.targets)?,
        None => frame.number_ports(&state, &plan.ways.targets)?,
    };
    let mut catalog = Catalog::of(plan.ways.clone(), target_ports);
    catalog.gateways = group.as_ref().map(|_| Vec::new());
    let mut specs: Vec<Vec<VolumeSpec>> = (0..shards).map(|_| Vec::new()).collect();
    let (notes, attending) = SyncFailureNotes::of(state.clone());
    let usage = AllocationWatcher::start().map_err(|why| EngineError::Start(why.to_string()))?;
    let mut unserved = Vec::new();
    let mut group_volumes = BTreeMap::new();
    let leading = plan.ways.targets_by_volume();
    for store in volumes {
        let files = disk_sources(store).into_iter().map(Option::transpose).collect::<Result<Vec<_>, _>>();
        let files = files.map_err(|why| EngineError::Start(why.to_string()))?;
        let first = config.disks.len();
        let disks = files.into_iter().map(|file| {
            file.map(|file| {
                config.disks.push(file);
                DiskId(config.disks.len() as u32 - 1)
            })
        });
        let disks: Vec<Option<DiskId>> = disks.collect();
        let id = catalog.places.allocate_id().ok_or_else(ids_exhausted)?;
        let slot = store.slot.clone();
        let opened = Medium::of(store, &disks, shards, (&notes, id)).and_then(|medium| {
            let renumbering = || {
                let leading = leading.get(store.volume.name.as_str()).map(Vec::as_slice).unwrap_or_default();
                catalog.target_ports.renumbering_for(leading, frame.port_numbers())
            };
            let records = (&*state, &renumbering as &dyn Fn() -> _);
            let running = target.as_ref().and_then(|target| target.running_volume(uuid_of(store)));
            let specs = medium.shard_specs(store, id, shards, plan.oui, records, (&usage, running))?;
            let shared = specs.first().map(|spec| spec.shared.clone()).ok_or(EngineError::Stopped)?;
            Ok((CatalogVolume::of(store, medium, shared), specs))
        });
        match opened {
            Ok((entry, own)) => {
                if let (Some(slot), Medium::File(disk, _)) = (slot, &entry.medium) {
                    group_volumes.insert(entry.uuid, GroupVolume { id, slot, disk: disk.clone() });
                }
                specs.iter_mut().zip(own).for_each(|(of, spec)| of.push(spec));
                catalog.volumes.insert(id, entry);
            }
            Err(why) if is_tolerated_failure(store, &why) => {
                config.disks.truncate(first);
                catalog.places.release(id);
                unserved.push((store.volume.name.clone(), why.to_string()));
            }
            Err(why) => return Err(why),
        }
    }
    if let Some(taken) = &taken {
        taken.check_volumes(&catalog)?;
    }
    let cores = config.cores.clone();
    frame.resolve_placement(&plan.placement, &cores).map_err(EngineError::Start)?;
    frame.assign_serials(&state, &plan.ways.subsystems, known_uuids(plan, volumes, &state)?)?;
    if let Some(taken) = &taken {
        frame.set_addresses(&taken.addresses());
    }
    let exports = catalog.build_exports(&frame);
    let (lines, written) = log_lines::log_line_channel();
    let specs = Mutex::new(specs);
    let joined = group.clone();
    let (restored, restoring) = channel();
    let numbers = taken.as_ref().map(TakenOver::listener_numbers).unwrap_or_default();
    let carried = target.clone();
    let factory = move |id: ShardId, cx: &mut buf::Cx<'_>| {
        let shard = Shard::new(id, shards, exports.clone());
        let mut shard = LoggedShard { shard, lines: lines.clone(), group: joined.clone() };
        if let Some(recorder) = flight.recorder(id, cx.now) {
            shard.shard.record_flight(cx.now, recorder);
        }
        let mut specs = specs.lock().unwrap_or_else(PoisonError::into_inner);
        let own = specs.get_mut(usize::from(id.0)).map(std::mem::take).unwrap_or_default();
        drop(specs);
        for spec in own {
            shard.handle_message(cx, Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
        }
        if let Some(target) = &carried {
            let listener_of = |of: ListenerId| numbers.get(&of).copied();
            // Who waits for it ends with the start.
            let _ = restored.send(shard.shard.restore(cx, target, &listener_of));
        }
        shard
    };
    let mut running = Reactor::spawn(config, factory).map_err(spawn_failed)?;
    log_io_engine(running.io_kind());
    if let Some(taken) = &taken {
        taken.wait_until_restored(&restoring, shards)?;
    } else {
        frame.set_addresses(running.addresses());
    }
    let failed = |why: std::io::Error| EngineError::Start(why.to_string());
    let inbox = running.take_control_inbox().ok_or(EngineError::Stopped)?;
    let (running, requests) = (Arc::new(running), Arc::new(PendingRequests::default()));
    if let Some(group) = &group {
        group.connect_shards(&running, group_volumes);
    }
    // Weak: this thread must not keep the shards.
    let reactor = Arc::downgrade(&running);
    let stored = move |volume, ticket, durable| {
        if let Some(running) = reactor.upgrade() {
            running.post(shard::home_of(volume, shards), Message::Stored(volume, ticket, durable));
        }
    };
    let reactor = Arc::downgrade(&running);
    let tell = move |shard, message| {
        if let Some(running) = reactor.upgrade() {
            running.post(shard, message);
        }
    };
    let waking = tell.clone();
    let wake = move |volume| (0..shards).for_each(|shard| waking(ShardId(shard), Message::Wake(volume)));
    sync_failures::start_writer(attending, wake).map_err(failed)?;
    let generated = frame.generated_psks().clone();
    let records = inbox::start_threads(inbox, requests.clone(), state.clone(), generated, stored, tell)
        .map_err(failed)?;
    let down_paths = DownPaths::default();
    let told = down_paths.clone();
    thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || log_lines::write_log_lines(written, &told))
        .map_err(failed)?;
    let oui = plan.oui;
    let catalog = Mutex::new(catalog);
    let frame = RwLock::new(Arc::new(frame));
    let engine = Shards {
        running,
        requests,
        state,
        records,
        notes,
        usage,
        frame,
        cores,
        oui,
        catalog,
        unserved,
        down_paths,
        group,
    };
    match taken {
        Some(taken) => taken.finish(&engine)?,
        // The ports that the system chose are known only now.
        None => engine.publish_exports(&mut engine.lock_catalog())?,
    }
    Ok(Arc::new(engine))
}

/// Joins the group of gateways that the plan names. When this gateway is no member any more, the daemon is to stop.
fn join_group(
    plan: &Plan,
    with: (&StateDir, &[Store]),
    stopping: Arc<StopSignal>,
) -> Result<Option<Arc<JoinedGroup>>, EngineError> {
    let Some(settings) = &plan.group else { return Ok(None) };
    let lost = move |cause: RestartCause| {
        tracing::error!(
            target: area::SERVE,
            %cause,
            "this gateway is no member of its group any more: all sessions are reset, and the daemon ends; started again \
             it joins as another instance"
        );
        stopping.request_stop(StopMode::Now);
    };
    JoinedGroup::join(settings, plan, with, Box::new(lost)).map(|group| Some(Arc::new(group)))
}

/// As the shards know a volume.
fn uuid_of(store: &Store) -> volume::Uuid {
    volume::Uuid(*store.uuid.as_bytes())
}

/// Whether the others start though this volume cannot: what was created at run time can be deleted only while a
/// daemon runs, and a record that is damaged is nothing that the configuration could mend.
fn is_tolerated_failure(store: &Store, why: &EngineError) -> bool {
    store.volume.origin == VolumeOrigin::Created || matches!(why, EngineError::Record(_))
}

fn spawn_failed(why: SpawnError) -> EngineError {
    match why {
        SpawnError::Listen(address, why) => EngineError::Listen { address, why },
        SpawnError::Uring(_) | SpawnError::Core(..) | SpawnError::System(_) | SpawnError::Outward(_) => {
            EngineError::Start(why.to_string())
        }
    }
}

fn log_io_engine(io: &IoKind) {
    match io {
        IoKind::Uring | IoKind::Epoll => tracing::info!(target: area::SERVE, %io, "moving bytes"),
        IoKind::EpollInstead(_) => tracing::warn!(target: area::SERVE, %io, "moving bytes"),
    }
}
