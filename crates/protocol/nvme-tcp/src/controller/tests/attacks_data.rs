//! Known attacks on the transport, with fixed bytes: H2CData.

use super::super::*;
use super::pair::*;
use crate::LinkFault;
use crate::wire::{FatalError, FatalStatus, Flags, H2cData, IcReq, R2t};
use nvme::Status;
use stream::Connection;
use zerocopy::IntoBytes;

const RANGE: FatalError = FatalError::without_fei(FatalStatus::OUT_OF_RANGE);
const LIMIT: FatalError = FatalError::without_fei(FatalStatus::LIMIT_EXCEEDED);
const NO_TRANSFER: FatalError = FatalError::sequence_error(10);

/// A queue that has asked for 8192 bytes of a write of 16,384.
fn asked() -> (Pair, R2t) {
    let limits = QueueLimits { max_h2c_data: 8192, r2t_len_max: 8192, ..QueueLimits::default() };
    let mut pair = Pair::fresh(limits);
    pair.establish(IcReq::new(0, false, false, 1), SIZE);
    let r2t = pair.command(&write(5, 0, 16_384), &[])[0].r2t();
    assert_eq!((r2t.r2to.get(), r2t.r2tl.get()), (0, 8192));
    (pair, r2t)
}

/// Sends an H2CData with these fields and so much data, and sees the connection end for this reason.
fn assert_ends(bend: impl Fn(&mut H2cData), data: usize, fatal: FatalError) {
    let (mut pair, r2t) = asked();
    let disk = pair.disk.clone();
    let mut header = H2cData::new(r2t.cccid.get(), r2t.ttag.get(), 0, data as u32, false);
    bend(&mut header);
    let mut bytes = PLAIN.pdu(header.as_bytes(), 0, &vec![0xee; data]);
    if header.common.plen.get() != 24 {
        bytes[4..8].copy_from_slice(&header.common.plen.get().to_le_bytes());
    }
    let got = pair.talk(&bytes);
    assert_eq!(got[0].term(), fatal, "{header:?}");
    assert_eq!(got[0].data, bytes[..24]);
    assert_eq!(pair.violations, [LinkFault::Fatal(fatal)]);
    assert!(pair.disk == disk, "nothing was written");
    pair.hang_up();
    pair.assert_gone();
}

#[test]
fn attack_59_data_that_nobody_asked_for() {
    let (_, r2t) = asked();
    let ttag = r2t.ttag.get();
    for other in [0, 1, ttag.wrapping_add(1), ttag.wrapping_sub(1), ttag ^ 0x8000, u16::MAX] {
        if other != ttag {
            assert_ends(|pdu| pdu.ttag.set(other), 4096, NO_TRANSFER);
        }
    }
    assert_ends(|pdu| pdu.cccid.set(6), 4096, NO_TRANSFER);
    // For a read, for a write whose data has no place, and for a command that is finished.
    for command in [read(1, 0, 4096), write(1, 0, 4096)] {
        let mut pair = Pair::plain();
        pair.mode = Mode::Keep;
        pair.command(&command, &[]);
        let r2t = R2t::new(1, 0, 0, 4096);
        assert_eq!(pair.talk(&PLAIN.h2c(&r2t, 0, &[0; 4096], true))[0].term(), NO_TRANSFER);
    }
    let (mut pair, r2t) = asked();
    let second = pair.talk(&PLAIN.h2c(&r2t, 0, &[1; 8192], true))[0].r2t();
    assert_ne!(second.ttag, r2t.ttag);
    let got = pair.talk(&PLAIN.h2c(&second, 8192, &[1; 8192], true));
    assert_eq!(got[0].status(), Status::SUCCESS);
    assert_eq!(pair.talk(&PLAIN.h2c(&second, 8192, &[1; 8192], true))[0].term(), NO_TRANSFER);
}

