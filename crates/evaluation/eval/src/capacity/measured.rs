//! Measured costs of I/Os in a record: a series of sizes for each pair of systems and load.
//!
//! Invariant: points of a series differ in their size only, or in the requested rate.

use super::IoCost;
use crate::interrupts::{InterruptAccounting, interrupt_seconds};
use crate::record::{EndKind, EndUsage, Point, Record, Run};

/// Costs of one load over sizes, on one pair of systems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostSeries {
    /// The pair of systems.
    pub system: String,
    /// The target's name.
    pub target: String,
    /// The initiator's.
    pub initiator: String,
    /// What carries it.
    pub protocol: String,
    /// fio's word.
    pub rw: String,
    /// I/Os in flight.
    pub depth: u32,
    /// Connections.
    pub connections: u32,
    /// MTU.
    pub mtu: u32,
    /// What an I/O costs the target; empty where it could not be looked at.
    pub target_costs: Vec<IoCost>,
    /// What it costs the initiator.
    pub initiator_costs: Vec<IoCost>,
    /// Sizes that were measured, in bytes.
    pub sizes: Vec<u64>,
    /// Bytes and median IOPS of each size that one connection alone carried.
    pub alone: Vec<(u64, f64)>,
    /// Bytes of a write that ride with its command, and whether the record says so.
    pub rides: (f64, bool),
    /// Bytes that the last-level cache holds, where the record says so.
    pub cache: Option<f64>,
}

/// Data of a write in an NVMe/TCP command's capsule, unless it is configured otherwise.
pub(super) const IN_CAPSULE_BYTES_DEFAULT: f64 = 8192.0;

/// Bytes of a write that ride with its command, and whether the record tells; the target asks for those of larger ones.
/// NVMe/TCP: what a capsule holds; iSCSI: the first burst, of others than named as RFC 7143 has it unless it is negotiated.
fn immediate_bytes(record: &Record, point: &Point) -> (f64, bool) {
    let (target, protocol) = (point.target.as_str(), point.protocol.as_str());
    let name = if protocol == "nvme-tcp" { "in-capsule data" } else { "first burst" };
    let fact = || record_fact(record, &format!("target {target} {name}")).and_then(parse_bytes);
    if let Some(bytes) = negotiated_immediate_bytes(record, point).or_else(fact) {
        return (bytes, true);
    }
    let bytes = match (protocol, target) {
        ("nvme-tcp", _) => IN_CAPSULE_BYTES_DEFAULT,
        (_, "blockwire") => 16_384.0,
        (_, "spdk-iscsi") => 8192.0,
        _ => 65_536.0,
    };
    (bytes, false)
}

/// The same, as it was negotiated. What a capsule holds is the target's to say, to whatever initiator; a first burst is
/// agreed on with each one, and so is whether anything is sent unasked.
fn negotiated_immediate_bytes(record: &Record, point: &Point) -> Option<f64> {
    if point.protocol == "nvme-tcp" {
        let is_like = |other: &&Point| (&other.target, &other.protocol) == (&point.target, &point.protocol);
        let others = record.points.iter().filter(is_like);
        let told =
            point.negotiated("IOCCSZ").or_else(|| others.filter_map(|one| one.negotiated("IOCCSZ")).next());
        // A controller may take nothing in capsules: then every write is asked for.
        return told.and_then(leading_number);
    }
    let is = |name: &str, word: &str| point.negotiated(name) == Some(word);
    let first = point.negotiated("FirstBurstLength").and_then(leading_number)?;
    let segment = point.negotiated("MaxRecvDataSegmentLength (target)").and_then(leading_number);
    match (is("InitialR2T", "Yes"), is("ImmediateData", "No")) {
        (true, true) => Some(0.0),
        // Only what is in the command's own PDU comes unasked.
        (true, false) => Some(segment.map_or(first, |segment| segment.min(first))),
        (false, _) => Some(first),
    }
}

/// `8192 bytes of data`: what its first number says, 0 included.
fn leading_number(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|bytes| bytes as f64)
}

fn record_fact<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let facts = record.environment.iter().flat_map(|machine| &machine.facts);
    facts.filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).next()
}

/// `8192`, `32 MiB`, `512K`, `24684092 kB`: bytes, units being those of 1024.
fn parse_bytes(text: &str) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|one: char| !one.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let factor = match unit.trim().chars().next().map(|unit| unit.to_ascii_lowercase()) {
        None | Some('b') => 1.0,
        Some('k') => 1024.0,
        Some('m') => 1024.0 * 1024.0,
        Some('g') => 1024.0 * 1024.0 * 1024.0,
        Some(_) => return None,
    };
    number.parse::<f64>().ok().filter(|number| *number > 0.0).map(|number| number * factor)
}

