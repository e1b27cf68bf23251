//! Reservations of a volume that another process goes on with: all of them, whether they survive power loss or not,
//! and the SCSI-2 one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{HeldReservation, Key, REGISTRANTS_MAX, Registrant, ReservationType, Reservations};
use crate::requester::{Identity, PortId};

/// Who.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IdentityBody {
    /// Name, ISID and target port.
    Initiator(String, [u8; 6], u16),
    Host([u8; 16]),
}

/// All that [`Reservations`] hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReservationsBody {
    registrants: Vec<RegistrantBody>,
    /// NVMe's code of the type, and the place of the holder among the registrants.
    pub(crate) held: Option<(u8, Option<u32>)>,
    legacy: Option<IdentityBody>,
    generation: u32,
    persist: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RegistrantBody {
    identity: IdentityBody,
    key: u64,
    nqn: Option<String>,
}

impl IdentityBody {
    pub(crate) fn of(identity: &Identity) -> Self {
        match identity {
            Identity::Initiator { name, isid, port } => {
                IdentityBody::Initiator(name.as_ref().into(), *isid, port.0)
            }
            Identity::Host(id) => IdentityBody::Host(*id),
        }
    }

    pub(crate) fn to_identity(&self) -> Arc<Identity> {
        Arc::new(match self {
            IdentityBody::Initiator(name, isid, port) => {
                Identity::Initiator { name: name.as_str().into(), isid: *isid, port: PortId(*port) }
            }
            IdentityBody::Host(id) => Identity::Host(*id),
        })
    }
}

impl Reservations {
    pub(crate) fn to_body(&self) -> ReservationsBody {
        let registrant = |one: &Registrant| RegistrantBody {
            identity: IdentityBody::of(&one.identity),
            key: one.key.0,
            nqn: one.nqn.as_deref().map(Into::into),
        };
        let held = self.held.as_ref().map(|held| {
            let holder = held.holder.as_ref().and_then(|holder| self.find_registrant(holder).ok());
            (held.kind.to_nvme(), holder.map(|at| at as u32))
        });
        ReservationsBody {
            registrants: self.registrants.iter().map(registrant).collect(),
            held,
            legacy: self.legacy.as_deref().map(IdentityBody::of),
            generation: self.generation,
            persist: self.persist,
        }
    }

    /// What [`Reservations::to_body`] gave; `None` if it contradicts itself.
    pub(crate) fn from_body(body: &ReservationsBody, persist_forced: bool) -> Option<Self> {
        let mut state = Reservations::new(persist_forced);
        state.persist |= body.persist;
        state.generation = body.generation;
        if body.registrants.len() > REGISTRANTS_MAX {
            return None;
        }
        for one in &body.registrants {
            let identity = one.identity.to_identity();
            let follows = state.registrants.last().is_none_or(|last| last.identity < identity);
            if !follows || one.key == 0 {
                return None;
            }
            let nqn = one.nqn.as_deref().map(Into::into);
            state.registrants.push(Registrant { identity, key: Key(one.key), nqn });
        }
        if let Some((kind, holder)) = body.held {
            let kind = ReservationType::from_nvme(kind)?;
            let holder = match holder {
                Some(at) => Some(state.registrants.get(at as usize)?.identity.clone()),
                None => None,
            };
            let sound = kind.is_all_registrants() == holder.is_none() && !state.registrants.is_empty();
            state.held = Some(HeldReservation { kind, holder }).filter(|_| sound);
            state.held.as_ref()?;
        }
        state.legacy = body.legacy.as_ref().map(IdentityBody::to_identity);
        let apart = state.legacy.is_none() || state.registrants.is_empty();
        apart.then_some(state)
    }
}
