//! From typed blocks to the draft of a configuration, and the report on each line.

use std::{collections::HashSet, net::SocketAddr, path::Path, time::Duration};

use super::{
    access::LunAccess,
    block::{self, Block, Setting},
    chap,
    device::{AccessMode, TargetDevice},
    key::{BlockKind, Key},
    target::{AUTH_METHODS_DEFAULT, DISCOVERY_METHODS_DEFAULT, GlobalSection, TargetSection},
};
use config::{
    check,
    diagnostic::{Located, Place, Sink, SourceText},
    draft::{AuthDraft, Draft, HostDraft, LunDraft, TargetDraft},
    name::VolumeName,
    plan::{
        Auth, AuthMethod, DaemonLimits, Host, InquiryStrings, Portal, Protocol, TargetAuth, TargetGrant,
        TcpOptions, TemporaryRedirect, Volume, VolumeOrigin,
    },
};
use control::report::line::{LineReport, Treatment};

/// Longest login that the daemon can be told to wait for.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(600);
/// Most payload memory of a core that a file makes the daemon take.
const MEMORY_MAX: u64 = 1 << 30;

/// Reads the text of a file into `draft`.
pub fn read_into_draft(
    text: &SourceText,
    directory: &Path,
    is_world_readable: bool,
    sink: &Sink,
    draft: &mut Draft,
) -> Vec<LineReport> {
    let blocks = block::parse_blocks(text, sink);
    let mut entries = blocks.iter().flat_map(|block| &block.entries);
    if let Some(entry) = entries.find(|entry| entry.key.is_secret()).filter(|_| is_world_readable) {
        sink.note_error(&entry.value.at, "this file holds a secret and others can read it; chmod o= it");
    }
    let mut global = GlobalSection { is_chap_first: true, ..GlobalSection::default() };
    let mut targets = Vec::new();
    for block in &blocks {
        match block.kind {
            BlockKind::Global => global = GlobalSection::from_block(block, sink),
            BlockKind::Target => targets.push((block, TargetSection::from_block(block, sink))),
        }
    }
    if !sink.is_clean() {
        return Vec::new();
    }
    let mut volumes = VolumeBuilder { directory, taken: used_volume_names(draft), paths: Vec::new() };
    for (_, target) in &targets {
        add_portals(target, sink, draft);
        let Some(name) = &target.name else { continue };
        let luns = volumes.add_luns(target, sink, draft);
        add_access_hosts(target, name, draft);
        let made = build_target_draft(target, name.clone(), luns, &global, sink);
        draft.targets.push(Located::new(made, name.at.clone()));
    }
    let at = blocks.first().map_or_else(|| text.place_of_span(0..0), |block| block.at.clone());
    draft.auth = Some(Located::new(discovery_auth(&global, sink), at.clone()));
    draft.limits = Some(Located::new(daemon_limits(&global, &targets), at));
    let mut lines = Vec::new();
    for block in blocks.iter().filter(|block| block.kind == BlockKind::Global) {
        lines.extend(
            block
                .entries
                .iter()
                .map(|entry| line_report(text, "global", entry, global_setting_treatment(entry, &global))),
        );
    }
    for (block, target) in &targets {
        report_target(text, block, target, &mut lines);
    }
    lines.sort_by_key(|line| line.line);
    lines
}

fn used_volume_names(draft: &Draft) -> HashSet<String> {
    draft.volumes.iter().map(|volume| volume.value.name.to_string()).collect()
}

