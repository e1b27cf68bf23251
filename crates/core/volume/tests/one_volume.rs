//! The rules of `docs/one-volume.md` for what the two protocols do differently, one test each.

extern crate blockwire_volume as volume;

mod slow;

use std::sync::Arc;

use slow::daemon::{BLOCKS, Daemon, facts, register, reserve};
use slow::{BLOCK, geometry, initiator, requester};
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{
    AbortScope, Durability, Failure, Identity, NoticeCause, Op, OperatorNotice, PathAccess, Payload, PortId,
    Refusal, RequestId, Requester, ShardId, Span, Time, ViewUpdate, VolumeOwner, VolumeRequest,
};

fn as_host(who: &Requester, mode: RegisterMode, current: Option<u64>, new: u64, nqn: &str) -> VolumeRequest {
    let register = RegistrationRequest {
        mode,
        nqn: Some(nqn.into()),
        ..RegistrationRequest::new(current.map(Key), Key(new))
    };
    VolumeRequest::Reserve { who: who.clone(), action: Action::Register(register) }
}

fn add(who: &Requester, key: u64, nqn: &str) -> VolumeRequest {
    as_host(who, RegisterMode::Add, Some(0), key, nqn)
}

fn preempt(who: &Requester, key: u64, victim: u64, kind: ReservationType) -> VolumeRequest {
    let action = Action::Preempt { key: Some(Key(key)), victim: Key(victim), kind, abort: true };
    VolumeRequest::Reserve { who: who.clone(), action }
}

fn key_of(daemon: &Daemon, who: &Requester) -> Option<u64> {
    daemon.home.view().reservations.key_of(&who.identity).map(|key| key.0)
}

fn may_write(daemon: &mut Daemon, who: &Requester) -> bool {
    let payload = daemon.world.payload(&[1; BLOCK]);
    let done = daemon.run(0, who, Op::Write(Span { lba: 0, blocks: 1 }, Durability::Cached), payload);
    done.result.is_ok()
}

/// What a change tells, before any shard has it.
fn update(request: VolumeRequest) -> ViewUpdate {
    let mut home = VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 1, false, None).unwrap();
    home.handle_request(Time(0), ShardId(0), RequestId(1), request);
    if let Some(store) = home.poll_store_op() {
        home.handle_stored(Time(0), store.ticket, true);
    }
    home.poll_view_update().expect("a change")
}

fn told(update: &ViewUpdate, cause: NoticeCause) -> [bool; 2] {
    [initiator(1), requester(1)]
        .map(|who| update.notices.iter().any(|notice| notice.cause == cause && notice.is_for(&who.identity)))
}

#[test]
fn a_preempt_of_either_protocol_unseats_a_holder_of_the_other() {
    for (holder, fencer) in [(initiator(1), requester(2)), (requester(2), initiator(1))] {
        let mut daemon = Daemon::new(2);
        assert_eq!(daemon.asked(register(&holder, 1, false)), Ok(()));
        assert_eq!(daemon.asked(register(&fencer, 2, false)), Ok(()));
        assert_eq!(daemon.asked(reserve(&holder, 1, ReservationType::ExclusiveAccess)), Ok(()));
        assert!(may_write(&mut daemon, &holder) && !may_write(&mut daemon, &fencer));
        assert_eq!(daemon.asked(preempt(&fencer, 2, 1, ReservationType::ExclusiveAccess)), Ok(()));
        assert!(!may_write(&mut daemon, &holder) && may_write(&mut daemon, &fencer));
        assert_eq!(key_of(&daemon, &holder), None);
    }
}