#[test]
fn attack_60_offsets_and_lengths_that_lie() {
    assert_ends(|pdu| pdu.datao.set(1), 4096, RANGE);
    assert_ends(|pdu| pdu.datao.set(8192), 4096, RANGE);
    assert_ends(|pdu| pdu.datao.set(u32::MAX - 100), 4096, RANGE);
    assert_ends(|pdu| pdu.datal.set(4092), 4096, RANGE);
    assert_ends(|pdu| pdu.datal.set(u32::MAX), 4096, RANGE);
    assert_ends(|pdu| pdu.datal.set(0), 4096, RANGE);
    assert_ends(|_| {}, 0, RANGE);
    assert_ends(|_| {}, 8196, LIMIT);
    // A length that no PDU may have, whatever DATAL says.
    assert_ends(|pdu| pdu.common.plen.set(1 << 29), 4096, FatalError::invalid_field(4));
    // Backwards, after a good one.
    let (mut pair, r2t) = asked();
    pair.feed(&PLAIN.h2c(&r2t, 0, &[1; 4096], false));
    assert_eq!(pair.talk(&PLAIN.h2c(&r2t, 0, &[1; 4096], false))[0].term(), RANGE);
}

#[test]
fn attack_61_the_last_flag_missing_or_early() {
    assert_ends(|_| {}, 8192, RANGE);
    assert_ends(|pdu| pdu.common.flags = Flags::LAST, 4096, RANGE);
    // More than was asked for, in the second PDU.
    let (mut pair, r2t) = asked();
    pair.feed(&PLAIN.h2c(&r2t, 0, &[1; 4096], false));
    assert_eq!(pair.talk(&PLAIN.h2c(&r2t, 4096, &[1; 4100], true))[0].term(), RANGE);
    pair.hang_up();
    pair.assert_gone();
}

/// What another command left in every block of the pool, and how to tell.
const ANOTHERS: u8 = 0xa5;

fn leave_behind(pair: &Pair) {
    let blocks: Vec<_> =
        std::iter::from_fn(|| pair.pool.take(buf::MemoryClass::Solicited, 1 << 20)).collect();
    for mut block in blocks {
        block.fill(ANOTHERS);
    }
}

/// A write by data PDUs whose capsule brings data too: its buffer is not full of what never came.
#[test]
fn attack_62_capsule_data_never_stands_for_data_that_was_not_sent() {
    for (poisoned, brought) in [(true, 512), (true, 8192), (false, 512), (false, 8192), (false, 4)] {
        let mut pair = if poisoned { Pair::plain() } else { Pair::unpoisoned() };
        leave_behind(&pair);
        let before = pair.disk.clone();
        let capsule = PLAIN.capsule(&write(1, 0, 8192), &vec![0xee; brought]);
        // The header, most of its data, and the end of it: the buffer is placed before the last of them.
        let (head, rest) = capsule.split_at(72);
        let (most, last) = rest.split_at(rest.len() - 1);
        let mut got = Vec::new();
        for part in [head, most, last] {
            got.extend(pair.talk(part));
        }
        assert_eq!(got.len(), 1, "{got:?}");
        assert_eq!(got[0].status(), Status::SGL_TYPE_INVALID.with_do_not_retry());
        assert!(pair.disk == before, "nothing was written: {brought}");
        assert!(pair.violations.is_empty());
        // The queue goes on.
        let got = pair.command(&write_here(2, 0, 512), &[7; 512]);
        assert_eq!((got[0].status(), &pair.disk[..512]), (Status::SUCCESS, &[7; 512][..]));
    }
}

/// A command that moves data to the host, or none, has no use for data in its capsule.
#[test]
fn capsule_data_of_a_read_is_skipped() {
    let mut pair = Pair::plain();
    let (data, rest) = gather(pair.command(&read(1, 0, 512), &[0xee; 512]), 512);
    assert_eq!((rest[0].status(), &data[..]), (Status::SUCCESS, &pair.disk[..512]));
    assert_eq!(pair.command(&sqe(FLUSH, 2, 0, 0, 0), &[0xee; 64])[0].status(), Status::SUCCESS);
}

