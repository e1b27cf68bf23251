//! PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE (SPC-4 §5.13, SPC-2 §5.5): parsing and formatting only.
//! The volume has the rules.

use std::sync::Arc;

use buf::Sg;
use scsi::cdb::{PrInAction, PrOutAction, ReserveOut};
use scsi::persistent_reservation::{
    self, Capabilities, FullStatusEntry, FullStatusWriter, RegisterAndMoveParameters, ReserveOutParameters,
};
use scsi::sense::Sense;
use scsi::transport_id::TransportId;
use scsi::{Command, Writer};
use volume::reservation::{Action, Key, Registrant, RegistrationRequest, ReservationType, Reservations};
use volume::{Identity, PortId, Requester, Uuid, VolumeRequest};

use super::alua;
use super::parameter_data::contiguous_bytes;
use crate::after_operation::AfterOperation;
use crate::context::ExecContext;
use crate::nexus::NexusSpec;

/// RESERVE or RELEASE of SPC-2.
pub(crate) fn spc2_reserve_release(ctx: &mut ExecContext, slot: u32, reserve: bool) {
    let action = if reserve { Action::LegacyReserve } else { Action::LegacyRelease };
    request_reservation_action(ctx, slot, action);
}

fn request_reservation_action(ctx: &mut ExecContext, slot: u32, action: Action) {
    let read_only = ctx.tasks.get(slot).read_only;
    let who = Requester { read_only, ..ctx.nexus_of(slot).nexus.clone() };
    ctx.request_volume_change(slot, VolumeRequest::Reserve { who, action });
}

