//! A path over either protocol, created from a URL: for clients, gateways and the command line.
//!
//! Invariant: defaults for omitted parts of a URL are applied here only, so that all users get the same.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ::iscsi::chap::{Algorithm, ChapAccount};
use ::iscsi::initiator::Credentials;
use ::iscsi::negotiate::Digest;
use ::iscsi::wire::Isid;
use ::nvme::tls::{ConfiguredPsk, IdentityVersion};
use ::nvme::{HostId, Nqn};
use buf::{Cx, Errno, Payload, Time};
use endpoint::{CloseMode, Computation, Dial, DialId, DialSource, Dialled, LinkId, OutboundSockets};
use stream::{Received, RecvOp, SendOp};
use volume::{IoId, Op};

use crate::iscsi::{self, IscsiPath};
use crate::nvme::{self, NvmePath};
use crate::path::{LostController, Path, PathEvent, Protocol, ReservationOp};
use crate::raw_command::RawCommand;
use crate::secret::Secret;
use crate::trace::Trace;
use crate::url::{TargetSelector, Url};

/// Who we are, on every path of this machine.
#[derive(Clone, Debug)]
pub struct HostIdentity {
    /// Our iSCSI name.
    pub initiator: String,
    /// Our NVMe name.
    pub host: Nqn,
    /// Our Host Identifier. Reservations over NVMe go by it.
    pub host_id: HostId,
    /// Which of several initiators of this name: paths of one name and one qualifier to one target end
    /// each other's sessions, so each needs its own.
    pub isid: [u8; 3],
}

/// What proves who is who, as it was fetched for one URL.
#[derive(Clone, Debug, Default)]
pub struct UrlSecrets {
    /// Ours.
    pub ours: Option<Secret>,
    /// The target's.
    pub target: Option<Secret>,
    /// Our key for TLS.
    pub tls: Option<Secret>,
}

/// Why no path can be made of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfigError(pub String);

impl fmt::Display for PathConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PathConfigError {}

/// A path over either protocol.
#[derive(Debug)]
pub enum AnyPath {
    /// Over iSCSI.
    Iscsi(Box<IscsiPath>),
    /// Over NVMe/TCP.
    Nvme(Box<NvmePath>),
}

macro_rules! each {
    ($any:expr, $path:ident => $what:expr) => {
        match $any {
            AnyPath::Iscsi($path) => $what,
            AnyPath::Nvme($path) => $what,
        }
    };
}

impl AnyPath {
    /// The path that a URL names, at these addresses; `number` tells paths of one volume apart.
    ///
    /// # Errors
    /// If the URL names no volume, or a secret is missing or has not the form that it must have.
    pub fn from_url(
        url: &Url,
        addresses: Vec<SocketAddr>,
        who: &HostIdentity,
        secrets: &UrlSecrets,
        number: u16,
    ) -> Result<Self, PathConfigError> {
        match &url.target {
            TargetSelector::Iscsi(name, Some(lun)) => {
                let initiator = url.options.initiator.as_ref().map_or(&*who.initiator, |name| name.as_str());
                let isid = Isid::random(who.isid, number);
                let (target, lun) = (name.as_str().to_owned(), u32::from(*lun));
                let (addresses, source) = addresses_and_source(url, addresses)?;
                let mut settings = iscsi::Settings::new(addresses, target, lun, initiator.to_owned(), isid);
                settings.source = source;
                settings.credentials = chap_credentials(url, secrets)?;
                apply_negotiation_options(url, &mut settings);
                let path = IscsiPath::new(settings).map_err(|why| PathConfigError(why.to_owned()))?;
                Ok(AnyPath::Iscsi(Box::new(path)))
            }
            TargetSelector::Nvme(subsystem, Some(nsid)) => {
                let host = url.options.host_nqn.clone().unwrap_or_else(|| who.host.clone());
                let host_id = url.options.host_id.unwrap_or(who.host_id);
                let (addresses, source) = addresses_and_source(url, addresses)?;
                let mut settings = nvme::Settings::new(addresses, subsystem.clone(), *nsid, host, host_id);
                settings.source = source;
                (settings.secret, settings.controller_secret) = (
                    parse_dhchap_secret(&secrets.ours, "ours")?,
                    parse_dhchap_secret(&secrets.target, "the controller's")?,
                );
                settings.tls = tls_context(url, secrets, &settings)?;
                settings.concatenation = url.options.concatenation == Some(true);
                apply_queue_options(url, &mut settings);
                Ok(AnyPath::Nvme(Box::new(NvmePath::new(settings))))
            }
            TargetSelector::Discovery | TargetSelector::Iscsi(..) | TargetSelector::Nvme(..) => {
                Err(PathConfigError(url.missing_volume_error().to_string()))
            }
        }
    }

