//! Discovery controllers that are watched, in fixed bytes.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::DownReason;
use blockwire_multipath::nvme::{DiscoveryWatch, DiscoveryWatchEvent, Settings, Timeouts};

use crate::hostile::{Answer, World, property};
use crate::settings;

/// Asynchronous event: Discovery Log Page Change.
const CHANGE: u64 = 0x0070_f002;

/// What a controller was asked.
#[derive(Default)]
struct Asked {
    logs: Cell<u32>,
    keep_alives: Cell<u32>,
    configured: Cell<u32>,
    /// It answers no Keep Alive.
    is_deaf: Cell<bool>,
}

fn controller(asked: Rc<Asked>, oaes: u32) -> impl FnMut(&[u8]) -> Answer {
    move |sqe| match sqe[0] {
        0x7f => property(sqe, 1),
        0x06 => {
            let mut page = vec![0; 4096];
            page[92..96].copy_from_slice(&oaes.to_le_bytes());
            Some((0, page))
        }
        0x09 => {
            asked.configured.set(u32::from_le_bytes(sqe[44..48].try_into().unwrap()));
            Some((0, vec![]))
        }
        0x02 => {
            asked.logs.set(asked.logs.get() + 1);
            Some((0, vec![0; 1024]))
        }
        // Events come when the test says so.
        0x0c => None,
        0x18 if asked.is_deaf.get() => None,
        0x18 => {
            asked.keep_alives.set(asked.keep_alives.get() + 1);
            Some((0, vec![]))
        }
        _ => Some((0, vec![])),
    }
}

fn next(world: &mut World<DiscoveryWatch>) -> DiscoveryWatchEvent {
    world.until(Duration::from_secs(60), DiscoveryWatch::poll_event)
}

fn watched(oaes: u32) -> (Rc<Asked>, World<DiscoveryWatch>) {
    let asked = Rc::new(Asked::default());
    let times = Timeouts { keep_alive: Duration::from_secs(10), ..Timeouts::default() };
    let watch = DiscoveryWatch::new(Settings { times, ..settings() });
    let mut world = World::new(watch, controller(asked.clone(), oaes));
    world.host(|watch, cx| watch.start(cx));
    (asked, world)
}

#[test]
fn a_change_is_told_each_time_and_the_controller_hears_that_we_live() {
    let (asked, mut world) = watched(1 << 31);
    assert_eq!(next(&mut world), DiscoveryWatchEvent::Watching);
    assert_eq!((asked.configured.get(), asked.logs.get()), (1 << 31, 1));
    for changes in 1..4 {
        world.tell(CHANGE);
        assert_eq!(next(&mut world), DiscoveryWatchEvent::Changed);
        world.pass(Duration::from_secs(1));
        while world.step() {}
        // The log was read, which lets the next event come.
        assert_eq!(asked.logs.get(), 1 + changes);
    }
    let before = asked.keep_alives.get();
    world.pass(Duration::from_secs(30));
    assert!(asked.keep_alives.get() >= before + 5, "{}", asked.keep_alives.get());
    // Silence ends it, and it can be begun again.
    asked.is_deaf.set(true);
    assert!(matches!(next(&mut world), DiscoveryWatchEvent::Lost(DownReason::Silent(_))));
    asked.is_deaf.set(false);
    world.host(|watch, cx| watch.start(cx));
    assert_eq!(next(&mut world), DiscoveryWatchEvent::Watching);
}

#[test]
fn a_controller_that_tells_of_no_changes_is_not_waited_for() {
    let (_, mut world) = watched(0);
    let event = next(&mut world);
    assert!(
        matches!(&event, DiscoveryWatchEvent::Lost(DownReason::Refused(why)) if why.contains("OAES")),
        "{event:?}"
    );
}
