//! The paper's figures beside the measured ones.
//!
//! Invariant: a printed figure is shown as printed, with its place; a measured one is shown beside it only if
//! it is the same figure of the same experiment.

use std::fmt::Write;

use super::charts::{EndOf, busy_cores};
use super::groups::Names;
use super::markup::{escaped, table};
use super::text::{UNKNOWN, change, figure, size};
use crate::compare::Spread;
use crate::derived::cores_at_least;
use crate::preset::Preset;
use crate::published::{Figure, Paper, check, published};
use crate::record::{End, Metric, Point, Record};

/// Our own target and initiator, as records name them.
const OURS: &str = "blockwire";

/// The papers' section.
pub(super) fn paper(page: &mut String, record: &Record, names: &Names) {
    let data = published();
    let Some(paper) = record.paper.as_ref().and_then(|id| data.papers.iter().find(|paper| paper.id == *id))
    else {
        return;
    };
    let _ = write!(
        page,
        "<section id=\"paper\"><h2>Beside the paper</h2><p><b>{}</b>, {}{}. Its set-up: {}.</p>",
        escaped(&paper.title),
        escaped(&paper.by),
        paper.date.as_ref().map(|date| format!(", {}", escaped(date))).unwrap_or_default(),
        escaped(&paper.set_up)
    );
    limits(page, record, paper);
    let figures: Vec<&Figure> = match Preset::find(&record.preset) {
        Some(preset) if preset.paper == Some(paper.id.as_str()) => preset.published().collect(),
        _ => data.of(&paper.id).collect(),
    };
    let mut shown: Vec<&str> = Vec::new();
    for part in [latencies, jitter, efficiency] {
        shown.extend(part(page, record, names, &figures));
    }
    let slips = check(data);
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
            let measured = measured(record, figure).unwrap_or_else(|| UNKNOWN.to_owned());
            vec![figure.what.clone(), figure.to_string(), measured, figure.at.clone(), slip]
        })
        .collect();
    if !rows.is_empty() {
        page.push_str("<h3>Figure by figure</h3><div class=\"beside\">");
        table(page, &["what", "printed", "measured here", "where in the paper", "checked"], rows.into_iter());
        page.push_str("</div>");
    }
    page.push_str("</section>");
}

/// What may be held against each other, and what may not.
fn limits(page: &mut String, record: &Record, paper: &Paper) {
    let fact = |name: &str| {
        let facts = record.environment.iter().flat_map(|machine| &machine.facts);
        facts.filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).next()
    };
    let mut here = Vec::new();
    if let Some(processor) = fact("processor") {
        here.push(processor.to_owned());
    }
    if let Some(cores) = fact("cores") {
        here.push(format!("{cores} cores"));
    }
    if record.is_one_machine() {
        here.push("both ends on one machine".to_owned());
    }
    let is_virtual = record.points.iter().all(|point| point.mtu > 60_000 || record.is_one_machine());
    if is_virtual {
        here.push("a virtual link in place of network cards".to_owned());
    }
    let _ = write!(
        page,
        "<p class=\"warn\"><b>Not comparable:</b> I/Os per second, throughput and latency as such. The paper measured {} on its own \
         machines and network; here it was {}. Nothing here tells what that hardware would do.</p>\
         <p><b>Comparable:</b> what does not depend on one machine: how systems stand to each other under the same load, how \
         cost grows with the size of an I/O, what a network adds to a local I/O.</p>",
        escaped(hardware(&paper.id)),
        escaped(&here.join(", "))
    );
}

/// What a paper's figures are of.
fn hardware(paper: &str) -> &'static str {
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

fn us(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

fn printed<'a>(figures: &[&'a Figure], id: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| figure.id == id).copied()
}

