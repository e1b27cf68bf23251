//! Stops of shards, and of all sessions of a target; and the report on data that is not safe.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_shard::{CONTROL_PLANE, ControlReport, ControlRequest, LogLine, Message};
use endpoint::ShardId;
use iscsi::wire::TmfFunction;
use sim::{Config, PeerEnd};
use volume::{DiskId, OperatorNotice, Refusal, UnservableReason};

use crate::{fences, log_in, run_until, world};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, login_config};

#[test]
fn the_stop_asks_initiators_to_log_out() {
    let mut world = world(Config::new(1));
    let mut initiator = log_in(&mut world, login_config(1));
    for shard in 0..2 {
        let stop = ControlRequest::Stop { grace: Duration::from_secs(3) };
        world.send_message(ShardId(shard), Message::Control(77, stop));
    }
    run_until(&mut world, &mut [&mut initiator], |all| all[0].asked_to_log_out);
    initiator.send_logout(&mut world);
    run_until(&mut world, &mut [&mut initiator], |all| all[0].logged_out);
    world.run_for(Duration::from_secs(1));
    let heard = world.take_control_messages();
    let done = heard.iter().filter(|(to, message)| {
        *to == CONTROL_PLANE && matches!(message, Message::Report(77, ControlReport::Done))
    });
    assert_eq!(done.count(), 2, "{heard:?}");
}

/// A sync that fails is told once, whichever shard asked for it, and the stop does not say that all is safe.
#[test]
fn a_sync_that_fails_is_told_and_the_stop_says_so() {
    for fails in [false, true] {
        let facts = FileFacts::new(64 * 512);
        let file = Arc::new(FileDisk::new(DiskId(1), &facts, 2).unwrap());
        let geometry = file.geometry();
        let make = move |shard| FileBackend::new(file.clone(), shard);
        let mut world = fences::world(1, target::volume_specs(2, geometry, &[DiskId(1)], None, make));
        let mut host = fences::log_in(&mut world, 1);
        fences::write(&mut world, &mut host, 0, 8, 7);
        fences::run(&mut world, &mut [&mut host], |all| all[0].is_idle());
        assert_eq!(host.ended.pop().unwrap().status, 0);
        if fails {
            world.disk(DiskId(1)).unwrap().faults.sync_permille = 1000;
        }
        for shard in 0..2 {
            let stop = ControlRequest::Stop { grace: Duration::from_secs(3) };
            world.send_message(ShardId(shard), Message::Control(77, stop));
        }
        let mut reports = fences::run(&mut world, &mut [&mut host], |all| all[0].asked_to_log_out);
        host.send_logout(&mut world);
        reports.extend(fences::run(&mut world, &mut [&mut host], |all| all[0].logged_out));
        world.run_for(Duration::from_secs(1));
        reports.extend(fences::run(&mut world, &mut [], |_| true));
        let in_doubt = |report: &&ControlReport| {
            matches!(report, ControlReport::Refused(Refusal::NotReady(UnservableReason::SyncFailed)))
        };
        assert_eq!(reports.len(), 2, "{reports:?}");
        assert_eq!(reports.iter().any(|report| in_doubt(&report)), fails, "{reports:?}");
        let mut told = 0;
        for shard in 0..2 {
            while let Some(line) = world.endpoint_mut(ShardId(shard)).poll_log() {
                told += u32::from(matches!(line, LogLine::Volume { remark: OperatorNotice::SyncFailed, .. }));
            }
        }
        assert_eq!(told, u32::from(fails));
    }
}

/// TARGET COLD RESET is answered, and then ends every session of the target, on every shard; a warm one ends none
/// (RFC 7143 §11.5.1).
#[test]
fn a_cold_reset_is_answered_and_ends_all_sessions() {
    for function in [TmfFunction::TARGET_WARM_RESET, TmfFunction::TARGET_COLD_RESET] {
        let mut world = world(Config::new(1));
        let mut hosts: Vec<TestInitiator> =
            (1..=4).map(|isid| log_in(&mut world, login_config(isid))).collect();
        let (asked, _) = hosts[0].send_task_management(&mut world, function, 0, u32::MAX);
        let [asker, others @ ..] = &mut hosts[..] else { unreachable!("there are four") };
        run_until(&mut world, &mut [asker], |all| !all[0].managed.is_empty());
        assert_eq!(asker.managed, [(asked, 0)]);
        // One of them goes when it is asked to.
        world.run_for(Duration::from_millis(100));
        others[0].poll(&mut world);
        let cold = function == TmfFunction::TARGET_COLD_RESET;
        assert_eq!(others[0].asked_to_log_out, cold);
        if cold {
            others[0].send_logout(&mut world);
            run_until(&mut world, &mut [&mut others[0]], |all| all[0].logged_out);
        }
        world.run_for(Duration::from_secs(3));
        for host in &mut hosts {
            host.poll(&mut world);
            assert_eq!(host.peer_end(&world) != PeerEnd::Open, cold, "{function:?}");
        }
        // Who comes again is served, and hears of the reset or of the power.
        if cold {
            log_in(&mut world, login_config(1));
        }
    }
}
