//! Messages of the shards to the control plane: answers to its requests, and state to be made durable.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use endpoint::ShardId;
use nvme::auth::DhComputation;
use shard::{ComputeId, Message, NvmeMessage, Report};
use stream::Tag;
use volume::{StoreOp, VolumeId};

use super::compute::{ComputePool, ComputeRequest, Job};
use super::generated_psks::GeneratedPsks;
use crate::{
    EngineError,
    state::{StateDir, StateError},
};

/// Requests that wait for their answers, by number. 0 is nobody's: answers to it are dropped.
#[derive(Debug, Default)]
pub struct Requests {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    ended: bool,
    answers: HashMap<u64, Sender<Report>>,
}

/// A request that was numbered.
#[derive(Debug)]
pub struct Expected {
    /// Its number.
    pub number: u64,
    answer: Receiver<Report>,
    requests: Arc<Requests>,
}

impl Requests {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a request.
    pub fn expect(self: &Arc<Self>) -> Result<Expected, EngineError> {
        let mut waiting = self.waiting();
        if waiting.ended {
            return Err(EngineError::Stopped);
        }
        waiting.last += 1;
        let number = waiting.last;
        let (sender, answer) = channel();
        waiting.answers.insert(number, sender);
        Ok(Expected { number, answer, requests: self.clone() })
    }

    fn answer(&self, number: u64, report: Report) {
        if let Some(sender) = self.waiting().answers.remove(&number) {
            // Who asked may have lost patience.
            let _ = sender.send(report);
        }
    }

    /// No shard is left to answer: who waits is told so.
    fn end(&self) {
        let mut waiting = self.waiting();
        waiting.ended = true;
        waiting.answers.clear();
    }
}

impl Expected {
    /// The answer.
    pub fn wait(self, patience: Duration) -> Result<Report, EngineError> {
        self.answer.recv_timeout(patience).map_err(|why| match why {
            RecvTimeoutError::Timeout => EngineError::TimedOut,
            RecvTimeoutError::Disconnected => EngineError::Stopped,
        })
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.requests.waiting().answers.remove(&self.number);
    }
}

/// What is computed for a shard.
enum ComputeKind {
    /// For a host of ours.
    Host(ComputeId, Box<DhComputation>),
    /// For a remote volume.
    Remote(Tag, endpoint::Computation),
    /// A step of a host's TLS handshake.
    Handshake(u64, endpoint::Computation),
}

impl ComputeRequest for ComputeKind {
    fn is_wanted(&self) -> bool {
        match self {
            ComputeKind::Host(..) => true,
            ComputeKind::Remote(_, work) | ComputeKind::Handshake(_, work) => work.is_wanted(),
        }
    }

    fn is_for(&self, id: ComputeId) -> bool {
        matches!(self, ComputeKind::Host(of, _) if *of == id)
    }
}

/// Computes what is wanted, and tells who asked.
fn compute(job: Job<ComputeKind>, tell: &impl Fn(ShardId, Message)) {
    match job.work {
        ComputeKind::Host(id, work) => {
            tell(job.shard, Message::Nvme(NvmeMessage::Computed(id, Box::new(work.run()))));
        }
        ComputeKind::Remote(remote, work) => {
            work.run();
            tell(job.shard, Message::Computed(remote));
        }
        ComputeKind::Handshake(conn, work) => {
            work.run();
            tell(job.shard, Message::Nvme(NvmeMessage::HandshakeComputed(conn)));
        }
    }
}

/// Tells who asked that too much else waits.
fn refuse(job: Job<ComputeKind>, tell: &impl Fn(ShardId, Message)) {
    match job.work {
        ComputeKind::Host(id, _) => tell(job.shard, Message::Nvme(NvmeMessage::NotComputed(id))),
        ComputeKind::Remote(remote, work) => {
            // It says itself that it was not done.
            drop(work);
            tell(job.shard, Message::Computed(remote));
        }
        ComputeKind::Handshake(conn, work) => {
            drop(work);
            tell(job.shard, Message::Nvme(NvmeMessage::HandshakeComputed(conn)));
        }
    }
}

/// What is done with records, one after the other.
#[derive(Debug)]
enum RecordStores {
    /// A volume's record is replaced.
    Store(VolumeId, StoreOp),
    /// The record of this name is removed, and who asked is told.
    Remove(String, Sender<Result<(), StateError>>),
}

impl RecordStores {
    fn record(&self) -> &str {
        match self {
            RecordStores::Store(_, store) => &store.name,
            RecordStores::Remove(name, _) => name,
        }
    }
}

/// Who keeps the records of volumes: what is asked here comes behind all that shards have asked before.
///
/// Of each record one store waits at most: who asks for it again does not wait for an older one any more. So a disk that
/// hangs makes the line no longer than there are volumes, and when it is back, what counts is written at once.
#[derive(Clone, Debug)]
pub struct Records {
    jobs: Arc<Mutex<VecDeque<RecordStores>>>,
    /// Rings once for each job.
    bell: Sender<()>,
}

