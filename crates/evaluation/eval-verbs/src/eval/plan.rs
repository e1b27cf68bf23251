//! `blockwire eval plan`: how many cores, links and connections a load needs, from measured costs of I/Os.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use eval::bootstrap::ROUNDS_MIN;
use eval::capacity::{
    CostSeries, HeldOutPrediction, IoCost, LoadNeeds, MISS_MAX, PlannedLoad, PredictedCost, SPREAD_MAX,
    cost_series, costs_at_fill, header_bytes, leave_one_out, predict_cost,
};
use serde_json::{Value, json};

use super::records::read_record;
use config::size::{self, format_exact};
use process::exit::{Exit, Failure};
use process::stdout::print;

/// Links that are sold, in bits per second.
const LINK_RATES: [f64; 3] = [100e9, 200e9, 400e9];
/// Connections that adapters of the papers carry at full speed.
const ADAPTER_CONNECTIONS_MAX: u32 = 16_384;

/// `eval plan`
#[derive(Debug, Args)]
#[command(
    after_help = "RUN is a record with at least three I/O sizes of the same load, for example of t6-100g-sweep. The \
processor time of an I/O at either end is computed from the sizes next to the requested one; what cannot be predicted well is refused.

Examples:
  blockwire eval plan --link 100G --io 4K --iops 2.9M --from sweep/
  blockwire eval plan --link 400G --io 64K --iops 700K --from sweep/ \\
      --rw randwrite --mtu 1500 --fill 60%
  blockwire eval plan --check --from sweep/
      how well it predicts sizes that were left out"
)]
pub struct PlanArgs {
    /// The run with the measured costs
    #[arg(long = "from", value_name = "RUN")]
    from: PathBuf,
    /// Bits per second of a link: 25G, 100G, 400G (decimal)
    #[arg(long, value_name = "RATE", default_value = "100G", value_parser = parse_decimal)]
    link: f64,
    /// Bytes of an I/O: 4K (binary)
    #[arg(long, value_name = "SIZE", value_parser = size::parse, required_unless_present = "check")]
    io: Option<u64>,
    /// I/Os per second: 2.9M (decimal)
    #[arg(long, value_name = "RATE", value_parser = parse_decimal, required_unless_present = "check")]
    iops: Option<f64>,
    /// MTU of the links in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 9000, value_parser = clap::value_parser!(u32).range(576..=65_536))]
    mtu: u32,
    /// Connections to spread the load over [default: as many as the measured ones would need]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Maximum utilization of a core
    #[arg(long, value_name = "PERCENT", default_value = "80%", value_parser = parse_fraction)]
    fill: f64,
    /// Only this load of the run: randread, randwrite ...
    #[arg(long, value_name = "RW")]
    rw: Option<String>,
    /// Only this target of the run
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Only this initiator of the run
    #[arg(long, value_name = "NAME")]
    initiator: Option<String>,
    /// Only this protocol of the run: iscsi, nvme-tcp
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,
    /// Leave out each size in turn and predict it from the others
    #[arg(long, conflicts_with_all = ["io", "iops", "connections"])]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `2.9M`, `100G`, `700k`: decimal.
fn parse_decimal(text: &str) -> Result<f64, Failure> {
    let wrong = || Failure::usage(format!("\"{text}\" is no rate: write for example 100G or 2.9M (decimal)"));
    let text = text.trim();
    let units = [(['k', 'K'], 1e3), (['m', 'M'], 1e6), (['g', 'G'], 1e9), (['t', 'T'], 1e12)];
    let (number, factor) = units
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1.0));
    let value = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(wrong()) }
}

fn parse_fraction(text: &str) -> Result<f64, Failure> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    let fits = number.filter(|number| *number >= 1.0 && *number <= 100.0).map(|number| number / 100.0);
    fits.ok_or_else(|| Failure::usage(format!("\"{text}\" is no part of a core: write 1% to 100%")))
}

/// Computes it.
pub fn plan_capacity(args: &PlanArgs) -> Result<Exit, Failure> {
    let record = read_record(&args.from)?;
    let wanted = |one: &CostSeries| {
        let fits = |asked: &Option<String>, has: &str| asked.as_deref().is_none_or(|asked| asked == has);
        fits(&args.rw, &one.rw)
            && fits(&args.target, &one.target)
            && fits(&args.initiator, &one.initiator)
            && fits(&args.protocol, &one.protocol)
    };
    let all = cost_series(&record);
    let chosen: Vec<&CostSeries> = all.iter().filter(|one| wanted(one)).collect();
    if chosen.is_empty() {
        return Err(no_series_failure(args, &all));
    }
    let text = match (args.io, args.iops) {
        (Some(bytes), Some(iops)) => needs_text(args, &chosen, bytes, iops)?,
        _ => check_prediction(args, &chosen)?,
    };
    print(&text)?;
    Ok(Exit::Success)
}

