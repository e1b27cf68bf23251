//! PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE (SPC-4 §5.13, SPC-2 §5.5): parsing and formatting only.
//! The volume has the rules.

use std::sync::Arc;

use buf::Sg;
use scsi::Writer;
use scsi::cdb::{PrInAction, PrOutAction, ReserveOut};
use scsi::pr::{self, Capabilities, FullStatus, FullStatusEntry, MoveParameters, ReserveOutParameters};
use scsi::sense::Sense;
use scsi::transport_id::TransportId;
use volume::reservation::{Action, Key, Register, Registrant, ReservationType, Reservations};
use volume::{Identity, PortId, Requester, Uuid, VolumeRequest};

use super::parameter::contiguous;
use crate::context::ExecContext;
use crate::nexus::NexusSpec;

/// RESERVE or RELEASE of SPC-2.
pub(crate) fn legacy(ctx: &mut ExecContext, slot: u32, reserve: bool) {
    let action = if reserve { Action::LegacyReserve } else { Action::LegacyRelease };
    request(ctx, slot, action);
}

fn request(ctx: &mut ExecContext, slot: u32, action: Action) {
    let read_only = ctx.tasks.get(slot).read_only;
    let who = Requester { read_only, ..ctx.nexus_of(slot).nexus.clone() };
    ctx.request(slot, VolumeRequest::Reserve { who, action });
}

