//! The smallest world with both sides: one shard of the target and one path to it, in one process, with
//! connections that can be cut, and a clock that jumps to the next deadline.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::{Path, PathEvent};
use buf::{Cx, Entropy, Errno, Payload, Pool, Time};
use endpoint::{
    AcceptedSocket, CloseMode, Computation, DialId, Dialled, Endpoint, IoDriver, LinkArrival, LinkDeparture,
    LinkId, ListenerId, OutboundSockets, ShardId, pump,
};
use shard::{ControlRequest, Exports, Message, NvmeMessage, Shard};
use stream::{Received, RecvOp, SendOp};
use volume::{Backend, DiskId, DiskOp, IoId, Op, RamBackend, RamDisk};

use testkit::delivery::{self, RecvDelivery};
use testkit::target;

/// Blocks of the volume.
pub const BLOCKS: u64 = 1 << 16;
/// ECONNREFUSED and ECONNRESET.
pub const REFUSED: Errno = Errno(111);
const RESET: Errno = Errno(104);

/// One end of a connection.
#[derive(Default)]
struct End {
    recv: Option<RecvOp>,
    /// Bytes on the way to this end.
    inbox: VecDeque<u8>,
    /// Nothing more comes: the other end has closed (`Ok`) or reset.
    over: Option<Result<(), Errno>>,
    told: bool,
    /// This end has let go.
    gone: bool,
}

#[derive(Default)]
struct Wire {
    host: End,
    target: End,
    /// Nothing passes, and nobody is told.
    cut: bool,
}

#[derive(Default)]
pub struct Hands {
    wires: Vec<Wire>,
    posted: VecDeque<Message>,
    disk: VecDeque<DiskOp>,
    written: Vec<(LinkId, SendOp)>,
    moved: bool,
}

impl IoDriver<Message> for Hands {
    fn start_dial(&mut self, _dial: endpoint::Dial) {
        unreachable!("a target dials nobody")
    }

    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        self.wires[link.0 as usize].target.recv = Some(op);
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        let wire = &mut self.wires[link.0 as usize];
        if !wire.cut && !wire.host.gone {
            wire.host.inbox.extend(delivery::send_op_bytes(&op));
        }
        self.written.push((link, op));
        self.moved = true;
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        self.disk.push_back(op);
    }

    fn halt_link(&mut self, link: LinkId) {
        unreachable!("nothing comes to rest here: {link:?}");
    }

    fn remove_link(&mut self, link: LinkId, how: LinkDeparture<Message>) {
        let wire = &mut self.wires[link.0 as usize];
        wire.target.gone = true;
        let how = if matches!(how, LinkDeparture::Abort) { Err(RESET) } else { Ok(()) };
        if !wire.cut {
            wire.host.over.get_or_insert(how);
        }
        self.moved = true;
    }

    fn post_message(&mut self, to: ShardId, message: Message) {
        assert_eq!(to, ShardId::CONTROL_PLANE, "{message:?}");
        self.posted.push_back(message);
    }
}

impl End {
    /// What a receive that is out brings, if it brings something now.
    fn fill(&mut self, pool: &Pool) -> Option<(RecvOp, Received)> {
        if self.gone {
            return Some((self.recv.take()?, Received::Cancelled));
        }
        if self.inbox.is_empty() {
            let how = self.over.filter(|_| !self.told)?;
            let op = self.recv.take()?;
            self.told = true;
            return Some((op, how.map_or_else(Received::Failed, |()| Received::End)));
        }
        let op = self.recv.take()?;
        Some(RecvDelivery::long_stages().fill_recv(pool, op, &mut self.inbox))
    }
}

pub struct World<P> {
    pub target: Shard,
    pub path: P,
    pub pool: Pool,
    host_pool: Pool,
    entropy: Entropy,
    pub now: Time,
    pub hands: Hands,
    /// Ports that answer.
    pub ports: Vec<(SocketAddr, ListenerId)>,
    pub events: Vec<PathEvent>,
    next: u64,
    /// Whether nobody computes what the path gives away: it is kept here.
    pub holds: bool,
    pub work: Vec<Computation>,
    /// What runs around the path's calls, to count.
    pub around: fn(&mut dyn FnMut()),
}

