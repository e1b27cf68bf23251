//! PDUs in the byte stream of a link, the same for both roles (RFC 7143 §11.1): a header with its digest, a
//! data segment, its padding and its digest.

use crate::params::{Digest, Params};
use crate::wire::{self, BHS_LEN, Bhs, Pdu, pad_len};
use buf::crc32c::Crc32c;
use buf::{Pool, Sg};
use std::ops::Range;
use std::time::Duration;
use stream::{DirectBuffer, HEAD_MAX, ReceiveBuffer, RecvOp, SendOpBuilder, TransmitQueue};

/// Longest data segment with a digest: memory that others may write is copied, and must fit a batch.
const DIGEST_SEGMENT_MAX: u32 = 128 << 10;
/// Bytes of a PDU beside its additional and data segments, at most: header and digest, padding and digest.
pub(crate) const PDU_OVERHEAD_MAX: usize = BHS_LEN + 4 + 3 + 4;

/// How long a link waits before it asks for memory again.
pub(crate) const MEMORY_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// What the login of a link settled for its PDUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// MaxRecvDataSegmentLength of the peer: the longest data segment that we send.
    pub(crate) peer_mrdsl: u32,
    /// Our own: the longest that we receive.
    pub(crate) own_mrdsl: u32,
}

impl Framing {
    /// Before the login has settled anything.
    pub(crate) const LOGIN: Framing =
        Framing { header_digest: false, data_digest: false, peer_mrdsl: 8192, own_mrdsl: 8192 };

    /// What an initiator's login negotiated.
    pub(crate) fn of_initiator(params: &Params) -> Self {
        Framing {
            header_digest: params.header_digest == Digest::Crc32c,
            data_digest: params.data_digest == Digest::Crc32c,
            peer_mrdsl: params.target_mrdsl,
            own_mrdsl: params.initiator_mrdsl,
        }
    }

    /// The longest data segment that is sent.
    pub(crate) fn send_segment_len_max(&self) -> u32 {
        if self.data_digest { self.peer_mrdsl.min(DIGEST_SEGMENT_MAX) } else { self.peer_mrdsl }
    }
}

/// Which part of a PDU comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveState<S> {
    Header,
    /// `left` bytes of a data segment; behind them padding and digest.
    Data {
        left: u32,
        segment: S,
    },
}

/// Whether parsing goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParseStatus {
    Continue,
    /// More bytes, memory or room are needed first.
    Wait,
}

/// The receiving half of a link. `S` says what a data segment is for.
#[derive(Debug)]
pub(crate) struct PduReceiver<S> {
    pub(crate) receive_buffer: ReceiveBuffer,
    pub(crate) state: ReceiveState<S>,
    /// Header of the PDU whose data comes.
    pub(crate) bhs: Bhs,
    pub(crate) crc: Crc32c,
    /// A receive is out.
    pub(crate) is_out: bool,
}

/// The digest of a header is wrong.
#[derive(Debug)]
pub(crate) struct HeaderDigestError;

impl<S> PduReceiver<S> {
    pub(crate) fn new(receive_buffer: ReceiveBuffer) -> Self {
        PduReceiver {
            receive_buffer,
            state: ReceiveState::Header,
            bhs: Bhs::ZERO,
            crc: Crc32c::new(),
            is_out: false,
        }
    }

    /// Whether a receive may go out: none is, and all that came is parsed.
    #[inline]
    pub(crate) fn can_start_receive(&self) -> bool {
        !self.is_out && self.receive_buffer.is_empty()
    }

    #[inline]
    pub(crate) fn start_receive(&mut self, direct: Option<DirectBuffer>) -> RecvOp {
        self.is_out = true;
        RecvOp { direct, stage_len: self.receive_buffer.staging_len(), stage: None }
    }

    /// The basic header of the next PDU, if it is here.
    #[inline]
    pub(crate) fn next_bhs(&mut self) -> Option<Bhs> {
        self.receive_buffer.peek_header(BHS_LEN).and_then(Bhs::from_prefix).copied()
    }

