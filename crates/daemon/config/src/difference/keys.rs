//! Which keys of an item have changed, and what each means for a daemon that runs.

use std::fmt::{Debug, Display};

use super::Effect;
use crate::{
    limit_keys::LimitKeys,
    plan::{
        Auth, ControllerGrants, DaemonLimits, Host, Negotiation, Portal, Subsystem, Target, TcpOptions,
        Volume,
    },
    size,
    spec::{Spec, VolumeSource},
};

/// A key with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The key, as the configuration has it.
    pub key: &'static str,
    /// Its value before; `None`: it is not shown, since it is a secret or long.
    pub before: Option<String>,
    /// Its value now.
    pub after: Option<String>,
    /// What that means.
    pub effect: Effect,
}

/// How items of a list are judged.
pub(super) struct Rules<T> {
    /// What a new one means.
    pub(super) added: Effect,
    /// The keys that differ.
    pub(super) of: fn(&T, &T) -> Vec<KeyChange>,
}

/// The keys that have changed, as they are found.
#[derive(Default)]
struct Found(Vec<KeyChange>);

impl Found {
    /// A key whose values are shown.
    fn shown<T: PartialEq>(
        &mut self,
        key: &'static str,
        (old, new): (&T, &T),
        effect: Effect,
        show: impl Fn(&T) -> String,
    ) {
        if old != new {
            self.0.push(KeyChange { key, before: Some(show(old)), after: Some(show(new)), effect });
        }
    }

    /// The same, of a value that has a text.
    fn plain<T: PartialEq + Display>(&mut self, key: &'static str, pair: (&T, &T), effect: Effect) {
        self.shown(key, pair, effect, T::to_string);
    }

    /// The same, of one of our enumerations.
    fn word<T: PartialEq + Debug>(&mut self, key: &'static str, pair: (&T, &T), effect: Effect) {
        self.shown(key, pair, effect, |value| format!("{value:?}").to_lowercase());
    }

    /// A key whose values are not shown.
    fn hidden<T: PartialEq>(&mut self, key: &'static str, (old, new): (&T, &T), effect: Effect) {
        if old != new {
            self.0.push(KeyChange { key, before: None, after: None, effect });
        }
    }
}

