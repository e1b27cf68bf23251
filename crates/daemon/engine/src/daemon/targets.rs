//! Stopping and starting targets while the daemon runs, and their settings.
//!
//! A stopped target keeps its volumes open and its name in use, but initiators do not find it. If targets come from a
//! file, starting one reads the file again: its target settings apply to later logins, and any other change in it is
//! refused, so that the daemon never serves a mix of two versions.

use std::fmt::Write as _;

use super::{Daemon, ServedState, refusal_from_engine_error, unknown_name};
use config::plan::{
    AuthMethod, DaemonLimits, DigestPolicy, Host, Plan, Protocol, Target, TargetGrant, Volume, VolumeOrigin,
};
use control::{
    RefusalCode, RequestRefusal,
    report::{TargetSetting, TargetSettingsReport, TargetSwitchReport, line::LineReport},
};
use process::log::area;

/// Reads the daemon's files again, together with volumes that were created since.
pub type PlanReader = Box<dyn Fn(Vec<Volume>) -> Result<(Plan, Vec<LineReport>), String> + Send + Sync>;

impl Daemon {
    /// Starts stopped targets, and reads them again if they come from a file. `None`: the running ones; an empty list: all.
    pub(super) fn start_targets(
        &self,
        names: Option<&[String]>,
    ) -> Result<Vec<TargetSwitchReport>, RequestRefusal> {
        let _turn = self.volumes.lock_changes()?;
        let (known, lines) = self.reread_targets()?;
        let mut ways = self.volumes.lock_served().ways.clone();
        let running: Vec<String> = ways.targets.iter().map(|target| target.name.clone()).collect();
        let names: Vec<String> = match names {
            None => running.clone(),
            Some([]) => known.iter().map(|target| target.name.clone()).collect(),
            Some(names) => {
                let all = || known.iter().map(|target| target.name.as_str());
                if let Some(name) = names.iter().find(|name| !all().any(|known| known == *name)) {
                    return Err(unknown_name("target", name, all()));
                }
                names.to_vec()
            }
        };
        let mut done = Vec::new();
        for target in known.into_iter().filter(|target| names.contains(&target.name)) {
            let (name, same) = (target.name.clone(), ways.targets.contains(&target));
            let what = match (ways.targets.iter_mut().find(|other| other.name == target.name), same) {
                (Some(_), true) => "running",
                (Some(running), false) => {
                    *running = target;
                    "reloaded"
                }
                (None, _) => {
                    ways.targets.push(target);
                    "started"
                }
            };
            done.push(TargetSwitchReport { target: name, done: what.to_owned() });
        }
        self.volumes.engine.set_exports(&ways).map_err(|why| refusal_from_engine_error(&why))?;
        let mut served = self.volumes.lock_served();
        served.stopped.retain(|target| !ways.targets.iter().any(|other| other.name == target.name));
        served.ways = ways;
        if let Some(lines) = lines {
            served.lines = lines;
        }
        for one in &done {
            tracing::info!(target: area::ISCSI, target = one.target, done = one.done, "target");
        }
        Ok(done)
    }

    /// Stops targets: their sessions are asked to log out, and none can log in. An empty list: all.
    pub(super) fn stop_targets(&self, names: &[String]) -> Result<Vec<TargetSwitchReport>, RequestRefusal> {
        let _turn = self.volumes.lock_changes()?;
        let (mut ways, before) = {
            let served = self.volumes.lock_served();
            (served.ways.clone(), served.stopped.clone())
        };
        let all = || ways.targets.iter().chain(&before).map(|target| target.name.as_str());
        if let Some(name) = names.iter().find(|name| !all().any(|known| known == *name)) {
            return Err(unknown_name("target", name, all()));
        }
        let is_meant = |target: &Target| names.is_empty() || names.contains(&target.name);
        let stopped: Vec<Target> = ways.targets.extract_if(.., |target| is_meant(target)).collect();
        self.volumes.engine.set_exports(&ways).map_err(|why| refusal_from_engine_error(&why))?;
        let report = |target: &Target, done: &str| TargetSwitchReport {
            target: target.name.clone(),
            done: done.to_owned(),
        };
        let mut done: Vec<TargetSwitchReport> =
            stopped.iter().map(|target| report(target, "stopped")).collect();
        done.extend(before.iter().filter(|one| is_meant(one)).map(|one| report(one, "stopped before")));
        for target in &stopped {
            tracing::info!(target: area::ISCSI, target = target.name, done = "stopped", "target");
        }
        let mut served = self.volumes.lock_served();
        served.ways = ways;
        served.stopped.extend(stopped);
        Ok(done)
    }

