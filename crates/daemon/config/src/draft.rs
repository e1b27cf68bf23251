//! The settings of the files and the command line, each typed and in its range, before they are checked
//! against each other.

mod announce;
mod group;
pub mod nvme;
pub mod placement;
mod sandbox;
mod tcp;

use crate::limit_keys;
use std::{net::SocketAddr, time::Duration};

pub use super::secret::SAME_SECRET_ERROR as SECRETS_DIFFER;

use self::{nvme::SubsystemDraft, placement::PlacementDraft};
use super::{dhchap, diagnostic::Located, reader::TableReader, schema, secret, tls};
use crate::{
    name::{self, VolumeName},
    network,
    plan::{
        Auth, AuthMethod, ChapAlgorithm, Credentials, DaemonLimits, DigestPolicy, GroupSettings, Host,
        InquiryStrings, Negotiation, Portal, Protocol, Redirect, Referral, SESSION_COMMANDS_DEFAULT,
        SandboxSettings, SubsystemGrant, TargetAuth, TargetGrant, TcpOptions, TemporaryRedirect, Volume,
        VolumeOrigin,
    },
    spec::{self, SpecError},
};

/// Largest value of MaxBurstLength, FirstBurstLength and MaxRecvDataSegmentLength.
const SEGMENT_BYTES_MAX: u64 = (1 << 24) - 1;

/// Highest logical unit number in flat space addressing (SAM-5 §4.7.7.3).
pub const LUN_MAX: u64 = 16383;

/// AuthMethod, as written.
const AUTH_METHODS: [(&str, AuthMethod); 2] = [("chap", AuthMethod::Chap), ("none", AuthMethod::None)];

/// Everything that was said.
#[derive(Debug, Default)]
pub struct Draft {
    /// `node`.
    pub node: Option<Located<VolumeName>>,
    /// `http`.
    pub http: Option<Located<SocketAddr>>,
    /// `control_group`.
    pub control_group: Option<Located<String>>,
    /// `[[volume]]`.
    pub volumes: Vec<Located<Volume>>,
    /// `[[portal]]`.
    pub portals: Vec<Located<Portal>>,
    /// `[[target]]`.
    pub targets: Vec<Located<TargetDraft>>,
    /// `[[subsystem]]`.
    pub subsystems: Vec<Located<SubsystemDraft>>,
    /// `[[referral]]`.
    pub referrals: Vec<Referral>,
    /// `[[placement]]`.
    pub placement: Vec<PlacementDraft>,
    /// `oui`.
    pub oui: Option<Located<[u8; 3]>>,
    /// `[[host]]`.
    pub hosts: Vec<Located<HostDraft>>,
    /// `[auth]`.
    pub auth: Option<Located<AuthDraft>>,
    /// `[limits]`.
    pub limits: Option<Located<DaemonLimits>>,
    /// `[sandbox]`.
    pub sandbox: Option<Located<SandboxSettings>>,
    /// `[group]`.
    pub group: Option<Located<GroupSettings>>,
}

/// A `[[target]]` whose references are not resolved.
#[derive(Debug)]
pub struct TargetDraft {
    /// Normalized name.
    pub name: Located<String>,
    /// `alias`.
    pub alias: Option<String>,
    /// Tags; `None`: all.
    pub portals: Option<Vec<Located<u64>>>,
    /// Of these, the portals at these addresses only: all of them, in the configuration's own words.
    pub addresses: Option<Vec<SocketAddr>>,
    /// Logical units.
    pub luns: Vec<LunDraft>,
    /// `luns` is written, if only with mistakes.
    pub luns_written: bool,
    /// `open`.
    pub open: Option<bool>,
    /// Negotiation bounds.
    pub negotiation: Negotiation,
    /// Where `first_burst` was written, if it was.
    pub first_burst: Option<Located<u64>>,
    /// Outstanding commands.
    pub commands: u16,
    /// Vendor and product.
    pub inquiry: InquiryStrings,
    /// `explicit_alua`.
    pub explicit_alua: bool,
    /// `redirect`.
    pub redirect: Option<Redirect>,
    /// Groups whose logins go elsewhere: none, in the configuration's own words.
    pub sent_on: Vec<TemporaryRedirect>,
    /// `chap`, `methods` and `mutual`.
    pub auth: Option<TargetAuth>,
    /// How long a ping may stay unanswered: as everywhere, in the configuration's own words.
    pub nop_timeout: Option<Duration>,
}

