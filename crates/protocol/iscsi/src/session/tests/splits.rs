//! The result does not depend on how the stream is cut, and no input makes the session panic.

use super::super::*;
use super::scripted_initiator::*;
use crate::wire::*;
use proptest::prelude::*;

/// A script with every kind of PDU, some of them wrong. The first transfer tags are known: the
/// entropy is.
fn script(digest: bool) -> Vec<u8> {
    let data = pattern(8192);
    let mut bytes = Vec::new();
    let mut say = |pdu: Vec<u8>| bytes.extend(pdu);
    let d = digest;
    say(digested(&write(0, 0, 4099), &[], &data[..4099], d, d));
    say(digested(&read(1, 20_000, 9000), &[], &[], d, d));
    let mut open = write(2, 8192, 8192);
    open.flags = open.flags.without(CommandFlags::FINAL);
    say(digested(&open, &[], &data[..1001], d, d));
    say(digested(&data_out(2, Ttt::NONE, 0, 1001, false), &[], &data[1001..5000], d, d));
    say(digested(&data_out(2, Ttt::NONE, 1, 5000, true), &[], &data[5000..], d, d));
    say(digested(&nop(3, 500), &[], b"ping!", d, d));
    say(digested(&data_out(77, Ttt::NONE, 0, 0, true), &[], &data[..13], d, d));
    let mut long = read(4, 0, 512);
    long.cdb[0] = 0x7f;
    long.cdb[7] = 24;
    long.cdb[4] = 0x80;
    let mut ahs = vec![0, 17, 1, 0];
    ahs.extend([0; 16]);
    say(digested(&long, &ahs, &[], d, d));
    let mut bad = write(5, 0, 8192);
    bad.flags = bad.flags.without(CommandFlags::FINAL);
    say(digested(&bad, &[], &[], d, d));
    say(digested(&data_out(5, Ttt::NONE, 3, 0, true), &[], &data, d, d));
    let mut text = TextRequest::new();
    (text.itt, text.flags, text.cmd_sn) = (Itt::new(600), TextFlags::FINAL, sn(6));
    say(digested(&text, &[], b"SendTargets=\0", d, d));
    say(digested(&read(7, 40_000, 100), &[], &[], d, d));
    bytes
}

struct Outcome {
    sent: Vec<ReceivedPdu>,
    log: Vec<String>,
    disk: Vec<u8>,
}

/// One byte stream in, cut by `chunks`; the rest of the world as told.
fn run(bytes: &[u8], digest: bool, chunks: &[usize], stage_max: usize, loaned: bool, late: bool) -> Outcome {
    run_with(bytes, digest, chunks, stage_max, |peer| {
        (peer.delivery.loaned, peer.place_late) = (loaned, late)
    })
    .0
}

fn run_with(
    bytes: &[u8],
    digest: bool,
    chunks: &[usize],
    stage_max: usize,
    set: impl FnOnce(&mut ScriptedInitiator),
) -> (Outcome, usize) {
    let link = LinkParams { header_digest: digest, data_digest: digest, ..link_params(0) };
    let mut peer =
        ScriptedInitiator::with(session_params(), link, SessionLimits { commands: 32, ..limits() });
    peer.delivery.chunks = chunks.to_vec();
    peer.delivery.stage_max = stage_max;
    set(&mut peer);
    let sent = peer.talk(bytes);
    assert_eq!(peer.violations, []);
    assert_eq!(peer.session.tasks_in_work(), 0);
    peer.hang_up(0);
    assert!(peer.closed);
    assert_eq!(peer.pool.usage().lent, 0);
    (Outcome { sent, log: peer.log, disk: peer.disk }, peer.hands)
}

/// Whether a PDU tells of the window and nothing else.
fn is_news(got: &ReceivedPdu) -> bool {
    got.op() == Opcode::NOP_IN && got.bhs.itt.is_none()
}

/// What was said about each task, in order. Between tasks the order depends on how much the server
/// was told at once.
fn words(outcome: &Outcome) -> Vec<(u32, Opcode, Vec<u8>)> {
    // When the window grows depends on that as well.
    let said = outcome.sent.iter().filter(|got| !is_news(got));
    let mut words: Vec<_> = said.map(|got| (got.bhs.itt.value(), got.op(), got.data.clone())).collect();
    words.sort_by_key(|(itt, ..)| *itt);
    words
}

