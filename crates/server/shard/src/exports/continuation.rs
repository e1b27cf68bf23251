//! What becomes of a session or a controller that stands when other exports come into force.
//!
//! Invariant: this says what a shard does then (`Control::Exports`), so that it can be known before.

use endpoint::AcceptedSocket;
use nvme::{fabrics::ConnectNames, tls::PskIdentity};
use nvme_server::NamespaceEntry;
use scsi_server::LunEntry;

use super::Exports;
use crate::message::HostAuthentication;

/// Why a session or controller has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The portal that it came by is no more.
    NoPortal,
    /// There is no such target or subsystem, or not by that portal.
    NoTarget,
    /// No rule lets it in.
    NotGranted,
    /// It must prove who it is now, and never did.
    Unproved,
    /// Its host is blocked.
    Blocked,
    /// Its connections come from addresses that may not reach the same any more.
    Divided,
}

impl Exports {
    /// The logical units that an iSCSI session has by these exports; none for a discovery session. Each connection is
    /// judged by its own addresses.
    ///
    /// # Errors
    /// Why the session ends.
    pub fn keep_session(
        &self,
        target: Option<&str>,
        initiator: &str,
        proved: bool,
        links: &[AcceptedSocket],
    ) -> Result<Vec<LunEntry>, EndCause> {
        if links.iter().any(|link| self.blocked.contains(initiator, link.peer.ip())) {
            return Err(EndCause::Blocked);
        }
        let Some(target) = target else {
            let may = links.iter().all(|link| self.may_discover(initiator, proved, link));
            return if may { Ok(Vec::new()) } else { Err(EndCause::Unproved) };
        };
        let reached = |accepted: &AcceptedSocket| {
            self.reachable_luns(target, initiator, proved, accepted)
                .ok_or_else(|| self.why_unreached(target, initiator, accepted))
        };
        let mut all = links.iter().map(reached);
        let first = all.next().unwrap_or(Err(EndCause::NoPortal))?;
        match all.find(|other| other.as_ref() != Ok(&first)) {
            Some(other) => Err(other.err().unwrap_or(EndCause::Divided)),
            None => Ok(first),
        }
    }

    fn why_unreached(&self, target: &str, initiator: &str, accepted: &AcceptedSocket) -> EndCause {
        let Some(portal) = self.portal(accepted.listener) else { return EndCause::NoPortal };
        let Some(target) = self.target(target, portal) else { return EndCause::NoTarget };
        if target.rule_for(initiator, accepted).is_some() { EndCause::Unproved } else { EndCause::NotGranted }
    }

    /// The namespaces that an NVMe controller has by these exports; none of a discovery controller. `links` are its
    /// queues, the admin queue first, and `identity` that of the key of its TLS.
    ///
    /// # Errors
    /// Why the controller, or a queue of it, ends.
    pub fn keep_controller(
        &self,
        names: &ConnectNames,
        (proved, identity): (HostAuthentication, Option<&PskIdentity>),
        links: &[AcceptedSocket],
    ) -> Result<Vec<NamespaceEntry>, EndCause> {
        let admin = links.first().ok_or(EndCause::NoPortal)?;
        if links.iter().any(|link| self.blocked.contains(names.host.as_str(), link.peer.ip())) {
            return Err(EndCause::Blocked);
        }
        let portal = self.nvme.portal(admin.listener).ok_or(EndCause::NoPortal)?;
        let (namespaces, demanded) = if names.subsystem.is_discovery_service() {
            (
                Vec::new(),
                self.required_discovery_authentication(names, (admin, identity))
                    .ok_or(EndCause::NotGranted)?,
            )
        } else {
            let export = self.nvme.subsystem(names.subsystem.as_str(), portal.port);
            let export = export.ok_or(EndCause::NoTarget)?;
            let seen = self.namespaces_of_subsystem(export, names, admin).ok_or(EndCause::NotGranted)?;
            (
                seen,
                self.required_authentication(export, names, (admin, identity)).ok_or(EndCause::NotGranted)?,
            )
        };
        match proved {
            HostAuthentication::Pending => return Err(EndCause::Unproved),
            HostAuthentication::NotRequired if demanded.is_some_and(|one| one.is_required()) => {
                return Err(EndCause::Unproved);
            }
            HostAuthentication::NotRequired | HostAuthentication::Done(..) => {}
        }
        let is_discovery = names.subsystem.is_discovery_service();
        match links.iter().all(|link| is_discovery || self.have_same_rule(names, link, admin)) {
            true => Ok(namespaces),
            false => Err(EndCause::Divided),
        }
    }
}
