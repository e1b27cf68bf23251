//! Keep-alive timers while a shard quiesces, and after that was taken back.

use std::time::Duration;

use blockwire_shard::{ControlReport, ControlRequest, Message, Shard};
use endpoint::ShardId;
use nvme::Status;
use sim::World;

use crate::host::{Host, Wanted, heed, sqe, transfer, wait};
use crate::{pattern, world};

/// Granted to the hosts here, in milliseconds.
const KATO_MS: u32 = 5000;
const KEEP_ALIVE: u8 = 0x18;

fn request(world: &mut World<Shard>, request: ControlRequest) {
    world.send_message(ShardId(0), Message::Control(7, request));
    world.run_for(Duration::from_millis(10));
}

fn reports(world: &mut World<Shard>) -> Vec<ControlReport> {
    let mut reports = Vec::new();
    heed(world, &mut reports);
    reports
}

/// A write whose host sends no data keeps the shard from being quiesced. Other hosts' commands are held meanwhile, and
/// their Keep Alives are answered.
#[test]
fn hosts_are_kept_alive_while_another_keeps_the_shard_busy() {
    let mut world = world(7, 1);
    let stalled = Wanted { host: "nqn.2026-11.test:stalled", host_id: 2, queues: 1, ..Wanted::default() };
    let mut stalled = Host::connect(&mut world, stalled);
    let mut host = Host::connect(&mut world, Wanted { kato_ms: KATO_MS, queues: 1, ..Wanted::default() });
    stalled.start(&mut world, 1, transfer(1, 0, 2048), &vec![1; 1 << 20], 0);
    world.run_for(Duration::from_millis(10));
    request(&mut world, ControlRequest::Quiesce);
    let held = host.start(&mut world, 1, transfer(1, 0, 1), &pattern(0, 1, 1), 0);
    for _ in 0..10 {
        world.run_for(Duration::from_secs(2));
        assert!(host.ask(&mut world, 0, sqe(KEEP_ALIVE), &[], 0).status.is_success());
        host.pipes[1].poll(&mut world);
        assert!(host.pipes[1].ended.is_empty(), "commands are held");
    }
    assert!(reports(&mut world).is_empty(), "it is not quiesced");
    request(&mut world, ControlRequest::Resume);
    assert_eq!(wait(&mut world, &mut host.pipes[1], held).status, Status::SUCCESS);
}

/// A shard that is quiesced for longer than a host's keep-alive time, and then goes on, costs the host nothing: it has
/// sent what it had to, and nobody has received it.
#[test]
fn time_in_which_a_shard_is_quiesced_does_not_count_as_silence() {
    let mut world = world(8, 1);
    let mut host = Host::connect(&mut world, Wanted { kato_ms: KATO_MS, queues: 1, ..Wanted::default() });
    request(&mut world, ControlRequest::Quiesce);
    assert!(matches!(reports(&mut world)[..], [ControlReport::Done]));
    let sent = host.start(&mut world, 0, sqe(KEEP_ALIVE), &[], 0);
    world.run_for(Duration::from_secs(8));
    request(&mut world, ControlRequest::Resume);
    assert_eq!(wait(&mut world, &mut host.pipes[0], sent).status, Status::SUCCESS);
    assert_eq!(host.write(&mut world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
}
