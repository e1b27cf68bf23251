//! Runs one load: all initiator machines at once, and measures both ends while figures count.
//!
//! Invariant: processors are measured from when every machine's figures count until the first machine's stop
//! counting, and are scaled to the time of the figures; a late measurement is marked as late.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use eval::fio::Job;
use eval::record::{EndUsage, ProgressMark, Run};

use crate::Failure;
use crate::initiator::{Initiator, LoadEvent, LoadResult, LoadTask, ProgressCounts, load_timeout};
use crate::place::CommandLocation;
use crate::process_watch::{CpuSample, CpuUse, ProcessWatch};
use crate::recording::format_utc_ms;

/// What one initiator machine does.
#[derive(Clone, Debug)]
pub(crate) struct HostLoad {
    /// Where.
    pub(crate) place: CommandLocation,
    /// On which volumes.
    pub(crate) urls: Vec<String>,
    /// What.
    pub(crate) job: Job,
    /// Over how many connections.
    pub(crate) connections: u32,
}

/// A load, and who is looked at.
pub(crate) struct MeasuredLoad<'a> {
    /// Who does it.
    pub(crate) initiator: &'a dyn Initiator,
    /// What its processes are called in logs.
    pub(crate) name: &'a str,
    /// What each machine does.
    pub(crate) parts: &'a [HostLoad],
    /// The target; `None`: it cannot be looked at.
    pub(crate) target: Option<&'a ProcessWatch>,
    /// The initiators' processors.
    pub(crate) cores: &'a [usize],
    /// For logs.
    pub(crate) dir: &'a Path,
}

/// How a load goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LoadProgress {
    /// Seconds since figures count.
    pub(crate) seconds: f64,
    /// I/Os per second since the last pulse.
    pub(crate) iops: f64,
    /// Mean latency in microseconds.
    pub(crate) latency_us: Option<f64>,
    /// How busy the target's cores and the initiator's are, in percent.
    pub(crate) busy: (Option<f64>, Option<f64>),
}

/// What a thread of an initiator machine says.
enum HostMessage {
    Event(usize, LoadEvent, Instant),
    Over(usize, Box<Result<LoadResult, Failure>>),
}

/// Runs a load to its end. Gives its figures, and the commands that repeat it.
///
/// # Errors
/// If any machine fails, or nothing was done.
pub(crate) fn measure_load(
    load: &MeasuredLoad<'_>,
    tell: &mut dyn FnMut(LoadProgress),
) -> Result<(Run, Vec<String>), Failure> {
    let parts = load.parts;
    let (to, from) = channel();
    let mut window = MeasurementWindow::new(load);
    let longest = parts.iter().map(|part| load_timeout(&part.job)).max().unwrap_or_default();
    let until = Instant::now() + longest + Duration::from_secs(30);
    let mut all: Vec<Option<Result<LoadResult, Failure>>> = parts.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for (host, part) in parts.iter().enumerate() {
            let to = to.clone();
            scope.spawn(move || {
                let task = LoadTask {
                    name: format!("{}-{host}", load.name),
                    place: &part.place,
                    urls: part.urls.clone(),
                    job: &part.job,
                    cores: load.cores,
                    connections: part.connections,
                    dir: load.dir,
                };
                let tell = |event| drop(to.send(HostMessage::Event(host, event, Instant::now())));
                let figures = load.initiator.run(&task, &tell);
                drop(to.send(HostMessage::Over(host, Box::new(figures))));
            });
        }
        drop(to);
        loop {
            match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(HostMessage::Event(host, event, at)) => {
                    window.handle_event(host, event, at);
                    if let Some(pulse) = window.load_progress() {
                        tell(pulse);
                    }
                }
                Ok(HostMessage::Over(host, figures)) => {
                    window.take_last_sample(Instant::now());
                    if let Some(of_host) = all.get_mut(host) {
                        *of_host = Some(*figures);
                    }
                }
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
            }
        }
    });
    let mut figures = LoadResult::default();
    let mut commands = Vec::new();
    for part in all {
        let part = part.ok_or_else(|| Failure::new("an initiator did not finish in time"))??;
        commands.push(part.command.clone());
        figures.merge(&part);
    }
    if figures.ios == 0 {
        return Err(Failure::new("no I/O was done while figures counted"));
    }
    let run = window.into_run(figures);
    // One that cannot be would keep all others from being written down.
    run.check_figures().map_err(|why| Failure::new(format!("impossible figures: {why}")))?;
    Ok((run, commands))
}

