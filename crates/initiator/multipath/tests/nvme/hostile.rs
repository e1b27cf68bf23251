//! Controllers that are silent, never ready, or whose discovery logs have no end, in fixed bytes: handshake
//! and Connect are valid, later messages are not.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::nvme::{Discovery, DiscoveryReport, NvmePath, Settings};
use blockwire_multipath::{DownReason, Path, PathEvent};
use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use endpoint::{Dialled, LinkId, OutboundSockets};
use nvme::Nqn;
use stream::{Received, RecvOp};
use volume::{IoId, Op, Span};

use crate::settings;

/// What a controller says to a command: the result of its completion, and data before it; `None`: nothing.
pub type Answer = Option<(u64, Vec<u8>)>;
/// By the 64 bytes of the command.
type Answers = Box<dyn FnMut(&[u8]) -> Answer>;

#[derive(Default)]
struct Wire {
    recv: Option<RecvOp>,
    /// Of the host, and to it.
    came: Vec<u8>,
    goes: Vec<u8>,
    is_open: bool,
}

/// A path, or discovery, and a controller behind every address.
pub struct World<P> {
    path: P,
    pub pool: Pool,
    entropy: Entropy,
    pub now: Time,
    wires: Vec<Wire>,
    dialled: usize,
    /// The controller closes as soon as something is asked of it.
    closes: bool,
    /// How long the controller takes for a Write Zeroes; what it will say then, and by which wire.
    pub zeroes: Duration,
    late: VecDeque<(Time, usize, Vec<u8>)>,
    /// Requests for events that wait: by which wire, and their names.
    asked: VecDeque<(usize, [u8; 2])>,
    answer: Answers,
}

impl<P: OutboundSockets> World<P> {
    pub fn new(path: P, answer: impl FnMut(&[u8]) -> Answer + 'static) -> Self {
        let (pool, entropy) = (Pool::new(8 << 20), Entropy::new([5; 32]));
        let now = Time(1_000_000_000);
        World {
            path,
            pool,
            entropy,
            now,
            wires: Vec::new(),
            dialled: 0,
            closes: false,
            zeroes: Duration::ZERO,
            late: VecDeque::new(),
            asked: VecDeque::new(),
            answer: Box::new(answer),
        }
    }

