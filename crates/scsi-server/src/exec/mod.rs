//! What each command does. [`route`] finds the logical unit and judges the command; the files of
//! this folder execute, one family each.

mod block;
mod identify;

use buf::{Class, Cx, Payload, Sg};
use scsi::sense::Sense;
use scsi::{CdbError, Command, Status, Writer};
use volume::{Done, Refusal, VolumeId};

use crate::server::{Arrived, Server};
use crate::step::{Reply, Step, TaskKey};

/// Where a command goes.
pub(crate) enum Route {
    /// To a logical unit.
    Unit { command: Command, lun_at: usize, volume: VolumeId },
    /// To nobody, or to the target as a whole: INQUIRY, REPORT LUNS and REQUEST SENSE answer even
    /// where no logical unit is.
    Whole(Command),
    /// Back.
    Refused(Reply),
}

/// The number that a request's logical unit field names, if it is a form that we give numbers in:
/// peripheral or flat addressing, single level (SAM-5 §4.7).
pub(crate) fn lun(field: [u8; 8]) -> Option<u16> {
    let [high, low, rest @ ..] = field;
    match (high >> 6, rest) {
        (0b00, [0, 0, 0, 0, 0, 0]) if high == 0 => Some(u16::from(low)),
        (0b01, [0, 0, 0, 0, 0, 0]) => Some(u16::from(high & 0x3f) << 8 | u16::from(low)),
        _ => None,
    }
}

/// Finds the logical unit, and judges what can be judged before the command is a task.
pub(crate) fn route(server: &mut Server, key: TaskKey, arrived: &Arrived<'_>) -> Route {
    let command = match Command::parse(arrived.cdb) {
        Ok(command) => command,
        Err(error) => return refuse_cdb(server, key, arrived, error),
    };
    let state = server.state_mut(key.nexus);
    let Some(lun_at) = lun(arrived.lun).and_then(|lun| state.find(lun)) else {
        return match command {
            Command::Inquiry(_) | Command::ReportLuns { .. } | Command::RequestSense { .. } => {
                Route::Whole(command)
            }
            _ => Route::Refused(Reply::check(Sense::LOGICAL_UNIT_NOT_SUPPORTED)),
        };
    };
    // SAM-5 §5.14: these report no unit attention, and leave it pending.
    let exempt =
        matches!(command, Command::Inquiry(_) | Command::ReportLuns { .. } | Command::RequestSense { .. });
    if !exempt && let Some(code) = state.attentions[lun_at].take() {
        return Route::Refused(Reply::check(Sense::new(scsi::sense::SenseKey::UNIT_ATTENTION, code)));
    }
    let volume = state.spec.luns[lun_at].volume;
    Route::Unit { command, lun_at, volume }
}

fn refuse_cdb(server: &mut Server, key: TaskKey, arrived: &Arrived<'_>, error: CdbError) -> Route {
    let state = server.state_mut(key.nexus);
    let sense = match lun(arrived.lun).and_then(|lun| state.find(lun)) {
        None => Sense::LOGICAL_UNIT_NOT_SUPPORTED,
        Some(at) => match state.attentions[at].take() {
            Some(code) => Sense::new(scsi::sense::SenseKey::UNIT_ATTENTION, code),
            None => error.sense(),
        },
    };
    Route::Refused(Reply::check(sense))
}

/// Starts a task that a logical unit executes.
pub(crate) fn start(server: &mut Server, cx: &mut Cx<'_>, slot: u32) {
    let command = server.tasks.get(slot).command;
    match command {
        Command::TestUnitReady => match block::ready(server, slot) {
            Ok(()) => server.respond(slot, Reply::good(0)),
            Err(reply) => server.respond(slot, reply),
        },
        Command::Read(transfer) => block::read(server, slot, transfer),
        Command::Write(transfer) => block::write(server, slot, transfer),
        Command::SynchronizeCache(_) => block::flush(server, slot),
        Command::Inquiry(inquiry) => identify::inquiry(server, cx, slot, inquiry),
        Command::ReadCapacity10 => identify::capacity(server, cx, slot, None),
        Command::ReadCapacity16 { allocation } => identify::capacity(server, cx, slot, Some(allocation)),
        Command::ReportLuns { select, allocation } => {
            identify::report_luns(server, cx, slot, select, allocation)
        }
        _ => server.check(slot, Sense::INVALID_OPCODE),
    }
}

/// Payload of a task is here.
pub(crate) fn data(server: &mut Server, _cx: &mut Cx<'_>, slot: u32, _at: u32, data: Sg) {
    block::written(server, slot, data);
}

/// A task's operation has ended.
pub(crate) fn done(server: &mut Server, _cx: &mut Cx<'_>, slot: u32, done: Done) {
    match done.result {
        Err(failure) => server.fail(slot, failure),
        Ok(_) => block::finish(server, slot, done.payload),
    }
}

/// The volume's home has answered a task.
pub(crate) fn answered(server: &mut Server, _cx: &mut Cx<'_>, slot: u32, result: Result<(), Refusal>) {
    match result {
        Ok(()) => server.respond(slot, Reply::good(0)),
        Err(refusal) => server.respond(slot, crate::status::refused(refusal)),
    }
}

/// Answers a command that no logical unit executes.
pub(crate) fn target_wide(
    server: &mut Server,
    cx: &mut Cx<'_>,
    key: TaskKey,
    command: Command,
    arrived: &Arrived<'_>,
) {
    match identify::without_unit(server, cx, key, command) {
        Ok(data) => {
            let transferred = data.len() as u64;
            let len = data.len().min(arrived.data_in as usize);
            if len > 0 {
                server.steps.push_back(Step::Send { task: key, at: 0, data: data.slice(0..len) });
            }
            server.answer(key, Reply::good(transferred));
        }
        Err(reply) => server.answer(key, reply),
    }
}

/// Makes parameter data of at most `allocation` bytes.
fn parameter_data(
    cx: &mut Cx<'_>,
    allocation: usize,
    encode: impl FnOnce(&mut Writer<'_>),
) -> Result<Sg, Reply> {
    // Nothing here is longer than this: the lists of LUNs and of operation codes are the longest.
    const LEN_MAX: usize = 256 << 10;
    let room = allocation.min(LEN_MAX);
    let Some(mut buffer) = cx.pool.take(Class::Wire, room) else {
        return Err(Reply::plain(Status::BUSY));
    };
    let mut writer = Writer::new(&mut buffer);
    encode(&mut writer);
    let written = writer.written();
    buffer.set_len(written);
    Ok(Payload::Out(buffer.freeze().into()).into_sg())
}

/// Ends a task with parameter data.
fn send(server: &mut Server, slot: u32, data: Result<Sg, Reply>) {
    match data {
        Err(reply) => server.respond(slot, reply),
        Ok(data) => {
            let transferred = data.len() as u64;
            let task = server.tasks.get(slot);
            let len = data.len().min(task.data_in as usize);
            if len > 0 {
                let step = Step::Send { task: task.key, at: 0, data: data.slice(0..len) };
                server.steps.push_back(step);
            }
            server.respond(slot, Reply::good(transferred));
        }
    }
}