    /// What it says and hears while it comes up; off until it is turned on.
    pub fn trace(&mut self) -> &mut Trace {
        each!(self, path => path.trace())
    }
}

/// A discovery of iSCSI targets at one portal, as a URL says: of the one target that it names, or of all.
///
/// # Errors
/// As [`AnyPath::from_url`].
pub fn target_discovery(
    url: &Url,
    portal: SocketAddr,
    who: &HostIdentity,
    secrets: &UrlSecrets,
) -> Result<iscsi::Discovery, PathConfigError> {
    let initiator = url.options.initiator.as_ref().map_or(&*who.initiator, |name| name.as_str()).to_owned();
    let target = if let TargetSelector::Iscsi(name, _) = &url.target { Some(name.clone()) } else { None };
    Ok(iscsi::Discovery::new(iscsi::DiscoverySettings {
        portal,
        initiator,
        isid: Isid::random(who.isid, 0),
        credentials: chap_credentials(url, secrets)?,
        target,
        timeouts: iscsi::Timeouts::default(),
        source: dial_source(url),
    }))
}

/// A discovery of NVMe subsystems, as a URL says.
///
/// # Errors
/// As [`AnyPath::from_url`].
pub fn subsystem_discovery(
    url: &Url,
    addresses: Vec<SocketAddr>,
    who: &HostIdentity,
    secrets: &UrlSecrets,
) -> Result<nvme::Discovery, PathConfigError> {
    discovery_settings(url, addresses, who, secrets).map(nvme::Discovery::new)
}

/// A watch of what a discovery service offers, as a URL says.
///
/// # Errors
/// As [`AnyPath::from_url`].
pub fn discovery_watch(
    url: &Url,
    addresses: Vec<SocketAddr>,
    who: &HostIdentity,
    secrets: &UrlSecrets,
) -> Result<nvme::DiscoveryWatch, PathConfigError> {
    let mut settings = discovery_settings(url, addresses, who, secrets)?;
    if url.options.keep_alive.is_none_or(|time| time.is_zero()) {
        settings.times.keep_alive = DISCOVERY_KEEP_ALIVE;
    }
    Ok(nvme::DiscoveryWatch::new(settings))
}

/// How long a discovery controller is to stay without a sign of life, unless the URL says it: longer than its log takes
/// to be read.
const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

fn discovery_settings(
    url: &Url,
    addresses: Vec<SocketAddr>,
    who: &HostIdentity,
    secrets: &UrlSecrets,
) -> Result<nvme::Settings, PathConfigError> {
    let subsystem =
        if let TargetSelector::Nvme(name, _) = &url.target { name.clone() } else { Nqn::discovery_service() };
    let host = url.options.host_nqn.clone().unwrap_or_else(|| who.host.clone());
    let host_id = url.options.host_id.unwrap_or(who.host_id);
    let (addresses, source) = addresses_and_source(url, addresses)?;
    let mut settings = nvme::Settings::new(addresses, subsystem, 1, host, host_id);
    settings.source = source;
    (settings.secret, settings.controller_secret) = (
        parse_dhchap_secret(&secrets.ours, "ours")?,
        parse_dhchap_secret(&secrets.target, "the controller's")?,
    );
    settings.tls = tls_context(url, secrets, &settings)?;
    settings.concatenation = url.options.concatenation == Some(true);
    apply_queue_options(url, &mut settings);
    Ok(settings)
}

fn dial_source(url: &Url) -> DialSource {
    DialSource { address: url.options.host_address, interface: url.options.host_interface }
}

/// Where the URL's connections leave this machine, and the addresses that can be reached from there.
fn addresses_and_source(
    url: &Url,
    addresses: Vec<SocketAddr>,
) -> Result<(Vec<SocketAddr>, DialSource), PathConfigError> {
    let source = dial_source(url);
    let Some(ours) = source.address else { return Ok((addresses, source)) };
    let reached: Vec<_> = addresses.into_iter().filter(|to| to.is_ipv4() == ours.is_ipv4()).collect();
    if reached.is_empty() {
        let (ours, other) = if ours.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        return Err(PathConfigError(format!(
            "host_traddr is an {ours} address, and the host of the URL has only {other} addresses"
        )));
    }
    Ok((reached, source))
}