impl<P: OutboundSockets> World<P> {
    pub fn new(path: P, exports: Arc<Exports>) -> Self {
        let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
        let mut world = World {
            target: Shard::new(ShardId(0), 1, exports),
            path,
            pool: Pool::new(64 << 20),
            host_pool: Pool::new(64 << 20),
            entropy: Entropy::new([3; 32]),
            now: Time(1_000_000_000),
            hands: Hands::default(),
            ports: vec![
                ("127.0.0.1:4420".parse().unwrap(), ListenerId(1)),
                ("127.0.0.1:8009".parse().unwrap(), ListenerId(2)),
            ],
            events: Vec::new(),
            next: 0,
            holds: false,
            work: Vec::new(),
            around: |act| act(),
        };
        let geometry = RamBackend::new(disk.clone()).geometry();
        for spec in
            target::volume_specs(1, geometry, &[DiskId(0)], None, move |_| RamBackend::new(disk.clone()))
        {
            world.tell(Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
        }
        world
    }

    /// Something for the target.
    pub fn tell(&mut self, message: Message) {
        self.target(|shard, cx| shard.handle_message(cx, message));
    }

    fn target(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        let World { target, pool, entropy, now, hands, .. } = self;
        let mut cx = Cx { now: *now, pool, entropy };
        act(target, &mut cx);
        while pump(target, &mut cx, hands) {}
        while let Some((link, op)) = hands.written.pop() {
            target.handle_written(&mut cx, link, Ok(()));
            target.handle_send_released(&mut cx, link, op);
            while pump(target, &mut cx, hands) {}
        }
    }

    /// Lets the path do something.
    pub fn host<R>(&mut self, act: impl FnOnce(&mut P, &mut Cx<'_>) -> R) -> R {
        let World { path, host_pool, entropy, now, around, .. } = self;
        let mut cx = Cx { now: *now, pool: host_pool, entropy };
        let (mut act, mut result) = (Some(act), None);
        around(&mut || result = act.take().map(|act| act(path, &mut cx)));
        result.expect("it was called")
    }

    /// One round; whether something moved.
    pub fn step(&mut self) -> bool {
        self.hands.moved = false;
        self.now.0 += 1000;
        while self.host(|path, cx| path.turn(cx)) {}
        while let Some(dial) = self.path.poll_dial() {
            self.dial(dial.id, dial.to);
        }
        while let Some(link) = self.path.poll_ready() {
            self.exchange(link);
        }
        while let Some((link, how)) = self.path.poll_link_close() {
            self.leave(link, how);
        }
        while let Some(work) = self.path.poll_computation() {
            self.hands.moved = true;
            self.work.push(work);
        }
        if !self.holds {
            self.compute();
        }
        self.deliver();
        self.control();
        self.target(|_, _| ());
        self.hands.moved
    }

    /// Somebody computes what was kept.
    pub fn compute(&mut self) {
        for work in std::mem::take(&mut self.work) {
            work.run();
            self.path.handle_computed();
        }
    }

    fn dial(&mut self, id: DialId, to: SocketAddr) {
        self.hands.moved = true;
        let Some(&(peer, listener)) = self.ports.iter().find(|(port, _)| *port == to) else {
            return self.host(|path, cx| path.handle_dialled(cx, id, Err(REFUSED)));
        };
        let link = LinkId(self.hands.wires.len() as u64);
        self.hands.wires.push(Wire::default());
        let local: SocketAddr = "127.0.0.1:50000".parse().unwrap();
        let accepted = AcceptedSocket { listener, local: peer, peer: local, cpu: None };
        self.target(|shard, cx| shard.handle_arrival(cx, link, LinkArrival::Accepted(accepted)));
        self.host(|path, cx| path.handle_dialled(cx, id, Ok(Dialled { link, local, peer })));
    }

    fn exchange(&mut self, link: LinkId) {
        let (recv, send) = self.host(|path, cx| (path.poll_recv(cx, link), path.poll_send(cx, link)));
        let wire = &mut self.hands.wires[link.0 as usize];
        if recv.is_some() {
            wire.host.recv = recv;
        }
        if let Some(op) = send {
            self.hands.moved = true;
            if !wire.cut && !wire.target.gone {
                wire.target.inbox.extend(delivery::send_op_bytes(&op));
            }
            self.host(|path, cx| {
                path.handle_written(cx, link, Ok(()));
                path.handle_send_released(cx, link, op);
            });
        }
    }

    fn leave(&mut self, link: LinkId, how: CloseMode) {
        self.hands.moved = true;
        let wire = &mut self.hands.wires[link.0 as usize];
        wire.host.gone = true;
        if wire.cut {
            return;
        }
        match how {
            CloseMode::Close => wire.target.over.get_or_insert(Ok(())),
            CloseMode::Abort => {
                wire.target.inbox.clear();
                wire.target.over.get_or_insert(Err(RESET))
            }
        };
    }

    /// What is on its way arrives; the path does not look at it yet.
    pub fn deliver(&mut self) {
        for at in 0..self.hands.wires.len() {
            let link = LinkId(at as u64);
            while let Some((op, came)) = self.hands.wires[at].target.fill(&self.pool) {
                self.hands.moved = true;
                self.target(|shard, cx| shard.handle_recv(cx, link, op, came));
            }
            while let Some((op, came)) = self.hands.wires[at].host.fill(&self.host_pool) {
                self.hands.moved = true;
                self.host(|path, cx| path.handle_recv(cx, link, op, came));
                self.exchange(link);
            }
        }
    }

    /// What the control plane does.
    fn control(&mut self) {
        while let Some(message) = self.hands.posted.pop_front() {
            self.hands.moved = true;
            match message {
                Message::Store(volume, op) => self.tell(Message::Stored(volume, op.ticket, true)),
                Message::Nvme(NvmeMessage::Compute(_, id, _, work)) => {
                    self.tell(Message::Nvme(NvmeMessage::Computed(id, Box::new(work.run()))));
                }
                _ => {}
            }
        }
    }

    /// Lets the clock go to what is due, by at most this.
    pub fn sleep(&mut self, most: Duration) {
        let until = self.now + most;
        let due = [self.path.poll_timeout(), self.target.poll_timeout()].into_iter().flatten().min();
        self.now = due.map_or(until, |due| due.min(until)).max(self.now);
        if self.path.poll_timeout().is_some_and(|due| due <= self.now) {
            self.host(|path, cx| path.handle_timeout(cx));
        }
        if self.target.poll_timeout().is_some_and(|due| due <= self.now) {
            self.target(|shard, cx| shard.handle_timeout(cx));
        }
    }

    /// Goes on for so long.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            while self.step() {}
            self.sleep(until.since(self.now));
        }
    }

