//! Reservations in the volume's terms.

use blockwire_multipath::nvme::Settings;
use blockwire_multipath::{IoError, PathEvent, ReservationOp};
use nvme::HostId;
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{Durability, Failure, Identity, Op, Refusal, Span};

use crate::{settings, up};

fn register(mode: RegisterMode, current: Option<Key>, new: Key) -> ReservationOp {
    let (also, ports) = (vec![], vec![]);
    ReservationOp::Change(Action::Register(RegistrationRequest {
        mode,
        also,
        ports,
        ..RegistrationRequest::new(current, new)
    }))
}

#[test]
fn a_reservation_is_taken_reported_released_and_another_host_is_kept_out() {
    let mut world = up(settings());
    let key = Some(Key(0xa1));
    world.request_reservation(register(RegisterMode::Set, Some(Key::NONE), Key(0xa1))).unwrap();
    world
        .request_reservation(ReservationOp::Change(Action::Reserve {
            key,
            kind: ReservationType::WriteExclusive,
        }))
        .unwrap();
    let report = world.request_reservation(ReservationOp::Report).unwrap().unwrap();
    assert_eq!(report.held, Some(ReservationType::WriteExclusive));
    assert_eq!(report.registrations.len(), 1);
    let ours = &report.registrations[0];
    assert!(ours.ours && ours.holds && ours.key == Key(0xa1));
    assert_eq!(ours.identity, Identity::Host([1; 16]));
    let wrong = world.request_reservation(ReservationOp::Change(Action::Clear { key: Some(Key(7)) }));
    assert!(matches!(wrong, Err(IoError::Failed(Failure::Refused(Refusal::Conflict)))), "{wrong:?}");
    world
        .request_reservation(ReservationOp::Change(Action::Release {
            key,
            kind: ReservationType::WriteExclusive,
        }))
        .unwrap();
    assert_eq!(world.request_reservation(ReservationOp::Report).unwrap().unwrap().held, None);
    world.request_reservation(register(RegisterMode::Set, key, Key::NONE)).unwrap();
    assert!(world.request_reservation(ReservationOp::Report).unwrap().unwrap().registrations.is_empty());
    let never = world.request_reservation(ReservationOp::Change(Action::LegacyReserve));
    assert!(matches!(never, Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)))), "{never:?}");
}

#[test]
fn a_host_that_lost_its_reservation_is_told_and_its_writes_conflict() {
    let mut world = up(settings());
    world.request_reservation(register(RegisterMode::Set, Some(Key::NONE), Key(1))).unwrap();
    world
        .request_reservation(ReservationOp::Change(Action::Reserve {
            key: Some(Key(1)),
            kind: ReservationType::WriteExclusive,
        }))
        .unwrap();
    // Another host, by another path to the same target.
    let other = Settings { host_id: HostId::new([2; 16]).unwrap(), ..settings() };
    let first = std::mem::replace(&mut world.path, blockwire_multipath::nvme::NvmePath::new(other));
    drop(first);
    world.connect().unwrap();
    let out = world.out(&[0; 512]);
    let (how, _) = world.run(Op::Write(Span { lba: 0, blocks: 1 }, Durability::Cached), out);
    assert!(matches!(how, Err(IoError::Failed(Failure::Refused(Refusal::Conflict)))), "{how:?}");
    world.request_reservation(register(RegisterMode::Set, Some(Key::NONE), Key(2))).unwrap();
    let preempt = Action::Preempt {
        key: Some(Key(2)),
        victim: Key(1),
        kind: ReservationType::WriteExclusive,
        abort: true,
    };
    world.request_reservation(ReservationOp::Change(preempt)).unwrap();
    let out = world.out(&[0; 512]);
    assert!(world.run(Op::Write(Span { lba: 0, blocks: 1 }, Durability::Cached), out).0.is_ok());
    assert!(!world.events.iter().any(|event| matches!(event, PathEvent::ReservationsChanged)));
}
