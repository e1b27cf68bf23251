//! Get Log Page (NVMe Base §5.16).
//!
//! Health and errors are gathered from all queues first; all other pages are built at once. A page is built
//! completely, then the requested part is cut out; bytes beyond its end are zero.

use buf::{Cx, Time};
use nvme::controller_reset::EMPTY_LOG;
use nvme::log::effects::{self, CommandEffects};
use nvme::log::health::{SmartHealthLog, to_data_units};
use nvme::log::{self, GetLogPage, LogPageId};
use nvme::{Opcode, Status};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use super::features::FEATURES;
use super::identify::is_controller_scope_nsid;
use super::{AdminOutcome, answer_unless_later, has_memory, wait_for_memory};
use crate::controller::async_events::AsyncEventKind;
use crate::controller::{AdminWait, Controller, WaitingCommand};
use crate::queue_message::{ControllerEvent, QueueMessage};
use crate::server::Server;
use crate::step::{CommandKey, ControllerStep, Step};

/// The pages of a controller with namespaces.
const LOG_PAGES: &[LogPageId] = &[
    LogPageId::SUPPORTED_PAGES,
    LogPageId::ERROR,
    LogPageId::SMART,
    LogPageId::FIRMWARE_SLOT,
    LogPageId::CHANGED_NAMESPACES,
    LogPageId::COMMAND_EFFECTS,
    LogPageId::ANA,
    LogPageId::FEATURE_EFFECTS,
    LogPageId::MANAGEMENT_EFFECTS,
    LogPageId::CROSS_CONTROLLER_RESET,
    LogPageId::RESERVATION,
];