    /// Cuts a connection of the path, the admin queue being 0 of each association; nobody is told.
    pub fn cut(&mut self, wire: usize) {
        self.hands.wires[wire].cut = true;
    }

    /// The connection fails at the host's end, and at the target's only if `both`.
    pub fn reset(&mut self, wire: usize, both: bool) {
        let wire = &mut self.hands.wires[wire];
        wire.host.over = Some(Err(RESET));
        if both {
            wire.target.over = Some(Err(RESET));
        }
        wire.cut = true;
    }

    /// The target closes it in good order, as far as the path can see.
    pub fn close(&mut self, wire: usize) {
        let wire = &mut self.hands.wires[wire];
        (wire.host.over, wire.target.over) = (Some(Ok(())), Some(Ok(())));
        wire.cut = true;
    }

    pub fn wires(&self) -> usize {
        self.hands.wires.len()
    }

    pub fn is_gone(&self, wire: usize) -> bool {
        self.hands.wires[wire].host.gone
    }

    /// Memory with these bytes.
    pub fn out(&self, bytes: &[u8]) -> Payload {
        delivery::payload_with_bytes(&self.host_pool, bytes)
    }

    /// Memory to be filled, that held something else.
    pub fn room(&self, len: usize) -> Payload {
        delivery::payload_for_read(&self.host_pool, len)
    }

