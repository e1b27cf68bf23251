//! What all formats come to, before it is written as TOML.
//!
//! Invariant: names of volumes are those of our configuration, each once, and every volume has the key by which
//! its source knows it.

use std::{
    collections::HashSet,
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use config::{
    name::{self, NAME_BYTES_MAX, VolumeName},
    network,
    spec::Spec,
};
use zeroize::Zeroizing;

use crate::note::{Note, NoteOutcome};

/// A secret. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// A secret.
    pub fn new(text: &str) -> Self {
        Secret(Zeroizing::new(text.to_owned()))
    }

    /// Its text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A CHAP user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapUser {
    /// The initiator's name and secret.
    pub user: (String, Secret),
    /// The target's own.
    pub mutual: Option<(String, Secret)>,
}

impl ChapUser {
    /// Whether a secret has fewer than the 12 bytes that `serve` wants.
    fn is_short(&self) -> bool {
        let secrets = std::iter::once(&self.user).chain(&self.mutual);
        secrets.into_iter().any(|(_, secret)| secret.expose().len() < 12)
    }
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// How its source names it; several names if several stores there are one file or device.
    pub keys: Vec<String>,
    /// Our name.
    pub name: String,
    /// What it is.
    pub spec: Spec,
    /// Notes on its settings.
    pub notes: Vec<Note>,
}

/// A logical unit or namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunOrNamespace {
    /// LUN or NSID.
    pub number: u64,
    /// The key of its volume.
    pub volume: String,
    /// Write-protected.
    pub read_only: bool,
    /// ANA group of a namespace.
    pub ana_group: Option<u64>,
}

/// The protocol of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP.
    Nvme,
    /// NVMe/TCP, discovery only.
    NvmeDiscovery,
}

