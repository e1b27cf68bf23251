//! Persistent reservations (SPC-4 §5.13): parameter lists of PERSISTENT RESERVE OUT, parameter data of
//! PERSISTENT RESERVE IN. The reservation state is elsewhere.

mod report;
#[cfg(test)]
mod tests;

use crate::cdb::PrOutAction;
use crate::sense::Sense;
use crate::transport_id::TransportId;
use crate::wire::{Writer, be16, be32, be64, bit, flag_bit};
pub use report::{
    Capabilities, DecodedRegistration, FullStatusEntry, FullStatusWriter, Reservation, decode_full_status,
    decode_keys, decode_reservation, encode_keys, encode_reservation,
};

/// TYPE of a persistent reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ReservationType(pub u8);

impl ReservationType {
    /// Write exclusive.
    pub const WRITE_EXCLUSIVE: ReservationType = ReservationType(1);
    /// Exclusive access.
    pub const EXCLUSIVE_ACCESS: ReservationType = ReservationType(3);
    /// Write exclusive, registrants only.
    pub const WRITE_EXCLUSIVE_REGISTRANTS: ReservationType = ReservationType(5);
    /// Exclusive access, registrants only.
    pub const EXCLUSIVE_ACCESS_REGISTRANTS: ReservationType = ReservationType(6);
    /// Write exclusive, all registrants.
    pub const WRITE_EXCLUSIVE_ALL: ReservationType = ReservationType(7);
    /// Exclusive access, all registrants.
    pub const EXCLUSIVE_ACCESS_ALL: ReservationType = ReservationType(8);

    /// The six types.
    pub const KNOWN: [ReservationType; 6] = [
        ReservationType::WRITE_EXCLUSIVE,
        ReservationType::EXCLUSIVE_ACCESS,
        ReservationType::WRITE_EXCLUSIVE_REGISTRANTS,
        ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS,
        ReservationType::WRITE_EXCLUSIVE_ALL,
        ReservationType::EXCLUSIVE_ACCESS_ALL,
    ];

    /// Judges SCOPE and TYPE of a CDB: only logical unit scope and the six types exist.
    pub fn parse(scope: u8, kind: u8) -> Result<ReservationType, Sense> {
        if scope != 0 {
            return Err(Sense::invalid_cdb_field(2, Some(7)));
        }
        let kind = ReservationType(kind);
        if ReservationType::KNOWN.contains(&kind) {
            Ok(kind)
        } else {
            Err(Sense::invalid_cdb_field(2, Some(3)))
        }
    }
}

/// Bytes of the parameter list without TransportIDs.
pub const PARAMETER_LIST_LEN: usize = 24;
/// Longest parameter list that is taken: room for 32 of the longest TransportIDs.
pub const PARAMETER_LIST_LEN_MAX: usize = PARAMETER_LIST_LEN + 4 + 32 * crate::transport_id::LEN_MAX;

/// Parameter list of all service actions but REGISTER AND MOVE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReserveOutParameters<'a> {
    /// RESERVATION KEY.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub action_key: u64,
    /// ALL_TG_PT: register on all target ports (REGISTER, REGISTER AND IGNORE EXISTING KEY).
    pub all_target_ports: bool,
    /// APTPL: registrations survive power loss (REGISTER, REGISTER AND IGNORE EXISTING KEY).
    pub persist: bool,
    /// SPEC_I_PT: the initiator ports to register besides the asking one.
    pub initiator_ports: Option<TransportIds<'a>>,
}

/// Parameter list of REGISTER AND MOVE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterAndMoveParameters<'a> {
    /// RESERVATION KEY.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the key of the new holder.
    pub action_key: u64,
    /// UNREG: unregister the asking nexus.
    pub unregister: bool,
    /// APTPL.
    pub persist: bool,
    /// RELATIVE TARGET PORT IDENTIFIER of the new holder's nexus.
    pub relative_port: u16,
    /// The new holder.
    pub initiator: TransportId<'a>,
}

/// TransportIDs one after another, each one checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportIds<'a>(&'a [u8]);

