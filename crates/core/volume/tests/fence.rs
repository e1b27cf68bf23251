//! Many shards, a home core, identities of both protocols, and messages that arrive when the schedule
//! says: after a preempt is answered, nothing that the preempted wrote before lands.

extern crate blockwire_volume as volume;

mod slow;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use slow::daemon::{Daemon, facts, home, register, reserve};
use slow::{geometry, initiator, requester};
use volume::reservation::{Action, Key, ReservationType};
use volume::{
    Ack, Failure, Op, OperatorNotice, PathAccess, Payload, PortId, REQUESTS_MAX, Refusal, RequestId,
    Requester, ShardId, StoreOp, Time, UnservableReason, VolumeOwner, VolumeRequest,
};

/// The key that all victims share: two initiator ports of one machine, and an NVMe host.
const THEIRS: u64 = 11;
const OURS: u64 = 22;
/// The bytes that each writes.
const VICTIMS: [u8; 3] = [1, 2, 3];
const FENCER: u8 = 9;

fn victim(fill: u8) -> Requester {
    if fill == 3 { requester(fill) } else { initiator(fill) }
}

fn fencer(scsi: bool) -> Requester {
    if scsi { initiator(FENCER) } else { requester(FENCER) }
}

/// The victims are registered, and one of them holds the volume.
fn held(shards: u16, kind: ReservationType, holder: u8, scsi: bool) -> Daemon {
    let mut daemon = Daemon::new(shards);
    for fill in VICTIMS {
        assert_eq!(daemon.asked(register(&victim(fill), THEIRS, false)), Ok(()));
    }
    assert_eq!(daemon.asked(register(&fencer(scsi), OURS, false)), Ok(()));
    assert_eq!(daemon.asked(reserve(&victim(holder), THEIRS, kind)), Ok(()));
    daemon
}

fn preempt(daemon: &mut Daemon, scsi: bool, kind: ReservationType, abort: bool) -> u64 {
    let action = Action::Preempt { key: Some(Key(OURS)), victim: Key(THEIRS), kind, abort };
    daemon.request(VolumeRequest::Reserve { who: fencer(scsi), action })
}

fn landed(daemon: &Daemon) -> usize {
    VICTIMS.iter().map(|fill| daemon.landed_of(*fill)).sum()
}

fn conflicts(daemon: &Daemon) -> usize {
    let refused = Err(Failure::Refused(Refusal::Conflict));
    daemon.done.iter().filter(|done| done.result == refused).count()
}

#[derive(Clone, Debug)]
enum Step {
    Write { shard: usize, fill: u8, lba: u64, exclusive: bool },
    Land(usize),
    Deliver(usize),
    Resume(usize),
    Acknowledge(usize),
    Later,
}

