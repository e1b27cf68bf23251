//! The paper's figures beside the measured ones.
//!
//! Invariant: a printed figure is shown as printed, with its place; a measured one is shown beside it only if
//! it is the same figure of the same experiment.

use std::fmt::Write;

use super::charts::{EndSelector, busy_percent_per_core};
use super::groups::SystemNames;
use super::headline::{Headline, HeadlineMeasure};
use super::markup::{escape_html, write_details, write_table};
use super::text::{NOT_RECORDED, UNKNOWN_CELL, format_figure, format_ratio, format_size, format_times};
use crate::compare::Spread;
use crate::derived::count_busy_cores;
use crate::preset::Preset;
use crate::published::{PublishedFigure, inconsistent_figures, published_data};
use crate::record::{EndKind, Metric, Point, Record};

/// Our own target and initiator, as records name them.
const OWN_SYSTEM: &str = "blockwire";

/// The papers' section.
pub(super) fn write_paper_section(page: &mut String, record: &Record, names: &SystemNames) {
    let data = published_data();
    let Some(paper) = record.paper.as_ref().and_then(|id| data.papers.iter().find(|paper| paper.id == *id))
    else {
        return;
    };
    let _ = write!(
        page,
        "<section id=\"paper\"><h2>Beside the paper</h2><p><b>{}</b>, {}{}. Its set-up: {}.</p>",
        escape_html(&paper.title),
        escape_html(&paper.by),
        paper.date.as_ref().map(|date| format!(", {}", escape_html(date))).unwrap_or_default(),
        escape_html(&paper.set_up)
    );
    page.push_str(
        "<p><b>Comparable:</b> what does not depend on one machine: how systems stand to each other under the same load, how \
         cost grows with the size of an I/O, what a network adds to a local I/O. What is not stands at the top.</p>"
    );
    let figures: Vec<&PublishedFigure> = match Preset::find(&record.preset) {
        Some(preset) if preset.paper == Some(paper.id.as_str()) => preset.published_figures().collect(),
        _ => data.figures_of(&paper.id).collect(),
    };
    let mut shown: Vec<&str> = Vec::new();
    for part in [write_latency_table, write_jitter_table, write_efficiency_table] {
        shown.extend(part(page, record, names, &figures));
    }
    let slips = inconsistent_figures(data);
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|figure| {
            let slip = slips.iter().find(|slip| slip.figure == figure.id);
            let slip = slip.map_or(String::new(), |slip| {
                format!("does not add up: {} gives {}", slip.because, slip.follows)
            });
            (figure, slip)
        })
        .filter(|(figure, slip)| !slip.is_empty() || !shown.contains(&figure.id.as_str()))
        .map(|(figure, slip)| {
            let measured = measured_counterpart(record, figure).unwrap_or_else(|| UNKNOWN_CELL.to_owned());
            let ratio = printed_ratio(figure).unwrap_or_else(|| UNKNOWN_CELL.to_owned());
            vec![figure.what.clone(), figure.to_string(), ratio, measured, figure.at.clone(), slip]
        })
        .collect();
    if !rows.is_empty() {
        let head = ["what", "printed", "as a ratio", "measured here", "where in the paper", "checked"];
        let summary = format!("Figure by figure: {} printed, and what was measured here", rows.len());
        write_details(page, &summary, |page| {
            page.push_str("<div class=\"beside\">");
            write_table(page, &head, rows.into_iter());
            page.push_str("</div>");
        });
    }
    page.push_str("</section>");
}

/// What may not be held against each other.
pub(super) fn not_comparable_text(record: &Record) -> String {
    let mut here: Vec<String> = Vec::new();
    for machine in &record.environment {
        let fact = |name: &str| machine.facts.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let cores = fact("cores").map(|cores| format!("{cores} cores"));
        let said: Vec<String> = fact("processor").cloned().into_iter().chain(cores).collect();
        let said = said.join(", ");
        if !said.is_empty() && !here.contains(&said) {
            here.push(said);
        }
    }
    if record.is_single_machine() {
        here.push("both ends on one machine".to_owned());
    }
    let is_virtual = record.points.iter().all(|point| point.mtu > 60_000 || record.is_single_machine());
    if is_virtual {
        here.push("a virtual link in place of network cards".to_owned());
    }
    let here = if here.is_empty() { NOT_RECORDED.to_owned() } else { here.join(", ") };
    let theirs = match record.paper.as_deref() {
        Some(paper) => {
            format!(
                "the paper measured {} on its own machines and network; here it was",
                paper_hardware(paper)
            )
        }
        None => "figures of other machines; here it was".to_owned(),
    };
    format!(
        "I/Os per second, throughput and latency as such ({theirs} {here}). Nothing here tells what other hardware would do"
    )
}

