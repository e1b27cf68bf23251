//! What the gate costs per 4 KiB operation on a RAM volume: `cargo run --release --example gate`.

extern crate blockwire_volume as volume;

use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Sg, Time};
use volume::reservation::{Action, Key, RegistrationRequest, ReservationType};
use volume::{
    Durability, Gate, Identity, Io, IoId, Op, PortId, RamBackend, RamDisk, Requester, ShardId,
    SharedGateState, Span, View,
};

const ROUNDS: u64 = 300_000;
/// Few enough that memory's own latency is not what is measured.
const BLOCKS: u64 = 128;

fn with_reservation(view: &View, who: &Requester) -> View {
    let register = RegistrationRequest::new(None, Key(1));
    let state = view.reservations.apply(who, &Action::Register(register)).expect("a registration").state;
    let reserve = Action::Reserve { key: Some(Key(1)), kind: ReservationType::WriteExclusiveRegistrants };
    let state = state.apply(who, &reserve).expect("a reservation").state;
    View::from(volume::VolumeState { reservations: Arc::new(state), ..(**view).clone() })
}

/// Time on a processor, so that what else the machine does counts less.
fn cpu_time_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

fn print_admission_cost(
    name: &str,
    gate: &mut Gate,
    who: &Requester,
    op: impl Fn(Span) -> Op,
    payload: impl Fn(&Pool) -> Payload,
) {
    let (pool, mut entropy) = (Pool::new(16 << 20), Entropy::new([0; 32]));
    let start = cpu_time_ns();
    for round in 0..ROUNDS {
        let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
        let span = Span { lba: round.wrapping_mul(0x9e37_79b9) % BLOCKS, blocks: 1 };
        let io = Io { id: IoId(round), epoch: Default::default(), op: op(span), payload: payload(&pool) };
        gate.submit(&mut cx, who, io);
        while gate.resume(&mut cx) {}
        let done = gate.poll_done().expect("memory answers at once");
        assert!(done.result.is_ok());
    }
    println!("{name}: {:.0} ns", (cpu_time_ns() - start) as f64 / ROUNDS as f64);
}

fn main() {
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 4096, 4096));
    let identity =
        Identity::Initiator { name: "iqn.2026-11.example:host".into(), isid: [1; 6], port: PortId(1) };
    let who = Requester { identity: Arc::new(identity), port: PortId(1), read_only: false };
    let view = View::without_reservations(disk.geometry());
    let gate =
        |view| Gate::new(ShardId(0), SharedGateState::new(2), view, Box::new(RamBackend::new(disk.clone())));
    let room = |pool: &Pool| Payload::In(pool.take_sg(MemoryClass::Solicited, 4096).expect("memory"));
    let data =
        |pool: &Pool| Payload::Out(pool.take_sg(MemoryClass::Solicited, 4096).expect("memory").freeze());
    let both = |pool: &Pool| {
        let mut sg = pool.take_sg(MemoryClass::Solicited, 8192).expect("memory");
        sg.zero(0..8192);
        Payload::Out(Sg::clone(&sg.freeze()))
    };
    let write = |span| Op::Write(span, Durability::Cached);
    print_admission_cost("(first touch)", &mut gate(view.clone()), &who, write, data);
    print_admission_cost(
        "flush (the gate alone)",
        &mut gate(view.clone()),
        &who,
        |_| Op::Flush,
        |_| Payload::None,
    );
    print_admission_cost("read, lent", &mut gate(view.clone()), &who, Op::Read, |_| Payload::None);
    print_admission_cost("read, copied", &mut gate(view.clone()), &who, Op::Read, room);
    print_admission_cost("write", &mut gate(view.clone()), &who, write, data);
    print_admission_cost(
        "write under a reservation",
        &mut gate(with_reservation(&view, &who)),
        &who,
        write,
        data,
    );
    let erase = |span| Op::Unmap(vec![span]);
    print_admission_cost("unmap", &mut gate(view.clone()), &who, erase, |_| Payload::None);
    let zero = |_| Op::WriteZeroes { span: Span { lba: 0, blocks: 1 }, unmap: false };
    print_admission_cost("write zeroes", &mut gate(view.clone()), &who, zero, |_| Payload::None);
    let swap = |_| Op::CompareAndWrite(Span { lba: 0, blocks: 1 });
    print_admission_cost("compare and write", &mut gate(view), &who, swap, both);
}