    /// Takes the header that begins with `bhs`, and gives its additional segments; `None` until it is here with
    /// its digest.
    #[inline]
    pub(crate) fn take_header(
        &mut self,
        bhs: &Bhs,
        digest: bool,
    ) -> Option<Result<Box<[u8]>, HeaderDigestError>> {
        let (covered, digest) = (BHS_LEN + bhs.ahs_len(), if digest { 4 } else { 0 });
        let mut ahs: Box<[u8]> = Box::default();
        if covered + digest > BHS_LEN {
            let (header, sum) = self.receive_buffer.peek_header(covered + digest)?.split_at(covered);
            if digest > 0 && sum != crc_of(&[header]) {
                return Some(Err(HeaderDigestError));
            }
            ahs = header.get(BHS_LEN..).unwrap_or_default().into();
        }
        self.receive_buffer.consume_header(covered + digest);
        Some(Ok(ahs))
    }

    /// A data segment follows.
    #[inline]
    pub(crate) fn begin_data(&mut self, bhs: &Bhs, segment: S) {
        self.crc = Crc32c::new();
        self.state = ReceiveState::Data { left: bhs.data_len() as u32, segment };
        self.bhs = *bhs;
    }

    /// Takes the padding and the digest behind a data segment, and says whether the digest is right; `None` until
    /// they are here.
    #[inline]
    pub(crate) fn take_trailer(&mut self, digest: bool) -> Option<bool> {
        let (pad, digest) = (pad_len(self.bhs.data_len()), if digest { 4 } else { 0 });
        let mut good = true;
        if pad + digest > 0 {
            let (padding, sum) = self.receive_buffer.peek_header(pad + digest)?.split_at(pad);
            if digest > 0 {
                self.crc.update(padding);
                good = sum == self.crc.to_wire_bytes();
            }
            self.receive_buffer.consume_header(pad + digest);
        }
        Some(good)
    }
}

/// The PDUs of one batch.
pub(crate) struct PduWriter {
    pub(crate) batch: SendOpBuilder,
    header_digest: bool,
    data_digest: bool,
}

impl PduWriter {
    /// Begins a batch whose first PDU takes `least` bytes of head, and all that waits about as many as `estimates`
    /// say. `None`: a batch is out, or memory is.
    pub(crate) fn start_batch(
        transmit_queue: &mut TransmitQueue,
        pool: &Pool,
        framing: Framing,
        least: usize,
        estimates: impl Iterator<Item = usize>,
    ) -> Option<Self> {
        let mut want = 0;
        for estimate in estimates {
            want += estimate;
            if want >= HEAD_MAX {
                break;
            }
        }
        let batch = transmit_queue.start_batch(pool, least, want.max(least))?;
        let Framing { header_digest, data_digest, .. } = framing;
        Some(PduWriter { batch, header_digest, data_digest })
    }

    /// Puts a PDU in whose data segment is `data`.
    #[inline]
    pub(crate) fn put_pdu(&mut self, pdu: &mut impl Pdu, data: &[u8]) {
        if !data.is_empty() {
            pdu.set_data_len(data.len());
        }
        self.put_header(pdu, &[]);
        if !data.is_empty() {
            self.batch.push_bytes(data);
            let mut crc = Crc32c::new();
            if self.data_digest {
                crc.update(data);
            }
            self.put_trailer(data.len(), crc);
        }
    }

    /// Puts a PDU in with additional segments, whose data segment is `range` of `data`.
    #[inline]
    pub(crate) fn put_pdu_with_payload(
        &mut self,
        pdu: &mut impl Pdu,
        ahs: &[u8],
        data: &Sg,
        range: Range<usize>,
    ) {
        let len = range.len();
        pdu.set_data_len(len);
        self.put_header(pdu, ahs);
        if len > 0 {
            let mut crc = Crc32c::new();
            self.batch.push_payload(data, range, self.data_digest.then_some(&mut crc));
            self.put_trailer(len, crc);
        }
    }

    #[inline]
    fn put_header(&mut self, pdu: &impl Pdu, ahs: &[u8]) {
        let bhs = pdu.as_bhs().bytes();
        self.batch.push_bytes(bhs);
        if !ahs.is_empty() {
            self.batch.push_bytes(ahs);
        }
        if self.header_digest {
            self.batch.push_bytes(&crc_of(&[bhs, ahs]));
        }
    }

    #[inline]
    fn put_trailer(&mut self, len: usize, mut crc: Crc32c) {
        let padding = wire::padding(len);
        if !padding.is_empty() {
            self.batch.push_bytes(padding);
        }
        if self.data_digest {
            crc.update(padding);
            self.batch.push_bytes(&crc.to_wire_bytes());
        }
    }
}

fn crc_of(parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = Crc32c::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.to_wire_bytes()
}
