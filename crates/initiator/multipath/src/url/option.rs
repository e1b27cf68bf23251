//! The options after the `?` of a URL: a typed list.
//!
//! Times are numbers followed by `ms`, `s`, `m` or `h` (without: seconds), or `never` where that makes sense.
//! Sizes are bytes, with `K` or `M` for binary units.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use endpoint::InterfaceName;
use iscsi::chap::Algorithm;
use iscsi::name::IscsiName;
use nvme::tls::HkdfLabelFormat;
use nvme::{HostId, Nqn};

use super::error::{UrlError, UrlPart, UrlProblem};
use super::{Protocol, Url, UserInfo, percent_decode};
use crate::suggest::nearest_word;

/// Which PDUs carry a digest; what is not wanted is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestOptions {
    /// The headers.
    pub header: bool,
    /// The data.
    pub data: bool,
}

/// Which of a volume's best paths the next operation takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The one with the least in work; if several have that, each in turn.
    #[default]
    LeastQueue,
    /// Each in turn.
    RoundRobin,
}

/// Where a secret is that does not stand in the URL. Who does I/O fetches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In a file that nobody else can read.
    File(PathBuf),
    /// In this variable of the environment.
    Environment(String),
}

/// All options; `None` where nothing was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `digest=none|header|data|both`.
    pub digests: Option<DigestOptions>,
    /// `commands=1..4096`: how many may be in work on a session or queue.
    pub commands: Option<u16>,
    /// `ro=yes|no`: whether writes are refused here already.
    pub read_only: Option<bool>,
    /// `connect_timeout=`: from the dialling to the path that is up.
    pub connect_timeout: Option<Duration>,
    /// `command_timeout=`: how long a command may take; zero: for ever.
    pub command_timeout: Option<Duration>,
    /// `keep_alive=`: silence after which the target is asked for a sign of life; zero: never.
    pub keep_alive: Option<Duration>,
    /// `fence_timeout=`: how long after the loss of a path what it carried may still be done at most.
    pub fence_timeout: Option<Duration>,
    /// `host_traddr=`: our address, from which connections are made.
    pub host_address: Option<IpAddr>,
    /// `host_iface=`: our network interface, by which connections leave.
    pub host_interface: Option<InterfaceName>,
    /// `secret_file=`, `secret_env=`: what proves who we are.
    pub secret: Option<SecretSource>,
    /// `mutual_secret_file=`, `mutual_secret_env=`: what proves who the target is.
    pub mutual_secret: Option<SecretSource>,

    /// `initiator=`: our iSCSI name.
    pub initiator: Option<IscsiName>,
    /// `mutual_user=`: the name that the target proves.
    pub mutual_user: Option<String>,
    /// `chap=md5+sha1+sha256+sha3-256`: which hashes we offer, best first.
    pub chap: Option<Vec<Algorithm>>,
    /// `connections=1..16`: of one session.
    pub connections: Option<u16>,
    /// `immediate=yes|no`: ImmediateData.
    pub immediate: Option<bool>,
    /// `initial_r2t=yes|no`: InitialR2T.
    pub initial_r2t: Option<bool>,
    /// `first_burst=512..16M`: FirstBurstLength.
    pub first_burst: Option<u32>,
    /// `max_burst=512..16M`: MaxBurstLength.
    pub max_burst: Option<u32>,
    /// `max_recv=512..16M`: MaxRecvDataSegmentLength, what we take in one PDU.
    pub max_recv: Option<u32>,
    /// `max_outstanding_r2t=1..65535`: MaxOutstandingR2T.
    pub max_outstanding_r2t: Option<u16>,
    /// `time2wait=0..1h`: DefaultTime2Wait, in seconds.
    pub time2wait: Option<u16>,
    /// `time2retain=0..1h`: DefaultTime2Retain, in seconds.
    pub time2retain: Option<u16>,
    /// `protocol_level=0..2`: iSCSIProtocolLevel.
    pub protocol_level: Option<u16>,

    /// `tls_key_file=`, `tls_key_env=`: our key for TLS; with it, and only then, TLS is used.
    pub tls_key: Option<SecretSource>,
    /// `tls_identity=0|1`: the version of the identity that it is offered under.
    pub tls_identity: Option<u16>,
    /// `tls_derivation=standard|compat`: how it is derived.
    pub tls_derivation: Option<HkdfLabelFormat>,
    /// `concat=yes|no`: whether our secret generates a key for TLS (secure channel concatenation).
    pub concatenation: Option<bool>,
    /// `host_nqn=`: our NVMe name.
    pub host_nqn: Option<Nqn>,
    /// `host_id=`: our Host Identifier, a UUID.
    pub host_id: Option<HostId>,
    /// `queues=1..64`: I/O queues.
    pub queues: Option<u16>,
    /// `max_r2t=1..16`: R2Ts of one command that may be outstanding (MAXR2T, less one).
    pub max_r2t: Option<u16>,
    /// `hpda=0..31`: data comes at multiples of (HPDA + 1) × 4 bytes.
    pub hpda: Option<u16>,
    /// `flow_control=yes|no`: whether the submission queue's head counts.
    pub flow_control: Option<bool>,

    /// What is said of the volume as a whole.
    pub volume: VolumeOptions,
}

