//! Known attacks against the whole target, beside a host that must not be affected. The session's own tests
//! check the rules of each attack; these check the other host.

use std::time::Duration;

use iscsi::wire::{Itt, Lun, OpByte, Opcode, Pdu, TmfFunction, TmfRequest};
use sim::{Config, PeerEnd};

use testkit::fuzz::iscsi::{FuzzScene, RawCommand, RawSession};

fn read(blocks: u16) -> [u8; 10] {
    let [a, b] = blocks.to_be_bytes();
    [0x28, 0, 0, 0, 0, 0, 0, a, b, 0]
}

#[test]
fn attack_25_a_segment_of_16_mib_takes_no_memory() {
    for len in [0xff_ff_ff_u32, 65_537, 8_193] {
        let mut scene = FuzzScene::new(1);
        let mut session = RawSession::log_in(&mut scene.world, 1);
        let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let mut bytes =
            session.next_header(&RawCommand { lun: Lun::default(), cdb: &cdb, out: &[0; 512], read: 0 });
        bytes.set_data_len(len as usize);
        scene.world.send(session.peer, bytes.as_bhs().bytes());
        scene.world.send(session.peer, &[0x55; 4096]);
        scene.run_for(Duration::from_millis(10));
        assert_ne!(scene.world.peer_end(session.peer), PeerEnd::Open, "{len}");
        assert!(scene.lent_bytes() < 64 << 10, "{len}: {} bytes are lent", scene.lent_bytes());
        scene.finish_and_check(&[session.peer]);
    }
}

#[test]
fn attack_32_thousands_of_immediate_commands() {
    let mut scene = FuzzScene::new(2);
    let mut session = RawSession::log_in(&mut scene.world, 1);
    for _ in 0..100 {
        for _ in 0..100 {
            let mut pdu = session.next_header(&RawCommand::from_cdb(&[0; 6]));
            pdu.op = OpByte::new(Opcode::SCSI_COMMAND).with_immediate();
            session.cmd_sn = session.cmd_sn.sub(1);
            pdu.cmd_sn = session.cmd_sn;
            scene.world.send(session.peer, pdu.as_bhs().bytes());
        }
        scene.run_for(Duration::from_millis(1));
        session.poll(&mut scene.world);
    }
    scene.run_for(Duration::from_millis(100));
    session.poll(&mut scene.world);
    assert_eq!(session.ended.len() + session.rejects as usize, 10_001, "each is answered or rejected");
    scene.finish_and_check(&[session.peer]);
}

#[test]
fn attack_34_resets_from_a_hundred_sessions() {
    let mut config = Config::new(3);
    config.pool_bytes = 16 << 20;
    let mut scene = FuzzScene::with_config(config);
    let mut sessions: Vec<RawSession> =
        (1..=98).map(|isid| RawSession::log_in(&mut scene.world, isid + 1_000)).collect();
    for round in 0..5 {
        for (number, session) in sessions.iter_mut().enumerate() {
            let asked = RawCommand { lun: Lun::default(), cdb: &read(16), out: &[], read: 16 * 512 };
            session.send(&mut scene.world, &asked);
            let functions = [
                TmfFunction::LOGICAL_UNIT_RESET,
                TmfFunction::TARGET_WARM_RESET,
                TmfFunction::CLEAR_TASK_SET,
            ];
            let mut pdu = TmfRequest::new();
            pdu.op = OpByte::new(Opcode::TMF_REQUEST).with_immediate();
            pdu.function_byte = 0x80 | functions[(number + round) % 3].0;
            pdu.itt = Itt::new(0x1000 + round as u32);
            pdu.referenced_tag = Itt::NONE;
            (pdu.cmd_sn, pdu.exp_stat_sn) = (session.cmd_sn, session.exp_stat_sn);
            scene.world.send(session.peer, pdu.as_bhs().bytes());
        }
        scene.run_for(Duration::from_millis(1));
    }
    scene.run_for(Duration::from_secs(1));
    for session in &mut sessions {
        session.poll(&mut scene.world);
        assert_eq!(session.managed, 5, "every function is answered");
    }
    let peers: Vec<_> = sessions.iter().map(|session| session.peer).collect();
    scene.finish_and_check(&peers);
}

#[test]
fn attack_37_reads_that_nobody_takes() {
    let mut config = Config::new(4);
    config.window = 600;
    config.pool_bytes = 4 << 20;
    let mut scene = FuzzScene::with_config(config);
    let mut hostile: Vec<RawSession> =
        (1..=4).map(|isid| RawSession::log_in(&mut scene.world, isid)).collect();
    for session in &mut hostile {
        for _ in 0..16 {
            let asked = RawCommand { lun: Lun::default(), cdb: &read(512), out: &[], read: 512 * 512 };
            let pdu = session.next_header(&asked);
            scene.world.send(session.peer, pdu.as_bhs().bytes());
        }
    }
    let mut polite = RawSession::log_in(&mut scene.world, 9);
    for _ in 0..20 {
        let asked = RawCommand { lun: Lun::default(), cdb: &read(64), out: &[], read: 64 * 512 };
        let status = scene.run_command(&mut polite, &asked);
        assert_eq!(status, Some(0), "a host that reads is served");
    }
    // It goes on: nobody takes a byte, and pings are not answered.
    for _ in 0..40 {
        scene.run_for(Duration::from_secs(5));
        polite.poll(&mut scene.world);
        scene.poll_bystander();
    }
    for session in &hostile {
        assert_ne!(scene.world.peer_end(session.peer), PeerEnd::Open, "it has stalled too long");
    }
    let mut peers: Vec<_> = hostile.iter().map(|session| session.peer).collect();
    peers.push(polite.peer);
    scene.finish_and_check(&peers);
}
