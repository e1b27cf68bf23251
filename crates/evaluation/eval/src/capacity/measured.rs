//! Measured costs of I/Os in a record: a series of sizes for each pair of systems and load.
//!
//! Invariant: points of a series differ in their size only.

use super::{Cost, is_asked};
use crate::compare::Spread;
use crate::interrupts::{InterruptTime, interrupts};
use crate::record::{End, EndUsage, Point, Record, Run};

/// Costs of one load over sizes, on one pair of systems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
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
    pub target_costs: Vec<Cost>,
    /// What it costs the initiator.
    pub initiator_costs: Vec<Cost>,
    /// Bytes and median IOPS of each size.
    pub iops: Vec<(u64, f64)>,
}

impl Series {
    fn is_of(&self, point: &Point) -> bool {
        (&self.system, &self.rw, self.depth, self.connections, self.mtu)
            == (&point.system(), &point.rw, point.depth, point.connections, point.mtu)
    }

    /// I/Os per second that one connection carried at the size nearest to this one.
    pub fn per_connection(&self, bytes: u64) -> Option<f64> {
        let far = |size: u64| (size as f64 / bytes.max(1) as f64).ln().abs();
        let nearest = self.iops.iter().min_by(|a, b| far(a.0).total_cmp(&far(b.0)))?;
        Some(nearest.1 / f64::from(self.connections.max(1)))
    }
}

/// All series of a record that have a cost on either side, in its order.
pub fn series(record: &Record) -> Vec<Series> {
    // One that says nothing of machines is of one.
    let is_one_machine = record.environment.is_empty() || record.is_one_machine();
    let [at_target, at_initiator] = [End::Target, End::Initiator].map(|end| InterruptTime::of(record, end));
    let mut all: Vec<Series> = Vec::new();
    for point in &record.points {
        let at = all.iter().position(|series| series.is_of(point)).unwrap_or_else(|| {
            all.push(Series {
                system: point.system(),
                target: point.target.clone(),
                initiator: point.initiator.clone(),
                protocol: point.protocol.clone(),
                rw: point.rw.clone(),
                depth: point.depth,
                connections: point.connections,
                mtu: point.mtu,
                ..Series::default()
            });
            all.len() - 1
        });
        let Some(series) = all.get_mut(at) else { continue };
        let costs =
            cost(point, is_one_machine, at_target, |run| (run.target.as_ref(), run.initiator.as_ref()));
        series.target_costs.extend(costs);
        let costs =
            cost(point, is_one_machine, at_initiator, |run| (run.initiator.as_ref(), run.target.as_ref()));
        series.initiator_costs.extend(costs);
        series.iops.extend(point.iops().map(|spread| (point.bytes, spread.median)));
    }
    all.retain(|series| !series.target_costs.is_empty() || !series.initiator_costs.is_empty());
    all
}

/// What an I/O cost one side: its processes, without the time of their idle polls, which is what there was no work
/// for, and its part of what interrupts took on its machine where that is not in the time of processes.
fn cost(
    point: &Point,
    is_one_machine: bool,
    time: InterruptTime,
    sides: fn(&Run) -> (Option<&EndUsage>, Option<&EndUsage>),
) -> Option<Cost> {
    let each = |run: &Run| {
        let (mine, other) = sides(run);
        let mine = mine?;
        let used = |side: &EndUsage| side.process.0 + side.process.1 - side.idle_polls.unwrap_or(0.0);
        let apart = interrupts(mine, run).filter(|_| time == InterruptTime::Apart).unwrap_or(0.0);
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
    let seconds: Vec<f64> = point.runs.iter().filter_map(each).collect();
    let spread = Spread::of(&seconds)?;
    let bytes = point.bytes as f64;
    let is_asked = is_asked(&point.target, &point.protocol, &point.rw, bytes);
    Some(Cost { bytes, seconds: spread.median, noise: spread.noise(), is_asked })
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
        let all = series(&record);
        assert_eq!(all.iter().map(|one| one.rw.as_str()).collect::<Vec<_>>(), ["randread", "randwrite"]);
        assert!(all.iter().all(|one| one.target_costs.len() == 2 && one.initiator_costs.len() == 2));
        // Half a second of the processes for 10,000 I/Os, no interrupts.
        assert!((all[0].target_costs[0].seconds - 0.5 / 10_000.0).abs() < 1e-12);
        assert_eq!(all[0].per_connection(5000), Some(10_000.0));
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
            series(&record)[0].target_costs.first().map(|cost| cost.seconds)
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
        let cost = |record: &Record| series(record)[0].target_costs[0].seconds * 10_000.0;
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
        let cost = series(&record)[0].target_costs[0].seconds * 10_000.0;
        assert!((cost - 1.0).abs() < 1e-9, "{cost}");
    }
}