/// What TLS goes by, if the URL names a key.
fn tls_context(
    url: &Url,
    secrets: &UrlSecrets,
    settings: &nvme::Settings,
) -> Result<Option<tls::ClientContext>, PathConfigError> {
    let Some(secret) = &secrets.tls else { return Ok(None) };
    let wrong = |why: &dyn fmt::Display| PathConfigError(format!("the key of TLS cannot be used: {why}"));
    let text = std::str::from_utf8(secret.expose()).map_err(|_| wrong(&"it is no text"))?;
    let key = ConfiguredPsk::parse(text).map_err(|why| wrong(&why))?;
    let version = match url.options.tls_identity {
        Some(0) => IdentityVersion::Zero,
        _ => IdentityVersion::One,
    };
    let retained = key.derive_retained(&settings.host, url.options.tls_derivation.unwrap_or_default());
    let named = retained.psk_identity(version, key.default_suite(), &settings.host, &settings.subsystem);
    let psk = named.as_ref().and_then(|identity| retained.tls_psk(identity));
    let (Some(identity), Some(psk)) = (named, psk) else {
        return Err(wrong(&"a name holds a space, or they are too long for tls_identity=0"));
    };
    let psk = tls::Psk::new(psk.suite().number(), psk.expose());
    let context = tls::ClientContext::new(identity.to_string().into_bytes(), psk);
    context.map(Some).map_err(|why| wrong(&why))
}

/// CHAP, if the URL names a user.
fn chap_credentials(url: &Url, secrets: &UrlSecrets) -> Result<Option<Credentials>, PathConfigError> {
    let Some(user) = &url.user else { return Ok(None) };
    let ours = user.secret.as_ref().or(secrets.ours.as_ref()).ok_or_else(|| {
        PathConfigError(format!(
            "user \"{}\" has no password: write it to a file and add ?secret_file=FILE, or name a variable with \
             ?secret_env=NAME",
            user.name
        ))
    })?;
    let account = |name: &str, secret: &Secret| ChapAccount {
        name: name.to_owned(),
        secret: ::iscsi::chap::Secret::new(secret.expose().to_vec()),
    };
    let target = match (&url.options.mutual_user, &secrets.target) {
        (Some(name), Some(secret)) => Some(account(name, secret)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(PathConfigError(
                "mutual_user needs mutual_secret_file or mutual_secret_env".to_owned(),
            ));
        }
        (None, Some(_)) => {
            return Err(PathConfigError("a secret of the target's needs mutual_user, its name".to_owned()));
        }
    };
    let algorithms = url.options.chap.clone().unwrap_or_else(|| Algorithm::ALL.to_vec());
    Ok(Some(Credentials { ours: account(&user.name, ours), target, algorithms }))
}

fn apply_negotiation_options(url: &Url, settings: &mut iscsi::Settings) {
    let (options, wishes) = (&url.options, &mut settings.negotiation);
    if let Some(digests) = options.digests {
        let wanted = |on: bool| vec![if on { Digest::Crc32c } else { Digest::None }];
        (wishes.header_digest, wishes.data_digest) = (wanted(digests.header), wanted(digests.data));
    }
    wishes.immediate_data = options.immediate.unwrap_or(wishes.immediate_data);
    wishes.initial_r2t = options.initial_r2t.unwrap_or(wishes.initial_r2t);
    wishes.first_burst = options.first_burst.unwrap_or(wishes.first_burst);
    wishes.max_burst = options.max_burst.unwrap_or(wishes.max_burst);
    wishes.mrdsl = options.max_recv.unwrap_or(wishes.mrdsl);
    let number = |said: Option<u16>, usual: u32| said.map_or(usual, u32::from);
    wishes.max_outstanding_r2t = number(options.max_outstanding_r2t, wishes.max_outstanding_r2t);
    wishes.time2wait = number(options.time2wait, wishes.time2wait);
    wishes.time2retain = number(options.time2retain, wishes.time2retain);
    wishes.protocol_level = number(options.protocol_level, wishes.protocol_level);
    settings.links = options.connections.unwrap_or(settings.links);
    settings.commands = options.commands.unwrap_or(settings.commands).min(iscsi::PATH_COMMANDS_MAX);
    let times = &mut settings.timeouts;
    if let Some(timeout) = options.connect_timeout {
        (times.dial, times.login, times.start_up) = (timeout, timeout, timeout);
    }
    times.command = options.command_timeout.map_or(times.command, unlimited_if_zero);
    times.ping = options.keep_alive.map_or(times.ping, unlimited_if_zero);
    times.fence = options.fence_timeout.unwrap_or(times.fence);
}