/// Get Log Page.
pub(super) fn execute_get_log_page(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    page: GetLogPage,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let known = if controller.is_discovery() {
        page.lid == LogPageId::DISCOVERY
    } else {
        LOG_PAGES.contains(&page.lid)
    };
    if !known {
        return Err(Status::INVALID_LOG_PAGE.with_do_not_retry());
    }
    if page.by_index
        || !page.offset.is_multiple_of(4)
        || page.len > controller.spec.limits.transfer.bytes().into()
    {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    if page.len > room.into() {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    // No page here is a namespace's own: SMART is the controller's (LPA bit 0 is clear).
    if page.lid == LogPageId::SMART && !is_controller_scope_nsid(page.nsid) {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let gathers = matches!(page.lid, LogPageId::SMART | LogPageId::ERROR);
    if gathers && controller.members.iter().any(|member| member.open) {
        let messages = request_queue_reports(controller, key, cid, page);
        server.context.steps.extend(messages);
        return Ok(AdminOutcome::Later);
    }
    log_page_outcome(server, cntlid, page)
}

/// Asks all queues for reports; the command waits for them.
fn request_queue_reports(
    controller: &mut Controller,
    key: CommandKey,
    cid: u16,
    page: GetLogPage,
) -> Vec<Step> {
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
pub(crate) fn handle_reports_gathered(
    server: &mut Server,
    cx: &mut Cx<'_>,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    page: GetLogPage,
) {
    // Its length is not more than a transfer's: `execute_get_log_page` has looked.
    let len = page.len as u32;
    if !has_memory(cx.pool, len) {
        return wait_for_memory(
            server,
            cntlid,
            WaitingCommand { key, cid, on: AdminWait::MemoryForPage(page) },
            len,
        );
    }
    let outcome = log_page_outcome(server, cntlid, page);
    answer_unless_later(server, cx.pool, key, cid, outcome);
}

fn log_page_outcome(server: &mut Server, cntlid: u16, page: GetLogPage) -> Result<AdminOutcome, Status> {
    let now = server.context.now;
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let outcome = match page.lid {
        LogPageId::SUPPORTED_PAGES => slice_page(&log::encode_supported_pages(LOG_PAGES), page),
        LogPageId::ERROR => slice_page(&controller.errors.log_page(), page),
        LogPageId::SMART => slice_page(health_log(controller, now).as_bytes(), page),
        LogPageId::FIRMWARE_SLOT => {
            slice_page(&log::encode_firmware_slot(controller.spec.subsystem.firmware), page)
        }
        LogPageId::CHANGED_NAMESPACES => {
            let outcome =
                slice_page(&log::encode_changed_namespaces(controller.events.changed_namespaces()), page);
            if outcome.is_ok() && !page.retain {
                controller.events.clear_changed_namespaces();
            }
            outcome
        }
        // Other I/O command sets have no commands here.
        LogPageId::COMMAND_EFFECTS if page.command_set != 0 => Err(Status::INVALID_FIELD.with_do_not_retry()),
        LogPageId::COMMAND_EFFECTS => {
            slice_page(&effects::encode_command_effects(&ADMIN_EFFECTS, &IO_EFFECTS), page)
        }
        LogPageId::FEATURE_EFFECTS => {
            let changes = |scope| scope == effects::FeatureScope::Namespace;
            let features =
                FEATURES.iter().map(|feature| (feature.fid, feature.scope, changes(feature.scope)));
            slice_page(&effects::encode_feature_effects(features), page)
        }
        // There is no management interface: none of its commands is supported.
        LogPageId::MANAGEMENT_EFFECTS => slice_page(&[0; 4096], page),
        LogPageId::ANA => slice_page(&controller.ana.log_page(page.specific & 1 != 0), page),
        LogPageId::RESERVATION => slice_page(&controller.notices.log_page(page.offset, page.retain), page),
        // Each reset is complete when its command is.
        LogPageId::CROSS_CONTROLLER_RESET => slice_page(&EMPTY_LOG, page),
        LogPageId::DISCOVERY => discovery_log(controller, page),
        _ => Err(Status::INVALID_LOG_PAGE.with_do_not_retry()),
    };
    if outcome.is_ok() && !page.retain {
        controller.events.clear_by_log(page.lid);
        // While there are notices, there is another event.
        if page.lid == LogPageId::RESERVATION && controller.notices.has_unread() {
            controller.events.raise(AsyncEventKind::Reservation);
        }
    }
    outcome
}

/// A piece of a page.
fn slice_page(whole: &[u8], page: GetLogPage) -> Result<AdminOutcome, Status> {
    if page.offset > whole.len() as u64 {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    // Both are bounded: the offset by the page, the length by the longest transfer.
    let rest = whole.get(page.offset as usize..).unwrap_or_default();
    let mut piece = vec![0; page.len as usize];
    piece.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
    Ok(AdminOutcome::with_data(piece))
}

/// The discovery log: a reading that begins with the header begins again, all others go on in what
/// was begun.
fn discovery_log(controller: &mut Controller, page: GetLogPage) -> Result<AdminOutcome, Status> {
    let Some(discovery) = &controller.spec.discovery else {
        return Err(Status::INVALID_LOG_PAGE.with_do_not_retry());
    };
    if page.offset == 0 || controller.snapshot.is_none() {
        controller.snapshot = Some(discovery.entries.clone());
    }
    let entries = controller.snapshot.as_ref().unwrap_or(&discovery.entries);
    let (host, local) = (&controller.spec.host.nqn, discovery.local);
    if page.offset > entries.log_len(host, local) {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let mut piece = vec![0; page.len as usize];
    entries.copy_log(host, local, page.offset, &mut piece);
    Ok(AdminOutcome::with_data(piece))
}

/// The composite temperature in kelvins. There is no sensor, and the page has no value for that: hosts would
/// show zero as -273 °C. So it is 25 °C, at which nobody is alarmed.
const REPORTED_KELVINS: u16 = 298;

fn health_log(controller: &Controller, now: Time) -> SmartHealthLog {
    let counters = controller.counters();
    let mut health = SmartHealthLog::new_zeroed();
    // Nothing wears out, and spare is not what a volume has.
    health.temperature = U16::new(REPORTED_KELVINS);
    health.critical = u8::from(controller.features.is_beyond_threshold(REPORTED_KELVINS)) << 1;
    health.spare = 100;
    health.units_read = to_data_units(counters.read_bytes);
    health.units_written = to_data_units(counters.written_bytes);
    health.reads = counters.reads.into();
    health.writes = counters.writes.into();
    health.busy = (counters.busy_ns / 60_000_000_000).into();
    health.power_on = (now.since(controller.opened).as_secs() / 3600).into();
    health.media_errors = counters.media_errors.into();
    health.error_entries = controller.errors.total_count().into();
    health
}

/// What the admin commands do.
const ADMIN_EFFECTS: [(u8, CommandEffects); 10] = [
    (0x02, CommandEffects::SUPPORTED),
    (0x06, CommandEffects::SUPPORTED),
    (0x08, CommandEffects::SUPPORTED),
    // Feature 84h protects a namespace.
    (0x09, CommandEffects::NAMESPACE),
    (0x0a, CommandEffects::SUPPORTED),
    (0x0c, CommandEffects::SUPPORTED),
    (0x18, CommandEffects::SUPPORTED),
    (0x38, CommandEffects::SUPPORTED),
    (0x7f, CommandEffects::SUPPORTED),
    (0x80, CommandEffects::FORMATS),
];

/// What the I/O commands do.
const IO_EFFECTS: [(u8, CommandEffects); 14] = [
    (Opcode::FLUSH.0, CommandEffects::SUPPORTED),
    (Opcode::WRITE.0, CommandEffects::WRITES),
    (Opcode::READ.0, CommandEffects::SUPPORTED),
    (Opcode::WRITE_UNCORRECTABLE.0, CommandEffects::WRITES),
    (Opcode::COMPARE.0, CommandEffects::SUPPORTED),
    (Opcode::WRITE_ZEROES.0, CommandEffects::WRITES),
    (Opcode::DATASET_MANAGEMENT.0, CommandEffects::WRITES),
    (Opcode::VERIFY.0, CommandEffects::SUPPORTED),
    (Opcode::RESERVATION_REGISTER.0, CommandEffects::SUPPORTED),
    (Opcode::RESERVATION_REPORT.0, CommandEffects::SUPPORTED),
    (Opcode::RESERVATION_ACQUIRE.0, CommandEffects::SUPPORTED),
    (Opcode::RESERVATION_RELEASE.0, CommandEffects::SUPPORTED),
    (Opcode::COPY.0, CommandEffects::WRITES),
    (0x7f, CommandEffects::SUPPORTED),
];