    /// The targets according to their file, or the current ones without a file.
    fn reread_targets(&self) -> Result<(Vec<Target>, Option<Vec<LineReport>>), RequestRefusal> {
        let (known, created) = {
            let served = self.volumes.lock_served();
            let volumes = served.stores.iter().map(|store| &store.volume);
            let created = volumes.filter(|volume| volume.origin == VolumeOrigin::Created).cloned().collect();
            (served.ways.targets.iter().chain(&served.stopped).cloned().collect(), created)
        };
        let Some(again) = &self.again else { return Ok((known, None)) };
        let (plan, lines) = again(created).map_err(|why| RequestRefusal::new(RefusalCode::Invalid, why))?;
        if let Some(what) = unappliable_difference(&self.volumes.plan(), &plan) {
            let why = format!(
                "{what} changed in the file since the daemon read it: stop it (`blockwire stop`) and start it again; \
                 initiators reconnect automatically"
            );
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        Ok((plan.ways.targets, Some(lines)))
    }

    /// Ends a session at once; its initiator may log in again.
    pub(super) fn end_session(&self, id: u64) -> Result<(), RequestRefusal> {
        let sessions = self.volumes.engine.sessions().map_err(|why| refusal_from_engine_error(&why))?;
        let is_it = |session: &&control::report::SessionReport| {
            session.id == id && session.protocol == Protocol::Iscsi.as_str()
        };
        let Some(session) = sessions.iter().find(is_it) else {
            return Err(RequestRefusal::new(
                RefusalCode::NotFound,
                format!("there is no iSCSI session {id:#x}"),
            ));
        };
        self.volumes.engine.end_session(id, session.shard).map_err(|why| refusal_from_engine_error(&why))?;
        tracing::info!(target: area::ISCSI, session = id, initiator = session.initiator, "session dropped");
        Ok(())
    }

    /// The settings of targets, in the syntax of `chiscsi.conf`. An empty list: all.
    pub(super) fn target_settings(
        &self,
        names: &[String],
    ) -> Result<Vec<TargetSettingsReport>, RequestRefusal> {
        let served = self.volumes.lock_served();
        let all = || served.ways.targets.iter().chain(&served.stopped);
        if let Some(name) = names.iter().find(|name| !all().any(|target| target.name == **name)) {
            return Err(unknown_name("target", name, all().map(|target| target.name.as_str())));
        }
        let meant = all().filter(|target| names.is_empty() || names.contains(&target.name));
        Ok(meant.map(|target| self.target_settings_report(target, &served)).collect())
    }

    fn target_settings_report(&self, target: &Target, served: &ServedState) -> TargetSettingsReport {
        let mut settings = Vec::new();
        let mut say = |key: &str, value: String| settings.push(TargetSetting { key: key.to_owned(), value });
        say("TargetName", target.name.clone());
        if let Some(alias) = &target.alias {
            say("TargetAlias", alias.clone());
        }
        let listeners = self.volumes.engine.listeners();
        let reached = listeners.iter().enumerate().filter(|(at, one)| {
            one.protocol == Protocol::Iscsi.as_str()
                && target.portals.contains(&one.tag)
                && target.listeners.as_ref().is_none_or(|own| own.contains(at))
        });
        for (_, one) in reached {
            say("PortalGroup", format!("{}@{}", one.tag, one.address));
        }
        for lun in &target.luns {
            let store = served.stores.iter().find(|store| store.volume.name == lun.volume);
            say(
                "TargetDevice",
                store.map_or_else(|| lun.volume.to_string(), |store| store.volume.spec.to_string()),
            );
        }
        let terms = &target.negotiation;
        say("MaxConnections", terms.max_connections.to_string());
        say("InitialR2T", yes_or_no(terms.initial_r2t));
        say("ImmediateData", yes_or_no(terms.immediate_data));
        say("FirstBurstLength", terms.first_burst.to_string());
        say("MaxBurstLength", terms.max_burst.to_string());
        say("MaxOutstandingR2T", terms.max_outstanding_r2t.to_string());
        say("MaxRecvDataSegmentLength", terms.max_receive.to_string());
        say("HeaderDigest", digest_word(terms.header_digest).to_owned());
        say("DataDigest", digest_word(terms.data_digest).to_owned());
        say("TargetSessionMaxCmd", target.commands.to_string());
        self.push_chap_settings(target, &mut say);
        say("ACL_Enable", yes_or_no(!target.open));
        for host in self.volumes.plan().hosts.iter().filter(|host| host.may_use_iscsi()) {
            if let Some(grant) = host.target_grant(&target.name) {
                say("ACL", acl_line(host, grant));
            }
        }
        let is_active = served.ways.targets.iter().any(|other| other.name == target.name);
        TargetSettingsReport { target: target.name.clone(), is_active, settings }
    }

    fn push_chap_settings(&self, target: &Target, say: &mut impl FnMut(&str, String)) {
        let plan = self.volumes.plan();
        let (auth, own) = (&plan.auth, plan.auth.shared_credentials(target));
        if own.is_empty() {
            return say("AuthMethod", "None".to_owned());
        }
        let is_optional = auth.target_methods(target).contains(&AuthMethod::None);
        say("AuthMethod", if is_optional { "None,CHAP" } else { "CHAP" }.to_owned());
        say("Auth_CHAP_Policy", if auth.demands_mutual(target) { "Mutual" } else { "Oneway" }.to_owned());
        for one in own {
            say("Auth_CHAP_Initiator", format!("\"{}\":\"...\"", one.user));
        }
        if let Some((id, _)) = own.iter().find_map(|one| one.mutual.as_ref()) {
            say("Auth_CHAP_Target", format!("\"{id}\":\"...\""));
        }
    }
}

fn yes_or_no(is: bool) -> String {
    if is { "Yes" } else { "No" }.to_owned()
}

fn digest_word(policy: DigestPolicy) -> &'static str {
    match policy {
        DigestPolicy::Off => "None",
        DigestPolicy::Allow => "None,CRC32C",
        DigestPolicy::Require => "CRC32C",
    }
}

