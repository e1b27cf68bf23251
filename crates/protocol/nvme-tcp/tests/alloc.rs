//! Nothing is allocated per I/O once a queue is ready, on either side.

use blockwire_nvme_tcp::{ConnectedQueueSize, ControllerQueue, HostQueue, HostQueueSettings, QueueLimits};
use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use nvme::{Completion, Opcode, Sqe};
use stream::{
    Connection, HostConnection, HostEvent, LinkNumber, Received, RecvOp, TargetConnection, TargetEvent,
};
use testkit::counting_alloc;
use zerocopy::FromZeros;

#[global_allocator]
static ALLOCATOR: testkit::counting_alloc::CountingAllocator = testkit::counting_alloc::CountingAllocator;

const LINK: LinkNumber = LinkNumber(0);
const DEPTH: usize = 16;

/// Bytes on their way, in memory that is there already.
struct Way {
    bytes: Vec<u8>,
    at: usize,
}

impl Way {
    fn new() -> Self {
        Way { bytes: Vec::with_capacity(16 << 20), at: 0 }
    }

    fn fill(&mut self, pool: &Pool, mut op: RecvOp) -> (RecvOp, Received) {
        let mut n = 0;
        if let Some(direct) = &mut op.direct {
            n = direct.want.len().min(self.bytes.len() - self.at);
            direct.data.copy_from(direct.want.start, &self.bytes[self.at..self.at + n]);
            self.at += n;
        }
        let rest = (self.bytes.len() - self.at).min(op.stage_len);
        if rest > 0 {
            let mut stage = pool.take(MemoryClass::Wire, rest).unwrap();
            stage.copy_from_slice(&self.bytes[self.at..self.at + rest]);
            self.at += rest;
            op.stage = Some(stage);
        }
        (op, Received::Bytes(n + rest))
    }

    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// One side's turn: receives what is on the way to it, sends what it has.
fn turn(queue: &mut impl Connection, cx: &mut Cx<'_>, op: &mut Option<RecvOp>, from: &mut Way, to: &mut Way) {
    let parsed = queue.resume_parsing(cx);
    assert!(parsed.is_ok());
    if op.is_none() {
        *op = queue.poll_recv(cx, LINK);
    }
    if let (Some(out), false) = (op.take_if(|_| !from.is_empty()), from.is_empty()) {
        let (out, came) = from.fill(cx.pool, out);
        assert!(queue.handle_recv(cx, LINK, out, came).is_ok());
    }
    if let Some(out) = queue.poll_send(cx, LINK) {
        if to.is_empty() {
            (to.at, to.bytes) = (0, std::mem::take(&mut to.bytes));
            to.bytes.clear();
        }
        let begin = to.bytes.len();
        to.bytes.resize(begin + out.len, 0);
        assert_eq!(out.copy_to(0, &mut to.bytes[begin..]), out.len);
        queue.handle_written(cx, LINK, Ok(()));
        queue.handle_send_released(cx, LINK, out);
    }
}

struct Both {
    host: HostQueue,
    controller: ControllerQueue,
    ops: (Option<RecvOp>, Option<RecvOp>),
    ways: (Way, Way),
    ended: usize,
}

impl Both {
    fn run(&mut self, cx: &mut Cx<'_>, until: usize, size: Option<ConnectedQueueSize>) {
        self.ended = 0;
        while self.ended < until {
            turn(&mut self.host, cx, &mut self.ops.0, &mut self.ways.0, &mut self.ways.1);
            while let Some(event) = self.host.poll_event() {
                match event {
                    HostEvent::Ready => self.ended += 1,
                    HostEvent::Completed { response, .. } => {
                        assert!(response.completion().status.is_success());
                        self.ended += 1;
                    }
                    HostEvent::Closed => panic!("the host's side is closed"),
                }
            }
            turn(&mut self.controller, cx, &mut self.ops.1, &mut self.ways.1, &mut self.ways.0);
            while let Some(event) = self.controller.poll_event() {
                self.serve(cx, event, size);
            }
        }
    }

    fn serve(&mut self, cx: &mut Cx<'_>, event: TargetEvent<Sqe>, size: Option<ConnectedQueueSize>) {
        match event {
            TargetEvent::Command { tag, data_out, .. } if data_out > 0 => {
                let memory =
                    cx.pool.take_sg(self.controller.write_memory_class(tag), data_out as usize).unwrap();
                self.controller.recv_data(cx, tag, 0, memory);
            }
            TargetEvent::Command { tag, command, .. } => {
                if let Some(size) = size {
                    assert!(self.controller.finish_connect(cx, size));
                }
                let len = command.dptr.length.get();
                assert!(self.controller.reserve_send_window(tag, len));
                if len > 0 {
                    let data = cx.pool.take_sg(MemoryClass::Solicited, len as usize).unwrap();
                    self.controller.send_data(cx, tag, 0, data.freeze());
                }
                self.controller.respond(cx, tag, Completion::SUCCESS);
            }
            TargetEvent::DataReceived { tag, .. } => self.controller.respond(cx, tag, Completion::SUCCESS),
            TargetEvent::Aborted { .. } | TargetEvent::Closed => panic!("nothing goes wrong"),
        }
    }

    /// Reads, in-capsule writes and solicited ones, all at once.
    fn round(&mut self, cx: &mut Cx<'_>) {
        for n in 0..DEPTH {
            let (opcode, len) = [(2, 4096), (1, 4096), (2, 100_000), (1, 60_000)][n % 4];
            let mut sqe = Sqe::new_zeroed();
            sqe.opcode = Opcode(opcode);
            let data = cx.pool.take_sg(MemoryClass::Solicited, len).unwrap();
            let payload = if opcode == 1 { Payload::Out(data.freeze()) } else { Payload::In(data) };
            assert!(self.host.submit(cx, sqe, payload).is_ok());
        }
        self.run(cx, DEPTH, None);
    }
}

#[test]
fn nothing_is_allocated_per_command() {
    for digests in [false, true] {
        let pool = Pool::new(64 << 20);
        let mut entropy = Entropy::new([1; 32]);
        let cx = &mut Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
        let limits = HostQueueSettings {
            header_digest: digests,
            data_digest: digests,
            ..HostQueueSettings::default()
        };
        let mut both = Both {
            host: HostQueue::new(cx, limits),
            controller: ControllerQueue::new(cx, QueueLimits::default()),
            ops: (None, None),
            ways: (Way::new(), Way::new()),
            ended: 0,
        };
        both.run(cx, 1, None);
        let size = ConnectedQueueSize { entries: 32, flow_control: digests, in_capsule_max: 8192 };
        let mut connect = Sqe::new_zeroed();
        connect.opcode = Opcode::FABRICS;
        assert!(both.host.submit(cx, connect, Payload::None).is_ok());
        both.run(cx, 1, Some(size));
        both.host.finish_connect(size);
        for _ in 0..20 {
            both.round(cx);
        }
        counting_alloc::take_allocation_count();
        counting_alloc::count_allocations(|| (0..50).for_each(|_| both.round(cx)));
        let count = counting_alloc::take_allocation_count();
        assert_eq!(count.calls, 0, "{:?}", counting_alloc::first_allocation_site());
    }
}
