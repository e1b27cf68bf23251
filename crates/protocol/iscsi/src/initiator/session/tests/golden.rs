//! The bytes of every PDU that the session sends.

use super::super::*;
use super::scripted_target::*;
use super::wire::*;
use crate::discovery::SendTargets;
use crate::session::Cdb;
use crate::wire::{NopIn, Pdu, TaskAttribute, TextFlags, TextResponse, TmfFunction, Ttt};
use stream::ConnectionClose;

/// Bytes in hexadecimal, a line per 16.
fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

fn assert_bytes(sent: &[u8], want: &str) {
    let want: String = want.split_whitespace().collect::<Vec<_>>().join("\n");
    assert_eq!(hex(sent), want);
}

#[test]
fn a_read() {
    let mut peer = ScriptedTarget::reading(0x1234);
    assert_bytes(
        &peer.sent(),
        "01c10000000000000000000000000000 00000001000012340000000100000002 00000000000000000000000000000000",
    );
}

#[test]
fn a_write_with_immediate_data_and_what_an_r2t_asks_for() {
    let mut peer = ScriptedTarget::writing(4100);
    let sent = peer.sent();
    assert_bytes(
        &sent[..64],
        "01a10000000010000000000000000000 00000001000010040000000100000002 00000000000000000000000000000000
         00070e151c232a31383f464d545b6269",
    );
    assert_eq!((sent.len(), &sent[48..]), (48 + 4096, &pattern(4096, 0)[..]));
    peer.say(r2t(0, 4096, 4), &[]);
    assert_bytes(
        &peer.sent(),
        "05800000000000040000000000000000 00000001000000090000000000000002 00000000000000000000100000000000
         10171e25",
    );
}

#[test]
fn unsolicited_data_follows_its_command_in_pieces() {
    let mut peer = ScriptedTarget::new();
    let mut params = peer.host.commands.params.clone();
    params.immediate_data = false;
    peer.host.commands.params = params;
    peer.host.commands.links.get_mut(LinkNumber(0)).unwrap().framing.peer_mrdsl = 512;
    let data = memory(&peer.pool, 1022).freeze();
    peer.submit(scsi(0), Payload::Out(data)).unwrap();
    let sent = peer.sent();
    assert_eq!(sent.len(), 48 + 48 + 512 + 48 + 512);
    assert_bytes(&sent[..16], "01210000000000000000000000000000");
    assert_bytes(
        &sent[48..96],
        "05000000000002000000000000000000 00000001ffffffff0000000000000002 00000000000000000000000000000000",
    );
    assert_bytes(
        &sent[608..656],
        "05800000000001fe0000000000000000 00000001ffffffff0000000000000002 00000000000000010000020000000000",
    );
}

#[test]
fn a_long_cdb_with_digests() {
    let mut peer = ScriptedTarget::with(true, |_| ());
    let mut cdb = [0; 32];
    (cdb[0], cdb[7], cdb[9], cdb[31]) = (0x7f, 24, 9, 0xee);
    let command = ScsiCommand {
        lun: [0, 5, 0, 0, 0, 0, 0, 0],
        cdb: Cdb::Long(cdb.into()),
        attr: TaskAttribute::ORDERED,
        priority: 3,
    };
    peer.submit(Request::Scsi(command), Payload::None).unwrap();
    let sent = peer.sent();
    assert_bytes(
        &sent[..68],
        "01823000050000000005000000000000 00000001000000000000000100000002 7f000000000000180009000000000000
         00110100000000000000000000000000 000000ee",
    );
    assert_eq!(sent[68..], buf::crc32c::crc32c(&sent[..68]).to_le_bytes());
}

#[test]
fn task_management_and_logout() {
    let mut peer = ScriptedTarget::new();
    let tag = peer.submit(scsi(0), Payload::None);
    peer.sent();
    let abort =
        TaskManagement { function: TmfFunction::ABORT_TASK, lun: [0, 5, 0, 0, 0, 0, 0, 0], referenced: tag };
    peer.submit(Request::Task(abort), Payload::None).unwrap();
    assert_bytes(
        &peer.sent(),
        "42810000000000000005000000000000 00000002000000010000000200000002 00000001000000000000000000000000",
    );
    let mut peer = ScriptedTarget::new();
    let until = peer.now + Duration::from_secs(1);
    peer.host.close(cx!(peer), ConnectionClose::AfterLogout(until));
    peer.turn();
    assert_bytes(
        &peer.sent(),
        "46800000000000000000000000000000 00000001000000000000000100000002 00000000000000000000000000000000",
    );
}

#[test]
fn pings_of_both_sides() {
    let mut peer = ScriptedTarget::new();
    let mut ping = NopIn::new();
    (ping.ttt, ping.lun) = (Ttt::new(0x77), crate::wire::Lun([0, 1, 0, 0, 0, 0, 0, 0]));
    peer.say(ping, &[]);
    assert_bytes(
        &peer.sent(),
        "40800000000000000001000000000000 ffffffff000000770000000100000002 00000000000000000000000000000000",
    );
    peer.pass(Duration::from_secs(10));
    assert_bytes(
        &peer.sent(),
        "40800000000000000000000000000000 00000001ffffffff0000000100000002 00000000000000000000000000000000",
    );
}

#[test]
fn a_question_for_targets_and_for_more_of_the_answer() {
    let mut peer = ScriptedTarget::new();
    peer.submit(Request::SendTargets(SendTargets::Own), Payload::None).unwrap();
    assert_bytes(
        &peer.sent(),
        "448000000000000d0000000000000000 00000001ffffffff0000000100000002 00000000000000000000000000000000
         53656e64546172676574733d00000000",
    );
    let mut text = TextResponse::new();
    (text.itt, text.ttt, text.flags) = (Itt::new(ITT), Ttt::new(0x99), TextFlags::CONTINUE);
    peer.say(text, b"TargetName=iqn.2026-11.io.exam");
    assert_bytes(
        &peer.sent(),
        "44800000000000000000000000000000 00000001000000990000000100000003 00000000000000000000000000000000",
    );
}
