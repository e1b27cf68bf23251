//! Whether the time of processes includes interrupts, which depends on the kernel's configuration.
//!
//! With `CONFIG_IRQ_TIME_ACCOUNTING` a kernel subtracts the time of hard and soft interrupts from the
//! interrupted process; without it, the process is charged. `/proc/stat` shows that time separately in both
//! cases. A process cannot have more than its cores' user and system time unless interrupts are included, so
//! a record shows which case it is. Invariant: interrupts are added to a cost only if they are known to be
//! separate.

use crate::record::{EndKind, EndUsage, Record, Run};

/// Where the time of interrupts is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptAccounting {
    /// In the time of the processes that were interrupted.
    InProcesses,
    /// Apart from processes.
    Apart,
    /// The record does not tell.
    Untold,
}

/// Seconds of interrupts that a system must have had on its cores for its processes to tell anything: clocks of
/// processors tick every 10 ms.
const INTERRUPT_SECONDS_MIN: f64 = 0.2;

/// What cores and processes of one system did over all its runs, in seconds.
#[derive(Clone, Copy, Default)]
struct InterruptTally {
    processes: f64,
    /// User and system time of its cores.
    cores: f64,
    interrupts: f64,
}

impl InterruptTally {
    /// `other`: another end on the very same cores.
    fn add(&mut self, side: &EndUsage, other: Option<&EndUsage>, run: &Run) {
        let total = side.cores.total();
        let (Some(interrupts), true) = (interrupt_seconds(side, run), total.total() > 0.0) else { return };
        let used = |side: &EndUsage| side.process.0 + side.process.1;
        self.processes += used(side) + other.map_or(0.0, used);
        self.cores += (total.user + total.system) * window_scale(side, run);
        self.interrupts += interrupts;
    }

    /// Which part of the interrupts is above what its cores' user and system time accounts for.
    fn unaccounted_part(&self) -> Option<f64> {
        (self.interrupts >= INTERRUPT_SECONDS_MIN).then(|| (self.processes - self.cores) / self.interrupts)
    }
}

/// What turns seconds between two looks at the cores into the seconds for which figures counted.
fn window_scale(side: &EndUsage, run: &Run) -> f64 {
    let total = side.cores.total().total();
    if total > 0.0 { run.seconds * side.cores.cores.len() as f64 / total } else { 1.0 }
}

fn has_same_cores(one: &EndUsage, two: &EndUsage) -> bool {
    let numbers = |side: &EndUsage| side.cores.cores.iter().map(|(core, _)| *core).collect::<Vec<_>>();
    numbers(one) == numbers(two)
}

/// Seconds of interrupts on an end's cores while figures counted; `None`: what works there is no process, and its time
/// is that of its cores, interrupts included.
pub fn interrupt_seconds(side: &EndUsage, run: &Run) -> Option<f64> {
    let total = side.cores.total();
    (side.resident > 0).then(|| (total.irq + total.softirq) * window_scale(side, run))
}

impl InterruptAccounting {
    /// How one end's machine counts, as a record tells. Both ends tell of one machine.
    pub fn of(record: &Record, end: EndKind) -> InterruptAccounting {
        let is_one = record.environment.is_empty() || record.is_single_machine();
        let mut systems: Vec<(EndKind, &str, InterruptTally)> = Vec::new();
        for point in &record.points {
            for run in &point.runs {
                let (target, initiator) = (run.target.as_ref(), run.initiator.as_ref());
                let is_shared =
                    is_one && target.zip(initiator).is_some_and(|(one, two)| has_same_cores(one, two));
                let other = initiator.filter(|_| is_shared);
                let ends = [
                    (EndKind::Target, &point.target, target, other),
                    (EndKind::Initiator, &point.initiator, initiator.filter(|_| !is_shared), None),
                ];
                for (of, name, side, other) in ends.into_iter().filter(|(of, ..)| is_one || *of == end) {
                    let Some(side) = side else { continue };
                    let known = systems.iter_mut().find(|(known, system, _)| *known == of && *system == name);
                    if let Some((_, _, account)) = known {
                        account.add(side, other, run);
                        continue;
                    }
                    let mut account = InterruptTally::default();
                    account.add(side, other, run);
                    systems.push((of, name, account));
                }
            }
        }
        let parts =
            || systems.iter().filter_map(|(_, _, account)| Some((account, account.unaccounted_part()?)));
        // One system that has more than its cores' user and system time is enough.
        if parts().any(|(_, part)| part > 0.5) {
            return InterruptAccounting::InProcesses;
        }
        // That it has less means nothing where others worked on the same cores.
        let is_alone = |account: &InterruptTally| account.processes > 0.9 * account.cores;
        match parts().any(|(account, part)| part < 0.25 && is_alone(account)) {
            true => InterruptAccounting::Apart,
            false => InterruptAccounting::Untold,
        }
    }

