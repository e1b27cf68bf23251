//! The gateways of a group, as text.

use control::report::GatewayGroupReport;

use super::{DisplayText, Terminal, or_dash, render_table};

/// What `gateway list`, `gateway drain` and `gateway fence` say.
pub fn group_text(terminal: Terminal, report: &GatewayGroupReport) -> DisplayText {
    let gateways = report.gateways.iter().map(|one| {
        [
            one.gateway.clone(),
            one.instance.to_string(),
            one.address.clone(),
            one.state.clone(),
            if one.linked { "yes" } else { "no" }.to_owned(),
            one.volumes.to_string(),
        ]
    });
    let head = ["GATEWAY", "INSTANCE", "ADDRESS", "STATE", "LINKED", "VOLUMES"];
    let mut text = render_table(terminal, head, gateways.collect(), "no gateways are known yet");
    let volumes = report.volumes.iter().map(|one| {
        [
            one.volume.clone(),
            one.group.to_string(),
            or_dash(one.owner.as_ref()),
            one.term.to_string(),
            or_dash(one.path.as_ref()),
        ]
    });
    text += DisplayText::escaped("\n");
    let head = ["VOLUME", "ANA GROUP", "OWNER", "TERM", "PATH"];
    text += render_table(terminal, head, volumes.collect(), "no volumes");
    let said = match report.drained {
        Some(true) => "\nthis gateway owns nothing\n",
        Some(false) => {
            "\nthis gateway still owns volumes, and goes on handing them over; is another gateway linked?\n"
        }
        None => "",
    };
    text += DisplayText::escaped(said);
    text
}

/// A group in a line.
pub fn summary(report: &GatewayGroupReport) -> String {
    let others = report.gateways.iter().filter(|one| one.state != "expelled");
    let linked = others.filter(|one| one.linked).map(|one| one.gateway.as_str());
    let owned = report.volumes.iter().filter(|one| one.owner.as_deref() == Some(&report.gateway)).count();
    format!(
        "{}: gateway {} owns {owned} of {} volumes; linked: {}",
        report.group,
        report.gateway,
        report.volumes.len(),
        linked.collect::<Vec<_>>().join(", ")
    )
}