    pub fn host<R>(&mut self, act: impl FnOnce(&mut P, &mut Cx<'_>) -> R) -> R {
        let World { path, pool, entropy, now, .. } = self;
        act(path, &mut Cx { now: *now, pool, entropy })
    }

    pub fn step(&mut self) -> bool {
        self.now.0 += 10_000;
        let mut moved = self.host(|path, cx| path.turn(cx));
        while let Some(dial) = self.path.poll_dial() {
            (moved, self.dialled) = (true, self.dialled + 1);
            let link = LinkId(self.wires.len() as u64);
            self.wires.push(Wire { is_open: true, ..Wire::default() });
            let dialled = Dialled { link, local: "127.0.0.1:50000".parse().unwrap(), peer: dial.to };
            self.host(|path, cx| path.handle_dialled(cx, dial.id, Ok(dialled)));
        }
        while let Some((link, _)) = self.path.poll_link_close() {
            (moved, self.wires[link.0 as usize].is_open) = (true, false);
            if let Some(op) = self.wires[link.0 as usize].recv.take() {
                self.host(|path, cx| path.handle_recv(cx, link, op, Received::Cancelled));
            }
        }
        while self.path.poll_ready().is_some() {}
        while self.late.front().is_some_and(|(due, ..)| *due <= self.now) {
            let Some((_, at, said)) = self.late.pop_front() else { break };
            self.wires[at].goes.extend(said);
        }
        for at in 0..self.wires.len() {
            moved |= self.wires[at].is_open && self.exchange(at);
        }
        moved
    }

    fn exchange(&mut self, at: usize) -> bool {
        let link = LinkId(at as u64);
        let mut moved = false;
        if self.wires[at].recv.is_none() {
            self.wires[at].recv = self.host(|path, cx| path.poll_recv(cx, link));
        }
        while let Some(op) = self.host(|path, cx| path.poll_send(cx, link)) {
            moved = true;
            self.wires[at].came.extend(testkit::delivery::send_op_bytes(&op));
            self.host(|path, cx| {
                path.handle_written(cx, link, Ok(()));
                path.handle_send_released(cx, link, op);
            });
        }
        if self.closes && moved {
            let op = self.wires[at].recv.take().unwrap();
            self.wires[at].is_open = false;
            self.host(|path, cx| path.handle_recv(cx, link, op, Received::End));
            return true;
        }
        self.serve(at);
        if self.wires[at].goes.is_empty() || self.wires[at].recv.is_none() {
            return moved;
        }
        let bytes = std::mem::take(&mut self.wires[at].goes);
        let mut page = self.pool.take_sg(MemoryClass::Wire, bytes.len()).unwrap();
        page.copy_from(0, &bytes);
        let op = self.wires[at].recv.take().unwrap();
        self.host(|path, cx| path.handle_recv(cx, link, op, Received::Loaned(page.freeze())));
        true
    }

    /// The controller's side: ICResp to ICReq, and to each capsule what the test wants.
    fn serve(&mut self, at: usize) {
        let wire = &mut self.wires[at];
        while let Some(len) = wire.came.get(4..8).map(|len| u32::from_le_bytes(len.try_into().unwrap())) {
            if wire.came.len() < len as usize {
                return;
            }
            let pdu: Vec<u8> = wire.came.drain(..len as usize).collect();
            if pdu[0] == 0 {
                let mut answer = vec![0; 128];
                answer[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0]);
                wire.goes.extend(answer);
                continue;
            }
            let cid = [pdu[10], pdu[11]];
            let Some((result, data)) = (self.answer)(&pdu[8..72]) else {
                if pdu[8] == 0x0c {
                    self.asked.push_back((at, cid));
                }
                continue;
            };
            if !data.is_empty() {
                wire.goes.extend([7, 4, 24, 24]);
                wire.goes.extend((24 + data.len() as u32).to_le_bytes());
                wire.goes.extend([cid[0], cid[1], 0, 0, 0, 0, 0, 0]);
                wire.goes.extend((data.len() as u32).to_le_bytes());
                wire.goes.extend([0; 4]);
                wire.goes.extend(data);
            }
            let mut end = vec![5, 0, 24, 0, 24, 0, 0, 0];
            end.extend(result.to_le_bytes());
            // Namespace Not Ready, or Internal Error, to be tried again.
            let status: u16 = match result {
                NOT_NOW => 0x82 << 1,
                BROKEN => 0x06 << 1,
                _ => 0,
            };
            end.extend([0, 0, 0, 0, cid[0], cid[1]]);
            end.extend(status.to_le_bytes());
            if pdu[8] == 8 && self.zeroes > Duration::ZERO {
                self.late.push_back((self.now + self.zeroes, at, end));
            } else {
                wire.goes.extend(end);
            }
        }
    }

    /// The controller tells an event, if it was asked for one.
    pub fn tell(&mut self, event: u64) {
        let (at, cid) = self.asked.pop_front().expect("the path wants to be told");
        let mut end = vec![5, 0, 24, 0, 24, 0, 0, 0];
        end.extend(event.to_le_bytes());
        end.extend([0, 0, 0, 0, cid[0], cid[1], 0, 0]);
        self.wires[at].goes.extend(end);
    }

    /// Nothing is left to be done now: the clock goes on to what is due.
    fn wait(&mut self) {
        let soon = self.now + Duration::from_secs(1);
        let late = self.late.front().map(|(due, ..)| *due);
        let due = stream::earliest(self.path.poll_timeout(), late);
        self.now = due.map_or(soon, |due| due.min(soon)).max(self.now);
        self.now.0 += 1000;
        self.host(|path, cx| path.handle_timeout(cx));
    }

