//! TLS of connections: who may come without, whose key it is, and where handshakes are computed.
//!
//! Invariants:
//! - Behind a TLS channel, a Connect is only for the host and the subsystem that the identity of the channel's key
//!   names (NVMe/TCP Transport 1.1 §3.6.1.3).
//! - All queues of a controller come by TLS, or none. A generated PSK is for the queues of one controller, and is
//!   revoked when that ends.

use endpoint::Computation;
use nvme::fabrics::{ConnectNames, ConnectRefusal};
use nvme::tls::{GeneratedPsk, PskIdentity, PskKind};
use nvme_server::{ControllerEnd, QueueKey};
use nvme_tcp::{ControllerQueue, ServerTls};
use stream::Tag;
use tls::Psk;

use super::{KnownController, NvmeFront};
use crate::exports::{NvmeExports, NvmePortal, TlsMode};
use crate::log::ConnectFailure;
use crate::message::{CONTROL_PLANE, Message, NvmeMessage};
use crate::shard::SharedParts;
use crate::shard::outbox::Outbox;

impl NvmeFront {
    /// Has a step of a connection's handshake computed, by the control plane.
    pub(super) fn compute_handshake(&mut self, parts: &mut SharedParts, conn: Tag) {
        let id = parts.id;
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let Some(handshake) = queue.proto.poll_handshake() else { return };
        let (work, pending) = Computation::new(queue.accepted.peer.ip(), move || handshake.step());
        queue.shaking = Some(pending);
        let message = NvmeMessage::Handshake(id, conn.to_bits(), work);
        parts.outbox.post(CONTROL_PLANE, Message::Nvme(message));
    }

    /// A step of a handshake has been computed, or was dropped.
    pub(super) fn handle_handshake_computed(&mut self, parts: &mut SharedParts, token: u64) {
        let conn = Tag::from_bits(token);
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let Some(progress) = queue.shaking.as_mut().and_then(|pending| pending.take()) else { return };
        queue.shaking = None;
        queue.proto.handle_handshake(progress.ok());
        parts.conns.mark_pending(conn);
    }
}

impl NvmeFront {
    /// A host that authenticates has generated a PSK: it may come with it as soon as it has its answer, and that is
    /// after the control plane has heard of it.
    pub(super) fn psk_generated(&mut self, parts: &mut SharedParts, key: QueueKey, psk: &GeneratedPsk) {
        let conn = self.conn_of_queue(key);
        let open = conn.and_then(|conn| parts.conns.queue_mut(conn)).and_then(|queue| queue.open_state());
        let Some(controller) = open.and_then(|open| self.controllers.get_mut(&open.cntlid)) else { return };
        let names = (&controller.names.host, &controller.names.subsystem);
        // A name with a space has no identity: its host has none to offer either.
        let Some(identity) = psk.identity(names.0, names.1) else { return };
        let Some(key) = psk.tls_psk(&identity) else { return };
        let key = Psk::new(key.suite().number(), key.expose());
        if let Some(before) = controller.generated.replace(identity.clone()) {
            revoke(&mut parts.outbox, before);
        }
        let message = NvmeMessage::PskGenerated(Box::new((identity, key)));
        parts.outbox.post(CONTROL_PLANE, Message::Nvme(message));
    }

    /// The host of an admin queue has authenticated: on a queue over TLS, a PSK that was generated takes the place of
    /// the one before. Without TLS the host comes again.
    pub(super) fn replace_psk(&mut self, parts: &mut SharedParts, cntlid: u16) {
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        if controller.tls.is_some()
            && let Some(identity) = controller.generated.take()
            && let Some(before) = controller.tls.replace(identity)
        {
            revoke(&mut parts.outbox, before);
        }
    }
}

/// A controller has ended: the PSK of its queues is of no use any more. One that was generated for queues to come is, if
/// its host has authenticated.
pub(super) fn revoke_psks(outbox: &mut Outbox, gone: &KnownController, why: ControllerEnd) {
    let unused = gone.generated.as_ref().filter(|_| gone.tls.is_some() || why.is_unauthenticated());
    let used = gone.tls.as_ref().filter(|identity| identity.kind == PskKind::Generated);
    for identity in [unused, used].into_iter().flatten() {
        revoke(outbox, identity.clone());
    }
}

