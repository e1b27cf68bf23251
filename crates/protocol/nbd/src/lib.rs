//! NBD's wire format (the NBD protocol, doc/proto.md of the reference implementation; all numbers
//! big-endian). No I/O.

#![forbid(unsafe_code)]

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The server's first word: `NBDMAGIC`.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// In front of each option, and the server's second word: `IHAVEOPT`.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// In front of each answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// In front of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// In front of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// In front of each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag of either side: fixed newstyle negotiation.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// No 124 zeroes behind the answer to NBD_OPT_EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 2;

/// Options.
pub mod option {
    /// `NBD_OPT_EXPORT_NAME`.
    pub const EXPORT_NAME: u32 = 1;
    /// `NBD_OPT_ABORT`.
    pub const ABORT: u32 = 2;
    /// `NBD_OPT_LIST`.
    pub const LIST: u32 = 3;
    /// `NBD_OPT_INFO`.
    pub const INFO: u32 = 6;
    /// `NBD_OPT_GO`.
    pub const GO: u32 = 7;
    /// `NBD_OPT_STRUCTURED_REPLY`.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// `NBD_OPT_LIST_META_CONTEXT`.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// `NBD_OPT_SET_META_CONTEXT`.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Answers to options; those with the highest bit are errors.
pub mod reply {
    /// `NBD_REP_ACK`.
    pub const ACK: u32 = 1;
    /// `NBD_REP_SERVER`.
    pub const SERVER: u32 = 2;
    /// `NBD_REP_INFO`.
    pub const INFO: u32 = 3;
    /// `NBD_REP_META_CONTEXT`.
    pub const META_CONTEXT: u32 = 4;
    /// `NBD_REP_ERR_UNSUP`.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// `NBD_REP_ERR_POLICY`.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// `NBD_REP_ERR_INVALID`.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// `NBD_REP_ERR_TLS_REQD`.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// `NBD_REP_ERR_UNKNOWN`.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// `NBD_REP_ERR_SHUTDOWN`.
    pub const ERR_SHUTDOWN: u32 = 0x8000_0007;
    /// `NBD_REP_ERR_TOO_BIG`.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Kinds of information in NBD_REP_INFO.
pub mod info {
    /// `NBD_INFO_EXPORT`.
    pub const EXPORT: u16 = 0;
    /// `NBD_INFO_NAME`.
    pub const NAME: u16 = 1;
    /// `NBD_INFO_DESCRIPTION`.
    pub const DESCRIPTION: u16 = 2;
    /// `NBD_INFO_BLOCK_SIZE`.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod flag {
    /// `NBD_FLAG_HAS_FLAGS`.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// `NBD_FLAG_READ_ONLY`.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_FLAG_SEND_FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_FLAG_SEND_FUA`.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `NBD_FLAG_SEND_TRIM`.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_FLAG_SEND_WRITE_ZEROES`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_FLAG_SEND_DF`.
    pub const SEND_DF: u16 = 1 << 7;
    /// `NBD_FLAG_CAN_MULTI_CONN`.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_FLAG_SEND_CACHE`.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_FLAG_SEND_FAST_ZERO`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod command {
    /// `NBD_CMD_READ`.
    pub const READ: u16 = 0;
    /// `NBD_CMD_WRITE`.
    pub const WRITE: u16 = 1;
    /// `NBD_CMD_DISC`.
    pub const DISC: u16 = 2;
    /// `NBD_CMD_FLUSH`.
    pub const FLUSH: u16 = 3;
    /// `NBD_CMD_TRIM`.
    pub const TRIM: u16 = 4;
    /// `NBD_CMD_CACHE`.
    pub const CACHE: u16 = 5;
    /// `NBD_CMD_WRITE_ZEROES`.
    pub const WRITE_ZEROES: u16 = 6;
    /// `NBD_CMD_BLOCK_STATUS`.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flag {
    /// `NBD_CMD_FLAG_FUA`.
    pub const FUA: u16 = 1 << 0;
    /// `NBD_CMD_FLAG_NO_HOLE`.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `NBD_CMD_FLAG_DF`.
    pub const DF: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_REQ_ONE`.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `NBD_CMD_FLAG_FAST_ZERO`.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds and flags of chunks of structured replies.
pub mod chunk {
    /// `NBD_REPLY_FLAG_DONE`.
    pub const DONE: u16 = 1;
    /// `NBD_REPLY_TYPE_OFFSET_DATA`.
    pub const OFFSET_DATA: u16 = 1;
    /// `NBD_REPLY_TYPE_BLOCK_STATUS`.
    pub const BLOCK_STATUS: u16 = 5;
    /// `NBD_REPLY_TYPE_ERROR`.
    pub const ERROR: u16 = 0x8001;
}

/// Error numbers: these and no others may be sent.
pub mod error {
    /// `NBD_EPERM`.
    pub const PERM: u32 = 1;
    /// `NBD_EIO`.
    pub const IO: u32 = 5;
    /// `NBD_ENOMEM`.
    pub const NOMEM: u32 = 12;
    /// `NBD_EINVAL`.
    pub const INVAL: u32 = 22;
    /// `NBD_ENOSPC`.
    pub const NOSPC: u32 = 28;
    /// `NBD_EOVERFLOW`.
    pub const OVERFLOW: u32 = 75;
    /// `NBD_ENOTSUP`.
    pub const NOTSUP: u32 = 95;
    /// `NBD_ESHUTDOWN`.
    pub const SHUTDOWN: u32 = 108;
}

/// Not allocated (base:allocation).
pub const STATE_HOLE: u32 = 1;
/// Reads zeroes (base:allocation).
pub const STATE_ZERO: u32 = 2;

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name {
            $(
                #[expect(missing_docs, reason = "named as in the protocol")]
                pub $field: $type,
            )*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire!(
    /// The server's first words.
    Greeting = 18 { magic: U64, newstyle: U64, flags: U16, }
);
wire!(
    /// In front of each option.
    OptionHeader = 16 { magic: U64, option: U32, len: U32, }
);
wire!(
    /// In front of each answer to an option.
    OptionReply = 20 { magic: U64, option: U32, kind: U32, len: U32, }
);
wire!(
    /// NBD_INFO_EXPORT.
    InfoExport = 12 { kind: U16, size: U64, flags: U16, }
);
wire!(
    /// NBD_INFO_BLOCK_SIZE.
    InfoBlockSize = 14 { kind: U16, minimum: U32, preferred: U32, payload_max: U32, }
);
wire!(
    /// The answer to NBD_OPT_EXPORT_NAME, before its 124 zeroes.
    ExportName = 10 { size: U64, flags: U16, }
);
wire!(
    /// A request.
    RequestHeader = 28 { magic: U32, flags: U16, command: U16, cookie: U64, offset: U64, len: U32, }
);
wire!(
    /// A simple reply.
    SimpleReply = 16 { magic: U32, error: U32, cookie: U64, }
);
wire!(
    /// A chunk of a structured reply.
    ChunkHeader = 20 { magic: U32, flags: U16, kind: U16, cookie: U64, len: U32, }
);