/// A table's cell, and the name of the figure in it.
fn cell(figures: &[&'static Figure], id: &str, shown: &mut Vec<&'static str>) -> String {
    match printed(figures, id) {
        None => UNKNOWN.to_owned(),
        Some(figure) => {
            shown.push(&figure.id);
            format!("{}", figure.value)
        }
    }
}

type Part<'a> = &'a [&'static Figure];

/// The table of local and remote latencies, its rows and ours.
fn latencies(page: &mut String, record: &Record, names: &Names, figures: Part<'_>) -> Vec<&'static str> {
    let mut shown = Vec::new();
    if printed(figures, "sdc2021.kernel-nic-read-remote").is_none() {
        return shown;
    }
    const ROWS: [(&str, &str, &str); 6] = [
        ("kernel", "kernel-nic", "kernel, NIC to NIC"),
        ("kernel", "kernel-toe-one", "kernel, offload at one end"),
        ("kernel", "kernel-toe", "kernel, offload at both ends"),
        ("spdk", "spdk-nic", "SPDK, NIC to NIC"),
        ("spdk", "spdk-toe", "SPDK, offload at the target"),
        ("spdk", "spdk-iwarp", "SPDK, iWARP at both ends"),
    ];
    let mut rows = Vec::new();
    for (local, row, name) in ROWS {
        let mut cells = vec![name.to_owned(), "printed".to_owned()];
        for rw in ["read", "write"] {
            cells.push(cell(figures, &format!("sdc2021.{local}-{rw}-local"), &mut shown));
            cells.push(cell(figures, &format!("sdc2021.{row}-{rw}-remote"), &mut shown));
            cells.push(cell(figures, &format!("sdc2021.{row}-{rw}-delta"), &mut shown));
        }
        rows.push(cells);
    }
    let mine = |point: &Point| names.name(point) + &labels(point);
    let mut systems: Vec<String> = Vec::new();
    for point in record.points.iter().filter(|point| point.protocol != "local") {
        if !systems.contains(&mine(point)) {
            systems.push(mine(point));
        }
    }
    let shown_us = |value: Option<f64>| value.map_or(UNKNOWN.to_owned(), |us| format!("{us:.2}"));
    for system in systems {
        let mut cells = vec![system.clone(), "measured here".to_owned()];
        for rw in ["randread", "randwrite"] {
            let near = record.points.iter().find(|point| point.protocol == "local" && point.rw == rw);
            let far = record
                .points
                .iter()
                .find(|point| point.protocol != "local" && point.rw == rw && mine(point) == system);
            let (near, far) =
                (near.and_then(|p| us(p.mean_latency())), far.and_then(|p| us(p.mean_latency())));
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
    table(page, &head, rows.into_iter());
    shown
}

fn labels(point: &Point) -> String {
    point.labels.iter().map(|(name, value)| format!(", {name} {value}")).collect()
}

/// The table of jitter.
fn jitter(page: &mut String, record: &Record, names: &Names, figures: Part<'_>) -> Vec<&'static str> {
    let mut shown = Vec::new();
    if printed(figures, "sdc2021.jitter-nic-average").is_none() {
        return shown;
    }
    let mut rows = Vec::new();
    for (row, name) in [("nic", "NIC to NIC, congested"), ("toe", "offload at both ends, congested")] {
        rows.push(vec![
            name.to_owned(),
            "printed".to_owned(),
            cell(figures, &format!("sdc2021.jitter-{row}-average"), &mut shown),
            cell(figures, &format!("sdc2021.jitter-{row}-deviation"), &mut shown),
        ]);
    }
    for point in &record.points {
        let value = |spread: Option<Spread>| us(spread).map_or(UNKNOWN.to_owned(), figure);
        let link = point.link();
        rows.push(vec![
            format!("{}, {} {}, {link}{}", names.name(point), point.rw, size(point.bytes), labels(point)),
            "measured here".to_owned(),
            value(point.mean_latency()),
            value(point.jitter()),
        ]);
    }
    page.push_str("<h3>Average latency and its standard deviation, in µs</h3>");
    table(page, &["system", "", "average", "standard deviation"], rows.into_iter());
    shown
}

/// The table of work done against processor used.
fn efficiency(page: &mut String, record: &Record, names: &Names, figures: Part<'_>) -> Vec<&'static str> {
    let mut shown = Vec::new();
    if printed(figures, "sdc2021.aic-8k-iops").is_none() {
        return shown;
    }
    let mut rows = Vec::new();
    for (row, name) in [("aic", "NVMe add-in card"), ("sas", "SAS 12G SSD"), ("sata", "SATA 6G SSD")] {
        let mut cells = vec![name.to_owned(), "printed".to_owned()];
        for what in ["iops", "bandwidth", "response", "cpu-per-iop"] {
            for bytes in ["8k", "1m"] {
                cells.push(cell(figures, &format!("sdc2021.{row}-{bytes}-{what}"), &mut shown));
            }
        }
        rows.push(cells);
    }
    let mut systems: Vec<String> = Vec::new();
    for point in &record.points {
        let name = names.name(point);
        if !systems.contains(&name) {
            systems.push(name);
        }
    }
    for system in systems {
        let mut cells = vec![system.clone(), "measured here".to_owned()];
        let point = |bytes: u64| record.points.iter().find(|p| p.bytes == bytes && names.name(p) == system);
        let value = |bytes, of: &dyn Fn(&Point) -> Option<f64>| {
            point(bytes).and_then(of).map_or(UNKNOWN.to_owned(), figure)
        };
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| us(p.iops())));
        }
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| Some(us(p.bandwidth())? / f64::from(1 << 20))));
        }
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| Some(us(p.mean_latency())? / 1e3)));
        }
        for bytes in [8 << 10, 1 << 20] {
            cells.push(value(bytes, &|p| Some(us(p.busy(End::Initiator))? / us(p.iops())?)));
        }
        rows.push(cells);
    }
    page.push_str("<h3>Work done against processor used: 100 % random reads</h3>");
    let head =
        ["system", "", "IOPS 8K", "1M", "MiB/s 8K", "1M", "response ms 8K", "1M", "% CPU per IOPS 8K", "1M"];
    table(page, &head, rows.into_iter());
    shown
}

