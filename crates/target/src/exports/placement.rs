//! Where the operator wants connections to be served: rules that narrow down which shards a session or
//! controller may live on. What no rule fits goes to the least loaded shard of all.

use std::sync::Arc;

use endpoint::{Accepted, ListenerId, ShardId};

use super::{Condition, Exports, Network};

/// How one of a rule's shards is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// The one with the fewest sessions or controllers; queues of a controller go round them.
    LeastLoaded,
    /// Any of them, drawn for each session, controller and queue.
    Random,
}

/// A rule: whoever fits all of it is served where it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRule {
    /// The listeners that it is about; `None`: all.
    pub listeners: Option<Vec<ListenerId>>,
    /// Networks that peers come from; empty: any.
    pub sources: Vec<Network>,
    /// Names of initiators and NVMe hosts; `None`: any.
    pub peers: Option<Vec<Arc<str>>>,
    /// Names of targets and subsystems; `None`: any.
    pub destinations: Option<Vec<Arc<str>>>,
    /// What else must hold.
    pub when: Condition,
    /// Where: at least one, and each exists.
    pub shards: Arc<[ShardId]>,
    /// Which of them.
    pub bind: Bind,
}

/// Who comes, and what for.
#[derive(Clone, Copy, Debug)]
pub struct Comer<'a> {
    /// By which connection.
    pub by: &'a Accepted,
    /// The initiator's or host's name.
    pub peer: &'a str,
    /// The target's or subsystem's name; empty for iSCSI discovery.
    pub destination: &'a str,
}

impl PlacementRule {
    fn fits(&self, comer: &Comer<'_>) -> bool {
        let named = |names: &Option<Vec<Arc<str>>>, name: &str| {
            names.as_ref().is_none_or(|names| names.iter().any(|known| &**known == name))
        };
        self.listeners.as_ref().is_none_or(|listeners| listeners.contains(&comer.by.listener))
            && (self.sources.is_empty() || self.sources.iter().any(|one| one.contains(comer.by.peer.ip())))
            && named(&self.peers, comer.peer)
            && named(&self.destinations, comer.destination)
            && self.when.holds(comer.by)
    }

    /// The shards of which the least loaded is to be taken, given a random number.
    pub fn among(&self, draw: u64) -> Arc<[ShardId]> {
        match self.bind {
            Bind::LeastLoaded => self.shards.clone(),
            Bind::Random => {
                let at = (draw % self.shards.len() as u64) as usize;
                Arc::from(&self.shards[at..=at])
            }
        }
    }
}

impl Exports {
    /// Which rule decides where this one is served: the first that fits.
    pub fn placement(&self, comer: &Comer<'_>) -> Option<usize> {
        self.placement.iter().position(|rule| rule.fits(comer))
    }

    /// The shards that such a rule leaves; `None`: all.
    pub(crate) fn among(&self, comer: &Comer<'_>, draw: u64) -> Option<Arc<[ShardId]>> {
        self.placement(comer).map(|at| self.placement[at].among(draw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> PlacementRule {
        PlacementRule {
            listeners: None,
            sources: Vec::new(),
            peers: None,
            destinations: None,
            when: Condition::Always,
            shards: Arc::from([ShardId(1), ShardId(3)]),
            bind: Bind::LeastLoaded,
        }
    }

    #[test]
    fn a_rule_fits_when_all_of_it_does() {
        let by = Accepted {
            listener: ListenerId(2),
            peer: "10.1.2.3:40000".parse().unwrap(),
            local: "10.1.2.4:3260".parse().unwrap(),
        };
        let comer = Comer { by: &by, peer: "iqn.2026-11.test:a", destination: "iqn.2026-11.test:disk" };
        assert!(rule().fits(&comer));
        let network = |address: &str| Network { address: address.parse().unwrap(), prefix: 8 };
        let all = PlacementRule {
            listeners: Some(vec![ListenerId(2)]),
            sources: vec![network("10.0.0.0")],
            peers: Some(vec!["iqn.2026-11.test:b".into(), "iqn.2026-11.test:a".into()]),
            destinations: Some(vec!["iqn.2026-11.test:disk".into()]),
            ..rule()
        };
        assert!(all.fits(&comer));
        assert!(!PlacementRule { listeners: Some(vec![ListenerId(0)]), ..all.clone() }.fits(&comer));
        assert!(!PlacementRule { sources: vec![network("11.0.0.0")], ..all.clone() }.fits(&comer));
        let never = Condition::Any(Vec::new());
        assert!(!PlacementRule { when: never, ..all.clone() }.fits(&comer));
        assert!(!PlacementRule { peers: Some(vec![]), ..all.clone() }.fits(&comer));
        assert!(!all.fits(&Comer { destination: "", ..comer }));
    }

    #[test]
    fn random_takes_each_of_its_shards() {
        assert_eq!(*rule().among(7), [ShardId(1), ShardId(3)]);
        let random = PlacementRule { bind: Bind::Random, ..rule() };
        assert_eq!((&*random.among(4), &*random.among(9)), (&[ShardId(1)][..], &[ShardId(3)][..]));
    }
}
