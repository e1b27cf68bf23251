//! The volumes that a thread of the load generator uses: remote ones, local disks, own memory.
//!
//! `local:SIZE` is memory of this process, read and written by copying, without network or target, for
//! comparison with remote I/O. Invariant: every accepted operation ends once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use buf::{Payload, SgMut};
use client::{Handle, Initiator, Io, IoId, Op, Span};
use eval::fio::{Direction, Job};
use eval::load::VolumeShape;

use super::disk::{self, Disks};
use process::exit::Failure;
use transfer::ends;

/// How many volumes are opened at a time: as many as can log in to a target of ours together when its memory is
/// nearly promised, since it offers each login a quarter of what is left.
const OPENING: usize = 4;
/// Bytes of a logical block of local memory.
const LOCAL_BLOCK: u32 = 512;
/// Name of local memory, before its size.
const LOCAL: &str = "local:";

/// One volume.
#[derive(Debug)]
enum Volume {
    Remote(Handle),
    Disk(usize),
    Local(Local),
}

/// All volumes of a thread, and its initiator.
pub(super) struct Volumes {
    initiator: Initiator,
    /// Disks of this machine, if there are any; then nothing is remote.
    disks: Option<Disks>,
    open: Vec<Volume>,
    /// By URL and number of session: its place there.
    known: HashMap<(String, u32), usize>,
    /// By [`Handle::slot`]: the place of a remote one. There may be thousands, and few have ended something.
    remote: Vec<usize>,
    /// The remote one that is asked for all that it has ended.
    busy: Option<(Handle, usize)>,
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
pub struct Negotiated {
    /// Commands that may be in work at once.
    pub depth: u32,
    /// Name and value, in the words of the protocol's standard.
    pub terms: Vec<(String, String)>,
}

/// An operation that has ended.
pub(super) struct Ended {
    /// Its id.
    pub(super) id: IoId,
    /// Why it failed.
    pub(super) result: Result<(), Failure>,
    /// The memory that was lent with it.
    pub(super) payload: Payload,
}

impl Volumes {
    pub(super) fn new(initiator: Initiator, disks: Option<Disks>) -> Volumes {
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
        for some in wanted.chunks(OPENING) {
            let begun: Vec<Volume> =
                some.iter().map(|(url, _)| self.begin(url, in_flight)).collect::<Result<_, Failure>>()?;
            for (volume, (url, number)) in begun.into_iter().zip(some) {
                if let Volume::Remote(handle) = &volume {
                    self.initiator.finish(*handle, &with_depth(url, in_flight))?;
                }
                self.add(volume, url, *number);
            }
        }
        Ok(())
    }

    fn begin(&mut self, url: &str, in_flight: u64) -> Result<Volume, Failure> {
        Ok(match (url.strip_prefix(LOCAL), &self.disks) {
            (Some(size), _) => Volume::Local(Local::new(size)?),
            (None, Some(disks)) => {
                let mixed = || {
                    let why = "disks of this machine and remote volumes do not go together: use two commands";
                    Failure::usage(format!("{url}: {why}"))
                };
                Volume::Disk(disks.find(url).ok_or_else(mixed)?)
            }
            (None, None) => Volume::Remote(self.initiator.begin(&with_depth(url, in_flight))?),
        })
    }

    fn add(&mut self, volume: Volume, url: &str, number: u32) {
        let at = self.open.len();
        match &volume {
            Volume::Remote(handle) => {
                let slots = self.remote.len().max(handle.slot() + 1);
                self.remote.resize(slots, usize::MAX);
                if let Some(slot) = self.remote.get_mut(handle.slot()) {
                    *slot = at;
                }
            }
            Volume::Disk(_) | Volume::Local(_) => self.near.0.push(at),
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
            Volume::Remote(handle) => {
                let geometry = self.initiator.geometry(*handle)?;
                Some(VolumeShape { bytes: geometry.bytes(), block: geometry.logical })
            }
            Volume::Disk(disk) => self.disks.as_ref()?.shape(*disk),
            Volume::Local(local) => Some(VolumeShape { bytes: local.bytes.len() as u64, block: LOCAL_BLOCK }),
        });
        shape.unwrap_or(VolumeShape { bytes: 0, block: LOCAL_BLOCK })
    }