/// Options of a volume, whichever of its URLs they stand in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// `policy=least-queue|round-robin`.
    pub policy: Option<PathPolicy>,
    /// `reconnect_delay=`.
    pub reconnect_delay: Option<Duration>,
    /// `reconnect_delay_max=`.
    pub reconnect_delay_max: Option<Duration>,
    /// `loss_timeout=`; [`Duration::MAX`]: never.
    pub loss_timeout: Option<Duration>,
    /// `fast_fail=`; [`Duration::MAX`]: never.
    pub fast_fail: Option<Duration>,
    /// `queue_timeout=`; [`Duration::MAX`]: never.
    pub queue_timeout: Option<Duration>,
    /// `open_timeout=`.
    pub open_timeout: Option<Duration>,
}

/// Whose option it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProtocolScope {
    Both,
    Iscsi,
    Nvme,
}

/// Takes a value on; the error says what is wanted.
type OptionSetter = fn(&mut Options, &str) -> Result<(), &'static str>;

const OPTION_TABLE: &[(&str, ProtocolScope, OptionSetter)] = &[
    ("digest", ProtocolScope::Both, |to, text| set_option(&mut to.digests, parse_digests(text))),
    ("commands", ProtocolScope::Both, |to, text| {
        set_option(&mut to.commands, parse_number(text, 1, 4096, "a number from 1 to 4096"))
    }),
    ("ro", ProtocolScope::Both, |to, text| set_option(&mut to.read_only, parse_bool(text))),
    ("connect_timeout", ProtocolScope::Both, |to, text| {
        set_option(&mut to.connect_timeout, parse_positive_time(text))
    }),
    ("command_timeout", ProtocolScope::Both, |to, text| {
        set_option(&mut to.command_timeout, parse_time_or_off(text))
    }),
    ("keep_alive", ProtocolScope::Both, |to, text| set_option(&mut to.keep_alive, parse_time_or_off(text))),
    ("fence_timeout", ProtocolScope::Both, |to, text| {
        set_option(&mut to.fence_timeout, parse_positive_time(text))
    }),
    ("host_traddr", ProtocolScope::Both, |to, text| set_option(&mut to.host_address, parse_address(text))),
    ("host_iface", ProtocolScope::Both, |to, text| set_option(&mut to.host_interface, parse_interface(text))),
    ("secret_file", ProtocolScope::Both, |to, text| set_option(&mut to.secret, parse_secret_file(text))),
    ("secret_env", ProtocolScope::Both, |to, text| set_option(&mut to.secret, parse_secret_variable(text))),
    ("mutual_secret_file", ProtocolScope::Both, |to, text| {
        set_option(&mut to.mutual_secret, parse_secret_file(text))
    }),
    ("mutual_secret_env", ProtocolScope::Both, |to, text| {
        set_option(&mut to.mutual_secret, parse_secret_variable(text))
    }),
    ("initiator", ProtocolScope::Iscsi, |to, text| set_option(&mut to.initiator, parse_iscsi_name(text))),
    ("mutual_user", ProtocolScope::Iscsi, |to, text| set_option(&mut to.mutual_user, parse_user_name(text))),
    ("chap", ProtocolScope::Iscsi, |to, text| set_option(&mut to.chap, parse_chap_algorithms(text))),
    ("connections", ProtocolScope::Iscsi, |to, text| {
        set_option(&mut to.connections, parse_number(text, 1, 16, "a number from 1 to 16"))
    }),
    ("immediate", ProtocolScope::Iscsi, |to, text| set_option(&mut to.immediate, parse_bool(text))),
    ("initial_r2t", ProtocolScope::Iscsi, |to, text| set_option(&mut to.initial_r2t, parse_bool(text))),
    ("first_burst", ProtocolScope::Iscsi, |to, text| {
        set_option(&mut to.first_burst, parse_segment_len(text))
    }),
    ("max_burst", ProtocolScope::Iscsi, |to, text| set_option(&mut to.max_burst, parse_segment_len(text))),
    ("max_recv", ProtocolScope::Iscsi, |to, text| set_option(&mut to.max_recv, parse_segment_len(text))),
    ("max_outstanding_r2t", ProtocolScope::Iscsi, |to, text| {
        set_option(&mut to.max_outstanding_r2t, parse_number(text, 1, u16::MAX, "a number from 1 to 65535"))
    }),
    ("time2wait", ProtocolScope::Iscsi, |to, text| set_option(&mut to.time2wait, parse_seconds(text))),
    ("time2retain", ProtocolScope::Iscsi, |to, text| set_option(&mut to.time2retain, parse_seconds(text))),
    ("protocol_level", ProtocolScope::Iscsi, |to, text| {
        set_option(&mut to.protocol_level, parse_number(text, 0, 2, "0, 1 (RFC 7143) or 2 (RFC 7144)"))
    }),
    ("host_nqn", ProtocolScope::Nvme, |to, text| set_option(&mut to.host_nqn, parse_nqn(text))),
    ("host_id", ProtocolScope::Nvme, |to, text| set_option(&mut to.host_id, parse_host_id(text))),
    ("queues", ProtocolScope::Nvme, |to, text| {
        set_option(&mut to.queues, parse_number(text, 1, 64, "a number from 1 to 64"))
    }),
    ("max_r2t", ProtocolScope::Nvme, |to, text| {
        set_option(&mut to.max_r2t, parse_number(text, 1, 16, "a number from 1 to 16"))
    }),
    ("hpda", ProtocolScope::Nvme, |to, text| {
        set_option(&mut to.hpda, parse_number(text, 0, 31, "a number from 0 to 31"))
    }),
    ("flow_control", ProtocolScope::Nvme, |to, text| set_option(&mut to.flow_control, parse_bool(text))),
    ("tls_key_file", ProtocolScope::Nvme, |to, text| set_option(&mut to.tls_key, parse_secret_file(text))),
    ("tls_key_env", ProtocolScope::Nvme, |to, text| set_option(&mut to.tls_key, parse_secret_variable(text))),
    ("tls_identity", ProtocolScope::Nvme, |to, text| {
        set_option(&mut to.tls_identity, parse_number(text, 0, 1, "0 or 1"))
    }),
    ("tls_derivation", ProtocolScope::Nvme, |to, text| {
        set_option(&mut to.tls_derivation, parse_derivation(text))
    }),
    ("concat", ProtocolScope::Nvme, |to, text| set_option(&mut to.concatenation, parse_bool(text))),
    ("policy", ProtocolScope::Both, |to, text| set_option(&mut to.volume.policy, parse_path_policy(text))),
    ("reconnect_delay", ProtocolScope::Both, |to, text| {
        set_option(&mut to.volume.reconnect_delay, parse_positive_time(text))
    }),
    ("reconnect_delay_max", ProtocolScope::Both, |to, text| {
        set_option(&mut to.volume.reconnect_delay_max, parse_positive_time(text))
    }),
    ("loss_timeout", ProtocolScope::Both, |to, text| {
        set_option(&mut to.volume.loss_timeout, parse_time_or_never(text))
    }),
    ("fast_fail", ProtocolScope::Both, |to, text| {
        set_option(&mut to.volume.fast_fail, parse_time_or_never(text))
    }),
    ("queue_timeout", ProtocolScope::Both, |to, text| {
        set_option(&mut to.volume.queue_timeout, parse_time_or_never(text))
    }),
    ("open_timeout", ProtocolScope::Both, |to, text| {
        set_option(&mut to.volume.open_timeout, parse_time_or_off(text))
    }),
];

