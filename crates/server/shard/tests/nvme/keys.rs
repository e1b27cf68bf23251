//! One shard of two: the test is the other one, and decides in which order messages arrive.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use blockwire_shard::{
    ControlReport, ControlRequest, ControllerReply, Message, NvmeMessage, Shard, VolumeSpec,
};
use buf::{Cx, Entropy, Errno, MemoryClass, Pool, Time};
use endpoint::{
    AcceptedSocket, Dial, Endpoint, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId, pump,
};
use nvme::fabrics::{ConnectData, Property, PropertyAccess};
use stream::{Received, RecvOp, SendOp};
use volume::{
    AbortScope, Backend, ChangeId, DiskId, DiskOp, Epoch, RamBackend, RamDisk, RequestId, View, ViewUpdate,
    VolumeAnswer, VolumeId, VolumeState,
};

use crate::BLOCKS;
use crate::host::{IO, Wanted, keys, reserve, transfer};
use testkit::delivery::RecvDelivery;
use testkit::nvme_host::{CommandResult, TestQueue, TestTransport};
use testkit::target;

#[derive(Default)]
struct Wire {
    recv: Option<RecvOp>,
    send: Option<SendOp>,
    to_shard: VecDeque<u8>,
    to_peer: Vec<u8>,
    gone: bool,
}

#[derive(Default)]
struct Hands {
    wires: Vec<Wire>,
    posted: Vec<(ShardId, Message)>,
}

impl IoDriver<Message> for Hands {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        self.wires[link.0 as usize].recv = Some(op);
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        self.wires[link.0 as usize].send = Some(op);
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        unreachable!("memory has no disk: {op:?}");
    }

    fn halt_link(&mut self, link: LinkId) {
        unreachable!("nothing comes to rest here: {link:?}");
    }

    fn remove_link(&mut self, link: LinkId, _how: LinkDeparture<Message>) {
        self.wires[link.0 as usize].gone = true;
    }

    fn post_message(&mut self, to: ShardId, message: Message) {
        self.posted.push((to, message));
    }

    fn start_dial(&mut self, dial: Dial) {
        unreachable!("a shard without remotes dials nobody: {dial:?}");
    }
}

struct Alone {
    shard: Shard,
    pool: Pool,
    entropy: Entropy,
    now: Time,
    hands: Hands,
}

/// The shard that is tested; controllers of odd numbers are its own.
const SELF: ShardId = ShardId(1);

