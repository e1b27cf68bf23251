//! Fabrics commands after the Connect: properties on the admin queue, Disconnect on I/O queues (NVMe Base
//! §6.4 to §6.6).

use nvme::fabrics::{Property, PropertyAccess};
use nvme::property::{ControllerCapabilities, ControllerConfiguration, VERSION};
use nvme::{Completion, FabricsType, Sqe, Status};

use super::AdminOutcome;
use crate::controller::Controller;
use crate::server::Server;

/// How long a controller may take to be ready or reset, in units of 500 ms: what is in flight on its
/// I/O queues ends first, and a disk may be slow.
const CAP_TIMEOUT: u8 = 30;

pub(super) fn execute_on_admin_queue(
    server: &mut Server,
    cntlid: u16,
    sqe: &Sqe,
) -> Result<AdminOutcome, Status> {
    let Some(controller) = server.controllers.find(cntlid) else {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    };
    match sqe.fabrics_type() {
        FabricsType::PROPERTY_GET => {
            let access = PropertyAccess::parse(sqe).ok_or(Status::INVALID_FIELD.with_do_not_retry())?;
            let result =
                property_value(controller, access).ok_or(Status::INVALID_FIELD.with_do_not_retry())?;
            Ok(AdminOutcome::Done(Completion { result, status: Status::SUCCESS }))
        }
        FabricsType::PROPERTY_SET => match PropertyAccess::parse(sqe) {
            Some(PropertyAccess { property: Property::CC, len: 4, value }) => {
                server.controllers.write_configuration(
                    &mut server.context.steps,
                    server.context.now,
                    cntlid,
                    ControllerConfiguration(value as u32),
                );
                Ok(AdminOutcome::SUCCESS)
            }
            Some(_) | None => Err(Status::INVALID_FIELD.with_do_not_retry()),
        },
        // The queue is connected.
        FabricsType::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()),
        FabricsType::DISCONNECT => Err(Status::INVALID_QUEUE_TYPE.with_do_not_retry()),
        // No authentication is asked for, and none goes on.
        FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE => {
            Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry())
        }
        _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
    }
}

/// The value of a property; `None` if there is none of that place and size.
fn property_value(controller: &Controller, access: PropertyAccess) -> Option<u64> {
    let capabilities = ControllerCapabilities {
        entries_max: controller.spec.limits.entries,
        timeout: CAP_TIMEOUT,
        command_sets: !controller.is_discovery(),
    };
    match (access.property, access.len) {
        (Property::CAP, 8) => Some(capabilities.to_u64()),
        (Property::VS, 4) => Some(VERSION.into()),
        (Property::CC, 4) => Some(controller.configuration.0.into()),
        (Property::CSTS, 4) => Some(controller.status.to_u32().into()),
        (Property::CRTO, 4) => Some(capabilities.to_crto().into()),
        _ => None,
    }
}