#[test]
fn several_isids_of_one_machine_and_its_host_identifier_are_registrants_of_their_own() {
    let mut daemon = Daemon::new(2);
    let machine = [initiator(1), initiator(2), requester(3)];
    for who in &machine {
        assert_eq!(daemon.asked(register(who, 7, false)), Ok(()));
    }
    // Write Exclusive is for the one requester that holds, not for its machine.
    assert_eq!(daemon.asked(reserve(&machine[0], 7, ReservationType::WriteExclusive)), Ok(()));
    assert_eq!(machine.each_ref().map(|who| may_write(&mut daemon, who)), [true, false, false]);
    // One key is what joins them: one preempt removes all.
    assert_eq!(daemon.asked(register(&requester(9), 9, false)), Ok(()));
    assert_eq!(daemon.asked(preempt(&requester(9), 9, 7, ReservationType::WriteExclusive)), Ok(()));
    assert!(machine.iter().all(|who| key_of(&daemon, who).is_none()));
}

#[test]
fn a_host_is_one_registrant_on_all_ports() {
    let mut daemon = Daemon::new(1);
    assert_eq!(daemon.asked(add(&requester(1), 5, "nqn.2026-11.example:a")), Ok(()));
    assert_eq!(daemon.asked(reserve(&requester(1), 5, ReservationType::WriteExclusive)), Ok(()));
    let elsewhere = Requester { port: PortId(2), ..requester(1) };
    assert!(may_write(&mut daemon, &elsewhere));
}

/// SPEC_I_PT and ALL_TG_PT name initiator ports and target ports: a host is neither registered nor
/// removed by them.
#[test]
fn registering_for_others_is_for_initiator_ports() {
    let mut daemon = Daemon::new(1);
    let all = RegistrationRequest {
        also: vec![initiator(2).identity],
        ports: vec![PortId(1), PortId(2)],
        ..RegistrationRequest::new(Some(Key::NONE), Key(4))
    };
    let request = VolumeRequest::Reserve { who: initiator(1), action: Action::Register(all) };
    assert_eq!(daemon.asked(request), Ok(()));
    let registrants = daemon.home.view().reservations.registrants().to_vec();
    assert_eq!(registrants.len(), 4, "two initiator ports on two target ports");
    assert!(registrants.iter().all(|one| matches!(*one.identity, Identity::Initiator { .. })));
    assert_eq!(daemon.asked(reserve(&initiator(1), 4, ReservationType::WriteExclusiveRegistrants)), Ok(()));
    assert!(!may_write(&mut daemon, &requester(1)), "a host registers for itself");
}

#[test]
fn ignoring_the_existing_key_registers_who_is_not_registered() {
    let mut daemon = Daemon::new(1);
    let (who, nqn) = (requester(1), "nqn.2026-11.example:a");
    assert_eq!(
        daemon.asked(as_host(&who, RegisterMode::Replace, Some(1), 5, nqn)),
        Err(Refusal::NotRegistered)
    );
    assert_eq!(daemon.asked(as_host(&who, RegisterMode::Replace, None, 5, nqn)), Ok(()));
    assert_eq!(daemon.asked(as_host(&who, RegisterMode::Replace, None, 6, nqn)), Ok(()));
    assert_eq!(key_of(&daemon, &who), Some(6));
    assert_eq!(daemon.asked(as_host(&who, RegisterMode::Remove, None, 0, nqn)), Ok(()));
    assert_eq!(daemon.asked(as_host(&who, RegisterMode::Remove, None, 0, nqn)), Err(Refusal::NotRegistered));
}

#[test]
fn zero_is_neither_a_key_nor_a_host() {
    let mut daemon = Daemon::new(1);
    let nqn = "nqn.2026-11.example:a";
    let refused = Err(Refusal::InvalidAction);
    assert_eq!(daemon.asked(add(&requester(0), 5, nqn)), refused);
    assert_eq!(daemon.asked(add(&requester(1), 0, nqn)), refused);
    assert_eq!(daemon.asked(add(&requester(1), 5, "")), refused);
    assert_eq!(daemon.asked(add(&requester(1), 5, &"n".repeat(224))), refused);
    assert!(daemon.home.view().reservations.registrants().is_empty());
}

