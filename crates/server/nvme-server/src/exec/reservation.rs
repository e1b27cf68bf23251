//! Reservation Register, Acquire, Release and Report (NVMe Base §7.2 to §7.5): parsing and formatting only.
//! The volume has the rules.
//!
//! The report shows the registrants of both protocols. All have the controller identifier FFFFh, as the
//! dynamic controller model requires. An iSCSI initiator port has no host identifier; it is shown with one
//! made of its ISID (bytes 0 to 5), its target port (bytes 6 and 7) and a hash of its name (bytes 8 to 15).
//! It stays the same as long as these do.

use buf::{MemoryClass, Sg};
use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, Register, RegisterAction, RegisterKeys, Registrant, Release,
    ReleaseAction, Report, ReservationSummary, encode_status,
};
use nvme::{Completion, Opcode, Sqe, Status};
use volume::reservation::{self, Action, Key, RegisterMode, ReservationType, Reservations};
use volume::{Identity, Refusal, Requester, VolumeId, VolumeRequest};
use zerocopy::FromBytes;

use super::{parameter_list, resolve_namespace};
use crate::after_wait::AfterWait;
use crate::context::ExecContext;
use crate::status;
use crate::step::{CommandKey, Step};

/// Register, Acquire and Release: their keys first.
pub(super) fn start_reservation_command(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<(), Status> {
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    let len = match sqe.opcode {
        Opcode::RESERVATION_REGISTER => Register::from_sqe(sqe).map(|_| size_of::<RegisterKeys>()),
        // The existing key can only be ignored where one is registered.
        Opcode::RESERVATION_ACQUIRE => {
            Acquire::from_sqe(sqe).filter(|words| !words.ignore_key).map(|_| size_of::<AcquireKeys>())
        }
        _ => Release::from_sqe(sqe).filter(|words| !words.ignore_key).map(|_| size_of::<u64>()),
    };
    let len = len.ok_or(Status::INVALID_FIELD.with_do_not_retry())?;
    // Linux gives every one of them 16 bytes (`nvme_pr_command`, to 6.11 and later), where Release has a
    // key of 8: what is behind the keys means nothing.
    if (data_out as usize) < len {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    volume
        .view
        .admit_class(ctx.nexus(key.queue), volume::CommandClass::Status)
        .map_err(status::for_refusal)?;
    parameter_list::request_list(ctx, key, sqe, &entry, data_out)
}

/// The keys are here.
pub(super) fn handle_keys(ctx: &mut ExecContext, slot: u32, sqe: &Sqe, data: &Sg) {
    let bytes = parameter_list::copy_list_bytes::<16>(data);
    let queue = &ctx.queues.get(ctx.tasks.get(slot).key.queue).spec;
    let action = match sqe.opcode {
        Opcode::RESERVATION_REGISTER => {
            Register::from_sqe(sqe).and_then(|words| register_action(words, &bytes, queue.host.nqn.as_str()))
        }
        Opcode::RESERVATION_ACQUIRE => Acquire::from_sqe(sqe).and_then(|words| acquire_action(words, &bytes)),
        _ => Release::from_sqe(sqe).and_then(|words| release_action(words, &bytes)),
    };
    let Some(action) = action else {
        return ctx.complete_task(slot, Status::INVALID_FIELD.with_do_not_retry().into());
    };
    let read_only = ctx.tasks.get(slot).read_only;
    let who = Requester { read_only, ..queue.nexus.clone() };
    ctx.tasks.get_mut(slot).job = AfterWait::Plain;
    ctx.request_volume_change(slot, VolumeRequest::Reserve { who, action });
}

fn register_action(words: Register, list: &[u8; 16], nqn: &str) -> Option<Action> {
    let keys = RegisterKeys::read_from_bytes(list).ok()?;
    let (current, new) = (Key(keys.current.get()), Key(keys.new.get()));
    let mode = match words.action {
        RegisterAction::Register => RegisterMode::Add,
        RegisterAction::Unregister => RegisterMode::Remove,
        // No key is zero. Linux has no other word for leaving: IOC_PR_REGISTER with an old key is a
        // Replace whatever the new one is.
        RegisterAction::Replace if new == Key::NONE => RegisterMode::Remove,
        RegisterAction::Replace => RegisterMode::Replace,
    };
    if mode != RegisterMode::Remove && new == Key::NONE {
        return None;
    }
    Some(Action::Register(reservation::RegistrationRequest {
        mode,
        persist: words.persist,
        nqn: Some(nqn.into()),
        ..reservation::RegistrationRequest::new((!words.ignore_key).then_some(current), new)
    }))
}

fn acquire_action(words: Acquire, list: &[u8; 16]) -> Option<Action> {
    let keys = AcquireKeys::read_from_bytes(list).ok()?;
    let (key, kind) = (Some(Key(keys.current.get())), ReservationType::from_nvme(words.kind)?);
    let victim = Key(keys.preempted.get());
    Some(match words.action {
        AcquireAction::Acquire => Action::Reserve { key, kind },
        AcquireAction::Preempt => Action::Preempt { key, victim, kind, abort: false },
        AcquireAction::PreemptAndAbort => Action::Preempt { key, victim, kind, abort: true },
    })
}

fn release_action(words: Release, list: &[u8; 16]) -> Option<Action> {
    let key = list.first_chunk().map(|current| Key(u64::from_le_bytes(*current)));
    Some(match words.action {
        ReleaseAction::Release => Action::Release { key, kind: ReservationType::from_nvme(words.kind)? },
        ReleaseAction::Clear => Action::Clear { key },
    })
}

/// Report. Host identifiers have 128 bits on fabrics, so only the extended structure can show them.
pub(super) fn start_report(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let words = Report::from_sqe(sqe);
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    if !words.extended {
        return Err(Status::HOST_ID_INCONSISTENT.with_do_not_retry());
    }
    let queue = &ctx.queues.get(key.queue).spec;
    if words.len > u64::from(queue.transfer_max) {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    if words.len != u64::from(sqe.dptr.length.get()) {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    // Who reaches the namespace may look, whatever is reserved.
    let access = volume.view.path_access(queue.nexus.port);
    if !access.allows_io() {
        return Err(status::for_refusal(Refusal::Inaccessible(access)));
    }
    let elsewhere = volume.view.decided_elsewhere;
    let slot = ctx.insert_task(key, sqe, &entry, words.len as u32, AfterWait::Report)?;
    if elsewhere {
        // What this gateway was told is to be as of now.
        ctx.request_volume_change(slot, VolumeRequest::Refresh);
    } else {
        send_report(ctx, slot);
    }
    Ok(())
}

/// Gives the report, or waits for memory to make it in.
pub(super) fn send_report(ctx: &mut ExecContext, slot: u32) {
    let task = ctx.tasks.get(slot);
    let (command, id, len) = (task.key, task.volume, task.bytes as usize);
    let Some(volume) = ctx.volumes.get(id) else {
        return ctx.complete_task(slot, Status::INVALID_NAMESPACE.with_do_not_retry().into());
    };
    let whole = match &volume.report {
        Some(whole) => whole.clone(),
        None => {
            let bytes = encode_report(&volume.view.reservations);
            match make_report(ctx, id, &bytes) {
                Some(whole) => whole,
                // The most that one transfer takes is less than u32::MAX.
                None => return ctx.await_memory(command, (bytes.len() + REPORT_PADDING) as u32),
            }
        }
    };
    let data = slice_report(&whole, len);
    ctx.steps.push_back(Step::Send { command, at: 0, data });
    ctx.complete_task(slot, Completion::SUCCESS);
}

/// Zeroes that stand behind a report, for hosts that take more than it has.
const REPORT_PADDING: usize = 16 << 10;

/// Makes the report of a volume, and keeps it while nothing changes: so however many are on their way,
/// they share one memory.
fn make_report(ctx: &mut ExecContext, volume: VolumeId, bytes: &[u8]) -> Option<Sg> {
    let len = bytes.len() + REPORT_PADDING;
    let mut memory = ctx.pool().take_sg(MemoryClass::Solicited, len)?;
    memory.copy_from(0, bytes);
    memory.zero(bytes.len()..len);
    let whole = memory.freeze();
    ctx.cache_reservation_report(volume, Some(whole.clone()));
    Some(whole)
}

/// The first `len` bytes of a report and the zeroes behind it.
fn slice_report(whole: &Sg, len: usize) -> Sg {
    let mut data = whole.slice(0..len.min(whole.len()));
    while data.len() < len {
        let more = REPORT_PADDING.min(len - data.len());
        data.append(whole.slice(whole.len() - more..whole.len()));
    }
    data
}

fn encode_report(state: &Reservations) -> Vec<u8> {
    let summary = ReservationSummary {
        generation: state.generation(),
        kind: state.held_reservation().map_or(0, |held| held.kind.to_nvme()),
        persists: state.persists(),
    };
    let registrants: Vec<Registrant> = state
        .registrants()
        .iter()
        .map(|one| Registrant {
            cntlid: 0xffff,
            holds: state.is_holder(&one.identity),
            host: reported_host_id(&one.identity),
            key: one.key.0,
        })
        .collect();
    encode_status(summary, &registrants, true)
}

/// The host identifier that a registrant is shown with.
pub(crate) fn reported_host_id(identity: &Identity) -> [u8; 16] {
    match identity {
        Identity::Host(id) => *id,
        Identity::Initiator { name, isid, port } => {
            // FNV-1a with 64 bits.
            let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            let isid = isid.iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
            (isid << 80 | u128::from(port.0) << 64 | u128::from(hash)).to_be_bytes()
        }
    }
}