/// The figure of a paper that a report's first sentence has beside it, by the experiment, and by what systems are compared
/// where that is the same figure.
const HEADLINE_PAPER_FIGURES: [(&str, &str, Option<HeadlineMeasure>); 10] = [
    ("demartek-vdbench", "demartek.target-read-effectiveness", None),
    ("demartek-oltp", "demartek.target-oltp-time", Some(HeadlineMeasure::Finish)),
    ("t6-100g-sweep", "t6-100g.throughput", None),
    ("connections", "windows-100g.connections", None),
    ("t5-vm", "t5-vm.iops", None),
    ("windows-100g", "windows-100g.read-iops", None),
    ("nvme-tcp-iops", "sdc2021.iops", None),
    ("nvme-tcp-latency", "sdc2021.spdk-gain", None),
    ("nvme-tcp-jitter", "sdc2021.jitter-deviation-gain", Some(HeadlineMeasure::Jitter)),
    ("protocol-efficiency", "sdc2021.aic-8k-cpu-per-iop", None),
];

fn headline_paper_figure(record: &Record) -> Option<&'static PublishedFigure> {
    let paper = record.paper.as_deref()?;
    let chosen = HEADLINE_PAPER_FIGURES.iter().find(|(preset, ..)| *preset == record.preset);
    let is_it = |figure: &&PublishedFigure| match chosen {
        Some((_, id, _)) => figure.id == *id,
        None => figure.id.ends_with("target-read-effectiveness"),
    };
    published_data().figures.iter().filter(is_it).find(|figure| figure.paper() == paper)
}

/// Whether what a paper printed is another figure than the one that the first sentence compares systems by, or of a link
/// without other traffic where the paper's was congested.
pub(super) fn is_different_figure(record: &Record, one: &Headline<'_>) -> bool {
    let measure =
        HEADLINE_PAPER_FIGURES.iter().find(|(preset, ..)| *preset == record.preset).and_then(|(.., of)| *of);
    let is_same =
        measure == Some(one.measure) && (one.measure != HeadlineMeasure::Jitter || one.is_congested());
    headline_paper_figure(record).is_some() && !is_same
}

/// The paper's figure that stands beside what was measured, as it was printed, as a ratio, and whether it adds up.
pub(super) fn printed_figure_text(record: &Record) -> Option<String> {
    record.paper.as_ref()?;
    let Some(figure) = headline_paper_figure(record) else {
        return Some("no figure of this experiment".to_owned());
    };
    let mut text = figure.to_string();
    match printed_ratio(figure) {
        Some(ratio) if figure.unit == "%" => {
            let _ = write!(text, " ({ratio})");
        }
        _ => {}
    }
    let _ = write!(text, " for {}", figure.what);
    if printed_ratio(figure).is_none() {
        text.push_str(", and no ratio of two systems");
    }
    Some(text)
}

/// Why that figure cannot be right, if it cannot.
pub(super) fn inconsistency_text(record: &Record) -> Option<String> {
    let (_, id, _) = HEADLINE_PAPER_FIGURES.iter().find(|(preset, ..)| *preset == record.preset)?;
    let slip = inconsistent_figures(published_data()).into_iter().find(|slip| slip.figure == *id)?;
    Some(format!("{} gives {}", slip.because, slip.follows))
}

/// A printed change or factor in the form that all ratios of a report have.
fn printed_ratio(figure: &PublishedFigure) -> Option<String> {
    match figure.unit.as_str() {
        "%" => Some(format_times(1.0 + figure.value / 100.0)),
        "x" => Some(format_times(figure.value)),
        _ => None,
    }
}

