//! Requests about subsystems, hosts, reservations and paths, and changes of a volume by the operator.

use std::collections::HashMap;

use super::{Daemon, ServedState, refusal_from_engine_error, unknown_name};
use config::plan::{Host, Protocol, Subsystem};
use control::{
    RefusalCode, RequestRefusal,
    report::{
        HostReport, ListenerReport, NamespaceReport, PortalReport, ReservationReport, SessionReport,
        SubsystemReport, VolumePathReport, VolumeReport, VolumeStateReport,
    },
};
use process::log::area;
use volume::PathAccess;

/// A remote volume may have changed since it was opened.
fn update_remote_report(report: &mut VolumeReport, standing: &VolumeStateReport) {
    report.size_bytes = Some(standing.size_bytes);
    report.read_only |= standing.backing_read_only;
}

impl Daemon {
    /// One volume with its current state.
    pub(super) fn volume_report(&self, name: &str, latency: bool) -> Result<VolumeReport, RequestRefusal> {
        let report = self.volumes.lock_served().volume_report(name)?;
        let mut report = self.volumes.with_sync_failure(report);
        if let Some(standing) = self.volume_states(Some(name))?.pop() {
            update_remote_report(&mut report, &standing);
            report.standing = Some(standing);
            if latency {
                let found = self
                    .volumes
                    .engine
                    .volume_latency(name)
                    .map_err(|why| refusal_from_engine_error(&why))?;
                report.latency = Some(found);
            }
        }
        Ok(report)
    }

    /// All volumes, as they are now.
    pub(super) fn volume_reports(&self) -> Result<Vec<VolumeReport>, RequestRefusal> {
        let served = self.volumes.lock_served().volume_reports();
        let mut reports: Vec<_> = served.into_iter().map(|one| self.volumes.with_sync_failure(one)).collect();
        let standings = self.volume_states(None)?;
        let by_name: HashMap<&str, &VolumeStateReport> =
            standings.iter().map(|standing| (standing.volume.as_str(), standing)).collect();
        for report in &mut reports {
            if let Some(standing) = by_name.get(report.name.as_str()) {
                update_remote_report(report, standing);
            }
        }
        Ok(reports)
    }

    /// The current state of all volumes, or of one.
    fn volume_states(&self, name: Option<&str>) -> Result<Vec<VolumeStateReport>, RequestRefusal> {
        if let Some(name) = name {
            self.volumes.lock_served().volume_report(name)?;
        }
        let all = self.volumes.engine.volume_states().map_err(|why| refusal_from_engine_error(&why))?;
        Ok(all.into_iter().filter(|one| name.is_none_or(|name| one.volume == name)).collect())
    }

    pub(super) fn reservation_reports(&self) -> Result<Vec<ReservationReport>, RequestRefusal> {
        Ok(self.volume_states(None)?.into_iter().map(|standing| standing.reservation).collect())
    }

    pub(super) fn reservation_report(&self, name: &str) -> Result<ReservationReport, RequestRefusal> {
        let found = self.volume_states(Some(name))?.pop();
        found.map(|one| one.reservation).ok_or_else(|| RequestRefusal::new(RefusalCode::NotFound, name))
    }

    pub(super) fn path_reports(&self, name: Option<&str>) -> Result<Vec<VolumePathReport>, RequestRefusal> {
        Ok(self.volume_states(name)?.into_iter().flat_map(|standing| standing.paths).collect())
    }