fn step(shards: usize) -> impl Strategy<Value = Step> {
    let writers = proptest::sample::select(VICTIMS.to_vec());
    prop_oneof![
        4 => (0..shards, writers, 0..4u64, any::<bool>())
            .prop_map(|(shard, fill, lba, exclusive)| Step::Write { shard, fill, lba, exclusive }),
        4 => any::<usize>().prop_map(Step::Land),
        2 => (0..shards).prop_map(Step::Deliver),
        4 => (0..shards).prop_map(Step::Resume),
        2 => (0..shards).prop_map(Step::Acknowledge),
        1 => Just(Step::Later),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    shards: usize,
    kind: ReservationType,
    then: ReservationType,
    holder: u8,
    scsi: bool,
    abort: bool,
    before: Vec<Step>,
    after: Vec<Step>,
}

fn case() -> impl Strategy<Value = Case> {
    let single = || {
        proptest::sample::select(vec![
            ReservationType::WriteExclusive,
            ReservationType::ExclusiveAccess,
            ReservationType::WriteExclusiveRegistrants,
            ReservationType::ExclusiveAccessRegistrants,
        ])
    };
    let holder = proptest::sample::select(VICTIMS.to_vec());
    (1..7usize, single(), single(), holder, any::<bool>(), any::<bool>()).prop_flat_map(
        |(shards, kind, then, holder, scsi, abort)| {
            let steps = |max| proptest::collection::vec(step(shards), 0..max);
            (steps(20 * shards), steps(40 * shards)).prop_map(move |(before, after)| Case {
                shards,
                kind,
                then,
                holder,
                scsi,
                abort,
                before,
                after,
            })
        },
    )
}

fn take(daemon: &mut Daemon, step: &Step) {
    match *step {
        Step::Write { shard, fill, lba, exclusive } => {
            daemon.write(shard, &victim(fill), fill, lba, exclusive);
        }
        Step::Land(pick) => daemon.land(pick),
        Step::Deliver(shard) => daemon.deliver(shard),
        Step::Resume(shard) => daemon.resume(shard),
        Step::Acknowledge(shard) => daemon.acknowledge(shard),
        Step::Later => {
            daemon.world.now = daemon.world.now + Duration::from_secs(7);
            daemon.home.handle_timeout(daemon.world.now);
            daemon.drain_home();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn after_a_preempt_is_answered_no_old_write_lands(case in case()) {
        let mut daemon = held(case.shards as u16, case.kind, case.holder, case.scsi);
        case.before.iter().for_each(|step| take(&mut daemon, step));
        let request = preempt(&mut daemon, case.scsi, case.then, case.abort);
        let mut fenced = None;
        for step in &case.after {
            match (daemon.answer_to(request), fenced) {
                (Some(Ok(())), None) => fenced = Some(landed(&daemon)),
                (_, Some(count)) => prop_assert_eq!(landed(&daemon), count, "a late write landed"),
                _ => {}
            }
            take(&mut daemon, step);
        }
        daemon.settle();
        let answer = daemon.answer_to(request);
        prop_assert!(matches!(answer, Some(Ok(()) | Err(Refusal::NotFenced))), "{:?}", answer);
        let count = landed(&daemon);
        prop_assert!(fenced.is_none_or(|fenced| fenced == count), "a late write landed");
        let refused = conflicts(&daemon);
        for (at, fill) in VICTIMS.into_iter().enumerate() {
            daemon.write(at % case.shards, &victim(fill), fill, 0, false);
        }
        daemon.write(0, &fencer(case.scsi), FENCER, 0, false);
        daemon.settle();
        prop_assert_eq!(conflicts(&daemon), refused + VICTIMS.len());
        prop_assert_eq!(landed(&daemon), count);
        prop_assert!(daemon.landed_of(FENCER) > 0, "the volume is open again");
        prop_assert!(daemon.home.is_idle());
    }
}

#[test]
fn a_fence_that_cannot_be_kept_closes_the_volume() {
    let mut daemon = held(2, ReservationType::WriteExclusive, 3, true);
    daemon.write(1, &victim(3), 3, 0, false);
    let request = preempt(&mut daemon, true, ReservationType::WriteExclusive, true);
    let stuck = |daemon: &mut Daemon| {
        for shard in [0, 1, 0, 1] {
            daemon.deliver(shard);
            daemon.resume(shard);
            daemon.acknowledge(shard);
        }
    };
    stuck(&mut daemon);
    for _ in 0..2 {
        assert_eq!(daemon.answer_to(request), None);
        daemon.world.now = daemon.home.poll_timeout().expect("a fence has a deadline");
        daemon.home.handle_timeout(daemon.world.now);
        daemon.drain_home();
        stuck(&mut daemon);
        assert_eq!(daemon.home.view().path_access(PortId(1)), PathAccess::Inaccessible);
        assert_eq!(daemon.world.gates[0].view().path_access(PortId(1)), PathAccess::Inaccessible);
    }
    assert_eq!(daemon.answer_to(request), Some(Err(Refusal::NotFenced)));
    // The change stands; a repeated ask must wait for the stuck write too, though it changes nothing.
    let again = daemon.request(reserve(&fencer(true), OURS, ReservationType::WriteExclusive));
    stuck(&mut daemon);
    assert_eq!(daemon.answer_to(again), None);
    daemon.settle();
    assert_eq!(daemon.answer_to(again), Some(Ok(())));
    assert_eq!(daemon.home.view().path_access(PortId(1)), PathAccess::Optimized);
    assert!(daemon.home.is_idle());
    assert_eq!(daemon.remarks, [OperatorNotice::Closed, OperatorNotice::Opened]);
}

#[test]
fn a_flush_holds_no_fence_up() {
    let mut daemon = held(2, ReservationType::WriteExclusive, 3, true);
    let flush = daemon.submit(1, &victim(3), Op::Flush, Payload::None);
    let request = preempt(&mut daemon, true, ReservationType::WriteExclusive, true);
    for shard in [0, 1, 0, 1] {
        daemon.deliver(shard);
        daemon.resume(shard);
        daemon.acknowledge(shard);
    }
    assert_eq!(daemon.answer_to(request), Some(Ok(())), "the disk may take minutes over it");
    assert!(daemon.done.is_empty());
    daemon.settle();
    assert_eq!(daemon.done[0].id.0, flush);
}

#[test]
fn reservations_that_persist_are_durable_before_anyone_adopts_them() {
    let (mut home, now) = (home(2), Time(0));
    home.handle_request(now, ShardId(0), RequestId(1), register(&requester(1), 5, true));
    let store = home.poll_store_op().expect("a store");
    assert!(home.poll_view_update().is_none() && home.poll_answer().is_none());
    assert_eq!(store.name, "03030303-0303-0303-0303-030303030303.reservations");
    home.handle_stored(now, store.ticket, false);
    let answer = home.poll_answer().expect("an answer");
    assert_eq!(answer.result, Err(Refusal::NotDurable));
    assert!(home.view().reservations.registrants().is_empty());
    let amended = home.poll_store_op().expect("what stands, over what may have been written");
    assert!(kept(&amended).view().reservations.registrants().is_empty());

    // Which contents the disk has now is not known: even a change of nothing durable writes again.
    home.handle_request(now, ShardId(0), RequestId(2), register(&requester(1), 5, false));
    let store = home.poll_store_op().expect("a store that puts things right");
    home.handle_stored(now, store.ticket, true);
    assert!(home.poll_view_update().is_some());
    for shard in 0..2 {
        let ack = Ack { from: ShardId(shard), change: volume::ChangeId(1) };
        assert!(home.poll_answer().is_none());
        home.handle_ack(now, ack);
    }
    assert_eq!(home.poll_answer().map(|answer| answer.result), Some(Ok(())));

    home.handle_request(now, ShardId(0), RequestId(3), register(&requester(1), 6, true));
    let store = home.poll_store_op().expect("a store");
    let again = VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&store.bytes)).unwrap();
    assert_eq!(again.view().reservations.key_of(&requester(1).identity), Some(Key(6)));
    let mut damaged = store.bytes.clone();
    damaged[30] ^= 1;
    assert!(VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&damaged)).is_err());
    assert!(VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&[])).is_err());
}

