//! Raw commands over several paths: each goes to one, once.

use std::sync::Arc;

use buf::{MemoryClass, Payload};

use super::script::{Scene, info, write};
use super::*;
use crate::{RAW_COMMANDS_MAX, RawAnswer, RawCommand, RawCompletion, RawError};

const GOOD: RawAnswer =
    RawAnswer::Scsi { status: 0, sense: vec![], transferred: 0, underflow: 0, overflow: 0 };

/// A vendor's command, which may write.
fn vendor() -> RawCommand {
    RawCommand::scsi(&[0xc1, 0, 0, 0, 0, 0], Payload::None).map_err(|(why, _)| why).unwrap()
}

fn up(paths: usize, settings: VolumeSettings) -> Scene {
    let scene = Scene::up(paths, settings);
    scene.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    scene
}

fn begin(scene: &mut Scene, id: u64, command: RawCommand) {
    assert!(scene.with(|volume, cx| volume.submit_raw(cx, IoId(id), command)).is_ok());
}

/// How many raw commands each path was given.
fn given(scene: &Scene) -> Vec<usize> {
    scene.paths.iter().map(|path| path.0.borrow().raw.len()).collect()
}

fn end(scene: &mut Scene, path: usize, how: Result<RawAnswer, RawError>) {
    let (id, command) = scene.paths[path].0.borrow_mut().raw.pop_front().expect("it was given one");
    scene.say(path, PathEvent::RawDone(RawCompletion { id, how, payload: command.payload }));
}

fn done(scene: &mut Scene) -> Option<(u64, Result<RawAnswer, RawError>)> {
    scene.volume.poll_raw_done().map(|done| (done.id.0, done.how))
}

#[test]
fn the_path_with_the_least_in_work_takes_it_and_its_answer_is_final() {
    let mut scene = up(2, VolumeSettings::default());
    scene.submit(write(0));
    let busy = usize::from(scene.given(1) == 1);
    begin(&mut scene, 5, vendor());
    assert_eq!(given(&scene)[1 - busy], 1);
    // A lost command is not sent again by the other path.
    end(&mut scene, 1 - busy, Err(RawError::InDoubt));
    assert_eq!(done(&mut scene), Some((5, Err(RawError::InDoubt))));
    assert_eq!(given(&scene), [0, 0]);
    // What it left behind is ended before anything else goes by its path.
    assert_eq!(scene.count(1 - busy, |script| script.fences), 1);
    scene.pass(SECOND);
    begin(&mut scene, 6, vendor());
    assert_eq!(given(&scene)[busy], 1);
    scene.say(1 - busy, PathEvent::Fenced);
    begin(&mut scene, 7, vendor());
    assert_eq!(given(&scene), [1, 1]);
}

#[test]
fn a_flush_goes_by_the_path_of_a_command_that_may_have_written() {
    let mut scene = up(2, VolumeSettings::default());
    let inquiry = RawCommand::scsi(&[0x12, 0, 0, 0, 0, 0], Payload::None).map_err(|(why, _)| why).unwrap();
    for (command, flushes) in [(inquiry, 0), (vendor(), 1)] {
        // Path 0 is the busier.
        begin(&mut scene, 1, command);
        let path = usize::from(given(&scene)[1] == 1);
        end(&mut scene, path, Ok(GOOD));
        scene.submit(Op::Flush);
        let (here, there) = (scene.given(path), scene.given(1 - path));
        assert_eq!(here + there, 1);
        if flushes == 1 {
            assert_eq!(here, 1);
        }
        let by = if here == 1 { path } else { 1 - path };
        scene.end_well(by);
    }
}

