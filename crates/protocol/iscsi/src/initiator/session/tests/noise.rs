//! With any input, the session neither panics nor keeps a command or its memory.

use super::super::*;
use super::scripted_target::*;
use super::wire::*;
use crate::discovery::SendTargets;
use crate::wire::{BHS_LEN, ScsiStatus, TmfFunction};
use proptest::prelude::*;

/// A session with a read, a write, a function and a question in work.
fn busy(digest: bool) -> ScriptedTarget {
    let mut peer = ScriptedTarget::with(digest, |_| ()).reads(64);
    let data = memory(&peer.pool, 9000).freeze();
    let write = peer.submit(scsi(0), Payload::Out(data));
    let abort = TaskManagement { function: TmfFunction::ABORT_TASK, lun: [0; 8], referenced: write };
    peer.submit(Request::Task(abort), Payload::None).unwrap();
    peer.submit(Request::SendTargets(SendTargets::Own), Payload::None).unwrap();
    peer
}

/// Feeds the bytes; whatever came of it, a hang-up ends all and gives all memory back.
fn survive(mut peer: ScriptedTarget, bytes: &[u8], chunks: &[usize]) {
    peer.end.delivery.chunks = chunks.to_vec();
    peer.feed(bytes);
    peer.pass(Duration::from_secs(10));
    peer.host.close(cx!(peer), ConnectionClose::Now);
    peer.turn();
    assert!(peer.closed && peer.host.commands_in_work() == 0);
    assert_eq!(peer.ended.len(), 4, "each ends once");
    peer.ended.clear();
    assert_eq!(peer.pool.usage().lent, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600), digest: bool) {
        survive(busy(digest), &bytes, &[usize::MAX]);
    }

    #[test]
    fn a_damaged_stream_does_no_harm(
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        chunks in proptest::collection::vec(1usize..300, 1..20),
    ) {
        let mut peer = busy(false);
        let mut good = status(ScsiStatus::GOOD);
        good.itt = Itt::new(2);
        let mut asks = r2t(0, 4096, 4904);
        asks.itt = Itt::new(2);
        let mut bytes = [
            peer.pdu(data_in(0, 0, false), &[1; 60]),
            peer.pdu(asks, &[]),
            peer.pdu(good, &[]),
            peer.pdu(data_in(1, 60, true), &[1; 4]),
        ]
        .concat();
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        survive(peer, &bytes, &chunks);
    }

    #[test]
    fn headers_of_every_kind_do_no_harm(
        headers in proptest::collection::vec(
            (0x1eu8..0x40, any::<u8>(), 0u8..64, proptest::array::uniform8(0u8..6)), 1..30),
    ) {
        // Small numbers everywhere, so that tags and counts meet.
        let mut bytes = Vec::new();
        for (op, flags, len, small) in headers {
            let mut header = [0u8; BHS_LEN];
            (header[0], header[1], header[7], header[19]) = (op, flags, len, small[0]);
            (header[23], header[20]) = (small[1], if small[2] == 0 { 0xff } else { 0 });
            (header[27], header[31], header[35]) = (small[3], small[4], 64 + small[5]);
            (header[39], header[43], header[47]) = (small[6], small[7] * 10, small[2] * 8);
            bytes.extend(header);
            bytes.extend(vec![0; usize::from(len).next_multiple_of(4)]);
        }
        survive(busy(false), &bytes, &[usize::MAX]);
    }
}
