//! The volumes that a thread of the load generator uses: remote ones, local disks, own memory.
//!
//! `local:SIZE` is memory of this process, read and written by copying, without network or target, for
//! comparison with remote I/O. Invariant: every accepted operation ends once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use buf::{Payload, SgMut};
use client::{Initiator, Io, IoId, Op, Span, VolumeHandle};
use eval::fio::{IoDirection, Job};
use eval::load::VolumeShape;

use super::disk::{self, LocalDisks};
use process::exit::Failure;
use transfer::copy_ends;

/// How many volumes are opened at a time: as many as can log in to a target of ours together when its memory is
/// nearly promised, since it offers each login a quarter of what is left.
const OPENING_MAX: usize = 4;
/// Bytes of a logical block of local memory.
const LOCAL_BLOCK_BYTES: u32 = 512;
/// Name of local memory, before its size.
const LOCAL_PREFIX: &str = "local:";

/// One volume.
#[derive(Debug)]
enum BenchVolume {
    Remote(VolumeHandle),
    Disk(usize),
    Local(LocalMemory),
}

/// All volumes of a thread, and its initiator.
pub(super) struct Volumes {
    initiator: Initiator,
    /// Disks of this machine, if there are any; then nothing is remote.
    disks: Option<LocalDisks>,
    open: Vec<BenchVolume>,
    /// By URL and number of session: its place there.
    known: HashMap<(String, u32), usize>,
    /// By [`VolumeHandle::slot_index`]: the place of a remote one. There may be thousands, and few have ended something.
    remote: Vec<usize>,
    /// The remote one that is asked for all that it has ended.
    busy: Option<(VolumeHandle, usize)>,
    /// Places of those that are not remote, and which of them is asked next.
    near: (Vec<usize>, usize),
    /// Operations on local memory that were not told of yet.
    ended: usize,
    /// For each volume: how many operations it has, and those that wait for it to take more. They are at most
    /// as many as the workers have out.
    queues: Vec<(usize, VecDeque<Io>)>,
    /// Operations that waited, and that their volume does not take any more.
    refused: VecDeque<Io>,
}

/// What was negotiated for a session or an I/O queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiatedParameters {
    /// Commands that may be in work at once.
    pub depth: u32,
    /// Name and value, in the words of the protocol's standard.
    pub terms: Vec<(String, String)>,
}

/// An operation that has ended.
pub(super) struct CompletedIo {
    /// Its id.
    pub(super) id: IoId,
    /// Why it failed.
    pub(super) result: Result<(), Failure>,
    /// The memory that was lent with it.
    pub(super) payload: Payload,
}

impl Volumes {
    pub(super) fn new(initiator: Initiator, disks: Option<LocalDisks>) -> Volumes {
        Volumes {
            initiator,
            disks,
            open: Vec::new(),
            known: HashMap::new(),
            remote: Vec::new(),
            busy: None,
            near: (Vec::new(), 0),
            ended: 0,
            queues: Vec::new(),
            refused: VecDeque::new(),
        }
    }

    /// Opens the volumes of these URLs, each over the session of that number to it; several at a time.
    pub(super) fn open_all(&mut self, wanted: &[(String, u32)], in_flight: u64) -> Result<(), Failure> {
        for some in wanted.chunks(OPENING_MAX) {
            let begun: Vec<BenchVolume> = some
                .iter()
                .map(|(url, _)| self.open_volume(url, in_flight))
                .collect::<Result<_, Failure>>()?;
            for (volume, (url, number)) in begun.into_iter().zip(some) {
                if let BenchVolume::Remote(handle) = &volume {
                    self.initiator.finish_open(*handle, &with_queue_depth(url, in_flight))?;
                }
                self.add_volume(volume, url, *number);
            }
        }
        Ok(())
    }

