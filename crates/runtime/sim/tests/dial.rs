//! Connections between shards of one simulated world: bytes arrive once and in order, whatever is refused,
//! late or lost; and every dial is answered exactly once.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use blockwire_sim::{Config, ConnectionFaults, Reachability, World};
use buf::{Cx, Errno, MemoryClass, Time};
use endpoint::{
    Dial, DialId, DialSource, Dialled, Endpoint, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId,
};
use smallvec::smallvec;
use stream::{Received, RecvOp, SendOp, SendPiece};

const TOTAL: u64 = 300_000;
const WITHIN: Duration = Duration::from_millis(5);
const SILENCE_MAX: Duration = Duration::from_millis(50);

fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

#[derive(Default)]
struct Conn {
    out: VecDeque<u8>,
    recv_out: bool,
    send_out: bool,
    gone: bool,
}

/// Echoes what it is sent; and, if it has somebody to call, sends him numbered bytes until all have come
/// back, over as many connections as that takes.
#[derive(Default)]
struct Node {
    callee: Option<SocketAddr>,
    /// Bytes that have come back.
    back: u64,
    line: Option<LinkId>,
    heard_at: Time,
    dial: Option<Dial>,
    dialling: Option<DialId>,
    answers: BTreeMap<i32, u32>,
    links: BTreeMap<LinkId, Conn>,
    ready: VecDeque<LinkId>,
    departures: VecDeque<(LinkId, LinkDeparture<()>)>,
    polite: bool,
}

impl Node {
    fn calls(callee: SocketAddr) -> Self {
        Node { callee: Some(callee), ..Node::default() }
    }

    fn is_done(&self) -> bool {
        self.callee.is_some() && self.back == TOTAL
    }

    fn drop_line(&mut self, link: LinkId) {
        let how = if self.polite { LinkDeparture::Close } else { LinkDeparture::Abort };
        let conn = self.links.get_mut(&link).expect("a link that is known");
        if !std::mem::replace(&mut conn.gone, true) {
            self.departures.push_back((link, how));
        }
        self.line.take_if(|line| *line == link);
    }
}

impl Endpoint for Node {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, link: LinkId, _: LinkArrival<()>) {
        self.links.insert(link, Conn::default());
        self.ready.push_back(link);
    }

    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        let conn = self.links.get_mut(&link).expect("a link that is known");
        assert!(std::mem::take(&mut conn.recv_out));
        match came {
            Received::Bytes(n) => {
                let stage = op.stage.expect("bytes are in the stage");
                assert_eq!(stage.len(), n);
                if self.line == Some(link) {
                    self.heard_at = cx.now;
                    for &got in &stage[..] {
                        assert_eq!(got, byte(self.back), "bytes come back in order");
                        self.back += 1;
                    }
                    if self.back == TOTAL {
                        self.polite = true;
                        self.drop_line(link);
                    }
                } else {
                    conn.out.extend(&stage[..]);
                }
                self.ready.push_back(link);
            }
            Received::Cancelled => assert!(conn.gone),
            Received::End | Received::Failed(_) => self.drop_line(link),
            Received::Loaned(_) => unreachable!("not asked for"),
        }
    }

    fn handle_written(&mut self, _: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        let conn = self.links.get_mut(&link).expect("a link that is known");
        assert!(std::mem::take(&mut conn.send_out));
        match how {
            Ok(()) => self.ready.push_back(link),
            Err(_) => self.drop_line(link),
        }
    }

    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        if let Some(link) = self.line.filter(|_| self.heard_at + SILENCE_MAX <= cx.now) {
            self.drop_line(link);
        }
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        if let Some(to) = self.callee
            && self.line.is_none()
            && self.dialling.is_none()
            && !self.is_done()
        {
            let id = DialId(self.answers.values().map(|n| u64::from(*n)).sum());
            self.dialling = Some(id);
            self.dial = Some(Dial { id, to, source: DialSource::default(), until: cx.now + WITHIN });
        }
        false
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_front()
    }

    fn poll_recv(&mut self, _: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let conn = self.links.get_mut(&link)?;
        if conn.gone || std::mem::replace(&mut conn.recv_out, true) {
            return None;
        }
        Some(RecvOp { direct: None, stage_len: 4096, stage: None })
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let conn = self.links.get_mut(&link)?;
        if conn.gone || conn.send_out || conn.out.is_empty() {
            return None;
        }
        let len = conn.out.len().min(20_000);
        let mut head = cx.pool.take(MemoryClass::Wire, len)?;
        for (to, from) in head.iter_mut().zip(conn.out.drain(..len)) {
            *to = from;
        }
        conn.send_out = true;
        Some(SendOp { head: Some(head), pieces: smallvec![SendPiece::Head(0..len as u32)], len })
    }

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
        self.departures.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.line.map(|_| self.heard_at + SILENCE_MAX)
    }

    fn poll_dial(&mut self) -> Option<Dial> {
        self.dial.take()
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        assert_eq!(self.dialling.take(), Some(id), "a dial is answered once");
        *self.answers.entry(how.map_or_else(|e| e.0, |_| 0)).or_default() += 1;
        let Ok(Dialled { link, peer, .. }) = how else { return };
        assert_eq!(Some(peer), self.callee);
        let mut conn = Conn::default();
        conn.out.extend((self.back..TOTAL).map(byte));
        self.links.insert(link, conn);
        self.line = Some(link);
        self.heard_at = cx.now;
        self.ready.push_back(link);
    }
}

