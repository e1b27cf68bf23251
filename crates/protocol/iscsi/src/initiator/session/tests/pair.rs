//! The session against our own target.

use super::super::*;
use super::wire::*;
use crate::chap::Algorithm;
use crate::discovery::SendTargets;
use crate::initiator::LoginFailure;
use crate::negotiate::Digest;
use crate::wire::{LoginStatus, RejectReason, ScsiStatus, TmfFunction, TmfResponseCode};
use proptest::prelude::*;

fn good(len: u32) -> Response {
    let (status, residual) = (ScsiStatus::GOOD, Residual::None);
    Response::Scsi(ScsiAnswer {
        status,
        residual,
        sense: crate::session::SenseBytes::new(),
        transferred: len,
    })
}

#[derive(Clone, Debug)]
struct Act {
    write: bool,
    offset: usize,
    len: usize,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len = prop_oneof![1usize..3000, 3000usize..80_000, 80_000usize..200_000];
    let act =
        (any::<bool>(), 0usize..800_000, len).prop_map(|(write, offset, len)| Act { write, offset, len });
    proptest::collection::vec(act, 1..10)
}

fn delivery() -> impl Strategy<Value = RecvDelivery> {
    let chunks = proptest::collection::vec(prop_oneof![1usize..70, 1usize..9000, 1usize..200_000], 1..20);
    (chunks, any::<bool>()).prop_map(|(chunks, loaned)| RecvDelivery {
        chunks,
        loaned,
        ..RecvDelivery::unlimited()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn data_arrives_whole_over_any_splits(
        acts in acts(),
        to_host in delivery(),
        to_target in delivery(),
        (header, data) in (any::<bool>(), any::<bool>()),
        (immediate_data, initial_r2t) in (any::<bool>(), any::<bool>()),
        (first_burst, max_burst) in (512u32..70_000, 512u32..300_000),
        r2ts in 1u32..5,
        links in 1usize..3,
    ) {
        let (mut wanted, mut access) = (wanted(), access());
        let digest = |on| vec![if on { Digest::Crc32c } else { Digest::None }];
        (wanted.limits.header_digest, wanted.limits.data_digest) = (digest(header), digest(data));
        (wanted.limits.immediate_data, wanted.limits.initial_r2t) = (immediate_data, initial_r2t);
        (wanted.limits.first_burst, wanted.limits.max_burst) = (first_burst, max_burst);
        wanted.limits.max_outstanding_r2t = r2ts;
        wanted.limits.mrdsl = 20_000;
        access.limits.mrdsl = 10_000;
        let mut wire = Wire::open(wanted, access);
        for cid in 1..links {
            wire.connect();
            let link = wire.host.add_link(cx!(wire), Cid::new(cid as u16)).unwrap();
            wire.run();
            prop_assert!(wire.notices.contains(&Notice::LinkReady(link)), "{:?}", wire.notices);
        }
        (0..links).for_each(|at| wire.deliver(at, &to_host, &to_target));
        let mut disk = wire.disk.clone();
        // Overlapping ones one after the other, as a disk would be used.
        for (n, act) in acts.iter().enumerate() {
            let range = act.offset..act.offset + act.len;
            if act.write {
                disk[range].copy_from_slice(&pattern(act.len, n));
                let data = wire.out(&pattern(act.len, n));
                wire.submit(scsi(act.offset as u32), data).unwrap();
                wire.run();
                let (_, response, payload) = wire.ended.pop().unwrap();
                prop_assert_eq!(response, good(act.len as u32));
                prop_assert_eq!(payload.len(), act.len);
            } else {
                let (a, b) = (wire.room(act.len), wire.room(act.len));
                wire.submit(scsi(act.offset as u32), a).unwrap();
                wire.submit(scsi(act.offset as u32), b).unwrap();
                wire.run();
                for _ in 0..2 {
                    let (_, response, payload) = wire.ended.pop().unwrap();
                    prop_assert_eq!(response, good(act.len as u32));
                    prop_assert!(bytes_of(&payload) == disk[range.clone()]);
                }
            }
        }
        prop_assert!(wire.disk == disk);
        wire.finish();
    }
}

#[test]
fn commands_behind_a_refused_one_are_carried_out() {
    let mut wire = Wire::open(wanted(), access());
    // A variable-length CDB that says to be longer than it is.
    let mut cdb = [0; 32];
    (cdb[0], cdb[7]) = (0x7f, 200);
    let Request::Scsi(command) = scsi(0) else { panic!() };
    let refused = Request::Scsi(ScsiCommand { cdb: crate::session::Cdb::Long(cdb.into()), ..command });
    wire.submit(refused, Payload::None).unwrap();
    let room = wire.room(512);
    wire.submit(scsi(0), room).unwrap();
    wire.run();
    let ended: Vec<Response> = wire.ended.drain(..).map(|(_, response, _)| response).collect();
    let rejected = Response::Lost(NoAnswer::Rejected(RejectReason::INVALID_PDU_FIELD));
    assert_eq!(ended, [rejected, good(512)]);
    wire.finish();
}

#[test]
fn every_combination_of_chap_logs_in() {
    for algorithm in Algorithm::ALL {
        for mutual in [false, true] {
            let (mut wanted, mut access) = (wanted(), access());
            let (credentials, policy) = chap(algorithm, mutual);
            (wanted.credentials, access.auth) = (Some(credentials), policy);
            Wire::open(wanted, access).finish();
        }
    }
}

#[test]
fn a_login_that_is_refused_says_what_to_change() {
    let (mut wanted, mut access) = (wanted(), access());
    let (mut credentials, policy) = chap(Algorithm::SHA256, false);
    credentials.ours.secret = crate::chap::Secret::new(b"another secret".to_vec());
    (wanted.credentials, access.auth) = (Some(credentials), policy);
    let mut wire = Wire::new(wanted, access, InitiatorLimits::default());
    wire.run();
    assert!(wire.closed && !wire.ready);
    let [Notice::LoginFailed(LinkNumber(0), failure)] = &wire.notices[..] else {
        panic!("{:?}", wire.notices)
    };
    assert_eq!(*failure, LoginFailure::Refused(LoginStatus::AUTHENTICATION_FAILURE));
    assert!(failure.to_string().contains("(0201h)") && failure.to_string().contains("secret"), "{failure}");
}

#[test]
fn a_target_that_closes_amid_authentication_may_have_refused_and_before_or_behind_it_has_not() {
    // Answered: AuthMethod; CHAP_A; CHAP_N and CHAP_R, with the way to the next stage.
    for (answers, proving) in [(0, false), (1, true), (2, true), (3, false)] {
        let (mut wanted, mut access) = (wanted(), access());
        let (credentials, policy) = chap(Algorithm::SHA256, false);
        (wanted.credentials, access.auth) = (Some(credentials), policy);
        let mut wire = Wire::new(wanted, access, InitiatorLimits::default());
        wire.closes_after(answers);
        assert!(wire.closed && !wire.ready);
        let cut = matches!(wire.notices[..], [Notice::LoginFailed(LinkNumber(0), LoginFailure::CutShort)]);
        assert!(cut == proving && cut != wire.notices.is_empty(), "{answers}: {:?}", wire.notices);
    }
}

#[test]
fn targets_are_listed_over_many_pieces() {
    let mut wanted = wanted();
    wanted.target_name = None;
    wanted.limits.mrdsl = 512;
    let mut wire = Wire::open(wanted, access());
    for n in 0..200 {
        let record = format!(
            "TargetName=iqn.2026-11.io.example:{n}\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[::1]:3260,1\0"
        );
        wire.records.extend(record.as_bytes());
    }
    assert!(wire.submit(scsi(0), Payload::None).is_none(), "discovery carries no SCSI");
    wire.submit(Request::SendTargets(SendTargets::All), Payload::None).unwrap();
    wire.run();
    let (_, Response::Targets(targets), _) = wire.ended.pop().unwrap() else { panic!() };
    assert_eq!((targets.records.len(), targets.ignored, targets.is_cut), (200, 0, false));
    assert_eq!(targets.records[199].name.as_str(), "iqn.2026-11.io.example:199");
    assert_eq!(targets.records[0].addresses.len(), 2);
    wire.finish();
}

#[test]
fn sense_and_length_of_a_refused_command_come_up() {
    let mut wire = Wire::open(wanted(), access());
    let data = wire.room(4096);
    wire.submit(scsi(DISK_LEN as u32), data).unwrap();
    wire.run();
    let (_, Response::Scsi(answer), payload) = wire.ended.pop().unwrap() else { panic!() };
    assert_eq!((answer.status, answer.sense[2]), (ScsiStatus::CHECK_CONDITION, 5));
    assert_eq!((answer.residual, answer.transferred), (Residual::Underflow(4096), 0));
    assert_eq!(bytes_of(&payload), [0; 4096], "nothing old is shown");
    drop(payload);
    wire.finish();
}

#[test]
fn functions_end_the_commands_that_they_name() {
    let mut wire = Wire::open(wanted(), access());
    wire.keeps = true;
    let mut tags = Vec::new();
    for _ in 0..4 {
        let data = wire.room(512);
        tags.push(wire.submit(scsi(0), data).unwrap());
    }
    wire.run();
    let task = |function, referenced| Request::Task(TaskManagement { function, lun: [0; 8], referenced });
    let abort = wire.submit(task(TmfFunction::ABORT_TASK, Some(tags[1])), Payload::None).unwrap();
    wire.kept.remove(1);
    wire.run();
    let ended: Vec<_> = wire.ended.drain(..).map(|(tag, response, _)| (tag, response)).collect();
    let complete = Response::Task(TmfResponseCode::COMPLETE);
    assert_eq!(ended, [(tags[1], Response::Lost(NoAnswer::Aborted)), (abort, complete.clone())]);
    // One that has ended is not named to the target.
    wire.submit(task(TmfFunction::ABORT_TASK, Some(tags[1])), Payload::None).unwrap();
    wire.run();
    assert_eq!(wire.ended.pop().unwrap().1, Response::Task(TmfResponseCode::NO_TASK));
    wire.submit(task(TmfFunction::LOGICAL_UNIT_RESET, None), Payload::None).unwrap();
    wire.run();
    assert_eq!(wire.ended.len(), 4);
    assert_eq!(wire.ended.pop().unwrap().1, complete);
    assert!(wire.ended.iter().all(|(_, response, _)| *response == Response::Lost(NoAnswer::Aborted)));
    wire.finish();
}

#[test]
fn a_lost_link_gives_everything_back_and_says_what_was_sent() {
    let mut wire = Wire::open(wanted(), access());
    wire.keeps = true;
    let data = wire.out(&[1; 100]);
    let sent = wire.submit(scsi(0), data).unwrap();
    wire.run();
    let data = wire.room(100);
    let waiting = wire.submit(scsi(0), data).unwrap();
    wire.hang_up(0);
    assert!(wire.closed);
    let outcome =
        |tag| wire.ended.iter().find(|(ended, ..)| *ended == tag).map(|(_, response, _)| response.clone());
    assert_eq!(outcome(sent), Some(Response::Lost(NoAnswer::Unknown)));
    assert_eq!(outcome(waiting), Some(Response::Lost(NoAnswer::NotSent)));
    wire.finish();
}

#[test]
fn a_logout_waits_for_what_is_in_work() {
    let mut wire = Wire::open(wanted(), access());
    let data = wire.out(&pattern(150_000, 0));
    wire.submit(scsi(0), data).unwrap();
    let until = wire.now + Duration::from_secs(5);
    wire.host.close(cx!(wire), ConnectionClose::AfterLogout(until));
    wire.run();
    assert_eq!(wire.ended.pop().unwrap().1, good(150_000));
    assert!(wire.closed && wire.notices.is_empty(), "{:?}", wire.notices);
    wire.finish();
}

#[test]
fn silence_is_ended_by_a_ping() {
    let mut wire = Wire::open(wanted(), access());
    for _ in 0..3 {
        wire.now = wire.host.poll_timeout().unwrap();
        wire.host.handle_timeout(cx!(wire));
        wire.run();
        assert!(!wire.closed);
    }
    // The target falls silent.
    wire.now = wire.host.poll_timeout().unwrap();
    wire.host.handle_timeout(cx!(wire));
    wire.now = wire.host.poll_timeout().unwrap();
    wire.host.handle_timeout(cx!(wire));
    wire.take_events();
    assert_eq!(wire.host.poll_link_fault().map(|violation| violation.fault), Some(Fault::PingUnanswered));
    assert!(wire.closed);
    wire.finish();
}

#[test]
fn a_link_that_cannot_be_added_leaves_the_session() {
    let (wanted, mut access) = (wanted(), access());
    access.limits.max_connections = 2;
    let mut wire = Wire::open(wanted, access);
    assert_eq!(wire.host.add_link(cx!(wire), Cid::new(0)), Err(AddLinkError::CidInUse));
    wire.connect();
    wire.host.add_link(cx!(wire), Cid::new(1)).unwrap();
    assert_eq!(wire.host.add_link(cx!(wire), Cid::new(2)), Err(AddLinkError::TooManyLinks));
    wire.hang_up(1);
    assert!(!wire.closed);
    let data = wire.room(512);
    wire.submit(scsi(0), data).unwrap();
    wire.run();
    assert_eq!(wire.ended.pop().unwrap().1, good(512));
    wire.finish();
}

#[test]
fn who_must_authenticate_and_does_not_is_refused() {
    let mut access = access();
    access.auth = chap(Algorithm::MD5, false).1;
    let mut wire = Wire::new(wanted(), access, InitiatorLimits::default());
    wire.run();
    assert!(matches!(wire.notices[..], [Notice::LoginFailed(_, LoginFailure::CredentialsMissing)]));
}