/// What tells a pair of systems from others: of a load at a rate not the label that names the rate.
fn system_key(point: &Point) -> String {
    if point.is_closed {
        return point.system_name();
    }
    Point { labels: Vec::new(), ..point.clone() }.system_name()
}

impl CostSeries {
    fn matches_point(&self, point: &Point) -> bool {
        (&self.system, &self.rw, self.depth, self.connections, self.mtu)
            == (&system_key(point), &point.rw, point.depth, point.connections, point.mtu)
    }

    /// I/Os per second that one connection alone carried, of a size at most twice or half as large; `None`: none was
    /// measured alone.
    pub fn iops_per_connection(&self, bytes: u64) -> Option<f64> {
        let far = |size: u64| (size as f64 / bytes.max(1) as f64).ln().abs();
        let near = self.alone.iter().filter(|(size, _)| far(*size) <= std::f64::consts::LN_2 * 1.001);
        near.min_by(|a, b| far(a.0).total_cmp(&far(b.0)).then(b.1.total_cmp(&a.1))).map(|(_, iops)| *iops)
    }

    /// An I/O of so many bytes of this load, of which no cost is known.
    pub fn uncosted_io(&self, bytes: f64) -> IoCost {
        let is_asked = IoCost::needs_r2t(&self.rw, bytes, self.rides.0);
        IoCost { bytes, in_flight: bytes * f64::from(self.depth), is_asked, ..IoCost::default() }
    }
}

/// All series of a record that have a cost on either side, in its order.
pub fn cost_series(record: &Record) -> Vec<CostSeries> {
    // One that says nothing of machines is of one.
    let is_one_machine = record.environment.is_empty() || record.is_single_machine();
    let [at_target, at_initiator] =
        [EndKind::Target, EndKind::Initiator].map(|end| InterruptAccounting::of(record, end));
    let mut all: Vec<CostSeries> = Vec::new();
    for point in record.points.iter().filter(|point| !point.is_ceiling()) {
        let at = all.iter().position(|series| series.matches_point(point)).unwrap_or_else(|| {
            all.push(CostSeries {
                system: system_key(point),
                target: point.target.clone(),
                initiator: point.initiator.clone(),
                protocol: point.protocol.clone(),
                rw: point.rw.clone(),
                depth: point.depth,
                connections: point.connections,
                mtu: point.mtu,
                rides: immediate_bytes(record, point),
                cache: record_fact(record, "last-level cache").and_then(parse_bytes),
                alone: single_connection_iops(record, point),
                ..CostSeries::default()
            });
            all.len() - 1
        });
        let Some(series) = all.get_mut(at) else { continue };
        let costs = side_cost(point, series, is_one_machine, at_target, |run| {
            (run.target.as_ref(), run.initiator.as_ref())
        });
        series.target_costs.extend(costs);
        let costs = side_cost(point, series, is_one_machine, at_initiator, |run| {
            (run.initiator.as_ref(), run.target.as_ref())
        });
        series.initiator_costs.extend(costs);
        if !series.sizes.contains(&point.bytes) {
            series.sizes.push(point.bytes);
        }
    }
    all.retain(|series| !series.target_costs.is_empty() || !series.initiator_costs.is_empty());
    all
}

/// Bytes and median IOPS of each size that one connection carried alone, of the same systems and direction.
fn single_connection_iops(record: &Record, like: &Point) -> Vec<(u64, f64)> {
    let is_alone = |point: &&Point| {
        (point.connections, point.is_closed) == (1, true)
            && (&point.target, &point.initiator, &point.protocol, &point.rw)
                == (&like.target, &like.initiator, &like.protocol, &like.rw)
    };
    let points = record.points.iter().filter(is_alone);
    points.filter_map(|point| Some((point.bytes, point.iops()?.median))).collect()
}