fn kept(store: &StoreOp) -> VolumeOwner {
    VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&store.bytes)).unwrap()
}

/// A change that was refused as not durable is in no record for longer than the disk refuses to write: what stands
/// is written behind it, until that is done.
#[test]
fn what_was_refused_as_not_durable_does_not_come_back() {
    let (mut home, mut now) = (home(1), Time(0));
    home.handle_request(now, ShardId(0), RequestId(1), register(&requester(1), 5, true));
    let store = home.poll_store_op().expect("a store");
    assert_eq!(kept(&store).view().reservations.registrants().len(), 1);
    home.handle_stored(now, store.ticket, false);
    assert_eq!(home.poll_answer().map(|answer| answer.result), Some(Err(Refusal::NotDurable)));
    for _ in 0..3 {
        let over = home.poll_store_op().expect("what stands");
        assert!(kept(&over).view().reservations.registrants().is_empty());
        assert!(!home.is_idle());
        home.handle_stored(now, over.ticket, false);
        assert!(home.poll_store_op().is_none(), "not in a loop");
        now = home.poll_timeout().expect("it is tried again");
        home.handle_timeout(now);
    }
    let over = home.poll_store_op().expect("what stands");
    home.handle_stored(now, over.ticket, true);
    assert!(home.is_idle() && home.poll_timeout().is_none());
    // Known again: what changes nothing durable is not written.
    home.handle_request(now, ShardId(0), RequestId(2), register(&requester(1), 5, false));
    assert!(home.poll_store_op().is_none() && home.poll_view_update().is_some());
}

