//! Paths that do not report the volume's geometry, or report an older one than another path.

use std::sync::Arc;

use volume::{Backend, Geometry, PathAccess};

use super::script::{Scene, geometry, info, read, write};
use super::*;
use crate::path::{DownReason, PathEvent, VolumeInfo};
use crate::remote::{ExpectedVolume, matches_serial};

/// What a path says that is up, in a state in which its target tells nothing.
fn silent(access: PathAccess) -> PathEvent {
    PathEvent::Up(Arc::new(VolumeInfo { geometry: None, access, ..info() }))
}

#[test]
fn a_path_that_does_not_tell_its_size_does_not_open_an_empty_volume() {
    let mut scene = Scene::new(1, VolumeSettings { open_timeout: 60 * SECOND, ..VolumeSettings::default() });
    scene.say(0, silent(PathAccess::Inaccessible));
    scene.submit(read(0));
    scene.pass(SECOND);
    assert_eq!((scene.volume.known_geometry(), scene.volume.is_open()), (None, false));
    assert_eq!((scene.given(0), scene.ends()), (0, vec![]));
    scene.say(0, PathEvent::Changed(Arc::new(info())));
    assert_eq!(scene.volume.known_geometry(), Some(geometry()));
    assert!(scene.volume.is_open());
    assert_eq!(scene.given(0), 1);
}

#[test]
fn a_path_that_the_target_lost_for_good_is_tried_again_all_the_same() {
    let mut scene = Scene::up(2, robin());
    scene.say(1, PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::PersistentLoss, ..info() })));
    assert_eq!(scene.count(1, |path| path.disconnects), 1);
    scene.say(1, PathEvent::Down(DownReason::Ended));
    assert!(
        matches!(scene.volume.path_info(1).unwrap().state, PathState::Waiting(_)),
        "a target takes that back"
    );
    scene.pass(Duration::from_secs(15));
    assert_eq!(scene.count(1, |path| path.connects), 2);
}

#[test]
fn a_volume_of_which_nobody_tells_anything_is_not_waited_for_in_silence() {
    let mut scene = Scene::new(2, VolumeSettings::default());
    scene.say(0, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
    scene.say(1, silent(PathAccess::Inaccessible));
    assert!(std::iter::from_fn(|| scene.volume.poll_event()).any(|news| news == VolumeEvent::Failed));
    let last = scene.volume.path_info(1).unwrap().last.unwrap().1;
    assert!(last.to_string().contains("inaccessible"), "{last}");
    // What is in transition is about to tell.
    let mut scene = Scene::new(1, VolumeSettings::default());
    scene.say(0, silent(PathAccess::Transition));
    scene.pass(29 * SECOND);
    assert!(!std::iter::from_fn(|| scene.volume.poll_event()).any(|news| news == VolumeEvent::Failed));
    scene.pass(SECOND);
    assert!(std::iter::from_fn(|| scene.volume.poll_event()).any(|news| news == VolumeEvent::Failed));
}

#[test]
fn a_volume_does_not_shrink_to_nothing_when_its_path_stops_telling_its_size() {
    let mut scene = Scene::up(2, VolumeSettings::default());
    assert!(scene.volume.has_geometry_changed());
    for slot in [0, 1] {
        scene.lose(slot);
        scene.pass(SECOND);
        scene.say(slot, silent(PathAccess::Inaccessible));
    }
    assert_eq!((scene.volume.geometry(), scene.volume.has_geometry_changed()), (geometry(), false));
    scene.submit(read(0));
    assert_eq!([scene.given(0), scene.given(1)], [0, 0]);
    scene.say(1, PathEvent::Changed(Arc::new(info())));
    assert_eq!([scene.given(0), scene.given(1)], [0, 1]);
}

#[test]
fn a_standby_path_of_a_volume_with_long_blocks_is_not_given_up() {
    let split = VolumeInfo { geometry: Some(Geometry { logical: 4096, ..geometry() }), ..info() };
    let mut scene = Scene::new(2, VolumeSettings::default());
    scene.say(0, PathEvent::Up(Arc::new(split.clone())));
    scene.say(1, silent(PathAccess::Inaccessible));
    assert_eq!(scene.volume.path_info(1).unwrap().state, PathState::Up);
    scene.lose(0);
    scene.say(1, PathEvent::Changed(Arc::new(split)));
    let op = read(0);
    scene.with(|volume, cx| {
        let payload = buf::Payload::In(cx.pool.take_sg(buf::MemoryClass::Solicited, 8 * 4096).unwrap());
        volume.submit(cx, volume::Io { id: IoId(1), epoch: volume::Epoch(0), op, payload });
    });
    assert_eq!(scene.given(1), 1);
    // But what tells of other blocks is another volume.
    scene.pass(SECOND);
    scene.raise(0);
    assert_eq!(scene.count(0, |path| path.disconnects), 1);
}

#[test]
fn a_path_that_has_not_heard_of_a_growth_does_not_take_it_back() {
    let mut scene = Scene::up(2, VolumeSettings::default());
    let grown = VolumeInfo { geometry: Some(Geometry { blocks: 2000, ..geometry() }), ..info() };
    scene.say(0, PathEvent::Changed(Arc::new(grown.clone())));
    assert_eq!(scene.volume.known_geometry().unwrap().blocks, 2000);
    // The other one tells of its state only: its size is what it had told before.
    let other = VolumeInfo { access: PathAccess::NonOptimized, ..info() };
    scene.say(1, PathEvent::Changed(Arc::new(other.clone())));
    assert_eq!(scene.volume.known_geometry().unwrap().blocks, 2000);
    scene.say(1, PathEvent::Changed(Arc::new(VolumeInfo { read_only: true, ..other.clone() })));
    assert_eq!(scene.volume.known_geometry().unwrap().blocks, 2000);
    assert!(scene.volume.is_read_only(), "which is new");
    scene.say(
        0,
        PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::NonOptimized, ..grown.clone() })),
    );
    assert!(scene.volume.is_read_only(), "the first path has said nothing new of it");
    // What it says again is so.
    scene.say(1, PathEvent::Changed(Arc::new(VolumeInfo { geometry: grown.geometry, ..other })));
    assert_eq!(scene.volume.known_geometry().unwrap().blocks, 2000);
    assert!(!scene.volume.is_read_only());
}

