//! The cost of one 4 KiB command on a path of the initiator: submission, bytes out, answer in, completion,
//! without a socket. A shard of our own target answers in the same process.
//!
//!     cargo run --release -p blockwire-multipath --example path_cost
//!
//! runs the commands. Under `valgrind --tool=callgrind --toggle-collect='*path_turn*'` the instructions are
//! those of the path alone, without its set-up: divide by the number of commands that is printed.
//! `tests/cost.sh` does this. Arguments: `read` or `write` over iSCSI, `nvme-read` or `nvme-write` over
//! NVMe/TCP; depth (at most 16, the limit of a new path); rounds.

#[allow(dead_code, reason = "the tests of paths over NVMe/TCP use all of it")]
#[path = "../tests/nvme/world.rs"]
mod nvme_world;
#[allow(dead_code, reason = "the tests of paths over iSCSI use all of it")]
#[path = "../tests/iscsi/world.rs"]
mod world;

use std::sync::Arc;
use std::time::Duration;

use ::iscsi::session::SessionLimits;
use ::iscsi::wire::Isid;
use ::nvme::{HostId, Nqn};
use blockwire_multipath::iscsi::{self, IscsiPath};
use blockwire_multipath::nvme::{self, NvmePath};
use blockwire_multipath::{Path, PathEvent};
use buf::{MemoryClass, Payload, Pool, Time};
use endpoint::{CloseMode, LinkId, OutboundSockets, ShardId};
use shard::{ControlRequest, Message, Shard};
use testkit::target::{self, TargetLimits};
use volume::{Backend, DiskId, Durability, IoId, Op, RamBackend, RamDisk, Span};

const COMMAND_LEN: usize = 4096;
/// Rounds before the measured ones: pools, queues and windows reach their size.
const WARM_UP_ROUNDS: u64 = 8;
/// Logical blocks of one command.
const BLOCKS_PER_COMMAND: u64 = COMMAND_LEN as u64 / 512;
/// Logical blocks of the volume.
const VOLUME_BLOCKS: u64 = 1 << 15;

/// All that is measured.
#[inline(never)]
fn measured_path_call<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// A path whose every call is measured from some moment on.
struct MeasuredPath {
    path: IscsiPath,
    is_on: bool,
}

impl MeasuredPath {
    fn with_path<R>(&mut self, act: impl FnOnce(&mut IscsiPath) -> R) -> R {
        if self.is_on { measured_path_call(|| act(&mut self.path)) } else { act(&mut self.path) }
    }
}

macro_rules! inner {
    ($path:expr, $inner:ident => $call:expr) => {
        $path.with_path(|$inner| $call)
    };
}

impl OutboundSockets for MeasuredPath {
    testkit::forward_links!(inner);
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        self.with_path(|path| path.poll_link_close())
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.path.poll_timeout()
    }
}

/// A path that is connected, and the target that it reaches.
enum ConnectedPath {
    Iscsi(Box<world::World<MeasuredPath>>),
    Nvme(Box<nvme_world::World<NvmePath>>),
}

