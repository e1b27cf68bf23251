//! Metrics of a gateway's group: who owns what, and what is forwarded.

use crate::exposition::{Exposition, MetricKind};
use control::report::GatewayGroupReport;

/// What a counter counts in a report.
type Count = fn(&GatewayGroupReport) -> u64;

/// Nothing of a daemon that is no gateway.
pub fn write_group(out: &mut Exposition, group: Option<&GatewayGroupReport>) {
    let Some(group) = group else { return };
    let help = "1 for the gateway that owns a volume of the group; 0: none does now.";
    out.begin_family("blockwire_gateway_owner", MetricKind::Gauge, help);
    for one in &group.volumes {
        match one.owner.as_deref() {
            Some(owner) => out.push_sample(&[("volume", &one.volume), ("gateway", owner)], 1),
            None => out.push_sample(&[("volume", &one.volume), ("gateway", "none")], 0),
        }
    }
    let help = "Owners that the ANA group of a volume has had.";
    out.begin_family("blockwire_gateway_terms", MetricKind::Counter, help);
    for one in &group.volumes {
        out.push_sample(&[("volume", &one.volume)], one.term);
    }
    let help = "1: there is a link to this gateway of the group.";
    out.begin_family("blockwire_gateway_linked", MetricKind::Gauge, help);
    for one in group.gateways.iter().filter(|one| one.state != "expelled") {
        out.push_sample(&[("gateway", &one.gateway)], u8::from(one.linked));
    }
    let counters: [(&str, &str, Count); 6] = [
        (
            "blockwire_gateway_submitted",
            "Commands of own hosts on volumes that were not served at once here.",
            |one| one.counters.submitted,
        ),
        ("blockwire_gateway_forwarded", "Commands sent to owners.", |one| one.counters.forwarded),
        (
            "blockwire_gateway_executed",
            "Commands executed for other gateways, or after they had waited.",
            |one| one.counters.executed,
        ),
        (
            "blockwire_gateway_path_errors",
            "Commands of own hosts that ended with an error of the path.",
            |one| one.counters.path_errors,
        ),
        ("blockwire_gateway_groups_opened", "Groups of volumes that it has begun to serve.", |one| {
            one.counters.opened
        }),
        (
            "blockwire_gateway_groups_closed",
            "Groups of volumes that it has given away in good order.",
            |one| one.counters.closed,
        ),
    ];
    for (name, help, count) in counters {
        out.begin_family(name, MetricKind::Counter, help);
        out.push_sample(&[], count(group));
    }
}
