//! What an initiator can reach with the current exports, and what it is told.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use endpoint::AcceptedSocket;
use iscsi::discovery::TargetList;
use iscsi::login::AuthPolicy;
use iscsi::name::TargetAddress;
use scsi_server::{CopyVolume, LunEntry};

use super::{Exports, LunExport, TargetExport};
use crate::rate_limit::RateLimiter;

impl Exports {
    /// What an initiator reaches of a target by the exports of now that came like this; `None`: nothing. Who must prove
    /// now who it is, and never did, comes again and does.
    pub(crate) fn reachable_luns(
        &self,
        target: &str,
        initiator: &str,
        proved: bool,
        accepted: &AcceptedSocket,
    ) -> Option<Vec<LunEntry>> {
        let target = self.target(target, self.portal(accepted.listener)?)?;
        let rule = target.rule_for(initiator, accepted)?;
        let may = proved || !matches!(rule.auth, AuthPolicy::Required(_));
        let entry = |(export, read_only): (LunExport, bool)| LunEntry {
            lun: export.lun,
            volume: export.volume,
            read_only,
        };
        may.then(|| target.visible_luns(rule).map(entry).collect())
    }

    /// The volumes that an initiator may copy from and to by a session of `target`, besides the logical units of that: those
    /// of the other targets that it would reach as it came here, on each of its connections. Where another target wants
    /// proof, `user` must be an account there too, with the same secret.
    pub(crate) fn copy_volumes(
        &self,
        target: &str,
        (initiator, user): (&str, Option<&str>),
        links: &[AcceptedSocket],
    ) -> Vec<CopyVolume> {
        let mut all = links.iter().map(|link| self.copy_volumes_by(target, (initiator, user), link));
        let mut reached = all.next().unwrap_or_default();
        for other in all {
            reached.retain(|volume| other.contains(volume));
        }
        reached
    }

    fn copy_volumes_by(
        &self,
        target: &str,
        (initiator, user): (&str, Option<&str>),
        accepted: &AcceptedSocket,
    ) -> Vec<CopyVolume> {
        let Some(portal) = self.portal(accepted.listener) else { return Vec::new() };
        let here = self.target(target, portal).and_then(|target| target.rule_for(initiator, accepted));
        let account = user.and_then(|user| here?.auth.account(user));
        // Where a login would be sent elsewhere, the volume that others use may be elsewhere too.
        let serves = |other: &TargetExport| {
            other.is_reached_by(portal)
                && other.redirect.is_none()
                && other.redirect_for(portal.group, accepted).is_none()
        };
        let others = self.targets.iter().filter(|other| &*other.name != target && serves(other));
        let mut reached = Vec::new();
        for other in others {
            let Some(rule) = other.rule_for(initiator, accepted) else { continue };
            let is_proved = || account.is_some_and(|account| rule.auth.has_account(account));
            if matches!(rule.auth, AuthPolicy::Required(_)) && !is_proved() {
                continue;
            }
            let luns = other.visible_luns(rule);
            reached.extend(luns.map(|(lun, read_only)| CopyVolume { volume: lun.volume, read_only }));
        }
        reached
    }

    /// By what an initiator is limited at a target that came like this.
    pub(crate) fn limiter_of_initiator(
        &self,
        target: &str,
        initiator: &str,
        accepted: &AcceptedSocket,
    ) -> Option<Arc<RateLimiter>> {
        let target = self.target(target, self.portal(accepted.listener)?)?;
        target.rule_for(initiator, accepted)?.limiter.clone()
    }

    /// Whether an initiator that came like this may have a discovery session.
    pub(crate) fn may_discover(&self, initiator: &str, proved: bool, accepted: &AcceptedSocket) -> bool {
        let proves = proved || !matches!(self.discovery_auth, AuthPolicy::Required(_));
        proves && !self.blocked.contains(initiator, accepted.peer.ip())
    }

    /// What discovery tells an initiator: the targets that it may reach, and where.
    pub(crate) fn send_targets_text(
        &self,
        initiator: &str,
        accepted: &AcceptedSocket,
        which: Option<&str>,
    ) -> Box<[u8]> {
        let listing = self.targets.iter().filter(|target| {
            which.is_none_or(|name| &*target.name == name) && target.rule_for(initiator, accepted).is_some()
        });
        let mut list = TargetList::default();
        for target in listing {
            let own = self.portal_addresses(target, accepted.local.ip());
            let mut addresses = own.chain(self.portals_elsewhere(target)).peekable();
            // Where no address follows, initiators take the one that they asked (RFC 7143 Appendix C).
            if addresses.peek().is_some() {
                list.push_target(&target.name);
            }
            addresses
                .for_each(|(address, group)| list.push_address(&TargetAddress::of_portal(address, group)));
        }
        list.into_text()
    }

    fn portal_addresses(
        &self,
        target: &TargetExport,
        local: IpAddr,
    ) -> impl Iterator<Item = (SocketAddr, u16)> {
        let portals = self.portals.iter().filter(|portal| target.is_reached_by(portal));
        portals.filter_map(move |portal| Some((portal.advertised_address(local)?, portal.group)))
    }
}