/// An element of `luns`.
#[derive(Debug)]
pub struct LunDraft {
    /// Its number.
    pub lun: Located<u64>,
    /// The volume's name as written.
    pub volume: Located<String>,
    /// `ro`.
    pub read_only: bool,
}

/// A `[[host]]` whose grants are not resolved.
#[derive(Debug)]
pub struct HostDraft {
    /// The host, without its grants.
    pub host: Host,
    /// `access` for targets: target, its place, logical units, mode.
    pub grants: Vec<Located<TargetGrant>>,
    /// `access` for subsystems.
    pub subsystem_grants: Vec<Located<SubsystemGrant>>,
    /// `access` is written.
    pub access_written: bool,
}

/// `[auth]`.
#[derive(Debug, Default)]
pub struct AuthDraft {
    /// The section.
    pub auth: Auth,
    /// `allow_short_secrets`.
    pub allow_short_secrets: bool,
    /// Where `methods` was written, if it was.
    pub methods: Option<Located<Vec<AuthMethod>>>,
    /// Where `dhchap_discovery` was written, if it was.
    pub discovery: Option<Located<bool>>,
}

impl Draft {
    /// Adds one file. `[auth]`, `[limits]`, `[sandbox]`, `[group]`, `node` and `http` may stand in one file only.
    pub fn add_file(&mut self, root: &TableReader<'_>) {
        // Whether short secrets are allowed has to be known before any secret is read.
        let auth = root.table("auth", &schema::AUTH);
        let allow_short = auth
            .and_then(|auth| auth.boolean("allow_short_secrets"))
            .or_else(|| {
                self.auth.as_ref().map(|auth| Located::new(auth.value.allow_short_secrets, auth.at.clone()))
            })
            .is_some_and(|allow| allow.value);
        if let Some(node) = root.parsed("node", VolumeName::parse) {
            set_once(root, "node", &mut self.node, node);
        }
        if let Some(http) = root.parsed("http", network::parse_http_address) {
            set_once(root, "http", &mut self.http, http);
        }
        if let Some(group) = root.parsed("control_group", name::parse_group) {
            set_once(root, "control_group", &mut self.control_group, group);
        }
        for table in root.tables("volume", &schema::VOLUME) {
            self.volumes.extend(read_volume(&table));
        }
        for table in root.tables("portal", &schema::PORTAL) {
            self.portals.extend(read_portal(&table));
        }
        for table in root.tables("target", &schema::TARGET) {
            self.targets.extend(read_target(&table, allow_short));
        }
        for table in root.tables("subsystem", &schema::SUBSYSTEM) {
            self.subsystems.extend(nvme::read_subsystem(&table));
        }
        for table in root.tables("referral", &schema::REFERRAL) {
            self.referrals.extend(nvme::read_referral(&table));
        }
        for table in root.tables("placement", &schema::PLACEMENT) {
            self.placement.push(placement::read_placement(&table));
        }
        if let Some(oui) = root.parsed("oui", nvme::parse_oui) {
            set_once(root, "oui", &mut self.oui, oui);
        }
        for table in root.tables("host", &schema::HOST) {
            self.hosts.extend(read_host(&table, allow_short));
        }
        if let Some(table) = auth {
            let section = read_auth(&table, allow_short);
            set_once(root, "[auth]", &mut self.auth, Located::new(section, table.place()));
        }
        if let Some(table) = root.table("limits", &schema::LIMITS) {
            set_once(root, "[limits]", &mut self.limits, Located::new(read_limits(&table), table.place()));
        }
        if let Some(table) = root.table("sandbox", &schema::SANDBOX) {
            let section = sandbox::read_sandbox(&table);
            set_once(root, "[sandbox]", &mut self.sandbox, Located::new(section, table.place()));
        }
        if let Some(section) = root.table("group", &schema::GROUP).and_then(|table| group::read_group(&table))
        {
            set_once(root, "[group]", &mut self.group, section);
        }
    }
}

/// Fills a place that may be filled once over all files.
fn set_once<T>(root: &TableReader<'_>, what: &str, slot: &mut Option<Located<T>>, value: Located<T>) {
    match slot {
        Some(first) => root.file.sink.note_error(&value.at, format!("{what} is already set at {}", first.at)),
        None => *slot = Some(value),
    }
}