#[test]
fn it_waits_for_a_path_and_not_for_ever() {
    let mut scene = up(1, VolumeSettings { queue_timeout: 5 * SECOND, ..VolumeSettings::default() });
    scene.paths[0].0.borrow_mut().raw_refused = true;
    begin(&mut scene, 1, vendor());
    scene.pass(SECOND);
    assert_eq!((given(&scene), done(&mut scene)), (vec![0], None));
    scene.paths[0].0.borrow_mut().raw_refused = false;
    scene.pass(SECOND);
    assert_eq!(given(&scene), [1]);
    // What a path has is the path's to end, however long that takes.
    scene.pass(60 * SECOND);
    assert_eq!(done(&mut scene), None);
    end(&mut scene, 0, Ok(GOOD));
    assert_eq!(done(&mut scene), Some((1, Ok(GOOD))));
    scene.lose(0);
    begin(&mut scene, 2, vendor());
    scene.pass(6 * SECOND);
    assert_eq!(done(&mut scene), Some((2, Err(RawError::NotSent))));
    // A close ends what waits.
    begin(&mut scene, 3, vendor());
    scene.with(|volume, cx| volume.close(cx, SECOND));
    assert_eq!(done(&mut scene), Some((3, Err(RawError::Aborted))));
}

#[test]
fn one_that_tells_of_paths_goes_by_a_path_that_does_not_serve() {
    let mut scene = up(2, VolumeSettings::default());
    for path in [0, 1] {
        let inaccessible = VolumeInfo { access: PathAccess::Inaccessible, ..info() };
        scene.say(path, PathEvent::Changed(Arc::new(inaccessible)));
    }
    begin(&mut scene, 1, vendor());
    assert_eq!(given(&scene).iter().sum::<usize>(), 1);
}

#[test]
fn what_must_not_be_sent_is_not() {
    let pool = buf::Pool::new(1 << 20);
    let mut scene = up(1, VolumeSettings { read_only: true, ..VolumeSettings::default() });
    begin(&mut scene, 1, vendor());
    assert_eq!(done(&mut scene), Some((1, Err(RawError::ReadOnly))));
    begin(&mut scene, 2, RawCommand::scsi(&[0; 6], Payload::None).map_err(|(why, _)| why).unwrap());
    assert_eq!(given(&scene), [1], "TEST UNIT READY changes nothing");
    // The wrong protocol; memory comes back with nothing in it.
    let room = Payload::In(pool.take_sg(MemoryClass::Wire, 4096).unwrap());
    let identify = crate::NvmeCommand { opcode: 6, ..crate::NvmeCommand::default() };
    let identify = RawCommand::nvme_admin(identify, room).map_err(|(why, _)| why).unwrap();
    begin(&mut scene, 3, identify);
    let refused = scene.volume.poll_raw_done().unwrap();
    assert_eq!((refused.how, refused.payload.len()), (Err(RawError::WrongProtocol), 0));
    // Registrations that are kept on all paths are not changed behind that.
    let mut scene = up(1, VolumeSettings::default());
    let reserve = |pool: &buf::Pool| {
        let list = pool.take_sg(MemoryClass::Wire, 24).unwrap().freeze();
        let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        RawCommand::scsi(&cdb, Payload::Out(list)).map_err(|(why, _)| why).unwrap()
    };
    begin(&mut scene, 4, reserve(&pool));
    assert_eq!(given(&scene), [1]);
    let register = Action::Register(RegistrationRequest::new(Some(Key(0)), Key(7)));
    let register = ReservationOp::Change(register);
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register)));
    scene.replies(0, Ok(None));
    begin(&mut scene, 5, reserve(&pool));
    assert_eq!(done(&mut scene), Some((5, Err(RawError::ReservationsKept))));
}

#[test]
fn there_is_a_bound() {
    let mut scene = up(1, VolumeSettings::default());
    scene.paths[0].0.borrow_mut().raw_refused = true;
    for id in 0..RAW_COMMANDS_MAX as u64 {
        begin(&mut scene, id, vendor());
    }
    assert!(scene.with(|volume, cx| volume.submit_raw(cx, IoId(99), vendor())).is_err());
    scene.with(|volume, cx| volume.cancel_raw(cx, IoId(3)));
    assert_eq!(done(&mut scene), Some((3, Err(RawError::Aborted))));
    begin(&mut scene, 99, vendor());
    // One that a path has is cancelled there.
    scene.paths[0].0.borrow_mut().raw_refused = false;
    scene.pass(SECOND);
    scene.with(|volume, cx| volume.cancel_raw(cx, IoId(0)));
    assert_eq!(scene.paths[0].0.borrow().cancels.len(), 1);
}