/// A registered Host Identifier belongs to the NQN that it registered under, over a restart too.
#[test]
fn a_registered_host_identifier_is_bound_to_its_nqn() {
    let mut daemon = Daemon::new(1);
    let (who, ours, theirs) = (requester(1), "nqn.2026-11.example:a", "nqn.2026-11.example:clone");
    assert_eq!(daemon.asked(add(&who, 5, ours)), Ok(()));
    assert_eq!(
        daemon.asked(as_host(&who, RegisterMode::Replace, Some(5), 6, theirs)),
        Err(Refusal::Conflict)
    );
    assert_eq!(key_of(&daemon, &who), Some(5));
    let mut keep = as_host(&who, RegisterMode::Replace, Some(5), 5, ours);
    if let VolumeRequest::Reserve { action: Action::Register(register), .. } = &mut keep {
        register.persist = Some(true);
    }
    assert_eq!(daemon.asked(keep), Ok(()));
    let record = daemon.record.clone().expect("a record");
    let home = VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 1, false, Some(&record)).unwrap();
    assert_eq!(home.view().reservations.host_nqn(&[1; 16]).map(|nqn| &**nqn), Some(ours));
    assert_eq!(home.view().reservations.host_nqn(&[2; 16]), None);
    assert_eq!(daemon.asked(as_host(&who, RegisterMode::Remove, None, 0, ours)), Ok(()));
    assert_eq!(daemon.asked(add(&who, 5, theirs)), Ok(()), "who is not registered is not bound");
}

/// A requester that may only read registers itself, and keeps nobody from the volume, over either protocol.
#[test]
fn who_may_only_read_registers_and_no_more() {
    for (reader, writer) in [(initiator(1), requester(2)), (requester(2), initiator(1))] {
        let reader = Requester { read_only: true, ..reader };
        let mut daemon = Daemon::new(2);
        let request = |action| VolumeRequest::Reserve { who: reader.clone(), action };
        let (key, kind) = (Some(Key(1)), ReservationType::ExclusiveAccessRegistrants);
        assert_eq!(daemon.asked(register(&writer, 2, true)), Ok(()));
        assert_eq!(daemon.asked(reserve(&writer, 2, kind)), Ok(()));
        assert_eq!(daemon.asked(register(&reader, 1, false)), Ok(()), "it needs that to read");
        assert!(daemon.home.view().reservations.persists(), "it says nothing for the others");
        let room = daemon.world.room(BLOCK);
        assert!(daemon.run(1, &reader, Op::Read(Span { lba: 0, blocks: 1 }), room).result.is_ok());
        let victim = Key(2);
        let also = RegistrationRequest {
            also: vec![initiator(7).identity],
            ..RegistrationRequest::new(None, Key(1))
        };
        for action in [
            Action::Reserve { key, kind },
            Action::Release { key, kind },
            Action::Clear { key },
            Action::Preempt { key, victim, kind, abort: false },
            Action::Preempt { key, victim, kind, abort: true },
            Action::Move {
                key: Key(1),
                new: Key(3),
                to: initiator(7).identity,
                unregister: false,
                persist: None,
            },
            Action::Register(also),
            Action::LegacyReserve,
        ] {
            assert_eq!(daemon.asked(request(action.clone())), Err(Refusal::ReadOnly), "{action:?}");
        }
        assert!(daemon.home.view().reservations.is_holder(&writer.identity));
        assert_eq!(daemon.asked(register(&reader, 0, false)), Ok(()), "and goes again");
        assert_eq!(key_of(&daemon, &reader), None);
        // A holder that may only read from now on gives up what it holds by unregistering.
        let holder = Requester { read_only: true, ..writer.clone() };
        assert_eq!(daemon.asked(register(&holder, 0, false)), Ok(()));
        assert!(daemon.home.view().reservations.held_reservation().is_none());
    }
}

