//! `doctor` without a URL: what is wrong with the daemon of this machine and with the machine, and what to do about it.

use crate::verbs::DoctorArgs;
use diagnosis::{DaemonPlaces, DiagnosisReport, Severity};
use process::{
    exit::{Exit, Failure},
    paths::DefaultPaths,
    printable, stdout,
};

/// The help of `doctor` without a URL.
pub const HELP: &str = "\
Without a URL, the daemon of this machine and the machine are examined: what the daemon says, its configuration, its state \
directory, its addresses, limits of the system, space on the file systems of its volumes, and what the daemon before it \
recorded until it was killed or crashed. Run it as root or as the user of the daemon.

Exit codes without a URL: 0 nothing is wrong (there may be warnings), 1 there are problems.";

/// Examines this machine and its daemon, and shows what was found.
pub fn run(args: &DoctorArgs, paths: &DefaultPaths) -> Result<Exit, Failure> {
    let (control, state, config) = (args.control.clone(), args.state.clone(), args.config.clone());
    let report = diagnosis::examine(&DaemonPlaces { control, state, config }, paths);
    let text = match args.json {
        true => format!("{:#}\n", serde_json::to_value(&report).unwrap_or_default()),
        false => report_text(&report),
    };
    stdout::print(&text)?;
    Ok(if report.healthy { Exit::Success } else { Exit::Failure })
}

fn report_text(report: &DiagnosisReport) -> String {
    let mut text = match (report.healthy, report.findings.len()) {
        (true, 0) => "nothing is wrong\n".to_owned(),
        (true, 1) => "nothing is wrong; 1 warning\n".to_owned(),
        (true, warnings) => format!("nothing is wrong; {warnings} warnings\n"),
        (false, _) => {
            let problems = report.findings.iter().filter(|one| one.severity == Severity::Problem).count();
            format!("{problems} problem{}\n", if problems == 1 { "" } else { "s" })
        }
    };
    for one in &report.findings {
        let word = if one.severity == Severity::Problem { "PROBLEM" } else { "warning" };
        let (subject, why) = (printable::escape_line(&one.subject), printable::escape_lines(&one.why));
        text.push_str(&format!(
            "\n{word}  {subject}: {}\n  what to do: {}\n",
            why.trim_end().replace('\n', "\n  "),
            printable::escape_lines(&one.next)
        ));
    }
    text.push_str("\nlooked at:\n");
    for one in &report.checks {
        text.push_str(&format!("  {:<14} {}\n", one.check, printable::escape_line(&one.seen)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnosis::{CheckReport, Finding};

    #[test]
    fn hidden_characters_are_shown_and_further_lines_indented() {
        let finding = |severity, subject: &str, why: &str| Finding {
            severity,
            subject: subject.to_owned(),
            why: why.to_owned(),
            next: "g".to_owned(),
        };
        let findings =
            vec![finding(Severity::Problem, "d\u{202e}", "e\nf"), finding(Severity::Warning, "a", "b")];
        let checks = vec![CheckReport { check: "kernel", seen: "6.1".to_owned() }];
        let text = report_text(&DiagnosisReport { healthy: false, findings, checks });
        let expected = "1 problem\n\nPROBLEM  d\\u202e: e\n  f\n  what to do: g\n\nwarning  a: b\n  what to do: g\n\n\
                        looked at:\n  kernel         6.1\n";
        assert_eq!(text, expected);
    }
}