impl Alone {
    /// With controller 1, which is enabled.
    fn with_controller(wanted: &Wanted) -> Alone {
        let mut alone = Alone::new();
        let (mut admin, cid) = alone.connect(wanted, 0, ConnectData::DYNAMIC);
        let token = alone.claimed();
        alone.with(|shard, cx| shard.handle_message(cx, granted(token, 1)));
        alone.finish(&mut admin, cid);
        let enable = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001);
        let cid = admin.send_command(&mut alone, enable, &[], false, 0);
        alone.finish(&mut admin, cid);
        alone
    }

    fn new() -> Self {
        let (mut alone, spec) = Alone::without_volume();
        alone.add(spec);
        alone
    }

    fn add(&mut self, spec: VolumeSpec) {
        self.with(|shard, cx| {
            shard.handle_message(cx, Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
        });
        self.hands.posted.clear();
    }

    /// The shard, and the volume that it has not heard of.
    fn without_volume() -> (Self, VolumeSpec) {
        let exports = target::build_exports(&target::TargetLimits::default());
        let alone = Alone {
            shard: Shard::new(SELF, 2, exports),
            pool: Pool::new(16 << 20),
            entropy: Entropy::new([5; 32]),
            now: Time(1_000_000),
            hands: Hands::default(),
        };
        let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
        let geometry = RamBackend::new(disk.clone()).geometry();
        let specs =
            target::volume_specs(2, geometry, &[DiskId(0)], None, move |_| RamBackend::new(disk.clone()));
        let spec = specs.into_iter().nth(usize::from(SELF.0)).unwrap();
        (alone, spec)
    }

    /// Lets the shard hear what comes at once, and do what is to be done about all of it.
    fn with(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        self.now.0 += 1_000;
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        act(&mut self.shard, &mut cx);
        while pump(&mut self.shard, &mut cx, &mut self.hands) {}
        while self.shard.poll_timeout().is_some_and(|due| due <= cx.now) {
            self.shard.handle_timeout(&mut cx);
            while pump(&mut self.shard, &mut cx, &mut self.hands) {}
        }
    }

    /// Lets the shard take in what was sent to it; gives how often it let the world have its turn meanwhile.
    fn gives_way(&mut self, at: usize) -> usize {
        let wire = &mut self.hands.wires[at];
        let (bytes, mut op) =
            (std::mem::take(&mut wire.to_shard), wire.recv.take().expect("a receive is out"));
        let mut stage = self.pool.take(MemoryClass::Wire, op.stage_len).expect("there is memory");
        stage.set_len(bytes.len());
        bytes.iter().zip(stage.iter_mut()).for_each(|(byte, place)| *place = *byte);
        op.stage = Some(stage);
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.shard.handle_recv(&mut cx, LinkId(at as u64), op, Received::Bytes(bytes.len()));
        for times in 0..100 {
            while self.shard.turn(&mut cx) {}
            if self.shard.poll_timeout().is_none_or(|due| due > cx.now) {
                return times;
            }
            self.shard.handle_timeout(&mut cx);
        }
        panic!("it comes to no end");
    }

    /// Moves bytes both ways until nothing moves any more.
    fn settle(&mut self, at: usize) {
        while self.write_out(at) | self.read_in(at) {}
    }

    fn write_out(&mut self, at: usize) -> bool {
        let Some(op) = self.hands.wires[at].send.take() else { return false };
        self.hands.wires[at].to_peer.extend(testkit::delivery::send_op_bytes(&op));
        self.with(|shard, cx| {
            shard.handle_written(cx, LinkId(at as u64), Ok(()));
            shard.handle_send_released(cx, LinkId(at as u64), op);
        });
        true
    }

    fn read_in(&mut self, at: usize) -> bool {
        let wire = &mut self.hands.wires[at];
        if wire.to_shard.is_empty() {
            return false;
        }
        let Some(op) = wire.recv.take() else { return false };
        let (op, came) = RecvDelivery::long_stages().fill_recv(&self.pool, op, &mut wire.to_shard);
        self.with(|shard, cx| shard.handle_recv(cx, LinkId(at as u64), op, came));
        true
    }

    /// The connection is lost.
    fn reset(&mut self, at: usize) {
        let op = self.hands.wires[at].recv.take().expect("a receive is out");
        self.with(|shard, cx| shard.handle_recv(cx, LinkId(at as u64), op, Received::Failed(Errno(104))));
        assert!(self.hands.wires[at].gone);
    }

    fn finish(&mut self, pipe: &mut TestQueue, cid: u16) -> CommandResult {
        loop {
            self.settle(pipe.at);
            pipe.poll(self);
            if let Some(ended) = pipe.take_result(cid) {
                assert!(ended.status.is_success(), "{ended:?}");
                return ended;
            }
            let wire = &self.hands.wires[pipe.at];
            assert!(!wire.to_shard.is_empty(), "command {cid} is not answered: {:?}", self.hands.posted);
        }
    }

    /// Offers terms and sends a Connect.
    fn connect(&mut self, wanted: &Wanted, qid: u16, cntlid: u16) -> (TestQueue, u16) {
        let mut pipe = TestQueue::open_connection(self, IO, (false, false));
        self.settle(pipe.at);
        pipe.poll(self);
        let cid = pipe.send_connect(self, &wanted.connect(qid), &wanted.names(cntlid));
        self.settle(pipe.at);
        (pipe, cid)
    }

    /// The number of the connection whose claim came to the directory, which is the test.
    fn claimed(&mut self) -> u64 {
        let request = |(to, message): &mut (ShardId, Message)| {
            *to == ShardId(0) && matches!(message, Message::Nvme(NvmeMessage::ControllerRequest(_)))
        };
        match self.hands.posted.extract_if(.., request).next() {
            Some((_, Message::Nvme(NvmeMessage::ControllerRequest(request)))) => request.from.1,
            other => panic!("no request: {other:?}"),
        }
    }

    /// What was asked of the volume's home, which is the test.
    fn asked(&mut self) -> (VolumeId, RequestId) {
        let ask = |(to, message): &mut (ShardId, Message)| {
            *to == ShardId(0) && matches!(message, Message::VolumeRequest(..))
        };
        match self.hands.posted.extract_if(.., ask).next() {
            Some((_, Message::VolumeRequest(volume, from, id, _))) if from == SELF => (volume, id),
            other => panic!("nothing was asked: {other:?}"),
        }
    }
}

fn granted(token: u64, cntlid: u16) -> Message {
    let reply = ControllerReply::Granted { cntlid, shard: SELF, left: u64::MAX };
    Message::Nvme(NvmeMessage::ControllerReply(token, reply))
}

impl TestTransport for Alone {
    fn open(&mut self, listener: ListenerId) -> usize {
        let at = self.hands.wires.len();
        self.hands.wires.push(Wire::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let accepted = AcceptedSocket { listener, local: address, peer: address, cpu: None };
        self.with(|shard, cx| shard.handle_arrival(cx, LinkId(at as u64), LinkArrival::Accepted(accepted)));
        at
    }

    fn send_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.hands.wires[at].to_shard.extend(bytes);
    }