#[test]
fn a_scsi_2_reserve_shuts_hosts_out_until_it_ends() {
    let mut daemon = Daemon::new(2);
    let legacy = |action| VolumeRequest::Reserve { who: initiator(1), action };
    assert_eq!(daemon.asked(legacy(Action::LegacyReserve)), Ok(()));
    assert!(may_write(&mut daemon, &initiator(1)) && !may_write(&mut daemon, &requester(1)));
    // Registrations and such a reservation never stand together: a host cannot register past it.
    assert_eq!(daemon.asked(add(&requester(1), 5, "nqn.2026-11.example:a")), Err(Refusal::Conflict));
    for end in
        [legacy(Action::LegacyRelease), VolumeRequest::Reset, VolumeRequest::NexusLost(initiator(1).identity)]
    {
        assert_eq!(daemon.asked(legacy(Action::LegacyReserve)), Ok(()));
        assert_eq!(daemon.asked(end), Ok(()));
        assert!(may_write(&mut daemon, &requester(1)));
    }
    // And where hosts are registered, RESERVE is what SPC-3 makes of it.
    assert_eq!(daemon.asked(add(&requester(1), 5, "nqn.2026-11.example:a")), Ok(()));
    assert_eq!(daemon.asked(legacy(Action::LegacyReserve)), Err(Refusal::Conflict));
}

/// One bit for all registrants: the last who registers sets it, and who changes it for others is logged.
#[test]
fn persistence_is_one_bit_and_its_change_is_logged() {
    let mut daemon = Daemon::new(1);
    let saved = |daemon: &Daemon| {
        let record = daemon.record.clone().expect("a record");
        let home = VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 1, false, Some(&record)).unwrap();
        home.view().reservations.registrants().len()
    };
    assert_eq!(daemon.asked(register(&requester(1), 5, true)), Ok(()));
    assert_eq!((saved(&daemon), daemon.remarks.len()), (1, 0), "nobody else is concerned");
    // A SCSI registration without APTPL takes the host's away too.
    assert_eq!(daemon.asked(register(&initiator(1), 6, false)), Ok(()));
    assert_eq!(saved(&daemon), 0);
    let by = initiator(1).identity;
    assert_eq!(daemon.remarks, [OperatorNotice::Persistence { by, persists: false, registrants: 2 }]);
    // CPTPL 0 changes nothing.
    assert_eq!(daemon.asked(add(&requester(2), 7, "nqn.2026-11.example:b")), Ok(()));
    assert!(!daemon.home.view().reservations.persists());
}

#[test]
fn forced_persistence_stays() {
    let home = VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 1, true, None).unwrap();
    let mut daemon = Daemon::of(home, 1);
    assert_eq!(daemon.asked(register(&initiator(1), 6, false)), Ok(()));
    assert!(daemon.home.view().reservations.persists() && daemon.remarks.is_empty());
    let record = daemon.record.expect("a record");
    let home = VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 1, true, Some(&record)).unwrap();
    assert_eq!(home.view().reservations.registrants().len(), 1);
}

#[test]
fn a_logical_unit_reset_is_for_initiators_only_and_spares_reservations() {
    let reset = update(VolumeRequest::Reset);
    assert_eq!(reset.abort, AbortScope::Initiators);
    assert_eq!(told(&reset, NoticeCause::Reset), [true, false]);
    assert!(reset.aborts_tasks_of(&initiator(1).identity) && !reset.aborts_tasks_of(&requester(1).identity));
    let clear = update(VolumeRequest::ClearTasks { by: initiator(2).identity });
    assert_eq!(
        (clear.abort.clone(), told(&clear, NoticeCause::TasksCleared)),
        (AbortScope::Initiators, [true, false])
    );

    let mut daemon = Daemon::new(2);
    assert_eq!(daemon.asked(register(&requester(1), 5, false)), Ok(()));
    assert_eq!(daemon.asked(reserve(&requester(1), 5, ReservationType::WriteExclusive)), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::Reset), Ok(()));
    assert!(daemon.home.view().reservations.is_holder(&requester(1).identity));
}