#[test]
fn a_write_beyond_the_end_that_a_path_knows_is_not_refused_for_good_where_the_volume_has_grown() {
    let mut scene = Scene::up(2, robin());
    let grown = VolumeInfo { geometry: Some(Geometry { blocks: 2000, ..geometry() }), ..info() };
    scene.say(0, PathEvent::Changed(Arc::new(grown)));
    scene.submit(read(0));
    let id = scene.submit(write(1500));
    assert_eq!([scene.given(0), scene.given(1)], [1, 1]);
    scene.end_well(0);
    scene.ends();
    // It went by a port of the target that has not heard of it.
    let beyond = || Err(IoError::Failed(volume::Refusal::OutOfRange.into()));
    let mut refused = 0;
    while scene.given(0) + scene.given(1) > 0 {
        if scene.given(1) > 0 {
            scene.end(1, beyond());
            refused += 1;
            assert!(refused < 10);
            scene.pass(SECOND);
        } else {
            scene.end_well(0);
        }
    }
    assert_eq!((refused > 0, scene.ends()), (true, vec![(id.0, true)]));
    // What no path allows is refused in the end, and what the volume never had at once.
    let id = scene.submit(write(1600));
    while scene.given(0) + scene.given(1) > 0 {
        let slot = usize::from(scene.given(0) == 0);
        scene.end(slot, beyond());
        scene.pass(SECOND);
    }
    assert_eq!(scene.ends(), [(id.0, false)]);
    let id = scene.submit(write(3000));
    let slot = usize::from(scene.given(0) == 0);
    scene.end(slot, beyond());
    assert_eq!(scene.ends(), [(id.0, false)]);
}

