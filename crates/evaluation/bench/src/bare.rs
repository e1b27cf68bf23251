//! The bare protocol as a system of its own: a responder on several processors, and a requester with several volumes
//! and threads.
//!
//! Both are what there can be at most on kernel TCP, so that other systems can be held against them under the same
//! load. Invariant: volumes share no bytes, unless they are copies of one volume for another thread.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::load::{LoadMeasurement, LoadPhase, LoadPlan, ReadyConnection, connect, run_load_with_progress};
use crate::spin::WaitMode;
use crate::wire_protocol::LoadOp;
use crate::wire_protocol::bare::BareClient;

/// What the URL of a volume begins with.
const URL_SCHEME: &str = "bare://";

/// A stretch of a responder's memory: `bare://ADDRESS:PORT/FIRST+BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareVolume {
    /// The responder.
    pub address: SocketAddr,
    /// Its first byte.
    pub first: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// A text is no URL of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidVolumeUrl;

impl fmt::Display for InvalidVolumeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{URL_SCHEME}ADDRESS:PORT/FIRST+BYTES is expected")
    }
}

impl std::error::Error for InvalidVolumeUrl {}

impl FromStr for BareVolume {
    type Err = InvalidVolumeUrl;

    fn from_str(text: &str) -> Result<BareVolume, InvalidVolumeUrl> {
        let parts = text.strip_prefix(URL_SCHEME).and_then(|rest| rest.split_once('/'));
        let (address, place) = parts.ok_or(InvalidVolumeUrl)?;
        let (first, bytes) = place.split_once('+').ok_or(InvalidVolumeUrl)?;
        let number = |text: &str| text.parse().map_err(|_| InvalidVolumeUrl);
        let volume = BareVolume {
            address: address.parse().map_err(|_| InvalidVolumeUrl)?,
            first: number(first)?,
            bytes: number(bytes)?,
        };
        if volume.bytes == 0 || volume.first.checked_add(volume.bytes).is_none() {
            return Err(InvalidVolumeUrl);
        }
        Ok(volume)
    }
}

/// Where volumes lie in the memories of several threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    /// Thread and first byte in its memory, of each volume, or of each copy where there are more threads than volumes:
    /// the first copies of all, then the second ones.
    pub places: Vec<(usize, u64)>,
    /// Bytes of each thread's memory.
    pub memories: Vec<u64>,
}

impl MemoryLayout {
    /// Of so many volumes of `bytes` each; `None`: it is more than can be.
    pub fn of(volumes: usize, bytes: u64, threads: usize) -> Option<MemoryLayout> {
        let threads = threads.max(1);
        let copies = threads.div_ceil(volumes.max(1));
        let mut memories = vec![0u64; threads];
        let mut places = Vec::new();
        for place in 0..volumes.max(1).checked_mul(copies)? {
            let thread = place % threads;
            let memory = memories.get_mut(thread)?;
            places.push((thread, *memory));
            *memory = memory.checked_add(bytes)?;
        }
        Some(MemoryLayout { places, memories })
    }
}

/// What is requested.
#[derive(Clone, Debug)]
pub struct BareLoad {
    /// Read or write.
    pub op: LoadOp,
    /// So many percent of reads in place of `op` alone.
    pub reads: Option<u8>,
    /// Requests per second over all threads, begun on time; `None`: one for each that ends.
    pub rate: Option<f64>,
    /// Bytes per request.
    pub len: u32,
    /// Whether offsets follow each other.
    pub is_sequential: bool,
    /// Requests in flight over all threads.
    pub in_flight: u32,
    /// Threads, each with connections of its own.
    pub threads: u32,
    /// Connections of a thread with each volume.
    pub sessions: u32,
    /// How long to load before measuring.
    pub ramp: Duration,
    /// How long to measure.
    pub runtime: Duration,
    /// The longest poll before sleeping; none: it sleeps at once.
    pub poll: Duration,
    /// What the offsets follow from.
    pub seed: u64,
}

/// What is told while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressEvent {
    /// All threads are measured.
    Began,
    /// So many requests were answered since.
    Progress(u64),
    /// The first thread is not measured any more.
    Ended,
}

/// Part of a number that one of several has, the first ones having what is left over.
fn split_share(all: u32, parts: u32, part: u32) -> u32 {
    all / parts + u32::from(part < all % parts)
}

/// The connections of a thread, each with its part of the thread's requests in flight: as many connections as there
/// are requests, beginning with another volume in each thread.
fn open_connections(
    load: &BareLoad,
    volumes: &[BareVolume],
    thread: u32,
) -> io::Result<Vec<ReadyConnection<BareClient>>> {
    let mine = split_share(load.in_flight, load.threads, thread);
    let wanted = u32::try_from(volumes.len()).unwrap_or(u32::MAX).saturating_mul(load.sessions);
    let count = wanted.min(mine);
    let begin = (thread as usize).wrapping_mul(count as usize);
    let mut all = Vec::new();
    for number in 0..count {
        let volume = volumes.get((begin + number as usize) % volumes.len().max(1));
        let volume = volume.ok_or_else(|| io::Error::other("there is no volume"))?;
        let (depth, first) = (split_share(mine, count, number), volume.first);
        let socket = connect(volume.address, None)?;
        all.push(ReadyConnection { first, ..ReadyConnection::new(socket, BareClient::default(), depth) });
    }
    Ok(all)
}