#[test]
fn both_protocols_hear_of_size_protection_paths_and_removal() {
    let by = Arc::new(Identity::Host([7; 16]));
    let cases = [
        (VolumeRequest::Resize(geometry(2 * BLOCKS, 512)), NoticeCause::CapacityChanged),
        (VolumeRequest::Resize(geometry(BLOCKS / 2, 512)), NoticeCause::CapacityChanged),
        (VolumeRequest::WriteProtect(true), NoticeCause::WriteProtectChanged),
        (VolumeRequest::BackingReadOnly(true), NoticeCause::WriteProtectChanged),
        (VolumeRequest::WriteProtectByHost { by, on: true }, NoticeCause::WriteProtectChanged),
        (
            VolumeRequest::SetAccess { ports: vec![PortId(1)], to: PathAccess::Inaccessible, by: None },
            NoticeCause::AccessChanged,
        ),
        (VolumeRequest::Remove, NoticeCause::InventoryChanged),
    ];
    for (request, cause) in cases {
        let shown = format!("{request:?}");
        assert_eq!(told(&update(request), cause), [true, true], "{shown}");
    }
}

/// A daemon that opens the volume again with what was made durable.
fn restarted(daemon: &Daemon) -> Daemon {
    let record = daemon.record.clone().expect("a record");
    Daemon::of(VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 2, false, Some(&record)).unwrap(), 2)
}

#[test]
fn path_states_and_protection_by_the_operator_outlast_the_daemon() {
    let mut daemon = Daemon::new(2);
    for (port, to) in
        [(1, PathAccess::PersistentLoss), (2, PathAccess::NonOptimized), (3, PathAccess::Inaccessible)]
    {
        let request = VolumeRequest::SetAccess { ports: vec![PortId(port)], to, by: None };
        assert_eq!(daemon.asked(request), Ok(()));
    }
    let open = VolumeRequest::SetAccess { ports: vec![PortId(3)], to: PathAccess::Optimized, by: None };
    assert_eq!(daemon.asked(open), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::WriteProtect(true)), Ok(()));
    let mut daemon = restarted(&daemon);
    let states = [1, 2, 3].map(|port| daemon.home.view().path_access(PortId(port)));
    assert_eq!(states, [PathAccess::PersistentLoss, PathAccess::NonOptimized, PathAccess::Optimized]);
    let elsewhere = [initiator(1), requester(1)].map(|who| Requester { port: PortId(2), ..who });
    assert!(elsewhere.iter().all(|who| !may_write(&mut daemon, who)));
    assert_eq!(daemon.asked(VolumeRequest::WriteProtect(false)), Ok(()));
    let mut daemon = restarted(&daemon);
    assert!(elsewhere.iter().all(|who| may_write(&mut daemon, who)));
}

/// Where the volume is elsewhere, that is asked there again at each start; the operator's word is another.
#[test]
fn what_the_backing_says_of_writes_is_not_kept() {
    let mut daemon = Daemon::new(2);
    assert_eq!(daemon.asked(VolumeRequest::BackingReadOnly(true)), Ok(()));
    assert!(!may_write(&mut daemon, &requester(1)) && !may_write(&mut daemon, &initiator(1)));
    assert_eq!(daemon.record, None);
    assert_eq!(daemon.asked(VolumeRequest::WriteProtect(true)), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::BackingReadOnly(false)), Ok(()));
    assert!(!may_write(&mut daemon, &requester(1)), "the operator still forbids it");
    assert_eq!(daemon.asked(VolumeRequest::BackingReadOnly(true)), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::WriteProtect(false)), Ok(()));
    assert!(!may_write(&mut daemon, &requester(1)));
    let mut daemon = restarted(&daemon);
    assert!(may_write(&mut daemon, &requester(1)));
}

/// What cannot be made durable does not become true.
#[test]
fn a_path_state_that_cannot_be_kept_is_refused() {
    let mut home = VolumeOwner::restore(facts(), geometry(BLOCKS, 512), 1, false, None).unwrap();
    for (id, request) in [
        VolumeRequest::SetAccess { ports: vec![PortId(1)], to: PathAccess::Inaccessible, by: None },
        VolumeRequest::WriteProtect(true),
    ]
    .into_iter()
    .enumerate()
    {
        home.handle_request(Time(0), ShardId(0), RequestId(id as u64), request);
        let store = home.poll_store_op().expect("it is made durable first");
        assert_eq!(home.poll_view_update(), None);
        home.handle_stored(Time(0), store.ticket, false);
        assert_eq!(home.poll_answer().map(|answer| answer.result), Some(Err(Refusal::NotDurable)));
        assert_eq!(home.poll_view_update(), None);
        assert!(home.poll_store_op().is_some(), "what stands is written over it");
    }
    assert_eq!(home.view().path_access(PortId(1)), PathAccess::Optimized);
    assert!(!home.view().write_protected);
}