/// A target or subsystem.
#[derive(Clone, Debug)]
pub struct Export {
    /// Which of both.
    pub protocol: Protocol,
    /// Its IQN or NQN.
    pub name: String,
    /// Addresses through which it is reached.
    pub portals: Vec<SocketAddr>,
    /// Its logical units or namespaces.
    pub units: Vec<LunOrNamespace>,
    /// Any host may connect.
    pub open: bool,
    /// Further keys of ours with their values, as TOML.
    pub keys: Vec<(&'static str, String)>,
    /// Its own CHAP users.
    pub chap: Vec<ChapUser>,
    /// Notes on its settings.
    pub notes: Vec<Note>,
}

impl Export {
    /// One without anything.
    pub fn new(protocol: Protocol, name: &str) -> Self {
        Export {
            protocol,
            name: name.to_owned(),
            portals: Vec::new(),
            units: Vec::new(),
            open: false,
            keys: Vec::new(),
            chap: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Sets a key of ours.
    pub fn set_key(&mut self, key: &'static str, value: String) {
        self.keys.retain(|(known, _)| *known != key);
        self.keys.push((key, value));
    }
}

/// What a host may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which protocol.
    pub protocol: Protocol,
    /// The target or subsystem.
    pub export: String,
    /// Its units; `None`: all.
    pub units: Option<Vec<u64>>,
    /// Our addresses through which it must connect; empty: all.
    pub through: Vec<std::net::IpAddr>,
    /// It may only read.
    pub read_only: bool,
}

/// A host, or hosts that are treated alike.
#[derive(Clone, Debug)]
pub struct Host {
    /// For people.
    pub label: String,
    /// Initiator names.
    pub iqns: Vec<String>,
    /// NVMe names.
    pub nqns: Vec<String>,
    /// Networks.
    pub sources: Vec<String>,
    /// Credentials for iSCSI.
    pub chap: Vec<ChapUser>,
    /// Secret for DH-HMAC-CHAP.
    pub dhchap: Option<Secret>,
    /// Secret by which controllers prove themselves to it.
    pub dhchap_controller: Option<Secret>,
    /// What it may reach.
    pub grants: Vec<Grant>,
    /// Notes on its settings.
    pub notes: Vec<Note>,
}

impl Host {
    /// One without anything.
    pub fn new(label: &str) -> Self {
        Host {
            label: label.to_owned(),
            iqns: Vec::new(),
            nqns: Vec::new(),
            sources: Vec::new(),
            chap: Vec::new(),
            dhchap: None,
            dhchap_controller: None,
            grants: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct ImportModel {
    /// Notes that belong to no object.
    pub notes: Vec<Note>,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Targets and subsystems.
    pub exports: Vec<Export>,
    /// Hosts; the first that fits decides.
    pub hosts: Vec<Host>,
    /// Listeners for discovery only.
    pub discovery_portals: Vec<SocketAddr>,
    /// Other discovery services.
    pub referrals: Vec<SocketAddr>,
    /// CHAP users for discovery.
    pub discovery: Vec<ChapUser>,
    /// Keys of `[limits]` with their values.
    pub limits: Vec<(&'static str, u64)>,
}

impl ImportModel {
    /// Adds a volume under a name of ours. A file or device is one volume, however many stores there lie on it.
    pub fn add_volume(&mut self, key: &str, wish: &str, spec: Spec, mut notes: Vec<Note>) {
        let is_same = |known: &&mut Volume| spec.source.path().is_some() && known.spec.source == spec.source;
        if let Some(known) = self.volumes.iter_mut().find(is_same) {
            if known.spec != spec
                && let Some(first) = notes.first().cloned()
            {
                let why = format!("the same file or device is volume {}, whose options are used", known.name);
                notes.push(Note { outcome: NoteOutcome::Error, why, ..first });
            }
            known.keys.push(key.to_owned());
            known.notes.append(&mut notes);
            return;
        }
        let taken: HashSet<&str> = self.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let label = derive_label(wish);
        let mut name = label.clone();
        let mut number = 1;
        while taken.contains(name.as_str()) {
            number += 1;
            let end = format!("-{number}");
            name = label.chars().take(NAME_BYTES_MAX - end.len()).collect::<String>() + &end;
        }
        self.volumes.push(Volume { keys: vec![key.to_owned()], name, spec, notes });
    }

    /// The volume that the source knows by this key.
    pub fn volume(&self, key: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.keys.iter().any(|known| known == key))
    }

    /// Adds a host, or its grants to one that is the same but for them.
    pub fn add_host(&mut self, host: Host) {
        let same = |known: &&mut Host| {
            known.iqns == host.iqns
                && known.nqns == host.nqns
                && known.sources == host.sources
                && known.chap == host.chap
                && known.dhchap == host.dhchap
                && known.dhchap_controller == host.dhchap_controller
                && !host.grants.iter().any(|grant| known.grants.iter().any(|own| own.export == grant.export))
        };
        if let Some(known) = self.hosts.iter_mut().find(same) {
            known.grants.extend(host.grants);
            known.notes.extend(host.notes);
            return;
        }
        let mut host = host;
        let whole: String = host.label.chars().filter(|c| !c.is_control()).collect();
        // Of long names the end tells them apart.
        let short =
            if whole.chars().count() > 56 { whole.rsplit(':').next().unwrap_or(&whole) } else { &whole };
        let wish: String = short.chars().take(56).collect();
        let wish = if wish.trim().is_empty() { "host".to_owned() } else { wish };
        let mut label = wish.clone();
        let mut number = 1;
        while self.hosts.iter().any(|known| known.label == label) {
            number += 1;
            label = format!("{wish} ({number})");
        }
        host.label = label;
        self.hosts.push(host);
    }

    /// Puts the notes of each object into the order of the source; those of one line stay as they are.
    pub fn sort_notes(&mut self) {
        let exports = self.exports.iter_mut().map(|export| &mut export.notes);
        let hosts = self.hosts.iter_mut().map(|host| &mut host.notes);
        let volumes = self.volumes.iter_mut().map(|volume| &mut volume.notes);
        for notes in exports.chain(hosts).chain(volumes).chain([&mut self.notes]) {
            notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        }
    }

    /// Notes on all settings, in the order of the source.
    pub fn all_notes(&self) -> Vec<&Note> {
        let mut notes: Vec<&Note> = self.notes.iter().collect();
        notes.extend(self.volumes.iter().flat_map(|volume| &volume.notes));
        notes.extend(self.exports.iter().flat_map(|export| &export.notes));
        notes.extend(self.hosts.iter().flat_map(|host| &host.notes));
        notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        notes
    }

    /// Whether a target or subsystem leads to the volume.
    pub fn is_exported(&self, volume: &Volume) -> bool {
        self.exports.iter().flat_map(|export| &export.units).any(|unit| volume.keys.contains(&unit.volume))
    }

    fn chap_users(&self) -> impl Iterator<Item = &ChapUser> {
        let exports = self.exports.iter().flat_map(|export| &export.chap);
        exports.chain(self.hosts.iter().flat_map(|host| &host.chap)).chain(&self.discovery)
    }

    /// Whether there is a secret.
    pub fn has_secrets(&self) -> bool {
        self.chap_users().next().is_some() || self.hosts.iter().any(|host| host.dhchap.is_some())
    }

    /// Whether a secret is shorter than `serve` takes without being told.
    pub fn has_short_secrets(&self) -> bool {
        self.chap_users().any(ChapUser::is_short)
    }

    /// Secrets that must be files of their own, and their names.
    pub fn key_files(&self) -> Vec<(String, &Secret)> {
        let keyed = self.hosts.iter().enumerate();
        let files = keyed.flat_map(|(at, host)| {
            let controller = (controller_key_file_name(at, host), host.dhchap_controller.as_ref());
            [(key_file_name(at, host), host.dhchap.as_ref()), controller]
        });
        files.filter_map(|(name, secret)| Some((name, secret?))).collect()
    }

    /// Whether someone beyond this machine reaches something without a secret.
    pub fn has_anonymous_remote_access(&self) -> bool {
        self.exports.iter().any(|export| {
            let is_public = export.portals.iter().any(|portal| !network::is_loopback(portal.ip()));
            let is_keyless = |host: &Host| match export.protocol {
                Protocol::Iscsi => host.chap.is_empty() && export.chap.is_empty(),
                Protocol::Nvme | Protocol::NvmeDiscovery => host.dhchap.is_none(),
            };
            let granted = |host: &&Host| host.grants.iter().any(|grant| grant.export == export.name);
            let is_open = export.open && export.chap.is_empty();
            is_public && (is_open || self.hosts.iter().filter(granted).any(is_keyless))
        })
    }
}

/// The file with a host's secret.
pub fn key_file_name(at: usize, host: &Host) -> String {
    format!("{}-{}.key", derive_label(&host.label), at + 1)
}

/// The file with the secret by which controllers prove themselves to a host.
pub fn controller_key_file_name(at: usize, host: &Host) -> String {
    format!("{}-{}-controller.key", derive_label(&host.label), at + 1)
}

/// A name of ours that resembles `wish`.
fn derive_label(wish: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let name: String = wish.chars().map(fit).take(NAME_BYTES_MAX).collect();
    let name = name.trim_start_matches(['-', '.']);
    match VolumeName::parse(name) {
        Ok(name) => name.to_string(),
        Err(_) => "volume".to_owned(),
    }
}

/// An initiator's name in its normal form, or a note about one that is none.
pub fn normalize_iqn(text: &str) -> Result<String, String> {
    name::parse_iscsi_name(text).map_err(|why| why.to_string())
}

/// Yes or no in the words of any of the formats.
pub fn parse_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "on" | "true" | "enable" | "enabled" => Some(true),
        "0" | "no" | "off" | "false" | "disable" | "disabled" => Some(false),
        _ => None,
    }
}

/// The address of a portal: text of an IP address, perhaps in brackets, and a port.
pub fn parse_portal(address: &str, port: u64) -> Result<SocketAddr, String> {
    let bare = address.trim().trim_start_matches('[').trim_end_matches(']');
    let ip = bare
        .parse()
        .map_err(|_| format!("\"{}\" is not an IP address", crate::note::printable_value(bare)))?;
    let port = u16::try_from(port).map_err(|_| format!("{port} is not a port"))?;
    Ok(SocketAddr::new(ip, port))
}

/// What listens where a target of iSCSI is told nothing.
pub fn wildcard_portals() -> [SocketAddr; 2] {
    let port = network::ISCSI_PORT;
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

/// A network as our configuration wants it: no bits beyond its prefix.
pub fn normalize_network(text: &str) -> Result<String, String> {
    let bare = text.replace(['[', ']'], "");
    match bare.parse::<network::Network>() {
        Ok(network) => Ok(network.to_string()),
        Err(why) => {
            // Others take 10.0.0.1/8 for 10.0.0.0/8.
            let said = why.to_string();
            let meant = said.rsplit("did you mean ").next().map(|rest| rest.trim_end_matches('?').to_owned());
            let meant = meant.filter(|meant| meant.parse::<network::Network>().is_ok());
            meant.ok_or(said)
        }
    }
}

/// Sets one of the keys of a SPEC; what is wrong becomes a note's reason.
pub fn set_spec_key(spec: &mut Spec, key: &str, value: &str) -> Result<(), String> {
    spec.set_key(key, Some(value)).map_err(|why| why.to_string())
}

/// The note of a result: applied, or an error with its reason.
pub fn outcome_of(result: Result<(), String>) -> (NoteOutcome, String) {
    match result {
        Ok(()) => (NoteOutcome::Applied, String::new()),
        Err(why) => (NoteOutcome::Error, why),
    }
}
