//! A queue goes on in another process, again and again, in the middle of everything. The host notices nothing:
//! each command is answered once, with the right bytes and numbers.

use super::super::snapshot::omissions::{Omission, omit};
use super::super::*;
use super::pair::*;
use crate::queue::LINK;
use crate::wire::{CommonHeader, Flags, IcReq, PduType, R2t};
use buf::{Entropy, MemoryClass, Pool};
use std::collections::BTreeMap;
use stream::{Connection, Received};
use zerocopy::FromBytes;

/// What the host knows of a command.
struct Issued {
    offset: u32,
    len: u32,
    /// The data of a write.
    data: Option<Vec<u8>>,
    /// How much of a read has come.
    came: u32,
}

/// A stretch of a write that was asked for.
struct Owed {
    r2t: R2t,
    next: u32,
    end: u32,
}

/// A host with a few commands in flight, a server that takes its time, and a process that is replaced.
struct History {
    pair: Pair,
    entropy: Entropy,
    /// Bytes that are on their way to the queue.
    out: Vec<u8>,
    /// Bytes that came and are no whole PDU.
    incoming: Vec<u8>,
    issued: BTreeMap<u16, Issued>,
    next: u32,
    owed: Vec<Owed>,
    sqhd: u16,
    /// Writes that the server has given a place, with their commands.
    placed: Vec<(Tag, Sqe)>,
    model: Vec<u8>,
    omission: Omission,
    replaced: u32,
    cut_sends: u32,
    withdrawn: u32,
    interleaved: u32,
}

const SPAN: u32 = 20 << 10;

fn queue_limits() -> QueueLimits {
    QueueLimits { r2t_len_max: 8192, max_h2c_data: 8192, ..QueueLimits::default() }
}