    /// Time passes, about so long.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            if !self.step() {
                self.wait();
            }
        }
    }

    /// Goes on until there is something, for at most so long.
    pub fn until<R>(&mut self, most: Duration, mut done: impl FnMut(&mut P) -> Option<R>) -> R {
        let end = self.now + most;
        while self.now <= end {
            let moved = self.step();
            if let Some(found) = done(&mut self.path) {
                return found;
            }
            if !moved {
                self.wait();
            }
        }
        panic!("nothing within {most:?}")
    }
}

/// The result of what is refused for now, since the namespace is not ready, or for another reason.
pub const NOT_NOW: u64 = u64::MAX;
pub const BROKEN: u64 = u64::MAX - 1;

/// Connect is answered with controller 1, properties with `status` as CSTS.
pub fn property(sqe: &[u8], status: u64) -> Answer {
    match (sqe[0], sqe[4]) {
        (0x7f, 1) => Some((1, vec![])),
        (0x7f, 4) if sqe[44] == 0x1c => Some((status, vec![])),
        // CAP: 128 entries, ready within a second.
        (0x7f, 4) if sqe[44] == 0 => Some((0x0000_0020_0201_007f, vec![])),
        (0x7f, 4) => Some((0x0002_0000, vec![])),
        (0x7f, 0) => Some((0, vec![])),
        _ => None,
    }
}

/// A whole controller with a namespace of 1,024 blocks, whose every request for an event is answered at
/// once: its list of namespaces has changed.
pub fn flood(sqe: &[u8]) -> Answer {
    let mut page = vec![0; 4096];
    match (sqe[0], sqe[40]) {
        (0x7f, _) if sqe[4] == 4 && sqe[44] == 8 => Some((0x0001_0200, vec![])),
        (0x7f, _) => property(sqe, 1),
        // Identify: the controller 1, the namespace.
        (6, 1) => {
            (page[77], page[78], page[93], page[259]) = (5, 1, 1, 3);
            page[80..84].copy_from_slice(&0x0001_0200_u32.to_le_bytes());
            (page[512], page[513], page[514], page[516], page[536]) = (0x66, 0x44, 128, 4, 1);
            (page[111], page[320], page[540]) = (1, 10, 4);
            (page[1792], page[1796]) = (0x44, 1);
            Some((0, page))
        }
        (6, 0) => {
            (page[1], page[9], page[130]) = (4, 4, 9);
            Some((0, page))
        }
        (2, _) => Some((0, if sqe[4] == 1 { vec![0x5a; 4096] } else { page })),
        (0x0c, _) => Some((0x0004_0002, vec![])),
        _ => Some((0, vec![])),
    }
}

/// What came of it, connections, and bytes of memory that did not come back.
type Discovered = (Result<DiscoveryReport, DownReason>, usize, usize);

fn discover(log: impl FnMut(u64, usize) -> Vec<u8> + 'static) -> Discovered {
    let mut log = log;
    let settings = Settings { subsystem: Nqn::discovery_service(), ..settings() };
    let mut world = World::new(Discovery::new(settings), move |sqe| {
        if sqe[0] != 2 {
            return property(sqe, 1);
        }
        let word = |at: usize| u32::from_le_bytes(sqe[at..at + 4].try_into().unwrap());
        let len = ((word(40) >> 16 | word(44) << 16) as usize + 1) * 4;
        Some((0, log(u64::from(word(48)) | u64::from(word(52)) << 32, len)))
    });
    world.host(|discovery, cx| discovery.start(cx));
    let outcome = world.until(Duration::from_secs(61), Discovery::poll_outcome);
    (outcome, world.dialled, world.pool.usage().lent)
}

/// A record: a referral to port `port` of 127.0.0.1.
fn referral(port: u16) -> Vec<u8> {
    let mut record = vec![0; 1024];
    record[..3].copy_from_slice(&[3, 1, 1]);
    record[32..64].fill(b' ');
    record[32..37].copy_from_slice(format!("{port:05}").as_bytes());
    record[512..521].copy_from_slice(b"127.0.0.1");
    record
}

/// The header: GENCTR and NUMREC.
fn header(generation: u64, records: u64) -> Vec<u8> {
    [&generation.to_le_bytes()[..], &records.to_le_bytes(), &[0; 1008]].concat()
}

