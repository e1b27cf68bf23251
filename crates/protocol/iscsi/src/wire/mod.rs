//! PDU layouts of RFC 7143 §11 and the codes that stand in them.
//!
//! Every header is a 48-byte `#[repr(C)]` structure without alignment, so a received [`Bhs`] is viewed as its
//! typed form ([`Pdu::from_bhs`]) without a copy. Numbers are big-endian and typed; unknown codes survive as
//! they came. Bit arithmetic on headers stays inside this module.

pub mod ahs;
mod async_message;
mod bhs;
mod codes;
mod data;
mod login;
mod logout;
mod nop;
mod numbers;
mod reject;
mod scsi;
mod task;
mod text;

#[cfg(test)]
mod tests;

pub use async_message::AsyncMessage;
pub use bhs::{BHS_LEN, Bhs, Len24, OpByte, Opcode, Pdu, SEGMENT_LEN_MAX, pad_len, padded_len, padding};
pub use codes::{
    AsyncEvent, LoginStatus, LogoutReason, LogoutResponseCode, RejectReason, ScsiResponseCode, ScsiStatus,
    TaskAttribute, TmfFunction, TmfResponseCode,
};
pub use data::{DataIn, DataInFlags, DataOut, DataOutFlags, R2t};
pub use login::{LoginFlags, LoginRequest, LoginResponse, Stage};
pub use logout::{LogoutRequest, LogoutResponse};
pub use nop::{NopIn, NopOut};
pub use numbers::{Cid, Isid, Itt, Lun, Sn, Tsih, Ttt};
pub use reject::Reject;
pub use scsi::{CommandFlags, ResponseFlags, ScsiCommand, ScsiResponse};
pub use task::{TmfRequest, TmfResponse};
pub use text::{TextFlags, TextRequest, TextResponse};