fn revoke(outbox: &mut Outbox, identity: PskIdentity) {
    outbox.post(CONTROL_PLANE, Message::Nvme(NvmeMessage::PskRevoked(Box::new(identity))));
}

/// Whether an I/O queue comes as its controller's admin queue did: both without TLS; or both by PSKs that were
/// configured; or by the one that was generated for it.
pub(super) fn is_of_one_channel(admin: Option<&PskIdentity>, queue: Option<&PskIdentity>) -> bool {
    match (admin, queue) {
        (None, None) => true,
        (Some(admin), Some(queue)) => {
            admin == queue || [admin, queue].iter().all(|one| one.kind == PskKind::Retained)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// The identity of a connection's TLS; `None`: it has none. Only identities that can be read have keys.
pub(super) fn identity_of(queue: &ControllerQueue) -> Option<PskIdentity> {
    PskIdentity::parse(queue.tls_identity()?).ok()
}

/// Prepares a connection that was just accepted; false if it can only be turned away.
pub(super) fn expect_tls_if_enabled(
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
pub(super) fn check_tls_identity(
    identity: Option<&PskIdentity>,
    names: &ConnectNames,
    subsystem: TlsMode,
) -> Result<(), (ConnectRefusal, ConnectFailure)> {
    let failure = match (identity, subsystem) {
        (None, TlsMode::Off | TlsMode::Allow) => return Ok(()),
        (None, TlsMode::Require) => ConnectFailure::TlsRequired,
        (Some(_), TlsMode::Off) => ConnectFailure::TlsOff,
        (Some(known), TlsMode::Allow | TlsMode::Require) => {
            if known.host == names.host && known.subsystem == names.subsystem {
                return Ok(());
            }
            ConnectFailure::TlsNames
        }
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
        let identity = &PskIdentity::parse(b"NVMe0R01 nqn.h nqn.s").unwrap();
        let judge = |identity: Option<&PskIdentity>, host, subsystem, mode| {
            check_tls_identity(identity, &names(host, subsystem), mode).map_err(|(_, failure)| failure)
        };
        assert_eq!(judge(Some(identity), "nqn.h", "nqn.s", TlsMode::Require), Ok(()));
        assert_eq!(judge(Some(identity), "nqn.h", "nqn.s", TlsMode::Allow), Ok(()));
        for (host, subsystem) in [("nqn.other", "nqn.s"), ("nqn.h", "nqn.other")] {
            assert_eq!(judge(Some(identity), host, subsystem, TlsMode::Allow), Err(ConnectFailure::TlsNames));
        }
        assert_eq!(judge(Some(identity), "nqn.h", "nqn.s", TlsMode::Off), Err(ConnectFailure::TlsOff));
        assert_eq!(judge(None, "nqn.h", "nqn.s", TlsMode::Require), Err(ConnectFailure::TlsRequired));
        assert_eq!(judge(None, "nqn.h", "nqn.s", TlsMode::Allow), Ok(()));
    }

    #[test]
    fn queues_of_one_controller_come_one_way() {
        let digest = |letter: char| letter.to_string().repeat(44);
        let identity = |text: &str| PskIdentity::parse(text.as_bytes()).unwrap();
        let generated = |letter| identity(&format!("NVMe1G01 nqn.h nqn.s {}", digest(letter)));
        let retained = |form: &str| identity(&format!("{form} nqn.h nqn.s"));
        let (one, other) = (generated('a'), generated('b'));
        // A host may have two keys, or use one with both suites.
        let (first, second) = (retained("NVMe0R01"), retained("NVMe0R02"));
        for (admin, queue, fits) in [
            (None, None, true),
            (Some(&first), Some(&second), true),
            (Some(&one), Some(&one), true),
            (Some(&one), Some(&other), false),
            (Some(&one), Some(&first), false),
            (Some(&first), Some(&one), false),
            (Some(&first), None, false),
            (None, Some(&one), false),
        ] {
            assert_eq!(is_of_one_channel(admin, queue), fits, "{admin:?} {queue:?}");
        }
    }
}
