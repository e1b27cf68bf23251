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
use shard::{ComputeId, ControlReport, Message, NvmeMessage};
use stream::Tag;
use volume::{StoreOp, VolumeId};

use super::compute::{ComputeJob, ComputePool, ComputeRequest};
use super::generated_psks::GeneratedPsks;
use crate::{
    EngineError,
    state::{StateDir, StateError},
};
use process::log::area;

/// Requests that wait for their answers, by number. 0 is nobody's: answers to it are dropped.
#[derive(Debug, Default)]
pub struct PendingRequests {
    waiting: Mutex<RequestTable>,
}

#[derive(Debug, Default)]
struct RequestTable {
    last: u64,
    ended: bool,
    answers: HashMap<u64, Sender<ControlReport>>,
}

/// A request that was numbered.
#[derive(Debug)]
pub struct ExpectedReply {
    /// Its number.
    pub number: u64,
    answer: Receiver<ControlReport>,
    requests: Arc<PendingRequests>,
}

impl PendingRequests {
    fn lock_table(&self) -> MutexGuard<'_, RequestTable> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a request.
    pub fn register(self: &Arc<Self>) -> Result<ExpectedReply, EngineError> {
        let mut waiting = self.lock_table();
        if waiting.ended {
            return Err(EngineError::Stopped);
        }
        waiting.last += 1;
        let number = waiting.last;
        let (sender, answer) = channel();
        waiting.answers.insert(number, sender);
        Ok(ExpectedReply { number, answer, requests: self.clone() })
    }

    fn complete(&self, number: u64, report: ControlReport) {
        if let Some(sender) = self.lock_table().answers.remove(&number) {
            // Who asked may have lost patience.
            let _ = sender.send(report);
        }
    }

    /// No shard is left to answer: who waits is told so.
    fn close(&self) {
        let mut waiting = self.lock_table();
        waiting.ended = true;
        waiting.answers.clear();
    }
}

impl ExpectedReply {
    /// The answer.
    pub fn wait_for_report(self, patience: Duration) -> Result<ControlReport, EngineError> {
        self.answer.recv_timeout(patience).map_err(|why| match why {
            RecvTimeoutError::Timeout => EngineError::TimedOut,
            RecvTimeoutError::Disconnected => EngineError::Stopped,
        })
    }
}