/// What a paper's figures are of.
fn paper_hardware(paper: &str) -> &'static str {
    match paper {
        "demartek" => "offload adapters of 25 and 100 GbE with NVMe SSDs behind them",
        "t6-100g" => "an offload adapter at 100 GbE",
        "t5-vm" => {
            "an offload adapter whose switch carries I/O between virtual machines, with an SSD behind it"
        }
        "sdc2021" => "offload adapters at 100 GbE",
        "windows-100g" => "an offload adapter at 100 GbE under Windows",
        _ => "other systems",
    }
}

fn median_us(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

fn find_figure<'a>(figures: &[&'a PublishedFigure], id: &str) -> Option<&'a PublishedFigure> {
    figures.iter().find(|figure| figure.id == id).copied()
}

/// A table's cell, and the name of the figure in it.
fn printed_cell(figures: &[&'static PublishedFigure], id: &str, shown: &mut Vec<&'static str>) -> String {
    match find_figure(figures, id) {
        None => UNKNOWN_CELL.to_owned(),
        Some(figure) => {
            shown.push(&figure.id);
            format!("{}", figure.value)
        }
    }
}

type PaperFigures<'a> = &'a [&'static PublishedFigure];

/// The table of local and remote latencies, its rows and ours.
fn write_latency_table(
    page: &mut String,
    record: &Record,
    names: &SystemNames,
    figures: PaperFigures<'_>,
) -> Vec<&'static str> {
    let mut shown = Vec::new();
    if find_figure(figures, "sdc2021.kernel-nic-read-remote").is_none() {
        return shown;
    }
    const LATENCY_ROWS: [(&str, &str, &str); 6] = [
        ("kernel", "kernel-nic", "kernel, NIC to NIC"),
        ("kernel", "kernel-toe-one", "kernel, offload at one end"),
        ("kernel", "kernel-toe", "kernel, offload at both ends"),
        ("spdk", "spdk-nic", "SPDK, NIC to NIC"),
        ("spdk", "spdk-toe", "SPDK, offload at the target"),
        ("spdk", "spdk-iwarp", "SPDK, iWARP at both ends"),
    ];
    let mut rows = Vec::new();
    for (local, row, name) in LATENCY_ROWS {
        let mut cells = vec![name.to_owned(), "printed".to_owned()];
        for rw in ["read", "write"] {
            cells.push(printed_cell(figures, &format!("sdc2021.{local}-{rw}-local"), &mut shown));
            cells.push(printed_cell(figures, &format!("sdc2021.{row}-{rw}-remote"), &mut shown));
            cells.push(printed_cell(figures, &format!("sdc2021.{row}-{rw}-delta"), &mut shown));
        }
        rows.push(cells);
    }
    let mine = |point: &Point| names.name_of(point) + &point_labels(point);
    let mut systems: Vec<String> = Vec::new();
    for point in record.points.iter().filter(|point| point.protocol != "local") {
        if !systems.contains(&mine(point)) {
            systems.push(mine(point));
        }
    }
    let shown_us = |value: Option<f64>| value.map_or(UNKNOWN_CELL.to_owned(), |us| format!("{us:.2}"));
    for system in systems {
        let mut cells = vec![system.clone(), "measured here".to_owned()];
        for rw in ["randread", "randwrite"] {
            let far = record
                .points
                .iter()
                .find(|point| point.protocol != "local" && point.rw == rw && mine(point) == system);
            let near = record.points.iter().find(|point| {
                point.protocol == "local"
                    && point.rw == rw
                    && far.is_none_or(|far| far.volume_label() == point.volume_label())
            });
            let (near, far) = (
                near.and_then(|p| median_us(p.mean_latency())),
                far.and_then(|p| median_us(p.mean_latency())),
            );
            cells.extend([
                shown_us(near),
                shown_us(far),
                shown_us(near.zip(far).map(|(near, far)| far - near)),
            ]);
        }
        rows.push(cells);
    }
    page.push_str("<h3>Latency of one 4 KiB I/O at a time, mean, in µs</h3>");
    let head = ["system", "", "read: local", "remote", "delta", "write: local", "remote", "delta"];
    write_table(page, &head, rows.into_iter());
    shown
}

fn point_labels(point: &Point) -> String {
    point.labels.iter().map(|(name, value)| format!(", {name} {value}")).collect()
}

/// The table of jitter.
fn write_jitter_table(
    page: &mut String,
    record: &Record,
    names: &SystemNames,
    figures: PaperFigures<'_>,
) -> Vec<&'static str> {
    let mut shown = Vec::new();
    if find_figure(figures, "sdc2021.jitter-nic-average").is_none() {
        return shown;
    }
    let mut rows = Vec::new();
    for (row, name) in [("nic", "NIC to NIC, congested"), ("toe", "offload at both ends, congested")] {
        rows.push(vec![
            name.to_owned(),
            "printed".to_owned(),
            printed_cell(figures, &format!("sdc2021.jitter-{row}-average"), &mut shown),
            printed_cell(figures, &format!("sdc2021.jitter-{row}-deviation"), &mut shown),
        ]);
    }
    for point in &record.points {
        let value = |spread: Option<Spread>| median_us(spread).map_or(UNKNOWN_CELL.to_owned(), format_figure);
        let link = point.link_name();
        rows.push(vec![
            format!(
                "{}, {} {}, {link}{}",
                names.name_of(point),
                point.rw,
                format_size(point.bytes),
                point_labels(point)
            ),
            "measured here".to_owned(),
            value(point.mean_latency()),
            value(point.jitter()),
        ]);
    }
    page.push_str("<h3>Average latency and its standard deviation, in µs</h3>");
    write_table(page, &["system", "", "average", "standard deviation"], rows.into_iter());
    shown
}

