//! Operations longer than a path's limit, and those that end only when their outcome is certain.

use std::sync::Arc;
use std::time::Duration;

use buf::Payload;
use volume::{Durability, Failure, Fault, Geometry, Op, Span};

use super::script::{Scene, geometry, info, read, write};
use super::*;
use crate::path::{DownReason, IoError, PathEvent, VolumeInfo};

/// Paths that carry so many blocks at once.
fn scene(most: &[u32], settings: VolumeSettings) -> Scene {
    let mut scene = Scene::new(most.len(), settings);
    for (path, blocks) in most.iter().enumerate() {
        let geometry = Some(Geometry { max_io: blocks * 512, ..geometry() });
        scene.say(path, PathEvent::Up(Arc::new(VolumeInfo { geometry, ..info() })));
    }
    while scene.volume.poll_event().is_some() {}
    scene
}

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

/// The length of what a path was given first, and the byte that fills it if it is to be written.
fn first(scene: &Scene, path: usize) -> (usize, Option<u8>) {
    let script = scene.paths[path].0.borrow();
    match &script.given[0].2 {
        Payload::In(into) => (into.len(), None),
        Payload::Out(from) => {
            let mut bytes = vec![0; from.len()];
            from.copy_to(0, &mut bytes);
            (from.len(), bytes.first().copied())
        }
        Payload::None => (0, None),
    }
}

#[test]
fn what_a_path_cannot_carry_at_once_goes_in_pieces() {
    let mut scene = scene(&[8], VolumeSettings::default());
    assert_eq!(scene.volume.known_geometry().unwrap().max_io, 8 * 512);
    let lent = scene.pool.usage().lent;
    scene.submit(Op::Read(span(3, 20)));
    for (lba, blocks) in [(3, 8), (11, 8), (19, 4)] {
        assert_eq!((scene.given(0), scene.ends()), (1, vec![]));
        assert_eq!(first(&scene, 0).0, blocks as usize * 512);
        let mut script = scene.paths[0].0.borrow_mut();
        if let Payload::In(into) = &mut script.given[0].2 {
            let len = into.len();
            into.slices_mut(0..len).for_each(|slice| slice.fill(lba as u8));
        }
        drop(script);
        assert_eq!(scene.end_well(0), Op::Read(span(lba, blocks)));
    }
    let done = scene.ended.pop().expect("it has ended");
    let Payload::In(mut memory) = done.payload else { panic!("its memory came back") };
    assert_eq!((memory.pieces().len(), memory.len()), (1, 20 * 512), "in one piece, as it went");
    let bytes: Vec<u8> = memory.slices_mut(0..20 * 512).flat_map(|slice| slice.to_vec()).collect();
    assert!(bytes.chunks(512).enumerate().all(|(at, block)| {
        let wanted = [3, 11, 19][at / 8];
        block.iter().all(|byte| *byte == wanted)
    }));
    drop(memory);
    assert_eq!(scene.pool.usage().lent, lent);
}

#[test]
fn a_long_write_is_one_to_what_overlaps_it_and_to_a_flush() {
    let mut scene = scene(&[8, 4], robin());
    let split = scene.submit(Op::Write(span(0, 16), Durability::Stable));
    scene.submit(write(12));
    assert_eq!(scene.end_well(0), Op::Write(span(0, 8), Durability::Stable));
    // The other path carries less: it takes over where the first has stopped.
    assert_eq!(first(&scene, 1), (4 * 512, Some(split.0 as u8)));
    assert_eq!(
        scene.end(1, Err(IoError::NotDone(Duration::ZERO))),
        Op::Write(span(8, 4), Durability::Stable)
    );
    assert_eq!(scene.end_well(0), Op::Write(span(8, 8), Durability::Stable));
    assert_eq!(scene.ends(), [(1, true)]);
    assert_eq!(scene.given(0) + scene.given(1), 1, "now the other may go");
    for path in 0..2 {
        while scene.given(path) > 0 {
            scene.end_well(path);
        }
    }
    // Of the second write one half went by each path, or both by one.
    for path in 0..2 {
        while scene.given(path) > 0 {
            scene.end_well(path);
        }
    }
    assert_eq!(scene.ends(), [(2, true)]);
    assert_eq!(scene.volume.tasks.order.len(), 0);
}

