//! Enumerated codes of RFC 7143 §11 and RFC 7144. Unknown values are preserved.

/// A one-byte code with named values; `Debug` prints the name, or the number of an unnamed one.
macro_rules! codes {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* $code:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable, ::zerocopy::KnownLayout,
            ::zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$doc])* pub const $code: Self = Self($value);)*
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match *self {
                    $(Self::$code => f.write_str(stringify!($code)),)*
                    Self(other) => write!(f, concat!(stringify!($name), "({:#04x})"), other),
                }
            }
        }
    };
}
pub(super) use codes;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Task attribute, bits 2:0 of the SCSI Command's flags (RFC 7143 §11.3.1.1).
    pub struct TaskAttribute {
        /// Untagged.
        UNTAGGED = 0,
        /// Simple.
        SIMPLE = 1,
        /// Ordered.
        ORDERED = 2,
        /// Head of queue.
        HEAD_OF_QUEUE = 3,
        /// ACA.
        ACA = 4,
    }
}

codes! {
    /// iSCSI service response of a SCSI Response (RFC 7143 §11.4.3).
    pub struct ScsiResponseCode {
        /// The command completed at the target; the status is valid.
        COMPLETED = 0x00,
        /// Target failure; status and flags are undefined.
        TARGET_FAILURE = 0x01,
    }
}

codes! {
    /// SCSI status byte as it is carried (SAM-5 §5.3.1); its meaning belongs to the server above.
    pub struct ScsiStatus {
        /// GOOD.
        GOOD = 0x00,
        /// CHECK CONDITION.
        CHECK_CONDITION = 0x02,
        /// CONDITION MET.
        CONDITION_MET = 0x04,
        /// BUSY.
        BUSY = 0x08,
        /// RESERVATION CONFLICT.
        RESERVATION_CONFLICT = 0x18,
        /// TASK SET FULL.
        TASK_SET_FULL = 0x28,
        /// ACA ACTIVE.
        ACA_ACTIVE = 0x30,
        /// TASK ABORTED.
        TASK_ABORTED = 0x40,
    }
}

codes! {
    /// Task management function (RFC 7143 §11.5.1, RFC 7144).
    pub struct TmfFunction {
        /// ABORT TASK.
        ABORT_TASK = 1,
        /// ABORT TASK SET.
        ABORT_TASK_SET = 2,
        /// CLEAR ACA.
        CLEAR_ACA = 3,
        /// CLEAR TASK SET.
        CLEAR_TASK_SET = 4,
        /// LOGICAL UNIT RESET.
        LOGICAL_UNIT_RESET = 5,
        /// TARGET WARM RESET.
        TARGET_WARM_RESET = 6,
        /// TARGET COLD RESET.
        TARGET_COLD_RESET = 7,
        /// TASK REASSIGN.
        TASK_REASSIGN = 8,
        /// QUERY TASK (iSCSIProtocolLevel 2).
        QUERY_TASK = 9,
        /// QUERY TASK SET (iSCSIProtocolLevel 2).
        QUERY_TASK_SET = 10,
        /// I_T NEXUS RESET (iSCSIProtocolLevel 2).
        I_T_NEXUS_RESET = 11,
        /// QUERY ASYNCHRONOUS EVENT (iSCSIProtocolLevel 2).
        QUERY_ASYNCHRONOUS_EVENT = 12,
    }
}

impl TmfFunction {
    /// Whether the LUN field of the request means anything for this function.
    #[must_use]
    pub const fn uses_lun(self) -> bool {
        matches!(
            self,
            Self::ABORT_TASK
                | Self::ABORT_TASK_SET
                | Self::CLEAR_ACA
                | Self::CLEAR_TASK_SET
                | Self::LOGICAL_UNIT_RESET
                | Self::QUERY_TASK
                | Self::QUERY_TASK_SET
                | Self::QUERY_ASYNCHRONOUS_EVENT
        )
    }
}

codes! {
    /// Response of a task management function (RFC 7143 §11.6.1, RFC 7144).
    pub struct TmfResponseCode {
        /// Function complete.
        COMPLETE = 0,
        /// Task does not exist.
        NO_TASK = 1,
        /// LUN does not exist.
        NO_LUN = 2,
        /// Task still allegiant.
        STILL_ALLEGIANT = 3,
        /// Task allegiance reassignment not supported.
        NO_REASSIGNMENT = 4,
        /// Task management function not supported.
        NOT_SUPPORTED = 5,
        /// Function authorization failed.
        NOT_AUTHORIZED = 6,
        /// Function succeeded: a query that found something.
        SUCCEEDED = 7,
        /// Function rejected.
        REJECTED = 255,
    }
}