impl Options {
    /// All keys, for help texts.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        OPTION_TABLE.iter().map(|(key, ..)| *key)
    }

    /// Reads what stands behind the `?`.
    pub(super) fn parse(protocol: Protocol, query: &str) -> Result<Options, UrlError> {
        let mut options = Options::default();
        let mut had: Vec<(&str, &str)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, text) = pair.split_once('=').unwrap_or((pair, ""));
            // What stands here may be a secret that was misplaced: a long key is not shown.
            let shown: String = key.chars().take(32).collect();
            let wrong =
                |wrong| UrlError { protocol: Some(protocol), part: UrlPart::Option(shown.clone()), wrong };
            let Some((_, scope, take)) = OPTION_TABLE.iter().find(|(known, ..)| *known == key) else {
                return Err(wrong(UrlProblem::Unknown(nearest_word(key, Self::keys()))));
            };
            let theirs = match scope {
                ProtocolScope::Both => false,
                ProtocolScope::Iscsi => protocol != Protocol::Iscsi,
                ProtocolScope::Nvme => protocol != Protocol::Nvme,
            };
            if theirs {
                return Err(wrong(UrlProblem::NotHere));
            }
            match had.iter().find(|(known, _)| *known == key) {
                Some((_, before)) if *before == text => continue,
                Some(_) => return Err(wrong(UrlProblem::Twice)),
                None => had.push((key, text)),
            }
            let value = percent_decode(text).and_then(|bytes| String::from_utf8(bytes).ok());
            let value = value.ok_or_else(|| wrong(UrlProblem::Escape))?;
            take(&mut options, &value).map_err(|want| wrong(UrlProblem::Value(want)))?;
        }
        for (one, other) in [
            ("secret_env", "secret_file"),
            ("mutual_secret_env", "mutual_secret_file"),
            ("tls_key_env", "tls_key_file"),
        ] {
            let has = |key| had.iter().any(|(known, _)| *known == key);
            if has(one) && has(other) {
                let part = UrlPart::Option(one.to_owned());
                return Err(UrlError { protocol: Some(protocol), part, wrong: UrlProblem::Clashes(other) });
            }
        }
        Ok(options)
    }

    /// Whether they fit each other and the user.
    pub(super) fn check_consistency(
        &self,
        protocol: Protocol,
        user: Option<&UserInfo>,
    ) -> Result<(), UrlError> {
        let wrong = |key: &str, wrong| {
            Err(UrlError { protocol: Some(protocol), part: UrlPart::Option(key.to_owned()), wrong })
        };
        if let (Some(first), Some(most)) = (self.first_burst, self.max_burst)
            && first > most
        {
            return wrong("first_burst", UrlProblem::Value("at most max_burst (RFC 7143 §13.14)"));
        }
        if let (Some(delay), Some(most)) = (self.volume.reconnect_delay, self.volume.reconnect_delay_max)
            && delay > most
        {
            return wrong("reconnect_delay", UrlProblem::Value("at most reconnect_delay_max"));
        }
        if protocol == Protocol::Nvme {
            if self.tls_key.is_none() {
                let needs = |key| wrong(key, UrlProblem::Needs("tls_key_file or tls_key_env"));
                match (self.tls_identity, self.tls_derivation) {
                    (Some(_), _) => return needs("tls_identity"),
                    (None, Some(_)) => return needs("tls_derivation"),
                    (None, None) => {}
                }
            }
            if self.concatenation == Some(true) {
                match (&self.secret, &self.tls_key) {
                    (None, _) => return wrong("concat", UrlProblem::Needs("secret_file or secret_env")),
                    (Some(_), Some(_)) => return wrong("concat", UrlProblem::Clashes("tls_key_file")),
                    (Some(_), None) => {}
                }
            }
            return match (&self.mutual_secret, &self.secret) {
                (Some(_), None) => {
                    wrong("mutual_secret_file", UrlProblem::Needs("secret_file or secret_env"))
                }
                _ => Ok(()),
            };
        }
        let in_url = user.is_some_and(|user| user.secret.is_some());
        match (&self.secret, user) {
            (Some(_), None) => return wrong("secret_file", UrlProblem::Needs("a user before @")),
            (Some(_), Some(_)) if in_url => {
                return wrong("secret_file", UrlProblem::Clashes("the password before @"));
            }
            (None, Some(_)) if !in_url => {
                let part = UrlPart::Password;
                return Err(UrlError { protocol: Some(protocol), part, wrong: UrlProblem::Missing });
            }
            _ => {}
        }
        match (&self.mutual_secret, &self.mutual_user) {
            (Some(_), None) => wrong("mutual_secret_file", UrlProblem::Needs("mutual_user")),
            (None, Some(_)) => {
                wrong("mutual_user", UrlProblem::Needs("mutual_secret_file or mutual_secret_env"))
            }
            (Some(_), Some(_)) if user.is_none() => wrong(
                "mutual_user",
                UrlProblem::Needs("a user before @, because our secret is required first"),
            ),
            _ => Ok(()),
        }
    }

    /// What is said of the volume in one URL holds for all.
    pub(super) fn merge_volume_options(urls: &mut [Url]) -> Result<(), UrlError> {
        fn merge_option<T: Clone + PartialEq>(
            urls: &mut [Url],
            key: &str,
            of: fn(&mut Options) -> &mut Option<T>,
        ) -> Result<(), UrlError> {
            let mut said: Option<T> = None;
            for url in &mut *urls {
                match (&said, of(&mut url.options)) {
                    (Some(before), Some(now)) if before != now => {
                        let part = UrlPart::Option(key.to_owned());
                        return Err(UrlError { protocol: None, part, wrong: UrlProblem::Twice });
                    }
                    (None, Some(now)) => said = Some(now.clone()),
                    _ => {}
                }
            }
            urls.iter_mut().for_each(|url| *of(&mut url.options) = said.clone());
            Ok(())
        }
        merge_option(urls, "ro", |of| &mut of.read_only)?;
        merge_option(urls, "policy", |of| &mut of.volume.policy)?;
        merge_option(urls, "reconnect_delay", |of| &mut of.volume.reconnect_delay)?;
        merge_option(urls, "reconnect_delay_max", |of| &mut of.volume.reconnect_delay_max)?;
        merge_option(urls, "loss_timeout", |of| &mut of.volume.loss_timeout)?;
        merge_option(urls, "fast_fail", |of| &mut of.volume.fast_fail)?;
        merge_option(urls, "queue_timeout", |of| &mut of.volume.queue_timeout)?;
        merge_option(urls, "open_timeout", |of| &mut of.volume.open_timeout)
    }
}

