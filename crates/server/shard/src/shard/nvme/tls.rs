//! TLS of connections: who may come without, whose key it is, and where handshakes are computed.
//!
//! Invariant: behind a TLS channel, a Connect is only for the host and the subsystem that the identity of the
//! channel's key names (NVMe/TCP Transport 1.1 §3.6.1.3).

use endpoint::Computation;
use nvme::fabrics::{ConnectNames, ConnectRefusal};
use nvme::tls::Identity;
use nvme_tcp::{ControllerQueue, ServerTls};
use stream::Tag;

use super::NvmeFront;
use crate::exports::{NvmeExports, NvmePortal, TlsMode};
use crate::log::ConnectFailure;
use crate::message::{CONTROL, Message, NvmeMessage};
use crate::shard::Parts;

impl NvmeFront {
    /// Has a step of a connection's handshake computed, by the control plane.
    pub(super) fn compute_handshake(&mut self, parts: &mut Parts, conn: Tag) {
        let id = parts.id;
        let Some(queue) = parts.conns.queue(conn) else { return };
        let Some(handshake) = queue.proto.poll_handshake() else { return };
        let (work, pending) = Computation::new(queue.accepted.peer.ip(), move || handshake.step());
        queue.shaking = Some(pending);
        let message = NvmeMessage::Handshake(id, conn.to_bits(), work);
        parts.outbox.post(CONTROL, Message::Nvme(message));
    }

    /// A step of a handshake has been computed, or was dropped.
    pub(super) fn handshake_computed(&mut self, parts: &mut Parts, token: u64) {
        let conn = Tag::from_bits(token);
        let Some(queue) = parts.conns.queue(conn) else { return };
        let Some(progress) = queue.shaking.as_mut().and_then(|pending| pending.take()) else { return };
        queue.shaking = None;
        queue.proto.handle_handshake(progress.ok());
        parts.conns.touch(conn);
    }
}

/// Prepares a connection that was just accepted; false if it can only be turned away.
pub(super) fn expect(
    queue: &mut ControllerQueue,
    exports: &NvmeExports,
    portal: Option<&NvmePortal>,
) -> bool {
    let mode = portal.map_or(TlsMode::Off, |portal| portal.tls);
    match (mode, &exports.tls) {
        (TlsMode::Off, _) | (TlsMode::Allow, None) => true,
        (TlsMode::Require, None) => false,
        (TlsMode::Allow | TlsMode::Require, Some(context)) => {
            queue.expect_tls(ServerTls { context: context.clone(), is_required: mode == TlsMode::Require });
            true
        }
    }
}

/// Whether a Connect fits how its connection came: by TLS, under this identity, or without.
pub(super) fn may_use(
    identity: Option<&[u8]>,
    names: &ConnectNames,
    subsystem: TlsMode,
) -> Result<(), (ConnectRefusal, ConnectFailure)> {
    let failure = match (identity, subsystem) {
        (None, TlsMode::Off | TlsMode::Allow) => return Ok(()),
        (None, TlsMode::Require) => ConnectFailure::TlsRequired,
        (Some(_), TlsMode::Off) => ConnectFailure::TlsOff,
        (Some(identity), TlsMode::Allow | TlsMode::Require) => match Identity::parse(identity) {
            Ok(known) if known.host == names.host && known.subsystem == names.subsystem => return Ok(()),
            Ok(_) | Err(_) => ConnectFailure::TlsNames,
        },
    };
    Err((ConnectRefusal::Host, failure))
}

#[cfg(test)]
mod tests {
    use nvme::{HostId, Nqn};

    use super::*;

    #[test]
    fn a_key_is_for_the_names_of_its_identity_only() {
        let names = |host: &str, subsystem: &str| ConnectNames {
            host: Nqn::parse(host).unwrap(),
            subsystem: Nqn::parse(subsystem).unwrap(),
            host_id: HostId::new([1; 16]).unwrap(),
            cntlid: 0xffff,
        };
        let identity: &[u8] = b"NVMe0R01 nqn.h nqn.s";
        let judge = |identity: Option<&[u8]>, host, subsystem, mode| {
            may_use(identity, &names(host, subsystem), mode).map_err(|(_, failure)| failure)
        };
        assert_eq!(judge(Some(identity), "nqn.h", "nqn.s", TlsMode::Require), Ok(()));
        assert_eq!(judge(Some(identity), "nqn.h", "nqn.s", TlsMode::Allow), Ok(()));
        for (host, subsystem) in [("nqn.other", "nqn.s"), ("nqn.h", "nqn.other")] {
            assert_eq!(judge(Some(identity), host, subsystem, TlsMode::Allow), Err(ConnectFailure::TlsNames));
        }
        assert_eq!(judge(Some(b"who"), "nqn.h", "nqn.s", TlsMode::Allow), Err(ConnectFailure::TlsNames));
        assert_eq!(judge(Some(identity), "nqn.h", "nqn.s", TlsMode::Off), Err(ConnectFailure::TlsOff));
        assert_eq!(judge(None, "nqn.h", "nqn.s", TlsMode::Require), Err(ConnectFailure::TlsRequired));
        assert_eq!(judge(None, "nqn.h", "nqn.s", TlsMode::Allow), Ok(()));
    }
}
