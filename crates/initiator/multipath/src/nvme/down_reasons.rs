//! Messages of a path: why a controller refused, which side is at fault, and what to change. A message is the
//! problem, a semicolon, then the advice.
//!
//! Invariant: nothing here shows a secret, or unchecked text of the controller.

use nvme::auth::{DhGroup, DhchapPolicy, FailureExplanation, Hash, HostFault};
use nvme::{Completion, Status};
use nvme_tcp::LinkFault;

use super::queue_links::LinkLoss;
use super::settings::Settings;
use crate::DownReason;

/// What went wrong, and the advice behind it.
pub(super) fn text_and_advice(why: &DownReason) -> (String, String) {
    let text = match why {
        DownReason::Refused(text)
        | DownReason::Absent(text)
        | DownReason::Unproven(text)
        | DownReason::CutShort(text)
        | DownReason::Silent(text)
        | DownReason::Lost(text) => text.as_str(),
        DownReason::Unreachable(errno) => {
            return (format!("no connection (errno {})", errno.0), String::new());
        }
        DownReason::Ended => "ended",
    };
    match text.split_once("; ") {
        Some((what, advice)) => (what.to_owned(), advice.to_owned()),
        None => (text.to_owned(), String::new()),
    }
}

pub(super) fn digests_text((header, data): (bool, bool)) -> String {
    match (header, data) {
        (false, false) => "none",
        (true, false) => "header",
        (false, true) => "data",
        (true, true) => "header and data",
    }
    .to_owned()
}

pub(super) fn digests_refused() -> DownReason {
    DownReason::Refused(
        "the controller does not use the digests that were asked for; allow them there, or ask for none"
            .to_owned(),
    )
}

/// The controller says what cannot be.
pub(super) fn standard_violated(what: String) -> DownReason {
    DownReason::Refused(format!("the controller breaks the standard: {what}; report it to its maker"))
}

pub(super) fn tls_required() -> DownReason {
    DownReason::Refused(
        "the controller requires TLS (ASCR); let the secret of this host generate a key for it (concat=yes), or give \
         one (tls_key_file)"
            .to_owned(),
    )
}

pub(super) fn secret_missing(wanted_by_controller: bool) -> DownReason {
    DownReason::Unproven(if wanted_by_controller {
        "the controller wants this host to authenticate, and no secret of this host is set; \
         set the secret that the controller has for this host's NQN"
            .to_owned()
    } else {
        "the controller's secret is set, but this host's is not; set this host's secret too".to_owned()
    })
}

/// A path serves whose namespace told no size before: all of it is asked again.
pub(super) fn namespace_size_unknown() -> DownReason {
    DownReason::Lost(
        "the path became accessible, and the namespace had reported no size before: it is identified again"
            .to_owned(),
    )
}

/// A status as the standard writes it.
pub(super) fn status_text(status: Status) -> String {
    let last = if status.is_do_not_retry() { ", do not retry" } else { "" };
    format!("status {:x}h/{:02x}h{last}", status.status_code_type(), status.code())
}

/// Why a Connect was refused (NVMe Base §6.3).
pub(super) fn connect_refusal(end: Completion, settings: &Settings) -> DownReason {
    let (subsystem, host) = (&settings.subsystem, &settings.host);
    match end.status.without_retry_hints() {
        Status::CONNECT_INVALID_HOST => DownReason::Refused(format!(
            "{subsystem} does not let {host} in; add the host's NQN there, or use the NQN that it knows"
        )),
        Status::CONNECT_INVALID_PARAMETERS => invalid_connect_parameter(end.result, settings),
        Status::CONTROLLER_BUSY => DownReason::Lost(
            "the controller has no room now, its volumes are away for now, or this host is put off after wrong secrets; \
             try again later"
                .to_owned(),
        ),
        Status::CONNECT_RESTART_DISCOVERY | Status::DISCOVER_RESTART => {
            DownReason::Refused(format!("{subsystem} is elsewhere now; discover it again"))
        }
        Status::HOST_ID_INCONSISTENT => DownReason::Refused(
            "the host identifier does not match the host's NQN; give each machine its own pair"
                .to_owned(),
        ),
        Status::KEEP_ALIVE_INVALID => {
            DownReason::Refused("the keep-alive timeout is not accepted; choose another one".to_owned())
        }
        other if other.status_code_type() == 0 && !end.status.is_do_not_retry() => {
            DownReason::Lost(format!("Connect failed: {}", status_text(end.status)))
        }
        _ => DownReason::Refused(format!("Connect is refused: {}; see the controller's log", status_text(end.status))),
    }
}