fn set_option<T>(place: &mut Option<T>, value: Result<T, &'static str>) -> Result<(), &'static str> {
    *place = Some(value?);
    Ok(())
}

fn parse_number(text: &str, least: u16, most: u16, want: &'static str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|number| (least..=most).contains(number)).ok_or(want)
}

fn parse_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" | "on" | "true" | "1" => Ok(true),
        "no" | "off" | "false" | "0" => Ok(false),
        _ => Err("yes or no"),
    }
}

fn parse_digests(text: &str) -> Result<DigestOptions, &'static str> {
    match text {
        "none" => Ok(DigestOptions { header: false, data: false }),
        "header" => Ok(DigestOptions { header: true, data: false }),
        "data" => Ok(DigestOptions { header: false, data: true }),
        "both" => Ok(DigestOptions { header: true, data: true }),
        _ => Err("none, header, data or both"),
    }
}

fn parse_derivation(text: &str) -> Result<HkdfLabelFormat, &'static str> {
    match text {
        "standard" => Ok(HkdfLabelFormat::Standard),
        "compat" => Ok(HkdfLabelFormat::Compat),
        _ => Err("standard or compat"),
    }
}

fn parse_path_policy(text: &str) -> Result<PathPolicy, &'static str> {
    match text {
        "least-queue" => Ok(PathPolicy::LeastQueue),
        "round-robin" => Ok(PathPolicy::RoundRobin),
        _ => Err("least-queue or round-robin"),
    }
}

