//! Lost connections, unanswered commands, and addresses where nothing listens.

use std::time::Duration;

use blockwire_multipath::nvme::{NvmePath, Settings};
use blockwire_multipath::{DownReason, IoError, Path, PathEvent};
use buf::Payload;
use volume::{Durability, Op, Span};

use crate::world::{REFUSED, World};
use crate::{exports, settings, up};
use testkit::delivery::payload_bytes;

const SPAN: Span = Span { lba: 0, blocks: 8 };

fn write(world: &mut World<NvmePath>, mark: u8) -> volume::IoId {
    let out = world.out(&[mark; 4096]);
    world.start(Op::Write(SPAN, Durability::Cached), out)
}

fn read(world: &mut World<NvmePath>) -> Vec<u8> {
    let room = world.room(4096);
    let (how, payload) = world.run(Op::Read(SPAN), room);
    how.unwrap();
    payload_bytes(payload)
}

/// How long until what was asked for is fenced.
fn fence(world: &mut World<NvmePath>) -> Duration {
    let begun = world.now;
    world.host(|path, cx| path.fence(cx));
    world.until("fence", |events| {
        let at = events.iter().position(|event| matches!(event, PathEvent::Fenced))?;
        events.remove(at);
        Some(())
    });
    world.now.since(begun)
}

#[test]
fn nobody_listens_and_the_next_address_is_tried() {
    let mut world = World::new(NvmePath::new(settings()), exports());
    world.ports.clear();
    assert_eq!(world.connect(), Err(DownReason::Unreachable(REFUSED)));
    let addresses = vec!["127.0.0.9:4420".parse().unwrap(), "127.0.0.1:4420".parse().unwrap()];
    let mut world = World::new(NvmePath::new(Settings { addresses, ..settings() }), exports());
    assert!(world.connect().is_ok());
}

#[test]
fn a_lost_io_queue_is_fenced_by_a_reset_and_the_path_comes_up_again() {
    let mut world = up(settings());
    // Wire 1 is the I/O queue: the write leaves, and is lost on its way.
    world.cut(1);
    let id = write(&mut world, 1);
    world.step();
    world.reset(1, true);
    let (how, payload) = world.wait(id);
    assert!(matches!(how, Err(IoError::InDoubt)), "{how:?}");
    assert_eq!(payload.len(), 4096);
    assert!(matches!(world.down(), DownReason::Lost(_)));
    assert!(fence(&mut world) < Duration::from_millis(100));
    world.connect().unwrap();
    let id = write(&mut world, 2);
    assert!(world.wait(id).0.is_ok());
    assert!(read(&mut world) == [2; 4096]);
}

#[test]
fn reads_that_are_lost_may_be_done_again_at_once() {
    let mut world = up(settings());
    world.cut(1);
    let room = world.room(4096);
    let id = world.start(Op::Read(SPAN), room);
    world.step();
    world.reset(1, true);
    let (how, _) = world.wait(id);
    assert!(matches!(how, Err(IoError::NotDone(Duration::ZERO))), "{how:?}");
    world.down();
    assert!(fence(&mut world) < Duration::from_millis(100));
}

#[test]
fn a_controller_that_cannot_be_asked_is_given_the_time_of_the_standard() {
    let mut world = up(settings());
    world.cut(0);
    world.cut(1);
    let id = write(&mut world, 1);
    let begun = world.now;
    let (how, _) = world.wait(id);
    assert!(matches!(how, Err(IoError::InDoubt)), "{how:?}");
    assert!(matches!(world.down(), DownReason::Silent(_)));
    // Keep Alive was not answered: at most a quarter of the KATO until it went, and all of it.
    let kato = Duration::from_secs(5);
    assert!(world.now.since(begun) <= kato * 5 / 4 + Duration::from_millis(10));
    // Our target counts any traffic: three times the KATO.
    let waited = fence(&mut world);
    assert!(waited >= kato * 3 - Duration::from_secs(1) && waited <= kato * 3, "{waited:?}");
}

