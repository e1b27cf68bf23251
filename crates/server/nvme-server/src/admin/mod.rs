//! Commands of the admin queue (NVMe Base §5), and fabrics commands of any queue (§6).
//!
//! A command is answered at once, or waits in its controller's list until its condition is met. A command
//! whose answer has data allocates memory before it does anything, so that its side effects (a notice is
//! read, an event is cleared) do not happen while it waits.

pub(crate) mod auth;
pub(crate) mod controller_list;
pub(crate) mod fabrics;
pub(crate) mod features;
mod format;
mod identify;
pub(crate) mod logs;
mod reset;

use buf::{Cx, MemoryClass, Pool, Sg};
use nvme::admin::FormatNvm;
use nvme::feature::{GetFeatures, SetFeatures};
use nvme::identify::Identify;
use nvme::log::GetLogPage;
use nvme::{Completion, ControllerInstance, Opcode, Sqe, Status};
use volume::{Refusal, RequestId};

use crate::context::memory_class;
use crate::controller::async_events::EVENT_REQUESTS_MAX;
use crate::controller::{AdminWait, Unanswered, WaitingCommand};
use crate::queue_message::CommandFailure;
use crate::server::Server;
use crate::status;
use crate::step::{CommandKey, Step};

/// What becomes of a command.
pub(crate) enum AdminOutcome {
    /// It is answered.
    Done(Completion),
    /// These bytes, then this answer.
    Data(Vec<u8>, Completion),
    /// Its answer follows.
    Later,
}

impl AdminOutcome {
    pub(crate) const SUCCESS: AdminOutcome = AdminOutcome::Done(Completion::SUCCESS);

    /// These bytes, and success.
    fn with_data(bytes: impl Into<Vec<u8>>) -> AdminOutcome {
        AdminOutcome::Data(bytes.into(), Completion::SUCCESS)
    }

    /// Success with this result.
    fn with_result(result: u32) -> AdminOutcome {
        AdminOutcome::Done(Completion { result: result.into(), ..Completion::SUCCESS })
    }
}

/// A command of an admin queue has come.
pub(crate) fn start_admin_command(
    server: &mut Server,
    cx: &mut Cx<'_>,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) {
    let cntlid = server.context.queues.get(key.queue).spec.cntlid;
    server.controllers.note_host_alive(cntlid, cx.now);
    execute_or_wait(server, cx, cntlid, key, sqe, Some(data_out));
}

/// `data_out`: `None` if it has waited for room.
fn execute_or_wait(
    server: &mut Server,
    cx: &mut Cx<'_>,
    cntlid: u16,
    key: CommandKey,
    sqe: &Sqe,
    data_out: Option<u32>,
) {
    let cid = sqe.cid.get();
    let controller = server.controllers.find(cntlid);
    let transfer_max = controller.map_or(0, |controller| controller.spec.limits.transfer.bytes());
    // One that is longer than a transfer may be is refused at once. A long one asks for room in any case: a host
    // that does not read what it asked for must not have all of it.
    if let Some(len) = answer_len_max(sqe).filter(|len| *len <= u64::from(transfer_max))
        && let len = len as u32
        && (data_out.is_some() && memory_class(len as usize) == MemoryClass::Solicited
            || !has_memory(cx.pool, len))
    {
        return wait_for_memory(
            server,
            cntlid,
            WaitingCommand { key, cid, on: AdminWait::Memory(Box::new(*sqe)) },
            len,
        );
    }
    let outcome = if sqe.opcode == Opcode::FABRICS {
        fabrics::execute_on_admin_queue(server, cntlid, sqe)
    } else {
        execute_admin_command(server, cx, cntlid, key, sqe, data_out.unwrap_or(0))
    };
    answer_unless_later(server, cx.pool, key, cid, outcome);
    // What was read may have more behind it.
    server.controllers.complete_event_requests(&mut server.context.steps, cntlid);
}

/// The longest data that the answer to a command may have, if it has any.
fn answer_len_max(sqe: &Sqe) -> Option<u64> {
    match sqe.opcode {
        Opcode::IDENTIFY => Some(nvme::identify::IDENTIFY_LEN as u64),
        Opcode::GET_LOG_PAGE => Some(GetLogPage::parse(sqe).len),
        Opcode::GET_FEATURES => Some(features::DATA_LEN_MAX as u64),
        _ => None,
    }
}

/// Whether [`copy_to_pool`] has so much now: within one call nothing else takes it.
pub(crate) fn has_memory(pool: &Pool, len: u32) -> bool {
    pool.take_sg(memory_class(len as usize), len as usize).is_some()
}

