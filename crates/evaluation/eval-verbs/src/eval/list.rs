//! `blockwire eval list`: the presets, each with its paper, the place in it, and its figures.

use std::fmt::Write;

use clap::Args;
use eval::preset::{ExperimentKind, PRESETS, Preset, SystemPairing, fio_rw_word, preset_durations};
use eval::published::{InconsistentFigures, Paper, PublishedFigure, inconsistent_figures, published_data};
use serde_json::{Value, json};

use multipath::suggest;
use process::exit::{Exit, Failure};
use process::stdout::print;

/// Figures of a preset that are shown unless it was asked for by name.
const FIGURES_SHOWN: usize = 3;

/// `eval list`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire eval list
      every preset, with the first of its paper's figures
  blockwire eval list nvme-tcp-latency   one preset, with all of them
  blockwire eval list --slips
      figures of the papers that contradict each other")]
pub struct ListArgs {
    /// One preset only, with all figures
    preset: Option<String>,
    /// Figures that must be wrong, because others of the same paper contradict them
    #[arg(long, conflicts_with = "preset")]
    slips: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The preset of this name.
///
/// # Errors
/// If there is none: with the nearest.
pub fn find_preset(name: &str) -> Result<&'static Preset, Failure> {
    Preset::find(name).ok_or_else(|| {
        let hint = suggest::unknown_word_hint(name, PRESETS.iter().map(|preset| preset.id));
        Failure::usage(format!("there is no preset \"{name}\"{hint}; blockwire eval list shows them"))
    })
}

/// Shows them.
pub fn list_presets(args: &ListArgs) -> Result<Exit, Failure> {
    let slips = inconsistent_figures(published_data());
    if args.slips {
        let text =
            if args.json { inconsistent_figures_json(&slips) } else { inconsistent_figures_text(&slips) };
        print(&text)?;
        return Ok(Exit::Success);
    }
    let presets: Vec<&'static Preset> = match &args.preset {
        Some(name) => vec![find_preset(name)?],
        None => PRESETS.iter().collect(),
    };
    if args.json {
        let all: Vec<Value> = presets.iter().map(|preset| preset_json(preset, &slips)).collect();
        print(&format!("{:#}\n", Value::from(all)))?;
    } else {
        let shown = if args.preset.is_some() { usize::MAX } else { FIGURES_SHOWN };
        let all: Vec<String> = presets.iter().map(|preset| preset_text(preset, shown, &slips)).collect();
        print(&all.join("\n"))?;
    }
    Ok(Exit::Success)
}

fn preset_paper(preset: &Preset) -> Option<&'static Paper> {
    preset.paper.and_then(|id| published_data().papers.iter().find(|paper| paper.id == id))
}

fn preset_text(preset: &'static Preset, shown: usize, slips: &[InconsistentFigures]) -> String {
    let mut text = format!("{}\n  {}\n", preset.id, preset.title);
    if let Some(paper) = preset_paper(preset) {
        let date = paper.date.as_ref().map(|date| format!(", {date}")).unwrap_or_default();
        let _ = writeln!(text, "  paper: {}, {}{date}; {}", paper.title, paper.by, preset.at);
    }
    let _ = writeln!(text, "  systems: {}", default_systems(preset));
    let _ = writeln!(text, "  takes: {}", run_time_text(preset));
    let figures: Vec<&PublishedFigure> = preset.published_figures().collect();
    // A line that says that there is one more would take the place of that one.
    let shown = if figures.len() <= shown.saturating_add(1) { figures.len() } else { shown };
    for figure in figures.iter().take(shown) {
        let _ = writeln!(text, "    {:<18} {}", figure.to_string(), figure.what);
        if shown == figures.len()
            && let Some(slip) = slips.iter().find(|slip| slip.figure == figure.id)
        {
            let _ = writeln!(text, "    {:<18} does not add up: {} gives {}", "", slip.because, slip.follows);
        }
    }
    if figures.len() > shown {
        let _ = writeln!(text, "    and {} more: blockwire eval list {}", figures.len() - shown, preset.id);
    }
    text
}

