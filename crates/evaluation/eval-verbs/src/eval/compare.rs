//! `blockwire eval compare`: two runs, figure by figure, with an exit code for CI.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use eval::compare::{SIGNIFICANCE_LEVEL, Spread};
use eval::difference::{ChangeVerdict, LoadDifference, RecordDifference};
use eval::record::Record;
use serde_json::json;

use super::records::read_record;
use process::exit::{Exit, Failure};
use process::stdout::print;

/// `eval compare`
#[derive(Debug, Args)]
#[command(
    after_help = "A and B are records: a file, or a directory with a record.json. Each figure that both have is \
compared over its runs: medians, the ratio of means with its 95 % interval (bootstrap over runs), and the probability \
of such a difference by chance (Mann-Whitney, exact for up to 20 runs, corrected for all loads by Holm). \
It needs at least five runs each. Between two runs of one program (of one commit) on one machine that was set up \
alike, nothing is called worse: such a difference is drift of the machine.

Exit code 1: a figure of B is worse than A by more than the gate, and not by chance. 2: nothing could be compared, or \
a figure is worse by more than the gate but there are too few runs to exclude chance.

Examples:
  blockwire eval compare before/ after/
  blockwire eval compare main/record.json branch/record.json --gate 3% --json"
)]
pub struct CompareArgs {
    /// The reference run
    a: PathBuf,
    /// The run to compare with it
    b: PathBuf,
    /// How much worse a figure may get
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    gate: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `5%` or `5`: as a part.
fn parse_percent(text: &str) -> Result<f64, Failure> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    let fits = number.filter(|number| (0.0..=100.0).contains(number)).map(|number| number / 100.0);
    fits.ok_or_else(|| Failure::usage(format!("\"{text}\" is no part: write 0% to 100%")))
}

/// Holds B against A.
pub fn run_compare(args: &CompareArgs) -> Result<Exit, Failure> {
    let (first, second) = (read_record(&args.a)?, read_record(&args.b)?);
    let difference = RecordDifference::of(&first, &second, args.gate);
    if difference.pairs.is_empty() {
        return Err(nothing_comparable(args, &difference));
    }
    let worse = difference.worse_count();
    if args.json {
        let value = json!({
            "a": args.a, "b": args.b, "gate": args.gate, "significant": SIGNIFICANCE_LEVEL, "worse": worse,
            "pairs": difference.pairs, "only_a": difference.only_first, "only_b": difference.only_second,
            "cautions": difference.cautions,
        });
        print(&format!("{value:#}\n"))?;
    } else {
        print(&comparison_text(args, [&first, &second], &difference))?;
    }
    if worse > 0 {
        let much = args.gate * 100.0;
        return Err(Failure::failed(format!("{worse} figures got worse by more than {much} %")));
    }
    let unproven = difference.unproven_loss_count();
    if unproven > 0 {
        return Err(Failure::usage(format!(
            "{unproven} figures are worse by more than {} %, and there are too few runs to tell it from chance: \
             measure both for longer (eval run --time)",
            args.gate * 100.0
        )));
    }
    Ok(Exit::Success)
}

fn nothing_comparable(args: &CompareArgs, difference: &RecordDifference) -> Failure {
    let loads = |loads: &[String]| match loads.first() {
        None => "no load at all".to_owned(),
        Some(first) if loads.len() == 1 => first.clone(),
        Some(first) => format!("{} loads, the first {first}", loads.len()),
    };
    Failure::usage(format!(
        "they have no load in common and cannot be compared\n{}: {}\n{}: {}",
        args.a.display(),
        loads(&difference.only_first),
        args.b.display(),
        loads(&difference.only_second)
    ))
}

fn comparison_text(args: &CompareArgs, records: [&Record; 2], difference: &RecordDifference) -> String {
    let mut text = String::new();
    for (name, path, record) in [("A", &args.a, records[0]), ("B", &args.b, records[1])] {
        let _ = writeln!(text, "{name}: {} ({}, {})", path.display(), record.preset, record.started);
    }
    for caution in &difference.cautions {
        let _ = writeln!(text, "caution: {caution}");
    }
    for pair in &difference.pairs {
        push_load_difference(&mut text, pair);
    }
    for (name, lonely) in [("A", &difference.only_first), ("B", &difference.only_second)] {
        for load in lonely {
            let _ = writeln!(text, "only in {name}: {load}");
        }
    }
    let lines: Vec<_> = difference.pairs.iter().flat_map(|pair| &pair.lines).collect();
    let count = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let _ = writeln!(
        text,
        "\n{} figures of {} loads: {} better, {} worse, {} different within the gate, {} no more than noise, {} drift of \
         the machine, {} unproven",
        lines.len(),
        difference.pairs.len(),
        count(ChangeVerdict::Better),
        difference.worse_count(),
        count(ChangeVerdict::WithinGate),
        count(ChangeVerdict::Noise),
        difference.drift_count(),
        count(ChangeVerdict::Unproven)
    );
    text
}

fn push_load_difference(text: &mut String, pair: &LoadDifference) {
    let _ = writeln!(text, "\n{}", pair.load);
    let _ =
        writeln!(text, "  {:<30} {:>18} {:>18} {:>9} {:>20} {:>8}", "", "A", "B", "change", "95 %", "chance");
    for line in &pair.lines {
        let _ = writeln!(
            text,
            "  {:<30} {:>18} {:>18} {:>+7.1} % {:>20} {:>8.3}  {}",
            line.what.name(),
            spread_text(&line.first),
            spread_text(&line.second),
            percent_more(line.comparison.ratio.ratio),
            interval_text(line.comparison.ratio.interval),
            line.comparison.chance,
            line.verdict.word()
        );
    }
    let (first, second) = pair.errors;
    if first + second > 0 {
        let verdict = if first == 0 { "  WORSE" } else { "" };
        let _ = writeln!(text, "  {:<30} {first:>18} {second:>18}{:>18}{verdict}", "I/Os that failed", "");
    }
}

fn percent_more(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

fn interval_text(interval: Option<(f64, f64)>) -> String {
    interval.map_or("-".to_owned(), |(low, high)| {
        format!("{:+.1} to {:+.1} %", percent_more(low), percent_more(high))
    })
}

/// The median, and half of the range.
fn spread_text(spread: &Spread) -> String {
    let value = if spread.median >= 1000.0 {
        format!("{:.0}", spread.median)
    } else {
        format!("{:.2}", spread.median)
    };
    if spread.runs > 1 { format!("{value} ±{:.0} %", spread.noise() * 50.0) } else { value }
}

#[cfg(test)]
mod tests {
    use super::parse_percent;

    #[test]
    fn gates_are_percent() {
        assert_eq!(
            (parse_percent("5%"), parse_percent("2.5 %"), parse_percent("0")),
            (Ok(0.05), Ok(0.025), Ok(0.0))
        );
        assert!(
            parse_percent("-1%").is_err() && parse_percent("101").is_err() && parse_percent("x").is_err()
        );
    }
}
