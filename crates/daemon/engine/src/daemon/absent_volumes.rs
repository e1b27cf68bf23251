//! Remote volumes whose machine did not respond when the daemon started: the rest is served, and these are probed again.
//!
//! Invariant: a silent machine delays only its own probes. A few threads probe, each one machine at a time, and only
//! some of them the same machine. The daemon is locked only to serve a volume that was found. That may wait for a disk
//! (a leg of a stripe), so each volume is served from its own thread.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
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

/// Invariant: what is next is found in the same time however many volumes wait.
#[derive(Debug, Default)]
struct ProbeJobs {
    /// By machine, or machines.
    machines: HashMap<String, MachineJobs>,
    /// Machines that may be asked, each by the number of its first probe: in order of arrival.
    eligible: BTreeMap<u64, String>,
    /// Probes that were ever queued.
    queued: u64,
    /// The threads are to end.
    ended: bool,
}

/// The probes of one machine.
#[derive(Debug, Default)]
struct MachineJobs {
    waiting: VecDeque<(u64, VolumeName, ProbeNeeds)>,
    /// How many threads ask it.
    asking: usize,
}

impl MachineJobs {
    /// The number of its next probe, if it may be asked.
    fn next(&self) -> Option<u64> {
        let (number, ..) = self.waiting.front()?;
        (self.asking < PROBES_PER_MACHINE_MAX).then_some(*number)
    }
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
        self.queue.lock_jobs().push(volume, probe);
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
        self.lock_jobs().finish(machines);
        self.changed.notify_all();
    }
}

impl ProbeJobs {
    fn push(&mut self, volume: VolumeName, probe: ProbeNeeds) {
        let key = probe.machine_key();
        self.queued += 1;
        self.machines.entry(key.clone()).or_default().waiting.push_back((self.queued, volume, probe));
        self.note_eligible(&key);
    }

    fn start_next(&mut self) -> Option<(String, VolumeName, ProbeNeeds)> {
        let (_, key) = self.eligible.pop_first()?;
        let machine = self.machines.get_mut(&key)?;
        let (_, volume, probe) = machine.waiting.pop_front()?;
        machine.asking += 1;
        self.note_eligible(&key);
        Some((key, volume, probe))
    }

    fn finish(&mut self, key: &str) {
        let Some(machine) = self.machines.get_mut(key) else { return };
        machine.asking = machine.asking.saturating_sub(1);
        if machine.asking == 0 && machine.waiting.is_empty() {
            self.machines.remove(key);
        }
        self.note_eligible(key);
    }

    fn note_eligible(&mut self, key: &str) {
        if let Some(number) = self.machines.get(key).and_then(MachineJobs::next) {
            self.eligible.insert(number, key.to_owned());
        }
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
        (0..PROBES_MAX).map(|lun| probe("silent", lun)).for_each(|(name, probe)| jobs.push(name, probe));
        let (name, well) = probe("well", 0);
        jobs.push(name, well);
        let begun: Vec<_> =
            std::iter::from_fn(|| jobs.start_next()).map(|(_, name, _)| name.to_string()).collect();
        assert_eq!(begun, ["silent-0", "silent-1", "silent-2", "silent-3", "well-0"]);
        let queue = ProbeQueue { jobs: Mutex::new(jobs), changed: Condvar::new() };
        queue.finish_probe(&probe("silent", 0).1.machine_key());
        assert_eq!(queue.wait_for_probe().unwrap().1.as_str(), "silent-4");
        assert!(queue.lock_jobs().start_next().is_none());
    }

    /// The next probe of a machine that is asked enough is not looked for among all that wait for it.
    #[test]
    fn probes_of_many_volumes_take_time_in_proportion_to_their_number() {
        let probe = |lun: usize| {
            let spec = spec::parse(&format!("iscsi://192.0.2.1/iqn.2026-11.com.example:d/{lun}")).unwrap();
            let name = VolumeName::parse(&format!("v{lun}")).unwrap();
            let volume = Volume { name: name.clone(), spec, origin: VolumeOrigin::Configured };
            (name, ProbeNeeds::for_known(&volume, &Identities::default()))
        };
        crate::cpu_time::assert_grows_with_number(4000, |count| {
            let mut jobs = ProbeJobs::default();
            (0..count).map(probe).for_each(|(name, probe)| jobs.push(name, probe));
            let mut begun = 0;
            while let Some((machine, ..)) = jobs.start_next() {
                begun += 1;
                // All others are asked for, and none may begin.
                if begun >= PROBES_PER_MACHINE_MAX {
                    assert!(jobs.start_next().is_none());
                    jobs.finish(&machine);
                }
            }
            assert_eq!(begun, count);
        });
    }
}
