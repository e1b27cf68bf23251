//! Writes PDUs into a batch, for both roles: header, digests, padding and data.

use crate::pdu_receiver::TermReqContents;
use crate::wire::{CommonHeader, ConnectionParameters, DIGEST_LEN, Flags, PduType, TermReq};
use buf::Sg;
use buf::crc32c::Crc32c;
use std::ops::Range;
use stream::SendOpBuilder;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Longest data of a PDU with a data digest if it is copied, since the copy must fit a batch.
pub(crate) const DIGEST_SEGMENT_MAX: u32 = 128 << 10;
/// Header, its digest, padding to 128 bytes at most, and the data's digest.
pub(crate) const PDU_OVERHEAD_MAX: usize = 128 + DIGEST_LEN;

pub struct PduWriter<'a> {
    pub(crate) batch: SendOpBuilder,
    pub(crate) parameters: &'a ConnectionParameters,
    /// Data begins at a multiple of so many bytes.
    pub(crate) alignment: u8,
}

impl PduWriter<'_> {
    /// A header, completed, with its digest, and the data behind it.
    #[inline(always)]
    pub(crate) fn put_pdu(&mut self, header: &mut [u8], data: Option<(&Sg, Range<usize>)>) {
        let end = header.len() + if self.parameters.header_digest { DIGEST_LEN } else { 0 };
        let with_data_digest = self.parameters.data_digest && data.is_some();
        let (mut plen, mut pdo) = (end, end);
        if let Some((_, range)) = &data {
            pdo = end.next_multiple_of(usize::from(self.alignment));
            plen = pdo + range.len() + if with_data_digest { DIGEST_LEN } else { 0 };
        }
        if let Ok((common, _)) = CommonHeader::mut_from_prefix(header) {
            common.flags = common
                .flags
                .with(Flags::HEADER_DIGEST, self.parameters.header_digest)
                .with(Flags::DATA_DIGEST, with_data_digest);
            common.pdo = if data.is_some() { pdo as u8 } else { common.pdo };
            common.plen = U32::new(plen as u32);
        }
        self.batch.push_bytes(header);
        if self.parameters.header_digest {
            self.batch.push_bytes(&crate::wire::crc32c_digest(header));
        }
        if pdo > end {
            self.batch.push_bytes(crate::wire::padding(pdo - end));
        }
        let Some((data, range)) = data else { return };
        if with_data_digest {
            let mut crc = Crc32c::new();
            self.batch.push_payload(data, range, Some(&mut crc));
            self.batch.push_bytes(&crc.to_wire_bytes());
        } else {
            self.batch.push_payload(data, range, None);
        }
    }

    /// A TermReq.
    pub(crate) fn put_term_req(&mut self, pdu_type: PduType, term: &TermReqContents) {
        let pdu = TermReq::new(pdu_type, term.fatal, term.header.len());
        self.batch.push_bytes(pdu.as_bytes());
        self.batch.push_bytes(&term.header);
    }
}
