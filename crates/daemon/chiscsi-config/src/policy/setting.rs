//! The settings of a rule, and their effect without offloading.

use super::Token;
use control::report::line::Treatment;
use multipath::suggest;

/// Highest number of a queue.
const QUEUE_MAX: u16 = 4095;
/// Highest scheduling class of the adapters.
const CLASS_MAX: u16 = 15;

/// Where a rule binds its connections to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindValue {
    /// To a queue.
    Queue(u16),
    /// To any.
    Random,
    /// To that of the processor which opens it.
    Cpu,
}

/// A setting.
#[derive(Debug)]
pub struct RuleSetting {
    /// As written, without superfluous blanks.
    pub text: String,
    pub treatment: Treatment,
    pub note: &'static str,
    pub bound: Option<BindValue>,
}

/// Settings that take no value, and may be negated.
const FLAG_SETTINGS: [(&str, &str); 6] = [
    ("offload", "TCP is the kernel's; no connection is offloaded to an adapter"),
    (
        "ddp",
        "data is placed by the processor: received straight into the buffer that the disk writes, where it is long",
    ),
    ("tstamp", "TCP timestamps are those of the system (net.ipv4.tcp_timestamps)"),
    ("timestamp", "TCP timestamps are those of the system (net.ipv4.tcp_timestamps)"),
    ("coalesce", "segments are merged by the kernel and the network adapter (GRO)"),
    ("sack", "selective acknowledgment is that of the system (net.ipv4.tcp_sack)"),
];
const VALUED_SETTINGS: [&str; 9] =
    ["offload", "ddp", "tstamp", "timestamp", "coalesce", "sack", "bind", "class", "cong"];
const CONGESTION_ALGORITHMS: [&str; 4] = ["reno", "tahoe", "newreno", "highspeed"];

/// Reads the settings; none at all is the same as `!offload`.
pub fn parse_settings(tokens: &[Token<'_>], end: usize) -> Result<Vec<RuleSetting>, (usize, String)> {
    let mut settings = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let first = at;
        let text_to = |at| tokens_to_text(tokens.get(first..at).unwrap_or_default());
        while tokens.get(at).is_some_and(|token| matches!(token.text, "!" | "not")) {
            at += 1;
        }
        let is_negated = at > first;
        let Some(word) = tokens.get(at) else {
            return Err((end, "expected a setting after \"not\"".to_owned()));
        };
        at += 1;
        if let Some((_, note)) = FLAG_SETTINGS.iter().find(|(flag, _)| *flag == word.text) {
            settings.push(RuleSetting {
                text: text_to(at),
                treatment: Treatment::Meaningless,
                note,
                bound: None,
            });
            continue;
        }
        if !VALUED_SETTINGS.contains(&word.text) {
            return Err((
                word.at,
                format!(
                    "unknown setting \"{}\"{}",
                    word.text,
                    suggest::unknown_word_hint(word.text, VALUED_SETTINGS)
                ),
            ));
        }
        if is_negated {
            return Err((word.at, format!("\"{}\" cannot be negated", word.text)));
        }
        let Some(value) = tokens.get(at) else {
            return Err((end, format!("\"{}\" needs a value", word.text)));
        };
        at += 1;
        let (treatment, note, bound) = parse_valued(word.text, value)?;
        settings.push(RuleSetting { text: text_to(at), treatment, note, bound });
    }
    Ok(settings)
}

type ValuedSetting = (Treatment, &'static str, Option<BindValue>);

fn parse_valued(word: &str, value: &Token<'_>) -> Result<ValuedSetting, (usize, String)> {
    let number = |most: u16| value.text.parse::<u16>().ok().filter(|number| *number <= most);
    match word {
        "bind" => match value.text {
            "random" => Ok((Treatment::Applied, "any of the daemon's cores", Some(BindValue::Random))),
            "cpu" => {
                let note = "the core with the least on it, not that where the connection was opened";
                Ok((Treatment::Emulated, note, Some(BindValue::Cpu)))
            }
            _ => match number(QUEUE_MAX) {
                Some(queue) => {
                    let note = "queues are the daemon's cores: the one of this number, counted from 0 and round them";
                    Ok((Treatment::Emulated, note, Some(BindValue::Queue(queue))))
                }
                None => Err((
                    value.at,
                    format!("bind takes a queue's number, random or cpu, not \"{}\"", value.text),
                )),
            },
        },
        "class" => match number(CLASS_MAX) {
            Some(_) => Ok((Treatment::Meaningless, "scheduling classes are the adapter's", None)),
            None => {
                Err((value.at, format!("class takes a number from 0 to {CLASS_MAX}, not \"{}\"", value.text)))
            }
        },
        _ => match CONGESTION_ALGORITHMS.contains(&value.text) {
            true => {
                let note = "congestion control is chosen per portal: congestion in [[portal]] of a configuration, \
                            else the system's";
                Ok((Treatment::Meaningless, note, None))
            }
            false => {
                let hint = suggest::unknown_word_hint(value.text, CONGESTION_ALGORITHMS);
                Err((value.at, format!("unknown congestion algorithm \"{}\"{hint}", value.text)))
            }
        },
    }
}

fn tokens_to_text(tokens: &[Token<'_>]) -> String {
    let mut text = String::new();
    for token in tokens {
        if !text.is_empty() && !text.ends_with('!') {
            text.push(' ');
        }
        text.push_str(token.text);
    }
    text
}
