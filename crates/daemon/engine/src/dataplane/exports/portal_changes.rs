//! The settings of another plan beside those in force: which portals keep their sockets, and which listener each is.
//!
//! Invariant: a listener's number means one portal with one tag for as long as the daemon runs, since connections bear
//! it.

use endpoint::ListenerId;

use super::FixedSettings;
use crate::EngineError;
use config::plan::Plan;

/// What is new of portals, by their places.
#[derive(Debug, Default)]
pub struct PortalChanges {
    /// Portals that are to be bound.
    pub new: Vec<usize>,
    /// Portals that keep their socket, with other options or another listener, and the listener that they were.
    pub changed: Vec<(ListenerId, usize)>,
}

/// The next number of a listener.
fn next_listener(next: &mut u32) -> Result<ListenerId, EngineError> {
    let why =
        || EngineError::Unsupported("the daemon has used up its listener numbers: restart it".to_owned());
    let number = u16::try_from(*next).map_err(|_| why())?;
    *next += 1;
    Ok(ListenerId(number))
}

impl FixedSettings {
    /// Removes the PSKs that hosts have generated if secrets are others than in `before`. To be called when no shard
    /// goes by `before` any more.
    pub fn void_psks_of_other_secrets(&self, before: &FixedSettings) {
        if !self.has_secrets_of(before) {
            self.generated_psks().clear();
        }
    }

    /// The settings of another plan while those of `before` are in force: a portal that both have keeps its address, and
    /// its listener if it has the same tag.
    pub fn after(plan: &Plan, before: &FixedSettings) -> Result<(Self, PortalChanges), EngineError> {
        let mut settings = FixedSettings::of(plan);
        // Hosts connect by them again whatever else changes; changed secrets void them when the plan is in force.
        settings.generated = before.generated.clone();
        settings.blocked = before.blocked.clone();
        settings.host_limiters.keep_of(&before.host_limiters);
        settings.next_listener = before.next_listener;
        settings.listeners.clear();
        let mut changes = PortalChanges::default();
        for (at, key) in settings.portal_keys.iter().enumerate() {
            let known = before.portal_keys.iter().position(|other| other == key);
            let known = known.and_then(|at| Some((*before.listeners.get(at)?, before.portals.get(at)?)));
            if let (Some((listener, portal)), Some(own)) = (known, settings.portals.get_mut(at)) {
                own.address = portal.address;
                let number = if own.tag == portal.tag {
                    listener
                } else {
                    before.listener_beside(listener, &mut settings.next_listener)?
                };
                settings.listeners.push(number);
                if number != listener || own.tcp != portal.tcp {
                    changes.changed.push((listener, at));
                }
                continue;
            }
            settings.listeners.push(next_listener(&mut settings.next_listener)?);
            changes.new.push(at);
        }
        Ok((settings, changes))
    }

    /// A number for what another listener was, which stays on its shard: numbers go round the shards.
    fn listener_beside(&self, other: ListenerId, next: &mut u32) -> Result<ListenerId, EngineError> {
        let shards = self.cores.len().max(1) as u32;
        while *next % shards != u32::from(other.0) % shards {
            *next += 1;
        }
        next_listener(next)
    }

    /// Numbers for ports that have none, which nothing records: to look at what would be.
    pub fn number_ports_for_review(&mut self, before: &FixedSettings, last: u16) -> Result<(), EngineError> {
        self.numbers = before.numbers.clone();
        self.numbers.assign(&self.ports, last).map(drop).map_err(EngineError::Unsupported)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use config::plan::Portal;

    use super::*;
    use crate::example::example_plan;

    #[test]
    fn a_portal_that_another_plan_has_too_keeps_its_listener_on_its_shard() {
        let mut plan = example_plan();
        let mut before = FixedSettings::of(&plan);
        before.resolve_placement(&[], &[0, 1]).unwrap();
        let bound: Vec<SocketAddr> = before.portals.iter().map(|portal| portal.address).collect();
        // The third gets another tag, the first goes, and one comes.
        plan.portals[2].tag = 9;
        let new = Portal { address: "127.0.0.1:1".parse().unwrap(), ..plan.portals.remove(0) };
        plan.portals.push(new);
        let (after, changes) = FixedSettings::after(&plan, &before).unwrap();
        let kept = [before.listeners[1], before.listeners[3], before.listeners[4]];
        assert_eq!([after.listeners[0], after.listeners[2], after.listeners[3]], kept);
        let (was, is) = (before.listeners[2], after.listeners[1]);
        assert!(is.0 > 4 && is.0 % 2 == was.0 % 2, "{is:?}: on its shard");
        assert_eq!((changes.new, changes.changed), (vec![4], vec![(was, 1)]));
        assert!(after.listeners[4].0 > is.0 && !before.listeners.contains(&after.listeners[4]));
        assert_eq!(after.portals[0].address, bound[1]);
        // What hosts have generated stays, since they connect by it again.
        let identity =
            nvme::tls::PskIdentity::parse(format!("NVMe1G01 nqn.h nqn.s {:044}", 1).as_bytes()).unwrap();
        let now = std::time::Instant::now();
        before.generated_psks().add(now, identity.clone(), tls::Psk::new([0x13, 1], &[1; 32]));
        after.void_psks_of_other_secrets(&before);
        assert!(after.generated_psks().find(now, &identity).is_some());
        plan.auth.dhchap =
            Some(std::sync::Arc::new(nvme::auth::DhchapSecret::generate(None, &mut |bytes: &mut [u8]| {
                bytes.fill(7)
            })));
        let (changed, _) = FixedSettings::after(&plan, &after).unwrap();
        assert!(changed.generated_psks().find(now, &identity).is_some(), "shards go by the plan of before");
        changed.void_psks_of_other_secrets(&after);
        assert!(changed.generated_psks().find(now, &identity).is_none());
    }
}