/// How late a look may be, in seconds or as part of the time of the figures, whichever is more.
const LATENESS_SECONDS_MAX: f64 = 0.05;
const LATENESS_PART_MAX: f64 = 0.1;

/// The time over which processors are looked at.
struct MeasurementWindow<'a> {
    load: &'a MeasuredLoad<'a>,
    /// Ids of what works on each machine, once its figures count.
    began: Vec<Option<Vec<u32>>>,
    /// One for each machine, whatever its namespaces.
    initiators: Vec<ProcessWatch>,
    open: Option<(Option<CpuSample>, Vec<Option<CpuSample>>)>,
    /// How late the target's looks were, and the initiators', in seconds.
    late: (f64, f64),
    seen: Option<(Option<CpuUse>, Option<CpuUse>)>,
    progress: Vec<ProgressCounts>,
    /// How far each machine was after each second.
    marks: Vec<Vec<ProgressMark>>,
    /// When figures began to count, by the calendar.
    begun: Option<SystemTime>,
    last: (f64, u64),
}

impl<'a> MeasurementWindow<'a> {
    fn new(load: &'a MeasuredLoad<'a>) -> MeasurementWindow<'a> {
        let hosts = load.parts.len();
        MeasurementWindow {
            load,
            began: vec![None; hosts],
            initiators: Vec::new(),
            open: None,
            late: (0.0, 0.0),
            seen: None,
            progress: vec![ProgressCounts::default(); hosts],
            marks: vec![Vec::new(); hosts],
            begun: None,
            last: (0.0, 0),
        }
    }

    fn handle_event(&mut self, host: usize, event: LoadEvent, at: Instant) {
        match event {
            LoadEvent::Began(pids) => {
                if let Some(began) = self.began.get_mut(host) {
                    *began = Some(pids);
                }
                if self.began.iter().all(Option::is_some) && self.open.is_none() {
                    self.begun = SystemTime::now().checked_sub(at.elapsed());
                    self.initiators = self.host_watches();
                    let target = self.load.target.and_then(|watch| watch.sample_with_polling().ok());
                    let looks: Vec<_> = self.initiators.iter().map(|watch| watch.sample().ok()).collect();
                    let late = |look: &Option<CpuSample>| {
                        look.as_ref().map_or(0.0, |look| look.lateness_seconds(at))
                    };
                    self.late = (late(&target), looks.iter().map(late).fold(0.0, f64::max));
                    self.open = Some((target, looks));
                }
            }
            LoadEvent::Progress(progress) => {
                if let Some(of_host) = self.progress.get_mut(host) {
                    *of_host = progress;
                }
                if let Some(marks) = self.marks.get_mut(host) {
                    push_mark_each_second(marks, &progress);
                }
            }
            LoadEvent::Ended => self.take_last_sample(at),
        }
    }

    /// Namespaces of this machine are looked at together: they share its processors.
    fn host_watches(&self) -> Vec<ProcessWatch> {
        let mut machines: Vec<(CommandLocation, Vec<u32>)> = Vec::new();
        for (part, pids) in self.load.parts.iter().zip(&self.began) {
            let place = if part.place.is_local() { CommandLocation::Here } else { part.place.clone() };
            let pids = pids.iter().flatten().copied();
            match machines.iter_mut().find(|(known, _)| *known == place) {
                Some((_, known)) => known.extend(pids),
                None => machines.push((place, pids.collect())),
            }
        }
        machines.into_iter().map(|(place, pids)| ProcessWatch::new(place, pids, self.load.cores)).collect()
    }

    /// Looks for the last time, once, since figures ceased to count.
    fn take_last_sample(&mut self, ceased: Instant) {
        if self.seen.is_none() {
            self.seen = self.cpu_use_so_far(ProcessWatch::sample_with_polling);
            let late = |seen: &Option<CpuUse>| {
                let until = seen.as_ref().map_or(ceased, |seen| seen.until);
                until.saturating_duration_since(ceased).as_secs_f64()
            };
            let (target, initiator) =
                self.seen.as_ref().map_or((0.0, 0.0), |(far, near)| (late(far), late(near)));
            self.late = (self.late.0.max(target), self.late.1.max(initiator));
        }
    }

    /// `far`: how the target is looked at.
    fn cpu_use_so_far(
        &self,
        far: fn(&ProcessWatch) -> Result<CpuSample, Failure>,
    ) -> Option<(Option<CpuUse>, Option<CpuUse>)> {
        let (target, initiators) = self.open.as_ref()?;
        // Initiators first: they may end at any moment, and the target does not.
        let all = self.initiators.iter().zip(initiators);
        let all = all.map(|(watch, before)| Some(watch.usage_since(before.as_ref()?, &watch.sample().ok()?)));
        let near = all.collect::<Option<Vec<_>>>().and_then(merge_cpu_use);
        let target = self.load.target.zip(target.as_ref());
        let far = target.and_then(|(watch, before)| Some(watch.usage_since(before, &far(watch).ok()?)));
        Some((far, near))
    }

    /// How it goes, if there is news.
    fn load_progress(&mut self) -> Option<LoadProgress> {
        let ios: u64 = self.progress.iter().map(|progress| progress.ios).sum();
        let seconds = self.progress.iter().map(|progress| progress.seconds).fold(0.0, f64::max);
        let (before, done) = self.last;
        if seconds <= before {
            return None;
        }
        self.last = (seconds, ios);
        let busy = |seen: &Option<CpuUse>| seen.as_ref().map(|seen| seen.side.cores.total().busy_percent());
        // Asking other machines would hold up the news of the end.
        let is_near = self.load.parts.iter().all(|part| part.place.is_local());
        let seen = if is_near { self.cpu_use_so_far(ProcessWatch::sample) } else { None };
        Some(LoadProgress {
            seconds,
            iops: ios.saturating_sub(done) as f64 / (seconds - before),
            latency_us: self.progress.first().and_then(|progress| progress.latency_us),
            busy: seen.map_or((None, None), |(target, initiator)| (busy(&target), busy(&initiator))),
        })
    }

    fn into_run(self, figures: LoadResult) -> Run {
        let (target, initiator) = self.seen.unwrap_or_default();
        let late = |late: f64| {
            Some(late).filter(|late| *late > LATENESS_SECONDS_MAX.max(figures.seconds * LATENESS_PART_MAX))
        };
        let late = (late(self.late.0), late(self.late.1));
        let scaled = |seen: &CpuUse| {
            let scale = if seen.seconds > 0.0 { figures.seconds / seen.seconds } else { 1.0 };
            let (user, system) = seen.side.process;
            // They count by the clock; a processor that was taken away meanwhile was not used.
            let idle_polls = seen.side.idle_polls.map(|idle| (idle * scale).min((user + system) * scale));
            EndUsage { process: (user * scale, system * scale), idle_polls, ..seen.side.clone() }
        };
        let is_whole = |seen: &&CpuUse| seen.gone.is_none();
        let link = target.as_ref().or(initiator.as_ref());
        let count = |count: Option<u64>| {
            let link = link?;
            Some((count? as f64 * figures.seconds / link.seconds.max(1e-3)) as u64)
        };
        Run {
            // Who made the plan knows of what round this is, and with which seed.
            round: None,
            seed: None,
            began: self.begun.map(format_utc_ms),
            negotiated: figures.negotiated,
            window: Some(self.load.initiator.counting_window()),
            series: merged_series(&self.marks),
            retransmits: count(link.and_then(|seen| seen.retransmits)),
            packets: count(link.and_then(|seen| seen.packets)),
            target: target
                .as_ref()
                .filter(is_whole)
                .map(scaled)
                .map(|side| EndUsage { late: late.0, ..side }),
            // Its own count is of the very time of its figures, wherever it runs.
            initiator: initiator
                .as_ref()
                .filter(|seen| figures.cpu.is_some() || is_whole(seen))
                .map(scaled)
                .map(|side| EndUsage {
                    process: figures.cpu.unwrap_or(side.process),
                    idle_polls: figures.polls.or(side.idle_polls),
                    polls_untold: self.load.initiator.polls_without_report(),
                    late: late.1,
                    ..side
                }),
            seconds: figures.seconds,
            ios: figures.ios,
            moved: figures.moved,
            errors: figures.errors,
            latency: figures.latency,
            latency_summary: None,
            refilled: figures.refilled,
            unfinished: figures.unfinished,
            io_latency_us: None,
        }
    }
}

