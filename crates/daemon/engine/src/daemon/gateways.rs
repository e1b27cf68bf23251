//! The group of gateways: for the operator who takes part, who owns what, drain and fence; for hosts where the other
//! gateways are.

use std::{
    io,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use gateway::GroupStatus;
use group::{InstanceId, MemberEntry, Membership};

use super::{Daemon, unknown_name};
use crate::dataplane::group::{JoinedGroup, path_word};
use control::{
    RefusalCode, RequestRefusal,
    report::{GatewayCounters, GatewayGroupReport, GatewayReport, GatewayVolumeReport},
};
use process::log::area;

/// How long a drain is waited for; then it goes on in the background.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// How soon hosts find that a gateway has come or gone: at most so long after this one knows of it.
const FOLLOW: Duration = Duration::from_secs(1);

/// Starts a thread that has discovery name the portals of the other gateways; it ends with the daemon. Without a group
/// there is none.
///
/// # Errors
/// The system has no thread.
pub fn follow(daemon: &Arc<Daemon>) -> io::Result<()> {
    if daemon.volumes.engine.group().is_none() {
        return Ok(());
    }
    let daemon = Arc::downgrade(daemon);
    thread::Builder::new().name("gateways".to_owned()).spawn(move || run(&daemon)).map(drop)
}

fn run(daemon: &Weak<Daemon>) {
    let mut told = None;
    while let Some(daemon) = daemon.upgrade() {
        if let Err(why) = daemon.follow_gateways()
            && told.as_ref() != Some(&why)
        {
            tracing::warn!(target: area::SERVE, why, "discovery does not name all gateways of the group; it is tried again");
            told = Some(why);
        }
        drop(daemon);
        thread::sleep(FOLLOW);
    }
}

impl Daemon {
    fn follow_gateways(&self) -> Result<(), String> {
        let Some(group) = self.volumes.engine.group() else { return Ok(()) };
        let Some(status) = group.status() else { return Ok(()) };
        let mut gateways = group.other_gateways(&status).map_err(|why| why.to_string())?;
        let own = self.volumes.engine.listeners();
        // An initiator would take both for one portal group, over which it may spread a session.
        let is_shared = |tag: u16| own.iter().any(|one| one.protocol == "iscsi" && one.tag == tag);
        let mut shared = None;
        for gateway in &mut gateways {
            shared = shared.or(gateway.portals.iter().find(|(_, tag)| is_shared(*tag)).copied());
            gateway.portals.retain(|(_, tag)| !is_shared(*tag));
        }
        self.volumes.engine.follow_group(gateways).map_err(|why| why.to_string())?;
        match shared {
            Some((address, tag)) => Err(format!(
                "the iSCSI portal {address} of another gateway has the portal group tag {tag}, as one of this gateway: \
                 give each gateway tags of its own"
            )),
            None => Ok(()),
        }
    }

    fn group_status(&self) -> Result<(&JoinedGroup, GroupStatus), RequestRefusal> {
        let Some(group) = self.volumes.engine.group() else {
            let why = "this daemon is no gateway: its configuration has no [group]";
            return Err(RequestRefusal::new(RefusalCode::NotFound, why));
        };
        let gone = || {
            RequestRefusal::new(RefusalCode::Unavailable, "this gateway is no member of its group any more")
        };
        let status = group.status().ok_or_else(gone)?;
        Ok((group, status))
    }

    /// The gateways and the volumes of the group.
    pub(super) fn gateway_report(&self) -> Result<GatewayGroupReport, RequestRefusal> {
        let (group, status) = self.group_status()?;
        let name_of = |instance: InstanceId| {
            let entry = status.members.iter().find(|entry| entry.instance == instance);
            entry.map_or_else(|| format!("client.{instance}"), |entry| entry.gateway.to_string())
        };
        let mut volumes: Vec<GatewayVolumeReport> = Vec::new();
        let served = self.volumes.lock_served();
        for entry in &status.groups {
            for volume in &entry.volumes {
                let store = served.stores.iter().find(|store| store.uuid.as_bytes() == &volume.0);
                volumes.push(GatewayVolumeReport {
                    volume: store.map_or_else(|| volume.to_string(), |store| store.volume.name.to_string()),
                    group: entry.group.0,
                    term: entry.ownership.term.0,
                    owner: entry.ownership.owner.map(name_of),
                    path: entry.path.map(|path| path_word(path).to_owned()),
                });
            }
        }
        drop(served);
        volumes.sort_by(|one, other| one.volume.cmp(&other.volume));
        let owned = |instance: InstanceId| {
            let own = status.groups.iter().filter(|entry| entry.ownership.owner == Some(instance));
            own.map(|entry| entry.volumes.len()).sum()
        };
        let gateway = |entry: &MemberEntry| GatewayReport {
            gateway: entry.gateway.to_string(),
            instance: entry.instance.0,
            address: entry.address.to_string(),
            state: match (entry.membership, entry.draining) {
                (Membership::Expelled, _) => "expelled",
                (Membership::Joined, true) => "draining",
                (Membership::Joined, false) => "joined",
            }
            .to_owned(),
            linked: entry.instance == status.instance || status.linked.contains(&entry.instance),
            volumes: owned(entry.instance),
        };
        Ok(GatewayGroupReport {
            group: group.group_name().to_string(),
            gateway: group.name().to_string(),
            gateways: status.members.iter().map(gateway).collect(),
            volumes,
            counters: GatewayCounters {
                submitted: status.counters.submitted,
                forwarded: status.counters.forwarded,
                executed: status.counters.executed,
                path_errors: status.counters.path_errors,
                opened: status.counters.opened,
                closed: status.counters.closed,
            },
            drained: None,
        })
    }

    /// Hands the volumes of this gateway to others, or takes volumes again.
    pub(super) fn drain_gateway(&self, off: bool) -> Result<GatewayGroupReport, RequestRefusal> {
        let (group, _) = self.group_status()?;
        if off {
            group.undrain();
            return self.gateway_report();
        }
        let drained = group.drain(DRAIN_PATIENCE);
        Ok(GatewayGroupReport { drained: Some(drained), ..self.gateway_report()? })
    }

    /// Bars a gateway, by its name or by the number of a run of it.
    pub(super) fn fence_gateway(&self, which: &str) -> Result<GatewayGroupReport, RequestRefusal> {
        let (group, status) = self.group_status()?;
        let is_it = |entry: &&MemberEntry| *entry.gateway == *which || entry.instance.0.to_string() == which;
        let joined = status.members.iter().filter(|entry| entry.membership == Membership::Joined);
        let Some(entry) = joined.clone().find(is_it) else {
            let names = joined.map(|entry| entry.gateway.as_ref());
            return Err(unknown_name("gateway", which, names));
        };
        if entry.instance == status.instance {
            let why = "a gateway cannot fence itself: drain it, or fence it from another one";
            return Err(RequestRefusal::new(RefusalCode::Invalid, why));
        }
        tracing::warn!(
            target: area::SERVE,
            gateway = %entry.gateway, instance = %entry.instance,
            "gateway fenced by the operator"
        );
        group.expel(entry.instance);
        self.gateway_report()
    }
}
