//! Reservations within a volume's record (see `record.rs`):
//!
//! ```text
//! held(kind or 0) holder(u16 or FFFFh) count(u16)
//! count × { 0 port(u16) isid[6] key(u64) len(u8) name[len]
//!         | 1 hostid[16] key(u64) len(u8) nqn[len] }      version 1 had no NQN
//! ```

use std::sync::Arc;

use super::{HeldReservation, Key, REGISTRANTS_MAX, Registrant, ReservationType, Reservations};
use crate::record::PortRenumbering;
use crate::record::reader::RecordReader;
use crate::requester::{Identity, PortId};

const PERSIST_FLAG: u8 = 1;
const NO_HOLDER: u16 = u16::MAX;

impl Reservations {
    pub(crate) fn saved_flags(&self) -> u8 {
        if self.persist { PERSIST_FLAG } else { 0 }
    }

    /// Writes what must survive power loss: everything, or only that nothing is to.
    pub(crate) fn save_to(&self, out: &mut Vec<u8>) {
        let nothing = Reservations::default();
        let kept = if self.persist { self } else { &nothing };
        out.push(kept.held.as_ref().map_or(0, |held| held.kind.to_nvme()));
        let holder = kept.held.as_ref().and_then(|held| held.holder.as_ref());
        let holder =
            holder.and_then(|holder| kept.find_registrant(holder).ok()).map_or(NO_HOLDER, |at| at as u16);
        out.extend_from_slice(&holder.to_le_bytes());
        out.extend_from_slice(&(kept.registrants.len() as u16).to_le_bytes());
        for registrant in &kept.registrants {
            registrant.save_to(out);
        }
    }

    /// Initiator ports that are registered by a port are by all that have come of it, as far as there is room.
    pub(crate) fn renumber_ports(&self, splits: &PortRenumbering) -> Reservations {
        let mut state = self.clone();
        for registrant in &self.registrants {
            let Identity::Initiator { port, .. } = &*registrant.identity else { continue };
            let now = splits.pairs.iter().filter(|(from, _)| from == port).map(|(_, to)| *to);
            let now: Vec<_> = now.map(|to| Arc::new(registrant.identity.with_target_port(to))).collect();
            if let Some(first) = now.first()
                && splits.gone.contains(port)
            {
                state.registrants.retain(|one| one.identity != registrant.identity);
                let held = state.held.as_mut().and_then(|held| held.holder.as_mut());
                if let Some(holder) = held.filter(|holder| **holder == registrant.identity) {
                    *holder = first.clone();
                }
            }
            for identity in now {
                if let Err(at) = state.find_registrant(&identity)
                    && state.registrants.len() < REGISTRANTS_MAX
                {
                    state.registrants.insert(at, Registrant { identity, ..registrant.clone() });
                }
            }
        }
        state
    }

    /// What [`Reservations::save_to`] wrote, with the Host NQNs if they are `named`; `None` if it
    /// contradicts itself. The generation starts again.
    pub(crate) fn restore_from(
        from: &mut RecordReader<'_>,
        flags: u8,
        named: bool,
        persist_forced: bool,
    ) -> Option<Self> {
        let [kind] = from.array()?;
        let holder = u16::from_le_bytes(from.array()?);
        let count = usize::from(u16::from_le_bytes(from.array()?));
        if count > REGISTRANTS_MAX {
            return None;
        }
        let mut state = Reservations::new(persist_forced);
        state.persist |= flags & PERSIST_FLAG != 0;
        for _ in 0..count {
            let next = Registrant::restore_from(from, named)?;
            if state.registrants.last().is_some_and(|last| last.identity >= next.identity) {
                return None;
            }
            state.registrants.push(next);
        }
        if kind != 0 {
            let kind = ReservationType::from_nvme(kind)?;
            let holder = match (kind.is_all_registrants(), state.registrants.get(usize::from(holder))) {
                (true, None) if holder == NO_HOLDER && count > 0 => None,
                (false, Some(holder)) => Some(holder.identity.clone()),
                (true | false, _) => return None,
            };
            state.held = Some(HeldReservation { kind, holder });
        }
        Some(state)
    }
}

/// What no record keeps (see `replica.rs`).
impl Reservations {
    /// The state with this holder of a SCSI-2 reservation, and this generation; `None` if it contradicts itself.
    pub(crate) fn with_volatile_state(self, legacy: Option<Arc<Identity>>, generation: u32) -> Option<Self> {
        let excluded = legacy.is_some() && !(self.registrants.is_empty() && self.held.is_none());
        (!excluded).then_some(Reservations { legacy, generation, ..self })
    }
}

impl Registrant {
    fn save_to(&self, out: &mut Vec<u8>) {
        match &*self.identity {
            Identity::Initiator { name, isid, port } => {
                out.push(0);
                out.extend_from_slice(&port.0.to_le_bytes());
                out.extend_from_slice(isid);
                out.extend_from_slice(&self.key.0.to_le_bytes());
                save_string(name, out);
            }
            Identity::Host(id) => {
                out.push(1);
                out.extend_from_slice(id);
                out.extend_from_slice(&self.key.0.to_le_bytes());
                save_string(self.nqn.as_deref().unwrap_or(""), out);
            }
        }
    }

    fn restore_from(from: &mut RecordReader<'_>, named: bool) -> Option<Registrant> {
        let (identity, key, nqn) = match from.array()? {
            [0] => {
                let port = PortId(u16::from_le_bytes(from.array()?));
                let isid = from.array()?;
                let key = from.array()?;
                (Identity::Initiator { name: from.string()?.into(), isid, port }, key, "")
            }
            [1] => {
                let (id, key) = (from.array()?, from.array()?);
                (Identity::Host(id), key, if named { from.string()? } else { "" })
            }
            [_] => return None,
        };
        let nqn: Option<Arc<str>> = (!nqn.is_empty()).then(|| nqn.into());
        let key = Key(u64::from_le_bytes(key));
        (key != Key::NONE).then(|| Registrant { identity: Arc::new(identity), key, nqn })
    }
}

#[expect(clippy::expect_used, reason = "names of hosts are at most 223 bytes, which their protocols check")]
pub(crate) fn save_string(text: &str, out: &mut Vec<u8>) {
    out.push(u8::try_from(text.len()).expect("a name has at most 223 bytes"));
    out.extend_from_slice(text.as_bytes());
}