fn portal() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 3260))
}

/// Two shards that listen, two that call.
fn world(seed: u64, lines: ConnectionFaults) -> World<Node> {
    let wire_delay_max = Duration::from_micros(500);
    let config = Config { shards: 4, window: 10_000, wire_delay_max, lines, ..Config::new(seed) };
    let mut world = World::new(config, |id, _| match id.0 {
        0 | 1 => Node::default(),
        _ => Node::calls(portal()),
    });
    world.add_listener(portal(), ListenerId(3), 0..2);
    // Somebody has to begin.
    (2..4).for_each(|id| world.send_message(ShardId(id), ()));
    world
}

fn callers(world: &World<Node>) -> [&Node; 2] {
    [2, 3].map(|id| world.endpoint(ShardId(id)))
}

fn is_over(world: &World<Node>) -> bool {
    callers(world).iter().all(|node| node.is_done())
}

fn finish(world: &mut World<Node>, may_be_silent: bool) {
    for _ in 0..1000 {
        world.run_for(Duration::from_millis(10));
        if is_over(world) {
            world.run_for(Duration::from_millis(10));
            // Who accepts and is told nothing waits for ever.
            for shard in if may_be_silent { 2..4 } else { 0..4 } {
                assert_eq!(world.link_count(ShardId(shard)), 0, "{world:?}: no link is left");
                assert_eq!(world.pool(ShardId(shard)).usage().lent, 0, "{world:?}: all memory is back");
            }
            return;
        }
    }
    panic!("{world:?}: bytes are missing");
}

#[test]
fn bytes_go_to_and_fro() {
    let mut accepted = [0; 2];
    for seed in 0..30 {
        let mut world = world(seed, ConnectionFaults::default());
        finish(&mut world, false);
        for node in callers(&world) {
            assert_eq!(node.answers, BTreeMap::from([(0, 1)]), "seed {seed}");
        }
        for (shard, count) in accepted.iter_mut().enumerate() {
            *count += world.endpoint(ShardId(shard as u16)).links.len();
        }
    }
    assert!(accepted.iter().all(|count| *count > 0), "either shard accepts: {accepted:?}");
}

#[test]
fn faults_come_from_the_seed() {
    let lines = ConnectionFaults {
        refused_permille: 200,
        unanswered_permille: 100,
        lost_permille: 500,
        lost_after_max: Duration::from_millis(5),
        silent_permille: 300,
    };
    let mut answers: BTreeMap<i32, u32> = BTreeMap::new();
    let mut outcomes = Vec::new();
    for seed in (0..40).chain(0..40) {
        let mut world = world(seed, lines);
        finish(&mut world, true);
        let seen = callers(&world).map(|node| node.answers.clone());
        seen.iter().flatten().for_each(|(how, count)| *answers.entry(*how).or_default() += count);
        outcomes.push((seen, world.now()));
    }
    assert_eq!(outcomes[..40], outcomes[40..], "a run is its seed");
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [0, 110, 111], "{answers:?}");
    assert!(answers[&0] > 2 * 80, "connections were lost and made again: {answers:?}");
}

#[test]
fn nobody_listens() {
    let mut world = World::new(Config::new(1), |_, _| Node::calls(portal()));
    world.send_message(ShardId(0), ());
    world.run_for(Duration::from_millis(50));
    let answers = &world.endpoint(ShardId(0)).answers;
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [111]);
}

#[test]
fn a_portal_that_goes_and_comes() {
    let mut world = world(7, ConnectionFaults::default());
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.connections_via(portal()).len(), 2);
    // Nothing arrives meanwhile, and nobody is told.
    world.set_reachability(portal(), Reachability::Silent);
    let before = callers(&world).map(|node| node.back);
    world.run_for(Duration::from_millis(1));
    let stopped = callers(&world).map(|node| node.back);
    world.run_for(SILENCE_MAX / 2);
    assert_eq!(callers(&world).map(|node| node.back), stopped);
    assert!(stopped.iter().zip(before).all(|(now, before)| *now < TOTAL && *now >= before));
    // What had stood still goes on.
    world.set_reachability(portal(), Reachability::Open);
    world.run_for(Duration::from_millis(1));
    assert!(callers(&world).iter().zip(stopped).all(|(node, before)| node.back > before));
    assert!(callers(&world).iter().all(|node| node.answers == BTreeMap::from([(0, 1)])));
    // Away for longer than is waited for.
    world.set_reachability(portal(), Reachability::Refused);
    for peer in world.connections_via(portal()) {
        world.reset(peer);
    }
    world.run_for(Duration::from_millis(2));
    assert!(callers(&world).iter().all(|node| node.line.is_none() && node.answers[&111] > 0));
    world.set_reachability(portal(), Reachability::Open);
    finish(&mut world, false);
}

#[test]
fn a_process_that_is_killed_and_started_again() {
    for seed in 0..20 {
        let mut world = world(seed, ConnectionFaults::default());
        for _ in 0..3 {
            world.run_for(Duration::from_millis(1));
            world.restart_shards(0..2, |_, _| Node::default());
            assert_eq!(world.link_count(ShardId(0)) + world.link_count(ShardId(1)), 0);
        }
        finish(&mut world, false);
        assert!(callers(&world).iter().any(|node| node.answers[&0] > 1), "seed {seed}");
    }
}