fn read_volume(table: &TableReader<'_>) -> Option<Located<Volume>> {
    let name = table.require("name", table.parsed("name", VolumeName::parse));
    let source = table.require("source", table.parsed("source", spec::parse_parts));
    let Located { value: (mut spec, given), at } = source?;
    let mut sound = true;
    let mut complain = |at: &_, message: String| {
        table.file.sink.note_error(at, message);
        sound = false;
    };
    for key in spec::KEYS {
        let Some(value) = table.as_spec_value(key) else { continue };
        if given.iter().any(|seen| seen == key) {
            complain(&value.at, format!("key \"{key}\" of [[volume]] is already part of its source"));
        } else if let Err(why) = spec.set_key(key, Some(&value.value)) {
            complain(&value.at, format!("{why} in [[volume]]"));
        }
    }
    spec.source.for_each_file(&mut |path| *path = table.file.directory.join(&*path));
    if spec.discard_ineffective_thin() {
        let at = table.as_spec_value("thin").map_or_else(|| at.clone(), |value| value.at);
        table.file.sink.note_warning(&at, format!("{} in [[volume]]", spec::THIN_IGNORED_WARNING));
    }
    if let Err(why) = spec.check() {
        let at = match &why {
            SpecError::BadValue { key, .. } if table.has_key(key) => {
                table.as_spec_value(key).map_or(at, |v| v.at)
            }
            _ => at,
        };
        complain(&at, format!("{why} in [[volume]]"));
    }
    let name = name?;
    sound.then(|| Located::new(Volume { name: name.value, spec, origin: VolumeOrigin::Configured }, name.at))
}

fn read_portal(table: &TableReader<'_>) -> Option<Located<Portal>> {
    let protocol = table.require("protocol", table.keyword("protocol", &Protocol::WORDS));
    let spoken = protocol.as_ref().map_or(Protocol::Iscsi, |protocol| protocol.value);
    let usual = match spoken {
        Protocol::Iscsi => network::ISCSI_PORT,
        Protocol::Nvme => network::NVME_PORT,
        Protocol::NvmeDiscovery => network::NVME_DISCOVERY_PORT,
    };
    let address =
        table.require("address", table.parsed("address", |text| network::parse_address(text, usual)));
    let tag = table.number("tag", 0..=0xffff).map_or(1, |tag| tag.value as u16);
    let digest = |key| {
        if spoken == Protocol::Iscsi
            && let Some(text) = table.text(key)
        {
            let why = format!("{key} in [[portal]] applies to NVMe/TCP; for iSCSI set it in [[target]]");
            table.file.sink.note_error(&text.at, why);
        }
        table.keyword(key, &[("off", false), ("allow", true)]).is_none_or(|allowed| allowed.value)
    };
    let digests = (digest("header_digest"), digest("data_digest"));
    let tls = tls::read_portal_mode(table, spoken);
    let buffer = |key| table.size(key, 4096..=1 << 30).map(|size| size.value as u32);
    let tcp = TcpOptions {
        congestion: table.parsed("congestion", tcp::parse_congestion_control).map(|name| name.value),
        send_buffer: buffer("send_buffer"),
        receive_buffer: buffer("receive_buffer"),
        dscp: tcp::read_dscp(table),
        keepalive: table.number("keepalive", 0..=32767).map(|seconds| Duration::from_secs(seconds.value)),
    };
    let announce = announce::read_announce(table, spoken, address.as_ref().map(|address| address.value));
    let (protocol, address) = (protocol?, address?);
    Some(Located::new(
        Portal { protocol: protocol.value, address: address.value, tag, digests, tls, announce, tcp },
        address.at,
    ))
}