/// Connect Invalid Parameters names the field: its offset, and whether it is in the data.
fn invalid_connect_parameter(result: u64, settings: &Settings) -> DownReason {
    let (at, in_data) = (result as u16, result & 1 << 16 != 0);
    let text = match (in_data, at) {
        (true, 0) => "the host identifier is refused; it must not be zero, nor another machine's".to_owned(),
        (true, 16) => "the controller number is refused: the association has ended".to_owned(),
        (true, 256) => {
            format!("there is no subsystem {} for this host here; discover what there is", settings.subsystem)
        }
        (true, 512) => format!("the host NQN {} is refused; add it there", settings.host),
        (false, 42) => "the queue number is refused; ask for fewer I/O queues".to_owned(),
        (false, 44) => "the queue's size is refused; ask for a smaller depth".to_owned(),
        (false, 46) => "the queue's attributes are refused; try with SQ flow control enabled".to_owned(),
        (in_data, at) => {
            let place = if in_data { "data" } else { "command" };
            format!("Connect is refused for byte {at} of its {place}")
        }
    };
    match (in_data, at) {
        (true, 16) => DownReason::Lost(text),
        (true, 256) => DownReason::Absent(text),
        _ => DownReason::Refused(text),
    }
}

pub(super) fn authentication_refused(end: Status) -> DownReason {
    match end.without_retry_hints() {
        Status::HOST_PATH_ERROR => closed_during_authentication(),
        _ => DownReason::Unproven(format!(
            "authentication is refused: {}; see the controller's log",
            status_text(end)
        )),
    }
}

/// The connection ended before authentication did: some controllers close before their refusal is out.
pub(super) fn closed_during_authentication() -> DownReason {
    DownReason::CutShort(
        "the controller closed the connection amid authentication; compare the secret that it has for this \
         host with the one that is set here, and see the controller's log"
            .to_owned(),
    )
}

/// We have too much else to compute.
pub(super) fn too_many_computations() -> DownReason {
    DownReason::Lost(
        "this daemon has too much else to compute for authentication at the moment; the path is tried again"
            .to_owned(),
    )
}

/// Whose secret it is.
pub(super) fn authentication_failed(fault: HostFault) -> DownReason {
    DownReason::Unproven(match fault {
        HostFault::Refused(FailureExplanation::FAILED) => {
            "the controller refuses this host: its secret for this host is not the one that is set here; \
             compare the two"
                .to_owned()
        }
        HostFault::Refused(FailureExplanation::CONCATENATION) => {
            "the controller generates no keys for TLS here (concat), or does not authenticate without; it must allow \
             TLS at this address, and not require it"
                .to_owned()
        }
        HostFault::Refused(explanation) => {
            format!("the controller refuses this host: {explanation}; compare hashes and groups of both")
        }
        HostFault::Wrong(FailureExplanation::FAILED) => {
            "the controller does not prove itself: its secret is not the one that is set here for it; \
             compare the two"
                .to_owned()
        }
        HostFault::Wrong(explanation) => {
            format!("this host refuses the controller: {explanation}; compare hashes and groups of both")
        }
    })
}

pub(super) fn hash_name(hash: Hash) -> &'static str {
    match hash {
        Hash::Sha256 => "SHA-256",
        Hash::Sha384 => "SHA-384",
        Hash::Sha512 => "SHA-512",
    }
}

pub(super) fn dh_group_name(group: DhGroup) -> &'static str {
    match group {
        DhGroup::Null => "none",
        DhGroup::Ffdhe2048 => "ffdhe2048",
        DhGroup::Ffdhe3072 => "ffdhe3072",
        DhGroup::Ffdhe4096 => "ffdhe4096",
        DhGroup::Ffdhe6144 => "ffdhe6144",
        DhGroup::Ffdhe8192 => "ffdhe8192",
    }
}