impl Drop for ExpectedReply {
    fn drop(&mut self) {
        self.requests.lock_table().answers.remove(&self.number);
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

    fn matches_id(&self, id: ComputeId) -> bool {
        matches!(self, ComputeKind::Host(of, _) if *of == id)
    }
}

/// Computes what is wanted, and tells who asked.
fn run_job(job: ComputeJob<ComputeKind>, tell: &impl Fn(ShardId, Message)) {
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
fn refuse_job(job: ComputeJob<ComputeKind>, tell: &impl Fn(ShardId, Message)) {
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
enum RecordJob {
    /// A volume's record is replaced.
    Store(VolumeId, StoreOp),
    /// The record of this name is removed, and who asked is told.
    Remove(String, Sender<Result<(), StateError>>),
}

impl RecordJob {
    fn record_name(&self) -> &str {
        match self {
            RecordJob::Store(_, store) => &store.name,
            RecordJob::Remove(name, _) => name,
        }
    }
}

/// Who keeps the records of volumes: what is asked here comes behind all that shards have asked before.
///
/// Of each record one store waits at most: who asks for it again does not wait for an older one any more. So a disk that
/// hangs makes the line no longer than there are volumes, and when it is back, what counts is written at once.
#[derive(Clone, Debug)]
pub struct RecordWriter {
    jobs: Arc<Mutex<VecDeque<RecordJob>>>,
    /// Rings once for each job.
    bell: Sender<()>,
}

impl RecordWriter {
    fn lock_jobs(&self) -> MutexGuard<'_, VecDeque<RecordJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue_job(&self, job: RecordJob) -> Result<(), EngineError> {
        let mut jobs = self.lock_jobs();
        let before = jobs.iter_mut().rev().find(|before| before.record_name() == job.record_name());
        if let (Some(before @ RecordJob::Store(..)), RecordJob::Store(..)) = (before, &job) {
            *before = job;
            return Ok(());
        }
        jobs.push_back(job);
        self.bell.send(()).map_err(|_| EngineError::Stopped)
    }

    /// Removes a record, behind every store of it that a shard has asked for and answered to since.
    pub fn remove_record(&self, name: String, patience: Duration) -> Result<(), EngineError> {
        let (done, heard) = channel();
        self.queue_job(RecordJob::Remove(name, done))?;
        match heard.recv_timeout(patience) {
            Ok(removed) => removed.map_err(|why| EngineError::Record(why.to_string())),
            Err(RecvTimeoutError::Timeout) => Err(EngineError::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(EngineError::Stopped),
        }
    }
}

/// Starts the threads that take what arrives. `stored` carries the outcome of a store back to the
/// volume's home, `tell` that of a computation to the shard that asked.
pub fn start_threads(
    inbox: Receiver<Message>,
    requests: Arc<PendingRequests>,
    state: Arc<StateDir>,
    generated: GeneratedPsks,
    stored: impl Fn(VolumeId, u64, bool) + Send + 'static,
    tell: impl Fn(ShardId, Message) + Clone + Send + 'static,
) -> std::io::Result<RecordWriter> {
    // A sync may take long, and answers must not wait for it.
    let (bell, rings) = channel();
    let records = RecordWriter { jobs: Arc::default(), bell };
    let jobs = records.jobs.clone();
    let keep = move || {
        for () in rings {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let (volume, store) = match job {
                Some(RecordJob::Store(volume, store)) => (volume, store),
                Some(RecordJob::Remove(name, done)) => {
                    // Who asked may have lost patience.
                    let _ = done.send(state.remove_record(&name));
                    continue;
                }
                None => continue,
            };
            let kept = state.write_record(&store.name, &store.bytes);
            if let Err(why) = &kept {
                tracing::error!(target: area::SERVE, %why, "a volume's record (reservations, bad blocks, path states, protection) \
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
        while let Some(job) = asked.wait_for_job() {
            run_job(job, &answers);
        }
    };
    thread::Builder::new().name("auth".to_owned()).spawn(work)?;
    let take = move || {
        for message in inbox {
            match message {
                Message::Report(number, report) => requests.complete(number, report),
                Message::Store(volume, store) => {
                    let _ = stores.queue_job(RecordJob::Store(volume, store));
                }
                Message::Nvme(NvmeMessage::Compute(shard, id, source, work)) => {
                    let job = ComputeJob { shard, work: ComputeKind::Host(id, work) };
                    powers.submit(source, job).into_iter().for_each(|job| refuse_job(job, &tell));
                }
                Message::Compute(shard, remote, work) => {
                    let source = shard::source_network(work.peer());
                    let job = ComputeJob { shard, work: ComputeKind::Remote(remote, work) };
                    powers.submit(source, job).into_iter().for_each(|job| refuse_job(job, &tell));
                }
                Message::Nvme(NvmeMessage::Handshake(shard, conn, work)) => {
                    let source = shard::source_network(work.peer());
                    let job = ComputeJob { shard, work: ComputeKind::Handshake(conn, work) };
                    powers.submit(source, job).into_iter().for_each(|job| refuse_job(job, &tell));
                }
                Message::Nvme(NvmeMessage::Forget(shard, id)) => powers.cancel(shard, id),
                Message::Nvme(NvmeMessage::PskGenerated(psk)) => {
                    let (identity, psk) = *psk;
                    generated.add(Instant::now(), identity, psk);
                }
                Message::Nvme(NvmeMessage::PskRevoked(identity)) => {
                    generated.revoke(Instant::now(), &identity);
                }
                _ => tracing::error!(
                    target: area::SERVE,
                    "a shard has sent the control plane an unexpected message: please report this"
                ),
            }
        }
        requests.close();
        powers.close();
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
        let records = RecordWriter { jobs: Arc::default(), bell };
        let store = |name: &str, ticket| {
            let store = StoreOp { ticket, name: name.to_owned(), bytes: vec![0; 1000] };
            records.queue_job(RecordJob::Store(VolumeId(1), store)).unwrap();
        };
        for ticket in 0..1000 {
            store("a", ticket);
            store("b", ticket);
        }
        let (done, _heard) = channel();
        records.queue_job(RecordJob::Remove("a".to_owned(), done)).unwrap();
        // Not in front of the removal.
        store("a", 1000);
        store("a", 1001);
        let waiting: Vec<_> = records.lock_jobs().drain(..).collect();
        let tickets = waiting.iter().map(|job| match job {
            RecordJob::Store(_, store) => (store.name.as_str(), Some(store.ticket)),
            RecordJob::Remove(name, _) => (name.as_str(), None),
        });
        let expected = [("a", Some(999)), ("b", Some(999)), ("a", None), ("a", Some(1001))];
        assert_eq!(tickets.collect::<Vec<_>>(), expected);
        assert_eq!(rings.try_iter().count(), expected.len());
    }
}
