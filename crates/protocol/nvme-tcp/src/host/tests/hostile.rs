//! Controllers that lie, in fixed bytes.

use super::*;
use crate::wire::{FatalError, FatalStatus, TermReq, crc32c_digest};
use buf::SgMut;

const RANGE: FatalError = FatalError::without_fei(FatalStatus::OUT_OF_RANGE);
/// Where the command identifier stands in C2HData and R2T, and in a completion.
const AT_CCCID: FatalError = FatalError::sequence_error(8);
const AT_CID: FatalError = FatalError::sequence_error(20);
const AT_TYPE: FatalError = FatalError::sequence_error(0);

const LAST: u8 = 4;
const SUCCESS: u8 = 8;

/// ICResp: version 0, no alignment, no digests, H2CData of 4096 bytes; but for `bytes` at `at`.
fn ic_resp(at: usize, bytes: &[u8]) -> [u8; 128] {
    let mut pdu = [0; 128];
    pdu[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    pdu[at..at + bytes.len()].copy_from_slice(bytes);
    pdu
}

/// C2HData for the command 0.
fn data(at: u32, len: u32, flags: u8) -> Vec<u8> {
    let mut pdu = vec![7, flags, 24, 24];
    [24 + len, 0, at, len, 0].iter().for_each(|word| pdu.extend(word.to_le_bytes()));
    pdu.resize(24 + len as usize, 0xab);
    pdu
}

/// R2T for a command, with the transfer tag 1.
fn r2t(cid: u8, at: u32, len: u32) -> Vec<u8> {
    let mut pdu = vec![9, 0, 24, 0, 24, 0, 0, 0, cid, 0, 1, 0];
    [at, len, 0].iter().for_each(|word| pdu.extend(word.to_le_bytes()));
    pdu
}

/// CapsuleResp: success of a command.
fn end(cid: u8) -> Vec<u8> {
    vec![5, 0, 24, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, cid, 0, 0, 0]
}

/// CapsuleResp: Internal Error, do not retry.
fn failed(cid: u8) -> Vec<u8> {
    let mut pdu = end(cid);
    pdu[22..24].copy_from_slice(&(0x4006_u16 << 1).to_le_bytes());
    pdu
}

/// A host that is connected to the test's own bytes, with one command in work; they agreed on parameters
/// without digests.
struct Lied {
    pool: Pool,
    entropy: Entropy,
    now: Time,
    side: Side<HostQueue>,
}

impl Lied {
    fn new(limits: HostQueueSettings) -> Self {
        let pool = Pool::new(1 << 20);
        let mut entropy = Entropy::new([1; 32]);
        let now = Time(0);
        let queue = HostQueue::new(&mut Cx { now, pool: &pool, entropy: &mut entropy }, limits);
        Lied { pool, entropy, now, side: Side::new(queue) }
    }

    /// ICReq has left.
    fn asking() -> Self {
        let mut lied = Self::new(HostQueueSettings::default());
        assert_eq!(lied.say(&[]).len(), 128);
        lied
    }

    fn ready(digests: u8, flow_control: bool, max_h2c_data: u32) -> Self {
        let (header_digest, data_digest) = (digests & 1 > 0, digests & 2 > 0);
        let mut lied =
            Self::new(HostQueueSettings { header_digest, data_digest, ..HostQueueSettings::default() });
        assert_eq!(lied.say(&[]).len(), 128);
        let mut answer = ic_resp(12, &max_h2c_data.to_le_bytes());
        answer[11] = digests;
        assert!(lied.say(&answer).is_empty());
        assert!(matches!(lied.side.queue.poll_event(), Some(HostEvent::Ready)));
        lied.side.queue.finish_connect(ConnectedQueueSize { entries: 8, flow_control, in_capsule_max: 0 });
        lied
    }

    /// With a read, or a write, of 8192 bytes in work, whose identifier is 0.
    fn busy(write: bool) -> Self {
        let mut lied = Self::ready(0, false, 4096);
        assert_eq!(lied.submit(write), 72);
        lied
    }

    /// Bytes of its capsule.
    fn submit(&mut self, write: bool) -> usize {
        self.submit_of(write, 8192)
    }

    fn submit_of(&mut self, write: bool, len: usize) -> usize {
        let mut data: SgMut = self.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        data.copy_from(0, &vec![0xdd; len]);
        let payload = if write { Payload::Out(data.freeze()) } else { Payload::In(data) };
        let opcode = if write { WRITE } else { READ };
        self.side.queue.submit(cx!(self), sqe(opcode, 0), payload).unwrap();
        self.say(&[]).len()
    }

    fn say(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.side.inbox.extend(bytes);
        let mut sent = Vec::new();
        loop {
            let (bytes, moved) = self.side.turn(cx!(self));
            sent.extend(bytes);
            if !moved {
                return sent;
            }
        }
    }

    fn completed(&mut self) -> Option<(Cqe, Payload)> {
        match self.side.queue.poll_event()? {
            HostEvent::Completed { response, payload, .. } => Some((response, payload)),
            HostEvent::Ready | HostEvent::Closed => None,
        }
    }

    /// These bytes end the connection: with one word, which says why; what was in work ends once, and
    /// all memory comes back.
    fn cut_off_by(mut self, bytes: &[u8], fatal: FatalError) {
        let sent = self.say(bytes);
        assert_eq!(self.side.violation, Some(LinkFault::Fatal(fatal)), "{bytes:02x?}");
        let term = TermReq::from_prefix(&sent).unwrap_or_else(|| panic!("{bytes:02x?}: {sent:02x?}"));
        assert_eq!(
            (term.fatal_error(), term.common.plen.get() as usize),
            (fatal, sent.len()),
            "{bytes:02x?}"
        );
        // Whatever else comes is swallowed.
        assert!(self.say(bytes).is_empty());
        let mut ended = 0;
        while self.completed().is_some() {
            ended += 1;
        }
        assert!(ended <= 1, "{bytes:02x?}");
        self.now = self.now + Duration::from_secs(5);
        self.side.queue.handle_timeout(cx!(self));
        self.say(&[]);
        while self.side.queue.poll_event().is_some() {}
        assert!(self.side.shut && self.pool.usage().lent == 0, "{bytes:02x?}");
    }
}

#[test]
fn attack_95_icresps_late_twice_too_early_or_of_another_form() {
    let mut lied = Lied::asking();
    lied.now = lied.now + Duration::from_secs(15);
    lied.side.queue.handle_timeout(cx!(lied));
    assert_eq!(lied.side.queue.poll_link_fault(), Some(LinkFault::HandshakeTimeout));
    Lied::ready(0, false, 4096).cut_off_by(&ic_resp(0, &[]), AT_TYPE);
    // Before ICReq has left, and with bytes that were received before anything was asked.
    let mut lied = Lied::new(HostQueueSettings::default());
    let op = lied.side.queue.poll_recv(cx!(lied), LINK).unwrap();
    let mut page = lied.pool.take_sg(MemoryClass::Wire, 128).unwrap();
    page.copy_from(0, &ic_resp(0, &[]));
    let came = Received::Loaned(page.freeze());
    let result = lied.side.queue.handle_recv(cx!(lied), LINK, op, came);
    assert_eq!(result, Err(LinkFault::Fatal(AT_TYPE)));
    for (at, byte, fatal) in [
        (2, 127, FatalError::invalid_field(2)),
        (4, 127, FatalError::invalid_field(4)),
        (8, 1, FatalError::unsupported_parameter(8)),
        // Digests that were not asked for.
        (11, 1, FatalError::invalid_field(11)),
    ] {
        Lied::asking().cut_off_by(&ic_resp(at, &[byte]), fatal);
    }
    // Anything else in its place.
    Lied::asking().cut_off_by(&end(0), AT_TYPE);
}

/// The connection ends with a TermReq, which the controller has its time to read.
#[test]
fn a_header_that_came_in_pieces_and_breaks_the_rules_is_not_called_unfinished_too() {
    let mut lied =
        Lied::new(HostQueueSettings { pdu_timeout: Duration::from_secs(1), ..HostQueueSettings::default() });
    let wrong = ic_resp(10, &[32]);
    assert_eq!(lied.say(&[]).len(), 128);
    assert!(lied.say(&wrong[..64]).is_empty() && !lied.say(&wrong[64..]).is_empty());
    assert_eq!(lied.side.violation, Some(LinkFault::Fatal(FatalError::invalid_field(10))));
    lied.now = lied.now + Duration::from_secs(2);
    lied.side.queue.handle_timeout(cx!(lied));
    assert_eq!(lied.side.queue.poll_link_fault(), None);
    lied.say(&[]);
    assert!(!lied.side.shut);
}

#[test]
fn attack_96_lengths_and_alignments_that_cannot_be_granted() {
    for most in [0, 1, 4095, 4097, u32::MAX] {
        Lied::asking().cut_off_by(&ic_resp(12, &most.to_le_bytes()), FatalError::invalid_field(12));
    }
    Lied::asking().cut_off_by(&ic_resp(10, &[32]), FatalError::invalid_field(10));
    // The longest that can be: no PDU is longer than what is asked for.
    let mut lied = Lied::ready(0, false, 0xffff_fffc);
    lied.submit(true);
    assert_eq!(lied.say(&r2t(0, 0, 8192)).len(), 24 + 8192);
}

#[test]
fn attack_97_header_lengths_that_lie_are_found_before_the_digest() {
    let rows = [
        ([7, 1, 255, 28, 28, 2, 0, 0], FatalError::invalid_field(2)),
        ([5, 1, 8, 0, 28, 0, 0, 0], FatalError::invalid_field(2)),
        ([5, 1, 0, 0, 28, 0, 0, 0], FatalError::invalid_field(2)),
        ([5, 1, 24, 0, 8, 0, 0, 0], FatalError::invalid_field(4)),
        ([7, 1, 24, 28, 23, 0, 0, 0], FatalError::invalid_field(4)),
        ([9, 1, 24, 0, 0, 0, 0, 0], FatalError::invalid_field(4)),
    ];
    for (header, fatal) in rows {
        let mut lied = Lied::ready(1, false, 4096);
        lied.submit(false);
        // Eight bytes are enough: what they announce is not waited for.
        lied.cut_off_by(&header, fatal);
    }
}

#[test]
fn attack_98_data_for_a_write() {
    for flags in [0, LAST, LAST | SUCCESS] {
        Lied::busy(true).cut_off_by(&data(0, 512, flags), AT_CCCID);
    }
}

#[test]
fn attack_99_data_beyond_the_buffer_over_what_came_and_backwards() {
    let mut two_lengths = data(0, 512, 0);
    two_lengths[16..20].copy_from_slice(&1024_u32.to_le_bytes());
    let mut none = data(0, 512, 0);
    none[16..20].copy_from_slice(&[0; 4]);
    let mut other = data(0, 512, 0);
    other[8] = 1;
    for (bytes, fatal) in [
        (data(512, 512, 0), RANGE),
        (data(0, 8196, 0), RANGE),
        (data(8192, 512, 0), RANGE),
        (data(0xffff_fffc, 512, 0), RANGE),
        ([data(0, 512, 0), data(0, 512, 0)].concat(), RANGE),
        ([data(0, 1024, 0), data(512, 1024, 0)].concat(), RANGE),
        ([data(0, 4096, 0), data(8188, 4, 0)].concat(), RANGE),
        ([data(0, 512, LAST), data(512, 512, 0)].concat(), AT_CCCID),
        (two_lengths, RANGE),
        (none, RANGE),
        (other, AT_CCCID),
    ] {
        Lied::busy(false).cut_off_by(&bytes, fatal);
    }
}

#[test]
fn attack_100_a_read_that_is_short_fails_and_shows_nothing_old() {
    for (bytes, came) in [
        ([data(0, 512, LAST), end(0)].concat(), 512),
        (data(0, 512, LAST | SUCCESS), 512),
        ([data(0, 4096, 0), data(4096, 4092, LAST | SUCCESS)].concat(), 8188),
        (end(0), 0),
    ] {
        let mut lied = Lied::busy(false);
        lied.say(&bytes);
        let (answer, payload) = lied.completed().unwrap();
        assert_eq!(answer.completion().status, Status::DATA_TRANSFER_ERROR);
        let mut shown = vec![1; 8192];
        payload.into_sg().copy_to(0, &mut shown);
        assert!(shown[..came].iter().all(|byte| *byte == 0xab));
        assert!(shown[came..].iter().all(|byte| *byte == 0));
        assert_eq!(lied.side.violation, None);
    }
}

/// What is handed out of a command whose length is the controller's choice is what came, and not a byte of the
/// memory behind it.
#[test]
fn memory_for_data_of_unknown_length_is_cut_to_what_came() {
    for (bytes, came, status) in [
        ([data(0, 512, LAST), end(0)].concat(), 512, Status::SUCCESS),
        (data(0, 512, LAST | SUCCESS), 512, Status::SUCCESS),
        (data(0, 8192, LAST | SUCCESS), 8192, Status::SUCCESS),
        (end(0), 0, Status::SUCCESS),
        ([data(0, 4096, 0), failed(0)].concat(), 4096, Status(0x4006)),
    ] {
        let mut lied = Lied::ready(0, false, 4096);
        let mut memory: SgMut = lied.pool.take_sg(MemoryClass::Solicited, 8192).unwrap();
        memory.copy_from(0, &[0xdd; 8192]);
        lied.side.queue.submit_accepting_short_data(sqe(READ, 0), Payload::In(memory)).unwrap();
        lied.say(&[]);
        lied.say(&bytes);
        let (answer, payload) = lied.completed().unwrap();
        assert_eq!((answer.completion().status, payload.len()), (status, came));
        let mut shown = vec![1; came];
        payload.into_sg().copy_to(0, &mut shown);
        assert!(shown.iter().all(|byte| *byte == 0xab));
        assert_eq!(lied.side.violation, None);
    }
    // It may send less, and no more.
    let mut lied = Lied::ready(0, false, 4096);
    let memory = lied.pool.take_sg(MemoryClass::Solicited, 8192).unwrap();
    lied.side.queue.submit_accepting_short_data(sqe(READ, 0), Payload::In(memory)).unwrap();
    lied.say(&[]);
    lied.cut_off_by(&data(0, 8196, LAST | SUCCESS), RANGE);
}

/// A controller need not take all that a command of a caller's own has. How much it asked for is told; what it asked
/// for has left.
#[test]
fn a_write_of_unknown_length_is_done_when_what_was_asked_for_has_left() {
    let begun = || {
        let mut lied = Lied::ready(0, false, 4096);
        let memory = lied.pool.take_sg(MemoryClass::Solicited, 8192).unwrap();
        lied.side.queue.submit_accepting_short_data(sqe(WRITE, 0), Payload::Out(memory.freeze())).unwrap();
        lied.say(&[]);
        lied
    };
    for taken in [0, 4096, 8192] {
        let mut lied = begun();
        if taken > 0 {
            lied.say(&r2t(0, 0, taken));
        }
        lied.say(&end(0));
        let (answer, payload) = lied.completed().unwrap();
        assert_eq!((answer.completion().status, payload.len() as u32), (Status::SUCCESS, taken));
        assert_eq!(lied.side.violation, None);
    }
    begun().cut_off_by(&[r2t(0, 0, 4096), end(0)].concat(), AT_CID);
}

#[test]
fn attack_101_success_before_the_last_and_a_last_that_is_missing() {
    Lied::busy(false).cut_off_by(&data(0, 512, SUCCESS), FatalError::invalid_field(1));
    Lied::busy(false).cut_off_by(&data(0, 8192, SUCCESS), FatalError::invalid_field(1));
    Lied::busy(false).cut_off_by(&[data(0, 8192, 0), end(0)].concat(), AT_TYPE);
    Lied::busy(false).cut_off_by(&[data(0, 512, 0), end(0)].concat(), AT_TYPE);
    // Where SQHD counts, no success may ride on data.
    let mut lied = Lied::ready(0, true, 4096);
    lied.submit(false);
    lied.cut_off_by(&data(0, 8192, LAST | SUCCESS), FatalError::invalid_field(1));
}

#[test]
fn attack_102_r2ts_that_ask_for_what_is_not() {
    for (write, bytes, fatal) in [
        (true, r2t(0, 0, 0), RANGE),
        (true, r2t(0, 0, 8193), RANGE),
        (true, r2t(0, 8192, 512), RANGE),
        (true, r2t(0, 0xffff_fffc, 512), RANGE),
        (true, r2t(0, 512, 512), RANGE),
        (true, r2t(7, 0, 4096), AT_CCCID),
        (false, r2t(0, 0, 4096), AT_CCCID),
        (
            true,
            [r2t(0, 0, 512), r2t(0, 512, 512)].concat(),
            FatalError::without_fei(FatalStatus::LIMIT_EXCEEDED),
        ),
    ] {
        Lied::busy(write).cut_off_by(&bytes, fatal);
    }
    for again in [0, 256] {
        let mut lied = Lied::busy(true);
        assert_eq!(lied.say(&r2t(0, 0, 512)).len(), 24 + 512);
        lied.cut_off_by(&r2t(0, again, 512), RANGE);
    }
}

#[test]
fn attack_103_completions_of_nothing_twice_and_before_the_data() {
    Lied::busy(false).cut_off_by(&end(1), AT_CID);
    Lied::busy(true).cut_off_by(&end(0xff), AT_CID);
    Lied::busy(false).cut_off_by(&[data(0, 8192, LAST | SUCCESS), end(0)].concat(), AT_CID);
    Lied::busy(false).cut_off_by(&[data(0, 8192, LAST), end(0), end(0)].concat(), AT_CID);
    // The command is over: data for it is for nobody.
    Lied::busy(false).cut_off_by(&[end(0), data(0, 8192, LAST)].concat(), AT_CCCID);
    // A controller may refuse a write before it has taken all of it.
    let mut lied = Lied::busy(true);
    lied.say(&failed(0));
    assert!(lied.completed().is_some() && lied.side.violation.is_none());
}

#[test]
fn attack_103_success_of_a_write_whose_data_was_not_all_asked_for() {
    let rows = [
        end(0),
        [r2t(0, 0, 4096), end(0)].concat(),
        // All was asked for, and has not left.
        [r2t(0, 0, 8192), end(0)].concat(),
    ];
    for bytes in rows {
        let mut lied = Lied::busy(true);
        lied.say(&bytes);
        let (answer, payload) = lied.completed().unwrap();
        assert_eq!(answer.completion().status, Status::HOST_PATH_ERROR, "{bytes:02x?}");
        assert_eq!(payload.len(), 8192);
        drop(payload);
        Lied::busy(true).cut_off_by(&bytes, AT_CID);
    }
    // The half that was asked for has left; the other was not asked for.
    let mut lied = Lied::busy(true);
    assert_eq!(lied.say(&r2t(0, 0, 4096)).len(), 24 + 4096);
    lied.cut_off_by(&end(0), AT_CID);
    let mut lied = Lied::busy(true);
    lied.say(&r2t(0, 0, 8192));
    lied.say(&end(0));
    let (answer, _) = lied.completed().unwrap();
    assert_eq!((answer.completion(), lied.side.violation.take()), (Completion::SUCCESS, None));
}

#[test]
fn attack_104_digests_that_are_wrong() {
    let with = |mut pdu: Vec<u8>, sum: [u8; 4]| {
        pdu[1] |= 1;
        pdu[4] += 4;
        pdu.extend(sum);
        pdu
    };
    let mut lied = Lied::ready(1, false, 4096);
    assert_eq!(lied.submit(false), 76);
    lied.cut_off_by(&with(end(0), [1, 2, 3, 4]), FatalError::header_digest_error([1, 2, 3, 4]));
    // Of data: that command fails, and the queue goes on.
    let whole = |sum: [u8; 4]| {
        let mut pdu = data(0, 8192, LAST | SUCCESS | 2);
        pdu[4..8].copy_from_slice(&(24 + 8192 + 4_u32).to_le_bytes());
        pdu.extend(sum);
        pdu
    };
    let mut lied = Lied::ready(2, false, 4096);
    lied.submit(false);
    lied.say(&whole([1, 2, 3, 4]));
    let (answer, _) = lied.completed().unwrap();
    assert_eq!(answer.completion().status, Status::TRANSIENT_TRANSPORT_ERROR);
    lied.submit(false);
    let mut right = whole(crc32c_digest(&[0xab; 8192]));
    right[8] = 1;
    lied.say(&right);
    let (answer, _) = lied.completed().unwrap();
    assert_eq!((answer.completion(), lied.side.violation.take()), (Completion::SUCCESS, None));
    // A digest that was not agreed.
    let mut lied = Lied::ready(0, false, 4096);
    lied.submit(false);
    lied.cut_off_by(&with(end(0), [0; 4]), FatalError::invalid_field(1));
}

#[test]
fn types_that_only_hosts_send_end_the_connection() {
    Lied::busy(false).cut_off_by(&[4, 0, 72, 0, 72, 0, 0, 0], FatalError::invalid_field(0));
}

#[test]
fn a_write_goes_in_pieces_of_what_the_controller_takes() {
    let sent = Lied::busy(true).say(&r2t(0, 0, 8192));
    assert_eq!(sent.len(), 2 * (24 + 4096));
    assert_eq!((sent[1], sent[24 + 4096 + 1]), (0, LAST));
}

/// nvmet of Linux 6.1 checks the digest of each PDU against that of the whole command's data.
#[test]
fn a_write_with_a_digest_goes_in_one_piece_if_the_controller_takes_it() {
    let len = 512 << 10;
    let mut lied = Lied::ready(2, false, 4 << 20);
    lied.submit_of(true, len);
    let sent = lied.say(&r2t(0, 0, len as u32));
    assert_eq!(sent.len(), 24 + len + 4);
    assert_eq!(sent[1] & LAST, LAST);
    assert_eq!(sent[24 + len..], buf::crc32c::crc32c(&vec![0xdd; len]).to_le_bytes());
}