fn list<T: Display>(values: &[T]) -> String {
    let all: Vec<String> = values.iter().map(ToString::to_string).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

fn or_none<T: Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

// Each function names all fields of what it compares: one that is added must be compared too, or nothing compiles.

const REOPENED: Effect = Effect::Restart("the volume would have to be opened again");

pub(super) fn volume(old: &Volume, new: &Volume) -> Vec<KeyChange> {
    let mut found = Found::default();
    let Volume { name: _, spec: a, origin: _ } = old;
    let b = &new.spec;
    #[rustfmt::skip]
    let Spec {
        source: _, size: _, block: _, physical: _, read_only: _, uuid: _, cache: _, direct: _, thin: _, removable: _,
        movable: _, thin_threshold: _, task_aborted_status: _, sanitize_rate: _, limits: _, persist: _,
    } = a;
    found.hidden("name", (&old.origin, &new.origin), Effect::Restart("`volume create` made it"));
    found.shown("source", (&a.source, &b.source), REOPENED, |source| {
        source.display_location().unwrap_or_else(|| source.kind().to_owned())
    });
    found.shown("size", (&a.size, &b.size), resized(a, b), |bytes| {
        bytes.map_or_else(|| "of the file".to_owned(), size::format_human)
    });
    found.plain("block", (&a.block, &b.block), REOPENED);
    found.shown("physical", (&a.physical, &b.physical), REOPENED, or_none);
    found.plain("ro", (&a.read_only, &b.read_only), REOPENED);
    found.shown("uuid", (&a.uuid, &b.uuid), REOPENED, or_none);
    found.plain("cache", (&a.cache, &b.cache), REOPENED);
    found.plain("direct", (&a.direct, &b.direct), REOPENED);
    found.plain("thin", (&a.thin, &b.thin), REOPENED);
    found.shown("thin_threshold", (&a.thin_threshold, &b.thin_threshold), REOPENED, |percent| {
        percent.map_or_else(|| "none".to_owned(), |percent| format!("{percent}%"))
    });
    found.plain("removable", (&a.removable, &b.removable), REOPENED);
    found.plain("movable", (&a.movable, &b.movable), REOPENED);
    found.plain("tas", (&a.task_aborted_status, &b.task_aborted_status), REOPENED);
    found.shown("sanitize_rate", (&a.sanitize_rate, &b.sanitize_rate), REOPENED, or_none);
    rate_limits(&mut found, (&a.limits, &b.limits));
    found.plain("persist", (&a.persist, &b.persist), REOPENED);
    found.0
}

/// Limits of operations and bytes per second. They hold at once.
fn rate_limits(found: &mut Found, (old, new): (&LimitKeys, &LimitKeys)) {
    let LimitKeys { iops_limit: _, iops_burst: _, bandwidth_limit: _, bandwidth_burst: _ } = old;
    let bytes = |value: &Option<u64>| value.map_or_else(|| "none".to_owned(), size::format_human);
    found.shown("iops_limit", (&old.iops_limit, &new.iops_limit), Effect::None, or_none);
    found.shown("iops_burst", (&old.iops_burst, &new.iops_burst), Effect::None, or_none);
    found.shown("bandwidth_limit", (&old.bandwidth_limit, &new.bandwidth_limit), Effect::None, bytes);
    found.shown("bandwidth_burst", (&old.bandwidth_burst, &new.bandwidth_burst), Effect::None, bytes);
}

/// What another size means. A file that is larger than its configuration says keeps its size, at a start too.
fn resized(old: &Spec, new: &Spec) -> Effect {
    match (&old.source, old.size, new.size) {
        (VolumeSource::File(_), _, _) => Effect::None,
        (VolumeSource::Ram | VolumeSource::Null, Some(before), Some(after)) if after > before => Effect::None,
        (VolumeSource::Ram | VolumeSource::Null, _, _) => {
            Effect::Restart("memory is not made smaller: its blocks would be lost")
        }
        (
            VolumeSource::Device(_)
            | VolumeSource::Remote(_)
            | VolumeSource::Stripe(_)
            | VolumeSource::Rbd(_)
            | VolumeSource::Nbd(_),
            _,
            _,
        ) => REOPENED,
    }
}

pub(super) fn portal(old: &Portal, new: &Portal) -> Vec<KeyChange> {
    let mut found = Found::default();
    let Portal { protocol: _, address: _, tag: _, digests: _, tls: _, announce: _, tcp: _ } = old;
    found.plain("tag", (&old.tag, &new.tag), Effect::MayEnd);
    found.plain("header_digest", (&old.digests.0, &new.digests.0), Effect::Later);
    found.plain("data_digest", (&old.digests.1, &new.digests.1), Effect::Later);
    found.word("tls", (&old.tls, &new.tls), Effect::Later);
    found.plain("announce", (&old.announce, &new.announce), Effect::None);
    let (a, b) = (&old.tcp, &new.tcp);
    let TcpOptions { congestion: _, send_buffer: _, receive_buffer: _, dscp: _, keepalive: _ } = a;
    found.shown("congestion", (&a.congestion, &b.congestion), taken_back(&b.congestion), or_none);
    found.shown("send_buffer", (&a.send_buffer, &b.send_buffer), taken_back(&b.send_buffer), or_none);
    let buffers = (&a.receive_buffer, &b.receive_buffer);
    found.shown("receive_buffer", buffers, taken_back(&b.receive_buffer), or_none);
    found.shown("dscp", (&a.dscp, &b.dscp), Effect::Later, or_none);
    found.shown("keepalive", (&a.keepalive, &b.keepalive), Effect::Later, |time| {
        time.map_or_else(|| "none".to_owned(), |time| time.as_secs().to_string())
    });
    found.0
}

/// What another value of a socket's option means; `None`: the system's own, which a socket cannot be given again.
fn taken_back<T>(new: &Option<T>) -> Effect {
    match new {
        Some(_) => Effect::Later,
        None => Effect::Restart("only a new socket has the system's own value"),
    }
}

pub(super) fn target(old: &Target, new: &Target) -> Vec<KeyChange> {
    let mut found = Found::default();
    #[rustfmt::skip]
    let Target {
        name: _, is_default: _, alias: _, portals: _, listeners: _, luns: _, open: _, negotiation: _, commands: _,
        inquiry: _, explicit_alua: _, redirect: _, sent_on: _, auth: _, nop_timeout: _,
    } = old;
    found.hidden("name", (&old.is_default, &new.is_default), Effect::None);
    found.shown("alias", (&old.alias, &new.alias), Effect::None, or_none);
    found.shown("portals", (&old.portals, &new.portals), Effect::MayEnd, |tags| list(tags));
    found.hidden("portals", (&old.listeners, &new.listeners), Effect::MayEnd);
    found.shown("luns", (&old.luns, &new.luns), Effect::MayEnd, |luns| {
        let lun = |lun: &crate::plan::Lun| {
            format!("{} {}{}", lun.lun, lun.volume, if lun.read_only { " ro" } else { "" })
        };
        list(&luns.iter().map(lun).collect::<Vec<_>>())
    });
    found.plain("open", (&old.open, &new.open), if new.open { Effect::None } else { Effect::MayEnd });
    let (a, b) = (&old.negotiation, &new.negotiation);
    #[rustfmt::skip]
    let Negotiation {
        header_digest: _, data_digest: _, max_connections: _, initial_r2t: _, immediate_data: _, first_burst: _,
        max_burst: _, max_receive: _, max_outstanding_r2t: _,
    } = a;
    found.word("header_digest", (&a.header_digest, &b.header_digest), Effect::Later);
    found.word("data_digest", (&a.data_digest, &b.data_digest), Effect::Later);
    found.plain("max_connections", (&a.max_connections, &b.max_connections), Effect::Later);
    found.plain("initial_r2t", (&a.initial_r2t, &b.initial_r2t), Effect::Later);
    found.plain("immediate_data", (&a.immediate_data, &b.immediate_data), Effect::Later);
    found.plain("first_burst", (&a.first_burst, &b.first_burst), Effect::Later);
    found.plain("max_burst", (&a.max_burst, &b.max_burst), Effect::Later);
    found.plain("max_receive", (&a.max_receive, &b.max_receive), Effect::Later);
    found.plain("max_outstanding_r2t", (&a.max_outstanding_r2t, &b.max_outstanding_r2t), Effect::Later);
    found.plain("commands", (&old.commands, &new.commands), Effect::Later);
    found.plain("vendor", (&old.inquiry.vendor, &new.inquiry.vendor), Effect::Later);
    found.plain("product", (&old.inquiry.product, &new.inquiry.product), Effect::Later);
    found.plain("explicit_alua", (&old.explicit_alua, &new.explicit_alua), Effect::None);
    found.hidden("redirect", (&old.redirect, &new.redirect), Effect::Later);
    found.hidden("redirect", (&old.sent_on, &new.sent_on), Effect::Later);
    found.hidden("chap", (&old.auth, &new.auth), Effect::MayEnd);
    found.hidden("nop_timeout", (&old.nop_timeout, &new.nop_timeout), Effect::Later);
    found.0
}

pub(super) fn subsystem(old: &Subsystem, new: &Subsystem) -> Vec<KeyChange> {
    let mut found = Found::default();
    #[rustfmt::skip]
    let Subsystem {
        nqn: _, portals: _, namespaces: _, open: _, serial: _, model: _, grants: _, tls: _,
    } = old;
    found.shown("portals", (&old.portals, &new.portals), Effect::MayEnd, |tags| list(tags));
    found.shown("namespaces", (&old.namespaces, &new.namespaces), Effect::MayEnd, |namespaces| {
        let namespace = |one: &crate::plan::Namespace| {
            let ro = if one.read_only { " ro" } else { "" };
            format!("{} {}{ro} ana_group {}", one.nsid, one.volume, one.ana_group)
        };
        list(&namespaces.iter().map(namespace).collect::<Vec<_>>())
    });
    found.plain("open", (&old.open, &new.open), if new.open { Effect::None } else { Effect::MayEnd });
    found.shown("serial", (&old.serial, &new.serial), Effect::Later, or_none);
    found.plain("model", (&old.model, &new.model), Effect::Later);
    let (a, b) = (&old.grants, &new.grants);
    let ControllerGrants { controllers: _, queues: _, queue_depth: _, in_capsule: _, max_transfer: _ } = a;
    found.plain("controllers", (&a.controllers, &b.controllers), Effect::Later);
    found.plain("queues", (&a.queues, &b.queues), Effect::Later);
    found.plain("queue_depth", (&a.queue_depth, &b.queue_depth), Effect::Later);
    found.plain("in_capsule", (&a.in_capsule, &b.in_capsule), Effect::Later);
    found.hidden("max_transfer", (&a.max_transfer, &b.max_transfer), Effect::Later);
    found.word("tls", (&old.tls, &new.tls), Effect::Later);
    found.0
}

pub(super) fn host(old: &Host, new: &Host) -> Vec<KeyChange> {
    let mut found = Found::default();
    #[rustfmt::skip]
    let Host {
        name: _, iqns: _, sources: _, chap: _, grants: _, nqns: _, hostid: _, dhchap: _, dhchap_controller: _,
        tls_key: _, both: _, blocked: _, limits: _, subsystem_grants: _,
    } = old;
    found.shown("iqn", (&old.iqns, &new.iqns), Effect::MayEnd, |names| list(names));
    found.shown("nqn", (&old.nqns, &new.nqns), Effect::MayEnd, |names| list(names));
    found.hidden("hostid", (&old.hostid, &new.hostid), Effect::MayEnd);
    found.shown("sources", (&old.sources, &new.sources), Effect::MayEnd, |networks| list(networks));
    found.hidden("access", (&old.grants, &new.grants), Effect::MayEnd);
    found.hidden("access", (&old.subsystem_grants, &new.subsystem_grants), Effect::MayEnd);
    found.plain("both", (&old.both, &new.both), Effect::None);
    found.plain("blocked", (&old.blocked, &new.blocked), Effect::MayEnd);
    rate_limits(&mut found, (&old.limits, &new.limits));
    found.hidden("chap", (&old.chap, &new.chap), Effect::MayEnd);
    found.hidden("dhchap_key_file", (&old.dhchap, &new.dhchap), Effect::MayEnd);
    let keys = (&old.dhchap_controller, &new.dhchap_controller);
    found.hidden("dhchap_controller_key_file", keys, Effect::Later);
    found.hidden("tls_key_file", (&old.tls_key, &new.tls_key), Effect::Later);
    found.0
}

pub(super) fn auth((old, new): &(Auth, Auth)) -> Vec<KeyChange> {
    let mut found = Found::default();
    #[rustfmt::skip]
    let Auth {
        chap: _, discovery: _, methods: _, hashes: _, mutual: _, dhchap: _, dhchap_controller: _, proofs: _,
        dhchap_discovery: _, dhchap_discovery_key: _, tls_key: _, tls_derivations: _,
    } = old;
    let keys = (&old.dhchap_controller, &new.dhchap_controller);
    found.hidden("dhchap_controller_key_file", keys, Effect::Later);
    found.hidden("chap", (&old.chap, &new.chap), Effect::MayEnd);
    found.hidden("discovery", (&old.discovery, &new.discovery), Effect::MayEnd);
    found.hidden("methods", (&old.methods, &new.methods), Effect::MayEnd);
    found.hidden("hashes", (&old.hashes, &new.hashes), Effect::Later);
    found.plain("mutual", (&old.mutual, &new.mutual), Effect::Later);
    found.hidden("dhchap_key_file", (&old.dhchap, &new.dhchap), Effect::MayEnd);
    found.hidden("dhchap_hashes", (&old.proofs.hashes, &new.proofs.hashes), Effect::Later);
    found.hidden("dhchap_groups", (&old.proofs.groups, &new.proofs.groups), Effect::Later);
    found.plain("dhchap_discovery", (&old.dhchap_discovery, &new.dhchap_discovery), Effect::MayEnd);
    let keys = (&old.dhchap_discovery_key, &new.dhchap_discovery_key);
    found.hidden("dhchap_discovery_key_file", keys, Effect::MayEnd);
    found.hidden("tls_key_file", (&old.tls_key, &new.tls_key), Effect::Later);
    found.hidden("tls_derivations", (&old.tls_derivations, &new.tls_derivations), Effect::Later);
    found.0
}

pub(super) fn limits((old, new): &(DaemonLimits, DaemonLimits)) -> Vec<KeyChange> {
    #[rustfmt::skip]
    let DaemonLimits {
        nop_interval: _, nop_timeout: _, memory: _, sessions: _, login_timeout: _, keep_alive_min: _,
        keep_alive_max: _, discovery_per_source: _,
    } = old;
    let seconds = |time: &std::time::Duration| time.as_secs_f64().to_string();
    let mut found = Found::default();
    found.shown("nop_interval", (&old.nop_interval, &new.nop_interval), Effect::Later, seconds);
    found.shown("nop_timeout", (&old.nop_timeout, &new.nop_timeout), Effect::Later, seconds);
    let why = "the memory of each core is taken at start";
    found.shown("memory", (&old.memory, &new.memory), Effect::Restart(why), |bytes| {
        size::format_human(*bytes)
    });
    found.shown("sessions", (&old.sessions, &new.sessions), Effect::Later, or_none);
    found.shown("login_timeout", (&old.login_timeout, &new.login_timeout), Effect::Later, seconds);
    found.shown("keep_alive_min", (&old.keep_alive_min, &new.keep_alive_min), Effect::Later, seconds);
    found.shown("keep_alive_max", (&old.keep_alive_max, &new.keep_alive_max), Effect::Later, |time| {
        time.as_ref().map_or_else(|| "none".to_owned(), seconds)
    });
    let per_source = (&old.discovery_per_source, &new.discovery_per_source);
    found.plain("discovery_per_source", per_source, Effect::Later);
    found.0
}