    #[allow(dead_code)] // Who counts memory asks.
    pub fn host_usage(&self) -> buf::PoolUsage {
        self.host_pool.usage()
    }
}

impl<P: Path> World<P> {
    /// Goes on until `done` finds what it looks for among the events, which it takes.
    pub fn until<R>(&mut self, what: &str, mut done: impl FnMut(&mut Vec<PathEvent>) -> Option<R>) -> R {
        let patience = self.now + Duration::from_secs(600);
        while self.now < patience {
            while self.step() {}
            while let Some(event) = self.path.poll_event() {
                self.events.push(event);
            }
            if let Some(found) = done(&mut self.events) {
                return found;
            }
            self.sleep(Duration::from_secs(1));
        }
        panic!("no {what}: {:?}", self.events);
    }

    /// Connects; the portrait, or why not.
    pub fn connect(
        &mut self,
    ) -> Result<Arc<blockwire_multipath::VolumeInfo>, blockwire_multipath::DownReason> {
        self.host(|path, cx| path.connect(cx));
        self.until("connection", |events| {
            let at =
                events.iter().position(|event| matches!(event, PathEvent::Up(_) | PathEvent::Down(_)))?;
            match events.remove(at) {
                PathEvent::Up(info) => Some(Ok(info)),
                PathEvent::Down(why) => Some(Err(why)),
                _ => None,
            }
        })
    }

    /// Starts an operation; its name.
    pub fn start(&mut self, op: Op, payload: Payload) -> IoId {
        let id = IoId(self.next);
        self.next += 1;
        let taken = self.host(|path, cx| path.submit(cx, id, op, payload));
        assert!(taken.is_ok(), "the path has room: {taken:?}");
        id
    }

    /// How an operation ended.
    pub fn wait(&mut self, id: IoId) -> (Result<volume::Outcome, blockwire_multipath::IoError>, Payload) {
        self.until("end", |events| {
            let of = |event: &PathEvent| matches!(event, PathEvent::Done { id: done, .. } if *done == id);
            let at = events.iter().position(of)?;
            match events.remove(at) {
                PathEvent::Done { how, payload, .. } => Some((how, payload)),
                _ => None,
            }
        })
    }

    /// An operation from its start to its end.
    pub fn run(
        &mut self,
        op: Op,
        payload: Payload,
    ) -> (Result<volume::Outcome, blockwire_multipath::IoError>, Payload) {
        let id = self.start(op, payload);
        self.wait(id)
    }

    /// Something about reservations.
    pub fn request_reservation(
        &mut self,
        request: blockwire_multipath::ReservationOp,
    ) -> Result<Option<blockwire_multipath::Reservations>, blockwire_multipath::IoError> {
        let id = IoId(self.next);
        self.next += 1;
        self.host(|path, cx| path.submit_reservation_op(cx, id, request)).expect("the path has room");
        self.until("report", |events| {
            let of = |event: &PathEvent| matches!(event, PathEvent::ReservationReply { id: done, .. } if *done == id);
            let at = events.iter().position(of)?;
            match events.remove(at) {
                PathEvent::ReservationReply { how, .. } => Some(how),
                _ => None,
            }
        })
    }

    /// Why the path went down.
    pub fn down(&mut self) -> blockwire_multipath::DownReason {
        self.until("end of the path", |events| {
            let at = events.iter().position(|event| matches!(event, PathEvent::Down(_)))?;
            match events.remove(at) {
                PathEvent::Down(why) => Some(why),
                _ => None,
            }
        })
    }
}