/// One state, which holds as long as the standard of who set it says.
#[test]
fn protection_by_a_host_lasts_as_its_protocol_says() {
    let protect = |who: &Requester, on| VolumeRequest::WriteProtectByHost { by: who.identity.clone(), on };
    let (scsi, nvme) = (initiator(1), requester(1));
    let mut daemon = Daemon::new(2);
    // SWP of the control mode page ends with a reset of the logical unit.
    assert_eq!(daemon.asked(protect(&scsi, true)), Ok(()));
    assert!(!may_write(&mut daemon, &scsi) && !may_write(&mut daemon, &nvme));
    assert_eq!(daemon.record, None, "and is not kept");
    assert_eq!(daemon.asked(VolumeRequest::Reset), Ok(()));
    assert!(may_write(&mut daemon, &nvme));
    // Feature 84h stays, whatever SCSI resets, and whether an initiator has set SWP as well.
    for (first, second) in [(&scsi, &nvme), (&nvme, &scsi)] {
        assert_eq!(daemon.asked(protect(first, true)), Ok(()));
        assert_eq!(daemon.asked(protect(second, true)), Ok(()));
        assert_eq!(daemon.asked(VolumeRequest::Reset), Ok(()));
        let mut daemon = restarted(&daemon);
        assert!(!may_write(&mut daemon, &scsi) && !may_write(&mut daemon, &nvme));
        assert_eq!(daemon.asked(protect(&scsi, false)), Ok(()), "each takes it back for both");
        assert!(may_write(&mut daemon, &scsi) && may_write(&mut daemon, &nvme));
        let mut daemon = restarted(&daemon);
        assert!(may_write(&mut daemon, &nvme));
    }
}

/// Path states, protection, a stop and a missing medium are the volume's: both protocols see them.
#[test]
fn both_protocols_meet_the_same_state() {
    let states = [
        (VolumeRequest::WriteProtect(true), Refusal::ReadOnly),
        (
            VolumeRequest::SetAccess { ports: vec![PortId(1)], to: PathAccess::PersistentLoss, by: None },
            Refusal::Inaccessible(PathAccess::PersistentLoss),
        ),
        (VolumeRequest::Stop, Refusal::NotReady(volume::UnservableReason::Stopped)),
        (VolumeRequest::Eject { by: None }, Refusal::NotReady(volume::UnservableReason::NoMedium)),
        (
            VolumeRequest::SanitizeStart { who: requester(1) },
            Refusal::NotReady(volume::UnservableReason::Sanitizing(0)),
        ),
        (VolumeRequest::Remove, Refusal::NotReady(volume::UnservableReason::Removed)),
    ];
    for (request, refusal) in states {
        let mut daemon = Daemon::new(2);
        assert_eq!(daemon.asked(request), Ok(()));
        for (shard, who) in [initiator(1), requester(1)].into_iter().enumerate() {
            let op = Op::WriteZeroes { span: Span { lba: 0, blocks: 1 }, unmap: false };
            let done = daemon.run(shard, &who, op, Payload::None);
            assert_eq!(done.result, Err(Failure::Refused(refusal)));
        }
    }
}

#[test]
fn one_generation_counts_for_both() {
    let mut daemon = Daemon::new(1);
    let generation = |daemon: &Daemon| daemon.home.view().reservations.generation();
    for (who, count) in [(initiator(1), 1), (requester(1), 2), (initiator(2), 3)] {
        assert_eq!(daemon.asked(register(&who, 5, false)), Ok(()));
        assert_eq!(generation(&daemon), count);
    }
    assert_eq!(daemon.asked(reserve(&requester(1), 5, ReservationType::WriteExclusiveAll)), Ok(()));
    assert_eq!(generation(&daemon), 3, "neither standard counts reservations");
}
