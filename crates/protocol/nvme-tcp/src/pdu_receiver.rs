//! The receiving half of a connection, for both roles: the position within a PDU, and the rules for headers
//! and digests.

use crate::LinkFault;
use crate::wire::{
    self, COMMON_LEN, CommonHeader, DIGEST_LEN, FatalError, Flags, PduFrame, PduLimits, PduType, Sender,
};
use buf::Time;
use buf::crc32c::Crc32c;
use nvme::failpoint::{Failpoint, is_on};
use stream::ReceiveBuffer;
use zerocopy::{FromBytes, IntoBytes};

/// Whether parsing goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ParseStatus {
    Continue,
    /// More bytes, memory or room are needed first.
    Wait,
}

/// Which part of a PDU comes next; `D` says what its data is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReceiveState<D> {
    Header,
    Data(D),
    Digest(D),
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct PduReceiver<D> {
    pub(crate) receive_buffer: ReceiveBuffer,
    pub(crate) state: ReceiveState<D>,
    pub(crate) crc: Crc32c,
    /// A receive is out.
    pub(crate) out: bool,
    /// Since when the stream has stood within a PDU.
    pub(crate) pdu_since: Option<Time>,
}

/// What a TermReq says.
#[derive(Debug)]
pub struct TermReqContents {
    pub(crate) fatal: FatalError,
    /// The header that is to blame.
    pub(crate) header: Box<[u8]>,
}

/// Why a header ends the connection.
pub struct HeaderFault {
    pub(crate) fault: LinkFault,
    /// What the peer is told; a TermReq of its own is never answered.
    pub(crate) term: Option<Box<TermReqContents>>,
}

impl HeaderFault {
    #[cold]
    fn new(fault: LinkFault, header: &[u8]) -> Self {
        let fatal = match fault {
            LinkFault::Fatal(fatal) => Some(fatal),
            LinkFault::TooManyCommands => Some(FatalError::sequence_error(0)),
            LinkFault::Terminated(_)
            | LinkFault::HandshakeTimeout
            | LinkFault::PduTimeout
            | LinkFault::Stalled
            | LinkFault::Tls(_)
            | LinkFault::TlsRequired
            | LinkFault::TlsNotComputed => None,
        };
        HeaderFault {
            fault,
            term: fatal.map(|fatal| Box::new(TermReqContents { fatal, header: header.into() })),
        }
    }
}

impl<D> PduReceiver<D> {
    pub(crate) fn new(receive_buffer: ReceiveBuffer) -> Self {
        PduReceiver {
            receive_buffer,
            state: ReceiveState::Header,
            crc: Crc32c::new(),
            out: false,
            pdu_since: None,
        }
    }

    /// Drops all that is here.
    pub(crate) fn clear(&mut self) {
        self.receive_buffer.clear();
        self.state = ReceiveState::Header;
    }

    /// Keeps the time since which the stream has stood within a PDU.
    #[inline(always)]
    pub(crate) fn note_pdu_start(&mut self, now: Time) {
        if matches!(self.state, ReceiveState::Header) && !self.receive_buffer.is_within_header() {
            self.pdu_since = None;
        } else if self.pdu_since.is_none() {
            self.pdu_since = Some(now);
        }
    }

    /// What the next PDU is by its common header; `None`: more bytes are needed.
    #[inline(always)]
    pub(crate) fn next_frame(&mut self, limits: &PduLimits) -> Result<Option<PduFrame>, HeaderFault> {
        let Some(bytes) = self.receive_buffer.peek_header(COMMON_LEN) else { return Ok(None) };
        let Ok(common) = CommonHeader::read_from_bytes(bytes) else { return Ok(None) };
        let term_req = match limits.from {
            Sender::Host => PduType::H2C_TERM_REQ,
            Sender::Controller => PduType::C2H_TERM_REQ,
        };
        let fault = match PduFrame::parse(&common, limits) {
            Ok(frame) => return Ok(Some(frame)),
            Err(_) if common.pdu_type == term_req => {
                LinkFault::Terminated(FatalError::invalid_field(CommonHeader::AT_PLEN))
            }
            Err(fatal) => LinkFault::Fatal(fatal),
        };
        // Of a header whose length cannot be trusted, what every header begins with.
        Err(HeaderFault::new(fault, common.as_bytes()))
    }

    /// Compares the digest of a header, if it has one. False: more bytes are needed.
    #[inline(always)]
    pub(crate) fn check_header_digest(&mut self, frame: PduFrame, from: Sender) -> Result<bool, HeaderFault> {
        if !frame.flags.contains(Flags::HEADER_DIGEST) {
            return Ok(true);
        }
        let Some(bytes) = self.receive_buffer.peek_header(frame.head.into()) else { return Ok(false) };
        let (header, rest) = bytes.split_at(frame.header.into());
        let Some(sum) = rest.first_chunk::<DIGEST_LEN>() else { return Ok(false) };
        let unchecked = from == Sender::Host && is_on(Failpoint::HeaderDigestUnchecked);
        if *sum == wire::crc32c_digest(header) || unchecked {
            return Ok(true);
        }
        Err(HeaderFault::new(LinkFault::Fatal(FatalError::header_digest_error(*sum)), header))
    }

    /// The header that the receive buffer has ends the connection.
    pub(crate) fn header_fault(&mut self, fault: LinkFault, frame: PduFrame) -> HeaderFault {
        let header = self.receive_buffer.peek_header(frame.head.into()).unwrap_or_default();
        HeaderFault::new(fault, header.get(..frame.header.into()).unwrap_or(header))
    }

    /// A header of `head` bytes has been acted on; data follows it, or nothing.
    #[inline(always)]
    pub(crate) fn finish_header(&mut self, head: usize, data: Option<D>) {
        self.receive_buffer.consume_header(head);
        self.pdu_since = None;
        if let Some(data) = data {
            self.crc = Crc32c::new();
            self.state = ReceiveState::Data(data);
        }
    }

    /// All data of a PDU is here: whether its digest, if it has one, is right. `None`: more bytes are needed.
    #[inline(always)]
    pub(crate) fn finish_data(&mut self, has_digest: bool) -> Option<bool> {
        let mut good = true;
        if has_digest {
            good = self.receive_buffer.peek_header(DIGEST_LEN)? == self.crc.to_wire_bytes();
            self.receive_buffer.consume_header(DIGEST_LEN);
        }
        self.state = ReceiveState::Header;
        self.pdu_since = None;
        Some(good)
    }
}