/// The table of work done against processor used.
fn write_efficiency_table(
    page: &mut String,
    record: &Record,
    names: &SystemNames,
    figures: PaperFigures<'_>,
) -> Vec<&'static str> {
    let mut shown = Vec::new();
    if find_figure(figures, "sdc2021.aic-8k-iops").is_none() {
        return shown;
    }
    let mut rows = Vec::new();
    for (row, name) in [("aic", "NVMe add-in card"), ("sas", "SAS 12G SSD"), ("sata", "SATA 6G SSD")] {
        let mut cells = vec![name.to_owned(), "printed".to_owned()];
        for what in ["iops", "bandwidth", "response", "cpu-per-iop"] {
            for bytes in ["8k", "1m"] {
                cells.push(printed_cell(figures, &format!("sdc2021.{row}-{bytes}-{what}"), &mut shown));
            }
        }
        rows.push(cells);
    }
    let mut systems: Vec<String> = Vec::new();
    for point in &record.points {
        let name = names.name_of(point);
        if !systems.contains(&name) {
            systems.push(name);
        }
    }
    for system in systems {
        let mut cells = vec![system.clone(), "measured here".to_owned()];
        let point =
            |bytes: u64| record.points.iter().find(|p| p.bytes == bytes && names.name_of(p) == system);
        let value = |bytes, of: &dyn Fn(&Point) -> Option<f64>| {
            point(bytes).and_then(of).map_or(UNKNOWN_CELL.to_owned(), format_figure)
        };
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| median_us(p.iops())));
        }
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| Some(median_us(p.bandwidth())? / f64::from(1 << 20))));
        }
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| Some(median_us(p.mean_latency())? / 1e3)));
        }
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| {
                Some(median_us(p.busy_percent(EndKind::Initiator))? / median_us(p.iops())?)
            }));
        }
        rows.push(cells);
    }
    page.push_str("<h3>Work done against processor used: 100 % random reads</h3>");
    let head =
        ["system", "", "IOPS 8K", "1M", "MiB/s 8K", "1M", "response ms 8K", "1M", "% CPU per IOPS 8K", "1M"];
    write_table(page, &head, rows.into_iter());
    shown
}

/// The same figure of this run, if it has it.
fn measured_counterpart(record: &Record, figure_of: &PublishedFigure) -> Option<String> {
    let (paper, name) = figure_of.id.split_once('.')?;
    match paper {
        "demartek" => demartek_ratio(record, name),
        "t6-100g" | "windows-100g" | "sdc2021" | "t5-vm" => best_absolute(record, name),
        _ => None,
    }
}

