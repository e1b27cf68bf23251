//! Offload policies: rules `filter => settings`, one a line; the first that matches a connection decides
//! (cop(8)). Each becomes a placement rule; settings about offloading are reported as meaningless.
//!
//! A rule whose filter uses properties that a daemon cannot see (TOS, DSCP, VLAN, mark) is left out, and a
//! rule about listening sockets or active opens matches no connection here. Both are reported, and neither
//! changes which connections are admitted.

mod filter;
mod setting;
mod token;

use shard::Condition;

use self::{filter::ParsedFilter, setting::BindValue, token::Token};
use config::{
    diagnostic::{Sink, SourceText},
    draft::{Draft, placement::PlacementDraft},
    plan::CoreChoice,
};
use control::report::line::{LineReport, Treatment};

/// Most rules of a policy.
const RULES_MAX: usize = 1024;

/// Reads the text of a policy into `draft`.
pub fn read_policy(text: &SourceText, sink: &Sink, draft: &mut Draft) -> Vec<LineReport> {
    let (mut lines, mut offset, mut rules) = (Vec::new(), 0, 0);
    for (index, raw) in text.text.split_inclusive('\n').enumerate() {
        let begin = offset;
        offset += raw.len();
        let written = raw.split('#').next().unwrap_or_default().trim_end();
        if written.trim().is_empty() {
            continue;
        }
        rules += 1;
        if rules > RULES_MAX {
            sink.note_error(&text.place_of_span(begin..begin), format!("more than {RULES_MAX} rules"));
            break;
        }
        match parse_rule(written) {
            Ok(rule) => {
                let mut report = |text_of: String, treatment, note: String| {
                    lines.push(LineReport {
                        file: text.name().to_owned(),
                        line: index + 1,
                        block: "policy".to_owned(),
                        text: text_of,
                        treatment,
                        note,
                    });
                };
                rule.report_treatment(&mut report);
                draft.placement.extend(rule.to_placement());
            }
            Err((at, why)) => sink.note_error(&text.place_of_span(begin + at..begin + at), why),
        }
    }
    if rules == 0 {
        sink.note_error(
            &text.place_of_span(0..0),
            "there is no rule in it; one is, for example, any => offload bind random",
        );
    }
    lines
}

/// A rule.
struct PolicyRule {
    /// The filter as written.
    filter: String,
    sight: ParsedFilter,
    settings: Vec<setting::RuleSetting>,
}

/// Reads one line; what is wrong, and at which byte.
fn parse_rule(line: &str) -> Result<PolicyRule, (usize, String)> {
    let tokens = token::tokenize(line)?;
    let arrow = tokens.iter().take_while(|token| token.text != "=>").count();
    let Some((before, [arrow, behind @ ..])) = tokens.split_at_checked(arrow) else {
        let why = "expected \"filter => settings\", for example any => offload";
        return Err((line.len() - line.trim_start().len(), why.to_owned()));
    };
    let end = arrow.at;
    if let Some(second) = behind.iter().find(|token| token.text == "=>") {
        return Err((second.at, "a second \"=>\" in one rule".to_owned()));
    }
    let sight = filter::parse_filter(before, end)?;
    let settings = setting::parse_settings(behind, line.len())?;
    let filter = line.get(..end).unwrap_or_default().trim().to_owned();
    Ok(PolicyRule { filter, sight, settings })
}

impl PolicyRule {
    /// The rule of placement; `None`: it fits nothing that is served here, or what it asks cannot be seen.
    fn to_placement(&self) -> Option<PlacementDraft> {
        let ParsedFilter::Seen(when) = &self.sight else { return None };
        if is_unsatisfiable(when) {
            return None;
        }
        let bound = self.settings.iter().rev().find_map(|setting| setting.bound);
        let (bind, nth) = match bound {
            None | Some(BindValue::Cpu) => (CoreChoice::Cpu, None),
            Some(BindValue::Random) => (CoreChoice::Random, None),
            Some(BindValue::Queue(queue)) => (CoreChoice::Cpu, Some(queue)),
        };
        Some(PlacementDraft {
            protocol: None,
            portal: None,
            sources: Vec::new(),
            host: None,
            volume: None,
            when: when.clone(),
            nth,
            cores: Vec::new(),
            bind,
        })
    }

    fn report_treatment(&self, report: &mut impl FnMut(String, Treatment, String)) {
        let (treatment, note) = match &self.sight {
            ParsedFilter::Hidden(what) => {
                let why = format!("{what} of a connection is not visible to a daemon; the rule is ignored");
                (Treatment::Meaningless, why)
            }
            ParsedFilter::Seen(when) if is_unsatisfiable(when) => {
                let why = "it matches no connection of the daemon, only listening sockets or connections that \
                           this machine opens";
                (Treatment::Meaningless, why.to_owned())
            }
            ParsedFilter::Seen(Condition::Always) => (Treatment::Applied, "every connection".to_owned()),
            ParsedFilter::Seen(_) => (Treatment::Applied, String::new()),
        };
        let is_live = self.to_placement().is_some();
        report(format!("{} =>", self.filter), treatment, note);
        for setting in &self.settings {
            let (treatment, note) = match is_live {
                true => (setting.treatment, setting.note),
                false => (Treatment::Unused, "its rule matches nothing that is served here"),
            };
            report(setting.text.clone(), treatment, note.to_owned());
        }
    }
}

/// Whether a condition that was simplified holds for nothing.
fn is_unsatisfiable(when: &Condition) -> bool {
    matches!(when, Condition::Any(list) if list.is_empty())
}

#[cfg(test)]
mod tests;
