//! The blocks of a `chiscsi.conf` as typed values, with the format's own defaults for omitted keys.

use std::time::Duration;

use super::{
    access::{self, Acl},
    block::{Block, Setting},
    chap::{self, ChapPair, ChapSettings},
    device::{self, TargetDevice},
    error::ValueError,
    key::Key,
    portal::{self, PortalGroup},
    value,
};
use config::{
    diagnostic::{Located, Place, Sink},
    name,
    plan::{DigestPolicy, Negotiation},
};

/// Most devices, groups, ACLs or CHAP ids of one target.
const LIST_MAX: usize = 1024;
/// Largest length in a negotiation.
const SEGMENT_BYTES_MAX: u64 = (1 << 24) - 1;
/// `TargetSessionMaxCmd` where nothing is said.
const SESSION_COMMANDS_DEFAULT: u16 = 64;

/// The section `global:` of a `chiscsi.conf`.
#[derive(Debug, Default)]
pub struct GlobalSection {
    /// `iscsi_auth_order` is CHAP, the format's default.
    pub is_chap_first: bool,
    /// `iscsi_target_vendor_id`
    pub vendor: Option<String>,
    /// `iscsi_login_complete_time`; zero: no limit.
    pub login_time: Option<Duration>,
    /// `DISC_…`
    pub discovery: ChapSettings,
}

/// A section `target:` of a `chiscsi.conf`.
#[derive(Debug)]
pub struct TargetSection {
    /// Where the block begins.
    pub at: Place,
    /// `TargetName`
    pub name: Option<Located<String>>,
    /// `TargetAlias`
    pub alias: Option<String>,
    /// What it negotiates.
    pub negotiation: Negotiation,
    /// Where `FirstBurstLength` stands.
    pub first_burst: Option<Located<u64>>,
    /// `TargetSessionMaxCmd`
    pub commands: u16,
    /// `AuthMethod`, `Auth_CHAP_…`
    pub proof: ChapSettings,
    /// `PortalGroup`
    pub groups: Vec<Located<PortalGroup>>,
    /// `ShadowMode`
    pub is_shadow: bool,
    /// `TargetDevice`
    pub devices: Vec<Located<TargetDevice>>,
    /// `ACL_Enable`
    pub has_access_list: bool,
    /// `ACL`, with its line.
    pub acls: Vec<(usize, Located<Acl>)>,
}

/// AuthMethod where a target says nothing: None and CHAP.
pub const AUTH_METHODS_DEFAULT: (bool, bool) = (true, true);
/// DISC_AuthMethod where nothing is said: None.
pub const DISCOVERY_METHODS_DEFAULT: (bool, bool) = (true, false);

impl GlobalSection {
    /// Reads a block.
    pub fn from_block(block: &Block, sink: &Sink) -> Self {
        let mut global = GlobalSection { is_chap_first: true, ..GlobalSection::default() };
        for_each_setting(block, sink, |entry| global.apply_setting(entry));
        check_chap_complete(
            &block.at,
            &global.discovery,
            DISCOVERY_METHODS_DEFAULT,
            ("DISC_AuthMethod", "DISC_Auth_CHAP_"),
            sink,
        );
        global
    }

    fn apply_setting(&mut self, entry: &Setting) -> Result<(), ValueError> {
        let text = entry.value.value.as_str();
        let discovery = &mut self.discovery;
        match entry.key {
            Key::OffloadMode => value::parse_keyword(text, &[("AUTO", ()), ("TOE", ()), ("ULP", ())])?,
            Key::HaMode => drop(value::parse_switch(text)?),
            Key::AuthOrder => {
                self.is_chap_first = value::parse_keyword(text, &[("CHAP", true), ("ACL", false)])?
            }
            Key::AclOrder => check_acl_order(text)?,
            Key::VendorId => self.vendor = Some(parse_vendor(text)?),
            Key::InitiatorIdentity if text.is_empty() || text.len() > 255 => {
                return Err("takes 1 to 255 characters".into());
            }
            Key::InitiatorIdentity => {}
            Key::LoginTime => {
                self.login_time = Some(Duration::from_secs(value::parse_number(text, 0..=3600)?))
            }
            Key::DiscoveryMethod => {
                let words = [("CHAP", (false, true)), ("None", (true, false)), ("NONE", (true, false))];
                discovery.methods = Some(value::parse_keyword(text, &words)?);
            }
            Key::DiscoveryPolicy => discovery.is_mutual = parse_policy(text)?,
            Key::DiscoveryInitiator => push_bounded(&mut discovery.initiators, read_chap_pair(entry)?)?,
            Key::DiscoveryTarget => discovery.target = Some(read_chap_pair(entry)?),
            Key::ChallengeLength => check_challenge_length(text)?,
            _ => return Err("belongs to another kind of block".into()),
        }
        Ok(())
    }
}

