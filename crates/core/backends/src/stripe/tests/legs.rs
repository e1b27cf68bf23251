//! Legs of a stripe in the tests: each ends an operation when it is told to.

use super::*;

/// What a leg is told by the test.
#[derive(Debug, Default)]
pub(super) struct Hand {
    pub(super) bytes: Vec<u8>,
    pub(super) mapped: Vec<bool>,
    /// A block that can be neither read nor written.
    pub(super) bad: Option<u64>,
    /// Everything fails.
    pub(super) lost: bool,
    pub(super) waiting: Vec<Io>,
    pub(super) cancelled: Vec<IoId>,
    pub(super) flushes: u32,
    /// The most pieces of memory that an operation has brought.
    pub(super) pieces: usize,
    /// The most that it erases at once; `None`: no more than it transfers.
    pub(super) erase_max: Option<u32>,
    /// What its operator should hear of.
    pub(super) remark: Option<OperatorNotice>,
}

/// A leg that ends what it was given when it is told to.
#[derive(Debug)]
pub(super) struct Slow {
    pub(super) hand: Rc<RefCell<Hand>>,
    pub(super) geometry: Geometry,
    pub(super) done: Rc<RefCell<VecDeque<IoCompletion>>>,
}

impl Hand {
    /// Ends one of those that wait.
    pub(super) fn end(&mut self, at: usize) -> IoCompletion {
        let Io { id, op, mut payload, .. } = self.waiting.swap_remove(at);
        let result = if self.lost { Err(Fault::PathLost.into()) } else { self.carry_out(&op, &mut payload) };
        IoCompletion { id, result, payload }
    }

    fn carry_out(&mut self, op: &Op, payload: &mut Payload) -> Result<Outcome, Failure> {
        let bytes = |span: &Span| span.lba as usize * BLOCK..(span.lba + span.blocks) as usize * BLOCK;
        let hit = |span: &Span| self.bad.filter(|bad| span.overlaps(&Span { lba: *bad, blocks: 1 }));
        match (op, payload) {
            (Op::Read(span), Payload::In(into)) => {
                self.pieces = self.pieces.max(into.pieces().len());
                if let Some(bad) = hit(span) {
                    return Err(Fault::Medium(bad).into());
                }
                assert_eq!(into.len(), bytes(span).len());
                into.copy_from(0, &self.bytes[bytes(span)]);
            }
            (Op::Verify(span), Payload::None) => {
                if let Some(bad) = hit(span) {
                    return Err(Fault::Medium(bad).into());
                }
            }
            (Op::Write(span, _) | Op::WriteAtomic(span), Payload::Out(from)) => self.write(span, from, 0)?,
            (Op::Compare(span), Payload::Out(from)) => self.compare(span, from)?,
            (Op::CompareAndWrite(span), Payload::Out(from)) => {
                let len = from.len() / 2;
                self.compare(span, &from.slice(0..len))?;
                self.write(span, from, len)?;
            }
            (Op::WriteZeroes { span, .. }, Payload::None) => {
                self.bytes[bytes(span)].fill(0);
                self.mapped[span.lba as usize..(span.lba + span.blocks) as usize].fill(true);
            }
            (Op::Unmap(spans), Payload::None) => {
                for span in spans {
                    assert!(span.blocks > 0, "a leg that has nothing to do");
                    self.bytes[bytes(span)].fill(0);
                    self.mapped[span.lba as usize..(span.lba + span.blocks) as usize].fill(false);
                }
            }
            (Op::Extents(span), Payload::None) => {
                let each = (span.lba..span.lba + span.blocks)
                    .map(|lba| Extent { span: Span { lba, blocks: 1 }, mapped: self.mapped[lba as usize] });
                return Ok(Outcome::Extents(each.collect()));
            }
            (Op::Flush, Payload::None) => self.flushes += 1,
            (Op::Prefetch(_), Payload::None) => {}
            (op, payload) => panic!("{op:?} with {payload:?}"),
        }
        Ok(Outcome::Complete)
    }

    fn write(&mut self, span: &Span, from: &Sg, at: usize) -> Result<(), Failure> {
        if let Some(bad) = self.bad.filter(|bad| span.overlaps(&Span { lba: *bad, blocks: 1 })) {
            return Err(Fault::Unwritable(bad).into());
        }
        let begin = span.lba as usize * BLOCK;
        let into = &mut self.bytes[begin..begin + span.blocks as usize * BLOCK];
        assert_eq!(from.len() - at, into.len());
        from.copy_to(at, into);
        self.mapped[span.lba as usize..(span.lba + span.blocks) as usize].fill(true);
        Ok(())
    }

    fn compare(&self, span: &Span, with: &Sg) -> Result<(), Failure> {
        let begin = span.lba as usize * BLOCK;
        let ours = &self.bytes[begin..begin + span.blocks as usize * BLOCK];
        let mut theirs = vec![0; ours.len()];
        with.copy_to(0, &mut theirs);
        match ours.iter().zip(&theirs).position(|(our, their)| our != their) {
            Some(at) => Err(Fault::Miscompare(at as u32).into()),
            None => Ok(()),
        }
    }
}

impl Backend for Slow {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn erase_max(&self) -> u32 {
        self.hand.borrow().erase_max.unwrap_or(self.geometry.max_io)
    }

    fn submit(&mut self, _cx: &mut Cx<'_>, io: Io) {
        self.hand.borrow_mut().waiting.push(io);
    }
    fn cancel(&mut self, id: IoId) {
        self.hand.borrow_mut().cancelled.push(id);
    }
    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.borrow_mut().pop_front()
    }
}

impl OutboundSockets for Slow {
    fn poll_dial(&mut self) -> Option<Dial> {
        None
    }
    fn handle_dialled(&mut self, _cx: &mut Cx<'_>, _id: DialId, _how: Result<Dialled, Errno>) {}
    fn handle_recv(&mut self, _cx: &mut Cx<'_>, _link: LinkId, _op: RecvOp, _came: Received) {}
    fn handle_written(&mut self, _cx: &mut Cx<'_>, _link: LinkId, _how: Result<(), Errno>) {}
    fn handle_send_released(&mut self, _cx: &mut Cx<'_>, _link: LinkId, _op: SendOp) {}
    fn poll_ready(&mut self) -> Option<LinkId> {
        None
    }
    fn poll_recv(&mut self, _cx: &mut Cx<'_>, _link: LinkId) -> Option<RecvOp> {
        None
    }
    fn poll_send(&mut self, _cx: &mut Cx<'_>, _link: LinkId) -> Option<SendOp> {
        None
    }
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        None
    }
    fn turn(&mut self, _cx: &mut Cx<'_>) -> bool {
        false
    }
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
    fn handle_timeout(&mut self, _cx: &mut Cx<'_>) {}
    fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        self.hand.borrow_mut().remark.take()
    }
}

pub(super) fn geometry(blocks: u64) -> Geometry {
    Geometry {
        blocks,
        logical: BLOCK as u32,
        physical: 4096,
        max_io: 1 << 20,
        thin: true,
        caw_max: 8,
        dealloc_reads_zero: true,
        ..Geometry::UNKNOWN
    }
}
