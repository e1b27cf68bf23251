//! What is wrong with the daemon of this machine and with the machine, and what to do about it.
//!
//! Invariant: it looks and changes nothing. Each check gives findings; a check that cannot be made says so.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod flight_report;
mod machine;
mod recorder;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use control::{Answer, Request, client, report::StatusReport};
use engine::serve::{
    args::ServeArgs,
    check::{CheckedConfiguration, check_configuration},
};
pub use flight_report::{FlightEventReport, FlightReport, ShardRecordReport, UnreadableRecordReport};
use process::paths::DefaultPaths;

/// `doctor` without a URL
#[derive(Debug, Serialize, JsonSchema)]
pub struct DiagnosisReport {
    /// No finding is a problem.
    pub healthy: bool,
    /// What is wrong, or may be; the worst first.
    pub findings: Vec<Finding>,
    /// What was looked at, and what was seen.
    pub checks: Vec<CheckReport>,
}

/// Something that is wrong, or may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a volume, a file, an address, a setting.
    pub subject: String,
    /// What is wrong.
    pub why: String,
    /// What to do about it.
    pub next: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It does not work, or data is in danger.
    Problem,
    /// It works, and may not be as it is meant.
    Warning,
}

/// What was looked at.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CheckReport {
    /// What.
    pub check: &'static str,
    /// What was seen.
    pub seen: String,
}

impl Finding {
    fn problem(subject: impl ToString, why: impl ToString, next: impl ToString) -> Self {
        let (subject, why, next) = (subject.to_string(), why.to_string(), next.to_string());
        Finding { severity: Severity::Problem, subject, why, next }
    }

    fn warning(subject: impl ToString, why: impl ToString, next: impl ToString) -> Self {
        Finding { severity: Severity::Warning, ..Finding::problem(subject, why, next) }
    }
}

/// What is found.
#[derive(Debug, Default)]
struct Examination {
    findings: Vec<Finding>,
    checks: Vec<CheckReport>,
}

impl Examination {
    fn saw(&mut self, check: &'static str, seen: impl ToString) {
        self.checks.push(CheckReport { check, seen: seen.to_string() });
    }

    fn report(mut self) -> DiagnosisReport {
        self.findings.sort_by_key(|one| one.severity);
        let healthy = self.findings.iter().all(|one| one.severity != Severity::Problem);
        DiagnosisReport { healthy, findings: self.findings, checks: self.checks }
    }
}

/// Where the daemon of this machine has what is examined; what is not named is at its default place.
#[derive(Clone, Debug, Default)]
pub struct DaemonPlaces {
    /// The control socket.
    pub control: Option<PathBuf>,
    /// The state directory; a daemon that answers says it itself.
    pub state: Option<PathBuf>,
    /// The configuration file; if it is named, it has to exist.
    pub config: Option<PathBuf>,
}

/// Examines this machine and its daemon.
pub fn examine(places: &DaemonPlaces, paths: &DefaultPaths) -> DiagnosisReport {
    let control = places.control.as_deref().unwrap_or(&paths.control);
    let state = places.state.as_deref().unwrap_or(&paths.state);
    let mut found = Examination::default();
    let status = examine_daemon(&mut found, control);
    recorder::examine(&mut found, control, status.as_ref());
    let configuration = examine_configuration(&mut found, places.config.clone(), paths, status.is_some());
    let state = status.as_ref().map_or(state, |status| Path::new(&status.state));
    machine::examine_state(&mut found, state);
    if let Some(configuration) = configuration {
        machine::examine_volume_space(&mut found, &configuration.volume_files);
        if status.is_none() {
            machine::examine_addresses(&mut found, &configuration.addresses);
        }
    }
    machine::examine_system(&mut found, status.as_ref().map(|status| status.pid));
    found.report()
}

/// What the daemon says of itself; `None`: none answers.
fn examine_daemon(found: &mut Examination, control: &Path) -> Option<StatusReport> {
    match client::send_request(control, Request::Status) {
        Ok(Answer::Status(status)) => {
            let summary = format!(
                "version {}, process {}, {} volumes, {} sessions",
                status.version, status.pid, status.volumes, status.sessions
            );
            found.saw("daemon", summary);
            for one in &status.problems {
                found.findings.push(Finding::problem(&one.subject, &one.why, &one.next));
            }
            if status.version != env!("CARGO_PKG_VERSION") {
                let why = format!(
                    "version {} runs, and this program is {}",
                    status.version,
                    env!("CARGO_PKG_VERSION")
                );
                found.findings.push(Finding::warning("daemon", why, "restart the daemon when it suits"));
            }
            Some(status)
        }
        Ok(_) => {
            found.findings.push(Finding::problem("daemon", "it gave an unexpected answer", "restart it"));
            None
        }
        Err(why) => {
            found.saw("daemon", "none answers");
            let next = match control.exists() {
                true => "see its log (journalctl -u blockwire); run this as root or as the daemon's user",
                false => "start it (systemctl start blockwire), or name its socket with --control",
            };
            found.findings.push(Finding::problem("daemon", why.message, next));
            None
        }
    }
}

/// The configuration file as a start would read it.
fn examine_configuration(
    found: &mut Examination,
    config: Option<PathBuf>,
    paths: &DefaultPaths,
    is_running: bool,
) -> Option<CheckedConfiguration> {
    let file = config.clone().unwrap_or_else(|| paths.config.clone());
    if config.is_none() && !file.exists() {
        found.saw("configuration", format!("{} does not exist", file.display()));
        return None;
    }
    match check_configuration(&ServeArgs { config, ..ServeArgs::default() }, paths) {
        Ok(checked) => {
            found.saw("configuration", &checked.summary);
            for warning in &checked.warnings {
                found.findings.push(Finding::warning(file.display(), warning, "see docs/configuration.md"));
            }
            Some(checked)
        }
        Err(why) => {
            found.saw("configuration", "it has errors");
            let next = match is_running {
                true => {
                    "correct it before the next start or `blockwire apply`; what is served does not change until then"
                }
                false => "correct it, then start the daemon",
            };
            found.findings.push(Finding::problem(file.display(), why.message, next));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_come_before_warnings_and_make_it_unhealthy() {
        let mut found = Examination::default();
        found.findings.push(Finding::warning("a", "b", "c"));
        assert!(Examination { findings: found.findings.clone(), checks: Vec::new() }.report().healthy);
        found.findings.push(Finding::problem("d", "e", "f"));
        found.saw("kernel", "6.1");
        let report = found.report();
        assert!(!report.healthy);
        let subjects: Vec<&str> = report.findings.iter().map(|one| one.subject.as_str()).collect();
        assert_eq!(subjects, ["d", "a"]);
        assert!(Examination::default().report().healthy);
    }
}