/// Who is measured unless others are named.
fn default_systems(preset: &'static Preset) -> &'static str {
    match (preset.kind, preset.pairing) {
        (ExperimentKind::Oltp { .. }, _) => {
            "every iSCSI target that is installed, each with blockwire as initiator"
        }
        (ExperimentKind::Machine, _) => "blockwire, by QEMU's own initiator and by shared memory",
        (ExperimentKind::MixedTraffic, _) => "blockwire, and a plain stream",
        (ExperimentKind::Block, SystemPairing::ThreeSetUps) => {
            "the first software target and initiator that are installed, each with blockwire as its other end, and \
             blockwire at both; bare as the ceiling"
        }
        (ExperimentKind::Block, SystemPairing::All) if preset.is_queue_depth_one() => {
            "blockwire, with the initiator blockwire, which sleeps until something comes, and with blockwire-polling, \
             which polls before it sleeps; bare, sleeping and polling, as the ceiling"
        }
        (ExperimentKind::Block, SystemPairing::All) => "blockwire at both ends; bare as the ceiling",
    }
}

/// How long a run takes, in words.
fn run_time_text(preset: &'static Preset) -> String {
    let fitted = "with --scale auto as long as --time says";
    match preset_durations(preset) {
        Some((whole, least)) => {
            let (whole, least) = (format_duration(whole.as_secs()), format_duration(least.as_secs().max(1)));
            format!("{whole} as it is (--scale 1); {fitted}, {least} at least (our own systems)")
        }
        None => format!("{fitted}; the first start on a machine tells how long one is"),
    }
}

/// `7 h 05 min`, `3 min 20 s`, `20 s`.
fn format_duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

fn preset_json(preset: &'static Preset, slips: &[InconsistentFigures]) -> Value {
    let figures = preset.published_figures().map(|figure| {
        let slip = slips.iter().find(|slip| slip.figure == figure.id).map(ToString::to_string);
        json!({
            "id": figure.id, "what": figure.what, "value": figure.value, "unit": figure.unit,
            "printed": figure.to_string(), "at": figure.at, "slip": slip,
        })
    });
    let directions = preset.directions.iter().map(|direction| fio_rw_word(*direction, true));
    json!({
        "id": preset.id,
        "title": preset.title,
        "paper": preset_paper(preset).map(|paper| json!({
            "id": paper.id, "title": paper.title, "by": paper.by, "date": paper.date, "set_up": paper.set_up,
            "at": preset.at,
        })),
        "volumes": preset.volumes.0,
        "volume_bytes": preset.volumes.1,
        "hosts": preset.hosts,
        "protocols": preset.protocols.iter().map(|protocol| protocol.name()).collect::<Vec<_>>(),
        "rw": directions.collect::<Vec<_>>(),
        "bytes": preset.sizes,
        "depth": preset.depth,
        "threads": preset.threads,
        "runtime_seconds": preset.runtime.as_secs(),
        "rounds": preset.rounds,
        "takes_seconds": preset_durations(preset).map(|(whole, least)| [whole.as_secs_f64(), least.as_secs_f64()]),
        "figures": figures.collect::<Vec<_>>(),
    })
}

fn inconsistent_figures_text(slips: &[InconsistentFigures]) -> String {
    let mut text = String::new();
    for slip in slips {
        let figure = published_data().figure(&slip.figure);
        let (printed, what, at) =
            figure.map_or_else(Default::default, |f| (f.to_string(), f.what.clone(), f.at.clone()));
        let _ = writeln!(text, "{}\n  {what}, {at}", slip.figure);
        let _ = writeln!(text, "  printed {printed}; {} gives {}", slip.because, slip.follows);
    }
    text
}

fn inconsistent_figures_json(slips: &[InconsistentFigures]) -> String {
    let all: Vec<Value> = slips
        .iter()
        .map(|slip| {
            let figure = published_data().figure(&slip.figure);
            json!({
                "figure": slip.figure,
                "what": figure.map(|figure| &figure.what),
                "at": figure.map(|figure| &figure.at),
                "printed": figure.map(ToString::to_string),
                "stated": [slip.stated.low(), slip.stated.high()],
                "follows": [slip.follows.low(), slip.follows.high()],
                "because": slip.because,
            })
        })
        .collect();
    format!("{:#}\n", Value::from(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_of_one_io_at_a_time_names_both_ways_to_wait() {
        let of = |id: &str| preset_text(Preset::find(id).unwrap(), 0, &[]);
        assert!(
            of("nvme-tcp-latency").contains("systems: blockwire, with")
                && of("nvme-tcp-latency").contains("blockwire-polling")
        );
        assert!(!of("quick").contains("polling"), "{}", of("quick"));
    }

    #[test]
    fn times_are_said_as_people_say_them() {
        let said = [20, 200, 25_500].map(format_duration);
        assert_eq!(said, ["20 s", "3 min 20 s", "7 h 05 min"]);
        let sweep = run_time_text(Preset::find("t6-100g-sweep").unwrap());
        assert!(sweep.contains(" h ") && sweep.contains("at least"), "{sweep}");
    }
}