fn read_target(table: &TableReader<'_>, allow_short: bool) -> Option<Located<TargetDraft>> {
    let name = table.require("name", table.parsed("name", name::parse_iscsi_name));
    let alias = table.parsed("alias", |text| {
        if text.len() > 255 { Err("is longer than 255 bytes") } else { Ok(text.to_owned()) }
    });
    let luns = table.tables("luns", &schema::LUN).iter().filter_map(read_lun).collect();
    let redirect = table.table("redirect", &schema::REDIRECT).and_then(|table| read_redirect(&table));
    let (negotiation, first_burst) = read_negotiation(table);
    let usual = InquiryStrings::default();
    let inquiry = InquiryStrings {
        vendor: read_identification(table, "vendor", 8).unwrap_or(usual.vendor),
        product: read_identification(table, "product", 16).unwrap_or(usual.product),
    };
    let commands = table.number("commands", 1..=4096).map_or(SESSION_COMMANDS_DEFAULT, |n| n.value as u16);
    let portals = table.numbers("portals", 0..=0xffff);
    let open = table.boolean("open").map(|open| open.value);
    let explicit_alua = table.boolean("explicit_alua").is_some_and(|on| on.value);
    let auth = read_target_auth(table, allow_short);
    let name = name?;
    let at = name.at.clone();
    let alias = alias.map(|alias| alias.value);
    let draft = TargetDraft {
        name,
        alias,
        portals,
        addresses: None,
        luns,
        luns_written: table.has_key("luns"),
        open,
        negotiation,
        first_burst,
        commands,
        inquiry,
        explicit_alua,
        redirect,
        sent_on: Vec::new(),
        auth,
        nop_timeout: None,
    };
    Some(Located::new(draft, at))
}

/// `chap`, and what means nothing without it.
fn read_target_auth(table: &TableReader<'_>, allow_short: bool) -> Option<TargetAuth> {
    let chap = read_credentials_list(table, "chap", allow_short);
    let methods = table.keywords("methods", &AUTH_METHODS);
    let mutual = read_mutual_chap(table, &chap);
    let places = [
        ("methods", methods.as_ref().map(|methods| &methods.at)),
        ("mutual", mutual.as_ref().map(|mutual| &mutual.at)),
    ];
    for (key, at) in places {
        if let (Some(at), false) = (at, table.has_key("chap")) {
            table.file.sink.note_error(at, format!("{key} in [[target]] has no effect without chap"));
        }
    }
    if let Some(methods) = methods.as_ref().filter(|list| !list.value.contains(&AuthMethod::Chap)) {
        table
            .file
            .sink
            .note_error(&methods.at, "methods in [[target]] lacks \"chap\", but there are CHAP users");
    }
    let methods = methods.map(|methods| methods.value).unwrap_or_default();
    let mutual = mutual.is_some_and(|demand| demand.value);
    (!chap.is_empty()).then_some(TargetAuth { chap, methods, mutual })
}

/// `mutual`: it can be demanded only by who can prove itself.
fn read_mutual_chap(table: &TableReader<'_>, chap: &[Credentials]) -> Option<Located<bool>> {
    let demand = table.keyword("mutual", &[("allow", false), ("require", true)])?;
    if demand.value && !chap.is_empty() && chap.iter().all(|one| one.mutual.is_none()) {
        let why = "mutual = \"require\" needs a mutual_user and its secret beside a user";
        table.file.sink.note_error(&demand.at, why);
    }
    Some(demand)
}

fn read_lun(table: &TableReader<'_>) -> Option<LunDraft> {
    let lun = table.require("lun", table.number("lun", 0..=LUN_MAX));
    let volume = table.require("volume", table.text("volume"));
    let read_only = table.boolean("ro").is_some_and(|on| on.value);
    Some(LunDraft { lun: lun?, volume: volume?, read_only })
}

fn read_redirect(table: &TableReader<'_>) -> Option<Redirect> {
    let to = table.require("to", table.parsed("to", parse_redirect_address))?;
    let permanent = table.boolean("permanent").is_some_and(|on| on.value);
    Some(Redirect { address: to.value, permanent })
}

/// An address to send initiators to: it must be one that they can dial.
fn parse_redirect_address(text: &str) -> Result<SocketAddr, String> {
    let address = network::listen_address(text).map_err(|why| why.to_string())?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(format!("\"{text}\" is not an address that an initiator can connect to"));
    }
    Ok(address)
}