fn no_series_failure(args: &PlanArgs, all: &[CostSeries]) -> Failure {
    let path = args.from.display();
    if all.is_empty() {
        return Failure::failed(format!(
            "{path}: no processor time was measured in this run, on either end; plan from one that has it"
        ));
    }
    let has: Vec<String> = all.iter().map(|one| format!("{} {}", one.system, one.rw)).collect();
    Failure::usage(format!("{path} has no such load; it has: {}", has.join("; ")))
}

/// The ends of a series that were measured, by name.
fn measured_ends(one: &CostSeries) -> [(&'static str, &[IoCost]); 2] {
    [("target", &one.target_costs), ("initiator", &one.initiator_costs)]
}

fn series_label(one: &CostSeries) -> String {
    format!("{} {}, {} in flight, MTU {}", one.system, one.rw, one.depth, one.mtu)
}

fn needs_text(args: &PlanArgs, chosen: &[&CostSeries], bytes: u64, iops: f64) -> Result<String, Failure> {
    let mut answers = Vec::new();
    let mut why = Vec::new();
    for one in chosen {
        let load = planned_load(args, one, bytes, iops);
        for (end, costs) in measured_ends(one).into_iter().filter(|(_, costs)| !costs.is_empty()) {
            let wanted = one.uncosted_io(bytes as f64);
            match predict_cost(&costs_at_fill(costs, args.fill), &wanted, one.cache) {
                Ok(cost) => answers.push((*one, end, cost, load, load.needs(&cost))),
                Err(refusal) => why.push(format!("{}, {end}: {refusal}", series_label(one))),
            }
        }
    }
    let Some((one, _, _, load, _)) = answers.first() else {
        return Err(Failure::failed(format!(
            "{}: nothing is predicted. {}",
            args.from.display(),
            why.join("; ")
        )));
    };
    if args.json {
        let all: Vec<Value> = answers
            .iter()
            .map(|(one, end, cost, load, need)| {
                json!({
                    "target": one.target, "initiator": one.initiator, "protocol": one.protocol, "rw": one.rw,
                    "depth": one.depth, "end": end, "cost": cost, "need": need,
                    "per_connection": load.per_connection, "headers": load.headers,
                    "sizes_measured": one.sizes,
                })
            })
            .collect();
        let value = json!({
            "io_bytes": bytes, "iops": iops, "link": args.link, "mtu": args.mtu, "fill": args.fill,
            "needs": all, "refused": why, "line_rates": link_rates(load).iter().map(|(link, mtu, rate)| {
                json!({ "link": link, "mtu": mtu, "iops": rate })
            }).collect::<Vec<_>>(),
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut text = format!(
        "{} IOPS of {} are {:.1} Gb/s of payload; links of {:.0} GbE, MTU {}, cores filled to {:.0} %\n",
        format_thousands(iops),
        format_exact(bytes),
        eval::derived::payload_gbps(iops, bytes as f64),
        args.link / 1e9,
        args.mtu,
        args.fill * 100.0
    );
    let mut last = None;
    for (one, end, cost, load, need) in &answers {
        if last != Some(series_label(one)) {
            let _ = writeln!(text, "\n{}", series_label(one));
            push_links(&mut text, args, load, need);
            last = Some(series_label(one));
        }
        push_cores(&mut text, args, end, cost, need);
    }
    for why in &why {
        let _ = writeln!(text, "\nNot predicted: {why}");
    }
    push_line_rates(&mut text, load);
    push_assumptions(&mut text, one);
    Ok(text)
}

fn planned_load(args: &PlanArgs, one: &CostSeries, bytes: u64, iops: f64) -> PlannedLoad {
    let is_write = one.rw.contains("write");
    PlannedLoad {
        iops,
        bytes: bytes as f64,
        link: args.link,
        mtu: f64::from(args.mtu),
        headers: header_bytes(&one.protocol, is_write, bytes as f64),
        fill: args.fill,
        per_connection: one.iops_per_connection(bytes).filter(|rate| *rate > 0.0),
    }
}

fn push_cores(text: &mut String, args: &PlanArgs, end: &str, cost: &PredictedCost, need: &LoadNeeds) {
    let far =
        if (cost.fill - args.fill).abs() > 0.1 { "; at the planned fill it was not measured" } else { "" };
    let _ = writeln!(
        text,
        "  {end:<11} {:.2} cores ({:.2} to {:.2}): an I/O costs {:.2} us ({:.2} to {:.2}, {}), of cores {:.0} % full{far}",
        need.cores,
        need.cores_least,
        need.cores_most,
        cost.seconds * 1e6,
        cost.low * 1e6,
        cost.high * 1e6,
        cost.chance,
        cost.fill * 100.0
    );
}

fn push_links(text: &mut String, args: &PlanArgs, load: &PlannedLoad, need: &LoadNeeds) {
    let full = need.wire / (f64::from(need.links.max(1)) * load.link) * 100.0;
    let _ = writeln!(
        text,
        "  {:<11} {} ({:.1} Gb/s on the wire, {full:.0} % full; one carries {} IOPS at most)",
        "links",
        need.links,
        need.wire / 1e9,
        format_thousands(need.line_rate)
    );
    let (Some(rate), Some(connections)) = (load.per_connection, need.connections) else {
        let _ = writeln!(
            text,
            "  {:<11} not known: no size near to it was measured on one connection alone",
            "connections"
        );
        return;
    };
    let count = args.connections.unwrap_or(connections);
    let _ = writeln!(
        text,
        "  {:<11} {} at {} IOPS each, as one carried alone; over {}, each carries {}{}",
        "connections",
        format_thousands(f64::from(connections)),
        format_thousands(rate),
        format_thousands(f64::from(args.connections.unwrap_or(ADAPTER_CONNECTIONS_MAX))),
        format_thousands(load.iops / f64::from(args.connections.unwrap_or(ADAPTER_CONNECTIONS_MAX))),
        if count > ADAPTER_CONNECTIONS_MAX {
            "; adapters of the papers carry 16,384 at full speed"
        } else {
            ""
        }
    );
}

/// Most IOPS of each link at each MTU.
fn link_rates(load: &PlannedLoad) -> Vec<(f64, u32, f64)> {
    let rate = |link: f64, mtu: u32| {
        (link, mtu, PlannedLoad { link, mtu: f64::from(mtu), ..*load }.line_rate_iops())
    };
    LINK_RATES.iter().flat_map(|link| [1500, 9000].map(|mtu| rate(*link, mtu))).collect()
}

fn push_line_rates(text: &mut String, load: &PlannedLoad) {
    let _ = writeln!(text, "\nLine rate of this I/O size, in IOPS and Gb/s of payload:");
    let _ = writeln!(text, "  {:<9} {:>24} {:>24}", "link", "MTU 1500", "MTU 9000");
    for pair in link_rates(load).chunks_exact(2) {
        let cell = |rate: f64| {
            format!("{} ({:.1})", format_thousands(rate), eval::derived::payload_gbps(rate, load.bytes))
        };
        let [(link, _, small), (_, _, jumbo)] = pair else { continue };
        let name = format!("{:.0} GbE", link / 1e9);
        let _ = writeln!(text, "  {name:<9} {:>24} {:>24}", cell(*small), cell(*jumbo));
    }
}

fn push_assumptions(text: &mut String, one: &CostSeries) {
    let said = |is_recorded: bool| {
        if is_recorded { "as the run tells" } else { "by default, since the run does not tell" }
    };
    let cache = one.cache.map_or_else(
        || "is not told by the run: where the cost bends no size is predicted".to_owned(),
        |bytes| {
            format!(
                "holds {} in flight; sizes on either side of it tell nothing of each other",
                format_exact(bytes as u64)
            )
        },
    );
    let _ = write!(
        text,
        "\nAssumed:\n\
         - The cost of an I/O lies between those of the measured sizes next to it, and bends in one sense there; cores add up: no\n  \
           lock or memory bus gets in the way of more of them. Processors are those of the run.\n\
         - Writes of more than {} are asked for ({}). The last-level cache {cache}.\n\
         - The cost is that of the processes (user and system, without idle polling where they tell). Interrupts are\n  \
           added where the run shows that its kernel does not count them in processes: on cores that both ends\n  \
           share, in proportion to their processes. What a network card's driver costs beyond the run's own link is not in it.\n\
         - Bounds are how far the cost may bend, and chance: with 95 % certainty over rounds, or, of fewer than {ROUNDS_MIN} rounds and\n  \
           of a size that was measured itself, the range of the rounds. Beyond {:.0} % to either side, and where rounds differ\n  \
           by more than {:.0} %, nothing is predicted.\n\
         - On the wire each frame has 38 bytes of Ethernet and 52 of IPv4 and TCP, each I/O its headers; both\n  \
           directions are carried at once, so the greater counts. No retransmits.\n\
         - Connections: each carries what one carried alone, at its depth and its link's delay.\n",
        format_exact(one.rides.0 as u64),
        said(one.rides.1),
        MISS_MAX * 100.0,
        SPREAD_MAX * 100.0
    );
}

fn check_prediction(args: &PlanArgs, chosen: &[&CostSeries]) -> Result<String, Failure> {
    let mut found: Vec<(&CostSeries, &str, Vec<HeldOutPrediction>)> = Vec::new();
    for one in chosen {
        for (end, costs) in measured_ends(one).into_iter().filter(|(_, costs)| !costs.is_empty()) {
            // What was measured is held against what is predicted at the fill at which it was measured.
            found.push((*one, end, leave_one_out(&costs_at_fill(costs, 1.0), one.cache)));
        }
    }
    let all: Vec<&HeldOutPrediction> = found.iter().flat_map(|(_, _, misses)| misses).collect();
    let predicted = all.iter().filter(|miss| miss.relative_error().is_some()).count();
    let good = all.iter().filter(|miss| miss.is_within_tolerance()).count();
    if args.json {
        let each = found.iter().flat_map(|(one, end, misses)| {
            misses.iter().map(move |miss| {
                json!({
                    "target": one.target, "initiator": one.initiator, "protocol": one.protocol, "rw": one.rw,
                    "end": end, "bytes": miss.measured.bytes, "measured_seconds": miss.measured.seconds(),
                    "predicted": miss.predicted.ok(), "refused": miss.predicted.err().map(|why| why.to_string()),
                    "miss": miss.relative_error(), "within": miss.is_within_tolerance(),
                })
            })
        });
        let value = json!({
            "sizes": each.collect::<Vec<_>>(), "predicted": predicted, "within": good, "within_most": MISS_MAX,
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut text = String::new();
    for (one, end, misses) in &found {
        let _ = writeln!(
            text,
            "{}, {end}: processor time of an I/O, each size predicted from the others",
            series_label(one)
        );
        let _ = writeln!(text, "  {:>8} {:>12} {:>12} {:>8}", "size", "measured us", "predicted", "miss");
        for miss in misses {
            let (size, measured) = (format_exact(miss.measured.bytes as u64), miss.measured.seconds() * 1e6);
            let _ = match (&miss.predicted, miss.relative_error()) {
                (Ok(cost), Some(part)) => writeln!(
                    text,
                    "  {size:>8} {measured:>12.3} {:>12.3} {:>+6.1} %{}",
                    cost.seconds * 1e6,
                    part * 100.0,
                    if miss.is_within_tolerance() { "" } else { "  too far" }
                ),
                (Err(why), _) => writeln!(text, "  {size:>8} {measured:>12.3}   not predicted: {why}"),
                (Ok(_), None) => Ok(()),
            };
        }
        let _ = writeln!(text);
    }
    let part = if predicted == 0 { 0.0 } else { good as f64 / predicted as f64 * 100.0 };
    let _ = writeln!(
        text,
        "{predicted} of {} sizes are predicted, the others refused; {good} of these predictions ({part:.0} %) are within {:.0} %",
        all.len(),
        MISS_MAX * 100.0
    );
    Ok(text)
}

/// `2,900,000`.
fn format_thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal() {
        assert_eq!(
            (parse_decimal("100G"), parse_decimal("2.9M"), parse_decimal("700k")),
            (Ok(100e9), Ok(2.9e6), Ok(700e3))
        );
        assert!(
            parse_decimal("0").is_err()
                && parse_decimal("-1M").is_err()
                && parse_decimal("x").is_err()
                && parse_decimal("").is_err()
        );
        assert_eq!(
            (format_thousands(2_900_000.0), format_thousands(999.4)),
            ("2,900,000".to_owned(), "999".to_owned())
        );
        assert!(parse_fraction("0").is_err() && parse_fraction("101%").is_err());
    }
}