#[test]
fn a_shard_does_not_serve_another_volume_than_the_one_that_was_found_at_the_start() {
    let expected = |uuid| ExpectedVolume { uuid, serial: "1".into(), logical: 512 };
    let expelled = |expected: ExpectedVolume, found: VolumeInfo| {
        let settings = VolumeSettings {
            expected: Some(expected),
            open_timeout: Duration::MAX,
            ..VolumeSettings::default()
        };
        let mut scene = Scene::new(1, settings);
        scene.say(0, PathEvent::Up(Arc::new(found)));
        let last = (scene.count(0, |path| path.disconnects) > 0).then(|| {
            scene.say(0, PathEvent::Down(DownReason::Ended));
            scene.volume.path_info(0).unwrap()
        });
        assert_eq!(scene.volume.known_geometry().is_none(), last.is_some());
        // It is tried again: what was there before may come back.
        last.map(|info| {
            assert!(matches!(info.state, PathState::Waiting(_)), "{:?}", info.state);
            info.last.unwrap().1.to_string()
        })
    };
    let ours = info().uuid;
    assert_eq!(expelled(expected(ours), info()), None);
    let other = VolumeInfo { uuid: Some(Uuid([9; 16])), ..info() };
    let why = expelled(expected(ours), other.clone()).unwrap();
    assert!(why.contains(&ours.unwrap().to_string()) && why.contains(&Uuid([9; 16]).to_string()), "{why}");
    let bare = VolumeInfo { uuid: None, ..info() };
    assert!(expelled(expected(ours), bare.clone()).is_some());
    assert!(expelled(expected(None), other).is_some());
    assert_eq!(expelled(expected(None), bare.clone()), None);
    let why = expelled(expected(None), VolumeInfo { serial: "2".into(), ..bare.clone() }).unwrap();
    assert!(why.contains("\"1\"") && why.contains("\"2\""), "{why}");
    let split = Some(Geometry { logical: 4096, ..geometry() });
    assert!(expelled(expected(ours), VolumeInfo { geometry: split, ..info() }).is_some());
}

#[test]
fn what_hosts_were_told_that_they_may_move_at_once_is_not_taken_back_for_a_path_that_carries_less() {
    let mut scene = Scene::new(1, VolumeSettings { max_io: Some(1 << 20), ..VolumeSettings::default() });
    let small = Some(Geometry { max_io: 2 * 512, ..geometry() });
    scene.say(0, PathEvent::Up(Arc::new(VolumeInfo { geometry: small, ..info() })));
    assert_eq!(scene.volume.known_geometry().unwrap().max_io, 1 << 20);
    scene.submit(read(0));
    for lba in [0, 2, 4, 6] {
        assert_eq!(scene.end_well(0), Op::Read(Span { lba, blocks: 2 }));
    }
    assert_eq!(scene.ends(), [(1, true)]);
}

#[test]
fn what_is_cancelled_while_another_waits_leaves_nothing_behind() {
    let mut scene = Scene::up(1, VolumeSettings { queue_timeout: Duration::MAX, ..robin() });
    scene.lose(0);
    scene.submit(read(0));
    for _ in 0..10_000 {
        let id = scene.submit(read(8));
        scene.with(|volume, _| volume.cancel(id));
        assert_eq!(scene.ends().len(), 1);
    }
    assert!(scene.volume.tasks.queue.len() < 100, "{}", scene.volume.tasks.queue.len());
    scene.pass(Duration::from_secs(1));
    scene.raise(0);
    scene.end_well(0);
    assert_eq!(scene.ends(), [(1, true)]);
}

#[test]
fn another_namespace_of_the_same_controller_is_not_taken_for_the_volume() {
    let named = |serial: &str| VolumeInfo { uuid: None, serial: serial.into(), ..info() };
    let (a, b) = (named("SN1 NGUID 01"), named("SN1 NGUID 02"));
    let mut scene = Scene::new(1, robin());
    scene.say(0, PathEvent::Up(Arc::new(a.clone())));
    scene.lose(0);
    scene.pass(Duration::from_secs(1));
    scene.say(0, PathEvent::Up(Arc::new(b.clone())));
    assert_eq!(scene.count(0, |path| path.disconnects), 1, "it was deleted, and its number given away");
    let expects = |serial: &str| ExpectedVolume { uuid: None, serial: serial.into(), logical: 512 };
    assert!(
        expects("SN1 NGUID 01").check_volume(&a).is_ok() && expects("SN1 NGUID 01").check_volume(&b).is_err()
    );
    assert!(expects("SN1").check_volume(&a).is_ok(), "as an older version wrote it down");
    assert!(expects("SN1 NGUID 01").check_volume(&named("SN1")).is_err());
    let silent = VolumeInfo { geometry: None, ..named("SN1") };
    assert!(expects("SN1 NGUID 01").check_volume(&silent).is_ok(), "a standby path does not tell it");
    let stripe = named("65536+SN1 NGUID 01+SN2");
    assert!(matches_serial("65536+SN1+SN2", &stripe), "each leg as an older version wrote it down");
    for other in ["65536+SN2+SN1", "65536+SN1", "65536+SN1 NGUID 02+SN2", "4096+SN1+SN2"] {
        assert!(!matches_serial(other, &stripe), "{other}");
    }
}