    fn open_volume(&mut self, url: &str, in_flight: u64) -> Result<BenchVolume, Failure> {
        Ok(match (url.strip_prefix(LOCAL_PREFIX), &self.disks) {
            (Some(size), _) => BenchVolume::Local(LocalMemory::new(size)?),
            (None, Some(disks)) => {
                let mixed = || {
                    let why = "disks of this machine and remote volumes do not go together: use two commands";
                    Failure::usage(format!("{url}: {why}"))
                };
                BenchVolume::Disk(disks.find(url).ok_or_else(mixed)?)
            }
            (None, None) => {
                BenchVolume::Remote(self.initiator.start_open(&with_queue_depth(url, in_flight))?)
            }
        })
    }

    fn add_volume(&mut self, volume: BenchVolume, url: &str, number: u32) {
        let at = self.open.len();
        match &volume {
            BenchVolume::Remote(handle) => {
                let slots = self.remote.len().max(handle.slot_index() + 1);
                self.remote.resize(slots, usize::MAX);
                if let Some(slot) = self.remote.get_mut(handle.slot_index()) {
                    *slot = at;
                }
            }
            BenchVolume::Disk(_) | BenchVolume::Local(_) => self.near.0.push(at),
        }
        self.open.push(volume);
        self.known.insert((url.to_owned(), number), at);
        self.queues.push((0, VecDeque::new()));
    }

    /// Which of the open volumes is that of a URL over a session to it.
    pub(super) fn find(&self, name: &(String, u32)) -> Option<usize> {
        self.known.get(name).copied()
    }

    /// What a volume looks like to a job: no bytes if it is not there any more.
    pub(super) fn shape(&self, volume: usize) -> VolumeShape {
        let shape = self.open.get(volume).and_then(|volume| match volume {
            BenchVolume::Remote(handle) => {
                let geometry = self.initiator.geometry(*handle)?;
                Some(VolumeShape { bytes: geometry.capacity_bytes(), block: geometry.logical })
            }
            BenchVolume::Disk(disk) => self.disks.as_ref()?.disk_shape(*disk),
            BenchVolume::Local(local) => {
                Some(VolumeShape { bytes: local.bytes.len() as u64, block: LOCAL_BLOCK_BYTES })
            }
        });
        shape.unwrap_or(VolumeShape { bytes: 0, block: LOCAL_BLOCK_BYTES })
    }

    pub(super) fn is_read_only(&self, volume: usize) -> bool {
        matches!(self.open.get(volume), Some(BenchVolume::Remote(handle)) if self.initiator.is_read_only(*handle))
    }

    /// What was negotiated with the first remote volume; `None`: nothing is remote.
    pub(super) fn negotiated(&self) -> Option<NegotiatedParameters> {
        let remote = |volume: &BenchVolume| match volume {
            BenchVolume::Remote(handle) => self.initiator.info(*handle),
            BenchVolume::Disk(_) | BenchVolume::Local(_) => None,
        };
        let info = self.open.iter().find_map(remote)?;
        Some(NegotiatedParameters { depth: info.depth, terms: info.terms.clone() })
    }

    /// Refuses a remote volume that somebody uses, before it is written to.
    pub(super) fn refuse_used(&mut self, volume: usize, url: &str) -> Result<(), Failure> {
        match self.open.get(volume) {
            Some(BenchVolume::Remote(handle)) => {
                copy_ends::refuse_volume_in_use(&mut self.initiator, *handle, url)
            }
            Some(BenchVolume::Disk(_) | BenchVolume::Local(_)) | None => Ok(()),
        }
    }

    /// Memory for one I/O.
    pub(super) fn io_buffer(&mut self, len: usize) -> Option<SgMut> {
        match &mut self.disks {
            Some(disks) => disks.io_buffer(len),
            None => self.initiator.alloc_payload(len),
        }
    }

    /// Memory for one read. Of remote volumes it is only set aside, and taken when the first bytes come; system
    /// calls to disks name it from the start.
    pub(super) fn read_buffer(&mut self, len: usize) -> Option<SgMut> {
        match &mut self.disks {
            Some(disks) => disks.io_buffer(len),
            None => self.initiator.set_aside_payload(len),
        }
    }