/// At most a year, so that sums never overflow.
const TIME_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A time as options write it: a number with `ms`, `s`, `m` or `h` behind it (without: seconds), at most a
/// year.
pub fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let time = match unit {
        "ms" => Duration::from_millis(number),
        "" | "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        _ => return None,
    };
    (time <= TIME_MAX).then_some(time)
}

fn parse_positive_time(text: &str) -> Result<Duration, &'static str> {
    parse_time(text).filter(|time| !time.is_zero()).ok_or("a time above zero, as 500ms or 10s")
}

fn parse_time_or_never(text: &str) -> Result<Duration, &'static str> {
    if text == "never" {
        Ok(Duration::MAX)
    } else {
        parse_time(text).ok_or("a time, as 500ms or 10s, or never")
    }
}

fn parse_time_or_off(text: &str) -> Result<Duration, &'static str> {
    if text == "off" { Ok(Duration::ZERO) } else { parse_time(text).ok_or("a time, as 500ms or 10s, or off") }
}

/// DefaultTime2Wait and DefaultTime2Retain: whole seconds, up to an hour (RFC 7143 §13.15, §13.16).
fn parse_seconds(text: &str) -> Result<u16, &'static str> {
    let whole = parse_time(text).filter(|time| time.subsec_nanos() == 0);
    let short = whole.and_then(|time| u16::try_from(time.as_secs()).ok());
    short.filter(|seconds| *seconds <= 3600).ok_or("whole seconds, up to 1h")
}