    pub(super) fn is_read_only(&self, volume: usize) -> bool {
        matches!(self.open.get(volume), Some(Volume::Remote(handle)) if self.initiator.is_read_only(*handle))
    }

    /// What was negotiated with the first remote volume; `None`: nothing is remote.
    pub(super) fn negotiated(&self) -> Option<Negotiated> {
        let remote = |volume: &Volume| match volume {
            Volume::Remote(handle) => self.initiator.info(*handle),
            Volume::Disk(_) | Volume::Local(_) => None,
        };
        let info = self.open.iter().find_map(remote)?;
        Some(Negotiated { depth: info.depth, terms: info.terms.clone() })
    }

    /// Refuses a remote volume that somebody uses, before it is written to.
    pub(super) fn refuse_used(&mut self, volume: usize, url: &str) -> Result<(), Failure> {
        match self.open.get(volume) {
            Some(Volume::Remote(handle)) => ends::refuse_used(&mut self.initiator, *handle, url),
            Some(Volume::Disk(_) | Volume::Local(_)) | None => Ok(()),
        }
    }

    /// Memory for one I/O.
    pub(super) fn io_buffer(&mut self, len: usize) -> Option<SgMut> {
        match &mut self.disks {
            Some(disks) => disks.io_buffer(len),
            None => self.initiator.memory(len),
        }
    }