    fn take_received(&mut self, at: usize) -> Vec<u8> {
        std::mem::take(&mut self.hands.wires[at].to_peer)
    }
}

/// What ends the last command of a queue that was lost goes to that queue's connection, though a new queue is opened
/// in the very turn in which the command ends: else the connection is kept, with its memory, for ever.
#[test]
fn a_queue_key_is_not_given_again_before_its_last_command_is_retired() {
    let wanted = Wanted::default();
    let mut alone = Alone::with_controller(&wanted);
    // Queue 2 of controller 1 lives on this shard.
    let (mut queue, cid) = alone.connect(&wanted, 2, 1);
    alone.finish(&mut queue, cid);
    let with_both = alone.pool.usage().reserved;
    // Its last command waits for the volume's home when the connection is lost.
    queue.send_command(&mut alone, reserve(0x0d, 0, 0), &keys(0, 0xb), true, 0);
    alone.settle(queue.at);
    let (volume, id) = alone.asked();
    alone.reset(queue.at);
    let (mut second, cid) = alone.connect(&wanted, 0, ConnectData::DYNAMIC);
    let token = alone.claimed();
    let answer = Message::Answer(volume, VolumeAnswer { to: SELF, id, result: Ok(()) });
    alone.with(|shard, cx| {
        shard.handle_message(cx, answer);
        shard.handle_message(cx, granted(token, 3));
    });
    alone.finish(&mut second, cid);
    assert_eq!(
        alone.pool.usage().reserved,
        with_both,
        "the lost queue's memory is back, the new one's is taken"
    );
}

/// The volume is memory, so that each part of a long operation has ended at once.
#[test]
fn one_long_command_does_not_keep_its_shard_from_everybody_else() {
    let wanted = Wanted::default();
    let mut alone = Alone::with_controller(&wanted);
    let (mut queue, cid) = alone.connect(&wanted, 2, 1);
    alone.finish(&mut queue, cid);
    // Verify of 2 MiB, in parts of 256 KiB.
    let verify = transfer(0x0c, 0, BLOCKS as usize);
    let cid = queue.send_command(&mut alone, verify, &[], false, 0);
    let times = alone.gives_way(queue.at);
    assert!(times >= 7, "2 MiB at a go, but for {times} times");
    alone.with(|_, _| {});
    alone.finish(&mut queue, cid);
    // A Copy of 64 ranges of a block: 128 operations, one after the other.
    let ranges: Vec<u8> = (0..64u64)
        .flat_map(|lba| {
            let mut range = [0; 32];
            range[8..16].copy_from_slice(&lba.to_le_bytes());
            range
        })
        .collect();
    let cid = queue.send_command(&mut alone, transfer(0x19, 2048, 64), &ranges, true, 0);
    let times = alone.gives_way(queue.at);
    assert!(times >= 128 / 32 - 1, "128 operations at a go, but for {times} times");
    alone.with(|_, _| {});
    alone.finish(&mut queue, cid);
}

/// The home of a volume that is added at run time may change it before the other shards have heard of it: none of them
/// lets the home wait, and each serves what the volume has become.
#[test]
fn a_change_that_overtakes_its_volume_is_acknowledged_and_not_forgotten() {
    let (mut alone, spec) = Alone::without_volume();
    let volume = spec.facts.id;
    let standing =
        |epoch| VolumeState { epoch: Epoch(epoch), backing_read_only: true, ..(*spec.view).clone() };
    for epoch in [1, 2] {
        let change = ChangeId(epoch);
        let view = View::from(standing(epoch));
        let update = ViewUpdate {
            change,
            view,
            drain: true,
            abort: AbortScope::Nobody,
            notices: Vec::new(),
            asked: None,
        };
        alone.with(|shard, cx| shard.handle_message(cx, Message::ViewUpdate(volume, Arc::new(update))));
        let left =
            |(_, message): &(ShardId, Message)| matches!(message, Message::Nvme(NvmeMessage::MemoryLeft(..)));
        alone.hands.posted.retain(|posted| !left(posted));
        match alone.hands.posted.pop() {
            Some((ShardId(0), Message::Ack(of, ack))) => {
                assert_eq!((of, ack.from, ack.change), (volume, SELF, change));
            }
            other => panic!("the home waits: {other:?}"),
        }
    }
    alone.add(spec);
    alone.with(|shard, cx| shard.handle_message(cx, Message::Control(1, ControlRequest::List)));
    match alone.hands.posted.pop() {
        Some((_, Message::Report(1, ControlReport::Listing(listing)))) => {
            let view = &listing.volumes[0].view;
            assert_eq!((view.epoch, view.backing_read_only), (Epoch(2), true));
        }
        other => panic!("no listing: {other:?}"),
    }
}