/// Lets a command wait for memory.
pub(crate) fn wait_for_memory(server: &mut Server, cntlid: u16, waiting: WaitingCommand, len: u32) {
    let command = waiting.key;
    let Some(controller) = server.controllers.find_mut(cntlid) else { return };
    controller.waiting.push(waiting);
    server.context.await_memory(command, len);
}

/// There may be memory for a command that waits for it.
pub(crate) fn retry_waiting(server: &mut Server, cx: &mut Cx<'_>, key: CommandKey) {
    if server.retry_auth_receive(cx, key) {
        return;
    }
    let waits = |waiting: &WaitingCommand| {
        waiting.key == key
            && matches!(
                waiting.on,
                AdminWait::Memory(_) | AdminWait::MemoryForPage(_) | AdminWait::MemoryForList(..)
            )
    };
    let Some((cntlid, WaitingCommand { cid, on, .. })) = take_waiting(server, waits) else { return };
    match on {
        AdminWait::Memory(sqe) => execute_or_wait(server, cx, cntlid, key, &sqe, None),
        AdminWait::MemoryForPage(page) => {
            logs::handle_reports_gathered(server, cx, cntlid, key, cid, page);
            server.controllers.complete_event_requests(&mut server.context.steps, cntlid);
        }
        AdminWait::MemoryForList(found, from) => {
            controller_list::send_list(server, cx, cntlid, (key, cid), found, from)
        }
        // None of these waits for memory.
        AdminWait::Event
        | AdminWait::Feature(_)
        | AdminWait::VolumeRequest(_)
        | AdminWait::Abort { .. }
        | AdminWait::Reports { .. }
        | AdminWait::ControllerList { .. }
        | AdminWait::Reset { .. }
        | AdminWait::Format { .. } => {
            answer_unless_later(server, cx.pool, key, cid, Err(Status::INTERNAL_ERROR));
        }
    }
}

/// Responds to a command with `outcome`; [`AdminOutcome::Later`]: does nothing, since the response follows.
pub(crate) fn answer_unless_later(
    server: &mut Server,
    pool: &Pool,
    command: CommandKey,
    cid: u16,
    outcome: Result<AdminOutcome, Status>,
) {
    let completion = match outcome {
        Ok(AdminOutcome::Later) => return,
        Ok(AdminOutcome::Done(completion)) => completion,
        Ok(AdminOutcome::Data(bytes, completion)) => match copy_to_pool(pool, &bytes) {
            Some(data) => {
                server.context.steps.push_back(Step::Send { command, at: 0, data });
                completion
            }
            // Who answers with data has looked for memory before.
            None => Status::COMMAND_INTERRUPTED.into(),
        },
        Err(status) => status.into(),
    };
    if !completion.status.is_success() {
        let at = server.context.now;
        server.note_failure(
            command.queue,
            CommandFailure { at, cid, status: completion.status, lba: 0, nsid: 0 },
        );
    }
    let completion = status::with_retry_delay(completion, || server.supports_retry_delay(command.queue));
    server.context.steps.push_back(Step::Respond { command, reply: completion });
}

/// Bytes in memory that can be sent.
fn copy_to_pool(pool: &Pool, bytes: &[u8]) -> Option<Sg> {
    let mut memory = pool.take_sg(memory_class(bytes.len()), bytes.len())?;
    memory.copy_from(0, bytes);
    Some(memory.freeze())
}