#[test]
fn attack_108_logs_without_end_that_change_for_ever_and_referrals_that_go_round() {
    // 2^64 - 1 records: so many are read as may be, the rest is skipped.
    let (survey, dialled, _) = discover(|at, len| match at {
        0 => header(1, u64::MAX),
        _ => referral(4420).repeat(len / 1024),
    });
    let survey = survey.unwrap();
    assert_eq!((survey.skipped, survey.subsystems.len(), dialled), (u64::MAX - 4096, 0, 1));
    // A generation that changes with each reading.
    let (mut generation, mut readings) = (0, 0);
    let (survey, dialled, lent) = discover(move |at, len| {
        readings += 1;
        assert!(readings < 100, "it ends");
        generation += 1;
        if at == 0 { header(generation, 1) } else { referral(9).repeat(len / 1024) }
    });
    assert!(matches!(survey, Err(DownReason::Lost(_))), "{survey:?}");
    assert_eq!((dialled, lent), (1, 0));
    // Each controller refers to itself and to three others that nobody has heard of.
    let mut next = 10_000;
    let (survey, dialled, _) = discover(move |at, len| {
        if at == 0 {
            return header(1, 4);
        }
        next += 3;
        assert_eq!(len, 4096);
        [4420, next, next + 1, next + 2].map(referral).concat()
    });
    let survey = survey.unwrap();
    assert!(dialled <= 64 && survey.skipped > 0, "{dialled} {survey:?}");
}

#[test]
fn attack_110_controllers_that_are_never_ready_or_fall_silent() {
    let down = |answer: fn(&[u8]) -> Answer| {
        let mut world = World::new(NvmePath::new(settings()), answer);
        world.host(|path, cx| path.connect(cx));
        let begun = world.now;
        let why = world.until(Duration::from_secs(60), |path| match path.poll_event()? {
            PathEvent::Down(why) => Some(why),
            other => panic!("{other:?}"),
        });
        (why, world.now.since(begun))
    };
    let seconds = |most: u64| Duration::from_millis(most * 1000 + 10);
    // It accepts and says nothing but ICResp; nothing after Connect; CSTS.RDY stays 0; CSTS.CFS.
    let (why, took) = down(|_| None);
    assert!(matches!(why, DownReason::Silent(_)) && took <= seconds(10), "{why:?} {took:?}");
    let (why, took) = down(|sqe| property(sqe, 1).filter(|_| sqe[4] == 1));
    assert!(matches!(why, DownReason::Silent(_)) && took <= seconds(10), "{why:?} {took:?}");
    let (why, took) = down(|sqe| property(sqe, 0));
    assert!(
        matches!(&why, DownReason::Lost(why) if why.contains("ready")) && took <= seconds(30),
        "{why:?} {took:?}"
    );
    let (why, took) = down(|sqe| property(sqe, 2));
    assert!(
        matches!(&why, DownReason::Refused(why) if why.contains("CFS")) && took <= seconds(1),
        "{why:?} {took:?}"
    );
}

#[test]
fn attack_110_events_without_end_cost_one_look_after_another() {
    let looks = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let seen = looks.clone();
    let mut world = World::new(NvmePath::new(settings()), move |sqe| {
        let (events, others) = seen.get();
        seen.set(if sqe[0] == 0x0c { (events + 1, others) } else { (events, others + 1) });
        flood(sqe)
    });
    world.host(|path, cx| path.connect(cx));
    world.until(Duration::from_secs(5), |path| {
        let event = path.poll_event()?;
        assert!(matches!(event, PathEvent::Up(_)), "{event:?}");
        Some(())
    });
    let (before, begun) = (looks.get(), world.now);
    while world.now.since(begun) < Duration::from_secs(1) {
        let mut data = world.pool.take_sg(MemoryClass::Solicited, 4096).unwrap();
        data.copy_from(0, &[0; 4096]);
        let op = Op::Read(Span { lba: 0, blocks: 8 });
        world.host(|path, cx| path.submit(cx, IoId(1), op, Payload::In(data))).unwrap();
        let how = world.until(Duration::from_millis(10), |path| match path.poll_event()? {
            PathEvent::Done { how, .. } => Some(how),
            PathEvent::Changed(_) => None,
            other => panic!("{other:?}"),
        });
        assert!(how.is_ok(), "{how:?}");
        for _ in 0..100 {
            world.step();
        }
    }
    // Two things are looked at for each such event, every 20 ms at most; and the reads.
    let (events, others) = (looks.get().0 - before.0, looks.get().1 - before.1);
    let reads = world.now.since(begun).as_millis() as u64;
    assert!(events > 1000, "{events}");
    assert!(others <= 2 * 51 + reads + 10, "{events} {others}");
}