/// MaxBurstLength and its kin: 512 bytes to 16 MiB less one (RFC 7143 §13.13).
fn parse_segment_len(text: &str) -> Result<u32, &'static str> {
    let (number, unit) = match text.strip_suffix(['K', 'k']) {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |number| (number, 1 << 20)),
    };
    let bytes = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (512..=1 << 24).contains(bytes)).ok_or("512 to 16M bytes")?;
    Ok(bytes.min((1 << 24) - 1))
}

fn parse_address(text: &str) -> Result<IpAddr, &'static str> {
    const EXPECTED: &str = "an address of this machine, as 192.0.2.7 or 2001:db8::7";
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address: IpAddr = inner.parse().map_err(|_| EXPECTED)?;
    // Which one an unspecified address means is what is to be said.
    if address.is_unspecified() || address.is_multicast() { Err(EXPECTED) } else { Ok(address) }
}

fn parse_interface(text: &str) -> Result<InterfaceName, &'static str> {
    InterfaceName::parse(text).ok_or("a network interface of this machine, of 1 to 15 characters")
}

fn parse_secret_file(text: &str) -> Result<SecretSource, &'static str> {
    if text.is_empty() { Err("the path of a file") } else { Ok(SecretSource::File(text.into())) }
}

fn parse_secret_variable(text: &str) -> Result<SecretSource, &'static str> {
    let good = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if good { Ok(SecretSource::Environment(text.to_owned())) } else { Err("the name of a variable") }
}

fn parse_user_name(text: &str) -> Result<String, &'static str> {
    let good = (1..=super::CHAP_LEN_MAX).contains(&text.len()) && !text.contains(char::is_control);
    if good { Ok(text.to_owned()) } else { Err("a name of 1 to 255 bytes") }
}

fn parse_chap_algorithms(text: &str) -> Result<Vec<Algorithm>, &'static str> {
    const EXPECTED: &str = "md5, sha1, sha256 and sha3-256, joined by +";
    let mut list = Vec::new();
    for word in text.split('+') {
        let algorithm = match word {
            "md5" => Algorithm::MD5,
            "sha1" => Algorithm::SHA1,
            "sha256" => Algorithm::SHA256,
            "sha3-256" => Algorithm::SHA3_256,
            _ => return Err(EXPECTED),
        };
        if list.contains(&algorithm) {
            return Err(EXPECTED);
        }
        list.push(algorithm);
    }
    Ok(list)
}

fn parse_iscsi_name(text: &str) -> Result<IscsiName, &'static str> {
    IscsiName::parse(text).map_err(|_| "an iSCSI name: iqn.yyyy-mm.reversed.domain:anything")
}

fn parse_nqn(text: &str) -> Result<Nqn, &'static str> {
    Nqn::parse(text).map_err(|_| "an NQN: nqn.yyyy-mm.reversed.domain:anything")
}

fn parse_host_id(text: &str) -> Result<HostId, &'static str> {
    const EXPECTED: &str = "a UUID that is not zero";
    let digits: Vec<u8> = text.bytes().filter(|&c| c != b'-').collect();
    let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; 16];
    if digits.len() != 32 {
        return Err(EXPECTED);
    }
    let (pairs, _) = digits.as_chunks::<2>();
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low).ok_or(EXPECTED)?;
    }
    HostId::new(bytes).ok_or(EXPECTED)
}