fn apply_queue_options(url: &Url, settings: &mut nvme::Settings) {
    let options = &url.options;
    if let Some(digests) = options.digests {
        (settings.header_digest, settings.data_digest) = (digests.header, digests.data);
    }
    settings.queues = options.queues.unwrap_or(settings.queues);
    settings.depth = options.commands.map_or(settings.depth, u32::from).min(nvme::QUEUE_DEPTH_MAX);
    settings.r2ts = options.max_r2t.map_or(settings.r2ts, u32::from);
    settings.hpda = options.hpda.and_then(|hpda| u8::try_from(hpda).ok()).unwrap_or(settings.hpda);
    settings.flow_control = options.flow_control.unwrap_or(settings.flow_control);
    let times = &mut settings.times;
    if let Some(timeout) = options.connect_timeout {
        (times.dial, times.join) = (timeout, timeout);
    }
    times.operation = options.command_timeout.map_or(times.operation, unlimited_if_zero);
    times.keep_alive = options.keep_alive.map_or(times.keep_alive, unlimited_if_zero);
    times.lost_least = options.fence_timeout.unwrap_or(times.lost_least);
}

/// Zero stands for no limit in a URL; a day is one that nobody reaches, and no clock overflows by it.
fn unlimited_if_zero(time: Duration) -> Duration {
    if time.is_zero() { Duration::from_secs(24 * 3600) } else { time }
}

/// A secret in the form `DHHC-1:…`.
fn parse_dhchap_secret(
    secret: &Option<Secret>,
    whose: &str,
) -> Result<Option<::nvme::auth::DhchapSecret>, PathConfigError> {
    let Some(secret) = secret else { return Ok(None) };
    let text = std::str::from_utf8(secret.expose()).unwrap_or_default().trim();
    let parsed = ::nvme::auth::DhchapSecret::parse(text);
    let said = |why: &dyn fmt::Display| {
        PathConfigError(format!("the secret ({whose}) is not of the form DHHC-1:...: {why}"))
    };
    parsed.map(Some).map_err(|why| said(&why))
}

/// Passes calls on to the path, whichever it is.
macro_rules! forward {
    () => {};
    (fn $name:ident(&mut $self:ident $(, $arg:ident: $of:ty)*) $(-> $out:ty)?; $($rest:tt)*) => {
        #[inline]
        fn $name(&mut $self $(, $arg: $of)*) $(-> $out)? {
            each!($self, path => path.$name($($arg),*))
        }
        forward! { $($rest)* }
    };
    (fn $name:ident(&$self:ident) $(-> $out:ty)?; $($rest:tt)*) => {
        fn $name(&$self) $(-> $out)? {
            each!($self, path => path.$name())
        }
        forward! { $($rest)* }
    };
}

impl OutboundSockets for AnyPath {
    forward! {
        fn poll_dial(&mut self) -> Option<Dial>;
        fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>);
        fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received);
        fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>);
        fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp);
        fn poll_ready(&mut self) -> Option<LinkId>;
        fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp>;
        fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp>;
        fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)>;
        fn poll_computation(&mut self) -> Option<Computation>;
        fn handle_computed(&mut self);
        fn turn(&mut self, cx: &mut Cx<'_>) -> bool;
        fn poll_timeout(&self) -> Option<Time>;
        fn handle_timeout(&mut self, cx: &mut Cx<'_>);
    }
}

impl Path for AnyPath {
    forward! {
        fn protocol(&self) -> Protocol;
        fn connect(&mut self, cx: &mut Cx<'_>);
        fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)>;
        fn submit_reservation_op(&mut self, cx: &mut Cx<'_>, id: IoId, request: ReservationOp) -> Result<(), ReservationOp>;
        fn submit_raw(&mut self, cx: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand>;
        fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId);
        fn fence(&mut self, cx: &mut Cx<'_>);
        fn target_portals(&self) -> Option<(&str, &[SocketAddr])>;
        fn set_fence_portals(&mut self, portals: Vec<SocketAddr>);
        fn lost_controllers(&self) -> Vec<LostController>;
        fn reset_controller(&mut self, cx: &mut Cx<'_>, controller: &LostController) -> bool;
        fn handle_controller_reset(&mut self, cx: &mut Cx<'_>, controller: &LostController);
        fn recheck_access(&mut self);
        fn lost_command_lifetime(&self) -> Duration;
        fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration);
        fn poll_event(&mut self) -> Option<PathEvent>;
    }
}
