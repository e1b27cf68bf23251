//! Validates a PDU's common header before anything else of it is parsed.
//!
//! Invariant: every length in a [`PduFrame`] is allowed by its type and the agreed parameters, and they sum to
//! PLEN. A wrong HLEN is found before it could determine the position of a digest.

use super::{CommonHeader, DIGEST_LEN, FatalError, Flags, PduType, TERM_DATA_MAX};

/// PDO has eight bits.
const PDO_MAX: u32 = 255;
/// No data PDU is so long, whatever was agreed; what was agreed is judged with the rest of its header.
const DATA_PDU_MAX: u32 = 1 << 30;

/// Who sent a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// What PDUs of the peer must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduLimits {
    /// Who sends them.
    pub from: Sender,
    /// CRC32C behind headers.
    pub header_digest: bool,
    /// CRC32C behind data.
    pub data_digest: bool,
    /// Data begins at a multiple of so many bytes.
    pub alignment: u8,
    /// Longest data of a capsule, in bytes.
    pub capsule_max: u32,
}

/// A PDU by its common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduFrame {
    /// What it is.
    pub pdu_type: PduType,
    /// Its flags.
    pub flags: Flags,
    /// Bytes of the header.
    pub header: u8,
    /// Bytes before the data: header, digest, padding.
    pub head: u8,
    /// Bytes of data, without their digest. Of a data PDU not yet judged against its limit.
    pub data: u32,
}

/// What is known of a type.
struct PduShape {
    header: u8,
    data: DataPresence,
    digests: bool,
}

enum DataPresence {
    None,
    /// In a capsule, within its limit.
    Capsule,
    /// As much as the header goes on to say.
    Own,
    /// Of a TermReq: a header.
    Term,
}

impl PduShape {
    fn for_pdu_type(pdu_type: PduType, from: Sender) -> Option<PduShape> {
        let host = from == Sender::Host;
        let shape = |header, data, digests| Some(PduShape { header, data, digests });
        match pdu_type {
            PduType::IC_REQ if host => shape(128, DataPresence::None, false),
            PduType::IC_RESP if !host => shape(128, DataPresence::None, false),
            PduType::H2C_TERM_REQ if host => shape(24, DataPresence::Term, false),
            PduType::C2H_TERM_REQ if !host => shape(24, DataPresence::Term, false),
            PduType::CAPSULE_CMD if host => shape(72, DataPresence::Capsule, true),
            PduType::CAPSULE_RESP if !host => shape(24, DataPresence::None, true),
            PduType::H2C_DATA if host => shape(24, DataPresence::Own, true),
            PduType::C2H_DATA if !host => shape(24, DataPresence::Own, true),
            PduType::R2T if !host => shape(24, DataPresence::None, true),
            _unknown => None,
        }
    }
}

impl PduFrame {
    /// Judges a common header.
    pub fn parse(common: &CommonHeader, limits: &PduLimits) -> Result<PduFrame, FatalError> {
        let Some(shape) = PduShape::for_pdu_type(common.pdu_type, limits.from) else {
            return Err(FatalError::invalid_field(CommonHeader::AT_TYPE));
        };
        if common.hlen != shape.header {
            return Err(FatalError::invalid_field(CommonHeader::AT_HLEN));
        }
        let header_digest = shape.digests && limits.header_digest;
        if common.flags.contains(Flags::HEADER_DIGEST) != header_digest {
            return Err(FatalError::invalid_field(CommonHeader::AT_FLAGS));
        }
        let end = shape.header + if header_digest { DIGEST_LEN as u8 } else { 0 };
        let frame = PduFrame {
            pdu_type: common.pdu_type,
            flags: common.flags,
            header: shape.header,
            head: end,
            data: 0,
        };
        let Some(rest) = common.plen.get().checked_sub(u32::from(end)) else {
            return Err(FatalError::invalid_field(CommonHeader::AT_PLEN));
        };
        // Told before PDO, which makes no sense either if no such PDU can be.
        let most = match shape.data {
            DataPresence::None => 0,
            DataPresence::Capsule => limits.capsule_max.saturating_add(PDO_MAX + DIGEST_LEN as u32),
            DataPresence::Own => DATA_PDU_MAX,
            DataPresence::Term => TERM_DATA_MAX as u32,
        };
        if rest > most {
            return Err(FatalError::invalid_field(CommonHeader::AT_PLEN));
        }
        match shape.data {
            DataPresence::None => frame.check_without_data(common, limits),
            DataPresence::Term => Ok(PduFrame { data: rest, ..frame }),
            DataPresence::Capsule | DataPresence::Own if rest == 0 => {
                frame.check_without_data(common, limits)
            }
            DataPresence::Own => frame.check_with_data(common, limits),
            DataPresence::Capsule => match frame.check_with_data(common, limits)? {
                frame if frame.data > limits.capsule_max => {
                    Err(FatalError::invalid_field(CommonHeader::AT_PLEN))
                }
                frame => Ok(frame),
            },
        }
    }

    fn check_without_data(self, common: &CommonHeader, limits: &PduLimits) -> Result<PduFrame, FatalError> {
        let stray = common.flags.contains(Flags::DATA_DIGEST) && !limits.data_digest;
        if stray {
            return Err(FatalError::invalid_field(CommonHeader::AT_FLAGS));
        }
        // It means nothing here, and hosts differ in what they leave there; but it points into the PDU.
        if u32::from(common.pdo) > common.plen.get() {
            return Err(FatalError::invalid_field(CommonHeader::AT_PDO));
        }
        Ok(self)
    }

    fn check_with_data(self, common: &CommonHeader, limits: &PduLimits) -> Result<PduFrame, FatalError> {
        if common.flags.contains(Flags::DATA_DIGEST) != limits.data_digest {
            return Err(FatalError::invalid_field(CommonHeader::AT_FLAGS));
        }
        let pdo = common.pdo;
        if pdo < self.head
            || !pdo.is_multiple_of(limits.alignment.max(1))
            || u32::from(pdo) > common.plen.get()
        {
            return Err(FatalError::invalid_field(CommonHeader::AT_PDO));
        }
        let digest = if limits.data_digest { DIGEST_LEN as u32 } else { 0 };
        let data = (common.plen.get() - u32::from(pdo)).checked_sub(digest);
        match data {
            Some(data) if data > 0 => Ok(PduFrame { head: pdo, data, ..self }),
            Some(_) | None => Err(FatalError::invalid_field(CommonHeader::AT_PLEN)),
        }
    }
}
