//! Fabrics commands of an I/O queue after its Connect (NVMe Base §6.4).

use nvme::fabrics::disconnect_is_valid;
use nvme::{Completion, FabricsType, Sqe, Status};

use crate::context::ExecContext;
use crate::step::{CommandKey, ControllerStep, Step};

/// A fabrics command of an I/O queue.
pub(super) fn execute_on_io_queue(
    ctx: &mut ExecContext,
    command: CommandKey,
    sqe: &Sqe,
) -> Result<(), Status> {
    match sqe.fabrics_type() {
        FabricsType::DISCONNECT if !disconnect_is_valid(sqe) => {
            Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry())
        }
        FabricsType::DISCONNECT => {
            let queue = ctx.queues.get_mut(command.queue);
            queue.ended = true;
            ctx.steps.push_back(Step::Respond { command, reply: Completion::SUCCESS });
            ctx.steps.push_back(Step::Other(ControllerStep::EndQueue { queue: command.queue }));
            Ok(())
        }
        FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET => {
            Err(Status::INVALID_QUEUE_TYPE.with_do_not_retry())
        }
        FabricsType::CONNECT | FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE => {
            Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry())
        }
        _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
    }
}