    /// Starts an operation, now or when the volume takes more; `false`: it takes none at all.
    pub(super) fn submit(&mut self, volume: usize, io: Io) -> bool {
        let queue_and_volume = self.queues.get_mut(volume).zip(self.open.get_mut(volume));
        let Some(((has, waiting), volume)) = queue_and_volume else { return false };
        match volume {
            BenchVolume::Remote(_) if !waiting.is_empty() => {
                waiting.push_back(io);
                true
            }
            BenchVolume::Remote(handle) => match self.initiator.submit(*handle, io) {
                Ok(()) => {
                    *has += 1;
                    true
                }
                // Room comes when one of those that it has ends.
                Err(io) if *has > 0 => {
                    waiting.push_back(io);
                    true
                }
                Err(_) => false,
            },
            BenchVolume::Disk(disk) => self.disks.as_mut().is_some_and(|disks| disks.submit(*disk, io)),
            BenchVolume::Local(local) => {
                local.execute(io);
                self.ended += 1;
                true
            }
        }
    }

    /// Moves bytes, and waits at most so long for something to happen.
    pub(super) fn turn(&mut self, wait: Duration) {
        let wait = if self.ended > 0 { Duration::ZERO } else { wait };
        if let Some(disks) = &mut self.disks {
            disks.turn(wait);
        } else if !self.remote.is_empty() {
            self.initiator.turn(Some(wait));
        } else if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    /// Nanoseconds spent polling before sleeping, useful or not.
    pub(super) fn busy_poll_ns(&self) -> u64 {
        let disks = self.disks.as_ref().map_or(0, LocalDisks::polled_ns);
        self.initiator.loop_stats().poll_ns + disks
    }

    /// The next operation of any volume that has ended.
    pub(super) fn poll_done(&mut self) -> Option<CompletedIo> {
        if let Some(io) = self.refused.pop_front() {
            let result = Err(Failure::failed("the volume is closed"));
            return Some(CompletedIo { id: io.id, result, payload: io.payload });
        }
        self.poll_remote().or_else(|| self.poll_local())
    }

    fn poll_remote(&mut self) -> Option<CompletedIo> {
        loop {
            let (handle, at) = match self.busy {
                Some(busy) => busy,
                None => {
                    let handle = self.initiator.poll_ended_volume()?;
                    let at = self.remote.get(handle.slot_index()).copied().unwrap_or(usize::MAX);
                    *self.busy.insert((handle, at))
                }
            };
            if let Some(done) = self.initiator.poll_done(handle) {
                self.submit_waiting(handle, at);
                return Some(completed_io(done));
            }
            self.busy = None;
        }
    }

    /// An operation of a remote volume has ended: those that wait take its room.
    fn submit_waiting(&mut self, handle: VolumeHandle, at: usize) {
        let Some((has, waiting)) = self.queues.get_mut(at) else { return };
        *has -= 1;
        while let Some(io) = waiting.pop_front() {
            if let Err(io) = self.initiator.submit(handle, io) {
                waiting.push_front(io);
                break;
            }
            *has += 1;
        }
        if *has == 0 {
            self.refused.extend(waiting.drain(..));
        }
    }

    fn poll_local(&mut self) -> Option<CompletedIo> {
        let (near, next) = &mut self.near;
        for _ in 0..near.len() {
            match near.get(*next).and_then(|at| self.open.get_mut(*at)) {
                Some(BenchVolume::Disk(disk)) => {
                    if let Some(done) = self.disks.as_mut().and_then(|disks| disks.poll_done(*disk)) {
                        return Some(completed_io(done));
                    }
                }
                Some(BenchVolume::Local(local)) => {
                    if let Some((id, payload)) = local.done.pop_front() {
                        self.ended -= 1;
                        return Some(CompletedIo { id, result: Ok(()), payload });
                    }
                }
                Some(BenchVolume::Remote(_)) | None => {}
            }
            *next = (*next + 1) % near.len();
        }
        None
    }

    /// Says goodbye to all targets.
    pub(super) fn log_out_all(mut self) {
        for volume in self.open.drain(..) {
            if let BenchVolume::Remote(handle) = volume {
                let _ = self.initiator.close(handle);
            }
        }
    }
}

fn completed_io(done: client::IoCompletion) -> CompletedIo {
    let why = |failure| client::Error::from_failure(failure, "an I/O failed").into();
    CompletedIo { id: done.id, result: done.result.map(drop).map_err(why), payload: done.payload }
}

/// The disks of this machine among the volumes of jobs, each once, and whether any job writes it.
pub(super) fn local_disks_of(jobs: &[Job]) -> Vec<(&str, bool)> {
    let mut urls = BTreeMap::new();
    for job in jobs {
        for url in job.files.iter().filter(|url| disk::local_disk_path(url).is_some()) {
            *urls.entry(url.as_str()).or_insert(false) |= job.direction != IoDirection::Read;
        }
    }
    urls.into_iter().collect()
}

/// Most commands on one session or queue.
const COMMANDS_MAX: u64 = 1023;

/// As many commands on a session as are to be in flight, unless the URL says how many.
fn with_queue_depth(url: &str, in_flight: u64) -> String {
    if url.contains("commands=") || in_flight <= 128 {
        return url.to_owned();
    }
    let (mark, commands) = (if url.contains('?') { '&' } else { '?' }, in_flight.min(COMMANDS_MAX));
    format!("{url}{mark}commands={commands}")
}

/// Memory of this process as a volume.
struct LocalMemory {
    bytes: Vec<u8>,
    /// At most as many as the job's workers have out.
    done: VecDeque<(IoId, Payload)>,
}

impl std::fmt::Debug for LocalMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl LocalMemory {
    fn new(size: &str) -> Result<LocalMemory, Failure> {
        let bytes = config::size::parse(size)
            .map_err(|why| Failure::usage(format!("{LOCAL_PREFIX}{size}: {why}")))?;
        let bytes =
            usize::try_from(bytes).map_err(|_| Failure::usage(format!("{LOCAL_PREFIX}{size}: too much")))?;
        // Written once, so that its pages are there.
        Ok(LocalMemory {
            bytes: vec![0x5a; bytes / LOCAL_BLOCK_BYTES as usize * LOCAL_BLOCK_BYTES as usize],
            done: VecDeque::new(),
        })
    }

