//! The cost of a queue per command, without a world: run it under callgrind, and divide.
//!
//! `valgrind --tool=callgrind --toggle-collect='*measured*' queue_cost [read|write] ROUNDS`: each round is 32
//! commands of 4 KiB that arrive in one receive and are answered in one batch. Read data comes from a region,
//! as with a RAM volume; write data is in the capsule.

use std::hint::black_box;
use std::sync::Arc;

use blockwire_nvme_tcp::wire::{CapsuleCmd, IcReq};
use blockwire_nvme_tcp::{ConnectedQueueSize, ControllerQueue, QueueLimits};
use buf::{Cx, Entropy, MemoryClass, Pool, Region, RegionHandle, Time};
use nvme::{Completion, Opcode, SglDescriptor, Sqe};
use stream::{Connection, LinkNumber, Received, TargetConnection, TargetEvent};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

const LINK: LinkNumber = LinkNumber(0);
const DEPTH: u16 = 32;
const LEN: u32 = 4096;

struct Bench {
    queue: ControllerQueue,
    region: RegionHandle,
}

impl Bench {
    /// Serves what was told; whether anything was.
    fn serve_events(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        while let Some(event) = self.queue.poll_event() {
            any = true;
            match event {
                TargetEvent::Command { tag, data_out, .. } if data_out > 0 => {
                    let memory = cx.pool.take_sg(self.queue.write_memory_class(tag), data_out as usize);
                    self.queue.recv_data(cx, tag, 0, memory.expect("memory"));
                }
                TargetEvent::Command { tag, command, .. } => {
                    let len = command.dptr.length.get();
                    if len > 0 && self.queue.reserve_send_window(tag, len) {
                        let data = self.region.view(0, len as usize);
                        self.queue.send_data(cx, tag, 0, data.into());
                    }
                    self.queue.respond(cx, tag, Completion::SUCCESS);
                }
                TargetEvent::DataReceived { tag, data, .. } => {
                    drop(black_box(data));
                    self.queue.respond(cx, tag, Completion::SUCCESS);
                }
                TargetEvent::Aborted { .. } | TargetEvent::Closed => panic!("nothing goes wrong"),
            }
        }
        any
    }
}

/// One receive, all that follows, one send: what is counted.
#[inline(never)]
fn run_measured_turn(bench: &mut Bench, cx: &mut Cx<'_>, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let Some(mut op) = bench.queue.poll_recv(cx, LINK) else { panic!("the queue is stuck") };
        let len = bytes.len().min(256 << 10) - at;
        let mut stage = cx.pool.take(MemoryClass::Wire, len).expect("memory");
        stage.copy_from_slice(&bytes[at..at + len]);
        op.stage = Some(stage);
        at += len;
        bench.queue.handle_recv(cx, LINK, op, Received::Bytes(len)).expect("a good host");
        while bench.serve_events(cx) {
            bench.queue.resume_parsing(cx).expect("a good host");
        }
    }
    while let Some(op) = bench.queue.poll_send(cx, LINK) {
        bench.queue.handle_written(cx, LINK, Ok(()));
        bench.queue.handle_send_released(cx, LINK, op);
    }
}

fn encode_capsule(write: bool, cid: u16) -> Vec<u8> {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.flags, sqe.cid) = (Opcode(if write { 1 } else { 2 }), 0x40, U16::new(cid));
    sqe.dptr.length = U32::new(LEN);
    sqe.dptr.identifier = if write { SglDescriptor::IN_CAPSULE } else { SglDescriptor::TRANSPORT };
    let mut header = CapsuleCmd::new(sqe);
    if write {
        header.common.pdo = 72;
        header.common.plen = U32::new(72 + LEN);
    }
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(header.common.plen.get() as usize, 7);
    bytes
}

fn main() {
    let mut args = std::env::args().skip(1);
    let write = args.next().is_some_and(|what| what == "write");
    let rounds: usize = args.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(1000);
    let pool = Pool::new(64 << 20);
    let mut entropy = Entropy::new([0; 32]);
    let cx = &mut Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
    let region = RegionHandle::new(Arc::new(Region::new(1 << 20)));
    let mut bench = Bench { queue: ControllerQueue::new(cx, QueueLimits::default()), region };
    run_measured_turn(&mut bench, cx, IcReq::new(0, false, false, 1).as_bytes());
    let mut connect = Sqe::new_zeroed();
    (connect.opcode, connect.flags) = (Opcode::FABRICS, 0x40);
    let mut op = bench.queue.poll_recv(cx, LINK).expect("a receive");
    let header = CapsuleCmd::new(connect);
    let mut stage = cx.pool.take(MemoryClass::Wire, CapsuleCmd::LEN).expect("memory");
    stage.copy_from_slice(header.as_bytes());
    op.stage = Some(stage);
    bench.queue.handle_recv(cx, LINK, op, Received::Bytes(CapsuleCmd::LEN)).expect("a Connect");
    let size = ConnectedQueueSize { entries: 2 * DEPTH, flow_control: false, in_capsule_max: 8192 };
    assert!(bench.queue.finish_connect(cx, size));
    bench.serve_events(cx);
    let bytes: Vec<u8> = (0..DEPTH).flat_map(|cid| encode_capsule(write, cid * 77)).collect();
    for _ in 0..rounds {
        run_measured_turn(&mut bench, cx, &bytes);
    }
    println!("{} commands", rounds * usize::from(DEPTH));
}