/// Our target can be told a least Keep Alive Timeout (`keep_alive_min`): it keeps a silent host for longer than that
/// host asked for.
#[test]
fn a_controller_that_took_a_longer_keep_alive_is_not_given_up_before_its_own_time() {
    let mut exports = exports();
    let terms = std::sync::Arc::get_mut(&mut exports).unwrap();
    terms.nvme.keep_alive.least_ms = 20_000;
    let mut world = World::new(NvmePath::new(settings()), exports);
    world.connect().unwrap();
    world.cut(0);
    world.cut(1);
    let id = write(&mut world, 1);
    assert!(matches!(world.wait(id).0, Err(IoError::InDoubt)));
    world.down();
    let (waited, kato) = (fence(&mut world), Duration::from_secs(20));
    assert!(waited >= kato * 3 - Duration::from_secs(1) && waited <= kato * 3, "{waited:?}");
}

/// The time that is asked for is waited, where it is longer.
#[test]
fn a_fence_by_time_is_no_shorter_than_it_was_asked_for() {
    let mut settings = settings();
    settings.times.lost_least = Duration::from_secs(70);
    let mut world = up(settings);
    world.cut(0);
    world.cut(1);
    let id = write(&mut world, 1);
    assert!(matches!(world.wait(id).0, Err(IoError::InDoubt)));
    world.down();
    let waited = fence(&mut world);
    assert!(waited >= Duration::from_secs(69) && waited <= Duration::from_secs(70), "{waited:?}");
}

/// Half a second was too little where a proxy cut the paths of a target whose second processor had no time
/// for it: a write landed 0.9 s later, on top of newer ones (`served/failover.rs`).
#[test]
fn a_controller_whose_admin_queue_was_closed_in_order_is_given_a_keep_alive_time() {
    let mut world = up(settings());
    world.cut(0);
    world.cut(1);
    let id = write(&mut world, 1);
    world.step();
    world.close(0);
    world.close(1);
    assert!(matches!(world.wait(id).0, Err(IoError::InDoubt)));
    world.down();
    let waited = fence(&mut world);
    let kato = Duration::from_secs(5);
    assert!(waited >= kato - Duration::from_millis(10) && waited <= kato, "{waited:?}");
}

#[test]
fn a_path_without_anything_unknown_is_fenced_at_once_up_or_down() {
    let mut world = up(settings());
    assert_eq!(fence(&mut world).as_millis(), 0);
    world.reset(0, true);
    world.reset(1, true);
    world.down();
    assert_eq!(fence(&mut world).as_millis(), 0);
}

#[test]
fn an_operation_that_is_not_answered_is_aborted_then_the_controller_reset() {
    let mut world = up(settings());
    world.cut(1);
    let begun = world.now;
    let id = write(&mut world, 1);
    let (how, _) = world.wait(id);
    assert!(matches!(how, Err(IoError::InDoubt)), "{how:?}");
    let took = world.now.since(begun);
    let times = settings().times;
    let most = times.operation + times.abort + times.operation / 4;
    assert!(took >= times.operation + times.abort && took <= most, "{took:?}");
    let DownReason::Lost(why) = world.down() else { panic!("it is lost") };
    assert!(why.contains("not aborted"), "{why}");
    assert!(fence(&mut world) < Duration::from_millis(100));
}

#[test]
fn a_cancelled_operation_ends_though_its_queue_is_silent() {
    let mut world = up(settings());
    world.cut(1);
    let room = world.room(4096);
    let id = world.start(Op::Read(SPAN), room);
    world.step();
    world.host(|path, cx| path.cancel(cx, id));
    let begun = world.now;
    let (how, _) = world.wait(id);
    assert!(matches!(how, Err(IoError::Failed(volume::Failure::Failed(volume::Fault::Aborted)))), "{how:?}");
    assert!(world.now.since(begun) < settings().times.abort * 2);
}

#[test]
fn an_idle_path_is_kept_alive_and_a_dead_one_is_noticed() {
    let mut world = up(settings());
    world.run_for(Duration::from_secs(60));
    assert!(read(&mut world).len() == 4096);
    world.cut(0);
    world.cut(1);
    let begun = world.now;
    assert!(matches!(world.down(), DownReason::Silent(_)));
    assert!(world.now.since(begun) < Duration::from_secs(8));
}

#[test]
fn what_is_submitted_to_a_path_that_is_not_up_comes_back() {
    let mut world = World::new(NvmePath::new(settings()), exports());
    let id = volume::IoId(9);
    let back = world.host(|path, cx| path.submit(cx, id, Op::Flush, Payload::None));
    assert!(matches!(back, Err((Op::Flush, Payload::None))));
}
