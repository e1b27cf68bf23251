//! The state of a volume, from a shard's view of it.

use std::{collections::HashMap, net::SocketAddr};

use shard::{ErrorCause, IoCounters, VolumeStatus};
use volume::reservation::{Registrant, Reservations};
use volume::{Identity, PortId, UnservableReason, View};

use super::{catalog::Catalog, exports::FixedSettings};
use crate::state::target_ports::TargetPortNumbers;
use config::plan::{Protocol, Target};
use control::report::{
    RegistrantReport, ReservationReport, VolumeErrorReport, VolumePathReport, VolumeStateReport,
};

/// Which targets lead to which volume, also those that are stopped, and the numbers of their ports.
pub struct TargetsByVolume<'a> {
    targets: HashMap<&'a str, Vec<&'a Target>>,
    numbers: &'a TargetPortNumbers,
}

impl<'a> TargetsByVolume<'a> {
    /// What leads where now.
    pub fn of(catalog: &'a Catalog) -> Self {
        let mut targets: HashMap<&str, Vec<&Target>> = HashMap::new();
        for target in catalog.ways.targets.iter().chain(&catalog.stopped) {
            for lun in &target.luns {
                let known = targets.entry(lun.volume.as_str()).or_default();
                if !known.iter().any(|other| other.name == target.name) {
                    known.push(target);
                }
            }
        }
        TargetsByVolume { targets, numbers: &catalog.target_ports }
    }
}

/// The standing of the volume `name`: its view as the home has it, and the I/O of all shards.
pub fn volume_state_report(
    frame: &FixedSettings,
    leading: &TargetsByVolume<'_>,
    name: &str,
    entries: &[&VolumeStatus],
) -> Option<VolumeStateReport> {
    // Shards adopt one after the other; the newest view is what an answer was given for.
    let view = &entries.iter().max_by_key(|entry| entry.view.epoch.0)?.view;
    let sum = |count: fn(&IoCounters) -> u64| entries.iter().map(|entry| count(&entry.io)).sum();
    let sync_failed = entries.iter().any(|entry| entry.sync_failed).then_some(&UnservableReason::SyncFailed);
    Some(VolumeStateReport {
        volume: name.to_owned(),
        size_bytes: view.geometry.capacity_bytes(),
        backing_read_only: view.backing_read_only,
        write_protected: view.write_protected,
        write_protected_by_host: view.host_protection.is_on(),
        not_ready: view.not_ready.as_ref().or(sync_failed).map(|why| unservable_text(why).to_owned()),
        closed: view.closed,
        paths: path_reports(frame, leading, name, view),
        reservation: reservation_report(frame, name, &view.reservations),
        reads: sum(|io| io.reads),
        read_bytes: sum(|io| io.read_bytes),
        writes: sum(|io| io.writes),
        written_bytes: sum(|io| io.written_bytes),
        operations_in_flight: entries.iter().map(|entry| entry.in_flight as u64).sum(),
        allocated_bytes: None,
        limits: None,
        errors: error_reports(entries),
        sync_failed: sync_failed.is_some(),
        no_space: entries.iter().any(|entry| entry.no_space),
    })
}

fn error_reports(entries: &[&VolumeStatus]) -> Vec<VolumeErrorReport> {
    let of = |(at, cause): (usize, &ErrorCause)| {
        let count: u64 = entries.iter().filter_map(|entry| entry.errors.0.get(at)).sum();
        (count > 0).then(|| VolumeErrorReport { cause: cause.as_str().to_owned(), count })
    };
    ErrorCause::ALL.iter().enumerate().filter_map(of).collect()
}

fn unservable_text(why: &UnservableReason) -> &'static str {
    match why {
        UnservableReason::Stopped => "stopped",
        UnservableReason::NoMedium => "no medium",
        UnservableReason::Sanitizing(_) => "sanitizing",
        UnservableReason::Formatting(_) => "formatting",
        UnservableReason::SanitizeFailed => "the last sanitize failed",
        UnservableReason::SyncFailed => "a sync failed: acknowledge with `volume retry`",
        UnservableReason::Removed => "going away",
    }
}