/// Figures that are of one system: the best of this run.
fn best_absolute(record: &Record, name: &str) -> Option<String> {
    let best = |rw: &str, bytes: Option<u64>, of: &dyn Fn(&Point) -> Option<f64>| {
        let fits = |point: &&Point| {
            point.is_networked_system()
                && point.rw.contains(rw)
                && bytes.is_none_or(|bytes| point.bytes == bytes)
        };
        record.points.iter().filter(fits).filter_map(of).max_by(f64::total_cmp)
    };
    let iops = |point: &Point| median_us(point.iops());
    let busy = |bytes| best("", Some(bytes), &|point| median_us(point.busy_percent(EndKind::Initiator)));
    Some(match name {
        "throughput" => {
            format!("{} Gb/s", format_figure(best("", None, &|point| median_us(point.bandwidth()))? * 8e-9))
        }
        "iops" => format!("{} IOPS", format_figure(best("", Some(4096), &iops)?)),
        "read-iops" => format!("{} IOPS", format_figure(best("read", Some(8192), &iops)?)),
        "write-iops" => format!("{} IOPS", format_figure(best("write", Some(8192), &iops)?)),
        "cpu-512k" => format!("{} % CPU", format_figure(busy(512 << 10)?)),
        "cpu-512" => format!("{} % CPU", format_figure(busy(512)?)),
        "connections" | "connections-so" => {
            let most = record.points.iter().filter(|point| point.runs.iter().any(|run| run.ios > 0));
            format!(
                "up to {} connections",
                format_figure(f64::from(most.map(|point| point.connections).max()?))
            )
        }
        _ => return None,
    })
}