    fn execute(&mut self, mut io: Io) {
        match (&io.op, &mut io.payload) {
            (Op::Read(span), Payload::In(memory)) => {
                let from = self.byte_range(*span);
                memory.copy_from(0, self.bytes.get(from).unwrap_or_default());
            }
            (Op::Write(span, _), Payload::Out(memory)) => {
                let to = self.byte_range(*span);
                memory.copy_to(0, self.bytes.get_mut(to).unwrap_or_default());
            }
            (Op::Unmap(spans), _) => {
                for span in spans {
                    let place = self.byte_range(*span);
                    self.bytes.get_mut(place).unwrap_or_default().fill(0);
                }
            }
            _ => {}
        }
        self.done.push_back((io.id, io.payload));
    }

    fn byte_range(&self, span: Span) -> std::ops::Range<usize> {
        let block = u64::from(LOCAL_BLOCK_BYTES);
        let (from, to) = (span.lba * block, (span.lba + span.blocks) * block);
        let whole = self.bytes.len() as u64;
        from.min(whole) as usize..to.min(whole) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_take_as_many_commands_as_are_in_flight() {
        assert_eq!(with_queue_depth("iscsi://h/t/0", 64), "iscsi://h/t/0");
        assert_eq!(with_queue_depth("iscsi://h/t/0", 256), "iscsi://h/t/0?commands=256");
        assert_eq!(with_queue_depth("iscsi://h/t/0?commands=8", 256), "iscsi://h/t/0?commands=8");
        assert_eq!(with_queue_depth("iscsi://h/t/0?a=b", 5000), "iscsi://h/t/0?a=b&commands=1023");
    }

    #[test]
    fn local_memory_has_whole_blocks() {
        assert_eq!(LocalMemory::new("1M").unwrap().bytes.len(), 1 << 20);
        assert_eq!(LocalMemory::new("1000").unwrap().bytes.len(), 512);
        assert!(LocalMemory::new("much").is_err());
    }
}