    /// Starts an operation, now or when the volume takes more; `false`: it takes none at all.
    pub(super) fn submit(&mut self, volume: usize, io: Io) -> bool {
        let queue_and_volume = self.queues.get_mut(volume).zip(self.open.get_mut(volume));
        let Some(((has, waiting), volume)) = queue_and_volume else { return false };
        match volume {
            Volume::Remote(_) if !waiting.is_empty() => {
                waiting.push_back(io);
                true
            }
            Volume::Remote(handle) => match self.initiator.submit(*handle, io) {
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
            Volume::Disk(disk) => self.disks.as_mut().is_some_and(|disks| disks.submit(*disk, io)),
            Volume::Local(local) => {
                local.act(io);
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
    pub(super) fn polled_ns(&self) -> u64 {
        let disks = self.disks.as_ref().map_or(0, Disks::polled_ns);
        self.initiator.stats().poll_ns + disks
    }

    /// The next operation of any volume that has ended.
    pub(super) fn poll_done(&mut self) -> Option<Ended> {
        if let Some(io) = self.refused.pop_front() {
            let result = Err(Failure::failed("the volume is closed"));
            return Some(Ended { id: io.id, result, payload: io.payload });
        }
        self.poll_remote().or_else(|| self.poll_near())
    }

    fn poll_remote(&mut self) -> Option<Ended> {
        loop {
            let (handle, at) = match self.busy {
                Some(busy) => busy,
                None => {
                    let handle = self.initiator.poll_ended_volume()?;
                    let at = self.remote.get(handle.slot()).copied().unwrap_or(usize::MAX);
                    *self.busy.insert((handle, at))
                }
            };
            if let Some(done) = self.initiator.poll_done(handle) {
                self.room_came(handle, at);
                return Some(ended(done));
            }
            self.busy = None;
        }
    }

    /// An operation of a remote volume has ended: those that wait take its room.
    fn room_came(&mut self, handle: Handle, at: usize) {
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

    fn poll_near(&mut self) -> Option<Ended> {
        let (near, next) = &mut self.near;
        for _ in 0..near.len() {
            match near.get(*next).and_then(|at| self.open.get_mut(*at)) {
                Some(Volume::Disk(disk)) => {
                    if let Some(done) = self.disks.as_mut().and_then(|disks| disks.poll_done(*disk)) {
                        return Some(ended(done));
                    }
                }
                Some(Volume::Local(local)) => {
                    if let Some((id, payload)) = local.done.pop_front() {
                        self.ended -= 1;
                        return Some(Ended { id, result: Ok(()), payload });
                    }
                }
                Some(Volume::Remote(_)) | None => {}
            }
            *next = (*next + 1) % near.len();
        }
        None
    }

    /// Says goodbye to all targets.
    pub(super) fn close(mut self) {
        for volume in self.open.drain(..) {
            if let Volume::Remote(handle) = volume {
                let _ = self.initiator.close(handle);
            }
        }
    }
}

fn ended(done: client::Done) -> Ended {
    let why = |failure| client::Error::of(failure, "an I/O failed").into();
    Ended { id: done.id, result: done.result.map(drop).map_err(why), payload: done.payload }
}

/// The disks of this machine among the volumes of jobs, each once, and whether any job writes it.
pub(super) fn disks_of(jobs: &[Job]) -> Vec<(&str, bool)> {
    let mut urls = BTreeMap::new();
    for job in jobs {
        for url in job.files.iter().filter(|url| disk::local_disk_path(url).is_some()) {
            *urls.entry(url.as_str()).or_insert(false) |= job.direction != Direction::Read;
        }
    }
    urls.into_iter().collect()
}

/// Most commands on one session or queue.
const COMMANDS_MAX: u64 = 1023;

/// As many commands on a session as are to be in flight, unless the URL says how many.
fn with_depth(url: &str, in_flight: u64) -> String {
    if url.contains("commands=") || in_flight <= 128 {
        return url.to_owned();
    }
    let (mark, commands) = (if url.contains('?') { '&' } else { '?' }, in_flight.min(COMMANDS_MAX));
    format!("{url}{mark}commands={commands}")
}

/// Memory of this process as a volume.
struct Local {
    bytes: Vec<u8>,
    /// At most as many as the job's workers have out.
    done: VecDeque<(IoId, Payload)>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Local {
    fn new(size: &str) -> Result<Local, Failure> {
        let bytes =
            config::size::parse(size).map_err(|why| Failure::usage(format!("{LOCAL}{size}: {why}")))?;
        let bytes = usize::try_from(bytes).map_err(|_| Failure::usage(format!("{LOCAL}{size}: too much")))?;
        // Written once, so that its pages are there.
        Ok(Local {
            bytes: vec![0x5a; bytes / LOCAL_BLOCK as usize * LOCAL_BLOCK as usize],
            done: VecDeque::new(),
        })
    }

    fn act(&mut self, mut io: Io) {
        match (&io.op, &mut io.payload) {
            (Op::Read(span), Payload::In(memory)) => {
                let from = self.place(*span);
                memory.copy_from(0, self.bytes.get(from).unwrap_or_default());
            }
            (Op::Write(span, _), Payload::Out(memory)) => {
                let to = self.place(*span);
                memory.copy_to(0, self.bytes.get_mut(to).unwrap_or_default());
            }
            (Op::Unmap(spans), _) => {
                for span in spans {
                    let place = self.place(*span);
                    self.bytes.get_mut(place).unwrap_or_default().fill(0);
                }
            }
            _ => {}
        }
        self.done.push_back((io.id, io.payload));
    }

    fn place(&self, span: Span) -> std::ops::Range<usize> {
        let block = u64::from(LOCAL_BLOCK);
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
        assert_eq!(with_depth("iscsi://h/t/0", 64), "iscsi://h/t/0");
        assert_eq!(with_depth("iscsi://h/t/0", 256), "iscsi://h/t/0?commands=256");
        assert_eq!(with_depth("iscsi://h/t/0?commands=8", 256), "iscsi://h/t/0?commands=8");
        assert_eq!(with_depth("iscsi://h/t/0?a=b", 5000), "iscsi://h/t/0?a=b&commands=1023");
    }

    #[test]
    fn local_memory_has_whole_blocks() {
        assert_eq!(Local::new("1M").unwrap().bytes.len(), 1 << 20);
        assert_eq!(Local::new("1000").unwrap().bytes.len(), 512);
        assert!(Local::new("much").is_err());
    }
}