impl History {
    fn new(seed: u64, omission: Omission) -> Self {
        let digest = seed % 2 == 1;
        let mut pair = Pair::fresh(queue_limits());
        let size = ConnectedQueueSize { flow_control: !seed.is_multiple_of(3), ..SIZE };
        pair.establish(IcReq::new(0, digest, digest, 1 + (seed % 3) as u32), size);
        pair.mode = Mode::Keep;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let model = pair.disk.clone();
        History {
            pair,
            entropy: Entropy::new(key),
            out: Vec::new(),
            incoming: Vec::new(),
            issued: BTreeMap::new(),
            next: 0,
            owed: Vec::new(),
            sqhd: 1,
            placed: Vec::new(),
            model,
            omission,
            replaced: 0,
            cut_sends: 0,
            withdrawn: 0,
            interleaved: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        (self.entropy.next_u64() % n as u64) as usize
    }

    /// One command, if the queue has room. Commands in flight do not overlap.
    fn issue(&mut self) {
        let cid = (self.next % 11) as u16;
        let offset = u32::from(cid) * SPAN * 2;
        if self.issued.len() >= usize::from(SIZE.entries) - 1 || self.issued.contains_key(&cid) {
            return;
        }
        let len = 4 * (1 + self.below(SPAN as usize / 4) as u32);
        let (mut sqe, data) = match self.below(3) {
            0 => (read(cid, offset, len), None),
            kind => {
                let here = kind == 1;
                let len = if here { len.min(SIZE.in_capsule_max) } else { len };
                let data: Vec<u8> = (0..len).map(|i| (i * 3 + self.next * 7 + i / 251) as u8).collect();
                (if here { write_here(cid, offset, len) } else { write(cid, offset, len) }, Some(data))
            }
        };
        // The server can tell in which order the commands came.
        sqe.cdw10[1] = self.next.into();
        self.next += 1;
        let in_capsule = data.as_deref().filter(|_| sqe.dptr.identifier == nvme::SglDescriptor::IN_CAPSULE);
        let bytes = self.pair.dialect().capsule(&sqe, in_capsule.unwrap_or_default());
        self.out.extend(bytes);
        let len = sqe.dptr.length.get();
        self.issued.insert(cid, Issued { offset, len, data, came: 0 });
    }

    /// Some data that was asked for.
    fn send_data(&mut self) {
        if self.owed.is_empty() {
            return;
        }
        let which = self.below(self.owed.len());
        let most = self.owed[which].end - self.owed[which].next;
        let len = (4 * (1 + self.below(1024) as u32)).min(most);
        let owed = &mut self.owed[which];
        let (at, r2t) = (owed.next, owed.r2t);
        owed.next += len;
        let last = owed.next == owed.end;
        self.interleaved += u32::from(which > 0);
        if last {
            self.owed.remove(which);
        }
        let data = self.issued[&r2t.cccid.get()].data.as_ref().unwrap();
        let bytes = self.pair.dialect().h2c(&r2t, at, &data[at as usize..(at + len) as usize], last);
        self.out.extend(bytes);
    }

    /// Some bytes reach the queue.
    fn deliver(&mut self) {
        let most = self.out.len();
        let n = if self.below(3) == 0 { most } else { self.below(most + 1) };
        let bytes: Vec<u8> = self.out.drain(..n).collect();
        self.pair.feed(&bytes);
        self.collect();
    }

    /// The server does one thing.
    fn serve(&mut self) {
        if self.pair.kept.is_empty() {
            return;
        }
        let at = self.below(self.pair.kept.len());
        let (tag, sqe) = self.pair.kept.remove(at);
        let (offset, len) = (sqe.cdw(10), sqe.dptr.length.get());
        if sqe.opcode == WRITE {
            let memory = self.pair.pool.take_sg(MemoryClass::Solicited, len as usize).unwrap();
            self.pair.writes.push((tag, offset));
            self.placed.push((tag, sqe));
            self.pair.with_cx(|queue, cx| queue.recv_data(cx, tag, 0, memory));
        } else {
            self.pair.send_read(tag, offset as usize, len as usize);
        }
        if sqe.opcode == READ && self.below(2) == 0 {
            // What is ready waits for the next step, which may be a replacement.
            return;
        }
        self.pair.pump();
        self.collect();
    }

    /// Takes what the queue sent, and acts on it.
    fn collect(&mut self) {
        self.incoming.append(&mut self.pair.sent);
        while let Ok((common, _)) = CommonHeader::read_from_prefix(&self.incoming) {
            let len = common.plen.get() as usize;
            if self.incoming.len() < len {
                break;
            }
            let bytes: Vec<u8> = self.incoming.drain(..len).collect();
            let parameters = *self.pair.queue.parameters();
            parse(&bytes, &parameters).iter().for_each(|got| self.take(got));
        }
        let writes = &self.pair.writes;
        self.placed.retain(|(tag, _)| writes.iter().any(|(write, _)| write == tag));
    }

    fn take(&mut self, got: &Got) {
        match got.frame.pdu_type {
            PduType::R2T => {
                let r2t = got.r2t();
                let (next, len) = (r2t.r2to.get(), r2t.r2tl.get());
                let asked_twice = self.owed.iter().any(|owed| owed.r2t.ttag == r2t.ttag);
                assert!(!asked_twice && self.issued.contains_key(&r2t.cccid.get()), "{r2t:?}");
                self.owed.push(Owed { r2t, next, end: next + len });
            }
            PduType::C2H_DATA => {
                let data = got.c2h();
                let cid = data.cccid.get();
                let issued = self.issued.get_mut(&cid).expect("data of a command in flight");
                assert_eq!(data.datao.get(), issued.came);
                let from = (issued.offset + issued.came) as usize;
                assert!(got.data == self.model[from..from + got.data.len()], "wrong bytes of {cid}");
                issued.came += got.data.len() as u32;
                if got.frame.flags.contains(Flags::SUCCESS) {
                    self.end(cid);
                }
            }
            PduType::CAPSULE_RESP => {
                let cqe = got.cqe();
                let cid = cqe.cid.get();
                assert_eq!(cqe.completion(), Completion::SUCCESS, "{cid}");
                if self.pair.queue.size().flow_control {
                    self.sqhd = (self.sqhd + 1) % SIZE.entries;
                    assert_eq!(cqe.sqhd.get(), self.sqhd, "SQHD");
                }
                self.end(cid);
            }
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, cid: u16) {
        let issued = self.issued.remove(&cid).expect("a command is answered once");
        match issued.data {
            Some(data) => {
                let from = issued.offset as usize;
                self.model[from..from + data.len()].copy_from_slice(&data);
                assert!(self.pair.disk[from..from + data.len()] == data[..], "written bytes of {cid}");
                assert!(!self.owed.iter().any(|owed| owed.r2t.cccid.get() == cid), "answered too early");
            }
            None => assert_eq!(issued.came, issued.len),
        }
    }

    /// The process is to be replaced. Half of the time it goes on after all.
    fn replace(&mut self) {
        self.pair.queue.quiesce();
        if let Some(op) = self.pair.op.take() {
            self.pair.with_cx(|queue, cx| queue.handle_recv(cx, LINK, op, Received::Cancelled).unwrap());
        }
        let given: Vec<_> = self.pair.kept.drain(..).chain(self.placed.drain(..)).collect();
        self.pair.writes.clear();
        for (tag, sqe) in given {
            self.pair.queue.withdraw(tag, sqe).expect("it has had no effect");
            self.withdrawn += 1;
        }
        if let Some(op) = self.pair.with_cx(|queue, cx| queue.poll_send(cx, LINK)) {
            let written = self.below(op.len + 1);
            let bytes = testkit::delivery::send_op_bytes(&op);
            self.pair.sent.extend(&bytes[..written]);
            self.pair.queue.handle_send_cut(op, written);
            self.cut_sends += 1;
        }
        let saved = self.pair.with_cx(|queue, cx| queue.save(cx)).unwrap();
        if self.below(2) == 0 && self.omission == Omission::Nothing {
            self.pair.queue.resume();
        } else {
            self.replaced += 1;
            let snapshot = QueueSnapshot::from_bytes(omit(&saved, self.omission).as_bytes().into());
            // The new process has another pool, and another clock; the old one ends.
            let pool = std::mem::replace(&mut self.pair.pool, Pool::new_poisoned(32 << 20));
            self.pair.now = Time(1 + self.entropy.next_u64() % 1_000_000_000);
            self.pair.queue =
                self.pair.with_cx(|_, cx| ControllerQueue::restore(cx, &snapshot, queue_limits()).unwrap());
            assert_eq!((pool.usage().lent, pool.usage().reserved), (0, 0));
        }
        self.pair.pump();
        let order: Vec<u32> = self.pair.kept.iter().map(|(_, sqe)| sqe.cdw(11)).collect();
        assert!(order.is_sorted(), "announced in another order: {order:?}");
        self.collect();
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.below(16) {
                0..4 => self.issue(),
                4..7 => self.send_data(),
                7..11 => self.deliver(),
                11..15 => self.serve(),
                _ => self.replace(),
            }
        }
        for _ in 0..400 {
            self.send_data();
            self.deliver();
            self.serve();
        }
        assert!(self.issued.is_empty(), "commands without an answer: {:?}", self.issued.keys());
        assert_eq!(self.pair.violations, []);
        assert!(!self.pair.closed && !self.pair.shut, "the link was lost");
        assert!(self.pair.disk == self.model);
    }
}

/// How many histories, each of some twelve replacements of which half are taken back.
const HISTORIES: u64 = 100;

#[test]
fn a_host_does_not_notice_that_the_process_is_replaced() {
    let (mut replaced, mut cut_sends, mut withdrawn, mut interleaved) = (0, 0, 0, 0);
    for seed in 0..HISTORIES {
        let mut history = History::new(seed, Omission::Nothing);
        history.run(200);
        replaced += history.replaced;
        cut_sends += history.cut_sends;
        withdrawn += history.withdrawn;
        interleaved += history.interleaved;
    }
    // That all of it happens.
    assert!(replaced > 4 * HISTORIES as u32, "{replaced}");
    assert!(cut_sends > 30 && withdrawn > 2000 && interleaved > 500, "{cut_sends} {withdrawn} {interleaved}");
}

#[test]
fn what_a_replacement_forgets_is_noticed() {
    for omission in Omission::ALL {
        let noticed =
            |seed: &u64| std::panic::catch_unwind(|| History::new(*seed, omission).run(200)).is_err();
        assert!((0..24).any(|seed| noticed(&seed)), "{omission:?}");
    }
}