/// A listener for each address that is this machine's. An address has one tag, whichever target names it.
fn add_portals(target: &TargetSection, sink: &Sink, draft: &mut Draft) {
    for group in target.groups.iter().filter(|group| !target.is_remote_group(group.value.tag)) {
        for address in &group.value.addresses {
            if draft.portals.len() > check::PORTALS_MAX {
                // One more than there may be: that is said where all portals are checked.
                return;
            }
            let tag = group.value.tag;
            let known = draft.portals.iter().find(|portal| portal.value.address == *address);
            match known {
                Some(known) if known.value.tag == tag => {}
                Some(known) => {
                    let why = format!(
                        "PortalGroup {tag} has the address {address}, which is of group {} at {}",
                        known.value.tag, known.at
                    );
                    sink.note_error(&group.at, why);
                }
                None => {
                    let portal = Portal {
                        protocol: Protocol::Iscsi,
                        address: *address,
                        tag,
                        digests: (true, true),
                        tls: shard::TlsMode::Off,
                        announce: false,
                        tcp: TcpOptions::default(),
                    };
                    draft.portals.push(Located::new(portal, group.at.clone()));
                }
            }
        }
    }
}

/// Makes volumes of devices, each once.
struct VolumeBuilder<'a> {
    directory: &'a Path,
    taken: HashSet<String>,
    /// What stands for a path: several targets may share a device.
    paths: Vec<(TargetDevice, VolumeName, Place)>,
}

impl VolumeBuilder<'_> {
    /// The logical units of a target: numbered as its devices stand.
    fn add_luns(&mut self, target: &TargetSection, sink: &Sink, draft: &mut Draft) -> Vec<LunDraft> {
        let mut luns = Vec::new();
        let mut memory = HashSet::new();
        for (number, device) in target.devices.iter().enumerate() {
            if device.value.mode == AccessMode::Memory && !memory.insert(device.value.name.as_str()) {
                let why =
                    format!("TargetDevice: this target has two RAM disks named \"{}\"", device.value.name);
                sink.note_error(&device.at, why);
            }
            if let Some(volume) = self.add_volume(device, sink, draft) {
                let at = device.at.clone();
                luns.push(LunDraft {
                    lun: Located::new(number as u64, at.clone()),
                    volume: Located::new(volume.to_string(), at),
                    read_only: false,
                });
            }
        }
        luns
    }

    fn add_volume(
        &mut self,
        device: &Located<TargetDevice>,
        sink: &Sink,
        draft: &mut Draft,
    ) -> Option<VolumeName> {
        let is_shared = |other: &&(TargetDevice, VolumeName, Place)| other.0.name == device.value.name;
        let is_path = device.value.mode != AccessMode::Memory && !device.value.is_null;
        if let Some((known, name, at)) = self.paths.iter().find(is_shared).filter(|_| is_path) {
            if *known == device.value {
                return Some(name.clone());
            }
            let why = format!("TargetDevice {} has other options at {at}", device.value.name);
            sink.note_error(&device.at, why);
            return None;
        }
        let spec = match device.value.to_volume_spec(self.directory) {
            Ok(spec) => spec,
            Err(why) => {
                sink.note_error(&device.at, format!("TargetDevice {why}"));
                return None;
            }
        };
        if let Err(why) = spec.check() {
            sink.note_error(&device.at, format!("TargetDevice: {why}"));
            return None;
        }
        let name = self.unique_name(&device.value.label())?;
        if is_path {
            self.paths.push((device.value.clone(), name.clone(), device.at.clone()));
        }
        let volume = Volume { name: name.clone(), spec, origin: VolumeOrigin::Configured };
        draft.volumes.push(Located::new(volume, device.at.clone()));
        Some(name)
    }

    /// A name that nothing else has.
    fn unique_name(&mut self, label: &str) -> Option<VolumeName> {
        let mut name = label.to_owned();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{label}-{number}");
        }
        VolumeName::parse(&name).ok()
    }
}