    /// Sets the state of a volume's paths: those by one port, by one portal group, or all.
    pub(super) fn set_path_states(
        &self,
        name: &str,
        (port, group): (Option<u16>, Option<u16>),
        state: Option<&str>,
        preferred: Option<bool>,
    ) -> Result<Vec<VolumePathReport>, RequestRefusal> {
        let to = state.map(parse_access_state).transpose()?;
        if to.is_none() && preferred.is_none() {
            let why = "nothing to set: give a state, or whether the paths are preferred";
            return Err(RequestRefusal::new(RefusalCode::Invalid, why));
        }
        let paths = self.path_reports(Some(name))?;
        let chosen = paths.iter().filter(|path| {
            port.is_none_or(|port| path.port == port) && group.is_none_or(|group| path.group == group)
        });
        let ports: Vec<u16> = chosen.map(|path| path.port).collect();
        if ports.is_empty() {
            let known: Vec<String> =
                paths.iter().map(|path| format!("port {} (group {})", path.port, path.group)).collect();
            let why = format!("volume \"{name}\" has no such path; it has {}", known.join(", "));
            return Err(RequestRefusal::new(RefusalCode::NotFound, why));
        }
        let engine = &self.volumes.engine;
        let shown = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        if let (Some(to), Some(state)) = (to, state) {
            engine.set_path_access(name, &ports, to).map_err(|why| refusal_from_engine_error(&why))?;
            tracing::info!(target: area::VOLUME, volume = name, ports = shown, state, "paths set");
        }
        if let Some(on) = preferred {
            engine.set_preferred_paths(name, &ports, on).map_err(|why| refusal_from_engine_error(&why))?;
            tracing::info!(target: area::VOLUME, volume = name, ports = shown, on, "preferred paths set");
        }
        self.path_reports(Some(name))
    }

