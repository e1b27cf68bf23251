//! Both roles against each other, over a connection that splits data at random.

use super::*;
use crate::LinkFault;
use crate::controller::{ControllerQueue, QueueLimits};
use crate::queue::LINK;
use buf::{Entropy, MemoryClass, Pool, Sg, Time};
use nvme::{Completion, FabricsType, Opcode, Status};
use proptest::prelude::*;
use std::collections::VecDeque;
use stream::{Connection, ConnectionClose, Received, RecvOp, TargetConnection, TargetEvent};
use testkit::delivery::RecvDelivery;
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

const DISK_LEN: usize = 1 << 20;
const WRITE: Opcode = Opcode(1);
const READ: Opcode = Opcode(2);

/// One side: its receive that waits, and what is on the way to it.
struct Side<Q> {
    queue: Q,
    op: Option<RecvOp>,
    inbox: VecDeque<u8>,
    delivery: RecvDelivery,
    violation: Option<LinkFault>,
    shut: bool,
}

impl<Q: Connection<LinkFault = LinkFault>> Side<Q> {
    fn new(queue: Q) -> Self {
        Side {
            queue,
            op: None,
            inbox: VecDeque::new(),
            delivery: RecvDelivery::unlimited(),
            violation: None,
            shut: false,
        }
    }

    /// Receives once, sends once; gives what was sent, and whether anything moved.
    fn turn(&mut self, cx: &mut Cx<'_>) -> (Vec<u8>, bool) {
        let mut moved = false;
        // What was placed meanwhile may make room for the next receive.
        self.note(|queue| queue.resume_parsing(cx));
        if self.op.is_none() && !self.shut {
            self.op = self.queue.poll_recv(cx, LINK);
        }
        if let (Some(op), false) = (self.op.take_if(|_| !self.inbox.is_empty()), self.shut) {
            let (op, received) = self.delivery.fill_recv(cx.pool, op, &mut self.inbox);
            self.note(|queue| queue.handle_recv(cx, LINK, op, received));
            moved = true;
        }
        self.note(|queue| queue.resume_parsing(cx));
        let mut bytes = Vec::new();
        if let Some(op) = self.queue.poll_send(cx, LINK) {
            bytes = testkit::delivery::send_op_bytes(&op);
            self.queue.handle_written(cx, LINK, Ok(()));
            self.queue.handle_send_released(cx, LINK, op);
            moved = true;
        }
        self.take_shut(cx);
        (bytes, moved)
    }

    fn take_shut(&mut self, cx: &mut Cx<'_>) {
        if self.queue.poll_link_to_close().is_some() {
            self.shut = true;
            if let Some(op) = self.op.take() {
                self.note(|queue| queue.handle_recv(cx, LINK, op, Received::Cancelled));
            }
        }
    }

    fn hang_up(&mut self, cx: &mut Cx<'_>) {
        if let Some(op) = self.op.take().or_else(|| self.queue.poll_recv(cx, LINK)) {
            self.note(|queue| queue.handle_recv(cx, LINK, op, Received::End));
        }
        self.take_shut(cx);
    }

    fn note(&mut self, act: impl FnOnce(&mut Q) -> Result<(), LinkFault>) {
        let fault = act(&mut self.queue).err();
        self.violation = self.violation.take().or(fault);
    }
}

struct Wire {
    pool: Pool,
    entropy: Entropy,
    now: Time,
    host: Side<HostQueue>,
    controller: Side<ControllerQueue>,
    disk: Vec<u8>,
    writes: Vec<(Tag, u32)>,
    ended: Vec<(Tag, Cqe, Payload)>,
    ready: bool,
    closed: (bool, bool),
    /// What TLS handshakes failed by.
    faults: Vec<LinkFault>,
}

macro_rules! cx {
    ($wire:ident) => {
        &mut Cx { now: $wire.now, pool: &$wire.pool, entropy: &mut $wire.entropy }
    };
}

// Behind the macro, which it uses.
mod hostile;
mod over_tls;

fn sqe(opcode: Opcode, offset: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = opcode;
    sqe.cdw10[0] = U32::new(offset);
    sqe
}