/// The ask may be lost on its way, and so may the answer: a restart would bring back what was refused.
#[test]
fn a_store_of_what_stands_is_not_forgotten_when_nothing_is_heard_of_it() {
    let (mut home, mut now) = (home(1), Time(0));
    home.handle_request(now, ShardId(0), RequestId(1), register(&requester(1), 5, true));
    let store = home.poll_store_op().expect("a store");
    home.handle_stored(now, store.ticket, false);
    let first = home.poll_store_op().expect("what stands");
    for _ in 0..3 {
        now = home.poll_timeout().expect("it is asked for again");
        home.handle_timeout(now);
        assert_eq!(home.poll_store_op().as_ref(), Some(&first));
        assert!(home.poll_store_op().is_none() && !home.is_idle());
    }
    // A disk that takes longer than the pause is believed all the same.
    home.handle_stored(now, first.ticket, true);
    assert!(home.is_idle() && home.poll_timeout().is_none());
}

/// A disk that never ends a store keeps no host waiting for ever, and what it writes late is written over.
#[test]
fn a_store_that_does_not_end_is_refused_in_time() {
    let (mut home, now) = (home(1), Time(0));
    home.handle_request(now, ShardId(0), RequestId(1), register(&requester(1), 5, true));
    home.handle_request(now, ShardId(0), RequestId(2), VolumeRequest::WriteProtect(false));
    let store = home.poll_store_op().expect("a store");
    let deadline = home.poll_timeout().expect("a store has a deadline");
    home.handle_timeout(deadline);
    assert_eq!(home.poll_answer().map(|answer| answer.result), Some(Err(Refusal::NotDurable)));
    let over = home.poll_store_op().expect("what stands");
    assert!(over.ticket > store.ticket && kept(&over).view().reservations.registrants().is_empty());
    // The next one is served: it stores too, behind both.
    let next = home.poll_store_op().expect("the next one's");
    home.handle_stored(deadline, store.ticket, true);
    assert!(home.poll_view_update().is_none(), "what was refused is not adopted when it is durable late");
    home.handle_stored(deadline, over.ticket, true);
    home.handle_stored(deadline, next.ticket, true);
    assert_eq!(home.poll_answer().map(|answer| (answer.id, answer.result)), Some((RequestId(2), Ok(()))));
    assert!(home.view().reservations.registrants().is_empty());
}

/// Hears what the home has to say; its one shard adopts at once, and the disk takes no record.
fn serve_on_a_full_disk(home: &mut VolumeOwner, now: Time) -> Vec<(u64, Result<(), Refusal>)> {
    let mut answers = Vec::new();
    loop {
        if let Some(store) = home.poll_store_op() {
            home.handle_stored(now, store.ticket, false);
        } else if let Some(update) = home.poll_view_update() {
            home.handle_ack(now, Ack { from: ShardId(0), change: update.change });
        } else if let Some(answer) = home.poll_answer() {
            answers.push((answer.id.0, answer.result));
        } else {
            return answers;
        }
    }
}