/// What the lines of an access list become: hosts, the first that fits decides.
fn add_access_hosts(target: &TargetSection, name: &Located<String>, draft: &mut Draft) {
    if !target.has_access_list {
        return;
    }
    for (line, acl) in &target.acls {
        let (luns, read_only) = match &acl.value.luns {
            LunAccess::All { read_only } => (None, *read_only),
            LunAccess::Some(_) => {
                let seen = |lun: u16| Some((lun, acl.value.luns.access_of(lun)?));
                (Some((0..target.devices.len() as u16).filter_map(seen).collect()), false)
            }
        };
        let locals = acl.value.locals.clone();
        let grant = TargetGrant { target: Some(name.value.clone()), luns, read_only, locals };
        let host = Host {
            name: format!("ACL of line {line}"),
            iqns: acl.value.names.clone(),
            sources: acl.value.sources.clone(),
            chap: Vec::new(),
            grants: Vec::new(),
            nqns: Vec::new(),
            hostid: None,
            dhchap: None,
            dhchap_controller: None,
            tls_key: None,
            both: false,
            blocked: false,
            limits: Default::default(),
            subsystem_grants: Vec::new(),
        };
        let host = HostDraft {
            host,
            grants: vec![Located::new(grant, acl.at.clone())],
            subsystem_grants: Vec::new(),
            access_written: true,
        };
        draft.hosts.push(Located::new(host, acl.at.clone()));
    }
}

fn build_target_draft(
    target: &TargetSection,
    name: Located<String>,
    luns: Vec<LunDraft>,
    global: &GlobalSection,
    sink: &Sink,
) -> TargetDraft {
    let own = target.groups.iter().filter(|group| !target.is_remote_group(group.value.tag));
    let mut portals: Vec<Located<u64>> = Vec::new();
    for group in own.clone() {
        if !portals.iter().any(|known| known.value == u64::from(group.value.tag)) {
            portals.push(Located::new(group.value.tag.into(), group.at.clone()));
        }
    }
    let addresses: Vec<SocketAddr> = own.flat_map(|group| group.value.addresses.iter().copied()).collect();
    let usual = InquiryStrings::default();
    let chap = if target.proof.is_enabled(AUTH_METHODS_DEFAULT) {
        target.proof.credentials(sink)
    } else {
        Vec::new()
    };
    let (none, _) = target.proof.methods.unwrap_or(AUTH_METHODS_DEFAULT);
    let methods = if none { vec![AuthMethod::Chap, AuthMethod::None] } else { vec![AuthMethod::Chap] };
    let sent_on = target.groups.iter().filter(|group| !group.value.sent_to.is_empty()).map(|group| {
        let to = target.groups.iter().filter(|other| group.value.sent_to.contains(&other.value.tag));
        TemporaryRedirect {
            group: group.value.tag,
            to: to.flat_map(|other| other.value.addresses.iter().copied()).collect(),
        }
    });
    TargetDraft {
        name,
        alias: target.alias.clone(),
        portals: Some(portals),
        addresses: Some(addresses),
        luns,
        luns_written: true,
        open: Some(!target.has_access_list),
        negotiation: target.negotiation.clone(),
        first_burst: target.first_burst.clone(),
        commands: target.commands,
        inquiry: InquiryStrings {
            vendor: global.vendor.clone().unwrap_or(usual.vendor),
            product: usual.product,
        },
        explicit_alua: false,
        redirect: None,
        sent_on: sent_on.collect(),
        auth: (!chap.is_empty()).then_some(TargetAuth { chap, methods, mutual: target.proof.is_mutual }),
        nop_timeout: target.groups.iter().filter_map(|group| group.value.timeout).min(),
    }
}

fn discovery_auth(global: &GlobalSection, sink: &Sink) -> AuthDraft {
    let proof = &global.discovery;
    let discovery =
        if proof.is_enabled(DISCOVERY_METHODS_DEFAULT) { proof.credentials(sink) } else { Vec::new() };
    AuthDraft { auth: Auth { discovery, mutual: proof.is_mutual, ..Auth::default() }, ..AuthDraft::default() }
}

