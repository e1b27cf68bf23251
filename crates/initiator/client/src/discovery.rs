//! Discovery, and a single path examined step by step.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use buf::{Cx, MemoryClass, Payload, Time};
use multipath::nvme::DiscoveryWatchEvent;
use multipath::trace::TraceLine;
use multipath::url::{TargetSelector, Url};
use multipath::{
    AnyPath, DownReason, IoError, Path, PathEvent, PathProblem, Protocol, SocketsEndpoint, Trace, VolumeInfo,
};
use reactor::{Config, InlineReactor};
use volume::{IoId, Op, Outcome, Span};

use crate::error::{Error, ErrorKind, access_text, unreachable_advice};
use crate::identity::{self, IsidChoice};
use crate::initiator::{fetch_secrets, resolve_addresses};

/// Memory of a discovery, in bytes.
const POOL_BYTES: usize = 8 << 20;
/// Longest time of a discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(90);

/// A target or subsystem, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Over which protocol.
    pub protocol: Protocol,
    /// Its name.
    pub name: String,
    /// Where it is: address and port, as the target writes them.
    pub address: String,
    /// The portal group tag, or the subsystem's port.
    pub tag: u16,
    /// Whether it requires TLS: its volumes then need a key (`tls_key_file` or `concat` in the URL).
    pub tls: bool,
}

/// The result of a discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryResult {
    /// The targets and subsystems that were found.
    pub targets: Vec<DiscoveredTarget>,
    /// Which services could not be asked, and which entries could not be used, in words.
    pub problems: Vec<String>,
}

/// The result of an examination.
#[derive(Clone, Debug)]
pub struct PathExamination {
    /// What the path reports; `Err`: why it could not be established.
    pub outcome: Result<std::sync::Arc<VolumeInfo>, Error>,
    /// Each step on the way, in order.
    pub lines: Vec<TraceLine>,
}