codes! {
    /// Reason of a Reject (RFC 7143 §11.17.1).
    pub struct RejectReason {
        /// Data digest error.
        DATA_DIGEST_ERROR = 0x02,
        /// SNACK reject.
        SNACK_REJECT = 0x03,
        /// Protocol error.
        PROTOCOL_ERROR = 0x04,
        /// Command not supported.
        COMMAND_NOT_SUPPORTED = 0x05,
        /// Immediate command rejected: too many of them.
        TOO_MANY_IMMEDIATE = 0x06,
        /// Task in progress.
        TASK_IN_PROGRESS = 0x07,
        /// Invalid data acknowledgment.
        INVALID_DATA_ACK = 0x08,
        /// Invalid PDU field.
        INVALID_PDU_FIELD = 0x09,
        /// Long operation reject: no transfer tag is free.
        LONG_OPERATION = 0x0a,
        /// Deprecated: treated as a failed negotiation, never sent.
        NEGOTIATION_RESET = 0x0b,
        /// Waiting for logout.
        WAITING_FOR_LOGOUT = 0x0c,
    }
}

codes! {
    /// Event of an Asynchronous Message (RFC 7143 §11.9.1).
    pub struct AsyncEvent {
        /// A SCSI asynchronous event; sense data in the segment.
        SCSI_EVENT = 0,
        /// The target requests a logout.
        LOGOUT_REQUEST = 1,
        /// The target will drop this connection.
        CONNECTION_DROP = 2,
        /// The target will drop all connections of the session.
        SESSION_DROP = 3,
        /// The target requests a negotiation.
        NEGOTIATION_REQUEST = 4,
        /// All tasks of the logical unit are being terminated.
        TASK_TERMINATION = 5,
        /// Vendor specific.
        VENDOR = 255,
    }
}

codes! {
    /// Reason of a Logout Request, bits 6:0 of byte 1 (RFC 7143 §11.14.1).
    pub struct LogoutReason {
        /// Close the session.
        CLOSE_SESSION = 0,
        /// Close the connection.
        CLOSE_CONNECTION = 1,
        /// Remove the connection for recovery.
        REMOVE_FOR_RECOVERY = 2,
    }
}

codes! {
    /// Response of a Logout Response (RFC 7143 §11.15.1).
    pub struct LogoutResponseCode {
        /// Connection or session closed successfully.
        CLOSED = 0,
        /// CID not found.
        CID_NOT_FOUND = 1,
        /// Connection recovery is not supported.
        RECOVERY_NOT_SUPPORTED = 2,
        /// Cleanup failed.
        CLEANUP_FAILED = 3,
    }
}

/// Status-Class and Status-Detail of a Login Response (RFC 7143 §11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LoginStatus {
    /// 0 success, 1 redirection, 2 initiator error, 3 target error.
    pub class: u8,
    /// The detail within the class.
    pub detail: u8,
}

macro_rules! login_status {
    ($($(#[$doc:meta])* $name:ident = $class:literal, $detail:literal;)*) => {
        impl LoginStatus {
            $($(#[$doc])* pub const $name: Self = Self { class: $class, detail: $detail };)*
        }

        impl core::fmt::Debug for LoginStatus {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self { class, detail } => write!(f, "LoginStatus({class:02x}{detail:02x})"),
                }
            }
        }
    };
}

login_status! {
    /// Success, or the login goes on.
    SUCCESS = 0, 0;
    /// The target moved temporarily; TargetAddress says where.
    MOVED_TEMPORARILY = 1, 1;
    /// The target moved permanently; TargetAddress says where.
    MOVED_PERMANENTLY = 1, 2;
    /// Miscellaneous error of the initiator.
    INITIATOR_ERROR = 2, 0;
    /// Authentication failure.
    AUTHENTICATION_FAILURE = 2, 1;
    /// Authorization failure: the initiator may not use this target.
    AUTHORIZATION_FAILURE = 2, 2;
    /// Target not found.
    TARGET_NOT_FOUND = 2, 3;
    /// Target removed, and no forwarding address is known.
    TARGET_REMOVED = 2, 4;
    /// Unsupported version.
    UNSUPPORTED_VERSION = 2, 5;
    /// Too many connections on this session.
    TOO_MANY_CONNECTIONS = 2, 6;
    /// A required parameter is missing.
    MISSING_PARAMETER = 2, 7;
    /// This target does not support the session spanning to this connection.
    CANNOT_INCLUDE = 2, 8;
    /// Session type not supported.
    SESSION_TYPE_NOT_SUPPORTED = 2, 9;
    /// The session to add this connection to does not exist.
    SESSION_DOES_NOT_EXIST = 2, 10;
    /// Invalid request type during login.
    INVALID_DURING_LOGIN = 2, 11;
    /// Target hardware or software error.
    TARGET_ERROR = 3, 0;
    /// The service or target is not operational now.
    SERVICE_UNAVAILABLE = 3, 1;
    /// Out of resources.
    OUT_OF_RESOURCES = 3, 2;
}
