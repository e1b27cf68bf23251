//! Remote volumes whose machine did not respond when the daemon started: the rest is served, and these are probed again.
//!
//! Invariant: a silent machine delays only its own probes. A few threads probe, each one machine at a time, and only
//! some of them the same machine. The daemon is locked only to serve a volume that was found. That may wait for a disk
//! (a leg of a stripe), so each volume is served from its own thread.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::Daemon;
use crate::store::{ProbeNeeds, ProbeResult};
use config::name::VolumeName;
use process::log::area;

/// Machines probed at a time.
const PROBES_MAX: usize = 16;
/// Volumes probed at a time on the same machine or machines.
const PROBES_PER_MACHINE_MAX: usize = 4;
/// Found volumes being served at a time.
const ARRIVALS_MAX: usize = 64;
/// The delay before a machine is probed again, at first and at most.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Threads that probe remote volumes.
#[derive(Debug)]
pub struct RemoteProbes {
    queue: Arc<ProbeQueue>,
    news: Receiver<ProbeEvent>,
    tell: Sender<ProbeEvent>,
}

/// A message of a thread.
#[derive(Debug)]
enum ProbeEvent {
    /// The result of a probe.
    Found(VolumeName, ProbeResult),
    /// What became of a volume that was found.
    Taken(VolumeName, ArrivalOutcome),
}

/// Pending probes.
#[derive(Debug, Default)]
struct ProbeQueue {
    jobs: Mutex<ProbeJobs>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ProbeJobs {
    /// In order of arrival.
    waiting: VecDeque<(VolumeName, ProbeNeeds)>,
    /// How many threads probe these machines.
    asking: HashMap<String, usize>,
    /// The threads are to end.
    ended: bool,
}

impl RemoteProbes {
    /// Threads for this many volumes.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(volumes: usize) -> io::Result<Self> {
        let queue = Arc::new(ProbeQueue::default());
        let (tell, news) = channel();
        let probes = RemoteProbes { queue, news, tell };
        for at in 0..volumes.min(PROBES_MAX) {
            let (queue, tell) = (probes.queue.clone(), probes.tell.clone());
            thread::Builder::new().name(format!("probes-{at}")).spawn(move || run_probes(&queue, &tell))?;
        }
        Ok(probes)
    }

    /// Queues a probe.
    pub fn queue_probe(&self, volume: VolumeName, probe: ProbeNeeds) {
        self.queue.lock_jobs().waiting.push_back((volume, probe));
        self.queue.changed.notify_all();
    }

    /// The next result, if there is one by then.
    pub fn next_result(&self, until: Instant) -> Option<(VolumeName, ProbeResult)> {
        match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(ProbeEvent::Found(volume, probed)) => Some((volume, probed)),
            // While results are taken here, no volume is being served.
            Ok(ProbeEvent::Taken(..)) | Err(_) => None,
        }
    }
}

impl Drop for RemoteProbes {
    fn drop(&mut self) {
        self.queue.lock_jobs().ended = true;
        self.queue.changed.notify_all();
    }
}