/// The daemon's limits: as everywhere, but that the greatest window of commands has room.
fn daemon_limits(global: &GlobalSection, targets: &[(&Block, TargetSection)]) -> DaemonLimits {
    let usual = DaemonLimits::default();
    let wanted = targets.iter().map(|(_, target)| payload_memory(target)).max().unwrap_or(0);
    let login_timeout = match global.login_time {
        None => usual.login_timeout,
        Some(time) if time.is_zero() => LOGIN_TIME_MAX,
        Some(time) => time.min(LOGIN_TIME_MAX),
    };
    DaemonLimits { memory: usual.memory.max(wanted.min(MEMORY_MAX)), login_timeout, ..usual }
}

/// Payload memory of a core in which one session of a target can have its whole window: half of it may be
/// promised, a quarter of that to one session (see `ARCHITECTURE.md`, Memory).
fn payload_memory(target: &TargetSection) -> u64 {
    let terms = &target.negotiation;
    let burst = match (terms.initial_r2t, terms.immediate_data) {
        (true, false) => return 0,
        (true, true) => terms.first_burst.min(terms.max_receive),
        (false, _) => terms.first_burst,
    };
    let unit = u64::from(burst.next_power_of_two().max(512));
    (8 * (u64::from(target.commands) + 1) * unit).next_power_of_two()
}

fn line_report(
    text: &SourceText,
    block: &str,
    entry: &Setting,
    (treatment, note): (Treatment, String),
) -> LineReport {
    let value = match entry.key.is_secret() {
        true => chap::redacted_pair(&entry.value.value),
        false => entry.value.value.clone(),
    };
    LineReport {
        file: text.name().to_owned(),
        line: entry.line,
        block: block.to_owned(),
        text: format!("{}={value}", entry.key.name()),
        treatment,
        note,
    }
}

fn applied_treatment(note: &str) -> (Treatment, String) {
    (Treatment::Applied, note.to_owned())
}

fn emulated_treatment(note: &str) -> (Treatment, String) {
    (Treatment::Emulated, note.to_owned())
}

fn meaningless_treatment(note: &str) -> (Treatment, String) {
    (Treatment::Meaningless, note.to_owned())
}

fn unused_treatment(note: &str) -> (Treatment, String) {
    (Treatment::Unused, note.to_owned())
}

/// Why a line of a block about CHAP is not looked at.
fn unused_chap_treatment(
    proof: &chap::ChapSettings,
    usual: (bool, bool),
    method: &str,
) -> Option<(Treatment, String)> {
    if proof.is_enabled(usual) {
        return None;
    }
    Some(match proof.methods.unwrap_or(usual) {
        (_, true) => unused_treatment("no initiator has an id and a secret"),
        (_, false) => unused_treatment(&format!("{method} does not allow CHAP")),
    })
}

const CHALLENGE_NOTE: &str =
    "a challenge is random and as long as the digest of the algorithm: 16 bytes for MD5";

fn global_setting_treatment(entry: &Setting, global: &GlobalSection) -> (Treatment, String) {
    let chap = || unused_chap_treatment(&global.discovery, DISCOVERY_METHODS_DEFAULT, "DISC_AuthMethod");
    match entry.key {
        Key::OffloadMode => meaningless_treatment(
            "TCP, iSCSI and digests are done by the processor; there is no offload engine",
        ),
        Key::HaMode => meaningless_treatment("it is about the vendor's driver"),
        Key::AuthOrder if global.is_chap_first => emulated_treatment(
            "initiators that no ACL names are refused before CHAP, not after it; the result is the same",
        ),
        Key::LoginTime if global.login_time.is_some_and(|time| time.is_zero() || time > LOGIN_TIME_MAX) => {
            emulated_treatment("a login may take 600 seconds at most")
        }
        Key::AuthOrder | Key::LoginTime | Key::VendorId | Key::DiscoveryMethod => applied_treatment(""),
        Key::AclOrder => applied_treatment("access lists are those of this file"),
        Key::InitiatorIdentity => meaningless_treatment("there is nothing to arrange between two adapters"),
        Key::DiscoveryPolicy => chap().unwrap_or_else(|| applied_treatment("")),
        Key::DiscoveryInitiator => chap().unwrap_or_else(|| applied_treatment("for discovery sessions")),
        Key::DiscoveryTarget => chap().unwrap_or_else(|| applied_treatment("for initiators that ask for it")),
        Key::ChallengeLength => emulated_treatment(CHALLENGE_NOTE),
        _ => unused_treatment("it belongs to another kind of block"),
    }
}