#[test]
fn a_long_operation_says_where_it_failed_and_what_is_in_doubt() {
    let mut scene = scene(&[8], VolumeSettings::default());
    scene.submit(Op::Compare(span(0, 20)));
    scene.end_well(0);
    scene.end(0, Err(IoError::Failed(Failure::Failed(Fault::Miscompare(5)))));
    let done = scene.ended.pop().unwrap();
    assert_eq!(done.result, Err(Fault::Miscompare(8 * 512 + 5).into()));
    assert_eq!(done.payload.len(), 20 * 512);
    // A piece that may have been done holds back whatever overlaps any of it.
    scene.submit(Op::Write(span(0, 20), Durability::Cached));
    scene.end_well(0);
    scene.lose(0);
    scene.submit(write(0));
    scene.pass(Duration::from_secs(1));
    scene.say(
        0,
        PathEvent::Up(Arc::new(VolumeInfo {
            geometry: Some(Geometry { max_io: 8 * 512, ..geometry() }),
            ..info()
        })),
    );
    assert_eq!(scene.given(0), 0);
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.end_well(0), Op::Write(span(8, 8), Durability::Cached), "it goes on where it was");
    assert_eq!(scene.end_well(0), Op::Write(span(16, 4), Durability::Cached));
    assert_eq!(scene.end_well(0), write(0));
    assert_eq!(scene.ends(), [(2, true), (3, true)]);
}

#[test]
fn a_long_operation_that_is_cancelled_stops_between_two_pieces() {
    let mut scene = scene(&[8], VolumeSettings::default());
    let id = scene.submit(Op::Read(span(0, 20)));
    scene.with(|volume, _| volume::Backend::cancel(volume, id));
    scene.end_well(0);
    assert_eq!((scene.given(0), scene.ends()), (0, vec![(1, false)]));
}

/// Who tells others that a write failed must not do so while it may still land.
#[test]
fn where_fates_are_to_be_certain_a_write_in_doubt_ends_with_its_fence() {
    let settings = || VolumeSettings { queue_timeout: Duration::from_secs(5), certain: true, ..robin() };
    for fast_fail in [Duration::MAX, Duration::from_secs(1)] {
        let mut scene = Scene::up(1, VolumeSettings { fast_fail, ..settings() });
        scene.submit(write(0));
        scene.submit(read(64));
        scene.submit(write(0));
        scene.lose(0);
        scene.pass(Duration::from_secs(20));
        assert_eq!(scene.ends(), [(2, false), (3, false)], "what was not done fails in its time");
        scene.say(0, PathEvent::Fenced);
        scene.pass(Duration::ZERO);
        assert_eq!(scene.ends(), [(1, false)], "now it can land no more");
        assert_eq!((scene.volume.tasks.order.len(), scene.volume.tasks.in_doubt.len()), (0, 0));
    }
    // With a path it is done after all.
    let mut scene = Scene::up(2, settings());
    scene.submit(write(0));
    scene.lose(0);
    scene.pass(Duration::from_secs(20));
    assert_eq!(scene.ends(), []);
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.end_well(1), write(0));
    assert_eq!(scene.ends(), [(1, true)]);
    // A volume that is closed holds nothing.
    let mut scene = Scene::up(1, settings());
    scene.submit(write(0));
    scene.end(0, Err(IoError::InDoubt));
    scene.with(|volume, cx| volume.close(cx, Duration::ZERO));
    assert_eq!(scene.ends(), [(1, false)]);
    scene.say(0, PathEvent::Down(DownReason::Ended));
}