/// PERSISTENT RESERVE OUT.
pub(crate) fn persistent_reserve_out(ctx: &mut ExecContext, slot: u32, out: ReserveOut) {
    if let Err(sense) = reservation_type(out) {
        return ctx.respond_check_condition(slot, sense);
    }
    if (out.list_len as usize) < persistent_reservation::PARAMETER_LIST_LEN {
        return ctx.respond_check_condition(slot, Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    ctx.request_parameter_list(slot, out.list_len, persistent_reservation::PARAMETER_LIST_LEN_MAX);
}

/// SCOPE and TYPE, where the action looks at them.
fn reservation_type(out: ReserveOut) -> Result<Option<ReservationType>, Sense> {
    match out.action {
        PrOutAction::Reserve | PrOutAction::Release | PrOutAction::Preempt | PrOutAction::PreemptAndAbort => {
            let kind = persistent_reservation::ReservationType::parse(out.scope, out.kind)?;
            Ok(ReservationType::from_scsi(kind.0))
        }
        PrOutAction::Register | PrOutAction::RegisterAndIgnore => Ok(None),
        PrOutAction::Clear | PrOutAction::RegisterAndMove => Ok(None),
    }
}

/// The list of a PERSISTENT RESERVE OUT is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, out: ReserveOut, data: &Sg) {
    let nexus = ctx.nexus_of(slot);
    let ports: Vec<PortId> = alua::ports_of(nexus, &ctx.logical_unit_of(slot).view).collect();
    match parse_action(nexus, &ports, out, &contiguous_bytes(data)) {
        Ok(action) => request_reservation_action(ctx, slot, action),
        Err(sense) => ctx.respond_check_condition(slot, sense),
    }
}

fn parse_action(nexus: &NexusSpec, ports: &[PortId], out: ReserveOut, bytes: &[u8]) -> Result<Action, Sense> {
    if out.action == PrOutAction::RegisterAndMove {
        return parse_register_and_move(ports, bytes);
    }
    let list = ReserveOutParameters::parse(out.action, bytes)?;
    let (key, victim) = (Some(Key(list.key)), Key(list.action_key));
    let kind = || reservation_type(out)?.ok_or(Sense::invalid_cdb_field(2, Some(3)));
    Ok(match out.action {
        PrOutAction::Register => parse_register(nexus, ports, &list, key)?,
        PrOutAction::RegisterAndIgnore => parse_register(nexus, ports, &list, None)?,
        PrOutAction::Reserve => Action::Reserve { key, kind: kind()? },
        PrOutAction::Release => Action::Release { key, kind: kind()? },
        PrOutAction::Clear => Action::Clear { key },
        PrOutAction::Preempt => Action::Preempt { key, victim, kind: kind()?, abort: false },
        PrOutAction::PreemptAndAbort => Action::Preempt { key, victim, kind: kind()?, abort: true },
        // It has a list of its own.
        PrOutAction::RegisterAndMove => return Err(Sense::INTERNAL_TARGET_FAILURE),
    })
}

fn parse_register(
    nexus: &NexusSpec,
    ports: &[PortId],
    list: &ReserveOutParameters<'_>,
    current: Option<Key>,
) -> Result<Action, Sense> {
    let port = nexus.nexus.port;
    let also = match &list.initiator_ports {
        None => Vec::new(),
        Some(ids) => {
            ids.iter().map(|id| identity_from_transport_id(&id, port, 24)).collect::<Result<_, _>>()?
        }
    };
    let ports = if list.all_target_ports { ports.to_vec() } else { Vec::new() };
    Ok(Action::Register(RegistrationRequest {
        also,
        ports,
        persist: Some(list.persist),
        ..RegistrationRequest::new(current, Key(list.action_key))
    }))
}

/// An initiator port by its TransportID, which must name a port, not a whole device: registrations
/// are kept per I_T nexus.
fn identity_from_transport_id(id: &TransportId<'_>, port: PortId, at: usize) -> Result<Arc<Identity>, Sense> {
    let isid = id.isid.ok_or(Sense::invalid_list_field(at, Some(7)))?;
    let name = id.name.to_ascii_lowercase().into();
    Ok(Arc::new(Identity::Initiator { name, isid, port }))
}

fn parse_register_and_move(ports: &[PortId], bytes: &[u8]) -> Result<Action, Sense> {
    let list = RegisterAndMoveParameters::parse(bytes)?;
    let port = PortId(list.relative_port);
    if !ports.contains(&port) {
        return Err(Sense::invalid_list_field(18, None));
    }
    Ok(Action::Move {
        key: Key(list.key),
        new: Key(list.action_key),
        to: identity_from_transport_id(&list.initiator, port, persistent_reservation::PARAMETER_LIST_LEN)?,
        unregister: list.unregister,
        persist: Some(list.persist),
    })
}

/// PERSISTENT RESERVE IN.
pub(crate) fn persistent_reserve_in(ctx: &mut ExecContext, slot: u32) {
    if !ctx.logical_unit_of(slot).view.decided_elsewhere {
        return report_reservations(ctx, slot);
    }
    ctx.tasks.get_mut(slot).job = AfterOperation::Refreshed;
    ctx.request_volume_change(slot, VolumeRequest::Refresh);
}

/// What the view says of registrations and the reservation.
pub(crate) fn report_reservations(ctx: &mut ExecContext, slot: u32) {
    let Command::ReserveIn { action, allocation } = ctx.tasks.get(slot).command else {
        return ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE);
    };
    ctx.respond_with_parameter_data(slot, usize::from(allocation), |ctx, w| {
        let reservations = &ctx.logical_unit_of(slot).view.reservations;
        let generation = reservations.generation();
        match action {
            PrInAction::ReadKeys => {
                persistent_reservation::encode_keys(
                    generation,
                    reservations.registrants().iter().map(|one| one.key.0),
                    w,
                );
            }
            PrInAction::ReadReservation => {
                let held = reservations.held_reservation().map(|held| persistent_reservation::Reservation {
                    key: reservations.holder_key().unwrap_or_default().0,
                    kind: persistent_reservation::ReservationType(held.kind.to_scsi()),
                });
                persistent_reservation::encode_reservation(generation, held, w);
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
            PrInAction::ReadFullStatus => write_full_status(reservations, w),
        }
        Ok(())
    });
}

fn write_full_status(reservations: &Reservations, w: &mut Writer<'_>) {
    let mut status = FullStatusWriter::start(reservations.generation(), w);
    for Registrant { identity, key, nqn } in reservations.registrants() {
        let held = reservations.held_reservation().filter(|_| reservations.is_holder(identity));
        let holds = held.map(|held| persistent_reservation::ReservationType(held.kind.to_scsi()));
        match &**identity {
            Identity::Initiator { name, isid, port } => status.push_entry(&FullStatusEntry {
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
                status.push_entry(&FullStatusEntry { key: key.0, holds, relative_port: None, initiator });
            }
        }
    }
    status.finish();
}