fn read_negotiation(table: &TableReader<'_>) -> (Negotiation, Option<Located<u64>>) {
    const DIGESTS: [(&str, DigestPolicy); 3] =
        [("off", DigestPolicy::Off), ("allow", DigestPolicy::Allow), ("require", DigestPolicy::Require)];
    let usual = Negotiation::default();
    let digest = |key, usual| table.keyword(key, &DIGESTS).map_or(usual, |policy| policy.value);
    let count = |key, usual| table.number(key, 1..=0xffff).map_or(usual, |n| n.value as u16);
    let length = |key| table.size(key, 512..=SEGMENT_BYTES_MAX);
    let switch = |key, usual| table.boolean(key).map_or(usual, |on| on.value);
    let first_burst = length("first_burst");
    let max_burst = length("max_burst").map_or(usual.max_burst, |n| n.value as u32);
    let negotiation = Negotiation {
        header_digest: digest("header_digest", usual.header_digest),
        data_digest: digest("data_digest", usual.data_digest),
        max_connections: count("max_connections", usual.max_connections),
        initial_r2t: switch("initial_r2t", usual.initial_r2t),
        immediate_data: switch("immediate_data", usual.immediate_data),
        first_burst: first_burst.as_ref().map_or(usual.first_burst.min(max_burst), |n| n.value as u32),
        max_burst,
        max_receive: length("max_receive").map_or(usual.max_receive, |n| n.value as u32),
        max_outstanding_r2t: count("max_outstanding_r2t", usual.max_outstanding_r2t),
    };
    (negotiation, first_burst)
}

/// A field of INQUIRY or Identify Controller: printable ASCII (SPC-5 §4.3.1, NVMe Base §1.4.2).
pub(crate) fn read_identification(table: &TableReader<'_>, key: &str, bytes_max: usize) -> Option<String> {
    let text = table.parsed(key, |text| {
        let printable = text.bytes().all(|b| (0x20..=0x7e).contains(&b));
        if text.trim().is_empty() || text.len() > bytes_max || !printable {
            return Err(format!("\"{text}\" is not 1 to {bytes_max} printable ASCII characters"));
        }
        Ok(text.to_owned())
    })?;
    Some(text.value)
}

fn read_host(table: &TableReader<'_>, allow_short: bool) -> Option<Located<HostDraft>> {
    let sink = table.file.sink;
    let name = table.require("name", table.parsed("name", parse_label));
    let iqns = table.parsed_list("iqn", name::parse_iscsi_name);
    let nqns = table.parsed_list("nqn", name::parse_nqn);
    let sources = table.parsed_list("sources", str::parse);
    if !["iqn", "nqn", "sources"].iter().any(|key| table.has_key(key)) {
        let why = "[[host]] needs \"iqn\", \"nqn\" or \"sources\"; otherwise it would match every host";
        sink.note_error(&table.place(), why);
    }
    for (key, empty) in [
        ("iqn", iqns.as_ref().is_some_and(Vec::is_empty)),
        ("nqn", nqns.as_ref().is_some_and(Vec::is_empty)),
        ("sources", sources.as_ref().is_some_and(Vec::is_empty)),
    ] {
        if empty {
            sink.note_error(&table.place(), format!("{key} in [[host]] has no valid entry"));
        }
    }
    let (grants, subsystem_grants) = nvme::read_grants(table);
    let chap = read_credentials_list(table, "chap", allow_short);
    let (dhchap, dhchap_controller, tls_key) =
        (dhchap::read_dhchap_key_file(table), dhchap::read_controller_key_file(table), tls::read_psk(table));
    let hostid = table.parsed("hostid", nvme::parse_host_id).map(|id| id.value);
    let both = table.boolean("both").is_some_and(|on| on.value);
    let blocked = table.boolean("blocked").is_some_and(|on| on.value);
    let name = name?;
    let values = |list: Vec<Located<String>>| list.into_iter().map(|item| item.value).collect();
    let host = Host {
        name: name.value,
        iqns: iqns.map(values).unwrap_or_default(),
        nqns: nqns.map(values).unwrap_or_default(),
        hostid,
        sources: sources.unwrap_or_default().into_iter().map(|item| item.value).collect(),
        chap,
        dhchap,
        dhchap_controller,
        tls_key,
        both,
        blocked,
        limits: limit_keys::read_host_limits(table),
        grants: Vec::new(),
        subsystem_grants: Vec::new(),
    };
    let access_written = table.has_key("access");
    Some(Located::new(HostDraft { host, grants, subsystem_grants, access_written }, name.at))
}

/// A name for people: anything printable that fits a table column.
fn parse_label(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().count() > 64 || text.chars().any(char::is_control) {
        return Err(format!("{text:?} is not 1 to 64 printable characters"));
    }
    Ok(text.to_owned())
}

