//! That no secret of DH-HMAC-CHAP serves both directions (NVMe Base §8.3.5.5.7).

use std::collections::HashSet;

use crate::{
    dhchap::CONTROLLER_KEY,
    diagnostic::{Located, Sink},
    draft::{AuthDraft, HostDraft},
};

/// A key of the controller is used only where the host proves itself too, and never for both directions (NVMe Base
/// §8.3.5.5.7): else a host that knows it could pass for the controller, and the other way round.
pub fn check_controller_keys(hosts: &[Located<HostDraft>], auth: &Located<AuthDraft>, sink: &Sink) {
    let common = &auth.value.auth;
    let discovery = common.dhchap_discovery_key.as_ref();
    let all = hosts.iter().filter_map(|one| one.value.host.dhchap.as_ref());
    let of_hosts: HashSet<&[u8]> =
        all.chain(&common.dhchap).chain(discovery).map(|secret| secret.expose()).collect();
    let drafts = hosts.iter().map(|one| (&one.value.host, &one.at));
    for (host, at) in drafts.filter(|(host, _)| host.may_use_nvme()) {
        let own = host.dhchap.as_ref().or(common.dhchap.as_ref());
        let controller = host.dhchap_controller.as_ref().or(common.dhchap_controller.as_ref());
        let name = &host.name;
        if host.dhchap_controller.is_some() && own.or(discovery).is_none() {
            let why = format!("{CONTROLLER_KEY} of host \"{name}\" has no effect without dhchap_key_file");
            sink.note_error(at, why);
        }
        if let (Some(own), Some(controller)) = (own, controller)
            && own.constant_time_eq(controller)
        {
            let why = format!(
                "host \"{name}\" and its controllers have the same DH-HMAC-CHAP secret; {DIFFERENT_KEY_ADVICE}"
            );
            sink.note_error(at, why);
        } else if host.dhchap_controller.as_ref().is_some_and(|key| of_hosts.contains(key.expose())) {
            let why = format!(
                "{CONTROLLER_KEY} of host \"{name}\" holds the secret of another host or of discovery; \
                 {DIFFERENT_KEY_ADVICE}"
            );
            sink.note_error(at, why);
        }
    }
    if let Some(controller) = &common.dhchap_controller {
        if of_hosts.is_empty() {
            let why = format!("{CONTROLLER_KEY} in [auth] has no effect: no host has a dhchap_key_file");
            sink.note_error(&auth.at, why);
        }
        if of_hosts.contains(controller.expose()) {
            let why = format!("{CONTROLLER_KEY} in [auth] holds the secret of hosts; {DIFFERENT_KEY_ADVICE}");
            sink.note_error(&auth.at, why);
        }
    }
}

const DIFFERENT_KEY_ADVICE: &str = "make another one with `blockwire key generate FILE`";
