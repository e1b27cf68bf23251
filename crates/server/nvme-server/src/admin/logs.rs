//! Get Log Page (NVMe Base §5.16).
//!
//! Health and errors are gathered from all queues first; all other pages are built at once. A page is built
//! completely, then the requested part is cut out; bytes beyond its end are zero.

use buf::{Cx, Time};
use nvme::log::effects::{self, Effects};
use nvme::log::health::{Health, data_units};
use nvme::log::{self, GetLogPage, Lid};
use nvme::{Opcode, Status};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use super::features::TABLE;
use super::identify::names_no_namespace;
use super::{AdminOutcome, answer_unless_later, has_memory, wait_for_memory};
use crate::controller::events::EventKind;
use crate::controller::{AdminWait, Controller, WaitingCommand};
use crate::queue_message::{ControllerEvent, QueueMessage};
use crate::server::Server;
use crate::step::{CommandKey, ControllerStep, Step};

/// The pages of a controller with namespaces.
const PAGES: &[Lid] = &[
    Lid::SUPPORTED_PAGES,
    Lid::ERROR,
    Lid::SMART,
    Lid::FIRMWARE_SLOT,
    Lid::CHANGED_NAMESPACES,
    Lid::COMMAND_EFFECTS,
    Lid::ANA,
    Lid::FEATURE_EFFECTS,
    Lid::MANAGEMENT_EFFECTS,
    Lid::RESERVATION,
];