impl ProbeQueue {
    fn lock_jobs(&self) -> MutexGuard<'_, ProbeJobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next probe whose machines may be asked. `None`: the threads are to end.
    fn wait_for_probe(&self) -> Option<(String, VolumeName, ProbeNeeds)> {
        let mut jobs = self.lock_jobs();
        loop {
            if jobs.ended {
                return None;
            }
            if let Some(next) = jobs.start_next() {
                return Some(next);
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A probe of these machines has ended.
    fn finish_probe(&self, machines: &str) {
        if let Some(asking) = self.lock_jobs().asking.get_mut(machines) {
            *asking = asking.saturating_sub(1);
        }
        self.changed.notify_all();
    }
}

impl ProbeJobs {
    fn start_next(&mut self) -> Option<(String, VolumeName, ProbeNeeds)> {
        let ProbeJobs { waiting, asking, .. } = self;
        let may = |probe: &ProbeNeeds| {
            asking.get(&probe.machine_key()).is_none_or(|asking| *asking < PROBES_PER_MACHINE_MAX)
        };
        let at = waiting.iter().position(|(_, probe)| may(probe))?;
        let (volume, probe) = waiting.remove(at)?;
        let machines = probe.machine_key();
        *asking.entry(machines.clone()).or_default() += 1;
        Some((machines, volume, probe))
    }
}

fn run_probes(queue: &ProbeQueue, tell: &Sender<ProbeEvent>) {
    while let Some((machines, volume, probe)) = queue.wait_for_probe() {
        let probed = probe.run();
        queue.finish_probe(&machines);
        if tell.send(ProbeEvent::Found(volume, probed)).is_err() {
            return;
        }
    }
}

/// Remote volumes that are probed until they are available.
#[derive(Debug)]
pub struct RepeatedProbe {
    probes: RemoteProbes,
    /// Probes in progress.
    out: usize,
    /// Volumes that were found and are not being served yet.
    found: VecDeque<(VolumeName, ProbeResult)>,
    /// Volumes being served.
    arriving: usize,
    /// The others, and when they are probed.
    due: Vec<(Instant, VolumeName)>,
    pauses: HashMap<VolumeName, Duration>,
}

/// What became of a volume that was absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalOutcome {
    /// It is served, or not to be probed any more.
    Settled,
    /// It is still absent.
    NotYet,
}

impl RepeatedProbe {
    /// For `out` volumes that are being probed already, and others that are `absent`.
    pub fn of(probes: RemoteProbes, out: usize, absent: Vec<VolumeName>) -> Self {
        let (found, arriving, due, pauses) = (VecDeque::new(), 0, Vec::new(), HashMap::new());
        let mut repeated = RepeatedProbe { probes, out, found, arriving, due, pauses };
        absent.into_iter().for_each(|volume| repeated.schedule_retry(volume));
        repeated
    }

    /// Starts a thread that ends with the daemon, or when all volumes are served.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn spawn(self, daemon: &Arc<Daemon>) -> io::Result<()> {
        let daemon = Arc::downgrade(daemon);
        thread::Builder::new().name("absent".to_owned()).spawn(move || self.run(&daemon)).map(drop)
    }

    fn run(mut self, daemon: &Weak<Daemon>) {
        while self.out + self.found.len() + self.arriving + self.due.len() > 0 {
            let next = self.due.iter().map(|(at, _)| *at).min();
            let wait = next.map_or(RETRY_DELAY_MAX, |at| at.saturating_duration_since(Instant::now()));
            let news = self.probes.news.recv_timeout(wait);
            let Some(daemon) = daemon.upgrade() else { return };
            match news {
                Ok(ProbeEvent::Found(volume, probed)) => {
                    self.out = self.out.saturating_sub(1);
                    self.found.push_back((volume, probed));
                }
                Ok(ProbeEvent::Taken(volume, arrival)) => {
                    self.arriving = self.arriving.saturating_sub(1);
                    if arrival == ArrivalOutcome::NotYet {
                        self.schedule_retry(volume);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while self.arriving < ARRIVALS_MAX
                && let Some((volume, probed)) = self.found.pop_front()
            {
                self.serve_arrival(&daemon, volume, probed);
            }
            let now = Instant::now();
            for (_, volume) in self.due.extract_if(.., |(at, _)| *at <= now) {
                if let Some(probe) = daemon.volumes.probe_absent(volume.as_str()) {
                    self.probes.queue_probe(volume, probe);
                    self.out += 1;
                }
            }
        }
    }

    /// Serves a volume from a thread of its own, which may wait for its backing.
    fn serve_arrival(&mut self, daemon: &Arc<Daemon>, volume: VolumeName, probed: ProbeResult) {
        let (daemon, tell, name) = (Arc::downgrade(daemon), self.probes.tell.clone(), volume.clone());
        let begun = thread::Builder::new().name("arrival".to_owned()).spawn(move || {
            let Some(daemon) = daemon.upgrade() else { return };
            let arrival = daemon.volumes.serve_arrived(name.as_str(), probed);
            drop(daemon);
            // The receiver may be gone.
            let _ = tell.send(ProbeEvent::Taken(name, arrival));
        });
        match begun {
            Ok(_) => self.arriving += 1,
            Err(why) => {
                tracing::warn!(target: area::VOLUME, %why, %volume, "no thread for a volume that was found; it will be retried");
                self.schedule_retry(volume);
            }
        }
    }

    fn schedule_retry(&mut self, volume: VolumeName) {
        let pause = self.pauses.entry(volume.clone()).or_insert(RETRY_DELAY_MIN);
        self.due.push((Instant::now() + *pause, volume));
        *pause = pause.saturating_mul(2).min(RETRY_DELAY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::identity::Identities;
    use config::{
        plan::{Volume, VolumeOrigin},
        spec,
    };

    #[test]
    fn a_silent_machine_of_many_volumes_keeps_no_other_from_being_asked() {
        let mut jobs = ProbeJobs::default();
        let probe = |machine: &str, lun: usize| {
            let spec = spec::parse(&format!("iscsi://{machine}/iqn.2026-11.com.example:d/{lun}")).unwrap();
            let name = VolumeName::parse(&format!("{machine}-{lun}")).unwrap();
            let volume = Volume { name: name.clone(), spec, origin: VolumeOrigin::Configured };
            (name, ProbeNeeds::for_known(&volume, &Identities::default()))
        };
        jobs.waiting.extend((0..PROBES_MAX).map(|lun| probe("silent", lun)));
        jobs.waiting.push_back(probe("well", 0));
        let begun: Vec<_> =
            std::iter::from_fn(|| jobs.start_next()).map(|(_, name, _)| name.to_string()).collect();
        assert_eq!(begun, ["silent-0", "silent-1", "silent-2", "silent-3", "well-0"]);
        let queue = ProbeQueue { jobs: Mutex::new(jobs), changed: Condvar::new() };
        queue.finish_probe(&probe("silent", 0).1.machine_key());
        assert_eq!(queue.wait_for_probe().unwrap().1.as_str(), "silent-4");
        assert!(queue.lock_jobs().start_next().is_none());
    }
}