/// What no record holds does not depend on it. A requester that is lost has nobody who would ask once more: what it
/// had reserved would keep all others out for ever.
#[test]
fn no_reservation_outlives_its_nexus_because_the_record_cannot_be_written() {
    let (mut home, now) = (home(1), Time(0));
    let holder = initiator(1);
    let reserve =
        |who: &Requester| VolumeRequest::Reserve { who: who.clone(), action: Action::LegacyReserve };
    home.handle_request(now, ShardId(0), RequestId(1), reserve(&holder));
    assert_eq!(serve_on_a_full_disk(&mut home, now), [(1, Ok(()))]);
    home.handle_request(now, ShardId(0), RequestId(2), VolumeRequest::WriteProtect(true));
    assert_eq!(serve_on_a_full_disk(&mut home, now), [(2, Err(Refusal::NotDurable))]);

    home.handle_request(now, ShardId(0), RequestId(3), VolumeRequest::NexusLost(holder.identity.clone()));
    assert_eq!(serve_on_a_full_disk(&mut home, now), [(3, Ok(()))]);
    assert!(home.view().reservations.legacy_holder().is_none());
    for (id, request) in [
        (4, reserve(&initiator(2))),
        (5, VolumeRequest::Reset),
        (6, VolumeRequest::AbortTasks { of: initiator(2).identity }),
        (9, VolumeRequest::BackingReadOnly(true)),
        (10, VolumeRequest::Remove),
    ] {
        home.handle_request(now, ShardId(0), RequestId(id), request);
        assert_eq!(serve_on_a_full_disk(&mut home, now), [(id, Ok(()))]);
    }
    // What stands is still to be written over what may be there.
    assert!(!home.is_idle());
    let again = home.poll_timeout().expect("it is tried again");
    home.handle_timeout(again);
    let over = home.poll_store_op().expect("what stands");
    assert!(!kept(&over).view().write_protected);
    home.handle_stored(again, over.ticket, true);
    assert!(home.is_idle());
}

/// It is recorded that one began: where that cannot be, none begins; and where its end cannot be recorded, it has
/// failed, and another one or leave to go without leads out.
#[test]
fn a_sanitize_does_not_run_for_ever_because_the_record_cannot_be_written() {
    let (mut home, now) = (home(1), Time(0));
    let mut asked = |request: VolumeRequest, durable: bool| {
        home.handle_request(now, ShardId(0), RequestId(1), request);
        while durable && let Some(store) = home.poll_store_op() {
            home.handle_stored(now, store.ticket, true);
        }
        let [(_, result)] = serve_on_a_full_disk(&mut home, now)[..] else { panic!("one answer") };
        (result, home.view().not_ready)
    };
    let (refused, failed) = (Err(Refusal::NotDurable), Some(UnservableReason::SanitizeFailed));
    assert_eq!(asked(VolumeRequest::SanitizeStart { who: requester(1) }, false), (refused, None));
    assert_eq!(
        asked(VolumeRequest::SanitizeStart { who: requester(1) }, true),
        (Ok(()), Some(UnservableReason::Sanitizing(0)))
    );
    assert_eq!(
        asked(VolumeRequest::SanitizeEnd { done: true }, false),
        (refused, Some(UnservableReason::Sanitizing(0)))
    );
    assert_eq!(asked(VolumeRequest::SanitizeEnd { done: false }, false), (Ok(()), failed));
    assert_eq!(
        asked(VolumeRequest::SanitizeStart { who: requester(1) }, true),
        (Ok(()), Some(UnservableReason::Sanitizing(0)))
    );
    assert_eq!(asked(VolumeRequest::SanitizeEnd { done: true }, true), (Ok(()), None));
}

fn busy(home: &mut VolumeOwner) -> Vec<u64> {
    let answers = std::iter::from_fn(|| home.poll_answer());
    answers.filter(|answer| answer.result == Err(Refusal::Busy)).map(|answer| answer.id.0).collect()
}