/// Keeps the first that is told after each whole second.
fn push_mark_each_second(marks: &mut Vec<ProgressMark>, progress: &ProgressCounts) {
    let last = marks.last().map_or(0.0, |mark| mark.seconds);
    if progress.seconds.floor() > last.floor() {
        marks.push(ProgressMark { seconds: progress.seconds, ios: progress.ios, moved: progress.bytes });
    }
}

/// What all machines together had done after each second that all of them tell.
fn merged_series(machines: &[Vec<ProgressMark>]) -> Vec<ProgressMark> {
    let Some((first, others)) = machines.split_first() else { return Vec::new() };
    let in_second = |marks: &[ProgressMark], second: f64| {
        marks.iter().copied().find(|mark| mark.seconds.floor() == second)
    };
    let together = |mark: &ProgressMark| {
        others.iter().try_fold(*mark, |sum, marks| {
            let other = in_second(marks, mark.seconds.floor())?;
            Some(ProgressMark {
                seconds: sum.seconds.max(other.seconds),
                ios: sum.ios + other.ios,
                moved: sum.moved + other.moved,
            })
        })
    };
    first.iter().filter_map(together).collect()
}

/// Core numbers of the second machine begin here, of the third at twice this, and so on.
const CORE_NUMBERS_PER_MACHINE: u32 = 10_000;

