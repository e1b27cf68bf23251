//! Reservations as bytes that outlive power: versioned, checksummed, bound to the volume's UUID.
//!
//! ```text
//! "BWPR" version=1 flags uuid[16] held(kind or 0) holder(u16 or FFFFh) count(u16)
//! count × { 0 port(u16) isid[6] key(u64) len(u8) name[len]  |  1 hostid[16] key(u64) }
//! crc32c(u32) of all before; numbers little-endian
//! ```
//!
//! Invariant: bytes that differ anywhere from what was written are refused, never read as "none".

use std::sync::Arc;

use super::{Held, Key, Kind, REGISTRANTS_MAX, Registrant, Reservations};
use crate::facts::Uuid;
use crate::nexus::{Identity, PortId};

const MAGIC: &[u8; 4] = b"BWPR";
const VERSION: u8 = 1;
const PERSIST: u8 = 1;
const NO_HOLDER: u16 = u16::MAX;

/// Why saved reservations cannot be trusted. The volume must not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Not a reservation file.
    Foreign,
    /// Written by a later version of this software.
    Version(u8),
    /// The file is of another volume.
    OtherVolume(Uuid),
    /// The bytes do not have the checksum that they were written with.
    Checksum,
    /// The checksum is right, the contents contradict themselves.
    Contents,
}

impl std::fmt::Display for Damaged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damaged::Foreign => write!(f, "not a reservation file"),
            Damaged::Version(version) => write!(f, "written in format {version}, which is not known here"),
            Damaged::OtherVolume(uuid) => write!(f, "of another volume: {uuid}"),
            Damaged::Checksum => write!(f, "wrong checksum"),
            Damaged::Contents => write!(f, "contradictory contents"),
        }
    }
}

impl std::error::Error for Damaged {}

impl Reservations {
    /// What must survive power loss: everything, or only that nothing is to.
    pub fn save(&self, uuid: Uuid) -> Vec<u8> {
        let kept = if self.persist { self.clone() } else { Reservations::default() };
        let mut out = Vec::with_capacity(32 + kept.registrants.len() * 64);
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.push(if kept.persist { PERSIST } else { 0 });
        out.extend_from_slice(&uuid.0);
        out.push(kept.held.as_ref().map_or(0, |held| held.kind.nvme()));
        let holder = kept.held.as_ref().and_then(|held| held.holder.as_ref());
        let holder = holder.and_then(|holder| kept.find(holder).ok()).map_or(NO_HOLDER, |at| at as u16);
        out.extend_from_slice(&holder.to_le_bytes());
        out.extend_from_slice(&(kept.registrants.len() as u16).to_le_bytes());
        for registrant in &kept.registrants {
            save_registrant(registrant, &mut out);
        }
        out.extend_from_slice(&buf::crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// What [`Reservations::save`] wrote for this volume. The generation starts anew.
    pub fn restore(bytes: &[u8], uuid: Uuid, persist_forced: bool) -> Result<Self, Damaged> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(Damaged::Foreign)?;
        let mut from = Reader(body);
        if from.array::<4>().ok_or(Damaged::Foreign)? != *MAGIC {
            return Err(Damaged::Foreign);
        }
        if buf::crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(Damaged::Checksum);
        }
        let [version] = from.array().ok_or(Damaged::Contents)?;
        if version != VERSION {
            return Err(Damaged::Version(version));
        }
        let state = restore_body(&mut from, uuid, persist_forced)?;
        if from.0.is_empty() { Ok(state) } else { Err(Damaged::Contents) }
    }
}

fn restore_body(from: &mut Reader<'_>, uuid: Uuid, persist_forced: bool) -> Result<Reservations, Damaged> {
    let [flags] = from.array().ok_or(Damaged::Contents)?;
    let of = Uuid(from.array().ok_or(Damaged::Contents)?);
    if of != uuid {
        return Err(Damaged::OtherVolume(of));
    }
    let [kind] = from.array().ok_or(Damaged::Contents)?;
    let holder = u16::from_le_bytes(from.array().ok_or(Damaged::Contents)?);
    let count = usize::from(u16::from_le_bytes(from.array().ok_or(Damaged::Contents)?));
    if count > REGISTRANTS_MAX {
        return Err(Damaged::Contents);
    }
    let mut state = Reservations::new(persist_forced);
    state.persist |= flags & PERSIST != 0;
    for _ in 0..count {
        let next = from.registrant().ok_or(Damaged::Contents)?;
        if state.registrants.last().is_some_and(|last| last.identity >= next.identity) {
            return Err(Damaged::Contents);
        }
        state.registrants.push(next);
    }
    if kind != 0 {
        let kind = Kind::from_nvme(kind).ok_or(Damaged::Contents)?;
        let holder = match (kind.is_all_registrants(), state.registrants.get(usize::from(holder))) {
            (true, None) if holder == NO_HOLDER && count > 0 => None,
            (false, Some(holder)) => Some(holder.identity.clone()),
            (true | false, _) => return Err(Damaged::Contents),
        };
        state.held = Some(Held { kind, holder });
    }
    Ok(state)
}

fn save_registrant(registrant: &Registrant, out: &mut Vec<u8>) {
    match &*registrant.identity {
        Identity::Initiator { name, isid, port } => {
            out.push(0);
            out.extend_from_slice(&port.0.to_le_bytes());
            out.extend_from_slice(isid);
            out.extend_from_slice(&registrant.key.0.to_le_bytes());
            let len = u8::try_from(name.len()).expect("an iSCSI name has at most 223 bytes");
            out.push(len);
            out.extend_from_slice(name.as_bytes());
        }
        Identity::Host(id) => {
            out.push(1);
            out.extend_from_slice(id);
            out.extend_from_slice(&registrant.key.0.to_le_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, later) = self.0.split_first_chunk()?;
        self.0 = later;
        Some(*now)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (now, later) = self.0.split_at_checked(len)?;
        self.0 = later;
        Some(now)
    }

    fn registrant(&mut self) -> Option<Registrant> {
        let (identity, key) = match self.array()? {
            [0] => {
                let port = PortId(u16::from_le_bytes(self.array()?));
                let isid = self.array()?;
                let key = self.array()?;
                let [len] = self.array()?;
                let name = std::str::from_utf8(self.bytes(usize::from(len))?).ok()?;
                (Identity::Initiator { name: name.into(), isid, port }, key)
            }
            [1] => (Identity::Host(self.array()?), self.array()?),
            [_] => return None,
        };
        let key = Key(u64::from_le_bytes(key));
        (key != Key::NONE).then(|| Registrant { identity: Arc::new(identity), key })
    }
}