/// A server that places more than the command has gets no more than came.
#[test]
fn a_buffer_longer_than_the_data_is_cut_to_what_comes() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&write_here(1, 0, 512), &[]);
    assert!(pair.kept.is_empty(), "an SGL that is longer than the capsule is refused");
    pair.feed(&PLAIN.capsule(&write_here(2, 0, 512), &[9; 512]));
    let (tag, _) = pair.kept[0];
    let memory = pair.pool.take_sg(buf::MemoryClass::Solicited, 4096).unwrap();
    pair.with_cx(|queue, cx| queue.recv_data(cx, tag, 0, memory));
    let received = loop {
        match pair.queue.poll_event() {
            Some(TargetEvent::DataReceived { data, .. }) => break data,
            Some(_) => {}
            None => pair.with_cx(|queue, cx| queue.resume_parsing(cx).unwrap()),
        }
    };
    assert_eq!(received.len(), 512);
}

#[test]
fn attack_61_a_host_that_never_sends_what_was_asked_for() {
    let (mut pair, _) = asked();
    for _ in 0..6 {
        // Other commands do not help it.
        assert_eq!(pair.command(&read(1, 0, 512), &[]).len(), 2);
        pair.pass(Duration::from_secs(10));
    }
    assert_eq!(pair.violations, [LinkFault::Stalled]);
    pair.assert_gone();
}

#[test]
fn attack_61_a_little_data_now_and_then_is_no_progress() {
    let (mut pair, r2t) = asked();
    for n in 0..6 {
        assert!(pair.violations.is_empty());
        pair.feed(&PLAIN.h2c(&r2t, 512 * n, &[0xee; 512], false));
        pair.pass(Duration::from_secs(10));
    }
    assert_eq!(pair.violations, [LinkFault::Stalled]);
    pair.assert_gone();
}

#[test]
fn attack_61_what_is_asked_for_and_does_not_come_is_bounded() {
    let limits = QueueLimits { write_bytes: 64 << 10, ..QueueLimits::default() };
    let mut pair = Pair::fresh(limits);
    pair.establish(IcReq::new(0, false, false, 1), SIZE);
    pair.mode = Mode::Keep;
    for cid in 0..3 {
        pair.command(&write(cid, 0, 48 << 10), &[]);
    }
    let tags: Vec<Tag> = pair.kept.iter().map(|(tag, _)| *tag).collect();
    assert!(pair.queue.reserve_receive_window(tags[0], 48 << 10));
    assert!(
        !pair.queue.reserve_receive_window(tags[1], 48 << 10)
            && pair.queue.reserve_receive_window(tags[1], 16 << 10)
    );
    pair.with_cx(|queue, cx| queue.end_without_response(cx, tags[1]));
    assert!(
        !pair.queue.reserve_receive_window(tags[2], 17 << 10)
            && pair.queue.reserve_receive_window(tags[2], 16 << 10)
    );
    let memory = pair.pool.take_sg(MemoryClass::Solicited, 48 << 10).unwrap();
    pair.with_cx(|queue, cx| queue.recv_data(cx, tags[0], 0, memory));
    pair.pump();
    let r2t = pair.take()[0].r2t();
    pair.feed(&PLAIN.h2c(&r2t, 0, &[0xee; 48 << 10], true));
    assert!(pair.queue.reserve_receive_window(tags[2], 48 << 10));
}

#[test]
fn data_of_a_command_that_was_answered_early_is_skipped() {
    let (mut pair, r2t) = asked();
    let tag = pair.queue.role.tasks.tags()[0];
    let disk = pair.disk.clone();
    pair.answer(tag, Status::ABORT_REQUESTED.into());
    pair.pump();
    assert!(pair.take().is_empty(), "the answer waits for the data");
    // Until then the identifier is in use.
    assert_eq!(
        pair.command(&read(5, 0, 512), &[])[0].status(),
        Status::COMMAND_ID_CONFLICT.with_do_not_retry()
    );
    let got = pair.talk(&PLAIN.h2c(&r2t, 0, &[0xee; 8192], true));
    assert_eq!((got.len(), got[0].status()), (1, Status::ABORT_REQUESTED));
    assert!(pair.disk == disk && pair.queue.tasks_in_work() == 0);
}