/// What several machines did, as of one.
fn merge_cpu_use(all: Vec<CpuUse>) -> Option<CpuUse> {
    let mut all = all.into_iter();
    let mut sum = all.next()?;
    for (seen, machine) in all.zip(1u32..) {
        let cores = seen.side.cores.cores.into_iter();
        sum.side
            .cores
            .cores
            .extend(cores.map(|(core, kinds)| (core + machine * CORE_NUMBERS_PER_MACHINE, kinds)));
        sum.side.cores.switches += seen.side.cores.switches;
        sum.side.process.0 += seen.side.process.0;
        sum.side.process.1 += seen.side.process.1;
        sum.side.resident += seen.side.resident;
        let add = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        sum.retransmits = add(sum.retransmits, seen.retransmits);
        sum.until = sum.until.max(seen.until);
        sum.packets = add(sum.packets, seen.packets);
        sum.gone = sum.gone.or(seen.gone);
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eval::cpu::{CpuTimes, CpuUsage};

    #[test]
    fn each_second_is_kept_once_and_of_all_machines() {
        let told = |all: &[(f64, u64)]| {
            let mut marks = Vec::new();
            for (seconds, ios) in all {
                let progress =
                    ProgressCounts { seconds: *seconds, ios: *ios, bytes: ios * 512, latency_us: None };
                push_mark_each_second(&mut marks, &progress);
            }
            marks
        };
        let one = told(&[(0.25, 5), (0.99, 9), (1.02, 10), (1.27, 12), (2.01, 20), (3.0, 30)]);
        assert_eq!(one.iter().map(|mark| mark.ios).collect::<Vec<_>>(), [10, 20, 30]);
        let two = told(&[(1.5, 100), (3.25, 300)]);
        let both = [
            ProgressMark { seconds: 1.5, ios: 110, moved: 110 * 512 },
            ProgressMark { seconds: 3.25, ios: 330, moved: 330 * 512 },
        ];
        assert_eq!(merged_series(&[one.clone(), two]), both);
        assert_eq!(
            (merged_series(std::slice::from_ref(&one)), merged_series(&[one, Vec::new()]).len()),
            (told(&[(1.02, 10), (2.01, 20), (3.0, 30)]), 0)
        );
    }

    #[test]
    fn machines_keep_their_cores_apart() {
        let seen = |user| {
            let cores = CpuUsage { cores: vec![(0, CpuTimes { user, ..CpuTimes::default() })], switches: 3 };
            let side = EndUsage { cores, process: (user, 0.5), resident: 10, ..EndUsage::default() };
            CpuUse {
                seconds: 1.0,
                until: Instant::now(),
                side,
                gone: None,
                retransmits: Some(1),
                packets: None,
            }
        };
        let all = merge_cpu_use(vec![seen(0.25), seen(0.75)]).unwrap();
        let cores: Vec<u32> = all.side.cores.cores.iter().map(|(core, _)| *core).collect();
        assert_eq!(cores, [0, CORE_NUMBERS_PER_MACHINE]);
        assert_eq!((all.side.process, all.side.resident), ((1.0, 1.0), 20));
        assert_eq!((all.retransmits, all.packets), (Some(2), None));
        assert!(merge_cpu_use(Vec::new()).is_none());
    }
}