/// Requests from volumes of one size; gives what each thread measured.
///
/// # Errors
/// If a volume cannot be reached, or does not answer; or there is less in flight than there are threads.
pub fn run_bare_load(
    load: &BareLoad,
    volumes: &[BareVolume],
    tell: &(dyn Fn(ProgressEvent) + Sync),
) -> io::Result<Vec<LoadMeasurement>> {
    if load.threads == 0 || load.in_flight < load.threads || load.sessions == 0 {
        return Err(io::Error::other("each thread needs a request in flight and a session"));
    }
    let bytes = volumes.iter().map(|volume| volume.bytes).min().unwrap_or(0);
    if bytes < u64::from(load.len) {
        return Err(io::Error::other("a request is longer than a volume"));
    }
    let ready: Vec<_> =
        (0..load.threads).map(|thread| open_connections(load, volumes, thread)).collect::<io::Result<_>>()?;
    let is_polling = !load.poll.is_zero();
    let plan = |thread: u32| LoadPlan {
        op: load.op,
        reads: load.reads,
        rate: load.rate.map(|rate| rate / f64::from(load.threads)),
        len: load.len,
        depth: 1,
        size: bytes,
        is_sequential: load.is_sequential,
        once: false,
        warmup: load.ramp,
        measure: load.runtime,
        gap: Duration::ZERO,
        wait: if is_polling { WaitMode::Adaptive } else { WaitMode::Sleep },
        poll: load.poll,
        server: None,
        seed: load.seed.wrapping_add(u64::from(thread)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    let (measuring, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let answered = Mutex::new(vec![0u64; ready.len()]);
    let heard = |thread: usize, phase: LoadPhase| match phase {
        LoadPhase::Measuring => {
            if measuring.fetch_add(1, Ordering::AcqRel) + 1 == load.threads as usize {
                tell(ProgressEvent::Began);
            }
        }
        LoadPhase::Progress(count) => {
            let Ok(mut all) = answered.lock() else { return };
            if let Some(mine) = all.get_mut(thread) {
                *mine = count;
            }
            if thread == 0 {
                tell(ProgressEvent::Progress(all.iter().sum()));
            }
        }
        LoadPhase::Measured => {
            if !is_over.swap(true, Ordering::AcqRel) {
                tell(ProgressEvent::Ended);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0u32..)
            .zip(ready)
            .map(|(thread, ready)| {
                let (plan, heard) = (plan(thread), &heard);
                scope.spawn(move || {
                    run_load_with_progress(&plan, ready, &|phase| heard(thread as usize, phase))
                })
            })
            .collect();
        let broken = || Err(io::Error::other("a thread of the requester has panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| broken())).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::responder::{ResponderOptions, serve};

    #[test]
    fn volumes_share_no_bytes() {
        let layout = MemoryLayout::of(3, 100, 2).unwrap();
        assert_eq!(layout.places, [(0, 0), (1, 0), (0, 100)]);
        assert_eq!(layout.memories, [200, 100]);
        // One volume is on both threads, so that both have something to do.
        let layout = MemoryLayout::of(1, 100, 2).unwrap();
        assert_eq!((layout.places, layout.memories), (vec![(0, 0), (1, 0)], vec![100, 100]));
        assert_eq!(MemoryLayout::of(2, u64::MAX, 1), None);
    }

    #[test]
    fn a_volume_is_named_by_its_place() {
        let volume: BareVolume = "bare://127.0.0.1:9/4096+8192".parse().unwrap();
        assert_eq!((volume.address.port(), volume.first, volume.bytes), (9, 4096, 8192));
        for text in ["bare://127.0.0.1:9/", "tcp://127.0.0.1:9/0+1", "bare://127.0.0.1:9/0+0", "bare://h/0+1"]
        {
            assert!(text.parse::<BareVolume>().is_err(), "{text}");
        }
        let most = format!("bare://127.0.0.1:9/{}+1", u64::MAX);
        assert_eq!(most.parse::<BareVolume>(), Err(InvalidVolumeUrl));
    }

    #[test]
    fn threads_are_measured_together() {
        let (to, from) = channel();
        std::thread::spawn(move || {
            let options = ResponderOptions {
                listen: "127.0.0.1:0".parse().unwrap(),
                wait: WaitMode::Sleep,
                poll: Duration::ZERO,
                congestion: None,
                memory: 1 << 20,
                polled: None,
            };
            serve(options, |address| to.send(address).unwrap(), |_| ()).unwrap();
        });
        let address = from.recv().unwrap();
        let volume = |first| BareVolume { address, first, bytes: 1 << 19 };
        let load = BareLoad {
            op: LoadOp::Write,
            reads: None,
            rate: None,
            len: 4096,
            is_sequential: true,
            in_flight: 5,
            threads: 2,
            sessions: 1,
            ramp: Duration::from_millis(20),
            runtime: Duration::from_millis(200),
            poll: Duration::ZERO,
            seed: 1,
        };
        let told = Mutex::new(Vec::new());
        let tell = |event| told.lock().unwrap().push(event);
        let measured = run_bare_load(&load, &[volume(0), volume(1 << 19)], &tell).unwrap();
        assert!(measured.len() == 2 && measured.iter().all(|one| one.latency.count() > 10), "{measured:?}");
        let told = told.into_inner().unwrap();
        assert_eq!(told.first(), Some(&ProgressEvent::Began));
        assert_eq!(told.iter().filter(|event| **event == ProgressEvent::Ended).count(), 1);
        assert!(run_bare_load(&BareLoad { threads: 6, ..load.clone() }, &[volume(0)], &|_| ()).is_err());
        assert!(run_bare_load(&load, &[], &|_| ()).is_err());
    }
}
