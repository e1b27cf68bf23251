//! The same for the initiator: a warm `InitiatorSession` allocates nothing per command.

use buf::{Cx, Entropy, MemoryClass, Payload};
use iscsi::initiator::{InitiatorLimits, InitiatorSession, Request, Response, ScsiCommand};
use iscsi::negotiate::Digest;
use iscsi::session::Cdb;
use iscsi::wire::{ScsiStatus, TaskAttribute};
use stream::{Connection, HostConnection, HostEvent, LinkNumber, Received};

use crate::world::World;
use testkit::counting_alloc;
use testkit::target;

const LINK: LinkNumber = LinkNumber(0);
const DEPTH: usize = 8;

struct Side {
    at: usize,
    session: InitiatorSession,
    entropy: Entropy,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    ended: usize,
}

impl Side {
    fn log_in(world: &mut World, digest: Digest) -> Self {
        let at = world.connect();
        let mut wanted = target::login_config(7);
        (wanted.limits.header_digest, wanted.limits.data_digest) = (vec![digest], vec![digest]);
        let mut entropy = Entropy::new([1; 32]);
        let cx = &mut Cx { now: world.now, pool: &world.pool, entropy: &mut entropy };
        let session = InitiatorSession::new(cx, wanted, InitiatorLimits::default()).unwrap();
        let (inbox, outbox) = (Vec::with_capacity(4 << 20), Vec::with_capacity(4 << 20));
        let mut side = Side { at, session, entropy, inbox, outbox, ended: 0 };
        for _ in 0..8 {
            side.turn(world);
        }
        assert!(side.session.tsih().value() > 0, "logged in");
        side
    }

    /// Takes what the target sent, and sends what there is.
    fn turn(&mut self, world: &mut World) {
        world.hands.wires[self.at].to_peer.reserve(1 << 20);
        std::mem::swap(&mut self.inbox, &mut world.hands.wires[self.at].to_peer);
        counting_alloc::count_allocations(|| {
            let cx = &mut Cx { now: world.now, pool: &world.pool, entropy: &mut self.entropy };
            let mut at = 0;
            while at < self.inbox.len() {
                let mut op = self.session.poll_recv(cx, LINK).expect("all is parsed");
                let from = at;
                if let Some(direct) = &mut op.direct {
                    for slice in direct.data.slices_mut(direct.want.clone()) {
                        let len = slice.len().min(self.inbox.len() - at);
                        slice[..len].copy_from_slice(&self.inbox[at..at + len]);
                        at += len;
                    }
                }
                let rest = op.stage_len.min(self.inbox.len() - at);
                if rest > 0 {
                    let mut stage = world.pool.take(MemoryClass::Wire, rest).unwrap();
                    stage[..rest].copy_from_slice(&self.inbox[at..at + rest]);
                    op.stage = Some(stage);
                    at += rest;
                }
                self.session.handle_recv(cx, LINK, op, Received::Bytes(at - from)).unwrap();
                self.session.resume_parsing(cx).unwrap();
            }
            while let Some(event) = self.session.poll_event() {
                if let HostEvent::Completed { response, .. } = event {
                    assert!(matches!(response, Response::Scsi(answer) if answer.status == ScsiStatus::GOOD
                        || self.ended == 0));
                    self.ended += 1;
                }
            }
            self.outbox.clear();
            while let Some(op) = self.session.poll_send(cx, LINK) {
                let from = self.outbox.len();
                self.outbox.resize(from + op.len, 0);
                op.copy_to(0, &mut self.outbox[from..]);
                self.session.handle_written(cx, LINK, Ok(()));
                self.session.handle_send_released(cx, LINK, op);
            }
        });
        self.inbox.clear();
        world.hands.wires[self.at].to_shard.extend(&self.outbox);
        world.settle(self.at);
    }

    fn submit(&mut self, world: &World, cdb: [u8; 16], write: bool, len: usize) {
        counting_alloc::count_allocations(|| {
            let cx = &mut Cx { now: world.now, pool: &world.pool, entropy: &mut self.entropy };
            let payload = match (world.pool.take_sg(MemoryClass::Solicited, len), write) {
                (Some(data), true) => Payload::Out(data.freeze()),
                (Some(data), false) => Payload::In(data),
                (None, _) => Payload::None,
            };
            let cdb = Cdb::Short(cdb);
            let command = ScsiCommand { lun: [0; 8], cdb, attr: TaskAttribute::SIMPLE, priority: 0 };
            assert!(self.session.submit(cx, Request::Scsi(command), payload).is_ok());
        });
    }

    fn round(&mut self, world: &mut World, len: usize) {
        for opcode in [0x2a, 0x28] {
            let before = self.ended;
            for slot in 0..DEPTH {
                let mut cdb = [0; 16];
                (cdb[0], cdb[4], cdb[8]) = (opcode, slot as u8, (len / 512) as u8);
                self.submit(world, cdb, opcode == 0x2a, len);
            }
            while self.ended < before + DEPTH {
                self.turn(world);
            }
        }
    }
}

#[test]
fn an_initiators_reads_and_writes_allocate_nothing() {
    for digest in [Digest::None, Digest::Crc32c] {
        let mut world = crate::world(64 << 20, crate::ram());
        let mut side = Side::log_in(&mut world, digest);
        // The unit attention of a new nexus.
        side.submit(&world, [0; 16], true, 0);
        while side.ended == 0 {
            side.turn(&mut world);
        }
        for len in [4096, 65_536] {
            for _ in 0..64 {
                side.round(&mut world, len);
            }
            counting_alloc::take_allocation_count();
            for _ in 0..200 {
                side.round(&mut world, len);
            }
            let count = counting_alloc::take_allocation_count();
            assert_eq!(
                count.calls,
                0,
                "{len} bytes: {count:?}; {:?}",
                counting_alloc::first_allocation_site()
            );
        }
    }
}
