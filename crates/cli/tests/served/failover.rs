//! Paths are cut, and path states change, under load: no operation fails, no written data is lost, and the
//! longest silence of the volume is measured.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ::client::{Durability, Initiator, Io, Op, PathState, Settings, Span, VolumeHandle};
use buf::Payload;
use volume::Epoch;

use crate::daemon::{Daemon, Place};

/// Passes bytes on to an address until its connections are cut; new ones are taken at once.
struct Portal {
    at: SocketAddr,
    links: Arc<Mutex<Vec<TcpStream>>>,
}

impl Portal {
    fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let portal = Portal { at: listener.local_addr().unwrap(), links: Arc::default() };
        let links = portal.links.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let both =
                    [(&near, &far), (&far, &near)].map(|(from, to)| (from.try_clone(), to.try_clone()));
                links.lock().unwrap().extend([near, far]);
                for (from, to) in both {
                    let (from, to) = (from.unwrap(), to.unwrap());
                    thread::spawn(move || pass(from, to));
                }
            }
        });
        portal
    }

    /// Cuts all its connections at once, to both sides.
    fn cut(&self) {
        for link in self.links.lock().unwrap().drain(..) {
            let _ = link.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Blocks of 4 KiB, each in one slot's hands: written with its version, read back, compared.
struct Load {
    volume: VolumeHandle,
    /// The first of its blocks; other loads have others.
    first: u64,
    /// Writes and reads that ended, and when the last did.
    ended: u64,
    last: Instant,
    /// Longest time without an end, and of one operation, since these were last asked.
    silence: Duration,
    latency: Duration,
    slots: Vec<Slot>,
}

struct Slot {
    version: u64,
    writes: bool,
    begun: Instant,
}

const DEPTH: u64 = 16;
/// How many blocks a slot goes over in turn.
const BLOCKS: u64 = 64;
const LEN: usize = 4096;

impl Load {
    fn start(initiator: &mut Initiator, volume: VolumeHandle, first: u64) -> Self {
        let now = Instant::now();
        let slots = (0..DEPTH).map(|_| Slot { version: 0, writes: false, begun: now }).collect();
        let (silence, latency) = Default::default();
        let mut load = Load { volume, first, ended: 0, last: now, silence, latency, slots };
        (0..DEPTH).for_each(|slot| load.next(initiator, slot));
        load
    }

    /// What block a version of a slot is written to, and its bytes.
    fn place(slot: u64, version: u64) -> (u64, [u8; LEN]) {
        let mut bytes = [0; LEN];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(slot << 48 ^ version << 16 ^ at as u64).to_le_bytes());
        }
        (slot * BLOCKS + version % BLOCKS, bytes)
    }

    /// Whose bytes these are.
    fn found(bytes: &[u8; LEN]) -> String {
        let words = bytes.as_chunks::<8>().0.iter().zip(0..);
        let stamps: Vec<u64> = words.map(|(word, at)| (u64::from_le_bytes(*word) ^ at) >> 16).collect();
        let whole = stamps.iter().all(|stamp| *stamp == stamps[0]);
        let (slot, version) = (stamps[0] >> 32, stamps[0] & 0xffff_ffff);
        format!("slot {slot}'s version {version}{}", if whole { "" } else { ", torn" })
    }

    fn next(&mut self, initiator: &mut Initiator, number: u64) {
        let slot = &mut self.slots[number as usize];
        slot.writes = !slot.writes;
        slot.version += u64::from(slot.writes);
        slot.begun = Instant::now();
        // What is read was written most of a round ago.
        let version = if slot.writes { slot.version } else { slot.version.saturating_sub(BLOCKS / 2).max(1) };
        let (block, bytes) = Load::place(number, version);
        let unit = u64::from(initiator.geometry(self.volume).unwrap().logical);
        let each = LEN as u64 / unit;
        let span = Span { lba: (self.first + block) * each, blocks: each };
        let mut memory = initiator.alloc_payload(LEN).unwrap();
        let (op, payload) = if slot.writes {
            memory.copy_from(0, &bytes);
            (Op::Write(span, Durability::Cached), Payload::Out(memory.freeze()))
        } else {
            (Op::Read(span), Payload::In(memory))
        };
        initiator
            .submit(self.volume, Io { id: ::client::IoId(number), epoch: Epoch(0), op, payload })
            .unwrap();
    }

    fn run(&mut self, initiator: &mut Initiator, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.turn(initiator, left);
        }
    }

    fn turn(&mut self, initiator: &mut Initiator, wait: Duration) {
        initiator.turn(Some(wait));
        while let Some(done) = initiator.poll_done(self.volume) {
            let (now, number) = (Instant::now(), done.id.0);
            if let Err(why) = done.result {
                panic!("slot {number} failed: {why:?}; {:?}", initiator.paths(self.volume));
            }
            self.silence = self.silence.max(now - self.last);
            let slot = &self.slots[number as usize];
            self.latency = self.latency.max(now - slot.begun);
            (self.last, self.ended) = (now, self.ended + 1);
            if !slot.writes {
                let version = slot.version.saturating_sub(BLOCKS / 2).max(1);
                let mut read = [0; LEN];
                done.payload.into_sg().copy_to(0, &mut read);
                let found = Load::found(&read);
                assert!(
                    read == Load::place(number, version).1,
                    "slot {number} wrote version {version} to its block and finds {found}; {:?}",
                    initiator.paths(self.volume)
                );
            }
            self.next(initiator, number);
        }
        // A silence that still lasts counts too.
        self.silence = self.silence.max(self.last.elapsed());
    }

    /// Runs until all paths are up.
    fn settle(&mut self, initiator: &mut Initiator) {
        let begun = Instant::now();
        while initiator.paths(self.volume).iter().any(|path| path.state != PathState::Up) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", initiator.paths(self.volume));
            self.turn(initiator, Duration::from_millis(20));
        }
    }
}