    /// What that means for processor time, in a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            InterruptAccounting::InProcesses => {
                "On this machine the time of processes holds that of the interrupts that they were interrupted by \
                 (compared with user, system and interrupt time of the same cores): it is counted once."
            }
            InterruptAccounting::Apart => {
                "On this machine the time of processes does not hold that of interrupts (compared with user, system \
                 and interrupt time of the same cores): what interrupts take is in the cores' figures only."
            }
            InterruptAccounting::Untold => {
                "Whether the time of processes holds that of interrupts cannot be told from these runs: nothing is \
                 added to it."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Machine;
    use crate::record::tests::point;

    /// A record of runs whose target used this much of a core that was whole in use, with interrupts for 0.2 s of it.
    fn record(used: f64) -> Record {
        let mut one = point("blockwire", "randread", 4096, 10_000);
        for run in &mut one.runs {
            let Some(side) = &mut run.target else { continue };
            side.cores.cores.truncate(1);
            let kinds = &mut side.cores.cores[0].1;
            (kinds.user, kinds.system, kinds.softirq, kinds.idle) = (0.4, 0.4, 0.2, 0.0);
            side.process = (used / 2.0, used / 2.0);
            // Nothing is told by this end.
            run.initiator = None;
        }
        Record { points: vec![one], ..Record::default() }
    }

    #[test]
    fn a_record_tells_where_interrupts_are_counted() {
        let of = |used| InterruptAccounting::of(&record(used), EndKind::Target);
        assert_eq!(of(0.99), InterruptAccounting::InProcesses, "more than the cores' user and system time");
        assert_eq!(of(0.80), InterruptAccounting::Apart, "all of it, and no more");
        assert_eq!(of(0.50), InterruptAccounting::Untold, "somebody else used the core, too");
        let mut quiet = record(0.99);
        quiet.points[0].runs.iter_mut().flat_map(|run| &mut run.target).for_each(|side| {
            side.cores.cores[0].1.softirq = 0.01;
        });
        assert_eq!(
            InterruptAccounting::of(&quiet, EndKind::Target),
            InterruptAccounting::Untold,
            "too few of them"
        );
    }

    /// The time of a target in the kernel is that of its cores: it says nothing of processes.
    #[test]
    fn what_is_no_process_tells_nothing_of_processes() {
        let mut kernel = record(1.0);
        kernel.points[0].runs.iter_mut().flat_map(|run| &mut run.target).for_each(|side| side.resident = 0);
        assert_eq!(InterruptAccounting::of(&kernel, EndKind::Target), InterruptAccounting::Untold);
        let run = &kernel.points[0].runs[0];
        assert_eq!(interrupt_seconds(run.target.as_ref().unwrap(), run), None);
    }

    #[test]
    fn machines_are_told_apart() {
        let mut far = record(0.99);
        assert_eq!(
            InterruptAccounting::of(&far, EndKind::Initiator),
            InterruptAccounting::InProcesses,
            "one machine"
        );
        let machine = |role: &str| Machine { role: role.into(), ..Machine::default() };
        far.environment = vec![machine("target"), machine("initiator")];
        assert_eq!(InterruptAccounting::of(&far, EndKind::Initiator), InterruptAccounting::Untold);
        assert_eq!(InterruptAccounting::of(&far, EndKind::Target), InterruptAccounting::InProcesses);
    }
}