/// Get Log Page.
pub(super) fn execute(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    page: GetLogPage,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let known =
        if controller.is_discovery() { page.lid == Lid::DISCOVERY } else { PAGES.contains(&page.lid) };
    if !known {
        return Err(Status::INVALID_LOG_PAGE.final_());
    }
    if page.by_index
        || !page.offset.is_multiple_of(4)
        || page.len > controller.spec.limits.transfer.bytes().into()
    {
        return Err(Status::INVALID_FIELD.final_());
    }
    if page.len > room.into() {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    // No page here is a namespace's own: SMART is the controller's (LPA bit 0 is clear).
    if page.lid == Lid::SMART && !names_no_namespace(page.nsid) {
        return Err(Status::INVALID_FIELD.final_());
    }
    let gathers = matches!(page.lid, Lid::SMART | Lid::ERROR);
    if gathers && controller.members.iter().any(|member| member.open) {
        let messages = request(controller, key, cid, page);
        server.context.steps.extend(messages);
        return Ok(AdminOutcome::Later);
    }
    answer(server, cntlid, page)
}

/// Asks all queues for reports; the command waits for them.
fn request(controller: &mut Controller, key: CommandKey, cid: u16, page: GetLogPage) -> Vec<Step> {
    let ticket = controller.next_ticket();
    // One that is not open yet has done nothing, and would not hear.
    let open: Vec<_> = controller.members.iter().filter(|member| member.open).copied().collect();
    let from = open.iter().map(|member| member.queue_slot).collect();
    controller.waiting.push(WaitingCommand { key, cid, on: AdminWait::Reports { ticket, from, page } });
    let (cntlid, association) = (controller.spec.cntlid, controller.association);
    let message = |queue_slot| QueueMessage {
        cntlid,
        association,
        queue_slot,
        event: ControllerEvent::RequestReport { ticket },
    };
    open.iter()
        .map(|member| {
            Step::Other(ControllerStep::QueueMessage {
                to: member.shard,
                message: message(member.queue_slot),
            })
        })
        .collect()
}

/// All queues have reported.
pub(crate) fn gathered(
    server: &mut Server,
    cx: &mut Cx<'_>,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    page: GetLogPage,
) {
    // Its length is not more than a transfer's: `execute` has looked.
    let len = page.len as u32;
    if !has_memory(cx.pool, len) {
        return wait_for_memory(
            server,
            cntlid,
            WaitingCommand { key, cid, on: AdminWait::MemoryForPage(page) },
            len,
        );
    }
    let outcome = answer(server, cntlid, page);
    answer_unless_later(server, cx.pool, key, cid, outcome);
}

fn answer(server: &mut Server, cntlid: u16, page: GetLogPage) -> Result<AdminOutcome, Status> {
    let now = server.context.now;
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let outcome = match page.lid {
        Lid::SUPPORTED_PAGES => cut(&log::supported_pages(PAGES), page),
        Lid::ERROR => cut(&controller.errors.page(), page),
        Lid::SMART => cut(health(controller, now).as_bytes(), page),
        Lid::FIRMWARE_SLOT => cut(&log::firmware_slot(controller.spec.subsystem.firmware), page),
        Lid::CHANGED_NAMESPACES => {
            let outcome = cut(&log::changed_namespaces(controller.events.changed()), page);
            if outcome.is_ok() && !page.retain {
                controller.events.forget_changed();
            }
            outcome
        }
        // Other I/O command sets have no commands here.
        Lid::COMMAND_EFFECTS if page.command_set != 0 => Err(Status::INVALID_FIELD.final_()),
        Lid::COMMAND_EFFECTS => cut(&effects::commands(&ADMIN_EFFECTS, &IO_EFFECTS), page),
        Lid::FEATURE_EFFECTS => {
            let changes = |scope| scope == effects::FeatureScope::Namespace;
            let features = TABLE.iter().map(|feature| (feature.fid, feature.scope, changes(feature.scope)));
            cut(&effects::features(features), page)
        }
        // There is no management interface: none of its commands is supported.
        Lid::MANAGEMENT_EFFECTS => cut(&[0; 4096], page),
        Lid::ANA => cut(&controller.ana.page(page.specific & 1 != 0), page),
        Lid::RESERVATION => cut(&controller.notices.page(page.offset, page.retain), page),
        Lid::DISCOVERY => discovery(controller, page),
        _ => Err(Status::INVALID_LOG_PAGE.final_()),
    };
    if outcome.is_ok() && !page.retain {
        controller.events.cleared(page.lid);
        // While there are notices, there is another event.
        if page.lid == Lid::RESERVATION && controller.notices.has_more() {
            controller.events.raise(EventKind::Reservation);
        }
    }
    outcome
}

/// A piece of a page.
fn cut(whole: &[u8], page: GetLogPage) -> Result<AdminOutcome, Status> {
    if page.offset > whole.len() as u64 {
        return Err(Status::INVALID_FIELD.final_());
    }
    // Both are bounded: the offset by the page, the length by the longest transfer.
    let rest = whole.get(page.offset as usize..).unwrap_or_default();
    let mut piece = vec![0; page.len as usize];
    piece.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
    Ok(AdminOutcome::bytes(piece))
}

/// The discovery log: a reading that begins with the header begins again, all others go on in what
/// was begun.
fn discovery(controller: &mut Controller, page: GetLogPage) -> Result<AdminOutcome, Status> {
    let Some(discovery) = &controller.spec.discovery else {
        return Err(Status::INVALID_LOG_PAGE.final_());
    };
    if page.offset == 0 || controller.snapshot.is_none() {
        controller.snapshot = Some(discovery.entries.clone());
    }
    let entries = controller.snapshot.as_ref().unwrap_or(&discovery.entries);
    let (host, local) = (&controller.spec.host.nqn, discovery.local);
    if page.offset > entries.log_len(host, local) {
        return Err(Status::INVALID_FIELD.final_());
    }
    let mut piece = vec![0; page.len as usize];
    entries.copy_log(host, local, page.offset, &mut piece);
    Ok(AdminOutcome::bytes(piece))
}

/// The composite temperature in kelvins. There is no sensor, and the page has no value for that: hosts would
/// show zero as -273 °C. So it is 25 °C, at which nobody is alarmed.
const TEMPERATURE: u16 = 298;

fn health(controller: &Controller, now: Time) -> Health {
    let counters = controller.counters();
    let mut health = Health::new_zeroed();
    // Nothing wears out, and spare is not what a volume has.
    health.temperature = U16::new(TEMPERATURE);
    health.critical = u8::from(controller.features.warns_of(TEMPERATURE)) << 1;
    health.spare = 100;
    health.units_read = data_units(counters.read_bytes);
    health.units_written = data_units(counters.written_bytes);
    health.reads = counters.reads.into();
    health.writes = counters.writes.into();
    health.busy = (counters.busy_ns / 60_000_000_000).into();
    health.power_on = (now.since(controller.opened).as_secs() / 3600).into();
    health.media_errors = counters.media_errors.into();
    health.error_entries = controller.errors.count().into();
    health
}

/// What the admin commands do.
const ADMIN_EFFECTS: [(u8, Effects); 8] = [
    (0x02, Effects::SUPPORTED),
    (0x06, Effects::SUPPORTED),
    (0x08, Effects::SUPPORTED),
    // Feature 84h protects a namespace.
    (0x09, Effects::NAMESPACE),
    (0x0a, Effects::SUPPORTED),
    (0x0c, Effects::SUPPORTED),
    (0x18, Effects::SUPPORTED),
    (0x7f, Effects::SUPPORTED),
];

/// What the I/O commands do.
const IO_EFFECTS: [(u8, Effects); 14] = [
    (Opcode::FLUSH.0, Effects::SUPPORTED),
    (Opcode::WRITE.0, Effects::WRITES),
    (Opcode::READ.0, Effects::SUPPORTED),
    (Opcode::WRITE_UNCORRECTABLE.0, Effects::WRITES),
    (Opcode::COMPARE.0, Effects::SUPPORTED),
    (Opcode::WRITE_ZEROES.0, Effects::WRITES),
    (Opcode::DATASET_MANAGEMENT.0, Effects::WRITES),
    (Opcode::VERIFY.0, Effects::SUPPORTED),
    (Opcode::RESERVATION_REGISTER.0, Effects::SUPPORTED),
    (Opcode::RESERVATION_REPORT.0, Effects::SUPPORTED),
    (Opcode::RESERVATION_ACQUIRE.0, Effects::SUPPORTED),
    (Opcode::RESERVATION_RELEASE.0, Effects::SUPPORTED),
    (Opcode::COPY.0, Effects::WRITES),
    (0x7f, Effects::SUPPORTED),
];