impl Records {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<RecordStores>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, job: RecordStores) -> Result<(), EngineError> {
        let mut jobs = self.jobs();
        let before = jobs.iter_mut().rev().find(|before| before.record() == job.record());
        if let (Some(before @ RecordStores::Store(..)), RecordStores::Store(..)) = (before, &job) {
            *before = job;
            return Ok(());
        }
        jobs.push_back(job);
        self.bell.send(()).map_err(|_| EngineError::Stopped)
    }

    /// Removes a record, behind every store of it that a shard has asked for and answered to since.
    pub fn remove(&self, name: String, patience: Duration) -> Result<(), EngineError> {
        let (done, heard) = channel();
        self.ask(RecordStores::Remove(name, done))?;
        match heard.recv_timeout(patience) {
            Ok(removed) => removed.map_err(|why| EngineError::Record(why.to_string())),
            Err(RecvTimeoutError::Timeout) => Err(EngineError::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(EngineError::Stopped),
        }
    }
}

/// Starts the threads that take what arrives. `stored` carries the outcome of a store back to the
/// volume's home, `tell` that of a computation to the shard that asked.
pub fn attend(
    inbox: Receiver<Message>,
    requests: Arc<Requests>,
    state: Arc<StateDir>,
    generated: GeneratedPsks,
    stored: impl Fn(VolumeId, u64, bool) + Send + 'static,
    tell: impl Fn(ShardId, Message) + Clone + Send + 'static,
) -> std::io::Result<Records> {
    // A sync may take long, and answers must not wait for it.
    let (bell, rings) = channel();
    let records = Records { jobs: Arc::default(), bell };
    let jobs = records.jobs.clone();
    let keep = move || {
        for () in rings {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let (volume, store) = match job {
                Some(RecordStores::Store(volume, store)) => (volume, store),
                Some(RecordStores::Remove(name, done)) => {
                    // Who asked may have lost patience.
                    let _ = done.send(state.remove(&name));
                    continue;
                }
                None => continue,
            };
            let kept = state.write(&store.name, &store.bytes);
            if let Err(why) = &kept {
                tracing::error!(%why, "a volume's record (reservations, bad blocks, path states, protection) \
                                       cannot be saved");
            }
            stored(volume, store.ticket, kept.is_ok());
        }
    };
    thread::Builder::new().name("state".to_owned()).spawn(keep)?;
    let powers = Arc::new(ComputePool::<ComputeKind>::new());
    let asked = powers.clone();
    let answers = tell.clone();
    let stores = records.clone();
    let work = move || {
        while let Some(job) = asked.next() {
            compute(job, &answers);
        }
    };
    thread::Builder::new().name("auth".to_owned()).spawn(work)?;
    let take = move || {
        for message in inbox {
            match message {
                Message::Report(number, report) => requests.answer(number, report),
                Message::Store(volume, store) => {
                    let _ = stores.ask(RecordStores::Store(volume, store));
                }
                Message::Nvme(NvmeMessage::Compute(shard, id, source, work)) => {
                    let job = Job { shard, work: ComputeKind::Host(id, work) };
                    powers.put(source, job).into_iter().for_each(|job| refuse(job, &tell));
                }
                Message::Compute(shard, remote, work) => {
                    let source = shard::source(work.peer());
                    let job = Job { shard, work: ComputeKind::Remote(remote, work) };
                    powers.put(source, job).into_iter().for_each(|job| refuse(job, &tell));
                }
                Message::Nvme(NvmeMessage::Handshake(shard, conn, work)) => {
                    let source = shard::source(work.peer());
                    let job = Job { shard, work: ComputeKind::Handshake(conn, work) };
                    powers.put(source, job).into_iter().for_each(|job| refuse(job, &tell));
                }
                Message::Nvme(NvmeMessage::Forget(shard, id)) => powers.forget(shard, id),
                Message::Nvme(NvmeMessage::PskGenerated(psk)) => {
                    let (identity, psk) = *psk;
                    generated.add(Instant::now(), identity, psk);
                }
                Message::Nvme(NvmeMessage::PskRevoked(identity)) => {
                    generated.revoke(Instant::now(), &identity);
                }
                _ => tracing::error!(
                    "a shard has sent the control plane an unexpected message: please report this"
                ),
            }
        }
        requests.end();
        powers.end();
    };
    thread::Builder::new().name("inbox".to_owned()).spawn(take)?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_do_not_pile_up_while_the_disk_hangs() {
        let (bell, rings) = channel();
        let records = Records { jobs: Arc::default(), bell };
        let store = |name: &str, ticket| {
            let store = StoreOp { ticket, name: name.to_owned(), bytes: vec![0; 1000] };
            records.ask(RecordStores::Store(VolumeId(1), store)).unwrap();
        };
        for ticket in 0..1000 {
            store("a", ticket);
            store("b", ticket);
        }
        let (done, _heard) = channel();
        records.ask(RecordStores::Remove("a".to_owned(), done)).unwrap();
        // Not in front of the removal.
        store("a", 1000);
        store("a", 1001);
        let waiting: Vec<_> = records.jobs().drain(..).collect();
        let tickets = waiting.iter().map(|job| match job {
            RecordStores::Store(_, store) => (store.name.as_str(), Some(store.ticket)),
            RecordStores::Remove(name, _) => (name.as_str(), None),
        });
        let expected = [("a", Some(999)), ("b", Some(999)), ("a", None), ("a", Some(1001))];
        assert_eq!(tickets.collect::<Vec<_>>(), expected);
        assert_eq!(rings.try_iter().count(), expected.len());
    }
}