impl<'a> TransportIds<'a> {
    /// Checks every TransportID; `at`: where they begin in the parameter list.
    fn parse(bytes: &'a [u8], at: usize) -> Result<TransportIds<'a>, Sense> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let offset = at + bytes.len() - rest.len();
            (_, rest) = TransportId::parse(rest).map_err(|_| Sense::invalid_list_field(offset, None))?;
        }
        Ok(TransportIds(bytes))
    }

    /// The initiator ports.
    pub fn iter(&self) -> impl Iterator<Item = TransportId<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (id, next) = TransportId::parse(rest).ok()?;
            rest = next;
            Some(id)
        })
    }
}

impl<'a> ReserveOutParameters<'a> {
    /// Reads the list of any service action but REGISTER AND MOVE (SPC-4 §6.16.3).
    ///
    /// SPEC_I_PT is for REGISTER only. ALL_TG_PT and APTPL of actions that ignore them are given as 0.
    pub fn parse(action: PrOutAction, list: &'a [u8]) -> Result<ReserveOutParameters<'a>, Sense> {
        let (head, rest) =
            list.split_first_chunk::<PARAMETER_LIST_LEN>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let flags = head[20];
        let (registers, takes_ports) = match action {
            PrOutAction::Register => (true, true),
            PrOutAction::RegisterAndIgnore => (true, false),
            PrOutAction::Reserve
            | PrOutAction::Release
            | PrOutAction::Clear
            | PrOutAction::Preempt
            | PrOutAction::PreemptAndAbort
            | PrOutAction::RegisterAndMove => (false, false),
        };
        let spec_i_pt = bit(flags, 3);
        if spec_i_pt && !takes_ports {
            return Err(Sense::invalid_list_field(20, Some(3)));
        }
        let initiator_ports = match (spec_i_pt, rest) {
            (false, []) => None,
            (false, _) => return Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
            (true, _) => Some(parse_initiator_ports(rest)?),
        };
        Ok(ReserveOutParameters {
            key: be64(head, 0),
            action_key: be64(head, 8),
            all_target_ports: registers && bit(flags, 2),
            persist: registers && bit(flags, 0),
            initiator_ports,
        })
    }

    /// Writes the list.
    pub fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.key);
        w.u64(self.action_key);
        w.u32(0);
        w.u8(flag_bit(self.initiator_ports.is_some(), 3)
            | flag_bit(self.all_target_ports, 2)
            | flag_bit(self.persist, 0));
        w.zeros(3);
        if let Some(ports) = self.initiator_ports {
            w.u32(ports.0.len() as u32);
            w.put(ports.0);
        }
    }
}

/// TRANSPORTID PARAMETER DATA LENGTH and the TransportIDs, which must fill the rest of the list.
fn parse_initiator_ports(rest: &[u8]) -> Result<TransportIds<'_>, Sense> {
    let (len, ids) = rest.split_first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if be32(len, 0) as usize != ids.len() {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    TransportIds::parse(ids, PARAMETER_LIST_LEN + 4)
}

impl<'a> RegisterAndMoveParameters<'a> {
    /// Reads the list of REGISTER AND MOVE (SPC-4 §6.16.4).
    pub fn parse(list: &'a [u8]) -> Result<RegisterAndMoveParameters<'a>, Sense> {
        let (head, rest) =
            list.split_first_chunk::<PARAMETER_LIST_LEN>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        if be32(head, 20) as usize != rest.len() {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        let (initiator, behind) =
            TransportId::parse(rest).map_err(|_| Sense::invalid_list_field(PARAMETER_LIST_LEN, None))?;
        if !behind.is_empty() {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        Ok(RegisterAndMoveParameters {
            key: be64(head, 0),
            action_key: be64(head, 8),
            unregister: bit(head[17], 1),
            persist: bit(head[17], 0),
            relative_port: be16(head, 18),
            initiator,
        })
    }

    /// Writes the list.
    pub fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.key);
        w.u64(self.action_key);
        w.u8(0);
        w.u8(flag_bit(self.unregister, 1) | flag_bit(self.persist, 0));
        w.u16(self.relative_port);
        let len_at = w.len();
        w.u32(0);
        self.initiator.encode(w);
        w.patch_length_u32(len_at);
    }
}
