//! Parameter data of PERSISTENT RESERVE IN (SPC-4 §6.15).
//!
//! Registrants are passed as iterators: their owner bounds their number, and nothing is collected here.

use super::ReservationType;
use crate::transport_id::TransportId;
use crate::wire::{Writer, be16, be32, be64, bit, bits, flag_bit, place_bits};

/// READ KEYS: one key per registration.
pub fn encode_keys(generation: u32, keys: impl Iterator<Item = u64>, w: &mut Writer<'_>) {
    w.u32(generation);
    let len_at = w.len();
    w.u32(0);
    keys.for_each(|key| w.u64(key));
    w.patch_length_u32(len_at);
}

/// A reservation as READ RESERVATION shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Key of the holder; 0 for the all registrants types.
    pub key: u64,
    /// Type.
    pub kind: ReservationType,
}

/// READ RESERVATION.
pub fn encode_reservation(generation: u32, reservation: Option<Reservation>, w: &mut Writer<'_>) {
    w.u32(generation);
    let len_at = w.len();
    w.u32(0);
    if let Some(reservation) = reservation {
        w.u64(reservation.key);
        w.zeros(5);
        w.u8(place_bits(reservation.kind.0, 3, 0));
        w.zeros(2);
    }
    w.patch_length_u32(len_at);
}

/// Reads READ RESERVATION data: the generation and the reservation. `None`: too short for what it says.
pub fn decode_reservation(data: &[u8]) -> Option<(u32, Option<Reservation>)> {
    let head: &[u8; 8] = data.first_chunk()?;
    if be32(head, 4) == 0 {
        return Some((be32(head, 0), None));
    }
    let body: &[u8; 16] = data.get(8..)?.first_chunk()?;
    let kind = ReservationType(bits(body[13], 3, 0));
    Some((be32(head, 0), Some(Reservation { key: be64(body, 0), kind })))
}

/// The keys in READ KEYS data, as far as they were transferred, after the generation.
pub fn decode_keys(data: &[u8]) -> Option<(u32, impl Iterator<Item = u64> + '_)> {
    let (head, rest) = data.split_first_chunk::<8>()?;
    let keys = rest.get(..be32(head, 4) as usize).unwrap_or(rest);
    let (keys, _) = keys.as_chunks::<8>();
    Some((be32(head, 0), keys.iter().map(|key| u64::from_be_bytes(*key))))
}

/// REPORT CAPABILITIES: what a device server offers. All six types are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// CRH: RESERVE and RELEASE of a registrant succeed and do nothing (SPC-4 §5.13.3).
    pub compatible_reserve: bool,
    /// SIP_C: SPEC_I_PT is supported.
    pub specify_ports: bool,
    /// ATP_C: ALL_TG_PT is supported.
    pub all_target_ports: bool,
    /// PTPL_C: registrations can survive power loss.
    pub persist_capable: bool,
    /// PTPL_A: they do now.
    pub persist_active: bool,
    /// ALLOW COMMANDS, 0..=5: which commands pass a reservation (SPC-4 table 49).
    pub allow_commands: u8,
}

impl Capabilities {
    /// Writes the 8 bytes.
    pub fn encode(&self, w: &mut Writer<'_>) {
        w.u16(8);
        w.u8(flag_bit(self.compatible_reserve, 4)
            | flag_bit(self.specify_ports, 3)
            | flag_bit(self.all_target_ports, 2)
            | flag_bit(self.persist_capable, 0));
        // TMV: the type mask is valid.
        w.u8(flag_bit(true, 7) | place_bits(self.allow_commands, 6, 4) | flag_bit(self.persist_active, 0));
        w.put(&ALL_TYPES_MASK);
        w.zeros(2);
    }

    /// Reads the data; `None`: too short.
    pub fn decode(data: &[u8]) -> Option<Capabilities> {
        let d: &[u8; 8] = data.first_chunk()?;
        Some(Capabilities {
            compatible_reserve: bit(d[2], 4),
            specify_ports: bit(d[2], 3),
            all_target_ports: bit(d[2], 2),
            persist_capable: bit(d[2], 0),
            persist_active: bit(d[3], 0),
            allow_commands: bits(d[3], 6, 4),
        })
    }
}

/// PERSISTENT RESERVATION TYPE MASK: types 7, 6, 5, 3, 1 in the first byte, 8 in the second.
const ALL_TYPES_MASK: [u8; 2] = [0xea, 0x01];

/// One registration of READ FULL STATUS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FullStatusEntry<'a> {
    /// Its key.
    pub key: u64,
    /// The reservation's type if this registrant holds it.
    pub holds: Option<ReservationType>,
    /// The target port of the nexus; `None`: registered on all (ALL_TG_PT).
    pub relative_port: Option<u16>,
    /// The initiator port.
    pub initiator: TransportId<'a>,
}

/// A registration in received READ FULL STATUS data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodedRegistration<'a> {
    /// Its key.
    pub key: u64,
    /// The reservation's type if this registrant holds it.
    pub holds: Option<ReservationType>,
    /// The target port of the nexus; `None`: registered on all (ALL_TG_PT).
    pub relative_port: Option<u16>,
    /// The initiator port; `None`: none of iSCSI's.
    pub initiator: Option<TransportId<'a>>,
}

/// Reads READ FULL STATUS data: the generation, and each whole registration. `None`: too short.
pub fn decode_full_status(data: &[u8]) -> Option<(u32, impl Iterator<Item = DecodedRegistration<'_>>)> {
    let (head, rest) = data.split_first_chunk::<8>()?;
    let mut rest = rest.get(..be32(head, 4) as usize).unwrap_or(rest);
    let entries = std::iter::from_fn(move || {
        let (head, tail) = rest.split_first_chunk::<24>()?;
        let (id, next) = tail.split_at_checked(be32(head, 20) as usize)?;
        rest = next;
        Some(DecodedRegistration {
            key: be64(head, 0),
            holds: bit(head[12], 0).then(|| ReservationType(bits(head[13], 3, 0))),
            relative_port: (!bit(head[12], 1)).then(|| be16(head, 18)),
            initiator: TransportId::parse(id).ok().map(|(initiator, _)| initiator),
        })
    });
    Some((be32(head, 0), entries))
}

/// Writes READ FULL STATUS, one registration after the other.
#[derive(Debug)]
pub struct FullStatusWriter<'w, 'o> {
    w: &'w mut Writer<'o>,
    len_at: usize,
}

impl<'w, 'o> FullStatusWriter<'w, 'o> {
    /// Begins the data.
    pub fn start(generation: u32, w: &'w mut Writer<'o>) -> Self {
        w.u32(generation);
        let len_at = w.len();
        w.u32(0);
        FullStatusWriter { w, len_at }
    }

    /// Appends a registration.
    pub fn push_entry(&mut self, entry: &FullStatusEntry<'_>) {
        let w = &mut *self.w;
        w.u64(entry.key);
        w.u32(0);
        w.u8(flag_bit(entry.relative_port.is_none(), 1) | flag_bit(entry.holds.is_some(), 0));
        w.u8(entry.holds.map_or(0, |kind| place_bits(kind.0, 3, 0)));
        w.u32(0);
        w.u16(entry.relative_port.unwrap_or(0));
        let len_at = w.len();
        w.u32(0);
        entry.initiator.encode(w);
        w.patch_length_u32(len_at);
    }

    /// Ends the data.
    pub fn finish(self) {
        self.w.patch_length_u32(self.len_at);
    }
}