impl Wire {
    fn new(host: HostQueueSettings, controller: QueueLimits) -> Self {
        let pool = Pool::new_poisoned(32 << 20);
        let mut entropy = Entropy::new([3; 32]);
        let now = Time(1);
        let cx = &mut Cx { now, pool: &pool, entropy: &mut entropy };
        let (host, controller) = (HostQueue::new(cx, host), ControllerQueue::new(cx, controller));
        Wire {
            pool,
            entropy,
            now,
            host: Side::new(host),
            controller: Side::new(controller),
            disk: (0..DISK_LEN).map(|i| (i / 512 + i) as u8).collect(),
            writes: Vec::new(),
            ended: Vec::new(),
            ready: false,
            closed: (false, false),
            faults: Vec::new(),
        }
    }

    /// As far as an open queue.
    fn open(host: HostQueueSettings, controller: QueueLimits, size: ConnectedQueueSize) -> Self {
        let mut wire = Wire::new(host, controller);
        wire.establish(size);
        wire
    }

    fn establish(&mut self, size: ConnectedQueueSize) {
        let wire = self;
        wire.run();
        assert!(wire.ready, "{:?} {:?}", wire.host.violation, wire.controller.violation);
        let mut connect = sqe(Opcode::FABRICS, 0);
        connect.nsid = U32::new(FabricsType::CONNECT.0.into());
        connect.cdw10[1] = U32::new(size.entries.into());
        wire.controller_size(size);
        let data = wire.out(&[7; 1024]);
        wire.submit(connect, data);
        wire.run();
        let (_, cqe, _) = wire.ended.pop().unwrap();
        assert_eq!(cqe.completion(), Completion::SUCCESS);
        wire.host.queue.finish_connect(size);
    }

    fn controller_size(&mut self, size: ConnectedQueueSize) {
        // The server learns what Connect would have said.
        self.writes.push((Tag::from_bits(u64::MAX), u32::from(size.entries)));
        self.writes.push((Tag::from_bits(u64::MAX), size.in_capsule_max));
        self.writes.push((Tag::from_bits(u64::MAX), size.flow_control.into()));
    }

    fn out(&self, bytes: &[u8]) -> Payload {
        let mut data = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
        data.copy_from(0, bytes);
        Payload::Out(data.freeze())
    }

    fn room(&self, len: usize) -> Payload {
        let mut data = self.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        data.copy_from(0, &vec![0xdd; len]);
        Payload::In(data)
    }

    fn submit(&mut self, sqe: Sqe, payload: Payload) -> Option<Tag> {
        self.host.queue.submit(cx!(self), sqe, payload).ok()
    }

