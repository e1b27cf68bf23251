//! Requests about subsystems, hosts, reservations and paths, and changes of a volume by the operator.

use super::{Daemon, Served, refused, unknown};
use crate::dataplane::volume_state::ACCESS_STATES;
use config::plan::{Host, Protocol, Subsystem};
use control::{
    Code, Refused,
    report::{
        HostReport, ListenerReport, NamespaceExportReport, NamespaceReport, PathReport, PortalReport,
        ReservationReport, SessionReport, SubsystemReport, VolumeReport, VolumeStateReport,
    },
};

/// A remote volume may have changed since it was opened.
fn bring_up_to_date(report: &mut VolumeReport, standing: &VolumeStateReport) {
    report.size_bytes = Some(standing.size_bytes);
    report.read_only |= standing.backing_read_only;
}

impl Daemon {
    /// One volume with its current state.
    pub(super) fn volume_shown(&self, name: &str, latency: bool) -> Result<VolumeReport, Refused> {
        let report = self.volumes.served().volume(name)?;
        let mut report = self.volumes.with_doubt(report);
        if let Some(standing) = self.standings(Some(name))?.pop() {
            bring_up_to_date(&mut report, &standing);
            report.standing = Some(standing);
            if latency {
                let found = self.volumes.engine.volume_latency(name).map_err(|why| refused(&why))?;
                report.latency = Some(found);
            }
        }
        Ok(report)
    }

    /// All volumes, as they are now.
    pub(super) fn volume_list(&self) -> Result<Vec<VolumeReport>, Refused> {
        let served = self.volumes.served().volumes();
        let mut reports: Vec<_> = served.into_iter().map(|one| self.volumes.with_doubt(one)).collect();
        let standings = self.standings(None)?;
        for report in &mut reports {
            if let Some(standing) = standings.iter().find(|standing| standing.volume == report.name) {
                bring_up_to_date(report, standing);
            }
        }
        Ok(reports)
    }

    /// The current state of all volumes, or of one.
    fn standings(&self, name: Option<&str>) -> Result<Vec<VolumeStateReport>, Refused> {
        if let Some(name) = name {
            self.volumes.served().volume(name)?;
        }
        let all = self.volumes.engine.standings().map_err(|why| refused(&why))?;
        Ok(all.into_iter().filter(|one| name.is_none_or(|name| one.volume == name)).collect())
    }

    pub(super) fn reservations(&self) -> Result<Vec<ReservationReport>, Refused> {
        Ok(self.standings(None)?.into_iter().map(|standing| standing.reservation).collect())
    }

    pub(super) fn reservation(&self, name: &str) -> Result<ReservationReport, Refused> {
        let found = self.standings(Some(name))?.pop();
        found.map(|one| one.reservation).ok_or_else(|| Refused::new(Code::NotFound, name))
    }

    pub(super) fn paths(&self, name: Option<&str>) -> Result<Vec<PathReport>, Refused> {
        Ok(self.standings(name)?.into_iter().flat_map(|standing| standing.paths).collect())
    }

    /// Sets the state of a volume's paths: those by one port, by one portal group, or all.
    pub(super) fn set_paths(
        &self,
        name: &str,
        port: Option<u16>,
        group: Option<u16>,
        state: &str,
    ) -> Result<Vec<PathReport>, Refused> {
        let Some((_, to)) = ACCESS_STATES.iter().find(|(word, _)| *word == state) else {
            let hint = multipath::suggest::hint(state, ACCESS_STATES.map(|(word, _)| word));
            return Err(Refused::new(Code::Invalid, format!("there is no path state \"{state}\"{hint}")));
        };
        let paths = self.paths(Some(name))?;
        let chosen = paths.iter().filter(|path| {
            port.is_none_or(|port| path.port == port) && group.is_none_or(|group| path.group == group)
        });
        let ports: Vec<u16> = chosen.map(|path| path.port).collect();
        if ports.is_empty() {
            let known: Vec<String> =
                paths.iter().map(|path| format!("port {} (group {})", path.port, path.group)).collect();
            let why = format!("volume \"{name}\" has no such path; it has {}", known.join(", "));
            return Err(Refused::new(Code::NotFound, why));
        }
        self.volumes.engine.set_access(name, &ports, *to).map_err(|why| refused(&why))?;
        let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        tracing::info!(volume = name, ports, state, "paths set");
        self.paths(Some(name))
    }

    /// Forbids writes to a volume, or allows them again.
    pub(super) fn protect(&self, name: &str, on: bool) -> Result<VolumeReport, Refused> {
        let report = self.volumes.served().volume(name)?;
        if report.read_only && !on {
            let why = format!(
                "volume \"{name}\" was opened read-only (`ro`); remove that from the configuration and restart"
            );
            return Err(Refused::new(Code::Conflict, why));
        }
        self.volumes.engine.protect_volume(name, on).map_err(|why| refused(&why))?;
        tracing::info!(volume = name, on, "write protection");
        self.volume_shown(name, false)
    }

    pub(super) fn subsystems(&self) -> Result<Vec<SubsystemReport>, Refused> {
        let sessions = self.volumes.engine.sessions().map_err(|why| refused(&why))?;
        let listeners = self.volumes.engine.listeners();
        let served = self.volumes.served();
        Ok(served.ways.subsystems.iter().map(|one| self.subsystem(one, &sessions, &listeners)).collect())
    }

    fn subsystem(
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

    pub(super) fn subsystem_named(&self, name: &str) -> Result<SubsystemReport, Refused> {
        let all = self.subsystems()?;
        super::named("subsystem", name, all, |one| &one.nqn)
    }

    pub(super) fn hosts(&self) -> Result<Vec<HostReport>, Refused> {
        let sessions = self.volumes.engine.sessions().map_err(|why| refused(&why))?;
        let served = self.volumes.served();
        Ok(self.volumes.plan().hosts.iter().map(|host| report(host, &served, &sessions)).collect())
    }

    pub(super) fn host(&self, name: &str) -> Result<HostReport, Refused> {
        let all = self.hosts()?;
        let found = all.iter().find(|host| host.name == name).cloned();
        found.ok_or_else(|| unknown("host", name, all.iter().map(|host| host.name.as_str())))
    }
}

fn reaches_subsystem(host: &Host, nqn: &str) -> bool {
    host.speaks_nvme() && host.subsystem_grant(nqn).is_some()
}

fn report(host: &Host, served: &Served, sessions: &[SessionReport]) -> HostReport {
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
        targets: targets.filter(|name| host.speaks_iscsi() && host.grant(name).is_some()).cloned().collect(),
        subsystems: subsystems.filter(|nqn| reaches_subsystem(host, nqn)).cloned().collect(),
        sessions: sessions.iter().filter(|session| session.host.as_ref() == Some(&host.name)).count(),
    }
}

impl Served {
    /// The namespaces of a volume.
    pub(super) fn namespaces_of(&self, volume: &config::name::VolumeName) -> Vec<NamespaceExportReport> {
        let shown = self.ways.subsystems.iter().flat_map(|subsystem| {
            let namespaces = subsystem.namespaces.iter().filter(|one| one.volume == *volume);
            namespaces.map(|one| NamespaceExportReport {
                subsystem: subsystem.nqn.clone(),
                nsid: one.nsid,
                read_only: one.read_only,
                ana_group: one.ana_group,
            })
        });
        shown.collect()
    }
}