/// However much a few nexuses ask while a fence takes its time, another's ask has its place.
#[test]
fn a_few_nexuses_that_ask_much_do_not_turn_anothers_preempt_away() {
    let (mut home, now) = (home(1), Time(0));
    home.handle_request(now, ShardId(0), RequestId(1), VolumeRequest::Reset);
    assert!(home.poll_view_update().is_some(), "it waits for the shard");
    for at in 0..2 * REQUESTS_MAX as u64 {
        home.handle_request(
            now,
            ShardId(0),
            RequestId(100 + at),
            register(&initiator(1 + (at % 3) as u8), at, false),
        );
    }
    assert_eq!(busy(&mut home).len(), REQUESTS_MAX, "the queue is full");
    for fill in 10..20 {
        home.handle_request(now, ShardId(0), RequestId(fill), register(&requester(fill as u8), 7, false));
    }
    let refused = busy(&mut home);
    assert!(refused.len() == 10 && refused.iter().all(|id| *id >= 100), "{refused:?}");
    // What ends something, or has happened already, is never refused.
    let who = initiator(1).identity;
    let told = [
        VolumeRequest::NexusLost(who),
        VolumeRequest::SanitizeEnd { done: true },
        VolumeRequest::BackingReadOnly(true),
        VolumeRequest::Remove,
    ];
    for (at, request) in told.into_iter().enumerate() {
        home.handle_request(now, ShardId(0), RequestId(50 + at as u64), request);
    }
    assert_eq!(busy(&mut home), [] as [u64; 0]);
    home.handle_ack(now, Ack { from: ShardId(0), change: volume::ChangeId(1) });
    let mut change = 1;
    while let Some(update) = home.poll_view_update() {
        change += 1;
        assert_eq!(update.change, volume::ChangeId(change));
        home.handle_ack(now, Ack { from: ShardId(0), change: update.change });
    }
    let ends: Vec<u64> = std::iter::from_fn(|| home.poll_answer()).map(|answer| answer.id.0).collect();
    for id in (10..20).chain(50..54) {
        assert_eq!(ends.iter().filter(|end| **end == id).count(), 1, "{id}");
    }
    assert!(home.is_idle());
}

/// The SCSI-2 reservation of a nexus that is lost ends, also if its end came while the queue was full.
#[test]
fn a_legacy_reservation_ends_with_its_nexus_when_many_ask() {
    let mut daemon = Daemon::new(2);
    let holder = initiator(1);
    let reserve = VolumeRequest::Reserve { who: holder.clone(), action: Action::LegacyReserve };
    assert_eq!(daemon.asked(reserve), Ok(()));
    daemon.write(1, &holder, 1, 0, false);
    daemon.request(VolumeRequest::Reset);
    let reserve = VolumeRequest::Reserve { who: holder.clone(), action: Action::LegacyReserve };
    daemon.request(reserve);
    for at in 0..REQUESTS_MAX as u64 {
        daemon.request(register(&initiator(2), at, false));
    }
    let lost = daemon.request(VolumeRequest::NexusLost(holder.identity.clone()));
    daemon.settle();
    assert_eq!(daemon.answer_to(lost), Some(Ok(())));
    let other = VolumeRequest::Reserve { who: initiator(2), action: Action::LegacyReserve };
    assert_eq!(daemon.asked(other), Ok(()), "nobody holds it any more");
}