/// A host's grant as a line of an access list.
fn acl_line(host: &Host, grant: &TargetGrant) -> String {
    let mut parts = Vec::new();
    if !host.iqns.is_empty() {
        parts.push(format!("iname={}", host.iqns.join(",")));
    }
    let joined = |list: Vec<String>| list.join(",");
    if !host.sources.is_empty() {
        parts.push(format!("sip={}", joined(host.sources.iter().map(ToString::to_string).collect())));
    }
    if !grant.locals.is_empty() {
        parts.push(format!("dip={}", joined(grant.locals.iter().map(ToString::to_string).collect())));
    }
    let permission = |read_only| if read_only || grant.read_only { "R" } else { "RW" };
    parts.push(match &grant.luns {
        None => format!("lun=ALL:{}", permission(false)),
        Some(luns) => {
            let mut text = String::from("lun=");
            for (at, (lun, read_only)) in luns.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                let _ = write!(text, "{comma}{lun}:{}", permission(*read_only));
            }
            text
        }
    });
    parts.join(";")
}

/// A difference between two plans that cannot be applied while the daemon runs.
fn unappliable_difference(old: &Plan, new: &Plan) -> Option<&'static str> {
    fn configured_volumes(plan: &Plan) -> Vec<&Volume> {
        plan.volumes.iter().filter(|volume| volume.origin == VolumeOrigin::Configured).collect()
    }
    let host = |host: &Host| {
        (host.name.clone(), host.iqns.clone(), host.sources.clone(), host.chap.clone(), host.grants.clone())
    };
    let hosts = |plan: &Plan| plan.hosts.iter().map(host).collect::<Vec<_>>();
    if old.portals != new.portals {
        Some("an address or tag (PortalGroup)")
    } else if configured_volumes(old) != configured_volumes(new) {
        Some("a device (TargetDevice)")
    } else if hosts(old) != hosts(new) {
        Some("an access list (ACL)")
    } else if old.auth.discovery != new.auth.discovery || old.auth.mutual != new.auth.mutual {
        Some("how initiators authenticate for discovery (DISC_Auth...)")
    } else if old.limits != (DaemonLimits { memory: old.limits.memory, ..new.limits.clone() }) {
        // Memory stays as it is: windows grow as far as it has room.
        Some("a limit (iscsi_login_complete_time)")
    } else if old.placement != new.placement {
        Some("the policy")
    } else {
        None
    }
}
