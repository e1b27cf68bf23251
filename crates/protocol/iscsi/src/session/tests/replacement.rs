//! A session goes on in another process, again and again, in the middle of everything. The initiator notices
//! nothing: each command is answered once, with the right bytes and numbers.

use super::super::request::ScsiCommand;
use super::super::snapshot::omissions::{Omission, omit};
use super::super::*;
use super::scripted_initiator::*;
use crate::wire::*;
use buf::{Entropy, MemoryClass, Pool};
use std::collections::BTreeMap;

/// What the initiator knows of a command.
struct Issued {
    offset: u32,
    len: u32,
    /// The data of a write.
    data: Option<Vec<u8>>,
    /// How much of a read has come.
    came: u32,
    data_sn: u32,
}

/// One link of the initiator.
#[derive(Default)]
struct Side {
    /// Bytes that are on their way to the session.
    out: Vec<u8>,
    /// Bytes that came and are no whole PDU.
    incoming: Vec<u8>,
    exp_stat_sn: u32,
    max_cmd_sn: Sn,
}

/// An initiator of two links with a few commands in flight, a server that takes its time, and a process that is
/// replaced.
struct History {
    peer: ScriptedInitiator,
    entropy: Entropy,
    sides: [Side; 2],
    issued: BTreeMap<u32, Issued>,
    next: u32,
    max_cmd_sn: Sn,
    /// Writes that the server has given a place, with their commands.
    placed: Vec<(Tag, ScsiCommand)>,
    model: Vec<u8>,
    answered: u32,
    digest: bool,
    /// What a replacement forgets, to see that it is noticed.
    omission: Omission,
    replaced: u32,
    half_pdus: u32,
    cut_sends: u32,
    withdrawn: u32,
}

const SPAN: u32 = 24 << 10;