/// Ratios between the three set-ups: our target over a software target, our initiator over a software
/// initiator.
fn demartek_ratio(record: &Record, name: &str) -> Option<String> {
    let (end, rest) = ["software-target-", "hardware-target-", "target-", "initiator-"]
        .iter()
        .find_map(|start| Some((*start, name.strip_prefix(start)?)))?;
    let (load, what) = rest.split_once('-')?;
    let rw = match load {
        "read" => "randread",
        "write" => "randwrite",
        "oltp" => "oltp",
        _ => return None,
    };
    let find = |is_target_ours: bool, is_initiator_ours: bool| {
        record.points.iter().find(|point| {
            point.rw == rw
                && (point.target == OWN_SYSTEM) == is_target_ours
                && (point.initiator == OWN_SYSTEM) == is_initiator_ours
        })
    };
    let cores = |point: &Point, limit| {
        let side: EndSelector = |run| run.target.as_ref();
        let busy: Vec<f64> = busy_percent_per_core(point, side).into_iter().map(|(_, busy)| busy).collect();
        (!busy.is_empty()).then(|| format!("{} of {} cores", count_busy_cores(&busy, limit), busy.len()))
    };
    if let Some(limit) = what.strip_prefix("cores-") {
        let point = if end == "software-target-" { find(false, true)? } else { find(true, true)? };
        return cores(point, limit.parse().ok()?);
    }
    let (old, of) = if end == "target-" {
        (find(false, true)?, EndKind::Target)
    } else {
        (find(true, false)?, EndKind::Initiator)
    };
    let new = find(true, true)?;
    let ratio = |metric| new.ratio_to(old, metric);
    let ratio = match what {
        "iops" => ratio(Metric::Iops),
        "throughput" => ratio(Metric::Bandwidth),
        // That of I/Os, not of transactions.
        "latency" => ratio(Metric::IoLatency).or_else(|| ratio(Metric::MeanLatency)),
        "cpu" => ratio(Metric::Busy(of)),
        "effectiveness" => ratio(Metric::Effectiveness(of)),
        "time" => ratio(Metric::Finish),
        _ => None,
    };
    let smoke = if old.smoke_test().or(new.smoke_test()).is_some() { ", a smoke test" } else { "" };
    Some(format!("{}{smoke}", format_ratio(Some(ratio?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{five, point};

    #[test]
    fn the_three_set_ups_stand_beside_demarteks_ratios() {
        let software = five("tgt", "randread", 4096, 10_000);
        let ours = five("blockwire", "randread", 4096, 30_000);
        let mut other = five("blockwire", "randread", 4096, 20_000);
        other.initiator = "libiscsi".into();
        let record = Record { points: vec![software, other, ours], ..Record::default() };
        let of = |id: &str| measured_counterpart(&record, published_data().figure(id).unwrap());
        assert_eq!(of("demartek.target-read-iops").as_deref(), Some("3.00x (3.00x to 3.00x)"));
        assert_eq!(of("demartek.initiator-read-iops").as_deref(), Some("1.50x (1.50x to 1.50x)"));
        assert_eq!(of("demartek.target-read-latency").as_deref(), Some("0.33x (0.33x to 0.33x)"));
        assert_eq!(of("demartek.software-target-read-cores-90").as_deref(), Some("1 of 2 cores"));
        assert_eq!(of("demartek.target-write-iops"), None, "no writes were measured");
    }

    #[test]
    fn every_experiment_of_a_paper_has_a_figure_beside_its_first_sentence() {
        for preset in crate::preset::PRESETS {
            let paper = preset.paper.map(str::to_owned);
            let record = Record { preset: preset.id.into(), paper, ..Record::default() };
            let beside = printed_figure_text(&record);
            assert_eq!(beside.is_some(), preset.paper.is_some(), "{}", preset.id);
            assert!(
                beside.iter().all(|text| !text.contains("sdc2021.") && !text.contains("t6-100g.")),
                "{beside:?}"
            );
        }
        for (preset, id, _) in HEADLINE_PAPER_FIGURES {
            assert!(
                Preset::find(preset).is_some() && published_data().figure(id).is_some(),
                "{preset}: {id}"
            );
        }
        let record =
            Record { preset: "nvme-tcp-jitter".into(), paper: Some("sdc2021".into()), ..Record::default() };
        assert!(printed_figure_text(&record).unwrap().starts_with("-60 % (0.40x) for standard deviation"));
    }

    #[test]
    fn another_figure_than_the_first_sentences_is_told_to_be_another() {
        let of = |preset: &str, paper: &str, limit: Option<&str>| {
            let mut one = five("blockwire", "randread", 4096, 10_000);
            one.labels.extend(limit.map(|limit| ("limit".to_owned(), limit.to_owned())));
            let paper = Some(paper.to_owned());
            let record = Record { preset: preset.into(), paper, points: vec![one], ..Record::default() };
            is_different_figure(&record, &Headline::of(&record).unwrap())
        };
        assert!(!of("nvme-tcp-jitter", "sdc2021", Some("1000Mb/s")));
        assert!(of("nvme-tcp-jitter", "sdc2021", None), "the paper's link was congested");
        assert!(of("nvme-tcp-latency", "sdc2021", None), "the paper's is what a network adds");
        assert!(of("demartek-vdbench", "demartek", None), "the paper's is of percent of a processor");
        assert!(!of("quick", "none", None), "of a paper without a figure there is none");
    }

    #[test]
    fn figures_of_one_system_stand_beside_the_best_of_the_run() {
        let record =
            Record { points: vec![point("blockwire", "randread", 8192, 30_000)], ..Record::default() };
        let of = |id: &str| measured_counterpart(&record, published_data().figure(id).unwrap());
        assert_eq!(of("windows-100g.read-iops").as_deref(), Some("30,000 IOPS"));
        assert_eq!(of("windows-100g.write-iops"), None);
        assert_eq!(of("t6-100g.luns"), None);
    }

    /// A file is slower than memory: its latency without a network is not that of memory.
    #[test]
    fn what_a_network_adds_is_told_of_the_same_kind_of_volume() {
        let one = |protocol: &str, volume: &str, us: u64| {
            let mut one = crate::record::tests::point("blockwire", "randread", 4096, 1000);
            (one.protocol, one.depth) = (protocol.to_owned(), 1);
            one.labels = vec![("volume".to_owned(), volume.to_owned())];
            for run in &mut one.runs {
                run.latency = crate::Histogram::default();
                assert!(run.latency.record_many(us * 1000, run.ios));
            }
            one
        };
        let points = vec![
            one("local", "ram", 1),
            one("local", "file", 50),
            one("nvme-tcp", "ram", 11),
            one("nvme-tcp", "file", 62),
        ];
        let record = Record {
            preset: "nvme-tcp-latency".to_owned(),
            paper: Some("sdc2021".to_owned()),
            points,
            ..Record::default()
        };
        let page = crate::report::render_html(&record);
        let of = |delta: &str| page.matches(&format!(">{delta}</td>")).count();
        assert!(of("10.00") >= 2 && of("12.00") >= 2, "in both tables: {page}");
        assert_eq!((of("61.00"), of("-39.00")), (0, 0));
    }
}