    /// Forbids writes to a volume, or allows them again.
    pub(super) fn set_write_protection(&self, name: &str, on: bool) -> Result<VolumeReport, RequestRefusal> {
        let report = self.volumes.lock_served().volume_report(name)?;
        if report.read_only && !on {
            let why = format!(
                "volume \"{name}\" was opened read-only (`ro`); remove that from the configuration and restart"
            );
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        self.volumes.engine.set_write_protection(name, on).map_err(|why| refusal_from_engine_error(&why))?;
        tracing::info!(target: area::VOLUME, volume = name, on, "write protection");
        self.volume_report(name, false)
    }

    pub(super) fn subsystem_reports(&self) -> Result<Vec<SubsystemReport>, RequestRefusal> {
        let sessions = self.volumes.engine.sessions().map_err(|why| refusal_from_engine_error(&why))?;
        let listeners = self.volumes.engine.listeners();
        let served = self.volumes.lock_served();
        Ok(served
            .ways
            .subsystems
            .iter()
            .map(|one| self.subsystem_report(one, &sessions, &listeners))
            .collect())
    }

    fn subsystem_report(
        &self,
        subsystem: &Subsystem,
        sessions: &[SessionReport],
        listeners: &[ListenerReport],
    ) -> SubsystemReport {
        let through = listeners.iter().filter(|listener| {
            listener.protocol == Protocol::Nvme.as_str() && subsystem.portals.contains(&listener.tag)
        });
        let plan = self.volumes.plan();
        let granted = plan.hosts.iter().filter(|host| reaches_subsystem(host, &subsystem.nqn));
        let namespace = |one: &config::plan::Namespace| NamespaceReport {
            nsid: one.nsid,
            volume: one.volume.to_string(),
            read_only: one.read_only,
            ana_group: one.ana_group,
        };
        let connected = sessions.iter().filter(|session| session.target.as_ref() == Some(&subsystem.nqn));
        SubsystemReport {
            nqn: subsystem.nqn.clone(),
            portals: through.map(|one| PortalReport { address: one.address, tag: one.tag }).collect(),
            namespaces: subsystem.namespaces.iter().map(namespace).collect(),
            open: subsystem.open,
            hosts: granted.map(|host| host.name.clone()).collect(),
            serial: subsystem.serial.clone(),
            model: subsystem.model.clone(),
            controllers: connected.count(),
        }
    }

    pub(super) fn subsystem_report_by_name(&self, name: &str) -> Result<SubsystemReport, RequestRefusal> {
        let all = self.subsystem_reports()?;
        super::find_by_name("subsystem", name, all, |one| &one.nqn)
    }

    pub(super) fn host_reports(&self) -> Result<Vec<HostReport>, RequestRefusal> {
        let sessions = self.volumes.engine.sessions().map_err(|why| refusal_from_engine_error(&why))?;
        let served = self.volumes.lock_served();
        let plan = self.volumes.plan();
        let limited = self.volumes.engine.host_limits();
        let mut blocked = self.volumes.engine.blocked_names();
        let mut all = Vec::new();
        for host in &plan.hosts {
            let report = build_host_report(host, &served, &sessions);
            let own = || host.iqns.iter().chain(&host.nqns);
            let names: Vec<String> =
                own().filter(|name| host.blocked || blocked.contains(*name)).cloned().collect();
            let limits = limited.iter().find(|one| one.host == host.name).map(|one| one.limits.clone());
            let report = HostReport { limits, ..report };
            all.push(HostReport {
                blocked: host.blocked || !names.is_empty(),
                blocked_names: names,
                ..report
            });
        }
        blocked.retain(|name| !all.iter().any(|host| host.blocked_names.contains(name)));
        all.extend(blocked.into_iter().map(unconfigured_host));
        Ok(all)
    }

    pub(super) fn host_report(&self, name: &str) -> Result<HostReport, RequestRefusal> {
        let all = self.host_reports()?;
        let found = all.iter().find(|host| host.name == name).cloned();
        found.ok_or_else(|| unknown_name("host", name, all.iter().map(|host| host.name.as_str())))
    }
}

fn reaches_subsystem(host: &Host, nqn: &str) -> bool {
    host.may_use_nvme() && host.subsystem_grant(nqn).is_some()
}

fn build_host_report(host: &Host, served: &ServedState, sessions: &[SessionReport]) -> HostReport {
    let targets = served.ways.targets.iter().map(|target| &target.name);
    let subsystems = served.ways.subsystems.iter().map(|subsystem| &subsystem.nqn);
    HostReport {
        name: host.name.clone(),
        iqns: host.iqns.clone(),
        nqns: host.nqns.clone(),
        hostid: host.hostid.map(|id| uuid::Uuid::from_bytes(id).to_string()),
        sources: host.sources.iter().map(ToString::to_string).collect(),
        both: host.both,
        chap_users: host.chap.iter().map(|account| account.user.clone()).collect(),
        dhchap: host.dhchap.is_some(),
        dhchap_controller: host.dhchap_controller.is_some(),
        targets: targets
            .filter(|name| host.may_use_iscsi() && host.target_grant(name).is_some())
            .cloned()
            .collect(),
        subsystems: subsystems.filter(|nqn| reaches_subsystem(host, nqn)).cloned().collect(),
        sessions: sessions.iter().filter(|session| session.host.as_ref() == Some(&host.name)).count(),
        limits: None,
        blocked: false,
        blocked_names: Vec::new(),
        unconfigured: false,
    }
}

fn parse_access_state(state: &str) -> Result<PathAccess, RequestRefusal> {
    PathAccess::ALL.into_iter().find(|access| access.name() == state).ok_or_else(|| {
        let hint = multipath::suggest::unknown_word_hint(state, PathAccess::ALL.map(PathAccess::name));
        RequestRefusal::new(RefusalCode::Invalid, format!("there is no path state \"{state}\"{hint}"))
    })
}

/// A host that is blocked and in no configuration: its name is all that is known of it.
fn unconfigured_host(name: String) -> HostReport {
    let (iqns, nqns) = if name.starts_with("nqn.") {
        (Vec::new(), vec![name.clone()])
    } else {
        (vec![name.clone()], Vec::new())
    };
    HostReport {
        blocked_names: vec![name.clone()],
        name,
        iqns,
        nqns,
        blocked: true,
        unconfigured: true,
        ..HostReport::default()
    }
}