fn execute_admin_command(
    server: &mut Server,
    cx: &mut Cx<'_>,
    cntlid: u16,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<AdminOutcome, Status> {
    let Some(controller) = server.controllers.find_mut(cntlid) else {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    };
    if !controller.configuration.is_enabled() || !controller.status.ready {
        return Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry());
    }
    if sqe.flags & 3 != 0 {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let cid = sqe.cid.get();
    let room = sqe.dptr.length.get();
    match sqe.opcode {
        Opcode::IDENTIFY if controller_list::is_controller_list(Identify::parse(sqe)) => {
            controller_list::start_list(server, cntlid, (key, cid), Identify::parse(sqe), room)
        }
        Opcode::IDENTIFY => identify::execute_identify(server, cntlid, Identify::parse(sqe), room),
        Opcode::GET_LOG_PAGE => {
            logs::execute_get_log_page(server, cntlid, key, cid, GetLogPage::parse(sqe), room)
        }
        Opcode::GET_FEATURES => {
            let get = GetFeatures::parse(sqe).ok_or(Status::INVALID_FIELD.with_do_not_retry())?;
            features::get_features(server, cx.now, cntlid, get, room)
        }
        Opcode::SET_FEATURES => {
            features::set_features(server, cx.now, cntlid, key, cid, SetFeatures::parse(sqe), data_out)
        }
        Opcode::ABORT if !controller.is_discovery() => {
            let done = controller.start_abort(&mut server.context.steps, key, cid, sqe.cdw(10))?;
            Ok(done.map_or(AdminOutcome::Later, AdminOutcome::Done))
        }
        Opcode::FORMAT_NVM if !controller.is_discovery() => {
            format::start_format(server, cntlid, (key, cid), FormatNvm::parse(sqe))
        }
        Opcode::CROSS_CONTROLLER_RESET if !controller.is_discovery() => {
            reset::start_reset(server, cntlid, (key, cid), ControllerInstance::parse(sqe))
        }
        Opcode::ASYNC_EVENT_REQUEST => {
            let events = controller.waiting.iter().filter(|waiting| matches!(waiting.on, AdminWait::Event));
            if events.count() >= EVENT_REQUESTS_MAX {
                return Err(Status::AER_LIMIT_EXCEEDED.with_do_not_retry());
            }
            controller.waiting.push(WaitingCommand { key, cid, on: AdminWait::Event });
            server.controllers.complete_event_requests(&mut server.context.steps, cntlid);
            Ok(AdminOutcome::Later)
        }
        Opcode::KEEP_ALIVE if controller.kato_ms() == 0 => {
            Err(Status::KEEP_ALIVE_INVALID.with_do_not_retry())
        }
        Opcode::KEEP_ALIVE => Ok(AdminOutcome::SUCCESS),
        _ => Err(Status::INVALID_OPCODE.with_do_not_retry()),
    }
}

/// Payload is here of a command that is not executed on a volume.
pub(crate) fn handle_data(server: &mut Server, cx: &mut Cx<'_>, key: CommandKey, data: &Sg) {
    if server.handle_auth_data(cx, key, data) {
        return;
    }
    let Some((cntlid, waiting)) = take_waiting(server, |waiting| waiting.key == key) else { return };
    let outcome = match waiting.on {
        AdminWait::Feature(set) => features::handle_feature_data(server, cx.now, cntlid, set, data),
        // Only features ask for data.
        AdminWait::Event
        | AdminWait::VolumeRequest(_)
        | AdminWait::Abort { .. }
        | AdminWait::Reports { .. }
        | AdminWait::ControllerList { .. }
        | AdminWait::Reset { .. }
        | AdminWait::Format { .. }
        | AdminWait::Memory(_)
        | AdminWait::MemoryForPage(_)
        | AdminWait::MemoryForList(..) => Err(Status::INTERNAL_ERROR),
    };
    answer_unless_later(server, cx.pool, key, waiting.cid, outcome);
}

/// The home of a volume has answered an admin command.
pub(crate) fn handle_volume_answer(
    server: &mut Server,
    cx: &mut Cx<'_>,
    id: RequestId,
    result: Result<(), Refusal>,
) {
    let asked =
        |waiting: &WaitingCommand| matches!(waiting.on, AdminWait::VolumeRequest(asked) if asked == id);
    let Some((_, waiting)) = take_waiting(server, asked) else {
        server.controllers.settle_unanswered(&mut server.context.steps, Unanswered::Request(id));
        return;
    };
    let outcome = result.map(|()| AdminOutcome::SUCCESS).map_err(status::for_refusal);
    answer_unless_later(server, cx.pool, waiting.key, waiting.cid, outcome);
}

/// A command that is not executed on a volume must end without an answer. Whether there was such a one.
pub(crate) fn retire_waiting(server: &mut Server, key: CommandKey) -> bool {
    if server.retire_auth_command(key) {
        return true;
    }
    let Some((cntlid, waiting)) = take_waiting(server, |waiting| waiting.key == key) else { return false };
    if let Some(controller) = server.controllers.find_mut(cntlid) {
        controller.note_ended_command(&waiting);
    }
    server.context.steps.push_back(Step::Retire { command: waiting.key });
    true
}

fn take_waiting(
    server: &mut Server,
    which: impl Fn(&WaitingCommand) -> bool,
) -> Option<(u16, WaitingCommand)> {
    let found =
        |(cntlid, waiting): (u16, &Vec<WaitingCommand>)| Some((cntlid, waiting.iter().position(&which)?));
    let (cntlid, at) = server
        .controllers
        .iter()
        .find_map(|controller| found((controller.spec.cntlid, &controller.waiting)))?;
    Some((cntlid, server.controllers.find_mut(cntlid)?.waiting.remove(at)))
}