#[test]
fn the_script_does_what_it_should() {
    let outcome = run(&script(true), true, &[usize::MAX], usize::MAX, false, false);
    let ops: Vec<Opcode> = outcome.sent.iter().map(ReceivedPdu::op).collect();
    for op in [Opcode::SCSI_RESPONSE, Opcode::DATA_IN, Opcode::NOP_IN, Opcode::REJECT, Opcode::TEXT_RESPONSE]
    {
        assert!(ops.contains(&op), "{op:?} in {ops:?}");
    }
    assert_eq!(outcome.disk[8192..16384], pattern(8192));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_gives_the_same(
        digest: bool,
        chunks in proptest::collection::vec(prop_oneof![1usize..60, 1usize..9000], 1..40),
        stage_max in prop_oneof![Just(usize::MAX), 1usize..100, 48usize..5000],
        loaned: bool,
    ) {
        let bytes = script(digest);
        let plain = run(&bytes, digest, &[usize::MAX], usize::MAX, false, false);
        let split = run(&bytes, digest, &chunks, stage_max, loaned, false);
        prop_assert_eq!(words(&plain), words(&split));
        prop_assert_eq!(&plain.log, &split.log);
        prop_assert!(plain.disk == split.disk);
        // A server that places data late gets the same data.
        let late = run(&bytes, digest, &chunks, stage_max, loaned, true);
        prop_assert!(plain.disk == late.disk);
        prop_assert_eq!(words(&plain), words(&late));
        // So does one that uses what is whole where it lies.
        let (at_hand, _) = run_with(&bytes, digest, &chunks, stage_max, |peer| peer.at_hand = true);
        prop_assert!(plain.disk == at_hand.disk);
        prop_assert_eq!(words(&plain), words(&at_hand));
    }

    #[test]
    fn status_numbers_follow_the_wire(
        chunks in proptest::collection::vec(1usize..3000, 1..20),
    ) {
        let outcome = run(&script(false), false, &chunks, usize::MAX, false, true);
        let mut next = Sn::new(100);
        let mut max = sn(u32::from(INITIAL_WINDOW) - 1);
        for got in &outcome.sent {
            let pdu = *DataIn::from_bhs(&got.bhs);
            let counts = match got.op() {
                Opcode::DATA_IN => pdu.flags.contains(DataInFlags::STATUS),
                Opcode::R2T => false,
                _other => !is_news(got),
            };
            if counts {
                prop_assert_eq!(pdu.stat_sn, next);
                next = next.next();
            }
            prop_assert!(max.le(pdu.max_cmd_sn), "MaxCmdSN never moves backwards");
            max = pdu.max_cmd_sn;
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        digest: bool,
    ) {
        survive(&bytes, digest);
    }

    #[test]
    fn a_damaged_stream_does_no_harm(
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        chunks in proptest::collection::vec(1usize..3000, 1..20),
    ) {
        let mut bytes = script(false);
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        survive_in(&bytes, false, &chunks);
    }

    #[test]
    fn headers_of_every_kind_do_no_harm(
        headers in proptest::collection::vec(
            (0u8..0x48, any::<u8>(), 0u8..3, 0u8..64, proptest::array::uniform32(0u8..4), any::<u8>()), 1..30),
    ) {
        // Small numbers everywhere, so that tags and counts meet.
        let mut bytes = Vec::new();
        for (op, flags, ahs, len, small, cdb) in headers {
            let mut header = [0u8; BHS_LEN];
            (header[0], header[1], header[4], header[7], header[32]) = (op, flags, ahs / 2, len, cdb);
            header[19] = small[0];
            (header[23], header[20]) = (small[1], if small[2] == 0 { 0xff } else { 0 });
            header[24..28].copy_from_slice(&sn(u32::from(small[3])).value().to_be_bytes());
            (header[39], header[43], header[47]) = (small[4], small[5] * 8, small[6]);
            bytes.extend(header);
            bytes.extend(vec![0; usize::from(ahs / 2) * 4 + usize::from(len).div_ceil(4) * 4]);
        }
        survive(&bytes, false);
    }
}

/// A link that is lost amid a text keeps nothing of it, though its session goes on over another.
#[test]
fn a_text_that_breaks_off_gives_its_memory_back() {
    for kind in ["text", "ping"] {
        let mut peer = ScriptedInitiator::new();
        let second = usize::from(peer.attach(link_params(1)).0);
        let mut text = TextRequest::new();
        (text.itt, text.flags, text.cmd_sn) = (Itt::new(600), TextFlags::FINAL, sn(0));
        let long = vec![b'a'; 2000];
        let bytes =
            if kind == "text" { pdu(&text, &long) } else { digested(&nop(0, 500), &[], &long, false, false) };
        peer.feed(second, &bytes[..1500]);
        assert!(peer.pool.usage().lent > 0, "{kind}");
        peer.hang_up(second);
        assert!(!peer.closed);
        assert_eq!(peer.pool.usage().lent, 0, "{kind}");
    }
}

fn survive(bytes: &[u8], digest: bool) {
    survive_in(bytes, digest, &[usize::MAX]);
}

/// Feeds the bytes; whatever came of it, a hang-up ends all and gives all memory back.
fn survive_in(bytes: &[u8], digest: bool, chunks: &[usize]) {
    let link = LinkParams { header_digest: digest, data_digest: digest, ..link_params(0) };
    let mut peer = ScriptedInitiator::with(session_params(), link, limits());
    peer.disk = vec![0; (1 << 20) + (16 << 20)];
    peer.bounded = true;
    peer.delivery.chunks = chunks.to_vec();
    let second = usize::from(peer.attach(link_params(1)).0);
    peer.feed(0, bytes);
    peer.feed(second, bytes);
    peer.pass(Duration::from_secs(16));
    peer.hang_up(0);
    peer.hang_up(second);
    assert!(peer.closed, "{:#?}", peer.session);
    assert_eq!(peer.session.tasks_in_work(), 0);
    assert_eq!(peer.pool.usage().lent, 0);
}