impl History {
    fn new(seed: u64, omission: Omission) -> Self {
        let digest = seed % 2 == 1;
        let link = |cid| LinkParams { header_digest: digest, data_digest: digest, ..link_params(cid) };
        let mut peer = ScriptedInitiator::with(
            SessionParams {
                immediate_data: !seed.is_multiple_of(3),
                initial_r2t: seed % 5 > 1,
                ..session_params()
            },
            link(0),
            SessionLimits { nop_interval: None, ..limits() },
        );
        peer.attach(link(1));
        peer.mode = ServerMode::Keep;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let model = peer.disk.clone();
        let max_cmd_sn = peer.session.command_numbers().1;
        let side = || Side { exp_stat_sn: 100, max_cmd_sn, ..Side::default() };
        History {
            max_cmd_sn,
            peer,
            entropy: Entropy::new(key),
            sides: [side(), side()],
            issued: BTreeMap::new(),
            next: 0,
            placed: Vec::new(),
            model,
            answered: 0,
            digest,
            omission,
            replaced: 0,
            half_pdus: 0,
            cut_sends: 0,
            withdrawn: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        (self.entropy.next_u64() % n as u64) as usize
    }

    fn send<P: Pdu>(&mut self, side: usize, pdu: &P, data: &[u8]) {
        let mut bhs = pdu.to_bhs();
        // ExpStatSN stands at the same place in every request.
        bhs.rest[8..12].copy_from_slice(&self.sides[side].exp_stat_sn.to_be_bytes());
        let bytes = digested(P::from_bhs(&bhs), &[], data, self.digest, self.digest);
        self.sides[side].out.extend(bytes);
    }

    /// One command, if the window admits it. Commands in flight do not overlap.
    fn issue(&mut self) {
        let cmd_sn = sn(self.next);
        if !cmd_sn.le(self.max_cmd_sn) {
            return;
        }
        let itt = self.next;
        let offset = (itt % 16) * (SPAN * 2);
        if self.issued.values().any(|other| other.offset == offset) {
            return;
        }
        self.next += 1;
        let side = self.below(2);
        let len = 1 + self.below(SPAN as usize) as u32;
        let mut data = None;
        if self.below(3) == 0 {
            self.send(side, &read(itt, offset, len), &[]);
        } else {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 3 + itt * 7 + i / 251) as u8).collect();
            let params = self.peer.session.params().clone();
            let first = len.min(params.first_burst);
            let immediate = if params.immediate_data { self.below(first as usize + 1) as u32 } else { 0 };
            let immediate = immediate.min(params.segment_max);
            let mut pdu = write(itt, offset, len);
            let open = !params.initial_r2t && immediate < first;
            if open {
                pdu.flags = pdu.flags.without(CommandFlags::FINAL);
            }
            self.send(side, &pdu, &bytes[..immediate as usize]);
            if open {
                self.send_data(side, itt, Ttt::NONE, immediate, &bytes[immediate as usize..first as usize]);
            }
            data = Some(bytes);
        }
        self.issued.insert(itt, Issued { offset, len, data, came: 0, data_sn: 0 });
    }

    /// A sequence of Data-Outs.
    fn send_data(&mut self, side: usize, itt: u32, ttt: Ttt, offset: u32, data: &[u8]) {
        let segments: Vec<&[u8]> = data.chunks(3000).collect();
        let (mut at, last) = (offset, segments.len() - 1);
        for (i, segment) in segments.into_iter().enumerate() {
            self.send(side, &data_out(itt, ttt, i as u32, at, i == last), segment);
            at += segment.len() as u32;
        }
    }

    /// Some bytes of a link reach the session.
    fn deliver(&mut self) {
        let side = self.below(2);
        let most = self.sides[side].out.len();
        let n = if self.below(3) == 0 { most } else { self.below(most + 1) };
        let bytes: Vec<u8> = self.sides[side].out.drain(..n).collect();
        self.peer.feed(side, &bytes);
        self.collect();
    }

    /// The server does one thing.
    fn serve(&mut self) {
        if self.peer.kept.is_empty() {
            return;
        }
        let at = self.below(self.peer.kept.len());
        let (tag, Request::Scsi(command)) = self.peer.kept.remove(at) else { panic!("a command") };
        let offset = u32::from_be_bytes(command.cdb.as_slice()[2..6].try_into().unwrap());
        let is_read = command.read;
        if command.write {
            let memory = self.peer.pool.take_sg(MemoryClass::Solicited, command.edtl as usize).unwrap();
            self.peer.writes.push((tag, offset, command.edtl));
            self.placed.push((tag, command));
            self.peer.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
        } else if self.below(4) == 0 {
            let from = offset as usize;
            let mut memory = self.peer.pool.take_sg(MemoryClass::Solicited, command.edtl as usize).unwrap();
            memory.copy_from(0, &self.peer.disk[from..from + command.edtl as usize]);
            let result = ScsiResult { fence: true, ..ScsiResult::good(u64::from(command.edtl)) };
            self.peer.with_cx(|session, cx| {
                session.send_data(cx, tag, 0, memory.freeze());
                session.respond(cx, tag, Response::Scsi(result));
            });
        } else {
            self.peer.send_read(tag, offset as usize, command.edtl as usize);
        }
        if is_read && self.below(2) == 0 {
            // What is ready waits for the next step, which may be a replacement.
            return;
        }
        self.peer.pump();
        self.collect();
    }

    /// Takes what the session sent, and acts on it.
    fn collect(&mut self) {
        for side in 0..2 {
            let sent = std::mem::take(&mut self.peer.ends[side].sent);
            self.sides[side].incoming.extend(sent);
            while let Some(pdu) = self.next_pdu(side) {
                self.take(side, &pdu);
            }
        }
        let writes = &self.peer.writes;
        self.placed.retain(|(tag, _)| writes.iter().any(|(write, ..)| write == tag));
    }

    fn next_pdu(&mut self, side: usize) -> Option<ReceivedPdu> {
        let incoming = &mut self.sides[side].incoming;
        let bhs = *Bhs::from_prefix(incoming)?;
        let digest = if self.digest { 4 } else { 0 };
        let data = padded_len(bhs.data_len()).unwrap();
        let whole = BHS_LEN + digest + data + if data > 0 { digest } else { 0 };
        if incoming.len() < whole {
            return None;
        }
        let bytes: Vec<u8> = incoming.drain(..whole).collect();
        parse(&bytes, self.digest, self.digest).pop()
    }

    fn take(&mut self, side: usize, got: &ReceivedPdu) {
        let common = DataIn::from_bhs(&got.bhs);
        assert!(self.sides[side].max_cmd_sn.le(common.max_cmd_sn), "MaxCmdSN never moves backwards");
        self.sides[side].max_cmd_sn = common.max_cmd_sn;
        if self.max_cmd_sn.lt(common.max_cmd_sn) {
            self.max_cmd_sn = common.max_cmd_sn;
        }
        let counts = match got.op() {
            Opcode::DATA_IN => common.flags.contains(DataInFlags::STATUS),
            Opcode::R2T => false,
            Opcode::NOP_IN => !got.bhs.itt.is_none(),
            Opcode::SCSI_RESPONSE => true,
            other => panic!("{other:?}: {got:?}"),
        };
        if counts {
            assert_eq!(common.stat_sn.value(), self.sides[side].exp_stat_sn, "StatSN");
            self.sides[side].exp_stat_sn += 1;
        }
        let itt = got.bhs.itt.value();
        match got.op() {
            Opcode::NOP_IN => {
                let ping: NopIn = got.as_pdu();
                if !ping.ttt.is_none() {
                    let mut pong = NopOut::new();
                    (pong.itt, pong.ttt, pong.cmd_sn) = (Itt::NONE, ping.ttt, sn(self.next));
                    let mut header = pong.to_bhs();
                    header.op = header.op.with_immediate();
                    self.send(side, NopOut::from_bhs(&header), &[]);
                }
            }
            Opcode::R2T => {
                let r2t: R2t = got.as_pdu();
                let issued = self.issued.get_mut(&itt).expect("an R2T of a command in flight");
                assert_eq!(r2t.r2t_sn.value(), issued.data_sn, "R2TSN");
                issued.data_sn += 1;
                let (from, len) = (r2t.buffer_offset.get(), r2t.desired_len.get());
                let data = issued.data.as_ref().unwrap()[from as usize..(from + len) as usize].to_vec();
                self.send_data(side, itt, r2t.ttt, from, &data);
            }
            Opcode::DATA_IN => {
                let data: DataIn = got.as_pdu();
                let issued = self.issued.get_mut(&itt).expect("data of a command in flight");
                assert_eq!((data.data_sn.value(), data.buffer_offset.get()), (issued.data_sn, issued.came));
                let from = (issued.offset + issued.came) as usize;
                assert!(got.data == self.model[from..from + got.data.len()], "wrong bytes of {itt}");
                issued.data_sn += 1;
                issued.came += got.data.len() as u32;
                if data.flags.contains(DataInFlags::STATUS) {
                    self.end(itt, data.status, data.residual.get());
                }
            }
            _response => {
                let response: ScsiResponse = got.as_pdu();
                self.end(itt, response.status, response.residual.get());
            }
        }
    }

    fn end(&mut self, itt: u32, status: ScsiStatus, residual: u32) {
        let issued = self.issued.remove(&itt).expect("a command is answered once");
        assert_eq!((status, residual), (ScsiStatus::GOOD, 0), "command {itt}");
        match issued.data {
            Some(data) => {
                let from = issued.offset as usize;
                self.model[from..from + data.len()].copy_from_slice(&data);
                assert!(self.peer.disk[from..from + data.len()] == data[..], "written bytes of {itt}");
            }
            None => assert_eq!(issued.came, issued.len),
        }
        self.answered += 1;
    }

    /// The process is to be replaced. Half of the time it goes on after all.
    fn replace(&mut self) {
        self.peer.session.quiesce();
        for side in 0..2 {
            if let Some(op) = self.peer.ends[side].op.take() {
                let link = LinkNumber(side as u16);
                self.peer
                    .with_cx(|session, cx| session.handle_recv(cx, link, op, Received::Cancelled).unwrap());
            }
        }
        let given = self.peer.kept.drain(..).map(|(tag, command)| match command {
            Request::Scsi(command) => (tag, command),
            other => panic!("{other:?}"),
        });
        let given: Vec<_> = given.chain(self.placed.drain(..)).collect();
        self.peer.writes.clear();
        for (tag, command) in given {
            self.peer.session.withdraw(tag, command).expect("it has had no effect");
            self.withdrawn += 1;
        }
        for side in 0..2 {
            self.cut_send(side);
        }
        let saved = self.peer.with_cx(|session, cx| session.save(cx).unwrap());
        let aborted = self.below(2) == 0 && self.omission == Omission::Nothing;
        if aborted {
            self.peer.session.resume();
        } else {
            self.replaced += 1;
            let snapshot = SessionSnapshot::from_bytes(omit(&saved, self.omission).as_bytes().into());
            // The new process has another pool, and another clock; the old one ends.
            let pool = std::mem::replace(&mut self.peer.pool, Pool::new_poisoned(32 << 20));
            self.peer.now = Time(1 + self.entropy.next_u64() % 1_000_000_000);
            self.peer.session =
                self.peer.with_cx(|_, cx| TargetSession::restore(cx, &snapshot, &limits()).unwrap());
            assert_eq!((pool.usage().lent, pool.usage().reserved), (0, 0));
        }
        self.peer.pump();
        self.collect();
    }

    /// What is ready to be sent is stopped in the middle.
    fn cut_send(&mut self, side: usize) {
        let link = LinkNumber(side as u16);
        let Some(op) = self.peer.with_cx(|session, cx| session.poll_send(cx, link)) else { return };
        let written = self.below(op.len + 1);
        let bytes = testkit::delivery::send_op_bytes(&op);
        self.peer.ends[side].sent.extend(&bytes[..written]);
        self.peer.with_cx(|session, cx| session.handle_send_cut(cx, link, op, written));
        self.cut_sends += 1;
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.below(12) {
                0..4 => self.issue(),
                4..8 => self.deliver(),
                8..11 => self.serve(),
                _ => {
                    // An answer that is given now is what a stopped send finds.
                    self.half_pdus += u32::from(self.sides.iter().any(|side| !side.out.is_empty()));
                    self.replace();
                }
            }
        }
        for _ in 0..40 * 16 {
            self.deliver();
            self.serve();
        }
        assert!(self.issued.is_empty(), "commands without an answer: {:?}", self.issued.keys());
        assert_eq!(self.peer.violations, []);
        assert!(!self.peer.closed && self.peer.ends.iter().all(|end| !end.shut), "a link was lost");
        assert!(self.peer.disk == self.model);
    }
}

/// How many histories, each of some sixteen replacements of which half are taken back.
const HISTORIES: u64 = 150;

#[test]
fn an_initiator_does_not_notice_that_the_process_is_replaced() {
    let (mut replaced, mut half_pdus, mut cut_sends, mut withdrawn) = (0, 0, 0, 0);
    for seed in 0..HISTORIES {
        let mut history = History::new(seed, Omission::Nothing);
        history.run(200);
        replaced += history.replaced;
        half_pdus += history.half_pdus;
        cut_sends += history.cut_sends;
        withdrawn += history.withdrawn;
    }
    // That all of it happens.
    assert!(replaced > 5 * HISTORIES as u32, "{replaced}");
    assert!(half_pdus > 500 && cut_sends > 50 && withdrawn > 2000, "{half_pdus} {cut_sends} {withdrawn}");
}

#[test]
fn what_a_replacement_forgets_is_noticed() {
    for omission in Omission::ALL {
        let noticed =
            |seed: &u64| std::panic::catch_unwind(|| History::new(*seed, omission).run(200)).is_err();
        assert!((0..24).any(|seed| noticed(&seed)), "{omission:?}");
    }
}
