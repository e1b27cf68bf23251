//! One load on volumes: all initiator machines at once, both ends looked at while figures count.
//!
//! Invariant: processors are looked at when every machine's figures count and until the first machine's
//! cease to, and are scaled to the time of the figures.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use eval::fio::{Direction, Job};
use eval::preset::Step;
use eval::record::{Record, Run, Side};

use crate::Failure;
use crate::initiator::{Event, Figures, Initiator, Progress, Task, patience};
use crate::live::Moment;
use crate::place::Place;
use crate::runner::{Bench, Runner, note_command};
use crate::watch::{Look, Seen, Watch};

/// Bytes of a write that fills a volume.
const FILLING: u32 = 1 << 20;

/// Writes each volume once, so that reads find bytes and memory is there.
pub(crate) fn fill(runner: &mut Runner<'_>, bench: &Bench) -> Result<(), Failure> {
    let job = Job {
        name: "fill".to_owned(),
        direction: Direction::Write,
        block: (FILLING, FILLING),
        depth: 4,
        ..Job::default()
    };
    let initiator = runner.initiator("blockwire")?;
    for (number, url) in bench.serving.urls(&bench.link.address(0)).into_iter().enumerate() {
        let task = Task {
            name: format!("fill-{number}"),
            place: &bench.link.initiators()[0],
            urls: vec![url],
            job: &job,
            cores: &runner.cores.initiator,
            connections: 1,
            dir: &runner.dir,
        };
        initiator.run(&task, &|_| ()).map_err(|why| why.during("filling the volumes"))?;
    }
    Ok(())
}

/// A load on a target's volumes.
pub(crate) fn load(
    runner: &mut Runner<'_>,
    step: &Step,
    bench: &Bench,
    moment: &Moment,
    record: &mut Record,
) -> Result<Run, Failure> {
    let hosts = bench.link.initiators();
    let mut parts = Vec::new();
    for (host, place) in hosts.iter().enumerate() {
        let urls = bench.serving.urls(&bench.link.address(host));
        let urls: Vec<String> = urls.into_iter().skip(host).step_by(hosts.len()).collect();
        let threads = share(step.job.threads, hosts.len(), host);
        let job = Job { threads, seed: step.job.seed + host as u64, ..step.job.clone() };
        parts.push(Part {
            place: place.clone(),
            urls,
            job,
            connections: share(step.connections, hosts.len(), host),
        });
    }
    let watch = Watch::new(bench.link.target().clone(), bench.serving.pids(), &runner.cores.target);
    // A target that runs elsewhere cannot be looked at.
    let watch = (step.target != "url").then_some(watch);
    together(runner, step, parts, watch.as_ref(), moment, record)
}

/// A load on the initiator's own memory: what the network is compared with.
pub(crate) fn local(
    runner: &mut Runner<'_>,
    step: &Step,
    moment: &Moment,
    record: &mut Record,
) -> Result<Run, Failure> {
    let urls = vec![format!("local:{}", step.volumes.1)];
    let parts = vec![Part { place: Place::Here, urls, job: step.job.clone(), connections: 1 }];
    together(runner, step, parts, None, moment, record)
}

/// What one initiator machine does.
struct Part {
    place: Place,
    urls: Vec<String>,
    job: Job,
    connections: u32,
}

/// How many of `all` fall to one of several.
fn share(all: u32, hosts: usize, host: usize) -> u32 {
    let hosts = u32::try_from(hosts).unwrap_or(1).max(1);
    let extra = u32::from((host as u32) < all % hosts);
    (all / hosts + extra).max(1)
}

/// What a thread of an initiator machine says.
enum Said {
    Event(usize, Event),
    Over(usize, Box<Result<Figures, Failure>>),
}

fn together(
    runner: &mut Runner<'_>,
    step: &Step,
    parts: Vec<Part>,
    target: Option<&Watch>,
    moment: &Moment,
    record: &mut Record,
) -> Result<Run, Failure> {
    let name = step.initiator.clone();
    let (dir, cores) = (runner.dir.clone(), runner.cores.initiator.clone());
    let (to, from) = channel();
    let mut window = Window::new(target, parts.len(), &cores);
    let until = Instant::now() + patience(&step.job) + Duration::from_secs(30);
    let mut all: Vec<Option<Result<Figures, Failure>>> = parts.iter().map(|_| None).collect();
    let initiator: &dyn Initiator = runner
        .initiators
        .iter()
        .find(|known| known.name() == name)
        .map(|known| &**known)
        .ok_or_else(|| Failure::new(format!("no initiator is called {name}")))?;
    std::thread::scope(|scope| {
        for (host, part) in parts.iter().enumerate() {
            let (to, dir, cores) = (to.clone(), &dir, &cores);
            scope.spawn(move || {
                let task = Task {
                    name: format!("initiator-{host}"),
                    place: &part.place,
                    urls: part.urls.clone(),
                    job: &part.job,
                    cores,
                    connections: part.connections,
                    dir,
                };
                let tell = |event| drop(to.send(Said::Event(host, event)));
                let figures = initiator.run(&task, &tell);
                drop(to.send(Said::Over(host, Box::new(figures))));
            });
        }
        drop(to);
        loop {
            match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Said::Event(host, event)) => {
                    window.hear(host, event, &parts[host].place);
                    if let Some(moment) = window.moment(moment) {
                        runner.live.goes_on(&moment);
                    }
                }
                Ok(Said::Over(host, figures)) => {
                    window.close();
                    all[host] = Some(*figures);
                }
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
            }
        }
    });
    let mut figures = Figures::default();
    for part in all {
        let part = part.ok_or_else(|| Failure::new("an initiator did not end in time"))??;
        note_command(record, &part.command);
        figures.merge(&part);
    }
    if figures.ios == 0 {
        return Err(Failure::new("no I/O was done while figures counted"));
    }
    Ok(window.run(figures))
}