pub(super) fn hash_names(policy: &DhchapPolicy) -> String {
    policy.hashes.iter().map(|&one| hash_name(one)).collect::<Vec<_>>().join(", ")
}

pub(super) fn dh_group_names(policy: &DhchapPolicy) -> String {
    policy.groups.iter().map(|&one| dh_group_name(one)).collect::<Vec<_>>().join(", ")
}

/// What kind of message of DH-HMAC-CHAP it is (NVMe Base §8.3.5.5).
pub(super) fn auth_message_name(message: &[u8]) -> &'static str {
    match message {
        [1, 1, ..] => "DH-HMAC-CHAP_Challenge",
        [1, 3, ..] => "DH-HMAC-CHAP_Success1",
        [0, 0xf1, ..] => "AUTH_Failure1",
        _ => "an unknown message",
    }
}

/// Names of the hash and the Diffie-Hellman group that a DH-HMAC-CHAP challenge chose.
pub(super) fn challenge_parameters(message: &[u8]) -> Option<(String, String)> {
    let [1, 1, ..] = message else { return None };
    let (hash_id, group_id) = (*message.get(8)?, *message.get(9)?);
    let hash = Hash::from_id(hash_id).map_or(format!("unknown ({hash_id})"), |one| hash_name(one).to_owned());
    let group = DhGroup::from_id(group_id)
        .map_or(format!("unknown ({group_id})"), |one| dh_group_name(one).to_owned());
    Some((hash, group))
}

/// The first word was not even answered.
pub(super) fn closed_before_ic_resp() -> DownReason {
    DownReason::Lost(
        "the controller closed the connection before it answered ICReq; is it an NVMe/TCP port?".to_owned(),
    )
}

/// Whether a failure of TLS is one of its keys: what alerts servers end a handshake with.
fn is_tls_key_fault(fault: &tls::TlsFault) -> bool {
    let alerts = ["handshake failure", "illegal parameter", "decrypt error", "unknown psk identity"];
    match fault {
        tls::TlsFault::UnknownIdentity(_) | tls::TlsFault::NoKey | tls::TlsFault::WrongKey(_) => true,
        tls::TlsFault::Protocol(reason) => alerts.iter().any(|alert| reason.ends_with(alert)),
        tls::TlsFault::Closed | tls::TlsFault::Truncated | tls::TlsFault::Flood => false,
    }
}

/// What a break means.
pub(super) fn link_lost(how: LinkLoss) -> DownReason {
    let silent = [LinkFault::HandshakeTimeout, LinkFault::PduTimeout, LinkFault::Stalled];
    let why = match &how {
        LinkLoss::LinkFault(violation) if silent.contains(violation) => DownReason::Silent,
        LinkLoss::LinkFault(LinkFault::Tls(fault)) if is_tls_key_fault(fault) => DownReason::Unproven,
        _ => DownReason::Lost,
    };
    why(match how {
        LinkLoss::Closed => "the controller closed the connection".to_owned(),
        LinkLoss::Socket(errno) => format!("the connection failed (errno {})", errno.0),
        LinkLoss::LinkFault(violation) => match violation {
            LinkFault::Fatal(fatal) => {
                format!("the controller broke the protocol (FES {:02x}h)", fatal.fes.0)
            }
            LinkFault::Terminated(fatal) => {
                format!("the controller says that we broke the protocol (FES {:02x}h)", fatal.fes.0)
            }
            LinkFault::HandshakeTimeout => {
                "the controller did not answer ICReq; is it an NVMe/TCP port?".to_owned()
            }
            LinkFault::PduTimeout => "the controller began a PDU and did not end it".to_owned(),
            LinkFault::Stalled => "the controller does not read what is sent to it".to_owned(),
            LinkFault::Tls(fault) => format!(
                "TLS failed: {fault}; check that the controller has this key for this host, and how it derives it"
            ),
            LinkFault::TlsRequired | LinkFault::TlsNotComputed => {
                "the TLS handshake was not computed".to_owned()
            }
            LinkFault::TooManyCommands => "more commands than the queue has entries".to_owned(),
        },
    })
}
