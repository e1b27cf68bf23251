//! Status codes (NVMe Base §3.3.3.2.1; NVM command set §1; Fabrics in NVMe Base §6).

/// Status code in bits 7:0, type in 10:8, command retry delay in 12:11, More in 13, Do Not Retry
/// in 14: the status field without its phase tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

const fn generic_status(code: u8) -> Status {
    Status(code as u16)
}

const fn command_specific(code: u8) -> Status {
    Status(1 << 8 | code as u16)
}

const fn media_error(code: u8) -> Status {
    Status(2 << 8 | code as u16)
}

const fn path_related(code: u8) -> Status {
    Status(3 << 8 | code as u16)
}

#[allow(missing_docs)] // The names are the standard's.
impl Status {
    pub const SUCCESS: Status = generic_status(0x00);
    pub const INVALID_OPCODE: Status = generic_status(0x01);
    pub const INVALID_FIELD: Status = generic_status(0x02);
    pub const COMMAND_ID_CONFLICT: Status = generic_status(0x03);
    pub const DATA_TRANSFER_ERROR: Status = generic_status(0x04);
    pub const INTERNAL_ERROR: Status = generic_status(0x06);
    pub const ABORT_REQUESTED: Status = generic_status(0x07);
    pub const ABORTED_SQ_DELETION: Status = generic_status(0x08);
    pub const ABORTED_FAILED_FUSED: Status = generic_status(0x09);
    pub const ABORTED_MISSING_FUSED: Status = generic_status(0x0a);
    pub const INVALID_NAMESPACE: Status = generic_status(0x0b);
    pub const COMMAND_SEQUENCE_ERROR: Status = generic_status(0x0c);
    pub const SGL_LENGTH_INVALID: Status = generic_status(0x0f);
    pub const SGL_TYPE_INVALID: Status = generic_status(0x11);
    pub const ATOMIC_WRITE_UNIT_EXCEEDED: Status = generic_status(0x14);
    pub const OPERATION_DENIED: Status = generic_status(0x15);
    pub const SGL_OFFSET_INVALID: Status = generic_status(0x16);
    pub const HOST_ID_INCONSISTENT: Status = generic_status(0x18);
    pub const KEEP_ALIVE_EXPIRED: Status = generic_status(0x19);
    pub const KEEP_ALIVE_INVALID: Status = generic_status(0x1a);
    pub const PREEMPT_ABORT: Status = generic_status(0x1b);
    pub const SANITIZE_FAILED: Status = generic_status(0x1c);
    pub const SANITIZE_IN_PROGRESS: Status = generic_status(0x1d);
    pub const NAMESPACE_WRITE_PROTECTED: Status = generic_status(0x20);
    pub const COMMAND_INTERRUPTED: Status = generic_status(0x21);
    pub const TRANSIENT_TRANSPORT_ERROR: Status = generic_status(0x22);
    pub const LBA_OUT_OF_RANGE: Status = generic_status(0x80);
    pub const CAPACITY_EXCEEDED: Status = generic_status(0x81);
    pub const NAMESPACE_NOT_READY: Status = generic_status(0x82);
    pub const RESERVATION_CONFLICT: Status = generic_status(0x83);
    pub const FORMAT_IN_PROGRESS: Status = generic_status(0x84);

    pub const ABORT_LIMIT_EXCEEDED: Status = command_specific(0x03);
    pub const AER_LIMIT_EXCEEDED: Status = command_specific(0x05);
    pub const INVALID_LOG_PAGE: Status = command_specific(0x09);
    pub const INVALID_FORMAT: Status = command_specific(0x0a);
    pub const FEATURE_NOT_SAVEABLE: Status = command_specific(0x0d);
    pub const FEATURE_NOT_CHANGEABLE: Status = command_specific(0x0e);
    pub const FEATURE_NOT_NAMESPACE_SPECIFIC: Status = command_specific(0x0f);
    pub const CROSS_CONTROLLER_RESET_IN_PROGRESS: Status = command_specific(0x3f);
    pub const CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED: Status = command_specific(0x41);
    pub const INVALID_PROTECTION_INFO: Status = command_specific(0x81);
    pub const WRITE_TO_READ_ONLY_RANGE: Status = command_specific(0x82);
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Status = command_specific(0x83);
    pub const OVERLAPPING_RANGE: Status = command_specific(0x87);
    pub const CONNECT_INCOMPATIBLE_FORMAT: Status = command_specific(0x80);
    pub const CONTROLLER_BUSY: Status = command_specific(0x81);
    pub const CONNECT_INVALID_PARAMETERS: Status = command_specific(0x82);
    pub const CONNECT_RESTART_DISCOVERY: Status = command_specific(0x83);
    pub const CONNECT_INVALID_HOST: Status = command_specific(0x84);
    pub const INVALID_QUEUE_TYPE: Status = command_specific(0x85);
    pub const DISCOVER_RESTART: Status = command_specific(0x90);
    pub const AUTHENTICATION_REQUIRED: Status = command_specific(0x91);

    pub const WRITE_FAULT: Status = media_error(0x80);
    pub const UNRECOVERED_READ_ERROR: Status = media_error(0x81);
    pub const COMPARE_FAILURE: Status = media_error(0x85);
    pub const UNWRITTEN_BLOCK: Status = media_error(0x87);

    pub const INTERNAL_PATH_ERROR: Status = path_related(0x00);
    pub const ANA_PERSISTENT_LOSS: Status = path_related(0x01);
    pub const ANA_INACCESSIBLE: Status = path_related(0x02);
    pub const ANA_TRANSITION: Status = path_related(0x03);
    pub const CONTROLLER_PATH_ERROR: Status = path_related(0x60);
    pub const HOST_PATH_ERROR: Status = path_related(0x70);
    pub const ABORTED_BY_HOST: Status = path_related(0x71);

    const DO_NOT_RETRY: u16 = 1 << 14;

    /// The same, with Do Not Retry.
    pub const fn with_do_not_retry(self) -> Status {
        Status(self.0 | Self::DO_NOT_RETRY)
    }

    /// The same, to be tried again after the first command retry delay (CRD 1).
    pub const fn with_first_retry_delay(self) -> Status {
        Status(self.0 | 1 << 11)
    }

    /// The code: bits 7:0.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// The type: 0 generic, 1 command specific, 2 media and data integrity, 3 path related.
    pub const fn status_code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Which of the controller's delays to wait before a retry (CRD): 0 for none, 1 to 3 for CRDT1 to 3.
    pub const fn retry_delay(self) -> u8 {
        (self.0 >> 11) as u8 & 3
    }

    /// The same without what is only advice: CRD, More and Do Not Retry.
    pub const fn without_retry_hints(self) -> Status {
        Status(self.0 & 0x7ff)
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Whether a retry is pointless.
    pub const fn is_do_not_retry(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }
}