impl TargetSection {
    /// Reads a block.
    pub fn from_block(block: &Block, sink: &Sink) -> Self {
        let mut target = TargetSection {
            at: block.at.clone(),
            name: None,
            alias: None,
            negotiation: default_negotiation(),
            first_burst: None,
            commands: SESSION_COMMANDS_DEFAULT,
            proof: ChapSettings::default(),
            groups: Vec::new(),
            is_shadow: false,
            devices: Vec::new(),
            has_access_list: false,
            acls: Vec::new(),
        };
        let mut digests = (Vec::new(), Vec::new());
        for_each_setting(block, sink, |entry| target.apply_setting(entry, &mut digests));
        let chosen = |words: &[&str], usual| match (words.contains(&"None"), words.contains(&"CRC32C")) {
            (_, false) if words.is_empty() => usual,
            (_, false) => DigestPolicy::Off,
            (true, true) => DigestPolicy::Allow,
            (false, true) => DigestPolicy::Require,
        };
        target.negotiation.header_digest = chosen(&digests.0, target.negotiation.header_digest);
        target.negotiation.data_digest = chosen(&digests.1, target.negotiation.data_digest);
        if target.first_burst.is_none() {
            let negotiation = &mut target.negotiation;
            negotiation.first_burst = negotiation.first_burst.min(negotiation.max_burst);
        }
        target.check(sink);
        target
    }

    fn apply_setting<'a>(
        &mut self,
        entry: &'a Setting,
        digests: &mut (Vec<&'a str>, Vec<&'a str>),
    ) -> Result<(), ValueError> {
        let text = entry.value.value.as_str();
        let terms = &mut self.negotiation;
        let count = || value::parse_number(text, 1..=0xffff).map(|n| n as u16);
        let length = || value::parse_number(text, 512..=SEGMENT_BYTES_MAX).map(|n| n as u32);
        match entry.key {
            Key::TargetName => {
                let name = name::parse_iscsi_name(text).map_err(ValueError::Name)?;
                self.name = Some(Located::new(name, entry.value.at.clone()));
            }
            Key::TargetAlias if text.is_empty() || text.len() > 255 => {
                return Err("takes 1 to 255 bytes".into());
            }
            Key::TargetAlias => self.alias = Some(text.to_owned()),
            Key::MaxConnections => terms.max_connections = count()?,
            Key::InitialR2t => terms.initial_r2t = value::parse_switch(text)?,
            Key::ImmediateData => terms.immediate_data = value::parse_switch(text)?,
            Key::FirstBurstLength => {
                terms.first_burst = length()?;
                self.first_burst = Some(Located::new(terms.first_burst.into(), entry.value.at.clone()));
            }
            Key::MaxBurstLength => terms.max_burst = length()?,
            Key::Time2Wait | Key::Time2Retain => drop(value::parse_number(text, 0..=3600)?),
            Key::MaxOutstandingR2t => terms.max_outstanding_r2t = count()?,
            Key::DataPduInOrder | Key::DataSequenceInOrder => value::require_only(text, "Yes")?,
            Key::ErrorRecoveryLevel => value::require_only(text, "0")?,
            Key::OfMarker | Key::IfMarker => value::require_only(text, "No")?,
            Key::OfMarkInt | Key::IfMarkInt => drop(count()?),
            Key::HeaderDigest => digests.0.extend(parse_digests(text)?),
            Key::DataDigest => digests.1.extend(parse_digests(text)?),
            Key::MaxReceive => terms.max_receive = length()?,
            Key::AuthMethod => self.add_auth_method(text)?,
            Key::Policy => self.proof.is_mutual = parse_policy(text)?,
            Key::Initiator => push_bounded(&mut self.proof.initiators, read_chap_pair(entry)?)?,
            Key::Target => self.proof.target = Some(read_chap_pair(entry)?),
            Key::ChallengeLength => check_challenge_length(text)?,
            Key::PortalGroup => {
                push_bounded(&mut self.groups, located_at(entry, portal::parse_portal_group(text)?))?
            }
            Key::ShadowMode => self.is_shadow = value::parse_switch(text)?,
            Key::Commands => self.commands = value::parse_number(text, 1..=2048)? as u16,
            Key::Device => {
                push_bounded(&mut self.devices, located_at(entry, device::parse_target_device(text)?))?
            }
            Key::AclEnable => self.has_access_list = value::parse_switch(text)?,
            Key::Acl => {
                push_bounded(&mut self.acls, (entry.line, located_at(entry, access::parse_acl(text)?)))?
            }
            Key::RegisterIsns => drop(value::parse_switch(text)?),
            _ => return Err("belongs to another kind of block".into()),
        }
        Ok(())
    }

    /// Methods of several lines count together.
    fn add_auth_method(&mut self, text: &str) -> Result<(), ValueError> {
        let mut methods = self.proof.methods.unwrap_or((false, false));
        for part in value::split_parts(text)? {
            let (none, chap) =
                value::parse_keyword(part, &[("None", (true, false)), ("CHAP", (false, true))])?;
            methods = (methods.0 || none, methods.1 || chap);
        }
        self.proof.methods = Some(methods);
        Ok(())
    }

    fn check(&self, sink: &Sink) {
        let TargetSection { at, name, devices, groups, .. } = self;
        for (key, is_there) in [
            ("TargetName", name.is_some()),
            ("TargetDevice", !devices.is_empty()),
            ("PortalGroup", !groups.is_empty()),
        ] {
            if !is_there && sink.is_clean() {
                sink.note_error(at, format!("this target needs the key \"{key}\""));
            }
        }
        check_chap_complete(at, &self.proof, AUTH_METHODS_DEFAULT, ("AuthMethod", "Auth_CHAP_"), sink);
        for group in groups {
            self.check_redirection(group, sink);
        }
    }

    fn check_redirection(&self, group: &Located<PortalGroup>, sink: &Sink) {
        for tag in &group.value.sent_to {
            let named: Vec<&Located<PortalGroup>> =
                self.groups.iter().filter(|one| one.value.tag == *tag).collect();
            if named.is_empty() {
                sink.note_error(
                    &group.at,
                    format!("PortalGroup redirects to group {tag}, which this target does not have"),
                );
            } else if named.iter().any(|one| !one.value.sent_to.is_empty()) {
                sink.note_error(
                    &group.at,
                    format!("PortalGroup redirects to group {tag}, which redirects itself"),
                );
            }
        }
    }

    /// Whether a group is another machine's: logins are sent there, and `ShadowMode` says so.
    pub fn is_remote_group(&self, tag: u16) -> bool {
        self.is_shadow && self.groups.iter().any(|group| group.value.sent_to.contains(&tag))
    }
}