    fn run(&mut self) {
        loop {
            let shaken = self.shake();
            let (bytes, host_moved) = self.host.turn(cx!(self));
            if !self.controller.shut {
                self.controller.inbox.extend(bytes);
            }
            self.take_events();
            let (bytes, controller_moved) = self.controller.turn(cx!(self));
            if !self.host.shut {
                self.host.inbox.extend(bytes);
            }
            let served = self.serve();
            self.take_events();
            if !(shaken || host_moved || controller_moved || served) {
                return;
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.host.queue.poll_event() {
            match event {
                HostEvent::Ready => self.ready = true,
                HostEvent::Completed { tag, response, payload } => self.ended.push((tag, response, payload)),
                HostEvent::Closed => self.closed.0 = true,
            }
        }
    }

    fn serve(&mut self) -> bool {
        let mut served = false;
        while let Some(event) = self.controller.queue.poll_event() {
            served = true;
            match event {
                TargetEvent::Command { tag, command, data_out } => self.command(tag, &command, data_out),
                TargetEvent::DataReceived { tag, at, data } => self.written(tag, at, &data),
                TargetEvent::Aborted { tag } => self.controller.queue.end_without_response(cx!(self), tag),
                TargetEvent::Closed => self.closed.1 = true,
            }
        }
        served
    }

    fn command(&mut self, tag: Tag, command: &Sqe, data_out: u32) {
        let (offset, len) = (command.cdw(10), command.dptr.length.get());
        if data_out > 0 {
            self.writes.push((tag, offset));
            let memory = self.pool.take_sg(MemoryClass::Solicited, data_out as usize).unwrap();
            return self.controller.queue.recv_data(cx!(self), tag, 0, memory);
        }
        let from = offset as usize;
        let mut data = self.pool.take_sg(MemoryClass::Solicited, len as usize).unwrap();
        data.copy_from(0, &self.disk[from..from + len as usize]);
        self.controller.queue.send_data(cx!(self), tag, 0, data.freeze());
        self.controller.queue.respond(cx!(self), tag, Completion::SUCCESS);
    }

    fn written(&mut self, tag: Tag, at: u32, data: &Sg) {
        let write = self.writes.iter().position(|(write, _)| *write == tag).unwrap();
        let (_, offset) = self.writes.remove(write);
        if self.controller.queue.size().entries == 1 {
            let flow_control = self.writes.pop().unwrap().1 == 1;
            let (in_capsule_max, entries) = (self.writes.pop().unwrap().1, self.writes.pop().unwrap().1);
            let size = ConnectedQueueSize { entries: entries as u16, flow_control, in_capsule_max };
            assert!(self.controller.queue.finish_connect(cx!(self), size));
        } else {
            let from = (offset + at) as usize;
            data.copy_to(0, &mut self.disk[from..from + data.len()]);
        }
        self.controller.queue.respond(cx!(self), tag, Completion::SUCCESS);
    }

    /// Both sides go; everything comes back.
    fn end(mut self) {
        self.host.queue.close(cx!(self), ConnectionClose::AfterLogout(self.now + Duration::from_secs(1)));
        self.run();
        self.controller.hang_up(cx!(self));
        self.serve();
        self.run();
        assert_eq!(self.closed, (true, true));
        self.ended.clear();
        assert_eq!(self.pool.usage().lent, 0);
    }
}

const SIZE: ConnectedQueueSize = ConnectedQueueSize { entries: 16, flow_control: true, in_capsule_max: 8192 };

#[derive(Clone, Debug)]
struct Act {
    write: bool,
    offset: u32,
    len: usize,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len = prop_oneof![1usize..600, 4000usize..9000, 30_000usize..200_000];
    let act = (any::<bool>(), 0u32..8, len);
    // Stretches of different acts do not overlap: what is read is known.
    prop::collection::vec(act.prop_map(|(write, _, len)| Act { write, offset: 0, len }), 1..5).prop_map(
        |mut acts| {
            for (n, act) in acts.iter_mut().enumerate() {
                act.offset = n as u32 * 200_000 + 13;
            }
            acts
        },
    )
}

fn deliveries() -> impl Strategy<Value = RecvDelivery> {
    let chunk = prop_oneof![1usize..9, 20usize..100, 500usize..70_000, Just(usize::MAX)];
    (prop::collection::vec(chunk, 1..6), any::<bool>()).prop_map(|(chunks, loaned)| RecvDelivery {
        chunks,
        loaned,
        ..RecvDelivery::unlimited()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// However the bytes come, and whatever was agreed, both sides see the same data.
    #[test]
    fn data_arrives_whole_over_any_splits(
        digests in any::<(bool, bool)>(),
        paddings in (0u8..32, 0u8..32),
        r2ts in 1u32..5,
        limits in (4096u32..70_000, 4096u32..150_000),
        flow_control in any::<bool>(),
        capsule in prop::sample::select(vec![0u32, 512, 4096, 8192]),
        to_host in deliveries(),
        to_controller in deliveries(),
        over_tls in any::<bool>(),
        acts in acts(),
    ) {
        let host = HostQueueSettings {
            hpda: paddings.0, header_digest: digests.0, data_digest: digests.1, r2ts, ..HostQueueSettings::default()
        };
        let controller = QueueLimits {
            cpda: paddings.1, max_h2c_data: limits.0, r2t_len_max: limits.1, ..QueueLimits::default()
        };
        let size = ConnectedQueueSize { entries: 8, flow_control, in_capsule_max: capsule };
        let mut wire = Wire::new(host, controller);
        (wire.host.delivery, wire.controller.delivery) = (to_host, to_controller);
        if over_tls {
            wire.use_tls();
        }
        wire.establish(size);
        let mut want = wire.disk.clone();
        let mut started = Vec::new();
        for act in &acts {
            let from = act.offset as usize;
            let tag = if act.write {
                let bytes: Vec<u8> = (0..act.len).map(|i| (i * 31 + act.len) as u8).collect();
                want[from..from + act.len].copy_from_slice(&bytes);
                let data = wire.out(&bytes);
                wire.submit(sqe(WRITE, act.offset), data)
            } else {
                let room = wire.room(act.len);
                wire.submit(sqe(READ, act.offset), room)
            };
            started.push(tag.unwrap());
        }
        wire.run();
        prop_assert_eq!((&wire.host.violation, &wire.controller.violation), (&None, &None));
        prop_assert_eq!(wire.ended.len(), acts.len());
        for (tag, cqe, payload) in std::mem::take(&mut wire.ended) {
            prop_assert_eq!(cqe.completion(), Completion::SUCCESS);
            let act = &acts[started.iter().position(|started| *started == tag).unwrap()];
            let mut bytes = vec![0; act.len];
            payload.into_sg().copy_to(0, &mut bytes);
            let from = act.offset as usize;
            prop_assert!(bytes == want[from..from + act.len]);
        }
        prop_assert!(wire.disk == want);
        wire.end();
    }
}

#[test]
fn the_window_is_one_less_than_the_entries() {
    let mut wire = Wire::open(HostQueueSettings::default(), QueueLimits::default(), SIZE);
    for n in 0..20 {
        let room = wire.room(512);
        assert_eq!(wire.submit(sqe(READ, 0), room).is_some(), n < 15, "{n}");
    }
    wire.run();
    assert_eq!(wire.ended.len(), 15);
    wire.end();
}

/// A capsule is one PDU: one of a megabyte, whose data has to be copied to be digested, would find no memory in one
/// piece, and be tried again for ever.
#[test]
fn a_long_write_is_asked_for_whatever_the_controller_says_that_its_capsules_take() {
    let mut wire = Wire::open(HostQueueSettings::default(), QueueLimits::default(), SIZE);
    wire.host.queue.finish_connect(ConnectedQueueSize { in_capsule_max: u32::MAX, ..SIZE });
    let data = wire.out(&[5; 200_000]);
    assert!(wire.submit(sqe(WRITE, 0), data).is_some());
    wire.run();
    assert_eq!(wire.ended.len(), 1);
    assert!(wire.disk[..200_000].iter().all(|byte| *byte == 5), "it went by R2T");
    wire.end();
}

#[test]
fn commands_of_a_lost_connection_end_with_their_memory() {
    let mut wire = Wire::open(HostQueueSettings::default(), QueueLimits::default(), SIZE);
    let (room, data) = (wire.room(100_000), wire.out(&[1; 100_000]));
    wire.submit(sqe(READ, 0), room);
    wire.submit(sqe(WRITE, 0), data);
    wire.host.delivery.chunks = vec![1000];
    for _ in 0..4 {
        let (bytes, _) = wire.host.turn(cx!(wire));
        wire.controller.inbox.extend(bytes);
        let (bytes, _) = wire.controller.turn(cx!(wire));
        wire.host.inbox.extend(bytes);
        wire.serve();
    }
    wire.host.inbox.clear();
    wire.host.hang_up(cx!(wire));
    wire.take_events();
    assert!(wire.closed.0 && wire.ended.len() == 2);
    for (_, cqe, payload) in wire.ended.drain(..) {
        assert_eq!(cqe.completion().status, Status::HOST_PATH_ERROR);
        assert_eq!(payload.len(), 100_000);
        // No byte is shown that did not come.
        if let Payload::In(data) = payload {
            assert!(data.pieces()[0][99_000..].iter().all(|byte| *byte == 0));
        }
    }
    wire.controller.hang_up(cx!(wire));
    wire.serve();
    assert_eq!(wire.pool.usage().lent, 0);
}