#[test]
fn data_of_a_command_that_was_retired_is_skipped() {
    let (mut pair, r2t) = asked();
    let tag = pair.queue.role.tasks.tags()[0];
    pair.with_cx(|queue, cx| queue.end_without_response(cx, tag));
    assert!(pair.talk(&PLAIN.h2c(&r2t, 0, &[0xee; 4096], false)).is_empty());
    assert!(pair.talk(&PLAIN.h2c(&r2t, 4096, &[0xee; 4096], true)).is_empty());
    assert_eq!((pair.queue.tasks_in_work(), pair.violations.len()), (0, 0));
    assert_eq!(pair.command(&read(5, 0, 512), &[])[1].status(), Status::SUCCESS);
}

#[test]
fn in_capsule_data_of_a_refused_command_is_skipped() {
    for digests in [false, true] {
        let mut pair = Pair::open(IcReq::new(0, digests, digests, 1), SIZE);
        pair.mode = Mode::Keep;
        let dialect = pair.dialect();
        let bytes = dialect.capsule(&write_here(1, 0, 4096), &[1; 4096]);
        // The server answers before the data has come: two receives did not bring it.
        pair.feed(&bytes[..300]);
        assert!(pair.kept.is_empty(), "the command may be whole in a moment");
        pair.feed(&bytes[300..500]);
        let (tag, _) = pair.kept[0];
        pair.answer(tag, Status::RESERVATION_CONFLICT.into());
        pair.pump();
        assert!(pair.take().is_empty());
        pair.mode = Mode::Serve;
        let mut rest = bytes[500..].to_vec();
        rest.extend(dialect.capsule(&read(2, 0, 512), &[]));
        let got = pair.talk(&rest);
        assert_eq!(got[0].status(), Status::RESERVATION_CONFLICT);
        assert_eq!((got[1].data.len(), got[2].status()), (512, Status::SUCCESS));
    }
}

#[test]
fn in_capsule_data_waits_in_the_stream_while_no_memory_is_set_aside() {
    // Half of 32 MiB may be promised: what is left is enough for two capsules of this queue.
    let mut pair = Pair::fresh(QueueLimits::default());
    let taken = (16 << 20) - 2 * 8192;
    assert!(pair.pool.reserve(buf::PoolAccount::NvmeTcp, taken));
    pair.establish(IcReq::new(0, false, false, 1), SIZE);
    pair.mode = Mode::Keep;
    let bytes: Vec<u8> =
        (1..=4).flat_map(|cid| PLAIN.capsule(&write_here(cid, 0, 4096), &[1; 4096])).collect();
    pair.feed(&bytes);
    assert_eq!(pair.kept.len(), 1, "its data has no place");
    let place = |pair: &mut Pair, tag: Tag| {
        let class = pair.queue.write_memory_class(tag);
        assert_eq!(class, buf::MemoryClass::Unsolicited);
        let memory = pair.pool.take_sg(class, 4096).unwrap();
        pair.with_cx(|queue, cx| queue.recv_data(cx, tag, 0, memory));
        pair.pump();
    };
    let first = pair.kept[0].0;
    place(&mut pair, first);
    let second = pair.kept[1].0;
    place(&mut pair, second);
    assert_eq!(pair.kept.len(), 2, "there is memory for two");
    pair.answer(first, Completion::SUCCESS);
    pair.pump();
    assert_eq!(pair.kept.len(), 2, "one of the first two, and the third");
    pair.pool.unreserve(buf::PoolAccount::NvmeTcp, taken);
    let third = pair.kept[1].0;
    place(&mut pair, third);
    assert_eq!(pair.kept.len(), 3, "memory came back, and is set aside");
}

#[test]
fn a_command_that_is_answered_at_once_is_not_aborted_after_that() {
    let mut pair = Pair::plain();
    // What ends the connection comes with the command, before the server hears of it.
    let mut bytes = PLAIN.capsule(&sqe(FLUSH, 1, 0, 0, 0), &[]);
    bytes.extend([0xff; 8]);
    pair.feed(&bytes);
    assert_eq!((pair.aborted.len(), pair.violations.len()), (0, 1));
    pair.hang_up();
    pair.assert_gone();
}