const CONFIG: &str = "[[volume]]\nname = \"v\"\nsource = \"ram:64M\"\n";

/// How many cuts: `FAILOVER_CUTS`, or as many as a short test has time for.
fn cuts() -> usize {
    std::env::var("FAILOVER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(6)
}

fn daemon(place: &Place) -> Daemon {
    place.serve(CONFIG, &["--nvme", "127.0.0.1:0"])
}

/// The 99th percentile by nearest rank: of fewer than a hundred, the longest.
fn percentile(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[(all.len() * 99).div_ceil(100) - 1]
}

/// Cuts the paths in turn under load; gives the 99th percentiles of the silences and of the longest waits.
fn cut_in_turn(name: &str, portals: &[Portal], urls: &str) -> (Duration, Duration) {
    let mut initiator = Initiator::new(Settings::default()).unwrap();
    let volume = initiator.open(urls).unwrap();
    let mut load = Load::start(&mut initiator, volume, 0);
    load.settle(&mut initiator);
    load.run(&mut initiator, Duration::from_millis(200));
    let (mut silences, mut latencies) = (Vec::new(), Vec::new());
    for cut in 0..cuts() {
        (load.silence, load.latency) = Default::default();
        let before = load.ended;
        portals[cut % portals.len()].cut();
        load.run(&mut initiator, Duration::from_millis(100));
        load.settle(&mut initiator);
        load.run(&mut initiator, Duration::from_millis(100));
        assert!(load.ended > before + DEPTH, "{name}: nothing moves");
        silences.push(load.silence);
        latencies.push(load.latency);
    }
    let done = load.ended;
    initiator.close(volume).unwrap();
    let (silence, latency) = (percentile(silences), percentile(latencies));
    println!(
        "{name}: {} cuts, {done} operations, none failed; 99th percentile of the silence {silence:.1?}, \
         of the longest operation {latency:.1?}",
        cuts()
    );
    (silence, latency)
}

fn iscsi(at: SocketAddr) -> String {
    format!("iscsi://{at}/iqn.2026-11.io.blockwire:v/0")
}

fn nvme(at: SocketAddr) -> String {
    format!("nvme+tcp://{at}/nqn.2026-11.io.blockwire:v/1?keep_alive=1s")
}

/// Beyond what a machine that is busy with other tests takes away.
const SILENCE_MAX: Duration = Duration::from_secs(1);

#[test]
fn two_iscsi_paths_are_cut_in_turn() {
    let place = Place::new();
    let daemon = daemon(&place);
    let portals = [Portal::before(daemon.at), Portal::before(daemon.at)];
    let urls = portals.iter().map(|portal| iscsi(portal.at)).collect::<Vec<_>>().join(",");
    let (silence, latency) = cut_in_turn("iSCSI and iSCSI", &portals, &urls);
    assert!(silence < SILENCE_MAX && latency < Duration::from_secs(3), "{silence:?} {latency:?}");
}

#[test]
fn two_nvme_paths_are_cut_in_turn() {
    let place = Place::new();
    let daemon = daemon(&place);
    let portals = [0, 1].map(|_| Portal::before(daemon.nvme.unwrap()));
    let urls = portals.iter().map(|portal| nvme(portal.at)).collect::<Vec<_>>().join(",");
    let (silence, _) = cut_in_turn("NVMe and NVMe", &portals, &urls);
    assert!(silence < SILENCE_MAX, "{silence:?}");
}

#[test]
fn a_path_of_each_protocol_is_cut_in_turn() {
    let place = Place::new();
    let daemon = daemon(&place);
    let portals = [Portal::before(daemon.at), Portal::before(daemon.nvme.unwrap())];
    let urls = format!("{},{}", iscsi(portals[0].at), nvme(portals[1].at));
    let (silence, _) = cut_in_turn("iSCSI and NVMe", &portals, &urls);
    assert!(silence < SILENCE_MAX, "{silence:?}");
}

/// Two portal groups, and one volume that both protocols reach by each.
const GROUPS: &str = r#"
[[volume]]
name = "v"
source = "ram:64M"
[[portal]]
protocol = "iscsi"
address = "127.0.0.1:0"
[[portal]]
protocol = "iscsi"
address = "127.0.0.2:0"
tag = 2
[[portal]]
protocol = "nvme"
address = "127.0.0.1:0"
[[portal]]
protocol = "nvme"
address = "127.0.0.2:0"
tag = 2
"#;

/// What a load on a thread of its own shows of itself.
#[derive(Default)]
struct Shown {
    ended: u64,
    silence: Duration,
    /// What each path has done.
    done: Vec<u64>,
    /// The silence is to begin again.
    forgets: bool,
}

/// Ends loads when it is dropped: also when what looks at them has failed.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a load until it is to stop.
fn show(urls: &str, first: u64, shown: &Mutex<Shown>, stops: &AtomicBool) {
    let mut initiator = Initiator::new(Settings::default()).unwrap();
    let volume = initiator.open(urls).unwrap();
    let mut load = Load::start(&mut initiator, volume, first);
    load.settle(&mut initiator);
    while !stops.load(Ordering::Relaxed) {
        load.turn(&mut initiator, Duration::from_millis(5));
        let mut shown = shown.lock().unwrap();
        if std::mem::take(&mut shown.forgets) {
            load.silence = Duration::ZERO;
        }
        (shown.ended, shown.silence) = (load.ended, load.silence);
        shown.done = initiator.paths(volume).iter().map(|path| path.counts.done).collect();
    }
    initiator.close(volume).unwrap();
}

/// The state of one group's paths, then of the other's: first what opens one, or first what closes one, so
/// that for the length of a command line no path serves at all.
fn swap(daemon: &Daemon, to: usize, opens_first: bool) {
    let set =
        |group: usize, state: &str| drop(daemon.ask(&format!("path set v --group {group} --state {state}")));
    let (open, close) = (|| set(to + 1, "optimized"), || set(2 - to, "inaccessible"));
    if opens_first {
        open();
        close();
    } else {
        close();
        open();
    }
}

#[test]
fn path_states_change_under_load_of_both_protocols() {
    const NAMES: [&str; 2] = ["iSCSI", "NVMe"];
    let place = Place::new();
    let daemon = place.serve_on(GROUPS, &[], &[]);
    let join = |urls: Vec<String>| urls.join(",");
    let urls = [
        join(daemon.addresses.iter().map(|at| iscsi(*at)).collect()),
        join(daemon.nvme_addresses.iter().map(|at| nvme(*at)).collect()),
    ];
    let shown = [0, 1].map(|_| Mutex::new(Shown::default()));
    let seen = |of: usize| shown[of].lock().unwrap();
    let stops = &AtomicBool::new(false);
    let mut silences = [Vec::new(), Vec::new()];
    thread::scope(|scope| {
        for (of, url) in urls.iter().enumerate() {
            let shown = &shown[of];
            scope.spawn(move || show(url, of as u64 * DEPTH * BLOCKS, shown, stops));
        }
        let _stops = Stops(stops);
        let moves = |past: [u64; 2]| {
            let begun = Instant::now();
            while (0..2).any(|of| seen(of).ended <= past[of] + DEPTH) {
                assert!(begun.elapsed() < Duration::from_secs(30), "nothing moves");
                thread::sleep(Duration::from_millis(5));
            }
        };
        moves([0; 2]);
        for change in 0..cuts() {
            let to = (change + 1) % 2;
            (0..2).for_each(|of| seen(of).forgets = true);
            swap(&daemon, to, change % 4 < 2);
            let then = [0, 1].map(|of| {
                let shown = seen(of);
                (shown.ended, shown.done.clone())
            });
            thread::sleep(Duration::from_millis(100));
            moves([then[0].0, then[1].0]);
            for (of, (_, before)) in then.iter().enumerate() {
                let shown = seen(of);
                silences[of].push(shown.silence);
                let done: Vec<u64> = shown.done.iter().zip(before).map(|(now, then)| now - then).collect();
                assert!(done[to] > 0, "{}: nothing by the open path: {done:?}", NAMES[of]);
                assert!(done[1 - to] <= DEPTH, "{}: by the closed path: {done:?}", NAMES[of]);
            }
        }
    });
    for (of, silences) in silences.into_iter().enumerate() {
        let (name, silence, done) = (NAMES[of], percentile(silences), seen(of).ended);
        println!(
            "{name}: {} changes of path states, {done} operations, none failed; 99th percentile of the \
                  silence {silence:.1?}",
            cuts()
        );
        assert!(silence < SILENCE_MAX, "{name}: {silence:?}");
    }
}

/// The paths behind a gateway are cut; its hosts see nothing of it but time.
#[test]
fn the_paths_of_a_gateway_are_cut_in_turn() {
    let (there, place) = (Place::new(), Place::new());
    let far = daemon(&there);
    let portals = [Portal::before(far.at), Portal::before(far.nvme.unwrap())];
    let source = format!("{},{}", iscsi(portals[0].at), nvme(portals[1].at));
    let config = format!("[[volume]]\nname = \"near\"\nsource = \"{source}\"\n");
    let near = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let hosts = [
        format!("iscsi://{}/iqn.2026-11.io.blockwire:near/0", near.at),
        format!("nvme+tcp://{}/nqn.2026-11.io.blockwire:near/1", near.nvme.unwrap()),
    ];
    for host in hosts {
        let mut initiator = Initiator::new(Settings::default()).unwrap();
        let volume = initiator.open(&host).unwrap();
        let mut load = Load::start(&mut initiator, volume, 0);
        load.run(&mut initiator, Duration::from_millis(300));
        for cut in 0..4 {
            let before = load.ended;
            portals[cut % 2].cut();
            let begun = Instant::now();
            // Each slot goes on: what was in doubt behind the gateway has been settled.
            while load.slots.iter().any(|slot| slot.begun < begun) {
                assert!(begun.elapsed() < Duration::from_secs(20), "{host}: nothing moves");
                load.turn(&mut initiator, Duration::from_millis(20));
            }
            load.run(&mut initiator, Duration::from_millis(300));
            // The other path was cut a moment ago, too: it comes back later each time.
            while load.ended <= before + DEPTH {
                assert!(begun.elapsed() < Duration::from_secs(20), "{host}: nothing goes on after cut {cut}");
                load.turn(&mut initiator, Duration::from_millis(20));
            }
        }
        initiator.close(volume).unwrap();
    }
}