/// When a volume goes, anyone who still waits for its home is told so.
#[test]
fn no_ask_waits_for_ever_for_a_volume_that_went() {
    let (mut home, now) = (home(2), Time(0));
    for (id, request) in
        [(1, VolumeRequest::Remove), (2, register(&requester(1), 5, true)), (3, VolumeRequest::Reset)]
    {
        home.handle_request(now, ShardId(1), RequestId(id), request);
    }
    let answers = home.into_refusals();
    let gone = Err(Refusal::NotReady(volume::UnservableReason::Removed));
    assert_eq!(answers.iter().map(|answer| answer.id.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(answers.iter().all(|answer| answer.result == gone && answer.to == ShardId(1)));
}

#[test]
fn the_medium_moves_only_when_nobody_prevents_it() {
    let mut daemon = Daemon::new(2);
    let (a, b) = (Arc::new((*requester(1).identity).clone()), requester(2).identity);
    let mut asked = |request: VolumeRequest| daemon.asked(request);
    assert_eq!(asked(VolumeRequest::PreventRemoval { by: a.clone(), on: true }), Ok(()));
    assert_eq!(asked(VolumeRequest::Eject { by: Some(b.clone()) }), Err(Refusal::RemovalPrevented));
    assert_eq!(asked(VolumeRequest::NexusLost(a.clone())), Ok(()));
    assert_eq!(asked(VolumeRequest::Eject { by: Some(b.clone()) }), Ok(()));
    assert_eq!(asked(VolumeRequest::Eject { by: Some(b.clone()) }), Ok(()));
    assert_eq!(asked(VolumeRequest::PreventRemoval { by: a.clone(), on: true }), Ok(()));
    assert_eq!(asked(VolumeRequest::Load { by: Some(b.clone()) }), Err(Refusal::RemovalPrevented));
    assert_eq!(asked(VolumeRequest::Reset), Ok(()));
    assert_eq!(
        asked(VolumeRequest::SanitizeStart { who: requester(1) }),
        Err(Refusal::NotReady(volume::UnservableReason::NoMedium))
    );
    assert_eq!(asked(VolumeRequest::Load { by: Some(b) }), Ok(()));
    assert_eq!(asked(VolumeRequest::SanitizeStart { who: requester(1) }), Ok(()));
    assert_eq!(
        asked(VolumeRequest::SanitizeStart { who: requester(1) }),
        Err(Refusal::NotReady(volume::UnservableReason::Sanitizing(0)))
    );
    assert_eq!(asked(VolumeRequest::SanitizeEnd { done: false }), Ok(()));
    assert_eq!(asked(VolumeRequest::Start), Err(Refusal::NotReady(volume::UnservableReason::SanitizeFailed)));
    assert_eq!(asked(VolumeRequest::SanitizeForgive), Ok(()));
    assert_eq!(asked(VolumeRequest::Remove), Ok(()));
}

/// What a reset aborts while it waits for its turn at home is not carried out behind the reset.
#[test]
fn an_aborted_ask_that_waits_for_its_turn_changes_nothing() {
    let mut daemon = Daemon::new(2);
    daemon.write(1, &initiator(1), 1, 0, false);
    let reset = daemon.request(VolumeRequest::Reset);
    let queued = daemon.request(register(&initiator(1), 5, false));
    // The shard has aborted the task, and says so before it has drained.
    daemon.home.handle_request(daemon.world.now, ShardId(0), RequestId(queued), VolumeRequest::Withdraw);
    daemon.drain_home();
    assert_eq!(daemon.answer_to(queued), Some(Err(Refusal::Busy)));
    daemon.settle();
    assert_eq!(daemon.answer_to(reset), Some(Ok(())));
    assert!(daemon.home.view().reservations.registrants().is_empty() && daemon.home.is_idle());
    // Once its turn has come it is carried out, whatever is wanted then.
    let begun = daemon.request(register(&initiator(1), 5, false));
    daemon.home.handle_request(daemon.world.now, ShardId(0), RequestId(begun), VolumeRequest::Withdraw);
    daemon.settle();
    assert_eq!(daemon.answer_to(begun), Some(Ok(())));
    assert_eq!(daemon.answers.iter().filter(|answer| answer.id == RequestId(begun)).count(), 1);
}

/// A format or a sanitize is judged when its turn has come: what the fence before it has forbidden it does not do.
#[test]
fn a_format_that_waited_behind_a_preempt_or_a_protection_is_refused() {
    let who = || victim(1);
    let starts: [fn(Requester) -> VolumeRequest; 2] =
        [|who| VolumeRequest::SanitizeStart { who }, |who| VolumeRequest::FormatStart { who }];
    for start in starts {
        let kind = ReservationType::WriteExclusiveRegistrants;
        let mut daemon = held(2, kind, 1, true);
        daemon.write(1, &victim(2), 2, 0, false);
        let preempted = preempt(&mut daemon, true, kind, true);
        let format = daemon.request(start(who()));
        daemon.settle();
        assert_eq!(daemon.answer_to(preempted), Some(Ok(())));
        assert_eq!(daemon.answer_to(format), Some(Err(Refusal::Conflict)));
        assert!(daemon.home.view().not_ready.is_none() && !daemon.home.view().owes_sanitize);

        let mut daemon = Daemon::new(2);
        daemon.write(1, &who(), 1, 0, false);
        let protected = daemon.request(VolumeRequest::WriteProtect(true));
        let format = daemon.request(start(who()));
        daemon.settle();
        assert_eq!(daemon.answer_to(protected), Some(Ok(())));
        assert_eq!(daemon.answer_to(format), Some(Err(Refusal::ReadOnly)));
        let reads_only = Requester { read_only: true, ..who() };
        assert_eq!(Daemon::new(1).asked(start(reads_only)), Err(Refusal::ReadOnly));
    }
}