#[test]
fn attack_110_a_thousand_resets_leave_nothing_behind() {
    let mut world = World::new(NvmePath::new(settings()), |_| None);
    world.closes = true;
    for _ in 0..1000 {
        world.host(|path, cx| path.connect(cx));
        let why = world.until(Duration::from_secs(60), |path| match path.poll_event()? {
            PathEvent::Down(why) => Some(why),
            other => panic!("{other:?}"),
        });
        assert!(matches!(why, DownReason::Lost(_)), "{why:?}");
    }
    assert_eq!((world.dialled, world.pool.usage().lent), (1000, 0));
}

/// It closes once it has been sent the first message of a proof, or the Connect before it.
#[test]
fn a_controller_that_closes_amid_authentication_may_have_refused_and_before_it_has_not() {
    let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let secret = || Some(nvme::auth::DhchapSecret::parse(secret).unwrap());
    for proves in [true, false] {
        let asked = Rc::new(Cell::new(false));
        let seen = asked.clone();
        let mut world =
            World::new(NvmePath::new(Settings { secret: secret(), ..settings() }), move |sqe| match sqe[4] {
                // Connect: of controller 1, which wants a proof (ATR).
                1 => {
                    seen.set(true);
                    proves.then(|| (1 | 1 << 17, vec![]))
                }
                _ => None,
            });
        world.host(|path, cx| path.connect(cx));
        while !asked.get() {
            assert!(world.step(), "Connect does not come");
        }
        if proves {
            world.closes = true;
        } else {
            let op = world.wires[0].recv.take().unwrap();
            world.wires[0].is_open = false;
            world.host(|path, cx| path.handle_recv(cx, LinkId(0), op, Received::End));
        }
        let why = world.until(Duration::from_secs(60), |path| match path.poll_event()? {
            PathEvent::Down(why) => Some(why),
            other => panic!("{other:?}"),
        });
        match why {
            DownReason::CutShort(text) => assert!(proves && text.contains("compare the secret"), "{text}"),
            other => assert!(!proves && matches!(other, DownReason::Lost(_)), "{other:?}"),
        }
        assert_eq!(world.pool.usage().lent, 0);
    }
}

/// Each command has its time: an operation of many is not given up because all of them together take longer.
#[test]
fn a_long_zeroing_of_many_commands_does_not_end_the_path() {
    let mut world = World::new(NvmePath::new(settings()), |sqe| match (sqe[0], flood(sqe)) {
        (0x0c, _) => None,
        (6, Some((result, mut page))) if sqe[40] == 1 => {
            // ONCS: Write Zeroes. MDTS: 256 blocks.
            page[520] = 8;
            Some((result, page))
        }
        (_, answer) => answer,
    });
    world.zeroes = Duration::from_secs(20);
    world.host(|path, cx| path.connect(cx));
    world.until(Duration::from_secs(5), |path| matches!(path.poll_event()?, PathEvent::Up(_)).then_some(()));
    let op = Op::WriteZeroes { span: Span { lba: 0, blocks: 1024 }, unmap: false };
    let begun = world.now;
    world.host(|path, cx| path.submit(cx, IoId(1), op, Payload::None)).unwrap();
    let how = world.until(Duration::from_secs(200), |path| match path.poll_event()? {
        PathEvent::Done { how, .. } => Some(how),
        other => panic!("{other:?}"),
    });
    assert!(how.is_ok(), "{how:?}");
    assert_eq!(world.now.since(begun).as_secs(), 80, "four commands");
    // One command that takes too long still ends: it is aborted, and then the path.
    world.zeroes = Duration::from_secs(1000);
    let op = Op::WriteZeroes { span: Span { lba: 0, blocks: 1024 }, unmap: false };
    world.host(|path, cx| path.submit(cx, IoId(2), op, Payload::None)).unwrap();
    let begun = world.now;
    let why = world.until(Duration::from_secs(200), |path| match path.poll_event()? {
        PathEvent::Down(why) => Some(why),
        _ => None,
    });
    assert!(matches!(&why, DownReason::Lost(text) if text.contains("not answered in time")), "{why:?}");
    assert!(world.now.since(begun) < Duration::from_secs(45));
}