/// PERSISTENT RESERVE OUT.
pub(crate) fn out(ctx: &mut ExecContext, slot: u32, out: ReserveOut) {
    if let Err(sense) = kind(out) {
        return ctx.check(slot, sense);
    }
    if (out.list_len as usize) < pr::LIST_LEN {
        return ctx.check(slot, Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    ctx.receive_list(slot, out.list_len, pr::LIST_LEN_MAX);
}

/// SCOPE and TYPE, where the action looks at them.
fn kind(out: ReserveOut) -> Result<Option<ReservationType>, Sense> {
    match out.action {
        PrOutAction::Reserve | PrOutAction::Release | PrOutAction::Preempt | PrOutAction::PreemptAndAbort => {
            let kind = pr::ReservationType::parse(out.scope, out.kind)?;
            Ok(ReservationType::from_scsi(kind.0))
        }
        PrOutAction::Register | PrOutAction::RegisterAndIgnore => Ok(None),
        PrOutAction::Clear | PrOutAction::RegisterAndMove => Ok(None),
    }
}

/// The list of a PERSISTENT RESERVE OUT is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, out: ReserveOut, data: &Sg) {
    match action(ctx.nexus_of(slot), out, &contiguous(data)) {
        Ok(action) => request(ctx, slot, action),
        Err(sense) => ctx.check(slot, sense),
    }
}

fn action(nexus: &NexusSpec, out: ReserveOut, bytes: &[u8]) -> Result<Action, Sense> {
    if out.action == PrOutAction::RegisterAndMove {
        return move_action(nexus, bytes);
    }
    let list = ReserveOutParameters::parse(out.action, bytes)?;
    let (key, victim) = (Some(Key(list.key)), Key(list.action_key));
    let kind = || kind(out)?.ok_or(Sense::cdb_field(2, Some(3)));
    Ok(match out.action {
        PrOutAction::Register => register(nexus, &list, key)?,
        PrOutAction::RegisterAndIgnore => register(nexus, &list, None)?,
        PrOutAction::Reserve => Action::Reserve { key, kind: kind()? },
        PrOutAction::Release => Action::Release { key, kind: kind()? },
        PrOutAction::Clear => Action::Clear { key },
        PrOutAction::Preempt => Action::Preempt { key, victim, kind: kind()?, abort: false },
        PrOutAction::PreemptAndAbort => Action::Preempt { key, victim, kind: kind()?, abort: true },
        // It has a list of its own.
        PrOutAction::RegisterAndMove => return Err(Sense::INTERNAL_TARGET_FAILURE),
    })
}

fn register(
    nexus: &NexusSpec,
    list: &ReserveOutParameters<'_>,
    current: Option<Key>,
) -> Result<Action, Sense> {
    let port = nexus.nexus.port;
    let also = match &list.initiator_ports {
        None => Vec::new(),
        Some(ids) => ids.iter().map(|id| initiator(&id, port, 24)).collect::<Result<_, _>>()?,
    };
    let ports =
        if list.all_target_ports { nexus.ports.iter().map(|port| port.port).collect() } else { Vec::new() };
    Ok(Action::Register(Register {
        also,
        ports,
        persist: Some(list.persist),
        ..Register::new(current, Key(list.action_key))
    }))
}

/// An initiator port by its TransportID, which must name a port, not a whole device: registrations
/// are kept per I_T nexus.
fn initiator(id: &TransportId<'_>, port: PortId, at: usize) -> Result<Arc<Identity>, Sense> {
    let isid = id.isid.ok_or(Sense::list_field(at, Some(7)))?;
    let name = id.name.to_ascii_lowercase().into();
    Ok(Arc::new(Identity::Initiator { name, isid, port }))
}

fn move_action(nexus: &NexusSpec, bytes: &[u8]) -> Result<Action, Sense> {
    let list = MoveParameters::parse(bytes)?;
    let port = PortId(list.relative_port);
    if !nexus.ports.iter().any(|known| known.port == port) {
        return Err(Sense::list_field(18, None));
    }
    Ok(Action::Move {
        key: Key(list.key),
        new: Key(list.action_key),
        to: initiator(&list.initiator, port, pr::LIST_LEN)?,
        unregister: list.unregister,
        persist: Some(list.persist),
    })
}

/// PERSISTENT RESERVE IN.
pub(crate) fn report(ctx: &mut ExecContext, slot: u32, action: PrInAction, allocation: u16) {
    ctx.report(slot, usize::from(allocation), |ctx, w| {
        let reservations = &ctx.unit_of(slot).view.reservations;
        let generation = reservations.generation();
        match action {
            PrInAction::ReadKeys => {
                pr::read_keys(generation, reservations.registrants().iter().map(|one| one.key.0), w);
            }
            PrInAction::ReadReservation => {
                let held = reservations.held().map(|held| pr::Reservation {
                    key: reservations.held_key().unwrap_or_default().0,
                    kind: pr::ReservationType(held.kind.scsi()),
                });
                pr::read_reservation(generation, held, w);
            }
            PrInAction::ReportCapabilities => Capabilities {
                compatible_reserve: true,
                specify_ports: true,
                all_target_ports: true,
                persist_capable: true,
                persist_active: reservations.persists(),
                allow_commands: 1,
            }
            .encode(w),
            PrInAction::ReadFullStatus => full_status(reservations, w),
        }
        Ok(())
    });
}

fn full_status(reservations: &Reservations, w: &mut Writer<'_>) {
    let mut status = FullStatus::start(reservations.generation(), w);
    for Registrant { identity, key, nqn } in reservations.registrants() {
        let held = reservations.held().filter(|_| reservations.is_holder(identity));
        let holds = held.map(|held| pr::ReservationType(held.kind.scsi()));
        match &**identity {
            Identity::Initiator { name, isid, port } => status.entry(&FullStatusEntry {
                key: key.0,
                holds,
                relative_port: Some(port.0),
                initiator: TransportId { name, isid: Some(*isid) },
            }),
            // No TransportID can say what an NVMe host is, but its name can stand where names stand.
            Identity::Host(id) => {
                let made = || format!("nqn.2014-08.org.nvmexpress:uuid:{}", Uuid(*id));
                let name = nqn.as_deref().map_or_else(made, str::to_owned);
                let initiator = TransportId { name: &name, isid: None };
                status.entry(&FullStatusEntry { key: key.0, holds, relative_port: None, initiator });
            }
        }
    }
    status.finish();
}
