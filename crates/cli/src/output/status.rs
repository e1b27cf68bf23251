//! The daemon's state as a card, below a line that says whether all is well.

use control::report::{SandboxReport, StatusReport};

use super::layout::{DisplayText, Emphasis, Terminal, render_card};
use super::{format_duration, gateway};

/// Whether all is well, in one line; else what is not, the worst first.
pub fn health_line(status: &StatusReport) -> String {
    let Some(worst) = status.problems.first() else { return "all is well".to_owned() };
    let more = match status.problems.len() - 1 {
        0 => String::new(),
        1 => " (and 1 more problem)".to_owned(),
        more => format!(" (and {more} more problems)"),
    };
    format!("not well: {}: {}{more}", worst.subject, worst.why)
}

/// What `status` shows.
pub(super) fn status_card(terminal: Terminal, status: &StatusReport) -> DisplayText {
    let listeners: Vec<String> = status
        .listeners
        .iter()
        .map(|listener| format!("{} {}", listener.protocol, listener.address))
        .collect();
    let emphasis = if status.problems.is_empty() { Emphasis::Good } else { Emphasis::Problem };
    let mut out = terminal.paragraph(Some(emphasis), &health_line(status), 2);
    for one in &status.problems {
        out += terminal.paragraph(None, &format!("  {}  {}: {}", one.kind, one.subject, one.why), 4);
        out += terminal.paragraph(None, &format!("    fix: {}", one.next), 9);
    }
    out += DisplayText::escaped("\n");
    out += render_card(
        terminal,
        &[
            ("version", Some(status.version.clone())),
            ("process", Some(status.pid.to_string())),
            ("up", Some(format_duration(status.uptime_seconds))),
            ("node", status.node.clone()),
            ("io", Some(format!("{}, {} shards", status.io, status.shards))),
            ("listening", Some(listeners.join(", "))),
            ("volumes", Some(status.volumes.to_string())),
            ("targets", Some(status.targets.to_string())),
            ("subsystems", Some(status.subsystems.to_string())),
            ("sessions", Some(format!("{}, {} connections", status.sessions, status.connections))),
            ("attachments", (status.attachments > 0).then(|| status.attachments.to_string())),
            ("state", Some(status.state.clone())),
            ("sandbox", Some(sandbox_text(&status.sandbox))),
            ("group", status.group.as_ref().map(gateway::summary)),
        ],
    );
    out
}

/// What is restricted, and why the rest is not.
fn sandbox_text(sandbox: &SandboxReport) -> String {
    let files = sandbox.landlock_abi.map(|abi| {
        let what = if sandbox.ports { "files and ports" } else { "files" };
        format!("{what} (landlock {abi})")
    });
    let calls = sandbox.seccomp.then(|| "system calls (seccomp)".to_owned());
    let restricted: Vec<String> = files.into_iter().chain(calls).collect();
    let restricted = if restricted.is_empty() { "off".to_owned() } else { restricted.join(", ") };
    [vec![restricted], sandbox.lacks.clone()].concat().join("; ")
}