/// What this format's software negotiates where a file says nothing.
fn default_negotiation() -> Negotiation {
    Negotiation {
        header_digest: DigestPolicy::Off,
        data_digest: DigestPolicy::Off,
        max_connections: 1,
        initial_r2t: true,
        immediate_data: true,
        first_burst: 65_536,
        max_burst: 262_144,
        max_receive: 8192,
        max_outstanding_r2t: 1,
    }
}

/// Takes every entry of a block; what is no list may stand once.
fn for_each_setting<'a>(
    block: &'a Block,
    sink: &Sink,
    mut take: impl FnMut(&'a Setting) -> Result<(), ValueError>,
) {
    for (at, entry) in block.entries.iter().enumerate() {
        let first = block.entries.iter().take(at).find(|other| other.key == entry.key);
        if let Some(first) = first.filter(|_| !entry.key.is_list()) {
            let why = format!("{} is already set at {}", entry.key.name(), first.value.at);
            sink.note_error(&entry.value.at, why);
        } else if let Err(why) = take(entry) {
            sink.note_error(&entry.value.at, format!("{} {why}", entry.key.name()));
        }
    }
}

/// Who is to prove something must be able to.
fn check_chap_complete(
    at: &Place,
    proof: &ChapSettings,
    usual: (bool, bool),
    keys: (&str, &str),
    sink: &Sink,
) {
    let (method, prefix) = keys;
    if !sink.is_clean() {
        return;
    }
    if proof.methods.unwrap_or(usual) == (false, true) && proof.initiators.is_empty() {
        sink.note_error(
            at,
            format!("{method}=CHAP needs the key \"{prefix}Initiator\": no initiator could log in"),
        );
    }
    if proof.is_mutual && proof.is_enabled(usual) && proof.target.is_none() {
        sink.note_error(at, format!("{prefix}Policy=Mutual needs the key \"{prefix}Target\""));
    }
}

fn located_at<T>(entry: &Setting, value: T) -> Located<T> {
    Located::new(value, entry.value.at.clone())
}

fn read_chap_pair(entry: &Setting) -> Result<Located<ChapPair>, ValueError> {
    Ok(located_at(entry, chap::parse_chap_pair(&entry.value.value)?))
}

fn push_bounded<T>(list: &mut Vec<T>, one: T) -> Result<(), ValueError> {
    if list.len() == LIST_MAX {
        return Err(ValueError::TooOften(LIST_MAX));
    }
    list.push(one);
    Ok(())
}

fn parse_policy(text: &str) -> Result<bool, ValueError> {
    value::parse_keyword(text, &[("Oneway", false), ("Mutual", true)])
}

fn parse_digests(text: &str) -> Result<Vec<&str>, ValueError> {
    let words = value::split_parts(text)?;
    for word in &words {
        value::parse_keyword(word, &[("None", ()), ("CRC32C", ())])?;
    }
    Ok(words)
}

fn check_challenge_length(text: &str) -> Result<(), ValueError> {
    match value::parse_number(text, 16..=1024)? {
        length if length % 16 == 0 => Ok(()),
        _ => Err(ValueError::Multiple(text.to_owned())),
    }
}

fn check_acl_order(text: &str) -> Result<(), ValueError> {
    if text == "ISNS" {
        return Err("can only be \"CONFIG\" here: there is no iSNS client".into());
    }
    value::parse_keyword(text, &[("CONFIG", ())])
}

fn parse_vendor(text: &str) -> Result<String, ValueError> {
    let is_printable = text.bytes().all(|b| (0x20..=0x7e).contains(&b));
    if text.is_empty() || text.len() > 8 || !is_printable {
        return Err(ValueError::Vendor(text.to_owned()));
    }
    Ok(text.to_owned())
}