fn read_credentials_list(table: &TableReader<'_>, key: &str, allow_short: bool) -> Vec<Credentials> {
    let tables = table.one_or_more_tables(key, &schema::CHAP);
    let mut list: Vec<Credentials> = Vec::new();
    for table in &tables {
        let Some(one) = secret::read_credentials(table, allow_short) else { continue };
        if let Some(why) = list.iter().find_map(|other| credential_conflict(other, &one)) {
            table.file.sink.note_error(&table.place(), format!("{key}: {why}"));
        }
        list.push(one);
    }
    list
}

/// Why two credentials cannot be in one list; `None`: they can. The target proves itself before it knows which of
/// the users it talks to, so a list has one mutual account.
pub fn credential_conflict(a: &Credentials, b: &Credentials) -> Option<String> {
    if a.user == b.user {
        return Some(format!("user \"{}\" stands twice", a.user));
    }
    match (&a.mutual, &b.mutual) {
        (Some(mine), Some(other)) if mine != other => {
            Some("users of one list share one mutual_user and secret".into())
        }
        (Some((_, secret)), _) if *secret == b.secret => Some(secret::SAME_SECRET_ERROR.into()),
        (_, Some((_, secret))) if *secret == a.secret => Some(secret::SAME_SECRET_ERROR.into()),
        _ => None,
    }
}

fn read_auth(table: &TableReader<'_>, allow_short_secrets: bool) -> AuthDraft {
    let methods = table.keywords("methods", &AUTH_METHODS);
    let hashes = table.keywords(
        "hashes",
        &[
            ("sha3-256", ChapAlgorithm::Sha3_256),
            ("sha256", ChapAlgorithm::Sha256),
            ("sha1", ChapAlgorithm::Sha1),
            ("md5", ChapAlgorithm::Md5),
        ],
    );
    let discovery = table.boolean("dhchap_discovery");
    let chap = read_credentials_list(table, "chap", allow_short_secrets);
    let auth = Auth {
        mutual: read_mutual_chap(table, &chap).is_some_and(|demand| demand.value),
        chap,
        discovery: read_credentials_list(table, "discovery", allow_short_secrets),
        methods: methods.as_ref().map(|methods| methods.value.clone()).unwrap_or_default(),
        hashes: hashes.map(|hashes| hashes.value).unwrap_or_default(),
        dhchap: dhchap::read_dhchap_key_file(table),
        dhchap_controller: dhchap::read_controller_key_file(table),
        proofs: dhchap::read_policy(table),
        dhchap_discovery: discovery.as_ref().is_some_and(|on| on.value),
        dhchap_discovery_key: dhchap::read_key_file(table, "dhchap_discovery_key_file"),
        tls_key: tls::read_psk(table),
        tls_derivations: tls::read_derivations(table),
    };
    if let (Some(at), false) = (table.as_spec_value("dhchap_discovery_key_file"), auth.dhchap_discovery) {
        let why = "dhchap_discovery_key_file in [auth] has no effect without dhchap_discovery = true";
        table.file.sink.note_error(&at.at, why);
    }
    AuthDraft { auth, allow_short_secrets, methods, discovery }
}

fn read_limits(table: &TableReader<'_>) -> DaemonLimits {
    let usual = DaemonLimits::default();
    let seconds =
        |key, range, usual| table.number(key, range).map_or(usual, |n| Duration::from_secs(n.value));
    let keep_alive_min = seconds("keep_alive_min", 1..=86400, usual.keep_alive_min);
    let longest = table.number("keep_alive_max", 1..=86400);
    let keep_alive_max = longest.as_ref().map(|n| Duration::from_secs(n.value));
    if let (Some(longest), true) = (&longest, keep_alive_max.is_some_and(|max| max < keep_alive_min)) {
        table.file.sink.note_error(&longest.at, "keep_alive_max in [limits] is less than keep_alive_min");
    }
    DaemonLimits {
        nop_interval: seconds("nop_interval", 0..=3600, usual.nop_interval),
        nop_timeout: seconds("nop_timeout", 1..=3600, usual.nop_timeout),
        memory: table.size("memory", 8 << 20..=1 << 40).map_or(usual.memory, |n| n.value),
        sessions: table.number("sessions", 1..=65535).map(|n| n.value as u16),
        login_timeout: seconds("login_timeout", 1..=600, usual.login_timeout),
        keep_alive_min,
        keep_alive_max,
        discovery_per_source: table
            .number("discovery_per_source", 1..=1024)
            .map_or(usual.discovery_per_source, |n| n.value as u16),
    }
}
