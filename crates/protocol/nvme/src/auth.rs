//! In-band authentication: DH-HMAC-CHAP (NVMe Base §8.3.5, RFC 7919), one-way and two-way.
//!
//! [`ControllerAuthenticator`] and [`HostAuthenticator`] are its two ends for one queue: plain data that takes received messages and
//! returns those to send. They have no clock; their owner keeps deadlines. Long computations (powers modulo a
//! large prime) leave them as [`DhComputation`] and come back as [`DhResult`], so that they run where they
//! delay no data.
//!
//! Invariant: [`ControllerAuthenticator::is_authenticated`] becomes true only after a response that was computed with the
//! host's secret, for a challenge of this transaction. Any message that is out of order, of another
//! transaction or of a wrong length ends the association.

mod concatenation;
mod controller;
mod dh_computation;
mod dh_group;
mod host;
mod message;
mod response;
mod secret;

pub use concatenation::{Concatenation, ConcatenationPolicy};
pub use controller::{
    AuthFailure, AuthMessage, AuthOutcome, AuthState, ControllerAuthenticator, ControllerProgress,
};
pub use dh_computation::{DhComputation, DhResult};
pub use dh_group::DhGroup;
pub use host::{HostAuthenticator, HostFault, HostProgress};
pub use message::{FailureExplanation, MESSAGE_LEN_MAX};
pub use response::Hash;
pub(crate) use response::{HashBytes, hmac};
pub use secret::{DhchapKey, DhchapSecret};

use crate::sqe::{FabricsType, Opcode, Sqe};
use crate::status::Status;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Fills a slice with unpredictable bytes.
pub type FillRandom<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Security protocol: NVMe authentication (SECP).
const PROTOCOL: u8 = 0xe9;

/// What may be used, most wanted first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhchapPolicy {
    /// Hashes of the responses.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups. [`DhGroup::Null`] is plain HMAC-CHAP.
    pub groups: Vec<DhGroup>,
}

impl Default for DhchapPolicy {
    /// All there are: the longest hash first; of the groups ffdhe3072 first, which is strong enough
    /// and cheap, and none at all last.
    fn default() -> Self {
        let groups = [
            DhGroup::Ffdhe3072,
            DhGroup::Ffdhe4096,
            DhGroup::Ffdhe6144,
            DhGroup::Ffdhe8192,
            DhGroup::Ffdhe2048,
            DhGroup::Null,
        ];
        DhchapPolicy { hashes: vec![Hash::Sha512, Hash::Sha384, Hash::Sha256], groups: groups.to_vec() }
    }
}

/// Who authenticates to whom, and with what: names and keys of one association.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The host's NQN.
    pub host_nqn: String,
    /// The subsystem's NQN.
    pub subsystem_nqn: String,
    /// The host's key; without it no response is right.
    pub host: Option<DhchapKey>,
    /// The controller's key, for hosts that want to know whom they talk to.
    pub controller: Option<DhchapKey>,
}

/// The bytes that an Authentication Send brings (TL) or that an Authentication Receive has room for
/// (AL): NVMe Base §6.1 and §6.2. Another security protocol, or no bytes, is an invalid field.
pub fn transfer_len(sqe: &Sqe) -> Result<u32, Status> {
    match (sqe.as_bytes().get(41..44), sqe.cdw(11)) {
        (Some([1, 1, PROTOCOL]), len) if len > 0 => Ok(len),
        _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
    }
}

/// An Authentication Send or Receive command (NVMe Base §6.2, §6.3) for `len` bytes of message. The caller sets its
/// identifier and data pointer.
pub fn auth_sqe(kind: FabricsType, len: u32) -> Sqe {
    let mut sqe: Sqe = zerocopy::FromZeros::new_zeroed();
    sqe.opcode = Opcode::FABRICS;
    sqe.nsid = U32::new(kind.0.into());
    sqe.cdw10[0] = U32::new(u32::from_le_bytes([0, 1, 1, PROTOCOL]));
    sqe.cdw10[1] = U32::new(len);
    sqe
}

#[cfg(test)]
mod tests;