fn report_target(text: &SourceText, block: &Block, target: &TargetSection, lines: &mut Vec<LineReport>) {
    let name = target.name.as_ref().map_or("", |name| &name.value);
    let mut devices = target.devices.iter().enumerate();
    for entry in &block.entries {
        let treated = match entry.key {
            Key::Device => devices.next().map_or_else(
                || unused_treatment("it could not be read"),
                |(lun, device)| device_treatment(lun, &device.value),
            ),
            _ => target_setting_treatment(entry, target),
        };
        lines.push(line_report(text, name, entry, treated));
    }
}

fn target_setting_treatment(entry: &Setting, target: &TargetSection) -> (Treatment, String) {
    let chap = || unused_chap_treatment(&target.proof, AUTH_METHODS_DEFAULT, "AuthMethod");
    match entry.key {
        Key::Time2Wait | Key::Time2Retain => {
            meaningless_treatment("its own software does not look at it either")
        }
        Key::OfMarkInt | Key::IfMarkInt => meaningless_treatment("there are no markers"),
        Key::Policy | Key::Target | Key::Initiator => chap().unwrap_or_else(|| applied_treatment("")),
        Key::AuthMethod
            if !target.proof.is_enabled(AUTH_METHODS_DEFAULT)
                && target.proof.methods.is_some_and(|m| m.1) =>
        {
            emulated_treatment("no initiator has an id and a secret, so none has to authenticate")
        }
        Key::ChallengeLength => chap().unwrap_or_else(|| emulated_treatment(CHALLENGE_NOTE)),
        Key::Commands => match payload_memory(target) > MEMORY_MAX {
            true => emulated_treatment(
                "a session's window grows as it is used, as far as 1 GiB of memory per core has room",
            ),
            false => {
                applied_treatment("a session's window begins with 8 commands at most and grows as it is used")
            }
        },
        Key::PortalGroup
            if entry.value.value.contains('[')
                && target.groups.iter().any(|g| !g.value.sent_to.is_empty()) =>
        {
            emulated_treatment("redirected logins are spread by the port that they come from, not in turn")
        }
        Key::ShadowMode if target.groups.iter().all(|group| group.value.sent_to.is_empty()) => {
            unused_treatment("no PortalGroup redirects")
        }
        Key::AclEnable if target.has_access_list => {
            applied_treatment("the first ACL that fits decides; none: refused")
        }
        Key::AclEnable => applied_treatment("any initiator may connect"),
        Key::Acl if !target.has_access_list => {
            unused_treatment("ACL_Enable is not Yes: any initiator may connect")
        }
        Key::RegisterIsns if entry.value.value == "Yes" => {
            meaningless_treatment("there is no iSNS client: initiators find it by SendTargets")
        }
        _ => applied_treatment(""),
    }
}

fn device_treatment(lun: usize, device: &TargetDevice) -> (Treatment, String) {
    let mut notes = vec![format!("logical unit {lun}")];
    if device.is_null {
        notes.push("reads give zeroes, not random data".to_owned());
    }
    if device.mode == AccessMode::Block {
        notes.push("requests go past the page cache".to_owned());
    }
    if device.derived_uuid().is_some() {
        notes.push("its identity is a UUID made of ID, WWN and SN".to_owned());
    }
    let note = notes.join("; ");
    if notes.len() > 1 { (Treatment::Emulated, note) } else { (Treatment::Applied, note) }
}