/// The same figure of this run, if it has it.
fn measured(record: &Record, figure_of: &Figure) -> Option<String> {
    let (paper, name) = figure_of.id.split_once('.')?;
    match paper {
        "demartek" => demartek(record, name),
        "t6-100g" | "windows-100g" | "sdc2021" | "t5-vm" => absolute(record, name),
        _ => None,
    }
}

/// Figures that are of one system: the best of this run.
fn absolute(record: &Record, name: &str) -> Option<String> {
    let best = |rw: &str, bytes: Option<u64>, of: &dyn Fn(&Point) -> Option<f64>| {
        let fits = |point: &&Point| {
            point.protocol != "local"
                && point.rw.contains(rw)
                && bytes.is_none_or(|bytes| point.bytes == bytes)
        };
        record.points.iter().filter(fits).filter_map(of).max_by(f64::total_cmp)
    };
    let iops = |point: &Point| us(point.iops());
    let busy = |bytes| best("", Some(bytes), &|point| us(point.busy(End::Initiator)));
    Some(match name {
        "throughput" => format!("{} Gb/s", figure(best("", None, &|point| us(point.bandwidth()))? * 8e-9)),
        "iops" => format!("{} IOPS", figure(best("", Some(4096), &iops)?)),
        "read-iops" => format!("{} IOPS", figure(best("read", Some(8192), &iops)?)),
        "write-iops" => format!("{} IOPS", figure(best("write", Some(8192), &iops)?)),
        "cpu-512k" => format!("{} % CPU", figure(busy(512 << 10)?)),
        "cpu-512" => format!("{} % CPU", figure(busy(512)?)),
        "connections" | "connections-so" => {
            let most = record.points.iter().filter(|point| point.runs.iter().any(|run| run.ios > 0));
            format!("up to {} connections", figure(f64::from(most.map(|point| point.connections).max()?)))
        }
        _ => return None,
    })
}

/// Ratios between the three set-ups: our target over a software target, our initiator over a software
/// initiator.
fn demartek(record: &Record, name: &str) -> Option<String> {
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
                && (point.target == OURS) == is_target_ours
                && (point.initiator == OURS) == is_initiator_ours
        })
    };
    let cores = |point: &Point, limit| {
        let side: EndOf = |run| run.target.as_ref();
        let busy: Vec<f64> = busy_cores(point, side).into_iter().map(|(_, busy)| busy).collect();
        (!busy.is_empty()).then(|| format!("{} of {} cores", cores_at_least(&busy, limit), busy.len()))
    };
    if let Some(limit) = what.strip_prefix("cores-") {
        let point = if end == "software-target-" { find(false, true)? } else { find(true, true)? };
        return cores(point, limit.parse().ok()?);
    }
    let (old, of) = if end == "target-" {
        (find(false, true)?, End::Target)
    } else {
        (find(true, false)?, End::Initiator)
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
    Some(format!("{}{smoke}", change(Some(ratio?))))
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
        let of = |id: &str| measured(&record, published().figure(id).unwrap());
        assert_eq!(of("demartek.target-read-iops").as_deref(), Some("3.0x (3.0x to 3.0x)"));
        assert_eq!(of("demartek.initiator-read-iops").as_deref(), Some("+50 % (+50 % to +50 %)"));
        assert_eq!(of("demartek.target-read-latency").as_deref(), Some("-67 % (-67 % to -67 %)"));
        assert_eq!(of("demartek.software-target-read-cores-90").as_deref(), Some("1 of 2 cores"));
        assert_eq!(of("demartek.target-write-iops"), None, "no writes were measured");
    }

    #[test]
    fn figures_of_one_system_stand_beside_the_best_of_the_run() {
        let record =
            Record { points: vec![point("blockwire", "randread", 8192, 30_000)], ..Record::default() };
        let of = |id: &str| measured(&record, published().figure(id).unwrap());
        assert_eq!(of("windows-100g.read-iops").as_deref(), Some("30,000 IOPS"));
        assert_eq!(of("windows-100g.write-iops"), None);
        assert_eq!(of("t6-100g.luns"), None);
    }
}