/// What an I/O cost one side: its processes, without the time of their idle polls, which is what there was no work
/// for, and its part of what interrupts took on its machine where that is not in the time of processes.
fn side_cost(
    point: &Point,
    series: &CostSeries,
    is_one_machine: bool,
    time: InterruptAccounting,
    sides: fn(&Run) -> (Option<&EndUsage>, Option<&EndUsage>),
) -> Option<IoCost> {
    let each = |run: &Run| {
        let (mine, other) = sides(run);
        let mine = mine?;
        let used = |side: &EndUsage| side.process.0 + side.process.1 - side.idle_polls.unwrap_or(0.0);
        let apart =
            interrupt_seconds(mine, run).filter(|_| time == InterruptAccounting::Apart).unwrap_or(0.0);
        // Ends on the same cores share what interrupts cost there.
        let numbers = |side: &EndUsage| side.cores.cores.iter().map(|(core, _)| *core).collect::<Vec<_>>();
        let is_shared = |other: &&EndUsage| {
            let theirs = numbers(other);
            is_one_machine && numbers(mine).iter().any(|core| theirs.contains(core))
        };
        let others = other.filter(is_shared).map_or(0.0, used);
        let part = used(mine) / (used(mine) + others).max(f64::MIN_POSITIVE);
        let seconds = used(mine) + apart * part;
        // Of processes that say that they did nothing else no cost is known.
        (run.ios > 0 && used(mine) > 0.0).then(|| seconds / run.ios as f64)
    };
    let rounds: Vec<f64> = point.runs.iter().filter_map(each).collect();
    let fills = point.runs.iter().filter_map(|run| {
        let (mine, _) = sides(run);
        let cores = mine?.cores.cores.len();
        (cores > 0 && run.seconds > 0.0).then(|| each(run).map(|each| each * run.iops() / cores as f64))?
    });
    let fills: Vec<f64> = fills.collect();
    let fill = fills.iter().sum::<f64>() / fills.len().max(1) as f64;
    (!rounds.is_empty()).then(|| IoCost { rounds, fill, ..series.uncosted_io(point.bytes as f64) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Machine;
    use crate::record::tests::point;

    #[test]
    fn sizes_of_one_load_are_a_series() {
        let points: Vec<Point> = [4096, 65_536]
            .iter()
            .flat_map(|bytes| ["randread", "randwrite"].map(|rw| point("blockwire", rw, *bytes, 10_000)))
            .collect();
        let record = Record { points, ..Record::default() };
        let all = cost_series(&record);
        assert_eq!(all.iter().map(|one| one.rw.as_str()).collect::<Vec<_>>(), ["randread", "randwrite"]);
        assert!(all.iter().all(|one| one.target_costs.len() == 2 && one.initiator_costs.len() == 2));
        // Half a second of the processes for 10,000 I/Os, no interrupts.
        assert!((all[0].target_costs[0].rounds[0] - 0.5 / 10_000.0).abs() < 1e-12);
        assert!((all[0].target_costs[0].fill - 0.25).abs() < 0.01, "half a core of two");
        assert_eq!(all[0].target_costs[0].in_flight, 32.0 * 4096.0);
        assert_eq!(
            (all[0].iops_per_connection(5000), all[0].iops_per_connection(20_000)),
            (Some(10_000.0), None)
        );
    }

    /// 18 connections that together were limited by a core say nothing of what one carries.
    #[test]
    fn one_connection_carries_what_one_carried() {
        let mut many = point("blockwire", "randread", 4096, 90_000);
        many.connections = 18;
        let one = point("blockwire", "randread", 4096, 40_000);
        let of = |points: &[&Point]| {
            let points = points.iter().map(|point| (*point).clone()).collect();
            cost_series(&Record { points, ..Record::default() })[0].iops_per_connection(4096)
        };
        assert_eq!((of(&[&many]), of(&[&many, &one])), (None, Some(40_000.0)));
    }

    #[test]
    fn thresholds_are_those_of_the_configuration() {
        let write = point("blockwire", "randwrite", 32_768, 10_000);
        let facts = [("target blockwire first burst", "64K"), ("last-level cache", "32 MiB")];
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut record = Record { points: vec![write], ..Record::default() };
        let first = &cost_series(&record)[0];
        assert!((first.rides, first.cache) == ((16_384.0, false), None) && first.target_costs[0].is_asked);
        record.environment = vec![Machine { role: "target and initiator".into(), facts }];
        let first = &cost_series(&record)[0];
        assert_eq!((first.rides, first.cache), ((65_536.0, true), Some(33_554_432.0)));
        assert!(!first.target_costs[0].is_asked);
        assert_eq!(
            ["8192", "512K", "24 kB", "x", ""].map(parse_bytes),
            [Some(8192.0), Some(524_288.0), Some(24_576.0), None, None]
        );
    }

    /// Of SPDK's target, which asks from 8 KiB on, another first burst was taken for granted with each initiator.
    #[test]
    fn thresholds_are_what_each_pair_negotiated() {
        let of = |protocol: &str, terms: &[(&str, &str)]| {
            let mut write = point("spdk-x", "randwrite", 32_768, 10_000);
            protocol.clone_into(&mut write.protocol);
            let mut other = Point { initiator: "spdk".into(), ..write.clone() };
            let terms = terms.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            write.runs.iter_mut().for_each(|run| run.negotiated = terms.clone().collect());
            other.runs.iter_mut().for_each(|run| run.negotiated.clear());
            let all = cost_series(&Record { points: vec![write, other], ..Record::default() });
            (all[0].rides, all[1].rides)
        };
        let (first, segment) = (("FirstBurstLength", "65536"), ("MaxRecvDataSegmentLength (target)", "8192"));
        let (asked, unasked) = (("InitialR2T", "Yes"), ("InitialR2T", "No"));
        let none = ("ImmediateData", "No");
        let iscsi = |terms: &[(&str, &str)]| of("iscsi", terms);
        assert_eq!(iscsi(&[first, segment, unasked]), ((65_536.0, true), (65_536.0, false)));
        assert_eq!(iscsi(&[first, segment, asked]).0, (8192.0, true));
        assert_eq!(iscsi(&[first, segment, asked, none]).0, (0.0, true));
        // The target says it to everyone.
        let four = (4096.0, true);
        assert_eq!(of("nvme-tcp", &[("IOCCSZ", "4096 bytes of data")]), (four, four));
        assert_eq!(of("nvme-tcp", &[("IOCCSZ", "0 bytes of data")]).0, (0.0, true));
        assert_eq!(of("nvme-tcp", &[]).0, (IN_CAPSULE_BYTES_DEFAULT, false));
    }

    /// A target that polls uses its core whole however little there is to do.
    #[test]
    fn polling_in_vain_is_no_cost_of_an_io() {
        let mut one = point("blockwire", "randread", 4096, 10_000);
        for side in one.runs.iter_mut().filter_map(|run| run.target.as_mut()) {
            side.idle_polls = Some(0.4);
        }
        let cost = |point: &Point| {
            let record = Record { points: vec![point.clone()], ..Record::default() };
            cost_series(&record)[0].target_costs.first().map(|cost| cost.rounds[0])
        };
        assert!((cost(&one).unwrap() - 0.1 / 10_000.0).abs() < 1e-12);
        for side in one.runs.iter_mut().filter_map(|run| run.target.as_mut()) {
            side.idle_polls = Some(0.5);
        }
        assert_eq!(cost(&one), None);
    }

    #[test]
    fn interrupts_are_shared_on_one_machine_and_whole_on_two() {
        let mut one = point("blockwire", "randread", 4096, 10_000);
        // Two cores for a second each, with so much user time and 0.3 s of interrupts together.
        let work = |side: &mut EndUsage, user: f64| {
            for (_, kinds) in &mut side.cores.cores {
                (kinds.user, kinds.system) = (user / 2.0, 0.0);
                (kinds.softirq, kinds.idle) = (0.15, 1.0 - 0.15 - user / 2.0);
            }
        };
        for side in one.runs.iter_mut().flat_map(|run| [&mut run.target, &mut run.initiator]).flatten() {
            work(side, 1.5);
        }
        let mut record = Record { points: vec![one], ..Record::default() };
        let cost = |record: &Record| cost_series(record)[0].target_costs[0].rounds[0] * 10_000.0;
        // The target's processes used 0.5 s, the initiator's 1 s: a third of the interrupts is the target's.
        assert!((cost(&record) - 0.6).abs() < 1e-9);
        // With cores of its own, what interrupts take there is its own.
        for run in &mut record.points[0].runs {
            let (target, initiator) = (run.target.as_mut().unwrap(), run.initiator.as_mut().unwrap());
            initiator.cores.cores.iter_mut().for_each(|(core, _)| *core += 2);
            work(target, 0.5);
            work(initiator, 1.0);
        }
        assert!((cost(&record) - 0.8).abs() < 1e-9);
        let machine = |role: &str| Machine { role: role.into(), ..Machine::default() };
        record.environment = vec![machine("target"), machine("initiator")];
        assert!((cost(&record) - 0.8).abs() < 1e-9);
    }

    /// They were added to a time that held them: more than the core that there was.
    #[test]
    fn interrupts_that_are_in_the_time_of_processes_are_never_counted_twice() {
        let mut one = point("blockwire", "randread", 4096, 10_000);
        for side in one.runs.iter_mut().filter_map(|run| run.target.as_mut()) {
            side.cores.cores.truncate(1);
            let kinds = &mut side.cores.cores[0].1;
            (kinds.user, kinds.system, kinds.softirq, kinds.idle) = (0.4, 0.4, 0.2, 0.0);
            side.process = (0.5, 0.5);
        }
        let record = Record { points: vec![one], ..Record::default() };
        let cost = cost_series(&record)[0].target_costs[0].rounds[0] * 10_000.0;
        assert!((cost - 1.0).abs() < 1e-9, "{cost}");
    }
}
