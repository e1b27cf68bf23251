//! What a configuration changes, for people: one line for each change, then who is disturbed, and why.

use std::fmt::Write as _;

use control::report::plan::{ChangeReport, DisturbanceReport, KeyReport, PlanReport};

/// The text of a plan that was looked at or applied.
pub fn text(report: &PlanReport) -> String {
    let mut out = String::new();
    if report.changes.is_empty() {
        out.push_str("nothing changes\n");
    }
    report.changes.iter().for_each(|change| line(&mut out, change));
    if !report.refused.is_empty() {
        out.push_str("it cannot be applied while the daemon runs:\n");
        for why in &report.refused {
            let _ = writeln!(out, "  {why}");
        }
    }
    let (ends, stays): (Vec<_>, Vec<_>) = report.disturbed.iter().partition(|one| one.ends);
    let end = if report.applied { "ended" } else { "would end" };
    let lose = if report.applied { "lost a volume" } else { "would lose a volume" };
    sessions(&mut out, &ends, end);
    sessions(&mut out, &stays, lose);
    if report.disturbed.is_empty() && !report.changes.is_empty() {
        let word = if report.applied { "was" } else { "would be" };
        let _ = writeln!(out, "no connection {word} disturbed");
    }
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    if report.applied {
        out.push_str("applied\n");
    }
    out
}

fn line(out: &mut String, change: &ChangeReport) {
    let _ = write!(out, "{} {} {}", change.action, change.item, change.name);
    let keys: Vec<String> = change.keys.iter().map(key).collect();
    if !keys.is_empty() {
        let _ = write!(out, ": {}", keys.join("; "));
    }
    let effect = match change.effect.as_str() {
        "none" | "may-end-connections" => None,
        "later-connections" => Some("for later connections"),
        "restart" => Some("needs a restart"),
        other => Some(other),
    };
    let notes: Vec<&str> = effect.into_iter().chain(change.note.as_deref()).collect();
    if !notes.is_empty() {
        let _ = write!(out, " ({})", notes.join(": "));
    }
    out.push('\n');
}

fn key(key: &KeyReport) -> String {
    match (&key.before, &key.after) {
        (Some(before), Some(after)) => format!("{} {before} -> {after}", key.key),
        _ => key.key.clone(),
    }
}

/// Sessions that are disturbed in one way, with the hosts that they are of.
fn sessions(out: &mut String, list: &[&DisturbanceReport], what: &str) {
    if list.is_empty() {
        return;
    }
    let connections: usize = list.iter().map(|one| one.connections).sum();
    let _ = writeln!(out, "sessions that {what}: {} ({connections} connections)", list.len());
    for one in list {
        let host = one.host.as_ref().map(|host| format!(" (host {host})")).unwrap_or_default();
        let target = one.target.as_deref().unwrap_or("discovery");
        let _ = writeln!(out, "  {} {}{host} at {target}: {}", one.protocol, one.initiator, one.why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_changes_and_whom_it_disturbs() {
        let key = KeyReport { key: "open".into(), before: Some("true".into()), after: Some("false".into()) };
        let change = ChangeReport {
            action: "change".into(),
            item: "target".into(),
            name: "iqn.x:a".into(),
            keys: vec![key, KeyReport { key: "chap".into(), before: None, after: None }],
            effect: "may-end-connections".into(),
            note: None,
        };
        let disturbed = DisturbanceReport {
            session: 1,
            protocol: "iscsi".into(),
            initiator: "iqn.x:h".into(),
            host: Some("db".into()),
            target: Some("iqn.x:a".into()),
            connections: 2,
            ends: true,
            why: "gone".into(),
        };
        let mut plan =
            PlanReport { changes: vec![change], disturbed: vec![disturbed], ..PlanReport::default() };
        assert_eq!(
            text(&plan),
            "change target iqn.x:a: open true -> false; chap\nsessions that would end: 1 (2 connections)\n  \
             iscsi iqn.x:h (host db) at iqn.x:a: gone\n"
        );
        plan.disturbed.clear();
        plan.applied = true;
        assert!(text(&plan).ends_with("no connection was disturbed\napplied\n"), "{}", text(&plan));
        assert_eq!(text(&PlanReport::default()), "nothing changes\n");
    }
}