/// The paths by all portal groups; over iSCSI one for each target that leads to the volume.
fn path_reports(
    frame: &FixedSettings,
    leading: &TargetsByVolume<'_>,
    name: &str,
    view: &View,
) -> Vec<VolumePathReport> {
    let mut paths = Vec::new();
    for &(protocol, tag) in frame.portal_groups() {
        let here = frame.portals().iter().filter(|one| (one.protocol, one.tag) == (protocol, tag));
        let addresses: Vec<SocketAddr> = here.map(|portal| portal.address).collect();
        let mut add = |port: PortId, target: Option<&str>| {
            paths.push(VolumePathReport {
                volume: name.to_owned(),
                port: port.0,
                protocol: protocol.as_str().to_owned(),
                group: tag,
                target: target.map(str::to_owned),
                addresses: addresses.clone(),
                state: view.path_access(port).name().to_owned(),
                preferred: view.preferred.binary_search(&port).is_ok(),
            });
        };
        match protocol {
            Protocol::NvmeDiscovery => {}
            Protocol::Nvme => add(frame.port_id(protocol, tag), None),
            Protocol::Iscsi => {
                let all = leading.targets.get(name).map(Vec::as_slice).unwrap_or_default();
                let targets = all.iter().filter(|target| target.portals.contains(&tag));
                for target in targets {
                    let port = leading.numbers.number_of(target, tag, frame.port_numbers());
                    add(port.map_or_else(|| frame.port_id(protocol, tag), PortId), Some(&target.name));
                }
            }
        }
    }
    paths
}

fn reservation_report(frame: &FixedSettings, name: &str, state: &Reservations) -> ReservationReport {
    let legacy = state.legacy_holder();
    let holder = state.held_reservation().and_then(|held| held.holder.as_ref()).or(legacy);
    ReservationReport {
        volume: name.to_owned(),
        kind: state
            .held_reservation()
            .map(|held| held.kind.standard_name())
            .or(legacy.map(|_| "scsi-2"))
            .map(str::to_owned),
        holder: holder.map(|holder| holder_name(holder, state)),
        generation: state.generation(),
        persists: state.persists(),
        registrants: state.registrants().iter().map(|one| registrant_report(frame, one, state)).collect(),
    }
}

/// A holder by the name that says most.
fn holder_name(identity: &Identity, state: &Reservations) -> String {
    match identity {
        Identity::Initiator { name, .. } => name.to_string(),
        Identity::Host(id) => state.host_nqn(id).map_or_else(|| host_id_text(id), |nqn| nqn.to_string()),
    }
}

fn host_id_text(id: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*id).to_string()
}

fn registrant_report(frame: &FixedSettings, one: &Registrant, state: &Reservations) -> RegistrantReport {
    let name = holder_name(&one.identity, state);
    let (key, holder) = (format!("{:#018x}", one.key.0), state.is_holder(&one.identity));
    let mut hosts = frame.hosts().iter();
    match &*one.identity {
        Identity::Initiator { isid, port, .. } => RegistrantReport {
            protocol: Protocol::Iscsi.as_str().to_owned(),
            host: hosts.find(|host| host.iqns.contains(&name)).map(|host| host.name.clone()),
            name,
            isid: Some(isid.iter().map(|byte| format!("{byte:02x}")).collect()),
            port: Some(port.0),
            hostid: None,
            key,
            holder,
        },
        Identity::Host(id) => RegistrantReport {
            protocol: Protocol::Nvme.as_str().to_owned(),
            host: hosts
                .find(|host| host.hostid == Some(*id) || host.nqns.contains(&name))
                .map(|host| host.name.clone()),
            name,
            isid: None,
            port: None,
            hostid: Some(host_id_text(id)),
            key,
            holder,
        },
    }
}

#[cfg(test)]
mod tests {
    use volume::{Uuid, VolumeFacts, VolumeId, VolumeOwner};

    use super::*;
    use crate::example::example_plan;

    #[test]
    fn a_failed_sync_is_shown() {
        let facts = VolumeFacts::new(VolumeId(0), "logs", Uuid([1; 16]));
        let geometry = volume::RamDisk::new(8, 8, 512, 4096).geometry();
        let home = VolumeOwner::restore(facts, geometry, 1, false, None).unwrap();
        let frame = FixedSettings::of(&example_plan());
        let shown = |sync_failed| {
            let (view, io) = (home.view().clone(), IoCounters::default());
            let latency = shard::CommandLatency::default();
            let (errors, no_space) = (shard::ErrorCounters::default(), false);
            let entry = VolumeStatus {
                id: VolumeId(0),
                view,
                sync_failed,
                io,
                in_flight: 0,
                latency,
                errors,
                no_space,
            };
            let catalog = Catalog::default();
            volume_state_report(&frame, &TargetsByVolume::of(&catalog), "logs", &[&entry]).unwrap().not_ready
        };
        assert_eq!(shown(false), None);
        assert_eq!(shown(true).as_deref(), Some("a sync failed: acknowledge with `volume retry`"));
    }
}
