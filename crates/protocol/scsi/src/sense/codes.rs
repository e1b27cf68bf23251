//! Named sense values: key, additional sense code and qualifier as T10 assigns them.

use super::{AdditionalSenseCode, Sense, SenseKey};

impl Sense {
    /// Nothing to report. (00h/00h)
    pub const NO_SENSE: Sense = Sense::new(SenseKey::NO_SENSE, AdditionalSenseCode(0x0000));
    /// The path changes its asymmetric access state. (04h/0Ah)
    pub const ALUA_TRANSITION: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x040a));
    /// The path is in standby. (04h/0Bh)
    pub const ALUA_STANDBY: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x040b));
    /// The path is unavailable. (04h/0Ch)
    pub const ALUA_UNAVAILABLE: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x040c));
    /// On its way to ready. (04h/01h)
    pub const BECOMING_READY: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x0401));
    /// Stopped: START STOP UNIT with START = 1 is needed. (04h/02h)
    pub const INITIALIZING_COMMAND_REQUIRED: Sense =
        Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x0402));
    /// A sanitize operation runs; progress may be attached. (04h/1Bh)
    pub const SANITIZE_IN_PROGRESS: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x041b));
    /// A format runs; progress may be attached. (04h/04h)
    pub const FORMAT_IN_PROGRESS: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x0404));
    /// The removable medium is out. (3Ah/00h)
    pub const MEDIUM_NOT_PRESENT: Sense = Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x3a00));
    /// The blocks could not be written. (0Ch/00h)
    pub const WRITE_ERROR: Sense = Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSenseCode(0x0c00));
    /// The blocks could not be read. (11h/00h)
    pub const UNRECOVERED_READ_ERROR: Sense = Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSenseCode(0x1100));
    /// The sanitize operation failed. (31h/03h)
    pub const SANITIZE_FAILED: Sense = Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSenseCode(0x3103));
    /// The format failed. (31h/01h)
    pub const FORMAT_FAILED: Sense = Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSenseCode(0x3101));
    /// The target failed in a way that has no better name. (44h/00h)
    pub const INTERNAL_TARGET_FAILURE: Sense =
        Sense::new(SenseKey::HARDWARE_ERROR, AdditionalSenseCode(0x4400));
    /// The path to what stores the blocks is lost. (08h/00h)
    pub const LOGICAL_UNIT_COMMUNICATION_FAILURE: Sense =
        Sense::new(SenseKey::NOT_READY, AdditionalSenseCode(0x0800));
    /// The expected data length does not fit the command. (0Eh/03h)
    pub const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x0e03));
    /// The task attribute is none that the logical unit takes. (49h/00h)
    pub const INVALID_MESSAGE_ERROR: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x4900));
    /// The parameter list is too short or too long for what it says. (1Ah/00h)
    pub const PARAMETER_LIST_LENGTH_ERROR: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x1a00));
    /// The operation code is not supported. (20h/00h)
    pub const INVALID_OPCODE: Sense = Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2000));
    /// A block beyond the last one. (21h/00h)
    pub const LBA_OUT_OF_RANGE: Sense = Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2100));
    /// A field of the CDB holds what it must not. (24h/00h)
    pub const INVALID_FIELD_IN_CDB: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2400));
    /// No such logical unit. (25h/00h)
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2500));
    /// A field of the parameter list holds what it must not. (26h/00h)
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2600));
    /// RELEASE names another scope or type than the reservation has. (26h/04h)
    pub const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2604));
    /// More copy target descriptors than the copy manager takes. (26h/06h)
    pub const TOO_MANY_TARGET_DESCRIPTORS: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2606));
    /// A copy target descriptor of an unknown type. (26h/07h)
    pub const UNSUPPORTED_TARGET_DESCRIPTOR_TYPE: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2607));
    /// More copy segment descriptors than the copy manager takes. (26h/08h)
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2608));
    /// A copy segment descriptor of an unknown type. (26h/09h)
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2609));
    /// More inline data than the copy manager takes. (26h/0Bh)
    pub const INLINE_DATA_TOO_LONG: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x260b));
    /// Not in this order. (2Ch/00h)
    pub const COMMAND_SEQUENCE_ERROR: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x2c00));
    /// Saved mode pages are not kept. (39h/00h)
    pub const SAVING_PARAMETERS_NOT_SUPPORTED: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x3900));
    /// An initiator forbids the removal of the medium. (53h/02h)
    pub const MEDIUM_REMOVAL_PREVENTED: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x5302));
    /// No room for another persistent reservation key. (55h/04h)
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Sense =
        Sense::new(SenseKey::ILLEGAL_REQUEST, AdditionalSenseCode(0x5504));
    /// The medium is (again) there. (28h/00h)
    pub const MEDIUM_MAY_HAVE_CHANGED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2800));
    /// Power on, reset, or the first command of this I_T nexus. (29h/00h)
    pub const POWER_ON: Sense = Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2900));
    /// A logical unit reset or target reset. (29h/03h)
    pub const BUS_DEVICE_RESET: Sense = Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2903));
    /// The I_T nexus was lost. (29h/07h)
    pub const IT_NEXUS_LOSS: Sense = Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2907));
    /// Another initiator changed mode parameters. (2Ah/01h)
    pub const MODE_PARAMETERS_CHANGED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2a01));
    /// The reservation was preempted. (2Ah/03h)
    pub const RESERVATIONS_PREEMPTED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2a03));
    /// The reservation was released. (2Ah/04h)
    pub const RESERVATIONS_RELEASED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2a04));
    /// The registration was preempted. (2Ah/05h)
    pub const REGISTRATIONS_PREEMPTED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2a05));
    /// The path has a new asymmetric access state. (2Ah/06h)
    pub const ASYMMETRIC_ACCESS_STATE_CHANGED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2a06));
    /// The capacity is another. (2Ah/09h)
    pub const CAPACITY_DATA_HAS_CHANGED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2a09));
    /// Another initiator cleared commands of this I_T nexus. (2Fh/00h)
    pub const COMMANDS_CLEARED: Sense = Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x2f00));
    /// A thin volume uses more than its threshold. (38h/07h)
    pub const THIN_PROVISIONING_SOFT_THRESHOLD_REACHED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x3807));
    /// INQUIRY data is another. (3Fh/03h)
    pub const INQUIRY_DATA_HAS_CHANGED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x3f03));
    /// The inventory of logical units is another. (3Fh/0Eh)
    pub const REPORTED_LUNS_DATA_HAS_CHANGED: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x3f0e));
    /// Commands died with their iSCSI connection (RFC 7143 §11.14.5). (47h/7Fh)
    pub const COMMANDS_CLEARED_BY_TRANSPORT: Sense =
        Sense::new(SenseKey::UNIT_ATTENTION, AdditionalSenseCode(0x477f));
    /// The medium is write protected. (27h/00h)
    pub const WRITE_PROTECTED: Sense = Sense::new(SenseKey::DATA_PROTECT, AdditionalSenseCode(0x2700));
    /// No space left for a thin volume. (27h/07h)
    pub const SPACE_ALLOCATION_FAILED: Sense =
        Sense::new(SenseKey::DATA_PROTECT, AdditionalSenseCode(0x2707));
    /// A copy target cannot be reached. (08h/04h)
    pub const COPY_TARGET_UNREACHABLE: Sense =
        Sense::new(SenseKey::COPY_ABORTED, AdditionalSenseCode(0x0804));
    /// A third-party device of a copy cannot be reached. (0Dh/02h)
    pub const COPY_TARGET_NOT_REACHABLE: Sense =
        Sense::new(SenseKey::COPY_ABORTED, AdditionalSenseCode(0x0d02));
    /// A third-party device of a copy failed. (0Dh/01h)
    pub const COPY_FAILED: Sense = Sense::new(SenseKey::COPY_ABORTED, AdditionalSenseCode(0x0d01));
    /// A copy ended early. (00h/00h)
    pub const COPY_ABORTED_NO_ADDITIONAL: Sense =
        Sense::new(SenseKey::COPY_ABORTED, AdditionalSenseCode(0x0000));
    /// Unsolicited data where none is allowed (RFC 7143 §11.4.7.2). (0Ch/0Ch)
    pub const UNEXPECTED_UNSOLICITED_DATA: Sense =
        Sense::new(SenseKey::ABORTED_COMMAND, AdditionalSenseCode(0x0c0c));
    /// Less or more data than was asked for. (0Ch/0Dh)
    pub const INCORRECT_AMOUNT_OF_DATA: Sense =
        Sense::new(SenseKey::ABORTED_COMMAND, AdditionalSenseCode(0x0c0d));
    /// A data digest did not match. (47h/05h)
    pub const PROTOCOL_SERVICE_CRC_ERROR: Sense =
        Sense::new(SenseKey::ABORTED_COMMAND, AdditionalSenseCode(0x4705));
    /// Aborted, for no reason that has a code. (00h/00h)
    pub const ABORTED: Sense = Sense::new(SenseKey::ABORTED_COMMAND, AdditionalSenseCode(0x0000));
    /// The data differs; INFORMATION is the offset of the first difference. (1Dh/00h)
    pub const MISCOMPARE_DURING_VERIFY: Sense = Sense::new(SenseKey::MISCOMPARE, AdditionalSenseCode(0x1d00));
}