fn inline_reactor<E>(make: impl FnOnce(&mut Cx<'_>) -> E) -> Result<InlineReactor<E>, Error>
where
    E: endpoint::Endpoint,
    E::Message: 'static,
{
    let config = Config { pool_bytes: POOL_BYTES, ..Config::default() };
    InlineReactor::new(config, make).map_err(|why| Error::new(ErrorKind::Failed, why))
}

fn error_of_down_reason(url: &Url, why: &DownReason) -> Error {
    let (kind, words) = match why {
        DownReason::Unreachable(errno) => (ErrorKind::Unreachable, unreachable_advice(errno.0)),
        DownReason::Unproven(words) | DownReason::CutShort(words) => (ErrorKind::Unproven, words.clone()),
        DownReason::Absent(words) => (ErrorKind::NotFound, words.clone()),
        DownReason::Silent(words) => (ErrorKind::TimedOut, words.clone()),
        DownReason::Refused(words) | DownReason::Lost(words) => (ErrorKind::Failed, words.clone()),
        DownReason::Ended => (ErrorKind::Failed, "the target closed the connection".to_owned()),
    };
    Error::new(kind, format!("{url}: {words}"))
}

/// Lists targets: iSCSI targets by SendTargets, NVMe subsystems by the discovery log and its referrals.
/// ```no_run
/// for target in blockwire_client::discover_targets("iscsi://192.0.2.1")?.targets {
///     println!("{} at {}", target.name, target.address);
/// }
/// # Ok::<(), blockwire_client::Error>(())
/// ```
///
/// # Errors
/// If no service could be asked. An empty result is not an error.
pub fn discover_targets(text: &str) -> Result<DiscoveryResult, Error> {
    let url = Url::parse(text).map_err(Error::usage)?;
    let (addresses, secrets) = (resolve_addresses(&url)?, fetch_secrets(&url)?);
    match url.protocol {
        Protocol::Iscsi => {
            let mut last = None;
            for portal in addresses {
                // Another process may look around at the same time, under the same name.
                let own = std::process::id().to_be_bytes();
                let who = identity::host_identity(IsidChoice::Passing, [own[1], own[2], own[3]])?;
                let asking =
                    multipath::target_discovery(&url, portal, &who, &secrets).map_err(Error::usage)?;
                let mut inline = inline_reactor(|_| SocketsEndpoint(asking))?;
                inline.with_endpoint(|alone, cx| alone.0.start(cx));
                match run_until(&mut inline, |alone, _| alone.0.poll_outcome())? {
                    Ok(targets) => return Ok(from_iscsi_targets(&targets, portal)),
                    Err(why) => last = Some(error_of_down_reason(&url, &why)),
                }
            }
            Err(last.unwrap_or_else(|| Error::new(ErrorKind::Unreachable, format!("{url}: no address"))))
        }
        Protocol::Nvme => {
            let who = identity::host_identity(IsidChoice::Passing, [0; 3])?;
            let asking =
                multipath::subsystem_discovery(&url, addresses, &who, &secrets).map_err(Error::usage)?;
            let mut inline = inline_reactor(|_| SocketsEndpoint(asking))?;
            inline.with_endpoint(|alone, cx| alone.0.start(cx));
            let survey = run_until(&mut inline, |alone, _| alone.0.poll_outcome())?
                .map_err(|why| error_of_down_reason(&url, &why))?;
            Ok(from_nvme_report(&survey))
        }
    }
}

/// Reports what an NVMe discovery service offers, and again after each change, until `told` breaks. The service
/// announces changes by events; a lost connection is established again.
///
/// # Errors
/// If the service cannot be reached at first, or has no events for changes. iSCSI has no such events.
pub fn watch_discovery(
    text: &str,
    mut told: impl FnMut(&DiscoveryResult) -> ControlFlow<()>,
) -> Result<(), Error> {
    let url = Url::parse(text).map_err(Error::usage)?;
    if url.protocol != Protocol::Nvme {
        return Err(Error::usage("iSCSI has no events of discovery: ask again instead"));
    }
    let (mut is_first, mut delay) = (true, WATCH_DELAY_MIN);
    loop {
        match watch_once(&url, text, &mut is_first, &mut told) {
            Ok(ControlFlow::Break(())) => return Ok(()),
            Ok(ControlFlow::Continue(())) => delay = WATCH_DELAY_MIN,
            // What has worked may work again.
            Err(why) if is_first => return Err(why),
            Err(_) => delay = (delay * 2).min(WATCH_DELAY_MAX),
        }
        std::thread::sleep(delay);
    }
}

/// Between two readings of a log that changes again and again, and between two attempts to reach its service.
const WATCH_DELAY_MIN: Duration = Duration::from_secs(1);
const WATCH_DELAY_MAX: Duration = Duration::from_secs(30);

/// Watches until the association is lost (then it goes on) or `told` breaks. `is_first`: nothing was told yet.
fn watch_once(
    url: &Url,
    text: &str,
    is_first: &mut bool,
    told: &mut impl FnMut(&DiscoveryResult) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    let (addresses, secrets) = (resolve_addresses(url)?, fetch_secrets(url)?);
    let who = identity::host_identity(IsidChoice::Passing, [0; 3])?;
    let watch = multipath::discovery_watch(url, addresses, &who, &secrets).map_err(Error::usage)?;
    let mut inline = inline_reactor(|_| SocketsEndpoint(watch))?;
    inline.with_endpoint(|alone, cx| alone.0.start(cx));
    match run_until(&mut inline, |alone, _| alone.0.poll_event())? {
        DiscoveryWatchEvent::Lost(why) => return Err(error_of_down_reason(url, &why)),
        DiscoveryWatchEvent::Watching | DiscoveryWatchEvent::Changed => {}
    }
    loop {
        let found = discover_targets(text)?;
        *is_first = false;
        if told(&found).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        loop {
            match inline.with_endpoint(|alone, _| alone.0.poll_event()) {
                Some(DiscoveryWatchEvent::Changed) => break,
                Some(DiscoveryWatchEvent::Lost(_)) => return Ok(ControlFlow::Continue(())),
                Some(DiscoveryWatchEvent::Watching) => {}
                None => inline.turn(None),
            }
        }
        std::thread::sleep(WATCH_DELAY_MIN);
    }
}

fn run_until<E, R>(
    inline: &mut InlineReactor<E>,
    mut look: impl FnMut(&mut E, &mut Cx<'_>) -> Option<R>,
) -> Result<R, Error>
where
    E: endpoint::Endpoint,
    E::Message: 'static,
{
    let begun = Instant::now();
    loop {
        if let Some(found) = inline.with_endpoint(&mut look) {
            // Last words leave.
            inline.turn(Some(Duration::ZERO));
            return Ok(found);
        }
        let left = DISCOVERY_TIMEOUT.checked_sub(begun.elapsed());
        inline.turn(Some(left.ok_or_else(|| Error::new(ErrorKind::TimedOut, "no end in time"))?));
    }
}

fn from_iscsi_targets(
    targets: &iscsi::initiator::DiscoveredTargets,
    portal: std::net::SocketAddr,
) -> DiscoveryResult {
    let mut all = DiscoveryResult::default();
    for record in &targets.records {
        let mut put = |address: String, tag| {
            let name = record.name.as_str().to_owned();
            all.targets.push(DiscoveredTarget { protocol: Protocol::Iscsi, name, address, tag, tls: false });
        };
        if record.addresses.is_empty() {
            put(portal.to_string(), 1);
        }
        for address in &record.addresses {
            let text = address.to_string();
            let (place, tag) = text.rsplit_once(',').unwrap_or((&text, "1"));
            put(place.to_owned(), tag.parse().unwrap_or(1));
        }
    }
    if targets.ignored > 0 {
        all.problems.push(format!("{} names or addresses make no sense and were left out", targets.ignored));
    }
    if targets.is_cut {
        all.problems.push("the answer was longer than can be taken: it is cut off".to_owned());
    }
    all
}

fn from_nvme_report(survey: &multipath::nvme::DiscoveryReport) -> DiscoveryResult {
    let found = survey.subsystems.iter().map(|one| DiscoveredTarget {
        protocol: Protocol::Nvme,
        name: one.subsystem.as_str().to_owned(),
        address: one.address.to_string(),
        tag: one.port,
        tls: one.tls,
    });
    let asked = survey.troubles.iter().map(|(at, why)| format!("{at}: {why}"));
    let mut all = DiscoveryResult { targets: found.collect(), problems: asked.collect() };
    if survey.skipped > 0 {
        all.problems.push(format!("{} records name nothing that can be reached over TCP", survey.skipped));
    }
    all
}

/// How long a path may take to part.
const DISCONNECT_GRACE: Duration = Duration::from_secs(2);
/// How often a read that the target put off is tried.
const TEST_READ_TRIES_MAX: u32 = 8;
/// The step in which a block is read.
const TEST_READ_STAGE: &str = "READ";

/// Whether a path that is up serves, and how large the volume is.
fn check_path_serves(url: &Url, info: &VolumeInfo) -> Result<(), Error> {
    // Whose size is not told serves nobody, however well it came up.
    if info.geometry.is_none() {
        return Err(error_of_down_reason(
            url,
            &DownReason::Lost(PathProblem::Untold(info.access).to_string()),
        ));
    }
    match info.access.allows_io() {
        true => Ok(()),
        false => Err(error_of_down_reason(url, &DownReason::Lost(access_text(info.access).to_owned()))),
    }
}

/// A block is read, since a target may greet and describe what it does not serve.
#[derive(Default)]
struct TestRead {
    info: Option<std::sync::Arc<VolumeInfo>>,
    is_out: bool,
    trials: u32,
}

impl TestRead {
    /// Reads the first block, once the path is up and takes it.
    fn start_read(&mut self, path: &mut AnyPath, cx: &mut Cx<'_>) {
        let geometry = self.info.as_ref().and_then(|info| info.geometry);
        let Some(geometry) = geometry.filter(|_| !self.is_out) else { return };
        let Some(memory) = cx.pool.take_sg(MemoryClass::Wire, geometry.logical as usize) else { return };
        let read = Op::Read(Span { lba: 0, blocks: 1 });
        self.is_out = path.submit(cx, IoId(1), read, Payload::In(memory)).is_ok();
        if self.is_out && self.trials == 0 {
            path.trace().stage_started(cx.now, 0, TEST_READ_STAGE);
        }
    }

    /// The read has ended; `None`: it is tried again.
    fn handle_read_ended(
        &mut self,
        path: &mut AnyPath,
        now: Time,
        url: &Url,
        how: Result<Outcome, IoError>,
    ) -> Option<Result<std::sync::Arc<VolumeInfo>, Error>> {
        self.is_out = false;
        let what = format!("{url}: reading its first block");
        let why = match how {
            Ok(_) => {
                path.trace().stage_succeeded(now, 0, TEST_READ_STAGE);
                return self.info.take().map(Ok);
            }
            Err(IoError::NotDone(_)) if self.trials < TEST_READ_TRIES_MAX => {
                self.trials += 1;
                return None;
            }
            Err(IoError::NotDone(_)) => {
                Error::new(ErrorKind::Failed, format!("{what}: the target puts it off"))
            }
            Err(IoError::InDoubt) => Error::new(ErrorKind::TimedOut, format!("{what}: no answer in time")),
            Err(IoError::Failed(failure)) => Error::from_failure(failure, &what),
        };
        path.trace().stage_failed(now, (0, TEST_READ_STAGE), why.message.clone(), "look into the target");
        Some(Err(why))
    }
}

/// Establishes one path, reports each step and reads a block.
/// ```no_run
/// let examined = blockwire_client::examine_path("nvme+tcp://192.0.2.1/nqn.2026-11.io.blockwire:demo/1")?;
/// for line in &examined.lines {
///     println!("{}: {:?}", line.stage, line.event);
/// }
/// println!("{} blocks", examined.outcome?.geometry.map_or(0, |geometry| geometry.blocks));
/// # Ok::<(), blockwire_client::Error>(())
/// ```
///
/// # Errors
/// If the URL is invalid, its host has no address, or a secret is missing; later failures are in the outcome.
pub fn examine_path(text: &str) -> Result<PathExamination, Error> {
    let url = Url::parse(text).map_err(Error::usage)?;
    if !url.has_volume() {
        return Err(Error::usage(url.missing_volume_error()));
    }
    debug_assert!(url.target != TargetSelector::Discovery);
    let (addresses, secrets) = (resolve_addresses(&url)?, fetch_secrets(&url)?);
    let own = std::process::id().to_be_bytes();
    let who = identity::host_identity(IsidChoice::Passing, [own[1], own[2], own[3]])?;
    let path = AnyPath::from_url(&url, addresses, &who, &secrets, 0).map_err(Error::usage)?;
    let mut inline = inline_reactor(|_| SocketsEndpoint(path))?;
    inline.with_endpoint(|alone, cx| {
        alone.0.trace().set_enabled(true);
        alone.0.connect(cx);
    });
    let mut outcome = None;
    let mut lines = Vec::new();
    let mut test_read = TestRead::default();
    run_until(&mut inline, |alone, cx| {
        let path = &mut alone.0;
        while let Some(event) = path.poll_event() {
            match event {
                PathEvent::Up(info) => match check_path_serves(&url, &info) {
                    Ok(()) => test_read.info = Some(info),
                    Err(why) => {
                        outcome.get_or_insert(Err(why));
                        path.disconnect(cx, DISCONNECT_GRACE);
                    }
                },
                PathEvent::Done { how, .. } => {
                    if let Some(ended) = test_read.handle_read_ended(path, cx.now, &url, how) {
                        outcome.get_or_insert(ended);
                        path.disconnect(cx, DISCONNECT_GRACE);
                    }
                }
                PathEvent::Down(why) => {
                    outcome.get_or_insert_with(|| Err(error_of_down_reason(&url, &why)));
                    lines.extend(std::iter::from_fn(|| Trace::poll_line(path.trace())));
                    return Some(());
                }
                PathEvent::Changed(_) | PathEvent::ReservationsChanged | PathEvent::Fenced => {}
                PathEvent::ReservationReply { .. }
                | PathEvent::RawDone(_)
                | PathEvent::ControllerReset { .. } => {}
            }
        }
        if outcome.is_none() {
            test_read.start_read(path, cx);
        }
        None
    })?;
    let outcome = outcome.unwrap_or_else(|| Err(Error::new(ErrorKind::Failed, "the path said nothing")));
    Ok(PathExamination { outcome, lines })
}