/// A controller that is busy refuses to tell who the namespace is now: it is asked again, and not without a pause.
#[test]
fn a_look_that_is_refused_for_now_is_taken_again() {
    let (seen, told) = (Rc::new(Cell::new(0)), Cell::new(false));
    let looks = seen.clone();
    let mut world = World::new(NvmePath::new(settings()), move |sqe| match (sqe[0], sqe[40]) {
        (0x7f, _) if sqe[4] == 4 && sqe[44] == 8 => Some((0x0001_0300, vec![])),
        (0x0c, _) if told.replace(true) => None,
        (6, 3) => {
            looks.set(looks.get() + 1);
            let mut page = vec![0; 4096];
            (page[0], page[1]) = (3, 16);
            page[4..20].fill(if looks.get() == 1 { 1 } else { 2 });
            Some(if (2..9).contains(&looks.get()) { (NOT_NOW, vec![]) } else { (0, page) })
        }
        _ => flood(sqe),
    });
    world.host(|path, cx| path.connect(cx));
    world.until(Duration::from_secs(5), |path| matches!(path.poll_event()?, PathEvent::Up(_)).then_some(()));
    let begun = world.now;
    let why = world.until(Duration::from_secs(10), |path| match path.poll_event()? {
        PathEvent::Down(why) => Some(why),
        other => panic!("{other:?}"),
    });
    assert!(matches!(&why, DownReason::Lost(text) if text.contains("another volume")), "{why:?}");
    assert_eq!(seen.get(), 9);
    assert!(world.now.since(begun) > Duration::from_secs(2), "{:?}", world.now.since(begun));
}

/// The operator puts another volume behind the namespace identifier while the association stays.
#[test]
fn another_volume_behind_the_namespace_identifier_is_not_written_as_if_it_were_the_old_one() {
    // The descriptor that changes: a UUID, or an NGUID; or the NGUID of Identify Namespace alone.
    for (kind, len) in [(3, 16), (2, 16), (1, 8), (0, 0)] {
        let (seen, named, told) = (Cell::new(0), Cell::new(1), Cell::new(false));
        let mut world = World::new(NvmePath::new(settings()), move |sqe| match (sqe[0], sqe[40]) {
            (0x7f, _) if sqe[4] == 4 && sqe[44] == 8 => Some((0x0001_0300, vec![])),
            (0x0c, _) if told.replace(true) => None,
            (6, 0) => {
                seen.set(seen.get() + 1);
                let (_, mut page) = flood(sqe).unwrap();
                if kind == 0 {
                    page[104] = seen.get();
                }
                Some((0, page))
            }
            (6, 3) => {
                let mut page = vec![0; 4096];
                (page[0], page[1]) = (kind, len);
                page[4..4 + usize::from(len)].fill(named.replace(named.get() + 1));
                Some((0, page))
            }
            _ => flood(sqe),
        });
        world.host(|path, cx| path.connect(cx));
        world.until(Duration::from_secs(5), |path| {
            matches!(path.poll_event()?, PathEvent::Up(_)).then_some(())
        });
        let why = world.until(Duration::from_secs(5), |path| match path.poll_event()? {
            PathEvent::Down(why) => Some(why),
            other => panic!("descriptor {kind}: {other:?}"),
        });
        assert!(matches!(&why, DownReason::Lost(text) if text.contains("another volume")), "{kind}: {why:?}");
    }
}