impl ConnectedPath {
    fn iscsi(depth: u64) -> Self {
        let portals = vec!["127.0.0.1:3260".parse().expect("an address")];
        let host = "iqn.2026-11.test:host".to_owned();
        let isid = Isid::random([1, 2, 3], 4);
        let settings = iscsi::Settings::new(portals, target::TARGET_NAME.to_owned(), 0, host, isid);
        let limits = SessionLimits { commands: depth.max(128) as u16, ..SessionLimits::default() };
        let shard = Shard::new(
            ShardId(0),
            1,
            target::build_exports(&TargetLimits { limits, ..TargetLimits::default() }),
        );
        let path = IscsiPath::new(settings).expect("the settings are sound");
        let mut world = world::World::new(MeasuredPath { path, is_on: false }, shard);
        let disk = Arc::new(RamDisk::new(VOLUME_BLOCKS, VOLUME_BLOCKS, 512, 4096));
        let make = move |_| RamBackend::new(disk.clone());
        for spec in target::volume_specs(1, make(0).geometry(), &[DiskId(0)], None, make) {
            world.tell(Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
        }
        world.with(|path, cx| path.path.connect(cx));
        let up = world.run(Duration::from_secs(10), |world| {
            matches!(world.path.path.poll_event(), Some(PathEvent::Up(_)))
        });
        assert!(up, "the path comes up");
        ConnectedPath::Iscsi(Box::new(world))
    }

    fn nvme() -> Self {
        let settings = nvme::Settings::new(
            vec!["127.0.0.1:4420".parse().expect("an address")],
            Nqn::parse(target::SUBSYSTEM_NQN).expect("a name"),
            1,
            Nqn::parse("nqn.2026-11.test:host").expect("a name"),
            HostId::new([1; 16]).expect("not zero"),
        );
        let mut world =
            nvme_world::World::new(NvmePath::new(settings), target::build_exports(&TargetLimits::default()));
        world.connect().expect("the path comes up");
        ConnectedPath::Nvme(Box::new(world))
    }

    /// What the path does from now on counts.
    fn start_measuring(&mut self) {
        match self {
            ConnectedPath::Iscsi(world) => world.path.is_on = true,
            ConnectedPath::Nvme(world) => world.around = |act| measured_path_call(act),
        }
    }

    /// As many commands at once as `depth` says, to their ends.
    fn run_round(&mut self, depth: u64, blocks: &mut RandomBlocks, write: bool) {
        let commands: Vec<_> = (0..depth)
            .map(|_| Span { lba: blocks.next_random() * BLOCKS_PER_COMMAND, blocks: BLOCKS_PER_COMMAND })
            .collect();
        match self {
            ConnectedPath::Iscsi(world) => run_iscsi_round(world, &commands, write),
            ConnectedPath::Nvme(world) => run_nvme_round(world, &commands, write),
        }
    }
}

fn make_operation(pool: &Pool, span: Span, write: bool) -> (Op, Payload) {
    let memory = pool.take_sg(MemoryClass::Solicited, COMMAND_LEN).expect("there is memory");
    match write {
        true => (Op::Write(span, Durability::Cached), Payload::Out(memory.freeze())),
        false => (Op::Read(span), Payload::In(memory)),
    }
}

fn run_iscsi_round(world: &mut world::World<MeasuredPath>, commands: &[Span], write: bool) {
    let mut waiting = commands.iter().enumerate();
    let mut next = waiting.next().map(|(id, span)| (id, make_operation(&world.pool, *span, write)));
    let mut left = commands.len();
    let done = world.run(Duration::from_secs(10), |world| {
        while let Some(event) = world.path.with_path(|path| path.poll_event()) {
            assert!(matches!(event, PathEvent::Done { how: Ok(_), .. }), "{event:?}");
            left -= 1;
        }
        // The target opens its window as it is used: what finds no slot waits for a completion.
        while let Some((id, (op, payload))) = next.take() {
            let back =
                world.with(|path, cx| path.with_path(|path| path.submit(cx, IoId(id as u64), op, payload)));
            if let Err(back) = back {
                next = Some((id, back));
                break;
            }
            next = waiting.next().map(|(id, span)| (id, make_operation(&world.pool, *span, write)));
        }
        left == 0
    });
    assert!(done, "all commands end");
}

fn run_nvme_round(world: &mut nvme_world::World<NvmePath>, commands: &[Span], write: bool) {
    for span in commands {
        let payload = if write { world.out(&[0x5a; COMMAND_LEN]) } else { world.room(COMMAND_LEN) };
        let op = if write { Op::Write(*span, Durability::Cached) } else { Op::Read(*span) };
        world.start(op, payload);
    }
    let mut left = commands.len();
    world.until("end of all", |events| {
        for event in events.drain(..) {
            assert!(matches!(event, PathEvent::Done { how: Ok(_), .. }), "{event:?}");
            left -= 1;
        }
        (left == 0).then_some(())
    });
}

/// Places that no cache foresees.
struct RandomBlocks(u64);

impl RandomBlocks {
    fn next_random(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (VOLUME_BLOCKS / BLOCKS_PER_COMMAND)
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "read".into());
    let depth: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(16);
    let rounds: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut connected = match what.starts_with("nvme-") {
        true => ConnectedPath::nvme(),
        false => ConnectedPath::iscsi(depth),
    };
    let mut blocks = RandomBlocks(0x2545_f491_4f6c_dd1d);
    for round in 0..WARM_UP_ROUNDS + rounds {
        if round == WARM_UP_ROUNDS {
            connected.start_measuring();
        }
        connected.run_round(depth, &mut blocks, what.ends_with("write"));
    }
    println!("{} of {what} at depth {depth}", depth * rounds);
}