/// The time over which processors are looked at.
struct Window<'a> {
    target: Option<&'a Watch>,
    cores: &'a [usize],
    /// Ids of what works on each machine, once its figures count.
    began: Vec<Option<Vec<u32>>>,
    initiator: Option<Watch>,
    open: Option<(Option<Look>, Option<Look>)>,
    seen: Option<(Option<Seen>, Option<Seen>)>,
    progress: Vec<Progress>,
    last: (f64, u64),
}

impl<'a> Window<'a> {
    fn new(target: Option<&'a Watch>, hosts: usize, cores: &'a [usize]) -> Window<'a> {
        Window {
            target,
            cores,
            began: vec![None; hosts],
            initiator: None,
            open: None,
            seen: None,
            progress: vec![Progress::default(); hosts],
            last: (0.0, 0),
        }
    }

    fn hear(&mut self, host: usize, event: Event, place: &Place) {
        match event {
            Event::Began(pids) => {
                self.began[host] = Some(pids);
                if self.began.iter().all(Option::is_some) && self.open.is_none() {
                    let pids = self.began.iter().flatten().flatten().copied().collect();
                    // Machines that differ are looked at one by one elsewhere; here, all are of one kind.
                    let place = if place.is_local() { Place::Here } else { place.clone() };
                    let initiator = Watch::new(place, pids, self.cores);
                    let looks =
                        (self.target.and_then(|watch| watch.look(None).ok()), initiator.look(None).ok());
                    self.open = Some(looks);
                    self.initiator = Some(initiator);
                }
            }
            Event::Progress(progress) => self.progress[host] = progress,
            Event::Ended => self.close(),
        }
    }

    /// Looks for the last time, once.
    fn close(&mut self) {
        if self.seen.is_none() {
            self.seen = self.look();
        }
    }

    fn look(&self) -> Option<(Option<Seen>, Option<Seen>)> {
        let (target, initiator) = self.open.as_ref()?;
        let since = |watch: Option<&Watch>, before: &Option<Look>| {
            let (watch, before) = (watch?, before.as_ref()?);
            Some(watch.since(before, &watch.look(None).ok()?))
        };
        Some((since(self.target, target), since(self.initiator.as_ref(), initiator)))
    }

    /// How it goes, for people.
    fn moment(&mut self, moment: &Moment) -> Option<Moment> {
        let ios: u64 = self.progress.iter().map(|progress| progress.ios).sum();
        let seconds = self.progress.iter().map(|progress| progress.seconds).fold(0.0, f64::max);
        let (before, done) = self.last;
        if seconds <= before {
            return None;
        }
        self.last = (seconds, ios);
        let busy = |seen: &Option<Seen>| seen.as_ref().map(|seen| seen.side.cores.total().busy_percent());
        let seen = self.look();
        let left = moment.left.saturating_sub(Duration::from_secs_f64(seconds));
        Some(Moment {
            iops: ios.saturating_sub(done) as f64 / (seconds - before),
            latency_us: self.progress.first().and_then(|progress| progress.latency_us),
            busy: seen.map_or((None, None), |(target, initiator)| (busy(&target), busy(&initiator))),
            left,
            ..moment.clone()
        })
    }

    fn run(self, figures: Figures) -> Run {
        let (target, initiator) = self.seen.unwrap_or_default();
        let scaled = |seen: &Seen| {
            let scale = if seen.seconds > 0.0 { figures.seconds / seen.seconds } else { 1.0 };
            let (user, system) = seen.side.process;
            Side { process: (user * scale, system * scale), ..seen.side.clone() }
        };
        let link = target.as_ref().or(initiator.as_ref());
        let count = |count: Option<u64>| {
            let link = link?;
            Some((count? as f64 * figures.seconds / link.seconds.max(1e-3)) as u64)
        };
        Run {
            retransmits: count(link.and_then(|seen| seen.retransmits)),
            packets: count(link.and_then(|seen| seen.packets)),
            target: target.as_ref().map(scaled),
            initiator: initiator.as_ref().map(scaled),
            seconds: figures.seconds,
            ios: figures.ios,
            moved: figures.moved,
            errors: figures.errors,
            latency: figures.latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_shared_out_and_none_is_lost() {
        let shares: Vec<u32> = (0..3).map(|host| share(20, 3, host)).collect();
        assert_eq!(shares, [7, 7, 6]);
        assert_eq!(share(1, 3, 2), 1, "each machine has at least one");
    }
}
